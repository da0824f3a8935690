"""The history of a node's counters: a sample every few seconds, from which rates and charts are made.

The broker only counts (`leveret.base.counters`). Every five seconds, or at `collect_statistics_interval`, the sampler
goes through all queues, channels, connections and exchanges, in slices of a millisecond, and stores the counters of
those that have changed since the last time. A sample is a packed row with the number of its interval in front: a
queue's takes some 150 bytes, and one that does not change takes none.

Everything has a limit. An object has every sample of the last ten minutes (with intervals of five seconds), and fewer
of those before, for charts of an hour, eight hours and a day: one of each step of `STEPS`. That makes at most `KEPT`
samples. All objects together have about `SAMPLES_MAX`: the more of them have a history, the shorter each one's may
grow, down to the two samples that a rate takes. The node as a whole has a list for each step.

Sums over a vhost, over a type of queue and over the node are kept by differences: a new row adds to the sums what it
has more than the row before. Queues and sessions that ended since the last sample (`Broker.ended`) are added for the
last time. So sums are as old as the last sample, like those of RabbitMQ; single queues and channels are shown with
their present counters.

Intervals are counted by the time of day, so that samples of several nodes have the same times and can be added up. If
that clock is set back, no sample is taken until it is where it was.
"""

from __future__ import annotations

import asyncio
import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import pairwise
from operator import attrgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.base.counters import WORDS
from leveret.base.shared_values import shared
from leveret.broker.queue.local_queue import LocalQueue
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.node.system.time_slices import TimeSlices

if TYPE_CHECKING:
    from leveret.broker.client_connection import ClientConnection
    from leveret.broker.session.session import Session
    from leveret.metadata.model.records import QueueSpec
    from leveret.node.node import Node

logger = logging.getLogger("leveret")

STEPS: Final = ((1, 122), (12, 62), (120, 50), (360, 49))  # Steps in intervals, and how many samples of each are kept.
THINNED: Final = tuple((fine * kept, coarse) for (fine, kept), (coarse, _) in pairwise(STEPS))  # By age: the step.
AGE_MAX: Final = STEPS[-1][0] * STEPS[-1][1]
KEPT: Final = sum(kept for _, kept in STEPS)
SAMPLES_MAX: Final = 200_000
IDLE_EVERY: Final = 12  # Histories of queues that nobody uses are looked through in one interval of so many.

MESSAGES: Final = tuple(WORDS.values())
QUEUE: Final = (*MESSAGES, "messages_ready", "messages_unacknowledged")
CHANNEL: Final = (*MESSAGES, "publish_confirm")  # What was published where confirms were asked for.
EXCHANGE: Final = ("publish_in", "publish_out")
CONNECTION: Final = ("recv_oct", "send_oct")
CHURN: Final = (
    "connection_created", "connection_closed", "channel_created", "channel_closed", "queue_declared", "queue_created",
    "queue_deleted",
)  # fmt: skip
NODE: Final = ("mem_used", "fd_used", "sockets_used", "disk_free", "io_write_bytes")
WHOLE: Final = (*QUEUE, *CHURN, *NODE)

Rows = list[bytes]
_TRAFFIC: Final = attrgetter(*WORDS)
_CHURN: Final = attrgetter(
    "connections_opened", "connections_closed", "channels_opened", "channels_closed", "queues_declared",
    "queues_created", "queues_deleted",
)  # fmt: skip
_TICK: Final = Struct(">Q")


class Form(NamedTuple):
    """The columns in the rows of one kind of object."""

    names: tuple[str, ...]
    pack: Callable[..., bytes]
    unpack: Callable[[bytes], tuple[int, ...]]


def _form(names: tuple[str, ...]) -> Form:
    packed = Struct(f">Q{len(names)}q")
    return Form(names, packed.pack, packed.unpack)


OF_QUEUE, OF_CHANNEL, OF_EXCHANGE, OF_CONNECTION, OF_NODE = map(_form, (QUEUE, CHANNEL, EXCHANGE, CONNECTION, WHOLE))


def tick_of(row: bytes) -> int:
    return int.from_bytes(row[:8], "big")


def row_at(rows: Rows, tick: int) -> bytes | None:
    """Returns the row that was current in that interval; None if there is none so old."""
    at = bisect_right(rows, tick, key=tick_of)
    return rows[at - 1] if at else None


