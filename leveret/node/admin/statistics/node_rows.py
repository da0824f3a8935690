"""The fields of a node in RabbitMQ's HTTP API, and the sums over all that the node has."""

from __future__ import annotations

import os
import platform
import resource
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from leveret import __version__
from leveret.metadata.model.maintenance_mark import state_of
from leveret.node.admin.nodes.cluster import listeners, local_alarms
from leveret.node.admin.nodes.diagnostics import log_files
from leveret.node.admin.nodes.partitions import local, partition_names
from leveret.node.stats import stats_history as s
from leveret.node.stats.queue_rows import OF_ALL, Windows, lengths, message_stats
from leveret.node.stats.stats_history import ObjectHistory, open_files
from leveret.node.system.alarms import sockets_limit
from leveret.sessions.peer import COMPATIBLE_VERSION

if TYPE_CHECKING:
    from leveret.node.admin.dispatch import Control

EXCHANGE_TYPES: Final = (
    ("direct", "AMQP direct exchange, as per the AMQP specification"),
    ("fanout", "AMQP fanout exchange, as per the AMQP specification"),
    ("headers", "AMQP headers exchange, as per the AMQP specification"),
    ("topic", "AMQP topic exchange, as per the AMQP specification"),
    ("x-consistent-hash", "Consistent Hashing Exchange"),
    ("x-delayed-message", "Delayed Message Exchange."),
    ("x-federation-upstream", "Federation upstream helper exchange"),
    ("x-random", "Random exchange"),
)
MECHANISMS: Final = {
    "PLAIN": "SASL PLAIN authentication mechanism",
    "AMQPLAIN": "QPid AMQPLAIN mechanism",
    "EXTERNAL": "SASL EXTERNAL authentication mechanism using the client's certificate",
}
RETENTION: Final = {"global": [600, 3600, 28800, 86400], "basic": [600], "detailed": [600]}


def exchange_types() -> list[dict[str, Any]]:
    return [{"name": name, "description": text, "enabled": True} for name, text in EXCHANGE_TYPES]


def contexts(control: Control) -> list[dict[str, Any]]:
    """Returns the node's HTTP listeners."""
    found = []
    for one in listeners(control):
        if one["protocol"] in ("http", "https", "http/prometheus"):
            purpose = "Prometheus" if one["protocol"] == "http/prometheus" else "Management"
            where = {"ip": one["interface"], "port": str(one["port"])}
            path = control.server.settings.management_prefix or "/"
            found.append({"description": f"RabbitMQ {purpose}", "path": path, **where})
    return found


def overview(control: Control, windows: Windows) -> dict[str, Any]:
    """Returns what one node adds to the overview of its cluster."""
    node = control.node
    samples, totals = node.samples, node.broker.totals
    past = ObjectHistory(samples, s.OF_NODE, samples.whole[0], of_node=True)
    values = dict(zip(s.QUEUE, samples.sums, strict=True))
    churn = dict(
        connection_created=totals.connections_opened,
        connection_closed=totals.connections_closed,
        channel_created=totals.channels_opened,
        channel_closed=totals.channels_closed,
        queue_declared=totals.queues_declared,
        queue_created=totals.queues_created,
        queue_deleted=totals.queues_deleted,
    )
    rates: dict[str, Any] = {}
    for name in sorted(s.CHURN):
        rates |= {name: churn[name], f"{name}_details": past.details((name,), windows.messages)}
    return {
        "message_stats": message_stats(values, past, OF_ALL, windows.messages),
        "queue_totals": lengths(values, past, windows.lengths),
        "churn_rates": rates,
        "connections": len(node.broker.connections),
        "listeners": shown_listeners(control),
        "contexts": [{**one, "node": control.name, "ssl_opts": []} for one in contexts(control)],
        "alarms": local_alarms(control),
    }


def shown_listeners(control: Control) -> list[dict[str, Any]]:
    found = []
    for one in listeners(control):
        shown = {"node": one["node"], "protocol": one["protocol"], "ip_address": one["interface"].strip("[]")}
        found.append({**shown, "port": one["port"], "socket_opts": {}})
    return found


def node_row(control: Control, windows: Windows) -> dict[str, Any]:
    node, settings = control.node, control.server.settings
    alarms, samples, log = node.alarms, node.samples, node.storage.log
    past = ObjectHistory(samples, s.OF_NODE, samples.whole[0], of_node=True)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    figures = {
        "mem_used": alarms.memory_used_bytes,
        "fd_used": open_files(),
        "sockets_used": len(node.clients),
        "disk_free": alarms.disk_free_bytes,
        "io_write_bytes": log.appended_bytes,
    }
    row: dict[str, Any] = {
        "name": control.name,
        "type": "disc",
        "running": True,
        "os_pid": str(os.getpid()),
        "uptime": int((time.monotonic() - control.started_s) * 1000),
        "processors": os.cpu_count() or 1,
        "run_queue": 0,
        "proc_total": soft,
        "proc_used": 1,
        "fd_total": soft,
        "sockets_total": sockets_limit(soft),
        "mem_limit": alarms.memory_limit_bytes,
        "mem_alarm": "memory" in alarms.own(),
        "mem_calculation_strategy": "rss",
        "disk_free_limit": alarms.disk_limit_bytes,
        "disk_free_alarm": "disk" in alarms.own(),
        "partitions": partition_names(control),
        "partition": local(control),
        "paused": node.pausing.paused,
        "being_drained": state_of(node.metadata, control.name) is not None,
        "net_ticktime": settings.silence_ms // 1000,
        "rates_mode": "basic",
        "exchange_types": exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": text, "enabled": name in settings.auth_mechanisms}
            for name, text in MECHANISMS.items()
        ],
        "applications": [
            {"name": "rabbit", "description": "Leveret", "version": COMPATIBLE_VERSION},
            {"name": "leveret", "description": "Leveret", "version": __version__},
            {"name": "python", "description": sys.version.split("\n")[0], "version": platform.python_version()},
        ],
        "contexts": contexts(control),
        "log_files": log_files(control),
        "db_dir": os.path.abspath(settings.data_dir),
        "config_files": list(settings.config_files),
        "enabled_plugins": ["rabbitmq_management", "rabbitmq_prometheus"],
        "cluster_links": [],
        "metrics_gc_queue_length": dict.fromkeys(
            (
                "channel_closed",
                "channel_consumer_deleted",
                "connection_closed",
                "consumer_deleted",
                "exchange_deleted",
                "node_node_deleted",
                "queue_deleted",
                "vhost_deleted",
            ),
            0,
        ),
        "log": log_figures(control),
    }
    for name, value in figures.items():
        row |= {name: value, f"{name}_details": past.details((name,), windows.node)}
    churn = overview(control, Windows(messages=windows.node))["churn_rates"]
    return {**row, **churn}


def log_figures(control: Control) -> dict[str, int]:
    """Returns the figures of the message log."""
    log = control.node.storage.log
    return {
        "segments": len(log.segment_table),
        "spares": len(log.spares),
        "bytes": sum(one.length for one in log.segment_table.values()),
        "pending_bytes": log.pending_bytes,
        "appended_bytes": log.appended_bytes,
        "damaged_segments": len(log.damage),
    }
