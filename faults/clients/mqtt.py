"""MQTT clients with QoS 2: a publisher, and a subscriber whose session outlives its connections.

Both keep their client id and their state, and go to another node when a connection is lost. QoS 2 is exactly once, so
every delivery counts as unmarked: one that comes a second time is a finding, whatever its DUP flag says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from faults.clients.load import AGAIN_S, Board, Client, Where
from faults.history.entries import OK, UNKNOWN, now_ns

KEEPALIVE_S = 4
IN_FLIGHT = 20
LOOP_S = 0.05
CONNECT_S = 5.0


class FaithfulPaho(paho.Client):
    """Remembers which messages the broker has answered with PUBREC, however often it fails to connect.

    With each attempt, paho 2.2.0 goes through its messages: the first makes those that wait for PUBCOMP be followed by
    PUBREL, and the second, if the first has failed, makes the same messages be published anew, without DUP. That is
    against MQTT (4.3.3: no PUBLISH once PUBREC has come), and the broker, which has completed them, takes them again.
    """

    def _messages_reconnect_reset_out(self) -> None:
        released = [one for one in self._out_messages.values() if one.state == paho.mqtt_ms_resend_pubrel]
        super()._messages_reconnect_reset_out()
        for one in released:
            one.state = paho.mqtt_ms_resend_pubrel


class MqttClient(Client):
    """A client that goes on until it is told to halt. Its session is `name`."""

    def __init__(self, name: str, folder: Path, board: Board, pick: Callable[[], Where], topic: str) -> None:
        super().__init__(name, folder, board, pick)
        self.topic = topic
        self.paho = FaithfulPaho(CallbackAPIVersion.VERSION2, f"{topic}-{name}", clean_session=False)
        self.paho.username_pw_set("guest", "guest")
        self.paho.connect_timeout = CONNECT_S
        self.paho.max_inflight_messages_set(IN_FLIGHT)
        self.paho.on_connect = self._on_connect
        self.is_connected = False

    def run(self) -> None:
        try:
            while not self.halt.is_set():
                where = self.pick()
                self.is_connected = False
                try:
                    self.paho.connect(where.host, where.port, KEEPALIVE_S)
                    self._serve()
                except OSError:
                    pass  # The node is gone; the next one may be there.
                self.halt.wait(AGAIN_S)
            self.on_end()
        except BaseException as error:  # The runner tells of it.
            self.failure = error
        finally:
            self.history.close()

    def _serve(self) -> None:
        deadline = time.monotonic() + CONNECT_S
        while not self.halt.is_set() and self.paho.loop(LOOP_S) == paho.MQTT_ERR_SUCCESS:
            if self.is_connected:
                self.on_turn()
            elif time.monotonic() > deadline:
                return

    def _on_connect(self, client: paho.Client, data: object, flags: object, reason: object, more: object) -> None:
        self.is_connected = not getattr(reason, "is_failure", False)
        if self.is_connected:
            self.on_connected()

    def on_connected(self) -> None:
        """The broker has accepted the connection."""

    def on_turn(self) -> None:
        """There may be something to do."""

    def on_end(self) -> None:
        """The client was told to halt."""


class MqttPublisher(MqttClient):
    """Publishes, with a few messages in flight."""

    success = "confirmed"

    def __init__(self, name: str, folder: Path, board: Board, pick: Callable[[], Where], topic: str) -> None:
        super().__init__(name, folder, board, pick, topic)
        self.number = 0
        self.sent: dict[int, tuple[int, int]] = {}  # By packet id: the number of the message, and when it began.
        self.paho.on_publish = self._on_publish

    def on_turn(self) -> None:
        while len(self.sent) < IN_FLIGHT:
            self.number += 1
            body = f"{self.topic} {self.name} {self.number}"
            self.sent[self.paho.publish(self.topic, body, qos=2).mid] = (self.number, now_ns())

    def _on_publish(self, client: paho.Client, data: object, mid: int, reason: object, more: object) -> None:
        number, start = self.sent.pop(mid)
        self._note(number, start, now_ns(), OK)
        self.board.on_confirmed([(self.topic, self.name, number)])

    def _note(self, number: int, start: int, end: int | None, outcome: str) -> None:
        self.history.write("publish", start, end, outcome, queue=self.topic, producer=self.name, number=number)

    def on_end(self) -> None:
        for number, start in self.sent.values():
            self._note(number, start, None, UNKNOWN)


class MqttSubscriber(MqttClient):
    """Receives what is published."""

    success = "delivered"
    drains = True

    def __init__(self, name: str, folder: Path, board: Board, pick: Callable[[], Where], topic: str) -> None:
        super().__init__(name, folder, board, pick, topic)
        self.paho.on_message = self._on_message
        self.paho.on_subscribe = self._on_subscribe
        self.is_subscribed = False

    def on_connected(self) -> None:
        self.paho.subscribe(self.topic, qos=2)

    def _on_subscribe(self, client: paho.Client, data: object, mid: int, reasons: object, more: object) -> None:
        self.is_subscribed = True

    def _on_message(self, client: paho.Client, data: object, message: paho.MQTTMessage) -> None:
        at = now_ns()
        topic, producer, number = message.payload.decode().split()
        self.history.write(
            "deliver", at, at, OK, queue=topic, consumer=self.name, producer=producer, number=int(number),
            redelivered=False,
        )  # fmt: skip
        self.board.on_delivered((topic, producer, int(number)))
