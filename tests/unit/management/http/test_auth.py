from __future__ import annotations

import base64
from typing import Any, cast

import pytest

from leveret.broker.login_attempts import FAILURES_MAX, LATE_MS, NOTED_MAX, WAITING_MAX, WINDOW_MS, LoginAttempts
from leveret.management.http.auth import Authentication
from leveret.management.http.http_messages import Problem, Request


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Users:
    """Knows ann."""

    def __init__(self) -> None:
        self.logins = LoginAttempts()

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
def gate(clock: Clock) -> Authentication:
    return Authentication(cast(Any, Users()), frozenset({"guest"}), clock)


def status(gate: Authentication, asked: Request) -> int:
    try:
        gate.check(asked)
    except Problem as problem:
        return problem.status
    return 200


def test_who_is_known(gate: Authentication) -> None:
    asked = request(basic("ann:s:e"))  # The first colon counts.
    gate.check(asked)
    assert asked.user == "ann"


@pytest.mark.parametrize(
    "credentials",
    [None, "", "Basic", "Basic !", "Bearer x", basic("ann"), basic("ann:"), basic("ann:x"), basic(b"\xff:\xfe")],
)
def test_who_is_not(gate: Authentication, credentials: str | None) -> None:
    with pytest.raises(Problem) as caught:
        gate.check(request(credentials))
    assert (caught.value.status, caught.value.error, caught.value.reason) == (401, "not_authorized", "Login failed")
    assert caught.value.headers == [("www-authenticate", 'Basic realm="RabbitMQ Management"')]


def test_guest_comes_from_this_machine_only(gate: Authentication) -> None:
    assert status(gate, request(basic("guest:g"), "127.0.0.1")) == 200
    assert status(gate, request(basic("guest:g"))) == 401


def test_passwords_cannot_be_tried_out_fast(gate: Authentication, clock: Clock) -> None:
    for _ in range(FAILURES_MAX):
        assert late(gate, "ann:x") == (401, 0.0)
    assert late(gate, "ann:x") == (401, LATE_MS / 1000)
    assert late(gate, "ann:s:e") == (200, 0.0)  # A right one gets in at once,
    for _ in range(WAITING_MAX - 1):
        assert late(gate, "ann:x") == (401, LATE_MS / 1000)
    with pytest.raises(Problem) as caught:
        gate.check(request(basic("ann:s:e")))  # but for the moment in which many of the same pair wait.
    assert (caught.value.status, caught.value.headers) == (429, [("retry-after", "1")])
    assert status(gate, request(basic("ann:s:e"), "192.0.2.2")) == 200
    clock.now += LATE_MS / 1000
    assert status(gate, request(basic("ann:s:e"))) == 200


def test_others_at_the_address_do_not_suffer(gate: Authentication) -> None:
    """However many names are tried there."""
    for number in range(1_000):
        assert late(gate, f"u{number}:x") == (401, 0.0)
    for _ in range(1_000):
        late(gate, "bob:x")
    assert late(gate, "ann:s:e") == (200, 0.0)


def late(gate: Authentication, credentials: str) -> tuple[int, float]:
    """The status of an answer, and by how much it is late."""
    try:
        gate.check(request(basic(credentials)))
    except Problem as problem:
        return problem.status, problem.response().late_s
    return 200, 0.0


def test_a_flood_of_failures_does_not_fill_the_log(
    gate: Authentication, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(500):
        late(gate, f"u{number}:x")
    assert len(caplog.records) == NOTED_MAX
    clock.now += WINDOW_MS / 1000
    late(gate, "u:x")
    assert "denied to 192.0.2.1 another 480 times" in caplog.text
