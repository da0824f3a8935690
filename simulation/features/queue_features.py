"""Features of queues in a run with `--featured`, drawn for it.

The durable queues d0, d1 and d2 have some of these, by arguments or by policies: TTLs, length limits, dead-lettering to
`e0`, a single active consumer, priorities. `e0` is the dead-letter queue; sometimes it has a length limit itself. Each
message goes to one queue, but by many ways: by its name, by a key in CC, or through an alternate exchange, a binding
between exchanges and a consistent hash.

    client ─▶ alt ┄┄ has no binding ┄┄▶ tree ─▶ hash of the queue ─▶ the queue ┄┄ dead-letters ┄┄▶ letters ─▶ e0

Two more queues have `x-expires`: nobody uses `w0`, which must expire, and `w1`, whose time never comes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final

DEAD_LETTER_QUEUE: Final = "e0"  # The dead-letter queue.
DEAD_LETTER_EXCHANGE: Final = "letters"
HOUR_MS: Final = 3_600_000  # More than any run takes.
GOES_MS: Final = 3_000
EXPIRING: Final = {"w0": GOES_MS, "w1": HOUR_MS}
VIAS: Final = ("", "", "", "CC", "BCC", "alt")
EXCHANGES: Final = frozenset({"alt", "late"})  # Ways that are exchanges of the same name.
NOWHERE: Final = "nowhere"  # A routing key of no queue.


@dataclass(frozen=True)
class Features:
    """The features of a queue."""

    quorum: bool = False
    by_policy: bool = False  # What a policy can set is set by one.
    ttl_ms: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = "drop-head"
    letters: str | None = None  # Its dead-letter exchange.
    keeps: bool = False  # dead-letter-strategy: at-least-once.
    single: bool = False  # Single active consumer.
    priorities: int = 0
    delivery_limit: int | None = None  # What comes back more often than that leaves.
    by_operator: bool = False  # The delivery limit is in an operator policy.

    def rules(self) -> dict[str, Any]:
        """Returns what an argument or a policy can set."""
        said: dict[str, Any] = {"message-ttl": self.ttl_ms, "max-length": self.max_length}
        said["max-length-bytes"] = self.max_bytes
        if self.max_length is not None or self.max_bytes is not None:
            said["overflow"] = self.overflow
        if self.letters is not None:
            said |= {"dead-letter-exchange": self.letters, "dead-letter-routing-key": DEAD_LETTER_QUEUE}
        if self.keeps:
            said["dead-letter-strategy"] = "at-least-once"
        if not self.by_operator:
            said["delivery-limit"] = self.delivery_limit
        return {name: value for name, value in said.items() if value is not None}

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of its declaration."""
        said: dict[str, Any] = {"x-queue-type": "quorum"} if self.quorum else {}
        if self.single:
            said["x-single-active-consumer"] = True
        if self.priorities:
            said["x-max-priority"] = self.priorities
        if not self.by_policy:
            said |= {f"x-{name}": value for name, value in self.rules().items()}
        return said

    @property
    def counts(self) -> bool:
        """Returns whether its messages have a delivery count."""
        return self.quorum or self.delivery_limit is not None

    def ttl_of(self, own_ms: int | None) -> int | None:
        """Returns the TTL of a message with this expiration."""
        return min((one for one in (self.ttl_ms, own_ms) if one is not None), default=None)


PLAIN: Final = Features()


def draw_features(
    rng: random.Random, durable: int, may_be_quorum: bool, may_be_by_policy: bool
) -> dict[str, Features]:
    """Draws the features of the durable queues, and of the dead-letter queue."""
    found = {f"d{number}": _draw_one(rng, may_be_quorum, may_be_by_policy) for number in range(durable)}
    limited = rng.random() < 0.25
    found[DEAD_LETTER_QUEUE] = Features(max_length=4, overflow="reject-publish") if limited else PLAIN
    return found


def _draw_one(rng: random.Random, may_be_quorum: bool, may_be_by_policy: bool) -> Features:
    quorum = may_be_quorum and rng.random() < 0.4
    by_policy = may_be_by_policy and not quorum and rng.random() < 0.5
    letters = rng.choice((None, "", DEAD_LETTER_EXCHANGE, DEAD_LETTER_EXCHANGE))
    overflow = rng.choice(("drop-head", "drop-head", "reject-publish", "reject-publish-dlx"))
    if quorum and overflow == "reject-publish-dlx":
        overflow = "reject-publish"
    return Features(
        quorum=quorum,
        by_policy=by_policy,
        ttl_ms=rng.choice((None, None, None, 400, 2_000, 8_000, HOUR_MS)),
        max_length=rng.choice((None, None, 3, 10)),
        max_bytes=rng.choice((None, None, None, 2_000)),
        overflow=overflow,
        letters=letters,
        keeps=letters is not None and (quorum or by_policy) and rng.random() < 0.8,
        single=rng.random() < 0.3,
        priorities=0 if quorum else rng.choice((0, 0, 0, 2, 5)),
    )


def draw_extras(rng: random.Random) -> dict[str, Any]:
    """Draws the properties of a publish."""
    return {
        "expires_ms": rng.choice((300, 2_000, HOUR_MS)) if rng.random() < 0.25 else None,
        "priority": rng.randrange(8) if rng.random() < 0.5 else None,
        "via": rng.choice(VIAS),
    }
