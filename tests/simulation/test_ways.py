"""A client publishes to a queue and to none, in one piece, and the power fails a moment later.

What goes to no queue is answered at once, and not by the way of the others. If confirms were numbered by their ways,
the first message would be confirmed by the answer to the second, before it is on disk. Clients of other runs seldom
publish both before their node reads either.
"""

from __future__ import annotations

import pytest

from simulation.clients.client import Step
from simulation.plan import Plan
from simulation.world import Violation, World, quiet
from tests.simulation.bugs.mutations import Mutation, put

PUBLISH = {"count": 1, "padding": 10, "persistent": True, "wait": False}
NOWHERE = "nowhere"
ROUNDS = 12

BY_WAYS = Mutation(
    "confirms are numbered by their messages' ways",
    1,
    "PublishFastPath._on_publish",
    "self.submit()",
    "pass",
)


def test_each_confirm_is_that_of_its_message() -> None:
    _play()


def test_confirms_that_are_numbered_by_ways_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, BY_WAYS)
    with pytest.raises(Violation, match="confirmed and not there any more"):
        _play()


def _play() -> None:
    world = World(Plan(1, 1, 0))
    try:
        with quiet():
            world._begin()
            for number in range(ROUNDS):
                client = world.clients[number % len(world.clients)]
                for queue in (NOWHERE, "d0"):  # The ways are known then.
                    client.give(Step(0, 0.0, "publish", PUBLISH | {"queue": queue, "wait": True}))
                world.must(20.0, world.all_idle, world.standing)
                world.ledger.on_disturbed(world.scheduler.now + 100.0)
                for queue in ("d0", NOWHERE):
                    client.give(Step(0, 0.0, "publish", PUBLISH | {"queue": queue}))
                world.run_for(number / 1000)
                world.fault_power(0, 0.5)
                world.must(20.0, world.all_serve, world.standing)
            world._heal()
            world._empty()
        states = [message.state for message in world.ledger.messages.values() if message.queue == NOWHERE]
        assert states.count("returned") >= ROUNDS
    finally:
        world.close()
