"""Recognising content headers that differ from an earlier one in values only.

Most publishers send messages of one shape: the same properties and the same header names, with a message id, a trace
id or a timestamp of its own for each message, mostly of the same length. A walk over such properties is the dearest
part of a publish that has many of them. So the layout of a header that was checked once is kept as a regular
expression, in which whatever decides how the header is read is literal (flags, lengths, names, types) and each value is
any bytes of its length. What it matches is well-formed for the same reasons, and of the same kind.

The expression covers the bytes from the header frame up to the length of the body frame, and demands that this length
is the body size of the header. It has one group, that length.

An expression takes longer to make than a hundred headers to check. So one is made when a header of the same length
came before; if it turns out not to fit, another is made in its place, but only a few times.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from leveret.protocol.frames import BODY, END_BYTE, HEADER_AT
from leveret.protocol.properties import FLAGS_AT, KIND_EXPIRES, layout

BYTES_MAX: Final = 512  # Of a header frame that is worth an expression.
LENGTHS_MAX: Final = 16  # Of one publisher.
TRIES_MAX: Final = 4  # Headers of one length, of which the first one makes no expression yet.

Shape: TypeAlias = tuple[re.Pattern[bytes], int]


class HeaderShapes:
    """The shapes of content headers that a publisher uses, by the two bytes of their frame's length."""

    __slots__ = ("_tries", "known")

    def __init__(self) -> None:
        self.known: dict[bytes, Shape] = {}
        self._tries: dict[bytes, int] = {}

    def learn(self, frame: bytes, kind: int) -> None:
        """Take note of a header frame that was checked: its message is of the given kind."""
        if len(frame) > BYTES_MAX or kind & KIND_EXPIRES:
            return  # An expiration is a value that is read, and so may be refused.
        length = frame[5:7]
        tries = self._tries.get(length, 0)
        if tries == TRIES_MAX or (tries == 0 and len(self._tries) == LENGTHS_MAX):
            return
        self._tries[length] = tries + 1
        if tries and (pattern := shape(frame)) is not None:
            self.known[length] = pattern, kind


def shape(frame: bytes) -> re.Pattern[bytes] | None:
    """Return the expression for headers like that of a frame; None if its values must be looked at."""
    spans = layout(frame, HEADER_AT, len(frame) - 1)
    if spans is None:
        return None
    channel = frame[1:3]
    flags_at = HEADER_AT + FLAGS_AT
    pieces = [re.escape(frame[: flags_at - 4]), b"(.{4})"]
    at = flags_at
    for start, end in spans:
        pieces += [re.escape(frame[at:start]), b".{%d}" % (end - start)]
        at = end
    pieces += [re.escape(frame[at:-1] + END_BYTE + bytes((BODY,)) + channel), rb"\1"]
    return re.compile(b"".join(pieces), re.DOTALL)

