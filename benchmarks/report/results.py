"""The results of one run as plain numbers: stored as JSON, shown as Markdown tables."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import leveret
from benchmarks.clusters import turns as turns_of_loops
from benchmarks.clusters.cluster import WAYS, Rates
from benchmarks.clusters.mirrors import ROWS, Figures
from benchmarks.mqtt import measures as mqtt
from benchmarks.ruler.workloads import WORKLOADS
from benchmarks.single.growth import Point
from benchmarks.stomp import measures as stomp

OURS, OTHER, MOSQUITTO = "leveret", "rabbitmq", "mosquitto"
TITLES: Final = {OURS: "Leveret", MOSQUITTO: "Mosquitto", OTHER: "RabbitMQ"}
MIB: Final = 1 << 20


@dataclass
class Results:
    """Everything that was measured. What was left out has no entry."""

    environment: dict[str, str] = field(default_factory=dict)
    rates: dict[str, dict[str, float]] = field(default_factory=dict)  # workload → broker → messages a second
    latency: dict[str, dict[str, float]] = field(default_factory=dict)  # broker → Latency, and so on
    steady: dict[str, list[Point]] = field(default_factory=dict)  # broker → Steady of each rate and round
    start: dict[str, dict[str, float]] = field(default_factory=dict)
    backlog: dict[str, dict[str, float]] = field(default_factory=dict)
    growth: dict[str, list[Point]] = field(default_factory=dict)
    away: dict[str, Rates] = field(default_factory=dict)  # way → workload → broker → messages a second
    spread: Rates = field(default_factory=dict)  # nodes → broker → messages a second
    declares: dict[str, Rates] = field(default_factory=dict)  # nodes → clients → broker → queues a second
    mirrored: Rates = field(default_factory=dict)  # row → broker → messages a second
    members: Rates = field(default_factory=dict)  # copies → broker → messages a second
    pause: Figures = field(default_factory=dict)  # broker → seconds, and so on
    promotion: Figures = field(default_factory=dict)
    handover: Figures = field(default_factory=dict)
    move: Figures = field(default_factory=dict)
    refill: Figures = field(default_factory=dict)
    turns: dict[str, turns_of_loops.Row] = field(default_factory=dict)  # operation → duration, longest turn, and so on
    mqtt: Rates = field(default_factory=dict)  # row → broker → messages a second
    mqtt_missing: Rates = field(default_factory=dict)  # row → broker → part of the messages
    mqtt_figures: Rates = field(default_factory=dict)  # figure → broker → number
    stomp: Rates = field(default_factory=dict)  # row → broker → messages a second
    rounds: list[dict[str, Any]] = field(default_factory=list)  # each run of a workload by itself
    problems: list[str] = field(default_factory=list)

    def write(self, file: Path) -> None:
        file.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    def join(self, other: Results) -> None:
        """Takes over the other's results; where both have something, the other's counts."""
        for each in dataclasses.fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, dict):
                mine.update(theirs)
            else:
                mine.extend(theirs)

    def brokers(self) -> list[str]:
        """Returns the brokers: Leveret first, the other one if it was measured."""
        tables = [self.rates, self.spread, self.mirrored, self.members, self.stomp]
        tables += [*self.away.values(), *self.declares.values()]
        measured = {
            *self.latency,
            *self.steady,
            *self.start,
            *self.backlog,
            *self.pause,
            *self.promotion,
            *self.handover,
            *self.move,
            *self.refill,
            *(name for table in tables for rates in table.values() for name in rates),
        }
        return [OURS, OTHER] if OTHER in measured else [OURS]


def read(file: Path) -> Results:
    return Results(**json.loads(file.read_text()))


def environment(data: Path) -> dict[str, str]:
    return {
        "Date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "Processors": f"{os.cpu_count()} ({platform.machine()})",
        "System": f"{platform.system()} {platform.release()}",
        "Disk": filesystem(data),
        "Python": platform.python_version(),
        "Leveret": leveret.__version__,
    }


def filesystem(folder: Path) -> str:
    """Returns the kind of file system: on one in memory a sync costs nothing, and readers should see that."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "unknown"
    rows = [line.split()[1:3] for line in mounts.read_text().splitlines()]
    holding = [(len(where), kind) for where, kind in rows if folder.resolve().is_relative_to(where)]
    return max(holding)[1] if holding else "unknown"


def medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


# -- Markdown ----------------------------------------------------------------------------------------------------


def markdown(results: Results) -> str:
    parts = [
        ", ".join(f"{name}: {value}" for name, value in results.environment.items()) + ".",
        _workloads(results),
        _single("", SINGLE, results),
        _steady(results),
        *(_rates(title, head, rows(results), results) for title, head, rows in CLUSTER),
        _single("The master is killed; a mirror is filled", MIRRORS, results),
        turns_of_loops.section(results.turns),
        _mqtt(results),
        _rates("STOMP", "messages a second", stomp_rows(results), results),
        *(_curve(title, results.growth.get(key, [])) for key, title in CURVES.items()),
    ]
    if results.problems:
        parts.append("What went wrong:\n\n" + "\n".join(f"- {problem}" for problem in results.problems))
    return "\n\n".join(part for part in parts if part) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    ruler = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *rows))


def _workloads(results: Results) -> str:
    rows = {f"**{one.name}**: {one.about}": results.rates.get(one.name, {}) for one in WORKLOADS}
    return _rates("", "messages a second", rows, results)


def _rates(title: str, head: str, rows: Rates, results: Results) -> str:
    """Returns a row for each of `rows` that was measured; nothing if none was."""
    brokers = results.brokers()
    lines = []
    for name, rates in rows.items():
        if rates:
            line = [name, *(f"{rates[broker]:,.0f}" for broker in brokers)]
            lines.append(line + ([ratio(rates[OURS], rates[OTHER])] if OTHER in rates else []))
    return (f"### {title}\n\n" if title else "") + table(_head(head, brokers), lines) if lines else ""


def _head(first: str, brokers: Sequence[str]) -> list[str]:
    return [first, *(TITLES[broker] for broker in brokers), *(["ratio"] if OTHER in brokers else [])]


def ratio(ours: float, other: float) -> str:
    return f"{ours / other:.2f}" if other else ""


Shown = tuple[str, str, str, Callable[[float], str]]  # Field of the results, name in it, title, formatter.
SINGLE: Final[tuple[Shown, ...]] = (
    ("backlog", "messages", "backlog: messages", "{:,.0f}".format),
    ("backlog", "fill_per_s", "backlog: filled, messages a second", "{:,.0f}".format),
    ("backlog", "drain_per_s", "backlog: drained, messages a second", "{:,.0f}".format),
    ("backlog", "bytes_per_message", "backlog: memory for each message, bytes", "{:,.0f}".format),
    ("latency", "confirm_p50", "publish to confirm, median, ms", "{:.2f}".format),
    ("latency", "confirm_p99", "publish to confirm, 99th percentile, ms", "{:.2f}".format),
    ("latency", "deliver_p50", "publish to delivery, median, ms", "{:.2f}".format),
    ("latency", "deliver_p99", "publish to delivery, 99th percentile, ms", "{:.2f}".format),
    ("start", "seconds", "start to first connection, s", "{:.2f}".format),
    ("start", "idle_bytes", "memory when idle, MiB", lambda value: f"{value / MIB:,.0f}"),
)


STEADY: Final = {
    "confirm_p50": "publish to confirm, median, ms",
    "confirm_p99": "publish to confirm, 99th percentile, ms",
    "deliver_p50": "publish to delivery, median, ms",
    "deliver_p99": "publish to delivery, 99th percentile, ms",
    "cpu_us": "processor time of the broker for a message, µs",
}


def of_rate(points: Sequence[Point], rate: float, name: str) -> list[float]:
    """Returns one figure of all rounds at a rate."""
    return [point[name] for point in points if point["rate"] == rate]


