"""STOMP frames to bytes, as RabbitMQ writes them: content-length if there is a body, and a line feed behind the NUL."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from leveret.protocol.stomp.escaping import escaped, escaped_name

END: Final = b"\0\n"
HEART_BEAT: Final = b"\n"


def encode(command: str, headers: Iterable[tuple[str, str]], body: bytes = b"", escapes: bool = True) -> bytes:
    """Return a frame as bytes. `escapes`: the client's version has escapes, and the frame is not CONNECTED."""
    return b"".join((head_of(command, headers, escapes), length_line(len(body)), b"\n", body, END))


def head_of(command: str, headers: Iterable[tuple[str, str]], escapes: bool) -> bytes:
    """Return the command and the headers. No header can have a NUL: one that does is left out."""
    lines = [command]
    lines += [
        f"{escaped_name(name, escapes)}:{escaped(value, escapes)}"
        for name, value in headers
        if "\0" not in name and "\0" not in value
    ]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")


def length_line(size: int) -> bytes:
    return b"content-length:%d\n" % size if size else b""
