"""Seeds in which every publish is made by a producer, which sends again whatever was not confirmed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulation.clients.client import Client
from simulation.clients.producer import Producer
from simulation.plan import Plan
from simulation.world import Violation, World, run
from tests.simulation.bugs.mutations import Mutation, put

TAKING = frozenset({"consume", "get", "cancel", "prove", "purge", "delete"})


@pytest.fixture
def producers(monkeypatch: pytest.MonkeyPatch) -> dict[Client, Producer]:
    found: dict[Client, Producer] = {}
    feel = Client.do_feel

    def producer(client: Client) -> Producer:
        return found.setdefault(client, Producer(client))

    async def do_publish(
        client: Client, queue: str, count: int, padding: int, persistent: bool, wait: bool, **more: Any
    ) -> None:
        await producer(client).publish(queue, count, padding, persistent, wait)

    async def do_feel(client: Client) -> None:
        await producer(client).finish()
        await feel(client)

    monkeypatch.setattr(Client, "do_publish", do_publish)
    monkeypatch.setattr(Client, "do_feel", do_feel)
    return found


def played(plan: Plan, is_left_alone: bool) -> World:
    """`is_left_alone`: nobody takes anything before the end, when all of it is counted."""
    without = tuple(step.number for step in plan.draw() if is_left_alone and step.what in TAKING)
    return run(replace(plan, without=without))


@pytest.mark.parametrize("is_left_alone", [False, True], ids=["used", "left alone"])
@pytest.mark.parametrize(("nodes", "mirrored", "seeds"), [(1, False, 2), (3, False, 2), (3, True, 3)])
def test_seeds(producers: dict[Client, Producer], nodes: int, mirrored: bool, seeds: int, is_left_alone: bool) -> None:
    for seed in range(2, 2 + seeds):
        played(Plan(seed, nodes, mirrored=mirrored), is_left_alone)
    messages = [message for one in producers.values() for message in one.sent]
    confirmed = [message for message in messages if message.state == "confirmed"]
    assert len(confirmed) > 30 * seeds and len(confirmed) > 0.5 * len(messages)
    assert sum(one.resent for one in producers.values()) > 0.2 * len(messages)
    assert sum(one.sessions for one in producers.values()) > 10 * seeds


def _bug(name: str, function: str, old: str, new: str, first: int = 0, mirrored: bool = True) -> Mutation:
    return Mutation(name, 3, function, old, new, first, mirrored=mirrored)


BUGS = (
    _bug("holes are not noticed", "take", "origin.previous > taken", "False", first=2, mirrored=False),
    _bug("a copy is confirmed at once", "take", "not is_new and queue.durable_state.changes", "False", first=2),
    _bug("what is old is taken with what is new", "take", "old > 0", "False", first=12),
    _bug(
        "a new master knows no producers",
        "DurableState.restore",
        "self.table = table or NO_DICT",
        "self.table = NO_DICT",
        first=11,
    ),
    _bug(
        "what waits for a master is no longer a producer's",
        "park",
        "parked.append(Parked(contents, keys, kind, size, pending, origin))",
        "parked.append(Parked(contents, keys, kind, size, pending, None))",
        first=3,
    ),
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda one: one.name)
def test_the_seeds_notice(producers: dict[Client, Producer], bug: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, bug)
    with pytest.raises(Violation):
        for seed in range(bug.first, bug.first + 20):
            played(Plan(seed, bug.nodes, mirrored=bug.mirrored), is_left_alone=True)
