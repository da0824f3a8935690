"""A message as sessions see it: what is published, and what is delivered.

Contents are stored and carried as AMQP writes them on channel 1, a header frame and body frames. AMQP's sessions pass
them on as they are; others make and read them here.
"""

from __future__ import annotations

from typing import NamedTuple

from leveret.protocol import frames
from leveret.protocol.properties import Properties, decode, encode


def content_of(properties: Properties, body: bytes, frame_max: int) -> bytes:
    """Return the content of a publish. `frame_max` is the node's: clients of AMQP are sent these frames as they are."""
    return frames.content(encode(properties, len(body)), body, frame_max)


class Delivery(NamedTuple):
    """A message that is handed to a client. `number` is that by which the session knows it until it is settled."""

    number: int
    exchange: str
    routing_key: str
    redelivered: bool
    content: bytes
    tag: str = ""  # Of the consumer; empty if it was fetched.
    remaining: int = 0  # Messages that were left in the queue when it was fetched.

    def message(self) -> tuple[Properties, bytes]:
        """Its properties and its body."""
        header, body = frames.split(self.content)
        return decode(header), body


def names_in(key: bytes) -> tuple[str, str]:
    """The exchange and the routing key with which a message was published, of their bytes as they are stored."""
    middle = 1 + key[0]
    exchange, routing_key = key[1:middle], key[middle + 1 :]
    return exchange.decode("utf-8", "surrogateescape"), routing_key.decode("utf-8", "surrogateescape")
