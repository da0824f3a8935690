"""Partitions of all shapes, what nodes are told to do in them, and whether they do it.

In a run with `--strategies`, the nodes begin with a way to handle partitions that is drawn from the seed, an operator
changes it now and then, and the network parts in groups, in single pairs, and in one direction only.

The checker knows whom a node has links with, because it hears of each link as the node does, and what a node is told
to do, because that is metadata, which other checkers compare. From these it decides by itself when a node must not
serve, and then demands:

    silence     while it must not serve, a node writes nothing to clients but the end of their connections
    doors       nobody listens at its port, and no connection is left open

That there is at most one master in an epoch, that all serve again when all is healed, and that nothing confirmed is
lost, is demanded of every run: see `mirrors`, `world`, `ledger`.

In a run without strategies, nodes serve whatever they see, and keep nothing for queues that they cannot reach
(`STEADFAST`, which no user can choose). That asks most of rings and links: a minority whose clients were sent away
would try neither.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from leveret.metadata.model.commands import ClearGlobalParameter, Command, SetGlobalParameter
from leveret.metadata.rules.partition_handling import PartitionHandling

if TYPE_CHECKING:
    from leveret.node.node import Node
    from simulation.loop import Scheduler
    from simulation.machine import Machine
    from simulation.network import Network

PARAMETER: Final = "cluster_partition_handling"
STRATEGIES: Final = (
    "pause_minority", "pause_minority", "pause_minority", "stop_processing", "pause_if_all_down", "pause_if_all_down",
    "ignore", "ignore", "autoheal", "autoheal", "autoupgrade",
)  # fmt: skip
STRATEGY_FAULTS: Final = (("sever", 16), ("handling", 5), ("isolate", 5), ("part", 3), ("cut_one_way", 3))
SECONDS: Final = (2.0, 6.0, 10.0, 20.0)
# A turn that was under way when the node noticed is written at its end; and members are looked at every 20 ms.
GRACE_S: Final = 0.03
LAST_WORDS: Final = frozenset({"connection.close", "connection.close-ok", "heartbeat"})


@dataclass(frozen=True)
class Steadfast(PartitionHandling):
    """Serve, and refuse what cannot be reached."""

    @property
    def pauses_minority(self) -> bool:
        return False

    @property
    def spools(self) -> bool:
        return False


STEADFAST: Final = Steadfast()


# -- Drawing -------------------------------------------------------------------------------------------------------


def draw_handling(dice: random.Random, nodes: int) -> dict[str, Any]:
    strategy = dice.choice(STRATEGIES)
    if strategy != "pause_if_all_down":
        return {"strategy": strategy}
    names = [f"leveret@n{one + 1}" for one in sorted(dice.sample(range(nodes), dice.randrange(1, nodes + 1)))]
    return {"strategy": strategy, "nodes": names, "recover": dice.choice(("ignore", "autoheal"))}


def draw_sever(dice: random.Random, nodes: int) -> dict[str, Any]:
    """Ways that are cut, as pairs of numbers of nodes: between two groups, or some here and there."""
    pairs = [(a, b) for a in range(nodes) for b in range(a)]
    shape = dice.choice(("groups", "groups", "one way", "pairs", "hub"))
    if shape in ("groups", "one way"):
        group = dice.sample(range(nodes), dice.randrange(1, nodes))
        ways = [(a, b) if a in group else (b, a) for a, b in pairs if (a in group) != (b in group)]
    elif shape == "hub":
        hub = dice.randrange(nodes)
        ways = [(a, b) for a, b in pairs if hub not in (a, b)]
    else:
        ways = [pair for pair in pairs if dice.random() < 0.5] or pairs[:1]
    if shape != "one way":
        ways += [(b, a) for a, b in ways]
    seconds = round(dice.choice(SECONDS) * (0.5 + dice.random()), 3)
    return {"ways": sorted(ways), "seconds": seconds}


# -- Doing ---------------------------------------------------------------------------------------------------------


class Partitioned:
    """A part of `World`: each `fault_…` is a step of a plan."""

    scheduler: Scheduler
    dice: random.Random
    machines: list[Machine]
    everybody: list[Machine]
    network: Network

    def _cut(self, ways: list[tuple[str, str]], seconds: float) -> None:
        raise NotImplementedError

    def fault_sever(self, ways: list[tuple[int, int]], seconds: float) -> None:
        self._cut([(self.everybody[a].name, self.everybody[b].name) for a, b in ways], seconds)

    def fault_handling(self, value: dict[str, Any] | None) -> None:
        """An operator asks some node to change what all do in a partition."""
        asked = [machine for machine in self.machines if machine.serving]
        if not asked:
            return
        machine = self.dice.choice(asked)
        assert machine.server is not None and machine.server.node is not None and machine.loop is not None
        command: Command = ClearGlobalParameter(PARAMETER)
        if value is not None:
            command = SetGlobalParameter(PARAMETER, value)
        task = machine.loop.create_task(machine.server.node.cluster.change(command))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


# -- Checking ------------------------------------------------------------------------------------------------------


class PauseChecker:
    """When which node must serve nobody."""

    def __init__(
        self, fail: Callable[[str], None], clock: Callable[[], float], is_open: Callable[[str], bool], configured: Any
    ) -> None:
        self.fail = fail
        self.clock = clock
        self.is_open = is_open  # Whether somebody listens for clients at that place.
        self.configured = configured  # What holds until an operator says otherwise.
        self.sees: dict[str, set[str]] = {}
        self.spans: dict[str, list[list[float]]] = {}
        self.begun: set[str] = set()  # Who has served in its present life.
        self.on_pause: Callable[[str], None] = lambda name: None
        self.grace_s = GRACE_S

    def on_started(self, name: str) -> None:
        self.sees[name] = set()
        self.begun.discard(name)
        self._put(name, False)

    def on_died(self, name: str) -> None:
        self.on_started(name)

    def on_link(self, machine: Machine, peer: str, up: bool) -> None:
        """Told after the node has heard of it."""
        if up:
            self.sees[machine.name].add(peer)
        else:
            self.sees[machine.name].discard(peer)
        self.observe(machine)

    def observe(self, machine: Machine) -> None:
        server = machine.server
        if server is None or server.node is None or not server.prepared:
            self.begun.discard(machine.name)
            self._put(machine.name, False)
            return
        if self.is_open(machine.name):
            self.begun.add(machine.name)
        due = machine.name in self.begun and self._must_pause(machine.node_name, server.node, self.sees[machine.name])
        self._put(machine.name, due)
        since = self.spans[machine.name][-1][0] if due else 0.0
        if due and self.clock() > since + self.grace_s:
            if self.is_open(machine.name):
                self.fail(f"{machine.name} must serve nobody since {since:.6f}, and its port is open")
            if any(not one.closing and not one.closed for one in server.node.broker.connections):
                self.fail(f"{machine.name} must serve nobody since {since:.6f}, and has a connection")

    def _must_pause(self, me: str, node: Node, seen: set[str]) -> bool:
        membership = node.cluster.raft.membership
        voters = {one.name for one in membership.voters}
        value: Any = node.metadata.global_parameters.get(PARAMETER, self.configured)
        if me not in {one.name for one in membership.members} or len(membership.members) == 1:
            return False
        there = seen | {me}
        if value["strategy"] in ("pause_minority", "stop_processing"):
            return len(voters & there) <= len(voters) // 2
        if value["strategy"] == "pause_if_all_down":
            listed = {one.name for one in membership.members} & set(value["nodes"])
            return bool(listed) and not listed & there
        return False

    def _put(self, name: str, due: bool) -> None:
        spans, is_due = self.spans.setdefault(name, []), self.is_due(name)
        if due and not is_due:
            spans.append([self.clock(), float("inf")])
            self.on_pause(name)
        elif is_due and not due:
            spans[-1][1] = self.clock()

    def is_due(self, name: str) -> bool:
        """Whether it must serve nobody now."""
        spans = self.spans.get(name, [])
        return bool(spans) and spans[-1][1] == float("inf")

    def on_heard(self, node: str, written_at: float, what: str) -> None:
        """A client has got something."""
        if what in LAST_WORDS:
            return
        for since, until in reversed(self.spans.get(node, [])):
            if since + self.grace_s < written_at < until:
                self.fail(f"{node} must serve nobody since {since:.6f}, and wrote {what} at {written_at:.6f}")
            if until < written_at:
                return

    def summary(self) -> str:
        now = self.clock()
        spans = [span for one in self.spans.values() for span in one]
        paused = sum(min(until, now) - since for since, until in spans)
        return f"{len(spans)} pauses of {paused:.0f} s together"
