"""The plan of a rebalance: which queues get another master, so that no node has much more to do than another.

Every queue has a weight, and a node's load is the weight of all its masters, plus a base load that does not move. A
strategy defines the weight, and to which node a queue goes:

    least-masters       every queue weighs 1
    least-messages      a queue weighs the number of its messages
    least-connections   a queue weighs the number of its consumers; a node's base load is its client connections
    weighted            every queue weighs 1, and a node with twice the capacity should lead twice as many
    random              as least-masters, but to any node with a lower load, drawn from a seed
    round-robin         as least-masters, but to the nodes with lower loads in turn

`leveret pipeline balance` brings weights of its own (`Measure`) and uses the rule of least-masters with them.

**The gain of a move.** With loads A and B and capacities a and b, two nodes differ by d = A/a − B/b. Moving a queue of
weight w makes that d − w (1/a + 1/b). A move is made if it brings the two closer. Then it also lowers the sum of all
A²/a, whatever was moved before: the change is −2w (d − w (1/a + 1/b) / 2), and the bracket is positive exactly if the
two come closer. A sum that only falls never returns to an earlier value. So a plan is finite, and *no sequence of plans
goes in a circle*, however a target is chosen: that is why the random and round-robin strategies only choose among nodes
that are an improvement, and do not move queues for ever.

**Hysteresis.** Loads change by themselves, and a move interrupts the clients of a queue for a moment. So nodes that
differ by less than a fraction of the mean (`threshold`) are left as they are, and so is a heavy queue whose move would
bring them closer by less than that. When a plan has been carried out and nothing else has happened, the next one is
empty. A queue that was moved recently is left alone, whatever its weight is now.

**Where a queue may go.** If it is mirrored, only to a mirror in sync: that is a promotion, in milliseconds. Else to any
node, with all its messages. Never to a node that is down, that is being drained, that the queue's policy does not name,
or that lacks the label that its policy asks for. Pinned queues stay. Of queues with the same weight, the one with the
fewest messages to copy is moved.

**Size.** Each step looks at every pair of nodes, and finds the best queue for a pair by bisection, among those that may
go there (`_Leaving`): a hundred thousand queues are planned in some seconds, mirrored or not. The number of moves
limits the number of steps.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from leveret.metadata.rebalance_names import (
    APPOINT,
    CONNECTIONS,
    MASTERS,
    MESSAGES,
    ON_DEMAND,
    PLAN,
    RANDOM,
    ROUND_ROBIN,
    RUN,
    STRATEGIES,
    TIMER,
    TRIGGERS,
    WEIGHTED,
    short,
)

if TYPE_CHECKING:
    from leveret.base.json_values import Json

__all__ = [
    "APPOINT", "CONNECTIONS", "MASTERS", "MESSAGES", "ON_DEMAND", "PLAN", "RANDOM", "ROUND_ROBIN", "RUN", "STRATEGIES",
    "TIMER", "TRIGGERS", "WEIGHTED", "balance", "from_file", "short",
]  # fmt: skip

UNITS: Final = {MESSAGES: "messages", CONNECTIONS: "connections"}  # The unit of the other strategies is masters.

THRESHOLD: Final = 0.1
MOVES_MAX: Final = 1_000
PLAN_VERSION: Final = 1
REASON_CHARACTERS: Final = 200  # The longest reason of a move in a plan.
CLOSER_MIN: Final = 1e-9  # Rounding errors must not count as improvements: they would go on for ever.


Places: TypeAlias = tuple[str, ...] | frozenset[str]


class BadPlan(ValueError):
    """A plan from a file is invalid; the text says why."""


@dataclass(frozen=True)
class NodeState:
    """The state of a node that matters for rebalancing."""

    name: str
    running: bool = True
    draining: bool = False
    capacity: float = 1.0
    connections: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class QueueState:
    """The state of a queue that matters for rebalancing. `in_sync`: its members in sync with its master; None: it has
    no mirrors."""

    id: int
    vhost: str
    name: str
    master: str
    messages: int = 0
    consumers: int = 0
    in_sync: tuple[str, ...] | None = None
    nodes: frozenset[str] | None = None  # The nodes that its policy names; None: all.
    label: tuple[str, str] | None = None  # The label that its master's node must have by its policy.
    pinned: bool = False
    recent: bool = False  # It was moved recently.


class Move(NamedTuple):
    """A move of a queue to another node."""

    id: int
    vhost: str
    queue: str
    source: str
    target: str
    why: str


class Stay(NamedTuple):
    """A queue that was named in a plan and is not moved, and why."""

    vhost: str
    queue: str
    why: str


@dataclass(frozen=True)
class Plan:
    """The moves of a rebalance. `before`, `after`: the loads of all nodes, in `unit`."""

    strategy: str
    unit: str
    moves: tuple[Move, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]
    stays: tuple[Stay, ...] = ()

    def as_json(self) -> dict[str, Json]:
        """Return the form of a plan in files and in answers of the HTTP API."""
        return {
            "version": PLAN_VERSION,
            "strategy": self.strategy,
            "unit": self.unit,
            "moves": [
                {"vhost": one.vhost, "queue": one.queue, "from": one.source, "to": one.target, "why": one.why}
                for one in self.moves
            ],
            "stays": [{"vhost": one.vhost, "queue": one.queue, "why": one.why} for one in self.stays],
            "before": dict(self.before),
            "after": dict(self.after),
        }


class Schedule(NamedTuple):
    """The configuration of rebalancing: when it runs by itself, and its defaults."""

    trigger: str = ON_DEMAND
    interval_ms: int = 60_000
    strategy: str = MASTERS
    plan: str = ""  # The file with the plan, for the strategy `plan`.
    threshold: float = THRESHOLD
    at_once: int = 4
    per_hour: int | None = 600  # Moves that start by themselves; a rebalance that an operator starts has no such limit.
    rest_ms: int = 600_000  # How long a queue that was moved is left alone, likewise.


class Settings(NamedTuple):
    """The options of a plan."""

    strategy: str = MASTERS
    threshold: float = THRESHOLD
    moves_max: int = MOVES_MAX
    seed: int = 0


class Measure(NamedTuple):
    """Weights of queues by id that the caller has computed, used instead of those of a strategy."""

    unit: str  # The unit of the weights, for display.
    weights: Mapping[int, float]


# -- What is allowed -----------------------------------------------------------------------------------------------


def refusal(queue: QueueState, target: NodeState | None, name: str) -> str | None:
    """Return why a queue cannot go to a node; None: it can."""
    if target is None:
        return f"node {name} is not in the cluster"
    if not target.running:
        return f"node {name} is not running"
    if target.draining:
        return f"node {name} is being drained"
    if queue.nodes is not None and name not in queue.nodes:
        return f"its policy does not name node {name}"
    if queue.label is not None and target.labels.get(queue.label[0]) != queue.label[1]:
        return f"its policy asks for a node with {queue.label[0]} = {queue.label[1]}, which {name} is not"
    if queue.in_sync is not None and name not in queue.in_sync:
        return f"node {name} has no synchronised mirror of it"
    return None


def _held(queue: QueueState, nodes: Mapping[str, NodeState]) -> str | None:
    """Return why a queue cannot go to any other node; None: it can."""
    master = nodes.get(queue.master)
    if queue.pinned:
        return "its policy pins it"
    if queue.recent:
        return "it was moved a while ago only"
    if master is None or not master.running:
        return f"its master's node {queue.master} is not running"
    return None


# -- Balance -------------------------------------------------------------------------------------------------------


def balance(
    nodes: Iterable[NodeState], queues: Sequence[QueueState], wanted: Settings, measure: Measure | None = None
) -> Plan:
    """Return a plan that evens out the loads of nodes. With a `measure`, the strategy is only a name."""
    known = {node.name: node for node in nodes}
    work = _Work(known, queues, wanted, measure)
    steps = 0
    # A step may move a queue that was moved before, so there are at least as many steps as moves.
    while steps < wanted.moves_max and work.step():
        steps += 1
    return Plan(wanted.strategy, work.unit, work.moves(), _rounded(work.before), _rounded(work.loads))


_Entry: TypeAlias = tuple[float, int, int]  # Weight, messages to copy (negative), id.


class _Leaving:
    """The queues that may leave one node, sorted, by the nodes to which they may go. Mirrored ones can go to few nodes,
    and are in a list for each of those. Most others may go to the same nodes; queues with equal targets share a list.
    """

    def __init__(self) -> None:
        self._to: dict[str, list[_Entry]] = {}
        self._among: dict[frozenset[str], list[_Entry]] = {}

    def _lists(self, places: Places) -> list[list[_Entry]]:
        if isinstance(places, frozenset):
            return [self._among.setdefault(places, [])]
        return [self._to.setdefault(name, []) for name in places]

    def add(self, entry: _Entry, places: Places) -> None:
        """Add a queue before the first step. Call `sort` before any other method."""
        for entries in self._lists(places):
            entries.append(entry)

    def sort(self) -> None:
        for entries in (*self._to.values(), *self._among.values()):
            entries.sort()

    def put(self, entry: _Entry, places: Places) -> None:
        for entries in self._lists(places):
            insort(entries, entry)

    def take(self, entry: _Entry, places: Places) -> None:
        for entries in self._lists(places):
            del entries[bisect_right(entries, entry) - 1]

    def around(self, weight: float, target: str) -> tuple[_Entry | None, _Entry | None]:
        """Return, of the queues that may go to a node, the heaviest up to a weight and the lightest above it."""
        below = above = None
        several = [entries for places, entries in self._among.items() if target in places]
        for entries in (*several, self._to.get(target, ())):
            middle = bisect_right(entries, (weight, 1, 0))
            if middle > 0 and (below is None or entries[middle - 1] > below):
                below = entries[middle - 1]
            if middle < len(entries) and (above is None or entries[middle] < above):
                above = entries[middle]
        return below, above


class _Work:
    """The state of a plan while it is made."""

    def __init__(
        self,
        nodes: Mapping[str, NodeState],
        queues: Sequence[QueueState],
        wanted: Settings,
        measure: Measure | None = None,
    ) -> None:
        self.nodes = nodes
        self.queues = {queue.id: queue for queue in queues}
        self.weigh = _WEIGHTS.get(wanted.strategy, _one)
        self.unit = UNITS.get(wanted.strategy, "masters")
        if measure is not None:
            weights = measure.weights
            self.weigh, self.unit = (lambda queue: weights[queue.id]), measure.unit
        self.capacity = {
            name: node.capacity if wanted.strategy == WEIGHTED else 1.0 for name, node in sorted(nodes.items())
        }
        carried = wanted.strategy == CONNECTIONS
        self.loads = {name: float(nodes[name].connections) if carried else 0.0 for name in self.capacity}
        self.homes = {queue.id: queue.master for queue in queues}
        self.there = {name: _Leaving() for name in self.loads}
        self.places: dict[int, Places] = {}  # By queue: the nodes to which it may go.
        self._anywhere: dict[tuple[object, ...], frozenset[str]] = {}
        for queue in queues:
            weight = self.weigh(queue)
            if queue.master in self.loads:
                self.loads[queue.master] += weight
            if weight > 0 and _held(queue, nodes) is None:
                self.places[queue.id] = self._places(queue)
                self.there[queue.master].add(self._entry(queue), self.places[queue.id])
        for leaving in self.there.values():
            leaving.sort()
        self.before = dict(self.loads)
        running = [name for name in self.loads if nodes[name].running]
        room = sum(self.capacity[name] for name in running)
        self.least = wanted.threshold * sum(self.loads[name] for name in running) / room if room else 0.0
        self.choose: Callable[[list[str], QueueState], str] = self._fewest
        self.wanted = wanted
        self.turn = -1
        self.ring = list(self.loads)
        if wanted.strategy == RANDOM:
            self.choose = self._any
        elif wanted.strategy == ROUND_ROBIN:
            self.choose = self._next

    def _places(self, queue: QueueState) -> Places:
        """Return the nodes to which a queue may go, its own included."""
        if queue.in_sync is not None:
            names = dict.fromkeys((queue.master, *queue.in_sync))
            return tuple(name for name in names if name == queue.master or self._may_go(queue, name))
        key = (queue.nodes, queue.label)
        if key not in self._anywhere:
            self._anywhere[key] = frozenset(name for name in self.loads if self._may_go(queue, name))
        places = self._anywhere[key]
        return places if queue.master in places else places | {queue.master}

    def _may_go(self, queue: QueueState, name: str) -> bool:
        return refusal(queue, self.nodes.get(name), name) is None

    def _entry(self, queue: QueueState) -> _Entry:
        carried = queue.messages if queue.in_sync is None else 0
        return self.weigh(queue), -carried, queue.id

    def step(self) -> bool:
        """Make the best move. Return whether there was one."""
        best: tuple[float, int, str, str] | None = None
        for source in self.loads:
            for target in self.loads:
                found = None if target == source else self._best(source, target)
                if found is not None and (best is None or found[0] < best[0]):
                    best = (*found, source, target)
        if best is None:
            return False
        _, number, source, target = best
        queue = self.queues[number]
        if self.choose is not self._fewest:
            places, weight = self.places[number], self.weigh(queue)
            others = [one for one in self.loads if one != source and one in places]
            improving = [one for one in others if self._brings_closer(weight, source, one)]
            target = self.choose(improving, queue)
        self._put(queue, source, target)
        return True

    def _best(self, source: str, target: str) -> tuple[float, int] | None:
        """Return the best move between two nodes: the change of the sum, and the queue."""
        a, b = self.capacity[source], self.capacity[target]
        apart = self.loads[source] / a - self.loads[target] / b
        if apart <= self.least or apart <= 0:
            return None
        both = 1 / a + 1 / b
        best: tuple[float, int] | None = None
        # A queue of just this weight would make the two even; the further from it, the smaller the gain.
        for entry in self.there[source].around(apart / both, target):
            if entry is not None and self._brings_closer(entry[0], source, target):
                change = -2 * entry[0] * (apart - entry[0] * both / 2)
                if best is None or change < best[0]:
                    best = change, entry[2]
        return best

    def _brings_closer(self, weight: float, source: str, target: str) -> bool:
        a, b = self.capacity[source], self.capacity[target]
        apart = self.loads[source] / a - self.loads[target] / b
        change = weight * (1 / a + 1 / b)
        closer = apart - abs(apart - change)
        return apart > self.least and closer > CLOSER_MIN * apart and closer >= min(change, self.least)

    def _put(self, queue: QueueState, source: str, target: str) -> None:
        entry, places = self._entry(queue), self.places[queue.id]
        self.there[source].take(entry, places)
        self.there[target].put(entry, places)
        self.loads[source] -= entry[0]
        self.loads[target] += entry[0]
        self.homes[queue.id] = target

    # The choice of a target among the nodes that are an improvement.

    def _fewest(self, improving: list[str], queue: QueueState) -> str:
        return min(improving, key=lambda name: (self.loads[name] / self.capacity[name], name))

    def _any(self, improving: list[str], queue: QueueState) -> str:
        return improving[zlib.crc32(f"{self.wanted.seed} {queue.id}".encode()) % len(improving)]

    def _next(self, improving: list[str], queue: QueueState) -> str:
        while True:
            self.turn = (self.turn + 1) % len(self.ring)
            if self.ring[self.turn] in improving:
                return self.ring[self.turn]

    def moves(self) -> tuple[Move, ...]:
        """Return the net result of all steps. Moves with the fewest messages to copy come first."""
        found = [queue for queue in self.queues.values() if self.homes[queue.id] != queue.master]
        found.sort(key=lambda queue: (-self._entry(queue)[1], queue.vhost, queue.name))
        return tuple(self._told(queue) for queue in found)

    def _told(self, queue: QueueState) -> Move:
        source, target = queue.master, self.homes[queue.id]
        weight = "" if self.weigh is _one else f"{short(self.weigh(queue))} {self.unit}: "
        why = f"{weight}{source} has {short(self.before[source])} {self.unit}, {target} {short(self.before[target])}"
        return Move(queue.id, queue.vhost, queue.name, source, target, why)


def _one(queue: QueueState) -> float:
    return 1.0


_WEIGHTS: Final[dict[str, Callable[[QueueState], float]]] = {
    MESSAGES: lambda queue: float(queue.messages),
    CONNECTIONS: lambda queue: float(queue.consumers),
}


# -- What somebody has decided -------------------------------------------------------------------------------------


def from_file(document: Json, nodes: Iterable[NodeState], queues: Sequence[QueueState], moves_max: int) -> Plan:
    """Return the plan in a file of `leveret pipeline balance` or of a dry run. Moves that have become impossible since
    then are listed as stays. Raises `BadPlan`."""
    if not isinstance(document, dict) or document.get("version") != PLAN_VERSION:
        raise BadPlan(f'a plan is an object with "version": {PLAN_VERSION} and "moves"')
    moves = document.get("moves")
    if not isinstance(moves, list):
        raise BadPlan('"moves" must be a list')
    wanted: dict[tuple[str, str], tuple[str | None, str]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for number, one in enumerate(moves, 1):
        words = [one.get(key) for key in ("vhost", "queue", "to")] if isinstance(one, dict) else []
        if len(words) != 3 or not all(isinstance(word, str) and word for word in words):
            raise BadPlan(f'move {number} must be an object with "vhost", "queue" and "to"')
        assert isinstance(one, dict)
        source = one.get("from")
        if (words[0], words[1]) in wanted:
            raise BadPlan(f"move {number} is of a queue that another move is of: {words[1]} in {words[0]}")
        wanted[str(words[0]), str(words[1])] = source if isinstance(source, str) else None, str(words[2])
        if isinstance(why := one.get("why"), str):
            reasons[str(words[0]), str(words[1])] = why[:REASON_CHARACTERS]
    strategy = document.get("strategy")
    called = f"plan ({strategy})" if isinstance(strategy, str) else "plan"
    return appointed(called, wanted, nodes, queues, moves_max, reasons)


def appointed(
    called: str,
    wanted: Mapping[tuple[str, str], tuple[str | None, str]],
    nodes: Iterable[NodeState],
    queues: Sequence[QueueState],
    moves_max: int,
    reasons: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> Plan:
    """Return a plan of given moves: queues by vhost and name, from a node (None: from any) to another."""
    known, there = {node.name: node for node in nodes}, {(queue.vhost, queue.name): queue for queue in queues}
    loads = {name: 0.0 for name in sorted(known)}
    for queue in queues:
        loads[queue.master] = loads.get(queue.master, 0.0) + 1
    before = dict(loads)
    moves: list[Move] = []
    stays: list[Stay] = []
    for (vhost, name), (source, target) in wanted.items():
        found = there.get((vhost, name))
        why = _stays(found, source, target, known)
        if why is None and len(moves) >= moves_max:
            why = f"more than {moves_max} moves are not made at a time"
        if why is not None or found is None:
            stays.append(Stay(vhost, name, why or ""))
        elif found.master != target:
            why = reasons.get((vhost, name), "asked for by name" if called == APPOINT else "the plan says so")
            moves.append(Move(found.id, vhost, name, found.master, target, why))
            loads[found.master] -= 1
            loads[target] += 1
    return Plan(called, "masters", tuple(moves), _rounded(before), _rounded(loads), tuple(stays))


def _stays(queue: QueueState | None, source: str | None, target: str, nodes: Mapping[str, NodeState]) -> str | None:
    if queue is None:
        return "there is no such queue that could be moved"
    if queue.master == target:
        return None
    if source is not None and queue.master != source:
        return f"it is at {queue.master}, and no longer at {source}"
    master = nodes.get(queue.master)
    if master is None or not master.running:
        return f"its master's node {queue.master} is not running"
    return refusal(queue, nodes.get(target), target)


def _rounded(loads: Mapping[str, float]) -> dict[str, float]:
    return {name: round(load, 3) for name, load in loads.items()}
