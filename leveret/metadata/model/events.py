"""The changes that a command made, in an order that a listener can follow.

An object is removed after all that refers to it: a queue after its bindings, a vhost after all that is in it. It is
added before anything that refers to it. So a listener that keeps its own objects (routing tables, queues) never gets an
unknown name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from leveret.metadata.model.bindings import BindingGroup
from leveret.metadata.model.records import Binding, ExchangeSpec, QueueSpec
from leveret.metadata.mqtt import events as m
from leveret.metadata.shovel import events as s


@dataclass(frozen=True, slots=True)
class VhostAdded:
    """A vhost was added; its predeclared exchanges follow."""

    name: str


@dataclass(frozen=True, slots=True)
class VhostChanged:
    """A vhost's description, tags or limits have changed."""

    name: str


@dataclass(frozen=True, slots=True)
class VhostDeleted:
    """A vhost was deleted; the events before this one removed all that was in it."""

    name: str


@dataclass(frozen=True, slots=True)
class ExchangeDeclared:
    """An exchange was declared."""

    spec: ExchangeSpec


@dataclass(frozen=True, slots=True)
class ExchangeDeleted:
    """An exchange was deleted."""

    spec: ExchangeSpec


@dataclass(frozen=True, slots=True)
class QueueDeclared:
    """A queue was declared."""

    spec: QueueSpec


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """A queue was deleted with its messages."""

    spec: QueueSpec


@dataclass(frozen=True, slots=True)
class QueueMoved:
    """A queue, with all its bindings, is on another node now, or its node has another name."""

    spec: QueueSpec


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """A queue has another view, or is no longer mirrored. If its master is another one, `QueueMoved` follows."""

    spec: QueueSpec


@dataclass(frozen=True, slots=True)
class BindingAdded:
    """A binding was added."""

    binding: Binding


@dataclass(frozen=True, slots=True)
class BindingRemoved:
    """A binding was removed."""

    binding: Binding


@dataclass(frozen=True, slots=True)
class BindingsAdded:
    """All bindings of an exchange to one destination were added: this node got the metadata as a whole."""

    group: BindingGroup


@dataclass(frozen=True, slots=True)
class BindingsRemoved:
    """All bindings of an exchange to one destination were removed, because one of both was. The group is changed no
    more."""

    group: BindingGroup


@dataclass(frozen=True, slots=True)
class UserChanged:
    """A user was added, or its password, tags or limits have changed."""

    name: str


@dataclass(frozen=True, slots=True)
class UserDeleted:
    """A user was deleted."""

    name: str


@dataclass(frozen=True, slots=True)
class PermissionsChanged:
    """A user's permissions or topic permissions in a vhost have changed."""

    user: str
    vhost: str


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Some policy or operator policy of a vhost was set or cleared."""

    vhost: str


@dataclass(frozen=True, slots=True)
class ParameterChanged:
    """A parameter was set or cleared."""

    component: str
    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class GlobalParameterChanged:
    """A parameter of the whole cluster was set or cleared."""

    name: str


Event: TypeAlias = (
    VhostAdded
    | VhostChanged
    | VhostDeleted
    | ExchangeDeclared
    | ExchangeDeleted
    | QueueDeclared
    | QueueDeleted
    | QueueMoved
    | ViewChanged
    | BindingAdded
    | BindingRemoved
    | BindingsAdded
    | BindingsRemoved
    | UserChanged
    | UserDeleted
    | PermissionsChanged
    | PolicyChanged
    | ParameterChanged
    | GlobalParameterChanged
    | m.RetainedChanged
    | m.RetainedRefused
    | m.SessionChanged
    | m.WillDue
    | s.AssignmentChanged
)
