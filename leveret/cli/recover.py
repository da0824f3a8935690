"""`leveret recover`: a node that refuses to start because its files are damaged. See `leveret.node.cluster.repair`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leveret.base.exit_codes import DATA_ERROR, OK, UNAVAILABLE, USAGE
from leveret.node.cluster import repair
from leveret.node.system.data_folder import (
    JOIN_FILE,
    MESSAGES,
    METADATA,
    REPLACE_FILE,
    UNKNOWN_ID,
    FolderInUse,
    folder_lock,
    read_note,
    write_note,
)
from leveret.storage.segments.disk import FileDisk

if TYPE_CHECKING:
    from leveret.metadata.model.records import QueueSpec

NOBODY_KNOWN = """\
leveret: the other members of the cluster cannot be read from what is left in {folder}.
Name the cluster port of one of them: leveret recover {folder} --from HOST:25672"""
ALONE = """\
leveret: {name} was the only node of its cluster, so no other node has its metadata; nothing was changed.
Restore {folder}/{metadata} from a backup. Without one, start a node in a new folder and import the definitions of your
queues there (leveretctl import_definitions). The messages are in {folder}/{messages}, but no tool can read them without
the metadata."""


def recover(folder: str, members: Sequence[str]) -> int:
    if not os.path.isdir(os.path.join(folder, METADATA)):
        print(f"leveret: {folder} is not the data folder of a node: it has no folder {METADATA!r}", file=sys.stderr)
        return USAGE
    disk = FileDisk(folder)
    try:
        with folder_lock(folder):
            return _recover(disk, folder, members)
    except FolderInUse as error:
        print(f"leveret: {error}; stop it first", file=sys.stderr)
        return UNAVAILABLE
    finally:
        disk.close()


def _recover(disk: FileDisk, folder: str, members: Sequence[str]) -> int:
    damage = repair.check_metadata(disk)
    queues = [] if damage is not None else repair.find_queues(disk)
    if damage is not None and (code := _recover_metadata(disk, folder, damage, members)) != OK:
        return code
    is_sound = _recover_messages(disk, folder, queues)
    if damage is None and is_sound:
        print("nothing is damaged")
    else:
        print("now start the node as usual")
    return OK


def _recover_messages(disk: FileDisk, folder: str, queues: list[QueueSpec]) -> bool:
    """Return whether there was nothing to do."""
    names = repair.names_of(queues)
    report, aside = repair.recover_messages(disk, queues)
    if report.good:
        return True
    for damage in report.damages:
        print(f"dropped: {repair.describe(damage, names)}")
    if report.lost:
        print("these messages are lost, because only this node had them:")
        for number, lost in sorted(report.lost.items()):
            spans = ", ".join(f"{first}..{last}" if last > first else f"{first}" for first, last in lost)
            print(f"  {names.get(number, f'queue {number}')}: messages {spans}")
    if report.is_blind:
        print("the rest of the damaged places cannot be read; messages of queues without mirrors in them are lost")
    if report.refilled:
        print("mirrored queues that their masters will synchronise again: ", end="")
        print(", ".join(names.get(number, f"queue {number}") for number in report.refilled))
    print(f"the damaged files are unchanged in {os.path.join(folder, aside)}")
    return False


def _recover_metadata(disk: FileDisk, folder: str, damage: str, members: Sequence[str]) -> int:
    print(f"the metadata is damaged: {damage}")
    own, found = repair.old_identity(disk), repair.find_members(disk)
    noted = read_note(disk, REPLACE_FILE) if own is None else None  # By a run of this command that was interrupted.
    own = noted or own
    addresses = [*members] or repair.others_of(found, own)
    if noted is not None:
        addresses = addresses or (read_note(disk, JOIN_FILE) or "").split()
    if not addresses:
        alone = found.get(own) if own is not None else None
        if alone is not None:
            print(ALONE.format(name=alone.name, folder=folder, metadata=METADATA, messages=MESSAGES), file=sys.stderr)
        else:
            print(NOBODY_KNOWN.format(folder=folder), file=sys.stderr)
        return DATA_ERROR
    write_note(disk, JOIN_FILE, " ".join(addresses))
    write_note(disk, REPLACE_FILE, own or UNKNOWN_ID)
    aside = repair.set_metadata_aside(disk)
    print(f"it was moved to {os.path.join(folder, aside)}. At its next start the node asks {' or '.join(addresses)}")
    print(
        "to be admitted again in place of its former self, and gets the metadata from there. A majority of the members"
    )
    print("must be running without it. Queues keep the messages in this folder; mirrors are synchronised again.")
    return OK
