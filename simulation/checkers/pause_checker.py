"""Checks that nodes which must pause in a partition serve no clients.

The checker knows the links of each node, because it hears of each link when the node does, and the node's partition
handling, because that is metadata, which other checkers compare. From these it decides by itself when a node must
pause, and then checks:

    silence      while it is paused, a node writes nothing to clients but the end of their connections
    listeners    its listeners are closed, and no connection is left open
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from leveret.node.node import Node
    from simulation.core.machine import Machine

PARAMETER: Final = "cluster_partition_handling"
# A turn that had begun when the node noticed is written at its end; and members are checked every 20 ms.
GRACE_S: Final = 0.03
LAST_WORDS: Final = frozenset({"connection.close", "connection.close-ok", "heartbeat"})


class PauseChecker:
    """Checks that a node serves no clients while it must pause."""

    def __init__(
        self, fail: Callable[[str], None], clock: Callable[[], float], is_open: Callable[[str], bool], configured: Any
    ) -> None:
        self.fail = fail
        self.clock = clock
        self.is_open = is_open  # Whether there is a listener for clients at that place.
        self.configured = configured  # The handling until an operator changes it.
        self.sees: dict[str, set[str]] = {}
        self.spans: dict[str, list[list[float]]] = {}
        self.begun: set[str] = set()  # Nodes that have served clients in their present life.
        self.on_pause: Callable[[str], None] = lambda name: None
        self.grace_s = GRACE_S

    def on_started(self, name: str) -> None:
        self.sees[name] = set()
        self.begun.discard(name)
        self._put(name, False)

    def on_died(self, name: str) -> None:
        self.on_started(name)

    def on_link(self, machine: Machine, peer: str, up: bool) -> None:
        """Called after the node has heard of a link."""
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
        """Returns whether the node must not serve clients now."""
        spans = self.spans.get(name, [])
        return bool(spans) and spans[-1][1] == float("inf")

    def on_heard(self, node: str, written_at: float, what: str) -> None:
        """A client has received something."""
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
