"""Repairs a node whose files are damaged, with the help of the other nodes.

A node that finds damage at its start refuses to run and says where it is. `leveret recover DIR` then does what can be
done without losing what is still good, and nothing is deleted: whatever is replaced lies in DIR/damaged/N afterwards.

**Messages.** The log is taken up without the damaged blocks (`leveret.storage.check`). A mirrored queue that lost some
gets another disk id, so that its copy here is no longer in sync and is filled by its master. Messages that only this
node had are lost, and named. A start does not do that by itself, even where all of them are in mirrored queues: an
operator has to know of a disk that begins to fail, and the damaged bytes would be gone.

**Metadata.** The consensus log holds what this node has promised to the others: how it voted, and which entries it has
stored. With any of that in doubt it must not go on as the same voter, for it could vote twice in a term, or let an
entry that was committed with its help be forgotten. Hence the whole folder is set aside, the identity with it, and the
node is *another voter*: at its next start it asks the members to let it join **in place of** its former self. A
majority of the others agrees on a membership without the old id, and with the new one as a learner, which gets a vote
only when it has caught up. To Raft that is the same as `forget_cluster_node` and a join. The difference is that the
name stays a member's, so that no queue is deleted: the messages in this folder, whose queue numbers the cluster never
gives to other queues, are there for the queues they belong to. Mirrored queues treat the copies as new ones, since a
copy is known by its node's id, and fill them before they are in sync. A queue of which no other copy was in sync has no
master then, until an operator names one (`leveretctl promote_queue`).

That the cluster is the one the folder belongs to is known by the former id: the leader agrees only if it has a member
of that name and id. Where the identity itself cannot be read, the name must do.

Why the identity is moved first: as long as a log lies there without one, a start is refused (`load_identity`). Were it
moved last, a crash in between could leave it beside an empty log, and the node would join as itself, having forgotten
everything. The notes that a start needs are written before. So a command that is interrupted is simply run again.

The members' addresses are looked for in whatever can be read of the damaged files. They decide only who is asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from leveret.base.packing import BadMessage, Reader
from leveret.links.proposals import COMMAND_AT
from leveret.metadata.command_codec import decode_command
from leveret.metadata.store import Metadata
from leveret.node.cluster.consensus_log import (
    ConsensusLog,
    ConsensusLogDamaged,
    batches_in,
    read_identity,
    unpack_snapshot,
)
from leveret.node.system.data_folder import MESSAGES, METADATA
from leveret.raft.membership import Membership, read_membership
from leveret.raft.messages import Entry, Kind
from leveret.storage.check import check, repair
from leveret.storage.segments.disk import FileDisk

if TYPE_CHECKING:
    from leveret.metadata.model.records import QueueSpec
    from leveret.storage.check import Report
    from leveret.storage.format.errors import Damage, LogDamaged
    from leveret.storage.segments.disk import Disk

ASIDE: Final = "damaged"
_PIECE_BYTES: Final = 4 << 20


# -- Finding damage --------------------------------------------------------------------------------------------------


def check_metadata(disk: Disk) -> str | None:
    """Returns where the metadata are damaged, None if they are not. Like a start, this cuts off a batch that was never
    finished."""
    try:
        names = disk.names(METADATA)
        if "identity" not in names and any(name.startswith(("log-", "snapshot-")) for name in names):
            return f"{METADATA}/identity: is missing, and the log beside it is not"
        if "identity" in names:
            read_identity(disk, METADATA)
        ConsensusLog(disk, METADATA).recover()
    except ConsensusLogDamaged as error:
        return str(error)
    return None


def find_queues(disk: Disk) -> list[QueueSpec]:
    """Returns the queues, which the message log knows by numbers only, as far as the metadata can be read. Entries that
    may not be committed are applied too: that does no harm, for the names are only shown to people, and a copy that is
    wrongly taken for damaged is filled by its master."""
    try:
        recovered = ConsensusLog(disk, METADATA).recover()
    except ConsensusLogDamaged:
        return []
    metadata = Metadata()
    if recovered.snapshot is not None:
        metadata.restore(recovered.snapshot.data)
    for entry in recovered.entries:
        if entry.kind is Kind.COMMAND:
            metadata.apply(decode_command(entry.data[COMMAND_AT:]))
    return list(metadata.queues.values())


def names_of(queues: list[QueueSpec]) -> dict[int, str]:
    return {spec.id: f"queue '{spec.name}' in vhost '{spec.vhost}'" for spec in queues}


def mirrored(queues: list[QueueSpec]) -> set[int]:
    return {spec.id for spec in queues if spec.view is not None}


def describe(damage: Damage, names: dict[int, str]) -> str:
    known = names.get(damage.queue) if damage.queue is not None else None
    return f"{damage} ({known})" if known is not None else str(damage)


# -- Messages --------------------------------------------------------------------------------------------------------


def recover_messages(disk: Disk, queues: list[QueueSpec]) -> tuple[Report, str]:
    """Drops the damaged blocks. Returns what was dropped, and the folder with copies of the files it was in."""
    found = check(disk, MESSAGES)
    if found.good:
        return found, ""
    aside = _new_folder(disk)
    present = {f"{folder}/{name}" for folder in (MESSAGES, f"{MESSAGES}/segments") for name in disk.names(folder)}
    for path in sorted({damage.file for damage in found.damages} & present):
        _copy(disk, path, f"{aside}/{path}")
    return repair(disk, MESSAGES, mirrored(queues)), aside


def _copy(disk: Disk, source: str, target: str) -> None:
    disk.make_folder(target.rpartition("/")[0])
    at, size = 0, disk.size(source)
    while at < size:
        data = disk.read(source, at, min(_PIECE_BYTES, size - at))
        disk.write(target, at, [data])
        at += len(data)
    disk.sync(target)
    disk.sync_folder(target.rpartition("/")[0])


# -- Metadata --------------------------------------------------------------------------------------------------------


def find_members(disk: Disk) -> Membership:
    """Returns the newest readable membership in the damaged files; an empty one if there is none."""
    newest, index = Membership(), -1
    for name in disk.names(METADATA):
        kind, _, number = name.partition("-")
        if kind not in ("log", "snapshot") or not number.isdigit():
            continue
        stored = disk.read(f"{METADATA}/{name}", 0, disk.size(f"{METADATA}/{name}"))
        found = _of_snapshot(stored) if kind == "snapshot" else _of_entries(stored, int(number))
        for at, membership in found:
            if at > index:
                newest, index = membership, at
    return newest


def _of_snapshot(stored: bytes) -> Iterator[tuple[int, Membership]]:
    try:
        meta = unpack_snapshot(stored).meta
    except BadMessage:
        return
    yield meta.index, meta.membership


def _of_entries(stored: bytes, first: int) -> Iterator[tuple[int, Membership]]:
    entries: list[Entry] = [entry for batch in batches_in(stored, first) for entry in batch.entries]
    for entry in entries:
        if entry.kind is Kind.MEMBERSHIP:
            yield entry.index, read_membership(Reader(entry.data))


def old_identity(disk: Disk) -> str | None:
    try:
        return read_identity(disk, METADATA) if "identity" in disk.names(METADATA) else None
    except ConsensusLogDamaged:
        return None


def others_of(membership: Membership, own: str | None) -> list[str]:
    """Returns the addresses of the other members. If this node's id is not known, its own address is among them, which
    does no harm."""
    return [member.address for member in membership.members if member.id != own]


def set_metadata_aside(disk: Disk) -> str:
    """Moves the metadata to another folder, and returns that folder. The identity is moved first: see above."""
    aside = _new_folder(disk)
    target = f"{aside}/{METADATA}"
    disk.make_folder(target)
    for name in sorted(disk.names(METADATA), key=lambda name: name != "identity"):
        disk.rename(f"{METADATA}/{name}", f"{target}/{name}")
        if name == "identity":
            disk.sync_folder(METADATA)
            disk.sync_folder(target)
    disk.sync_folder(METADATA)
    disk.sync_folder(target)
    return aside


def _new_folder(disk: Disk) -> str:
    taken = {int(name) for name in disk.names(ASIDE) if name.isdigit()}
    folder = f"{ASIDE}/{max(taken, default=0) + 1}"
    disk.make_folder(folder)
    disk.sync_folder("")
    disk.sync_folder(ASIDE)
    return folder


# -- Text for operators ----------------------------------------------------------------------------------------------


def refusal(folder: str, error: LogDamaged | ConsensusLogDamaged) -> str:
    """Returns why a node does not start, in words an operator can act upon."""
    advice = f"Run: leveret recover {folder}"
    if isinstance(error, ConsensusLogDamaged):
        return f"its metadata is damaged: {error}\n{advice}"
    disk = FileDisk(folder)
    try:
        names = names_of(find_queues(disk))
    finally:
        disk.close()
    return "\n".join(["the log is damaged:", *(f"  {describe(item, names)}" for item in error.items), advice])
