"""Runs a whole simulated cluster with its clients.

    python -m simulation --seed N [--nodes K] [--steps M]     one run; --count C for that many seeds from N on
    python -m simulation --seed N --trace                     print everything that happens in it
    python -m simulation --seed N --shrink                    find the fewest steps that still fail
    python -m simulation --soak MINUTES                       new seeds, until the time is up
    python -m simulation --many 10000                         new seeds of all kinds combined, with a summary
    python -m simulation --mirrored …                         queues are mirrored; with any of the above
    python -m simulation --varied …                           mirrored, by policies and declarations of all kinds
    python -m simulation --featured …                         queues have TTLs, limits, …; also with --mirrored
    python -m simulation --special …                          there are also streams, delays and limits; likewise
    python -m simulation --strategies …                       partitions, handled in all ways; also with --mirrored
    python -m simulation --spooled …                          nodes serve clients in a partition, and spool publishes
    python -m simulation --rebalanced …                       mirrored or not, queues are moved from node to node
    python -m simulation --drained …                          nodes are drained and revived
    python -m simulation --paired …                           two nodes, one of which is often lost
    python -m simulation --witnessed …                        two nodes and a witness, one of which is often lost
    python -m simulation --ailing …                           disks stall, memory runs out, clocks jump, files break
    python -m simulation --shovels …                          shovels move messages beside the clients
    python -m simulation --federation …                       federation links do
    python -m simulation --two-clusters --shovels …           shovels from one cluster to another
    python -m simulation --two-clusters --federation …        federation links in both directions
    python -m simulation --raft …                             consensus alone: see simulation.raft

A run that fails prints what happened and the command that repeats it.
"""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace

from simulation.many import run_many
from simulation.plan import STEPS, Plan, from_ranges
from simulation.raft import world as raft
from simulation.shrink import shrink
from simulation.world import Violation, World, quiet

SIZES = (3, 1, 3, 5)
MIRRORED_SIZES = (3, 3, 2, 3, 5)
TRACE_LINES = 60


