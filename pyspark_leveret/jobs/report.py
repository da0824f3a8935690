"""Shows the result of an audit: lines for a terminal, and one HTML file without external parts. Other jobs make their
pages with its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from pyspark_leveret.jobs.support.charts import STYLE, Line, Mark, chart

if TYPE_CHECKING:
    from pyspark.sql import Row

    from pyspark_leveret.jobs.audit import Audit, Verdict

ROWS: Final = 100
FAULTS: Final = 40  # Drawn and listed at most.
PERCENTILES: Final = (("median", 0.5), ("99th percentile", 0.99))

PAGE_STYLE: Final = """
body { background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1000px; padding: 24px; }
h1 { font-size: 22px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 32px 0 8px; }
.code0 { color: var(--good); } .code1 { color: var(--bad); } .code2 { color: var(--c2); } p { margin: 6px 0; }
.dim { color: var(--dim); } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; } th { color: var(--dim); font-weight: 500; text-align: left; }
th, td { padding: 3px 14px 3px 0; border-bottom: 1px solid var(--rule); white-space: nowrap; }
td.n { text-align: right; font-variant-numeric: tabular-nums; } td.bad { color: var(--bad); font-weight: 600; }
"""


def lines(found: Audit) -> list[str]:
    """Returns the verdict and a few lines more."""
    verdict = found.verdict
    told = [verdict.sentence]
    more = [
        (verdict.duplicated, "acknowledged, or received, more than once"),
        (verdict.redelivered, "given out more than once"),
        (verdict.reordered, "given out after a later one"),
        (verdict.late, "late"),
        (verdict.withdrawn, "never confirmed, and withdrawn by a failover: their publishers know"),
    ]
    told += [f"  {count:,} {words}" for count, words in more if count]
    told += [f"  {moment(one.at_ms)}  {one.text}" for one in _told(found)[:FAULTS]]
    return told


def _told(found: Audit) -> list[Any]:
    """Leaves out changes of views: they accompany every other fault, and would hide it."""
    return [one for one in found.faults if one.kind != "view"]


def moment(ms: int | None) -> str:
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]


def day(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# -- Series --------------------------------------------------------------------------------------------------------


def throughput(rates: Sequence[Row], width_ms: int, begin_ms: int, end_ms: int) -> list[Line]:
    """Returns messages a second over time; 0 where nothing happened."""
    counts = {(row.kind, row.bucket): row["count"] for row in rates}
    buckets = range(begin_ms // width_ms, end_ms // width_ms + 1)
    return [
        Line(kind, [(at * width_ms + width_ms // 2, counts.get((kind, at), 0) * 1000 / width_ms) for at in buckets])
        for kind in ("published", "confirmed", "acked")
    ]


def delays(latencies: Sequence[Row], width_ms: int, steps: int) -> list[Line]:
    """Returns milliseconds over time; the line is broken where nothing was acknowledged."""
    by_time = {
        bucket: sorted((row.step, row["count"]) for row in rows)
        for bucket, rows in groupby(sorted(latencies, key=lambda row: row.bucket), key=lambda row: row.bucket)
    }
    if not by_time:
        return [Line(name, []) for name, _ in PERCENTILES]
    buckets = range(min(by_time), max(by_time) + 1)
    return [
        Line(name, [(at * width_ms + width_ms // 2, percentile(by_time.get(at, []), part, steps)) for at in buckets])
        for name, part in PERCENTILES
    ]


def percentile(counted: Sequence[tuple[int, int]], part: float, steps: int) -> float | None:
    """Returns a percentile of values counted by `step`, `steps` of which double the value plus one; None without
    values."""
    rest = part * sum(count for _, count in counted)
    for step, count in counted:
        rest -= count
        if rest <= 0:
            return float(2 ** ((step + 0.5) / steps) - 1)
    return None


# -- The page ------------------------------------------------------------------------------------------------------


def page(found: Audit) -> str:
    from pyspark_leveret.jobs.audit import STEPS

    verdict, width_ms = found.verdict, found.width_ms
    told = _told(found)[:FAULTS]
    marks = [Mark(one.at_ms, str(number), one.text) for number, one in enumerate(told, 1)]
    begin, end = verdict.begin_ms, verdict.end_ms
    rates = throughput(found.rates, width_ms, begin, end)
    slow = delays(found.latencies, width_ms, STEPS)
    parts = [
        _head(verdict),
        "<h2>Throughput</h2>",
        chart("Messages a second over time", "messages a second", rates, marks, begin, end),
        "<h2>From confirm to acknowledgement</h2>",
        chart("Milliseconds from confirm to acknowledgement", "milliseconds", slow, marks, begin, end),
        "<h2>Faults</h2>",
        table(("#", "when", "what"), [(at, moment(one.at_ms), one.text) for at, one in enumerate(told, 1)])
        or '<p class="dim">None that the journals tell of.</p>',
        "<h2>Queues</h2>",
        _queues(found),
        "<h2>Findings</h2>",
        _findings(found),
        "<h2>Channels</h2>",
        _channels(found),
    ]
    return document("Leveret audit", parts)


def document(title: str, parts: Iterable[str]) -> str:
    """Returns an HTML file with these parts, in the style of all reports."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}{PAGE_STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def _head(verdict: Verdict) -> str:
    silent = f" Not readable: {escape(', '.join(verdict.silent))}." if verdict.silent else ""
    cut = f" What was told before {day(verdict.horizon_ms)} may be told no more." if verdict.horizon_ms else ""
    return (
        f'<h1 class="code{verdict.code}">{escape(verdict.sentence)}</h1>'
        f'<p class="dim">Journals of {escape(", ".join(verdict.nodes))}, from {day(verdict.begin_ms)} to '
        f"{day(verdict.end_ms)}.{silent}{cut}</p>"
    )


