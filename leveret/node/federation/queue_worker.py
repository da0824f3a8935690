"""The worker of a link of a queue: it consumes upstream while there is need here.

There is need while nothing waits in the queue here, and a consumer of priority 0 or more has room. The consumer
upstream has priority -1, so that consumers there are served first, and a link from here to there does not count as a
consumer that wants messages back. The queue must be at this node: the leader assigns the link to where it is.

Subscribing and cancelling need no answers. What is delivered after a cancel was sent on its way before, and goes on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.queue.ordered_queue import OrderedQueue
from leveret.client import amqp
from leveret.client.amqp import BrokerError
from leveret.client.machine import Closed
from leveret.federation.headers import QueueHeaders
from leveret.federation.link import FederationLink
from leveret.metadata.model.records import QueueSpec
from leveret.node.federation import calls
from leveret.node.federation.worker import FederationWorker
from leveret.node.shovels.link_worker import NOT_FOUND
from leveret.protocol.tables import Field, Table
from leveret.shovel.link import Target

if TYPE_CHECKING:
    from leveret.metadata.federation.links import Link
    from leveret.metadata.shovel.records import Assignment
    from leveret.node.node import Node
    from leveret.node.shovels.wire import Wire

MESSAGE_BYTES: Final = 100  # The size of a message for which a consumer is asked whether it has room.


class QueueWorker(FederationWorker):
    """Runs the link of a queue."""

    def __init__(self, node: Node, assignment: Assignment, link: Link) -> None:
        self.is_consuming = False
        self.frames = (b"", b"")  # Which cancel, and subscribe.
        super().__init__(node, assignment, link)

    async def set_up(self, wire: Wire) -> None:
        self.is_consuming = False
        if b"consumer_priorities" not in wire.machine.server_properties and not wire.uri.is_direct:
            raise BrokerError("the upstream has no consumer priorities")
        try:
            await wire.call(amqp.QUEUE_DECLARE, calls.declare_queue(self.of.there, calls.PASSIVE, {}))
            return
        except Closed as error:
            if error.code != NOT_FOUND or not error.of_channel:
                raise
        await wire.reopen()
        spec = self.of.spec
        assert isinstance(spec, QueueSpec)
        flags = calls.DURABLE * spec.durable | calls.QUEUE_AUTO_DELETE * spec.auto_delete
        await wire.call(amqp.QUEUE_DECLARE, calls.declare_queue(self.of.there, flags, spec.arguments))

    def new_link(self, header_max: int, frame_max: int) -> FederationLink:
        of, upstream = self.of, self.of.upstream
        write = QueueHeaders(self.uri.text, of.name, upstream.trusts_user_id, header_max)
        # Mandatory, since a queue that was deleted meanwhile would swallow messages.
        target = Target("", of.name, mandatory=upstream.ack_mode == "on-confirm")
        return FederationLink(upstream.ack_mode, target, write, frame_max)

    async def begin(self, wire: Wire) -> None:
        """Prepare what `look` sends."""
        upstream = self.of.upstream
        arguments: Table = {"x-priority": Field("l", -1)}
        if self.takes_origins:
            arguments["x-leveret-origin"] = Field("t", True)
        flags = calls.CONSUME_NOWAIT | (calls.NO_ACK if upstream.ack_mode == "no-ack" else 0)
        consume = calls.consume(self.of.there, upstream.consumer_tag, flags, arguments)
        cancel = calls.cancel(upstream.consumer_tag)
        self.frames = (amqp.method(amqp.BASIC_CANCEL, cancel), amqp.method(amqp.BASIC_CONSUME, consume))

    async def clean_up(self, wire: Wire) -> None:
        """The queue upstream stays: it may have been there before."""

    def on_second(self) -> None:
        """Nothing has to be done every second."""

    def look(self) -> None:
        """Subscribe upstream, or cancel, if need has changed. Called every few milliseconds."""
        wire = self.upstream
        if wire is None or wire.machine.is_over:
            return
        has_need = self._has_need()
        if has_need == self.is_consuming:
            return
        self.is_consuming = has_need
        wire.machine.send([self.frames[has_need]])
        wire.flush()

    def _has_need(self) -> bool:
        vhost = self.node.broker.vhosts.get(self.of.vhost)
        queue = None if vhost is None else vhost.queue(self.of.name)
        if not isinstance(queue, OrderedQueue) or queue.ready_count or not queue.consumers:
            return False
        order = queue.consumer_order
        if order is not None and order.active is not None:
            return order.active.priority >= 0 and order.active.room(MESSAGE_BYTES) > 0
        return any(one.priority >= 0 and one.room(MESSAGE_BYTES) > 0 for one in queue.consumers)
