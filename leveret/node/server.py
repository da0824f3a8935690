"""`leveret server`: the process of a node, and how its app starts and stops.

The process has a port for other nodes and for leveretctl, the cluster port, which stays open while the process lives.
The *app* behind it (the broker, its part in the consensus, the listeners for clients) can be stopped and started on its
own, as operators of RabbitMQ are used to: `stop_app`, then `reset` or `join_cluster`, then `start_app`.

How the app starts:

- A node with data goes on as the member it was. If its address has changed, it tells the others first.
- A node without data founds a cluster, or joins one; `leveret.node.cluster.discovery` decides which.
- Either way it serves clients only when it has caught up with the cluster's metadata.

Requests of an operator while the app was stopped are kept in small files (`JOIN_FILE`, `FORCE_FILE`, and `REPLACE_FILE`
of `leveret.node.cluster.repair`), so that they hold also if the process is started again.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NoReturn

import uvloop

from leveret import __version__
from leveret.base.exit_codes import CONFIG, DATA_ERROR, SOFTWARE, UNAVAILABLE
from leveret.links.frame_types import CONTROL, HELLO, JOIN, LEAVE, RENAME, REST
from leveret.links.link import FRAME_BYTES_MAX, VERSION_OF_MQTT, VERSION_OF_REQUEUED, Identity
from leveret.metadata.rules.ha_policy import unknown_nodes
from leveret.metadata.rules.passwords import verify_password
from leveret.node.admin.dispatch import Control
from leveret.node.admin.metadata import definitions
from leveret.node.cluster import discovery
from leveret.node.cluster.consensus import CONSENSUS_FRAMES, AdminError, join_address, split_address
from leveret.node.cluster.consensus_log import ConsensusLog, ConsensusLogDamaged, Recovered, load_identity
from leveret.node.cluster.transient_exchanges import KNOWN
from leveret.node.node import Node
from leveret.node.sockets.cookie import BadCookie, find_cookie, inherited, weakness
from leveret.node.sockets.listeners import Listeners, StartFailed
from leveret.node.sockets.peer_links import Address, PeerInfo, PeerLinks, Respond
from leveret.node.sockets.peer_socket import CallFailed, PeersOptions, peer_tls
from leveret.node.system import local_registry, logs, systemd
from leveret.node.system.allocator import keep_freed_memory
from leveret.node.system.data_folder import (
    JOIN_FILE,
    METADATA,
    OTHER_FOLDER,
    PATIENCE_S,
    REPLACE_FILE,
    WITNESS_FILE,
    FolderInUse,
    delete_note,
    folder_lock,
    make_folder,
    read_note,
    wipe,
    write_note,
)
from leveret.node.system.environment import RealEnvironment
from leveret.node.system.json_answers import read_object
from leveret.node.system.loop_watch import LoopWatch
from leveret.raft import Member, Raft, Update
from leveret.storage.format.errors import LogDamaged

if TYPE_CHECKING:
    from leveret.management.app import Management
    from leveret.metadata.store import Metadata
    from leveret.node.config.settings import Settings
    from leveret.node.system.environment import Environment

logger = logging.getLogger("leveret")

# Tells the cluster ports of other members on this machine that a node without data has to join, though its settings
# name nobody.
MembersBeside = Callable[[], tuple[tuple[str, int], ...]]

KNOWN_PASSWORD: Final = "guest"  # The default password of every new node.
RESTART: Final = -1  # Not an exit code: the process restarts itself.
FORCE_FILE: Final = "force_boot"
CALL_S: Final = 5.0
JOIN_CALL_S: Final = 30.0
RETRY_S: Final = 0.25
# How long a thread that has synced waits for the interpreter while a callback of the event loop runs. Python's 5 ms are
# longer than most syncs.
SWITCH_S: Final = 0.0005
RETRY_S_MAX: Final = 5.0


class Server:
    """A process that is, or can become, a node of a cluster."""

    def __init__(self, settings: Settings, environment: Environment, cookie: bytes) -> None:
        self.settings = settings
        self.loop = environment.loop
        self.configured = settings  # Without changes made since the start: see `runtime_settings`.
        self.environment = environment
        self.cookie = cookie
        self.node: Node | None = None
        self._leaving: Node | None = None  # The node that is being stopped.
        self.prepared = False  # The node has caught up, and clients may connect.
        self.spooled = 0  # Messages in the node's spools when it was stopped.
        self.stopped: asyncio.Future[None] = self.loop.create_future()
        self.fatal: str | None = None
        self.can_restart = self.restarting = False
        self.uuid = ""
        self.cluster_id = bytes(16)  # The id of the cluster that the data belongs to; zeros if that is not known.
        self.peers: PeerLinks | None = None
        self.cluster_port = settings.cluster_listener.port
        self._is_cluster_port_open = False
        self.listeners = Listeners(self)
        self.management: Management | None = None  # Made at the first connection to its port.
        self.announce: Callable[[], None] = lambda: None  # Tells leveretctl of this node, and of its present ports.
        self.control: Control = Control(self)
        self.watch = LoopWatch()  # Started by `serve`, not by simulations, whose time is not real.
        self.watch.is_calm = lambda: self.node is not None and self.node.ticker.is_long
        self.on_recovered: Callable[[], None] = lambda: None  # Called when all that is on disk has been read.
        self.members_beside: MembersBeside = tuple
        self.starting: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()

    @property
    def ports(self) -> dict[str, int]:
        """The ports that are open: cluster, and those of the listeners."""
        cluster = {"cluster": self.cluster_port} if self._is_cluster_port_open else {}
        return cluster | self.listeners.ports

    # -- Start and stop ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Opens the cluster port, then starts the app. Raises `StartFailed`, and what damaged files raise."""
        await self._open_cluster_port()
        self.announce()  # A node that waits for others can be asked what it waits for.
        await self.start_app()

    async def stop(self) -> None:
        node = self.node
        await self.stop_app()
        for task in list(self._calls):
            task.cancel()
        if self.peers is not None:
            await self.peers.close()
        self.watch.stop()
        self.environment.close()
        if node is not None:
            node.notes.write_all()

    def request_stop(self) -> None:
        if not self.stopped.done():
            self.stopped.set_result(None)

    def request_restart(self) -> bool:
        """Stops in a controlled way, then starts again as the same process. Returns False if this process cannot."""
        if self.can_restart:
            self.restarting = not self.stopped.done() or self.restarting
            self.request_stop()
        return self.can_restart

    async def _open_cluster_port(self) -> None:
        settings = self.settings
        self.uuid = load_identity(self.environment.disk, METADATA, self.environment.random_bytes(16).hex())
        frame_bytes_max = settings.max_message_size + FRAME_BYTES_MAX  # A message is never cut in pieces.
        silence_ms = settings.silence_ms
        options = PeersOptions(
            frame_bytes_max,
            silence_ms=silence_ms,
            # In the proportions of the defaults: if losses are to be noticed soon, so are returns.
            stable_ms=silence_ms // 8,
            calm_ms=silence_ms * 8,
            unsent_bytes_max=2 * frame_bytes_max,
            compresses=settings.cluster_compression == "zlib",
        )
        tls = None if settings.cluster_tls is None else peer_tls(settings.cluster_tls)
        me = Identity(settings.node_name, bytes.fromhex(self.uuid))
        random_source, random_bytes = self.environment.random_source, self.environment.random_bytes
        self.peers = PeerLinks(
            self.loop, me, self.cookie, self, options, tls, random_source, random_bytes, self.environment.precise_s
        )
        self.peers.on_nobody_listens = self._on_nobody_listens
        self.peers.needs_any_of = self._needs_any_of
        listener = settings.cluster_listener
        try:
            self.cluster_port = await self.peers.listen(listener.host, self.cluster_port)
        except OSError as error:
            raise StartFailed(
                f"cannot listen at {listener} for other nodes: {error.strerror or error}. "
                "Choose another port with --cluster-port"
            ) from None
        self._is_cluster_port_open = True

    async def start_app(self) -> None:
        """Starts the app, and waits until clients are served. Raises `StartFailed`."""
        if self.node is not None or self.starting is not None:
            return
        self.starting = self.loop.create_task(self._start_app())
        try:
            await self.starting
        except asyncio.CancelledError:  # Cancelled by `stop_app`.
            await self._end_node()
        except Exception:  # After any error half a node must not stay; the caller gets the error.
            await self._end_node()
            raise
        finally:
            self.starting = None

    async def _start_app(self) -> None:
        peers, environment, settings = self.peers, self.environment, self.settings
        assert peers is not None
        address = join_address(settings.cluster_host, self.cluster_port)
        me = Member(self.uuid, settings.node_name, address, settings.node_priority)
        log, recovered = await self._enter(me)
        node = self.node = Node(settings, environment, peers, me, log, recovered)
        node.ticker.on_woken = lambda: self.watch.wake(self.loop)
        node.ticker.on_long_tick = lambda: self.watch.on_long_tick(self.loop)
        self.on_recovered()
        node.stopped.add_done_callback(lambda _: self._on_node_stopped(node))
        known = node.cluster.raft.membership.get(self.uuid)
        node.start()
        steps = [self.loop.create_task(node.prepare())]
        if known is not None and known != me:
            steps.append(self.loop.create_task(self._announce_move(node, me)))
        try:
            await asyncio.wait(steps, return_when=asyncio.FIRST_EXCEPTION)
            for step in steps:
                if step.done():
                    step.result()
        except AdminError as error:
            raise StartFailed(str(error)) from None
        finally:
            for step in steps:
                step.cancel()
        if settings.load_definitions is not None:
            try:
                await definitions.load(node, settings.load_definitions)
            except definitions.LoadFailed as error:
                raise StartFailed(str(error)) from None
        self.prepared = True
        delete_note(environment.disk, REPLACE_FILE)
        delete_note(environment.disk, JOIN_FILE)
        await self.listeners.open(node)
        shown = ", ".join(f"{name}={port}" for name, port in self.ports.items())
        logger.info("Server startup complete; listening: %s", shown)
        absent = unknown_nodes(settings.mirroring, [one.name for one in node.cluster.members()])
        if absent:
            logger.warning(
                "the configuration has queues mirrored on %s, not a member of this cluster: there will be no mirror "
                "there until it is",
                ", ".join(absent),
            )
        self.control.rebalancer.start()

    async def stop_app(self) -> None:
        starting, self.starting = self.starting, None
        if starting is not None:
            starting.cancel()
        await self._end_node()

    async def _end_node(self) -> None:
        await self.control.rebalancer.stop()
        if self.node is not None and self.prepared:
            self.listeners.close()
            await self.node.maintenance.step_down()
        node, self.node = self.node, None
        self.prepared = False
        if node is not None:
            self.cluster_id = node.cluster.cluster_id
        self.listeners.close()
        management, self.management = self.management, None
        if management is not None:
            await management.close()
        if node is not None:
            self._leaving = node
            try:
                await node.stop()
            finally:
                self._leaving = None
                self.spooled = sum(spool.count for spool in node.broker.spools.active)
        if self.peers is not None:
            self.peers.set_members({}, "this node stops")

    def _on_node_stopped(self, node: Node) -> None:
        if node is self.node:
            self.fatal = node.fatal
            self.request_stop()

    # -- Becoming a member ---------------------------------------------------------------------------------------

    async def _enter(self, me: Member) -> tuple[ConsensusLog, Recovered]:
        """Returns this node's consensus log and its contents; without data, founds or joins a cluster first."""
        disk = self.environment.disk
        if read_note(self.environment.disk, FORCE_FILE) is not None:
            log = ConsensusLog(disk, METADATA)
            logger.warning("this node goes on without the other members of its cluster, as force_boot asked for")
            recovered = log.force_alone(me)
            delete_note(self.environment.disk, FORCE_FILE)
            return log, recovered
        log = ConsensusLog(disk, METADATA)
        recovered = log.recover()
        if read_note(disk, WITNESS_FILE) is not None:
            raise StartFailed(f"{self.settings.data_dir} is the folder of a witness: start it with leveret witness")
        if recovered.last_index:  # A term alone is left by one that died before it got anything of those it had joined.
            self._check_name(me, recovered)
            return log, recovered
        asked = read_note(self.environment.disk, JOIN_FILE)
        if asked is not None:
            decision: discovery.Decision = discovery.Join(tuple(split_address(one) for one in asked.split()))
        else:
            settings = self.settings
            if not settings.join and (beside := self.members_beside()):
                settings = replace(settings, join=beside)
            decision = await discovery.decide(settings, me.name, discovery.asking(self._hello), asyncio.sleep)
        if isinstance(decision, discovery.GiveUp):
            raise StartFailed(decision.text)
        if isinstance(decision, discovery.Join):
            addresses = decision.addresses
            write_note(self.environment.disk, JOIN_FILE, " ".join(join_address(*one) for one in addresses))
            await self._join(me, addresses)
            return log, recovered
        log = ConsensusLog(disk, METADATA)
        return log, log.found(me)

    def _check_name(self, me: Member, recovered: Recovered) -> None:
        membership = Raft(
            me.id, lambda n: 0, snapshot=recovered.meta, entries=recovered.entries, commit=recovered.commit
        ).membership
        known = membership.get(me.id)
        if known is not None and known.name != me.name:
            if len(membership.members) > 1:
                return  # Renamed, perhaps, while it was stopped; the others know.
            raise StartFailed(
                f"the data in {self.settings.data_dir} is that of node {known.name}: start it with --name {known.name}"
            )

    async def _hello(self, address: tuple[str, int]) -> bytes:
        assert self.peers is not None
        return await self.peers.call(address, HELLO, b"{}", CALL_S)

    async def _join(self, me: Member, addresses: tuple[tuple[str, int], ...]) -> None:
        """Ask to be let in, until somebody does."""
        assert self.peers is not None
        request = {"name": me.name, "uuid": me.id, "address": me.address, "priority": me.priority}
        if (former := read_note(self.environment.disk, REPLACE_FILE)) is not None:
            request["replaces"] = former
        answer = await self._ask_leader(addresses, JOIN, request)
        self.peers.set_cluster(bytes.fromhex(answer["cluster"]))
        members = {
            one["name"]: Address(*split_address(one["address"]), bytes.fromhex(one["uuid"]))
            for one in answer["members"]
        }
        self.peers.set_members(members)
        logger.info("joined the cluster of %s", ", ".join(sorted(name for name in members if name != me.name)))

    async def _ask_leader(self, addresses: tuple[tuple[str, int], ...], kind: int, request: dict[str, Any]) -> Any:
        """Ask one after the other, and whom they call the leader; again and again. Raises `StartFailed`."""
        assert self.peers is not None
        todo, delay_s, told = list(addresses), RETRY_S, ""
        own = (self.settings.cluster_host, self.cluster_port)
        payload = json.dumps(request).encode()
        while True:
            if not todo:
                await asyncio.sleep(delay_s)
                todo, delay_s = list(addresses), min(2 * delay_s, RETRY_S_MAX)
            address = todo.pop(0)
            try:
                answer = read_object(await self.peers.call(address, kind, payload, JOIN_CALL_S))
            except (CallFailed, ValueError) as error:
                if str(error) != told:
                    told = str(error)
                    logger.warning("cannot join by way of %s: %s; trying again", join_address(*address), told)
                continue
            if "error" in answer:
                raise StartFailed(f"{join_address(*address)} does not let this node in: {answer['error']}")
            if "ok" in answer:
                return answer["ok"]
            leader = split_address(answer["leader"]) if answer.get("leader") else None
            if leader not in (None, address, own):  # A node that lost its data may be thought to lead still.
                todo.insert(0, leader)

    async def _announce_move(self, node: Node, me: Member) -> None:
        """This member is known under another address, name or priority: the others cannot reach it until they know."""
        others = [one for one in node.cluster.raft.membership.members if one.id != me.id]
        if others:
            addresses = tuple(split_address(one.address) for one in others)
            request = {"name": me.name, "uuid": me.id, "address": me.address, "priority": me.priority}
            await self._ask_leader(addresses, JOIN, request)
        else:
            if await node.cluster.until(lambda: node.cluster.raft.is_leader):
                await node.cluster.change_membership(Update(me))

    def change_settings(self, settings: Settings) -> None:
        """Changes settings until the process ends, for all code that reads them from now on."""
        self.settings = settings
        if self.node is not None:
            self.node.change_settings(settings)
        if self.management is not None:
            self.management.gate.loopback_users = settings.loopback_users

    # -- Commands of operators -----------------------------------------------------------------------------------

    async def join(self, address: tuple[str, int]) -> None:
        """Deletes all data, and has the node join the cluster of that address at the next start of the app."""
        self._require_stopped()
        assert self.peers is not None
        hello = await discovery.asking(self._hello)(address)
        if hello is None:
            raise AdminError(
                f"nobody answers at {join_address(*address)}: is a node running there, is that its cluster port "
                "(25672 by default), and has it the same cookie?"
            )
        if hello.get("self"):
            raise AdminError("cannot cluster node with itself")
        if not hello.get("cluster") or not hello.get("founded"):
            raise AdminError(f"node {hello.get('name')} belongs to no cluster yet, or its app is stopped")
        await self.reset()
        write_note(self.environment.disk, JOIN_FILE, join_address(*address))

    async def reset(self, force: bool = False) -> None:
        """Leaves the cluster, and deletes all data. With `force`, the others are not asked; they must forget this
        node."""
        self._require_stopped()
        if not force:
            if self.spooled:
                raise AdminError(
                    f"{self.spooled} messages wait in this node's spools, and only this node has them: start its app "
                    "again until they are sent on (see: leveretctl list_spools), or give them up with force_reset"
                )
            await self._leave()
        assert self.peers is not None
        await self.peers.close()
        wipe(self.environment.disk)
        self.spooled = 0
        self.cluster_id = bytes(16)
        delete_note(self.environment.disk, JOIN_FILE)
        delete_note(self.environment.disk, FORCE_FILE)
        delete_note(self.environment.disk, REPLACE_FILE)
        await self._open_cluster_port()

    async def _leave(self) -> None:
        """Asks the other members, if there are any, to remove this one."""
        recovered = ConsensusLog(self.environment.disk, METADATA).recover()
        raft = Raft(self.uuid, lambda n: 0, snapshot=recovered.meta, entries=recovered.entries, commit=recovered.commit)
        others = [one for one in raft.membership.members if one.id != self.uuid]
        own = raft.membership.get(self.uuid)
        if not others or own is None:
            return
        addresses = tuple(split_address(one.address) for one in others)
        try:
            request = {"name": own.name, "by_itself": True}
            asking = self._ask_leader(addresses, LEAVE, request)
            await asyncio.wait_for(asking, self.settings.operation_timeout_ms / 1000)
        except TimeoutError:
            raise AdminError(
                "no majority of the other nodes answers, so that they cannot remove this one. Start them, or use "
                "force_reset, and forget_cluster_node there later"
            ) from None
        except StartFailed as error:
            if "is not a member" not in str(error):
                raise AdminError(str(error)) from None

    async def leave(self, progress: Callable[[str], None]) -> None:
        """Leaves the cluster for good, after the command `leave_cluster` has moved queues away and waited for clients:
        the last clients are disconnected, the other nodes remove this one, and it is left without data, its app
        stopped. Raises `AdminError`; then it is a member, without the queues that had moved by then."""
        node = self.node
        if node is None or not self.prepared:
            raise AdminError("the app is not running on this node: start it first, or see: leveretctl help reset")
        await node.maintenance.clear_out(progress)
        # Before its links end: the others are then a smaller cluster, and not a minority that must pause.
        await node.cluster.leave()
        await self.stop_app()
        await self.reset()

    async def force_boot(self) -> None:
        """Has the next start of the app go on without asking the other members, and without them."""
        self._require_stopped()
        write_note(self.environment.disk, FORCE_FILE, "yes")

    def _require_stopped(self) -> None:
        if self.node is not None or self.starting is not None:
            raise AdminError("the app is running on this node: stop it first with leveretctl stop_app")

    # -- The links -----------------------------------------------------------------------------------------------

    def on_up(self, peer: str, info: PeerInfo) -> None:
        if self.node is not None:
            self.node.broker.client_ids.on_peer_up(peer, info.version >= VERSION_OF_MQTT)
            self.node.broker.mirrors.on_linked(peer, info.version >= VERSION_OF_REQUEUED)
            self.node.on_peer_up(peer, info.identity.uuid)

    def on_down(self, peer: str, reason: str) -> None:
        if self.node is not None:
            self.node.broker.client_ids.on_peer_down(peer)
            self.node.on_peer_down(peer, reason)
        elif self._leaving is not None:  # Otherwise this one would wait for what the other can do no more.
            self._leaving.cluster.on_down(peer)

    def _needs_any_of(self, peers: list[str]) -> bool:
        return self.node is not None and self.node.pausing.needs_any_of(peers)

    def _on_nobody_listens(self, peer: str) -> None:
        if self.node is not None:
            self.node.cluster.two_nodes.on_nobody_listens(peer)

    def on_drained(self, peer: str) -> None:
        if self.node is not None:
            self.node.on_peer_drained(peer)

    def on_frame(self, peer: str, kind: int, payload: bytes) -> None:
        node = self.node
        if node is None:  # The node stops and its links are being closed; but it must still learn of a new leader.
            if self._leaving is not None and kind in CONSENSUS_FRAMES:
                self._leaving.cluster.on_frame(peer, kind, payload)
            return
        if kind in CONSENSUS_FRAMES:
            node.cluster.on_frame(peer, kind, payload)
        else:
            node.on_peer_frame(peer, kind, payload)

    def on_call(self, caller: Identity, kind: int, payload: bytes, respond: Respond) -> None:
        task = self.loop.create_task(self._answer(kind, payload, respond))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _answer(self, kind: int, payload: bytes, respond: Respond) -> None:
        if kind == CONTROL:
            respond(await self.control.answer(payload))
            return
        try:
            request = read_object(payload)
        except ValueError:
            request = {}
        if kind == HELLO:
            answer = self._describe()
        elif kind in (JOIN, LEAVE, RENAME, REST):
            # Of two nodes that stop at the same time, one still makes the other a learner.
            node = self._leaving if kind == REST and self.node is None else self.node if self.prepared else None
            answer = await node.cluster.answer(kind, request) if node is not None else {}
        else:
            answer = {"error": f"call {kind} is not known to this version"}
        respond(json.dumps(answer).encode())

    def _describe(self) -> dict[str, Any]:
        cluster = self.cluster_id if self.node is None else self.node.cluster.cluster_id
        return {
            "name": self.settings.node_name,
            "uuid": self.uuid,
            "cluster": cluster.hex() if any(cluster) else None,
            "founded": self.prepared,
            KNOWN: self.node is not None and self.node.transient.is_known,
            "fingerprint": discovery.fingerprint(self.settings.discovery),
        }

    def managed(self, node: Node) -> Management:
        """Returns the application of the management port."""
        if self.management is None:
            # Imported at the first connection: otherwise every start would load code that many nodes never need.
            from leveret.management.app import Management

            self.management = Management(self, node)
        return self.management


