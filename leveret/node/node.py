"""One node: the broker's machines, driven by an event loop.

Everything that arrives in one pass of the loop is taken in first (`Client.data_received`), then `turn` runs once:
deliver, begin a commit, tell confirms, write to each client that has something. See `Broker` for the turn, `Storage`
for the commit, `Client` for the brakes.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import platform
import secrets
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from leveret.amqp.limits import Limits
from leveret.broker.broker import Broker
from leveret.cluster.commands import Command, NodeStarted
from leveret.cluster.defaults import first_boot
from leveret.cluster.passwords import SALT_BYTES
from leveret.cluster.specs import Permission
from leveret.cluster.store import Applied, Metadata
from leveret.log.disk import FileDisk
from leveret.log.log import Log, LogOptions
from leveret.node.alarms import Alarms, release_memory, resident_bytes, total_memory_bytes
from leveret.node.client import BEHIND, BLOCKED, PACED, Client
from leveret.node.folder import MESSAGES, METADATA
from leveret.node.journal import Journal
from leveret.node.settings import LOG_LEVELS
from leveret.node.storage import Storage

if TYPE_CHECKING:
    from leveret.broker.batch import Gap
    from leveret.broker.queue import Queue
    from leveret.log.block import Run
    from leveret.node.settings import Settings

logger = logging.getLogger("leveret")

TICK_S: Final = 1.0
SPARES_KEPT_S: Final = 60.0  # Without a write, after which the log's spare files go.
LOOK_BYTES_MIN: Final = 1 << 20  # Written between two looks at how much disk is left.


class Node:
    """A running broker. `Node(settings, loop)` reads what is on disk; `start` opens the doors."""

    def __init__(self, settings: Settings, loop: asyncio.AbstractEventLoop) -> None:
        self.settings = settings
        self.loop = loop
        self.limits = Limits(
            frame_max=settings.frame_max,
            initial_frame_max=settings.initial_frame_max,
            channel_max=settings.channel_max,
            heartbeat_s=settings.heartbeat_s,
            message_bytes_max=settings.max_message_size,
            mechanisms=settings.auth_mechanisms,
            loopback_users=settings.loopback_users,
        )
        self.clients: dict[Client, None] = {}
        self.by_connection: dict[object, Client] = {}
        self.paced: dict[Client, Queue] = {}
        self.behind: dict[Client, None] = {}
        # Commands that the journal has no room for now. A connection waits for the answer to its last, so there is at
        # most one of each, besides the queues to be deleted with connections that went away.
        self.proposals: deque[tuple[Command, bool, Callable[[Applied], None]]] = deque()
        self.scheduled = False
        self.look_at_bytes = 0
        self.fatal: str | None = None
        self.stopped: asyncio.Future[None] = loop.create_future()
        self._ticker: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._syncer: asyncio.TimerHandle | None = None
        self.disk = FileDisk(settings.data_dir)
        self.metadata = Metadata()
        total = total_memory_bytes()
        self.alarms = Alarms(
            settings.memory_limit_bytes(total), settings.disk_limit_bytes(total), resident_bytes, self.disk.free_bytes
        )
        self._recover()

    def _recover(self) -> None:
        """Metadata first: it says which queues there are, and the log drops the messages of all others."""
        settings = self.settings
        journal = Journal(self.disk, METADATA)
        recovered = journal.recover()
        if recovered.snapshot is not None:
            self.metadata.restore(recovered.snapshot)
        for command in recovered.commands:
            self.metadata.apply(command)
        options = LogOptions(segment_bytes=settings.segment_bytes, sync=settings.fsync)
        log = Log(self.disk, MESSAGES, options)
        self.storage = Storage(
            self.loop, self.disk, journal, log, self.metadata, self.turn, self._on_disk_full, self.on_fatal
        )
        for command in self._startup_commands():
            if self.metadata.apply(command).events:
                self.storage.record(command, None)
        log.recover([spec.id for spec in self.metadata.queues.values()], logger.info)
        self.broker = Broker(
            self.metadata,
            self,
            settings.node_name,
            settings.cluster_name,
            platform.python_version(),
            settings.content_cache_bytes,
            int(self.alarms.memory_limit_bytes * settings.memory_paging_ratio),
        )
        for vhost in self.broker.vhosts.values():
            for queue in vhost.queues.values():
                restore(queue, log)

    def _startup_commands(self) -> list[Command]:
        settings = self.settings
        commands: list[Command] = [NodeStarted(settings.node_name, alone=True)]
        if not self.metadata.vhosts:
            commands += first_boot(
                secrets.token_bytes(SALT_BYTES),
                settings.default_user,
                settings.default_pass,
                settings.default_vhost,
                Permission(settings.default_configure, settings.default_write, settings.default_read),
                settings.default_user_tags,
            )
        return commands

    # -- The turn ------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Have a turn when all that has arrived is taken in."""
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.turn)

    def turn(self) -> None:
        """See the module's head. A failure in here leaves something half done: the node stops before it gets worse."""
        self.scheduled = False
        if self.fatal is not None:
            return
        try:
            self._turn()
        except Exception as error:
            logger.exception("a turn failed")
            self.on_fatal(f"a turn failed: {error!r}")

    def _turn(self) -> None:
        broker = self.broker
        broker.pump()
        if self.storage.should_wait(broker):
            self.schedule()
        else:
            self.storage.commit(broker)
        if self.storage.log.appended_bytes > self.look_at_bytes:
            self._look()
        if broker.confirming:
            broker.tell_confirms()
        if broker.writers:
            writers, broker.writers = broker.writers, {}
            by_connection = self.by_connection
            for connection in writers:
                client = by_connection.get(connection)
                if client is not None:
                    client.flush()
        while self.proposals and self.storage.has_room_for_commands():
            self._apply(*self.proposals.popleft())
        if self.paced:
            self._let_go_on()
        if self.behind and not self.storage.is_crowded(self.broker):
            behind, self.behind = self.behind, {}
            for client in behind:
                client.resume(BEHIND)

    def _let_go_on(self) -> None:
        """Publishers whose queue has emptied to half of what is crowded."""
        for client, queue in list(self.paced.items()):
            if queue.ready_count * 2 <= queue.crowded_at:
                del self.paced[client]
                client.resume(PACED)

    # -- Clients -------------------------------------------------------------------------------------------------

    def on_accepted(self, client: Client) -> bool:
        """Whether there is room for one more."""
        settings = self.settings
        unauthenticated = len(self.clients) - len(self.broker.connections)
        if unauthenticated >= settings.unauthenticated_connections_max:
            logger.warning("connection %s refused: too many that have not logged in", client.connection.peer)
            return False
        if settings.connection_max is not None and len(self.clients) >= settings.connection_max:
            logger.warning(
                "connection %s refused: connection_max (%d) is reached", client.connection.peer, settings.connection_max
            )
            return False
        self.clients[client] = None
        self.by_connection[client.connection] = client
        logger.getChild("connection").info("accepting AMQP connection %s", client.connection.peer)
        return True

    def on_lost(self, client: Client) -> None:
        self.clients.pop(client, None)
        self.by_connection.pop(client.connection, None)
        self.paced.pop(client, None)
        self.behind.pop(client, None)

    def on_published(self, client: Client) -> None:
        """Called after each bundle of input of a connection that publishes."""
        if self.storage.is_crowded(self.broker):
            client.pause(BEHIND)
            self.behind[client] = None
        if not client.connection.blocked:
            reason = self.alarms.reason()
            if reason is not None:
                self._block(client, reason)

    def set_socket_options(self, sock: socket.socket) -> None:
        settings = self.settings
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, settings.nodelay)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, settings.keepalive)
        for option, value in (
            (socket.SO_SNDBUF, settings.send_buffer_bytes),
            (socket.SO_RCVBUF, settings.receive_buffer_bytes),
        ):
            if value is not None:
                sock.setsockopt(socket.SOL_SOCKET, option, value)
        if settings.linger_s is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, settings.linger_s))

    # -- Time and alarms -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to tick."""
        self._check_alarms()
        self._tick()
        if self.settings.fsync == "interval":
            self._sync()
        self.turn()

    def _sync(self) -> None:
        """`fsync = interval`: what was written since the last time is to be synced now."""
        self.storage.log.sync_due()
        self.schedule()
        self._syncer = self.loop.call_later(self.settings.fsync_interval_ms / 1000, self._sync)

    def _tick(self) -> None:
        now_ms = int(self.loop.time() * 1000)
        self.broker.now_ms = now_ms
        for client in list(self.clients):
            client.on_tick(now_ms)
        if self.settings.consumer_timeout_ms is not None:
            self.broker.end_slow_channels(now_ms, self.settings.consumer_timeout_ms)
        self.broker.note_deliveries()
        if self.broker.content_bytes > self.broker.content_bytes_max:
            self.broker.page_out_unacked()
        self.storage.maintain(idle=not self.storage.committing)
        if self.loop.time() - self.storage.busy_at > SPARES_KEPT_S:
            self.storage.release_spares()
        self.schedule()
        self._ticker = self.loop.call_later(TICK_S, self._tick)

    def _check_alarms(self) -> None:
        self._look()
        self._watch = self.loop.call_later(self.settings.memory_monitor_interval_ms / 1000, self._check_alarms)

    def _look(self) -> None:
        """Compare memory and disk with their limits, and say how much may be written before the next look.

        A fast publisher can fill the disk between two looks that only the clock decides on. Then the acks that would
        make space again wait behind publishes that do not fit, and the node is stuck until somebody makes space.
        """
        before = self.alarms.reason()
        if self.alarms.memory:
            release_memory()
        self.alarms.check()
        above_bytes = self.alarms.disk_free_bytes - self.alarms.disk_limit_bytes
        self.look_at_bytes = self.storage.log.appended_bytes + max(LOOK_BYTES_MIN, above_bytes // 4)
        if self.alarms.disk or self.alarms.disk_full:
            self.storage.release_spares()
        self._on_alarms(before)

    def _on_disk_full(self, full: bool) -> None:
        before = self.alarms.reason()
        self.alarms.disk_full = full
        self._on_alarms(before)

    def _on_alarms(self, before: str | None) -> None:
        reason = self.alarms.reason()
        if reason == before:
            return
        if reason is not None:
            logger.warning("alarm: %s; publishers are blocked until it clears", reason)
        else:
            logger.warning("alarm cleared: %s", before)
        for client in list(self.clients):
            if reason is not None and client.connection.has_published and not client.connection.blocked:
                self._block(client, reason)
            elif reason is None and client.connection.blocked:
                client.connection.on_blocked(None)
                client.resume(BLOCKED)
        self.schedule()

    def _block(self, client: Client, reason: str) -> None:
        client.connection.on_blocked(reason)
        client.pause(BLOCKED)

    def on_fatal(self, text: str) -> None:
        logger.critical("%s", text)
        self.fatal = text
        self.request_stop()

    def request_stop(self) -> None:
        if not self.stopped.done():
            self.stopped.set_result(None)

    # -- What the broker asks of its shell -----------------------------------------------------------------------

    def propose(self, command: Command, lasting: bool, then: Callable[[Applied], None]) -> None:
        if self.storage.has_room_for_commands():
            self._apply(command, lasting, then)
        else:
            self.proposals.append((command, lasting, then))

    def _apply(self, command: Command, lasting: bool, then: Callable[[Applied], None]) -> None:
        applied = self.metadata.apply(command)
        if applied.refused is not None or not applied.events:
            then(applied)
            return
        self.broker.on_applied(applied)
        self.storage.record(command, (lambda: then(applied)) if lasting else None)
        self.schedule()
        if not lasting:
            then(applied)

    def load(self, queue: Queue, gap: Gap) -> None:
        self.storage.load(queue, gap, lambda: self.broker.on_loaded(queue))

    def spill(self, queue: Queue, runs: list[Run]) -> None:
        self.storage.log.spill(queue.spec.id, runs)

    def forget(self, queue: Queue) -> None:
        self.storage.forget(queue)

    def unique_name(self, prefix: str) -> str:
        return prefix + base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")

    def note(self, category: str, level: str, text: str) -> None:
        logger.getChild(category).log(LOG_LEVELS[level], text)

    # -- The end -------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """A controlled stop: clients are told, what is gathered is written."""
        for timer in (self._ticker, self._watch, self._syncer):
            if timer is not None:
                timer.cancel()
        for connection in list(self.broker.connections):
            connection.close(320, "broker forced connection closure with reason 'shutdown'")
        self.turn()
        if self.fatal is None:
            await self.storage.drained(self.broker)
        for client in list(self.clients):
            client.transport.close()
        self.storage.stop()
        self.disk.close()


def restore(queue: Queue, log: Log) -> None:
    """Give a queue what the log holds of it."""
    state = log.queue(queue.spec.id)
    first, last = state.live.first or 0, state.live.last or 0
    queue.restore(state.number, state.epoch, state.next_seq, first, last, state.count, state.delivered_through)
