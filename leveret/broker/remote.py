"""A queue that lives on another node, as clients of this node see it; and this node's end of the link to there.

Every queue has a *home*, the node with its messages. A client may be at any node, its *edge*. The channel there deals
with a `RemoteQueue` just as with a `Queue`: it enqueues, subscribes, settles. What it does travels over the link
between the two nodes, gathered over a turn of the node, in frames (see `peerwire`):

    edge ──▶ home    PUBLISH   bundles of messages, each with a token if somebody waits for a confirm
                     SETTLE    what became of deliveries: acknowledged, given back, discarded
                     ASK       a question with one answer: how many wait, purge, get, subscribe, cancel
                     LIMIT     another prefetch for a subscription
                     TAKEN     how many bytes of its deliveries a subscription has passed on
    home ──▶ edge    SAFE      tokens whose messages are where they have to be
                     DELIVER   runs of messages for subscriptions, numbered by the link's own tags
                     ANSWER    to a question
                     CANCELLED a subscription ended because its queue did
                     CREDIT    how many bytes of publishes the home is willing to have taken in all

The other end of the conversation is in `home`.

**Order.** Frames of one link arrive in order. Publishes that gathered leave before any question that came after them,
and so do settlements; so a client that publishes, then asks for the number of messages, finds its own counted.

**What the home does not know yet.** The edge may have applied the command that made a queue before the queue's home
has. So publishes and questions carry the edge's number of applied commands, and the home waits until it is as far:
otherwise it would take a new queue for a deleted one, and its messages for settled.

**Prefetch** is counted at the home: a subscription has so many messages out that are not settled there, which is never
less than are out at the client. A prefetch that consumers of one channel share cannot be counted there; each of them
gets all of it, and what is too much waits in the edge's `feed`, from where it goes back after a while, so that no
message waits for a client that does not want it while another would.

**Buffers.** Publishes: the edge counts what it has sent; when that reaches what the home has granted, clients that
publish to queues of that home are not read from. Deliveries: a subscription has at most `FEED_BYTES_MAX` (or one
message) on the way that the client's socket has not taken.

**When the link breaks** both ends start from nothing. The edge refuses (nack) all publishes that were not reported
safe, fails all questions, cancels its consumers as RabbitMQ does when a queue's node is lost; acknowledgements that
come later for deliveries of before are taken and mean nothing. The home gives back what was out, marked as redelivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from leveret.amqp.errors import ReplyCode
from leveret.amqp.frames import BadContent
from leveret.broker import peerwire as w
from leveret.broker.batch import MESSAGE_OVERHEAD, Batch, Span
from leveret.broker.parking import Parked, park, unpark
from leveret.cluster import frames
from leveret.cluster.proposals import BadFrame
from leveret.cluster.refusals import Refusal, not_found, resource
from leveret.log.block import REDELIVERED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.confirms import Pending
    from leveret.broker.consumer import Subscriber
    from leveret.broker.queue import Queue
    from leveret.cluster.specs import QueueSpec

FEED_BYTES_MAX: Final = 256 << 10
FIRST_CREDIT: Final = 2 << 20
ASK_TICKS_MAX: Final = 15
COUNT_MAX: Final = (1 << 32) - 1  # That AMQP can tell.
REPLY_CODES: Final = frozenset(ReplyCode)
FLUSH_BYTES: Final = 8 << 20  # Of publishes in one frame; a link's frame has at most twice that.


class Status(NamedTuple):
    """What a declare is answered with."""

    ready: int
    consumers: int


class Got(NamedTuple):
    """A message that was fetched."""

    batch: Batch
    at: int
    remaining: int
    queue: AnyQueue  # Where it is to be settled: the question may have followed a queue that moved.


class RemoteBatch(Batch):
    """Messages that came over a link; `first` is the tag of the first, on that link."""

    __slots__ = ("edge",)

    def __init__(self, edge: Edge, first: int, messages: w.Messages) -> None:
        super().__init__(first)
        self.edge = edge
        self.contents, self.keys, self.kinds = messages
        self.left = len(self.contents)
        self.size = sum(map(len, self.contents)) + MESSAGE_OVERHEAD * self.left
        self.redelivered = any(kind & REDELIVERED for kind in set(self.kinds))


class Subscription:
    """One consumer of this node at a queue of another."""

    __slots__ = ("consumer", "ends", "feed", "number", "queue", "stuck_ticks", "taken_bytes", "then")

    def __init__(self, number: int, queue: RemoteQueue, consumer: Subscriber) -> None:
        self.then: Callable[[Refusal | None], None] | None = None  # Who waits for it to begin.
        self.ends = False  # The client has cancelled it.
        self.number = number
        self.queue = queue
        self.consumer = consumer
        self.feed: deque[Span] = deque()  # Come, and not yet handed to the consumer.
        self.taken_bytes = 0
        self.stuck_ticks = 0

    def on_queue_deleted(self) -> None:
        """Tell the client, unless it has ended it itself. One that never began is refused."""
        then, self.then = self.then, None
        if then is not None:
            then(not_found("queue", self.queue.spec.name, self.queue.spec.vhost))
        elif not self.ends:
            self.consumer.on_queue_deleted()


class Bundle:
    """Publishes of one kind that go to one queue in one frame."""

    __slots__ = ("contents", "keys", "kind", "pendings")

    def __init__(self, kind: int) -> None:
        self.kind = kind
        self.contents: list[bytes] = []
        self.keys: list[bytes] = []
        self.pendings: list[Pending] = []


class RemoteQueue:
    """A queue at its edge. Has the methods of `Queue` that channels and the broker's turn use."""

    __slots__ = (
        "broker", "deleted", "is_hopeless", "orphans", "parked", "spec", "subscriptions", "successor", "waiting",
    )  # fmt: skip

    is_local: Literal[False] = False

    def __init__(self, spec: QueueSpec, broker: Broker) -> None:
        self.spec = spec
        self.broker = broker
        self.deleted = False
        self.subscriptions: dict[Subscriber, Subscription] = {}
        # While the queue moves: publishes and questions wait until the node it left has passed on all that came before.
        self.parked: list[Parked] | None = None
        self.waiting: list[Callable[[AnyQueue], None]] = []
        self.successor: Queue | None = None  # It has moved to this very node.
        # While a mirrored queue has no master: consumers that go on with the next one, and who waits for them to begin.
        self.orphans: dict[Subscriber, Callable[[Refusal | None], None] | None] = {}
        self.is_hopeless = False  # It was waited for, in vain.

    def __repr__(self) -> str:
        return f"RemoteQueue({self.spec.vhost!r}, {self.spec.name!r}, at {self.spec.node!r})"

    @property
    def edge(self) -> Edge | None:
        """The link to the queue's home, if it is up."""
        return self.broker.edges.get(self.spec.node)

    def is_crowded(self) -> bool:
        """Whether publishers should wait."""
        edge = self.edge
        return self.parked is not None or (edge is not None and edge.is_crowded())

    # -- Without a master ----------------------------------------------------------------------------------------

    def _has_none(self) -> bool:
        """Whether the queue is mirrored, its master is gone, and another may come: then everything waits for that."""
        has_none = self.spec.view is not None and self.edge is None and self.successor is None
        if has_none and not self.is_hopeless and not self.deleted:
            self.suspend()
            return True
        return False

    def suspend(self) -> None:
        if self.parked is None:
            self.parked = []
            self.broker.suspended[self] = 0

    def adopt(self, subscription: Subscription) -> None:
        """The link to the master was lost: its consumer waits for the next one."""
        self.suspend()
        if not subscription.ends:
            self.orphans[subscription.consumer] = subscription.then

    def resume(self) -> None:
        """There is a master again, or it will not be waited for any longer."""
        self.broker.suspended.pop(self, None)
        parked, waiting, orphans = self.parked, self.waiting, self.orphans
        self.parked, self.waiting, self.orphans = None, [], {}
        queue = self.successor or self
        unpark(parked or [], queue)
        for call in waiting:
            call(queue)
        for consumer, then in orphans.items():
            resubscribe(consumer, queue, then)

    def give_up(self) -> None:
        """No other master has come."""
        self.is_hopeless = True
        self.resume()

    # -- Publishing ----------------------------------------------------------------------------------------------

    def enqueue(self, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending | None) -> bool:
        if self.parked is not None or self._has_none():
            assert self.parked is not None
            return park(self.parked, contents, keys, kind, size, pending)
        edge = self.edge
        if edge is None:
            if pending is not None:
                pending.refused = True
            return False
        edge.publish(self, contents, keys, kind, size, pending)
        return edge.is_crowded()

    # -- Questions -----------------------------------------------------------------------------------------------

    def status(self, then: Callable[[Status | Refusal], None]) -> None:
        if self._later(lambda queue: queue.status(then)):
            return

        def on_answer(answer: bytes | Refusal) -> None:
            if isinstance(answer, Refusal):
                then(answer)
            else:
                ready, consumers = w.unpack_one(w.STATUS_ANSWER, answer)
                then(Status(min(ready, COUNT_MAX), consumers))

        self._ask(w.STATUS, b"", on_answer, lambda queue: queue.status(then))

    def purge_all(self, then: Callable[[int | Refusal], None]) -> None:
        if self._later(lambda queue: queue.purge_all(then)):
            return

        def on_answer(answer: bytes | Refusal) -> None:
            then(answer if isinstance(answer, Refusal) else min(w.unpack_one(w.U64, answer)[0], COUNT_MAX))

        self._ask(w.PURGE, b"", on_answer, lambda queue: queue.purge_all(then))

    def fetch(self, no_ack: bool, wanted: Callable[[], bool], then: Callable[[Got | Refusal | None], None]) -> None:
        if self._later(lambda queue: queue.fetch(no_ack, wanted, then)):
            return
        edge = self.edge

        def on_answer(answer: bytes | Refusal) -> None:
            if isinstance(answer, Refusal):
                then(answer)
            elif not answer:
                then(None)
            else:
                assert edge is not None
                tag, remaining = w.unpack_one(w.GET_ANSWER, answer)
                messages, _ = w.unpack_run(answer, w.GET_ANSWER.size)
                batch = RemoteBatch(edge, tag, messages)
                if wanted():
                    then(Got(batch, 0, min(remaining, COUNT_MAX), self))
                    batch.contents, batch.keys = [], []
                else:
                    if not no_ack:
                        edge.settle(w.REQUEUED, tag, tag)
                    then(None)

        self._ask(w.GET, w.U8.pack(no_ack), on_answer, lambda queue: queue.fetch(no_ack, wanted, then))

    def subscribe(self, consumer: Subscriber, then: Callable[[Refusal | None], None]) -> None:
        def on_the_spot(queue: AnyQueue) -> None:
            consumer.queue = queue
            queue.subscribe(consumer, then)

        if self._later(on_the_spot):
            return
        consumer.queue = self
        edge = self.edge
        if edge is None:
            then(unreachable(self.spec))
            return
        subscription = edge.subscribe(self, consumer)
        subscription.then = then

        def on_answer(answer: bytes | Refusal) -> None:
            is_refused = isinstance(answer, Refusal)
            if self.subscriptions.get(consumer) is not subscription and not is_refused:
                return  # The queue has moved meanwhile, and another subscription is on its way.
            if isinstance(answer, Refusal) and answer.code == w.MOVED:
                return  # As soon as this node knows where to.
            if subscription.then is not None:
                subscription.then = None
                if isinstance(answer, Refusal):
                    edge.drop(subscription)
                then(answer if isinstance(answer, Refusal) else None)

        tag = consumer.tag.encode("utf-8", "surrogateescape")
        head = w.SUBSCRIBE_HEAD.pack(subscription.number, consumer.no_ack, consumer.exclusive, consumer.limit())
        self._ask(w.SUBSCRIBE, head + tag, on_answer)

    def unsubscribe(self, consumer: Subscriber, then: Callable[[], None]) -> None:
        """End a subscription; `then` when all that was under way to it has been delivered."""
        self.orphans.pop(consumer, None)
        subscription, edge = self.subscriptions.get(consumer), self.edge
        if subscription is None or edge is None:
            then()
            return

        def on_answer(answer: bytes | Refusal) -> None:
            if edge.is_up:  # Else the home gives these to others.
                edge.hand_over(subscription)
            edge.end(subscription)
            then()

        subscription.ends = True
        self._ask(w.CANCEL, w.U64.pack(subscription.number), on_answer)

    def remove_consumer(self, consumer: Subscriber) -> None:
        """End a subscription without waiting: its channel is gone."""
        self.orphans.pop(consumer, None)
        subscription, edge = self.subscriptions.get(consumer), self.edge
        if subscription is not None and edge is not None:
            edge.give_back(subscription)
            edge.drop(subscription)
            self._ask(w.CANCEL, w.U64.pack(subscription.number), lambda answer: None)

    def set_limit(self, consumer: Subscriber) -> None:
        """The consumer's prefetch has changed."""
        subscription, edge = self.subscriptions.get(consumer), self.edge
        if subscription is not None and edge is not None:
            edge.send_now(frames.LIMIT, [w.LIMIT_ENTRY.pack(subscription.number, consumer.limit())])

    def _later(self, call: Callable[[AnyQueue], None]) -> bool:
        """True: the queue is moving, or is here by now, and the question is put off or put to whom it concerns."""
        if self.parked is not None or self._has_none():
            self.waiting.append(call)
        elif self.successor is not None:
            call(self.successor)
        else:
            return False
        return True

    def _ask(
        self,
        what: int,
        arguments: bytes,
        then: Callable[[bytes | Refusal], None],
        again: Callable[[AnyQueue], None] | None = None,
    ) -> None:
        """`again` asks the same of the next master, if this one is lost before it answers."""
        edge = self.edge
        if edge is None:
            then(unreachable(self.spec))
        else:
            edge.ask(self, what, arguments, then, again)

    # -- Moving --------------------------------------------------------------------------------------------------

    def on_moved(self, spec: QueueSpec, successor: Queue | None, then: Callable[[], None]) -> None:
        """The queue has another home. What was published through the old one must arrive before what comes now, so a
        question is sent after it; its answer, by way of the old home and the new, says that all of it has."""
        old_edge, subscriptions = self.edge, list(self.subscriptions.values())
        for subscription in subscriptions:
            subscription.feed.clear()  # The old home has taken these back.
            if old_edge is not None:
                old_edge.drop(subscription)
        self.spec, self.successor, self.is_hopeless = spec, successor, False
        self.parked = self.parked or []
        self.broker.suspended.pop(self, None)

        def on_answer(answer: bytes | Refusal) -> None:
            then()
            self.resume()

        for subscription in subscriptions:
            waiting, subscription.then = subscription.then, None
            if not subscription.ends:
                resubscribe(subscription.consumer, self, waiting)
        if old_edge is None:
            on_answer(b"")
        else:
            old_edge.ask(self, w.STATUS, b"", on_answer)

    # -- Settling ------------------------------------------------------------------------------------------------

    def settle_delivered(self, batch: Batch, lo: int, hi: int) -> None:
        self._settle(w.ACKED, batch, lo, hi)

    def discard(self, batch: Batch, lo: int, hi: int) -> None:
        self._settle(w.DISCARDED, batch, lo, hi)

    def requeue_many(self, pieces: list[tuple[Batch, int, int]], shown: bool = True) -> None:
        for batch, lo, hi in pieces:
            self._settle(w.REQUEUED if shown else w.RETURNED, batch, lo, hi)

    def _settle(self, verdict: int, batch: Batch, lo: int, hi: int) -> None:
        assert isinstance(batch, RemoteBatch)
        if batch.edge.is_up:  # Else its home has long taken it back.
            batch.edge.settle(verdict, batch.first + lo, batch.first + hi - 1)

    # -- The broker's turn ---------------------------------------------------------------------------------------

    def pump(self) -> None:
        edge = self.edge
        if edge is not None:
            for subscription in list(self.subscriptions.values()):
                if subscription.feed:
                    edge.hand_over(subscription)

    def page_out_unacked(self, batch: Batch, count: int) -> None:
        """Of what was delivered, nothing is kept anyway."""

    def on_deleted(self) -> None:
        self.deleted = True
        edge = self.edge
        for subscription in list(self.subscriptions.values()):
            if edge is not None:
                edge.end(subscription)
            subscription.on_queue_deleted()
        self.subscriptions.clear()
        orphans, self.orphans = self.orphans, {}
        gone = not_found("queue", self.spec.name, self.spec.vhost)
        for consumer, then in orphans.items():
            consumer.on_queue_deleted() if then is None else then(gone)
        parked, self.parked = self.parked or [], None
        for one in parked:  # Whoever deleted the queue has taken care of its messages.
            if one.pending is not None:
                one.pending.on_safe()
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call(self)
        self.broker.suspended.pop(self, None)