# -- The process ---------------------------------------------------------------------------------------------------


def run(settings: Settings, members_beside: MembersBeside = tuple) -> int:
    """Serves until a signal, and returns the exit code."""
    try:
        logs.set_up(settings)
    except logs.NoLogFile as error:
        print(f"leveret: {error}", file=sys.stderr)
        return CONFIG
    try:
        problem = make_folder(settings.data_dir)
        if problem is not None:
            logger.critical("%s; %s", problem, OTHER_FOLDER)
            return CONFIG
        with folder_lock(settings.data_dir, PATIENCE_S):
            code = _run(_with_cookie(settings), members_beside)
        if code == RESTART:
            begin_anew()
        return code
    except FolderInUse as error:
        logger.critical("%s; give this one its own folder with --data", error)
        return UNAVAILABLE
    except BadCookie as error:
        logger.critical("%s", error)
        return CONFIG
    except (LogDamaged, ConsensusLogDamaged) as error:
        from leveret.node.cluster.repair import refusal  # Few starts need it.

        logger.critical("this node does not start: %s", logs.lines(refusal(settings.data_dir, error)))
        return DATA_ERROR
    except StartFailed as error:
        logger.critical("%s", logs.lines(error))
        return UNAVAILABLE


def _with_cookie(settings: Settings) -> Settings:
    """Returns settings with the user's cookie file, which RabbitMQ would use, if no cookie is configured."""
    if settings.cookie_file is not None or settings.cookie is not None:
        return settings
    path = inherited(settings.data_dir, os.path.expanduser("~"))
    if path is None:
        return settings
    logger.info("the cookie is that of %s; name another with --cookie-file", path)
    return replace(settings, cookie_file=path)


