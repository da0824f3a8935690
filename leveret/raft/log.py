"""The log of a Raft node in memory: the entries after some index, and how far they are durable and committed.

    offset      the last index whose entry is gone (compacted); its term is kept
    stable      the last index known to be on this node's disk
    commit      the last index known to be committed
    last_index

`offset <= commit <= last_index`; `stable` may lie on either side of `commit`: a leader's own disk may be the slowest.

A membership is in force from the moment its entry is *appended* until that entry is truncated. So all memberships in
this log are kept with their indexes, and the one that was in force before them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from leveret.raft.membership import Membership, decode_membership
from leveret.raft.messages import Entry, Kind, SnapshotMeta


@dataclass(frozen=True, slots=True)
class Placed:
    """A membership and the index of its entry."""

    index: int
    membership: Membership


class EntryLog:
    """The entries of a Raft node after its snapshot, with the memberships among them."""

    def __init__(self, snapshot: SnapshotMeta, entries: Sequence[Entry], commit: int) -> None:
        self.offset, self.offset_term = snapshot.index, snapshot.term
        self.last_index = snapshot.index
        self.entries: list[Entry] = []
        self.memberships = [Placed(snapshot.index, snapshot.membership)]
        self.extend([entry for entry in entries if entry.index > snapshot.index])
        self.stable = self.last_index
        self.commit = max(snapshot.index, commit)
        assert self.commit <= self.last_index  # A committed entry was on this disk first.

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
        """Return the term of an entry; None if it is compacted or not there yet."""
        position = index - self.offset
        if position > 0:
            return self.entries[position - 1].term if position <= len(self.entries) else None
        return self.offset_term if position == 0 else None

    def membership_at(self, index: int) -> Membership:
        position = bisect_right(self.memberships, index, key=lambda placed: placed.index)
        return self.memberships[position - 1].membership

    def between(self, after: int, through: int) -> list[Entry]:
        """Return the entries after one index, up to another."""
        return self.entries[after - self.offset : through - self.offset]

    def limited(self, after: int, count_max: int, bytes_max: int) -> tuple[list[Entry], int]:
        """Return the entries after an index, as many as allowed but at least one, and their size."""
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
        assert first > self.commit  # Committed entries are never dropped.
        del self.entries[first - self.offset - 1 :]
        self.last_index = first - 1
        while self.memberships[-1].index >= first:
            self.memberships.pop()
        # Later entries on disk are void, even those of a write that is still under way.
        self.stable = min(self.stable, first - 1)

    def on_stable(self, written: Sequence[Entry]) -> None:
        """Note that entries are on disk. Some may have been truncated or replaced meanwhile."""
        for entry in reversed(written):
            if self.term_at(entry.index) == entry.term:
                # The same index and term mean the same entry, with the same entries before it.
                self.stable = max(self.stable, entry.index)
                return

    def commit_to(self, index: int) -> bool:
        assert index <= self.last_index
        if index <= self.commit:
            return False
        self.commit = index
        return True

    def agreement(self, index: int, term: int) -> tuple[int, int]:
        """Return the last index up to the given one whose term is not above the given one, and its term.

        A log that has `term` at `index` can agree with this one there or earlier only: terms never fall in a log.
        """
        index = min(index, self.last_index)
        while index > self.offset and self.entries[index - self.offset - 1].term > term:
            index -= 1
        return max(index, self.offset), self.term_at(index) or 0

    def restore(self, meta: SnapshotMeta) -> None:
        """Start again after a snapshot that is ahead of this log."""
        self.entries = []
        self.offset, self.offset_term = meta.index, meta.term
        self.stable = self.commit = self.last_index = meta.index
        self.memberships = [Placed(meta.index, meta.membership)]

    def compact(self, through: int) -> None:
        """Drop the entries up to an index."""
        term = self.term_at(through)
        assert term is not None and through <= min(self.commit, self.stable)
        del self.entries[: through - self.offset]
        self.offset, self.offset_term = through, term
        first = bisect_right(self.memberships, through, key=lambda placed: placed.index) - 1
        del self.memberships[:first]
