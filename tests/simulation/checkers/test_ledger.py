"""The ledger says no where it has to, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from simulation.checkers.ledger import Delivery, Ledger, Message
from simulation.checkers.mirror_checker import Beginning, Losses, MirroredLedger, Timeline


class Story:
    """A ledger, and a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.failures: list[str] = []
        self.ledger = Ledger(self.failures.append, lambda who, text: None, lambda: self.now)
        facts = self.ledger.queue("q")
        facts.owner, facts.declared = "n1", True

    def publish(self, count: int = 1, **changes: Any) -> list[int]:
        numbers = []
        for _ in range(count):
            message = self.ledger.on_published("q", "channel", True, self.now)
            message.state = "confirmed"
            for name, value in changes.items():
                setattr(message, name, value)
            numbers.append(message.number)
        return numbers

    def deliver(self, number: int, at: float, again: bool = False, node: str = "n1", consumer: str = "c") -> None:
        self.now = max(self.now, at)
        self.ledger.on_delivered(Delivery("q", number, consumer, node, again, at))

    def ack(self, number: int) -> None:
        self.ledger.on_acked(Delivery("q", number, "c", "n1", False, self.now))


@pytest.fixture
def story() -> Story:
    return Story()


def test_nothing_wrong(story: Story) -> None:
    numbers = story.publish(3)
    for at, number in enumerate(numbers, 1):
        story.deliver(number, at)
    story.deliver(numbers[0], 5, again=True)
    story.ack(numbers[0])
    story.ledger.on_drained("q", numbers[1:])
    assert story.failures == []


def test_a_confirmed_message_is_missing(story: Story) -> None:
    first, second, *_ = story.publish(2)
    story.publish(1, state="nacked")
    story.publish(1, persistent=False)
    story.ledger.on_drained("q", [second])
    assert story.failures == [f"confirmed and not there any more, of q: [{first}]"]


def test_what_was_acknowledged_or_lost_with_its_disk_is_not_missed(story: Story) -> None:
    first, _ = story.publish(2)
    story.ack(first)
    story.ledger.on_wiped("n1")
    story.ledger.on_drained("q", [])
    assert story.failures == []


def test_twice(story: Story) -> None:
    (number,) = story.publish()
    story.ledger.on_drained("q", [number, number])
    assert story.failures == [f"twice in q: [{number}]"]


def test_out_of_order_in_the_end(story: Story) -> None:
    first, second = story.publish(2)
    story.ledger.on_drained("q", [second, first])
    assert "behind message" in story.failures[0]


def test_out_of_order_at_a_consumer(story: Story) -> None:
    first, second = story.publish(2)
    story.deliver(second, 1)
    story.deliver(first, 2, again=True)  # It was with somebody else.
    assert story.failures == []
    story.deliver(first, 3, consumer="other")
    story.failures.clear()
    third, fourth = story.publish(2)
    story.deliver(fourth, 4)
    story.deliver(third, 5)
    assert "which was published later" in story.failures[0]


def test_delivered_again_without_the_flag(story: Story) -> None:
    (number,) = story.publish()
    story.deliver(number, 1)
    story.deliver(number, 2, consumer="d")
    assert "without a word about it" in story.failures[0]


def test_a_crash_excuses_a_missing_flag(story: Story) -> None:
    (number,) = story.publish()
    story.deliver(number, 1)
    story.ledger.on_crashed("n2", 1.1)
    story.ledger.on_crashed("n1", 1.2)
    story.deliver(number, 2, consumer="d")
    assert story.failures == []
    story.deliver(number, 3, consumer="e")
    assert len(story.failures) >= 1


@pytest.mark.parametrize("slow_node", ["n1", "n2"])
def test_a_crash_long_after_a_delivery_excuses_nothing_unless_the_disk_is_slow(story: Story, slow_node: str) -> None:
    (number,) = story.publish()
    story.ledger.on_slow(slow_node, 1.0)
    story.deliver(number, 1)
    story.ledger.on_crashed("n1", 1.6)
    story.deliver(number, 2, consumer="d")
    assert len(story.failures) == (slow_node == "n2")


def test_a_delivery_that_comes_late_is_told_by_when_it_was_written(story: Story) -> None:
    """The first one was stuck in the network while the second one overtook it."""
    (number,) = story.publish()
    story.deliver(number, 2, again=True, consumer="second")
    story.deliver(number, 1, consumer="first")
    assert story.failures == []


def test_settled_and_delivered(story: Story) -> None:
    (number,) = story.publish()
    story.deliver(number, 1)
    story.ledger.on_settled(story.ledger.messages[number].deliveries[0], 2)
    story.deliver(number, 1.9, again=True, consumer="before")
    assert story.failures == []
    story.deliver(number, 2.1, again=True, consumer="after")
    assert "though its acknowledgement was synced" in story.failures[0]


