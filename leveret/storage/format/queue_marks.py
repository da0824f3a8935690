"""Marks: a small table of names and values that each queue has in its log beside its messages.

It has what a queue must remember besides messages: the position of a lease, the last number of a producer. A block
contains the names that changed, with their new values; an empty value removes a name. So a change of a message
(settled, enqueued) and the mark that belongs to it are in one block, and are kept or lost together.

**Versions.** Sets of numbers can be added in any order; a table in which the last value counts cannot. So a mark has
the number of the block that set it, and the higher of two is valid. Within one log that is the order of the blocks
anyway. It matters for a mirror that is being filled: the table that it gets (with the first piece) may be older or
newer than the blocks that it has applied by then. Until it is complete, it also remembers removed names, so that an
older table does not bring them back.

    block 7: a=1    block 8: a=      table of block 7: a=1 (7)      →  nothing: 8 is higher

The marks that such a mirror had before are void: names that were removed since would stay with it for ever. At a start,
a segment's plain blocks are read before the records of mirrored queues, and blocks in the checkpoint are read again;
there, too, the numbers decide, and removed names are dropped when all is read.

The table is in memory, in checkpoints and in each segment's index, so it must be small: see the limits below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final

from leveret.base.shared_values import NO_DICT
from leveret.storage.format.errors import FormatError

KEY_BYTES_MAX: Final = 512
VALUE_BYTES_MAX: Final = 64 << 10
KEYS_MAX: Final = 4_096
TABLE_BYTES_MAX: Final = 1 << 20
_COLUMN_KEYS_MAX: Final = 2 * KEYS_MAX  # One block may remove all names of a full table and fill it again.

_MARK: Final = Struct("<QHI")  # number of the block that set it, length of the name, length of the value

Mark = tuple[int, bytes, bytes]  # The number of the block that set it, name, value.


class Marks:
    """The marks of a queue."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        # By name: block number and value; an empty value: removed.
        self.known: dict[bytes, tuple[int, bytes]] = NO_DICT

    def __bool__(self) -> bool:
        return bool(self.known)

    def fold(self, marks: Iterable[Mark]) -> None:
        known = self.known or {}
        for number, key, value in marks:
            if number >= known.get(key, (0, b""))[0]:
                known[key] = (number, value)
        self.known = known or NO_DICT

    def cut(self, number: int) -> None:
        """Drop the marks that were set by blocks up to this number."""
        self.known = {key: mark for key, mark in self.known.items() if mark[0] > number} or NO_DICT

    def tidy(self) -> None:
        """Drop removed names: no older marks will be added any more."""
        removed = [key for key, (_, value) in self.known.items() if not value]
        for key in removed:
            del self.known[key]

    def all(self) -> list[Mark]:
        return [(number, key, value) for key, (number, value) in self.known.items()]

    def values(self) -> dict[bytes, bytes]:
        return {key: value for key, (_, value) in self.known.items() if value}


def fits(table: Mapping[bytes, bytes], key: bytes, value: bytes) -> bool:
    """Return whether a table with this value for the key is within the limits."""
    if not value or (key in table and len(value) <= len(table[key])):
        return True
    if len(key) > KEY_BYTES_MAX or len(value) > VALUE_BYTES_MAX or (key not in table and len(table) >= KEYS_MAX):
        return False
    held = sum(map(len, table)) + sum(map(len, table.values())) - len(table.get(key, b""))
    return held + len(value) + (0 if key in table else len(key)) <= TABLE_BYTES_MAX


def marks_of(number: int, changed: Mapping[bytes, bytes]) -> list[Mark]:
    """Return the marks of a block with this number."""
    return [(number, key, value) for key, value in changed.items()]


def marks_bytes(marks: Iterable[Mark]) -> int:
    return sum(_MARK.size + len(key) + len(value) for _, key, value in marks)


def pack_marks(marks: Iterable[Mark]) -> bytes:
    parts: list[bytes] = []
    for number, key, value in marks:
        parts += (_MARK.pack(number, len(key), len(value)), key, value)
    return b"".join(parts)


def unpack_marks(data: bytes | memoryview) -> list[Mark]:
    """Return the marks in a column. Raises `FormatError`."""
    marks: list[Mark] = []
    at, end = 0, len(data)
    while at < end:
        if at + _MARK.size > end:
            raise FormatError("marks are cut off")
        number, key_bytes, value_bytes = _MARK.unpack_from(data, at)
        at += _MARK.size
        if key_bytes > KEY_BYTES_MAX or value_bytes > VALUE_BYTES_MAX or at + key_bytes + value_bytes > end:
            raise FormatError("a mark is too long, or cut off")
        middle, after = at + key_bytes, at + key_bytes + value_bytes
        marks.append((number, bytes(data[at:middle]), bytes(data[middle:after])))
        at = after
    if len(marks) > _COLUMN_KEYS_MAX:
        raise FormatError(f"{len(marks)} marks; there are {_COLUMN_KEYS_MAX} at most")
    return marks
