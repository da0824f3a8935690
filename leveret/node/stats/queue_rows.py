"""The fields of a queue in RabbitMQ's HTTP API, as the node with its master knows them.

A row is made in some tens of microseconds, and only for queues that are shown. Counters are present values; their rates
and histories come from `stats_history`.

Sizes of bodies are not counted, since that would cost something for each message: they are measured on the first
messages of each batch, exactly where these are few, and extrapolated where there are many. Consumer capacity is an
estimate, too: the share of the last samples in which no message was ready.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.delivery.batch import Batch, Gap
from leveret.broker.kinds.stream import StreamQueue
from leveret.broker.mirrors import status
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.ttl_and_length import bodies
from leveret.metadata.definitions import from_table
from leveret.metadata.rules.ha_policy import is_quorum, is_stream
from leveret.node.stats import stats_history as s
from leveret.node.stats.stats_history import ObjectHistory, Window, figures_of
from leveret.protocol.frames import HEADER_AT
from leveret.protocol.properties import timestamp

if TYPE_CHECKING:
    from leveret.broker.mirrors.manager import Mirror
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.metadata.model.records import QueueSpec
    from leveret.node.admin.dispatch import Control

MEASURED: Final = 64  # Messages of a batch whose bodies are measured.
ENTRIES: Final = 64  # Batches of a queue whose messages are measured.
ENTRIES_MAX: Final = 1_000  # Entries of a queue that are counted: requeued messages can cut a queue into many more.
QUEUE_BYTES: Final = 2_000  # The approximate size of a queue without messages.
DELIVER_GET: Final = ("deliver", "deliver_no_ack", "get", "get_no_ack")
OF_DELIVERIES: Final = (
    "ack", "deliver", "deliver_get", "deliver_no_ack", "get", "get_empty", "get_no_ack", "redeliver",
)  # fmt: skip
OF_CHANNELS: Final = (*OF_DELIVERIES, "confirm", "drop_unroutable", "publish", "return_unroutable")
OF_ALL: Final = tuple(sorted((*OF_CHANNELS, "disk_reads", "disk_writes")))


class Windows(NamedTuple):
    """The charts that are wanted, by kind."""

    lengths: Window | None = None
    messages: Window | None = None
    data: Window | None = None
    node: Window | None = None

    @classmethod
    def asked(cls, control: Control, given: dict[str, Any] | None) -> Windows:
        """Returns the charts that another node, or a client, has asked for by age and step, in seconds."""
        interval_ms = control.node.samples.interval_ms
        asked = ((name, one) for name, one in (given or {}).items() if name in cls._fields)
        return cls(**{name: s.window(age_s, step_s, interval_ms) for name, (age_s, step_s) in asked})


def is_detail(name: str) -> tuple[str, ...]:
    """Returns the columns whose sum a figure is."""
    return DELIVER_GET if name == "deliver_get" else (name,)


def message_stats(
    values: dict[str, int], past: ObjectHistory, names: Iterable[str], wanted: Window | None
) -> dict[str, Any]:
    """Returns counters and their rates, in RabbitMQ's form."""
    shown: dict[str, Any] = {}
    for name in names:
        columns = is_detail(name)
        shown[name] = sum(values[column] for column in columns)
        shown[f"{name}_details"] = past.details(columns, wanted)
    return shown


def lengths(values: dict[str, int], past: ObjectHistory, wanted: Window | None) -> dict[str, Any]:
    ready, out = values["messages_ready"], values["messages_unacknowledged"]
    return {
        "messages": ready + out,
        "messages_details": past.details(("messages_ready", "messages_unacknowledged"), wanted),
        "messages_ready": ready,
        "messages_ready_details": past.details(("messages_ready",), wanted),
        "messages_unacknowledged": out,
        "messages_unacknowledged_details": past.details(("messages_unacknowledged",), wanted),
    }


# -- Fields that every node knows ----------------------------------------------------------------------------------


