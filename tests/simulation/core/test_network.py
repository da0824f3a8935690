"""The network does what TCP does, and all that may be done to it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from simulation.core.loop import NodeLoop, Scheduler
from simulation.core.network import Endpoint, Network


class Peer(asyncio.Protocol):
    """Notes all that happens to it."""

    def __init__(self) -> None:
        self.received = b""
        self.events: list[str] = []
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append("lost" if error is None else "reset")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Pair:
    """Two places, a listener at b, a connection from a."""

    def __init__(self, seed: int) -> None:
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, random.Random(seed))
        self.faults: list[str] = []
        self.loops = {
            name: NodeLoop(self.scheduler, self.network, name, random.Random(name), self.faults.append)
            for name in ("a", "b")
        }
        self.a, self.b = Peer(), Peer()
        self.loops["b"].create_task(self.loops["b"].create_server(lambda: self.b, None, 5))
        self.run()

    def connect(self, port: int = 5) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = self.loops["a"].create_task(
            self.loops["a"].create_connection(lambda: self.a, "b", port)
        )
        self.run()
        return task

    def run(self, seconds: float = 1.0) -> None:
        self.scheduler.run(self.scheduler.now + seconds)
        assert not self.faults


SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_arrive_in_order_and_once(seed: int) -> None:
    pair = Pair(seed)
    pair.connect()
    sent = random.Random(seed).randbytes(200_000)
    for at in range(0, len(sent), 7_001):
        pair.a.transport.write(sent[at : at + 7_001])
    pair.b.transport.writelines([b"back", b"wards"])
    pair.run(60.0)
    assert pair.b.received == sent and pair.a.received == b"backwards"


@pytest.mark.parametrize("seed", SEEDS)
def test_what_stood_still_goes_on_in_order(seed: int) -> None:
    pair, rng = Pair(seed), random.Random(seed)
    pair.connect()
    sent = b""
    for _ in range(30):
        piece = rng.randbytes(rng.randrange(1, 2_000))
        sent += piece
        pair.a.transport.write(piece)
        if rng.random() < 0.3:
            pair.network.cut("a", "b")
        pair.run(rng.random() * 0.01)
        if rng.random() < 0.3:
            pair.network.mend([("a", "b")])
    pair.network.heal()
    pair.run(60.0)
    assert pair.b.received == sent


def test_it_is_known_when_all_that_was_written_is_read() -> None:
    pair = Pair(1)
    pair.connect()
    pair.b.transport.pause_reading()
    pair.a.transport.write(b"first")
    elsewhere, has_arrived = pair.network.arrival(["a", "c"]), pair.network.arrival(["a", "b"])
    pair.run()
    assert elsewhere() and not has_arrived()
    pair.b.transport.resume_reading()
    pair.run()
    pair.b.transport.pause_reading()
    pair.a.transport.write(b"later")
    pair.run()
    assert has_arrived() and not pair.network.arrival(["a", "b"])()
    reset = pair.network.arrival(["a", "b"])
    pair.network.reset(pair.a.transport)
    pair.run()
    assert reset()


def test_one_way_is_cut_and_the_other_is_not() -> None:
    pair = Pair(1)
    pair.connect()
    pair.network.cut("a", "b")
    pair.a.transport.write(b"there")
    pair.b.transport.write(b"back")
    pair.run()
    assert pair.a.received == b"back" and pair.b.received == b""


def test_who_does_not_read_makes_the_writer_wait() -> None:
    pair = Pair(3)
    pair.connect()
    pair.b.transport.pause_reading()
    pair.a.transport.write(bytes(4 << 20))
    pair.run(10.0)
    assert pair.a.events == ["pause"] and pair.a.transport.get_write_buffer_size() > 1 << 20
    pair.b.transport.resume_reading()
    pair.run(60.0)
    assert pair.a.events == ["pause", "resume"] and len(pair.b.received) == 4 << 20


def test_closing_sends_what_is_left() -> None:
    pair = Pair(3)
    pair.connect()
    pair.a.transport.write(bytes(3 << 20))
    pair.a.transport.close()
    pair.a.transport.write(b"too late")
    pair.run(60.0)
    assert len(pair.b.received) == 3 << 20 and pair.b.events == ["eof", "lost"] and pair.a.events[-1] == "lost"


def test_a_reset_ends_both() -> None:
    pair = Pair(1)
    pair.connect()
    endpoint: Endpoint = pair.a.transport
    pair.network.reset(endpoint)
    pair.run()
    assert pair.a.events == ["reset"] and pair.b.events == ["reset"]


def test_a_killed_process_is_noticed_and_a_dead_machine_is_not() -> None:
    pair = Pair(1)
    pair.connect()
    pair.loops["b"].kill()
    pair.network.kill(pair.loops["b"])
    pair.run()
    assert pair.a.events[-1] in ("lost", "reset")

    pair = Pair(1)
    pair.connect()
    pair.loops["b"].kill()
    pair.network.turn_off(pair.loops["b"])
    pair.a.transport.write(b"hello?")
    pair.run(30.0)
    assert pair.a.events == []
    pair.network.turn_on("b")  # The new life knows nothing of the connection.
    pair.run(5.0)
    assert pair.a.events == ["reset"]


def test_connecting() -> None:
    pair = Pair(1)
    refused = pair.connect(port=6)
    assert isinstance(refused.exception(), ConnectionRefusedError)
    pair.network.cut("b", "a")
    waiting = pair.connect()
    pair.run(20.0)
    assert not waiting.done()
    pair.network.heal()
    pair.run(3.0)
    assert waiting.done() and waiting.exception() is None
    pair.network.off.add("b")
    hanging = pair.connect()
    pair.run(200.0)
    assert isinstance(hanging.exception(), TimeoutError)


def test_what_cuts_a_way_may_refuse_connections() -> None:
    """In the name of one that lives, and hears nothing of it."""
    pair = Pair(1)
    pair.network.cut("a", "b")
    waiting = pair.connect()
    assert not waiting.done()
    pair.network.is_rejecting = True
    refused = pair.connect()
    assert isinstance(refused.exception(), ConnectionRefusedError)
    assert pair.b.transport is None
    pair.network.heal()
    pair.run()
    assert waiting.done() and pair.b.transport is not None
