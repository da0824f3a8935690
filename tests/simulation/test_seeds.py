"""Seeds of the whole-cluster simulation. A failure says how to replay it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import Any

import pytest

from leveret.metadata.rules.partition_handling import Strategy
from simulation.__main__ import play
from simulation.checkers.broker_features_checker import BrokerFeaturesChecker
from simulation.checkers.ledger import Ledger
from simulation.checkers.message_checker import MessageChecker
from simulation.checkers.mirror_checker import MirroredLedger
from simulation.features.broker_features import HIDDEN_QUEUE, draw_streams
from simulation.features.queue_features import DEAD_LETTER_QUEUE
from simulation.many import APART, KINDS, LINKS, WITH_LINKS, all_kinds, linked_kinds
from simulation.plan import Plan, from_ranges, ranges
from simulation.shrink import shrink
from simulation.world import Violation, World, quiet, run

GROUP = 10


def long(*values: object) -> Any:
    """Seeds that are run with the long tests only. Those of `make soak` are others each time."""
    return pytest.param(*values, marks=pytest.mark.long)


# Seeds of each size. Those of three nodes begin in `test_much_happens`.
GROUPS = [
    (1, 0), *(long(1, first) for first in range(10, 100, GROUP)),
    *(long(3, first) for first in range(10, 120, GROUP)),
    *(long(5, first) for first in range(0, 30, GROUP)),
]  # fmt: skip
MIRRORED_GROUPS = [(3, 0, 3), long(3, 0, 6), long(3, 6, 20), (5, 0, 1), long(5, 0, 3), (2, 4, 6), long(2, 4, 8)]
VARIED_GROUPS = [(3, 0, 3), long(3, 0, 5), long(3, 5, 16), (2, 4, 7), long(2, 0, 5), (5, 0, 1), long(5, 0, 3)]
STRATEGY_GROUPS = [
    (3, False, 3, 6), long(3, False, 0, 6), (3, True, 3, 5), long(3, True, 0, 5), (2, True, 4, 8), long(5, False, 0, 8),
]  # fmt: skip
SPECIAL_GROUPS = [(1, False, 0, 4), (3, False, 0, 1), (3, True, 0, 2)]
FEATURED_GROUPS = [
    (1, False, 0, 8), (3, False, 0, 2), long(3, False, 0, 4), (3, True, 0, 2), long(3, True, 0, 4), (2, True, 0, 1),
    long(2, True, 0, 2), long(5, True, 0, 1),
]  # fmt: skip


def test_a_soak_tries_every_combination_of_kinds() -> None:
    fields = {one.name for one in dataclasses.fields(Plan) if one.type == "bool"}
    assert fields == {*KINDS, "two_clusters"}  # Two clusters have links between them:
    assert {kind for some in linked_kinds() for kind in some} == {*LINKS, *sum(WITH_LINKS, ()), "two_clusters"}
    plans = {frozenset(some).union(*(KINDS[kind] for kind in some)) for some in all_kinds()}
    assert len(plans) == len(all_kinds())
    assert {frozenset(KINDS) - {one} for one in APART} <= plans and frozenset() in plans


@pytest.mark.parametrize(("nodes", "first"), GROUPS)
def test_seeds(nodes: int, first: int) -> None:
    for seed in range(first, first + GROUP):
        run(Plan(seed, nodes))


def test_seeds_of_five_nodes() -> None:
    for seed in range(3):
        run(Plan(seed, 5))


@pytest.mark.parametrize(("nodes", "first", "end"), MIRRORED_GROUPS)
def test_mirrored_seeds(nodes: int, first: int, end: int) -> None:
    worlds = [run(Plan(seed, nodes, mirrored=True)) for seed in range(first, end)]
    checkers = [world.mirrors for world in worlds if world.mirrors is not None]
    assert len(checkers) == end - first
    assert sum(len(one.masters) for one in checkers) > 10 * len(worlds)  # Masters come and go,
    assert sum(len(one.blocks) for one in checkers) > 10 * len(worlds)  # and there is something to compare.
    assert sum(not facts.lost for world in worlds for facts in world.ledger.queues.values()) > len(worlds)


@pytest.mark.parametrize(("nodes", "first", "end"), VARIED_GROUPS)
def test_varied_seeds(nodes: int, first: int, end: int) -> None:
    worlds = [run(Plan(seed, nodes, mirrored=True, varied=True)) for seed in range(first, end)]
    ledgers = [world.ledger for world in worlds if isinstance(world.ledger, MirroredLedger)]
    losses = [one for ledger in ledgers for name, one in ledger.losses.items() if name.startswith("d")]
    assert len(ledgers) == end - first
    assert sum(len(one.blocks) for one in losses) > 10 * len(worlds)  # Where their messages were is known,
    assert sum(len(one.beginnings) for one in losses) > 2 * len(losses)  # and who led them afterwards.


@pytest.mark.parametrize(("nodes", "mirrored", "first", "end"), FEATURED_GROUPS)
def test_featured_seeds(nodes: int, mirrored: bool, first: int, end: int) -> None:
    worlds = [run(Plan(seed, nodes, mirrored=mirrored, featured=True)) for seed in range(first, end)]
    ledgers = [world.ledger for world in worlds if isinstance(world.ledger, MessageChecker)]
    assert len(ledgers) == end - first
    assert sum(len(one.letters) for one in ledgers) > 5 * len(worlds)  # Some have died,
    if nodes == 1:
        assert {reason for one in ledgers for reason in one.reasons} == {"expired", "maxlen", "rejected"}
        assert sum(one.ages for one in ledgers) > 10 * len(worlds)  # and others were not too old.
        states = [message.state for one in ledgers for message in one.messages.values()]
        assert states.count("nacked") > 20


@pytest.mark.parametrize(("nodes", "mirrored", "first", "end"), SPECIAL_GROUPS)
def test_special_seeds(nodes: int, mirrored: bool, first: int, end: int) -> None:
    worlds = [run(Plan(seed, nodes, mirrored=mirrored, featured=True, special=True)) for seed in range(first, end)]
    ledgers = [world.ledger for world in worlds if isinstance(world.ledger, BrokerFeaturesChecker)]
    assert len(ledgers) == end - first
    assert sum(one.streams.read_count for one in ledgers) > 40 * len(worlds)  # Streams were read,
    assert sum(one.delayed for one in ledgers) > 5 * len(worlds)  # messages came late,
    assert sum(one.answers for one in ledgers) > 0  # and there was somebody to answer.
    if nodes == 1:
        assert sum(len(one.returns) for one in ledgers) > len(worlds) and sum(len(one.trades) for one in ledgers) > 0
        assert sum(one.limits.refused for one in ledgers) > len(worlds)


@pytest.mark.parametrize(("nodes", "mirrored", "first", "end"), STRATEGY_GROUPS)
def test_seeds_with_strategies(nodes: int, mirrored: bool, first: int, end: int) -> None:
    worlds = [run(Plan(seed, nodes, mirrored=mirrored, strategies=True)) for seed in range(first, end)]
    checkers = [world.pauses for world in worlds if world.pauses is not None]
    assert len(checkers) == end - first
    assert sum(len(spans) for one in checkers for spans in one.spans.values()) > 0  # Some had to pause.


def test_plans_with_strategies() -> None:
    plans = [Plan(seed, 3, strategies=True) for seed in range(30)]
    assert {plan.handling()["strategy"] for plan in plans} == {one.value for one in Strategy}
    steps = [step for plan in plans for step in plan.draw()]
    ways = [set(step.arguments["ways"]) for step in steps if step.what == "sever"]
    assert any(len(one) == 2 for one in ways) and any(len(one) == 4 for one in ways)  # Two of three; one from two.
    assert any((b, a) not in one for one in ways for a, b in one)  # In one direction only.
    changes = [step.arguments["value"] for step in steps if step.what == "handling"]
    assert None in changes and {one["strategy"] for one in changes if one} > {"pause_minority", "ignore"}
    assert plans[3].command() == "python -m simulation --seed 3 --nodes 3 --steps 120 --strategies"
    assert Plan(3, strategies=True).draw() != Plan(3).draw()


def test_special_plans() -> None:
    plans = [Plan(seed, 3, mirrored=True, featured=True, special=True) for seed in range(10)]
    steps = [step for plan in plans for step in plan.draw()]
    assert {step.what for step in steps} >= {"read", "delay", "give_back", "transact", "trade", "call", "crowd"}
    assert {step.arguments["queue"] for step in steps if step.what == "fell_master"} >= {"s0", "s1", HIDDEN_QUEUE}
    limits = [one for plan in plans for one in plan.features().values() if one.delivery_limit is not None]
    assert {one.by_operator for one in limits} == {one.quorum for one in limits} == {True, False}
    assert not any(one.by_policy for one in limits)
    kinds = {draw_streams(plan.seed, 3)["s1"] for plan in plans}
    assert any(one.max_age_s for one in kinds) and any(one.max_bytes for one in kinds)
    assert plans[3].command() == "python -m simulation --seed 3 --nodes 3 --steps 120 --mirrored --special"


def test_featured_plans() -> None:
    """All that queues can be asked for is among the first seeds."""
    plans = [Plan(seed, 3, featured=True) for seed in range(20)]
    found = [one for plan in plans for name, one in plan.features().items() if name != DEAD_LETTER_QUEUE]
    keys = {key for one in found for key in (*one.arguments(), *(one.rules() if one.by_policy else ()))}
    assert keys >= {
        "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-overflow", "x-dead-letter-exchange",
        "x-single-active-consumer", "x-max-priority", "message-ttl", "max-length", "dead-letter-strategy",
    }  # fmt: skip
    mirrored = [one for seed in range(20) for one in Plan(seed, 3, mirrored=True, featured=True).features().values()]
    assert any(one.quorum and one.keeps for one in mirrored) and not any(one.by_policy for one in mirrored)
    steps = [step.arguments for plan in plans for step in plan.draw() if step.what == "publish"]
    assert {step["via"] for step in steps} == {"", "CC", "BCC", "alt"}
    assert plans[3].command() == "python -m simulation --seed 3 --nodes 3 --steps 120 --featured"
    assert Plan(3, featured=True).draw() != Plan(3).draw()


def test_varied_plans() -> None:
    """All kinds of what users can ask for are among the first seeds."""
    plans = [Plan(seed, 3, mirrored=True, varied=True) for seed in range(16)]
    steps = [step for plan in plans for step in plan.draw()]
    policies = [step.arguments["definition"] or {} for step in steps if step.what == "policy"]
    assert {key for policy in policies for key in policy} >= {
        "ha-mode", "ha-params", "ha-sync-mode", "ha-replication", "ha-replication-window", "ha-sync-strategy",
        "ha-promote-on-failure", "ha-promote-on-shutdown", "ha-sync-batch-size",
    }  # fmt: skip
    assert {step.what for step in steps} >= {"force", "interrupt", "stop_some", "order_sync", "hand_over"}
    assert {len(plan.quorum()) for plan in plans} >= {0, 2, 3}
    assert plans[3].command() == "python -m simulation --seed 3 --nodes 3 --steps 120 --varied"


def test_mirrored_seeds_are_others() -> None:
    assert Plan(8, mirrored=True).draw() != Plan(8).draw()
    assert Plan(8, mirrored=True).draw() != Plan(8, mirrored=True, varied=True).draw()
    assert Plan(8, mirrored=True).command() == "python -m simulation --seed 8 --nodes 3 --steps 120 --mirrored"


def test_much_happens() -> None:
    """Or the seeds would pass because nothing is asked of the nodes."""
    worlds = [run(Plan(seed, 3)) for seed in range(12)]
    messages = [message for world in worlds for message in world.ledger.messages.values()]
    deliveries = [delivery for message in messages for delivery in message.deliveries]
    assert sum(message.state == "confirmed" for message in messages) > 1_000
    assert sum(message.state == "nacked" for message in messages) > 10
    assert sum(message.settled_at is not None for message in messages) > 200
    assert len(deliveries) > 1_000
    assert {delivery.node for delivery in deliveries} == {"n1", "n2", "n3"}
    assert max(len(world.consensus.leaders) for world in worlds) > 2
    assert sum(world.machines[0].lives for world in worlds) > len(worlds)


def trace(seed: int, nodes: int) -> list[str]:
    world = World(Plan(seed, nodes, 60), traced=True)
    with quiet():
        world.play()
    return list(world.trace)


def test_a_seed_is_a_run() -> None:
    assert trace(5, 3) == trace(5, 3) != trace(6, 3)


def test_a_seed_is_a_run_in_any_process() -> None:
    """No hash of a string, no address of an object decides anything."""
    outputs = set()
    for hash_seed in ("1", "2"):
        words = [sys.executable, "-m", "simulation", "--seed", "11", "--steps", "60", "--trace"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True, env=environment)
        outputs.add(done.stdout.rpartition(";")[0])  # Behind it is how long it took.
    assert len(outputs) == 1 and "is connected to" in outputs.pop()


def test_a_run_is_the_same_without_its_trace() -> None:
    """Otherwise what fails would not be seen again when it is to be looked at."""
    plan = Plan(11, steps=60, mirrored=True)
    summaries = [play(plan, trace=traced)[0].summary() for traced in (False, True)]
    assert summaries[0] == summaries[1]


def test_a_failure_tells_how_to_replay_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Ledger, queue: str, numbers: list[int]) -> None:
        self.fail("for a test")

    monkeypatch.setattr(Ledger, "on_drained", fail)
    with pytest.raises(Violation, match=r"for a test\nreplay: python -m simulation --seed 4 --nodes 1 --steps 9 --tr"):
        run(Plan(4, 1, 9))


def test_what_fails_is_shrunk() -> None:
    def fails(plan: Plan) -> str | None:
        return "both" if {17, 60} <= {step.number for step in plan.taken()} else None

    small = shrink(Plan(3), fails, lambda text: None)
    assert [step.number for step in small.taken()] == [17, 60]
    assert small.command().endswith("--without 1-16,18-59,61-120")
    assert Plan(3, without=from_ranges("1-16,18-59,61-120")).taken() == small.taken()


def test_steps_stay_what_they_are_when_others_are_left_out() -> None:
    everything = Plan(8).draw()
    assert Plan(8, without=(3, 4, 9)).taken() == [step for step in everything if step.number not in (3, 4, 9)]
    assert ranges((3, 4, 5, 9)) == "3-5,9" and from_ranges("3-5,9") == (3, 4, 5, 9) and from_ranges("") == ()


def test_the_command_line() -> None:
    words = [sys.executable, "-m", "simulation", "--seed", "3", "--count", "2", "--nodes", "1", "--steps", "20"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("seed 3: ") and "seed 4: " in done.stdout
