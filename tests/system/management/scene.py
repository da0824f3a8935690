"""A broker with something of everything in it, so that two brokers can be asked the same questions.

`Scene` builds it over AMQP alone, which RabbitMQ and Leveret both speak; `recorder` asks RabbitMQ, and the tests ask
Leveret. Names of connections are given by the client, and nothing else in here is random.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final

import pika

QUEUES: Final = ("scene.plain", "scene.busy", "scene.autoack", "scene.got", "scene.limited", "scene.exclusive")
# By the name of their record: what is asked. Values in braces are filled in by whoever asks.
QUESTIONS: Final = {
    "overview": "/api/overview",
    "overview_samples": "/api/overview?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5",
    "nodes": "/api/nodes",
    "node": "/api/nodes/{node}",
    "node_memory": "/api/nodes/{node}/memory",
    "node_memory_relative": "/api/nodes/{node}/memory/relative",
    "connections": "/api/connections",
    "connection": "/api/connections/{connection}",
    "connection_channels": "/api/connections/{connection}/channels",
    "connections_of_user": "/api/connections/username/guest",
    "vhost_connections": "/api/vhosts/%2F/connections",
    "vhost_channels": "/api/vhosts/%2F/channels",
    "channels": "/api/channels",
    "channel": "/api/channels/{channel}",
    "consumers": "/api/consumers",
    "consumers_of_vhost": "/api/consumers/%2F",
    "exchanges": "/api/exchanges",
    "exchanges_of_vhost": "/api/exchanges/%2F",
    "exchange": "/api/exchanges/%2F/scene.topic",
    "exchange_default": "/api/exchanges/%2F/amq.default",
    "exchange_bindings_source": "/api/exchanges/%2F/scene.topic/bindings/source",
    "exchange_bindings_destination": "/api/exchanges/%2F/scene.fanout/bindings/destination",
    "queues": "/api/queues",
    "queues_of_vhost": "/api/queues/%2F",
    "queues_page": "/api/queues?page=1&page_size=2&name=^scene&use_regex=true&pagination=true",
    "queues_columns":
        "/api/queues?columns=name,messages,message_stats.publish_details.rate&sort=name&sort_reverse=true",
    "queues_no_stats": "/api/queues?disable_stats=true&enable_queue_totals=true",
    "queue": "/api/queues/%2F/scene.busy",
    "queue_plain": "/api/queues/%2F/scene.plain",
    "queue_samples": "/api/queues/%2F/scene.busy?lengths_age=60&lengths_incr=5&msg_rates_age=60&msg_rates_incr=5",
    "queue_limited": "/api/queues/%2F/scene.limited",
    "queue_exclusive": "/api/queues/%2F/scene.exclusive",
    "queue_bindings": "/api/queues/%2F/scene.busy/bindings",
    "bindings": "/api/bindings",
    "bindings_of_vhost": "/api/bindings/%2F",
    "bindings_between": "/api/bindings/%2F/e/scene.topic/q/scene.busy",
    "binding": "/api/bindings/%2F/e/scene.topic/q/scene.busy/a.%23",
    "bindings_between_exchanges": "/api/bindings/%2F/e/scene.topic/e/scene.fanout",
    "absent_queue": "/api/queues/%2F/absent",
    "absent_vhost": "/api/queues/absent",
    "absent_exchange": "/api/exchanges/%2F/absent",
    "absent_connection": "/api/connections/absent",
    "absent_channel": "/api/channels/absent",
    "absent_node": "/api/nodes/absent",
    "bad_page": "/api/queues?page=0",
    "bad_page_size": "/api/queues?page=1&page_size=501",
    "page_beyond": "/api/queues?page=99&page_size=10",
    "bad_regex": "/api/queues?page=1&use_regex=true&name=*",
    "bad_sort": "/api/queues?sort=no_such_column",
}  # fmt: skip
METRICS: Final = {
    "metrics": "/metrics",
    "metrics_per_object": "/metrics/per-object",
    "metrics_detailed": "/metrics/detailed?vhost=%2F&family=queue_coarse_metrics&family=queue_consumer_count",
}


class Scene:
    """Connections, channels, queues, and some messages at every stage of their lives."""

    def __init__(self, port: int) -> None:
        credentials = pika.PlainCredentials("guest", "guest")
        parameters = pika.ConnectionParameters(
            "127.0.0.1", port, credentials=credentials, client_properties={"connection_name": "scene"}
        )
        self.connection = pika.BlockingConnection(parameters)
        self.channel = self.connection.channel()
        self.unacked: list[int] = []
        self._declare()

    def __enter__(self) -> Scene:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in QUEUES:
            self.channel.queue_delete(name)
        for name in ("scene.topic", "scene.fanout"):
            self.channel.exchange_delete(name)
        self.connection.close()

    def _declare(self) -> None:
        channel = self.channel
        channel.exchange_declare("scene.topic", "topic", durable=True)
        channel.exchange_declare("scene.fanout", "fanout", auto_delete=True, arguments={"alternate-exchange": "ae"})
        channel.exchange_bind("scene.fanout", "scene.topic", "to.fanout")
        for name in ("scene.plain", "scene.busy", "scene.autoack", "scene.got"):
            channel.queue_declare(name, durable=True)
        channel.queue_declare("scene.limited", arguments={"x-max-length": 10, "x-message-ttl": 60_000})
        channel.queue_declare("scene.exclusive", exclusive=True)
        channel.queue_bind("scene.busy", "scene.topic", "a.#")
        channel.queue_bind("scene.plain", "amq.headers", "", {"x-match": "all", "kind": "one", "count": 7})
        channel.confirm_delivery()
        channel.basic_qos(prefetch_count=100)
        channel.basic_consume("scene.busy", self._on_message, consumer_tag="busy")
        channel.basic_consume("scene.autoack", lambda *_: None, auto_ack=True, consumer_tag="autoack")

    def _on_message(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        if method.redelivered:
            self.unacked.append(method.delivery_tag)
            if len(self.unacked) > 50:
                channel.basic_ack(self.unacked.pop(0))
        elif method.delivery_tag % 5 == 0:
            channel.basic_reject(method.delivery_tag, requeue=True)
        else:
            channel.basic_ack(method.delivery_tag)

    def play(self, rounds: int = 20) -> None:
        """Some of everything that is counted."""
        channel = self.channel
        persistent = pika.BasicProperties(delivery_mode=2, timestamp=1_600_000_000)
        for _ in range(rounds):
            channel.basic_publish("scene.topic", "a.b", b"busy", persistent)
            channel.basic_publish("", "scene.autoack", b"autoack")
            channel.basic_publish("", "scene.got", b"got", persistent)
            channel.basic_publish("", "scene.plain", b"waits", persistent)
            channel.basic_publish("scene.topic", "nobody", b"dropped")
            try:
                channel.basic_publish("scene.topic", "nobody", b"returned", mandatory=True)
            except pika.exceptions.UnroutableError:
                pass
            method, _, _ = channel.basic_get("scene.got")
            if method is not None:
                channel.basic_ack(method.delivery_tag)
            channel.basic_get("scene.limited")
            self.connection.process_data_events(0)
        channel.basic_publish("", "scene.got", b"got", persistent)
        channel.basic_get("scene.got", auto_ack=True)
