"""`leveret log check` and `leveret log repair`: the stored messages of a node that is not running."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from leveret.cli.exits import DATA_ERROR, OK, USAGE

if TYPE_CHECKING:
    from leveret.log.disk import Disk

METADATA = "metadata"
SEGMENTS = "segments"


def check_log(folder: str) -> int:
    disk = _open(folder)
    if disk is None:
        return USAGE
    from leveret.log.check import check

    damages = check(disk, SEGMENTS)
    for damage in damages:
        print(damage)
    if damages:
        print(f"{len(damages)} damaged; `leveret log repair {folder}` drops exactly what is listed", file=sys.stderr)
        return DATA_ERROR
    print("no damage")
    return OK


def repair_log(folder: str) -> int:
    disk = _open(folder)
    if disk is None:
        return USAGE
    from leveret.log.check import repair
    from leveret.node.journal import JournalDamaged

    try:
        known = known_queues(disk)
    except JournalDamaged as error:
        # Without the list of queues every message would look like one of a deleted queue, and be dropped.
        print(f"leveret: nothing was repaired, for the list of queues is damaged too: {error}", file=sys.stderr)
        return DATA_ERROR
    dropped = repair(disk, SEGMENTS, known)
    for damage in dropped:
        print(f"dropped: {damage}")
    print(f"{len(dropped)} dropped" if dropped else "nothing to repair")
    return OK


def _open(folder: str) -> Disk | None:
    """The disk of a node; None, and a word about it, if no node has its data there."""
    if not os.path.isdir(os.path.join(folder, SEGMENTS)):
        print(f"leveret: {folder} is not the data folder of a node: it has no folder {SEGMENTS!r}", file=sys.stderr)
        return None
    from leveret.log.disk import FileDisk

    return FileDisk(folder)


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
