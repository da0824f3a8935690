"""Many commands for one purpose (an import, the end of a vhost), of which clients that do other things notice little.

Each command is applied at every node, and a thousand queues take each of them a third of a second. So a bulk goes in
small portions, and after each the bulk rests for as long as the portion took: whatever else the nodes have to do gets
half of their time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from leveret.metadata.model.commands import Command
    from leveret.metadata.store import Applied

AT_ONCE: Final = 50  # Commands: even with mirrors, some milliseconds at each node.
REST_S_MAX: Final = 1.0  # A portion that took longer has waited for something else.


class Agreeing(Protocol):
    async def change(self, command: Command) -> Applied: ...


async def agree(cluster: Agreeing, portion: Sequence[Command], rests: bool = True) -> list[Applied]:
    """Have the cluster agree on a portion of a bulk, then rest; refusals are in what is returned. `rests`: there may be
    others who want something of the nodes."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    answers = await asyncio.gather(*map(cluster.change, portion))
    if rests:
        await asyncio.sleep(min(loop.time() - began, REST_S_MAX))
    return list(answers)
