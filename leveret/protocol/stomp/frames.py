"""A STOMP frame: a command, headers, and a body; and what a client may send at most.

    SEND␊                   command
    destination:/queue/q␊   headers: name, colon, value
    ␊                       an empty line
    hello␀                  body, which ends at a NUL, or has as many bytes as the header content-length says

Between frames there may be line ends, which are heart-beats too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

V10: Final = "1.0"
V11: Final = "1.1"
V12: Final = "1.2"
VERSIONS: Final = (V10, V11, V12)

COMMAND_BYTES_MAX: Final = 64


class Malformed(Exception):
    """Bytes that are no frame, or one that is larger than allowed. What comes after them cannot be understood."""


@dataclass(slots=True)
class Frame:
    """One frame. Of headers with the same name the first counts, and the others are not here."""

    command: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """What a frame of a client may have."""

    frame_bytes_max: int = 4_194_304  # Headers and body together.
    block_bytes_max: int = 262_144  # Command and headers together.
    line_bytes_max: int = 65_536
    headers_max: int = 512


AUTHENTICATED: Final = FrameLimits()
# What a client may cost before it has logged in: it has a login, a passcode, and a vhost.
UNAUTHENTICATED: Final = FrameLimits(65_536, 16_384, 8_192, 64)
