"""Groups and blocks as bytes. See docs/log-format.md for the layout field by field.

One write of the log is one *group*: a head, then blocks, each a head with packed columns (its *meta*) and a body of raw
contents. All numbers are little-endian.

Three checks keep stale bytes from being taken for new ones. Segment files are recycled, so the last group of a file is
followed by well-formed groups of an earlier segment, and pieces of a torn write may remain after it was cut off.

- A group head contains the number of its segment and its own offset; the checksum of a block's meta covers segment and
  offset too. Bytes that were written for another segment, or elsewhere in this one, are never valid.
- A group head contains the checksum of the group before (the *chain*), and its checksum covers those of all its blocks.
  So a group that followed a torn write is not valid after the write that replaced it.
- Lengths in a head must be within the file, and no buffer is allocated from an unchecked length.

Encoding is the hot path of every persistent publish. The usual block (all messages persistent, none shared) takes a
fixed number of C-level calls and nothing per message in Python.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby, islice, pairwise, repeat
from operator import eq
from struct import Struct

from zlib_ng.zlib_ng import crc32

from leveret.storage.format.errors import FormatError
from leveret.storage.format.queue_block import EXPIRES, LASTING_KIND, PERSISTENT, REDELIVERED, SHARED, Run
from leveret.storage.format.queue_marks import Mark, pack_marks, unpack_marks

VERSION = 1
MAGIC = b"LVRG"
CONTENT_BYTES_MAX = 1 << 30
META_BYTES_MAX = 1 << 30

# magic, version, flags, segment, offset, length, synced, previous length, previous crc, blocks, blocks crc, crc
GROUP_HEAD = Struct("<4sHHQQQQQIIII")
_GROUP_START = Struct("<4sHHQ")
# meta length, body length, queue, epoch, number, time_ms, first, next, delivered_through, count, body crc, columns,
# type, flags, meta crc
BLOCK_HEAD = Struct("<IIQQQQQQQIIHBBI")
_SALT = Struct("<QQ")
_U32 = Struct("<I")
_KEY = Struct("<IH")
_BACK = Struct("<Q")
_TIME = Struct("<IQ")
_COUNT = Struct("<QQI")

# Block types.
NORMAL = 0
MOVED = 1  # A copy of live messages from a segment that is emptied: says where contents are, changes no state.
SPILL = 2  # Transient contents, written to free memory; void after a restart.
CONTENTS = 3  # Contents that several blocks of this group refer to.
FORGET = 4  # All earlier blocks of this queue are void.
# Records of a mirrored queue. Their order matters, and a NOTE has it; see `storage.mirror_log` for what each does.
MIRRORED = 5  # A whole block of the ring. It takes effect when a later record says that it is confirmed.
TRUNCATED = 6  # Blocks above this number are void.
RESTARTED = 7  # The queue's log starts again after this number.
FILLED = 8  # The live messages of a range below the cut, and contents of some of them.
COMPLETED = 9  # The copy is complete.
RELEASED = 10  # All blocks take effect, and the queue is no longer mirrored.
_TYPE_MAX = RELEASED

# Flags.
PART = 1  # More of the same block or piece follows: it is not complete yet.
COPY = 2  # A copy of a MIRRORED block that was written before: only says where it is.
FRESH = 4  # With RESTARTED: all earlier blocks of this queue are void, as after FORGET.
BEGUN = 8  # The first record of this queue as a mirrored one.
_FLAGS_KNOWN = PART | COPY | FRESH | BEGUN

# Columns, in the order of their bits.
SIZES = 1  # u32 a record
KINDS = 2  # u8 a record; absent: all PERSISTENT
RANGES = 4  # u64 pairs: the numbers of first..next-1 that are stored; absent: all
KEYS = 8  # (u32 count, u16 length, key) for each run of equal keys, or for parts of it
SETTLED = 16  # u64 pairs
REQUEUED = 32  # u64 pairs
SHARES = 64  # u64 distance back to the shared contents, then (u32 position, u32 crc) a record
NOTE = 128  # u64s of a mirrored queue's record: its serial number, what is confirmed, and what its type needs
TIMES = 256  # (u32 index, u64 ms) for each run of messages that arrived at one time; absent: all at the block's
COUNTS = 512  # (u64 first, u64 last, u32 count) for each run of messages that were requeued equally often
MARKS = 1024  # (u64 number, u16 length, u32 length, name, value) for each of the queue's marks that changed
_COLUMNS_KNOWN = 2047
_OWN = 0xFFFFFFFF  # In SHARES: this record's content is in the block's own body.

_COUNT_MAX = 1 << 28
_LENGTHS = [Struct(f"<{n}I") for n in range(17)]
_FEW_EQUAL = 8  # If fewer than one of so many keys equals the key before, each is written by itself.
_BIG_ENDIAN = sys.byteorder == "big"
_STORED_KIND = bytes((kind | PERSISTENT) & (PERSISTENT | REDELIVERED | EXPIRES) for kind in range(256))
_SPILLED_KIND = bytes(kind & (REDELIVERED | EXPIRES) for kind in range(256))

Ranges = Sequence[tuple[int, int]]
Counts = Sequence[tuple[int, int, int]]
Marks = Sequence[Mark]


class Records:
    """The stored messages of a block: like a `Run`, but the numbers may have holes."""

    __slots__ = ("ranges", "contents", "keys", "kinds", "times")

    def __init__(
        self,
        ranges: list[tuple[int, int]],
        contents: list[bytes],
        keys: list[bytes],
        kinds: bytes,
        times: list[tuple[int, int]],
    ) -> None:
        self.ranges = ranges
        self.contents = contents
        self.keys = keys
        self.kinds = kinds
        self.times = times

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Records:
        """Return the messages of ascending runs."""
        if len(runs) == 1:
            run = runs[0]
            return cls([(run.first, run.last)], run.contents, run.keys, bytes(run.kinds), run.times)
        times: list[tuple[int, int]] = []
        count = 0
        for run in runs:
            for at, time in run.times:  # The first ones have no time if theirs is unknown.
                times.append((at + count if times else 0, time))
            count += len(run.contents)
        return cls(
            [(run.first, run.last) for run in runs],
            [content for run in runs for content in run.contents],
            [key for run in runs for key in run.keys],
            b"".join(run.kinds for run in runs),
            times,
        )

    def all_of(self) -> Records:
        """Return the same messages without ranges: all numbers from the first to the last."""
        return Records([], self.contents, self.keys, self.kinds, self.times)


class Header:
    """The fields of a block's head, and its columns."""

    __slots__ = (
        "meta_length", "body_length", "queue", "epoch", "number", "time_ms", "first", "next", "delivered_through",
        "count", "body_crc", "type", "flags", "columns", "overhead",
    )  # fmt: skip

    meta_length: int
    body_length: int
    queue: int
    epoch: int
    number: int
    time_ms: int
    first: int
    next: int
    delivered_through: int
    count: int
    body_crc: int
    type: int
    flags: int
    columns: dict[int, memoryview]
    overhead: int  # Bytes of meta that a copy of only the messages needs too.

    def unpack(self, data: memoryview) -> tuple[int, int]:
        """Take the fields from a block's head. Return which columns it has, and its checksum."""
        (
            self.meta_length, self.body_length, self.queue, self.epoch, self.number, self.time_ms, self.first,
            self.next, self.delivered_through, self.count, self.body_crc, columns, self.type, self.flags, crc,
        ) = BLOCK_HEAD.unpack_from(data)  # fmt: skip
        return columns, crc

    def set_columns(self, columns: dict[int, memoryview]) -> None:
        self.columns = columns
        changes = sum(len(columns.get(bit, _EMPTY)) for bit in (SETTLED, REQUEUED, COUNTS, MARKS))
        self.overhead = self.meta_length - changes

    def drop_contents(self) -> None:
        """Take the block as one without messages: its contents are damaged, the rest of it is valid."""
        self.count = 0

    @property
    def length(self) -> int:
        return self.meta_length + self.body_length

    def settled(self) -> list[tuple[int, int]]:
        return unpack_ranges(self.columns.get(SETTLED, _EMPTY))

    def requeued(self) -> list[tuple[int, int]]:
        return unpack_ranges(self.columns.get(REQUEUED, _EMPTY))

    def counts(self) -> list[tuple[int, int, int]]:
        if COUNTS not in self.columns:
            return []
        counts = list(_COUNT.iter_unpack(self.columns[COUNTS]))
        if any(first > last for first, last, _ in counts) or any(one[1] >= two[0] for one, two in pairwise(counts)):
            raise FormatError("counts do not ascend")
        return counts

    def marks(self) -> list[Mark]:
        return unpack_marks(self.columns[MARKS]) if MARKS in self.columns else []

    def stored(self) -> list[tuple[int, int]]:
        """Return the numbers of the messages in this block."""
        if not self.count:
            return []
        if RANGES in self.columns:
            return unpack_ranges(self.columns[RANGES])
        return [(self.first, self.next - 1)]

    def note(self) -> array[int]:
        if NOTE not in self.columns or len(self.columns[NOTE]) < 16:
            raise FormatError("a mirrored queue's record lacks its note")
        return unpack_u64(self.columns[NOTE])

    def content_bytes(self) -> int:
        if SHARES in self.columns:
            return sum(unpack_u32(self.columns[SIZES]))
        return self.body_length


