"""The event journal of a node: what became of which messages, told in ranges, kept as a stream that clients can read.

Who wants to prove that nothing was lost needs more than counters: of each message number of each queue, when it came,
from whom, when that was confirmed, who had it, and how it left. Policies ask for it (`journal`), queue by queue.

    Queue.enqueue, hand_over, requeue …  ──▶ QueueJournal: ranges, joined as they come
    Queue.take_block: what was settled   ──▶      │
    the ring of a mirrored queue         ──▶      │ drain, when the log has room for a commit
    links, views, promotions             ──▶ Journal.told ──write──▶ one message ──▶ the stream leveret.journal.<node>

**Nothing is told message by message.** What happens to neighbours in one go is one event; what was acknowledged is not
even listened to, but is what the queue's next block says to be settled, less what is known to have left in another way.
So the cost is that of some ranges for each commit, however many messages it has. Where nobody asks, `Queue.journal` is
None and so is `Broker.journal`: one test for each bundle of publishes or deliveries is all that is left.

**What if the node dies?** Events that go with a change of the log (published, acked, expired, replicated …) are in the
same commit as the blocks that change it, and the journal's block is the first of that commit. A torn commit loses its
end: then the journal may tell of changes that are undone, never the other way round. A message can be settled and the
journal not know only if that knowledge is with another node, whose journal has it (`replicated`). What changes nothing
on disk (confirmed, delivered) waits for the next commit, or a second, so that watching costs no syncs of its own. That
much is missing after a crash; docs/journal.md says what follows from it for who adds up.

**Numbers.** A message is its queue's id and its number; queues never give a number of a confirmed message twice. One
that was never confirmed may be given again, after a restart or by the next master: `started` and `promoted` say from
where on, and every event has the epoch in which it happened.

**Samples.** A fraction is taken by numbers, in stretches of neighbours, so that ranges stay ranges and a message is in
the sample at every node or at none.

The journal does not tell of itself, nor of the queues of delayed exchanges, which no policy touches.
"""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from leveret.amqp.frames import FRAME_MIN_SIZE, content
from leveret.amqp.properties import Properties, encode
from leveret.amqp.tables import Field, Table
from leveret.broker.batch import MESSAGE_OVERHEAD
from leveret.cluster import commands as c
from leveret.cluster.keepers import JOURNAL_PREFIX, JOURNAL_VHOST, is_journal
from leveret.cluster.mirroring import is_stream
from leveret.cluster.queue_rules import JOURNAL_WHOLE
from leveret.cluster.refusals import fits
from leveret.log.block import PERSISTENT
from leveret.log.ranges import RangeSet, merged
from leveret.mirror.frames import Append, Fill

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from leveret.broker.batch import Batch
    from leveret.broker.broker import Broker
    from leveret.broker.confirms import Confirmer, Pending
    from leveret.broker.consumer import Consumer
    from leveret.broker.mirrored import Mirror
    from leveret.broker.queue import Queue
    from leveret.broker.remote import RemoteQueue
    from leveret.cluster.specs import Json
    from leveret.cluster.store import Applied
    from leveret.mirror.frames import Change
    from leveret.mirror.view import View

    Taker: TypeAlias = Consumer | str | None

VERSION: Final = 1  # Of what events look like.
MAX_BYTES: Final = 256 << 20
STRETCHES: Final = 16  # In so many steps the oldest goes.
STRETCH_BYTES_MIN: Final = 1 << 16
MESSAGE_BYTES: Final = 64 << 10  # About so many bytes of events make a message.
WAITING_BYTES_MAX: Final = 4 << 20  # While there is no stream to put them into; what is beyond is counted.
SAMPLE: Final = 64  # Neighbours that are in a sample together.
QUOTES_MAX: Final = 4_096
TAKERS_MAX: Final = 64  # Consumers that are named with what they were given together.

