"""Blocks as bytes, as they travel along the ring.

The ring uses only a block's queue, epoch, number and size. A block from another node is a `PackedBlock`: it keeps its
bytes, so that passing it on costs nothing, and decodes its messages only on demand. Most blocks pass through a mirror
without being decoded.
"""

from __future__ import annotations

from zlib_ng.zlib_ng import crc32

from leveret.storage.format.block_format import KINDS, Records, decode_records, encode_block, parse_meta
from leveret.storage.format.errors import FormatError
from leveret.storage.format.queue_block import LASTING_KIND, PERSISTENT, Block, Run
from leveret.storage.format.queue_marks import marks_of

OVERHEAD_BYTES = 128  # The memory of a block besides its messages.
MESSAGE_OVERHEAD_BYTES = 64


class PackedBlock(Block):
    """A block that keeps the bytes in which it arrived."""

    __slots__ = ("meta", "body", "size", "prompt", "last", "count", "_run")

    def __init__(self, meta: bytes, body: bytes) -> None:
        header = parse_meta(memoryview(meta), 0, 0)
        if header.body_length != len(body) or header.meta_length != len(meta) or header.type or header.flags:
            raise FormatError("a block that no ring sends")
        # Checked before the block is passed on or stored: otherwise a damaged block would be reported as safe, and
        # once written would make its whole group unreadable.
        if crc32(body) != header.body_crc:
            raise FormatError("a block was damaged on its way")
        self.meta, self.body = meta, body
        self.queue, self.epoch, self.number, self.time_ms = header.queue, header.epoch, header.number, header.time_ms
        self.settled, self.requeued, self.counts = header.settled(), header.requeued(), header.counts()
        self.marks = {key: value for _, key, value in header.marks()}
        self.delivered_through = header.delivered_through
        self.size = _size(header.count, len(body), self)
        self.last = header.next - 1 if header.count else 0
        self.count = header.count
        self.prompt = KINDS in header.columns or _is_note(self, header.count)
        self._run: Run | None = None

    @property
    def enqueued(self) -> Run | None:  # type: ignore[override]
        """The messages. Raises `FormatError` if the contents do not fit their sizes."""
        if self._run is None and self.count:
            header = parse_meta(memoryview(self.meta), 0, 0)
            records = decode_records(header, self.body, {})
            kinds = bytearray(records.kinds)
            self._run = Run(header.first, records.contents, records.keys, kinds, records.times)
        return self._run


def _size(count: int, content_bytes: int, block: Block) -> int:
    size = OVERHEAD_BYTES + MESSAGE_OVERHEAD_BYTES * count + content_bytes + 20 * len(block.counts)
    size += 16 * (len(block.settled) + len(block.requeued))
    return size + sum(len(key) + len(value) for key, value in block.marks.items()) if block.marks else size


def block_bytes(block: Block) -> int:
    """Return the size of a block for all limits. It is the same on every member."""
    if isinstance(block, PackedBlock):
        return block.size
    run = block.enqueued
    return _size(len(run.contents), sum(map(len, run.contents)), block) if run is not None else _size(0, 0, block)


def is_prompt(block: Block) -> bool:
    """Return whether a mirror reports a block when it arrives, and not only when it is on disk: it has a transient
    message, whose publisher waits for no disk, or none, like the last block before a hand-over."""
    if isinstance(block, PackedBlock):
        return block.prompt
    run = block.enqueued
    if run is None:
        return _is_note(block, 0)
    return run.kinds.count(PERSISTENT) != len(run.kinds)


def _is_note(block: Block, count: int) -> bool:
    return not (count or block.settled or block.requeued or block.marks)


def last_message(block: Block) -> int:
    """Return the highest number of a block's messages; 0 if it has none."""
    if isinstance(block, PackedBlock):
        return block.last
    run = block.enqueued
    return run.last if run is not None and run.contents else 0


def message_count(block: Block) -> int:
    if isinstance(block, PackedBlock):
        return block.count
    run = block.enqueued
    return 0 if run is None else len(run.contents)


def start_block(
    group: int, epoch: int, number: int, lost: list[tuple[int, int]], marks: dict[bytes, bytes] | None = None
) -> Block:
    """Return the first block of an epoch. `lost`: message numbers that are lost, after a forced promotion."""
    return Block(group, epoch, number, 0, None, lost, [], 0, None, marks)


def pack_block(block: Block) -> tuple[bytes, list[bytes]]:
    """Return meta and body (in parts) of a block."""
    if isinstance(block, PackedBlock):
        return block.meta, [block.body] if block.body else []
    run = block.enqueued
    records, first, following = None, 0, 0
    if run is not None and run.contents:
        kinds = run.kinds
        if kinds.count(PERSISTENT) != len(kinds):
            kinds = kinds.translate(LASTING_KIND)
        records = Records([], run.contents, run.keys, bytes(kinds), run.times)
        first, following = run.first, run.last + 1
    fields = (block.queue, block.epoch, block.number, block.time_ms, first, following, block.delivered_through)
    marks = marks_of(block.number, block.marks)
    meta, body, _ = encode_block(0, 0, fields, records, block.settled, block.requeued, counts=block.counts, marks=marks)
    return meta, [piece for piece in body if piece]
