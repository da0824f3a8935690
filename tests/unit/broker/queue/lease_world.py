"""A queue with a real log on a disk that crashes, and what may be said of its leases whatever happens."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from leveret.base.range_set import Measured, Wanted
from leveret.base.timers import Timers
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, Batch, Gap, GapRead, Span
from leveret.broker.kinds.priority_queue import PriorityQueue
from leveret.broker.queue.features import Features
from leveret.broker.queue.lease import LeaseView
from leveret.broker.queue.leases import Leases, ack_lease, open_lease, release_lease, take_lease
from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.ttl_and_length import EXPIRED_AT_ONCE
from leveret.metadata.model.records import QueueSpec
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.rules.queue_rules import QueueRules
from leveret.storage.format.queue_block import PERSISTENT, REDELIVERED, Run
from leveret.storage.log import Log, LogOptions
from leveret.storage.segments.disk import Job
from leveret.storage.size_estimate import measure
from simulation.core.disk import FaultyDisk
from tests.unit.broker.kinds.priority_queues import body_of, content

Q = 7
UNLIMITED = 1 << 40


class Home:
    """A node with one queue, as the queue sees it."""

    journal = None
    policy_version = 0

    def __init__(self, rules: QueueRules | None = None, durable: bool = True, seed: int = 1) -> None:
        self.rules = rules or QueueRules()
        self.disk = FaultyDisk(random.Random(seed))
        self.durable = durable
        self.wall_ms = 1_000_000
        self.content_bytes_max = self.spill_bytes_max = UNLIMITED
        self.notes: list[str] = []
        self.begin()

    def begin(self) -> None:
        self.dirty: dict[Queue, None] = {}
        self.content_bytes = self.unlogged_bytes = self.now_ms = 0
        self.sharing = None
        self.timers: Timers[Queue] = Timers()
        self.idle: Timers[Queue] = Timers()
        self.expiring_left = EXPIRED_AT_ONCE
        self.overdue: dict[Queue, None] = {}
        self.wanted: list[GapRead] = []
        self.waiting: list[Callable[[], None]] = []
        self.features = Features()
        self.dead_letters: Any = None
        self.vhosts: dict[str, Any] = {}
        self.log = Log(self.disk, "log", LogOptions(segment_bytes=4000))
        self.log.recover([Q] if self.durable else [])
        spec = QueueSpec(Q, "/", "q", self.durable, False, False, {}, None, "node")
        host = cast(Any, self)
        self.queue = PriorityQueue(spec, host, 5) if self.rules.max_priority else Queue(spec, host)
        state = self.log.queues.get(Q)
        if state is not None:
            first, last = state.live.first or 0, state.live.last or 0
            self.queue.restore(
                state.number, state.epoch + 1, state.next_seq, first, last, state.count, state.delivered_through
            )
            self.queue.restore_state(state.marks.values())

    # -- What a queue asks ---------------------------------------------------------------------------------------

    def free_later(self, rows: list[deque[Span | Gap]]) -> None:
        rows.clear()

    def on_opened(self, queue: LocalQueue) -> None:
        """Nothing waits here until a queue is open."""

    def came_meanwhile(self, queue: LocalQueue) -> int:
        return 0

    def rules_of(self, spec: QueueSpec) -> QueueRules:
        return self.rules

    def counts_of(self, queue: LocalQueue) -> dict[int, int]:
        return {}

    def load(self, queue: Queue, read: GapRead) -> None:
        self.wanted.append(read)

    def spill(self, queue: LocalQueue, runs: list[Run]) -> None:
        self.log.spill(Q, runs)

    def when_loaded(self, queue: LocalQueue, then: Callable[[], None]) -> None:
        self.waiting.append(then)

    def successor(self, queue: Any) -> None:
        """Nobody else leads it."""

    def measure(self, queue: LocalQueue, wanted: Wanted) -> Measured:
        state = self.log.queues.get(Q)
        return Measured([], 0) if state is None else measure(state, wanted)

    def stored_within(self, queue: LocalQueue, first: int, last: int) -> list[tuple[int, int]]:
        return self.measure(queue, Wanted(first, last)).ranges

    def note(self, text: str) -> None:
        self.notes.append(text)

    # -- What a test does ----------------------------------------------------------------------------------------

    def put(self, *bodies: bytes, kind: int = PERSISTENT, level: int | None = None) -> None:
        contents = [content(body, level) for body in bodies]
        size = sum(map(len, contents)) + MESSAGE_OVERHEAD * len(contents)
        self.queue.enqueue(contents, [b"\x00\x01q"] * len(contents), kind, size, None)

    def turn(self, bytes_max: int = UNLIMITED) -> None:
        """Read what is wanted, and pump; nothing is written."""
        self.queue.pump()
        self.queue.close_batch()
        while self.wanted:
            read = self.wanted.pop(0)
            load = self.log.load(Q, read.first, read.last, bytes_max)
            runs: list[Run] = []
            following = read.last + 1
            if load is not None:
                self.run(load)
                runs, following = load.runs, load.next
            self.queue.on_loaded(read, runs, following)
            waiting, self.waiting = self.waiting, []
            for then in waiting:
                then()
            self.queue.pump()

    def run(self, job: Job) -> list[Any]:
        job.perform(self.disk)
        return self.log.on_done(job)

    def commit(self) -> None:
        """A turn, and all that changed becomes safe."""
        self.turn()
        batch = self.queue.open
        block = self.queue.take_block(self.wall_ms)
        awaiting, self.queue.awaiting = self.queue.awaiting, []
        if block is not None:
            self.log.append(block)
        while (job := self.log.take()) is not None:
            self.run(job)
        if block is not None and block.enqueued is not None:
            assert batch is not None
            self.queue.on_logged(batch)
        for pending in awaiting:
            pending.on_safe()

    def maintain(self) -> None:
        while (job := self.log.maintenance(idle=True) or self.log.take()) is not None:
            self.run(job)

    def crash(self) -> None:
        self.disk.crash()
        self.begin()

    def ask(self, question: Callable[[Any], None]) -> LeaseView | Refusal:
        """Ask, commit, and give the answer."""
        answers: list[LeaseView | Refusal] = []
        question(answers.append)
        self.commit()
        (answer,) = answers
        return answer

    def open(self, name: str = "l", timeout_ms: int | None = None, owner: str = "", takeover: bool = False) -> Any:
        return self.ask(lambda then: open_lease(self.queue, name, timeout_ms, then, owner, takeover))

    def take(self, count: int = 1 << 30, bytes_max: int = 1 << 40, name: str = "l", owner: str = "") -> Any:
        return self.ask(lambda then: take_lease(self.queue, name, count, bytes_max, then, owner))

    def ack(self, through: int, name: str = "l", owner: str = "") -> Any:
        return self.ask(lambda then: ack_lease(self.queue, name, through, then, owner))

    def release(self, name: str = "l") -> Any:
        return self.ask(lambda then: release_lease(self.queue, name, then))

    def get(self) -> tuple[Batch, int] | None:
        while True:
            got = self.queue.get()
            if not isinstance(got, Gap):
                return got
            self.turn()

    def drain(self) -> list[tuple[bytes, bool]]:
        """All that waits: bodies, and whether they are marked as redelivered. They are gone then."""
        found = []
        while (got := self.get()) is not None:
            batch, at = got
            found.append((body_of(batch.contents[at]), bool(batch.kinds[at] & REDELIVERED)))
            self.queue.settle_delivered(batch, at, at + 1)
        return found

    def read(self, first: int, last: int) -> dict[int, bytes]:
        """Messages by their numbers, from the log and from memory."""
        found: dict[int, bytes] = {}
        load = self.log.load(Q, first, last, UNLIMITED)
        if load is not None:
            self.run(load)
            found = {run.first + at: body_of(one) for run in load.runs for at, one in enumerate(run.contents)}
        leases = self.queue.extension(Leases)
        held = leases.held() if leases is not None else ()
        for batch, lo, hi in held:
            for at in range(lo, hi):
                if first <= batch.first + at <= last:
                    found[batch.first + at] = body_of(batch.contents[at])
        return found


class Watched(Home):
    """Does things at random, and notices what must not be."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        rules = QueueRules(max_priority=rng.choice([0, 0, 5]))
        super().__init__(rules, durable=rng.random() < 0.9, seed=seed)
        self.count = 0
        self.kept: set[bytes] = set()  # Persistent, committed, and not settled for good.
        self.settling: set[bytes] = set()  # A crash may undo that.
        self.fresh: set[bytes] = set()  # Not committed.
        self.places: dict[str, dict[int, bytes]] = {}  # Of each lease that was told: which message is where.
        self.told: dict[str, LeaseView] = {}
        self.leased: set[bytes] = set()  # As was told, and not given back.
        self.releasing: set[str] = set()  # Not safe yet, but in effect.
        self.out: list[tuple[Batch, int]] = []

    def publish(self) -> None:
        rng = self.rng
        kind = PERSISTENT if self.durable and rng.random() < 0.8 else 0
        bodies = [b"%d" % (self.count + at) + bytes(rng.choice([0, 50])) for at in range(rng.choice([1, 2, 9, 40]))]
        self.count += len(bodies)
        for body in bodies:
            self.put(body, kind=kind, level=rng.randrange(6))
            if kind:
                self.fresh.add(body)

    def on_told(self, name: str, view: LeaseView | Refusal) -> None:
        if isinstance(view, Refusal):
            assert view.code in (404, 406), view
            return
        before = self.told.get(name)
        assert before is None or (before.acked <= view.acked and before.next <= view.next)
        self.told[name] = view
        known = self.places.setdefault(name, {})
        for place, first, last in view.runs:
            there = self.read(first, last)
            for number in range(first, last + 1):
                if number in there:  # What only memory had may be lost.
                    body = there[number]
                    at = place + number - first
                    assert known.setdefault(at, body) == body, f"place {at} was {known[at]!r}, is {body!r}"
                    self.leased.add(body)
        self.leased -= {body for at, body in known.items() if at < view.acked}

    def on_released(self, name: str, view: LeaseView | Refusal) -> None:
        if not isinstance(view, Refusal):
            self.leased -= {body for at, body in self.places.get(name, {}).items() if at < view.next}
            self.told.pop(name, None)
            self.releasing.discard(name)

    def step(self) -> None:
        rng, queue, name = self.rng, self.queue, self.rng.choice("ab")
        what = rng.choice(
            ["publish", "publish", "open", "take", "take", "take", "ack", "release", "get", "get", "back", "done",
             "commit", "commit", "commit", "crash", "page", "maintain"]
        )  # fmt: skip
        if what == "publish":
            self.publish()
        elif what == "open":
            open_lease(queue, name, None, lambda view: self.on_told(name, view))
        elif what == "take":
            count, room = rng.choice([1, 3, 20, 1000]), rng.choice([1, 300, 100_000])
            take_lease(queue, name, count, room, lambda view: self.on_told(name, view))
        elif what == "ack" and name in self.told:
            view = self.told[name]
            through = rng.randint(0, view.next)
            self.settling |= {body for at, body in self.places[name].items() if at < through}
            ack_lease(queue, name, through, lambda view: self.on_told(name, view))
        elif what == "release" and rng.random() < 0.3:
            self.releasing.add(name)
            release_lease(queue, name, lambda view: self.on_released(name, view))
        elif what == "get" and (got := self.get()) is not None:
            body = body_of(got[0].contents[got[1]])
            free = {body for name in self.releasing for body in self.places.get(name, {}).values()}
            assert body not in self.leased - free, f"{body!r} is leased"
            self.out.append(got)
        elif what in ("back", "done") and self.out:
            batch, at = self.out.pop(rng.randrange(len(self.out)))
            if what == "back":
                queue.requeue(batch, at, at + 1)
            else:
                self.settling.add(body_of(batch.contents[at]))
                queue.settle_delivered(batch, at, at + 1)
        else:
            self.rare(what)

    def rare(self, what: str) -> None:
        if what == "commit":
            self.commit()
            self.kept = (self.kept | self.fresh) - self.settling
            self.settling, self.fresh = set(), set()
        elif what == "crash" and self.rng.random() < 0.5:
            self.out = []
            transient = not self.durable
            self.crash()
            self.settling, self.fresh, self.releasing = set(), set(), set()
            if transient:
                self.kept, self.places, self.told, self.leased = set(), {}, {}, set()
            self.check_restored()
        elif what == "page":
            self.content_bytes_max = self.rng.choice([0, 500, UNLIMITED])
            self.spill_bytes_max = self.rng.choice([0, UNLIMITED])
            self.queue.page_out()
        elif what == "maintain":
            self.maintain()

    def check_restored(self) -> None:
        """What was told is known."""
        extension = self.queue.extension(Leases)
        leases = {} if extension is None else extension.all
        for name, view in self.told.items():
            assert name in leases, f"lease {name} is lost"
            assert leases[name].acked >= view.acked and leases[name].next >= view.next

    def check_counts(self) -> None:
        queue = self.queue
        leases = queue.extension(Leases)
        leased = [] if leases is None else [lease.alive().count for lease in leases.all.values()]
        assert queue.unacked_count == sum(leased) + len(self.out), "what is out is counted"
        assert queue.ready_count == sum(entry.count for entry in queue.ready), "what waits is counted"

    def finish(self) -> None:
        """Nothing is lost: whatever was kept is there, in a lease or among those that wait."""
        self.rare("commit")
        for batch, at in self.out:
            self.queue.requeue(batch, at, at + 1)
        self.out = []
        if self.durable and self.rng.random() < 0.5:
            self.rare("commit")
            self.crash()
            self.check_restored()
        leases = self.queue.extension(Leases)
        for name in list(leases.all) if leases is not None else []:
            self.release(name)
        self.check_counts()
        assert not self.queue.unacked_count
        found = [body for body, _ in self.drain()]
        assert len(set(found)) == len(found), "each is there once"
        missing = self.kept - set(found) if self.durable else set()
        assert not missing, f"{len(missing)} are lost: {sorted(missing)[:5]}"

    def play(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.check_counts()
        self.finish()
