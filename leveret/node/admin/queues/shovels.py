"""Control commands about shovels: their state, and what operators do with them.

Every node knows which shovels there are and who runs which; how far one is, only the node that runs it. A shovel whose
node does not answer is listed all the same.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final

from leveret.base.exit_codes import DATA_ERROR, UNAVAILABLE, USAGE
from leveret.metadata.model import commands as c
from leveret.metadata.shovel.commands import PauseWork, RestartWork
from leveret.metadata.shovel.parameters import faults_of, redacted
from leveret.metadata.shovel.records import SHOVEL, Assignment, WorkKey
from leveret.node.admin.common.command import (
    FLAG,
    NUMBER,
    RUNNING,
    TEXT,
    Commands,
    NoAnswer,
    Refused,
)

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()
POLL_S: Final = 0.1
ENDED_S: Final = 5.0  # For the node that ran a shovel to say how many messages it has moved.
MOVE_S_MAX: Final = 7 * 86_400.0

_ENDS: Final = (
    "src-queue", "src-exchange", "src-exchange-key", "dest-queue", "dest-exchange", "dest-exchange-key",
)  # fmt: skip


@COMMANDS.add(RUNNING)
async def local_shovels(control: Control) -> Any:
    """Returns what this node knows of the shovels that it runs, and of those that have ended lately."""
    shovels = control.server.node.shovels
    return {"running": shovels.statuses(), "ended": [list(one) for one in shovels.ended]}


async def shovel_rows(control: Control) -> list[dict[str, Any]]:
    """Return all shovels of the cluster, each with what its node knows."""
    node = control.server.node
    assigned: list[Assignment] = node.shovels.assigned()
    names = sorted({one.node for one in assigned if one.node})
    answers = await asyncio.gather(*(_statuses(control, name) for name in names))
    known = {
        (one["vhost"], one["name"], one["epoch"]): one for answer in answers if answer is not None for one in answer
    }
    silent = {name for name, answer in zip(names, answers, strict=True) if answer is None}
    rows = []
    for one in sorted(assigned, key=lambda one: (one.vhost, one.name)):
        value = node.metadata.parameters.get(one.key)
        rows.append(_row(one, value, known.get((one.vhost, one.name, one.epoch)), one.node in silent))
    return rows


async def _statuses(control: Control, name: str) -> list[dict[str, Any]] | None:
    try:
        answer = await control.at(name, "local_shovels", {})
    except (NoAnswer, Refused):
        return None
    found: list[dict[str, Any]] = answer["running"]
    return found


def _row(one: Assignment, value: Json, known: dict[str, Any] | None, is_silent: bool) -> dict[str, Any]:
    """Return a shovel with RabbitMQ's names for what RabbitMQ tells of it, and further ones."""
    shown = redacted(value)
    definition: dict[str, Json] = shown if isinstance(shown, dict) else {}
    row: dict[str, Any] = {
        "node": one.node,
        "timestamp": "",
        "name": one.name,
        "vhost": one.vhost,
        "type": "dynamic",
        "state": "paused" if one.paused else "starting",
        "src_uri": _first(definition.get("src-uri")),
        "src_protocol": definition.get("src-protocol", "amqp091"),
        "dest_protocol": definition.get("dest-protocol", "amqp091"),
        "dest_uri": _first(definition.get("dest-uri")),
        "forwarded": one.forwarded,
        "pending": 0,
        "remaining": None,
        "bytes": 0,
        "reason": "",
        "next_attempt": None,
    }
    row |= {key.replace("-", "_"): definition[key] for key in _ENDS if key in definition}
    if known is not None:
        row |= {key: known[key] for key in ("state", "reason", "forwarded", "pending", "remaining", "bytes")}
        row["timestamp"] = _time(known["since_ms"])
        row["next_attempt"] = None if known["next_ms"] is None else _time(known["next_ms"])
        row |= {key: known[key] for key in ("src_uri", "dest_uri") if known[key]}
    elif is_silent:
        row["reason"] = f"node {one.node} does not answer"
    elif one.paused:
        row["reason"] = "it was paused, until it is resumed"
    elif not one.node:
        row["reason"] = "it waits for a node that can run it"
    else:
        row["reason"] = f"node {one.node} is about to run it"
    return row


def _first(uris: Json) -> Json:
    return uris[0] if isinstance(uris, list) and uris else uris


def _time(wall_ms: int) -> str:
    """Return a time as RabbitMQ's management plugin prints it: the hour has no leading zero."""
    at = time.localtime(wall_ms / 1000)
    return f"{at.tm_year}-{at.tm_mon:02}-{at.tm_mday:02} {at.tm_hour}:{at.tm_min:02}:{at.tm_sec:02}"


@COMMANDS.add(RUNNING)
async def shovel_status(control: Control) -> Any:
    return await shovel_rows(control)


# -- Changes -------------------------------------------------------------------------------------------------------


