"""Commands that change where a queue and its mirrors are.

All of them are compare-and-set. A command was made from a queue's state at some time, and may be applied late, twice,
or after another one; so each names the state it was made from, and is refused if that has changed. Versions of views
therefore never start again during the life of a queue: the end of its last view counts as a version.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from leveret.metadata.model import commands as c
from leveret.metadata.model import events as e
from leveret.metadata.model.refusals import Refusal, not_found, resource
from leveret.metadata.model.view import View, first_joined, is_of, misfit

if TYPE_CHECKING:
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.store import Metadata


def has_copy(spec: QueueSpec, node: str) -> bool:
    """Return whether a node is the queue's master or has a mirror."""
    return spec.node == node or (spec.view is not None and node in spec.view.ring)


def has_queues(metadata: Metadata, node: str) -> bool:
    return any(has_copy(spec, node) for spec in metadata.queues.values())


def change_view(metadata: Metadata, command: c.ChangeView, events: list[e.Event]) -> Refusal | None:
    queue = metadata.queues.get((command.vhost, command.name))
    if queue is None or queue.id != command.id:
        return not_found("queue", command.name, command.vhost)
    problem = misfit(queue.view, command.view, (queue.last_version, queue.last_epoch))
    if not all(is_of(*disk, queue.joined) for disk in command.view.in_sync):
        problem = "a copy that has left the ring is not one that is in sync"
    if problem is None and queue.view is None and command.view.master != queue.node:
        problem = f"the queue is at {queue.node}"
    if problem is not None:
        return Refusal(406, f"{resource('queue', command.name, command.vhost)} keeps its view: {problem}")
    put_view(metadata, queue, command.view, events)
    return None


def end_view(metadata: Metadata, command: c.EndView, events: list[e.Event]) -> Refusal | None:
    key = (command.vhost, command.name)
    queue = metadata.queues.get(key)
    if queue is None or queue.id != command.id:
        return not_found("queue", command.name, command.vhost)
    view = queue.view
    if view is None or view.version != command.version or view.ring != (queue.node,):
        return Refusal(406, f"{resource('queue', *reversed(key))} keeps its view: it is another one, or has mirrors")
    plain = replace(queue, view=None, joined=first_joined(None), last_version=view.version + 1, last_epoch=view.epoch)
    metadata.queues[key] = plain
    events.append(e.ViewChanged(plain))
    return None


def put_view(metadata: Metadata, queue: QueueSpec, view: View, events: list[e.Event]) -> None:
    ring = () if queue.view is None else queue.view.ring
    joined = {name: queue.joined[name] if name in ring else view.version for name in view.ring}
    if joined == queue.joined:
        joined = queue.joined  # Many queues share it.
    changed = replace(queue, view=view, node=view.master, joined=joined)
    metadata.queues[queue.vhost, queue.name] = changed
    events.append(e.ViewChanged(changed))
    if queue.node != view.master:
        events.append(e.QueueMoved(changed))


def move_queue(metadata: Metadata, command: c.MoveQueue, events: list[e.Event]) -> Refusal | None:
    key = (command.vhost, command.name)
    queue = metadata.queues.get(key)
    if queue is None or queue.id != command.id:
        return not_found("queue", command.name, command.vhost)
    if queue.view is not None:
        return Refusal(406, f"{resource('queue', *reversed(key))} is mirrored, and moves by another way")
    if queue.node != command.old:
        return Refusal(406, f"{resource('queue', *reversed(key))} is at {queue.node}, not at {command.old}")
    if metadata.runs.get(command.new) != command.run:
        return Refusal(406, f"node {command.new} has been restarted meanwhile")
    metadata.queues[key] = moved = replace(queue, node=command.new)
    events.append(e.QueueMoved(moved))
    return None
