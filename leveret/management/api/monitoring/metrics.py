"""The metrics of one node: their names, which are RabbitMQ's, and where each value comes from.

Metrics of single things (queues, channels, connections) are told in sum by `/metrics` and one by one by
`/metrics/per-object`; the same table serves both. Values are to be had in a microsecond or two, since a node may have a
hundred thousand queues and be asked every few seconds. Sizes therefore are of contents as they are kept, with the heads
of their frames; the HTTP API measures bodies.
"""

from __future__ import annotations

import gc
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.queue.leases import Leases, lease_views
from leveret.metadata.model.maintenance_mark import state_of
from leveret.node.admin.queues.lists import _unconfirmed, _unsent_bytes
from leveret.node.admin.statistics.node_rows import log_figures
from leveret.node.stats import stats_history as s
from leveret.node.stats.queue_rows import head_timestamp, message_count, mirror_lags
from leveret.node.stats.stats_history import counted, open_files
from leveret.node.system.alarms import sockets_limit
from leveret.node.system.loop_watch import BOUNDS_S
from leveret.protocol.mqtt.packets import V5, V31, V311
from leveret.protocol.stomp.frames import V10, V11, V12

if TYPE_CHECKING:
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.node.admin.dispatch import Control
    from leveret.node.system.loop_watch import TurnTimes
    from leveret.sessions.amqp.channel import Channel

GAUGE: Final = "gauge"
COUNTER: Final = "counter"
UNTYPED: Final = "untyped"
HISTOGRAM: Final = "histogram"
TYPES: Final = ("classic", "quorum", "stream")
PROTOCOL: Final = 'protocol="amqp091"'
STOMP_PROTOCOLS: Final = {V10: 'protocol="stomp10"', V11: 'protocol="stomp11"', V12: 'protocol="stomp12"'}
MQTT_PROTOCOLS: Final = {V31: 'protocol="mqtt310"', V311: 'protocol="mqtt311"', V5: 'protocol="mqtt50"'}
QUEUE_BYTES: Final = 2_000

Number = int | float


class Metric(NamedTuple):
    """A metric that each thing of a kind has (each queue, each connection), and how to read it."""

    name: str
    type: str
    help: str
    family: str
    value: Callable[[Control, Any], Number | None]


class Sample(NamedTuple):
    labels: str
    value: Number
    suffix: str = ""  # Of the metric's name.


class Figure(NamedTuple):
    """A metric of the node itself, with its values."""

    name: str
    type: str
    help: str
    family: str
    samples: list[Sample]


# -- Queues --------------------------------------------------------------------------------------------------------


def is_unused(queue: LocalQueue) -> bool:
    """Tell whether a queue has never been used, so that all its metrics are zero."""
    return not (
        queue.ready_count
        or queue.unacked_count
        or queue.consumers
        or queue.totals.published
        or queue.spec.view is not None
        or queue.extension(Leases) is not None
    )


def _stored(control: Control, queue: LocalQueue) -> tuple[int, int]:
    log = control.node.storage.log.queues.get(queue.spec.id)
    return (0, 0) if log is None else (log.count, log.message_bytes)


def _bytes(control: Control, queue: LocalQueue) -> int:
    return max(queue.memory_bytes, _stored(control, queue)[1])


def _share(control: Control, queue: LocalQueue, part: int) -> int:
    count = queue.ready_count + queue.unacked_count
    return _bytes(control, queue) * part // count if count else 0


