"""A client publishes without confirms to a queue of another node: each message comes once, in order.

Such publishes travel without numbers, in frames of their own. Clients of other runs want confirms, since little is
promised about other messages; but where nothing fails, all of them come.
"""

from __future__ import annotations

import pytest

from simulation.clients.client import Client, Step
from simulation.plan import Plan
from simulation.world import Violation, World, quiet
from tests.simulation.bugs.mutations import Mutation, put

QUEUE = "d0"
EACH = 3
PUBLISH = {"queue": QUEUE, "count": EACH, "padding": 10, "persistent": True, "wait": False}
COUNT = 20

TWICE = Mutation(
    "publishes without confirms arrive twice",
    3,
    "OwnerEnd._on_publish",
    "enqueue = queue.enqueue if queue.is_local else queue.relay",
    "enqueue = queue.enqueue if queue.is_local else queue.relay\nenqueue(contents, keys, kinds[0], size, None)",
)


def test_each_comes_once_and_in_order() -> None:
    assert _found() == list(range(1, COUNT * EACH + 1))


def test_what_arrives_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, TWICE)
    seen = r"message 1 of d0 (came to .* after message [23]|was delivered .* and once more)"
    with pytest.raises(Violation, match=seen):
        _found()


def _found() -> list[int]:
    """Returns what is in the queue in the end."""
    world = World(Plan(1, 3, 0))
    try:
        with quiet():
            world._begin()
            home = [machine.name for machine in world.machines].index(world.ledger.queue(QUEUE).owner or "")
            client = world.clients[0]
            client.give(Step(0, 0.0, "go", {"node": (home + 1) % 3}))
            world.must(10.0, world.all_idle, world.standing)
            world.client_loop.create_task(_want_no_confirms(client))
            world.run_for(1.0)
            for at in range(COUNT):
                world.scheduler.after(at / 20, client.give, Step(0, 0.0, "publish", PUBLISH))
            world.run_for(5.0)
            found: list[int] = []
            world.clients[1].give(Step(0, 0.0, "drain", {"queue": QUEUE, "into": found}))
            world.run_for(5.0)
        return found
    finally:
        world.close()


async def _want_no_confirms(client: Client) -> None:
    session = await client._session()
    client.publisher = await session.open_channel(confirms=False)
