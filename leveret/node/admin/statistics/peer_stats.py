"""Control commands by which nodes ask each other for the figures of the HTTP API and the metrics.

Every one of them answers for its own node, in slices. The caller (`leveret.management.api`) puts the answers together.
Answers that can be long come in parts: a caller asks for so many rows at most at once, because an answer is encoded and
decoded without a pause.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from leveret.base.exit_codes import USAGE
from leveret.broker.mirrors import status
from leveret.broker.queue.local_queue import LocalQueue
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.node.admin.common.command import NUMBER, NUMBERS, OBJECT, RUNNING, TEXT, TEXTS, Commands, Refused
from leveret.node.admin.statistics import node_rows
from leveret.node.admin.statistics.client_rows import channel_row, connection_row, consumer_row
from leveret.node.stats import queue_rows
from leveret.node.stats import stats_history as s
from leveret.node.stats.memory import breakdown
from leveret.node.stats.queue_rows import Windows
from leveret.node.stats.stats_history import ObjectHistory
from leveret.node.system.time_slices import TimeSlices

if TYPE_CHECKING:
    from leveret.broker.client_connection import ClientConnection
    from leveret.broker.mirrors.manager import Mirror
    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()

ROWS_MAX: Final = 50  # Rows that may be asked for at once: encoding them takes a millisecond.
FIGURES_MAX: Final = 2_000  # The same, where a row is a number.
MIRRORS_AT_ONCE: Final = 50


def _check_count(asked: list[Any], most: int) -> None:
    if len(asked) > most:
        raise Refused(USAGE, f"at most {most} at once")


# -- Queues --------------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, queues=NUMBERS, past=OBJECT.or_none())
async def local_queue_rows(control: Control, queues: list[int], past: dict[str, Any] | None) -> Any:
    """Returns the full rows of those of these queues whose master is here."""
    _check_count(queues, ROWS_MAX)
    control.node.samples.start()
    windows, slices, found = Windows.asked(control, past), TimeSlices(), {}
    for number in queues:
        queue = control.node.broker.queues_by_id.get(number)
        if isinstance(queue, LocalQueue):
            found[str(number)] = queue_rows.queue_row(control, queue, windows)
        await slices.rest()
    return found


@COMMANDS.add(RUNNING, queues=NUMBERS)
async def local_queue_totals(control: Control, queues: list[int]) -> Any:
    """Returns how many messages those queues have: ready and unacknowledged."""
    _check_count(queues, FIGURES_MAX)
    slices, found = TimeSlices(), {}
    for number in queues:
        queue = control.node.broker.queues_by_id.get(number)
        if isinstance(queue, LocalQueue):
            found[str(number)] = [queue.ready_count, queue.unacked_count]
        if slices.is_over():
            await slices.rest()
    return found


@COMMANDS.add(RUNNING, path=TEXTS, after=NUMBER)
async def local_queue_figures(control: Control, path: list[str], after: int) -> Any:
    """Returns one field of all queues whose master is here, by their numbers, from `after` on; and where to go on."""
    if not path:
        raise Refused(USAGE, "a column has a name")
    control.node.samples.start()
    slices = TimeSlices()
    found: dict[str, Any] = {}
    last = after
    there = list(control.node.broker.queues_by_id)
    for number in islice(there, after, None):
        last += 1
        queue = control.node.broker.queues_by_id.get(number)
        if isinstance(queue, LocalQueue) and not is_hidden_queue(queue.spec.name):
            found[str(number)] = queue_rows.queue_figure(control, queue, path)
            if len(found) >= FIGURES_MAX:
                break
        if slices.is_over():
            await slices.rest()
    return {"figures": found, "next": last if last < len(there) else None}


# -- Connections, channels, consumers ------------------------------------------------------------------------------


def _connections(control: Control, numbers: list[int]) -> Iterator[ClientConnection]:
    """Yields those connections that are open."""
    wanted = set(numbers)
    return (one for one in list(control.node.broker.connections) if one.number in wanted)


@COMMANDS.add(RUNNING, after=NUMBER, protocol=TEXT.or_none())
async def local_client_names(control: Control, after: int, protocol: str | None) -> Any:
    """Returns the connections of this node, for filters: number, name, user, vhost, channels' numbers. `protocol`: only
    those whose protocol contains it, in lower case."""
    slices, found = TimeSlices(), []
    there = [one for one in control.node.broker.connections if protocol is None or protocol in one.protocol.lower()]
    for one in islice(there, after, after + FIGURES_MAX):
        vhost = "" if one.vhost is None else one.vhost.name
        found.append([one.number, str(one.peer), one.user, vhost, list(one.channels)[:65_535]])
        if slices.is_over():
            await slices.rest()
    return {"clients": found, "next": after + FIGURES_MAX if after + FIGURES_MAX < len(there) else None}


@COMMANDS.add(RUNNING, connections=NUMBERS, past=OBJECT.or_none())
async def local_connection_rows(control: Control, connections: list[int], past: dict[str, Any] | None) -> Any:
    _check_count(connections, ROWS_MAX)
    control.node.samples.start()
    windows, slices, found = Windows.asked(control, past), TimeSlices(), {}
    for connection in _connections(control, connections):
        found[str(connection.number)] = connection_row(control, connection, windows)
        await slices.rest()
    return found


@COMMANDS.add(RUNNING, channels=TEXTS, past=OBJECT.or_none())
async def local_channel_rows(control: Control, channels: list[str], past: dict[str, Any] | None) -> Any:
    """Returns rows of channels, which are named by the number of the connection, a dot, and that of the channel."""
    _check_count(channels, ROWS_MAX)
    control.node.samples.start()
    windows, slices, found = Windows.asked(control, past), TimeSlices(), {}
    wanted = _pairs(channels)
    for connection in _connections(control, [number for number, _ in wanted]):
        for number in [channel for of, channel in wanted if of == connection.number]:
            channel = connection.channels.get(number)
            if channel is not None:
                found[f"{connection.number}.{number}"] = channel_row(control, channel, windows)
            await slices.rest()
    return found


def _pairs(names: list[str]) -> list[tuple[int, int]]:
    try:
        return [(int(one.partition(".")[0]), int(one.partition(".")[2])) for one in names]
    except ValueError:
        raise Refused(USAGE, "a channel is named by two numbers") from None


@COMMANDS.add(RUNNING, vhosts=TEXTS.or_none(), queue=TEXT.or_none(), channel=TEXT.or_none(), after=NUMBER)
async def local_consumer_rows(
    control: Control, vhosts: list[str] | None, queue: str | None, channel: str | None, after: int
) -> Any:
    """Returns the consumers of this node's connections: of some vhosts, of a queue, or of a channel."""
    slices, found, at = TimeSlices(), [], 0
    following: int | None = None
    for at, connection in enumerate(islice(list(control.node.broker.connections), after, None), after + 1):
        vhost = "" if connection.vhost is None else connection.vhost.name
        if vhosts is None or vhost in vhosts:
            for number, one in connection.sessions():
                for consumer in list(one.consumers.values()):
                    if queue in (None, consumer.queue.spec.name) and channel in (None, one.who):
                        found.append(consumer_row(control, connection, number, consumer))
                        if slices.is_over():
                            await slices.rest()
        if len(found) >= ROWS_MAX:
            following = at
            break
        if slices.is_over():
            await slices.rest()
    return {"rows": found, "next": following}


