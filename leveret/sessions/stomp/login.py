"""From CONNECT to CONNECTED: the version, the user, the vhost and the heart-beats of a client.

The user is found as with RabbitMQ: by the login of the HTTP request, if `web_stomp.use_http_auth` is set and it has
one, and then headers count for nothing; otherwise by the header `login`; without it by the certificate, if
`stomp.ssl_cert_login` is set and there is one; otherwise it is `stomp.default_user`. With `stomp.implicit_connect` a
client that sends another frame first is logged in the same way, as a client of STOMP 1.0, and is sent no CONNECTED. A
failed login is answered late if there were many (`broker.logins`); the client may try twice again, until the login
timeout.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from leveret.base.visible_text import visible
from leveret.broker.session.session import Session
from leveret.protocol.stomp.encoder import encode
from leveret.protocol.stomp.frames import V10, VERSIONS, Frame
from leveret.sessions.peer import COMPATIBLE_PRODUCT, COMPATIBLE_VERSION
from leveret.sessions.stomp.errors import SUPPORTED, StompError

if TYPE_CHECKING:
    from leveret.sessions.stomp.connection import Connection

FAILURES_MAX: Final = 3  # Failed logins on one connection.
_HEART_BEAT: Final = re.compile(r" *(-?[0-9]{1,10}) *, *(-?[0-9]{1,10}) *\Z")


class StompLogin:
    """The way of a connection to its session."""

    __slots__ = ("auth_login", "connection", "due_ms", "failures", "given", "is_implicit", "late", "mechanism")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.mechanism = ""
        self.auth_login = ""  # As the client, its certificate or the settings say.
        self.given: tuple[str, str] | None = None  # The user and the password, if they were told beforehand.
        self.is_implicit = False
        self.late: StompError | None = None  # The answer to a failed login, at `due_ms`.
        self.due_ms = 0
        self.failures = 0

    def on_connect(self, frame: Frame) -> bool:
        """Log the client in. False: the answer has to wait. Raises `StompError`."""
        connection = self.connection
        version = negotiated(frame)
        if version == V10:
            frame = Frame(frame.command, {name: value.lstrip(" ") for name, value in frame.headers.items()})
        send_ms, receive_ms = heart_beats(frame.headers.get("heart-beat", "0,0"))
        vhost = frame.headers.get("host", connection.limits.default_vhost)
        if not self._authenticate(frame):
            return False
        self._enter(vhost, version, send_ms, receive_ms)
        return True

    def on_first(self) -> bool:
        """Log a client in that sends another frame first."""
        self.is_implicit = True
        return self.on_connect(Frame("CONNECT"))

    def _authenticate(self, frame: Frame) -> bool:
        connection, limits = self.connection, self.connection.limits
        broker, host = connection.broker, connection.peer.host
        user, password = self._credentials(frame)
        self.auth_login = user
        broker.totals.stomp_logins += 1
        error = StompError("Bad CONNECT", f"Access refused for user '{user}'\n")
        if broker.logins.is_barred(host, user, broker.now_ms):
            reason: str | None = f"user '{user}' - too many failed logins from {host}"
        else:
            reason = broker.refuse_login(user, password)
        if reason is None and user in limits.loopback_users and not connection.peer.is_loopback:
            reason = f"user '{user}' can only connect via localhost"
            error = StompError("Bad CONNECT", "non-loopback access denied")
        if reason is None:
            return True
        broker.totals.stomp_logins_refused += 1
        self.failures += 1
        error.ends = self.failures >= FAILURES_MAX
        text = f"STOMP login failed for {connection.describe()}: {reason}"
        broker.node.note("connection", "error", visible(text))
        late_ms = broker.logins.failed(host, user, broker.now_ms)
        if not late_ms:
            raise error
        self.late, self.due_ms = error, broker.now_ms + late_ms
        connection.hold()
        return False

    def _credentials(self, frame: Frame) -> tuple[str, str | None]:
        """The user and the password; None if a certificate has told the user."""
        connection, limits = self.connection, self.connection.limits
        if self.given is not None:
            self.mechanism = "PLAIN"
            return self.given
        login, certificate = frame.headers.get("login"), connection.peer.certificate
        if login is None and limits.cert_login and certificate is not None:
            self.mechanism = "EXTERNAL"
            return certificate, None
        self.mechanism = "PLAIN"
        user = limits.default_user if login is None else login
        if user is None:
            raise StompError("Bad CONNECT", "Missing login or passcode header(s)")
        return user, frame.headers.get("passcode", limits.default_password)

    def _enter(self, vhost: str, version: str, send_ms: int, receive_ms: int) -> None:
        connection, broker = self.connection, self.connection.broker
        refused = broker.refuse_entry(self.auth_login, vhost)
        if refused is not None:
            text = f"STOMP login failed for {connection.describe()}: {refused}"
            broker.node.note("connection", "error", visible(text))
            denied = f"Virtual host '{vhost}' access denied"
            raise StompError("Bad CONNECT", refused if "limit" in refused and vhost in broker.vhosts else denied)
        connection.log_in(self.auth_login, broker.vhosts[vhost])
        login = broker.enter(connection, connection.user, vhost, connection.number)
        broker.on_connection_opened(connection, login)
        session_id = broker.unique_name("session-")
        connection.on_entered_session(Session(login, connection, connection.peer), session_id, version)
        connection.beat(send_ms, receive_ms)
        if not self.is_implicit:
            connection.output.send(self._connected(send_ms, receive_ms))
        connection.on_running()
        text = f"accepting STOMP connection {connection.peer} -> user '{connection.user}', vhost '{vhost}'"
        broker.node.note("connection", "info", visible(text))

    def _connected(self, send_ms: int, receive_ms: int) -> bytes:
        connection = self.connection
        server = [] if connection.limits.hides_server else [("server", f"{COMPATIBLE_PRODUCT}/{COMPATIBLE_VERSION}")]
        headers = [
            *server,
            ("session", connection.session_id),
            ("heart-beat", f"{send_ms},{receive_ms}"),
            ("version", connection.version),
        ]
        return encode("CONNECTED", headers, escapes=False)

    def on_tick(self, now_ms: int) -> None:
        late = self.late
        if late is not None and now_ms >= self.due_ms:
            self.late = None
            if late.ends:
                self.connection.fail_with(late)
            else:
                self.connection.tell(late)
            self.connection.release()


def negotiated(frame: Frame) -> str:
    """The highest version that both know. Raises `StompError`."""
    offered = [one.strip() for one in frame.headers.get("accept-version", V10).split(",")]
    common = [version for version in VERSIONS if version in offered]
    if not common:
        raise StompError("Version mismatch", f"Supported versions are {SUPPORTED}\n")
    return common[-1]


def heart_beats(text: str) -> tuple[int, int]:
    """How often the server sends, and the client, in milliseconds; 0: not at all. As with RabbitMQ, in whole seconds.
    Raises `StompError`."""
    found = _HEART_BEAT.match(text)
    if found is None:
        raise StompError("Processing error", f"The header 'heart-beat' cannot be '{text[:100]}'\n")
    receive_ms, send_ms = (_whole_seconds(int(one)) for one in found.groups())
    return send_ms, receive_ms


def _whole_seconds(wanted_ms: int) -> int:
    return 0 if wanted_ms <= 0 else max(wanted_ms // 1_000, 1) * 1_000
