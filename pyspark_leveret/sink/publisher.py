"""Publishes messages over AMQP 0-9-1 with confirms, and sends unconfirmed ones again.

Messages are numbered from 1 in the order of `send`. At its login the connection tells a Leveret broker its name as a
*producer*, and the number after which it continues. Every queue then takes each number once, however often it is sent:
over connections, nodes, attempts of a task and restarts of a query. A broker that does not know producers (RabbitMQ)
takes a message that is sent again as a new one: at least once.

Unconfirmed messages are kept. If the connection is lost, or the broker nacks a message, which a queue does that is full
or has just lost its master, a new connection continues after the last number up to which all are confirmed. So each
message keeps its number. The publisher gives up after `PATIENCE_S` without a new confirm.

Some refusals would repeat for ever, and end publishing at once: a wrong password, no such exchange, no permission, and
messages that reach no queue (mandatory, returned), which would otherwise be lost silently.

The socket is written and read in turns: a broker that cannot send its confirms stops reading, and would never take the
rest of a large write.
"""

from __future__ import annotations

import select
import ssl
import time
from collections import deque
from itertools import cycle
from typing import Final, NamedTuple

from leveret.client import amqp
from leveret.client.address import Address
from leveret.client.amqp import BrokerError
from leveret.client.connection import CALL_TIMEOUT_S, RECEIVE_BYTES, Connection
from leveret.client.tls import default_context
from leveret.protocol.tables import BadTable, decode_table, to_python
from pyspark_leveret.connect import LeveretError, Lost, login_error
from pyspark_leveret.options import Access

WINDOW: Final = 20_000  # Unconfirmed messages at most; likewise bytes.
WINDOW_BYTES: Final = 16 << 20
PATIENCE_S: Final = 60.0
FIRST_PATIENCE_S: Final = 2.0  # For the first connection of a job: probably the address is wrong.
FIRST_LOGIN_S: Final = 5.0  # Likewise, for a server that takes the connection and says nothing.
PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 2.0
WILL_PASS: Final = (320, 541)  # Reply codes after which another connection may work: the node stops, internal error.


class Confirmed:
    """Counts the confirmed messages of a connection without gaps, from the first one on."""

    def __init__(self) -> None:
        self.through = 0
        self._beyond: set[int] = set()

    def on_ack(self, tag: int, multiple: bool) -> None:
        if multiple:
            self.through = max(self.through, tag)
        elif tag > self.through:
            self._beyond.add(tag)
        while self.through + 1 in self._beyond:
            self.through += 1
            self._beyond.discard(self.through)
        if multiple:
            self._beyond = {one for one in self._beyond if one > self.through}


class Chunk(NamedTuple):
    """Messages that are sent together, and again together."""

    before: int  # The number before that of its first message.
    last: int
    frames: bytes


