"""The metadata of a cluster: the result of applying commands in order, the same on every node.

`Metadata.apply` applies the next command and returns its changes, as events, or why it was refused. The result depends
on the commands only: equal commands in equal order make equal stores, down to the ids of queues and the order of
events. So a node can keep its metadata as a list of commands on disk, and a cluster as a list of commands that a
majority has agreed on. Therefore nothing here reads a clock, draws a random number, or iterates over a set.

A refused command changes nothing. The refusal has the code and the text that RabbitMQ answers, so that a channel can
send it as it is. Three rules on what is refused:

- Declaring what exists, or binding what is bound, is no error and no change. Whether the existing queue is
  *equivalent* to the declared one is compared by the caller (`rules.redeclare`), since the answer depends on who asks:
  an exclusive queue is locked for one connection and open for another.
- Removing what does not exist is refused with 404. Over AMQP that counts as done (RabbitMQ made deletes idempotent),
  over HTTP it is an error; only the caller knows which it is.
- The predeclared exchanges can be neither deleted nor, in the case of the default exchange, bound.

Removals cascade. A queue takes its bindings along; an exchange those from and to it; an auto-delete exchange goes with
the last binding that leaves from it, which may take the last binding of another auto-delete exchange, and so on. All
of it belongs to the one command and is in its events. (An auto-delete exchange that never had a binding stays, because
only the removal of a binding deletes it.)

Every queue is bound to the default exchange by its own name. These bindings are not stored, since they would double
the cost of each queue and cannot be removed; listings show them.

Objects of a vhost are in plain dictionaries by `(vhost, name)`, which any module may read and only this one changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from leveret.base.json_values import Json, same_json
from leveret.base.safe_regex import CHARACTERS_MAX, VHOST_COST_MAX, too_costly
from leveret.base.shared_values import shared
from leveret.metadata import assignments, client_sessions, retained_messages
from leveret.metadata.federation.parameters import COMPONENTS, UPSTREAM
from leveret.metadata.model import commands as c
from leveret.metadata.model import events as e
from leveret.metadata.model.bindings import BindingGroup, Bindings
from leveret.metadata.model.hidden_queues import (
    DELAYED,
    exchange_of,
    hidden_queue_name,
    is_closed,
    is_hidden_queue,
    make_hidden_queue,
)
from leveret.metadata.model.implicit_bindings import ImplicitBindings, implicit_binding
from leveret.metadata.model.queue_location import change_view, end_view, move_queue, put_view
from leveret.metadata.model.records import (
    NO_ARGUMENTS,
    Binding,
    DestinationKind,
    ExchangeSpec,
    Permission,
    Policy,
    QueueSpec,
    TopicPermission,
    UserSpec,
    VhostSpec,
)
from leveret.metadata.model.refusals import (
    DEFAULT_EXCHANGE,
    Refusal,
    fits,
    no_user,
    no_vhost,
    not_found,
    resource,
    unfit,
)
from leveret.metadata.model.view import View, first_joined, misfit, renamed, without
from leveret.metadata.mqtt import commands as m
from leveret.metadata.mqtt.records import ClientSession, DueWill
from leveret.metadata.mqtt.tables import RetainedTable, SessionTable
from leveret.metadata.rules.global_parameters import WEIGHT_MAX, bulk_fault, clear_fault_of, fault_of
from leveret.metadata.rules.placement import OF_QUEUES, is_about, renamed_extra
from leveret.metadata.shovel import commands as s
from leveret.metadata.shovel.records import Assignment, WorkKey
from leveret.metadata.snapshot import read_snapshot, write_snapshot

__all__ = ["PREDECLARED", "Applied", "Metadata", "Refusal", "implicit_binding", "resource"]

UPSTREAMS_MAX: Final = 1_000  # Of the whole cluster, and as many sets.
PREDECLARED: Final = (
    ("", "direct", False),
    ("amq.direct", "direct", False),
    ("amq.fanout", "fanout", False),
    ("amq.headers", "headers", False),
    ("amq.match", "headers", False),
    ("amq.rabbitmq.trace", "topic", True),
    ("amq.topic", "topic", False),
)


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a command: its index, and either a refusal or the changes."""

    index: int
    refused: Refusal | None
    events: tuple[e.Event, ...]


