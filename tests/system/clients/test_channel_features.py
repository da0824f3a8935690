"""Transactions, direct reply-to, limits and renewed secrets, as pika's users use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionClosedByBroker, ProbableAccessDeniedError

from leveret.metadata.defaults import first_boot
from leveret.metadata.model.commands import SetUserLimits, SetVhostLimits
from tests.support.consumer import get_all
from tests.support.servers import Server, prepare

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def test_transactions(broker: Server, channel: Any, name: str) -> None:
    """Take from one queue and put into another: both or neither."""
    other = broker.channel()
    channel.queue_declare(name, durable=True)
    channel.queue_declare(f"{name}-done", durable=True)
    other.basic_publish("", name, b"a", PERSISTENT)
    channel.tx_select()
    for body in (b"A", b"B"):
        method, _, _ = channel.basic_get(name)
        channel.basic_publish("", f"{name}-done", body, PERSISTENT)
        channel.basic_ack(method.delivery_tag)
        assert get_all(other, f"{name}-done") == []
        if body == b"A":
            channel.tx_rollback()
            channel.basic_recover(requeue=True)
    channel.tx_commit()
    assert get_all(other, f"{name}-done") == [b"B"]
    channel.close()
    assert get_all(other, name) == []


def test_direct_reply_to(broker: Server, channel: Any, name: str) -> None:
    """The usual way to ask: consume from the pseudo-queue, publish a question, wait for the answer."""
    answers: list[tuple[str, bytes]] = []
    asker = broker.channel()
    asker.basic_consume(
        "amq.rabbitmq.reply-to", lambda *got: answers.append((got[2].correlation_id, got[3])), auto_ack=True
    )
    asker.confirm_delivery()
    channel.queue_declare(name)
    for number in range(3):
        question = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id=str(number))
        asker.basic_publish("", name, b"question", question)
    for _ in range(3):
        _, question, body = channel.basic_get(name, auto_ack=True)
        answer = pika.BasicProperties(correlation_id=question.correlation_id)
        channel.basic_publish("", question.reply_to, body[::-1], answer)
    while len(answers) < 3:
        asker.connection.process_data_events(1)
    assert answers == [(str(number), b"noitseuq") for number in range(3)]


def test_update_secret(broker: Server) -> None:
    connection = broker.connect()
    connection.update_secret("another", "renewed")
    assert connection.is_open and connection.channel().is_open


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("limited"))
    of_user, of_vhost = {"max-channels": 2}, {"max-connections": 2, "max-queues": 1}
    prepare(server.data, [*first_boot(b"salt"), SetUserLimits("guest", of_user), SetVhostLimits("/", of_vhost)])
    server.start()
    yield server
    server.end()


def test_limits(limited: Server) -> None:
    first, second = limited.connect(), limited.connect()
    with pytest.raises(ProbableAccessDeniedError) as denied:
        limited.connect()
    text = "NOT_ALLOWED - access to vhost '/' refused for user 'guest': connection limit (2) is reached"
    assert f'(530) "{text}"' in str(denied.value)
    channel = first.channel()
    channel.queue_declare("q")
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare("r")
    text = "PRECONDITION_FAILED - cannot declare queue 'r': queue limit in vhost '/' (1) is reached"
    assert (refused.value.reply_code, refused.value.reply_text) == (406, text)
    first.channel()
    second.channel()
    with pytest.raises(ConnectionClosedByBroker) as caught:
        second.channel()
    text = "NOT_ALLOWED - number of channels opened for user 'guest' has reached the maximum allowed user limit of (2)"
    assert (caught.value.reply_code, caught.value.reply_text) == (530, text)
