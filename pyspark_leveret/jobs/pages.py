"""Shows the plan of `balance` and the lake of `archive`, each as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from pyspark_leveret.jobs import report
from pyspark_leveret.jobs.support.charts import Line, chart

if TYPE_CHECKING:
    from leveret.metadata.rebalancing import Plan


class Day(NamedTuple):
    """The messages of a queue that arrived on one day. `first`, `last`: offsets; times are None in very old logs."""

    queue: str
    day: date
    messages: int
    first: int
    last: int
    begin_ms: int | None
    end_ms: int | None


def loads(plan: Plan) -> list[tuple[str, int, int]]:
    """Returns each node with its load before and after the moves, rounded."""
    return [(node, round(load), round(plan.after.get(node, 0.0))) for node, load in sorted(plan.before.items())]


def of_plan(plan: Plan, queues: int) -> str:
    """Draws a plan about so many queues."""
    moves = [(one.vhost, one.queue, one.source, one.target, one.why) for one in plan.moves]
    stays = [(one.vhost, one.queue, one.why) for one in plan.stays]
    parts = [
        f"<h1>{len(moves):,} of {queues:,} queues would move</h1>",
        f'<p class="dim">Balanced by {escape(plan.strategy)}. Nothing is moved yet: leveretctl rebalance --plan does '
        "that.</p>",
        "<h2>Nodes</h2>",
        report.table(("node", f"{plan.unit} before", f"{plan.unit} after"), loads(plan)),
        "<h2>Moves</h2>",
        report.table(("vhost", "queue", "from", "to", "why"), moves) or '<p class="dim">None.</p>',
    ]
    if stays:
        parts += ["<h2>Queues that stay</h2>", report.table(("vhost", "queue", "why"), stays)]
    return report.document("Leveret balance", parts)


def of_lake(path: str, days: Sequence[Day], arrivals: Sequence[tuple[int, int]], width_ms: int) -> str:
    """Draws a lake. `arrivals`: messages by slot of `width_ms`."""
    total, queues = sum(row.messages for row in days), len({row.queue for row in days})
    parts = [
        f"<h1>{total:,} messages of {queues:,} queue{'s' if queues != 1 else ''}</h1>",
        f'<p class="dim">In {escape(path)}, by day of arrival.</p>',
    ]
    if arrivals:
        known = dict(arrivals)
        slots = range(min(known), max(known) + 1)
        points: list[tuple[int, float | None]] = [
            (at * width_ms + width_ms // 2, known.get(at, 0) * 1000 / width_ms) for at in slots
        ]
        begin, end = slots[0] * width_ms, slots[-1] * width_ms + width_ms
        drawn = chart("Messages a second over time", "messages a second", [Line("arrived", points)], [], begin, end)
        parts += ["<h2>Arrival in the queues</h2>", drawn]
    names = ("queue", "date", "messages", "first offset", "last offset", "first arrival", "last arrival")
    rows = [(*row[:5], report.moment(row.begin_ms), report.moment(row.end_ms)) for row in days[: report.ROWS]]
    parts += ["<h2>Queues and days</h2>", report.table(names, rows)]
    return report.document("Leveret archive", parts)
