"""A world of one mirrored queue: virtual time, a hostile network, disks that forget, crashes, and a checker.

    python -m simulation.ring --seed N [--count C] [--mode safe|lossy|async] [--trace]

Everything follows from the seed. The members are the real machine (`leveret.replication`); the code that drives them is
here. Consensus is a stub: it commits views in order, by compare-and-set, after a delay, for nodes with a majority, and
sometimes loses proposals. A disk keeps a prefix of what was written to it and at least what was synced; it may be
wiped, damaged (then its node notices, and takes another disk id), full, or slow, and its sync may fail. Links break, at
one end sooner than at the other; what was in flight is lost. Publishers publish unconfirmed messages again when their
master is lost. Then everything is healed, and all members must be in sync, hold the same, and confirm again.

What must never happen is in `simulation.ring.checker`.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from leveret.metadata.model.view import View, misfit
from leveret.replication.frame_codec import Packer, Unpacker
from leveret.replication.member import Member
from leveret.replication.ring_frames import (
    Apply,
    Confirmed,
    Effect,
    Fill,
    Frame,
    HandOverDue,
    Left,
    Options,
    ProposeView,
    Read,
    Request,
    Reset,
    Restart,
    Send,
    Started,
    Stopped,
    Truncate,
    Write,
)
from leveret.storage.format.queue_block import PERSISTENT, Block, Run
from simulation.ring.checker import Checker, Violation
from simulation.ring.faults import FAULTS, Faults
from simulation.ring.parts import Front, Link, Node, Publisher, replay

GROUP: Final = 7
TRACE_MAX: Final = 60


class Plan(NamedTuple):
    seed: int
    mode: str = "safe"  # Or "lossy": promotions are forced; or "async".
    time: float = 90.0
    nodes: int = 0  # 0: as the seed says.
    faults: tuple[str, ...] = ()
    options: Options | None = None


class World:
    def __init__(self, plan: Plan) -> None:
        rng = self.rng = random.Random(plan.seed * 1_000_003 + len(plan.mode))
        self.plan = plan
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.serial = 0
        self.trace: deque[tuple[Any, ...]] = deque(maxlen=TRACE_MAX)
        self.count: dict[str, int] = {}
        self.checker = Checker()
        self.calm = False
        self.net = rng.choice((0.02, 0.1, 0.4))
        self.fsync = rng.choice((0.02, 0.2, 0.8))
        self.meta = rng.choice((0.05, 0.5, 2.0))
        self.pace = rng.choice((0.1, 0.3, 1.0))
        self.every = rng.choice((1.0, 4.0, 12.0))
        self.kill = rng.choice((0, 0, 0.4))
        self.lazy = rng.random() < 0.7  # Ticks only for those who want them.
        self.coded = rng.random() < 0.15  # Frames are encoded and decoded.
        self.options = plan.options or self.roll_options()
        picked = rng.sample(FAULTS, rng.randint(4, len(FAULTS)))
        faults = [*(plan.faults or picked), "heal", "restart", "restart", "heal"]
        self.faults = Faults(self, faults + ["force", "wipe", "damage"] * (plan.mode == "lossy"))
        count = plan.nodes or rng.choice((2, 3, 3, 3, 4, 5))
        self.nodes = {f"n{at}": Node(f"n{at}") for at in range(count)}
        names = tuple(self.nodes)
        ring = names[: max(2, count - rng.choice((0, 0, 1)))]
        in_sync = ring if rng.random() < 0.4 else ring[:1]
        self.view = View(1, 1, ring[0], ring, tuple((name, f"{name}.0") for name in in_sync))
        self.views = [self.view]
        self.blocked: set[tuple[str, str]] = set()
        self.cut_off: set[str] = set()
        self.stalled: set[str] = set()
        self.links: dict[tuple[str, str], Link] = {}
        self.flying = 0
        self.kill_next = False
        self.publishers = {"p": Publisher(), "q": Publisher()}
        for name in names:
            self.start(name, born=True)
            self.at(rng.random(), self.tick, name)
        self.at(1, self.faults.operate)
        self.at(30 if plan.seed % 4 == 3 else 1, self.publish)  # A group may be at rest before its first message.
        self.at(1, self.consume)

    def roll_options(self) -> Options:
        rng = self.rng
        return Options(
            star=rng.random() < 0.25,
            asynchronous=self.plan.mode == "async",
            incremental=rng.random() < 0.8,
            promote_always=self.plan.mode == "lossy" and rng.random() < 0.4,
            orphaned=8,
            filling=rng.random() < 0.9,
            fill_bytes_per_tick=rng.choice((0, 0, 300)),
            slow=8,
            unlinked=rng.choice((1, 3)),
            own_slow=6,
            patience=6,
            window_bytes=rng.choice((1_000, 4_000, 1 << 20)),
            unconfirmed_bytes_max=rng.choice((2_000, 1 << 20)),
            retain_bytes=rng.choice((0, 2_000, 10_000)),
            frame_bytes=rng.choice((200, 1 << 20)),
            frame_blocks=rng.choice((1, 4, 64)),
            piece_bytes=rng.choice((1, 20, 100)),
        )

    # -- time ------------------------------------------------------------------------

    def at(self, after: float, call: Callable[..., None], *arguments: Any) -> None:
        self.serial += 1
        heapq.heappush(self.events, (self.now + after, self.serial, call, arguments))

    def run(self, until: float) -> None:
        events = self.events
        while events and events[0][0] <= until:
            self.now, _, call, arguments = heapq.heappop(events)
            call(*arguments)
        self.now = until

    def wait(self, mean: float) -> float:
        return self.rng.expovariate(1 / mean)

    def note(self, *what: Any) -> None:
        self.trace.append((round(self.now, 2), *what))

    def tally(self, what: str) -> None:
        self.count[what] = self.count.get(what, 0) + 1

    # -- nodes -----------------------------------------------------------------------

    def start(self, name: str, born: bool = False) -> None:
        node = self.nodes[name]
        if node.alive:
            return
        node.alive, node.life, node.syncing, node.front = True, node.life + 1, False, None
        node.generation, node.version = node.generation + 1, 0
        found, node.stored = replay(node.writes)
        node.base_id = len(node.writes)
        stored = node.stored
        node.member = Member(GROUP, name, node.disk, node.generation, stored.lost, self.options, found, born)
        node.sides = {}
        self.checker.applied[name] = found.base
        self.note("start", name, node.disk, found.base, node.member.tail.end, found.complete)
        self.at(self.wait(self.meta), self.barrier, name, node.life)

    def crash(self, name: str) -> None:
        node = self.nodes[name]
        if not node.alive:
            return
        node.alive, node.member, node.front = False, None, None
        self.tally("crashes")
        self.note("crash", name)
        keep = self.rng.randint(node.synced, len(node.writes)) if self.rng.random() < 0.5 else node.synced
        del node.writes[keep:]
        self.checker.on_synced(name, [write.change for write in node.writes[node.synced :]])
        node.synced = len(node.writes)
        for link in list(self.links.values()):
            if name in link.ends:
                self.break_link(link)

    def bounce(self, name: str) -> None:
        if self.nodes[name].alive:
            self.crash(name)
            self.at(self.wait(3), self.start, name)

    def damage(self, name: str, keep: int) -> None:
        """Wipes the disk (keep: 0), or makes what it had synced unreadable from some point on. The node notices, and
        takes another disk id."""
        self.crash(name)
        node = self.nodes[name]
        del node.writes[keep:]
        node.synced = len(node.writes)
        node.disk_number += 1
        self.checker.on_disk_replaced(name, [write.change for write in node.writes])
        self.at(self.wait(3), self.start, name)

    def barrier(self, name: str, life: int) -> None:
        """The first view of a process comes through the consensus."""
        node = self.nodes[name]
        if node.alive and node.life == life:
            if self.reaches(name) and name not in self.stalled:
                self.learn(name, life, self.views[-1])
            else:
                self.at(1, self.barrier, name, life)

    def reaches(self, name: str) -> bool:
        if name in self.cut_off:
            return False
        reached = sum(
            node.alive and (name == other or not {(name, other), (other, name)} & self.blocked)
            for other, node in self.nodes.items()
        )
        return reached * 2 > len(self.nodes)

    def learn(self, name: str, life: int, view: View) -> None:
        node = self.nodes[name]
        if node.alive and node.life == life and node.member is not None and name not in self.stalled:
            if node.member.view is None and view.version < node.version:
                return  # The first view of a new member is no older than what the previous one has seen.
            node.version = max(node.version, view.version)
            node.member.on_view(view)
            self.act(node)

    def tick(self, name: str) -> None:
        node = self.nodes[name]
        self.at(self.rng.uniform(0.9, 1.1), self.tick, name)
        member = node.member
        if member is None or name in self.stalled:
            return
        member.on_majority(self.reaches(name))
        if member.view is not None and self.rng.random() < 0.2 and self.reaches(name):
            self.at(self.wait(self.meta), self.learn, name, node.life, self.view)
        if not self.lazy or member.wants_tick:
            member.on_tick()
        self.act(node)
        if self.rng.random() < 0.2:
            self.check_state(node)
        for other in self.nodes:
            if other > name and self.nodes[other].alive and self.rng.random() < 0.6:
                link = self.links.get((name, other))
                if (link is None or link.dead) and not {(name, other), (other, name)} & self.blocked:
                    self.connect(name, other)

    def check_state(self, node: Node) -> None:
        member = node.member
        if member is not None and member.view is not None and member.complete and member.matched:
            if member.view.epoch >= self.view.lossy and member.confirmed >= member.read_at:
                self.checker.on_state(node.name, member.confirmed, node.stored.live)

    # -- network ---------------------------------------------------------------------

    def connect(self, a: str, b: str) -> None:
        link = self.links[a, b] = Link(a, b)
        self.at(self.wait(self.net), self.on_up, a, b, link)
        self.at(self.wait(self.net), self.on_up, b, a, link)

    def on_up(self, name: str, peer: str, link: Link) -> None:
        node = self.nodes[name]
        if node.member is None or link.dead or node.sides.get(peer) is link:
            return
        if self.links.get(link.ends) is not link:
            return  # Another has taken its place.
        if node.sides.get(peer) is not None:
            node.member.on_peer_down(peer)
        node.sides[peer] = link
        node.member.on_peer_up(peer)
        self.act(node)

    def on_down(self, name: str, peer: str, link: Link) -> None:
        node = self.nodes[name]
        if node.member is not None and node.sides.get(peer) is link:
            node.sides[peer] = None
            node.member.on_peer_down(peer)
            self.act(node)

    def break_link(self, link: Link) -> None:
        if not link.dead:
            link.dead = True
            a, b = link.ends
            for name, peer in ((a, b), (b, a)):
                self.at(self.wait(self.net if self.rng.random() < 0.7 else 4), self.on_down, name, peer, link)

    def send(self, name: str, peer: str, frame: Frame) -> None:
        self.tally("frames")
        link = self.nodes[name].sides.get(peer)
        if link is None or link.dead:
            return
        if (name, peer) in self.blocked or name in link.mute:
            self.doom(link, name)
            return
        when = max(link.last.get(name, 0), self.now + self.wait(self.net))
        link.last[name] = when
        self.at(when - self.now, self.deliver, name, peer, link, frame, self.nodes[peer].life)

    def doom(self, link: Link, sender: str) -> None:
        """Loses a frame, and all after it; the link will be found broken."""
        link.mute.add(sender)
        if not link.doomed:
            link.doomed = True
            self.at(self.wait(3), self.break_link, link)

    def deliver(self, name: str, peer: str, link: Link, frame: Frame, life: int) -> None:
        node = self.nodes[peer]
        if link.dead or node.member is None or node.life != life or name in link.mute:
            return
        if (name, peer) in self.blocked or peer in self.stalled:
            self.doom(link, name)
            return
        if node.sides.get(name) is not link:
            if self.links.get((min(name, peer), max(name, peer))) is not link:
                return
            self.on_up(peer, name, link)
        if isinstance(frame, Reset):
            self.tally("resets")
        node.member.on_frame(name, self.recode(frame) if self.coded else frame)
        self.act(node)

    def recode(self, frame: Frame) -> Frame:
        packer = Packer(200)
        packer.add(GROUP, frame)
        unpacker = Unpacker()
        found = [one for payload in packer.take() for one in unpacker.feed(b"".join(payload))]
        (group, decoded) = found[0]
        assert group == GROUP and len(found) == 1
        return decoded

    # -- disks -----------------------------------------------------------------------

    def sync(self, node: Node) -> None:
        if not node.syncing and node.synced < len(node.writes) and not node.full:
            node.syncing = True
            self.at(self.wait(self.fsync * node.speed), self.on_synced, node, node.generation, len(node.writes))

    def on_synced(self, node: Node, generation: int, upto: int) -> None:
        if not node.alive or node.generation != generation:
            return
        node.syncing = False
        if node.full or node.member is None:
            return
        if upto <= node.synced:
            return
        self.checker.on_synced(node.name, [write.change for write in node.writes[node.synced : upto]])
        node.synced = upto
        node.member.on_synced(upto - node.base_id)
        self.act(node)

    def read(self, node: Node, generation: int, request: Request) -> None:
        """Reads which messages are live now; the contents come later."""
        live: list[tuple[int, int]] = []
        runs: list[Run] = []
        size, upto = 0, request.bound
        for seq in sorted(seq for seq in node.stored.live if request.after < seq <= request.bound):
            if not any(low <= seq <= high for low, high in request.have):
                if size >= request.bytes_max:
                    upto = seq - 1
                    break
                content = node.stored.live[seq]
                size += len(content)
                runs.append(Run(seq, [content], [b"k"], bytearray([PERSISTENT])))
            live.append((seq, seq))
        self.tally("pieces")

        def done() -> None:
            if node.alive and node.generation == generation and node.member is not None:
                if self.rng.random() < 0.05:
                    node.member.on_read_failed(request)
                else:
                    node.member.on_read(request, tuple(live), tuple(runs), upto)
                self.act(node)

        self.at(self.wait(self.fsync), done)

    # -- effects ---------------------------------------------------------------------

    def act(self, node: Node) -> None:
        while node.member is not None and (effects := node.member.take()):
            member = node.member
            for effect in effects:
                if node.member is member:  # Otherwise it was dropped.
                    self.perform(node, member, effect)
        self.sync(node)

    def perform(self, node: Node, member: Member, effect: Effect) -> None:
        name = node.name
        if isinstance(effect, Send):
            self.send(name, effect.to, effect.frame)
        elif isinstance(effect, Write):
            node.writes.append(effect)
            if isinstance(effect.change, Restart):
                node.stored.restart(effect.change)
                self.checker.applied[name] = effect.change.cut
            elif isinstance(effect.change, Fill):
                node.stored.fill(effect.change)
            elif isinstance(effect.change, Truncate):
                self.tally("truncations")
        elif isinstance(effect, Apply):
            assert member.view is not None
            leads = member.master is not None
            self.checker.on_applied(name, leads, effect.blocks, member.view.epoch)
            for block in effect.blocks:
                node.stored.apply(block)
        elif isinstance(effect, Confirmed):
            self.on_confirmed(node, effect)
        elif isinstance(effect, ProposeView):
            if self.reaches(name):
                self.flying += 1
                self.at(self.wait(self.meta), self.commit, name, effect.view)
        elif isinstance(effect, Started):
            self.on_started(node, member, effect)
        elif isinstance(effect, Stopped):
            node.front = None
        elif isinstance(effect, Read):
            self.read(node, node.generation, effect.request)
        elif isinstance(effect, HandOverDue):
            self.tally("disks given way")
            member.hand_over(effect.to)
        elif isinstance(effect, Left):
            self.note("left", name)
            if self.rng.random() < 0.7:
                self.forget(node)

    def forget(self, node: Node) -> None:
        """It is no longer in the ring: its copy is deleted, and a new member waits until the node is in a view
        again. A crash may bring the old copy back, though."""
        self.tally("copies forgotten")
        if self.rng.random() < 0.8:
            node.writes, node.synced = [], 0
            node.disk_number += 1
            self.checker.on_disk_replaced(node.name, [])
        found, node.stored = replay(node.writes[: node.synced])
        del node.writes[node.synced :]
        node.base_id, node.syncing = len(node.writes), False
        node.generation += 1
        links = node.member.links if node.member is not None else set()
        node.member = Member(GROUP, node.name, node.disk, node.generation, node.stored.lost, self.options, found)
        self.checker.applied[node.name] = found.base
        for peer in sorted(links):
            node.member.on_peer_up(peer)
        self.at(self.wait(self.meta), self.barrier, node.name, node.life)

    def commit(self, proposer: str, view: View) -> None:
        self.flying -= bool(proposer)
        if misfit(self.view, view) is not None:
            return
        if proposer and (not self.reaches(proposer) or self.rng.random() < 0.05):
            return
        old, self.view = self.view, view
        self.views.append(view)
        self.checker.on_commit(old, view)
        self.note("commit", proposer, tuple(view))
        self.tally("views")
        if len(view.in_sync) > len(old.in_sync):
            self.tally("joins")
        for name, node in self.nodes.items():
            if node.alive and self.reaches(name) and self.rng.random() < 0.9:
                self.at(self.wait(self.meta), self.learn, name, node.life, view)
        if view.epoch != old.epoch:
            self.tally("epochs")
            if not self.calm and (self.kill_next or self.rng.random() < self.kill):
                self.kill_next = False
                self.at(self.wait(self.meta * 1.5), self.bounce, view.master)

    # -- clients ---------------------------------------------------------------------

    def on_started(self, node: Node, member: Member, effect: Started) -> None:
        self.note("started", node.name, effect.epoch, effect.number)
        assert member.view is not None
        lossy = member.view.lossy
        first = 1 if lossy else max(self.checker.end, 1)
        epochs = {number: member.tail.epoch_at(number) for number in range(first, effect.number)}
        node.front = Front(node.stored, effect)
        for block in member.tail.upto(effect.number, effect.number):  # None: the group is new.
            for low, high in block.settled:
                for seq in range(low, high + 1):
                    node.front.ready.pop(seq, None)
        adopt = node.front.ready if member.read_at == effect.number else None
        self.checker.on_started(node.name, node.life, effect.epoch, lossy, effect.number, epochs, adopt)
        self.check_state(node)

    def on_confirmed(self, node: Node, effect: Confirmed) -> None:
        if self.plan.mode != "async":
            disks = {name: other.disk for name, other in self.nodes.items()}
            self.checker.on_confirmed(node.name, effect.epoch, effect.durable, self.view, disks)
        for publisher in self.publishers.values():
            if publisher.target == (node.name, node.life, effect.epoch):
                done = [number for number, block in publisher.open.items() if 0 < block <= effect.durable]
                for number in done:
                    del publisher.open[number]
                    publisher.told.add(number)
                    publisher.since = self.now

    def serving(self) -> list[Node]:
        return [
            node
            for name, node in self.nodes.items()
            if name not in self.stalled and node.member is not None and node.member.serving and node.front is not None
        ]

    def submit(self, node: Node, contents: list[bytes], settled: list[tuple[int, int]]) -> int:
        front, member = node.front, node.member
        assert front is not None and member is not None
        run = None
        if contents:
            kinds = bytearray(self.rng.choice((PERSISTENT, PERSISTENT, 0)) for _ in contents)
            run = Run(front.last + 1, contents, [b"k"] * len(contents), kinds)
            for seq, content in enumerate(contents, run.first):
                front.ready[seq] = content
            front.last = run.last
        front.number += 1
        if not member.submit(Block(GROUP, front.epoch, front.number, 0, run, settled, [], 0)):
            raise Violation("a serving master takes no block")
        number = front.number
        self.act(node)
        return number

    def is_open(self, publisher: Publisher) -> bool:
        if publisher.target is None or (publisher.open and self.now - publisher.since > 25):
            return False
        name, life, epoch = publisher.target
        node = self.nodes[name]
        return node in self.serving() and node.life == life and node.front is not None and node.front.epoch == epoch

    def publish(self) -> None:
        self.at(self.wait(self.pace), self.publish)
        name = self.rng.choice(("p", "q"))
        publisher = self.publishers[name]
        if not self.is_open(publisher):
            masters = self.serving()
            if not masters:
                return
            node = self.rng.choice(masters)
            assert node.front is not None
            publisher.target = (node.name, node.life, node.front.epoch)
            publisher.since = self.now
            for number in sorted(publisher.open):
                if node.front is None or not self.is_open(publisher):
                    return
                publisher.open[number] = self.submit(node, [f"{name}{number}".encode()], [])
        assert publisher.target is not None
        node = self.nodes[publisher.target[0]]
        if len(publisher.open) > 20 or node.member is None or not node.member.serving or node.member.is_crowded:
            return
        if not publisher.open:
            publisher.since = self.now
        numbers = [publisher.number + 1 + at for at in range(self.rng.randint(1, 3))]
        publisher.number = numbers[-1]
        for number in numbers:
            publisher.open[number] = 0
        block = self.submit(node, [f"{name}{number}".encode() for number in numbers], [])
        for number in numbers:
            if number in publisher.open:
                publisher.open[number] = block

    def consume(self) -> None:
        self.at(self.wait(self.pace), self.consume)
        masters = self.serving()
        if not masters:
            return
        node = self.rng.choice(masters)
        front = node.front
        assert front is not None
        acks = sorted(seq for seq, when in front.unacked.items() if when <= self.now)[:4]
        for seq in acks:
            del front.unacked[seq], front.ready[seq]
        if acks:
            self.submit(node, [], [(seq, seq) for seq in acks])
        free = sorted(seq for seq in front.ready if seq not in front.unacked)
        for seq in free[: self.rng.randint(0, 4)]:
            self.checker.on_delivery(node.name, front.epoch, seq, front.ready[seq])
            front.unacked[seq] = self.now + self.wait(3)

    # -- the end ---------------------------------------------------------------------

    def settle(self) -> None:
        self.calm = True
        self.net, self.fsync, self.meta = min(self.net, 0.1), min(self.fsync, 0.1), min(self.meta, 0.3)
        self.pace = max(self.pace, 0.4)  # Windows are small here: a mirror that lags must be able to catch up.
        self.faults.heal()
        for name in self.nodes:
            self.start(name)
        self.run(self.now + 10)
        for name in self.nodes:
            self.start(name)  # Nodes that were to be started later, and crashed before.
        for _ in range(60):
            self.run(self.now + 5)
            self.readmit()
            if len(self.view.in_sync) == len(self.view.ring) > 1 and self.serving():
                break
        else:
            raise Violation(f"not all are back in sync: {self.view}\n{self.standings()}")

    def readmit(self) -> None:
        """A node whose disk had failed left the ring; its disk was repaired, and it returns. And what is not
        synchronised automatically is synchronised on demand."""
        node = self.nodes[self.view.master]
        member = node.member
        if member is not None and member.serving and len(self.view.ring) < 2:
            member.change_ring(tuple(self.nodes))
            self.act(node)
        named = member is not None and member.in_sync and not member.may_lead
        if named and self.plan.mode == "lossy":
            self.faults.force()
        for other in self.nodes.values():
            if other.member is not None:
                other.member.filling.start()
                self.act(other)

    def finish(self) -> None:
        self.settle()
        before = self.checker.end
        self.run(self.now + 10)
        if self.checker.end <= before:
            raise Violation(f"nothing is confirmed any more\n{self.standings()}")
        self.events = [event for event in self.events if event[2] not in (self.publish, self.consume)]
        heapq.heapify(self.events)
        for _ in range(10):
            self.run(self.now + 5)
            busy = any(node.member is not None and node.member.wants_tick for node in self.nodes.values())
            if not busy and len({self.end_of(name) for name in self.view.ring}) == 1:
                break
        for name, publisher in self.publishers.items():
            self.checker.told[name] = publisher.told if self.plan.mode == "safe" else set()
            if self.is_open(publisher) and publisher.open:
                raise Violation(f"{name} waits for {publisher.open} at rest\n{self.standings()}")
        ring = self.view.ring
        states = {name: self.nodes[name].stored.live for name in ring}
        lossy = self.view.lossy > 0 or self.plan.mode == "async"
        self.checker.at_the_end({name: self.end_of(name) for name in ring}, states, lossy)
        for name in ring:
            member = self.nodes[name].member
            if member is not None and member.wants_tick:
                raise Violation(f"{name} has something to do at rest\n{self.standings()}")

    def end_of(self, name: str) -> tuple[int, int, int, bool]:
        member = self.nodes[name].member
        assert member is not None
        return member.tail.last_epoch, member.tail.end, member.confirmed, member.complete

    def standings(self) -> str:
        lines = []
        for name, node in self.nodes.items():
            member = node.member
            if member is None or member.view is None:
                lines.append(f"{name}: {'no view' if node.alive else 'down'}")
                continue
            near, tail, master = member.neighbours, member.tail, member.master
            lines.append(
                f"{name}: view {member.view.version}/{member.view.epoch} log {tail.base}..{tail.end} of "
                f"{tail.last_epoch}, durable {member.durable}, confirmed {member.confirmed}, complete "
                f"{member.complete} read_at {member.read_at}, fill {member.filling.progress}, feed {near.feed}, "
                f"feeds {[(child.name, child.next, child.acked) for child in near.children]}, links "
                f"{sorted(member.links)}, heard {member.doubt.heard}, leads {master and master.epoch}, "
                f"table {master and master.table}, proposal {member.proposal_age}"
            )
        return "\n".join(lines)


def run(plan: Plan) -> World:
    """Runs one seed. A failure shows the last events, and how to repeat it."""
    world = World(plan)
    try:
        world.run(plan.time)
        world.finish()
    except AssertionError as error:
        last = "\n".join(str(event) for event in world.trace)
        command = f"python -m simulation.ring --seed {plan.seed} --mode {plan.mode}"
        raise Violation(f"{type(error).__name__}: {error}\nlast events:\n{last}\nreplay: {command}") from error
    return world


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.ring", description="A mirrored queue in virtual time.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--mode", choices=("safe", "lossy", "async"), default="safe")
    parser.add_argument("--trace", action="store_true", help="print what happened last even if all went well")
    options = parser.parse_args(arguments)
    failures = 0
    for seed in range(options.seed, options.seed + options.count):
        try:
            world = run(Plan(seed, options.mode))
        except Violation as violation:
            failures += 1
            print(f"seed {seed}: {violation}", flush=True)
            continue
        if options.trace:
            print("\n".join(str(event) for event in world.trace))
        print(f"seed {seed}: {world.checker.confirms} confirms, {dict(sorted(world.count.items()))}", flush=True)
    return 1 if failures else 0
