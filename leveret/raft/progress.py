"""A leader's knowledge of one follower.

PROBE      the last index in common is unknown: one message at a time, until the follower accepts one
REPLICATE  it is known: messages are sent without waiting for answers, up to a window
SNAPSHOT   the entry that the follower needs next is compacted: it gets the snapshot in chunks, one at a time
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from leveret.raft.messages import SnapshotMeta


class State(IntEnum):
    """How a follower is brought up to date."""

    PROBE = 0
    REPLICATE = 1
    SNAPSHOT = 2


class Progress:
    """How far one follower is, and what is under way to it."""

    __slots__ = (
        "active",
        "applied",
        "chunk_offset",
        "inflight",
        "inflight_bytes",
        "match",
        "next",
        "probed",
        "silent_ticks",
        "snapshot",
        "state",
        "told_commit",
    )

    def __init__(self, last_index: int) -> None:
        self.state = State.PROBE
        self.match = 0  # The follower has all entries up to here on its disk.
        self.next = last_index + 1  # The index of the entry to send next.
        self.applied = 0
        self.active = True  # It has answered since the majority was last checked.
        self.told_commit = 0
        self.probed = False  # A probe is unanswered.
        self.inflight: deque[tuple[int, int]] = deque()  # Last index and bytes of each message not answered yet.
        self.inflight_bytes = 0
        self.snapshot: SnapshotMeta | None = None  # The one being sent.
        self.chunk_offset = 0
        self.silent_ticks = 0

    def probe(self, next_index: int) -> None:
        assert next_index > self.match
        self._enter(State.PROBE)
        self.next = next_index

    def replicate(self) -> None:
        self._enter(State.REPLICATE)
        self.next = self.match + 1

    def send_snapshot(self, meta: SnapshotMeta) -> None:
        self._enter(State.SNAPSHOT)
        self.snapshot = meta

    def _enter(self, state: State) -> None:
        self.state = state
        self.probed = False
        self.inflight.clear()
        self.inflight_bytes = 0
        self.snapshot = None
        self.chunk_offset = self.silent_ticks = 0

    def sent(self, last: int, size: int) -> None:
        self.next = last + 1
        self.inflight.append((last, size))
        self.inflight_bytes += size

    def matched(self, index: int) -> bool:
        """Note that the follower has all entries up to an index. Return whether that is more than was known."""
        inflight = self.inflight
        while inflight and inflight[0][0] <= index:
            self.inflight_bytes -= inflight.popleft()[1]
        if index <= self.match:
            return False
        self.match = index
        self.next = max(self.next, index + 1)
        return True

    def free_one(self) -> None:
        """Drop the oldest unanswered message: it or its answer may be lost."""
        self.inflight_bytes -= self.inflight.popleft()[1]
