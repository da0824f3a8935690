"""The ledger of a special run says no where it has to, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.amqp.contents import Extras
from simulation.checkers.broker_features_checker import ROLLED_BACK, BrokerFeaturesChecker, Trade
from simulation.checkers.ledger import Delivery, Message
from simulation.checkers.limits_checker import LimitsChecker
from simulation.checkers.stream_checker import NAME
from simulation.features.broker_features import CONNECTIONS_MAX, DELAYED_QUEUE, QUEUES_MAX, Stream
from simulation.features.queue_features import DEAD_LETTER_QUEUE, Features


class Story:
    """The queues `d0` and `l0` and the streams `s0` and `s1` on n1, and a clock that a test sets."""

    def __init__(self, limited: Stream = Stream(max_age_s=4), **features: Any) -> None:  # noqa: B008
        self.now = 10.0
        self.failures: list[str] = []
        self.ledger = BrokerFeaturesChecker(self.failures.append, lambda who, text: None, lambda: self.now)
        self.ledger.features = {"d0": Features(**features), DEAD_LETTER_QUEUE: Features()}
        for name in ("d0", DELAYED_QUEUE, DEAD_LETTER_QUEUE, "s0", "s1"):
            facts = self.ledger.queue(name)
            facts.owner, facts.declared = "n1", True
        self.ledger.streams.add("s0", Stream())
        self.ledger.streams.add("s1", limited)

    def publish(self, queue: str, count: int = 1, extras: Extras = Extras(), size: int = 0) -> list[Message]:  # noqa: B008
        messages = []
        for _ in range(count):
            message = self.ledger.on_published(queue, "channel", True, self.now)
            message.state, message.extras, message.confirmed_at = "confirmed", extras, self.now
            message.body = b"." * size
            messages.append(message)
        return messages

    def deliver(self, message: Message, at: float, count: int | None = None, **more: Any) -> Delivery:
        self.now = max(self.now, at)
        headers = {} if count is None else {"x-delivery-count": count}
        came = {"delivery_mode": 2, "headers": headers, **more}
        delivery = Delivery(message.queue, message.number, "c", "n1", bool(message.deliveries), at, message.body, came)
        self.ledger.on_delivered(delivery)
        return delivery

    def start(self, start: str = "first", value: float = 0, stream: str = "s0", name: str = "r") -> None:
        self.ledger.streams.on_asked(name, stream, start, value).begun_at = self.now

    def read(self, message: Message, offset: int, name: str = "r", **changes: Any) -> None:
        came = {"delivery_mode": 2, "headers": {NAME: offset}, **changes}
        body = message.body
        self.ledger.on_delivered(
            Delivery(message.queue, message.number, f"{name} (tag)", "n1", False, self.now, body, came)
        )

    def expect(self, text: str | None) -> None:
        assert (self.failures == []) if text is None else (len(self.failures) > 0 and text in self.failures[0])


# -- Streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_that_is_read() -> None:
    story = Story()
    messages = story.publish("s0", 3)
    story.start()
    for offset, message in enumerate(messages):
        story.read(message, offset)
    story.now += 1
    story.start("next", name="later")
    (last,) = story.publish("s0")
    story.read(last, 3, "later")
    story.read(last, 3)
    story.ledger.streams.on_scanned("s0", [one.number for one in [*messages, last]])
    for name in ("r", "later"):
        story.ledger.streams.check_served("s0", name)
    story.expect(None)


@pytest.mark.parametrize(
    ("offsets", "problem"),
    [((0, 2), "got offset 2 of s0, and not 1"), ((1,), "got offset 1 of s0, and not 0"), ((0, 0), "is at 0")],
)
def test_offsets_in_a_row(offsets: tuple[int, ...], problem: str) -> None:
    story = Story()
    story.start()
    for message, offset in zip(story.publish("s0", 2), offsets, strict=False):
        story.read(message, offset)
    story.expect(problem if problem != "is at 0" else "at offset 0 of s0 there was message 1")


def test_a_message_has_one_offset() -> None:
    story = Story()
    one, two = story.publish("s0", 2)
    story.start()
    story.start(name="other")
    story.read(one, 0)
    story.read(two, 0, "other")
    story.expect("at offset 0 of s0 there was message 1, and now there is message 2")


def test_what_a_reader_sees_twice() -> None:
    story = Story()
    (one,) = story.publish("s0")
    story.start()
    story.read(one, 0)
    story.read(one, 0)
    story.expect("got offset 0 of s0 after 0")


@pytest.mark.parametrize(
    ("start", "value", "problem"),
    [("next", 0, "wanted s0 from next"), ("time", 11.0, "wanted s0 from time"), ("offset", 5, "from 5 on, and got 0"),
     ("time", 9.0, None), ("last", 0, None), ("offset", 0, None)],
)  # fmt: skip
def test_where_readers_begin(start: str, value: float, problem: str | None) -> None:
    story = Story()
    (old,) = story.publish("s0")
    story.now = 12.0
    story.start(start, value)
    story.read(old, 0)
    story.expect(problem)


def test_what_came_before_the_first() -> None:
    story = Story()
    story.start("next")
    story.start(name="all")
    story.now = 11.0
    messages = story.publish("s0", 2)
    story.read(messages[1], 1)
    for offset, message in enumerate(messages):
        story.read(message, offset, "all")
    story.ledger.streams.on_scanned("s0", [1, 2])
    story.expect("began with 1, though message 1 of s0 at 0")


def test_what_a_stream_has_lost() -> None:
    story = Story()
    story.publish("s0", 2)
    story.ledger.streams.on_scanned("s0", [1])
    story.expect("confirmed and not in s0: [2]")


def test_what_may_be_given_up() -> None:
    for age in (3.0, 5.0):
        story = Story()
        one, two = story.publish("s1", 2)
        story.start(stream="s1", name="early")
        story.read(one, 0, "early")
        story.now += age
        story.start(stream="s1")
        story.read(two, 1)
        story.expect("and not 0, which must be there" if age < 4 else None)
    story = Story(Stream(4_000, None, 100))
    one, two = story.publish("s1", 2)
    story.start(stream="s1", name="early")
    story.read(one, 0, "early")
    story.start(stream="s1")
    story.read(two, 1)
    story.expect("and not 0, which must be there")


def test_what_must_be_given_up() -> None:
    story = Story(Stream(4_000, None, 100))
    numbers = [one.number for one in story.publish("s1", 20, size=500)]
    story.ledger.streams.check_trimmed("s1", numbers[:9], 0.0)
    story.expect(None)
    story.ledger.streams.check_trimmed("s1", numbers, 0.0)
    story.expect("s1 keeps 10000 bytes")
    story = Story()
    numbers = [one.number for one in story.publish("s1")]
    story.ledger.streams.check_trimmed("s1", numbers, 11.0)
    story.expect("s1 keeps what came before 11")


def test_a_reader_that_stands_still() -> None:
    story = Story()
    messages = story.publish("s0", 2)
    for name in ("r", "all"):
        story.start(name=name)
    story.read(messages[0], 0)
    for offset, message in enumerate(messages):
        story.read(message, offset, "all")
    story.ledger.streams.check_served("s0", "r")
    story.expect("has come to 0; the last there is is 1")


def test_properties_of_what_is_read() -> None:
    story = Story()
    story.start()
    story.read(story.publish("s0")[0], 0, priority=3)
    story.expect("came to r with")


# -- What comes back ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "limit", "problem"),
    [((0, 1, 2), 2, None), ((0, 1, 2, 3), 2, "it had come back 3 times by then; the limit is 2"),
     ((0, 0), 5, "come back 0 times; it was 1 times at least"), ((1,), 5, "come back 1 times; it was 0 times at least"),
     ((0, 2), 5, "come back 2 times; it was 1 times at least, 1 at most")],
)  # fmt: skip
def test_counts(counts: tuple[int, ...], limit: int, problem: str | None) -> None:
    story = Story(quorum=True, delivery_limit=limit)
    (message,) = story.publish("d0")
    for at, count in enumerate(counts, 11):
        delivery = story.deliver(message, at, count)
        story.ledger.on_returned(delivery, at + 0.5)
    story.expect(problem)


@pytest.mark.parametrize(
    ("returned_at", "problem"), [(33.0, None), (20.0, "come back 0 times; it was 1 times at least")]
)
def test_a_copy_does_not_know_what_comes_back_elsewhere(returned_at: float, problem: str | None) -> None:
    story = Story(quorum=True, delivery_limit=5)
    (message,) = story.publish("d0")
    story.ledger.on_returned(story.deliver(message, 11.0, 0), returned_at)
    story.ledger.on_link_down("n1", "n2", 31.0)
    story.ledger.queue("d0").owner = "n2"  # Else the delivery might be an old one, on its way through n2.
    story.ledger.apart.on_serving("n2", "d0", True, 50.0)
    came = {"delivery_mode": 2, "headers": {}}
    story.ledger.on_delivered(Delivery("d0", message.number, "c", "n2", True, 52.0, message.body, came))
    story.expect(problem)


def test_what_may_have_been_on_its_way() -> None:
    story = Story(quorum=True, delivery_limit=0)
    (message,) = story.publish("d0")
    assert not story.ledger.may_have_left(message)
    story.ledger.on_channel_ended("d0", False)
    assert not story.ledger.may_have_left(message)
    story.ledger.on_channel_ended("d0", True)
    assert story.ledger.may_have_left(message)


# -- What comes late ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "skew_ms", "problem"), [(13.0, 0, None), (12.9, 0, "had to wait"), (12.9, -200, None)])
def test_delays(at: float, skew_ms: int, problem: str | None) -> None:
    story = Story()
    story.ledger.on_skew(skew_ms)
    (message,) = story.publish(DELAYED_QUEUE, extras=Extras(via="late", delay_ms=3_000))
    story.deliver(message, at, headers={"x-delay": -3_000})
    story.expect(problem)


def test_a_delay_that_is_not_told() -> None:
    story = Story()
    (message,) = story.publish(DELAYED_QUEUE, extras=Extras(via="late", delay_ms=3_000))
    story.deliver(message, 13.0, headers={"x-delay": 3_000})
    story.expect("was delayed by 3000 ms, and came with")


def test_what_was_delayed_is_lost_or_comes_twice() -> None:
    for disturbed in (False, True):
        story = Story()
        one, two = story.publish(DELAYED_QUEUE, 2, Extras(via="late", delay_ms=1))
        if disturbed:
            story.ledger.on_disturbed(100.0)
        story.ledger.on_drained(DELAYED_QUEUE, [two.number, one.number, one.number])
        story.expect(None if disturbed else "twice in l0: [1]")
    story = Story()
    story.publish(DELAYED_QUEUE, 1, Extras(via="late", delay_ms=1))
    story.ledger.on_drained(DELAYED_QUEUE, [])
    story.expect("confirmed and not there any more, of l0: [1]")


# -- Transactions ------------------------------------------------------------------------------------------------------


def test_what_was_rolled_back() -> None:
    story = Story()
    (message,) = story.publish("d0")
    message.state = ROLLED_BACK
    story.deliver(message, 11.0)
    story.expect("though it was rolled back")


@pytest.mark.parametrize(
    ("there", "problem"), [((1, 2), None), ((1,), None), ((2,), None), ((), "was taken in a transaction")]
)
def test_one_of_the_two_is_there(there: tuple[int, ...], problem: str | None) -> None:
    story = Story()
    (taken,), (put,) = story.publish("d0"), story.publish(DELAYED_QUEUE)
    put.state = "sent"
    story.ledger.trades = [Trade(taken, put)]
    story.ledger.on_committing(story.ledger.trades)
    found = {queue: [one.number for one in (taken, put) if one.queue == queue and one.number in there]
             for queue in ("d0", DELAYED_QUEUE, DEAD_LETTER_QUEUE)}  # fmt: skip
    for queue, numbers in found.items():
        story.ledger.on_drained(queue, numbers)
    story.ledger.on_all_drained(found)
    story.expect(problem)


# -- Limits ------------------------------------------------------------------------------------------------------------


def test_crowds() -> None:
    failures: list[str] = []
    limits = LimitsChecker(failures.append, lambda: False)
    for number in range(QUEUES_MAX):
        limits.on_declared(f"t{number}", False)
    limits.on_taken("n1", CONNECTIONS_MAX)
    limits.on_known("n1", {f"t{number}" for number in range(QUEUES_MAX)}, False)
    limits.on_room("connections", 3, 3)
    assert failures == []
    limits.on_declared("one more", False)
    limits.on_taken("n1", CONNECTIONS_MAX + 1)
    limits.on_deleting("one more")
    limits.on_known("n1", {"t0"}, False)
    limits.on_room("channels", 2, 3)
    assert [text.split(" ")[0] for text in failures] == ["in", "n1", "n1", "2"]
