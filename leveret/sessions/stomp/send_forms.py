"""SEND frames that differ from earlier ones in values only, recognised by a regular expression.

A client sends frames of few forms: the same headers in the same order, where what decides about the message (its
destination, its properties) has the same value each time, and what is only passed on (the receipt, the content-length,
headers of the application) may have any. So the lines of a frame are either literal or *open*. Where a frame matches,
its content is put together from the values of the open lines, without decoding anything:

    frame head, class | body size | properties | table of the open lines, the last one first | properties | body frame

The form of a frame is found by its *signature*: its lines, without the values of those that are open. An expression
takes longer to make than many frames to read, so one is made when a signature comes for the second time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from leveret.protocol import frames
from leveret.protocol.properties import CONTENT_ENCODING, CONTENT_TYPE, HEADERS
from leveret.sessions.stomp.messages import OURS, content_for

if TYPE_CHECKING:
    from leveret.broker.vhost import Route
    from leveret.protocol.stomp.frames import Frame

FORMS_MAX: Final = 16  # Of one client.
SEEN_MAX: Final = 64  # Signatures that came once.
FORM_BYTES_MAX: Final = 2_048  # Frames with longer headers are read the longer way.
_START: Final = bytes((frames.HEADER, 0, 1))
_CLASS: Final = b"\x00\x3c\x00\x00"
_FLAGS_AT: Final = frames.HEADER_AT + 12
_VALUE: Final = rb"((?:[^\\\r\n\0 ][^\\\r\n\0]*)?)"
_RECEIPT: Final = rb"([^\\:\r\n\0 ][^\\:\r\n\0]*)"  # It is written into RECEIPT as it is, whatever the version.
_LENGTH: Final = rb"([0-9]{1,9})"
_SPECIAL: Final = frozenset(("transaction", "message-id", "CC", "BCC"))

Signature = tuple[bytes, ...]


class Form:
    """Frames of one signature. `route`: where they go; None if that has to be found out again."""

    __slots__ = ("after", "before", "fields", "has_table", "kind", "length_at", "pattern", "receipt_at", "route")

    def __init__(self, lines: list[bytes], frame: Frame) -> None:
        self.receipt_at = self.length_at = 0  # The number of the group, if there is one.
        names = [line.partition(b":")[0] for line in lines]
        opened = [name for name in names if is_open(name)]
        pattern = [b"SEND\n"]
        for line, name in zip(lines, names, strict=True):
            if not is_open(name):
                pattern.append(re.escape(line) + b"\n")
                continue
            value = _VALUE
            if name == b"receipt":
                value, self.receipt_at = _RECEIPT, opened.index(name) + 1
            elif name == b"content-length":
                value, self.length_at = _LENGTH, opened.index(name) + 1
            pattern.append(re.escape(name) + b":" + value + b"\n")
        self.pattern = re.compile(b"".join((*pattern, b"\n")))
        # Each with what stands before the value in the table: the length of the name, the name, and that it is a text.
        self.fields = [(at, bytes((len(name),)) + name + b"S") for at, name in reversed(list(enumerate(opened)))]
        self.before, self.after, self.has_table = _cut(content_for(frame.headers, b"x", 0))
        self.kind = 0
        self.route: Route | None = None

    def content(self, values: tuple[bytes, ...], body: bytes) -> bytes:
        """Return the content of a frame with these values in its open lines."""
        size = len(body)
        table = b""
        if self.has_table:
            pieces: list[bytes] = []
            for at, prefix in self.fields:
                value = values[at]
                pieces += (prefix, len(value).to_bytes(4, "big"), value)
            table = b"".join(pieces)
            table = len(table).to_bytes(4, "big") + table
        after = self.after
        payload = 4 + 8 + len(self.before) + len(table) + len(after) - 4
        return b"".join(
            (
                _START, payload.to_bytes(4, "big"), _CLASS, size.to_bytes(8, "big"), self.before, table, after,
                size.to_bytes(4, "big"), body, frames.END_BYTE,
            )
        )  # fmt: skip


def is_open(name: bytes) -> bool:
    return name not in OURS


def _cut(content: bytes) -> tuple[bytes, bytes, bool]:
    """Return what is before and behind the table of headers: from the flags on, and up to the body frame's length."""
    end = frames.HEADER_AT + int.from_bytes(content[3:7], "big")
    flags = int.from_bytes(content[_FLAGS_AT : _FLAGS_AT + 2], "big")
    at = _FLAGS_AT + 2
    for flag in (CONTENT_TYPE, CONTENT_ENCODING):
        if flags & flag:
            at += 1 + content[at]
    behind = at + 4 + int.from_bytes(content[at : at + 4], "big") if flags & HEADERS else at
    return content[_FLAGS_AT:at], content[behind : end + 4], bool(flags & HEADERS)


class SendForms:
    """The forms of a client's frames."""

    __slots__ = ("known", "last", "seen")

    def __init__(self) -> None:
        self.known: dict[Signature, Form] = {}
        self.last: Form | None = None
        self.seen: dict[Signature, None] = {}

    def forget_routes(self) -> None:
        """A queue, a binding or a permission has changed."""
        for form in self.known.values():
            form.route = None

    def find(self, data: bytes, at: int) -> Form | None:
        """Return a form with a route that the frame at `at` has. It is the first to be tried next time."""
        last = self.last
        if last is not None and last.route is not None and last.pattern.match(data, at):
            return last
        for form in self.known.values():
            if form is not last and form.route is not None and form.pattern.match(data, at):
                self.last = form
                return form
        return None

    def learn(self, block: bytes, frame: Frame, route: Route, kind: int) -> None:
        """Take note of a frame that was sent: what goes this way, and how it looks."""
        headers = frame.headers
        if len(block) > FORM_BYTES_MAX or b"\\" in block or b"\r" in block or not _SPECIAL.isdisjoint(headers):
            return
        if headers.get("reply-to", "").startswith("/temp-queue/"):
            return
        lines = block.split(b"\n")[1:]
        if len(lines) != len(headers):
            return  # One comes twice.
        signature = tuple(line.partition(b":")[0] if is_open(line.partition(b":")[0]) else line for line in lines)
        form = self.known.get(signature)
        if form is None:
            if signature not in self.seen:
                if len(self.seen) >= SEEN_MAX:
                    self.seen.clear()
                self.seen[signature] = None
                return
            if len(self.known) >= FORMS_MAX:
                self.known.clear()
            form = self.known[signature] = Form(lines, frame)
        form.route, form.kind = route, kind
        self.last = form

    def forget(self) -> None:
        self.known.clear()
        self.seen.clear()
        self.last = None
