"""Conversations with a STOMP connection. Answers are those of RabbitMQ 3.10.8, unless the test says otherwise."""

from __future__ import annotations

import pytest

from leveret.broker.delivery.batch import Span
from leveret.broker.session.message import content_of
from leveret.metadata.model import commands as c
from leveret.protocol.properties import Properties
from leveret.protocol.tables import Field
from leveret.sessions.peer import Peer
from leveret.sessions.stomp.limits import StompLimits
from tests.support.machines import World
from tests.unit.sessions.stomp.clients import StompClient, connected, error


@pytest.fixture
def world() -> World:
    return World()


def receipt(name: str) -> str:
    return f"RECEIPT\nreceipt-id:{name}\n\n^@"


# -- CONNECT ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offered", "version"), [("", "1.0"), ("accept-version:1.0,1.1,1.2\n", "1.2"), ("accept-version:1.1,2.0\n", "1.1")]
)
@pytest.mark.parametrize("command", ["CONNECT", "STOMP"])
def test_versions(world: World, command: str, offered: str, version: str) -> None:
    client = StompClient(world)
    answer = client.ask(f"{command}\n{offered}login:guest\npasscode:guest\nheart-beat:5000,7500\n\n^@")
    server = "CONNECTED\nserver:RabbitMQ/3.10.8\nsession:SESSION\n"
    assert answer == f"{server}heart-beat:7000,5000\nversion:{version}\n\n^@"
    assert client.connection.protocol == f"STOMP {version}"


@pytest.mark.parametrize(
    ("headers", "answer"),
    [
        ("accept-version:9.9\n", error("Version mismatch", "Supported versions are 1.0,1.1,1.2\n")),
        ("login:guest\npasscode:bad\n", error("Bad CONNECT", "Access refused for user 'guest'\n")),
        ("login:no\npasscode:bad\n", error("Bad CONNECT", "Access refused for user 'no'\n")),
        ("host:nope\nlogin:guest\npasscode:guest\n", error("Bad CONNECT", "Virtual host 'nope' access denied")),
    ],
)
def test_refused_and_then_let_in(world: World, headers: str, answer: str) -> None:
    client = StompClient(world)
    assert client.ask(f"CONNECT\n{headers}\n^@") == answer
    assert client.connect().startswith("CONNECTED\n")


def test_default_user(world: World) -> None:
    client = StompClient(world)
    assert client.ask("CONNECT\n\n^@").startswith("CONNECTED\n")
    client = StompClient(world, StompLimits(default_user=None))
    assert client.ask("CONNECT\n\n^@") == error("Bad CONNECT", "Missing login or passcode header(s)")


def test_guest_from_elsewhere(world: World) -> None:
    client = StompClient(world, peer=Peer("10.0.0.1", 1, "10.0.0.2", 61613, False))
    assert client.connect() == error("Bad CONNECT", "non-loopback access denied")


def test_heart_beat_that_is_none(world: World) -> None:
    answer = StompClient(world).connect(more="heart-beat:x\n")
    assert answer == error("Processing error", "The header 'heart-beat' cannot be 'x'\n")


def test_a_frame_before_connect(world: World) -> None:
    client = StompClient(world)
    answer = client.ask("SEND\ndestination:/queue/a\n\n^@")
    assert answer == error("Illegal command", "You must log in using CONNECT first")
    assert client.connect().startswith("CONNECTED\n")


def test_implicit_connect(world: World) -> None:
    client = StompClient(world, StompLimits(implicit_connect=True))
    assert client.ask("SEND\ndestination:/queue/a\nreceipt:1\n\nx^@") == receipt("1")
    assert client.connection.user == "guest" and client.connection.version == "1.0"


def test_login_by_certificate(world: World) -> None:
    peer = Peer("127.0.0.1", 1, "127.0.0.1", 61614, True, tls=True, certificate="guest")
    client = StompClient(world, StompLimits(cert_login=True, default_user=None), peer)
    assert client.ask("CONNECT\n\n^@").startswith("CONNECTED\n")
    assert client.connection.mechanism == "EXTERNAL"


def test_connect_twice_ends_the_connection(world: World) -> None:
    """RabbitMQ cuts it off without a word."""
    client = connected(world)
    assert client.connect() == error("Illegal command", "You are logged in already\n")
    assert client.connection.closed


def test_hidden_server(world: World) -> None:
    client = StompClient(world, StompLimits(hides_server=True))
    assert "server:" not in client.connect()


@pytest.mark.parametrize(
    "data", [b"SEND\nx\n\n\0", b"CONNECT\0", b"CONNECT\ncontent-length:99999999\n\n", b"\x16\x03" * 99]
)
def test_no_frame(world: World, data: bytes) -> None:
    """RabbitMQ cuts the connection off without a word."""
    client = StompClient(world)
    assert client.ask(data).startswith("ERROR\nmessage:Malformed frame\n")
    assert client.connection.closed


# -- Heart-beats -----------------------------------------------------------------------------------------------------


