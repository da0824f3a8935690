"""A connection of the client beside an event loop."""

from __future__ import annotations

import asyncio

from leveret.client.address import Address
from leveret.client.machine import ClientMachine
from leveret.metadata.shovel.uris import parse_uri
from leveret.node.shovels.wire import Wire


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


async def test_a_connection_that_is_made_after_its_worker_was_stopped_is_dropped() -> None:
    wire = Wire(asyncio.get_running_loop(), parse_uri("amqp://far"), "source")
    wire.machine = ClientMachine(wire, Address("far", 1, "u", "p", "/"), {})
    wire.close()
    transport = Transport()
    wire.connection_made(transport)
    assert transport.is_aborted and wire.machine.take_output() == []
    wire.connection_lost(None)
