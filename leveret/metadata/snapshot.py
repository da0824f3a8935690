"""Snapshots of the metadata: lines of JSON, one record each, so that neither side ever holds all of it twice.

The first line names the format and its version, the last one has the number of lines, so that a truncated snapshot is
noticed even without a checksum. Bindings, of which there may be millions, are in groups that share vhost and source. A
line whose bindings all lead to one destination, as nearly all do where there are very many, is read by cutting its
text: JSON would make a list of three texts for each.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from leveret.base.json_values import Json
from leveret.metadata.assignments import table_of
from leveret.metadata.command_codec import (
    BadEncoding,
    dump_line,
    dump_record,
    dump_table,
    load_line,
    load_record,
    load_table,
)
from leveret.metadata.model.hidden_queues import is_hidden_queue
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
from leveret.metadata.mqtt.records import ClientSession, DueWill, RetainedMessage
from leveret.metadata.shovel.records import Assignment

if TYPE_CHECKING:
    from leveret.metadata.model.bindings import BindingGroup
    from leveret.metadata.store import Metadata

FORMAT: Final = "leveret metadata"
VERSION: Final = 1
_GROUP: Final = 1000  # Bindings in a line: the line's own cost is negligible, and the line stays small.
_OWN_LINE: Final = 50  # Bindings of a destination that are worth lines of their own.
_TEXT: Final = r'"([^"\\]*)"'  # Without escapes.
_ONE_DESTINATION: Final = re.compile(rf'\["bindings",{_TEXT},{_TEXT},\[\["(queue|exchange)",{_TEXT},"')


# Writing


def write_snapshot(metadata: Metadata) -> Iterator[bytes]:
    """Yield the lines of a snapshot, each with its line end."""
    count = 0
    for values in _rows(metadata):
        yield dump_line(values) + b"\n"
        count += 1
    yield dump_line(["end", count]) + b"\n"


def _rows(metadata: Metadata) -> Iterator[list[Json]]:
    yield [FORMAT, VERSION, metadata.index, metadata.last_queue_id]
    for vhost in metadata.vhosts.values():
        yield ["vhost", *dump_record(vhost)]
    for user in metadata.users.values():
        yield ["user", *dump_record(user)]
    for key, permission in metadata.permissions.items():
        yield ["permission", *key, *permission]
    for key, topics in metadata.topic_permissions.items():
        for exchange, topic in topics.items():
            yield ["topic permission", *key, exchange, *topic]
    for spec in metadata.exchanges.values():
        yield ["exchange", *dump_record(spec)]
    for queue in metadata.queues.values():
        yield ["queue", *dump_record(queue)]
    yield from _binding_rows(metadata)
    for kept in (metadata.policies, metadata.operator_policies):
        for policy in kept.values():
            yield ["policy", *dump_record(policy)]
    for parameter, value in metadata.parameters.items():
        yield ["parameter", *parameter, value]
    for parameter, who in metadata.parameter_users.items():
        yield ["parameter user", *parameter, who]
    for name, value in metadata.global_parameters.items():
        yield ["global parameter", name, value]
    for node, run in metadata.runs.items():
        yield ["run", node, run]
    for node, count in metadata.starts.items():
        yield ["starts", node, count]
    yield from _mqtt_rows(metadata)
    if metadata.last_assignment:
        yield ["last assignment", metadata.last_assignment]
    for assignment in (*metadata.assignments.values(), *metadata.links.values()):
        yield ["assignment", *dump_record(assignment)]


def _mqtt_rows(metadata: Metadata) -> Iterator[list[Json]]:
    if metadata.last_claim or metadata.last_will:
        yield ["last claim and will", metadata.last_claim, metadata.last_will]
    for vhost, message in metadata.retained:
        yield ["retained", vhost, *dump_record(message)]
    for session in metadata.sessions:
        yield ["session", *dump_record(session)]
    for session in metadata.leaving.values():
        yield ["leaving session", *dump_record(session)]
    for will in metadata.wills.values():
        yield ["will", *dump_record(will)]


def _binding_rows(metadata: Metadata) -> Iterator[list[Json]]:
    vhost, source, rows = "", "", list[Json]()
    size = 0  # Of the last group.
    for group in metadata.bindings.groups():
        is_own = max(size, len(group)) >= _OWN_LINE
        if rows and (is_own or (group.vhost, group.source) != (vhost, source)):
            yield ["bindings", vhost, source, rows]
            rows = []
        vhost, source, size = group.vhost, group.source, len(group)
        for row in _group_rows(group):
            rows.append(row)
            if len(rows) == _GROUP:
                yield ["bindings", vhost, source, rows]
                rows = []
    if rows:
        yield ["bindings", vhost, source, rows]


def _group_rows(group: BindingGroup) -> Iterator[Json]:
    kind, destination = group.destination_kind, group.destination
    for key in group.plain_keys():
        yield [kind, destination, key]
    for key, arguments in group.with_arguments():
        yield [kind, destination, key, dump_table(arguments)]


# Reading


def read_snapshot(data: bytes, metadata: Metadata) -> None:
    """Fill an empty store. Raises `BadEncoding` with the line's number; the store must then be dropped."""
    lines = iter(_lines(data))
    match load_line(next(lines, b"")):
        case [str(name), int(version), int(index), int(last_queue_id)] if name == FORMAT and version == VERSION:
            metadata.index, metadata.last_queue_id = index, last_queue_id
        case [str(name), int(version), *_] if name == FORMAT:
            raise BadEncoding(f"a snapshot of version {version}; this program reads version {VERSION}")
        case _:
            raise BadEncoding("not a snapshot")
    count = 1
    for line in lines:
        values = _cut(line) or load_line(line)
        if values and values[0] == "end":
            if values[1:] != [count] or next(lines, None) is not None:
                raise BadEncoding(f"the snapshot's end counts {values[1:]} lines, found {count}")
            return
        count += 1
        try:
            _read_row(metadata, values)
        except (BadEncoding, ValueError, LookupError, TypeError, AssertionError) as error:
            raise BadEncoding(f"line {count} of the snapshot: {error!r}") from None
    raise BadEncoding(f"the snapshot has no end after {count} lines")


