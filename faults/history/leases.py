"""Checks leases: places keep their meaning, what is settled stays away, and one owner reads at a time.

- **Places**: whoever reads a place of a lease, and whenever, finds the same message there.
- **Back**: a message that was acknowledged in a lease is at no other place later, and no consumer gets it. Whether an
  acknowledgement settled a place or a release had returned it before is not always known; then nothing is said.
- **Unmarked**: a message that was read from a lease and got by a consumer later has come back, so it is marked.
- **Owners**: after another owner has taken the lease over, the former one takes and acknowledges nothing.
- **Progress**: `acked` and `next` of a lease never go back.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from faults.history.entries import OK, REFUSED, Entry, Histories

SHOWN = 5
FOREVER = 1 << 63
Message = tuple[str, str, int]


class Leases(NamedTuple):
    """What the histories tell about leases."""

    figures: dict[str, int]
    findings: list[str]


def check(histories: Histories) -> Leases:
    calls: dict[str, list[Entry]] = defaultdict(list)
    reads: dict[str, list[Entry]] = defaultdict(list)
    for entry in histories.of("lease"):
        calls[entry["lease"]].append(entry)
    for entry in histories.of("read"):
        reads[entry["lease"]].append(entry)
    got: dict[Message, list[Entry]] = defaultdict(list)
    for entry in histories.of("deliver"):
        got[_message(entry)].append(entry)
    findings: list[str] = []
    for lease in sorted(calls.keys() | reads.keys()):
        some = sorted(reads[lease], key=lambda entry: int(entry["end"]))
        found = _changed(some) + _back(calls[lease], some, got) + _unmarked(some, got)
        found += _former_owners(calls[lease]) + _gone_back(calls[lease])
        findings += [f"lease {lease}: {text}" for text in found[:SHOWN]]
    places = {(lease, entry["place"]) for lease, some in reads.items() for entry in some}
    if not places:
        return Leases({}, findings)
    every = [call for some in calls.values() for call in some]
    figures = {
        "places read": len(places),
        "owners in turn": sum(call["call"] == "open" and call["outcome"] == OK for call in every),
        "releases": sum(call["call"] == "release" for call in every),
        "refused as former owner": sum(call["call"] != "open" and call["outcome"] == REFUSED for call in every),
    }
    return Leases(figures, findings)


def _message(entry: Entry) -> Message:
    return entry["queue"], entry["producer"], entry["number"]


def _end(entry: Entry) -> int:
    return FOREVER if entry["end"] is None else int(entry["end"])


def _changed(reads: list[Entry]) -> list[str]:
    """Returns places that had two messages."""
    meant: dict[int, Message] = {}
    found = []
    for entry in reads:
        message = _message(entry)
        if meant.setdefault(entry["place"], message) != message:
            found.append(f"place {entry['place']} was {meant[entry['place']]} and is {message}")
    return found


def _back(calls: list[Entry], reads: list[Entry], got: dict[Message, list[Entry]]) -> list[str]:
    """Returns messages that came back after they had been settled."""
    releases = [call for call in calls if call["call"] == "release"]
    acks = sorted((call for call in calls if call["call"] == "ack" and call["outcome"] == OK), key=_end)
    first: dict[int, Entry] = {}
    at: dict[Message, list[Entry]] = defaultdict(list)
    for entry in reads:
        first.setdefault(entry["place"], entry)
        at[_message(entry)].append(entry)
    settled_ns: dict[int, int] = {}
    settled_through = 0
    for ack in acks:
        for place in range(settled_through, ack["through"]):
            seen = first.get(place)
            if seen is not None and not any(
                release["start"] < _end(ack) and _end(release) > seen["start"] for release in releases
            ):
                settled_ns[place] = _end(ack)
        settled_through = max(settled_through, ack["through"])
    found = []
    for place, since in sorted(settled_ns.items()):
        message = _message(first[place])
        later = [entry for entry in (*at[message], *got.get(message, ())) if entry["start"] > since]
        again = [f"at place {entry['place']}" for entry in later if entry["op"] == "read" and entry["place"] != place]
        again += [f"to {entry['consumer']}" for entry in later if entry["op"] == "deliver"]
        if again:
            found.append(f"{message} was settled at place {place} and came again {', '.join(again)}")
    return found


def _unmarked(reads: list[Entry], got: dict[Message, list[Entry]]) -> list[str]:
    return [
        f"{_message(entry)} was read at place {entry['place']}, and {later['consumer']} got it without a mark"
        for entry in reads
        for later in got.get(_message(entry), ())
        if later["start"] > entry["end"] and not later["redelivered"]
    ]


def _former_owners(calls: list[Entry]) -> list[str]:
    """Returns what an owner took or acknowledged after another one had taken the lease over, and it had not since."""
    opens = [call for call in calls if call["call"] == "open" and call["outcome"] != REFUSED]
    found = []
    for call in calls:
        if call["call"] not in ("take", "ack") or call["outcome"] != OK:
            continue
        owner = call["owner"]
        others = [one for one in opens if one["owner"] != owner and one["outcome"] == OK and _end(one) < call["start"]]
        if not others:
            continue
        last = max(others, key=lambda one: int(one["start"]))
        if not any(one["owner"] == owner and one["start"] < _end(call) and _end(one) > last["start"] for one in opens):
            found.append(f"{owner} could {call['call']} after {last['owner']} had taken the lease over")
    return found


def _gone_back(calls: list[Entry]) -> list[str]:
    """Returns answers with less than an earlier answer had."""
    answered = [call for call in calls if call["outcome"] == OK and "next" in call]
    found = []
    for name in ("acked", "next"):
        ended = sorted(answered, key=_end)
        highest, place = 0, 0
        for call in sorted(answered, key=lambda call: int(call["start"])):
            while place < len(ended) and _end(ended[place]) < call["start"]:
                highest = max(highest, ended[place][name])
                place += 1
            if call[name] < highest:
                found.append(f"{name} went back from {highest} to {call[name]}")
    return found
