"""The worker of one federation link at this node, for one epoch of its assignment.

    STARTING ─▶ RUNNING
        │           │
        └───────────┴────▶ WAITING for the next attempt ─▶ STARTING
                           FAILED: there will be none until something is changed

It connects to this cluster and to the upstream, sets up what is needed there, and consumes. If anything fails, both
connections are given up, the reason is kept for whoever asks, and after a delay it begins anew. It is stopped when the
metadata say so: the next epoch has a worker of its own. If the link has ended for good, what it has made upstream is
deleted (`clean_up`); if the node stops or another node takes over, it stays, with the messages in it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from leveret.base.visible_text import visible
from leveret.client import amqp
from leveret.client.amqp import BrokerError
from leveret.client.machine import Closed
from leveret.federation.link import FederationLink
from leveret.metadata.shovel.uris import AmqpUri
from leveret.node.shovels.direct import DirectSocket, PipeEnd
from leveret.node.shovels.running_link import BLOCKED, RESTING, RunningLink
from leveret.node.shovels.wire import Wire, connect
from leveret.protocol.tables import BadTable, Table, decode_table
from leveret.shovel.retries import Retries

if TYPE_CHECKING:
    from leveret.metadata.federation.links import Link
    from leveret.metadata.shovel.records import Assignment
    from leveret.node.node import Node

logger = logging.getLogger("leveret.federation")

ORIGINS: Final = "leveret_origins"
DELAY_S_MIN: Final = 0.1
CLEAN_UP_S: Final = 10.0
COMMAND_INVALID: Final = 503
NOT_FOUND, PRECONDITION_FAILED = 404, 406


class Life(Enum):
    """The state of a worker. It goes on as `_LATER` allows."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "error"  # Until the next attempt.
    FAILED = "failed"  # There is none.
    STOPPED = "stopped"


_LATER: Final = {
    Life.STARTING: (Life.RUNNING, Life.WAITING, Life.FAILED, Life.STOPPED),
    Life.RUNNING: (Life.WAITING, Life.STOPPED),
    Life.WAITING: (Life.STARTING, Life.STOPPED),
    Life.FAILED: (Life.STOPPED,),
    Life.STOPPED: (),
}


