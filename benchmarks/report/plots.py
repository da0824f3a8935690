"""Results as pictures. matplotlib is imported only here, and only when something is drawn (`pip install .[bench]`)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.clusters.cluster import Rates
from benchmarks.report.results import OTHER, OURS, TITLES, Results, away_rows, declare_rows, of_rate, ratio
from benchmarks.ruler.workloads import WORKLOADS
from benchmarks.single.growth import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final = {OURS: "#2f6f9f", OTHER: "#d98c3f"}
SECOND: Final = "#8a5fa8"


def draw(results: Results, folder: Path) -> list[Path]:
    """Writes the pictures for which there are results, and returns their files."""
    files = []
    if results.rates:
        files.append(save(_rates(results), folder / "benchmarks.png"))
    if results.steady:
        files.append(save(_steady(results), folder / "benchmarks-latency.png"))
    if results.growth:
        files.append(save(_growth(results), folder / "benchmarks-growth.png"))
    if results.away or results.spread or results.declares:
        files.append(save(_cluster(results), folder / "benchmarks-cluster.png"))
    if results.mirrored or results.members:
        files.append(save(_mirrors(results), folder / "benchmarks-mirrors.png"))
    return files


LATENCIES: Final = (
    ("confirm_p50", "publish to confirm, median"),
    ("confirm_p99", "publish to confirm, 99th percentile"),
    ("deliver_p50", "publish to delivery, median"),
    ("deliver_p99", "publish to delivery, 99th percentile"),
)


def _steady(results: Results) -> Figure:
    """Draws latency against rate: a line through the medians of the rounds, and a dot for each round."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    figure = _figure(12, 7)
    for axes, (name, title) in zip(figure.subplots(2, 2).flat, LATENCIES, strict=True):
        plain_axes(axes)
        for broker in [one for one in (OURS, OTHER) if one in results.steady]:
            points = results.steady[broker]
            rates = list(dict.fromkeys(point["rate"] for point in points))
            middles = [statistics.median(of_rate(points, rate, name)) for rate in rates]
            axes.plot(rates, middles, color=COLOURS[broker], label=TITLES[broker])
            axes.scatter(
                [point["rate"] for point in points], [point[name] for point in points], s=10, color=COLOURS[broker]
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(rates, [f"{rate:,}" for rate in rates])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("messages a second", fontsize=9)
        axes.set_ylabel("ms", fontsize=9)
        axes.legend(frameon=False, fontsize=8)
    return figure


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, file: Path) -> Path:
    figure.savefig(file, dpi=110)
    return file


def plain_axes(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)


def _rates(results: Results) -> Figure:
    brokers = results.brokers()
    rows = {workload.name: results.rates[workload.name] for workload in WORKLOADS if workload.name in results.rates}
    figure = _figure(8, 0.9 + 0.5 * len(rows))
    _bars(figure.subplots(), rows, brokers, "messages a second (logarithmic)")
    figure.legend(frameon=False, loc="outside upper center", ncols=len(brokers))
    return figure


