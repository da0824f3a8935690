"""Checks that a lock has at most one holder at a time, and that a guarded resource never takes an older token again.

A holder believes in its lock from the moment it received the message (or its consumer became the active one) to the
moment it gave it back, was told that it is gone, or lost its connection. Two clients that believe at the same time are
an *overlap*. A broker cannot prevent all overlaps: a client that is cut off from everybody still believes until it
notices. So promises differ: `exclusive` counts an overlap as a finding; `fenced` only what the resource took.

The resource takes a token only if it is not lower than the highest it has seen. What is checked is that tokens are good
enough for that: no two holders had the same token, and each later holder had a higher one than all before that had
ended. If that holds, a resource that compares tokens is never used by two.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from faults.history.entries import OK, Entry, Histories

SHOWN = 5
FOREVER = 1 << 63


class Locks(NamedTuple):
    """What the histories tell about locks."""

    figures: dict[str, int]
    findings: list[str]


def check(histories: Histories) -> Locks:
    promises = histories.promises.get("locks", {})
    holds: dict[str, list[Entry]] = defaultdict(list)
    for entry in histories.of("hold"):
        holds[entry["lock"]].append(entry)
    findings: list[str] = []
    overlaps = 0
    for lock, entries in sorted(holds.items()):
        entries.sort(key=lambda entry: int(entry["start"]))
        found = _overlaps(entries)
        overlaps += len(found)
        if found and promises.get(lock, {}).get("exclusive"):
            findings.append(f"{lock}: {len(found)} times two holders believed it at once: {'; '.join(found[:SHOWN])}")
        if promises.get(lock, {}).get("fenced"):
            findings += [f"{lock}: {text}" for text in _bad_tokens(entries)[:SHOWN]]
    findings += _stale_uses(histories)
    figures = {"held": sum(map(len, holds.values())), "held by two": overlaps}
    return Locks(figures, findings)


def _end(entry: Entry) -> int:
    return FOREVER if entry["end"] is None else int(entry["end"])


def _overlaps(entries: list[Entry]) -> list[str]:
    """Returns pairs of neighbours that believed at the same time; `entries` are in the order of their start."""
    found = []
    last: Entry | None = None
    for entry in entries:
        if last is not None and entry["start"] < _end(last) and entry["holder"] != last["holder"]:
            ms = (min(_end(last), _end(entry)) - entry["start"]) / 1e6
            found.append(f"{last['holder']} and {entry['holder']} for {ms:.0f} ms")
        if last is None or _end(entry) > _end(last):
            last = entry
    return found


def _bad_tokens(entries: list[Entry]) -> list[str]:
    found = []
    by_token: dict[int, str] = {}
    for entry in entries:
        token, holder = entry["token"], entry["holder"]
        if by_token.setdefault(token, holder) != holder:
            found.append(f"{by_token[token]} and {holder} had the same token {token}")
    ended = sorted(entries, key=_end)
    highest, place = -1, 0
    for entry in entries:  # A hold that began after another had ended has a higher token.
        while place < len(ended) and _end(ended[place]) < entry["start"]:
            highest = max(highest, ended[place]["token"])
            place += 1
        if entry["token"] <= highest:
            found.append(f"{entry['holder']} had token {entry['token']} after {highest} had been held")
    return found


def _stale_uses(histories: Histories) -> list[str]:
    """Returns uses of a resource that were taken although it had taken a higher token before."""
    found = []
    highest: dict[str, int] = defaultdict(lambda: -1)
    for entry in sorted(histories.of("use"), key=lambda entry: int(entry["end"])):
        if entry["outcome"] == OK:
            if entry["token"] < highest[entry["lock"]]:
                found.append(f"{entry['lock']}: token {entry['token']} was taken after {highest[entry['lock']]}")
            highest[entry["lock"]] = max(highest[entry["lock"]], entry["token"])
    return found[:SHOWN]
