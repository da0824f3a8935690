"""The columns of a message with their types in Spark and Arrow.

Spark takes Arrow data only if the types are exactly those that it expects: `string` and not `large_string`,
microseconds in UTC, 32-bit integers for `int`. So `arrow_type` has both names of a type in one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructField

# Spark's types by name, in the order of the columns.
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
# Columns that are never null. Spark does not look for nulls in them, which makes reading faster.
ALWAYS: Final = frozenset({"queue", "offset", "exchange", "routing_key", "body", "redelivered"})
# Columns that a message gets in a queue: a sink leaves them out.
OF_QUEUES: Final = frozenset({"queue", "offset", "enqueued", "redelivered", "node"})


class Column(NamedTuple):
    name: str
    nullable: bool = True


class BadSchema(ValueError):
    """A schema that the source cannot fill. The text is for the user."""


def ddl(include_headers: bool = True) -> str:
    """Returns the full schema as Spark's DDL."""
    return ", ".join(
        f"{name} {kind}{' NOT NULL' if name in ALWAYS else ''}"
        for name, kind in COLUMNS.items()
        if include_headers or name != "headers"
    )


def chosen(fields: Iterable[StructField]) -> list[Column]:
    """Returns the columns of a user's schema. Raises BadSchema if the source cannot fill one."""
    columns: list[Column] = []
    for field in fields:
        if any(field.name == column.name for column in columns):
            raise BadSchema(f"column '{field.name}' is in the schema twice")
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
    """Returns the end of a sentence that suggests the nearest known name, or lists all."""
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
