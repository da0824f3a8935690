"""A queue with priorities (`x-max-priority`): of all that waits, the highest is handed out first.

How what waits is ordered is in `levels`. Here is what else differs, since a queue with priorities does not hand out by
ascending numbers:

**What the log knows of deliveries.** Other queues tell it a number up to which messages were delivered, so that what is
there after a crash and below it is marked as redelivered. Here such a number would mark whatever of a low priority
waits and was never looked at. So the log is told which ones: the numbers that are out are written as messages that came
back (`Block.requeued`), which is just what they will be when somebody reads them there. Blocks are made for that as
elsewhere (`Broker.pump`), and hold only what nobody has settled by then.

**What mirrors know of them.** Before it is handed out, not after: see `ExactClaims`.

**Memory.** The lowest goes first. A batch has messages of several levels, and would have to stay whole for the sake of
the highest; so its contents are let go one by one.

**After a start** all is unsorted, and read once, in pieces, whether somebody consumes or not: the first one may be
about to expire. What does not fit into memory meanwhile is forgotten again; which numbers there are at each level is
remembered.

Nothing may be added in front of the first entry while somebody takes from it: what is published within a delivery goes
through another turn.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, cast

from leveret.base.range_set import RangeSet, merged
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, Batch, Gap, GapRead, Span
from leveret.broker.delivery.confirms import NEVER
from leveret.broker.delivery.priority_ready import PriorityReady, join, rows_of
from leveret.broker.queue import ordered_queue as base
from leveret.broker.queue import ttl_and_length
from leveret.broker.queue.delivery_claims import AHEAD_MIN, GETS_AHEAD_MAX, GETS_EXACT, DeliveryClaims
from leveret.broker.queue.ordered_queue import SKIPPED_MAX
from leveret.broker.queue.queue import Queue
from leveret.storage.format.queue_block import REDELIVERED

if TYPE_CHECKING:
    from leveret.broker.delivery.consumer import Consumer
    from leveret.broker.delivery.priority_ready import Entry
    from leveret.broker.queue.host import Host
    from leveret.metadata.model.records import QueueSpec
    from leveret.storage.format.queue_block import Block, Run

PAGED_AT_ONCE: Final = 1_024  # Entries in one turn: each may be one message.
PAGED_MORE: Final = 3_072  # Besides those, at most, where others have come since.
LOOKS: Final = 8  # Entries that cannot be forgotten now cost as much as one that is.
EXACT_AHEAD_MAX: Final = 1024  # Each is a range of its own, where the priorities of neighbours differ.


class PriorityQueue(Queue):
    """A queue with priorities, at its master."""

    __slots__ = ("is_paging", "levels", "shown", "spilling")

    def __init__(self, spec: QueueSpec, host: Host, highest: int) -> None:
        super().__init__(spec, host)
        self.reset_totals()
        self.levels = PriorityReady(highest)
        self.ready = cast("deque[Span | Gap]", self.levels)
        self.shown: list[tuple[int, int]] = []  # Handed out, and the log does not know.
        self.spilling: list[Run] = []
        self.is_paging = False  # A turn had no room to forget all that is to be forgotten.

    # -- Delivering ----------------------------------------------------------------------------------------------

    @property
    def open_through(self) -> int:  # type: ignore[override]  # Nothing sets it.
        """Returns the number up to which the first entry may be delivered."""
        if self.gate is None or not self.levels:
            return NEVER
        head = self.levels[0]
        assert isinstance(self.gate, ExactClaims)
        return NEVER if isinstance(head, Gap) else self.gate.open_from(head.first)

    def open_up_to(self, number: int) -> None:
        """There is no such number here: see `open_through`."""

    def pump(self) -> None:
        if self.is_paging:
            self.page_out()
        super().pump()

    def hand_over(self, consumer: Consumer, head: Span, count: int) -> None:
        batch, first = head.batch, head.first
        super().hand_over(consumer, head, count)
        self._note(first, head.first - 1, batch.stored and not consumer.no_ack)

    def get(self) -> tuple[Batch, int] | Gap | None:
        got = super().get()
        if isinstance(got, tuple):
            batch, at = got
            self._note(batch.first + at, batch.first + at, batch.stored)
        return got

    def _note(self, first: int, last: int, stored: bool) -> None:
        """These were handed out."""
        if self.gate is not None:
            assert isinstance(self.gate, ExactClaims)
            self.gate.on_delivered(first, last)
        elif stored:
            self.show([(first, last)])

    def show(self, ranges: list[tuple[int, int]]) -> None:
        """Handed out, and the log is to know."""
        self.shown += ranges
        self.note_through(self.delivered_through - 1)  # By which the broker sees that there is something to note.

    def has_shown_stored(self) -> bool:
        return bool(self.shown)

    def put_back(self, entry: Span | Gap) -> None:
        self.levels.put_back(entry)

    def put_back_many(self, entries: list[Span | Gap]) -> None:
        self.levels.put_back_many(entries)

    def purge(self) -> int:
        for row in rows_of(self.ready):
            for entry in row:
                if isinstance(entry, Gap) and entry.ranges is not None:
                    self._forget_numbers(entry.ranges)
            kept = [entry for entry in row if isinstance(entry, Span) or entry.ranges is None]
            row.clear()
            row.extend(kept)
        return super().purge()

    def _forget_numbers(self, ranges: RangeSet) -> None:
        for first, last in ranges:
            self.settle_numbers(first, last, "purged")

    # -- The log -------------------------------------------------------------------------------------------------

    def take_block(self, time_ms: int) -> Block | None:
        if self.shown and self.has_changes():
            out = RangeSet(merged(self.shown))
            for first, last in self.settled:
                out.remove(first, last)
            self.requeued = [*self.requeued, *out]
            self.shown = []
        block = super().take_block(time_ms)
        if block is not None:
            block.delivered_through = 0
        return block

    # -- Paging --------------------------------------------------------------------------------------------------

    def page_out(self) -> None:
        """Forget contents that the log has: the lowest level first, and at each level the newest."""
        levels = self.levels
        wants_disk = self.rules.wants_disk(self.ready_count, self.memory_bytes)
        bytes_max = 0 if wants_disk else self.host.content_bytes_max
        left = PAGED_AT_ONCE + min(self.host.came_meanwhile(self), PAGED_MORE)
        held_bytes = self.memory_bytes
        left -= self._page_out_row(levels.unsorted, bytes_max, False, left)
        for level in reversed(levels.levels()):
            left -= self._page_out_row(levels.rows[level], bytes_max, True, left)
        self.is_paging = left <= 0 and self.memory_bytes < held_bytes  # Else nothing could be forgotten now.
        if self.is_paging:
            self.host.go_on_soon(self)
        self._spill()
        self._tell_page_out()

    def _spill(self) -> None:
        if self.spilling:
            runs, self.spilling = sorted(self.spilling, key=lambda run: run.first), []
            self.host.spill(self, runs)

    def forget_dead(self, span: Span) -> bool:
        may_forget = super().forget_dead(span)
        self._spill()
        return may_forget

    def _page_out_row(self, row: deque[Entry], bytes_max: int, is_sorted: bool, most: int) -> int:
        """Forget entries of one level, no more than `most`; return how many, and some for those that were looked at."""
        host, done, looks = self.host, 0, 0
        loading = None if self.loading is None else self.loading.gap
        kept: list[Entry] = []  # The last one first.
        skipped, batch = 0, None
        while row and host.content_bytes > bytes_max and self.memory_bytes > base.KEEP_BYTES and skipped < SKIPPED_MAX:
            if done + looks // LOOKS >= most:
                break
            entry = row.pop()
            if isinstance(entry, Span):
                if not self._may_forget(entry):
                    kept.append(entry)
                    looks += 1
                    # Of one batch there may be thousands: a batch counts once.
                    skipped, batch = skipped + (entry.batch is not batch), entry.batch
                    continue
                gaps = [self._forgotten(piece, is_sorted) for piece in reversed(entry.alike())]
                done += 1
            else:
                gaps = [entry]
                skipped += 1
            for gap in gaps:
                after = kept[-1] if kept else None
                joined = join(gap, after, loading) if isinstance(after, Gap) else None
                if joined is not None:
                    kept[-1] = joined
                else:
                    kept.append(gap)
        row.extend(reversed(kept))
        return done + looks // LOOKS

    def _may_forget(self, span: Span) -> bool:
        batch, host = span.batch, self.host
        if batch.all_logged:
            return True
        if host.content_bytes <= host.spill_bytes_max or (batch.stored and not batch.logged):
            return False
        if batch is self.open:
            self.open = None  # It has nothing for the log; what comes next begins another.
        # The batch itself is not one of the log by that: others of it are still in memory only.
        lo, hi = span.lo, span.hi
        self.spilling += batch.transient_runs(lo, hi) if self.durable else [batch.cut(lo, hi)]
        return True

    def _forgotten(self, span: Span, is_sorted: bool) -> Gap:
        """Returns a gap that replaces a span. Its contents are dropped at once, whatever else its batch still has."""
        batch, lo, hi = span.batch, span.lo, span.hi
        ranges = RangeSet([(span.first, span.last)]) if is_sorted else None
        gap = Gap(span.first, span.last, span.count, batch.is_marked(lo), ranges)
        contents = batch.contents[lo:hi]
        if self.rules.max_bytes is not None:
            gap.body_bytes = ttl_and_length.bodies(contents)
        if batch.left == span.count:
            batch.forget_contents()
        else:
            size = min(sum(map(len, contents)) + MESSAGE_OVERHEAD * span.count, batch.size)
            batch.blank(lo, hi)
            batch.gone += span.count
            self._uncount(batch, size)
        self._let_go(batch, span.count)
        return gap

    def on_loaded(self, read: GapRead, runs: list[Run], next_seq: int) -> None:
        if self.loading is not read:
            return
        gap = read.gap
        self.refresh_rules()
        self.loading = None
        self._tell_loaded()
        if gap.ranges is None:
            self._on_unsorted(gap, runs, next_seq)
        else:
            self._on_sorted(gap, gap.ranges, runs, next_seq)
        self.host.dirty[self] = None

    def on_kind(self, kind: int) -> None:
        """The first in the log need not be the first to leave. Which one is, and grows old, is known when all are
        sorted."""
        self._sort_on()

    def _sort_on(self) -> None:
        if self.levels.unsorted:
            self.want(cast("Gap", self.levels.unsorted[0]))

    def _on_unsorted(self, gap: Gap, runs: list[Run], next_seq: int) -> None:
        levels = self.levels
        batches = [self._take_in(gap, run) for run in runs]
        count = sum(batch.left for batch in batches)
        levels.sort(batches)
        if next_seq <= gap.last and gap.count > count:
            gap.first = next_seq
            gap.count -= count
        else:
            levels.unsorted.remove(gap)
            self.ready_count -= gap.count - count  # The log is the truth.
            self.ready_bytes -= gap.body_bytes
        levels.settle_unsorted()
        is_over = self.host.content_bytes > self.host.content_bytes_max
        if is_over or self.rules.wants_disk(self.ready_count, self.memory_bytes):
            self.page_out()
        self._sort_on()

    def _on_sorted(self, gap: Gap, ranges: RangeSet, runs: list[Run], next_seq: int) -> None:
        """Others lie between those that are wanted."""
        spans: list[Entry] = []
        for run in runs:
            for first, last in ranges.ranges(run.first, run.last):
                batch = self._take_in(gap, run.cut(first - run.first, last - run.first + 1))
                spans.append(Span(batch, 0, batch.left))
        due = ranges.remove(gap.first, max(gap.first, next_seq - 1))
        self.ready_count -= due - sum(span.count for span in spans)  # The log is the truth.
        levels = self.levels
        row = next(levels.rows[level] for level in levels.levels() if gap in levels.rows[level])
        at = row.index(gap)
        del row[at]
        if ranges:
            assert ranges.first is not None
            gap.first, gap.count = ranges.first, ranges.count
            spans.append(gap)
        else:
            self.ready_bytes -= gap.body_bytes
        row.rotate(-at)
        row.extendleft(reversed(spans))
        row.rotate(at)
        levels.refresh()

    def _take_in(self, gap: Gap, run: Run) -> Batch:
        """Contents that were read."""
        batch = Batch.loaded(run)
        if self.gate is not None:
            assert isinstance(self.gate, ExactClaims)
            self.gate.unmark(batch)
        if gap.redelivered:
            batch.mark_redelivered(0, batch.left)
        if batch.expires:
            self.watch_ages()
        if self.rules.max_bytes is not None:
            self.ready_bytes += ttl_and_length.recount(gap, batch.contents)
        self.memory_bytes += batch.size
        self.host.content_bytes += batch.size
        return batch


class ExactClaims(DeliveryClaims):
    """Tells the mirrors of a priority queue of deliveries before these are made.

    As with `DeliveryClaims`, no message is delivered before all mirrors that have it know that it may be. The
    difference: what is claimed are certain messages, those at the front, and a block names them as requeued ones. A
    message that is claimed and then not delivered, because one with a higher priority came, stays claimed. In this
    node's log it is marked as redelivered then, too, which is undone where it is read back (`unmark`).
    """

    __slots__ = (
        "asked", "claimed_in", "claims", "delivered", "fresh", "is_short", "levels", "sure", "unseen", "waiting",
    )  # fmt: skip

    def __init__(self, queue: PriorityQueue) -> None:
        self.levels = queue.levels
        self.claims = RangeSet()  # In blocks, and not settled; of those,
        self.sure = RangeSet()  # in blocks that whoever has the messages has, too;
        self.waiting = RangeSet()  # not handed out yet;
        self.unseen = RangeSet()  # nor marked as redelivered before.
        self.claimed_in: deque[tuple[int, list[tuple[int, int]]]] = deque()  # Blocks that are under way, by number.
        self.fresh: list[tuple[int, int]] = []  # Handed out before they were in a block.
        self.delivered = 0  # Since the last block.
        self.is_short = False  # More could be claimed than was.
        self.asked = False  # A get waits for the next block.
        super().__init__(queue)

    def _limit(self) -> None:
        """See `open_from`."""

    def end(self) -> None:
        cast("PriorityQueue", self.queue).show(self.fresh)

    # -- The queue -----------------------------------------------------------------------------------------------

    def open_from(self, first: int) -> int:
        """Up to where messages may be handed out, of a span that begins with this one."""
        if first > self.taken:
            return NEVER  # Its batch is in no block yet.
        low, high = next(self.sure.ranges(first, limit=1), (0, 0))
        return high if low == first else first - 1

    def on_delivered(self, first: int, last: int) -> None:
        self.needed = 0
        self.delivered += last - first + 1
        if first > self.taken:
            self.fresh.append((first, last))
        else:
            self.waiting.remove(first, last)
            self.unseen.remove(first, last)

    def open_unwritten(self, first: int) -> bool:
        """Each message is asked for by itself: see `open_from`."""
        return False

    def check(self) -> None:
        queue = self.queue
        if not queue.consumers or not queue.ready:
            return
        head = queue.ready[0]
        if head.first > queue.open_through:
            if not self.claimed_in:
                self.held = True
                queue.note_deliveries()
        elif self.is_short and self.waiting.count < self.ahead // 2:
            queue.note_deliveries()

    def want(self, number: int) -> Gap:
        if number not in self.claims:
            self.gets += 1
            self.asked = True
            self.queue.note_deliveries()
            self.queue.host.dirty[self.queue] = None
        self.needed = 1 + min(self.gets // GETS_EXACT, GETS_AHEAD_MAX)
        return Gap(number, number, 1)

    def claimed_undelivered(self) -> list[tuple[int, int]]:
        return list(self.unseen)

    def unmark(self, batch: Batch) -> None:
        """Remove the redelivered mark from messages read back that were claimed and never delivered."""
        for low, high in self.unseen.ranges(batch.first, batch.last):
            batch.unmark(low - batch.first, high - batch.first + 1)

    # -- Blocks --------------------------------------------------------------------------------------------------

    def put_into(self, block: Block) -> None:
        before, self.taken = self.taken, self.queue.next_seq - 1
        now, self.fresh = self.fresh, []
        later: list[tuple[int, int]] = []
        wanted = self._wanted()
        front = self.levels.front(wanted)
        self.is_short = sum(hi - lo for _, lo, hi in front) >= wanted
        for batch, lo, hi in front:
            first, last = batch.first + lo, batch.first + hi - 1
            if not self.claims.covers(first, last):
                (now if first > before else later).append((first, last))
                self._await(batch, lo, hi)
        for first, last in now:  # Whoever has these has this very block.
            self.sure.add(first, last)
        for first, last in [*now, *later]:
            self.claims.add(first, last)
        for first, last in block.settled:
            for numbers in (self.claims, self.sure, self.waiting, self.unseen):
                numbers.remove(first, last)
        if later or self.asked:  # Also without a claim: what the get waits for may be gone, or not the first any more.
            self.claimed_in.append((block.number, later))
        self.asked = False
        block.requeued = merged([*block.requeued, *now, *later])

    def _await(self, batch: Batch, lo: int, hi: int) -> None:
        first = batch.first
        self.waiting.add(first + lo, first + hi - 1)
        if not batch.redelivered:
            self.unseen.add(first + lo, first + hi - 1)
            return
        for at in range(lo, hi):
            if not batch.kinds[at] & REDELIVERED:
                self.unseen.add(first + at, first + at)

    def _wanted(self) -> int:
        """Returns how many of the next messages to claim."""
        recent, self.delivered = self.delivered, 0
        if not self.queue.consumers:
            self.ahead = 0
        elif self.held:
            self.ahead = min(max(2 * self.ahead, AHEAD_MIN), EXACT_AHEAD_MAX)
        else:
            self.ahead = min(max(self.ahead // 2, 2 * recent, AHEAD_MIN), EXACT_AHEAD_MAX)
        self.held = False
        return max(self.ahead, self.needed)

    def on_confirmed(self, number: int) -> bool:
        """Blocks up to this one are where they must be. True: one has claimed something, or a get waits for it."""
        under_way = self.claimed_in
        before = len(under_way)
        while under_way and under_way[0][0] <= number:
            for first, last in under_way.popleft()[1]:
                for low, high in self.claims.ranges(first, last):  # Else it is settled since.
                    self.sure.add(low, high)
        return len(under_way) < before


def claims_of(queue: Queue) -> DeliveryClaims:
    """For a queue that has mirrors from now on."""
    return ExactClaims(queue) if isinstance(queue, PriorityQueue) else DeliveryClaims(queue)