# -- Exchanges, vhosts, the node -----------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, vhost=TEXT, names=TEXTS, past=OBJECT.or_none())
async def local_exchange_stats(control: Control, vhost: str, names: list[str], past: dict[str, Any] | None) -> Any:
    """Returns the publishes to these exchanges that came through this node."""
    _check_count(names, FIGURES_MAX)
    samples = control.node.samples
    samples.start()
    windows, slices, found = Windows.asked(control, past), TimeSlices(), {}
    there = control.node.broker.vhosts.get(vhost)
    for name in names if there is not None else ():
        counters = there.exchange_counters.get(name)  # type: ignore[union-attr]
        if counters is not None and counters.published_in:
            history = ObjectHistory(samples, s.OF_EXCHANGE, samples.exchanges.get((vhost, name)))
            values = {"publish_in": counters.published_in, "publish_out": counters.published_out}
            found[name] = queue_rows.message_stats(values, history, s.EXCHANGE, windows.messages)
        if slices.is_over():
            await slices.rest()
    return found


@COMMANDS.add(RUNNING, vhosts=TEXTS, past=OBJECT.or_none())
async def local_vhost_stats(control: Control, vhosts: list[str], past: dict[str, Any] | None) -> Any:
    """Returns the messages of vhosts, and the bytes of their clients, as far as they are counted here."""
    _check_count(vhosts, FIGURES_MAX)
    samples = control.node.samples
    samples.start()
    windows, slices, found = Windows.asked(control, past), TimeSlices(), {}
    for name in vhosts:
        sums = samples.by_vhost.get(name)
        if sums is not None:
            values = dict(zip(s.QUEUE, sums, strict=True))
            history = ObjectHistory(samples, s.OF_QUEUE, samples.vhosts.get(name))
            found[name] = queue_rows.lengths(values, history, windows.lengths)
            found[name]["message_stats"] = queue_rows.message_stats(
                values, history, queue_rows.OF_ALL, windows.messages
            )
        octets = samples.octets_by_vhost.get(name)
        if octets is not None:
            history = ObjectHistory(samples, s.OF_CONNECTION, samples.vhost_octets.get(name))
            figures = dict(zip(s.CONNECTION, octets, strict=True))
            found.setdefault(name, {})["octets"] = queue_rows.message_stats(
                figures, history, s.CONNECTION, windows.data
            )
        if slices.is_over():
            await slices.rest()
    return found


