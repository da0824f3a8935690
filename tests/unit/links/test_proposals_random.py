"""Proposals over real Rafts, with links that break, nodes that crash and logs that are replaced by snapshots.

Each command is applied at most once, in the same order everywhere; exactly once if its origin was told so, or if
its origin lived until the end and was not told otherwise. While nothing goes wrong, all have applied a command when its
origin is told.
"""

from __future__ import annotations

import json
import zlib
from collections import deque
from random import Random

import pytest

from leveret.links.proposals import Proposals
from leveret.metadata.model import commands as c
from leveret.metadata.store import Applied
from leveret.raft import core
from leveret.raft.membership import Member, Membership
from leveret.raft.messages import Entry, HardState, Kind, Message, Snapshot, SnapshotMeta
from leveret.raft.options import Options

NAMES = "abc"
OPTIONS = Options(election_ticks=6, chunk_bytes=4096, uncommitted_max=20)
PATIENCE = 60
MEMBERSHIP = Membership(tuple(Member(name, name, f"{name}:1") for name in NAMES))


class Node:
    """A Raft with its disk, a state machine that is a list, and the proposals of one run after the other."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.hard_state = HardState()
        self.snapshot = Snapshot(SnapshotMeta(0, 0, MEMBERSHIP), b"[]")
        self.entries: list[Entry] = []
        self.commit = 0
        self.life = 0
        self.start()

    def start(self) -> None:
        self.life += 1
        self.raft = core.Raft(
            self.name,
            self.world.random.randrange,
            OPTIONS,
            hard_state=self.hard_state,
            snapshot=self.snapshot.meta,
            entries=self.entries,
            commit=self.commit,
        )
        origin = f"{self.name}{self.life:07}".encode()
        self.proposals = Proposals(origin, self.raft, self.send, PATIENCE)
        self.state: list[str] = json.loads(self.snapshot.data)
        self.index = self.snapshot.meta.index
        self.leadership: tuple[str | None, int] = (None, 0)

    def send(self, member: str, kind: int, payload: bytes) -> bool:
        return self.world.send(self.name, member, (kind, payload))

    def want(self, name: str, patient: bool) -> None:
        world, life = self.world, self.life

        def then(applied: Applied) -> None:
            assert self.life == life and name not in world.answers
            world.answers[name] = applied.refused is None
            if applied.refused is None:
                assert name in self.state
                if world.calm_since is not None and world.proposed_at[name] >= world.calm_since:
                    assert all(name in node.state for node in world.nodes.values()), "somebody does not know yet"

        self.proposals.propose(c.SetGlobalParameter(name, 1), then, patient)

    def apply(self, command: c.Command) -> Applied:
        assert isinstance(command, c.SetGlobalParameter)
        self.state.append(command.name)
        return Applied(self.index, None, ())

    def drive(self) -> None:
        while True:
            leadership = (self.raft.leader, self.raft.term)
            if leadership != self.leadership:
                self.leadership = leadership
                self.world.calm_since = None
                self.proposals.on_leader()
            ready = self.raft.ready()
            if ready is None:
                break
            self.finish(ready)
        self.proposals.settle([one for one in NAMES if (self.name, one) in self.world.links])

    def finish(self, ready: core.Ready) -> None:
        for message in ready.early:
            self.world.send(self.name, message.to, message)
        if ready.must_sync:
            self.commit = ready.commit
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.snapshot is not None:
            self.snapshot, self.entries = ready.snapshot, []
            self.state, self.index = json.loads(ready.snapshot.data), ready.snapshot.meta.index
            self.proposals.on_snapshot(ready.snapshot.meta.term)
        if ready.entries:
            first = ready.entries[0].index
            self.entries = [entry for entry in self.entries if entry.index < first] + ready.entries
        for chunk in ready.chunks:
            data = self.snapshot.data
            chunk.total, chunk.checksum = len(data), zlib.crc32(data)
            chunk.data = data[chunk.offset : chunk.offset + OPTIONS.chunk_bytes]
        for message in (*ready.messages, *ready.chunks):
            self.world.send(self.name, message.to, message)
        for entry in ready.committed:
            if entry.index > self.index:
                self.index = entry.index
                self.world.index_max = max(self.world.index_max, entry.index)
                if entry.kind is Kind.COMMAND:
                    self.proposals.on_entry(entry.index, entry.term, entry.data, self.apply)
                else:
                    self.proposals.on_term(entry.term)
        self.raft.advance(ready)

    def compact(self) -> None:
        if self.index != self.raft.applied or self.raft.snapshots_in_use:
            return
        meta = self.raft.snapshot_meta(self.index)
        if meta is not None and self.raft.compact(meta):
            self.snapshot = Snapshot(meta, json.dumps(self.state).encode())
            self.entries = [entry for entry in self.entries if entry.index > meta.index]


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.links: dict[tuple[str, str], deque[tuple[int, bytes] | Message]] = {}
        self.answers: dict[str, bool] = {}
        self.proposed_at: dict[str, int] = {}
        self.patient: set[str] = set()
        self.origin: dict[str, tuple[str, int]] = {}
        self.calm_since: int | None = None  # Nothing went wrong since that step.
        self.now = 0
        self.index_max = 0
        self.nodes: dict[str, Node] = {}
        for name in NAMES:
            self.nodes[name] = Node(self, name)
        for first, second in (("a", "b"), ("a", "c"), ("b", "c")):
            self.join(first, second)

    def send(self, sender: str, receiver: str, frame: tuple[int, bytes] | Message) -> bool:
        link = self.links.get((sender, receiver))
        if link is None:
            return False
        link.append(frame)
        return True

    def join(self, first: str, second: str) -> None:
        for sender, receiver in ((first, second), (second, first)):
            self.links[sender, receiver] = deque()
        for sender, receiver in ((first, second), (second, first)):
            self.nodes[sender].proposals.on_link_up(receiver)

    def cut(self, first: str, second: str) -> None:
        self.calm_since = None
        for sender, receiver in ((first, second), (second, first)):
            if self.links.pop((sender, receiver), None) is not None:
                self.nodes[sender].raft.on_link_lost(receiver)

    def deliver(self, sender: str, receiver: str, count: int) -> None:
        node = self.nodes[receiver]
        for _ in range(count):
            link = self.links.get((sender, receiver))
            if not link:
                return
            frame = link.popleft()
            if isinstance(frame, tuple):
                node.proposals.on_frame(sender, *frame)
            else:
                node.raft.step(frame)
            node.drive()

    def step(self, trouble: bool) -> None:
        random = self.random
        self.now += 1
        if trouble:
            self.calm_since = None
        leaders = {node.raft.leader for node in self.nodes.values()}
        if self.calm_since is None and not trouble and len(self.links) == 6 and len(leaders) == 1:
            # A node that is still far behind may be so for longer than anybody is patient: then a command that was
            # applied at its origin is answered without that node.
            if all(node.index >= self.index_max for node in self.nodes.values()):
                self.calm_since = self.now
        for sender, receiver in list(self.links):
            self.deliver(sender, receiver, random.choice((0, 1, 3, 100)) if trouble else 100)
        for node in self.nodes.values():
            if random.random() < 0.7 or not trouble:
                node.raft.tick()
                node.proposals.tick()
                node.drive()
        if trouble:
            self.make_trouble()

    def make_trouble(self) -> None:
        random = self.random
        first, second = random.sample(NAMES, 2)
        if random.random() < 0.06 and (first, second) in self.links:
            self.cut(first, second)
        if random.random() < 0.3 and (first, second) not in self.links:
            self.join(first, second)
        if random.random() < 0.02:
            for other in NAMES:
                if other != first:
                    self.cut(first, other)
            self.nodes[first].start()
        if random.random() < 0.05:
            self.nodes[second].compact()

    def want(self, count: int) -> None:
        for _ in range(count):
            name = f"c{len(self.proposed_at)}"
            where = self.random.choice(NAMES)
            patient = self.random.random() < 0.1
            if patient:
                self.patient.add(name)
            self.proposed_at[name] = self.now
            self.origin[name] = (where, self.nodes[where].life)
            self.nodes[where].want(name, patient)
            self.nodes[where].drive()


@pytest.mark.parametrize("seed", range(20))
def test_each_command_once(seed: int) -> None:
    world = World(seed)
    for at in range(250):
        world.step(trouble=at % 120 > 40)
        world.want(world.random.choice((0, 0, 1, 2, 12)))
    for first, second in (("a", "b"), ("a", "c"), ("b", "c")):
        if (first, second) not in world.links:
            world.join(first, second)
    for _ in range(PATIENCE + 100):
        world.step(trouble=False)
    states = [node.state for node in world.nodes.values()]
    assert states[0] == states[1] == states[2]
    counts = {name: states[0].count(name) for name in world.proposed_at}
    assert sum(counts.values()) == len(states[0])
    for name, count in counts.items():
        where, life = world.origin[name]
        if name not in world.patient:
            assert count <= 1, f"{name} was applied twice"
        if world.answers.get(name):
            assert count >= 1
        if world.nodes[where].life == life:
            assert name in world.answers, f"nobody answered {name}"
    assert sum(world.answers.values()) > 100
    assert not any(node.proposals.waiting for node in world.nodes.values())


def test_while_all_is_well_nothing_is_refused_and_all_know_when_the_answer_comes() -> None:
    world = World(1)
    for _ in range(30):
        world.step(trouble=False)
    assert any(node.raft.is_leader for node in world.nodes.values())
    world.calm_since = world.now
    for _ in range(50):
        world.want(3)
        world.step(trouble=False)
    for _ in range(10):
        world.step(trouble=False)
    assert len(world.answers) == 150 and all(world.answers.values())
    assert world.calm_since is not None


def test_the_harness_bites() -> None:
    """A leader that remembers nothing takes what is sent twice twice."""
    twice = 0
    for seed in range(20):
        world = World(seed)
        for at in range(300):
            world.step(trouble=at % 150 > 50)
            for node in world.nodes.values():
                node.proposals.taken.clear()
            world.want(2)
        for node in world.nodes.values():
            twice += len(node.state) - len(set(node.state))
        if twice:
            return
    raise AssertionError("nothing was taken twice")
