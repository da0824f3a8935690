"""What is known of a client before it says a word, whatever its protocol, and what it is told of this broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Clients choose their behaviour by these two: Celery uses global QoS only towards a RabbitMQ of at least 3.3.
COMPATIBLE_PRODUCT: Final = "RabbitMQ"
COMPATIBLE_VERSION: Final = "3.10.8"


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
