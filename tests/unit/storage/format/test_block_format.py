from __future__ import annotations

import random
from itertools import groupby
from struct import pack
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.storage.format.block_format import (
    BLOCK_HEAD,
    MIRRORED,
    NORMAL,
    SPILL,
    Records,
    decode_keys,
    decode_records,
    encode_again,
    encode_block,
    encode_group_head,
    encode_keys,
    group_start,
    meta_crc,
    parse_group_head,
    parse_meta,
)
from leveret.storage.format.errors import FormatError
from leveret.storage.format.queue_block import PERSISTENT, REDELIVERED, SHARED, Block, Run
from leveret.storage.log import Log, LogOptions
from simulation.core.disk import FaultyDisk

keys = st.sampled_from([b"\0\0", b"\0\1a", b"\5amq.x\3a.b"]) | st.binary(max_size=40)
messages = st.lists(st.tuples(st.binary(max_size=60), keys, st.sampled_from([1, 1, 1, 3, 9])), min_size=1, max_size=12)
ranges = st.lists(st.integers(1, 10), max_size=4).map(
    lambda gaps: [(sum(gaps[: i + 1]) * 10, sum(gaps[: i + 1]) * 10 + 5) for i in range(len(gaps))]
)
numbers = st.integers(0, (1 << 64) - 1)


def records_of(found: list[tuple[bytes, bytes, int]], spans: list[tuple[int, int]]) -> Records:
    """Every third message came at another time than the one before."""
    times = [(at, 5_000 + at) for at in range(0, len(found), 3)] if len(found) % 2 else []
    return Records(spans, [m[0] for m in found], [m[1] for m in found], bytes(m[2] for m in found), times)


@settings(max_examples=100, deadline=None)
@given(messages | st.none(), ranges, ranges)
def test_a_block_that_came_as_bytes_is_as_if_it_were_made_here(
    found: list[tuple[bytes, bytes, int]] | None, settled: list[tuple[int, int]], requeued: list[tuple[int, int]]
) -> None:
    """Whichever columns it has: they lie in one order, and the note among them."""
    records = records_of(found, []) if found else None
    fields, note = (7, 2, 9, 5_000, 100, 100 + len(found or ()), 99), pack("<2Q", 4, 8)
    counts = [(low, high, 1) for low, high in requeued]
    came, _, _ = encode_block(0, 0, fields, records, settled, requeued, MIRRORED, counts=counts)
    made, _, _ = encode_block(3, 640, fields, records, settled, requeued, MIRRORED, 0, None, note, counts)
    again, _ = encode_again(3, 640, came, MIRRORED, 0, note)
    assert again == made
    assert list(parse_meta(memoryview(again), 3, 640).note()) == [4, 8]


@settings(max_examples=200, deadline=None)
@given(messages | st.none(), ranges, ranges, numbers, numbers, st.booleans(), st.integers(0, 1 << 40))
def test_round_trip(
    found: list[tuple[bytes, bytes, int]] | None,
    settled: list[tuple[int, int]],
    requeued: list[tuple[int, int]],
    queue: int,
    number: int,
    holes: bool,
    offset: int,
) -> None:
    records, first, after = None, 100, 100
    stored: list[tuple[int, int]] = []
    if found:
        after = first + len(found) + (5 if holes else 0)
        stored = [(first, first), (first + 3, first + 1 + len(found))] if holes and len(found) > 1 else []
        if holes and len(found) == 1:
            stored = [(first + 2, first + 2)]
        records = records_of(found, stored)
    fields = (queue, 3, number, 1234, first, after, 77)
    counts = [(low, high, at + 1) for at, (low, high) in enumerate(requeued)]
    meta, pieces, overhead = encode_block(9, offset, fields, records, settled, requeued, counts=counts)
    body = b"".join(pieces)
    header = parse_meta(memoryview(meta + body), 9, offset)
    assert (header.queue, header.epoch, header.number, header.time_ms) == (queue, 3, number, 1234)
    assert (header.first, header.next, header.delivered_through) == (first, after, 77)
    assert (header.settled(), header.requeued(), header.counts()) == (settled, requeued, counts)
    assert header.overhead == overhead
    assert header.length == len(meta) + len(body)
    if records is not None:
        back = decode_records(header, body, {})
        assert (back.contents, back.keys, back.kinds) == (records.contents, records.keys, records.kinds)
        assert back.ranges == (stored or [(first, after - 1)])
        assert back.times == (records.times or [(0, 1234)])


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 30).flatmap(lambda different: st.lists(st.integers(1, different), min_size=1, max_size=100)))
def test_keys_come_back_in_order_and_take_little_more_than_their_runs(numbers: list[int]) -> None:
    """Whether hardly any two neighbours are equal, most are or all are."""
    given_keys = [b"\0\x03k%02d" % number for number in numbers]
    encoded = encode_keys(given_keys)
    assert decode_keys(memoryview(encoded), len(given_keys)) == given_keys
    runs, entry_bytes = len(list(groupby(given_keys))), 6 + len(given_keys[0])
    assert runs * entry_bytes <= len(encoded) <= runs * entry_bytes * 8 / 7