_EMPTY = memoryview(b"")


# -- packed numbers ------------------------------------------------------------


def pack_u32(numbers: Iterable[int]) -> bytes:
    packed = array("I", numbers)
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


def unpack_u32(data: memoryview | bytes) -> array[int]:
    numbers = array("I")
    numbers.frombytes(data)
    if _BIG_ENDIAN:
        numbers.byteswap()
    return numbers


def pack_u64(numbers: Iterable[int]) -> bytes:
    packed = array("Q", numbers)
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


def unpack_u64(data: memoryview | bytes) -> array[int]:
    numbers = array("Q")
    numbers.frombytes(data)
    if _BIG_ENDIAN:
        numbers.byteswap()
    return numbers


def pack_ranges(ranges: Ranges) -> bytes:
    return pack_u64([number for pair in ranges for number in pair])


def unpack_ranges(data: memoryview | bytes) -> list[tuple[int, int]]:
    numbers = unpack_u64(data)
    return list(zip(numbers[::2], numbers[1::2], strict=True))


# -- encoding --------------------------------------------------------------------


def encode_keys(keys: Sequence[bytes]) -> bytes:
    first = keys[0]
    if keys.count(first) == len(keys):  # The usual case: one publisher, one route, thus one object.
        return _KEY.pack(len(keys), len(first)) + first
    if _FEW_EQUAL * sum(map(eq, keys, islice(keys, 1, None))) < len(keys):
        # Publishers that use many keys. To tell the few runs of equal keys would take five times as long.
        parts = [b""] * (2 * len(keys))
        parts[0::2] = map(_KEY.pack, repeat(1), map(len, keys))
        parts[1::2] = keys
    else:
        parts = [_KEY.pack(len(list(equal)), len(key)) + key for key, equal in groupby(keys)]
    return b"".join(parts)


