"""A running server as pika sees it: the verbs of AMQP, one by one."""

from __future__ import annotations

import os
from typing import Any

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, UnroutableError

from tests.support.consumer import Consumer, fill, get_all, numbers, waiting
from tests.support.servers import Server, until

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
    consumer = Consumer(small, name, auto_ack=True)
    assert consumer.bodies(len(sent)) == sent
    small.basic_cancel(consumer.tag)
    small.confirm_delivery()
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
    second = broker.channel()
    second.basic_qos(prefetch_count=3)
    again = Consumer(second, name)
    assert [(body, method.redelivered) for method, _, body in again.take(3)] == [
        (b"4", True), (b"5", True), (b"7", True)
    ]  # fmt: skip
    second.basic_ack(0, multiple=True)
    assert [(body, method.redelivered) for method, _, body in again.take(1)] == [(b"9", True)]
    assert again.is_idle()


@pytest.mark.parametrize("verb", ["basic_nack", "basic_reject", "basic_recover"])
def test_back_to_its_old_place(channel: Any, name: str, verb: str) -> None:
    channel.queue_declare(name)
    fill(channel, name, range(3))
    tag = channel.basic_get(name)[0].delivery_tag
    channel.basic_get(name)
    if verb == "basic_recover":
        channel.basic_recover(requeue=True)
    else:
        getattr(channel, verb)(tag, requeue=True)
    method, _, body = channel.basic_get(name)
    assert (body, method.redelivered) == (b"0", True)
    rest = [(b"1", True), (b"2", False)] if verb == "basic_recover" else [(b"2", False)]
    got = [channel.basic_get(name) for _ in rest]
    assert [(body, method.redelivered) for method, _, body in got] == rest


@pytest.mark.parametrize("verb", ["basic_nack", "basic_reject"])
def test_thrown_away(channel: Any, name: str, verb: str) -> None:
    channel.queue_declare(name)
    fill(channel, name, range(2))
    getattr(channel, verb)(channel.basic_get(name)[0].delivery_tag, requeue=False)
    assert get_all(channel, name) == [b"1"]


def test_nack_multiple(channel: Any, name: str) -> None:
    channel.queue_declare(name)
    fill(channel, name, range(6))
    tags = [channel.basic_get(name)[0].delivery_tag for _ in range(5)]
    channel.basic_nack(tags[1], multiple=True, requeue=False)
    channel.basic_nack(tags[3], multiple=True, requeue=True)
    assert get_all(channel, name) == numbers(2, 3, 5)
    channel.basic_nack(0, multiple=True, requeue=True)
    assert get_all(channel, name) == numbers(4)


def test_unknown_delivery_tag(channel: Any, name: str) -> None:
    channel.queue_declare(name)
    channel.basic_publish("", name, b"x")
    tag = channel.basic_get(name)[0].delivery_tag
    channel.basic_ack(tag)
    channel.basic_ack(tag)
    assert refusal(channel.basic_qos) == (406, f"PRECONDITION_FAILED - unknown delivery tag {tag}")


def test_requeued_by_the_end_of_a_connection(broker: Server, channel: Any, name: str) -> None:
    """In order, between what was never delivered, and marked."""
    channel.queue_declare(name)
    fill(channel, name, range(100))
    lost = broker.connect()
    taker = lost.channel()
    taker.basic_qos(prefetch_count=60)
    taken = Consumer(taker, name).take(60)
    for method, _, body in taken:
        if int(body) % 3 == 0:
            taker.basic_ack(method.delivery_tag)
    taker.basic_qos(prefetch_count=60)  # Answered when the acks are dealt with: each made room for one more.
    lost.close()
    expected = [(b"%d" % number, number < 80) for number in range(100) if number >= 60 or number % 3]
    got = Consumer(channel, name, auto_ack=True).take(80)
    assert [(body, method.redelivered) for method, _, body in got] == expected


# -- Prefetch ----------------------------------------------------------------------------------------------------


