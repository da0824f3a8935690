"""Filling up: how a member gets what it lacks while the queue runs on at full speed.

A member whose log ends before the blocks that its neighbours still have begins anew at a *cut*, the neighbour's
confirmed number, and takes part in the ring from there. What lives below the cut it fetches in bounded pieces from a
complete in-sync member, in the order of message numbers.

A piece says of the messages `after + 1` to `upto` which live, and brings the contents of those that the asker lacks. A
member that returns lacks little: what is stored of the beginning that both logs have in common is named in `have`, and
of that only the list of what still lives is sent. The same holds for one that was interrupted while it filled: the
messages it had fetched, and those of the blocks behind its former cut, count as had.

**Why cut and tail meet.** What is stored is a set: enqueued less settled, whatever the order. A piece is read at some
confirmed number `read_at` of its source, which may be ahead of the asker or behind it.

- Settled at or before read_at: not in the piece. If the asker has it stored, it settles it on the piece's word; which
  is final, since read_at was confirmed.
- Settled after read_at: that block is above the cut, so it passes the asker, before the piece (then the settle is
  remembered, and the message not stored when it comes) or after it.
- Enqueued above the cut: comes in its block.
- Given back, in a queue that keeps count: the piece says how often until read_at, for all that live, had or not; later
  counts come in blocks, before the message or after it, and of two the larger holds.
- Marks: all of them come with the first piece, each with the number of the block that set it, and of two the higher
  holds. So there is always a first piece, for a queue that never had a message, too.

So the copy is exact when all pieces are in and the asker's own confirmed number has reached the highest read_at, those
of pieces fetched before an interruption included: their source may have been restarted since, and know of less that is
confirmed. Until then it is *fuzzy*: no number of which one could say that it shows the queue there. It says that it is
complete when the disk knows, and only then may it be waited for, enter the in-sync set, and give pieces to others.

**Bounds.** One question is under way at a time, and the next is asked when the answer is on disk: a slow disk slows its
own filling, nobody else. An answer is one piece; or several, where an operator wants pieces of few messages
(`fill_messages`): to ask for each of them would cost a round trip and a sync for a handful. `fill_bytes_per_tick` caps
the rate: what one answer takes too much, the next waits for. With filling switched off, a member asks now and then
for what needs no contents, so that it is complete as soon as all that it lacks was consumed.

Messages that are fetched cost the nodes about as much as when they were published, and piece upon piece would come as
fast as the nodes can work. So while queues are in use (`yielding`) there is a rest between pieces, twice as long as the
last one took to come: a mirror that is complete some seconds later harms nobody, clients that are slowed down notice. A
node without other work fills as fast as it can.

A Reset is obeyed only with a view at least as new as the sender's: a member that was taken out of the in-sync set and
does not know it yet may still be the best copy there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from leveret.replication.ring_frames import Complete, Counts, Fetch, Fill, Piece, Ranges, Read, Recovered, Request
from leveret.storage.format.mirror_limits import HAVE_MAX
from leveret.storage.format.queue_block import Run
from leveret.storage.format.queue_marks import Mark

if TYPE_CHECKING:
    from leveret.replication.member import Member

# From one question to the next while the node has other work: ticks at least, and times what the last piece took.
YIELD_TICKS, YIELD_TIMES = 3, 3
BATCHES = 512  # Pieces of one answer, where each holds few messages.


def merged(ranges: list[tuple[int, int]]) -> Ranges:
    """Ascending, apart from each other, without empty ones."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(pair for pair in ranges if pair[0] <= pair[1]):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], high))
        else:
            result.append((low, high))
    return tuple(result)


