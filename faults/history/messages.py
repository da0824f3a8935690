"""Checks that no confirmed message is lost, doubled without a mark, made up, or out of its producer's order.

- **Lost**: confirmed, and never delivered, though the queue was drained in the end.
- **Doubled**: more than one delivery of a message is not marked as redelivered. A marked one may be received before the
  unmarked one, by another client, if the latter lay in the buffers of its connection; so only the count is judged.
- **Made up**: delivered, and no publisher has sent it.
- **Out of order**: of what one consumer received unmarked, a message of a producer came before an earlier one of it.

A queue's promises name what holds for it: `kept`, `marked`, `ordered`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from faults.history.entries import OK, REFUSED, UNKNOWN, Histories

SHOWN = 5
Message = tuple[str, str, int]


class Messages(NamedTuple):
    """What the histories tell about messages."""

    figures: dict[str, int]
    findings: list[str]


def check(histories: Histories) -> Messages:
    promises = histories.promises.get("queues", {})
    sent: dict[str, set[Message]] = {OK: set(), REFUSED: set(), UNKNOWN: set()}
    for entry in histories.of("publish"):
        sent[entry["outcome"]].add((entry["queue"], entry["producer"], entry["number"]))
    published = set().union(*sent.values())
    plain: Counter[Message] = Counter()
    marked: Counter[Message] = Counter()
    disorder: list[str] = []
    latest: dict[tuple[str, str, str], int] = defaultdict(int)
    # Entries of one client are in the order of its deliveries; each consumer is one client.
    for entry in histories.of("deliver"):
        message = (entry["queue"], entry["producer"], entry["number"])
        (marked if entry["redelivered"] else plain)[message] += 1
        if not entry["redelivered"]:
            stream = (entry["queue"], entry["consumer"], entry["producer"])
            if entry["number"] < latest[stream] and promises.get(entry["queue"], {}).get("ordered"):
                disorder.append(f"{_name(message)} after {latest[stream]} at {entry['consumer']}")
            latest[stream] = max(latest[stream], entry["number"])
    seen = plain.keys() | marked.keys()
    lost = sorted(one for one in sent[OK] - seen if promises.get(one[0], {}).get("kept"))
    doubled = sorted(one for one, count in plain.items() if count > 1 and promises.get(one[0], {}).get("marked"))
    figures = {
        "confirmed": len(sent[OK]),
        "refused": len(sent[REFUSED]),
        "unanswered": len(sent[UNKNOWN]),
        "refused and kept": len(sent[REFUSED] & seen),
        "delivered": len(seen),
        "delivered again, marked": sum(marked.values()) + sum(plain.values()) - len(seen) - _extra(plain),
        "lost": len(lost),
        "doubled": len(doubled),
        "made up": len(seen - published),
        "out of order": len(disorder),
    }
    findings = _told("confirmed and never delivered", [_name(one) for one in lost])
    findings += _told("delivered more than once without a mark", [_name(one) for one in doubled])
    findings += _told("delivered and never published", [_name(one) for one in sorted(seen - published)])
    findings += _told("out of the producer's order", disorder)
    return Messages(figures, findings)


def _extra(plain: Counter[Message]) -> int:
    return sum(count - 1 for count in plain.values() if count > 1)


def _name(message: Message) -> str:
    queue, producer, number = message
    return f"{queue}: {producer} {number}"


def _told(what: str, items: list[str]) -> list[str]:
    if not items:
        return []
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return [f"{len(items)} {what}: {'; '.join(items[:SHOWN])}{more}"]
