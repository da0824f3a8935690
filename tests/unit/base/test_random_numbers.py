from __future__ import annotations

from collections import Counter

from leveret.base.random_numbers import RandomNumbers


def drawn(seed: int, count: int, times: int) -> list[int]:
    rng = RandomNumbers(lambda: seed)
    return [rng.draw(count) for _ in range(times)]


def test_one_seed_one_row() -> None:
    assert drawn(7, 100, 50) == drawn(7, 100, 50) != drawn(8, 100, 50)


def test_every_number_has_its_chance() -> None:
    counts = Counter(drawn(1, 5, 5000))
    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert all(900 < count < 1100 for count in counts.values())


def test_the_seed_is_asked_for_once_and_late() -> None:
    asked: list[int] = []

    def seed() -> int:
        asked.append(1)
        return -1

    rng = RandomNumbers(seed)
    assert not asked
    rng.draw(2)
    rng.draw(2)
    assert asked == [1]
