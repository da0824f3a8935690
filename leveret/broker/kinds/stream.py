"""A stream: a queue that keeps what it gave out, and gives all of it to everybody.

    number   1 ………… first ……………………………………… tail ……………… committed ……… next_seq
             given up  │  in the log only         in memory   │   on its way to the log, shown to nobody
                       └ reader A        └ reader B         └ reader C

To publishers, mirrors and the log it is a queue like any other, with the same blocks and the same cost; only that all
its messages are persistent, whatever their publishers said. What differs is the other end. Nothing is waiting and
nothing is out: each consumer is a `Reader` with a position of its own, which goes ahead as it is given messages. An
acknowledgement is credit for more and nothing else. What is given up at the front (see `retention`) is `settled` in the
next block, as if it had been consumed, so that its space comes back as that of any other queue.

**Only what is committed is read.** A queue may deliver what is not on disk yet; if the node dies, the message was never
confirmed and comes again. Not so here, because clients remember offsets: a message that was seen under a number that
another one gets after the crash would make them miss that other one. So readers get what `on_logged` has told of:
what is on disk, and of a mirrored stream, on the disks of all mirrors that count. Offsets never change their meaning,
whatever node leads the stream.

**Where contents come from.** What has just come is in memory (`tail`) until all readers that keep up have it, but never
more than some megabytes: they are given the very same bytes. A reader that is further back has a *piece* of the log
read at its position; pieces are shared by whoever comes to them, a few are kept, and the one that was not used for
longest goes. One read is under way at a time, for the readers in turn, and if there are many of them that are far
apart, pieces are smaller. So memory does not depend on how many readers there are, and a stream that nobody reads holds
none.

**Times.** Blocks know when their messages came. To begin at a time, the log is searched by halves: one block is read
for each step, some twenty in all, and nothing has to be kept for it.

**When a consumer's stream has another master**, it subscribes there by itself, like every consumer. Its `begins_at`
says where it goes on: behind the last message that its client was given.

A new master, as a node that has started, may hold blocks that were confirmed and of which it does not know that yet
(`restored`). They are old messages all the same: who wants the next one begins behind them. Should this master fall
before they are committed, then they may be gone, and others get their numbers; so until it was given something, such a
reader says that it wanted the next and where that was, and the one after begins there, or where it ends itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, Batch
from leveret.broker.delivery.confirms import NEVER
from leveret.broker.delivery.offsets import FIRST, NEXT, OFFSET, TIME, Start, with_offsets
from leveret.broker.kinds.delayed_queue import DelayedQueue
from leveret.broker.kinds.priority_queue import PriorityQueue
from leveret.broker.kinds.retention import Retention
from leveret.broker.queue.hold import park
from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.queue.ordered_queue import KEEP_BYTES
from leveret.broker.queue.queue import Queue
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.model.refusals import Refusal, resource
from leveret.metadata.rules.ha_policy import is_stream
from leveret.metadata.rules.queue_rules import max_priority
from leveret.storage.format.queue_block import PERSISTENT, SHARED, Block, Run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from leveret.broker.delivery.answers import Got
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.consumer import Consumer
    from leveret.broker.mirrors.copy_store import Stored
    from leveret.broker.queue.host import Host
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.rules.queue_rules import QueueRules
    from leveret.replication.ring_frames import Started

TAIL_BYTES: Final = 4 << 20
PIECES_BYTES: Final = 8 << 20  # Of pieces that are kept, in all.
PIECE_BYTES_MAX: Final = 1 << 20
PIECE_BYTES_MIN: Final = 64 << 10
BROKEN_MAX: Final = 1_000

_FIRST = attrgetter("first")
_LAST = attrgetter("last")


class StreamBatch(Batch):
    """Messages of a stream. `has_offsets`: they have their offsets among their headers, and are not for the log."""

    __slots__ = ("has_offsets",)

    def __init__(self, first: int) -> None:
        super().__init__(first)
        self.has_offsets = False

    def replace(self, contents: list[bytes]) -> int:
        """Take contents that have their offsets among their headers. Returns how many bytes they have more."""
        grown = sum(map(len, contents)) - sum(map(len, self.contents))
        self.contents, self.kinds = contents, bytearray(len(contents))
        self.has_offsets, self.redelivered, self.expires = True, False, False
        self.size += grown
        return grown

    def release(self) -> None:
        """Drop the contents; clients that have some in hand were given them."""
        self.size = self.left = 0
        self.forget_contents()


class Piece:
    """The messages `first`..`next` - 1 as they were read from the log."""

    __slots__ = ("batches", "bytes", "first", "next")

    def __init__(self, first: int, following: int, batches: list[StreamBatch]) -> None:
        self.first = first
        self.next = following
        self.batches = batches
        self.bytes = sum(batch.size for batch in batches)


class Reader:
    """A consumer, and the number of the message that it gets next."""

    __slots__ = ("consumer", "position", "seeking")

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.position = 0
        self.seeking = False  # Where it begins is being looked up.


class StreamQueue(LocalQueue):
    """A stream, at its master."""

    __slots__ = (
        "broken", "committed", "dating", "first", "last_batch", "pieces", "reader_of", "reading", "restored",
        "retention", "tail", "tail_bytes", "undecided",
    )  # fmt: skip

    def __init__(self, spec: QueueSpec, host: Host) -> None:
        super().__init__(spec, host)
        self.reset_totals()
        self.retention = Retention()
        self.first = 1  # The oldest message that is kept.
        self.committed = self.restored = 0
        self.last_batch = 1  # With which message the batch begins that was committed last.
        self.tail: list[StreamBatch] = []  # Committed, ascending, without holes up to the last of all.
        self.tail_bytes = 0
        self.pieces: list[Piece] = []  # The one that was used last is the last.
        self.reader_of: dict[Consumer, Reader] = {}  # Who was read for last is the last.
        self.reading = False  # A piece.
        self.dating = False  # The age of the oldest stretch is being looked up.
        self.broken: set[int] = set()  # Positions at which the log could not be read.
        self.undecided: list[tuple[Reader, int]] = []  # Begin at a time, as soon as what was restored is committed.
        self.set_rules(host.rules_of(spec))

    # -- Publishing ----------------------------------------------------------------------------------------------

    def enqueue(self, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending | None) -> bool:
        if self.parked is not None:
            return park(self.parked, contents, keys, kind, size, pending)
        batch = self.open
        if batch is None:
            batch = self.open = StreamBatch(self.next_seq)
            batch.stored = True
        count, host = len(contents), self.host
        batch.contents += contents
        batch.keys += keys
        batch.kinds += bytes((PERSISTENT | kind & SHARED,)) * count
        batch.left += count
        batch.size += size
        batch.unlogged_bytes += size
        self.memory_bytes += size
        self.next_seq += count
        self.ready_count += count
        host.content_bytes += size
        host.unlogged_bytes += size
        if pending is not None:
            self._await_safe(pending, count)
        self.totals.published += count
        host.dirty[self] = None
        if self.extensions is not None:
            for tell in self.extensions.on_enqueued:
                tell(count, PERSISTENT, pending)
        return self.ready_count > self.crowded_at

    def set_rules(self, rules: QueueRules) -> None:
        """Apply the rules for age and size; a stream has no others."""
        if rules == self.applied_rules:
            return
        self.applied_rules = rules
        self.retention.set_rules(rules)
        self.host.features.apply_journal(self, rules)
        self.host.dirty[self] = None

    def set_pressed(self, pressed: bool) -> None:
        """Readers do not keep publishers waiting, however many they are."""
        self.crowded_at = -1 if pressed else NEVER

    # -- What streams do not do ----------------------------------------------------------------------------------

    def purge_all(self, then: Callable[[int | Refusal], None]) -> None:
        then(self.refusal("queue.purge"))

    def fetch(self, no_ack: bool, wanted: Callable[[], bool], then: Callable[[Got | Refusal | None], None]) -> None:
        then(self.refusal("basic.get"))

    def refusal(self, what: str) -> Refusal:
        return unsupported(what, self.spec)

    # -- Readers -------------------------------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        if consumer.exclusive:
            self.exclusive_consumer = consumer
        self._append_consumer(consumer)
        self.used_ms = self.host.now_ms
        reader = self.reader_of[consumer] = Reader(consumer)
        kind, value = consumer.begins_at or Start(NEXT)
        if kind == TIME:
            self._seek(reader, value)
        elif kind == OFFSET:
            self._begin(reader, value + 1)
        elif kind == NEXT:
            following = max(self.committed, self.restored) + 1
            self._begin(reader, min(value, following) if value else following)
            consumer.begins_at = Start(NEXT, reader.position)
        else:
            self._begin(reader, self.first if kind == FIRST else self.last_batch)

    def _begin(self, reader: Reader, position: int) -> None:
        reader.position = max(position, self.first)
        reader.consumer.begins_at = Start(OFFSET, reader.position - 1)
        self.host.dirty[self] = None

    def remove_consumer(self, consumer: Consumer, then: Callable[[], None] | None = None) -> None:
        super().remove_consumer(consumer, then)
        self.reader_of.pop(consumer, None)

    def settle_delivered(self, batch: Batch, lo: int, hi: int) -> None:
        """A reader has room for more; that is all that an acknowledgement means."""
        self.totals.acked += hi - lo

    def discard(self, batch: Batch, lo: int, hi: int) -> None:
        """Does nothing: its channel has refused that. Of another node's, nothing more is heard."""

    def requeue_many(self, pieces: list[tuple[Batch, int, int]], shown: bool = True, counted: bool = True) -> None:
        """Does nothing: delivered messages stay in a stream."""

    def page_out_unacked(self, batch: Batch, count: int) -> None:
        """Does nothing: unacknowledged messages are not kept in memory."""

    def let_go_of_all(self) -> None:
        super().let_go_of_all()
        self.tail, self.pieces, self.reader_of, self.tail_bytes, self.undecided = [], [], {}, 0, []

    # -- Delivering ----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        if self.frozen:
            return
        self._trim()
        hungry: Reader | None = None
        for reader in self.reader_of.values():
            if not reader.seeking and self._serve(reader) and hungry is None and reader.position not in self.broken:
                hungry = reader
        if self.tail or self.pieces:
            self._let_go_of_read()
        if self.reading:
            return
        if hungry is not None:
            self.reader_of[hungry.consumer] = self.reader_of.pop(hungry.consumer)
            self._read(hungry.position)
        elif self.pieces:
            self._read_ahead(self.pieces[-1])

    def _serve(self, reader: Reader) -> bool:
        """Give a reader what is in memory. True: it could take more, which is in the log."""
        consumer = reader.consumer
        while reader.position <= self.committed:
            reader.position = max(reader.position, self.first)
            batch = self._find(reader)
            if batch is None:
                return reader.position <= self.committed and consumer.room(self._mean_bytes()) > 0
            room = consumer.room(batch.average_bytes())
            if room <= 0:
                return False
            if not batch.has_offsets:
                self._dress(batch)
            lo = reader.position - batch.first
            hi = min(lo + room, len(batch.contents))
            reader.position = batch.first + hi
            consumer.deliver(batch, lo, hi)
            if consumer.no_ack:
                self.totals.delivered_no_ack += hi - lo
            else:
                self.totals.delivered += hi - lo
            consumer.begins_at = Start(OFFSET, reader.position - 1)
            if self.extensions is not None:
                for tell in self.extensions.on_delivered:
                    tell(consumer, batch.first + lo, reader.position - 1)
        return False

    def _find(self, reader: Reader) -> StreamBatch | None:
        """The batch with the reader's next message, if it is in memory. Numbers that are missing are passed over."""
        while reader.position <= self.committed:
            if self._is_warm(reader.position):
                batches, following = self.tail, self.committed + 1
            else:
                piece = self._piece_at(reader.position)
                if piece is None:
                    return None
                batches, following = piece.batches, piece.next
            at = bisect_right(batches, reader.position, key=_FIRST)
            if at and batches[at - 1].last >= reader.position:
                return batches[at - 1]
            reader.position = batches[at].first if at < len(batches) else following
        return None

    def _let_go_of_read(self) -> None:
        """Forget what nobody is about to be given."""
        warm = [reader.position for reader in self.reader_of.values() if self._is_warm(reader.position)]
        if self.pieces and len(warm) == len(self.reader_of):
            self._drop_pieces(0)
        lowest = min(warm, default=self.committed + 1)
        self._drop_tail(bisect_left(self.tail, lowest, key=_LAST))

    def _is_warm(self, position: int) -> bool:
        """Returns whether everything from this position on is in memory."""
        return position > self.committed or bool(self.tail and self.tail[0].first <= position)

    def _piece_at(self, position: int) -> Piece | None:
        for piece in reversed(self.pieces):
            if piece.first <= position < piece.next:
                if piece is not self.pieces[-1]:
                    self.pieces.remove(piece)
                    self.pieces.append(piece)
                return piece
        return None

    def _mean_bytes(self) -> int:
        return self.retention.bytes // max(self.ready_count, 1) + MESSAGE_OVERHEAD

    def _dress(self, batch: StreamBatch) -> None:
        """Once, for all readers."""
        made = with_offsets(batch.contents, batch.first - 1)
        grown = batch.replace(made)
        self._count(grown)
        if self._is_warm(batch.first):
            self.tail_bytes += grown

    def _count(self, grown: int) -> None:
        self.memory_bytes += grown
        self.host.content_bytes += grown

    # -- The log -------------------------------------------------------------------------------------------------

    def take_block(self, time_ms: int) -> Block | None:
        batch = self.open
        if batch is not None:
            batch.stamp(time_ms)
            count = len(batch.contents)
            self.retention.add(batch.first, batch.last, batch.size - MESSAGE_OVERHEAD * count, time_ms)
        return super().take_block(time_ms)

    def close_batch(self) -> None:
        self.active_ms = self.host.now_ms

    def on_logged(self, batch: Batch) -> None:
        """The messages of a batch are committed, and may be delivered now."""
        assert isinstance(batch, StreamBatch) and batch.first > self.committed
        batch.mark_logged()
        self.committed, self.last_batch = batch.last, batch.first
        self.tail.append(batch)
        self.tail_bytes += batch.size
        if not self.reader_of:  # Then a turn has nothing to do with it, unless it is too large.
            self._drop_tail(len(self.tail))
            if self.retention.has_to_look():
                self.host.dirty[self] = None
            return
        if self.tail_bytes > TAIL_BYTES + TAIL_BYTES // 4:
            self._shrink_tail(TAIL_BYTES)
        if self.host.content_bytes > self.host.content_bytes_max:
            self.page_out()
        if self.undecided and self.committed >= self.restored:
            undecided, self.undecided = self.undecided, []
            for reader, time_ms in undecided:
                if self.reader_of.get(reader.consumer) is reader:
                    reader.seeking = False
                    self._seek(reader, time_ms)
        self.host.dirty[self] = None

    def page_out(self) -> None:
        """Forget what can be read again; those that keep up should find the newest."""
        self._drop_pieces(1)
        self._shrink_tail(KEEP_BYTES)

    def _shrink_tail(self, bytes_max: int) -> None:
        """From the oldest on. The last batch stays: who waits for it is about to be given it."""
        at, rest = 0, self.tail_bytes
        while rest > bytes_max and at < len(self.tail) - 1:
            rest -= self.tail[at].size
            at += 1
        self._drop_tail(at)

    def _drop_tail(self, count: int) -> None:
        if count:
            dropped = self.tail[:count]
            self.tail_bytes -= sum(batch.size for batch in dropped)
            self._release(dropped)
            del self.tail[:count]

    def _release(self, batches: Sequence[StreamBatch]) -> None:
        """Clients may still have some in hand; their contents they have been given."""
        for batch in batches:
            self._count(-batch.size)
            batch.release()

    def _drop_pieces(self, kept: int) -> None:
        while len(self.pieces) > kept:
            self._release(self.pieces.pop(0).batches)

    def _read(self, position: int) -> None:
        """Have a piece read that begins there."""
        self.reading = True
        cold = sum(not self._is_warm(reader.position) for reader in self.reader_of.values())
        room = min(max(PIECES_BYTES // (cold + 1), PIECE_BYTES_MIN), PIECE_BYTES_MAX)
        last = self.tail[0].first - 1 if self.tail else self.committed

        def then(runs: list[Run] | None, following: int) -> None:
            self.reading = False
            if self.deleted:
                return
            if runs is None:
                # Its readers stand still there, and others go on. To skip what is damaged would be to lose it.
                if len(self.broken) < BROKEN_MAX:
                    self.broken.add(position)
            else:
                self._keep(Piece(position, following, [StreamBatch.loaded(run) for run in runs]))
            self.host.dirty[self] = None

        self.host.read_range(self.spec.id, position, last, room, then)

    def _keep(self, piece: Piece) -> None:
        self._count(piece.bytes)
        self.pieces.append(piece)
        kept = sum(one.bytes for one in self.pieces)
        while kept > PIECES_BYTES and len(self.pieces) > 1:
            oldest = self.pieces.pop(0)
            kept -= oldest.bytes
            self._release(oldest.batches)

    def _read_ahead(self, piece: Piece) -> None:
        """While readers are given a piece, read the one behind it."""
        following = piece.next
        if self._is_warm(following) or following in self.broken:
            return
        if any(one.first <= following < one.next for one in self.pieces):
            return
        if any(piece.first <= reader.position < following for reader in self.reader_of.values()):
            self._read(following)

    # -- Times ---------------------------------------------------------------------------------------------------

    def _seek(self, reader: Reader, time_ms: int) -> None:
        """Begin with the first message that is not older."""
        if self.committed < self.restored:
            reader.seeking = True
            self.undecided.append((reader, time_ms))
            return
        if self.tail and _first_time(self.tail[0]) < time_ms:
            at = bisect_left(self.tail, time_ms, key=lambda batch: batch.times[-1][1])
            if at == len(self.tail):
                self._begin(reader, self.committed + 1)
                return
            batch = self.tail[at]
            self._begin(reader, batch.first + (_since(batch, time_ms) or 0))
            return
        reader.seeking = True
        high = self.tail[0].first if self.tail else self.committed + 1
        self._halve(reader, time_ms, self.first, high)

    def _halve(self, reader: Reader, time_ms: int, low: int, high: int) -> None:
        """Find the first message of a time by bisection within low..high. A step reads the rest of one block."""
        if low >= high:
            self._found(reader, low)
            return
        middle = (low + high) // 2

        def then(runs: list[Run] | None, following: int) -> None:
            if self.deleted or self.reader_of.get(reader.consumer) is not reader:
                return
            if runs is None:
                self._found(reader, low)  # Too early is better than too late.
                return
            since = _since(runs[0], time_ms) if runs else 0
            if since is None:
                self._halve(reader, time_ms, runs[0].last + 1, high)
            elif since:
                self._found(reader, runs[0].first + since)
            else:
                self._halve(reader, time_ms, low, middle)

        self.host.read_range(self.spec.id, middle, high - 1, 1, then)

    def _found(self, reader: Reader, position: int) -> None:
        reader.seeking = False
        self._begin(reader, position)

    # -- Retention -----------------------------------------------------------------------------------------------

    def _trim(self) -> None:
        """Give up at the front what there is no room for, or what is too old."""
        retention, host = self.retention, self.host
        last = retention.take(self.committed, host.wall_ms)
        if last >= self.first:
            self.settled = [*self.settled, (self.first, last)]
            self.ready_count -= last - self.first + 1
            self.first = last + 1
            self._drop_tail(bisect_right(self.tail, last, key=_LAST))
        due_ms = retention.due_ms()
        if due_ms is not None:
            host.timers.set(self, due_ms)
        elif not self.dating:
            self._date()

    def _date(self) -> None:
        """After a start: how old is the oldest stretch?"""
        stretch = self.retention.undated()
        if stretch is None or stretch.last > self.committed:
            return
        self.dating = True

        def then(runs: list[Run] | None, following: int) -> None:
            # Of what cannot be read, or is not there, nothing is known: then it is as old as today.
            stretch.newest_ms = runs[-1].times[-1][1] if runs and runs[-1].times else self.host.wall_ms
            self.dating = False
            self.host.dirty[self] = None

        self.host.read_range(self.spec.id, stretch.last, stretch.last, 1, then)

    # -- A start -------------------------------------------------------------------------------------------------

    def restore(self, number: int, epoch: int, next_seq: int, first: int, last: int, count: int, through: int) -> None:
        """Restore the stream: all that the log holds can be delivered. `weigh` sets its size."""
        self.number, self.epoch, self.next_seq = number, epoch, next_seq
        self.first = first if count else next_seq
        self.committed = next_seq - 1
        self.last_batch = max(self.committed, self.first)
        self.ready_count = count

    def weigh(self, stored: Stored) -> None:
        pieces = stored.pieces(self.retention.stretch_bytes)
        self.retention.restore((first, last, size) for first, last, size in pieces if last >= self.first)
        self.last_batch = max(stored.last_block_first, self.first)

    def begin_with(self, first: int) -> None:
        """The oldest message that is kept has this number, or a higher one."""
        self.first = first
        self.restored = self.next_seq - 1

    def restore_run(self, run: Run, time_ms: int) -> Batch:
        """Messages of a block that is not applied yet follow those that were restored before, and are not committed."""
        batch = StreamBatch.loaded(Run(run.first, run.contents, run.keys, bytearray(run.kinds), run.times))
        batch.mark_unlogged()
        if not batch.times:
            batch.stamp(time_ms)
        self._count(batch.size)
        self.next_seq = batch.last + 1
        self.restored = batch.last
        self.ready_count += batch.left
        self.retention.add(batch.first, batch.last, batch.size - MESSAGE_OVERHEAD * batch.left, time_ms)
        return batch


def _first_time(run: Run) -> int:
    return run.times[0][1] if run.times else 0


def _since(run: Run, time_ms: int) -> int | None:
    """The index of the first message that is not older; None: they all are."""
    return next((at for at, came_ms in run.times if came_ms >= time_ms), None)


def unsupported(what: str, spec: QueueSpec) -> Refusal:
    return Refusal(540, f"{what} not supported by stream queues {resource('queue', spec.name, spec.vhost)}")


def make_queue(spec: QueueSpec, host: Host) -> Queue | StreamQueue:
    """A queue of the type that it was declared with."""
    if is_hidden_queue(spec.name):
        return DelayedQueue(spec, host)
    if is_stream(spec.arguments):
        return StreamQueue(spec, host)
    highest = max_priority(spec.arguments)
    return PriorityQueue(spec, host, highest) if highest else Queue(spec, host)


def restore_stream(queue: StreamQueue, stored: Stored, started: Started) -> list[tuple[int, Batch]]:
    """Restore a stream as `restore_queue` does a queue. Blocks not applied yet are committed as they are."""
    tail = started.tail
    first = stored.live.first or stored.next_seq
    for low, high in sorted(pair for block in tail for pair in block.settled):
        if low <= first <= high:
            first = high + 1
    count = stored.live.count_within(first, stored.next_seq)
    queue.restore(started.number, started.epoch, stored.next_seq, first, 0, count, 0)
    queue.begin_with(first)
    queue.weigh(stored)
    batches: list[tuple[int, Batch]] = []
    for block in tail:
        run = block.enqueued
        if run is not None and run.contents:
            batches.append((block.number, queue.restore_run(run, block.time_ms)))
    return batches
