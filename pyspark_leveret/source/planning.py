"""Chooses the queues and message numbers to read, from options and what the broker tells of its queues."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from leveret.data.client import NOT_FOUND, DataClient, QueueInfo, Refused
from pyspark_leveret.connect import LeveretError, explained
from pyspark_leveret.options import EARLIEST, LATEST, Positions, SourceOptions
from pyspark_leveret.source.reading import log

PIECE_BYTES: Final = 64 << 20  # About half a second of reading; to start a task costs Spark some hundredths.
ALONE_BYTES: Final = 16 << 20  # Below this, a second task is not worth its start.


def find_queues(options: SourceOptions, client: DataClient, may_miss: bool = False) -> dict[str, QueueInfo]:
    """Returns the subscribed queues by name. A queue subscribed by name must exist, unless it `may_miss`; a pattern may
    match none."""
    if options.pattern is not None:
        with explained(options.access, f"look for queues like '{options.pattern}'"):
            found = client.queues(pattern=options.pattern)
    else:
        with explained(options.access, f"subscribe to {_listed(options.queues)}"):
            found = _existing(client, options.queues) if may_miss else client.queues(options.queues)
    by_name = {info.name: info for info in found}
    missing = [name for name in options.queues if name not in by_name]
    if missing and not may_miss:
        raise LeveretError(
            f"cannot subscribe to {_listed(missing)}: not found in vhost '{options.access.vhost}', "
            f"or user '{options.access.user}' may not read it"
        )
    return by_name


def _existing(client: DataClient, names: Sequence[str]) -> list[QueueInfo]:
    """Returns those queues of these names that exist. The broker refuses a request that names another one."""
    try:
        return client.queues(names)
    except Refused as error:
        if error.status != NOT_FOUND:
            raise
        if len(names) == 1:
            return []
    return [info for name in names for info in _existing(client, [name])]


def without_down(queues: Mapping[str, QueueInfo], is_told: bool = False) -> dict[str, QueueInfo]:
    """Returns the queues whose nodes run. A pattern may match others, of which nothing is known for the moment; they
    are logged, unless that was told before."""
    for info in queues.values():
        if info.is_down and not is_told:
            log.warning("queue '%s' is not read for the moment: node %s does not run", info.name, info.master)
    return {name: info for name, info in queues.items() if not info.is_down}


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ("queue " if len(names) == 1 else "queues ") + ", ".join(f"'{name}'" for name in names)


def position(
    options: SourceOptions, positions: Positions, info: QueueInfo, client: DataClient, default: int | None = None
) -> int:
    """Returns the number of the first message at or after a position in a queue."""
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
    """Returns a start or end number moved into the queue's range. Reports a loss if messages are skipped by that."""
    if number > info.next:
        lose(
            options,
            f"offset {number} of queue '{info.name}' is beyond its end, {info.next}: was it deleted and made anew?",
        )
        return info.next
    if number < info.first:
        if info.type == "stream":  # Messages of other queues were consumed, which is no loss.
            lose(options, f"offset {number} of stream '{info.name}' is no longer there; it begins with {info.first}")
        return info.first
    return number


def lose(options: SourceOptions, text: str) -> None:
    """Raises LeveretError for lost messages, or logs the loss, as option `failOnDataLoss` says."""
    if options.fail_on_data_loss:
        raise LeveretError(f"{text} (option 'failOnDataLoss' set to false goes on without the missing messages)")
    log.warning("%s", text)


def pieces_for(info: QueueInfo, count: int) -> int:
    """Returns the number of tasks for `count` messages of a queue: a power of two, as numbers of cores mostly are. One
    task more would run alone at the end."""
    size = count * message_bytes(info)
    return 1 if size <= ALONE_BYTES else 1 << max(1, round(math.log2(size / PIECE_BYTES)))


def message_bytes(info: QueueInfo) -> float:
    return max(info.bytes / info.messages, 1.0) if info.messages else 1.0


def shares(wanted: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """Shares a limit among queues: small wishes are met in full, all others get the same share."""
    if limit is None or sum(wanted.values()) <= limit:
        return dict(wanted)
    given: dict[str, int] = {}
    todo = sorted(wanted, key=lambda name: (wanted[name], name))
    for index, name in enumerate(todo):
        given[name] = min(wanted[name], limit // (len(todo) - index))
        limit -= given[name]
    return given
