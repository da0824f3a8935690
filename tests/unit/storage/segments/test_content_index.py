"""References to blocks: what streams ask of them."""

from __future__ import annotations

from leveret.base.range_set import RangeSet
from leveret.storage.segments.content_index import PENDING, ContentIndex, Share


def test_pieces_of_about_a_size() -> None:
    refs = ContentIndex({PENDING: Share()})
    assert refs.pieces(10) == [] and refs.last_first == 0
    live = RangeSet()
    for at in range(10):
        refs.append(1 + 5 * at, 5, 5, PENDING, at, 100)
        live.add(1 + 5 * at, 5 + 5 * at)
    assert refs.pieces(250) == [(1, 15, 300), (16, 30, 300), (31, 45, 300), (46, 50, 100)]
    assert refs.pieces(1_000_000) == [(1, 50, 1000)]
    assert refs.last_first == 46
    refs.settle(1, 12, live)
    assert refs.pieces(250) == [(11, 25, 260), (26, 40, 300), (41, 50, 200)]
