"""Figures about the mirrored queues of this node, for the CLI, the HTTP API and the metrics.

Everything here reads and changes nothing. Where the figures come from:

- Which nodes are members, and which of them are in sync, is in the view, which every node knows.
- How far the others are behind is known to the master alone, from what each of them says it has on disk (`lags`).
- What a copy holds, and how far a sync has got, is known only where the copy is (`own_copy`).

A member that is away reports nothing, so its lag is not known: 0 would look like a promise. One that is being
synchronised names the messages it has not dealt with; their age and size are known only to the disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.base.range_set import RangeSet
from leveret.replication.packed_block import last_message, message_count

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.mirrors.copy_store import MirrorStore
    from leveret.broker.mirrors.manager import Mirror

QUEUE_PID: Final = 2  # The number that all queues have in the ids that look like RabbitMQ's pids.

RUNNING: Final = "running"
SYNCING: Final = "syncing"
MINORITY: Final = "minority"
DOWN: Final = "down"


def copy_pid(node: str, number: int) -> str:
    """Returns the id shown for a node's copy of the queue with this id where RabbitMQ shows a process."""
    return f"<{node}.{QUEUE_PID}.{number}.0>"


class Lag(NamedTuple):
    """The distance of one mirror from the end of its master's log. None: not known."""

    node: str
    running: bool
    in_sync: bool
    complete: bool
    messages: int | None
    bytes: int | None
    seconds: float | None  # Since its master took the oldest block that the mirror does not have on disk.


class Copy(NamedTuple):
    """The state of one node's copy of a queue."""

    leads: bool
    in_sync: bool
    complete: bool
    filling: bool  # It fetches the messages it lacks, as far as another member has them.
    epoch: int
    end: int  # The number of its last block.
    messages: int  # The number of messages it holds.
    filled: int  # Message numbers that its sync has dealt with; 0 for a complete copy.
    to_fill: int  # Message numbers that its sync has to deal with in all; 0 for a complete copy.


def lags(mirror: Mirror, store: MirrorStore | None, now_ms: int) -> list[Lag]:
    """Returns the lag of each other member of the ring; empty where this node does not lead the queue. For a member
    that is being synchronised only messages are counted: those it lacks that live at the master; without a store, its
    lag is not known."""
    member = mirror.member
    master, tail = member.master, member.tail
    if master is None:
        return []
    found = []
    for name in master.view.ring:
        if name == member.me:
            continue
        entry, running = master.report_of(name), name in member.links
        counts = master.view.disk_of(name) is not None
        if entry is None or not running or not (entry.complete or (entry.lacks and store is not None)):
            found.append(Lag(name, running, counts, entry is not None and entry.complete, None, None, None))
            continue
        if not entry.complete:
            assert store is not None
            live = store.stored(mirror.spec.id).live
            missing = sum(live.count_within(low, high) for low, high in entry.lacks)
            found.append(Lag(name, True, counts, False, missing + tail.messages_after(entry.durable), None, None))
            continue
        taken_ms = tail.time_after(entry.durable)
        late_s = 0.0 if taken_ms is None else max(0, now_ms - taken_ms) / 1000
        size = tail.bytes_between(entry.durable, tail.end)
        found.append(Lag(name, True, counts, True, tail.messages_after(entry.durable), size, late_s))
    return found


def own_copy(mirror: Mirror, store: MirrorStore) -> Copy:
    member = mirror.member
    filled, to_fill = (0, 0) if member.complete else member.filling.progress
    return Copy(
        member.master is not None,
        member.in_sync,
        member.complete,
        not member.complete and member.filling.wanted,
        member.tail.last_epoch,
        member.tail.end,
        _held(mirror, store),
        filled,
        to_fill,
    )


def _held(mirror: Mirror, store: MirrorStore) -> int:
    """Returns how many messages a copy has: those stored, and those of blocks not known to be confirmed yet."""
    live, tail = store.stored(mirror.spec.id).live, mirror.member.tail
    fresh, settled = RangeSet(), RangeSet()
    for block in tail.upto(mirror.member.confirmed + 1, tail.end):
        last = last_message(block)
        if last:
            fresh.add(last - message_count(block) + 1, last)
        for low, high in block.settled:
            settled.add(low, high)
    held = live.count
    for low, high in settled:
        fresh.remove(low, high)
        held -= live.count_within(low, high)
    return held + fresh.count


def lacking(mirror: Mirror) -> list[str]:
    """Returns the members that run and are not in sync, as their master sees it."""
    view = mirror.member.view
    if view is None:
        return []
    return [name for name in view.ring if name in mirror.member.links and view.disk_of(name) is None]


def synchronised(mirror: Mirror) -> list[str]:
    """Returns the other members that run and hold all that is confirmed."""
    view = mirror.member.view
    return [] if view is None else [name for name, _ in view.in_sync if name in mirror.member.links]


def is_syncing(mirror: Mirror) -> bool:
    """Returns, at the master, whether mirrors that lack messages are being synchronised."""
    wanted = mirror.member.options.filling if mirror.ordered is None else mirror.ordered
    return wanted and bool(lacking(mirror))


def state(mirror: Mirror) -> str:
    """Returns RabbitMQ's word for the state of the queue, at its master."""
    if not mirror.member.majority:
        return MINORITY
    return SYNCING if is_syncing(mirror) else RUNNING


class Counts:
    """Counters of events of this node's mirrored queues since it started."""

    __slots__ = ("forced_promotions", "promotions", "view_changes")

    def __init__(self) -> None:
        self.view_changes = self.promotions = self.forced_promotions = 0


def down(broker: Broker) -> int:
    """Returns how many mirrored queues have no master that this node could reach."""
    others = [queue for queue in broker.queues_by_id.values() if not queue.is_local and queue.spec.view is not None]
    return sum(queue.client_end is None for queue in others)


def mirrored(broker: Broker) -> Iterator[Mirror]:
    """Returns this node's copies of queues that should have mirrors. A queue that was moved, or had a policy, is a ring
    of one for a moment, and is left out."""
    member_changes = broker.member_changes
    return (one for one in broker.mirrors if member_changes is None or not member_changes.is_plain(one.spec))


def figures(
    mirrors: Iterable[Mirror], store: MirrorStore | None, counts: Counts, now_ms: int
) -> dict[str, int | float]:
    """Returns totals over all copies of a node. The lags are the worst of any mirror that runs."""
    led = copies = unsynchronised = alone = syncing = in_sync = 0
    messages, size, late_s = 0, 0, 0.0
    for mirror in mirrors:
        if mirror.member.master is None:
            copies += 1
            unsynchronised += not mirror.member.in_sync
            continue
        led += 1
        there = len(synchronised(mirror))
        in_sync += there
        alone += not there
        syncing += is_syncing(mirror)
        for lag in lags(mirror, store, now_ms):
            messages = max(messages, lag.messages or 0)
            size = max(size, lag.bytes or 0)
            late_s = max(late_s, lag.seconds or 0.0)
    return {
        "masters": led,
        "mirrors": copies,
        "mirrors_not_synchronised": unsynchronised,
        "synchronised_mirrors_of_masters": in_sync,
        "masters_without_synchronised_mirror": alone,
        "masters_syncing": syncing,
        "lag_messages_max": messages,
        "lag_bytes_max": size,
        "lag_seconds_max": late_s,
        "view_changes": counts.view_changes,
        "promotions": counts.promotions,
        "forced_promotions": counts.forced_promotions,
    }
