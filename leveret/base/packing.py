"""Numbers, texts and byte strings as bytes, read back strictly.

Any error in received bytes is a `BadMessage`; nothing else is ever raised.
"""

from __future__ import annotations

import struct
from typing import Final

TEXT_BYTES_MAX: Final = 255

_U8: Final = struct.Struct(">B")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


class BadMessage(ValueError):
    """Bytes are not what a node of this cluster could have written."""


def pack_text(text: str) -> bytes:
    data = text.encode()
    if len(data) > TEXT_BYTES_MAX:
        raise ValueError(f"a text of {len(data)} bytes; at most {TEXT_BYTES_MAX} are allowed")
    return _U8.pack(len(data)) + data


class Reader:
    """Reads one value after the other; `end` checks that no bytes are left."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def number(self, form: struct.Struct) -> int:
        end = self.at + form.size
        if end > len(self.data):
            raise BadMessage(f"ends at byte {len(self.data)}, in the middle of a number")
        value: int = form.unpack_from(self.data, self.at)[0]
        self.at = end
        return value

    def u8(self) -> int:
        return self.number(_U8)

    def u32(self) -> int:
        return self.number(_U32)

    def u64(self) -> int:
        return self.number(_U64)

    def flag(self) -> bool:
        value = self.u8()
        if value > 1:
            raise BadMessage(f"{value} at byte {self.at - 1} is neither true nor false")
        return value == 1

    def blob(self, size: int, size_max: int) -> bytes:
        if size > size_max:
            raise BadMessage(f"{size} bytes at byte {self.at}; at most {size_max} are allowed")
        end = self.at + size
        if end > len(self.data):
            raise BadMessage(f"ends at byte {len(self.data)}; {size} bytes were announced at byte {self.at}")
        value = self.data[self.at : end]
        self.at = end
        return value

    def text(self) -> str:
        at = self.at
        try:
            return self.blob(self.u8(), TEXT_BYTES_MAX).decode()
        except UnicodeDecodeError as error:
            raise BadMessage(f"the text at byte {at} is not UTF-8") from error

    def end(self) -> None:
        if self.at != len(self.data):
            raise BadMessage(f"{len(self.data) - self.at} bytes too many")
