from __future__ import annotations

import pytest

from .lab import Lab
from .scenarios import SCENARIOS


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    options, script = SCENARIOS[name]
    Lab(**options).play(script)
