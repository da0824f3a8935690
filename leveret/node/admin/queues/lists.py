"""Control commands that list and close: exchanges, bindings, connections, channels, consumers.

A list is asked for page by page. A page is `{"rows": [...], "next": <cursor or null>, "missing": [names]}`; a row has
the values of the columns that were asked for, in their order.

What every node knows (exchanges, bindings) goes by position. What only its owner knows is walked node by node: the
cursor says which node is next and how far that one has come, and each page is one question to one node (`local_*`).

What has no process id here is still given one, in RabbitMQ's form, since its tools and `close_connection` want it:
`<node.1.CONNECTION.CHANNEL>`, where channel 0 is the connection, and `<node.2.QUEUE.0>`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

from leveret.base.exit_codes import UNAVAILABLE, USAGE
from leveret.broker.client_log import CONNECTION_PID
from leveret.broker.firehose import is_traced
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.model.implicit_bindings import implicit_binding
from leveret.metadata.rules.permissions import shown_user
from leveret.node.admin.common import listing_columns as columns_
from leveret.node.admin.common.command import NUMBER, OBJECT, RUNNING, TEXT, TEXTS, Commands, NoAnswer, Refused
from leveret.node.sockets.certificates import distinguished_name
from leveret.node.system.time_slices import in_portions, picked
from leveret.protocol.tables import Field, Table, table_from_python, type_name
from leveret.sessions.mqtt.connection import Connection as MqttConnection
from leveret.sessions.stomp.connection import Connection as StompConnection

if TYPE_CHECKING:
    from leveret.broker.client_connection import ClientConnection
    from leveret.metadata.model.records import Binding, ExchangeSpec, VhostSpec
    from leveret.node.admin.dispatch import Control
    from leveret.sessions.amqp.channel import Channel

COMMANDS = Commands()

PAGE: Final = 1_000
CLOSED_AT_ONCE: Final = 128  # Connections, in one turn of the event loop.

_T = TypeVar("_T")
Rows = list[list[Any]]
Getter = Callable[["Control", Any], Any]


def check_columns(asked: list[str], known: tuple[str, ...]) -> None:
    unknown = sorted({name for name in asked if name not in known})
    if unknown:
        raise Refused(USAGE, f"Info key(s) {','.join(unknown)} are not supported")


def page(rows: Rows, following: Any, missing: list[str] | None = None) -> dict[str, Any]:
    return {"rows": rows, "next": following, "missing": missing or []}


def pid(node: str, kind: int, number: int, part: int = 0) -> str:
    return f"<{node}.{kind}.{number}.{part}>"


# -- Table values --------------------------------------------------------------------------------------------------


def shown_table(table: Table) -> list[list[Any]]:
    """A table as RabbitMQ's JSON has it: name, type, value."""
    return [[name, type_name(field), _shown(field)] for name, field in table.items()]


def _shown(field: Field) -> Any:
    kind, value = field
    if kind == "F":
        return shown_table(value)
    if kind == "A":
        return [[type_name(one), _shown(one)] for one in value]
    if kind == "x":
        return bytes(value).decode("utf-8", "surrogateescape")
    if kind == "D":
        return list(value)
    return value


# -- What every node knows -----------------------------------------------------------------------------------------


def _by_position(
    control: Control, all_: Iterable[_T], after: int | None, asked: list[str], getters: dict[str, Getter]
) -> dict[str, Any]:
    start = after or 0
    rows = [[getters[name](control, one) for name in asked] for one in islice(all_, start, start + PAGE)]
    return page(rows, start + PAGE if len(rows) == PAGE else None)


EXCHANGE: Final[dict[str, Getter]] = {
    "name": lambda control, spec: spec.name,
    "type": lambda control, spec: spec.type,
    "durable": lambda control, spec: spec.durable,
    "auto_delete": lambda control, spec: spec.auto_delete,
    "internal": lambda control, spec: spec.internal,
    "arguments": lambda control, spec: shown_table(spec.arguments),
    "policy": lambda control, spec: control.policies.effective("exchange", spec.vhost, spec.name).policy or "",
}
BINDING: Final[dict[str, Getter]] = {
    "source_name": lambda control, binding: binding.source,
    "source_kind": lambda control, binding: "exchange",
    "destination_name": lambda control, binding: binding.destination,
    "destination_kind": lambda control, binding: binding.destination_kind,
    "routing_key": lambda control, binding: binding.key,
    "arguments": lambda control, binding: shown_table(binding.arguments),
}
VHOST: Final[dict[str, Getter]] = {
    "name": lambda control, spec: spec.name,
    "tracing": lambda control, spec: is_traced(control.node.broker, spec.name),
    "description": lambda control, spec: spec.description,
    "tags": lambda control, spec: list(spec.tags),
    "default_queue_type": lambda control, spec: "undefined",
    "cluster_state": lambda control, spec: {
        member.name: "running" for member in control.node.cluster.members() if member.running
    },
}


