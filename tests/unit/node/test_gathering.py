"""Waits of commits for publishes that answer confirms."""

from __future__ import annotations

import pytest

from leveret.node.gathering import ANSWER_MAX, GATHER_S_MAX, UNGATHERED_MAX, UNTRIED_MAX, Gathering

TOOK_S = 0.0003


class Publishers:
    """Publishes and commits as a node sees them."""

    def __init__(self) -> None:
        self.gathering = Gathering()
        self.published = 0
        self.now_s = 1.0

    def publish(self, count: int) -> None:
        """Publishes arrive one by one, and the next commit waits as long as it should."""
        for _ in range(count):
            self.published += 1
            if self.gathering.expects_more(self.published):
                self.gathering.on_wait()

    def commit(self, confirmed: int, meanwhile: int = 0) -> None:
        """Commits so many messages, while more of them arrive."""
        self.gathering.on_commit(self.published)
        self.now_s += TOOK_S
        self.gathering.on_confirmed(self.published, confirmed, self.now_s, TOOK_S)
        self.published += meanwhile
        self.gathering.on_read(self.published)


@pytest.fixture
def publishers() -> Publishers:
    return Publishers()


def test_a_window_that_is_sent_after_its_confirms_is_an_answer(publishers: Publishers) -> None:
    publishers.publish(10)
    publishers.commit(10)
    assert not publishers.gathering.is_answered  # That commit has not waited, so nobody knows.
    publishers.publish(9)
    assert publishers.gathering.expects_more(publishers.published)
    publishers.publish(1)
    assert not publishers.gathering.expects_more(publishers.published)
    publishers.commit(10)
    assert publishers.gathering.is_answered


def test_publishers_that_send_during_a_commit_do_not_answer(publishers: Publishers) -> None:
    publishers.publish(3)
    for _ in range(20):
        publishers.commit(3, meanwhile=1)
        publishers.publish(2)
        assert publishers.gathering.has_waited and not publishers.gathering.is_answered


def test_a_publisher_that_goes_on_at_its_own_pace_is_noticed(publishers: Publishers) -> None:
    for _ in range(3):
        publishers.publish(10)
        publishers.commit(10)
    assert publishers.gathering.is_answered
    publishers.publish(10)
    publishers.commit(10, meanwhile=3)
    assert not publishers.gathering.is_answered


@pytest.mark.parametrize(("window", "is_answered"), [(ANSWER_MAX, True), (ANSWER_MAX + 1, False)])
def test_only_small_windows_are_delivered_as_a_whole(
    publishers: Publishers, window: int, is_answered: bool
) -> None:
    for _ in range(3):
        publishers.publish(window)
        publishers.commit(window)
    assert publishers.gathering.is_answered == is_answered


def test_single_publishes_wait_for_nothing(publishers: Publishers) -> None:
    for _ in range(5):
        publishers.publish(1)
        assert not publishers.gathering.has_waited
        publishers.commit(1)


def test_a_wait_is_no_longer_than_the_commit_before_it(publishers: Publishers) -> None:
    publishers.publish(2)
    publishers.commit(2)
    assert publishers.gathering.until_s == pytest.approx(publishers.now_s + TOOK_S)
    publishers.gathering.on_confirmed(2, 2, 7.0, 100.0)
    assert publishers.gathering.until_s == pytest.approx(7.0 + GATHER_S_MAX)


def test_after_waits_in_vain_most_commits_begin_without_one(publishers: Publishers) -> None:
    waits = 0
    for _ in range(200):
        publishers.publish(3)  # Fewer than the ten that the last commit has confirmed.
        waits += publishers.gathering.has_waited
        publishers.commit(10)
    assert 200 // (UNGATHERED_MAX + 1) <= waits < 25


def test_the_halves_of_a_window_are_joined(publishers: Publishers) -> None:
    publishers.publish(5)
    publishers.commit(5, meanwhile=5)
    assert publishers.gathering.expects_more(publishers.published)
    publishers.publish(5)
    assert not publishers.gathering.expects_more(publishers.published)
    publishers.commit(10)
    assert publishers.gathering.is_answered


def test_large_windows_may_stay_in_halves(publishers: Publishers) -> None:
    publishers.publish(ANSWER_MAX + 1)
    publishers.commit(ANSWER_MAX + 1, meanwhile=ANSWER_MAX + 1)
    assert not publishers.gathering.expects_more(publishers.published)


def test_publishers_with_a_pace_of_their_own_seldom_wait_for_another_half(publishers: Publishers) -> None:
    trials = 0
    publishers.publish(5)
    for _ in range(4 * UNTRIED_MAX):
        publishers.commit(5, meanwhile=5)
        if publishers.gathering.expects_more(publishers.published):
            trials += 1
            publishers.publish(5)
        assert not publishers.gathering.is_answered
    assert 4 <= trials < 14
