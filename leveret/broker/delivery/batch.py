"""Messages of one queue in memory, and the two ways in which they wait.

Messages are handled in the bundles in which they came, never one by one: a `Batch` owns the contents, a `Span` says
which of a batch are waiting, a `Gap` stands for waiting messages whose contents are only in the log. A backlog of ten
million is one gap.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Self

from leveret.storage.format.queue_block import EXPIRES, PASSING, PERSISTENT, REDELIVERED, Run

if TYPE_CHECKING:
    from leveret.base.range_set import RangeSet
    from leveret.broker.queue.host import Host

_INDEX = itemgetter(0)
PIECES_MAX = 8  # Of a span that is forgotten: each becomes a gap, and is read back by itself.
MESSAGE_OVERHEAD = 56  # What a message costs in memory besides its bytes: the object's head, its places in lists.
SHARED_BYTES_MIN = 1 << 16  # Of a bundle, in all its queues.
PLACE_BYTES = 24  # Of that, the places: where several queues have one object, each has places for it.


class Shared:
    """The bytes of contents that go to several queues: one object each, counted once by the host.

    They count from the publish on until no batch refers to this any longer, however the queues came to let go of them.
    The bytes themselves live and die the same way.
    """

    __slots__ = ("contents", "host", "size", "unlogged_bytes")

    def __init__(self, host: Host, contents: list[bytes], size: int) -> None:
        """`size`: with `MESSAGE_OVERHEAD` for each, as everywhere."""
        self.host = host
        self.contents: list[bytes] | None = contents  # While they are being handed to the queues.
        self.size = self.unlogged_bytes = size - PLACE_BYTES * len(contents)
        host.content_bytes += self.size

    def __del__(self) -> None:
        self.host.content_bytes -= self.size

    def end(self) -> None:
        """Note that all queues have been handed the contents."""
        self.contents = self.host.sharing = None

    def take_unlogged(self) -> int:
        """Take the bytes of content that wait for the log; one of the queues counts them."""
        size, self.unlogged_bytes = self.unlogged_bytes, 0
        return size


def begin_sharing(host: Host, contents: list[bytes], size: int, queues: int) -> Shared | None:
    """Contents are about to be handed to so many queues. Where that is little, it may count for each of them."""
    if queues == 1 or size * queues < SHARED_BYTES_MIN:
        return None
    shared = host.sharing = Shared(host, contents, size)
    return shared


class Batch(Run):
    """Contents that came together. Grows until its block is taken for the log; afterwards only `kinds` change."""

    __slots__ = (
        "all_logged", "carried", "expires", "gone", "left", "logged", "paged", "redelivered", "shared_bytes", "shares",
        "size", "stamped", "stored", "thinned", "unlogged_bytes",
    )  # fmt: skip

    def __init__(self, first: int) -> None:
        super().__init__(first, [], [], bytearray())
        self.left = 0  # Messages that are neither settled nor paged out.
        self.size = 0  # Bytes of content held for them; 0 again once none is left.
        self.shared_bytes = 0  # Of the size, what `shares` count for all queues together.
        self.shares: list[Shared] | None = None
        self.gone = 0  # How many at the beginning `size` does not count, because none was left and then more came.
        self.unlogged_bytes = 0  # Of the size, what its queue's host counts as waiting for the log.
        self.stored = False  # At least one of them goes to the log.
        self.carried = False  # None does, and the batch stays open after its turn: see `Queue.close_batch`.
        self.logged = False  # The persistent ones are in the log, synced.
        self.all_logged = False  # And there are no others: memory may forget the contents.
        self.paged = False  # Memory has forgotten them.
        self.thinned = False  # Memory has forgotten some of them, and `contents` is a list of its own: see `blank`.
        self.redelivered = False  # Some of `kinds` say so.
        self.stamped = 0  # How many of them `times` tells of.
        self.expires = False  # Some have a time to live of their own.

    @classmethod
    def loaded(cls, run: Run) -> Self:
        """A batch read back from the log."""
        batch = cls(run.first)
        batch._take_run(run)
        return batch

    @classmethod
    def unread(cls, first: int, count: int) -> Self:
        """A batch whose contents only the log has."""
        batch = cls(first)
        batch._take_count(count)
        return batch

    def _take_run(self, run: Run) -> None:
        self.contents, self.keys, self.kinds = run.contents, run.keys, run.kinds
        self.left = len(run.contents)
        self.size = sum(map(len, run.contents)) + MESSAGE_OVERHEAD * self.left
        self.mark_stored()
        kinds = set(run.kinds)
        self.redelivered = any(kind & REDELIVERED for kind in kinds)
        self.expires = any(kind & EXPIRES for kind in kinds)
        self.times, self.stamped = run.times, self.left

    def _take_count(self, count: int) -> None:
        self.left, self.kinds, self.paged = count, bytearray(count), True
        self.mark_stored()

    def mark_stored(self) -> None:
        """Note that the log has all of them, synced."""
        self.stored = self.logged = self.all_logged = True

    def mark_logged(self, all_logged: bool = True) -> None:
        """Note that the log has those that go there, synced, and whether these are all."""
        self.logged, self.all_logged = True, all_logged

    def mark_unlogged(self) -> None:
        """Note that the contents cannot be read back from the log, so that memory must keep them."""
        self.logged = self.all_logged = False

    def forget_contents(self) -> None:
        """Drop the contents, which the log has."""
        self.paged = True
        self.contents, self.keys = [], []

    def blank(self, lo: int, hi: int) -> None:
        """Drop some of the contents. Others may have the list, such as a block that is to be sent to a mirror."""
        if not self.thinned:
            self.thinned, self.contents = True, self.contents[:]
        self.contents[lo:hi] = [b""] * (hi - lo)

    def stamp(self, now_ms: int) -> None:
        """Give messages that came since the last call this time."""
        times = self.times
        count = len(self.contents)
        if not times:
            times.append((0, now_ms))
        elif self.stamped < count and times[-1][1] != now_ms:
            times.append((self.stamped, now_ms))
        self.stamped = count

    def time_at(self, at: int) -> tuple[int, int]:
        """Return when message `at` came, and the index before which others came then. It must have been stamped."""
        times = self.times
        following = bisect_right(times, at, key=_INDEX)
        end = times[following][0] if following < len(times) else len(self.contents)
        return times[following - 1][1], end

    def average_bytes(self) -> int:
        return self.size // (len(self.contents) - self.gone) or 1

    def note_kind(self, kind: int, count: int) -> int:
        """Note the flags of the last `count` messages for the whole batch; return the flags to keep with each."""
        self.redelivered |= kind & REDELIVERED > 0
        self.expires |= kind & EXPIRES > 0
        if kind & PASSING:
            kind &= ~PASSING
            self.kinds[-count:] = bytes((kind,)) * count
        return kind

    def is_marked(self, at: int) -> bool:
        """Tell whether this message is marked as redelivered."""
        return self.redelivered and self.kinds[at] & REDELIVERED != 0

    def mark_redelivered(self, lo: int, hi: int) -> None:
        kinds = self.kinds
        self.redelivered = True
        for at in range(lo, hi):
            kinds[at] |= REDELIVERED

    def unmark(self, lo: int, hi: int) -> None:
        for at in range(lo, hi):
            self.kinds[at] &= ~REDELIVERED

    def redelivered_within(self, lo: int, hi: int) -> int:
        """Return how many of these messages are marked as redelivered."""
        return sum([kind & REDELIVERED != 0 for kind in self.kinds[lo:hi]])

    def all_persistent(self) -> bool:
        return all(kind & PERSISTENT for kind in set(self.kinds))

    def transient_runs(self, lo: int, hi: int) -> list[Run]:
        """The messages of `lo`..`hi - 1` that the log does not have, as runs."""
        runs: list[Run] = []
        start = lo
        while start < hi:
            wanted = not self.kinds[start] & PERSISTENT
            end = start + 1
            while end < hi and (not self.kinds[end] & PERSISTENT) == wanted:
                end += 1
            if wanted:
                runs.append(self.cut(start, end))
            start = end
        return runs


class Span:
    """The messages `lo` to `hi - 1` of a batch, waiting for a consumer."""

    __slots__ = ("batch", "hi", "lo")

    def __init__(self, batch: Batch, lo: int, hi: int) -> None:
        self.batch = batch
        self.lo = lo
        self.hi = hi

    @property
    def first(self) -> int:
        return self.batch.first + self.lo

    @property
    def last(self) -> int:
        return self.batch.first + self.hi - 1

    @property
    def count(self) -> int:
        return self.hi - self.lo

    def alike(self) -> list[Span]:
        """Its pieces, in each of which either all messages were given out before or none. A piece that becomes a gap
        can say so. Where they would be too many, all messages count as given out: a mark too much does no harm."""
        batch, lo, hi = self.batch, self.lo, self.hi
        if not batch.redelivered:
            return [self]
        marks = [kind & REDELIVERED for kind in batch.kinds[lo:hi]]
        ends = [lo + at for at in range(1, hi - lo) if marks[at] != marks[at - 1]]
        if len(ends) >= PIECES_MAX:
            batch.mark_redelivered(lo, hi)
            return [self]
        return [Span(batch, start, end) for start, end in pairwise((lo, *ends, hi))]


class Gap:
    """`count` waiting messages within `first`..`last` whose contents are in the log only.

    Every message that the log holds within these bounds waits here; none of them is out with a consumer. Unless it has
    `ranges`: then just these.
    """

    __slots__ = ("body_bytes", "count", "first", "last", "ranges", "redelivered")

    def __init__(
        self, first: int, last: int, count: int, redelivered: bool = False, ranges: RangeSet | None = None
    ) -> None:
        self.first = first
        self.last = last
        self.count = count
        self.body_bytes = 0  # Of their bodies, as far as somebody counts them.
        self.redelivered = redelivered  # All of them were with a consumer, which the log may not know yet.
        self.ranges = ranges  # Of a queue with priorities: see `levels`.


class GapRead:
    """A read of the beginning of a gap from the log, as the gap was when the read began.

    The gap may have lost messages when the read ends, and another read of it may have begun: the queue ignores all but
    the one that it waits for (`OrderedQueue.loading`).
    """

    __slots__ = ("first", "gap", "last")

    def __init__(self, gap: Gap) -> None:
        self.gap = gap
        self.first = gap.first
        self.last = gap.last
