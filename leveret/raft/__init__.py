"""Raft: majority consensus on the metadata of a cluster.

`core` is the machine and says how a shell drives it, `message_codec` turns its messages into bytes. Import the names
below from here. Pure; imports `leveret.base` only.
"""

from __future__ import annotations

from leveret.base.packing import BadMessage
from leveret.raft.core import Busy, NotLeader, Proposed, Raft, Ready, Refused, Remains, Role
from leveret.raft.membership import (
    AddLearner,
    BadChange,
    Change,
    Demote,
    Member,
    Membership,
    Promote,
    Remove,
    Replace,
    Update,
)
from leveret.raft.message_codec import decode_message, encode_message
from leveret.raft.messages import Entry, HardState, Kind, Message, Snapshot, SnapshotChunk, SnapshotMeta
from leveret.raft.options import Options
from leveret.raft.start import bootstrap, force_alone

__all__ = [
    "AddLearner",
    "BadChange",
    "BadMessage",
    "Busy",
    "Change",
    "Demote",
    "Entry",
    "HardState",
    "Kind",
    "Member",
    "Membership",
    "Message",
    "NotLeader",
    "Options",
    "Promote",
    "Proposed",
    "Raft",
    "Ready",
    "Refused",
    "Remains",
    "Remove",
    "Replace",
    "Role",
    "Snapshot",
    "SnapshotChunk",
    "SnapshotMeta",
    "Update",
    "bootstrap",
    "decode_message",
    "encode_message",
    "force_alone",
]
