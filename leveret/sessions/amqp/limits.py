"""What a client may cost, and what is known of it before it says a word."""

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


@dataclass(frozen=True, slots=True)
class Peer:
    """The two ends of a client's socket."""

    host: str
    port: int
    local_host: str
    local_port: int
    is_loopback: bool
    tls: bool = False
    certificate: str | None = None  # The name in the client's certificate, which was checked.
    web: bool = False  # Over a WebSocket.

    def __str__(self) -> str:
        return f"{self.host}:{self.port} -> {self.local_host}:{self.local_port}"
