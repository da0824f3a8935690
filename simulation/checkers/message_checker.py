"""Checks why messages leave a queue that has a TTL, a length limit, dead-lettering or a single active consumer.

A message that was confirmed and not acknowledged is in its queue, as in `ledger`, or it has left for a reason. The
reasons are known only from what clients did and from the clock:

    expired         not before its time, counted from when it was published, by the slowest clock
    maxlen          in a queue that drops its oldest messages: not unless as many as the limit came after it
    rejected        a client rejected it

If the queue dead-letters, every message that left for a reason is in the dead-letter queue, or was seen there, with a
correct `x-death`. Between the two it is never lost. RabbitMQ drops a dead letter that its target refuses, and so does a
queue without `at-least-once`; that is excused only where a target could refuse: it is full, or a link or a node has
failed. A dead letter may come twice only if there was a fault.

Until its letter is safe, a message that was pushed out is in the queue's log. If the queue gets another master first,
or its node crashes, the message is in the queue again. Consumers that wait there get all such messages, whatever the
limit is, and behind later ones that were given out before; without consumers the limit applies again.

Also: expired messages are not delivered, whichever node is the master; limits are true when nothing happens; a publish
that a full queue refuses is not confirmed; and in a queue with a single active consumer, a consumer that lost that
status gets no messages from the same master again.

**Clocks.** A node's clock jumps, and every message is dated by one node and judged by another. `skew` is how far apart
any two of them have ever been. The earliest moment at which a message can have been dated is when it was sent; the
latest is when it was confirmed, or put into its queue after it was spooled. So the checks leave as much room as these
two and the skew, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, Final

from simulation.checkers.ledger import Delivery, Ledger, Message
from simulation.checkers.mirror_checker import GRACE_S, MirroredLedger
from simulation.core.machine import WALL_MS
from simulation.features.queue_features import DEAD_LETTER_QUEUE, NOWHERE, PLAIN, Features

HOME_MS: Final = 50  # From the delivery in the queue until its own node has written it.
AWAY_MS: Final = 1_000  # The same, through another node.
DISTURBED_MS: Final = 25_000  # The same, when links are slow, or cut for a while without being lost.
AWAY_S: Final = 60.0  # Time after a link was lost until it is back for certain.


class MessageChecker(Ledger):
    """Checks why messages left queues that have features."""

    def __init__(
        self, fail: Callable[[str], None], note: Callable[[str, str], None], clock: Callable[[], float]
    ) -> None:
        super().__init__(fail, note, clock)
        self.features: dict[str, Features] = {}
        self.letters: dict[int, Message] = {}  # Messages from the dead-letter queue, by number.
        self.drained: dict[str, set[int]] = {}  # What was found in queues in the end.
        self.turns: dict[str, list[tuple[float, Delivery]]] = {}  # Deliveries of queues with a single active consumer.
        self.skews = [0, 0]  # The lowest and the highest of all clocks.
        self.ages = 0  # How many messages with a TTL were checked.
        self.reasons: dict[str, int] = {}  # How many dead letters were checked, by reason.

    def features_of(self, queue: str) -> Features:
        return self.features.get(queue, PLAIN)

    def takes_turns(self, queue: str) -> bool:
        return self.features_of(queue).single

    def on_skew(self, skew_ms: int) -> None:
        self.skews = [min(self.skews[0], skew_ms), max(self.skews[1], skew_ms)]

    @property
    def skew_ms(self) -> int:
        return self.skews[1] - self.skews[0]

    def has_failed(self) -> bool:
        """Returns whether there was any fault so far."""
        return self.disturbed_until > 0

    # -- Dead letters are messages of their own -------------------------------------------------------------------

    def message_of(self, queue: str, number: int) -> Message | None:
        message = self.messages.get(number)
        if message is None or queue != DEAD_LETTER_QUEUE or message.queue == DEAD_LETTER_QUEUE:
            return message
        letter = self.letters.get(number)
        if letter is None:
            letter = Message(
                number, DEAD_LETTER_QUEUE, "letters", message.persistent, message.published_at, message.body
            )
            letter.extras = message.extras
            self.letters[number] = letter
        return letter

    def is_letter(self, message: Message) -> bool:
        return self.letters.get(message.number) is message

    def on_acked(self, delivery: Delivery, how: str = "ack") -> None:
        message = self.message_of(delivery.queue, delivery.number)
        assert message is not None
        if how == "reject" and self.features_of(message.queue).letters is not None:
            message.rejected = True
        else:
            message.acked = True

    def on_settled(self, delivery: Delivery, at: float) -> None:
        """A rejected message is settled when its dead letter is safe, whenever that is."""
        message = self.message_of(delivery.queue, delivery.number)
        assert message is not None
        if not message.rejected:
            super().on_settled(delivery, at)

    def on_delivered(self, delivery: Delivery) -> None:
        super().on_delivered(delivery)
        message = self.message_of(delivery.queue, delivery.number)
        if message is None:
            return
        if self.is_letter(message):
            self._check_letter(self.messages[message.number], delivery)
            return
        self._check_properties(message, delivery)
        if not self._is_late(delivery.queue, delivery.node, self.entered_at(message), delivery.written_at):
            self._check_age(message, delivery)
            # A node that serves its copy by itself has an active consumer of its own.
            is_single = self.features_of(message.queue).single and not self.apart.is_of_copy(delivery)
            if is_single and delivery.consumer:
                self.turns.setdefault(message.queue, []).append((delivery.written_at, delivery))
            if not self.has_failed() and message.number in self.letters:
                self.fail(f"{message} came out of its queue after its dead letter had come to {DEAD_LETTER_QUEUE}")

    def may_come_back(self, message: Message, at: float) -> bool:
        return (self.is_letter(message) and self.has_failed()) or super().may_come_back(message, at)

    def _check_flag(self, message: Message, delivery: Delivery) -> None:
        if not self.is_letter(message) or not self.has_failed():
            super()._check_flag(message, delivery)

    def lane(self, message: Message) -> str | None:
        """Returns a key: messages with the same key stay in order. Dead letters have no order."""
        if self.is_letter(message):
            return None
        levels = self.features_of(message.queue).priorities
        return f"{message.stream}/{min(message.extras.priority or 0, levels)}" if levels else message.stream

    # -- A delivery ----------------------------------------------------------------------------------------------

    def _check_properties(self, message: Message, delivery: Delivery) -> None:
        expected, came = _expected(message), dict(delivery.properties)
        if self.features_of(message.queue).counts:
            headers = dict(came.get("headers", {}))
            if bool(headers.pop("x-delivery-count", None)) > delivery.redelivered:
                self.fail(f"{message} came back, by its headers, and nothing else tells it: {delivery.properties}")
            came |= {"headers": headers}
            expected.setdefault("headers", {})
        if delivery.properties and came != expected:
            self.fail(f"{message} was published with {expected}, and came with {came}")

    def _check_age(self, message: Message, delivery: Delivery) -> None:
        """Checks that expired messages are not delivered."""
        ttl_ms = self.features_of(message.queue).ttl_of(message.extras.expires_ms)
        if ttl_ms is None or message.confirmed_at is None:
            return
        self.ages += 1
        slack_ms = HOME_MS if self._is_home(delivery) else DISTURBED_MS if self.is_disturbed() else AWAY_MS
        age_ms = (delivery.written_at - self.dated_by(message)) * 1000
        if age_ms > ttl_ms + slack_ms + self.skew_ms:
            self.fail(
                f"{message} was delivered to {delivery.consumer or 'basic.get'} at {delivery.written_at:.6f}, "
                f"{age_ms:.0f} ms after it came to its queue; it had to go after {ttl_ms} ms"
            )

    def _is_home(self, delivery: Delivery) -> bool:
        """Returns whether the queue's own node wrote it."""
        return self.queue(delivery.queue).owner == delivery.node

    def _check_letter(self, message: Message, delivery: Delivery) -> None:
        features, properties = self.features_of(message.queue), dict(delivery.properties)
        if features.letters is None:
            self.fail(f"{message} came out of {delivery.queue}, though its queue sends no letters")
            return
        headers = properties.pop("headers", {})
        try:
            (death,) = headers["x-death"]
            reason, time_s = death["reason"], death["time"]
        except (KeyError, ValueError):
            self.fail(f"{message} came out of {delivery.queue} with {headers}")
            return
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        problem = self._problem_of(message, features, reason, time_s)
        if problem is not None:
            self.fail(f"the letter of {message} says that it was {reason}, {problem}")
        expected = _expected(message)
        expected.pop("expiration", None)
        copies = expected.pop("headers", {})  # The dead letter has its own routing key, and needs no CC.
        via = message.extras.via
        said: dict[str, Any] = {
            "reason": reason, "queue": message.queue, "time": time_s, "count": 1,
            "exchange": "alt" if via == "alt" else "",
            "routing-keys": [NOWHERE, *copies.get("CC", ())] if via in ("CC", "BCC") else [message.queue],
        }  # fmt: skip
        if message.extras.expires_ms is not None:
            said["original-expiration"] = str(message.extras.expires_ms)
        notes = {f"x-first-death-{name}": said[name] for name in ("reason", "queue", "exchange")}
        if properties != expected or headers != {"x-death": [said], **notes}:
            self.fail(f"the letter of {message} has {properties} and {headers}; expected were {expected}, {said}")

    def _problem_of(self, message: Message, features: Features, reason: str, time_s: int) -> str | None:
        """Returns what is wrong with a dead letter."""
        if reason == "expired":
            ttl_ms = features.ttl_of(message.extras.expires_ms)
            if ttl_ms is None:
                return "and has no time to live"
            dated_ms = WALL_MS + int(message.published_at * 1000) + self.skews[0]
            if time_s * 1000 + 999 < dated_ms + ttl_ms:
                return f"at {time_s} s, but was sent at {dated_ms} ms with {ttl_ms} ms to live"
        elif reason == "rejected":
            return None if message.rejected else "and nobody has rejected it"
        elif reason == "maxlen":
            if features.overflow == "reject-publish":
                return "in a queue that refuses what is too much"
            if features.overflow == "drop-head" and not self._may_be_too_many(message, features):
                return f"and there were not so many after it: {features}"
        else:
            return "of all things"
        return None

    # -- Reasons to leave ----------------------------------------------------------------------------------------

    def may_have_left(self, message: Message) -> bool:
        """Returns whether there is a reason for which the message may have left its queue."""
        features = self.features_of(message.queue)
        ttl_ms = features.ttl_of(message.extras.expires_ms)
        if ttl_ms is not None and (self.clock() - message.published_at) * 1000 + self.skew_ms >= ttl_ms:
            return True
        return message.rejected or (features.overflow == "drop-head" and self._may_be_too_many(message, features))

    def _may_be_too_many(self, message: Message, features: Features) -> bool:
        """Returns whether so many messages came after it that it had to be dropped."""
        if features.max_length is None and features.max_bytes is None:
            return False
        behind, size = 0, len(message.body)
        for other in self.messages.values():
            if other.queue != message.queue or other is message or other.state == "returned":
                continue
            # With priorities, earlier messages may be behind it.
            came_later = other.confirmed_at is None or other.confirmed_at >= message.published_at
            came_later = came_later or other.number in self.spooled  # It was spooled at first.
            if came_later or features.priorities:
                behind += 1
                size += len(other.body)
        if features.max_length is not None and behind >= features.max_length:
            return True
        return features.max_bytes is not None and size > features.max_bytes

    # -- The end -------------------------------------------------------------------------------------------------

    def owed(self, queue: str) -> set[int]:
        return {number for number in super().owed(queue) if not self.may_have_left(self.messages[number])}

    def may_be_twice(self, queue: str, number: int) -> bool:
        message = self.message_of(queue, number)
        return message is not None and self.is_letter(message) and self.has_failed()

    def may_refuse(self, queue: str) -> bool:
        return self.features_of(queue).overflow != "drop-head"

    def on_drained(self, queue: str, numbers: list[int]) -> None:
        super().on_drained(queue, numbers)
        self.drained.setdefault(queue, set()).update(numbers)
        features = self.features_of(queue)
        if features.overflow == "drop-head" and features.max_length is not None and len(numbers) > features.max_length:
            came = [message for number in numbers if (message := self.message_of(queue, number)) is not None]
            began = min((one.deliveries[-1].written_at for one in came if one.deliveries), default=0.0)
            stayed = [message for message in came if not self._may_be_back(message, began)]
            if len(stayed) > features.max_length:
                self.fail(f"{len(stayed)} messages are in {queue}, whose limit is {features.max_length}")

    def may_be_behind(self, message: Message, other: Message) -> bool:
        return bool(other.deliveries) and self._may_be_back(message, other.deliveries[-1].written_at)

    def _may_be_back(self, message: Message, since: float) -> bool:
        """Returns whether the message, which came out of its queue last, had been pushed out until then: it was put
        back after that time, because its letter was not safe."""
        features = self.features_of(message.queue)
        if features.letters is None or features.overflow != "drop-head" or not message.deliveries:
            return False
        is_kept = self._has_changed_hands(message.queue, since, message.deliveries[-1].written_at)
        return is_kept and self._may_be_too_many(message, features)

    def _has_changed_hands(self, queue: str, since: float, until: float) -> bool:
        """Returns whether another node, or another life of the same one, has taken over the queue."""
        moves = self.queue(queue).moves
        return any(since <= end and start <= until for start, end in moves) or self._crashed(queue, since, until)

    def unaccounted(self, found: dict[str, list[int]]) -> list[Message]:
        """Returns messages that left for a reason, and are neither dead-lettered nor in their queue. `found`: what
        is in queues now."""
        if self.queue(DEAD_LETTER_QUEUE).lost:
            return []
        there = {queue: {*self.drained.get(queue, ()), *numbers} for queue, numbers in found.items()}
        return [
            message
            for queue, features in self.features.items()
            if features.letters is not None and not self.queue(queue).lost
            for number in sorted(Ledger.owed(self, queue) - there[queue] - there[DEAD_LETTER_QUEUE])
            if self.may_have_left(message := self.messages[number]) and number not in self.letters
            if features.keeps or not self._may_be_refused(message)
            if not self.may_letter_be_lost(message)
        ]

    def _may_be_refused(self, message: Message) -> bool:
        """Returns whether the dead letter of a message may have been refused and dropped."""
        if self.features_of(DEAD_LETTER_QUEUE).max_length is not None:
            return True
        downs = [at for times in self.downs.values() for at in times]
        return any(at >= message.published_at - AWAY_S for at in downs)

    def may_letter_be_lost(self, message: Message) -> bool:
        """Returns whether the replication mode of the dead-letter queue allows it to lose the message's letter."""
        return False

    def on_all_drained(self, found: dict[str, list[int]]) -> None:
        for message in self.unaccounted(found):
            self.fail(f"{message} has left its queue and is not in {DEAD_LETTER_QUEUE}")
        for message in self.letters.values():
            features = self.features_of(self.messages[message.number].queue)
            if message.number in self.spooled:
                continue  # Its node had no answer in time, and confirmed what it keeps in a spool.
            if features.overflow == "reject-publish-dlx" and self.messages[message.number].state == "confirmed":
                deaths = [one.properties.get("headers", {}).get("x-death") for one in message.deliveries]
                if any(death and death[0].get("reason") == "maxlen" for death in deaths):
                    self.fail(f"{self.messages[message.number]} was turned away, and confirmed")
        for queue, turns in self.turns.items():
            self._check_turns(queue, sorted(turns, key=lambda one: one[0]))
        self.turns.clear()

    def _check_turns(self, queue: str, turns: list[tuple[float, Delivery]]) -> None:
        """Checks that a consumer that lost single active status gets no messages again."""
        since: dict[str, float] = {}  # The last delivery to each consumer.
        now = ""
        for at, written in groupby(turns, key=lambda one: one[0]):
            # What a node writes at once may have been for two consumers: first for the one that was active before.
            same, others = list[Delivery](), list[Delivery]()
            for _, delivery in written:
                (same if delivery.consumer == now else others).append(delivery)
            for delivery in (*same, *others):
                who = delivery.consumer
                if who != now and who in since and not self._may_change(queue, delivery.node, since[who], at):
                    self.fail(f"of {queue}, which has a single active consumer, {who} got something at {at:.6f}, "
                              f"though {now} has had its turn since {since[who]:.6f}")  # fmt: skip
                now = who
                since[who] = at

    def _may_change(self, queue: str, node: str, since: float, until: float) -> bool:
        """Returns whether another consumer may have become active."""
        return self._is_late(queue, node, since, until) or self._crashed(queue, since, until)

    def summary(self) -> str:
        letters = ", ".join(f"{count} {reason}" for reason, count in sorted(self.reasons.items()))
        return f"{super().summary()}, {self.ages} ages, letters: {letters or 'none'}"


