"""Publishing, from bytes to queues: whole contents and broken ones, repeated ones and mixed ones."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from leveret.broker.delivery.batch import Span
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.frames import BODY, HEADER, frame, split
from leveret.protocol.properties import Properties, encode
from leveret.protocol.tables import Field
from leveret.sessions.amqp.limits import Limits
from leveret.storage.format.queue_block import PERSISTENT
from tests.support.machines import Conversation, World, converse, publish, written_conversations


@pytest.mark.parametrize("conversation", written_conversations("contents"))
def test_conversation(conversation: Conversation) -> None:
    assert converse(conversation) == conversation.lines


def waiting(world: World, name: str = "q") -> list[tuple[bytes, bool]]:
    """Body and persistence of all that waits."""
    found = []
    for entry in world.queue(name).ready:
        assert isinstance(entry, Span)
        for at in range(entry.lo, entry.hi):
            found.append((split(entry.batch.contents[at])[1], bool(entry.batch.kinds[at] & PERSISTENT)))
    return found


def test_a_message_keeps_its_own_kind_when_kinds_alternate() -> None:
    """A prefix that is remembered stands for one kind: repeated after a message of the other kind, it must not take
    over that kind, or a persistent message would never reach the disk."""
    world = World()
    client = world.client()
    client.declare("q", durable=True)
    lasting, passing = publish(1, "", "q", b"abc", delivery_mode=2), publish(1, "", "q", b"abc", delivery_mode=1)
    pattern = [lasting, lasting, lasting, passing, lasting, passing, passing, lasting, lasting, passing, lasting]
    client.feed(b"".join(pattern))
    world.turn()
    assert [persistent for _, persistent in waiting(world)] == [each is lasting for each in pattern]


@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_arrives_in_order_and_unharmed(seed: int) -> None:
    random = Random(seed)
    world = World()
    client = world.client(channels=(1, 2))
    for name in ("q", "r", "s"):
        client.declare(name, durable=True)
    client.call(m.QueueBind(queue="q", exchange="amq.fanout"))
    client.call(m.QueueBind(queue="r", exchange="amq.fanout"))
    client.send(m.ConfirmSelect(), channel=2)
    client.take()
    ways = {("", "q"): "q", ("", "r"): "r", ("", "s"): "s", ("amq.fanout", ""): "qr", ("amq.fanout", "k"): "qr"}
    sent, confirms = bytearray(), 0
    expected: dict[str, list[tuple[bytes, bool]]] = {"q": [], "r": [], "s": []}
    for number in range(150):
        mode = random.choice((1, 2))
        body = random.choice((b"", b"x" * random.choice((1, 5)), b"%d" % number, bytes(300)))
        channel = random.choice((1, 1, 2))
        exchange, key = random.choice(list(ways))
        given: dict[str, Any] = {"delivery_mode": mode}
        if random.random() < 0.6:
            given["message_id"] = str(number)
        if random.random() < 0.3:
            given["headers"] = {"trace": Field("S", f"t-{number:04}")}
        count = random.choice((1, 1, 1, 4))
        sent += publish(channel, exchange, key, body, random.choice((131_072, 131_072, 108)), **given) * count
        for name in ways[exchange, key]:
            expected[name] += [(body, mode == 2)] * count
        confirms += count if channel == 2 else 0
        if random.random() < 0.1:
            sent += m.encode(1, m.ChannelFlow(True))
    at = 0
    while at < len(sent):
        size = random.choice((1, 10, 100, 5000))
        client.feed(bytes(sent[at : at + size]))
        at += size
        if random.random() < 0.5:
            world.turn()
    world.turn()
    assert {name: waiting(world, name) for name in expected} == expected
    acks = [reply.method for reply in client.take() if isinstance(reply.method, m.BasicAck)]
    assert acks[-1].delivery_tag == confirms


def test_contents_are_stored_as_if_on_channel_1() -> None:
    world = World()
    client = world.client(channels=(1, 700))
    client.declare("q")
    client.publish("q", b"abc", channel=700)
    client.publish("q", b"", channel=700)
    client.feed(publish(700, "", "q", bytes(200), 100))
    world.turn()
    for entry in world.queue("q").ready:
        assert isinstance(entry, Span)
        assert all(content[1:3] == b"\x00\x01" for content in entry.batch.contents)
    client.consume("q", channel=700)
    assert [(reply.channel, reply.body) for reply in client.take()] == [(700, b"abc"), (700, b""), (700, bytes(200))]


def test_a_content_in_several_frames_takes_the_way_that_is_open_when_it_is_complete() -> None:
    world = World()
    client, other = world.client(), world.client()
    client.send(m.ConfirmSelect())
    client.take()
    other.declare("q", durable=True)
    frames = publish(1, "", "q", bytes(200), 158, mandatory=True, delivery_mode=2)
    client.feed(frames[:100])
    other.call(m.QueueDelete(queue="q"))
    client.feed(frames[100:])
    world.turn()
    assert client.methods() == [m.BasicReturn(312, "NO_ROUTE", "", "q"), m.BasicAck(1, False)]
    other.declare("q", durable=True)
    client.feed(frames)
    world.turn()
    assert world.queue("q").ready_count == 1


def test_a_content_is_given_up_with_its_channel() -> None:
    world = World()
    client = world.client()
    client.feed(publish(1, "", "q", bytes(200), 108)[:-108])
    channel = client.connection.channels[1]
    assert channel.body
    client.send(m.ChannelClose(200, ""))
    assert isinstance(client.methods()[0], m.ConnectionClose)
    assert not channel.body and channel.route is None


def test_a_large_message_is_refused_by_its_header() -> None:
    world = World(Limits(message_bytes_max=1000))
    client = world.client()
    client.declare("q")
    client.publish("q", bytes(1000))
    assert client.take() == []
    for frame_max in (131_072, 508):
        client.feed(publish(1, "", "q", bytes(1001), frame_max))
        world.turn()
        (method,) = client.methods()
        assert isinstance(method, m.ChannelClose)
        assert method.reply_text == "PRECONDITION_FAILED - message size 1001 is larger than configured max size 1000"
        client.send(m.ChannelCloseOk(), m.ChannelOpen())
        client.take()
    assert world.queue("q").ready_count == 1


def test_the_first_properties_are_checked_too() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    header = b"\x00\x3c\x00\x00" + (1).to_bytes(8, "big") + b"\xff\xff"
    client.feed(m.encode(1, m.BasicPublish(routing_key="q")) + frame(HEADER, 1, header) + frame(BODY, 1, b"x"))
    world.turn()
    assert isinstance(client.methods()[0], m.ConnectionClose)
    assert world.queue("q").ready_count == 0


def test_the_text_about_broken_properties_does_not_depend_on_where_they_lay() -> None:
    texts = set()
    for before in (b"", publish(1, "", "q", b"abc") * 3):
        world = World()
        client = world.client()
        client.declare("q")
        header = encode(Properties(), 1)[:-2] + b"\x20\x00\x00\x00\x00\x03\x01aQ"
        client.feed(before + m.encode(1, m.BasicPublish(routing_key="q")))
        client.feed(frame(HEADER, 1, header) + frame(BODY, 1, b"x"))
        world.turn()
        (method,) = client.methods()
        assert isinstance(method, m.ConnectionClose)
        texts.add(method.reply_text)
    assert len(texts) == 1


def test_a_publish_without_arguments_is_refused() -> None:
    world = World()
    for payload in (b"", b"\0", b"\0\0", b"\0\0\0", b"\0\0\0\0", b"\0\0\x05q", b"\xff\xff\xff\xff"):
        client = world.client()
        client.feed(frame(1, 1, b"\x00\x3c\x00\x28" + payload))
        world.turn()
        (method,) = client.methods()
        assert isinstance(method, m.ConnectionClose)
        assert method.reply_text.startswith("FRAME_ERROR - cannot decode <<")


def test_an_impersonator_may_name_somebody_else() -> None:
    world = World()
    user = world.metadata.users["guest"]
    world.apply(c.PutUser("guest", user.password_hash, user.hashing, ("impersonator",)))
    client = world.client()
    client.declare("q")
    client.publish("q", b"abc", user_id="other")
    assert client.take() == [] and world.queue("q").ready_count == 1


def similar(key: str, number: int) -> bytes:
    """A publish that differs from others in its message id only."""
    return publish(1, "", key, b"%04d" % number, message_id=f"m-{number:04}")


def test_similar_messages_and_repeated_ones_go_their_own_ways() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.declare("r")
    repeated = publish(1, "", "q", b"again", reply_to="q")  # No shape is kept of what has an address for replies.
    client.feed(b"".join(similar("r", number) for number in range(3)))
    client.feed(repeated * 3 + similar("r", 3))
    client.feed(repeated * 3)
    world.turn()
    assert [body for body, _ in waiting(world, "q")] == [b"again"] * 6
    assert [body for body, _ in waiting(world, "r")] == [b"0000", b"0001", b"0002", b"0003"]


def test_similar_messages_of_one_route_in_any_pieces() -> None:
    """Shapes, routes and sizes change in the middle of a read, and reads end anywhere."""
    world = World()
    client = world.client()
    client.declare("q", durable=True)
    client.declare("other", durable=True)
    client.send(m.ConfirmSelect())
    client.take()
    sent, expected, others = bytearray(), [], 0
    for number in range(400):
        body = b"%03d" % number * (1 + number % 7)
        given: dict[str, Any] = {"message_id": f"{number:04}", "delivery_mode": 2}
        if number % 50 > 40:
            given["correlation_id"] = f"{number:06}"
        if number % 90 == 89:
            sent += publish(1, "", "other", body, **given)
            others += 1
            continue
        sent += publish(1, "", "q", body, **given)
        expected.append((body, True))
    for at in range(0, len(sent), 997):
        client.feed(bytes(sent[at : at + 997]))
    world.turn()
    assert waiting(world) == expected
    assert len(waiting(world, "other")) == others
    assert client.connection.channels[1].session.confirms is not None
    assert client.connection.channels[1].session.confirms.confirmed == 400
    counters = next(iter(world.broker.vhosts["/"].routes.values())).counters
    assert counters.published_in == counters.published_out == 400


def test_a_known_route_and_shape_need_the_publishers_own_permission() -> None:
    world = World()
    first = world.client()
    first.declare("q")
    first.declare("r")
    user = world.metadata.users["guest"]
    world.apply(c.PutUser("other", user.password_hash, user.hashing, ()))
    world.apply(c.SetPermissions("other", "/", "", "^q$|^amq.default$", ""))
    first.feed(b"".join(similar(key, number) for key in "qr" for number in range(3)))
    second = world.client(user="other")
    second.feed(b"".join(similar("q", number) for number in range(3)))
    world.turn()
    assert world.queue("q").ready_count == 6
    first.call(m.ExchangeDeclare(exchange="x", type="fanout"))
    first.call(m.QueueBind(queue="q", exchange="x"))
    mine = [publish(1, "x", "k", b"abcd", message_id=f"m-{number:04}") for number in range(3)]
    first.feed(b"".join(mine))
    second.feed(similar("q", 3) + similar("q", 4) + mine[0])
    world.turn()
    assert world.queue("q").ready_count == 11
    (method,) = second.methods()
    assert isinstance(method, m.ChannelClose) and method.reply_code == 403


def test_similar_messages_in_a_transaction_wait_for_its_commit() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.feed(b"".join(similar("q", number) for number in range(3)))
    client.call(m.TxSelect())
    client.feed(b"".join(similar("q", number) for number in range(3, 6)))
    world.turn()
    assert world.queue("q").ready_count == 3
    client.call(m.TxCommit())
    assert [body for body, _ in waiting(world)] == [b"%04d" % number for number in range(6)]


@pytest.mark.parametrize("copied", [0, 1, 2, 3])
def test_a_copied_message_among_repeated_ones_keeps_its_place(copied: int) -> None:
    """What looks like the message before is recognised by its bytes; what goes elsewhere must not be taken for it."""
    world = World()
    client = world.client()
    client.declare("q")
    client.declare("r")
    plain = [publish(1, "", "q", b"%d" % number, delivery_mode=2) for number in range(4)]
    headers = {"BCC": Field("A", [Field("S", "r")])}
    plain.insert(copied, publish(1, "", "q", b"c", delivery_mode=2, headers=headers))
    client.feed(b"".join(plain))
    client.consume("q", "q", no_ack=True)
    got = client.take()
    client.consume("r", "r", no_ack=True)
    got += client.take()
    expected = [b"%d" % number for number in range(4)]
    expected.insert(copied, b"c")
    assert [reply.body for reply in got] == [*expected, b"c"]
    assert [reply.properties.headers for reply in got if reply.properties and reply.body == b"c"] == [{}, {}]


def test_copies_need_topic_permissions_for_every_key() -> None:
    world = World()
    client = world.client()
    world.apply(c.SetTopicPermissions("guest", "/", "amq.topic", "^a", "^b"))
    client.publish("a.1", exchange="amq.topic", headers={"CC": Field("A", [Field("S", "a.2")])})
    assert client.methods() == []
    client.publish("a.1", exchange="amq.topic", headers={"CC": Field("A", [Field("S", "b.2")])})
    (method,) = client.methods()
    assert isinstance(method, m.ChannelClose) and method.reply_code == 403 and "topic 'b.2'" in method.reply_text


def test_confirms_wait_for_the_disk_only_where_there_is_something_to_keep() -> None:
    world = World()
    world.holds_disk = True
    client = world.client()
    client.declare("lasting", durable=True)
    client.declare("passing")
    client.send(m.ConfirmSelect())
    client.take()
    client.publish("passing", b"1", delivery_mode=2)
    assert client.methods() == [m.BasicAck(1, False)]
    client.publish("lasting", b"2", delivery_mode=1)
    assert client.methods() == [m.BasicAck(2, False)]
    client.publish("lasting", b"3", delivery_mode=2)
    client.publish("lasting", b"4", delivery_mode=2)
    client.publish("passing", b"5", delivery_mode=2)
    assert client.methods() == [m.BasicAck(5, False)]
    world.sync()
    world.turn()
    assert client.methods() == [m.BasicAck(4, True)]


def test_a_message_for_several_queues_is_confirmed_once() -> None:
    world = World()
    world.holds_disk = True
    client = world.client()
    for name in ("a", "b", "c"):
        client.declare(name, durable=name != "c")
        client.call(m.QueueBind(queue=name, exchange="amq.fanout"))
    client.send(m.ConfirmSelect())
    client.take()
    client.publish("", b"x", exchange="amq.fanout", delivery_mode=2)
    assert client.take() == []
    world.sync()
    world.turn()
    assert client.methods() == [m.BasicAck(1, False)]
    assert [world.queue(name).ready_count for name in "abc"] == [1, 1, 1]
