"""Encodes rows as AMQP frames.

A message is three frames: the method with exchange and routing key, the header with the properties, the body. Rows of a
table mostly share all but the body, so the bytes before it are encoded once for each different (exchange, key,
properties, size) and kept; a row then costs a look-up and three parts of a join. Properties that differ from row to row
are encoded row by row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from leveret.client import amqp
from leveret.protocol import properties
from leveret.protocol.properties import BadProperties, Properties
from leveret.protocol.tables import BadTable, table_from_python
from pyspark_leveret.connect import LeveretError
from pyspark_leveret.options import SinkOptions
from pyspark_leveret.schema import COLUMNS, OF_QUEUES, nearest

if TYPE_CHECKING:
    import pyarrow as pa

PERSISTENT: Final = 2
SHORT_STRING_BYTES_MAX: Final = 255
OCTET_MAX: Final = 255
REMEMBERED_MAX: Final = 50_000
_HEADER: Final = Struct(">HHQ")
_END: Final = bytes((amqp.END,))
_INTEGERS: Final = r"tinyint|smallint|int|bigint"
# By column: Spark's types that can be published, and their names for people.
_ALLOWED: Final = {
    "body": (r"binary|string", "binary or string"),
    "headers": (
        rf"map<string,(?:string|binary|boolean|float|double|{_INTEGERS})>",
        "a map of string to string, binary, boolean, an integer, float or double",
    ),
    "delivery_mode": (_INTEGERS, "an integer"),
    "priority": (_INTEGERS, "an integer"),
    "timestamp": (r"timestamp", "timestamp"),
}
_PROPERTIES: Final = tuple(name for name in COLUMNS if name not in OF_QUEUES | {"exchange", "routing_key", "body"})

Row = tuple[str, str, bytes, bytes]  # Exchange, routing key, flags and properties, body.


def check_columns(fields: Sequence[Any], options: SinkOptions) -> None:
    """Raises LeveretError for a schema that cannot be published."""
    names = {field.name for field in fields}
    for field in fields:
        name, kind = field.name, field.dataType.simpleString()
        if name not in COLUMNS:
            raise LeveretError(f"messages have no column '{name}'{nearest(name, COLUMNS)}; rename it or leave it out")
        pattern, meant = _ALLOWED.get(name, (r"string", "string"))
        if name not in OF_QUEUES and not re.fullmatch(pattern, kind):
            raise LeveretError(f"column '{name}' must be {meant}, and is {kind}: cast it")
    if "body" not in names:
        raise LeveretError("rows need a column 'body' (binary or string): the messages' contents")
    if "routing_key" not in names and options.routing_key is None:
        if "exchange" not in names and not options.exchange:
            raise LeveretError(
                "say where messages go: option 'routingKey' or column 'routing_key', with or without 'exchange'"
            )


class Encoder:
    """Encodes rows for one connection, whose `frame_max` limits body frames."""

    def __init__(self, options: SinkOptions, frame_max: int) -> None:
        self.options = options
        self.room = frame_max - amqp.OVERHEAD
        self._heads: dict[tuple[str, str, bytes, int], bytes] = {}
        self._properties: dict[tuple[Any, ...], bytes] = {}

    def rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """Returns the rows of a batch with their properties encoded."""
        names = batch.schema.names
        bodies = batch.column("body")
        if bodies.null_count:
            raise LeveretError("a row has no body: column 'body' is null there")
        exchanges = self._texts(batch, "exchange", self.options.exchange)
        keys = self._texts(batch, "routing_key", self.options.routing_key)
        columns = [name for name in _PROPERTIES if name in names]
        every: Iterable[bytes] = (
            self._encoded(columns, zip(*(_values(batch, name) for name in columns), strict=True))
            if columns
            else repeat(_encode({}), batch.num_rows)
        )
        return zip(exchanges, keys, every, bodies.cast("binary").to_pylist(), strict=True)

    def _texts(self, batch: pa.RecordBatch, name: str, option: str | None) -> Iterable[str]:
        if option is not None or name not in batch.schema.names:
            return repeat(option or "", batch.num_rows)
        texts: list[str] = batch.column(name).fill_null("").to_pylist()
        return texts

    def _encoded(self, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> Iterator[bytes]:
        known = self._properties
        for values in rows:
            encoded = known.get(values)
            if encoded is None:
                if len(known) >= REMEMBERED_MAX:
                    known.clear()
                encoded = known[values] = _encode(dict(zip(columns, values, strict=True)))
            yield encoded

    def chunks(self, rows: Iterable[Row], bytes_max: int) -> Iterator[tuple[bytes, int]]:
        """Yields frames with their number of messages, in chunks of at least `bytes_max` bytes except for the last."""
        heads, room = self._heads, self.room
        parts: list[bytes] = []
        held = count = 0
        for exchange, key, encoded, body in rows:
            size = len(body)
            head = heads.get((exchange, key, encoded, size))
            if head is None:
                head = self._head(exchange, key, encoded, size)
            if 0 < size <= room:
                parts += (head, body, _END)
            else:
                parts.append(head)
                parts += [amqp.frame(amqp.BODY, body[at : at + room]) for at in range(0, size, room)]
            held += len(head) + size
            count += 1
            if held >= bytes_max:
                yield b"".join(parts), count
                parts, held, count = [], 0, 0
        if count:
            yield b"".join(parts), count

    def _head(self, exchange: str, key: str, encoded: bytes, size: int) -> bytes:
        """Returns the frames before the body, and the head of the body's frame if it is only one."""
        if len(self._heads) >= REMEMBERED_MAX:
            self._heads.clear()
        try:
            routing = b"\0\0" + amqp.short(exchange) + amqp.short(key)
        except amqp.BrokerError as error:
            raise LeveretError(f"cannot publish: {error}") from None
        routing += bytes((amqp.MANDATORY if self.options.mandatory else 0,))
        header = _HEADER.pack(properties.BASIC_CLASS, 0, size) + encoded
        head = amqp.method(amqp.BASIC_PUBLISH, routing) + amqp.frame(amqp.HEADER, header)
        if 0 < size <= self.room:
            head += amqp.HEAD.pack(amqp.BODY, amqp.CHANNEL, size)
        self._heads[exchange, key, encoded, size] = head
        return head