def test_heart_beats(world: World) -> None:
    client = connected(world, more="heart-beat:10000,10000\n")
    connection, now = client.connection, world.broker.now_ms
    beats = []
    for second in range(1, 20):
        if second % 5 == 0:
            connection.receive(b"\n")
        assert connection.on_tick(now + second * 1_000)
        if client.heard_bytes() == b"\n":
            beats.append(second)
    assert beats in ([9, 18], [10, 19], [9, 17], [10, 18])
    alive = [connection.on_tick(now + second * 1_000) for second in range(20, 50)]
    assert alive[10] and not alive[-1]


def test_without_heart_beats(world: World) -> None:
    client = connected(world)
    for second in range(1, 100):
        assert client.connection.on_tick(world.broker.now_ms + second * 1_000)
    assert client.heard_bytes() == b""


# -- SEND and SUBSCRIBE ----------------------------------------------------------------------------------------------

SENT = """SEND
destination:/queue/p1
persistent:true
content-type:text/plain
content-encoding:utf8
priority:5
correlation-id:cc
reply-to:/queue/answers
expiration:60000
amqp-message-id:mm
timestamp:1234567
type:tt
user-id:guest
app-id:aa
foo:b\\car
Foo2:x\\\\y\\nz
receipt:r1

hello^@"""
GOT = """MESSAGE
subscription:1
destination:/queue/p1
message-id:T_1@@SESSION@@1
redelivered:false
ack:T_1@@SESSION@@1
receipt:r1
Foo2:x\\\\y\\nz
foo:b\\car
app-id:aa
user-id:guest
type:tt
timestamp:1234567
amqp-message-id:mm
expiration:60000
reply-to:/queue/answers
correlation-id:cc
priority:5
persistent:true
content-encoding:utf8
content-type:text/plain
content-length:5

hello^@"""


def test_there_and_back(world: World) -> None:
    client = connected(world)
    assert client.ask("SUBSCRIBE\nid:1\ndestination:/queue/p1\nack:client\nreceipt:r0\n\n^@") == receipt("r0")
    assert client.ask(SENT) == GOT + receipt("r1")
    plain = "MESSAGE\nsubscription:1\ndestination:/queue/p1\n"
    named = "message-id:T_1@@SESSION@@{0}\nredelivered:false\nack:T_1@@SESSION@@{0}\n"
    assert client.ask("SEND\ndestination:/queue/p1\n\n^@") == plain + named.format(2) + "\n^@"
    answer = client.ask("SEND\ndestination:/queue/p1\ncontent-length:3\n\na^@b^@\n\n\n")
    assert answer == plain + named.format(3) + "content-length:3\n\na^@b^@"


def test_stomp_1_0(world: World) -> None:
    """Escapes are those of the version; RabbitMQ has them in STOMP 1.0, too."""
    client = connected(world, "1.0")
    assert client.ask("SUBSCRIBE\ndestination: /queue/p2\nack: client\n\n^@") == ""
    answer = client.ask("SEND\ndestination:/queue/p2\nk: v\\c1\nk2:a:b\n\nhi^@")
    named = "message-id:Q_/queue/p2@@SESSION@@1\nredelivered:false\n"
    assert answer == f"MESSAGE\ndestination:/queue/p2\n{named}k2:a:b\nk:v\\c1\ncontent-length:2\n\nhi^@"
    assert client.ask("ACK\nmessage-id:Q_/queue/p2@@SESSION@@1\nreceipt:a\n\n^@") == receipt("a")
    assert client.ask("UNSUBSCRIBE\ndestination:/queue/p2\nreceipt:u\n\n^@") == receipt("u")
    assert client.ask("DISCONNECT\nreceipt:bye\n\n^@") == receipt("bye")
    assert client.connection.closed


def test_escapes_of_stomp_1_1(world: World) -> None:
    client = connected(world, "1.1")
    client.ask("SUBSCRIBE\nid:1\ndestination:/queue/p3\nack:client-individual\nprefetch-count:2\n\n^@")
    answer = client.ask("SEND\ndestination:/queue/p3\nk\\cx: v\\c\\n1\\r\nk2:a:b\n\nhi^@")
    assert answer.endswith("redelivered:false\nk2:a\\cb\nk\\cx: v\\c\\n1\\r\ncontent-length:2\n\nhi^@")
    answer = client.ask("SEND\ndestination:/queue/p3\nk:\\t\n\nhi^@")
    assert answer == error("Malformed frame", "undefined escape \\t in a header\n")


@pytest.mark.parametrize(
    ("destination", "key", "shown"),
    [
        ("/queue/a b", "a b", "/queue/a b"),
        ("/queue/a%2Fb", "a/b", "/queue/a%2Fb"),
        ("/queue/100%25", "100%", "/queue/100%25"),
        ("/queue/50%", "50%", "/queue/50%25"),
        ("/queue/é", "é", "/queue/%C3%A9"),
        ("/queue/%C3%A9", "é", "/queue/%C3%A9"),
        ("plain", "plain", "/queue/plain"),
    ],
)
def test_names_of_queues(world: World, destination: str, key: str, shown: str) -> None:
    client = connected(world)
    client.ask(f"SUBSCRIBE\nid:1\ndestination:{destination}\n\n^@")
    assert world.queue(key).spec.durable
    answer = client.ask(f"SEND\ndestination:{destination}\n\nx^@")
    assert f"\ndestination:{shown}\n" in answer
    assert f"\ndestination:{shown}\n" in client.ask(f"SEND\ndestination:{shown}\n\nx^@")  # It leads back.