@COMMANDS.add(RUNNING, past=OBJECT.or_none())
async def local_overview(control: Control, past: dict[str, Any] | None) -> Any:
    control.node.samples.start()
    row = node_rows.overview(control, Windows.asked(control, past))
    slices, channels, consumers = TimeSlices(), 0, 0
    for connection in list(control.node.broker.connections):
        channels += len(connection.channels)
        consumers += sum(len(one.session.consumers) for one in connection.channels.values())
        if slices.is_over():
            await slices.rest()
    return {**row, "channels": channels, "consumers": consumers, "mirrored_queues": await mirror_figures(control)}


@COMMANDS.add(RUNNING, past=OBJECT.or_none())
async def local_node_row(control: Control, past: dict[str, Any] | None) -> Any:
    control.node.samples.start()
    row = node_rows.node_row(control, Windows.asked(control, past))
    return {**row, "mirrored_queues": await mirror_figures(control)}


@COMMANDS.add(RUNNING)
async def local_node_memory(control: Control) -> Any:
    """Returns the memory breakdown of the process, by RabbitMQ's categories."""
    parts, used = await breakdown(control.node)
    known = used - parts["other_system"]
    return {**parts, "strategy": "rss", "total": {"erlang": known, "rss": used, "allocated": used}}


async def mirror_figures(control: Control) -> dict[str, int | float]:
    """Returns the sums over all copies of this node; see `leveret.broker.mirrors.status`."""
    broker = control.node.broker
    counts, now_ms, slices = broker.mirrors.journal.counts, int(time.time() * 1000), TimeSlices()
    store = broker.mirrors.store
    sums = status.figures((), store, counts, now_ms)
    for some in _chunks(list(status.mirrored(broker))):
        part = status.figures(some, store, counts, now_ms)
        for name, value in part.items():
            if name.endswith("_max"):
                sums[name] = max(sums[name], value)
            elif name not in counts.__slots__:
                sums[name] += value
        await slices.rest()
    down = 0
    for queue in list(broker.queues_by_id.values()):
        down += not queue.is_local and queue.spec.view is not None and queue.client_end is None
        if slices.is_over():
            await slices.rest()
    return {**sums, "queues_down": down}


def _chunks(mirrors: list[Mirror]) -> Iterable[list[Mirror]]:
    return (mirrors[at : at + MIRRORS_AT_ONCE] for at in range(0, len(mirrors), MIRRORS_AT_ONCE))