def _values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Returns the values of a property as hashable keys."""
    column = batch.column(name)
    if name == "timestamp":
        return [None if micros is None else micros // 1_000_000 for micros in column.cast("int64").to_pylist()]
    values: list[Any] = column.to_pylist()
    return [None if one is None else tuple(one) for one in values] if name == "headers" else values


def _check(values: dict[str, Any]) -> None:
    """Raises LeveretError for values that Spark's types can hold and AMQP's cannot."""
    for name, value in values.items():
        if value is None or name == "headers":
            continue
        if isinstance(value, str):
            if len(value.encode()) > SHORT_STRING_BYTES_MAX:
                raise LeveretError(
                    f"column '{name}' has at most {SHORT_STRING_BYTES_MAX} bytes, and {len(value.encode())} in the row "
                    f"with {value[:40]!r}…"
                )
        elif name == "timestamp":
            if value < 0:
                raise LeveretError(f"column 'timestamp' begins with 1970, and is {value} s since then in a row")
        elif not 0 <= value <= OCTET_MAX:
            raise LeveretError(f"column '{name}' is a number from 0 to {OCTET_MAX}, and {value} in a row")


def _encode(values: dict[str, Any]) -> bytes:
    """Returns flags and properties. Messages without a delivery mode are persistent."""
    if values.get("delivery_mode") is None:
        values = {**values, "delivery_mode": PERSISTENT}
    try:
        headers = values.get("headers")
        if headers is not None:
            values["headers"] = table_from_python(dict(headers))
        return properties.encode(Properties(**values), 0)[properties.FLAGS_AT :]
    except (BadProperties, BadTable) as error:
        _check(values)
        said = {name: value for name, value in values.items() if value is not None and name != "headers"}
        raise LeveretError(f"the properties of a row cannot be published: {error} (of {said})") from None