@pytest.mark.parametrize(
    ("source", "target", "shown"),
    [
        ("/topic/a.#", "/topic/a.b", "/topic/a.b"),
        ("/topic/a.*", "/exchange/amq.topic/a.b", "/topic/a.b"),
        ("/exchange/amq.direct/k", "/exchange/amq.direct/k", "/exchange/amq.direct/k"),
        ("/exchange/amq.fanout", "/exchange/amq.fanout", "/exchange/amq.fanout"),
        ("/exchange/amq.fanout", "/exchange/amq.fanout/x%2Fy", "/exchange/amq.fanout/x%2Fy"),
    ],
)
def test_exchanges(world: World, source: str, target: str, shown: str) -> None:
    client = connected(world)
    assert client.ask(f"SUBSCRIBE\nid:1\ndestination:{source}\nreceipt:3\n\n^@") == receipt("3")
    for _ in range(3):
        assert f"\ndestination:{shown}\n" in client.ask(f"SEND\ndestination:{target}\n\nx^@")
    (queue,) = world.broker.vhosts["/"].queues.values()
    assert queue.spec.name.startswith("stomp-subscription-")
    assert (queue.spec.durable, queue.spec.auto_delete, queue.spec.exclusive) == (False, True, False)
    client.ask("DISCONNECT\n\n^@")
    assert not world.broker.vhosts["/"].queues


@pytest.mark.parametrize(
    ("destination", "id_", "name"),
    [
        ("/topic/dur", "1", "stomp-subscription-gEcUF2j2rfrNYilAmbA5tg"),
        ("/exchange/amq.direct/k", "1", "stomp-subscription-XOEsMqyGR1kUli0SswhC6A"),
        ("/exchange/amq.fanout", "1", "stomp-subscription-AFCOpGoyZRgTdV2sYkpHvQ"),
        ("/topic/ü", "é", "stomp-subscription-6SBcL6S41-O-wAUqm7kCFw"),
    ],
)
def test_durable_subscriptions(world: World, destination: str, id_: str, name: str) -> None:
    """The names are those that RabbitMQ gave."""
    client = connected(world)
    asked = f"SUBSCRIBE\nid:{id_}\ndestination:{destination}\ndurable:true\nauto-delete:false\n\n^@"
    assert client.ask(asked) == ""
    assert world.queue(name).spec.durable
    client.ask("DISCONNECT\n\n^@")
    target = destination if "fanout" not in destination else "/exchange/amq.fanout"
    connected(world).ask(f"SEND\ndestination:{target}\npersistent:true\n\nkept^@")
    client = connected(world)
    assert "kept" in client.ask(asked)
    client.ask(f"UNSUBSCRIBE\nid:{id_}\ndurable:true\n\n^@")
    assert (name in world.broker.vhosts["/"].queues) is not destination.startswith("/topic")


@pytest.mark.parametrize(
    ("headers", "durable", "auto_delete", "exclusive"),
    [
        ("destination:/queue/q\n", True, False, False),
        ("destination:/queue/q\nauto-delete:true\n", True, True, False),
        ("destination:/queue/q\ndurable:false\n", False, True, True),
        ("destination:/queue/q\nexclusive:true\n", False, False, True),
        ("destination:/topic/q\nx-queue-name:q\n", False, True, False),
        ("destination:/topic/q\nx-queue-name:q\nexclusive:true\n", False, True, True),
        ("destination:/topic/q\nx-queue-name:q\nauto-delete:false\n", False, False, False),
        ("destination:/topic/q\nx-queue-name:q\ndurable:true\n", True, True, False),
        ("destination:/topic/q\nx-queue-name:q\npersistent:true\nauto-delete:false\n", True, False, False),
    ],
)
def test_what_is_declared(world: World, headers: str, durable: bool, auto_delete: bool, exclusive: bool) -> None:
    connected(world).ask(f"SUBSCRIBE\nid:1\n{headers}\n^@")
    spec = world.queue("q").spec
    assert (spec.durable, spec.auto_delete, spec.exclusive) == (durable, auto_delete, exclusive)


def test_arguments(world: World) -> None:
    client = connected(world)
    arguments = {
        "x-dead-letter-exchange": "amq.fanout", "x-dead-letter-routing-key": "k", "x-expires": 100_000,
        "x-max-length": 100, "x-max-length-bytes": 1_000, "x-max-priority": 5, "x-message-ttl": 10_000,
        "x-queue-type": "classic", "x-overflow": "drop-head",
    }  # fmt: skip
    lines = "".join(f"{name}:{value}\n" for name, value in arguments.items())
    assert client.ask(f"SUBSCRIBE\nid:1\ndestination:/queue/q\nx-priority:7\n{lines}receipt:3\n\n^@") == receipt("3")
    found = world.queue("q")
    assert {name: one.value for name, one in found.spec.arguments.items()} == arguments
    assert [one.priority for one in found.consumers] == [7]


