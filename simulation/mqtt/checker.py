"""What must hold of MQTT's messages, by what the clients have sent and seen.

    at least once   a message that was acknowledged (PUBACK, or PUBREC) reaches every subscriber
    exactly once    a message of QoS 2 reaches no subscriber twice, acknowledged or not
    its own         what comes under an identifier that a subscriber has not released is the message that it had
    one member      a message of a shared subscription reaches a member, and none twice; in quiet times, only one
    in order        a subscriber sees the messages of one topic, which is one publisher's and has one QoS, in the order
                    in which they were published, apart from those that it has seen before
    last            in the end all nodes give the same retained message of a topic, and no other was begun after it was
                    safe, or behind it by the same client, and is safe, too
    present         a session that was there is there again when its client returns
    one session     in quiet times a connection is closed when its client connects elsewhere
    a will once     no will comes twice. In quiet times it comes if its client was lost or taken over, and does not come
                    if the client said goodbye
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Message:
    """A message that a client publishes."""

    number: int
    publisher: str
    topic: str
    qos: int
    retain: bool
    begun: float
    safe: float | None = None  # When it was acknowledged.
    refused: bool = False

    @property
    def payload(self) -> bytes:
        return b"%d %s" % (self.number, self.topic.encode())


class MqttChecker:
    """Knows all messages and wills, and who has seen them."""

    def __init__(self, fail: Callable[[str], None], now: Callable[[], float]) -> None:
        self.fail = fail
        self.now = now
        self.messages: dict[int, Message] = {}
        self.seen: dict[str, Counter[int]] = {}  # By subscriber: how often, by number.
        self.last: dict[tuple[str, str], int] = {}  # By subscriber and topic: the last that was new.
        self.members: dict[int, set[str]] = {}  # By number, of messages of the shared subscription: who has seen it.
        self.wills = 0
        self.seen_wills: dict[str, Counter[int]] = {}
        self.owed: set[int] = set()
        self.forgone: set[int] = set()
        self.is_calm = False  # Nothing is done to anybody any more.
        self.is_lost = False  # A queue was lost with the only disk that had it.

    # -- What is published ---------------------------------------------------------------------------------------

    def publish(self, publisher: str, topic: str, qos: int, retain: bool) -> Message:
        number = len(self.messages) + 1
        message = self.messages[number] = Message(number, publisher, topic, qos, retain, self.now())
        return message

    def on_safe(self, message: Message) -> None:
        message.safe = message.safe or self.now()

    def make_will(self) -> int:
        self.wills += 1
        return self.wills

    # -- What is seen --------------------------------------------------------------------------------------------

    def expect(self, subscriber: str) -> None:
        self.seen[subscriber], self.seen_wills[subscriber] = Counter(), Counter()

    def on_seen(self, subscriber: str, topic: str, payload: bytes, qos: int) -> int:
        """A subscriber takes a message. Returns its number; wills have negative ones."""
        number = int(payload.split(b" ")[0])
        if topic.startswith("w/"):
            self.seen_wills[subscriber][number] += 1
            if self.seen_wills[subscriber][number] > 1:
                self.fail(f"{subscriber} has seen will {number} twice")
            return -number
        message = self.messages.get(number)
        if message is None or (message.topic, message.payload, message.qos) != (topic, payload, qos):
            self.fail(f"{subscriber} was sent {payload!r} of {topic} with QoS {qos}, which is {message}")
            return number
        seen = self.seen[subscriber]
        seen[number] += 1
        if topic.startswith("h/"):
            members = self.members.setdefault(number, set())
            if subscriber in members or (members and self.is_calm):
                self.fail(f"{subscriber} has seen {message}, as have {members}")
            members.add(subscriber)
            return number
        if seen[number] > 1:
            if qos == 2:
                self.fail(f"{subscriber} has seen {message} twice")
        elif number < self.last.get((subscriber, topic), 0):
            if not self.is_lost:
                self.fail(f"{subscriber} has seen {message} after {self.last[subscriber, topic]}")
        else:
            self.last[subscriber, topic] = number
        return number

    # -- The end -------------------------------------------------------------------------------------------------

    def missing(self) -> str:
        """Returns what has not reached somebody whom it has to reach."""
        if self.is_lost:
            return ""
        wanted = [message for message in self.messages.values() if message.safe is not None and not message.retain]
        for message in wanted:
            if message.topic.startswith("h/") and message.number not in self.members:
                return f"nobody has seen {message}"
        for subscriber, seen in self.seen.items():
            for message in wanted:
                if not message.topic.startswith("h/") and not seen[message.number]:
                    return f"{subscriber} has not seen {message}"
            for number in self.owed:
                if not self.seen_wills[subscriber][number]:
                    return f"{subscriber} has not seen will {number}"
        return ""

    def check_forgone(self) -> None:
        for subscriber, seen in self.seen_wills.items():
            wrong = sorted(self.forgone & seen.keys())
            if wrong:
                self.fail(f"{subscriber} has seen wills {wrong}, though their clients had said goodbye")

    def check_retained(self, found: dict[str, dict[str, bytes]]) -> None:
        """`found`: by node, what a new subscriber was given there, by topic."""
        values = list(found.values())
        if any(value != values[0] for value in values):
            self.fail(f"the nodes have different retained messages: {found}")
        kept = [message for message in self.messages.values() if message.retain]
        for topic in {message.topic for message in kept}:
            payload = values[0].get(topic)
            last = None if payload is None else self.messages[int(payload.split(b" ")[0])]
            for one in kept:
                if one.topic != topic or one.safe is None or one is last:
                    continue
                is_behind = last is not None and last.publisher == one.publisher and last.number < one.number
                if last is None or is_behind or (last.safe is not None and last.safe < one.begun):
                    self.fail(f"the retained message of {topic} is {last}, and {one} came later and is safe")
