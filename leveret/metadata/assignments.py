"""Which node runs which shovel, and which federation link.

A shovel is a parameter of a vhost, and one node of the cluster runs it. Which one, is metadata: an `Assignment` beside
the parameter, which every node applies in the same order. Nobody starts a worker by its own decision.

**Epochs.** Each change that a worker must notice gives the assignment the next epoch, a number that no assignment had
before: a new value, another node, a restart, a pause. A node runs a worker exactly while it knows of an assignment that
names this node, and stops it when it applies another epoch. Reports of a worker name its epoch, and are refused unless
it is the present one. So a worker that was cut off, or stopped for an hour, can neither end nor delete what another one
runs.

**Who chooses.** The Raft leader, and nobody else. It proposes `AssignWork` for what has no node, or one that is down,
paused by a partition, drained or forgotten. A row names the epoch that it was made from, so that of two leaders that
each have chosen, the second one is refused.

**What a former worker can still do.** Until it applies the next epoch, it may go on: a node that was cut off does not
know. It does no harm. What it has consumed comes back to the source, marked as redelivered, when the source loses it;
and what it still publishes to a Leveret has an origin, which a queue takes once (`leveret.broker.delivery.origins`). A
node without a majority stops its workers by itself.

The parameter and its assignment go together, in one command: what was deleted has no assignment, and a worker that
finds none stops.

**Federation links** have no parameter of their own. They follow from policies, upstreams, exchanges and queues; the
leader finds out which there should be (`leveret.metadata.federation.plan`) and proposes the difference. Their
assignments are in a table of their own, `Metadata.links`, since there may be thousands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from leveret.metadata.model import events as e
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.shovel.events import AssignmentChanged
from leveret.metadata.shovel.records import LINK, LINKS_MAX, SHOVEL, Assignment, WorkKey

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.metadata.shovel.commands import AssignWork, PauseWork, ReportWork, RestartWork, SetLinks
    from leveret.metadata.store import Metadata

COMPONENTS: Final = (SHOVEL,)  # Those whose parameters are run.
COUNT_MAX: Final = 1_000  # Shovels of the whole cluster.
NAME_BYTES_MAX: Final = 255

_NOT_PRESENT: Final = Refusal(409, "another worker has taken over")


def table_of(metadata: Metadata, component: str) -> dict[WorkKey, Assignment]:
    """Return the assignments among which those of a component are."""
    return metadata.links if component == LINK else metadata.assignments


def fault_of(metadata: Metadata, key: WorkKey) -> str | None:
    """Return why there can be no parameter of that name; None if there can."""
    if not key.name or len(key.name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        return f"the name of a {key.component} is UTF-8 of 1 to {NAME_BYTES_MAX} bytes"
    if key not in metadata.assignments and len(metadata.assignments) >= COUNT_MAX:
        return f"a cluster has at most {COUNT_MAX} shovels"
    return None


def on_parameter_set(metadata: Metadata, key: WorkKey, user: str, events: list[e.Event]) -> None:
    """A parameter has another value, or the same from another user: it is run anew, and counts from the start."""
    old = metadata.assignments.get(key)
    paused = old is not None and old.paused
    node = "" if old is None or old.paused else old.node
    _put(metadata, Assignment(*key, 0, node, user, paused), events)


def on_parameter_cleared(metadata: Metadata, key: WorkKey, events: list[e.Event]) -> None:
    if table_of(metadata, key.component).pop(key, None) is not None:
        events.append(AssignmentChanged(*key))


def drop_all(metadata: Metadata, vhost: str, events: list[e.Event]) -> None:
    """A vhost is deleted."""
    for key in [key for table in (metadata.assignments, metadata.links) for key in table if key.vhost == vhost]:
        on_parameter_cleared(metadata, key, events)


def lose_node(metadata: Metadata, node: str, events: list[e.Event]) -> None:
    """A node is forgotten, or has started anew: it runs nothing until the leader says so."""
    for one in _where(metadata, lambda one: one.node == node):
        _put(metadata, replace(one, node=""), events)


def rename_node(metadata: Metadata, old: str, new: str, events: list[e.Event]) -> None:
    for one in _where(metadata, lambda one: one.node == old):
        _put(metadata, replace(one, node=new), events)


def _where(metadata: Metadata, fits: Callable[[Assignment], bool]) -> list[Assignment]:
    return [one for table in (metadata.assignments, metadata.links) for one in table.values() if fits(one)]


def assign_work(metadata: Metadata, command: AssignWork, events: list[e.Event]) -> Refusal | None:
    for row in command.rows:
        old = table_of(metadata, row.component).get(WorkKey(row.component, row.vhost, row.name))
        if old is not None and old.epoch == row.epoch and not old.paused:
            _put(metadata, replace(old, node=row.node), events)
    return None


def set_links(metadata: Metadata, command: SetLinks, events: list[e.Event]) -> Refusal | None:
    for row in command.rows:
        key = WorkKey(LINK, row.vhost, row.name)
        old = metadata.links.get(key)
        if not row.digest:
            on_parameter_cleared(metadata, key, events)
        elif old is not None and old.digest != row.digest:
            _put(metadata, replace(old, digest=row.digest), events)
        elif old is None and row.vhost in metadata.vhosts and len(metadata.links) < LINKS_MAX:
            _put(metadata, Assignment(*key, 0, digest=row.digest), events)
    return None


def pause_work(metadata: Metadata, command: PauseWork, events: list[e.Event]) -> Refusal | None:
    old = table_of(metadata, command.component).get(WorkKey(command.component, command.vhost, command.name))
    if old is None:
        return _missing(command)
    if old.paused != command.paused:
        _put(metadata, replace(old, paused=command.paused, node=""), events)
    return None


def restart_work(metadata: Metadata, command: RestartWork, events: list[e.Event]) -> Refusal | None:
    old = table_of(metadata, command.component).get(WorkKey(command.component, command.vhost, command.name))
    if old is None:
        return _missing(command)
    if not old.paused:
        _put(metadata, old, events)
    return None


def report_work(metadata: Metadata, command: ReportWork, events: list[e.Event]) -> Refusal | None:
    key = WorkKey(command.component, command.vhost, command.name)
    old = metadata.assignments.get(key)
    if old is None or old.epoch != command.epoch:
        return _NOT_PRESENT
    if command.done:
        metadata.parameters.pop(key, None)
        events.append(e.ParameterChanged(*key))
        on_parameter_cleared(metadata, key, events)
    elif command.forwarded > old.forwarded:
        metadata.assignments[key] = replace(old, forwarded=command.forwarded)  # No worker has to notice.
    return None


def _put(metadata: Metadata, assignment: Assignment, events: list[e.Event]) -> None:
    metadata.last_assignment += 1
    table_of(metadata, assignment.component)[assignment.key] = replace(assignment, epoch=metadata.last_assignment)
    events.append(AssignmentChanged(*assignment.key))


def _missing(command: PauseWork | RestartWork) -> Refusal:
    return Refusal(404, f"no {command.component} '{command.name}' in vhost '{command.vhost}'")
