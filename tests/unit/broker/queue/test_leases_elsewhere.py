"""Leases of queues that change their masters, and their homes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from leveret.broker.queue import leases
from leveret.broker.queue.lease import LeaseView
from leveret.broker.queue.leases import lease_views, open_lease, take_lease
from leveret.broker.queue.queue import Queue
from leveret.broker.remote.migrate import LIFE, move
from leveret.metadata.model import commands as c
from leveret.metadata.model.refusals import Refusal
from tests.support.brokers import Cluster
from tests.support.mirrored_brokers import Rings

NAMES = ("a", "b", "c")


def ask(cluster: Cluster, node: str, what: str, *arguments: Any) -> Any:
    """A question to the queue as a node has it, and its answer."""
    answers: list[LeaseView | Refusal] = []
    queue = cluster[node].queue("q")
    assert isinstance(queue, Queue)
    getattr(leases, f"{what}_lease")(queue, "job", *arguments, answers.append)
    cluster.run()
    return answers[0] if answers else None


def own(cluster: Cluster, node: str, owner: str) -> Any:
    answers: list[LeaseView | Refusal] = []
    queue = cluster[node].queue("q")
    assert isinstance(queue, Queue)
    open_lease(queue, "job", 60_000, answers.append, owner)
    cluster.run()
    return answers[0]


def publish(cluster: Cluster, *bodies: bytes) -> None:
    client = cluster["a"].client()
    for body in bodies:
        client.publish("q", body, delivery_mode=2)
    cluster.run()


def waiting(cluster: Cluster, node: str) -> list[int]:
    return [number for one in cluster[node].queue("q").ready for number in range(one.first, one.last + 1)]


# -- The next master -------------------------------------------------------------------------------------------------


@pytest.fixture
def rings() -> Iterator[Rings]:
    rings = Rings()
    publish(rings, *(b"%d" % number for number in range(6)))
    yield rings
    rings.finish()


@pytest.mark.parametrize("planned", [False, True])
def test_the_next_master_has_the_lease_and_gives_its_messages_to_nobody(rings: Rings, planned: bool) -> None:
    ask(rings, "a", "open", 60_000)
    before = ask(rings, "a", "take", 4, 1 << 20)
    assert before.runs == [(0, 1, 4)]
    ask(rings, "a", "ack", 1)
    if planned:
        rings.begin("b")
        rings.end()
    else:
        rings.lose("a")
        rings.pass_time()
    master = rings.master
    assert master != "a"
    queue = rings[master].queue("q")
    assert isinstance(queue, Queue) and waiting(rings, master) == [5, 6]
    assert (queue.ready_count, queue.unacked_count) == (2, 3)
    after = ask(rings, master, "take", 1, 1 << 20)
    assert (after.acked, after.next, after.runs) == (1, 5, [(1, 2, 5)])
    assert [view.runs for view in lease_views(queue)] == [after.runs]
    ask(rings, master, "release")
    assert waiting(rings, master) == [2, 3, 4, 5, 6]
    if not planned:
        rings.mend()


def test_the_next_master_knows_whose_the_lease_is(rings: Rings) -> None:
    assert own(rings, "a", "one").owner == "one"
    rings.lose("a")
    rings.pass_time()
    assert own(rings, rings.master, "two").code == ask(rings, rings.master, "take", 1, 1 << 20).code == 530
    assert own(rings, rings.master, "one").owner == "one"
    ask(rings, rings.master, "release")
    rings.mend()


def test_who_asked_a_master_that_is_deposed_is_refused(rings: Rings) -> None:
    ask(rings, "a", "open", 60_000)
    answers: list[Any] = []
    queue = rings["a"].queue("q")
    rings.lose("a")
    assert isinstance(queue, Queue)
    take_lease(queue, "job", 1, 1 << 20, answers.append)
    rings.pass_time()
    rings.mend()
    assert len(answers) == 1 and isinstance(answers[0], Refusal) and answers[0].code == 404
    master = rings.master
    assert ask(rings, master, "take", 2, 1 << 20).runs == [(0, 1, 2)]
    ask(rings, master, "release")


# -- Another home ----------------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(*NAMES)
    for name in NAMES:
        cluster[name].broker.run = f"run of {name}"
        cluster.apply(c.NodeStarted(name, run=f"run of {name}"))
    cluster["a"].client().declare("q", durable=True)
    publish(cluster, *(b"%d" % number for number in range(6)))
    yield cluster
    cluster.finish()


def test_a_lease_moves_with_its_messages(cluster: Cluster) -> None:
    ask(cluster, "a", "open", 60_000)
    ask(cluster, "a", "take", 4, 1 << 20)
    ask(cluster, "a", "ack", 1)
    ended: list[str | None] = []
    move(cluster["a"].queue("q"), "b", ended.append)
    cluster.run()
    assert ended == [None]
    view = ask(cluster, "b", "open", None)
    assert (view.acked, view.next, view.runs) == (1, 4, [(1, LIFE, LIFE + 2)]), "numbers are none that there were"
    assert waiting(cluster, "b") == [LIFE + 3, LIFE + 4]
    log = cluster["b"].log.queues[cluster["b"].queue("q").spec.id]
    assert [log[LIFE + at][0][-2:-1] for at in range(5)] == [b"1", b"2", b"3", b"4", b"5"]
    assert ask(cluster, "b", "ack", 3).runs == [(3, LIFE + 2, LIFE + 2)]
    ask(cluster, "b", "release")
    assert waiting(cluster, "b") == [LIFE + 2, LIFE + 3, LIFE + 4]


def test_its_owner_moves_with_it(cluster: Cluster) -> None:
    own(cluster, "a", "one")
    move(cluster["a"].queue("q"), "b", lambda problem: None)
    cluster.run()
    assert own(cluster, "b", "two").code == 530 and own(cluster, "b", "one").owner == "one"
    ask(cluster, "b", "release")


def test_a_move_that_fails_leaves_the_lease_as_it_was(cluster: Cluster) -> None:
    ask(cluster, "a", "open", 60_000)
    before = ask(cluster, "a", "take", 4, 1 << 20)
    cluster.hold("b", "a")
    ended: list[str | None] = []
    move(cluster["a"].queue("q"), "b", ended.append)
    cluster.run()
    cluster.release("b", "a", 1)
    answers: list[Any] = []
    queue = cluster["a"].queue("q")
    assert isinstance(queue, Queue)
    take_lease(queue, "job", 1, 1 << 20, answers.append)
    cluster.run()
    assert not answers, "it is not clear yet who may say so"
    cluster.close("a", "b")
    cluster.run()
    assert len(ended) == 1 and ended[0] is not None
    assert answers[0].runs == [(0, 1, 5)] and before.runs == [(0, 1, 4)]
    assert waiting(cluster, "a") == [6] and queue.unacked_count == 5
    ask(cluster, "a", "release")
