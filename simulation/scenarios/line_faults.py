"""The faults of two clusters with a line between them, drawn before anything begins.

Each has a number that everything else about it is drawn from when it happens: which node, which link. So a fault can be
left out without changing the others.
"""

from __future__ import annotations

import random
from typing import Final

from simulation.clients.client import Step

STEP_S: Final = 0.6  # Average time between two faults.
LINE_FAULTS: Final = {
    "cut_line": 5, "cut_line_one_way": 3, "slow_line": 2, "reset_line": 5, "kill": 4, "power": 2, "pause": 4,
    "isolate": 2, "skew": 2, "move_worker": 4, "restart_worker": 3, "change_parameter": 1,
}  # fmt: skip
FAULTS_OF: Final = {
    "shovels": {**LINE_FAULTS, "pause_shovel": 2},
    "federation": {**LINE_FAULTS, "bind": 4, "consume": 8, "unlink": 2, "cut_short": 4},
}


def draw_line_faults(seed: int, steps: int, links: str) -> list[Step]:
    rng = random.Random(f"{seed}/{links}/line")
    weights = FAULTS_OF[links]
    drawn, at = [], 0.0
    for number in range(1, steps + 1):
        at += rng.expovariate(1 / STEP_S)
        (what,) = rng.choices(list(weights), list(weights.values()))
        arguments = {"seconds": rng.choice((0.2, 1.0, 4.0, 12.0)), "draw": rng.randrange(1 << 30)}
        drawn.append(Step(number, at, what, arguments))
    return drawn
