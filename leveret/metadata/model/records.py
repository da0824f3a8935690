"""What the metadata store holds: one immutable record per vhost, user, exchange, queue, binding and policy.

A record is never changed in place. Whoever got one out of an event may keep it and compare it later; a change puts
another record in its stead.
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
    """A name space of exchanges, queues and their rights. `limits`: max-connections, max-queues; negative is none."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UserSpec:
    """Who may log in. An empty `password_hash` lets nobody in by password. `limits`: max-connections, max-channels."""

    name: str
    password_hash: str
    hashing: str
    tags: tuple[str, ...] = ()
    limits: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"UserSpec(name={self.name!r}, tags={self.tags!r})"  # A hash in a log file is a hash to be cracked.


class Permission(NamedTuple):
    """Three patterns: names of what a user may declare or delete, publish to or bind, and consume or bind from."""

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

    `owner` names the connection an exclusive queue belongs to, `node` the node the queue lives on. A mirrored queue has
    a `view`, whose master is that node; and for each member of its ring the version of the view with which it `joined`,
    for one that left and came back is another copy. If it was mirrored once, `last_version` and `last_epoch` are where
    that ended: versions and epochs go on behind them, so that neither words about a former ring nor copies of it are
    ever taken for ones of the next.
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
    """One way from an exchange to a queue or another exchange. Two are the same when all fields are, types included.

    A table is no dictionary key, and a hashable copy of it would double what a headers binding costs; so equality
    and hash go by a digest of the arguments, which is empty, and shared, where there are none.
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
        """A sort key that depends on nothing but the binding."""
        return (self.vhost, self.source, self.destination_kind, self.destination, self.key, self.digest)


def arguments_digest(arguments: Table) -> bytes:
    """Sixteen bytes that are equal for equal tables whatever the order of their keys; none for an empty table."""
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
    cost: int = 0  # Of a search for the pattern, in microseconds; see `patterns`.
