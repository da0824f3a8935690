"""Would the seeds notice? Each deliberate bug must make one of them fail."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

import pytest

from leveret.storage.compaction import Compaction
from leveret.storage.format import block_format as log_format
from leveret.storage.format.errors import FormatError, LogDamaged
from leveret.storage.format.queue_marks import Marks
from leveret.storage.log import Log
from leveret.storage.segments import checkpoint as log_checkpoint
from leveret.storage.segments import segment as log_segment
from leveret.storage.segments import segment_index
from leveret.storage.segments.disk_jobs import Checkpoint, Reclaim, Write
from simulation.core.disk import FaultyDisk

from .world import World

Patch = pytest.MonkeyPatch


def skipped_sync(patch: Patch) -> None:
    patch.setattr(Write, "_sync", lambda self, disk, path: None)


def deleted_without_checkpoint(patch: Patch) -> None:
    patch.setattr(Checkpoint, "perform", lambda self, disk: None)


def checkpoint_ahead_of_the_log(patch: Patch) -> None:
    def ready(self: Compaction) -> Checkpoint | None:
        return self._snapshot

    patch.setattr(Compaction, "_checkpoint", ready)


def unsynced_folder(patch: Patch) -> None:
    patch.setattr(FaultyDisk, "sync_folder", lambda self, path: None)


def stale_bytes_taken_for_new(patch: Patch) -> None:
    """Neither salt nor chain."""

    class Any(int):
        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = int.__hash__

    class NoSalt:
        @staticmethod
        def pack(segment: int, offset: int) -> bytes:
            return b""

    real = log_format.parse_group_head

    def relaxed(data: bytes | memoryview, segment: int, offset: int) -> log_format.GroupHead:
        if len(data) < log_format.GROUP_HEAD.size:
            raise FormatError("short")
        written_for, written_at = Struct("<QQ").unpack_from(data, 8)
        head = real(data, written_for, written_at)
        head.segment, head.offset, head.previous = segment, offset, Any()
        return head

    patch.setattr(log_format, "_SALT", NoSalt)
    patch.setattr(log_segment, "parse_group_head", relaxed)


def copies_lack_what_was_settled_later(patch: Patch) -> None:
    real = Log._live_records

    def filtered(self: Log, entry):  # type: ignore[no-untyped-def]
        entry.type, kind = (0 if entry.type == 1 else entry.type), entry.type
        try:
            return real(self, entry)
        finally:
            entry.type = kind

    patch.setattr(Log, "_live_records", filtered)


def contents_skipped_under_a_checkpoint(patch: Patch) -> None:
    patch.setattr(Compaction, "snapshot_serial", 0)


def spare_before_its_checkpoint(patch: Patch) -> None:
    """Dead segments become spares as soon as they are dead."""

    def eager(self: Compaction) -> Reclaim | None:
        log = self._log
        dead = [number for number, one in log.segment_table.items() if one.sealed and not one.live and not one.pins]
        self._doomed = dead
        indexed = {number for number in dead if log.segment_table[number].indexed}
        job = Reclaim(log.folder, dead, indexed, 0)
        return job if dead else None

    patch.setattr(Compaction, "_reclaim", eager)


def forgetting_is_not_written(patch: Patch) -> None:
    patch.setattr(Log, "_gather_forget", lambda self, queue: None)


def unsynced_predecessor(patch: Patch) -> None:
    real = Log._prepare

    def hasty(self: Log, entries):  # type: ignore[no-untyped-def]
        write = real(self, entries)
        write.sync_before = None
        return write

    patch.setattr(Log, "_prepare", hasty)


def checkpoints_without_counts(patch: Patch) -> None:
    patch.setattr(log_checkpoint, "stretches", lambda counts: [])


def indexes_without_counts(patch: Patch) -> None:
    patch.setattr(segment_index, "_counts", lambda fold: [])


def checkpoints_without_marks(patch: Patch) -> None:
    patch.setattr(log_checkpoint, "pack_marks", lambda marks: b"")


def indexes_without_marks(patch: Patch) -> None:
    patch.setattr(segment_index, "pack_marks", lambda marks: b"")


def removed_marks_are_forgotten_within_a_segment(patch: Patch) -> None:
    real = Marks.fold

    def tidy(self: Marks, marks: Any) -> None:
        real(self, marks)
        self.tidy()

    patch.setattr(Marks, "fold", tidy)


MUTATIONS: list[Callable[[Patch], None]] = [
    skipped_sync, deleted_without_checkpoint, checkpoint_ahead_of_the_log, unsynced_folder, stale_bytes_taken_for_new,
    copies_lack_what_was_settled_later, contents_skipped_under_a_checkpoint, spare_before_its_checkpoint,
    forgetting_is_not_written, unsynced_predecessor, checkpoints_without_counts, indexes_without_counts,
    checkpoints_without_marks, indexes_without_marks, removed_marks_are_forgotten_within_a_segment,
]  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_caught(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    for seed in [475, 313, 356, 61, *range(125, 185), *range(400)]:  # From where most are noticed soon.
        try:
            World(seed).run(steps=160)
        except (AssertionError, LogDamaged):
            return
    pytest.fail("no seed noticed")