APART_BYTES = 4096  # Contents with at least this mean size are written without joining them.


def encode_block(
    segment: int,
    offset: int,
    fields: tuple[int, int, int, int, int, int, int],
    records: Records | None,
    settled: Ranges,
    requeued: Ranges,
    type: int = NORMAL,
    flags: int = 0,
    shared: SharedBody | None = None,
    note: bytes = b"",
    counts: Counts = (),
    marks: Marks = (),
) -> tuple[bytes, list[bytes], int]:
    """Return (meta, body in parts, overhead). `fields`: queue, epoch, number, time_ms, first, next, delivered_through.
    An empty `records.ranges` means that all of first..next-1 is stored. `shared`: the contents of the group that
    several blocks share."""
    columns = 0
    lengths: list[int] = []
    parts: list[bytes] = []
    body: list[bytes] = []
    count = body_crc = 0
    if records is not None:
        contents = records.contents
        count = len(contents)
        if shared is None:
            content_sizes = list(map(len, contents))
            sizes = pack_u32(content_sizes)
            # Large contents are written without a copy; small ones are joined, because a system call is faster with
            # one.
            body = contents if sum(content_sizes) >= APART_BYTES * count else [b"".join(contents)]
        else:
            sizes, joined, column = shared.refer(contents, offset)
            body = [joined]
        kinds = records.kinds
        wanted = (kinds.count(PERSISTENT) == count) if type != SPILL else (kinds.count(0) == count)
        parts.append(sizes)
        columns = SIZES | KEYS
        lengths.append(4 * count)
        if not wanted:
            columns |= KINDS
            parts.append(bytes(kinds))
            lengths.append(count)
        if records.ranges:
            columns |= RANGES
            parts.append(pack_ranges(records.ranges))
            lengths.append(16 * len(records.ranges))
        keys = encode_keys(records.keys)
        parts.append(keys)
        lengths.append(len(keys))
        for piece in body:
            body_crc = crc32(piece, body_crc)
    if settled:
        columns |= SETTLED
        parts.append(pack_ranges(settled))
        lengths.append(16 * len(settled))
    if requeued:
        columns |= REQUEUED
        parts.append(pack_ranges(requeued))
        lengths.append(16 * len(requeued))
    if records is not None and shared is not None:
        columns |= SHARES
        parts.append(column)
        lengths.append(len(column))
    if note:
        columns |= NOTE
        parts.append(note)
        lengths.append(len(note))
    if records is not None and records.times:
        columns |= TIMES
        parts.append(b"".join([_TIME.pack(*stretch) for stretch in records.times]))
        lengths.append(len(parts[-1]))
    if counts:
        columns |= COUNTS
        parts.append(b"".join([_COUNT.pack(*stretch) for stretch in counts]))
        lengths.append(len(parts[-1]))
    marks_bytes = 0
    if marks:
        columns |= MARKS
        parts.append(pack_marks(marks))
        marks_bytes = len(parts[-1])
        lengths.append(marks_bytes)
    tail = _LENGTHS[len(lengths)].pack(*lengths) + b"".join(parts)
    meta_length = BLOCK_HEAD.size + len(tail)
    head = BLOCK_HEAD.pack(meta_length, sum(map(len, body)), *fields, count, body_crc, columns, type, flags, 0)[:-4]
    crc = crc32(tail, crc32(head, crc32(_SALT.pack(segment, offset))))
    overhead = meta_length - 16 * (len(settled) + len(requeued)) - _COUNT.size * len(counts) - marks_bytes
    return head + _U32.pack(crc) + tail, body, overhead