def test_a_send_does_not_make_the_queue_exclusive(world: World) -> None:
    """With RabbitMQ `persistent:false` does, and the message is lost."""
    connected(world).ask("SEND\ndestination:/queue/q\npersistent:false\n\nx^@")
    assert world.queue("q").spec.durable and not world.queue("q").spec.exclusive


def test_a_stream(world: World) -> None:
    client = connected(world)
    head = "SUBSCRIBE\nid:{}\ndestination:/queue/s\nx-queue-type:stream\nack:client\nprefetch-count:10\n"
    client.ask(head.format(1) + "\n^@" + "SEND\ndestination:/queue/s\n\nx^@" * 3)
    assert len(connected(world).ask(head.format(2) + "x-stream-offset:first\n\n^@").split("^@")) == 4
    assert len(connected(world).ask(head.format(3) + "x-stream-offset:offset=2\n\n^@").split("^@")) == 2


# -- Answers ---------------------------------------------------------------------------------------------------------


def test_a_queue_for_answers(world: World) -> None:
    client, service = connected(world), connected(world)
    service.ask("SUBSCRIBE\nid:r\ndestination:/queue/svc\n\n^@")
    for number in range(1, 4):
        client.send("SEND\ndestination:/queue/svc\nreply-to:/temp-queue/foo\n\nask^@")
        (asked,) = service.frames()
        assert asked.headers["reply-to"].startswith("/reply-queue/amq.gen-")
        service.send(f"SEND\ndestination:{asked.headers['reply-to']}\ncorrelation-id:1\n\nans^@")
        (answer,) = client.frames()
        assert answer.headers["subscription"] == "/temp-queue/foo"
        assert answer.headers["message-id"] == f"T_/temp-queue/foo@@{client.session}@@{number}"
    client.lose()
    assert set(world.broker.vhosts["/"].queues) == {"svc"}


# -- ACK and NACK ----------------------------------------------------------------------------------------------------


def out(client: StompClient) -> int:
    session = client.connection.session
    assert session is not None
    return session.unacked.count


def subscribed(world: World, mode: str, count: int, version: str = "1.2", more: str = "") -> StompClient:
    client = connected(world, version)
    client.ask(f"SUBSCRIBE\nid:1\ndestination:/queue/q\nack:{mode}\n{more}\n^@")
    client.ask("SEND\ndestination:/queue/q\n\nx^@" * count)
    return client


@pytest.mark.parametrize(("version", "header"), [("1.1", "message-id"), ("1.2", "id")])
@pytest.mark.parametrize("more", ["", "receipt:n\n", "subscription:1\n"])
def test_acks(world: World, version: str, header: str, more: str) -> None:
    client = subscribed(world, "client", 10, version)
    assert out(client) == 10
    answer = client.ask(f"ACK\n{header}:T_1@@SESSION@@4\n{more}\n^@")
    assert answer == (receipt("n") if "receipt" in more else "")
    assert out(client) == 6
    client = subscribed(World(), "client-individual", 10, version)
    for number in (3, 5, 4, 9):
        client.ask(f"ACK\n{header}:T_1@@SESSION@@{number}\n{more}\n^@")
    assert out(client) == 6
    client.ask("".join(f"ACK\n{header}:T_1@@SESSION@@{number}\n{more}\n^@" for number in (1, 2, 6, 7, 8, 10)))
    assert out(client) == 0


def test_an_ack_of_many_is_for_one_subscription(world: World) -> None:
    """RabbitMQ acknowledges those of other subscriptions, too."""
    client = subscribed(world, "client", 2)
    client.ask("SUBSCRIBE\nid:2\ndestination:/queue/q2\nack:client\n\n^@")
    client.ask("SEND\ndestination:/queue/q2\n\nx^@")  # The third.
    client.ask("SEND\ndestination:/queue/q\n\nx^@")
    client.ask("ACK\nid:T_1@@SESSION@@4\n\n^@")
    assert out(client) == 1
    client.ask("ACK\nid:T_2@@SESSION@@3\n\n^@")
    assert out(client) == 0


def test_nack(world: World) -> None:
    client = subscribed(world, "client-individual", 1)
    answer = client.ask("NACK\nid:T_1@@SESSION@@1\nreceipt:n\n\n^@")
    assert receipt("n") in answer and "T_1@@SESSION@@2\nredelivered:true\n" in answer
    assert client.ask("NACK\nid:T_1@@SESSION@@2\nrequeue:false\n\n^@") == ""
    assert out(client) == 0 and world.queue("q").ready_count == 0
    client = connected(world, limits=StompLimits(default_nack_requeue=False))
    client.ask("SUBSCRIBE\nid:1\ndestination:/queue/n\nack:client\n\n^@SEND\ndestination:/queue/n\n\nx^@")
    assert client.ask("NACK\nid:T_1@@SESSION@@1\n\n^@") == ""
    assert world.queue("n").ready_count == 0


def test_prefetch(world: World) -> None:
    client = subscribed(world, "client-individual", 5, more="prefetch-count:2\n")
    assert out(client) == 2
    assert "@@3\n" in client.ask("ACK\nid:T_1@@SESSION@@1\n\n^@")


