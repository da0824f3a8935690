"""The connection machine: frames, channels, waiting, errors and the end."""

from __future__ import annotations

import pytest

from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.frames import HEARTBEAT_FRAME
from leveret.sessions.amqp.connection import Life
from tests.support.machines import (
    ALL_CAPABILITIES,
    Client,
    Conversation,
    World,
    converse,
    hello,
    publish,
    written_conversations,
)


def test_an_updated_secret_is_noted() -> None:
    """What the client says is no line of the log by itself."""
    world = World()
    client = world.client()
    assert client.call(m.ConnectionUpdateSecret(b"another", "why\nnot"), channel=0) == m.ConnectionUpdateSecretOk()
    name = "<node.1.1.0> (127.0.0.1:40000 -> 127.0.0.1:5672)"
    text = f"connection {name}: user 'guest' updated secret, reason: 'why\\nnot'"
    assert world.notes[-1] == ("connection", "info", text)


@pytest.mark.parametrize("conversation", written_conversations("connection"))
def test_conversation(conversation: Conversation) -> None:
    assert converse(conversation) == conversation.lines


def names(methods: list[m.Method | None]) -> list[str]:
    return [type(method).__name__ for method in methods]


# -- Pieces --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 5, 7, 8, 64])
def test_where_the_network_cuts_the_bytes_does_not_matter(size: int) -> None:
    sent = (
        m.encode(1, m.QueueDeclare(queue="q"))
        + publish(1, "", "q", b"one") * 3
        + publish(1, "", "q", bytes(200), 100)
        + HEARTBEAT_FRAME
        + publish(1, "", "q", b"")
        + m.encode(1, m.QueueDeclare(queue="q", passive=True))
    )
    world = World()
    client = world.client()
    for at in range(0, len(sent), size):
        client.feed(sent[at : at + size])
        assert len(client.connection.rest) <= len(sent)
    world.turn()
    assert client.methods() == [m.QueueDeclareOk("q", 0, 0), m.QueueDeclareOk("q", 5, 0)]
    assert client.connection.rest == b""


# -- Waiting -------------------------------------------------------------------------------------------------------


def test_an_exclusive_queue_is_not_left_behind_by_a_client_that_did_not_wait_for_it() -> None:
    world = World()
    client = world.client()
    world.holds_metadata = True
    client.send(m.QueueDeclare(queue="q", exclusive=True))
    client.lose()
    world.release_metadata()
    world.turn()
    assert not world.metadata.queues


def test_a_shared_queue_stays_when_its_client_did_not_wait_for_it() -> None:
    world = World()
    client = world.client()
    world.holds_metadata = True
    client.send(m.QueueDeclare(queue="q"))
    client.lose()
    world.release_metadata()
    assert [name for _, name in world.metadata.queues] == ["q"]


def test_a_connection_that_is_closed_while_held() -> None:
    world = World()
    client = world.client()
    world.holds_metadata = True
    client.send(m.QueueDeclare(queue="q", exclusive=True))
    client.connection.close(320, "broker forced connection closure with reason 'shutdown'")
    world.release_metadata()
    world.turn()
    assert names(client.methods()) == ["ConnectionClose"]
    assert not world.metadata.queues
    client.send(m.ConnectionCloseOk(), channel=0)
    assert client.connection.closed


def test_a_refusal_that_comes_late_closes_the_channel() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    world.holds_metadata = True
    client.send(m.QueueBind(queue="q", exchange="amq.direct"))
    world.apply(c.DeleteQueue("/", "q", None))
    world.release_metadata()
    world.turn()
    (method,) = client.methods()
    assert method == m.ChannelClose(404, "NOT_FOUND - no queue 'q' in vhost '/'", 50, 20)
    assert not client.connection.held


