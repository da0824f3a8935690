"""An MQTT client for tests: paho-mqtt, over TCP, TLS or WebSocket."""

from __future__ import annotations

import queue
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.support.servers import PATIENCE_S


class Paho:
    """A paho client whose callbacks fill queues."""

    def __init__(self, port: int, client_id: str, version: Any = MQTTProtocolVersion.MQTTv5, **connect: Any) -> None:
        clean = {} if version == MQTTProtocolVersion.MQTTv5 else {"clean_session": connect.pop("clean", True)}
        transport = connect.pop("transport", "tcp")
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=version, transport=transport, **clean
        )
        self.events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        client = self.client
        client.ws_set_options("/ws")
        client.username_pw_set("guest", "guest")
        client.on_connect = lambda client, data, flags, reason, properties: self.events.put(("connect", reason))
        client.on_disconnect = lambda client, data, flags, reason, properties: self.events.put(("disconnect", reason))
        client.on_subscribe = lambda client, data, mid, reasons, properties: self.events.put(("subscribe", reasons))
        client.on_message = lambda client, data, message: self.messages.put(message)
        self.will = connect.pop("will", None)
        if self.will is not None:
            client.will_set(*self.will)
        if "tls" in connect:
            client.tls_set(connect.pop("tls"))
        client.connect("127.0.0.1", port, **connect)
        client.loop_start()
        name, reason = self.event()
        assert name == "connect" and not reason.is_failure, reason

    def event(self) -> tuple[str, Any]:
        return self.events.get(timeout=PATIENCE_S)

    def subscribe(self, *arguments: Any, **options: Any) -> Any:
        self.client.subscribe(*arguments, **options)
        name, reasons = self.event()
        assert name == "subscribe"
        return reasons

    def publish(self, topic: str, payload: bytes, qos: int = 0, **options: Any) -> None:
        self.client.publish(topic, payload, qos, **options).wait_for_publish(PATIENCE_S)

    def message(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=PATIENCE_S)

    def end(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