@pytest.mark.parametrize(
    ("frame", "answer"),
    [
        ("ACK\nid:9\n\n^@", error("Invalid header", '"ACK" must include a valid "id" header\n')),
        ("ACK\nid:T_1@@other@@1\n\n^@", error("Invalid header", '"ACK" must include a valid "id" header\n')),
        ("ACK\nid:T_1@@SESSION@@x\n\n^@", error("Invalid header", '"ACK" must include a valid "id" header\n')),
        ("NACK\n\n^@", error("Missing header", '"NACK" must include the "id" header\n')),
        ("FOO\n\n^@", error("Bad command", 'Could not interpret command "FOO"\n')),
        ("send\n\n^@", error("Bad command", 'Could not interpret command "send"\n')),
        ("COMMIT\ntransaction:t1\n\n^@", error("Bad transaction", 'Invalid transaction identifier: "t1"\n')),
        ("ABORT\ntransaction:t1\n\n^@", error("Bad transaction", 'Invalid transaction identifier: "t1"\n')),
        ("BEGIN\n\n^@", error("Missing transaction", "\"BEGIN\" must include a 'transaction' header\n")),
        (
            "SEND\ntransaction:zz\ndestination:/queue/a\n\n^@",
            error("Bad transaction", 'Invalid transaction identifier: "zz"\n'),
        ),
        (
            "SEND\ndestination:/queue/p1\nmessage-id:4\n\n^@",
            error("Invalid header", "'message-id' is not allowed on 'SEND'.\n"),
        ),
        ("SEND\n\n^@", error("Missing destination", "\"SEND\" must include a 'destination' header\n")),
        ("SUBSCRIBE\nid:2\n\n^@", error("Missing destination", "\"SUBSCRIBE\" must include a 'destination' header\n")),
        ("SEND\ndestination:/queue\n\n^@", error("Invalid destination", "'' is not a valid queue destination\n")),
        (
            "SEND\ndestination:/queue/a/b\n\n^@",
            error("Invalid destination", "'/a/b' is not a valid queue destination\n"),
        ),
        (
            "SEND\ndestination:/exchange//b\n\n^@",
            error("Invalid destination", "'//b' is not a valid exchange destination\n"),
        ),
        (
            "SEND\ndestination:/amq/queue/\n\n^@",
            error("Invalid destination", "'/' is not a valid amqqueue destination\n"),
        ),
        ("SEND\ndestination:\n\n^@", error("Invalid destination", "Destination cannot be blank")),
        (
            "SEND\ndestination:/foo/b\n\n^@",
            error(
                "Unknown destination",
                "'/foo/b' is not a valid destination.\nValid destination types are: "
                "/temp-queue, /exchange, /topic, /queue, /amq/queue, /reply-queue/.\n",
            ),
        ),
        (
            "SUBSCRIBE\nid:2\ndestination:/temp-queue/x\n\n^@",
            error("Invalid destination", "'/temp-queue/x' is not a valid destination for 'SUBSCRIBE'\n"),
        ),
        (
            "SEND\ndestination:/temp-queue/x\n\n^@",
            error("Invalid destination", "'/temp-queue/x' is not a valid destination for 'SEND'\n"),
        ),
        (
            "SUBSCRIBE\ndestination:/topic/dur\ndurable:true\n\n^@",
            error("Missing Header", "Header 'id' is required for durable subscriptions"),
        ),
        (
            "UNSUBSCRIBE\n\n^@",
            error("Missing destination or id", "UNSUBSCRIBE must include a 'destination' or 'id' header"),
        ),
        (
            "UNSUBSCRIBE\nid:9\n\n^@",
            error(
                "No subscription found",
                "UNSUBSCRIBE must refer to an existing subscription.\nSubscription to \"id='9'\" not found.\n",
            ),
        ),
        (
            "UNSUBSCRIBE\nid:/temp-queue/x\n\n^@",
            error("Invalid id", "UNSUBSCRIBE 'id' may not start with /temp-queue/\n"),
        ),
        # In words of our own: RabbitMQ says "Processing error", or nothing.
        (
            "SUBSCRIBE\nid:/temp-queue/x\ndestination:/queue/a\n\n^@",
            error("Invalid id", "SUBSCRIBE 'id' may not start with /temp-queue/\n"),
        ),
        (
            "SUBSCRIBE\nid:7\ndestination:/queue/a\nack:foo\n\n^@",
            error("Processing error", "The header 'ack' cannot be 'foo'\n"),
        ),
        (
            "SUBSCRIBE\nid:7\ndestination:/queue/a\nprefetch-count:x\n\n^@",
            error("Processing error", "The header 'prefetch-count' cannot be 'x'\n"),
        ),
        (
            "SEND\ndestination:/queue/a\npriority:x\n\n^@",
            error("Processing error", "The header 'priority' cannot be 'x'\n"),
        ),
        (
            "SUBSCRIBE\nid:8\ndestination:/queue/a\nselector:a=1\n\n^@",
            error("Invalid header", "'selector' is not allowed on 'SUBSCRIBE'.\n"),
        ),
    ],
)
def test_errors_after_which_the_connection_goes_on(world: World, frame: str, answer: str) -> None:
    client = subscribed(world, "client", 1)
    assert client.ask(frame) == answer
    assert client.ask("ACK\nid:T_1@@SESSION@@1\nreceipt:1\n\n^@") == receipt("1")


