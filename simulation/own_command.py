"""The command line of a world that `python -m simulation` does not have: `python -m simulation.leased`, for one."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TypeVar

from simulation.plan import STEPS, Plan
from simulation.world import Violation, World, quiet

W = TypeVar("W", bound=World)


def play(name: str, kind: type[W], plan: Plan, traced: bool) -> W:
    """Runs a world of the module `simulation.NAME`. Raises Violation, with the command that replays it."""
    world = kind(plan, traced)
    try:
        with quiet():
            world.play()
    except Violation as violation:
        if traced:
            print("\n".join(world.trace))
        words = f"--seed {plan.seed} --nodes {plan.nodes} --steps {plan.steps}{' --mirrored' * plan.mirrored}"
        words += f"{' --ailing' * plan.ailing}{' --drained' * plan.drained}"
        raise Violation(f"{violation}\nreplay: python -m simulation.{name} {words} --trace") from None
    return world


def main(name: str, kind: type[World]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m simulation.{name}")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--mirrored", action="store_true")
    parser.add_argument("--ailing", action="store_true")
    parser.add_argument("--drained", action="store_true")
    parser.add_argument("--trace", action="store_true")
    options = parser.parse_args()
    for seed in range(options.seed, options.seed + options.count):
        plan = Plan(seed, options.nodes, options.steps, mirrored=options.mirrored)
        plan = replace(plan, ailing=options.ailing, drained=options.drained)
        try:
            print(f"seed {seed}: {play(name, kind, plan, options.trace).summary()}", flush=True)
        except Violation as violation:
            print(f"seed {seed} failed: {violation}")
            return 1
    return 0
