"""What earlier versions of Spark lack, so that the rest of the package can import it from here.

    4.0   no conditions for sources (`pushFilters`), no streaming writers that take Arrow batches
    4.1   no read limits: a streaming source is not told where its query is, see `source.earlier_stream`
    4.2   all of it
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS: bool
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        HAS_LIMITS = True
    except ImportError:
        HAS_LIMITS = False

        class ReadLimit:
            """As in Spark 4.2."""

        class ReadAllAvailable(ReadLimit):
            """As in Spark 4.2."""

        @dataclass
        class ReadMaxRows(ReadLimit):
            """As in Spark 4.2."""

            max_rows: int

        @dataclass
        class ReadMaxBytes(ReadLimit):
            """As in Spark 4.2."""

            max_bytes: int

        class SupportsTriggerAvailableNow:
            """As in Spark 4.2."""

    DataSourceStreamArrowWriter = getattr(
        datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter
    )

WRITES_ARROW: Final = hasattr(datasource, "DataSourceStreamArrowWriter")
ROWS: Final = 10_000

__all__ = [
    "HAS_LIMITS",
    "WRITES_ARROW",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "as_batches",
]


def as_batches(rows: Iterable[Any], fields: Sequence[Any]) -> Iterator[pa.RecordBatch]:
    """Turns Spark's rows into Arrow batches: for versions that give a streaming writer rows."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import TimestampType

    times = pa.timestamp("us", tz="UTC")
    schema = pa.schema(
        [
            pa.field(field.name, times if isinstance(field.dataType, TimestampType) else to_arrow_type(field.dataType))
            for field in fields
        ]
    )
    todo = iter(rows)
    while chunk := list(islice(todo, ROWS)):
        columns = [[_plain(row[at]) for row in chunk] for at in range(len(fields))]
        yield pa.RecordBatch.from_arrays(
            [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
        )


def _plain(value: Any) -> Any:
    """Gives a time the zone that Spark leaves out: the worker's own. Arrow takes maps as pairs."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return list(value.items()) if isinstance(value, dict) else value
