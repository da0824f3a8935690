"""The columns of a message, as Spark and as Arrow name their types.

Spark takes Arrow data only if the types are exactly those that it expects: `string` and not `large_string`,
microseconds in UTC, 32-bit integers for `int`. Both names of a type therefore stand in one line here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructField

# Name: type, in the order in which they are shown.
COLUMNS: Final = {
    "queue": "string",
    "offset": "bigint",
    "exchange": "string",
    "routing_key": "string",
    "body": "binary",
    "content_type": "string",
    "content_encoding": "string",
    "headers": "map<string,string>",
    "delivery_mode": "int",
    "priority": "int",
    "correlation_id": "string",
    "reply_to": "string",
    "expiration": "string",
    "message_id": "string",
    "timestamp": "timestamp",
    "type": "string",
    "user_id": "string",
    "app_id": "string",
    "cluster_id": "string",
    "enqueued": "timestamp",
    "redelivered": "boolean",
    "node": "string",
}
# What every message has. Spark does not look for nulls in such columns, which makes reading faster.
ALWAYS: Final = frozenset({"queue", "offset", "exchange", "routing_key", "body", "redelivered"})
# What a message only has once it is in a queue: a sink leaves these columns out.
OF_QUEUES: Final = frozenset({"queue", "offset", "enqueued", "redelivered", "node"})


class Column(NamedTuple):
    name: str
    nullable: bool = True


class BadSchema(ValueError):
    """The text is for the user."""


def ddl(include_headers: bool = True) -> str:
    return ", ".join(
        f"{name} {kind}{' NOT NULL' if name in ALWAYS else ''}"
        for name, kind in COLUMNS.items()
        if include_headers or name != "headers"
    )


def chosen(fields: Iterable[StructField]) -> list[Column]:
    """The columns of a schema that a user gave. Raises BadSchema if the source cannot fill one."""
    columns = []
    for field in fields:
        wanted, kind = field.dataType.simpleString(), COLUMNS.get(field.name)
        if kind is None:
            raise BadSchema(f"messages have no column '{field.name}'{nearest(field.name, COLUMNS)}")
        if wanted != kind:
            raise BadSchema(
                f"column '{field.name}' is of type {kind}, not {wanted}: read it so, and cast it afterwards"
            )
        columns.append(Column(field.name, field.nullable))
    return columns


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a sentence that says what may have been meant, or what there is."""
    by_folded = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), by_folded, 1)
    return f"; did you mean '{by_folded[close[0]]}'?" if close else f"; there are {', '.join(by_folded.values())}"


@cache
def arrow_type(kind: str) -> pa.DataType:
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "bigint": pa.int64(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "map<string,string>": pa.map_(pa.string(), pa.string()),
    }
    return types[kind]


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(one.name, arrow_type(COLUMNS[one.name]), one.nullable) for one in columns])