def begin_anew() -> NoReturn:
    """Runs the same command line again, in the same folder and environment, as the same process: its parent (systemd, a
    container, `leveret cluster`) need not know. The version that is installed by now is what runs then."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, sys.orig_argv)


def _run(settings: Settings, members_beside: MembersBeside) -> int:
    raise_file_limit()
    keep_freed_memory()
    return uvloop.run(serve(settings, members_beside))


def raise_file_limit() -> None:
    """Raises the limit of file descriptors as far as the system allows: each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def serve(settings: Settings, members_beside: MembersBeside = tuple) -> int:
    loop = asyncio.get_running_loop()
    logger.info("Leveret %s, node %s, data in %s", __version__, settings.node_name, settings.data_dir)
    cookie = find_cookie(settings.data_dir, settings.cookie_file, settings.cookie)
    if (warning := weakness(cookie)) is not None:
        logger.warning("%s", warning)
    server = Server(settings, RealEnvironment(loop, settings.data_dir), cookie)
    server.can_restart = True
    server.members_beside = members_beside
    server.watch.start(loop)
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, server.request_stop)
    outlives_terminal = settings.log_file is not None or not os.isatty(0)
    if outlives_terminal:
        loop.add_signal_handler(signal.SIGHUP, logs.on_hangup)
    sys.setswitchinterval(SWITCH_S)
    # What a start reads stays: no collector need look at it, neither now nor later. A million bindings would cost it
    # half a second each time, with the loop standing still.
    gc.disable()
    server.on_recovered = calm_collector
    server.announce = lambda: local_registry.announce(local_registry.entry_of(settings, server.ports))
    starting = loop.create_task(server.start())
    try:
        await asyncio.wait([starting, server.stopped], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            server.announce()
            print("ready " + " ".join(f"{name}={port}" for name, port in server.ports.items()), flush=True)
            url = server.listeners.page_url
            if url is not None and server.node is not None:
                print(f"page {url}  {login_hint(settings, server.node.metadata)}", flush=True)
            systemd.tell("READY=1")
            await server.stopped
    finally:
        logger.info("%s", "restarting" if server.restarting else "stopping")
        systemd.tell(systemd.reloading() if server.restarting else "STOPPING=1")
        local_registry.withdraw(settings.node_name)
        await server.stop()
        if outlives_terminal:
            # The next program of this process (`begin_anew`) takes over what is ignored. Until it has a handler, a
            # request to open the log files anew would kill it.
            loop.remove_signal_handler(signal.SIGHUP)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return SOFTWARE if server.fatal else RESTART if server.restarting else 0


def login_hint(settings: Settings, metadata: Metadata) -> str:
    """Returns a text about the user that can log in to a new node; a password is named only if everybody knows it."""
    name, password = settings.default_user, settings.default_pass
    user = metadata.users.get(name)
    if user is None or not verify_password(password, user.password_hash, user.hashing):
        return "log in with a user of this broker"
    where = ", from this machine only" if name in settings.loopback_users else ""
    shown = "password guest" if password == KNOWN_PASSWORD else "the password of the configuration"
    return f"log in as {name}, {shown}{where}"


def calm_collector() -> None:
    """Traffic leaves nothing to the garbage collector. Very many new queues give it work, in portions of this size: to
    look at the 50,000 objects of eleven portions takes 10 to 30 ms."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(5_000, 10, 50)
