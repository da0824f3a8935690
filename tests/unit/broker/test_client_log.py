"""Lines of the log about clients, as RabbitMQ 3.10.8 writes them; only pids have another form."""

from __future__ import annotations

from leveret.protocol import methods as m
from leveret.protocol.tables import Field
from leveret.sessions.amqp.connection import Connection
from leveret.sessions.amqp.limits import Limits
from leveret.sessions.peer import Peer
from tests.support.machines import World

PEER = Peer("10.0.0.9", 40000, "10.0.0.7", 5672, False)
CALLED = "10.0.0.9:40000 -> 10.0.0.7:5672"


def notes(world: World) -> list[tuple[str, str, str]]:
    found, world.notes[:] = list(world.notes), []
    return found


def stranger(world: World) -> Connection:
    return Connection(world.broker, PEER, Limits())


def test_a_life() -> None:
    world = World()
    client = world.client()
    at = "<node.1.1.0> (127.0.0.1:40000 -> 127.0.0.1:5672"
    assert notes(world) == [
        ("connection", "info", f"accepting AMQP connection {at})"),
        ("connection", "info", f"connection {at}): user 'guest' authenticated and granted access to vhost '/'"),
    ]
    client.call(m.ConnectionClose(200, "bye", 0, 0), channel=0)
    who = ", vhost: '/', user: 'guest')"
    assert notes(world) == [("connection", "info", f"closing AMQP connection {at}{who}")]


def test_one_that_just_goes() -> None:
    world = World()
    client = world.client()
    notes(world)
    client.connection.on_socket_lost()
    ((category, level, text),) = notes(world)
    assert (category, level) == ("connection", "warning")
    assert text.endswith("vhost: '/', user: 'guest'):\nclient unexpectedly closed TCP connection")


def test_one_that_never_says_a_word() -> None:
    world = World()
    stranger(world).on_socket_lost()
    ((_, level, _),) = notes(world)
    assert level == "debug"


def test_one_that_speaks_something_else() -> None:
    world = World()
    stranger(world).receive(b"GET / HTTP/1.1\r\n\r\n")
    assert notes(world) == [
        ("connection", "info", f"accepting AMQP connection <node.1.1.0> ({CALLED})"),
        ("connection", "error", f'closing AMQP connection <node.1.1.0> ({CALLED}):\n{{bad_header,<<"GET / HT">>}}'),
    ]


def test_mistakes() -> None:
    world = World()
    client = world.client()
    notes(world)
    client.call(m.QueueDeclare(queue="no\nsuch", passive=True))
    ((category, level, text),) = notes(world)
    assert (category, level) == ("channel", "error")
    assert text == (
        "Channel error on connection <node.1.1.0> (127.0.0.1:40000 -> 127.0.0.1:5672, vhost: '/', user: 'guest'), "
        "channel 1:\noperation queue.declare caused a channel exception not_found: no queue 'nosuch' in vhost '/'"
    )
    client.connection.close(320, "maintenance\nat noon")
    ((category, level, text),) = notes(world)
    assert (category, level) == ("connection", "error")
    assert text.endswith(
        "state: running), channel 0:\n operation none caused a connection exception connection_forced: "
        "maintenance\\x0aat noon"
    )


def test_a_name_makes_no_line_of_its_own() -> None:
    world = World()
    connection = stranger(world)
    connection.set_client_properties({"connection_name": Field("S", "me\n2026-01-01 [error] forged")})
    connection.user = "ann"
    world.broker.notes.opened(connection, "/")
    named, granted = (text for _, _, text in notes(world))
    assert named.endswith("has a client-provided name: me\\x0a2026-01-01 [error] forged")
    assert "\n" not in granted and " - me\\x0a2026" in granted
