"""Check and repair of a log that is not in use.

`check` reads every byte and changes nothing. `repair` drops what is damaged: it loads the log as far as it is good,
writes the live messages of damaged segments to a new one, writes a checkpoint and deletes the damaged segments, all
with the functions of the log itself. A repair that was interrupted can be run again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from leveret.storage.format.errors import Damage
from leveret.storage.log import Log, LogOptions
from leveret.storage.recovery import Recovery, is_empty
from leveret.storage.segments.disk import Disk
from leveret.storage.segments.segment import segment_path


@dataclass
class Report:
    """The result of a check or a repair."""

    segments: int = 0
    blocks: int = 0
    bytes: int = 0
    queues: int = 0
    messages: int = 0
    notes: list[str] = field(default_factory=list)  # Problems that a start corrects by itself.
    damages: list[Damage] = field(default_factory=list)
    # Of a repair:
    lost: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # By queue: messages without any copy.
    refilled: list[int] = field(default_factory=list)  # Mirrored queues that other members will fill.
    is_blind: bool = False  # The queues of some damaged places are unknown.

    @property
    def good(self) -> bool:
        return not self.damages

    def __str__(self) -> str:
        lines = [
            f"{self.segments} segments, {self.bytes} bytes, {self.blocks} blocks, {self.queues} queues, "
            f"{self.messages} messages waiting",
            *(f"note: {note}" for note in self.notes),
            *(f"damage: {damage}" for damage in self.damages),
        ]
        return "\n".join(lines)


def check(disk: Disk, folder: str) -> Report:
    """Verify all segments, their indexes and the checkpoint. Only reads."""
    recovery, _, report = _read(disk, folder)
    report.notes.extend(recovery.bad_indexes)
    return report


def repair(disk: Disk, folder: str, mirrored: Collection[int]) -> Report:
    """Drop what is damaged. The report's `damages` list it; it counts the messages that remain.

    `mirrored`: the queues of which this node may have had a copy. Messages of deleted queues are kept: the next start
    removes them.
    """
    recovery, log, report = _read(disk, folder)
    if report.good:
        return report
    mirrors = recovery.damaged_mirrors(log, mirrored)
    lost, refilled = _lost(recovery, mirrors.is_mirrored), mirrors.mark()
    recovery.tidy(log)
    recovery.drop_damaged(log)
    is_blind = any(damage.queue is None for damage in report.damages)
    return replace(report, lost=lost, refilled=refilled, is_blind=is_blind)


def _lost(recovery: Recovery, is_mirrored: Callable[[int], bool]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {
        number: list(ranges) for number, ranges in recovery.missing.items() if not is_mirrored(number)
    }
    for damage in recovery.damages:
        if damage.queue is not None and damage.first is not None and damage.last is not None:
            span = (damage.first, damage.last)
            if not is_mirrored(damage.queue) and span not in found.get(damage.queue, ()):
                found.setdefault(damage.queue, []).append(span)
    return {number: sorted(ranges) for number, ranges in found.items()}


def _read(disk: Disk, folder: str) -> tuple[Recovery, Log, Report]:
    notes: list[str] = []
    recovery = Recovery(disk, folder, notes.append)
    recovery.run(use_indexes=False)
    log = Log(disk, folder, LogOptions())
    for found in recovery.segments:
        if found.torn is None or found is not recovery.segments[-1]:
            continue
        path = segment_path(folder, found.index.segment)
        if not is_empty(disk, path, found.index.length, found.size):
            notes.append(f"segment {found.index.segment:016x}: an unfinished write at {found.index.length}")
    recovery.fold_into(log, recovery.all_queues())
    report = Report(
        segments=len(recovery.segments),
        blocks=sum(found.index.blocks for found in recovery.segments),
        bytes=sum(found.index.length for found in recovery.segments),
        queues=len(log.queues),
        messages=sum(queue.count for queue in log.queues.values()),
        notes=notes,
        damages=recovery.damages,
    )
    return recovery, log, report
