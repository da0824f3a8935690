"""Checks that metadata is linearizable: all operations on a key fit into one order that agrees with their times.

A key is a name that is absent or has a value, as a queue's name and its arguments:

    declare v   absent: becomes v (ok). Present with v: nothing (ok). Present with another value: refused
    delete      becomes absent (ok), whatever it was
    read        present or absent

An operation takes effect at one moment between its start and its end. One without an answer may have taken effect at
any time since its start, or never. The search is Wing and Gong's, with Lowe's memory of what was tried: one operation
after the other that may be next is put into the order, until all that had an answer are in it.

What is promised is a little less. A *lookup* (a read, or a declare that is refused) is answered from the node's own
copy, so while a change is being made, one node shows the new state and another the old one, until the change is
answered. Names that are in order only if lookups may be before or after all changes at that time are counted as not
linearizable, and are no finding.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from faults.history.entries import OK, REFUSED, UNKNOWN, Histories

TRIED_MAX = 2_000_000
FOREVER = 1 << 63
ABSENT = -1


class Operation(NamedTuple):
    """An operation on a key."""

    start: int
    end: int
    call: str
    value: int
    outcome: str
    client: str

    def __str__(self) -> str:
        value = f" {self.value}" if self.call == "declare" else ""
        return f"{self.client} {self.call}{value}: {self.outcome}"


class Registers(NamedTuple):
    """What the histories tell about metadata."""

    figures: dict[str, int]
    findings: list[str]


def check(histories: Histories) -> Registers:
    keys: dict[str, list[Operation]] = defaultdict(list)
    for entry in histories.of("register"):
        end = FOREVER if entry["outcome"] == UNKNOWN else entry["end"]
        value = entry.get("value", ABSENT)
        keys[entry["key"]].append(
            Operation(entry["start"], end, entry["call"], value, entry["outcome"], entry["client"])
        )
    findings, disordered = [], 0
    for key, operations in sorted(keys.items()):
        if broken(operations) is None:
            continue
        disordered += 1
        problem = broken(widened(operations))
        if problem is not None:
            findings.append(f"{key}: {problem}")
    figures = {"keys": len(keys), "operations": sum(map(len, keys.values())), "not linearizable": disordered}
    is_promised = histories.promises.get("registers", {}).get("linearizable", True)
    return Registers(figures, findings if is_promised else [])


def widened(operations: list[Operation]) -> list[Operation]:
    """Returns the operations, with lookups that may be before or after each change that was made at their time."""
    changes = [one for one in operations if one.call != "read" and one.outcome == OK]
    return [_over(one, changes) if one.call == "read" or one.outcome == REFUSED else one for one in operations]


def _over(lookup: Operation, changes: list[Operation]) -> Operation:
    beside = [lookup, *(one for one in changes if one.start <= lookup.end and lookup.start <= one.end)]
    return lookup._replace(start=min(one.start for one in beside), end=max(one.end for one in beside))


def broken(operations: list[Operation]) -> str | None:
    """Returns why there is no order of these operations, or None if there is one."""
    operations = sorted(operations)
    # A read without an answer says nothing; a refusal has changed nothing.
    operations = [one for one in operations if not (one.outcome == UNKNOWN and one.call == "read")]
    answered = sum(1 << place for place, one in enumerate(operations) if one.outcome != UNKNOWN)
    stack = [(0, ABSENT)]
    tried = {(0, ABSENT)}
    furthest = 0
    while stack:
        done, value = stack.pop()
        if done & answered == answered:
            return None
        if (done & answered).bit_count() >= (furthest & answered).bit_count():
            furthest = done
        for place in _next(operations, done):
            following = _after(operations[place], value)
            if following is not None and (state := (done | 1 << place, following)) not in tried:
                tried.add(state)
                stack.append(state)
        if len(tried) > TRIED_MAX:
            return f"{len(operations)} operations are too many orders to try"
    left = [one for place, one in enumerate(operations) if answered >> place & 1 and not furthest >> place & 1]
    fitting = (furthest & answered).bit_count()
    last = "; ".join(map(str, left[:4]))
    return f"no order for {len(operations)} operations; {fitting} fit, and then none of: {last}"


def _next(operations: list[Operation], done: int) -> list[int]:
    """Returns operations that may be next: those that began before any other one that is left had ended."""
    first_end = FOREVER
    found = []
    for place, one in enumerate(operations):
        if one.start > first_end:
            break
        if not done >> place & 1:
            found.append(place)
            first_end = min(first_end, one.end)
    return [place for place in found if operations[place].start <= first_end]


def _after(one: Operation, value: int) -> int | None:
    """Returns the value after an operation, or None if it cannot have had its outcome at this value."""
    if one.call == "delete":
        return ABSENT
    if one.call == "read":
        return value if (one.outcome == "present") == (value != ABSENT) else None
    if value in (ABSENT, one.value):
        return one.value if one.outcome in (OK, UNKNOWN) else None
    return value if one.outcome in (REFUSED, UNKNOWN) else None
