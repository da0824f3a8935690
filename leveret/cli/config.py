"""`leveret config check`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from leveret.cli.exits import CONFIG, OK
from leveret.cli.server import load_or_report
from leveret.cluster.mirroring import Defaults
from leveret.cluster.rebalancing import Schedule
from leveret.node.config import Loaded
from leveret.node.schema import USED
from leveret.node.settings import LOG_CATEGORIES, Discovery, Listener, LogForm, Rotation, Settings, TlsOptions

SECRET = "********"

# The keys that give a field, the first being the one it is shown under.
_KEYS_OF: dict[str, tuple[str, ...]] = {
    **{rule.field: (key,) for key, rule in USED.items() if rule.field},
    "tcp_listeners": ("listeners.tcp", "host", "port"),
    "ssl_listeners": ("listeners.ssl",),
    "tls": ("ssl_options",),
    "management_listeners": ("management.tcp.port", "management.tcp.ip", "management_port"),
    "management_tls_listeners": ("management.ssl.port", "management.ssl.ip"),
    "management_tls": ("management.ssl",),
    "prometheus_listeners": ("prometheus.tcp.port", "prometheus.tcp.ip"),
    "prometheus_is_wanted": ("prometheus.tcp.port",),
    "cluster_listener": ("cluster.listener", "cluster.port"),
    "cluster_host": ("cluster.advertised_host",),
    "cluster_tls": ("cluster.ssl_options",),
    "discovery": (
        "cluster_formation.peer_discovery_backend",
        "cluster_formation.classic_config.nodes",
        "cluster_formation.dns.hostname",
        "cluster_formation.target_cluster_size_hint",
    ),
    "mirroring": (
        "mirroring.default_policy",
        "mirroring.forbid_copying",
        "num_mirrors",
        "cluster_nodes.disc_copies",
        "queue_master_locator",
        "queue_leader_locator",
        "mirroring_sync_batch_size",
        "mirroring_sync_max_throughput",
        "mirroring.spread",
    ),
    "partition_handling": ("cluster_partition_handling",),
    "rebalance": ("cluster_rebalance",),
    "management_origins": ("management.cors.allow_origins",),
    "node_labels": ("node.label",),
    "linger_s": ("tcp_listen_options.linger",),
    "auth_mechanisms": ("auth_mechanisms",),
    "loopback_users": ("loopback_users",),
    "default_user_tags": ("default_user_tags",),
    "memory_watermark_relative": ("vm_memory_high_watermark.relative",),
    "memory_watermark_absolute": ("vm_memory_high_watermark.absolute",),
    "disk_free_relative": ("disk_free_limit.relative",),
    "disk_free_absolute": ("disk_free_limit.absolute",),
    "config_files": ("(files that were read)",),
    "log_console_form": ("log.console.formatter",),
    "log_file_form": ("log.file.formatter",),
    "log_rotation": ("log.file.rotation",),
    "log_file": ("log.file", "log.dir"),
    "log_levels": ("log.levels", *(f"log.{category}.level" for category in LOG_CATEGORIES)),
}
_NO_LIMIT = ("connection_max", "handshake_timeout_ms", "ssl_handshake_timeout_ms", "consumer_timeout_ms")


def check_config(file: str) -> int:
    loaded = load_or_report([], file)
    if loaded is None:
        return CONFIG
    for line in describe(loaded):
        print(line)
    return OK


def describe(loaded: Loaded) -> list[str]:
    """A line for each setting: its name, its value, and where it was given."""
    lines = []
    for field in fields(Settings):
        keys = _KEYS_OF[field.name]
        line = f"{keys[0]} = {_text(field.name, getattr(loaded.settings, field.name))}"
        where = _where(keys, loaded.sources)
        lines.append(f"{line:<48}  # {where}" if where else line)
    return lines


def _where(keys: tuple[str, ...], sources: Mapping[str, str]) -> str:
    named = [where for key, where in sources.items() if any(key == one or key.startswith(one + ".") for one in keys)]
    return ", ".join(dict.fromkeys(named))


def _text(field: str, value: object) -> str:
    if field in ("default_pass", "cookie") and value is not None:
        return SECRET
    if field == "silence_ms":
        return f"{value}ms"  # Its key counts in seconds.
    match value:
        case None:
            return "infinity" if field in _NO_LIMIT else "none"
        case bool():
            return str(value).lower()
        case TlsOptions():
            return f"certificate {value.certfile}, versions {', '.join(value.versions)}"
        case Discovery():
            nodes = ", ".join(f"{node.name}:{node.port}" for node in value.nodes) or value.hostname
            return f"{value.backend}: {nodes}; {value.founders} found the cluster"
        case Listener():
            return str(value)
        case Schedule():
            how = [f"{name}={one}" for name, one in value._asdict().items() if name != "trigger"]
            return ", ".join([value.trigger, *how])
        case LogForm():
            single = ", single lines" if value.single_line else ""
            return f"{'json' if value.json else 'plaintext'}, time {value.time}, level {value.level}{single}"
        case Rotation():
            when = [f"date {value.date}"] * bool(value.date) + [f"size {value.size}"] * bool(value.size)
            packed = ", compressed" if value.compress else ""
            return f"{', '.join(when)}, count {value.count}{packed}" if when else "none"
        case Defaults():
            policy = [f"{key}={one}" for key, one in value.definition.items()]
            others = [f"{one.name}={getattr(value, one.name)}" for one in fields(value) if one.name != "definition"]
            return ", ".join(policy + others)
        case Mapping():
            return ", ".join(f"{key}={one}" for key, one in value.items())
        case tuple() | frozenset():
            items = sorted(value) if isinstance(value, frozenset) else value
            shown = (str(Listener(*one)) if isinstance(one, tuple) else str(one) for one in items)
            return ", ".join(shown) or "none"
    return str(value)
