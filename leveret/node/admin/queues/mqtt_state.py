"""Control commands about what the cluster keeps for MQTT clients: retained messages, and sessions.

Every node knows all of it, so the lists go by position. What a connection says of itself is known at its node alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from leveret.base.exit_codes import USAGE
from leveret.metadata.mqtt.commands import KeepRetained, ReleaseClientIds, ReleaseRow, RetainedRow
from leveret.metadata.mqtt.records import NEVER_S
from leveret.node.admin.common import listing_columns as columns_
from leveret.node.admin.common.command import NUMBER, RUNNING, TEXT, TEXTS, Commands, Refused
from leveret.node.admin.queues.lists import MQTT_CONNECTION, PAGE, check_columns, page
from leveret.sessions.mqtt.connection import Connection as MqttConnection

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.metadata.mqtt.records import ClientSession, RetainedMessage, Subscription
    from leveret.node.admin.dispatch import Control

COMMANDS = Commands()
SHOWN_BYTES: Final = 200  # Of a payload.


RETAINED: Final[dict[str, Callable[[Broker, RetainedMessage], Any]]] = {
    "topic": lambda broker, one: one.topic,
    "qos": lambda broker, one: one.qos,
    "payload_bytes": lambda broker, one: len(one.payload),
    "payload": lambda broker, one: one.payload[:SHOWN_BYTES].decode("utf-8", "backslashreplace"),
    "expires_in": lambda broker, one: _seconds_until(broker, one.expires_ms) if one.expires_ms else "",
}
SESSION: Final[dict[str, Callable[[Broker, ClientSession], Any]]] = {
    "client_id": lambda broker, one: one.client_id,
    "user": lambda broker, one: one.user,
    "node": lambda broker, one: one.node,
    "state": lambda broker, one: "connected" if one.node else "disconnected",
    "subscriptions": lambda broker, one: len(one.subscriptions),
    "queues": lambda broker, one: list(one.queues),
    "session_expiry_interval": lambda broker, one: "infinity" if one.expiry_s == NEVER_S else one.expiry_s,
    "expires_in": lambda broker, one: "" if one.node or one.ends_ms is None else _seconds_until(broker, one.ends_ms),
    "disconnected_at": lambda broker, one: "" if one.node or one.left_ms <= 0 else one.left_ms,
    "has_will": lambda broker, one: one.will is not None,
}

# What the page shows of a connection; as in `list_mqtt_connections`.
OF_CONNECTION: Final = (
    "name", "protocol", "keepalive", "clean_sess", "session_expiry", "will_msg", "unacked_pubs", "awaiting_ack",
    "dropped", "subscriptions", "connected_at", "ssl", "peer_host",
)  # fmt: skip


def _seconds_until(broker: Broker, at_ms: int) -> int:
    return max(0, at_ms - broker.wall_ms) // 1000


def _check_vhost(control: Control, vhost: str) -> None:
    if vhost not in control.node.metadata.vhosts:
        raise Refused(USAGE, f"Virtual host '{vhost}' does not exist")


@COMMANDS.add(RUNNING, vhost=TEXT, columns=TEXTS, after=NUMBER.or_none())
async def list_retained_messages(control: Control, vhost: str, columns: list[str], after: int | None) -> Any:
    check_columns(columns, columns_.RETAINED_MESSAGES)
    _check_vhost(control, vhost)
    node, start = control.node, after or 0
    found = islice(node.metadata.retained.by_vhost.get(vhost, {}).values(), start, start + PAGE)
    rows = [[RETAINED[name](node.broker, one) for name in columns] for one in found]
    return page(rows, start + PAGE if len(rows) == PAGE else None)


@COMMANDS.add(RUNNING, vhost=TEXT, topic=TEXT)
async def delete_retained_message(control: Control, vhost: str, topic: str) -> None:
    _check_vhost(control, vhost)
    if control.node.metadata.retained.get(vhost, topic) is None:
        raise Refused(USAGE, f"Topic '{topic}' has no retained message")
    await control.change(KeepRetained((RetainedRow(vhost, topic, None),), 0, 0))


@COMMANDS.add(RUNNING, vhost=TEXT, columns=TEXTS, after=NUMBER.or_none())
async def list_mqtt_sessions(control: Control, vhost: str, columns: list[str], after: int | None) -> Any:
    check_columns(columns, columns_.MQTT_SESSIONS)
    _check_vhost(control, vhost)
    node, start = control.node, after or 0
    found = islice(node.metadata.sessions.by_vhost.get(vhost, {}).values(), start, start + PAGE)
    rows = [[SESSION[name](node.broker, one) for name in columns] for one in found]
    return page(rows, start + PAGE if len(rows) == PAGE else None)


@COMMANDS.add(RUNNING, vhosts=TEXTS, client_ids=TEXTS)
async def local_mqtt_clients(control: Control, vhosts: list[str], client_ids: list[str]) -> Any:
    """Returns a row for each of these client ids: its connection at this node, or nothing."""
    if len(vhosts) != len(client_ids) or len(vhosts) > PAGE:
        raise Refused(USAGE, f"a vhost for each client id, and at most {PAGE}")
    found: list[dict[str, Any] | None] = []
    for key in zip(vhosts, client_ids, strict=True):
        owner = control.node.broker.client_ids.owner(*key)
        if isinstance(owner, MqttConnection):
            found.append({name: MQTT_CONNECTION[name](control, owner) for name in OF_CONNECTION})
        else:
            found.append(None)
    return found


@COMMANDS.add(RUNNING, vhost=TEXT, client_id=TEXT)
async def local_mqtt_subscriptions(control: Control, vhost: str, client_id: str) -> Any:
    """Returns the first subscriptions of a session: as its connection at this node has them, else as the cluster does,
    which has none of a session that ends with its connection."""
    owner = control.node.broker.client_ids.owner(vhost, client_id)
    session = control.node.broker.client_ids.find(vhost, client_id)
    found: Mapping[str, Subscription] = {}
    if isinstance(owner, MqttConnection):
        found = owner.subscriptions.options
    elif session is not None:
        found = session.subscriptions
    return [[name, *options] for name, options in islice(found.items(), PAGE)]


@COMMANDS.add(RUNNING, vhost=TEXT, client_id=TEXT)
async def delete_mqtt_session(control: Control, vhost: str, client_id: str) -> None:
    """Ends a session with its queues. A client that is connected loses its connection; its will is published."""
    _check_vhost(control, vhost)
    session = control.node.metadata.sessions.get(vhost, client_id)
    if session is None:
        raise Refused(USAGE, f"Client id '{client_id}' has no session")
    row = ReleaseRow(vhost, client_id, session.epoch, control.node.broker.wall_ms, publish_will=True, expiry_s=0)
    await control.change(ReleaseClientIds((row,)))
