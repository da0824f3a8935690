"""The columns of lists: all that rabbitmqctl 3.10 has, with the values that RabbitMQ 3.10.8 showed for the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.node.admin.common import listing_columns

QUEUES = (
    "arguments", "auto_delete", "consumer_capacity", "consumer_utilisation", "consumers", "disk_reads", "disk_writes",
    "durable", "exclusive", "exclusive_consumer_pid", "exclusive_consumer_tag", "head_message_timestamp", "leader",
    "members", "memory", "message_bytes", "message_bytes_persistent", "message_bytes_ram", "message_bytes_ready",
    "message_bytes_unacknowledged", "messages", "messages_persistent", "messages_ram", "messages_ready",
    "messages_ready_ram", "messages_unacknowledged", "messages_unacknowledged_ram", "name", "online", "owner_pid",
    "pid", "policy", "slave_pids", "state", "synchronised_slave_pids", "type",
)  # fmt: skip
CONNECTIONS = (
    "auth_mechanism", "channel_max", "channels", "client_properties", "connected_at", "frame_max", "host", "name",
    "peer_cert_issuer", "peer_cert_subject", "peer_cert_validity", "peer_host", "peer_port", "pid", "port", "protocol",
    "recv_cnt", "recv_oct", "send_cnt", "send_oct", "send_pend", "ssl", "ssl_cipher", "ssl_hash", "ssl_key_exchange",
    "ssl_protocol", "state", "timeout", "user", "vhost",
)  # fmt: skip
CHANNELS = (
    "acks_uncommitted", "confirm", "connection", "consumer_count", "global_prefetch_count", "messages_unacknowledged",
    "messages_uncommitted", "messages_unconfirmed", "name", "number", "pid", "prefetch_count", "transactional", "user",
    "vhost",
)  # fmt: skip
VHOSTS = ("cluster_state", "default_queue_type", "description", "name", "tags", "tracing")


@pytest.fixture(scope="module")
def broker() -> Iterator[leveret.testing.Broker]:
    with leveret.testing.broker() as broker:
        connection = pika.BlockingConnection(pika.URLParameters(broker.url))
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.queue_declare("empty", durable=True)
        channel.confirm_delivery()
        properties = pika.BasicProperties(delivery_mode=2, timestamp=1_600_000_000)
        for _ in range(10):
            channel.basic_publish("", "q", b"x" * 100, properties)
        for _ in range(3):
            channel.basic_get("q")
        yield broker
        connection.close()


def shown(broker: leveret.testing.Broker, command: str, columns: tuple[str, ...], **more: Any) -> list[dict[str, Any]]:
    rows = broker.admin.call(command, columns=list(columns), **more)["rows"]
    return [dict(zip(columns, row, strict=True)) for row in rows]


def test_all_of_rabbitmqctl_are_known() -> None:
    for theirs, ours in (
        (QUEUES, listing_columns.QUEUES),
        (CONNECTIONS, listing_columns.CONNECTIONS),
        (CHANNELS, listing_columns.CHANNELS),
        (VHOSTS, listing_columns.VHOSTS),
    ):
        assert set(theirs) <= set(ours)


def test_queues(broker: leveret.testing.Broker) -> None:
    row, empty = shown(broker, "list_queues", QUEUES, vhost="/")
    expected = {
        "messages": 10, "messages_ready": 7, "messages_unacknowledged": 3, "messages_ram": 10, "messages_ready_ram": 7,
        "messages_unacknowledged_ram": 3, "messages_persistent": 10, "message_bytes": 1000, "message_bytes_ready": 700,
        "message_bytes_unacknowledged": 300, "message_bytes_ram": 1000, "message_bytes_persistent": 1000,
        "head_message_timestamp": 1_600_000_000, "disk_reads": 0, "disk_writes": 10, "consumer_capacity": 0,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    assert {empty[name] for name in QUEUES if name.startswith("message")} == {0}
    assert empty["head_message_timestamp"] == ""


def test_connections(broker: leveret.testing.Broker) -> None:
    [row] = shown(broker, "list_connections", CONNECTIONS)
    assert (row["auth_mechanism"], row["ssl_hash"], row["peer_cert_validity"]) == ("PLAIN", "", "")
    assert row["recv_oct"] > 10 * 100 and row["send_oct"] > 3 * 100
    assert row["recv_cnt"] > 10 and row["send_cnt"] > 10
    assert row["connected_at"] > 1_600_000_000_000


def test_vhosts(broker: leveret.testing.Broker) -> None:
    [row] = shown(broker, "list_vhosts", VHOSTS)
    assert row["default_queue_type"] == "undefined"
