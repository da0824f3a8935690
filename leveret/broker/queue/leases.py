"""Leases: named readers of a queue that outlive whoever reads.

What a consumer has in hand comes back when its connection is lost, and then to anybody. That is right for workers, and
useless for a job that has to be able to say "the same ten thousand again": its tags are gone with its channel. A lease
is a reader whose state is the queue's. Messages that are *taken* into it stay where they are, in the log, and get
*places* in the lease's own sequence, 0, 1, 2 …; whoever knows the lease's name can read them by their numbers as often
as it likes, from any node that has the queue, until it *acknowledges* up to a place.

    queue     … 41 42 43 44 45 46 47 48 …          43 is out with a consumer, 47 and 48 wait
    lease     places 0,1 → 41,42   2,3,4 → 44,45,46

    take      waiting messages, in the queue's order, go into the lease: nobody else is given them, they do not expire
    ack N     the places below N are settled; again, or of what is gone already, it is no error
    release   whatever is left goes back to its old place, marked as redelivered, and the lease is closed

**What makes it last.** A lease is an entry of the queue's durable state: how far it is acknowledged, which place comes
next, and the runs of numbers that are out. It changes in the same block as the messages do: a block that settles what
was acknowledged also says so of the lease, one that gives messages back also ends it. So a restart, the next master, or
the node to which the queue moves finds both or neither. There the messages that are in the lease are taken out of those
that wait (`restore`), before anybody is given one.

**A place means one message for ever.** Whoever takes is answered when the block is safe, as a publisher is: a place
that was never told may be given again, to other messages, by a master that did not know of it. For the same reason
nobody is shown a state that is not safe yet (`Lease.shown`), and each answer waits for all that came before it. A lease
that was released, by itself or by an operator, is remembered as *closed*, and goes on counting where it was if somebody
opens it again: a job that knows nothing of it and acknowledges what it had must not hit other messages, and sees that
they are gone. If it gave anything back, one place is left out, and means nothing: so that a job which has done all that
it was given, and has not said so yet, does not go on either as if nothing had been, and gets the same once more.
Numbers are not given twice either. Of messages that only memory had (transient ones of a queue without mirrors) a
restart loses the contents, and the log does not know that there were such numbers; the lease does (`top`), and the
queue goes on behind them. Where the queue moves to, its messages have other numbers, beyond all that it had (see
`moving`).

**Memory.** A lease may hold millions: it is a list of runs, without contents. Of what lies in memory when it is taken,
contents are forgotten as soon as the log has them; until then, and where it never will, they are kept (`held`).

**Owner.** Two jobs that use one name would each read everything, and neither would know. So a job that has something to
be known by, in its own checkpoint, can say so when it opens the lease: from then on nobody else takes or acknowledges.
Whoever is to go on in its place says that, and the former one is refused. A lease that is released has no owner.

**Time.** A lease that nobody touched (open, take, ack) for its time limit is released, so that a job that was given up
does not keep its messages for ever. Touching alone is noted in the log now and then only, so that a reader that asks a
hundred times a second does not make a hundred blocks: another master may know of a time that is a little older.

A lease reads no contents to take what is in the log only. That has two consequences. How many bytes it takes there is
an estimate, by the mean of each block. And what would have expired inside a gap is taken with it: only the front of a
queue is ever looked at. A queue with priorities does not know its order before it has read and sorted what a start
finds in the log; then the taker waits for that.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.base.range_set import RangeSet, Wanted, merged
from leveret.broker.delivery.answers import unreachable
from leveret.broker.delivery.batch import Gap, Span
from leveret.broker.delivery.extension import Extension
from leveret.broker.delivery.reserve import reserve
from leveret.broker.queue import ttl_and_length
from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.broker.queue.lease import (
    HEAD,
    NAME_BYTES_MAX,
    OWNER_BYTES_MAX,
    PREFIX,
    RUN_BYTES_MAX,
    TIMEOUT_MS,
    Lease,
    LeaseView,
    Numbering,
    is_name,
    pack_lease,
    unpack_lease,
)
from leveret.broker.queue.queue import Queue
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.model.refusals import Refusal, not_found, resource
from leveret.metadata.rules.ha_policy import is_stream
from leveret.storage.format.queue_marks import TABLE_BYTES_MAX, VALUE_BYTES_MAX, fits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.queue.local_queue import LocalQueue

LEASES_MAX: Final = 256  # Of one queue, with those that are closed; of these the oldest goes first,
CLOSED_MS: Final = 30 * 24 * 3600 * 1000  # and each of them after so long.
TIMEOUT_MS_MAX: Final = 366 * TIMEOUT_MS
TOUCH_MS: Final = 60_000  # So much later than what the log knows, a touch is worth a block;
TOUCH_PART: Final = 8  # or this part of the time limit, if that is less.
AGAIN_MS: Final = 1_000  # When a lease is overdue and its queue cannot change now.

# -- The leases of a queue -------------------------------------------------------------------------------------------


class Leases(Extension):
    """The leases of a queue at its master."""

    __slots__ = ("all", "closed", "queue")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.all: dict[str, Lease] = {}
        self.closed: dict[str, Lease] = {}  # The one that was closed first is the first.

    def held(self) -> Iterator[tuple[Batch, int, int]]:
        """Yield leased messages that are only in memory."""
        for lease in self.all.values():
            yield from lease.held

    def _get(self, name: str) -> Lease | Refusal:
        spec = self.queue.spec
        return self.all.get(name) or Refusal(404, f"no lease '{name}' of {resource('queue', spec.name, spec.vhost)}")

    # -- What may be asked ---------------------------------------------------------------------------------------

    def open(self, name: str, timeout_ms: int | None, owner: str = "", takeover: bool = False) -> Lease | Refusal:
        lease = self.all.get(name)
        if owner and not (len(owner.encode("utf-8", "replace")) <= OWNER_BYTES_MAX and owner.isprintable()):
            return Refusal(406, f"a lease's owner is text of 1 to {OWNER_BYTES_MAX} bytes")
        if lease is not None and owner and not takeover and (refusal := self._not_its(lease, owner)) is not None:
            return refusal
        if timeout_ms is not None and not 1 <= timeout_ms <= TIMEOUT_MS_MAX:
            return Refusal(406, f"a lease's timeout is 1 to {TIMEOUT_MS_MAX} ms, not {timeout_ms}")
        if lease is None:
            if not is_name(name):
                return Refusal(406, f"a lease's name is UTF-8 of 1 to {NAME_BYTES_MAX} bytes")
            lease = self.closed.pop(name, None) or Lease(name)
            if not self._has_room(lease):
                return Refusal(406, f"{self._of()} has reached the limit of leases")
            lease.timeout_ms = TIMEOUT_MS
            self.all[name] = lease
            changed = True
        else:
            changed = timeout_ms not in (None, lease.timeout_ms)
        if timeout_ms is not None:
            lease.timeout_ms = timeout_ms
        self._touch(lease, changed)
        return self._own(lease, owner) if owner and owner != lease.owner else lease

    def _own(self, lease: Lease, owner: str) -> Lease | Refusal:
        value = owner.encode()
        if not self.queue.durable_state.fits(lease.owner_key, value):
            return Refusal(406, f"{self._of()} has no room for the owner of a lease")
        lease.owner = owner
        self.queue.durable_state.set(lease.owner_key, value)
        return lease

    def _not_its(self, lease: Lease, owner: str) -> Refusal | None:
        if lease.owner in ("", owner):
            return None
        return Refusal(530, f"lease '{lease.name}' of {self._of()} belongs to another reader, {lease.owner}")

    def _has_room(self, lease: Lease) -> bool:
        packed = pack_lease(lease)
        while len(self.all) + len(self.closed) >= LEASES_MAX or not self.queue.durable_state.fits(lease.key, packed):
            if not self.closed:
                return False
            self._forget(next(iter(self.closed.values())))
        return True

    def _forget(self, lease: Lease) -> None:
        del self.closed[lease.name]
        self.queue.durable_state.set(lease.key, b"")

    def take(self, name: str, count_max: int, bytes_max: int, owner: str = "") -> Lease | Refusal | Gap:
        """A gap: it has to be read first, for nobody knows its order."""
        lease = self._get(name)
        if isinstance(lease, Refusal):
            return lease
        if (refusal := self._not_its(lease, owner)) is not None:
            return refusal
        if count_max < 1 or bytes_max < 1:
            return Refusal(406, "a lease takes at least one message, and one byte")
        runs_max = self._runs_max(lease)
        if len(lease.runs) >= runs_max:
            return Refusal(406, f"lease '{name}' of {self._of()} is in too many pieces: acknowledge some first")
        before, queue = lease.next, self.queue
        unread = _Taker(self, lease, count_max, bytes_max, runs_max).run()
        if unread is not None and lease.next == before:
            return unread
        for place, first, last in lease.runs:
            if place + last - first >= before:
                queue.tell_delivered(f"lease {name}", max(first, first + before - place), last)
        self._touch(lease, changed=lease.next != before)
        return lease

    def ack(self, name: str, through: int, owner: str = "") -> Lease | Refusal:
        lease = self._get(name)
        if isinstance(lease, Refusal):
            return lease
        if (refusal := self._not_its(lease, owner)) is not None:
            return refusal
        if not 0 <= through <= lease.next:
            return Refusal(406, f"lease '{name}' of {self._of()} has given {lease.next} places, not {through}")
        if through > lease.acked:
            self._settle(lease, lease.cut(through))
            self._touch(lease, changed=True)
        else:
            self._touch(lease)
        return lease

    def release(self, name: str) -> Lease | Refusal:
        lease = self._get(name)
        if not isinstance(lease, Refusal):
            self._release(lease)
        return lease

    def _of(self) -> str:
        return resource("queue", self.queue.spec.name, self.queue.spec.vhost)

    def _runs_max(self, lease: Lease) -> int:
        """For how many runs there is room, however long their numbers become."""
        marks = self.queue.durable_state.table
        held = sum(map(len, marks)) + sum(map(len, marks.values())) - len(marks[lease.key])
        return (min(VALUE_BYTES_MAX, TABLE_BYTES_MAX - held) - HEAD.size) // RUN_BYTES_MAX

    # -- What becomes of messages --------------------------------------------------------------------------------

    def _settle(self, lease: Lease, gone: list[tuple[int, int]]) -> None:
        queue = self.queue
        numbers = RangeSet(merged(gone))
        count = numbers.count - sum(lease.lost.remove(first, last) for first, last in numbers)
        queue.count_acked(count)
        for batch, lo, hi in lease.take_held(numbers):
            numbers.remove(batch.first + lo, batch.first + hi - 1)
            queue.settle(batch, lo, hi)
        for first, last in numbers:
            queue.settle_numbers(first, last)

    def _release(self, lease: Lease) -> None:
        self.put_back(lease, shown=True)
        if lease.runs:
            lease.next += 1
        lease.runs, lease.lost = [], RangeSet()
        lease.acked, lease.timeout_ms, lease.shown = lease.next, 0, None
        if lease.owner:
            lease.owner = ""
            self.queue.durable_state.set(lease.owner_key, b"")
        lease.touched_ms = self.queue.host.wall_ms
        self.closed[lease.name] = self.all.pop(lease.name)
        self.queue.durable_state.set(lease.key, pack_lease(lease))

    def put_back(self, lease: Lease, shown: bool) -> None:
        """All that is out waits again. The last ones first, so that each insertion is near the front."""
        queue = self.queue
        numbers = lease.alive()
        pieces = lease.take_held(numbers)
        queue.requeue_many(pieces, shown, counted=False)  # No consumer has failed.
        for batch, lo, hi in pieces:
            numbers.remove(batch.first + lo, batch.first + hi - 1)
        for first, last in reversed(list(numbers)):
            queue.requeue_numbers(first, last, shown)

    def put_back_all(self) -> None:
        """The queue is about to move, and its messages with it. The leases remember which were theirs."""
        for lease in self.all.values():
            self.put_back(lease, shown=False)

    def moved(self, pieces: list[tuple[Batch, int, int]], first: int) -> dict[bytes, bytes] | None:
        """The queue's marks where it has moved to, where these messages have the numbers from `first` on. None: they
        are too long there."""
        marks = dict(self.queue.durable_state.table)
        there = Numbering(pieces, first)
        for lease in self.all.values():
            copy = unpack_lease(lease.name, pack_lease(lease))
            copy.runs = [run for old in lease.runs for run in there.translate(*old)]
            copy.top = max([first - 1, *(last for _, _, last in copy.runs)])
            packed = pack_lease(copy)
            if not fits(marks, lease.key, packed):
                return None
            marks[lease.key] = packed
        return marks

    def on_logged(self) -> None:
        self.forget_contents()

    def on_page_out(self) -> None:
        self.forget_contents(spill=True)

    def forget_contents(self, spill: bool = False) -> None:
        """Drop contents of leased messages that the log has; with `spill`, write the others to it first."""
        for lease in self.all.values():
            if lease.held:
                lease.held = [
                    one for one in lease.held
                    if not (spill or one[0].all_logged) or not self.queue.forget_dead(Span(*one))
                ]  # fmt: skip

    # -- Time ----------------------------------------------------------------------------------------------------

    def _touch(self, lease: Lease, changed: bool = False) -> None:
        now_ms = self.queue.host.wall_ms
        lease.touched_ms = max(now_ms, lease.touched_ms)
        late_ms = min(TOUCH_MS, lease.timeout_ms // TOUCH_PART)
        if changed or lease.waiting_answers or now_ms - lease.noted_ms >= late_ms:
            lease.noted_ms = now_ms
            self.queue.durable_state.set(lease.key, pack_lease(lease))
        self.queue.host.timers.set(self.queue, lease.touched_ms + lease.timeout_ms)

    def on_turn(self) -> None:
        """Release what nobody has used for too long."""
        queue, now_ms = self.queue, self.queue.host.wall_ms
        if self.closed and now_ms - next(iter(self.closed.values())).touched_ms > CLOSED_MS:
            self._forget(next(iter(self.closed.values())))
        for lease in list(self.all.values()):
            due_ms = lease.touched_ms + lease.timeout_ms
            if due_ms > now_ms:
                queue.host.timers.set(queue, due_ms)
            elif queue.is_deferring:
                queue.host.timers.set(queue, now_ms + AGAIN_MS)
            else:
                idle_s = (now_ms - lease.touched_ms) // 1000
                queue.host.note(f"lease '{lease.name}' of {self._of()} was not used for {idle_s} s and is released")
                self._release(lease)

    # -- What was --------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """The queue's marks have come from its log, or from where it was. All its messages wait."""
        queue = self.queue
        for key, value in queue.durable_state.table.items():
            if key.startswith(PREFIX):
                name = key.removeprefix(PREFIX).decode()
                lease = unpack_lease(name, value)
                lease.noted_ms = lease.touched_ms
                queue.number_from(lease.top + 1)
                if not lease.timeout_ms:
                    self.closed[name] = lease
                    continue
                self.all[name] = lease
                # Before it is shown to anybody, this state has to be safe, too: it may be that of a block which only
                # this node has.
                owner = queue.durable_state.table.get(lease.owner_key, b"")
                lease.owner = owner.decode("utf-8", "replace")
                queue.durable_state.tell(key)
                if owner:
                    queue.durable_state.tell(lease.owner_key)
                lease.waiting_answers += 1
                queue.durable_state.when_safe(partial(self._on_restored, lease, lease.view()))
        self.closed = dict(sorted(self.closed.items(), key=lambda item: item[1].touched_ms))
        self.reserve()
        queue.host.dirty[queue] = None

    def reserve(self) -> None:
        """Take what is leased out of those that wait."""
        queue = self.queue
        for lease in self.all.values():
            lease.lost = RangeSet(lease.numbers())
            for batch, lo, hi in reserve(queue, lease.numbers()):
                lease.lost.remove(batch.first + lo, batch.first + hi - 1)
                if not batch.paged:
                    lease.held.append((batch, lo, hi))
            queue.host.timers.set(queue, lease.touched_ms + lease.timeout_ms)
        self.forget_contents()

    def _on_restored(self, lease: Lease, view: LeaseView, safe: bool) -> None:
        lease.waiting_answers -= 1
        if safe and lease.timeout_ms:
            lease.shown = view