def test_a_lost_link_makes_an_acknowledgement_void(story: Story) -> None:
    (number,) = story.publish()
    story.deliver(number, 1, node="n2")
    story.ledger.on_link_down("n2", "n1", 1.5)
    story.ledger.on_settled(story.ledger.messages[number].deliveries[0], 2)
    story.deliver(number, 3, again=True)
    assert story.failures == []


def test_what_comes_through_a_lost_link_is_late(story: Story) -> None:
    (number,) = story.publish()
    story.deliver(number, 1, again=True)
    story.ledger.on_link_down("n1", "n3", 0.5)
    story.deliver(number, 2, node="n3", consumer="d")
    assert story.failures == [] and story.ledger.late == 1
    story.deliver(number, 2, node="n2", consumer="e")
    assert story.failures


def test_a_link_that_was_lost_before_a_message_was_sent_on_excuses_nothing(story: Story) -> None:
    one, two = story.publish(2)
    story.ledger.on_link_down("n1", "n3", 0.5)
    for number in (one, two):
        story.ledger.on_spooled(number)
        story.ledger.on_sent_on(number, 1.0)
    story.deliver(two, 2, node="n3", consumer="d")
    story.deliver(one, 2, node="n3", consumer="d")
    assert story.ledger.late == 0 and "which was published later" in story.failures[0]


def tell_nothing(ledger: Ledger, number: int) -> None:
    """The message waits where it was published."""


def send(ledger: Ledger, number: int) -> None:
    ledger.on_shared("q", number)


def send_a_copy(ledger: Ledger, number: int) -> None:
    """The message goes to another queue as well, and only that one is reached."""
    ledger.on_shared("r", number)


def start(ledger: Ledger, number: int) -> None:
    ledger.on_spools_read("n2")


def start_the_other(ledger: Ledger, number: int) -> None:
    ledger.on_spools_read("n1")


def send_on(ledger: Ledger, number: int) -> None:
    ledger.on_sent_on(number, ledger.clock())


@pytest.mark.parametrize(
    ("before", "after", "needs_mark", "is_settled"),
    [
        pytest.param(tell_nothing, tell_nothing, False, True, id="it has waited for the queue's master"),
        pytest.param(send, tell_nothing, True, False, id="it was under way when the other node was lost"),
        pytest.param(send_a_copy, tell_nothing, False, True, id="a copy of it was, to another queue"),
        pytest.param(start, tell_nothing, False, True, id="its node had started before"),
        pytest.param(tell_nothing, start, True, True, id="its node was started with it"),
        pytest.param(tell_nothing, start_the_other, False, True, id="the other node was started"),
        pytest.param(tell_nothing, send_on, True, False, id="it was sent on out of the spool"),
    ],
)
@pytest.mark.parametrize("is_marked", [False, True])
def test_what_was_at_no_other_node_needs_no_mark(
    story: Story,
    before: Callable[[Ledger, int], None],
    after: Callable[[Ledger, int], None],
    needs_mark: bool,
    is_settled: bool,
    is_marked: bool,
) -> None:
    """A message is published at 1.0, and spooled at 4.0 because the other node is lost."""
    story.now = 1.0
    (number,) = story.publish()
    before(story.ledger, number)
    story.ledger.on_link_down("n1", "n2", 2.0)
    story.now = 4.0
    story.ledger.on_spooled(number)
    story.now = 5.0
    after(story.ledger, number)
    story.ledger.apart.on_serving("n2", "q", True, 6.0)
    story.deliver(number, 7.0, again=is_marked, node="n2")
    is_wrong = needs_mark and not is_marked
    assert story.failures == (["message 1 of q came from the copy of n2 without a mark"] if is_wrong else [])
    story.ledger.on_kept(story.ledger.messages[number].deliveries[0], 8.0)
    assert (story.ledger.messages[number].settled_at == 8.0) is is_settled


def test_what_is_sent_later_was_at_no_other_node_when_it_was_delivered(story: Story) -> None:
    (number,) = story.publish()
    story.ledger.on_spooled(number)
    story.ledger.apart.on_serving("n2", "q", True, 6.0)
    story.now = 7.5
    story.ledger.on_sent_on(number, story.now)
    story.ledger.on_shared("q", number)
    story.deliver(number, 7.0, node="n2")
    assert story.failures == []


def test_a_connection_is_lost(story: Story) -> None:
    story.ledger.on_disturbed(10.0)
    story.now = 9
    story.ledger.on_session_lost("s", "n1", "why")
    assert story.failures == []
    story.now = 11
    story.ledger.on_session_lost("s", "n1", "why")
    assert "without any reason" in story.failures[0]


def test_what_nobody_published(story: Story) -> None:
    story.deliver(99, 1)
    story.ledger.on_drained("q", [98])
    assert len(story.failures) == 2


