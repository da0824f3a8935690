"""Messages through a mirrored queue in virtual time: the cost for the master, each mirror, and each hop of the ring.

Like the workload `safe`: persistent messages of 100 bytes, 50 in a send, 2,000 in flight, confirmed; a consumer that
acknowledges after every 500. Clients are at the master's node, and cost nothing; every node has a processor of its own.
One machine cannot show that, since all copies share its processors.
"""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Final

from benchmarks.ruler import calls
from benchmarks.scaling.world import CLIENTS, PREFIX, Costs, Plant, metered
from benchmarks.single.growth import Point
from leveret.client import amqp
from leveret.client.amqp import long, method, short, table
from simulation.core.loop import NodeLoop
from simulation.core.machine import AMQP_PORT

QUEUE: Final = f"{PREFIX}000000"
BODY: Final = b"x" * 100
STEP_S: Final = 0.000_5
BATCH, WINDOW, ACK_EVERY = 50, 2_000, 500
FRAME_HEAD: Final = struct.Struct(">BHI")


class Talker(asyncio.Protocol):
    """A client that sends all of its handshake at once, and then counts what it receives."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self.received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        start_ok = table({}) + short("PLAIN") + long(b"\0guest\0guest") + short("en_US")
        hello = [
            b"AMQP\0\0\x09\x01",
            method(amqp.CONNECTION_START_OK, start_ok, 0),
            method(amqp.CONNECTION_TUNE_OK, struct.pack(">HIH", 2047, amqp.FRAME_MAX, 0), 0),
            method(amqp.CONNECTION_OPEN, short("/") + b"\0\0", 0),
            method(amqp.CHANNEL_OPEN, b"\0"),
        ]
        transport.write(b"".join(hello) + self.begin())

    def begin(self) -> bytes:
        raise NotImplementedError

    def on_method(self, name: tuple[int, int], arguments: bytes) -> None:
        raise NotImplementedError

    def data_received(self, data: bytes) -> None:
        received = self.received
        received += data
        at = 0
        while len(received) - at >= FRAME_HEAD.size:
            kind, _, size = FRAME_HEAD.unpack_from(received, at)
            end = at + FRAME_HEAD.size + size + 1
            if len(received) < end:
                break
            if kind == amqp.METHOD:
                name = amqp.METHOD_ID.unpack_from(received, at + FRAME_HEAD.size)
                if name in ((10, 50), (20, 40)):
                    raise amqp.BrokerError(bytes(received[at:end]).decode(errors="replace"))
                self.on_method(name, bytes(received[at + FRAME_HEAD.size + 4 : end - 1]))
            at = end
        del received[:at]


class Sender(Talker):
    """Publishes `count` messages with a window, and counts their confirms."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.sent, self.confirmed = count, 0, 0
        self.blob = calls.publish("", QUEUE, BODY, persistent=True) * BATCH

    def begin(self) -> bytes:
        return method(amqp.CONFIRM_SELECT, b"\0") + self.more()

    def more(self) -> bytes:
        fits = min(WINDOW - (self.sent - self.confirmed), self.count - self.sent) // BATCH
        self.sent += fits * BATCH
        return self.blob * fits

    def on_method(self, name: tuple[int, int], arguments: bytes) -> None:
        assert name != amqp.BASIC_NACK
        if name == amqp.BASIC_ACK:
            tag, multiple = struct.unpack(">QB", arguments)
            self.confirmed = tag if multiple else self.confirmed + 1
            if more := self.more():
                self.transport.write(more)


class Taker(Talker):
    """Consumes and acknowledges."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = 0

    def begin(self) -> bytes:
        consume = b"\0\0" + short(QUEUE) + short("taker") + b"\0" + table({})
        return method(amqp.BASIC_QOS, struct.pack(">IHB", 0, WINDOW, 0)) + method(amqp.BASIC_CONSUME, consume)

    def on_method(self, name: tuple[int, int], arguments: bytes) -> None:
        if name == amqp.BASIC_DELIVER:
            self.taken += 1
            if self.taken % ACK_EVERY == 0:
                self.transport.write(amqp.ack_through(self.taken))


def traffic(members: int, messages: int, costs: Costs = Costs(), charged: bool = True) -> Point:  # noqa: B008
    """Measures one queue with that many copies, at the full speed of its master."""
    plant = Plant(members, costs, charged)
    with metered(plant.meter):
        plant.start()
        plant.mirror({"ha-mode": "all"})
        plant.declare(1, plant.machines[:1], 1)
        plant.run(1.0)
        rng = random.Random(1)
        loop = NodeLoop(plant.scheduler, plant.network, CLIENTS, rng, plant.on_fault(CLIENTS))
        _send(plant, loop, messages // 4)
        plant.meter.reset()
        seconds = _send(plant, loop, messages)
        meter, names = plant.meter, [machine.name for machine in plant.machines]
        plant.close()
        loop.kill()
    mirrors = names[1:] or [""]
    return {
        "members": members,
        "per_s": messages / seconds,
        "master_us": meter.busy_s[names[0]] / messages * 1e6,
        "mirror_us": sum(meter.busy_s[name] for name in mirrors) / len(mirrors) / messages * 1e6,
        "link_bytes": sum(meter.link_bytes[name] for name in names) / messages,
        "master_link_bytes": meter.link_bytes[names[0]] / messages,
    }


def _send(plant: Plant, loop: NodeLoop, count: int) -> float:
    """Returns the seconds from the first connection until everything is confirmed and delivered."""
    began, sender, taker = plant.scheduler.now, Sender(count), Taker()
    host = plant.machines[0].name
    ends = [
        loop.create_task(plant.network.connect(loop, lambda one=one: one, host, AMQP_PORT))  # type: ignore[misc]
        for one in (taker, sender)
    ]
    for end in ends:
        end.add_done_callback(lambda done: done.result())
    plant.run(600.0, lambda: sender.confirmed == count and taker.taken >= count, step_s=STEP_S)
    seconds = plant.scheduler.now - began
    for one in (sender, taker):
        one.transport.close()
    plant.run(0.1)
    return seconds
