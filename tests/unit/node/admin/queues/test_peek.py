"""Looking at a message that waits, in memory or in the log only, without taking it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.testing import Broker
from tests.support.servers import until


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with leveret.testing.broker(config="content_cache_bytes = 0") as node:
        yield node


def ask(broker: Broker, command: str, **arguments: Any) -> Any:
    return broker.admin.call(command, **arguments)


def rows(broker: Broker, *columns: str) -> Any:
    return ask(broker, "list_queues", vhost="/", columns=list(columns))["rows"]


@pytest.mark.parametrize("arguments", [{}, {"x-max-priority": 3}], ids=["plain", "with priorities"])
def test_a_message_that_is_in_the_log_only(node: Broker, arguments: dict[str, Any]) -> None:
    channel = pika.BlockingConnection(pika.URLParameters(node.url)).channel()
    channel.queue_declare("q", durable=True, arguments=arguments)
    channel.confirm_delivery()
    for number in range(40):
        properties = pika.BasicProperties(delivery_mode=2, headers={"number": number})
        channel.basic_publish("", "q", b"%03d" % number + b"x" * 10_000, properties)

    def on_disk() -> bool:
        ((count,),) = rows(node, "messages_ready_disk")
        return int(count or 0) > 0

    until(on_disk, "contents to leave memory")
    for position in (1, 17, 40):
        found = ask(node, "peek", vhost="/", name="q", position=position)
        assert found["header.number"] == position - 1
        assert found["payload (max 64 bytes)"].startswith(f"{position - 1:03d}x")
        assert found["payload_bytes"] == 10_003
    assert rows(node, "messages_ready", "messages_unacknowledged") == [[40, 0]]
    method, _, _ = channel.basic_get("q", auto_ack=True)
    assert not method.redelivered
    channel.queue_delete("q")
    channel.connection.close()


def test_headers_are_shown_as_the_http_api_shows_them(node: Broker) -> None:
    channel = pika.BlockingConnection(pika.URLParameters(node.url)).channel()
    channel.queue_declare("dead")
    channel.queue_declare("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
    channel.confirm_delivery()
    channel.basic_publish("", "q", b"x", pika.BasicProperties(headers={"nested": {"list": [1, {"deep": "text"}]}}))
    method, _, _ = channel.basic_get("q")
    channel.basic_reject(method.delivery_tag, requeue=False)
    (one,) = ask(node, "peek_many", vhost="/", name="dead", position=1, count=1, bytes_max=10)["messages"]
    headers = one["properties"]["headers"]
    assert headers["nested"] == {"list": [1, {"deep": "text"}]}
    (death,) = headers["x-death"]
    assert (death["reason"], death["queue"], death["routing-keys"]) == ("rejected", "q", ["q"])
    channel.queue_delete("q")
    channel.queue_delete("dead")
    channel.connection.close()


def test_a_stream_is_read_otherwise(node: Broker) -> None:
    channel = pika.BlockingConnection(pika.URLParameters(node.url)).channel()
    channel.queue_declare("s", durable=True, arguments={"x-queue-type": "stream"})
    with pytest.raises(leveret.testing.AdminError, match="Cannot peek into a stream"):
        ask(node, "peek", vhost="/", name="s", position=1)
    channel.queue_delete("s")
    channel.connection.close()
