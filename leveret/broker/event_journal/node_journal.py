"""The event journal of a node: what became of which messages, told in ranges, kept as a stream that clients can read.

Who wants to prove that nothing was lost needs more than counters: of each message number of each queue, when it came,
from whom, when that was confirmed, who had it, and how it left. Policies ask for it (`journal`), queue by queue.

    Queue.enqueue, hand_over, requeue …  ──▶ QueueJournal: ranges, joined as they come
    Queue.take_block: what was settled   ──▶      │
    the ring of a mirrored queue         ──▶      │ drain, at the first commit after `WRITE_MS`
    links, views, promotions             ──▶ NodeJournal.told ──write──▶ a message of the stream leveret.journal.<node>

**Nothing is told message by message.** What happens to neighbours in one go is one event; what was acknowledged is not
even listened to, but is what the queue's next block says to be settled, less what is known to have left in another way.
Where nobody asks, `Queue.journal` is None and so is `Broker.journal`: one test for each bundle of publishes or
deliveries is all that is left.

**Nor commit by commit.** A busy node has thousands of commits a second, and a message in each costs as much as what it
tells of. So notes gather for `GATHER_MS`, over as many commits as there are in it, and an event says when that was. A
publisher that goes on, a consumer that keeps up: each is one event then. And events gather for `WRITE_MS` until they
are written: each message stays for as long as the journal does, among others that soon go, so the log has to move it to
another segment now and then, which costs by the message. A node with less to do writes with each commit, and what has
no commit to go with (deliveries, confirms) waits for one up to a second, so that watching costs few syncs of its own.

**What if the node dies?** What it had not written is lost, but for what follows from the queues' logs: which messages
are settled, and from whom messages came that somebody waits to be confirmed. The next master, this node or another,
tells that again before anything else (see `journal_queue`). So nothing that is needed to prove that a confirmed message
is not lost is ever missing; when it was delivered, or why it left, may be. Where the journal is part of a commit, it is
the first block of it: a torn commit loses its end, and then the journal tells of changes that are undone, which leave a
message where it was. docs/journal.md says what follows for who adds up.

**Numbers.** A message is its queue's id and its number; queues never give a number of a confirmed message twice. One
that was never confirmed may be given again, after a restart or by the next master: `started` and `promoted` say from
where on, and every event has the epoch in which it happened.

**Samples.** A fraction is taken by numbers, in stretches of neighbours, so that ranges stay ranges and a message is in
the sample at every node or at none.

The journal does not tell of itself, nor of the queues of delayed exchanges, which no policy touches.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.base.range_set import merged
from leveret.broker.delivery.batch import MESSAGE_OVERHEAD
from leveret.broker.event_journal.queue_journal import GATHER_MS, QueueJournal, Range, producer_name, sampled
from leveret.metadata.model import commands as c
from leveret.metadata.model.hidden_queues import JOURNAL_PREFIX, JOURNAL_VHOST, is_journal
from leveret.metadata.model.refusals import fits
from leveret.metadata.rules.ha_policy import is_stream
from leveret.metadata.rules.queue_rules import JOURNAL_WHOLE
from leveret.protocol.frames import FRAME_MIN_SIZE, content
from leveret.protocol.properties import Properties, encode
from leveret.protocol.tables import Field, Table
from leveret.replication.ring_frames import Append, Fill
from leveret.storage.format.queue_block import PERSISTENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.base.json_values import Json
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.delivery.confirms import Numbers, Pending
    from leveret.broker.mirrors.manager import Mirror
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.model.view import View
    from leveret.metadata.store import Applied
    from leveret.replication.ring_frames import Change

__all__ = ("NodeJournal", "Options", "QueueJournal", "keep", "review", "watch")

VERSION: Final = 1  # Of what events look like.
MAX_BYTES: Final = 256 << 20
STRETCHES: Final = 16  # In so many steps the oldest goes.
STRETCH_BYTES_MIN: Final = 1 << 16
WRITE_MS: Final = 100  # Between two messages of a busy node.
MESSAGE_BYTES: Final = 64 << 10  # About so many bytes of events make a message.
WAITING_BYTES_MAX: Final = 4 << 20  # While there is no stream to put them into; what is beyond is counted.
QUOTES_MAX: Final = 4_096

_ARGUMENTS: Final[Table] = {"x-queue-type": Field("S", "stream"), "x-initial-cluster-size": Field("l", 1)}
_HEADER: Final = encode(
    Properties(content_type="application/json", delivery_mode=2, type="leveret.journal", app_id="leveret"), 0
)


class Options(NamedTuple):
    """The configuration of journals."""

    default: str = "off"  # For queues of which no policy says anything.
    max_bytes: int = MAX_BYTES

    def definition(self, name: str, definition: Mapping[str, Json]) -> Mapping[str, Json]:
        """Returns the definition of a queue's policies, with what the configuration adds."""
        if is_journal(name):
            limits = (definition.get("max-length-bytes"), self.max_bytes)
            most = min(limit for limit in limits if isinstance(limit, int))
            stretch = max(most // STRETCHES, STRETCH_BYTES_MIN)
            return {"max-length-bytes": most, "stream-max-segment-size-bytes": stretch}
        if self.default == "off" or "journal" in definition:
            return definition
        return {**definition, "journal": self.default}


def watch(queue: LocalQueue) -> None:
    """Tells of a queue what its rules want, from now on."""
    known, parts, journal = queue.extension(QueueJournal), queue.rules.journal, queue.host.journal
    if known is not None and parts:
        known.set_parts(parts)
        return
    if known is not None:
        known.on_gone("off")
    if parts and journal is not None:
        queue.extend(QueueJournal(journal, queue, parts))


def keep(broker: Broker) -> NodeJournal:
    """The journal of a node, of which some queue is to be told."""
    journal = broker.journal or NodeJournal(broker)
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
    """Changes to this node's copy of a queue that another node leads."""

    __slots__ = ("added", "block", "epoch", "filled", "gone", "since_ms")

    def __init__(self, since_ms: int) -> None:
        self.since_ms = since_ms
        self.added: list[Range] = []
        self.gone: list[Range] = []
        self.filled: list[Range] = []
        self.epoch = self.block = 0


class NodeJournal:
    """The journal of one node."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.name = JOURNAL_PREFIX + broker.node_name
        raw = self.name.encode("utf-8", "surrogateescape")
        self.key = bytes((0, len(raw) & 255)) + raw  # No exchange, and the name: if it is too long, there is no stream.
        self.touched: dict[QueueJournal, None] = {}
        self.copied: dict[int, Copied] = {}  # By the queue's id.
        # By queue and producer: the producer's numbers that masters called safe.
        self.safe: dict[tuple[int, str, str, bytes], list[Range]] = {}
        self.quotes: dict[str, str] = {}  # Names as JSON.
        self.told: list[str] = []  # Events, for the next message.
        self.told_bytes = 0
        self.bodies: list[bytes] = []  # Messages, while there is no stream for them.
        self.left_out = 0  # Events for which there was no room.
        self.source = ""  # Who publishes now, where nobody waits for a confirm.
        self.stream: LocalQueue | None = None
        self.is_asked = False  # For the stream to be declared.
        self.is_hindered = False  # And why it cannot be was noted.
        self.is_wanted = False
        self.is_urgent = False  # It belongs into the next commit.
        self.written_ms = -WRITE_MS  # When it was in one last.

    def publisher(self, pending: Pending | None) -> str:
        """Returns who publishes, as far as that is known."""
        return self.source if pending is None else getattr(pending.client_publish.confirms, "who", "")

    # -- Events --------------------------------------------------------------------------------------------------

    def tell(self, kind: str, who: str = "", **detail: Json) -> None:
        """Something that is not about a queue."""
        if self.is_wanted:
            self.add(_json([kind, "", "", 0, 0, 0, who, detail]))

    def tell_queue(self, mirror: Mirror, kind: str, last: int, count: int, who: str, **detail: Json) -> None:
        """Add an event of a mirrored queue, if its policy wants a journal."""
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

    def on_routed(
        self, queue: AnyQueue, token: int, numbers: Numbers | None, senders: list[tuple[Pending | None, str, int]]
    ) -> None:
        """Publishes have gone to the queue's node, in one bundle, or into a spool. The numbers they get are known
        there; the producer's numbers, under which they are sent, are the same whichever way they take."""
        place = 0
        spec = queue.spec
        for pending, who, count in senders:
            detail: dict[str, Json] = {"id": spec.id, "to": spec.node, "token": token, "place": place}
            if pending is not None:
                detail["said"] = [pending.client_publish.first, pending.client_publish.last]
            if numbers is not None:
                low = numbers.low + place
                detail |= {"producer": producer_name(numbers.producer), "numbers": [low, low + count - 1]}
            if queue.rules.journal < JOURNAL_WHOLE:
                detail["sampled"] = True
            self.add(_json(["routed", spec.vhost, spec.name, 0, 0, count, who, detail]))
            place += count

    def on_safe(self, spec: QueueSpec, numbers: Numbers) -> None:
        """A queue's node has said that messages of clients of this node are safe."""
        known = self.safe.setdefault((spec.id, spec.vhost, spec.name, numbers.producer), [])
        if known and known[-1][1] == numbers.low - 1:
            known[-1] = (known[-1][0], numbers.high)
        else:
            known.append((numbers.low, numbers.high))

    def _tell_safe(self) -> None:
        safe, self.safe = self.safe, {}
        for (number, vhost, name, producer), ranges in safe.items():
            for low, high in merged(ranges):
                about: dict[str, Json] = {"id": number, "producer": producer_name(producer), "numbers": [low, high]}
                self.add(_json(["safe", vhost, name, 0, 0, high - low + 1, "", about]))

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
        now_ms, copied = self.broker.wall_ms, self.copied.get(mirror.spec.id)
        if copied is not None and not 0 <= now_ms - copied.since_ms <= GATHER_MS:
            self._tell_copied(mirror.spec.id, copied)
            copied = None
        if copied is None:
            copied = self.copied[mirror.spec.id] = Copied(now_ms)
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
        about: dict[str, Json] = {"id": number, "epoch": copied.epoch, "block": copied.block}
        if copied.since_ms != self.broker.wall_ms:
            about["ms"] = copied.since_ms
        for ranges, what in ((copied.added, "published"), (copied.filled, "filled"), (copied.gone, "settled")):
            for first, last in merged(ranges):
                for low, high in sampled(parts, number, first, last):
                    event: list[Json] = ["replicated", spec.vhost, spec.name, low, high, high - low + 1, spec.node]
                    self.add(_json([*event, {**about, "what": what}]))

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
        stream, broker = self.find(), self.broker
        if stream is None and sum(map(len, self.bodies)) > WAITING_BYTES_MAX:
            self.left_out += len(told)
            return
        head = f'{{"node":{self.quoted(broker.node_name)},"run":{self.quoted(broker.run)},"ms":{broker.wall_ms}'
        self.bodies.append(f'{head},"events":[{",".join(told)}]}}'.encode())
        if stream is not None:
            self._put(stream)

    def time_of(self, since_ms: int) -> str:
        """Returns the time of an event for its details; empty if it is that of the message which it will be in."""
        return "" if since_ms == self.broker.wall_ms else f',"ms":{since_ms}'

    @property
    def is_ready(self) -> bool:
        """Returns whether the journal should be written with a commit that is made now."""
        return self.is_urgent or not 0 <= self.broker.wall_ms - self.written_ms < WRITE_MS

    @property
    def is_due(self) -> bool:
        """Returns whether there are events that belong to what is being written anyway."""
        return bool(self.copied) and self.is_ready

    def gather(self) -> None:
        """Make events of all that was noted."""
        for one in self.touched:
            one.drain()
        copied, self.copied = self.copied, {}
        for number, each in copied.items():
            self._tell_copied(number, each)
        if self.safe:
            self._tell_safe()

    def write(self) -> LocalQueue | None:
        """Before a commit, when all blocks are taken: put what was told into the stream. Gives it, if there is one."""
        stream = self.find()
        if stream is None:
            return None  # What was noted goes on gathering, and says when it was.
        self.gather()
        touched, self.touched = self.touched, {}
        for one in touched:
            one.on_written()
        self.is_urgent, self.written_ms = False, self.broker.wall_ms
        if self.left_out:
            left_out, self.left_out = self.left_out, 0
            self.tell("left-out", count=left_out)
        if self.told:
            self._close()
        elif self.bodies:
            self._put(stream)
        return stream

    def _put(self, stream: LocalQueue) -> None:
        """Enqueue the events into the stream without making it dirty: its block is taken with the next commit, and
        there is nothing to deliver before that is on disk."""
        dirty = self.broker.dirty
        was_dirty = stream in dirty
        bodies, self.bodies = self.bodies, []
        contents = [content(_header(len(body)), body, FRAME_MIN_SIZE) for body in bodies]
        size = sum(map(len, contents)) + MESSAGE_OVERHEAD * len(contents)
        stream.enqueue(contents, [self.key] * len(contents), PERSISTENT, size, None)
        if not was_dirty:
            del dirty[stream]

    def begin_publish(self, source: str) -> None:
        """Note who publishes now, where nobody waits for a confirm."""
        self.source = source

    def end_publish(self) -> None:
        self.source = ""

    def find(self) -> LocalQueue | None:
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
        elif self.touched or self.told or self.bodies or self.copied or self.safe or stream.has_changes():
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
                broker.node.note("queue", "warning", f"The journal that a policy asks for cannot be kept: {why}")
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
