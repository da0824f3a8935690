"""Who asks: HTTP's Basic credentials against the users of the metadata.

Passwords can be guessed, and here at the speed of HTTP: `broker.logins` says how that is slowed down, and who does not
suffer by it. Whether a user may do what it asks is decided by the same permissions as over AMQP.
"""

from __future__ import annotations

import base64
import binascii
import logging
from typing import TYPE_CHECKING, Final

from leveret.broker.login_attempts import LATE_MS
from leveret.management.http.http_messages import Problem, Request, bad_request, not_found
from leveret.metadata.rules.permissions import refused_text
from leveret.metadata.rules.redeclare import queue_locked

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.broker.broker import Broker
    from leveret.metadata.model.records import QueueSpec

logger = logging.getLogger("leveret.management")

REALM: Final = 'Basic realm="RabbitMQ Management"'


class Authentication:
    """Lets users in."""

    def __init__(self, broker: Broker, loopback_users: frozenset[str], now: Callable[[], float]) -> None:
        self.broker = broker
        self.loopback_users = loopback_users
        self.now = now
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
        logins, now_ms = self.broker.logins, int(self.now() * 1000)
        if logins.is_barred(request.host, user, now_ms):
            problem = Problem(429, "too_many_requests", "too many failed logins, try again later")
            problem.headers.append(("retry-after", str(LATE_MS // 1000)))
            raise problem
        reason = self.broker.refuse_login(user, password)
        if reason is None and user in self.loopback_users and not request.is_loopback:
            reason = f"user '{user}' can only connect via localhost"
        tried, bad = self.counts
        self.counts = (tried + 1, bad + (reason is not None))
        if reason is not None:
            self.attempts["auth_attempts_failed"] += 1
            self._tell(request.host, reason, now_ms)
            problem = _unauthorized()
            problem.late_s = logins.failed(request.host, user, now_ms) / 1000
            raise problem
        self.attempts["auth_attempts_succeeded"] += 1
        request.user = user

    def _tell(self, host: str, reason: str, now_ms: int) -> None:
        """In the log, but not so often that one client fills it."""
        is_noted, untold = self.broker.logins.is_noted(host, now_ms)
        if untold:
            logger.warning("HTTP access was denied to %s another %d times", host, untold)
        if is_noted:
            logger.warning("HTTP access denied to %s: %s", host, reason)

    # -- Rights --------------------------------------------------------------------------------------------------

    def check_vhost(self, request: Request, vhost: str) -> None:
        """Raises Problem."""
        if vhost not in self.broker.vhosts:
            raise not_found()
        if not self.broker.permissions.may_enter(request.user, vhost):
            raise refused(f"access to vhost '{vhost}' refused for user '{request.user}'")

    def may_read(self, request: Request, spec: QueueSpec) -> bool:
        """An exclusive queue is its connection's, which has nothing to do with HTTP."""
        return not spec.exclusive and self._is_allowed(request, spec)

    def check_read(self, request: Request, spec: QueueSpec) -> None:
        """Raises Problem."""
        if not self._is_allowed(request, spec):
            raise refused(refused_text(request.user, spec.vhost, "queue", spec.name))
        locked = queue_locked(spec, None)
        if locked is not None:
            raise bad_request(f"405 {locked}")

    def _is_allowed(self, request: Request, spec: QueueSpec) -> bool:
        return self.broker.permissions.check(request.user, spec.vhost, "queue", spec.name, "read")


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
