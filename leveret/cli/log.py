"""`leveret log check` and `leveret log repair`: the stored messages of a node that is not running."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.cli.exits import DATA_ERROR, OK, UNAVAILABLE, USAGE
from leveret.node.folder import MESSAGES, METADATA, FolderInUse, folder_lock

if TYPE_CHECKING:
    from leveret.log.disk import Disk


def check_log(folder: str) -> int:
    return _in_folder(folder, _check)


def repair_log(folder: str) -> int:
    return _in_folder(folder, _repair)


def _in_folder(folder: str, work: Callable[[Disk, str], int]) -> int:
    if not os.path.isdir(os.path.join(folder, MESSAGES)):
        print(f"leveret: {folder} is not the data folder of a node: it has no folder {MESSAGES!r}", file=sys.stderr)
        return USAGE
    from leveret.log.disk import FileDisk

    try:
        with folder_lock(folder):
            return work(FileDisk(folder), folder)
    except FolderInUse as error:
        print(f"leveret: {error}; stop it first", file=sys.stderr)
        return UNAVAILABLE


def _check(disk: Disk, folder: str) -> int:
    from leveret.log.check import check

    report = check(disk, MESSAGES)
    print(report)
    if report.good:
        return OK
    print(f"`leveret log repair {folder}` drops exactly what is listed", file=sys.stderr)
    return DATA_ERROR


def _repair(disk: Disk, folder: str) -> int:
    from leveret.log.check import repair
    from leveret.node.journal import JournalDamaged

    try:
        known = known_queues(disk)
    except JournalDamaged as error:
        # Without the list of queues every message would look like one of a deleted queue, and be dropped.
        print(f"leveret: nothing was repaired, for the list of queues is damaged too: {error}", file=sys.stderr)
        return DATA_ERROR
    report = repair(disk, MESSAGES, known)
    for damage in report.damages:
        print(f"dropped: {damage}")
    print(f"{len(report.damages)} dropped" if report.damages else "nothing to repair")
    return OK


def known_queues(disk: Disk) -> list[int]:
    """The ids of the queues there are, from the node's metadata. Raises JournalDamaged."""
    from leveret.cluster.store import Metadata
    from leveret.node.journal import Journal

    metadata = Metadata()
    recovered = Journal(disk, METADATA).recover()
    if recovered.snapshot is not None:
        metadata.restore(recovered.snapshot)
    for command in recovered.commands:
        metadata.apply(command)
    return [spec.id for spec in metadata.queues.values()]
