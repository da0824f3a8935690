"""Shrinks a failing plan: leaves out steps as long as it still fails.

Ever smaller groups of steps are left out, as in delta debugging. Any violation counts as a failure, not only the first
one: a bug often shows itself in simpler ways than the one it was found by. Without some steps, messages take other
times, and a race may end differently; so each smaller plan is tried with several noises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulation.plan import Plan

NOISES = 4


def shrink(plan: Plan, fails: Callable[[Plan], str | None], say: Callable[[str], None], tries_max: int = 400) -> Plan:
    """Returns a plan with as few steps as can be found that fails too; `fails` tells how it fails."""
    everything = {step.number for step in plan.draw()}

    def first_failing(numbers: list[int]) -> Plan | None:
        smaller = replace(plan, without=tuple(sorted(everything - set(numbers))))
        for noise in range(plan.noise, plan.noise + NOISES):
            how = fails(replace(smaller, noise=noise))
            if how is not None:
                say(f"{len(numbers)} steps: {how}")
                return replace(smaller, noise=noise)
        return None

    best, kept = plan, [step.number for step in plan.taken()]
    size, tries = max(len(kept) // 2, 1), 0
    while True:
        at, found = 0, False
        while at < len(kept) and tries < tries_max:
            tries += 1
            failing = first_failing(kept[:at] + kept[at + size :])
            if failing is None:
                at += size
            else:
                best, found = failing, True
                kept = kept[:at] + kept[at + size :]
        if tries >= tries_max or (size == 1 and not found):
            return best
        size = max(size // 2, 1)
