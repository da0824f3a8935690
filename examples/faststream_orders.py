"""FastStream: one handler takes orders, and what it returns goes to the next queue.

    python examples/faststream_orders.py
"""

import asyncio
import os
from contextlib import nullcontext

from faststream.rabbit import RabbitBroker, RabbitQueue
from pydantic import BaseModel

import leveret.testing


class Order(BaseModel):
    customer: str
    items: list[str]


class Invoice(BaseModel):
    customer: str
    price: int


async def main(url: str) -> None:
    broker = RabbitBroker(url, logger=None)
    orders, invoices = RabbitQueue("orders", durable=True), RabbitQueue("invoices", durable=True)
    received: asyncio.Future[Invoice] = asyncio.get_running_loop().create_future()

    @broker.subscriber(orders)
    @broker.publisher(invoices, persist=True)
    async def bill(order: Order) -> Invoice:
        return Invoice(customer=order.customer, price=5 * len(order.items))

    @broker.subscriber(invoices)
    async def send(invoice: Invoice) -> None:
        received.set_result(invoice)

    async with broker:
        await broker.start()
        await broker.publish(Order(customer="Ann", items=["tea", "cake"]), orders, persist=True)
        invoice = await asyncio.wait_for(received, 30)
        print(f"{invoice.customer} pays {invoice.price}")


if __name__ == "__main__":
    given = os.environ.get("AMQP_URL")
    with nullcontext() if given else leveret.testing.broker() as broker:
        asyncio.run(main(given or broker.url))