@COMMANDS.add(RUNNING, vhost=TEXT, columns=TEXTS, after=NUMBER.or_none())
async def list_exchanges(control: Control, vhost: str, columns: list[str], after: int | None) -> Any:
    check_columns(columns, columns_.EXCHANGES)
    there: Iterator[ExchangeSpec] = (one for one in control.node.metadata.exchanges.values() if one.vhost == vhost)
    return _by_position(control, there, after, columns, EXCHANGE)


@COMMANDS.add(RUNNING, vhost=TEXT, columns=TEXTS, after=NUMBER.or_none())
async def list_bindings(control: Control, vhost: str, columns: list[str], after: int | None) -> Any:
    check_columns(columns, columns_.BINDINGS)
    metadata, start = control.node.metadata, after or 0
    specs = list(metadata.queues.values())
    queues = await picked(specs, lambda spec: spec.vhost == vhost and not is_hidden_queue(spec.name))
    there: list[Binding] = [implicit_binding(spec) for spec in queues[start : start + PAGE]]
    if len(there) < PAGE:
        behind = max(start - len(queues), 0)
        there += metadata.bindings.page(vhost, behind, PAGE - len(there))
    rows = _rows(control, there, columns, BINDING)
    return page(rows, start + PAGE if len(rows) == PAGE else None)


@COMMANDS.add(RUNNING, columns=TEXTS, after=NUMBER.or_none())
async def list_vhosts(control: Control, columns: list[str], after: int | None) -> Any:
    check_columns(columns, columns_.VHOSTS)
    there: Iterable[VhostSpec] = control.node.metadata.vhosts.values()
    return _by_position(control, there, after, columns, VHOST)


# -- The walk ------------------------------------------------------------------------------------------------------


async def walk(
    control: Control, local: str, arguments: dict[str, Any], nodes: list[str], cursor: dict[str, Any] | None
) -> tuple[dict[str, Any], str, int]:
    """One page of what the nodes have, one after the other, and which node it is of, from which number on.

    `cursor`: where the page before ended. A node that did not answer is `missing`.
    """
    at, after = nodes[0] if nodes else "", 0
    if cursor is not None:
        if not isinstance(cursor.get("node"), str) or not isinstance(cursor.get("after"), int):
            raise Refused(USAGE, "argument after is not a cursor")
        at, after = cursor["node"], cursor["after"]
    later = [name for name in nodes if name > at]
    following = {"node": later[0], "after": 0} if later else None
    if at not in nodes:  # The node has left meanwhile, or there was none.
        return page([], following), at, after
    try:
        answer = await control.at(at, local, {**arguments, "after": after})
    except (NoAnswer, Refused):
        return page([], following, [at]), at, after
    if answer["next"] is not None:
        following = {"node": at, "after": answer["next"]}
    return page(answer["rows"], following), at, after


def running_nodes(control: Control) -> list[str]:
    return sorted(member.name for member in control.node.cluster.members() if member.running)


def numbered_page(items: Iterable[tuple[int, _T]], after: int) -> tuple[list[_T], int | None]:
    """Returns the next page of numbered items: those with the lowest numbers above `after`; and the number to go on
    with."""
    later = sorted((item for item in items if item[0] > after), key=lambda item: item[0])
    found = later[:PAGE]
    return [one for _, one in found], found[-1][0] if len(later) > PAGE else None


# -- Connections, channels, consumers ------------------------------------------------------------------------------


def _connections(control: Control) -> Iterator[tuple[int, ClientConnection]]:
    """Yields the open connections of this node with their numbers."""
    for connection, name in control.node.broker.connections.items():
        yield int(name.rpartition(".")[2]), connection


def _connection_pid(control: Control, connection: ClientConnection, channel: int = 0) -> str:
    name = control.node.broker.connections.get(connection, "")
    number = name.rpartition(".")[2]
    return pid(control.name, CONNECTION_PID, int(number), channel) if number else ""


def channel_pid_of(control: Control, consumer: Any) -> str:
    """Returns the pid of a consumer's channel; empty for a consumer whose connection is at another node."""
    channel = getattr(consumer, "channel", None)
    if channel is not None:
        return _connection_pid(control, channel.connection, channel.number)
    connection = getattr(consumer, "connection", None)  # Of MQTT or STOMP, which have no channels.
    return "" if connection is None else _connection_pid(control, connection, 1)


