"""Passes on acknowledgements of what a former master has delivered, when a mirrored queue is handed over in good order.

The new master has every message, but does not know which are unacknowledged. To deliver all of them again would be
right after a crash; after a planned hand-over it would be a nuisance, and an acknowledgement that is on its way at that
moment would be lost. So the former master passes on what becomes of its deliveries:

    client ──ack──▶ former master ──PASSED: acknowledged──▶ new master     settles it
                                    PASSED: out                            delivers it to no other client
                    is gone                                                delivers it again, marked as redelivered

**Order.** The former master says which messages are unacknowledged in the moment in which it learns that it is master
no longer, before anything else is sent from it to the new one. No consumer and no question gets to the new master
before its own node has asked a question through the former one (`RemoteQueue.on_moved`), so none of them can be given
an unacknowledged message.

**Which messages.** Messages are named by their numbers in the queue. Two masters mean the same ones if their logs are
the same up to there: so the former master names the last block it made, by epoch and number, and the new one accepts
the verdicts only if its own epoch began right behind that very block. After a loss, with blocks that no other node has,
it did not. Messages that were in no block yet are not named at all; their publishers have no confirm.

**Redelivered.** Blocks claim more than was delivered (`queue.delivery_claims`), and after a crash all that is claimed
is marked as redelivered. After a hand-over the former master knows better: it says what was not delivered, what was
given back since its last block, and which of the unacknowledged messages were delivered for the first time. If one of
these comes back unseen, because it was on its way to a client or waited at the client's node for room, it is not marked
when it is delivered next; with priorities it is, since it may come behind others that were delivered.

If the queue moves on, the second master in turn passes on what the first one says. If a link breaks or a node stops,
messages that are unacknowledged through it are requeued, as when a client is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.base.range_set import RangeSet, merged
from leveret.broker.delivery.batch import Batch, Span
from leveret.broker.delivery.priority_ready import rows_of
from leveret.broker.remote import peer_frames as w
from leveret.broker.remote.remote_queue import RemoteQueue
from leveret.storage.format.queue_block import REDELIVERED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.delivery.unacked import Unacked
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.broker.queue.queue import Queue
    from leveret.broker.remote.client_end import ClientEnd

Piece = tuple[Batch, int, int]


class FormerQueue(RemoteQueue):
    """Stands for a queue that this node led, in clients' unacknowledged messages that were delivered then."""

    __slots__ = ("new_master", "former_last_block")

    def __init__(self, queue: LocalQueue, new_master: ClientEnd) -> None:
        super().__init__(queue.spec, new_master.broker)
        self.new_master = new_master
        self.former_last_block = (queue.epoch, queue.number)

    def _settle(self, verdict: int, batch: Batch, lo: int, hi: int) -> None:
        self.broker.count_still_out(lo - hi)
        if self.new_master.is_up:  # Else the new master has requeued it already.
            self.new_master.pass_on(self, [(verdict, batch.first + lo, batch.first + hi - 1)])


def pass_on_unacked(queue: LocalQueue, successor: AnyQueue) -> bool:
    """Tell the new master what is unacknowledged, and what was settled or given back too late for a block. False: no
    link to it."""
    broker: Broker = queue.host  # type: ignore[assignment]  # Queues that have mirrors have a broker for a host.
    new_master = None if successor.is_local else successor.client_end
    if new_master is None:
        return False
    former = FormerQueue(queue, new_master)
    through = (queue.next_seq if queue.open is None else queue.open.first) - 1  # The last message in a block.
    unseen = [] if queue.gate is None else queue.gate.claimed_undelivered()
    out: list[tuple[int, int]] = []
    fresh = RangeSet()
    for unacked, is_of_others in _all_unacked(broker):
        for one in unacked.all_out():
            if one.queue is queue:
                out.append((one.batch.first + one.lo, one.batch.first + one.hi - 1))
                for first, last in _unmarked(one.batch, one.lo, one.hi):
                    fresh.add(first, last)
                broker.count_still_out(one.count)
                one.move_to(former, Batch(one.batch.first))  # The new master has the contents.
                if is_of_others:
                    one.forget_consumer()  # Its own node subscribes it at the new master.
    given_back = RangeSet(merged(queue.requeued))
    for pair in [*out, *queue.settled]:
        given_back.remove(*pair)
    settled, back = _stored(queue.settled, through), _stored(given_back, through)
    out = _stored([*out, *settled, *back], through)
    verdicts = [(w.UNSEEN, *pair) for pair in unseen]
    for first, last in out:
        again = RangeSet([(first, last)])
        for pair in fresh.ranges(first, last):
            again.remove(*pair)
            verdicts.append((w.FIRST_OUT, *pair))
        verdicts += [(w.OUT, *pair) for pair in again]
    if verdicts:
        told = [(w.ACKED, *pair) for pair in settled] + [(w.REQUEUED, *pair) for pair in back]
        new_master.pass_on(former, verdicts + told)
    return True


def _stored(ranges: Iterable[tuple[int, int]], through: int) -> list[tuple[int, int]]:
    """Returns those of the messages that are in a block."""
    return [(first, min(last, through)) for first, last in merged(list(ranges)) if first <= through]


def _unmarked(batch: Batch, lo: int, hi: int) -> list[tuple[int, int]]:
    """Returns the numbers of messages delivered for the first time. For those only in the log this is not known."""
    if batch.paged or not batch.redelivered:
        return [] if batch.paged else [(batch.first + lo, batch.first + hi - 1)]
    return merged([(batch.first + at,) * 2 for at in range(lo, hi) if not batch.kinds[at] & REDELIVERED])


def unmark(queue: Queue, verdicts: list[tuple[int, int, int]]) -> None:
    """At the new master: remove the redelivered mark from messages that the former one has not delivered before. As far
    as blocks say, they may all have been delivered. Unacknowledged ones are marked if their client requeues them."""
    broker: Broker = queue.host  # type: ignore[assignment]
    ranges = merged([(first, last) for verdict, first, last in verdicts if verdict in (w.FIRST_OUT, w.UNSEEN)])
    if not ranges:
        return
    wanted = RangeSet(ranges)
    for entry in (entry for row in rows_of(queue.ready) for entry in row):
        if entry.first > ranges[-1][1]:
            if not queue.rules.max_priority:
                break
        elif isinstance(entry, Span) and entry.batch.redelivered:
            for first, last in wanted.ranges(entry.first, entry.last):
                entry.batch.unmark(first - entry.batch.first, last - entry.batch.first + 1)
    assert broker.mirrors.store is not None
    broker.mirrors.store.unmark(queue.spec.id, ranges)
    if not queue.rules.max_priority:
        for verdict, first, last in verdicts:
            if verdict == w.UNSEEN and last >= queue.delivered_through:
                queue.lower_delivered(first - 1)


def _all_unacked(broker: Broker) -> Iterator[tuple[Unacked, bool]]:
    """Yields all unacknowledged messages, and whether these are with clients of other nodes."""
    for session in broker.sessions:
        yield session.unacked, False
    for owner_end in broker.owner_ends.values():
        yield owner_end.unacked, True
        for unacked in owner_end.inherited.values():
            yield unacked, True
