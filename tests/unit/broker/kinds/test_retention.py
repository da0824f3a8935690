"""What of a stream is given up."""

from __future__ import annotations

from leveret.broker.kinds.retention import STRETCHES_MAX, Retention
from leveret.metadata.rules.queue_rules import QueueRules

ALL = 1 << 40


def filled(count: int, **rules: int) -> Retention:
    """One message of ten bytes a second, the first at 1 s."""
    retention = Retention()
    retention.set_rules(QueueRules(**rules))  # type: ignore[arg-type]
    for number in range(1, count + 1):
        retention.add(number, number, 10, number * 1000)
    return retention


def bounds(retention: Retention) -> list[tuple[int, int]]:
    return [(one.first, one.last) for one in retention.stretches]


def test_stretches() -> None:
    assert bounds(filled(7, max_segment_bytes=30)) == [(1, 3), (4, 6), (7, 7)]
    assert bounds(filled(3, max_segment_bytes=0)) == [(1, 1), (2, 2), (3, 3)]
    assert bounds(filled(9)) == [(1, 9)]


def test_the_oldest_goes_until_it_fits() -> None:
    retention = filled(10, max_segment_bytes=30, max_bytes=60)
    assert retention.take(ALL, 0) == 6 and retention.bytes == 40
    assert retention.take(ALL, 0) == 0


def test_there_is_no_need_to_look_where_nothing_can_go() -> None:
    assert not filled(10, max_segment_bytes=30).has_to_look()
    assert not filled(10, max_segment_bytes=30, max_bytes=100).has_to_look()
    assert filled(10, max_segment_bytes=30, max_bytes=99).has_to_look()
    assert filled(10, max_segment_bytes=30, max_age_ms=1 << 40).has_to_look()  # Its time has to be set.
    assert not filled(10, max_age_ms=1 << 40, max_bytes=0).has_to_look()  # The last stretch stays.


def test_what_is_not_committed_stays() -> None:
    retention = filled(10, max_segment_bytes=30, max_bytes=0)
    assert retention.take(5, 0) == 3
    assert retention.take(6, 0) == 6
    assert retention.take(ALL, 0) == 9
    assert retention.take(ALL, 0) == 0 and bounds(retention) == [(10, 10)]


def test_an_eighth_of_the_age_closes_a_stretch() -> None:
    retention = filled(10, max_age_ms=16_000)
    assert bounds(retention) == [(1, 3), (4, 6), (7, 9), (10, 10)]
    assert retention.due_ms() == 19_000
    assert retention.take(ALL, 18_999) == 0
    assert retention.take(ALL, 19_000) == 3
    assert retention.take(ALL, 1_000_000) == 9 and retention.due_ms() is None


def test_after_a_start_ages_are_not_known() -> None:
    retention = Retention()
    retention.set_rules(QueueRules(max_age_ms=1_000))
    retention.restore([(5, 9, 50), (10, 12, 30)])
    assert retention.due_ms() is None and retention.take(ALL, 1 << 50) == 0
    oldest = retention.undated()
    assert oldest is not None and oldest.last == 9
    oldest.newest_ms = 5_000
    assert retention.undated() is None and retention.take(ALL, 6_000) == 9


def test_there_are_never_many() -> None:
    retention = filled(STRETCHES_MAX + 2, max_segment_bytes=1)
    assert len(retention.stretches) <= STRETCHES_MAX
    assert retention.stretches[0].first == 1 and retention.stretches[-1].last == STRETCHES_MAX + 2
    assert sum(one.bytes for one in retention.stretches) == retention.bytes
