"""The scenes, one by one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.replication.scenarios import SCENARIOS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_scenario(scenario: Callable[[], None]) -> None:
    scenario()