def _in_memory(control: Control, queue: LocalQueue) -> int:
    """Estimate how many ready messages are in memory, from the share of their bytes that is."""
    stored, size = _stored(control, queue)
    if not queue.ready_count or not size or queue.memory_bytes >= size:
        return queue.ready_count
    return min(queue.ready_count, stored * queue.memory_bytes // size)


def _mirrors(in_sync: bool) -> Callable[[Control, LocalQueue], int | None]:
    def value(control: Control, queue: LocalQueue) -> int | None:
        view = queue.spec.view
        if view is None:
            return None
        return len(view.in_sync) - 1 if in_sync else len(view.ring) - 1

    return value


def _lag(name: str) -> Callable[[Control, LocalQueue], Number | None]:
    def value(control: Control, queue: LocalQueue) -> Number | None:
        if queue.mirror is None:
            return None
        lags = mirror_lags(control, queue.mirror)
        known = [value for value in (getattr(lag, name) for lag in lags) if value is not None]
        return max(known, default=None if lags else 0)  # Nothing is said where nothing is known.

    return value


def _leases(control: Control, queue: LocalQueue) -> int | None:
    leases = queue.extension(Leases)
    return None if leases is None else len(leases.all)


def _leased(control: Control, queue: LocalQueue) -> int | None:
    leases = queue.extension(Leases)
    return None if leases is None else sum(view.out for view in lease_views(queue))


def _traffic(name: str) -> Callable[[Control, LocalQueue], int]:
    return lambda control, queue: int(getattr(queue.totals, name))


COARSE, CONSUMERS, FULL = "queue_coarse_metrics", "queue_consumer_count", "queue_metrics"
QUEUES: Final = (
    Metric("queue_messages_ready", GAUGE, "Messages ready to be delivered to consumers", COARSE,
           lambda control, queue: queue.ready_count),
    Metric("queue_messages_unacked", GAUGE, "Messages delivered to consumers but not yet acknowledged", COARSE,
           lambda control, queue: queue.unacked_count),
    Metric("queue_messages", GAUGE, "Sum of ready and unacknowledged messages - total queue depth", COARSE,
           message_count),
    Metric("queue_consumers", GAUGE, "Consumers on a queue", CONSUMERS,
           lambda control, queue: len(queue.consumers)),
    Metric("queue_consumer_capacity", GAUGE, "Consumer capacity", FULL,
           lambda control, queue: float(bool(queue.consumers) and not queue.ready_count)),
    Metric("queue_consumer_utilisation", GAUGE, "Same as consumer capacity", FULL,
           lambda control, queue: float(bool(queue.consumers) and not queue.ready_count)),
    Metric("queue_process_memory_bytes", GAUGE, "Memory in bytes used by the queue", FULL,
           lambda control, queue: queue.memory_bytes + QUEUE_BYTES),
    Metric("queue_messages_ram", GAUGE, "Ready and unacknowledged messages stored in memory", FULL,
           lambda control, queue: _in_memory(control, queue) + queue.unacked_count),
    Metric("queue_messages_ram_bytes", GAUGE, "Size of ready and unacknowledged messages stored in memory", FULL,
           lambda control, queue: queue.memory_bytes),
    Metric("queue_messages_ready_ram", GAUGE, "Ready messages stored in memory", FULL, _in_memory),
    Metric("queue_messages_unacked_ram", GAUGE, "Unacknowledged messages stored in memory", FULL,
           lambda control, queue: queue.unacked_count),
    Metric("queue_messages_persistent", GAUGE, "Persistent messages", FULL,
           lambda control, queue: _stored(control, queue)[0]),
    Metric("queue_messages_persistent_bytes", GAUGE, "Size in bytes of persistent messages", FULL,
           lambda control, queue: _stored(control, queue)[1]),
    Metric("queue_messages_bytes", GAUGE, "Size in bytes of ready and unacknowledged messages", FULL, _bytes),
    Metric("queue_messages_ready_bytes", GAUGE, "Size in bytes of ready messages", FULL,
           lambda control, queue: _share(control, queue, queue.ready_count)),
    Metric("queue_messages_unacked_bytes", GAUGE, "Size in bytes of all unacknowledged messages", FULL,
           lambda control, queue: _share(control, queue, queue.unacked_count)),
    Metric("queue_messages_paged_out", GAUGE, "Messages paged out to disk", FULL,
           lambda control, queue: queue.ready_count - _in_memory(control, queue)),
    Metric("queue_messages_paged_out_bytes", GAUGE, "Size in bytes of messages paged out to disk", FULL,
           lambda control, queue: _bytes(control, queue) - queue.memory_bytes),
    Metric("queue_head_message_timestamp", GAUGE, "Timestamp of the first message in the queue, if any", FULL,
           lambda control, queue: head_timestamp(queue)),
    Metric("queue_disk_reads_total", COUNTER, "Total number of times queue read messages from disk", FULL,
           _traffic("read")),
    Metric("queue_disk_writes_total", COUNTER, "Total number of times queue wrote messages to disk", FULL,
           _traffic("written")),
    Metric("queue_messages_published_total", COUNTER, "Total number of messages published to queues",
           "channel_queue_exchange_metrics", _traffic("published")),
    Metric("queue_mirrors", GAUGE, "Mirrors that a queue has", "mirror_metrics", _mirrors(in_sync=False)),
    Metric("queue_mirrors_synchronised", GAUGE, "Mirrors of a queue that have all its messages", "mirror_metrics",
           _mirrors(in_sync=True)),
    Metric("queue_mirror_lag_messages", GAUGE, "Messages by which the slowest mirror is behind", "mirror_metrics",
           _lag("messages")),
    Metric("queue_mirror_lag_bytes", GAUGE, "Bytes by which the slowest mirror is behind", "mirror_metrics",
           _lag("bytes")),
    Metric("queue_mirror_lag_seconds", GAUGE, "Time by which the slowest mirror is behind", "mirror_metrics",
           _lag("seconds")),
    Metric("queue_leases", GAUGE, "Leases of a queue", "lease_metrics", _leases),
    Metric("queue_messages_leased", GAUGE, "Messages that are in leases of a queue", "lease_metrics", _leased),
)  # fmt: skip
OF_ONE_ONLY: Final = frozenset({"queue_head_message_timestamp"})  # A sum of times is none.


# -- Channels and connections --------------------------------------------------------------------------------------


def _count(name: str) -> Callable[[Control, Channel], int]:
    at = s.CHANNEL.index(name)
    return lambda control, channel: counted(channel.session)[at]


OF_CHANNEL, TO_EXCHANGES, OF_QUEUES = "channel_metrics", "channel_exchange_metrics", "channel_queue_metrics"
CHANNELS: Final = (
    Metric("channel_consumers", GAUGE, "Consumers on a channel", OF_CHANNEL,
           lambda control, channel: len(channel.session.consumers)),
    Metric("channel_messages_unacked", GAUGE, "Delivered but not yet acknowledged messages", OF_CHANNEL,
           lambda control, channel: channel.session.unacked.count),
    Metric("channel_messages_unconfirmed", GAUGE, "Published but not yet confirmed messages", OF_CHANNEL,
           lambda control, channel: _unconfirmed(channel)),
    Metric("channel_messages_uncommitted", GAUGE, "Messages received in a transaction but not yet committed",
           OF_CHANNEL, lambda control, one: 0 if one.transaction is None else len(one.transaction.publishes)),
    Metric("channel_acks_uncommitted", GAUGE, "Message acknowledgements in a transaction not yet committed",
           OF_CHANNEL, lambda control, one: 0 if one.transaction is None else one.transaction.acks),
    Metric("consumer_prefetch", GAUGE, "Limit of unacknowledged messages for each consumer", OF_CHANNEL,
           lambda control, channel: channel.new_consumer_prefetch),
    Metric("channel_prefetch", GAUGE, "Total limit of unacknowledged messages for all consumers on a channel",
           OF_CHANNEL, lambda control, channel: channel.session.prefetch),
)  # fmt: skip
CHANNEL_COUNTERS: Final = (
    ("channel_messages_published_total", "publish", TO_EXCHANGES,
     "Total number of messages published into an exchange on a channel"),
    ("channel_messages_confirmed_total", "confirm", TO_EXCHANGES,
     "Total number of messages published into an exchange and confirmed on the channel"),
    ("channel_messages_unroutable_returned_total", "return_unroutable", TO_EXCHANGES,
     "Total number of messages published as mandatory into an exchange and returned to the publisher as unroutable"),
    ("channel_messages_unroutable_dropped_total", "drop_unroutable", TO_EXCHANGES,
     "Total number of messages published as non-mandatory into an exchange and dropped as unroutable"),
    ("channel_get_ack_total", "get", OF_QUEUES,
     "Total number of messages fetched with basic.get in manual acknowledgement mode"),
    ("channel_get_total", "get_no_ack", OF_QUEUES,
     "Total number of messages fetched with basic.get in automatic acknowledgement mode"),
    ("channel_messages_delivered_ack_total", "deliver", OF_QUEUES,
     "Total number of messages delivered to consumers in manual acknowledgement mode"),
    ("channel_messages_delivered_total", "deliver_no_ack", OF_QUEUES,
     "Total number of messages delivered to consumers in automatic acknowledgement mode"),
    ("channel_messages_redelivered_total", "redeliver", OF_QUEUES,
     "Total number of messages redelivered to consumers"),
    ("channel_messages_acked_total", "ack", OF_QUEUES, "Total number of messages acknowledged by consumers"),
    ("channel_get_empty_total", "get_empty", OF_QUEUES,
     "Total number of times basic.get operations fetched no message"),
)  # fmt: skip
OF_CHANNELS: Final = (
    *CHANNELS,
    *(Metric(name, COUNTER, text, family, _count(word)) for name, word, family, text in CHANNEL_COUNTERS),
)


BYTES, PACKETS = "connection_coarse_metrics", "connection_metrics"
CONNECTIONS: Final = (
    Metric("connection_incoming_bytes_total", COUNTER, "Total number of bytes received on a connection", BYTES,
           lambda control, connection: connection.received_bytes),
    Metric("connection_outgoing_bytes_total", COUNTER, "Total number of bytes sent on a connection", BYTES,
           lambda control, connection: connection.output.sent_bytes),
    Metric("connection_incoming_packets_total", COUNTER, "Total number of packets received on a connection", PACKETS,
           lambda control, connection: connection.received_count),
    Metric("connection_outgoing_packets_total", COUNTER, "Total number of packets sent on a connection", PACKETS,
           lambda control, connection: connection.output.sent_count),
    Metric("connection_pending_packets", GAUGE, "Number of packets waiting to be sent on a connection", PACKETS,
           lambda control, connection: int(_unsent_bytes(control, connection) > 0)),
    Metric("connection_channels", GAUGE, "Channels on a connection", PACKETS,
           lambda control, connection: len(connection.channels)),
)  # fmt: skip


# -- The node ------------------------------------------------------------------------------------------------------


def _one(value: Number, labels: str = "") -> list[Sample]:
    return [Sample(labels, value)]


def node_figures(control: Control, http_logins: tuple[int, int], turns: TurnTimes) -> list[Figure]:
    """Return all metrics of the node itself."""
    return [
        *_resources(control),
        *_churn(control),
        *_global(control),
        *_sizes(control),
        *_logins(control, http_logins),
        *_shovels(control),
        *_federation(control),
        *_consensus(control),
        *_log(control),
        *_turns(turns),
        *_partitions(control),
        *_maintenance(control),
        *_spools(control),
        *_balance(control),
    ]


def _resources(control: Control) -> list[Figure]:
    node = control.node
    alarms = node.alarms
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    collected = gc.get_stats()
    coarse, full = "node_coarse_metrics", "node_metrics"
    found = (
        ("alarms_file_descriptor_limit", UNTYPED, "is 1 if file descriptor limit alarm is in effect", coarse,
         int(alarms.crowded)),
        ("alarms_free_disk_space_watermark", UNTYPED, "is 1 if free disk space watermark alarm is in effect", coarse,
         int("disk" in alarms.own())),
        ("alarms_memory_used_watermark", UNTYPED, "is 1 if VM memory watermark alarm is in effect", coarse,
         int("memory" in alarms.own())),
        ("process_open_fds", GAUGE, "Open file descriptors", coarse, open_files()),
        ("process_open_tcp_sockets", GAUGE, "Open TCP sockets", coarse, len(node.clients)),
        ("process_resident_memory_bytes", GAUGE, "Memory used in bytes", coarse, alarms.memory_used_bytes),
        ("disk_space_available_bytes", GAUGE, "Disk space available in bytes", coarse, alarms.disk_free_bytes),
        ("erlang_gc_runs_total", COUNTER, "Total number of garbage collector runs", coarse,
         sum(one["collections"] for one in collected)),
        ("erlang_scheduler_context_switches_total", COUNTER, "Total number of context switches", coarse,
         usage.ru_nvcsw + usage.ru_nivcsw),
        ("process_max_fds", GAUGE, "Open file descriptors limit", full, soft),
        ("process_max_tcp_sockets", GAUGE, "Open TCP sockets limit", full, sockets_limit(soft)),
        ("resident_memory_limit_bytes", GAUGE, "Memory high watermark in bytes", full, alarms.memory_limit_bytes),
        ("disk_space_available_limit_bytes", GAUGE, "Free disk space low watermark in bytes", full,
         alarms.disk_limit_bytes),
        ("erlang_uptime_seconds", GAUGE, "Node uptime", full, time.monotonic() - control.started_s),
        ("erlang_net_ticktime_seconds", GAUGE, "Inter-node heartbeat interval", full,
         control.server.settings.silence_ms / 1000),
    )  # fmt: skip
    return [Figure(name, kind, text, family, _one(value)) for name, kind, text, family, value in found]


def _churn(control: Control) -> list[Figure]:
    totals, family = control.node.broker.totals, "connection_churn_metrics"
    found = (
        ("connections_opened_total", "Total number of connections opened", totals.connections_opened),
        ("connections_closed_total", "Total number of connections closed or terminated", totals.connections_closed),
        ("channels_opened_total", "Total number of channels opened", totals.channels_opened),
        ("channels_closed_total", "Total number of channels closed", totals.channels_closed),
        ("queues_declared_total", "Total number of queues declared", totals.queues_declared),
        ("queues_created_total", "Total number of queues created", totals.queues_created),
        ("queues_deleted_total", "Total number of queues deleted", totals.queues_deleted),
    )
    return [Figure(name, COUNTER, text, family, _one(value)) for name, text, value in found]


def _global(control: Control) -> list[Figure]:
    """Counters over all that ever was."""
    samples = control.node.samples
    sums = dict(zip(s.QUEUE, samples.sums, strict=True))
    lost = sums["return_unroutable"] + sums["drop_unroutable"]
    published = (
        ("received", "received from clients", sums["publish"]),
        ("received_confirm", "received from publishers expecting confirmations", samples.published_to_confirm),
        ("routed", "routed to queues", sums["publish"] - lost),
        ("confirmed", "confirmed to publishers", sums["confirm"]),
        ("unroutable_dropped", "published as non-mandatory and dropped as unroutable", sums["drop_unroutable"]),
        ("unroutable_returned", "published as mandatory and returned as unroutable", sums["return_unroutable"]),
    )
    found = [
        Figure(f"global_messages_{name}_total", COUNTER, f"Total number of messages {text}", "global",
               _one(value, PROTOCOL))
        for name, text, value in published
    ]  # fmt: skip
    by_type = {name: dict(zip(s.QUEUE, samples.by_type.get(name, [0] * len(s.QUEUE)), strict=True)) for name in TYPES}
    delivered = (
        ("delivered_consume_manual_ack", "delivered to consumers using basic.consume with manual ack", ("deliver",)),
        ("delivered_consume_auto_ack", "delivered to consumers using basic.consume with auto ack", ("deliver_no_ack",)),
        ("delivered_get_manual_ack", "delivered using basic.get with manual ack", ("get",)),
        ("delivered_get_auto_ack", "delivered using basic.get with auto ack", ("get_no_ack",)),
        ("get_empty", "that basic.get found none of", ("get_empty",)),
        ("redelivered", "redelivered to consumers", ("redeliver",)),
        ("acknowledged", "acknowledged by consumers", ("ack",)),
        ("delivered", "delivered to consumers", ("deliver", "deliver_no_ack", "get", "get_no_ack")),
    )
    for name, text, columns in delivered:
        values = [
            Sample(f'{PROTOCOL},queue_type="rabbit_{kind}_queue"', sum(by_type[kind][column] for column in columns))
            for kind in TYPES
        ]
        found.append(
            Figure(f"global_messages_{name}_total", COUNTER, f"Total number of messages {text}", "global", values)
        )
    return found + dead_letters(control)


def dead_letters(control: Control) -> list[Figure]:
    """By type of queue, and by what is done for them. What died without a letter is not counted."""
    letters, found = control.node.broker.dead_letters, []
    types, strategies = {False: "classic", True: "quorum"}, {False: "at_most_once", True: "at_least_once"}

    def labels(quorum: bool, kept: bool) -> str:
        return f'queue_type="rabbit_{types[quorum]}_queue",dead_letter_strategy="{strategies[kept]}"'

    for reason in ("expired", "rejected", "maxlen", "delivery_limit"):
        text = f"Total number of messages dead-lettered: {reason}"
        values = [
            Sample(labels(quorum, kept), letters.by_reason.get((reason, quorum, kept), 0))
            for quorum in types
            for kept in strategies
        ]
        found.append(Figure(f"global_messages_dead_lettered_{reason}_total", COUNTER, text, "global", values))
    text = "Total number of messages dead-lettered and confirmed by target queues"
    values = [Sample(labels(quorum, True), letters.kept_safe[quorum]) for quorum in types]
    found.append(Figure("global_messages_dead_lettered_confirmed_total", COUNTER, text, "global", values))
    return found


def channel_totals(control: Control) -> list[Figure]:
    """The counters of channels in sum, of those too that are closed."""
    sums = dict(zip(s.QUEUE, control.node.samples.sums, strict=True))
    octets = control.node.samples.octets
    found = [Figure(name, COUNTER, text, family, _one(sums[word])) for name, word, family, text in CHANNEL_COUNTERS]
    for (name, text), value in zip(
        (
            ("connection_incoming_bytes_total", "Total number of bytes received on a connection"),
            ("connection_outgoing_bytes_total", "Total number of bytes sent on a connection"),
        ),
        octets,
        strict=True,
    ):
        found.append(Figure(name, COUNTER, text, BYTES, _one(value)))
    return found


def _logins(control: Control, http: tuple[int, int]) -> list[Figure]:
    totals = control.node.broker.totals
    counts = [("http", *http), ("amqp091", totals.logins, totals.logins_refused)]
    if control.server.settings.has_mqtt:
        counts.append(("mqtt", totals.mqtt_logins, totals.mqtt_logins_refused))
    if control.server.settings.has_stomp:
        counts.append(("stomp", totals.stomp_logins, totals.stomp_logins_refused))
    found = {
        "auth_attempts_total": ("Total number of authorization attempts", [(name, all_) for name, all_, _ in counts]),
        "auth_attempts_succeeded_total": (
            "Total number of successful authentication attempts", [(name, all_ - bad) for name, all_, bad in counts],
        ),
        "auth_attempts_failed_total": (
            "Total number of failed authentication attempts", [(name, bad) for name, _, bad in counts],
        ),
    }  # fmt: skip
    return [
        Figure(name, COUNTER, text, "auth_attempt_metrics", [Sample(f'protocol="{of}"', value) for of, value in values])
        for name, (text, values) in found.items()
    ]


def _shovels(control: Control) -> list[Figure]:
    """Return the shovels that this node runs, by state, and what each has moved, also before this node ran it."""
    statuses = control.server.node.shovels.statuses()
    if not statuses:
        return []
    states = Counter(one["state"] for one in statuses)
    family = "shovel_metrics"
    samples = [Sample(f'status="{state}"', count) for state, count in sorted(states.items())]
    found = (
        ("shovel_messages_forwarded_total", COUNTER, "Messages that a shovel has moved", "forwarded"),
        ("shovel_bytes_forwarded_total", COUNTER, "Bytes that a shovel has published", "bytes"),
        ("shovel_messages_pending", GAUGE, "Messages that a shovel has published, and are not confirmed", "pending"),
        ("shovel_messages_remaining", GAUGE, "Messages that a shovel is to move until it ends", "remaining"),
    )
    rows = [(f'vhost="{_label(one["vhost"])}",shovel="{_label(one["name"])}"', one) for one in statuses]
    return [
        Figure("shovel_dynamic", GAUGE, "Number of dynamic shovels", family, samples),
        *(
            Figure(name, kind, text, family, [Sample(labels, one[key]) for labels, one in rows if one[key] is not None])
            for name, kind, text, key in found
        ),
    ]


def _sizes(control: Control) -> list[Figure]:
    """Return the histogram of published messages by size. MQTT and STOMP have one for all their versions."""
    samples = []
    for protocol, label in (("amqp", PROTOCOL), ("mqtt", 'protocol="mqtt"'), ("stomp", 'protocol="stomp"')):
        sizes = control.node.broker.totals.sizes[protocol]
        counts, total = sizes.histogram()
        if protocol == "amqp" or any(counts):
            count = 0
            for bound, there in zip((*map(str, sizes.BOUNDS), "+Inf"), counts, strict=True):
                count += there
                samples.append(Sample(f'{label},le="{bound}"', count, "_bucket"))
            samples += [Sample(label, total, "_sum"), Sample(label, count, "_count")]
    text = "Size of messages received from publishers, properties and body"
    return [Figure("message_size_bytes", HISTOGRAM, text, "global", samples)]


def _federation(control: Control) -> list[Figure]:
    """Return the federation links that this node runs, by state, and what has come by them."""
    statuses = control.server.node.federation.statuses()
    if not statuses:
        return []
    states = Counter(one["status"] for one in statuses)
    family = "federation_metrics"
    samples = [Sample(f'status="{state}"', count) for state, count in sorted(states.items())]
    found = (
        ("federation_messages_forwarded_total", COUNTER, "Messages that federation links have brought", "forwarded"),
        ("federation_messages_dropped_total", COUNTER, "Messages that federation links left out", "dropped"),
        ("federation_bytes_forwarded_total", COUNTER, "Bytes that federation links have published", "bytes"),
        ("federation_messages_pending", GAUGE, "Messages of federation links that are not confirmed yet", "pending"),
    )
    return [
        Figure("federation_links", GAUGE, "Number of federation links", family, samples),
        *(
            Figure(name, kind, text, family, _one(sum(one[key] for one in statuses)))
            for name, kind, text, key in found
        ),
    ]


def _consensus(control: Control) -> list[Figure]:
    raft = control.node.cluster.raft
    latency_s = control.node.cluster.commit_latency_s
    found = (
        ("raft_term_total", COUNTER, "Current Raft term number", raft.term),
        ("raft_log_commit_index", GAUGE, "Raft log commit index", raft.commit),
        ("raft_log_last_applied_index", GAUGE, "Raft log last applied index", raft.applied),
        ("raft_log_last_written_index", GAUGE, "Raft log last written index", raft.last_index),
        ("raft_log_snapshot_index", GAUGE, "Raft log snapshot index", raft.snapshot.index),
        ("raft_entry_commit_latency_seconds", GAUGE, "Time taken for a log entry to be committed", latency_s),
    )
    return [Figure(name, kind, text, "ra_metrics", _one(value)) for name, kind, text, value in found]


def _log(control: Control) -> list[Figure]:
    storage, broker = control.node.storage, control.node.broker
    figures = log_figures(control)
    journal = broker.journal
    found = (
        ("io_write_bytes_total", COUNTER, "Total number of I/O bytes written", figures["appended_bytes"]),
        ("io_write_ops_total", COUNTER, "Total number of I/O write operations", storage.commits),
        ("io_sync_ops_total", COUNTER, "Total number of I/O sync operations", storage.commits),
        ("io_sync_time_seconds_total", COUNTER, "Total I/O sync time", storage.commits_s),
        ("log_segments", GAUGE, "Files of the message log", figures["segments"]),
        ("log_spare_segments", GAUGE, "Files of the message log that are kept to be used again", figures["spares"]),
        ("log_size_bytes", GAUGE, "Size of the message log", figures["bytes"]),
        ("log_pending_bytes", GAUGE, "What waits to be written to the message log", figures["pending_bytes"]),
        ("log_damaged_segments", GAUGE, "Files of the message log with damage", figures["damaged_segments"]),
        ("content_cache_bytes", GAUGE, "Contents of messages in memory", broker.content_bytes),
        ("dead_letters_waiting", GAUGE, "Bundles of dead letters that are on their way", len(broker.dead_letters.open)),
        ("journal_events_left_out_total", COUNTER, "Events of the journal for which there was no room",
         0 if journal is None else journal.left_out),
        ("journal_waiting_bytes", GAUGE, "Events of the journal that wait to be written",
         0 if journal is None else journal.told_bytes),
    )  # fmt: skip
    return [Figure(name, kind, text, "node_persister_metrics", _one(value)) for name, kind, text, value in found]


def _partitions(control: Control) -> list[Figure]:
    """Return metrics about unreachable nodes, and whether this node is paused."""
    seen, now_ms = control.node.pausing.partitions, time.time() * 1000
    paused_s = 0 if seen.paused_ms is None else max(0.0, now_ms - seen.paused_ms) / 1000
    served = control.node.broker.detachment.figures()
    lost = [(f'peer="{_label(name)}"', max(0.0, now_ms - loss.since_ms) / 1000) for name, loss in seen.lost.items()]
    found = [
        ("alarms_partition_paused", UNTYPED, "is 1 if the node is paused by a partition and serves nobody",
         _one(int(seen.paused))),
        ("partition_paused_seconds", GAUGE, "How long the node has been paused", _one(paused_s)),
        ("partition_pauses_total", COUNTER, "How often the node was paused", _one(seen.pauses)),
        ("unreachable_peers", GAUGE, "Nodes of the cluster that this one is out of contact with", _one(len(lost))),
        ("unreachable_peer_seconds", GAUGE, "For how long, for each of them", [Sample(*one) for one in sorted(lost)]),
        ("detached_queues", GAUGE, "Queues that the node serves from its copies, out of reach of their masters",
         _one(served["queues"])),
        ("detached_messages", GAUGE, "Messages that are ready there", _one(served["messages"])),
        ("detached_settled", GAUGE, "Messages settled there that their masters have still to be told of",
         _one(served["settled"])),
    ]  # fmt: skip
    witnesses = control.node.cluster.attending()
    if witnesses:
        ups = [Sample(f'witness="{_label(one.name)}"', int(one.running)) for one in witnesses]
        found.append(("witness_up", GAUGE, "is 1 if the witness is in contact, which votes and keeps no queues", ups))
    return [Figure(name, kind, text, "partition_metrics", samples) for name, kind, text, samples in found]


def _maintenance(control: Control) -> list[Figure]:
    is_out = state_of(control.node.metadata, control.name) is not None
    text = "is 1 if the node is in maintenance (drained) and takes no clients"
    return [Figure("node_maintenance", UNTYPED, text, "maintenance_metrics", _one(int(is_out)))]


def _turns(turns: TurnTimes) -> list[Figure]:
    """Return the histogram of turn lengths: during a turn nothing else is served."""
    samples, count = [], 0
    for bound, there in zip((*map(str, BOUNDS_S), "+Inf"), turns.counts, strict=True):
        count += there
        samples.append(Sample(f'le="{bound}"', count, "_bucket"))
    samples += [Sample("", turns.sum_s, "_sum"), Sample("", count, "_count")]
    found = (
        ("event_loop_turn_seconds", HISTOGRAM, "Time that turns of the event loop take, sampled 50 times a second",
         samples),
        ("event_loop_slow_turns_total", COUNTER, "Turns of the event loop that took longer than 100 ms",
         _one(turns.slow)),
        ("event_loop_longest_turn_seconds", GAUGE, "The longest turn of the event loop since the start",
         _one(turns.longest_s)),
        ("event_loop_busiest_turn_seconds", GAUGE, "The longest turn since the start, in processor time",
         _one(turns.busiest_s)),
    )  # fmt: skip
    return [Figure(name, kind, text, "node_metrics", values) for name, kind, text, values in found]


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _spools(control: Control) -> list[Figure]:
    spools = control.node.broker.spools
    told = spools.figures()
    found = (
        ("alarms_spool_in_use", UNTYPED, "is 1 if messages are kept for queues that cannot be reached",
         int(bool(spools.active))),
        ("alarms_spool_full", UNTYPED, "is 1 if there is no room for more of them", int(spools.is_full)),
        ("alarms_spool_without_room", UNTYPED, "is 1 if they are not sent on because a disk is too small for them",
         int(bool(spools.short))),
        ("spools", GAUGE, "Queues for which messages are kept until they can be reached", len(spools.active)),
        ("spool_messages", GAUGE, "Messages kept for queues that cannot be reached", sum(one.messages for one in told)),
        ("spool_bytes", GAUGE, "Size of these messages", spools.content_bytes),
        ("spool_limit_bytes", GAUGE, "How large they may be in all", spools.content_bytes_max),
        ("spool_oldest_seconds", GAUGE, "Age of the oldest of them", max((one.oldest for one in told), default=0)),
        ("spool_sent_total", COUNTER, "Messages sent on to their queues", sum(one.sent for one in told)),
        ("spool_delivered_total", COUNTER, "Messages that clients of this node were given and are done with",
         sum(one.delivered for one in told)),
        ("spool_expired_total", COUNTER, "Messages dropped because their time was up",
         sum(one.expired for one in told)),
        ("spool_dropped_total", COUNTER, "Messages dropped because their queue was deleted", spools.dropped),
        ("spool_refused_total", COUNTER, "Publishes refused for want of room", sum(one.refused for one in told)),
        ("spool_waits_total", COUNTER, "How often sending on waited for disk space", spools.waited),
    )  # fmt: skip
    return [Figure(name, kind, text, "spool_metrics", _one(value)) for name, kind, text, value in found]


def _balance(control: Control) -> list[Figure]:
    """Return metrics of queue moves that this node has made: all of them, if it is the Raft leader."""
    did = control.rebalancer
    last = did.remembered().get("last") or {}
    found = (
        ("rebalance_runs_total", COUNTER, "Times that this node has rebalanced queues", did.runs),
        ("rebalance_moves_total", COUNTER, "Queues that this node has had moved", did.done),
        ("rebalance_moves_failed_total", COUNTER, "Queues that were to be moved, and stayed", did.failed),
        ("rebalance_moves_under_way", GAUGE, "Queues that are being moved", len(did.under_way)),
        ("rebalance_last_run_timestamp_seconds", GAUGE, "When any node rebalanced queues last",
         last.get("at_ms", 0) / 1000),
        ("rebalance_last_run_seconds", GAUGE, "How long that took", last.get("took_ms", 0) / 1000),
    )  # fmt: skip
    return [Figure(name, kind, text, "balance_metrics", _one(value)) for name, kind, text, value in found]


def mirror_figures(figures: dict[str, Number]) -> list[Figure]:
    """Return metrics of mirrored queues."""
    found = []
    for name, value in figures.items():
        is_counter = name in ("view_changes", "promotions", "forced_promotions")
        full = f"mirrored_queues_{name}_total" if is_counter else f"mirrored_queues_{name}"
        text = f"Mirrored queues of this node: {name.replace('_', ' ')}"
        found.append(Figure(full, COUNTER if is_counter else GAUGE, text, "mirror_metrics", _one(value)))
    alone = figures["masters_without_synchronised_mirror"]
    text = "Mirrored queues led by this node that would lose messages with it"
    found.append(Figure("queues_without_synchronised_mirrors", GAUGE, text, "mirror_metrics", _one(alone)))
    return found