def test_equal_keys_are_written_once() -> None:
    assert encode_keys([b"\0\1a"] * 1_000) == pack("<IH", 1_000, 3) + b"\0\1a"
    assert encode_keys([b"\0\1a"] * 8 + [b"\0\1b"]) == pack("<IH", 8, 3) + b"\0\1a" + pack("<IH", 1, 3) + b"\0\1b"


@settings(max_examples=100, deadline=None)
@given(messages, st.data())
def test_no_changed_byte_goes_unnoticed(found: list[tuple[bytes, bytes, int]], data: st.DataObject) -> None:
    fields = (1, 1, 1, 1, 5, 5 + len(found), 0)
    meta, pieces, _ = encode_block(1, 0, fields, records_of(found, []), [(1, 2)], [])
    body = b"".join(pieces)
    block = bytearray(meta + body)
    at = data.draw(st.integers(0, len(block) - 1))
    block[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FormatError):
        header = parse_meta(memoryview(block), 1, 0)
        decode_records(header, memoryview(block)[header.meta_length : header.length], {})


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        parse_meta(memoryview(data), 1, 0)
    with pytest.raises(FormatError):
        parse_group_head(data, 1, 0)


def one_block(segment: int, offset: int) -> bytes:
    fields = (1, 1, 1, 1, 5, 6, 0)
    meta, pieces, _ = encode_block(segment, offset, fields, Records([], [b"x"], [b""], b"\1", []), [], [])
    body = b"".join(pieces)
    return meta + body


def test_a_block_is_valid_only_where_it_was_written() -> None:
    parse_meta(memoryview(one_block(4, 1000)), 4, 1000)
    for segment, offset in ((5, 1000), (4, 1001), (1000, 4)):
        with pytest.raises(FormatError, match="checksum"):
            parse_meta(memoryview(one_block(4, 1000)), segment, offset)


def test_a_group_is_valid_only_where_it_was_written() -> None:
    meta = one_block(4, 64)
    head, crc = encode_group_head(4, 0, 500, 0, 10, 77, [meta_crc(meta)])
    assert head.startswith(group_start(4))
    parsed = parse_group_head(head, 4, 0)
    assert (parsed.length, parsed.previous_length, parsed.previous, parsed.crc) == (500, 10, 77, crc)
    for segment, offset in ((5, 0), (4, 64)):
        with pytest.raises(FormatError, match="written for"):
            parse_group_head(head, segment, offset)


def test_columns_of_a_newer_version_are_an_error() -> None:
    meta = bytearray(one_block(1, 0))
    meta_length = BLOCK_HEAD.unpack_from(meta)[0]
    columns_at = BLOCK_HEAD.size - 4 - 2 - 2
    meta[columns_at + 1] |= 0x80
    crc = crc32(meta[BLOCK_HEAD.size : meta_length], crc32(meta[: BLOCK_HEAD.size - 4], crc32(pack("<QQ", 1, 0))))
    meta[BLOCK_HEAD.size - 4 : BLOCK_HEAD.size] = pack("<I", crc)
    with pytest.raises(FormatError, match="written by a newer version"):
        parse_meta(memoryview(meta), 1, 0)


def test_spilled_kinds() -> None:
    records = Records([], [b"a", b"b"], [b"", b""], bytes((0, REDELIVERED)), [])
    meta, pieces, _ = encode_block(1, 0, (1, 0, 0, 0, 1, 3, 0), records, [], [], SPILL)
    body = b"".join(pieces)
    header = parse_meta(memoryview(meta + body), 1, 0)
    assert decode_records(header, body, {}).kinds == bytes((0, REDELIVERED))
    assert header.type == SPILL != NORMAL


def test_shared_content_is_stored_once() -> None:
    disk = FaultyDisk(random.Random(1))
    log = Log(disk, "log", LogOptions())
    log.recover([])
    content = b"shared" * 1000
    for queue in range(1, 11):
        run = Run(1, [b"own %d" % queue, content], [b"\0\0"] * 2, bytearray((PERSISTENT, PERSISTENT | SHARED)))
        log.append(Block(queue, 1, 1, 0, run, [], [], 0))
    write = log.take()
    assert write is not None
    write.perform(disk)
    log.on_done(write)
    assert disk.size("log/segments/0000000000000001.log") < 2 * len(content) + 5000
    again = Log(disk, "log", LogOptions())
    again.recover(range(1, 11))
    for queue in range(1, 11):
        job = again.load(queue, 1, 10, 1 << 20)
        assert job is not None
        job.perform(disk)
        again.on_done(job)
        assert job.runs == [Run(1, [b"own %d" % queue, content], [b"\0\0"] * 2, bytearray((1, 1)))]
        assert again.queue(queue).message_bytes == len(content) + len(b"own %d" % queue)


