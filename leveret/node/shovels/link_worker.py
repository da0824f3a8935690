"""The worker of one link at this node, for one epoch of its assignment: what those of shovels and federation share.

    STARTING ─▶ RUNNING ─▶ ENDED (it has moved all that it should)
        │           │
        └───────────┴────▶ WAITING for the next attempt ─▶ STARTING
                           FAILED: there will be none

An attempt connects to two brokers, sets up what is needed there, and runs a link between them. If anything fails, both
connections are given up, the reason is kept for whoever asks, and after a delay the worker begins anew. It is stopped
for good when the metadata say so: the next epoch has a worker of its own.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from leveret.base.visible_text import visible
from leveret.client.amqp import BrokerError
from leveret.client.machine import Closed

if TYPE_CHECKING:
    import logging

    from leveret.metadata.shovel.records import Assignment
    from leveret.node.node import Node
    from leveret.node.shovels.running_link import RunningLink
    from leveret.node.shovels.wire import Wire
    from leveret.shovel.retries import Retries

NOT_FOUND: Final = 404
ORIGINS: Final = "leveret_origins"  # The capability of a broker, and the property of a client, that knows origins.


class Life(Enum):
    """The state of a worker. It goes on as `_LATER` allows."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"  # For the next attempt.
    FAILED = "failed"  # There is none.
    ENDED = "ended"
    STOPPED = "stopped"


_LATER: Final = {
    Life.STARTING: (Life.RUNNING, Life.WAITING, Life.FAILED, Life.ENDED, Life.STOPPED),
    Life.RUNNING: (Life.WAITING, Life.FAILED, Life.ENDED, Life.STOPPED),
    Life.WAITING: (Life.STARTING, Life.STOPPED),
    Life.FAILED: (Life.STOPPED,),
    Life.ENDED: (Life.STOPPED,),
    Life.STOPPED: (),
}


class LinkWorker(ABC):
    """Runs one link, attempt after attempt. `log` is told of failures."""

    def __init__(self, node: Node, assignment: Assignment, log: logging.Logger, reason: str) -> None:
        self.node = node
        self.loop = node.loop
        self.assignment = assignment
        self.log = log
        self.life = Life.STARTING
        self.reason = reason
        self.logged = ""  # The last reason that was logged since it ran.
        self.since_ms = node.environment.wall_ms()
        self.next_ms: int | None = None  # The time of day of the next attempt.
        self.moved_before = self.bytes_before = 0  # By links before the present one.
        self.running: RunningLink | None = None
        self.wires: list[Wire] = []
        self.task: asyncio.Task[None] | None = None
        self.is_closed: asyncio.Future[None] | None = None  # The connections of the last link are.

    # -- What each kind does differently -------------------------------------------------------------------------

    @property
    @abstractmethod
    def title(self) -> str:
        """Return what it is, for people."""

    @abstractmethod
    async def _attempt(self) -> str | None:
        """Run until all is moved that should be: None; or return why it cannot go on. Raises BrokerError."""

    @abstractmethod
    def _on_ended(self) -> None:
        """All is moved that should be."""

    # -- Life ----------------------------------------------------------------------------------------------------

    @property
    def is_stopped(self) -> bool:
        return self.life is Life.STOPPED

    def _become(self, life: Life, reason: str = "") -> None:
        assert life in _LATER[self.life], (self.life, life)
        self.life = life
        self.reason = reason
        self.since_ms = self.node.environment.wall_ms()
        if life is not Life.WAITING:
            self.next_ms = None
        if life is Life.RUNNING:
            self.logged = ""

    def _begin(self, retries: Retries) -> None:
        self.task = self.loop.create_task(self._run(retries), name=self.title)

    async def _run(self, retries: Retries) -> None:
        while not self.is_stopped:
            began = self.loop.time()
            try:
                reason = await self._attempt()
            except BrokerError as error:
                reason = str(error)
            except Exception as error:  # A bug must end this attempt only, and be logged.
                self.log.exception("%s: internal error", visible(self.title))
                reason = f"internal error: {error!r}"
            ran_s = self.loop.time() - began if self.life is Life.RUNNING else 0.0
            if self.running is not None:
                await self._quiet(self.running)
            self._drop_link()
            if self.is_stopped:
                return
            if reason is None:
                self._become(Life.ENDED, "it has moved all that it should")
                self._on_ended()
                return
            delay_s = retries.on_failed(ran_s)
            self._log_failure(reason, delay_s)
            if delay_s is None:
                self._become(Life.FAILED, reason)
                return
            self._become(Life.WAITING, reason)
            self.next_ms = self.node.environment.wall_ms() + int(delay_s * 1000)
            await asyncio.sleep(delay_s)
            self._become(Life.STARTING, f"it connects again after: {reason}")

    async def _quiet(self, running: RunningLink) -> None:
        """Wait for what the cluster was asked to agree on: it counts if the source can be told."""
        is_quiet: asyncio.Future[None] = self.loop.create_future()
        running.await_quiet(lambda: None if is_quiet.done() else is_quiet.set_result(None))
        await is_quiet

    def _log_failure(self, reason: str, delay_s: float | None) -> None:
        """The same reason is told once, not with each attempt."""
        if reason != self.logged:
            self.logged = reason
            again = "it is not tried again" if delay_s is None else f"next attempt in {delay_s:g} s"
            self.log.warning("%s", visible(f"{self.title} failed: {reason}; {again}"))  # The far broker may tell it.

    def _drop_link(self) -> None:
        running, self.running = self.running, None
        wires, self.wires = self.wires, []
        is_closed = self.loop.create_future()
        if running is not None:
            self.is_closed = is_closed

        def close() -> None:
            for wire in wires:
                wire.close()
            is_closed.set_result(None)

        if running is None:
            close()
        else:
            running.stop(close)
            self._count(running)

    def _count(self, running: RunningLink) -> None:
        """A link has ended: keep its figures."""
        self.moved_before += running.settled
        self.bytes_before += running.link.bytes

    # -- Figures -------------------------------------------------------------------------------------------------

    @property
    def forwarded(self) -> int:
        return self.moved_before + (0 if self.running is None else self.running.settled)

    def figures(self) -> dict[str, Any]:
        """Return what listings show of any link."""
        link = None if self.running is None else self.running.link
        return {
            "since_ms": self.since_ms,
            "next_ms": self.next_ms,
            "forwarded": self.forwarded,
            "pending": 0 if link is None else link.pending,
            "bytes": self.bytes_before + (0 if link is None else link.bytes),
        }


async def named(wire: Wire, asked: Any) -> Any:
    """Await something asked of a broker, and name the broker if it refuses."""
    try:
        return await asked
    except Closed as error:
        raise Closed(f"{wire.end} {wire.uri.text}: {error}", error.code, error.of_channel) from None
    except BrokerError as error:
        raise BrokerError(f"{wire.end} {wire.uri.text}: {error}") from None


def both_know(capability: str, *wires: Wire) -> bool:
    """Tell whether all of these brokers announce a capability."""
    return all(capability.encode() in wire.machine.server_properties for wire in wires)


def frame_max_of(source: Wire, destination: Wire) -> int:
    """Return the destination's limit if frames of the source may exceed it; 0: they cannot."""
    wanted = destination.machine.frame_max
    return wanted if source.machine.frame_max > wanted else 0
