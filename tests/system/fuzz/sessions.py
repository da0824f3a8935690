"""Mutated conversations with the connection machine.

Whatever comes, `receive` raises nothing. Afterwards the connection runs, or is being closed with a proper
connection.close, or is closed; what it holds of the input is bounded; what it answered a strict client can read. When
it is gone, nothing of it is left in the broker: no consumer, no delivery, and no content once the queues are empty.

Each input is fed twice, whole and in pieces, and must be answered the same: where the network cuts the bytes is no
business of the protocol. A publish takes another way through the machine when it arrives in pieces, so this compares
the two ways.
"""

from __future__ import annotations

from typing import Final

from leveret.broker.delivery.batch import Gap, Span
from leveret.broker.routing.reply_address import ADDRESS
from leveret.protocol import methods as m
from leveret.protocol.frames import BODY, HEADER, HEARTBEAT_FRAME, frame
from leveret.protocol.properties import Properties, encode
from leveret.protocol.tables import Field
from leveret.sessions.amqp.limits import Limits
from tests.support.machines import Client, Reader, World, hello, publish
from tests.system.fuzz.fuzzer import Target

LIMITS: Final = Limits(frame_max=4096, initial_frame_max=4096, channel_max=4, message_bytes_max=6000)
PIECES: Final = (1, 2, 3, 7, 11, 50)
HELLO: Final = hello("guest", "guest", "/", {"basic.nack": True}, 4096, 4, 0, ())


class Closed(Exception):
    """The machine closed the connection, as it should."""


def run_greeted(data: bytes) -> None:
    """From the first byte on."""
    _run(data, b"")


def run_session(data: bytes) -> None:
    """On a connection with two channels, next to another one that consumes."""
    _run(data, HELLO + m.encode(1, m.ChannelOpen()) + m.encode(2, m.ChannelOpen()))


def _run(data: bytes, before: bytes) -> None:
    whole = _Session(before)
    whole.feed(data)
    pieces = _Session(before)
    size = PIECES[len(data) % len(PIECES)]
    for at in range(0, len(data), size):
        pieces.feed(data[at : at + size])
    assert whole.answers() == pieces.answers(), "the pieces were answered otherwise"
    closing = whole.client.connection.closing or whole.client.connection.closed
    if not closing:  # Where the next frame begins after one that is none, nobody knows.
        assert whole.state() == pieces.state(), "the pieces left something else behind"
    for session in (whole, pieces):
        session.finish()
    if closing:
        raise Closed


class _Session:
    def __init__(self, before: bytes) -> None:
        self.world = World(LIMITS)
        self.other = self.world.client(frame_max=4096, channel_max=4)
        self.other.feed(
            m.encode(1, m.QueueDeclare(queue="q", durable=True))
            + m.encode(1, m.QueueDeclare(queue="t"))
            + m.encode(1, m.BasicQos(prefetch_count=2))
            + m.encode(1, m.BasicConsume(queue="q", consumer_tag="c"))
        )
        self.client = Client(self.world)
        self.client.feed(before)
        self.world.turn()
        self.client.take()
        self.out: list[bytes] = []

    def feed(self, data: bytes) -> None:
        connection = self.client.connection
        connection.receive(data)
        self.out = connection.output.pieces  # Kept until the end: deliveries come in the turn.
        assert len(connection.rest) <= 3 * (LIMITS.frame_max + 8), "the input piles up"
        for channel in connection.channels.values():
            assert sum(map(len, channel.body)) <= 2 * LIMITS.message_bytes_max + LIMITS.frame_max
        assert not connection.contents and not connection.bundles, "publishes were left behind"

    def answers(self) -> list[str]:
        """All that was said before the connection was closed."""
        said: list[str] = []
        for reply in Reader().feed(b"".join(self.out)):
            said.append(str(reply))
            if isinstance(reply.method, m.ConnectionClose):
                break
        return said

    def state(self) -> object:
        connection = self.client.connection
        queues = {name: self.world.queue(name) for name in self.world.broker.vhosts["/"].queues}
        waiting = {name: [_kinds(entry) for entry in queue.ready] for name, queue in queues.items()}
        counts = {name: (queue.ready_count, queue.unacked_count) for name, queue in queues.items()}
        return connection.rest, counts, {name: b"".join(kinds) for name, kinds in waiting.items()}

    def finish(self) -> None:
        world, connection = self.world, self.client.connection
        world.turn()
        methods = [reply.method for reply in self.client.take()]
        assert not self.client.reader.data, "half a frame was sent"
        closes = [method for method in methods if isinstance(method, m.ConnectionClose)]
        assert len(closes) == (1 if connection.closing else 0)
        self.client.lose()
        assert connection.closed and not connection.channels
        assert connection.login is None or not connection.login.exclusive_queues
        assert connection not in world.broker.clients
        assert all(session.client is not connection for session in world.broker.sessions)
        assert connection not in world.broker.connections
        self.other.lose()
        for name in world.broker.vhosts["/"].queues:
            queue = world.queue(name)
            assert not queue.consumers and not queue.unacked_count
            queue.purge()
        world.turn()
        assert world.broker.content_bytes == 0, "contents are counted that nobody has"
        assert not any(world.log.queues.values()), "the log holds what is settled"


