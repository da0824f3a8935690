"""The records that the metadata holds for MQTT clients. A change replaces a record by another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

NEVER_S: Final = 0xFFFF_FFFF  # The session expiry interval of a session that does not expire.
UNKNOWN_MS: Final = -1  # A client's node was lost, and nobody has said when.
NO_SUBSCRIPTIONS: Final[dict[str, Subscription]] = {}  # Shared by all sessions without any.
NO_NUMBERS: Final[dict[int, int]] = {}
NO_IDS: Final[frozenset[int]] = frozenset()


class NumberRange(NamedTuple):
    """Consecutive numbers of messages."""

    first: int
    last: int


Ranges = tuple[NumberRange, ...]  # Ascending; they do not touch.


@dataclass(frozen=True, slots=True)
class RetainedMessage:
    """The last message with the retain flag that was published to a topic.

    `properties` are opaque to the broker. `expires_ms` is a time of day; 0 is never.
    """

    topic: str
    payload: bytes
    qos: int = 0
    properties: bytes = b""
    expires_ms: int = 0

    @property
    def size(self) -> int:
        """Return the bytes that count against the limit of a vhost."""
        return len(self.topic) + len(self.payload) + len(self.properties)


@dataclass(frozen=True, slots=True)
class Will:
    """A message that the cluster publishes when a client's connection is lost. `content` is an AMQP content, ready to
    be routed. With the retain flag it is `retained`, too, for `expiry_s` from then on; 0 is for ever."""

    exchange: str
    routing_key: str
    content: bytes
    delay_s: int = 0
    retained: RetainedMessage | None = None
    expiry_s: int = 0


class Subscription(NamedTuple):
    """The options of a subscription. `identifier`: 0 is none."""

    qos: int
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int = 0


@dataclass(frozen=True, slots=True)
class ClientSession:
    """The session of a client id in a vhost.

    `epoch` is that of its last claim, `born` that of the claim it began with; no two claims have the same. `node` is
    where its client is connected; empty if it is not. `token` is the number by which that node knows the claim.
    `queues` are the names of the queues that end with the session. `left_ms` is the time of day when the client was
    disconnected.

    `received` has the packet ids of QoS 2 publishes by the client that are not completed, each with the number under
    which the message is published, or 0 if it was refused, and `last_number` the highest number of this session.
    `releasing` has the packet ids of QoS 2 deliveries that the client has, and has not completed. `taken` has the
    numbers of QoS 2 messages that the client has, as ranges of the first and the last, and `taken_of` says which queue
    gave them these numbers.
    """

    vhost: str
    client_id: str
    epoch: int
    born: int
    node: str
    token: int
    user: str
    expiry_s: int
    queues: tuple[str, ...] = ()
    will: Will | None = None
    left_ms: int = 0
    subscriptions: dict[str, Subscription] = field(default_factory=lambda: NO_SUBSCRIPTIONS)
    received: dict[int, int] = field(default_factory=lambda: NO_NUMBERS)
    last_number: int = 0
    releasing: frozenset[int] = NO_IDS
    taken_of: str = ""
    taken: Ranges = ()

    @property
    def due_ms(self) -> int | None:
        """Return when the cluster has to do something about it: at once (0), at a time of day, or never (None)."""
        if self.node:
            return None
        if self.left_ms == UNKNOWN_MS:
            return 0
        times = [time for time in (self.will_ms, self.ends_ms) if time is not None]
        return min(times, default=None)

    @property
    def ends_ms(self) -> int | None:
        """Return when the session of a client that is not connected ends; None if never."""
        return None if self.expiry_s == NEVER_S else self.left_ms + self.expiry_s * 1000

    @property
    def will_ms(self) -> int | None:
        """Return when its will is published, unless it ends before or the client returns; None without a will."""
        return None if self.will is None else self.left_ms + self.will.delay_s * 1000


@dataclass(frozen=True, slots=True)
class DueWill:
    """A will to be published now, once. Wills are published in the order of their numbers."""

    number: int
    vhost: str
    client_id: str
    exchange: str
    routing_key: str
    content: bytes
