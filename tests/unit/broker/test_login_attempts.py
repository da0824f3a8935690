from __future__ import annotations

import pytest

from leveret.broker import login_attempts
from leveret.broker.login_attempts import (
    FAILURES_MAX,
    KEPT_MAX,
    LATE_MS,
    NOTED_MAX,
    WAITING_MAX,
    WINDOW_MS,
    LoginAttempts,
)

NOW = 5_000_000
HOST = "192.0.2.1"


def fail(kept: LoginAttempts, times: int, user: str = "ann", host: str = HOST, now_ms: int = NOW) -> list[int]:
    return [kept.failed(host, user, now_ms) for _ in range(times)]


def test_answers_to_many_wrong_passwords_are_late() -> None:
    kept = LoginAttempts()
    assert fail(kept, FAILURES_MAX + 2) == [0] * FAILURES_MAX + [LATE_MS] * 2
    assert fail(kept, 1, user="bob") == fail(kept, 1, host="192.0.2.2") == [0]  # Nobody else's are.
    assert fail(kept, 1, now_ms=NOW + WINDOW_MS) == [0]


def test_logins_are_refused_unread_while_many_late_answers_are_due() -> None:
    kept = LoginAttempts()
    fail(kept, FAILURES_MAX + WAITING_MAX - 1)
    assert not kept.is_barred(HOST, "ann", NOW)
    fail(kept, 1, now_ms=NOW + 10)
    assert kept.is_barred(HOST, "ann", NOW + 10)
    assert not kept.is_barred(HOST, "bob", NOW + 10)
    assert not kept.is_barred("192.0.2.2", "ann", NOW + 10)
    assert kept.is_barred(HOST, "ann", NOW + LATE_MS - 1)
    assert not kept.is_barred(HOST, "ann", NOW + LATE_MS)  # The first of them went out.


def test_failures_of_long_ago_do_not_add_up() -> None:
    kept, now_ms = LoginAttempts(), NOW
    for _ in range(10 * FAILURES_MAX):
        assert fail(kept, 1, now_ms=now_ms) == [0]
        now_ms += WINDOW_MS // (FAILURES_MAX - 1)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEPT_MAX >= 1_000
    monkeypatch.setattr(login_attempts, "KEPT_MAX", 10)
    kept = LoginAttempts()
    for number in range(100):
        fail(kept, 1, host=f"h{number}")
        kept.is_noted(f"h{number}", NOW)
    assert len(kept._failures) == len(kept._noted) == 10
    assert ("h99", "ann") in kept._failures


def test_a_name_of_any_length_is_counted_and_not_kept() -> None:
    kept = LoginAttempts()
    long = "x" * 9_000_000 + "\udcff"
    assert fail(kept, FAILURES_MAX + 1, user=long)[-1] == LATE_MS
    assert fail(kept, 1, user=long[1:]) == [0]
    assert max(len(user) for _, user in kept._failures) <= 255


def test_the_log_is_told_of_some_and_then_of_how_many() -> None:
    kept = LoginAttempts()
    told = [kept.is_noted(HOST, NOW) for _ in range(NOTED_MAX + 30)]
    assert told == [(True, 0)] * NOTED_MAX + [(False, 0)] * 30
    assert kept.is_noted("192.0.2.2", NOW) == (True, 0)
    assert kept.is_noted(HOST, NOW + WINDOW_MS) == (True, 30)
    assert kept.is_noted(HOST, NOW + WINDOW_MS) == (True, 0)
