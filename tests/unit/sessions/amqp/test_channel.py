"""Methods of a channel: queues, exchanges, bindings, and who may do what."""

from __future__ import annotations

import pytest

from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.tables import Field
from tests.support.machines import Conversation, World, converse, publish, written_conversations


@pytest.mark.parametrize("conversation", written_conversations("queues"))
def test_queues(conversation: Conversation) -> None:
    assert converse(conversation) == conversation.lines


@pytest.mark.parametrize("conversation", written_conversations("exchanges"))
def test_exchanges(conversation: Conversation) -> None:
    assert converse(conversation) == conversation.lines


@pytest.mark.parametrize("conversation", written_conversations("one-write"))
def test_several_things_in_one_write(conversation: Conversation) -> None:
    assert converse(conversation) == conversation.lines


@pytest.mark.parametrize("conversation", written_conversations("routes"))
def test_routes(conversation: Conversation) -> None:
    assert converse(conversation) == conversation.lines


# -- Permissions ---------------------------------------------------------------------------------------------------

QUEUE = "queue 'q' in vhost '/'"
EXCHANGE = "exchange 'x' in vhost '/'"


@pytest.mark.parametrize(
    ("method", "missing", "refused"),
    [
        (m.QueueDeclare(queue="q"), "configure", QUEUE),
        (m.QueueDeclare(queue="q", passive=True), None, QUEUE),
        (m.QueueDelete(queue="q"), "configure", QUEUE),
        (m.QueuePurge(queue="q"), "read", QUEUE),
        (m.QueueBind(queue="q", exchange="x"), "write", QUEUE),
        (m.QueueBind(queue="q", exchange="x"), "read", EXCHANGE),
        (m.QueueUnbind(queue="q", exchange="x"), "write", QUEUE),
        (m.QueueUnbind(queue="q", exchange="x"), "read", EXCHANGE),
        (m.BasicConsume(queue="q", consumer_tag="c"), "read", QUEUE),
        (m.BasicGet(queue="q"), "read", QUEUE),
        (m.ExchangeDeclare(exchange="x", type="direct"), "configure", EXCHANGE),
        (m.ExchangeDeclare(exchange="x", passive=True), None, EXCHANGE),
        (m.ExchangeDelete(exchange="x"), "configure", EXCHANGE),
        (m.ExchangeBind(destination="x", source="amq.direct"), "write", EXCHANGE),
        (m.ExchangeBind(destination="amq.direct", source="x"), "read", EXCHANGE),
        (m.ExchangeUnbind(destination="x", source="amq.direct"), "write", EXCHANGE),
        (m.ExchangeUnbind(destination="amq.direct", source="x"), "read", EXCHANGE),
    ],
    ids=lambda value: value.name if isinstance(value, m.Method) else value,
)
def test_permissions(method: m.Method, missing: str | None, refused: str) -> None:
    """Refused in this way without just this permission."""
    hidden = "^[^qx]*$"  # Finds all names but those of the two.
    for withheld in ("configure", "write", "read"):
        world = World()
        client = world.client()
        client.declare("q")
        client.call(m.ExchangeDeclare(exchange="x", type="direct"))
        patterns = {name: hidden if name == withheld else ".*" for name in ("configure", "write", "read")}
        world.apply(c.SetPermissions("guest", "/", **patterns))
        answer = client.call(method)
        text = f"ACCESS_REFUSED - access to {refused} refused for user 'guest'"
        closed = m.ChannelClose(403, text, method.class_id, method.method_id)
        assert (answer == closed) == (withheld == missing)


def test_publishing_needs_write_on_the_exchange() -> None:
    world = World()
    world.apply(c.SetPermissions("guest", "/", ".*", "^$", ".*"))
    client = world.client()
    client.publish("k", exchange="amq.direct")
    text = "ACCESS_REFUSED - access to exchange 'amq.direct' in vhost '/' refused for user 'guest'"
    assert client.methods() == [m.ChannelClose(403, text, 60, 40)]


