"""Many commands for one purpose leave half of the time to others."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from leveret.metadata.model.commands import Command, DeleteVhost
from leveret.metadata.store import Applied
from leveret.node.cluster import paced_commands

COMMANDS = [DeleteVhost(f"v{number}") for number in range(5)]


class Cluster:
    """Answers all that is under way at once, when it is told to."""

    def __init__(self) -> None:
        self.under_way: list[Command] = []
        self.may_answer = asyncio.Event()

    async def change(self, command: Command) -> Applied:
        self.under_way.append(command)
        await self.may_answer.wait()
        return cast(Applied, command)


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.25, 0.5), (60.0, paced_commands.REST_S_MAX)])
async def test_a_portion_is_under_way_together_and_a_rest_follows(
    took_s: float, rest_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, cluster, slept = asyncio.get_running_loop(), Cluster(), list[float]()
    began = now = loop.time()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    task = asyncio.ensure_future(paced_commands.agree(cluster, COMMANDS))
    for _ in range(20):
        await _pass()
    assert cluster.under_way == COMMANDS and not slept
    now = began + took_s
    cluster.may_answer.set()
    assert cast(list[Any], await task) == COMMANDS
    assert slept == [pytest.approx(rest_s)]


async def test_where_nobody_else_is_there_is_no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    cluster.may_answer.set()

    async def sleep(seconds: float) -> None:
        raise AssertionError("it rests")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert cast(list[Any], await paced_commands.agree(cluster, COMMANDS, rests=False)) == COMMANDS


async def _pass() -> None:
    """One pass of the loop."""
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done