@pytest.mark.parametrize(
    ("frame", "message", "body"),
    [
        ("SUBSCRIBE\nid:4\ndestination:/amq/queue/nope\n\n^@", "not_found", "no queue 'nope' in vhost '/'"),
        ("SUBSCRIBE\nid:4\ndestination:/exchange/nope/k\n\n^@", "not_found", "no exchange 'nope' in vhost '/'"),
        ("SEND\ndestination:/exchange/nope/k\n\nx^@", "not_found", "no exchange 'nope' in vhost '/'"),
        (
            "SEND\ndestination:/queue/amq.foo\n\nx^@",
            "access_refused",
            "queue name 'amq.foo' contains reserved prefix 'amq.*'",
        ),
        (
            "SEND\ndestination:/queue/a\nexpiration:abc\n\nx^@",
            "precondition_failed",
            "invalid expiration 'abc': no_integer",
        ),
        (
            "SEND\ndestination:/queue/a\nuser-id:abc\n\nx^@",
            "precondition_failed",
            "user_id property set to 'abc' but authenticated user was 'guest'",
        ),
        (
            "SUBSCRIBE\nid:1\nx-message-ttl:-5\ndestination:/queue/z\n\n^@",
            "precondition_failed",
            "invalid arg 'x-message-ttl' for queue 'z' in vhost '/': {value_negative,-5}",
        ),
    ],
)
def test_errors_that_end_the_connection(world: World, frame: str, message: str, body: str) -> None:
    client = connected(world)
    assert client.ask(frame) == error(message, f"{message.upper()} - {body}")
    assert client.connection.closed
    assert not any(name.startswith("stomp-") for name in world.broker.vhosts["/"].queues)


@pytest.mark.parametrize("mode", ["client", "client-individual"])
def test_an_ack_that_comes_twice(world: World, mode: str) -> None:
    client = subscribed(world, mode, 3)
    answer = client.ask("ACK\nid:T_1@@SESSION@@3\n\n^@" * 2)
    assert answer == error("precondition_failed", "PRECONDITION_FAILED - unknown delivery tag 3")
    assert client.connection.closed


def test_an_ack_without_a_subscription(world: World) -> None:
    client = subscribed(world, "client", 1)
    answer = client.ask("ACK\nid:T_9@@SESSION@@1\n\n^@")
    assert answer.startswith("ERROR\nmessage:Subscription not found\n")
    assert answer.endswith('\n\nMessage with id "T_9@@SESSION@@1" has no subscription^@')
    # What is out when a subscription ends can still be acknowledged.
    assert client.ask("UNSUBSCRIBE\nid:1\n\n^@ACK\nid:T_1@@SESSION@@1\nreceipt:a\n\n^@") == receipt("a")
    assert out(client) == 0


def test_a_subscription_twice(world: World) -> None:
    client = subscribed(world, "client", 0)
    answer = client.ask("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n^@")
    body = "A subscription identified by 'T_1' already exists."
    assert answer == error("Duplicated subscription identifier", body)
    assert client.connection.closed


def test_the_server_cancels(world: World) -> None:
    client = subscribed(world, "client", 0)
    connection = client.connection
    assert connection.session is not None
    connection.session.topology.delete_queue("q", lambda answer: None)
    body = "The server has canceled a subscription.\nNo more messages will be delivered for \"id='1'\".\n"
    assert client.heard() == error("Server cancelled subscription", body, "subscription:1\n")
    # The queue is declared again, also by a SEND.
    assert client.ask("SEND\ndestination:/queue/q\nreceipt:1\n\nx^@") == receipt("1")
    assert "@@1\n" in client.ask("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n^@")


# -- Receipts and transactions ---------------------------------------------------------------------------------------


def test_receipts_of_persistent_messages_come_after_the_sync(world: World) -> None:
    client = connected(world)
    client.ask("SEND\ndestination:/queue/q\n\nx^@")
    world.holds_disk = True
    sends = "".join(f"SEND\ndestination:/queue/q\npersistent:true\nreceipt:{n}\n\nx^@" for n in range(5))
    assert client.ask(sends + "BEGIN\ntransaction:1\nreceipt:b\n\n^@") == receipt("b")
    assert client.ask("DISCONNECT\nreceipt:bye\n\n^@") == ""  # RabbitMQ forgets the receipts of the messages.
    world.sync()
    assert client.heard() == "".join(receipt(str(n)) for n in range(5)) + receipt("bye")
    assert client.connection.closed


def test_a_refused_message(world: World) -> None:
    """RabbitMQ cuts the connection off without a word."""
    client = connected(world)
    head = "SEND\ndestination:/queue/q\nx-max-length:1\nx-overflow:reject-publish\nreceipt:{}\n\nx^@"
    assert client.ask(head.format(1)) == receipt("1")
    body = "A queue has refused the message, or it is not known whether it is safe.\n"
    assert client.ask(head.format(2)) == error("Message refused", body, "receipt-id:2\n")
    assert not client.connection.closed


