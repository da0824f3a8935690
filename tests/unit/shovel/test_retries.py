"""When a shovel that has failed tries again."""

from __future__ import annotations

from leveret.shovel.retries import Retries


def test_delays_grow_to_a_limit_and_begin_anew_after_a_calm_time() -> None:
    retries = Retries(5)
    assert [retries.on_failed(0) for _ in range(6)] == [5, 10, 20, 40, 60, 60]
    assert retries.on_failed(100) == 60
    assert retries.on_failed(1000) == 5


def test_a_long_delay_is_kept_and_none_means_never() -> None:
    assert Retries(300).on_failed(0) == 300
    assert Retries(0).on_failed(0) is None
