"""A world of Raft nodes: virtual time, a hostile network, disks that forget, crashes, and a checker.

    python -m simulation.raft --seed N [--nodes K] [--steps M] [--count C] [--paired] [--trace]

Everything follows from the seed. The nodes are the real machine (`leveret.raft`) over the real log
(`leveret.node.cluster.consensus_log`) on a `FaultyDisk`; the code that drives them is here, and as short as the real
node's. Time is counted in ticks of a node. Messages are delayed, dropped, duplicated and reordered; links are cut one
way or both; syncs take time and sometimes fail, disks fill up, the power fails in the middle of a write; nodes are
removed, wiped, and return under their old names. Then everything is healed, and the cluster must elect a leader, commit
a command and agree.

What must never happen is in `simulation.raft.checker`.
"""

from __future__ import annotations

import argparse
import heapq
import random
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from leveret.node.cluster.consensus_log import ConsensusLog, WriteBatch, WriteSnapshot, load_identity
from leveret.node.cluster.two_nodes import ReadOnlyDisk
from leveret.raft.core import Busy, NotLeader, Raft, Ready, Refused, Remains, Role
from leveret.raft.membership import AddLearner, BadChange, Change, Demote, Member, Membership, Promote, Remove, Update
from leveret.raft.message_codec import decode_message, encode_message
from leveret.raft.messages import Entry, Message, Snapshot, VoteResponse
from leveret.raft.options import Options
from simulation.core.disk import Crashed, FaultyDisk
from simulation.raft.checker import Checker, Violation

FOLDER = "raft"
STEPS = 20
# For a leader, a commit and agreement after everything is healed. Far more than it should ever take.
SETTLE_TICKS = 600
_STATE = struct.Struct(">QI")


# A node


class Machine:
    """A state machine: a checksum of all it has applied."""

    def __init__(self) -> None:
        self.applied = 0
        self.state = 0

    def apply(self, entry: Entry) -> None:
        self.applied = entry.index
        self.state = zlib.crc32(entry.data, zlib.crc32(bytes(entry.kind), self.state))

    def dump(self) -> bytes:
        return _STATE.pack(self.applied, self.state) * 5  # Long enough for several chunks.

    def restore(self, data: bytes) -> None:
        self.applied, self.state = _STATE.unpack_from(data)