class Metadata(ImplicitBindings):
    """The metadata of a cluster. Read its dictionaries freely; only `apply` and `restore` change them."""

    def __init__(self) -> None:
        self.index = 0  # The index of the last command applied, refused ones included.
        self.last_queue_id = 0
        self.vhosts: dict[str, VhostSpec] = {}
        self.users: dict[str, UserSpec] = {}
        self.permissions: dict[tuple[str, str], Permission] = {}
        self.topic_permissions: dict[tuple[str, str], dict[str, TopicPermission]] = {}
        self.exchanges: dict[tuple[str, str], ExchangeSpec] = {}
        self.queues: dict[tuple[str, str], QueueSpec] = {}
        self.queue_counts: dict[str, int] = {}
        self.bindings = Bindings()
        self.policies: dict[tuple[str, str], Policy] = {}
        self.operator_policies: dict[tuple[str, str], Policy] = {}
        self.pattern_costs: dict[str, int] = {}  # By vhost: the cost of all its policies' patterns.
        self.policies_changed = 0  # The number of changes since this object was made; no part of the state.
        self.parameters: dict[tuple[str, str, str], Json] = {}
        self.parameter_users: dict[tuple[str, str, str], str] = {}  # Of upstreams: who has set them, if no operator.
        self.global_parameters: dict[str, Json] = {}
        self.runs: dict[str, str] = {}  # By node: its present run.
        self.starts: dict[str, int] = {}  # By node: how often it has started.
        self.retained = RetainedTable()
        self.sessions = SessionTable()
        self.leaving: dict[int, ClientSession] = {}  # By epoch: those taken over, whose wills are undecided.
        self.wills: dict[int, DueWill] = {}  # By number, ascending: those to be published.
        self.last_claim = 0
        self.last_will = 0
        self.assignments: dict[WorkKey, Assignment] = {}
        self.links: dict[WorkKey, Assignment] = {}  # Of federation.
        self.last_assignment = 0  # The highest epoch of an assignment.

    def apply(self, command: c.Command) -> Applied:
        """Apply the next command."""
        events: list[e.Event] = []
        refused = _FOLDS[type(command)](self, command, events)
        assert refused is None or not events  # A refused command changes nothing.
        self.index += 1
        return Applied(self.index, refused, tuple(events))

    def frozen(self) -> Metadata:
        """Return a copy that later commands do not change, for making a snapshot in another thread. Records are shared.
        """
        copy = Metadata()
        for name, value in self.__dict__.items():
            setattr(copy, name, value.copy() if isinstance(value, dict) else value)
        copy.bindings = self.bindings.copy()
        copy.retained = self.retained.copy()
        copy.sessions = self.sessions.copy()
        return copy

    def snapshot(self) -> bytes:
        """Return the whole state as bytes, which are equal for states made by equal commands."""
        return b"".join(write_snapshot(self))

    def restore(self, data: bytes) -> None:
        """Replace the state by that of a snapshot. Raises `command_codec.BadEncoding` and changes nothing if it is
        invalid."""
        fresh = Metadata()
        fresh.policies_changed = self.policies_changed + 1
        read_snapshot(data, fresh)
        self.__dict__.update(fresh.__dict__)

    # Vhosts

    def _add_vhost(self, command: c.AddVhost, events: list[e.Event]) -> Refusal | None:
        name = command.name
        old = self.vhosts.get(name)
        if old is not None:
            new = replace(old, description=command.description, tags=command.tags)
            if new != old:
                self.vhosts[name] = new
                events.append(e.VhostChanged(name))
            return None
        if not name or not fits(name):
            return unfit("vhost name", name)
        self.vhosts[name] = VhostSpec(name, command.description, command.tags)
        self.queue_counts[name] = 0
        events.append(e.VhostAdded(name))
        for exchange, kind, internal in PREDECLARED:
            spec = ExchangeSpec(name, exchange, kind, internal=internal, arguments=NO_ARGUMENTS)
            self.exchanges[name, exchange] = spec
            events.append(e.ExchangeDeclared(spec))
        return None

    def _delete_vhost(self, command: c.DeleteVhost, events: list[e.Event]) -> Refusal | None:
        name = command.name
        if name not in self.vhosts:
            return no_vhost(name)
        for group in self.bindings.groups(name):
            self.bindings.remove_group(group)
            events.append(e.BindingsRemoved(group))
        for queue in [spec for spec in self.queues.values() if spec.vhost == name]:
            self.drop_queue(queue, events)
        for exchange in [spec for spec in self.exchanges.values() if spec.vhost == name]:
            del self.exchanges[name, exchange.name]
            events.append(e.ExchangeDeleted(exchange))
        for user in self.users:
            self._drop_permissions(user, name, events)
        policies = [(kept, key) for kept in (self.policies, self.operator_policies) for key in kept if key[0] == name]
        for kept, key in policies:
            del kept[key]
        self.pattern_costs.pop(name, None)
        if policies:
            self.policies_changed += 1
            events.append(e.PolicyChanged(name))
        for parameter in [key for key in self.parameters if key[1] == name]:
            del self.parameters[parameter]
            self.parameter_users.pop(parameter, None)
            events.append(e.ParameterChanged(*parameter))
        assignments.drop_all(self, name, events)
        retained_messages.drop_all(self, name, events)
        client_sessions.drop_all(self, name, events)
        del self.vhosts[name]
        del self.queue_counts[name]
        events.append(e.VhostDeleted(name))
        return None

    def _set_vhost_limits(self, command: c.SetVhostLimits, events: list[e.Event]) -> Refusal | None:
        old = self.vhosts.get(command.vhost)
        if old is None:
            return no_vhost(command.vhost)
        self._change_vhost(old, command.limits if command.replace else old.limits | command.limits, events)
        return None

    def _clear_vhost_limits(self, command: c.ClearVhostLimits, events: list[e.Event]) -> Refusal | None:
        old = self.vhosts.get(command.vhost)
        if old is None:
            return no_vhost(command.vhost)
        self._change_vhost(old, _without(old.limits, command.name), events)
        return None

    def _change_vhost(self, old: VhostSpec, limits: dict[str, int], events: list[e.Event]) -> None:
        if limits != old.limits:
            self.vhosts[old.name] = replace(old, limits=limits)
            events.append(e.VhostChanged(old.name))

    # Users and what they may do

    def _put_user(self, command: c.PutUser, events: list[e.Event]) -> Refusal | None:
        if not command.name or not fits(command.name):
            return unfit("user name", command.name)
        old = self.users.get(command.name)
        limits = {} if old is None else old.limits
        new = UserSpec(command.name, command.password_hash, command.hashing, command.tags, limits)
        if new != old:
            self.users[command.name] = new
            events.append(e.UserChanged(command.name))
        return None

    def _delete_user(self, command: c.DeleteUser, events: list[e.Event]) -> Refusal | None:
        if command.name not in self.users:
            return no_user(command.name)
        for vhost in self.vhosts:
            self._drop_permissions(command.name, vhost, events)
        del self.users[command.name]
        events.append(e.UserDeleted(command.name))
        return None

    def _set_user_limits(self, command: c.SetUserLimits, events: list[e.Event]) -> Refusal | None:
        old = self.users.get(command.user)
        if old is None:
            return no_user(command.user)
        self._change_user(old, command.limits if command.replace else old.limits | command.limits, events)
        return None

    def _clear_user_limits(self, command: c.ClearUserLimits, events: list[e.Event]) -> Refusal | None:
        old = self.users.get(command.user)
        if old is None:
            return no_user(command.user)
        self._change_user(old, _without(old.limits, command.name), events)
        return None

    def _change_user(self, old: UserSpec, limits: dict[str, int], events: list[e.Event]) -> None:
        if limits != old.limits:
            self.users[old.name] = replace(old, limits=limits)
            events.append(e.UserChanged(old.name))

    def _set_permissions(self, command: c.SetPermissions, events: list[e.Event]) -> Refusal | None:
        missing = self._missing_party(command.user, command.vhost)
        if missing is not None:
            return missing
        key = (command.user, command.vhost)
        new = Permission(command.configure, command.write, command.read)
        if self.permissions.get(key) != new:
            self.permissions[key] = new
            events.append(e.PermissionsChanged(*key))
        return None

    def _clear_permissions(self, command: c.ClearPermissions, events: list[e.Event]) -> Refusal | None:
        missing = self._missing_party(command.user, command.vhost)
        if missing is not None:
            return missing
        if self.permissions.pop((command.user, command.vhost), None) is not None:
            events.append(e.PermissionsChanged(command.user, command.vhost))
        return None

    def _set_topic_permissions(self, command: c.SetTopicPermissions, events: list[e.Event]) -> Refusal | None:
        missing = self._missing_party(command.user, command.vhost)
        if missing is not None:
            return missing
        key = (command.user, command.vhost)
        kept = self.topic_permissions.get(key, {})
        new = TopicPermission(command.write, command.read)
        if kept.get(command.exchange) != new:
            self.topic_permissions[key] = {**kept, command.exchange: new}
            events.append(e.PermissionsChanged(command.user, command.vhost))
        return None

    def _clear_topic_permissions(self, command: c.ClearTopicPermissions, events: list[e.Event]) -> Refusal | None:
        missing = self._missing_party(command.user, command.vhost)
        if missing is not None:
            return missing
        key = (command.user, command.vhost)
        old = self.topic_permissions.get(key, {})
        new = _without(old, command.exchange)
        if new != old:
            self.topic_permissions[key] = new
            if not new:
                del self.topic_permissions[key]
            events.append(e.PermissionsChanged(*key))
        return None

    def _drop_permissions(self, user: str, vhost: str, events: list[e.Event]) -> None:
        permissions = self.permissions.pop((user, vhost), None)
        topics = self.topic_permissions.pop((user, vhost), None)
        if permissions is not None or topics is not None:
            events.append(e.PermissionsChanged(user, vhost))

    def _missing_party(self, user: str, vhost: str) -> Refusal | None:
        if vhost not in self.vhosts:
            return no_vhost(vhost)
        return None if user in self.users else no_user(user)

    # Exchanges

    def _declare_exchange(self, command: c.DeclareExchange, events: list[e.Event]) -> Refusal | None:
        vhost = self.vhosts.get(command.vhost)
        if vhost is None:
            return no_vhost(command.vhost)
        if (command.vhost, command.name) in self.exchanges:
            return None
        if not fits(command.name):
            return unfit("exchange name", command.name)
        if command.view is not None and (problem := misfit(None, command.view)) is not None:
            return Refusal(406, f"exchange '{command.name}' cannot be mirrored so: {problem}")
        spec = ExchangeSpec(
            vhost.name,
            command.name,
            command.type,
            command.durable,
            command.auto_delete,
            command.internal,
            command.arguments or NO_ARGUMENTS,
        )
        self.exchanges[vhost.name, command.name] = spec
        events.append(e.ExchangeDeclared(spec))
        if spec.type == DELAYED:
            self._add_hidden_queue(spec, command.node, command.view, events)
        return None

    def _add_hidden_queue(self, exchange: ExchangeSpec, node: str, view: View | None, events: list[e.Event]) -> None:
        self.last_queue_id += 1
        spec = make_hidden_queue(self.last_queue_id, exchange, node or min(self.runs, default=""), view)
        self.queues[spec.vhost, spec.name] = spec
        events.append(e.QueueDeclared(spec))

    def _delete_exchange(self, command: c.DeleteExchange, events: list[e.Event]) -> Refusal | None:
        vhost, name = command.vhost, command.name
        if vhost not in self.vhosts:
            return no_vhost(vhost)
        if not name:
            return DEFAULT_EXCHANGE
        if name.startswith("amq."):
            return Refusal(403, f"deletion of system {resource('exchange', name, vhost)} not allowed")
        spec = self.exchanges.get((vhost, name))
        if spec is None:
            return not_found("exchange", name, vhost)
        if command.if_unused and self.bindings.is_source(vhost, name):
            return Refusal(406, f"{resource('exchange', name, vhost)} in use")
        self._drop_exchange(spec, events)
        return None

    def _drop_exchange(self, spec: ExchangeSpec, events: list[e.Event], cascade: bool = True) -> None:
        """Remove an exchange, its bindings, and the auto-delete exchanges that lose their last binding with it."""
        doomed = [spec]
        while doomed:
            spec = doomed.pop()
            if self.exchanges.pop((spec.vhost, spec.name), None) is None:
                continue  # It was removed already: exchanges can be bound in a circle.
            for group in self.bindings.groups_from(spec.vhost, spec.name):
                self.bindings.remove_group(group)
                events.append(e.BindingsRemoved(group))
            for group in self.bindings.groups_to(spec.vhost, "exchange", spec.name):
                unused = self._remove_group(group, events)
                if unused is not None and cascade:
                    doomed.append(unused)
            events.append(e.ExchangeDeleted(spec))
            if spec.type == DELAYED:
                self.drop_queue(self.queues[spec.vhost, hidden_queue_name(spec.name)], events)

    def _remove_group(self, group: BindingGroup, events: list[e.Event]) -> ExchangeSpec | None:
        """Remove the bindings between two ends. Return their source if that must be deleted too."""
        is_last = self.bindings.remove_group(group)
        events.append(e.BindingsRemoved(group))
        return self._unused(group.vhost, group.source) if is_last else None

    def _unused(self, vhost: str, name: str) -> ExchangeSpec | None:
        """Return an exchange that has lost its last binding, if it must be deleted with it."""
        spec = self.exchanges.get((vhost, name))
        return spec if spec is not None and spec.auto_delete else None

    # Queues

    def _declare_queue(self, command: c.DeclareQueue, events: list[e.Event]) -> Refusal | None:
        vhost = self.vhosts.get(command.vhost)
        if vhost is None:
            return no_vhost(command.vhost)
        if (command.vhost, command.name) in self.queues:
            return None
        if not command.name or not fits(command.name):  # The caller makes the name of a server-named queue.
            return unfit("queue name", command.name)
        if is_hidden_queue(command.name):
            return Refusal(403, f"queue name '{command.name}' contains reserved prefix 'amq.*'")
        limit = vhost.limits.get("max-queues", -1)
        if 0 <= limit <= self.queue_counts[vhost.name]:
            text = f"cannot declare queue '{command.name}': queue limit in vhost '{vhost.name}' ({limit}) is reached"
            return Refusal(406, text)
        if command.view is not None and (problem := misfit(None, command.view)) is not None:
            return Refusal(406, f"queue '{command.name}' cannot be mirrored so: {problem}")
        self.last_queue_id += 1
        spec = QueueSpec(
            self.last_queue_id,
            vhost.name,
            command.name,
            command.durable,
            command.exclusive,
            command.auto_delete,
            command.arguments or NO_ARGUMENTS,
            command.owner,
            shared(command.node) if command.view is None else command.view.master,
            command.view,
            first_joined(command.view),
        )
        self.queues[vhost.name, command.name] = spec
        self.queue_counts[vhost.name] += 1
        events.append(e.QueueDeclared(spec))
        return None

    def _delete_queue(self, command: c.DeleteQueue, events: list[e.Event]) -> Refusal | None:
        if command.vhost not in self.vhosts:
            return no_vhost(command.vhost)
        spec = self.queues.get((command.vhost, command.name))
        if spec is None or (command.id is not None and command.id != spec.id) or is_hidden_queue(spec.name):
            return not_found("queue", command.name, command.vhost)
        self.drop_queue(spec, events)
        return None

    def drop_queue(self, spec: QueueSpec, events: list[e.Event], cascade: bool = True) -> None:
        """Remove a queue, its bindings, and the auto-delete exchanges that lose their last binding with it."""
        unused = []
        for group in self.bindings.groups_to(spec.vhost, "queue", spec.name):
            source = self._remove_group(group, events)
            if source is not None:
                unused.append(source)
        del self.queues[spec.vhost, spec.name]
        self.queue_counts[spec.vhost] -= not is_hidden_queue(spec.name)
        for component in OF_QUEUES:
            if self.parameters.pop((component, spec.vhost, spec.name), None) is not None:
                events.append(e.ParameterChanged(component, spec.vhost, spec.name))
        events.append(e.QueueDeleted(spec))
        if cascade:
            for source in unused:
                self._drop_exchange(source, events)

    # Bindings

    def _bind(self, command: c.Bind, events: list[e.Event]) -> Refusal | None:
        refused = self._binding_refusal(command)
        if refused is not None:
            return refused
        # Use the strings of the records, not those of the command: a million bindings share them.
        vhost = self.vhosts[command.vhost].name
        source = self.exchanges[vhost, command.source].name
        kind: DestinationKind
        if command.destination_kind == "queue":
            kind, destination = "queue", self.queues[vhost, command.destination].name
        else:
            kind, destination = "exchange", self.exchanges[vhost, command.destination].name
        arguments = command.arguments or NO_ARGUMENTS
        binding = Binding(vhost, source, kind, destination, command.key, arguments)
        if binding not in self.bindings:
            self.bindings.add(binding)
            events.append(e.BindingAdded(binding))
        return None

    def _unbind(self, command: c.Unbind, events: list[e.Event]) -> Refusal | None:
        refused = self._binding_refusal(command)
        if refused is not None:
            return refused
        vhost, source, kind, destination = command.vhost, command.source, command.destination_kind, command.destination
        binding = Binding(vhost, source, kind, destination, command.key, command.arguments or NO_ARGUMENTS)
        if binding not in self.bindings:
            start, end = resource("exchange", source, vhost), resource(kind, destination, vhost)
            return Refusal(404, f"no binding {command.key} between {start} and {end}")
        is_last = self.bindings.remove(binding)
        events.append(e.BindingRemoved(binding))
        if is_last and (unused := self._unused(vhost, source)) is not None:
            self._drop_exchange(unused, events)
        return None

    def _binding_refusal(self, command: c.Bind | c.Unbind) -> Refusal | None:
        """Return why a binding between these ends is refused, checked in RabbitMQ's order; None if it is not."""
        vhost, source, destination = command.vhost, command.source, command.destination
        if vhost not in self.vhosts:
            return no_vhost(vhost)
        if not source or (not destination and command.destination_kind == "exchange"):
            return DEFAULT_EXCHANGE
        if (vhost, source) not in self.exchanges:
            return not_found("exchange", source, vhost)
        there: dict[tuple[str, str], Any] = self.queues if command.destination_kind == "queue" else self.exchanges
        is_hidden = command.destination_kind == "queue" and is_closed(destination)
        if (vhost, destination) not in there or is_hidden:
            return not_found(command.destination_kind, destination, vhost)
        return None if fits(command.key) else unfit("routing key", command.key)

    # Policies and parameters

    def _set_policy(self, command: c.SetPolicy, events: list[e.Event]) -> Refusal | None:
        if command.vhost not in self.vhosts:
            return no_vhost(command.vhost)
        fault = _policy_fault(command)
        if fault is not None:
            return Refusal(406, fault)
        kept = self.operator_policies if command.operator else self.policies
        new = Policy(
            command.vhost,
            command.name,
            command.pattern,
            command.apply_to,
            command.priority,
            command.definition,
            command.operator,
            command.cost,
        )
        old = kept.get((command.vhost, command.name))
        more = new.cost - (0 if old is None else old.cost)
        total = self.pattern_costs.get(command.vhost, 0) + more
        if more > 0 and total > VHOST_COST_MAX:  # A policy may always be replaced by a cheaper one.
            return Refusal(406, too_costly(command.vhost, total))
        if old != new or not same_json(old.definition, new.definition):
            kept[command.vhost, command.name] = new
            self.add_cost(command.vhost, more)
            events.append(e.PolicyChanged(command.vhost))
        return None

    def add_cost(self, vhost: str, more: int) -> None:
        """Add to the cost of a vhost's policies."""
        self.policies_changed += 1
        self.pattern_costs[vhost] = self.pattern_costs.get(vhost, 0) + more
        if not self.pattern_costs[vhost]:
            del self.pattern_costs[vhost]

    def _clear_policy(self, command: c.ClearPolicy, events: list[e.Event]) -> Refusal | None:
        if command.vhost not in self.vhosts:
            return no_vhost(command.vhost)
        kept = self.operator_policies if command.operator else self.policies
        gone = kept.pop((command.vhost, command.name), None)
        if gone is None:
            kind = "operator policy" if command.operator else "policy"
            return not_found(kind, command.name, command.vhost)
        self.add_cost(command.vhost, -gone.cost)
        events.append(e.PolicyChanged(command.vhost))
        return None

    def _set_parameter(self, command: c.SetParameter, events: list[e.Event]) -> Refusal | None:
        if command.vhost not in self.vhosts:
            return no_vhost(command.vhost)
        key = (command.component, command.vhost, command.name)
        if command.component in OF_QUEUES and not is_about(command.value, self.queues.get(key[1:])):
            return not_found("queue", command.name, command.vhost)  # Its deletion would have removed the parameter.
        work = WorkKey(*key)
        is_run = command.component in assignments.COMPONENTS
        if is_run and (fault := assignments.fault_of(self, work) or bulk_fault(command.value, WEIGHT_MAX)) is not None:
            return Refusal(406, fault)
        if command.component in COMPONENTS and (fault := self._federation_fault(command)) is not None:
            return Refusal(406, fault)
        is_new = key not in self.parameters or not same_json(self.parameters[key], command.value)
        is_of_user = command.component == UPSTREAM
        if is_new or (is_of_user and self.parameter_users.get(key, "") != command.user):
            self.parameters[key] = command.value
            if is_of_user:
                self._set_parameter_user(key, command.user)
            events.append(e.ParameterChanged(*key))
        if is_run and (is_new or self.assignments[work].user != command.user):
            assignments.on_parameter_set(self, work, command.user, events)
        return None

    def _federation_fault(self, command: c.SetParameter) -> str | None:
        """Return why there can be no upstream or set like this; None if there can."""
        component, name = command.component, command.name
        if not name or not fits(name):
            return f"the name of a {component} is UTF-8 of 1 to 255 bytes"
        count = sum(1 for key in self.parameters if key[0] == component)
        if count >= UPSTREAMS_MAX and (component, command.vhost, name) not in self.parameters:
            return f"a cluster has at most {UPSTREAMS_MAX} parameters of component {component}"
        return bulk_fault(command.value, WEIGHT_MAX)

    def _set_parameter_user(self, key: tuple[str, str, str], user: str) -> None:
        self.parameter_users.pop(key, None)
        if user:
            self.parameter_users[key] = user

    def _clear_parameter(self, command: c.ClearParameter, events: list[e.Event]) -> Refusal | None:
        key = (command.component, command.vhost, command.name)
        if key not in self.parameters:
            return not_found(f"{command.component} parameter", command.name, command.vhost)
        del self.parameters[key]
        self.parameter_users.pop(key, None)
        events.append(e.ParameterChanged(*key))
        assignments.on_parameter_cleared(self, WorkKey(*key), events)
        return None

    def _set_global_parameter(self, command: c.SetGlobalParameter, events: list[e.Event]) -> Refusal | None:
        name = command.name
        fault = fault_of(self.global_parameters, name, command.value)
        if fault is not None:
            return Refusal(406, fault)
        if name not in self.global_parameters or not same_json(self.global_parameters[name], command.value):
            self.global_parameters[name] = command.value
            events.append(e.GlobalParameterChanged(name))
        return None

    def _clear_global_parameter(self, command: c.ClearGlobalParameter, events: list[e.Event]) -> Refusal | None:
        if command.name not in self.global_parameters:
            return Refusal(404, f"no global parameter '{command.name}'")
        fault = clear_fault_of(self.global_parameters, command.name)
        if fault is not None:
            return Refusal(406, fault)
        del self.global_parameters[command.name]
        events.append(e.GlobalParameterChanged(command.name))
        return None

    # Nodes

    def _node_started(self, command: c.NodeStarted, events: list[e.Event]) -> Refusal | None:
        # RabbitMQ keeps what is not durable in memory only. When its last node stops, such queues and their bindings
        # are forgotten rather than deleted, so no exchange is found to have lost its last binding. We do as it does:
        # a durable auto-delete exchange is there again after a restart.
        cascade = not command.alone
        client_sessions.lose_node(self, command.node, events)
        assignments.lose_node(self, command.node, events)
        if command.run:
            self.runs[command.node] = command.run
            self.starts[command.node] = self.starts.get(command.node, 0) + 1
        for queue in [q for q in self.queues.values() if q.node == command.node and (q.exclusive or not q.durable)]:
            if queue.view is None or len(queue.view.in_sync) == 1:  # Otherwise a mirror still has it.
                self.drop_queue(queue, events, cascade)
        if command.alone:
            for exchange in [spec for spec in self.exchanges.values() if not spec.durable]:
                self._drop_exchange(exchange, events, cascade)
        return None

    def _forget_node(self, command: c.ForgetNode, events: list[e.Event]) -> Refusal | None:
        self.runs.pop(command.node, None)
        client_sessions.lose_node(self, command.node, events)
        assignments.lose_node(self, command.node, events)
        for queue in list(self.queues.values()):
            if queue.view is None:
                view = None
            elif command.node not in queue.view.ring:
                continue
            else:
                view = without(queue.view, command.node)
            if view is not None:
                put_view(self, queue, view, events)
            elif queue.node == command.node:
                self.drop_queue(queue, events)
                if is_hidden_queue(queue.name):  # Its messages are lost. The exchange gets a new one.
                    self._add_hidden_queue(self.exchanges[queue.vhost, exchange_of(queue)], "", None, events)
        return None

    def _rename_node(self, command: c.RenameNode, events: list[e.Event]) -> Refusal | None:
        client_sessions.rename_node(self, command.old, command.new, events)
        assignments.rename_node(self, command.old, command.new, events)
        for key, queue in list(self.queues.items()):
            if queue.view is not None and command.old in queue.view.ring:
                joined = {command.new if name == command.old else name: at for name, at in queue.joined.items()}
                view = renamed(queue.view, command.old, command.new)
                same = replace(queue, joined=joined, view=queue.view._replace(ring=view.ring))
                put_view(self, same, view, events)
            elif queue.node == command.old:
                self.queues[key] = moved = replace(queue, node=command.new)
                events.append(e.QueueMoved(moved))
        for parameter, value in list(renamed_extra(self, command.old, command.new)):
            self.parameters[parameter] = value
            events.append(e.ParameterChanged(*parameter))
        return None


