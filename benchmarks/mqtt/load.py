"""Publishers and subscribers that cost little, all in one thread around one selector, as in `ruler.load`.

A broker may drop messages of MQTT, and some do while they are under load: Mosquitto has a thousand waiting for a client
at most, of any QoS, and RabbitMQ drops QoS 0 for a client that is slow. So nothing waits for all messages to come: a
run is over when everything came, or nothing has come for `STILL_S`, or `FINISH_S` after the last publish. The rate is
that of the messages that came, until the last of them; what did not come is told beside it.
"""

from __future__ import annotations

import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.mqtt import packets
from benchmarks.mqtt.packets import ACK_BYTES, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Client
from leveret.client.amqp import BrokerError

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
SELECT_S, CHECK_S = 0.02, 0.005
STILL_S: Final = 2.0
FINISH_S: Final = 30.0
RECEIVE_BYTES: Final = 1 << 18
SCRATCH: Final = bytearray(1 << 19)  # Deliveries of QoS 0 are counted and discarded.
RUN_MAX: Final = 1_024  # Packets looked at at once; what follows is looked at again, so a long look would be wasted.
# Many more than may be in flight: an identifier is free again when its turn comes, although answers are out of order.
IDENTIFIERS: Final = 30_000


class Endpoint(ABC):
    """Reads and writes the socket of a client when its selector says so. `error` has the reason of a failure."""

    def __init__(self, client: Client) -> None:
        self.socket = client.socket
        self.rest = client.received
        self.error: str | None = None
        self.unsent = memoryview(b"")
        self._selector: selectors.BaseSelector | None = None
        self._interest = READ

    def register(self, selector: selectors.BaseSelector) -> None:
        self.socket.setblocking(False)
        self._selector = selector
        selector.register(self.socket, READ, self)
        self.update_interest()

    def on_ready(self, events: int) -> None:
        try:
            if events & READ:
                self.on_readable()
            if events & WRITE:
                self.on_writable()
        except BlockingIOError:
            pass  # The selector reports the socket again when it is ready.
        except (OSError, BrokerError) as error:
            self.error = str(error)
            if self._selector is not None:
                self._selector.unregister(self.socket)
            return
        self.update_interest()

    def update_interest(self) -> None:
        interest = READ | (WRITE if self.wants_to_write() else 0)
        if interest != self._interest and self._selector is not None and self.error is None:
            self._interest = interest
            self._selector.modify(self.socket, interest, self)

    def receive(self) -> bytes:
        """Returns what was left, and what has come."""
        more = self.socket.recv(RECEIVE_BYTES)
        if not more:
            raise BrokerError("the broker closed the connection")
        return self.rest + more if self.rest else more

    def send(self, data: bytes | memoryview) -> None:
        """Sends all that the socket takes now; the rest is `unsent`."""
        self.unsent = memoryview(bytes(self.unsent) + data) if self.unsent else memoryview(data)
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except BlockingIOError:
            pass  # The selector reports when the socket takes more.

    def wants_to_write(self) -> bool:
        return bool(self.unsent)

    def on_writable(self) -> None:
        if self.unsent:
            self.send(b"")

    @abstractmethod
    def on_readable(self) -> None: ...