def _bars(axes: Axes, rows: Rates, brokers: Sequence[str], unit: str) -> None:
    """Draws a bar of each broker for each row, with the ratio at Leveret's."""
    plain_axes(axes)
    height = 0.8 / len(brokers)
    for place, broker in enumerate(brokers):
        rates = [row[broker] for row in rows.values()]
        heights = [at + place * height for at in range(len(rows))]
        axes.barh(heights, rates, height * 0.92, color=COLOURS[broker], label=TITLES[broker])
        for at, row, rate in zip(heights, rows.values(), rates, strict=True):
            times = ratio(rate, row[OTHER]) if broker == OURS and OTHER in brokers else ""
            axes.annotate(
                f"{rate:,.0f}" + (f"   {times}×" if times else ""),
                (rate, at),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    axes.set_xscale("log")
    axes.margins(x=0.25)
    axes.set_yticks([at + height * (len(brokers) - 1) / 2 for at in range(len(rows))], list(rows))
    axes.invert_yaxis()
    axes.set_xlabel(unit)


def _cluster(results: Results) -> Figure:
    brokers = results.brokers()
    away = {name.replace("**", ""): rates for name, rates in away_rows(results).items() if rates}
    figure = _figure(14, 8)
    grid = figure.add_gridspec(2, 2, width_ratios=(1, 0.8))
    left, upper, lower = (figure.add_subplot(place) for place in (grid[:, 0], grid[0, 1], grid[1, 1]))
    if away:
        _bars(left, away, brokers, "messages a second (logarithmic)")
        left.set_title("Clients away from the queue's node", fontsize=10)
        left.legend(frameon=False, fontsize=8)
    if results.spread:
        _curve(upper, results.spread, brokers, "Queues spread over the nodes, clients at home", "nodes")
    if results.declares:
        _bars(lower, declare_rows(results), brokers, "declares a second (logarithmic)")
        lower.set_title("Queues declared", fontsize=10)
    return figure


def _mirrors(results: Results) -> Figure:
    brokers = results.brokers()
    figure = _figure(14, 4.5)
    left, right = figure.subplots(1, 2)
    if results.mirrored:
        _bars(left, results.mirrored, brokers, "messages a second (logarithmic)")
        left.set_title("Mirrored queues, three copies", fontsize=10)
        left.legend(frameon=False, fontsize=8)
    if results.members:
        _curve(right, results.members, brokers, "safe, by copies of the queue", "copies")
    return figure


def _curve(axes: Axes, rows: Rates, brokers: Sequence[str], title: str, unit: str) -> None:
    """Draws a curve by a number, which is the name of each row."""
    plain_axes(axes)
    sizes = [int(size) for size in rows]
    for broker in brokers:
        rates = [row[broker] for row in rows.values()]
        axes.plot(sizes, rates, marker="o", markersize=4, color=COLOURS[broker], label=TITLES[broker])
    axes.set_title(title, fontsize=10)
    axes.set_xticks(sizes)
    axes.set_xlabel(unit)
    axes.set_ylabel("messages a second", fontsize=9)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8)


class Line(NamedTuple):
    curve: str
    value: str
    label: str


PANELS: Final[tuple[tuple[str, str, tuple[Line, ...]], ...]] = (
    ("Queues", "messages a second", (Line("queues", "per_s", "round all queues"),)),
    (
        "Connections",
        "messages a second",
        (Line("idle_connections", "per_s", "idle, beside a pair"), Line("busy_connections", "per_s", "all busy")),
    ),
    (
        "Bindings",
        "messages routed a second",
        (Line("direct_bindings", "per_s", "direct"), Line("topic_bindings", "per_s", "topic")),
    ),
    (
        "Bindings",
        "bindings made a second",
        (Line("direct_bindings", "binds_per_s", "direct"), Line("topic_bindings", "binds_per_s", "topic")),
    ),
    (
        "Waiting messages",
        "messages a second",
        (Line("waiting", "fill_per_s", "filled"), Line("waiting", "drain_per_s", "drained")),
    ),
    (
        "Waiting messages",
        "bytes of memory for each",
        (Line("waiting", "bytes_each", "filled"), Line("waiting", "bytes_each_after_start", "after a restart")),
    ),
    (
        "Waiting messages",
        "seconds to start",
        (Line("waiting", "start_after_kill_s", "after kill -9"), Line("waiting", "start_after_stop_s", "after a stop")),
    ),
    (
        "Bindings",
        "bytes of memory for each",
        (Line("direct_bindings", "bytes_each", "direct"), Line("topic_bindings", "bytes_each", "topic")),
    ),
)


def _growth(results: Results) -> Figure:
    figure = _figure(16, 7)
    for axes, (title, unit, lines) in zip(figure.subplots(2, 4).flat, PANELS, strict=True):
        _panel(axes, title, unit, lines, results)
    return figure


def _panel(axes: Axes, title: str, unit: str, lines: Sequence[Line], results: Results) -> None:
    plain_axes(axes)
    axes.set_title(title, fontsize=10)
    axes.set_ylabel(unit, fontsize=9)
    axes.tick_params(labelsize=8)
    for line, colour in zip(lines, (COLOURS[OURS], SECOND), strict=False):
        points = [point for point in results.growth.get(line.curve, []) if line.value in point]
        if points:
            axes.plot([_amount(point) for point in points], [point[line.value] for point in points],
                      marker="o", markersize=4, color=colour, label=line.label)  # fmt: skip
    if axes.lines:
        axes.set_xscale("log")
        axes.yaxis.set_major_formatter("{x:,.4g}" if "seconds" in unit else "{x:,.0f}")
        if unit.startswith("bytes"):
            axes.set_yscale("log")  # A cache of fixed size weighs most where there is little else.
            axes.yaxis.set_minor_formatter("")
        else:
            axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=8)


def _amount(point: Point) -> float:
    """Returns how many there are of what grows: the first of a point's numbers. A logarithmic axis has no place for
    0."""
    return max(1, next(iter(point.values())))
