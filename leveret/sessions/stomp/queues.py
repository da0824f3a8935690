"""What is declared for a destination: RabbitMQ's defaults, and what headers of SUBSCRIBE and SEND say otherwise.

A `/queue` is durable. Exclusive ones are not, and those that are not durable are exclusive and go with their last
consumer. The queue of a subscription to a topic or an exchange goes with its last consumer, unless `auto-delete:false`
says otherwise; it is durable if the subscription is (`durable:true`, or `persistent:true`).

The header `persistent` of a SEND says what the message is, and nothing of its queue. (With RabbitMQ `persistent:false`
makes the queue exclusive, and the message is lost when its sender goes.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from leveret.broker.session.wanted import QueueWanted
from leveret.protocol.tables import Field, Table
from leveret.sessions.stomp.destinations import Destination, Kind
from leveret.sessions.stomp.errors import StompError, bad_value

_TEXTS: Final = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "x-overflow", "x-queue-type", "x-max-age")
_NUMBERS: Final = (
    "x-expires", "x-message-ttl", "x-max-length", "x-max-length-bytes", "x-max-priority",
    "x-stream-max-segment-size-bytes",
)  # fmt: skip
_NUMBER: Final = re.compile(r" *([+-]?[0-9]{1,18}) *\Z")


def number_in(headers: Mapping[str, str], name: str) -> int | None:
    """A header that is a number. Raises `StompError` if it is none."""
    text = headers.get(name)
    if text is None:
        return None
    found = _NUMBER.match(text)
    if found is None:
        raise bad_value(name, text)
    return int(found[1])


def flag_in(headers: Mapping[str, str], name: str) -> bool | None:
    """A header that is true or false. As with RabbitMQ, any other word says nothing."""
    return {"true": True, "false": False}.get(headers.get(name, ""))


def is_durable(headers: Mapping[str, str]) -> bool:
    return headers.get("durable") == "true" or headers.get("persistent") == "true"


def queue_of(destination: Destination, headers: Mapping[str, str], name: str, is_source: bool) -> QueueWanted:
    """The queue as it is to be declared. Raises `StompError`."""
    durable = flag_in(headers, "durable")
    if durable is None and is_source:
        durable = flag_in(headers, "persistent")
    auto_delete, exclusive = flag_in(headers, "auto-delete"), flag_in(headers, "exclusive")
    if destination.kind is Kind.QUEUE:
        durable = durable is not False and not exclusive
        bound = not durable and exclusive is None  # By default, one that does not last is its client's.
        auto_delete = bound if auto_delete is None else auto_delete
        exclusive = bound if exclusive is None else exclusive
    else:
        auto_delete = auto_delete is not False
        durable = bool(durable) and not exclusive
    return QueueWanted(name, durable, bool(exclusive), auto_delete, _arguments(headers))


def _arguments(headers: Mapping[str, str]) -> Table:
    table: Table = {name: Field("S", headers[name]) for name in _TEXTS if name in headers}
    for name in _NUMBERS:
        value = number_in(headers, name)
        if value is not None:
            table[name] = Field("l", value)
    return table


def consumer_arguments(headers: Mapping[str, str]) -> Table:
    """The arguments of a consumer. Raises `StompError`."""
    table: Table = {}
    priority = number_in(headers, "x-priority")
    if priority is not None:
        table["x-priority"] = Field("l", priority)
    offset = headers.get("x-stream-offset")
    if offset is not None:
        table["x-stream-offset"] = _offset(offset)
    if "x-stream-filter" in headers:
        table["x-stream-filter"] = Field("A", [Field("S", one) for one in headers["x-stream-filter"].split(",")])
    unfiltered = flag_in(headers, "x-stream-match-unfiltered")
    if unfiltered is not None:
        table["x-stream-match-unfiltered"] = Field("t", unfiltered)
    return table


def _offset(text: str) -> Field:
    """`first`, `last`, `next`, `offset=NUMBER`, `timestamp=SECONDS`."""
    what, equals, value = text.partition("=")
    if equals and what in ("offset", "timestamp"):
        if not value.isascii() or not value.isdigit() or len(value) > 18:
            raise bad_value("x-stream-offset", text)
        return Field("l" if what == "offset" else "T", int(value))
    return Field("S", text)


def refuse_selector(headers: Mapping[str, str]) -> None:
    """Refuse selectors. RabbitMQ ignores them and delivers everything, so that a client gets messages it did not ask
    for."""
    if "selector" in headers:
        raise StompError("Invalid header", "'selector' is not allowed on 'SUBSCRIBE'.\n")
