"""Gives client ids to connections, and changes and ends the sessions of MQTT clients, as commands say.

**One owner.** Each claim has an *epoch*, a number that no other claim has. The session of a client id belongs to the
claim with the session's epoch. Everything that a connection does to its session names its epoch, and changes nothing if
another claim came since: in the one order of all commands there is never more than one owner. A connection whose node
does not know yet that it lost its claim can do no harm to the session; its node learns of it with the command.

**Lost nodes.** When a node starts, and when the leader takes it for lost, `NodeStarted` says so, and the claims of that
node are void: its sessions are without a connection. The command has no time, so what follows from that (a session
ends, a will is due) happens with the next `SweepSessions`, which the leader proposes at once.

**Wills.** A will becomes *due* in the command that makes it so: by the loss of its connection, after its delay, or with
the end of its session. From then on it has a number and is independent of its client. With the retain flag, it is kept
as the retained message of its topic in the same command, whatever the limits say: a client has one will, and the number
of clients is limited. It is to be published by the leader (`broker.client_ids.wills`)
and stays until `WillsPublished`.

**A will after a take-over.** A client that says goodbye at one node and connects to another at once may have its claim
applied before its release. Then the will must not be published, and only the first node knows. So a claim that closes
a connection leaves its session among those *leaving*, until the node of that connection says whether it was closed with
a goodbye (`ReleaseClientIds`), or is lost itself.

A session takes its queues along when it ends, in the same command.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from leveret.base.range_set import merged
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.mqtt.events import SessionChanged, WillDue
from leveret.metadata.mqtt.records import UNKNOWN_MS, ClientSession, DueWill, NumberRange, Will
from leveret.metadata.retained_messages import drop, keep

if TYPE_CHECKING:
    from leveret.metadata.model.events import Event
    from leveret.metadata.mqtt.commands import (
        ChangeSessions,
        ClaimClientIds,
        ClaimRow,
        Ids,
        ReleaseClientIds,
        ReleaseRow,
        SessionRow,
        SweepSessions,
        WillsPublished,
    )
    from leveret.metadata.mqtt.records import Ranges
    from leveret.metadata.store import Metadata


TAKEN_MAX: Final = 1_024  # Ranges of numbers.


def claim_client_ids(metadata: Metadata, command: ClaimClientIds, events: list[Event]) -> Refusal | None:
    if metadata.runs.get(command.node, "") != command.run:
        return Refusal(541, f"node {command.node} has been started again")
    for row in command.rows:
        _claim(metadata, command, row, events)
    return None


def _claim(metadata: Metadata, command: ClaimClientIds, row: ClaimRow, events: list[Event]) -> None:
    old = metadata.sessions.get(row.vhost, row.client_id)
    if row.vhost not in metadata.vhosts:
        return
    if old is None and metadata.sessions.count(row.vhost) >= command.sessions_max:
        return
    is_present = old is not None and not row.clean_start and not _has_ended(old, command.now_ms)
    metadata.last_claim += 1
    epoch, node = metadata.last_claim, command.node
    if old is not None and not is_present:
        # Listeners learn of the end of the old session by the event of the claim.
        _drop_queues(metadata, old, events)
    if old is not None and old.will is not None and not (is_present and _has_delay(old, command.now_ms)):
        if old.node:
            metadata.leaving[old.epoch] = replace(old, left_ms=command.now_ms)
        else:
            _make_due(metadata, old, old.will, command.now_ms, events)
    if old is not None and is_present:
        new = replace(
            old,
            epoch=epoch,
            node=node,
            token=row.token,
            user=row.user,
            expiry_s=row.expiry_s,
            queues=row.queues,
            will=row.will,
            left_ms=0,
        )
    else:
        new = ClientSession(
            row.vhost, row.client_id, epoch, epoch, node, row.token, row.user, row.expiry_s, row.queues, row.will
        )
    metadata.sessions.put(new)
    events.append(SessionChanged(old, new, is_present))


def _has_delay(session: ClientSession, now_ms: int) -> bool:
    """Return whether the client has come back before its will was due."""
    assert session.will is not None
    left_ms = now_ms if session.node or session.left_ms == UNKNOWN_MS else session.left_ms
    return left_ms + session.will.delay_s * 1000 > now_ms


def release_client_ids(metadata: Metadata, command: ReleaseClientIds, events: list[Event]) -> Refusal | None:
    for row in command.rows:
        session = metadata.sessions.get(row.vhost, row.client_id)
        if session is not None and session.epoch == row.epoch:
            _release(metadata, session, row, events)
        else:
            _let_go(metadata, row.epoch, row.publish_will, events)
    return None


def _let_go(metadata: Metadata, epoch: int, publish_will: bool, events: list[Event]) -> None:
    """The connection of a session among those leaving is closed, with a goodbye or not."""
    session = metadata.leaving.pop(epoch, None)
    if session is not None and publish_will:
        _make_due(metadata, session, session.will, session.left_ms, events)


def _release(metadata: Metadata, session: ClientSession, row: ReleaseRow, events: list[Event]) -> None:
    will = session.will if row.publish_will else None
    expiry_s = session.expiry_s if row.expiry_s is None else row.expiry_s
    if session.node:
        left = replace(session, node="", will=will, expiry_s=expiry_s, left_ms=row.left_ms)
    else:
        left = replace(session, will=will, expiry_s=expiry_s)
    _leave(metadata, session, left, row.left_ms, events)


def _leave(metadata: Metadata, old: ClientSession, left: ClientSession, now_ms: int, events: list[Event]) -> None:
    """Note that a session has no connection, since `left_ms`. What is due by now is done at once."""
    if _has_ended(left, now_ms):
        _drop_queues(metadata, old, events)
        _make_due(metadata, old, left.will, now_ms, events)
        metadata.sessions.remove(old)
        events.append(SessionChanged(old, None))
        return
    if left.will_ms is not None and left.will_ms <= now_ms:
        _make_due(metadata, left, left.will, now_ms, events)
        left = replace(left, will=None)
    if left != old:
        metadata.sessions.put(left)
        events.append(SessionChanged(old, left))


def _has_ended(session: ClientSession, now_ms: int) -> bool:
    """Return whether a session is over by now, or will be when its connection is closed."""
    if session.expiry_s == 0:
        return True
    if session.node or session.left_ms == UNKNOWN_MS:
        return False
    return session.ends_ms is not None and session.ends_ms <= now_ms


def change_sessions(metadata: Metadata, command: ChangeSessions, events: list[Event]) -> Refusal | None:
    for row in command.rows:
        old = metadata.sessions.get(row.vhost, row.client_id)
        if old is not None and old.epoch == row.epoch:
            new = _changed(old, row)
            metadata.sessions.put(new)
            events.append(SessionChanged(old, new))
    return None


def _changed(old: ClientSession, row: SessionRow) -> ClientSession:
    subscriptions, received, releasing = old.subscriptions, old.received, old.releasing
    last_number = old.last_number
    if row.subscribe or row.unsubscribe:
        gone = set(row.unsubscribe)
        subscriptions = {topic: one for topic, one in subscriptions.items() if topic not in gone} | row.subscribe
    if row.received or row.completed:
        received = received.copy()
        for first, count, number in row.received:
            received.update(zip(range(first, first + count), range(number, number + count), strict=True))
            last_number = max(last_number, number + count - 1)
        for packet_id in _each(row.completed):
            received.pop(packet_id, None)
    if row.releasing or row.released:
        releasing = (releasing | frozenset(_each(row.releasing))) - frozenset(_each(row.released))
    taken_of, taken = old.taken_of, old.taken
    if row.taken:
        taken = _with(taken if row.taken_of == taken_of else (), row.taken)
        taken_of = row.taken_of
    return replace(
        old,
        subscriptions=subscriptions,
        received=received,
        last_number=last_number,
        releasing=releasing,
        taken_of=taken_of,
        taken=taken,
    )


def _with(ranges: Ranges, more: Ranges) -> Ranges:
    """Return ranges of numbers with some more. The lowest are forgotten if there are too many."""
    last = ranges[-1] if ranges else None
    if last is not None and len(more) == 1 and last.last + 1 == more[0].first:  # QoS 2 is all that the client gets.
        return (*ranges[:-1], NumberRange(last.first, more[0].last))
    return tuple(NumberRange(*one) for one in merged([*ranges, *more])[-TAKEN_MAX:])


def _each(ids: Ids) -> list[int]:
    return [packet_id for first, count in ids for packet_id in range(first, first + count)]


def sweep_sessions(metadata: Metadata, command: SweepSessions, events: list[Event]) -> Refusal | None:
    for row in command.rows:
        session = metadata.sessions.get(row.vhost, row.client_id)
        if session is None or session.epoch != row.epoch or session.node:
            continue
        is_lost = session.left_ms == UNKNOWN_MS
        left = replace(session, left_ms=command.now_ms) if is_lost else session
        _leave(metadata, session, left, command.now_ms, events)
    return None


def wills_published(metadata: Metadata, command: WillsPublished, events: list[Event]) -> Refusal | None:
    for number in command.numbers:
        metadata.wills.pop(number, None)
    return None


# What happens to sessions by other commands


def lose_node(metadata: Metadata, node: str, events: list[Event]) -> None:
    """Take their connections from all sessions of a node."""
    for session in [one for one in metadata.sessions if one.node == node]:
        lost = replace(session, node="", left_ms=UNKNOWN_MS)
        metadata.sessions.put(lost)
        events.append(SessionChanged(session, lost))
    for session in [one for one in metadata.leaving.values() if one.node == node]:
        _let_go(metadata, session.epoch, True, events)


def rename_node(metadata: Metadata, old: str, new: str, events: list[Event]) -> None:
    for session in [one for one in metadata.sessions if one.node == old]:
        renamed = replace(session, node=new)
        metadata.sessions.put(renamed)
        events.append(SessionChanged(session, renamed))
    for session in [one for one in metadata.leaving.values() if one.node == old]:
        metadata.leaving[session.epoch] = replace(session, node=new)


def drop_all(metadata: Metadata, vhost: str, events: list[Event]) -> None:
    """End the sessions of a vhost that is deleted, and its wills: there is nothing to publish them to."""
    ended = metadata.sessions.by_vhost.pop(vhost, {})
    events.extend(SessionChanged(session, None) for session in ended.values())
    for number in [number for number, will in metadata.wills.items() if will.vhost == vhost]:
        del metadata.wills[number]
    for epoch in [epoch for epoch, session in metadata.leaving.items() if session.vhost == vhost]:
        del metadata.leaving[epoch]


# The end of a session


def _drop_queues(metadata: Metadata, session: ClientSession, events: list[Event]) -> None:
    for name in session.queues:
        spec = metadata.queues.get((session.vhost, name))
        if spec is not None:
            metadata.drop_queue(spec, events)


def _make_due(metadata: Metadata, session: ClientSession, will: Will | None, now_ms: int, events: list[Event]) -> None:
    if will is None:
        return
    metadata.last_will += 1
    number = metadata.last_will
    due = DueWill(number, session.vhost, session.client_id, will.exchange, will.routing_key, will.content)
    metadata.wills[number] = due
    events.append(WillDue(due))
    if will.retained is None:
        return
    if will.retained.payload:
        expires_ms = now_ms + will.expiry_s * 1000 if will.expiry_s else 0
        keep(metadata, session.vhost, replace(will.retained, expires_ms=expires_ms), events)
    else:
        drop(metadata, session.vhost, will.retained.topic, events)