def encode_again(
    segment: int, offset: int, meta: bytes, type: int, flags: int, note: bytes
) -> tuple[bytes, int]:
    """Return (meta, overhead) of a block that came as bytes from another node, for its offset here. Its columns and its
    body stay as they are, so that its messages need not be decoded."""
    *fields, columns, _, _, _ = BLOCK_HEAD.unpack_from(meta)
    lengths_end = BLOCK_HEAD.size + 4 * columns.bit_count()
    # Columns are in the order of their bits; only these come after NOTE.
    after = (columns & (TIMES | COUNTS | MARKS)).bit_count()
    split = lengths_end - 4 * after
    end = len(meta) - sum(_LENGTHS[after].unpack_from(meta, split))
    lengths = (meta[BLOCK_HEAD.size : split], _U32.pack(len(note)), meta[split:lengths_end])
    tail = b"".join((*lengths, meta[lengths_end:end], note, meta[end:]))
    meta_length = BLOCK_HEAD.size + len(tail)
    head = BLOCK_HEAD.pack(meta_length, *fields[1:], columns | NOTE, type, flags, 0)[:-4]
    crc = crc32(tail, crc32(head, crc32(_SALT.pack(segment, offset))))
    return head + _U32.pack(crc) + tail, meta_length


def stored_kinds(kinds: bytes | bytearray, type: int) -> bytes:
    if type == NORMAL:
        return bytes(kinds.translate(_STORED_KIND))
    return bytes(kinds.translate(_SPILLED_KIND if type == SPILL else LASTING_KIND))


