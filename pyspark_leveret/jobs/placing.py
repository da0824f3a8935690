"""Which node should lead which queue: moves that even out what nodes have to do.

Every queue weighs something (connections, messages, a forecast of its load), and a node's load is what the queues that
it leads weigh together. From a node with the load A to one with B, a queue of weight w makes their difference A − B
into |A − B − 2w|. By how much it is less, as a part of the mean load of all nodes, is what the move is worth. What is
worth less than a threshold is not moved: a move costs the clients of a queue a moment, and a plan that is made again
tomorrow should not undo that of today because loads have changed by a little. A move that would only swap the two is
worth nothing, so no queue goes back and forth.

Of the moves that are worth it, one after the other is chosen, each time the one that makes the squares of all loads
least: 2w (A − B − w) is by how much it does, so it goes from the fullest to the emptiest, if there is a fitting queue.

A mirrored queue moves to a mirror that is in sync, and nowhere else: that is a change of roles. Without mirrors a queue
can move to any node, with all its messages; of two moves that are worth the same, the one with less to carry is chosen.
A queue moves once in a plan, and never to or from a node that does not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

THRESHOLD: Final = 0.1
MOVES_MAX: Final = 100


@dataclass(frozen=True)
class Placed:
    """A queue, as it is. `targets`: where else it could be led."""

    vhost: str
    queue: str
    master: str
    targets: tuple[str, ...]
    weight: float
    carried: int = 0  # Messages that have to be sent for a move.


@dataclass(frozen=True)
class Move:
    vhost: str
    queue: str
    source: str
    target: str
    why: str


@dataclass(frozen=True)
class Plan:
    strategy: str
    moves: tuple[Move, ...]
    before: Mapping[str, float]
    after: Mapping[str, float]

    def as_json(self) -> dict[str, object]:
        """What `rebalance` carries out."""
        moves = [
            {"vhost": one.vhost, "queue": one.queue, "from": one.source, "to": one.target, "why": one.why}
            for one in self.moves
        ]
        return {
            "version": 1,
            "strategy": self.strategy,
            "moves": moves,
            "before": dict(self.before),
            "after": dict(self.after),
        }


def plan(
    strategy: str,
    unit: str,
    queues: Sequence[Placed],
    nodes: Iterable[str],
    threshold: float = THRESHOLD,
    moves_max: int = MOVES_MAX,
) -> Plan:
    """`nodes` are those that run. `unit` is what weights are, for people."""
    loads = dict.fromkeys(sorted(nodes), 0.0)
    for one in queues:
        loads[one.master] = loads.get(one.master, 0.0) + one.weight
    before = dict(loads)
    running = set(nodes)
    mean = sum(loads.values()) / len(loads) if loads else 0.0
    left = [one for one in queues if one.weight > 0 and one.master in running]
    moves: list[Move] = []
    while mean > 0 and len(moves) < moves_max:
        best = _best(left, loads, running, threshold * mean)
        if best is None:
            break
        one, target = best
        here, there = loads[one.master], loads[target]
        loads[one.master], loads[target] = here - one.weight, there + one.weight
        why = (
            f"{_short(one.weight)} {unit}: {one.master} goes from {_short(here)} to {_short(loads[one.master])}, "
            f"{target} from {_short(there)} to {_short(loads[target])}"
        )
        moves.append(Move(one.vhost, one.queue, one.master, target, why))
        left.remove(one)
    return Plan(strategy, tuple(moves), _rounded(before), _rounded(loads))


def _best(
    queues: Sequence[Placed], loads: Mapping[str, float], running: set[str], least: float
) -> tuple[Placed, str] | None:
    """The best move that brings two nodes closer by `least` or more. Of equal ones the same in every run."""
    best: tuple[Placed, str] | None = None
    rank: tuple[float, int, str, str, str] | None = None
    for one in queues:
        for target in one.targets:
            if target == one.master or target not in running:
                continue
            apart = loads[one.master] - loads[target]
            closer = apart - abs(apart - 2 * one.weight)
            if closer <= 0 or closer < least:
                continue
            candidate = (-one.weight * (apart - one.weight), one.carried, one.vhost, one.queue, target)
            if rank is None or candidate < rank:
                best, rank = (one, target), candidate
    return best


def forecast(loads: Mapping[int, float], slots: int, ahead: int) -> float:
    """What a load will be `ahead` slots after the last one, by the straight line that fits `slots` of them best.
    `loads` has those in which there was something, from 0 on; in the others there was nothing. It is never less than
    nothing, and no queue is thought to get more than twice what it had at the most."""
    if slots < 1 or not loads:
        return 0.0
    mean_at = (slots - 1) / 2
    mean = sum(loads.values()) / slots
    spread = sum((at - mean_at) ** 2 for at in range(slots))
    slope = sum((at - mean_at) * load for at, load in loads.items()) / spread if spread else 0.0
    return min(max(mean + slope * (slots - 1 + ahead - mean_at), 0.0), 2 * max(loads.values()))


def _rounded(loads: Mapping[str, float]) -> dict[str, float]:
    return {name: round(load, 3) for name, load in loads.items()}


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.1f}"