def _steady(results: Results) -> str:
    """Returns a table of medians over the rounds, with the lowest and the highest round behind each."""
    if not results.steady:
        return ""
    brokers = [name for name in (OURS, OTHER) if name in results.steady]
    rates = list(dict.fromkeys(point["rate"] for point in results.steady[brokers[0]]))
    rows = []
    for rate in rates:
        for name, text in STEADY.items():
            found = [of_rate(results.steady[broker], rate, name) for broker in brokers]
            cells = [_with_range(values, 0 if name == "cpu_us" else 2) for values in found]
            if len(brokers) > 1:
                cells.append(ratio(statistics.median(found[0]), statistics.median(found[1])))
            rows.append([f"{rate:,.0f} a second: {text}", *cells])
    head = ["a steady rate", *(TITLES[name] for name in brokers), *(["ratio"] if len(brokers) > 1 else [])]
    return "### Latency at a steady rate\n\n" + table(head, rows)


def _with_range(values: Sequence[float], digits: int) -> str:
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


INCIDENTS: Final = {
    "pause": (
        ("confirm_s", "2,000 a second, the master killed: longest time without a confirm, s"),
        ("confirm_s_worst", "the same, worst round"),
        ("deliver_s", "longest time without a delivery, s"),
        ("deliver_s_worst", "the same, worst round"),
        ("calm_s", "longest of both before, s"),
    ),
    "promotion": (
        ("get_s", "a million waiting, the master killed: first message got, s"),
        ("get_s_worst", "the same, worst round"),
        ("confirm_s", "first publish confirmed, s"),
        ("confirm_s_worst", "the same, worst round"),
    ),
    "handover": (
        ("confirm_s", "10,000 a second, the master handed over: longest time without a confirm, s"),
        ("confirm_s_worst", "the same, worst round"),
        ("deliver_s", "longest time without a delivery, s"),
        ("deliver_s_worst", "the same, worst round"),
        ("calm_s", "longest of both before, s"),
    ),
    "move": (
        ("confirm_s", "10,000 a second, 100,000 waiting, no mirrors, moved: longest time without a confirm, s"),
        ("confirm_s_worst", "the same, worst round"),
        ("calm_s", "longest before, s"),
        ("whole_s", "all of the move, s"),
    ),
}
FILLS: Final = {
    "same": "a mirror fills, load in the same queue",
    "beside": "a mirror fills, load in another queue",
}
FILL_FIGURES: Final = {
    "before_per_s": "messages a second before, with two copies",
    "during_per_s": "messages a second meanwhile",
    "after_per_s": "messages a second afterwards, with three",
    "kept": "meanwhile of before",
    "kept_of_after": "meanwhile of afterwards",
    "stall_s": "longest time without a delivery, s",
    "fill_s": "filled after, s",
}
MIRRORS: Final[tuple[Shown, ...]] = (
    *((part, name, title, "{:.3f}".format) for part, rows in INCIDENTS.items() for name, title in rows),
    *(
        ("refill", f"{way}_{name}", f"{fill}: {title}", ("{:,.0f}" if name.endswith("per_s") else "{:.2f}").format)
        for way, fill in FILLS.items()
        for name, title in FILL_FIGURES.items()
    ),
)


def _single(head: str, shown: Sequence[Shown], results: Results) -> str:
    brokers, rows = results.brokers(), []
    for part, name, title, show in shown:
        values = {broker: row[name] for broker, row in getattr(results, part).items() if name in row}
        if values:
            row = [title, *(show(values[broker]) if broker in values else "" for broker in brokers)]
            rows.append(row + ([ratio(values[OURS], values[OTHER])] if OTHER in values else []))
    return (f"### {head}\n\n" if head else "") + table(_head("", brokers), rows) if rows else ""


def away_rows(results: Results) -> Rates:
    return {
        f"{way.name}: **{name}**": results.away[way.name].get(name, {})
        for way in WAYS
        if way.name in results.away
        for name in way.workloads
    }


def spread_rows(results: Results) -> Rates:
    return {f"{size} node{'s' * (size != '1')}": rates for size, rates in results.spread.items()}


def declare_rows(results: Results) -> Rates:
    return {
        f"{size} node{'s' * (size != '1')}, {clients} client{'s' * (not clients.endswith('1'))}": rates
        for size, rows in results.declares.items()
        for clients, rates in rows.items()
    }


def mirrored_rows(results: Results) -> Rates:
    return {f"**{row.name}**: {row.about}": results.mirrored.get(row.name, {}) for row in ROWS}


def member_rows(results: Results) -> Rates:
    return {f"{count} cop{'y' if count == '1' else 'ies'}": rates for count, rates in results.members.items()}


