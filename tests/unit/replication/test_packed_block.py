from __future__ import annotations

import pytest

from leveret.replication.packed_block import (
    PackedBlock,
    block_bytes,
    is_prompt,
    last_message,
    pack_block,
    start_block,
)
from leveret.storage.format.errors import FormatError
from leveret.storage.format.queue_block import PERSISTENT, REDELIVERED, SHARED, Block, Run
from tests.unit.replication.lab import block

RUN = Run(5, [b"one", b"", b"three"], [b"k", b"k", b"l"], bytearray((PERSISTENT, REDELIVERED, PERSISTENT | SHARED)))
BLOCKS = [
    block(3, 9),
    block(3, 9, 5, (b"x", b"y")),
    block(3, 9, 5, (b"x",), kind=0),
    start_block(7, 4, 10, [(1, 5), (9, 9)]),
    start_block(7, 4, 10, [], {b"mark": b"value"}),
    Block(7, 3, 9, 1_234, RUN, [(1, 2), (4, 4)], [(3, 3)], 8),
    Block(7, 3, 9, 1_234, None, [], [(3, 5)], 8, [(3, 4, 1), (5, 5, 7)]),
    block(3, 9, 1, tuple(b"%d" % at * 9_000 for at in range(5))),
]


def repack(one: Block) -> PackedBlock:
    meta, body = pack_block(one)
    return PackedBlock(meta, b"".join(body))


@pytest.mark.parametrize("one", BLOCKS)
def test_there_and_back(one: Block) -> None:
    packed = repack(one)
    if one.enqueued is not None:
        assert packed.enqueued is not None
        assert packed.enqueued.contents == one.enqueued.contents and packed.enqueued.keys == one.enqueued.keys
        assert bytes(packed.enqueued.kinds) == bytes(kind & ~SHARED for kind in one.enqueued.kinds)
    else:
        assert packed.enqueued is None
    for name in ("queue", "epoch", "number", "time_ms", "settled", "requeued", "delivered_through", "marks"):
        assert getattr(packed, name) == getattr(one, name)
    assert block_bytes(packed) == block_bytes(one) and last_message(packed) == last_message(one)
    assert is_prompt(packed) == is_prompt(one)


@pytest.mark.parametrize("one", BLOCKS)
def test_passing_on_changes_no_byte(one: Block) -> None:
    packed = repack(one)
    meta, body = pack_block(packed)
    assert meta is packed.meta and b"".join(body) == packed.body


def test_prompt_is_what_holds_a_transient_message_or_nothing() -> None:
    prompt = [True, False, True, False, False, True, False, False]
    assert [is_prompt(one) for one in BLOCKS] == prompt
    assert [is_prompt(repack(one)) for one in BLOCKS] == prompt


def test_damage_is_noticed() -> None:
    meta, body = pack_block(BLOCKS[1])
    with pytest.raises(FormatError):
        PackedBlock(meta[:20] + b"\xff" + meta[21:], b"".join(body))
    with pytest.raises(FormatError):
        PackedBlock(meta, b"")
    with pytest.raises(FormatError):
        PackedBlock(meta, b"xz")