class _Taker:
    """Takes messages from those that wait, in the queue's order."""

    __slots__ = ("count", "lease", "queue", "room", "runs_max")

    def __init__(self, leases: Leases, lease: Lease, count_max: int, bytes_max: int, runs_max: int) -> None:
        self.queue = leases.queue
        self.lease = lease
        self.count = count_max
        self.room = bytes_max
        self.runs_max = runs_max

    def run(self) -> Gap | None:
        """Gives a gap that has to be read before anything behind it can be taken, or one that stands for what is
        overdue."""
        queue = self.queue
        queue.refresh_rules()
        if queue.has_upkeep and not ttl_and_length.before_pump(queue):
            return ttl_and_length.wait_for_turn(queue)
        while queue.ready and self.count > 0 and self.room > 0 and len(self.lease.runs) < self.runs_max:
            head = queue.ready[0]
            if isinstance(head, Gap):
                if self._must_read(head):
                    return head
                self._take_gap(head)
            elif self._is_fresh(head):
                self._take_span(head)
            elif queue.host.expiring_left <= 0:
                return ttl_and_length.wait_for_turn(queue)
        return None

    def _is_fresh(self, head: Span) -> bool:
        """False: the first message is another one now."""
        queue = self.queue
        mixed = queue.timed and (head.batch.expires or bool(queue.rules.max_priority))
        return not mixed or ttl_and_length.is_fresh(queue, head)

    def _must_read(self, gap: Gap) -> bool:
        if gap.ranges is None and self.queue.rules.max_priority:
            return True
        returns = self.queue.extension(DeliveryLimit)
        return returns is not None and gap.first in returns.overdue

    def _take_span(self, head: Span) -> None:
        queue, each = self.queue, head.batch.average_bytes()
        count = min(head.count, self.count, max(self.room // each, 1))
        batch, lo, hi = queue.take_first(head, count)
        self._took(batch.first + lo, batch.first + hi - 1, count * each)
        if not batch.all_logged or not queue.forget_dead(Span(batch, lo, hi)):
            self.lease.held.append((batch, lo, hi))

    def _take_gap(self, gap: Gap) -> None:
        queue = self.queue
        last = gap.last
        returns = queue.extension(DeliveryLimit)
        if returns is not None and returns.overdue:
            last = min((one for one in returns.overdue if gap.first <= one <= last), default=last + 1) - 1
        runs_max = self.runs_max - len(self.lease.runs)
        wanted = Wanted(gap.first, last, self.count, self.room, gap.ranges, runs_max)
        found, size = queue.host.measure(queue, wanted)
        taken = sum(high - low + 1 for low, high in found)
        each = size // max(taken, 1)
        for low, high in found:
            self._took(low, high, each * (high - low + 1))
        queue.stop_loading(gap)
        queue.take_from_gap(gap, found[-1][1] if found else last, taken)

    def _took(self, first: int, last: int, size: int) -> None:
        count = last - first + 1
        self.queue.count_unacked(count)
        self.count -= count
        self.room -= size
        self.lease.add(first, last)


# -- Questions -------------------------------------------------------------------------------------------------------
# They are answered when what they have changed is safe.


def open_lease(
    queue: LocalQueue,
    name: str,
    timeout_ms: int | None,
    then: Callable[[LeaseView | Refusal], None],
    owner: str = "",
    takeover: bool = False,
) -> None:
    """Has a lease of that name, new or as it is. Without a timeout, its own stays, or is a day. With an owner, it is
    his from now on; if it is another's, only with `takeover`."""
    _ask(queue, lambda leases: leases.open(name, timeout_ms, owner, takeover), then)


def take_lease(
    queue: LocalQueue,
    name: str,
    count_max: int,
    bytes_max: int,
    then: Callable[[LeaseView | Refusal], None],
    owner: str = "",
) -> None:
    """Moves some of those that wait into the lease. What it has then is in the answer, old and new."""
    _ask(queue, lambda leases: leases.take(name, count_max, bytes_max, owner), then)


def ack_lease(
    queue: LocalQueue, name: str, through: int, then: Callable[[LeaseView | Refusal], None], owner: str = ""
) -> None:
    """The places below `through` are done with."""
    _ask(queue, lambda leases: leases.ack(name, through, owner), then)


def release_lease(queue: LocalQueue, name: str, then: Callable[[LeaseView | Refusal], None]) -> None:
    """Gives back what was not acknowledged, and forgets the lease."""
    _ask(queue, lambda leases: leases.release(name), then)


def lease_views(queue: LocalQueue) -> list[LeaseView]:
    """Return a queue's leases, as far as they are on disk."""
    leases = queue.extension(Leases)
    return [] if leases is None else [lease.shown for lease in leases.all.values() if lease.shown is not None]


def _ask(
    queue: LocalQueue,
    act: Callable[[Leases], Lease | Refusal | Gap],
    then: Callable[[LeaseView | Refusal], None],
) -> None:
    """Do something to the leases of a queue, wherever it is by now, and answer when it is safe."""

    def go_on(found: AnyQueue) -> None:
        _ask(found, act, then) if found.is_local else then(unreachable(found.spec))

    spec = queue.spec
    if queue.deleted:
        successor = queue.host.successor(queue)
        go_on(successor) if successor is not None else then(not_found("queue", spec.name, spec.vhost))
        return
    if queue.later(go_on):
        return
    refusal = _refusal(queue)
    if refusal is not None:
        then(refusal)
        return
    assert isinstance(queue, Queue)  # A stream is refused.
    leases = queue.extension(Leases)
    if leases is None:
        leases = Leases(queue)
        queue.extend(leases)
    queue.touch()
    answer = act(leases)
    if isinstance(answer, Gap):
        if answer.count:  # Else it stands for what is overdue, and nothing is to be read.
            queue.want(answer)
        queue.host.when_loaded(queue, lambda: go_on(queue))
    elif isinstance(answer, Refusal):
        then(answer)
    else:
        _tell(queue, answer, then)


def _refusal(queue: LocalQueue) -> Refusal | None:
    spec = queue.spec
    if queue.frozen:
        return unreachable(spec)
    if is_hidden_queue(spec.name):
        return not_found("queue", spec.name, spec.vhost)
    if is_stream(spec.arguments):
        what = resource("queue", spec.name, spec.vhost)
        return Refusal(540, f"leases not supported by stream queues {what}: a stream can be read as often as one likes")
    if spec.owner is not None:
        return Refusal(405, f"{resource('queue', spec.name, spec.vhost)} is exclusive to a connection")
    return None


def _tell(queue: LocalQueue, lease: Lease, then: Callable[[LeaseView | Refusal], None]) -> None:
    view = lease.view()

    def on_safe(safe: bool) -> None:
        lease.waiting_answers -= 1
        if safe and lease.timeout_ms:
            lease.shown = view
        gone = not_found("queue", queue.spec.name, queue.spec.vhost)
        then(view if safe else gone if queue.host.successor(queue) is None else unreachable(queue.spec))

    lease.waiting_answers += 1
    queue.durable_state.when_safe(on_safe)