@pytest.mark.parametrize(
    "question", [m.QueueDeclare(queue="q", auto_delete=True), m.BasicConsume(queue="q"), m.BasicGet(queue="q")]
)
def test_a_queue_that_is_about_to_go_with_its_last_consumer_is_nobodys(question: m.Method) -> None:
    """Whoever asks for the queue then finds none, or declares another one. The end of the consumer is told after it."""
    world = World()
    client, other = world.client(), world.client()
    client.declare("q", auto_delete=True)
    first = world.queue("q").spec.id
    client.consume("q")
    world.holds_metadata = True
    client.send(m.BasicCancel(consumer_tag="c"))
    other.send(question, m.QueueBind(queue="q", exchange="amq.direct"))
    world.turn()
    assert client.take() == other.take() == []
    world.release_metadata()
    world.turn()
    assert client.methods() == [m.BasicCancelOk("c")]
    if isinstance(question, m.QueueDeclare):
        assert other.methods() == [m.QueueDeclareOk("q", 0, 0), m.QueueBindOk()]
        assert world.queue("q").spec.id != first
    else:
        (method,) = other.methods()
        assert isinstance(method, m.ChannelClose)
        assert (method.reply_code, method.reply_text) == (404, "NOT_FOUND - no queue 'q' in vhost '/'")


@pytest.mark.parametrize("exchange", ["", "amq.fanout", "amq.headers"])
def test_nothing_is_published_to_a_queue_that_goes_with_its_last_consumer(exchange: str) -> None:
    """It would be lost there: so it is returned, and whatever other queues it leads to have it."""
    world = World()
    client, consumer = world.client(), world.client()
    client.declare("q", auto_delete=True)
    client.declare("other")
    for queue in ("q", "other"):
        client.call(m.QueueBind(queue=queue, exchange="amq.fanout"))
    client.call(m.QueueBind(queue="q", exchange="amq.headers"))
    consumer.consume("q")
    client.feed(publish(1, exchange, "q", b"first", mandatory=True))  # The route is known from now on.
    world.turn()
    consumer.take()
    world.holds_metadata = True
    consumer.send(m.BasicCancel(consumer_tag="c"))
    client.feed(publish(1, exchange, "q", b"second", mandatory=True))
    world.turn()
    answers = [reply.method for reply in client.take()]
    assert answers == ([] if exchange == "amq.fanout" else [m.BasicReturn(312, "NO_ROUTE", exchange, "q")])
    assert world.queue("other").ready_count == (2 if exchange == "amq.fanout" else 0)
    world.release_metadata()
    world.turn()
    assert consumer.methods() == [m.BasicCancelOk("c")]
    assert ("/", "q") not in world.metadata.queues
    assert not world.broker.vhosts["/"].deleting


def test_exchanges_are_gone_with_an_auto_delete_queue_when_its_last_consumer_is() -> None:
    world = World()
    client = world.client()
    client.call(m.ExchangeDeclare(exchange="x", type="fanout", auto_delete=True))
    client.declare("q", auto_delete=True)
    client.call(m.QueueBind(queue="q", exchange="x"))
    client.consume("q")
    world.holds_metadata = True
    client.feed(m.encode(1, m.BasicCancel(consumer_tag="c")) + publish(1, "x", "", b"late"))
    world.turn()
    assert client.take() == []
    world.release_metadata()
    world.turn()
    cancelled, closed = client.methods()
    assert cancelled == m.BasicCancelOk("c")
    assert isinstance(closed, m.ChannelClose) and closed.reply_text == "NOT_FOUND - no exchange 'x' in vhost '/'"


@pytest.mark.parametrize("ending", ["channel", "connection"])
def test_a_channel_that_ends_while_its_auto_delete_queue_goes(ending: str) -> None:
    world = World()
    client = world.client()
    client.declare("q", auto_delete=True)
    client.consume("q")
    world.holds_metadata = True
    client.send(m.BasicCancel(consumer_tag="c"))
    world.turn()
    client.lose() if ending == "connection" else client.send(m.ChannelClose(200, "", 0, 0))
    world.turn()
    world.release_metadata()
    world.turn()
    assert ("/", "q") not in world.metadata.queues
    if ending == "channel":
        assert client.methods() == [m.BasicCancelOk("c"), m.ChannelCloseOk()]


def test_a_last_consumer_is_cancelled_at_once_without_a_majority() -> None:
    """The queue goes when the majority is back."""
    world = World()
    client = world.client()
    client.declare("q", auto_delete=True)
    client.consume("q")
    world.broker.mirrors.majority = False
    world.holds_metadata = True
    assert client.call(m.BasicCancel(consumer_tag="c")) == m.BasicCancelOk("c")
    world.release_metadata()
    world.turn()
    assert ("/", "q") not in world.metadata.queues


