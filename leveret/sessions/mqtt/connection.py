"""An MQTT connection as a machine: bytes from the client in, bytes for the client out, queues touched between.

    CONNECT ─▶ connecting (login, client id, queues of the session) ─▶ running ─▶ closed        (see `Life`)

The machine does no I/O. `receive` takes whatever arrived and puts answers into `output`, which the shell writes once a
turn. Time comes in with `on_tick`. It has four parts: `login` turns a CONNECT into a session, `publisher` takes PUBLISH
packets, `subscriptions` SUBSCRIBE and UNSUBSCRIBE, `deliveries` sends messages and takes their acknowledgements.

Where something must wait (the client id to be claimed, a binding to be agreed on) the connection is *held*: it reads no
further, keeps the rest, and goes on when `release` is called. So packets are processed in their order.

Whatever the client does wrong raises an `MqttError`, and whatever ends the connection goes through `end`: a client of
MQTT 5.0 is told the reason, with CONNACK or DISCONNECT; older ones are cut off, as their protocol has it.

What a stranger may cost: until it has logged in, a packet is at most `packet_max_unauthenticated` bytes; later at most
`packet_max`. Either is refused by its first bytes, before the packet is gathered.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, NoReturn

from leveret.base.visible_text import visible
from leveret.broker.mqtt_totals import Counts
from leveret.protocol.mqtt import properties as p
from leveret.protocol.mqtt.decoder import UnsupportedVersion, decode, names_v5, packet_end
from leveret.protocol.mqtt.encoder import encode
from leveret.protocol.mqtt.packets import (
    V5,
    V311,
    VERSION_NAMES,
    Ack,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from leveret.protocol.mqtt.properties import Prop
from leveret.protocol.mqtt.reason_codes import MqttError, Reason, protocol_error
from leveret.sessions.mqtt.ack_runs import HEADS, run_at
from leveret.sessions.mqtt.deliveries import Deliveries
from leveret.sessions.mqtt.login import SIZE_MAX, MqttLogin
from leveret.sessions.mqtt.publisher import Publisher
from leveret.sessions.mqtt.subscriptions import Subscriptions
from leveret.sessions.output import Output
from leveret.sessions.without_channels import ConnectionWithoutChannels

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.client_ids.client_ids import SessionChange
    from leveret.broker.session.session import Session
    from leveret.broker.vhost import Vhost
    from leveret.metadata.model.refusals import Refusal
    from leveret.sessions.mqtt.limits import MqttLimits
    from leveret.sessions.peer import Peer

PINGRESP: Final = b"\xd0\x00"
TEXT_MAX: Final = 200  # Characters of a reason string.
TRIES_MAX: Final = 30  # Seconds in which a former connection of the same client has to let go of its queues.
REASONS_OF_CLOSE: Final = {  # What the broker says when it ends a connection: see `Client.close`.
    "shutdown": Reason.SERVER_SHUTTING_DOWN,
    "maintenance": Reason.SERVER_SHUTTING_DOWN,
    "deleted": Reason.NOT_AUTHORIZED,
}


class Life(Enum):
    """The state of a connection. It goes on from each to a later one, and never back."""

    GREETING = "the client has to send CONNECT"
    CONNECTING = "its session is found or made; CONNACK has not been sent"
    RUNNING = "the client publishes and subscribes"
    CLOSED = "nothing further is read or made; the shell ends the socket once all output is written"


_ORDER: Final = tuple(Life)


class Connection(ConnectionWithoutChannels):
    """One client."""

    __slots__ = (
        "client_id", "client_packet_max", "deliveries", "keep_alive_s", "later", "life", "limits", "packet_max",
        "publishing", "rest", "subscribing", "version",
    )  # fmt: skip

    def __init__(self, broker: Broker, peer: Peer, limits: MqttLimits) -> None:
        super().__init__(broker, peer)
        self.limits = limits
        self.life = Life.GREETING
        self.version = V311
        self.client_id = ""
        self.keep_alive_s = 0
        self.packet_max = limits.packet_max_unauthenticated
        self.client_packet_max = SIZE_MAX
        self.output: Output = Output(broker)
        self.rest = b""
        self.later: list[tuple[int, Callable[[], None]]] = []  # What is tried again with the next tick.
        self.login_part: MqttLogin = MqttLogin(self)
        self.publishing: Publisher | None = None  # Of a client that publishes.
        self.subscribing: Subscriptions | None = None  # Of a client that subscribes.
        self.deliveries: Deliveries = Deliveries(self)

    @property
    def publisher(self) -> Publisher:
        """The publishing side. Most of very many clients only listen: it is made when it is needed."""
        if self.publishing is None:
            self.publishing = Publisher(self)
            claimed = self.login_part.claimed
            if claimed is not None:
                self.publishing.begin(self.login_part.expiry_s > 0, claimed, self._publisher_name())
        return self.publishing

    @property
    def subscriptions(self) -> Subscriptions:
        """The subscribing side, which is made when it is needed, too."""
        if self.subscribing is None:
            self.subscribing = Subscriptions(self, self.login_part.expiry_s > 0)
        return self.subscribing

    def _publisher_name(self) -> str:
        """The client id, if a subscription wants none of the client's own messages."""
        return self.client_id if self.subscribing is not None and self.subscribing.no_local else ""

    def set_publisher_name(self) -> None:
        if self.publishing is not None:
            self.publishing.set_publisher(self._publisher_name())

    def _submit(self) -> None:
        if self.publishing is not None:
            self.publishing.submit()

    def _become(self, life: Life) -> None:
        assert _ORDER.index(life) > _ORDER.index(self.life), (self.life, life)
        self.life = life
        self.closed = life is Life.CLOSED

    # -- What lists show -----------------------------------------------------------------------------------------

    @property
    def protocol(self) -> str:
        return f"{'Web MQTT' if self.peer.web else 'MQTT'} {VERSION_NAMES[self.version]}"

    @property
    def variables(self) -> dict[str, str]:
        return {"client_id": self.client_id}

    @property
    def client_properties(self) -> dict[str, object]:
        return {"client_id": self.client_id, "product": "MQTT client"}

    @property
    def heartbeat_s(self) -> int:
        return self.keep_alive_s

    @property
    def was_asked_to_close(self) -> bool:
        """False: a client that sends DISCONNECT waits for no answer, so the socket is closed at once."""
        return False

    def counts(self) -> Counts:
        if self.session is None:
            return Counts(0, 0, self.received_bytes, self.output.sent_bytes)
        sent = self.session.delivery_tag - self.deliveries.dropped
        return Counts(self.session.traffic.published, sent, self.received_bytes, self.output.sent_bytes)

    def subscription_count(self) -> int:
        return 0 if self.subscribing is None else len(self.subscribing.options)

    def set_client_id(self, client_id: str) -> None:
        self.client_id = client_id

    def set_user(self, user: str) -> None:
        self.user = user

    def set_vhost(self, vhost: Vhost) -> None:
        self.vhost = vhost

    def set_keep_alive(self, seconds: int) -> None:
        """Set the interval of signs of life: a client may be silent for one and a half of it."""
        self.keep_alive_s = seconds

    def set_packet_max(self, packet_max: int) -> None:
        """Set how large a packet to its client may be."""
        self.client_packet_max = packet_max

    def drop_wait(self) -> None:
        """Wait for one answer less, and go on with nothing: the connection ends."""
        self.waits -= 1

    def describe(self) -> str:
        return f"{self.peer} ({self.client_id})" if self.client_id else str(self.peer)

    # -- Input ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes from the client."""
        self.received_since_tick = True
        self.received_bytes += len(data)
        self.received_count += 1
        if self.closed:
            return
        if self.rest:
            data = self.rest + data
            self.rest = b""
        if self.held:
            self.rest = data
            return
        self._process(data)
        if self.held:
            self._go_on()

    def _go_on(self) -> None:
        """Process what came meanwhile, if nothing holds the connection any longer."""
        while not self.closed:
            self.held = self.waits > 0 or self.blocked or self.spreads
            if self.held or not self.rest:
                break
            data, self.rest = self.rest, b""
            try:
                self._process(data)
            except Exception as error:  # A bug must affect this client only, as where its bytes are read.
                text = f"connection {self.describe()}: internal error: {error!r}"
                self.broker.node.note("connection", "error", visible(text))
                self.close(541, "")
            if not self.held:
                break
        if not self.held and not self.closed and self.on_released is not None:
            self.on_released()

    def _process(self, data: bytes) -> None:
        self.busy = True
        at = 0
        try:
            at = self._packets(data)
            self._submit()
        except MqttError as error:
            self._submit()
            if self.life is Life.GREETING and names_v5(data):
                # A client of MQTT 5.0 is told what is wrong with its CONNECT; older ones have no code for it.
                self.version = V5
                self._become(Life.CONNECTING)
            self.fail_with(error)
        finally:
            self.busy = False
        if self.deliveries.acked:
            self.deliveries.settle()
        self.rest = b"" if self.closed else data[at:]
        self.broker.writers[self.output] = None

    def _packets(self, data: bytes) -> int:
        """Process whole packets; return where the first one begins that is incomplete, or has to wait."""
        at, size, publisher, deliveries = 0, len(data), self.publishing, self.deliveries
        if publisher is not None:
            publisher.check_routes()
        if size and self.life is Life.GREETING and data[0] >> 4 != p.CONNECT:
            # Another protocol: what seems to be the length of a packet would be waited for.
            raise protocol_error("the first packet is not CONNECT")
        while at < size:
            head = data[at]
            # A length of one byte is by far the most frequent.
            start = at + 2
            if start <= size and data[at + 1] < 128:
                end = start + data[at + 1]
            else:
                span = packet_end(data, at, self.packet_max)
                if span is None:
                    break
                start, end = span
            if end > size:
                break
            if self.life is not Life.RUNNING:
                self._before_connack(head, data, start, end)
            elif head & 0xF0 == 0x30:
                if self.broker.alarm is not None:
                    self._block()
                    break
                if publisher is None:
                    publisher = self.publisher
                    publisher.check_routes()
                end = publisher.on_publish(head, data, at, start, end)
            elif head in HEADS and end - start == 2:
                self._submit()
                count = run_at(data, at)
                deliveries.on_acks(head, data, at, count)
                end = at + 4 * count
            else:
                self._submit()
                self._on_packet(decode(self.version, head, data, start, end))
            at = end
            if self.held or self.closed:
                break
        return at

    def _before_connack(self, head: int, data: bytes, start: int, end: int) -> None:
        try:
            connect = decode(self.version, head, data, start, end)
        except UnsupportedVersion as error:
            self.version = V5 if error.level > V5 else V311
            raise
        assert isinstance(connect, Connect)
        self.version = connect.version
        self._become(Life.CONNECTING)
        self.login_part.on_connect(connect)

    def _on_packet(self, packet: Packet) -> None:
        match packet:
            case Ack():
                if packet.kind == p.PUBREL:
                    self.publisher.on_release(packet.packet_id)
                else:
                    self.deliveries.on_ack_packet(packet)
            case Subscribe():
                self.subscriptions.on_subscribe(packet)
            case Unsubscribe():
                self.subscriptions.on_unsubscribe(packet)
            case Pingreq():
                self.output.send(PINGRESP)
            case Disconnect():
                self._on_disconnect(packet)
            case _:
                self._refuse(packet)

    @staticmethod
    def _refuse(packet: Packet) -> NoReturn:
        if isinstance(packet, Auth):
            raise protocol_error("the connection has no authentication method")
        raise protocol_error(f"a client sends no {type(packet).__name__.upper()} here")

    def _on_disconnect(self, packet: Disconnect) -> None:
        expiry_s = packet.properties.get(Prop.SESSION_EXPIRY)
        if expiry_s is not None and expiry_s and not self.login_part.expiry_s:
            raise protocol_error("the session was to end with the connection")
        if Prop.SERVER_REFERENCE in packet.properties:
            raise protocol_error("a client sends no server reference")
        self._shut("closed by the client", packet.reason != Reason.SUCCESS, expiry_s)

    # -- Alarms --------------------------------------------------------------------------------------------------

    def _block(self) -> None:
        """It publishes during an alarm: this publish, and all behind it, waits for the end of the alarm."""
        self.blocked = self.held = self.has_published = True

    # -- What the broker says ------------------------------------------------------------------------------------

    def close(self, code: int, text: str) -> None:
        """The broker ends the connection: an operator wants it, its user or its vhost is deleted."""
        reason = Reason.ADMINISTRATIVE_ACTION if code == 320 else Reason.UNSPECIFIED_ERROR
        for word, other in REASONS_OF_CLOSE.items():
            if word in text:
                reason = other
        self.end(reason, text)

    def fail(self, session: Session, refusal: Refusal) -> None:
        """The client has kept messages for too long."""
        self.end(Reason.ADMINISTRATIVE_ACTION, refusal.text)

    def on_taken_over(self) -> None:
        """Another connection has the client id now."""
        self.login_part.on_claim_over()
        self.end(Reason.SESSION_TAKEN_OVER, "another connection has the client id")

    def on_claim_lost(self) -> None:
        """The session is gone: an operator has deleted it, or the cluster took this node for dead."""
        self.login_part.on_claim_over()
        self.end(Reason.ADMINISTRATIVE_ACTION, "the session was ended")

    def change_session(self, change: SessionChange, then: Callable[[Refusal | None], None]) -> None:
        """Change what the cluster keeps of the session."""
        part = self.login_part
        if part.claimed is not None and part.epoch:
            self.broker.client_ids.change(part.claimed.vhost, part.claimed.client_id, part.epoch, change, then)

    # -- Output and the end --------------------------------------------------------------------------------------

    def send(self, packet: Suback | Unsuback | Ack | Connack | Disconnect) -> None:
        """Send an answer; without its reason string, if the client does not take a packet of that size."""
        data = encode(packet, self.version)
        if len(data) > self.client_packet_max:
            packet.properties.pop(Prop.REASON_STRING, None)
            data = encode(packet, self.version)
        self.output.send(data)

    def told(self, text: str) -> p.Properties:
        """A reason string for an answer, if the client wants any. CONNACK and DISCONNECT have one anyway."""
        if not text or self.version != V5 or not self.login_part.tells_problems:
            return {}
        return {Prop.REASON_STRING: text[:TEXT_MAX]}

    def on_entered_session(self, session: Session) -> None:
        """The client has logged in, and may send larger packets."""
        self.session = session
        self.packet_max = self.limits.packet_max

    def on_running(self) -> None:
        """CONNACK is sent."""
        self._become(Life.RUNNING)
        self.broker.mqtt_totals.enter(self)
        if self.on_entered is not None:
            self.on_entered()
            self.on_entered = None  # Nobody enters twice.

    def fail_with(self, error: MqttError) -> None:
        self.end(error.reason, error.text)

    def end(self, reason: Reason, text: str) -> None:
        """The server ends the connection, and says why where the protocol can."""
        if self.closed:
            return
        properties: p.Properties = {Prop.REASON_STRING: text[:TEXT_MAX]} if text and self.version == V5 else {}
        if self.life is Life.CONNECTING or self._is_refused_greeting(reason):
            self.send(Connack(False, reason, properties))
        elif self.life is Life.RUNNING and self.version == V5:
            if reason is Reason.SERVER_UNAVAILABLE:  # Which only CONNACK can say.
                reason = Reason.SERVER_BUSY
            self.send(Disconnect(reason, properties))
        self._shut(f"{reason.name.lower()}: {text}")

    def _is_refused_greeting(self, reason: Reason) -> bool:
        """A CONNECT of another version is answered; what is no CONNECT is not."""
        return self.life is Life.GREETING and reason is Reason.UNSUPPORTED_PROTOCOL_VERSION

    def on_socket_lost(self) -> None:
        """The peer is gone without a word, or the shell gave up on it."""
        if self.closed:
            return
        goodbye = self._goodbye() if self.rest and self.life is Life.RUNNING else None
        if goodbye is None:
            self._shut(self.close_reason or "client unexpectedly closed TCP connection")
        else:
            self._shut("closed by the client", goodbye.reason != Reason.SUCCESS)

    def _goodbye(self) -> Disconnect | None:
        """The client's DISCONNECT, if it is among what had to wait: its will must not be published."""
        data, at = self.rest, 0
        try:
            while (span := packet_end(data, at, self.packet_max)) is not None and span.end <= len(data):
                if data[at] >> 4 == p.DISCONNECT:
                    packet = decode(self.version, data[at], data, *span)
                    return packet if isinstance(packet, Disconnect) else None
                at = span.end
        except MqttError:
            return None
        return None

    def _shut(self, reason: str, publish_will: bool = True, expiry_s: int | None = None) -> None:
        self._become(Life.CLOSED)
        self.close_reason = reason
        self.rest = b""
        self.later.clear()
        if self.publishing is not None:
            self.publishing.forget()
        if self.subscribing is not None:
            self.subscribing.forget()
        self.broker.mqtt_totals.leave(self)
        if self.session is not None:
            if self.deliveries.acked:  # Otherwise what was acknowledged right before goodbye would come again.
                self.deliveries.settle()
            self.session.close()
        self.login_part.leave(publish_will, expiry_s)
        self.broker.on_connection_closed(self)
        self.broker.node.note("connection", "info", visible(f"closing MQTT connection {self.describe()}: {reason}"))
        self.broker.writers[self.output] = None

    def try_later(self, tries: int, action: Callable[[], None]) -> bool:
        """Have something tried again with the next tick. False: that was often enough."""
        if tries >= TRIES_MAX:
            return False
        self.later.append((tries, action))
        return True

    def on_tick(self, now_ms: int, listening: bool = True) -> bool:
        """Once a second. Ends a client that has been silent for one and a half times its keep alive."""
        later, self.later = self.later, []
        for _, action in later:
            if not self.closed:
                action()
        self.login_part.on_tick(now_ms)
        system = None if self.subscribing is None else self.subscribing.system
        if system is not None and self.life is Life.RUNNING:
            system.on_tick()
        if self.received_since_tick or self.held or not listening:
            self.received_ms, self.received_since_tick = now_ms, False
        else:
            # If the node itself was held up, what the client sent meanwhile has yet to be read: one tick counts for
            # one interval at most, so that such a pause does not cut all clients at once.
            self.received_ms += max(now_ms - self.ticked_ms - self.keep_alive_s * 1_000, 0)
        self.ticked_ms = now_ms
        if self.keep_alive_s and self.life is Life.RUNNING and now_ms - self.received_ms > self.keep_alive_s * 1_500:
            self.end(Reason.KEEP_ALIVE_TIMEOUT, f"no packet for {self.keep_alive_s * 3 // 2} seconds")
        return True
