"""The worker of a link of an exchange: its queue, internal exchange and bindings upstream.

**Three exchanges in turn.** The internal exchange has a name with A, B or C at its end. An attempt makes one that is
not there, binds it like the exchange here, and then deletes those that were: so what was unbound while the line was
down is gone, and there is no moment without the bindings that are wanted. If all are there, since two attempts were cut
short, any may be the one that has all bindings; so one of the others is made to lead to the queue and gets all of them
too, before the one to be used is made anew.

**What is deleted late.** A process may be stopped just before it deletes an exchange that was there, and go on when
another node runs the link. Its successor has found that exchange too, and uses a third one: with two in turn, it would
have to use one of those that the other may delete. Nothing more is deleted by a process that is not sure of its task
(`_stay_current`). It takes two further attempts until the name is used again.

**What is made late.** A node upstream that is cut off from its cluster keeps what an attempt asked of it, and has it
done when it is back, though the attempt was given up and the next one, over another node, has deleted that exchange. So
the first look at the internal exchange also deletes the others, if they lead nowhere. One that does was made by
somebody else, and must stay; then the link begins anew.

**A queue with other arguments** (`expires` has changed, say) is deleted and made anew if it is empty. Otherwise it
stays as it is, because messages wait in it.

**An upstream without federation** does not know the type of the internal exchange, and closes the connection. Then the
attempt is repeated with a fanout exchange, and hops are counted at this end alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from leveret.client import amqp
from leveret.client.amqp import BrokerError
from leveret.client.machine import Closed
from leveret.federation.bindings import SUFFIXES, Change, Site, UpstreamBindings, following, queue_name
from leveret.federation.headers import ExchangeHeaders
from leveret.federation.link import FederationLink
from leveret.metadata.model.records import ExchangeSpec
from leveret.node.federation import calls
from leveret.node.federation.worker import COMMAND_INVALID, PRECONDITION_FAILED, FederationWorker, logger
from leveret.node.shovels.link_worker import NOT_FOUND
from leveret.node.shovels.standing import NOTHING
from leveret.protocol.received_from import DOWNSTREAM_NAME, DOWNSTREAM_VHOST, MAX_HOPS_ARGUMENT, UPSTREAM_TYPE
from leveret.protocol.tables import Field, Table
from leveret.shovel.link import Target

if TYPE_CHECKING:
    from leveret.metadata.federation.links import Link
    from leveret.metadata.model.records import Binding
    from leveret.metadata.shovel.records import Assignment
    from leveret.node.node import Node
    from leveret.node.shovels.wire import Wire

AT_ONCE_MAX: Final = 32  # Bindings that wait for their answers.
CHECK_S: Final = 90.0  # How often it looks whether the internal exchange is still there.
PURPOSE: Final[Table] = {"x-internal-purpose": Field("S", "federation")}


class ExchangeWorker(FederationWorker):
    """Runs the link of an exchange."""

    leaves_resources = True

    def __init__(self, node: Node, assignment: Assignment, link: Link) -> None:
        self.cluster = node.broker.cluster_name
        self.queue = ""
        self.internal = ""  # The name of the internal exchange.
        self.suffix: str | None = None  # That of the last internal exchange, if this worker has made one.
        self.bindings: UpstreamBindings | None = None
        self.asked = 0  # Changes of bindings that wait for their answers.
        self.upstream_name: str | None = None
        self.is_fanout = False
        self.checked_at = 0.0
        self.is_tidy = False  # The other internal exchanges were deleted since this attempt began.
        super().__init__(node, assignment, link)

    # -- Setting up ----------------------------------------------------------------------------------------------

    async def _connect_upstream(self) -> Wire:
        try:
            return await super()._connect_upstream()
        except Closed as error:
            if error.code != COMMAND_INVALID or self.is_fanout:
                raise
        self.is_fanout = True
        return await super()._connect_upstream()

    async def set_up(self, wire: Wire) -> None:
        of = self.of
        self.upstream_name = self.upstream_cluster(wire)
        self.queue = queue_name(of.there, wire.uri.vhost, of.name, of.vhost, self.cluster)
        await self._set_up_queue(wire)
        await self._set_up_exchange(wire)
        present = await self._present(wire)
        await self._stay_current()  # Nobody would delete soon what is made beside the exchange of a successor.
        self.suffix = None
        new = following(present)
        name = self._internal_name(new)
        if new in present:
            kept = next(suffix for suffix in present if suffix != new)
            await self._lead_to_queue(wire, self._internal_name(kept))
            await self._bind_all(wire, kept)
            await self._stay_current()
            await wire.call(amqp.EXCHANGE_DELETE, calls.delete_exchange(name))
        await self._declare_internal(wire, name)
        await self._lead_to_queue(wire, name)
        self.internal = name
        self.bindings = await self._bind_all(wire, new)
        for suffix in present:
            if suffix != new:
                await self._stay_current()
                await wire.call(amqp.EXCHANGE_DELETE, calls.delete_exchange(self._internal_name(suffix)))
        self.suffix = new
        self.checked_at = self.loop.time()
        self.is_tidy = False

    async def _present(self, wire: Wire) -> list[str]:
        """Return which of the internal exchanges are there. The upstream logs each look for one that is not."""
        if self.suffix is not None:
            return [self.suffix]
        return [suffix for suffix in SUFFIXES if await self._has_exchange(wire, self._internal_name(suffix))]

    def _internal_name(self, suffix: str) -> str:
        return f"{self.queue} {suffix}"

    async def _set_up_queue(self, wire: Wire) -> None:
        upstream = self.of.upstream
        arguments: Table = {}
        if upstream.expires_ms is not None:
            arguments["x-expires"] = Field("l", upstream.expires_ms)
        if upstream.message_ttl_ms is not None:
            arguments["x-message-ttl"] = Field("l", upstream.message_ttl_ms)
        if upstream.ha_policy is not None:
            arguments["x-ha-policy"] = Field("S", upstream.ha_policy)
        arguments |= PURPOSE
        if upstream.queue_type is not None:
            arguments["x-queue-type"] = Field("S", upstream.queue_type)
        declare = calls.declare_queue(self.queue, calls.DURABLE, arguments)
        try:
            await wire.call(amqp.QUEUE_DECLARE, declare)
            return
        except Closed as error:
            if error.code != PRECONDITION_FAILED or not error.of_channel:
                raise
        await wire.reopen()
        try:
            await wire.call(amqp.QUEUE_DELETE, calls.delete_queue(self.queue, calls.IF_UNUSED | calls.IF_EMPTY))
            await wire.call(amqp.QUEUE_DECLARE, declare)
        except Closed as error:
            if not error.of_channel:
                raise
            logger.warning("%s: messages wait in its queue upstream, so it keeps its arguments", self.title)
            await wire.reopen()

    async def _set_up_exchange(self, wire: Wire) -> None:
        """Look for the exchange upstream, and declare it like the one here if it is not there."""
        of, spec = self.of, self.of.spec
        assert isinstance(spec, ExchangeSpec)
        if await self._has_exchange(wire, of.there):
            return
        flags = calls.DURABLE * spec.durable | calls.EXCHANGE_AUTO_DELETE * spec.auto_delete
        await wire.call(amqp.EXCHANGE_DECLARE, calls.declare_exchange(of.there, spec.type, flags, spec.arguments))

    async def _has_exchange(self, wire: Wire, name: str) -> bool:
        try:
            await wire.call(amqp.EXCHANGE_DECLARE, calls.declare_exchange(name, "direct", calls.PASSIVE, {}))
        except Closed as error:
            if error.code != NOT_FOUND or not error.of_channel:
                raise
            await wire.reopen()
            return False
        return True

    async def _declare_internal(self, wire: Wire, name: str) -> None:
        flags = calls.DURABLE | calls.EXCHANGE_AUTO_DELETE | calls.INTERNAL
        arguments: Table = {
            MAX_HOPS_ARGUMENT: Field("l", self.of.upstream.max_hops),
            DOWNSTREAM_NAME: Field("S", self.cluster),
            DOWNSTREAM_VHOST: Field("S", self.of.vhost),
            **PURPOSE,
        }
        kind = "fanout" if self.is_fanout else UPSTREAM_TYPE
        declare = calls.declare_exchange(name, kind, flags, PURPOSE if self.is_fanout else arguments)
        await wire.call(amqp.EXCHANGE_DECLARE, declare)

    async def _stay_current(self) -> None:
        """Have this node know all that was agreed on by now, so that this worker is stopped if another one has taken
        over: what a process that was stopped for a while deletes may be its successor's, and what it binds stays."""
        applied = await self.node.cluster.change(NOTHING)
        if applied.refused is not None:
            raise BrokerError(f"this node is cut off from its cluster: {applied.refused.text}")

    async def _lead_to_queue(self, wire: Wire, name: str) -> None:
        await wire.call(amqp.QUEUE_BIND, calls.bind_queue(self.queue, name))

    # -- Bindings ------------------------------------------------------------------------------------------------

    async def _bind_all(self, wire: Wire, suffix: str) -> UpstreamBindings:
        """Bind one of the internal exchanges like the exchange here."""
        of = self.of
        site = Site(self.cluster, of.vhost, of.name, self.upstream_name, wire.uri.vhost)
        self.bindings = bindings = UpstreamBindings(site, of.upstream.max_hops, suffix)
        bindings.add(self.node.metadata.bindings.from_source(of.vhost, of.name))
        while changes := self._changes(bindings):
            await asyncio.gather(*(wire.call(*self._call(change, suffix, nowait=False)) for change in changes))
        return bindings

    def _changes(self, bindings: UpstreamBindings) -> list[Change]:
        changes: list[Change] = []
        while len(changes) < AT_ONCE_MAX and (change := bindings.take_change()) is not None:
            changes.append(change)
        return changes

    def _call(self, change: Change, suffix: str, nowait: bool) -> tuple[amqp.Name, bytes]:
        name = amqp.EXCHANGE_BIND if change.is_made else amqp.EXCHANGE_UNBIND
        internal = self._internal_name(suffix)
        return name, calls.bind_exchange(internal, self.of.there, change.key, nowait, change.arguments)

    def on_bound(self, binding: Binding) -> None:
        """Something was bound to the exchange here."""
        if self.bindings is not None:
            self.bindings.add((binding,))
            self._pass_on()

    def on_unbound(self, binding: Binding) -> None:
        if self.bindings is not None:
            self.bindings.remove(binding)
            self._pass_on()

    def _pass_on(self) -> None:
        """Tell the upstream what was bound and unbound, if it is connected and not busy with what was before."""
        wire, bindings, nowait = self.upstream, self.bindings, self.of.upstream.binds_without_wait
        if wire is None or bindings is None:
            return
        while self.asked < AT_ONCE_MAX and (change := bindings.take_change()) is not None:
            try:
                name, arguments = self._call(change, bindings.suffix, nowait)
            except BrokerError as error:  # It has arguments that no table has room for.
                logger.warning("%s: a binding is not passed on: %s", self.title, error)
                continue
            if nowait:
                wire.machine.send([amqp.method(name, arguments)])
            else:
                self.asked += 1
                wire.machine.call(name, arguments, self._on_answered)
        wire.flush()

    def _on_answered(self, answer: bytes | Closed) -> None:
        self.asked -= 1
        if isinstance(answer, Closed):
            self._fail(str(answer))
        elif self.bindings is not None and self.bindings.changed:
            self._pass_on()

    def _fail(self, text: str) -> None:
        if self.running is not None and self.upstream is not None:
            self.running.on_failed(self.upstream, text)

    # -- Messages ------------------------------------------------------------------------------------------------

    def new_link(self, header_max: int, frame_max: int) -> FederationLink:
        of, upstream = self.of, self.of.upstream
        there = (self.upstream_name, self.uri.vhost)
        here = (self.cluster, of.vhost)
        write = ExchangeHeaders(
            self.uri.text, of.name, there, here, upstream.max_hops, upstream.trusts_user_id, header_max
        )
        return FederationLink(upstream.ack_mode, Target(of.name, None), write, frame_max)

    async def begin(self, wire: Wire) -> None:
        flags = calls.NO_ACK if self.of.upstream.ack_mode == "no-ack" else 0
        arguments: Table = {"x-leveret-origin": Field("t", True)} if self.takes_origins else {}
        await wire.call(amqp.BASIC_CONSUME, calls.consume(self.queue, "", flags, arguments))
        self.asked = 0
        self.loop.call_soon(self._pass_on)  # What was bound meanwhile, once the worker runs.

    def on_second(self) -> None:
        wire, now = self.upstream, self.loop.time()
        if wire is None or now - self.checked_at < CHECK_S:
            return
        self.checked_at = now
        passive = calls.declare_exchange(self.internal, UPSTREAM_TYPE, calls.PASSIVE, {})
        wire.machine.call(amqp.EXCHANGE_DECLARE, passive, self._on_checked)
        if not self.is_tidy:  # Once, because the upstream's nodes agree on each delete, even of what is not there.
            self.is_tidy = True
            for other in map(self._internal_name, SUFFIXES):
                if other != self.internal:
                    delete = calls.delete_exchange(other, calls.IF_UNUSED)
                    wire.machine.call(amqp.EXCHANGE_DELETE, delete, self._on_checked)
        wire.flush()

    def _on_checked(self, answer: bytes | Closed) -> None:
        if isinstance(answer, Closed):
            self.suffix = None  # The next attempt looks for all.
            self._fail(str(answer))

    async def clean_up(self, wire: Wire) -> None:
        await wire.call(amqp.QUEUE_DELETE, calls.delete_queue(self.queue))
        for suffix in SUFFIXES:  # Others are there, too, if an attempt was cut short.
            await wire.call(amqp.EXCHANGE_DELETE, calls.delete_exchange(self._internal_name(suffix)))
