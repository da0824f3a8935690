"""Compaction of the log: indexes full segments, takes checkpoints, frees dead segments, empties sparse ones.

There is one job at a time, each of limited size, the most urgent first. `log` says why the order of their effects is
safe; this module decides when each is worth its cost.

The cost of a checkpoint is proportional to its size, so it is taken only when it frees as many bytes, or as many have
been appended since the last one. A segment that has just become sparse is often dead soon: its messages are being
consumed in order. So it is emptied only if at least half of its live bytes are still live after a quarter of a segment
has been appended, or when the node is idle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.storage.format.errors import LogDamaged
from leveret.storage.segments.block_reader import Place
from leveret.storage.segments.checkpoint import encode_checkpoint
from leveret.storage.segments.disk import Job
from leveret.storage.segments.disk_jobs import Checkpoint, Compact, Reclaim, Seal
from leveret.storage.segments.mirror_copy import Unapplied
from leveret.storage.segments.queue_index import QueueLog
from leveret.storage.segments.segment import segment_path

if TYPE_CHECKING:
    from leveret.storage.log import Log, Segment

_LOOK_EVERY = 64
_RECLAIM_SEGMENTS = 16


class Compaction:
    """Chooses the next job that frees disk space."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._busy: Job | None = None
        self._snapshot: Checkpoint | None = None  # Waits until all blocks in it are durable.
        self.through = 0  # The `through` of the present checkpoint.
        self.checkpoint_bytes = 0
        self._checkpoint_at = 0  # The log's `appended_bytes` at the last checkpoint.
        self._doomed: list[int] = []  # Segments that the present checkpoint does not name.
        self._moving = 0  # Copies that are not written yet.
        self._sparse: dict[int, tuple[int, int]] = {}  # By segment: live and appended bytes when first seen sparse.
        self._calls = 0
        self._release = False
        self._looked_at = 0  # The current segment at the last look at all segments; 0: look again.
        # For repair: a checkpoint at any cost, and segments to be emptied however much of them is live.
        self.checkpoint_due = False
        self.forced: set[int] = set()

    def next(self, idle: bool) -> Seal | Checkpoint | Reclaim | Compact | None:
        if self._busy is not None:
            return None
        job: Seal | Checkpoint | Reclaim | Compact | None = self._checkpoint() or self._reclaim()
        if job is None and self._time_to_look(idle):
            job = self._seal() or self._take_snapshot() or self._compact(idle)
            if job is not None:
                self._looked_at = 0
        self._busy = job
        return job

    def _time_to_look(self, idle: bool) -> bool:
        """Return whether to look at all segments: that is too expensive for every write."""
        self._calls += 1
        current = self._log.current.number if self._log.current else 0
        if not idle and current == self._looked_at and self._calls % _LOOK_EVERY:
            return False
        self._looked_at = current
        return True

    # -- checkpoints -----------------------------------------------------------------

    def _take_snapshot(self) -> Checkpoint | None:
        log, current = self._log, self._log.current
        if self._snapshot is not None or current is None or not self._checkpoint_wanted(current.number):
            return None
        if log.mirrors.voiding:
            return None  # Their places, which a checkpoint must contain, are unknown yet.
        segments = {
            number: segment.length if segment.sealed else segment.synced
            for number, segment in log.segment_table.items()
            if segment.created and (segment.live or number >= current.number)
        }
        buffers = encode_checkpoint(current.number, segments, log.queues.values())
        self._snapshot = Checkpoint(log.folder, current.number, segments, buffers, log.serial)
        return self._checkpoint()

    def _checkpoint_wanted(self, current: int) -> bool:
        log = self._log
        if self.checkpoint_due:
            return not any(number in log.segment_table and log.segment_table[number].live for number in self.forced)
        dead_bytes = sum(
            segment.length for number, segment in log.segment_table.items()
            if number < current and segment.sealed and not segment.live and number not in self._doomed
        )  # fmt: skip
        new_segments = current - max(self.through, 1)
        if not dead_bytes and new_segments < log.options.checkpoint_segments:
            return False
        return max(dead_bytes, log.appended_bytes - self._checkpoint_at) >= self.checkpoint_bytes

    def _checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to write, once all blocks in it are durable."""
        job, current = self._snapshot, self._log.current
        if job is None or current is None or self._log.written_serial < job.serial:
            return None
        if current.synced < current.length:
            job.sync_before, job.sync_length = current.number, current.length
        return job

    @property
    def snapshot_serial(self) -> int:
        return self._snapshot.serial if self._snapshot is not None else 0

    def drop_snapshot(self) -> None:
        if self._snapshot is not self._busy:  # One that is being written waits for no block any more.
            self._snapshot = None

    # -- freeing ---------------------------------------------------------------------

    def release_spares(self) -> None:
        """Delete the spare files: the disk is full."""
        self._release = True

    def _reclaim(self) -> Reclaim | None:
        log = self._log
        if self._release:
            self._release = False
            spares = log.take_spares()
            if spares:
                job = Reclaim(log.folder, [], set(), 0)
                job.release = spares
                return job
        free = [number for number in self._doomed if not log.segment_table[number].pins][:_RECLAIM_SEGMENTS]
        if not free:
            return None
        for number in free:
            assert not log.segment_table[number].live  # Live messages only get fewer, and copies go to later segments.
        indexed = {number for number in free if log.segment_table[number].indexed}
        job = Reclaim(log.folder, free, indexed, max(log.options.spares_max - len(log.spares), 0))
        job.spare_bytes_max = 2 * log.options.segment_bytes + log.options.group_bytes
        return job

    def _seal(self) -> Seal | None:
        for segment in self._log.segment_table.values():
            due = segment.sealed and segment.live and not segment.indexed and not segment.bad
            if due and not self._is_sparse(segment):
                return Seal(self._log.folder, segment.number, segment.length)
        return None

    # -- emptying sparse segments ------------------------------------------------------

    def _is_sparse(self, segment: Segment) -> bool:
        sparse = segment.live_bytes * 100 < segment.length * self._log.options.sparse_percent
        return sparse or segment.number in self.forced

    def _compact(self, idle: bool) -> Compact | None:
        if self._moving:
            return None
        log = self._log
        candidates = [
            segment for segment in log.segment_table.values()
            if segment.sealed and segment.live and not segment.bad and self._is_sparse(segment)
        ]  # fmt: skip
        known = {segment.number for segment in candidates}
        self._sparse = {number: seen for number, seen in self._sparse.items() if number in known}
        for segment in sorted(candidates, key=lambda one: one.live_bytes):
            if self._ripe(segment, idle):
                places, items = self._live_places(segment)
                if places or items:
                    path = segment_path(log.folder, segment.number)
                    return Compact(segment.number, path, places, items)
        return None

    def _ripe(self, segment: Segment, idle: bool) -> bool:
        appended = self._log.appended_bytes
        live, since = self._sparse.setdefault(segment.number, (segment.live_bytes, appended))
        if idle:
            return True
        if appended - since < self._log.options.segment_bytes // 4:
            return False
        if segment.live_bytes * 2 < live:
            self._sparse[segment.number] = (segment.live_bytes, appended)
            return False
        return True

    def _live_places(
        self, segment: Segment
    ) -> tuple[list[tuple[QueueLog, Place]], list[tuple[QueueLog, Unapplied]]]:
        log = self._log
        room = log.options.compact_bytes
        path = segment_path(log.folder, segment.number)
        places: list[tuple[QueueLog, Place]] = []
        items: list[tuple[QueueLog, Unapplied]] = []
        for number, (low, high) in list(segment.queues.items()):
            queue = log.queues.get(number)
            found = False
            if queue is not None:
                for refs, live in ((queue.refs, queue.live), (queue.spill_refs, queue.spilled)):
                    for ref in refs.within(segment.number, low, high):
                        found = True
                        wanted = list(live.ranges(ref.first, ref.last))
                        place = Place(
                            path, segment.number, ref.offset, ref.length, wanted, wanted[0][0], wanted[-1][1]
                        )
                        places.append((queue, place))
                        room -= ref.length
                        if room <= 0:
                            return sorted(places, key=_by_offset), items
                for item in queue.mirror.tail if queue.mirror is not None else ():
                    if item.segment == segment.number:
                        found = True
                        items.append((queue, item))
                        room -= item.length
                if room <= 0:
                    break
            if not found:
                del segment.queues[number]
        return sorted(places, key=_by_offset), items

    def on_moved(self) -> None:
        self._moving -= 1

    # -- outcomes ----------------------------------------------------------------------

    def on_done(self, job: Job) -> None:
        assert job is self._busy
        self._busy = None
        log = self._log
        if isinstance(job, Seal):
            log.segment_table[job.segment].indexed = True
        elif isinstance(job, Checkpoint):
            self._on_checkpoint(job)
        elif isinstance(job, Reclaim):
            self._on_reclaimed(job)
            log.spares.update(job.kept)
        elif isinstance(job, Compact):
            self._moving += log.gather_moved(job.entries)

    def _on_checkpoint(self, job: Checkpoint) -> None:
        log = self._log
        if job.sync_before is not None:
            segment = log.segment_table[job.sync_before]
            segment.sync_to(job.sync_length)
        self._snapshot = None
        self.checkpoint_due = False
        self.through = job.through
        self.checkpoint_bytes = job.bytes
        self._checkpoint_at = log.appended_bytes
        self._doomed = [
            number for number in log.segment_table if number < job.through and number not in job.segments
        ]

    def _on_reclaimed(self, job: Reclaim) -> None:
        log = self._log
        for number in job.gone:
            del log.segment_table[number], log.shares[number]
            self._doomed.remove(number)

    def on_failed(self, job: Job, error: Exception) -> bool:
        """Note that a job failed. Return whether the log can continue whatever the error."""
        assert job is self._busy
        self._busy = None
        log = self._log
        if isinstance(job, Reclaim):
            # Files whose new name is not synced must not be used as spares; the next start deletes them.
            self._on_reclaimed(job)
        if isinstance(job, Compact) or (isinstance(job, Seal) and isinstance(error, LogDamaged)):
            log.segment_table[job.segment].bad = True
            log.damage.append(str(error))
            return True
        return False


def _by_offset(item: tuple[QueueLog, Place]) -> int:
    return item[1].offset