def test_an_acknowledgement_counts_at_the_master_that_gave_the_message_out() -> None:
    """Another master has given it to somebody else by then, through the same node."""
    failures: list[str] = []
    ledger = MirroredLedger(failures.append, lambda who, text: None, lambda: 9.0)
    for timeline in (ledger.agreed.setdefault("q", Timeline()), ledger.known.setdefault(("n1", "q"), Timeline())):
        timeline.put(0.0, (1, "n2"))
        timeline.put(2.0, (2, "n1"))
    message = ledger.on_published("q", "channel", True, 0.5)
    first, second = (Delivery("q", 1, f"c{at}", "n1", at > 2, at) for at in (1.0, 3.0))
    ledger.on_delivered(first)
    ledger.on_delivered(second)
    ledger.on_settled(first, 4.0)
    assert message.settled_at is None
    ledger.on_settled(second, 4.0)
    assert message.settled_at == 4.0 and not failures


@pytest.mark.parametrize(
    ("before", "late", "is_settled"),
    [
        pytest.param((), (), True, id="only the copy had delivered it"),
        pytest.param((("n1", 2.0),), (), True, id="the master had, to a client whose link was lost then"),
        pytest.param((("n2", 38.0),), (), False, id="the master had, too"),
        pytest.param((("n2", 2.0),), (), False, id="the master had, before the nodes were cut"),
        pytest.param((), (("n2", 40.5),), False, id="the master had, and its client has seen it later"),
    ],
)
def test_an_acknowledgement_to_a_copy_counts_unless_the_master_gave_the_message_out(
    before: tuple[tuple[str, float], ...], late: tuple[tuple[str, float], ...], is_settled: bool
) -> None:
    """n1 serves its copy from 15.0 to 40.0, and delivers at 39.0. The master confirms a later publish at 41.0."""
    failures: list[str] = []
    ledger = MirroredLedger(failures.append, lambda who, text: None, lambda: 50.0)
    ledger.agreed["q"] = ledger.known["n1", "q"] = ledger.known["n2", "q"] = Timeline()
    ledger.agreed["q"].put(0.0, (1, "n2"))
    ledger.on_published("q", "channel", True, 0.5)
    ledger.on_link_down("n1", "n2", 4.0)
    ledger.apart.on_serving("n1", "q", True, 15.0)
    of_copy = Delivery("q", 1, "c", "n1", True, 39.0)
    for one in (*(Delivery("q", 1, "d", node, True, at) for node, at in before), of_copy):
        ledger.on_delivered(one)
    ledger.apart.on_serving("n1", "q", False, 40.0)
    ledger.on_settled(of_copy, 41.0)
    for node, at in late:
        ledger.on_delivered(Delivery("q", 1, "d", node, True, at))
    assert not failures
    ledger.on_delivered(Delivery("q", 1, "e", "n2", True, 45.0))
    assert len(failures) == is_settled
    assert all("its acknowledgement was synced by 41.000000" in text for text in failures)


def asynchronous() -> tuple[Losses, Message]:
    """A message in block 7 of epoch 2, confirmed at 1.5 by an asynchronous master."""
    losses = Losses()
    losses.on_rules("n1", True, 1.0)
    losses.blocks[1] = (2, 7)
    return losses, Message(1, "q", "channel", True, 1.2, confirmed_at=1.5)


def test_of_what_was_confirmed_asynchronously_only_that_is_lost_which_the_next_master_lacks() -> None:
    losses, message = asynchronous()
    losses.beginnings[2] = Beginning(2, 3, ((1, 1),), 0)
    assert not losses.may_miss(message)
    losses.beginnings[3] = Beginning(3, 8, ((1, 1), (2, 3)), 0)
    assert not losses.may_miss(message), "its log has the block"
    losses.beginnings[4] = Beginning(4, 7, ((1, 1), (2, 3)), 0)
    assert losses.may_miss(message)


def test_another_block_of_that_number_is_another_block() -> None:
    losses, message = asynchronous()
    losses.beginnings[4] = Beginning(4, 9, ((1, 1), (3, 5)), 0)
    assert losses.may_miss(message)


def test_what_was_confirmed_synchronously_is_not_lost() -> None:
    losses, message = asynchronous()
    losses.on_rules("n1", False, 1.1)
    losses.beginnings[3] = Beginning(3, 5, ((1, 1),), 0)
    assert not losses.may_miss(message)


def test_after_a_promotion_by_force_what_came_before_may_be_lost() -> None:
    losses, message = Losses(), Message(1, "q", "channel", True, 1.2, confirmed_at=1.5)
    losses.blocks[1] = (2, 7)
    losses.beginnings[5] = Beginning(5, 9, ((1, 1), (2, 3)), 3)
    assert losses.may_miss(message)
    losses.blocks[1] = (3, 8)
    assert not losses.may_miss(message), "it came with that epoch or later"
    assert losses.may_forget((1.0, 2), (2.0, 5)) and not losses.may_forget((1.0, 3), (2.0, 5))
