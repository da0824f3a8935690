"""A client of MQTT that keeps its word, and its memory: a session of its own side, which outlives its connections.

It stores what it publishes until that is acknowledged, and sends it again after a reconnect, in order; of QoS 2 it
stores the identifiers that it has received and not released. Identifiers are few, so that they come again soon. It
connects to any node, drops connections, says goodbye, and connects elsewhere while its old connection is open (which it
does not listen to any more).
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from simulation.core.machine import MQTT_PORT
from simulation.mqtt import packets as k
from simulation.mqtt.checker import Message, MqttChecker

if TYPE_CHECKING:
    from simulation.core.loop import NodeLoop
    from simulation.core.network import Endpoint

CONNECT_S: Final = 12.0
KEEP_ALIVE_S: Final = 5
PING_S: Final = 3.0
SILENCE_S: Final = 8.0
TAKE_OVER_S: Final = 5.0  # Within which, in quiet times, a connection that was taken over is closed.
IDS: Final = 40
OUT_MAX: Final = 25
LIKELY: Final = (("publish", 12), ("retain", 3), ("lose", 2), ("goodbye", 1), ("elsewhere", 2), ("rest", 3))


class Outgoing(NamedTuple):
    """A message that is not acknowledged, or not completed."""

    message: Message
    is_released: bool = False  # PUBREC has come.


class Connection(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, client: MqttClient, node: str, will: int) -> None:
        self.client = client
        self.node = node
        self.will = will
        self.transport: Endpoint
        self.reader = k.Reader(client.version)
        self.is_open = False  # CONNACK has come.
        self.is_forsaken = False  # Its client listens to another one.
        self.is_lost = False
        self.former: Connection | None = None  # The one that it takes the client's session over from.
        self.began = self.heard = client.loop.scheduler.now
        self.unacked: dict[int, int] = {}  # By identifier: messages from the broker, by number.
        self.acks: deque[tuple[int, int]] = deque()  # That the client has not sent yet.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        client = self.client
        self.transport = cast("Endpoint", transport)
        will = k.Will(f"w/{client.name}", b"%d will" % self.will, 2) if self.will else None
        self.write(k.connect(client.version, client.name, False, KEEP_ALIVE_S, k.NEVER_S, will))
        self.client.loop.call_later(PING_S, self._ping)

    def write(self, data: bytes) -> None:
        if not self.is_lost:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self.heard = self.client.loop.scheduler.now
        if self.is_forsaken:
            return
        try:
            for packet in self.reader.receive(data):
                if not self.is_lost and not self.is_forsaken:
                    self.client.on_packet(self, packet)
        except k.Malformed as error:
            self.client.fail(str(error))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Clients write little; what they cannot send waits."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self.client.on_lost(self)

    def drop(self) -> None:
        if not self.is_lost:
            self.is_lost = True
            self.transport.abort()

    def _ping(self) -> None:
        if self.is_lost or self.is_forsaken:
            return
        now = self.client.loop.scheduler.now
        if now - self.heard > SILENCE_S or (not self.is_open and now - self.began > CONNECT_S):
            self.drop()
            self.client.on_lost(self)
            return
        if self.is_open:
            self.write(k.pingreq())
        self.client.loop.call_later(PING_S, self._ping)


class MqttClient:
    """A client, whatever connection it has."""

    def __init__(
        self,
        name: str,
        filters: tuple[tuple[str, int], ...],
        nodes: list[str],
        loop: NodeLoop,
        checker: MqttChecker,
        dice: random.Random,
        note: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self.filters = filters  # What it subscribes to; nothing if it publishes.
        self.nodes = nodes
        self.loop = loop
        self.checker = checker
        self.dice = dice
        self.note = note
        self.version = dice.choice((k.V4, k.V5, k.V5))
        self.connection: Connection | None = None
        self.is_connecting = False
        self.is_over = False  # It publishes nothing more, and stays connected.
        self.is_known = False  # The cluster has its session.
        self.is_subscribed = not filters
        self.outgoing: dict[int, Outgoing] = {}  # By identifier, in the order in which they were published.
        self.incoming: dict[int, int] = {}  # By identifier: numbers of QoS 2 messages that are not released.
        self.last_id = 0
        self.counts = {"connects": 0, "taken over": 0, "published": 0, "seen": 0, "resent": 0}

    def fail(self, text: str) -> None:
        at = "" if self.connection is None else f" at {self.connection.node}"
        self.checker.fail(f"{self.name}{at}: {text}")

    @property
    def is_open(self) -> bool:
        return self.connection is not None and self.connection.is_open and not self.connection.is_lost

    # -- What it does --------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Called again and again."""
        dice = self.dice
        self.loop.call_later(dice.choice((0.02, 0.3, 1.5)), self.act)
        connection = self.connection
        if connection is None or connection.is_lost:
            self.connect()
        elif connection.is_open and not self.is_over:
            names, weights = zip(*LIKELY, strict=True)
            getattr(self, f"_do_{dice.choices(names, weights)[0]}")(connection)

    def connect(self, node: str | None = None) -> None:
        if not self.is_connecting:
            self.is_connecting = True
            self.loop.create_task(self._connect(node or self.dice.choice(self.nodes)))

    async def _connect(self, node: str) -> None:
        will = self.checker.make_will() if not self.filters and self.dice.random() < 0.7 else 0
        connection = Connection(self, node, will)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.loop.create_connection(lambda: connection, node, MQTT_PORT)
        except (OSError, TimeoutError):
            return
        finally:
            self.is_connecting = False
        former, self.connection = self.connection, connection
        if former is not None and not former.is_lost:
            former.is_forsaken = True
            connection.former = former

    def _do_rest(self, connection: Connection) -> None:
        """Does nothing for a moment."""

    def _do_publish(self, connection: Connection) -> None:
        if not self.filters:
            qos = self.dice.choice((1, 2))
            topic = f"h/{self.name}/2" if qos == 2 and self.dice.random() < 0.4 else f"m/{self.name}/{qos}"
            for _ in range(self.dice.choice((1, 2, 6))):
                self._publish(connection, topic, qos, False)

    def _do_retain(self, connection: Connection) -> None:
        if not self.filters:
            topic = f"r/{self.dice.randrange(2)}"
            for _ in range(self.dice.choice((1, 3))):
                self._publish(connection, topic, 1, True)

    def _publish(self, connection: Connection, topic: str, qos: int, retain: bool) -> None:
        if len(self.outgoing) >= OUT_MAX:
            return
        while True:
            self.last_id = self.last_id % IDS + 1
            if self.last_id not in self.outgoing:
                break
        message = self.checker.publish(self.name, topic, qos, retain)
        self.outgoing[self.last_id] = Outgoing(message)
        self.counts["published"] += 1
        connection.write(k.publish(self.version, topic, message.payload, qos, self.last_id, retain, False))

    def _do_lose(self, connection: Connection) -> None:
        self.note(self.name, f"drops its connection to {connection.node}")
        self._expect_will(connection)
        connection.drop()

    def _do_goodbye(self, connection: Connection) -> None:
        self.note(self.name, f"says goodbye to {connection.node}")
        connection.write(k.disconnect())
        connection.transport.close()
        connection.is_lost = True
        # What the broker sends to a closed socket resets it, and may overtake the goodbye.
        if connection.will and self.checker.is_calm and not self.outgoing:
            self.checker.forgone.add(connection.will)

    def _do_elsewhere(self, connection: Connection) -> None:
        self.connect()

    def lose(self) -> None:
        """Drop the connection, whatever it is about."""
        if self.connection is not None and self.connection.is_open and not self.connection.is_lost:
            self._do_lose(self.connection)

    def _expect_will(self, connection: Connection) -> None:
        if connection.will and connection.is_open and self.checker.is_calm:
            self.checker.owed.add(connection.will)

    # -- What comes ----------------------------------------------------------------------------------------------

    def on_lost(self, connection: Connection) -> None:
        if connection is self.connection and not connection.is_forsaken:
            self.note(self.name, f"has lost its connection to {connection.node}")

    def on_packet(self, connection: Connection, packet: k.Packet) -> None:
        kind = packet.kind
        self.note(self.name, f"< {packet}")
        if not connection.is_open:
            if kind != k.CONNACK:
                self.fail(f"{packet} before CONNACK")
            self._on_connack(connection, packet)
        elif kind == k.PUBLISH:
            self._on_publish(connection, packet)
        elif kind == k.PUBREL:
            self._on_release(connection, packet.packet_id)
        elif kind in (k.PUBACK, k.PUBREC, k.PUBCOMP):
            self._on_ack(connection, packet)
        elif kind == k.SUBACK:
            self.is_subscribed = packet.reason < 0x80
            if not self.is_subscribed and self.checker.is_calm:
                self.fail(f"its subscription was refused with {packet.reason:#x}")
        elif kind == k.DISCONNECT:
            if self.checker.is_calm:
                self.fail(f"it was disconnected with {packet.reason:#x}")
            connection.drop()
        elif kind != k.PINGRESP:
            self.fail(f"{packet} was not expected")

    def _on_connack(self, connection: Connection, packet: k.Packet) -> None:
        if packet.reason:
            if self.checker.is_calm:
                self.fail(f"its CONNECT was refused with {packet.reason:#x}")
            connection.drop()
            return
        connection.is_open = True
        self.counts["connects"] += 1
        if self.is_known and not packet.flag:
            self.fail("its session is gone")
        self.is_known = True
        if connection.former is not None and connection.former.is_open and self.checker.is_calm:
            self.counts["taken over"] += 1
            self._expect_will(connection.former)
            self.loop.call_later(TAKE_OVER_S, self._check_closed, connection.former)
        if not self.is_subscribed:
            connection.write(k.subscribe(self.version, 1, self.filters))
        for packet_id, (message, is_released) in self.outgoing.items():
            self.counts["resent"] += 1
            if is_released:
                connection.write(k.ack(k.PUBREL, packet_id))
            else:
                again = (message.topic, message.payload, message.qos, packet_id, message.retain, True)
                connection.write(k.publish(self.version, *again))

    def _check_closed(self, former: Connection) -> None:
        if not former.is_lost and self.checker.is_calm:
            self.fail(f"its former connection to {former.node} lives")

    def _on_publish(self, connection: Connection, packet: k.Packet) -> None:
        packet_id = packet.packet_id
        if packet_id in connection.unacked:
            self.fail(f"{packet} comes under an identifier that is in use")
        known = self.incoming.get(packet_id) if packet.qos == 2 else None
        number = int(packet.payload.split(b" ")[0])
        number = -number if packet.topic.startswith("w/") else number
        if known is None:
            self.counts["seen"] += 1
            self.checker.on_seen(self.name, packet.topic, packet.payload, packet.qos)
            if packet.qos == 2:
                self.incoming[packet_id] = number
        elif known != number:
            self.fail(f"{packet} comes under the identifier of {known}, which was not released")
        connection.unacked[packet_id] = number
        connection.acks.append((k.PUBACK if packet.qos == 1 else k.PUBREC, packet_id))
        if self.dice.random() < 0.6:
            self._send_acks(connection)
        else:
            self.loop.call_later(self.dice.random(), self._send_acks, connection)

    def _send_acks(self, connection: Connection) -> None:
        while connection.acks and not connection.is_lost and not connection.is_forsaken:
            kind, packet_id = connection.acks.popleft()
            if kind == k.PUBACK:
                del connection.unacked[packet_id]
            connection.write(k.ack(kind, packet_id))

    def _on_release(self, connection: Connection, packet_id: int) -> None:
        """The broker will not send this message again."""
        if (k.PUBREC, packet_id) in connection.acks:
            self.fail(f"PUBREL {packet_id} before PUBREC")
        self.incoming.pop(packet_id, None)
        connection.unacked.pop(packet_id, None)
        connection.write(k.ack(k.PUBCOMP, packet_id))

    def _on_ack(self, connection: Connection, packet: k.Packet) -> None:
        packet_id = packet.packet_id
        outgoing = self.outgoing.get(packet_id)
        if outgoing is None:
            self.fail(f"{packet} was not expected")
            return
        message, is_released = outgoing
        wanted = k.PUBACK if message.qos == 1 else k.PUBCOMP if is_released else k.PUBREC
        if packet.kind != wanted:
            self.fail(f"{packet} came for {outgoing}")
        elif packet.reason >= 0x80 and packet.kind != k.PUBCOMP:
            message.refused = True
            del self.outgoing[packet_id]
            if self.checker.is_calm:
                self.fail(f"{packet} refuses {message}")
        elif packet.kind == k.PUBREC:
            self.checker.on_safe(message)
            self.outgoing[packet_id] = Outgoing(message, True)
            connection.write(k.ack(k.PUBREL, packet_id))
        else:
            self.checker.on_safe(message)
            del self.outgoing[packet_id]
