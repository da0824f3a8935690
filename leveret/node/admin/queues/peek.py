"""Control commands that look into a queue: a message without taking it, and how the copies of a quorum queue are.

A message is looked at where it waits. If its contents are in the log only, they are read from there, and forgotten
again: whoever looks at the end of a long queue must not bring it into memory.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import hashlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from leveret.base.exit_codes import UNAVAILABLE
from leveret.broker.delivery.batch import Gap
from leveret.broker.queue.queue import Queue
from leveret.metadata.definitions import from_table
from leveret.metadata.rules.ha_policy import is_quorum, is_stream
from leveret.node.admin.common.command import NUMBER, RUNNING, TEXT, Commands, Refused
from leveret.node.admin.queues.lists import running_nodes, shown_table
from leveret.node.admin.queues.queues import at_home, queue_here, queue_spec
from leveret.protocol.frames import split
from leveret.protocol.properties import Properties, decode
from leveret.storage.format.queue_block import REDELIVERED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.broker.delivery.batch import Batch, Span
    from leveret.metadata.model.records import QueueSpec
    from leveret.node.admin.dispatch import Control
    from leveret.storage.format.queue_block import Run

COMMANDS = Commands()

PAYLOAD_BYTES_SHOWN: Final = 64
PEEK_MAX: Final = 50
PEEK_BYTES_MAX: Final = 64 << 10
NO_STREAM: Final = "Cannot peek into a stream: consume from it, which takes nothing away"
NOT_THERE: Final = "Target queue does not have a message at that position"


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, position=NUMBER)
async def peek(control: Control, vhost: str, name: str, position: int) -> Any:
    """The message at that place among those that wait; the first is 1."""
    spec = queue_spec(control, vhost, name, UNAVAILABLE, f"Target queue was not found in virtual host '{vhost}'")
    return await at_home(control, spec, "local_peek", {"vhost": vhost, "name": name, "position": position})


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, position=NUMBER)
async def local_peek(control: Control, vhost: str, name: str, position: int) -> Any:
    spec = queue_spec(control, vhost, name, UNAVAILABLE, f"Target queue was not found in virtual host '{vhost}'")
    queue = queue_here(control, spec)
    if not isinstance(queue, Queue):
        raise Refused(UNAVAILABLE, NO_STREAM)
    if not 1 <= position <= queue.ready_count:
        raise Refused(UNAVAILABLE, NOT_THERE)
    entry, place = _find(queue.ready, position - 1)
    if isinstance(entry, Gap):
        found = await _read(control, queue, entry, place)
        if not found:
            raise Refused(UNAVAILABLE, NOT_THERE)
        return _described(found[0], 0)
    return _described(entry.batch, entry.lo + place)


def _find(ready: Iterable[Span | Gap], place: int) -> tuple[Span | Gap, int]:
    for entry in ready:
        if place < entry.count:
            return entry, place
        place -= entry.count
    raise Refused(UNAVAILABLE, NOT_THERE)


async def _read(control: Control, queue: Queue, gap: Gap, place: int, count: int = 1) -> list[Run]:
    """So many messages of a gap from a place on, or those that it has, each by itself. The log goes through a piece at
    a time."""
    loop = asyncio.get_running_loop()
    found: list[Run] = []
    first = gap.first
    while True:
        answer: asyncio.Future[tuple[list[Run] | None, int]] = loop.create_future()

        def then(
            runs: list[Run] | None, following: int, answer: asyncio.Future[tuple[list[Run] | None, int]] = answer
        ) -> None:
            if not answer.done():
                answer.set_result((runs, following))

        queue.host.read_range(queue.spec.id, first, gap.last, 1 << 20, then)
        runs, following = await answer
        if runs is None:
            raise Refused(UNAVAILABLE, "the message cannot be read; the log of the node says why")
        for run in runs:
            wanted = [at for at in range(len(run.contents)) if gap.ranges is None or run.first + at in gap.ranges]
            here = wanted[place : place + count - len(found)]
            found += (run.cut(at, at + 1) for at in here)
            place = max(place - len(wanted), 0)
            if len(found) == count:
                return found
        if following > gap.last:
            return found  # Fewer than asked for, if some were delivered meanwhile.
        first = following


def _contents(run: Batch | Run, at: int) -> tuple[Properties, bytes, str, str]:
    """Returns properties, body, exchange and routing key."""
    header, body = split(run.contents[at])
    exchange, routing_key = (name.decode("utf-8", "replace") for name in exchange_and_key(run.keys[at]))
    return decode(header), bytes(body), exchange, routing_key


def exchange_and_key(key: bytes) -> tuple[bytes, bytes]:
    middle = 1 + key[0]
    return key[1:middle], key[middle + 1 :]


def _described(run: Run, at: int) -> dict[str, Any]:
    properties, body, exchange, routing_key = _contents(run, at)
    shown = {one.name: getattr(properties, one.name) for one in fields(Properties) if one.name != "headers"}
    told: dict[str, Any] = {name: value for name, value in shown.items() if value is not None}
    told |= {"routing_keys": [routing_key], "exchange": exchange, "redelivered": bool(run.kinds[at] & REDELIVERED)}
    told[f"payload (max {PAYLOAD_BYTES_SHOWN} bytes)"] = body[:PAYLOAD_BYTES_SHOWN].decode("utf-8", "replace")
    told["payload_bytes"] = len(body)
    for name, _, value in shown_table(properties.headers or {}):
        told[f"header.{name}"] = value
    return told


# -- Several at once -----------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, position=NUMBER, count=NUMBER, bytes_max=NUMBER)
async def peek_many(control: Control, vhost: str, name: str, position: int, count: int, bytes_max: int) -> Any:
    """Returns the messages from that position on, each with so much of its body at most, in the form of the HTTP
    API."""
    spec = queue_spec(control, vhost, name, UNAVAILABLE, "not_found")
    asked = {"vhost": vhost, "name": name, "position": position, "count": count, "bytes_max": bytes_max}
    return await at_home(control, spec, "local_peek_many", asked)


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, position=NUMBER, count=NUMBER, bytes_max=NUMBER)
async def local_peek_many(control: Control, vhost: str, name: str, position: int, count: int, bytes_max: int) -> Any:
    if not (position >= 1 and 1 <= count <= PEEK_MAX and 0 <= bytes_max <= PEEK_BYTES_MAX):
        raise Refused(UNAVAILABLE, "position, count or bytes_max is out of bounds")
    queue = queue_here(control, queue_spec(control, vhost, name, UNAVAILABLE, "not_found"))
    if not isinstance(queue, Queue):
        raise Refused(UNAVAILABLE, NO_STREAM)
    ready = queue.ready_count
    found: list[dict[str, Any]] = []
    last = min(position + count - 1, ready)
    while position + len(found) <= last:
        # Looked up each time: the queue may have changed while a part of it was read from the log.
        if position + len(found) > queue.ready_count:
            break
        entry, place = _find(queue.ready, position - 1 + len(found))
        wanted = last - position - len(found) + 1
        if isinstance(entry, Gap):
            runs = [(run, 0) for run in await _read(control, queue, entry, place, wanted)]
        else:
            runs = [(entry.batch, entry.lo + at) for at in range(place, min(place + wanted, entry.count))]
        if not runs:
            break
        following = position + len(found)
        found += (shown_message(run, at, following + more, bytes_max) for more, (run, at) in enumerate(runs))
    return {"ready": ready, "messages": found}


def fingerprint(run: Batch | Run, at: int) -> str:
    """Returns a hash of a message's exchange, routing key and contents."""
    digest = hashlib.blake2b(run.keys[at], digest_size=12)
    digest.update(run.contents[at])
    return digest.hexdigest()


