"""Bodies that are JSON, as columns.

    orders = with_json(spark.read.format("leveret").option("subscribe", "orders").load(), "id long, price double")
    orders.select("offset", "json.id", "json.price")

`json_schema` infers a schema from messages that are there. A stream needs one from outside, since Spark has to know the
columns before the first message comes: infer it from a batch of the same queue.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from pyspark_leveret.connect import LeveretError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import ArrayType, MapType, StructType

    Schema = str | StructType | ArrayType | MapType

SAMPLE: Final = 1_000
SAMPLE_BYTES_MAX: Final = 8 << 20


def with_json(messages: DataFrame, schema: Schema | None = None, column: str = "json") -> DataFrame:
    """Adds a column with the parsed body: null where it is not JSON of that schema. Without a schema, it is inferred
    from the first messages, which only a batch allows."""
    from pyspark.sql import functions as F

    if schema is None:
        schema = json_schema(messages)
    return messages.withColumn(column, F.from_json(F.col("body").cast("string"), schema))


def json_schema(messages: DataFrame, sample: int = SAMPLE) -> str:
    """Infers the schema of bodies, as Spark writes types, from the first `sample` messages of a batch. A field has the
    type that fits all of them. Bodies that are no JSON objects are left out. Raises LeveretError if all are."""
    from pyspark.sql import functions as F

    if messages.isStreaming:
        raise LeveretError("a stream has no messages yet to infer a schema from: pass json_schema(…) of a batch read")
    found, size = [], 0
    for row in messages.select("body").limit(sample).toLocalIterator():
        try:
            value = json.loads(bytes(row.body))
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(bytes(row.body).decode())
            size += len(found[-1])
        if size >= SAMPLE_BYTES_MAX:
            break
    if not found:
        raise LeveretError(f"none of the first {sample} messages has a body that is a JSON object")
    [row] = messages.sparkSession.range(1).select(F.schema_of_json(F.lit(f"[{','.join(found)}]"))).collect()
    told = str(row[0])  # ARRAY<STRUCT<…>>: one element for each message.
    return told[len("ARRAY<") : -1]
