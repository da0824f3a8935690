"""The hidden queue that holds the messages of a delayed exchange until they are due.

    enqueue ──▶ block, log, mirrors ──▶ schedule: when which number is due
                     │                            │
               confirmed to the publisher         ▼ a minute before
                                            soon: contents are read back, where memory has forgotten them
                                                  │
                                                  ▼ its time has come: routed as if it were published now
                                           sent to each target ──all have it safe──▶ settled

To publishers, the log and the ring it is a queue like any other, whose messages are all persistent, whatever they say
of themselves: who delays a message for a day does not want it to be gone after a restart. Nobody consumes from it.

**At least once.** A message is settled here when every queue that it leads to has it safe. Whatever dies before that,
it is here, and goes out again at the next start, or from the next master; so it may come twice. When a target cannot be
reached, the message goes to the others, and to that one later. What a target refuses because it is full is given up,
as any publish to it would be. What leads nowhere when it is due is dropped.

**When it is due** follows from what the log has of it: the time at which it came and the delay in its headers. So
nothing is written when it is released, or when another node becomes master, and after a start the messages are read
through once, in pieces between which the node does other things. Time is that of the day: if the clock is set, what is
due changes with it.

**Memory.** A message costs eight bytes (see `schedule`). Its content stays in memory only if it, or one that came with
it, is due within a minute. All others are read back when they are. The log gives blocks of messages that came together;
if what came together is due at a thousand different times, each block holds something for every second. So contents
are read for a minute at a time: a sweep over the log in its order, in which each block is read once, and what is wanted
of it is kept. How much, is limited; what there was no room for is read when it is due.

**Order.** What is due first goes out first, and what is due together in the order in which it came; but not across a
failure to reach a target, nor while the log is still being read through, nor where large ones would have to wait.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, Batch, Gap
from leveret.broker.delivery.confirms import Pending
from leveret.broker.kinds.schedule import NUMBER_BITS, NUMBER_MASK, Schedule, packed
from leveret.broker.queue.queue import Queue
from leveret.broker.routing.delayed_exchange import delay_ms, release
from leveret.metadata.model.hidden_queues import exchange_of
from leveret.protocol.frames import HEADER_AT
from leveret.protocol.properties import headers
from leveret.storage.format.queue_block import PERSISTENT, SHARED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from leveret.broker.broker import AnyQueue
    from leveret.broker.queue.host import Host
    from leveret.metadata.model.records import QueueSpec
    from leveret.storage.format.queue_block import Run

AHEAD_MS: Final = 1 << 16  # What is due within this time is in memory, or is read back,
AHEAD_MESSAGES: Final = 1 << 16  # if these are not more than so many,
AHEAD_BYTES: Final = 32 << 20  # or larger than this.
FILL_MESSAGES: Final = 4_096  # They are looked for in several turns, so many in each.
REFILL_MS: Final = AHEAD_MS // 4  # The time between two sweeps, unless there is more than there was room for.
SCAN_BYTES: Final = 256 << 10  # Read through at a time after a start.
READ_BYTES: Final = 1 << 20  # Read back at a time, where most of it is wanted.
ROUND_MESSAGES: Final = 1_000  # Released in one turn,
ROUND_BYTES: Final = 4 << 20  # and hardly more than this.
UNDER_WAY_MAX: Final = 10_000  # Messages that are not safe at their targets yet.
AGAIN_MS: Final = 1_000  # Until a target that could not be reached is tried again:
AGAIN_PER_S: Final = 1_000  # later, the more messages wait for that.
LACKING_MAX: Final = 100_000  # For so many it is known which targets lack them. Others go to all targets again.

_FIRST = attrgetter("first")


class PendingRelease(Pending):
    """Messages on their way to one of their targets."""

    __slots__ = ("numbers", "target")

    def __init__(self, queue: DelayedQueue, numbers: list[int], target: AnyQueue) -> None:
        super().__init__(queue, 1, len(numbers))
        self.numbers = numbers
        self.target = target


class Leaving(NamedTuple):
    """A message as it goes out."""

    number: int
    content: bytes
    key: bytes
    kind: int
    queues: tuple[AnyQueue, ...]


class Fresh(NamedTuple):
    """Messages that the log does not have yet, and when the first of them is due."""

    batch: Batch
    due_ms: int


class DelayedQueue(Queue):
    """Keeps the messages of one exchange back, at its master."""

    __slots__ = (
        "cold", "early", "exchange", "under_way", "fresh", "is_full", "lacking", "read", "read_bytes", "reading",
        "refill_ms", "round", "scanning", "schedule", "soon", "unread", "warm",
    )  # fmt: skip

    def __init__(self, spec: QueueSpec, host: Host) -> None:
        super().__init__(spec, host)
        self.exchange = exchange_of(spec)
        self.schedule = Schedule()
        self.fresh: dict[int, Fresh] = {}  # By the number of their first message.
        self.early: list[int] = []  # Due, and not in the log yet: entries of the schedule.
        self.warm: list[Batch] = []  # In the log, and with their contents; ascending.
        self.unread: deque[tuple[int, int]] = deque()  # In the log; when they are due is yet to be found out.
        self.scanning = False
        self.soon: list[int] = []  # Taken from the schedule ahead of time: a heap of the same entries.
        self.refill_ms = 0  # When to take more,
        self.is_full = False  # unless it has so much that it has to become less first.
        self.cold: list[int] = []  # Of those, the numbers that are to be read back, ascending.
        self.read: dict[int, tuple[bytes, bytes]] = {}  # Content and key of those that were.
        self.read_bytes = 0
        self.reading = False
        self.round: list[int] = []  # Due, to go out next, in this order.
        self.under_way: dict[int, int] = {}  # To how many targets a message is under way.
        self.lacking: dict[int, list[AnyQueue]] = {}  # Targets that could not be reached.
        host.dirty[self] = None  # What it is restored with is taken in soon.

    # -- Coming in -----------------------------------------------------------------------------------------------

    def enqueue(self, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending | None) -> bool:
        slow = super().enqueue(contents, keys, PERSISTENT | kind & SHARED, size, pending)
        if self.open is not None:
            self.open.stamp(self.host.wall_ms)
        return slow

    @property
    def who(self) -> str:
        return f"delayed by exchange {self.exchange}"

    def _take_in(self) -> None:
        """`ready` has what came, and after a start or a promotion what there is. Here it is not handed out in order, so
        it is put where it is found by time."""
        for entry in self.ready:
            if isinstance(entry, Gap):
                self.unread.append((entry.first, entry.last))
                continue
            batch = entry.batch
            if not batch.times:
                batch.stamp(self.host.wall_ms)
            due_ms = self._note(batch, entry.lo, entry.hi)
            if batch.logged:
                self._keep(batch, due_ms)
            else:
                known = self.fresh.get(batch.first)
                self.fresh[batch.first] = Fresh(batch, due_ms if known is None else min(due_ms, known.due_ms))
        if self.ready:
            self.ready.clear()

    def _note(self, run: Run, lo: int, hi: int) -> int:
        """Put messages on the schedule; when the first of them is due."""
        schedule, first, soonest_ms = self.schedule, run.first, 1 << 62
        for at, came_ms in arrivals(run, lo, hi):
            due_ms = came_ms + delay_ms(headers(run.contents[at], HEADER_AT) or {})
            schedule.add(due_ms, first + at)
            soonest_ms = min(soonest_ms, due_ms)
        return soonest_ms

    def on_logged(self, batch: Batch) -> None:
        batch.mark_logged()
        known = self.fresh.pop(batch.first, None)
        if known is not None:
            self._keep(batch, known.due_ms)
        for one in self.early:  # Not as due now: what has become due meanwhile would go out before them.
            self.schedule.add(one >> NUMBER_BITS, one & NUMBER_MASK)
        self.early.clear()
        if self.host.content_bytes > self.host.content_bytes_max:
            self.page_out()
        self.host.dirty[self] = None

    # -- Contents ------------------------------------------------------------------------------------------------

    def _keep(self, batch: Batch, due_ms: int) -> None:
        if batch.left <= 0:
            return
        at = self._find(batch.first)
        is_there = at >= 0 and self.warm[at] is batch
        if not is_there and due_ms <= self.host.wall_ms + AHEAD_MS:
            insort(self.warm, batch, key=_FIRST)
        elif not is_there:
            self._forget_batch(batch)

    def _find(self, number: int) -> int:
        """The index in `warm` of the batch that may have it."""
        return bisect_right(self.warm, number, key=_FIRST) - 1

    def _content(self, number: int) -> tuple[bytes, bytes] | None:
        """Its content and key, if they are in memory."""
        found = self.read.get(number)
        at = self._find(number)
        if found is None and at >= 0 and number <= self.warm[at].last:
            batch = self.warm[at]
            found = batch.contents[number - batch.first], batch.keys[number - batch.first]
        return found

    def _forget_batch(self, batch: Batch) -> None:
        self._let_go(batch, batch.left)
        batch.forget_contents()

    def page_out(self) -> None:
        """The newest go first; they all can be read again."""
        while self.warm and self.host.content_bytes > self.host.content_bytes_max:
            self._forget_batch(self.warm.pop())

    def let_go_of_all(self) -> None:
        super().let_go_of_all()
        self.schedule, self.fresh, self.early, self.warm = Schedule(), {}, [], []
        self.unread.clear()
        self.soon, self.cold, self.read, self.read_bytes = [], [], {}, 0
        self.round, self.under_way, self.lacking = [], {}, {}

    # -- The turn ------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        if self.ready:
            self._take_in()
        if self.unread and not self.scanning:
            self._scan(*self.unread[0])
        if self.frozen:
            return  # Somebody else may have the queue.
        now_ms = self.host.wall_ms
        self._look_ahead(now_ms)
        self._go_on(now_ms)
        if not self.reading and (cold := self._to_read()):
            self._read_back(cold)
        self._sleep(now_ms)

    def _sleep(self, now_ms: int) -> None:
        """Until something is to be done that nothing else brings about."""
        if self.round and not self.reading:
            self.host.timers.set(self, now_ms)
        times = [self.soon[0] >> NUMBER_BITS] if self.soon else []
        due_ms = self.schedule.next_ms()
        if due_ms is not None:
            times.append(due_ms)
            if not self.is_full:
                times.append(max(due_ms - AHEAD_MS, self.refill_ms))
        if times and len(self.under_way) < UNDER_WAY_MAX and not self.round:
            self.host.timers.set(self, max(min(times), now_ms))

    def _scan(self, first: int, last: int) -> None:
        """After a start: when are these due?"""
        self.scanning = True

        def then(runs: list[Run] | None, following: int) -> None:
            self.scanning = False
            if self.deleted:
                return
            for run in runs or ():
                self._take_in_run(run)
            # What cannot be read stays where it is, and whoever read it has said so.
            if runs is None or following > last:
                self.unread.popleft()
            else:
                self.unread[0] = (following, last)
            self.host.dirty[self] = None

        self.host.read_range(self.spec.id, first, last, SCAN_BYTES, then)

    def _take_in_run(self, run: Run) -> None:
        if not run.times:
            run.times.append((0, self.host.wall_ms))
        due_ms = self._note(run, 0, len(run))
        if due_ms <= self.host.wall_ms + AHEAD_MS and self.host.content_bytes <= self.host.content_bytes_max:
            batch = Batch.loaded(run)
            self.memory_bytes += batch.size
            self.host.content_bytes += batch.size
            self._keep(batch, due_ms)

    # -- Going out -----------------------------------------------------------------------------------------------

    def _look_ahead(self, now_ms: int) -> None:
        """Take from the schedule what is due soon, and find out what of it is to be read back."""
        if self.is_full and len(self.soon) < AHEAD_MESSAGES // 2:
            self.is_full = False
        if now_ms < self.refill_ms or self.is_full:
            return
        is_ready = self.schedule.advance(now_ms + AHEAD_MS)
        taken = self.schedule.take(now_ms + AHEAD_MS, FILL_MESSAGES)
        newest = min(self.fresh, default=self.next_seq)
        for one in taken:
            heappush(self.soon, one)
            number = one & NUMBER_MASK
            if number < newest and self._content(number) is None:
                self.cold.append(number)
        self.cold.sort()
        self.is_full = len(self.soon) >= AHEAD_MESSAGES
        is_all = is_ready and len(taken) < FILL_MESSAGES
        self.refill_ms = now_ms + REFILL_MS if is_all else now_ms

    def _go_on(self, now_ms: int) -> None:
        """Let those go whose time has come."""
        room = min(ROUND_MESSAGES, UNDER_WAY_MAX - len(self.under_way))
        if not self.round and room > 0:
            for one in self.schedule.take(now_ms, room):
                heappush(self.soon, one)
            limit, newest = packed(now_ms + 1, 0), min(self.fresh, default=self.next_seq)
            while self.soon and self.soon[0] < limit and len(self.round) < room:
                one = heappop(self.soon)
                number = one & NUMBER_MASK
                if number < newest:
                    self.round.append(number)
                else:
                    self.early.append(one)
        if self.round:
            self._send_round()

    def _to_read(self) -> list[int]:
        """Returns what to read back next: overdue messages, else all that are due soon, if there is room for them."""
        overdue = sorted(number for number in self.round if self._content(number) is None)
        if overdue:
            return overdue
        if not self.soon:
            self.cold = []  # They were in memory after all.
        if not self.is_full and self.refill_ms <= self.host.wall_ms:
            return []  # More is to come, and each block should be read once for all.
        has_room = self.read_bytes < AHEAD_BYTES and self.host.content_bytes <= self.host.content_bytes_max
        return self.cold if has_room else []

    def _read_back(self, cold: list[int]) -> None:
        """Read messages back. Those between them are not kept; so only a block is read at once where few are wanted."""
        self.reading = True
        first, last = cold[0], cold[-1]
        is_dense = len(cold) * 4 > last - first

        def then(runs: list[Run] | None, following: int) -> None:
            self.reading = False
            if self.deleted:
                return
            if runs is None:
                following = first + 1  # It stays in the log, and whoever read it has said so.
            covered = {*_between(cold, first, following - 1), *_between(self.cold, first, following - 1)}
            wanted = sorted(covered)
            for run in runs or ():
                for number in _between(wanted, run.first, run.last):
                    self._put(number, run.contents[number - run.first], run.keys[number - run.first])
            del self.cold[bisect_left(self.cold, first) : bisect_left(self.cold, following)]
            # What is due and not there was settled before, or is not to be read.
            self.round = [one for one in self.round if one not in covered or self._content(one) is not None]
            self.host.dirty[self] = None

        self.host.read_range(self.spec.id, first, last, READ_BYTES if is_dense else 1, then)

    def _put(self, number: int, content: bytes, key: bytes) -> None:
        if number not in self.read and number not in self.under_way:
            self.read[number] = content, key
            self._count_read(len(content) + MESSAGE_OVERHEAD)

    def _count_read(self, size: int) -> None:
        self.read_bytes += size
        self.memory_bytes += size
        self.host.content_bytes += size

    def _send_round(self) -> None:
        """Send the due messages that are in memory, in order; not more than fit into one turn."""
        leaving: list[Leaving] = []
        size = 0
        for number in self.round:
            found = self._content(number)
            if found is None and self.read_bytes < AHEAD_BYTES:
                break
            if found is None:
                continue  # There is no room in which others could wait for it.
            leaving.append(self._leave(number, *found))
            if self.read.pop(number, None) is not None:
                self._count_read(-len(found[0]) - MESSAGE_OVERHEAD)
            size += len(found[0])
            if size > ROUND_BYTES:
                break
        for one in leaving:
            self.under_way[one.number] = len(one.queues) or 1
        self.round = [number for number in self.round if number not in self.under_way]
        for (queues, kind), several in groupby(leaving, lambda one: (one.queues, one.kind)):
            self._send(queues, kind, list(several))

    def _leave(self, number: int, content: bytes, key: bytes) -> Leaving:
        made, keys, kind = release(content, key)
        lacking = self.lacking.pop(number, None)
        if lacking is None:
            queues = self.host.vhosts[self.spec.vhost].route(self.exchange, keys, made)
        else:
            now = [self.host.successor(queue) or queue for queue in lacking]
            queues = tuple(queue for queue in now if not queue.deleted)
        return Leaving(number, made, key, kind, queues)

    def _send(self, queues: tuple[AnyQueue, ...], kind: int, several: Sequence[Leaving]) -> None:
        """Messages in a row that go the same way."""
        if not queues:
            self._on_released([one.number for one in several])
            return
        if len(queues) > 1 and kind & PERSISTENT:
            kind |= SHARED
        # What may refuse a message gets each by itself: see `Route.is_plain`.
        step = 1 if any(queue.rules.rejects for queue in queues) else len(several)
        for at in range(0, len(several), step):
            part = several[at : at + step]
            contents = [one.content for one in part]
            size = sum(map(len, contents)) + MESSAGE_OVERHEAD * len(part)
            for queue in queues:
                pending = PendingRelease(self, [one.number for one in part], queue)
                queue.enqueue(contents, [one.key for one in part], kind, size, pending)
                if not pending.waiting:
                    self.on_complete(pending)

    def on_complete(self, pending: Pending) -> None:
        """A target has answered."""
        assert isinstance(pending, PendingRelease)
        if self.deleted:
            return
        if pending.refused and not pending.target.rules.rejects:
            for number in pending.numbers:
                self.lacking.setdefault(number, []).append(pending.target)
        self._on_released(pending.numbers)

    def _on_released(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.under_way[number] -= 1
            if self.under_way[number]:
                continue
            del self.under_way[number]
            if number in self.lacking:
                again_ms = AGAIN_MS * (1 + len(self.lacking) // AGAIN_PER_S)
                self.schedule.add(self.host.wall_ms + again_ms, number)
                if len(self.lacking) > LACKING_MAX:
                    del self.lacking[number]
            else:
                self._settle(number)
        self.host.dirty[self] = None

    def _settle(self, number: int) -> None:
        settled = self.settled
        if not settled:
            self.settled = [(number, number)]
        elif settled[-1][1] == number - 1:
            settled[-1] = (settled[-1][0], number)
        else:
            settled.append((number, number))
        self.ready_count -= 1
        self.totals.acked += 1
        at = self._find(number)
        if at >= 0 and number <= self.warm[at].last:
            batch = self.warm[at]
            batch.blank(number - batch.first, number - batch.first + 1)
            self._let_go(batch, 1)
            if batch.left <= 0:
                del self.warm[at]


def _between(numbers: list[int], first: int, last: int) -> list[int]:
    """Returns those of ascending numbers that are in a range."""
    return numbers[bisect_left(numbers, first) : bisect_right(numbers, last)]


def arrivals(run: Run, lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """For the messages lo..hi - 1: the index, and when it came."""
    times = run.times
    for at, (start, came_ms) in enumerate(times):
        end = times[at + 1][0] if at + 1 < len(times) else hi
        for index in range(max(start, lo), min(end, hi)):
            yield index, came_ms
