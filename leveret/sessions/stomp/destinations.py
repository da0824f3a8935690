"""Destinations: what a client calls queues and exchanges.

    /queue/NAME, NAME              the queue, which is declared if need be; messages go to it by the default exchange
    /amq/queue/NAME                the queue, which must be there
    /topic/KEY                     the exchange for topics, amq.topic unless another is set
    /exchange/NAME[/KEY]           an exchange
    /temp-queue/NAME               only in reply-to: a queue for answers
    /reply-queue/NAME              where such an answer goes; NAME may have slashes

A slash within a name is written as `%2F`. RabbitMQ reads no other escape, but writes some in the destination of a
MESSAGE: `%25`, and control characters and bytes beyond ASCII. Here all that it writes is read, so that a destination
that a client was told leads back.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from enum import Enum
from typing import Final, NamedTuple

from leveret.sessions.stomp.errors import StompError

TEMP_QUEUE: Final = "/temp-queue/"
REPLY_QUEUE: Final = "/reply-queue/"
AMQ_TOPIC: Final = "amq.topic"
SUBSCRIPTION_QUEUE: Final = "stomp-subscription-"
PREFIXES: Final = ("/temp-queue", "/exchange", "/topic", "/queue", "/amq/queue", "/reply-queue/")

_ESCAPE: Final = re.compile(rb"%(2F|25|[0189A-F][0-9A-F])")
_ESCAPED: Final = re.compile(rb"[/%\x00-\x1f\x80-\xff]")


class Kind(Enum):
    """What a destination names. The value is RabbitMQ's word for it."""

    QUEUE = "queue"
    AMQ_QUEUE = "amqqueue"
    TOPIC = "topic"
    EXCHANGE = "exchange"
    TEMP_QUEUE = "temp_queue"
    REPLY_QUEUE = "reply_queue"


class Destination(NamedTuple):
    """A destination. An exchange has a routing key, which may be empty; others have the name or key only."""

    kind: Kind
    name: str
    key: str = ""

    def route(self, topic_exchange: str) -> tuple[str, str]:
        """The exchange and the routing key of messages that are sent there."""
        if self.kind is Kind.EXCHANGE:
            return topic_exchange if self.name == AMQ_TOPIC else self.name, self.key
        return (topic_exchange, self.name) if self.kind is Kind.TOPIC else ("", self.name)


_KINDS: Final = {
    ("queue",): Kind.QUEUE,
    ("topic",): Kind.TOPIC,
    ("exchange",): Kind.EXCHANGE,
    ("temp-queue",): Kind.TEMP_QUEUE,
}


def parse(text: str) -> Destination:
    """Read a destination. Raises `StompError`."""
    first, *parts = text.split("/")
    if not parts:
        if not first:
            raise StompError("Invalid destination", "Destination cannot be blank")
        return Destination(Kind.QUEUE, _unescaped(first))
    if not first:
        kind = _KINDS.get((parts[0],))
        if kind is not None:
            return _named(kind, parts[1:])
        if parts[:2] == ["amq", "queue"]:
            return _named(Kind.AMQ_QUEUE, parts[2:])
        if parts[0] == "reply-queue" and len(parts) > 1:
            return _named(Kind.REPLY_QUEUE, [text[len(REPLY_QUEUE) :]])
    raise StompError(
        "Unknown destination",
        f"'{text}' is not a valid destination.\nValid destination types are: {', '.join(PREFIXES)}.\n",
    )


def _named(kind: Kind, parts: list[str]) -> Destination:
    if kind is Kind.EXCHANGE and len(parts) in (1, 2) and parts[0]:
        return Destination(kind, *map(_unescaped, parts))
    if kind is not Kind.EXCHANGE and len(parts) == 1 and parts[0]:
        return Destination(kind, _unescaped(parts[0]))
    rest = "".join(f"/{part}" for part in parts)
    raise StompError("Invalid destination", f"'{rest}' is not a valid {kind.value} destination\n")


def _unescaped(text: str) -> str:
    if "%" not in text:
        return text
    data = text.encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), data).decode("utf-8", "surrogateescape")


def shown(exchange: str, key: str) -> str:
    """The destination of a message that was published so."""
    if not exchange:
        return f"/queue/{_escaped(key)}"
    if exchange == AMQ_TOPIC:
        return f"/topic/{_escaped(key)}"
    return f"/exchange/{_escaped(exchange)}/{_escaped(key)}" if key else f"/exchange/{_escaped(exchange)}"


def _escaped(text: str) -> str:
    data = text.encode("utf-8", "surrogateescape")
    return _ESCAPED.sub(lambda found: b"%%%02X" % found[0][0], data).decode()


def reply_shown(reply_to: str) -> str:
    """The reply-to of a message, as a destination: a bare name is that of a queue."""
    return reply_to if reply_to.startswith(PREFIXES) else REPLY_QUEUE + reply_to


def durable_queue(key: str, subscription: str) -> str:
    """The queue of a durable subscription, named as RabbitMQ names it: by the digest of an Erlang term, the routing key
    and the id of the subscription as a pair of strings."""
    term = b"\x83h\x02" + _erlang_string(key) + _erlang_string(subscription)
    digest = hashlib.md5(term, usedforsecurity=False).digest()
    return SUBSCRIPTION_QUEUE + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _erlang_string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    if not data:
        return b"j"
    if len(data) > 65_535:  # No subscription has such an id and such a key: a line is shorter.
        data = data[:65_535]
    return b"k" + struct.pack(">H", len(data)) + data
