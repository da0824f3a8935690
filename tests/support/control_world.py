"""Nodes for tests of control commands: real brokers and metadata, on a fake server, consensus and links.

A change is applied at every running node at once. A call from one node to another is a function call, unless the
other one is cut off.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from leveret.broker.queue.local_queue import LocalQueue
from leveret.links import link
from leveret.metadata.model.commands import Command, MoveQueue
from leveret.metadata.model.records import QueueSpec
from leveret.metadata.rules.partition_handling import Partitions
from leveret.metadata.store import Applied
from leveret.node.admin.dispatch import Control
from leveret.node.cluster.consensus import AdminError
from leveret.node.cluster.membership import MemberStatus
from leveret.node.config.settings import Settings
from leveret.node.sockets.peer_socket import CallFailed
from leveret.node.system.alarms import Alarms
from leveret.node.system.loop_watch import LoopWatch
from tests.support.machines import World


class FakeSurviving:
    def __init__(self) -> None:
        self.waiting: dict[str, Any] | None = None
        self.gone: str | AdminError = AdminError("there is a majority")

    def waiting_for(self) -> dict[str, Any] | None:
        return self.waiting

    async def go_on_alone(self) -> str:
        if isinstance(self.gone, AdminError):
            raise self.gone
        return self.gone


class FakeCluster:
    def __init__(self, all_: Nodes, name: str) -> None:
        self.two_nodes = FakeSurviving()
        self.all = all_
        self.name = name
        self.leader: str | None = "one@host"
        self.run = f"run-of-{name}"
        self.has_majority = True
        self.has_clients = False
        self.applied_index = 7
        self.forgotten: list[str] = []
        self.renamed: list[tuple[str, str]] = []
        self.refusal: AdminError | None = None

    def members(self) -> list[MemberStatus]:
        return sorted(
            MemberStatus(one.name, one.uuid, one.address, True, one.node is not None, one.name == self.leader, 0)
            for one in self.all.servers.values()
        )

    def everybody(self) -> list[MemberStatus]:
        return self.members()

    def attending(self) -> list[MemberStatus]:
        return []

    async def change(self, command: Command) -> Applied:
        if self.refusal is not None:
            raise self.refusal
        applied = [one.world.apply(command) for one in self.all.servers.values() if one.node is not None]
        self.all.changes.append(command)
        return applied[0]

    async def forget(self, name: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.forgotten.append(name)

    def why_waiting(self) -> str:
        return "waiting for a majority"

    async def rename(self, old: str, new: str) -> None:
        self.renamed.append((old, new))

    async def until(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        return condition()


class FakePeers:
    def __init__(self, all_: Nodes, name: str) -> None:
        self.all = all_
        self.name = name
        self.retries = 0

    async def call(self, address: tuple[str, int], kind: int, payload: bytes, timeout_s: float) -> bytes:
        assert kind == 32
        for server in self.all.servers.values():
            if server.address == f"{address[0]}:{address[1]}":
                if server.name == self.name:
                    raise CallFailed(link.SELF, "that is this node")
                if server.name in self.all.cut_off:
                    break
                return await server.control.answer(payload)
        raise CallFailed("unreachable", "Connection refused")

    def retry(self) -> None:
        self.retries += 1


class FakePausing:
    """The partition state of a node, as a test sets it."""

    def __init__(self, all_: Nodes, name: str) -> None:
        self.partitions = Partitions(name)
        self.partitions.in_sight.update(all_.servers)
        self.peers_paused: set[str] = set()

    @property
    def paused(self) -> bool:
        return self.partitions.paused

    def is_paused(self, peer: str) -> bool:
        return peer in self.peers_paused

    def look(self) -> None:
        self.partitions.look(caught_up=True, wall_ms=2_000)


class FakeMaintenance:
    """Two queues to hand over, which takes until a test ends it."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.sent_away: list[str] = []

    async def clients_gone(self) -> None:
        self.sent_away.append("clients")

    async def handed_over(self, progress: Callable[[str], None]) -> None:
        progress("0 of 2 queues handed over to mirrors")
        await self.server.may_leave.wait()

    def led(self) -> list[QueueSpec]:
        specs = self.server.world.metadata.queues.values()
        return [spec for spec in specs if spec.node == self.server.name]

    def next_home(self) -> str:
        return next(name for name in self.server.all.servers if name != self.server.name)


