"""An AMQP connection that consumes, and keeps messages until they are acknowledged: a session of `rabbitmq_stream`."""

from __future__ import annotations

import select
import ssl
import time
import uuid
from collections import deque
from itertools import cycle
from typing import Final, NamedTuple

from leveret.client import amqp
from leveret.client.address import Address
from leveret.client.amqp import BrokerError
from leveret.client.connection import RECEIVE_BYTES, Connection
from leveret.client.tls import default_context
from pyspark_leveret.connect import LeveretError, Lost, login_error
from pyspark_leveret.options import SourceOptions

PATIENCE_S: Final = 30.0
PAUSE_S: Final = 0.2
SEND_S: Final = 10.0
_PASSIVE: Final = b"\1"
_HEADER_SIZE_AT: Final = amqp.HEAD.size + 4


class Delivery(NamedTuple):
    place: int
    queue: str
    key: bytes  # Exchange and routing key, as short strings.
    redelivered: bool
    content: bytes  # Header frame and body frames.


class AmqpConsumer:
    """Consumes all subscribed queues over one channel. Call `pump` to receive messages into `kept`."""

    def __init__(self, options: SourceOptions, prefetch: int, bytes_max: int) -> None:
        """Connects and starts to consume. Raises LeveretError."""
        self.options = options
        self.session = uuid.uuid4().hex
        self.bytes_max = bytes_max
        self.kept: deque[Delivery] = deque()  # Messages that are not acknowledged.
        self.held = 0  # Bytes of `kept`.
        self.next = self.acked = 0  # Places. The delivery tag of a message is its place plus 1.
        self.waiting = 0  # Messages in the queues when the consumer started.
        self._begun: tuple[str, bytes, bool] | None = None  # Incomplete message: queue, key, redelivered.
        self._frames: list[bytes] = []
        self._missing = 0  # Bytes of its body that have not come yet.
        self.connection = self._connect()
        try:
            self._consume(prefetch)
        except BrokerError as error:
            self.close()
            raise LeveretError(f"cannot consume from {', '.join(options.queues)}: {error}") from None

    def close(self) -> None:
        self.connection.close()

    def _connect(self) -> Connection:
        access, gives_up_at = self.options.access, time.monotonic() + PATIENCE_S
        for host, port, tls in cycle(access.amqp_addresses()):
            address = Address(host, port, access.user, access.password, access.vhost)
            context = (access.tls() or default_context()) if tls else None
            try:
                return Connection(address, "spark source", None, context)
            except BrokerError as error:
                trouble = login_error(error, access, address)
                if isinstance(trouble, LeveretError):
                    raise trouble from None
            except OSError as error:
                trouble = error
            if time.monotonic() >= gives_up_at:
                raise LeveretError(f"nobody answers at {address} (amqp:// names AMQP ports): {trouble}")
            time.sleep(PAUSE_S)
        raise AssertionError("the options name at least one server")

    def _consume(self, prefetch: int) -> None:
        connection = self.connection
        for queue in self.options.queues:
            answer = connection.call(amqp.QUEUE_DECLARE, b"\0\0" + amqp.short(queue) + _PASSIVE + amqp.table({}))
            self.waiting += int.from_bytes(answer[1 + answer[0] : 5 + answer[0]], "big")
        connection.set_prefetch(prefetch)
        for number, queue in enumerate(self.options.queues):
            connection.consume(queue, str(number), no_ack=False, nowait=True)
        connection.socket.setblocking(False)

    # -- Receiving ----------------------------------------------------------------------------------------------

    def pump(self, wait_s: float) -> None:
        """Receives messages up to the limit of bytes; waits up to `wait_s` for the first. Raises Lost, OSError."""
        sock = self.connection.socket
        while self.held < self.bytes_max:
            hidden = isinstance(sock, ssl.SSLSocket) and sock.pending() > 0
            if not hidden and not select.select([sock], [], [], wait_s)[0]:
                return
            try:
                data = sock.recv(RECEIVE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            if not data:
                raise Lost("the broker closed the connection")
            self.connection.received += data
            self._take_frames()
            wait_s = 0.0

    def _take_frames(self) -> None:
        received = self.connection.received
        at = 0
        while len(received) - at >= amqp.OVERHEAD:
            kind, _, length = amqp.HEAD.unpack_from(received, at)
            end = at + amqp.OVERHEAD + length
            if end > len(received):
                break
            frame = bytes(received[at:end])
            at = end
            if kind == amqp.METHOD:
                self._on_method(frame[amqp.HEAD.size : -1])
            elif kind in (amqp.HEADER, amqp.BODY):
                self._on_content(kind, frame)
        del received[:at]

    def _on_method(self, payload: bytes) -> None:
        name, arguments = amqp.METHOD_ID.unpack_from(payload), payload[amqp.METHOD_ID.size :]
        if name == amqp.BASIC_DELIVER:
            at = 1 + arguments[0]
            queue = self.options.queues[int(arguments[1:at])]
            tag = int.from_bytes(arguments[at : at + 8], "big")
            assert tag == self.next + 1  # Delivery tags of a channel have no gaps.
            self._begun = (queue, arguments[at + 9 :], bool(arguments[at + 8] & 1))
        elif name == amqp.BASIC_CANCEL:
            raise LeveretError("the broker has ended a consumer: was a queue deleted?")
        elif name not in (amqp.CONNECTION_BLOCKED, amqp.CONNECTION_UNBLOCKED):
            raise Lost(amqp.closing_text(name, arguments))

    def _on_content(self, kind: int, frame: bytes) -> None:
        self._frames.append(frame)
        if kind == amqp.HEADER:
            self._missing = int.from_bytes(frame[_HEADER_SIZE_AT : _HEADER_SIZE_AT + 8], "big")
        else:
            self._missing -= len(frame) - amqp.OVERHEAD
        if self._missing:
            return
        assert self._begun is not None
        queue, key, redelivered = self._begun
        content = b"".join(self._frames)
        self.kept.append(Delivery(self.next, queue, key, redelivered, content))
        self.held += len(content)
        self.next += 1
        self._begun, self._frames = None, []

    # -- Settling ------------------------------------------------------------------------------------------------

    def acknowledge(self, after: int) -> None:
        """Acknowledges all messages at places below `after`. Raises OSError."""
        if after <= self.acked:
            return
        sock = self.connection.socket
        sock.settimeout(SEND_S)
        sock.sendall(amqp.ack_through(after))
        sock.setblocking(False)
        self.acked = after
        while self.kept and self.kept[0].place < after:
            self.held -= len(self.kept.popleft().content)
