"""Segment files: their names, and the scan of a segment.

A scan reads the groups of a segment from its start and checks every byte. If a group is not valid, there are two
possibilities, and this module tells them apart:

- *Torn tail*: the node died while the last write was under way. Nothing in it was confirmed. It is cut off.
- *Damage*: the bytes were synced once and have changed since. Cutting them off would lose confirmed messages, and
  perhaps all later groups.

It is damage if and only if something valid says that the place was synced: a later group of the same segment (each has
the offset up to which its segment was synced before it was written), the first group of the next segment (which is
written only after this one was synced, and has its length), or the checkpoint. Only for the last group of a log there
is no such evidence: a bit that flips in it after the sync looks like a torn write.
"""

from __future__ import annotations

from collections.abc import Iterator

from zlib_ng.zlib_ng import crc32

from leveret.base.range_set import RangeSet
from leveret.storage.format.block_format import (
    CONTENTS,
    FORGET,
    FRESH,
    GROUP_HEAD,
    MIRRORED,
    MOVED,
    NOTE,
    PART,
    SPILL,
    GroupHead,
    Header,
    group_start,
    meta_crc,
    parse_group_head,
    parse_meta,
    share_places,
)
from leveret.storage.format.errors import Damage, FormatError
from leveret.storage.format.queue_marks import Marks
from leveret.storage.segments.disk import Disk

SHARED_DAMAGED = "shared contents of a group are damaged"  # Each block that shares them is reported as well.
_WINDOW_BYTES = 1 << 20


def segment_path(folder: str, number: int) -> str:
    return f"{folder}/segments/{number:016x}.log"


def index_path(folder: str, number: int) -> str:
    return f"{folder}/segments/{number:016x}.index"


def spare_path(folder: str, number: int) -> str:
    return f"{folder}/segments/{number:016x}.spare"


def numbered(names: list[str], ending: str) -> list[int]:
    """Return the numbers of the files with an ending, ascending."""
    numbers = []
    for name in names:
        stem, dot, end = name.partition(".")
        if dot and end == ending and len(stem) == 16 and all(letter in "0123456789abcdef" for letter in stem):
            numbers.append(int(stem, 16))
    return sorted(numbers)


class Fold:
    """The sum of a queue's blocks in one segment."""

    __slots__ = (
        "reset", "epoch", "number", "next_seq", "delivered_through", "enqueued", "settled", "requeued", "counts",
        "marks", "refs", "records",
    )  # fmt: skip

    def __init__(self) -> None:
        self.reset = False  # The queue was forgotten in this segment: earlier blocks are void.
        self.epoch = 0
        self.number = 0
        self.next_seq = 0
        self.delivered_through = 0
        self.enqueued = RangeSet()
        self.settled = RangeSet()
        self.requeued = RangeSet()
        self.counts: dict[int, int] = {}
        self.marks = Marks()  # Including removed names: earlier segments may have them.
        # (first, span, count, offset, length, content bytes, overhead)
        self.refs: list[tuple[int, int, int, int, int, int, int]] = []
        self.records: list[tuple[int, bytes]] = []  # Offset and meta of a mirrored queue's records, in order.

    def apply(self, header: Header, offset: int) -> None:
        if header.count:
            self.refs.append(
                (
                    header.first, header.next - header.first, header.count, offset, header.length,
                    header.content_bytes(), header.overhead,
                )
            )  # fmt: skip
        if header.type == MOVED or header.type >= MIRRORED:
            return
        self.epoch = max(self.epoch, header.epoch)
        self.number = max(self.number, header.number - (1 if header.flags & PART else 0))
        self.next_seq = max(self.next_seq, header.next)
        self.delivered_through = max(self.delivered_through, header.delivered_through)
        for low, high in header.stored():
            self.enqueued.add(low, high)
        for low, high in header.settled():
            self.settled.add(low, high)
        for low, high in header.requeued():
            self.requeued.add(low, high)
        for low, high, count in header.counts():
            for number in range(low, high + 1):
                self.counts[number] = max(count, self.counts.get(number, 0))
        self.marks.fold(header.marks())


class SegmentIndex:
    """The contents of a segment by queue, which its index file stores."""

    __slots__ = ("segment", "length", "blocks", "chain", "queues")

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.length = 0
        self.blocks = 0
        self.chain = 0  # The checksum of the last group's head.
        self.queues: dict[int, Fold] = {}

    def apply(self, header: Header, offset: int, meta: memoryview) -> None:
        self.blocks += 1
        if header.type == FORGET or header.flags & FRESH:
            fold = self.queues[header.queue] = Fold()
            fold.reset = True
            if header.type != FORGET:
                fold.records.append((offset, bytes(meta)))
        elif header.type not in (SPILL, CONTENTS):
            fold_here = self.queues.get(header.queue)
            if fold_here is None:
                fold_here = self.queues[header.queue] = Fold()
            fold_here.apply(header, offset)
            if header.type >= MIRRORED or NOTE in header.columns:
                fold_here.records.append((offset, bytes(meta)))