def queue_head(control: Control, spec: QueueSpec) -> dict[str, Any]:
    """Returns the fields that come from the metadata alone."""
    policies = control.policies.of_queue(spec.vhost, spec.name, spec.arguments)
    running = {member.name for member in control.node.cluster.members() if member.running}
    kind = spec.arguments.get("x-queue-type")
    row: dict[str, Any] = {
        "name": spec.name,
        "vhost": spec.vhost,
        "durable": spec.durable,
        "auto_delete": spec.auto_delete,
        "exclusive": spec.exclusive,
        "arguments": from_table(spec.arguments),
        "type": "classic" if kind is None else kind.value,
        "node": spec.node,
        "policy": policies.policy,
        "operator_policy": policies.operator_policy,
        "effective_policy_definition": policies.definition,
        "recoverable_slaves": None,
    }
    if spec.view is not None:
        order = spec.view.order()
        in_sync = {name for name, _ in spec.view.in_sync}
        row["recoverable_slaves"] = [name for name in order if name != spec.node]
        row["slave_nodes"] = [name for name in order if name != spec.node and name in running]
        row["synchronised_slave_nodes"] = [name for name in row["slave_nodes"] if name in in_sync]
        row["ring"] = [
            {"node": name, "running": name in running, "in_sync": name in in_sync or name == spec.node}
            for name in order
        ]
    if is_quorum(spec.arguments) or is_stream(spec.arguments):
        members = [spec.node] if spec.view is None else spec.view.order()
        row |= {"leader": spec.node, "members": members, "online": [name for name in members if name in running]}
    return row


def queue_down(control: Control, spec: QueueSpec) -> dict[str, Any]:
    """Returns the row of a queue whose master does not answer."""
    return {**queue_head(control, spec), "state": status.DOWN}


# -- Fields that only the master knows -----------------------------------------------------------------------------


def queue_row(control: Control, queue: LocalQueue, windows: Windows) -> dict[str, Any]:
    samples = control.node.samples
    past = ObjectHistory(samples, s.OF_QUEUE, samples.queues.get(queue))
    values = dict(zip(s.QUEUE, figures_of(queue), strict=True))
    row = queue_head(control, queue.spec)
    row |= lengths(values, past, windows.lengths)
    row |= sizes(control, queue)
    names = [] if not any(values[name] for name in s.MESSAGES[4:11]) else list(OF_DELIVERIES)
    names += ["publish"] if values["publish"] else []
    if names:
        row["message_stats"] = message_stats(values, past, sorted(names), windows.messages)
    share = _capacity(queue, past)
    order = queue.consumer_order if isinstance(queue, Queue) else None
    single = order.active if order is not None and queue.rules.single_active else None
    row |= {
        "backing_queue_status": {
            "mode": "default",
            "len": queue.ready_count,
            "next_seq_id": queue.next_seq,
            "next_deliver_seq_id": queue.delivered_through + 1,
            "avg_ingress_rate": past.rate("publish"),
            "avg_egress_rate": sum(past.rate(name) for name in DELIVER_GET),
            "avg_ack_ingress_rate": past.rate("deliver") + past.rate("get"),
            "avg_ack_egress_rate": past.rate("ack"),
        },
        "consumers": len(queue.consumers),
        "consumer_capacity": share,
        "consumer_utilisation": share,
        "exclusive_consumer_tag": getattr(queue.exclusive_consumer, "tag", None),
        "single_active_consumer_tag": getattr(single, "tag", None),
        "head_message_timestamp": head_timestamp(queue),
        "memory": queue.memory_bytes + QUEUE_BYTES,
        "state": status.RUNNING if queue.mirror is None else status.state(queue.mirror),
    }
    idle_s = control.node.loop.time() - (queue.active_ms or queue.born_ms) / 1000
    if not queue.active_ms or idle_s * 1000 > samples.interval_ms:
        row["idle_since"] = time_of_day(time.time() - min(idle_s, time.monotonic() - control.started_s))
    if is_stream(queue.spec.arguments):
        row["readers"] = {control.name: len(queue.consumers)}
    if queue.rules.keeps_dead or is_quorum(queue.spec.arguments):
        dead = _dead(control, queue)
        mean = row["message_bytes_persistent"] / (row["messages_persistent"] or 1)
        row |= {"messages_dlx": dead, "message_bytes_dlx": int(dead * mean)}
        row["messages"] += dead
    if queue.spec.exclusive:
        row["owner_pid_details"] = _owner(control, queue)
    if queue.mirror is not None:
        row["mirrors"] = [one._asdict() for one in mirror_lags(control, queue.mirror)]
    return row


