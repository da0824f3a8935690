"""`python -m benchmarks.scaling`: how a cluster grows, from 3 to 50 nodes and from 100 to 100,000 queues.

Nobody here has fifty machines. What can be known without them is of three kinds, and each table says of which:

- *Measured*: the pure code with as many queues as there would be (`store`), and three real processes
  (`real`).
- *Simulated*: the real nodes, in virtual time, each with a processor to itself whose speed is this machine's
  (`world`, `clusters`, `traffic`). Counts are exact; times hold as far as the modelled network,
  disk and kernel do. Three nodes are also run for real, and their processor time compared.
- *Calculated*: straight lines through the simulated figures, for sizes that would take hours. Their formulas are beside
  the tables.

Results are points, rows of named numbers, as in `single.growth`. They go to `--output` as JSON and Markdown, with plots
where there is matplotlib; `--write-docs` puts tables and plots into docs/scaling.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.report.docs_page import insert
from benchmarks.ruler.brokers import ROOT
from benchmarks.scaling.clusters import COMMON, MEMBERS, NODES, QUEUES, grown_cluster, model_of_real
from benchmarks.scaling.real import cross_check
from benchmarks.scaling.store import LOCATORS, metadata, placement, rebalance
from benchmarks.scaling.tables import markdown
from benchmarks.scaling.traffic import traffic
from benchmarks.single.growth import Point
from leveret.client.amqp import BrokerError

Found = dict[str, list[Point]]

PARTS: Final = ("metadata", "placement", "rebalance", "clusters", "traffic", "real")
PLACED: Final = 10_000
# Nodes and queues of the simulated clusters; the same number of queues for all sizes, and more for the smallest.
CLUSTERS: Final = (*((nodes, COMMON) for nodes in NODES), (3, 300), (3, 3_000), (3, 10_000))
REAL: Final = (
    (COMMON, False),
    (COMMON, True),
    (3_000, True),
)  # Queues, and whether their master is not the Raft leader.
ROUNDS: Final = 5  # The least disturbed one counts.
QUICK_QUEUES: Final = (100, 1_000)
QUICK_NODES: Final = (3, 5)
QUICK_CLUSTERS: Final = ((3, 12), (5, 20))


def tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Scaling:
    """Runs parts, and keeps their results."""

    def __init__(self, quick: bool, data: Path | None = None) -> None:
        self.quick, self.data = quick, data
        self.found: Found = {}
        self.problems: list[str] = []

    def run(self, part: str) -> None:
        parts: dict[str, Callable[[], None]] = {
            "metadata": self._metadata,
            "placement": self._placement,
            "rebalance": self._rebalance,
            "clusters": self._clusters,
            "traffic": self._traffic,
            "real": self._real,
        }
        parts[part]()

    def _add(self, name: str, point: Point) -> None:
        self.found.setdefault(name, []).append(point)
        tell(f"{name}: " + ", ".join(f"{key} {value:,.6g}" for key, value in point.items()))

    def _metadata(self) -> None:
        for count in QUICK_QUEUES if self.quick else QUEUES:
            self._add("metadata", metadata(count))

    def _placement(self) -> None:
        for nodes in QUICK_NODES if self.quick else NODES:
            for locator in LOCATORS:
                self._add(f"placement {locator}", placement(nodes, 500 if self.quick else PLACED, locator))

    def _rebalance(self) -> None:
        for queues in (500,) if self.quick else (1_000, 10_000, 100_000):
            for nodes in QUICK_NODES if self.quick else NODES:
                self._add("rebalance", rebalance(nodes, queues))
        for queues in (500,) if self.quick else (1_000, 10_000, 100_000):
            for nodes in QUICK_NODES if self.quick else NODES:
                self._add("rebalance mirrored", rebalance(nodes, queues, mirrored=True))

    def _clusters(self) -> None:
        for nodes, queues in QUICK_CLUSTERS if self.quick else CLUSTERS:
            self._add("clusters", grown_cluster(nodes, queues, charged=not self.quick))

    def _traffic(self) -> None:
        for members in (1, 3) if self.quick else MEMBERS:
            if self.quick:
                self._add("traffic", traffic(members, 1_000, charged=False))
                continue
            rounds = [traffic(members, 100_000) for _ in range(ROUNDS)]
            self._add("traffic", min(rounds, key=lambda point: point["master_us"]))

    def _real(self) -> None:
        if self.quick:
            return
        for queues, away in REAL:
            try:
                self._add("real", cross_check(queues, self.data, away) | {"away": away})
            except BrokerError as error:
                self.problems.append(f"{queues} queues on three real nodes: {error}")
                tell(f"PROBLEM {self.problems[-1]}")
                continue
            self._add("modelled", model_of_real(queues, away) | {"away": away})


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description="Measures how a cluster grows.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--quick", action="store_true", help="small amounts, no plots: shows that everything works")
    parser.add_argument("--data", type=Path, help="folder for the data of real nodes")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks" / "output", help="default: %(default)s")
    parser.add_argument("--from", dest="earlier", type=Path, help="show earlier results, and run --only what is named")
    parser.add_argument("--write-docs", action="store_true", help="write tables and plots to docs/")
    options = parser.parse_args(arguments)
    if options.quick and options.write_docs:
        parser.error("--quick is too little for the documentation; leave it or --write-docs out")
    scaling = Scaling(options.quick, options.data)
    if options.earlier:
        scaling.found = json.loads(options.earlier.read_text())
    parts: Sequence[str] = () if options.earlier and options.only is PARTS else options.only
    options.output.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for name in [name for name in scaling.found if name.split()[0] == part or (part, name) == ("real", "modelled")]:
            del scaling.found[name]
        scaling.run(part)
        (options.output / "scaling.json").write_text(json.dumps(scaling.found, indent=1))
    show(scaling.found, options.output, options.write_docs, plots=not options.quick)
    return 1 if scaling.problems else 0


def show(found: Mapping[str, list[Point]], output: Path, write_docs: bool, plots: bool) -> None:
    text = markdown(found)
    (output / "scaling.md").write_text(text)
    print(text)
    folders = [output]
    if write_docs:
        page = ROOT / "docs" / "scaling.md"
        page.write_text(insert(page.read_text(), text))
        folders.append(ROOT / "docs" / "images")
    if not plots:
        return
    try:
        from benchmarks.scaling.plots import draw
    except ModuleNotFoundError as error:
        tell(f"no plots: {error}; pip install '.[bench]' brings matplotlib")
        return
    for folder in folders:
        for file in draw(found, folder):
            tell(f"wrote {file}")