def unreachable(spec: QueueSpec) -> Refusal:
    durable = "durable " if spec.durable else ""
    name = resource("queue", spec.name, spec.vhost)
    return Refusal(404, f"home node '{spec.node}' of {durable}{name} is down or inaccessible")


def resubscribe(
    consumer: Subscriber, queue: AnyQueue, waiting: Callable[[Refusal | None], None] | None = None
) -> None:
    """A consumer goes on where its queue is now; if it cannot, its client is told. `waiting`: it had not begun yet."""

    def then(refused: Refusal | None) -> None:
        if refused is not None:
            consumer.on_queue_deleted()

    queue.subscribe(consumer, waiting or then)


class Ask(NamedTuple):
    """A question without an answer yet."""

    queue: AnyQueue
    spec: QueueSpec
    what: int
    then: Callable[[bytes | Refusal], None]
    again: Callable[[AnyQueue], None] | None

    def fail(self) -> None:
        """The link was lost. The next master of a mirrored queue may answer."""
        queue = self.queue
        if isinstance(queue, RemoteQueue) and queue.spec.view is not None and not queue.is_hopeless:
            if self.what == w.SUBSCRIBE:
                return  # Its consumer is an orphan.
            if self.again is not None:
                queue.suspend()
                queue.waiting.append(self.again)
                return
        self.then(unreachable(self.spec))


