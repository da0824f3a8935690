"""Control commands about partitions: how they are handled, which nodes are unreachable, and what can be done about it.

Each node knows only its own links (`local_partition`); for the whole cluster all reachable nodes are asked. A pair of
nodes without contact is a *partition* if the other end seems to be running: another node reaches it, or it fell silent
instead of closing its links. A node that was stopped or has died is down, which RabbitMQ does not call a partition
either.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from leveret.base.exit_codes import DATA_ERROR, UNAVAILABLE
from leveret.metadata.model.commands import ClearGlobalParameter, SetGlobalParameter
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.rules import partition_handling
from leveret.node.admin.common.command import RUNNING, STARTED, TEXT, TEXTS, Commands, Refused
from leveret.node.cluster.consensus import AdminError

if TYPE_CHECKING:
    from leveret.broker.remote.spool_registry import SpoolRegistry
    from leveret.metadata.model.records import QueueSpec
    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()

LINKS_S: Final = 2.0  # Time for links to come up, before those that have not are reported.
QUEUES_MAX: Final = 1_000  # Queues that are named in one answer.


# -- What is chosen ------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, strategy=TEXT, nodes=TEXTS.or_none(), recover=TEXT.or_none())
async def set_partition_handling(control: Control, strategy: str, nodes: list[str] | None, recover: str | None) -> Any:
    try:
        handling = partition_handling.parse(strategy, nodes or (), recover)
    except partition_handling.BadHandling as error:
        raise Refused(DATA_ERROR, f"cluster_partition_handling: {error}") from None
    strangers = [name for name in handling.nodes if control.member(name) is None]
    await control.change(SetGlobalParameter(partition_handling.PARAMETER, handling.as_json()))
    return {"handling": handling.as_json(), "unknown_nodes": strangers}


@COMMANDS.add(RUNNING)
async def clear_partition_handling(control: Control) -> Any:
    """Deletes the cluster's setting, so that each node's configuration holds again."""
    if partition_handling.PARAMETER not in control.node.metadata.global_parameters:
        raise Refused(UNAVAILABLE, "cluster_partition_handling is as the configuration says already")
    await control.change(ClearGlobalParameter(partition_handling.PARAMETER))
    return {"handling": control.server.settings.partition_handling.as_json()}


# -- Who sees whom -------------------------------------------------------------------------------------------------


@COMMANDS.add(STARTED)
async def local_partition(control: Control) -> Any:
    return local(control)


def local(control: Control) -> dict[str, Any]:
    """Returns the state of partitions as this node sees it."""
    node = control.node
    seen = node.pausing.partitions
    by_cluster = partition_handling.PARAMETER in node.metadata.global_parameters
    return {
        "handling": seen.handling.as_json(),
        "set_by": "cluster" if by_cluster else "configuration",
        "paused_since_ms": seen.paused_ms,
        "pause_reason": seen.reason,
        "pauses": seen.pauses,
        "unreachable": [
            {"node": name, "since_ms": loss.since_ms, "reason": loss.reason, "silent": loss.silent}
            for name, loss in sorted(seen.lost.items())
        ],
        "waiting_for": node.cluster.two_nodes.waiting_for(),
        "spooled": _spooled(node.broker.spools),
        "detached": node.broker.detachment.figures(),
    }


def _spooled(spools: SpoolRegistry) -> dict[str, Any]:
    """Returns the sums over this node's spools."""
    found = [spools.figures_of(spool) for spool in spools.active]
    return {
        "queues": len(found),
        "messages": sum(one.messages for one in found),
        "bytes": spools.content_bytes,
        "limit": spools.content_bytes_max,
        "oldest": max((one.oldest for one in found), default=0),
        "alarms": spools.alarms,
    }


def parted(told: dict[str, dict[str, Any]], running: Iterable[str]) -> dict[str, list[str]]:
    """Returns which nodes are partitioned from which, from the answers of these nodes: see the top of this module."""
    alive = set(running)
    found = {
        name: [one["node"] for one in seen["unreachable"] if one["silent"] or one["node"] in alive]
        for name, seen in told.items()
    }
    return {name: others for name, others in found.items() if others}


def partition_names(control: Control) -> list[str]:
    """Returns the nodes from which this one is partitioned, as far as it can tell without asking others."""
    node = control.node
    alive = {name for others in node.broker.mirrors.ha_rules.linked.values() for name in others}
    return parted({control.name: local(control)}, alive).get(control.name, [])


# -- One of two nodes ----------------------------------------------------------------------------------------------


@COMMANDS.add(STARTED)
async def go_on_alone(control: Control) -> Any:
    """Lets this node go on without the other one of two, which an operator knows to be gone."""
    try:
        gone = await control.node.cluster.two_nodes.go_on_alone()
    except AdminError as error:
        raise Refused(UNAVAILABLE, str(error)) from None
    return {"removed": gone}


# -- Recovery ------------------------------------------------------------------------------------------------------


@COMMANDS.add(STARTED)
async def recover_partition(control: Control) -> Any:
    """Tries all links now instead of when they are due, and returns what is left to do."""
    node = control.node
    before = local(control)
    node.peers.retry()
    missing = node.pausing.partitions.lost
    await node.cluster.until(lambda: not missing, LINKS_S)
    node.pausing.look()
    if not missing:
        await node.cluster.until(lambda: not node.pausing.paused, LINKS_S)
    found, left = _queues_down(control)
    return {
        "before": before,
        "now": local(control),
        "dialed": [one["node"] for one in before["unreachable"]],
        "has_majority": node.cluster.has_majority,
        "queues": found,
        "queues_left_off": left,
    }


def _queues_down(control: Control) -> tuple[list[dict[str, Any]], int]:
    """Returns queues that this node cannot use, and how many more there are than are named."""
    found: list[dict[str, Any]] = []
    left = 0
    for spec in control.node.metadata.queues.values():
        if is_hidden_queue(spec.name) or (spec.node == control.name) or _is_there(control, spec.node):
            continue
        if len(found) >= QUEUES_MAX:
            left += 1
            continue
        found.append({"vhost": spec.vhost, "name": spec.name, "node": spec.node, "advice": _advice(control, spec)})
    return found, left


def _is_there(control: Control, name: str) -> bool:
    pausing = control.node.pausing
    return name in pausing.partitions.in_sight and not pausing.is_paused(name)


def _advice(control: Control, spec: QueueSpec) -> str:
    """Returns a text: what happens to the queue without help, and what an operator can do."""
    view = spec.view
    if view is None:
        return f"its messages are on {spec.node} only: bring that node, or the way to it, back"
    in_sync = [name for name, _ in view.in_sync if name != spec.node]
    there = [name for name in in_sync if name == control.name or _is_there(control, name)]
    if there and control.node.cluster.has_majority:
        return f"{', '.join(there)} is synchronised and will lead it by itself"
    if there:
        return f"{', '.join(there)} is synchronised and will lead it once a majority of the nodes is in contact"
    copies = [name for name in view.ring if name == control.name or _is_there(control, name)]
    wanted = ", ".join(dict.fromkeys([spec.node, *in_sync]))
    if not copies:
        return f"no copy is in contact: bring back one of {wanted}"
    return (
        f"no synchronised copy is in contact: bring back one of {wanted}; or, and what only they have is lost then: "
        f"leveretctl -n {copies[0]} promote_queue {spec.name}"
    )
