"""Checks that no confirmed message is lost, doubled without a mark, made up, or out of its producer's order.

- **Lost**: confirmed, and never delivered or read from a lease, though the queue was drained in the end.
- **Doubled**: more than one delivery of a message is not marked as redelivered. A marked one may be received before the
  unmarked one, by another client, if the latter lay in the buffers of its connection; so only the count is judged.
- **Back**: delivered again, marked or not, long after it was delivered and acknowledged while there was no fault.
  Consumers acknowledge at once. What they acknowledged just before a fault may not be on any disk yet, and what they
  acknowledge to a node that is cut off never will be; so both are left out, as is what a consumer received last.
- **Made up**: delivered, and no publisher has sent it.
- **Out of order**: of what one consumer received unmarked, a message of a producer came before an earlier one of it.

A queue's promises name what holds for it: `kept`, `marked`, `settled` (nothing comes back), `ordered`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from typing import NamedTuple

from faults.history.entries import OK, REFUSED, UNKNOWN, Histories

SHOWN = 5
CALM_BEFORE_NS, CALM_AFTER_NS = 5_000_000_000, 3_000_000_000  # Without a fault, around an acknowledgement that counts.
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
    read = {(entry["queue"], entry["producer"], entry["number"]) for entry in histories.of("read")}
    seen = plain.keys() | marked.keys() | read
    lost = sorted(one for one in sent[OK] - seen if promises.get(one[0], {}).get("kept"))
    doubled = sorted(one for one, count in plain.items() if count > 1 and promises.get(one[0], {}).get("marked"))
    back = sorted(one for one in _came_back(histories) if promises.get(one[0], {}).get("settled"))
    figures = {
        "confirmed": len(sent[OK]),
        "refused": len(sent[REFUSED]),
        "unanswered": len(sent[UNKNOWN]),
        "refused and kept": len(sent[REFUSED] & seen),
        "delivered": len(seen),
        "delivered again, marked": sum(marked.values()) - len(marked.keys() - plain.keys()),
        "lost": len(lost),
        "doubled": len(doubled),
        "came back": len(back),
        "made up": len(seen - published),
        "out of order": len(disorder),
    }
    findings = _told("confirmed and never delivered", [_name(one) for one in lost])
    findings += _told("delivered more than once without a mark", [_name(one) for one in doubled])
    findings += _told("delivered again long after they were acknowledged", [_name(one) for one in back])
    findings += _told("delivered and never published", [_name(one) for one in sorted(seen - published)])
    findings += _told("out of the producer's order", disorder)
    return Messages(figures, findings)


def _came_back(histories: Histories) -> set[Message]:
    faults = sorted((entry["start"], entry["end"] or entry["start"]) for entry in histories.of("fault"))
    starts = [start for start, _ in faults]

    def is_calm(at: int) -> bool:
        place = bisect_right(starts, at + CALM_AFTER_NS)
        return all(end < at - CALM_BEFORE_NS for _, end in faults[:place])

    entries = sorted(histories.of("deliver"), key=lambda entry: int(entry["end"]))
    last = {entry["consumer"]: entry["end"] for entry in entries}
    settled: dict[Message, int] = {}
    found = set()
    for entry in entries:
        message, at = (entry["queue"], entry["producer"], entry["number"]), entry["end"]
        if at > settled.get(message, at):
            found.add(message)
        elif last[entry["consumer"]] > at + CALM_AFTER_NS and is_calm(at):
            settled.setdefault(message, at + CALM_AFTER_NS)
    return found


def _name(message: Message) -> str:
    queue, producer, number = message
    return f"{queue}: {producer} {number}"


def _told(what: str, items: list[str]) -> list[str]:
    if not items:
        return []
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return [f"{len(items)} {what}: {'; '.join(items[:SHOWN])}{more}"]