class SharedBody:
    """The contents of a group that several of its blocks share, and their positions, by the object's id."""

    __slots__ = ("_contents", "_numbers", "_own", "_sizes", "places", "start")

    def __init__(self, start: int, places: dict[int, tuple[int, int]]) -> None:
        self.start = start  # The offset of the body in the segment.
        self.places = places  # By id of the content: position in the body, checksum.
        self._contents: list[bytes] = []  # Those of the block before: in a fan-out, the next block has the same.
        self._sizes = self._own = self._numbers = b""

    def has_some(self, contents: list[bytes]) -> bool:
        return contents == self._contents or any(id(content) in self.places for content in contents)

    def refer(self, contents: list[bytes], offset: int) -> tuple[bytes, bytes, bytes]:
        """Return the column of sizes, the own body and the column of shares of a block at `offset`."""
        if contents != self._contents:
            own: list[bytes] = []
            numbers: list[int] = []
            for content in contents:
                place = self.places.get(id(content))
                if place is None:
                    own.append(content)
                    numbers += (_OWN, 0)
                else:
                    numbers += place
            self._contents, self._sizes = contents, pack_u32(map(len, contents))
            self._own, self._numbers = b"".join(own), pack_u32(numbers)
        return self._sizes, self._own, _BACK.pack(offset - self.start) + self._numbers


def share_contents(blocks: Iterable[Records]) -> tuple[list[bytes], dict[int, tuple[int, int]]]:
    """Return the contents that occur more than once, and by id their position in a common body and checksum."""
    seen: set[int] = set()
    places: dict[int, tuple[int, int]] = {}
    contents: list[bytes] = []
    at = 0
    before: list[bytes] = []
    times = 0  # How often in a row the contents were the same.
    for records in blocks:
        times = times + 1 if records.contents == before else 1
        if times > 2:
            continue
        before = records.contents
        for content, kind in zip(records.contents, records.kinds, strict=True):
            if not kind & SHARED:
                continue
            name = id(content)
            if name in seen and name not in places and at + len(content) < _OWN:
                places[name] = (at, crc32(content))
                contents.append(content)
                at += len(content)
            seen.add(name)
    return contents, places


def encode_group_head(
    segment: int, offset: int, length: int, synced: int, previous_length: int, previous: int, meta_crcs: Sequence[bytes]
) -> tuple[bytes, int]:
    """Return (head, its checksum: the next group's `previous`)."""
    blocks = b"".join(meta_crcs)
    head = GROUP_HEAD.pack(
        MAGIC, VERSION, 0, segment, offset, length, synced, previous_length, previous, len(meta_crcs), crc32(blocks), 0
    )[:-4]
    crc = crc32(head)
    return head + _U32.pack(crc), crc


def meta_crc(meta: bytes | memoryview) -> bytes:
    return bytes(meta[BLOCK_HEAD.size - 4 : BLOCK_HEAD.size])


# -- decoding --------------------------------------------------------------------


