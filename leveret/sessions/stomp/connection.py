"""A STOMP connection as a machine: bytes from the client in, bytes for the client out, queues touched between.

    CONNECT or STOMP ─▶ running ─▶ (DISCONNECT) leaving ─▶ closed        (see `Life`)

The machine does no I/O. `receive` takes whatever arrived and puts answers into `output`, which the shell writes once a
turn. Time comes in with `on_tick`. It has five parts: `login` turns a CONNECT into a session, `publisher` takes SEND
frames, `transactions` keeps frames for their COMMIT, `subscriptions` takes SUBSCRIBE and UNSUBSCRIBE, `deliveries`
sends messages and takes ACK and NACK.

Where something must wait (a queue to be declared) the connection is *held*: it reads no further, keeps the rest, and
goes on when `release` is called. So frames are processed in their order. The frames of a transaction that is committed
are carried out before what came behind the COMMIT.

Whatever the client does wrong raises a `StompError`, and the client is told with an ERROR frame. As with RabbitMQ, the
connection goes on after most of them. It ends where the broker refuses something, and when bytes are no frame.

What a stranger may cost: until it has logged in, its frames have other limits. Either are refused before they are
gathered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from leveret.base.visible_text import visible
from leveret.broker.fanout import COPIES_MAX
from leveret.broker.session.checks import Refused
from leveret.metadata.model.refusals import Refusal
from leveret.protocol.errors import ReplyCode
from leveret.protocol.stomp.decoder import Inbox, Incomplete, decode, skip, span_at
from leveret.protocol.stomp.encoder import END, HEART_BEAT, head_of, length_line
from leveret.protocol.stomp.escaping import escaped
from leveret.protocol.stomp.frames import V10, Malformed
from leveret.sessions.output import Output
from leveret.sessions.stomp.deliveries import Deliveries
from leveret.sessions.stomp.errors import StompError, told
from leveret.sessions.stomp.login import StompLogin
from leveret.sessions.stomp.publisher import Publisher
from leveret.sessions.stomp.subscriptions import Subscriptions
from leveret.sessions.stomp.transactions import Transactions
from leveret.sessions.without_channels import ConnectionWithoutChannels

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.session.session import Session
    from leveret.broker.session.topology import Topology
    from leveret.broker.vhost import Vhost
    from leveret.protocol.stomp.frames import Frame, FrameLimits
    from leveret.sessions.peer import Peer
    from leveret.sessions.stomp.limits import StompLimits

TICK_MS: Final = 1_000
EFFORT_MAX: Final = 256  # Frames that are not taken in by their bytes alone, before others are served.
EFFORT_BYTES: Final = 256  # So many bytes of headers count as one more.
RESTS_MAX: Final = 4  # So often all connections together may go on in one turn.
TOLD_MAX: Final = 10  # ERROR frames of one connection that are logged.
_IN_TRANSACTIONS: Final = frozenset(("SEND", "ACK", "NACK"))


class Life(Enum):
    """The state of a connection. It goes on from each to a later one, and never back."""

    GREETING = "the client has to send CONNECT"
    RUNNING = "the client sends and subscribes"
    LEAVING = "the client has sent DISCONNECT; its publishes are not all safe yet"
    CLOSED = "nothing further is read or made; the shell ends the socket once all output is written"


_ORDER: Final = tuple(Life)


class Connection(ConnectionWithoutChannels):
    """One client."""

    __slots__ = (
        "actions", "committed", "deliveries", "effort", "escapes", "frame_limits", "inbox", "life", "limits",
        "publisher", "receive_ms", "send_ms", "sent_ms", "session_id", "subscriptions", "told", "transactions",
        "trims", "version",
    )  # fmt: skip

    def __init__(self, broker: Broker, peer: Peer, limits: StompLimits) -> None:
        super().__init__(broker, peer)
        self.limits = limits
        self.life = Life.GREETING
        self.version = V10
        self.escapes = True  # The client's version has escapes. Before CONNECT, what is refused has them anyway.
        self.trims = False  # It has none, and values may begin with spaces.
        self.session_id = ""
        self.frame_limits: FrameLimits = limits.before_login
        self.output: Output = Output(broker)
        self.inbox = Inbox()
        self.told = 0  # ERROR frames.
        self.effort = 0  # That the frames of this read have cost.
        self.actions: deque[Frame] = deque()  # Of a transaction that is being committed.
        self.committed: tuple[Frame, int] | None = None  # Its COMMIT, and the number of the last publish before it.
        self.sent_ms = broker.now_ms
        self.send_ms = self.receive_ms = 0  # Of heart-beats; 0: there are none.
        self.login_part: StompLogin = StompLogin(self)
        self.publisher: Publisher = Publisher(self)
        self.transactions: Transactions = Transactions(self)
        self.subscriptions: Subscriptions = Subscriptions(self)
        self.deliveries: Deliveries = Deliveries(self)

    def _become(self, life: Life) -> None:
        assert _ORDER.index(life) > _ORDER.index(self.life), (self.life, life)
        self.life = life
        self.closed = life is Life.CLOSED

    # -- What lists show -----------------------------------------------------------------------------------------

    @property
    def protocol(self) -> str:
        return f"{'Web STOMP' if self.peer.web else 'STOMP'} {self.version}"

    @property
    def variables(self) -> dict[str, str]:
        return {}

    @property
    def client_properties(self) -> dict[str, object]:
        return {"product": "STOMP client"}

    @property
    def heartbeat_s(self) -> int:
        return self.receive_ms // 1_000

    @property
    def was_asked_to_close(self) -> bool:
        """False: a client waits for the receipt of its DISCONNECT at most, so the socket is closed at once."""
        return False

    @property
    def rest(self) -> bytes:
        return bytes(self.inbox.kept)

    def log_in(self, user: str, vhost: Vhost) -> None:
        self.user, self.vhost = user, vhost

    def describe(self) -> str:
        return f"{self.peer} ({self.user})" if self.user else str(self.peer)

    # -- Input ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes from the client."""
        self.received_since_tick = True
        self.received_bytes += len(data)
        self.received_count += 1
        if self.closed:
            return
        if self.held:
            self.inbox.add(data)
            return
        data = self.inbox.take(data)
        if data:
            self._process(data)
            if self.held:
                self._go_on()

    def _go_on(self) -> None:
        """Process what came meanwhile, if nothing holds the connection any longer."""
        while not self.closed:
            self.held = self.waits > 0 or self.blocked or self.spreads
            if self.held or not (self.actions or self.committed or self.inbox.kept):
                break
            self._process(self.inbox.all())
            if not self.held:
                break
        if not self.held and not self.closed and self.on_released is not None:
            self.on_released()

    def _process(self, data: bytes) -> None:
        self.busy = True
        at, incomplete = 0, None
        try:
            at, incomplete = self._take_in(data)
            self._hand_on()
        except Malformed as error:
            self._finish_with(StompError("Malformed frame", f"{error}\n", ends=True))
        except StompError as error:  # One that ends the connection: see `attempt`.
            self._finish_with(error)
        except Refused as refused:
            self._finish_with(told(refused.refusal))
        finally:
            self.busy = False
        if self.closed:
            self.inbox.keep(b"")
        elif incomplete is not None:
            self.inbox.keep_begun(data[at:], incomplete, self.frame_limits)
        else:
            self.inbox.keep(data[at:])
        self.broker.writers[self.output] = None

    def _finish_with(self, error: StompError) -> None:
        """Tell the error that ends the connection, behind what came before it."""
        if self.closed:
            return
        try:
            self._hand_on()
        except Refused as refused:  # What came before it was no good, either.
            error = told(refused.refusal)
        self.fail_with(error)

    def _hand_on(self) -> None:
        """What was gathered goes to the queues."""
        self.publisher.submit()
        if self.deliveries.acked:
            self.deliveries.settle()

    def _take_in(self, data: bytes) -> tuple[int, Incomplete | None]:
        """Process whole frames; return where the first one begins that is incomplete, or has to wait."""
        self.publisher.check_routes()
        self._carry_on()
        at, size, self.effort = 0, len(data), 0
        while not self.held and not self.closed:
            if self.effort > EFFORT_MAX and at < size:
                self._rest()
                break
            if at < size and data[at] <= 13:
                at = skip(data, at)
            if at >= size:
                break
            if self.life is Life.RUNNING:
                if data.startswith(b"SEND\n", at):
                    if self.broker.alarm is not None:
                        self._block()
                        break
                    end = self._on_send(data, at)
                    if isinstance(end, Incomplete):
                        return at, end
                    at = end
                    continue
                if data.startswith(b"ACK\n", at):
                    self.publisher.submit()
                    end = self.deliveries.on_acks(data, at)
                    if end > at:
                        at = end
                        continue
            span = span_at(data, at, self.frame_limits)
            if isinstance(span, Incomplete):
                return at, span
            frame = decode(data, span, self.frame_limits, self.escapes, self.trims)
            if frame.command == "SEND" and self.life is Life.RUNNING and self.broker.alarm is not None:
                self._block()  # Its lines end otherwise.
                break
            self._hand_on()
            self.spend(span.block - span.start)
            at = span.last + 1
            if not self._is_let_in(frame):
                continue
            self.on_frame(frame)
        return at, None

    def _on_send(self, data: bytes, at: int) -> int | Incomplete:
        if self.deliveries.acked:
            self.deliveries.settle()
        return self.publisher.on_send(data, at)

    # -- Frames --------------------------------------------------------------------------------------------------

    def _is_let_in(self, frame: Frame) -> bool:
        """The client has logged in, so that a frame of its may be processed. Otherwise this one has been."""
        if self.life is not Life.GREETING:
            return True
        if frame.command in ("CONNECT", "STOMP"):
            self.attempt(lambda: self._log_in(frame))
            return False
        if not self.limits.implicit_connect:
            self.tell(StompError("Illegal command", "You must log in using CONNECT first"))
            return False
        is_in = False

        def log_in() -> None:
            nonlocal is_in
            is_in = self.login_part.on_first()

        self.attempt(log_in)
        if not is_in and not self.closed and self.login_part.late is None:
            self.fail_with(StompError("Illegal command", "You must log in using CONNECT first", ends=True))
        return is_in

    def _log_in(self, frame: Frame) -> None:
        self.login_part.on_connect(frame)

    def on_frame(self, frame: Frame) -> None:
        """A frame of a client that has logged in. Raises `StompError` if it ends the connection, and `Refused`."""
        self.attempt(lambda: self._dispatch(frame))

    def attempt(self, action: Callable[[], None]) -> None:
        """Do what a client asks for; tell it if it was wrong."""
        try:
            action()
        except StompError as error:
            if error.ends:
                self.fail_with(error)
            else:
                self.tell(error)
        except Refused as refused:
            self.fail_with(told(refused.refusal))

    def _dispatch(self, frame: Frame) -> None:
        command = frame.command
        if command in _IN_TRANSACTIONS:
            if "transaction" in frame.headers:
                self._keep(frame)
            else:
                self._act(frame, False)
                if command != "SEND":
                    self.send_receipt(frame)
        elif command == "SUBSCRIBE":
            self.subscriptions.on_subscribe(frame)
        elif command == "UNSUBSCRIBE":
            self.subscriptions.on_unsubscribe(frame)
        elif command in ("BEGIN", "COMMIT", "ABORT"):
            self.transactions.on_frame(frame)
        elif command == "DISCONNECT":
            self._on_disconnect(frame)
        elif command in ("CONNECT", "STOMP"):  # RabbitMQ cuts the connection off without a word.
            raise StompError("Illegal command", "You are logged in already\n", ends=True)
        else:
            raise StompError("Bad command", f'Could not interpret command "{command}"\n')

    def _keep(self, frame: Frame) -> None:
        """A frame of a transaction. One that is no good is refused now."""
        if frame.command == "SEND":
            self.publisher.check(frame)
        else:
            self.deliveries.check(frame)
        self.transactions.keep(frame)
        if frame.command != "SEND":
            self.send_receipt(frame)

    def _act(self, frame: Frame, is_confirmed: bool) -> None:
        if frame.command == "SEND":
            self.publisher.on_frame(frame, is_confirmed)
        else:
            self.deliveries.on_frame(frame)

    def carry_out(self, actions: list[Frame], commit: Frame) -> None:
        """Commit a transaction: do all that is in it, before anything that came behind."""
        self.actions.extend(actions)
        self.committed = commit, self.publisher.published_number
        self._carry_on()

    def _carry_on(self) -> None:
        """Go on with what a transaction is to do."""
        while self.actions and not self.held and not self.closed:
            frame = self.actions.popleft()
            self.attempt(lambda frame=frame: self._act(frame, True))  # type: ignore[misc]
        if self.committed is not None and not self.actions and not self.held and not self.closed:
            commit, since = self.committed
            self.committed = None
            self.publisher.on_all_safe(since, lambda is_safe: self._on_committed(commit, is_safe))

    def _on_committed(self, commit: Frame, is_safe: bool) -> None:
        """All that a transaction has sent is safe, or a part of it was refused: then an ERROR has told so."""
        if is_safe:
            self.send_receipt(commit)

    def _on_disconnect(self, frame: Frame) -> None:
        """The client goes when all of its publishes are safe, or refused: only then it is told so."""
        self._become(Life.LEAVING)
        self.hold()

        def on_all_safe(is_safe: bool) -> None:
            self.send_receipt(frame)
            self._shut("closed by the client")

        self.publisher.on_all_safe(0, on_all_safe)

    # -- Alarms --------------------------------------------------------------------------------------------------

    def _block(self) -> None:
        """It sends during an alarm: this message, and all behind it, waits for the end of the alarm."""
        self.blocked = self.held = self.has_published = True

    def spend(self, header_bytes: int) -> None:
        """A frame is decoded."""
        self.effort += 1 + header_bytes // EFFORT_BYTES

    def _rest(self) -> None:
        """One read can have 40,000 small frames: others are served before the rest of them."""
        self.broker.fanout.left -= COPIES_MAX // RESTS_MAX
        self.rest_from_spreading()

    # -- What the broker says ------------------------------------------------------------------------------------

    def close(self, code: int, text: str) -> None:
        """The broker ends the connection: an operator wants it, its user or its vhost is deleted."""
        self.fail_with(told(Refusal(ReplyCode(code), text)))

    def fail(self, session: Session, refusal: Refusal) -> None:
        """The client has kept messages for too long."""
        self.fail_with(told(refusal))

    @property
    def topology(self) -> Topology:
        assert self.session is not None
        return self.session.topology

    # -- Output and the end --------------------------------------------------------------------------------------

    def send_receipt(self, frame: Frame) -> None:
        """Send the RECEIPT that a frame asks for, if it does."""
        receipt = frame.headers.get("receipt")
        if receipt is not None:
            text = escaped(receipt, self.escapes).encode("utf-8", "surrogateescape")
            self.output.send(b"RECEIPT\nreceipt-id:%b\n\n\0\n" % text)

    def tell(self, error: StompError, line: bytes = b"") -> None:
        """Send an ERROR frame. `line`: a further header as it is written."""
        body = error.detail.encode("utf-8", "surrogateescape")
        head = head_of("ERROR", error.headers(), self.escapes)
        self.output.send(b"".join((head, line, length_line(len(body)), b"\n", body, END)))
        self.told += 1
        # Nobody is to fill the log; what is to be known of strangers, `login` tells.
        if self.told <= TOLD_MAX and self.life is not Life.GREETING:
            text = f"STOMP error frame sent to {self.describe()}: {error.message}: {error.detail.strip()}"
            self.broker.node.note("connection", "error", visible(text))

    def on_entered_session(self, session: Session, session_id: str, version: str) -> None:
        """The client has logged in, and may send larger frames."""
        self.session, self.session_id, self.version = session, session_id, version
        self.escapes, self.trims = version != V10, version == V10
        self.frame_limits = self.limits.after_login
        self.publisher.begin(session)
        self.deliveries.begin(session)

    def beat(self, send_ms: int, receive_ms: int) -> None:
        """Heart-beats are agreed on; 0: none."""
        self.send_ms, self.receive_ms = send_ms, receive_ms

    def on_running(self) -> None:
        self._become(Life.RUNNING)
        if self.on_entered is not None:
            self.on_entered()
            self.on_entered = None  # Nobody enters twice.

    def fail_with(self, error: StompError) -> None:
        """The server ends the connection, and says why."""
        if not self.closed:
            self.tell(error)
            self._shut(f"{error.message}: {error.detail.strip()}")

    def on_socket_lost(self) -> None:
        """The peer is gone without a word, or the shell gave up on it."""
        if not self.closed:
            self._shut(self.close_reason or "client unexpectedly closed TCP connection")

    def _shut(self, reason: str) -> None:
        self._become(Life.CLOSED)
        self.close_reason = reason
        self.inbox.keep(b"")
        self.actions.clear()
        self.committed = None
        self.publisher.forget()
        self.transactions.forget()
        self.subscriptions.forget()
        if self.session is not None:
            self.session.close()
        self.broker.on_connection_closed(self)
        self.broker.node.note("connection", "info", visible(f"closing STOMP connection {self.describe()}: {reason}"))
        self.broker.writers[self.output] = None

    def on_tick(self, now_ms: int, listening: bool = True) -> bool:
        """Once a second. Sends a heart-beat if nothing else was sent for long. False: the client has sent nothing for
        twice as long as it promised."""
        self.login_part.on_tick(now_ms)
        if self.output.was_used():
            self.sent_ms = self.ticked_ms  # Sometime since then.
        if self.send_ms and self.life is Life.RUNNING and now_ms - self.sent_ms >= self.send_ms - TICK_MS:
            self.output.send(HEART_BEAT)
        if self.received_since_tick or self.held or not listening:
            self.received_ms, self.received_since_tick = now_ms, False
        else:
            # If the node itself was held up, what the client sent meanwhile has yet to be read: one tick counts for
            # one interval at most, so that such a pause does not cut all clients at once.
            self.received_ms += max(now_ms - self.ticked_ms - self.receive_ms, 0)
        self.ticked_ms = now_ms
        if not self.receive_ms or self.life is not Life.RUNNING:
            return True
        return now_ms - self.received_ms <= 2 * self.receive_ms
