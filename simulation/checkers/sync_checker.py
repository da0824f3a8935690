"""Checks that a mirror fetches messages only when its policy, or an operator, allows it.

    not by itself   with `ha-sync-mode: manual`
    not at all      with `ha-sync-strategy: event`
    in the hours    that `ha-replication-window` names, by the clock of the mirror's node

A queue that is being moved to another node is copied there whatever its policy says.

There is one tap: what members of rings send. A request for contents (others only ask what is settled) is compared with
the policy as the requesting node knows it at that moment, read here by other code. Nodes check the hours once a second,
so a request a moment after they are over may be excused; how long they have been over is counted in the node's own
passes, since a node that was frozen for a while has not had that second.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from leveret.metadata.rules.ha_policy import is_quorum, is_stream
from leveret.metadata.rules.placement import moving_to
from leveret.replication.member import Member
from leveret.replication.ring_frames import Fetch

if TYPE_CHECKING:
    from leveret.broker.mirrors.manager import Mirror
    from leveret.metadata.model.records import QueueSpec
    from leveret.node.node import Node
    from leveret.replication.ring_frames import Frame

NOTICE_S: Final = 3.0  # Until a node has noticed what time it is.
PASS_S: Final = 0.2  # A running node has its next pass within this time.
HA: Final = ("/", "ha")  # The only policy that speaks of mirrors.


def tapped_member(taps: dict[int, Callable[[Frame], None]]) -> type[Member]:
    """Returns a class of members that tell of what they send, each to the tap of its identity. A member becomes one,
    because its own attributes are fixed. Each checker has a class of its own, and so lets go of its members."""

    class TappedMember(Member):
        __slots__ = ()

        def send(self, to: str, frame: Frame) -> None:
            taps[id(self)](frame)
            super().send(to, frame)

    return TappedMember


def policy_of(node: Node, spec: QueueSpec) -> dict[str, Any] | None:
    """Returns the policy of a queue as a node knows it; None: it has none."""
    policy = node.metadata.policies.get(HA)
    if policy is None or is_quorum(spec.arguments) or is_stream(spec.arguments):
        return None
    return dict(policy.definition) if re.search(policy.pattern, spec.name) else None


def hours_of(definition: Mapping[str, Any]) -> str | None:
    """Returns the hours that a policy names."""
    return (definition.get("ha-replication-window") or {}).get("hours")


def is_within(hours: str, wall_ms: int) -> bool:
    """Returns whether a time of day is in one of some periods, such as "22:00-06:00"."""
    now = wall_ms // 60_000 % 1_440
    for span in hours.split(","):
        begin, end = (int(time[:2]) * 60 + int(time[3:]) for time in span.strip().split("-"))
        if (now - begin) % 1_440 < ((end - begin) % 1_440 or 1_440):
            return True
    return False


class SyncChecker:
    def __init__(self, fail: Callable[[str], None], clock: Callable[[], float]) -> None:
        self.fail = fail
        self.clock = clock
        self.taps: dict[int, Callable[[Frame], None]] = {}
        self.tapped_member = tapped_member(self.taps)
        self.tapped: dict[tuple[str, int], Member] = {}  # By node and queue.
        self.passed: dict[str, float] = {}  # When a node had its last pass.
        self.closed: dict[tuple[str, int], float] = {}  # How long the hours of a queue have been over.

    def observe(self, name: str, node: Node) -> None:
        now = self.clock()
        awake = min(now - self.passed.get(name, now), PASS_S)
        self.passed[name] = now
        policy = node.metadata.policies.get(HA)
        has_hours = policy is not None and hours_of(policy.definition) is not None  # For some queues, at least.
        for number, mirror in node.broker.mirrors.mirrors.items():
            key = (name, number)
            if self.tapped.get(key) is not mirror.member:
                self.tapped[key] = mirror.member
                self._tap(name, node, mirror)
            hours = hours_of(policy_of(node, mirror.spec) or {}) if has_hours else None
            if hours is not None and not is_within(hours, node.broker.mirrors.ha_rules.wall_ms):
                self.closed[key] = self.closed.get(key, 0.0) + awake
            elif self.closed:
                self.closed.pop(key, None)

    def _tap(self, name: str, node: Node, mirror: Mirror) -> None:
        member = mirror.member

        def tap(frame: Frame) -> None:
            if isinstance(frame, Fetch) and frame.bytes_max and not member.ordered:
                reason = self._forbids(name, node, mirror.spec)
                if reason:
                    self.fail(f"{name} fetches messages of {mirror.spec.name}, though {reason}")

        self.taps[id(member)] = tap
        member.__class__ = self.tapped_member

    def _forbids(self, name: str, node: Node, spec: QueueSpec) -> str:
        policy = policy_of(node, spec)
        if policy is None or moving_to(node.metadata, spec) is not None:
            return ""
        if policy.get("ha-sync-strategy") == "event":
            return "its strategy is to follow what happens"
        if policy.get("ha-sync-mode") != "automatic":
            return "nobody has asked for it"
        closed = self.closed.get((name, spec.id), 0.0)
        return f"it has not been the hour for {closed:.1f} s" if closed > NOTICE_S else ""
