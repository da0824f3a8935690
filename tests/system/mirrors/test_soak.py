"""The short form of `python -m tests.system.mirrors.soak`."""

from __future__ import annotations

import random

from tests.support.members import Cluster
from tests.system.mirrors.soak import soak

SECONDS = 15.0


def test_a_short_soak(nodes: Cluster, name: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"python -m tests.system.mirrors.soak --seed {seed}")
    notes: list[str] = []
    try:
        confirmed = soak(nodes, seed, SECONDS, name, notes.append).confirmed_count
    finally:
        print("\n".join(notes))
    assert confirmed > 500
