"""Bytes of a client to STOMP frames, wherever the bytes are cut.

`span_at` finds a frame without reading its headers: callers that know a frame by its bytes need no more. `decode` reads
them. `Inbox` keeps a frame that has begun until the rest of it is there.

Every byte is looked at a limited number of times, however many pieces it comes in. A frame that is not complete is
joined again only when it can be: with a known length when that many bytes are there, otherwise when a NUL has come or
the size has doubled. What is longer than allowed is refused before it is gathered.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.protocol.stomp.escaping import unescaped
from leveret.protocol.stomp.frames import COMMAND_BYTES_MAX, Frame, Malformed

if TYPE_CHECKING:
    from leveret.protocol.stomp.frames import FrameLimits

_BETWEEN: Final = re.compile(rb"[\n\r\0]*")  # RabbitMQ passes over a NUL between frames, too.
_EMPTY_LINE: Final = re.compile(rb"\n\r?\n")
_LENGTH: Final = re.compile(rb"\ncontent-length:[ ]*([0-9]+)[ ]*(?=\r?(?:\n|\Z))")
_LENGTH_NAME: Final = b"\ncontent-length:"
_DIGITS_MAX: Final = 15


class Span(NamedTuple):
    """Where a whole frame is: data[start:block] are command and headers, data[body:last] the body; the NUL is at
    `last`."""

    start: int
    block: int
    body: int
    last: int


class Incomplete(NamedTuple):
    """The frame that begins at `start` is not whole. `wanted`: so many bytes from there on at least; 0: up to a NUL."""

    start: int
    wanted: int


def skip(data: bytes, at: int) -> int:
    """Return where the next frame begins: behind line ends."""
    found = _BETWEEN.match(data, at)
    return at if found is None else found.end()


def span_at(data: bytes, at: int, limits: FrameLimits) -> Span | Incomplete:
    """Find the frame that begins at `at`. Raises `Malformed`."""
    empty = _EMPTY_LINE.search(data, at, at + limits.block_bytes_max + 3)
    if empty is None:
        if len(data) - at > limits.block_bytes_max:
            raise Malformed(f"the headers of a frame have more than {limits.block_bytes_max} bytes")
        if data.find(b"\0", at) >= 0:
            raise Malformed("a NUL in the headers of a frame")
        if len(data) - at > COMMAND_BYTES_MAX and data.find(b"\n", at, at + COMMAND_BYTES_MAX) < 0:
            raise Malformed(f"a command has more than {COMMAND_BYTES_MAX} bytes")
        return Incomplete(at, 0)
    block, body = empty.start(), empty.end()
    length = length_in(data, at, block)
    if length is None:
        last = data.find(b"\0", body, at + limits.frame_bytes_max + 1)
        if last >= 0:
            return Span(at, block, body, last)
        if len(data) - at > limits.frame_bytes_max:
            raise _too_large(limits)
        return Incomplete(at, 0)
    last = body + length
    if last - at > limits.frame_bytes_max:
        raise _too_large(limits)
    if last >= len(data):
        return Incomplete(at, last + 1 - at)
    if data[last]:
        raise Malformed(f"no NUL behind {length} bytes of a body")
    return Span(at, block, body, last)


def _too_large(limits: FrameLimits) -> Malformed:
    return Malformed(f"a frame has more than {limits.frame_bytes_max} bytes")


def length_in(data: bytes, at: int, block: int) -> int | None:
    """Return the content-length that the headers in data[at:block] say, if they say one."""
    named = data.find(_LENGTH_NAME, at, block)
    if named < 0:
        return None
    found = _LENGTH.match(data, named, block)
    if found is None or len(found[1]) > _DIGITS_MAX:
        raise Malformed("a content-length that is no number")
    return int(found[1])


def decode(data: bytes, span: Span, limits: FrameLimits, escapes: bool, trims: bool = False) -> Frame:
    """Read a frame. `escapes`: its headers are escaped. `trims`: values may begin with spaces that do not count, as
    those of STOMP 1.0. Raises `Malformed`."""
    block = data[span.start : span.block]
    if b"\0" in block:
        raise Malformed("a NUL in the headers of a frame")
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").removesuffix(b"\r")
        if b"\r" in block:
            raise Malformed("a carriage return within a header")
    command, *lines = block.split(b"\n")
    if len(command) > COMMAND_BYTES_MAX:
        raise Malformed(f"a command has more than {COMMAND_BYTES_MAX} bytes")
    if len(lines) > limits.headers_max:
        raise Malformed(f"a frame has more than {limits.headers_max} headers")
    command_text = _text(command)
    if command_text in ("CONNECT", "STOMP"):
        escapes = False
    headers: dict[str, str] = {}
    for line in lines:
        if len(line) > limits.line_bytes_max:
            raise Malformed(f"a header has more than {limits.line_bytes_max} bytes")
        name, colon, value = line.partition(b":")
        if not colon:
            raise Malformed("a header without a colon")
        if escapes:
            name, value = unescaped(name), unescaped(value)
        elif trims:
            value = value.lstrip(b" ")
        headers.setdefault(_text(name), _text(value))
    return Frame(command_text, headers, data[span.body : span.last])


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


class Inbox:
    """The beginning of a frame whose end has not come."""

    __slots__ = ("kept", "or_nul", "wanted")

    def __init__(self) -> None:
        self.kept = bytearray()
        self.wanted = 0  # How many bytes there must be before they are looked at again.
        self.or_nul = False  # Or until a NUL has come.

    def keep(self, data: bytes) -> None:
        """Keep bytes that nobody has looked at."""
        self.kept, self.wanted = bytearray(data), 0

    def keep_begun(self, data: bytes, incomplete: Incomplete, limits: FrameLimits) -> None:
        """Keep a frame that is not whole, from its beginning on."""
        self.kept = bytearray(data)
        self.or_nul = not incomplete.wanted
        self.wanted = incomplete.wanted or min(2 * len(data), limits.frame_bytes_max + 1)

    def take(self, data: bytes) -> bytes:
        """Add bytes that came. Return all there are if a frame may be whole, otherwise none."""
        if not self.kept:
            return data
        self.kept += data
        if len(self.kept) < self.wanted and not (self.or_nul and b"\0" in data):
            return b""
        return self.all()

    def add(self, data: bytes) -> None:
        """Add bytes that nobody is to look at now."""
        self.kept += data
        self.wanted = 0

    def all(self) -> bytes:
        """Take all that is kept."""
        kept = bytes(self.kept)
        self.kept, self.wanted = bytearray(), 0
        return kept
