"""Keeps and deletes retained messages, as a command says.

**Why the metadata and not a mirrored store.** What a retained message needs is what the metadata has: one order of all
changes for the whole cluster, so that the last writer of a topic is the same everywhere; a copy at every node, so that
a subscriber is answered without a question to another node, also in a minority; and a snapshot for a node that joins
late. A mirrored queue has its copies at some nodes only, and a subscriber elsewhere would have to ask, wait, and be
told again after each change of the master.

**What it costs.** Each message passes through the Raft leader and every node's log, as base64 in a line of JSON. Rows
of one turn make one command (`broker.retained`), and of several messages for a topic only the last is proposed: so the
rate is that of topics, not of publishes. A snapshot is due when the log has grown by the size of the last one, so that
snapshots cost as much as the log at worst. A node reads its snapshot at the start: some twelve microseconds a message.
All nodes hold all retained messages in memory, hence the limits of a vhost.

**Limits** are those of the node that proposes, and part of the command: all nodes come to the same result even if they
are configured differently. A message that replaces a larger one is always kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.metadata.mqtt.events import RetainedChanged, RetainedRefused

if TYPE_CHECKING:
    from leveret.metadata.model.events import Event
    from leveret.metadata.model.refusals import Refusal
    from leveret.metadata.mqtt.commands import KeepRetained
    from leveret.metadata.mqtt.records import RetainedMessage
    from leveret.metadata.store import Metadata


def keep_retained(metadata: Metadata, command: KeepRetained, events: list[Event]) -> Refusal | None:
    for row in command.rows:
        if row.message is None:
            old = metadata.retained.get(row.vhost, row.topic)
            if old is not None and row.expires_ms in (0, old.expires_ms):
                drop(metadata, row.vhost, row.topic, events)
        elif fits(metadata, row.vhost, row.message, command.messages_max, command.bytes_max):
            keep(metadata, row.vhost, row.message, events)
        else:
            events.append(RetainedRefused(row.vhost, row.topic))
    return None


def fits(metadata: Metadata, vhost: str, message: RetainedMessage, messages_max: int, bytes_max: int) -> bool:
    """Return whether a vhost exists and has room for a message."""
    if vhost not in metadata.vhosts:
        return False
    table = metadata.retained
    old = table.get(vhost, message.topic)
    if old is None and table.count(vhost) >= messages_max:
        return False
    more = message.size - (0 if old is None else old.size)
    return (old is not None and more <= 0) or table.bytes.get(vhost, 0) + more <= bytes_max


def keep(metadata: Metadata, vhost: str, message: RetainedMessage, events: list[Event]) -> None:
    metadata.retained.put(vhost, message)
    events.append(RetainedChanged(vhost, message.topic))


def drop(metadata: Metadata, vhost: str, topic: str, events: list[Event]) -> None:
    if metadata.retained.get(vhost, topic) is not None:
        metadata.retained.remove(vhost, topic)
        events.append(RetainedChanged(vhost, topic))


def drop_all(metadata: Metadata, vhost: str, events: list[Event]) -> None:
    """Delete the retained messages of a vhost that is deleted."""
    events.extend(RetainedChanged(vhost, topic) for topic in metadata.retained.by_vhost.pop(vhost, ()))
    metadata.retained.bytes.pop(vhost, None)
