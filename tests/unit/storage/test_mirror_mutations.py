"""Would the seeds of mirrored queues notice? Each deliberate bug must make one of them fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.storage import mirror_log, mirror_recovery
from leveret.storage import recovery as log_recovery
from leveret.storage.format import block_format
from leveret.storage.format.errors import LogDamaged
from leveret.storage.format.queue_marks import Marks
from leveret.storage.mirror_log import MirrorLog
from leveret.storage.mirror_recovery import DamagedMirrors, MirrorRecovery
from leveret.storage.segments.disk_jobs import MirrorEntry
from leveret.storage.segments.mirror_copy import MirrorCopy
from leveret.storage.segments.queue_index import QueueLog

from . import test_mirror_damage
from .mirror_world import MirrorWorld

Patch = pytest.MonkeyPatch


def applied_at_once(patch: Patch) -> None:
    real = MirrorLog.append

    def eager(self: MirrorLog, block: Any, raw: Any, confirmed: int, mark: Any = None) -> None:
        real(self, block, raw, max(confirmed, block.number - 1), mark)

    patch.setattr(MirrorLog, "append", eager)


def cut_off_blocks_are_referred_to(patch: Patch) -> None:
    patch.setattr(MirrorCopy, "unreferenced", lambda self, segment: set())


def truncation_is_not_written(patch: Patch) -> None:
    real = MirrorLog._gather

    def lazy(self: MirrorLog, entry: MirrorEntry, mirror: MirrorCopy, *more: Any) -> None:
        entry.type = block_format.COMPLETED if entry.type == block_format.TRUNCATED else entry.type
        if entry.type == block_format.COMPLETED and not more[1]:
            more = (more[0], (mirror.read_at,), more[2])
        real(self, entry, mirror, *more)

    patch.setattr(MirrorLog, "_gather", lazy)


def waiting_blocks_do_not_keep_their_segment(patch: Patch) -> None:
    patch.setattr(MirrorLog, "_count", lambda self, item, sign: None)


def fillings_settle_nothing(patch: Patch) -> None:
    patch.setattr(mirror_log, "outside", lambda low, high, ranges: [])


def beginning_anew_keeps_what_is_stored(patch: Patch) -> None:
    """FRESH voids nothing on disk."""
    patch.setattr(mirror_log, "FRESH", 0)


def former_lives_are_replayed(patch: Patch) -> None:
    patch.setattr(mirror_recovery, "BEGUN", 0xFF)
    real = MirrorRecovery._takes

    def any_serial(self: MirrorRecovery, queue: Any, mirror: MirrorCopy, header: Any, place: Any) -> bool:
        if header.note()[0] > mirror.serial:
            mirror.serial = header.note()[0] - 1
        return real(self, queue, mirror, header, place)

    patch.setattr(MirrorRecovery, "_takes", any_serial)


def confirmed_is_not_noted(patch: Patch) -> None:
    patch.setattr(MirrorRecovery, "_confirm", lambda self, queue, mirror, number: None)


def durable_with_the_first_block(patch: Patch) -> None:
    """Of several blocks of one write."""
    real = MirrorLog._gather

    def early(self: MirrorLog, entry: MirrorEntry, *more: Any) -> None:
        real(self, entry, *more)
        if entry.mark is not None and len(self._log.gathered) > 1:
            for before in reversed(list(self._log.gathered)[:-1]):
                if isinstance(before, MirrorEntry) and before.queue is entry.queue and before.mark is None:
                    before.mark = entry.mark

    patch.setattr(MirrorLog, "_gather", early)


def epochs_are_forgotten(patch: Patch) -> None:
    patch.setattr(MirrorCopy, "cut_history", lambda self, number: None)


def counts_that_come_before_their_message_are_dropped(patch: Patch) -> None:
    real = QueueLog.count_returns

    def strict(self: QueueLog, counts: Any) -> None:
        real(self, counts)
        self.counts = {number: count for number, count in self.counts.items() if number in self.live}

    patch.setattr(QueueLog, "count_returns", strict)


def counts_are_not_filled(patch: Patch) -> None:
    real: Any = MirrorLog.fill
    patch.setattr(MirrorLog, "fill", lambda self, *arguments: real(self, *arguments[:8], (), *arguments[9:]))


def marks_are_not_filled(patch: Patch) -> None:
    real: Any = MirrorLog.fill
    patch.setattr(MirrorLog, "fill", lambda self, *arguments: real(self, *arguments[:9], (), *arguments[10:]))


def what_may_have_been_delivered_is_not_filled(patch: Patch) -> None:
    real = MirrorLog.fill
    patch.setattr(MirrorLog, "fill", lambda self, *arguments: real(self, *arguments[:10]))


def the_last_word_that_comes_holds(patch: Patch) -> None:
    def fold(self: Marks, marks: Any) -> None:
        self.known = {**self.known, **{key: (number, value) for number, key, value in marks}}

    patch.setattr(Marks, "fold", fold)


def removed_marks_come_back(patch: Patch) -> None:
    real = Marks.fold

    def fold(self: Marks, marks: Any) -> None:
        real(self, marks)
        self.tidy()

    patch.setattr(Marks, "fold", fold)


CRASHES: list[Callable[[Patch], None]] = [
    applied_at_once, cut_off_blocks_are_referred_to, truncation_is_not_written,
    waiting_blocks_do_not_keep_their_segment, fillings_settle_nothing, beginning_anew_keeps_what_is_stored,
    confirmed_is_not_noted, durable_with_the_first_block, epochs_are_forgotten,
    counts_that_come_before_their_message_are_dropped, counts_are_not_filled,
    marks_are_not_filled, what_may_have_been_delivered_is_not_filled, the_last_word_that_comes_holds,
    removed_marks_come_back,
]  # fmt: skip


SEEDS = 300
FIRST: dict[Callable[[Patch], None], int] = {  # Where it is noticed soon.
    cut_off_blocks_are_referred_to: 480,
    counts_that_come_before_their_message_are_dropped: 107,
}


@pytest.mark.parametrize("mutation", CRASHES)
def test_caught(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    first = FIRST.get(mutation, 0)
    for seed in range(first, first + SEEDS):
        try:
            MirrorWorld(seed).run(steps=240)
        except (AssertionError, LogDamaged, KeyError, IndexError):
            return
    pytest.fail("no seed noticed")


# -- damage ----------------------------------------------------------------------------------------------


def damage_keeps_its_disk(patch: Patch) -> None:
    patch.setattr(mirror_recovery, "crc32", lambda *data: 0)


def gaps_are_overlooked(patch: Patch) -> None:
    former_lives_are_replayed(patch)


def the_last_record_is_never_missed(patch: Patch) -> None:
    real = DamagedMirrors.__init__

    def trusting(self: DamagedMirrors, *arguments: Any) -> None:
        real(self, *arguments)
        self._furthest = (0, 0)

    patch.setattr(DamagedMirrors, "__init__", trusting)


def lost_contents_are_not_missed(patch: Patch) -> None:
    patch.setattr(DamagedMirrors, "_lacks", lambda self, queue, mirror, lost: mirror)


def damage_is_not_let_go(patch: Patch) -> None:
    patch.setattr(log_recovery.Recovery, "drop_damaged", lambda self, log: None)


DAMAGE: list[Callable[[Patch], None]] = [
    damage_keeps_its_disk, gaps_are_overlooked, the_last_record_is_never_missed, lost_contents_are_not_missed,
    damage_is_not_let_go,
]  # fmt: skip


@pytest.mark.parametrize("mutation", DAMAGE)
def test_caught_by_damage(mutation: Callable[[Patch], None], monkeypatch: Patch) -> None:
    mutation(monkeypatch)
    for seed in range(400):
        try:
            test_mirror_damage.test_flip(seed)
        except (AssertionError, LogDamaged, KeyError, IndexError, ValueError):
            return
    pytest.fail("no seed noticed")
