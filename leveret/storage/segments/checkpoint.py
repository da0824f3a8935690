"""The checkpoint: the state of all queues, and the segments that are still needed.

It replaces all blocks in segments before `through`, and is the only list of those segments: one that it does not name
is dead, one that it names and that is missing is damage. See `storage.log` for why no settle is ever lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from struct import Struct
from struct import error as StructError

from zlib_ng.zlib_ng import crc32

from leveret.base.range_set import RangeSet, stretches
from leveret.storage.format.block_format import pack_u64, unpack_u64
from leveret.storage.format.errors import FormatError
from leveret.storage.format.queue_marks import Mark, pack_marks, unpack_marks
from leveret.storage.segments.mirror_copy import MirrorCopy
from leveret.storage.segments.queue_index import QueueLog

_MAGIC = b"LVRC"
_VERSION = 1
_VERSION_MIRRORED = 2  # With a part about mirrored queues at the end.
_VERSION_COUNTED = 3  # And before that a part about queues that count requeues.
_VERSION_MARKED = 4  # And between these two a part about marks.
_HEAD = Struct("<4sHHQQII")  # magic, version, flags, file length, through, segments, queues
_SEGMENT = Struct("<QQ")  # number, length that was synced
# queue, epoch, number, next_seq, delivered_through, floor, live, gone, redelivered (in ranges)
_QUEUE = Struct("<QQQQQQQQQ")
_CRC = Struct("<I")


def checkpoint_path(folder: str) -> str:
    return f"{folder}/checkpoint"


class QueueState:
    """The state of a queue in a checkpoint."""

    __slots__ = (
        "epoch", "number", "next_seq", "delivered_through", "floor", "live", "gone", "redelivered", "counts", "marks",
        "mirror",
    )  # fmt: skip

    def __init__(
        self,
        epoch: int,
        number: int,
        next_seq: int,
        delivered_through: int,
        floor: int,
        live: RangeSet,
        gone: RangeSet,
        redelivered: RangeSet,
    ) -> None:
        self.epoch = epoch
        self.number = number
        self.next_seq = next_seq
        self.delivered_through = delivered_through
        self.floor = floor
        self.live = live
        self.gone = gone
        self.redelivered = redelivered
        self.counts: dict[int, int] = {}
        self.marks: list[Mark] = []
        self.mirror: MirrorCopy | None = None


class CheckpointState:
    """The contents of a checkpoint."""

    __slots__ = ("through", "segments", "queues")

    def __init__(self, through: int, segments: dict[int, int], queues: dict[int, QueueState]) -> None:
        self.through = through
        self.segments = segments
        self.queues = queues


def encode_checkpoint(through: int, segments: dict[int, int], queues: Collection[QueueLog]) -> list[bytes]:
    parts: list[bytes] = [_SEGMENT.pack(*item) for item in sorted(segments.items())]
    for queue in queues:
        ranges = (queue.live, queue.gone, queue.redelivered)
        parts.append(
            _QUEUE.pack(
                queue.id, queue.epoch, queue.number, queue.next_seq, queue.delivered_through, queue.floor,
                *(one.range_count for one in ranges),
            )
        )  # fmt: skip
        parts += [one.pack() for one in ranges]
    version = _VERSION
    counted = [queue for queue in queues if queue.counts]
    marked = [queue for queue in queues if queue.marks]
    if counted or marked:
        version = _VERSION_MARKED if marked else _VERSION_COUNTED
        parts.append(pack_u64((len(counted),)))
    for queue in counted:
        counts = stretches(queue.counts)
        parts.append(pack_u64((queue.id, len(counts), *(number for stretch in counts for number in stretch))))
    if marked:
        parts.append(pack_u64((len(marked),)))
    for queue in marked:
        packed = pack_marks(queue.marks.all())
        # Padded to a multiple of eight bytes, like all other parts.
        parts += (pack_u64((queue.id, len(packed))), packed, bytes(-len(packed) % 8))
    for queue in queues:
        if queue.mirror is not None:
            version = max(version, _VERSION_MIRRORED)
            numbers = queue.mirror.pack(queue.id, segments)
            parts += (pack_u64((len(numbers),)), pack_u64(numbers))
    body = b"".join(parts)
    length = _HEAD.size + len(body) + _CRC.size
    head = _HEAD.pack(_MAGIC, version, 0, length, through, len(segments), len(queues))
    return [head, body, _CRC.pack(crc32(body, crc32(head)))]


def decode_checkpoint(data: bytes) -> CheckpointState:
    if len(data) < _HEAD.size + _CRC.size:
        raise FormatError("checkpoint is cut off")
    magic, version, flags, length, through, segment_count, queue_count = _HEAD.unpack_from(data)
    if magic != _MAGIC or length != len(data):
        raise FormatError("checkpoint head is wrong")
    if crc32(memoryview(data)[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
        raise FormatError("checkpoint checksum is wrong")
    if not _VERSION <= version <= _VERSION_MARKED or flags:
        known = f"this program reads versions up to {_VERSION_MARKED}"
        raise FormatError(f"checkpoint has format version {version}; {known}")
    at = _HEAD.size
    view = memoryview(data)[: -_CRC.size]
    try:
        segments = {}
        for _ in range(segment_count):
            number, synced = _SEGMENT.unpack_from(view, at)
            segments[number] = synced
            at += _SEGMENT.size
        queues = {}
        for _ in range(queue_count):
            queue, epoch, number, next_seq, delivered, floor, *counts = _QUEUE.unpack_from(view, at)
            at += _QUEUE.size
            sets = []
            for count in counts:
                sets.append(RangeSet.unpack(view[at : at + 16 * count]))
                at += 16 * count
            queues[queue] = QueueState(epoch, number, next_seq, delivered, floor, *sets)
        if version >= _VERSION_COUNTED:
            at = _decode_counts(unpack_u64(view[at:]), queues, at)
        if version >= _VERSION_MARKED:
            at = _decode_marks(view, queues, at)
        if version >= _VERSION_MIRRORED:
            at = _decode_mirrors(unpack_u64(view[at:]), queues, at)
    except (IndexError, ValueError, StructError) as error:
        raise FormatError(f"checkpoint is inconsistent: {error}") from None
    if at != len(view):
        raise FormatError("checkpoint is inconsistent: its parts do not fill it")
    return CheckpointState(through, segments, queues)


def _decode_counts(numbers: array[int], queues: dict[int, QueueState], at: int) -> int:
    """Return the end of this part."""
    index = 1
    for _ in range(numbers[0]):
        queue, count = numbers[index], numbers[index + 1]
        start, index = index + 2, index + 2 + 3 * count
        if index > len(numbers) or queue not in queues:
            raise FormatError("checkpoint is inconsistent: counts are cut off, or of an unknown queue")
        for place in range(start, index, 3):
            low, high, value = numbers[place : place + 3]
            queues[queue].counts.update(dict.fromkeys(range(low, high + 1), value))
    return at + 8 * index


def _decode_marks(view: memoryview, queues: dict[int, QueueState], at: int) -> int:
    """Return the end of this part."""
    (count,) = unpack_u64(view[at : at + 8])
    at += 8
    for _ in range(count):
        queue, size = unpack_u64(view[at : at + 16])
        at += 16
        if at + size > len(view) or queue not in queues:
            raise FormatError("checkpoint is inconsistent: marks are cut off, or of an unknown queue")
        queues[queue].marks = unpack_marks(view[at : at + size])
        at += size + -size % 8
    return at


def _decode_mirrors(numbers: array[int], queues: dict[int, QueueState], at: int) -> int:
    """Return the end of this part."""
    index = 0
    while index < len(numbers):
        end = index + 1 + numbers[index]
        queue, mirror = MirrorCopy.unpack(numbers[index + 1 : end])
        if end > len(numbers) or queue not in queues:
            raise FormatError("checkpoint is inconsistent: a mirrored queue is cut off, or unknown")
        queues[queue].mirror = mirror
        index = end
    return at + 8 * index
