"""Writes settings as the lines of a configuration file, which give the same settings when they are read.

Two kinds of lines are left out, as neither says anything: settings that have no value (a buffer size that is the
system's), and those that another setting makes pointless (the rotation of a log file where there is none), for which
a file that has them gets a warning. Secrets are shown as comments.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from leveret.metadata.rebalancing import PLAN, TIMER, Schedule
from leveret.metadata.rules.ha_policy import Defaults
from leveret.metadata.rules.partition_handling import Strategy
from leveret.node.config.schema import USED
from leveret.node.config.settings import DEFAULT_CLUSTER_PORT, Discovery, Listener, LogForm, Settings, TlsOptions

SECRET: Final = "********"
SECRETS: Final = ("default_pass", "cookie", "mqtt_default_pass", "stomp_default_pass")
TICKS_PER_S: Final = 50  # A throughput per second is divided by this: see `load`.
_KEYS: Final = {rule.field: key for key, rule in USED.items() if rule.field}
_SECONDS: Final = ("net_ticktime",)  # Kept in milliseconds, written in seconds.

Pairs = Iterator[tuple[str, str]]


def pairs(settings: Settings) -> dict[str, str]:
    """Returns by key the value in a file, with quotes where they are needed; for a secret `SECRET`."""
    return {key: text if text == SECRET else quoted(text) for key, text in _all(settings)}


def quoted(text: str) -> str:
    """Returns a value as it is written in a file. One with single quotes in it cannot be quoted, and is left as it
    is."""
    plain = text and "#" not in text and text == text.strip() and not text.startswith("'")
    return text if plain or "'" in text else f"'{text}'"


def line(key: str, text: str) -> str:
    return f"# {key} = {text}" if text == SECRET else f"{key} = {text}"


def _all(settings: Settings) -> Pairs:
    for field in Settings.__dataclass_fields__:
        if field in _IDLE and _IDLE[field](settings):
            continue
        value = getattr(settings, field)
        if field in _PARTS:
            yield from _PARTS[field](settings, value)
        elif value is not None or field in _NO_LIMIT:
            yield _KEYS[field], SECRET if field in SECRETS else _simple(_KEYS[field], value)


def _simple(key: str, value: Any) -> str:
    if value is None:
        return "infinity"
    if isinstance(value, bool):
        return str(value).lower()
    if key in _SECONDS:
        return f"{value // 1000}" if value % 1000 == 0 else f"{value}ms"
    return f"{value:g}" if isinstance(value, float) else str(value)


# -- Fields that have several keys ---------------------------------------------------------------------------------


def _numbered(group: str, values: tuple[Any, ...]) -> Pairs:
    for number, value in enumerate(values, 1):
        yield f"{group}.{number}", str(value)


def _listeners(group: str) -> Any:
    def of(settings: Settings, value: tuple[Listener, ...]) -> Pairs:
        return _numbered(group, value) if value else iter([(group, "none")])

    return of


def _web(prefix: str, absent: str = "") -> Any:
    """Returns a function that yields the lines of a port of the management plugin's kind, with its address."""

    def of(settings: Settings, value: tuple[Listener, ...]) -> Pairs:
        for one in value:
            if one.host:
                yield f"{prefix}.ip", one.host
            yield f"{prefix}.port", str(one.port)
        if not value and absent:
            yield f"{prefix}.port", absent

    return of


def _prometheus(settings: Settings, value: tuple[Listener, ...]) -> Pairs:
    """Yields the lines of the Prometheus port, if it was configured. Otherwise it follows from AMQP's port, and a line
    would make it an error not to get it."""
    return _web("prometheus.tcp", "none")(settings, value) if settings.prometheus_is_wanted else iter(())


def _tls(prefix: str, checks: bool = True) -> Any:
    def of(settings: Settings, value: TlsOptions | None) -> Pairs:
        if value is None:
            return
        yield f"{prefix}.certfile", value.certfile
        yield f"{prefix}.keyfile", value.keyfile
        if value.cacertfile is not None:
            yield f"{prefix}.cacertfile", value.cacertfile
        if value.password is not None:
            yield f"{prefix}.password", SECRET
        if checks:
            yield f"{prefix}.verify", "verify_peer" if value.verify_peer else "verify_none"
            yield f"{prefix}.fail_if_no_peer_cert", _simple("", value.fail_if_no_peer_cert)
        yield from _numbered(f"{prefix}.versions", value.versions)

    return of


