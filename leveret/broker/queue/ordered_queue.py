"""A queue whose messages wait in order, each for one consumer: who is given them, and which of them are in memory.

`ready` holds those that wait, by ascending numbers, as spans (contents in memory) and gaps (contents in the log). What
becomes of messages that are settled, given back or expired is up to the subclasses: a `Queue` records it in its own
blocks, a `DetachedQueue` keeps account of it for the queue's master.

**Memory.** Contents that the log has are forgotten when the node holds more than its cache allows, the newest first,
for the oldest are wanted next: a span becomes a gap, and gaps that touch become one. A gap at the front is read back in
pieces. Where memory is very short, transient messages are put into the log too, just to be forgotten.

The messages of a queue that were given back before the log knew of it are in a gap that says so itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Final

from leveret.base.shared_values import NO_DEQUE
from leveret.broker.delivery.answers import Got, unreachable
from leveret.broker.delivery.batch import Batch, Gap, GapRead, Span
from leveret.broker.delivery.confirms import NEVER
from leveret.broker.delivery.consumer import awaits_log, may_have, wants_origins
from leveret.broker.delivery.consumer_order import ConsumerOrder
from leveret.broker.delivery.priority_ready import insert_many, rows_of
from leveret.broker.queue import ttl_and_length
from leveret.broker.queue.local_queue import LocalQueue
from leveret.metadata.model.refusals import Refusal
from leveret.storage.format.queue_block import EXPIRES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from leveret.broker.delivery.consumer import Consumer
    from leveret.broker.queue.host import Host
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.rules.queue_rules import QueueRules
    from leveret.storage.format.queue_block import Run

KEEP_BYTES: Final = 1 << 18  # The front of a queue that stays in memory whatever the cache says.
CROWDED_AT: Final = 4_000  # Waiting messages, with consumers present, from which publishers are slowed down.
SKIPPED_MAX: Final = 64  # Spans that cannot be forgotten now, after which looking for others is given up.


class OrderedQueue(LocalQueue):
    """A queue whose messages wait in order, and each of them goes to one consumer."""

    __slots__ = ("consumer_order", "loading", "open_through", "ready", "ready_bytes", "timed")

    def __init__(self, spec: QueueSpec, host: Host) -> None:
        super().__init__(spec, host)
        self.ready: deque[Span | Gap] = NO_DEQUE  # `begin_ready` makes one for the first message.
        self.ready_bytes = 0  # Of their bodies; counted only where there is a limit to it.
        self.loading: GapRead | None = None
        self.timed = False  # Its messages, or some of them, grow old.
        self.consumer_order: ConsumerOrder | None = None  # Where its consumers are not all alike.
        self.open_up_to(NEVER)

    def set_rules(self, rules: QueueRules) -> None:
        self.applied_rules = rules
        if rules.single_active:
            self.consumer_order = ConsumerOrder(self)
        self.timed = self.timed or rules.ttl_ms is not None
        limits = (rules.max_length, rules.max_bytes, rules.delivery_limit)
        self.has_upkeep = self.timed or any(limit is not None for limit in limits)
        self.host.dirty[self] = None

    def begin_ready(self) -> deque[Span | Gap]:
        """Makes what the queue needs to have messages, and returns `ready`."""
        if self.ready is NO_DEQUE:
            self.ready = deque()
        return self.ready

    def rest(self) -> None:
        """Gives back what a queue without messages and consumers does not need."""
        if not self.ready and self.ready.__class__ is deque:
            self.ready = NO_DEQUE

    # -- Memory --------------------------------------------------------------------------------------------------

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
        # These are known by their numbers from now on. The batch itself is not one of the log by that: others of it,
        # such as those that are out with a consumer, are still in memory only.
        host.spill(self, runs)
        return True

    def _forget(self, span: Span) -> None:
        batch = span.batch
        # The log learns with the next block that they were given back, and may be read before. What a master had given
        # out that is lost, the log of the next one does not know until that is started again.
        gap = Gap(span.first, span.last, span.count, batch.is_marked(span.lo))
        if self.rules.max_bytes is not None:
            gap.body_bytes = ttl_and_length.bodies(batch.contents[span.lo : span.hi])
        if batch.left == span.count:  # Else some are out with a consumer, and the contents stay for their sake.
            batch.forget_contents()
        self._let_go(batch, span.count)
        self._append_gap(gap)

    def _append_gap(self, gap: Gap) -> None:
        """At the end of `ready`, as one with the gap before it where nothing lies between."""
        last = self.ready[-1] if self.ready else None
        touches = isinstance(last, Gap) and last.last + 1 == gap.first and last.redelivered == gap.redelivered
        if touches and not self.is_loading(gap):  # What is being read must be found again by `on_loaded`.
            assert isinstance(last, Gap)
            last.last = gap.last
            last.count += gap.count
            last.body_bytes += gap.body_bytes
        else:
            self.begin_ready().append(gap)

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
        if self.is_loading(gap):
            self.loading = None

    def is_loading(self, gap: Gap) -> bool:
        """Tell whether the beginning of this gap is being read."""
        return self.loading is not None and self.loading.gap is gap

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
            self.loading = GapRead(gap)
            self._load(self.loading)

    def on_loaded(self, read: GapRead, runs: list[Run], next_seq: int) -> None:
        """The beginning of a gap was read back: everything of it before `next_seq`."""
        if self.loading is not read:
            return  # The queue was purged, or another read has replaced this one.
        gap = read.gap
        self.refresh_rules()
        self.loading = None
        self._tell_loaded()
        at = self.ready.index(gap)
        if gap.first >= next_seq:
            self.host.dirty[self] = None  # All that was read is gone: the next turn reads on.
            return
        del self.ready[at]
        count = 0
        for run in _without_gone(runs, gap.first):
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
            self.ready_bytes -= gap.body_bytes
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
            batch.forget_contents()
            self._uncount(batch, batch.size)

    def restore_gap(self, gap: Gap) -> None:
        """Messages that only the log has wait behind those restored before."""
        self.begin_ready().append(gap)
        self.ready_count += gap.count

    def restore_batch(self, batch: Batch, gone: Iterable[tuple[int, int]]) -> None:
        """Messages of a block that is not applied yet wait, too, except for those that are gone, by ascending numbers.
        Their numbers follow all that were restored before."""
        if batch.expires:
            self.watch_ages()
        at, last = batch.first, batch.last
        for low, high in [*gone, (last + 1, last + 1)]:
            if at < low:
                self.begin_ready().append(Span(batch, at - batch.first, low - batch.first))
                self.ready_count += low - at
            batch.left -= high - low + 1 if low <= last else 0
            at = high + 1
        self.number_from(last + 1)
        if not batch.left:
            batch.size = 0
        self.count_in(batch)

    # -- Consumers --------------------------------------------------------------------------------------------

    def set_pressed(self, pressed: bool) -> None:
        """Note whether mirrors do not keep up, so that every publisher should wait."""
        self.crowded_at = -1 if pressed else CROWDED_AT if self.consumers else NEVER

    def add_consumer(self, consumer: Consumer) -> None:
        if consumer.exclusive:
            self.exclusive_consumer = consumer
        self._append_consumer(consumer)
        is_link = wants_origins(consumer)
        if self.consumer_order is not None:
            self.consumer_order.choose()
        elif consumer.priority or is_link:
            self.consumer_order = ConsumerOrder(self)
        if is_link:
            self.host.features.begin_origins(self)
        self.touch()
        self.crowded_at = CROWDED_AT
        self.host.dirty[self] = None

    def remove_consumer(self, consumer: Consumer, then: Callable[[], None] | None = None) -> None:
        super().remove_consumer(consumer, then)
        self._choose_again()

    def take_consumers(self) -> list[Consumer]:
        consumers = super().take_consumers()
        self._choose_again()
        return consumers

    def _choose_again(self) -> None:
        """After consumers went. Where those that are left are all alike, sharing out costs less without an order."""
        order = self.consumer_order
        if order is not None:
            order.choose()
            if not order.is_needed():
                self.consumer_order = None

    def _has_waiting_for_log(self) -> bool:
        """Tell whether a consumer may wait until messages are safe. Where links share a queue, it has an order."""
        consumers, order = self.consumers, self.consumer_order
        return (order is not None and order.has_links) or (len(consumers) == 1 and awaits_log(consumers[0]))

    def let_go_of_all(self) -> None:
        super().let_go_of_all()
        if self.ready:
            rows = [row.copy() for row in rows_of(self.ready)]
            self.ready.clear()
            self.host.free_later(rows)
        self.loading = None

    # -- Delivering -------------------------------------------------------------------------------------------

    def open_up_to(self, number: int) -> None:
        """No message with a higher number may be handed out yet."""
        self.open_through = number

    def pump(self) -> None:
        """Hand out what waits, as far as the consumers have room."""
        if self.frozen:
            if self.has_upkeep:
                ttl_and_length.stamp(self)
            return
        if self.extensions is not None:
            for tell in self.extensions.on_turn:
                tell()
        if self.has_upkeep:
            if ttl_and_length.before_pump(self, ttl_and_length.share()):
                self._hand_out()
            self._drop_unserved()
        else:
            self._hand_out()

    def _drop_unserved(self) -> None:
        """Drop what no consumer took, and may not wait any longer."""
        ttl_and_length.after_pump(self)

    def _hand_out(self) -> None:
        ready, consumers = self.ready, self.consumers
        while ready and consumers:
            head = ready[0]
            if head.first > self.open_through and not self._opens(head):
                break
            if head.__class__ is Gap:
                self.want(head)
                return
            assert isinstance(head, Span)
            if (
                self.timed
                and (head.batch.expires or self.rules.max_priority)
                and not ttl_and_length.is_fresh(self, head)
            ):
                if self.host.expiring_left <= 0:
                    ttl_and_length.wait_for_turn(self)
                    break
                continue
            if len(consumers) == 1:
                consumer = consumers[0]
                if not may_have(consumer, head.batch):
                    break
                room = consumer.room(head.batch.average_bytes())
                if room <= 0:
                    break
                self.hand_over(consumer, head, min(room, head.hi - head.lo))
            elif not (self._share_out(head) if self.consumer_order is None else self.consumer_order.share(head)):
                break
        if len(ready) > 1 and ready[1].__class__ is Gap and consumers:
            self.want(ready[1])
        if self.gate is not None:
            self.gate.check()

    def _opens(self, head: Span | Gap) -> bool:
        """Tell whether the first message, and those behind it, may be delivered before they are written."""
        return self.gate is not None and self.gate.open_unwritten(head.first)

    def _share_out(self, head: Span) -> bool:
        """Several consumers: in turn, one message each. False if none has room."""
        consumers = self.consumers
        average_bytes = head.batch.average_bytes()
        served, passed_over, last = 0, 0, consumers[0]
        for _ in range(len(consumers)):
            consumer = consumers[0]
            consumers.rotate(-1)
            if consumer.room(average_bytes) > 0:
                self.hand_over(consumer, head, 1)
                served, passed_over, last = served + 1, 0, consumer
                if head.lo == head.hi or head.first > self.open_through:
                    return True
            else:
                passed_over += 1
        # Those behind the last one served are next. Where consumers share a prefetch, one would take all of it else.
        consumers.rotate(passed_over)
        if served == 1:  # Nobody to share with: all it can take, at once.
            room = last.room(average_bytes)
            if room > 0:
                self.hand_over(last, head, min(room, head.hi - head.lo))
        return served > 0

    def hand_over(self, consumer: Consumer, head: Span, count: int) -> None:
        batch, lo = head.batch, head.lo
        if batch.first + lo + count - 1 > self.open_through:
            count = self.open_through - batch.first - lo + 1
        hi = head.lo = lo + count
        if hi == head.hi:
            self.ready.popleft()
        self.ready_count -= count
        if self.has_upkeep:
            self.take_bytes(batch, lo, hi)
        through = batch.first + hi - 1
        if through > self.delivered_through:
            self.delivered_through = through
        consumer.deliver(batch, lo, hi)
        if self.extensions is not None:
            for tell in self.extensions.on_delivered:
                tell(consumer, batch.first + lo, through)
        if batch.redelivered:
            self.totals.redelivered += batch.redelivered_within(lo, hi)
        if consumer.no_ack:
            self.totals.delivered_no_ack += count
            self.settle(batch, lo, hi)
        else:
            self.totals.delivered += count
            self.unacked_count += count

    def get(self) -> tuple[Batch, int] | Gap | None:
        """The first waiting message, now unacknowledged; or the gap it is in, to be loaded first, or one that stands
        for it until it may be handed out; or None."""
        self.refresh_rules()
        if self.has_upkeep and not ttl_and_length.before_pump(self):
            return ttl_and_length.wait_for_turn(self)
        if not self.ready:
            return None
        head = self.ready[0]
        if head.first > self.open_through and not self._opens(head):
            assert self.gate is not None
            return self.gate.want(head.first)
        if isinstance(head, Gap):
            self.want(head)
            return head
        batch, at = head.batch, head.lo
        self.take_bytes(batch, at, at + 1)
        head.lo += 1
        if head.lo == head.hi:
            self.ready.popleft()
        self.ready_count -= 1
        self.unacked_count += 1
        self.delivered_through = max(self.delivered_through, batch.first + at)
        self.tell_delivered(None, batch.first + at, batch.first + at)
        self.host.dirty[self] = None  # The log is to know of it.
        if self.timed:
            ttl_and_length.before_pump(self)  # So that nobody is told of more that would not be given.
        return batch, at

    def fetch(self, no_ack: bool, wanted: Callable[[], bool], then: Callable[[Got | Refusal | None], None]) -> None:
        """The first message, once it is read back if need be, unless it is no longer wanted by then."""
        if not wanted():
            then(None)
            return
        successor = self.host.successor(self) if self.deleted else None
        if successor is not None:
            successor.fetch(no_ack, wanted, then)
            return
        if self.later(lambda queue: queue.fetch(no_ack, wanted, then)):
            return
        if self.deleted:
            then(self._gone())
            return
        if self.frozen:
            then(unreachable(self.spec))
            return
        self.touch()
        self.catch_up()
        got = self.get()
        if isinstance(got, Gap):
            self.host.when_loaded(self, lambda: self.fetch(no_ack, wanted, then))
        elif got is None:
            self.totals.got_nothing += 1
            self.active_ms = self.host.now_ms
            then(None)
        else:
            self._count_got(*got, no_ack)
            then(Got(*got, self.ready_count, self))

    def _count_got(self, batch: Batch, at: int, no_ack: bool) -> None:
        if no_ack:
            self.totals.got_no_ack += 1
        else:
            self.totals.got += 1
        if batch.redelivered:
            self.totals.redelivered += batch.redelivered_within(at, at + 1)

    # -- Settling and giving back -----------------------------------------------------------------------------

    def settle_delivered(self, batch: Batch, lo: int, hi: int) -> None:
        """A consumer is done with messages it had in hand."""
        self.unacked_count -= hi - lo
        self.totals.acked += hi - lo
        self.settle(batch, lo, hi)

    def settle_got(self, batch: Batch, at: int) -> None:
        """Settle a message that basic.get fetched with automatic acknowledgement."""
        self.unacked_count -= 1
        self.settle(batch, at, at + 1)

    def count_unacked(self, count: int) -> None:
        """Messages that were taken out of those that wait are out with somebody."""
        self.unacked_count += count

    def requeue(self, batch: Batch, lo: int, hi: int, shown: bool = True, counted: bool = True) -> None:
        """A consumer gives messages back: to their old places, marked as redelivered if it was shown them."""
        self.requeue_many([(batch, lo, hi)], shown, counted)

    def requeue_many(self, pieces: list[tuple[Batch, int, int]], shown: bool = True, counted: bool = True) -> None:
        """Likewise, many at once: a channel was closed. Last first, as each that comes back may be the first that some
        client was not shown."""
        entries: list[Span | Gap] = []
        for batch, lo, hi in sorted(pieces, key=lambda piece: -(piece[0].first + piece[1])):
            entries += self._give_back(batch, lo, hi, shown, counted)
        if entries:  # In one go: those of other consumers may lie between them, and to pass these each time takes long.
            self.put_back_many(entries)

    def put_back(self, entry: Span | Gap) -> None:
        """To the place that its numbers have among those that wait."""
        ready, first, at = self.begin_ready(), entry.first, 0
        while at < len(ready) and ready[at].first < first:
            at += 1
        ready.insert(at, entry)

    def put_back_many(self, entries: list[Span | Gap]) -> None:
        """Likewise, many at once, in whatever order."""
        insert_many(self.begin_ready(), entries)

    def take_first(self, head: Span, count: int) -> tuple[Batch, int, int]:
        """Takes the first of those that wait out of these."""
        batch, lo = head.batch, head.lo
        head.lo += count
        if head.lo == head.hi:
            self.ready.popleft()
        self.count_out(batch, lo, lo + count)
        return batch, lo, lo + count

    def drop_first(self, head: Span, count: int, reason: str) -> None:
        """The first of those that wait leave unserved."""
        self.dead_letter_or_drop(*self.take_first(head, count), reason)

    def on_kind(self, kind: int) -> None:
        """Note the flags of the first message, after it was read from the log."""
        if kind & EXPIRES:
            self.watch_ages()
            self.host.dirty[self] = None

    # -- What each kind does with messages that leave ------------------------------------------------------------

    @abstractmethod
    def _load(self, read: GapRead) -> None:
        """Have the beginning of a gap read; `on_loaded` follows."""

    @abstractmethod
    def settle(self, batch: Batch, lo: int, hi: int) -> None:
        """These messages are gone."""

    @abstractmethod
    def _give_back(self, batch: Batch, lo: int, hi: int, shown: bool, counted: bool) -> list[Span | Gap]:
        """Counts messages as given back by a consumer. Returns what waits again because of that."""

    @abstractmethod
    def dead_letter_or_drop(self, batch: Batch, lo: int, hi: int, reason: str) -> None:
        """These messages, which neither wait nor are out with anybody, leave unserved."""


def waiting_again(span: Span) -> list[Span | Gap]:
    """Returns what unacknowledged messages are where they wait again. Their contents may be in the log only by now."""
    batch = span.batch
    if not batch.paged:
        return [span]
    return [Gap(piece.first, piece.last, piece.count, batch.is_marked(piece.lo)) for piece in span.alike()]


def _without_gone(runs: list[Run], first: int) -> list[Run]:
    """Returns what was read of a gap without messages before `first`: a length limit has dropped them meanwhile."""
    left = [run for run in runs if run.last >= first]
    if left and left[0].first < first:
        left[0] = left[0].cut(first - left[0].first, len(left[0].contents))
    return left
