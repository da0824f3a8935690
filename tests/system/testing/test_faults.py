"""Faults on demand, of a broker inside and beside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.testing import AdminError, Broker


@pytest.fixture(scope="module", params=["inside", "beside"])
def shared(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with leveret.testing.broker(where=request.param) as running:
        yield running


@pytest.fixture
def subject(shared: Broker) -> Iterator[Broker]:
    yield shared
    shared.faults.clear()
    shared.admin.delete_all()


def connect(subject: Broker, name: str = "") -> Any:
    parameters = pika.URLParameters(subject.url)
    if name:
        parameters.client_properties = {"connection_name": name}
    return pika.BlockingConnection(parameters)


def test_drop_connections(subject: Broker) -> None:
    one, two, three = connect(subject, "one"), connect(subject, "two"), connect(subject)
    assert subject.faults.drop_connections("one") == 1
    with pytest.raises(pika.exceptions.StreamLostError):
        one.process_data_events(60)
    two.channel().queue_declare("q")
    third = next(found.name for found in subject.admin.connections() if not found.client_name)
    assert subject.faults.drop_connections(third) == 1
    with pytest.raises(pika.exceptions.StreamLostError):
        three.process_data_events(60)
    assert subject.faults.drop_connections("nobody") == 0
    assert subject.faults.drop_connections() == 1
    with pytest.raises(pika.exceptions.StreamLostError):
        two.process_data_events(60)


def test_refuse_connections(subject: Broker) -> None:
    old = connect(subject)
    with subject.faults.refuse_connections():
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(subject)
        old.channel().queue_declare("q")
    connect(subject).close()
    old.close()


def test_refuse_publishes(subject: Broker) -> None:
    connection = connect(subject)
    channel, unconfirmed = connection.channel(), connection.channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"1")
    with subject.faults.refuse_publishes():
        for exchange, key in (("", "q"), ("", "nowhere"), ("amq.headers", "")):
            with pytest.raises(pika.exceptions.NackError):
                channel.basic_publish(exchange, key, b"2")
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", bytes(300_000))
        unconfirmed.basic_publish("", "q", b"3")
        unconfirmed.queue_declare("q", passive=True)
    channel.basic_publish("", "q", b"4")
    assert [channel.basic_get("q", auto_ack=True)[2] for _ in range(3)] == [b"1", b"4", None]
    connection.close()


@pytest.mark.parametrize("resource", ["memory", "disk"])
def test_alarms(subject: Broker, resource: Any) -> None:
    connection = connect(subject)
    told: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda *_: told.append("unblocked"))
    channel = connection.channel()
    channel.queue_declare("q")
    channel.basic_publish("", "q", b"before")
    channel.queue_declare("q", passive=True)
    fault = subject.faults.raise_alarm(resource)
    channel.basic_publish("", "q", b"held back")
    while not told:
        connection.process_data_events(10)
    assert subject.admin.queue("q").messages == 1
    fault.clear()
    while len(told) < 2:
        connection.process_data_events(10)
    assert told == [f"low on {resource}", "unblocked"]
    assert channel.queue_declare("q", passive=True).method.message_count == 2
    connection.close()


def test_clear_all(subject: Broker) -> None:
    subject.faults.refuse_connections()
    subject.faults.refuse_publishes()
    subject.faults.raise_alarm("memory")
    subject.faults.raise_alarm("disk")
    subject.faults.clear()
    connection = connect(subject)
    channel = connection.channel()
    channel.queue_declare("q")
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"x")
    connection.close()


def test_a_new_run_has_no_faults(subject: Broker) -> None:
    subject.faults.refuse_connections()
    subject.faults.raise_alarm("memory")
    subject.restart()
    connect(subject).close()
    assert subject.admin.call("alarms") == {"alarms": []}


def test_bad_words(subject: Broker) -> None:
    with pytest.raises(AdminError, match="memory or disk, not luck"):
        subject.faults.raise_alarm("luck")  # type: ignore[arg-type]