def _key(control: Control, vhost: str, name: str) -> WorkKey:
    key = WorkKey(SHOVEL, vhost, name)
    if key not in control.node.metadata.assignments:
        where = f"target node '{control.name}' and / or virtual host '{vhost}'"
        raise Refused(UNAVAILABLE, f"Shovel with the given name was not found on the {where}")
    return key


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT)
async def delete_shovel(control: Control, vhost: str, name: str) -> None:
    await control.change(c.ClearParameter(*_key(control, vhost, name)))


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT)
async def halt_shovel(control: Control, vhost: str, name: str) -> None:
    """Stops the worker of this node, and notes in the metadata how many messages it has moved."""
    await control.server.node.shovels.halt(WorkKey(SHOVEL, vhost, name))


async def _halt(control: Control, key: WorkKey) -> None:
    """Have the node that runs a shovel note how far it is, if it answers."""
    try:
        await control.at(
            control.node.metadata.assignments[key].node, "halt_shovel", {"vhost": key.vhost, "name": key.name}
        )
    except (NoAnswer, Refused):
        return  # Then the next worker goes on with the last report.


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT)
async def restart_shovel(control: Control, vhost: str, name: str) -> None:
    key = _key(control, vhost, name)
    if control.node.metadata.assignments[key].paused:
        raise Refused(UNAVAILABLE, f"Shovel '{name}' in vhost '{vhost}' is paused. See: leveretctl resume_shovel")
    await _halt(control, key)
    await control.change(RestartWork(*key))


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, paused=FLAG)
async def pause_shovel(control: Control, vhost: str, name: str, paused: bool) -> None:
    key = _key(control, vhost, name)
    if paused:
        await _halt(control, key)
    await control.change(PauseWork(*key, paused))


# -- Moving messages once ------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, vhost=TEXT, queue=TEXT, to=TEXT, uri=TEXT.or_none(), count=NUMBER.or_none())
async def move_messages(
    control: Control, vhost: str, queue: str, to: str, uri: str | None, count: int | None
) -> dict[str, Any]:
    """Moves messages of a queue to another one, here or at another broker, with a shovel that ends itself."""
    from urllib.parse import quote

    if vhost not in control.node.metadata.vhosts:
        raise Refused(DATA_ERROR, f"Virtual host '{vhost}' does not exist")
    if (vhost, queue) not in control.node.metadata.queues:
        raise Refused(UNAVAILABLE, f"Queue '{queue}' does not exist in vhost '{vhost}'")
    here = f"amqp:///{quote(vhost, safe='')}"
    if uri is None and queue == to:
        raise Refused(USAGE, "a queue cannot be moved to itself")
    name = f"Move from {queue}"
    key = WorkKey(SHOVEL, vhost, name)
    value: dict[str, Json] = {
        "src-uri": here, "src-queue": queue, "src-predeclared": True, "dest-uri": uri or here, "dest-queue": to,
        "dest-predeclared": uri is None, "ack-mode": "on-confirm",
        "src-delete-after": "queue-length" if count is None else count,
    }  # fmt: skip
    faults = faults_of(name, value)
    if faults:
        raise Refused(DATA_ERROR, "\n".join(faults))
    if key in control.node.metadata.assignments:
        raise Refused(UNAVAILABLE, f"shovel '{name}' in vhost '{vhost}' is still moving messages")
    await control.change(c.SetParameter(*key, value))
    return await _moved(control, key)


async def _moved(control: Control, key: WorkKey) -> dict[str, Any]:
    """Wait for a shovel that ends itself, and tell how far it is. If it fails, it is removed. Raises Refused."""
    loop = asyncio.get_running_loop()
    until = loop.time() + MOVE_S_MAX
    last: dict[str, Any] = {"forwarded": 0}
    while key in control.node.metadata.assignments and loop.time() < until:
        await asyncio.sleep(POLL_S)
        rows = [one for one in await shovel_rows(control) if (one["vhost"], one["name"]) == (key.vhost, key.name)]
        if not rows:
            break
        last = rows[0]
        if last["remaining"] is not None:
            total = last["forwarded"] + last["remaining"]
            control.progress = f"{last['forwarded']} of {total} messages were moved"
        if last["state"] == "terminated":
            await control.change(c.ClearParameter(*key))
            raise Refused(UNAVAILABLE, f"{last['reason']}. {last['forwarded']} messages were moved")
    return {"forwarded": await _forwarded(control, key, last["forwarded"])}


async def _forwarded(control: Control, key: WorkKey, known: int) -> int:
    """Return how many messages a shovel that has ended moved, of which its last node knows."""
    loop = asyncio.get_running_loop()
    until = loop.time() + ENDED_S
    while loop.time() < until:
        for member in control.node.cluster.members():
            try:
                ended = (await control.at(member.name, "local_shovels", {}))["ended"] if member.running else []
            except (NoAnswer, Refused):
                continue
            found = [forwarded for vhost, name, forwarded in ended if (vhost, name) == (key.vhost, key.name)]
            if found:
                return max(known, int(found[-1]))
        await asyncio.sleep(POLL_S)
    return known
