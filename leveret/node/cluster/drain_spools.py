"""Empties the spools of a node that leaves the cluster for good: the messages in them are on its disk only."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.node.cluster.consensus import AdminError

if TYPE_CHECKING:
    from leveret.node.node import Node

STUCK_S: Final = 5.0  # Time without progress after which `sent_on` gives up.


async def sent_on(node: Node) -> None:
    """Waits until all messages in this node's spools have been sent to their queues. Raises `AdminError` if no message
    was sent for `STUCK_S`."""
    spools = node.broker.spools
    while spools.active and node.fatal is None:
        progress: asyncio.Future[None] = node.loop.create_future()
        watcher = partial(_note, progress)
        spools.watchers.append(watcher)
        node.schedule()
        await asyncio.wait([progress, node.stopped], timeout=STUCK_S, return_when=asyncio.FIRST_COMPLETED)
        if node.stopped.done():
            return
        if not progress.done():
            spools.watchers.remove(watcher)
            one = next(figures for figures in spools.figures() if figures.messages)
            left = sum(spool.count for spool in spools.active)
            raise AdminError(
                f"{left} messages wait in this node's spools, and only this node has them. Those for queue "
                f"'{one.queue}' in vhost '{one.vhost}' cannot be sent on: {one.reason or one.state}. "
                "Wait until they can, or delete the queue: they go with it"
            )


def _note(progress: asyncio.Future[None]) -> None:
    if not progress.done():
        progress.set_result(None)
