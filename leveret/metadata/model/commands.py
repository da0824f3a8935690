"""The commands that change the metadata of a cluster.

A command is a request; `store.Metadata` decides whether it can be done when it applies the command, in the one order
that all nodes agree on. Checks that need more than the metadata (the caller's rights, whether an exchange type exists,
whether a pattern compiles) are made before the command: two nodes with different versions of Python's `re` must not get
different results from the same command.

The names of the classes and the order of their fields are the format on disk and between nodes (`command_codec`). A new
field goes to the end and has a default; nothing is renamed or reordered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from leveret.base.json_values import Json
from leveret.metadata.model.records import DestinationKind
from leveret.metadata.model.view import View
from leveret.metadata.mqtt import commands as m
from leveret.metadata.shovel import commands as s
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
    """Make an exchange, unless one of that name exists. For a delayed exchange, `node` and `view` are those of its
    hidden queue."""

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

    `cost` is the longest time of a search for the pattern, estimated by the node that made the command
    (`base.safe_regex.cost_of`): so all nodes add up the same numbers even if their versions of `re` differ. 0: made by
    a version without estimates.
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
    """Make or replace a component's parameter in a vhost (a shovel, a federation upstream).

    `user` has set it; empty: an operator, who may do everything.
    """

    component: str
    vhost: str
    name: str
    value: Json
    user: str = ""


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
    """Remove what a restart of the node ends: its exclusive and non-durable queues.

    The node proposes it before it serves clients, and the leader when the node is lost. With `alone`, no node was up
    that could have kept them, so non-durable exchanges are removed as well: a single node proposes that itself, in a
    cluster the leader does, without a node's name (see `leveret.node.cluster.transient_exchanges`). `run` names the new
    run.
    """

    node: str
    alone: bool = False
    run: str = ""


@dataclass(frozen=True, slots=True)
class ForgetNode:
    """Remove the queues of which only this node had a copy: it has left the cluster for good."""

    node: str


@dataclass(frozen=True, slots=True)
class RenameNode:
    """Give a node another name."""

    old: str
    new: str


@dataclass(frozen=True, slots=True)
class MoveQueue:
    """Move a queue to another node, which has all its messages. Refused if the queue is no longer at the old node, or
    if the new one was restarted since it got the messages: at its start it has deleted those of queues not its own.
    """

    vhost: str
    name: str
    id: int
    old: str
    new: str
    run: str


@dataclass(frozen=True, slots=True)
class ChangeView:
    """Change the members, the master or the copies in sync of a mirrored queue, or make a queue mirrored. Refused if
    the view it was made from is no longer the queue's: see `leveret.metadata.model.view`.
    """

    vhost: str
    name: str
    id: int
    view: View


@dataclass(frozen=True, slots=True)
class EndView:
    """End the mirroring of a queue; its master keeps it. Refused unless the view of this version is still the queue's
    and names no other node.
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
    | m.KeepRetained
    | m.ClaimClientIds
    | m.ReleaseClientIds
    | m.ChangeSessions
    | m.SweepSessions
    | m.WillsPublished
    | s.AssignWork
    | s.SetLinks
    | s.PauseWork
    | s.RestartWork
    | s.ReportWork
)
