"""The pages of jobs that need no Spark."""

from __future__ import annotations

from datetime import date

from leveret.metadata.rebalancing import Move, Plan
from pyspark_leveret.jobs import pages, replication


def test_a_plan_shows_nodes_before_and_after() -> None:
    move = Move(1, "/", "<orders>", "one", "two", "40 messages")
    plan = Plan("messages", "messages", (move,), {"two": 0.0, "one": 70_000.0}, {"one": 30_000.0, "two": 40_000.0})
    assert pages.loads(plan) == [("one", 70_000, 30_000), ("two", 0, 40_000)]
    page = pages.of_plan(plan, 12)
    assert "1 of 12 queues would move" in page and "&lt;orders&gt;" in page and "<orders>" not in page
    assert '<td>one</td><td class="n">70,000</td><td class="n">30,000</td>' in page
    assert "None." in pages.of_plan(Plan("messages", "messages", (), {}, {}), 0)


def test_a_lake_shows_days_and_arrivals() -> None:
    day = date(2026, 11, 15)
    days = [pages.Day("orders", day, 2_500, 1, 2_500, 1_000, 5_000), pages.Day("old", day, 1, 7, 7, None, None)]
    page = pages.of_lake("/data/<lake>", days, [(1, 1_000), (4, 1_500)], 1_000)
    assert "2,501 messages of 2 queues" in page and "/data/&lt;lake&gt;" in page and "<svg" in page
    assert '<td>orders</td><td>2026-11-15</td><td class="n">2,500</td><td class="n">1</td>' in page
    assert "00:00:01.000" in page
    single = pages.of_lake("/data/lake", days[1:], [], 1_000)
    assert "<svg" not in single and "1 messages of 1 queue<" in single


def test_slots_in_which_nothing_happened_are_drawn() -> None:
    told = [(0, 3.0), (1_000, 4.0), (9_000, 5.0)]
    assert replication._whole_line(told, "rate", 1) == [*told[:2], (2_000, 0.0), (8_000, 0.0), told[2]]
    assert replication._whole_line(told, "behind", 1) == [*told[:2], (2_000, 4.0), (8_000, 4.0), told[2]]
    assert replication._whole_line(told, "lag_p95_ms", 1) == [*told[:2], (2_000, None), (8_000, None), told[2]]
    assert replication._whole_line(told, "rate", 10) == told
