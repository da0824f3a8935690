"""What a queue does to its messages by itself: they grow old, there are too many of them, they are turned away.

Nothing here is called for a queue that has neither a time to live, nor a limit, nor a message that brought its own time
to live (`LocalQueue.has_upkeep`).

**Age.** A message is as old as its batch says (`Batch.stamp`: the time of the turn it came in), so what shares a time
and a rule goes together. Looked at is the front of the queue only, as messages come to it: before something is handed
out, and when the first one's time has come (`Broker.timers`). A message whose time to live is 0 goes to a consumer that
has room at once, or to none: so what is due exactly now is dropped after the queue has been handed out, not before.

**Very many at once.** A turn drops so many pieces (`Host.expiring_left`), most of which are long stretches; only where
each message has a time to live of its own, or a priority, one piece may be one message. What is overdue then stays at
the front, and counts as ready, until the next turns drop it. Meanwhile nothing is handed out: nobody gets a message
that is too old. Each queue that is pumped may drop a few, so that one with a few does not wait until others, which have
a million, are done.

**Number.** Limits count what waits, not what is out with consumers. `drop-head` makes room after the queue has been
handed out. The other two modes turn publishers away: see `turn_away`.

**Returns.** What consumers give back too often leaves before anything is handed out: see `returns`.

Whatever leaves goes through `DeadLetterPublisher`, which sends it on to the dead-letter exchange if there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import Gap, Span
from leveret.metadata.rules.queue_rules import DROP_HEAD, REJECT_TO_DLX
from leveret.protocol.frames import HEADER_AT, header_end
from leveret.protocol.properties import BODY_SIZE_END, body_size, expiration
from leveret.storage.format.queue_block import EXPIRES, KEPT

if TYPE_CHECKING:
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.queue.ordered_queue import OrderedQueue
    from leveret.broker.queue.queue import Queue

EXPIRED_AT_ONCE: Final = 2_048  # Pieces that grow old in one turn, of all queues together; and then still
EXPIRED_SHARE: Final = 256  # this part of them, and one more, of each queue.
ALIKE: Final = 32  # Messages with equal headers that cost about as much as one more piece.
DROPPED_AT_ONCE: Final = 4_096  # Pieces of a queue that a limit drops in one turn, besides as many as came in it.
SIZED_AT_ONCE: Final = 16_384  # Messages of a queue that a limit of bytes drops in one turn, besides those.
LOOK_AHEAD: Final = 64  # Messages with times to live of their own that are handed out at once.


def stamp(queue: OrderedQueue) -> None:
    """Stamp messages that came in this turn with the time."""
    if queue.open is not None:
        queue.open.stamp(queue.host.wall_ms)


def share() -> int:
    """Return how many pieces a queue may drop in a turn whatever others have dropped in it."""
    return 1 + EXPIRED_AT_ONCE // EXPIRED_SHARE


def before_pump(queue: OrderedQueue, least: int = 0) -> bool:
    """Stamp messages that came in this turn with the time, and drop expired ones before delivering: `least` pieces even
    if the turn has no room. Returns whether that is done: otherwise nothing may be delivered."""
    stamp(queue)
    if queue.departure is not None and queue.departure.begun:
        return True
    if queue.extensions is not None:
        queue.tell_before_hand_out()
    return not queue.timed or _expire(queue, queue.host.wall_ms - 1, least)


def after_pump(queue: OrderedQueue) -> None:
    """Drop messages that no consumer took and that expire now."""
    if queue.timed and not _is_leaving(queue):
        _expire(queue, queue.host.wall_ms)


def limit_length(queue: Queue) -> None:
    """Apply length limits to the messages that no consumer took."""
    rules = queue.rules
    if rules.overflow != DROP_HEAD or _is_leaving(queue):
        return
    before = queue.ready_count
    if rules.max_length is not None and queue.ready_count > rules.max_length:
        _drop(queue, queue.ready_count - rules.max_length)
    if rules.max_bytes is not None:
        _drop_bytes(queue, rules.max_bytes)
    if queue.timed and queue.ready_count < before:
        _expire(queue, queue.host.wall_ms)  # Another one is the first now.


def _is_leaving(queue: OrderedQueue) -> bool:
    """Return whether another node may have the queue, or will."""
    return queue.frozen or (queue.departure is not None and queue.departure.begun)


# -- Age ---------------------------------------------------------------------------------------------------------------


def _expire(queue: OrderedQueue, now_ms: int, least: int = 0) -> bool:
    """Drop those at the front whose time was up at `now_ms`, `least` pieces even if the turn has no room; and have the
    rest looked at in time. Returns whether none is left that is known to be overdue."""
    ready, host = queue.ready, queue.host
    while ready:
        head = ready[0]
        if isinstance(head, Gap):
            queue.want(head)  # Nobody can tell without looking. When it is there, there is another turn.
            break
        due_ms, hi = _due(queue, head)
        if due_ms is None:
            break
        if due_ms > now_ms:
            host.timers.set(queue, due_ms)
            break
        if host.expiring_left <= 0 and least <= 0:
            host.go_on_soon(queue)
            return False
        if head.batch.expires:
            hi = _alike(head)
        cost = 1 + (hi - head.lo) // ALIKE
        host.expiring_left -= cost
        least -= cost
        queue.drop_first(head, hi - head.lo, "expired")
    return True


def _due(queue: OrderedQueue, head: Span) -> tuple[int | None, int]:
    """Return when the first message of a span expires, and up to which index others expire with it."""
    batch, lo = head.batch, head.lo
    if not batch.times:
        batch.stamp(queue.host.wall_ms)  # From before anybody cared.
    came_ms, end = batch.time_at(lo)
    end = min(end, head.hi)
    ttl_ms = queue.rules.ttl_ms
    if batch.expires:
        own_ms = own_ttl_ms(batch, lo)
        if own_ms is not None and (ttl_ms is None or own_ms < ttl_ms):
            ttl_ms = own_ms
        end = lo + 1
    return (None if ttl_ms is None else came_ms + ttl_ms), end


def _alike(head: Span) -> int:
    """Return up to where messages came when the first did and have equal headers, and so an equal time to live."""
    batch, at = head.batch, head.lo + 1
    contents, kinds, first = batch.contents, batch.kinds, batch.contents[head.lo]
    headers, kind = first[BODY_SIZE_END : header_end(first)], kinds[head.lo]
    end = min(batch.time_at(head.lo)[1], head.hi)
    while at < end and kinds[at] == kind and contents[at].startswith(headers, BODY_SIZE_END):
        at += 1
    return at


def wait_for_turn(queue: OrderedQueue) -> Gap:
    """Have overdue messages dropped that this turn had no room for. Returns a gap that stands for what is behind them:
    whoever wants the first message waits as for one that is being read."""
    queue.host.go_on_soon(queue)
    queue.host.overdue[queue] = None
    return Gap(0, 0, 0)


def dead_letter_last(queue: Queue, count: int) -> None:
    """The last messages were overdue before they came. They never wait, so they push no others out."""
    last = queue.ready[-1] if queue.ready else None
    if queue.departure is not None or not isinstance(last, Span):
        return  # What is about to move waits where it will be: it lives once more, and is not lost.
    queue.drop_last(last, count, "expired")


def own_ttl_ms(batch: Batch, at: int) -> int | None:
    """The time to live that a message brought with it. It was checked when it came."""
    if not batch.kinds[at] & EXPIRES:
        return None
    text = expiration(batch.contents[at], HEADER_AT)
    return None if text is None else int(text)


def is_fresh(queue: OrderedQueue, head: Span) -> bool:
    """Before something is handed out where messages do not grow old in the order in which they leave: those of a lower
    priority may be older, and where each has a time to live of its own, one that waits behind another may be overdue
    long before that. Lets the first entry end where such a one is, to be looked at when all in front of it is gone.
    False: the first message is another one now."""
    if queue.departure is not None and queue.departure.begun:
        return True
    now_ms, first = queue.host.wall_ms, head.first
    if not _expire(queue, now_ms - 1) or not queue.ready or queue.ready[0] is not head or head.first != first:
        return False
    if not head.batch.expires:
        return True
    batch, at, end = head.batch, head.lo + 1, min(head.hi, head.lo + LOOK_AHEAD)
    while at < end and not _is_overdue(batch, at, now_ms):
        at += 1
    if at < head.hi:
        rest = Span(batch, at, head.hi)
        head.hi = at
        queue.put_back(rest)
    return True


def _is_overdue(batch: Batch, at: int, now_ms: int) -> bool:
    own_ms = own_ttl_ms(batch, at)
    return own_ms is not None and batch.time_at(at)[0] + own_ms < now_ms


# -- Number ------------------------------------------------------------------------------------------------------------


def _drop(queue: Queue, count: int) -> None:
    ready, left = queue.ready, DROPPED_AT_ONCE
    if count > left:
        left += queue.host.came_meanwhile(queue)
    while count > 0 and ready:
        if left <= 0:
            queue.host.go_on_soon(queue)
            return
        left -= 1
        head = ready[0]
        if isinstance(head, Gap):
            is_sorted = not queue.rules.max_priority
            if queue.rules.dead_letter_exchange is not None or head.last - head.first >= head.count or not is_sorted:
                queue.want(head)  # Their contents are needed, or which of the numbers they are, or in which order.
                return
            count -= queue.drop_gap(head, count)
            continue
        dropped = min(count, head.count)
        queue.drop_first(head, dropped, "maxlen")
        count -= dropped


def _drop_bytes(queue: Queue, bytes_max: int) -> None:
    ready, left = queue.ready, SIZED_AT_ONCE + queue.host.came_meanwhile(queue)
    while ready and queue.ready_bytes > bytes_max:
        if left <= 0:
            queue.host.go_on_soon(queue)
            return
        head = ready[0]
        if isinstance(head, Gap):
            queue.want(head)
            return
        excess, hi, end = queue.ready_bytes - bytes_max, head.lo, min(head.hi, head.lo + left)
        while hi < end and excess > 0:
            excess -= body_size(head.batch.contents[hi], HEADER_AT)
            hi += 1
        left -= hi - head.lo
        queue.drop_first(head, hi - head.lo, "maxlen")


def bodies(contents: list[bytes]) -> int:
    """Return the bytes of the bodies of these contents, which length limits count."""
    return sum([body_size(content, HEADER_AT) for content in contents])


def entry_bytes(entry: Span | Gap) -> int:
    """Return the body bytes of an entry of the ready list."""
    return entry.body_bytes if isinstance(entry, Gap) else bodies(entry.batch.contents[entry.lo : entry.hi])


def recount(gap: Gap, contents: list[bytes]) -> int:
    """Return how many more body bytes the first messages of a gap have than were estimated."""
    found = bodies(contents)
    counted = min(gap.body_bytes, found)
    gap.body_bytes -= counted
    return found - counted


def turn_away(
    queue: Queue, contents: list[bytes], keys: list[bytes], kind: int, pending: Pending | None
) -> bool:
    """Refuse a publish of one message if the queue is full and rejects publishes; return whether it was refused.

    Publishes to such a queue come one by one (`Route.is_plain` is false), so that each has a fate of its own.
    """
    rules = queue.rules
    if kind & KEPT or not _is_full(queue, contents):
        return False
    queue.pump()  # Consumers may have made room in this turn.
    if not _is_full(queue, contents) or not before_pump(queue):  # Or what makes it full is overdue, and about to leave.
        return False
    queue.tell_refused(len(contents), pending)
    if rules.overflow == REJECT_TO_DLX:
        queue.host.dead_letters.send_refused(queue, contents, keys, kind)
    if pending is not None:
        pending.mark_refused()
    return True


def _is_full(queue: Queue, contents: list[bytes]) -> bool:
    rules = queue.rules
    if rules.max_length is not None and queue.ready_count + len(contents) > rules.max_length:
        return True
    return rules.max_bytes is not None and queue.ready_bytes + bodies(contents) > rules.max_bytes
