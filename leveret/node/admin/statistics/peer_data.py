"""Control commands by which nodes ask each other about queues as data, for their management ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.broker.queue.leases import lease_views
from leveret.node.admin.common.command import ALWAYS, NUMBERS, RUNNING, Commands
from leveret.node.stats.range_reads import Elsewhere
from leveret.node.system.time_slices import TimeSlices

if TYPE_CHECKING:
    from leveret.broker.queue.lease import LeaseView
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.metadata.model.records import QueueSpec
    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()


@COMMANDS.add(ALWAYS)
async def management_url(control: Control) -> str | None:
    """Returns the URL of this node's management port, for clients; None if it has none."""
    return control.server.listeners.management_url


@COMMANDS.add(ALWAYS)
async def management_urls(control: Control) -> dict[str, str]:
    """Returns the same by scheme, http and https, as far as the node has them."""
    return control.server.listeners.management_urls


@COMMANDS.add(RUNNING, ids=NUMBERS)
async def local_data_queues(control: Control, ids: list[int]) -> list[dict[str, Any]]:
    """Returns what the master knows, for those of these queues whose master is at this node."""
    node = control.server.node
    rows = []
    async for number in TimeSlices().each(ids):
        queue = node.broker.queues_by_id.get(number)
        if queue is None or not queue.is_local:
            continue
        try:
            extent = node.reads.extent(queue.spec)
        except Elsewhere:
            continue
        rows.append({"id": number, **extent._asdict(), "leases": leases(queue)})
    return rows


def leases(queue: LocalQueue) -> list[dict[str, Any]]:
    return [lease_row(queue.spec, view) for view in lease_views(queue)]


def lease_row(spec: QueueSpec, view: LeaseView) -> dict[str, Any]:
    """Returns a lease as JSON."""
    return {
        "vhost": spec.vhost,
        "queue": spec.name,
        "name": view.name,
        "acked": view.acked,
        "next": view.next,
        "runs": [list(run) for run in view.runs],
        "timeout_ms": view.timeout_ms,
        "touched_ms": view.touched_ms,
        "owner": view.owner,
    }
