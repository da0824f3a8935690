"""Hours as the checker reads them, and as the broker does."""

from __future__ import annotations

import pytest

from leveret.metadata.rules.ha_policy import parse_window
from simulation.checkers.sync_checker import is_within
from simulation.plan import HOURS


@pytest.mark.parametrize("hours", [*HOURS, "00:00-24:00", "23:59-00:01"])
def test_hours(hours: str) -> None:
    window = parse_window({"hours": hours})
    minutes = range(0, 1_440)
    inside = [minute for minute in minutes if is_within(hours, minute * 60_000 + 59_999)]
    assert inside == [minute for minute in minutes if window.is_open(minute * 60_000 + 59_999)]
    assert inside
