"""The worker of one shovel at this node, for one epoch of its assignment.

    STARTING ─▶ RUNNING ─▶ ENDED (it has moved all that it should)
        │           │
        └───────────┴────▶ WAITING for the next attempt ─▶ STARTING
                           FAILED: there will be none

It connects to the destination, then to the source, sets up queues and bindings, and consumes. If anything fails, both
connections are given up, the reason is kept for whoever asks, and after a delay it begins anew. It is stopped for good
when the metadata say so: the next epoch has a worker of its own.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from leveret.base.visible_text import visible
from leveret.client import amqp
from leveret.client.amqp import BrokerError, short, table
from leveret.client.machine import Closed
from leveret.metadata.shovel.parameters import NEVER, QUEUE_LENGTH, Shovel, read_shovel
from leveret.node.shovels.running_link import BLOCKED, RESTING, RunningLink
from leveret.node.shovels.wire import Wire, connect
from leveret.protocol import bundles
from leveret.shovel.link import Link, Target
from leveret.shovel.retries import Retries
from leveret.shovel.rewriting import Rewriter, forward_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.base.json_values import Json
    from leveret.metadata.shovel.records import Assignment
    from leveret.metadata.shovel.uris import AmqpUri
    from leveret.node.node import Node

logger = logging.getLogger("leveret.shovel")

NOT_FOUND: Final = 404
ORIGINS: Final = "leveret_origins"
REPORT_S: Final = 5.0
FAULTS_SHOWN: Final = 3  # Of several brokers that do not answer.


class Life(Enum):
    """The state of a worker. It goes on as `_LATER` allows."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "terminated"  # Until the next attempt.
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


# States that listings have no word of their own for. What has ended is there until its parameter is cleared.
_SHOWN: Final = {Life.FAILED: "terminated", Life.ENDED: "terminated", Life.STOPPED: "starting"}


