"""Escapes in the headers of STOMP frames.

STOMP 1.0 has none. Since 1.1, `\\n`, `\\c` and `\\\\` stand for a line feed, a colon and a backslash; since 1.2, `\\r`
for a carriage return, which RabbitMQ writes and reads for 1.1, too. CONNECT and CONNECTED are never escaped, so that a
client of any version can send them.

Messages of other clients can have line ends in their headers. A client of STOMP 1.0 gets them escaped all the same:
otherwise their sender could write headers, and whole frames, in our name.
"""

from __future__ import annotations

import re
from typing import Final

from leveret.protocol.stomp.frames import Malformed

_READ: Final = {b"\\n": b"\n", b"\\c": b":", b"\\\\": b"\\", b"\\r": b"\r"}
_ESCAPE: Final = re.compile(rb"\\.?", re.DOTALL)
_WRITTEN: Final = str.maketrans({"\\": "\\\\", ":": "\\c", "\n": "\\n", "\r": "\\r"})
_LINE_ENDS: Final = str.maketrans({"\n": "\\n", "\r": "\\r"})
_IN_NAMES: Final = str.maketrans({"\n": "\\n", "\r": "\\r", ":": "\\c"})


def unescaped(text: bytes) -> bytes:
    """Return what escaped text says. Raises `Malformed` if it has an escape that there is not."""
    return _ESCAPE.sub(_one, text) if b"\\" in text else text


def _one(found: re.Match[bytes]) -> bytes:
    read = _READ.get(found[0])
    if read is None:
        raise Malformed(f"undefined escape {found[0].decode('utf-8', 'replace')} in a header")
    return read


def escaped(text: str, escapes: bool) -> str:
    """Return a value as it is written in a header. `escapes`: the client's version has escapes."""
    return text.translate(_WRITTEN if escapes else _LINE_ENDS)


def escaped_name(text: str, escapes: bool) -> str:
    """Return the name of a header as it is written."""
    return text.translate(_WRITTEN if escapes else _IN_NAMES)
