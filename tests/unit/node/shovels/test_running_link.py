"""A link between two connections: what has happened before it began, and what stops it."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any, cast

import pytest

from leveret.client import amqp
from leveret.client.address import Address
from leveret.client.machine import ClientMachine
from leveret.metadata.shovel.uris import parse_uri
from leveret.node.shovels.running_link import BLOCKED, FULL, RESTING, RunningLink
from leveret.node.shovels.wire import Wire
from leveret.shovel.link import Link, Target


class Transport(asyncio.Transport):
    """Notes what is written, and whether it is read from."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.written: list[bytes] = []

    def writelines(self, list_of_data: Any) -> None:
        self.written.extend(list_of_data)

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        """Nothing is behind it."""


def wire(end: str) -> Wire:
    made = Wire(asyncio.get_running_loop(), parse_uri(f"amqp://{end}"), end)
    made.machine = ClientMachine(made, Address(end, 1, "u", "p", "/"), {})
    made.transport = Transport()
    made.machine.begin_open(131_072, b"")
    return made


def begin(source: Wire, destination: Wire) -> RunningLink:
    return RunningLink(asyncio.get_running_loop(), Link("on-confirm", Target("", "b")), source, destination)


@pytest.mark.parametrize("lost", ["source", "destination"])
async def test_a_connection_that_was_lost_while_the_other_was_set_up_ends_it(lost: str) -> None:
    wires = {end: wire(end) for end in ("source", "destination")}
    wires[lost].connection_lost(None)
    running = begin(wires["source"], wires["destination"])
    assert running.ended.result() == f"{lost} amqp://{lost}: the broker closed the connection"


async def test_a_destination_that_was_blocked_before_it_began() -> None:
    source, destination = wire("source"), wire("destination")
    destination.on_blocked("low on memory")
    running = begin(source, destination)
    transport = cast(Transport, source.transport)
    assert running.paused == BLOCKED and running.blocked_reason == "low on memory" and not transport.reads
    destination.on_blocked(None)
    assert not running.paused and transport.reads and not running.ended.done()


async def test_all_reasons_must_be_gone_before_it_reads_again() -> None:
    source, destination = wire("source"), wire("destination")
    running = begin(source, destination)
    transport = cast(Transport, source.transport)
    destination.pause_writing()
    destination.on_blocked("low on disk")
    running.link.published = 1
    running.on_confirm(destination, 1, False, True)
    assert running.paused == FULL | BLOCKED | RESTING
    destination.resume_writing()
    destination.on_blocked(None)
    assert running.paused == RESTING and not transport.reads
    running._on_rested()
    assert not running.paused and transport.reads
    running.stop(lambda: None)


async def test_what_was_confirmed_with_the_last_bytes_is_acknowledged() -> None:
    """Otherwise it comes again, and is counted twice."""
    source, destination = wire("source"), wire("destination")
    running = begin(source, destination)
    running.link.delivered = running.link.published = 3
    confirm = amqp.method(amqp.BASIC_ACK, struct.pack(">QB", 2, 1))
    goodbye = amqp.method(amqp.CONNECTION_CLOSE, b"\x01\x40" + amqp.short("bye") + bytes(4), 0)
    destination.data_received(confirm + goodbye)
    assert "320 bye" in str(running.ended.result())
    assert running.link.forwarded == 2
    assert cast(Transport, source.transport).written == [amqp.ack_through(2)]


class Cluster:
    """Agrees on counts when it is told to."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Callable[[str | None], None]]] = []

    def agree(self, moved: int, then: Callable[[str | None], None]) -> None:
        self.asked.append((moved, then))

    def answer(self, refused: str | None = None) -> int:
        moved, then = self.asked.pop(0)
        then(refused)
        return moved


def counted(quota: int) -> tuple[RunningLink, Cluster, list[bytes], Wire]:
    """A link whose messages were all published, its cluster, what the source is sent, and the destination."""
    source, destination, cluster = wire("source"), wire("destination"), Cluster()
    link = Link("on-confirm", Target("", "b"), quota=quota)
    running = RunningLink(asyncio.get_running_loop(), link, source, destination, cluster.agree)
    link.delivered = link.published = quota
    return running, cluster, cast(Transport, source.transport).written, destination


def confirm(destination: Wire, number: int) -> None:
    destination.data_received(amqp.method(amqp.BASIC_ACK, struct.pack(">QB", number, 1)))


async def test_nothing_is_acknowledged_before_the_cluster_has_agreed_on_the_count() -> None:
    running, cluster, sent, destination = counted(5)
    for number in (1, 2, 3):
        confirm(destination, number)
    assert (sent, running.settled, running.remaining, len(cluster.asked)) == ([], 0, 5, 1)
    assert cluster.answer() == 1
    assert (sent, running.settled, running.remaining) == ([amqp.ack_through(1)], 1, 4)
    assert cluster.answer() == 3  # What came meanwhile is agreed on together.
    assert sent[1:] == [amqp.ack_through(2), amqp.ack_through(3)] and not cluster.asked
    confirm(destination, 5)
    assert not running.ended.done(), "it is done when the last are acknowledged"
    assert cluster.answer() == 5
    assert running.ended.result() is None and running.settled == 5


async def test_a_count_that_is_refused_ends_the_link() -> None:
    running, cluster, sent, destination = counted(5)
    confirm(destination, 5)
    cluster.answer("another worker has taken over")
    assert (running.ended.result(), sent, running.settled) == ("another worker has taken over", [], 0)


async def test_a_link_that_is_stopped_acknowledges_what_it_has_asked_for_and_no_more() -> None:
    running, cluster, sent, destination = counted(5)
    closed: list[str] = []
    confirm(destination, 1)
    cluster.answer()
    confirm(destination, 2)
    confirm(destination, 3)
    running.stop(lambda: closed.append("closed"))
    confirm(destination, 4)
    assert not closed
    cluster.answer()
    assert sent == [amqp.ack_through(1), amqp.ack_through(2)]
    assert (running.settled, closed, cluster.asked) == (2, ["closed"], [])


async def test_a_link_that_has_failed_is_quiet_when_what_it_has_asked_for_is_answered() -> None:
    running, cluster, sent, destination = counted(5)
    confirm(destination, 1)
    cluster.answer()
    confirm(destination, 2)
    destination.connection_lost(None)
    quiet: list[int] = []
    running.await_quiet(lambda: quiet.append(running.settled))
    assert running.ended.done() and not quiet
    cluster.answer()
    assert quiet == [2] and sent == [amqp.ack_through(1), amqp.ack_through(2)]


async def test_what_the_source_cannot_be_told_any_more_does_not_count() -> None:
    running, cluster, sent, destination = counted(5)
    confirm(destination, 2)
    running.source.connection_lost(None)
    cluster.answer()
    assert (sent, running.settled) == ([], 0)
