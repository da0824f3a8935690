"""`leveret transfer`: moves messages from one AMQP broker to another, queue by queue, for a migration from RabbitMQ.

No message is lost: a message is acknowledged at the source when the target has confirmed it. If anything breaks in
between, the source still has those messages, and some may be at the target already: after a restart up to a batch of
them may be there twice.

A message keeps its body, its properties, its headers and its routing key. So that only one queue gets it, whatever its
key and its CC header say, it goes through a fanout exchange that is bound to that queue alone, declared for the
transfer and deleted with it; so consumers see another exchange than before. Times to live start again.

Gets are pipelined: a batch of them is sent at once, then the messages are published, confirmed and acknowledged. A
consumer would be faster still, but does not know the end; basic.get-empty tells it.
"""

from __future__ import annotations

import argparse
import json
import secrets
import ssl
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from leveret.base.exit_codes import CONFIG, DATA_ERROR, OK, UNAVAILABLE, USAGE
from leveret.client import amqp
from leveret.client.address import Address, BadUri, read_uri
from leveret.client.amqp import BrokerError
from leveret.client.connection import CALL_TIMEOUT_S, Connection
from leveret.client.tls import default_context

PROGRESS: Final = 10_000  # Messages between two lines of progress.
BATCH: Final = 200
BATCH_BYTES: Final = 16 << 20  # A batch of large messages has fewer.
DEFINITIONS_BYTES_MAX: Final = 256 << 20


class Message(NamedTuple):
    tag: int
    key: bytes
    header: bytes  # Payload of the header frame: size, flags, properties.
    body: bytes


def transfer(parsed: argparse.Namespace) -> int:
    try:
        source, target = read_uri(parsed.source), read_uri(parsed.target)
    except BadUri as error:
        return _fail(str(error), USAGE)
    try:
        queues = [*parsed.queue, *(_queues_in(parsed.definitions, source.vhost) if parsed.definitions else ())]
    except (OSError, ValueError) as error:
        return _fail(f"{parsed.definitions}: {error}", DATA_ERROR)
    if not queues:
        return _fail("name queues with --queue, or with --definitions a file that contains some", USAGE)
    if (source.host, source.port, source.vhost) == (target.host, target.port, target.vhost):
        return _fail("source and target are the same", USAGE)
    try:
        with side(SOURCE, source):
            taking = _connect(source)
        with taking:
            with side(TARGET, target):
                giving = _connect(target)
            with giving:
                with side(TARGET, target):
                    target_side = Target(giving)
                for queue in dict.fromkeys(queues):
                    count = move(taking, target_side, queue, lambda text: print(text, flush=True))
                    print(f"{queue}: {count} messages moved", flush=True)
    except SideFailed as error:
        return _fail(str(error), error.code)
    return OK


SOURCE, TARGET = "the source", "the target"


