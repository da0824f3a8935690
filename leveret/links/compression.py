"""Compression of frames between nodes.

    frame PACKED:  kind u8 | zlib stream of the payload of a frame of this kind

For clusters whose network is slower than their processors: off unless `cluster.compression` says otherwise, since on a
fast network it costs more time than it saves. Every node takes packed frames, whatever its own setting is.

Small frames are sent as they are. So are most frames of a link whose last ones did not shrink (pictures, or messages
that clients have compressed): only one in sixteen is tried then.

The uncompressed size is limited to that of any frame: a peer must not be able to use up the memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from leveret.links.frame_types import PACKED
from leveret.links.link import Buffer

BYTES_MIN: Final = 1024
LEVEL: Final = 1  # Higher levels take several times as long and save a tenth more.
GAIN: Final = 0.9  # A frame that does not shrink to this fraction is sent as it is.
SKIPPED: Final = 15  # After such a frame, so many are sent without trying.


class BadPacked(Exception):
    """A compressed frame is invalid or too large."""


class Compressor:
    """Compresses the frames that go to one peer."""

    __slots__ = ("_skip", "bytes_in", "bytes_out")

    def __init__(self) -> None:
        self._skip = 0
        self.bytes_in = self.bytes_out = 0  # The sizes of compressed frames before and after.

    def packed(self, kind: int, payload: bytes | Sequence[Buffer], bytes_max: int) -> list[Buffer] | None:
        """Return the payload of a PACKED frame; None: it saves too little, or is too large for a frame."""
        parts: Sequence[Buffer] = [payload] if isinstance(payload, bytes) else payload
        size = sum(map(len, parts))
        if not BYTES_MIN <= size <= bytes_max:
            return None
        if self._skip:
            self._skip -= 1
            return None
        machine = zlib.compressobj(LEVEL)
        found: list[Buffer] = [bytes([kind])]
        found += (piece for part in parts if (piece := machine.compress(part)))
        found.append(machine.flush())
        shrunk = sum(map(len, found))
        if shrunk > size * GAIN:
            self._skip = SKIPPED
            return None
        self.bytes_in += size
        self.bytes_out += shrunk
        return found


def unpacked(payload: bytes, bytes_max: int) -> tuple[int, bytes]:
    """Return the kind and the payload of the frame in a PACKED one. Raises `BadPacked`."""
    if not payload or payload[0] == PACKED:
        raise BadPacked("a packed frame has no frame in it")
    machine = zlib.decompressobj()
    try:
        found = machine.decompress(memoryview(payload)[1:], bytes_max)
    except zlib.error as error:
        raise BadPacked(f"a packed frame is damaged: {error}") from None
    if not machine.eof or machine.unused_data:
        raise BadPacked(f"a packed frame is cut off, or has more than {bytes_max} bytes")
    return payload[0], found
