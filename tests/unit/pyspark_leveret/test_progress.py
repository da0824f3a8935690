"""What a streaming query says of its lag."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.data.client import DataError
from pyspark_leveret.source.progress import QUEUES_SHOWN, RATE_S, REPORT_S, Progress


class Page:
    """Stands for a client."""

    def __init__(self, error: DataError | None = None) -> None:
        self.error = error
        self.told: list[tuple[str, Any]] = []

    def report_job(self, name: str, value: Any) -> None:
        self.told.append((name, value))
        if self.error is not None:
            raise self.error


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_lag_and_rates() -> None:
    clock = Clock()
    progress, page = Progress(None, clock), Page()
    assert Progress(None, clock).latest is None
    progress.look(page, {"a": 10, "b": 5}, {"a": 10, "b": 5}, {"a": 3, "b": 0})  # type: ignore[arg-type]
    assert progress.latest == {"queues": {"a": {"next": 10, "lag": 3}, "b": {"next": 5, "lag": 0}}, "lag": 3}
    clock.now += RATE_S / 2
    progress.look(page, {"a": 11}, {"a": 11}, {"a": 0})  # type: ignore[arg-type]
    assert progress.latest is not None and "rate" not in progress.latest["queues"]["a"]
    clock.now += RATE_S * 1.5
    progress.look(page, {"a": 30, "c": 1}, {"a": 7, "c": 1}, {"a": 20, "c": 1})  # type: ignore[arg-type]
    assert progress.latest is not None
    assert progress.latest["queues"] == {"a": {"next": 7, "lag": 20, "rate": 10.0}, "c": {"next": 1, "lag": 1}}
    assert page.told == []


def test_the_page_is_told_now_and_then() -> None:
    clock = Clock()
    progress, page = Progress("clicks", clock), Page()
    lags = {f"q{number:02}": number for number in range(QUEUES_SHOWN + 5)}
    for _ in range(4):
        progress.look(page, lags, lags, lags)  # type: ignore[arg-type]
        clock.now += REPORT_S / 2
    assert [name for name, _ in page.told] == ["clicks"] * 2
    value = page.told[0][1]
    assert value["state"] == "running" and value["summary"].endswith("190 messages behind")
    assert value["figures"]["behind"] == 190 and value["figures"]["behind in q19"] == 19
    assert len(value["figures"]) == QUEUES_SHOWN + 3 and "behind in q04" not in value["figures"]


def test_a_page_that_refuses_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    progress, page = Progress("clicks", clock), Page(DataError("no permission"))
    for _ in range(3):
        progress.look(page, {}, {}, {})  # type: ignore[arg-type]
        clock.now += REPORT_S
    assert len(page.told) == 1 and caplog.text.count("no permission") == 1