class SideFailed(Exception):
    """One of the two brokers refused something or went away. The text names it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@contextmanager
def side(name: str, address: object) -> Iterator[None]:
    """Turns errors into SideFailed of this broker."""
    try:
        yield
    except BrokerError as error:
        raise SideFailed(f"{name}, {address}: {error}", UNAVAILABLE) from None
    except EOFError:
        raise SideFailed(f"{name}, {address}, closed the connection", UNAVAILABLE) from None
    except ssl.SSLError as error:
        raise SideFailed(f"{name}, {address}: TLS: {error}", CONFIG) from None
    except OSError as error:
        raise SideFailed(f"{name}, {address}: {error.strerror or error}", UNAVAILABLE) from None


def _fail(text: str, code: int) -> int:
    print(f"leveret transfer: {text}", file=sys.stderr)
    return code


def _connect(address: Address) -> Connection:
    tls = default_context() if address.tls else None
    return Connection(address, "leveret transfer", tls=tls)


def _queues_in(path: str, vhost: str) -> Iterator[str]:
    """Yields the queues of a vhost in a file of definitions. Streams cannot be emptied, and are left out."""
    with open(path, "rb") as file:
        document = json.loads(file.read(DEFINITIONS_BYTES_MAX))
    for queue in document.get("queues", []):
        if queue.get("vhost", vhost) == vhost:
            if (queue.get("arguments") or {}).get("x-queue-type") == "stream":
                print(f"{queue['name']}: is a stream, and is not moved", file=sys.stderr)
            else:
                yield queue["name"]


def move(source: Connection, target: Target, queue: str, say: Callable[[str], None], batch: int = BATCH) -> int:
    """Moves all ready messages of a queue, and returns their number. Raises SideFailed."""
    from_, to = source.address, target.connection.address
    with side(SOURCE, from_):
        waiting = _count(source, queue)
    exchange = f"leveret.transfer.{secrets.token_hex(8)}"
    with side(TARGET, to):
        _count(target.connection, queue)
        target.bind(exchange, queue)
    moved, said, asked = 0, 0, batch
    while True:
        with side(SOURCE, from_):
            messages = _take(source, queue, asked)
        if not messages:
            break
        with side(TARGET, to):
            target.give(exchange, messages)
        with side(SOURCE, from_):
            source.socket.sendall(amqp.ack_through(messages[-1].tag))
        moved += len(messages)
        if moved - said >= PROGRESS:
            said = moved
            say(f"{queue}: {moved} of {max(waiting, moved)}")
        size = sum(len(one.body) for one in messages) // len(messages)
        asked = max(1, min(batch, BATCH_BYTES // (size + 1)))
    with side(SOURCE, from_):
        _count(source, queue)  # Its answer comes after the last ack was handled.
    with side(TARGET, to):
        target.delete(exchange)
    return moved


def _count(connection: Connection, queue: str) -> int:
    """Returns the number of ready messages. Raises BrokerError if there is no such queue."""
    asked = b"\0\0" + amqp.short(queue) + bytes((amqp.PASSIVE,)) + amqp.table({})
    try:
        answer = connection.call(amqp.QUEUE_DECLARE, asked)
    except BrokerError as error:
        raise BrokerError(f"queue {queue}: {error}") from None
    return int(struct.unpack_from(">I", answer, 1 + answer[0])[0])


# -- The source ----------------------------------------------------------------------------------------------------


def _take(source: Connection, queue: str, count: int) -> list[Message]:
    """Gets up to `count` messages; fewer if the queue is empty before."""
    source.socket.sendall(amqp.method(amqp.BASIC_GET, b"\0\0" + amqp.short(queue) + b"\0") * count)
    found = []
    for _ in range(count):
        kind, payload = _read(source)
        name = amqp.METHOD_ID.unpack_from(payload)
        if kind != amqp.METHOD or name not in (amqp.BASIC_GET_OK, amqp.BASIC_GET_EMPTY):
            raise BrokerError(amqp.closing_text(name, payload[4:]))
        if name == amqp.BASIC_GET_OK:
            found.append(_message(source, payload[4:]))
    return found


def _message(source: Connection, arguments: bytes) -> Message:
    tag = int.from_bytes(arguments[:8], "big")
    at = 10 + arguments[9]
    key = arguments[at + 1 : at + 1 + arguments[at]]
    _, header = _read(source)
    size = int.from_bytes(header[4:12], "big")
    body = bytearray()
    while len(body) < size:
        body += _read(source)[1]
    return Message(tag, key, header, bytes(body))


def _read(connection: Connection) -> tuple[int, bytes]:
    """Returns the next frame, skipping heartbeats. While the broker has an alarm, there is no limit of time."""
    while True:
        kind, payload = connection.read_frame()
        name = amqp.METHOD_ID.unpack_from(payload) if kind == amqp.METHOD else None
        if name == amqp.CONNECTION_BLOCKED:
            connection.socket.settimeout(None)
            print(f"{connection.address} has a memory or disk alarm; waiting", file=sys.stderr)
        elif name == amqp.CONNECTION_UNBLOCKED:
            connection.socket.settimeout(CALL_TIMEOUT_S)
        elif kind != amqp.HEARTBEAT:
            return kind, payload


# -- The target ----------------------------------------------------------------------------------------------------


class Target:
    """The broker that gets the messages. Its confirms count from the first publish on."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.published = 0
        connection.select_confirms()

    def bind(self, exchange: str, queue: str) -> None:
        asked = b"\0\0" + amqp.short(exchange) + amqp.short("fanout") + bytes((amqp.AUTO_DELETE,)) + amqp.table({})
        self.connection.call(amqp.EXCHANGE_DECLARE, asked)
        self.connection.bind(queue, exchange, "")

    def delete(self, exchange: str) -> None:
        self.connection.call(amqp.EXCHANGE_DELETE, b"\0\0" + amqp.short(exchange) + b"\0")

    def give(self, exchange: str, messages: list[Message]) -> None:
        """Publishes messages and waits until all are confirmed. Raises BrokerError."""
        routing = b"\0\0" + amqp.short(exchange)
        room = self.connection.frame_max - amqp.OVERHEAD
        for one in messages:
            published = routing + bytes((len(one.key),)) + one.key + bytes((amqp.MANDATORY,))
            frames = [amqp.method(amqp.BASIC_PUBLISH, published), amqp.frame(amqp.HEADER, one.header)]
            frames += [amqp.frame(amqp.BODY, one.body[at : at + room]) for at in range(0, len(one.body), room)]
            self.connection.socket.sendall(b"".join(frames))
        first, self.published = self.published + 1, self.published + len(messages)
        self._await(set(range(first, self.published + 1)))

    def _await(self, unconfirmed: set[int]) -> None:
        while unconfirmed:
            kind, payload = _read(self.connection)
            name = amqp.METHOD_ID.unpack_from(payload)
            if kind == amqp.METHOD and name == amqp.BASIC_ACK:
                tag, multiple = amqp.CONFIRM.unpack_from(payload, amqp.METHOD_ID.size)
                unconfirmed -= {number for number in unconfirmed if number <= tag} if multiple else {tag}
            elif kind == amqp.METHOD and name == amqp.BASIC_NACK:
                raise BrokerError("the target refused a message; perhaps its queue is full")
            elif kind == amqp.METHOD and name == amqp.BASIC_RETURN:
                raise BrokerError("the target could not route a message; perhaps the queue was deleted")
            else:
                raise BrokerError(amqp.closing_text(name, payload[amqp.METHOD_ID.size :]))
