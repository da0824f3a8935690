"""A work queue with aio-pika: nothing is lost if a worker or the broker dies.

    python examples/aio_pika_work.py
"""

import asyncio
import os
from contextlib import nullcontext

import aio_pika

import leveret.testing


async def publish(url: str) -> None:
    connection = await aio_pika.connect_robust(url)
    async with connection:
        channel = await connection.channel()  # Publisher confirms are on.
        await channel.declare_queue("work", durable=True)
        jobs = [
            channel.default_exchange.publish(
                aio_pika.Message(b"job %d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), "work"
            )
            for number in range(100)
        ]
        await asyncio.gather(*jobs)  # All confirmed: on disk.
        print("published 100 jobs")


async def work(url: str) -> None:
    connection = await aio_pika.connect_robust(url)
    async with connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue("work", durable=True)
        done = 0
        async with queue.iterator() as messages:
            async for message in messages:
                async with message.process():  # Acknowledged at its end; requeued if it raises.
                    done += 1
                if done == 100:
                    break
        print(f"worked on {done} jobs")


async def main(url: str) -> None:
    await publish(url)
    await work(url)


if __name__ == "__main__":
    given = os.environ.get("AMQP_URL")
    with nullcontext() if given else leveret.testing.broker() as broker:
        asyncio.run(main(given or broker.url))
