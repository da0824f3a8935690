"""`leveret log check` and `leveret log repair`: the stored messages of a node that is not running."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from leveret.base.exit_codes import DATA_ERROR, OK, UNAVAILABLE, USAGE
from leveret.node.system.data_folder import MESSAGES, FolderInUse, folder_lock

if TYPE_CHECKING:
    from leveret.storage.segments.disk import Disk


def check_log(folder: str) -> int:
    return _in_folder(folder, _check)


def repair_log(folder: str) -> int:
    return _in_folder(folder, _repair)


def _in_folder(folder: str, work: Callable[[Disk, str], int]) -> int:
    if not os.path.isdir(os.path.join(folder, MESSAGES)):
        print(f"leveret: {folder} is not the data folder of a node: it has no folder {MESSAGES!r}", file=sys.stderr)
        return USAGE
    from leveret.storage.segments.disk import FileDisk

    try:
        with folder_lock(folder), closing(FileDisk(folder)) as disk:
            return work(disk, folder)
    except FolderInUse as error:
        print(f"leveret: {error}; stop it first", file=sys.stderr)
        return UNAVAILABLE


def _check(disk: Disk, folder: str) -> int:
    from leveret.storage.check import check

    report = check(disk, MESSAGES)
    print(report)
    if report.good:
        return OK
    print(
        f"`leveret log repair {folder}` removes exactly what is listed; `leveret recover {folder}` also keeps a copy",
        file=sys.stderr,
    )
    return DATA_ERROR


def _repair(disk: Disk, folder: str) -> int:
    from leveret.node.cluster.repair import find_queues, mirrored
    from leveret.storage.check import repair

    report = repair(disk, MESSAGES, mirrored(find_queues(disk)))
    for damage in report.damages:
        print(f"dropped: {damage}")
    print(f"{len(report.damages)} dropped" if report.damages else "nothing to repair")
    return OK