class Node:
    """A place in the world with a name and a disk; the process there has an id."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.serial = 0
        self.id = ""
        self.life = 0  # Events of an earlier life are void.
        self.priority = 0
        self.raft: Raft | None = None
        self.job: WriteBatch | None = None
        self.snapshot_job: WriteSnapshot | None = None
        self.borrower: tuple[Node, int] | None = None  # The node that has this one's disk, and in which of its lives.
        self.wipe()

    def wipe(self) -> None:
        """Loses the disk; the next process is another member under the old name."""
        self.stop()
        if self.serial:
            self.world.lost.add(self.id)
        self.serial += 1
        self.id = f"{self.name}.{self.serial}"
        self.world.places[self.id] = self
        self.disk = FaultyDisk(self.world.rng, sector_bytes=64)
        self.founded = False

    @property
    def member(self) -> Member:
        return Member(self.id, self.name, f"{self.name}:1", self.priority)

    def start(self, found: bool = False) -> None:
        try:
            self.begin(found)
        except OSError as error:
            self.world.note("cannot start", self.id, error.strerror)
            self.raft = None
            self.lose_power()

    def begin(self, found: bool) -> None:
        world = self.world
        self.life += 1
        self.job = self.snapshot_job = None
        own_id = load_identity(self.disk, FOLDER, self.id)
        if own_id != self.id:
            raise Violation(f"{self.id} was started as {own_id}")
        self.log = ConsensusLog(self.disk, FOLDER, world.segment_bytes, world.snapshot_after_bytes)
        recovered = self.log.found(self.member) if found else self.log.recover()
        self.machine = Machine()
        if recovered.snapshot is not None:
            self.machine.restore(recovered.snapshot.data)
        self.raft = Raft(
            self.id,
            world.draw,
            world.options,
            hard_state=recovered.hard_state,
            snapshot=recovered.meta,
            entries=recovered.entries,
            commit=recovered.commit,
        )
        world.checker.on_started(self.id, recovered.meta, recovered.entries)
        self.term_led = 0
        self.waiting: dict[int, tuple[int, bytes]] = {}  # Term and data of proposals, by index.
        self.tick_after = world.rng.uniform(0.9, 1.1)
        world.note("start", self.id, recovered.hard_state, recovered.meta.index, recovered.last_index)
        world.after(world.rng.random(), self.on_tick, self.life)

    def stop(self) -> None:
        self.raft = None
        self.life += 1

    def crash(self) -> None:
        """Kills the process, perhaps in the middle of a write, and perhaps by a power failure."""
        if self.raft is None:
            return
        self.world.note("crash", self.id)
        self.stop()
        for job in (self.job, self.snapshot_job):
            if job is not None and self.world.rng.random() < 0.8:
                self.disk.crash_after = self.world.rng.randrange(8)
                try:
                    job.perform(self.disk)
                except (Crashed, OSError):
                    break
                finally:
                    self.disk.crash_after = None
        if self.world.rng.random() < 0.7:
            self.lose_power()

    def lose_power(self) -> None:
        self.disk.crash()

    def on_tick(self, life: int) -> None:
        if life == self.life and self.raft is not None:
            if self.world.plan.paired:
                self.raft.dismissable = frozenset(self.raft.membership.voter_ids)
            self.raft.tick()
            self.pump()
            self.world.after(self.tick_after, self.on_tick, life)

    def pump(self) -> None:
        """Does what Raft asks for, until a write has to be waited for."""
        while self.raft is not None and self.job is None and (ready := self.raft.ready()) is not None:
            self.world.checker.on_shown(self.id, ready)
            if self.raft.has_forgotten:
                raise Violation(f"{self.id} is told of entries that it never had on its disk")
            self.world.send(ready.early)
            if ready.must_sync:
                self.log.save(ready.hard_state, ready.entries, ready.commit, ready.snapshot)
                self.write(self.life, ready)
                return
            self.finish(ready)

    def write(self, life: int, ready: Ready) -> None:
        if life != self.life:
            return
        self.job = self.log.take()
        self.world.after(self.world.disk_delay(), self.on_written, life, ready)

    def on_written(self, life: int, ready: Ready) -> None:
        if life != self.life or self.job is None:
            return
        try:
            self.job.perform(self.disk)
        except OSError as error:
            outcome = self.log.on_failed(self.job, error)
            self.world.note("disk", self.id, error.strerror, outcome)
            if outcome == "stopped":
                self.job = None
                self.crash()
            else:
                self.world.after(2.0, self.write, life, ready)
            return
        self.log.on_done(self.job)
        self.job = None
        self.world.checker.on_written(self.id, ready.snapshot, ready.entries)
        self.finish(ready)
        self.clean()
        self.pump()

    def finish(self, ready: Ready) -> None:
        """Does everything of a Ready except its writing."""
        world, raft = self.world, self.raft
        assert raft is not None
        if ready.role is Role.LEADER and self.term_led < ready.term:
            self.term_led = ready.term
            world.note("leads", self.id, ready.term)
            world.checker.on_elected(self.id, ready.term)
        if ready.snapshot is not None:
            self.machine.restore(ready.snapshot.data)
            if self.machine.applied != ready.snapshot.meta.index:
                raise Violation(f"{self.id} got the state of {self.machine.applied} as {ready.snapshot.meta.index}")
            world.checker.on_state(self.id, self.machine.applied, self.machine.state)
        world.send(ready.messages)
        for chunk in ready.chunks:
            fill = self.log.fill(chunk, world.options.chunk_bytes)
            if fill is not None:
                fill.perform(self.disk)
                world.send([fill.chunk])
        for entry in ready.committed:
            self.apply(entry)
        raft.advance(ready)
        self.maybe_snapshot()

    def apply(self, entry: Entry) -> None:
        expected = self.machine.applied + 1
        self.machine.apply(entry)
        self.world.checker.on_applied(self.id, entry, expected, self.machine.state)
        term, data = self.waiting.pop(entry.index, (0, b""))
        if term == entry.term:
            self.world.checker.on_acknowledged(data, entry.index)

    # Snapshots

    def maybe_snapshot(self) -> None:
        world, raft = self.world, self.raft
        if raft is None or self.snapshot_job is not None or not self.log.snapshot_due(self.machine.applied):
            return
        meta = raft.snapshot_meta(self.machine.applied) if self.machine.applied else None
        if meta is None:
            return
        self.snapshot_job = self.log.put_snapshot(Snapshot(meta, self.machine.dump()))
        if self.snapshot_job is not None:
            world.after(world.disk_delay() * 4, self.on_snapshot, self.life)

    def on_snapshot(self, life: int) -> None:
        if life != self.life or self.raft is None or self.snapshot_job is None:
            return
        job, self.snapshot_job = self.snapshot_job, None
        try:
            job.perform(self.disk)
        except OSError as error:
            if self.log.on_snapshot_failed(job, error) == "stopped":
                self.crash()
            return
        self.log.on_snapshot_done(job)
        self.raft.compact(job.snapshot.meta, self.world.rng.choice((0, 0, 3, 10)))
        self.clean()

    def clean(self) -> None:
        assert self.raft is not None
        cleanup = self.log.cleanup(self.raft.snapshots_in_use)
        if cleanup is not None:
            cleanup.perform(self.disk)
            self.log.on_cleaned(cleanup)


# The world


@dataclass(frozen=True)
class Plan:
    """A seed and the amount of work."""

    seed: int
    nodes: int | None = None
    steps: int = STEPS
    paired: bool = False  # Of two voters, one continues alone where it may.

    @property
    def command(self) -> str:
        nodes = f" --nodes {self.nodes}" if self.nodes is not None else ""
        paired = " --paired" if self.paired else ""
        return f"python -m simulation.raft --seed {self.seed}{nodes} --steps {self.steps}{paired} --trace"


class World:
    def __init__(self, plan: Plan, trace_max: int = 200) -> None:
        self.plan = plan
        self.rng = rng = random.Random(plan.seed)
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.event_count = 0
        self.trace: deque[tuple[Any, ...]] = deque(maxlen=trace_max)
        self.checker = Checker()
        self.options = Options(
            election_ticks=6,
            append_entries_max=rng.choice((1, 2, 8, 256)),
            append_bytes_max=rng.choice((8, 64, 1 << 20)),
            inflight_max=rng.choice((1, 4, 32)),
            inflight_bytes_max=rng.choice((16, 1 << 20)),
            uncommitted_max=rng.choice((4, 1000)),
            committed_max=rng.choice((1, 1000)),
            chunk_bytes=rng.choice((16, 1000)),
            snapshot_ticks=rng.choice((5, 20)),
        )
        self.segment_bytes = rng.choice((200, 2000))
        self.snapshot_after_bytes = rng.choice((400, 1500, 10_000))
        self.wire = rng.random() < 0.3  # Slower: messages as bytes.
        self.delay = rng.choice((0.02, 0.2, 1.0))
        self.tail = rng.choice((0.0, 0.02, 0.1))  # How many messages come much too late.
        self.loss = self.doubling = 0.0
        self.in_step = rng.random() < 0.4  # All timeouts are the same, so that elections collide.
        self.dying = rng.choice((0.0, 0.0, 0.5))  # How many die after they have voted.
        self.disk_ticks = rng.choice((0.01, 0.1, 1.0))
        self.calm = False
        self.cut: set[tuple[str, str]] = set()
        self.places: dict[str, Node] = {}
        self.proposals = 0
        self.lost: set[str] = set()  # Ids whose disks are lost.
        count = plan.nodes or rng.choice((2, 3, 3, 3, 4, 5))
        self.nodes = [Node(self, f"n{number}") for number in range(1, count + 1)]
        for node in self.nodes:
            node.priority = rng.choice((0, 0, 0, 1, 2))

    # Time

    def after(self, delay: float, what: Callable[..., None], *args: Any) -> None:
        self.event_count += 1
        heapq.heappush(self.events, (self.now + delay, self.event_count, what, args))

    def run(self, until: float) -> None:
        events = self.events
        while events and events[0][0] <= until:
            self.now, _, what, args = heapq.heappop(events)
            what(*args)
        self.now = until

    def disk_delay(self) -> float:
        return self.rng.expovariate(1 / self.disk_ticks)

    def note(self, *what: Any) -> None:
        self.trace.append((self.now, *what))

    def draw(self, limit: int) -> int:
        return 0 if self.in_step and not self.calm else self.rng.randrange(limit)

    # The network

    def send(self, messages: Iterable[Message]) -> None:
        rng = self.rng
        for message in messages:
            self.checker.on_sent(message)
            if self.dying and isinstance(message, VoteResponse) and not self.calm and rng.random() < self.dying:
                self.after(0.01, self.bounce, self.places[message.sender])
            if rng.random() < self.loss:
                continue
            for _ in range(2 if rng.random() < self.doubling else 1):
                late = rng.random() < self.tail
                delay = rng.uniform(0, 40) if late else rng.expovariate(1 / self.delay)
                self.after(delay, self.deliver, encode_message(message) if self.wire else message)

    def deliver(self, sent: Message | bytes) -> None:
        message = decode_message(sent) if isinstance(sent, bytes) else sent
        sender, node = self.places[message.sender], self.places[message.to]
        if node.raft is None or (sender.name, node.name) in self.cut:
            return
        self.trace.append((self.now, message))
        node.raft.step(message)
        node.pump()

    # Clients

    def leaders(self) -> list[Node]:
        """Returns all nodes that believe they are the leader: a client cannot know better."""
        return [node for node in self.nodes if node.raft is not None and node.raft.is_leader]

    def on_client(self) -> None:
        if self.calm:
            return
        leaders = self.leaders()
        if leaders:
            for node in leaders:
                for _ in range(self.rng.choice((1, 1, 5))):
                    self.propose(node)
                node.pump()
        self.after(self.rng.expovariate(0.4), self.on_client)

    def propose(self, node: Node) -> bytes | None:
        assert node.raft is not None
        self.proposals += 1
        data = b"command %d" % self.proposals
        try:
            proposed = node.raft.propose(data)
        except Refused:
            return None
        node.waiting[proposed.index] = (proposed.term, data)
        return data

    # Faults

    def step(self) -> None:
        """Does one random thing to the cluster."""
        faults: tuple[Callable[[], None], ...] = (
            self.crash_one,
            self.crash_one,
            self.crash_leader,
            self.rush,
            self.rush,
            self.restart_one,
            self.restart_one,
            self.part,
            self.isolate_leader,
            self.isolate_leader,
            self.cut_one_way,
            self.heal,
            self.heal,
            self.make_noise,
            self.transfer,
            self.change_members,
            self.change_members,
            self.change_members,
            self.fail_disk,
            self.crash_all,
        )
        if self.plan.paired:
            faults += (self.outlive, self.outlive, self.outlive, self.outlive, self.dismiss, self.dismiss, self.rest)
        self.rng.choice(faults)()

    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.raft is not None]

    def crash_one(self) -> None:
        running = self.running()
        if running:
            self.crash_node(self.rng.choice(running))

    def crash_leader(self) -> None:
        for node in self.leaders():
            self.propose(node)
            node.pump()
            self.crash_node(node)

    def crash_node(self, node: Node) -> None:
        node.crash()
        if self.rng.random() < 0.3:  # The others notice that its connections are closed.
            for other in self.running():
                assert other.raft is not None
                other.raft.on_link_lost(node.id)
        if self.rng.random() < 0.6:
            self.after(self.rng.expovariate(0.2), self.restart, node)

    def rush(self) -> None:
        """The leader dies, and two nodes stand for election at the same moment."""
        for node in self.leaders():
            self.bounce(node)
        for node in self.running():
            assert node.raft is not None
            node.raft.on_link_lost(node.raft.leader or "")  # So that nobody refuses a vote because of the dead leader.
        self.after(0.5, self.rush_now)

    def rush_now(self) -> None:
        running = self.running()
        for node in self.rng.sample(running, min(2, len(running))):
            assert node.raft is not None
            if not node.raft.is_leader:
                node.raft.campaign()
                node.pump()

    def bounce(self, node: Node) -> None:
        node.crash()
        self.after(0.1, self.restart, node)

    def crash_all(self) -> None:
        for node in self.running():
            node.crash()
            self.after(self.rng.expovariate(0.3), self.restart, node)

    def restart(self, node: Node) -> None:
        if node.raft is None and node.founded:
            if node.borrower is not None and self.is_borrowed(*node.borrower):
                self.after(0.5, self.restart, node)
                return
            node.borrower = None
            node.start()

    # Two voters

    def is_borrowed(self, by: Node, life: int) -> bool:
        raft = by.raft
        if by.life != life or raft is None:
            return False
        return raft.is_succeeding or (raft.is_leader and not raft.log.is_membership_committed)

    def pairs(self) -> list[tuple[Node, Raft, Node]]:
        """Returns a running voter and the place of the only other one, if that is still the same."""
        found = []
        for node in self.running():
            assert node.raft is not None
            others = [voter for voter in node.raft.membership.voter_ids if voter != node.id]
            if len(others) == 1 and self.places[others[0]].id == others[0]:
                found.append((node, node.raft, self.places[others[0]]))
        return found

    def outlive(self) -> None:
        """One of two voters is dead, and the other one has its disk."""
        for node, raft, dead in self.pairs():
            if dead.raft is not None or dead.borrower is not None:
                continue
            recovered = ConsensusLog(ReadOnlyDisk(dead.disk), FOLDER).recover()
            try:
                raft.outlive(dead.id, Remains(recovered.hard_state, recovered.meta, recovered.entries))
            except Refused as error:
                self.note("may not outlive", node.id, dead.id, error)
                continue
            self.note("outlives", node.id, dead.id)
            dead.borrower = (node, node.life)
            node.pump()

    def dismiss(self) -> None:
        for node, raft, other in self.pairs():
            self.note("dismisses", node.id, other.id, raft.dismiss(other.id))
            node.pump()

    def rest(self) -> None:
        """One of two voters is about to stop."""
        for node, raft, other in self.pairs():
            if raft.is_leader:
                self.change(node, Demote(self.rng.choice((node.id, other.id))))

    def restart_one(self) -> None:
        stopped = [node for node in self.nodes if node.raft is None and node.founded]
        if stopped:
            self.restart(self.rng.choice(stopped))

    def part(self) -> None:
        names = [node.name for node in self.nodes]
        self.rng.shuffle(names)
        one = names[: self.rng.randint(1, max(1, len(names) - 1))]
        self.cut = {(a, b) for a in names for b in names if (a in one) != (b in one)}
        self.note("cut", *sorted(self.cut))

    def isolate_leader(self) -> None:
        for leader in self.leaders():
            self.cut |= {pair for node in self.nodes for pair in ((leader.name, node.name), (node.name, leader.name))}
            self.propose(leader)  # Another leader will replace this proposal.
            leader.pump()
        self.note("cut", *sorted(self.cut))

    def cut_one_way(self) -> None:
        one, other = (self.rng.choice(self.nodes).name for _ in range(2))
        self.cut.add((one, other))
        self.note("cut", *sorted(self.cut))

    def heal(self) -> None:
        self.cut.clear()
        self.loss = self.doubling = 0.0
        self.note("heal")

    def make_noise(self) -> None:
        self.loss, self.doubling = self.rng.choice((0.0, 0.05, 0.3)), self.rng.choice((0.0, 0.1, 0.3))
        self.note("noise", self.loss, self.doubling)

    def fail_disk(self) -> None:
        node = self.rng.choice(self.nodes)
        if self.rng.random() < 0.5:
            node.disk.fail_sync_after = self.rng.randrange(3)
        else:
            node.disk.capacity_bytes = (1 << 40) - node.disk.free_bytes() + self.rng.randrange(200)
            self.after(self.rng.uniform(1, 10), self.give_space, node)

    def give_space(self, node: Node) -> None:
        node.disk.capacity_bytes = 1 << 40

    def transfer(self) -> None:
        for node in self.leaders():
            assert node.raft is not None
            others = [voter for voter in node.raft.membership.voter_ids if voter != node.id]
            if others:
                node.raft.transfer(self.rng.choice(others))
                node.pump()

    # Membership

    def change_members(self) -> None:
        for node in self.leaders():
            change = self.next_change(node)
            if change is not None:
                self.change(node, change)
        if self.rng.random() < 0.4:
            self.lose_disk()

    def change(self, node: Node, change: Change) -> None:
        assert node.raft is not None
        try:
            node.raft.change(change)
        except (Busy, NotLeader, BadChange) as error:
            self.note("refused", node.id, change, error)
            return
        self.note("change", node.id, change)
        node.pump()

    def next_change(self, node: Node) -> Change | None:
        """Returns the next change of members: first of all, removing those whose disks are lost."""
        assert node.raft is not None
        rng, membership = self.rng, node.raft.membership
        for lost in sorted(self.lost & set(membership.ids)):
            return Remove(lost)
        if not node.raft.log.is_membership_committed:
            return Promote(membership.learners[0].id) if membership.learners else None  # Must be refused.
        if membership.learners and rng.random() < 0.8:
            return Promote(rng.choice(membership.learners).id)
        outside = [other for other in self.nodes if other.id not in membership.ids]
        if outside and rng.random() < 0.9:
            return self.join(rng.choice(outside))
        if rng.random() < 0.2:
            return Update(rng.choice(membership.members)._replace(priority=rng.randrange(4)))
        return Remove(rng.choice(membership.voter_ids)) if len(membership.voters) > 1 else None

    def join(self, node: Node) -> Change:
        """A node joins, or returns after it was removed: mostly with an empty disk, and then as another member."""
        if node.founded and not self.is_known(node.id) and self.rng.random() < 0.8:
            node.crash()
            node.wipe()
        node.founded = True
        if node.raft is None:
            node.start()
        return AddLearner(node.member)

    def is_known(self, member_id: str) -> bool:
        """Returns whether any node might still count that member."""
        founded = [node for node in self.nodes if node.founded]
        return any(node.raft is None for node in founded) or any(
            member_id in membership.ids for membership in self.memberships()
        )

    def memberships(self) -> list[Membership]:
        """Returns all memberships in the logs of running nodes."""
        rafts = [node.raft for node in self.nodes if node.raft is not None]
        return [placed.membership for raft in rafts for placed in raft.log.memberships]

    def lose_disk(self) -> None:
        """Loses one voter's disk. If more were lost, nothing could be promised."""
        if any(node.raft is None for node in self.nodes):
            return
        if any(len(one.voters) < 3 or self.lost & set(one.ids) for one in self.memberships()):
            return
        node = self.rng.choice(self.nodes)
        self.note("lost", node.id)
        node.wipe()

    # The run

    def play(self) -> None:
        first = self.nodes[0]
        first.founded = True
        first.start(found=True)
        self.after(3, self.on_client)
        self.run(15)
        while len(self.members()) < len(self.nodes) and self.now < 200:  # Most faults need several nodes.
            for node in self.leaders():
                change = self.next_change(node)
                if isinstance(change, AddLearner | Promote):
                    self.change(node, change)
            self.run(self.now + 5)
        for _ in range(self.plan.steps):
            self.run(self.now + self.rng.expovariate(1 / self.rng.choice((2, 8, 15))))
            self.step()
        self.settle()

    def members(self) -> tuple[str, ...]:
        leaders = self.leaders()
        return leaders[0].raft.membership.voter_ids if leaders and leaders[0].raft is not None else ()

    def settle(self) -> None:
        """Heals everything; then the cluster must work."""
        self.heal()
        self.note("settle")
        self.calm, self.tail, self.delay, self.disk_ticks = True, 0.0, min(self.delay, 0.1), min(self.disk_ticks, 0.1)
        for node in self.nodes:
            node.disk.fail_sync_after = None
            self.give_space(node)
            self.restart(node)
        end = self.now + SETTLE_TICKS
        data: bytes | None = None
        while self.now < end:
            self.run(self.now + 2)
            for node in self.leaders():
                assert node.raft is not None
                if self.lost & set(node.raft.membership.ids):
                    self.change(node, Remove(sorted(self.lost & set(node.raft.membership.ids))[0]))
                elif data is None or data not in self.checker.acknowledged:
                    data = self.propose(node)
                    node.pump()
                elif self.is_settled(node.raft):
                    self.checker.at_the_end(node.raft.commit)
                    return
        raise Violation(f"after {SETTLE_TICKS} calm ticks there is no agreement: {self.standing()}")

    def is_settled(self, leader: Raft) -> bool:
        rafts = [self.places[member].raft for member in leader.membership.ids]
        return all(raft is not None and raft.applied == leader.last_index for raft in rafts) and (
            leader.applied_by(leader.membership.ids) == leader.last_index
        )

    def standing(self) -> str:
        lines = []
        for node in self.nodes:
            raft = node.raft
            if raft is None:
                lines.append(f"{node.id} down")
                continue
            numbers = f"term {raft.term} commit {raft.commit} last {raft.last_index} applied {raft.applied}"
            lines.append(f"{node.id} {raft.role.name} {numbers} voters {raft.membership.voter_ids}")
        return "\n  ".join(["", *lines])