def _refusal(ask: Ask, code: int, text: bytes) -> Refusal:
    """Why a question is not answered. The home of a queue that was deleted does not know its name any more."""
    if code == ReplyCode.NOT_FOUND and not text:
        return not_found("queue", ask.spec.name, ask.spec.vhost)
    if code not in REPLY_CODES and not (code == w.MOVED and ask.what == w.SUBSCRIBE):
        raise BadFrame(f"refusal {code} of question {ask.what}")
    return Refusal(code, text.decode("utf-8", "surrogateescape"))


class Edge:
    """This node's end of a session with the home of other queues: what it has sent there and waits for."""

    def __init__(self, broker: Broker, peer: str) -> None:
        self.broker = broker
        self.peer = peer
        self.is_up = True
        self.bundles: dict[RemoteQueue, Bundle] = {}
        self.bundled_bytes = 0
        self.verdicts: list[tuple[int, int, int]] = []
        self.last_token = 0
        self.pendings: dict[int, list[Pending]] = {}
        self.sent_bytes = 0
        self.credit = FIRST_CREDIT
        self.last_ask = 0
        self.asks: dict[int, Ask] = {}
        self.oldest_ask = self.ask_ticks = 0  # For how long the same question has been the oldest.
        self.last_subscription = 0
        self.subscriptions: dict[int, Subscription] = {}
        self.taken: dict[Subscription, None] = {}

    # -- To the home ---------------------------------------------------------------------------------------------

    def is_crowded(self) -> bool:
        return self.sent_bytes + self.bundled_bytes > self.credit or not self.broker.shell.is_writable(self.peer)

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
        if bundle is None or bundle.kind != kind or self.bundled_bytes > FLUSH_BYTES:
            if bundle is not None or self.bundled_bytes > FLUSH_BYTES:
                self.flush_publishes()
            bundle = self.bundles[queue] = Bundle(kind)
            self.broker.linked[self] = None
        bundle.contents += contents
        bundle.keys += keys
        self.bundled_bytes += size
        if pending is not None:
            pending.waiting += 1
            bundle.pendings.append(pending)

    def flush_publishes(self) -> None:
        if not self.bundles:
            return
        parts = [w.U64.pack(self.broker.metadata.index)]
        for queue, bundle in self.bundles.items():
            token = 0
            if bundle.pendings:
                self.last_token = token = self.last_token + 1
                self.pendings[token] = bundle.pendings
            parts.append(w.BUNDLE.pack(queue.spec.id, token))
            parts += w.pack_run(bundle.contents, bundle.keys, bytes((bundle.kind,)) * len(bundle.contents))
        self.sent_bytes += self.bundled_bytes
        self.bundles, self.bundled_bytes = {}, 0
        self.broker.shell.send(self.peer, frames.PUBLISH, parts)

    def stage(self, queue: int, batch: Batch, lo: int, hi: int, pending: Pending) -> None:
        """Messages of a queue of this node that moves to the other one."""
        self.flush_publishes()
        self.last_token += 1
        self.pendings[self.last_token] = [pending]
        run = w.pack_run(batch.contents[lo:hi], batch.keys[lo:hi], batch.kinds[lo:hi])
        self.broker.shell.send(self.peer, frames.STAGE, [w.BUNDLE.pack(queue, self.last_token), *run])

    def settle(self, verdict: int, first: int, last: int) -> None:
        verdicts = self.verdicts
        if verdicts and verdicts[-1][0] == verdict and verdicts[-1][2] + 1 == first:
            verdicts[-1] = (verdict, verdicts[-1][1], last)
        else:
            verdicts.append((verdict, first, last))
        self.broker.linked[self] = None

    def send_now(self, kind: int, parts: list[bytes]) -> None:
        """After all that gathered before."""
        self.flush()
        self.broker.shell.send(self.peer, kind, parts)

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
        self.send_now(frames.ASK, [head, arguments])

    def flush(self) -> None:
        """Send what gathered in this turn."""
        if not self.is_up:
            return  # By now there may be another session, which has nothing to do with this one.
        self.flush_publishes()
        if self.verdicts:
            verdicts, self.verdicts = self.verdicts, []
            self.broker.shell.send(self.peer, frames.SETTLE, [w.VERDICT.pack(*one) for one in verdicts])
        if self.taken:
            taken, self.taken = self.taken, {}
            parts = [w.TAKEN_ENTRY.pack(one.number, one.taken_bytes) for one in taken]
            self.broker.shell.send(self.peer, frames.TAKEN, parts)

    # -- Subscriptions -------------------------------------------------------------------------------------------

    def subscribe(self, queue: RemoteQueue, consumer: Subscriber) -> Subscription:
        self.last_subscription += 1
        subscription = Subscription(self.last_subscription, queue, consumer)
        self.subscriptions[subscription.number] = queue.subscriptions[consumer] = subscription
        return subscription

    def drop(self, subscription: Subscription) -> None:
        self.subscriptions.pop(subscription.number, None)
        subscription.queue.subscriptions.pop(subscription.consumer, None)
        self.taken.pop(subscription, None)

    def hand_over(self, subscription: Subscription, even_without_room: bool = False) -> None:
        """Give the consumer what has come for it, as far as it has room."""
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
            if span.lo == span.hi:
                span.batch.contents, span.batch.keys = [], []  # The home keeps what may come back.
            self.taken[subscription] = None
            self.broker.linked[self] = None

    def give_back(self, subscription: Subscription) -> None:
        """What the consumer was never shown."""
        for span in subscription.feed:
            if not subscription.consumer.no_ack:
                self.settle(w.RETURNED, span.first, span.last)
            subscription.taken_bytes += sum(map(len, span.batch.contents[span.lo : span.hi]))
            subscription.taken_bytes += MESSAGE_OVERHEAD * span.count
        subscription.feed.clear()
        self.taken[subscription] = None
        self.broker.linked[self] = None

    def end(self, subscription: Subscription) -> None:
        """Nothing more comes. What needs no acknowledgement is gone from its queue: that the client gets even so."""
        if subscription.consumer.no_ack:
            self.hand_over(subscription, even_without_room=True)
        self.give_back(subscription)
        self.drop(subscription)

    def tick(self) -> None:
        """Once a second: what waits for a client that has no room for it may suit another one."""
        oldest = next(iter(self.asks), 0)
        self.ask_ticks = self.ask_ticks + 1 if oldest and oldest == self.oldest_ask else 0
        self.oldest_ask = oldest
        if self.ask_ticks >= ASK_TICKS_MAX:
            # It is there and does not answer: cut off from the cluster's leader, perhaps. To begin anew is all that
            # leaves no doubt about what was done and what was not.
            self.broker.shell.cut(self.peer, f"a question was not answered for {self.ask_ticks} s")
        for subscription in self.subscriptions.values():
            if subscription.feed and not subscription.consumer.no_ack:
                subscription.stuck_ticks += 1
                if subscription.stuck_ticks > 1 and subscription.consumer.shares_prefetch():
                    subscription.stuck_ticks = 0
                    self.give_back(subscription)

    # -- From the home -------------------------------------------------------------------------------------------

    def on_frame(self, kind: int, payload: bytes) -> None:
        """Raises `BadFrame`."""
        _FROM_HOME[kind](self, payload)

    def _on_safe(self, payload: bytes) -> None:
        pendings = self.pendings
        for token, multiple, refused in w.unpack_all(w.SAFE_ENTRY, payload):
            tokens = list(takewhile(token.__ge__, pendings)) if multiple else [token]
            for one in tokens:
                for pending in pendings.pop(one, ()):
                    pending.refused = pending.refused or bool(refused)
                    pending.on_safe()

    def _on_deliver(self, payload: bytes) -> None:
        at = 0
        while at < len(payload):
            number, first = w.unpack_one(w.DELIVERY, payload, at)
            messages, at = w.unpack_run(payload, at + w.DELIVERY.size)
            subscription = self.subscriptions.get(number)
            count = len(messages.contents)
            if subscription is None:
                # It ended meanwhile, and the client will never see these.
                self.settle(w.RETURNED, first, first + count - 1)
                continue
            subscription.feed.append(Span(RemoteBatch(self, first, messages), 0, count))
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
            self.asks[number] = ask  # The end of the session will be its answer.
            raise BadFrame(str(error)) from None

    def _on_cancelled(self, payload: bytes) -> None:
        (number,) = w.unpack_one(w.U64, payload)
        subscription = self.subscriptions.get(number)
        if subscription is not None:
            self.end(subscription)
            subscription.on_queue_deleted()

    def _on_credit(self, payload: bytes) -> None:
        (self.credit,) = w.unpack_one(w.U64, payload)

    def on_down(self) -> None:
        """The session is over."""
        self.is_up = False
        pendings = [pending for several in self.pendings.values() for pending in several]
        pendings += [pending for bundle in self.bundles.values() for pending in bundle.pendings]
        self.pendings, self.bundles, self.verdicts, self.taken = {}, {}, [], {}
        for pending in pendings:
            pending.refused = True
            pending.on_safe()
        asks, self.asks = self.asks, {}
        subscriptions, self.subscriptions = self.subscriptions, {}
        for subscription in subscriptions.values():
            queue = subscription.queue
            if queue.spec.view is not None and subscription.consumer in queue.subscriptions:
                self.end(subscription)
                queue.adopt(subscription)
        for ask in asks.values():
            ask.fail()
        for subscription in subscriptions.values():
            if subscription.consumer in subscription.queue.subscriptions:
                self.end(subscription)
                subscription.on_queue_deleted()
        self.verdicts, self.taken = [], {}


_FROM_HOME: Final[dict[int, Callable[[Edge, bytes], None]]] = {
    frames.SAFE: Edge._on_safe,
    frames.DELIVER: Edge._on_deliver,
    frames.ANSWER: Edge._on_answer,
    frames.CANCELLED: Edge._on_cancelled,
    frames.CREDIT: Edge._on_credit,
}
FROM_HOME: Final = frozenset(_FROM_HOME)
