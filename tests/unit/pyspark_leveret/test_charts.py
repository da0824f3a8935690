"""Charts, and what is drawn in them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from pyspark_leveret.jobs import report
from pyspark_leveret.jobs.support.charts import DIGIT, HEIGHT, LEFT, RIGHT, WIDTH, Line, Mark, chart, short, tick


def test_a_chart_is_whole_and_stays_within_its_frame() -> None:
    lines = [Line("one <", [(0, 0.0), (500, 80.0), (600, None), (1_000, 33.0)]), Line("two", [])]
    drawn = ElementTree.fromstring(chart("title", "unit", lines, [Mark(2_000, "1", "a & b")], 0, 1_000))
    paths = [one.get("d", "") for one in drawn if one.tag == "path"]
    assert paths[0].count("M") == 2 and paths[1] == ""
    points = [float(word) for word in paths[0].replace("M", " ").replace("L", " ").replace("h0", " ").split()]
    assert all(LEFT <= x <= WIDTH - RIGHT for x in points[::2]) and all(0 <= y <= HEIGHT for y in points[1::2])
    [title] = drawn.findall("./g/title")
    assert title.text == "a & b"


def test_numbers_of_marks_do_not_overprint_each_other() -> None:
    """Three within a moment, one by itself, and three at the right edge, where there is no room behind the line."""
    times = (100, 101, 103, 500, 997, 999, 1_000)
    marks = [Mark(at, str(number), f"at {at}") for number, at in enumerate(times, 8)]
    drawn = ElementTree.fromstring(chart("title", "unit", [], marks, 0, 1_000))
    assert len([one for one in drawn if one.get("class") == "mark"]) == len(times)  # Every line is drawn.
    labels = [(text.text or "", float(text.get("x", ""))) for text in drawn.findall("./g/text")]
    assert [label for label, _ in labels] == ["8-10", "11", "12-14"]
    ends = [at + DIGIT * len(label) for label, at in labels]
    assert all(end <= at for end, (_, at) in zip(ends, labels[1:], strict=False)) and ends[-1] <= WIDTH - RIGHT
    assert drawn.findall("./g/title")[0].text == "8: at 100\n9: at 101\n10: at 103"


@pytest.mark.parametrize(("highest", "step"), [(0, 1), (1, 0.5), (80, 20), (101, 50), (12_000, 5_000), (0.03, 0.01)])
def test_ticks_are_round(highest: float, step: float) -> None:
    assert tick(highest) == pytest.approx(step)


def test_short_numbers() -> None:
    assert [short(value) for value in (0, 12.5, 1_000, 12_000, 2_500_000)] == ["0", "12.5", "1k", "12k", "2.5M"]


def rows(*values: tuple[int, Any, int], name: str) -> list[Any]:
    class Row(SimpleNamespace):
        def __getitem__(self, key: str) -> Any:
            return getattr(self, key)

    return [Row(bucket=bucket, count=count, **{name: value}) for bucket, value, count in values]


def test_throughput_is_a_second_and_0_where_nothing_was() -> None:
    [published, confirmed, acked] = report.throughput(
        rows((10, "acked", 50), (12, "acked", 5), name="kind"), 500, 5_000, 6_000
    )
    assert acked.points == [(5_250, 100.0), (5_750, 0.0), (6_250, 10.0)]
    assert {value for _, value in [*published.points, *confirmed.points]} == {0.0}


def test_delays_are_percentiles_of_counted_steps() -> None:
    [median, highest] = report.delays(rows((1, 0, 98), (1, 80, 2), (3, 8, 1), name="step"), 1_000, 8)
    assert [at for at, _ in median.points] == [1_500, 2_500, 3_500]
    assert median.points[0][1] == pytest.approx(0.04, abs=0.01) and highest.points[0][1] == pytest.approx(
        1_068, rel=0.01
    )
    assert median.points[1][1] is None
