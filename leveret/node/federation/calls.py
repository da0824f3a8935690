"""Arguments of the AMQP methods that links send. Names may have any bytes that a broker has taken from its clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.client.amqp import BrokerError
from leveret.protocol.tables import BadTable, encode_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from leveret.protocol.tables import Field

NAME_BYTES_MAX: Final = 255
RESERVED: Final = b"\0\0"
PASSIVE, DURABLE = 1, 2
EXCHANGE_AUTO_DELETE, INTERNAL = 4, 8
QUEUE_AUTO_DELETE: Final = 8
IF_UNUSED, IF_EMPTY = 1, 2  # Of queue.delete; the first also of exchange.delete.
NO_ACK, CONSUME_NOWAIT = 2, 8


def short(text: str) -> bytes:
    """Raises BrokerError."""
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > NAME_BYTES_MAX:
        raise BrokerError(f"a name has at most {NAME_BYTES_MAX} bytes, this one would have {len(data)}: {text[:60]}...")
    return bytes((len(data),)) + data


def table(fields: Mapping[str, Field]) -> bytes:
    """Raises BrokerError."""
    try:
        return encode_table(fields)
    except BadTable as error:
        raise BrokerError(f"arguments cannot be sent: {error}") from None


def declare_exchange(name: str, kind: str, flags: int, arguments: Mapping[str, Field]) -> bytes:
    return RESERVED + short(name) + short(kind) + bytes((flags,)) + table(arguments)


def delete_exchange(name: str, flags: int = 0) -> bytes:
    return RESERVED + short(name) + bytes((flags,))


def bind_exchange(destination: str, source: str, key: str, nowait: bool, arguments: Mapping[str, Field]) -> bytes:
    """Also for exchange.unbind."""
    return RESERVED + short(destination) + short(source) + short(key) + bytes((nowait,)) + table(arguments)


def declare_queue(name: str, flags: int, arguments: Mapping[str, Field]) -> bytes:
    return RESERVED + short(name) + bytes((flags,)) + table(arguments)


def delete_queue(name: str, flags: int = 0) -> bytes:
    return RESERVED + short(name) + bytes((flags,))


def bind_queue(queue: str, exchange: str) -> bytes:
    return RESERVED + short(queue) + short(exchange) + short("") + b"\0" + table({})


def consume(queue: str, tag: str, flags: int, arguments: Mapping[str, Field]) -> bytes:
    return RESERVED + short(queue) + short(tag) + bytes((flags,)) + table(arguments)


def cancel(tag: str) -> bytes:
    """Without an answer."""
    return short(tag) + b"\1"
