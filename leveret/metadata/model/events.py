"""What a command changed, in an order a listener can follow.

What refers to something is removed before it: the bindings of a queue before the queue, all that is in a vhost before
the vhost. What is referred to is added first. So a listener that keeps its own picture (routing tables, queue objects)
never meets an unknown name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from leveret.metadata.model.records import Binding, ExchangeSpec, QueueSpec


@dataclass(frozen=True, slots=True)
class VhostAdded:
    """A vhost is there; its predeclared exchanges follow."""

    name: str


@dataclass(frozen=True, slots=True)
class VhostChanged:
    """A vhost's description, tags or limits are others now."""

    name: str


@dataclass(frozen=True, slots=True)
class VhostDeleted:
    """A vhost is gone; all that was in it went in the events before."""

    name: str


@dataclass(frozen=True, slots=True)
class ExchangeDeclared:
    """An exchange is there."""

    spec: ExchangeSpec


@dataclass(frozen=True, slots=True)
class ExchangeDeleted:
    """An exchange is gone."""

    spec: ExchangeSpec


@dataclass(frozen=True, slots=True)
class QueueDeclared:
    """A queue is there."""

    spec: QueueSpec


@dataclass(frozen=True, slots=True)
class QueueDeleted:
    """A queue is gone, and its messages with it."""

    spec: QueueSpec


@dataclass(frozen=True, slots=True)
class QueueMoved:
    """The same queue, with all that is bound to it, lives on another node now, or that node has another name."""

    spec: QueueSpec


@dataclass(frozen=True, slots=True)
class ViewChanged:
    """A queue has another view, or none any more. If it also has another master, `QueueMoved` follows."""

    spec: QueueSpec


@dataclass(frozen=True, slots=True)
class BindingAdded:
    """A binding is there."""

    binding: Binding


@dataclass(frozen=True, slots=True)
class BindingRemoved:
    """A binding is gone."""

    binding: Binding


@dataclass(frozen=True, slots=True)
class UserChanged:
    """A user is new, or its password, tags or limits are others now."""

    name: str


@dataclass(frozen=True, slots=True)
class UserDeleted:
    """A user is gone."""

    name: str


@dataclass(frozen=True, slots=True)
class PermissionsChanged:
    """What a user may do in a vhost has changed, topic permissions included."""

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
    | UserChanged
    | UserDeleted
    | PermissionsChanged
    | PolicyChanged
    | ParameterChanged
    | GlobalParameterChanged
)
