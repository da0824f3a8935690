"""A running server as pika sees it: the verbs of AMQP, one by one."""

from __future__ import annotations

import os
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.clients.consumer import Consumer, fill, get_all, numbers, waiting
from tests.servers import Server, until

PERSISTENT = pika.BasicProperties(delivery_mode=2)
FRAME_MAX = 131_072


def refusal(action: Any, *arguments: Any, **options: Any) -> tuple[int, str]:
    """Code and text with which the server closed the channel."""
    with pytest.raises(ChannelClosedByBroker) as caught:
        action(*arguments, **options)
    return caught.value.reply_code, caught.value.reply_text


# -- Publish, get, consume ---------------------------------------------------------------------------------------


def test_properties_and_headers_arrive_as_they_were_sent(channel: Any, name: str) -> None:
    channel.queue_declare(name)
    properties = pika.BasicProperties(
        content_type="text/plain", content_encoding="utf-8", headers={"a": 1, "b": {"c": [True, "d", b"\xff"]}},
        delivery_mode=2, priority=3, correlation_id="c", reply_to="r", message_id="m", timestamp=1_700_000_000,
        type="t", user_id="guest", app_id="app", cluster_id="cl",
    )  # fmt: skip
    channel.basic_publish("", name, b"body", properties)
    method, received, body = channel.basic_get(name, auto_ack=True)
    assert body == b"body"
    assert (method.exchange, method.routing_key, method.redelivered, method.message_count) == ("", name, False, 0)
    assert received == properties


@pytest.mark.parametrize(
    "size",
    [0, 1, FRAME_MAX - 8, FRAME_MAX - 7, 3 * (FRAME_MAX - 8), 5_000_000],
    ids=["empty", "one-byte", "one-full-frame", "two-frames", "three-full-frames", "5MB"],
)
@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
def test_size(channel: Any, name: str, size: int, mode: int) -> None:
    """Twice, since the second publish of a kind takes a shorter way through the server; got and consumed."""
    body = os.urandom(size)
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    for _ in range(4):
        channel.basic_publish("", name, body, pika.BasicProperties(delivery_mode=mode))
    assert channel.basic_get(name, auto_ack=True)[2] == body
    assert Consumer(channel, name, auto_ack=True).bodies(3) == [body] * 3


@pytest.mark.parametrize("frame_max", [4096, 65_536])
def test_consumer_with_small_frames(broker: Server, channel: Any, name: str, frame_max: int) -> None:
    """What came in large frames goes out in as small ones as the consumer wants."""
    sent = [os.urandom(size) for size in (0, 1, 4088, 4089, 100_000, 1_000_000)]
    channel.queue_declare(name)
    for body in sent:
        channel.basic_publish("", name, body)
    small = broker.channel(frame_max=frame_max)
    assert Consumer(small, name, auto_ack=True).bodies(len(sent)) == sent
    for body in sent:
        small.basic_publish("", name, body)
    assert get_all(channel, name) == sent


def test_get_from_an_empty_queue(channel: Any, name: str) -> None:
    channel.queue_declare(name)
    assert channel.basic_get(name) == (None, None, None)


def test_order_among_several_channels(connection: Any, name: str) -> None:
    channels = [connection.channel() for _ in range(5)]
    channels[0].queue_declare(name)
    for number in range(50):
        channels[number % 5].basic_publish("", name, b"%d" % number)
    assert Consumer(channels[3], name, auto_ack=True).bodies(50) == numbers(*range(50))


def test_an_error_kills_its_channel_only(connection: Any, name: str) -> None:
    one, other = connection.channel(), connection.channel()
    other.queue_declare(name)
    code, text = refusal(one.queue_declare, "nowhere-" + name, passive=True)
    assert (code, text) == (404, f"NOT_FOUND - no queue 'nowhere-{name}' in vhost '/'")
    other.basic_publish("", name, b"x")
    assert other.basic_get(name, auto_ack=True)[2] == b"x"
    assert connection.channel(one.channel_number).basic_get(name) == (None, None, None)


def test_publish_to_no_exchange(channel: Any, name: str) -> None:
    channel.basic_publish("no-" + name, "k", b"x")
    assert refusal(channel.basic_qos) == (404, f"NOT_FOUND - no exchange 'no-{name}' in vhost '/'")


# -- Acknowledgements --------------------------------------------------------------------------------------------


def test_ack_one_and_multiple(broker: Server, channel: Any, name: str) -> None:
    channel.queue_declare(name)
    fill(channel, name, range(10))
    consumer = Consumer(channel, name)
    tags = [method.delivery_tag for method, _, _ in consumer.take(10)]
    channel.basic_ack(tags[6])
    channel.basic_ack(tags[3], multiple=True)
    channel.basic_ack(tags[8])
    channel.close()
    again = Consumer(broker.channel(), name)
    assert [(body, method.redelivered) for method, _, body in again.take(3)] == [
        (b"4", True), (b"5", True), (b"7", True)
    ]  # fmt: skip
    again.channel.basic_ack(0, multiple=True)
    again.channel.close()
    other = Consumer(broker.channel(), name)
    assert [(body, method.redelivered) for method, _, body in other.take(1)] == [(b"9", True)]
    assert other.is_idle()
