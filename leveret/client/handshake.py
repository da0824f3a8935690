"""The login of an AMQP client, without I/O.

Send `PROTOCOL_HEADER`, pass every method that the broker sends to `Handshake.on_method`, and send what it returns,
until `is_open`: then the connection is tuned, the vhost is open, and so is channel 1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from leveret.client.address import Address
from leveret.client.amqp import (
    CHANNEL_OPEN,
    CHANNEL_OPEN_OK,
    CONNECTION_OPEN,
    CONNECTION_OPEN_OK,
    CONNECTION_START,
    CONNECTION_START_OK,
    CONNECTION_TUNE,
    CONNECTION_TUNE_OK,
    FRAME_MAX,
    BrokerError,
    Name,
    Table,
    closing_text,
    long,
    method,
    short,
    table,
)

PROTOCOL_HEADER: Final = b"AMQP\0\0\x09\x01"
CAPABILITIES: Final = {
    name: True
    for name in (
        "publisher_confirms",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "authentication_failure_close",
    )
}
_TUNE: Final = struct.Struct(">HIH")


class Handshake:
    """Logs in with PLAIN and without heartbeats, and opens channel 1."""

    def __init__(self, address: Address, properties: Table) -> None:
        self.address = address
        self.properties = properties
        self.server_properties = b""  # The arguments of connection.start, still encoded.
        self.frame_max = FRAME_MAX
        self._steps: list[tuple[Name, Callable[[bytes], bytes]]] = [
            (CHANNEL_OPEN_OK, lambda arguments: b""),
            (CONNECTION_OPEN_OK, lambda arguments: method(CHANNEL_OPEN, b"\0")),
            (CONNECTION_TUNE, self._on_tune),
            (CONNECTION_START, self._on_start),
        ]

    @property
    def is_open(self) -> bool:
        return not self._steps

    @property
    def is_authenticated(self) -> bool:
        """Whether the broker has accepted user and password."""
        return len(self._steps) < 3

    def on_method(self, name: Name, arguments: bytes) -> bytes:
        """Returns the bytes to send in answer. Raises BrokerError for any other method than the next one."""
        expected, answer = self._steps[-1]
        if name != expected:
            raise BrokerError(closing_text(name, arguments))
        self._steps.pop()
        return answer(arguments)

    def _on_start(self, arguments: bytes) -> bytes:
        self.server_properties = arguments
        response = f"\0{self.address.user}\0{self.address.password}".encode()
        properties = table({**self.properties, "capabilities": CAPABILITIES})
        return method(CONNECTION_START_OK, properties + short("PLAIN") + long(response) + short("en_US"), 0)

    def _on_tune(self, arguments: bytes) -> bytes:
        channel_max, frame_max, _ = _TUNE.unpack(arguments)
        self.frame_max = min(frame_max or FRAME_MAX, FRAME_MAX)
        tuned = method(CONNECTION_TUNE_OK, _TUNE.pack(channel_max, self.frame_max, 0), 0)
        return tuned + method(CONNECTION_OPEN, short(self.address.vhost) + b"\0\0", 0)
