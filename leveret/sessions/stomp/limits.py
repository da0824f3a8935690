"""The settings of STOMP clients, and what each of them may cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from leveret.protocol.stomp.frames import AUTHENTICATED, UNAUTHENTICATED, FrameLimits

SUBSCRIPTIONS_MAX: Final = 10_000  # Of one client; so many reply queues, too.
TRANSACTIONS_MAX: Final = 64  # That one client has begun.
ACTIONS_MAX: Final = 65_536  # In all of its transactions.
ACTION_BYTES_MAX: Final = 64 * 1024 * 1024  # The same, with about this many bytes.


@dataclass(frozen=True, slots=True)
class StompLimits:
    """The settings that a connection is given."""

    frame_max: int = 131_072  # Contents are stored in AMQP frames of this size.
    default_vhost: str = "/"
    default_user: str | None = "guest"  # None: a client without a login header is refused.
    default_password: str = field(default="guest", repr=False)
    default_topic_exchange: str = "amq.topic"
    default_nack_requeue: bool = True
    implicit_connect: bool = False
    cert_login: bool = False
    hides_server: bool = False
    loopback_users: frozenset[str] = frozenset({"guest"})
    before_login: FrameLimits = UNAUTHENTICATED
    after_login: FrameLimits = AUTHENTICATED
