"""The records of the metadata store: one immutable object per vhost, user, exchange, queue, binding and policy.

A record is never changed in place; a change replaces it by another. A listener may keep a record from an event and
compare it later.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from leveret.base.json_values import Json
from leveret.metadata.model.view import View
from leveret.protocol.tables import Table, canonical

DestinationKind: TypeAlias = Literal["queue", "exchange"]

NO_ARGUMENTS: Final[Table] = {}  # Shared by everything without arguments, so that a million bindings cost one table.


@dataclass(frozen=True, slots=True)
class VhostSpec:
    """A namespace of exchanges, queues and permissions. `limits`: max-connections, max-queues; negative is none."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UserSpec:
    """A user. With an empty `password_hash` no login by password is possible. `limits`: max-connections, max-channels.
    """

    name: str
    password_hash: str
    hashing: str
    tags: tuple[str, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"UserSpec(name={self.name!r}, tags={self.tags!r})"  # A hash in a log file is a hash to be cracked.


class Permission(NamedTuple):
    """Three patterns of names: what a user may declare or delete, publish to or bind, and consume or bind from."""

    configure: str
    write: str
    read: str


class TopicPermission(NamedTuple):
    """Two patterns of routing keys for one topic exchange: what a user may publish with, and bind with."""

    write: str
    read: str


@dataclass(frozen=True, slots=True)
class ExchangeSpec:
    """An exchange as it was first declared."""

    vhost: str
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue as it was first declared, with an id that no other queue ever has or had.

    `owner` names the connection of an exclusive queue, `node` the node where the queue is. A mirrored queue has a
    `view`, whose master is that node, and `joined`: for each member of its ring the version of the view with which it
    joined, because a node that left and came back has another copy. If the queue was mirrored before, `last_version`
    and `last_epoch` are the last ones of that time: the next version and epoch are higher, so that messages about a
    former ring and copies of it are never mistaken for those of the next.
    """

    id: int
    vhost: str
    name: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Table = field(default_factory=dict)
    owner: str | None = None
    node: str = ""
    view: View | None = None
    joined: dict[str, int] = field(default_factory=dict)
    last_version: int = 0
    last_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding of an exchange to a queue or another exchange. Two are equal if all fields are, types included.

    A table cannot be a dictionary key, and a hashable copy of it would double the memory of a headers binding; so
    equality and hash use a digest of the arguments, which is one shared empty value where there are none.
    """

    vhost: str
    source: str
    destination_kind: DestinationKind
    destination: str
    key: str
    arguments: Table = field(default_factory=lambda: NO_ARGUMENTS, compare=False)
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", arguments_digest(self.arguments))

    def order(self) -> tuple[str, str, str, str, str, bytes]:
        """Return a sort key that depends on the binding only."""
        return (self.vhost, self.source, self.destination_kind, self.destination, self.key, self.digest)


def arguments_digest(arguments: Table) -> bytes:
    """Return sixteen bytes that are equal for equal tables whatever the order of their keys; none for an empty table.
    """
    if not arguments:
        return b""
    return hashlib.blake2b(ascii(canonical(arguments)).encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings for all queues or exchanges (`apply_to`) of a vhost whose name matches `pattern`."""

    vhost: str
    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: dict[str, Json]
    operator: bool = False
    cost: int = 0  # The longest time of a search for the pattern, in microseconds; see `base.safe_regex`.