def test_transactions(world: World) -> None:
    client = subscribed(world, "client-individual", 2)
    assert client.ask("BEGIN\ntransaction:t\nreceipt:b\n\n^@") == receipt("b")
    assert client.ask("SEND\ntransaction:t\ndestination:/queue/new\nreceipt:2\n\nx^@") == ""
    assert client.ask("ACK\ntransaction:t\nid:T_1@@SESSION@@1\nreceipt:3\n\n^@") == receipt("3")
    assert client.ask("NACK\ntransaction:t\nid:bad\n\n^@").startswith("ERROR\nmessage:Invalid header\n")
    assert out(client) == 2 and "new" not in world.broker.vhosts["/"].queues
    # Behind it, in the same bytes: it is carried out first.
    answer = client.ask("COMMIT\ntransaction:t\nreceipt:c\n\n^@SUBSCRIBE\nid:9\ndestination:/queue/new\n\n^@")
    assert answer.startswith(receipt("2") + receipt("c")) or receipt("c") in answer
    assert out(client) == 1 and "subscription:9\n" in answer and "transaction:t\n" in answer
    client.ask("BEGIN\ntransaction:t\n\n^@ACK\ntransaction:t\nid:T_1@@SESSION@@2\n\n^@")
    assert client.ask("ABORT\ntransaction:t\nreceipt:4\n\n^@") == receipt("4")
    assert out(client) == 1


def test_the_receipt_of_a_commit_waits_for_its_messages(world: World) -> None:
    client = connected(world)
    client.ask("SEND\ndestination:/queue/q\n\nx^@BEGIN\ntransaction:t\n\n^@")
    client.ask("SEND\ntransaction:t\ndestination:/queue/q\npersistent:true\n\nx^@" * 3)
    world.holds_disk = True
    assert client.ask("COMMIT\ntransaction:t\nreceipt:c\n\n^@") == ""
    world.sync()
    assert client.heard() == receipt("c")
    assert world.queue("q").ready_count == 4


def test_limits_of_transactions(world: World) -> None:
    client = connected(world)
    answer = client.ask("".join(f"BEGIN\ntransaction:{n}\n\n^@" for n in range(65)))
    assert answer == error("Transaction limit exceeded", "Too many concurrent transactions (limit 64)")


