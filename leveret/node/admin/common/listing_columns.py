"""The columns that lists can have, under RabbitMQ's names; and which of them are shown if none are named.

All columns of rabbitmqctl 3.10 are here, and ours besides. Those that are always empty here (`ssl_hash`) are also empty
in RabbitMQ for connections without such a value.
"""

from __future__ import annotations

from typing import Final

QUEUES: Final = (
    "name", "durable", "auto_delete", "arguments", "policy", "operator_policy", "effective_policy_definition", "pid",
    "owner_pid", "exclusive", "exclusive_consumer_pid", "exclusive_consumer_tag", "messages_ready",
    "messages_unacknowledged", "messages", "messages_ready_ram", "messages_ready_disk", "messages_unacknowledged_ram",
    "messages_ram", "messages_persistent", "message_bytes", "message_bytes_ready", "message_bytes_unacknowledged",
    "message_bytes_ram", "message_bytes_persistent", "head_message_timestamp", "disk_reads", "disk_writes", "consumers",
    "consumer_utilisation", "consumer_capacity", "memory", "idle_since", "state", "type", "node", "leader", "members",
    "online", "slave_pids", "synchronised_slave_pids", "mirror_pids", "synchronised_mirror_pids", "master_node",
    "queue_slave_nodes", "recoverable_mirrors", "recoverable_slaves", "sync_messages",
)  # fmt: skip
MIRRORS: Final = (
    "queue", "vhost", "node", "role", "state", "messages", "lag_messages", "lag_bytes", "lag_seconds", "sync_done",
    "sync_total",
)  # fmt: skip
EXCHANGES: Final = ("name", "type", "durable", "auto_delete", "internal", "arguments", "policy")
BINDINGS: Final = (
    "source_name", "source_kind", "destination_name", "destination_kind", "routing_key", "arguments",
)  # fmt: skip
VHOSTS: Final = ("name", "tracing", "cluster_state", "description", "tags", "default_queue_type")
CONNECTIONS: Final = (
    "pid", "name", "port", "host", "peer_port", "peer_host", "ssl", "ssl_protocol", "ssl_cipher", "peer_cert_subject",
    "ssl_key_exchange", "ssl_hash", "peer_cert_issuer", "peer_cert_validity", "state", "channels", "protocol",
    "auth_mechanism", "user", "vhost", "timeout", "frame_max", "channel_max", "client_properties", "connected_at",
    "recv_oct", "recv_cnt", "send_oct", "send_cnt", "send_pend", "node",
)  # fmt: skip
MQTT_CONNECTIONS: Final = (
    "conn_name", "client_id", "clean_sess", "will_msg", "exchange", "keepalive", "subscriptions", "unacked_pubs",
    "awaiting_ack", "dropped", "session_expiry", *CONNECTIONS,
)  # fmt: skip
STOMP_CONNECTIONS: Final = (
    "session_id", "conn_name", "version", "implicit_connect", "auth_login", "subscriptions", "transactions",
    "unacked", "unconfirmed", *CONNECTIONS,
)  # fmt: skip
CHANNELS: Final = (
    "pid", "connection", "name", "number", "user", "vhost", "transactional", "confirm", "consumer_count",
    "messages_unacknowledged", "messages_uncommitted", "acks_uncommitted", "messages_unconfirmed", "prefetch_count",
    "global_prefetch_count", "node",
)  # fmt: skip
CONSUMERS: Final = (
    "queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active", "activity_status",
    "arguments",
)  # fmt: skip
SPOOLS: Final = (
    "node", "queue", "vhost", "home", "state", "reason", "messages", "bytes", "oldest", "sent", "expired", "refused",
    "delivered",
)  # fmt: skip
RETAINED_MESSAGES: Final = ("topic", "qos", "payload_bytes", "payload", "expires_in")
MQTT_SESSIONS: Final = (
    "client_id", "user", "node", "state", "subscriptions", "queues", "session_expiry_interval", "expires_in",
    "disconnected_at", "has_will",
)  # fmt: skip
LEASES: Final = ("name", "queue", "acked", "next", "out", "lag", "runs", "age", "timeout", "node", "owner")

QUEUES_SHOWN: Final = ("name", "messages")
MIRRORS_SHOWN: Final = ("queue", "node", "role", "state", "lag_messages", "lag_bytes", "lag_seconds")
EXCHANGES_SHOWN: Final = ("name", "type")
BINDINGS_SHOWN: Final = BINDINGS
VHOSTS_SHOWN: Final = ("name",)
SPOOLS_SHOWN: Final = ("node", "queue", "home", "state", "messages", "bytes", "oldest", "sent")
RETAINED_MESSAGES_SHOWN: Final = ("topic", "qos", "payload_bytes")
MQTT_SESSIONS_SHOWN: Final = ("client_id", "node", "state", "subscriptions")
LEASES_SHOWN: Final = ("name", "queue", "acked", "next", "out", "lag", "age", "timeout")
CONNECTIONS_SHOWN: Final = ("user", "peer_host", "peer_port", "state")
MQTT_CONNECTIONS_SHOWN: Final = ("client_id", "conn_name")
STOMP_CONNECTIONS_SHOWN: Final = ("session_id", "conn_name")
CHANNELS_SHOWN: Final = ("pid", "user", "consumer_count", "messages_unacknowledged")
CONSUMERS_SHOWN: Final = (
    "queue_name", "channel_pid", "consumer_tag", "ack_required", "prefetch_count", "active", "arguments",
)  # fmt: skip
