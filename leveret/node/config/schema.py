"""The keys of a configuration, and the values of each.

The names are those of RabbitMQ's `rabbitmq.conf`, and a few of our own. An operator who brings the file of a RabbitMQ
node must be able to trust the start: a key either has its effect, or the node says that it has none. Hence three kinds:

used         The broker acts on it. `USED` says how a value is read; `FIXED` has keys of which only some values hold
             here, because the broker behaves that one way (`reverse_dns_lookups = false`).
ignored      RabbitMQ has the key, but the thing it tunes does not exist here (an Erlang collector, a lock).
             Nobody is deceived if it has no effect, so the node starts and warns.
unsupported  RabbitMQ has the key, and an operator who sets it relies on its effect: a listener, a login, a cluster, a
             limit. The node does not start.

All others are unknown, most likely a typing error, and the node does not start either.

A key ends in `$` where the last word is free to choose (`listeners.tcp.$`), and in `*` where a whole branch is meant.
Keys that together give one value (`auth_mechanisms.1`, `auth_mechanisms.2`) belong to a group: the strongest source
that has any of them gives them all, so that two sources are never mixed into a list that nobody wrote.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from leveret.base.json_values import Json
from leveret.base.safe_regex import PATTERN_COST_MAX, error_of
from leveret.metadata.rebalancing import PLAN, STRATEGIES, TRIGGERS
from leveret.metadata.rules.ha_policy import FORBID, LEADER_LOCATORS, LOCATORS
from leveret.metadata.rules.partition_handling import RECOVER, Strategy
from leveret.metadata.rules.queue_rules import parse_journal
from leveret.node.config.settings import DEFAULT_CLUSTER_PORT, LOG_CATEGORIES, LOG_LEVELS, MIB, ListedNode, Listener

T = TypeVar("T")
Parse = Callable[[str], object]


class NotAllowed(ValueError):
    """The value cannot be read; the text says which ones can."""


class NotSupported(ValueError):
    """RabbitMQ takes this value, this version of the broker does not act on it."""


class Used(NamedTuple):
    parse: Parse
    field: str = ""  # of Settings; "" where the value is put together from several keys
    group: str = ""


class Fixed(NamedTuple):
    holds: tuple[str, ...]  # the values that say what the broker does anyway
    known: tuple[str, ...]  # RabbitMQ's others; empty: any


class Ignored(NamedTuple):
    reason: str
    parse: Parse | None = None


class Unsupported(NamedTuple):
    what: str


Rule = Used | Fixed | Ignored | Unsupported

# Reading values

_SIZE = re.compile(r"([0-9]+) ?([a-z]*)", re.IGNORECASE)
_DURATION = re.compile(r"([0-9]+) ?(ms|s|m|h|)")
# The period (hour, day, week, month), which of it, and at which hour.
ROTATION_DATE = re.compile(
    r"\$(?:(H)([0-5]?[0-9])?|(D)(2[0-3]|1?[0-9])|(W)([0-6])(?:D(2[0-3]|1?[0-9]))?"
    r"|(M)(3[01]|[12][0-9]|0?[1-9])(?:D(2[0-3]|1?[0-9]))?)"
)
_NODE_NAME = re.compile(r"[A-Za-z0-9_.+-]+(@[A-Za-z0-9_.-]+)?")
_DURATION_MS = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
# RabbitMQ reads "KB" in two ways: 1000 bytes in limits of memory and disk, 1024 elsewhere. We follow it in both.
_BINARY = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_BINARY |= {unit + "ib": size for unit, size in _BINARY.items() if unit}
LIMIT_UNITS = _BINARY | {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
SIZE_UNITS = _BINARY | {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


def whole(low: int, high: int, what: str = "a whole number") -> Callable[[str], int]:
    def parse(text: str) -> int:
        # isdecimal() alone would let through digits of other scripts, which int() reads happily.
        if text.isascii() and text.isdecimal() and low <= int(text) <= high:
            return int(text)
        raise NotAllowed(f"{what} from {low} to {high}")

    return parse


def or_infinity(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    def parse_or_infinity(text: str) -> T | None:
        if text == "infinity":
            return None
        try:
            return parse(text)
        except NotAllowed as error:
            raise NotAllowed(f"{error}, or infinity") from None

    return parse_or_infinity


def or_undefined(parse: Callable[[str], T | None]) -> Callable[[str], T | None]:
    """RabbitMQ's other word for no limit."""
    return lambda text: None if text == "undefined" else parse(text)


