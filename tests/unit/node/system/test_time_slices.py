"""Work that is cut into slices lets others run in between."""

from __future__ import annotations

import asyncio

from leveret.node.system.time_slices import in_portions


def test_others_run_between_two_portions() -> None:
    order: list[object] = []

    async def work() -> None:
        async for item in in_portions(range(5), 2):
            order.append(item)
            asyncio.get_running_loop().call_soon(order.append, f"after {item}")

    asyncio.run(work())
    assert order[:6] == [0, 1, "after 0", "after 1", 2, 3]
