"""Transactions: what a channel publishes and settles between tx.select and tx.commit happens at the commit, or never.

It is RabbitMQ's tx, which promises less than the word: no isolation, and no all-or-nothing over several queues.

- *Routing is done when the publish comes.* An exchange that does not exist, a permission that is missing, a key that
  leads nowhere: all is found out then, and only the return of an unroutable message waits for the commit. Queues are
  known by their names until then, so that one which was deleted and declared again meanwhile gets the message.
- *An ack takes its tag at once*: a second ack of it is an error, basic.recover passes it over. But it frees no
  prefetch, and the delivery is still out: a queue that moves, a memory that is short, find it with the others, since it
  is set aside within the channel's `Unacked`. A rollback puts it back where it was.
- *First the publishes are made safe, then the acks count*, then the client is told. Whoever takes a message from one
  queue and puts what it made of it into another never loses it: if the node dies in between, the message comes again.
  RabbitMQ does both at once.
- *A publish that a queue refuses fails the commit*: the channel is closed with RabbitMQ's `partial tx completion`. The
  other publishes are made, and nothing is acknowledged.
- *A commit ends in time.* What was sent and has no answer for as long as a publish may wait for its confirm (see
  `outbox`) fails the commit in the same way. It may turn out to be kept; what was not sent yet is not.

What waits for a commit is in memory and nowhere else, and no publisher can be made to wait for room, as nothing makes
any but the commit that stands behind in the same socket. So there is a bound for all transactions of the node together,
the one from which on queues put their messages to disk; who exceeds it loses the channel, and with it the transaction.

Of all that may have gathered, a commit sends as much as a publisher would without one: so much at a time, and more when
that is safe. No block, no link and no disk has to cope with a transaction as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD
from leveret.broker.delivery.confirms import NOBODY, Pending
from leveret.broker.fanout import FEW
from leveret.metadata.model.refusals import Refusal
from leveret.protocol.errors import ChannelFault, ReplyCode

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.unacked import Delivered
    from leveret.broker.vhost import Route
    from leveret.sessions.amqp.channel import Channel

PARTIAL: Final = Refusal(ReplyCode.PRECONDITION_FAILED, "partial tx completion")
PART_BYTES: Final = 1 << 20  # Publishes that go the same way, together.
PART_MESSAGES: Final = 4096
UNSAFE_BYTES_MAX: Final = 8 << 20  # Sent, and not known to be safe; but for one part.


class Held(NamedTuple):
    """A publish, and where it was to go when it came."""

    route: Route
    queues: tuple[AnyQueue, ...]
    content: bytes
    kind: int
    size: int


class Part(Pending):
    """Publishes of a commit that are under way."""

    __slots__ = ("looks", "size")

    def __init__(self, transaction: Transaction, count: int, size: int, looks: int) -> None:
        super().__init__(transaction, 1, count)
        self.size = size
        self.looks = looks  # How often it had been looked for what is late when these were sent.


class Transaction:
    """The transaction of one channel. It is empty again after each commit and rollback."""

    __slots__ = (
        "channel", "done", "is_sending", "publishes", "refused", "settlings", "size", "unsafe", "unsafe_bytes",
    )  # fmt: skip

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.publishes: deque[Held] = deque()
        self.size = 0
        self.settlings: list[tuple[Callable[[list[Delivered]], None], list[Delivered]]] = []
        # While a commit is under way:
        self.done: Callable[[bool | Refusal], None] | None = None
        self.is_sending = False
        self.unsafe: dict[Part, None] = {}  # Those that are not safe in all their queues, as they were sent.
        self.unsafe_bytes = 0
        self.refused = False

    @property
    def who(self) -> str:
        return self.channel.who

    @property
    def acks(self) -> int:
        """Return the number of settled deliveries."""
        return sum(one.count for _, taken in self.settlings for one in taken)

    def publish(self, route: Route, queues: tuple[AnyQueue, ...], content: bytes, kind: int) -> None:
        channel, broker = self.channel, self.channel.broker
        size = len(content) + MESSAGE_OVERHEAD
        self.size += size
        broker.uncommitted_bytes += size
        self.publishes.append(Held(route, queues, content, kind, size))
        if broker.uncommitted_bytes > broker.spill_bytes_max:
            text = f"transactions hold more than {broker.spill_bytes_max} bytes of memory"
            channel.fail(ChannelFault(ReplyCode.PRECONDITION_FAILED, text, 60, 40))

    def settle(self, action: Callable[[list[Delivered]], None], taken: list[Delivered]) -> None:
        """Do this with deliveries at the commit."""
        self.channel.session.unacked.set_aside(taken)
        self.settlings.append((action, taken))

    def rollback(self) -> None:
        """Forget the publishes; what was settled is out again. Also the end, if the channel ends."""
        self.settlings = []
        self.channel.session.unacked.put_back()
        self.publishes.clear()
        self._let_go(self.size)

    def _let_go(self, size: int) -> None:
        self.size -= size
        self.channel.broker.uncommitted_bytes -= size

    # -- Committing ----------------------------------------------------------------------------------------------

    def commit(self, done: Callable[[bool | Refusal], None]) -> None:
        """`done` when all is safe, or that it is not."""
        self.done, self.refused = done, self.channel.broker.refusing
        if self.refused:
            self.publishes.clear()
            self._let_go(self.size)
        self._go_on()

    def on_complete(self, pending: Pending) -> None:
        assert isinstance(pending, Part)
        self.refused = self.refused or bool(pending.refused)
        del self.unsafe[pending]
        self.unsafe_bytes -= pending.size
        if not self.is_sending:  # Else it was safe at once, and whoever sends goes on.
            self._go_on()

    def _go_on(self) -> None:
        self.is_sending = True
        fanout = self.channel.broker.fanout
        while self.publishes and self.unsafe_bytes < UNSAFE_BYTES_MAX:
            if fanout.left <= 0 and len(self.publishes[0].queues) > FEW:
                fanout.waiting[self] = None
                break
            self._send(self._take_part())
        self.is_sending = False
        if not self.publishes and not self.unsafe:
            self._end()

    def on_portion(self) -> None:
        if self.done is not None:
            self._go_on()

    def _take_part(self) -> list[Held]:
        """Publishes in a row that go the same way. What may refuse a message gets each alone: see `Route.is_plain`."""
        publishes = self.publishes
        first = publishes.popleft()
        part, size = [first], first.size
        alone = any(queue.rules.rejects for queue in first.queues)
        most = PART_MESSAGES
        if len(first.queues) > FEW:
            most = min(most, self.channel.broker.fanout.portion(len(first.queues)))
        while publishes and not alone and size < PART_BYTES and len(part) < most:
            if publishes[0].queues != first.queues or publishes[0].kind != first.kind:
                break
            part.append(publishes.popleft())
            size += part[-1].size
        return part

    def _send(self, several: list[Held]) -> None:
        channel, size = self.channel, sum([held.size for held in several])
        self._let_go(size)
        vhost = channel.connection.vhost
        assert vhost is not None
        there = tuple(found for one in several[0].queues if (found := vhost.queues.get(one.spec.name)) is not None)
        if not there:
            for held in several:
                channel.on_unroutable(held.route, held.content)
            return
        part = Part(self, len(several), size, channel.broker.outboxes.looks)
        self.unsafe[part] = None
        self.unsafe_bytes += size
        bundle = (there, [held.content for held in several], [held.route.key for held in several])
        channel.session.traffic.published += len(several)
        channel.send([bundle], several[0].kind, part)

    def overdue(self, looks: int) -> int:
        """Called at even intervals. Fails the commit if some of it had no answer for so many of them, and says how many
        publishes that are."""
        oldest = next(iter(self.unsafe), None)
        if oldest is None or self.done is None or self.channel.broker.outboxes.looks - oldest.looks <= looks:
            return 0
        late = sum(part.count for part in self.unsafe) + len(self.publishes)
        for part in self.unsafe:
            part.confirms = NOBODY
        self.unsafe.clear()
        self.unsafe_bytes = 0
        self.publishes.clear()
        self._let_go(self.size)
        self.refused = True
        self._end()
        return late

    def _end(self) -> None:
        done, self.done = self.done, None
        assert done is not None
        if self.refused:
            done(PARTIAL)
            return
        settlings, self.settlings = self.settlings, []  # None, if the channel ended meanwhile.
        self.channel.session.unacked.forget_aside()
        for action, taken in settlings:
            action(taken)
        done(True)
