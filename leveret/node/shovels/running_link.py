"""A link between two open connections: calls the machine, and passes on what it says.

Reading from the source stops for one of three reasons, and goes on when none is left: the destination does not take
more (`FULL`), it has told so because of an alarm (`BLOCKED`), or it has refused a message (`RESTING`).

**A count that holds.** A link that is to move so many messages and no more (`agree`) has the cluster agree on how many
were moved before it acknowledges them. If its node dies before that, the source has the messages still and the next
worker, which goes on with the number that was agreed on, moves and counts them. If its node dies between the two, they
count and are moved again, so that fewer than wanted may be moved, by those that were under way at most. Never more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.shovel.link import LinkFault

if TYPE_CHECKING:
    from leveret.client.machine import BundleDelivery, Delivery
    from leveret.node.shovels.wire import Wire
    from leveret.shovel.link import Link, Settlement

FULL: Final = 1
BLOCKED: Final = 2
RESTING: Final = 4
REST_S: Final = 1.0

Agree = Callable[[int, Callable[[str | None], None]], None]  # How many were moved; told None, or why that is refused.


class RunningLink:
    """Drives a link until it is done or fails, which `ended` tells: None, or why."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        link: Link,
        source: Wire,
        destination: Wire,
        agree: Agree | None = None,
    ) -> None:
        self.loop = loop
        self.link = link
        self.source = source
        self.destination = destination
        self.agree = agree
        self.agreed = 0  # How many messages the cluster knows to be moved by this link,
        self.is_agreeing = False
        self.unsettled: list[Settlement] = []  # and what waits for that.
        self.when_quiet: list[Callable[[], None]] = []  # Called when nothing does.
        self.is_stopped = False
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

    # -- Figures -------------------------------------------------------------------------------------------------

    @property
    def settled(self) -> int:
        """How many messages count as moved."""
        return self.link.forwarded if self.agree is None else self.agreed

    @property
    def remaining(self) -> int | None:
        """How many are to be moved until the end; None: there is no end."""
        return None if self.link.quota is None else max(self.link.quota - self.settled, 0)

    @property
    def is_done(self) -> bool:
        return self.link.is_done and not self.is_agreeing and not self.unsettled

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
        if self.is_done:
            self._end(None)

    def _settle(self) -> None:
        settlements = self.link.take_settlements()
        if self.agree is None:
            self._acknowledge(settlements)
        else:
            self.unsettled += settlements
            self._have_agreed(self.agree)

    def _have_agreed(self, agree: Agree) -> None:
        """One question at a time: what comes meanwhile is agreed on together."""
        if self.is_agreeing or not self.unsettled:
            return
        count, settlements = self.link.forwarded, self.unsettled
        self.unsettled = []
        self.is_agreeing = True

        def then(refused: str | None) -> None:
            self.is_agreeing = False
            if refused is not None:
                self._end(refused)
            elif self.source.machine.is_open:
                self.agreed = count
                self._acknowledge(settlements)
            if not self.ended.done() and not self.is_stopped:
                self._have_agreed(agree)
                if self.is_done:
                    self._end(None)
            if not self.is_agreeing:
                waiting, self.when_quiet = self.when_quiet, []
                for tell in waiting:
                    tell()

        agree(count, then)

    def await_quiet(self, then: Callable[[], None]) -> None:
        """Call `then` when all that the cluster was asked to agree on is acknowledged."""
        if self.is_agreeing:
            self.when_quiet.append(then)
        else:
            then()

    def _acknowledge(self, settlements: list[Settlement]) -> None:
        machine = self.source.machine
        for tag, multiple, requeue in settlements:
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

    def stop(self, then: Callable[[], None]) -> None:
        """Take no further messages. `then` is called when all that the cluster agrees on is acknowledged."""
        self.is_stopped = True
        if self.rest is not None:
            self.rest.cancel()
        self.source.owner = self.destination.owner = None
        self.await_quiet(then)

    def _end(self, reason: str | None) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
