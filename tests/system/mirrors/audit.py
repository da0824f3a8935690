"""What the journals of a cluster add up to, by nothing but what docs/journal.md says of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.support.members import Member

LEFT = ("acked", "expired", "dropped", "dead-lettered", "rejected")


def read(asked: Member, owner: Member) -> list[dict[str, Any]]:
    """The journal of a node, by way of that or another one."""
    channel = asked.channel()
    channel.basic_qos(prefetch_count=1_000)
    queue = f"leveret.journal.{owner.name}"
    total = channel.queue_declare(queue, passive=True).method.message_count
    found: list[dict[str, Any]] = []
    if total:
        for method, _, body in channel.consume(queue, arguments={"x-stream-offset": "first"}):
            found.append(json.loads(body))
            channel.basic_ack(method.delivery_tag)
            if len(found) >= total:
                break
        asked.cut(channel.connection)  # To cancel, pika would give back what has come since, which streams refuse.
    return found


def events(messages: Iterable[dict[str, Any]], queue: str) -> list[list[Any]]:
    return [event for message in messages for event in message["events"] if event[2] == queue]


def numbers(told: Iterable[list[Any]], *kinds: str) -> set[int]:
    return {number for event in told if event[0] in kinds for number in range(event[3], event[4] + 1)}


def accounted(told: list[list[Any]]) -> set[int]:
    """Messages whose end is known."""
    return numbers(told, *LEFT) | settled(told)


def settled(told: list[list[Any]]) -> set[int]:
    """What a mirror, or a node after its start, knows to be gone."""
    return numbers([event for event in told if event[7].get("what") == "settled"], "replicated", "recovered")


def came(told: list[list[Any]]) -> set[int]:
    """What a master has told of, or the next one in its place."""
    return numbers([event for event in told if event[7].get("what") != "settled"], "published", "recovered")


def unaccounted(told: list[list[Any]]) -> set[int]:
    """Confirmed, and no longer in a queue that is empty by now: lost, if there are any."""
    lasting = [event for event in told if event[0] == "confirmed" and not event[7].get("transient")]
    cut = {
        number
        for event in told
        if event[0] == "promoted"
        for one in lasting
        if one[7]["epoch"] < event[7]["epoch"]
        for number in range(max(one[3], event[4] + 1), one[4] + 1)
    }
    return (numbers(lasting, "confirmed") - accounted(told)) | cut
