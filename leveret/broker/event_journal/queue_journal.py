"""What a node's journal (see `journal`) notes of one queue that it leads: runs and ranges, made events of now and then.

What one publisher sends after another has neighbouring numbers in the queue and, if it waits for confirms, neighbouring
numbers of its own: a *run*, which is its beginning and how far it has come. A run grows over many commits. When the
journal is written, each run says what is new of it, and goes on.

    numbers   1 … 40 41 … 90     the run (1: publisher P, its 1) says 1 … 40, then 41 … 90, and is one entry
              └ told ┘└ new ┘

**Not lost with the process.** The journal is not written in every commit. What a killed node had not written it makes
up for at its next start, from what is in the queue's log anyway:

- Which messages are settled, the log knows for good; all of it is told again (`recovered`, `settled`).
- Which messages came, it knows, too, but not from whom, and under which numbers of theirs: who was told of a confirm
  must find its message. So the beginnings of runs go into a mark of the queue (`leveret.storage.format.queue_marks`),
  in the block in which they begin, and everything else follows from them, for a run ends where the next begins
  (`recovered`, `published`). One publisher alone costs one mark, many in turn cost some dozen bytes each.

The mark has those that began since the journal was written last, and the one that still goes on. It is older than that
after the journal was written, never younger: what is told twice is so in sets. A mirror has it as well, so
that the next master knows from whom its messages came.

Where nobody waits for a confirm there is nobody to be told of it, and an entry only says where such a stretch begins.
"""

from __future__ import annotations

import json
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from leveret.base.range_set import RangeSet, merged
from leveret.broker.delivery.confirms import NEVER, Numbers
from leveret.broker.delivery.extension import Extension
from leveret.metadata.rules.ha_policy import is_stream
from leveret.metadata.rules.queue_rules import JOURNAL_WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.confirms import Confirmer, Pending
    from leveret.broker.delivery.consumer import Consumer
    from leveret.broker.event_journal.node_journal import NodeJournal
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.storage.format.queue_block import Block

    Taker: TypeAlias = Consumer | str | None

GATHER_MS: Final = 10  # What is further apart has a time of its own.
MARK: Final = b"journal"
ENTRIES_MAX: Final = 64  # Of a mark; with more of them the journal is written.
RECOVERED_MAX: Final = 100_000  # Ranges that are told again of a queue, the last ones.
SAMPLE: Final = 64  # Neighbours that are in a sample together.
TAKERS_MAX: Final = 64  # Consumers that are named with what they were given together.

# Why a message has left, and as what that is told.
LEFT: Final = {
    "expired": "expired",
    "rejected": "rejected",
    "maxlen": "dropped",
    "delivery_limit": "dropped",
    "purged": "dropped",
}

_ENTRY: Final = Struct("<QQQH")  # First message; the publisher's number for it; if they share it, the last; who
_NUMBERS: Final = Struct("<BQQ")  # Behind who, if it is a node: a zero, its numbers as a producer; and then its name

Range = tuple[int, int]


