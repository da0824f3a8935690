"""The worker of one shovel at this node: see `link_worker`.

It connects to the destination, then to the source, sets up queues and bindings, and consumes.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from leveret.base.visible_text import visible
from leveret.client import amqp
from leveret.client.amqp import BrokerError, short, table
from leveret.client.machine import Closed
from leveret.metadata.shovel.commands import ReportWork
from leveret.metadata.shovel.parameters import NEVER, QUEUE_LENGTH, Shovel, read_shovel
from leveret.node.shovels.link_worker import NOT_FOUND, ORIGINS, Life, LinkWorker, both_know, frame_max_of, named
from leveret.node.shovels.running_link import BLOCKED, RESTING, RunningLink
from leveret.node.shovels.wire import Wire, connect
from leveret.protocol import bundles
from leveret.protocol.origins import MARKS
from leveret.shovel.link import Link, Target
from leveret.shovel.retries import Retries
from leveret.shovel.rewriting import Rewriter, forward_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.base.json_values import Json
    from leveret.metadata.shovel.records import Assignment
    from leveret.metadata.shovel.uris import AmqpUri
    from leveret.metadata.store import Applied
    from leveret.node.node import Node

logger = logging.getLogger("leveret.shovel")

REPORT_S: Final = 5.0
FAULTS_SHOWN: Final = 3  # Of several brokers that do not answer.


# What listings call its states. What has ended is there until its parameter is cleared.
_SHOWN: Final = {
    Life.STARTING: "starting",
    Life.RUNNING: "running",
    Life.WAITING: "terminated",
    Life.FAILED: "terminated",
    Life.ENDED: "terminated",
    Life.STOPPED: "starting",
}


class ShovelWorker(LinkWorker):
    """Runs one shovel. `report` tells the metadata how many messages it has moved, and whether it has ended."""

    def __init__(
        self, node: Node, assignment: Assignment, value: Json, report: Callable[[ShovelWorker, bool], None]
    ) -> None:
        super().__init__(node, assignment, logger, "it connects to both brokers")
        self.report = report
        self.moved_before = assignment.forwarded
        self.reported = assignment.forwarded
        self.reported_at = self.loop.time()
        self.stopped_at = 0.0
        self.uris: tuple[str, str] = ("", "")
        try:
            self.shovel = read_shovel(value)
        except ValueError as error:
            self._become(Life.FAILED, f"its parameters are invalid: {error}")
            return
        self._begin(Retries(self.shovel.reconnect_delay_s))

    @property
    def name(self) -> str:
        return self.assignment.name

    @property
    def title(self) -> str:
        return f"shovel '{self.name}' in vhost '{self.assignment.vhost}'"

    def was_halted_for(self, seconds: float) -> bool:
        """Tell whether it was stopped so long ago, and is still the one that should run."""
        return self.is_stopped and self.loop.time() - self.stopped_at > seconds

    def stop(self) -> None:
        """End for good: another epoch has begun, or this node may not run it now."""
        if not self.is_stopped:
            self._become(Life.STOPPED, "it begins anew")
            self.stopped_at = self.loop.time()
        if self.task is not None:
            self.task.cancel()
        self._drop_link()

    # -- Figures -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Return what listings show of it, without what the metadata know."""
        running = self.running
        state, reason = _SHOWN[self.life], self.reason
        if running is not None and running.paused & BLOCKED:
            state, reason = "blocked", f"the destination is blocked: {running.blocked_reason}"
        elif running is not None and running.paused & RESTING:
            state, reason = "flow", "the destination refuses messages: is its queue full?"
        elif running is not None and running.paused:
            state, reason = "flow", "the destination does not take more for now"
        return {
            "state": state,
            "reason": reason,
            "remaining": None if running is None else running.remaining,
            "src_uri": self.uris[0],
            "dest_uri": self.uris[1],
            **self.figures(),
        }

    def on_tick(self) -> None:
        """Report how far it is, now and then."""
        now = self.loop.time()
        if now - self.reported_at >= REPORT_S and self.forwarded > self.reported and self.life is Life.RUNNING:
            self.reported, self.reported_at = self.forwarded, now
            self.report(self, False)

    # -- Attempts ------------------------------------------------------------------------------------------------

    def _on_ended(self) -> None:
        self.report(self, True)

    async def _attempt(self) -> str | None:
        shovel = self.shovel
        numbered = {ORIGINS: True} if shovel.ack_mode == "on-confirm" else {}
        destination = await self._connect(shovel.dest_uris, "destination", numbered)
        source = await self._connect(shovel.src_uris, "source", {})
        self.uris = (source.uri.text, destination.uri.text)
        knows = both_know(ORIGINS, source, destination)
        await named(destination, self._set_up_destination(shovel, destination))
        queue, length = await named(source, self._set_up_source(shovel, source))
        quota = self._quota(shovel, length)
        if quota == 0:
            return None
        marks = bool(numbered) and both_know(MARKS, destination)
        frame_max = frame_max_of(source, destination)
        link = Link(shovel.ack_mode, _target(shovel), self._rewriter(shovel), quota, frame_max, marks)
        agree = self._agree if isinstance(shovel.delete_after, int) else None
        running = self.running = RunningLink(self.loop, link, source, destination, agree)
        prefetch = struct.pack(">IHB", 0, shovel.prefetch, 0)
        await named(source, source.call(amqp.BASIC_QOS, prefetch))
        arguments = dict(shovel.src_consumer_args)
        if knows and bool(numbered):
            arguments["x-leveret-origin"] = True
            if link.takes_bundles and both_know(bundles.CAPABILITY, source, destination):
                arguments[bundles.ARGUMENT] = True
                source.machine.await_bundles()
        consume = b"\0\0" + short(queue) + short(shovel.src_consumer_name)
        flags = 0 if link.acknowledges else amqp.NO_ACK
        await named(source, source.call(amqp.BASIC_CONSUME, consume + bytes((flags,)) + table(arguments)))
        self._become(Life.RUNNING)
        logger.info("%s", visible(f"{self.title} runs from {source.uri.text} to {destination.uri.text}"))
        reason = await self._ended(running, shovel.delete_after_s)
        if reason is None and link.acknowledges:
            # Its answer says that the acknowledgements before it have been heard.
            await named(source, source.call(amqp.BASIC_QOS, prefetch))
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

    def _agree(self, moved: int, then: Callable[[str | None], None]) -> None:
        """Have the cluster know how many messages the present link has moved."""
        total = self.moved_before + moved
        assignment = self.assignment

        def on_agreed(applied: Applied) -> None:
            refused = applied.refused
            if refused is None:
                self.reported, self.reported_at = max(self.reported, total), self.loop.time()
            then(None if refused is None else f"the count of messages was not agreed on: {refused.text}")

        self.node.propose(ReportWork(*assignment.key, assignment.epoch, total), on_agreed)

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
