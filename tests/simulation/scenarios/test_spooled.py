"""Nodes that keep publishes for queues that they cannot reach: nothing is lost, nothing is there twice, all in order.

The ledger that every run has demands just that. What is different in these runs is what nodes do in a partition, and
that there are more of them. The deliberate bugs show that it would be noticed if they did it wrongly.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.plan import STEPS, Plan
from simulation.world import Violation, run
from tests.simulation.bugs.mutations import Mutation, check_code, put

SEEDS = 60
MUTATIONS = (
    Mutation(
        "settles before the queue has it safe",
        3,
        "Spool._send",
        "if not forward.waiting:\n    self.on_complete(forward)",
        "self.settle(batch, lo, hi)\nif not forward.waiting:\n    self.on_complete(forward)",
        first=14,
    ),
    Mutation(
        "sends each flight under another name",
        3,
        "Spool._send",
        "origin = Origin(producer, number, self.previous.get(producer, 0))",
        "origin = Origin(self.spools.broker.unique_name('').encode(), number, 0)",
        first=20,
    ),
    Mutation(
        "forgets the numbers of what is in doubt",
        3,
        "Spool._send",
        "producer, number = note.producer, note.number + forward.first - note.first",
        "pass",
        first=1,
        mirrored=True,
    ),
    Mutation(
        "an old master confirms what it had not",
        3,
        "_doubt",
        "pending.refuse(DOUBTED)",
        "pending.on_safe()",
        first=6,
        mirrored=True,
    ),
    Mutation(
        "publishes overtake the spool once the link is back",
        3,
        "RemoteQueue.enqueue",
        "self._has_spool()",
        "self._has_spool() and self.client_end is None",
        first=6,
    ),
    Mutation(
        "goes by another name after a start",
        3,
        "Spool.begin",
        'self.name = self.durable_state.table.get(NAME, b"")',
        'self.name = b""',
        first=6,
    ),
    Mutation(
        "what was refused is not sent again",
        3,
        "Spool._begin_anew",
        "self.put_back(Span(forward.batch, forward.lo, forward.hi))",
        "self.settle(forward.batch, forward.lo, forward.hi)\nself.ready_count -= forward.count",
    ),
    Mutation(
        "is forgotten at the start",
        3,
        "Node.prepare",
        "kept |= self.broker.spools.open(self.storage.log.queues)",
        "",
    ),
    Mutation(
        "does not ask whether there is room",
        3,
        "Spool.pump",
        "spools.shortage(target)",
        "False",
        first=50,
    ),
    Mutation(
        "tells only once how much room there is",
        3,
        "Node._tell_alarms",
        "self.told_room.get(peer) != room",
        "peer not in self.told_room",
        first=31,
    ),
)
ALWAYS = 3
# Of these, what is in doubt must be in the queue already, so that two nodes and a witness notice them sooner.
WITNESSED = (
    (
        Mutation(
            "a new master does not say in its first block what it has of the epoch before",
            2,
            "former_epoch_mark",
            "{name: entry} if through and fits(table, name, entry) else {}",
            "{}",
            first=76,
            mirrored=True,
        ),
        Plan(831000106, 2, 120, mirrored=True, spooled=True, strategies=True, rebalanced=True, drained=True,
             witnessed=True),
    ),
    (
        Mutation(
            "what is in doubt is sent again as if it were new",
            2,
            "Outbox.again",
            "kind, origin = sent_again(queue, sent.kind), self.origin(sent)",
            "sent.name = self.outboxes.broker.unique_name('').encode()\n"
            "kind, origin = sent_again(queue, sent.kind), self.origin(sent)",
            first=0,
            mirrored=True,
        ),
        Plan(110, 2, 120, mirrored=True, spooled=True, witnessed=True),
    ),
)  # fmt: skip
NOISES = 12  # Other delays for the same steps.


def failing_seed(mutation: Mutation) -> int | None:
    for seed in range(mutation.first, mutation.first + SEEDS):
        try:
            run(Plan(seed, mutation.nodes, STEPS, mirrored=mutation.mirrored, spooled=True))
        except Violation:
            return seed
    return None


def test_seeds() -> None:
    worlds = [run(Plan(seed, 3, spooled=True)) for seed in range(3)]
    assert sum(sum(world.spooling.spooled.values()) for world in worlds) > 20


@pytest.mark.parametrize("seed", [141, 2033])
def test_seeds_with_mirrors(seed: int) -> None:
    run(Plan(seed, 3, mirrored=True, spooled=True))


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(Plan(100, 3, featured=True, special=True, spooled=True), id="a full queue rejects"),
        pytest.param(
            Plan(50008, 2, mirrored=True, varied=True, featured=True, spooled=True), id="dead letters of what is kept"
        ),
        pytest.param(Plan(50121, 3, featured=True, spooled=True), id="dead letters while a node catches up"),
    ],
)
def test_seeds_with_features(plan: Plan) -> None:
    """Queues that do something by themselves, whatever else they have got."""
    run(plan)


@pytest.mark.long
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_many_seeds(mirrored: bool, nodes: int) -> None:
    for seed in range(40):
        run(Plan(seed, nodes, mirrored=mirrored, spooled=True))


@pytest.mark.long
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("kind", ["plain", "mirrored", "varied"])
@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_many_seeds_with_features(special: bool, kind: str, nodes: int) -> None:
    mirrored, varied = kind != "plain", kind == "varied"
    for seed in range(20):
        run(Plan(seed, nodes, mirrored=mirrored, varied=varied, featured=True, special=special, spooled=True))


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(one, id=one.name, marks=() if number < ALWAYS else pytest.mark.long)
        for number, one in enumerate(MUTATIONS)
    ],
)
def test_the_seeds_notice(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    assert failing_seed(mutation) is not None


@pytest.mark.long
@pytest.mark.parametrize(("mutation", "plan"), [pytest.param(*one, id=one[0].name) for one in WITNESSED])
def test_a_seed_notices_with_some_delays(mutation: Mutation, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, mutation)
    with pytest.raises(Violation, match="twice in"):
        for noise in range(mutation.first, mutation.first + NOISES):
            run(replace(plan, noise=noise))


def test_the_code_is_there() -> None:
    for mutation in (*MUTATIONS, *(one for one, _ in WITNESSED)):
        check_code(mutation)
