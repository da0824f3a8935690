"""`leveret witness`: the third voter of a cluster whose queues are on two nodes.

A witness takes part in the consensus and in nothing else: it has no broker, no listeners for clients, no queues. Its
folder holds the log of commands and a snapshot, as any member's does; a committed entry is on the disks of two of the
three, of which the witness may be one. With it, the loss of any one of the three leaves a majority.

It can win an election: after a leader is lost, it may be the only one that has the entries committed by that leader and
itself. Then it brings the node that is left up to date, which is what a Raft leader does first, and hands over.

It is started, joined and forgotten like a node. `WITNESS_FILE` keeps its folder from being used by a node, and
`leveret.metadata.model.witnesses` says which members are witnesses.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Final

import uvloop

from leveret import __version__
from leveret.base.control_protocol import PLAIN
from leveret.base.exit_codes import CONFIG, DATA_ERROR, SOFTWARE, UNAVAILABLE
from leveret.links.frame_types import CONTROL, HELLO, JOIN, LEAVE, RENAME, REST
from leveret.links.link import FRAME_BYTES_MAX, Identity
from leveret.metadata.model.witnesses import witness_names
from leveret.metadata.store import Metadata
from leveret.node.cluster import consensus
from leveret.node.cluster.consensus import CONSENSUS_FRAMES, AdminError, join_address, split_address
from leveret.node.cluster.consensus_log import ConsensusLog, ConsensusLogDamaged, Recovered, load_identity
from leveret.node.cluster.membership import Cluster
from leveret.node.sockets.cookie import BadCookie, find_cookie
from leveret.node.sockets.peer_links import Address, PeerInfo, PeerLinks, Respond
from leveret.node.sockets.peer_socket import CallFailed, PeersOptions, peer_tls
from leveret.node.system import logs
from leveret.node.system.data_folder import (
    METADATA,
    PATIENCE_S,
    WITNESS_FILE,
    FolderInUse,
    delete_note,
    folder_lock,
    read_note,
    write_note,
)
from leveret.node.system.environment import Environment, RealEnvironment
from leveret.raft import Member

if TYPE_CHECKING:
    from leveret.node.config.settings import Settings

logger = logging.getLogger("leveret")

JOIN_CALL_S: Final = 30.0
RETRY_S: Final = 0.5
LEADERS_CALLS: Final = frozenset({JOIN, LEAVE, RENAME, REST})
OTHER: Final = "a witness keeps no queues and serves no clients: ask another node of the cluster"


class NoStart(Exception):
    """The witness cannot start; the text says why."""


class WitnessCluster(Cluster):
    """A member that hands the leadership over whenever a node can take it."""

    def _successor(self, now: float) -> str | None:
        others = witness_names(self.metadata) | {self.me.name}
        voters = {one.name: one.id for one in self.raft.membership.voters if one.name not in others}
        matches = {one.id: one.match for one in self.raft.followers()}
        able = [voters[name] for name in self.connected if name in voters]
        return max(able, key=lambda one: (matches.get(one, 0), one), default=None)


class Witness(consensus.ConsensusNode):
    """The process: links to the members, and its part in the consensus."""

    def __init__(self, settings: Settings, environment: Environment, cookie: bytes) -> None:
        self.settings = settings
        self.environment = environment
        self.loop: asyncio.AbstractEventLoop = environment.loop
        self.cookie = cookie
        self.cluster: WitnessCluster | None = None
        self.counts = False  # It is a voter, and in contact with a majority.
        self.fatal: str | None = None
        self.stopped: asyncio.Future[None] = self.loop.create_future()
        self.peers: PeerLinks
        self._calls: set[asyncio.Task[None]] = set()

    # -- Starting and stopping -----------------------------------------------------------------------------------

    async def start(self) -> int:
        """Waits until the witness has a vote and a majority, and returns its port. Raises `NoStart`, `AdminError`."""
        settings, disk = self.settings, self.environment.disk
        uuid = load_identity(disk, METADATA, self.environment.random_bytes(16).hex())
        options = PeersOptions(
            FRAME_BYTES_MAX + settings.max_message_size,
            silence_ms=settings.silence_ms,
            stable_ms=settings.silence_ms // 8,
            calm_ms=settings.silence_ms * 8,
        )
        tls = None if settings.cluster_tls is None else peer_tls(settings.cluster_tls)
        me = Identity(settings.node_name, bytes.fromhex(uuid))
        random_source, random_bytes = self.environment.random_source, self.environment.random_bytes
        self.peers = PeerLinks(
            self.loop, me, self.cookie, self, options, tls, random_source, random_bytes, self.environment.precise_s
        )
        listener = settings.cluster_listener
        try:
            port = await self.peers.listen(listener.host, listener.port)
        except OSError as error:
            raise NoStart(f"cannot listen at {listener} for other nodes: {error.strerror or error}") from None
        member = Member(uuid, settings.node_name, join_address(settings.cluster_host, port), 0)
        log = ConsensusLog(disk, METADATA)
        recovered = log.recover()
        if not recovered.last_index:
            await self._join(member)
        elif read_note(disk, WITNESS_FILE) is None:
            raise NoStart(f"{settings.data_dir} is the folder of a node with queues: start it with leveret server")
        await self._begin(member, log, recovered)
        return port

    async def _begin(self, member: Member, log: ConsensusLog, recovered: Recovered) -> None:
        cluster = self.cluster = WitnessCluster(
            self.settings, self.environment, self.peers, member, log, recovered, Metadata(), self
        )
        known = cluster.raft.membership.get(member.id)
        if known is not None and known != member:
            raise NoStart(f"this witness is known as {known.name} at {known.address}: start it as that")
        cluster.start()
        waiting = 0
        while not await cluster.until(lambda: cluster.is_voter and cluster.has_majority, 1.0):
            if cluster.stopped:
                raise NoStart(self.fatal or "it was stopped")
            if cluster.is_expelled:
                raise NoStart("the other nodes removed this witness: delete its folder, and let it join anew")
            waiting += 1
            if waiting % 10 == 0:
                logger.warning("%s", cluster.why_waiting())
        self.peers.set_cluster(cluster.cluster_id)
        self.counts = True

    async def _join(self, member: Member) -> None:
        disk = self.environment.disk
        if not self.settings.join:
            raise NoStart("a witness founds no cluster: name a member's cluster port with --join HOST:PORT")
        write_note(disk, WITNESS_FILE, "yes")
        request = {"name": member.name, "uuid": member.id, "address": member.address, "priority": 0, "witness": True}
        payload, todo, told = json.dumps(request).encode(), list(self.settings.join), ""
        while not self.stopped.done():
            address = todo.pop(0)
            try:
                answer = json.loads(await self.peers.call(address, JOIN, payload, JOIN_CALL_S))
            except (CallFailed, ValueError) as error:
                answer = {}
                if str(error) != told:
                    told = str(error)
                    logger.warning("cannot join by way of %s: %s; trying again", join_address(*address), told)
            if "error" in answer:
                delete_note(disk, WITNESS_FILE)
                raise NoStart(f"{join_address(*address)} does not let this witness in: {answer['error']}")
            if "ok" in answer:
                self.peers.set_cluster(bytes.fromhex(answer["ok"]["cluster"]))
                members = answer["ok"]["members"]
                addresses = {
                    one["name"]: Address(*split_address(one["address"]), bytes.fromhex(one["uuid"])) for one in members
                }
                self.peers.set_members(addresses)
                return
            if answer.get("leader") and split_address(answer["leader"]) != address:
                todo.insert(0, split_address(answer["leader"]))
            if not todo:
                await asyncio.sleep(RETRY_S)
                todo = list(self.settings.join)

    async def stop(self) -> None:
        self.counts = False
        if self.cluster is not None:
            if not self.cluster.stopped:
                await self.cluster.hand_over()
            self.cluster.stop()
        for task in list(self._calls):
            task.cancel()
        if hasattr(self, "peers"):
            await self.peers.close()
        self.environment.close()

    def request_stop(self) -> None:
        if not self.stopped.done():
            self.stopped.set_result(None)

    # -- Calls of the consensus ----------------------------------------------------------------------------------

    def on_applied(self, applied: Any) -> None:
        """Does nothing: a witness has no broker that follows the metadata."""

    def on_replaced(self, events: Any) -> None:
        """Does nothing, for the same reason."""

    def on_cluster_tick(self) -> None:
        """Does nothing: a witness has no periodic work beside the consensus."""

    def is_calm(self) -> bool:
        return True

    def on_fatal(self, text: str) -> None:
        logger.critical("%s", text)
        self.fatal = text
        self.request_stop()

    def contacts(self) -> dict[str, frozenset[str]]:
        return {}

    def witnesses(self, name: str) -> list[str]:
        return []

    def is_paused(self, name: str) -> bool:
        return False

    def has_clients(self) -> bool:
        return True  # A witness is not told.

    # -- Links and calls -----------------------------------------------------------------------------------------

    def on_up(self, peer: str, info: PeerInfo) -> None:
        if self.cluster is not None:
            self.cluster.on_up(peer, info.identity.uuid)

    def on_down(self, peer: str, reason: str) -> None:
        if self.cluster is not None:
            self.cluster.two_nodes.on_losing(peer)
            self.cluster.on_down(peer)

    def on_drained(self, peer: str) -> None:
        """Does nothing: a witness never waits for a link to keep up."""

    def on_frame(self, peer: str, kind: int, payload: bytes) -> None:
        """Handles frames of the consensus, and drops those of brokers."""
        if self.cluster is not None and kind in CONSENSUS_FRAMES:
            self.cluster.on_frame(peer, kind, payload)

    def on_call(self, caller: Identity, kind: int, payload: bytes, respond: Respond) -> None:
        task = self.loop.create_task(self._answer(kind, payload, respond))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _answer(self, kind: int, payload: bytes, respond: Respond) -> None:
        try:
            request = json.loads(payload)
        except ValueError:
            request = {}
        request = request if isinstance(request, dict) else {}
        if kind == HELLO:
            answer = self._describe()
        elif kind == CONTROL:
            answer = self._control(str(request.get("command")))
        elif kind in LEADERS_CALLS and self.cluster is not None and self.counts:
            answer = await self.cluster.answer(kind, request)
        else:
            answer = {}
        respond(json.dumps(answer).encode())

    def _describe(self) -> dict[str, Any]:
        known = None if self.cluster is None else self.cluster.cluster_id
        return {
            "name": self.settings.node_name,
            "uuid": self.peers.me.uuid.hex(),
            "cluster": known.hex() if known is not None and any(known) else None,
            "founded": self.counts,
            "fingerprint": None,
        }

    def _control(self, command: str) -> dict[str, Any]:
        if command == "ping":
            return {"ok": {"node": self.settings.node_name, "pid": os.getpid(), "version": __version__}}
        if command == "app_state":
            return {"ok": {"running": self.counts, "starting": not self.counts, "paused": None}}
        if command == "stop":
            self.loop.call_soon(self.request_stop)
            return {"ok": {"pid": os.getpid()}}
        return {"error": {"code": UNAVAILABLE, "text": OTHER, "form": PLAIN}}


# -- The process ---------------------------------------------------------------------------------------------------


def run(settings: Settings) -> int:
    """Runs a witness until a signal ends it, and returns the exit code."""
    try:
        logs.set_up(settings)
        os.makedirs(settings.data_dir, mode=0o750, exist_ok=True)
        with folder_lock(settings.data_dir, PATIENCE_S):
            return uvloop.run(serve(settings))
    except logs.NoLogFile as error:
        print(f"leveret: {error}", file=sys.stderr)
        return CONFIG
    except BadCookie as error:
        logger.critical("%s", error)
        return CONFIG
    except ConsensusLogDamaged as error:
        logger.critical("this witness does not start: %s. Forget it at a node, delete its folder, let it join", error)
        return DATA_ERROR
    except (FolderInUse, NoStart, AdminError) as error:
        logger.critical("%s", error)
        return UNAVAILABLE


async def serve(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    logger.info("Leveret %s, witness %s, data in %s", __version__, settings.node_name, settings.data_dir)
    cookie = find_cookie(settings.data_dir, settings.cookie_file, settings.cookie)
    witness = Witness(settings, RealEnvironment(loop, settings.data_dir), cookie)
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, witness.request_stop)
    starting = loop.create_task(witness.start())
    try:
        either: list[asyncio.Future[Any]] = [starting, witness.stopped]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            print(f"ready cluster={starting.result()}", flush=True)
            await witness.stopped
        else:
            starting.cancel()
    finally:
        await witness.stop()
    return SOFTWARE if witness.fatal else 0
