"""FastStream's RabbitBroker: handlers by declaration, answers to requests, and what becomes of a message that fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from faststream import AckPolicy
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange, RabbitMessage, RabbitQueue
from pydantic import BaseModel

from tests.support.servers import Server

SECONDS = 60


class Order(BaseModel):
    number: int
    what: str


@pytest.fixture
def rabbit(broker: Server) -> RabbitBroker:
    return RabbitBroker(broker.url, logger=None)


async def take(seen: asyncio.Queue[Any], count: int = 1) -> list[Any]:
    async with asyncio.timeout(SECONDS):
        return [await seen.get() for _ in range(count)]


async def test_a_chain_of_handlers(rabbit: RabbitBroker, name: str) -> None:
    """From a topic exchange through a handler to the queue of another, as objects."""
    orders = RabbitExchange(f"{name}-orders", type=ExchangeType.TOPIC, auto_delete=True)
    seen: asyncio.Queue[Order] = asyncio.Queue()

    @rabbit.subscriber(RabbitQueue(f"{name}-in", routing_key="order.#", auto_delete=True), orders)
    @rabbit.publisher(f"{name}-out")
    async def on_order(order: Order) -> Order:
        return Order(number=order.number + 1, what=order.what.upper())

    @rabbit.subscriber(RabbitQueue(f"{name}-out", auto_delete=True))
    async def on_ready(order: Order) -> None:
        await seen.put(order)

    async with rabbit:
        await rabbit.start()
        for number in range(20):
            await rabbit.publish(Order(number=number, what="tea"), exchange=orders, routing_key="order.new")
        await rabbit.publish(Order(number=0, what="tea"), exchange=orders, routing_key="other", mandatory=False)
        ready = await take(seen, 20)
    assert sorted(order.number for order in ready) == list(range(1, 21))
    assert {order.what for order in ready} == {"TEA"}


async def test_requests(rabbit: RabbitBroker, name: str) -> None:
    """Many at once; answers come back by direct reply-to."""

    @rabbit.subscriber(RabbitQueue(name, auto_delete=True))
    async def double(number: int) -> int:
        return number * 2

    async with rabbit:
        await rabbit.start()
        answers = await asyncio.gather(*(rabbit.request(number, name, timeout=SECONDS) for number in range(50)))
        assert [await answer.decode() for answer in answers] == [number * 2 for number in range(50)]


@pytest.mark.parametrize(
    ("policy", "deliveries", "reason"),
    [
        (AckPolicy.REJECT_ON_ERROR, [False], "rejected"),
        (AckPolicy.NACK_ON_ERROR, [False, True], None),
        (AckPolicy.ACK, [False], None),
        (AckPolicy.ACK_FIRST, [False], None),
        (AckPolicy.MANUAL, [False], "rejected"),
    ],
)
async def test_a_handler_fails(
    rabbit: RabbitBroker, name: str, policy: AckPolicy, deliveries: list[bool], reason: str | None
) -> None:
    """At the first delivery of a message. Whether there is another one, and a dead letter, the policy says."""
    arguments: Any = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{name}-dead"}
    seen: asyncio.Queue[bool] = asyncio.Queue()
    buried: asyncio.Queue[str] = asyncio.Queue()
    last = asyncio.Event()

    @rabbit.subscriber(RabbitQueue(name, auto_delete=True, arguments=arguments), ack_policy=policy)
    async def on_message(body: str, message: RabbitMessage) -> None:
        redelivered = bool(message.raw_message.redelivered)
        if body == "bad":
            await seen.put(redelivered)
            if not redelivered:
                if policy is AckPolicy.MANUAL:
                    await message.reject()
                raise ValueError(body)
            return
        if policy is AckPolicy.MANUAL:
            await message.ack()
        if body == "last":
            last.set()

    @rabbit.subscriber(RabbitQueue(f"{name}-dead", auto_delete=True))
    async def on_dead(body: str, message: RabbitMessage) -> None:
        await buried.put(str(message.headers["x-death"][0]["reason"]))

    async with rabbit:
        await rabbit.start()
        await rabbit.publish("good", name)
        await rabbit.publish("bad", name)
        assert await take(seen, len(deliveries)) == deliveries
        if reason is not None:
            assert await take(buried) == [reason]
        await rabbit.publish("last", name)
        async with asyncio.timeout(SECONDS):
            await last.wait()
    assert seen.empty() and buried.empty()