class Publisher:
    """Publishes as `producer`. `base` is the producer's number before that of the first message here. With `was_here`
    the job has reached the broker before, and the publisher waits for one that is down."""

    def __init__(self, access: Access, producer: str, base: int, was_here: bool = False) -> None:
        self.access = access
        self.producer = producer
        self.base = base
        self.confirmed = 0  # All messages up to this number are confirmed.
        self.knows_producers = False
        self.frame_max = amqp.FRAME_MAX
        self._kept: deque[Chunk] = deque()  # Chunks with unconfirmed messages.
        self._kept_bytes = 0
        self._last = 0
        self._gives_up_at = time.monotonic() + (PATIENCE_S if was_here else FIRST_PATIENCE_S)
        self._login_s = CALL_TIMEOUT_S if was_here else FIRST_LOGIN_S
        self._pause_s = 0.0
        self._trouble = ""  # The last error since the last confirm.
        self._addresses = cycle(access.amqp_addresses())
        self._tls = access.tls()
        self._start()
        self._gives_up_at = time.monotonic() + PATIENCE_S
        self._login_s = CALL_TIMEOUT_S

    # -- Sending -------------------------------------------------------------------------------------------------

    def send(self, frames: bytes, count: int) -> None:
        """Sends the frames of `count` messages. Returns when the window has room for more. Raises LeveretError."""
        if self._last == self.confirmed:
            self._gives_up_at = time.monotonic() + PATIENCE_S  # Nothing was waiting for a confirm.
        self._kept.append(Chunk(self._last, self._last + count, frames))
        self._kept_bytes += len(frames)
        self._last += count
        self._unsent.append(memoryview(frames))
        self._work(WINDOW, WINDOW_BYTES)

    def finish(self) -> None:
        """Waits until all messages are confirmed. Raises LeveretError."""
        self._work(0, 0)

    def close(self) -> None:
        self._connection.close()

    def _work(self, window: int, window_bytes: int) -> None:
        """Sends and receives once without waiting, then waits until the unconfirmed messages fit into the window."""
        waits = False
        while not waits or self._last - self.confirmed > window or self._kept_bytes > window_bytes:
            try:
                self._exchange(waits)
            except (OSError, Lost) as error:
                self._connection.close()
                self._trouble = str(error) or type(error).__name__
                self._start()
            waits = True

    def _exchange(self, waits: bool) -> None:
        """Writes as much as the socket takes, and reads what has come."""
        sock = self._connection.socket
        held = sock.pending() if isinstance(sock, ssl.SSLSocket) else 0  # Bytes that `select` does not see.
        left_s = max(self._gives_up_at - time.monotonic(), 0.0) if waits and not held else 0.0
        readable, writable, _ = select.select([sock], [sock] if self._unsent else [], [], left_s)
        if waits and not (readable or writable or held):
            raise Lost(self._trouble or f"nothing was confirmed for {PATIENCE_S:.0f} s")
        try:
            if readable or held:
                self._read()
            if writable:
                self._write()
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass  # `select` reports the socket again when it is ready.

    def _write(self) -> None:
        unsent = self._unsent
        while unsent:
            sent = self._connection.socket.send(unsent[0])
            if sent < len(unsent[0]):
                unsent[0] = unsent[0][sent:]
                return
            unsent.popleft()

    def _read(self) -> None:
        data = self._connection.socket.recv(RECEIVE_BYTES)
        if not data:
            raise Lost("the broker closed the connection")
        received = self._connection.received
        received += data
        at = 0
        while len(received) - at >= amqp.OVERHEAD:
            kind, _, length = amqp.HEAD.unpack_from(received, at)
            end = at + amqp.HEAD.size + length
            if end >= len(received):
                break
            if kind == amqp.METHOD:  # Others are heartbeats and contents of returned messages.
                self._on_method(bytes(received[at + amqp.HEAD.size : end]))
            at = end + 1
        del received[:at]
        self._forget()

    def _on_method(self, payload: bytes) -> None:
        name, arguments = amqp.METHOD_ID.unpack_from(payload), payload[amqp.METHOD_ID.size :]
        if name == amqp.BASIC_ACK:
            tag, flags = amqp.CONFIRM.unpack_from(arguments)
            self._acks.on_ack(tag, bool(flags & 1))
        elif name == amqp.BASIC_NACK:
            self._forget()
            raise Lost("the broker refuses messages (nack): a queue is full, or has no master at the moment")
        elif name == amqp.BASIC_RETURN:
            raise LeveretError(_returned_text(arguments))
        elif name not in (amqp.CONNECTION_BLOCKED, amqp.CONNECTION_UNBLOCKED):
            text = amqp.closing_text(name, arguments)
            if int.from_bytes(arguments[:2], "big") in WILL_PASS:
                raise Lost(text)
            raise LeveretError(f"cannot publish: {text}")

    def _forget(self) -> None:
        """Drops confirmed chunks."""
        confirmed = self._began_behind + self._acks.through
        if confirmed > self.confirmed:
            self.confirmed = confirmed
            self._gives_up_at = time.monotonic() + PATIENCE_S
            self._pause_s = PAUSE_S
            self._trouble = ""
            while self._kept and self._kept[0].last <= confirmed:
                self._kept_bytes -= len(self._kept.popleft().frames)

    # -- Connections ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Connects to any of the servers, and queues all kept chunks to be sent again. Chunks are sent whole: a broker
        that knows producers skips the confirmed messages of the first chunk."""
        while True:
            if self._trouble and time.monotonic() >= self._gives_up_at:
                raise LeveretError(f"cannot publish: {self._trouble}")
            time.sleep(self._pause_s)
            self._pause_s = min(max(2 * self._pause_s, PAUSE_S), PAUSE_S_MAX)
            host, port, tls = next(self._addresses)
            address = _address(self.access, host, port)
            try:
                self._connection = self._connect(address, tls)
                break
            except (OSError, Lost) as error:
                self._trouble = _no_answer(address, error)
        if self._kept and self._connection.frame_max < self.frame_max:
            raise LeveretError(f"{address} takes smaller frames than another server; give all the same frame_max")
        self.frame_max = self._connection.frame_max
        self._acks = Confirmed()
        self._unsent = deque(memoryview(chunk.frames) for chunk in self._kept)
        self._connection.socket.setblocking(False)

    def _connect(self, address: Address, tls: bool) -> Connection:
        context = (self._tls or default_context()) if tls else None
        self._began_behind = self._kept[0].before if self._kept else self._last
        said: amqp.Table = {"leveret_producer": self.producer, "leveret_sequence": self.base + self._began_behind}
        try:
            connection = Connection(address, f"spark {self.producer}", said, context, self._login_s)
            self.knows_producers = _knows_producers(connection.server_properties)
            connection.select_confirms()
        except BrokerError as error:
            raise login_error(error, self.access, address) from None
        return connection


def check_login(access: Access) -> None:
    """Logs in at one of the servers and leaves again. Raises LeveretError.

    A batch job does so before its tasks begin: a wrong port or password is told once, in seconds. Tasks would tell it
    each, four times in a cluster, and wait longer from the second time on."""
    gives_up_at = time.monotonic() + FIRST_PATIENCE_S
    tls_context = access.tls()
    for host, port, tls in cycle(access.amqp_addresses()):
        address = _address(access, host, port)
        context = (tls_context or default_context()) if tls else None
        try:
            Connection(address, "spark sink", None, context, FIRST_LOGIN_S).close()
            return
        except BrokerError as error:
            trouble = login_error(error, access, address)
            if isinstance(trouble, LeveretError):
                raise trouble from None
        except OSError as error:
            trouble = error
        if time.monotonic() + PAUSE_S >= gives_up_at:
            raise LeveretError(f"cannot publish: {_no_answer(address, trouble)}")
        time.sleep(PAUSE_S)


def _address(access: Access, host: str, port: int) -> Address:
    return Address(host, port, access.user, access.password, access.vhost)


def _no_answer(address: Address, trouble: Exception) -> str:
    return f"nobody answers at {address} (option 'servers' names AMQP ports): {trouble}"


def _knows_producers(start: bytes) -> bool:
    """Looks for the capability in connection.start: the server's properties follow two bytes of version."""
    try:
        said = to_python(decode_table(start, 2)[0])
    except BadTable as error:
        raise BrokerError(f"the server's properties make no sense: {error}") from None
    capabilities = said.get("capabilities")
    return isinstance(capabilities, dict) and capabilities.get("leveret_producer") is True


def _returned_text(arguments: bytes) -> str:
    code, at, words = int.from_bytes(arguments[:2], "big"), 2, []
    for _ in range(3):
        words.append(arguments[at + 1 : at + 1 + arguments[at]].decode("utf-8", "replace"))
        at += 1 + arguments[at]
    text, exchange, key = words
    return (
        f"a message for exchange '{exchange}' with routing key '{key}' reached no queue ({code} {text}); "
        "bind one, or set option 'mandatory' to false to lose such messages"
    )
