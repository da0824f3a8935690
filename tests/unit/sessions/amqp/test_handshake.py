"""From the greeting to an open vhost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from leveret.broker.login_attempts import FAILURES_MAX, LATE_MS, WAITING_MAX
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.tables import Field, table_from_python, to_python
from leveret.sessions.amqp.limits import Limits
from leveret.sessions.peer import Peer
from tests.support.machines import (
    ALL_CAPABILITIES,
    LOOPBACK,
    Client,
    Conversation,
    World,
    converse,
    hello,
    written_conversations,
)

STRANGER = Peer("10.0.0.9", 1234, "10.0.0.1", 5672, False)


@pytest.mark.parametrize("conversation", written_conversations("handshake"))
def test_conversation(conversation: Conversation) -> None:
    assert converse(conversation) == conversation.lines


def greet(world: World, peer: Peer = LOOPBACK, **changes: object) -> Client:
    options: dict[str, object] = {
        "user": "guest",
        "password": "guest",
        "vhost": "/",
        "capabilities": ALL_CAPABILITIES,
        "frame_max": 131_072,
        "channel_max": 2047,
        "heartbeat": 0,
        "channels": (),
    }
    client = Client(world, peer)
    client.feed(hello(**{**options, **changes}))  # type: ignore[arg-type]
    world.turn()
    return client


def test_what_the_server_says_of_itself() -> None:
    client = Client(World())
    client.feed(b"AMQP\x00\x00\x09\x01")
    client.world.turn()
    (start,) = client.methods()
    assert isinstance(start, m.ConnectionStart)
    properties = to_python(start.server_properties)
    assert properties["product"] == "RabbitMQ"  # Clients choose their behaviour by these two.
    assert properties["version"] == "3.10.8"
    assert properties["cluster_name"] == "cluster"
    capabilities = properties["capabilities"]
    assert isinstance(capabilities, dict)
    assert capabilities["publisher_confirms"] is True and capabilities["consumer_cancel_notify"] is True
    assert all(value is True for value in capabilities.values())


def test_what_is_offered_and_what_is_agreed_on() -> None:
    world = World(Limits(frame_max=50_000, channel_max=7, heartbeat_s=33))
    client = greet(world, frame_max=5000, channel_max=3, heartbeat=12)
    start, tune, open_ok = client.methods()
    assert isinstance(start, m.ConnectionStart) and open_ok == m.ConnectionOpenOk()
    assert tune == m.ConnectionTune(7, 50_000, 33)
    connection = client.connection
    assert (connection.frame_max, connection.channel_max, connection.heartbeat_s) == (5000, 3, 12)


def test_no_limit_where_none_is_set() -> None:
    world = World(Limits(frame_max=0, channel_max=0))
    client = greet(world, frame_max=0, channel_max=0, channels=(65_535,))
    assert client.methods()[-1] == m.ChannelOpenOk()


def test_guest_comes_from_this_machine_only() -> None:
    world = World()
    client = greet(world, STRANGER)
    method = client.methods()[-1]
    assert isinstance(method, m.ConnectionClose) and method.reply_code == 403
    category, level, text = world.notes[1]  # After it was accepted.
    assert (category, level) == ("connection", "error")
    assert text == (
        f"Error on AMQP connection <node.1.1.0> ({STRANGER}, state: starting):\n"
        "PLAIN login refused: user 'guest' can only connect via localhost"
    )
    assert client.connection not in world.broker.connections


def test_others_may_come_from_anywhere() -> None:
    world = World()
    world.apply(c.PutUser("u", world.metadata.users["guest"].password_hash, "rabbit_password_hashing_sha256", ()))
    world.apply(c.SetPermissions("u", "/", "", "", ""))
    assert greet(world, STRANGER, user="u").methods()[-1] == m.ConnectionOpenOk()


def test_no_entry_without_permissions() -> None:
    world = World()
    world.apply(c.AddVhost("v", "", ()))
    method = greet(world, vhost="v").methods()[-1]
    assert method == m.ConnectionClose(530, "NOT_ALLOWED - access to vhost 'v' refused for user 'guest'", 10, 40)


def test_a_user_without_password_cannot_log_in() -> None:
    world = World()
    world.apply(c.PutUser("u", "", "rabbit_password_hashing_sha256", ()))
    method = greet(world, user="u", password="").methods()[-1]
    assert isinstance(method, m.ConnectionClose) and method.reply_code == 403


def test_the_log_tells_why_and_the_client_does_not_learn_whether_the_user_exists() -> None:
    texts, notes = [], []
    for user in ("guest", "nobody"):
        world = World()
        method = greet(world, user=user, password="wrong").methods()[-1]
        assert isinstance(method, m.ConnectionClose)
        texts.append(method.reply_text)
        notes.append(world.notes[1][2])
    assert texts[0] == texts[1]
    assert "invalid credentials" in notes[0] and "does not exist" in notes[1]
    assert not any("wrong" in note for note in notes)


def external(peer: Peer) -> tuple[bytes, m.Method | None, str]:
    """Log in by certificate: what was offered, what the answer was, and who the client is then."""
    client = Client(World(Limits(mechanisms=("PLAIN", "EXTERNAL"), loopback_users=frozenset())), peer)
    capabilities = Field("F", table_from_python(ALL_CAPABILITIES))
    start_ok = m.ConnectionStartOk({"capabilities": capabilities}, "EXTERNAL", b"", "en_US")
    client.feed(b"AMQP\x00\x00\x09\x01" + m.encode(0, start_ok))
    client.world.turn()
    start, answer = client.methods()
    assert isinstance(start, m.ConnectionStart)
    return start.mechanisms, answer, client.connection.user


def test_login_by_certificate() -> None:
    peer = replace(STRANGER, tls=True, certificate="guest")
    assert external(peer) == (b"PLAIN EXTERNAL", m.ConnectionTune(2047, 131_072, 60), "guest")


@pytest.mark.parametrize("name", [None, "nobody", ""])
def test_login_without_a_certificate_of_a_user(name: str | None) -> None:
    text = "ACCESS_REFUSED - Login was refused using authentication mechanism EXTERNAL. "
    close = m.ConnectionClose(403, text + "For details see the broker logfile.", 0, 0)
    assert external(replace(STRANGER, tls=True, certificate=name)) == (b"PLAIN EXTERNAL", close, "")


def test_certificates_are_not_offered_without_tls() -> None:
    close = m.ConnectionClose(503, "COMMAND_INVALID - unknown authentication mechanism 'EXTERNAL'", 10, 11)
    assert external(STRANGER) == (b"PLAIN", close, "")


def test_what_the_client_says_of_itself() -> None:
    client = Client(World())
    properties = {"connection_name": Field("S", "me"), "capabilities": Field("S", "no table")}
    client.feed(b"AMQP\x00\x00\x09\x01")
    client.feed(m.encode(0, m.ConnectionStartOk(properties, "PLAIN", b"\0guest\0guest", "en_US")))
    client.world.turn()
    assert client.connection.capabilities == {}
    assert client.connection.describe().endswith("(me)")


def test_a_frame_before_login_is_small() -> None:
    client = Client(World())
    client.feed(b"AMQP\x00\x00\x09\x01")
    client.feed(b"\x01\x00\x00\x00\x00\x20\x01")
    client.world.turn()
    method = client.methods()[-1]
    assert isinstance(method, m.ConnectionClose)
    assert method.reply_text == "FRAME_ERROR - type 1, all octets = <<>>: {frame_too_large,8193,8184}"


@pytest.mark.parametrize("most", [4_096, 8_192, 16_384])
def test_the_largest_start_ok(most: int) -> None:
    """Its payload has as many bytes as the setting says, not its frame: so it is with RabbitMQ for each of these."""
    for size, answer in ((most, m.ConnectionTune), (most + 1, m.ConnectionClose)):
        client = Client(World(Limits(initial_frame_max=most)))
        made = m.encode(0, _start_ok(b""))
        made = m.encode(0, _start_ok(b"x" * (size - (len(made) - 8))))
        assert len(made) == size + 8
        client.feed(b"AMQP\x00\x00\x09\x01" + made)
        client.world.turn()
        assert isinstance(client.methods()[-1], answer)


def _start_ok(token: bytes) -> m.ConnectionStartOk:
    return m.ConnectionStartOk({"token": Field("x", token)}, "PLAIN", b"\0guest\0guest", "en_US")


@pytest.mark.parametrize("data", [b"\xff" * 20, b"AMQP\x00\x00\x09\x01" + b"\xff" * 20])
def test_bytes_that_stand_for_nothing_inside(data: bytes) -> None:
    """The mark for "no publish to repeat" must not be taken for one when a stranger sends it."""
    client = Client(World())
    client.feed(data)
    client.world.turn()
    assert client.connection.closed or client.connection.closing


def test_who_tries_out_passwords_is_answered_late() -> None:
    world = World()
    refused = m.ConnectionClose(
        403,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.",
        0,
        0,
    )
    for _ in range(FAILURES_MAX):
        assert greet(world, password="x").methods()[-1] == refused
    client = greet(world, password="x")
    assert client.connection.held and [type(one) for one in client.methods()] == [m.ConnectionStart]
    assert client.connection.on_tick(world.broker.now_ms + LATE_MS - 1)
    assert client.methods() == []
    assert client.connection.on_tick(world.broker.now_ms + LATE_MS)
    world.turn()
    assert client.methods() == [refused]
    assert not client.connection.held  # The client's answer to the close is read.
    client.feed(m.encode(0, m.ConnectionCloseOk()))
    assert client.connection.closed
    assert isinstance(greet(world).methods()[-1], m.ConnectionOpenOk)  # A right password gets in at once.


def test_who_tries_out_many_at_once_is_refused_unread() -> None:
    world = World()
    for _ in range(FAILURES_MAX + WAITING_MAX):
        greet(world, password="x")
    assert isinstance(greet(world).methods()[-1], m.ConnectionClose)
    assert isinstance(greet(world, replace(LOOPBACK, host="127.0.0.2")).methods()[-1], m.ConnectionOpenOk)
    world.broker.now_ms += LATE_MS
    assert isinstance(greet(world).methods()[-1], m.ConnectionOpenOk)


def test_a_client_that_goes_before_it_is_answered() -> None:
    world = World()
    for _ in range(FAILURES_MAX):
        greet(world, password="x")
    client = greet(world, password="x")
    client.connection.on_socket_lost()
    assert client.connection.closed
    assert client.connection.on_tick(world.broker.now_ms + LATE_MS)
