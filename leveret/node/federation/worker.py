"""The worker of one federation link at this node: see `leveret.node.shovels.link_worker`.

It connects to this cluster and to the upstream, sets up what is needed there, and consumes. If the link has ended for
good, what it has made upstream is deleted (`clean_up`); if the node stops or another node takes over, it stays, with
the messages in it.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

from leveret.base.visible_text import visible
from leveret.client import amqp
from leveret.client.amqp import BrokerError
from leveret.federation.link import FederationLink
from leveret.metadata.shovel.uris import AmqpUri
from leveret.node.shovels.direct import DirectSocket, PipeEnd
from leveret.node.shovels.link_worker import ORIGINS, Life, LinkWorker, both_know, frame_max_of, named
from leveret.node.shovels.running_link import BLOCKED, RESTING, RunningLink
from leveret.node.shovels.wire import Wire, connect
from leveret.protocol.tables import BadTable, Table, decode_table
from leveret.shovel.retries import Retries

if TYPE_CHECKING:
    from leveret.metadata.federation.links import Link
    from leveret.metadata.shovel.records import Assignment
    from leveret.node.node import Node

logger = logging.getLogger("leveret.federation")

DELAY_S_MIN: Final = 0.1
CLEAN_UP_S: Final = 10.0
COMMAND_INVALID: Final = 503
PRECONDITION_FAILED: Final = 406


# What listings call its states. What has failed for good tries again when something is changed.
_SHOWN: Final = {
    Life.STARTING: "starting",
    Life.RUNNING: "running",
    Life.WAITING: "error",
    Life.FAILED: "error",
    Life.ENDED: "error",
    Life.STOPPED: "stopped",
}


class FederationWorker(LinkWorker):
    """Runs one link."""

    leaves_resources = False  # It makes something upstream that is deleted when the link ends.

    def __init__(self, node: Node, assignment: Assignment, link: Link) -> None:
        super().__init__(node, assignment, logger, "")
        self.of = link
        self.dropped_before = 0  # By connections before the present ones.
        self.has_run = False
        self.link: FederationLink | None = None
        self.upstream: Wire | None = None  # From when it is connected.
        self.uri = link.upstream.uris[0]
        self.local_connection = ""
        self.takes_origins = False  # The upstream and this node know origins: nothing comes twice.
        self._begin(Retries(max(link.upstream.reconnect_delay_s, DELAY_S_MIN)))

    @property
    def title(self) -> str:
        of = self.of
        return f"federation link of {of.kind} '{of.name}' in vhost '{of.vhost}' to upstream '{of.upstream.name}'"

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
        link, self.link = self.link, None
        if link is not None:
            self.dropped_before += link.dropped
        self.upstream = None
        super()._drop_link()

    # -- Figures -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return what listings show of it, without what the metadata know."""
        link, running = self.link, self.running
        note = ""
        if running is not None and running.paused & BLOCKED:
            note = f"this cluster is blocked: {running.blocked_reason}"
        elif running is not None and running.paused & RESTING:
            note = "a queue here refuses messages: is it full?"
        return {
            "status": _SHOWN[self.life],
            "error": self.reason,
            "note": note,
            "uri": self.uri.text,
            "consumer_tag": self.of.upstream.consumer_tag,
            "local_connection": self.local_connection if self.life is Life.RUNNING else "",
            "dropped": self.dropped_before + (0 if link is None else link.dropped),
            **self.figures(),
        }

    # -- Attempts ------------------------------------------------------------------------------------------------

    def _on_ended(self) -> None:
        """A link has no end of its own."""

    async def _attempt(self) -> str:
        upstream = self.of.upstream
        self.uri = self.node.environment.random_source.choice(upstream.uris)
        is_numbered = upstream.ack_mode == "on-confirm"
        here = AmqpUri("amqp://", False, "", 0, None, None, self.of.vhost)
        downstream = await self._connect(here, "downstream", "", {ORIGINS: True} if is_numbered else {})
        if is_numbered:
            await named(downstream, downstream.call(amqp.CONFIRM_SELECT, b"\0"))
        self.local_connection = _name_of(downstream)
        wire = await self._connect_upstream()
        self.takes_origins = is_numbered and both_know(ORIGINS, wire)
        link = self.link = self.new_link(downstream.machine.frame_max, frame_max_of(wire, downstream))
        running = self.running = RunningLink(self.loop, link, wire, downstream)
        if upstream.ack_mode != "no-ack":
            await named(wire, wire.call(amqp.BASIC_QOS, struct.pack(">IHB", 0, upstream.prefetch, 0)))
        await named(wire, self.begin(wire))
        self._become(Life.RUNNING)
        self.has_run = True
        self.upstream = wire
        logger.info("%s", visible(f"{self.title} runs, from {self.uri.text}"))
        return await running.ended or "it has ended"

    async def _connect_upstream(self) -> Wire:
        wire = await self._connect(self.uri, "upstream", self.of.upstream.user, {})
        await named(wire, self.set_up(wire))
        return wire

    async def _connect(self, uri: AmqpUri, end: str, user: str, properties: dict[str, bool]) -> Wire:
        name = f"Federation link (upstream: {self.of.upstream.name}, policy: {self.of.policy})"
        try:
            return await connect(self.node, uri, end, name, user, properties, self.wires.append)
        except BrokerError as error:
            raise BrokerError(f"{end} {uri.text}: {error}") from None

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