def test_topic_permissions() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    world.apply(c.SetTopicPermissions("guest", "/", "amq.topic", "^a", "^b"))
    client.publish("a.1", exchange="amq.topic")
    assert client.call(m.QueueBind(queue="q", exchange="amq.topic", routing_key="b.1")) == m.QueueBindOk()
    client.publish("b.1", exchange="amq.topic")
    (method,) = client.methods()
    assert isinstance(method, m.ChannelClose)
    assert method.reply_text == (
        "ACCESS_REFUSED - access to topic 'b.1' in exchange 'amq.topic' in vhost '/' refused for user 'guest'"
    )


def test_an_alternate_exchange_needs_permissions_on_both() -> None:
    arguments = {"alternate-exchange": Field("S", "amq.fanout")}
    for patterns, refused in (((".*", ".*", "^$"), "x"), ((".*", "^$", ".*"), "amq.fanout")):
        world = World()
        world.apply(c.SetPermissions("guest", "/", *patterns))
        answer = world.client().call(m.ExchangeDeclare(exchange="x", type="direct", arguments=arguments))
        assert isinstance(answer, m.ChannelClose)
        assert answer.reply_text == (
            f"ACCESS_REFUSED - access to exchange '{refused}' in vhost '/' refused for user 'guest'"
        )


# -- What this version does not do, it refuses ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["quorum", "stream", "other"])
def test_queues_of_other_types_are_refused(kind: str) -> None:
    answer = World().client().call(m.QueueDeclare(queue="q", arguments={"x-queue-type": Field("S", kind)}))
    assert isinstance(answer, m.ChannelClose) and answer.reply_code == 406


def test_classic_is_what_a_queue_is() -> None:
    world = World()
    client = world.client()
    client.declare("q", arguments={"x-queue-type": Field("S", "classic")})
    client.declare("q")


# -- The rest ------------------------------------------------------------------------------------------------------


def test_the_limit_of_queues() -> None:
    world = World()
    world.apply(c.SetVhostLimits("/", {"max-queues": 1}))
    client = world.client()
    client.declare("one")
    answer = client.call(m.QueueDeclare(queue="two"))
    text = "PRECONDITION_FAILED - cannot declare queue 'two': queue limit in vhost '/' (1) is reached"
    assert answer == m.ChannelClose(406, text, 50, 10)


def test_a_slow_consumer_loses_its_channel() -> None:
    world = World()
    client = world.client(channels=(1, 2))
    client.declare("q")
    client.publish("q", b"abc")
    world.broker.now_ms = 1000
    client.send(m.BasicGet(queue="q"), channel=2)
    client.take()
    world.broker.now_ms = 31_000
    world.broker.end_slow_channels(30_000)
    assert client.take() == []
    world.broker.now_ms = 31_001
    world.broker.end_slow_channels(30_000)
    world.turn()
    (reply,) = client.take()
    assert isinstance(reply.method, m.ChannelClose) and reply.channel == 2
    assert reply.method.reply_text == (
        "PRECONDITION_FAILED - delivery acknowledgement on channel 2 timed out. Timeout value used: 30000 ms. "
        "This timeout value can be configured, see consumers doc guide to learn more"
    )
    assert world.queue("q").ready_count == 1


def test_publishes_of_a_channel_that_closed_are_not_taken_for_another() -> None:
    world = World()
    client = world.client(channels=(1, 2))
    client.declare("q")
    one = publish(1, "", "q", b"abc")
    client.feed(one * 3 + m.encode(1, m.ChannelClose(200, "")) + one)
    world.turn()
    names = [type(method).__name__ for method in client.methods()]
    assert names == ["ChannelCloseOk", "ConnectionClose"]
    assert world.queue("q").ready_count == 3


def test_who_asks_for_much_at_once_gets_it_turn_by_turn() -> None:
    """A thousand gets in one read must not make a thousand large answers in one turn's memory."""
    world = World()
    client = world.client()
    client.declare("q")
    for _ in range(40):
        client.publish("q", b"x" * 100_000)
    most = 0
    flush = client.flush

    def watched() -> None:
        nonlocal most
        most = max(most, sum(map(len, client.connection.output.pieces)))
        flush()

    client.flush = watched  # type: ignore[method-assign]
    client.feed(b"".join(m.encode(1, m.BasicGet(queue="q", no_ack=True)) for _ in range(40)))
    world.turn()
    assert len(client.bodies()) == 40
    assert most < 1_500_000
