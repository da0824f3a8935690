"""Figures of several nodes put together: counts, rates and charts of what happens at all of them are added up.

Nodes count intervals by the time of day, so their samples have the same times; where one is a sample ahead, what all
have is shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from leveret.node.admin.common.command import NoAnswer, Refused

if TYPE_CHECKING:
    from leveret.management.app import Management

Row = dict[str, Any]


def added(parts: Iterable[Row]) -> Row:
    """Counts, and `..._details` of them, of several nodes."""
    found: Row = {}
    for part in parts:
        for name, value in part.items():
            known = found.get(name)
            if known is None:
                found[name] = value
            elif isinstance(value, dict):
                found[name] = _details(known, value)
            else:
                found[name] = known + value
    return found


def _details(one: Row, other: Row) -> Row:
    sums = {name: one[name] + other[name] for name in one if name != "samples" and name in other}
    if "samples" in one and "samples" in other:
        there = {sample["timestamp"]: sample["sample"] for sample in other["samples"]}
        sums["samples"] = [
            {"sample": sample["sample"] + there[sample["timestamp"]], "timestamp": sample["timestamp"]}
            for sample in one["samples"]
            if sample["timestamp"] in there
        ]
    return sums


class AllNodes:
    """All running nodes, to be asked the same."""

    def __init__(self, management: Management) -> None:
        self.management = management

    def running(self) -> list[str]:
        return sorted(member.name for member in self.management.node.cluster.members() if member.running)

    async def ask(self, command: str, arguments: Row, names: Iterable[str] | None = None) -> dict[str, Any]:
        """The answers by node; who does not answer is missing, and shown as not running soon."""
        asked = self.running() if names is None else list(names)
        answers = await asyncio.gather(*(self.one(name, command, arguments) for name in asked))
        return {name: answer for name, answer in zip(asked, answers, strict=True) if answer is not None}

    async def one(self, name: str, command: str, arguments: Row) -> Any:
        """None if the node does not answer."""
        try:
            return await self.management.server.control.at(name, command, arguments)
        except (NoAnswer, Refused):
            return None
