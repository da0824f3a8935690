"""The memory of routes, and when it is dropped."""

from __future__ import annotations

import pytest

from leveret.broker import vhost as vhost_module
from leveret.broker.vhost import Route
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from tests.support.machines import Client, World, publish


def arguments(exchange: bytes, key: bytes, bits: int = 0) -> bytes:
    return bytes((len(exchange),)) + exchange + bytes((len(key),)) + key + bytes((bits,))


@pytest.mark.parametrize("bits", range(4))
def test_a_route_is_read_from_raw_arguments(bits: int) -> None:
    raw = arguments(b"x", b"k\xff", bits)
    route = Route(raw)
    assert (route.exchange, route.routing_key, route.key) == ("x", "k\udcff", b"\x01x\x02k\xff")
    assert (route.mandatory, route.immediate) == (bool(bits & 1), bool(bits & 2))
    assert route.arguments() == raw


def published(client: Client, key: str, exchange: str = "") -> list[m.Method | None]:
    client.publish(key, exchange=exchange, mandatory=True)
    return client.methods()


def is_returned(methods: list[m.Method | None]) -> bool:
    return [type(method) for method in methods] == [m.BasicReturn]


def test_a_route_is_remembered_until_something_changes() -> None:
    world = World()
    client = world.client()
    vhost = world.broker.vhosts["/"]
    client.declare("q")
    client.publish("q")
    client.publish("q")
    assert list(vhost.routes) == [arguments(b"", b"q")]
    before = vhost.generation
    client.declare("r")
    assert not vhost.routes and vhost.generation > before


def test_changes_are_heeded_by_publishers_that_repeat_themselves() -> None:
    world = World()
    client, other = world.client(), world.client()
    other.declare("q")
    for _ in range(3):
        assert is_returned(published(client, "k", "amq.direct"))
    other.send(m.QueueBind(queue="q", exchange="amq.direct", routing_key="k"))
    for _ in range(3):
        assert published(client, "k", "amq.direct") == []
    other.send(m.QueueUnbind(queue="q", exchange="amq.direct", routing_key="k"))
    assert is_returned(published(client, "k", "amq.direct"))
    assert published(client, "q") == []
    other.send(m.QueueDelete(queue="q"))
    assert is_returned(published(client, "q"))


def test_changes_are_heeded_within_one_read() -> None:
    world = World()
    client = world.client()
    client.declare("q", exclusive=True)
    client.send(m.ConfirmSelect())
    client.take()
    one = publish(1, "", "q", b"abc", mandatory=True)
    client.feed(one * 3 + m.encode(1, m.QueueDelete(queue="q")) + one * 2)
    world.turn()
    assert client.methods() == [
        m.QueueDeleteOk(3),
        m.BasicReturn(312, "NO_ROUTE", "", "q"),
        m.BasicReturn(312, "NO_ROUTE", "", "q"),
        m.BasicAck(5, True),
    ]


def test_a_queue_that_goes_with_another_channel_is_heeded_within_one_read() -> None:
    """An unknown tag closes channel 2, with it goes the last consumer, with that the queue that channel 1 fills."""
    world = World()
    client = world.client(channels=(1, 2))
    client.declare("q", auto_delete=True)
    client.consume("q", channel=2)
    one = publish(1, "", "q", b"abc", mandatory=True)
    client.feed(one * 3 + m.encode(2, m.BasicAck(9)) + one)
    world.turn()
    assert [type(method) for method in client.methods()] == [m.ChannelClose, m.BasicReturn]
    assert world.broker.content_bytes == 0


def test_permissions_are_checked_anew_when_they_change() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    assert published(client, "q") == []
    world.apply(c.SetPermissions("guest", "/", ".*", "^q$", ".*"))
    (method,) = published(client, "q")
    assert isinstance(method, m.ChannelClose)
    assert method.reply_text == (
        "ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'guest'"
    )


def test_what_one_user_may_another_may_not() -> None:
    world = World()
    world.apply(c.PutUser("other", world.metadata.users["guest"].password_hash, "rabbit_password_hashing_sha256", ()))
    world.apply(c.SetPermissions("other", "/", ".*", "", ".*"))
    client, other = world.client(), world.client(user="other")
    client.declare("q")
    assert published(client, "q") == []
    (method,) = published(other, "q")
    assert isinstance(method, m.ChannelClose) and method.reply_code == 403


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vhost_module, "ROUTES_MAX", 4)
    world = World()
    client = world.client()
    client.declare("q")
    client.call(m.QueueBind(queue="q", exchange="amq.fanout"))
    for number in range(20):
        client.publish(f"k{number}", exchange="amq.fanout")
        assert len(world.broker.vhosts["/"].routes) <= 4
    assert world.queue("q").ready_count == 20