QUEUES = range(1, 51)
CONTENTS = [b"%d " % number + bytes(1_000) for number in range(20)]


def fan_out(kind: int) -> list[Run]:
    """For each queue the same objects, in lists of their own."""
    return [Run(1, list(CONTENTS), [b"\0\0"] * 20, bytearray((kind | SHARED,)) * 20) for _ in QUEUES]


class CountingDisk(FaultyDisk):
    reads = 0

    def read(self, path: str, offset: int, size: int) -> bytes:
        self.reads += 1
        return super().read(path, offset, size)


@pytest.mark.parametrize("kind", [PERSISTENT, 0])  # Transient ones are put away where memory is short.
def test_a_fan_out_is_written_once_and_read_in_few_calls(kind: int) -> None:
    disk = CountingDisk(random.Random(1))
    log = Log(disk, "log", LogOptions())
    log.recover([])
    for queue, run in zip(QUEUES, fan_out(kind), strict=True):
        if kind:
            log.append(Block(queue, 1, 1, 0, run, [], [], 0))
        else:
            log.spill(queue, [run])
    assert log.pending_bytes < 22_000 + 50 * 20 * 30  # What is written once waits once.
    write = log.take()
    assert write is not None and log.take() is None
    write.perform(disk)
    log.on_done(write)
    assert log.pending_bytes == 0
    assert disk.size("log/segments/0000000000000001.log") < 22_000 + 50 * 20 * 30
    for queue in QUEUES:
        disk.reads = 0
        job = log.load(queue, 1, 100, 1 << 20)
        assert job is not None
        job.perform(disk)
        log.on_done(job)
        assert job.runs == [Run(1, CONTENTS, [b"\0\0"] * 20, bytearray((kind,)) * 20)]
        assert disk.reads == 2  # The block, and what it shares.


def test_what_is_shared_is_in_every_group_that_needs_it() -> None:
    disk = FaultyDisk(random.Random(1))
    log = Log(disk, "log", LogOptions(group_bytes=40_000))
    log.recover([])
    for queue, run in zip(QUEUES, fan_out(PERSISTENT), strict=True):
        log.append(Block(queue, 1, 1, 0, run, [], [], 0))
    log.forget(1)  # Those that follow no longer have its contents before them.
    groups = 0
    while (write := log.take()) is not None:
        write.perform(disk)
        log.on_done(write)
        assert write.length < 40_000 + 22_000
        groups += 1
    assert groups == 2 and log.gathered_bytes == 0
    again = Log(disk, "log", LogOptions())
    again.recover(QUEUES)
    for queue in QUEUES[1:]:
        job = again.load(queue, 1, 100, 1 << 20)
        assert job is not None
        job.perform(disk)
        assert job.runs[0].contents == CONTENTS


def test_equal_contents_of_other_publishes_are_no_harm() -> None:
    """They are told apart by what they are, not by how they look; either way what is read back is the same."""
    disk = FaultyDisk(random.Random(1))
    log = Log(disk, "log", LogOptions())
    log.recover([])
    for queue in QUEUES:
        if queue % 10 == 1:
            contents = [bytes(bytearray(content)) for content in CONTENTS]
        own = [b"own"] if queue % 3 == 0 else []
        kinds = bytearray((PERSISTENT,)) * len(own) + bytearray((PERSISTENT | SHARED,)) * 20
        run = Run(1, own + contents, [b"\0\0"] * len(kinds), kinds)
        log.append(Block(queue, 1, 1, 0, run, [], [], 0))
    write = log.take()
    assert write is not None
    write.perform(disk)
    log.on_done(write)
    again = Log(disk, "log", LogOptions())
    again.recover(QUEUES)
    for queue in QUEUES:
        job = again.load(queue, 1, 100, 1 << 20)
        assert job is not None
        job.perform(disk)
        assert job.runs[0].contents == ([b"own"] if queue % 3 == 0 else []) + CONTENTS


def test_times_of_several_runs_begin_with_the_first_message() -> None:
    """Also where the time of the first ones is not known."""

    def run(first: int, *times: tuple[int, int]) -> Run:
        return Run(first, [b"x"] * 3, [b""] * 3, bytearray(3), list(times))

    assert Records.of([run(1), run(5, (0, 70), (2, 80)), run(9, (1, 90))]).times == [(0, 70), (5, 80), (7, 90)]
    whole = run(1)
    whole.join(run(4, (0, 70), (2, 80)))
    assert whole.times == [(0, 70), (5, 80)]