def _state(connection: ClientConnection) -> str:
    if connection.closing:
        return "closing"
    if connection.blocked:
        return "blocked"
    return "running" if connection.broker.alarm is None else "blocking"  # It is blocked as soon as it publishes.


def _tls_of(control: Control, connection: ClientConnection, read: Callable[[Any], Any]) -> Any:
    client = getattr(control.node, "by_output", {}).get(connection.output)
    tls = None if client is None else client.transport.get_extra_info("ssl_object")
    return "" if tls is None else read(tls) or ""


def _unsent_bytes(control: Control, connection: ClientConnection) -> int:
    client = getattr(control.node, "by_output", {}).get(connection.output)
    return 0 if client is None else int(client.transport.get_write_buffer_size())


def _party(tls: Any, which: str) -> str:
    return distinguished_name((tls.getpeercert() or {}).get(which, ()))


def validity(tls: Any) -> str:
    """Returns the period in which the client's certificate is valid."""
    found = tls.getpeercert() or {}
    return f"{found['notBefore']} - {found['notAfter']}" if "notBefore" in found and "notAfter" in found else ""


CONNECTION: Final[dict[str, Getter]] = {
    "pid": _connection_pid,
    "name": lambda control, one: str(one.peer),
    "port": lambda control, one: one.peer.local_port,
    "host": lambda control, one: one.peer.local_host,
    "peer_port": lambda control, one: one.peer.port,
    "peer_host": lambda control, one: one.peer.host,
    "ssl": lambda control, one: one.peer.tls,
    "ssl_protocol": lambda control, one: _tls_of(control, one, lambda tls: tls.version()),
    "ssl_cipher": lambda control, one: _tls_of(control, one, lambda tls: tls.cipher()[0]),
    "ssl_key_exchange": lambda control, one: "",  # Part of the cipher's name in TLS 1.2, of nothing in TLS 1.3.
    "ssl_hash": lambda control, one: "",
    "peer_cert_subject": lambda control, one: _tls_of(control, one, lambda tls: _party(tls, "subject")),
    "peer_cert_issuer": lambda control, one: _tls_of(control, one, lambda tls: _party(tls, "issuer")),
    "peer_cert_validity": lambda control, one: _tls_of(control, one, validity),
    "state": lambda control, one: _state(one),
    "channels": lambda control, one: len(one.channels),
    "protocol": lambda control, one: "{0,9,1}" if one.protocol == "AMQP 0-9-1" else one.protocol,
    "auth_mechanism": lambda control, one: one.mechanism,
    "user": lambda control, one: shown_user(one.user),
    "vhost": lambda control, one: "" if one.vhost is None else one.vhost.name,
    "timeout": lambda control, one: one.heartbeat_s,
    "frame_max": lambda control, one: one.frame_max,
    "channel_max": lambda control, one: one.channel_max,
    "client_properties": lambda control, one: shown_table(table_from_python(one.client_properties)),
    "connected_at": lambda control, one: one.connected_ms,
    "recv_oct": lambda control, one: one.received_bytes,
    "recv_cnt": lambda control, one: one.received_count,
    "send_oct": lambda control, one: one.output.sent_bytes,
    "send_cnt": lambda control, one: one.output.sent_count,
    "send_pend": _unsent_bytes,
    "node": lambda control, one: control.name,
}


MQTT_CONNECTION: Final[dict[str, Getter]] = {
    **CONNECTION,
    "conn_name": lambda control, one: str(one.peer),
    "client_id": lambda control, one: one.client_id,
    "clean_sess": lambda control, one: not one.login_part.expiry_s,
    "will_msg": lambda control, one: _will_of(one),
    "exchange": lambda control, one: one.limits.exchange,
    "keepalive": lambda control, one: one.keep_alive_s,
    "subscriptions": lambda control, one: len(one.subscriptions.options),
    "unacked_pubs": lambda control, one: 0 if one.publishing is None else one.publishing.open_count,
    "awaiting_ack": lambda control, one: len(one.deliveries.inflight) + len(one.deliveries.releasing),
    "dropped": lambda control, one: one.deliveries.dropped,
    "session_expiry": lambda control, one: one.login_part.expiry_s,
}


