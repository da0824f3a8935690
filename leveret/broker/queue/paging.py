"""What of a queue is in memory, and what only in the log.

Contents that the log has are forgotten when the node holds more than its cache allows, the newest first, for the oldest
are wanted next: a span becomes a gap, and gaps that touch become one. A gap at the front is read back in pieces. Where
memory is very short, transient messages are put into the log too, just to be forgotten.

The messages of a queue that were given back before the log knew of it are in a gap that says so itself.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import Batch, Gap, Span
from leveret.broker.queue import ttl_and_length
from leveret.broker.queue.local_queue import LocalQueue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.broker.queue.host import Host
    from leveret.metadata.model.records import QueueSpec
    from leveret.storage.format.queue_block import Run

KEEP_BYTES: Final = 1 << 18  # The front of a queue that stays in memory whatever the cache says.
SKIPPED_MAX: Final = 64  # Spans that cannot be forgotten now, after which looking for others is given up.


class Paging(LocalQueue):
    """A queue whose messages wait in order: forgets contents and reads them back."""

    __slots__ = ("loading", "ready", "ready_bytes", "timed")

    def __init__(self, spec: QueueSpec, host: Host) -> None:
        super().__init__(spec, host)
        self.ready: deque[Span | Gap] = deque()
        self.ready_bytes = 0  # Of their bodies; counted only where there is a limit to it.
        self.loading: Gap | None = None
        self.timed = False  # Its messages, or some of them, grow old.

    def page_out(self) -> None:
        """Forget contents that the log has, from the newest on, until memory is within its bounds."""
        ready, host = self.ready, self.host
        wants_disk = self.rules.wants_disk(self.ready_count, self.memory_bytes)
        bytes_max = 0 if wants_disk else host.content_bytes_max
        skipped: list[Span | Gap] = []
        while (
            ready
            and host.content_bytes > bytes_max
            and self.memory_bytes > KEEP_BYTES
            and len(skipped) < SKIPPED_MAX
        ):
            entry = ready.pop()
            if isinstance(entry, Span) and self._may_forget(entry):
                for piece in entry.alike():
                    self._forget(piece)
            else:
                skipped.append(entry)
        for entry in reversed(skipped):
            self._append_gap(entry) if isinstance(entry, Gap) else ready.append(entry)

    def _may_forget(self, span: Span) -> bool:
        batch, host = span.batch, self.host
        if batch.all_logged:
            return True
        if host.content_bytes <= host.spill_bytes_max or (batch.stored and not batch.logged):
            return False
        if batch is self.open:
            self.open = None  # It has nothing for the log; what comes next begins another.
        if self.durable:
            runs = batch.transient_runs(span.lo, span.hi)
        else:  # Whatever their kind, the log has none of them.
            runs = [batch.cut(span.lo, span.hi)]
        host.spill(self, runs)
        # From now on these are messages of the log like any other: their settling must be recorded.
        batch.stored = True
        return True

    def _forget(self, span: Span) -> None:
        batch = span.batch
        # The log learns with the next block that they were given back, and may be read before. What a master had given
        # out that is lost, the log of the next one does not know until that is started again.
        gap = Gap(span.first, span.last, span.count, batch.is_marked(span.lo))
        if self.rules.max_bytes is not None:
            gap.body_bytes = ttl_and_length.bodies(batch.contents[span.lo : span.hi])
        if batch.left == span.count:  # Else some are out with a consumer, and the contents stay for their sake.
            batch.paged = True
            batch.contents, batch.keys = [], []
        self._let_go(batch, span.count)
        self._append_gap(gap)

    def _append_gap(self, gap: Gap) -> None:
        """At the end of `ready`, as one with the gap before it where nothing lies between."""
        last = self.ready[-1] if self.ready else None
        touches = isinstance(last, Gap) and last.last + 1 == gap.first and last.redelivered == gap.redelivered
        if touches and gap is not self.loading:  # What is being read must be found again by `on_loaded`.
            assert isinstance(last, Gap)
            last.last = gap.last
            last.count += gap.count
            last.body_bytes += gap.body_bytes
        else:
            self.ready.append(gap)

    def watch_ages(self) -> None:
        """Some of its messages have times to live of their own."""
        self.timed = self.has_upkeep = True

    def count_bytes(self) -> None:
        """Counts the bodies of what waits anew, where there is a limit to them."""
        if self.rules.max_bytes is not None:
            self.ready_bytes = sum(map(ttl_and_length.entry_bytes, self.ready))

    def count_out(self, batch: Batch, lo: int, hi: int) -> None:
        """Counts messages that wait no longer. Somebody else has taken them out of `ready`."""
        self.ready_count -= hi - lo
        self.take_bytes(batch, lo, hi)

    def take_bytes(self, batch: Batch, lo: int, hi: int) -> None:
        """Counts the bodies of messages that wait no longer, where there is a limit to them."""
        if self.rules.max_bytes is not None:
            self.ready_bytes -= ttl_and_length.bodies(batch.contents[lo:hi])

    def stop_loading(self, gap: Gap) -> None:
        """Ignore the read of this gap that is under way, since some of its messages are gone; it is read again."""
        if self.loading is gap:
            self.loading = None

    def take_from_gap(self, gap: Gap, through: int, taken: int) -> None:
        """Nothing up to this number is in the first gap any longer. So many messages of it were taken; whatever else it
        was thought to have there, the log does not have."""
        self.ready_count -= taken
        if self.rules.max_bytes is not None:
            share = gap.body_bytes * taken // max(gap.count, 1)  # About; what is read is counted anew.
            gap.body_bytes -= share
            self.ready_bytes -= share
        if gap.ranges is not None:
            gap.ranges.remove(gap.first, through)
        following = gap.ranges.first if gap.ranges is not None else through + 1
        gap.count -= taken
        if through < gap.last and gap.count > 0 and following is not None:
            gap.first = following
            return
        self.ready_count -= gap.count
        self.ready_bytes -= gap.body_bytes
        gap.count = 0
        self.ready.popleft()

    def want(self, gap: Gap) -> None:
        """Have its beginning read back."""
        if self.loading is None:
            self.loading = gap
            self.host.load(self, gap)

    def on_loaded(self, gap: Gap, runs: list[Run], next_seq: int) -> None:
        """The beginning of a gap was read back: everything of it before `next_seq`."""
        if self.loading is not gap:
            return  # Purged meanwhile.
        self.refresh_rules()
        self.loading = None
        self._tell_loaded()
        at = self.ready.index(gap)
        del self.ready[at]
        count = 0
        for run in runs:
            batch = Batch.loaded(run)
            if gap.redelivered:
                batch.mark_redelivered(0, batch.left)
            if batch.expires:
                self.watch_ages()
            if self.rules.max_bytes is not None:
                self.ready_bytes += ttl_and_length.recount(gap, batch.contents)
            self.memory_bytes += batch.size
            self.host.content_bytes += batch.size
            self.totals.read += batch.left
            self.ready.insert(at, Span(batch, 0, batch.left))
            at += 1
            count += batch.left
        if next_seq <= gap.last and gap.count > count:
            gap.first = next_seq
            gap.count -= count
            self.ready.insert(at, gap)
        else:
            self.ready_count -= gap.count - count  # The log is the truth.
        self.host.dirty[self] = None

    def forget_dead(self, span: Span) -> bool:
        """Forget contents of messages that neither wait nor are out with anybody, if the log has them."""
        may_forget = self._may_forget(span)
        if may_forget:
            self._let_go(span.batch, span.count)
        return may_forget

    def page_out_unacked(self, batch: Batch, count: int) -> None:
        """Forget the contents of messages that are out with a consumer: they come back only if it gives them back, or
        if it rejects them and there is to be a dead letter."""
        if batch.all_logged and not batch.paged and batch.left == count:
            batch.paged = True
            batch.contents, batch.keys = [], []
            self._uncount(batch, batch.size)

    def restore(self, number: int, epoch: int, next_seq: int, first: int, last: int, count: int, through: int) -> None:
        """After a start: what the log holds, all of it waiting."""
        self.number, self.epoch, self.next_seq = number, epoch, next_seq
        self.delivered_through = self.noted_through = through
        if count:
            self.restore_gap(Gap(first, last, count))

    def restore_gap(self, gap: Gap) -> None:
        """Messages that only the log has wait behind those restored before."""
        self.ready.append(gap)
        self.ready_count += gap.count

    def restore_batch(self, batch: Batch, gone: Iterable[tuple[int, int]]) -> None:
        """Messages of a block that is not applied yet wait, too, except for those that are gone, by ascending numbers.
        Their numbers follow all that were restored before."""
        if batch.expires:
            self.watch_ages()
        at, last = batch.first, batch.last
        for low, high in [*gone, (last + 1, last + 1)]:
            if at < low:
                self.ready.append(Span(batch, at - batch.first, low - batch.first))
                self.ready_count += low - at
            batch.left -= high - low + 1 if low <= last else 0
            at = high + 1
        self.number_from(last + 1)
        if not batch.left:
            batch.size = 0
        self.count_in(batch)