def test_prefetch_per_consumer(channel: Any, name: str) -> None:
    """Of the consumers begun after it; each has its own."""
    channel.queue_declare(name)
    fill(channel, name, range(20))
    channel.basic_qos(prefetch_count=3)
    three = Consumer(channel, name)
    taken = three.take(3)
    assert three.is_idle()
    channel.basic_qos(prefetch_count=2)
    two = Consumer(channel, name)
    assert two.bodies(2) == numbers(3, 4)
    channel.basic_ack(taken[1][0].delivery_tag)
    assert three.bodies(1) == numbers(5)
    assert three.is_idle() and two.is_idle()


def test_prefetch_of_a_channel_changed_live(channel: Any, name: str) -> None:
    channel.queue_declare(name)
    fill(channel, name, range(20))
    channel.basic_qos(prefetch_count=2, global_qos=True)
    one, other = Consumer(channel, name), Consumer(channel, name)

    def assert_delivered(number: int) -> None:
        """As many to both together, and no more."""
        seen = one.seen, other.seen
        until(lambda: channel.connection.process_data_events(0.05) or sum(map(len, seen)) >= number, f"{number}")
        one.is_idle()
        assert sum(map(len, seen)) == number

    assert_delivered(2)
    channel.basic_qos(prefetch_count=5, global_qos=True)
    assert_delivered(5)
    tags = sorted(method.delivery_tag for method, _, _ in one.seen + other.seen)
    assert tags == [1, 2, 3, 4, 5]
    channel.basic_qos(prefetch_count=1, global_qos=True)
    channel.basic_ack(4, multiple=True)
    assert_delivered(5)  # One is out still, and one is the limit.
    channel.basic_ack(5)
    assert_delivered(6)
    channel.basic_qos(prefetch_count=0, global_qos=True)
    assert_delivered(20)


def test_consumers_take_turns(broker: Server, channel: Any, name: str) -> None:
    channel.queue_declare(name)
    one, other = Consumer(channel, name, auto_ack=True), Consumer(broker.channel(), name, auto_ack=True)
    fill(channel, name, range(40))
    assert len(one.take(20)) == len(other.take(20)) == 20


def test_prefetch_size_is_refused(connection: Any) -> None:
    channel = connection.channel()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        channel.basic_qos(prefetch_size=1)
    assert (caught.value.reply_code, caught.value.reply_text) == (540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)")


# -- Confirms ----------------------------------------------------------------------------------------------------


def test_mandatory_return_comes_before_the_ack(broker: Server, name: str) -> None:
    channel = broker.channel(confirms=True)
    with pytest.raises(UnroutableError) as caught:
        channel.basic_publish("", name, b"lost", pika.BasicProperties(type="t"), mandatory=True)
    [returned] = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("", name)
    assert (returned.body, returned.properties.type) == (b"lost", "t")
    channel.basic_publish("", name, b"lost too")  # Not mandatory: confirmed, and that is all.
    channel.queue_declare(name)
    channel.basic_publish("", name, b"kept", mandatory=True)
    assert get_all(channel, name) == [b"kept"]