def _discovery(settings: Settings, value: Discovery | None) -> Pairs:
    prefix = "cluster_formation"
    if value is None:
        return
    yield f"{prefix}.peer_discovery_backend", value.backend
    if value.backend == "dns":
        yield f"{prefix}.dns.hostname", value.hostname
    if value.kubernetes is not None:
        yield from ((f"{prefix}.k8s.{name}", str(one)) for name, one in value.kubernetes._asdict().items())
    names = (node.name + (f":{node.port}" if node.port != DEFAULT_CLUSTER_PORT else "") for node in value.nodes)
    yield from _numbered(f"{prefix}.classic_config.nodes", tuple(names))
    yield f"{prefix}.target_cluster_size_hint", str(value.founders)


def _mirroring(settings: Settings, value: Defaults) -> Pairs:
    for name, said in value.definition.items():
        if isinstance(said, list):
            text = ",".join(map(str, said))
        elif isinstance(said, dict):
            text = json.dumps(said)
        else:
            text = _simple("", said)
        yield f"mirroring.default_policy.{name}", text
    if value.queues is not None:
        yield "cluster_nodes.disc_copies", ",".join(sorted(value.queues))
    yield "mirroring.forbid_copying", _simple("", value.forbid_copying)
    if value.spread:
        yield "mirroring.spread", value.spread
    yield "queue_master_locator", value.locator
    yield "queue_leader_locator", value.leader_locator
    if value.fill_messages:
        yield "mirroring_sync_batch_size", str(value.fill_messages)
    yield "mirroring_sync_max_throughput", str(value.fill_bytes_per_tick * TICKS_PER_S)


def _partitions(settings: Settings, value: Any) -> Pairs:
    key = "cluster_partition_handling"
    yield key, value.strategy.value
    if value.strategy is Strategy.PAUSE_IF_ALL_DOWN:
        yield f"{key}.pause_if_all_down.recover", value.recover
        yield from _numbered(f"{key}.pause_if_all_down.nodes", value.nodes)


def _rebalance(settings: Settings, value: Schedule) -> Pairs:
    key = "cluster_rebalance"
    yield key, value.trigger
    if value.trigger == TIMER:
        yield f"{key}.interval", str(value.interval_ms)
    yield f"{key}.strategy", value.strategy
    if value.strategy == PLAN:
        yield f"{key}.plan", value.plan
    yield f"{key}.threshold", f"{value.threshold:g}"
    yield f"{key}.moves_at_once", str(value.at_once)
    yield f"{key}.moves_per_hour", "infinity" if value.per_hour is None else str(value.per_hour)
    yield f"{key}.rest", str(value.rest_ms)


def _flags(group: str, none: str) -> Any:
    def of(settings: Settings, value: Any) -> Pairs:
        for name in sorted(value):
            yield f"{group}.{name.replace('.', chr(92) + '.')}", "true"
        if not value:
            yield (group, "none") if none == "none" else (f"{group}.{none}", "false")

    return of


def _labels(settings: Settings, value: Mapping[str, str]) -> Pairs:
    for name, text in value.items():
        yield f"node.label.{name}", text


def _linger(settings: Settings, value: int | None) -> Pairs:
    if value is not None:
        yield "tcp_listen_options.linger.on", "true"
        yield "tcp_listen_options.linger.timeout", str(value)


def _log_form(output: str) -> Any:
    def of(settings: Settings, value: LogForm) -> Pairs:
        key = f"log.{output}.formatter"
        yield key, "json" if value.json else "plaintext"
        yield f"{key}.time_format", value.time
        yield f"{key}.level_format", value.level
        yield f"{key}.single_line", _simple("", value.single_line)

    return of


def _rotation(settings: Settings, value: Any) -> Pairs:
    yield "log.file.rotation.date", value.date
    yield "log.file.rotation.size", str(value.size)
    yield "log.file.rotation.count", str(value.count)
    yield "log.file.rotation.compress", _simple("", value.compress)


