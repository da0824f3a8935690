"""Records what clients sent and received, and checks what must follow from it.

The ledger sees only what passes between clients and brokers: which message was published where and confirmed, which was
delivered to which client and when that was written, which was acknowledged. Of the broker's state it knows only the
faults: which node crashed when, and which link went down.

    kept        a persistent message that was confirmed is there in the end, unless it was acknowledged
    settled     an acknowledged message is not delivered any more, once something published after it on the same channel
                to the same queue was confirmed: that sync covered the acknowledgement
    order       messages of one channel are delivered to one consumer in the order in which they were published
    flag        a redelivery is marked as redelivered
    once        nothing is there twice
    no reason   no connection is lost without a fault

Two things excuse a broker. After a crash it may have forgotten what it delivered just before, so the flag may be
missing; but what was delivered longer ago (`NOTED_S`), the log knows. And a delivery may come late: the queue's node
has given up a consumer's node, and has delivered the message to another client, while the other node does not know yet.
Nobody can prevent that. So a delivery through another node than the queue's own counts as late if the link between the
two went down since the message was published. The same is true for messages that were in a queue while it moved to
another node.

A spooled message (`leveret.broker.remote.store_and_forward`) is confirmed by the client's node alone. Such a message is
in its queue only since it was sent on, so no link that was lost before excuses anything; and its confirm proves nothing
about earlier acknowledgements, which went another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from simulation.amqp.contents import NO_EXTRAS, Extras
from simulation.checkers.detached_checker import DetachedChecker


@dataclass(slots=True)
class Delivery:
    """A delivery to a client."""

    queue: str
    number: int
    consumer: str  # The consumer; "" for basic.get.
    node: str  # The node that the client is connected to.
    redelivered: bool
    written_at: float
    body: bytes = b""
    properties: dict[str, Any] = field(default_factory=dict)
    asked_at: float | None = None  # When a client asked for it with basic.get: its way was decided then.


def in_order(one: Delivery, other: Delivery) -> tuple[Delivery, Delivery]:
    """Returns two deliveries of a message, the earlier one first. A client that closes or recovers gets a delivery at
    the very moment at which another gets the same message, marked: that one is the later."""
    first, second = sorted((one, other), key=lambda each: (each.written_at, each.redelivered))
    return first, second


@dataclass(slots=True)
class Message:
    """A message that a client has published."""

    number: int
    queue: str
    stream: str  # The channel that it was published on.
    persistent: bool
    published_at: float
    body: bytes = b""
    state: str = "sent"  # confirmed, nacked, returned
    confirmed_at: float | None = None
    sent_at: float = 0.0  # The last time, while it was not confirmed: earlier copies may have been lost.
    acked: bool = False  # A client acknowledged it; whether the broker got that is not known.
    settled_at: float | None = None  # From this time on it must not be delivered.
    deliveries: list[Delivery] = field(default_factory=list)
    extras: Extras = NO_EXTRAS
    rejected: bool = False  # A client rejected it, and its queue dead-letters.

    def __str__(self) -> str:
        return f"message {self.number} of {self.queue}"


@dataclass(slots=True)
class QueueFacts:
    """What the world knows about a queue."""

    name: str
    owner: str | None = None  # The home; None if the queue has moved.
    declared: bool = False  # Durable, and a client was told so.
    moves: list[list[float]] = field(default_factory=list)  # Periods in which it was being moved.
    lost: bool = False  # Its node's disk is lost, or it was purged or deleted: nothing is promised about its messages.


SILENCE_S: Final = 5.0  # How long a link has been silent when it counts as lost.
NOTED_S: Final = 0.25  # How long after a delivery the log certainly knows of it, unless disks stall.
SLOW_S: Final = 3.0  # How long it takes until what a slow disk has left undone is done.
MOVED_S: Final = 10.0  # Time after a move until every node knows of it.


class Ledger:
    """Records all messages of a run, and checks what becomes of them."""

    def __init__(
        self, fail: Callable[[str], None], note: Callable[[str, str], None], clock: Callable[[], float]
    ) -> None:
        self.fail = fail
        self.note = note
        self.clock = clock
        self.disturbed_until = 0.0
        self.has_lost_disks = False
        self.messages: dict[int, Message] = {}
        self.queues: dict[str, QueueFacts] = {}
        self.crashes: list[tuple[float, str]] = []
        self.slow: list[tuple[float, float, str]] = []  # From when to when which node or its disk was slow.
        self.downs: dict[tuple[str, str], list[float]] = {}  # When a link went down, by its two nodes in order.
        self.seen: dict[tuple[str, str], int] = {}  # The last number of a stream that a consumer got.
        self.spooled: dict[int, float] = {}  # Spooled messages, and when each was first sent on (inf: not yet).
        self.under_way: dict[int, float] = {}  # When a spooled message was last seen in flight.
        self.entered: dict[tuple[str, int], float] = {}  # Queue and message: when it was last put in from elsewhere.
        self.kept_at: dict[int, float] = {}  # When a message was first spooled.
        self.starts: dict[str, list[float]] = {}  # When a node was seen to have begun with the spools of its log.
        self.shared: dict[tuple[str, int], float] = {}  # Queue and message: since when another node may have it.
        self.redelivered = 0
        self.late = 0
        self.apart = DetachedChecker(fail)
        self.on_heard: Callable[[str, float, str], None] = lambda node, written_at, what: None

    # -- What the world tells ------------------------------------------------------------------------------------

    def queue(self, name: str) -> QueueFacts:
        facts = self.queues.get(name)
        if facts is None:
            facts = self.queues[name] = QueueFacts(name)
        return facts

    def on_crashed(self, node: str, at: float) -> None:
        self.crashes.append((at, node))

    def on_slow(self, node: str, until: float) -> None:
        """A node or its disk is slow, or has no space, for a while."""
        self.slow.append((self.clock(), until + SLOW_S, node))

    def on_wiped(self, node: str) -> None:
        """A disk is lost, and its queues are lost when the others forget the node."""
        for facts in self.queues.values():
            if facts.owner in (None, node):
                facts.lost, facts.declared = True, False

    def on_link_down(self, a: str, b: str, at: float) -> None:
        self.downs.setdefault((min(a, b), max(a, b)), []).append(at)

    def may_be_missing(self, queue: str, inaccessible: bool) -> bool:
        """Returns whether a node may answer that it does not know the queue, or that the queue's node is down."""
        return not self.queue(queue).declared or (inaccessible and self.is_disturbed())

    def on_moving(self, queue: str) -> Callable[[], None]:
        """A queue is being moved, until the returned function is called."""
        facts = self.queue(queue)
        facts.owner = None
        span = [self.clock(), float("inf")]
        facts.moves.append(span)

        def over() -> None:
            span[1] = min(span[1], self.clock() + MOVED_S)

        return over

    def in_hand(self, deliveries: Iterable[Delivery], queue: str, node: str) -> int:
        """Returns how many unacknowledged messages of a consumer count for its prefetch."""
        return sum(1 for _ in deliveries)

    def on_disturbed(self, until: float) -> None:
        """A fault may close connections until then."""
        self.disturbed_until = max(self.disturbed_until, until)

    def is_disturbed(self) -> bool:
        return self.clock() <= self.disturbed_until

    def on_spooled(self, number: int) -> None:
        self.spooled.setdefault(number, float("inf"))
        self.kept_at.setdefault(number, self.clock())

    def on_spools_read(self, node: str) -> None:
        """A node has started, and has what its spools held before."""
        self.starts.setdefault(node, []).append(self.clock())

    def on_shared(self, queue: str, number: int) -> None:
        """A node sends a message to another one, for its queue, or has put it into a block of a mirrored queue."""
        self.shared.setdefault((queue, number), self.clock())

    def on_sent_on(self, number: int, at: float) -> None:
        """A spooled message is sent on to its queue."""
        self.spooled[number] = min(self.spooled[number], at)
        self.under_way[number] = at

    def on_entered(self, queue: str, number: int) -> None:
        """A message that was sent on, or was in doubt, is put into its queue, which did not have it."""
        self.entered[queue, number] = self.clock()

    def entered_at(self, message: Message) -> float:
        """Returns the time before which the message was not in its queue. A node may have died before it was seen
        that it sent something on."""
        at = self.spooled.get(message.number, message.published_at)
        return message.published_at if at == float("inf") else at

    def came_by(self, message: Message) -> float:
        """Returns when the message was safe in its queue, if it was and is confirmed. If a node died just when it sent
        on its spool, nobody saw it."""
        dated_by = self.dated_by(message)
        if message.number not in self.spooled:
            return dated_by
        return max(dated_by, self.under_way.get(message.number, self.clock()))

    def dated_by(self, message: Message) -> float:
        """Returns when the time to live of a confirmed message had begun. What a spool has confirmed and sent on may
        wait at the queue's node before it is put in, also after the spool's node has gone. Until then its age counts
        from when it was spooled, if clients get it there."""
        assert message.confirmed_at is not None
        if message.number not in self.spooled:
            return message.confirmed_at
        return max(message.confirmed_at, self.entered.get((message.queue, message.number), 0.0))

    # -- What clients tell ---------------------------------------------------------------------------------------

    def on_session_lost(self, session: str, node: str, why: str) -> None:
        if not self.is_disturbed():
            self.fail(f"{session} has lost its connection to {node} without any reason: {why}")

    def on_published(self, queue: str, stream: str, persistent: bool, at: float) -> Message:
        number = len(self.messages) + 1
        message = self.messages[number] = Message(number, queue, stream, persistent, at)
        self.queue(queue)
        return message

    def on_confirmed(self, message: Message, at: float) -> None:
        message.state, message.confirmed_at = "confirmed", at

    def message_of(self, queue: str, number: int) -> Message | None:
        """Returns the message that a queue has under this number."""
        return self.messages.get(number)

    def on_acked(self, delivery: Delivery, how: str = "ack") -> None:
        """A client acknowledged or rejected it."""
        self.messages[delivery.number].acked = True

    def on_settled(self, delivery: Delivery, at: float) -> None:
        """The acknowledgement of a delivery was synced, if the queue's node received it at all."""
        message = self.message_of(delivery.queue, delivery.number)
        assert message is not None
        if message.settled_at is not None or not self.was_heard(message, delivery, at):
            return
        if self.apart.on_proved(message, delivery, at):
            message.settled_at = at

    def on_kept(self, delivery: Delivery, at: float) -> None:
        """The acknowledgement of a delivery is on the disk of the client's node."""
        message = self.message_of(delivery.queue, delivery.number)
        assert message is not None
        is_only_here = self.is_only_here(message, delivery)
        if is_only_here or message.number not in self.spooled:  # Else the other one may have it, and not know.
            self.apart.on_kept(message, delivery, at, is_only_here)

    def is_only_here(self, message: Message, delivery: Delivery) -> bool:
        """Returns whether only the node that delivered a message ever had it: it is in a spool, and was never under
        way. That it came before the other node was lost proves nothing: it may have waited for its queue's master."""
        was_kept = self.spooled.get(message.number, 0.0) >= delivery.written_at
        return was_kept and self.shared.get((message.queue, message.number), float("inf")) >= delivery.written_at

    def _may_be_unmarked(self, message: Message, delivery: Delivery) -> bool:
        """Returns whether a node that serves by itself may deliver a message without a mark. After a start a node does
        not know which messages of a spool were under way."""
        if not self.is_only_here(message, delivery):
            return False
        kept_at, starts = self.kept_at[message.number], self.starts.get(delivery.node, ())
        return not any(kept_at < at <= delivery.written_at for at in starts)

    def was_heard(self, message: Message, delivery: Delivery, at: float) -> bool:
        """Returns whether the broker certainly received an acknowledgement, since a later publish was confirmed."""
        return not self._is_late(message.queue, delivery.node, self.entered_at(message), at)

    def on_returned(self, delivery: Delivery, at: float) -> None:
        """Like `on_settled`, for requeued messages."""

    def on_channel_ended(self, queue: str, may_miss: bool) -> None:
        """A channel that got messages of this queue has ended. `may_miss`: deliveries may have been in flight to it."""

    def on_delivered(self, delivery: Delivery) -> None:
        message = self.message_of(delivery.queue, delivery.number)
        if message is None:
            self.fail(f"a message came out of {delivery.queue} that nobody published: {delivery.number}")
            return
        if message.queue != delivery.queue:
            self.fail(f"{message} came out of {delivery.queue}")
        if delivery.body != message.body:
            self.fail(f"{message} came out of {delivery.queue} with another content")
        self.redelivered += delivery.redelivered
        self.note(
            delivery.consumer.partition(".")[0] or "get",
            f"gets {delivery.number} of {delivery.queue} through {delivery.node}, written at "
            f"{delivery.written_at:.6f}{', redelivered' if delivery.redelivered else ''}",
        )
        self.apart.on_delivered(message, delivery, self._may_be_unmarked(message, delivery))
        if self._is_late(delivery.queue, delivery.node, self.entered_at(message), delivery.written_at):
            self.late += 1
            delivery.redelivered = True  # Excused.
        else:
            self._check_settled(message, delivery)
            self._check_order(message, delivery)
            self._check_flag(message, delivery)
        message.deliveries.append(delivery)

    def _check_settled(self, message: Message, delivery: Delivery) -> None:
        settled_at = message.settled_at
        if settled_at is not None and delivery.written_at > settled_at and not self.queue(message.queue).lost:
            if self.may_come_back(message, delivery.written_at) or self._may_not_know(message, delivery):
                return
            self.fail(
                f"{message} was delivered to {delivery.consumer or 'basic.get'} at {delivery.written_at:.6f}, though "
                f"its acknowledgement was synced by {settled_at:.6f}"
            )

    def _may_not_know(self, message: Message, delivery: Delivery) -> bool:
        """Returns whether the message was acknowledged at another node after this one, which serves by itself, was
        cut off."""
        assert message.settled_at is not None
        if self.apart.kept.get(message.number, ("", 0.0))[0] == delivery.node:
            return False  # It was acknowledged at this very node.
        return self.is_cut_off(delivery, message.settled_at)

    def is_cut_off(self, delivery: Delivery, at: float) -> bool:
        """Returns whether a node that delivers from its copy by itself may not know what another had got by then."""
        downs = [down for pair, times in self.downs.items() if delivery.node in pair for down in times]
        lost_at = max((down for down in downs if down <= delivery.written_at), default=float("inf"))
        return self.apart.is_of_copy(delivery) and at > lost_at - SILENCE_S

    def may_come_back(self, message: Message, at: float) -> bool:
        """Returns whether the acknowledgement of a message may be lost, though it was synced."""
        return False

    def lane(self, message: Message) -> str | None:
        """Returns a key: messages with the same key are delivered in the order of their publishing. None: with no
        other."""
        return message.stream

    def _check_order(self, message: Message, delivery: Delivery) -> None:
        lane = self.lane(message)
        if delivery.redelivered or not delivery.consumer or lane is None:
            return
        key = (lane, delivery.consumer)
        last = self.seen.get(key, 0)
        if message.number < last:
            self.fail(f"{message} came to {delivery.consumer} after message {last}, which was published later")
        self.seen[key] = max(last, message.number)

    def _check_flag(self, message: Message, delivery: Delivery) -> None:
        for other in message.deliveries:
            first, second = in_order(other, delivery)
            at_home = first.node == self.queue(message.queue).owner
            since = first.written_at if at_home else message.published_at  # It left the queue's node before that.
            until = min(second.written_at, self._noted_at(message.queue, first.written_at))
            if not second.redelivered and not self._crashed(message.queue, since, until):
                self.fail(
                    f"{message} was delivered at {first.written_at:.6f} and once more at {second.written_at:.6f}, to "
                    f"{second.consumer or 'basic.get'}, without a word about it"
                )

    def _noted_at(self, queue: str, at: float) -> float:
        """Returns when the log of a queue's node certainly knows of a delivery."""
        owner = self.queue(queue).owner
        slow = [end for start, end, node in self.slow if owner in (None, node) and start - NOTED_S <= at <= end]
        return max([at, *slow]) + NOTED_S

    def _crashed(self, queue: str, since: float, until: float) -> bool:
        owner = self.queue(queue).owner
        return any(since <= at <= until and owner in (None, node) for at, node in self.crashes)

    def _is_late(self, queue: str, node: str, since: float, until: float) -> bool:
        """Returns whether what passes between a queue and a node may belong to an earlier link or master."""
        facts = self.queue(queue)
        owner = facts.owner
        if any(since <= end and start <= until for start, end in facts.moves):
            return True
        if owner == node:
            return False
        if owner is not None:
            downs = self.downs.get((min(owner, node), max(owner, node)), [])
        else:
            downs = [at for pair, times in self.downs.items() if node in pair for at in times]
        return any(since <= at <= until for at in downs)

    def is_behind(self, queue: str, node: str, at: float) -> bool:
        """Returns whether a node may have taken another one for the queue's master than all had agreed on. Only streams
        have mirrors here, and nobody keeps a record of their masters; a node without links has no other."""
        return self.was_behind(queue, node, at) or (at <= self.disturbed_until and bool(self.downs))

    def was_behind(self, queue: str, node: str, at: float) -> bool:
        """Returns whether it certainly has."""
        return False

    # -- The end -------------------------------------------------------------------------------------------------

    def owed(self, queue: str) -> set[int]:
        """Returns what must still be in a queue."""
        facts = self.queue(queue)
        if facts.lost:
            return set()
        return {
            message.number
            for message in self.messages.values()
            if message.queue == queue and message.state == "confirmed" and message.persistent and not message.acked
            if not self.may_be_lost(message)
        }

    def may_be_lost(self, message: Message) -> bool:
        """Returns whether the queue's replication mode allows losses."""
        return False

    def on_drained(self, queue: str, numbers: list[int]) -> None:
        """Gets everything that is in a queue, in its order, after everything was healed."""
        facts = self.queue(queue)
        missing = sorted(self.owed(queue) - set(numbers))
        if missing:
            self.fail(f"confirmed and not there any more, of {queue}: {missing}")
        if len(set(numbers)) != len(numbers):
            twice = sorted({number for number in numbers if numbers.count(number) > 1})
            if not all(self.may_be_twice(queue, number) for number in twice):
                self.fail(f"twice in {queue}: {twice}")
        before: dict[str, list[Message]] = {}
        for number in numbers:
            message = self.message_of(queue, number)
            if message is None:
                self.fail(f"in {queue} there is a message that nobody published: {number}")
                continue
            lane = self.lane(message)
            if lane is not None:
                for other in before.setdefault(lane, []):
                    if number < other.number and not self.may_be_behind(message, other):
                        self.fail(f"{message} is in {queue} behind message {other.number}, which was published later")
                before[lane].append(message)
            if message.settled_at is not None and not facts.lost and not self.may_come_back(message, self.clock()):
                self.fail(f"{message} is still there, though its acknowledgement was synced")

    def may_be_behind(self, message: Message, other: Message) -> bool:
        """Returns whether a message may come out of its queue after one that was published later."""
        return False

    def takes_turns(self, queue: str) -> bool:
        """Returns whether consumers may have to wait for another one to end."""
        return False

    def may_be_twice(self, queue: str, number: int) -> bool:
        return False

    def may_refuse(self, queue: str) -> bool:
        """Returns whether a queue refuses publishes though nothing is wrong."""
        return False

    def unaccounted(self, found: dict[str, list[int]]) -> list[Message]:
        """Returns messages that must be somewhere, and were not found in queues."""
        return []

    def on_all_drained(self, found: dict[str, list[int]]) -> None:
        """Gets what was in all queues."""

    def summary(self) -> str:
        states = [message.state for message in self.messages.values()]
        return (
            f"{len(states)} published, {states.count('confirmed')} confirmed, {states.count('returned')} returned, "
            f"{states.count('nacked')} nacked, {sum(len(one.deliveries) for one in self.messages.values())} delivered "
            f"({self.redelivered} again, {self.late} late), "
            f"{sum(one.settled_at is not None for one in self.messages.values())} settled for sure"
        )
