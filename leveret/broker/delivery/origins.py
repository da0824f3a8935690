"""Origins: a message that is moved from queue to queue is taken once, however often and by whom it is brought.

A producer (see `broker.queue.dedup`) promises to bring its messages in the order of their numbers. Who moves messages
out of a queue cannot: a message that another consumer has returned comes late, and of two workers that do not know of
each other each brings a part. So what is moved is recognized by its *origin*, the queue that it comes from and its
number there, and the destination remembers a *set* of numbers for each source:

    number in the set        it was taken before: passed over, and confirmed when the first one is safe
    otherwise                it is taken, and the number enters the set in the same block

The set is a mark of the destination queue, written in the very block that holds the messages it tells of, so that it is
exactly as safe as they are. Of one source it is mostly a single range. It has at most `RANGES_MAX`; beyond that the
lowest are forgotten, and a message of those that comes again would be taken again. Nothing in here can take a message
for a copy of another one: that would lose it.

**Runs.** That demands that a number never means two messages, and a queue alone cannot promise it: messages are handed
out before their block is on disk. If the node dies then, they never were, and the next messages get their numbers. Each
*run* of a queue at a master therefore has a random tag, which is part of the origin. The mark `RUNS` lists which
numbers belong to which run: when a queue is restored, it goes on under a new tag from its next number, and what the log
has keeps its old one. The entry of a run is in the first block that the run writes. If no block of the run is written,
none of its numbers survives, and the next run has a tag of its own.

The first run is different: a queue notes it when origins are asked of it for the first time, and may have messages by
then. If the node died before the note is safe, those would come again under another tag. So nobody gets a message with
its origin before that (`FirstRun`).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from leveret.base.range_set import RangeSet
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD
from leveret.broker.delivery.extension import Extension
from leveret.broker.delivery.publish_numbers import ENTRY, PREFIX
from leveret.protocol.origins import source_of, with_origins

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.publish_numbers import Origin
    from leveret.broker.queue.local_queue import LocalQueue

PRODUCER: Final = b"origin "  # How the names of sources begin, among those of producers.
RUNS: Final = b"origin-runs"
RUN: Final = Struct(">QQ")  # The first number of a run, and its tag.
RUNS_MAX: Final = 64
RANGES_MAX: Final = 1_024
RANGES_MIN: Final = 16  # Where the queue has little room for marks.
TAG_MAX: Final = 1 << 63


# -- At the source -------------------------------------------------------------------------------------------------


class FirstRun(Extension):
    """A queue has it while the note of its first run is not safe."""

    __slots__ = ("queue",)

    def __init__(self, queue: LocalQueue) -> None:
        self.queue = queue

    def on_noted(self, is_safe: bool) -> None:
        """The note is where it has to be, or never will be: the queue is led by another node, or gone."""
        if is_safe:
            self.queue.remove_extension(self)
            self.queue.host.dirty[self.queue] = None


def note_first_run(queue: LocalQueue, draw: Callable[[int], int]) -> None:
    """Origins are asked of a queue: it has to remember its runs from now on. Where there is no room, it does not."""
    state = queue.durable_state
    if RUNS in state.table:
        return
    mark = RUN.pack(0, draw(TAG_MAX))
    if state.fits(RUNS, mark):
        state.set(RUNS, mark)
        if state.is_logged:
            first = FirstRun(queue)
            queue.extend(first)
            state.when_block_safe(first.on_noted)


def begin_run(queue: LocalQueue, draw: Callable[[int], int]) -> None:
    """A queue was restored: what it takes from now on belongs to another run. Only if origins were ever asked of it."""
    mark = queue.durable_state.table.get(RUNS)
    if mark is not None:
        runs = [*RUN.iter_unpack(mark), (queue.next_seq, draw(TAG_MAX))][-RUNS_MAX:]
        runs[0] = (0, runs[0][1])
        queue.durable_state.set_quietly(RUNS, b"".join(RUN.pack(*one) for one in runs))


def runs_of(queue: LocalQueue, batch: Batch, lo: int, hi: int, cluster: bytes) -> list[tuple[bytes, int, int]]:
    """Return the runs that messages of a batch belong to: the source of each, and which places in the batch it has.

    Nothing is returned where the queue has no room to remember its runs.
    """
    mark = queue.durable_state.table.get(RUNS)
    if mark is None:
        return []
    runs = list(RUN.iter_unpack(mark))
    found: list[tuple[bytes, int, int]] = []
    at, end = batch.first + lo, batch.first + hi
    for (first, tag), (following, _) in zip(runs, [*runs[1:], (end, 0)], strict=True):
        stop = min(following, end)
        if stop > at and first <= at:
            found.append((source_of(cluster, queue.spec.id, tag), at - batch.first, stop - batch.first))
            at = stop
    return found


def labelled(queue: LocalQueue, batch: Batch, lo: int, hi: int, contents: list[bytes], cluster: bytes) -> list[bytes]:
    """Return contents of a batch, each with its origin."""
    runs = runs_of(queue, batch, lo, hi, cluster)
    if not runs:
        return contents
    made: list[bytes] = []
    for source, start, stop in runs:
        made += with_origins(contents[start - lo : stop - lo], source, batch.first + start)
    return made


# -- At the destination --------------------------------------------------------------------------------------------


def take(
    queue: LocalQueue,
    origin: Origin,
    contents: list[bytes],
    keys: list[bytes],
    kind: int,
    size: int,
    pending: Pending,
    make_room: Callable[[LocalQueue, bytes], bool],
) -> bool:
    """Enqueue those of these messages that did not come before. True: the queue is crowded.

    `make_room` tells whether the queue can remember one more source.
    """
    name = PREFIX + origin.producer
    state = queue.durable_state
    known = state.table.get(name)
    taken = RangeSet() if known is None else RangeSet.unpack(known[ENTRY.size :])
    first, last = origin.first, origin.first + len(contents) - 1
    if known is None and not make_room(queue, name):
        pending.mark_refused()
        return False
    old = taken.count_within(first, last)
    slow, is_new = False, old < len(contents)
    if is_new:
        if old:
            places = [at for at in range(len(contents)) if first + at not in taken]
            contents, keys = [contents[at] for at in places], [keys[at] for at in places]
            size = sum(map(len, contents)) + MESSAGE_OVERHEAD * len(contents)
        following = queue.next_seq
        slow = queue.enqueue(contents, keys, kind, size, pending)
        if queue.next_seq == following:
            return slow  # It is full, and has refused them.
        queue.drop_last_due_confirm()
        taken.add(first, last)
    entry = _entry(queue, name, taken)
    if is_new and not pending.waiting:
        state.set_quietly(name, entry)  # They are in no log, and go when the node does.
        return slow
    state.set(name, entry)
    if not is_new and state.changes:
        pending.waiting += 1
        queue.await_block(pending)
    return slow


def _entry(queue: LocalQueue, name: bytes, taken: RangeSet) -> bytes:
    """Return the mark of a source: like that of a producer, with the set behind it."""
    head = ENTRY.pack(taken.last or 0, queue.host.wall_ms)
    for most in (RANGES_MAX, RANGES_MIN):
        while taken.range_count > most:
            lowest = next(iter(taken))
            taken.remove(*lowest)
        entry = head + taken.pack()
        if queue.durable_state.fits(name, entry):
            return entry
    taken.clear()
    return head