class ShovelWorker:
    """Runs one shovel. `report` tells the metadata how many messages it has moved, and whether it has ended."""

    def __init__(
        self, node: Node, assignment: Assignment, value: Json, report: Callable[[ShovelWorker, bool], None]
    ) -> None:
        self.node = node
        self.loop = node.loop
        self.assignment = assignment
        self.report = report
        self.life = Life.STARTING
        self.reason = "it connects to both brokers"
        self.since_ms = node.environment.wall_ms()
        self.next_ms: int | None = None  # The time of day of the next attempt.
        self.moved_before = assignment.forwarded  # By links before the present one.
        self.bytes_before = 0
        self.reported = assignment.forwarded
        self.reported_at = self.loop.time()
        self.stopped_at = 0.0
        self.running: RunningLink | None = None
        self.wires: list[Wire] = []
        self.uris: tuple[str, str] = ("", "")
        self.shovel: Shovel | None = None
        try:
            self.shovel = read_shovel(value)
        except ValueError as error:
            self._become(Life.FAILED, f"its parameters are invalid: {error}")
            self.task: asyncio.Task[None] | None = None
            return
        self.retries = Retries(self.shovel.reconnect_delay_s)
        self.task = self.loop.create_task(self._run(self.shovel), name=f"shovel {assignment.name}")

    @property
    def name(self) -> str:
        return self.assignment.name

    @property
    def is_stopped(self) -> bool:
        return self.life is Life.STOPPED

    def was_halted_for(self, seconds: float) -> bool:
        """Tell whether it was stopped so long ago, and is still the one that should run."""
        return self.is_stopped and self.loop.time() - self.stopped_at > seconds

    def _become(self, life: Life, reason: str = "") -> None:
        assert life in _LATER[self.life], (self.life, life)
        self.life = life
        self.reason = reason
        self.since_ms = self.node.environment.wall_ms()
        if life is not Life.WAITING:
            self.next_ms = None

    def stop(self) -> None:
        """End for good: another epoch has begun, or this node may not run it now."""
        if not self.is_stopped:
            self._become(Life.STOPPED, "it begins anew")
            self.stopped_at = self.loop.time()
        if self.task is not None:
            self.task.cancel()
        self._drop_link()

    # -- Figures -------------------------------------------------------------------------------------------------

    @property
    def forwarded(self) -> int:
        return self.moved_before + (0 if self.running is None else self.running.link.forwarded)

    def status(self) -> dict[str, Any]:
        """Return what listings show of it, without what the metadata know."""
        running = self.running
        link = None if running is None else running.link
        state, reason = _SHOWN.get(self.life, self.life.value), self.reason
        if running is not None and running.paused & BLOCKED:
            state, reason = "blocked", f"the destination is blocked: {running.blocked_reason}"
        elif running is not None and running.paused & RESTING:
            state, reason = "flow", "the destination refuses messages: is its queue full?"
        elif running is not None and running.paused:
            state, reason = "flow", "the destination does not take more for now"
        shown = {
            "state": state,
            "reason": reason,
            "since_ms": self.since_ms,
            "next_ms": self.next_ms,
            "forwarded": self.forwarded,
            "pending": 0 if link is None else link.pending,
            "remaining": None if link is None else link.remaining,
            "bytes": self.bytes_before + (0 if link is None else link.bytes),
            "src_uri": self.uris[0],
            "dest_uri": self.uris[1],
        }
        return shown

    def on_tick(self) -> None:
        """Report how far it is, now and then."""
        now = self.loop.time()
        if now - self.reported_at >= REPORT_S and self.forwarded > self.reported and self.life is Life.RUNNING:
            self.reported, self.reported_at = self.forwarded, now
            self.report(self, False)

    # -- Attempts ------------------------------------------------------------------------------------------------

    async def _run(self, shovel: Shovel) -> None:
        while not self.is_stopped:
            began = self.loop.time()
            try:
                reason = await self._attempt(shovel)
            except BrokerError as error:
                reason = str(error)
            except Exception as error:  # A bug must end this attempt only, and be logged.
                logger.exception("shovel '%s' in vhost '%s': internal error", self.name, self.assignment.vhost)
                reason = f"internal error: {error!r}"
            ran_s = self.loop.time() - began if self.life is Life.RUNNING else 0.0
            self._drop_link()
            if self.is_stopped:
                return
            if reason is None:
                self._become(Life.ENDED, "it has moved all that it should")
                self.report(self, True)
                return
            delay_s = self.retries.on_failed(ran_s)
            self._log_failure(reason, delay_s)
            if delay_s is None:
                self._become(Life.FAILED, reason)
                return
            self._become(Life.WAITING, reason)
            self.next_ms = self.node.environment.wall_ms() + int(delay_s * 1000)
            await asyncio.sleep(delay_s)
            self._become(Life.STARTING, f"it connects again after: {reason}")

    def _log_failure(self, reason: str, delay_s: float | None) -> None:
        again = "it is not tried again" if delay_s is None else f"next attempt in {delay_s:g} s"
        text = f"shovel '{self.name}' in vhost '{self.assignment.vhost}' failed: {reason}; {again}"
        logger.warning("%s", visible(text))  # The far broker may have told the reason.

    def _drop_link(self) -> None:
        running, self.running = self.running, None
        if running is not None:
            running.stop()
            self.moved_before += running.link.forwarded
            self.bytes_before += running.link.bytes
        wires, self.wires = self.wires, []
        for wire in wires:
            wire.close()

    async def _attempt(self, shovel: Shovel) -> str | None:
        """Return None when all is moved that should be, or why it cannot go on. Raises BrokerError."""
        numbered = {ORIGINS: True} if shovel.ack_mode == "on-confirm" else {}
        destination = await self._connect(shovel.dest_uris, "destination", numbered)
        source = await self._connect(shovel.src_uris, "source", {})
        self.uris = (source.uri.text, destination.uri.text)
        knows = _both_know(ORIGINS, source, destination)
        await self._named(destination, self._set_up_destination(shovel, destination))
        queue, length = await self._named(source, self._set_up_source(shovel, source))
        quota = self._quota(shovel, length)
        if quota == 0:
            return None
        link = Link(shovel.ack_mode, _target(shovel), self._rewriter(shovel), quota, _frame_max(source, destination))
        running = self.running = RunningLink(self.loop, link, source, destination)
        prefetch = struct.pack(">IHB", 0, shovel.prefetch, 0)
        await self._named(source, source.call(amqp.BASIC_QOS, prefetch))
        arguments = dict(shovel.src_consumer_args)
        if knows and bool(numbered):
            arguments["x-leveret-origin"] = True
            if link.takes_bundles and _both_know(bundles.CAPABILITY, source, destination):
                arguments[bundles.ARGUMENT] = True
                source.machine.await_bundles()
        consume = b"\0\0" + short(queue) + short(shovel.src_consumer_name)
        flags = 0 if link.acknowledges else amqp.NO_ACK
        await self._named(source, source.call(amqp.BASIC_CONSUME, consume + bytes((flags,)) + table(arguments)))
        self._become(Life.RUNNING)
        source_uri, target_uri = self.uris
        text = f"shovel '{self.name}' in vhost '{self.assignment.vhost}' runs from {source_uri} to {target_uri}"
        logger.info("%s", visible(text))
        reason = await self._ended(running, shovel.delete_after_s)
        if reason is None and link.acknowledges:
            # Its answer says that the acknowledgements before it have been heard.
            await self._named(source, source.call(amqp.BASIC_QOS, prefetch))
        return reason

    async def _ended(self, running: RunningLink, duration_s: int | None) -> str | None:
        if duration_s is None:
            return await running.ended
        try:
            async with asyncio.timeout(duration_s):
                return await asyncio.shield(running.ended)
        except TimeoutError:
            running.link.quota = running.link.published  # What is under way is waited for.
            running.on_input(running.destination)
            return await running.ended

    def _quota(self, shovel: Shovel, length: int) -> int | None:
        if shovel.delete_after == NEVER:
            return None
        if shovel.delete_after == QUEUE_LENGTH:
            return length
        assert isinstance(shovel.delete_after, int)
        return max(shovel.delete_after - self.moved_before, 0)

    def _rewriter(self, shovel: Shovel) -> Rewriter | None:
        if not (shovel.publish_properties or shovel.add_forward_headers or shovel.add_timestamp_header):
            return None
        forward = None
        if shovel.add_forward_headers:
            cluster = self.node.broker.cluster_name
            forward = forward_table(shovel, cluster, self.assignment.vhost, self.name, *self.uris)
        now_s = (lambda: self.node.environment.wall_ms() // 1000) if shovel.add_timestamp_header else None
        return Rewriter(shovel.publish_properties, forward, now_s)

    # -- Setting up ----------------------------------------------------------------------------------------------

    async def _connect(self, uris: tuple[AmqpUri, ...], end: str, properties: Mapping[str, bool]) -> Wire:
        """Connect to one of several brokers: they are tried at random, until one answers. Raises BrokerError."""
        faults: list[str] = []
        for uri in self.node.environment.random_source.sample(uris, len(uris)):
            try:
                return await connect(
                    self.node, uri, end, f"Shovel {self.name}", self.assignment.user, properties, self.wires.append
                )
            except BrokerError as error:
                faults.append(f"{end} {uri.text}: {error}")
                self.wires.pop().close()
        more = f"; and {len(faults) - FAULTS_SHOWN} others" if len(faults) > FAULTS_SHOWN else ""
        raise BrokerError("; ".join(faults[:FAULTS_SHOWN]) + more)

    async def _named(self, wire: Wire, asked: Any) -> Any:
        """Await something asked of a broker, and name the broker if it refuses."""
        try:
            return await asked
        except BrokerError as error:
            raise BrokerError(f"{wire.end} {wire.uri.text}: {error}") from None

    async def _set_up_destination(self, shovel: Shovel, wire: Wire) -> None:
        if shovel.dest_queue is not None:
            await _find_queue(wire, shovel.dest_queue, shovel.dest_queue_args, shovel.dest_predeclared)
        elif shovel.dest_exchange:
            passive = b"\0\0" + short(shovel.dest_exchange) + short("direct") + bytes((amqp.PASSIVE,)) + table({})
            await wire.call(amqp.EXCHANGE_DECLARE, passive)
        if shovel.ack_mode == "on-confirm":
            await wire.call(amqp.CONFIRM_SELECT, b"\0")

    async def _set_up_source(self, shovel: Shovel, wire: Wire) -> tuple[str, int]:
        """Return the queue to consume from, and how many messages are in it."""
        if shovel.src_queue is not None:
            return await _find_queue(wire, shovel.src_queue, shovel.src_queue_args, shovel.src_predeclared)
        exclusive = bytes((amqp.EXCLUSIVE,))
        answer = await wire.call(amqp.QUEUE_DECLARE, b"\0\0" + short("") + exclusive + table(shovel.src_queue_args))
        name, _ = _declared(answer)
        exchange, key = shovel.src_exchange or "", shovel.src_exchange_key
        bind = b"\0\0" + short(name) + short(exchange) + short(key) + b"\0" + table({})
        await wire.call(amqp.QUEUE_BIND, bind)
        return name, 0


async def _find_queue(wire: Wire, name: str, arguments: Mapping[str, Json], predeclared: bool) -> tuple[str, int]:
    """Look for a queue, and declare it if it is not there, unless somebody else is to do that. Raises Closed."""
    try:
        passive = b"\0\0" + short(name) + bytes((amqp.PASSIVE,)) + table({})
        return _declared(await wire.call(amqp.QUEUE_DECLARE, passive))
    except Closed as error:
        if error.code != NOT_FOUND or not error.of_channel:
            raise
        if predeclared:
            raise Closed(f"queue '{name}' is not there yet, and is declared by somebody else") from None
    await wire.reopen()
    durable = b"\0\0" + short(name) + bytes((amqp.DURABLE,)) + table(arguments)
    return _declared(await wire.call(amqp.QUEUE_DECLARE, durable))


def _declared(answer: bytes) -> tuple[str, int]:
    """Return the name of a queue, and its messages. Raises BrokerError."""
    size = answer[0] if answer else 0
    if len(answer) != size + 9:
        raise BrokerError("the broker's queue.declare-ok is malformed")
    return answer[1 : 1 + size].decode("utf-8", "surrogateescape"), int.from_bytes(answer[1 + size : 5 + size], "big")


def _target(shovel: Shovel) -> Target:
    if shovel.dest_queue is not None:
        # Mandatory, since a queue that was deleted meanwhile would swallow messages.
        return Target("", shovel.dest_queue, mandatory=shovel.ack_mode == "on-confirm")
    return Target(shovel.dest_exchange, shovel.dest_exchange_key)


def _frame_max(source: Wire, destination: Wire) -> int:
    """Return the destination's limit if frames of the source may exceed it; 0: they cannot."""
    wanted = destination.machine.frame_max
    return wanted if source.machine.frame_max > wanted else 0


def _both_know(capability: str, *wires: Wire) -> bool:
    return all(capability.encode() in wire.machine.server_properties for wire in wires)
