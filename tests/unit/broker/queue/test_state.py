"""The states of a queue: each legal transition has a verb that makes it, and no verb makes another."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.broker.delivery.confirms import Confirms
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.state import ACCESS_LEGAL, LIFE_LEGAL, Access, Life
from leveret.metadata.model.records import QueueSpec
from leveret.storage.format.queue_block import PERSISTENT
from tests.unit.broker.queue.test_queue import Host

# By the state to begin with: verbs, and the state that each of them leads to.
ACCESS_VERBS: dict[Access, dict[str, Access]] = {
    Access.OPEN: {
        "freeze": Access.FROZEN, "thaw": Access.OPEN, "hold": Access.HELD, "seal": Access.SEALED, "resume": Access.OPEN,
    },
    Access.FROZEN: {
        "freeze": Access.FROZEN, "thaw": Access.OPEN, "hold": Access.HELD, "resume": Access.FROZEN,
    },
    Access.HELD: {
        "freeze": Access.HELD, "thaw": Access.HELD, "hold": Access.HELD, "resume": Access.OPEN,
        "resume_cut_off": Access.FROZEN,
    },
    Access.SEALED: {"thaw": Access.SEALED, "resume": Access.OPEN},
}  # fmt: skip
LIFE_VERBS: dict[Life, dict[str, Life]] = {
    Life.HERE: {
        "begin_move": Life.MOVING, "end_move": Life.HERE, "begin_deletion": Life.DELETING, "on_deleted": Life.GONE,
    },
    Life.MOVING: {
        "begin_move": Life.MOVING, "end_move": Life.HERE, "begin_deletion": Life.DELETING, "on_deleted": Life.GONE,
    },
    Life.DELETING: {
        "begin_move": Life.DELETING, "end_move": Life.DELETING, "begin_deletion": Life.DELETING,
        "on_deleted": Life.GONE,
    },
    Life.GONE: {"end_move": Life.GONE, "let_go_of_all": Life.GONE},
}  # fmt: skip


def made(access: Access = Access.OPEN, life: Life = Life.HERE) -> Queue:
    queue = Queue(QueueSpec(1, "/", "q", durable=True), Host())
    ways = {Access.OPEN: (), Access.FROZEN: ("freeze",), Access.HELD: ("hold",), Access.SEALED: ("seal",)}
    lives = {Life.MOVING: ("begin_move",), Life.DELETING: ("begin_deletion",), Life.GONE: ("on_deleted",)}
    for verb in (*ways[access], *lives.get(life, ())):
        do(queue, verb)
    assert (queue.access, queue.life) == (access, life)
    return queue


def do(queue: Queue, verb: str) -> None:
    if verb == "begin_move":
        departure: Any = SimpleNamespace(consumers=[], unacked=0)
        queue.begin_move(departure)
    elif verb == "resume_cut_off":
        mirror: Any = SimpleNamespace(member=SimpleNamespace(serving=False))
        queue.mirror = mirror
        queue.resume()
    else:
        getattr(queue, verb)()


@pytest.mark.parametrize("access", Access)
def test_verbs_of_access(access: Access) -> None:
    for verb, expected in ACCESS_VERBS[access].items():
        queue = made(access)
        do(queue, verb)
        assert queue.access is expected, (verb, expected)
        assert queue.frozen is (expected in (Access.FROZEN, Access.HELD))
        assert (queue.parked is not None) is (expected in (Access.HELD, Access.SEALED))
    for verb in {"freeze", "thaw", "hold", "seal", "resume"} - ACCESS_VERBS[access].keys():
        with pytest.raises(AssertionError, match="cannot be"):
            do(made(access), verb)


@pytest.mark.parametrize("life", Life)
def test_verbs_of_life(life: Life) -> None:
    for verb, expected in LIFE_VERBS[life].items():
        queue = made(life=life)
        do(queue, verb)
        assert queue.life is expected, (verb, expected)
        assert queue.deleted is (expected is Life.GONE)
        assert queue.is_deferring is (expected in (Life.MOVING, Life.DELETING))
    for verb in {"begin_deletion", "on_deleted"} - LIFE_VERBS[life].keys():
        with pytest.raises(AssertionError, match="cannot be"):
            do(made(life=life), verb)


def test_every_legal_transition_has_a_verb() -> None:
    for state in Access:
        assert ACCESS_LEGAL[state] == set(ACCESS_VERBS[state].values()) - {state}
    for life in Life:
        assert LIFE_LEGAL[life] == set(LIFE_VERBS[life].values()) - {life}


def test_no_other_transition_is_made() -> None:
    for access, to in product(Access, Access):
        if to not in ACCESS_LEGAL[access]:
            with pytest.raises(AssertionError, match="cannot be"):
                made(access)._change_access(to)
    for life, then in product(Life, Life):
        if then not in LIFE_LEGAL[life]:
            with pytest.raises(AssertionError, match="cannot be"):
                made(life=life)._change_life(then)


def test_the_two_are_independent() -> None:
    for access, life in product(Access, Life):
        made(access, life)


def test_what_waits_is_given_once_and_in_order() -> None:
    queue = made(Access.HELD)
    asked: list[str] = []
    for body in (b"1", b"2"):
        pending = Confirms(lambda: None).begin(1)
        assert queue.enqueue([body], [b""], PERSISTENT, 1, pending)
        assert pending.waiting == 1
    assert queue.later(lambda found: asked.append("status"))
    parked, waiting = queue.resume()
    assert [one.contents for one in parked] == [[b"1"], [b"2"]] and len(waiting) == 1
    assert queue.resume() == ([], [])
