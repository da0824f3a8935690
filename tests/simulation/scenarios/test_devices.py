"""Devices through the faults of the simulation, and whether it would notice if what they rely on were broken."""

from __future__ import annotations

import pytest

from simulation.devices import run
from simulation.plan import Plan
from simulation.world import Violation
from tests.simulation.bugs.mutations import Mutation, check_code, put

STEPS = 25
SEEDS = 5


@pytest.mark.parametrize(("nodes", "mirrored"), [(1, False), (3, False), (3, True)])
def test_devices(nodes: int, mirrored: bool) -> None:
    world = run(Plan(11, nodes, STEPS, mirrored=mirrored))
    assert all(world.counts.values())


MUTATIONS = (
    Mutation(
        "who is taken over is not told",
        3,
        "ClientIds._on_lost",
        "holding.owner.on_taken_over() if is_claim else holding.owner.on_claim_lost()",
        "pass",
    ),
    Mutation(
        "a former owner changes the session",
        3,
        "change_sessions",
        "if old is not None and old.epoch == row.epoch: ...",
        "if old is not None: ...",
        first=22,
    ),
    Mutation(
        "of several retained messages in a turn the first is kept",
        1,
        "RetainedMessages.keep",
        "waiting.message, waiting.size = message, size",
        "waiting.size = size",
    ),
    Mutation(
        "the index of retained messages misses a change",
        3,
        "RetainedMessages.on_changed",
        "if message is not None: ...",
        "if message is not None and vhost in self.indexes and self.indexes[vhost].get(topic) is not None:\n"
        "    return\n"
        "if message is not None: ...",
    ),
    Mutation(
        "a will has another number each time it is published",
        3,
        "Wills._publish",
        "origin = Origin(PRODUCER, will.number, through.get(queue.spec.id, 0))",
        "origin = Origin(b'will %d' % broker.now_ms, 1, 0)",
        first=2001,
    ),
    Mutation(
        "sessions of a lost node stay connected",
        3,
        "client_sessions:lose_node",
        "metadata.sessions.put(lost)",
        "pass",
    ),
    Mutation(
        "a take-over publishes the will at once, and its node does so again",
        3,
        "client_sessions:_claim",
        "metadata.leaving[old.epoch] = replace(old, left_ms=command.now_ms)",
        "metadata.leaving[old.epoch] = replace(old, left_ms=command.now_ms)\n"
        "_make_due(metadata, old, old.will, command.now_ms, events)",
    ),
    Mutation(
        "a goodbye does not keep the will back",
        1,
        "client_sessions:_release",
        "will = session.will if row.publish_will else None",
        "will = session.will",
    ),
)


# Of bugs of sessions, retained messages and wills at least one each is tried always, and all by `make long`: those that
# only show between three nodes need a whole run, of seconds, each.
ALWAYS = frozenset(
    {
        "who is taken over is not told",
        "a former owner changes the session",
        "of several retained messages in a turn the first is kept",
        "a goodbye does not keep the will back",
    }
)


@pytest.mark.parametrize(
    "mutation",
    [pytest.param(one, id=one.name, marks=() if one.name in ALWAYS else pytest.mark.long) for one in MUTATIONS],
)
def test_the_seeds_notice(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    for seed in range(mutation.first, mutation.first + SEEDS):
        try:
            run(Plan(seed, mutation.nodes, STEPS, mirrored=mutation.mirrored))
        except Violation:
            return
    pytest.fail("no seed noticed")


def test_the_code_is_there() -> None:
    assert {mutation.name for mutation in MUTATIONS} > ALWAYS
    for mutation in MUTATIONS:
        check_code(mutation)
