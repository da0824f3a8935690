"""Reads a range of a queue from the log into a sheet.

A block on disk is columns and a body, and so is a sheet. So a block whose messages are all wanted goes into the sheet
as it is: its checksum is verified, its columns are taken unchanged, its body is a view of the bytes that were read.
Only a block with settled messages is cut into pieces; and contents that are stored elsewhere (shared by several queues)
are read one by one.

Messages that are only in memory (transient messages of a queue without mirrors) come as runs, and are sorted in by
their numbers. All of this happens outside the event loop, in the thread that reads from the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import TYPE_CHECKING, Final

from zlib_ng.zlib_ng import crc32

from leveret.data.sheet import Part, encode
from leveret.storage.format.block_format import (
    APART_BYTES,
    KEYS,
    SHARES,
    SIZES,
    decode_kinds,
    decode_times,
    encode_keys,
    pack_u32,
    unpack_u32,
)
from leveret.storage.format.errors import FormatError
from leveret.storage.format.queue_block import LASTING_KIND, REDELIVERED, Run
from leveret.storage.segments.block_reader import Place, damage_at, pick, read_raw, whole_records

if TYPE_CHECKING:
    from leveret.data.sheet import Buffer
    from leveret.storage.format.block_format import Header
    from leveret.storage.segments.disk import Disk
    from leveret.storage.segments.disk_jobs import Load

_KEY: Final = Struct("<IH")
_REDELIVERED: Final = bytes(kind | REDELIVERED for kind in range(256))

Spans = Sequence[tuple[int, int]]  # Indexes of messages, the end of each excluded; ascending.


class RangeRead:
    """A job for a disk thread. Afterwards `sheet` has the answer, and `next` the number to continue with.

    `load` says where the messages are stored, and must be handed back to the log; None: the log has none of them.
    `memory` has the messages that are not in the log, ascending. The sheet has no message above `last`, and at most
    `bytes_max` of contents, unless a single message is larger."""

    def __init__(self, load: Load | None, memory: Sequence[Run], last: int, bytes_max: int, shift: int = 0) -> None:
        self.load = load
        self.memory = memory
        self.last = last if load is None else min(last, load.next - 1)
        self.bytes_max = bytes_max
        self.shift = shift
        self.parts: list[Part] = []
        self.next = 0
        self.sheet: list[Buffer] = []

    def perform(self, disk: Disk) -> None:
        load = self.load
        parts: list[Part] = []
        if load is not None:
            parts = [part for place, block in read_raw(disk, load.places) for part in _of_block(disk, place, *block)]
            parts += map(of_run, load.runs)
            if load.redelivered:
                parts = [_marked(part, load.redelivered) for part in parts]
        for run in self.memory:
            if run.first <= self.last:
                parts.append(of_run(run.cut(0, min(run.last, self.last) - run.first + 1)))
        self.parts, self.next = _bounded(_in_order(parts), self.bytes_max, self.last + 1)
        self.sheet = encode(self.parts, self.next, self.shift)


def of_run(run: Run) -> Part:
    contents = run.contents
    # Large contents are sent without a copy; small ones are joined, which makes system calls cheaper.
    apart = sum(map(len, contents)) >= APART_BYTES * len(contents)
    return Part(
        [(run.first, run.last)],
        run.times,
        pack_u32(map(len, contents)),
        run.kinds.translate(LASTING_KIND),
        encode_keys(run.keys),
        contents if apart else [b"".join(contents)],
    )


def _of_block(disk: Disk, place: Place, header: Header, body: memoryview) -> list[Part]:
    try:
        if SHARES in header.columns:
            records = whole_records(disk, place, header, body)
            return [of_run(run) for run in pick(records, records.ranges, place.wanted)]
        if crc32(body) != header.body_crc:
            raise FormatError("block body checksum is wrong")
        columns = header.columns
        ranges = header.stored()
        part = Part(ranges, decode_times(header), columns[SIZES], decode_kinds(header), columns[KEYS], [body])
        if place.wanted != ranges:
            part = cut(part, _spans(ranges, place.wanted))
        if part.messages != place.messages:
            raise FormatError("messages are missing")
        return [part]
    except FormatError as error:
        raise damage_at(place, error) from None


def _spans(ranges: Spans, wanted: Spans) -> list[tuple[int, int]]:
    """Returns the indexes of the wanted numbers among those of `ranges`. Both have inclusive ends."""
    found: list[tuple[int, int]] = []
    base = at = 0
    for low, high in ranges:
        while at < len(wanted) and wanted[at][0] <= high:
            start, end = max(wanted[at][0], low), min(wanted[at][1], high)
            if start <= end:
                found.append((base + start - low, base + end - low + 1))
            if wanted[at][1] > high:
                break
            at += 1
        base += high - low + 1
    return found


def cut(part: Part, spans: Spans) -> Part:
    """Returns the messages of a part with these indexes."""
    sizes, kinds = memoryview(part.sizes), memoryview(part.kinds)
    body = memoryview(part.body[0] if len(part.body) == 1 else b"".join(part.body))
    ends = [0, *accumulate(unpack_u32(sizes))]
    if ends[-1] != len(body):
        raise FormatError("sizes do not fit the body")
    return Part(
        _numbers(part.ranges, spans),
        _times(part.times, spans),
        b"".join(sizes[4 * lo : 4 * hi] for lo, hi in spans),
        b"".join(kinds[lo:hi] for lo, hi in spans),
        _keys(memoryview(part.keys), spans),
        [body[ends[lo] : ends[hi]] for lo, hi in spans],
    )


def _numbers(ranges: Spans, spans: Spans) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    base = at = 0
    for low, high in ranges:
        end = base + high - low + 1
        while at < len(spans) and spans[at][0] < end:
            lo, hi = max(spans[at][0], base), min(spans[at][1], end)
            found.append((low + lo - base, low + hi - base - 1))
            if spans[at][1] > end:
                break
            at += 1
        base = end
    return found


def _times(times: Spans, spans: Spans) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    at = count = 0
    for lo, hi in spans:
        while at + 1 < len(times) and times[at + 1][0] <= lo:
            at += 1
        if times and (not found or found[-1][1] != times[at][1]):
            found.append((count, times[at][1]))
        while at + 1 < len(times) and times[at + 1][0] < hi:
            at += 1
            found.append((count + times[at][0] - lo, times[at][1]))
        count += hi - lo
    return found


def _keys(column: memoryview, spans: Spans) -> bytes:
    packed: list[bytes] = []
    at = base = index = 0
    last, count = b"", 0
    while at < len(column) and index < len(spans):
        times, length = _KEY.unpack_from(column, at)
        key = bytes(column[at + _KEY.size : at + _KEY.size + length])
        if key != last and count:
            packed.append(_KEY.pack(count, len(last)) + last)
            count = 0
        last, end = key, base + times
        while index < len(spans) and spans[index][0] < end:
            count += min(spans[index][1], end) - max(spans[index][0], base)
            if spans[index][1] > end:
                break
            index += 1
        at += _KEY.size + length
        base = end
    if count:
        packed.append(_KEY.pack(count, len(last)) + last)
    return b"".join(packed)


def _marked(part: Part, redelivered: Spans) -> Part:
    """Returns the part with these messages marked as redelivered."""
    spans = _spans(part.ranges, redelivered)
    if not spans:
        return part
    kinds = bytearray(part.kinds)
    for lo, hi in spans:
        kinds[lo:hi] = kinds[lo:hi].translate(_REDELIVERED)
    return part._replace(kinds=kinds)


def _in_order(parts: list[Part]) -> list[Part]:
    """Sorts parts by number. Numbers of stored, paged out and other messages may be interleaved."""
    parts.sort(key=_first)
    if all(one.ranges[-1][1] < two.ranges[0][0] for one, two in pairwise(parts)):
        return parts
    pieces: list[Part] = []
    for part in parts:
        base = 0
        for low, high in part.ranges:
            pieces.append(cut(part, [(base, base + high - low + 1)]))
            base += high - low + 1
    pieces.sort(key=_first)
    return pieces


def _first(part: Part) -> int:
    return part.ranges[0][0]


def _bounded(parts: list[Part], bytes_max: int, following: int) -> tuple[list[Part], int]:
    """Returns as many messages as fit, and the number to continue with."""
    room = bytes_max
    for index, part in enumerate(parts):
        size = part.bytes
        if size > room:
            count = bisect_right(list(accumulate(unpack_u32(memoryview(part.sizes)))), room)
            if not index:
                count = max(count, 1)
            if count == part.messages and index + 1 == len(parts):
                return parts, following
            kept = parts[:index] + ([cut(part, [(0, count)])] if count else [])
            return kept, kept[-1].ranges[-1][1] + 1
        room -= size
    return parts, following