def test_confirms_of_everything(broker: Server, name: str) -> None:
    """Every number exactly once, single or as part of a multiple, whatever the messages' kind."""
    confirmed: list[int] = []
    returned: list[bytes] = []

    def on_open(channel: Any) -> None:
        channel.queue_declare(name, durable=True, callback=lambda _: channel.confirm_delivery(on_confirm, on_ready))
        channel.add_on_return_callback(lambda *arguments: returned.append(arguments[-1]))
        state["channel"] = channel

    def on_ready(_: Any) -> None:
        for number in range(1, 1001):
            properties = PERSISTENT if number % 3 else None
            key = name if number % 7 else "nowhere"
            state["channel"].basic_publish("", key, b"%d" % number, properties, mandatory=number % 14 == 0)

    def on_confirm(frame: Any) -> None:
        assert frame.method.NAME == "Basic.Ack"
        tag = frame.method.delivery_tag
        known = set(confirmed)
        if frame.method.multiple:
            confirmed.extend(number for number in range(1, tag + 1) if number not in known)
        else:
            assert tag not in known
            confirmed.append(tag)
        if len(confirmed) == 1000:
            connection.close()

    state: dict[str, Any] = {}
    connection = pika.SelectConnection(
        pika.ConnectionParameters("127.0.0.1", broker.port),
        on_open_callback=lambda opened: opened.channel(on_open_callback=on_open),
        on_close_callback=lambda closed, _: closed.ioloop.stop(),
        on_open_error_callback=lambda closed, _: closed.ioloop.stop(),
    )
    connection.ioloop.call_later(15, connection.ioloop.stop)
    connection.ioloop.start()
    assert sorted(confirmed) == list(range(1, 1001))
    assert returned == [b"%d" % number for number in range(14, 1001, 14)]
    kept = get_all(broker.channel(), name)
    assert kept == [b"%d" % number for number in range(1, 1001) if number % 7]


# -- Exchanges ---------------------------------------------------------------------------------------------------


def bound(channel: Any, exchange: str, *keys: str, arguments: dict[str, Any] | None = None) -> str:
    queue: str = channel.queue_declare("", exclusive=True).method.queue
    for key in keys:
        channel.queue_bind(queue, exchange, key, arguments)
    return queue


def test_direct_fanout_topic_headers(channel: Any, name: str) -> None:
    for kind in ("direct", "fanout", "topic", "headers"):
        channel.exchange_declare(f"{name}-{kind}", kind)
    direct = bound(channel, name + "-direct", "a", "b")
    fanout = bound(channel, name + "-fanout", "", "ignored")
    topic = bound(channel, name + "-topic", "*.x.#", "#.y", "*.x.#")
    every = bound(channel, name + "-headers", "", arguments={"x-match": "all", "a": 1, "b": "two"})
    some = bound(channel, name + "-headers", "", arguments={"x-match": "any", "a": 1, "b": "two"})
    for key in ("a", "b", "c", "a.x", "a.x.y", "a.b.x"):
        for kind in ("direct", "fanout", "topic"):
            channel.basic_publish(f"{name}-{kind}", key, key.encode())
    for headers in ({"a": 1}, {"a": 1, "b": "two"}, {"a": 2}, {}):
        body = repr(headers).encode()
        channel.basic_publish(name + "-headers", "", body, pika.BasicProperties(headers=headers))
    assert get_all(channel, direct) == [b"a", b"b"]
    assert get_all(channel, fanout) == [b"a", b"b", b"c", b"a.x", b"a.x.y", b"a.b.x"]
    assert get_all(channel, topic) == [b"a.x", b"a.x.y"]
    assert get_all(channel, every) == [b"{'a': 1, 'b': 'two'}"]
    assert get_all(channel, some) == [b"{'a': 1}", b"{'a': 1, 'b': 'two'}"]


def test_predeclared_exchanges(channel: Any) -> None:
    kinds = {"amq.direct": "direct", "amq.fanout": "fanout", "amq.topic": "topic", "amq.headers": "headers",
             "amq.match": "headers"}  # fmt: skip
    for exchange, kind in kinds.items():
        channel.exchange_declare(exchange, kind, durable=True)
    code, text = refusal(channel.exchange_declare, "amq.mine", "direct")
    assert (code, text) == (403, "ACCESS_REFUSED - exchange name 'amq.mine' contains reserved prefix 'amq.*'")


def test_exchange_to_exchange_and_unbind(channel: Any, name: str) -> None:
    channel.exchange_declare(name + "-a", "direct")
    channel.exchange_declare(name + "-b", "fanout", internal=True)
    channel.exchange_bind(name + "-b", name + "-a", "k")
    queue = bound(channel, name + "-b", "")
    channel.basic_publish(name + "-a", "k", b"1")
    channel.basic_publish(name + "-a", "other", b"2")
    channel.exchange_unbind(name + "-b", name + "-a", "k")
    channel.basic_publish(name + "-a", "k", b"3")
    assert get_all(channel, queue) == [b"1"]
    channel.basic_publish(name + "-b", "", b"4")
    assert refusal(channel.basic_qos) == (
        403,
        f"ACCESS_REFUSED - cannot publish to internal exchange '{name}-b' in vhost '/'",
    )