def stomp_rows(results: Results) -> Rates:
    return {f"**{row.name}**: {row.about}": results.stomp[row.name] for row in stomp.ROWS if row.name in results.stomp}


CLUSTER: Final = (
    ("Three nodes, clients away from the queue", "messages a second", away_rows),
    ("Queues spread over the nodes, clients at home", "messages a second", spread_rows),
    ("Queues declared", "declares a second", declare_rows),
    ("Mirrored queues, three copies", "messages a second", mirrored_rows),
    ("Copies of a queue, five nodes: safe", "messages a second", member_rows),
)

MQTT_FIGURES: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "idle_bytes": (f"memory of an idle connection ({mqtt.IDLE:,} of them), bytes", "{:,.0f}".format),
    "subscribed_bytes": ("the same, each with a subscription of its own, bytes", "{:,.0f}".format),
    "retained_per_s": ("retained messages taken, each with a topic of its own, a second", "{:,.0f}".format),
    "found_s": (f"{mqtt.RETAINED:,} retained messages found by a wildcard, s", "{:.2f}".format),
}
MISSING_MIN: Final = 0.001  # What is less is shown as nothing.


def _mqtt(results: Results) -> str:
    """Returns the table of MQTT: a broker without a figure in a row does not do what it asks for."""
    measured = {name for rows in (results.mqtt, results.mqtt_figures) for row in rows.values() for name in row}
    brokers = [name for name in TITLES if name in measured]
    rows = []
    for one in (*mqtt.ROWS, *mqtt.MIRRORED_ROWS):
        if rates := results.mqtt.get(one.name):
            missing = results.mqtt_missing.get(one.name, {})
            shown = {name: _with_missing(rate, missing.get(name, 0.0)) for name, rate in rates.items()}
            rows.append(_beside(f"**{one.name}**: {one.about}", rates, shown, brokers))
    for name, (title, show) in MQTT_FIGURES.items():
        if figures := results.mqtt_figures.get(name):
            rows.append(_beside(title, figures, {broker: show(value) for broker, value in figures.items()}, brokers))
    if not rows:
        return ""
    others = [f"to {TITLES[name]}" for name in brokers if name != OURS]
    return "### MQTT\n\n" + table(["messages a second", *(TITLES[name] for name in brokers), *others], rows)


def _beside(title: str, values: dict[str, float], shown: dict[str, str], brokers: Sequence[str]) -> list[str]:
    ratios = [ratio(values[OURS], values[name]) if name in values else "" for name in brokers if name != OURS]
    return [title, *(shown.get(name, "–") for name in brokers), *ratios]


def _with_missing(rate: float, missing: float) -> str:
    return f"{rate:,.0f}" + (f" ({missing:.0%} missing)" if missing >= MISSING_MIN else "")


CURVES: Final = {
    "queues": "Queues",
    "idle_connections": "Idle connections beside a busy pair",
    "busy_connections": "Busy connections",
    "direct_bindings": "Bindings of a direct exchange",
    "topic_bindings": "Bindings of a topic exchange",
    "waiting": "Waiting messages",
}
COLUMNS: Final = {
    "per_s": "messages a second",
    "opened_per_s": "opened a second",
    "binds_per_s": "bound a second",
    "bytes_each": "bytes of memory each",
    "restart_s": "restart, s",
    "delete_s": "deleted, s",
    "fill_per_s": "filled a second",
    "drain_per_s": "drained a second",
    "start_after_kill_s": "start after kill -9, s",
    "stop_s": "stop, s",
    "start_after_stop_s": "start after stop, s",
    "bytes_each_after_start": "bytes of memory each after start",
}


def _curve(title: str, points: Sequence[Point]) -> str:
    if not points:
        return ""
    first = next(iter(points[0]))
    names = [name for name in COLUMNS if any(name in point for point in points)]
    rows = [[f"{point[first]:,.0f}", *(_number(name, point.get(name)) for name in names)] for point in points]
    return f"### {title}\n\n" + table([first, *(COLUMNS[name] for name in names)], rows)


def _number(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if name.endswith("_s") and not name.endswith("per_s") else f"{value:,.0f}"
