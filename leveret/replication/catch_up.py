"""Filling: how a member gets the messages that it lacks while the queue is in use.

A member whose log ends before the blocks that its neighbours still have starts again at a *cut*, the neighbour's
confirmed number, and takes part in the ring from there. It fetches the live messages below the cut in pieces of limited
size from a complete in-sync member, in the order of message numbers.

A piece lists the live messages of `after + 1` to `upto`, and has the contents of those that the asker lacks. A member
that returns lacks little: messages of the common beginning of both logs are named in `have`, and for these only the
list of live ones is sent. The same holds for a member that was interrupted while it was filled: the messages it had
fetched, and those of the blocks after its former cut, are in `have`.

**Why the result is exact.** The stored state is a set: enqueued minus settled, in any order. A piece is read at some
confirmed number `read_at` of its source, which may be ahead of the asker or behind it.

- Messages settled at or before read_at are not in the piece. If the asker has stored one, it settles it; that is final,
  since read_at was confirmed.
- Messages settled after read_at: that block is above the cut, so the asker gets it, before the piece (then the settle
  is remembered, and the message is not stored when it arrives) or after it.
- Messages enqueued above the cut arrive in their blocks.
- Requeues, in a queue that counts them: the piece has the counts until read_at of all live messages, also of those in
  `have`; later counts come in blocks, before the message or after it, and the larger of two is valid.
- Messages that may have been delivered: the piece names those until read_at, also of those in `have`; later ones come
  in blocks. In most queues "delivered through" says as much. A queue with priorities has no such number: there a client
  would get a message a second time without being told so.
- Marks: all of them come with the first piece, each with the number of the block that set it, and the higher of two is
  valid. So there is always a first piece, also for a queue that never had a message.

So the copy is exact when all pieces have arrived and the asker's own confirmed number has reached the highest read_at,
including those of pieces fetched before an interruption: their source may have been restarted since, and know a lower
confirmed number. Until then the copy is *fuzzy*: it does not show the queue at any block number. It reports that it is
complete when that is on disk, and only then may it be waited for, enter the in-sync set, and give pieces to others.

**Limits.** One request is under way at a time, and the next is sent when the answer is on disk: a slow disk slows down
only its own filling. An answer is one piece; or several, where an operator wants pieces of few messages
(`fill_messages`): to request each of them would cost a round trip and a sync for a few messages. `fill_bytes_per_tick`
limits the rate: after a large answer, the next request waits. With filling switched off, a member requests now and then
what needs no contents, so that it is complete as soon as all messages that it lacks are consumed.

Fetching a message costs the nodes about as much as publishing it, and pieces would follow each other as fast as the
nodes can work. So while queues are in use (`yielding`) there is a pause between pieces, twice as long as the last one
took: it does not matter if a mirror is complete some seconds later, but clients would notice a slower node. A node
without other work fills as fast as it can.

A Reset is obeyed only with a view at least as new as the sender's: a member that was removed from the in-sync set and
does not know it yet may still be the best copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from leveret.base.shared_values import NO_DICT
from leveret.replication.ring_frames import Counts, Fetch, Fill, Piece, Ranges, Read, Recovered, Request
from leveret.storage.format.mirror_limits import HAVE_MAX
from leveret.storage.format.queue_block import Run
from leveret.storage.format.queue_marks import Mark

if TYPE_CHECKING:
    from leveret.replication.member import Member

# The time between requests while the node has other work: at least so many ticks, and so many times the time of the
# last.
YIELD_TICKS, YIELD_TIMES = 3, 3
DOUBLINGS_MAX = 4  # How often the wait for an answer doubles: from 0.15 to 2.4 s, or from 0.6 to 9.6 s: see `retry`.
BATCHES = 512  # The most pieces of one answer, if each has few messages.


def merged(ranges: list[tuple[int, int]]) -> Ranges:
    """Return the same numbers as ascending ranges that do not touch, without empty ones."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(pair for pair in ranges if pair[0] <= pair[1]):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], high))
        else:
            result.append((low, high))
    return tuple(result)


