"""The header of the PROXY protocol, with which a load balancer says whose connection it passes on.

It is the first thing on the connection, before TLS too. Version 1 is a line of text, version 2 binary:
https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt has both. `parse` takes the bytes that are there, and says
how many more may be read at least: so a reader that asks for no more than that never reads a byte behind the header,
which belongs to TLS or to the client's protocol.

A header gives no address if the proxy speaks for itself (LOCAL, a health check), or does not know its client (UNKNOWN).
The addresses of the connection count then; but a client whom a proxy on this machine does not know is not taken for one
on this machine.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Final, NamedTuple

from leveret.base.hosts import is_loopback

SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
LINE_START: Final = b"PROXY "
LINE_BYTES_MIN: Final = len(b"PROXY UNKNOWN\r\n")
LINE_BYTES_MAX: Final = 107
FIXED_BYTES: Final = 16
REST_BYTES_MAX: Final = (
    4_096  # Addresses have 216 bytes at most; a proxy may add a client's certificate and other TLVs.
)
LOCAL: Final = 0
PROXY: Final = 1
UNSPECIFIED: Final = 0
INET: Final = 1
INET6: Final = 2
UNIX: Final = 3
STREAM: Final = 1
ADDRESS_BYTES: Final = {UNSPECIFIED: 0, INET: 12, INET6: 36, UNIX: 216}


class BadHeader(ValueError):
    """There is no header of the PROXY protocol; the text says what is wrong."""


class Ends(NamedTuple):
    """The two ends of the connection between the client and the proxy."""

    host: str
    port: int
    local_host: str
    local_port: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a proxy says of a connection."""

    size: int  # In bytes. What comes behind them is the client's.
    ends: Ends | None  # None if the header has no addresses.
    is_local: bool = False  # The proxy speaks for itself.

    def is_loopback(self, proxy: str) -> bool:
        """Says whether the client is on this machine: only if the header says so, and the proxy is on this machine,
        too. In this nobody else is believed, for anybody who reaches the port could write such a header."""
        if not is_loopback(proxy):
            return False
        return self.is_local if self.ends is None else is_loopback(self.ends.host)


def parse(data: bytes) -> Header | int:
    """Returns the header at the beginning, or how many bytes are missing at least. Raises BadHeader."""
    if data[: len(SIGNATURE)] == SIGNATURE[: len(data)]:
        return _binary(data)
    if data[: len(LINE_START)] == LINE_START[: len(data)]:
        return _text(data)
    raise BadHeader("the connection does not begin with a header of the PROXY protocol")


# -- Version 1 -------------------------------------------------------------------------------------------------------


def _text(data: bytes) -> Header | int:
    end = data.find(b"\r\n", 0, LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= LINE_BYTES_MAX:
            raise BadHeader(f"the line has more than {LINE_BYTES_MAX} bytes")
        return max(LINE_BYTES_MIN - len(data), 1 if data.endswith(b"\r") else 2)
    words = data[:end].split(b" ")
    size = end + 2
    if words[1] == b"UNKNOWN":
        return Header(size, None)
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise BadHeader("the line is not PROXY, TCP4 or TCP6, two addresses, and two ports")
    kind = IPv4Address if words[1] == b"TCP4" else IPv6Address
    host, local_host = (_address(word, kind) for word in words[2:4])
    return Header(size, Ends(host, _port(words[4]), local_host, _port(words[5])))


def _address(word: bytes, kind: type[IPv4Address | IPv6Address]) -> str:
    try:
        if b"%" not in word:  # What comes behind it, a zone, could be any text.
            return str(kind(word.decode("ascii")))
    except ValueError:
        pass
    raise BadHeader("an address is not one of the family that is named")


def _port(word: bytes) -> int:
    if not word.isdigit() or len(word) > 5 or int(word) > 65_535:
        raise BadHeader("a port is not a number up to 65535")
    return int(word)


# -- Version 2 -------------------------------------------------------------------------------------------------------


def _binary(data: bytes) -> Header | int:
    if len(data) < FIXED_BYTES:
        return (FIXED_BYTES if data else LINE_BYTES_MIN) - len(data)
    version, command = data[12] >> 4, data[12] & 15
    family, transport = data[13] >> 4, data[13] & 15
    rest = int.from_bytes(data[14:16], "big")
    if version != 2 or command not in (LOCAL, PROXY):
        raise BadHeader(f"version {version} and command {command} are unknown")
    if rest > REST_BYTES_MAX:
        raise BadHeader(f"the header has more than {FIXED_BYTES + REST_BYTES_MAX} bytes")
    size = FIXED_BYTES + rest
    if command == PROXY:
        if family not in ADDRESS_BYTES or rest < ADDRESS_BYTES[family]:
            raise BadHeader(f"addresses of family {family} in {rest} bytes")
        if transport != STREAM and (family or transport):
            raise BadHeader("the client is not connected over TCP")
    if len(data) < size:
        return size - len(data)
    return Header(size, _ends(data, family) if command == PROXY else None, command == LOCAL)


def _ends(data: bytes, family: int) -> Ends | None:
    """Returns the addresses. None if they are of a kind that has no ports; what comes behind them (TLVs) is skipped."""
    if family == INET:
        host, local_host, port, local_port = struct.unpack_from("!4s4sHH", data, FIXED_BYTES)
        return Ends(str(IPv4Address(host)), port, str(IPv4Address(local_host)), local_port)
    if family == INET6:
        host, local_host, port, local_port = struct.unpack_from("!16s16sHH", data, FIXED_BYTES)
        return Ends(str(IPv6Address(host)), port, str(IPv6Address(local_host)), local_port)
    return None
