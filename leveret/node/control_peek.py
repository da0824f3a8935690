"""Control commands that look into a queue: a message without taking it, and how the copies of a quorum queue are.

A message is looked at where it waits. If its contents are in the log only, they are read from there, and forgotten
again: whoever looks at the end of a long queue must not bring it into memory.
"""

from __future__ import annotations

import asyncio
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from leveret.amqp.frames import split
from leveret.amqp.properties import Properties, decode
from leveret.broker.batch import Gap
from leveret.broker.stream import StreamQueue
from leveret.cluster.mirroring import is_quorum, is_stream
from leveret.log.block import REDELIVERED
from leveret.node.control_frame import NUMBER, RUNNING, TEXT, UNAVAILABLE, Commands, Refused
from leveret.node.control_listings import running_nodes, shown_table
from leveret.node.control_queues import at_home, queue_here, queue_spec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from leveret.broker.batch import Span
    from leveret.broker.queue import Queue
    from leveret.cluster.specs import QueueSpec
    from leveret.log.block import Run
    from leveret.node.control import Control

COMMANDS = Commands()

PAYLOAD_BYTES_SHOWN: Final = 64
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
    if isinstance(queue, StreamQueue):
        raise Refused(UNAVAILABLE, "Cannot peek into a stream: consume from it, which takes nothing away")
    if not 1 <= position <= queue.ready_count:
        raise Refused(UNAVAILABLE, NOT_THERE)
    entry, place = _find(queue.ready, position - 1)
    if isinstance(entry, Gap):
        return _described(await _read(control, queue, entry, place), 0)
    return _described(entry.batch, entry.lo + place)


def _find(ready: Iterable[Span | Gap], place: int) -> tuple[Span | Gap, int]:
    for entry in ready:
        if place < entry.count:
            return entry, place
        place -= entry.count
    raise Refused(UNAVAILABLE, NOT_THERE)


async def _read(control: Control, queue: Queue, gap: Gap, place: int) -> Run:
    """The one message of a gap, by itself. The log goes through a piece at a time."""
    loop = asyncio.get_running_loop()
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
            if place < len(wanted):
                return run.cut(wanted[place], wanted[place] + 1)
            place -= len(wanted)
        if following > gap.last:
            raise Refused(UNAVAILABLE, NOT_THERE)  # It went while it was looked for.
        first = following


def _described(run: Run, at: int) -> dict[str, Any]:
    header, body = split(run.contents[at])
    key = run.keys[at]
    middle = 1 + key[0]
    exchange, routing_key = key[1:middle].decode("utf-8", "replace"), key[middle + 1 :].decode("utf-8", "replace")
    properties = decode(header)
    shown = {one.name: getattr(properties, one.name) for one in fields(Properties) if one.name != "headers"}
    told: dict[str, Any] = {name: value for name, value in shown.items() if value is not None}
    told |= {"routing_keys": [routing_key], "exchange": exchange, "redelivered": bool(run.kinds[at] & REDELIVERED)}
    told[f"payload (max {PAYLOAD_BYTES_SHOWN} bytes)"] = body[:PAYLOAD_BYTES_SHOWN].decode("utf-8", "replace")
    told["payload_bytes"] = len(body)
    for name, _, value in shown_table(properties.headers or {}):
        told[f"header.{name}"] = value
    return told


# -- Quorum queues -------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT)
async def quorum_status(control: Control, vhost: str, name: str) -> Any:
    """Who has a copy, in the words of a consensus: here its members are those of a ring."""
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
    """Who has one, whether it leads, whether it has all, and since which epoch."""
    view = spec.view
    if view is None:
        return [(spec.node, True, True, 1)]
    return [(node, node == spec.node, view.disk_of(node) is not None, view.epoch) for node in view.order()]
