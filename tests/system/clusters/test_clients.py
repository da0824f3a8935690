"""Other clients than pika, in the way their users connect to a cluster."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from pathlib import Path

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from tests.support.members import Cluster, Member
from tests.support.servers import ROOT
from tests.system.clients.frameworks.celery_worker import Held, Worker

SECONDS = 60
NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
@pytest.mark.skipif(not (ROOT / "node_modules" / "amqplib").is_dir(), reason="no amqplib: `make node-clients`")
def test_amqplib(cluster: Cluster) -> None:
    assert NODE is not None
    script = Path(__file__).parent / "node" / "remote.js"
    command = [NODE, str(script), str(cluster[0].port), str(cluster[1].port)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert run.returncode == 0, run.stderr


async def test_aio_pika_with_a_thousand_publishes_in_flight(cluster: Cluster, name: str) -> None:
    """From one node, to queues of all three, consumed at another."""
    connections = [await aio_pika.connect(node.url) for node in cluster]
    channels = [await connection.channel() for connection in connections]
    for number, channel in enumerate(channels):
        await channel.declare_queue(f"{name}-{number}", durable=True)
    received: dict[str, list[int]] = {f"{name}-{number}": [] for number in range(3)}
    finished = asyncio.Event()

    async def on_message(message: AbstractIncomingMessage) -> None:
        assert message.routing_key is not None
        received[message.routing_key].append(int(message.body))
        await message.ack()
        if sum(map(len, received.values())) == 1000:
            finished.set()

    await channels[1].set_qos(prefetch_count=50)
    for queue in received:
        await (await channels[1].get_queue(queue)).consume(on_message)
    exchange = channels[2].default_exchange
    publishes = [
        exchange.publish(aio_pika.Message(b"%d" % number, delivery_mode=2 if number % 2 else 1), f"{name}-{number % 3}")
        for number in range(1000)
    ]
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*publishes)
        await finished.wait()
    for place, numbers in enumerate(received.values()):
        assert numbers == list(range(place, 1000, 3))
    for connection in connections:
        await connection.close()


async def test_aio_pika_robust_connection_survives_its_node(nodes: Cluster, name: str) -> None:
    """The queue is at another node; the client's own is killed and comes back."""
    home, edge, _ = nodes
    connection = await aio_pika.connect_robust(edge.url, reconnect_interval=0.2)
    channel = await connection.channel()
    home.channel().queue_declare(name, durable=True)
    queue = await channel.get_queue(name)
    received: asyncio.Queue[bytes] = asyncio.Queue()

    async def on_message(message: AbstractIncomingMessage) -> None:
        await message.ack()
        await received.put(message.body)

    await queue.consume(on_message)
    reconnected = asyncio.Event()
    connection.reconnect_callbacks.add(lambda *_: reconnected.set())
    await asyncio.to_thread(edge.kill)
    await asyncio.to_thread(edge.start)
    async with asyncio.timeout(SECONDS):
        await reconnected.wait()
        await channel.default_exchange.publish(aio_pika.Message(b"after", delivery_mode=2), name)
        assert await received.get() == b"after"
    await connection.close()


def mirror_all(node: Member, name: str, pattern: str) -> None:
    node.control(
        "set_policy", vhost="/", name=name, pattern=pattern, apply_to="queues", priority=0, operator=False,
        definition={"ha-mode": "all"},
    )  # fmt: skip


class Balancer:
    """What clients connect to that know one address: leads to the first node that answers."""

    def __init__(self, nodes: Cluster) -> None:
        self.nodes = list(nodes)

    async def start(self) -> str:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"amqp://guest:guest@127.0.0.1:{self.server.sockets[0].getsockname()[1]}/"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for node in self.nodes:
            try:
                there, back = await asyncio.open_connection("127.0.0.1", node.port)
            except ConnectionRefusedError:
                continue
            await asyncio.gather(self._pass_on(reader, back), self._pass_on(there, writer))
            return
        writer.close()

    @staticmethod
    async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # Then the other end is to lose it too.
        writer.close()


async def test_aio_pika_robust_connection_goes_on_at_another_node(nodes: Cluster, name: str) -> None:
    """Its node is the master of a mirrored queue, and is lost: what was confirmed is delivered by another one."""
    policy = {
        "vhost": "/",
        "name": name,
        "pattern": f"^{name}$",
        "apply_to": "queues",
        "priority": 0,
        "operator": False,
    }
    await asyncio.to_thread(nodes[0].control, "set_policy", **policy, definition={"ha-mode": "all"})
    balancer = Balancer(nodes)
    connection = await aio_pika.connect_robust(await balancer.start(), reconnect_interval=0.2)
    channel = await connection.channel()
    exchange = await channel.declare_exchange(name, aio_pika.ExchangeType.DIRECT, durable=True)
    queue = await channel.declare_queue(name, durable=True)
    await queue.bind(exchange, "key")
    await exchange.publish(aio_pika.Message(b"before", delivery_mode=2), "key")
    received: asyncio.Queue[bytes] = asyncio.Queue()
    shown = asyncio.Event()

    async def on_message(message: AbstractIncomingMessage) -> None:
        if not shown.is_set():
            shown.set()
            return  # Not acknowledged: to come again.
        await message.ack()
        await received.put(message.body)

    reconnected = asyncio.Event()
    connection.reconnect_callbacks.add(lambda *_: reconnected.set())
    await queue.consume(on_message)
    async with asyncio.timeout(SECONDS):
        await shown.wait()
        await asyncio.to_thread(nodes[0].kill)
        await reconnected.wait()
        await exchange.publish(aio_pika.Message(b"after", delivery_mode=2), "key")
        assert [await received.get(), await received.get()] == [b"before", b"after"]
    await connection.close()
    balancer.server.close()


def test_celery_goes_on_at_another_node(nodes: Cluster, name: str) -> None:
    """All queues are mirrored, and the node that leads them is lost, with a task in the worker's hands."""
    mirror_all(nodes[0], name, ".*")
    url = ";".join(node.url for node in nodes)
    worker = Worker(nodes[0].folder, url, "classic", "-Q", "celery", "-c", "1", "--without-mingle").start()
    try:
        assert worker.run("add", 1, 2) == 3
        held = Held(worker, name, ignore_result=True)
        held.wait()
        nodes[0].kill()
        while not held.wait()["redelivered"]:
            pass  # Said before; that we had heard it may not have got round.
        held.release()
        assert worker.run("add", 20, 22) == 42
    finally:
        worker.end()
        nodes[1].control("clear_policy", vhost="/", name=name, operator=False)