def _policy_fault(command: c.SetPolicy) -> str | None:
    """Return why a policy is too big; None if it is not. Its contents are checked before the command is made."""
    if not command.name or not fits(command.name):
        return "the name of a policy is UTF-8 of 1 to 255 bytes"
    if len(command.pattern) > CHARACTERS_MAX:
        return f"a pattern has at most {CHARACTERS_MAX} characters"
    if command.cost < 0:
        return "a pattern costs something"
    return bulk_fault(command.definition, WEIGHT_MAX)


def _without(values: dict[str, _T], name: str | None) -> dict[str, _T]:
    return {} if name is None else {key: value for key, value in values.items() if key != name}


_Fold = Callable[[Metadata, Any, list[e.Event]], Refusal | None]

_FOLDS: Final[dict[type, _Fold]] = {
    c.AddVhost: Metadata._add_vhost,
    c.DeleteVhost: Metadata._delete_vhost,
    c.SetVhostLimits: Metadata._set_vhost_limits,
    c.ClearVhostLimits: Metadata._clear_vhost_limits,
    c.PutUser: Metadata._put_user,
    c.DeleteUser: Metadata._delete_user,
    c.SetUserLimits: Metadata._set_user_limits,
    c.ClearUserLimits: Metadata._clear_user_limits,
    c.SetPermissions: Metadata._set_permissions,
    c.ClearPermissions: Metadata._clear_permissions,
    c.SetTopicPermissions: Metadata._set_topic_permissions,
    c.ClearTopicPermissions: Metadata._clear_topic_permissions,
    c.DeclareExchange: Metadata._declare_exchange,
    c.DeleteExchange: Metadata._delete_exchange,
    c.DeclareQueue: Metadata._declare_queue,
    c.DeleteQueue: Metadata._delete_queue,
    c.Bind: Metadata._bind,
    c.Unbind: Metadata._unbind,
    c.SetPolicy: Metadata._set_policy,
    c.ClearPolicy: Metadata._clear_policy,
    c.SetParameter: Metadata._set_parameter,
    c.ClearParameter: Metadata._clear_parameter,
    c.SetGlobalParameter: Metadata._set_global_parameter,
    c.ClearGlobalParameter: Metadata._clear_global_parameter,
    c.NodeStarted: Metadata._node_started,
    c.ForgetNode: Metadata._forget_node,
    c.RenameNode: Metadata._rename_node,
    c.MoveQueue: move_queue,
    c.ChangeView: change_view,
    c.EndView: end_view,
    m.KeepRetained: retained_messages.keep_retained,
    m.ClaimClientIds: client_sessions.claim_client_ids,
    m.ReleaseClientIds: client_sessions.release_client_ids,
    m.ChangeSessions: client_sessions.change_sessions,
    m.SweepSessions: client_sessions.sweep_sessions,
    m.WillsPublished: client_sessions.wills_published,
    s.AssignWork: assignments.assign_work,
    s.SetLinks: assignments.set_links,
    s.PauseWork: assignments.pause_work,
    s.RestartWork: assignments.restart_work,
    s.ReportWork: assignments.report_work,
}
