"""A queue of another node, as clients of this node use it; and the protocol between the two nodes.

Every queue has a *home*, the node with its messages. A client may be connected to any node, its *edge*. The channel
there uses a `RemoteQueue` just as a `Queue`: it enqueues, subscribes, settles. What it does is sent over the link
between the two nodes, gathered over a turn of the node, in frames (see `peer_frames`):

    edge ──▶ home    PUBLISH   bundles of messages without confirms
                     PRODUCE   bundles of messages, each with its producer, the number of its first message, a token
                     SETTLE    what became of deliveries: acknowledged, requeued, discarded
                     ASK       a question with one answer: number of messages, purge, get, subscribe, cancel
                     LIMIT     another prefetch for a subscription
                     TAKEN     how many bytes of its deliveries a subscription has passed on
    home ──▶ edge    SAFE      tokens whose messages are safe; or are refused, or in doubt
                     DELIVER   runs of messages for subscriptions, numbered by the link's own tags; also
                               DELIVER_NUMBERED, with their numbers in the queue, for consumers that are exact
                     ANSWER    the answer to a question
                     CANCELLED a subscription ended because its queue was deleted
                     CREDIT    how many bytes of publishes, counted from the beginning, the home accepts

The edge's end of a session is `client_end`, the home's is `owner_end`.

**Order.** Frames of one link arrive in order. Publishes that gathered are sent before any question that came after
them, and so are settlements; so a client that publishes, then asks for the number of messages, finds its own counted.
At the home a question makes the queue deliver first (`Queue.catch_up`), and these deliveries are sent before the
answer. A client that cancels or closes waits for the answer, and so has all that its consumer was given. To a client
that is lost nothing more is delivered.

**What the home does not know yet.** The edge may have applied the command that made a queue before the queue's home
has. So publishes and questions carry the edge's number of applied commands, and the home waits until it is as far:
otherwise it would take a new queue for a deleted one, and its messages for settled.

**Prefetch** is counted at the home: by messages that are not settled there, which are never fewer than those
unacknowledged by the client. A prefetch that consumers of one channel share cannot be counted there; each of them gets
all of it, and what is too much waits in the edge's `feed`, from where it is returned after a while, so that no message
waits for a client without room while another has room for it.

**Buffers.** Publishes: the edge counts what it has sent; when that reaches what the home has granted, clients that
publish to queues of that home are not read from. Deliveries: a subscription has at most `FEED_BYTES_MAX` (or one
message) on the way that the client's socket has not taken.

**When the link breaks** both ends start from nothing. The edge sends all publishes again that were sent and not
reported safe, under the numbers they had, as soon as there is a way (see `outbox`), deals with those that were still to
be sent as if they came now, fails all questions, cancels its consumers as RabbitMQ does when a queue's node is down;
later acknowledgements of earlier deliveries are accepted without effect. The home requeues what was unacknowledged,
marked as redelivered. Questions about a queue that does not outlive its node wait until it is clear whether more than
the link is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from leveret.base.shared_values import NO_DICT, NO_LIST
from leveret.broker.delivery.answers import Got, Status, unreachable
from leveret.broker.delivery.batch import Batch
from leveret.broker.delivery.confirms import DOUBTED, REFUSED
from leveret.broker.delivery.offsets import NEXT, OFFSET, Start
from leveret.broker.queue.hold import Parked, park, unpark
from leveret.broker.remote import peer_frames as w
from leveret.broker.remote.client_end import COUNT_MAX, ClientEnd, RemoteBatch, Subscription
from leveret.links import frame_types
from leveret.metadata.model.refusals import Refusal, not_found

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.consumer import Subscriber
    from leveret.broker.delivery.publish_numbers import Origin
    from leveret.broker.mirrors.detached import DetachedQueue
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.broker.remote.store_and_forward import Spool
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.rules.queue_rules import QueueRules


class RemoteQueue:
    """A queue of another node. Has the methods of `Queue` that channels and the broker's turn use."""

    __slots__ = (
        "applied_rules", "broker", "deleted", "is_hopeless", "is_late", "is_moving", "is_used", "parked",
        "policy_version", "spec", "spool", "subscriptions", "successor", "waiting", "waiting_consumers",
    )  # fmt: skip

    is_local: Literal[False] = False

    def __init__(self, spec: QueueSpec, broker: Broker) -> None:
        self.spec = spec
        self.broker = broker
        self.deleted = False
        self.applied_rules, self.policy_version = broker.rules_of(spec), broker.policy_version
        self.subscriptions: dict[Subscriber, Subscription] = NO_DICT
        # While the queue moves: publishes and questions wait until the node it left has passed on all that came before.
        self.parked: list[Parked] | None = None
        self.waiting: list[Callable[[AnyQueue], None]] = NO_LIST
        self.is_moving = False
        self.is_used = False  # Something was sent to its home.
        # The queue itself if it has moved to this node; or the object that stands for it since it moved on from here.
        self.successor: AnyQueue | None = None
        # While a mirrored queue has no master: consumers for the next one, with the callbacks of those not begun.
        self.waiting_consumers: dict[Subscriber, Callable[[Refusal | None], None] | None] = NO_DICT
        self.is_hopeless = False  # A wait for its next master has ended without one, and none has come since.
        self.is_late = False  # Publishes do not wait any longer for its next master.
        self.spool = broker.spools.attach(self)  # While this node keeps publishes for it.

    def __repr__(self) -> str:
        return f"RemoteQueue({self.spec.vhost!r}, {self.spec.name!r}, at {self.spec.node!r})"

    @property
    def rules(self) -> QueueRules:
        """Returns the present rules for its messages. Its home applies them."""
        self.refresh_rules()
        return self.applied_rules

    def refresh_rules(self) -> None:
        if self.policy_version != self.broker.policy_version:
            self.applied_rules, self.policy_version = self.broker.rules_of(self.spec), self.broker.policy_version

    @property
    def client_end(self) -> ClientEnd | None:
        """The link to the queue's home, if it is up."""
        return self.broker.client_ends.get(self.spec.node)

    def is_crowded(self) -> bool:
        """Returns whether publishers should wait."""
        if self.spool is not None:
            return self.spool.is_crowded()
        successor = self.successor
        if successor is not None and self.parked is None:
            # Publishers wait only a short while for a queue that is here, however full it is. Those that wait for
            # this one would wait until it is half empty, and its consumers may take nothing.
            return successor.parked is not None if successor.is_local else successor.is_crowded()
        if self.parked is not None:
            return not self.is_late
        client_end = self.client_end
        return client_end is not None and (client_end.is_crowded() or self.broker.outboxes.is_crowded(self.spec.id))

    # -- Without a master ----------------------------------------------------------------------------------------

    def _has_none(self) -> bool:
        """Returns whether a mirrored queue has lost its master and may get another: then everything waits for it."""
        has_none = self.spec.view is not None and self.client_end is None and self.successor is None
        may_come = not self.is_hopeless and not self.deleted
        if has_none and may_come and not self.broker.mirrors.ha_rules.is_down(self.spec):
            self.suspend()
            return True
        return False

    def _is_in_doubt(self) -> bool:
        """Returns whether the queue does not outlive its node, and that node is lost: questions wait until the node is
        given up, or is back. A client of that node that has connected here may declare the same names again."""
        spec = self.spec
        has_none = self.client_end is None and self.successor is None and not self.is_hopeless and not self.deleted
        if has_none and spec.view is None and (spec.exclusive or not spec.durable):
            self.broker.suspended.setdefault(self, 0)
            return True
        return False

    def has_way(self) -> bool:
        """Returns whether a publish reaches the queue's node now, or waits for the next master."""
        return self.parked is not None or self.is_reachable() or self._has_none()

    def is_reachable(self) -> bool:
        """Returns whether there is a master, and a link to it."""
        return self.client_end is not None or self.successor is not None

    def suspend(self) -> None:
        if self.parked is None:
            self.parked = []
            self.broker.suspended[self] = 0
            self.broker.mirrors.tell_first(self.spec.id)

    def adopt(self, subscription: Subscription) -> None:
        """The link to the master was lost: the subscription's consumer waits for the next master."""
        self.is_hopeless = False  # There was a master until now.
        self.suspend()
        if subscription.is_cancelled_by_failover:
            subscription.consumer.on_queue_deleted()
        elif not subscription.ends:
            self._await_master(subscription.consumer, subscription.then)

    def _must_wait(self) -> bool:
        """Returns whether publishes that came before have to be sent again first: then everything waits for that."""
        outbox = self.broker.outboxes.ahead_of(self)
        if outbox is None or self.spool is not None or self.deleted or not self.is_reachable():
            return False  # If it is out of reach, they are refused or spooled, behind what is in doubt.
        if self.parked is None:
            self.parked = []
        outbox.have_wait(self)
        return True

    def on_outbox_changed(self) -> None:
        """Publishes that came before may be sent by now, or cannot be sent at all."""
        if not self.is_moving and self not in self.broker.suspended:
            self.resume()

    def resume(self) -> None:
        """There is a master again, or the wait for one is over: go on with all that waited, and first with what is in
        doubt."""
        self.broker.suspended.pop(self, None)
        self.broker.outboxes.again_for(self)
        if self._must_wait():
            return
        self.step_aside()
        parked, waiting, waiting_consumers = self.parked, self.waiting, self.waiting_consumers
        self.parked, self.waiting, self.waiting_consumers = None, NO_LIST, NO_DICT
        self.is_late = False
        queue = self.successor or self.broker.successor(self) or self
        unpark(parked or [], queue if self.spool is None else self)
        for call in waiting:
            call(queue)
        for consumer, then in waiting_consumers.items():
            resubscribe(consumer, queue, then)

    def set_spec(self, spec: QueueSpec) -> None:
        """The queue's record in the metadata has changed."""
        self.spec = spec

    def on_new_view(self, spec: QueueSpec) -> None:
        """The queue has a new view: if its master is lost again, clients wait for the next one again."""
        self.spec, self.is_hopeless = spec, False

    def _wait(self, call: Callable[[AnyQueue], None]) -> None:
        self.waiting = self.waiting or []
        self.waiting.append(call)

    def _await_master(self, consumer: Subscriber, then: Callable[[Refusal | None], None] | None) -> None:
        """A consumer waits for the next master, unless its client cancels it before that."""
        self.waiting_consumers = self.waiting_consumers or {}
        self.waiting_consumers[consumer] = then

    def add_subscription(self, subscription: Subscription) -> None:
        self.subscriptions = self.subscriptions or {}
        self.subscriptions[subscription.consumer] = subscription

    def drop_subscription(self, consumer: Subscriber) -> None:
        if consumer in self.subscriptions:
            del self.subscriptions[consumer]

    def put_off(self, call: Callable[[AnyQueue], None]) -> None:
        """A question waits until there is a master again."""
        self._wait(call)

    def set_spool(self, spool: Spool | None) -> None:
        """This node keeps publishes for the queue, or does no longer."""
        self.spool = spool

    def set_successor(self, queue: AnyQueue) -> None:
        """Another object of this node stands for the queue now."""
        self.successor = queue

    def give_up(self) -> None:
        """No other master has come in time: stop waiting."""
        self.is_hopeless = True
        self.resume()

    def answer_publishers(self) -> None:
        """Answer publishers, which have waited too long: their messages are put into a spool, with their numbers if
        they may have arrived; or they are refused."""
        spools = self.broker.spools
        if spools.may_take_unconfirmed(self):
            if self.spool is None:
                spools.begin(self)
            else:
                spools.take_unconfirmed(self.spool)
        elif self.parked is not None:
            self.is_late = True
        parked, rest = self.parked or [], []
        for one in parked:
            if self.spool is not None and one.pending is not None and one.pending.is_kept:
                one.pending.on_safe()  # The spool has it.
            elif one.origin is not None or (self.spool is None and one.pending is None):
                rest.append(one)
            elif self.spool is not None:
                self.spool.accept(one.contents, one.keys, one.kind, one.size, one.pending)
                if one.pending is not None:
                    one.pending.on_safe()
            elif one.pending is not None:
                one.pending.refuse(REFUSED)
        if self.parked is not None:
            self.parked = rest

    # -- Publishing ----------------------------------------------------------------------------------------------

    def _has_spool(self) -> bool:
        """Returns whether publishes go into a spool: behind others there, or because the queue is out of reach."""
        if self.spool is None and self.client_end is None and (self.parked is None or self.is_late):
            spools, successor = self.broker.spools, self.successor
            is_out_of_reach = successor is None or (successor.is_local and successor.frozen)
            self.spool = spools.begin(self) if is_out_of_reach and spools.may_begin(self) else None
        return self.spool is not None

    def enqueue(self, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending | None) -> bool:
        if self._has_spool():
            assert self.spool is not None
            return self.spool.accept(contents, keys, kind, size, pending)
        if self.is_late and self.parked is not None:
            if pending is not None:
                pending.mark_refused()
            return False
        return self.relay(contents, keys, kind, size, pending)

    def relay(self, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending | None) -> bool:
        """Enqueue publishes that came over a link although this node is no longer the queue's home, or not yet. They do
        not go into a spool: as soon as the queue is here, later ones go straight to it and would overtake them."""
        if self.parked is not None or self._has_none() or self._must_wait():
            assert self.parked is not None
            return park(self.parked, contents, keys, kind, size, pending)
        if self.successor is not None:
            return self.successor.enqueue(contents, keys, kind, size, pending)
        client_end = self.client_end
        if client_end is None:
            if pending is not None:
                pending.mark_refused()
            return False
        self.is_hopeless, self.is_used = False, True
        client_end.publish(self, contents, keys, kind, size, pending)
        return client_end.is_crowded() or self.broker.outboxes.is_crowded(self.spec.id)

    def enqueue_from(
        self, origin: Origin, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending
    ) -> bool:
        """Enqueue publishes of a producer. The queue knows which of them it has."""
        if self.parked is not None or self._has_none():
            assert self.parked is not None
            return park(self.parked, contents, keys, kind, size, pending, origin)
        return self.send_from(origin, contents, keys, kind, size, pending)

    def send_from(
        self, origin: Origin, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending
    ) -> bool:
        """Enqueue publishes of a producer before all that wait."""
        if self.successor is not None:  # Only other publishes wait for the spool to be empty.
            return self.successor.enqueue_from(origin, contents, keys, kind, size, pending)
        client_end = self.client_end
        if client_end is None:
            pending.mark_refused(DOUBTED)
            return False
        self.is_hopeless, self.is_used = False, True
        client_end.publish_from(self, origin, contents, keys, kind, size, pending)
        return client_end.is_crowded()

    # -- Questions -----------------------------------------------------------------------------------------------

    def status(self, then: Callable[[Status | Refusal], None]) -> None:
        if self.later(lambda queue: queue.status(then)):
            return

        def on_answer(answer: bytes | Refusal) -> None:
            self.pump()  # Earlier deliveries reach the client before the answer.
            if isinstance(answer, Refusal):
                then(answer)
            else:
                ready, consumers = w.unpack_one(w.STATUS_ANSWER, answer)
                then(Status(min(ready, COUNT_MAX), consumers))

        self._ask(w.STATUS, b"", on_answer, lambda queue: queue.status(then))

    def purge_all(self, then: Callable[[int | Refusal], None]) -> None:
        if self.later(lambda queue: queue.purge_all(then)):
            return

        def on_answer(answer: bytes | Refusal) -> None:
            self.pump()
            then(answer if isinstance(answer, Refusal) else min(w.unpack_one(w.U64, answer)[0], COUNT_MAX))

        self._ask(w.PURGE, b"", on_answer, lambda queue: queue.purge_all(then))

    def fetch(self, no_ack: bool, wanted: Callable[[], bool], then: Callable[[Got | Refusal | None], None]) -> None:
        if self.later(lambda queue: queue.fetch(no_ack, wanted, then)):
            return
        client_end = self.client_end

        def again(queue: AnyQueue) -> None:
            queue.fetch(no_ack, wanted, then)

        def on_answer(answer: bytes | Refusal) -> None:
            self.pump()
            if isinstance(answer, Refusal) and answer.code == w.MOVED:
                self._follow(client_end, again)
            elif isinstance(answer, Refusal):
                then(answer)
            elif not answer:
                then(None)
            else:
                assert client_end is not None
                tag, remaining = w.unpack_one(w.GET_ANSWER, answer)
                messages, _ = w.unpack_run(answer, w.GET_ANSWER.size)
                batch = RemoteBatch(client_end, tag, messages)
                if wanted():
                    then(Got(batch, 0, min(remaining, COUNT_MAX), self))
                    batch.drop_contents()
                else:
                    if not no_ack:
                        client_end.settle(w.REQUEUED, tag, tag)
                    then(None)

        self._ask(w.GET, w.U8.pack(no_ack), on_answer, again)

    def subscribe(self, consumer: Subscriber, then: Callable[[Refusal | None], None]) -> None:
        detached = self.detached()
        if detached is not None:
            consumer.queue = detached
            detached.subscribe(consumer, then)
            return
        if self._waits():
            consumer.queue = self
            self._await_master(consumer, then)
            return
        if self.successor is not None:
            consumer.queue = self.successor
            self.successor.subscribe(consumer, then)
            return
        consumer.queue = self
        client_end = self.client_end
        if client_end is None:
            then(unreachable(self.spec))
            return
        subscription = client_end.subscribe(self, consumer)
        subscription.then = then

        def on_answer(answer: bytes | Refusal) -> None:
            is_refused = isinstance(answer, Refusal)
            if self.subscriptions.get(consumer) is not subscription and not is_refused:
                return  # The queue has moved meanwhile, and the consumer was subscribed again.
            if isinstance(answer, Refusal) and answer.code == w.MOVED:
                return  # It subscribes again when this node knows where the queue is.
            if answer and not isinstance(answer, Refusal):  # The offset of its next message, at any master.
                wanted = consumer.begins_at
                kind = NEXT if wanted is not None and wanted.kind == NEXT else OFFSET
                consumer.begins_at = Start(kind, *w.unpack_one(w.U64, answer))
            if subscription.then is not None:
                subscription.then = None
                if isinstance(answer, Refusal):
                    client_end.drop(subscription)
                else:
                    self.pump()  # Earlier deliveries to other consumers reach the client first.
                then(answer if isinstance(answer, Refusal) else None)

        tag = consumer.tag.encode("utf-8", "surrogateescape")
        head = w.SUBSCRIBE_HEAD.pack(
            subscription.number,
            consumer.no_ack,
            w.EXACT if consumer.exclusive and consumer.is_exact else consumer.exclusive,
            consumer.limit(),
            consumer.priority,
            *(consumer.begins_at or (0, 0)),
        )
        self._ask(w.SUBSCRIBE, head + tag, on_answer)

    def unsubscribe(self, consumer: Subscriber, then: Callable[[], None]) -> None:
        """End a subscription; `then` when all that was under way to it has been delivered."""
        if consumer in self.waiting_consumers:
            del self.waiting_consumers[consumer]
        subscription, client_end = self.subscriptions.get(consumer), self.client_end
        if subscription is None or client_end is None:
            then()
            return

        def on_answer(answer: bytes | Refusal) -> None:
            if client_end.is_up:  # Else the home requeues these.
                self.pump()
                client_end.hand_over(subscription)
            client_end.end(subscription)
            then()

        subscription.ends = True
        self._ask(w.CANCEL, w.U64.pack(subscription.number) + w.IN_ORDER, on_answer)

    def remove_consumer(self, consumer: Subscriber) -> None:
        """End a subscription without waiting: its channel is closed."""
        if consumer in self.waiting_consumers:
            del self.waiting_consumers[consumer]
        subscription, client_end = self.subscriptions.get(consumer), self.client_end
        if subscription is not None and client_end is not None:
            client_end.give_back(subscription)
            client_end.drop(subscription)
            self._ask(w.CANCEL, w.U64.pack(subscription.number), lambda answer: None)

    def set_limit(self, consumer: Subscriber) -> None:
        """The consumer's prefetch has changed."""
        subscription, client_end = self.subscriptions.get(consumer), self.client_end
        if subscription is not None and client_end is not None:
            client_end.send_now(frame_types.LIMIT, [w.LIMIT_ENTRY.pack(subscription.number, consumer.limit())])

    def later(self, call: Callable[[AnyQueue], None]) -> bool:
        """True: the question waits because the queue is moving, or goes to the object that stands for the queue now."""
        detached = self.detached()
        if detached is not None:
            call(detached)
        elif self._waits():
            self._wait(call)
        elif self.successor is not None:
            call(self.successor)
        else:
            return False
        return True

    def detached(self) -> DetachedQueue | None:
        """Returns the queue that serves clients from this node's copy while the master is unreachable, if wanted."""
        detachment = self.broker.detachment
        detached = detachment.queues.get(self.spec.id)
        if detached is not None and detached.is_serving:
            return detached  # Perhaps begun by another object: two stand for a queue that this node leads no longer.
        return detachment.begin(self) if self.parked is None and not self.deleted and detachment.is_due else None

    def _waits(self) -> bool:
        return self.parked is not None or self._has_none() or self._is_in_doubt()

    def _follow(self, asked: ClientEnd | None, again: Callable[[AnyQueue], None]) -> None:
        """Ask again where the queue is now: the node that was asked says that the queue has moved. If this node has not
        heard of that yet, it will in a moment; if another object stands for the queue now, that one is asked."""
        current = self.broker.successor(self)
        if current is not None:
            again(current)
            return
        if self.client_end is asked:
            self.suspend()
        if not self.later(again):
            again(self)

    def _ask(
        self,
        what: int,
        arguments: bytes,
        then: Callable[[bytes | Refusal], None],
        again: Callable[[AnyQueue], None] | None = None,
    ) -> None:
        """`again` asks the same of the next master, if this one is lost before it answers."""
        client_end = self.client_end
        if client_end is None:
            then(unreachable(self.spec))
        else:
            self.is_hopeless, self.is_used = False, True
            client_end.ask(self, what, arguments, then, again)

    # -- Moving --------------------------------------------------------------------------------------------------

    def on_moved(self, spec: QueueSpec, successor: LocalQueue | None) -> None:
        """The queue has another home. What was published through the old one must arrive before later publishes, so a
        question is sent after it; its answer, which comes through the old home from the new one, says that all of it
        has arrived, but for what is in doubt (see `_must_wait`). The queue may move on before that. Then the first
        answer counts: that of the first node may wait for this very one. Nothing is asked if nothing was sent: when a
        node starts, thousands of queues have another home."""
        old_client_end, subscriptions = self.client_end, list(self.subscriptions.values())
        if old_client_end is not None:
            for subscription in subscriptions:
                old_client_end.end(subscription)
        self.spec, self.successor, self.is_hopeless = spec, successor, False
        self.parked = self.parked or []
        self.broker.suspended.pop(self, None)

        def on_answer(answer: bytes | Refusal) -> None:
            self.is_moving = self.is_used = False
            self.resume()

        self.is_moving = True
        for subscription in subscriptions:
            if spec.view is not None and subscription.is_cancelled_by_failover:
                subscription.consumer.on_queue_deleted()
                continue
            waiting, subscription.then = subscription.then, None
            if not subscription.ends:
                self._await_master(subscription.consumer, waiting)
        if old_client_end is None or not self.is_used:
            on_answer(b"")
        else:
            old_client_end.ask(self, w.STATUS, b"", on_answer)

    def step_aside(self) -> None:
        """Let clients of this node use the queue that is here, unless their publishes would overtake earlier ones."""
        self.broker.spools.release(self)
        if self.successor is not None and not self.is_moving and self.spool is None and not self._must_wait():
            self.broker.replace(self, self.successor)

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
        if batch.client_end.is_up:  # Else its home has requeued it already.
            batch.client_end.settle(verdict, batch.first + lo, batch.first + hi - 1)

    # -- The broker's turn ---------------------------------------------------------------------------------------

    def pump(self) -> None:
        client_end = self.client_end
        if client_end is not None:
            for subscription in list(self.subscriptions.values()):
                if subscription.feed:
                    client_end.hand_over(subscription)

    def page_out_unacked(self, batch: Batch, count: int) -> None:
        """Does nothing: the contents of delivered messages are not kept here."""

    def on_deleted(self) -> None:
        self.deleted = True
        client_end = self.client_end
        for subscription in list(self.subscriptions.values()):
            if client_end is not None:
                client_end.end(subscription)
            subscription.on_queue_deleted()
        self.subscriptions = NO_DICT
        waiting_consumers, self.waiting_consumers = self.waiting_consumers, NO_DICT
        gone = not_found("queue", self.spec.name, self.spec.vhost)
        for consumer, then in waiting_consumers.items():
            consumer.on_queue_deleted() if then is None else then(gone)
        parked, self.parked = self.parked or [], None
        for one in parked:  # Whoever deleted the queue has taken care of its messages.
            if one.pending is not None:
                one.pending.on_safe()
        waiting, self.waiting = self.waiting, NO_LIST
        for call in waiting:
            call(self)
        self.broker.suspended.pop(self, None)


def resubscribe(consumer: Subscriber, queue: AnyQueue, waiting: Callable[[Refusal | None], None] | None = None) -> None:
    """Subscribe a consumer where its queue is now; else cancel it. `waiting`: the callback of one not begun yet."""

    def then(refused: Refusal | None) -> None:
        if refused is not None:
            consumer.on_queue_deleted()

    consumer.queue = queue
    queue.subscribe(consumer, waiting or then)
