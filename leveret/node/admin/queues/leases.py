"""Control commands about leases: list them, and delete one whose reader will not come back.

A lease is known where its queue's master is. As with the list of queues, those nodes are asked page by page, and only
what is safe is shown (see `leveret.broker.queue.leases`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from leveret.base.exit_codes import UNAVAILABLE, USAGE
from leveret.broker.queue import leases
from leveret.broker.queue.lease import LeaseView
from leveret.broker.queue.local_queue import LocalQueue
from leveret.metadata.model.refusals import Refusal
from leveret.node.admin.common import listing_columns as columns_
from leveret.node.admin.common.command import NUMBERS, OBJECT, RUNNING, TEXT, TEXTS, Commands, Refused
from leveret.node.admin.queues.lists import check_columns, page
from leveret.node.admin.queues.queues import (
    ask_homes,
    at_home,
    following_cursor,
    position,
    queue_here,
    queue_page,
    queue_spec,
)
from leveret.node.system.time_slices import TimeSlices

if TYPE_CHECKING:
    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()
QUEUES_AT_ONCE: Final = 10_000


def _row(queue: LocalQueue, view: LeaseView) -> dict[str, Any]:
    return {
        "name": view.name,
        "queue": queue.spec.name,
        "acked": view.acked,
        "next": view.next,
        "out": view.out,
        "lag": view.out + queue.ready_count,
        "runs": len(view.runs),
        "age": max(queue.host.wall_ms - view.touched_ms, 0) // 1000,
        "timeout": view.timeout_ms // 1000,
        "node": queue.spec.node,
        "owner": view.owner,
    }


@COMMANDS.add(RUNNING, vhost=TEXT, columns=TEXTS, after=OBJECT.or_none())
async def list_leases(control: Control, vhost: str, columns: list[str], after: dict[str, Any] | None) -> Any:
    check_columns(columns, columns_.LEASES)
    if vhost not in control.node.metadata.vhosts:
        raise Refused(USAGE, f"Virtual host '{vhost}' does not exist")
    found, following = await queue_page(control, lambda spec: spec.vhost == vhost, position(after), QUEUES_AT_ONCE)
    told, missing = await ask_homes(control, found, "local_leases", {"columns": columns})
    rows = [row for spec in found for row in told.get(spec.id, ())]
    return page(rows, following_cursor(following), missing)


@COMMANDS.add(RUNNING, queues=NUMBERS, columns=TEXTS)
async def local_leases(control: Control, queues: list[int], columns: list[str]) -> Any:
    """Rows of the leases of those of these queues that live here."""
    check_columns(columns, columns_.LEASES)
    found = {}
    async for number in TimeSlices().each(queues):
        queue = control.node.broker.queues_by_id.get(number)
        if isinstance(queue, LocalQueue):
            rows = [_row(queue, view) for view in leases.lease_views(queue)]
            if rows:  # Few queues have any.
                found[str(number)] = [[row[name] for name in columns] for row in rows]
    return found


@COMMANDS.add(RUNNING, vhost=TEXT, queue=TEXT, name=TEXT)
async def release_lease(control: Control, vhost: str, queue: str, name: str) -> Any:
    spec = queue_spec(control, vhost, queue, USAGE, "Queue not found")
    return await at_home(control, spec, "local_release_lease", {"vhost": vhost, "queue": queue, "name": name})


@COMMANDS.add(RUNNING, vhost=TEXT, queue=TEXT, name=TEXT)
async def local_release_lease(control: Control, vhost: str, queue: str, name: str) -> Any:
    found = queue_here(control, queue_spec(control, vhost, queue, USAGE, "Queue not found"))
    views = [view for view in leases.lease_views(found) if view.name == name]
    answer: asyncio.Future[LeaseView | Refusal] = asyncio.get_running_loop().create_future()

    def then(view: LeaseView | Refusal) -> None:
        if not answer.done():  # Otherwise the caller was cancelled.
            answer.set_result(view)

    leases.release_lease(found, name, then)
    control.node.schedule()
    released = await answer
    if isinstance(released, Refusal):
        raise Refused(USAGE if released.code == 404 else UNAVAILABLE, released.text)
    return {"messages": views[0].out if views else 0}