class TraceHandler(logging.Handler):
    """Adds the log entries of nodes to the trace."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        self.world.note(self.world.place_now(), f"logs: {record.getMessage()}")
        if record.exc_info:
            for line in traceback.format_exception(record.exc_info[1]):
                self.world.note(self.world.place_now(), line.rstrip())


def play(plan: Plan, trace: bool) -> tuple[World, str | None]:
    """Runs a plan, and returns how it failed."""
    from simulation.links.played import new_world

    world = new_world(plan, trace)
    logger = logging.getLogger("leveret")
    handler = TraceHandler(world)
    if trace:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        with quiet(not trace):
            world.play()
    except Violation as violation:
        return world, str(violation)
    except AssertionError as error:  # Of the simulation itself: it has its command, too, and others go on.
        *_, last = traceback.extract_tb(error.__traceback__)
        return world, f"{last.filename}:{last.lineno}, {last.line}: {error!r}"
    finally:
        logger.removeHandler(handler)
    return world, None


def show(plan: Plan, whole: bool) -> None:
    """Repeats the run with a trace."""
    world, failure = play(plan, trace=True)
    lines = list(world.trace)
    if not whole and len(lines) > TRACE_LINES:
        print(f"... {len(lines) - TRACE_LINES} lines before; --trace shows them")
        lines = lines[-TRACE_LINES:]
    print("\n".join(lines))
    if failure is not None:
        print(f"\nfailed: {failure}\nreplay: {plan.command()} --trace\nshrink: {plan.command()} --shrink")


def run_one(plan: Plan, trace: bool) -> bool:
    began = time.perf_counter()
    world, failure = play(plan, trace=False)
    took = time.perf_counter() - began
    if failure is not None or trace:
        show(plan, trace)
    if failure is None:
        print(f"seed {plan.seed}: {world.summary()}; {took:.2f} s", flush=True)
    return failure is None


def shrink_one(plan: Plan) -> bool:
    failure = play(plan, trace=False)[1]
    if failure is None:
        print(f"seed {plan.seed} does not fail")
        return True
    small = shrink(plan, lambda one: play(one, trace=False)[1], print)
    show(small, whole=True)
    print(f"\nof {len(plan.draw())} steps these are left:")
    print("\n".join(f"  at {step.at:.3f}: {step}" for step in small.taken()))
    return False


def soak(minutes: float, steps: int, *kinds: bool) -> bool:
    """Runs new seeds of all sizes until the time is up; returns False as soon as one fails."""
    first = random.SystemRandom().randrange(10**6, 10**9)
    began = said = time.monotonic()
    for number, plan in enumerate(endless(first, steps, *kinds)):
        if time.monotonic() - began >= minutes * 60:
            print(f"{number} runs passed, 0 failed", flush=True)
            return True
        world, failure = play(plan, trace=False)
        if failure is not None:
            show(plan, whole=False)
            return False
        if time.monotonic() - said > 10:
            said = time.monotonic()
            passed = f"{(said - began) / 60:6.1f} min, {number + 1} runs; the last one: seed {plan.seed}, "
            print(f"{passed}{plan.nodes} nodes: {world.summary()}", flush=True)
    raise AssertionError("seeds never end")


def endless(
    first: int, steps: int, mirrored: bool, varied: bool, featured: bool, special: bool, strategies: bool
) -> Iterator[Plan]:
    number, sizes = 0, MIRRORED_SIZES if mirrored else SIZES
    while True:
        # Options that imply others: kinds of mirrored runs run with and without these rules, and the same for features.
        yield Plan(
            first + number,
            sizes[number % len(sizes)],
            steps,
            mirrored=mirrored,
            varied=varied or (mirrored and not featured and number % 2 > 0),
            featured=featured,
            special=special or (featured and number % 3 > 0),
            strategies=strategies,
        )
        number += 1


def links_of(options: argparse.Namespace) -> str:
    """Returns what moves messages in this run, if something does."""
    return "federation" if options.federation else "shovels" if options.shovels or options.two_clusters else ""


def main() -> int:
    if "--raft" in sys.argv:
        sys.argv.remove("--raft")
        return raft.main()
    parser = argparse.ArgumentParser(prog="python -m simulation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=None, help="a run follows from its seed")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS, help="number of steps of clients and faults")
    parser.add_argument("--count", type=int, default=1, help="number of seeds, one after the other")
    parser.add_argument("--without", type=from_ranges, default=(), metavar="3,7-12", help="steps to leave out")
    parser.add_argument("--noise", type=int, default=0, help="other delays for the same steps")
    parser.add_argument("--mirrored", action="store_true", help="queues are mirrored, by policies that change")
    parser.add_argument("--varied", action="store_true", help="mirrored, by policies and declarations of all kinds")
    parser.add_argument("--featured", action="store_true", help="queues with limits, dead letters and the like")
    parser.add_argument("--special", action="store_true", help="featured, with streams, delays and cluster-wide limits")
    parser.add_argument("--strategies", action="store_true", help="partitions of all shapes, handled in all ways")
    parser.add_argument("--spooled", action="store_true", help="nodes spool publishes for unreachable queues")
    parser.add_argument("--rebalanced", action="store_true", help="mirrored, and queues are moved")
    parser.add_argument("--drained", action="store_true", help="mirrored, and nodes are drained and revived")
    parser.add_argument("--paired", action="store_true", help="two mirrored nodes, one of which is often lost")
    parser.add_argument("--witnessed", action="store_true", help="two mirrored nodes and a witness, one often lost")
    parser.add_argument("--ailing", action="store_true", help="disks stall, memory runs out, clocks jump, files break")
    links = parser.add_mutually_exclusive_group()
    links.add_argument("--shovels", action="store_true", help="shovels move messages beside the clients")
    links.add_argument("--federation", action="store_true", help="federation links move messages beside the clients")
    parser.add_argument("--two-clusters", action="store_true", help="shovels (or --federation) from one to the other")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--shrink", action="store_true", help="find the fewest steps that fail")
    parser.add_argument("--soak", type=float, default=None, metavar="MINUTES")
    parser.add_argument("--many", type=int, default=None, metavar="RUNS")
    options = parser.parse_args()
    options.mirrored = options.mirrored or options.varied or options.rebalanced or options.drained
    if options.paired and options.witnessed:
        parser.error("--paired is for two voters, --witnessed for three")
    if options.special and (options.shovels or options.federation or options.two_clusters):
        parser.error("--special fills a user's channels up to its limit, and links of the same user have some of them")
    if options.paired or options.witnessed:
        options.mirrored, options.nodes = True, 2
    options.featured = options.featured or options.special
    kinds = (options.mirrored, options.varied, options.featured, options.special, options.strategies)
    if options.many is not None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # What was run until then is told.
        first = random.SystemRandom().randrange(10**6, 10**9) if options.seed is None else options.seed
        tally = run_many(first, options.many, options.steps, lambda plan: play(plan, trace=False), print)
        print(f"seeds from {first} on: {tally.told()}", flush=True)
        return 1 if tally.failures else 0
    if options.soak is not None:
        return 0 if soak(options.soak, options.steps, *kinds) else 1
    if options.seed is None:
        parser.error("--seed, --soak or --many is needed")
    for seed in range(options.seed, options.seed + options.count):
        plan = Plan(seed, options.nodes, options.steps, options.without, options.noise, *kinds, options.spooled)
        plan = replace(plan, rebalanced=options.rebalanced, drained=options.drained, ailing=options.ailing)
        plan = replace(plan, paired=options.paired, witnessed=options.witnessed)
        plan = replace(plan, links=links_of(options), two_clusters=options.two_clusters)
        if not (shrink_one(plan) if options.shrink else run_one(plan, options.trace)):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
