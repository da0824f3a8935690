"""Tells how long it took until all works again: after each fault, until each client has had a success.

A success is a confirmed publish, a delivery, a message read from a lease, a lock that was got, an answer about
metadata. Clients are those that had one before the fault; a client that never has one again, though it ran on, is a
finding. If the next fault begins before a client has had a success, the time until then counts, and the client's
recovery is that after the next fault: else a pause of a second between two faults would count the whole second fault.
`longest wait ms` is the longest time in all that a client went without a success while the run lasted, during
faults too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import pairwise
from typing import NamedTuple

from faults.history.entries import REFUSED, UNKNOWN, Histories

GRACE_NS = 20_000_000_000  # For a client's own patience with a dead connection, and the load of the machine.


class Recovery(NamedTuple):
    """What the histories tell about time."""

    figures: dict[str, int]
    findings: list[str]


def check(histories: Histories) -> Recovery:
    successes: dict[str, list[int]] = defaultdict(list)
    for entry in histories.of("publish", "deliver", "hold", "register", "read"):
        if entry["outcome"] not in (REFUSED, UNKNOWN):
            moment = entry["start"] if entry["op"] == "hold" else entry["end"]
            # Who gets a lock is chance; that somebody does is not.
            successes[entry["lock"] if entry["op"] == "hold" else entry["client"]].append(moment)
    for moments in successes.values():
        moments.sort()
    faults = sorted(histories.of("fault"), key=lambda entry: int(entry["start"]))
    end = histories.case.get("load_ended_ns", 0)
    recovered_ns, findings = 0, []
    starts = [int(fault["start"]) for fault in faults]
    for fault in faults:
        healed = fault["end"]
        if healed is None or healed > end:
            continue
        following = starts[bisect_left(starts, healed) :][:1]
        for client, moments in successes.items():
            place = bisect_left(moments, healed)
            if place < len(moments):
                if moments[0] < fault["start"]:
                    recovered_ns = max(recovered_ns, min([moments[place], *following]) - healed)
            elif moments[0] < fault["start"] and end - healed > GRACE_NS:
                findings.append(f"{client} had no success in {(end - healed) / 1e9:.0f} s after: {fault['what']}")
    gaps = [later - earlier for moments in successes.values() for earlier, later in pairwise(moments)]
    figures = {
        "faults": len(faults),
        "recovered after ms": recovered_ns // 1_000_000,
        "longest wait ms": max(gaps, default=0) // 1_000_000,
    }
    return Recovery(figures, findings)
