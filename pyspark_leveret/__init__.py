"""Leveret and RabbitMQ for Spark: `spark.read.format("leveret")`, and readStream, write, writeStream.

Spark finds this package by its name and imports it in every session that looks for any Python data source, also where
nobody uses Leveret. So as little as possible happens here; what a reader or writer needs is imported when one is made.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource", "LeveretDataSource"]


class LeveretDataSource(DataSource):
    """Queues as tables and streams, and a sink that publishes rows. Options: docs/spark.md."""

    def __init__(self, options: MutableMapping[str, str] | Mapping[str, str]) -> None:
        from pyspark_leveret.options import Options

        self.options = dict(options)
        Options(self.options)  # Refuses unknown names at once, and not when a job begins.

    @classmethod
    def name(cls) -> str:
        return "leveret"

    def schema(self) -> str:
        from pyspark_leveret.options import Options
        from pyspark_leveret.schema import ddl

        return ddl(Options(self.options).include_headers())

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_leveret.batch import LeveretReader
        from pyspark_leveret.options import Options
        from pyspark_leveret.schema import chosen

        return LeveretReader(Options(self.options).source(streaming=False), chosen(schema.fields))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_leveret.options import Options
        from pyspark_leveret.schema import chosen

        options, columns = Options(self.options).source(streaming=True), chosen(schema.fields)
        if options.access.speaks_amqp:
            from pyspark_leveret.plain import PlainStreamReader

            return PlainStreamReader(options, columns)
        from pyspark_leveret.stream import LeveretStreamReader

        return LeveretStreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_leveret.options import Options
        from pyspark_leveret.sink import LeveretWriter

        return LeveretWriter(Options(self.options).sink(), schema.fields, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_leveret.options import Options
        from pyspark_leveret.sink import LeveretStreamWriter

        return LeveretStreamWriter(Options(self.options).sink(), schema.fields, overwrite)


DefaultSource = LeveretDataSource