def mirror_lags(control: Control, mirror: Mirror) -> list[status.Lag]:
    """Returns how far each mirror is behind. For one that is being filled, the size of what it lacks is an estimate."""
    node = control.node
    lags = status.lags(mirror, node.broker.mirrors.store, node.broker.wall_ms)
    log = node.storage.log.queues.get(mirror.spec.id)
    if log is None or not log.count:
        return lags
    mean = log.message_bytes / log.count
    return [
        lag._replace(bytes=int(lag.messages * mean)) if lag.bytes is None and lag.messages is not None else lag
        for lag in lags
    ]


def time_of_day(seconds: float) -> str:
    whole = int(seconds)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole))
    return f"{text}.{int((seconds - whole) * 1000):03}+00:00"


def _owner(control: Control, queue: LocalQueue) -> dict[str, Any]:
    for connection, name in control.node.broker.connections.items():
        if name == queue.spec.owner:
            return {"name": str(connection.peer), "peer_host": connection.peer.host, "peer_port": connection.peer.port}
    return {}


def capacity(control: Control, queue: LocalQueue) -> float:
    samples = control.node.samples
    return _capacity(queue, ObjectHistory(samples, s.OF_QUEUE, samples.queues.get(queue)))


def _capacity(queue: LocalQueue, past: ObjectHistory) -> float:
    """Returns the share of the last samples in which no message was ready; 0 without consumers, as in RabbitMQ."""
    if not queue.consumers:
        return 0
    waiting = 1 + s.QUEUE.index("messages_ready")
    rows = [s.OF_QUEUE.unpack(row)[waiting] for row in past.rows[-12:]] or [queue.ready_count]
    return sum(not count for count in rows) / len(rows)


class _Measure:
    """An estimate of the size of some messages' bodies, from the first of each batch."""

    def __init__(self) -> None:
        self.seen = self.seen_bytes = 0
        self.bytes = 0
        self.first: bytes | None = None

    def add(self, batch: Batch, lo: int, hi: int) -> None:
        contents = batch.contents[lo : min(hi, lo + MEASURED)]
        if batch.paged or not contents:
            return
        size = bodies(contents)
        self.seen += len(contents)
        self.seen_bytes += size
        self.bytes += size * (hi - lo) // len(contents)
        self.first = self.first if self.first is not None else contents[0]

    @property
    def mean(self) -> float:
        return self.seen_bytes / self.seen if self.seen else 0.0


def _waiting(queue: LocalQueue) -> tuple[_Measure, int]:
    """Returns a measure of the ready messages in memory, and how many ready messages are on disk only."""
    found, measured, on_disk = _Measure(), 0, 0
    if isinstance(queue, StreamQueue):
        return found, queue.ready_count  # All of them are in the log, whatever of it is in memory, too.
    for at, entry in enumerate(islice(queue.ready, ENTRIES_MAX) if isinstance(queue, Queue) else ()):
        if isinstance(entry, Gap):
            on_disk += entry.count
        elif at < ENTRIES:
            found.add(entry.batch, entry.lo, entry.hi)
            measured += entry.count
    left = queue.ready_count - on_disk - measured
    found.bytes += int(found.mean * left)
    return found, on_disk


