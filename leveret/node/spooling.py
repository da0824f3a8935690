"""A node that goes for good takes its disk along: what its spools hold must be with others before."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from leveret.node.consensus import AdminError

if TYPE_CHECKING:
    from leveret.node.node import Node

STEP_S: Final = 0.05
STUCK_S: Final = 5.0  # Without progress, after which it is given up.


async def sent_on(node: Node) -> None:
    """When all that is kept for queues of others has been sent on. Raises `AdminError` if that does not go on."""
    spools, loop = node.broker.spools, node.loop
    left, deadline = -1, 0.0
    while spools.active and node.fatal is None:
        count = sum(spool.count for spool in spools.active)
        if count != left:
            left, deadline = count, loop.time() + STUCK_S
        if loop.time() > deadline:
            one = next(figures for figures in spools.figures() if figures.messages)
            raise AdminError(
                f"{left} messages wait in this node's spools, and only this node has them. Those for queue "
                f"'{one.queue}' in vhost '{one.vhost}' cannot be sent on: {one.reason or one.state}. "
                "Wait until they can, or delete the queue: they go with it"
            )
        node.schedule()
        await asyncio.sleep(STEP_S)