# -- The hot path ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [1, 7, 64, 1_000, 100_000])
@pytest.mark.parametrize("length", ["", "content-length:{}\n"])
def test_many_messages_in_any_pieces(world: World, cut: int, length: str) -> None:
    client, other = connected(world), connected(world)
    other.ask("SUBSCRIBE\nid:1\ndestination:/queue/q\nack:client\n\n^@")
    bodies = [str(n) * (1 + n % 3) for n in range(300)]
    sent = [
        f"SEND\n{length.format(len(body))}destination:/queue/{'q' if n % 50 else 'r'}\nreceipt:{n}\nx:{n // 40}\n\n"
        f"{body}^@" + "\n" * (n % 3)
        for n, body in enumerate(bodies)
    ]
    data = "".join(sent).replace("^@", "\0").encode()
    for at in range(0, len(data), cut):
        client.connection.receive(data[at : at + cut])
        if not at % 5:
            world.turn()
    assert client.heard() == "".join(receipt(str(n)) for n in range(300))
    got = other.frames()
    wanted = [n for n in range(300) if n % 50]
    assert [one.body.decode() for one in got] == [bodies[n] for n in wanted]
    assert [one.headers["receipt"] for one in got] == [str(n) for n in wanted]
    assert [one.headers["x"] for one in got] == [str(n // 40) for n in wanted]
    acks = "".join(f"ACK\nid:{one.headers['ack']}\n\n^@" for one in got).replace("^@", "\0").encode()
    for at in range(0, len(acks), cut):
        other.connection.receive(acks[at : at + cut])
    world.turn()
    assert out(other) == 0 and not other.connection.closed


def test_texts_that_look_like_templates(world: World) -> None:
    client = connected(world)
    named = f"%d@@{client.session}@@%s"
    client.ask(f"SUBSCRIBE\nid:{named}\ndestination:/queue/%25d\nack:client\n\n^@")
    for n in range(3):
        client.send(f"SEND\ndestination:/queue/%25d\nreceipt:%b{n}\n%s:%d%%\nx:\x07receiptS\0\n\nx^@".replace("\0", ""))
        message, answer = client.frames()
        assert message.headers["subscription"] == named
        assert message.headers["%s"] == "%d%%" and message.headers["receipt"] == f"%b{n}"
        assert answer.headers["receipt-id"] == f"%b{n}"


def test_a_text_that_looks_like_a_receipt(world: World) -> None:
    """A sender cannot have the receipt of another message written into its own."""
    client = connected(world)
    client.ask("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n^@")
    session = client.connection.session
    assert session is not None
    for text in ("000", "111", "222"):
        trap = Field("S", f"\x07receiptS\0\0\0\x03{text}")
        for table in ({"a": trap}, {"a": trap, "receipt": Field("S", "000")}):
            session.publish("", "q", content_of(Properties(headers=table), b"x", 0))
    for message in client.frames():
        assert message.headers.get("receipt") in (None, "000")


def test_during_an_alarm(world: World) -> None:
    client = connected(world)
    client.ask("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n^@")
    world.broker.alarm = "memory"
    assert client.ask("SEND\ndestination:/queue/q\nreceipt:1\n\nx^@") == ""
    assert client.connection.blocked and client.connection.held
    world.broker.alarm = None
    client.connection.unblock()
    assert receipt("1") in client.heard()


def test_bytes_that_are_no_text(world: World) -> None:
    client = connected(world)
    client.send(b"SUBSCRIBE\nid:\xff\xfe\ndestination:/queue/\xe9\n\n\0")
    client.send(b"SEND\ndestination:/queue/\xe9\na:\xff\n\n" + bytes(range(1, 256)) + b"\0")
    data = client.heard_bytes()
    assert b"subscription:\xff\xfe\ndestination:/queue/%E9\n" in data and b"\na:\xff\n" in data


@pytest.mark.parametrize("has_receipts", [False, True])
def test_bodies_of_all_sizes_are_stored_as_if_each_came_alone(world: World, has_receipts: bool) -> None:
    client, alone = connected(world), connected(world)
    sizes = [5, 1, 300, 0, 131_064, 131_065, 70, 70, 9]
    texts = []
    for number, size in enumerate(sizes):
        receipt_line = f"receipt:r{10**number}\n" if has_receipts else ""
        texts.append(f"SEND\ndestination:/queue/QUEUE\nkind:k\n{receipt_line}\n" + "x" * size + "^@")
    client.send("".join(texts).replace("QUEUE", "q1"))
    for text in texts:
        alone.connection.publisher.forms.forget()
        alone.send(text.replace("QUEUE", "q2"))
    together, single = (
        [
            content
            for span in world.queue(name).ready
            if isinstance(span, Span)
            for content in span.batch.contents[span.lo : span.hi]
        ]
        for name in ("q1", "q2")
    )
    assert len(together) == len(sizes) and together == single
    assert client.heard().count("RECEIPT") == (len(sizes) if has_receipts else 0)


def test_frames_with_long_headers_are_not_remembered(world: World) -> None:
    client = connected(world)
    for size in (10, 4_000):
        for _ in range(3):
            client.send(f"SEND\ndestination:/queue/q\nlong:{'x' * size}\n\nbody^@")
    assert len(client.connection.publisher.forms.known) == 1
    assert world.queue("q").ready_count == 6


# -- Permissions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "frame", "why"),
    [
        ((".*", "^$", ".*"), "SEND\ndestination:/exchange/amq.direct/k\n\nx", "access to exchange 'amq.direct'"),
        ((".*", ".*", "^$"), "SUBSCRIBE\nid:1\ndestination:/queue/q\n\n", "access to queue 'q'"),
        (("^$", ".*", ".*"), "SEND\ndestination:/queue/new\n\nx", "access to queue 'new'"),
        ((".*", ".*", "^q$"), "SUBSCRIBE\nid:1\ndestination:/exchange/amq.fanout\n\n", "access to exchange 'amq"),
    ],
)
def test_permissions(world: World, patterns: tuple[str, str, str], frame: str, why: str) -> None:
    client = connected(world)
    client.ask("SEND\ndestination:/queue/q\n\nx^@")
    world.apply(c.SetPermissions("guest", "/", *patterns))
    answer = client.ask(f"{frame}^@")
    assert answer.startswith("ERROR\nmessage:access_refused\n") and why in answer
    assert client.connection.closed


def test_permissions_for_topics(world: World) -> None:
    client = connected(world)
    world.apply(c.SetTopicPermissions("guest", "/", "amq.topic", "^mine", "^mine"))
    assert client.ask("SEND\ndestination:/topic/mine.a\nreceipt:1\n\nx^@") == receipt("1")
    assert client.ask("SUBSCRIBE\nid:1\ndestination:/topic/mine.*\nreceipt:2\n\n^@") == receipt("2")
    # A known form of frames must not get past the check of another topic.
    for number in range(3):
        assert client.ask(f"SEND\ndestination:/topic/mine.a\nreceipt:n{number}\n\nx^@").endswith(receipt(f"n{number}"))
    answer = client.ask("SEND\ndestination:/topic/yours.a\nreceipt:3\n\nx^@")
    assert answer.startswith("ERROR\nmessage:access_refused\n") and "topic 'yours.a'" in answer


def test_a_permission_that_is_taken_away_holds_for_frames_of_a_known_form(world: World) -> None:
    client = connected(world)
    frame = "SEND\ndestination:/queue/q\nreceipt:{}\n\nx^@"
    for number in range(4):
        assert client.ask(frame.format(number)) == receipt(str(number))
    world.apply(c.SetPermissions("guest", "/", ".*", "^$", ".*"))
    assert client.ask(frame.format(5)).startswith("ERROR\nmessage:access_refused\n")
    assert world.queue("q").ready_count == 4