class FakeNode:
    def __init__(self, all_: Nodes, server: FakeServer) -> None:
        self.metadata = server.world.metadata
        self.broker = server.world.broker
        self.alarms = Alarms(100, 10, lambda: 50, lambda: 60)
        self.cluster = FakeCluster(all_, server.name)
        self.peers = server.peers
        self.pausing = FakePausing(all_, server.name)
        self.maintenance = FakeMaintenance(server)
        self.turns = 0
        self.world = server.world
        self.moved: list[tuple[str, str]] = []
        self.may_move = asyncio.Event()
        self.may_move.set()
        self.problem: AdminError | None = None
        self.started_bytes = 20
        self.clients: dict[Any, None] = {}
        self.storage = SimpleNamespace(log=SimpleNamespace(pending_bytes=0, queues={}))

    def memory_unused(self) -> int:
        return 5

    def look(self) -> None:
        self.alarms.check()

    def schedule(self) -> None:
        self.turns += 1
        self.world.turn()

    async def move(self, queue: LocalQueue, to: str) -> None:
        self.moved.append((queue.spec.name, to))
        await self.may_move.wait()
        if self.problem is not None:
            raise self.problem
        spec = queue.spec
        for server in self.cluster.all.servers.values():
            server.world.metadata.runs[to] = "run"
        await self.cluster.change(MoveQueue(spec.vhost, spec.name, spec.id, spec.node, to, "run"))


class FakeListeners:
    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.servers: list[object] = ["a door"]
        self.management_url: str | None = None
        self.management_urls: dict[str, str] = {}

    @property
    def is_suspended(self) -> bool:
        return not self.servers

    def close(self) -> None:
        self.servers.clear()
        del self.server.ports["amqp"]

    async def open(self, node: object) -> None:
        self.server.note("open_doors")
        self.servers.append("a door")
        self.server.ports["amqp"] = 5672

    async def follow_settings(self) -> None:
        pass

    async def reopened(self) -> None:
        self.server.note("reopened")


class FakeServer:
    def __init__(self, all_: Nodes, name: str, port: int) -> None:
        self.all = all_
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self.uuid = f"uuid-of-{name}"
        self.world = World(name=name)
        self.settings = self.configured = Settings(node_name=name, data_dir="/data", cluster_name="founded")
        self.peers = FakePeers(all_, name)
        self.ports = {"cluster": port, "amqp": port - 20_000}
        self.node: FakeNode | None = FakeNode(all_, self)
        self.prepared = True
        self.starting: object | None = None
        self.done: list[object] = []
        self.cookie = b"the secret"
        self.listeners = FakeListeners(self)
        self.watch = LoopWatch()
        self.announced = 0
        self.failure: Exception | None = None
        self.can_restart = True
        self.may_leave = asyncio.Event()
        self.control = Control(self)

    def note(self, what: object) -> None:
        if self.failure is not None:
            raise self.failure
        self.done.append(what)

    async def stop_app(self) -> None:
        self.note("stop_app")
        self.node, self.prepared = None, False

    async def start_app(self) -> None:
        self.note("start_app")
        self.node, self.prepared = FakeNode(self.all, self), True

    async def join(self, address: tuple[str, int]) -> None:
        self.note(("join", address))

    async def reset(self, force: bool = False) -> None:
        self.note(("reset", force))

    async def leave(self, progress: Callable[[str], None]) -> None:
        self.note("leave")

    def request_restart(self) -> bool:
        self.note("restart")
        return self.can_restart

    def announce(self) -> None:
        self.announced += 1

    def change_settings(self, settings: Settings) -> None:
        self.settings = settings

    async def force_boot(self) -> None:
        self.note("force_boot")

    def request_stop(self) -> None:
        self.note("stop")


@dataclass
class Nodes:
    """A cluster of one or more nodes."""

    servers: dict[str, FakeServer] = field(default_factory=dict)
    cut_off: set[str] = field(default_factory=set)
    changes: list[Command] = field(default_factory=list)

    def add(self, name: str) -> FakeServer:
        server = self.servers[name] = FakeServer(self, name, 25_672 + len(self.servers))
        for one in self.servers.values():
            for other in self.servers:
                one.world.metadata.runs[other] = f"run-of-{other}"
        return server


def cluster(*names: str) -> list[FakeServer]:
    nodes = Nodes()
    return [nodes.add(name) for name in names]


async def ask(server: FakeServer, command: str, /, **arguments: Any) -> Any:
    """Returns the value of an answer that is no error."""
    answer = json.loads(await server.control.answer(json.dumps({"command": command, "arguments": arguments}).encode()))
    assert "ok" in answer, answer
    return answer["ok"]


async def refusal(server: FakeServer, command: str, /, **arguments: Any) -> tuple[int, str]:
    """Returns the exit code and text of an error."""
    answer = json.loads(await server.control.answer(json.dumps({"command": command, "arguments": arguments}).encode()))
    assert "error" in answer, answer
    return answer["error"]["code"], answer["error"]["text"]


async def rows(server: FakeServer, command: str, /, **arguments: Any) -> list[list[Any]]:
    """Returns the rows of all pages of a list."""
    found: list[list[Any]] = []
    after: Any = None
    while True:
        page = await ask(server, command, after=after, **arguments)
        found += page["rows"]
        if page["next"] is None:
            return found
        after = page["next"]