STOMP_CONNECTION: Final[dict[str, Getter]] = {
    **CONNECTION,
    "conn_name": lambda control, one: str(one.peer),
    "session_id": lambda control, one: one.session_id,
    "version": lambda control, one: one.version,
    "implicit_connect": lambda control, one: one.login_part.is_implicit,
    "auth_login": lambda control, one: one.login_part.auth_login,
    "subscriptions": lambda control, one: len(one.subscriptions.of_tag),
    "transactions": lambda control, one: len(one.transactions.begun),
    "unacked": lambda control, one: 0 if one.session is None else one.session.unacked.count,
    "unconfirmed": lambda control, one: 0 if one.publishing is None else len(one.publishing.answers),
}


def _will_of(connection: MqttConnection) -> str:
    """Returns the topic of a connection's will, as a routing key; empty if it has none."""
    session = connection.login_part.claimed
    return "" if session is None or session.will is None else session.will.routing_key


def _unconfirmed(channel: Channel) -> int:
    confirms = channel.session.confirms
    return 0 if confirms is None else sum(one.last - one.first + 1 for one in confirms.open if one.waiting)


CHANNEL: Final[dict[str, Getter]] = {
    "pid": lambda control, one: _connection_pid(control, one.connection, one.number),
    "connection": lambda control, one: _connection_pid(control, one.connection),
    "name": lambda control, one: f"{one.connection.peer} ({one.number})",
    "number": lambda control, one: one.number,
    "user": lambda control, one: shown_user(one.connection.user),
    "vhost": lambda control, one: "" if one.connection.vhost is None else one.connection.vhost.name,
    "transactional": lambda control, one: one.transaction is not None,
    "confirm": lambda control, one: one.session.confirms is not None,
    "consumer_count": lambda control, one: len(one.consumers),
    "messages_unacknowledged": lambda control, one: one.session.unacked.count,
    "messages_uncommitted": lambda control, one: 0 if one.transaction is None else len(one.transaction.publishes),
    "acks_uncommitted": lambda control, one: 0 if one.transaction is None else one.transaction.acks,
    "messages_unconfirmed": lambda control, one: _unconfirmed(one),
    "prefetch_count": lambda control, one: one.new_consumer_prefetch,
    "global_prefetch_count": lambda control, one: one.session.prefetch,
    "node": lambda control, one: control.name,
}
CONSUMER: Final[dict[str, Getter]] = {
    "queue_name": lambda control, one: one.queue.spec.name,
    "channel_pid": channel_pid_of,
    "consumer_tag": lambda control, one: one.tag,
    "ack_required": lambda control, one: not one.no_ack,
    "prefetch_count": lambda control, one: one.prefetch,
    "active": lambda control, one: True,
    "activity_status": lambda control, one: "up",
    "arguments": lambda control, one: shown_table(getattr(one, "arguments", {})),
}


def _rows(control: Control, found: Iterable[Any], asked: list[str], getters: dict[str, Getter]) -> Rows:
    return [[getters[name](control, one) for name in asked] for one in found]


@COMMANDS.add(RUNNING, columns=TEXTS, after=OBJECT.or_none())
async def list_connections(control: Control, columns: list[str], after: dict[str, Any] | None) -> Any:
    check_columns(columns, columns_.CONNECTIONS)
    return (await walk(control, "local_connections", {"columns": columns}, running_nodes(control), after))[0]


@COMMANDS.add(RUNNING, columns=TEXTS, after=NUMBER)
async def local_connections(control: Control, columns: list[str], after: int) -> Any:
    check_columns(columns, columns_.CONNECTIONS)
    found, following = numbered_page(_connections(control), after)
    return page(_rows(control, found, columns, CONNECTION), following)


@COMMANDS.add(RUNNING, columns=TEXTS, after=OBJECT.or_none())
async def list_mqtt_connections(control: Control, columns: list[str], after: dict[str, Any] | None) -> Any:
    check_columns(columns, columns_.MQTT_CONNECTIONS)
    return (await walk(control, "local_mqtt_connections", {"columns": columns}, running_nodes(control), after))[0]


@COMMANDS.add(RUNNING, columns=TEXTS, after=NUMBER)
async def local_mqtt_connections(control: Control, columns: list[str], after: int) -> Any:
    check_columns(columns, columns_.MQTT_CONNECTIONS)
    mqtt = (item for item in _connections(control) if isinstance(item[1], MqttConnection))
    found, following = numbered_page(mqtt, after)
    return page(_rows(control, found, columns, MQTT_CONNECTION), following)


@COMMANDS.add(RUNNING, columns=TEXTS, after=OBJECT.or_none())
async def list_stomp_connections(control: Control, columns: list[str], after: dict[str, Any] | None) -> Any:
    check_columns(columns, columns_.STOMP_CONNECTIONS)
    return (await walk(control, "local_stomp_connections", {"columns": columns}, running_nodes(control), after))[0]


