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

**Two connections of one name** at a time, as when a client has given up one that the broker still reads from, do no
harm: each fits into the same order, and whoever comes second is passed over. It rests on one promise of the client,
that a number means the same message whenever it is sent. Therefore no connection has to be kept out by a newer one.

**Bounds.** A queue knows `PRODUCERS_MAX` names. Where one more comes, those go that have not been used for
`UNUSED_MS`, and if that does not suffice, the one that was not used for longest. If it was in use after all, its next
publish is refused (`taken` is 0 then), and when it connects anew and sends again, what it had no confirm for may be
there twice.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from leveret.broker import upkeep
from leveret.broker.batch import MESSAGE_OVERHEAD
from leveret.broker.confirms import DOUBTED, REFUSED
from leveret.log.block import OVERDUE

if TYPE_CHECKING:
    from leveret.broker.confirms import Pending
    from leveret.broker.origin import Origin
    from leveret.broker.queue import Queue

PREFIX: Final = b"producer:"
PRODUCERS_MAX: Final = 2_000
UNUSED_MS: Final = 7 * 24 * 3_600_000
SEQUENCE_MAX: Final = 1 << 62  # To begin with; there is no end to be reached from there.
ENTRY: Final = struct.Struct(">QQ")  # The highest number taken, and when something last came, by the wall clock.


def take(
    queue: Queue, origin: Origin, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending
) -> bool:
    """Enqueue what of these messages is new. True: the queue is crowded."""
    name = PREFIX + origin.producer
    known = queue.durable_state.table.get(name)
    taken = 0 if known is None else ENTRY.unpack(known)[0]
    if origin.previous > taken:
        pending.refused = DOUBTED
        return False
    if known is None and not make_room(queue, name):
        pending.refused = REFUSED
        return False
    slow = False
    last = origin.first + len(contents) - 1
    is_new = last > taken
    if is_new:
        old = taken - origin.first + 1
        if old > 0:
            contents, keys = contents[old:], keys[old:]
            size = sum(map(len, contents)) + MESSAGE_OVERHEAD * len(contents)
        following = queue.next_seq
        slow = queue.enqueue(contents, keys, kind, size, pending)
        if queue.next_seq == following:
            return slow  # It is full, and has refused them.
        if queue.posts:
            queue.posts.pop()  # Whoever has numbered them knows what to do about them.
        if kind & OVERDUE:
            upkeep.bury_last(queue, len(contents))
        taken = last
    if is_new and not pending.waiting:
        # They are in no log, and go when the node does. A mark that outlived them would do no good, and cost a sync.
        queue.durable_state.set_quietly(name, ENTRY.pack(taken, queue.host.wall_ms))
        return slow
    if known is None:
        queue.durable_state.set(name, ENTRY.pack(taken, queue.host.wall_ms))
    else:
        queue.durable_state.renew(name, ENTRY.pack(taken, queue.host.wall_ms))
    if not is_new and queue.durable_state.changes:  # Else the queue has no log, and the first copy was not awaited.
        pending.waiting += 1
        queue.await_block(pending)
    return slow


def make_room(queue: Queue, name: bytes) -> bool:
    """For one more name. False: what else the queue has to remember leaves none."""
    used = {key: ENTRY.unpack(value)[1] for key, value in queue.durable_state.table.items() if key.startswith(PREFIX)}
    since_ms = queue.host.wall_ms - UNUSED_MS
    gone = [key for key, used_ms in used.items() if used_ms < since_ms]
    if not gone and len(used) >= PRODUCERS_MAX:
        gone = [min(used, key=used.__getitem__)]
    for key in gone:
        queue.durable_state.set(key, b"")
    return queue.durable_state.fits(name, bytes(ENTRY.size))
