"""Encoding of ring frames: those of many groups share few payloads between two nodes.

    payload:  item*          item:  group u64 | kind u8 | more u8 | size u32 | body

A `Packer` collects, for one peer, the frames of all groups in one turn: small frames of a thousand queues share a
payload, and an item that is larger than a payload (one message may be) is split into consecutive parts. An `Unpacker`
belongs to one link and joins them again; a new link gets a new one. Contents are never joined for sending, and are
copied once on receipt.

Reading is strict, so that the ring can rely on it: blocks follow each other without gaps, are of the frame's group, and
no newer than their frame; ranges ascend; numbers are far from an overflow. Block heads and contents have a checksum
each, and both are checked here, once per block and not per message: a member reports the blocks that it has taken, so
it must not take one that was damaged on the way. Any error is a `BadFrame`, and nothing else is ever raised: the shell
closes the link, and the blocks are sent again on the next one.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

from leveret.base.packing import BadMessage, Reader, pack_text
from leveret.base.shared_values import shared
from leveret.replication.packed_block import PackedBlock, pack_block
from leveret.replication.ring_frames import (
    Attach,
    Blocks,
    Counts,
    Deny,
    Detach,
    Entry,
    Fetch,
    Frame,
    Got,
    History,
    Leave,
    Newer,
    Numbers,
    Piece,
    Poll,
    Pulse,
    Ranges,
    Reset,
    Standing,
)
from leveret.storage.format.block_format import (
    REQUEUED,
    Header,
    Records,
    decode_records,
    encode_block,
    pack_ranges,
    parse_meta,
    unpack_ranges,
)
from leveret.storage.format.errors import FormatError
from leveret.storage.format.mirror_limits import HAVE_MAX, HISTORY_MAX, PIECE_RANGES_MAX
from leveret.storage.format.queue_block import LASTING_KIND, Block, Run
from leveret.storage.format.queue_marks import Mark

Buffer = bytes | bytearray | memoryview

PAYLOAD_BYTES: Final = 1 << 20  # Payloads are filled up to this size; only contents make one larger.
PAYLOAD_ITEMS: Final = 256  # And with so many items: to handle a payload takes some milliseconds at most.
ITEM_BYTES_MAX: Final = (1 << 30) + (64 << 20)
NUMBER_MAX: Final = 1 << 62
BLOCKS_MAX: Final = 1 << 16
ENTRIES_MAX: Final = 256
LACKS_MAX: Final = 2 * HAVE_MAX

_ITEM: Final = struct.Struct(">QBBI")
_BLOCKS: Final = struct.Struct(">QQQQQI")
_BLOCK: Final = struct.Struct(">II")
_ENTRY: Final = struct.Struct(">QQQB")
_COMPLETE, _LACKING = 1, 2  # The last field of an entry. Ranges follow only the second.
_U32: Final = struct.Struct(">I")
_NUMBERS: Final = {count: struct.Struct(f">{count}Q") for count in range(1, 7)}
_PAIR: Final = struct.Struct(">QQ")
_STANDING: Final = struct.Struct(">QQBBB")


class BadFrame(ValueError):
    """Bytes are not what a node of this cluster could have sent."""


class Packer:
    """Collects frames for one peer. `knows_requeued`: it is no older node, which would take a piece that has `requeued`
    and nothing else for damaged. An older node gets pieces without that field, as from its own like."""

    __slots__ = ("_payloads", "_current", "_items", "_bytes", "_bytes_max", "_knows_requeued")

    def __init__(self, bytes_max: int = PAYLOAD_BYTES, knows_requeued: bool = True) -> None:
        assert bytes_max > 2 * _ITEM.size
        self._payloads: list[list[Buffer]] = []
        self._current: list[Buffer] = []
        self._items = 0
        self._bytes = 0
        self._bytes_max = bytes_max
        self._knows_requeued = knows_requeued

    def add(self, group: int, frame: Frame) -> None:
        if not self._knows_requeued and isinstance(frame, Piece):
            frame = frame._replace(requeued=())
        kind, encode = _ENCODERS[frame.__class__]
        parts: list[Buffer] = []
        encode(frame, parts)
        size = sum(map(len, parts))
        if size > ITEM_BYTES_MAX:
            raise ValueError(f"a frame of {size} bytes; at most {ITEM_BYTES_MAX} are allowed")
        if self._items == PAYLOAD_ITEMS or (self._bytes and self._bytes + _ITEM.size + size > self._bytes_max):
            self._close()
        if _ITEM.size + size <= self._bytes_max:
            self._put(_ITEM.pack(group, kind, 0, size), parts, size)
        else:
            self._add_parts(group, kind, parts, size)

    def _put(self, head: bytes, parts: Iterable[Buffer], size: int) -> None:
        self._current.append(head)
        self._current += parts
        self._items += 1
        self._bytes += len(head) + size

    def _add_parts(self, group: int, kind: int, parts: list[Buffer], left: int) -> None:
        room = self._bytes_max - _ITEM.size
        taken: list[Buffer] = []
        size = 0
        for part in parts:
            view = memoryview(part)
            while len(view) > room - size:
                taken.append(view[: room - size])
                view = view[room - size :]
                left -= room
                self._put(_ITEM.pack(group, kind, left > 0, room), taken, room)
                self._close()
                taken, size = [], 0
                if not left:
                    return
            taken.append(view)
            size += len(view)
        self._put(_ITEM.pack(group, kind, 0, size), taken, size)

    def _close(self) -> None:
        self._payloads.append(self._current)
        self._current, self._items, self._bytes = [], 0, 0

    def take(self) -> list[list[Buffer]]:
        """Return the payloads, each a sequence of buffers."""
        if self._current:
            self._close()
        payloads, self._payloads = self._payloads, []
        return payloads


class Unpacker:
    """Reads the payloads of one link, in order."""

    __slots__ = ("_key", "_parts", "_bytes")

    def __init__(self) -> None:
        self._key: tuple[int, int] | None = None  # The group and kind of the item whose parts are arriving.
        self._parts: list[bytes] = []
        self._bytes = 0

    def feed(self, payload: bytes) -> list[tuple[int, Frame]]:
        """Return the frames of a payload. Raises `BadFrame`; then the link must be closed."""
        found: list[tuple[int, Frame]] = []
        at, end = 0, len(payload)
        while at < end:
            if at + _ITEM.size > end:
                raise BadFrame("cut off in the head of an item")
            group, kind, more, size = _ITEM.unpack_from(payload, at)
            at += _ITEM.size
            if at + size > end or more > 1:
                raise BadFrame("an item reaches past its payload")
            if more or self._key is not None:
                body = self._gather(group, kind, more, payload[at : at + size])
                if body is not None:
                    found.append((group, decode(group, kind, body, 0, len(body))))
            else:
                found.append((group, decode(group, kind, payload, at, at + size)))
            at += size
        return found

    def _gather(self, group: int, kind: int, more: int, part: bytes) -> bytes | None:
        if self._key is not None and self._key != (group, kind):
            raise BadFrame("another item among the parts of one")
        self._key = (group, kind)
        self._parts.append(part)
        self._bytes += len(part)
        if self._bytes > ITEM_BYTES_MAX:
            raise BadFrame(f"an item of more than {ITEM_BYTES_MAX} bytes")
        if more:
            return None
        body = b"".join(self._parts)
        self._key, self._parts, self._bytes = None, [], 0
        return body


def decode(group: int, kind: int, data: bytes, start: int, end: int) -> Frame:
    reader = FrameReader(data, start, end, group)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise BadFrame(f"unknown kind {kind}")
    try:
        frame = decoder(reader)
        reader.end()
    except (BadMessage, FormatError) as error:
        raise BadFrame(str(error)) from error
    return frame


class FrameReader(Reader):
    __slots__ = ("stop", "group")

    def __init__(self, data: bytes, start: int, stop: int, group: int) -> None:
        super().__init__(data, start)
        self.stop = stop
        self.group = group

    def need(self, size: int) -> int:
        """Return the offset of the next `size` bytes, which must be there."""
        at = self.at
        if at + size > self.stop:
            raise BadMessage(f"ends at byte {self.stop}; {size} bytes were announced at byte {at}")
        self.at = at + size
        return at

    def number(self, form: struct.Struct) -> int:
        value: int = form.unpack_from(self.data, self.need(form.size))[0]
        return value

    def blob(self, size: int, size_max: int) -> bytes:
        if size > size_max:
            raise BadMessage(f"{size} bytes; at most {size_max} are allowed")
        at = self.need(size)
        return self.data[at : at + size]

    def numbers(self, count: int) -> tuple[int, ...]:
        values: tuple[int, ...] = _NUMBERS[count].unpack_from(self.data, self.need(8 * count))
        if max(values) > NUMBER_MAX:
            raise BadMessage("a number that is none")
        return values

    def history(self) -> History:
        count = self.u32()
        if count > HISTORY_MAX:
            raise BadMessage(f"{count} epochs")
        items = tuple(_PAIR.iter_unpack(self.blob(16 * count, 16 * HISTORY_MAX)))
        for one, other in pairwise(items):
            if one[0] >= other[0] or one[1] >= other[1]:
                raise BadMessage("epochs do not ascend")
        return items

    def ranges(self) -> Ranges:
        ranges = tuple(unpack_ranges(self.blob(16 * self.u32(), ITEM_BYTES_MAX)))
        check_ranges(ranges)
        return ranges

    def end(self) -> None:
        if self.at != self.stop:
            raise BadMessage(f"{self.stop - self.at} bytes too many")


def check_ranges(ranges: Ranges) -> None:
    """Raise an error unless the ranges ascend."""
    last = 0
    for low, high in ranges:
        if not last < low <= high <= NUMBER_MAX:
            raise BadMessage("ranges do not ascend")
        last = high


# -- encoding ------------------------------------------------------------------------


def _put_numbers(frame: Sequence[Any], parts: list[Buffer]) -> None:
    parts.append(_NUMBERS[len(frame)].pack(*frame))


def _put_history(history: History, parts: list[Buffer]) -> None:
    parts.append(_U32.pack(len(history)))
    parts += [_PAIR.pack(*item) for item in history]


def _put_ranges(ranges: Ranges, parts: list[Buffer]) -> None:
    parts.append(_U32.pack(len(ranges)))
    if ranges:
        parts.append(pack_ranges(ranges))


def _put_attach(frame: Attach, parts: list[Buffer]) -> None:
    _put_numbers((frame.epoch, frame.version, frame.end), parts)
    _put_history(frame.history, parts)


def _put_blocks(frame: Blocks, parts: list[Buffer]) -> None:
    parts.append(_BLOCKS.pack(*frame[:5], len(frame.blocks)))
    for block in frame.blocks:
        meta, body = pack_block(block)
        parts.append(_BLOCK.pack(len(meta), sum(map(len, body))))
        parts.append(meta)
        parts += body


def _put_entries(frame: Numbers, parts: list[Buffer]) -> None:
    parts.append(_PAIR.pack(frame.epoch, len(frame.entries)))
    for name, entry in frame.entries:
        kind = _COMPLETE if entry.complete else _LACKING if entry.lacks else 0
        parts.append(_texts(name, entry.disk) + _ENTRY.pack(entry.stamp, entry.received, entry.durable, kind))
        if kind == _LACKING:
            _put_ranges(entry.lacks, parts)


@lru_cache(maxsize=1024)  # A node's name and disk are the same in all its groups and turns.
def _texts(name: str, disk: str) -> bytes:
    return pack_text(name) + pack_text(disk)


def _put_reset(frame: Reset, parts: list[Buffer]) -> None:
    _put_numbers((frame.epoch, frame.version, frame.cut, frame.known, frame.bound, frame.delivered), parts)
    _put_history(frame.history, parts)


def _put_fetch(frame: Fetch, parts: list[Buffer]) -> None:
    _put_numbers((frame.epoch, frame.cut, frame.after, frame.bound, frame.bytes_max, frame.batch), parts)
    _put_ranges(frame.have, parts)


def _put_piece(frame: Piece, parts: list[Buffer]) -> None:
    _put_numbers((frame.epoch, frame.cut, frame.after, frame.upto, frame.read_at, int(frame.more)), parts)
    _put_ranges(frame.have, parts)
    _put_ranges(frame.live, parts)
    runs = [run for run in frame.runs if run.contents]
    if not (runs or frame.counts or frame.marks or frame.requeued):
        parts.append(_BLOCK.pack(0, 0))
        return
    records, fields = None, (0, 0, 0, 0, 0, 0, 0)
    if runs:
        records = Records.of(runs)
        records.kinds = records.kinds.translate(LASTING_KIND)
        fields = (0, 0, 0, 0, runs[0].first, runs[-1].last + 1, 0)
    meta, body, _ = encode_block(0, 0, fields, records, (), frame.requeued, counts=frame.counts, marks=frame.marks)
    parts.append(_BLOCK.pack(len(meta), sum(map(len, body))))
    parts.append(meta)
    parts += [piece for piece in body if piece]


_ORDERS: Final = (None, True, False)


def _put_pulse(frame: Pulse, parts: list[Buffer]) -> None:
    _put_numbers((frame.epoch, int(frame.working), frame.end, _ORDERS.index(frame.fill)), parts)


def _put_standing(frame: Standing, parts: list[Buffer]) -> None:
    numbers = _STANDING.pack(frame.last_epoch, frame.end, frame.hears, frame.complete, frame.majority)
    parts.append(_NUMBERS[1].pack(frame.version) + numbers + pack_text(frame.disk))


def _put_poll(frame: Poll, parts: list[Buffer]) -> None:
    _put_numbers((frame.version, int(frame.vacant)), parts)
    _put_standing(frame.standing, parts)


# -- decoding ------------------------------------------------------------------------


def _get_attach(reader: FrameReader) -> Attach:
    epoch, version, end = reader.numbers(3)
    return Attach(epoch, version, reader.history(), end)


def _get_blocks(reader: FrameReader) -> Blocks:
    data = reader.data
    *head, count = _BLOCKS.unpack_from(data, reader.need(_BLOCKS.size))
    epoch, version, confirmed, last_epoch, number = head
    if count > BLOCKS_MAX or max(head) > NUMBER_MAX:
        raise BadMessage(f"{count} blocks, or a number that is none")
    frame = (epoch, version, confirmed, last_epoch, number)
    blocks: list[Block] = []
    for _ in range(count):
        meta_bytes, body_bytes = _BLOCK.unpack_from(data, reader.need(_BLOCK.size))
        at = reader.need(meta_bytes + body_bytes)
        body_at = at + meta_bytes
        block = PackedBlock(data[at:body_at], data[body_at : body_at + body_bytes])
        number += 1
        if block.number != number or block.queue != reader.group or not last_epoch <= block.epoch <= epoch:
            raise BadMessage(f"block {block.epoch}/{block.number} of group {block.queue} where {number} was due")
        last_epoch = block.epoch
        blocks.append(block)
    return Blocks(*frame, tuple(blocks))


def _get_entries(reader: FrameReader) -> Numbers:
    epoch, count = reader.numbers(2)
    if count > ENTRIES_MAX:
        raise BadMessage(f"{count} members")
    entries = []
    for _ in range(count):
        name, disk = shared(reader.text()), shared(reader.text())  # A master keeps them, for each of its queues.
        stamp, received, durable, kind = _ENTRY.unpack_from(reader.data, reader.need(_ENTRY.size))
        if max(stamp, received, durable) > NUMBER_MAX or kind > _LACKING:
            raise BadMessage("a number that is none")
        lacks = reader.ranges() if kind == _LACKING else ()
        if len(lacks) > LACKS_MAX:
            raise BadMessage(f"{len(lacks)} ranges of a member that lacks messages")
        entries.append((name, Entry(disk, stamp, received, durable, kind == _COMPLETE, lacks)))
    return Numbers(epoch, tuple(entries))


def _get_reset(reader: FrameReader) -> Reset:
    epoch, version, cut, known, bound, delivered = reader.numbers(6)
    history = reader.history()
    if known > cut or (history and history[-1][1] > cut):
        raise BadMessage("a history beyond its cut")
    return Reset(epoch, version, cut, history, known, bound, delivered)


def _get_fetch(reader: FrameReader) -> Fetch:
    epoch, cut, after, bound, bytes_max, batch = reader.numbers(6)
    return Fetch(epoch, cut, after, bound, reader.ranges(), bytes_max, batch)


def _get_piece(reader: FrameReader) -> Piece:
    epoch, cut, after, upto, read_at, more = reader.numbers(6)
    have, live = reader.ranges(), reader.ranges()
    meta_bytes, body_bytes = _BLOCK.unpack_from(reader.data, reader.need(_BLOCK.size))
    at = reader.need(meta_bytes + body_bytes)
    runs: tuple[Run, ...] = ()
    counts: Counts = ()
    marks: tuple[Mark, ...] = ()
    requeued: Ranges = ()
    if meta_bytes:
        data = memoryview(reader.data)[at : at + meta_bytes + body_bytes]
        runs, counts, marks, requeued = _get_contents(data, meta_bytes)
    if (live and not after < live[0][0] <= live[-1][1] <= upto) or (runs and not after < runs[0].first):
        raise BadMessage("a piece reaches beyond what it is about")
    if (runs and runs[-1].last > upto) or (counts and not after < counts[0][0] <= counts[-1][1] <= upto):
        raise BadMessage("a piece reaches beyond what it is about")
    if requeued and not after < requeued[0][0] <= requeued[-1][1] <= upto:
        raise BadMessage("a piece reaches beyond what it is about")
    return Piece(epoch, cut, after, have, upto, live, runs, read_at, counts, marks, more == 1, requeued)


def _get_contents(data: memoryview, meta_bytes: int) -> tuple[tuple[Run, ...], Counts, tuple[Mark, ...], Ranges]:
    header = parse_meta(data, 0, 0)
    if len(header.columns.get(REQUEUED, b"")) > 16 * PIECE_RANGES_MAX:
        raise BadMessage("too many ranges of messages that may have been delivered")
    counts, marks, requeued = tuple(header.counts()), tuple(header.marks()), tuple(header.requeued())
    check_ranges(requeued)
    has_any = header.count or counts or marks or requeued
    if header.meta_length != meta_bytes or header.length != len(data) or not has_any:
        raise BadMessage("contents that no piece has")
    return (_get_runs(header, data[meta_bytes:]) if header.count else ()), counts, marks, requeued


def _get_runs(header: Header, body: memoryview) -> tuple[Run, ...]:
    records = decode_records(header, body, {})
    whole = Run(0, records.contents, records.keys, bytearray(records.kinds), records.times)
    runs, start, last = [], 0, 0
    for low, high in records.ranges:
        if not last < low <= high <= NUMBER_MAX:
            raise BadMessage("ranges do not ascend")
        last = high
        end = start + high - low + 1
        run = whole.cut(start, end)
        run.first = low
        runs.append(run)
        start = end
    return tuple(runs)


def _get_pulse(reader: FrameReader) -> Pulse:
    epoch, working, end, order = reader.numbers(4)
    if order >= len(_ORDERS):
        raise BadMessage(f"order {order}")
    return Pulse(epoch, working == 1, end, _ORDERS[order])


def _get_standing(reader: FrameReader) -> Standing:
    (version,) = reader.numbers(1)
    last_epoch, end = reader.numbers(2)
    hears, complete, majority = reader.flag(), reader.flag(), reader.flag()
    return Standing(version, reader.text(), last_epoch, end, hears, complete, majority)


def _get_poll(reader: FrameReader) -> Poll:
    version, vacant = reader.numbers(2)
    return Poll(version, vacant == 1, _get_standing(reader))


_CODECS: Final[list[tuple[int, type, Callable[[Any, list[Buffer]], None], Callable[[FrameReader], Frame]]]] = [
    (1, Attach, _put_attach, _get_attach),
    (2, Detach, _put_numbers, lambda reader: Detach(*reader.numbers(1))),
    (3, Deny, _put_numbers, lambda reader: Deny(*reader.numbers(1))),
    (4, Blocks, _put_blocks, _get_blocks),
    (5, Got, _put_numbers, lambda reader: Got(*reader.numbers(2))),
    (6, Numbers, _put_entries, _get_entries),
    (7, Reset, _put_reset, _get_reset),
    (8, Fetch, _put_fetch, _get_fetch),
    (9, Piece, _put_piece, _get_piece),
    (10, Pulse, _put_pulse, _get_pulse),
    (11, Leave, _put_numbers, lambda reader: Leave(*reader.numbers(1))),
    (12, Poll, _put_poll, _get_poll),
    (13, Standing, _put_standing, _get_standing),
    (14, Newer, _put_numbers, lambda reader: Newer(*reader.numbers(1))),
]
_ENCODERS: Final = {type_: (kind, put) for kind, type_, put, _ in _CODECS}
_DECODERS: Final = {kind: get for kind, _, _, get in _CODECS}
