"""Measures mirrored queues of each broker in turn: nodes are processes on one machine, as in `cluster`.

- `mirrored`: workloads in queues with a copy at each of three nodes (`ha-mode: all`), at the master; with publishers,
  consumers and master at three different nodes; and in a quorum queue.
- `members`: `safe` with 1, 2, 3 and 5 copies in a cluster of five nodes. All of them share the machine's processors, so
  each copy takes its part of what there is; a curve that bends down says that members cost more the more there are.
- `pause`, `promotion`: the master is killed (`failover`).
- `handover`: the master is moved on request, with mirrors and without (`handover`); of Leveret alone.
- `refill`: a mirror is synchronised while the queue is in use (`refill`).

Clusters for rates run at the same time and take turns. For the rest, one runs at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.clusters import handover, refill
from benchmarks.clusters.cluster import BY_NAME, QUICK_SETTLE_S, SETTLE_S, Rates
from benchmarks.clusters.failover import AFTER_S, CALM_S, QUICK_AFTER_S, QUICK_CALM_S, pause, promotion
from benchmarks.ruler.brokers import Broker, Leveret, Policy, cluster
from benchmarks.ruler.load import Driven
from benchmarks.ruler.workloads import PREFIX, Places, Workload, run_at, scene

PARTS: Final = ("mirrored", "members", "pause", "promotion", "handover", "refill")
NODES: Final = 3
MEMBERS: Final = (1, 2, 3, 5)
PAUSES: Final = 6  # Each node is killed twice.
WAITING, QUICK_WAITING = 1_000_000, 10_000

Figures = dict[str, dict[str, float]]  # broker → name → number


class Row(NamedTuple):
    """Where publishers, consumers and master are, by the number of the node."""

    name: str
    about: str
    workload: Workload
    publish: int = 0
    consume: int = 0
    master: int = 0


def _at_master(name: str) -> Row:
    return Row(name, BY_NAME[name].about, BY_NAME[name])


QUORUM: Final = dataclasses.replace(BY_NAME["safe"], name="quorum", queue_type="quorum")
ROWS: Final = (
    *map(_at_master, ("safe", "rich", "acked", "many", "trickle")),
    Row("three nodes", "safe, published at one node, consumed at another, the third leads", BY_NAME["safe"], 0, 1, 2),
    Row("quorum", "safe, in a quorum queue of three", QUORUM),
)
PROBE: Final = f"{PREFIX}.probe"
ALL: Final = Policy("ha", ".*", {"ha-mode": "all"})


class Mirrors:
    """Measures clusters of `kinds`. The results are in its fields, with keys that JSON can have."""

    def __init__(
        self,
        kinds: Sequence[type[Broker]],
        rounds: int,
        seconds: float,
        quick: bool,
        data: Path | None,
        tell: Callable[[str], None],
    ) -> None:
        self.kinds, self.rounds, self.seconds, self.quick = kinds, rounds, seconds, quick
        self.data, self.tell = data, tell
        self.mirrored: Rates = {}  # By row.
        self.members: Rates = {}  # By number of copies.
        self.pause: Figures = {}
        self.promotion: Figures = {}
        self.handover: Figures = {}
        self.move: Figures = {}
        self.refill: Figures = {}
        self.rounds_run: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.nodes: list[Broker] = []  # All nodes that were started.

    def run(self, part: str) -> None:
        measures: dict[str, Callable[[], None]] = {
            "mirrored": self._mirrored,
            "members": self._members,
            "pause": lambda: self._each(self._pause),
            "promotion": lambda: self._each(self._promotion),
            "handover": lambda: self._each(self._handover),
            "refill": lambda: self._each(self._refill),
        }
        measures[part]()

    def _cluster(self, started: contextlib.ExitStack, kind: type[Broker], size: int) -> list[Broker]:
        self.tell(f"starting {kind.name}, nodes: {size}")
        nodes = started.enter_context(cluster(kind, size, self.data))
        self.nodes += nodes
        return nodes

    def _each(self, measure: Callable[[list[Broker]], None]) -> None:
        for kind in self.kinds:
            with contextlib.ExitStack() as started:
                nodes = self._cluster(started, kind, NODES)
                measure(nodes)

    # -- Rates ---------------------------------------------------------------------------------------------------

    def _mirrored(self) -> None:
        with contextlib.ExitStack() as started:
            clusters = [self._cluster(started, kind, NODES) for kind in self.kinds]
            for nodes in clusters:
                set_policy(nodes[0], ALL, NODES)
            for row in ROWS:
                self.mirrored[row.name] = self._rates(f"mirrored, {row.name}", row, clusters)

    def _members(self) -> None:
        with contextlib.ExitStack() as started:
            clusters = [self._cluster(started, kind, max(MEMBERS)) for kind in self.kinds]
            for count in MEMBERS:
                for nodes in clusters:
                    set_policy(nodes[0], Policy("ha", ".*", {"ha-mode": "exactly", "ha-params": count}), count)
                rates = self._rates(f"members, {count}", _at_master("safe"), clusters)
                self.members[str(count)] = rates

    def _rates(self, title: str, row: Row, clusters: Sequence[Sequence[Broker]]) -> dict[str, float]:
        """Returns the median of each broker."""
        rates: dict[str, list[float]] = {nodes[0].name: [] for nodes in clusters}
        for number in range(1, self.rounds + 1):
            for nodes in clusters:
                ports = [node.port for node in nodes]
                places = Places([ports[row.master]], [ports[row.publish]], [ports[row.consume]])
                result = run_at(places, row.workload, self.seconds, QUICK_SETTLE_S if self.quick else SETTLE_S)
                self._note_rate(title, number, nodes[0].name, result)
                rates[nodes[0].name].append(result.per_s)
        return {name: statistics.median(values) for name, values in rates.items()}

    def _note_rate(self, title: str, number: int, broker: str, result: Driven) -> None:
        self._note(
            title, number, broker, f"{result.per_s:,}/s", {"per_s": result.per_s} | dataclasses.asdict(result), result
        )

    # -- Incidents -----------------------------------------------------------------------------------------------

    def _pause(self, nodes: list[Broker]) -> None:
        nodes[0].set_policy(ALL)
        rows = []
        calm_s, after_s = (QUICK_CALM_S, QUICK_AFTER_S) if self.quick else (CALM_S, AFTER_S)
        for number in range(1 if self.quick else PAUSES):
            result = pause(nodes, number % NODES, calm_s, after_s)
            rows.append({"confirm_s": result.confirm_s, "deliver_s": result.deliver_s, "calm_s": result.calm_s})
            text = f"confirms {result.confirm_s:.3f} s, deliveries {result.deliver_s:.3f} s"
            self._note("pause", number + 1, nodes[0].name, text, dataclasses.asdict(result), result)
        self.pause[nodes[0].name] = medians_and_worst(rows)

    def _handover(self, nodes: list[Broker]) -> None:
        if not isinstance(nodes[0], Leveret):
            return
        self._move(nodes)
        nodes[0].set_policy(ALL)
        rows = []
        for number in range(1 if self.quick else PAUSES):
            result = handover.hand_over(nodes, number % NODES, self.quick)
            rows.append({"confirm_s": result.confirm_s, "deliver_s": result.deliver_s, "calm_s": result.calm_s})
            text = f"confirms {result.confirm_s:.3f} s, deliveries {result.deliver_s:.3f} s, calm {result.calm_s:.3f} s"
            self._note("handover", number + 1, nodes[0].name, text, dataclasses.asdict(result), result)
        self.handover[nodes[0].name] = medians_and_worst(rows)

    def _move(self, nodes: list[Broker]) -> None:
        """Runs before there is a policy."""
        rows = []
        for number in range(1 if self.quick else PAUSES):
            result = handover.move(nodes, number % NODES, self.quick)
            rows.append({"confirm_s": result.confirm_s, "calm_s": result.calm_s, "whole_s": result.whole_s})
            text = f"confirms {result.confirm_s:.3f} s, calm {result.calm_s:.3f} s, all of it {result.whole_s:.3f} s"
            self._note("move", number + 1, nodes[0].name, text, dataclasses.asdict(result), result)
        self.move[nodes[0].name] = medians_and_worst(rows)

    def _promotion(self, nodes: list[Broker]) -> None:
        nodes[0].set_policy(ALL)
        rows = []
        for number in range(self.rounds):
            result = promotion(nodes, number % NODES, QUICK_WAITING if self.quick else WAITING)
            rows.append({"get_s": result.get_s, "confirm_s": result.confirm_s})
            text = f"get {result.get_s:.3f} s, confirm {result.confirm_s:.3f} s, filled {result.fill_per_s:,}/s"
            self._note("promotion", number + 1, nodes[0].name, text, dataclasses.asdict(result), result)
        self.promotion[nodes[0].name] = medians_and_worst(rows)

    def _refill(self, nodes: list[Broker]) -> None:
        found: dict[str, float] = {}
        for way in refill.WAYS:
            rows = []
            for number in range(self.rounds):
                result = refill.refill(nodes, way, QUICK_WAITING if self.quick else WAITING, self.seconds)
                rows.append(result.numbers())
                text = ", ".join(f"{name} {value:,.2f}" for name, value in rows[-1].items())
                self._note(f"refill, {way}", number + 1, nodes[0].name, text, dataclasses.asdict(result), result)
            found |= {f"{way}_{name}": statistics.median(row[name] for row in rows) for name in rows[0]}
        self.refill[nodes[0].name] = found

    def _note(self, title: str, number: int, broker: str, text: str, row: dict[str, Any], result: Any) -> None:
        where = f"{title}, round {number}, {broker}"
        self.tell(f"{where}: {text}")
        if not result.is_good:
            self.problems.append(f"{where}: {result}")
            self.tell(f"PROBLEM {self.problems[-1]}")
        self.rounds_run.append({"workload": title, "round": number, "broker": broker} | row)


def set_policy(node: Broker, policy: Policy, copies: int) -> None:
    """Sets a policy for queues that are declared afterwards, with so many copies."""
    node.set_policy(policy)
    with scene(node.port, [PROBE]):
        node.await_copies(PROBE, copies)


def medians_and_worst(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    def both(name: str) -> Iterable[tuple[str, float]]:
        values = [row[name] for row in rows]
        return (name, statistics.median(values)), (f"{name}_worst", max(values))

    return dict(pair for name in rows[0] for pair in both(name))
