"""The index file of a sealed segment, so that a start reads a few columns instead of every content.

It is made by scanning the segment, never from memory: all of it was read back from the disk. It is complete or absent
(written under another name, synced, renamed), a checksum covers all of it, and it can always be made again from a good
segment.
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct

from zlib_ng.zlib_ng import crc32

from leveret.base.range_set import RangeSet, stretches
from leveret.storage.format.errors import FormatError
from leveret.storage.format.queue_marks import pack_marks, unpack_marks
from leveret.storage.segments.content_index import Columns
from leveret.storage.segments.segment import Fold, SegmentIndex

_MAGIC = b"LVRI"
_VERSION = 1
_VERSION_MIRRORED = 2  # With a part about mirrored queues at the end.
_VERSION_COUNTED = 3  # And before that a part about queues that count requeues.
_VERSION_MARKED = 4  # And between these two a part about marks.
_HEAD = Struct("<4sHHQQQIIQ")  # magic, version, flags, file length, segment, length, blocks, chain, queues
# queue, reset, epoch, number, next_seq, delivered_through, refs, enqueued, settled, requeued (in ranges)
_QUEUE = Struct("<QQQQQQIIII")
_CRC = Struct("<I")
_MIRROR = Struct("<QI")  # queue, records
_COUNTED = Struct("<QI")  # queue, runs; before the first queue: 0 and the number of queues
_COUNT = Struct("<QQI")  # first, last, count
_MARKED = Struct("<QI")  # queue, bytes; before the first queue: 0 and the number of queues
_RECORD = Struct("<QI")  # offset, length of its meta
_COLUMNS = "QIIIIII"  # first, span, count, offset, length, bytes, overhead
_REF_BYTES = 8 + 6 * 4


class Entry:
    """A queue in an index file, with its references as columns."""

    __slots__ = ("fold", "columns")

    def __init__(self, fold: Fold, columns: Columns | None) -> None:
        self.fold = fold
        self.columns = columns


def to_columns(fold: Fold, segment: int) -> Columns | None:
    if not fold.refs:
        return None
    refs = sorted({ref[0]: ref for ref in fold.refs}.values())  # The later of two copies in one segment is valid.
    first, span, count, offset, length, size, overhead = zip(*refs, strict=True)
    return Columns(
        (
            array("Q", first), array("I", span), array("I", count), array("I", [segment]) * len(refs),
            array("I", offset), array("I", length), array("I", size), array("I", overhead),
        )
    )  # fmt: skip


def encode_index(index: SegmentIndex) -> list[bytes]:
    parts: list[bytes] = []
    for queue, fold in index.queues.items():
        columns = to_columns(fold, index.segment)
        ranges = (fold.enqueued, fold.settled, fold.requeued)
        parts.append(
            _QUEUE.pack(
                queue, fold.reset, fold.epoch, fold.number, fold.next_seq, fold.delivered_through,
                len(columns) if columns else 0, *(one.range_count for one in ranges),
            )
        )  # fmt: skip
        if columns:
            for column in (*columns.all[:3], *columns.all[4:]):
                if sys.byteorder == "big":
                    column.byteswap()
                parts.append(column.tobytes())
        parts += [one.pack() for one in ranges]
    counted = {queue: counts for queue, fold in index.queues.items() if (counts := _counts(fold))}
    marked = {queue: fold.marks.all() for queue, fold in index.queues.items() if fold.marks}
    if counted or marked:
        parts.append(_COUNTED.pack(0, len(counted)))
    for queue, counts in counted.items():
        parts.append(_COUNTED.pack(queue, len(counts)))
        parts += [_COUNT.pack(*stretch) for stretch in counts]
    if marked:
        parts.append(_MARKED.pack(0, len(marked)))
    for queue, marks in marked.items():
        packed = pack_marks(marks)
        parts += (_MARKED.pack(queue, len(packed)), packed)
    mirrors = {queue: fold.records for queue, fold in index.queues.items() if fold.records}
    for queue, records in mirrors.items():
        parts.append(_MIRROR.pack(queue, len(records)))
        for offset, meta in records:
            parts += (_RECORD.pack(offset, len(meta)), meta)
    version = _VERSION_MARKED if marked else _VERSION_COUNTED if counted else _VERSION_MIRRORED if mirrors else _VERSION
    length = _HEAD.size + sum(map(len, parts)) + _CRC.size
    head = _HEAD.pack(
        _MAGIC, version, 0, length, index.segment, index.length, index.blocks, index.chain, len(index.queues)
    )
    crc = crc32(head)
    for part in parts:
        crc = crc32(part, crc)
    return [head, *parts, _CRC.pack(crc)]


def _counts(fold: Fold) -> list[tuple[int, int, int]]:
    return stretches({number: count for number, count in fold.counts.items() if number not in fold.settled})


def decode_index(data: bytes, segment: int) -> tuple[SegmentIndex, dict[int, Entry]]:
    """Return the index (its folds without their references) and, by queue, folds with columns. Raises `FormatError`."""
    if len(data) < _HEAD.size + _CRC.size:
        raise FormatError("index is cut off")
    magic, version, flags, length, number, segment_length, blocks, chain, queues = _HEAD.unpack_from(data)
    if magic != _MAGIC or length != len(data):
        raise FormatError("index head is wrong")
    if crc32(memoryview(data)[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
        raise FormatError("index checksum is wrong")
    if not _VERSION <= version <= _VERSION_MARKED or flags:
        raise FormatError(f"index has format version {version}; this program reads versions up to {_VERSION_MARKED}")
    if number != segment:
        raise FormatError(f"index is of segment {number}")
    index = SegmentIndex(segment)
    index.length, index.blocks, index.chain = segment_length, blocks, chain
    entries: dict[int, Entry] = {}
    reader = _Reader(memoryview(data)[: -_CRC.size], _HEAD.size)
    for _ in range(queues):
        queue, reset, *numbers, refs, enqueued, settled, requeued = _QUEUE.unpack(reader.take(_QUEUE.size))
        fold = index.queues[queue] = Fold()
        fold.reset = bool(reset)
        fold.epoch, fold.number, fold.next_seq, fold.delivered_through = numbers
        columns = reader.columns(refs, segment) if refs else None
        fold.enqueued = reader.ranges(enqueued)
        fold.settled = reader.ranges(settled)
        fold.requeued = reader.ranges(requeued)
        entries[queue] = Entry(fold, columns)
    if version >= _VERSION_COUNTED:
        _decode_counts(reader, index)
    if version >= _VERSION_MARKED:
        _decode_marks(reader, index)
    while version >= _VERSION_MIRRORED and not reader.at_end:
        queue, count = _MIRROR.unpack(reader.take(_MIRROR.size))
        if queue not in index.queues:
            raise FormatError("index has records of an unknown queue")
        for _ in range(count):
            offset, size = _RECORD.unpack(reader.take(_RECORD.size))
            index.queues[queue].records.append((offset, bytes(reader.take(size))))
    return index, entries


def _decode_counts(reader: _Reader, index: SegmentIndex) -> None:
    for _ in range(_COUNTED.unpack(reader.take(_COUNTED.size))[1]):
        queue, count = _COUNTED.unpack(reader.take(_COUNTED.size))
        if queue not in index.queues:
            raise FormatError("index has counts of an unknown queue")
        for low, high, value in _COUNT.iter_unpack(reader.take(_COUNT.size * count)):
            index.queues[queue].counts.update(dict.fromkeys(range(low, high + 1), value))


def _decode_marks(reader: _Reader, index: SegmentIndex) -> None:
    for _ in range(_MARKED.unpack(reader.take(_MARKED.size))[1]):
        queue, size = _MARKED.unpack(reader.take(_MARKED.size))
        if queue not in index.queues:
            raise FormatError("index has marks of an unknown queue")
        index.queues[queue].marks.fold(unpack_marks(reader.take(size)))


class _Reader:
    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._data)

    def take(self, size: int) -> memoryview:
        if self._at + size > len(self._data):
            raise FormatError("index is cut off")
        self._at += size
        return self._data[self._at - size : self._at]

    def columns(self, count: int, segment: int) -> Columns:
        columns = []
        for code in _COLUMNS:
            column = array(code)
            column.frombytes(self.take(count * column.itemsize))
            if sys.byteorder == "big":
                column.byteswap()
            columns.append(column)
        return Columns((*columns[:3], array("I", [segment]) * count, *columns[3:]))

    def ranges(self, count: int) -> RangeSet:
        try:
            return RangeSet.unpack(self.take(16 * count))
        except ValueError as error:
            raise FormatError(str(error)) from None
