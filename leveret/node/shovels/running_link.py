"""A link between two open connections: calls the machine, and passes on what it says.

Reading from the source stops for one of three reasons, and goes on when none is left: the destination does not take
more (`FULL`), it has told so because of an alarm (`BLOCKED`), or it has refused a message (`RESTING`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.shovel.link import LinkFault

if TYPE_CHECKING:
    from leveret.client.machine import BundleDelivery, Delivery
    from leveret.node.shovels.wire import Wire
    from leveret.shovel.link import Link

FULL: Final = 1
BLOCKED: Final = 2
RESTING: Final = 4
REST_S: Final = 1.0


class RunningLink:
    """Drives a link until it is done or fails, which `ended` tells: None, or why."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: Link, source: Wire, destination: Wire) -> None:
        self.loop = loop
        self.link = link
        self.source = source
        self.destination = destination
        self.paused = 0
        self.blocked_reason = ""
        self.ended: asyncio.Future[str | None] = loop.create_future()
        self.rest: asyncio.TimerHandle | None = None
        source.owner = destination.owner = self
        for wire in (source, destination):  # Nobody was told of what has happened while they were set up.
            if wire.error is not None:
                self.on_failed(wire, str(wire.error))
            elif wire.blocked_reason is not None:
                self.on_blocked(wire, wire.blocked_reason)
        if link.is_done:
            self._end(None)

    # -- Calls by the wires --------------------------------------------------------------------------------------

    def on_deliveries(self, wire: Wire, deliveries: list[Delivery]) -> None:
        if wire is self.source and not self.ended.done():
            self._publish(lambda: self.link.on_deliveries(deliveries))

    def on_bundle(self, wire: Wire, delivery: BundleDelivery) -> None:
        if wire is self.source and not self.ended.done():
            self._publish(lambda: self.link.on_bundle(delivery))

    def _publish(self, made: Callable[[], list[bytes]]) -> None:
        try:
            self.destination.machine.send(made())
        except LinkFault as fault:
            self._end(str(fault))

    def on_confirm(self, wire: Wire, number: int, multiple: bool, refused: bool) -> None:
        if wire is not self.destination or self.ended.done():
            return
        try:
            self.link.on_confirm(number, multiple, refused)
        except LinkFault as fault:
            self._end(str(fault))
        if self.link.is_resting and self.rest is None:
            self._pause(RESTING)
            self.rest = self.loop.call_later(REST_S, self._on_rested)

    def on_input(self, wire: Wire) -> None:
        link = self.link
        if self.ended.done():
            if link.mode == "on-confirm":  # The last bytes of a destination may have confirmed something: it is there.
                self._settle()
            return
        if wire is self.source:
            self.destination.flush()  # Before anything is acknowledged: `on-publish` means that it was written.
        self._settle()
        if link.is_done:
            self._end(None)

    def _settle(self) -> None:
        machine = self.source.machine
        for tag, multiple, requeue in self.link.take_settlements():
            machine.requeue(tag, multiple) if requeue else machine.ack(tag, multiple)
        self.source.flush()

    def on_writable(self, wire: Wire, is_writable: bool) -> None:
        if wire is self.destination:
            self._resume(FULL) if is_writable else self._pause(FULL)

    def on_blocked(self, wire: Wire, reason: str | None) -> None:
        if wire is self.destination:
            self.blocked_reason = reason or ""
            self._resume(BLOCKED) if reason is None else self._pause(BLOCKED)

    def on_failed(self, wire: Wire, text: str) -> None:
        self._end(f"{wire.end} {wire.uri.text}: {text}")

    # -- Pausing -------------------------------------------------------------------------------------------------

    def _pause(self, reason: int) -> None:
        if not self.paused:
            self.source.pause_reading()
        self.paused |= reason

    def _resume(self, reason: int) -> None:
        if self.paused & reason:
            self.paused &= ~reason
            if not self.paused:
                self.source.resume_reading()

    def _on_rested(self) -> None:
        self.rest = None
        self.link.on_rested()
        self._resume(RESTING)

    def stop(self) -> None:
        """Take no further messages."""
        if self.rest is not None:
            self.rest.cancel()
        self.source.owner = self.destination.owner = None

    def _end(self, reason: str | None) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
