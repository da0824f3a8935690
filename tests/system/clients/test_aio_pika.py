"""The server as aio-pika sees it: many things at once on one connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import aio_pika
import pytest
from aio_pika.abc import AbstractConnection, AbstractIncomingMessage
from aio_pika.exceptions import ChannelNotFoundEntity, ChannelPreconditionFailed, DeliveryError

from tests.support.members import free_port
from tests.support.servers import Server
from tests.system.conftest import Start

SECONDS = 60


@pytest.fixture
async def link(broker: Server) -> AsyncIterator[AbstractConnection]:
    connection = await aio_pika.connect(broker.url)
    yield connection
    await connection.close()


async def test_publish_and_consume(link: AbstractConnection, name: str) -> None:
    channel = await link.channel()
    queue = await channel.declare_queue(name, durable=True)
    message = aio_pika.Message(
        b"hello", headers={"a": [1, "b"]}, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, correlation_id="c"
    )
    await channel.default_exchange.publish(message, name)
    async with asyncio.timeout(SECONDS), queue.iterator() as messages:
        async for received in messages:
            async with received.process():
                assert (received.body, received.headers, received.correlation_id) == (b"hello", {"a": [1, "b"]}, "c")
                assert received.delivery_mode == aio_pika.DeliveryMode.PERSISTENT
            break
    assert await queue.get(fail=False) is None
    await queue.delete()


async def test_a_thousand_confirms_at_once(link: AbstractConnection, name: str) -> None:
    """Each publish waits for its own confirm, all in flight together, persistent and transient mixed."""
    channel = await link.channel(publisher_confirms=True)
    await channel.declare_queue(name, durable=True)
    publishes = [
        channel.default_exchange.publish(
            aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT if number % 2 else None),
            name,
        )
        for number in range(1000)
    ]
    async with asyncio.timeout(SECONDS):
        confirmed = await asyncio.gather(*publishes)
    assert all(confirmed) and len(confirmed) == 1000
    again = await channel.declare_queue(name, passive=True)
    assert again.declaration_result.message_count == 1000


async def test_mandatory(link: AbstractConnection, name: str) -> None:
    channel = await link.channel(publisher_confirms=True, on_return_raises=True)
    with pytest.raises(DeliveryError):
        await channel.default_exchange.publish(aio_pika.Message(b"lost"), name, mandatory=True)


async def test_work_is_shared_and_prefetch_holds(link: AbstractConnection, name: str) -> None:
    """Ten workers on ten channels; none ever has more in hand than it may."""
    publisher = await link.channel()
    await publisher.declare_queue(name)
    in_hand = [0] * 10
    most = [0] * 10
    done: list[int] = []
    finished = asyncio.Event()

    async def work(worker: int, message: AbstractIncomingMessage) -> None:
        in_hand[worker] += 1
        most[worker] = max(most[worker], in_hand[worker])
        for _ in range(5):
            await asyncio.sleep(0)
        in_hand[worker] -= 1
        await message.ack()
        done.append(int(message.body))
        if len(done) == 500:
            finished.set()

    def worker_of(worker: int) -> Callable[[AbstractIncomingMessage], Awaitable[None]]:
        async def on_message(message: AbstractIncomingMessage) -> None:
            await work(worker, message)

        return on_message

    for worker in range(10):
        channel = await link.channel()
        await channel.set_qos(prefetch_count=3)
        queue = await channel.get_queue(name)
        await queue.consume(worker_of(worker))
    for number in range(500):
        await publisher.default_exchange.publish(aio_pika.Message(b"%d" % number), name)
    async with asyncio.timeout(SECONDS):
        await finished.wait()
    assert sorted(done) == list(range(500))
    assert max(most) <= 3


async def test_rejected_and_requeued(link: AbstractConnection, name: str) -> None:
    channel = await link.channel()
    queue = await channel.declare_queue(name)
    await channel.default_exchange.publish(aio_pika.Message(b"x"), name)
    first = await queue.get(timeout=SECONDS)
    assert first is not None and not first.redelivered
    await first.nack(requeue=True)
    second = await queue.get(timeout=SECONDS)
    assert second is not None and second.redelivered
    await second.reject(requeue=False)
    assert await queue.get(fail=False) is None


async def test_errors_are_those_aio_pika_knows(link: AbstractConnection, name: str) -> None:
    channel = await link.channel()
    with pytest.raises(ChannelNotFoundEntity, match=f"no queue '{name}' in vhost '/'"):
        await channel.get_queue(name)
    channel = await link.channel()
    await channel.declare_queue(name, durable=True)
    with pytest.raises(ChannelPreconditionFailed, match="inequivalent arg 'durable'"):
        await channel.declare_queue(name, durable=False)


async def test_robust_channel_restores_what_the_server_has_forgotten(start: Start, name: str) -> None:
    """Exchanges, queues and bindings that do not last, a queue that was the connection's own, the prefetch."""
    server = start(begin=False).start(free_port())
    connection = await aio_pika.connect_robust(server.url, reconnect_interval=0.1)
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=2)
    exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.TOPIC)
    other = await channel.declare_exchange(f"{name}-other", aio_pika.ExchangeType.FANOUT, auto_delete=True)
    await other.bind(exchange, "a.#")
    queue = await channel.declare_queue(name, exclusive=True)
    await queue.bind(other)
    received: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()
    await queue.consume(received.put)
    reconnected = asyncio.Event()
    connection.reconnect_callbacks.add(lambda *_: reconnected.set())
    port = server.port
    assert await asyncio.to_thread(server.stop) == 0
    await asyncio.to_thread(server.start, port)
    async with asyncio.timeout(SECONDS):
        await reconnected.wait()
        await channel.ready()
        for number in range(3):
            await exchange.publish(aio_pika.Message(b"%d" % number), "a.b")
        messages = [await received.get() for _ in range(2)]
        plain = await channel.get_underlay_channel()  # The robust one knows the queue, and does not ask.
        assert (await plain.queue_declare(name, passive=True)).message_count == 1
        assert received.empty()
        await messages[-1].ack(multiple=True)
        assert [message.body for message in [*messages, await received.get()]] == [b"0", b"1", b"2"]
    await connection.close()


async def test_robust_connection_comes_back_after_a_restart(start: Start) -> None:
    """The server goes away without a word and comes back with the same data: consumers go on."""
    server = start(begin=False).start(free_port())
    connection = await aio_pika.connect_robust(server.url, reconnect_interval=0.1)
    channel = await connection.channel()
    queue = await channel.declare_queue("q", durable=True)
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_message(message: AbstractIncomingMessage) -> None:
        await received.put(message.body)
        await message.ack()

    await queue.consume(on_message)
    persistent = aio_pika.DeliveryMode.PERSISTENT
    await channel.default_exchange.publish(aio_pika.Message(b"before", delivery_mode=persistent), "q")
    async with asyncio.timeout(SECONDS):
        assert await received.get() == b"before"
    reconnected = asyncio.Event()
    connection.reconnect_callbacks.add(lambda *_: reconnected.set())
    port = server.port
    server.kill()
    server.start(port)
    async with asyncio.timeout(SECONDS):
        await reconnected.wait()
        await channel.default_exchange.publish(aio_pika.Message(b"after", delivery_mode=persistent), "q")
        body = await received.get()
        while body == b"before":  # Its ack may not have reached the disk.
            body = await received.get()
    assert body == b"after"
    await connection.close()
