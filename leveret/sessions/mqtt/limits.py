"""The settings of MQTT clients, and what each of them may cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NEVER_S: Final = 0xFFFF_FFFF  # A session expiry interval without an end.


@dataclass(frozen=True, slots=True)
class MqttLimits:
    """The bounds that a connection is given. Those of MQTT 5.0 are told to its client."""

    frame_max: int = 131_072  # Contents are stored in AMQP frames of this size.
    vhost: str = "/"
    exchange: str = "amq.topic"
    prefetch: int = 256
    allow_anonymous: bool = True
    anonymous_user: str = "guest"
    anonymous_password: str = "guest"
    loopback_users: frozenset[str] = frozenset({"guest"})
    cert_login: bool = False
    session_expiry_max_s: int = 86_400
    server_keep_alive_s: int = 0  # For clients of MQTT 5.0; 0: their own.
    sys_interval_s: int = 10  # Of the topics below `$SYS`; 0: there are none.
    durable_queue_type: str = "classic"
    packet_max_unauthenticated: int = 65_536
    packet_max: int = 16_777_216
    topic_alias_max: int = 16
    receive_max: int = 8_192
    disconnects_unauthorized: bool = True