def test_route_changes_between_two_publishes_of_one_kind(channel: Any, name: str) -> None:
    """The server remembers where the last message went; a binding made since must count."""
    channel.exchange_declare(name, "topic")
    first = bound(channel, name, "k")
    for _ in range(3):
        channel.basic_publish(name, "k", b"x")
    second = bound(channel, name, "#")
    for _ in range(3):
        channel.basic_publish(name, "k", b"x")
    channel.queue_unbind(first, name, "k")
    for _ in range(3):
        channel.basic_publish(name, "k", b"x")
    assert (len(get_all(channel, first)), len(get_all(channel, second))) == (6, 6)


def test_exchange_auto_delete_and_if_unused(channel: Any, connection: Any, name: str) -> None:
    channel.exchange_declare(name, "direct", auto_delete=True)
    queue = bound(channel, name, "k")
    code, text = refusal(channel.exchange_delete, name, if_unused=True)
    assert (code, text) == (406, f"PRECONDITION_FAILED - exchange '{name}' in vhost '/' in use")
    channel = connection.channel()
    channel.exchange_declare(name, passive=True)
    channel.queue_unbind(queue, name, "k")
    code, text = refusal(channel.exchange_declare, name, passive=True)
    assert (code, text) == (404, f"NOT_FOUND - no exchange '{name}' in vhost '/'")


def test_exchange_declared_otherwise(channel: Any, name: str) -> None:
    channel.exchange_declare(name, "direct")
    assert refusal(channel.exchange_declare, name, "fanout") == (
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'type' for exchange '{name}' in vhost '/': received 'fanout' but "
        "current is 'direct'",
    )


# -- Queues ------------------------------------------------------------------------------------------------------


def test_server_named_and_the_last_declared(channel: Any) -> None:
    queue = channel.queue_declare("").method.queue
    assert queue.startswith("amq.gen-")
    channel.queue_bind("", "amq.direct", "via-" + queue)
    channel.basic_publish("amq.direct", "via-" + queue, b"x")
    assert channel.basic_get("")[2] == b"x"
    channel.queue_delete("")


def test_queue_declared_otherwise(channel: Any, name: str) -> None:
    channel.queue_declare(name, durable=True)
    assert refusal(channel.queue_declare, name) == (
        406,
        f"PRECONDITION_FAILED - inequivalent arg 'durable' for queue '{name}' in vhost '/': received 'false' but "
        "current is 'true'",
    )


def test_exclusive(broker: Server, connection: Any, channel: Any, name: str) -> None:
    """Of one connection, all its channels; gone with it."""
    channel.queue_declare(name, exclusive=True)
    connection.channel().basic_publish("", name, b"x")
    other = broker.connect()
    text = (
        f"RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '{name}' in vhost '/'. It could be "
        "originally declared on another connection or the exclusive property value does not match that of the "
        "original declaration."
    )
    assert refusal(other.channel().queue_declare, name, passive=True) == (405, text)
    assert refusal(other.channel().basic_get, name) == (405, text)
    assert connection.channel().basic_get(name)[2] == b"x"
    connection.close()
    assert refusal(other.channel().queue_declare, name, passive=True)[0] == 404


def test_exclusive_consumer(broker: Server, channel: Any, name: str) -> None:
    channel.queue_declare(name)
    consumer = Consumer(channel, name, exclusive=True)
    expected = (403, f"ACCESS_REFUSED - queue '{name}' in vhost '/' in exclusive use")
    other = broker.connect()
    assert refusal(other.channel().basic_consume, name, print) == expected
    channel.basic_cancel(consumer.tag)
    second = Consumer(other.channel(), name)
    assert refusal(channel.basic_consume, name, print, exclusive=True) == expected
    second.channel.basic_publish("", name, b"x")
    assert second.bodies(1) == [b"x"]


