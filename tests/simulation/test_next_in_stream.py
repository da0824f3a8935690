"""A reader asks for what comes next in a stream, just when the master is lost that has confirmed the last messages.

The next master holds these messages and has not heard that they were confirmed. They are old all the same. In other
runs a reader seldom comes at that moment.
"""

from __future__ import annotations

import pytest

from simulation.checkers.broker_features_checker import BrokerFeaturesChecker
from simulation.clients.client import Step
from simulation.plan import Plan
from simulation.world import Violation, World, quiet
from tests.simulation.bugs.mutations import Mutation, put

STREAM = "s0"
PUBLISH = {"queue": STREAM, "count": 3, "padding": 10, "persistent": True, "wait": True}
READ = {"queue": STREAM, "start": "next", "value": 0, "prefetch": 50, "style": "ack"}
DELAYS_S = (0.010, 0.018)  # From the publish until the master is cut off: mirrors have it, and answer.

RESTORED = Mutation(
    "the next message is one that was restored",
    3,
    "StreamQueue.add_consumer",
    "following = max(self.committed, self.restored) + 1",
    "following = self.committed + 1",
)


@pytest.mark.parametrize("delay", DELAYS_S)
def test_what_was_confirmed_before_is_not_the_next(delay: float) -> None:
    _play(delay)


def test_a_reader_that_begins_with_old_messages_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, RESTORED)
    for delay in DELAYS_S:
        with pytest.raises(Violation, match=r"from next .* on, and got message 1 of s0, which was confirmed"):
            _play(delay)


def _play(delay: float) -> None:
    world = World(Plan(1, 3, 0, mirrored=True, featured=True, special=True))
    try:
        with quiet():
            world._begin()
            world.operators.fault_policy("", {"ha-mode": "all", "ha-sync-mode": "automatic"})
            world.run_for(10.0)
            found = world.operators.leading(STREAM)
            assert found is not None
            master, name = world.machines.index(found[0]), found[0].name
            publisher, reader = world.clients[:2]
            publisher.give(Step(0, 0.0, "go", {"node": master}))
            reader.give(Step(0, 0.0, "go", {"node": (master + 1) % 3}))
            world.run_for(1.0)
            world.ledger.on_disturbed(world.scheduler.now + 100.0)
            publisher.give(Step(0, 0.0, "publish", PUBLISH))
            world.run_for(delay)
            world.cut([(name, one.name) for one in world.machines if one.name != name], 8.0)
            messages = world.ledger.messages.values()
            world.must(1.0, lambda: all(one.state == "confirmed" for one in messages), lambda: "there is no confirm")
            world.fault_kill(master, 3.0)
            reader.give(Step(0, 0.0, "read", READ))
            world.run_for(8.0)
            publisher.give(Step(0, 0.0, "publish", PUBLISH))
            world.run_for(8.0)
        assert isinstance(world.ledger, BrokerFeaturesChecker)
        (read,) = world.ledger.streams.readers.values()
        assert (read.first, read.last) == (3, 5)
    finally:
        world.close()
