"""A queue of RabbitMQ's, on its master: what waits, and who takes it.

What it has in common with streams is in `local_queue`: its state, its consumers, and what of it the log must know.

Messages are numbered in the order in which they came, without reuse. `ready` holds those that wait, ascending, as
spans (contents in memory) and gaps (contents in the log). A message that is taken back goes to its old place, so order
is that of arrival, whoever had it meanwhile.

    enqueue ──▶ ready ──pump──▶ consumer ──settle──▶ gone
                  ▲                │
                  └────requeue─────┘

Nothing here waits for the disk. A block is taken with `take_block` when the log has room for another write; whatever
was enqueued until then is in it, and the publishers' `Pending` go with it. So a message may be delivered before it is
on disk: if the node dies then, its publisher has no confirm and will send it again, which is what at-least-once means.
A message settled before its block was taken is never written at all.

Memory: contents are forgotten (`page_out`) once their block is on disk and the node holds more than its cache allows;
the newest go first, because the oldest are wanted next. A gap at the front is read back with `Host.load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.base.shared_values import NO_DEQUE
from leveret.broker.delivery.batch import PLACE_BYTES, Batch, Gap, GapRead, Span
from leveret.broker.delivery.confirms import NEVER
from leveret.broker.delivery.reserve import reserve
from leveret.broker.queue import ttl_and_length
from leveret.broker.queue.hold import park
from leveret.broker.queue.ordered_queue import KEEP_BYTES, OrderedQueue, waiting_again
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.rules.queue_rules import PLAIN
from leveret.storage.format.queue_block import EXPIRES, NOTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.broker.delivery.batch import Shared
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.queue.host import Host
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.rules.queue_rules import QueueRules

BATCH_MESSAGES_MAX = 16_384


class Queue(OrderedQueue):
    """A queue of RabbitMQ's: each of its messages goes to one consumer, and is gone when that has acknowledged it."""

    __slots__ = ()

    def __init__(self, spec: QueueSpec, host: Host, rules: QueueRules | None = None) -> None:
        """`rules`: they apply to it whatever arguments and policies say."""
        super().__init__(spec, host)
        self.set_rules(host.rules_of(spec) if rules is None else rules)

    # -- Mirrors -------------------------------------------------------------------------------------------------

    def leave_ring(self, awaiting: list[Pending]) -> None:
        super().leave_ring(awaiting)
        self.open_up_to(NEVER)

    # -- Publishing ----------------------------------------------------------------------------------------------

    def enqueue(self, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending | None) -> bool:
        """Messages of one kind, at the end. True: the queue is crowded, slow down."""
        if self.parked is not None:
            return park(self.parked, contents, keys, kind, size, pending)
        if self.policy_version != self.host.policy_version:
            self.refresh_rules()
        if self.has_upkeep and self._is_refused(contents, keys, kind, pending):
            return False
        batch = self.open
        # Messages of a batch that was carried over may have been read: none is added to them that waits for the disk.
        if (
            batch is None
            or (batch.carried and kind & self.logs == self.logs)
            or (len(batch.contents) >= BATCH_MESSAGES_MAX and not batch.stored)
        ):
            if batch is not None and self.timed:
                batch.stamp(self.host.wall_ms)  # Only the next one will be.
            batch = self.open = Batch(self.next_seq)
        count, lo = len(contents), len(batch.contents)
        batch.contents += contents
        batch.keys += keys
        batch.kinds += bytes((kind,)) * count
        if kind & NOTED:
            kind = self._note_kind(batch, kind, count)
        batch.left += count
        batch.size += size
        self.memory_bytes += size
        self.next_seq += count
        self.ready_count += count
        host = self.host
        shared = host.sharing
        if shared is not None:
            if shared.contents is contents:
                size = self._share(batch, shared, count, size)
            else:  # A dead letter, because one of the queues has turned them away.
                shared = None
        host.content_bytes += size
        ready = self.ready
        last = ready[-1] if ready else None
        if last.__class__ is Span and last.batch is batch and last.hi == lo:
            last.hi += count
        else:
            if ready is NO_DEQUE:
                ready = self.begin_ready()
            ready.append(Span(batch, lo, lo + count))
        if kind & self.logs == self.logs:
            batch.stored = True
            if shared is not None:
                size += shared.take_unlogged()
            batch.unlogged_bytes += size
            host.unlogged_bytes += size
            if pending is not None:
                self._await_safe(pending, count)
        self.totals.published += count
        host.dirty[self] = None
        if self.extensions is not None:
            for tell in self.extensions.on_enqueued:
                tell(count, kind, pending)
        return self.ready_count > self.crowded_at

    def _share(self, batch: Batch, shared: Shared, count: int, size: int) -> int:
        """Other queues get these contents too. Gives what they cost here besides."""
        own = PLACE_BYTES * count
        if batch.shares is None:
            batch.shares = []
        batch.shares.append(shared)
        batch.shared_bytes += size - own
        self.shared_bytes += size - own
        return own

    def _is_refused(self, contents: list[bytes], keys: list[bytes], kind: int, pending: Pending | None) -> bool:
        """Count a publish against the limits; True if it exceeds them, and the publisher is to know."""
        if self.rules.rejects and ttl_and_length.turn_away(self, contents, keys, kind, pending):
            return True
        if self.rules.max_bytes is not None:
            self.ready_bytes += ttl_and_length.bodies(contents)
        return False

    def _note_kind(self, batch: Batch, kind: int, count: int) -> int:
        if kind & EXPIRES:
            self.watch_ages()
        return batch.note_kind(kind, count)

    def came_at(self, times: list[tuple[int, int]], count: int) -> None:
        """The last `count` messages came at these times: for each stretch the place of its first message, and when.
        What lies before the first of them says when that came."""
        batch = self.open
        if batch is not None and times:
            base = len(batch.contents) - count
            known = [one for one in times if one[0] <= 0][-1:]
            for at, ms in [*known, *(one for one in times if one[0] > 0)]:
                batch.times.append((base + max(at, 0) if batch.times else 0, ms))
            batch.stamped = len(batch.contents)

    def set_rules(self, rules: QueueRules) -> None:
        """Apply other rules to the queue from now on."""
        if rules is self.applied_rules or rules == self.applied_rules:  # A comparison makes two tuples.
            return
        if rules.expires_ms is not None:
            self.host.idle.set(self, self.host.now_ms + rules.expires_ms)
        counted = self.applied_rules.max_bytes is not None
        super().set_rules(rules)
        if rules.max_bytes is not None and not counted:
            self.count_bytes()
        self.host.features.apply(self, rules)

    # -- Questions -----------------------------------------------------------------------------------------------
    # Answered at once, unless the queue is about to go, or to have another home. At another node (`RemoteQueue`) they
    # take a while, hence the form.

    def purge_all(self, then: Callable[[int | Refusal], None]) -> None:
        if not self.later(lambda queue: queue.purge_all(then)):
            self.catch_up()
            then(self._gone() if self.deleted else self.purge())

    # -- Consumers -----------------------------------------------------------------------------------------------

    # -- Delivering ----------------------------------------------------------------------------------------------

    def _drop_unserved(self) -> None:
        super()._drop_unserved()
        ttl_and_length.limit_length(self)

    # -- Settling ------------------------------------------------------------------------------------------------

    def count_acked(self, count: int) -> None:
        """Count messages as acknowledged that are settled by their numbers."""
        self.unacked_count -= count
        self.totals.acked += count

    def on_reserved(self, count: int) -> None:
        """So many messages were taken out of `ready`, wherever they were, and are out with somebody."""
        self.count_unacked(count)
        self.ready_count = sum(entry.count for entry in self.ready)
        self.count_bytes()

    def discard(self, batch: Batch, lo: int, hi: int) -> None:
        """A consumer rejected messages for good."""
        self.unacked_count -= hi - lo
        if batch.paged and self.rules.dead_letter_exchange is not None and not self.deleted:
            self.host.dead_letters.send_unread(self, batch.first + lo, batch.first + hi - 1, "rejected")
        else:
            self.dead_letter_or_drop(batch, lo, hi, "rejected")

    def dead_letter_or_drop(self, batch: Batch, lo: int, hi: int, reason: str) -> None:
        """These messages, which neither wait nor are out with anybody, leave unserved."""
        if self.rules.dead_letter_exchange is None or self.deleted:
            self.settle_unserved(batch, lo, hi, reason)
        else:
            self.host.dead_letters.send(self, batch, lo, hi, reason)

    def put_back_dead_letters(self, entries: list[Span | Gap]) -> None:
        """Messages that were to leave stay, where they were."""
        self.ready_count += sum(entry.count for entry in entries)
        if self.rules.max_bytes is not None:
            self.ready_bytes += sum(map(ttl_and_length.entry_bytes, entries))
        self.put_back_many(entries)
        self.host.dirty[self] = None

    def put_back_gap(self, gap: Gap) -> None:
        """Messages wait again that only the log has."""
        self.ready_count += gap.count
        self.put_back(gap)
        self.host.dirty[self] = None

    def drop_last(self, span: Span, count: int, reason: str) -> None:
        """The last of those that wait leave unserved."""
        batch, hi = span.batch, span.hi
        span.hi -= count
        if span.lo == span.hi:
            self.ready.pop()
        self.count_out(batch, hi - count, hi)
        self.dead_letter_or_drop(batch, hi - count, hi, reason)

    def drop_gap(self, gap: Gap, count: int) -> int:
        """Drop that many messages, or all, of a gap without holes at the head; no dead letters. Return the count."""
        count = min(count, gap.count)
        self.settle_numbers(gap.first, gap.first + count - 1, "maxlen")
        self.ready_count -= count
        share = gap.body_bytes * count // gap.count  # About; what is read is counted anew.
        gap.body_bytes -= share
        self.ready_bytes -= share
        gap.first += count
        gap.count -= count
        if not gap.count:
            self.ready.popleft()
            self.stop_loading(gap)
        return count

    def settle_numbers(self, first: int, last: int, reason: str = "") -> None:
        """Messages that only the log has are gone; for a reason, if nobody has acknowledged them."""
        if reason:
            self._tell_unserved(reason, first, last)
        self.settled = self.settled or []
        self.settled.append((first, last))
        self._tell_settled(first, last)
        self.host.dirty[self] = None

    def settle_unserved(self, batch: Batch, lo: int, hi: int, reason: str, kind: str = "") -> None:
        """These messages are gone, and nobody has acknowledged them."""
        self._tell_unserved(reason, batch.first + lo, batch.first + hi - 1, kind)
        self.settle(batch, lo, hi)

    def settle(self, batch: Batch, lo: int, hi: int) -> None:
        """These messages are gone."""
        if self.deleted:
            return
        first, last = batch.first + lo, batch.first + hi - 1
        if self.extensions is not None:
            self._tell_settled(first, last)
        if batch.stored:
            settled = self.settled
            if not settled:
                self.settled = [(first, last)]
            elif settled[-1][1] == first - 1:
                settled[-1] = (settled[-1][0], last)
            else:
                settled.append((first, last))
        elif self.extensions is not None:
            for tell in self.extensions.on_settlement:
                tell([(first, last)])
        self._let_go(batch, hi - lo)
        self.host.dirty[self] = None

    def _give_back(self, batch: Batch, lo: int, hi: int, shown: bool, counted: bool) -> list[Span | Gap]:
        self.refresh_rules()
        count = hi - lo
        self.unacked_count -= count
        self.ready_count += count
        if self.rules.max_bytes is not None and not batch.paged:
            self.ready_bytes += ttl_and_length.bodies(batch.contents[lo:hi])
        first, last = batch.first + lo, batch.first + hi - 1
        counted = counted and shown
        # Where others were given later ones meanwhile, only the mark tells why this one comes out of order.
        shown = shown or last < self.delivered_through
        if self.extensions is not None and shown:
            for tell in self.extensions.on_failed if counted else self.extensions.on_recalled:
                tell(batch, lo, hi)
        if shown:
            batch.mark_redelivered(lo, hi)
            if batch.stored:
                self.requeued = self.requeued or []
                self.requeued.append((first, last))
        elif not batch.paged and not batch.redelivered_within(lo, hi):  # Else somebody was shown them before.
            self.delivered_through = min(first - 1, self.delivered_through)
        self._tell_returned(first, last)
        self.host.dirty[self] = None
        return waiting_again(Span(batch, lo, hi))

    def requeue_numbers(self, first: int, last: int, shown: bool) -> None:
        """A consumer gives messages back that only the log has, and that no consumer has failed with."""
        self.unacked_count -= last - first + 1
        if shown:
            self.note_requeued([(first, last)])
        self._tell_returned(first, last)
        self.put_back_gap(Gap(first, last, last - first + 1, redelivered=shown))

    def purge(self) -> int:
        """Drop all that waits; what is out with consumers stays theirs."""
        count = self.ready_count
        for entry in self.ready:
            if isinstance(entry, Span):
                self.settle_unserved(entry.batch, entry.lo, entry.hi, "purged")
            else:
                self.settle_numbers(entry.first, entry.last, "purged")
        if self.ready:
            self.ready.clear()
        self.ready_count = self.ready_bytes = 0
        self.loading = None
        self.host.dirty[self] = None
        return count

    def drop_numbers(self, ranges: list[tuple[int, int]]) -> int:
        """Drop messages with these numbers, ascending, as far as they wait. Return how many there were."""
        dropped = 0
        for batch, lo, hi in reserve(self, ranges):
            self.unacked_count -= hi - lo
            self.settle_unserved(batch, lo, hi, "purged")
            dropped += hi - lo
        self.host.dirty[self] = None
        return dropped

    # -- The log -------------------------------------------------------------------------------------------------

    def _load(self, read: GapRead) -> None:
        self.host.load(self, read)

    def restore(self, number: int, epoch: int, next_seq: int, first: int, last: int, count: int, through: int) -> None:
        """After a start: what the log holds, all of it waiting."""
        self.number, self.epoch, self.next_seq = number, epoch, next_seq
        self.delivered_through = self.noted_through = through
        if count:
            self.restore_gap(Gap(first, last, count))

    def restore_state(self, table: dict[bytes, bytes]) -> None:
        """Its durable state has come from its log, or from where it was. All its messages wait."""
        super().restore_state(table)
        self.host.features.restore(self)

    def page_out(self) -> None:
        super().page_out()
        self._tell_page_out()

    def end_batch(self) -> None:
        """Let the next message begin another batch, if the open one has nothing for the log."""
        if self.open is not None and not self.open.stored:
            self.open = None

    def close_batch(self) -> None:
        """The turn is over: a batch with nothing for the log need not stay open.

        Nobody takes anything of it: then it does, until it has some size. A backlog of large batches costs less than
        one of small ones, and its lists are given back to the system when it is gone: see `node.allocator`. Where
        messages leave by themselves, one after the other, the contents of a large batch would outlive most of them.
        """
        self.active_ms = self.host.now_ms
        batch = self.open
        if batch is not None and not batch.stored:
            leave = self.consumers or self.has_upkeep or self.applied_rules.dead_letter_exchange is not None
            if leave or batch.left < len(batch.contents) or batch.size >= KEEP_BYTES:
                self.open = None
            else:
                batch.carried = True
        elif not self.consumers:
            self.rest()

    def on_logged(self, batch: Batch) -> None:
        """The block with this batch is on disk; that of a mirrored queue, on those of all mirrors that count."""
        batch.mark_logged(self.mirror is not None or batch.all_persistent())
        if self._has_waiting_for_log():
            self.host.dirty[self] = None
        if self.extensions is not None:
            for tell in self.extensions.on_logged:
                tell()
        held, rules = self.host.content_bytes, self.rules
        wants_disk = rules is not PLAIN and rules.wants_disk(self.ready_count, self.memory_bytes)
        if wants_disk or held > self.host.content_bytes_max:
            self.page_out()
