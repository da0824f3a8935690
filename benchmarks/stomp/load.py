"""A publisher and a subscriber of STOMP that cost little, in one thread around one selector.

Frames are made in advance. What comes back is counted by the NUL at the end of each frame: bodies have none.
"""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from benchmarks.ruler.calls import HOST
from leveret.client.amqp import BrokerError

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
SELECT_S: Final = 0.02
FINISH_S: Final = 60.0
RECEIVE_BYTES: Final = 1 << 18
ACK_ID: Final = re.compile(rb"\nack:([^\n]+)\n")


def frame(command: str, body: bytes = b"", **headers: str) -> bytes:
    """Returns a frame of STOMP 1.2. In the names of headers, underscores stand for hyphens."""
    lines = "".join(f"{name.replace('_', '-')}:{value}\n" for name, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0\n"


class Client:
    """A connection that has logged in."""

    def __init__(self, port: int, timeout_s: float = 60.0) -> None:
        self.socket = socket.create_connection((HOST, port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = b""
        self.ask(frame("CONNECT", accept_version="1.2", host="/", login="guest", passcode="guest"), b"CONNECTED\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def ask(self, data: bytes, answer: bytes) -> None:
        """Sends a frame, and waits for one that begins with `answer`."""
        self.socket.sendall(data)
        while b"\0" not in self.received:
            more = self.socket.recv(RECEIVE_BYTES)
            if not more:
                raise BrokerError("the broker closed the connection")
            self.received += more
        got, _, self.received = self.received.partition(b"\0")
        self.received = self.received.lstrip(b"\n")
        if not got.lstrip(b"\n").startswith(answer):
            raise BrokerError(f"not {answer!r} but {got!r}")


class Endpoint:
    """Reads and writes the socket of a client when the selector says so."""

    def __init__(self, client: Client) -> None:
        self.socket = client.socket
        self.rest = client.received
        self.unsent = memoryview(b"")

    def receive(self) -> bytes:
        """Returns the whole frames that are there; the beginning of another one is kept."""
        more = self.socket.recv(RECEIVE_BYTES)
        if not more:
            raise BrokerError("the broker closed the connection")
        data = self.rest + more
        end = data.rfind(b"\0") + 1
        self.rest = data[end:]
        if data.startswith(b"ERROR\n") or b"\nERROR\n" in data:
            raise BrokerError(f"the broker sent {data[data.find(b'ERROR') :][:300]!r}")
        return data[:end]

    def send(self, data: bytes) -> None:
        self.unsent = memoryview(bytes(self.unsent) + data) if self.unsent else memoryview(data)
        self.flush()

    def flush(self) -> None:
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            pass  # The selector reports the socket again when it is ready.


class Publisher(Endpoint):
    """Sends blobs of frames, with never more than `window` messages beyond those with a receipt, if they have some."""

    def __init__(self, client: Client, blobs: Sequence[bytes], batch: int, window: int, has_receipts: bool) -> None:
        super().__init__(client)
        self.blobs, self.batch, self.window, self.has_receipts = blobs, batch, window, has_receipts
        self.sent = self.confirmed = 0
        self.is_stopped = False

    def wants_to_write(self) -> bool:
        if self.unsent:
            return True
        waits = self.has_receipts and self.sent - self.confirmed > self.window - self.batch
        return not self.is_stopped and not waits

    def on_readable(self) -> None:
        self.confirmed += self.receive().count(b"\0")

    def on_writable(self) -> None:
        if self.unsent:
            self.flush()
        elif self.wants_to_write():
            self.send(self.blobs[self.sent // self.batch % len(self.blobs)])
            self.sent += self.batch


class Subscriber(Endpoint):
    """Counts messages, and acknowledges them as its subscription asks for: `auto`, `client` or `client-individual`."""

    def __init__(self, client: Client, mode: str) -> None:
        super().__init__(client)
        self.mode = mode
        self.delivered = 0

    def wants_to_write(self) -> bool:
        return bool(self.unsent)

    def on_readable(self) -> None:
        data = self.receive()
        count = data.count(b"\0")
        self.delivered += count
        if not count or self.mode == "auto":
            return
        ids = ACK_ID.findall(data)
        if len(ids) != count:
            raise BrokerError(f"{count} messages have {len(ids)} ids")
        self.send(b"".join([b"ACK\nid:%b\n\n\0" % one for one in (ids[-1:] if self.mode == "client" else ids)]))

    def on_writable(self) -> None:
        self.flush()


@dataclass
class Measured:
    """The result of `drive`. `errors` has what no run may have."""

    seconds: float
    sent: int
    delivered: int
    client_cpu: float  # Of one processor; near 1 the clients were measured, not the broker.
    errors: list[str] = field(default_factory=list)

    @property
    def per_s(self) -> int:
        return round(self.delivered / self.seconds)


def drive(publisher: Publisher, subscriber: Subscriber, seconds: float) -> Measured:
    """Publishes for `seconds`, then waits until everything has its receipt and is delivered."""
    errors: list[str] = []
    with selectors.DefaultSelector() as selector:
        for endpoint in (publisher, subscriber):
            endpoint.socket.setblocking(False)
            selector.register(endpoint.socket, READ, endpoint)
        began, cpu = time.perf_counter(), time.process_time()
        now = began
        try:
            while now < began + seconds + FINISH_S:
                for endpoint in (publisher, subscriber):
                    selector.modify(endpoint.socket, READ | (WRITE if endpoint.wants_to_write() else 0), endpoint)
                for key, events in selector.select(SELECT_S):
                    if events & READ:
                        key.data.on_readable()
                    if events & WRITE:
                        key.data.on_writable()
                now = time.perf_counter()
                publisher.is_stopped = now - began >= seconds
                is_confirmed = publisher.confirmed >= publisher.sent or not publisher.has_receipts
                if publisher.is_stopped and not publisher.unsent and is_confirmed:
                    if subscriber.delivered >= publisher.sent:
                        break
        except (OSError, BrokerError) as error:
            errors.append(str(error))
        took = time.perf_counter() - began
        cpu = time.process_time() - cpu
    if publisher.has_receipts and publisher.confirmed != publisher.sent:
        errors.append(f"{publisher.confirmed} receipts of {publisher.sent}")
    if subscriber.delivered != publisher.sent:
        errors.append(f"{subscriber.delivered} delivered of {publisher.sent}")
    return Measured(took, publisher.sent, subscriber.delivered, cpu / took, errors)