class LinkWorker(ABC):
    """Runs one link."""

    leaves_resources = False  # It makes something upstream that is deleted when the link ends.

    def __init__(self, node: Node, assignment: Assignment, link: Link) -> None:
        self.node = node
        self.loop = node.loop
        self.assignment = assignment
        self.of = link
        self.life = Life.STARTING
        self.reason = ""
        self.logged = ""  # The last reason that was logged.
        self.since_ms = node.environment.wall_ms()
        self.next_ms: int | None = None  # The time of day of the next attempt.
        self.moved_before = self.bytes_before = self.dropped_before = 0  # By connections before the present ones.
        self.has_run = False
        self.running: RunningLink | None = None
        self.link: FederationLink | None = None
        self.wires: list[Wire] = []
        self.upstream: Wire | None = None  # From when it is connected.
        self.uri = link.upstream.uris[0]
        self.local_connection = ""
        self.takes_origins = False  # The upstream and this node know origins: nothing comes twice.
        self.retries = Retries(max(link.upstream.reconnect_delay_s, DELAY_S_MIN))
        self.task: asyncio.Task[None] | None = self.loop.create_task(self._run(), name=f"federation {link.name}")

    @property
    def is_stopped(self) -> bool:
        return self.life is Life.STOPPED

    @property
    def title(self) -> str:
        of = self.of
        return f"federation link of {of.kind} '{of.name}' in vhost '{of.vhost}' to upstream '{of.upstream.name}'"

    def _become(self, life: Life, reason: str = "") -> None:
        assert life in _LATER[self.life], (self.life, life)
        self.life = life
        self.reason = reason
        self.since_ms = self.node.environment.wall_ms()
        if life is not Life.WAITING:
            self.next_ms = None

    # -- What exchanges and queues do differently ----------------------------------------------------------------

    @abstractmethod
    async def set_up(self, wire: Wire) -> None:
        """Make upstream what the link needs. Nothing is consumed yet. Raises BrokerError."""

    @abstractmethod
    def new_link(self, header_max: int, frame_max: int) -> FederationLink:
        """Return the machine of the link."""

    @abstractmethod
    async def begin(self, wire: Wire) -> None:
        """Consume, now or when there is need. Raises BrokerError."""

    @abstractmethod
    async def clean_up(self, wire: Wire) -> None:
        """The link has ended for good: delete what it has made upstream. Raises BrokerError."""

    @abstractmethod
    def on_second(self) -> None:
        """Called about every second while it runs."""

    # -- Stopping ------------------------------------------------------------------------------------------------

    def stop(self, is_gone: bool) -> asyncio.Task[None] | None:
        """End this worker. If the link has ended for good, return the task that deletes what it has made upstream."""
        cleans = is_gone and self.has_run and self.leaves_resources and not self.of.upstream.keeps_resources
        if not self.is_stopped:
            self._become(Life.STOPPED)
        if self.task is not None:
            self.task.cancel()
        wire = self.upstream if cleans else None
        if wire is not None:
            self.wires.remove(wire)
        self._drop_link()
        return self.loop.create_task(self._end(wire), name=f"end of {self.title}") if cleans else None

    async def _end(self, wire: Wire | None) -> None:
        """Delete what was made upstream, over the connection that is still there, or over another one."""
        try:
            async with asyncio.timeout(CLEAN_UP_S):
                if wire is None:
                    wire = await self._connect(self.uri, "upstream", self.of.upstream.user, {})
                wire.resume_reading()
                await self.clean_up(wire)
        except (BrokerError, TimeoutError) as error:
            logger.info("%s", visible(f"{self.title}: its queue upstream could not be deleted: {error}"))
        except Exception:  # A bug must not stop the node, and be logged.
            logger.exception("%s: internal error", visible(self.title))
        finally:
            if wire is not None:
                wire.close()
            for one in self.wires:
                one.close()

    def _drop_link(self) -> None:
        running, self.running = self.running, None
        link, self.link = self.link, None
        if running is not None:
            running.stop()
        if link is not None:
            self.moved_before += link.forwarded
            self.bytes_before += link.bytes
            self.dropped_before += link.dropped
        wires, self.wires = self.wires, []
        self.upstream = None
        for wire in wires:
            wire.close()

    # -- Figures -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return what listings show of it, without what the metadata know."""
        link, running = self.link, self.running
        note = ""
        if running is not None and running.paused & BLOCKED:
            note = f"this cluster is blocked: {running.blocked_reason}"
        elif running is not None and running.paused & RESTING:
            note = "a queue here refuses messages: is it full?"
        status = Life.WAITING.value if self.life is Life.FAILED else self.life.value
        return {
            "status": status,
            "error": self.reason,
            "note": note,
            "since_ms": self.since_ms,
            "next_ms": self.next_ms,
            "uri": self.uri.text,
            "consumer_tag": self.of.upstream.consumer_tag,
            "local_connection": self.local_connection if self.life is Life.RUNNING else "",
            "forwarded": self.moved_before + (0 if link is None else link.forwarded),
            "dropped": self.dropped_before + (0 if link is None else link.dropped),
            "bytes": self.bytes_before + (0 if link is None else link.bytes),
            "pending": 0 if link is None else link.pending,
        }

    # -- Attempts ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self.is_stopped:
            began = self.loop.time()
            try:
                reason = await self._attempt()
            except BrokerError as error:
                reason = str(error)
            except Exception as error:  # A bug must end this attempt only, and be logged.
                logger.exception("%s: internal error", visible(self.title))
                reason = f"internal error: {error!r}"
            ran_s = self.loop.time() - began if self.life is Life.RUNNING else 0.0
            self._drop_link()
            if self.is_stopped:
                return
            delay_s = self.retries.on_failed(ran_s)
            if reason != self.logged:
                self.logged = reason
                again = "" if delay_s is None else f"; next attempt in {delay_s:g} s"
                logger.warning("%s", visible(f"{self.title} failed: {reason}{again}"))
            if delay_s is None:
                self._become(Life.FAILED, reason)
                return
            self._become(Life.WAITING, reason)
            self.next_ms = self.node.environment.wall_ms() + int(delay_s * 1000)
            await asyncio.sleep(delay_s)
            self._become(Life.STARTING, reason)

    async def _attempt(self) -> str:
        """Return why the link cannot go on. Raises BrokerError."""
        upstream = self.of.upstream
        self.uri = self.node.environment.random_source.choice(upstream.uris)
        is_numbered = upstream.ack_mode == "on-confirm"
        here = AmqpUri("amqp://", False, "", 0, None, None, self.of.vhost)
        downstream = await self._connect(here, "downstream", "", {ORIGINS: True} if is_numbered else {})
        if is_numbered:
            await self.named(downstream, downstream.call(amqp.CONFIRM_SELECT, b"\0"))
        self.local_connection = _name_of(downstream)
        wire = await self._connect_upstream()
        self.takes_origins = is_numbered and ORIGINS.encode() in wire.machine.server_properties
        limit = downstream.machine.frame_max
        frame_max = limit if wire.machine.frame_max > limit else 0
        link = self.link = self.new_link(limit, frame_max)
        running = self.running = RunningLink(self.loop, link, wire, downstream)
        if upstream.ack_mode != "no-ack":
            await self.named(wire, wire.call(amqp.BASIC_QOS, struct.pack(">IHB", 0, upstream.prefetch, 0)))
        await self.named(wire, self.begin(wire))
        self._become(Life.RUNNING)
        self.has_run = True
        self.upstream = wire
        self.logged = ""
        logger.info("%s", visible(f"{self.title} runs, from {self.uri.text}"))
        return await running.ended or "it has ended"

    async def _connect_upstream(self) -> Wire:
        wire = await self._connect(self.uri, "upstream", self.of.upstream.user, {})
        await self.named(wire, self.set_up(wire))
        return wire

    async def _connect(self, uri: AmqpUri, end: str, user: str, properties: dict[str, bool]) -> Wire:
        name = f"Federation link (upstream: {self.of.upstream.name}, policy: {self.of.policy})"
        try:
            return await connect(self.node, uri, end, name, user, properties, self.wires.append)
        except BrokerError as error:
            raise BrokerError(f"{end} {uri.text}: {error}") from None

    async def named(self, wire: Wire, asked: Any) -> Any:
        """Await something asked of a broker, and name the broker if it refuses."""
        try:
            return await asked
        except Closed as error:
            raise Closed(f"{wire.end} {wire.uri.text}: {error}", error.code, error.of_channel) from None
        except BrokerError as error:
            raise BrokerError(f"{wire.end} {wire.uri.text}: {error}") from None

    def upstream_cluster(self, wire: Wire) -> str | None:
        """Return the name of the upstream's cluster; None if it does not tell."""
        if wire.uri.is_direct:
            return self.node.broker.cluster_name
        field = server_table(wire).get("cluster_name")
        return field.value if field is not None and field.kind == "S" else None


def server_table(wire: Wire) -> Table:
    """Return what a broker has told of itself, nothing if it is malformed."""
    try:
        return decode_table(wire.machine.server_properties, 2)[0]  # Behind the two numbers of the version.
    except BadTable:
        return {}


def _name_of(wire: Wire) -> str:
    """Return the name of a connection within the process, as listings have it."""
    transport = wire.transport
    if isinstance(transport, PipeEnd) and isinstance(transport.peer.protocol, DirectSocket):
        return str(transport.peer.protocol.connection.peer)
    return ""
