"""Seeds of mirrored clusters that once found something, and what that was."""

from __future__ import annotations

import pytest

from simulation.plan import STEPS, Plan
from simulation.world import run


@pytest.mark.parametrize(
    ("seed", "nodes"),
    [
        pytest.param(900043, 5, id="a consumer that was cancelled while its queue had no master came back"),
        pytest.param(920189, 3, id="a get was put again and again to an object that stood for the queue no longer"),
        pytest.param(920295, 5, id="a get went on to the next master by way of the last, and that ended before the ack"),
    ],
)
def test_what_was_found_stays_mended(seed: int, nodes: int) -> None:
    run(Plan(seed, nodes, STEPS, (), 0, mirrored=True))