class Filling:
    """The side that fetches messages."""

    __slots__ = (
        "member", "cut", "bound", "after", "have", "marked", "wanted", "yielding", "_asked", "_age", "_unanswered",
        "_pace", "_turn", "_write", "_budget",
    )  # fmt: skip

    def __init__(self, member: Member, found: Recovered) -> None:
        self.member = member
        self.cut = found.cut
        self.bound = found.bound
        self.after = found.after  # Messages up to here are done.
        self.have = found.have
        self.marked = found.marked or found.after > 0  # It has the queue's marks, which come with the first piece.
        self.wanted = member.options.filling if member.ordered is None else member.ordered
        self.yielding = False  # Whether queues are in use; set by the shell before each tick.
        self._asked: str | None = None
        self._age = 0  # Ticks since the last request.
        self._unanswered = 0  # Requests in a row without an answer.
        self._pace = 0  # The age at which the next request may follow, while the node has other work.
        self._turn = 0  # The member to ask next.
        self._write = 0  # The write of the last piece.
        self._budget = member.options.fill_bytes_per_tick

    @property
    def is_filled(self) -> bool:
        return self.after >= self.bound and self.marked

    @property
    def progress(self) -> tuple[int, int]:
        """The message numbers that are done, and those in all."""
        return (self.bound, self.bound) if self.member.complete else (min(self.after, self.bound), self.bound)

    @property
    def lacks(self) -> Ranges:
        """Return the message numbers of which nothing is known here: some of them are live, and their contents missing.
        """
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
        """Return the stored messages that stay when the log starts again and equals the ring's up to `known`."""
        member = self.member
        if not member.options.incremental:
            return ()
        if known < member.confirmed or (member.complete and known < member.read_at):
            return ()  # Blocks were applied that the ring does not have.
        if not member.complete and known < self.cut:
            return ()
        member.confirm_to(min(known, member.tail.end))
        if member.complete:
            return merged([(1, member.messages)])
        ranges = merged([(1, self.after), *self.have, (self.bound + 1, member.messages)])
        return ranges if len(ranges) <= HAVE_MAX else ()

    def begin(self, cut: int, bound: int, have: Ranges) -> None:
        self.cut, self.bound, self.have, self.after, self.marked = cut, bound, have, 0, False
        self._asked, self._unanswered = None, 0
        self._write = self.member.written
        self.check()

    # -- events ----------------------------------------------------------------------

    def on_epoch(self) -> None:
        self._asked, self._unanswered = None, 0

    def on_peer_down(self, peer: str) -> None:
        if self._asked == peer:
            self._asked, self._unanswered = None, 0

    def on_synced(self) -> None:
        self._ask()

    def on_tick(self) -> None:
        if self.member.matched:
            self.check()  # After a restart, the copy may be complete already.
        self._age += 1
        rate = self.member.options.fill_bytes_per_tick
        self._budget = min(rate, self._budget + rate)
        patience = self.member.options.retry * (1 if self.wanted else 4)
        # The answer may be on its way, over a slow link: if each repeated request brought another one, they would fill
        # the link, and keep back all else that both nodes have to say.
        if self._asked is not None and self._age > patience << min(self._unanswered, DOUBLINGS_MAX):
            self._asked = None
            self._unanswered += 1
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
        member.send(self._asked, Fetch(view.epoch, self.cut, self.after, self.bound, self.have, bytes_max, batch))

    def on_piece(self, frame: Piece) -> None:
        member = self.member
        if member.complete or self.is_filled:
            return
        if (frame.cut, frame.after, frame.have) != (self.cut, self.after, self.have):
            return  # The answer to an older request, perhaps of an earlier member on this node.
        if frame.upto <= frame.after and self.after < self.bound:
            return  # Nothing can be sent without contents; the tick asks again.
        if not frame.more:
            self._asked = None
            self._pace = max(YIELD_TICKS, YIELD_TIMES * self._age)
        self._unanswered = 0
        self.after, self.marked = frame.upto, True
        after, upto, read_at = frame.after, frame.upto, member.raise_read_at(frame.read_at)
        member.write(Fill(after, upto, frame.live, frame.runs, read_at, frame.counts, frame.marks, frame.requeued))
        self._write = member.written
        self._budget -= sum(sum(map(len, run.contents)) for run in frame.runs)
        self.check()

    def check(self) -> None:
        """Note that the copy is complete, if it is."""
        member = self.member
        if not member.complete and self.is_filled and member.confirmed >= member.read_at:
            member.become_complete(member.read_at)


