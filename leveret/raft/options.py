"""Timeouts and limits of a Raft node."""

from __future__ import annotations

from dataclasses import dataclass

from leveret.raft.messages import CHUNK_BYTES_MAX, ENTRIES_MAX, ENTRY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Options:
    """Timeouts in ticks, and limits."""

    election_ticks: int = 10  # Silence of the leader before an election; up to twice as long, at random.
    heartbeat_ticks: int = 1
    append_entries_max: int = 1024  # In one message. An entry larger than `append_bytes_max` is sent alone.
    append_bytes_max: int = 1 << 20
    inflight_max: int = 64  # Unanswered messages with entries to one follower.
    inflight_bytes_max: int = 16 << 20
    uncommitted_max: int = 65_536  # Entries of a leader that are not committed; more proposals are refused.
    uncommitted_bytes_max: int = 64 << 20
    committed_max: int = 4096  # Entries in one Ready to be applied.
    committed_bytes_max: int = 16 << 20
    chunk_bytes: int = 1 << 20
    snapshot_ticks: int = 30  # Without an answer before the snapshot is tried again.
    snapshot_bytes_max: int = 1 << 30
    promote_lag_max: int = 1024  # Entries that a learner may lack and still become a voter.

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_ticks < self.election_ticks:
            raise ValueError("heartbeats must be more frequent than elections")
        if not 0 < self.chunk_bytes <= CHUNK_BYTES_MAX:
            raise ValueError(f"a chunk has 1 to {CHUNK_BYTES_MAX} bytes")
        if self.append_entries_max > ENTRIES_MAX or self.append_bytes_max > ENTRY_BYTES_MAX:
            raise ValueError(f"a message has at most {ENTRIES_MAX} entries with {ENTRY_BYTES_MAX} bytes")
        for name in ("append_entries_max", "inflight_max", "uncommitted_max", "committed_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