def _queues(found: Audit) -> str:
    from pyspark_leveret.jobs.audit import COUNTS

    rows = found.queues.orderBy("lost", "unknown", "confirmed", ascending=False).limit(ROWS).collect()
    shown = [name for name in COUNTS if name in ("confirmed", "acked", "lost") or any(row[name] for row in rows)]
    return table(("vhost", "queue", *shown), [(row.vhost, row.queue, *(row[name] for name in shown)) for row in rows])


def _findings(found: Audit) -> str:
    from pyspark.sql import functions as f

    from pyspark_leveret.jobs.audit import TROUBLE

    rank = f.array_position(f.array(*map(f.lit, TROUBLE)), f.col("kind"))
    rows = found.findings.orderBy(rank, "at_ms").limit(ROWS).collect()
    columns = ("kind", "told_by", "queue", "first", "last", "count")
    values = [(*(row[name] for name in columns), moment(row.at_ms), row.channel, row.fault) for row in rows]
    shown = table(("what", "told by", "queue", "from", "to", "messages", "when", "published by", "near"), values)
    return shown or '<p class="dim">Nothing lost, duplicated, reordered or late.</p>'


def _channels(found: Audit) -> str:
    rows = found.channels.orderBy("lost", "published", "delivered", ascending=False).limit(ROWS).collect()
    columns = ("vhost", "queue", "channel", "published", "delivered", "lost")
    return table(columns, [tuple(row[name] for name in columns) for row in rows])


def table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Returns an HTML table, empty without rows. Numbers of lost messages stand out."""
    body = ["".join(_cell(name, value) for name, value in zip(names, row, strict=True)) for row in rows]
    if not body:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(f"<tr>{row}</tr>" for row in body)}</table></div>'


def _cell(name: str, value: Any) -> str:
    if isinstance(value, int):
        bad = " bad" if name == "lost" and value else ""
        return f'<td class="n{bad}">{value:,}</td>'
    return f"<td>{escape('' if value is None else str(value))}</td>"
