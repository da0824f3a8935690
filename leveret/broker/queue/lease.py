"""One lease as its queue knows it, and its bytes. What is done with leases: `leases`."""

from __future__ import annotations

from bisect import bisect_right
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.base.range_set import RangeSet, merged
from leveret.storage.format.errors import FormatError

if TYPE_CHECKING:
    from leveret.broker.delivery.batch import Batch

PREFIX: Final = b"lease:"
OWNER: Final = b"lease-owner:"  # A mark of its own: what was written before leases had owners is read as ever.
NAME_BYTES_MAX: Final = 128
OWNER_BYTES_MAX: Final = 64
TIMEOUT_MS: Final = 24 * 3600 * 1000
HEAD: Final = Struct("<QQQQQ")  # acked, next, top, timeout (0: closed), touched
RUN_BYTES_MAX: Final = 30  # Three numbers, at their longest.


class LeaseView(NamedTuple):
    """A lease as listings show it."""

    name: str
    acked: int  # Places below are gone.
    next: int  # Places below were given.
    runs: list[tuple[int, int, int]]  # What is out, by places: the place of the first, first and last number.
    timeout_ms: int
    touched_ms: int  # When it was last used, by the wall clock.
    owner: str = ""  # Who alone may take and acknowledge; "": whoever knows its name.

    @property
    def out(self) -> int:
        """Return the number of leased messages."""
        return sum(last - first + 1 for _, first, last in self.runs)


class Lease:
    __slots__ = (
        "acked", "held", "lost", "name", "next", "noted_ms", "owner", "runs", "shown", "timeout_ms", "top",
        "touched_ms", "waiting_answers",
    )  # fmt: skip

    def __init__(self, name: str) -> None:
        self.name = name
        self.owner = ""
        self.acked = 0
        self.next = 0
        self.top = 0  # The highest number that it ever had.
        self.runs: list[tuple[int, int, int]] = []  # Ascending places, each with its first and last number.
        self.lost = RangeSet()  # Of these numbers, those of which nothing is left.
        self.timeout_ms = TIMEOUT_MS
        self.touched_ms = 0
        self.noted_ms = 0  # What of it the log knows.
        self.held: list[tuple[Batch, int, int]] = []  # Of what is out, what only memory has.
        self.shown: LeaseView | None = None  # What is safe.
        self.waiting_answers = 0  # Answers that wait until it is safer.

    @property
    def key(self) -> bytes:
        return PREFIX + self.name.encode()

    @property
    def owner_key(self) -> bytes:
        return OWNER + self.name.encode()

    def view(self) -> LeaseView:
        runs = list(self.runs)
        return LeaseView(self.name, self.acked, self.next, runs, self.timeout_ms, self.touched_ms, self.owner)

    def add(self, first: int, last: int) -> None:
        """These messages get the next places."""
        place, self.next = self.next, self.next + last - first + 1
        self.top = max(self.top, last)
        if self.runs:
            before, low, high = self.runs[-1]
            if high + 1 == first and before + high - low + 1 == place:
                self.runs[-1] = (before, low, last)
                return
        self.runs.append((place, first, last))

    def cut(self, through: int) -> list[tuple[int, int]]:
        """Take out the places below; gives their numbers."""
        gone: list[tuple[int, int]] = []
        kept: list[tuple[int, int, int]] = []
        for place, first, last in self.runs:
            count = min(max(through - place, 0), last - first + 1)
            if count:
                gone.append((first, first + count - 1))
            if first + count <= last:
                kept.append((place + count, first + count, last))
        self.runs, self.acked = kept, max(self.acked, through)
        return gone

    def numbers(self) -> list[tuple[int, int]]:
        return merged([(first, last) for _, first, last in self.runs])

    def alive(self) -> RangeSet:
        """The numbers of what is out, as far as there is something left of it."""
        numbers = RangeSet(self.numbers())
        for first, last in self.lost:
            numbers.remove(first, last)
        return numbers

    def take_held(self, gone: RangeSet) -> list[tuple[Batch, int, int]]:
        """Take those of these messages that are only in memory."""
        taken: list[tuple[Batch, int, int]] = []
        kept: list[tuple[Batch, int, int]] = []
        for batch, lo, hi in self.held:
            start = batch.first
            at = lo
            for low, high in gone.ranges(start + lo, start + hi - 1):
                if at < low - start:
                    kept.append((batch, at, low - start))
                at = high - start + 1
                taken.append((batch, low - start, at))
            if at < hi:
                kept.append((batch, at, hi))
        self.held = kept
        return taken


# -- Bytes ---------------------------------------------------------------------------------------------------------


def is_name(name: str) -> bool:
    try:
        return 1 <= len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        return False


def pack_lease(lease: Lease) -> bytes:
    """Runs are numbers of seven bits a byte: how many places and numbers lie between one and the next, and how long it
    is. Numbers need not ascend, where there are priorities."""
    parts = bytearray(HEAD.pack(lease.acked, lease.next, lease.top, lease.timeout_ms, lease.touched_ms))
    place, number = 0, 0
    for at, first, last in lease.runs:
        step = first - number
        for value in (at - place, step << 1 if step >= 0 else -step << 1 | 1, last - first):
            while value > 127:
                parts.append(value & 127 | 128)
                value >>= 7
            parts.append(value)
        place, number = at + last - first + 1, last + 1
    return bytes(parts)


def unpack_lease(name: str, data: bytes) -> Lease:
    """Raises FormatError."""
    if len(data) < HEAD.size or (len(data) > HEAD.size and data[-1] > 127):
        raise FormatError(f"lease {name!r} is cut off")
    lease = Lease(name)
    lease.acked, lease.next, lease.top, lease.timeout_ms, lease.touched_ms = HEAD.unpack_from(data)
    values: list[int] = []
    value = shift = 0
    for byte in data[HEAD.size :]:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(value)
            value = shift = 0
    if len(values) % 3:
        raise FormatError(f"lease {name!r} is cut off")
    place, number = 0, 0
    for gap, step, more in zip(values[::3], values[1::3], values[2::3], strict=True):
        place += gap
        number += -(step >> 1) if step & 1 else step >> 1
        lease.runs.append((place, number, number + more))
        place, number = place + more + 1, number + more + 1
    return lease


# -- Other numbers ---------------------------------------------------------------------------------------------------


class Numbering:
    """Maps the old numbers of messages to those that they got when they entered the queue again."""

    __slots__ = ("firsts", "pieces")

    def __init__(self, pieces: list[tuple[Batch, int, int]], first: int) -> None:
        self.pieces: list[tuple[int, int, int]] = []  # First and last number of before, first of now.
        for batch, lo, hi in pieces:
            self.pieces.append((batch.first + lo, batch.first + hi - 1, first))
            first += hi - lo
        self.pieces.sort()
        self.firsts = [piece[0] for piece in self.pieces]

    def translate(self, place: int, first: int, last: int) -> list[tuple[int, int, int]]:
        """A run of a lease. What was lost has no place there."""
        runs: list[tuple[int, int, int]] = []
        at = max(bisect_right(self.firsts, first) - 1, 0)
        while at < len(self.pieces) and self.pieces[at][0] <= last:
            low, high, new = self.pieces[at]
            start, end = max(low, first), min(high, last)
            at += 1
            if start > end:
                continue
            run = (place + start - first, new + start - low, new + end - low)
            if runs and (runs[-1][0] + run[1] - runs[-1][1], runs[-1][2] + 1) == run[:2]:
                runs[-1] = (runs[-1][0], runs[-1][1], run[2])
            else:
                runs.append(run)
        return runs