def _levels(settings: Settings, value: Mapping[str, str]) -> Pairs:
    for category, level in value.items():
        yield f"log.{category}.level", level


def _one(key: str) -> Any:
    """Returns a function that yields, of two keys for one setting, the one that was chosen."""

    def of(settings: Settings, value: Any) -> Pairs:
        if value is not None:
            yield key, _simple(key, value)

    return of


def _nothing(settings: Settings, value: Any) -> Pairs:
    return iter(())


_PARTS: Final[dict[str, Any]] = {
    "config_files": _nothing,
    "tcp_listeners": _listeners("listeners.tcp"),
    "ssl_listeners": _listeners("listeners.ssl"),
    "tls": _tls("ssl_options"),
    "mqtt_listeners": _listeners("mqtt.listeners.tcp"),
    "mqtt_tls_listeners": _listeners("mqtt.listeners.ssl"),
    "web_mqtt_listeners": _web("web_mqtt.tcp"),
    "web_mqtt_tls_listeners": _web("web_mqtt.ssl"),
    "web_mqtt_tls": _tls("web_mqtt.ssl"),
    "stomp_listeners": _listeners("stomp.listeners.tcp"),
    "stomp_tls_listeners": _listeners("stomp.listeners.ssl"),
    "web_stomp_listeners": _web("web_stomp.tcp"),
    "web_stomp_tls_listeners": _web("web_stomp.ssl"),
    "web_stomp_tls": _tls("web_stomp.ssl"),
    "linger_s": _linger,
    "management_listeners": _web("management.tcp", "none"),
    "management_tls_listeners": _web("management.ssl"),
    "management_tls": _tls("management.ssl"),
    "management_origins": lambda settings, value: _numbered("management.cors.allow_origins", value),
    "prometheus_listeners": _prometheus,
    "prometheus_is_wanted": _nothing,
    "cluster_listener": lambda settings, value: iter([("cluster.listener", str(value))]),
    "cluster_host": lambda settings, value: iter([("cluster.advertised_host", value)]),
    "cluster_tls": _tls("cluster.ssl_options", checks=False),
    "join": lambda settings, value: iter([("join", ", ".join(str(Listener(*one)) for one in value))] if value else ()),
    "discovery": _discovery,
    "partition_handling": _partitions,
    "mirroring": _mirroring,
    "rebalance": _rebalance,
    "node_labels": _labels,
    "auth_mechanisms": lambda settings, value: _numbered("auth_mechanisms", value),
    "loopback_users": _flags("loopback_users", "none"),
    "default_user_tags": _flags("default_user_tags", "administrator"),
    "memory_watermark_relative": _one("vm_memory_high_watermark.relative"),
    "memory_watermark_absolute": _one("vm_memory_high_watermark.absolute"),
    "disk_free_relative": _one("disk_free_limit.relative"),
    "disk_free_absolute": _one("disk_free_limit.absolute"),
    "log_console_form": _log_form("console"),
    "log_file": lambda settings, value: iter([("log.file", "false" if value is None else value)]),
    "log_file_form": _log_form("file"),
    "log_rotation": _rotation,
    "log_levels": _levels,
}
_NO_LIMIT: Final = (
    "connection_max",
    "handshake_timeout_ms",
    "ssl_handshake_timeout_ms",
    "consumer_timeout_ms",
    "mqtt_subscription_ttl_ms",
    "web_mqtt_message_max",
    "web_stomp_message_max",
)


def _alone(settings: Settings) -> bool:
    return settings.discovery is None and not settings.join


def _no_log_file(settings: Settings) -> bool:
    return settings.log_file is None


# Where another setting makes one pointless.
_IDLE: Final[dict[str, Any]] = {
    "discovery_retry_limit": _alone,
    "discovery_retry_interval_ms": _alone,
    "fsync_interval_ms": lambda settings: settings.fsync != "interval",
    "log_console_level": lambda settings: not settings.log_console,
    "log_file_level": _no_log_file,
    "log_file_form": _no_log_file,
    "log_rotation": _no_log_file,
    "tls": lambda settings: not (
        settings.ssl_listeners or settings.mqtt_tls_listeners or settings.stomp_tls_listeners
    ),
    "discovery": lambda settings: bool(settings.join),
}