def _lines(data: bytes) -> Iterator[bytes]:
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        yield data[start:end]
        start = end + 1
    if start < len(data):
        yield data[start:]


def _cut(line: bytes) -> list[Any] | None:
    """Return a line of bindings without arguments to one destination, as the record `keys`, which no snapshot has; None
    if it is any other line."""
    if not line.startswith(b'["bindings"') or b"\\" in line or not line.isascii():
        return None
    text = line.decode("ascii")
    head = _ONE_DESTINATION.match(text)
    if head is None or not text.endswith('"]]]'):
        return None
    vhost, source, kind, destination = head.groups()
    start = f'["{kind}","{destination}","'
    if not text.startswith(start, text.rfind('["')):  # Most lines of several destinations need not be cut to know it.
        return None
    keys = text[head.end() : -4].split('"],' + start)
    if text.count('"') != 6 + 6 * len(keys):  # Of three texts, and three of each binding: none is within a key.
        return None
    return ["keys", vhost, source, kind, destination, keys]


def _read_row(metadata: Metadata, values: list[Any]) -> None:
    if not values or values[0] not in _READERS:
        raise BadEncoding(f"unknown record {values[:1]}")
    _READERS[values[0]](metadata, *values[1:])


def _check_texts(*values: Any) -> None:
    for value in values:
        if not isinstance(value, str):
            raise BadEncoding(f"expected text, found {value!r}")


def _read_vhost(metadata: Metadata, *values: Any) -> None:
    spec = load_record(VhostSpec, values)
    metadata.vhosts[spec.name] = spec
    metadata.queue_counts[spec.name] = 0


def _read_user(metadata: Metadata, *values: Any) -> None:
    spec = load_record(UserSpec, values)
    metadata.users[spec.name] = spec


def _read_permission(metadata: Metadata, user: str, vhost: str, configure: str, write: str, read: str) -> None:
    _check_texts(user, vhost, configure, write, read)
    metadata.permissions[user, vhost] = Permission(configure, write, read)