def _kinds(entry: Span | Gap) -> bytes:
    assert isinstance(entry, Span)  # Nothing was paged out.
    return bytes(entry.batch.kinds[entry.lo : entry.hi])


def _sent(*methods: m.Method, channel: int = 1) -> bytes:
    return b"".join(m.encode(channel, method) for method in methods)


def _in_frames(channel: int, key: str, body: bytes, size: int, **properties: object) -> bytes:
    """A publish whose body comes in frames of `size`."""
    header = encode(Properties(**properties), len(body))  # type: ignore[arg-type]
    parts = [frame(BODY, channel, body[at : at + size]) for at in range(0, len(body), size)]
    return _sent(m.BasicPublish(routing_key=key), channel=channel) + frame(HEADER, channel, header) + b"".join(parts)


_HEADERS: Final = {"a": Field("I", 1), "s": Field("S", "x"), "t": Field("F", {"u": Field("V", None)})}
_PUBLISHES: Final = b"".join(
    [
        publish(1, "", "q", b"one", delivery_mode=2),
        publish(1, "", "q", b"two", delivery_mode=2),
        publish(1, "", "q", b"six", delivery_mode=2),
        publish(1, "", "q", b"", delivery_mode=1),
        publish(1, "", "q", b"two", delivery_mode=2),
        publish(1, "", "q", b"two", delivery_mode=1),
        publish(1, "", "q", b"two", delivery_mode=1),
        publish(2, "", "t", b"abc", user_id="guest"),
        publish(2, "", "t", b"abc", headers=_HEADERS, content_type="text/plain", message_id="m"),
        publish(1, "", "none", b"returned", mandatory=True),
    ]
)
_INBOX: Final = f"{ADDRESS}.{'1'.zfill(22)}.node"  # That of the first who asks in such a world.
SESSIONS: Final = [
    _PUBLISHES,
    _sent(m.ConfirmSelect()) + _PUBLISHES + _sent(m.ConfirmSelect(), channel=2) + _PUBLISHES,
    _in_frames(1, "q", bytes(100), 30, delivery_mode=2) + _in_frames(2, "t", b"abcdef", 1) + HEARTBEAT_FRAME,
    _in_frames(1, "q", bytes(5000), 3000, headers=_HEADERS) + _in_frames(1, "q", b"", 1),
    # Contents of two channels, interleaved.
    _in_frames(1, "q", b"ab", 1)[:60] + _in_frames(2, "t", b"cd", 1) + _in_frames(1, "q", b"ab", 1)[60:],
    _sent(
        m.QueueDeclare(queue="x", exclusive=True, auto_delete=True),
        m.QueueDeclare(queue="q", durable=True),
        m.QueueDeclare(queue="q", passive=True),
        m.QueueDeclare(arguments={"foo": Field("S", "bar")}),
        m.QueueBind(exchange="amq.topic", routing_key="a.*", arguments=_HEADERS),
        m.QueueBind(queue="x", exchange="amq.headers", arguments={"x-match": Field("S", "any"), **_HEADERS}),
        m.QueueUnbind(exchange="amq.topic", routing_key="a.*", arguments=_HEADERS),
        m.QueuePurge(queue="q"),
        m.QueueDelete(queue="x", if_empty=True),
        m.QueueDelete(queue="t", nowait=True),
    ),
    _sent(
        m.ExchangeDeclare(exchange="e", type="topic", auto_delete=True),
        m.ExchangeDeclare(exchange="f", type="fanout", internal=True, nowait=True),
        m.ExchangeBind(destination="f", source="e", routing_key="#"),
        m.QueueBind(queue="q", exchange="f"),
    )
    + publish(1, "e", "a.b", b"abc", delivery_mode=2)
    + publish(1, "amq.headers", "a.b", b"abc", headers=_HEADERS)
    + _sent(m.ExchangeUnbind(destination="f", source="e", routing_key="#"), m.ExchangeDelete(exchange="f")),
    # Two channels that change metadata, each of which needs what the other has done.
    _sent(m.ExchangeDeclare(exchange="e"), m.ExchangeDeclare(exchange="f", nowait=True))
    + _sent(m.QueueDeclare(queue="x"), m.QueueBind(queue="x", exchange="f"), channel=2)
    + _sent(m.ExchangeBind(destination="e", source="f"), m.QueueBind(queue="x", exchange="e"))
    + _sent(m.QueueUnbind(queue="x", exchange="f"), m.ExchangeDelete(exchange="e"), channel=2)
    + _sent(m.QueueDelete(queue="x"), m.ExchangeDelete(exchange="f")),
    publish(1, "", "t", b"1")
    + publish(1, "", "t", b"2")
    + publish(1, "", "t", b"3")
    + _sent(m.BasicGet(queue="t"), m.BasicGet(queue="t"), m.BasicGet(queue="t", no_ack=True), m.BasicGet(queue="t"))
    + _sent(m.BasicAck(1), m.BasicReject(2), m.BasicGet(queue="t"), m.BasicNack(0, True, True), m.BasicRecover(True)),
    publish(1, "", "t", b"1") * 5
    + _sent(m.BasicQos(prefetch_count=3), m.BasicConsume(queue="t", consumer_tag="d"), m.BasicGet(queue="t"))
    + _sent(m.BasicAck(1, True), m.BasicNack(2, True, False), m.BasicRecoverAsync(True), m.BasicCancel("d")),
    # An auto-delete queue goes with the channel that consumes from it, while another publishes to it.
    _sent(m.QueueDeclare(queue="x", auto_delete=True), m.BasicConsume(queue="x"), channel=2)
    + publish(1, "", "x", b"abc", delivery_mode=2) * 3
    + _sent(m.ChannelClose(200, ""), channel=2)
    + publish(1, "", "x", b"abc", delivery_mode=2, mandatory=True) * 2,
    _sent(m.QueueDeclare(queue="none", passive=True), m.BasicGet(queue="t"), m.ChannelCloseOk(), m.ChannelOpen())
    + _sent(m.ChannelClose(200, "bye"), m.ChannelOpen(), m.ChannelFlow(True)),
    _sent(m.TxSelect())
    + _PUBLISHES
    + publish(1, "", "t", b"1") * 2
    + _sent(m.TxCommit(), m.BasicGet(queue="t"), m.BasicGet(queue="t"), m.BasicAck(2), m.TxRollback())
    + _sent(m.BasicNack(2, True, True), m.TxCommit(), m.TxSelect(), m.ConfirmSelect()),
    _sent(m.BasicConsume(queue=ADDRESS, consumer_tag="r", no_ack=True))
    + publish(1, "", "t", b"ask", reply_to=ADDRESS, correlation_id="1", headers=_HEADERS)
    + _sent(m.BasicGet(queue="t"), m.QueueDeclare(queue=ADDRESS), m.QueueDeclare(queue=_INBOX, passive=True))
    + publish(2, "", _INBOX, b"answer", mandatory=True) * 2
    + _sent(m.BasicCancel("r"), m.ConnectionUpdateSecret(b"secret", "why"))
    + publish(1, "", "t", b"ask", reply_to=ADDRESS),
    _sent(m.ChannelOpen(), channel=3) + publish(3, "", "q", b"abc") + _sent(m.ChannelClose(200, ""), channel=3),
    _PUBLISHES[:70] + _sent(m.ConnectionClose(200, "bye"), channel=0),
    _sent(m.BasicAck(9)) + publish(1, "", "q", b"abc") + _sent(m.ChannelOpen(), channel=2) + _PUBLISHES,
]  # fmt: skip
SESSION_TARGETS: Final = [
    Target("session", run_session, SESSIONS, (Closed,), cost=3),
    Target(
        "greeted",
        run_greeted,
        [
            HELLO + _sent(m.ChannelOpen()) + _PUBLISHES[:300] + _sent(m.ConnectionClose(200, ""), channel=0),
            HELLO,
            hello("guest", "wrong", "/", {"authentication_failure_close": True}, 4096, 4, 5, (1, 2)),
            hello("guest", "guest", "none", {}, 0, 0, 0, (1,)),
            b"AMQP\x00\x00\x09\x01"
            + _sent(
                m.ConnectionStartOk(
                    {"connection_name": Field("S", "me")},
                    "AMQPLAIN",
                    b"\x05LOGINS\x00\x00\x00\x05guest\x08PASSWORDS\x00\x00\x00\x05guest",
                    "en_US",
                ),
                channel=0,
            ),
        ],
        (Closed,),
        cost=3,
    ),
]
