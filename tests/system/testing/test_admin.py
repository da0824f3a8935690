"""The admin handle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pika
import pytest

import leveret.testing
from leveret.testing import Admin, AdminError, Broker
from leveret.testing.admin import BindingInfo, ExchangeInfo, PolicyInfo


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with leveret.testing.broker() as running:
        yield running


@pytest.fixture
def subject(shared: Broker) -> Iterator[Broker]:
    yield shared
    shared.admin.delete_all()


@pytest.fixture
def channel(subject: Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(subject.url))
    yield connection.channel()
    connection.close()


def test_queues(subject: Broker, channel: Any) -> None:
    channel.queue_declare("b", durable=True)
    channel.queue_declare("a", exclusive=True)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", "b", b"x")
    channel.basic_get("b")
    channel.basic_consume("a", lambda *_: None)
    first, second = subject.admin.queues()
    assert (first.name, first.messages, first.messages_ready, first.messages_unacknowledged) == ("b", 3, 2, 1)
    assert (first.durable, first.exclusive, first.auto_delete, first.consumers) == (True, False, False, 0)
    assert (second.name, second.exclusive, second.consumers, second.state) == ("a", True, 1, "running")
    assert subject.admin.purge("b") == 2
    assert subject.admin.delete_queue("b") == 0
    with pytest.raises(LookupError, match="no queue 'b'"):
        subject.admin.queue("b")
    with pytest.raises(AdminError, match="Queue not found") as refused:
        subject.admin.delete_queue("b")
    assert refused.value.code == 64


def test_many_queues() -> None:
    """More than one page of them."""
    pages = {None: ([["a"], ["b"]], {"after": 2}), 2: ([["c"]], None)}
    asked: list[Any] = []

    class Pages:
        def ask(self, request: dict[str, Any]) -> Any:
            after = request["arguments"]["after"]
            asked.append(request["command"])
            rows, following = pages[after and after["after"]]
            return {"ok": {"rows": rows, "next": following, "missing": []}}

    assert Admin(cast(Broker, Pages())).vhosts() == ["a", "b", "c"]
    assert asked == ["list_vhosts"] * 2


def test_exchanges_and_bindings(subject: Broker, channel: Any) -> None:
    channel.exchange_declare("events", "topic", durable=True)
    channel.queue_declare("q")
    channel.queue_bind("q", "events", "a.#")
    assert ExchangeInfo("events", "topic", True, False, False) in subject.admin.exchanges()
    assert BindingInfo("events", "queue", "q", "a.#") in subject.admin.bindings()


def test_purge_all(subject: Broker, channel: Any) -> None:
    channel.confirm_delivery()
    for name, count in (("a", 2), ("b", 0), ("c", 3)):
        channel.queue_declare(name)
        for _ in range(count):
            channel.basic_publish("", name, b"x")
    assert subject.admin.purge_all() == 5
    assert [one.messages for one in subject.admin.queues()] == [0, 0, 0]


def test_vhosts_users_policies(subject: Broker) -> None:
    admin = subject.admin
    admin.add_vhost("shop")
    admin.add_user("ann", "secret", tags=["monitoring"], vhost="shop")
    admin.set_policy("limit", "^q", {"max-length": 5}, vhost="shop", apply_to="queues", priority=3)
    assert admin.vhosts() == ["/", "shop"]
    assert admin.users() == {"guest": ("administrator",), "ann": ("monitoring",)}
    assert admin.policies("shop") == [PolicyInfo("limit", "^q", "queues", {"max-length": 5}, 3)]
    pika.BlockingConnection(pika.URLParameters(subject.url_of("shop", "ann", "secret"))).close()
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError):
        pika.BlockingConnection(pika.URLParameters(subject.url_of("/", "ann", "secret")))
    admin.set_permissions("ann", "shop", configure="^$")
    assert admin.call("list_permissions", vhost="shop")[1]["configure"] == "^$"
    admin.clear_policy("limit", "shop")
    admin.delete_user("ann")
    admin.delete_vhost("shop")
    assert (admin.vhosts(), list(admin.users())) == (["/"], ["guest"])


def test_connections(subject: Broker) -> None:
    parameters = pika.URLParameters(subject.url)
    parameters.client_properties = {"connection_name": "worker"}
    connection = pika.BlockingConnection(parameters)
    connection.channel()
    (found,) = subject.admin.connections()
    assert (found.client_name, found.user, found.vhost, found.state, found.channels) == (
        "worker",
        "guest",
        "/",
        "running",
        1,
    )
    assert subject.admin.close_connections("enough") == 1
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="enough"):
        connection.process_data_events(60)


def test_delete_all(subject: Broker, channel: Any) -> None:
    """Back to what a new broker has; who is connected to the default vhost stays."""
    admin = subject.admin
    before = (admin.exchanges(), admin.bindings(), admin.users(), admin.vhosts(), admin.call("list_global_parameters"))
    channel.queue_declare("q")
    channel.exchange_declare("mine", "fanout", auto_delete=True)
    channel.exchange_declare("other", "fanout")
    channel.exchange_bind("mine", "other")
    channel.exchange_bind("amq.topic", "amq.fanout", "x")
    channel.queue_bind("q", "mine")
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    channel.basic_consume("q", lambda *_: None, consumer_tag="c")
    admin.add_vhost("shop")
    admin.add_user("ann", "x")
    admin.set_policy("p", "", {"ha-mode": "all"})
    admin.set_policy("o", "", {"max-length": 1}, operator=True)
    admin.call("set_vhost_limits", vhost="/", limits={"max-queues": 5})
    admin.call("set_user_limits", user="guest", limits={"max-channels": 9})
    admin.call("set_topic_permissions", user="guest", vhost="/", exchange="amq.topic", write="^a", read="^a")
    admin.call("set_user_tags", name="guest", tags=[])
    admin.set_permissions("guest", read="^q")
    admin.call("set_global_parameter", name="x", value=1)
    admin.delete_all()
    after = (admin.exchanges(), admin.bindings(), admin.users(), admin.vhosts(), admin.call("list_global_parameters"))
    assert after == before
    assert (admin.queues(), admin.policies(), admin.policies(operator=True)) == ([], [], [])
    assert admin.call("list_permissions", vhost="/") == [
        {"user": "guest", "configure": ".*", "write": ".*", "read": ".*"}
    ]
    assert admin.call("list_topic_permissions", vhost="/") == admin.call("list_vhost_limits", vhost=None) == []
    assert admin.call("list_user_limits", user=None) == []
    channel.queue_declare("q")
    channel.connection.process_data_events(0)
    assert cancelled == ["c"]


def test_delete_all_without_the_default_vhost(subject: Broker) -> None:
    subject.admin.call("change_password", name="guest", password_hash="", hashing="rabbit_password_hashing_sha256")
    subject.admin.delete_vhost("/")
    subject.admin.delete_all()
    pika.BlockingConnection(pika.URLParameters(subject.url)).close()


def test_what_the_broker_refuses(subject: Broker) -> None:
    with pytest.raises(AdminError, match="does not know the command 'dance'"):
        subject.admin.call("dance")
    with pytest.raises(AdminError, match="not recognised policy settings"):
        subject.admin.set_policy("p", "", {"what": 1})