class Filling:
    """The side that lacks something."""

    def __init__(self, member: Member, found: Recovered) -> None:
        self.member = member
        self.cut = found.cut
        self.bound = found.bound
        self.after = found.after  # Messages up to here are dealt with.
        self.have = found.have
        self.marked = found.marked or found.after > 0  # They come with the first piece.
        self.wanted = member.options.filling
        self.yielding = False  # The shell's word, before each tick.
        self._asked: str | None = None
        self._age = 0  # Ticks since a piece was asked for.
        self._pace = 0  # The age at which the next one may be, while the node has other work.
        self._turn = 0  # Whose turn it is to be asked.
        self._write = 0  # The last piece's.
        self._budget = member.options.fill_bytes_per_tick

    @property
    def is_filled(self) -> bool:
        return self.after >= self.bound and self.marked

    @property
    def progress(self) -> tuple[int, int]:
        """Message numbers dealt with, and to deal with."""
        return (self.bound, self.bound) if self.member.complete else (min(self.after, self.bound), self.bound)

    @property
    def lacks(self) -> Ranges:
        """Numbers of messages of which nothing is known here: some of them live, and their contents are missing."""
        found, at = [], self.after + 1
        for low, high in self.have:
            if at < low <= self.bound:
                found.append((at, low - 1))
            at = max(at, high + 1)
        if at <= self.bound:
            found.append((at, self.bound))
        return tuple(found)

    def start(self) -> None:
        """Fetch contents, whatever the options say."""
        self.wanted = True
        self._ask()

    def stop(self) -> None:
        self.wanted = False

    def kept(self, known: int) -> Ranges:
        """What stays of the messages that are stored, when the log begins anew and was the ring's up to `known`."""
        member = self.member
        if not member.options.incremental:
            return ()
        if known < member.confirmed or (member.complete and known < member.read_at):
            return ()  # Something was applied that the ring does not have.
        if not member.complete and known < self.cut:
            return ()
        member.confirm_to(min(known, member.tail.end))
        if member.complete:
            return merged([(1, member.messages)])
        ranges = merged([(1, self.after), *self.have, (self.bound + 1, member.messages)])
        return ranges if len(ranges) <= HAVE_MAX else ()

    def begin(self, cut: int, bound: int, have: Ranges) -> None:
        self.cut, self.bound, self.have, self.after, self.marked = cut, bound, have, 0, False
        self._asked = None
        self._write = self.member.written
        self.check()

    # -- events ----------------------------------------------------------------------

    def on_epoch(self) -> None:
        self._asked = None

    def on_peer_down(self, peer: str) -> None:
        if self._asked == peer:
            self._asked = None

    def on_synced(self) -> None:
        self._ask()

    def on_tick(self) -> None:
        if self.member.matched:
            self.check()  # After a restart, all that it waits for may be there already.
        self._age += 1
        rate = self.member.options.fill_bytes_per_tick
        self._budget = min(rate, self._budget + rate)
        patience = self.member.options.retry * (1 if self.wanted else 4)
        if self._asked is not None and self._age > patience:
            self._asked = None
            self._turn += 1
        if self._asked is None:
            self._ask()

    def _ask(self) -> None:
        member, view = self.member, self.member.view
        if member.complete or self.is_filled or self._asked is not None or not member.matched or view is None:
            return
        if member.synced_to < self._write or (member.options.fill_bytes_per_tick and self._budget < 0):
            return
        if self.yielding and self._age < self._pace:
            return
        sources = [name for name in member.neighbours.left if name in member.links and view.disk_of(name) is not None]
        if not sources:
            return
        self._asked, self._age = sources[self._turn % len(sources)], 0
        bytes_max = member.options.piece_bytes if self.wanted else 0
        batch = member.options.fill_messages
        bound = min(self.bound, self.after + batch * BATCHES) if batch else self.bound
        member.send(self._asked, Fetch(view.epoch, self.cut, self.after, bound, self.have, bytes_max, batch))

    def on_piece(self, frame: Piece) -> None:
        member = self.member
        if member.complete or self.is_filled:
            return
        if (frame.cut, frame.after, frame.have) != (self.cut, self.after, self.have):
            return  # The answer to an older question, perhaps of one who was a member here before and had something.
        if frame.upto <= frame.after and self.after < self.bound:
            return  # Nothing without contents; the tick asks again.
        if not frame.more:
            self._asked = None
            self._pace = max(YIELD_TICKS, YIELD_TIMES * self._age)
        self.after, self.marked = frame.upto, True
        member.read_at = max(member.read_at, frame.read_at)
        after, upto, read_at = frame.after, frame.upto, member.read_at
        member.write(Fill(after, upto, frame.live, frame.runs, read_at, frame.counts, frame.marks))
        self._write = member.written
        self._budget -= sum(sum(map(len, run.contents)) for run in frame.runs)
        self.check()

    def check(self) -> None:
        """Have cut and tail met?"""
        member = self.member
        if not member.complete and self.is_filled and member.confirmed >= member.read_at:
            member.complete = True
            member.write(Complete(member.read_at))
            member.floor = member.written


