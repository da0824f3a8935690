"""Paces many commands for one purpose (an import, the deletion of a vhost), so that clients notice little of them.

Each command is applied at every node, and a thousand queues take each node a third of a second. So such a bulk is
proposed in small portions, and after each portion there is a rest twice as long as the portion took: mirrors of new
queues are made in the first half of it, and all other work of the nodes gets half of their time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from leveret.metadata.model.commands import Command
    from leveret.metadata.store import Applied

AT_ONCE: Final = 50  # Commands: even with mirrors, some milliseconds at each node.
REST: Final = 2.0  # For each second that a portion took.
REST_S_MAX: Final = 1.0  # A portion that took longer has waited for something else.


class Agreeing(Protocol):
    async def change(self, command: Command) -> Applied: ...


async def agree(cluster: Agreeing, portion: Sequence[Command], rests: bool = True) -> list[Applied]:
    """Has the cluster apply a portion of a bulk, then rests; refusals are in the results. `rests`: False if there are
    no clients that could notice."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    answers = await asyncio.gather(*map(cluster.change, portion))
    if rests:
        await asyncio.sleep(min(REST * (loop.time() - began), REST_S_MAX))
    return list(answers)
