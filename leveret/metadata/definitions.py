"""Definitions: the metadata of a cluster as the JSON that RabbitMQ exports and imports.

An export is made of records, an import results in commands; both work item by item, so that a hundred thousand queues
need no second copy of everything. The format is that of `rabbitmqctl export_definitions` in 3.10, as real files have
it:

- Limits of vhosts and operator policies are *parameters*, of the components `vhost-limits` and `operator_policy`. A
  vhost's description and tags are in its `metadata`; files made by the management plugin have them beside its name.
- Arguments are plain JSON. A short or a timestamp is imported as a long, which RabbitMQ treats as equal when a queue is
  declared again, and not when a binding is made again. So the importer of a binding checks whether one exists that
  would be exported alike.
- A durable server-named queue is exported, and not imported: no client would know its name.
- Exclusive queues, which end with their connections, and the predeclared exchanges are left out. RabbitMQ leaves out
  exclusive queues, but not their bindings: a file can have bindings of queues that it does not contain. RabbitMQ also
  leaves out internal exchanges; we do not.
- Definitions of one vhost name no vhost in their items: the importer does.

An invalid item raises `BadDefinition`, whose text does not say where it is; the caller knows. Checks that need more
than the item (a pattern, a policy's keys, arguments of a queue) are the caller's too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.base.json_values import Json, same_json
from leveret.base.safe_regex import cost_of
from leveret.metadata.federation import parameters as federation
from leveret.metadata.model import commands as c
from leveret.metadata.model.hidden_queues import is_closed
from leveret.metadata.model.records import (
    NO_ARGUMENTS,
    Binding,
    DestinationKind,
    ExchangeSpec,
    Policy,
    QueueSpec,
    UserSpec,
    VhostSpec,
)
from leveret.metadata.rules.global_parameters import is_internal
from leveret.metadata.rules.passwords import MD5, SHA256
from leveret.metadata.rules.placement import INTERNAL
from leveret.metadata.shovel.parameters import faults_of
from leveret.metadata.shovel.records import SHOVEL
from leveret.protocol.tables import DEPTH_MAX, Field, Table

if TYPE_CHECKING:
    from leveret.metadata.store import Metadata

# In the order of import: each section refers to earlier ones only.
SECTIONS: Final = (
    "users", "vhosts", "permissions", "topic_permissions", "parameters", "global_parameters", "policies", "exchanges",
    "queues", "bindings",
)  # fmt: skip
OF_A_VHOST: Final = ("parameters", "policies", "exchanges", "queues", "bindings")
REMARKS: Final = frozenset(
    {
        "rabbit_version", "rabbitmq_version", "rabbitmq_definition_format", "product_name", "product_version",
        "original_vhost_name", "original_cluster_name", "explanation", "leveret_version", "metadata",
    }
)  # fmt: skip
RABBITMQ_VERSION: Final = "3.10.8"  # Written into exports, for RabbitMQ's tools.
VHOST_LIMITS: Final = "vhost-limits"
OPERATOR_POLICY: Final = "operator_policy"
LONG_MIN, LONG_MAX = -(1 << 63), (1 << 63) - 1

_SERVERS: Final = "names that begin with amq. are given by the server"
# Fields of items that are not read, and not reported as having no effect.
_KNOWN: Final[dict[str, frozenset[str]]] = {
    "users": frozenset({"name", "password", "password_hash", "hashing_algorithm", "tags", "limits"}),
    "vhosts": frozenset({"name", "description", "tags", "metadata", "limits"}),
    "permissions": frozenset({"user", "vhost", "configure", "write", "read"}),
    "topic_permissions": frozenset({"user", "vhost", "exchange", "write", "read"}),
    "parameters": frozenset({"component", "vhost", "name", "value"}),
    "global_parameters": frozenset({"name", "value"}),
    "policies": frozenset({"vhost", "name", "pattern", "apply-to", "priority", "definition"}),
    "exchanges": frozenset({"vhost", "name", "type", "durable", "auto_delete", "internal", "arguments"}),
    "queues": frozenset({"vhost", "name", "type", "durable", "auto_delete", "arguments"}),
    "bindings": frozenset(
        {"vhost", "source", "destination", "destination_type", "routing_key", "arguments", "properties_key"}
    ),
}


class BadDefinition(ValueError):
    """An item is invalid; the text says why."""


class Skipped(NamedTuple):
    """The reason for which a valid item is not imported."""

    why: str


# -- Values --------------------------------------------------------------------------------------------------------


def to_table(value: Json) -> Table:
    """Return arguments as typed values, with the types that RabbitMQ chooses. Raises `BadDefinition`."""
    if value is None or value == []:  # Some tools write an empty list of pairs.
        return NO_ARGUMENTS
    if not isinstance(value, dict):
        raise BadDefinition("arguments must be an object")
    return {name: _to_field(one, 1) for name, one in value.items()}


def _to_field(value: Json, depth: int) -> Field:
    if depth > DEPTH_MAX:
        raise BadDefinition(f"arguments are nested more than {DEPTH_MAX} times")
    if value is None:
        return Field("V", None)
    if isinstance(value, bool):
        return Field("t", value)
    if isinstance(value, int):
        if not LONG_MIN <= value <= LONG_MAX:
            raise BadDefinition(f"{value} is too large a number for an argument")
        return Field("l", value)
    if isinstance(value, float):
        return Field("d", value)
    if isinstance(value, str):
        return Field("S", value)
    if isinstance(value, list):
        return Field("A", [_to_field(one, depth + 1) for one in value])
    return Field("F", {name: _to_field(one, depth + 1) for name, one in value.items()})


def from_table(table: Table) -> dict[str, Json]:
    return {name: _from_field(field) for name, field in table.items()}


def _from_field(field: Field) -> Json:
    kind, value = field
    if kind == "x":
        return bytes(value).decode("utf-8", "surrogateescape")
    if kind == "D":
        scale, number = value
        return float(number / 10**scale)
    if kind == "A":
        return [_from_field(one) for one in value]
    if kind == "F":
        return from_table(value)
    plain: Json = value
    return plain


# -- Export --------------------------------------------------------------------------------------------------------


def gather(metadata: Metadata, vhost: str | None = None) -> dict[str, Iterable[Any]]:
    """Return all records to export, of the cluster or of one vhost, as of now. Where there may be many, they are
    selected during iteration, and `shown` turns each into an item, so that the caller can spread the work over time."""

    def here(records: Iterable[Any]) -> Iterator[Any]:
        return (one for one in records if vhost is None or one.vhost == vhost)

    queues, exchanges = metadata.queues.copy(), list(metadata.exchanges.values())
    groups = metadata.bindings.copy().groups(vhost)

    def is_hidden(queue: QueueSpec | None) -> bool:
        return queue is not None and (queue.exclusive or is_closed(queue.name))

    found: dict[str, Iterable[Any]] = {
        "parameters": [*_parameters(metadata, vhost), *here(metadata.operator_policies.values())],
        "policies": list(here(metadata.policies.values())),
        "queues": (one for one in here(queues.values()) if not is_hidden(one)),
        "exchanges": (one for one in here(exchanges) if one.name and not one.name.startswith("amq.")),
        "bindings": (
            one
            for group in groups
            if group.destination_kind != "queue" or not is_hidden(queues.get((group.vhost, group.destination)))
            for one in group
        ),
    }
    if vhost is not None:
        return found
    return {
        "users": list(metadata.users.values()),
        "vhosts": list(metadata.vhosts.values()),
        "permissions": [
            {"user": user, "vhost": where, **one._asdict()} for (user, where), one in metadata.permissions.items()
        ],
        "topic_permissions": [
            {"user": user, "vhost": where, "exchange": exchange, **one._asdict()}
            for (user, where), kept in metadata.topic_permissions.items()
            for exchange, one in kept.items()
        ],
        "global_parameters": [
            {"name": name, "value": value}
            for name, value in metadata.global_parameters.items()
            if not is_internal(name)
        ],
        **found,
    }


def _parameters(metadata: Metadata, vhost: str | None) -> Iterator[dict[str, Json]]:
    for spec in metadata.vhosts.values():
        if spec.limits and vhost in (None, spec.name):
            limits: dict[str, Json] = dict(spec.limits)
            yield {"component": VHOST_LIMITS, "vhost": spec.name, "name": "limits", "value": limits}
    for (component, where, name), value in metadata.parameters.items():
        # Internal parameters name nodes of this cluster and queues by id, or are results of jobs.
        if component not in INTERNAL and vhost in (None, where):
            yield {"component": component, "vhost": where, "name": name, "value": value}


def shown(record: Any, whole: bool = True) -> dict[str, Json]:
    """Return a record of `gather` as an item. Not `whole`: an export of one vhost, which is not named."""
    item = record if isinstance(record, dict) else _SHOWN[type(record)](record)
    return item if whole else {name: value for name, value in item.items() if name != "vhost"}


def _user(spec: UserSpec) -> dict[str, Json]:
    return {
        "name": spec.name,
        "password_hash": spec.password_hash,
        "hashing_algorithm": spec.hashing,
        "tags": list(spec.tags),
        "limits": dict(spec.limits),
    }


def _vhost(spec: VhostSpec) -> dict[str, Json]:
    metadata: Json = {"description": spec.description, "tags": list(spec.tags)}
    return {"name": spec.name, "metadata": metadata, "limits": [[name, limit] for name, limit in spec.limits.items()]}


def _policy(policy: Policy) -> dict[str, Json]:
    rest: dict[str, Json] = {
        "pattern": policy.pattern,
        "apply-to": policy.apply_to,
        "definition": policy.definition,
        "priority": policy.priority,
    }
    if policy.operator:
        return {"component": OPERATOR_POLICY, "vhost": policy.vhost, "name": policy.name, "value": rest}
    return {"vhost": policy.vhost, "name": policy.name, **rest}


def _exchange(spec: ExchangeSpec) -> dict[str, Json]:
    return {
        "vhost": spec.vhost,
        "name": spec.name,
        "type": spec.type,
        "durable": spec.durable,
        "auto_delete": spec.auto_delete,
        "internal": spec.internal,
        "arguments": from_table(spec.arguments),
    }


def _queue(spec: QueueSpec) -> dict[str, Json]:
    kind = spec.arguments.get("x-queue-type")
    return {
        "vhost": spec.vhost,
        "name": spec.name,
        "type": "classic" if kind is None else kind.value,
        "durable": spec.durable,
        "auto_delete": spec.auto_delete,
        "arguments": from_table(spec.arguments),
    }


def _binding(binding: Binding) -> dict[str, Json]:
    return {
        "vhost": binding.vhost,
        "source": binding.source,
        "destination": binding.destination,
        "destination_type": binding.destination_kind,
        "routing_key": binding.key,
        "arguments": from_table(binding.arguments),
    }


_SHOWN: Final[dict[type, Callable[[Any], dict[str, Json]]]] = {
    UserSpec: _user,
    VhostSpec: _vhost,
    Policy: _policy,
    ExchangeSpec: _exchange,
    QueueSpec: _queue,
    Binding: _binding,
}


# -- Import --------------------------------------------------------------------------------------------------------


class Reader:
    """Reads the items of a file. `vhost`: of items that name none. `hashed`: makes a hash of a password, for files
    written by hand. `version`: of the RabbitMQ that wrote the file."""

    def __init__(self, hashed: Callable[[str], str], vhost: str | None = None, version: Json = None) -> None:
        self._hashed = hashed
        self._vhost = vhost
        self._old = _is_before_3_6(version)

    def read(self, section: str, item: Json) -> list[c.Command] | Skipped:
        """Return the commands that import an item, or why it is not imported. Raises `BadDefinition`."""
        if not isinstance(item, dict):
            raise BadDefinition("is not an object")
        return _READ[section](self, item)

    def _vhost_of(self, item: Mapping[str, Json]) -> str:
        if self._vhost is not None:
            return self._vhost
        if "vhost" not in item:
            raise BadDefinition("vhost is missing; definitions of a single vhost are imported with -p <vhost>")
        return _text(item, "vhost")

    def _users(self, item: Mapping[str, Json]) -> list[c.Command]:
        name = _name(item)
        hashing = _text(item, "hashing_algorithm", MD5 if self._old else SHA256)
        if "password" in item and "password_hash" not in item:
            password = _text(item, "password")
            password_hash, hashing = self._hashed(password) if password else "", SHA256
        else:
            password_hash = _text(item, "password_hash", "")
        commands: list[c.Command] = [c.PutUser(name, password_hash, hashing, _tags(item))]
        if "limits" in item:
            commands.append(c.SetUserLimits(name, _limits(item["limits"]), replace=True))
        return commands

    def _vhosts(self, item: Mapping[str, Json]) -> list[c.Command]:
        metadata = item.get("metadata", {})
        if not isinstance(metadata, dict):
            raise BadDefinition("metadata must be an object")
        said = {**metadata, **item}
        name = _name(item)
        commands: list[c.Command] = [c.AddVhost(name, _text(said, "description", ""), _tags({"tags": [], **said}))]
        if limits := _limits(item.get("limits", [])):
            commands.append(c.SetVhostLimits(name, limits, replace=True))
        return commands

    def _permissions(self, item: Mapping[str, Json]) -> list[c.Command]:
        patterns = (_text(item, which) for which in ("configure", "write", "read"))
        return [c.SetPermissions(_text(item, "user"), self._vhost_of(item), *patterns)]

    def _topic_permissions(self, item: Mapping[str, Json]) -> list[c.Command]:
        user, vhost, exchange = _text(item, "user"), self._vhost_of(item), _text(item, "exchange")
        return [c.SetTopicPermissions(user, vhost, exchange, _text(item, "write"), _text(item, "read"))]

    def _parameters(self, item: Mapping[str, Json]) -> list[c.Command] | Skipped:
        component, vhost, name = _text(item, "component"), self._vhost_of(item), _text(item, "name")
        if "value" not in item:
            raise BadDefinition("value is missing")
        value = item["value"]
        if component == VHOST_LIMITS:
            return [c.SetVhostLimits(vhost, _limits(value), replace=True)]
        if component == OPERATOR_POLICY:
            if not isinstance(value, dict):
                raise BadDefinition("value must be an object")
            return [_set_policy(vhost, name, {**value, "definition": _joined(value.get("definition"))}, operator=True)]
        if component == SHOVEL:
            faults = faults_of(name, value)
            if faults:
                raise BadDefinition("; ".join(faults))
            return [c.SetParameter(component, vhost, name, value)]
        if component in federation.COMPONENTS:
            faults = federation.faults_of(component, name, value, vhost)
            if faults:
                raise BadDefinition("; ".join(faults))
            return [c.SetParameter(component, vhost, name, value)]
        return Skipped(f"this version has nothing that acts on parameters of component {component}")

    def _global_parameters(self, item: Mapping[str, Json]) -> list[c.Command] | Skipped:
        name = _text(item, "name")
        if "value" not in item:
            raise BadDefinition("value is missing")
        if is_internal(name):
            return Skipped("it belongs to the cluster that the file comes from, and is set by the cluster alone")
        return [c.SetGlobalParameter(name, item["value"])]

    def _policies(self, item: Mapping[str, Json]) -> list[c.Command]:
        return [_set_policy(self._vhost_of(item), _name(item), item, operator=False)]

    def _exchanges(self, item: Mapping[str, Json]) -> list[c.Command] | Skipped:
        vhost, name = self._vhost_of(item), _text(item, "name")
        if not name:
            return Skipped("the default exchange is there anyway")
        if name.startswith("amq."):
            return Skipped(_SERVERS)
        flags = (_flag(item, "durable"), _flag(item, "auto_delete"), _flag(item, "internal", False))
        return [c.DeclareExchange(vhost, name, _text(item, "type"), *flags, to_table(item.get("arguments")))]

    def _queues(self, item: Mapping[str, Json]) -> list[c.Command] | Skipped:
        vhost, name = self._vhost_of(item), _name(item)
        if name.startswith("amq."):
            return Skipped(_SERVERS)
        arguments = to_table(item.get("arguments"))
        kind = _text(item, "type", "classic")
        if kind != "classic" and "x-queue-type" not in arguments:  # It is the default type of its vhost.
            arguments = {**arguments, "x-queue-type": Field("S", kind)}
        return [
            c.DeclareQueue(
                vhost, name, _flag(item, "durable"), auto_delete=_flag(item, "auto_delete"), arguments=arguments
            )
        ]

    def _bindings(self, item: Mapping[str, Json]) -> list[c.Command] | Skipped:
        vhost, source, destination = self._vhost_of(item), _text(item, "source"), _text(item, "destination")
        if not source:
            return Skipped("every queue is bound to the default exchange anyway")
        kind = _text(item, "destination_type")
        if kind not in ("queue", "exchange"):
            raise BadDefinition(f"destination_type must be queue or exchange, not {kind}")
        ends: DestinationKind = "queue" if kind == "queue" else "exchange"
        key, arguments = _text(item, "routing_key"), to_table(item.get("arguments"))
        return [c.Bind(vhost, source, ends, destination, key, arguments)]


_READ: Final[dict[str, Callable[[Reader, Mapping[str, Json]], list[c.Command] | Skipped]]] = {
    "users": Reader._users,
    "vhosts": Reader._vhosts,
    "permissions": Reader._permissions,
    "topic_permissions": Reader._topic_permissions,
    "parameters": Reader._parameters,
    "global_parameters": Reader._global_parameters,
    "policies": Reader._policies,
    "exchanges": Reader._exchanges,
    "queues": Reader._queues,
    "bindings": Reader._bindings,
}


def document_problems(document: Json, vhost: str | None = None) -> list[str]:
    """Return what is wrong with a file as a whole. `vhost`: the target, if the file is of one vhost."""
    if not isinstance(document, dict):
        return ["definitions are a JSON object"]
    problems = []
    for name, value in document.items():
        if name in SECTIONS:
            if not isinstance(value, list):
                problems.append(f"{name} must be a list")
            elif value and vhost is not None and name not in OF_A_VHOST:
                problems.append(f"{name} belong to no single vhost: import this file without -p")
        elif name not in REMARKS and not (vhost is not None and name in ("description", "tags", "limits")):
            problems.append(f"'{name}' is nothing that definitions have; they have {', '.join(SECTIONS)}")
    return problems


def unread_fields(section: str, item: Json) -> list[str]:
    """Return the fields of an item that have no effect."""
    return [name for name in item if name not in _KNOWN[section]] if isinstance(item, dict) else []


def named(section: str, item: Json) -> str:
    """Return a short description of an item, for messages."""
    if not isinstance(item, dict):
        return ""
    if section == "bindings":
        return f"from '{item.get('source')}' to '{item.get('destination')}' in vhost '{item.get('vhost', '')}'"
    name = item.get("name", item.get("user"))
    where = f" in vhost '{item['vhost']}'" if "vhost" in item else ""
    return "" if name is None else f"'{name}'{where}"


def same_policy(policy: Policy, command: c.SetPolicy) -> bool:
    mine = (policy.pattern, policy.apply_to, policy.priority)
    same = mine == (command.pattern, command.apply_to, command.priority)
    return same and same_json(policy.definition, command.definition)


# -- Fields --------------------------------------------------------------------------------------------------------


def _text(item: Mapping[str, Json], name: str, default: str | None = None) -> str:
    value = item.get(name, default)
    if value is None:
        raise BadDefinition(f"{name} is missing")
    if not isinstance(value, str):
        raise BadDefinition(f"{name} must be a string")
    return value


def _name(item: Mapping[str, Json]) -> str:
    name = _text(item, "name")
    if not name:
        raise BadDefinition("name must not be empty")
    return name


def _flag(item: Mapping[str, Json], name: str, default: bool | None = None) -> bool:
    value = item.get(name, default)
    if value is None:
        raise BadDefinition(f"{name} is missing")
    if not isinstance(value, bool):
        raise BadDefinition(f"{name} must be true or false")
    return value


def _tags(item: Mapping[str, Json]) -> tuple[str, ...]:
    """Return the tags of a user: a list, or in older files one string with commas."""
    tags = item.get("tags")
    if tags is None:
        raise BadDefinition("tags are missing")
    listed = tags.split(",") if isinstance(tags, str) else tags
    if not isinstance(listed, list):
        raise BadDefinition("tags must be a list of strings")
    found = []
    for tag in listed:
        if not isinstance(tag, str):
            raise BadDefinition("tags must be a list of strings")
        found.append(tag.strip())
    return tuple(dict.fromkeys(filter(None, found)))


def _limits(value: Json) -> dict[str, int]:
    """Return limits from an object or a list of pairs; both occur."""
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        pairs = [(pair[0], pair[1]) for pair in value if isinstance(pair, list)]
    elif isinstance(value, dict):
        pairs = list(value.items())
    else:
        raise BadDefinition("limits must be an object")
    limits = {}
    for name, limit in pairs:
        if not isinstance(name, str) or isinstance(limit, bool) or not isinstance(limit, int):
            raise BadDefinition(f"limits must be whole numbers, and that of {name} is none")
        limits[name] = limit
    return limits


def _joined(definition: Json) -> Json:
    """Return a policy's definition as an object: `rabbitmqctl export_definitions` writes those of operator policies as
    lists of pairs."""
    if not isinstance(definition, list) or not definition:
        return definition
    joined: dict[str, Json] = {}
    for pair in definition:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            return definition
        joined[pair[0]] = pair[1]
    return joined


def _set_policy(vhost: str, name: str, item: Mapping[str, Json], operator: bool) -> c.SetPolicy:
    definition, priority = item.get("definition"), item.get("priority", 0)
    if not isinstance(definition, dict):
        raise BadDefinition("definition must be an object")
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise BadDefinition("priority must be a whole number")
    pattern = _text(item, "pattern")
    apply_to = _text(item, "apply-to", "all")
    return c.SetPolicy(vhost, name, pattern, apply_to, priority, definition, operator, cost_of(pattern))


def _is_before_3_6(version: Json) -> bool:
    """Return whether a file is of a RabbitMQ before 3.6, in which hashes without an algorithm are MD5."""
    if not isinstance(version, str):
        return False
    words = version.split(".")[:2]
    return len(words) == 2 and all(word.isdecimal() for word in words) and [int(word) for word in words] < [3, 6]
