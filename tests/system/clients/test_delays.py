"""Delayed exchanges of a real node: it dies, and what it kept back comes when it is due."""

from __future__ import annotations

import time
from typing import Any

import pika

from tests.support.consumer import Consumer, get_all
from tests.system.conftest import Start

COUNT = 200


def delayed(delay_ms: int, mode: int = 2) -> pika.BasicProperties:
    return pika.BasicProperties(headers={"x-delay": delay_ms}, delivery_mode=mode)


def set_up(channel: Any, name: str) -> None:
    channel.exchange_declare(name, "x-delayed-message", durable=True, arguments={"x-delayed-type": "direct"})
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, name, "k")


def test_it_comes_later(channel: Any, name: str) -> None:
    set_up(channel, name)
    consumer = Consumer(channel, name, auto_ack=True)
    began = time.time()
    channel.basic_publish(name, "k", b"late", delayed(300))
    channel.basic_publish(name, "k", b"at once")
    (_, _, first), (method, properties, second) = consumer.take(2)
    assert time.time() >= began + 0.3
    assert (first, second, properties.headers) == (b"at once", b"late", {"x-delay": -300})
    assert (method.exchange, method.routing_key, method.redelivered) == (name, "k", False)


def test_kill_and_restart(start: Start, name: str) -> None:
    """What was due meanwhile, what is due later, transient or not: all of it is there, and in time."""
    server = start()
    channel = server.channel()
    set_up(channel, name)
    due: dict[bytes, float] = {}
    for number in range(COUNT):
        body, is_short = b"%d" % number, number % 4 == 0
        if number == COUNT - 1:
            channel.confirm_delivery()  # What came before it is on disk when it is.
        # Who is let go is what it was, and a transient message does not outlive the node.
        delay_ms, mode = (10, 2) if is_short else (3_000 + number % 7, 1 + number % 2)
        due[body] = time.time() + delay_ms / 1000
        channel.basic_publish(name, "k", body, delayed(delay_ms, mode))
    server.kill()
    server.start()
    channel = server.channel()
    consumer = Consumer(channel, name, auto_ack=True)
    came: set[bytes] = set()
    while len(came) < COUNT:
        ((_, properties, body),) = consumer.take(1)
        assert time.time() >= due[body] and properties.headers["x-delay"] < 0
        came.add(body)  # A few may come twice: those that were on their way when the node died.
    assert came == set(due)


def test_a_controlled_restart_gives_nothing_twice(start: Start, name: str) -> None:
    server = start()
    channel = server.channel()
    set_up(channel, name)
    for number in range(COUNT):
        if number == COUNT - 1:
            channel.confirm_delivery()
        channel.basic_publish(name, "k", b"%d" % number, delayed(500))
    assert server.stop() == 0
    server.start()
    channel = server.channel()
    consumer = Consumer(channel, name)
    assert sorted(consumer.bodies(COUNT), key=int) == [b"%d" % number for number in range(COUNT)]
    assert consumer.is_idle()
    channel.exchange_delete(name)
    channel.close()
    assert get_all(server.channel(), name) == [b"%d" % number for number in range(COUNT)]
