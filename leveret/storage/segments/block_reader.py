"""Reads single blocks from segments, with all checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from leveret.storage.format.block_format import Header, Records, decode_records, parse_meta, share_places
from leveret.storage.format.errors import Damage, FormatError, LogDamaged
from leveret.storage.format.queue_block import Run
from leveret.storage.segments.disk import Disk

_GAP_BYTES_MAX = 64 << 10  # Reading such a gap between two blocks costs less than a second call.
_READ_BYTES_MAX = 4 << 20


class Place(NamedTuple):
    """The position of a block on disk, and the wanted messages of it."""

    path: str
    segment: int
    offset: int
    length: int
    wanted: list[tuple[int, int]]
    first: int
    last: int

    @property
    def messages(self) -> int:
        wanted = self.wanted
        return wanted[0][1] - wanted[0][0] + 1 if len(wanted) == 1 else sum(high - low + 1 for low, high in wanted)


def read_blocks(disk: Disk, places: Sequence[Place]) -> Iterator[tuple[Header, Records]]:
    """Yield the whole blocks at these places. Neighbours on disk share a call."""
    for place, data in _slices(disk, places):
        yield _read_block(disk, place, data)


def read_raw(disk: Disk, places: Sequence[Place]) -> Iterator[tuple[Place, tuple[Header, memoryview]]]:
    """Yield the blocks at these places with bodies that are neither decoded nor checked: see `whole_records`."""
    for place, data in _slices(disk, places):
        try:
            header = _parse(place, data)
        except FormatError as error:
            raise damage_at(place, error) from None
        yield place, (header, data[header.meta_length :])


def _slices(disk: Disk, places: Sequence[Place]) -> Iterator[tuple[Place, memoryview]]:
    data = memoryview(b"")
    start, path = 0, ""
    for index, place in enumerate(places):
        if place.path != path or place.offset < start or place.offset + place.length > start + len(data):
            path, start = place.path, place.offset
            data = memoryview(disk.read(path, start, _extent(places, index) - start))
        yield place, data[place.offset - start : place.offset - start + place.length]


def read_whole(
    disk: Disk, path: str, segment: int, offset: int, length: int
) -> tuple[Header, Records | None]:
    """Return a block, with or without messages."""
    data = memoryview(disk.read(path, offset, length))
    place = Place(path, segment, offset, length, [], 0, 0)
    try:
        header = parse_meta(data, segment, offset)
        if header.count:
            return _read_block(disk, place, data)
        if header.length != length:
            raise FormatError("block length is wrong")
    except FormatError as error:
        raise LogDamaged([Damage(path, offset, length, None, None, None, None, f"reading a block: {error}")]) from None
    return header, None


def _extent(places: Sequence[Place], index: int) -> int:
    """Return the end of a read that includes the places which follow closely."""
    path, start = places[index].path, places[index].offset
    end = start + places[index].length
    for next_index in range(index + 1, len(places)):
        place = places[next_index]
        reach = place.offset + place.length
        if place.path != path or not end <= place.offset <= end + _GAP_BYTES_MAX or reach - start > _READ_BYTES_MAX:
            break
        end = reach
    return end


def _read_block(disk: Disk, place: Place, data: memoryview) -> tuple[Header, Records]:
    try:
        header = _parse(place, data)
        return header, whole_records(disk, place, header, data[header.meta_length :])
    except FormatError as error:
        raise damage_at(place, error) from None


def _parse(place: Place, data: memoryview) -> Header:
    header = parse_meta(data, place.segment, place.offset)
    if header.length != place.length or len(data) != place.length:
        raise FormatError("block length is wrong")
    return header


def whole_records(disk: Disk, place: Place, header: Header, body: memoryview) -> Records:
    """Return all messages of a block, including those with shared contents. Raises `FormatError`."""
    shares: dict[int, bytes] = {}
    places = share_places(header, place.offset)
    for group in _together(places):
        start = places[group[0]][0]
        data = disk.read(place.path, start, sum(places[index][1] for index in group))
        for index in group:
            offset, size, crc = places[index]
            shares[index] = data[offset - start : offset - start + size]
            if crc32(shares[index]) != crc or len(shares[index]) != size:
                raise FormatError("shared content checksum is wrong")
    return decode_records(header, body, shares)


def _together(places: dict[int, tuple[int, int, int]]) -> Iterator[list[int]]:
    """Yield the indexes of shared contents that are contiguous and can be read by one call."""
    group: list[int] = []
    start = end = 0
    for index, (offset, size, _) in places.items():
        if group and (offset != end or offset + size - start > _READ_BYTES_MAX):
            yield group
            group = []
        if not group:
            start = offset
        group.append(index)
        end = offset + size
    if group:
        yield group


def damage_at(place: Place, error: FormatError) -> LogDamaged:
    text = f"reading messages: {error}"
    return LogDamaged([Damage(place.path, place.offset, place.length, None, None, place.first, place.last, text)])


def pick(records: Records, ranges: Sequence[tuple[int, int]], wanted: Sequence[tuple[int, int]]) -> list[Run]:
    """Return the wanted messages of a block as runs. `ranges`: the numbers of `records`, ascending like `wanted`."""
    if len(ranges) == 1 and wanted == ranges:  # The usual case: all of them.
        kinds = bytearray(records.kinds)
        return [Run(ranges[0][0], records.contents[:], records.keys[:], kinds, records.times[:])]
    whole = Run(0, records.contents, records.keys, bytearray(records.kinds), records.times)
    runs = []
    base = 0
    at = 0
    for low, high in ranges:
        while at < len(wanted) and wanted[at][1] < low:
            at += 1
        for start, end in wanted[at:]:
            if start > high:
                break
            start, end = max(start, low), min(end, high)
            run = whole.cut(base + start - low, base + end - low + 1)
            run.first = start
            runs.append(run)
        base += high - low + 1
    return runs


def thin(records: Records, wanted: Sequence[tuple[int, int]]) -> Records:
    """Return only the wanted messages of a block."""
    return Records.of(pick(records, records.ranges, wanted))