# -- Errors --------------------------------------------------------------------------------------------------------


def test_after_an_error_all_is_overheard_until_the_close_is_answered() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    more = publish(1, "", "q", b"abc")
    client.feed(publish(1, "", "q", b"abc") + m.encode(1, m.ChannelOpen()) + more + more[:9])
    world.turn()
    assert names(client.methods()) == ["ConnectionClose"]
    client.feed(more[9:] + m.encode(0, m.ConnectionCloseOk()))
    world.turn()
    assert client.connection.closed and client.take() == []
    assert world.queue("q").ready_count == 1


def test_half_a_frame_is_not_lost_when_the_broker_closes_the_connection() -> None:
    world = World()
    client = world.client()
    half = m.encode(1, m.QueueDeclare(queue="q"))
    client.feed(half[:10])
    client.connection.close(320, "bye")
    client.feed(half[10:])
    world.turn()
    assert names(client.methods()) == ["ConnectionClose"] and not client.connection.closed
    client.send(m.ConnectionCloseOk(), channel=0)
    assert client.connection.closed
    assert not world.metadata.queues


def test_publishes_before_a_broken_frame_count() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    client.feed(publish(1, "", "q", b"abc") * 5 + b"\x01\x00\x01\x00\x00\x00\x00\xcd")
    world.turn()
    assert names(client.methods()) == ["ConnectionClose"]
    assert world.queue("q").ready_count == 5


def test_a_text_for_people_is_utf8_whatever_came_in() -> None:
    world = World()
    client = world.client()
    client.feed(publish(1, "no\udcff", "k", b""))
    world.turn()
    (method,) = client.methods()
    assert isinstance(method, m.ChannelClose)
    assert method.reply_text == "NOT_FOUND - no exchange 'no?' in vhost '/'"


def test_an_error_on_one_channel_leaves_the_others_alone() -> None:
    world = World()
    client = world.client(channels=(1, 2))
    client.declare("q")
    client.consume("q", channel=2)
    client.send(m.BasicAck(1))
    client.publish("q", b"abc", channel=2)
    assert names(client.methods()) == ["ChannelClose", "BasicDeliver"]


# -- The end -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["close", "lose", "broker", "error"])
def test_however_it_ends_nothing_is_left_of_it(end: str) -> None:
    world = World()
    client = world.client(channels=(1, 2))
    client.declare("x", exclusive=True)
    client.declare("q")
    client.consume("q", channel=2)
    client.publish("q", b"abc")
    client.publish("x", b"abc")
    client.feed(publish(1, "", "q", bytes(100), 58)[:-58])  # Half of a content.
    assert (world.queue("q").unacked_count, len(world.queue("q").consumers)) == (1, 1)
    if end == "close":
        client.send(m.ConnectionClose(200, "bye"), channel=0)
        assert names(client.methods())[-1] == "ConnectionCloseOk"
    elif end == "lose":
        client.lose()
    elif end == "broker":
        client.connection.close(320, "bye")
    else:
        client.send(m.ChannelOpen(), channel=2)
    world.turn()
    queue = world.queue("q")
    assert (queue.unacked_count, queue.ready_count, len(queue.consumers)) == (0, 1, 0)
    assert list(world.broker.vhosts["/"].queues) == ["q"]
    assert not client.connection.channels
    client.lose()
    assert client.connection.closed and client.connection not in world.broker.connections
    queue.purge()
    assert world.broker.content_bytes == 0


def test_a_deleted_vhost_closes_its_connections() -> None:
    world = World()
    client = world.client()
    world.apply(c.DeleteVhost("/"))
    world.turn()
    assert client.methods() == [m.ConnectionClose(320, "CONNECTION_FORCED - vhost deleted", 0, 0)]


def test_a_deleted_user_is_sent_away() -> None:
    world = World()
    client = world.client()
    world.apply(c.DeleteUser("guest"))
    world.turn()
    assert client.methods() == [m.ConnectionClose(320, "CONNECTION_FORCED - user 'guest' is deleted", 0, 0)]


# -- Heartbeats and alarms -----------------------------------------------------------------------------------------


