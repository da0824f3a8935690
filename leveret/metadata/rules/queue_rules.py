"""The settings of a queue: TTL, length limits, dead-lettering and others, from its arguments and its policy.

A queue's arguments and its policy may both have a setting. The smaller of two numbers counts, so that an operator can
always tighten what a client asked for; of other values the argument counts, because it was meant for this very queue.
For streams, and for the overflow and expiry of quorum queues, the policy counts: RabbitMQ decides that for each type of
queue separately. Settings that exist only at declaration (priorities, single active consumer, the type) come from the
arguments alone.

In RabbitMQ `queue-version` chooses between two ways of storing a queue, and users choose version 2 because a long queue
needs little memory. Ours are stored in one way. With version 2, the contents of as many messages stay in memory as in
RabbitMQ's, and the rest is on disk only.

The settings of mirrors are in `ha_policy`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.protocol.tables import Table

DROP_HEAD: Final = "drop-head"
REJECT: Final = "reject-publish"
REJECT_TO_DLX: Final = "reject-publish-dlx"
OVERFLOWS: Final = (DROP_HEAD, REJECT, REJECT_TO_DLX)
KEY_BYTES_MAX: Final = 255
AT_LEAST_ONCE: Final = "at-least-once"
PRIORITY_MAX: Final = 255
VERSION_2_MESSAGES: Final = 2_048
JOURNAL_WHOLE: Final = 1_000_000
AGE_UNITS_MS: Final = {
    "Y": 365 * 86_400_000, "M": 30 * 86_400_000, "D": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The settings of a queue. None is "no limit", or no dead-lettering."""

    ttl_ms: int | None = None
    expires_ms: int | None = None
    max_length: int | None = None
    max_bytes: int | None = None
    overflow: str = DROP_HEAD
    dead_letter_exchange: str | None = None
    dead_letter_key: str | None = None
    keeps_dead: bool = False  # At-least-once: a dead-lettered message that its targets refuse is kept and tried again.
    max_priority: int = 0
    single_active: bool = False
    delivery_limit: int | None = None
    counts_returns: bool = False  # Requeues are counted (x-delivery-count).
    consumer_timeout_ms: int | None = None
    requeues_late: bool = False  # A delivery past the consumer timeout is requeued, and the channel stays open.
    lazy: bool = False
    memory_messages: int | None = None  # Messages whose contents may be in memory.
    memory_bytes: int | None = None  # Bytes of contents that may be in memory.
    max_age_ms: int | None = None  # For streams.
    max_segment_bytes: int | None = None
    journal: int = 0  # Messages per million that the journal records: see `leveret.broker.event_journal`.

    @property
    def rejects(self) -> bool:
        """Whether a full queue refuses publishes, instead of dropping its oldest message."""
        return self.overflow != DROP_HEAD and (self.max_length is not None or self.max_bytes is not None)

    def wants_disk(self, messages: int, size: int) -> bool:
        """Return whether contents that are in the log should leave memory, however much is free."""
        if self.lazy:
            return True
        too_many = self.memory_messages is not None and messages > self.memory_messages
        return too_many or (self.memory_bytes is not None and size > self.memory_bytes)


PLAIN: Final = QueueRules()


def queue_rules(arguments: Table, definition: Mapping[str, Json]) -> QueueRules:
    """Return the settings of a queue. `definition`: combined, of the policies that apply to it."""
    if not arguments and not definition:
        return PLAIN
    said = {name: field.value for name, field in arguments.items() if name.startswith("x-")}

    def least(key: str) -> int | None:
        both = (said.get(f"x-{key}"), definition.get(key))
        return min((value for value in both if isinstance(value, int) and not isinstance(value, bool)), default=None)

    def first(key: str) -> str | None:
        both = (said.get(f"x-{key}"), definition.get(key))
        return next((value for value in both if isinstance(value, str)), None)

    def policys(key: str) -> Any:
        return definition.get(key, said.get(f"x-{key}"))

    kind = said.get("x-queue-type", "classic")
    if kind == "stream":  # No other setting applies to a stream.
        age = policys("max-age")
        return QueueRules(
            max_bytes=policys("max-length-bytes"),
            consumer_timeout_ms=least("consumer-timeout"),
            requeues_late=first("consumer-timeout-action") == "requeue",
            max_age_ms=None if age is None else parse_age(age),
            max_segment_bytes=policys("stream-max-segment-size-bytes"),
            journal=parse_journal(definition.get("journal")) or 0,
        )
    is_quorum = kind == "quorum"
    version = said.get("x-queue-version", definition.get("queue-version")) if kind == "classic" else None
    messages = (least("max-in-memory-length"), VERSION_2_MESSAGES if version == 2 else None)
    exchange = first("dead-letter-exchange")
    key = first("dead-letter-routing-key")
    limit = least("delivery-limit")
    rules = QueueRules(
        ttl_ms=least("message-ttl"),
        expires_ms=policys("expires") if is_quorum else least("expires"),
        max_length=least("max-length"),
        max_bytes=least("max-length-bytes"),
        overflow=(policys("overflow") if is_quorum else first("overflow")) or DROP_HEAD,
        dead_letter_exchange=exchange,
        dead_letter_key=key if exchange is not None and key is not None and is_routing_key(key) else None,
        keeps_dead=first("dead-letter-strategy") == AT_LEAST_ONCE,
        max_priority=max_priority(arguments),
        single_active=said.get("x-single-active-consumer") is True,
        delivery_limit=limit,
        counts_returns=limit is not None or is_quorum,
        consumer_timeout_ms=least("consumer-timeout"),
        requeues_late=first("consumer-timeout-action") == "requeue",
        lazy=first("queue-mode") == "lazy",
        memory_messages=min((value for value in messages if value is not None), default=None),
        memory_bytes=least("max-in-memory-bytes"),
        journal=parse_journal(definition.get("journal")) or 0,
    )
    return PLAIN if rules == PLAIN else rules


def max_priority(arguments: Table) -> int:
    """Return the highest priority of a queue's messages; 0: it has no priorities."""
    field = arguments.get("x-max-priority")
    return 0 if field is None else min(field.value, PRIORITY_MAX)


def is_routing_key(text: str) -> bool:
    """Return whether a text fits a routing key."""
    return len(text.encode("utf-8", "surrogateescape")) <= KEY_BYTES_MAX


def parse_journal(value: Json) -> int | None:
    """Return "off", "full" or a fraction such as "0.01" as a number per million; None for any other value."""
    if value in ("off", None):
        return 0
    if value == "full":
        return JOURNAL_WHOLE
    if not isinstance(value, str) or re.fullmatch(r"0\.[0-9]{1,6}", value, re.ASCII) is None:
        return None
    return int(value[2:].ljust(6, "0")) or None


def parse_age(text: str) -> int | None:
    """Return an age such as "7D" in milliseconds; None for any other text."""
    number, unit = text[:-1], text[-1:]
    if unit not in AGE_UNITS_MS or not number.isascii() or not number.isdigit():
        return None
    return int(number) * AGE_UNITS_MS[unit]