class Publisher(Endpoint):
    """Sends one blob of messages after the other. Of QoS 1 and 2 at most `window` are not acknowledged."""

    def __init__(self, client: Client, messages: Sequence[bytes], qos: int, batch: int, window: int) -> None:
        super().__init__(client)
        self.qos, self.batch, self.window = qos, batch, window
        blobs = [b"".join(messages[at : at + batch]) for at in range(0, len(messages), batch)]
        self.blobs = [memoryview(blob) for blob in blobs]
        self.sent = self.acked = 0
        self.sent_max: int | None = None
        self.is_stopped = False

    @property
    def is_settled(self) -> bool:
        return not self.unsent and (not self.qos or self.acked >= self.sent)

    def may_begin(self) -> bool:
        if self.is_stopped or (self.sent_max is not None and self.sent >= self.sent_max):
            return False
        return not self.qos or self.sent - self.acked + self.batch <= self.window

    def wants_to_write(self) -> bool:
        return bool(self.unsent) or self.may_begin()

    def on_writable(self) -> None:
        if not self.unsent and self.may_begin():
            self.unsent = self.blobs[self.sent // self.batch % len(self.blobs)]
            self.sent += self.batch
        super().on_writable()

    def on_readable(self) -> None:
        data = self.receive()
        whole = len(data) // ACK_BYTES * ACK_BYTES
        self.rest = data[whole:]
        heads = data[0:whole:ACK_BYTES]
        last = PUBACK if self.qos == 1 else PUBCOMP
        done = heads.count(last)
        received = heads.count(PUBREC) if self.qos == 2 else 0
        if done + received != len(heads):
            raise BrokerError(f"a publisher got {data[:100]!r}")
        self.acked += done
        if received:
            # PUBREC and PUBCOMP are mixed, in runs of many.
            for begin, end in runs(heads, PUBREC):
                part = data[begin * ACK_BYTES : end * ACK_BYTES]
                self.send(packets.acks(PUBREL, part[2::ACK_BYTES], part[3::ACK_BYTES]))


def runs(heads: bytes, wanted: int) -> list[tuple[int, int]]:
    """Returns where runs of one byte begin and end."""
    mark, found, at = bytes((wanted,)), [], 0
    while (begin := heads.find(mark, at)) >= 0:
        at = begin + len(heads) - begin - len(heads[begin:].lstrip(mark))
        found.append((begin, at))
    return found


class Subscriber(Endpoint):
    """Counts messages of one size, and acknowledges them as their QoS wants it."""

    def __init__(self, client: Client, message: bytes, qos: int, body_bytes: int) -> None:
        """`message`: what each looks like, but for its packet identifier."""
        super().__init__(client)
        self.qos, self.size = qos, len(message)
        self.identifier_at = self.size - body_bytes - 2
        self.delivered = 0
        self._received_bytes = len(self.rest)

    def on_readable(self) -> None:
        if not self.qos:
            count = self.socket.recv_into(SCRATCH)
            if not count:
                raise BrokerError("the broker closed the connection")
            self._received_bytes += count
            self.delivered = self._received_bytes // self.size
            return
        data, at = self.receive(), 0
        answers = []
        while at < len(data):
            if data[at] == PUBREL:
                part = _leading(data, at, ACK_BYTES)
                answers.append(packets.acks(PUBCOMP, part[2::ACK_BYTES], part[3::ACK_BYTES]))
                self.delivered += len(part) // ACK_BYTES
            elif data[at] == PUBLISH | self.qos << 1:
                part = _leading(data, at, self.size)
                head = PUBACK if self.qos == 1 else PUBREC
                high, low = part[self.identifier_at :: self.size], part[self.identifier_at + 1 :: self.size]
                answers.append(packets.acks(head, high, low))
                self.delivered += len(low) if self.qos == 1 else 0
            else:
                raise BrokerError(f"a subscriber got {data[at : at + 100]!r}")
            if not part:
                break
            at += len(part)
        self.rest = data[at:]
        if answers:
            self.send(b"".join(answers))


def _leading(data: bytes, at: int, size: int) -> bytes:
    """Returns the whole packets from `at` on that begin with the same byte, which all have this size."""
    count = min((len(data) - at) // size, RUN_MAX)
    heads = data[at : at + count * size : size]
    count -= len(heads.lstrip(heads[:1]))
    return data[at : at + count * size]


@dataclass
class Measured:
    """The result of `drive`. `errors` has what no run may have."""

    seconds: float
    sent: int
    delivered: int
    expected: int
    client_cpu: float  # Of one processor; near 1 the clients were measured, not the broker.
    errors: list[str] = field(default_factory=list)

    @property
    def per_s(self) -> int:
        return round(self.delivered / self.seconds)

    @property
    def missing(self) -> float:
        """Returns the part of the messages that did not come."""
        return 1 - self.delivered / self.expected if self.expected else 0.0


def drive(publishers: Sequence[Publisher], subscribers: Sequence[Subscriber], seconds: float) -> Measured:
    """Publishes for `seconds`, or up to each publisher's `sent_max`, then takes in what still comes. Each subscriber
    is expected to get every message."""
    endpoints: list[Endpoint] = [*subscribers, *publishers]
    with selectors.DefaultSelector() as selector:
        for endpoint in endpoints:
            endpoint.register(selector)
        began, cpu = time.perf_counter(), time.process_time()
        stop_at, check_at, now, moved_at, moved = began + seconds, began, began, began, 0
        while now < stop_at + FINISH_S:
            for key, events in selector.select(SELECT_S):
                key.data.on_ready(events)
            now = time.perf_counter()
            if now < check_at:
                continue
            check_at = now + CHECK_S
            if any(endpoint.error for endpoint in endpoints):
                break
            if now >= stop_at:
                for publisher in publishers:
                    publisher.is_stopped = True
                    publisher.update_interest()
            sent, delivered = sum(one.sent for one in publishers), sum(one.delivered for one in subscribers)
            progress = delivered + sum(one.acked for one in publishers)
            if progress != moved:
                moved, moved_at = progress, now
            if any(one.may_begin() or not one.is_settled for one in publishers):
                continue
            if delivered >= sent * len(subscribers) or now > max(moved_at, stop_at) + STILL_S:
                break
        cpu = time.process_time() - cpu
    errors = [endpoint.error for endpoint in endpoints if endpoint.error]
    if unsettled := sum(not one.is_settled for one in publishers):
        errors.append(f"{unsettled} publishers still wait for acknowledgements")
    took = max(moved_at - began, 0.001)
    sent, delivered = sum(one.sent for one in publishers), sum(one.delivered for one in subscribers)
    return Measured(took, sent, delivered, sent * len(subscribers), cpu / took, errors)
