"""What a client declares: a queue or an exchange as it is to be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from leveret.metadata.model.records import NO_ARGUMENTS

if TYPE_CHECKING:
    from leveret.protocol.tables import Table


@dataclass(slots=True)
class QueueWanted:
    """A queue as a client declares it. Without a name, the broker makes one up."""

    name: str
    durable: bool = False
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Table = field(default_factory=lambda: NO_ARGUMENTS)


@dataclass(slots=True)
class ExchangeWanted:
    """An exchange as a client declares it."""

    name: str
    type: str = "direct"
    durable: bool = False
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = field(default_factory=lambda: NO_ARGUMENTS)


class BindingWanted(NamedTuple):
    """A binding, or the one that is to go."""

    source: str
    kind: Literal["queue", "exchange"]
    destination: str
    key: str = ""
    arguments: Table = NO_ARGUMENTS


@dataclass(slots=True)
class ConsumerWanted:
    """A subscription as a client asks for it. Without a tag, the broker makes one up."""

    queue: str
    tag: str = ""
    no_ack: bool = False
    exclusive: bool = False
    prefetch: int = 0  # How many may be out with it; 0 is no limit.
    arguments: Table = field(default_factory=lambda: NO_ARGUMENTS)


class QueueFound(NamedTuple):
    """A queue that is there now: its name, its messages that are ready, and its consumers."""

    name: str
    ready: int
    consumers: int
