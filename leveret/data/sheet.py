"""A sheet: messages of one queue as columns, the answer to a bulk read.

A node makes a sheet from blocks of the log, column by column, by joining packed bytes; nothing is done for each single
message, neither when the sheet is written nor when it is turned into a table. Holes are normal: settled messages are
missing, and `next` says how far the answer reaches all the same.

All numbers are little-endian. The columns come in this order, each as long as the head says, with nothing between:

    head      magic "LVSH", u16 version, u16 flags (0), u32 count, u32 runs, u32 times, u32 bytes of keys,
              u64 bytes of the body, u64 next: the number to continue with
    runs      u64 first, u64 last: the numbers of the messages, ascending, in runs without holes
    times_ms  u64 for each stretch of messages that arrived at one time: milliseconds since 1970
    sizes     u32 for each message: the bytes of its content in the body
    times_at  u32 for each of those stretches: the index at which it begins; the first is 0
    kinds     u8 for each message: 1 persistent, 2 redelivered, 8 has an expiration of its own
    keys      for each stretch of equal keys u32 count, u16 length, key: exchange and routing key, each with its length
              in one byte before it
    body      contents, one after the other. A content is the AMQP header frame and the body frames as they were
              published; the channel numbers in them mean nothing

A time of 0 is unknown: arrival times of messages that are only in memory are not kept. If that holds for a whole sheet,
it has no times (`times` is 0). The order of the columns keeps the wide ones aligned, so that they can be mapped into
arrays.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from struct import Struct
from typing import Final, NamedTuple

from leveret.base import message_flags

MEDIA_TYPE: Final = "application/vnd.leveret.sheet"
MAGIC: Final = b"LVSH"
VERSION: Final = 1
COUNT_MAX: Final = 1 << 28

PERSISTENT: Final = message_flags.PERSISTENT
REDELIVERED: Final = message_flags.REDELIVERED
EXPIRES: Final = message_flags.EXPIRES

HEAD: Final = Struct("<4sHHIIIIQQ")
_STRETCH: Final = Struct("<IH")
_FRAME: Final = Struct(">BHI")
_BIG_ENDIAN: Final = sys.byteorder == "big"
_UNKNOWN: Final = ((0, 0),)

Buffer = bytes | bytearray | memoryview


class BadSheet(ValueError):
    """The bytes are no sheet."""


class Part(NamedTuple):
    """Messages for a sheet: part of a block, or messages in memory."""

    ranges: Sequence[tuple[int, int]]  # Ascending, with gaps between them.
    times: Sequence[tuple[int, int]]  # (index, ms); may be empty.
    sizes: Buffer  # Packed as in the sheet, as are kinds and keys.
    kinds: Buffer
    keys: Buffer
    body: Sequence[Buffer]

    @property
    def messages(self) -> int:
        return len(self.kinds)

    @property
    def bytes(self) -> int:
        return sum(map(len, self.body))


class Message(NamedTuple):
    """One message of a sheet. For many messages the columns are faster."""

    number: int
    ms: int  # Time of arrival; 0: unknown.
    exchange: bytes
    routing_key: bytes
    kind: int
    content: memoryview

    @property
    def header(self) -> memoryview:
        """Returns the payload of the header frame: class, weight, size of the body, flags, properties."""
        return self.content[_FRAME.size : _FRAME.size + _FRAME.unpack_from(self.content)[2]]

    @property
    def body(self) -> bytes:
        content = self.content
        at = _FRAME.size + _FRAME.unpack_from(content)[2] + 1
        pieces = []
        while at < len(content):
            size = _FRAME.unpack_from(content, at)[2]
            pieces.append(content[at + _FRAME.size : at + _FRAME.size + size])
            at += _FRAME.size + size + 1
        return b"".join(pieces)


class Sheet:
    """A decoded sheet. Short columns are unpacked, the others are views of the bytes."""

    __slots__ = ("body", "count", "keys", "kinds", "next", "ranges", "sizes", "times")

    def __init__(
        self,
        count: int,
        following: int,
        ranges: list[tuple[int, int]],
        times: list[tuple[int, int]],
        sizes: memoryview,
        kinds: memoryview,
        keys: list[tuple[int, bytes, bytes]],
        body: memoryview,
    ) -> None:
        self.count = count
        self.next = following  # The sheet has all messages below, from the start of the read on.
        self.ranges = ranges  # (first, last) numbers of runs without holes, ascending.
        self.times = times  # (index of the first message, ms or 0) of stretches with one time. May be empty.
        self.sizes = sizes  # Little-endian u32 for each message: numpy.frombuffer(sheet.sizes, "<u4").
        self.kinds = kinds  # u8 for each message.
        self.keys = keys  # (count, exchange, routing key) of stretches.
        self.body = body  # Contents, one after the other.

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        first = self.ranges[0][0] if self.ranges else self.next
        return f"Sheet({self.count} messages, {first}..{self.next - 1})"

    def numbers(self) -> Iterator[int]:
        return chain.from_iterable(range(first, last + 1) for first, last in self.ranges)

    def __iter__(self) -> Iterator[Message]:
        numbers = self.numbers()
        keys = chain.from_iterable(((exchange, key),) * count for count, exchange, key in self.keys)
        sizes = _unpacked("I", self.sizes)
        times, stretch, ms, at = self.times, 0, 0, 0
        for index, (number, key, size, kind) in enumerate(zip(numbers, keys, sizes, self.kinds, strict=True)):
            while stretch < len(times) and times[stretch][0] <= index:
                ms = times[stretch][1]
                stretch += 1
            yield Message(number, ms, *key, kind, self.body[at : at + size])
            at += size


# -- Writing -----------------------------------------------------------------------------------------------------------


def encode(parts: Sequence[Part], following: int, shift: int = 0) -> list[Buffer]:
    """Encodes ascending parts as a sheet, in pieces to be sent one after the other. Adds `shift` to all numbers."""
    runs: list[int] = []
    times_at: list[int] = []
    times_ms: list[int] = []
    count = 0
    for part in parts:
        for first, last in part.ranges:
            if runs and runs[-1] == first - 1 + shift:
                runs[-1] = last + shift
            else:
                runs += (first + shift, last + shift)
        for at, ms in part.times or _UNKNOWN:
            if not times_ms or times_ms[-1] != ms:
                times_at.append(at + count)
                times_ms.append(ms)
        count += part.messages
    if times_ms == [0]:
        times_at, times_ms = [], []
    keys = _joined_keys([part.keys for part in parts])
    body = [piece for part in parts for piece in part.body]
    head = HEAD.pack(
        MAGIC, VERSION, 0, count, len(runs) // 2, len(times_ms), len(keys), sum(map(len, body)), following + shift
    )
    columns = (
        head, _packed("Q", runs), _packed("Q", times_ms), *(part.sizes for part in parts), _packed("I", times_at),
        *(part.kinds for part in parts), keys,
    )  # fmt: skip
    return [b"".join(columns), *body]


def _joined_keys(columns: Sequence[Buffer]) -> bytes:
    """Joins neighbouring columns with the same single key to one stretch: usually all of them."""
    joined: list[Buffer] = []
    count, key = 0, b""
    for column in columns:
        times, length = _STRETCH.unpack_from(column)
        single = bytes(column[_STRETCH.size :]) if len(column) == _STRETCH.size + length else None
        if count and single == key:
            count += times
            continue
        if count:
            joined.append(_STRETCH.pack(count, len(key)) + key)
            count = 0
        if single is None:
            joined.append(column)
        else:
            count, key = times, single
    if count:
        joined.append(_STRETCH.pack(count, len(key)) + key)
    return b"".join(joined)


def _packed(code: str, numbers: Sequence[int]) -> bytes:
    packed = array(code, numbers)
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


# -- Reading -----------------------------------------------------------------------------------------------------------


def decode(data: Buffer) -> Sheet:
    """Decodes a sheet. Copies only the short columns: the sheet keeps `data`. Raises BadSheet."""
    view = memoryview(data)
    if len(view) < HEAD.size:
        raise BadSheet("a sheet is cut off in its head")
    magic, version, flags, count, runs, times, key_bytes, body_bytes, following = HEAD.unpack_from(view)
    if magic != MAGIC:
        raise BadSheet("no sheet begins here")
    if version != VERSION or flags:
        raise BadSheet(f"a sheet has version {version}, flags {flags}; this program reads version {VERSION}")
    if count > COUNT_MAX or len(view) != HEAD.size + 16 * runs + 12 * times + 5 * count + key_bytes + body_bytes:
        raise BadSheet("a sheet's length does not fit its head")
    at = HEAD.size
    columns = []
    for length in (16 * runs, 8 * times, 4 * count, 4 * times, count, key_bytes, body_bytes):
        columns.append(view[at : at + length])
        at += length
    numbers = _unpacked("Q", columns[0])
    ranges = list(zip(numbers[::2], numbers[1::2], strict=True))
    stretches = list(zip(_unpacked("I", columns[3]), _unpacked("Q", columns[1]), strict=True))
    if sum(last - first + 1 for first, last in ranges) != count or any(map(_is_backwards, pairwise([-1, *numbers]))):
        raise BadSheet("a sheet's numbers do not fit its count")
    if any(map(_is_backwards, pairwise(at for at, _ in stretches))) or any(at >= count for at, _ in stretches[-1:]):
        raise BadSheet("a sheet's times do not fit its count")
    if sum(_unpacked("I", columns[2])) != body_bytes:
        raise BadSheet("a sheet's sizes do not fit its body")
    return Sheet(count, following, ranges, stretches, columns[2], columns[4], _keys(columns[5], count), columns[6])


def _is_backwards(pair: tuple[int, int]) -> bool:
    return pair[0] > pair[1]


def _keys(data: memoryview, count: int) -> list[tuple[int, bytes, bytes]]:
    keys = []
    at = total = 0
    while at < len(data):
        if at + _STRETCH.size > len(data):
            raise BadSheet("a sheet's keys are cut off")
        times, length = _STRETCH.unpack_from(data, at)
        at += _STRETCH.size
        key = bytes(data[at : at + length])
        middle = 1 + key[0] if key else 1
        if len(key) != length or middle >= length or length != middle + 1 + key[middle]:
            raise BadSheet("a sheet's keys are cut off")
        keys.append((times, key[1:middle], key[middle + 1 :]))
        total += times
        at += length
    if total != count:
        raise BadSheet("a sheet's keys do not fit its count")
    return keys


def _unpacked(code: str, data: memoryview) -> array[int]:
    numbers = array(code)
    numbers.frombytes(data)
    if _BIG_ENDIAN:
        numbers.byteswap()
    return numbers