def run(plan: Plan, trace_max: int = 60) -> World:
    """Plays a plan. Raises `Violation`, which says how to replay it."""
    world = World(plan, trace_max)
    try:
        world.play()
    except Exception as error:
        trace = "\n".join(f"  {line[0]:8.2f}  " + " ".join(map(str, line[1:])) for line in world.trace)
        raise Violation(f"{error!r}\n{world.standing()}\nlast events:\n{trace}\nreplay: {plan.command}") from error
    return world


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.raft", description="Raft in a hostile world.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--nodes", type=int, help="default: by the seed")
    parser.add_argument("--steps", type=int, default=STEPS, help="faults (default: %(default)s)")
    parser.add_argument("--count", type=int, default=1, help="seeds, from --seed on")
    parser.add_argument("--paired", action="store_true", help="of two voters, one goes on alone where it may")
    parser.add_argument("--trace", action="store_true", help="show all events of a failure, not only the last ones")
    args = parser.parse_args()
    for seed in range(args.seed, args.seed + args.count):
        plan = Plan(seed, args.nodes, args.steps, args.paired)
        try:
            world = run(plan, 1_000_000 if args.trace else 60)
        except Violation as violation:
            print(f"seed {seed}: {violation}")
            return 1
        checker = world.checker
        numbers = f"{len(checker.leaders)} leaders, {len(checker.committed)} entries, {world.event_count} events"
        print(f"seed {seed}: {numbers}, {world.now:.0f} ticks")
    return 0
