"""A queue's master dies while clients of other nodes publish: what they publish waits for the next one.

Nothing else is wrong, so no publish is refused. In other runs some may be, and a publish that was forgotten while it
waited is refused like these, when its time is over.
"""

from __future__ import annotations

import pytest

from simulation.clients.client import Step
from simulation.plan import Plan
from simulation.world import World, quiet
from tests.simulation.bugs.mutations import Mutation, put

QUEUE = "d0"
PUBLISH = {"queue": QUEUE, "count": 2, "padding": 10, "persistent": True, "wait": False}
SEEDS = (1, 2, 3)

MUTATIONS = (
    Mutation(
        "publishes that wait for a master are forgotten",
        3,
        "RemoteQueue.resume",
        "unpark(parked or [], queue if self.spool is None else self)",
        "pass",
    ),
    Mutation(
        "mirrors do not hear of lost links",
        3,
        "MirrorManager.on_peer_down",
        "mirror.member.on_peer_down(peer)",
        "pass",
    ),
)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_next_master_confirms(seed: int) -> None:
    assert _states(seed) == {"confirmed"}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_the_seeds_notice(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    assert all(_states(seed) != {"confirmed"} for seed in SEEDS)


def _states(seed: int) -> set[str]:
    """Returns what became of all that was published."""
    world = World(Plan(seed, 3, 0, mirrored=True))
    try:
        with quiet():
            world._begin()
            world.operators.fault_policy("", {"ha-mode": "all", "ha-sync-mode": "automatic"})
            world.run_for(10.0)
            found = world.operators.leading(QUEUE)
            assert found is not None
            master = world.machines.index(found[0])
            start = world.scheduler.now
            for number, client in enumerate(world.clients):
                client.give(Step(0, 0.0, "go", {"node": (master + 1 + number % 2) % 3}))
                for at in range(100):
                    world.scheduler.at(start + 1.0 + at / 25, client.give, Step(0, 0.0, "publish", PUBLISH))
            world.run_for(2.0)
            world.ledger.on_disturbed(world.scheduler.now + 100.0)
            world.fault_kill(master, 10.0)
            world.run_for(9.0)
        return {message.state for message in world.ledger.messages.values() if message.queue == QUEUE}
    finally:
        world.close()