class GroupHead:
    """The decoded head of a group."""

    __slots__ = ("segment", "offset", "length", "synced", "previous_length", "previous", "blocks", "blocks_crc", "crc")

    def __init__(self, fields: tuple[int, ...]) -> None:
        (
            self.segment, self.offset, self.length, self.synced, self.previous_length, self.previous, self.blocks,
            self.blocks_crc, self.crc,
        ) = fields  # fmt: skip


def group_start(segment: int) -> bytes:
    """Return the bytes with which every group of a segment starts: a scan looks for them after a damaged group."""
    return _GROUP_START.pack(MAGIC, VERSION, 0, segment)


def parse_group_head(data: bytes | memoryview, segment: int, offset: int) -> GroupHead:
    if len(data) < GROUP_HEAD.size:
        raise FormatError("cut off in a group head")
    magic, version, flags, *fields = GROUP_HEAD.unpack_from(data)
    if magic != MAGIC:
        raise FormatError("no group starts here")
    head = GroupHead(tuple(fields))
    if crc32(data[: GROUP_HEAD.size - 4]) != head.crc:
        raise FormatError("group head checksum is wrong")
    if version != VERSION or flags:
        raise FormatError(f"group has format version {version}, flags {flags}; this program reads version {VERSION}")
    if head.segment != segment or head.offset != offset:
        raise FormatError(f"group was written for segment {head.segment} at {head.offset}")
    if head.length < GROUP_HEAD.size or head.blocks * BLOCK_HEAD.size > head.length:
        raise FormatError("group length is impossible")
    return head


def parse_meta(data: memoryview, segment: int, offset: int) -> Header:
    """Return the head and columns at the start of `data`, which must reach to the end of the group or the block."""
    if len(data) < BLOCK_HEAD.size:
        raise FormatError("cut off in a block head")
    header = Header()
    columns, crc = header.unpack(data)
    if not BLOCK_HEAD.size <= header.meta_length <= min(len(data), META_BYTES_MAX):
        raise FormatError("block meta length is impossible")
    seed = crc32(data[: BLOCK_HEAD.size - 4], crc32(_SALT.pack(segment, offset)))
    if crc32(data[BLOCK_HEAD.size : header.meta_length], seed) != crc:
        raise FormatError("block meta checksum is wrong")
    if columns & ~_COLUMNS_KNOWN or header.type > _TYPE_MAX or header.flags & ~_FLAGS_KNOWN:
        raise FormatError(
            f"block has type {header.type}, flags {header.flags:#x}, columns {columns:#x}: written by a newer version"
        )
    header.set_columns(_split_columns(data, header.meta_length, columns))
    _check_columns(header)
    return header


def _split_columns(data: memoryview, end: int, columns: int) -> dict[int, memoryview]:
    at = BLOCK_HEAD.size + 4 * columns.bit_count()
    if at > end:
        raise FormatError("column lengths are cut off")
    lengths = _LENGTHS[columns.bit_count()].unpack_from(data, BLOCK_HEAD.size)
    found = {}
    bit = 1
    for length in lengths:
        while not columns & bit:
            bit <<= 1
        if at + length > end:
            raise FormatError("a column reaches past its block")
        found[bit] = data[at : at + length]
        at += length
        bit <<= 1
    if at != end:
        raise FormatError("columns do not fill their block")
    return found


