"""Mirrored queues among fake nodes: real rings, on links and disks that answer at once.

`Rings` takes the servers of `control_world` and gives their brokers mirrors. A command of a broker is applied at every
running node. Nothing moves by itself: `run` delivers all frames and syncs until nothing is left to do, `tick`
lets time pass.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

from leveret.base.range_set import RangeSet
from leveret.broker.mirrors.copy_store import MirrorStore
from leveret.broker.mirrors.manager import Mirror
from leveret.broker.mirrors.member_changes import MemberChanges, Place
from leveret.broker.queue.local_queue import LocalQueue
from leveret.metadata.model import commands as c
from leveret.metadata.model.maintenance_mark import out_of_service
from leveret.metadata.model.view import View
from leveret.metadata.store import Applied
from leveret.protocol.tables import Table
from leveret.replication.member import Member
from leveret.replication.ring_frames import Apply, Fill, Recovered, Request, Restart, Write
from leveret.storage.format.queue_block import PERSISTENT, Block, Run
from leveret.storage.format.queue_marks import Mark, Marks, marks_of
from tests.support.control_world import FakeServer
from tests.support.machines import World


class Kept:
    """The stored blocks of one queue."""

    def __init__(self) -> None:
        self.live = RangeSet()
        self.spilled = RangeSet()
        self.redelivered = RangeSet()
        self.counts: dict[int, int] = {}
        self.marks = Marks()
        self.next_seq = 1
        self.delivered_through = 0

    def add(self, first: int, count: int) -> None:
        if count:
            self.live.add(first, first + count - 1)
            self.spilled.remove(first, first + count - 1)
            self.next_seq = max(self.next_seq, first + count)

    @property
    def last_block_first(self) -> int:
        return self.live.last or 0

    def mark_again(self) -> None:
        """Does nothing: here `Store.unmark` is for good."""

    def redeliver(self, low: int, high: int) -> None:
        self.redelivered.add(low, high)

    def pieces(self, piece_bytes: int) -> list[tuple[int, int, int]]:
        return [(low, high, high - low + 1) for low, high in self.live]

    def apply(self, block: Block) -> None:
        if block.enqueued is not None:
            self.add(block.enqueued.first, len(block.enqueued.contents))
        for low, high in block.requeued:
            for start, end in self.live.ranges(low, high):
                self.redelivered.add(start, end)
        for low, high, count in block.counts:
            self.counts.update(dict.fromkeys(range(low, high + 1), count))
        self.marks.fold(marks_of(block.number, block.marks))
        for low, high in block.settled:
            self.live.remove(low, high)
            self.spilled.remove(low, high)
        self.delivered_through = max(self.delivered_through, block.delivered_through)


class Answer:
    """The answer to a read."""

    job = None

    def __init__(
        self, request: Request, live: tuple[tuple[int, int], ...], runs: tuple[Any, ...], marks: tuple[Mark, ...]
    ) -> None:
        self.request, self.live, self.runs, self.marks = request, live, runs, marks

    def answer(self, member: Member) -> None:
        live, upto = self.live, self.request.bound
        if live and not self.request.bytes_max:  # The first live message cannot be reported without its content.
            upto, live = live[0][0] - 1, ()
        member.on_read(self.request, live, self.runs, upto, (), self.marks)


class Piece:
    """Spilled messages that were read."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = runs


