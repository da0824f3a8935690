"""Many fresh seeds of all kinds of runs combined, and what they amount to.

    python -m simulation --many 10000          failures are listed with their commands, and the runs go on

Each run has another combination of kinds (`--mirrored --featured --ailing`, …) and another seed. Every eighth has
shovels or federation links, within a cluster or between two (`simulation.links`). What is told in the end: runs by
kind, faults by kind, and how much was checked. `--ailing` is in half of the others: disks that stall, memory over the
watermark, so that messages are only on disk, descriptors that run out, clocks that jump, files that break.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

from simulation.features.broker_features import STEPS as SPECIAL_STEPS
from simulation.plan import CLIENT_STEPS, Plan
from simulation.world import World

# Each kind of simulation, and what goes with it anyway.
KINDS: dict[str, tuple[str, ...]] = {
    "mirrored": (),
    "varied": ("mirrored",),
    "featured": (),
    "special": ("featured",),
    "strategies": (),
    "spooled": (),
    "rebalanced": ("mirrored",),
    "drained": ("mirrored",),
    "paired": ("mirrored",),
    "witnessed": ("mirrored",),
    "ailing": (),
}
APART = {"paired", "witnessed"}  # A cluster is one of these or neither.
LINKS = ("shovels", "federation")
WITH_LINKS: tuple[tuple[str, ...], ...] = ((), ("mirrored",), ("ailing",), ("mirrored", "ailing"), ("drained",))
LINKED_EVERY = 8
SIZES = (3, 3, 5, 3, 1)
PAIR_SIZES = (1, 2, 3)  # Of each of two clusters.
TELL_S = 60.0
OF_CLIENTS = {name for name, _ in (*CLIENT_STEPS, *SPECIAL_STEPS)}
Play = Callable[[Plan], tuple[World, str | None]]


def all_kinds() -> list[tuple[str, ...]]:
    """Returns every combination of kinds, each once."""
    every = [some for count in range(len(KINDS) + 1) for some in combinations(KINDS, count) if not set(some) >= APART]
    return [some for some in every if not any(implied in some for kind in some for implied in KINDS[kind])]


def linked_kinds() -> list[tuple[str, ...]]:
    """Returns every combination with shovels or federation links, each once; those between two clusters as often as
    all others."""
    within = [(*some, links) for links in LINKS for some in WITH_LINKS]
    between = [(links, "two_clusters") for links in LINKS]
    return [*within, *between * len(WITH_LINKS)]


def endless_kinds(
    rng: random.Random, listed: Callable[[], list[tuple[str, ...]]] = all_kinds
) -> Iterator[tuple[str, ...]]:
    """Yields all combinations, in an order of its own each time."""
    while True:
        kinds = listed()
        rng.shuffle(kinds)
        yield from kinds


class Tally:
    """What many runs amount to."""

    def __init__(self) -> None:
        self.runs = 0
        self.kinds: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()
        self.checked: Counter[str] = Counter()
        self.failures: list[str] = []

    def add(self, plan: Plan, kinds: tuple[str, ...], world: World, failure: str | None) -> None:
        self.runs += 1
        self.kinds.update(kinds or ("plain",))
        for step in plan.taken():
            (self.operations if step.what in OF_CLIENTS else self.faults)[step.what] += 1
        messages = world.ledger.messages.values()
        self.checked["published"] += len(messages)
        self.checked["confirmed"] += sum(message.state == "confirmed" for message in messages)
        self.checked["delivered"] += sum(len(message.deliveries) for message in messages)
        self.checked["lives of nodes"] += sum(machine.lives for machine in world.everybody)
        self.checked["moved by links"] += world.moved
        self.checked["seconds"] += int(world.scheduler.now)
        if failure is not None:
            self.failures.append(f"{failure}\n  replay: {plan.command()} --trace")

    def told(self) -> str:
        def listed(counts: Counter[str]) -> str:
            return ", ".join(f"{name} {count}" for name, count in counts.most_common())

        lines = [
            f"{self.runs} runs, {len(self.failures)} failed",
            f"  runs by kind: {listed(self.kinds)}",
            f"  faults: {self.faults.total()}: {listed(self.faults)}",
            f"  operations of clients: {self.operations.total()}: {listed(self.operations)}",
            f"  checked: {listed(self.checked)}",
        ]
        return "\n".join([*lines, *(f"failed: {failure}" for failure in self.failures)])


def plans(first: int, count: int, steps: int) -> Iterator[tuple[Plan, tuple[str, ...]]]:
    """Yields as many runs, which follow from the first seed."""
    rng = random.Random(first)
    kinds, linked = endless_kinds(rng), endless_kinds(rng, linked_kinds)
    for number in range(count):
        some = next(linked if number % LINKED_EVERY == LINKED_EVERY - 1 else kinds)
        wanted = {*some, *(implied for kind in some for implied in KINDS.get(kind, ()))}
        nodes = 2 if wanted & APART else rng.choice(SIZES)
        if nodes == 1 and wanted & {"mirrored", "strategies", "spooled"}:
            nodes = 3
        if "two_clusters" in wanted:
            nodes = rng.choice(PAIR_SIZES)
        flags: dict[str, Any] = dict.fromkeys(wanted - {*LINKS}, True)
        flags["links"] = next((links for links in LINKS if links in wanted), "")
        yield replace(Plan(first + number, nodes, steps), **flags), some


def run_many(first: int, count: int, steps: int, play: Play, say: Callable[[str], None]) -> Tally:
    """Runs them all, failures included; if it is interrupted, those until then."""
    tally = Tally()
    said = time.monotonic()
    for plan, kinds in plans(first, count, steps):
        try:
            world, failure = play(plan)
        except KeyboardInterrupt:
            say(f"interrupted after {tally.runs} of {count} runs")
            break
        tally.add(plan, kinds, world, failure)
        if failure is not None:
            say(f"failed: {tally.failures[-1]}")
        if time.monotonic() - said > TELL_S:
            said = time.monotonic()
            say(f"{tally.runs} of {count} runs, {len(tally.failures)} failed")
    return tally