def test_heartbeats_are_sent_in_silence_and_missed_ones_noticed() -> None:
    world = World()
    client = world.client(heartbeat=10)
    connection = client.connection
    connection.output.was_used()
    sent_at, alive_until = [], 0
    for now_ms in range(0, 40_000, 1000):
        if not connection.on_tick(now_ms):
            break
        alive_until = now_ms
        world.turn()
        if client.take():
            sent_at.append(now_ms)
    assert sent_at and max(b - a for a, b in zip([0, *sent_at], sent_at, strict=False)) <= 10_000
    assert 19_000 <= alive_until <= 31_000


@pytest.mark.parametrize("first_ms", [1, 400, 999])
def test_a_beat_each_second_begins_with_the_first_tick(first_ms: int) -> None:
    """However soon that comes after the connection was opened: the next one would be too late."""
    world = World()
    client = world.client(heartbeat=1)
    client.take()
    for now_ms in (first_ms, first_ms + 1000):
        assert client.connection.on_tick(world.broker.now_ms + now_ms)
        world.turn()
        assert client.take()


def test_no_heartbeats_if_the_client_wants_none() -> None:
    world = World()
    client = world.client(heartbeat=0)
    assert all(client.connection.on_tick(now_ms) for now_ms in range(0, 1_000_000, 1000))
    world.turn()
    assert client.take() == []


def test_a_client_that_sends_stays_alive() -> None:
    world = World()
    client = world.client(heartbeat=2)
    for now_ms in range(0, 60_000, 1000):
        client.feed(HEARTBEAT_FRAME)
        assert client.connection.on_tick(now_ms)


def test_a_node_that_was_held_up_does_not_take_its_own_sleep_for_the_silence_of_clients() -> None:
    """What they sent meanwhile is read after the tick that is late, or a little after that."""
    world = World()
    client = world.client(heartbeat=2)
    now_ms = 0
    for slept_ms in (4_000, 60_000, 3_600_000):
        assert client.connection.on_tick(now_ms := now_ms + 1_000)  # All that came is read.
        assert client.connection.on_tick(now_ms := now_ms + slept_ms)
        client.feed(HEARTBEAT_FRAME)
        assert client.connection.on_tick(now_ms := now_ms + 1_000)
    assert [client.connection.on_tick(now_ms + more_ms) for more_ms in (60_000, 61_000, 62_000)] == [True, True, False]


def test_who_is_not_listened_to_is_not_silent() -> None:
    world = World()
    client = world.client(heartbeat=1)
    assert all(client.connection.on_tick(now_ms, listening=False) for now_ms in range(0, 60_000, 1000))
    assert [client.connection.on_tick(now_ms) for now_ms in (60_000, 61_000)] == [True, False]


def test_alarms_are_told_to_those_who_understand() -> None:
    world = World()
    told, untold = world.client(), world.client(capabilities={})
    world.broker.alarm = "low on memory"
    for client in (told, untold):
        client.publish("nowhere")
    world.broker.alarm = None
    for client in (told, untold):
        client.connection.unblock()
    world.turn()
    assert told.methods() == [m.ConnectionBlocked("low on memory"), m.ConnectionUnblocked()]
    assert untold.methods() == []


def test_during_an_alarm_a_connection_goes_on_until_it_publishes() -> None:
    """As RabbitMQ does: who has published before is not told, and may get, acknowledge and declare."""
    world = World()
    client = world.client()
    client.declare("q")
    client.publish("q", b"1")
    world.broker.alarm = "low on memory"
    assert client.take() == []
    client.send(m.BasicGet(queue="q"))
    assert client.bodies() == [b"1"]
    client.send(m.BasicAck(1))
    assert client.call(m.QueueDeclare(queue="q", passive=True)) == m.QueueDeclareOk("q", 0, 0)
    assert not client.connection.blocked and not client.connection.held
    client.feed(m.encode(1, m.QueueDeclare(queue="q", passive=True)) + publish(1, "", "q", b"2"))
    client.feed(m.encode(1, m.BasicGet(queue="q", no_ack=True)))
    world.turn()
    assert client.methods() == [m.QueueDeclareOk("q", 0, 0), m.ConnectionBlocked("low on memory")]
    assert client.connection.blocked and client.connection.held and world.queue("q").ready_count == 0
    world.broker.alarm = None
    client.connection.unblock()
    world.turn()
    unblocked, got = client.take()
    assert unblocked.method == m.ConnectionUnblocked() and got.body == b"2"
    assert not client.connection.held and client.connection.rest == b""


