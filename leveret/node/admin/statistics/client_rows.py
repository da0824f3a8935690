"""The fields of connections, channels and consumers in RabbitMQ's HTTP API, as the node with the client knows them.

Lists and single objects differ in a detail that tools depend on: a field for which a connection has no value is null in
a list, and an empty string in an answer about that connection alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.broker.queue.ordered_queue import OrderedQueue
from leveret.metadata.definitions import from_table
from leveret.metadata.rules.permissions import shown_user
from leveret.node.admin.queues.lists import _party, _state, _tls_of, _unconfirmed, _unsent_bytes, validity
from leveret.node.stats import stats_history as s
from leveret.node.stats.queue_rows import OF_CHANNELS, OF_DELIVERIES, Windows, message_stats, time_of_day
from leveret.node.stats.stats_history import ObjectHistory, counted, tick_of
from leveret.protocol.tables import table_from_python

if TYPE_CHECKING:
    from leveret.broker.client_connection import ClientConnection
    from leveret.node.admin.dispatch import Control
    from leveret.sessions.amqp.channel import Channel

OF_PUBLISHES: Final = ("confirm", "drop_unroutable", "publish", "return_unroutable")


def connection_row(control: Control, connection: ClientConnection, windows: Windows) -> dict[str, Any]:
    peer, samples = connection.peer, control.node.samples
    past = ObjectHistory(samples, s.OF_CONNECTION, samples.connections.get(connection))
    row = {
        "name": str(peer),
        "node": control.name,
        "vhost": "" if connection.vhost is None else connection.vhost.name,
        "user": shown_user(connection.user),
        "user_who_performed_action": shown_user(connection.user),
        "state": _state(connection),
        "type": "network",
        "protocol": connection.protocol,
        "auth_mechanism": connection.mechanism,
        "connected_at": connection.connected_ms,
        "channels": len(connection.channels),
        "channel_max": connection.channel_max,
        "frame_max": connection.frame_max,
        "timeout": connection.heartbeat_s,
        "host": peer.local_host,
        "port": peer.local_port,
        "peer_host": peer.host,
        "peer_port": peer.port,
        "client_properties": from_table(table_from_python(connection.client_properties)),
        "recv_oct": connection.received_bytes,
        "recv_oct_details": past.details(("recv_oct",), windows.data),
        "recv_cnt": connection.received_count,
        "send_oct": connection.output.sent_bytes,
        "send_oct_details": past.details(("send_oct",), windows.data),
        "send_cnt": connection.output.sent_count,
        "send_pend": _unsent_bytes(control, connection),
        **_security(control, connection),
    }
    if connection.variables:
        row["variable_map"] = dict(connection.variables)
    name = connection.client_properties.get("connection_name")
    if isinstance(name, str):
        row["user_provided_name"] = name
    return row


def _security(control: Control, connection: ClientConnection) -> dict[str, Any]:
    def told(read: Any) -> Any:
        return _tls_of(control, connection, read) or None

    return {
        "ssl": connection.peer.tls,
        "ssl_protocol": told(lambda tls: tls.version()),
        "ssl_cipher": told(lambda tls: tls.cipher()[0]),
        "ssl_key_exchange": None,  # Part of the cipher's name in TLS 1.2, of nothing in TLS 1.3.
        "ssl_hash": None,
        "peer_cert_subject": told(lambda tls: _party(tls, "subject")),
        "peer_cert_issuer": told(lambda tls: _party(tls, "issuer")),
        "peer_cert_validity": told(validity),
    }


def channel_row(control: Control, channel: Channel, windows: Windows) -> dict[str, Any]:
    connection, samples, transaction = channel.connection, control.node.samples, channel.transaction
    past = ObjectHistory(samples, s.OF_CHANNEL, samples.sessions.get(channel.session))
    values = dict(zip(s.CHANNEL, counted(channel.session), strict=True))
    row = {
        "name": channel.who,
        "number": channel.number,
        "node": control.name,
        "vhost": "" if connection.vhost is None else connection.vhost.name,
        "user": shown_user(connection.user),
        "user_who_performed_action": shown_user(connection.user),
        "state": "closing" if channel.closing else "running",
        "confirm": channel.session.confirms is not None,
        "transactional": transaction is not None,
        "consumer_count": len(channel.session.consumers),
        "prefetch_count": channel.new_consumer_prefetch,
        "global_prefetch_count": channel.session.prefetch,
        "messages_unacknowledged": channel.session.unacked.count,
        "messages_unconfirmed": _unconfirmed(channel),
        "messages_uncommitted": 0 if transaction is None else len(transaction.publishes),
        "acks_uncommitted": 0 if transaction is None else transaction.acks,
        "pending_raft_commands": 0,
        "connection_details": {
            "name": str(connection.peer),
            "peer_host": connection.peer.host,
            "peer_port": connection.peer.port,
        },
    }
    names = [name for name in OF_PUBLISHES if any(values[one] for one in OF_PUBLISHES)]
    names += [name for name in OF_DELIVERIES if any(values[one] for one in s.MESSAGES[4:11])]
    if names:
        assert set(names) <= set(OF_CHANNELS)
        row["message_stats"] = message_stats(values, past, sorted(names), windows.messages)
    if past.rows and tick_of(past.rows[-1]) < samples.tick:  # A row is stored when something has changed.
        row["idle_since"] = time_of_day((tick_of(past.rows[-1]) + 1) * samples.interval_ms / 1000)
    return row


def consumer_row(control: Control, connection: ClientConnection, channel: int, consumer: Any) -> dict[str, Any]:
    """Returns a consumer of any protocol."""
    queue = consumer.queue
    active = True
    if isinstance(queue, OrderedQueue) and queue.consumer_order is not None and queue.rules.single_active:
        active = queue.consumer_order.active is consumer
    return {
        "consumer_tag": consumer.tag,
        "ack_required": not consumer.no_ack,
        "active": active,
        "activity_status": "up" if active else "waiting",
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "arguments": from_table(getattr(consumer, "arguments", {})),  # MQTT has none.
        "queue": {"name": queue.spec.name, "vhost": queue.spec.vhost},
        "channel_details": {
            "name": consumer.session.who,
            "number": channel,
            "node": control.name,
            "user": shown_user(connection.user),
            "connection_name": str(connection.peer),
            "peer_host": connection.peer.host,
            "peer_port": connection.peer.port,
        },
    }
