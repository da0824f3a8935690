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
FRAME_MIN: Final = 4_096


class Handshake:
    """Logs in and opens channel 1.

    Without `mechanisms` it logs in with PLAIN, otherwise with the first of them that the broker offers. `heartbeat_s`
    is what this side would like; 0: none. `channel_max` is how many channels it wants at most; 0: what the broker says.
    """

    def __init__(
        self,
        address: Address,
        properties: Table,
        mechanisms: tuple[str, ...] = (),
        heartbeat_s: int = 0,
        channel_max: int = 0,
    ) -> None:
        self.address = address
        self.properties = properties
        self.mechanisms = mechanisms
        self.heartbeat_s = heartbeat_s
        self.channel_max = channel_max
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
        mechanism = self._mechanism(arguments)
        properties = table({**self.properties, "capabilities": CAPABILITIES})
        response = self._response(mechanism)
        return method(CONNECTION_START_OK, properties + short(mechanism) + long(response) + short("en_US"), 0)

    def _mechanism(self, arguments: bytes) -> str:
        if not self.mechanisms:
            return "PLAIN"
        offered = _offered(arguments)
        for name in self.mechanisms:
            if name.upper() in offered:
                return name.upper()
        raise BrokerError(f"the broker offers {' '.join(offered)}, and none of {' '.join(self.mechanisms).upper()}")

    def _response(self, mechanism: str) -> bytes:
        user, password = self.address.user, self.address.password
        if mechanism == "EXTERNAL":
            return b""
        if mechanism == "AMQPLAIN":
            return table({"LOGIN": user, "PASSWORD": password})[4:]
        return f"\0{user}\0{password}".encode()

    def _on_tune(self, arguments: bytes) -> bytes:
        if len(arguments) != _TUNE.size:
            raise BrokerError("the broker's connection.tune is malformed")
        channel_max, frame_max, heartbeat_s = _TUNE.unpack(arguments)
        self.frame_max = min(frame_max or FRAME_MAX, FRAME_MAX)
        if self.frame_max < FRAME_MIN:
            raise BrokerError(f"the broker wants frames of at most {self.frame_max} bytes")
        self.heartbeat_s = min(self.heartbeat_s, heartbeat_s or self.heartbeat_s)
        self.channel_max = min(self.channel_max or channel_max, channel_max or self.channel_max)
        tuned = method(CONNECTION_TUNE_OK, _TUNE.pack(self.channel_max, self.frame_max, self.heartbeat_s), 0)
        return tuned + method(CONNECTION_OPEN, short(self.address.vhost) + b"\0\0", 0)


def _offered(arguments: bytes) -> list[str]:
    """Returns the mechanisms in a connection.start. Raises BrokerError."""
    try:
        (size,) = struct.unpack_from(">I", arguments, 2)  # The server's properties, behind its version.
        (length,) = struct.unpack_from(">I", arguments, 6 + size)
    except struct.error:
        raise BrokerError("the broker's connection.start is malformed") from None
    return arguments[10 + size : 10 + size + length].decode("ascii", "replace").split()
