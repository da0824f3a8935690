"""A mirror that is being filled leaves time for the queues that are in use."""

from __future__ import annotations

from leveret.broker.mirrors.manager import BUSY_TICKS
from tests.support.mirrored_brokers import Rings


def test_blocks_of_any_queue_make_a_filling_mirror_yield() -> None:
    rings = Rings()
    mirrors, mirror = rings["b"].broker.mirrors, rings.mirror("b")

    def is_yielding() -> bool:
        mirror.member.complete = False  # As if it lacked something: only then does time matter to it.
        mirrors.ticking[mirror] = None
        mirrors.tick()
        return mirror.member.filling.yielding

    for _ in range(BUSY_TICKS):
        mirrors.tick()
    assert not is_yielding()
    rings["a"].client().publish("q", b"x", delivery_mode=2)
    rings.run()
    assert [is_yielding() for _ in range(BUSY_TICKS)] == [True] * (BUSY_TICKS - 1) + [False]
