"""Who asks: HTTP's Basic credentials against the users of the metadata.

Passwords can be guessed, and here at the speed of HTTP. So failures are counted, by the client's address together with
the name it claims, and by the address alone; who has failed too often within `WINDOW_S` is answered 429 without a look
at what it says, right or wrong. Both tables are bounded: if many addresses fail at once, the one whose last failure is
the longest ago is forgotten first.

Whether a user may do what it asks is decided by the same permissions as over AMQP.
"""

from __future__ import annotations

import base64
import binascii
import logging
from typing import TYPE_CHECKING, Final

from leveret.cluster.permissions import refused_text
from leveret.management.messages import Problem, Request, not_found

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.broker.broker import Broker
    from leveret.cluster.specs import QueueSpec

logger = logging.getLogger("leveret.management")

REALM: Final = 'Basic realm="RabbitMQ Management"'
WINDOW_S: Final = 60.0
FAILURES_MAX: Final = 10  # Of one address with one name,
FAILURES_OF_HOST_MAX: Final = 100  # and with all names.
KEPT_MAX: Final = 10_000


class Failures:
    """How often somebody has failed lately."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._counts: dict[tuple[str, str], tuple[float, int]] = {}  # When the window began, and how many since.

    def is_barred(self, host: str, user: str) -> float:
        """For how many seconds still; 0 if not at all."""
        return max(self._left((host, user), FAILURES_MAX), self._left((host, ""), FAILURES_OF_HOST_MAX))

    def _left(self, key: tuple[str, str], most: int) -> float:
        began, count = self._counts.get(key, (0.0, 0))
        return max(began + WINDOW_S - self._now(), 0.0) if count >= most else 0.0

    def note(self, host: str, user: str) -> None:
        now = self._now()
        for key in {(host, user), (host, "")}:
            began, count = self._counts.pop(key, (now, 0))
            if now - began >= WINDOW_S:
                began, count = now, 0
            self._counts[key] = (began, count + 1)
        while len(self._counts) > KEPT_MAX:
            del self._counts[next(iter(self._counts))]


class Gate:
    """Lets users in."""

    def __init__(self, broker: Broker, loopback_users: frozenset[str], now: Callable[[], float]) -> None:
        self.broker = broker
        self.loopback_users = loopback_users
        self.failures = Failures(now)
        self.counts = (0, 0)  # Logins that were tried, and those refused.
        self.attempts = {"auth_attempts_failed": 0, "auth_attempts_succeeded": 0}  # For whoever watches.

    def check(self, request: Request) -> None:
        """Note who asks. Raises Problem."""
        user, password = _credentials(request.headers.get("authorization"))
        if user is None or password is None:
            raise _unauthorized()
        self.check_login(request, user, password)

    def check_login(self, request: Request, user: str, password: str) -> None:
        """The same, by credentials that came some other way. Raises Problem."""
        left_s = self.failures.is_barred(request.host, user)
        if left_s:
            problem = Problem(429, "too_many_requests", "too many failed logins, try again later")
            problem.headers.append(("retry-after", str(int(left_s) + 1)))
            raise problem
        reason = self.broker.refuse_login(user, password)
        if reason is None and user in self.loopback_users and not request.is_loopback:
            reason = f"user '{user}' can only connect via localhost"
        tried, bad = self.counts
        self.counts = (tried + 1, bad + (reason is not None))
        if reason is not None:
            self.failures.note(request.host, user)
            self.attempts["auth_attempts_failed"] += 1
            logger.warning("HTTP access denied to %s: %s", request.host, reason)
            raise _unauthorized()
        self.attempts["auth_attempts_succeeded"] += 1
        request.user = user

    # -- Rights --------------------------------------------------------------------------------------------------

    def check_vhost(self, request: Request, vhost: str) -> None:
        """Raises Problem."""
        if vhost not in self.broker.vhosts:
            raise not_found()
        if not self.broker.permissions.may_enter(request.user, vhost):
            raise refused(f"access to vhost '{vhost}' refused for user '{request.user}'")

    def may_read(self, request: Request, spec: QueueSpec) -> bool:
        return self.broker.permissions.check(request.user, spec.vhost, "queue", spec.name, "read")

    def check_read(self, request: Request, spec: QueueSpec) -> None:
        """Raises Problem."""
        if not self.may_read(request, spec):
            raise refused(refused_text(request.user, spec.vhost, "queue", spec.name))


def refused(reason: str) -> Problem:
    return Problem(401, "not_authorised", reason)


def _unauthorized() -> Problem:
    problem = Problem(401, "not_authorized", "Login failed")
    problem.headers.append(("www-authenticate", REALM))
    return problem


def _credentials(header: str | None) -> tuple[str | None, str | None]:
    scheme, _, value = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None, None
    try:
        text = base64.b64decode(value.strip(), validate=True).decode("utf-8", "surrogateescape")
    except (binascii.Error, ValueError):
        return None, None
    user, colon, password = text.partition(":")
    return (user, password) if colon else (None, None)
