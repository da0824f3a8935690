"""The log of one Raft node as it is in memory: entries after some index, and what is known about them.

    offset      the last index whose entry is gone (compacted); its term is kept
    stable      the last index known to be on this node's disk
    commit      the last index known to be committed
    last_index

`offset <= commit <= last_index`; `stable` may lie on either side of `commit`: a leader's own disk may be the slowest.

A membership is in force from the moment its entry is *appended*, and no longer when that entry is truncated. So those
that entries of this log brought are kept with their indexes, and one older than all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from leveret.raft.membership import Membership, decode_membership
from leveret.raft.messages import Entry, Kind, SnapshotMeta


@dataclass(frozen=True, slots=True)
class Placed:
    """A membership and the index of the entry that brought it."""

    index: int
    membership: Membership


class EntryLog:
    def __init__(self, snapshot: SnapshotMeta, entries: Sequence[Entry], commit: int) -> None:
        self.offset, self.offset_term = snapshot.index, snapshot.term
        self.last_index = snapshot.index
        self.entries: list[Entry] = []
        self.memberships = [Placed(snapshot.index, snapshot.membership)]
        self.extend([entry for entry in entries if entry.index > snapshot.index])
        self.stable = self.last_index
        self.commit = max(snapshot.index, commit)
        assert self.commit <= self.last_index  # What was committed was on this disk before it was called so.

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.offset_term

    @property
    def membership(self) -> Membership:
        return self.memberships[-1].membership

    @property
    def is_membership_committed(self) -> bool:
        return self.memberships[-1].index <= self.commit

    @property
    def agreed(self) -> Placed:
        """The newest membership that is committed."""
        return self.memberships[bisect_right(self.memberships, self.commit, key=lambda placed: placed.index) - 1]

    def term_at(self, index: int) -> int | None:
        """None if the entry is compacted, or not there yet."""
        position = index - self.offset
        if position > 0:
            return self.entries[position - 1].term if position <= len(self.entries) else None
        return self.offset_term if position == 0 else None

    def membership_at(self, index: int) -> Membership:
        position = bisect_right(self.memberships, index, key=lambda placed: placed.index)
        return self.memberships[position - 1].membership

    def between(self, after: int, through: int) -> list[Entry]:
        """The entries after one index, up to another."""
        return self.entries[after - self.offset : through - self.offset]

    def limited(self, after: int, count_max: int, bytes_max: int) -> tuple[list[Entry], int]:
        """The entries after an index, as many as allowed but at least one, and the bytes in them."""
        start = after - self.offset
        entries = self.entries[start : start + count_max]
        total = 0
        for count, entry in enumerate(entries):
            total += len(entry.data)
            if total > bytes_max and count:
                return entries[:count], total - len(entry.data)
        return entries, total

    def extend(self, entries: Sequence[Entry]) -> None:
        for position, entry in enumerate(entries, self.last_index + 1):
            assert entry.index == position  # No holes.
            if entry.kind is Kind.MEMBERSHIP:
                self.memberships.append(Placed(entry.index, decode_membership(entry.data)))
        self.entries += entries
        self.last_index += len(entries)

    def truncate(self, first: int) -> None:
        """Drop the entries from an index on."""
        assert first > self.commit  # What is committed is never taken back.
        del self.entries[first - self.offset - 1 :]
        self.last_index = first - 1
        while self.memberships[-1].index >= first:
            self.memberships.pop()
        # Whatever the disk has from there on is no longer this log, even if a write of it is still under way.
        self.stable = min(self.stable, first - 1)

    def on_stable(self, written: Sequence[Entry]) -> None:
        """These are on disk. Some may have been truncated or replaced meanwhile."""
        for entry in reversed(written):
            if self.term_at(entry.index) == entry.term:
                # One index and term is one entry, with the same entries before it.
                self.stable = max(self.stable, entry.index)
                return

    def commit_to(self, index: int) -> bool:
        assert index <= self.last_index
        if index <= self.commit:
            return False
        self.commit = index
        return True

    def agreement(self, index: int, term: int) -> tuple[int, int]:
        """The last index up to the given one whose term is not above the given one, and its term.

        Where another log has `term` at `index`, the two can only agree here or earlier: terms never fall in a log.
        """
        index = min(index, self.last_index)
        while index > self.offset and self.entries[index - self.offset - 1].term > term:
            index -= 1
        return max(index, self.offset), self.term_at(index) or 0

    def restore(self, meta: SnapshotMeta) -> None:
        """Begin anew after a snapshot that this log does not lead up to."""
        self.entries = []
        self.offset, self.offset_term = meta.index, meta.term
        self.stable = self.commit = self.last_index = meta.index
        self.memberships = [Placed(meta.index, meta.membership)]

    def compact(self, through: int) -> None:
        """Forget the entries up to an index."""
        term = self.term_at(through)
        assert term is not None and through <= min(self.commit, self.stable)
        del self.entries[: through - self.offset]
        self.offset, self.offset_term = through, term
        first = bisect_right(self.memberships, through, key=lambda placed: placed.index) - 1
        del self.memberships[:first]
