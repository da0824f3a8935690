"""Permission checks: RabbitMQ's three patterns per user and vhost, and its topic permissions.

A pattern is searched for in the name, not matched against the whole: `log` allows `catalogue`, `^log$` does not. The
empty pattern allows only the empty name, as in RabbitMQ (`^$`). The default exchange is checked under the name
`amq.default`.

RabbitMQ's patterns are PCRE and ours are Python's `re` (see `base.safe_regex`); they agree on all that is usual in
names. A pattern that does not compile is refused when it is set; one that got past that check allows nothing.

Whether a pattern finds a name depends on the two only, so answers are cached and never become wrong: after the first
time a check costs two dictionary look-ups.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from leveret.base.safe_regex import BadPattern, compiled
from leveret.metadata.model.refusals import resource

if TYPE_CHECKING:
    from leveret.metadata.store import Metadata

Kind: TypeAlias = Literal["queue", "exchange"]
Which: TypeAlias = Literal["configure", "write", "read"]

DEFAULT_EXCHANGE_NAME: Final = "amq.default"
# Acts inside the node for whoever has the cluster's cookie. Nobody can log in with this name.
OPERATOR: Final = "\0operator"


def shown_user(user: str) -> str:
    """Returns a user's name as lists have it. RabbitMQ, too, calls the user of its own connections none."""
    return "none" if user == OPERATOR else user


class Permissions:
    """Checks permissions by the present state of the metadata."""

    __slots__ = ("_metadata",)

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def may_enter(self, user: str, vhost: str) -> bool:
        """Return whether the user may open a connection to the vhost: any permissions do, even three empty patterns."""
        return user == OPERATOR or (user, vhost) in self._metadata.permissions

    def check(self, user: str, vhost: str, kind: Kind, name: str, which: Which) -> bool:
        """Return whether the user may configure, write to or read from the queue or exchange."""
        permission = self._metadata.permissions.get((user, vhost))
        if permission is None:
            return user == OPERATOR
        if which == "write":
            pattern = permission.write
        elif which == "read":
            pattern = permission.read
        else:
            pattern = permission.configure
        # The usual pattern finds everything, and is no reason to remember each name.
        return pattern == ".*" or _finds(pattern, name if name or kind == "queue" else DEFAULT_EXCHANGE_NAME)

    def check_topic(
        self,
        user: str,
        vhost: str,
        exchange: str,
        key: str,
        which: Literal["write", "read"],
        variables: Mapping[str, str] | None = None,
    ) -> bool:
        """Return whether the user may publish (write) or bind (read) with a routing key at a topic exchange.

        Without topic permissions for the exchange, all keys are allowed. `{username}`, `{vhost}` and what `variables`
        has (MQTT's `{client_id}`) stand for their values in a pattern.
        """
        topics = self._metadata.topic_permissions.get((user, vhost))
        permission = topics.get(exchange) if topics is not None else None
        if permission is None:
            return True
        pattern = permission.write if which == "write" else permission.read
        if "{" in pattern:
            pattern = _expand(pattern, {"username": user, "vhost": vhost, **(variables or {})})
        return _finds(pattern, key)


def refused_text(user: str, vhost: str, kind: Kind, name: str) -> str:
    """Return the text of the 403."""
    shown = name if name or kind == "queue" else DEFAULT_EXCHANGE_NAME
    return f"access to {resource(kind, shown, vhost)} refused for user '{user}'"


def topic_refused_text(user: str, vhost: str, exchange: str, key: str) -> str:
    """Return the text of the 403 for a routing key."""
    return f"access to topic '{key}' in {resource('exchange', exchange, vhost)} refused for user '{user}'"


def _expand(pattern: str, variables: Mapping[str, str]) -> str:
    for name, value in variables.items():
        # Escaped: otherwise a user named `.*` would be allowed everything.
        pattern = pattern.replace("{" + name + "}", re.escape(value))
    return pattern


@lru_cache(maxsize=65_536)
def _finds(pattern: str, name: str) -> bool:
    try:
        return compiled(pattern or "^$").finds(name)
    except BadPattern:
        return False
