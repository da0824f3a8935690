"""Headers of the PROXY protocol, in any pieces."""

from __future__ import annotations

import struct
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.node.sockets.proxy_protocol import (
    LINE_BYTES_MAX,
    REST_BYTES_MAX,
    SIGNATURE,
    BadHeader,
    Ends,
    Header,
    parse,
)

V4 = Ends("192.0.2.7", 56324, "198.51.100.1", 5672)
V6 = Ends("2001:db8::7", 1, "2001:db8::1", 65535)
PORTS = st.integers(0, 65_535)


def line(kind: str, ends: Ends) -> bytes:
    return f"PROXY {kind} {ends.host} {ends.local_host} {ends.port} {ends.local_port}\r\n".encode()


def binary(body: bytes, command: int = 0x21, family: int = 0x11, size: int | None = None) -> bytes:
    return SIGNATURE + struct.pack("!BBH", command, family, len(body) if size is None else size) + body


def addresses(ends: Ends) -> bytes:
    kind = IPv6Address if ":" in ends.host else IPv4Address
    both = kind(ends.host).packed + kind(ends.local_host).packed
    return both + struct.pack("!HH", ends.port, ends.local_port)


def read(stream: bytes) -> tuple[Header, bytes]:
    """Reads as a socket's reader does: never more than is missing."""
    data, place = b"", 0
    while True:
        found = parse(data)
        if isinstance(found, Header):
            return found, stream[place:]
        assert found > 0
        assert place < len(stream), "more is wanted than there is"
        data += stream[place : place + found]
        place += found


HEADERS = [
    (line("TCP4", V4), V4, False),
    (line("TCP6", V6), V6, False),
    (b"PROXY UNKNOWN\r\n", None, False),
    (b"PROXY UNKNOWN ffff:f::ffff ffff:f::ffff 65535 65535\r\n", None, False),
    (binary(addresses(V4)), V4, False),
    (binary(addresses(V6), family=0x21), V6, False),
    (binary(addresses(V4) + b"\x04\x00\x03abc" * 20), V4, False),
    (binary(b"", family=0x00), None, False),
    (binary(b"/run/x".ljust(216, b"\0"), family=0x31), None, False),
    (binary(b"", command=0x20, family=0x00), None, True),
    (binary(addresses(V4), command=0x20), None, True),
    (binary(b"\x01" * 7, command=0x20, family=0xFF), None, True),
]


@pytest.mark.parametrize(("header", "ends", "is_local"), HEADERS)
def test_headers(header: bytes, ends: Ends | None, is_local: bool) -> None:
    assert parse(header) == Header(len(header), ends, is_local)
    assert parse(header + b"AMQP\0\0\x09\x01") == Header(len(header), ends, is_local)


@pytest.mark.parametrize("header", [header for header, _, _ in HEADERS])
def test_a_reader_never_reads_what_is_behind(header: bytes) -> None:
    found, rest = read(header + b"\x16\x03\x01 the client's")
    assert found.size == len(header) and rest == b"\x16\x03\x01 the client's"
    for size in range(len(header)):
        missing = parse(header[:size])
        assert isinstance(missing, int) and 0 < missing <= len(header) - size


@given(st.ip_addresses(v=4), st.ip_addresses(v=4), PORTS, PORTS, st.binary(max_size=300), st.binary(max_size=50))
def test_ipv4(host: IPv4Address, local: IPv4Address, port: int, local_port: int, extra: bytes, after: bytes) -> None:
    ends = Ends(str(host), port, str(local), local_port)
    assert read(line("TCP4", ends) + after) == (Header(len(line("TCP4", ends)), ends), after)
    assert read(binary(addresses(ends) + extra) + after) == (Header(28 + len(extra), ends), after)


@given(st.ip_addresses(v=6), st.ip_addresses(v=6), PORTS, PORTS, st.binary(max_size=50))
def test_ipv6(host: IPv6Address, local: IPv6Address, port: int, local_port: int, after: bytes) -> None:
    ends = Ends(str(host), port, str(local), local_port)
    assert read(line("TCP6", ends) + after) == (Header(len(line("TCP6", ends)), ends), after)
    assert read(binary(addresses(ends), family=0x21) + after) == (Header(52, ends), after)


@pytest.mark.parametrize(
    "data",
    [
        b"AMQP\0\0\x09\x01",
        b"\x10",
        b"\x16\x03\x01",
        b"\r\n\r\n\r",
        b"PROXX",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 1\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 1 2 3\r\n",
        b"PROXY TCP4  192.0.2.7 198.51.100.1 1 2\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP6 192.0.2.7 198.51.100.1 1 2\r\n",
        b"PROXY TCP6 fe80::1%\x1b[31m ::1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 -1 2\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 2\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 " + b"\xb2" + b" 2\r\n",
        b"PROXY UDP4 192.0.2.7 198.51.100.1 1 2\r\n",
        b"PROXY \r\n",
        b"PROXY TCP4 " + b"1" * LINE_BYTES_MAX,
        b"PROXY UNKNOWN " + b"1" * LINE_BYTES_MAX + b"\r\n",
        binary(addresses(V4), command=0x11),
        binary(addresses(V4), command=0x22),
        binary(addresses(V4)[:-1]),
        binary(addresses(V4), family=0x21),
        binary(addresses(V4), family=0x12),
        binary(addresses(V4), family=0x10),
        binary(addresses(V4), family=0x41),
        binary(b"", size=REST_BYTES_MAX + 1),
    ],
)
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(BadHeader):
        parse(data)


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    for start in (b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11"):
        try:
            found = parse(start + data)
        except BadHeader:
            continue
        assert found > 0 if isinstance(found, int) else found.size <= len(start + data)


@pytest.mark.parametrize(
    ("host", "proxy", "is_loopback"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "192.0.2.1", False),  # Somebody has made it up.
        ("192.0.2.7", "127.0.0.1", False),
        ("::1", "::1", True),
    ],
)
def test_who_is_on_this_machine(host: str, proxy: str, is_loopback: bool) -> None:
    assert Header(30, Ends(host, 1, "127.0.0.1", 2)).is_loopback(proxy) == is_loopback


def test_whom_a_proxy_does_not_know_is_not_on_this_machine() -> None:
    assert not Header(15, None).is_loopback("127.0.0.1")
    assert Header(16, None, is_local=True).is_loopback("127.0.0.1")
    assert not Header(16, None, is_local=True).is_loopback("192.0.2.1")
