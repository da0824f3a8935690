"""The ledger of a run with features says no where it has to, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.amqp.contents import Extras, entry, header, properties
from simulation.checkers.ledger import Delivery, Message
from simulation.checkers.message_checker import MessageChecker, MirroredMessageChecker
from simulation.checkers.mirror_checker import Beginning, Timeline
from simulation.core.machine import WALL_MS
from simulation.features.queue_features import DEAD_LETTER_QUEUE, HOUR_MS, Features


class Story:
    """A queue `d0` on n1, and a clock that a test sets."""

    def __init__(self, **features: Any) -> None:
        self.now = 10.0
        self.failures: list[str] = []
        self.ledger = MessageChecker(self.failures.append, lambda who, text: None, lambda: self.now)
        self.ledger.features = {"d0": Features(letters="letters", **features), DEAD_LETTER_QUEUE: Features()}
        for name in ("d0", DEAD_LETTER_QUEUE):
            facts = self.ledger.queue(name)
            facts.owner, facts.declared = "n1", True

    def publish(self, count: int = 1, extras: Extras = Extras(), state: str = "confirmed") -> list[Message]:  # noqa: B008
        messages = []
        for _ in range(count):
            message = self.ledger.on_published("d0", "channel", True, self.now)
            message.state, message.extras = state, extras
            message.confirmed_at = self.now if state == "confirmed" else None
            messages.append(message)
        return messages

    def deliver(self, message: Message, at: float, consumer: str = "c") -> None:
        self.now = max(self.now, at)
        self.ledger.on_delivered(Delivery("d0", message.number, consumer, "n1", False, at))

    def bury(self, message: Message, reason: str, at: float, **changes: Any) -> None:
        """Its letter comes out of the queue of the dead."""
        self.now = max(self.now, at)
        death = {"reason": reason, "queue": "d0", "time": int(WALL_MS / 1000 + at), "count": 1, "exchange": ""}
        death |= {"routing-keys": ["d0"], **changes}
        headers: dict[str, Any] = {f"x-first-death-{name}": death[name] for name in ("reason", "queue", "exchange")}
        came = {"delivery_mode": 2, "headers": {"x-death": [death], **headers}}
        self.ledger.on_delivered(Delivery(DEAD_LETTER_QUEUE, message.number, "c", "n1", False, at, properties=came))

    def end(self, there: list[Message], dead: list[Message]) -> None:
        found = {"d0": [one.number for one in there], DEAD_LETTER_QUEUE: [one.number for one in dead]}
        for queue, numbers in found.items():
            self.ledger.on_drained(queue, numbers)
        self.ledger.on_all_drained(found)


def test_nothing_wrong() -> None:
    story = Story(ttl_ms=2_000, max_length=2)
    old, first, second, third = *story.publish(), *story.publish(3)
    story.deliver(old, 11.9)
    story.ledger.on_acked(Delivery("d0", old.number, "c", "n1", False, 11.9))
    story.bury(first, "maxlen", 12.0)
    story.bury(second, "expired", 12.1)
    story.end([third], [])
    assert story.failures == []


@pytest.mark.parametrize(
    ("features", "what"),
    [({"ttl_ms": HOUR_MS}, "an hour is not over"), ({"max_length": 3}, "they were not that many"), ({}, "no reason")],
)
def test_lost(features: dict[str, Any], what: str) -> None:
    story = Story(**features)
    messages = story.publish(3)
    story.end(messages[:2], [])
    assert story.failures == ["confirmed and not there any more, of d0: [3]"], what


def test_lost_between_the_two() -> None:
    story = Story(ttl_ms=2_000)
    messages = story.publish(2)
    story.now = 20.0
    story.end([], messages[:1])
    assert story.failures == [f"message 2 of d0 has left its queue and is not in {DEAD_LETTER_QUEUE}"]


def test_a_letter_that_may_be_refused() -> None:
    for keeps in (False, True):
        story = Story(ttl_ms=2_000, keeps=keeps)
        story.publish()
        story.ledger.on_link_down("n1", "n2", 11.0)
        story.now = 20.0
        story.end([], [])
        assert bool(story.failures) == keeps


@pytest.mark.parametrize(("promoted_at", "is_excused"), [(10.5, True), (9.5, False)])
def test_a_letter_in_a_queue_that_was_promoted_by_force(promoted_at: float, is_excused: bool) -> None:
    story = Story(ttl_ms=400, keeps=True)
    ledger = MirroredMessageChecker(story.failures.append, lambda who, text: None, lambda: story.now)
    ledger.features, ledger.queues = story.ledger.features, story.ledger.queues
    story.ledger = ledger
    agreed = ledger.agreed[DEAD_LETTER_QUEUE] = Timeline()
    agreed.put(9.0, (1, "n1"))
    agreed.put(promoted_at, (2, "n2"))
    ledger.losses_of(DEAD_LETTER_QUEUE).beginnings[2] = Beginning(2, 1, (), lossy=2)
    story.publish()
    story.now = 12.0
    story.end([], [])
    lost = f"message 1 of d0 has left its queue and is not in {DEAD_LETTER_QUEUE}"
    assert story.failures == ([] if is_excused else [lost])


def test_too_old() -> None:
    story = Story(ttl_ms=2_000)
    (message,) = story.publish()
    story.deliver(message, 12.2)
    assert "it had to go after 2000 ms" in story.failures[0]
    story = Story(ttl_ms=2_000)
    story.ledger.on_skew(-300)
    (message,) = story.publish()
    story.deliver(message, 12.2)
    assert story.failures == []


@pytest.mark.parametrize(
    ("entered_at", "got_at", "is_wrong"),
    [
        pytest.param(14.0, 15.9, False, id="it waited at the queue's node, and its time began then"),
        pytest.param(14.0, 16.2, True, id="it has been in the queue for too long"),
        pytest.param(9.5, 12.2, True, id="it was in the queue when it was spooled, in doubt"),
        pytest.param(None, 11.9, False, id="it comes from the spool"),
        pytest.param(None, 12.2, True, id="it comes from the spool, and is too old"),
    ],
)
def test_what_was_spooled_grows_old_in_its_queue(entered_at: float | None, got_at: float, is_wrong: bool) -> None:
    """A spool confirms a message at 10.0, and sends it on at 11.0; then the node with the spool is killed."""
    story = Story(ttl_ms=2_000)
    (message,) = story.publish()
    story.ledger.on_spooled(message.number)
    story.ledger.on_sent_on(message.number, 11.0)
    if entered_at is not None:
        story.now = entered_at
        story.ledger.on_entered("d0", message.number)
    story.now = 14.5
    story.ledger.on_entered(DEAD_LETTER_QUEUE, message.number)
    story.deliver(message, got_at)
    assert ["it had to go after 2000 ms" in failure for failure in story.failures] == [True] * is_wrong


@pytest.mark.parametrize(
    ("reason", "at", "changes", "problem"),
    [
        ("expired", 11.0, {}, "2000 ms to live"),
        ("rejected", 11.0, {}, "nobody has rejected it"),
        ("maxlen", 11.0, {}, "not so many after it"),
        ("bored", 11.0, {}, "of all things"),
        ("expired", 13.0, {"count": 2}, "expected were"),
        ("expired", 13.0, {"routing-keys": ["d1"]}, "expected were"),
    ],
)
def test_a_letter_that_lies(reason: str, at: float, changes: dict[str, Any], problem: str) -> None:
    story = Story(ttl_ms=2_000)
    (message,) = story.publish()
    story.bury(message, reason, at, **changes)
    assert problem in story.failures[0]


def test_a_letter_comes_twice() -> None:
    for disturbed in (False, True):
        story = Story(ttl_ms=2_000)
        (message,) = story.publish()
        if disturbed:
            story.ledger.on_disturbed(100.0)
        story.bury(message, "expired", 13.0)
        story.bury(message, "expired", 14.0)
        assert bool(story.failures) != disturbed


def test_turned_away_and_confirmed() -> None:
    story = Story(max_length=2, overflow="reject-publish-dlx")
    (message,) = story.publish()
    story.bury(message, "maxlen", 11.0)
    story.end([], [])
    assert any("turned away, and confirmed" in failure for failure in story.failures)


def test_too_many() -> None:
    story = Story(max_length=2)
    story.end(story.publish(3), [])
    assert story.failures == ["3 messages are in d0, whose limit is 2"]


def test_turns() -> None:
    story = Story(single=True)
    for at, (message, who) in enumerate(zip(story.publish(3), "aba", strict=True), 11):
        story.deliver(message, at, who)
    story.ledger.on_all_drained({"d0": [], DEAD_LETTER_QUEUE: []})
    assert "a single active consumer, a got something at 13" in story.failures[0]


@pytest.mark.parametrize(("who", "is_wrong"), [("aba", False), ("abab", False), ("ababa", True)])
def test_turns_that_end_and_begin_at_one_time(who: str, is_wrong: bool) -> None:
    """The second and the third are written at once, and it is not known which of them came first."""
    story = Story(single=True)
    for message, at, consumer in zip(story.publish(len(who)), (11, 12, 12, 13, 14), who, strict=False):
        story.deliver(message, at, consumer)
    story.ledger.on_all_drained({"d0": [], DEAD_LETTER_QUEUE: []})
    assert bool(story.failures) == is_wrong


def test_contents() -> None:
    payload = header(3, True, Extras(300, 4), ("CC", "d0"))
    came = {"headers": {"CC": ["d0"]}, "delivery_mode": 2, "priority": 4, "expiration": "300"}
    assert properties(payload) == came
    assert entry("x", True) == b"\x01xt\x01" and entry("x", "y") == b"\x01xS\x00\x00\x00\x01y"
    with pytest.raises(ValueError, match="more than its flags say"):
        properties(payload + b"?")


BEHIND = "is in d0 behind message"


@pytest.mark.parametrize(
    ("features", "order", "crashes", "failures"),
    [
        pytest.param({"max_length": 2}, (4, 1, 2, 3), True, [], id="they were pushed out, and are back"),
        pytest.param({"max_length": 2}, (4, 2, 1, 3), True, [f"1 of d0 {BEHIND} 2"], id="in another order"),
        pytest.param({"max_length": 5}, (4, 1, 2, 3), True, [f"{one} of d0 {BEHIND} 4" for one in (1, 2, 3)],
                     id="nothing had pushed them out"),
        pytest.param({"max_length": 2}, (4, 1, 2, 3), False,
                     [*(f"{one} of d0 {BEHIND} 4" for one in (1, 2, 3)), "4 messages are in d0"],
                     id="nothing had put them back"),
        pytest.param({"max_length": 3, "overflow": "reject-publish"}, (4, 1, 2, 3), True,
                     [f"{one} of d0 {BEHIND} 4" for one in (1, 2, 3)], id="that queue pushes nothing out"),
    ],
)  # fmt: skip
def test_what_was_pushed_out_may_come_back_behind_later_messages(
    features: dict[str, Any], order: tuple[int, ...], crashes: bool, failures: list[str]
) -> None:
    story = Story(**features)
    messages = {message.number: message for message in story.publish(4)}
    first, *others = order
    story.deliver(messages[first], 20.0)
    if crashes:
        story.ledger.on_crashed("n1", 21.0)
    story.now = 22.0
    for number in others:
        story.ledger.on_delivered(Delivery("d0", number, "c", "n1", True, 22.0))
    story.end([messages[number] for number in order], [])
    assert len(story.failures) == len(failures)
    assert all(wanted in said for wanted, said in zip(failures, story.failures, strict=True)), story.failures


def test_a_crash_before_the_end_excuses_no_message_above_the_limit() -> None:
    story = Story(max_length=2)
    messages = story.publish(3)
    story.ledger.on_crashed("n1", 15.0)
    for message in messages:
        story.deliver(message, 20.0)
    story.end(messages, [])
    assert story.failures == ["3 messages are in d0, whose limit is 2"]