def test_queue_auto_delete(connection: Any, channel: Any, name: str) -> None:
    """When its last consumer goes, and not before it had one."""
    channel.queue_declare(name, auto_delete=True)
    channel.basic_publish("", name, b"x")
    assert channel.basic_get(name, auto_ack=True)[2] == b"x"
    one, other = Consumer(channel, name), Consumer(channel, name)
    channel.basic_cancel(one.tag)
    assert channel.queue_declare(name, passive=True).method.consumer_count == 1
    channel.basic_cancel(other.tag)
    until(lambda: is_gone(connection, name), "the queue is gone")


def is_gone(connection: Any, name: str) -> bool:
    try:
        connection.channel().queue_declare(name, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        return bool(error.reply_code == 404)
    return False


def test_passive_counts(channel: Any, name: str) -> None:
    channel.queue_declare(name)
    fill(channel, name, range(7))
    channel.basic_get(name)
    Consumer(channel, name)
    channel.basic_qos(prefetch_count=1)
    result = channel.queue_declare(name, passive=True).method
    assert (result.queue, result.message_count, result.consumer_count) == (name, 0, 1)


def test_purge(channel: Any, name: str) -> None:
    """What waits; what is out stays out, and may come back."""
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    fill(channel, name, range(5), properties=PERSISTENT)
    tag = channel.basic_get(name)[0].delivery_tag
    assert channel.queue_purge(name).method.message_count == 4
    channel.basic_nack(tag)
    fill(channel, name, range(5, 7))
    assert get_all(channel, name) == numbers(0, 5, 6)


def test_delete_variants(connection: Any, channel: Any, name: str) -> None:
    channel.queue_declare(name)
    channel.basic_publish("", name, b"x")
    assert refusal(channel.queue_delete, name, if_empty=True) == (
        406,
        f"PRECONDITION_FAILED - queue '{name}' in vhost '/' not empty",
    )
    channel = connection.channel()
    consumer = Consumer(channel, name)
    consumer.take(1)
    assert refusal(channel.queue_delete, name, if_unused=True) == (
        406,
        f"PRECONDITION_FAILED - queue '{name}' in vhost '/' in use",
    )
    channel = connection.channel()
    assert channel.queue_delete(name, if_unused=True).method.message_count == 1
    assert channel.queue_delete(name).method.message_count == 0  # Gone is gone.


def test_consumers_are_told_when_their_queue_is_deleted(broker: Server, channel: Any, name: str) -> None:
    cancelled: list[str] = []
    channel.queue_declare(name)
    channel.basic_publish("", name, b"x")
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    consumer = Consumer(channel, name)
    tag = consumer.take(1)[0][0].delivery_tag
    broker.channel().queue_delete(name)
    until(lambda: channel.connection.process_data_events(0.05) or cancelled, "the cancel")
    assert cancelled == [consumer.tag]
    channel.basic_ack(tag)  # Of a message that is no more: harmless.
    channel.queue_declare(name)
    assert waiting(channel, name) == 0


def test_cancel(channel: Any, name: str) -> None:
    """What the consumer has stays its; nothing new comes."""
    channel.queue_declare(name)
    consumer = Consumer(channel, name)
    channel.basic_publish("", name, b"1")
    tag = consumer.take(1)[0][0].delivery_tag
    channel.basic_cancel(consumer.tag)
    channel.basic_publish("", name, b"2")
    assert consumer.is_idle()
    channel.basic_ack(tag)
    assert get_all(channel, name) == [b"2"]
    again = Consumer(channel, name, consumer_tag="mine")
    with pytest.raises(pika.exceptions.DuplicateConsumerTag):
        Consumer(channel, name, consumer_tag="mine")
    assert again.tag == "mine"