class Window:
    """Reads a file forward in large chunks."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.size = disk.size(path)
        self._start = 0
        self._data = b""

    def get(self, offset: int, size: int) -> memoryview:
        """Return bytes of the file, fewer at its end."""
        size = max(min(size, self.size - offset), 0)
        if offset < self._start or offset + size > self._start + len(self._data):
            self._start = offset
            self._data = self._disk.read(self._path, offset, min(max(size, _WINDOW_BYTES), self.size - offset))
        return memoryview(self._data)[offset - self._start : offset - self._start + size]


class Scan:
    """The result of `scan_segment`."""

    __slots__ = ("index", "damages", "torn", "synced")

    def __init__(self, segment: int) -> None:
        self.index = SegmentIndex(segment)
        self.damages: list[Damage] = []
        self.synced = 0  # Up to here, by the groups of the segment.
        self.torn: str | None = None  # Why the scan ended before the end of the file; None: it did not.


def scan_segment(disk: Disk, path: str, number: int, claimed: int) -> Scan:
    """Scan a segment. `claimed`: the length that was synced by evidence outside the segment."""
    scan = Scan(number)
    window = Window(disk, path)
    at = 0
    chain: int | None = None
    while at < window.size:
        head: GroupHead | None = None
        try:
            head = parse_group_head(window.get(at, GROUP_HEAD.size), number, at)
            if chain is not None and head.previous != chain:
                raise FormatError("group does not follow the one before it")
            blocks = list(_read_group(window, head))
        except FormatError as error:
            later = list(_later_groups(window, number, at)) if claimed > at or _more(window, number, at) else []
            if claimed <= at and not any(group.synced > at for group in later):
                scan.torn = str(error)
                break
            end = next((group.offset for group in later), max(claimed, at + 1))
            _salvage(scan, path, window, at, end, head, str(error))
            at, chain = end, None
        else:
            for header, offset, meta in blocks:
                scan.index.apply(header, offset, meta)
            at, chain = at + head.length, head.crc
            scan.index.chain = chain
            scan.synced = max(scan.synced, head.synced)
        scan.index.length = at
    if at < claimed and not scan.damages:
        scan.damages.append(Damage(path, at, claimed - at, None, None, None, None, "the file ends too early"))
    return scan


def _read_group(window: Window, head: GroupHead) -> Iterator[tuple[Header, int, memoryview]]:
    data = window.get(head.offset, head.length)
    if len(data) < head.length:
        raise FormatError("cut off in a group")
    at = GROUP_HEAD.size
    crcs = []
    for _ in range(head.blocks):
        header = parse_meta(data[at:], head.segment, head.offset + at)
        body = data[at + header.meta_length : at + header.length]
        if len(body) < header.body_length:
            raise FormatError("a block reaches past its group")
        if crc32(body) != header.body_crc:
            raise FormatError("block body checksum is wrong")
        meta = data[at : at + header.meta_length]
        crcs.append(meta_crc(meta))
        yield header, head.offset + at, meta
        at += header.length
    if at != head.length or crc32(b"".join(crcs)) != head.blocks_crc:
        raise FormatError("blocks do not fill their group")


def _more(window: Window, number: int, at: int) -> bool:
    return next(_later_groups(window, number, at), None) is not None


def _later_groups(window: Window, number: int, at: int) -> Iterator[GroupHead]:
    """Yield the valid group heads of this segment after `at`, at any offset."""
    pattern = group_start(number)
    start = at + 1
    while start < window.size:
        data = bytes(window.get(start, _WINDOW_BYTES))
        found = data.find(pattern)
        while found >= 0:
            try:
                yield parse_group_head(window.get(start + found, GROUP_HEAD.size), number, start + found)
            except FormatError:
                pass  # These bytes look like a head by chance, or the head is damaged too.
            found = data.find(pattern, found + 1)
        if len(data) < _WINDOW_BYTES:
            return
        start += len(data) - len(pattern) + 1


def _salvage(
    scan: Scan, path: str, window: Window, at: int, end: int, head: GroupHead | None, error: str
) -> None:
    """Keep the good blocks of a damaged group and report the others."""
    if head is None:
        scan.damages.append(Damage(path, at, end - at, None, None, None, None, error))
        return
    data = window.get(at, min(head.length, end - at))
    place = GROUP_HEAD.size
    before = len(scan.damages)
    for _ in range(head.blocks):
        try:
            header = parse_meta(data[place:], head.segment, at + place)
        except FormatError as cause:
            what = f"{cause}; the rest of its group cannot be read"
            scan.damages.append(Damage(path, at + place, end - at - place, None, None, None, None, what))
            return
        body = data[place + header.meta_length : place + header.length]
        whole = crc32(body) == header.body_crc and len(body) == header.body_length
        meta = data[place : place + header.meta_length]
        if whole and _shares_good(window, header, at + place):
            scan.index.apply(header, at + place, meta)
        else:
            if header.type == CONTENTS:
                scan.damages.append(Damage(path, at + place, header.length, None, None, None, None, SHARED_DAMAGED))
            else:
                scan.damages.append(body_damage(path, at + place, header))
                if header.type < MIRRORED:  # The log of a mirrored queue ends before the damage: see `mirror_recovery`.
                    header.drop_contents()  # Settles and numbers of a block are valid even if its contents are not.
                    scan.index.apply(header, at + place, meta)
        place += header.length
    if len(scan.damages) == before:
        scan.damages.append(Damage(path, at, end - at, None, None, None, None, error))


def _shares_good(window: Window, header: Header, offset: int) -> bool:
    return all(
        crc32(window.get(place, size)) == crc for place, size, crc in share_places(header, offset).values()
    )


def body_damage(path: str, offset: int, header: Header) -> Damage:
    stored = header.stored()
    first, last = (stored[0][0], stored[-1][1]) if stored else (None, None)
    return Damage(
        path, offset, header.length, header.queue, header.number, first, last, "block body checksum is wrong"
    )

