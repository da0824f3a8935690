"""From CONNECT to CONNACK: who the client is, which vhost it enters, and which session is its own.

    CONNECT ─▶ user and vhost ─▶ permissions, will ─▶ the client id is claimed in the cluster ─▶ queues ─▶ CONNACK

The user is found as with RabbitMQ: by the certificate if `mqtt.ssl_cert_login` is set, else by the user name. So is the
vhost, by the first that tells one: the certificate (the global parameter `mqtt_default_vhosts`), the user name if it is
`vhost:user`, the port (`mqtt_port_to_vhost_mapping`), the setting `mqtt.vhost`. A failed login is answered late if
there were many (`broker.logins`).

The session of a client id belongs to the whole cluster: `broker.client_ids` knows which connection has it, what it is
subscribed to, and its will, which the cluster publishes when the connection is lost. So nothing here publishes a will.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.base.visible_text import visible
from leveret.broker.client_ids.client_ids import Claim, Claimed
from leveret.broker.session.checks import Refused, check_permission, check_topic, missing
from leveret.broker.session.session import Session
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.mqtt.records import RetainedMessage, Will
from leveret.protocol.errors import ReplyCode
from leveret.protocol.mqtt import packets as k
from leveret.protocol.mqtt.properties import Prop, Properties, write_properties
from leveret.protocol.mqtt.reason_codes import MqttError, Reason
from leveret.sessions.mqtt.messages import to_content
from leveret.sessions.mqtt.routing_keys import exact_key_of, is_told_by, key_of

if TYPE_CHECKING:
    from leveret.broker.login import Login
    from leveret.metadata.mqtt.records import ClientSession
    from leveret.sessions.mqtt.connection import Connection

QUEUE_PREFIX: Final = "mqtt-subscription-"
CLIENT_ID_BYTES_MAX: Final = 255 - len(f"{QUEUE_PREFIX}qos1")
VHOSTS_BY_CERTIFICATE: Final = "mqtt_default_vhosts"
VHOSTS_BY_PORT: Final = "mqtt_port_to_vhost_mapping"
SIZE_MAX: Final = 268_435_460  # Of a packet.


class MqttLogin:
    """The way of a connection to its session, and its leave of it."""

    __slots__ = (
        "claimed", "connect", "connection", "due_ms", "epoch", "expiry_s", "is_present", "late", "login", "mechanism",
        "tells_problems",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.connect: k.Connect | None = None  # Until CONNACK.
        self.login: Login | None = None
        self.claimed: ClientSession | None = None
        self.epoch = 0  # Of the claim; 0: none, or it is over.
        self.expiry_s = 0
        self.is_present = False
        self.mechanism = ""
        self.tells_problems = True
        self.late: MqttError | None = None  # The answer to a failed login, at `due_ms`.
        self.due_ms = 0

    # -- Who is it -----------------------------------------------------------------------------------------------

    def on_connect(self, connect: k.Connect) -> None:
        """Raises `MqttError`."""
        connection, properties = self.connection, connect.properties
        self.connect = connect
        connection.set_packet_max(properties.get(Prop.MAXIMUM_PACKET_SIZE, SIZE_MAX))
        self.tells_problems = bool(properties.get(Prop.REQUEST_PROBLEM_INFO, 1))
        if Prop.AUTH_METHOD in properties:
            raise MqttError(Reason.BAD_AUTHENTICATION_METHOD, "there is no enhanced authentication")
        self._take_client_id(connect)
        vhost = self._authenticate(connect)
        if vhost is None:
            return
        self._enter(connect, vhost)
        connection.set_keep_alive(self._keep_alive(connect))
        self._claim(connect)

    def _take_client_id(self, connect: k.Connect) -> None:
        connection, client_id = self.connection, connect.client_id
        if not client_id:
            if connect.version == k.V31 or (connect.version == k.V311 and not connect.clean_start):
                raise MqttError(Reason.CLIENT_IDENTIFIER_NOT_VALID, "the client id is empty")
            client_id = connection.broker.unique_name("auto-")
        if len(client_id.encode()) > CLIENT_ID_BYTES_MAX or "\n" in client_id or "\r" in client_id:
            text = f"a client id has at most {CLIENT_ID_BYTES_MAX} bytes, and no line breaks"
            raise MqttError(Reason.CLIENT_IDENTIFIER_NOT_VALID, text)
        connection.set_client_id(client_id)

    def _authenticate(self, connect: k.Connect) -> str | None:
        """Log the client in. Gives its vhost; None if the answer has to wait. Raises `MqttError`."""
        connection, limits = self.connection, self.connection.limits
        broker, host = connection.broker, connection.peer.host
        vhost, user, password = self._credentials(connect)
        broker.totals.mqtt_logins += 1
        reason = None
        if broker.logins.is_barred(host, user, broker.now_ms):
            reason = f"user '{user}' - too many failed logins from {host}"
        else:
            reason = broker.refuse_login(user, password)
        if reason is None and user in limits.loopback_users and not connection.peer.is_loopback:
            reason = f"user '{user}' can only connect via localhost"
        if reason is None:
            connection.set_user(user)
            return vhost
        broker.totals.mqtt_logins_refused += 1
        text = f"MQTT login failed for {connection.describe()}: {reason}"
        broker.node.note("connection", "error", visible(text))
        fault = MqttError(Reason.BAD_USER_NAME_OR_PASSWORD, "")  # The client never learns whether the user exists.
        late_ms = broker.logins.failed(host, user, broker.now_ms)
        if not late_ms:
            raise fault
        self.late, self.due_ms = fault, broker.now_ms + late_ms
        connection.hold()
        return None

    def _credentials(self, connect: k.Connect) -> tuple[str, str, str | None]:
        """The vhost, the user, and the password; None if a certificate has told the user."""
        connection, limits = self.connection, self.connection.limits
        certificate = connection.peer.certificate
        certified = None if certificate is None else self._mapped(VHOSTS_BY_CERTIFICATE, certificate)
        usual = certified or self._mapped(VHOSTS_BY_PORT, str(connection.peer.local_port)) or limits.vhost
        if connect.username is None and limits.cert_login and certificate is not None:
            self.mechanism = "EXTERNAL"
            return usual, certificate, None
        self.mechanism = "PLAIN"
        if connect.username is None:
            if not limits.allow_anonymous:
                raise MqttError(Reason.BAD_USER_NAME_OR_PASSWORD, "")
            self.mechanism = "ANONYMOUS"
            return usual, limits.anonymous_user, limits.anonymous_password
        vhost, colon, user = connect.username.rpartition(":")
        password = (connect.password or b"").decode("utf-8", "surrogateescape")
        if certified or not colon or vhost not in connection.broker.vhosts:
            return usual, connect.username, password
        return vhost, user, password

    def _mapped(self, parameter: str, name: str) -> str | None:
        """The vhost that a global parameter says for a name. What is no such mapping says none."""
        mapping = self.connection.broker.metadata.global_parameters.get(parameter)
        vhost = mapping.get(name) if isinstance(mapping, dict) else None
        return vhost if isinstance(vhost, str) else None

    def _enter(self, connect: k.Connect, vhost: str) -> None:
        connection, broker = self.connection, self.connection.broker
        refused = broker.refuse_entry(connection.user, vhost)
        if refused is not None:
            if "limit" in refused:
                raise MqttError(Reason.QUOTA_EXCEEDED, refused)
            reason = Reason.NOT_AUTHORIZED if connect.version == k.V5 else Reason.BAD_USER_NAME_OR_PASSWORD
            raise MqttError(reason, refused)
        connection.set_vhost(broker.vhosts[vhost])
        self.login = broker.enter(connection, connection.user, vhost, connection.number)
        self.login.client_id = connection.client_id
        broker.on_connection_opened(connection, self.login)
        connection.on_entered_session(Session(self.login, connection, connection.peer))

    # -- Which session -------------------------------------------------------------------------------------------

    def _claim(self, connect: k.Connect) -> None:
        connection, broker, vhost = self.connection, self.connection.broker, self.connection.vhost
        assert vhost is not None
        self.expiry_s = self._expiry(connect)
        queues = tuple(f"{QUEUE_PREFIX}{connection.client_id}qos{qos}" for qos in (0, 1))
        claim = Claim(
            vhost.name,
            connection.client_id,
            connection.user,
            connect.clean_start,
            self.expiry_s,
            queues,
            self._will(connect),
        )
        connection.hold()
        broker.client_ids.claim(claim, connection, self._on_claimed)

    def _expiry(self, connect: k.Connect) -> int:
        limit: int = self.connection.limits.session_expiry_max_s
        if connect.version != k.V5:
            return 0 if connect.clean_start else limit
        wanted: int = connect.properties.get(Prop.SESSION_EXPIRY, 0)
        return min(wanted, limit)

    def _keep_alive(self, connect: k.Connect) -> int:
        """The keep alive of the client, in seconds. Only MQTT 5.0 can tell it another than it asked for."""
        wanted: int = connect.keep_alive
        return (connect.version == k.V5 and self.connection.limits.server_keep_alive_s) or wanted

    def _will(self, connect: k.Connect) -> Will | None:
        """The will as the cluster publishes it. Raises `MqttError` if the user may not publish it."""
        will, connection, limits = connect.will, self.connection, self.connection.limits
        if will is None:
            return None
        if will.topic.startswith(("$share/", "$SYS/")):
            raise MqttError(Reason.TOPIC_NAME_INVALID, "clients do not publish to $share and $SYS")
        broker, vhost, login = connection.broker, connection.vhost, self.login
        assert vhost is not None and login is not None
        key = key_of(will.topic)
        try:
            check_permission(login, "exchange", limits.exchange, "write")
            spec = broker.metadata.exchanges.get((vhost.name, limits.exchange))
            if spec is None:
                raise missing("exchange", limits.exchange, vhost.name)
            check_topic(login, spec, key, "write")
        except Refused as refused:
            raise MqttError(Reason.NOT_AUTHORIZED, refused.refusal.text) from None
        further = () if is_told_by(key, will.topic) else (exact_key_of(will.topic),)
        properties = dict(will.properties)
        delay_s = properties.pop(Prop.WILL_DELAY, 0)
        content = to_content(
            will.topic,
            will.payload,
            will.qos,
            properties,
            limits.frame_max,
            broker.wall_ms,
            retain=will.retain,
            further=further,
        )
        expiry_s = properties.pop(Prop.MESSAGE_EXPIRY, 0)
        retained = None
        if will.retain:
            retained = RetainedMessage(will.topic, will.payload, will.qos, write_properties(properties))
        return Will(limits.exchange, key, content, delay_s, retained, expiry_s)

    def _on_claimed(self, answer: Claimed | Refusal) -> None:
        connection, connect = self.connection, self.connect
        if isinstance(answer, Refusal):
            connection.drop_wait()
            full = answer.code == ReplyCode.PRECONDITION_FAILED
            connection.end(Reason.QUOTA_EXCEEDED if full else Reason.SERVER_UNAVAILABLE, answer.text)
            return
        session = answer.session
        if connection.closed:
            # The client never had its CONNACK, so its will is none yet.
            connection.broker.client_ids.release(session.vhost, session.client_id, session.epoch, False)
            return
        assert connect is not None and connection.session is not None
        self.claimed, self.epoch, self.is_present = session, session.epoch, answer.is_present
        receive_max = connect.properties.get(Prop.RECEIVE_MAXIMUM, 65_535)
        alias_max = connect.properties.get(Prop.TOPIC_ALIAS_MAXIMUM, 0)
        connection.deliveries.begin(connection.session, receive_max, alias_max, session)
        if session.subscriptions:
            connection.subscriptions.resume(session, self._on_resumed)
        else:
            self._on_resumed(None)

    def _on_resumed(self, refusal: Refusal | None) -> None:
        """The queues of the session are there."""
        connection, connect = self.connection, self.connect
        if connection.closed:
            return
        if refusal is not None:
            connection.end(reason_of(refusal), refusal.text)
            return
        assert connect is not None
        properties = self._connack_properties(connect) if connect.version == k.V5 else {}
        connection.send(k.Connack(self.is_present, Reason.SUCCESS, properties))
        self.connect = None
        connection.on_running()
        text = f"accepting MQTT connection {connection.peer} -> client id: {connection.client_id}"
        connection.broker.node.note("connection", "info", visible(text))
        connection.deliveries.send_releases()
        if connection.subscription_count() or (self.is_present and connection.subscriptions.has_own_queue()):
            connection.subscriptions.consume(self._on_consuming)
        else:
            self._on_consuming({})

    def _on_consuming(self, refusals: dict[str, Refusal]) -> None:
        connection = self.connection
        if connection.closed:
            return
        for refusal in refusals.values():  # The client would wait for its messages in vain.
            connection.end(reason_of(refusal), refusal.text)
            return
        connection.release()

    def _connack_properties(self, connect: k.Connect) -> Properties:
        limits, wanted = self.connection.limits, connect.properties.get(Prop.SESSION_EXPIRY, 0)
        properties: Properties = {
            Prop.RECEIVE_MAXIMUM: limits.receive_max,
            Prop.MAXIMUM_PACKET_SIZE: limits.packet_max,
            Prop.TOPIC_ALIAS_MAXIMUM: limits.topic_alias_max,
        }
        if wanted != self.expiry_s:
            properties[Prop.SESSION_EXPIRY] = self.expiry_s
        if self.connection.keep_alive_s != connect.keep_alive:
            properties[Prop.SERVER_KEEP_ALIVE] = self.connection.keep_alive_s
        if not connect.client_id:
            properties[Prop.ASSIGNED_CLIENT_ID] = self.connection.client_id
        return properties

    # -- The end -------------------------------------------------------------------------------------------------

    def on_tick(self, now_ms: int) -> None:
        late = self.late
        if late is not None and now_ms >= self.due_ms:
            self.late = None
            self.connection.fail_with(late)

    def on_claim_over(self) -> None:
        """The client id is no longer this connection's."""
        self.epoch = 0

    def leave(self, publish_will: bool, expiry_s: int | None) -> None:
        """The connection ends. `expiry_s`: the session expiry interval that the client has changed it to."""
        if self.epoch and self.claimed is not None:
            epoch, self.epoch = self.epoch, 0
            if expiry_s is not None:
                expiry_s = min(expiry_s, self.connection.limits.session_expiry_max_s)
            self.connection.broker.client_ids.release(
                self.claimed.vhost, self.claimed.client_id, epoch, publish_will, expiry_s
            )


def reason_of(refusal: Refusal) -> Reason:
    """What MQTT 5.0 calls a refusal of the broker."""
    if refusal.code == ReplyCode.ACCESS_REFUSED:
        return Reason.NOT_AUTHORIZED
    if refusal.code in (ReplyCode.PRECONDITION_FAILED, ReplyCode.NOT_ALLOWED):
        return Reason.QUOTA_EXCEEDED
    return Reason.IMPLEMENTATION_SPECIFIC_ERROR

