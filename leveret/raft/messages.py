"""What Raft nodes keep, and what they say to each other.

Every message has a sender, a receiver and the sender's term. The only ones whose term is not the sender's are those of
a pre-election: they carry the term that the sender would have as a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from leveret.raft.membership import NOBODY, Membership

ENTRY_BYTES_MAX: Final = 16 * 1024 * 1024 + 64 * 1024  # The largest metadata command, and what is wrapped around it.
ENTRIES_MAX: Final = 65_536  # In one message.
CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024


class Kind(IntEnum):
    """Of an entry."""

    NOOP = 0  # A leader's first: what it inherited can be counted as committed only with an entry of its own term.
    COMMAND = 1
    MEMBERSHIP = 2


@dataclass(slots=True)
class Entry:
    """Never changed once made; not frozen only because those take three times as long to make."""

    index: int
    term: int
    kind: Kind
    data: bytes


class HardState(NamedTuple):
    """What must be on disk before anyone is told."""

    term: int = 0
    vote: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """What a snapshot stands for: all entries up to `index`, whose term is `term`."""

    index: int = 0
    term: int = 0
    membership: Membership = NOBODY


NO_STATE: Final = HardState()
NO_SNAPSHOT: Final = SnapshotMeta()


class Snapshot(NamedTuple):
    meta: SnapshotMeta
    data: bytes


@dataclass(slots=True)
class VoteRequest:
    sender: str
    to: str
    term: int
    pre: bool  # Only asks: would you vote for me?
    last_index: int
    last_term: int
    forced: bool = False  # The leader itself asked for this election, so that its lease is no reason to refuse.


@dataclass(slots=True)
class VoteResponse:
    sender: str
    to: str
    term: int
    pre: bool
    granted: bool


@dataclass(slots=True)
class Append:
    sender: str
    to: str
    term: int
    prev_index: int  # Of the entry before `entries`, and its term.
    prev_term: int
    commit: int
    entries: Sequence[Entry] = ()


@dataclass(slots=True)
class AppendResponse:
    """Accepted: the sender has all up to `index` on disk. Otherwise `index` is the `prev_index` it lacks."""

    sender: str
    to: str
    term: int
    accepted: bool
    index: int
    hint: int = 0  # Not accepted: agreement can only be at or before this index, whose term is
    hint_term: int = 0
    applied: int = 0


@dataclass(slots=True)
class Heartbeat:
    sender: str
    to: str
    term: int
    commit: int


@dataclass(slots=True)
class HeartbeatResponse:
    sender: str
    to: str
    term: int
    applied: int = 0


@dataclass(slots=True)
class Applied:
    """A follower's state machine has got this far: said without being asked, so that nobody waits for a heartbeat."""

    sender: str
    to: str
    term: int
    applied: int


@dataclass(slots=True)
class SnapshotChunk:
    """A piece of the leader's snapshot. The machine leaves the last three for its shell to fill in from the disk."""

    sender: str
    to: str
    term: int
    meta: SnapshotMeta
    offset: int
    total: int = 0
    checksum: int = 0  # CRC-32 of the whole data.
    data: bytes = b""


@dataclass(slots=True)
class SnapshotResponse:
    """So many bytes of that snapshot are here; go on from there."""

    sender: str
    to: str
    term: int
    index: int
    received: int


@dataclass(slots=True)
class TimeoutNow:
    """Stand for election at once: the leader hands over."""

    sender: str
    to: str
    term: int


FromLeader = Append | Heartbeat | SnapshotChunk
ToLeader = AppendResponse | HeartbeatResponse | Applied | SnapshotResponse
Message = VoteRequest | VoteResponse | FromLeader | ToLeader | TimeoutNow


class Outbox:
    """Messages on their way out of a machine."""

    __slots__ = ("chunks", "early", "later")

    def __init__(self) -> None:
        self.early: list[Message] = []  # Promise nothing about the sender's disk.
        self.later: list[Message] = []  # True only once what is in memory now is on disk.
        self.chunks: list[SnapshotChunk] = []  # To be filled in.