def counted(session: Session) -> tuple[int, ...]:
    """Returns the counters of a session. The number of deliveries is taken from its delivery tag, and that of confirmed
    publishes from its confirms."""
    traffic, confirms = session.traffic, session.confirms
    values = [*_TRAFFIC(traffic), 0 if confirms is None else confirms.published]
    values[1] = 0 if confirms is None else confirms.confirmed
    values[4] = session.delivery_tag - traffic.delivered_no_ack - traffic.got - traffic.got_no_ack
    return tuple(values)


def figures_of(queue: LocalQueue) -> tuple[int, ...]:
    return (*_TRAFFIC(queue.totals), queue.ready_count, queue.unacked_count)


class StatsHistory:
    """Takes the samples of one node, and keeps them."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.interval_ms = node.settings.statistics_interval_ms
        self.tick = 0  # The last interval that was sampled.
        self.queues: dict[LocalQueue, Rows] = {}
        self.sessions: dict[Session, Rows] = {}
        self.connections: dict[ClientConnection, Rows] = {}
        self.exchanges: dict[tuple[str, str], Rows] = {}
        self.vhosts: dict[str, Rows] = {}
        self.vhost_octets: dict[str, Rows] = {}
        self.whole: list[Rows] = [[] for _ in STEPS]
        self.by_type: dict[str, list[int]] = {}  # Sums over all queues that ever existed.
        self.by_vhost: dict[str, list[int]] = {}  # Sums over all queues and channels that ever existed: see `_add`.
        self.sums = [0] * len(QUEUE)
        self.published_to_confirm = 0
        self.octets = [0, 0]  # The sums of what clients have sent and were sent.
        self.octets_by_vhost: dict[str, list[int]] = {}
        self._since_ms = -1
        self._histories = 0
        self._kept = KEPT
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # -- Starting and stopping -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begins to sample, unless it has begun: a node without a management port need not."""
        if self._timer is None and self._task is None:
            self.node.broker.collect_ended(True)
            self._begin()

    def stop(self) -> None:
        self.node.broker.collect_ended(False)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self._timer = self._task = None

    def _begin(self) -> None:
        self._timer = None
        self._task = self.node.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self.take(self.node.environment.wall_ms() // self.interval_ms)
        except Exception:  # Statistics are no reason to stop a broker. The log tells why they are missing.
            logger.exception("the counters could not be sampled")
        self._task = None
        left_ms = self.interval_ms - self.node.environment.wall_ms() % self.interval_ms
        self._timer = self.node.loop.call_later(left_ms / 1000, self._begin)

    # -- Sampling ------------------------------------------------------------------------------------------------

    async def take(self, tick: int) -> None:
        """Takes one sample of everything, for an interval."""
        if tick <= self.tick:
            return
        broker = self.node.broker
        since_ms, self._since_ms = self._since_ms, broker.now_ms
        self._kept = max(2, min(KEPT, SAMPLES_MAX // max(1, self._histories)))
        self._histories = 0
        await self._take_queues(tick, since_ms)
        await self._take_connections(tick)
        await self._take_ended()
        await self._take_exchanges(tick)
        for name in [name for name in self.by_vhost if name not in broker.vhosts]:
            del self.by_vhost[name]
            self.vhosts.pop(name, None)
        for name in [name for name in self.octets_by_vhost if name not in broker.vhosts]:
            del self.octets_by_vhost[name]
            self.vhost_octets.pop(name, None)
        for name, sums in self.by_vhost.items():
            self._note(self.vhosts.setdefault(name, []), OF_QUEUE, tick, sums)
        for name, sums in self.octets_by_vhost.items():
            self._note(self.vhost_octets.setdefault(name, []), OF_CONNECTION, tick, sums)
        self._take_whole(tick)
        self.tick = tick

    async def _take_queues(self, tick: int, since_ms: int) -> None:
        slices, known = TimeSlices(), self.queues
        for queue in list(self.node.broker.queues_by_id.values()):
            if isinstance(queue, LocalQueue) and not queue.deleted:
                rows = known.get(queue)
                if rows is None or queue.active_ms >= since_ms:
                    self._take_queue(queue, rows, tick)
                elif len(rows) > 1:
                    self._histories += 1
                    if tick % IDLE_EVERY == 0:
                        self._thin(rows, tick)
            if slices.is_over():
                await slices.rest()

    def _take_queue(self, queue: LocalQueue, rows: Rows | None, tick: int) -> None:
        if rows is None:
            rows = self.queues[queue] = []
        values = figures_of(queue)
        before = OF_QUEUE.unpack(rows[-1])[1:] if rows else (0,) * len(QUEUE)
        if values != before:
            self._add(queue.spec, values, before)
        self._note(rows, OF_QUEUE, tick, values)

    def _add(self, spec: QueueSpec, values: Iterable[int], before: Iterable[int]) -> None:
        """Adds to the sums what a queue has counted since its last sample. In the sums of vhosts and of the node
        publishes are counted by channels instead."""
        if is_hidden_queue(spec.name):
            return
        kind = spec.arguments.get("x-queue-type")
        more = [new - old for new, old in zip(values, before, strict=True)]
        _raise(self.by_type, "classic" if kind is None else str(kind.value), more)
        more[0] = 0
        _raise(self.by_vhost, spec.vhost, more)
        self.sums = [old + new for old, new in zip(self.sums, more, strict=True)]

    async def _take_connections(self, tick: int) -> None:
        slices, broker = TimeSlices(), self.node.broker
        for connection in list(broker.connections):
            rows = self.connections.setdefault(connection, [])
            values = (connection.received_bytes, connection.output.sent_bytes)
            before = OF_CONNECTION.unpack(rows[-1])[1:] if rows else (0, 0)
            more = [new - old for new, old in zip(values, before, strict=True)]
            self.octets = [old + new for old, new in zip(self.octets, more, strict=True)]
            if connection.vhost is not None:
                _raise(self.octets_by_vhost, connection.vhost.name, more)
            self._note(rows, OF_CONNECTION, tick, values)
            if slices.is_over():
                await slices.rest()
        for connection in [one for one in self.connections if one not in broker.connections]:
            del self.connections[connection]
        async for session in slices.each(list(broker.sessions)):
            if not session.is_closed:  # It may have been closed while others were sampled.
                self._take_session(session, tick)

    def _take_session(self, session: Session, tick: int) -> None:
        rows = self.sessions.setdefault(session, [])
        values = counted(session)
        self._add_session(session, values, rows)
        self._note(rows, OF_CHANNEL, tick, values)

    def _add_session(self, session: Session, values: tuple[int, ...], rows: Rows) -> None:
        """Adds to the sums what only sessions count: publishes, confirms, and messages that could not be routed."""
        before = OF_CHANNEL.unpack(rows[-1])[1:] if rows else (0,) * len(CHANNEL)
        self.published_to_confirm += values[-1] - before[-1]
        more = [new - old for new, old in zip(values[:4], before, strict=False)]
        if any(more):
            more += [0] * (len(QUEUE) - 4)
            _raise(self.by_vhost, session.login.vhost.name, more)
            self.sums = [old + new for old, new in zip(self.sums, more, strict=True)]

    async def _take_ended(self) -> None:
        """Adds queues and sessions that ended for the last time. Works in slices: with a vhost, tens of thousands of
        queues may have ended since the last sample."""
        ended = self.node.broker.take_ended()
        async for one in TimeSlices().each(ended):
            if isinstance(one, LocalQueue):
                rows = self.queues.pop(one, [])
                before = OF_QUEUE.unpack(rows[-1])[1:] if rows else (0,) * len(QUEUE)
                values = (*_TRAFFIC(one.totals), 0, 0)
                if values != before:
                    self._add(one.spec, values, before)
                one.reset_totals()  # So that nothing is counted twice.
            else:
                self._add_session(one, counted(one), self.sessions.pop(one, []))

    async def _take_exchanges(self, tick: int) -> None:
        there, slices = set(), TimeSlices()
        for vhost in list(self.node.broker.vhosts.values()):
            async for name, counters in slices.each(list(vhost.exchange_counters.items())):
                there.add((vhost.name, name))
                rows = self.exchanges.setdefault((vhost.name, name), [])
                self._note(rows, OF_EXCHANGE, tick, (counters.published_in, counters.published_out))
        for key in [key for key in self.exchanges if key not in there]:
            del self.exchanges[key]

    def _take_whole(self, tick: int) -> None:
        node = self.node
        broker, alarms = node.broker, node.alarms
        figures = (alarms.memory_used_bytes, open_files(), len(node.clients), alarms.disk_free_bytes)
        values = (*self.sums, *_CHURN(broker.totals), *figures, node.storage.log.appended_bytes)
        row = OF_NODE.pack(tick, *values)
        for rows, (step, kept) in zip(self.whole, STEPS, strict=True):
            if not rows or tick // step > tick_of(rows[-1]) // step:
                rows.append(row)
                del rows[:-kept]

    def _note(self, rows: Rows, form: Form, tick: int, values: Iterable[int]) -> None:
        row = form.pack(tick, *values)
        if not rows:
            rows.append(shared(row))  # Thousands of queues may be made between two samples, all of them unused.
        elif rows[-1][8:] != row[8:]:
            rows.append(row)
        if len(rows) > 1:
            self._histories += 1
            self._thin(rows, tick)

    def _thin(self, rows: Rows, tick: int) -> None:
        """Deletes rows that are too old, except the newest of them, which has the values from which the rest start; and
        of the rows that are old enough for a coarser step, all but the last of each step."""
        if len(rows) > self._kept:
            del rows[: len(rows) - self._kept]
        if tick_of(rows[0]) > tick - THINNED[0][0]:
            return
        old = bisect_right(rows, tick - AGE_MAX, key=tick_of) - 1
        if old > 0:
            del rows[:old]
        for age, step in THINNED:
            at = bisect_right(rows, tick - age, key=tick_of) - 1
            for newer in range(at, max(at - 2 * IDLE_EVERY, 0), -1):  # Those further back were looked at before.
                if tick_of(rows[newer]) // step == tick_of(rows[newer - 1]) // step:
                    del rows[newer - 1]


def _raise(sums: dict[str, list[int]], name: str, more: list[int]) -> None:
    before = sums.get(name)
    sums[name] = more[:] if before is None else [old + new for old, new in zip(before, more, strict=True)]


def open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        return 0  # No Linux.


# -- Rates and charts ----------------------------------------------------------------------------------------------


class Window(NamedTuple):
    """The age of the oldest point of a chart, and the step between its points; in intervals."""

    age: int
    step: int


def window(age_s: int, step_s: int, interval_ms: int) -> Window:
    return Window(max(1, age_s * 1000 // interval_ms), max(1, step_s * 1000 // interval_ms))


class ObjectHistory:
    """The history of one object, which answers rates and charts of its columns."""

    def __init__(self, samples: StatsHistory, form: Form, rows: Rows | None, of_node: bool = False) -> None:
        self.samples = samples
        self.form = form
        self.rows = rows or []
        self.of_node = of_node
        self._rates: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        self._chart: tuple[Window, list[tuple[int, tuple[int, ...]]]] | None = None  # The last one that was asked for.

    def rate(self, name: str) -> float:
        """Returns the rate of a column per second, over the last interval; 0 for an object that is younger."""
        if not self.rows or tick_of(self.rows[-1]) < self.samples.tick:
            return 0.0  # Nothing has changed in it, as in most queues of a long list that is sorted by a rate.
        if self._rates is None:
            tick, nothing = self.samples.tick, (0,) * (1 + len(self.form.names))
            now, before = row_at(self.rows, tick), row_at(self.rows, tick - 1)
            is_known = now is not None and before is not None
            self._rates = (self.form.unpack(now), self.form.unpack(before)) if is_known else (nothing, nothing)  # type: ignore[arg-type]
        at = 1 + self.form.names.index(name)
        return (self._rates[0][at] - self._rates[1][at]) * 1000 / self.samples.interval_ms

    def details(self, names: tuple[str, ...], wanted: Window | None) -> dict[str, Any]:
        """Returns RabbitMQ's `..._details` of the sum of these columns, which is mostly one."""
        shown: dict[str, Any] = {"rate": sum(self.rate(name) for name in names)}
        if wanted is None:
            return shown
        places = [1 + self.form.names.index(name) for name in names]
        found = [
            {"sample": sum(values[place] for place in places), "timestamp": timestamp}
            for timestamp, values in self._points(wanted)
        ]
        shown["samples"] = found
        span_s = (found[0]["timestamp"] - found[-1]["timestamp"]) / 1000
        shown["avg_rate"] = (found[0]["sample"] - found[-1]["sample"]) / span_s if span_s else 0.0
        shown["avg"] = sum(one["sample"] for one in found) / len(found)
        return shown

    def _points(self, wanted: Window) -> list[tuple[int, tuple[int, ...]]]:
        """Returns times and values of all columns at the points of a chart, the newest first."""
        if self._chart is None or self._chart[0] != wanted:
            rows, samples = self.rows, self.samples
            if self.of_node:
                step = next((at for at, (every, kept) in enumerate(STEPS) if every * kept > wanted.age), len(STEPS) - 1)
                rows = samples.whole[step]
            nothing, found = (0,) * (1 + len(self.form.names)), []
            for at in range(samples.tick, samples.tick - wanted.age - 1, -wanted.step):
                row = row_at(rows, at)
                found.append((at * samples.interval_ms, nothing if row is None else self.form.unpack(row)))
            self._chart = wanted, found
        return self._chart[1]
