"""Producers: what is sent again is taken once.

A publisher whose connection breaks does not know which of its unconfirmed messages have arrived. It sends them again,
and some are there twice. A *producer* is a publisher that says its name and numbers its messages, so that a queue can
tell. Each queue keeps, for each producer, the highest number it has taken; whatever is not higher is passed over.

That number is in the queue's durable state, written in the very block that holds the messages it tells of. So it is
exactly as safe as they are, wherever the block goes: into the log, round the ring, to the next master, to another home.
There is no moment at which one of the two is there and the other is not. Queues know nothing of each other: a message
for three of them is taken by the two that lack it.

**A confirm is worth the same for both.** A copy that is passed over is confirmed when the first one is safe, which may
be under way in an earlier block, or in no block yet. The copy renews the mark (it notes when the producer was last
there), that makes a block, and with this block the confirm comes. A queue's blocks become safe in their order: on one
disk because it writes them so, and in a ring because it confirms them so.

**No holes.** "The highest number taken" says that all lower ones were taken only if none of them was ever left out. But
publishes are left out, while others of the same connection that were sent after them arrive: a link between nodes
breaks and heals, a master is deposed and what waited behind its last block goes to the next one, a queue is full for a
moment. Their publisher gets a nack and sends them again; and if a higher number were there by then, they would be
passed over, confirmed, and lost. So each publish says which number its connection sent *before* to the same queue
(`previous`), and a queue that has not taken that one refuses it:

    previous ≤ taken < first ≤ last     all of it is new
    previous ≤ taken, first ≤ taken     what is not higher was there before
    taken < previous                    something in between is missing: refused, until it has been sent again

By this rule alone, whatever the way a publish took and however long it took it, `taken` means what it says. Nobody
needs to remember who was refused what. After a nack, all that the same connection still sends to that queue is refused
as well, unless what was refused had arrived after all and only its confirm was lost; in either case its client connects
anew and begins with the first number that was refused.

**Refused for good.** A queue that is full, and rejects publishes, refuses some of what a node sends and takes what
comes behind: the publishers of a node have nothing to do with each other. So for the numbers of a node (see `outbox`),
`taken` means "decided", and the mark also says which of the last `WINDOW` numbers were refused. If the answer is lost
and the publish comes again, it gets the same answer; and if it comes out of a spool, where its publisher was told that
it is safe, the queue takes it then. A publish that names no number before it says that all before it have their
answers, and what was refused of them is forgotten. Until then the window does not move on past a refusal: what would
need that is in doubt, and comes again. A named producer sends again what was refused; to its queue that counts as never
sent.

**Two connections of one name** at a time, as when a client has given up one that the broker still reads from, do no
harm: each fits into the same order, and whoever comes second is passed over. It rests on one promise of the client,
that a number means the same message whenever it is sent. Therefore no connection has to be kept out by a newer one.

**Bounds.** A queue knows `PRODUCERS_MAX` names. Where one more comes, those go that have not been used for
`UNUSED_MS`, and if that does not suffice, the one that was not used for longest. If it was in use after all, its next
publish is refused (`taken` is 0 then), and when it connects anew and sends again, what it had no confirm for may be
there twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD
from leveret.broker.delivery.confirms import DOUBTED
from leveret.broker.delivery.publish_numbers import ENTRY, PREFIX
from leveret.broker.delivery.reserve import reserve
from leveret.broker.queue import ttl_and_length
from leveret.broker.queue.queue import Queue
from leveret.storage.format.queue_block import ACKNOWLEDGED, KEPT, OVERDUE, REJECTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.publish_numbers import Origin
    from leveret.broker.queue.local_queue import LocalQueue

PRODUCERS_MAX: Final = 2_000
UNUSED_MS: Final = 7 * 24 * 3_600_000
SEQUENCE_MAX: Final = 1 << 62  # To begin with; there is no end to be reached from there.
WINDOW: Final = 2_048  # Behind that, if some of the last numbers were refused: a bit for each, the highest number last.
NODES: Final = (b"node ", b"epoch ", b"spool ", b"mqtt ", b"will ")  # How names begin that nodes use themselves.


def take(
    queue: LocalQueue, origin: Origin, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending
) -> bool:
    """Enqueue what of these messages is new. True: the queue is crowded."""
    name = PREFIX + origin.producer
    known = queue.durable_state.table.get(name)
    taken, refused = _read(known)
    if origin.previous > taken:
        pending.mark_refused(DOUBTED)
        return False
    first, last = origin.first, origin.first + len(contents) - 1
    lacking = 0  # Which of them were refused before.
    if refused:
        since_first = refused & _ones(taken - first + 1)
        lacking = since_first & ~_ones(taken - last)
        if not origin.previous:
            refused = since_first
        if lacking and not kind & KEPT:
            pending.mark_refused()
            return False
        if not _has_room(refused, last - taken):
            pending.mark_refused(DOUBTED)
            return False
    if known is None and not make_room(queue, name):
        pending.mark_refused()
        return False
    slow = False
    is_new = last > taken or lacking > 0
    if is_new:
        old = taken - first + 1
        if old > 0:
            places = [at for at in range(len(contents)) if at >= old or lacking >> (old - 1 - at) & 1]
            contents, keys = [contents[at] for at in places], [keys[at] for at in places]
            pending.take_part(first + places[0], first + places[-1])
            size = sum(map(len, contents)) + MESSAGE_OVERHEAD * len(contents)
        following = queue.next_seq
        slow = queue.enqueue(contents, keys, kind, size, pending)
        if queue.next_seq == following:
            _remember_refused(queue, origin, taken, refused, last)
            return slow  # It is full, and has refused them.
        queue.drop_last_due_confirm()
        if kind & (ACKNOWLEDGED | REJECTED) and isinstance(queue, Queue):
            _settle(queue, following, kind)
        elif kind & OVERDUE and isinstance(queue, Queue):
            ttl_and_length.dead_letter_last(queue, len(contents))
        refused = (refused & ~lacking) << max(last - taken, 0) if refused else 0
        taken = max(taken, last)
    entry = _entry(queue, taken, refused)
    if is_new and not pending.waiting:
        # They are in no log, and go when the node does. A mark that outlived them would do no good, and cost a sync.
        queue.durable_state.set_quietly(name, entry)
        return slow
    if known is None:
        queue.durable_state.set(name, entry)
    else:
        queue.durable_state.renew(name, entry)
    if not is_new and queue.durable_state.changes:  # Else the queue has no log, and the first copy was not awaited.
        pending.waiting += 1
        queue.await_block(pending)
    return slow


def _settle(queue: Queue, first: int, kind: int) -> None:
    """Settle the newest messages, which a client of another node was done with before they came."""
    if queue.departure is not None:
        return  # What is about to move is delivered once more where it will be.
    for piece in reserve(queue, [(first, queue.next_seq - 1)]):
        queue.settle_delivered(*piece) if kind & ACKNOWLEDGED else queue.discard(*piece)


def taken_of(table: Mapping[bytes, bytes], producer: bytes) -> int:
    """Return the highest number of a producer that a queue with this durable state has taken."""
    return _read(table.get(PREFIX + producer))[0]


def _read(mark: bytes | None) -> tuple[int, int]:
    """The highest number taken, and which of the last ones were refused: bit 0 is that number itself."""
    if mark is None:
        return 0, 0
    return ENTRY.unpack_from(mark)[0], int.from_bytes(mark[ENTRY.size :], "big")


def _entry(queue: LocalQueue, taken: int, refused: int) -> bytes:
    return ENTRY.pack(taken, queue.host.wall_ms) + (refused.to_bytes(WINDOW // 8, "big") if refused else b"")


def _ones(count: int) -> int:
    """Bits for so many of the last numbers, as far as they are in the window."""
    return (1 << min(max(count, 0), WINDOW)) - 1


def _has_room(refused: int, count: int) -> bool:
    """Tell whether so many more numbers can be decided without forgetting one that was refused."""
    return not refused or count <= 0 or (count < WINDOW and not refused << count >> WINDOW)


def _remember_refused(queue: LocalQueue, origin: Origin, taken: int, refused: int, last: int) -> None:
    """The queue is full. What comes behind what a node has sent is taken all the same when there is room."""
    count, name = last - taken, PREFIX + origin.producer
    if not origin.producer.startswith(NODES) or not 0 < count <= WINDOW:
        return
    entry = _entry(queue, last, refused << count | _ones(min(count, last - origin.first + 1)))
    if queue.durable_state.fits(name, entry):
        queue.durable_state.set_quietly(name, entry)


def make_room(queue: LocalQueue, name: bytes) -> bool:
    """For one more name. False: what else the queue has to remember leaves none."""
    known = queue.durable_state.table
    used = {key: ENTRY.unpack_from(value)[1] for key, value in known.items() if key.startswith(PREFIX)}
    since_ms = queue.host.wall_ms - UNUSED_MS
    gone = [key for key, used_ms in used.items() if used_ms < since_ms]
    if not gone and len(used) >= PRODUCERS_MAX:
        gone = [min(used, key=used.__getitem__)]
    for key in gone:
        queue.durable_state.set(key, b"")
    return queue.durable_state.fits(name, bytes(ENTRY.size))
