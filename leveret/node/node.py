"""One node: the broker, driven by an event loop.

All input that arrives in one pass of the loop is handled first (`AmqpSocket.data_received`), then `turn` runs once: it
delivers, begins a commit, sends confirms, and writes to each client that has output. See `Broker` for the turn,
`Storage` for the commit, `AmqpSocket` for how publishers are slowed down.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import platform
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from leveret.base.range_set import Measured, Wanted
from leveret.broker.broker import PUMPED_AT_ONCE, Broker
from leveret.broker.event_journal.node_journal import Options
from leveret.broker.kinds.stream import StreamQueue
from leveret.broker.mirrors.member_changes import MemberChanges, Place
from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.retained.retained_messages import Limits as RetainedLimits
from leveret.links import frame_types
from leveret.links.proposals import BadFrame
from leveret.metadata.defaults import first_boot
from leveret.metadata.model.commands import Command, SetGlobalParameter
from leveret.metadata.model.events import GlobalParameterChanged
from leveret.metadata.model.maintenance_mark import out_of_service
from leveret.metadata.model.records import Permission
from leveret.metadata.model.witnesses import WITNESS, witness_names
from leveret.metadata.rules.global_parameters import CLUSTER_ID, CLUSTER_NAME, cluster_id_text, parse_cluster_id
from leveret.metadata.rules.partition_handling import PARAMETER as PARTITION_HANDLING
from leveret.metadata.rules.passwords import SALT_BYTES
from leveret.metadata.rules.placement import labels_of
from leveret.metadata.shovel.events import AssignmentChanged
from leveret.metadata.store import Applied, Metadata
from leveret.node.cluster import consensus
from leveret.node.cluster.maintenance import Maintenance
from leveret.node.cluster.membership import Cluster
from leveret.node.cluster.paced_commands import ClientCommands
from leveret.node.cluster.partition_pause import SILENCE, PartitionPause
from leveret.node.cluster.transient_exchanges import TransientExchanges
from leveret.node.config.settings import LOG_LEVELS
from leveret.node.federation.supervisor import Federation
from leveret.node.shovels.supervisor import Shovels
from leveret.node.sockets.amqp_socket import AWAY, BEHIND, PACE_S, PACED, AmqpSocket
from leveret.node.sockets.lingering import Lingerers
from leveret.node.sockets.unauthenticated import Unauthenticated
from leveret.node.stats.range_reads import RangeReads
from leveret.node.stats.stats_history import StatsHistory
from leveret.node.storage import SERVED_FIRST_MAX, Storage
from leveret.node.system import logs
from leveret.node.system.alarms import Alarms, sockets_limit
from leveret.node.system.data_folder import MESSAGES
from leveret.node.system.ticker import LONG_MS
from leveret.node.system.time_slices import in_portions
from leveret.protocol.stomp.frames import AUTHENTICATED, UNAUTHENTICATED
from leveret.sessions.amqp.limits import Limits
from leveret.sessions.mqtt.limits import NEVER_S, MqttLimits
from leveret.sessions.stomp.limits import StompLimits
from leveret.storage.log import Log, LogOptions
from leveret.storage.size_estimate import measure

if TYPE_CHECKING:
    from leveret.broker.client_connection import Sent
    from leveret.broker.delivery.batch import GapRead
    from leveret.broker.mirrors.copy_store import Loading
    from leveret.broker.queue.queue import Queue
    from leveret.broker.remote.direct_reply_to import BusyLink
    from leveret.broker.remote.remote_queue import RemoteQueue
    from leveret.metadata.model.events import Event
    from leveret.metadata.model.records import QueueSpec
    from leveret.node.cluster.consensus_log import ConsensusLog, Recovered
    from leveret.node.config.settings import Settings
    from leveret.node.sockets.peer_links import PeerLinks
    from leveret.node.system.environment import Environment
    from leveret.raft import Member
    from leveret.storage.format.queue_block import Run

logger = logging.getLogger("leveret")

TICK_S: Final = 1.0
SPARES_KEPT_S: Final = 60.0  # Time without a write after which the log's spare files are deleted.
# While the nodes elect a leader, which takes seconds at worst, masters go on: otherwise all of them would be deposed.
LEADERLESS_TICKS_MAX: Final = 250
CONTENT_GROWTH_MAX: Final = 64 << 20  # Growth of contents in memory after which memory is measured.
CLOSED_AT_ONCE: Final = 128  # Connections that are closed in one turn where the node stops.
UNBLOCKED_MAX: Final = 16  # Publishers that are unblocked in one turn after an alarm.
AHEAD_BYTES: Final = 256 << 10  # Zeros that the log writes ahead at once.
LOOK_BYTES_MIN: Final = 1 << 20  # Bytes written between two looks at the free disk space, at least.


class Node(consensus.ConsensusNode):
    """A running broker: made from the data on disk, then `start`, then `prepare`, and then clients may connect."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        peers: PeerLinks,
        me: Member,
        consensus_log: ConsensusLog,
        recovered: Recovered,
    ) -> None:
        self.settings = settings
        self.environment = environment
        self.loop = environment.loop
        self.peers = peers
        self.limits = _limits(settings)
        self.mqtt_limits = _mqtt_limits(settings)
        self.stomp_limits = _stomp_limits(settings)
        self.clients: dict[AmqpSocket, None] = {}
        self.unauthenticated: Unauthenticated[AmqpSocket] = Unauthenticated()  # Those of them that have not logged in.
        self.by_output: dict[Sent, AmqpSocket] = {}
        self.lingerers = Lingerers(self.loop)
        self.notes = logs.Unhurried(self.loop.call_soon)
        self.paced: dict[AmqpSocket, LocalQueue] = {}
        self.away: dict[AmqpSocket, RemoteQueue | BusyLink] = {}
        self.behind: dict[AmqpSocket, None] = {}
        self.unblocking: deque[AmqpSocket] = deque()  # Those that were blocked by an alarm that is over.
        self.told_alarms: dict[str, frozenset[str]] = {}
        self.told_room: dict[str, int] = {}
        self.scheduled = False
        self.look_at_bytes = self.looked_at_content_bytes = 0
        self.leaderless_ticks = 0
        self.fatal: str | None = None
        self.stopped: asyncio.Future[None] = self.loop.create_future()
        self._ticker: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._syncer: asyncio.TimerHandle | None = None
        self._pacer: asyncio.TimerHandle | None = None
        self.started_bytes = environment.memory_used()  # The interpreter and all modules: there is nothing else yet.
        total = environment.memory_total()
        self.alarms = Alarms(
            settings.memory_limit_bytes(total),
            settings.disk_limit_bytes(total),
            environment.memory_used,
            environment.disk.free_bytes,
        )
        ahead_bytes = min(AHEAD_BYTES, settings.segment_bytes // 64)
        options = LogOptions(segment_bytes=settings.segment_bytes, sync=settings.fsync, ahead_bytes=ahead_bytes)
        log = Log(environment.disk, MESSAGES, options)
        # Which queues exist is known for certain only in `prepare`; until then no messages may be deleted.
        log.recover(None, logger.info)
        self.storage = Storage(
            environment, log, self.turn, self._on_safe, peers.flush, self._on_disk_full, self.on_fatal
        )
        self.metadata = Metadata()
        self.cluster = Cluster(settings, environment, peers, me, consensus_log, recovered, self.metadata, self)
        self.ticker = self.cluster.consensus.ticker
        self.broker = Broker(
            self.metadata,
            self,
            settings.node_name,
            settings.cluster_name,
            platform.python_version(),
            settings.content_cache_bytes,
            int(self.alarms.memory_limit_bytes * settings.memory_paging_ratio),
        )
        self.broker.partition_handling = settings.partition_handling
        self.broker.outboxes.answer_ms = settings.silence_ms
        self.broker.spools.content_bytes_max = settings.spool_max_bytes
        self.broker.spools.room_of = self._room_of
        self.broker.detachment.is_pair = lambda: self.cluster.two_nodes.is_pair
        self.broker.journaling = Options(settings.journal_default, settings.journal_max_bytes)
        self.broker.retained.limits = RetainedLimits(
            settings.mqtt_max_retained_messages,
            settings.mqtt_max_retained_bytes,
            settings.mqtt_max_retained_message_size,
        )
        self.broker.client_ids.sessions_max = settings.mqtt_max_sessions
        self.broker.refresh_rules()
        self.broker.arrivals.is_open = False
        self.broker.run = self.cluster.run
        self.pausing = PartitionPause(self)
        self.maintenance = Maintenance(self)
        self.transient = TransientExchanges(self)
        self.reads = RangeReads(self)
        self.samples = StatsHistory(self)
        self.shovels = Shovels(self)
        self.federation = Federation(self)
        self.member_changes = self.broker.member_changes = MemberChanges(self.broker, self._places, settings.mirroring)
        self.client_commands = ClientCommands(self.loop, self.propose, lambda: self.broker.mirrors.is_serving)
        self.broker.mirrors.broadcast.spent = lambda: self.member_changes.book.spent

    def change_settings(self, settings: Settings) -> None:
        """Changes settings. Clients that connect from now on have the new limits."""
        self.settings = settings
        self.limits = _limits(settings)
        self.mqtt_limits = _mqtt_limits(settings)
        self.stomp_limits = _stomp_limits(settings)

    async def prepare(self) -> None:
        """Catches up with the cluster, or founds it. Afterwards the node may serve clients."""
        await self.cluster.catch_up(alone=len(self.cluster.raft.membership.members) == 1)
        # Waits until a node that joins is a voter. If it served clients before, its cluster could lose its majority
        # with the loss of one node, though three were started.
        await self.cluster.until(lambda: self.cluster.is_voter)
        await self.transient.settle()
        await self.maintenance.reset()
        await self._ensure_cluster_id()
        if not self.metadata.vhosts:
            for command in self._first_commands():
                await self.cluster.change(command)
        kept = {spec.id for spec in self.metadata.queues.values() if self._has_copy(spec)}
        kept |= self.broker.spools.open(self.storage.log.queues)
        kept |= self.broker.detachment.open(self.storage.log.queues)
        for number in [number for number in self.storage.log.queues if number not in kept]:
            self.storage.log.forget(number)
        self.broker.arrivals.is_open = True
        self.set_clock()
        self.broker.open()
        life = self.metadata.starts[self.settings.node_name]
        self.broker.mirrors.open(self.storage.mirrors, self.cluster.me.id, life)
        self.member_changes.look_at_all()
        self.peers.set_cluster(self.cluster.cluster_id)
        self.cluster.two_nodes.has_served = True
        self.pausing.begin()
        self.schedule()

    async def _ensure_cluster_id(self) -> None:
        """Gives the cluster an id if it has none, or an invalid one: earlier versions let users write there."""
        kept = self.metadata.global_parameters.get(CLUSTER_ID)
        if parse_cluster_id(kept) is not None:
            return
        if kept is not None:
            logger.warning(
                "the cluster's %s is %.80r, which is not an id: the cluster gets a new one. Nothing else depends "
                "on it.",
                CLUSTER_ID,
                kept,
            )
        # Refused if another node was faster. Then that node's id is used.
        await self.cluster.change(SetGlobalParameter(CLUSTER_ID, cluster_id_text(self.environment.random_bytes(16))))

    def _has_copy(self, spec: QueueSpec) -> bool:
        """Returns whether the log may hold messages of a queue that are still needed."""
        if spec.view is None:
            return spec.node == self.settings.node_name
        return spec.durable and self.settings.node_name in spec.view.ring

    def _first_commands(self) -> list[Command]:
        settings = self.settings
        if settings.load_definitions is not None:  # The definitions have users, and guest should not be one of them.
            return [SetGlobalParameter(CLUSTER_NAME, settings.cluster_name)]
        return [
            SetGlobalParameter(CLUSTER_NAME, settings.cluster_name),
            *first_boot(
                self.environment.random_bytes(SALT_BYTES),
                settings.default_user,
                settings.default_pass,
                settings.default_vhost,
                Permission(settings.default_configure, settings.default_write, settings.default_read),
                settings.default_user_tags,
            ),
        ]

    # -- The turn ------------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Has a turn run when all input that has arrived is handled."""
        if not self.scheduled:
            self.scheduled = True
            self.loop.call_soon(self.turn, True)
            if self.ticker.is_long:
                self.ticker.wake()

    def set_clock(self) -> None:
        """Tells the broker the time. Called whenever something happens."""
        self.broker.set_clock(int(self.loop.time() * 1000), self.environment.wall_ms())

    def turn(self, is_scheduled: bool = False) -> None:
        """Runs a turn: see the top of this module. An exception in here leaves something half done, so the node
        stops. `is_scheduled`: it is the one that was scheduled; others do not replace that one. If each had one
        scheduled beside it, a pass of the loop would have ever more turns while there is work for further ones."""
        if is_scheduled:
            self.scheduled = False
        if self.fatal is not None:
            return
        self.set_clock()
        try:
            self._turn()
        except Exception as error:
            self._on_fault(error)

    def _on_fault(self, error: Exception) -> None:
        logger.exception("internal error in a turn of the event loop; the node stops")
        self.on_fatal(f"internal error in a turn of the event loop: {error!r}")

    def _on_safe(self) -> None:
        """Sends the confirms of a commit that is done, if they go to a few clients, before the turn that follows."""
        broker = self.broker
        if self.fatal is not None or len(broker.confirming) > SERVED_FIRST_MAX:
            return
        try:
            broker.tell_confirms()
            self._serve_few()
        except Exception as error:
            self._on_fault(error)

    def _serve_few(self) -> None:
        """Writes the output of clients, if only a few have some."""
        if 0 < len(self.broker.writers) <= SERVED_FIRST_MAX:
            self._write_out()

    def _write_out(self) -> None:
        """Writes the output of all clients that have some."""
        by_output = self.by_output
        for output in self.broker.take_writers():
            client = by_output.get(output)
            if client is not None:
                client.flush()

    def _turn(self) -> None:
        broker = self.broker
        mirrors = broker.mirrors
        if mirrors.has_work:  # First, for messages that the ring has confirmed may be delivered.
            mirrors.flush()
            if mirrors.confirmed:
                self.storage.on_confirmed(broker, mirrors.take_confirmed())
        moves = self.member_changes
        if moves.looking and moves.has_work and not self.pausing.paused:
            moves.go_on()
        if self.unblocking and broker.alarm is None and not self.storage.is_crowded(broker):
            self._unblock()
        storage = self.storage
        if storage.gathering.is_answered and storage.should_wait(broker):
            self._tell_publishers()
            storage.wait(broker)
            return
        delivers = storage.should_deliver(broker)
        if delivers:
            broker.pump()
        if broker.linked:
            broker.flush_links()
        self.peers.flush()
        if storage.should_wait(broker):
            self._serve_few()
            storage.wait(broker)
        elif storage.commit(broker, self._serve_few):
            self.schedule()  # There is a turn after each commit.
        grown_bytes = broker.content_bytes - self.looked_at_content_bytes
        if self.storage.log.appended_bytes > self.look_at_bytes or grown_bytes > CONTENT_GROWTH_MAX:
            self.look()
        if broker.confirming:
            broker.tell_confirms()
        if broker.waiting_links:
            self._grant()
        if broker.writers:
            self._write_out()
        if self.paced or self.away:
            self._let_go_on()
        if self.reads.waiting:
            self.reads.look()
        # Blocks taken for the commit give mirrors work; and work on very many queues is spread over several turns.
        is_moving = moves.looking and moves.has_work and not self.pausing.paused
        has_more = mirrors.has_work or is_moving
        if delivers and not has_more:  # A turn that does not deliver does none of the rest: it waits for the commit.
            has_more = bool(broker.dirty) or broker.is_behind or self._may_spread()
        if has_more:
            self.schedule()
        if self.behind and not self.storage.is_crowded(self.broker):
            behind, self.behind = self.behind, {}
            for client in behind:
                client.resume(BEHIND)

    def _may_spread(self) -> bool:
        """Returns whether there is room for publishes that were left for later turns."""
        broker = self.broker
        return broker.is_spreading and (broker.alarm is not None or not self.storage.is_crowded(broker))

    def _tell_publishers(self) -> None:
        """Sends confirms, to clients and to other nodes. Publishers that answer them send nothing before."""
        broker = self.broker
        if broker.confirming:
            broker.tell_confirms()
        if broker.linked:
            broker.flush_links()
        self.peers.flush()
        self._serve_few()

    def _let_go_on(self) -> None:
        """Resumes publishers whose queue is down to half of the limit, or whose queue's node takes more."""
        for client, queue in list(self.paced.items()):
            if not queue.is_crowded():
                del self.paced[client]
                client.resume(PACED)
        for client, remote in list(self.away.items()):
            if not remote.is_crowded():
                del self.away[client]
                client.resume(AWAY)

    def _grant(self) -> None:
        """Lets other nodes' waiting publishers go on; at the latest after as long as clients here would wait."""
        self.broker.grant()
        if self.broker.waiting_links and self._pacer is None:
            self._pacer = self.loop.call_later(PACE_S, self._on_paced)
        self.peers.flush()

    def _on_paced(self) -> None:
        self._pacer = None
        for owner_end in self.broker.waiting_links:
            owner_end.on_paced()
        self.schedule()

    # -- Clients -------------------------------------------------------------------------------------------------

    def on_accepted(self, client: AmqpSocket) -> bool:
        """Returns whether a new connection is accepted."""
        settings = self.settings
        if self.pausing.paused or self.maintenance.state is not None:
            return False  # It came while the listeners were being closed.
        if len(self.unauthenticated) >= settings.unauthenticated_connections_max:
            self._evict_stranger()
        connection_max = settings.connection_max
        if connection_max is not None and len(self.clients) >= connection_max and not self._evict_stranger():
            logger.warning(
                "connection %s refused: connection_max (%d) is reached", client.connection.peer, connection_max
            )
            return False
        descriptors_max = self.environment.descriptors_max()
        if len(self.clients) >= sockets_limit(descriptors_max):
            self._evict_stranger()
        if not self.alarms.has_room(len(self.clients), descriptors_max):
            return False
        self.lingerers.keep(sockets_limit(descriptors_max) - len(self.clients) - 1)
        self.clients[client] = None
        self.by_output[client.connection.output] = client
        self.unauthenticated.add(client, client.connection.peer.host)
        return True

    def _evict_stranger(self) -> bool:
        """Make room, if there is somebody who has not logged in; see `unauthenticated`."""
        client = self.unauthenticated.evict()
        if client is None:
            return False
        self.clients.pop(client, None)  # Now, not when its socket is closed: the next one may come before.
        client.evict()
        count = self.unauthenticated.to_tell(self.loop.time())
        if count:
            logger.warning(
                "%d connections that had not logged in were closed to make room for others, the last one from %s",
                count,
                client.connection.peer.host,
            )
        return True

    def on_lost(self, client: AmqpSocket) -> None:
        self.clients.pop(client, None)
        self.by_output.pop(client.connection.output, None)
        self.unauthenticated.discard(client)
        if self.alarms.crowded:
            self.alarms.has_room(len(self.clients), self.environment.descriptors_max())
        self.paced.pop(client, None)
        self.away.pop(client, None)
        self.behind.pop(client, None)
        self.maintenance.on_client_lost()

    def on_published(self, client: AmqpSocket) -> None:
        """Called after each read of input of a connection that publishes."""
        if self.broker.alarm is None and self.storage.is_crowded(self.broker):
            client.pause(BEHIND)
            self.behind[client] = None

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
        """Begins to tick."""
        self.cluster.start()
        self._check_alarms()
        self._tick()
        if self.settings.fsync == "interval":
            self._sync()
        self.turn()

    def _sync(self) -> None:
        """Syncs what was written since the last time, for `fsync = interval`."""
        self.storage.log.sync_due()
        self.schedule()
        self._syncer = self.loop.call_later(self.settings.fsync_interval_ms / 1000, self._sync)

    def _tick(self) -> None:
        self.set_clock()
        now_ms = self.broker.now_ms
        self.broker.dead_letters.try_again()
        for client in list(self.clients):
            client.on_tick(now_ms)
        self.broker.end_slow_channels(self.settings.consumer_timeout_ms)
        self.broker.note_deliveries()
        if self.broker.journal is not None:
            self.broker.journal.tick()
        self.broker.tick_links()
        self.broker.mirrors.ha_rules.on_minute()
        self.member_changes.watch()
        self.maintenance.tick()
        if self.broker.content_bytes > self.broker.content_bytes_max:
            self.broker.page_out_unacked()
        self.storage.maintain(idle=not self.storage.committing)
        if self.loop.time() - self.storage.busy_at > SPARES_KEPT_S:
            self.storage.release_spares()
        if not self.scheduled:  # Not by `schedule`: this alone is no reason for short ticks.
            self.scheduled = True
            self.loop.call_soon(self.turn, True)
        self._ticker = self.loop.call_later(TICK_S, self._tick)

    def _check_alarms(self) -> None:
        if self.alarms.memory or self.environment.has_unused_memory():
            self.storage.release_memory(self.look)
        self.look()
        self._watch = self.loop.call_later(self.settings.memory_monitor_interval_ms / 1000, self._check_alarms)

    def look(self) -> None:
        """Compare memory and disk with their limits, and say how much may be written before the next look.

        A fast publisher can fill memory or disk between two looks that only the clock decides on. On a full disk, the
        acks that would make space again wait behind publishes that do not fit, and the node is stuck until somebody
        makes space.
        """
        self.alarms.check()
        self.looked_at_content_bytes = self.broker.content_bytes
        above_bytes = self.alarms.disk_free_bytes - self.alarms.disk_limit_bytes
        self.look_at_bytes = self.storage.log.appended_bytes + max(LOOK_BYTES_MIN, above_bytes // 4)
        if self.alarms.disk or self.alarms.disk_full:
            self.storage.release_spares()
        self._on_alarms()

    def memory_unused(self) -> int:
        """Returns how much memory was freed, and not returned to the system yet."""
        return self.environment.memory_unused()

    def _on_disk_full(self, full: bool) -> None:
        self.alarms.disk_full = full
        self._on_alarms()

    def _tell_alarms(self) -> None:
        """Tells the other nodes this node's alarms, and how much may be written before its disk alarm."""
        own, room = self.alarms.own(), self.alarms.room_bytes()
        for peer in self.cluster.connected:
            if self.told_room.get(peer) != room:
                self.told_room[peer] = room
                self.peers.send(peer, frame_types.DISK_ROOM, room.to_bytes(8, "big"))
            if self.told_alarms.get(peer, frozenset()) != own:
                self.told_alarms[peer] = own
                self.peers.send(peer, frame_types.ALARM, " ".join(sorted(own)).encode())

    def _on_alarms(self) -> None:
        """Called when an alarm may have changed, here or at another node. Connections see it when they next publish."""
        self._tell_alarms()
        for line in self.alarms.news(self.settings.node_name):
            logger.warning("%s", logs.lines(line))
        before = self.broker.set_alarm(self.alarms.reason())
        if before is None and self.broker.alarm is not None:
            # Publishers that wait for the disk or for another node might wait for as long as the alarm lasts. They are
            # read instead, so that their acks are heard, and that they are told of the alarm when they publish.
            for client in (*self.behind, *self.away):
                client.resume(BEHIND | AWAY)
            self.behind.clear()
            self.away.clear()
        elif before is not None and self.broker.alarm is None:
            self.unblocking = deque(client for client in self.clients if client.connection.blocked)
            self.schedule()

    def _unblock(self) -> None:
        """Unblocks publishers that an alarm has stopped: a few in each turn, since each has input that waits. The rest
        stays blocked if the next alarm comes before."""
        for _ in range(min(len(self.unblocking), UNBLOCKED_MAX)):
            self.unblocking.popleft().connection.unblock()
        if self.unblocking:
            self.schedule()

    def on_fatal(self, text: str) -> None:
        self.notes.write_all()
        logger.critical("%s", text)
        self.fatal = text
        self.request_stop()

    def request_stop(self) -> None:
        if not self.stopped.done():
            self.stopped.set_result(None)

    # -- Calls by the broker -------------------------------------------------------------------------------------

    def propose(self, command: Command, then: Callable[[Applied], None], patient: bool = False) -> None:
        def on_agreed(applied: Applied) -> None:
            then(applied)
            self.schedule()

        self.cluster.propose(command, on_agreed, patient)

    def propose_for(self, client: str, command: Command, then: Callable[[Applied], None]) -> None:
        self.client_commands.propose(client, command, then)

    def adopt(self, queue: LocalQueue) -> None:
        """Gives a queue from before the start its messages in the log."""
        state = self.storage.log.queues.get(queue.spec.id)
        if self.storage.log.mirrors.is_mirrored(queue.spec.id):
            # The log says that it is mirrored, the metadata so far that it is not. `MirrorManager.open` decides, when
            # the node has caught up, and replaces the queue. Requests for it wait until then.
            queue.hold()
        elif state is not None:
            first, last = state.live.first or 0, state.live.last or 0
            # Another epoch: the last run may have lost blocks that others have, if the queue was mirrored once.
            epoch, through = state.epoch + 1, state.delivered_through
            queue.restore(state.number, epoch, state.next_seq, first, last, state.count, through)
            if isinstance(queue, StreamQueue):
                queue.weigh(state)
            queue.restore_state(state.marks.values())

    def load(self, queue: Queue, read: GapRead) -> None:
        self.storage.load(queue, read, lambda: self.broker.on_loaded(queue))

    def read_range(
        self, queue: int, first: int, last: int, bytes_max: int, then: Callable[[list[Run] | None, int], None]
    ) -> None:
        self.storage.read_range(queue, first, last, bytes_max, then)

    def read_kind(self, queue: LocalQueue, number: int, then: Callable[[int], None]) -> None:
        self.storage.read_kind(queue, number, then)

    def spill(self, queue: LocalQueue, runs: list[Run]) -> None:
        self.storage.log.spill(queue.spec.id, runs)

    def forget(self, queue: LocalQueue) -> None:
        self.storage.forget(queue)

    def counts_of(self, number: int) -> dict[int, int]:
        state = self.storage.log.queues.get(number)
        return {} if state is None else state.counts

    def settled_of(self, number: int) -> list[tuple[int, int]]:
        state = self.storage.log.queues.get(number)
        return [] if state is None else list(state.gone)

    def measure(self, number: int, wanted: Wanted) -> Measured:
        state = self.storage.log.queues.get(number)
        return Measured([], 0) if state is None else measure(state, wanted)

    def forget_log(self, number: int) -> None:
        self.storage.forget_log(number)

    def read(self, job: Loading, then: Callable[[bool], None]) -> None:
        self.storage.read(job, then)

    def is_crowded(self) -> bool:
        return self.storage.is_crowded(self.broker) or self.alarms.reason() is not None

    def send(self, peer: str, kind: int, parts: list[bytes]) -> None:
        self.peers.send(peer, kind, parts)

    def is_writable(self, peer: str) -> bool:
        return self.peers.is_writable(peer)

    def cut(self, peer: str, reason: str) -> None:
        self.peers.cut(peer, reason)

    def unique_name(self, prefix: str) -> str:
        return prefix + base64.urlsafe_b64encode(self.environment.random_bytes(16)).decode().rstrip("=")

    def seed(self) -> int:
        return int.from_bytes(self.environment.random_bytes(8), "big")

    def note(self, category: str, level: str, text: str) -> None:
        self.notes.add(logger.getChild(category), LOG_LEVELS[level], text)

    # -- Other nodes ---------------------------------------------------------------------------------------------

    def on_peer_up(self, peer: str, uuid: bytes) -> None:
        self.pausing.on_up(peer, has_broker=peer not in witness_names(self.metadata))
        self.cluster.on_up(peer, uuid)
        self.member_changes.look_at_all()
        self._tell_alarms()
        self.schedule()

    def on_peer_down(self, peer: str, reason: str) -> None:
        self.cluster.two_nodes.on_losing(peer, is_silent=reason.startswith(SILENCE))
        if not self.cluster.consensus.has_majority_without(peer):
            self.broker.mirrors.on_majority(False)  # Before a mirror decides that its master is down.
        self.pausing.on_down(peer, reason)
        self.cluster.on_down(peer)
        self.member_changes.look_at_all()
        self.told_alarms.pop(peer, None)
        self.told_room.pop(peer, None)
        self.alarms.rooms.pop(peer, None)
        self._on_alarm_of(peer, frozenset())
        self.schedule()

    def _on_alarm_of(self, peer: str, short: frozenset[str]) -> None:
        if short:
            self.alarms.others[peer] = short
        else:
            self.alarms.others.pop(peer, None)
        self._on_alarms()

    def _on_room_of(self, peer: str, payload: bytes) -> None:
        if len(payload) != 8:
            raise BadFrame(f"room in {len(payload)} bytes instead of 8")
        self.alarms.rooms[peer] = int.from_bytes(payload, "big")
        self.broker.spools.wake()

    def _room_of(self, name: str) -> int | None:
        return self.alarms.room_bytes() if name == self.settings.node_name else self.alarms.rooms.get(name)

    def on_peer_drained(self, peer: str) -> None:
        self.broker.on_peer_drained(peer)
        self.schedule()

    def on_peer_frame(self, peer: str, kind: int, payload: bytes) -> None:
        self.set_clock()
        if kind == frame_types.ALARM:
            self._on_alarm_of(peer, frozenset(payload.decode("ascii", "replace").split()))
        elif kind == frame_types.DISK_ROOM:
            self._on_room_of(peer, payload)
        elif self.pausing.admits(peer, kind, payload):
            self.broker.on_peer_frame(peer, kind, payload)
        self.schedule()

    # -- Calls by the cluster ------------------------------------------------------------------------------------

    def on_applied(self, applied: Applied) -> None:
        self._on_events(applied.events)

    def on_replaced(self, events: tuple[Event, ...]) -> None:
        self._on_events(events)

    def _on_events(self, events: tuple[Event, ...]) -> None:
        self.broker.on_applied(events)
        if GlobalParameterChanged(PARTITION_HANDLING) in events:
            self.pausing.on_setting()
        if GlobalParameterChanged(CLUSTER_ID) in events and any(self.cluster.cluster_id):
            self.peers.set_cluster(self.cluster.cluster_id)
        if any(isinstance(one, GlobalParameterChanged) and one.name.startswith(WITNESS) for one in events):
            for name in witness_names(self.metadata):
                self.pausing.part_with(name)
        if any(isinstance(one, AssignmentChanged) for one in events):
            self.shovels.tick()
        self.federation.on_events(events)
        self.maintenance.look()
        self.schedule()

    def witnesses(self, name: str) -> list[str]:
        return [peer for peer, others in self.contacts().items() if name in others]

    def contacts(self) -> dict[str, frozenset[str]]:
        return self.broker.mirrors.ha_rules.linked

    def is_paused(self, name: str) -> bool:
        return self.pausing.is_paused(name)

    def has_clients(self) -> bool:
        return self.broker.connection_limits.has_clients

    def on_cluster_tick(self) -> None:
        mirrors = self.broker.mirrors
        self.set_clock()
        if self.broker.on_time() or self.broker.outboxes.tick():
            self.schedule()
        mirrors.ha_rules.wall_ms = self.broker.wall_ms
        self.leaderless_ticks = 0 if self.cluster.leader is not None else self.leaderless_ticks + 1
        self.pausing.tick()
        has_say = self.cluster.has_majority and not self.pausing.paused
        mirrors.on_majority(has_say and self.leaderless_ticks <= LEADERLESS_TICKS_MAX)
        mirrors.tick()
        if not self.pausing.paused:
            self.member_changes.tick()
            self.maintenance.go_on()
            if self.cluster.raft.is_leader and self.broker.arrivals.is_open:
                self.broker.lead()
                self.shovels.lead()
                self.federation.lead()
            else:
                self.federation.rest()
        self.shovels.tick()
        self.federation.tick()
        if mirrors.has_work or self.member_changes.has_work:
            self.schedule()

    def is_calm(self) -> bool:
        broker, mirrors, moves = self.broker, self.broker.mirrors, self.member_changes
        if mirrors.has_work or mirrors.ticking or mirrors.busy or mirrors.serving or mirrors.storing_spilled:
            return False
        if moves.due or moves.looking or moves.unfinished or mirrors.broadcast.events or mirrors.held_back:
            return False
        if broker.dirty or broker.unread or broker.outboxes.busy or broker.spools.active or broker.suspended:
            return False
        if self.pausing.paused or self.shovels.workers or self.metadata.assignments or self.storage.committing:
            return False
        return not broker.timers.is_due(broker.wall_ms + LONG_MS) and not broker.idle.is_due(broker.now_ms + LONG_MS)

    def _places(self) -> list[Place]:
        runs = self.metadata.runs
        is_paused, away = self.pausing.is_paused, out_of_service(self.metadata)
        return [
            Place(
                one.name,
                one.uuid,
                runs.get(one.name, ""),
                one.running and not is_paused(one.name),
                labels_of(self.metadata, one.name),
                one.name in away,
            )
            for one in self.cluster.members()
        ]

    async def move(self, queue: LocalQueue, to: str) -> None:
        """Moves a queue to another node. Raises `AdminError`; then the queue is where it was."""
        await self.maintenance.move(queue, to)

    # -- Stopping ------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stops in a controlled way: clients are told, and gathered changes are written."""
        self.pausing.end()
        self.shovels.stop()
        self.federation.stop()
        if self.fatal is None:
            await self.shovels.rest()
        self.samples.stop()
        self.client_commands.stop()
        for timer in (self._ticker, self._watch, self._syncer, self._pacer):
            if timer is not None:
                timer.cancel()
        async for connection in in_portions(list(self.broker.connections), CLOSED_AT_ONCE):
            connection.close(320, "broker forced connection closure with reason 'shutdown'")
        await self._pump_all()
        if self.fatal is None:
            await self.cluster.hand_over()
            await self.cluster.two_nodes.rest()
            self.broker.mirrors.leave()
            self.broker.mirrors.ha_rules.say_farewell()
            self.peers.flush()
            for peer in list(self.broker.owner_ends):  # Messages unacknowledged by their clients are requeued.
                self.broker.on_peer_down(peer)
            # What was rejected and has no dead letter yet is unacknowledged by nobody, but was delivered.
            self.broker.note_deliveries()
            if self.broker.journal is not None:
                self.broker.journal.stop()
            self.broker.mirrors.finish()
            self.storage.hurry()
            await self._pump_all()
            await self.storage.drained(self.broker)
        async for client in in_portions(list(self.clients), CLOSED_AT_ONCE):
            client.transport.close()
        self.lingerers.close()
        self.cluster.stop()
        self.storage.stop()
        self.notes.write_all()

    async def _pump_all(self) -> None:
        """Runs as many turns as it takes to deliver from all queues that were touched."""
        self.turn()
        for _ in range(-(-len(self.broker.dirty) // PUMPED_AT_ONCE)):
            await asyncio.sleep(0)
            self.turn()


def _limits(settings: Settings) -> Limits:
    return Limits(
        frame_max=settings.frame_max,
        initial_frame_max=settings.initial_frame_max,
        channel_max=settings.channel_max,
        heartbeat_s=settings.heartbeat_s,
        message_bytes_max=settings.max_message_size,
        mechanisms=settings.auth_mechanisms,
        loopback_users=settings.loopback_users,
    )


def _mqtt_limits(settings: Settings) -> MqttLimits:
    ttl_ms = settings.mqtt_subscription_ttl_ms
    return MqttLimits(
        frame_max=settings.frame_max,
        vhost=settings.mqtt_vhost,
        exchange=settings.mqtt_exchange,
        prefetch=settings.mqtt_prefetch,
        allow_anonymous=settings.mqtt_allow_anonymous,
        anonymous_user=settings.mqtt_default_user,
        anonymous_password=settings.mqtt_default_pass,
        loopback_users=settings.loopback_users,
        cert_login=settings.mqtt_cert_login,
        session_expiry_max_s=NEVER_S if ttl_ms is None else ttl_ms // 1_000,
        server_keep_alive_s=settings.mqtt_server_keepalive_s,
        sys_interval_s=settings.mqtt_sys_interval_s,
        durable_queue_type=settings.mqtt_durable_queue_type,
        packet_max_unauthenticated=settings.mqtt_packet_max_unauthenticated,
        packet_max=settings.mqtt_packet_max,
        topic_alias_max=settings.mqtt_topic_alias_max,
        disconnects_unauthorized=settings.mqtt_disconnect_on_unauthorized,
    )


def _stomp_limits(settings: Settings) -> StompLimits:
    return StompLimits(
        frame_max=settings.frame_max,
        default_vhost=settings.stomp_default_vhost,
        default_user=None if settings.stomp_default_user == "none" else settings.stomp_default_user,
        default_password=settings.stomp_default_pass,
        default_topic_exchange=settings.stomp_default_topic_exchange,
        default_nack_requeue=settings.stomp_default_nack_requeue,
        implicit_connect=settings.stomp_implicit_connect,
        cert_login=settings.stomp_cert_login,
        hides_server=settings.stomp_hide_server_info,
        loopback_users=settings.loopback_users,
        before_login=replace(UNAUTHENTICATED, frame_bytes_max=settings.stomp_frame_max_unauthenticated),
        after_login=replace(AUTHENTICATED, frame_bytes_max=settings.stomp_frame_max),
    )
