"""Counts failed logins, to slow down clients that try out passwords.

RabbitMQ checks every password that it is offered, at any rate. Here a right password gets in at once as well, but wrong
ones cannot be tried at any rate. Failures are counted by the client's address and the name it claims *together*, over
AMQP and HTTP alike:

- After `FAILURES_MAX` failures of such a pair within `WINDOW_MS`, the answers to further ones come late (`LATE_MS`).
- While `WAITING_MAX` late answers of a pair are due, the pair's next logins are refused unread, right or wrong. This is
  the one case in which a right password does not get in: somebody at the same address tries out passwords of the very
  same user at that moment.

There is no limit for an address alone: behind it may be a proxy or a whole office, and one of them would lock out all.

What is kept is bounded, in number (`KEPT_MAX`; whoever failed the longest ago is forgotten first) and in size: a long
name is offered as easily as a short one, and its hash is kept instead.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import Final

FAILURES_MAX: Final = 10
WINDOW_MS: Final = 60_000
LATE_MS: Final = 1_000
WAITING_MAX: Final = 10
KEPT_MAX: Final = 10_000
NAME_CHARACTERS_MAX: Final = 255
NOTED_MAX: Final = 20  # Failures of one address that are told of in the log, within `WINDOW_MS`.

Pair = tuple[str, str]


class _Failures:
    """The failed logins of one address and user."""

    __slots__ = ("began_ms", "count", "due_ms")

    def __init__(self, now_ms: int) -> None:
        self.began_ms = now_ms
        self.count = 0
        self.due_ms: deque[int] = deque(maxlen=WAITING_MAX)  # When late answers go out.


class LoginAttempts:
    """Counts failed logins, and says when to answer late or not at all."""

    def __init__(self) -> None:
        self._failures: dict[Pair, _Failures] = {}
        self._noted: dict[str, tuple[int, int]] = {}  # By address: when its window began, and its failures since.

    def is_barred(self, host: str, user: str, now_ms: int) -> bool:
        """Returns whether this login is to be refused without checking the password."""
        found = self._failures.get(_pair(host, user))
        return found is not None and len(found.due_ms) == WAITING_MAX and found.due_ms[0] > now_ms

    def failed(self, host: str, user: str, now_ms: int) -> int:
        """A password was wrong. Returns after how many milliseconds to answer."""
        pair = _pair(host, user)
        found = self._failures.pop(pair, None) or _Failures(now_ms)
        if now_ms - found.began_ms >= WINDOW_MS:
            found.began_ms, found.count = now_ms, 0
        found.count += 1
        self._failures[pair] = found
        if len(self._failures) > KEPT_MAX:
            del self._failures[next(iter(self._failures))]
        if found.count <= FAILURES_MAX:
            return 0
        found.due_ms.append(now_ms + LATE_MS)
        return LATE_MS

    def is_noted(self, host: str, now_ms: int) -> tuple[bool, int]:
        """Returns whether a failure is logged, and how many were not logged whose number is to be logged first."""
        began_ms, count = self._noted.pop(host, (now_ms, 0))
        untold = 0
        if now_ms - began_ms >= WINDOW_MS:
            began_ms, count, untold = now_ms, 0, max(0, count - NOTED_MAX)
        self._noted[host] = (began_ms, count + 1)
        if len(self._noted) > KEPT_MAX:
            del self._noted[next(iter(self._noted))]
        return count < NOTED_MAX, untold


def _pair(host: str, user: str) -> Pair:
    if len(user) <= NAME_CHARACTERS_MAX:
        return host, user
    return host, hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()
