"""Leveret and RabbitMQ for Spark: `spark.read.format("leveret")`, and readStream, write, writeStream.

- `options`, `schema`, `connect`: options, columns, and connections with their error texts, shared by all.
- `spark_versions`: what earlier versions of Spark lack.
- `bodies`: bodies of JSON as columns. `several_streams`: for queries that are started at once.
- `source`: reads queues. `sink`: publishes rows. `jobs`: the pipeline.

Public: `LeveretDataSource`, which Spark finds by the name of this package, `bodies`, `several_streams` and `jobs`; see
docs/spark.md and docs/pipeline.md. The rest is not. This package imports `leveret.client`, `leveret.data` and other
modules of `leveret` that need no broker; nothing of `leveret` imports it.

Spark imports this package in every session that looks for any Python data source, also where nobody uses Leveret. So as
little as possible happens here: readers and writers are imported when one is made.
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
    """Reads queues as tables and streams, and publishes rows. Options: docs/spark.md."""

    def __init__(self, options: MutableMapping[str, str] | Mapping[str, str]) -> None:
        from pyspark_leveret.options import Options

        self.options = dict(options)
        Options(self.options)  # Refuses unknown names now, not when a job begins.

    @classmethod
    def name(cls) -> str:
        return "leveret"

    def schema(self) -> str:
        from pyspark_leveret.options import Options
        from pyspark_leveret.schema import ddl

        return ddl(Options(self.options).include_headers())

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_leveret.options import Options
        from pyspark_leveret.schema import chosen
        from pyspark_leveret.source.batch import reader_class

        return reader_class()(Options(self.options).source(streaming=False), chosen(schema.fields))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_leveret.options import Options
        from pyspark_leveret.schema import chosen
        from pyspark_leveret.spark_versions import HAS_LIMITS

        options, columns = Options(self.options).source(streaming=True), chosen(schema.fields)
        if options.access.speaks_amqp:
            if not HAS_LIMITS:
                raise NotImplementedError("streaming from RabbitMQ needs Spark 4.2 or newer")
            from pyspark_leveret.source.rabbitmq_stream import RabbitMQStreamReader

            return RabbitMQStreamReader(options, columns)
        if not HAS_LIMITS:
            from pyspark_leveret.source.earlier_stream import EarlierStreamReader

            return EarlierStreamReader(options, columns)
        from pyspark_leveret.source.stream import LeveretStreamReader

        return LeveretStreamReader(options, columns)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_leveret.options import Options
        from pyspark_leveret.sink.publisher import check_login
        from pyspark_leveret.sink.writer import LeveretWriter

        options = Options(self.options).sink()
        made = LeveretWriter(options, schema.fields, overwrite)
        check_login(options.access)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_leveret.options import Options
        from pyspark_leveret.sink.writer import LeveretStreamWriter

        return LeveretStreamWriter(Options(self.options).sink(streaming=True), schema.fields, overwrite)


DefaultSource = LeveretDataSource
