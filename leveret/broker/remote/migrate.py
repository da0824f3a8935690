"""Moves a queue to another node with all its messages, while it is used.

    home ──▶ target   ADOPT: make an empty hidden queue under the same id (staged)
    home              requeues what is unacknowledged, and stops delivering
    home ──▶ target   STAGE: all messages in order, also those that come meanwhile; each is reported safe
    home              when all are: publishes wait from now on, unconfirmed (sealed), as consumers and gets did before
    home ──▶ target   BRING: the queue's marks, if it has any; they too are reported safe
    all               MoveQueue is agreed on; the staged queue takes the place of the old one
    home              what waited is sent on; consumers everywhere subscribe at the target

If a node dies: until the command is agreed on, the home has every message, and whatever the target has is thrown
away; at the latest when the queue becomes mirrored and the target gets a copy of it, which has the same number in its
log. When the home proposes the command, the target has every message that was ever confirmed, on disk. If the target
dies after that, it finds them in its log, provided that the command comes before it has cleaned up; it cleans up after
it has announced its new run, and the command names the run in which the messages were staged. So a command that comes
too late is refused, and the home goes on. If the home dies, the command either stands in the agreed order before the
home's next run, or will never come; so the target keeps what is staged until the home begins another run.

A `Departure` is, to its queue, a consumer: it takes messages as room allows, unacknowledged until the end.

At the target messages have other **numbers**, in the order in which they are sent. They are higher than any that the
queue has had at home, or will have until it is gone: a client that still reads by a former number must find nothing,
rather than another message; and what a session of MQTT has taken, it has taken by its number.

**Leases** (see `broker.queue.leases`) move with their messages, which are requeued and sent with the others. A lease is
expressed in the new numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from leveret.broker.delivery.answers import unreachable
from leveret.broker.delivery.confirms import Confirms
from leveret.broker.event_journal.queue_journal import MARK
from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.broker.queue.hold import go_on, release
from leveret.broker.queue.leases import Leases
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.state import Access
from leveret.broker.remote import peer_frames as w
from leveret.broker.remote.client_end import ClientEnd, RemoteBatch
from leveret.broker.remote.handover import pass_on_unacked
from leveret.broker.remote.owner_end import RemoteConsumer
from leveret.broker.remote.remote_queue import RemoteQueue, resubscribe
from leveret.metadata.model import commands as c
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.rules.ha_policy import is_stream
from leveret.storage.format.queue_marks import marks_of, pack_marks

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.consumer import Consumer, Subscriber
    from leveret.broker.delivery.offsets import Start
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.metadata.store import Applied

WINDOW_BYTES: Final = 1 << 20
LIFE: Final = 1 << 32  # More messages than come while a queue is on its way.
AGAIN_MS: Final = 5_000  # Pause after staged messages were dropped, until the log has surely written that.


class Departure:
    """The move of one queue of this node. `then` gets what went wrong, or None."""

    tag = ""
    no_ack = False
    exclusive = True
    is_exact = False
    priority = 0
    timeout_ms: int | None = None
    begins_at: Start | None = None

    def __init__(self, queue: Queue, to: str, then: Callable[[str | None], None]) -> None:
        host = queue.host
        self.broker: Broker = host  # type: ignore[assignment]  # Queues that move have a broker for a host.
        self.queue = queue
        self.to = to
        self.then = then
        self.unacked = 0
        self.client_end: ClientEnd | None = None
        self.run = ""
        self.pieces: list[tuple[Batch, int, int]] = []  # Sent, and kept in case the move fails.
        self.first = 0  # The number of the first of them at the target.
        self.confirms = Confirms(self._on_staged)
        self.under_way = 0
        self.begun = False
        self.sealed = False
        self.consumers: list[Consumer] = []  # Of the queue; they wait.

    def start(self) -> None:
        client_end = self.broker.client_ends.get(self.to)
        if client_end is None:
            self.then(f"node {self.to} is not there")
            return
        self.client_end = client_end
        self.queue.begin_move(self)
        self.broker.arrivals.leaving[self] = None
        self.first = (self.queue.next_seq // LIFE + 1) * LIFE
        client_end.ask(self.queue, w.ADOPT, w.U64.pack(self.first), self._on_adopted)

    def _on_adopted(self, answer: bytes | Refusal) -> None:
        queue = self.queue
        if queue.departure is not self:
            return  # It has ended meanwhile.
        if queue.deleted:
            queue.end_move()
            release(queue)
            self.then("the queue was deleted")
            return
        if isinstance(answer, Refusal):
            self.end(answer.text)
            return
        self.run = answer.decode()
        self.consumers = queue.take_consumers()
        queue.requeue_many(take_back(self.broker, queue), counted=False)  # Not counted as a failed delivery.
        leases = queue.extension(Leases)
        if leases is not None:
            leases.put_back_all()
        self.begun = True  # No message is dead-lettered here any more: it would be lost at both nodes.
        self.broker.dead_letters.take_back(queue)
        queue.add_consumer(self)
        self._check()

    # -- As a consumer -------------------------------------------------------------------------------------------

    @property
    def who(self) -> str:
        return f"moving to {self.to}"

    def room(self, average_bytes: int) -> int:
        if self.client_end is None or not self.client_end.is_up:
            return 0
        room = (WINDOW_BYTES - self.under_way) // average_bytes
        return 1 if room <= 0 and not self.under_way else room

    def deliver(self, batch: Batch, lo: int, hi: int) -> None:
        assert self.client_end is not None
        self.unacked += hi - lo
        self.pieces.append((batch, lo, hi))
        pending = self.confirms.begin(1)
        pending.waiting = 1
        self.under_way += batch.average_bytes() * (hi - lo)
        returns = self.queue.extension(DeliveryLimit)
        counts = [] if returns is None else returns.within(batch, lo, hi)
        self.client_end.stage(self.queue.spec.id, batch, lo, hi, pending, counts)
        self.broker.linked[self.client_end] = None

    def on_queue_deleted(self) -> None:
        self._abandon()
        for consumer in self.consumers:
            consumer.on_queue_deleted()
        release(self.queue)
        self.then("the queue was deleted")

    # -- Progress ------------------------------------------------------------------------------------------------

    def _on_staged(self) -> None:
        if self.queue.departure is not self:
            return  # The move has ended when the first was lost with the link; these are the others.
        if any(refused for _, _, refused in self.confirms.take()):
            if not self.sealed:
                self.end(f"the link to node {self.to} was lost")
            return
        if not self.confirms.open:
            self.under_way = 0
        self.broker.dirty[self.queue] = None
        self._check()

    def _check(self) -> None:
        """Seal the queue when the target has all of it."""
        queue = self.queue
        if self.sealed or queue.departure is not self or self.confirms.open or queue.ready or queue.deleted:
            return
        self.sealed = True
        queue.seal()
        leases = queue.extension(Leases)
        marks = queue.durable_state.table if leases is None else leases.moved(self.pieces, self.first)
        if marks is None:
            self.end("a lease of it is in too many pieces")
        elif marks:
            assert self.client_end is not None
            self.client_end.ask(queue, w.BRING, pack_marks(marks_of(0, marks)), self._on_brought)
        else:
            self._propose()

    def _on_brought(self, answer: bytes | Refusal) -> None:
        if self.queue.departure is not self or self.queue.deleted:
            return
        if isinstance(answer, Refusal):
            self.end(answer.text)
        else:
            self._propose()

    def _propose(self) -> None:
        spec = self.queue.spec
        command = c.MoveQueue(spec.vhost, spec.name, spec.id, spec.node, self.to, self.run)
        self.broker.propose(command, self._on_agreed, patient=True)

    def _on_agreed(self, applied: Applied) -> None:
        if self.queue.departure is self and not self.queue.deleted and applied.refused is not None:
            self.end(applied.refused.text)

    def look(self) -> None:
        """Called now and then: ends the move if the link was lost while nothing was under way that could be refused."""
        is_lost = self.client_end is not None and not self.client_end.is_up
        if self.queue.departure is not self or self.queue.deleted:
            self.broker.arrivals.leaving.pop(self, None)
        elif self.begun and not self.sealed and is_lost and not self.confirms.open:
            self.end(f"the link to node {self.to} was lost")

    def _abandon(self) -> None:
        self.queue.end_move()
        if self.client_end is not None and self.client_end.is_up:
            self.client_end.ask(self.queue, w.ABANDON, b"", lambda answer: None)

    def end(self, reason: str) -> None:
        """The move has failed: the queue stays, as if nothing had happened."""
        queue = self.queue
        self._abandon()
        if self in queue.consumers:
            queue.remove_consumer(self)
        queue.requeue_many(self.pieces, shown=False)
        leases = queue.extension(Leases)
        if leases is not None and self.begun:
            leases.reserve()
        for consumer in self.consumers:
            queue.add_consumer(consumer)
        go_on(queue, queue)
        self.then(reason)

    def on_moved(self, remote: RemoteQueue) -> None:
        """The queue is at its target."""
        queue = self.queue
        queue.end_move()
        queue.take_consumers()
        queue.let_go_of_all()
        for consumer in self.consumers:
            if isinstance(consumer, RemoteConsumer):
                consumer.owner_end.consumers.pop(consumer.number, None)  # Its own node subscribes at the target.
            else:
                resubscribe(consumer, remote)  # type: ignore[arg-type]  # What is not remote is a channel's.
        go_on(queue, remote)
        self.then(None)


def take_back(broker: Broker, queue: LocalQueue) -> list[tuple[Batch, int, int]]:
    """Take everything of a queue that is unacknowledged. Later acknowledgements have no effect, and are no error."""
    pieces = []
    nowhere = ClientEnd(broker, "")
    nowhere.is_up = False
    void = RemoteBatch(nowhere, 0, w.Messages([], [], bytearray()))
    for session in broker.sessions:
        for one in session.unacked.all_out():
            if one.queue is queue:
                pieces.append((one.batch, one.lo, one.hi))
                one.move_to(RemoteQueue(queue.spec, broker), void)
    for owner_end in broker.owner_ends.values():
        for one in list(owner_end.unacked):
            if one.queue is queue:
                pieces.append((one.batch, one.lo, one.hi))
                if one.consumer is not None:
                    one.consumer.unacked -= one.count
                owner_end.unacked.take_range(one.first_tag, one.last_tag)
    return pieces


def demote(queue: LocalQueue, successor: AnyQueue) -> None:
    """A mirrored queue has another master from now on, or is led by this node in another epoch: the old object is void,
    and consumers go on with its successor, unless they asked to be cancelled. So do those that wait: see `go_on`."""
    broker: Broker = queue.host  # type: ignore[assignment]
    if is_stream(queue.spec.arguments) or not pass_on_unacked(queue, successor):
        take_back(broker, queue)
    consumers = queue.take_consumers()
    for pending in queue.awaiting:
        pending.mark_refused()  # Their messages are in no block, and on no mirror.
    queue.let_go_of_all()
    for consumer in consumers:
        if not isinstance(consumer, RemoteConsumer) and cast("Subscriber", consumer).cancels_on_failover:
            consumer.on_queue_deleted()
        elif not isinstance(consumer, RemoteConsumer):
            consumer.queue = successor  # type: ignore[attr-defined]  # What is not remote is a channel's.
            resubscribe(consumer, successor)  # type: ignore[arg-type]
        elif successor.is_local:
            consumer.queue = successor
            resubscribe(consumer, successor)  # type: ignore[arg-type]
        else:
            consumer.owner_end.consumers.pop(consumer.number, None)  # Its own node subscribes there.


class Staged:
    """A queue that is moving to this node."""

    __slots__ = ("home_run", "queue")

    def __init__(self, queue: Queue, home_run: str) -> None:
        self.queue = queue
        self.home_run = home_run


class Arrivals:
    """All queues that are on their way to this node."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.staged: dict[int, Staged] = {}
        self.leaving: dict[Departure, None] = {}  # Queues that are moving away from this node.
        self.dropped_ms: dict[int, int] = {}
        self.is_open = True  # False until the node has cleaned up after its last run.

    def adopt(self, number: int, peer: str, first: int) -> str | Refusal:
        """Prepare for a queue whose first message is to have this number. Returns the id of this node's run."""
        if not self.is_open:
            return Refusal(406, "this node is still starting; try again when it has")
        known = self.broker.queues_by_id.get(number)
        if known is None or known.is_local or known.spec.node != peer:
            return Refusal(406, "this node does not know that queue at that node")
        if known.spec.view is not None:  # A copy of it that is here has the same number in the log.
            return Refusal(406, "it has become mirrored meanwhile")
        if number in self.staged:
            self.drop(number)
        if self.broker.now_ms - self.dropped_ms.get(number, -AGAIN_MS) < AGAIN_MS:
            return Refusal(406, "an earlier move is still being undone; try again in some seconds")
        queue = self.broker.make_queue(known.spec)
        assert isinstance(queue, Queue)  # Streams do not move: see `move`.
        queue.number_from(first)
        self.staged[number] = Staged(queue, self.broker.metadata.runs.get(peer, ""))
        return self.broker.run

    def bring(self, number: int, marks: dict[bytes, bytes], then: Callable[[bool], None]) -> None:
        """All messages of a queue are here: restore its marks. `then`: whether they are safe; False: no such move."""
        staged = self.staged.get(number)
        if staged is None:
            then(False)
            return
        marks.pop(MARK, None)  # It is about numbers that the messages had at the other node.
        staged.queue.restore_state(marks)
        staged.queue.durable_state.tell_all()
        staged.queue.durable_state.when_safe(then)
        self.broker.dirty[staged.queue] = None

    def drop(self, number: int) -> None:
        staged = self.staged.pop(number, None)
        if staged is not None:
            self.dropped_ms[number] = self.broker.now_ms
            self.broker.unmake_queue(staged.queue)

    def take(self, number: int) -> Queue | None:
        """The move is agreed on: returns the staged queue."""
        staged = self.staged.pop(number, None)
        return None if staged is None else staged.queue

    def tick(self) -> None:
        """Drop staged queues that will not come any more, and end moves that cannot go on."""
        for departure in list(self.leaving):
            departure.look()
        runs, now_ms = self.broker.metadata.runs, self.broker.now_ms
        for number, staged in list(self.staged.items()):
            if staged.home_run != runs.get(staged.queue.spec.node, "") or number not in self.broker.queues_by_id:
                self.drop(number)
        self.dropped_ms = {number: at for number, at in self.dropped_ms.items() if now_ms - at < AGAIN_MS}


def move(queue: AnyQueue, to: str, then: Callable[[str | None], None]) -> None:
    """Move a queue of this node."""
    if isinstance(queue, RemoteQueue):
        then(unreachable(queue.spec).text)
    elif not isinstance(queue, Queue):
        then("a stream goes with its members only: its messages must keep their offsets")
    elif is_hidden_queue(queue.spec.name):
        then("a queue of delayed messages moves as a mirrored queue only: else the times of its messages were lost")
    elif queue.departure is not None:
        then("it is being moved already")
    elif queue.access is not Access.OPEN:
        then("it is not clear yet which node leads it; try again when it is")
    else:
        Departure(queue, to, then).start()
