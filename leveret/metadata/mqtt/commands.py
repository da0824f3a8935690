"""The commands that change the state of MQTT clients. Each has a row for each client: what a node gathered in a turn.

A row that cannot be done changes nothing, and the other rows of its command are done. Times and limits are those of the
node that proposes the command, so that all nodes come to the same result.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from leveret.metadata.mqtt.records import Ranges, RetainedMessage, Subscription, Will

Ids = tuple[tuple[int, int], ...]  # Ranges of packet ids: the first, and how many.
NumberedIds = tuple[tuple[int, int, int], ...]  # Likewise, and the number of the first.


@dataclass(frozen=True, slots=True)
class RetainedRow:
    """Keep a message as the last one of its topic; without a message, delete the one that is kept. With `expires_ms`,
    delete only a message that expires then."""

    vhost: str
    topic: str
    message: RetainedMessage | None
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class KeepRetained:
    """Keep and delete retained messages. What would exceed a limit of its vhost is not kept."""

    rows: tuple[RetainedRow, ...]
    messages_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class ClaimRow:
    """Give a client id to a connection, which its node knows as `token`; see `broker.client_ids`."""

    vhost: str
    client_id: str
    token: int
    user: str
    clean_start: bool
    expiry_s: int
    queues: tuple[str, ...] = ()
    will: Will | None = None


@dataclass(frozen=True, slots=True)
class ClaimClientIds:
    """Give client ids to connections of one run of a node. Refused if the node has been started again."""

    node: str
    run: str
    rows: tuple[ClaimRow, ...]
    now_ms: int
    sessions_max: int


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    """The connection with this claim is closed. `expiry_s` replaces that of the session; None leaves it."""

    vhost: str
    client_id: str
    epoch: int
    left_ms: int
    publish_will: bool
    expiry_s: int | None = None


@dataclass(frozen=True, slots=True)
class ReleaseClientIds:
    """Take client ids from connections that are closed. Sessions that do not outlive their connections end."""

    rows: tuple[ReleaseRow, ...]


@dataclass(frozen=True, slots=True)
class SessionRow:
    """Change the session of the connection with this claim: see `ClientSession`."""

    vhost: str
    client_id: str
    epoch: int
    subscribe: dict[str, Subscription] = field(default_factory=dict)
    unsubscribe: tuple[str, ...] = ()
    received: NumberedIds = ()
    completed: Ids = ()
    releasing: Ids = ()
    released: Ids = ()
    taken_of: str = ""
    taken: Ranges = ()


@dataclass(frozen=True, slots=True)
class ChangeSessions:
    """Change sessions."""

    rows: tuple[SessionRow, ...]


@dataclass(frozen=True, slots=True)
class DueRow:
    """A session that may be due; of this claim, or else it is left alone."""

    vhost: str
    client_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class SweepSessions:
    """End the sessions and make the wills due whose time has come. Sessions that were lost with their node are counted
    from now."""

    now_ms: int
    rows: tuple[DueRow, ...]


@dataclass(frozen=True, slots=True)
class WillsPublished:
    """Forget the wills with these numbers: they have been published."""

    numbers: tuple[int, ...]
