"""STOMP clients through the faults of the simulation, and whether it would notice if they were served badly."""

from __future__ import annotations

import pytest

from simulation.plan import Plan
from simulation.stomp import run
from simulation.world import Violation
from tests.simulation.bugs.mutations import Mutation, put

STEPS = 40
SEEDS = 12


@pytest.mark.parametrize(("nodes", "mirrored"), [(1, False), (3, False), (3, True)])
def test_stomp(nodes: int, mirrored: bool) -> None:
    world = run(Plan(11, nodes, STEPS, mirrored=mirrored))
    assert world.counts["send"] and world.counts["settle"]


MUTATIONS = (
    Mutation(
        "a message that comes again is not marked",
        3,
        "StompConsumer._one",
        "(self.again if again else self.first)",
        "self.first",
    ),
    Mutation(
        "an acknowledgement of many is for one message",
        1,
        "Deliveries._taken",
        "if not consumer.is_cumulative:\n    return session.take(number, False)",
        "return session.take(number, False)",
    ),
    Mutation(
        "what is aborted is sent",
        1,
        "Transactions.on_frame",
        'if frame.command == "COMMIT":\n    self.connection.carry_out(actions, frame)\n    return',
        "self.connection.carry_out(actions, frame)\nreturn",
    ),
)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_simulation_notices(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    for seed in range(mutation.first, mutation.first + SEEDS):
        try:
            run(Plan(seed, mutation.nodes, STEPS))
        except Violation:
            return
    pytest.fail(f"nobody noticed: {mutation.name}")
