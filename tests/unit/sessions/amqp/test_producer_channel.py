"""The channels of a producer: who is one, what it may do, and which number a message has."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.delivery.publish_numbers import ENTRY, PREFIX
from leveret.broker.queue.dedup import SEQUENCE_MAX
from leveret.protocol import methods as m
from leveret.protocol.tables import Field, table_from_python
from leveret.sessions.amqp import producer_channel
from tests.support.machines import Client, World, publish


@pytest.fixture
def world() -> World:
    world = World()
    world.client().declare("q", durable=True)
    world.client().declare("r", durable=True)
    return world


def producer(world: World, sequence: int = 0, name: str = "p", **options: Any) -> Client:
    client = world.client(leveret_producer=name, leveret_sequence=sequence, **options)
    assert client.call(m.ConfirmSelect()) == m.ConfirmSelectOk()
    return client


def taken(world: World, queue: str = "q", name: str = "p") -> int:
    found: int = ENTRY.unpack(world.queue(queue).durable_state.table[PREFIX + name.encode()])[0]
    return found


# -- Who is one ---------------------------------------------------------------------------------------------------


def test_the_server_says_that_it_knows_producers() -> None:
    client = Client(World())
    client.feed(b"AMQP\x00\x00\x09\x01")
    client.world.turn()
    (start,) = client.methods()
    assert isinstance(start, m.ConnectionStart)
    assert start.server_properties["capabilities"].value["leveret_producer"] == Field("t", True)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"leveret_producer": 7, "leveret_sequence": 0}, "leveret_producer must be a string that is not empty"),
        ({"leveret_producer": "", "leveret_sequence": 0}, "leveret_producer must be a string that is not empty"),
        ({"leveret_sequence": 0}, "leveret_producer must be a string that is not empty"),
        ({"leveret_producer": "ä" * 65, "leveret_sequence": 0},
         "leveret_producer has 130 bytes, and at most 128 are allowed"),
        ({"leveret_producer": "node 1", "leveret_sequence": 0},
         "leveret_producer begins like the names that nodes use themselves"),
        ({"leveret_producer": "epoch 1", "leveret_sequence": 0},
         "leveret_producer begins like the names that nodes use themselves"),
        ({"leveret_producer": "p"},
         "leveret_sequence must be an integer, the number of the last message before those to come"),
        ({"leveret_producer": "p", "leveret_sequence": "1"},
         "leveret_sequence must be an integer, the number of the last message before those to come"),
        ({"leveret_producer": "p", "leveret_sequence": True},
         "leveret_sequence must be an integer, the number of the last message before those to come"),
        ({"leveret_producer": "p", "leveret_sequence": -1}, f"leveret_sequence -1 is not between 0 and {1 << 62}"),
        ({"leveret_producer": "p", "leveret_sequence": SEQUENCE_MAX + 1},
         f"leveret_sequence {SEQUENCE_MAX + 1} is not between 0 and {1 << 62}"),
    ],
)  # fmt: skip
def test_a_client_that_makes_no_sense_is_told(properties: dict[str, object], text: str) -> None:
    client = Client(World())
    client.feed(b"AMQP\x00\x00\x09\x01")
    table = table_from_python(properties)
    client.feed(m.encode(0, m.ConnectionStartOk(table, "PLAIN", b"\0guest\0guest", "en_US")))
    client.world.turn()
    assert client.methods()[1:] == [m.ConnectionClose(530, f"NOT_ALLOWED - {text}", 10, 11)]


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(producer_channel.BadProducer, match="must be UTF-8"):
        producer_channel.producer_of({"leveret_producer": "\udcff", "leveret_sequence": 0})


def test_a_stranger_is_told_nothing_of_producers() -> None:
    client = Client(World())
    client.feed(b"AMQP\x00\x00\x09\x01")
    table = table_from_python({"leveret_producer": "", "leveret_sequence": 0})
    client.feed(m.encode(0, m.ConnectionStartOk(table, "PLAIN", b"\0guest\0wrong", "en_US")))
    client.world.turn()
    assert client.connection.closed and client.methods()[1:] == []


# -- What it may do -----------------------------------------------------------------------------------------------


def test_only_channel_1_publishes(world: World) -> None:
    client = producer(world, channels=(1, 2))
    client.call(m.ConfirmSelect(), channel=2)
    client.publish("q", channel=2)
    text = "CHANNEL_ERROR - producer 'p' publishes on channel 1 only"
    assert client.methods() == [m.ConnectionClose(504, text, 60, 40)]
    assert world.queue("q").ready_count == 0


def test_whoever_does_not_ask_for_confirms_does_not_publish(world: World) -> None:
    client = world.client(leveret_producer="p", leveret_sequence=0)
    client.publish("q")
    text = "PRECONDITION_FAILED - producer 'p' must ask for confirms before it publishes"
    assert client.methods() == [m.ChannelClose(406, text, 60, 40)]
    client.send(m.ChannelCloseOk(), m.ChannelOpen(), m.ConfirmSelect())
    client.publish("q")  # Nothing had been published, so nothing is in doubt.
    assert [type(one) for one in client.methods()] == [m.ChannelOpenOk, m.ConfirmSelectOk, m.BasicAck]


def test_transactions_are_refused(world: World) -> None:
    client = world.client(leveret_producer="p", leveret_sequence=0)
    text = "PRECONDITION_FAILED - producer 'p' cannot have transactions: what they hold back has no number"
    assert client.call(m.TxSelect()) == m.ChannelClose(406, text, 90, 10)


@pytest.mark.parametrize("by", ["client", "error"])
def test_with_its_channel_a_producer_has_published_its_last(world: World, by: str) -> None:
    """Of what was on its way to a channel that was closed, nobody knows whether it counts."""
    client = producer(world)
    client.publish("q", delivery_mode=2)
    client.take()
    if by == "client":
        client.call(m.ChannelClose(200, "", 0, 0))
    else:
        client.publish("q", exchange="none")
        client.publish("q", b"unheard", delivery_mode=2)
        assert [type(one) for one in client.methods()] == [m.ChannelClose]
        client.send(m.ChannelCloseOk())
    assert client.call(m.ChannelOpen()) == m.ChannelOpenOk()
    assert client.call(m.ConfirmSelect()) == m.ConfirmSelectOk()
    client.publish("q", delivery_mode=2)
    text = "producer 'p' has published on a channel that is closed; it needs a new connection to go on"
    assert client.methods() == [m.ConnectionClose(504, f"CHANNEL_ERROR - {text}", 60, 40)]
    assert world.queue("q").ready_count == 1


def test_other_channels_do_all_else(world: World) -> None:
    client = producer(world, channels=(1, 2))
    client.publish("q", b"1", delivery_mode=2)
    client.take()
    client.consume("q", channel=2)
    assert client.bodies() == [b"1"]
    client.send(m.BasicAck(1, False), channel=2)
    assert world.queue("q").unacked_count == 0
    client.consume("r", tag="d")
    client.publish("r", b"2", delivery_mode=2)
    assert [type(one) for one in client.methods()] == [m.BasicDeliver, m.BasicAck]
    client.send(m.BasicAck(1, False))
    assert world.queue("r").unacked_count == 0 and not client.take()


# -- Which number a message has -----------------------------------------------------------------------------------


def test_numbers_go_on_whatever_the_queues(world: World) -> None:
    """In one piece of input, and in bundles of different lengths."""
    client = producer(world, sequence=100)
    client.feed(b"".join(publish(1, "", key, b"x", delivery_mode=2) for key in "qqrqrrqqqr"))
    world.turn()
    assert (taken(world, "q"), taken(world, "r")) == (109, 110)
    assert client.methods()[-1] == m.BasicAck(10, True)
    again = producer(world, sequence=107)
    again.feed(b"".join(publish(1, "", key, b"x", delivery_mode=2) for key in "qqrqr"))
    world.turn()
    assert (world.queue("q").ready_count, world.queue("r").ready_count) == (7, 5)
    assert (taken(world, "q"), taken(world, "r")) == (111, 112)


def test_a_message_that_leads_nowhere_has_a_number(world: World) -> None:
    client = producer(world)
    for key in ("q", "nowhere", "q"):
        client.feed(publish(1, "", key, b"x", mandatory=True, delivery_mode=2))
    world.turn()
    assert [type(one) for one in client.methods()] == [m.BasicReturn, m.BasicAck]
    assert taken(world) == 3


def test_a_message_in_several_frames_has_one_number(world: World) -> None:
    client = producer(world, frame_max=4096)
    for size in (10, 9000, 10):
        client.publish("q", bytes(size), delivery_mode=2)
    assert taken(world) == 3 and world.queue("q").ready_count == 3


def test_a_message_with_copies_has_one_number(world: World) -> None:
    client = producer(world)
    headers = table_from_python({"CC": ["r"]})
    client.publish("q", b"1", delivery_mode=2)
    client.publish("q", b"2", delivery_mode=2, headers=headers)
    client.publish("r", b"3", delivery_mode=2)
    assert (taken(world, "q"), taken(world, "r")) == (2, 3)
    again = producer(world, sequence=1)
    again.publish("q", b"2", delivery_mode=2, headers=headers)
    assert (world.queue("q").ready_count, world.queue("r").ready_count) == (2, 2)


def test_what_is_refused_by_all_leaves_a_hole(world: World) -> None:
    """A fault that tests can ask for. What comes after it must not be there before it."""
    client = producer(world)
    client.publish("q", b"1", delivery_mode=2)
    world.broker.refusing = True
    client.publish("q", b"2", delivery_mode=2)
    world.broker.refusing = False
    client.publish("q", b"3", delivery_mode=2)
    client.publish("r", b"4", delivery_mode=2)
    assert [type(one) for one in client.methods()] == [m.BasicAck, m.BasicNack, m.BasicNack, m.BasicNack]
    again = producer(world, sequence=1)
    for number in (2, 3, 4):
        again.publish("q" if number < 4 else "r", b"%d" % number, delivery_mode=2)
    assert (world.queue("q").ready_count, world.queue("r").ready_count) == (3, 1)


def test_queues_that_are_gone_are_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_channel, "TARGETS_MIN", 3)
    client, other = producer(world), world.client()
    channel = client.connection.channels[1]
    assert isinstance(channel, producer_channel.ProducerChannel)
    for number in range(20):
        name = f"brief-{number}"
        other.declare(name)
        client.publish(name)
        other.call(m.QueueDelete(queue=name))
        client.publish("q")
        assert len(channel.through) <= 4
    assert world.queue("q").spec.id in channel.through
