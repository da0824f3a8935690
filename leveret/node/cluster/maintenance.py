"""Takes queues and clients from a node: before it stops, while it is in maintenance, or when it leaves for good.

**In maintenance** (`leveretctl drain`, or `leave_cluster`) a node runs and takes no new clients. Its state is part of
the metadata (`leveret.metadata.model.maintenance_mark`); this module acts on it whenever the state changes, whoever has
asked for it, and whether or not the caller still waits:

- the listeners for clients are closed; those for HTTP stay open, so that one can see how the node is;
- a node that is *draining* closes the connections that it has; one that is *leaving* keeps them until they end;
- masters that a mirror in sync could take are handed over: also those that come to this node later, because another
  master was lost and the copy here was the best. They are looked for every second.

The caller waits for this to be done (`handed_over`). Queues of which no other node has a complete copy stay here, and
are served from here to the clients of other nodes: to stop such a node would make them unavailable, and the caller is
told so.

**Stopping** (`step_down`) is the last chance: mirrored queues go to any mirror in sync, even one in maintenance, and to
one that is not in sync if their policy says so.

**Leaving** (`clear_out`) takes queues without mirrors along the way that any move takes
(`broker.mirrors.member_changes`), so that clients notice nothing. Then there are clients of this node itself. Those
that neither publish nor consume are sent away. The others are waited for: the node stays a member that leads nothing,
and passes on what they send. When they are gone, what is left (queues of delayed exchanges, spools) goes faster
(`broker.remote.migrate`), and then the node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.remote.migrate import move as begin_move
from leveret.metadata.model.commands import ClearGlobalParameter, NodeStarted
from leveret.metadata.model.hidden_queues import is_journal
from leveret.metadata.model.maintenance_mark import DRAINING, LEAVING, MAINTENANCE, out_of_service, state_of
from leveret.node.cluster import drain_spools
from leveret.node.cluster.consensus import AdminError
from leveret.node.cluster.partition_pause import CLIENTS_S
from leveret.protocol.errors import ReplyCode

if TYPE_CHECKING:
    from leveret.broker.client_connection import ClientConnection
    from leveret.broker.mirrors.manager import Mirror
    from leveret.metadata.model.records import QueueSpec
    from leveret.node.node import Node

logger = logging.getLogger("leveret")

Progress = Callable[[str], None]

IN_MAINTENANCE: Final = "Node was put into maintenance mode"  # RabbitMQ's words.
LEFT: Final = "broker forced connection closure with reason 'node is being drained'"
LEAVE_S: Final = 5.0  # Time for mirrored queues to get another master before this node stops.
STUCK_S: Final = 10.0  # Time without a queue handed over after which the rest is left where it is.
LEAVE_STEP_S: Final = 0.005
PASSED_ON_S: Final = 0.5
QUIET_STEPS: Final = 4  # Steps without activity after which nothing is believed to be on its way here.
UNHURRIED_STEPS: Final = 20  # The same, if nobody waits for this node to stop.
AT_ONCE: Final = 200  # Masters that are handed over at the same time.
SHOWN_MAX: Final = 5
WAIT_S: Final = 60.0


class ClientsLeft(AdminError):
    """Clients still use the node; it stays a member that is about to leave."""


class Users(NamedTuple):
    """The connections that publish or consume, and the numbers of producers and consumers."""

    connections: list[ClientConnection]
    producers: int
    consumers: int

    def __str__(self) -> str:
        peers = [str(connection.peer) for connection in self.connections[:SHOWN_MAX]]
        more = f" and {len(self.connections) - SHOWN_MAX} more" if len(self.connections) > SHOWN_MAX else ""
        return f"{self.producers} producers and {self.consumers} consumers ({', '.join(peers)}{more})"


class Maintenance:
    """Puts one node into maintenance, revives it, and empties it before it stops or leaves."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.state: str | None = None  # At the last `look`.
        self.on_closed: Callable[[], None] = lambda: None  # Closes the listeners for clients.
        self.on_opened: Callable[[], None] = lambda: None  # Opens the listeners for clients again.
        self.all_gone: asyncio.Future[None] | None = None  # Set when the last client has gone.

    @property
    def name(self) -> str:
        return self.node.settings.node_name

    # -- Entering and leaving it ---------------------------------------------------------------------------------

    async def reset(self) -> None:
        """Ends the maintenance of an earlier run when the node starts."""
        cluster, parameter = self.node.cluster, MAINTENANCE + self.name
        if parameter in self.node.metadata.global_parameters:
            logger.info("Resetting node maintenance status")
            cluster.propose(ClearGlobalParameter(parameter), lambda applied: None, patient=True)
            await cluster.until(lambda: parameter not in self.node.metadata.global_parameters)

    def look(self) -> None:
        """Acts on this node's maintenance state in the metadata, if it has changed."""
        is_known = self.node.metadata.runs.get(self.name) == self.node.cluster.run  # Not while it catches up.
        before, self.state = self.state, state_of(self.node.metadata, self.name) if is_known else None
        if self.state == before:
            return
        if self.state is None:
            logger.info("This node is being revived from maintenance (drain) mode")
            self.on_opened()
            return
        logger.warning("This node is being put into maintenance (drain) mode")
        self.on_closed()
        if self.state == DRAINING:
            logger.warning("Closed %d local client connections", self.close_clients(IN_MAINTENANCE))
        self.tick()

    def tick(self) -> None:
        """Every second."""
        if self.state is not None and self.node.broker.mirrors.hand_overs.give_away(AT_ONCE):
            self.node.schedule()

    def go_on(self) -> None:
        """In each tick of the mirrors, if there are more queues than could be looked at at once."""
        if self.state is not None and self.node.broker.mirrors.hand_overs.is_looking:
            self.tick()

    def close_clients(self, text: str) -> int:
        connections = list(self.node.broker.connections)
        for connection in connections:
            connection.close(ReplyCode.CONNECTION_FORCED, text)
        for client in list(self.node.clients):
            if client.connection not in self.node.broker.connections:
                client.transport.abort()  # It has not logged in yet.
        self.node.schedule()
        return len(connections)

    # -- Masters -------------------------------------------------------------------------------------------------

    def led(self) -> list[QueueSpec]:
        """Returns the queues whose master is here, without exclusive queues and journals, which end with the node."""
        specs = self.node.metadata.queues.values()
        return [spec for spec in specs if spec.node == self.name and not spec.exclusive and not is_journal(spec.name)]

    async def handed_over(self, progress: Progress) -> None:
        """Waits until all masters that can be are handed over to mirrors, and the leadership of the cluster too."""
        node = self.node
        hand_overs, loop = node.broker.mirrors.hand_overs, node.loop
        total = best = hand_overs.give_away(AT_ONCE)
        deadline = loop.time() + STUCK_S
        while (left := hand_overs.give_away(AT_ONCE)) and node.fatal is None and self.state is not None:
            if left < best:
                best, deadline = left, loop.time() + STUCK_S
            elif loop.time() > deadline:
                logger.warning("%d queues cannot be handed over: their mirrors do not keep up", left)
                break
            progress(f"{total - left} of {total} queues handed over to mirrors")
            node.turn()
            await asyncio.sleep(LEAVE_STEP_S)
        if total:
            progress(f"{total - left} of {total} queues handed over to mirrors")
        await node.cluster.hand_over()
        await node.cluster.change(NodeStarted(""))  # Changes nothing; once it is applied, all know the new masters.
        await self._quiet(UNHURRIED_STEPS, LEAVE_S)  # Answers what other nodes sent here before they knew.

    def next_home(self) -> str:
        """Returns the node for a queue that has to be moved: of those in service, the one with the fewest masters.
        Raises `AdminError`."""
        node = self.node
        away = out_of_service(node.metadata)
        others = [one.name for one in node.cluster.members() if one.running and one.name != self.name]
        masters = node.broker.loads.masters
        there = [name for name in others if name not in away and not node.pausing.is_paused(name)]
        if not there:
            raise AdminError("there is no other running node that could take the queues")
        return min(there, key=lambda name: (masters.get(name, 0), name))

    async def step_down(self) -> None:
        """Hands mirrored queues over before a controlled stop. A client sees that its publishes wait for some
        milliseconds. Without a majority nobody can take one over: so where all nodes stop at the same time, the last
        ones wait for nothing."""
        node = self.node
        hand_overs = node.broker.mirrors.hand_overs
        deadline = node.loop.time() + LEAVE_S
        has_led = False
        try:
            while (
                node.fatal is None
                and node.cluster.has_majority
                and hand_overs.leave()
                and node.loop.time() < deadline
            ):
                has_led = True
                node.turn()
                await asyncio.sleep(LEAVE_STEP_S)
        finally:
            hand_overs.stay()
        if has_led:
            await self._quiet(QUIET_STEPS, PASSED_ON_S)

    async def _quiet(self, steps: int, seconds: float) -> None:
        """Waits until nothing is on its way here from nodes that did not know the new masters. What they sent was
        passed on; their confirms must reach them before the link ends, and messages that their clients acknowledge
        meanwhile must not be delivered again."""
        node = self.node
        broker, deadline = node.broker, node.loop.time() + seconds
        quiet, out = 0, broker.still_out
        while node.fatal is None and quiet < steps and node.loop.time() < deadline:
            busy = broker.mirrors.proposed or any(owner_end.confirms.open for owner_end in broker.owner_ends.values())
            quiet = 0 if busy or broker.still_out != out else quiet + 1
            out = broker.still_out
            node.turn()
            await asyncio.sleep(LEAVE_STEP_S)

    # -- Clients -------------------------------------------------------------------------------------------------

    def users(self) -> Users:
        connections, producers, consumers = [], 0, 0
        for connection in self.node.broker.connections:
            count = sum(len(channel.session.consumers) for channel in connection.channels.values())
            if count or connection.has_published:
                connections.append(connection)
                producers += connection.has_published
                consumers += count
        return Users(connections, producers, consumers)

    def on_client_lost(self) -> None:
        if not self.node.clients and self.all_gone is not None and not self.all_gone.done():
            self.all_gone.set_result(None)

    async def clients_gone(self) -> None:
        """Waits until the clients that were told to close have done so, for `CLIENTS_S`, and aborts the others. Then
        waits until their exclusive queues are deleted."""
        node = self.node
        node.turn()
        if node.clients:
            self.all_gone = node.loop.create_future()
            await asyncio.wait([self.all_gone], timeout=CLIENTS_S)
        for client in list(node.clients):
            client.transport.abort()
        await node.cluster.until(
            lambda: not any(spec.exclusive and spec.node == self.name for spec in node.metadata.queues.values())
        )

    async def users_gone(self, progress: Progress, force: bool, seconds: float | None) -> None:
        """Waits until nobody publishes or consumes here any more; with `force`, for so many seconds at most. Raises
        `ClientsLeft`."""
        if force and seconds is None:
            return
        deadline = None if seconds is None else self.node.loop.time() + seconds
        while (users := self.users()).connections:
            progress(f"waiting for {users}")
            left = None if deadline is None else deadline - self.node.loop.time()
            if left is not None and left <= 0:
                if force:
                    return
                raise ClientsLeft(
                    f"{users} still use this node. It leads nothing any more, takes no new connections, and stays a "
                    "member of the cluster until they are gone: run leave_cluster again, or with --force, which sends "
                    f"them away; or take it back with: leveretctl -n {self.name} revive"
                )
            seconds = left if left is not None else WAIT_S
            await self.node.cluster.consensus.until_changed(lambda: str(self.users()), seconds)
            if self.state != LEAVING:
                raise AdminError("this node was revived meanwhile, and stays")

    # -- Leaving for good ----------------------------------------------------------------------------------------

    async def clear_out(self, progress: Progress) -> None:
        """Disconnects the last clients, then moves the remaining queues to other nodes. Raises `AdminError`."""
        self.close_clients(LEFT)
        await self.clients_gone()
        await drain_spools.sent_on(self.node)
        await self.step_down()
        local = (queue for queue in self.node.broker.queues_by_id.values() if isinstance(queue, LocalQueue))
        queues = [queue for queue in local if not is_journal(queue.spec.name)]  # Journals end with their nodes.
        for done, queue in enumerate(queues):
            if not queue.deleted:
                await self.move(queue, self.next_home())
                logger.info("queue '%s' in vhost '%s' moved to another node", queue.spec.name, queue.spec.vhost)
            progress(f"{done + 1} of {len(queues)} queues moved")

    async def move(self, queue: LocalQueue, to: str) -> None:
        """Moves a queue to another node. Raises `AdminError`; then the queue is where it was."""
        if queue.mirror is not None:
            await self._hand_over(queue, queue.mirror, to)
            return
        moved: asyncio.Future[str | None] = self.node.loop.create_future()

        def then(problem: str | None) -> None:
            if not moved.done():
                moved.set_result(problem)

        begin_move(queue, to, then)
        self.node.schedule()
        problem = await moved
        if problem is not None and not queue.deleted:
            raise AdminError(f"queue '{queue.spec.name}' could not be moved to {to}: {problem}")

    async def _hand_over(self, queue: LocalQueue, mirror: Mirror, to: str) -> None:
        """Makes the mirror at `to` the master: a mirrored queue is only ever handed over to a mirror."""
        node = self.node
        begun = node.broker.mirrors.hand_over(mirror, to)
        deadline = node.loop.time() + LEAVE_S
        while begun and mirror.queue is queue and node.fatal is None and node.loop.time() < deadline:
            node.turn()
            await asyncio.sleep(LEAVE_STEP_S)
        if mirror.queue is queue and not queue.deleted:
            name = queue.spec.name
            raise AdminError(f"queue '{name}' could not be moved to {to}: there is no mirror that is in sync")
