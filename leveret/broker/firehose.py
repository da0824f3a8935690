"""The firehose: a copy of every message that a client of this node publishes or gets, for whoever wants to look.

`leveretctl trace_on` gives a vhost a firehose at one node, `trace_off` takes it away; it is not kept over a restart.
Each copy goes to the exchange `amq.rabbitmq.trace`, with the key `publish.<exchange>` or `deliver.<queue>`, the body as
it was, and in its headers what was known about the message: RabbitMQ's names and types throughout.

While there is one, no route of the vhost is plain, so that every publish passes by here; deliveries look for it once
for each bundle. While there is none, neither costs anything.

A delivery is made while its queue is being emptied, and the copy may well belong into that very queue. So copies gather
and are sent at the end of the turn's deliveries (`flush`); what they cause in turn is not copied, as nothing that was
published to the trace exchange ever is: the firehose does not feed itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD
from leveret.broker.routing.reply_address import PREFIX
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.protocol.cc_bcc import CC
from leveret.protocol.frames import HEADER, HEADER_AT, OVERHEAD, frame, rechannel
from leveret.protocol.properties import BadProperties, Properties, body_size, decode, encode
from leveret.protocol.tables import Field, Table
from leveret.storage.format.queue_block import REDELIVERED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.session.session import Session
    from leveret.broker.vhost import Vhost

TRACE: Final = "amq.rabbitmq.trace"
_TRACE_RAW: Final = TRACE.encode()
_KEY_BYTES_MAX: Final = 255
_NAMES: Final = [each.name for each in reversed(fields(Properties))]


def _text(value: str) -> Field:
    return Field("S", value)


def _texts(values: Sequence[str]) -> Field:
    return Field("A", [_text(value) for value in values])


def _number(value: int) -> Field:
    return Field("I" if value < 1 << 31 else "l", value)


def _described(properties: Properties) -> Field:
    """A message's properties as a table, the last one first, as RabbitMQ has it."""
    table: Table = {}
    for name in _NAMES:
        value = getattr(properties, name)
        if isinstance(value, dict):
            table[name] = Field("F", value)
        elif value is not None:
            table[name] = _number(value) if isinstance(value, int) else _text(value)
    return Field("F", table)


def trace(broker: Broker, vhost: str, on: bool) -> None:
    """Give a vhost a firehose, or take it away."""
    there = broker.vhosts[vhost]
    if on != is_traced(broker, vhost):
        there.firehose = Firehose(broker, there) if on else None
        there.forget_routes()


def is_traced(broker: Broker, vhost: str) -> bool:
    return vhost in broker.vhosts and broker.vhosts[vhost].firehose is not None


class Firehose:
    """The firehose tracer of one vhost at one node."""

    def __init__(self, broker: Broker, vhost: Vhost) -> None:
        self.broker = broker
        self.vhost = vhost
        self.copies: list[tuple[str, bytes]] = []  # Key and content of what is to be sent.

    def on_published(
        self, session: Session, exchange: str, keys: Sequence[str], content: bytes, queues: Sequence[AnyQueue]
    ) -> None:
        """`keys`: the routing key, then those of CC and BCC; `queues`: where the message goes."""
        if exchange == TRACE or not self._is_watched():
            return
        # The default exchange leads to a name, whether or not there is a queue of it.
        names = [queue.spec.name for queue in queues if not is_hidden_queue(queue.spec.name)]
        if not exchange:
            names = sorted(key for key in set(keys) if not key.startswith(PREFIX))
        properties = _properties_of(content)
        headers = self._headers(session, exchange, keys, properties)
        headers["routed_queues"] = _texts(names)
        self._copy(f"publish.{exchange}", headers, content)

    def on_delivered(self, session: Session, queue: AnyQueue, batch: Batch, lo: int, hi: int) -> None:
        if not self._is_watched():
            return
        for at in range(lo, hi):
            key, content = batch.keys[at], batch.contents[at]
            middle = 1 + key[0]
            if key[1:middle] == _TRACE_RAW:
                continue
            exchange = key[1:middle].decode("utf-8", "surrogateescape")
            properties = _properties_of(content)
            copies = (properties.headers or {}).get(CC)
            keys = [key[middle + 1 :].decode("utf-8", "surrogateescape")]
            if copies is not None and copies.kind == "A":
                keys += [each.value for each in copies.value if each.kind == "S"]
            redelivered = _number(1 if batch.kinds[at] & REDELIVERED else 0)
            headers = self._headers(session, exchange, keys, properties, redelivered)
            self._copy(f"deliver.{queue.spec.name}", headers, content)

    def _is_watched(self) -> bool:
        return self.broker.metadata.bindings.is_source(self.vhost.name, TRACE)

    def _headers(
        self,
        session: Session,
        exchange: str,
        keys: Sequence[str],
        properties: Properties,
        redelivered: Field | None = None,
    ) -> Table:
        headers = {
            "exchange_name": _text(exchange),
            "routing_keys": _texts(keys),
            "properties": _described(properties),
            "node": _text(self.broker.node_name),
        }
        if redelivered is not None:
            headers["redelivered"] = redelivered
        headers["vhost"] = _text(self.vhost.name)
        headers["connection"] = _text(str(session.peer))
        headers["channel"] = _number(session.number)
        headers["user"] = _text(session.login.user)
        return headers

    def _copy(self, key: str, headers: Table, content: bytes) -> None:
        """The same body behind another header."""
        content = rechannel(content, 1)
        size = body_size(content, HEADER_AT)
        try:
            payload = encode(Properties(headers=headers), size)
        except BadProperties:  # The message's own headers are nested as deep as may be, and would be deeper in here.
            payload = encode(Properties(headers={**headers, "properties": Field("F", {})}), size)
        self.copies.append((key, frame(HEADER, 1, payload) + content[_header_end(content) :]))
        self.broker.firehoses_due[self] = None

    def flush(self) -> None:
        """Send the copies on their way."""
        copies, self.copies = self.copies, []
        for key, content in copies:
            raw = key.encode("utf-8", "surrogateescape")[:_KEY_BYTES_MAX]
            stored = bytes((len(_TRACE_RAW),)) + _TRACE_RAW + bytes((len(raw),)) + raw
            for queue in self.vhost.route(TRACE, (key,), content):
                queue.enqueue([content], [stored], 0, len(content) + MESSAGE_OVERHEAD, None)


def _header_end(content: bytes) -> int:
    return OVERHEAD + int.from_bytes(content[3:7], "big")


def _properties_of(content: bytes) -> Properties:
    return decode(content, HEADER_AT, _header_end(content) - 1)