def _read_topic_permission(metadata: Metadata, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
    _check_texts(user, vhost, exchange, write, read)
    metadata.topic_permissions.setdefault((user, vhost), {})[exchange] = TopicPermission(write, read)


def _read_exchange(metadata: Metadata, *values: Any) -> None:
    spec = load_record(ExchangeSpec, values)
    metadata.exchanges[spec.vhost, spec.name] = spec


def _read_queue(metadata: Metadata, *values: Any) -> None:
    spec = load_record(QueueSpec, values)
    assert spec.id <= metadata.last_queue_id  # Otherwise the next queue could get the id of another.
    metadata.queues[spec.vhost, spec.name] = spec
    metadata.queue_counts[spec.vhost] += not is_hidden_queue(spec.name)


def _read_bindings(metadata: Metadata, vhost: str, source: str, bindings: list[Any]) -> None:
    exchange = metadata.exchanges[vhost, source]
    for (kind, destination), found in groupby(bindings, itemgetter(0, 1)):
        rows = list(found)
        keys = [row[2] for row in rows if len(row) == 3]
        if keys:
            if set(map(type, keys)) != {str}:
                raise BadEncoding(f"expected texts, found {keys!r:.80}")
            _read_keys(metadata, vhost, source, kind, destination, keys)
        for _, _, key, arguments in [row for row in rows if len(row) != 3]:
            _check_texts(key)
            table = load_table(arguments)
            end = _destination(metadata, vhost, kind, destination)
            metadata.bindings.add(Binding(exchange.vhost, exchange.name, *end, key, table or NO_ARGUMENTS))


def _read_keys(metadata: Metadata, vhost: str, source: str, kind: str, destination: str, keys: list[str]) -> None:
    exchange = metadata.exchanges[vhost, source]
    end = _destination(metadata, vhost, kind, destination)
    metadata.bindings.add_keys(exchange.vhost, exchange.name, *end, keys)


def _destination(metadata: Metadata, vhost: str, kind: str, name: str) -> tuple[DestinationKind, str]:
    """Return kind and name with the texts of the record, which a million bindings share."""
    if kind == "queue":
        return "queue", metadata.queues[vhost, name].name
    return "exchange", metadata.exchanges[vhost, name].name


def _read_policy(metadata: Metadata, *values: Any) -> None:
    policy = load_record(Policy, values)
    kept = metadata.operator_policies if policy.operator else metadata.policies
    kept[policy.vhost, policy.name] = policy
    metadata.add_cost(policy.vhost, policy.cost)


def _read_parameter(metadata: Metadata, component: str, vhost: str, name: str, value: Json) -> None:
    _check_texts(component, vhost, name)
    metadata.parameters[component, vhost, name] = value


def _read_parameter_user(metadata: Metadata, component: str, vhost: str, name: str, user: str) -> None:
    _check_texts(component, vhost, name, user)
    metadata.parameter_users[component, vhost, name] = user


def _read_global_parameter(metadata: Metadata, name: str, value: Json) -> None:
    _check_texts(name)
    metadata.global_parameters[name] = value


def _read_run(metadata: Metadata, node: str, run: str) -> None:
    _check_texts(node, run)
    metadata.runs[node] = run


def _read_starts(metadata: Metadata, node: str, count: int) -> None:
    _check_texts(node)
    metadata.starts[node] = int(count)


def _read_last(metadata: Metadata, claim: int, will: int) -> None:
    metadata.last_claim, metadata.last_will = int(claim), int(will)


def _read_retained(metadata: Metadata, vhost: str, *values: Any) -> None:
    metadata.retained.put(metadata.vhosts[vhost].name, load_record(RetainedMessage, values))


def _read_session(metadata: Metadata, *values: Any) -> None:
    session = load_record(ClientSession, values)
    assert session.epoch <= metadata.last_claim  # Otherwise the next claim could have the epoch of another.
    metadata.sessions.put(session)


def _read_leaving(metadata: Metadata, *values: Any) -> None:
    session = load_record(ClientSession, values)
    metadata.leaving[session.epoch] = session


def _read_will(metadata: Metadata, *values: Any) -> None:
    will = load_record(DueWill, values)
    assert will.number <= metadata.last_will
    metadata.wills[will.number] = will


def _read_last_assignment(metadata: Metadata, epoch: int) -> None:
    metadata.last_assignment = int(epoch)


def _read_assignment(metadata: Metadata, *values: Any) -> None:
    assignment = load_record(Assignment, values)
    assert assignment.epoch <= metadata.last_assignment  # Otherwise the next one could have the epoch of another.
    table_of(metadata, assignment.component)[assignment.key] = assignment


_READERS: Final[dict[Any, Callable[..., None]]] = {
    "vhost": _read_vhost,
    "user": _read_user,
    "permission": _read_permission,
    "topic permission": _read_topic_permission,
    "exchange": _read_exchange,
    "queue": _read_queue,
    "bindings": _read_bindings,
    "keys": _read_keys,
    "policy": _read_policy,
    "parameter": _read_parameter,
    "parameter user": _read_parameter_user,
    "global parameter": _read_global_parameter,
    "run": _read_run,
    "starts": _read_starts,
    "last claim and will": _read_last,
    "retained": _read_retained,
    "session": _read_session,
    "leaving session": _read_leaving,
    "will": _read_will,
    "last assignment": _read_last_assignment,
    "assignment": _read_assignment,
}