# Why a message has left, and as what that is told.
LEFT: Final = {
    "expired": "expired",
    "rejected": "rejected",
    "maxlen": "dropped",
    "delivery_limit": "dropped",
    "purged": "dropped",
}

_ARGUMENTS: Final[Table] = {"x-queue-type": Field("S", "stream"), "x-initial-cluster-size": Field("l", 1)}
_HEADER: Final = encode(
    Properties(content_type="application/json", delivery_mode=2, type="leveret.journal", app_id="leveret"), 0
)

Range = tuple[int, int]


class Options(NamedTuple):
    """What the configuration says."""

    default: str = "off"  # For queues of which no policy says anything.
    max_bytes: int = MAX_BYTES

    def definition(self, name: str, definition: Mapping[str, Json]) -> Mapping[str, Json]:
        """That of a queue's policies, with what the configuration adds."""
        if is_journal(name):
            limits = (definition.get("max-length-bytes"), self.max_bytes)
            most = min(limit for limit in limits if isinstance(limit, int))
            stretch = max(most // STRETCHES, STRETCH_BYTES_MIN)
            return {"max-length-bytes": most, "stream-max-segment-size-bytes": stretch}
        if self.default == "off" or "journal" in definition:
            return definition
        return {**definition, "journal": self.default}


def sampled(parts: int, queue: int, first: int, last: int) -> list[Range]:
    """What of a range is told, where so many of a million messages are."""
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


class Given:
    """Neighbours that came from one publisher."""

    __slots__ = ("confirms", "first", "is_counted", "is_transient", "kind", "last", "said", "said_last", "who")

    def __init__(self, first: int, last: int, kind: int, who: str, is_transient: bool) -> None:
        self.first = first
        self.last = last
        self.kind = kind
        self.who = who
        self.is_transient = is_transient
        self.confirms: Confirmer | None = None
        self.said = self.said_last = 0  # The publisher's own numbers for them,
        self.is_counted = False  # one for each.


class QueueJournal:
    """What is to be told of one queue, at its master."""

    __slots__ = (
        "acked", "current", "explained", "given", "is_told", "journal", "left", "names", "out", "parts", "queue",
        "requeued", "safe", "settled_as", "takers", "unsafe",
    )  # fmt: skip

    def __init__(self, journal: Journal, queue: Queue, parts: int) -> None:
        self.journal = journal
        self.queue = queue
        self.parts = parts
        self.names = f"{json.dumps(queue.spec.vhost)},{json.dumps(queue.spec.name)}"
        # A stream's messages are given up in their order, and by nobody else.
        self.settled_as = "dropped" if is_stream(queue.spec.arguments) else "acked"
        self.is_told = False  # That it is watched.
        self.given: list[Given] = []
        self.current: Given | None = None  # The last of them, if it can still grow: not beyond its block.
        self.unsafe: deque[Given] = deque()  # Their publishers wait for a confirm.
        self.safe: list[Given] = []
        self.out: list[Range] = []
        self.takers: dict[Taker, int] = {}
        self.requeued: list[Range] = []
        self.left: list[tuple[str, str, int, int]] = []  # As what, why, first, last.
        self.explained = RangeSet()  # Left in a known way, and not yet settled in a block.
        self.acked: list[Range] = []

    # -- What the queue tells ------------------------------------------------------------------------------------

    def enqueued(self, count: int, kind: int, pending: Pending | None) -> None:
        """The last `count` messages of the queue have just come."""
        note, last = self.current, self.queue.next_seq - 1
        if note is not None and note.kind == kind and self._goes_on(note, pending):
            note.last = last
            if pending is not None:
                note.said_last = pending.last
            return
        journal, logs = self.journal, self.queue.logs
        journal.touched[self] = None
        note = self.current = Given(last - count + 1, last, kind, journal.publisher(pending), kind & logs != logs)
        self.given.append(note)
        if pending is not None:
            note.confirms, note.said, note.said_last = pending.confirms, pending.first, pending.last
            note.is_counted = pending.count == pending.last - pending.first + 1
            (self.safe if note.is_transient else self.unsafe).append(note)

    def _goes_on(self, note: Given, pending: Pending | None) -> bool:
        """Whether these publishes come right behind, and each has a number of its own: in a bundle over a link, not."""
        if pending is None:
            return note.confirms is None and note.who == self.journal.source
        if note.confirms is not pending.confirms or pending.first > note.said_last + 1 or not note.is_counted:
            return False
        return pending.count == pending.last - pending.first + 1

    def refused(self, count: int, pending: Pending | None) -> None:
        """So many messages were turned away: the queue is full. They have no numbers."""
        self._tell("refused", 0, 0, count, self.journal.publisher(pending))

    def delivered(self, taker: Taker, first: int, last: int) -> None:
        """None: with basic.get. A name: what is no consumer."""
        self.journal.touched[self] = None
        out = self.out
        if out and out[-1][1] == first - 1:
            out[-1] = (out[-1][0], last)
        else:
            out.append((first, last))
        self.takers[taker] = self.takers.get(taker, 0) + last - first + 1

    def returned(self, first: int, last: int) -> None:
        self.journal.touched[self] = None
        self.requeued.append((first, last))

    def leaves(self, reason: str, first: int, last: int, kind: str = "") -> None:
        """These are about to be settled, and nobody has acknowledged them."""
        self.journal.touched[self] = None
        left, kind = self.left, kind or LEFT[reason]
        if left and left[-1][:2] == (kind, reason) and left[-1][3] == first - 1:
            left[-1] = (kind, reason, left[-1][2], last)
        else:
            left.append((kind, reason, first, last))
        self.explained.add(first, last)

    def settled(self, ranges: Sequence[Range]) -> None:
        """These are gone: they were in memory only, or a block that has just been taken says so."""
        self.current = None
        if ranges:
            self.journal.touched[self] = None
            self.acked += self._unexplained(ranges) if self.explained else ranges

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

    def is_safe(self, batch: Batch) -> None:
        """The block with this batch is where it has to be, and its publishers are being told."""
        unsafe, last = self.unsafe, batch.last
        if unsafe and unsafe[0].first <= last:
            self.journal.touched[self] = None
            while unsafe and unsafe[0].first <= last:
                self.safe.append(unsafe.popleft())

    def end(self, reason: str) -> None:
        """The queue is no longer this node's business, or nobody wants to hear of it any more."""
        if self.queue.journal is not self:
            return
        self.queue.journal = None
        if self.journal.touched.pop(self, self) is None:
            self.drain()
        if self.is_told:
            queue = self.queue
            count = queue.ready_count + queue.unacked_count
            self._tell("stopped", 1, queue.next_seq - 1, count, "", f',"reason":"{reason}"')

    # -- What the journal tells ----------------------------------------------------------------------------------

    def drain(self) -> None:
        """Make events of what has gathered."""
        if not self.is_told:
            self.is_told = True
            first = min((note.first for note in self.given), default=self.queue.next_seq)
            self._tell("started", 1, first - 1, first - 1, "")
        for note in self.given:
            self._tell_given("published", note)
        if self.out:
            self._tell_out()
        for first, last in merged(self.requeued):
            self._range("requeued", first, last)
        for kind, reason, first, last in self.left:
            self._range(kind, first, last, "", f',"reason":"{reason}"')
        for first, last in merged(self.acked):
            self._range(self.settled_as, first, last)
        for note in self.safe:
            self._tell_given("confirmed", note)
        self.given, self.safe, self.out, self.takers, self.current = [], [], [], {}, None
        self.requeued, self.left, self.acked = [], [], []

    def _tell_given(self, kind: str, note: Given) -> None:
        more = ',"transient":true' if note.is_transient else ""
        if note.said:
            more += f',"said":[{note.said},{note.said_last}]'
        self._range(kind, note.first, note.last, note.who, more)

    def _tell_out(self) -> None:
        takers = {_name(taker): count for taker, count in list(self.takers.items())[:TAKERS_MAX]}
        rest = sum(self.takers.values()) - sum(takers.values())
        who = more = ""
        if len(self.takers) == 1:
            (who,) = takers
        else:
            more = f',"to":{_json({**takers, **({"": rest} if rest else {})})}'
        for first, last in merged(self.out):
            self._range("delivered", first, last, who, more)

    def _range(self, kind: str, first: int, last: int, who: str = "", more: str = "") -> None:
        for low, high in sampled(self.parts, self.queue.spec.id, first, last):
            self._tell(kind, low, high, high - low + 1, who, more)

    def _tell(self, kind: str, first: int, last: int, count: int, who: str, more: str = "") -> None:
        """`more`: of the details, as JSON that begins with a comma."""
        queue, journal = self.queue, self.journal
        detail = f'{{"id":{queue.spec.id},"epoch":{queue.epoch}{more}}}'
        journal.add(f'["{kind}",{self.names},{first},{last},{count},{journal.quoted(who)},{detail}]')


def _name(taker: Taker) -> str:
    if taker is None:
        return "basic.get"
    return taker if isinstance(taker, str) else getattr(taker, "who", taker.tag)


def watch(queue: Queue) -> QueueJournal | None:
    """What its rules want to be told of a queue from now on."""
    known, parts, journal = queue.journal, queue.rules.journal, queue.host.journal
    if known is not None and parts:
        known.parts = parts
        return known
    if known is not None:
        known.end("off")
    return QueueJournal(journal, queue, parts) if parts and journal is not None else None


def keep(broker: Broker) -> Journal:
    """The journal of a node, of which some queue is to be told."""
    journal = broker.journal or Journal(broker)
    if not journal.is_wanted:
        journal.is_wanted = True
        journal.tell("started", version=VERSION)
    return journal


def review(broker: Broker) -> None:
    """Policies have changed: perhaps there is nothing to tell any more."""
    journal = broker.journal
    if journal is not None and not any(queue.rules.journal for queue in broker.queues_by_id.values()):
        journal.tell("stopped")
        journal.is_wanted = False


class Copied:
    """What came for this node's copy of a queue that another one leads."""

    __slots__ = ("added", "block", "epoch", "filled", "gone")

    def __init__(self) -> None:
        self.added: list[Range] = []
        self.gone: list[Range] = []
        self.filled: list[Range] = []
        self.epoch = self.block = 0


class Journal:
    """Of one node."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.name = JOURNAL_PREFIX + broker.node_name
        self.touched: dict[QueueJournal, None] = {}
        self.copied: dict[int, Copied] = {}  # By the queue's id.
        self.quotes: dict[str, str] = {}  # Names as JSON.
        self.told: list[str] = []  # Events, for the next message.
        self.told_bytes = 0
        self.bodies: list[bytes] = []  # Messages, while there is no stream for them.
        self.left_out = 0  # Events for which there was no room.
        self.source = ""  # Who publishes now, where nobody waits for a confirm.
        self.stream: Queue | None = None
        self.is_asked = False  # For the stream to be declared.
        self.is_hindered = False  # And why it cannot be was noted.
        self.is_wanted = False

    def publisher(self, pending: Pending | None) -> str:
        """Who publishes, as far as that is known."""
        return self.source if pending is None else getattr(pending.confirms, "who", "")

    # -- Events --------------------------------------------------------------------------------------------------

    def tell(self, kind: str, who: str = "", **detail: Json) -> None:
        """Something that is not about a queue."""
        if self.is_wanted:
            self.add(_json([kind, "", "", 0, 0, 0, who, detail]))

    def tell_queue(self, mirror: Mirror, kind: str, last: int, count: int, who: str, **detail: Json) -> None:
        """Of a mirrored queue, where a policy asks for it."""
        spec = mirror.spec
        if self.broker.rules_of(spec).journal:
            first = 1 if last else 0
            self.add(_json([kind, spec.vhost, spec.name, first, last, count, who, {"id": spec.id, **detail}]))

    def on_view(self, mirror: Mirror, view: View) -> None:
        in_sync: list[Json] = [name for name, _ in view.in_sync]
        ring: list[Json] = [*view.ring]
        about: dict[str, Json] = {"epoch": view.epoch, "version": view.version, "ring": ring, "in_sync": in_sync}
        self.tell_queue(mirror, "view", 0, 0, view.master, **about)

    def on_promoted(self, mirror: Mirror, view: View, before: str) -> None:
        queue = mirror.queue
        if queue is not None:
            count, forced = queue.ready_count + queue.unacked_count, view.lossy == view.epoch
            self.tell_queue(mirror, "promoted", queue.next_seq - 1, count, before, epoch=view.epoch, forced=forced)

    def on_routed(self, queue: RemoteQueue, token: int, senders: list[tuple[Pending | None, str, int]]) -> None:
        """Publishes have gone to the queue's node, in one bundle. The numbers they get are known there."""
        place = 0
        spec = queue.spec
        for pending, who, count in senders:
            detail: dict[str, Json] = {"id": spec.id, "to": spec.node, "token": token, "place": place}
            if pending is not None:
                detail["said"] = [pending.first, pending.last]
            self.add(_json(["routed", spec.vhost, spec.name, 0, 0, count, who, detail]))
            place += count

    def on_sync(self, mirror: Mirror, view: View, missing: list[str]) -> None:
        """Mirrors are being filled from now on, or no longer."""
        names: list[Json] = [*missing]
        state = "begun" if mirror.syncing else "ended"
        self.tell_queue(mirror, "sync", 0, 0, view.master, epoch=view.epoch, state=state, missing=names)

    def on_written(self, mirror: Mirror, change: Change) -> None:
        """This node's copy of a queue that another one leads is about to change on disk."""
        queue = self.broker.queues_by_id.get(mirror.spec.id)
        if queue is None or not queue.rules.journal or not isinstance(change, Append | Fill):
            return
        copied = self.copied.setdefault(mirror.spec.id, Copied())
        if isinstance(change, Fill):
            copied.filled += change.live
            return
        for block in change.blocks:
            copied.epoch, copied.block = block.epoch, block.number
            if block.enqueued is not None and block.enqueued.contents:
                copied.added.append((block.enqueued.first, block.enqueued.last))
            copied.gone += block.settled

    def _tell_copied(self, number: int, copied: Copied) -> None:
        queue = self.broker.queues_by_id.get(number)
        if queue is None:
            return  # Deleted meanwhile.
        spec, parts = queue.spec, queue.rules.journal
        for ranges, what in ((copied.added, "published"), (copied.filled, "filled"), (copied.gone, "settled")):
            for first, last in merged(ranges):
                for low, high in sampled(parts, number, first, last):
                    detail: Json = {"id": number, "epoch": copied.epoch, "block": copied.block, "what": what}
                    self.add(_json(["replicated", spec.vhost, spec.name, low, high, high - low + 1, spec.node, detail]))

    # -- Messages ------------------------------------------------------------------------------------------------

    def quoted(self, who: str) -> str:
        found = self.quotes.get(who)
        if found is None:
            if len(self.quotes) >= QUOTES_MAX:
                self.quotes.clear()
            found = self.quotes[who] = json.dumps(who)
        return found

    def add(self, event: str) -> None:
        self.told.append(event)
        self.told_bytes += len(event)
        if self.told_bytes >= MESSAGE_BYTES:
            self._close()

    def _close(self) -> None:
        """Make a message of what was told."""
        told, self.told, self.told_bytes = self.told, [], 0
        stream = self.find()
        if stream is None and sum(map(len, self.bodies)) > WAITING_BYTES_MAX:
            self.left_out += len(told)
            return
        broker = self.broker
        head = f'{{"node":{self.quoted(broker.node_name)},"run":{self.quoted(broker.run)},"ms":{broker.wall_ms}'
        self.bodies.append(f'{head},"events":[{",".join(told)}]}}'.encode())
        if stream is not None:
            self._put(stream)

    @property
    def is_due(self) -> bool:
        """Whether there is something that belongs to what is being written anyway."""
        return bool(self.copied)

    def write(self) -> Queue | None:
        """Before a commit, when all blocks are taken: put what was told into the stream. Gives it, if there is one."""
        touched, self.touched = self.touched, {}
        for one in touched:
            one.drain()
        copied, self.copied = self.copied, {}
        for number, each in copied.items():
            self._tell_copied(number, each)
        stream = self.find()
        if stream is None:
            return None
        if self.left_out:
            left_out, self.left_out = self.left_out, 0
            self.tell("left-out", count=left_out)
        if self.told:
            self._close()
        elif self.bodies:
            self._put(stream)
        return stream

    def _put(self, stream: Queue) -> None:
        """It is not touched by that: its block is taken with the next commit, and there is nothing to hand out before
        that is on disk."""
        dirty = self.broker.dirty
        was_dirty = stream in dirty
        bodies, self.bodies = self.bodies, []
        contents = [content(_header(len(body)), body, FRAME_MIN_SIZE) for body in bodies]
        raw = self.name.encode("utf-8", "surrogateescape")
        size = sum(map(len, contents)) + MESSAGE_OVERHEAD * len(contents)
        stream.enqueue(contents, [bytes((0, len(raw))) + raw] * len(contents), PERSISTENT, size, None)
        if not was_dirty:
            del dirty[stream]

    def find(self) -> Queue | None:
        """The stream, if it is there."""
        if self.stream is None or self.stream.deleted:
            vhost = self.broker.vhosts.get(JOURNAL_VHOST)
            queue = None if vhost is None else vhost.queues.get(self.name)
            is_it = queue is not None and queue.is_local and is_stream(queue.spec.arguments)
            self.stream = queue if is_it else None  # type: ignore[assignment]
        return self.stream

    def tick(self) -> None:
        """Once a second: what waits for a commit that does not come gets one."""
        stream = self.find()
        if stream is None and self.is_wanted:
            self._declare()
        elif stream is None:
            self.told, self.bodies, self.told_bytes = [], [], 0  # Nobody will ever read that.
        elif self.touched or self.told or self.bodies or self.copied or stream.has_changes():
            self.broker.unlogged[stream] = None

    def stop(self) -> None:
        """The node stops, in good order."""
        self.tell("stopped")
        stream = self.find()
        if stream is not None:
            self.broker.unlogged[stream] = None

    def _declare(self) -> None:
        broker = self.broker
        known = broker.metadata.queues.get((JOURNAL_VHOST, self.name))
        why = None
        if JOURNAL_VHOST not in broker.vhosts:
            why = f"there is no vhost '{JOURNAL_VHOST}'"
        elif not fits(self.name):
            why = "the name of the node is too long for that of a queue"
        elif known is not None:
            why = f"queue '{self.name}' is something else"
        if why is not None:
            if not self.is_hindered:
                broker.shell.note("queue", "warning", f"The journal that a policy asks for cannot be kept: {why}")
            self.is_hindered = True
        elif not self.is_asked and broker.arrivals.is_open:
            self.is_asked = True
            node = broker.node_name
            command = c.DeclareQueue(JOURNAL_VHOST, self.name, durable=True, arguments=_ARGUMENTS, node=node)
            broker.propose(command, self._on_declared)

    def _on_declared(self, applied: Applied) -> None:
        """If it was refused, it is asked for again."""
        self.is_asked = False


def _json(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))


def _header(size: int) -> bytes:
    return _HEADER[:4] + size.to_bytes(8, "big") + _HEADER[12:]