def _out(queue: LocalQueue) -> _Measure:
    """Returns a measure of the unacknowledged messages, as far as they are easily found."""
    found = _Measure()
    for consumer in list(queue.consumers)[:ENTRIES]:
        holder = getattr(consumer, "session", None) or getattr(consumer, "owner_end", None)
        if holder is None:
            continue
        head = holder.unacked.head
        for one in holder.unacked.entries[head : head + ENTRIES]:
            if one.queue is queue:
                found.add(one.batch, one.lo, one.hi)
    return found


def sizes(control: Control, queue: LocalQueue) -> dict[str, int]:
    ready, on_disk = _waiting(queue)
    out = _out(queue)
    log = control.node.storage.log.queues.get(queue.spec.id)
    stored = 0 if log is None else log.count
    mean = ready.mean or out.mean or (log.message_bytes / stored if log is not None and stored else 0.0)
    out_bytes = int((out.mean or mean) * queue.unacked_count)
    ready_bytes = ready.bytes + int(mean * on_disk)
    in_memory = queue.ready_count - on_disk
    return {
        "messages_ram": in_memory + queue.unacked_count,
        "messages_ready_ram": in_memory,
        "messages_unacknowledged_ram": queue.unacked_count,
        "messages_persistent": stored,
        "messages_paged_out": on_disk,
        "message_bytes": ready_bytes + out_bytes,
        "message_bytes_ready": ready_bytes,
        "message_bytes_unacknowledged": out_bytes,
        "message_bytes_ram": ready.bytes + out_bytes,
        "message_bytes_persistent": int(mean * stored),
        "message_bytes_paged_out": int(mean * on_disk),
    }


def message_count(control: Control, queue: LocalQueue) -> int:
    """Of a queue, with its dead letters that nobody has taken yet."""
    return queue.ready_count + queue.unacked_count + _dead(control, queue)


def _dead(control: Control, queue: LocalQueue) -> int:
    """Returns how many dead letters of a queue nobody has taken yet."""
    return control.node.broker.dead_letters.retry.count(queue) if isinstance(queue, Queue) else 0


def head_timestamp(queue: LocalQueue) -> int | None:
    if isinstance(queue, Queue) and queue.ready:
        head = queue.ready[0]
        return None if isinstance(head, Gap) else timestamp(head.batch.contents[head.lo], HEADER_AT)
    first = _out(queue).first
    return None if first is None else timestamp(first, HEADER_AT)


# -- One figure of many queues -------------------------------------------------------------------------------------


def queue_figure(control: Control, queue: LocalQueue, path: list[str]) -> Any:
    """Returns one field of a queue's row, for sorting, as cheaply as possible."""
    name = path[0]
    if len(path) == 1:
        if name == "messages":
            return message_count(control, queue)
        if name == "messages_ready":
            return queue.ready_count
        if name == "messages_unacknowledged":
            return queue.unacked_count
        if name == "consumers":
            return len(queue.consumers)
        if name == "memory":
            return queue.memory_bytes + QUEUE_BYTES
        if name in ("consumer_capacity", "consumer_utilisation"):
            return capacity(control, queue)
        if name == "message_bytes":
            return sizes(control, queue)[name]
        if name == "state":
            return status.RUNNING if queue.mirror is None else status.state(queue.mirror)
    if name == "message_stats" and len(path) in (2, 3):
        return _stat(control, queue, path)
    row: Any = queue_row(control, queue, Windows())
    for word in path:
        row = row.get(word) if isinstance(row, dict) else None
    return row


def _stat(control: Control, queue: LocalQueue, path: list[str]) -> Any:
    columns = is_detail(path[1].removesuffix("_details"))
    if any(column not in s.QUEUE for column in columns):
        return None
    samples = control.node.samples
    if path[1].endswith("_details"):
        past = ObjectHistory(samples, s.OF_QUEUE, samples.queues.get(queue))
        return sum(past.rate(column) for column in columns) if path[2:] == ["rate"] else None
    values = dict(zip(s.QUEUE, figures_of(queue), strict=True))
    return sum(values[column] for column in columns)
