"""Everything that changes the metadata of a cluster, as values.

A command says what somebody wants; whether it can be done is decided when `store.Metadata` applies it, in the one
order all nodes agree on. What needs the outside world to be checked (the caller's rights, whether an exchange type
exists, whether a pattern compiles) is checked before a command is made: two nodes with different versions of
Python's `re` must not come to different results over the same command.

The names of the classes and the order of their fields are the format on disk and between nodes (`codec`). A new field
goes to the end and has a default; nothing is renamed or reordered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from leveret.base.json_values import Json
from leveret.metadata.model.records import DestinationKind
from leveret.metadata.model.view import View
from leveret.protocol.tables import Table

# Vhosts and users


@dataclass(frozen=True, slots=True)
class AddVhost:
    """Make a vhost with its predeclared exchanges, or give an existing one this description and these tags."""

    name: str
    description: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteVhost:
    """Remove a vhost and all that is in it."""

    name: str


@dataclass(frozen=True, slots=True)
class SetVhostLimits:
    """Set the named limits of a vhost (max-connections, max-queues); `replace` drops those not named."""

    vhost: str
    limits: dict[str, int]
    replace: bool = False


@dataclass(frozen=True, slots=True)
class ClearVhostLimits:
    """Remove one limit of a vhost, or all."""

    vhost: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class PutUser:
    """Make a user, or replace its password hash and tags; limits stay."""

    name: str
    password_hash: str
    hashing: str
    tags: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"PutUser(name={self.name!r}, tags={self.tags!r})"  # A hash in a log file is a hash to be cracked.


@dataclass(frozen=True, slots=True)
class DeleteUser:
    """Remove a user and its permissions."""

    name: str


@dataclass(frozen=True, slots=True)
class SetUserLimits:
    """Set the named limits of a user (max-connections, max-channels); `replace` drops those not named."""

    user: str
    limits: dict[str, int]
    replace: bool = False


@dataclass(frozen=True, slots=True)
class ClearUserLimits:
    """Remove one limit of a user, or all."""

    user: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class SetPermissions:
    """Give a user its three patterns in a vhost."""

    user: str
    vhost: str
    configure: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class ClearPermissions:
    """Take a user's access to a vhost."""

    user: str
    vhost: str


@dataclass(frozen=True, slots=True)
class SetTopicPermissions:
    """Restrict the routing keys a user may use at one topic exchange."""

    user: str
    vhost: str
    exchange: str
    write: str
    read: str


@dataclass(frozen=True, slots=True)
class ClearTopicPermissions:
    """Lift a user's restrictions at one topic exchange of a vhost, or at all of them."""

    user: str
    vhost: str
    exchange: str | None = None


# Exchanges, queues, bindings


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """Make an exchange, unless one of that name exists. Of a delayed one, `node` and `view` say where its keeper is."""

    vhost: str
    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Table = field(default_factory=dict)
    node: str = ""
    view: View | None = None


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    """Remove an exchange and the bindings from and to it; with `if_unused`, only if nothing is bound to it."""

    vhost: str
    name: str
    if_unused: bool = False


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Make a queue on a node, unless one of that name exists. With a view it is mirrored from the beginning."""

    vhost: str
    name: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Table = field(default_factory=dict)
    owner: str | None = None
    node: str = ""
    view: View | None = None


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    """Remove a queue and its bindings; with `id`, only if it is still that queue and no later one of the same name."""

    vhost: str
    name: str
    id: int | None = None


@dataclass(frozen=True, slots=True)
class Bind:
    """Add a binding, unless it exists."""

    vhost: str
    source: str
    destination_kind: DestinationKind
    destination: str
    key: str
    arguments: Table = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unbind:
    """Remove a binding."""

    vhost: str
    source: str
    destination_kind: DestinationKind
    destination: str
    key: str
    arguments: Table = field(default_factory=dict)


# Policies and parameters


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """Make or replace a policy, or an operator policy.

    `cost` is what a search for the pattern takes at most, as whoever made the command estimated it
    (`patterns.cost_of`): the nodes add up the same numbers even if their versions of `re` differ. Nought: made by a
    version that did not estimate.
    """

    vhost: str
    name: str
    pattern: str
    apply_to: str
    priority: int
    definition: dict[str, Json]
    operator: bool = False
    cost: int = 0


@dataclass(frozen=True, slots=True)
class ClearPolicy:
    """Remove a policy, or an operator policy."""

    vhost: str
    name: str
    operator: bool = False


@dataclass(frozen=True, slots=True)
class SetParameter:
    """Make or replace a component's parameter in a vhost (a shovel, a federation upstream)."""

    component: str
    vhost: str
    name: str
    value: Json


@dataclass(frozen=True, slots=True)
class ClearParameter:
    """Remove a component's parameter."""

    component: str
    vhost: str
    name: str


@dataclass(frozen=True, slots=True)
class SetGlobalParameter:
    """Make or replace a parameter of the whole cluster (its name, say)."""

    name: str
    value: Json


@dataclass(frozen=True, slots=True)
class ClearGlobalParameter:
    """Remove a parameter of the whole cluster."""

    name: str


# Nodes


@dataclass(frozen=True, slots=True)
class NodeStarted:
    """Remove what did not outlive the node's last run: its exclusive and non-durable queues.

    The node says so itself before it serves anybody, and the leader when the node is lost. With `alone`, no node was up
    that could have kept them, so non-durable exchanges are gone as well: a single node says so itself, in a cluster the
    leader, without a node's name (see `leveret.node.cluster.transient_exchanges`). `run` names the run that begins.
    """

    node: str
    alone: bool = False
    run: str = ""


@dataclass(frozen=True, slots=True)
class ForgetNode:
    """A node is no member any more, and will not come back: the queues that only it had are gone."""

    node: str


@dataclass(frozen=True, slots=True)
class RenameNode:
    """A node has another name from now on."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class MoveQueue:
    """A queue lives on another node from now on, which has all its messages. Only if it is still at the old one, and if
    the new one is still in the run in which it got them: a later run has thrown away what was not its own.
    """

    vhost: str
    name: str
    id: int
    old: str
    new: str
    run: str


@dataclass(frozen=True, slots=True)
class ChangeView:
    """A mirrored queue has other members, another master, or others in sync; or a queue becomes mirrored. Only if the
    view it was made from is still the queue's: see `leveret.metadata.model.view`.
    """

    vhost: str
    name: str
    id: int
    view: View


@dataclass(frozen=True, slots=True)
class EndView:
    """A queue is mirrored no longer, and its master goes on with it alone. Only if the view of this version is still
    the queue's, and names nobody else.
    """

    vhost: str
    name: str
    id: int
    version: int


Command: TypeAlias = (
    AddVhost
    | DeleteVhost
    | SetVhostLimits
    | ClearVhostLimits
    | PutUser
    | DeleteUser
    | SetUserLimits
    | ClearUserLimits
    | SetPermissions
    | ClearPermissions
    | SetTopicPermissions
    | ClearTopicPermissions
    | DeclareExchange
    | DeleteExchange
    | DeclareQueue
    | DeleteQueue
    | Bind
    | Unbind
    | SetPolicy
    | ClearPolicy
    | SetParameter
    | ClearParameter
    | SetGlobalParameter
    | ClearGlobalParameter
    | NodeStarted
    | ForgetNode
    | RenameNode
    | MoveQueue
    | ChangeView
    | EndView
)
