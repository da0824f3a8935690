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

What waits for a commit is in memory and nowhere else, and no publisher can be made to wait for room, as nothing makes
any but the commit that stands behind in the same socket. So there is a bound for all transactions of the node together,
the one from which on queues put their messages to disk; who exceeds it loses the channel, and with it the transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from leveret.amqp.errors import ChannelFault, ReplyCode
from leveret.broker.batch import MESSAGE_OVERHEAD
from leveret.broker.confirms import Pending
from leveret.cluster.refusals import Refusal

if TYPE_CHECKING:
    from leveret.amqp.channel import Channel
    from leveret.broker.broker import AnyQueue
    from leveret.broker.unacked import Delivered
    from leveret.broker.vhost import Route

PARTIAL = Refusal(ReplyCode.PRECONDITION_FAILED, "partial tx completion")


class Held(NamedTuple):
    """A publish, and where it was to go when it came."""

    route: Route
    queues: tuple[AnyQueue, ...]
    content: bytes
    kind: int


class Transaction:
    """Of one channel; after each commit and rollback it is empty again."""

    __slots__ = ("channel", "done", "publishes", "refused", "settlings", "size", "unsafe")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.publishes: list[Held] = []
        self.size = 0
        self.settlings: list[tuple[Callable[[list[Delivered]], None], list[Delivered]]] = []
        # While a commit is under way:
        self.done: Callable[[bool | Refusal], None] | None = None
        self.unsafe = 0  # Bundles that are not safe in all their queues.
        self.refused = False

    @property
    def acks(self) -> int:
        """How many deliveries were settled."""
        return sum(one.count for _, taken in self.settlings for one in taken)

    def publish(self, route: Route, queues: tuple[AnyQueue, ...], content: bytes, kind: int) -> None:
        channel, broker = self.channel, self.channel.broker
        size = len(content) + MESSAGE_OVERHEAD
        self.size += size
        broker.uncommitted_bytes += size
        self.publishes.append(Held(route, queues, content, kind))
        if broker.uncommitted_bytes > broker.spill_bytes_max:
            text = f"transactions hold more than {broker.spill_bytes_max} bytes of memory"
            channel.fail(ChannelFault(ReplyCode.PRECONDITION_FAILED, text, 60, 40))

    def settle(self, action: Callable[[list[Delivered]], None], taken: list[Delivered]) -> None:
        """Do this with deliveries at the commit."""
        self.channel.unacked.set_aside(taken)
        self.settlings.append((action, taken))

    def rollback(self) -> None:
        """Forget the publishes; what was settled is out again. Also the end, if the channel ends."""
        self.settlings = []
        self.channel.unacked.put_back()
        self._take_publishes()

    def _take_publishes(self) -> list[Held]:
        self.channel.broker.uncommitted_bytes -= self.size
        publishes, self.publishes, self.size = self.publishes, [], 0
        return publishes

    # -- Committing ----------------------------------------------------------------------------------------------

    def commit(self, done: Callable[[bool | Refusal], None]) -> None:
        """`done` when all is safe, or that it is not."""
        self.done, self.refused = done, self.channel.broker.refusing
        self.unsafe = 1  # Until all are on their way.
        publishes = self._take_publishes()
        if not self.refused:
            for (queues, kind), several in groupby(publishes, lambda held: (held.queues, held.kind)):
                self._send(queues, kind, list(several))
        self._on_safe()

    def _send(self, queues: tuple[AnyQueue, ...], kind: int, several: list[Held]) -> None:
        """Publishes in a row that go the same way."""
        channel = self.channel
        vhost = channel.connection.vhost
        assert vhost is not None
        there = tuple(found for one in queues if (found := vhost.queues.get(one.spec.name)) is not None)
        if not there:
            for held in several:
                channel.on_unroutable(held.route, held.content)
            return
        # What may refuse a message gets each by itself: see `Route.is_plain`.
        size = 1 if any(queue.rules.rejects for queue in there) else len(several)
        for at in range(0, len(several), size):
            part = several[at : at + size]
            pending = Pending(self, 1, len(part))
            self.unsafe += 1
            channel.send([(there, [held.content for held in part], [held.route.key for held in part])], kind, pending)

    def on_complete(self, pending: Pending) -> None:
        self.refused = self.refused or pending.refused
        self._on_safe()

    def _on_safe(self) -> None:
        self.unsafe -= 1
        if self.unsafe:
            return
        done, self.done = self.done, None
        assert done is not None
        if self.refused:
            done(PARTIAL)
            return
        settlings, self.settlings = self.settlings, []  # None, if the channel ended meanwhile.
        self.channel.unacked.forget_aside()
        for action, taken in settlings:
            action(taken)
        done(True)
