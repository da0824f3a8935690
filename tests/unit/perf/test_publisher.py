"""Messages with the time in them, and the counting of confirms."""

from __future__ import annotations

import random

import pytest

from leveret.client.amqp import BrokerError
from leveret.perf.publisher import MARK, STAMP, Confirms, Message, Target


@pytest.mark.parametrize("size", [0, 1, 4, 11, 12, 100, 300_000])
def test_message(size: int) -> None:
    message = Message(Target("", "q"), size, persistent=True, mandatory=False, frame_max=131_072)
    batch = message.batch(3, 0x0102030405060708)
    assert len(batch) == 3 * message.bytes
    assert batch.count(MARK + STAMP.pack(0x0102030405060708)) == (3 if size >= 12 else 0)
    assert message.batch(1, 0) * 2 == message.batch(2, 0)
    assert size.to_bytes(8, "big") + b"\x10\x00\x02\xce" in batch


def test_a_key_that_looks_like_the_mark() -> None:
    """The time goes into the body, whatever stands before it."""
    key = MARK.decode() + "\0" * 8
    batch = Message(Target(key, key), 20, persistent=False, mandatory=False, frame_max=4096).batch(1, 7)
    assert batch.count(key.encode()) == 2
    assert batch.endswith(MARK + STAMP.pack(7) + bytes(8) + b"\xce")


def test_confirms_one_by_one_and_many_at_once() -> None:
    confirms = Confirms()
    confirms.begin(5, 100)
    confirms.begin(5, 200)
    confirms.on_told(2, False, False, 300)
    assert (confirms.count, confirms.latency.count) == (1, 1)
    confirms.on_told(7, True, False, 400)
    assert (confirms.count, confirms.latency.count) == (7, 7)
    confirms.on_told(7, True, False, 400)
    confirms.on_told(3, False, False, 400)
    assert (confirms.count, confirms.latency.count) == (7, 7)
    confirms.on_told(10, True, True, 500)
    assert (confirms.count, confirms.nacked) == (10, 3)
    assert confirms.latency.counts == {200: 3, 300: 7}


def test_latencies_are_those_of_the_batch() -> None:
    confirms = Confirms()
    confirms.begin(2, 0)
    confirms.begin(3, 50)
    confirms.on_told(4, True, False, 100)
    assert confirms.latency.counts == {100: 2, 50: 2}


@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_of_confirms(seed: int) -> None:
    """Against a set of numbers."""
    rng = random.Random(seed)
    confirms, sent, told = Confirms(), 0, set[int]()
    for now in range(200):
        if rng.random() < 0.4 or len(told) == sent:
            count = rng.randint(1, 10)
            confirms.begin(count, now)
            sent += count
        else:
            tag, multiple = rng.randint(1, sent), rng.random() < 0.3
            told |= set(range(1, tag + 1)) if multiple else {tag}
            confirms.on_told(tag, multiple, False, now)
        assert confirms.count == confirms.latency.count == len(told)


def test_a_confirm_of_nothing() -> None:
    confirms = Confirms()
    confirms.begin(1, 0)
    with pytest.raises(BrokerError, match="confirmed message 2, and only 1 were sent"):
        confirms.on_told(2, False, False, 1)