@COMMANDS.add(RUNNING, columns=TEXTS, after=NUMBER)
async def local_stomp_connections(control: Control, columns: list[str], after: int) -> Any:
    check_columns(columns, columns_.STOMP_CONNECTIONS)
    stomp = (item for item in _connections(control) if isinstance(item[1], StompConnection))
    found, following = numbered_page(stomp, after)
    return page(_rows(control, found, columns, STOMP_CONNECTION), following)


@COMMANDS.add(RUNNING, columns=TEXTS, after=OBJECT.or_none())
async def list_channels(control: Control, columns: list[str], after: dict[str, Any] | None) -> Any:
    check_columns(columns, columns_.CHANNELS)
    return (await walk(control, "local_channels", {"columns": columns}, running_nodes(control), after))[0]


@COMMANDS.add(RUNNING, columns=TEXTS, after=NUMBER)
async def local_channels(control: Control, columns: list[str], after: int) -> Any:
    """Returns a page with all channels of its connections: channels have no lasting numbers of their own."""
    check_columns(columns, columns_.CHANNELS)
    found, following = numbered_page(_connections(control), after)
    channels = (channel for one in found for channel in one.channels.values())
    return page(_rows(control, channels, columns, CHANNEL), following)


@COMMANDS.add(RUNNING, vhost=TEXT, columns=TEXTS, after=OBJECT.or_none())
async def list_consumers(control: Control, vhost: str, columns: list[str], after: dict[str, Any] | None) -> Any:
    check_columns(columns, columns_.CONSUMERS)
    arguments = {"vhost": vhost, "columns": columns}
    return (await walk(control, "local_consumers", arguments, running_nodes(control), after))[0]


@COMMANDS.add(RUNNING, vhost=TEXT, columns=TEXTS, after=NUMBER)
async def local_consumers(control: Control, vhost: str, columns: list[str], after: int) -> Any:
    """Returns the consumers of this node's connections, at whichever nodes their queues are."""
    check_columns(columns, columns_.CONSUMERS)
    found, following = numbered_page(_connections(control), after)
    consumers = (
        consumer
        for one in found
        if one.vhost is not None and one.vhost.name == vhost
        for _, session in one.sessions()
        for consumer in session.consumers.values()
    )
    return page(_rows(control, consumers, columns, CONSUMER), following)


# -- Closing connections -------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, pid=TEXT, reason=TEXT)
async def close_connection(control: Control, pid: str, reason: str) -> None:
    """Closes a connection. One that does not exist is no error."""
    match = re.fullmatch(rf"<(.+)\.{CONNECTION_PID}\.(\d+)\.\d+>", pid)
    if match is None:
        text = f"'{pid}' is not the pid of a connection; see: leveretctl list_connections pid"
        raise Refused(UNAVAILABLE, f"Error:\n{text}")
    try:
        await control.at(match[1], "local_close_connections", {"number": int(match[2]), "reason": reason})
    except NoAnswer as error:
        raise Refused(UNAVAILABLE, str(error)) from None


@COMMANDS.add(RUNNING, vhost=TEXT.or_none(), user=TEXT.or_none(), reason=TEXT)
async def close_connections(control: Control, vhost: str | None, user: str | None, reason: str) -> Any:
    """Closes all connections of a vhost, or of a user, or simply all; on all nodes."""
    async def at(name: str) -> int | None:
        try:
            arguments = {"vhost": vhost, "user": user, "reason": reason}
            return int((await control.at(name, "local_close_connections", arguments))["closed"])
        except NoAnswer:
            return None

    nodes = running_nodes(control)
    counts = dict(zip(nodes, await asyncio.gather(*map(at, nodes)), strict=True))
    missing = [name for name, count in counts.items() if count is None]
    return {"closed": sum(count or 0 for count in counts.values()), "missing": missing}


@COMMANDS.add(RUNNING, number=NUMBER.or_none(), vhost=TEXT.or_none(), user=TEXT.or_none(), reason=TEXT)
async def local_close_connections(
    control: Control, number: int | None, vhost: str | None, user: str | None, reason: str
) -> Any:
    count = 0
    async for its_number, connection in in_portions(list(_connections(control)), CLOSED_AT_ONCE):
        here = "" if connection.vhost is None else connection.vhost.name
        if number in (None, its_number) and vhost in (None, here) and user in (None, connection.user):
            connection.close(320, reason)
            count += 1
            control.node.schedule()
    return {"closed": count}
