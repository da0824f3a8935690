"""`python -m benchmarks`: chooses what to measure, in which order, and where the results go."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from benchmarks.clusters import cluster, mirrors, turns
from benchmarks.clusters.cluster import Clusters
from benchmarks.clusters.mirrors import Mirrors
from benchmarks.mqtt import brokers as mqtt_brokers
from benchmarks.mqtt import measures as mqtt
from benchmarks.mqtt.brokers import MqttLeveret
from benchmarks.report import docs_page, results
from benchmarks.report.results import Results
from benchmarks.ruler.brokers import ROOT, Broker, Leveret, RabbitMQ, installed, prepared, raise_file_limit, running
from benchmarks.ruler.workloads import WORKLOADS, Workload, run
from benchmarks.single import compare, steady_rate
from benchmarks.single.growth import Growth, Point
from benchmarks.stomp import brokers as stomp_brokers
from benchmarks.stomp import measures as stomp
from benchmarks.stomp.brokers import StompLeveret

SINGLE: Final = ("latency", "steady", "backlog", "start")
GROWTH: Final = ("queues", "connections", "bindings", "waiting")
NAMES: Final = (
    *(workload.name for workload in WORKLOADS),
    *SINGLE,
    *cluster.PARTS,
    *mirrors.PARTS,
    turns.PART,
    *mqtt.PARTS,
    stomp.PART,
    *GROWTH,
)
GROUPS: Final = {"cluster": cluster.PARTS, "mirrors": mirrors.PARTS, "mqtt": mqtt.PARTS}  # Each stands for its parts.
GROWTH_SECONDS_MAX: Final = 3.0


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures Leveret, and RabbitMQ and Mosquitto if they are installed. All names: "
        + " ".join(NAMES)
        + "".join(f"; {group} stands for {' '.join(parts)}" for group, parts in GROUPS.items()),
    )
    names = (*NAMES, *GROUPS)
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=NAMES, help="default: all")
    parser.add_argument("--quick", action="store_true", help="small amounts: shows that it works, not how fast")
    parser.add_argument("--rounds", type=int, help="rounds of each workload (3, quick: 1); medians count")
    parser.add_argument("--seconds", type=float, help="duration of publishing in a round (5, quick: 0.5)")
    parser.add_argument("--leveret-only", action="store_true", help="do not measure other brokers")
    parser.add_argument("--data", type=Path, help="folder for the brokers' data (default: the system's temporary one)")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "output", help="default: %(default)s")
    parser.add_argument("--from", dest="earlier", type=Path, nargs="+", metavar="JSON", help="show earlier results")
    parser.add_argument("--write-docs", action="store_true", help="write tables and plots to docs/")
    options = parser.parse_args(arguments)
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (0.5 if options.quick else 5.0)
    for group, parts in GROUPS.items():
        if group in options.only:
            options.only = (*options.only, *parts)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds must be above 0")
    if options.quick and options.write_docs:
        parser.error("--quick is too little for the documentation; leave it or --write-docs out")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    if options.earlier:
        found = Results()
        for file in options.earlier:
            found.join(results.read(file))
    else:
        signal.signal(signal.SIGTERM, _on_sigterm)
        raise_file_limit()
        found = Session(options).run()
    show(found, options.output, options.write_docs)
    return 1 if found.problems else 0


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """Raises SystemExit, so that the brokers that were started are stopped."""
    raise SystemExit(128 + number)


def show(found: Results, output: Path, write_docs: bool) -> None:
    text = results.markdown(found)
    found.write(output / "results.json")
    (output / "results.md").write_text(text)
    print(text)
    folders = [output]
    if write_docs:
        folders.append(ROOT / "docs")
        page = ROOT / "docs" / "benchmarks.md"
        page.write_text(docs_page.insert(page.read_text(), text))
    try:
        from benchmarks.report.plots import draw

        for folder in folders:
            for file in draw(found, folder):
                tell(f"wrote {file}")
    except ModuleNotFoundError as error:
        tell(f"no plots: {error}; pip install '.[bench]' brings matplotlib")


class Session:
    """One run of all chosen parts. Results are written after each part, so that a failure costs one part."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.only: Sequence[str] = options.only
        self.quick: bool = options.quick
        self.rounds: int = options.rounds
        self.seconds: float = options.seconds
        self.data: Path | None = options.data
        self.file: Path = options.output / "results.json"
        self.kinds = [kind for kind in installed() if kind is Leveret or not options.leveret_only]
        self.found = Results(environment=results.environment(self.data or Path(tempfile.gettempdir())))
        self.mqtt_kinds = [kind for kind in mqtt_brokers.installed() if kind is MqttLeveret or not options.leveret_only]
        self.stomp_kinds = [
            kind for kind in stomp_brokers.installed() if kind is StompLeveret or not options.leveret_only
        ]
        if len(self.kinds) == 1:
            tell("RabbitMQ is left out" if options.leveret_only else "RabbitMQ is not installed here")

    def run(self) -> Results:
        workloads = [workload for workload in WORKLOADS if workload.name in self.only]
        if workloads or "latency" in self.only or "steady" in self.only:
            self._running(workloads)
        if "backlog" in self.only:
            self._backlog()
        if "start" in self.only:
            self._start()
        self._cluster()
        self._mirrors()
        self._turns()
        self._mqtt()
        self._stomp()
        self._growth()
        return self.found

    def _save(self) -> None:
        self.found.write(self.file)

    def _problem(self, text: str) -> None:
        tell(f"PROBLEM {text}")
        self.found.problems.append(text)

    # -- Brokers beside each other -------------------------------------------------------------------------------

    def _running(self, workloads: Sequence[Workload]) -> None:
        """Measures what needs running brokers. All stay up and take turns; the others idle."""
        with contextlib.ExitStack() as started:
            brokers = []
            for kind in self.kinds:
                tell(f"starting {kind.name}")
                brokers.append(started.enter_context(running(kind, self.data)))
                self._note_version(brokers[-1])
            for workload in workloads:
                self._workload(workload, brokers)
                self._save()
            if "latency" in self.only:
                self._latency(brokers)
                self._save()
            if "steady" in self.only:
                self._steady(brokers)
                self._save()

    def _latency(self, brokers: Sequence[Broker]) -> None:
        rows: dict[str, list[dict[str, float]]] = {broker.name: [] for broker in brokers}
        for number in range(1, self.rounds + 1):
            for broker in brokers:
                rows[broker.name].append(dataclasses.asdict(compare.latency(broker.port, self.seconds)))
                tell(f"latency, round {number}, {broker.name}: {listed(rows[broker.name][-1])}")
        self.found.latency = {name: results.medians(values) for name, values in rows.items()}

    def _steady(self, brokers: Sequence[Broker]) -> None:
        """Measures latency at rising rates. Each round of each broker is kept: the tails of single runs differ."""
        rates = steady_rate.RATES[:2] if self.quick else steady_rate.RATES
        self.found.steady = {broker.name: [] for broker in brokers}
        for rate in rates:
            for number in range(1, self.rounds + 1):
                for broker in brokers:
                    point = steady_rate.steady(broker, rate, self.seconds).numbers()
                    self.found.steady[broker.name].append(point)
                    tell(f"steady, round {number}, {broker.name}: {listed(point)}")

    def _note_version(self, broker: Broker) -> None:
        if isinstance(broker, RabbitMQ):
            self.found.environment["RabbitMQ"] = broker.version

    def _workload(self, workload: Workload, brokers: Sequence[Broker]) -> None:
        rates: dict[str, list[float]] = {broker.name: [] for broker in brokers}
        for number in range(1, self.rounds + 1):
            for broker in brokers:
                result = run(broker.port, workload, self.seconds, settle_s=0.2 if self.quick else 1.0)
                rates[broker.name].append(result.per_s)
                where = f"{workload.name}, round {number}, {broker.name}"
                tell(f"{where}: {result.per_s:,}/s, client {result.client_cpu:.0%} of a processor")
                if not result.is_good:
                    self._problem(f"{where}: {result}")
                self.found.rounds.append(
                    {"workload": workload.name, "round": number, "broker": broker.name, "per_s": result.per_s}
                    | dataclasses.asdict(result)
                )
        self.found.rates[workload.name] = {name: statistics.median(values) for name, values in rates.items()}

    def _backlog(self) -> None:
        """Once for each broker: it takes long enough to be its own average."""
        for kind in self.kinds:
            with running(kind, self.data) as broker:
                self._note_version(broker)
                tell(f"backlog {kind.name}: begins")
                result = compare.backlog(broker, 20_000 if self.quick else 1_000_000, settle_s=1 if self.quick else 3)
            row = self.found.backlog[kind.name] = result.numbers()
            tell(f"backlog {kind.name}: {listed(row)}")
            if not result.good:
                self._problem(f"backlog {kind.name}: {result}")
            self._save()

    def _start(self) -> None:
        rows: dict[str, list[dict[str, float]]] = {kind.name: [] for kind in self.kinds}
        with running(Leveret, self.data):
            pass  # Only the very first start compiles Python to bytecode.
        for _ in range(self.rounds):
            for kind in self.kinds:
                with prepared(kind, self.data) as broker:
                    rows[kind.name].append(dataclasses.asdict(compare.start(broker)))
                    self._note_version(broker)
                tell(f"start {kind.name}: {listed(rows[kind.name][-1])}")
        self.found.start = {name: results.medians(values) for name, values in rows.items()}
        self._save()

    def _cluster(self) -> None:
        parts = [part for part in cluster.PARTS if part in self.only]
        clusters = Clusters(self.kinds, self.rounds, self.seconds, self.quick, self.data, tell)
        found = self.found  # Shares its results, so that a failure costs clusters of one size.
        found.away, found.spread, found.declares = clusters.away, clusters.spread, clusters.declares
        clusters.rounds_run, clusters.problems = found.rounds, found.problems
        for size in cluster.sizes(parts):
            for node in clusters.run(size, parts):
                self._note_version(node)
            self._save()

    def _mirrors(self) -> None:
        found = self.found
        measured = Mirrors(self.kinds, self.rounds, self.seconds, self.quick, self.data, tell)
        found.mirrored, found.members = measured.mirrored, measured.members
        found.pause, found.promotion, found.refill = measured.pause, measured.promotion, measured.refill
        found.handover, found.move = measured.handover, measured.move
        measured.rounds_run, measured.problems = found.rounds, found.problems
        for part in mirrors.PARTS:
            if part in self.only:
                measured.run(part)
                self._save()
        for node in measured.nodes:
            self._note_version(node)

    def _turns(self) -> None:
        if turns.PART not in self.only:
            return
        amounts = turns.QUICK if self.quick else turns.FULL
        measured = turns.Bench([*turns.ABOUT], amounts, self.quick, self.data, tell)
        self.found.turns = measured.found
        measured.problems = self.found.problems
        measured.run()
        self._save()

    def _mqtt(self) -> None:
        parts = [part for part in mqtt.PARTS if part in self.only]
        found = self.found
        measured = mqtt.Measures(self.mqtt_kinds, self.rounds, self.seconds, self.quick, self.data, tell)
        found.mqtt, found.mqtt_missing, found.mqtt_figures = measured.rates, measured.missing, measured.figures
        measured.rounds_run, measured.problems = found.rounds, found.problems
        if parts and not mqtt_brokers.Mosquitto.program():
            tell("Mosquitto is not installed here")
        for part in parts:
            measured.run(part)
            for name, version in measured.versions.items():
                if name != results.OURS:
                    found.environment[results.TITLES[name]] = version
            self._save()

    def _stomp(self) -> None:
        if stomp.PART not in self.only:
            return
        found = self.found
        measured = stomp.Measures(self.stomp_kinds, self.rounds, self.seconds, self.quick, self.data, tell)
        found.stomp = measured.rates
        measured.rounds_run, measured.problems = found.rounds, found.problems
        measured.run()
        if version := measured.versions.get(results.OTHER):
            found.environment[results.TITLES[results.OTHER]] = version
        self._save()

    # -- Leveret alone -------------------------------------------------------------------------------------------

    def _growth(self) -> None:
        growth = Growth(min(self.seconds, GROWTH_SECONDS_MAX), self.quick, self.data, tell)
        curves: tuple[tuple[str, str, Callable[[], list[Point]]], ...] = (
            ("queues", "queues", growth.queues),
            ("connections", "idle_connections", growth.idle_connections),
            ("connections", "busy_connections", growth.busy_connections),
            ("bindings", "direct_bindings", lambda: growth.bindings("direct")),
            ("bindings", "topic_bindings", lambda: growth.bindings("topic")),
            ("waiting", "waiting", growth.waiting),
        )
        for name, curve, measure in curves:
            if name in self.only:
                self.found.growth[curve] = measure()
                self._save()
        self.found.problems += growth.problems


def listed(row: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:,.2f}" for name, value in row.items())
