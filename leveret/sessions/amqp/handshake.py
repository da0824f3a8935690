"""From the greeting to an open virtual host: who is it, how shall we talk, where does it want to go.

A client that fails to log in is closed with ACCESS_REFUSED if it announced `authentication_failure_close`, and else
without a word, as RabbitMQ does; the log tells the operator why, the client never learns whether the user exists. Who
tries out passwords is answered late (`broker.logins`); what it sends meanwhile waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn

from leveret import __version__
from leveret.protocol import methods as m
from leveret.protocol.errors import ConnectionFault, ReplyCode
from leveret.protocol.frames import FRAME_MIN_SIZE
from leveret.protocol.tables import BadTable, decode_table, table_from_python
from leveret.sessions.amqp.origin_channel import PROPERTY
from leveret.sessions.amqp.producer_channel import BadProducer, producer_of
from leveret.sessions.peer import COMPATIBLE_PRODUCT, COMPATIBLE_VERSION

if TYPE_CHECKING:
    from leveret.sessions.amqp.connection import Connection

CAPABILITIES: Final = (
    "publisher_confirms",
    "exchange_exchange_bindings",
    "basic.nack",
    "consumer_cancel_notify",
    "connection.blocked",
    "consumer_priorities",
    "authentication_failure_close",
    "per_consumer_qos",
    "direct_reply_to",
    "leveret_producer",
    "leveret_origins",
    "leveret_bundles",
    "leveret_origin_marks",
)
EXTERNAL: Final = "EXTERNAL"
# What RabbitMQ calls the states in which these are expected.
STATES: Final[dict[type[m.Method], str]] = {
    m.ConnectionStartOk: "starting",
    m.ConnectionTuneOk: "tuning",
    m.ConnectionOpen: "opening",
}


class Handshake:
    """The state of a connection that is not open yet."""

    __slots__ = ("connection", "due_ms", "expected", "fault", "refused")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.expected: type[m.Method] = m.ConnectionStartOk
        self.refused = False
        self.fault: ConnectionFault | None = None  # How the login is answered at `due_ms`.
        self.due_ms = 0

    @property
    def state(self) -> str:
        return STATES[self.expected]

    def may_be_told(self) -> bool:
        return not self.refused or bool(self.connection.capabilities.get("authentication_failure_close"))

    def start(self) -> m.ConnectionStart:
        broker = self.connection.broker
        properties = table_from_python(
            {
                "product": COMPATIBLE_PRODUCT,
                "version": COMPATIBLE_VERSION,
                "cluster_name": broker.cluster_name,
                "platform": f"Python {broker.python_version}",
                "copyright": "Copyright (c) the Leveret authors",
                "information": "Licensed under the Apache License 2.0.",
                "leveret_product": "Leveret",
                "leveret_version": __version__,
                "capabilities": dict.fromkeys(CAPABILITIES, True),
            }
        )
        return m.ConnectionStart(0, 9, properties, " ".join(self._mechanisms()).encode(), b"en_US")

    def _mechanisms(self) -> list[str]:
        """Certificates come with TLS. A client without one is told when it tries."""
        return [name for name in self.connection.limits.mechanisms if name != EXTERNAL or self.connection.peer.tls]

    def on_method(self, method: m.Method) -> None:
        if not isinstance(method, self.expected):
            text = f"unexpected method in connection state {self.state}"
            raise ConnectionFault(ReplyCode.CHANNEL_ERROR, text, method.class_id, method.method_id)
        if isinstance(method, m.ConnectionStartOk):
            self._on_start_ok(method)
        elif isinstance(method, m.ConnectionTuneOk):
            self._on_tune_ok(method)
        elif isinstance(method, m.ConnectionOpen):
            self._on_open(method)

    # -- Who is it ------------------------------------------------------------------------------------------------

    def _on_start_ok(self, method: m.ConnectionStartOk) -> None:
        connection = self.connection
        limits = connection.limits
        connection.set_client_properties(method.client_properties)
        if method.mechanism not in self._mechanisms():
            raise ConnectionFault(
                ReplyCode.COMMAND_INVALID,
                f"unknown authentication mechanism '{method.mechanism}'",
                method.class_id,
                method.method_id,
            )
        user, password = self._credentials(method)
        broker, host = connection.broker, connection.peer.host
        if broker.logins.is_barred(host, user, broker.now_ms):
            self._refuse(method, f"user '{user}' - too many failed logins from {host}")
        reason = broker.refuse_login(user, password)
        if reason is None and user in limits.loopback_users and not connection.peer.is_loopback:
            reason = f"user '{user}' can only connect via localhost"
        broker.totals.logins += 1
        if reason is not None:
            broker.totals.logins_refused += 1
            late_ms = broker.logins.failed(host, user, broker.now_ms)
            try:
                self._refuse(method, reason)
            except ConnectionFault as fault:
                if not late_ms:
                    raise
                self.fault, self.due_ms = fault, broker.now_ms + late_ms
                connection.hold()
            return
        connection.on_authenticated(user, method.mechanism)
        try:
            connection.set_producer(producer_of(connection.client_properties))
            connection.set_origins(connection.client_properties.get(PROPERTY) is True)
        except BadProducer as error:
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, str(error), method.class_id, method.method_id) from None
        self.expected = m.ConnectionTuneOk
        connection.send(0, m.ConnectionTune(limits.channel_max, limits.frame_max, limits.heartbeat_s))

    def on_tick(self, now_ms: int) -> None:
        fault = self.fault
        if fault is not None and now_ms >= self.due_ms:
            self.fault = None
            self.connection.close_with(fault)
            self.connection.release()

    def _credentials(self, method: m.ConnectionStartOk) -> tuple[str, str | None]:
        response = method.response
        if method.mechanism == EXTERNAL:
            name = self.connection.peer.certificate
            if name is None:
                self._refuse(method, "the client has no certificate with a name, or it was not checked")
            return name, None
        if method.mechanism == "AMQPLAIN":
            try:  # A table without its length.
                table, _ = decode_table(len(response).to_bytes(4, "big") + response)
            except BadTable as error:
                self._refuse(method, f"malformed AMQPLAIN response: {error}")
            login, password = table.get("LOGIN"), table.get("PASSWORD")
            if login is None or password is None or login.kind != "S" or password.kind != "S":
                self._refuse(method, "AMQPLAIN response without LOGIN and PASSWORD")
            return login.value, password.value
        parts = response.split(b"\0")
        if len(parts) != 3 or parts[0]:  # Nobody acts for somebody else here.
            self._refuse(method, "malformed PLAIN response")
        return parts[1].decode("utf-8", "surrogateescape"), parts[2].decode("utf-8", "surrogateescape")

    def _refuse(self, method: m.ConnectionStartOk, reason: str) -> NoReturn:
        self.refused = True
        self.connection.broker.notes.login_refused(self.connection, method.mechanism, reason)
        raise ConnectionFault(
            ReplyCode.ACCESS_REFUSED,
            f"Login was refused using authentication mechanism {method.mechanism}. For details see the broker logfile.",
        )

    # -- How shall we talk ----------------------------------------------------------------------------------------

    def _on_tune_ok(self, method: m.ConnectionTuneOk) -> None:
        connection, limits = self.connection, self.connection.limits
        frame_max = self._negotiated("frame_max", method.frame_max, limits.frame_max, FRAME_MIN_SIZE, method)
        channel_max = self._negotiated("channel_max", method.channel_max, limits.channel_max, 1, method)
        connection.on_tuned(frame_max or (1 << 32) - 1, channel_max or 65_535, method.heartbeat)
        self.expected = m.ConnectionOpen

    @staticmethod
    def _negotiated(name: str, wanted: int, offered: int, least: int, method: m.Method) -> int:
        """Return the value that the client asks for, if it is within the offer; 0 is "no limit"."""
        if wanted and wanted < least:
            bound, word = least, "lower than the minimum"
        elif offered and (wanted == 0 or wanted > offered):
            bound, word = offered, "higher than the maximum"
        else:
            return wanted
        raise ConnectionFault(
            ReplyCode.NOT_ALLOWED,
            f"negotiated {name} = {wanted} is {word} allowed value ({bound})",
            method.class_id,
            method.method_id,
        )

    # -- Where does it want to go ---------------------------------------------------------------------------------

    def _on_open(self, method: m.ConnectionOpen) -> None:
        connection, broker = self.connection, self.connection.broker
        refused = broker.refuse_entry(connection.user, method.virtual_host)
        if refused is not None:
            raise ConnectionFault(ReplyCode.NOT_ALLOWED, refused, method.class_id, method.method_id)
        connection.send(0, m.ConnectionOpenOk())
        connection.on_opened(broker.vhosts[method.virtual_host])
