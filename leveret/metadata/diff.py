"""The events that lead from one state of the metadata to another.

A node that was down too long gets a snapshot instead of the commands it missed. Its queues and routers are kept up to
date by events, so the difference between its old state and the snapshot is given as events, in the order that
`model.events` promises.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from leveret.base.json_values import same_json
from leveret.metadata.model import events as e
from leveret.metadata.mqtt import events as m
from leveret.metadata.shovel.events import AssignmentChanged

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.model.bindings import BindingGroup
    from leveret.metadata.shovel.records import WorkKey
    from leveret.metadata.store import Metadata

K = TypeVar("K")


def events_between(old: Metadata, new: Metadata) -> tuple[e.Event, ...]:
    """Return the events that a listener with the state `old` needs to have the state `new`."""
    events: list[e.Event] = []
    events += _unbound(old, new)
    events += [e.QueueDeleted(spec) for key, spec in old.queues.items() if _id(new, key) != spec.id]
    events += [e.ExchangeDeleted(spec) for key, spec in old.exchanges.items() if new.exchanges.get(key) != spec]
    events += [e.UserDeleted(name) for name in old.users if name not in new.users]
    events += [e.VhostDeleted(name) for name in old.vhosts if name not in new.vhosts]
    events += [e.VhostAdded(name) for name in new.vhosts if name not in old.vhosts]
    events += [e.VhostChanged(name) for name, spec in new.vhosts.items() if old.vhosts.get(name, spec) != spec]
    events += [e.UserChanged(name) for name, user in new.users.items() if old.users.get(name) != user]
    events += _permissions(old, new)
    events += [e.ExchangeDeclared(spec) for key, spec in new.exchanges.items() if old.exchanges.get(key) != spec]
    for key, queue in new.queues.items():
        if _id(old, key) != queue.id:
            events.append(e.QueueDeclared(queue))
        else:
            if old.queues[key].view != queue.view:
                events.append(e.ViewChanged(queue))
            if old.queues[key].node != queue.node:
                events.append(e.QueueMoved(queue))
    events += _bound(old, new)
    vhosts = [name for name in new.vhosts if _policies(old, name) != _policies(new, name)]
    events += [e.PolicyChanged(name) for name in vhosts]
    users = _changed(dict(old.parameter_users), dict(new.parameter_users))
    events += [e.ParameterChanged(*key) for key in dict.fromkeys(_changed(old.parameters, new.parameters) + users)]
    events += [e.GlobalParameterChanged(name) for name in _changed(old.global_parameters, new.global_parameters)]
    events += _clients(old, new)
    works = {**old.assignments, **old.links, **new.assignments, **new.links}
    events += [AssignmentChanged(*key) for key in works if _epoch(old, key) != _epoch(new, key)]
    return tuple(events)


def _epoch(metadata: Metadata, key: WorkKey) -> int:
    found = metadata.assignments.get(key) or metadata.links.get(key)
    return 0 if found is None else found.epoch


def _clients(old: Metadata, new: Metadata) -> list[e.Event]:
    """Return the changes of retained messages, sessions and wills."""
    events: list[e.Event] = []
    for vhost in {**old.retained.by_vhost, **new.retained.by_vhost}:
        before, after = old.retained.by_vhost.get(vhost, {}), new.retained.by_vhost.get(vhost, {})
        topics = [topic for topic in {**before, **after} if before.get(topic) != after.get(topic)]
        events += [m.RetainedChanged(vhost, topic) for topic in topics]
    for session in old.sessions:
        if new.sessions.get(session.vhost, session.client_id) is None:
            events.append(m.SessionChanged(session, None))
    for session in new.sessions:
        was = old.sessions.get(session.vhost, session.client_id)
        if was != session:
            events.append(m.SessionChanged(was, session, was is not None and was.born == session.born))
    events += [m.WillDue(will) for number, will in new.wills.items() if number not in old.wills]
    return events


def _changed(old: dict[K, Json], new: dict[K, Json]) -> list[K]:
    """Return the names whose values differ. A missing value is not null, and 1 is not true."""
    return [
        key for key in {**old, **new} if (key in old) != (key in new) or not same_json(old.get(key), new.get(key))
    ]


def _id(metadata: Metadata, key: tuple[str, str]) -> int | None:
    spec = metadata.queues.get(key)
    return None if spec is None else spec.id


def _unbound(old: Metadata, new: Metadata) -> list[e.Event]:
    events: list[e.Event] = []
    for group in old.bindings.groups():
        now = _same_ends(group, new)
        if now is None or _is_remade(group, old, new):
            events.append(e.BindingsRemoved(group))
        elif not group.is_like(now):
            events += [e.BindingRemoved(one) for one in group if not now.holds(one.key, one.digest)]
    return events


def _bound(old: Metadata, new: Metadata) -> list[e.Event]:
    events: list[e.Event] = []
    for group in new.bindings.groups():
        before = _same_ends(group, old)
        if before is None or _is_remade(group, old, new):
            events.append(e.BindingsAdded(group))
        elif not group.is_like(before):
            events += [e.BindingAdded(one) for one in group if not before.holds(one.key, one.digest)]
    return events


def _same_ends(group: BindingGroup, metadata: Metadata) -> BindingGroup | None:
    return metadata.bindings.between(group.vhost, group.source, group.destination_kind, group.destination)


def _is_remade(group: BindingGroup, old: Metadata, new: Metadata) -> bool:
    """Return whether a queue or exchange at one end is another one of the same name than before."""
    vhost, source = group.vhost, group.source
    if old.exchanges.get((vhost, source)) != new.exchanges.get((vhost, source)):
        return True
    key = (vhost, group.destination)
    if group.destination_kind == "queue":
        return _id(old, key) != _id(new, key)
    return old.exchanges.get(key) != new.exchanges.get(key)


def _permissions(old: Metadata, new: Metadata) -> list[e.Event]:
    keys = {**old.permissions, **old.topic_permissions, **new.permissions, **new.topic_permissions}
    return [
        e.PermissionsChanged(*key)
        for key in keys
        if old.permissions.get(key) != new.permissions.get(key)
        or old.topic_permissions.get(key) != new.topic_permissions.get(key)
    ]


def _policies(metadata: Metadata, vhost: str) -> list[object]:
    """Return the policies of a vhost in a form that can be compared: as text, because 1 == True in Python."""
    return [
        [(policy, repr(policy.definition)) for (where, _), policy in kept.items() if where == vhost]
        for kept in (metadata.policies, metadata.operator_policies)
    ]
