"""This node's end of a session with a node whose clients use queues here. `remote_queue` describes the protocol.

To a queue here, a consumer behind a link is a consumer like any other (`RemoteConsumer`), and its unacknowledged
messages are in the link's `Unacked` as a channel's are in the channel's.

Memory that another node can make this one use is bounded: publishes by the credit it was granted, which is not renewed
while too much waits for the disk or a queue grows though its consumers work; deliveries by each subscription's window;
questions by the number of its clients, each of which has one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.answers import Got, Status, unreachable
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, Batch
from leveret.broker.delivery.confirms import Confirms, Numbers
from leveret.broker.delivery.consumer import wants_origins
from leveret.broker.delivery.offsets import NEXT, OFFSET, ORIGINS, STARTS, Start
from leveret.broker.delivery.reserve import reserve
from leveret.broker.delivery.unacked import Delivered, Unacked
from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.broker.queue.queue import Queue
from leveret.broker.remote import peer_frames as w
from leveret.broker.remote.client_end import FEED_BYTES_MAX, FIRST_CREDIT, FLUSH_BYTES
from leveret.broker.remote.handover import unmark
from leveret.links import frame_types
from leveret.links.proposals import BadFrame
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.rules.ha_policy import is_stream
from leveret.storage.format.errors import FormatError
from leveret.storage.format.queue_block import KEPT, SHARED
from leveret.storage.format.queue_marks import unpack_marks

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.queue.local_queue import LocalQueue

UNLIMITED: Final = 1 << 30
# Frames that begin with the index of the metadata at the client's node.
INDEXED: Final = frozenset({frame_types.PUBLISH, frame_types.PRODUCE, frame_types.ASK, frame_types.PASSED})


class RemoteConsumer:
    """A consumer at another node."""

    __slots__ = (
        "begins_at", "exclusive", "is_exact", "owner_end", "no_ack", "number", "prefetch", "priority", "queue",
        "sent_bytes", "tag", "taken_bytes", "timeout_ms", "unacked",
    )  # fmt: skip

    def __init__(
        self,
        owner_end: OwnerEnd,
        number: int,
        queue: LocalQueue,
        tag: str,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        priority: int,
        start: Start | None = None,
        is_exact: bool = False,
    ) -> None:
        self.owner_end = owner_end
        self.number = number
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch  # 0 is no limit.
        self.priority = priority
        self.begins_at = start
        self.is_exact = is_exact  # Its node is told the numbers of messages.
        self.timeout_ms: int | None = None  # The client's node applies the consumer timeout.
        self.unacked = 0
        self.sent_bytes = self.taken_bytes = 0  # In all, since it subscribed.

    @property
    def who(self) -> str:
        return f"{self.owner_end.peer} {self.tag}"

    def room(self, average_bytes: int) -> int:
        owner_end = self.owner_end
        under_way = self.sent_bytes - self.taken_bytes
        room = (FEED_BYTES_MAX - under_way) // average_bytes
        if room <= 0 and not under_way:
            room = 1  # One message larger than the window.
        if room > 0 and not owner_end.broker.node.is_writable(owner_end.peer):
            room = 0
        if room <= 0:
            owner_end.stalled[self.queue] = None
            return 0
        if wants_origins(self) and not self.queue.host.features.has_origins(self.queue):
            return 0  # The queue goes on by itself.
        if self.prefetch and not self.no_ack:
            room = min(room, self.prefetch - self.unacked)
        return room

    def deliver(self, batch: Batch, lo: int, hi: int) -> None:
        owner_end, count = self.owner_end, hi - lo
        first_tag = owner_end.last_tag + 1
        owner_end.last_tag += count
        whole = count == len(batch.contents)
        contents = batch.contents if whole else batch.contents[lo:hi]
        returns = self.queue.extension(DeliveryLimit) if batch.redelivered else None
        if returns is not None:
            contents = returns.labelled(batch, lo, hi)
        if wants_origins(self):
            contents = self.queue.host.features.with_origins(self.queue, batch, lo, hi, contents)
        keys = batch.keys if whole else batch.keys[lo:hi]
        size = sum(map(len, contents)) + MESSAGE_OVERHEAD * count
        self.sent_bytes += size
        first_number = batch.first + lo if self.is_exact else 0
        owner_end.deliver(self.number, first_tag, first_number, contents, keys, batch.kinds[lo:hi], size)
        if not self.no_ack:
            self.unacked += count
            owner_end.unacked.add(first_tag, count, self.queue, self, batch, lo, owner_end.broker.now_ms)

    def on_queue_deleted(self) -> None:
        owner_end = self.owner_end
        owner_end.consumers.pop(self.number, None)
        owner_end.send_now(frame_types.CANCELLED, [w.U64.pack(self.number)])


class OwnerEnd:
    """This node's end of a session with a node whose clients use queues here."""

    def __init__(self, broker: Broker, peer: str) -> None:
        self.broker = broker
        self.peer = peer
        self.is_up = True
        self.is_broken = False  # The link is about to be cut: frames that still come are ignored.
        self.unacked = Unacked()
        # Unacknowledged messages that the other node delivered when it led these queues; by queue, epoch and block:
        # see `handover`.
        self.inherited: dict[tuple[int, int, int], Unacked] = {}
        self.detached: dict[int, Unacked] = {}  # By queue: what the other node delivered while detached.
        self.last_tag = 0
        self.consumers: dict[int, RemoteConsumer] = {}
        self.stalled: dict[AnyQueue, None] = {}  # Queues that had more for a consumer than its window or link takes.
        self.confirms = Confirms(self._touch, peer, is_of_link=True)
        self.deliveries: list[bytes] = []
        self.numbered: list[bytes] = []  # Likewise, to those that are told the numbers of messages.
        self.delivery_bytes = 0
        self.received_bytes = 0
        self.granted = FIRST_CREDIT
        self.crowded_queue: AnyQueue | None = None  # A queue that grows although its consumers work.
        self.early: deque[tuple[int, int, bytes]] = deque()  # Frames that need metadata not yet known here.

    def _touch(self) -> None:
        if self.is_up:
            self.broker.linked[self] = None

    # -- From the client's node ----------------------------------------------------------------------------------

    def on_frame(self, kind: int, payload: bytes) -> None:
        """Raises `BadFrame`."""
        if self.is_broken:
            return
        index = w.unpack_one(w.U64, payload)[0] if kind in INDEXED else 0
        if self.early or index > self.broker.metadata.index:
            self.early.append((index, kind, payload))
        else:
            _FROM_CLIENT_END[kind](self, payload)

    def on_metadata(self) -> None:
        """More of the metadata is known: handle the frames that waited for it."""
        try:
            while self.early and self.early[0][0] <= self.broker.metadata.index and self.is_up:
                _, kind, payload = self.early.popleft()
                _FROM_CLIENT_END[kind](self, payload)
        except BadFrame as error:  # No caller is here that would end the session.
            self.early.clear()
            self.is_broken = True
            self.broker.node.cut(self.peer, str(error))

    def _on_publish(self, payload: bytes) -> None:
        if self.broker.journal is not None:
            self.broker.journal.begin_publish(self.peer)
        at = 8
        while at < len(payload):
            number, token = w.unpack_one(w.BUNDLE, payload, at)
            (contents, keys, kinds), at = w.unpack_run(payload, at + w.BUNDLE.size)
            size = sum(map(len, contents)) + MESSAGE_OVERHEAD * len(contents)
            self.received_bytes += size
            pending = None
            if token:
                pending = self.confirms.begin(1)
                pending.count = len(contents)
                if pending.last != token:
                    raise BadFrame(f"token {token} after {pending.last - 1}")
            queue = self.broker.queues_by_id.get(number)
            if queue is not None:  # Else it was deleted, with its messages.
                self.broker.totals.published += len(contents)
                enqueue = queue.enqueue if queue.is_local else queue.relay
                if enqueue(contents, keys, kinds[0], size, pending):
                    self.crowded_queue = queue
            if pending is not None and not pending.waiting:
                self.confirms.on_complete(pending)
        self._touch()

    def _on_produce(self, payload: bytes) -> None:
        """Publishes with their producers' numbers."""
        if self.broker.journal is not None:
            self.broker.journal.begin_publish(self.peer)
        at = 8
        while at < len(payload):
            number, token = w.unpack_one(w.BUNDLE, payload, at)
            origin, at = w.unpack_origin(payload, at + w.BUNDLE.size)
            (contents, keys, kinds), at = w.unpack_run(payload, at)
            size = sum(map(len, contents)) + MESSAGE_OVERHEAD * len(contents)
            self.received_bytes += size
            numbers = Numbers(origin.producer, origin.first, origin.first + len(contents) - 1)
            pending = self.confirms.begin_bundle(numbers)
            if pending.last != token:
                raise BadFrame(f"token {token} after {pending.last - 1}")
            queue = self.broker.queues_by_id.get(number)
            if queue is not None:
                self.broker.totals.published += len(contents)
                if queue.enqueue_from(origin, contents, keys, kinds[0], size, pending):
                    self.crowded_queue = queue
            if not pending.waiting:
                self.confirms.on_complete(pending)
        self._touch()

    def _on_stage(self, payload: bytes) -> None:
        """Messages of a queue that moves here. Each has its own kind, since some may have been delivered before."""
        number, token = w.unpack_one(w.BUNDLE, payload)
        (contents, keys, kinds), end = w.unpack_run(payload, w.BUNDLE.size)
        (stretches,) = w.unpack_one(w.U32, payload, end)
        counts_at = end + 4 + w.TIME_ENTRY.size * stretches
        times = w.unpack_all(w.TIME_ENTRY, payload[end + 4 : counts_at])
        if len(times) != stretches or any(at >= len(contents) for at, _ in times):
            raise BadFrame("times that do not fit their messages")
        counts = w.unpack_all(w.COUNT_ENTRY, payload[counts_at:])
        pending = self.confirms.begin(1)
        if pending.last != token:
            raise BadFrame(f"token {token} after {pending.last - 1}")
        staged = self.broker.arrivals.staged.get(number)
        if staged is None:
            pending.mark_refused()
        else:
            returns = staged.queue.extension(DeliveryLimit)
            if returns is not None:
                known = [(at, count) for at, count in counts if at < len(contents)]
                returns.arrive(staged.queue.next_seq, known)
            for kind, group in groupby(range(len(kinds)), kinds.__getitem__):
                places = list(group)
                cut = slice(places[0], places[-1] + 1)
                size = sum(map(len, contents[cut])) + MESSAGE_OVERHEAD * len(places)
                # Whatever the queue may hold: it has these already.
                staged.queue.enqueue(contents[cut], keys[cut], kind & ~SHARED | KEPT, size, pending)
                staged.queue.came_at([(at - cut.start, ms) for at, ms in times if at < cut.stop], len(places))
        if not pending.waiting:
            self.confirms.on_complete(pending)
        self._touch()

    def _on_settle(self, payload: bytes) -> None:
        self._settle(self.unacked, w.unpack_verdicts(payload), w.RETURNED)

    def _on_passed(self, payload: bytes) -> None:
        """Verdicts on messages of a queue that the other node led until a moment ago, and this one leads now."""
        _, *key = w.unpack_one(w.PASSED_HEAD, payload)
        number, epoch, block = key
        verdicts = w.unpack_verdicts(payload[w.PASSED_HEAD.size :])
        out = [(first, last) for verdict, first, last in verdicts if verdict in (w.OUT, w.FIRST_OUT)]
        queue = self.broker.queues_by_id.get(number)
        unacked = self.inherited.setdefault((number, epoch, block), Unacked())
        if isinstance(queue, Queue) and queue.former_last_block == (epoch, block):
            unmark(queue, verdicts)
            for batch, lo, hi in reserve(queue, sorted(out)):
                unacked.add(batch.first + lo, hi - lo, queue, None, batch, lo, self.broker.now_ms)
        of_former = (w.OUT, w.FIRST_OUT, w.UNSEEN)
        self._settle(unacked, [one for one in verdicts if one[0] not in of_former], w.RETURNED)
        if not unacked.count:
            del self.inherited[number, epoch, block]

    def _settle(self, unacked: Unacked, verdicts: list[tuple[int, int, int]], verdict_max: int) -> None:
        if any(verdict > verdict_max for verdict, _, _ in verdicts):  # Checked before any of them is applied.
            raise BadFrame("a verdict that is not known")
        back: dict[int, list[Delivered]] = {w.REQUEUED: [], w.RETURNED: []}
        for verdict, first, last in verdicts:
            taken = unacked.take_range(first, last)
            if verdict == w.ACKED:
                self._on_taken(taken)
                for one in taken:
                    one.queue.settle_delivered(one.batch, one.lo, one.hi)
            elif verdict == w.DISCARDED:
                self._on_taken(taken)
                for one in taken:
                    one.queue.discard(one.batch, one.lo, one.hi)
            else:
                back[verdict] += taken
        for queue in dict.fromkeys(one.queue for one in back[w.REQUEUED]):
            if queue.is_local:
                queue.catch_up()  # Before the consumers get room for more.
        for verdict, taken in back.items():  # All at once: each is requeued at its old position.
            self._on_taken(taken)
            self._requeue(taken, verdict == w.REQUEUED, unacked is not self.unacked)

    def _on_taken(self, taken: list[Delivered]) -> None:
        for one in taken:
            if one.consumer is not None:
                one.consumer.unacked -= one.count
                self.broker.dirty[one.queue] = None

    def _requeue(self, taken: list[Delivered], shown: bool = True, is_inherited: bool = False) -> None:
        by_queue: dict[AnyQueue, list[tuple[Batch, int, int]]] = {}
        for one in taken:
            by_queue.setdefault(one.queue, []).append((one.batch, one.lo, one.hi))
        for queue, pieces in by_queue.items():
            if queue.deleted:
                continue
            if is_inherited and queue.is_local and queue.rules.max_priority:
                # Nobody knows here whether others were given later ones: only a mark would tell why these come behind.
                queue.requeue_many(pieces, shown=True, counted=shown)
            else:
                queue.requeue_many(pieces, shown)

    def _on_limit(self, payload: bytes) -> None:
        number, prefetch = w.unpack_one(w.LIMIT_ENTRY, payload)
        consumer = self.consumers.get(number)
        if consumer is not None:
            consumer.prefetch = prefetch
            self.broker.dirty[consumer.queue] = None

    def _on_taken_frame(self, payload: bytes) -> None:
        for number, taken_bytes in w.unpack_all(w.TAKEN_ENTRY, payload):
            consumer = self.consumers.get(number)
            if consumer is not None:
                consumer.taken_bytes = taken_bytes
        self.on_room()

    def on_room(self) -> None:
        """The link, or a subscription's window, has room again."""
        if self.stalled:
            self.broker.touch_stalled(self.stalled)

    # -- Questions -----------------------------------------------------------------------------------------------

    def _on_ask(self, payload: bytes) -> None:
        _, number, what, queue_id = w.unpack_one(w.ASK_HEAD, payload)
        rest = payload[w.ASK_HEAD.size :]
        if what == w.CANCEL:
            self._on_cancel(number, w.unpack_one(w.U64, rest)[0], rest[w.U64.size :] == w.IN_ORDER)
            return
        if what == w.ADOPT:
            adopted = self.broker.arrivals.adopt(queue_id, self.peer, *w.unpack_one(w.U64, rest))
            self._refuse(number, adopted) if isinstance(adopted, Refusal) else self._answer(number, [adopted.encode()])
            return
        if what == w.BRING:
            self._on_bring(number, queue_id, rest)
            return
        if what == w.ABANDON:
            self.broker.arrivals.drop(queue_id)
            self._answer(number)
            return
        queue = self.broker.queues_by_id.get(queue_id)
        if queue is None:
            self._refuse(number, Refusal(404, ""))  # It was deleted; the client's node knows its name.
        elif what == w.STATUS:
            queue.status(lambda answer: self._answer_with(number, answer))
        elif what == w.PURGE:
            queue.purge_all(lambda answer: self._answer_with(number, answer))
        elif what == w.GET:
            self._on_get(number, queue, bool(w.unpack_one(w.U8, rest)[0]))
        elif what == w.SUBSCRIBE:
            self._on_subscribe(number, queue, rest)
        elif what == w.DETACHED_RECORD:
            self._on_detached_record(number, queue, rest)
        else:
            raise BadFrame(f"question {what}")

    def _on_bring(self, number: int, queue_id: int, packed: bytes) -> None:
        try:
            marks = {key: value for _, key, value in unpack_marks(packed)}
        except FormatError as error:
            raise BadFrame(str(error)) from None

        def then(safe: bool) -> None:
            if self.is_up:
                incomplete = Refusal(406, "not all messages of the queue have arrived")
                self._answer(number) if safe else self._refuse(number, incomplete)

        self.broker.arrivals.bring(queue_id, marks, then)

    def _on_get(self, number: int, queue: AnyQueue, no_ack: bool) -> None:
        """Answer a basic.get. This node never relays one to a third node: it may stop, and then the message could not
        be acknowledged."""
        if queue.is_local and queue.later(lambda found: self._on_get(number, found, no_ack) if self.is_up else None):
            return
        if not queue.is_local and queue.spec.node != self.broker.node_name:
            self._refuse(number, Refusal(w.MOVED, ""))
        else:
            queue.fetch(no_ack, lambda: self.is_up, lambda got: self._on_got(number, no_ack, got))

    def _on_subscribe(self, number: int, queue: AnyQueue, rest: bytes) -> None:
        subscription, no_ack, exclusive, prefetch, priority, *begin = w.unpack_one(w.SUBSCRIBE_HEAD, rest)
        if begin[0] not in STARTS or (begin[0] == ORIGINS and is_stream(queue.spec.arguments)):
            raise BadFrame(f"a subscription that begins at {begin}")
        start = Start(*begin) if begin[0] else None
        tag = rest[w.SUBSCRIBE_HEAD.size :].decode("utf-8", "surrogateescape")
        if subscription in self.consumers:
            raise BadFrame(f"subscription {subscription} exists")
        if not queue.is_local:
            if queue.spec.node != self.broker.node_name:
                self._refuse(number, Refusal(w.MOVED, ""))
            elif not queue.later(lambda found: self._on_subscribe(number, found, rest) if self.is_up else None):
                # This node should lead it, and does not: no move would ever tell the client's node to ask again.
                self._refuse(number, unreachable(queue.spec))
            return
        if queue.later(lambda found: self._on_subscribe(number, found, rest) if self.is_up else None):
            return
        consumer = RemoteConsumer(
            self, subscription, queue, tag, bool(no_ack), bool(exclusive), prefetch, priority, start,
            is_exact=exclusive == w.EXACT,
        )  # fmt: skip

        def then(refused: Refusal | None) -> None:
            if refused is not None:
                self._refuse(number, refused)
            else:
                self.consumers[subscription] = consumer
                begun = consumer.begins_at
                is_known = begun is not None and begun.kind in (OFFSET, NEXT)
                self._answer(number, [w.U64.pack(begun.value)] if begun is not None and is_known else None)

        queue.subscribe(consumer, then)

    def _on_detached_record(self, number: int, queue: AnyQueue, rest: bytes) -> None:
        detachment, queue_id = self.broker.detachment, queue.spec.id
        record = detachment.read(rest)

        def then(done: bool) -> None:
            if queue_id in self.detached and not self.detached[queue_id].count:
                del self.detached[queue_id]
            self._answer(number) if done else self._refuse(number, unreachable(queue.spec))

        # Consumers that subscribe after this wait as long as this does, and are given nothing that was settled.
        is_elsewhere = not queue.is_local and queue.spec.node != self.broker.node_name
        if is_elsewhere:
            then(False)
        elif not queue.later(lambda found: self._on_detached_record(number, found, rest) if self.is_up else None):
            if isinstance(queue, Queue):
                detachment.settle_record(queue, self.detached.setdefault(queue_id, Unacked()), record, then)
            else:
                then(False)

    def _on_cancel(self, number: int, subscription: int, in_order: bool) -> None:
        consumer = self.consumers.pop(subscription, None)
        if consumer is not None and not consumer.queue.deleted:
            if in_order:
                consumer.queue.unsubscribe(consumer, lambda: self._answer(number))
                return
            consumer.queue.remove_consumer(consumer)
        self._answer(number)

    def _on_got(self, number: int, no_ack: bool, got: Got | Refusal | None) -> None:
        if isinstance(got, Refusal):
            self._refuse(number, got)
            return
        if got is None:
            self._answer(number)
            return
        batch, at, remaining, queue = got
        self.last_tag += 1
        contents = batch.contents[at : at + 1]
        returns = queue.extension(DeliveryLimit) if queue.is_local else None
        if returns is not None:
            contents = returns.labelled(batch, at, at + 1, always=True)
        run = w.pack_run(contents, batch.keys[at : at + 1], batch.kinds[at : at + 1])
        self._answer(number, [w.GET_ANSWER.pack(self.last_tag, remaining), *run])
        if no_ack:
            if queue.is_local:  # Otherwise the queue's node has done so.
                queue.settle_got(batch, at)
        else:
            self.unacked.add(self.last_tag, 1, queue, None, batch, at, self.broker.now_ms)

    def _answer_with(self, number: int, answer: Status | int | Refusal) -> None:
        if isinstance(answer, Refusal):
            self._refuse(number, answer)
        elif isinstance(answer, Status):
            self._answer(number, [w.STATUS_ANSWER.pack(*answer)])
        else:
            self._answer(number, [w.U64.pack(answer)])

    def _answer(self, number: int, parts: list[bytes] | None = None) -> None:
        if self.is_up:
            self.send_now(frame_types.ANSWER, [w.ANSWER_HEAD.pack(number, 0), *(parts or ())])

    def _refuse(self, number: int, refusal: Refusal) -> None:
        if self.is_up:
            text = refusal.text.encode("utf-8", "surrogateescape")
            self.send_now(frame_types.ANSWER, [w.ANSWER_HEAD.pack(number, refusal.code), text])

    # -- To the client's node ------------------------------------------------------------------------------------

    def deliver(
        self,
        number: int,
        first_tag: int,
        first_number: int,
        contents: list[bytes],
        keys: list[bytes],
        kinds: bytearray,
        size: int,
    ) -> None:
        """Send messages to a subscription; with the number of the first in its queue, unless that is 0."""
        if first_number:
            self.numbered.append(w.NUMBERED_DELIVERY.pack(number, first_tag, first_number))
            self.numbered += w.pack_run(contents, keys, kinds)
        else:
            self.deliveries.append(w.DELIVERY.pack(number, first_tag))
            self.deliveries += w.pack_run(contents, keys, kinds)
        self.delivery_bytes += size
        if self.delivery_bytes > FLUSH_BYTES:
            self._flush_deliveries()
        self.broker.linked[self] = None

    def _flush_deliveries(self) -> None:
        self.delivery_bytes = 0
        if self.deliveries:
            deliveries, self.deliveries = self.deliveries, []
            self.broker.node.send(self.peer, frame_types.DELIVER, deliveries)
        if self.numbered:
            numbered, self.numbered = self.numbered, []
            self.broker.node.send(self.peer, frame_types.DELIVER_NUMBERED, numbered)

    def send_now(self, kind: int, parts: list[bytes]) -> None:
        """Send a frame, after all that has gathered in this turn."""
        self.flush()
        self.broker.node.send(self.peer, kind, parts)

    def flush(self) -> None:
        """Send what has gathered in this turn."""
        if not self.is_up:
            return  # There may be another session by now, with tokens and tags of its own.
        self._flush_deliveries()
        safe = self.confirms.take()
        if safe:
            self.broker.node.send(self.peer, frame_types.SAFE, [w.SAFE_ENTRY.pack(*one) for one in safe])
        self.grant()

    def grant(self) -> None:
        """Let the client's node publish more, unless more would only wait here."""
        credit = self.received_bytes + FIRST_CREDIT
        if credit - self.granted < FIRST_CREDIT // 4:
            return
        if self.broker.node.is_crowded() or (self.crowded_queue is not None and self.crowded_queue.is_crowded()):
            self.broker.waiting_links[self] = None
            return
        self.crowded_queue = None
        self.granted = credit
        self.broker.node.send(self.peer, frame_types.CREDIT, [w.U64.pack(credit)])

    def on_paced(self) -> None:
        """The queue's consumers had time to catch up: grant credit again."""
        self.crowded_queue = None

    def on_down(self) -> None:
        """The session is over: remove its consumers, requeue its unacknowledged messages."""
        self.is_up = False
        self.early.clear()
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            if not consumer.queue.deleted:
                consumer.queue.remove_consumer(consumer)
        inherited, self.inherited = self.inherited, {}
        detached, self.detached = self.detached, {}
        for unacked in (self.unacked, *inherited.values(), *detached.values()):
            taken = unacked.take_all()
            self._on_taken(taken)
            self._requeue(taken)


_FROM_CLIENT_END: Final[dict[int, Callable[[OwnerEnd, bytes], None]]] = {
    frame_types.PUBLISH: OwnerEnd._on_publish,
    frame_types.PRODUCE: OwnerEnd._on_produce,
    frame_types.STAGE: OwnerEnd._on_stage,
    frame_types.SETTLE: OwnerEnd._on_settle,
    frame_types.PASSED: OwnerEnd._on_passed,
    frame_types.ASK: OwnerEnd._on_ask,
    frame_types.LIMIT: OwnerEnd._on_limit,
    frame_types.TAKEN: OwnerEnd._on_taken_frame,
}
FROM_CLIENT_END: Final = frozenset(_FROM_CLIENT_END)
