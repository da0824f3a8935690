"""What has to work with every version of Spark that the package takes: `make versions` runs this with each."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Server
from tests.system.spark.sessions import ended

pytestmark = [pytest.mark.spark, pytest.mark.long]

STREAM = {"x-queue-type": "stream"}


def test_rows_are_published_read_filtered_and_streamed(
    spark: Any, data_broker: Server, data_channel: Any, name: str, tmp_path: Path
) -> None:
    into = f"{name}-copy"
    for queue in (name, into):
        data_channel.queue_declare(queue, durable=True, arguments=STREAM)
    source = {"servers": f"127.0.0.1:{data_broker.management_port}"}
    sink = {"servers": f"127.0.0.1:{data_broker.port}"}
    rows = spark.range(300).selectExpr(
        "cast(id as string) body", "map('id', id) headers", "timestamp'2026-01-01 00:00:00' timestamp"
    )
    for _ in range(2):
        named = {**sink, "routingKey": name, "producer": "once", "producerBatch": "1"}
        rows.coalesce(2).write.format("leveret").options(**named).mode("append").save()
    messages = spark.read.format("leveret").options(**source, subscribe=name).load()
    assert messages.selectExpr("cast(headers['id'] as int) n").distinct().count() == messages.count() == 300
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    assert messages.where("offset >= 10 and offset < 20").count() == 10
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    for count in (300, 310):
        stream = spark.readStream.format("leveret").options(**source, subscribe=name, startingOffsets="earliest")
        writer = stream.load().select("body", "headers", "timestamp").writeStream.format("leveret")
        writer = writer.options(**sink, routingKey=into).option("checkpointLocation", str(tmp_path))
        ended(writer.trigger(availableNow=True).start)
        copies = spark.read.format("leveret").options(**source, subscribe=into).load()
        assert copies.select("body").distinct().count() == copies.count() == count
        rows.limit(10).selectExpr("concat('more ', body) body").write.format("leveret").options(
            **sink, routingKey=name
        ).mode("append").save()
    assert copies.select("timestamp").first()[0] == datetime(2026, 1, 1)
