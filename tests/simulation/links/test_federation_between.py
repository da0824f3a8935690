"""Federation between two clusters through the faults of both and of the line, and deliberate bugs that must be
noticed."""

from __future__ import annotations

import pytest

from leveret.metadata.model.commands import ClearPolicy
from simulation.links.federation_between import QUEUES, FederationBetween
from simulation.links.linked import NEAR
from simulation.links.played import run
from simulation.plan import Plan
from simulation.world import play_through
from tests.simulation.bugs.mutations import Mutation
from tests.simulation.links.noticing import notice

STEPS = 12


@pytest.mark.parametrize(
    ("nodes", "seed"),
    [
        pytest.param(1, 24, id="an internal exchange that led nowhere was taken for whole"),
        pytest.param(2, 1, id="two nodes each"),
    ],
)
def test_links(nodes: int, seed: int) -> None:
    world = run(Plan(seed, nodes, STEPS, links="federation", two_clusters=True))
    assert world.moved and len(world.runners) > 10


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 140))
def test_many_seeds(seed: int) -> None:
    run(Plan(seed, 1 + seed % 3, 40, links="federation", two_clusters=True))


class StandingStill(FederationBetween):
    """A link has ended, and the only node of its cluster stands still when the run makes the link again."""

    def set_up(self) -> None:
        super().set_up()
        self.order(NEAR, ClearPolicy("/", "both"))
        self.must(5.0, lambda: self.assignment(NEAR, QUEUES[1].key) is None, lambda: "the link has not ended")
        loop = self.sides[NEAR][0].loop
        assert loop is not None
        loop.pause(12.0)


def test_the_end_waits_for_nodes_that_stand_still() -> None:
    play_through(StandingStill(Plan(1, 1, 0, links="federation", two_clusters=True)))


BUGS = (
    (
        "runs",
        Mutation(
            "every node runs every link",
            2,
            "Federation._compare",
            "missing = [one for one in links.values() if one.node == name and one.key not in self.workers]",
            "missing = [one for one in links.values() if one.key not in self.workers]",
        ),
    ),
    (
        "runs",
        Mutation(
            "a worker goes on when another epoch has begun",
            1,
            "Federation._compare",
            "wanted is None or wanted.node != name or wanted.epoch != worker.assignment.epoch or not may_act",
            "wanted is None or not may_act",
        ),
    ),
    (
        "lost",
        Mutation(
            "an upstream forgets messages when it has sent them",
            1,
            "ExchangeWorker.begin",
            "flags = calls.NO_ACK if self.of.upstream.ack_mode == 'no-ack' else 0",
            "flags = calls.NO_ACK",
        ),
    ),
    (
        "lost",
        Mutation(
            "an internal exchange that is there is taken to lead to the queue",
            1,
            "ExchangeWorker.set_up",
            "await self._lead_to_queue(wire, self._internal_name(kept))",
            "pass",
            first=24,
        ),
    ),
    (
        "twice",
        Mutation(
            "a queue takes an origin again", 1, "origins:take", "old = taken.count_within(first, last)", "old = 0"
        ),
    ),
    (
        "came to",
        Mutation(
            "a message goes on to where it was",
            1,
            "may_go_on",
            "not hops or (len(hops) < max_hops and not was_at(hops, cluster, vhost))",
            "not hops or len(hops) < max_hops",
        ),
    ),
    (
        "came to",
        Mutation(
            "a message goes on over any number of links",
            1,
            "may_go_on",
            "not hops or (len(hops) < max_hops and not was_at(hops, cluster, vhost))",
            "not was_at(hops, cluster, vhost)",
        ),
    ),
    (
        "and upstream by",
        Mutation(
            "what is unbound here stays bound upstream",
            1,
            "ExchangeWorker.on_unbound",
            "self.bindings.remove(binding)",
            "pass",
        ),
    ),
    (
        "though nobody consumes",
        Mutation(
            "a link goes on consuming when nobody here does",
            1,
            "QueueWorker.look",
            "if has_need == self.is_consuming: ...",
            "if self.is_consuming or not has_need: ...",
        ),
    ),
    (
        "times, and was wanted",
        Mutation(
            "a link consumes whether somebody here does or not",
            1,
            "QueueWorker.look",
            "has_need = self._has_need()",
            "has_need = True",
        ),
    ),
    ("is run by", Mutation("a link that fails is not tried again", 1, "Retries.on_failed", "not self.first_s", "True")),
)


LONG = ("a link that fails is not tried again", "a link goes on consuming when nobody here does")


@pytest.mark.parametrize(
    ("text", "mutation"),
    [pytest.param(*bug, marks=[pytest.mark.long] * (bug[1].name in LONG), id=bug[1].name) for bug in BUGS],
)
def test_the_seeds_notice(text: str, mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    notice(monkeypatch, mutation, STEPS, "federation", text, two=True)
