"""Which messages of which queues: options and what the broker tells of its queues become numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from leveret.data.client import DataClient, QueueInfo
from pyspark_leveret.connect import LeveretError, explained
from pyspark_leveret.options import EARLIEST, LATEST, Positions, SourceOptions
from pyspark_leveret.source.reading import log

PIECE_BYTES: Final = 64 << 20  # About what a task reads in half a second; each costs Spark some hundredths besides.
ALONE_BYTES: Final = 16 << 20  # Not worth a second task.


def find_queues(options: SourceOptions, client: DataClient) -> dict[str, QueueInfo]:
    """The subscribed queues by name. Those subscribed by name are there; by pattern there may be none."""
    if options.pattern is not None:
        with explained(options.access, f"look for queues like '{options.pattern}'"):
            found = client.queues(pattern=options.pattern)
    else:
        with explained(options.access, f"subscribe to {_listed(options.queues)}"):
            found = client.queues(options.queues)
    by_name = {info.name: info for info in found}
    missing = [name for name in options.queues if name not in by_name]
    if missing:
        raise LeveretError(
            f"cannot subscribe to {_listed(missing)}: not found in vhost '{options.access.vhost}', "
            f"or user '{options.access.user}' may not read it"
        )
    return by_name


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ("queue " if len(names) == 1 else "queues ") + ", ".join(f"'{name}'" for name in names)


def position(
    options: SourceOptions, positions: Positions, info: QueueInfo, client: DataClient, default: int | None = None
) -> int:
    """The number that a position means for a queue: of the first message from there on."""
    time_ms = positions.times_ms.get(info.name)
    if time_ms is not None:
        with explained(options.access, f"look for a time in queue '{info.name}'"):
            return client.number_at(info.name, time_ms)
    said = positions.by_queue.get(info.name, positions.everywhere if default is None else default)
    if said == EARLIEST:
        return info.first
    if said == LATEST:
        return info.next
    return checked(options, info, said)


def checked(options: SourceOptions, info: QueueInfo, number: int) -> int:
    """A number to begin or end with, brought to where the queue has messages; or an error, if that loses some."""
    if number > info.next:
        lose(
            options,
            f"offset {number} of queue '{info.name}' is beyond its end, {info.next}: was it deleted and made anew?",
        )
        return info.next
    if number < info.first:
        if info.type == "stream":  # In other queues they were consumed, which is what queues are for.
            lose(options, f"offset {number} of stream '{info.name}' is no longer there; it begins with {info.first}")
        return info.first
    return number


def lose(options: SourceOptions, text: str) -> None:
    if options.fail_on_data_loss:
        raise LeveretError(f"{text} (option 'failOnDataLoss' set to false goes on without the missing messages)")
    log.warning("%s", text)


def pieces_for(info: QueueInfo, count: int) -> int:
    """How many tasks so many of a queue's messages are worth. A power of two, as numbers of cores mostly are: with one
    task more, that would have the machine to itself at the end."""
    size = count * message_bytes(info)
    return 1 if size <= ALONE_BYTES else 1 << max(1, round(math.log2(size / PIECE_BYTES)))


def message_bytes(info: QueueInfo) -> float:
    return max(info.bytes / info.messages, 1.0) if info.messages else 1.0


def shares(wanted: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """As much of what each wants as fits into the limit, the same for all that want more than that."""
    if limit is None or sum(wanted.values()) <= limit:
        return dict(wanted)
    given: dict[str, int] = {}
    todo = sorted(wanted, key=lambda name: (wanted[name], name))
    for index, name in enumerate(todo):
        given[name] = min(wanted[name], limit // (len(todo) - index))
        limit -= given[name]
    return given
