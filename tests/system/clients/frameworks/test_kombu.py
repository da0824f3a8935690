"""The server as kombu sees it: simple queues, mixins, pools, events of one connection for many consumers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.common import Broadcast, collect_replies, eventloop, send_reply
from kombu.mixins import ConsumerMixin, ConsumerProducerMixin
from kombu.pools import connections, producers
from kombu.simple import SimpleQueue

from tests.support.members import free_port
from tests.support.servers import Server

SECONDS = 60


@pytest.fixture
def link(broker: Server) -> Iterator[Any]:
    with Connection(broker.url, transport_options={"confirm_publish": True}) as connection:
        yield connection


def drain(connection: Any, seen: list[Any], count: int) -> None:
    while len(seen) < count:
        connection.drain_events(timeout=SECONDS)


# -- Simple queues -----------------------------------------------------------------------------------------------------


def test_simple_queue(link: Any, name: str) -> None:
    with link.SimpleQueue(name, serializer="json", compression="zlib") as queue:
        for number in range(3):
            queue.put({"number": number}, headers={"n": number}, priority=number)
        assert queue.qsize() == 3
        message = queue.get(timeout=SECONDS)
        assert (message.payload, message.headers["n"], message.delivery_info["redelivered"]) == (
            {"number": 0},
            0,
            False,
        )
        message.requeue()
        again = [queue.get(timeout=SECONDS) for _ in range(3)]
        assert sorted(message.payload["number"] for message in again) == [0, 1, 2]
        assert [message.payload["number"] for message in again if message.delivery_info["redelivered"]] == [0]
        for message in again:
            message.ack()
        with pytest.raises(SimpleQueue.Empty):
            queue.get_nowait()
        queue.put("gone")
        queue.clear()
        assert len(queue) == 0


def test_simple_buffer_goes_with_its_consumer(link: Any, name: str) -> None:
    with link.SimpleBuffer(name) as buffer:
        buffer.put("here and now")
        assert buffer.get(timeout=SECONDS).payload == "here and now"
    with pytest.raises(link.channel_errors, match=f"no queue '{name}'"):
        Queue(name, channel=link.default_channel).queue_declare(passive=True)


# -- Consumers and producers -------------------------------------------------------------------------------------------


def test_eventloop(link: Any, name: str) -> None:
    """One connection, two channels; events of both come through it, in turns of the loop."""
    exchange = Exchange(name, "topic")
    seen: list[tuple[str, Any]] = []
    queues = {key: Queue(f"{name}.{key}", exchange, routing_key=f"*.{key}") for key in ("red", "blue")}

    def on_message(body: Any, message: Any) -> None:
        seen.append((message.delivery_info["routing_key"], body))
        message.ack()

    consumers = [Consumer(link.channel(), [queue], callbacks=[on_message]) for queue in queues.values()]
    for consumer in consumers:
        consumer.qos(prefetch_count=2, apply_global=True)
        consumer.consume()
    producer = link.Producer(exchange=exchange)
    for number in range(10):
        producer.publish({"number": number}, routing_key=f"a.{'red' if number % 2 else 'blue'}")
    loop = eventloop(link, timeout=SECONDS, ignore_timeouts=False)
    while len(seen) < 10:  # Some may have come while publishes waited to be confirmed.
        next(loop)
    for key, numbers in (("red", [1, 3, 5, 7, 9]), ("blue", [0, 2, 4, 6, 8])):
        assert [body["number"] for route, body in seen if route == f"a.{key}"] == numbers
    with pytest.raises(socket.timeout):
        for _ in eventloop(link, timeout=0.01, ignore_timeouts=False):
            pass


def test_what_leads_nowhere_comes_back(link: Any, name: str) -> None:
    """Before it is confirmed."""
    returned: list[tuple[Any, ...]] = []
    producer = Producer(link, on_return=lambda *told: returned.append(told))
    producer.publish("lost", routing_key=name, mandatory=True)
    ((error, exchange, key, message),) = returned
    assert (error.reply_code, exchange, key, message.body) == (312, "", name, "lost")
    Queue(name, channel=link.default_channel).declare()
    producer.publish("found", routing_key=name, mandatory=True)
    assert len(returned) == 1


def test_exchanges_bound_to_exchanges(link: Any, name: str) -> None:
    channel = link.default_channel
    source = Exchange(f"{name}.source", "topic", auto_delete=True)(channel)
    target = Exchange(f"{name}.target", "fanout")(channel)
    source.declare(), target.declare()
    target.bind_to(source, routing_key="a.#")
    queue = Queue(name, target)(channel)
    queue.declare()
    for key in ("a.b", "b.a"):
        source.publish(source.Message(key), routing_key=key)
    got = queue.get(no_ack=True)
    assert got.body == "a.b" and queue.get() is None
    target.unbind_from(source, routing_key="a.#")
    with pytest.raises(link.channel_errors, match="no exchange"):
        source.declare(passive=True)


def test_a_broadcast_reaches_all(link: Any, name: str) -> None:
    seen: list[str] = []
    consumers = [
        Consumer(
            link.channel(),
            [Broadcast(name, unique=True)],
            callbacks=[lambda body, message, who=who: seen.append(f"{who}: {body}")],
            no_ack=True,
        )
        for who in ("one", "other")
    ]
    for consumer in consumers:
        consumer.consume()
    link.Producer(exchange=Exchange(name, "fanout")).publish("hear ye")
    drain(link, seen, 2)
    assert sorted(seen) == ["one: hear ye", "other: hear ye"]


def test_pools(broker: Server, name: str) -> None:
    """Producers of a pool share what connections there are, and give them back."""
    connection = Connection(broker.url)
    queue = Queue(name, auto_delete=True)
    for number in range(5):
        with producers[connection].acquire(block=True) as producer:
            producer.publish(number, routing_key=name, declare=[queue], retry=True)
    with connections[connection].acquire(block=True) as held:
        assert [queue(held.default_channel).get(no_ack=True).payload for _ in range(5)] == list(range(5))
    producers[connection].force_close_all()
    connections[connection].force_close_all()


def test_the_next_address_when_one_refuses(broker: Server, name: str) -> None:
    with Connection([f"amqp://guest:guest@127.0.0.1:{free_port()}//", broker.url]) as connection:
        connection.ensure_connection(max_retries=3, interval_start=0)
        with connection.SimpleQueue(name) as queue:
            queue.put(1)
            assert queue.get(timeout=SECONDS).payload == 1


# -- Mixins ------------------------------------------------------------------------------------------------------------


class Once(ConsumerMixin):  # type: ignore[misc]
    """Consumes until it has seen enough, over as many connections as that takes."""

    def __init__(self, connection: Any, queue: Any, enough: int) -> None:
        self.connection = connection
        self.queue = queue
        self.enough = enough
        self.seen: list[Any] = []
        self.begun = 0

    def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
        return [consumer([self.queue], callbacks=[self.on_message], prefetch_count=1)]

    def on_consume_ready(self, connection: Any, channel: Any, consumers: Any, **_: Any) -> None:
        self.begun += 1

    def on_message(self, body: Any, message: Any) -> None:
        self.seen.append((body, message.delivery_info["redelivered"]))
        if body == "trip" and self.begun == 1:
            message.channel.connection.transport.sock.shutdown(socket.SHUT_RDWR)
            return
        message.ack()
        self.should_stop = len(self.seen) >= self.enough


def test_consumer_mixin_goes_on_after_its_connection_is_lost(broker: Server, link: Any, name: str) -> None:
    queue = Queue(name)
    for body in ("first", "trip", "last"):
        link.Producer().publish(body, routing_key=name, declare=[queue])
    mixin = Once(Connection(broker.url), queue, 4)
    mixin.run()
    assert mixin.begun == 2
    assert mixin.seen == [("first", False), ("trip", False), ("trip", True), ("last", False)]
    mixin.connection.close()


class Answering(ConsumerProducerMixin):  # type: ignore[misc]
    def __init__(self, connection: Any, queue: Any) -> None:
        self.connection = connection
        self.queue = queue

    def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
        return [consumer([self.queue], on_message=self.on_request)]

    def on_request(self, message: Any) -> None:
        send_reply(Exchange(""), message, {"double": message.payload * 2}, self.producer)
        message.ack()
        self.should_stop = True


def test_request_and_reply(broker: Server, link: Any, name: str) -> None:
    """Over a queue of the asker's own that expires."""
    replies = Queue(f"{name}.replies", exclusive=True, expires=60)
    replies(link.default_channel).declare()
    link.Producer().publish(21, routing_key=name, declare=[Queue(name)], reply_to=replies.name, correlation_id="21")
    answering = Answering(Connection(broker.url), Queue(name))
    answering.run()
    answering.connection.close()
    (reply,) = collect_replies(link, link.channel(), replies, timeout=SECONDS, limit=1)
    assert reply == {"double": 42}