def shown_message(run: Batch | Run, at: int, position: int, bytes_max: int) -> dict[str, Any]:
    """Returns a message in the form of the HTTP API, with so much of its body at most."""
    properties, body, exchange, routing_key = _contents(run, at)
    shown = {one.name: getattr(properties, one.name) for one in fields(Properties) if one.name != "headers"}
    told: dict[str, Any] = {name: value for name, value in shown.items() if value is not None}
    if properties.headers:
        told["headers"] = from_table(properties.headers)
    part = body[:bytes_max]
    try:
        # A body that is cut in the middle of a character is still shown as text.
        payload, encoding = codecs.getincrementaldecoder("utf-8")().decode(part, len(part) == len(body)), "string"
    except UnicodeDecodeError:
        payload, encoding = base64.b64encode(part).decode("ascii"), "base64"
    return {
        "position": position,
        "number": run.first + at,
        "id": fingerprint(run, at),
        "exchange": exchange,
        "routing_key": routing_key,
        "redelivered": bool(run.kinds[at] & REDELIVERED),
        "properties": told,
        "payload": payload,
        "payload_encoding": encoding,
        "payload_bytes": len(body),
        "truncated": len(part) < len(body),
    }


# -- Quorum queues -------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT)
async def quorum_status(control: Control, vhost: str, name: str) -> Any:
    """Returns the copies of a quorum queue in RabbitMQ's words for Raft members: here they are the members of a
    ring."""
    spec = queue_spec(control, vhost, name, UNAVAILABLE, "not_found")
    if not is_quorum(spec.arguments):
        raise Refused(UNAVAILABLE, "Cannot get quorum status of a classic queue")
    running = running_nodes(control)
    return [
        {
            "Node Name": node,
            "Raft State": ("leader" if leads else "follower") if node in running else "noproc",
            "Membership": "voter" if in_sync else "promotable",
            "Term": epoch,
        }
        for node, leads, in_sync, epoch in _copies(spec)
    ]


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT)
async def stream_status(control: Control, vhost: str, name: str) -> Any:
    spec = queue_spec(control, vhost, name, UNAVAILABLE, "not_found")
    if not is_stream(spec.arguments):
        raise Refused(UNAVAILABLE, "Cannot get stream status of a queue that is none")
    return [
        {"role": "writer" if leads else "replica", "node": node, "synchronised": in_sync, "epoch": epoch}
        for node, leads, in_sync, epoch in _copies(spec)
    ]


def _copies(spec: QueueSpec) -> list[tuple[str, bool, bool, int]]:
    """Returns the nodes with a copy: the name, whether it is the master, whether it is in sync, and since which
    epoch."""
    view = spec.view
    if view is None:
        return [(spec.node, True, True, 1)]
    return [(node, node == spec.node, view.disk_of(node) is not None, view.epoch) for node in view.order()]
