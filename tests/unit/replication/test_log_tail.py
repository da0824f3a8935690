from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.replication.log_tail import Tail
from leveret.replication.packed_block import block_bytes
from leveret.replication.ring_frames import ProtocolError
from leveret.storage.format.mirror_limits import HISTORY_MAX
from tests.unit.replication.lab import block, blocks

SIZE = block_bytes(block(1, 1))


def make(*epochs: int) -> Tail:
    return Tail(blocks=[block(epoch, number) for number, epoch in enumerate(epochs, 1)])


def test_epochs() -> None:
    tail = make(1, 1, 3, 3, 4)
    assert [tail.epoch_at(number) for number in range(7)] == [0, 1, 1, 3, 3, 4, -1]
    assert tail.history == ((1, 1), (3, 3), (4, 5)) and tail.history_to(4) == ((1, 1), (3, 3))


def test_a_log_has_no_gaps_and_epochs_do_not_fall() -> None:
    tail = make(1, 2)
    for wrong in (block(2, 2), block(2, 4), block(1, 3)):
        with pytest.raises(ProtocolError):
            tail.append(wrong)


def test_truncating() -> None:
    tail = make(1, 1, 3, 3)
    tail.truncate(2)
    assert (tail.end, tail.last_epoch, tail.history) == (2, 1, ((1, 1),))
    tail.append(block(5, 3))
    assert tail.upto(1, 3) == (block(1, 1), block(1, 2), block(5, 3))
    tail.forget_to(2)
    with pytest.raises(ProtocolError):
        tail.truncate(1)


def test_since_gives_what_fits_and_at_least_one() -> None:
    tail = make(*[1] * 10)
    tail.forget_to(3)
    assert tail.since(4, 100, 0) == blocks(1, 4, 4)
    assert tail.since(4, 100, 3 * SIZE) == blocks(1, 4, 6)
    assert tail.since(4, 2, 3 * SIZE) == blocks(1, 4, 5)
    assert tail.since(9, 100, 1 << 20) == blocks(1, 9, 10)
    assert tail.since(11, 100, 1 << 20) == ()


def test_bytes() -> None:
    tail = make(*[1] * 10)
    assert tail.bytes_between(2, 5) == 3 * SIZE
    tail.forget_to(4)
    assert tail.bytes_between(2, 5) == SIZE, "of what is kept"
    assert tail.first_within(3 * SIZE) == 7 and tail.first_within(1 << 20) == 4 and tail.first_within(0) == 10
    tail.restart(20, ((1, 1),))
    assert tail.bytes_between(20, 20) == 0 and tail.sum_to(20) == 10 * SIZE


def test_restarting() -> None:
    tail = make(1, 1, 2)
    tail.restart(9, ((1, 1), (2, 3), (5, 8)))
    assert (tail.base, tail.end, tail.last_epoch) == (9, 9, 5) and tail.epoch_at(7) == 2
    tail.append(block(5, 10))
    assert tail.since(10, 9, 0) == blocks(5, 10, 10)


def test_the_history_is_bounded() -> None:
    tail = make(*range(1, HISTORY_MAX + 100))
    assert len(tail.history) == HISTORY_MAX and tail.common(((1, 1), (2, 2)), 2) == 0


@given(st.lists(st.integers(0, 2), max_size=12), st.lists(st.integers(0, 2), max_size=12), st.integers(0, 12))
def test_common(one: list[int], other: list[int], shared: int) -> None:
    """Logs that share a beginning, made by masters of different epochs from there on."""
    base = [1 + sum(one[:at]) // 3 for at in range(min(shared, len(one)))]
    first = base + [10 + 2 * (at // 2) for at in range(len(one) - len(base))]
    second = base + [11 + 2 * (at // 2) for at in range(len(other))]
    mine, theirs = make(*first), make(*second)
    equal = 0
    while equal < min(mine.end, theirs.end) and first[equal] == second[equal]:
        equal += 1
    assert mine.common(theirs.history, theirs.end) == equal


def test_messages_and_times_behind_a_number() -> None:
    """Whatever was cut off, forgotten or begun anew: no block is looked at to count them."""
    held = [block(1, number, number * 10, (b"x",) * number) for number in range(1, 6)]
    for one in held[1:]:
        one.time_ms = one.number * 100
    held[0].time_ms = 0
    tail = Tail(blocks=held)
    assert [tail.messages_after(number) for number in range(6)] == [15, 14, 12, 9, 5, 0]
    assert [tail.time_after(number) for number in range(6)] == [200, 200, 300, 400, 500, None]
    tail.truncate(4)
    tail.append(block(2, 5, 90, (b"x",) * 7))
    assert tail.messages_after(3) == 11
    tail.forget_to(3)
    assert tail.messages_after(1) == tail.messages_after(3) == 11 and tail.messages_after(4) == 7
    assert tail.time_after(1) == 400
    tail.restart(20, ((2, 5),))
    assert tail.messages_after(20) == 0 and tail.time_after(20) is None
    tail.append(block(2, 21, 99, (b"x", b"y")))
    assert tail.messages_after(20) == 2
