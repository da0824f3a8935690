"""Checks messages that are requeued, delayed, or published in a transaction.

With `stream_checker` and `limits_checker`, this checks a run with `--special`.

**Delivery limits.** A message that is requeued more often than its queue's limit allows leaves the queue. The ledger
has two bounds. *For certain*: a client requeued it and proved that the broker received that. Whatever dies afterwards,
the next delivery counts it, and beyond the limit there is no next delivery. *At most*: as often as it was delivered,
and once for each channel that may have ended with it in flight; and once more if a node has died, whose successor
treats what may have been delivered as delivered.

**Delays** are not over before their time, by any clock; but all are over some time after everything is healed, and the
message is there. It may be delivered twice after a failure, since the hidden queue settles it only when it is safe in
its target, and may die before that.

**Transactions.** What is rolled back is never delivered. And a client that takes a message from one queue and publishes
another to the next never loses both: if nobody knows whether it was committed, one of them is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from simulation.checkers.ledger import Delivery, Ledger, Message
from simulation.checkers.limits_checker import LimitsChecker
from simulation.checkers.message_checker import MessageChecker, MirroredMessageChecker
from simulation.checkers.mirror_checker import MirroredLedger
from simulation.checkers.stream_checker import ROUNDING_S, StreamChecker
from simulation.features.broker_features import HIDDEN_QUEUE
from simulation.features.queue_features import Features

COUNT_HEADER: Final = "x-delivery-count"
OPEN, COMMITTED, ROLLED_BACK = "open", "committed", "rolled back"


@dataclass
class Trade:
    """A message that was taken in a transaction, and the one that was published in its place."""

    taken: Message
    put: Message
    state: str = OPEN


class BrokerFeaturesChecker(MessageChecker):
    """Checks a run with everything in `features.broker_features`."""

    def __init__(
        self, fail: Callable[[str], None], note: Callable[[str, str], None], clock: Callable[[], float]
    ) -> None:
        super().__init__(fail, note, clock)
        self.streams = StreamChecker(self, fail)
        self.limits = LimitsChecker(fail, self.is_disturbed)
        # By message number: when it was known to be requeued, and which node had delivered it.
        self.returns: dict[int, list[tuple[float, str]]] = {}
        self.ends: dict[str, list[float]] = {}  # By queue: when channels ended that may have got a delivery.
        self.trades: list[Trade] = []
        self.acks: set[int] = set()  # Messages that were acknowledged outside of transactions.
        self.delayed = self.counted = self.answers = 0

    # -- Streams have rules of their own -------------------------------------------------------------------------

    def takes_turns(self, queue: str) -> bool:
        return queue in self.streams or super().takes_turns(queue)

    def on_acked(self, delivery: Delivery, how: str = "ack") -> None:
        if delivery.queue not in self.streams:
            self.acks.add(delivery.number)
            super().on_acked(delivery, how)

    def on_committed(self, trades: list[Trade]) -> None:
        for trade in trades:
            trade.state = COMMITTED
            self.acks.add(trade.taken.number)

    def on_committing(self, trades: list[Trade]) -> None:
        """From now on the commit may happen, whether a client hears of it or not."""
        for trade in trades:
            trade.taken.acked = True

    def on_settled(self, delivery: Delivery, at: float) -> None:
        if delivery.queue not in self.streams:
            super().on_settled(delivery, at)

    def on_delivered(self, delivery: Delivery) -> None:
        if delivery.queue in self.streams:
            self.streams.on_delivered(delivery)
            return
        message = self.message_of(delivery.queue, delivery.number)
        if message is not None and message.state == ROLLED_BACK:
            self.fail(f"{message} came out of its queue, though it was rolled back")
        if message is not None and not self.is_letter(message):
            self._check_count(message, delivery)
            self._check_delay(message, delivery)
        super().on_delivered(delivery)

    # -- Deliveries that count -----------------------------------------------------------------------------------

    def on_channel_ended(self, queue: str, may_miss: bool) -> None:
        if queue and may_miss:
            self.ends.setdefault(queue, []).append(self.clock())

    def on_returned(self, delivery: Delivery, at: float) -> None:
        message = self.message_of(delivery.queue, delivery.number)
        if message is not None and delivery.queue not in self.streams and self.was_heard(message, delivery, at):
            self.returns.setdefault(message.number, []).append((at, delivery.node))

    def returned_at_most(self, message: Message) -> int:
        ends = sum(at >= message.published_at for at in self.ends.get(message.queue, ()))
        return len(message.deliveries) + ends + self.has_failed()

    def _check_count(self, message: Message, delivery: Delivery) -> None:
        features = self.features_of(message.queue)
        if self._is_late(delivery.queue, delivery.node, self.entered_at(message), delivery.written_at):
            return
        if self.queue(message.queue).lost or self.may_be_lost(message):
            return
        known = sum(
            at < delivery.written_at and (node == delivery.node or not self.is_cut_off(delivery, at))
            for at, node in self.returns.get(message.number, ())
        )
        limit = features.delivery_limit
        if limit is not None and known > limit:
            self.fail(f"{message} was delivered to {delivery.consumer or 'basic.get'} at {delivery.written_at:.6f}, "
                      f"though it had come back {known} times by then; the limit is {limit}")  # fmt: skip
        if features.counts and delivery.properties:
            count = delivery.properties.get("headers", {}).get(COUNT_HEADER, 0)
            self.counted += count > 0
            if not known <= count <= self.returned_at_most(message):
                self.fail(f"{message} says that it has come back {count} times; it was {known} times at least, "
                          f"{self.returned_at_most(message)} at most")  # fmt: skip

    def _problem_of(self, message: Message, features: Features, reason: str, time_s: int) -> str | None:
        if reason != "delivery_limit":
            return super()._problem_of(message, features, reason, time_s)
        if features.delivery_limit is None:
            return "and there is no limit"
        most = self.returned_at_most(message)
        if most > features.delivery_limit:
            return None
        return f"but has come back {most} times at most; the limit is {features.delivery_limit}"

    def may_have_left(self, message: Message) -> bool:
        limit = self.features_of(message.queue).delivery_limit
        return super().may_have_left(message) or (limit is not None and self.returned_at_most(message) > limit)

    # -- Delays --------------------------------------------------------------------------------------------------

    def is_delayed(self, message: Message) -> bool:
        return message.extras.delay_ms is not None

    def due_at(self, message: Message) -> float:
        """Returns the due time by the clock that is furthest ahead."""
        return message.published_at + ((message.extras.delay_ms or 0) - self.skew_ms) / 1000 - ROUNDING_S

    def _check_delay(self, message: Message, delivery: Delivery) -> None:
        if not self.is_delayed(message):
            return
        self.delayed += 1
        if delivery.written_at < self.due_at(message):
            self.fail(f"{message}, published at {message.published_at:.3f}, was delivered at "
                      f"{delivery.written_at:.3f}; it had to wait for {message.extras.delay_ms} ms")  # fmt: skip

    def _check_properties(self, message: Message, delivery: Delivery) -> None:
        delay_ms = message.extras.delay_ms
        if delay_ms is None:
            super()._check_properties(message, delivery)
            return
        expected = {"delivery_mode": 2 if message.persistent else 1, "headers": {"x-delay": -delay_ms}}
        if delivery.properties != expected:
            self.fail(f"{message} was delayed by {delay_ms} ms, and came with {delivery.properties}")

    def lane(self, message: Message) -> str | None:
        return None if self.is_delayed(message) else super().lane(message)

    def may_be_twice(self, queue: str, number: int) -> bool:
        message = self.messages.get(number)
        again = message is not None and self.is_delayed(message) and self.has_failed()
        return again or super().may_be_twice(queue, number)

    def may_come_back(self, message: Message, at: float) -> bool:
        return (self.is_delayed(message) and self.has_failed()) or super().may_come_back(message, at)

    def _check_flag(self, message: Message, delivery: Delivery) -> None:
        if not self.is_delayed(message) or not self.has_failed():
            super()._check_flag(message, delivery)

    def may_be_lost(self, message: Message) -> bool:
        if self.is_delayed(message) and self.queue(HIDDEN_QUEUE).lost:
            return True
        return super().may_be_lost(message)

    # -- Transactions --------------------------------------------------------------------------------------------

    def on_all_drained(self, found: dict[str, list[int]]) -> None:
        super().on_all_drained(found)
        unknown: dict[int, list[Trade]] = {}
        for trade in self.trades:
            if trade.state == OPEN and trade.taken.acked and trade.taken.state == "confirmed":
                unknown.setdefault(trade.taken.number, []).append(trade)
        for trades in unknown.values():
            taken, put = trades[0].taken, [trade.put for trade in trades]
            if self._is_missing(taken) and all(map(self._is_missing, put)):
                self.fail(f"{taken} was taken in a transaction, nobody knows how it ended, and neither that message "
                          f"nor {put} is there")  # fmt: skip

    def _is_missing(self, message: Message) -> bool:
        if self.queue(message.queue).lost or message.number in self.acks or self.may_be_lost(message):
            return False
        if self.may_have_left(message) or not message.persistent:
            return False
        return message.number not in self.drained.get(message.queue, ())

    def summary(self) -> str:
        returns = sum(len(one) for one in self.returns.values())
        more = f"{returns} returns for sure, {self.counted} counts, {self.delayed} delays, {len(self.trades)} trades"
        return f"{super().summary()}, {self.streams.summary()}, {more}, {self.answers} answers, {self.limits.summary()}"


class MirroredBrokerFeaturesChecker(BrokerFeaturesChecker, MirroredMessageChecker):
    """The same for mirrored queues."""

    def on_confirmed(self, message: Message, at: float) -> None:
        """A delayed message is confirmed by its hidden queue."""
        if not self.is_delayed(message):
            super().on_confirmed(message, at)
            return
        Ledger.on_confirmed(self, message, at)
        self.check_confirmed(self._as_kept(message))

    def may_be_lost(self, message: Message) -> bool:
        if self.is_delayed(message) and MirroredLedger.may_be_lost(self, self._as_kept(message)):
            return True
        return super().may_be_lost(message)

    def _as_kept(self, message: Message) -> Message:
        return replace(message, queue=HIDDEN_QUEUE, persistent=True)