class MirroredMessageChecker(MessageChecker, MirroredLedger):
    """The same for mirrored queues."""

    def _is_home(self, delivery: Delivery) -> bool:
        queue, node, at = delivery.queue, delivery.node, delivery.written_at
        before, after = self.at(queue, node, at - GRACE_S), self.at(queue, node, at)
        return before == after and after[1] == node

    def _may_change(self, queue: str, node: str, since: float, until: float) -> bool:
        agreed = self.agreed.get(queue)
        known = self.known.get((node, queue))
        if agreed is None or agreed.changes(since - GRACE_S, until) or known is None:
            return True
        if known.changes(since - GRACE_S, until) or any(since <= at <= until for at in self._downs(queue, node, until)):
            return True
        return Ledger._crashed(self, queue, since, until)

    def _has_changed_hands(self, queue: str, since: float, until: float) -> bool:
        agreed = self.agreed.get(queue)
        has_new_master = agreed is not None and agreed.changes(since, until)
        return has_new_master or super()._has_changed_hands(queue, since, until)

    def may_letter_be_lost(self, message: Message) -> bool:
        """A letter comes later than its message was published: a promotion by force before that has not lost it."""
        agreed, since = self.agreed.get(DEAD_LETTER_QUEUE), message.published_at
        first = 0 if agreed is None else agreed.at(since)[0]
        return self.losses_of(DEAD_LETTER_QUEUE).may_lack(message.number, since, self.clock(), first)


def _expected(message: Message) -> dict[str, Any]:
    """Returns the properties of a message as published, which must be delivered unchanged."""
    extras = message.extras
    expected: dict[str, Any] = {"delivery_mode": 2 if message.persistent else 1}
    if extras.expires_ms is not None:
        expected["expiration"] = str(extras.expires_ms)
    if extras.priority is not None:
        expected["priority"] = extras.priority
    if extras.via in ("CC", "BCC"):
        expected["headers"] = {"CC": [message.queue]} if extras.via == "CC" else {}
    return expected
