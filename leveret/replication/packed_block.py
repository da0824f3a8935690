"""Blocks as the ring sees them: a size, whether somebody waits for it before the disk has it, and bytes.

The ring looks at a block's queue, epoch and number, and at nothing inside. A block that came from another node is a
`PackedBlock`: it keeps the bytes it came as, so that passing it on costs nothing, and takes its messages apart only if
somebody asks. Many blocks pass a mirror without that ever happening.
"""

from __future__ import annotations

from zlib_ng.zlib_ng import crc32

from leveret.storage.format.block_format import KINDS, Records, decode_records, encode_block, parse_meta
from leveret.storage.format.errors import FormatError
from leveret.storage.format.queue_block import LASTING_KIND, PERSISTENT, Block, Run
from leveret.storage.format.queue_marks import marks_of

OVERHEAD_BYTES = 128  # What a block weighs besides its messages: its objects, its place in lists.
MESSAGE_OVERHEAD_BYTES = 64


class PackedBlock(Block):
    """A block in the form in which it travels."""

    __slots__ = ("meta", "body", "size", "prompt", "last", "count", "_run")

    def __init__(self, meta: bytes, body: bytes) -> None:
        header = parse_meta(memoryview(meta), 0, 0)
        if header.body_length != len(body) or header.meta_length != len(meta) or header.type or header.flags:
            raise FormatError("a block that no ring sends")
        # Here, before anybody passes it on or takes it for something that is stored: what a damaged block held would be
        # reported as safe, and written it would make all that is in its group unreadable.
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
        """Raises FormatError if the contents are not what their sizes say."""
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
    """What a block counts for wherever bytes are limited. The same on every member."""
    if isinstance(block, PackedBlock):
        return block.size
    run = block.enqueued
    return _size(len(run.contents), sum(map(len, run.contents)), block) if run is not None else _size(0, 0, block)


def is_prompt(block: Block) -> bool:
    """Whether the master is told when it arrives, and not only when it is on disk: it holds a transient message, whose
    publisher waits for no disk, or nothing, as the last one before a hand-over does."""
    if isinstance(block, PackedBlock):
        return block.prompt
    run = block.enqueued
    if run is None:
        return _is_note(block, 0)
    return run.kinds.count(PERSISTENT) != len(run.kinds)


def _is_note(block: Block, count: int) -> bool:
    return not (count or block.settled or block.requeued or block.marks)


def last_message(block: Block) -> int:
    """The highest number of its messages; 0 if it has none."""
    if isinstance(block, PackedBlock):
        return block.last
    run = block.enqueued
    return run.last if run is not None and run.contents else 0


def message_count(block: Block) -> int:
    if isinstance(block, PackedBlock):
        return block.count
    run = block.enqueued
    return 0 if run is None else len(run.contents)


def start_block(group: int, epoch: int, number: int, lost: list[tuple[int, int]]) -> Block:
    """What a master begins its epoch with. `lost`: message numbers that are no more, after a forced promotion."""
    return Block(group, epoch, number, 0, None, lost, [], 0)


def pack_block(block: Block) -> tuple[bytes, list[bytes]]:
    """Meta and body (in pieces)."""
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