class Source:
    """The side that gives. At most one read is under way for each member that asks."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.reads: dict[str, Request] = {}

    def on_fetch(self, src: str, frame: Fetch) -> None:
        member = self.member
        if not (member.complete and member.matched) or member.confirmed < max(frame.cut, member.read_at):
            return  # The asker will try another.
        old = self.reads.get(src)
        if old is not None and (old.cut, old.after, old.have) == (frame.cut, frame.after, frame.have):
            return
        cut, after, bound, have = frame.cut, frame.after, frame.bound, frame.have
        bytes_max = min(frame.bytes_max, member.options.piece_bytes)
        self.reads[src] = request = Request(src, cut, after, bound, have, bytes_max, member.confirmed, frame.batch)
        member.out.append(Read(request))

    def on_read(
        self,
        request: Request,
        live: Ranges,
        runs: tuple[Run, ...],
        upto: int,
        counts: Counts = (),
        marks: tuple[Mark, ...] = (),
    ) -> None:
        member, view = self.member, self.member.view
        if view is None or self.reads.get(request.to) is not request:
            return  # Its link broke, or the epoch is another.
        del self.reads[request.to]
        cut, after, have, read_at = request.cut, request.after, request.have, request.read_at
        whole = Piece(view.epoch, cut, after, have, upto, live, runs, read_at, counts, marks)
        for piece in pieces(whole, request.batch):
            member.send(request.to, piece)


def pieces(whole: Piece, batch: int) -> Iterator[Piece]:
    """One answer as pieces of at most `batch` message numbers each, in their order."""
    after, upto = whole.after, whole.upto
    if not batch or upto - after <= batch:
        yield whole
        return
    batch = max(batch, -(-(upto - after) // BATCHES))  # Whoever asks for more gets no more pieces.
    live: deque[tuple[int, ...]] = deque(whole.live)
    counts: deque[tuple[int, ...]] = deque(whole.counts)
    runs, marks = deque(whole.runs), whole.marks
    while after < upto:
        end = min(after + batch, upto)
        yield whole._replace(
            after=after,
            upto=end,
            live=tuple((low, high) for low, high in _taken(live, end)),
            runs=tuple(_taken_runs(runs, end)),
            counts=tuple((low, high, count) for low, high, count in _taken(counts, end)),
            marks=marks,
            more=end < upto,
        )
        after, marks = end, ()


def _taken(ranges: deque[tuple[int, ...]], end: int) -> Iterator[tuple[int, ...]]:
    """Takes the part of ascending ranges that is not above `end`."""
    while ranges and ranges[0][0] <= end:
        low, high, *rest = ranges.popleft()
        if high > end:
            ranges.appendleft((end + 1, high, *rest))
            high = end
        yield (low, high, *rest)


def _taken_runs(runs: deque[Run], end: int) -> Iterator[Run]:
    while runs and runs[0].first <= end:
        run = runs.popleft()
        if run.last > end:
            part = end - run.first + 1
            runs.appendleft(run.cut(part, len(run.contents)))
            run = run.cut(0, part)
        yield run
