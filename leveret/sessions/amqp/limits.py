"""What a client of AMQP may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds that a connection is given; the tunable ones are offered to the client."""

    frame_max: int = 131_072
    initial_frame_max: int = 8_192
    channel_max: int = 2_047
    heartbeat_s: int = 60
    message_bytes_max: int = 134_217_728
    mechanisms: tuple[str, ...] = ("PLAIN", "AMQPLAIN")
    loopback_users: frozenset[str] = frozenset({"guest"})
