"""The entries and state that Raft nodes store, and the messages that they send to each other.

Every message has a sender, a receiver and the sender's term. Only the messages of a pre-vote carry another term: the
one that the sender would have as a candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from leveret.raft.membership import NOBODY, Membership

ENTRY_BYTES_MAX: Final = 16 * 1024 * 1024 + 64 * 1024  # The largest metadata command and its envelope.
ENTRIES_MAX: Final = 65_536  # In one message.
CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024


class Kind(IntEnum):
    """The kind of an entry."""

    NOOP = 0  # A new leader's first: older entries are committed only with one of its own term.
    COMMAND = 1
    MEMBERSHIP = 2


@dataclass(slots=True)
class Entry:
    """An entry of the log. It is never changed; a frozen dataclass would take three times as long to make."""

    index: int
    term: int
    kind: Kind
    data: bytes


class HardState(NamedTuple):
    """The term and the vote, which must be on disk before any other node is told."""

    term: int = 0
    vote: str | None = None


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """The position of a snapshot: it replaces all entries up to `index`, whose term is `term`."""

    index: int = 0
    term: int = 0
    membership: Membership = NOBODY


NO_STATE: Final = HardState()
NO_SNAPSHOT: Final = SnapshotMeta()


class Snapshot(NamedTuple):
    """A snapshot of the state machine with its position."""

    meta: SnapshotMeta
    data: bytes


@dataclass(slots=True)
class VoteRequest:
    sender: str
    to: str
    term: int
    pre: bool  # Pre-vote: only asks whether the receiver would vote for the sender.
    last_index: int
    last_term: int
    forced: bool = False  # The leader asked for this election, so its lease is no reason to refuse.


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
    prev_index: int  # The index of the entry before `entries`.
    prev_term: int
    commit: int
    entries: Sequence[Entry] = ()


@dataclass(slots=True)
class AppendResponse:
    """The answer to an append. If accepted, the sender has all entries up to `index` on disk. Otherwise `index` is the
    `prev_index` that its log lacks."""

    sender: str
    to: str
    term: int
    accepted: bool
    index: int
    hint: int = 0  # If not accepted: the logs can agree up to this index at most.
    hint_term: int = 0  # The term of the entry at `hint`.
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
    """Tells the leader how far a follower has applied, without waiting for a heartbeat to answer."""

    sender: str
    to: str
    term: int
    applied: int


@dataclass(slots=True)
class SnapshotChunk:
    """A chunk of the leader's snapshot. The shell fills in the last three fields from the disk."""

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
    """Tells the leader how many bytes of a snapshot have arrived; it continues from there."""

    sender: str
    to: str
    term: int
    index: int
    received: int


@dataclass(slots=True)
class TimeoutNow:
    """Asks the receiver to stand for election at once: the leader hands over."""

    sender: str
    to: str
    term: int


FromLeader = Append | Heartbeat | SnapshotChunk
ToLeader = AppendResponse | HeartbeatResponse | Applied | SnapshotResponse
Message = VoteRequest | VoteResponse | FromLeader | ToLeader | TimeoutNow


class Outbox:
    """The messages that a machine has made since the last Ready."""

    __slots__ = ("chunks", "early", "later")

    def __init__(self) -> None:
        self.early: list[Message] = []  # These promise nothing about the sender's disk.
        self.later: list[Message] = []  # These may leave only when all that precedes them is on disk.
        self.chunks: list[SnapshotChunk] = []  # To be filled in by the shell.
