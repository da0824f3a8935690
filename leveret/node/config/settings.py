"""The settings of a node: every setting that the broker uses, with its type and its default.

A field is here only if the broker uses it. Its name in a configuration file and in the environment, and its values, are
in `schema`; `load` decides which source gives its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from leveret.metadata.rebalancing import Schedule
from leveret.metadata.rules.ha_policy import Defaults
from leveret.metadata.rules.partition_handling import PartitionHandling

TICK_MS = 20  # The length of a tick of Raft; rates per second are converted to ticks.
KIB = 1 << 10
MIB = 1 << 20

DEFAULT_NODE_NAME = "leveret@localhost"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 5672
# RabbitMQ's habit: the port for other nodes is the one for clients plus this.
CLUSTER_PORT_OFFSET = 20_000
DEFAULT_CLUSTER_PORT = DEFAULT_PORT + CLUSTER_PORT_OFFSET
MANAGEMENT_PORT_OFFSET = 10_000
PROMETHEUS_PORT_OFFSET = 10_020

# Python's number for each of RabbitMQ's log levels. `none` is above all that is ever logged.
LOG_LEVELS: Mapping[str, int] = MappingProxyType(
    {
        "debug": 10,
        "info": 20,
        "notice": 25,
        "warning": 30,
        "error": 40,
        "critical": 50,
        "alert": 50,
        "emergency": 50,
        "none": 100,
    }
)
# The categories a log line can belong to; the Python logger of each is "leveret.<category>", of `default` "leveret".
LOG_CATEGORIES = ("default", "connection", "channel", "queue", "mirroring", "cluster", "peers")


def log_levels(given: Mapping[str, str]) -> Mapping[str, str]:
    """Returns a level for each category: those not given have that of `default`, which is `info` if not given."""
    default = given.get("default", "info")
    return MappingProxyType({category: given.get(category, default) for category in LOG_CATEGORIES})


class LogForm(NamedTuple):
    """The format of the lines of one output: `log.console.formatter.*`, `log.file.formatter.*`."""

    json: bool = False
    time: str = "rfc3339_space"
    level: str = "lc"
    single_line: bool = False


@dataclass(frozen=True)
class Rotation:
    """The rotation of a log file, and how many old files are kept: `log.file.rotation.*`."""

    date: str = ""  # `$D0`, ...; "" is never
    size: int = 0  # bytes; 0 is never
    count: int = 10
    compress: bool = False


class Listener(NamedTuple):
    """An address to listen at."""

    host: str  # "" is every interface, IPv4 and IPv6
    port: int  # 0 lets the system choose

    def __str__(self) -> str:
        if not self.host:
            return str(self.port)
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


DEFAULT_CLUSTER_LISTENER = Listener(DEFAULT_HOST, DEFAULT_CLUSTER_PORT)


@dataclass(frozen=True, kw_only=True)
class TlsOptions:
    """The options `ssl_options.*`. Certificate and key are always there; `load` refuses a TLS listener without."""

    certfile: str
    keyfile: str
    cacertfile: str | None = None
    password: str | None = field(default=None, repr=False)
    verify_peer: bool = False
    fail_if_no_peer_cert: bool = False
    versions: tuple[Literal["tlsv1.2", "tlsv1.3"], ...] = ("tlsv1.2", "tlsv1.3")


class ListedNode(NamedTuple):
    """A node that `cluster_formation.classic_config.nodes` names, this one among them."""

    name: str
    host: str
    port: int


class KubernetesService(NamedTuple):
    """The service that knows the nodes, and how Kubernetes is asked: `cluster_formation.k8s.*`."""

    service_name: str
    scheme: Literal["http", "https"] = "https"
    host: str = "kubernetes.default.svc.cluster.local"
    port: int = 443
    token_path: str = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    cert_path: str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    namespace_path: str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """The peer discovery of a node without data; how it decides is in `leveret.node.cluster.discovery`."""

    backend: Literal["classic_config", "dns", "k8s"]
    nodes: tuple[ListedNode, ...] = ()  # of classic_config
    hostname: str = ""  # of dns and k8s
    kubernetes: KubernetesService | None = None  # of k8s
    # So many nodes, this one included, must have answered before one of them founds the cluster.
    founders: int


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Effective settings of one node. Sizes are bytes, times end in their unit; None means "no limit"."""

    # The node's identity
    node_name: str = DEFAULT_NODE_NAME
    data_dir: str
    config_files: tuple[str, ...] = ()  # that were read
    cluster_name: str = DEFAULT_NODE_NAME
    processes: int = 1  # How many nodes this machine runs as one, which share their ports for clients.
    load_definitions: str | None = None  # A file, or a folder with some, imported at each start.

    # Listeners
    tcp_listeners: tuple[Listener, ...] = (Listener(DEFAULT_HOST, DEFAULT_PORT),)
    ssl_listeners: tuple[Listener, ...] = ()
    proxy_protocol: bool = False
    tls: TlsOptions | None = None
    backlog: int = 1024
    nodelay: bool = True
    keepalive: bool = False
    send_buffer_bytes: int | None = None  # None leaves the system's
    receive_buffer_bytes: int | None = None
    linger_s: int | None = None

    # The management port. A node that is made without a configuration (a simulated one) has none.
    management_listeners: tuple[Listener, ...] = ()
    management_tls_listeners: tuple[Listener, ...] = ()
    management_tls: TlsOptions | None = None
    management_prefix: str = ""  # before every path, beginning with a slash
    management_body_bytes_max: int = 10 * MIB
    management_request_ms: int = 30_000  # from the first byte of a request to its last
    management_idle_ms: int = 60_000
    management_origins: tuple[str, ...] = ()  # origins of other pages that may use the API (CORS), or *
    management_cors_s: int = 1_800  # for how long browsers remember that
    statistics_interval_ms: int = 5_000  # between two samples of the counters

    # Metrics for Prometheus, on a port of their own
    prometheus_listeners: tuple[Listener, ...] = ()
    prometheus_is_wanted: bool = False  # The port is configured: not to get it is an error.
    prometheus_per_object: bool = False  # /metrics has each object, as /metrics/per-object does.

    # The cluster
    cluster_listener: Listener = DEFAULT_CLUSTER_LISTENER
    cluster_host: str = DEFAULT_HOST  # how other nodes reach this one
    cluster_tls: TlsOptions | None = None
    cluster_compression: Literal["none", "zlib"] = "none"  # of frames to other nodes
    cookie_file: str | None = None
    cookie: str | None = field(default=None, repr=False)
    join: tuple[tuple[str, int], ...] = ()
    discovery: Discovery | None = None
    discovery_retry_limit: int = 120
    discovery_retry_interval_ms: int = 500
    node_priority: int = 0  # in elections: the higher goes first
    silence_ms: int = 4_000  # RabbitMQ's net_ticktime, whose 60 s would leave clients waiting for a node long dead
    operation_timeout_ms: int = 10_000  # a change of metadata that found no majority until then fails

    trusts_refusals: bool = False  # A refused connection proves that a node does not run: see `two_nodes`.

    # Partitions, until leveretctl sets another strategy
    partition_handling: PartitionHandling = field(default_factory=PartitionHandling)
    spool_max_bytes: int = 1024 * MIB  # of publishes for queues that cannot be reached

    # Mirrored queues
    mirroring: Defaults = field(default_factory=Defaults)

    # Rebalancing of masters
    rebalance: Schedule = field(default_factory=Schedule)
    node_capacity: float = 1.0  # relative to other nodes
    node_labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    # The event journal
    journal_default: str = "off"  # for queues without a policy about it
    journal_max_bytes: int = 256 * MIB  # above it the oldest events are deleted

    # What a vhost may have of MQTT's clients
    mqtt_max_retained_messages: int = 1_000_000
    mqtt_max_retained_bytes: int = 256 * MIB
    mqtt_max_retained_message_size: int = MIB
    mqtt_max_sessions: int = 1_000_000

    # Limits of a connection
    handshake_timeout_ms: int | None = 10_000
    ssl_handshake_timeout_ms: int | None = 5_000
    heartbeat_s: int = 60
    frame_max: int = 128 * KIB
    initial_frame_max: int = 8 * KIB
    channel_max: int = 2047  # 0 is "as many as the protocol has", 65535
    connection_max: int | None = None
    unauthenticated_connections_max: int = 1024
    max_message_size: int = 128 * MIB
    consumer_timeout_ms: int | None = 1_800_000

    # MQTT
    mqtt_listeners: tuple[Listener, ...] = ()
    mqtt_tls_listeners: tuple[Listener, ...] = ()
    mqtt_proxy_protocol: bool = False
    mqtt_vhost: str = "/"
    mqtt_exchange: str = "amq.topic"
    mqtt_prefetch: int = 256
    mqtt_allow_anonymous: bool = True
    mqtt_default_user: str = "guest"
    mqtt_default_pass: str = field(default="guest", repr=False)
    mqtt_cert_login: bool = False
    mqtt_subscription_ttl_ms: int | None = 86_400_000  # how long a session lasts without its client, at most
    mqtt_server_keepalive_s: int = 0  # that clients of MQTT 5.0 are told to use; 0: their own
    mqtt_sys_interval_s: int = 10  # of the topics below $SYS; 0: there are none
    mqtt_durable_queue_type: Literal["classic", "quorum"] = "classic"
    mqtt_login_timeout_ms: int = 10_000
    mqtt_packet_max_unauthenticated: int = 64 * KIB
    mqtt_packet_max: int = 16 * MIB
    mqtt_topic_alias_max: int = 16
    mqtt_disconnect_on_unauthorized: bool = True
    web_mqtt_listeners: tuple[Listener, ...] = ()
    web_mqtt_tls_listeners: tuple[Listener, ...] = ()
    web_mqtt_tls: TlsOptions | None = None
    web_mqtt_proxy_protocol: bool = False
    web_mqtt_path: str = "/ws"
    web_mqtt_message_max: int | None = None  # bytes of a WebSocket message

    # STOMP
    stomp_listeners: tuple[Listener, ...] = ()
    stomp_tls_listeners: tuple[Listener, ...] = ()
    stomp_proxy_protocol: bool = False
    stomp_default_vhost: str = "/"
    stomp_default_user: str = "guest"  # of clients that name none; "none": they are refused
    stomp_default_pass: str = field(default="guest", repr=False)
    stomp_default_topic_exchange: str = "amq.topic"
    stomp_default_nack_requeue: bool = True
    stomp_implicit_connect: bool = False
    stomp_cert_login: bool = False
    stomp_hide_server_info: bool = False
    stomp_login_timeout_ms: int = 10_000
    stomp_frame_max_unauthenticated: int = 64 * KIB
    stomp_frame_max: int = 4 * MIB
    web_stomp_listeners: tuple[Listener, ...] = ()
    web_stomp_tls_listeners: tuple[Listener, ...] = ()
    web_stomp_tls: TlsOptions | None = None
    web_stomp_proxy_protocol: bool = False
    web_stomp_path: str = "/ws"
    web_stomp_frame: Literal["text", "binary"] = "text"  # in which messages are sent, unless they are no text
    web_stomp_message_max: int | None = None  # bytes of a WebSocket message
    web_stomp_http_auth: bool = False  # the login of the HTTP request counts, if there is one

    # Authentication
    auth_mechanisms: tuple[Literal["PLAIN", "AMQPLAIN", "EXTERNAL"], ...] = ("PLAIN", "AMQPLAIN")
    ssl_cert_login_from: Literal["distinguished_name", "common_name"] = "distinguished_name"
    loopback_users: frozenset[str] = frozenset({"guest"})
    default_vhost: str = "/"
    default_user: str = "guest"
    default_pass: str = field(default="guest", repr=False)
    default_user_tags: tuple[str, ...] = ("administrator",)
    default_configure: str = ".*"
    default_write: str = ".*"
    default_read: str = ".*"

    # Alarms. Of a relative and an absolute limit, one is None.
    memory_watermark_relative: float | None = 0.4
    memory_watermark_absolute: int | None = None
    memory_paging_ratio: float = 0.5  # of the memory limit, above which contents leave memory
    total_memory_override: int | None = None
    memory_monitor_interval_ms: int = 2_500
    disk_free_relative: float | None = None  # times the machine's memory
    disk_free_absolute: int | None = 50_000_000

    # The log of messages
    fsync: Literal["always", "interval", "never"] = "always"
    fsync_interval_ms: int = 1_000
    segment_bytes: int = 64 * MIB
    content_cache_bytes: int = 64 * MIB

    # The node's log
    log_console: bool = True
    log_console_level: str = "debug"  # lets through all that its category lets through
    log_console_stdio: Literal["stdout", "stderr"] = "stderr"
    log_console_form: LogForm = field(default_factory=LogForm)
    log_file: str | None = None  # an absolute path
    log_file_level: str = "debug"
    log_file_form: LogForm = field(default_factory=LogForm)
    log_rotation: Rotation = field(default_factory=Rotation)
    log_levels: Mapping[str, str] = field(default_factory=lambda: log_levels({}))  # one for each category

    @property
    def has_mqtt(self) -> bool:
        """Whether MQTT clients can connect."""
        return bool(
            self.mqtt_listeners or self.mqtt_tls_listeners or self.web_mqtt_listeners or self.web_mqtt_tls_listeners
        )

    @property
    def has_stomp(self) -> bool:
        """Whether STOMP clients can connect."""
        return bool(
            self.stomp_listeners
            or self.stomp_tls_listeners
            or self.web_stomp_listeners
            or self.web_stomp_tls_listeners
        )

    def memory_limit_bytes(self, total_bytes: int) -> int:
        """Returns the used memory above which publishers are blocked, on a machine with `total_bytes`."""
        return _limit(
            self.memory_watermark_relative, self.memory_watermark_absolute, self.total_memory_override or total_bytes
        )

    def disk_limit_bytes(self, total_bytes: int) -> int:
        """Returns the free disk space below which publishers are blocked, on a machine with `total_bytes` of memory."""
        return _limit(self.disk_free_relative, self.disk_free_absolute, self.total_memory_override or total_bytes)


def _limit(relative: float | None, absolute: int | None, total_bytes: int) -> int:
    if relative is not None:
        return int(total_bytes * relative)
    assert absolute is not None  # One of the two is always given.
    return absolute