def milliseconds(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        match = _DURATION.fullmatch(text)
        if match is not None:
            value = int(match[1]) * _DURATION_MS[match[2]]
            if low <= value <= high:
                return value
        raise NotAllowed(f"milliseconds from {low} to {high}, or with a unit: 500ms, 10s, 5m, 1h")

    return parse


def size(low: int, high: int, units: dict[str, int] = SIZE_UNITS) -> Callable[[str], int]:
    def parse(text: str) -> int:
        match = _SIZE.fullmatch(text)
        if match is not None and match[2].lower() in units:
            value = int(match[1]) * units[match[2].lower()]
            if low <= value <= high:
                return value
        raise NotAllowed(f"bytes from {low} to {high}, or with a unit: 64KB, 50MB, 2GiB")

    return parse


def ratio(high: float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if 0 < value <= high:  # also refuses nan
            return value
        raise NotAllowed(f"a number above 0, up to {high:g}")

    return parse


def one_of(*values: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text in values:
            return text
        raise NotAllowed("one of " + ", ".join(values))

    return parse


def partly(holds: Sequence[str], known: Sequence[str]) -> Callable[[str], str]:
    """Returns a parser for one of `holds`; the values in `known` are RabbitMQ's and not supported yet."""

    def parse(text: str) -> str:
        if text in holds:
            return text
        if text in known:
            raise NotSupported("here: " + ", ".join(holds))
        raise NotAllowed("one of " + ", ".join(holds))

    return parse


def flag(text: str) -> bool:
    return one_of("true", "false")(text) == "true"


def word(text: str) -> str:
    if 0 < len(text.encode("utf-8", "surrogateescape")) <= 255:
        return text
    raise NotAllowed("a text of 1 to 255 bytes")


def pattern(text: str) -> str:
    error = error_of(text, PATTERN_COST_MAX)
    if error is not None:
        raise NotAllowed(f"a regular expression ({error})")
    return text


def origin(text: str) -> str:
    if text == "*" or re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\s]+", text):
        return text
    raise NotAllowed("an origin without a path, such as https://example.com:8443, or *")


def readable_file(text: str) -> str:
    path = os.path.abspath(os.path.expanduser(text))
    if os.path.isfile(path) and os.access(path, os.R_OK):
        return path
    raise NotAllowed("the path of a file that this user may read")


def readable(text: str) -> str:
    path = os.path.abspath(os.path.expanduser(text))
    if os.path.exists(path) and os.access(path, os.R_OK):
        return path
    raise NotAllowed("the path of a file or a folder that this user may read")


def folder(text: str) -> str:
    path = os.path.abspath(os.path.expanduser(text))
    if text and (os.path.isdir(path) or not os.path.exists(path)):
        return path
    raise NotAllowed("the path of a folder, there or to be made")


def log_file(text: str) -> str | None:
    """Returns the name of the log file; None without one. A relative name is in `log.dir`."""
    if text == "false":
        return None
    if text and text != "true" and not text.endswith("/"):
        return os.path.expanduser(text)
    raise NotAllowed("the name of a file, or false")


def node_name(text: str) -> str:
    if _NODE_NAME.fullmatch(text) is None or len(text) > 200:
        raise NotAllowed("a name like leveret@localhost: letters, digits, and _ . + - around one @")
    # Not the machine's name: the data folder is named after the node, and a machine that is renamed, as a container is
    # at every start, would come up with an empty one.
    return text if "@" in text else f"{text}@localhost"


port = whole(0, 65_535, "a port")


def port_or_none(text: str) -> int | None:
    try:
        return None if text == "none" else port(text)
    except NotAllowed as error:
        raise NotAllowed(f"{error} (0 for any), or none") from None


def path_prefix(text: str) -> str:
    if re.fullmatch(r"(/[A-Za-z0-9_.~-]+)*/?", text):
        return text.rstrip("/")
    raise NotAllowed("a path such as /broker")


def path(text: str) -> str:
    if re.fullmatch(r"/[A-Za-z0-9_.~/-]*", text):
        return text
    raise NotAllowed("a path such as /ws")


def host(text: str) -> str:
    if text and not any(character in text for character in " ,/[]"):
        return text
    raise NotAllowed("an address or a host's name, such as 127.0.0.1, ::1 or localhost")


def listener(text: str) -> Listener | None:
    """Parses `none`, a port on every interface, HOST:PORT, or [IPV6]:PORT."""
    if text == "none":
        return None
    address, colon, number = text.rpartition(":")
    try:
        if not colon:
            return Listener("", port(number))
        if address.startswith("[") and address.endswith("]"):
            return Listener(host(address[1:-1]), port(number))
        # "::1:5672" may be an address with or without a port. RabbitMQ takes the last number as the port, so do we.
        return Listener(host(address), port(number))
    except NotAllowed:
        raise NotAllowed("a port, HOST:PORT, [IPV6]:PORT, or none") from None


def cluster_listener(text: str) -> Listener:
    found = None if text == "none" else listener(text)
    if found is None:
        raise NotAllowed("a port, HOST:PORT or [IPV6]:PORT; leveretctl too comes in here, so there is always one")
    return found


def cluster_address(text: str) -> tuple[str, int]:
    """Parses HOST, HOST:PORT, [IPV6] or [IPV6]:PORT of a node, optionally with its name in front."""
    _, _, address = text.rpartition("@")
    try:
        if re.fullmatch(r"\[[^]]*\]|[^]:]*", address):
            return host(address.strip("[]")), DEFAULT_CLUSTER_PORT
        found = cluster_listener(address)
        if found.host and found.port:
            return found.host, found.port
    except NotAllowed:
        pass
    raise NotAllowed(f"HOST:PORT, where the port is the one for nodes ({DEFAULT_CLUSTER_PORT} if it is left out)")


def cluster_addresses(text: str) -> tuple[tuple[str, int], ...]:
    return tuple(dict.fromkeys(cluster_address(one.strip()) for one in text.split(",")))


def listed_node(text: str) -> ListedNode:
    name, at, rest = text.partition("@")
    shape = f"NAME@HOST or NAME@HOST:PORT ({DEFAULT_CLUSTER_PORT} if it is left out)"
    if not at:
        raise NotAllowed(shape)
    try:
        address, number = cluster_address(rest)
        # The name has the host in it, as in RabbitMQ; an IPv6 address cannot be part of one.
        return ListedNode(node_name(f"{name}@{address}"), address, number)
    except NotAllowed:
        raise NotAllowed(shape) from None


def seconds_as_ms(low_ms: int, high_ms: int) -> Callable[[str], int]:
    """Returns a parser for a time, in which a bare number is seconds."""
    read = milliseconds(low_ms, high_ms)

    def parse(text: str) -> int:
        try:
            return read(f"{text}s" if text.isdecimal() else text)
        except NotAllowed:
            high_s = high_ms // 1000
            raise NotAllowed(f"seconds up to {high_s}, or at least {low_ms} ms with a unit: 500ms, 5s") from None

    return parse


def discovery_backend(text: str) -> str:
    """Parses a backend of peer discovery, which RabbitMQ knows by a short name and by its module's."""
    short = text.removeprefix("rabbit_peer_discovery_")
    if short == "kubernetes":
        return "k8s"
    if short in ("classic_config", "dns", "k8s"):
        return short
    if short in ("aws", "consul", "etcd", "etcdv3"):
        raise NotSupported("here: classic_config, a list of nodes, dns, and k8s")
    raise NotAllowed("one of classic_config, dns, k8s")


def disc_node(text: str) -> str:
    if one_of("disc", "ram")(text) == "ram":
        raise NotSupported("every node keeps the cluster's metadata on disk; what a majority agreed on must outlive it")
    return text


def copies(text: str) -> tuple[str, ...]:
    """Parses names with commas between; an empty list is allowed."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(","))) if text.strip() else ()
    if not all(names) or len({"@" in name for name in names}) > 1:
        raise NotAllowed("names of queues, or names of nodes (such as leveret@localhost), with commas between")
    return names


def journal_mode(text: str) -> str:
    if parse_journal(text) is None:
        raise NotAllowed("off, full, or a fraction such as 0.01")
    return text


def default_policy(name: str, text: str) -> Json:
    """Parses the value of a policy's key, in the form of a configuration file."""
    if name == "ha-params":
        return int(text) if text.isascii() and text.isdecimal() else [one.strip() for one in text.split(",")]
    if name == "ha-sync-batch-size":
        return whole(1, 1 << 30)(text)
    if name in (FORBID, "ha-sync-blocking"):
        return flag(text)
    if name == "ha-replication-window":
        try:
            value: Json = json.loads(text)
        except ValueError:
            raise NotAllowed('JSON, such as {"messages": 1000} in single quotes') from None
        return value
    return text


def rotation_date(text: str) -> str:
    """Parses a time of rotation. `$D0`: each day at midnight; see `leveret.node.system.logs`."""
    if text == "" or ROTATION_DATE.fullmatch(text):
        return text
    raise NotAllowed("$H, $H30, $D0 (day and hour), $W0D23 (weekday, 0 is Sunday, and hour) or $M1D0 (day of month)")


def on_off(text: str) -> bool:
    return one_of("on", "off", "true", "false")(text) in ("on", "true")


log_level = one_of(*LOG_LEVELS)
log_formatter = one_of("plaintext", "json")
log_time = one_of("rfc3339_space", "rfc3339_T", "epoch_usecs", "epoch_secs", "lager_default")
log_level_format = one_of("lc", "uc", "lc3", "uc3", "lc4", "uc4")
tls_version = partly(("tlsv1.2", "tlsv1.3"), ("tlsv1", "tlsv1.1", "sslv3"))

PROCESSES_MAX: Final = 64  # Of one machine.
# Other names of keys: that of RabbitMQ's management plugin, and a short one.
ALIASES: Final = {"management.load_definitions": "load_definitions", "disc_copies": "cluster_nodes.disc_copies"}
# Of which no value at all is one: a list of nothing.
MAY_BE_EMPTY: Final = frozenset({"cluster_nodes.disc_copies", "disc_copies"})

# What each key means

USED: dict[str, Used] = {
    # Ours
    "node_name": Used(node_name, "node_name"),
    "data_dir": Used(folder, "data_dir"),
    "processes": Used(whole(1, PROCESSES_MAX), "processes"),
    "host": Used(host),
    "port": Used(port),
    "fsync": Used(one_of("always", "interval", "never"), "fsync"),
    "fsync_interval": Used(milliseconds(1, 3_600_000), "fsync_interval_ms"),
    "segment_bytes": Used(size(64 << 10, 2 << 30), "segment_bytes"),
    "content_cache_bytes": Used(size(0, 1 << 40), "content_cache_bytes"),
    "unauthenticated_connections_max": Used(whole(1, 1_000_000), "unauthenticated_connections_max"),
    "cluster.listener": Used(cluster_listener, group="cluster.listener"),
    "cluster.port": Used(port, group="cluster.listener"),
    "cluster.advertised_host": Used(host),
    "cluster.priority": Used(whole(0, 255), "node_priority"),
    "cluster.compression": Used(one_of("none", "zlib"), "cluster_compression"),
    "cluster.operation_timeout": Used(milliseconds(100, 3_600_000), "operation_timeout_ms"),
    "cluster.refused_connection_is_proof": Used(flag, "trusts_refusals"),
    "cluster.ssl_options.cacertfile": Used(readable_file),
    "cluster.ssl_options.certfile": Used(readable_file),
    "cluster.ssl_options.keyfile": Used(readable_file),
    "cluster.ssl_options.password": Used(str),
    "cluster.ssl_options.versions.$": Used(tls_version, group="cluster.ssl_options.versions"),
    "cookie": Used(word, "cookie", group="cookie"),
    "cookie_file": Used(readable_file, "cookie_file", group="cookie"),
    "join": Used(cluster_addresses, "join"),
    "management_port": Used(port_or_none),
    "mirroring.default_policy.$": Used(str, group="mirroring.default_policy"),
    "mirroring.forbid_copying": Used(flag),
    "journal.default": Used(journal_mode, "journal_default"),
    "journal.max_bytes": Used(size(MIB, 1 << 50), "journal_max_bytes"),
    "spool.max_bytes": Used(size(0, 1 << 50), "spool_max_bytes"),
    "mqtt.max_retained_messages": Used(whole(0, 1 << 32), "mqtt_max_retained_messages"),
    "mqtt.max_retained_bytes": Used(size(0, 1 << 40), "mqtt_max_retained_bytes"),
    "mqtt.max_retained_message_size": Used(size(0, 8 * MIB), "mqtt_max_retained_message_size"),
    "mqtt.max_sessions": Used(whole(0, 1 << 32), "mqtt_max_sessions"),
    "num_mirrors": Used(whole(0, 255)),
    "cluster_nodes.disc_copies": Used(copies),
    "mirroring.spread": Used(word),
    "cluster_rebalance": Used(one_of(*TRIGGERS)),
    "cluster_rebalance.interval": Used(milliseconds(1_000, 86_400_000)),
    "cluster_rebalance.strategy": Used(one_of(*STRATEGIES, PLAN)),
    "cluster_rebalance.plan": Used(readable_file),
    "cluster_rebalance.threshold": Used(ratio(10.0)),
    "cluster_rebalance.moves_at_once": Used(whole(1, 1_000)),
    "cluster_rebalance.moves_per_hour": Used(or_infinity(whole(1, 2_000))),
    "cluster_rebalance.rest": Used(milliseconds(0, 86_400_000)),
    "node.capacity": Used(ratio(1_000.0), "node_capacity"),
    "node.label.$": Used(word, group="node.label"),
    # RabbitMQ's
    "queue_master_locator": Used(one_of(*LOCATORS)),
    "queue_leader_locator": Used(one_of(*LEADER_LOCATORS)),
    "mirroring_sync_batch_size": Used(whole(1, 1 << 30)),
    "mirroring_sync_max_throughput": Used(size(0, 1 << 40)),
    "cluster_name": Used(word, "cluster_name"),
    "net_ticktime": Used(seconds_as_ms(100, 3_600_000), "silence_ms"),
    "cluster_partition_handling": Used(one_of(*(one.value for one in Strategy))),
    "cluster_partition_handling.pause_if_all_down.recover": Used(one_of(*RECOVER)),
    "cluster_partition_handling.pause_if_all_down.nodes.$": Used(
        node_name, group="cluster_partition_handling.pause_if_all_down.nodes"
    ),
    "cluster_formation.peer_discovery_backend": Used(discovery_backend),
    "cluster_formation.classic_config.nodes.$": Used(listed_node, group="cluster_formation.classic_config.nodes"),
    "cluster_formation.dns.hostname": Used(host),
    "cluster_formation.k8s.service_name": Used(host),
    "cluster_formation.k8s.scheme": Used(one_of("http", "https")),
    "cluster_formation.k8s.host": Used(host),
    "cluster_formation.k8s.port": Used(port),
    "cluster_formation.k8s.token_path": Used(word),
    "cluster_formation.k8s.cert_path": Used(word),
    "cluster_formation.k8s.namespace_path": Used(word),
    "cluster_formation.target_cluster_size_hint": Used(whole(1, 1_000)),
    "cluster_formation.node_type": Used(disc_node),
    "cluster_formation.discovery_retry_limit": Used(whole(1, 10_000_000), "discovery_retry_limit"),
    "cluster_formation.discovery_retry_interval": Used(milliseconds(10, 3_600_000), "discovery_retry_interval_ms"),
    "listeners.tcp": Used(one_of("none"), group="listeners.tcp"),
    "listeners.tcp.$": Used(listener, group="listeners.tcp"),
    "listeners.ssl": Used(one_of("none"), group="listeners.ssl"),
    "listeners.ssl.$": Used(listener, group="listeners.ssl"),
    "proxy_protocol": Used(flag, "proxy_protocol"),
    "ssl_options.cacertfile": Used(readable_file),
    "ssl_options.certfile": Used(readable_file),
    "ssl_options.keyfile": Used(readable_file),
    "ssl_options.password": Used(str),
    "ssl_options.verify": Used(one_of("verify_none", "verify_peer")),
    "ssl_options.fail_if_no_peer_cert": Used(flag),
    "ssl_options.versions.$": Used(tls_version, group="ssl_options.versions"),
    "ssl_handshake_timeout": Used(or_infinity(milliseconds(1, 3_600_000)), "ssl_handshake_timeout_ms"),
    "management.tcp.port": Used(port_or_none),
    "management.tcp.ip": Used(host),
    "management.tcp.request_timeout": Used(milliseconds(100, 3_600_000), "management_request_ms"),
    "management.tcp.idle_timeout": Used(milliseconds(100, 3_600_000), "management_idle_ms"),
    "management.ssl.port": Used(port),
    "management.ssl.ip": Used(host),
    "management.ssl.cacertfile": Used(readable_file),
    "management.ssl.certfile": Used(readable_file),
    "management.ssl.keyfile": Used(readable_file),
    "management.ssl.password": Used(str),
    "management.ssl.verify": Used(one_of("verify_none", "verify_peer")),
    "management.ssl.fail_if_no_peer_cert": Used(flag),
    "management.ssl.versions.$": Used(tls_version, group="management.ssl.versions"),
    "prometheus.tcp.port": Used(port_or_none),
    "prometheus.tcp.ip": Used(host),
    "prometheus.return_per_object_metrics": Used(flag, "prometheus_per_object"),
    "management.path_prefix": Used(path_prefix, "management_prefix"),
    "management.cors.allow_origins.$": Used(origin, group="management.cors.allow_origins"),
    "management.cors.max_age": Used(whole(0, 86_400, "a number of seconds"), "management_cors_s"),
    "collect_statistics_interval": Used(milliseconds(500, 600_000), "statistics_interval_ms"),
    "management.http.max_body_size": Used(size(1, 1 << 30), "management_body_bytes_max"),
    "mqtt.listeners.tcp": Used(one_of("none"), group="mqtt.listeners.tcp"),
    "mqtt.listeners.tcp.$": Used(listener, group="mqtt.listeners.tcp"),
    "mqtt.listeners.ssl": Used(one_of("none"), group="mqtt.listeners.ssl"),
    "mqtt.listeners.ssl.$": Used(listener, group="mqtt.listeners.ssl"),
    "mqtt.proxy_protocol": Used(flag, "mqtt_proxy_protocol"),
    "mqtt.vhost": Used(word, "mqtt_vhost"),
    "mqtt.exchange": Used(word, "mqtt_exchange"),
    "mqtt.prefetch": Used(whole(1, 65_535), "mqtt_prefetch"),
    "mqtt.allow_anonymous": Used(flag, "mqtt_allow_anonymous"),
    "mqtt.default_user": Used(word, "mqtt_default_user"),
    "mqtt.default_pass": Used(str, "mqtt_default_pass"),
    "mqtt.ssl_cert_login": Used(flag, "mqtt_cert_login"),
    "mqtt.subscription_ttl": Used(
        or_undefined(or_infinity(milliseconds(1_000, 10 * 365 * 86_400_000))), "mqtt_subscription_ttl_ms"
    ),
    # RabbitMQ 4's name for it.
    "mqtt.max_session_expiry_interval_seconds": Used(or_infinity(seconds_as_ms(1_000, 10 * 365 * 86_400_000))),
    "mqtt.server_keepalive": Used(whole(0, 65_535, "a number of seconds"), "mqtt_server_keepalive_s"),
    "mqtt.sys_interval": Used(whole(0, 65_535, "a number of seconds"), "mqtt_sys_interval_s"),
    "mqtt.durable_queue_type": Used(one_of("classic", "quorum"), "mqtt_durable_queue_type"),
    "mqtt.login_timeout": Used(milliseconds(1, 3_600_000), "mqtt_login_timeout_ms"),
    "mqtt.max_packet_size_unauthenticated": Used(size(1024, 256 * MIB), "mqtt_packet_max_unauthenticated"),
    "mqtt.max_packet_size_authenticated": Used(size(1024, 256 * MIB), "mqtt_packet_max"),
    "mqtt.topic_alias_maximum": Used(whole(0, 65_535), "mqtt_topic_alias_max"),
    "mqtt.disconnect_on_unauthorized": Used(flag, "mqtt_disconnect_on_unauthorized"),
    "web_mqtt.tcp.listener": Used(listener),
    "web_mqtt.tcp.port": Used(port),
    "web_mqtt.tcp.ip": Used(host),
    "web_mqtt.ssl.listener": Used(listener),
    "web_mqtt.ssl.port": Used(port),
    "web_mqtt.ssl.ip": Used(host),
    "web_mqtt.ssl.cacertfile": Used(readable_file),
    "web_mqtt.ssl.certfile": Used(readable_file),
    "web_mqtt.ssl.keyfile": Used(readable_file),
    "web_mqtt.ssl.password": Used(str),
    "web_mqtt.ssl.verify": Used(one_of("verify_none", "verify_peer")),
    "web_mqtt.ssl.fail_if_no_peer_cert": Used(flag),
    "web_mqtt.ssl.versions.$": Used(tls_version, group="web_mqtt.ssl.versions"),
    "web_mqtt.proxy_protocol": Used(flag, "web_mqtt_proxy_protocol"),
    "web_mqtt.ws_path": Used(path, "web_mqtt_path"),
    "web_mqtt.ws_opts.max_frame_size": Used(or_infinity(size(1024, 1 << 40)), "web_mqtt_message_max"),
    "stomp.listeners.tcp": Used(one_of("none"), group="stomp.listeners.tcp"),
    "stomp.listeners.tcp.$": Used(listener, group="stomp.listeners.tcp"),
    "stomp.listeners.ssl": Used(one_of("none"), group="stomp.listeners.ssl"),
    "stomp.listeners.ssl.$": Used(listener, group="stomp.listeners.ssl"),
    "stomp.proxy_protocol": Used(flag, "stomp_proxy_protocol"),
    "stomp.default_vhost": Used(word, "stomp_default_vhost"),
    "stomp.default_user": Used(word, "stomp_default_user"),
    "stomp.default_pass": Used(str, "stomp_default_pass"),
    "stomp.default_topic_exchange": Used(word, "stomp_default_topic_exchange"),
    "stomp.default_nack_requeue": Used(flag, "stomp_default_nack_requeue"),
    "stomp.implicit_connect": Used(flag, "stomp_implicit_connect"),
    "stomp.ssl_cert_login": Used(flag, "stomp_cert_login"),
    "stomp.hide_server_info": Used(flag, "stomp_hide_server_info"),
    "stomp.login_timeout": Used(milliseconds(1, 3_600_000), "stomp_login_timeout_ms"),
    "stomp.max_frame_size_unauthenticated": Used(size(1024, 256 * MIB), "stomp_frame_max_unauthenticated"),
    "stomp.max_frame_size": Used(size(1024, 256 * MIB), "stomp_frame_max"),
    "web_stomp.tcp.listener": Used(listener),
    "web_stomp.tcp.port": Used(port),
    "web_stomp.tcp.ip": Used(host),
    "web_stomp.ssl.listener": Used(listener),
    "web_stomp.ssl.port": Used(port),
    "web_stomp.ssl.ip": Used(host),
    "web_stomp.ssl.cacertfile": Used(readable_file),
    "web_stomp.ssl.certfile": Used(readable_file),
    "web_stomp.ssl.keyfile": Used(readable_file),
    "web_stomp.ssl.password": Used(str),
    "web_stomp.ssl.verify": Used(one_of("verify_none", "verify_peer")),
    "web_stomp.ssl.fail_if_no_peer_cert": Used(flag),
    "web_stomp.ssl.versions.$": Used(tls_version, group="web_stomp.ssl.versions"),
    "web_stomp.proxy_protocol": Used(flag, "web_stomp_proxy_protocol"),
    "web_stomp.ws_frame": Used(one_of("text", "binary"), "web_stomp_frame"),
    "web_stomp.use_http_auth": Used(flag, "web_stomp_http_auth"),
    "web_stomp.ws_path": Used(path, "web_stomp_path"),
    "web_stomp.ws_opts.max_frame_size": Used(or_infinity(size(1024, 1 << 40)), "web_stomp_message_max"),
    "tcp_listen_options.backlog": Used(whole(1, 65_535), "backlog"),
    "tcp_listen_options.nodelay": Used(flag, "nodelay"),
    "tcp_listen_options.keepalive": Used(flag, "keepalive"),
    "tcp_listen_options.sndbuf": Used(size(1024, 1 << 30), "send_buffer_bytes"),
    "tcp_listen_options.recbuf": Used(size(1024, 1 << 30), "receive_buffer_bytes"),
    "tcp_listen_options.linger.on": Used(flag),
    "tcp_listen_options.linger.timeout": Used(whole(0, 65_535, "a number of seconds")),
    "handshake_timeout": Used(or_infinity(milliseconds(1, 3_600_000)), "handshake_timeout_ms"),
    "heartbeat": Used(whole(0, 65_535, "a number of seconds"), "heartbeat_s"),
    # RabbitMQ's 0, no limit, would let one frame fill the memory.
    "frame_max": Used(size(4096, 512 * MIB), "frame_max"),
    "initial_frame_max": Used(size(4096, MIB), "initial_frame_max"),
    "channel_max": Used(whole(0, 65_535), "channel_max"),
    "connection_max": Used(or_infinity(whole(0, 10_000_000)), "connection_max"),
    "max_message_size": Used(size(1, 512 * MIB), "max_message_size"),
    "consumer_timeout": Used(or_infinity(milliseconds(1, 1 << 42)), "consumer_timeout_ms"),
    "auth_mechanisms.$": Used(
        partly(("PLAIN", "AMQPLAIN", "EXTERNAL"), ("RABBIT-CR-DEMO", "ANONYMOUS")), group="auth_mechanisms"
    ),
    "ssl_cert_login_from": Used(
        partly(("distinguished_name", "common_name"), ("subject_alternative_name", "subject_alt_name")),
        "ssl_cert_login_from",
    ),
    "loopback_users": Used(one_of("none"), group="loopback_users"),
    "loopback_users.$": Used(flag, group="loopback_users"),
    "default_vhost": Used(word, "default_vhost"),
    "default_user": Used(word, "default_user"),
    "default_pass": Used(word, "default_pass"),
    "default_user_tags.$": Used(flag, group="default_user_tags"),
    "default_permissions.configure": Used(pattern, "default_configure"),
    "default_permissions.write": Used(pattern, "default_write"),
    "default_permissions.read": Used(pattern, "default_read"),
    "vm_memory_high_watermark.relative": Used(ratio(1.0), group="vm_memory_high_watermark"),
    "vm_memory_high_watermark.absolute": Used(size(1, 1 << 50, LIMIT_UNITS), group="vm_memory_high_watermark"),
    "vm_memory_high_watermark_paging_ratio": Used(ratio(1.0), "memory_paging_ratio"),
    "total_memory_available_override_value": Used(size(1, 1 << 50, LIMIT_UNITS), "total_memory_override"),
    "memory_monitor_interval": Used(milliseconds(10, 3_600_000), "memory_monitor_interval_ms"),
    "disk_free_limit.relative": Used(ratio(1000.0), group="disk_free_limit"),
    "disk_free_limit.absolute": Used(size(0, 1 << 60, LIMIT_UNITS), group="disk_free_limit"),
    "load_definitions": Used(readable, "load_definitions"),
    "log.dir": Used(folder),
    "log.console": Used(flag, "log_console"),
    "log.console.level": Used(log_level, "log_console_level"),
    "log.console.stdio": Used(one_of("stdout", "stderr"), "log_console_stdio"),
    "log.file": Used(log_file),
    "log.file.level": Used(log_level, "log_file_level"),
    "log.file.rotation.date": Used(rotation_date),
    "log.file.rotation.size": Used(size(0, 1 << 50)),
    "log.file.rotation.count": Used(whole(1, 10_000)),
    "log.file.rotation.compress": Used(flag),
    **{
        f"log.{output}.formatter{key}": Used(parse)
        for output in ("console", "file")
        for key, parse in (
            ("", log_formatter),
            (".time_format", log_time),
            (".level_format", log_level_format),
            (".single_line", on_off),
        )
    },
    **{f"log.{category}.level": Used(log_level) for category in LOG_CATEGORIES},
}

_TRUE_FALSE = ("true", "false")

FIXED: dict[str, Fixed] = {
    "auth_backends.$": Fixed(("internal", "rabbit_auth_backend_internal"), ()),
    "management.rates_mode": Fixed(("basic",), ("detailed", "none")),
    "cluster_formation.node_cleanup.only_log_warning": Fixed(("true",), _TRUE_FALSE),
    "anonymous_login_user": Fixed(("none",), ()),
    "credential_validator.validation_backend": Fixed(("rabbit_credential_validator_accept_everything",), ()),
    "default_queue_type": Fixed(("classic", "rabbit_classic_queue"), ()),
    "deprecated_features.permit.$": Fixed(("true",), _TRUE_FALSE),
    "log.console.use_colors": Fixed(("off", "false"), ("on", "true")),
    "log.exchange": Fixed(("false",), _TRUE_FALSE),
    "log.journald": Fixed(("false",), _TRUE_FALSE),
    "log.syslog": Fixed(("false",), _TRUE_FALSE),
    "password_hashing_module": Fixed(("rabbit_password_hashing_sha256",), ()),
    "mqtt.max_connections": Fixed(("infinity",), ()),
    "mqtt.sparkplug": Fixed(("false",), _TRUE_FALSE),
    "web_mqtt.ws_opts.compress": Fixed(("false",), _TRUE_FALSE),
    "web_stomp.ws_opts.compress": Fixed(("false",), _TRUE_FALSE),
    "reverse_dns_lookups": Fixed(("false",), _TRUE_FALSE),
    "ssl_options": Fixed(("none",), ()),
    "tcp_listen_options": Fixed(("none",), ()),
    "ssl_options.honor_cipher_order": Fixed(("true",), _TRUE_FALSE),
    "ssl_options.honor_ecc_order": Fixed(("true",), _TRUE_FALSE),
    "ssl_options.secure_renegotiate": Fixed(("true",), _TRUE_FALSE),
}

_ERLANG = "it tunes the Erlang machine, and this broker runs without one"
_STORE = "messages are stored in another way here"
_FOUNDING = "only one node may found the cluster here, so none has to wait for luck or for a lock"
_NAMES = "nodes are asked at their addresses, and tell their names themselves"
_CLEANUP = "no node is removed automatically; leveretctl leave_cluster and forget_cluster_node remove one"
_STATISTICS = "counters are always kept"
_SOCKET = "it tunes Erlang's socket driver"
_CATEGORIES = ("federation", "upgrade", "ra", "shovel", "prelaunch", "feature_flags", "ldap", "osiris")

IGNORED: dict[str, Ignored] = {
    "num_acceptors.*": Ignored(_ERLANG),
    "mqtt.num_acceptors.*": Ignored(_ERLANG),
    "web_mqtt.num_acceptors.*": Ignored(_ERLANG),
    "web_mqtt.use_file_handle_cache": Ignored(_ERLANG),
    "web_mqtt.ws_opts.idle_timeout": Ignored("silent clients are ended by MQTT's keep alive"),
    "stomp.num_acceptors.*": Ignored(_ERLANG),
    "web_stomp.num_acceptors.*": Ignored(_ERLANG),
    "web_stomp.ws_opts.idle_timeout": Ignored("silent clients are ended by STOMP's heart-beats"),
    "mqtt.retained_message_store": Ignored(_STORE),
    "mqtt.retained_message_store_dets_sync_interval": Ignored(_STORE),
    "socket_writer.gc_threshold": Ignored(_ERLANG),
    "erlang.*": Ignored(_ERLANG),
    "hipe_compile": Ignored(_ERLANG),
    "background_gc_enabled": Ignored(_ERLANG),
    "background_gc_target_interval": Ignored(_ERLANG),
    "default_worker_pool_size": Ignored(_ERLANG),
    "delegate_count": Ignored(_ERLANG),
    "sysmon_handler.*": Ignored(_ERLANG),
    "distribution.*": Ignored(_ERLANG),
    "vm_memory_calculation_strategy": Ignored(_ERLANG),
    "ssl_options.bypass_pem_cache": Ignored(_ERLANG),
    "ssl_options.log_alert": Ignored(_ERLANG),
    "ssl_options.log_level": Ignored(_ERLANG),
    "ssl_options.reuse_sessions": Ignored(_ERLANG),
    "mnesia_table_loading_retry_timeout": Ignored(_STORE),
    "mnesia_table_loading_retry_limit": Ignored(_STORE),
    "message_store_shutdown_timeout": Ignored(_STORE),
    "queue_index_embed_msgs_below": Ignored(_STORE),
    "classic_queue.default_version": Ignored(_STORE),
    "vhost_restart_strategy": Ignored(_STORE),
    "raft.*": Ignored("it tunes RabbitMQ's Raft log, and this broker has one of its own"),
    "quorum_queue.*": Ignored("a quorum queue is a mirrored one here, whose members confirm together"),
    "channel_operation_timeout": Ignored("cluster.operation_timeout says how long a change waits for other nodes"),
    "cluster_keepalive_interval": Ignored("net_ticktime alone says when a node counts as gone"),
    "cluster_formation.randomized_startup_delay_range.*": Ignored(_FOUNDING),
    "cluster_formation.k8s.address_type": Ignored(_NAMES, one_of("ip", "hostname")),
    "cluster_formation.k8s.hostname_suffix": Ignored(_NAMES),
    "cluster_formation.k8s.seed_node": Ignored(_FOUNDING),
    "cluster_formation.k8s.ordinal_start": Ignored(_FOUNDING),
    "cluster_formation.node_cleanup.interval": Ignored(_CLEANUP),
    "cluster_formation.lock_retry_limit": Ignored(_FOUNDING),
    "cluster_formation.lock_retry_timeout": Ignored(_FOUNDING),
    "cluster_formation.internal_lock_retries": Ignored(_FOUNDING),
    "node_tags.*": Ignored("nothing here looks at tags"),
    "cluster_tags.*": Ignored("nothing here looks at tags"),
    "collect_statistics": Ignored(_STATISTICS),
    "management_agent.*": Ignored(_STATISTICS),
    "management.sample_retention_policies.*": Ignored("charts go back ten minutes for a queue, a day for a cluster"),
    "motd_file": Ignored("this broker prints no message of the day"),
    "log.console.color_esc_seqs.*": Ignored("this broker's log has no colours"),
    **{f"log.{name}.level": Ignored("nothing is logged in this category here") for name in _CATEGORIES},
    "tcp_listen_options.buffer": Ignored(_SOCKET),
    "tcp_listen_options.delay_send": Ignored(_SOCKET),
    "tcp_listen_options.exit_on_close": Ignored(_SOCKET),
    "tcp_listen_options.high_msgq_watermark": Ignored(_SOCKET),
    "tcp_listen_options.high_watermark": Ignored(_SOCKET),
    "tcp_listen_options.low_msgq_watermark": Ignored(_SOCKET),
    "tcp_listen_options.low_watermark": Ignored(_SOCKET),
    "tcp_listen_options.send_timeout": Ignored(_SOCKET),
    "tcp_listen_options.send_timeout_close": Ignored(_SOCKET),
}

_MANAGEMENT = "this part of the management over HTTP"
_DISCOVERY = "here: cluster_formation.classic_config.nodes.N, cluster_formation.dns.hostname, cluster_formation.k8s.*"

UNSUPPORTED: dict[str, Unsupported] = {
    "cluster_formation.*": Unsupported(_DISCOVERY),
    "cluster_nodes.*": Unsupported(_DISCOVERY),
    "distribution.listener.*": Unsupported("cluster.listener says where this node meets the others"),
    "management.*": Unsupported(_MANAGEMENT),
    "prometheus.*": Unsupported("this part of the metrics for Prometheus"),
    "definitions.*": Unsupported("definitions from elsewhere; here: load_definitions"),
    "mqtt.*": Unsupported("this part of MQTT"),
    "mqtt.tcp_listen_options.*": Unsupported("tcp_listen_options hold for MQTT, too"),
    "web_mqtt.*": Unsupported("this part of MQTT over WebSocket"),
    "stomp.*": Unsupported("this part of STOMP"),
    "stomp.tcp_listen_options.*": Unsupported("tcp_listen_options hold for STOMP, too"),
    "web_stomp.*": Unsupported("this part of STOMP over WebSocket"),
    "stream.*": Unsupported("the stream protocol"),
    "amqp1_0.*": Unsupported("AMQP 1.0"),
    "auth_backends.*": Unsupported("users kept elsewhere"),
    "auth_http.*": Unsupported("users kept elsewhere"),
    "auth_ldap.*": Unsupported("users kept elsewhere"),
    "auth_oauth2.*": Unsupported("users kept elsewhere"),
    "aws.*": Unsupported(_DISCOVERY),
    "event_exchange.*": Unsupported("an exchange for events"),
    "auth_cache.*": Unsupported("users kept elsewhere"),
    "trust_store.*": Unsupported("a store of trusted certificates"),
    "ssl_cert_login_san_type": Unsupported("login by another name in a certificate"),
    "ssl_cert_login_san_index": Unsupported("login by another name in a certificate"),
    "ssl_allow_poodle_attack": Unsupported("SSL 3"),
    "ssl_options.cacerts.*": Unsupported("this TLS option"),
    "ssl_options.cert": Unsupported("this TLS option"),
    "ssl_options.ciphers.*": Unsupported("this TLS option"),
    "ssl_options.client_renegotiation": Unsupported("this TLS option"),
    "ssl_options.crl_check": Unsupported("this TLS option"),
    "ssl_options.depth": Unsupported("this TLS option"),
    "ssl_options.dh": Unsupported("this TLS option"),
    "ssl_options.dhfile": Unsupported("this TLS option"),
    "ssl_options.key.*": Unsupported("this TLS option"),
    "ssl_options.psk_identity": Unsupported("this TLS option"),
    "credential_validator.*": Unsupported("rules for passwords"),
    "default_users.*": Unsupported("more than one default user"),
    "default_policies.*": Unsupported("default policies"),
    "default_limits.*": Unsupported("default limits"),
    "channel_max_per_node": Unsupported("this limit"),
    "vhost_max": Unsupported("this limit"),
    "cluster_queue_limit": Unsupported("this limit"),
    "cluster_exchange_limit": Unsupported("this limit"),
    "product.*": Unsupported("another name for the product"),
    "tcp_listen_options.dontroute": Unsupported("this socket option"),
    "tcp_listen_options.fd": Unsupported("this socket option"),
    "tcp_listen_options.port": Unsupported("this socket option"),
    "tcp_listen_options.priority": Unsupported("this socket option"),
    "tcp_listen_options.tos": Unsupported("this socket option"),
    "log.console.formatter.*": Unsupported("this form of log lines"),
    "log.file.formatter.*": Unsupported("this form of log lines"),
    "log.exchange.*": Unsupported("logging to an exchange"),
    "log.journald.*": Unsupported("logging to journald"),
    "log.syslog.*": Unsupported("logging to syslog"),
    **{
        f"log.{name}.{rest}": Unsupported("a log file for each category")
        for name in (*LOG_CATEGORIES, *_CATEGORIES)
        for rest in ("file", "rotation.*")
    },
}

RULES: dict[str, Rule] = {**UNSUPPORTED, **IGNORED, **FIXED, **USED}


class Found(NamedTuple):
    name: str  # the key as it stands in RULES
    rule: Rule
    rest: str  # what stands for `$`


def find(key: str) -> Found | None:
    """Returns the rule for a key as it was written: that of the key itself, else with `$`, else of the longest
    branch."""
    if key in RULES and key[-1] not in "$*":
        return Found(key, RULES[key], "")
    # RabbitMQ writes a dot within a word as "\.".
    words = re.split(r"(?<!\\)\.", key)
    if not all(words):
        return None
    above = ".".join(words[:-1])
    if above + ".$" in RULES:
        return Found(above + ".$", RULES[above + ".$"], words[-1].replace("\\.", "."))
    for length in range(len(words) - 1, 0, -1):
        name = ".".join(words[:length]) + ".*"
        if name in RULES:
            return Found(name, RULES[name], "")
    return None
