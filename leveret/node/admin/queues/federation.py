"""Control commands about federation links: their state, and how one is begun anew.

Every node knows which links there are and who runs which; how one does, only the node that runs it. A link whose node
does not answer is listed all the same.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from leveret.base.exit_codes import UNAVAILABLE
from leveret.metadata.federation.links import is_link_name, link_id, link_parts
from leveret.metadata.shovel.commands import RestartWork
from leveret.node.admin.common.command import RUNNING, TEXT, Commands, NoAnswer, Refused

if TYPE_CHECKING:
    from leveret.metadata.shovel.records import Assignment, WorkKey
    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()


@COMMANDS.add(RUNNING)
async def local_links(control: Control) -> Any:
    """Returns what this node knows of the links that it runs."""
    return control.server.node.federation.statuses()


async def link_rows(control: Control) -> list[dict[str, Any]]:
    """Return all links of the cluster, each with what its node knows."""
    assigned = [one for one in control.node.metadata.links.values() if is_link_name(one.name)]
    names = sorted({one.node for one in assigned if one.node})
    answers = await asyncio.gather(*(_statuses(control, name) for name in names))
    known = {
        (one["vhost"], one["name"], one["epoch"]): one for answer in answers if answer is not None for one in answer
    }
    silent = {name for name, answer in zip(names, answers, strict=True) if answer is None}
    order = sorted(assigned, key=lambda one: (one.vhost, link_parts(one.key)))
    return [_row(one, known.get((one.vhost, one.name, one.epoch)), one.node in silent) for one in order]


async def _statuses(control: Control, name: str) -> list[dict[str, Any]] | None:
    try:
        found: list[dict[str, Any]] = await control.at(name, "local_links", {})
    except (NoAnswer, Refused):
        return None
    return found


def _row(one: Assignment, known: dict[str, Any] | None, is_silent: bool) -> dict[str, Any]:
    """Return a link with RabbitMQ's names for what RabbitMQ tells of it, and further ones."""
    kind, name, upstream, there = link_parts(one.key)
    row: dict[str, Any] = {"node": one.node, kind: name, f"upstream_{kind}": there}
    if kind == "queue":
        row["consumer_tag"] = f"federation-link-{upstream}" if known is None else known["consumer_tag"]
    row |= {
        "type": kind,
        "vhost": one.vhost,
        "upstream": upstream,
        "id": link_id(one.key),
        "status": "starting",
        "error": "",
        "local_connection": "",
        "uri": "",
        "timestamp": "",
        "next_attempt": None,
        "note": "",
        "forwarded": 0,
        "dropped": 0,
        "pending": 0,
        "bytes": 0,
    }
    if known is not None:
        same = ("status", "error", "local_connection", "uri", "note", "forwarded", "dropped", "pending", "bytes")
        row |= {key: known[key] for key in same}
        row["timestamp"] = _time(known["since_ms"])
        row["next_attempt"] = None if known["next_ms"] is None else _time(known["next_ms"])
    elif is_silent:
        row["error"] = f"node {one.node} does not answer"
    elif not one.node:
        row["note"] = "waits for a node that can run it"
    return row


def _time(wall_ms: int) -> str:
    """Return a time as RabbitMQ's management plugin prints it: the hour has no leading zero."""
    at = time.localtime(wall_ms / 1000)
    return f"{at.tm_year}-{at.tm_mon:02}-{at.tm_mday:02} {at.tm_hour}:{at.tm_min:02}:{at.tm_sec:02}"


@COMMANDS.add(RUNNING)
async def federation_status(control: Control) -> Any:
    return await link_rows(control)


def keys_of(control: Control, id: str) -> list[WorkKey]:
    return [key for key in control.node.metadata.links if link_id(key) == id]


@COMMANDS.add(RUNNING, id=TEXT)
async def restart_federation_link(control: Control, id: str) -> None:
    keys = keys_of(control, id)
    if not keys:
        raise Refused(UNAVAILABLE, "Link with the given ID was not found")
    for key in keys:
        await control.change(RestartWork(*key))
