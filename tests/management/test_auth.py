from __future__ import annotations

import base64
from typing import Any, cast

import pytest

from leveret.management import auth
from leveret.management.auth import FAILURES_MAX, FAILURES_OF_HOST_MAX, KEPT_MAX, WINDOW_S, Failures, Gate
from leveret.management.messages import Problem, Request


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Users:
    """Knows ann."""

    def refuse_login(self, user: str, password: str | None) -> str | None:
        return None if (user, password) in (("ann", "s:e"), ("guest", "g")) else "no"


def request(credentials: str | None, host: str = "192.0.2.1") -> Request:
    headers = {} if credentials is None else {"authorization": credentials}
    return Request("GET", "/", [], headers, host, host.startswith("127."))


def basic(text: str | bytes) -> str:
    return "Basic " + base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gate(clock: Clock) -> Gate:
    return Gate(cast(Any, Users()), frozenset({"guest"}), clock)


def status(gate: Gate, asked: Request) -> int:
    try:
        gate.check(asked)
    except Problem as problem:
        return problem.status
    return 200


def test_who_is_known(gate: Gate) -> None:
    asked = request(basic("ann:s:e"))  # The first colon counts.
    gate.check(asked)
    assert asked.user == "ann"


@pytest.mark.parametrize(
    "credentials",
    [None, "", "Basic", "Basic !", "Bearer x", basic("ann"), basic("ann:"), basic("ann:x"), basic(b"\xff:\xfe")],
)
def test_who_is_not(gate: Gate, credentials: str | None) -> None:
    with pytest.raises(Problem) as caught:
        gate.check(request(credentials))
    assert (caught.value.status, caught.value.error, caught.value.reason) == (401, "not_authorized", "Login failed")
    assert caught.value.headers == [("www-authenticate", 'Basic realm="RabbitMQ Management"')]


def test_guest_comes_from_this_machine_only(gate: Gate) -> None:
    assert status(gate, request(basic("guest:g"), "127.0.0.1")) == 200
    assert status(gate, request(basic("guest:g"))) == 401


def test_passwords_cannot_be_tried_out(gate: Gate, clock: Clock) -> None:
    for _ in range(FAILURES_MAX):
        assert status(gate, request(basic("ann:x"))) == 401
    with pytest.raises(Problem) as caught:
        gate.check(request(basic("ann:s:e")))  # Even the right one.
    assert (caught.value.status, caught.value.headers) == (429, [("retry-after", "61")])
    assert status(gate, request(basic("ann:s:e"), "192.0.2.2")) == 200
    clock.now += WINDOW_S
    assert status(gate, request(basic("ann:s:e"))) == 200


def test_nor_names(gate: Gate, clock: Clock) -> None:
    for number in range(FAILURES_OF_HOST_MAX):
        assert status(gate, request(basic(f"u{number}:x"))) == 401
    assert status(gate, request(basic("ann:s:e"))) == 429
    clock.now += WINDOW_S
    assert status(gate, request(basic("ann:s:e"))) == 200


def test_failures_of_long_ago_do_not_add_up(clock: Clock) -> None:
    failures = Failures(clock)
    for _ in range(10 * FAILURES_MAX):
        failures.note("h", "ann")
        clock.now += WINDOW_S / (FAILURES_MAX - 1)
        assert not failures.is_barred("h", "ann")


def test_what_is_remembered_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEPT_MAX >= 1_000
    monkeypatch.setattr(auth, "KEPT_MAX", 10)
    failures = Failures(clock)
    for number in range(100):
        failures.note(f"h{number}", "ann")
    assert len(failures._counts) == 10
    assert ("h99", "ann") in failures._counts
