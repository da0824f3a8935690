"""Bundles from queue to queue: what arrives is what was stored, whatever its properties, and each message once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from leveret.broker.delivery.batch import Gap, Span
from leveret.client.address import Address
from leveret.client.machine import BundleDelivery, ClientMachine, Closed, Delivery
from leveret.protocol import bundles
from leveret.protocol import methods as m
from leveret.protocol.bundles import Bundle
from leveret.protocol.origins import MARK, NAME, source_of
from leveret.protocol.properties import Properties
from leveret.protocol.tables import Field, table_from_python
from leveret.sessions.amqp.limits import Limits
from leveret.shovel.link import Link, Target
from leveret.storage.format.queue_block import REDELIVERED
from tests.support.machines import Client, World, publish
from tests.unit.broker.queue.test_dedup import acks, rest, told
from tests.unit.protocol.test_bundles import message

SOURCE = source_of(b"a" * 32, 7, 9)


@pytest.fixture
def world() -> World:
    world = World()
    world.broker.wall_ms = 1_000_000
    world.client().declare("q", durable=True)
    return world


def mover(world: World, **given: Any) -> Client:
    client = world.client(leveret_origins=True, **given)
    assert client.call(m.ConfirmSelect()) == m.ConfirmSelectOk()
    return client


def frame(bundle: Bundle, queue: str = "q", flags: int = 0, exchange: str = "", channel: int = 1) -> bytes:
    route = b"".join(bytes((len(text),)) + text.encode() for text in (exchange, queue))
    return b"".join(bundles.publish_frame(channel, route + bytes((flags,)), bundles.packed(bundle)))


def send(client: Client, first: int, *bodies: int, properties: Properties | None = None, queue: str = "q") -> None:
    contents = [message(b"%d" % body, properties) for body in bodies]
    client.feed(frame(Bundle(SOURCE, first, contents), queue))
    client.world.turn()


def contents_of(world: World, queue: str) -> list[bytes]:
    found: list[bytes] = []
    for span in world.queue(queue).ready:
        assert isinstance(span, Span)
        found += span.batch.contents[span.lo : span.hi]
    return found


# -- At the destination --------------------------------------------------------------------------------------------


def test_each_number_is_taken_once_in_any_order(world: World) -> None:
    first, second = mover(world), mover(world)
    send(first, 5, 5, 6, 7)
    send(second, 4, 4, 5, 6)
    send(first, 1, 1, 2, 3, 4)
    send(second, 1, 1, 2)
    assert told(first) == acks(7) and told(second) == acks(5)
    assert rest(world) == [5, 6, 7, 4, 1, 2, 3]


def test_a_bundle_that_may_have_been_brought_before_is_marked_as_far_as_it_is_new(world: World) -> None:
    client = mover(world)
    send(client, 1, 1, 2)
    send(client, 1 | MARK, 1, 2, 3, 4)
    send(client, 5 | MARK, 5, properties=Properties(headers={"CC": Field("A", [Field("S", "q")])}))  # Looked at singly.
    assert told(client) == acks(7)
    marks = [kind & REDELIVERED != 0 for span in world.queue("q").ready for kind in kinds_of(span)]
    assert marks == [False, False, True, True, True]


def kinds_of(span: Span | Gap) -> bytearray:
    assert isinstance(span, Span)
    return span.batch.kinds[span.lo : span.hi]


def test_confirms_come_with_the_sync(world: World) -> None:
    client = mover(world)
    world.holds_disk = True
    send(client, 1, 1, 2)
    assert told(client) == []
    world.sync()
    world.turn()
    assert told(client) == acks(2)


def test_messages_in_bundles_and_without_have_numbers_in_a_row(world: World) -> None:
    client = mover(world)
    client.feed(publish(1, "", "q", b"100") + frame(Bundle(SOURCE, 1, [message(b"1")] * 2)) + publish(1, "", "q", b"9"))
    world.turn()
    assert told(client) == acks(4) and rest(world) == [100, 1, 1, 9]


def test_properties_that_are_examined(world: World) -> None:
    """Messages that expire are taken as they are; one in the name of another user is refused, as a single one is."""
    client = mover(world)
    send(client, 1, 1, 2, 3, properties=Properties(delivery_mode=2, expiration="60000"))
    assert told(client) == acks(3) and len(rest(world)) == 3
    assert world.queue("q").timed
    send(client, 4, 4, 5, properties=Properties(user_id="somebody"))
    (closed,) = client.methods()
    assert isinstance(closed, m.ChannelClose) and "user_id" in closed.reply_text


def test_copies_are_made_for_further_keys(world: World) -> None:
    world.client().declare("copies", durable=True)
    client = mover(world)
    send(client, 1, 1, 2, properties=Properties(headers={"CC": Field("A", [Field("S", "copies")])}))
    assert told(client) == acks(2) and rest(world) == [1, 2] and rest(world, "copies") == [1, 2]
    send(client, 1, 1, 2, properties=Properties(headers={"CC": Field("A", [Field("S", "copies")])}))
    assert rest(world, "copies") == [1, 2]


@pytest.mark.parametrize("kind", ["fanout", "headers"])
def test_exchanges_of_any_type(world: World, kind: str) -> None:
    other = world.client()
    other.declare("second", durable=True)
    assert other.call(m.ExchangeDeclare(exchange="x", type=kind)) == m.ExchangeDeclareOk()
    for queue in ("q", "second"):
        assert other.call(m.QueueBind(queue=queue, exchange="x")) == m.QueueBindOk()
    client = mover(world)
    for _ in range(2):
        client.feed(frame(Bundle(SOURCE, 1, [message(b"1"), message(b"2")]), "key", exchange="x"))
        world.turn()
    assert told(client) == acks(4) and rest(world) == rest(world, "second") == [1, 2]


def test_a_mandatory_bundle_without_a_queue_comes_back(world: World) -> None:
    client = mover(world)
    client.feed(frame(Bundle(SOURCE, 1, [message(b"1"), message(b"2")]), "nowhere", flags=1))
    world.turn()
    methods = client.methods()
    assert [type(method) for method in methods if not isinstance(method, m.BasicAck)] == [m.BasicReturn] * 2


def test_a_full_queue_refuses(world: World) -> None:
    arguments = table_from_python({"x-max-length": 2, "x-overflow": "reject-publish"})
    world.client().declare("full", durable=True, arguments=arguments)
    client = mover(world)
    send(client, 1, 1, 2, queue="full")
    send(client, 3, 3, 4, queue="full")
    assert told(client) == [(1, True), (2, True), (3, False), (4, False)]
    assert rest(world, "full") == [1, 2]


def test_during_an_alarm_a_bundle_waits(world: World) -> None:
    client = mover(world)
    world.broker.set_alarm("memory")
    send(client, 1, 1)
    assert rest(world) == [] and isinstance(client.methods()[0], m.ConnectionBlocked)
    world.broker.set_alarm(None)
    client.connection.unblock()
    world.turn()
    assert rest(world) == [1]


@pytest.mark.parametrize(
    ("properties", "confirms", "text"),
    [({}, True, "unknown_frame"), ({"leveret_origins": True}, False, "confirms")],
)
def test_who_may_not_send_bundles(world: World, properties: dict[str, Any], confirms: bool, text: str) -> None:
    client = world.client(**properties)
    if confirms:
        client.call(m.ConfirmSelect())
    send(client, 1, 1)
    (closed,) = client.methods()
    assert isinstance(closed, m.ConnectionClose | m.ChannelClose) and text in closed.reply_text
    assert rest(world) == []


def test_a_producer_cannot_send_bundles_too(world: World) -> None:
    client = world.client(leveret_origins=True, leveret_producer="p", leveret_sequence=0)
    client.call(m.ConfirmSelect())
    send(client, 1, 1)
    (closed,) = client.methods()
    assert isinstance(closed, m.ConnectionClose) and "unknown_frame" in closed.reply_text


def test_a_malformed_bundle_ends_the_connection_and_nothing_of_it_is_taken(world: World) -> None:
    client = mover(world)
    client.feed(frame(Bundle(SOURCE, 1, [message(b"1"), message(b"2")[:-2] + b"\0\0"])))
    world.turn()
    (closed,) = client.methods()
    assert isinstance(closed, m.ConnectionClose) and "bundle" in closed.reply_text
    assert rest(world) == []


def test_a_message_over_the_limit_is_refused() -> None:
    world = World(Limits(message_bytes_max=3))
    world.client().declare("q", durable=True)
    client = mover(world)
    send(client, 1, 1, 12345)
    (closed,) = client.methods()
    assert isinstance(closed, m.ChannelClose) and "larger than configured max size" in closed.reply_text
    assert rest(world) == []


# -- From queue to queue -------------------------------------------------------------------------------------------


class Source:
    """A consumer that takes bundles and hands all to a link. Its client has it in the place of a reader."""

    def __init__(self, link: Link, client: Client) -> None:
        self.link = link
        self.machine = ClientMachine(self, Address("h", 1, "u", "p", "/"), {})
        self.machine.begin_open(131_072, b"")
        self.machine.await_bundles()
        self.published: list[bytes] = []
        self.bundles = self.singles = 0
        client.reader = self  # type: ignore[assignment]

    def feed(self, data: bytes) -> list[Any]:
        self.machine.receive(data)
        return []

    def on_open(self) -> None: ...

    def on_deliveries(self, deliveries: list[Delivery]) -> None:
        self.singles += len(deliveries)
        self.published += self.link.on_deliveries(deliveries)

    def on_bundle(self, delivery: BundleDelivery) -> None:
        self.bundles += 1
        self.published += self.link.on_bundle(delivery)

    def on_confirm(self, number: int, multiple: bool, refused: bool) -> None: ...

    def on_returned(self, text: str) -> None: ...

    def on_cancelled(self) -> None: ...

    def on_blocked(self, reason: str | None) -> None: ...

    def on_closed(self, error: Closed) -> None:
        raise error


def consume(world: World, link: Link, frame_max: int = 131_072) -> Source:
    client = world.client(frame_max=frame_max)
    source = Source(link, client)
    source.machine.call((60, 20), b"\0\0\x01q\x01c\0\0\0\0\0", lambda answer: None)
    arguments = table_from_python({NAME: True, bundles.ARGUMENT: True})
    client.send(m.BasicConsume(queue="q", consumer_tag="c", arguments=arguments))
    for _ in range(50):
        world.turn()
    client.lose()
    world.turn()
    return source


@pytest.mark.parametrize("seed", range(5))
def test_all_that_is_stored_arrives_as_it_is_and_once(world: World, seed: int) -> None:
    draw = random.Random(seed)
    world.client().declare("far", durable=True)
    publisher = world.client()
    assert publisher.call(m.QueueBind(queue="q", exchange="amq.topic", routing_key="#")) == m.QueueBindOk()
    for at in range(300):
        given: dict[str, Any] = {"delivery_mode": draw.choice([1, 2, 2, 2])}
        if draw.random() < 0.3:
            given["message_id"] = f"id {at}"
        if draw.random() < 0.05:
            given["expiration"] = "600000"
        body = bytes(draw.choice([0, 10, 10, 10, 10, 500, 100_000 if draw.random() < 0.05 else 20]))
        key = draw.choice(["a", "a", "a", "b.c"])
        publisher.feed(publish(1, "amq.topic", key, body, 131_072, **given))
        if draw.random() < 0.1:
            world.turn()
    world.turn()
    stored = contents_of(world, "q")
    destination = mover(world)
    for _ in range(2):  # The second time all of them are there, and are marked as redelivered.
        source = consume(world, Link("on-confirm", Target("", "far")))
        assert source.bundles and source.singles < 20
        destination.feed(b"".join(source.published))
        world.turn()
    assert contents_of(world, "far") == stored and len(stored) == 300
    assert told(destination) == acks(600)


def test_a_consumer_with_small_frames_gets_no_bundles(world: World) -> None:
    world.client().publish("q", b"1", delivery_mode=2)
    source = consume(world, Link("on-confirm", Target("", "far")), frame_max=8_192)
    assert (source.bundles, source.singles) == (0, 1)


def test_a_link_with_an_end_cuts_a_bundle(world: World) -> None:
    world.client().declare("far", durable=True)
    publisher = world.client()
    for number in range(5):
        publisher.publish("q", b"%d" % number, delivery_mode=2)
    destination = mover(world)
    source = consume(world, Link("on-confirm", Target("", "far"), quota=3))
    destination.feed(b"".join(source.published))
    world.turn()
    assert rest(world, "far") == [0, 1, 2] and source.link.published == 3