class Store:
    """Replaces `MirrorStore`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kept: dict[int, Kept] = {}
        self.unsynced: dict[int, int] = {}

    def stored(self, queue: int) -> Kept:
        return self.kept.setdefault(queue, Kept())

    def recovered(self, queue: int) -> Recovered:
        return Recovered(messages=self.stored(queue).next_seq - 1)

    def disk(self, queue: int) -> int:
        return 0

    def adopt(self, queue: int, epoch: int, next_seq: int, runs: list[Run]) -> None:
        kept = self.stored(queue)
        for number in self.world.log.queues.get(queue, {}):
            if number not in kept.spilled:
                kept.add(number, 1)
        for run in runs:
            kept.add(run.first, len(run.contents))
            self.world.log.put(queue, run)
        kept.next_seq = next_seq

    def spill(self, queue: LocalQueue, runs: list[Run]) -> None:
        for run in runs:
            self.stored(queue.spec.id).spilled.add(run.first, run.last)
            self.world.log.put(queue.spec.id, run)

    def spilled(self, queue: int, bytes_max: int) -> Piece | None:
        """Returns spilled messages, three at a time."""
        numbers = [number for low, high in self.stored(queue).spilled for number in range(low, high + 1)][:3]
        runs = [run for number in numbers for run in self.world.log.read(queue, number, number, 1)[0]]
        return Piece(runs) if runs else None

    def drop_spilled(self, queue: int) -> None:
        self.stored(queue).spilled = RangeSet()

    def is_mirrored(self, queue: int) -> bool:
        return False

    def unmark(self, queue: int, ranges: list[tuple[int, int]]) -> None:
        for low, high in ranges:
            self.stored(queue).redelivered.remove(low, high)

    def release(self, queue: int, tail: Sequence[Block]) -> None:
        for block in tail:
            self.stored(queue).apply(block)
            self.world.log.append(block)
        self.unsynced.pop(queue, None)

    def lost(self, queue: int) -> list[tuple[int, int]]:
        return []

    def left(self, queue: int) -> None:
        self.kept.pop(queue, None)

    def write(self, queue: int, effect: Write) -> None:
        self.unsynced[queue] = effect.id
        if isinstance(effect.change, Restart):
            self.kept[queue] = Kept()
            self.kept[queue].next_seq = effect.change.bound + 1
            self.kept[queue].delivered_through = effect.change.delivered
        elif isinstance(effect.change, Fill):
            self.stored(queue).marks.fold(effect.change.marks)
            for run in effect.change.runs:
                self.stored(queue).add(run.first, len(run.contents))
                self.world.log.put(queue, run)

    def apply(self, effect: Apply) -> None:
        for block in effect.blocks:
            self.stored(block.queue).apply(block)
            self.world.log.append(block)

    def read(self, queue: int, request: Request) -> Answer:
        live = tuple(self.stored(queue).live.ranges(request.after + 1, request.bound))
        runs = [run for low, high in live for run in self.world.log.read(queue, low, high, 1 << 20)[0]]
        marks = () if request.after else tuple(self.stored(queue).marks.all())
        return Answer(request, live, tuple(runs) if request.bytes_max else (), marks)


class Rings:
    def __init__(self, servers: list[FakeServer]) -> None:
        self.servers = {server.name: server for server in servers}
        self.frames: deque[tuple[str, str, bytes]] = deque()
        self.stuck: set[str] = set()  # Nodes whose disk is full, or so slow that nothing is written.
        self.stores = {server.name: Store(server.world) for server in servers}
        self.reads: deque[tuple[Piece, Callable[[bool], None]]] = deque()  # Reads of spilled messages in progress.
        for server in servers:
            world = cast(Any, server.world)
            world.propose = self._propose
            world.send = lambda peer, kind, parts, me=server.name: self.frames.append((me, peer, b"".join(parts)))
            world.spill = self.stores[server.name].spill
            world.read = lambda piece, then: self.reads.append((piece, then))
            server.world.broker.run = f"run-of-{server.name}"
            server.world.broker.member_changes = MemberChanges(server.world.broker, self._places)
        for server in servers:
            server.world.broker.mirrors.open(cast(MirrorStore, self.stores[server.name]), server.name, 1)
            for other in servers:
                if other is not server:
                    server.world.broker.mirrors.on_peer_up(other.name)
        self.run()

    def _running(self) -> list[FakeServer]:
        return [server for server in self.servers.values() if server.node is not None]

    def _places(self) -> list[Place]:
        away = out_of_service(self._running()[0].world.metadata)
        return [
            Place(one.name, one.name, f"run-of-{one.name}", one.node is not None, away=one.name in away)
            for one in self.servers.values()
        ]

    def _propose(
        self, command: c.Command, then: Callable[[Applied], None] = lambda applied: None, patient: bool = False
    ) -> None:
        applied = [server.world.apply(command) for server in self._running()]
        then(applied[0])

    # -- What a test does ----------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(10_000):
            busy = False
            for server in self._running():
                busy |= self._turn(server)
            while self.frames:
                src, dst, payload = self.frames.popleft()
                if self.servers[src].node is not None and self.servers[dst].node is not None:
                    self.servers[dst].world.broker.mirrors.on_frame(src, payload)
                    busy = True
            if not busy:
                return
        raise AssertionError("the rings do not come to rest")

    def _turn(self, server: FakeServer) -> bool:
        broker, store = server.world.broker, self.stores[server.name]
        broker.pump()
        unlogged = list(broker.unlogged)
        broker.unlogged.clear()
        for queue in unlogged:
            if queue.mirror is not None:
                broker.mirrors.submit(queue.mirror, 1_000)
        busy = broker.mirrors.has_work
        if busy:  # As a node does.
            broker.mirrors.flush()
        busy |= bool(broker.dirty or broker.going_on)
        if server.name in self.stuck:
            return busy
        written, store.unsynced = store.unsynced, {}
        for number, write in written.items():
            broker.mirrors.on_synced(number, write)
        return busy or bool(written)

    def tick(self, count: int = 20) -> None:
        for _ in range(count):
            for server in self._running():
                server.world.broker.mirrors.tick()
            self.run()

    def place(self) -> None:
        """Adjusts the members to what policies and operators want."""
        for _ in range(10):
            for server in self._running():
                assert server.world.broker.member_changes is not None
                server.world.broker.member_changes.look_at_all()
                server.world.broker.member_changes.tick()
            self.tick(5)

    def add_member(self, number: int, name: str) -> None:
        """Adds a member without any messages. Without a policy it is not synchronised automatically."""
        for server in self._running():
            mirror = server.world.broker.mirrors.mirrors.get(number)
            if mirror is not None and mirror.member.master is not None and mirror.member.view is not None:
                assert mirror.member.change_ring((*mirror.member.view.ring, name))
                server.world.broker.mirrors.touched[mirror] = None
        self.tick(3)

    def declare(
        self, name: str, *ring: str, in_sync: tuple[str, ...] | None = None, arguments: Table | None = None
    ) -> int:
        """Declares a queue with these members, the master first; returns its id."""
        there = ring if in_sync is None else in_sync
        view = View(1, 1, ring[0], ring, tuple((one, f"{one}.0") for one in there)) if ring else None
        home = ring[0] if ring else next(iter(self.servers))
        self._propose(c.DeclareQueue("/", name, node=home, view=view, arguments=arguments or {}))
        self.run()
        return self.servers[home].world.metadata.queues["/", name].id

    def publish(self, node: str, queue: str, count: int, kind: int = PERSISTENT) -> None:
        found = self.servers[node].world.queue(queue)
        found.enqueue([b"x"] * count, [b""] * count, kind, count, None)
        self.run()

    def copy(self, node: str, number: int) -> Mirror:
        return self.servers[node].world.broker.mirrors.mirrors[number]

    def kill(self, name: str) -> None:
        server = self.servers[name]
        server.node, server.prepared = None, False
        for other in self._running():
            other.world.broker.mirrors.on_peer_down(name)
        self.run()

    def restart(self, name: str) -> None:
        """Restarts a node at once, with nothing; frames in flight to it are lost."""
        server, others = self.servers[name], [one for one in self._running() if one.name != name]
        self.frames = deque(frame for frame in self.frames if name not in frame[:2])
        mirrors = server.world.broker.mirrors
        for other in others:
            other.world.broker.mirrors.on_peer_down(name)
            mirrors.on_peer_down(other.name)
        mirrors.mirrors.clear()
        mirrors.touched.clear()
        mirrors.ticking.clear()
        self.stores[name] = Store(server.world)
        for other in others:
            other.world.broker.mirrors.on_peer_up(name)
            mirrors.on_peer_up(other.name)
        mirrors.open(cast(MirrorStore, self.stores[name]), f"{name}-anew", 2)
