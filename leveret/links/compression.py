"""Frames between nodes, made smaller.

    frame PACKED:  kind u8 | zlib stream of the payload that a frame of this kind would have

For clusters whose network is slower than their processors: off unless `cluster.compression` says otherwise, since on a
fast network it costs more time than it saves. Every node takes packed frames, whatever its own setting is.

Small frames are left alone. So are those of a link whose last ones did not shrink (pictures, or what clients have
packed themselves): then only every so many-th is tried.

What a frame unfolds to is bounded by what a frame may have anyway: a peer is trusted with messages, not with memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

from leveret.links.frame_types import PACKED
from leveret.links.link import Buffer

BYTES_MIN: Final = 1024
LEVEL: Final = 1  # Higher ones take several times as long, for a tenth less.
GAIN: Final = 0.9  # A frame that does not shrink to this share is sent as it is.
SKIPPED: Final = 15  # So many frames after such a one are sent as they are, untried.


class BadPacked(Exception):
    """What a peer sent unfolds to nothing, or to too much."""


class Compressor:
    """Compresses the frames that go to one peer."""

    __slots__ = ("_skip", "bytes_in", "bytes_out")

    def __init__(self) -> None:
        self._skip = 0
        self.bytes_in = self.bytes_out = 0  # Of what was packed.

    def packed(self, kind: int, payload: bytes | Sequence[Buffer], bytes_max: int) -> list[Buffer] | None:
        """The payload of a PACKED frame; None: it is not worth it, or more than a frame may have."""
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
    """The kind and the payload of the frame that was packed. Raises BadPacked."""
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