@pytest.mark.parametrize("size", [1, 5, 7, 64, 10_000])
@pytest.mark.parametrize("frame_max", [131_072, 108])
def test_what_waits_for_the_end_of_an_alarm_is_kept_in_order(size: int, frame_max: int) -> None:
    """However the network cuts it, and whether or not the first publish was under way when the alarm began."""
    bodies = [b"%03d" % number * 100 for number in range(20)]
    messages = b"".join(publish(1, "", "q", body, frame_max) for body in bodies)
    for begun in (0, 30, 60, 400):
        world = World()
        client = world.client()
        client.declare("q")
        client.feed(messages[:begun])
        world.turn()
        before = world.queue("q").ready_count
        world.broker.alarm = "low on disk"
        for at in range(begun, len(messages), size):
            client.feed(messages[at : at + size])
        client.feed(m.encode(1, m.QueueDeclare(queue="q", passive=True)))
        world.turn()
        assert client.methods() == [m.ConnectionBlocked("low on disk")]
        assert world.queue("q").ready_count == before
        world.broker.alarm = None
        client.connection.unblock()
        world.turn()
        assert client.methods() == [m.ConnectionUnblocked(), m.QueueDeclareOk("q", 20, 0)]
        client.consume("q", no_ack=True)
        assert client.bodies() == bodies


def test_a_client_that_publishes_with_its_first_bytes_is_blocked() -> None:
    world = World()
    world.broker.alarm = "low on memory"
    client = Client(world)
    words = hello("guest", "guest", "/", ALL_CAPABILITIES, 131_072, 2047, 0, (1,))
    client.feed(words + publish(1, "", "q", b"x"))
    world.turn()
    assert names(client.methods())[-2:] == ["ChannelOpenOk", "ConnectionBlocked"]


def test_a_publish_before_the_vhost_is_open_is_refused_during_an_alarm_too() -> None:
    world = World()
    world.broker.alarm = "low on memory"
    client = Client(world)
    client.feed(b"AMQP\x00\x00\x09\x01" + publish(1, "", "q", b"x"))
    world.turn()
    assert names(client.methods()) == ["ConnectionStart", "ConnectionClose"]


def test_a_blocked_connection_that_is_closed_hears_its_answer() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    world.broker.alarm = "low on memory"
    client.feed(publish(1, "", "q", b"x") + m.encode(0, m.ConnectionCloseOk()))
    client.connection.close(320, "broker forced connection closure with reason 'shutdown'")
    world.turn()
    assert names(client.methods()) == ["ConnectionBlocked", "ConnectionClose"]
    assert client.connection.closed and world.queue("q").ready_count == 0


def test_a_blocked_connection_is_not_silent() -> None:
    world = World()
    client = world.client(heartbeat=1)
    world.broker.alarm = "low on memory"
    client.publish("nowhere")
    assert all(client.connection.on_tick(now_ms) for now_ms in range(0, 60_000, 1000))


def test_who_asked_for_the_end() -> None:
    """The client closes its socket itself if it asked, also if both asked at once; otherwise the broker does."""
    world = World()
    asking, crossing, told, stranger = world.client(), world.client(), world.client(), Client(world)
    asking.send(m.ConnectionClose(200, "bye"), channel=0)
    for client in (crossing, told):
        client.connection.close(320, "shutdown")
    crossing.send(m.ConnectionClose(200, "bye"), channel=0)
    told.send(m.ConnectionCloseOk(), channel=0)
    stranger.feed(b"GET / HTTP/1.1")
    clients = (asking, crossing, told, stranger)
    assert all(client.connection.closed for client in clients)
    assert [client.connection.was_asked_to_close for client in clients] == [True, True, False, False]


def test_the_life_of_a_connection_goes_one_way() -> None:
    connection = World().client().connection
    lives = [connection.life]
    connection.close(320, "bye")
    lives.append(connection.life)
    assert connection.closing and not connection.closed
    connection.on_socket_lost()
    lives.append(connection.life)
    assert connection.closed and lives == [Life.RUNNING, Life.CLOSING, Life.CLOSED]
    for life in Life:
        with pytest.raises(AssertionError):
            connection._become(life)