class Source:
    """The side that gives messages. At most one read is under way for each member that asks."""

    __slots__ = ("member", "reads")

    def __init__(self, member: Member) -> None:
        self.member = member
        self.reads: dict[str, Request] = NO_DICT

    def forget(self, peer: str) -> None:
        """Drop the request of a member, if there is one."""
        if peer in self.reads:
            del self.reads[peer]

    def on_fetch(self, src: str, frame: Fetch) -> None:
        member = self.member
        if not (member.complete and member.matched) or member.confirmed < max(frame.cut, member.read_at):
            return  # The asker will try another member.
        old = self.reads.get(src)
        if old is not None and (old.cut, old.after, old.have) == (frame.cut, frame.after, frame.have):
            return
        cut, after, bound, have = frame.cut, frame.after, frame.bound, frame.have
        bytes_max = min(frame.bytes_max, member.options.piece_bytes)
        request = Request(src, cut, after, bound, have, bytes_max, member.confirmed, frame.batch)
        self.reads = {**self.reads, src: request}
        member.do(Read(request))

    def on_read(
        self,
        request: Request,
        live: Ranges,
        runs: tuple[Run, ...],
        upto: int,
        counts: Counts = (),
        marks: tuple[Mark, ...] = (),
        requeued: Ranges = (),
    ) -> None:
        member, view = self.member, self.member.view
        if view is None or self.reads.get(request.to) is not request:
            return  # Its link broke, or the epoch has changed.
        del self.reads[request.to]
        cut, after, have, read_at = request.cut, request.after, request.have, request.read_at
        whole = Piece(view.epoch, cut, after, have, upto, live, runs, read_at, counts, marks, requeued=requeued)
        for piece in pieces(whole, request.batch):
            member.send(request.to, piece)


def pieces(whole: Piece, batch: int) -> Iterator[Piece]:
    """Yield an answer as pieces of at most `batch` live messages each, in order. Numbers of which no message is live
    cost nothing: a queue that was moved has left out four billion of them."""
    after, upto = whole.after, whole.upto
    count = sum(high - low + 1 for low, high in whole.live)
    if not batch or count <= batch:
        yield whole
        return
    batch = max(batch, -(-count // BATCHES))  # At most `BATCHES` pieces.
    live: deque[tuple[int, ...]] = deque(whole.live)
    counts: deque[tuple[int, ...]] = deque(whole.counts)
    requeued: deque[tuple[int, ...]] = deque(whole.requeued)
    runs, marks = deque(whole.runs), whole.marks
    while after < upto:
        end = _end_of(live, batch, upto)
        yield whole._replace(
            after=after,
            upto=end,
            live=tuple((low, high) for low, high in _taken(live, end)),
            runs=tuple(_taken_runs(runs, end)),
            counts=tuple((low, high, count) for low, high, count in _taken(counts, end)),
            marks=marks,
            more=end < upto,
            requeued=tuple((low, high) for low, high in _taken(requeued, end)),
        )
        after, marks = end, ()


def _end_of(live: Iterable[tuple[int, ...]], count: int, upto: int) -> int:
    """Return the highest number up to which there are at most `count` live messages."""
    for low, high in live:
        if high - low + 1 > count:
            return low + count - 1
        count -= high - low + 1
    return upto


def _taken(ranges: deque[tuple[int, ...]], end: int) -> Iterator[tuple[int, ...]]:
    """Take and yield the part of ascending ranges up to `end`."""
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