def _check_columns(header: Header) -> None:
    """Check that the lengths of columns fit the count. Their contents are under a checksum and checked when used."""
    columns, count = header.columns, header.count
    if count > _COUNT_MAX or header.first > header.next:
        raise FormatError("counts are impossible")
    if bool(count) != (SIZES in columns) or (count and KEYS not in columns and header.type != CONTENTS):
        raise FormatError("a block with messages lacks a column")
    if count and len(columns[SIZES]) != 4 * count:
        raise FormatError("sizes column has a wrong length")
    if KINDS in columns and len(columns[KINDS]) != count:
        raise FormatError("kinds column has a wrong length")
    for bit in (RANGES, SETTLED, REQUEUED):
        if bit in columns and (len(columns[bit]) % 16 or not columns[bit]):
            raise FormatError("a ranges column has a wrong length")
    if SHARES in columns and len(columns[SHARES]) != 8 + 8 * count:
        raise FormatError("shares column has a wrong length")
    if NOTE in columns and len(columns[NOTE]) % 8:
        raise FormatError("note column has a wrong length")
    if TIMES in columns and (len(columns[TIMES]) % _TIME.size or not columns[TIMES] or not count):
        raise FormatError("times column has a wrong length")
    if COUNTS in columns and (len(columns[COUNTS]) % _COUNT.size or not columns[COUNTS]):
        raise FormatError("counts column has a wrong length")
    if MARKS in columns and not columns[MARKS]:
        raise FormatError("marks column has a wrong length")
    if count and header.type not in (CONTENTS,) and RANGES not in columns and header.next - header.first != count:
        raise FormatError("count does not fit first and next")


def decode_keys(data: memoryview, count: int) -> list[bytes]:
    keys: list[bytes] = []
    at = 0
    while at < len(data):
        if at + _KEY.size > len(data):
            raise FormatError("keys column is cut off")
        times, length = _KEY.unpack_from(data, at)
        at += _KEY.size
        if at + length > len(data) or times > count - len(keys):
            raise FormatError("keys column does not fit its block")
        keys += [bytes(data[at : at + length])] * times
        at += length
    if len(keys) != count:
        raise FormatError("keys column does not fit its block")
    return keys


def decode_kinds(header: Header) -> bytes:
    if KINDS in header.columns:
        return bytes(header.columns[KINDS])
    return bytes((0 if header.type == SPILL else PERSISTENT,)) * header.count


def decode_records(header: Header, body: bytes | memoryview, shares: dict[int, bytes]) -> Records:
    """Return all messages of a block. `shares`: content by record index, for those outside the block's own body."""
    if crc32(body) != header.body_crc:
        raise FormatError("block body checksum is wrong")
    sizes: Sequence[int] = unpack_u32(header.columns[SIZES])
    if shares:
        sizes = [0 if index in shares else size for index, size in enumerate(sizes)]
    ends = list(accumulate(sizes))
    if ends[-1] != len(body):
        raise FormatError("sizes do not fit the body")
    data = bytes(body)
    contents = [data[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    for index, content in shares.items():
        contents[index] = content
    ranges = header.stored()
    if sum(high - low + 1 for low, high in ranges) != header.count:
        raise FormatError("ranges do not fit the count")
    keys = decode_keys(header.columns[KEYS], header.count)
    return Records(ranges, contents, keys, decode_kinds(header), decode_times(header))


def decode_times(header: Header) -> list[tuple[int, int]]:
    if TIMES not in header.columns:
        return [(0, header.time_ms)] if header.time_ms else []
    times = list(_TIME.iter_unpack(header.columns[TIMES]))
    if times[0][0] or any(at >= following for (at, _), (following, _) in pairwise(times)):
        raise FormatError("times do not ascend")
    if times[-1][0] >= header.count:
        raise FormatError("times reach past their block")
    return times


def share_places(header: Header, offset: int) -> dict[int, tuple[int, int, int]]:
    """Return the positions of shared contents in the segment: record index -> (offset, size, crc)."""
    if SHARES not in header.columns:
        return {}
    column = header.columns[SHARES]
    start = offset - _BACK.unpack_from(column)[0]
    numbers = unpack_u32(column[8:])
    sizes = unpack_u32(header.columns[SIZES])
    places = {}
    for index, (position, crc) in enumerate(zip(numbers[::2], numbers[1::2], strict=True)):
        if position != _OWN:
            places[index] = (start + position, sizes[index], crc)
    if start < 0:
        raise FormatError("shared contents lie before the segment")
    return places
