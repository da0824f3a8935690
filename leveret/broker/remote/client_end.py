"""The client's end of a session between two nodes: this node's clients use queues of the node at the other end.

`remote_queue` describes the protocol.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.delivery.answers import unreachable
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, Batch, Span
from leveret.broker.delivery.confirms import DOUBTED, Numbers
from leveret.broker.delivery.offsets import OFFSET, ORIGINS, Start, offset_of
from leveret.broker.remote import peer_frames as w
from leveret.links import frame_types
from leveret.links.proposals import BadFrame
from leveret.metadata.model.refusals import Refusal, not_found
from leveret.metadata.rules.ha_policy import is_stream
from leveret.protocol.errors import ReplyCode
from leveret.protocol.frames import BadContent
from leveret.storage.format.queue_block import REDELIVERED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.consumer import Subscriber
    from leveret.broker.delivery.publish_numbers import Origin
    from leveret.broker.remote.handover import FormerQueue
    from leveret.broker.remote.remote_queue import RemoteQueue
    from leveret.metadata.model.records import QueueSpec

FEED_BYTES_MAX: Final = 256 << 10
FIRST_CREDIT: Final = 2 << 20
ASK_TICKS_MAX: Final = 15
# How long a former master of a mirrored queue has to say that all it was sent has been passed on. A stalled disk keeps
# it from learning that another node leads, and publishers wait for it, although the queue is served.
LEFT_TICKS_MAX: Final = 5
COUNT_MAX: Final = (1 << 32) - 1  # The largest count that AMQP can express.
REPLY_CODES: Final = frozenset(ReplyCode)
FLUSH_BYTES: Final = 8 << 20  # Publishes in one frame; a link's frame has at most twice that.


class RemoteBatch(Batch):
    """Messages that came over a link; `first` is the tag of the first, on that link, and `first_number` its number in
    the queue, if that was told."""

    __slots__ = ("client_end", "first_number")

    def __init__(self, client_end: ClientEnd, first: int, messages: w.Messages, first_number: int = 0) -> None:
        super().__init__(first)
        self.client_end = client_end
        self.first_number = first_number
        self.contents, self.keys, self.kinds = messages
        self.left = len(self.contents)
        self.size = sum(map(len, self.contents)) + MESSAGE_OVERHEAD * self.left
        self.redelivered = any(kind & REDELIVERED for kind in set(self.kinds))

    def drop_contents(self) -> None:
        """Drop the contents: the client has them, and its node settles by numbers."""
        self.contents, self.keys = [], []


class Subscription:
    """One consumer of this node at a queue of another."""

    __slots__ = ("consumer", "ends", "feed", "number", "queue", "stuck_ticks", "taken_bytes", "then")

    def __init__(self, number: int, queue: RemoteQueue, consumer: Subscriber) -> None:
        self.then: Callable[[Refusal | None], None] | None = None  # Called when it has begun, or is refused.
        self.ends = False  # The client has cancelled it.
        self.number = number
        self.queue = queue
        self.consumer = consumer
        self.feed: deque[Span] = deque()  # Messages received, and not yet delivered to the consumer.
        self.taken_bytes = 0
        self.stuck_ticks = 0

    @property
    def is_cancelled_by_failover(self) -> bool:
        """Returns whether a change of master cancels it. One that had not begun begins at the next master."""
        return self.consumer.cancels_on_failover and self.then is None and not self.ends

    def on_queue_deleted(self) -> None:
        """Tell the client, unless it has cancelled the consumer itself. A consumer that never began is refused."""
        then, self.then = self.then, None
        if then is not None:
            then(not_found("queue", self.queue.spec.name, self.queue.spec.vhost))
        elif not self.ends:
            self.consumer.on_queue_deleted()


class Bundle:
    """Publishes of one kind that go to one queue in one frame."""

    __slots__ = ("contents", "keys", "kind", "parts", "senders", "size")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.contents: list[bytes] = []
        self.keys: list[bytes] = []
        self.size = 0
        self.parts: list[tuple[Pending | None, int]] = []  # As they came: the waiting publish, and how many messages.
        self.senders: list[tuple[Pending | None, str, int]] = []  # For the journal: publisher, number of messages.


class Produced(NamedTuple):
    """Publishes of a producer that go to one queue. They are not merged: their numbers are in a row."""

    queue: RemoteQueue
    origin: Origin
    contents: list[bytes]
    keys: list[bytes]
    kind: int
    pending: Pending


class Ask(NamedTuple):
    """A question without an answer yet."""

    queue: AnyQueue
    spec: QueueSpec
    what: int
    then: Callable[[bytes | Refusal], None]
    again: Callable[[AnyQueue], None] | None

    def fail(self) -> None:
        """The link was lost: refuse the question, or let the next master of a mirrored queue answer it."""
        queue = self.queue
        if not queue.is_local and queue.spec.view is not None and not queue.is_hopeless:
            if self.what == w.SUBSCRIBE:
                return  # The consumer subscribes at the next master: see `RemoteQueue.waiting_consumers`.
            if self.again is not None:
                queue.suspend()
                queue.put_off(self.again)
                return
        self.then(unreachable(self.spec))


def _refusal(ask: Ask, code: int, text: bytes) -> Refusal:
    """Returns why a question was refused. The node of a deleted queue does not know its name any more."""
    if code == ReplyCode.NOT_FOUND and not text:
        return not_found("queue", ask.spec.name, ask.spec.vhost)
    if code not in REPLY_CODES and not (code == w.MOVED and ask.what in (w.SUBSCRIBE, w.GET)):
        raise BadFrame(f"refusal {code} of question {ask.what}")
    return Refusal(code, text.decode("utf-8", "surrogateescape"))


class ClientEnd:
    """This node's end of a session with the node of other queues: what it has sent there and waits for."""

    def __init__(self, broker: Broker, peer: str) -> None:
        self.broker = broker
        self.peer = peer
        self.is_up = True
        self.bundles: dict[RemoteQueue, Bundle] = {}
        self.produced: list[Produced] = []
        self.bundled_bytes = 0
        self.verdicts: list[tuple[int, int, int]] = []
        self.passed: dict[FormerQueue, list[tuple[int, int, int]]] = {}
        self.last_token = 0
        self.pendings: dict[int, Sequence[Pending]] = {}
        self.watched: dict[int, tuple[QueueSpec, Numbers]] = {}  # Those of them that a journal tells of.
        self.sent_bytes = 0
        self.credit = FIRST_CREDIT
        self.last_ask = 0
        self.asks: dict[int, Ask] = {}
        self.oldest_ask = self.ask_ticks = 0  # Ticks for which the same question was the oldest.
        self.last_subscription = 0
        self.subscriptions: dict[int, Subscription] = {}
        self.taken: dict[Subscription, None] = {}

    # -- To the queue's node -------------------------------------------------------------------------------------

    def is_crowded(self) -> bool:
        return self.sent_bytes + self.bundled_bytes > self.credit or not self.broker.node.is_writable(self.peer)

    def publish(
        self,
        queue: RemoteQueue,
        contents: list[bytes],
        keys: list[bytes],
        kind: int,
        size: int,
        pending: Pending | None,
    ) -> None:
        bundle = self.bundles.get(queue)
        # A queue that may reject publishes gets single ones: a bundle is refused as a whole: see `Route.is_plain`.
        if bundle is None or bundle.kind != kind or self.bundled_bytes > FLUSH_BYTES or queue.rules.rejects:
            if bundle is not None or self.bundled_bytes > FLUSH_BYTES:
                self.flush_publishes()
            bundle = self.bundles[queue] = Bundle(kind)
            self.broker.linked[self] = None
        bundle.contents += contents
        bundle.keys += keys
        bundle.size += size
        self.bundled_bytes += size
        bundle.parts.append((pending, len(contents)))
        if pending is not None:
            pending.waiting += 1
        if queue.rules.journal and self.broker.journal is not None:
            bundle.senders.append((pending, self.broker.journal.publisher(pending), len(contents)))

    def publish_from(
        self,
        queue: RemoteQueue,
        origin: Origin,
        contents: list[bytes],
        keys: list[bytes],
        kind: int,
        size: int,
        pending: Pending,
    ) -> None:
        """Publishes of a producer, which are not bundled with others."""
        if self.bundled_bytes > FLUSH_BYTES:
            self.flush_publishes()
        self.produced.append(Produced(queue, origin, contents, keys, kind, pending))
        self.bundled_bytes += size
        pending.waiting += 1
        self.broker.linked[self] = None

    def flush_publishes(self) -> None:
        """Send all publishes that have gathered. Those of one connection are all in bundles, or all in `produced`.
        Publishes that are sent again are in `produced`, and so come before what was published later."""
        if self.produced:
            self._flush_produced()
        if self.bundles:
            self._flush_bundles()
        self.sent_bytes += self.bundled_bytes
        self.bundled_bytes = 0

    def _flush_produced(self) -> None:
        parts = [w.U64.pack(self.broker.metadata.index)]
        for queue, origin, contents, keys, kind, pending in self.produced:
            token = self._next_token([pending])
            parts += (w.BUNDLE.pack(queue.spec.id, token), w.pack_origin(origin))
            parts += w.pack_run(contents, keys, bytes((kind,)) * len(contents))
            self._tell_produced(queue, token, origin, pending, len(contents))
        self.produced = []
        self.broker.node.send(self.peer, frame_types.PRODUCE, parts)

    def _tell_produced(self, queue: RemoteQueue, token: int, origin: Origin, pending: Pending, count: int) -> None:
        """The journal says who published what a producer's numbers stand for. Of messages that this node only passes on
        the node of their client says so, and of those from a spool they were told when they came into it."""
        journal = self.broker.journal
        if journal is None or not queue.rules.journal:
            return
        numbers = Numbers(origin.producer, origin.first, origin.first + count - 1)
        self.watched[token] = (queue.spec, numbers)
        senders = [(one, journal.publisher(one) if one is not None else "", many) for one, many in pending.senders]
        if senders:
            journal.on_routed(queue, token, numbers, senders)

    def _flush_bundles(self) -> None:
        """Send all bundles. Those for which a client waits for confirms get numbers: see `outbox`."""
        bundles, self.bundles = self.bundles, {}
        plain, numbered = [w.U64.pack(self.broker.metadata.index)], []
        for queue, bundle in bundles.items():
            if any(pending is not None for pending, _ in bundle.parts):
                numbered.append((queue, bundle))
            else:
                plain.append(w.BUNDLE.pack(queue.spec.id, 0))
                self._pack(plain, queue, bundle, 0, None)
        if len(plain) > 1:
            self.broker.node.send(self.peer, frame_types.PUBLISH, plain)
        if numbered:
            parts = [plain[0]]
            for queue, bundle in numbered:
                outbox = self.broker.outboxes.of(queue.spec.id)
                sent, first, previous = outbox.send(
                    bundle.contents, bundle.keys, bundle.kind, bundle.size, bundle.parts
                )
                token = self._next_token((sent,))
                name = outbox.name
                parts += (w.BUNDLE.pack(queue.spec.id, token), w.ORIGIN.pack(first, previous, len(name)), name)
                self._pack(parts, queue, bundle, token, Numbers(name, first, sent.last))
            self.broker.node.send(self.peer, frame_types.PRODUCE, parts)

    def _next_token(self, pendings: Sequence[Pending]) -> int:
        self.last_token += 1
        self.pendings[self.last_token] = pendings
        return self.last_token

    def _pack(
        self, parts: list[bytes], queue: RemoteQueue, bundle: Bundle, token: int, numbers: Numbers | None
    ) -> None:
        parts += w.pack_run(bundle.contents, bundle.keys, bytes((bundle.kind,)) * len(bundle.contents))
        if bundle.senders and self.broker.journal is not None:
            self.broker.journal.on_routed(queue, token, numbers, bundle.senders)
            if numbers is not None:
                self.watched[token] = (queue.spec, numbers)

    def stage(
        self, queue: int, batch: Batch, lo: int, hi: int, pending: Pending, counts: list[tuple[int, int]]
    ) -> None:
        """Send messages of a queue that moves from this node to the other one, with the times at which they came, where
        these are known, and how often some of them were requeued."""
        self.flush_publishes()
        self.last_token += 1
        self.pendings[self.last_token] = [pending]
        run = batch.cut(lo, hi)
        parts = [w.BUNDLE.pack(queue, self.last_token), *w.pack_run(run.contents, run.keys, run.kinds)]
        parts += [w.U32.pack(len(run.times)), *(w.TIME_ENTRY.pack(*one) for one in run.times)]
        parts += [w.COUNT_ENTRY.pack(*one) for one in counts]
        self.broker.node.send(self.peer, frame_types.STAGE, parts)

    def settle(self, verdict: int, first: int, last: int) -> None:
        verdicts = self.verdicts
        if verdicts and verdicts[-1][0] == verdict and verdicts[-1][2] + 1 == first:
            verdicts[-1] = (verdict, verdicts[-1][1], last)
        else:
            verdicts.append((verdict, first, last))
        self.broker.linked[self] = None

    def pass_on(self, queue: FormerQueue, verdicts: list[tuple[int, int, int]]) -> None:
        """Send verdicts on messages that this node delivered before the other one led their queue: see `handover`."""
        self.passed.setdefault(queue, []).extend(verdicts)
        self.broker.linked[self] = None

    def send_now(self, kind: int, parts: list[bytes]) -> None:
        """Send a frame, after all that has gathered in this turn."""
        self.flush()
        self.broker.node.send(self.peer, kind, parts)

    def ask(
        self,
        queue: AnyQueue,
        what: int,
        arguments: bytes,
        then: Callable[[bytes | Refusal], None],
        again: Callable[[AnyQueue], None] | None = None,
    ) -> None:
        self.last_ask += 1
        self.asks[self.last_ask] = Ask(queue, queue.spec, what, then, again)
        head = w.ASK_HEAD.pack(self.broker.metadata.index, self.last_ask, what, queue.spec.id)
        self.send_now(frame_types.ASK, [head, arguments])

    def flush(self) -> None:
        """Send what has gathered in this turn."""
        if not self.is_up:
            return  # There may be another session by now, which has nothing to do with this one.
        self.flush_publishes()
        if self.passed:
            self._flush_passed()
        if self.verdicts:
            verdicts, self.verdicts = self.verdicts, []
            self.broker.node.send(self.peer, frame_types.SETTLE, [w.VERDICT.pack(*one) for one in verdicts])
        if self.taken:
            taken, self.taken = self.taken, {}
            parts = [w.TAKEN_ENTRY.pack(one.number, one.taken_bytes) for one in taken]
            self.broker.node.send(self.peer, frame_types.TAKEN, parts)

    def _flush_passed(self) -> None:
        passed, self.passed = self.passed, {}
        for queue, verdicts in passed.items():
            head = w.PASSED_HEAD.pack(self.broker.metadata.index, queue.spec.id, *queue.former_last_block)
            self.broker.node.send(self.peer, frame_types.PASSED, [head, *[w.VERDICT.pack(*one) for one in verdicts]])

    # -- Subscriptions -------------------------------------------------------------------------------------------

    def subscribe(self, queue: RemoteQueue, consumer: Subscriber) -> Subscription:
        self.last_subscription += 1
        subscription = Subscription(self.last_subscription, queue, consumer)
        self.subscriptions[subscription.number] = subscription
        queue.add_subscription(subscription)
        return subscription

    def drop(self, subscription: Subscription) -> None:
        self.subscriptions.pop(subscription.number, None)
        subscription.queue.drop_subscription(subscription.consumer)
        self.taken.pop(subscription, None)

    def hand_over(self, subscription: Subscription, even_without_room: bool = False) -> None:
        """Deliver to the consumer what has come for it, as far as it has room."""
        feed, consumer = subscription.feed, subscription.consumer
        while feed:
            span = feed[0]
            room = consumer.room(span.batch.average_bytes())
            if even_without_room:
                room = span.count
            if room <= 0:
                return
            lo = span.lo
            span.lo = hi = lo + min(room, span.count)
            if span.lo == span.hi:
                feed.popleft()
            subscription.stuck_ticks = 0
            subscription.taken_bytes += sum(map(len, span.batch.contents[lo:hi])) + MESSAGE_OVERHEAD * (hi - lo)
            consumer.deliver(span.batch, lo, hi)
            begun = consumer.begins_at
            if begun is not None and begun.kind != ORIGINS:  # A stream: where it goes on at the next master.
                consumer.begins_at = Start(OFFSET, offset_of(span.batch.contents[hi - 1]) + 1)
            if span.lo == span.hi:
                span.batch.contents, span.batch.keys = [], []  # The queue's node keeps what may be requeued.
            self.taken[subscription] = None
            self.broker.linked[self] = None

    def give_back(self, subscription: Subscription) -> None:
        """Return messages that were never delivered to the consumer."""
        for span in subscription.feed:
            if not subscription.consumer.no_ack:
                self.settle(w.RETURNED, span.first, span.last)
            subscription.taken_bytes += sum(map(len, span.batch.contents[span.lo : span.hi]))
            subscription.taken_bytes += MESSAGE_OVERHEAD * span.count
        subscription.feed.clear()
        self.taken[subscription] = None
        self.broker.linked[self] = None

    def end(self, subscription: Subscription) -> None:
        """End a subscription. Without acknowledgements, its messages have left the queue: these are still delivered."""
        if subscription.consumer.no_ack:
            self.hand_over(subscription, even_without_room=True)
        self.give_back(subscription)
        self.drop(subscription)

    def tick(self) -> None:
        """Called once a second: messages that a client has no room for are returned, for others to have them."""
        oldest = next(iter(self.asks), 0)
        self.ask_ticks = self.ask_ticks + 1 if oldest and oldest == self.oldest_ask else 0
        self.oldest_ask = oldest
        is_left = oldest > 0 and self._is_left(self.asks[oldest].queue)
        if self.ask_ticks >= (self._left_ticks() if is_left else ASK_TICKS_MAX):
            # The node has a link and does not answer: it may be cut off from the cluster's leader. Only a new session
            # leaves no doubt about what was done and what was not.
            self.broker.node.cut(self.peer, f"a question was not answered for {self.ask_ticks} s")
        for subscription in self.subscriptions.values():
            if subscription.feed and not subscription.consumer.no_ack:
                subscription.stuck_ticks += 1
                if is_stream(subscription.queue.spec.arguments):
                    continue  # Every consumer of a stream gets all messages.
                if subscription.stuck_ticks > 1 and subscription.consumer.shares_prefetch():
                    subscription.stuck_ticks = 0
                    self.give_back(subscription)

    def _left_ticks(self) -> int:
        """Returns how many seconds a former master has to answer: publishers wait as long as for any answer."""
        return min(LEFT_TICKS_MAX, self.broker.outboxes.answer_ms // 1_000 + 1)

    @staticmethod
    def _is_left(queue: AnyQueue) -> bool:
        return not queue.is_local and queue.is_moving and queue.spec.view is not None

    # -- From the queue's node -----------------------------------------------------------------------------------

    def on_frame(self, kind: int, payload: bytes) -> None:
        """Raises `BadFrame`."""
        _FROM_OWNER_END[kind](self, payload)

    def _on_safe(self, payload: bytes) -> None:
        pendings = self.pendings
        for token, multiple, refused in w.unpack_all(w.SAFE_ENTRY, payload):
            tokens = list(takewhile(token.__ge__, pendings)) if multiple else [token]
            for one in tokens:
                for pending in pendings.pop(one, ()):
                    pending.refuse(min(refused, DOUBTED)) if refused else pending.on_safe()
                watched = self.watched.pop(one, None) if self.watched else None
                if watched is not None and not refused and self.broker.journal is not None:
                    self.broker.journal.on_safe(*watched)

    def _on_deliver(self, payload: bytes) -> None:
        self._deliver(payload, w.DELIVERY)

    def _on_deliver_numbered(self, payload: bytes) -> None:
        self._deliver(payload, w.NUMBERED_DELIVERY)

    def _deliver(self, payload: bytes, entry: Struct) -> None:
        at = 0
        while at < len(payload):
            number, first, *first_number = w.unpack_one(entry, payload, at)
            messages, at = w.unpack_run(payload, at + entry.size)
            subscription = self.subscriptions.get(number)
            count = len(messages.contents)
            if subscription is None:
                # It was cancelled meanwhile, and the client will never see these.
                self.settle(w.RETURNED, first, first + count - 1)
                continue
            subscription.feed.append(Span(RemoteBatch(self, first, messages, *first_number), 0, count))
            self.broker.dirty[subscription.queue] = None

    def _on_answer(self, payload: bytes) -> None:
        number, code = w.unpack_one(w.ANSWER_HEAD, payload)
        ask = self.asks.pop(number, None)
        if ask is None:
            raise BadFrame(f"an answer to question {number}, which was not asked")
        rest = payload[w.ANSWER_HEAD.size :]
        try:
            ask.then(_refusal(ask, code, rest) if code else rest)
        except (BadFrame, BadContent) as error:
            self.asks[number] = ask  # It is answered by the end of the session.
            raise BadFrame(str(error)) from None

    def _on_cancelled(self, payload: bytes) -> None:
        (number,) = w.unpack_one(w.U64, payload)
        subscription = self.subscriptions.get(number)
        if subscription is not None:
            self.end(subscription)
            subscription.on_queue_deleted()

    def _on_credit(self, payload: bytes) -> None:
        (self.credit,) = w.unpack_one(w.U64, payload)
        self.broker.spools.on_room()

    def on_down(self) -> None:
        """The session is over."""
        self.is_up = False
        pendings = [pending for several in self.pendings.values() for pending in several]
        pendings += [one.pending for one in self.produced]
        bundles, self.bundles = self.bundles, {}
        self.pendings, self.watched, self.verdicts, self.taken, self.passed = {}, {}, [], {}, {}
        self.produced = []
        for pending in pendings:
            pending.refuse(DOUBTED)
        self.broker.outboxes.on_link_lost()  # Before later publishes are sent.
        asks, self.asks = self.asks, {}
        subscriptions, self.subscriptions = self.subscriptions, {}
        for subscription in subscriptions.values():
            queue = subscription.queue
            if queue.spec.view is not None and subscription.consumer in queue.subscriptions:
                self.end(subscription)
                queue.adopt(subscription)
        for queue, bundle in bundles.items():
            _send_elsewhere(queue, bundle)
        for ask in asks.values():
            ask.fail()
        for subscription in subscriptions.values():
            if subscription.consumer in subscription.queue.subscriptions:
                self.end(subscription)
                subscription.on_queue_deleted()
        self.verdicts, self.taken = [], {}


def _send_elsewhere(queue: RemoteQueue, bundle: Bundle) -> None:
    """Enqueue publishes that were still to be sent when the link was lost, as if they came now. They wait for the next
    master, or are kept in a spool, or refused."""
    at = 0
    for pending, count in bundle.parts:
        contents, keys = bundle.contents[at : at + count], bundle.keys[at : at + count]
        queue.enqueue(contents, keys, bundle.kind, sum(map(len, contents)) + MESSAGE_OVERHEAD * count, pending)
        at += count
        if pending is not None:
            pending.on_safe()  # For the wait of this bundle; `enqueue` has added its own.


_FROM_OWNER_END: Final[dict[int, Callable[[ClientEnd, bytes], None]]] = {
    frame_types.SAFE: ClientEnd._on_safe,
    frame_types.DELIVER: ClientEnd._on_deliver,
    frame_types.DELIVER_NUMBERED: ClientEnd._on_deliver_numbered,
    frame_types.ANSWER: ClientEnd._on_answer,
    frame_types.CANCELLED: ClientEnd._on_cancelled,
    frame_types.CREDIT: ClientEnd._on_credit,
}
FROM_OWNER_END: Final = frozenset(_FROM_OWNER_END)
