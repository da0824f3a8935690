"""Leases of a queue on a disk that crashes, at random: see `lease_world`."""

from __future__ import annotations

import pytest

from tests.unit.broker.queue.lease_world import Watched


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens(seed: int) -> None:
    Watched(seed).play(120)
