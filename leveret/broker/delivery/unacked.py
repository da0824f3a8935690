"""The deliveries of one channel that wait for an acknowledgement, in order of their tags.

Deliveries are kept as they were made, in bundles: one `Delivered` covers consecutive tags of consecutive messages. An
ack of "all up to here" takes whole bundles off the front; an ack of one tag in the middle cuts its bundle in two. So
the cost is per bundle for the consumers that go with the flow, and a binary search for those that do not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from leveret.base.shared_values import NO_LIST
from leveret.broker.delivery.batch import Batch

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.consumer import Consumer

FIRST_TAG = attrgetter("first_tag")
AGE_MS = 1_000  # What is in one entry was delivered within this time.
COMPACT_AT = 256  # Taken entries at the front that are carried along before the list is cut.


class Delivered:
    """Tags `first_tag`..`last_tag`, given to messages `lo`, `lo + 1`, … of a batch."""

    __slots__ = ("at_ms", "batch", "consumer", "first_tag", "last_tag", "lo", "queue")

    def __init__(
        self,
        first_tag: int,
        last_tag: int,
        queue: AnyQueue,
        consumer: Consumer | None,
        batch: Batch,
        lo: int,
        at_ms: int,
    ) -> None:
        self.first_tag = first_tag
        self.last_tag = last_tag
        self.queue = queue
        self.consumer = consumer  # None: it was fetched with basic.get.
        self.batch = batch
        self.lo = lo
        self.at_ms = at_ms  # When the first of them was delivered.

    def move_to(self, queue: AnyQueue, batch: Batch) -> None:
        """Have another object settle these messages."""
        self.queue, self.batch = queue, batch

    def forget_consumer(self) -> None:
        self.consumer = None

    @property
    def hi(self) -> int:
        return self.lo + self.last_tag - self.first_tag + 1

    @property
    def count(self) -> int:
        return self.last_tag - self.first_tag + 1

    def cut(self, first_tag: int, last_tag: int) -> Delivered:
        lo = self.lo + first_tag - self.first_tag
        return Delivered(first_tag, last_tag, self.queue, self.consumer, self.batch, lo, self.at_ms)


class Unacked:
    """All `Delivered` of a channel. `count` is the number of messages."""

    __slots__ = ("aside", "count", "entries", "head")

    def __init__(self) -> None:
        self.entries: list[Delivered] = []
        self.aside: list[Delivered] = NO_LIST  # Taken by acks that a transaction has not committed: still out.
        self.head = 0  # Entries before this one are gone.
        self.count = 0

    def __iter__(self) -> Iterator[Delivered]:
        return iter(self.entries[self.head :])

    def all_out(self) -> Iterator[Delivered]:
        """Yield all unacknowledged deliveries, also those that are set aside."""
        return chain(self, self.aside) if self.aside else iter(self)

    def set_aside(self, taken: list[Delivered]) -> None:
        if not self.aside:
            self.aside = []
        self.aside += taken

    def put_back(self) -> None:
        """Take back what was set aside."""
        if self.aside:
            self.count += sum([one.count for one in self.aside])
            self.entries, self.head = sorted(chain(self, self.aside), key=FIRST_TAG), 0
            self.aside = NO_LIST

    def forget_aside(self) -> None:
        self.aside = NO_LIST

    def add(
        self, first_tag: int, count: int, queue: AnyQueue, consumer: Consumer | None, batch: Batch, lo: int, at_ms: int
    ) -> None:
        entries = self.entries
        self.count += count
        if len(entries) > self.head:
            last = entries[-1]
            if (
                last.batch is batch
                and last.consumer is consumer
                and last.last_tag + 1 == first_tag
                and last.lo + first_tag - last.first_tag == lo
                and at_ms - last.at_ms < AGE_MS
            ):
                last.last_tag += count
                return
        entries.append(Delivered(first_tag, first_tag + count - 1, queue, consumer, batch, lo, at_ms))

    def oldest_ms(self) -> int | None:
        """Since when the oldest of them waits."""
        return self.entries[self.head].at_ms if self.head < len(self.entries) else None

    def take_all(self) -> list[Delivered]:
        taken = self.entries[self.head :]
        self.entries, self.head, self.count = [], 0, 0
        return taken

    def take_through(self, tag: int) -> list[Delivered] | None:
        """Everything up to and with `tag`, oldest first; None if no delivery has that tag."""
        entries, head = self.entries, self.head
        at = self._find(tag)
        if at < 0:
            return None
        entry = entries[at]
        taken = entries[head:at]
        if entry.last_tag == tag:
            taken.append(entry)
            at += 1
        else:
            taken.append(entry.cut(entry.first_tag, tag))
            entries[at] = entry.cut(tag + 1, entry.last_tag)
        self.head = at
        self.count -= sum([one.last_tag - one.first_tag + 1 for one in taken])
        if at >= COMPACT_AT or 2 * at >= len(entries):  # What is taken must not keep its batch alive for long.
            del entries[:at]
            self.head = 0
        return taken

    def take_one(self, tag: int) -> Delivered | None:
        """Just the delivery with `tag`; None if there is none."""
        entries = self.entries
        at = self._find(tag)
        if at < 0:
            return None
        entry = entries[at]
        self.count -= 1
        if entry.first_tag == entry.last_tag:
            if at == self.head:
                self.head += 1
                if self.head >= COMPACT_AT or 2 * self.head >= len(entries):
                    del entries[: self.head]
                    self.head = 0
            else:
                del entries[at]
            return entry
        if tag == entry.first_tag:
            entry.first_tag += 1
            entry.lo += 1
            return Delivered(tag, tag, entry.queue, entry.consumer, entry.batch, entry.lo - 1, entry.at_ms)
        taken = entry.cut(tag, tag)
        if tag < entry.last_tag:
            entries.insert(at + 1, entry.cut(tag + 1, entry.last_tag))
        entry.last_tag = tag - 1
        return taken

    def take_range(self, first: int, last: int) -> list[Delivered]:
        """Deliveries with tags `first`..`last`, oldest first; tags that are not out are passed over."""
        entries = self.entries
        if self.head < len(entries) and entries[self.head].first_tag == first and self._find(last) >= 0:
            return self.take_through(last) or []  # Nothing older is out: the common case.
        # Somebody else may hold very many that are older: these are not even looked at.
        start = bisect_right(entries, first, lo=self.head, key=FIRST_TAG)
        if start > self.head and entries[start - 1].last_tag >= first:
            start -= 1
        taken: list[Delivered] = []
        rest: list[Delivered] = []
        end = start
        while end < len(entries) and entries[end].first_tag <= last:
            entry = entries[end]
            low, high = max(first, entry.first_tag), min(last, entry.last_tag)
            taken.append(entry.cut(low, high))
            if low > entry.first_tag:
                rest.append(entry.cut(entry.first_tag, low - 1))
            if high < entry.last_tag:
                rest.append(entry.cut(high + 1, entry.last_tag))
            self.count -= high - low + 1
            end += 1
        entries[start:end] = rest
        return taken

    def _find(self, tag: int) -> int:
        entries, head = self.entries, self.head
        if head < len(entries) and entries[head].first_tag <= tag <= entries[head].last_tag:
            return head
        at = bisect_right(entries, tag, lo=head, key=FIRST_TAG) - 1
        if at >= head and entries[at].first_tag <= tag <= entries[at].last_tag:
            return at
        return -1