def sampled(parts: int, queue: int, first: int, last: int) -> list[Range]:
    """Returns which messages of a range are recorded, where `parts` of a million are."""
    if parts >= JOURNAL_WHOLE:
        return [(first, last)]
    found: list[Range] = []
    stretch = first // SAMPLE
    while stretch * SAMPLE <= last:
        over = (stretch + queue) * parts % JOURNAL_WHOLE
        if over >= parts:  # The next that is told: where the multiples of `parts` pass a whole number of wholes.
            stretch += -((over - JOURNAL_WHOLE) // parts)
            continue
        low, high = max(first, stretch * SAMPLE), min(last, stretch * SAMPLE + SAMPLE - 1)
        if found and found[-1][1] == low - 1:
            found[-1] = (found[-1][0], high)
        else:
            found.append((low, high))
        stretch += 1
    return found


class Run:
    """Neighbours that came from one publisher."""

    __slots__ = (
        "confirms", "first", "is_counted", "is_transient", "kind", "last", "numbers", "published_first",
        "published_last", "published_next", "shown", "told", "who",
    )  # fmt: skip

    def __init__(self, first: int, last: int, kind: int, who: str, is_transient: bool) -> None:
        self.first = first
        self.last = last
        self.kind = kind
        self.who = who
        self.is_transient = is_transient
        self.told = self.shown = first - 1  # Up to where it was told to have come, and to be confirmed.
        self.confirms: Confirmer | None = None
        self.published_first = self.published_last = 0  # The publisher's own numbers for them,
        self.is_counted = False  # one for each; then
        self.published_next = 0  # its number of the message that comes next, if it is the publisher's next.
        self.numbers: Numbers | None = None  # Those of the producer as which another node, or a spool, sent them.

    def details(self, first: int, last: int) -> str:
        more = ',"transient":true' if self.is_transient else ""
        if self.numbers is not None:
            low, high = self.numbers.low, self.numbers.high
            if high - low == self.last - self.first:
                low, high = low + first - self.first, low + last - self.first
            more += f',"producer":{json.dumps(producer_name(self.numbers.producer))},"numbers":[{low},{high}]'
        if self.is_counted:
            more += f',"said":[{self.published_first + first - self.first},{self.published_first + last - self.first}]'
        elif self.published_first:
            more += f',"said":[{self.published_first},{self.published_last}]'
        return more

    def entry(self) -> bytes:
        if not self.published_first or self.is_transient:
            return _ENTRY.pack(self.first, 0, 0, 0)
        who = self.who.encode("utf-8", "surrogateescape")
        if self.numbers is not None:
            who += _NUMBERS.pack(0, self.numbers.low, self.numbers.high) + self.numbers.producer
        last = 0 if self.is_counted else self.published_last
        return _ENTRY.pack(self.first, self.published_first, last, len(who)) + who


def recovered(mark: bytes, through: int) -> list[Run]:
    """Returns, from a mark, who published messages up to this one that wait for confirms."""
    runs: list[Run] = []
    at = 0
    while at < len(mark):
        first, own_first, said_last, size = _ENTRY.unpack_from(mark, at)
        at += _ENTRY.size
        if runs:
            runs[-1].last = min(first - 1, through)
        who, zero, numbers = mark[at : at + size].partition(b"\0")
        run = Run(first, through, 0, who.decode("utf-8", "surrogateescape"), False)
        run.published_first, run.published_last, run.is_counted = own_first, said_last, own_first > 0 and not said_last
        if zero:
            _, low, high = _NUMBERS.unpack_from(zero + numbers)
            run.numbers = Numbers(numbers[_NUMBERS.size - 1 :], low, high)
        runs.append(run)
        at += size
    for run in runs:
        if run.numbers is not None and run.is_counted:  # It has grown since.
            run.numbers = run.numbers._replace(high=run.numbers.low + run.last - run.first)
    return [run for run in runs if run.published_first and run.first <= run.last]


def producer_name(producer: bytes) -> str:
    return producer.decode("utf-8", "backslashreplace")


class QueueJournal(Extension):
    """Collects the events of one queue, at its master."""

    __slots__ = (
        "about", "acked", "acked_ms", "broker", "current", "entries", "epoch", "explained", "given", "has_entries",
        "inherited", "is_told", "is_touched", "journal", "left", "names", "out", "out_ms", "parts", "queue", "requeued",
        "safe", "safe_ms", "settled_as", "since_ms", "takers", "unsafe",
    )  # fmt: skip

    def __init__(self, journal: NodeJournal, queue: LocalQueue, parts: int) -> None:
        self.journal = journal
        self.broker = journal.broker
        self.queue = queue
        self.parts = parts
        self.names = f"{json.dumps(queue.spec.vhost)},{json.dumps(queue.spec.name)}"
        self.epoch, self.about = -1, ""  # How the details of all events of that epoch begin.
        # A stream's messages are given up in their order, and by nobody else.
        self.settled_as = "dropped" if is_stream(queue.spec.arguments) else "acked"
        self.is_told = False  # That it is watched.
        self.is_touched = False
        self.since_ms = 0  # When the oldest of what was noted and not told happened.
        self.given: list[Run] = []
        self.current: Run | None = None  # The last of them, if it can still grow.
        self.entries: list[bytes] = []  # Of the mark.
        self.has_entries = False  # That no block has.
        self.unsafe: deque[Run] = deque()  # Their publishers wait for a confirm.
        self.safe: list[tuple[Run, int, int]] = []
        # When the first of those happened that wait to be told: of one gathering, confirms come later than publishes.
        self.safe_ms = self.out_ms = self.acked_ms = 0
        self.out: list[Range] = []
        self.takers: dict[Taker, int] = {}
        self.requeued: list[Range] = []
        self.left: list[tuple[str, str, int, int]] = []  # As what, why, first, last.
        self.explained = RangeSet()  # Left in a known way, and not yet settled in a block.
        self.acked: list[Range] = []
        self.inherited: list[Range] = []  # What blocks settle that the log has not applied yet.
        self._touch()

    def _touch(self) -> None:
        """Something is about to be noted."""
        now_ms = self.broker.wall_ms
        if not self.is_touched:
            self.is_touched = True
            self.since_ms = now_ms
            self.journal.touched[self] = None
        elif self.is_told and not 0 <= now_ms - self.since_ms <= GATHER_MS:
            self.drain()
            self.is_touched = True
            self.since_ms = now_ms

    def set_parts(self, parts: int) -> None:
        """Record so many of a million messages from now on."""
        self.parts = parts

    def inherit(self, tail: Iterable[Block]) -> None:
        """This node leads the queue from now on, and these blocks wait for the ring's consent."""
        self.inherited = [one for block in tail for one in block.settled]

    # -- What the queue tells ------------------------------------------------------------------------------------

    def on_enqueued(self, count: int, kind: int, pending: Pending | None) -> None:
        """The last `count` messages of the queue have just come."""
        run = self.current
        numbers: Numbers | None = None
        if pending is not None:
            author = pending.client_publish
            # What a node sends again may be there in part: then only its numbers tell which messages these are.
            if author is pending or author.last + 1 - author.first != count:
                numbers = pending.numbered
            else:
                pending = author
        if not self.is_told:
            self._begin(self.queue.next_seq - 1 - count)
        if not self.is_touched or not 0 <= self.broker.wall_ms - self.since_ms <= GATHER_MS:
            self._touch()
        if run is None or run.kind != kind:
            self._new_run(count, kind, pending, numbers)
        elif pending is None:
            if run.confirms is None and run.who == self.journal.source:
                run.last += count
            else:
                self._new_run(count, kind, pending, numbers)
        elif numbers is not None and not _is_next(run, numbers):
            self._new_run(count, kind, pending, numbers)
        # Right behind, and each with a number of its own: in a bundle over a link, they have one together.
        elif run.published_next == pending.first == pending.last + 1 - count and run.confirms is pending.confirms:
            run.last += count
            run.published_next += count
            if numbers is not None and run.numbers is not None:
                run.numbers = run.numbers._replace(high=numbers.high)
            if run.is_transient:
                self._confirm(run, run.last)
        else:
            self._new_run(count, kind, pending, numbers)

    def _new_run(self, count: int, kind: int, pending: Pending | None, numbers: Numbers | None) -> None:
        journal, queue = self.journal, self.queue
        last, logs = queue.next_seq - 1, queue.logs
        run = self.current = Run(last - count + 1, last, kind, journal.publisher(pending), kind & logs != logs)
        self.given.append(run)
        if pending is not None:
            run.confirms, run.published_first, run.published_last = pending.confirms, pending.first, pending.last
            run.numbers = numbers
            if pending.first == pending.last + 1 - count:
                run.is_counted = True
                run.published_next = pending.last + 1
            if run.is_transient:
                self._confirm(run, last)
            else:
                self.unsafe.append(run)
        entry = run.entry()
        if logs != NEVER and (len(entry) > _ENTRY.size or not self.entries or len(self.entries[-1]) > _ENTRY.size):
            self.entries.append(entry)
            self.has_entries = True
            if len(self.entries) > ENTRIES_MAX:
                journal.is_urgent = True
                del self.entries[0]

    def on_refused(self, count: int, pending: Pending | None) -> None:
        """So many messages were turned away: the queue is full. They have no numbers."""
        self._tell("refused", 0, 0, count, self.journal.publisher(pending))

    def on_delivered(self, taker: Taker, first: int, last: int) -> None:
        """None: with basic.get. A name: what is no consumer."""
        if not self.is_touched or not 0 <= self.broker.wall_ms - self.since_ms <= GATHER_MS:
            self._touch()
        out, takers = self.out, self.takers
        if out and out[-1][1] == first - 1:
            out[-1] = (out[-1][0], last)
        else:
            if not out:
                self.out_ms = self.broker.wall_ms
            out.append((first, last))
        takers[taker] = takers.get(taker, 0) + last - first + 1

    def on_returned(self, first: int, last: int) -> None:
        self._touch()
        self.requeued.append((first, last))

    def on_unserved(self, reason: str, first: int, last: int, kind: str = "") -> None:
        """These are about to be settled, and nobody has acknowledged them."""
        self._touch()
        left, kind = self.left, kind or LEFT[reason]
        if left and left[-1][:2] == (kind, reason) and left[-1][3] == first - 1:
            left[-1] = (kind, reason, left[-1][2], last)
        else:
            left.append((kind, reason, first, last))
        self.explained.add(first, last)

    def on_settlement(self, ranges: Sequence[Range]) -> None:
        """These are gone: they were in memory only, or a block that is being taken says so."""
        if self.has_entries:
            self._mark()
        if ranges:
            self._touch()
            if not self.acked:
                self.acked_ms = self.broker.wall_ms
            self.acked += self._unexplained(ranges) if self.explained else ranges

    def _mark(self) -> None:
        """The block that is being taken tells where runs began. In a table that is full there is no room for it: then
        what was not told in time is not known after a crash."""
        queue, value = self.queue, b"".join(self.entries)
        self.has_entries = False
        if queue.durable_state.fits(MARK, value):
            queue.durable_state.set_in_block(MARK, value)

    def _unexplained(self, ranges: Sequence[Range]) -> list[Range]:
        rest: list[Range] = []
        for first, last in ranges:
            for low, high in list(self.explained.ranges(first, last)):
                if first < low:
                    rest.append((first, low - 1))
                first = high + 1
            if first <= last:
                rest.append((first, last))
        for first, last in ranges:
            self.explained.remove(first, last)
        return rest

    def on_safe(self, batch: Batch) -> None:
        """The block with this batch is where it has to be, and its publishers are being told."""
        unsafe, last = self.unsafe, batch.last
        while unsafe and unsafe[0].first <= last:
            run = unsafe[0]
            if run.shown < run.last:
                self._touch()
                self._confirm(run, min(run.last, last))
            if run.shown < run.last or run is self.current:
                return
            unsafe.popleft()

    def _confirm(self, run: Run, last: int) -> None:
        safe = self.safe
        if safe and safe[-1][0] is run:
            safe[-1] = (run, safe[-1][1], last)
        else:
            if not safe:
                self.safe_ms = self.broker.wall_ms
            safe.append((run, run.shown + 1, last))
        run.shown = last

    def on_gone(self, reason: str) -> None:
        """The queue is no longer this node's business, or nobody wants to hear of it any more."""
        queue = self.queue
        if queue.extension(QueueJournal) is not self:
            return
        queue.remove_extension(self)
        self.journal.touched.pop(self, None)
        if self.is_told or self.acked or self.left or self.out:
            self.drain()
            count = queue.ready_count + queue.unacked_count
            self._tell("stopped", 1, queue.next_seq - 1, count, "", f',"reason":"{reason}"')
            self.journal.is_urgent = True
        if reason == "off" and MARK in queue.durable_state.table:
            queue.durable_state.set(MARK, b"")  # From now on nobody says where runs end.

    # -- What the journal tells ----------------------------------------------------------------------------------

    def _begin(self, through: int) -> None:
        """Numbers up to this one were given before. Tell of them what is known without the journal."""
        queue, journal = self.queue, self.journal
        self.is_told = journal.is_urgent = True  # In one commit with the mark that replaces the one read here.
        self.since_ms = self.broker.wall_ms
        self._tell("started", 1, through, through, "")
        for one in recovered(queue.durable_state.table.get(MARK, b""), through):
            self._run("recovered", one, one.first, one.last, ',"what":"published"')
        settled = merged([*self.broker.node.settled_of(queue.spec.id), *self.inherited])
        journal.left_out += max(len(settled) - RECOVERED_MAX, 0)
        for first, last in settled[-RECOVERED_MAX:]:
            if first <= through:
                self._range("recovered", first, min(last, through), "", ',"what":"settled"')

    def drain(self) -> None:
        """Make events of what has gathered."""
        if not self.is_told:
            self._begin(self.queue.next_seq - 1)
        time = self.journal.time_of(self.since_ms)
        for run in self.given:
            if run.told < run.last:
                self._run("published", run, run.told + 1, run.last, time)
                run.told = run.last
        if self.out:
            self._tell_out(self.journal.time_of(self.out_ms))
        for first, last in merged(self.requeued):
            self._range("requeued", first, last, "", time)
        for kind, reason, first, last in self.left:
            self._range(kind, first, last, "", f',"reason":"{reason}"{time}')
        settled = self.journal.time_of(self.acked_ms) if self.acked else ""
        for first, last in merged(self.acked):
            self._range(self.settled_as, first, last, "", settled)
        confirmed = self.journal.time_of(self.safe_ms) if self.safe else ""
        for run, first, last in self.safe:
            self._run("confirmed", run, first, last, confirmed)
        self.given = [] if self.current is None else [self.current]
        self.safe, self.out, self.takers, self.requeued, self.left, self.acked = [], [], {}, [], [], []
        self.is_touched = False

    def on_written(self) -> None:
        """The events so far are on disk. The mark may repeat the last ones."""
        if len(self.entries) > 1:
            del self.entries[:-1]

    def _tell_out(self, time: str) -> None:
        takers, more = self.takers, time
        if len(takers) == 1:
            (who,) = map(_name, takers)
        else:
            who, named = "", {_name(taker): count for taker, count in list(takers.items())[:TAKERS_MAX]}
            rest = sum(takers.values()) - sum(named.values())
            told = json.dumps({**named, **({"": rest} if rest else {})}, separators=(",", ":"))
            more = f',"to":{told}{time}'
        for first, last in merged(self.out):
            self._range("delivered", first, last, who, more)

    def _run(self, kind: str, run: Run, first: int, last: int, more: str) -> None:
        if self.parts >= JOURNAL_WHOLE:
            self._tell(kind, first, last, last - first + 1, run.who, run.details(first, last) + more)
            return
        more += ',"sampled":true'
        for low, high in sampled(self.parts, self.queue.spec.id, first, last):
            self._tell(kind, low, high, high - low + 1, run.who, run.details(low, high) + more)

    def _range(self, kind: str, first: int, last: int, who: str = "", more: str = "") -> None:
        if self.parts >= JOURNAL_WHOLE:
            self._tell(kind, first, last, last - first + 1, who, more)
            return
        for low, high in sampled(self.parts, self.queue.spec.id, first, last):
            self._tell(kind, low, high, high - low + 1, who, more)

    def _tell(self, kind: str, first: int, last: int, count: int, who: str, more: str = "") -> None:
        """`more`: of the details, as JSON that begins with a comma."""
        queue, journal = self.queue, self.journal
        if queue.epoch != self.epoch:
            self.epoch, self.about = queue.epoch, f'{{"id":{queue.spec.id},"epoch":{queue.epoch}'
        own_first = journal.quotes.get(who) or journal.quoted(who)
        journal.add(f'["{kind}",{self.names},{first},{last},{count},{own_first},{self.about}{more}}}]')


def _is_next(run: Run, numbers: Numbers) -> bool:
    """Returns whether a bundle of one message goes on with a run of such bundles."""
    known = run.numbers
    return known is not None and known.producer == numbers.producer and known.high + 1 == numbers.low == numbers.high


def _name(taker: Taker) -> str:
    if taker is None:
        return "basic.get"
    return taker if isinstance(taker, str) else getattr(taker, "who", taker.tag)
