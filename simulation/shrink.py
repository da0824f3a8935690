"""Makes a failing plan small: steps are left out as long as it still fails.

Ever smaller groups of steps are left out, as in delta debugging. Any violation counts as failing, not only the first
one: a bug often shows itself in simpler ways than the one it was found by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulation.plan import Plan


def shrink(plan: Plan, fails: Callable[[Plan], str | None], say: Callable[[str], None], tries_max: int = 600) -> Plan:
    """A plan with as few steps as can be found that fails too; `fails` says how."""
    kept = [step.number for step in plan.taken()]
    everything = {step.number for step in plan.draw()}
    size, tries = max(len(kept) // 2, 1), 0

    def without(numbers: list[int]) -> Plan:
        return replace(plan, without=tuple(sorted(everything - set(numbers))))

    while True:
        at, smaller = 0, False
        while at < len(kept) and tries < tries_max:
            candidate = kept[:at] + kept[at + size :]
            tries += 1
            how = fails(without(candidate))
            if how is None:
                at += size
            else:
                kept, smaller = candidate, True
                say(f"{len(kept)} steps: {how}")
        if tries >= tries_max or (size == 1 and not smaller):
            return without(kept)
        size = max(size // 2, 1)
