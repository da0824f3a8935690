"""`format("leveret")` in a real Spark session with a real broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.errors import PySparkException

from leveret.data.client import DataClient
from tests.support.servers import Server

pytestmark = pytest.mark.spark

STREAM = {"x-queue-type": "stream"}


def source(broker: Server, queue: str, **more: str) -> dict[str, str]:
    return {"servers": f"127.0.0.1:{broker.management_port}", "subscribe": queue, **more}


def sink(broker: Server, queue: str, **more: str) -> dict[str, str]:
    return {"servers": f"127.0.0.1:{broker.port}", "routingKey": queue, **more}


def publish(channel: Any, queue: str, first: int, count: int) -> None:
    for number in range(first, first + count):
        properties = pika.BasicProperties(delivery_mode=2, content_type="text/plain", headers={"parity": number % 2})
        channel.basic_publish("", queue, str(number).encode(), properties)


def run_now(spark: Any, given: dict[str, str], folder: Path, into: dict[str, str] | Path) -> Any:
    """A query that reads all there is, and ends."""
    messages = spark.readStream.format("leveret").options(**given).load()
    if isinstance(into, Path):
        writer = messages.writeStream.format("parquet").option("path", str(into))
    else:
        writer = messages.select("body", "headers").writeStream.format("leveret").options(**into)
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def read_numbers(spark: Any, given: dict[str, str]) -> list[int]:
    messages = spark.read.format("leveret").options(**given).schema("offset long, body binary").load()
    return [int(row.body) for row in messages.orderBy("offset").collect()]


def test_a_queue_is_a_table(spark: Any, data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    publish(data_channel, name, 0, 500)
    messages = spark.read.format("leveret").options(**source(data_broker, name, minPartitions="3")).load()
    assert messages.count() == 500
    messages.createOrReplaceTempView("messages")
    [row] = spark.sql(
        "select headers['parity'] parity, count(distinct cast(body as string)) numbers, min(enqueued) first, "
        "min(content_type) kind, min(offset) low, max(offset) high from messages group by 1 having parity = '1'"
    ).collect()
    assert (row.parity, row.numbers, row.kind, row.low, row.high) == ("1", 250, "text/plain", 2, 500)
    assert row.first.year >= 2025
    assert (
        "headers"
        not in spark.read.format("leveret").options(**source(data_broker, name), includeHeaders="false").load().columns
    )


def test_a_table_is_published(spark: Any, data_broker: Server, data_channel: Any, name: str) -> None:
    data_channel.queue_declare(name, durable=True)
    rows = spark.range(3000).selectExpr(
        "cast(id as string) body", f"'{name}' routing_key", "map('id', id) headers", "'text/plain' content_type"
    )
    rows.repartition(3).write.format("leveret").options(servers=f"127.0.0.1:{data_broker.port}").mode("append").save()
    assert sorted(read_numbers(spark, source(data_broker, name))) == list(range(3000))
    _, properties, body = data_channel.basic_get(name)
    assert properties.headers == {"id": int(body)}


def test_a_leased_queue_goes_to_parquet_once(
    spark: Any, data_broker: Server, data_channel: Any, name: str, tmp_path: Path
) -> None:
    data_channel.queue_declare(name, durable=True)
    given = source(data_broker, name, lease="lake", maxOffsetsPerTrigger="300")
    publish(data_channel, name, 0, 500)
    query = run_now(spark, given, tmp_path / "checkpoint", tmp_path / "lake")
    assert [progress["numInputRows"] for progress in query.recentProgress] == [300, 200, 0]
    publish(data_channel, name, 500, 100)
    run_now(spark, given, tmp_path / "checkpoint", tmp_path / "lake")
    rows = spark.read.parquet(str(tmp_path / "lake")).selectExpr("cast(cast(body as string) as int) n").collect()
    assert sorted(row.n for row in rows) == list(range(600))
    with DataClient(f"127.0.0.1:{data_broker.management_port}") as client:
        [info] = client.queues([name])
    assert info.messages == 0  # The tail is acknowledged, too.


def test_a_batch_that_is_run_again_publishes_nothing_twice(
    spark: Any, data_broker: Server, data_channel: Any, name: str, tmp_path: Path
) -> None:
    """The driver is lost after the sink's work and before Spark has written that down."""
    into = f"{name}-copy"
    data_channel.queue_declare(name, durable=True, arguments=STREAM)
    data_channel.queue_declare(into, durable=True)
    publish(data_channel, name, 0, 200)
    given = source(data_broker, name, startingOffsets="earliest", minPartitions="2", maxOffsetsPerTrigger="150")
    run_now(spark, given, tmp_path, sink(data_broker, into))
    for mark in ("1", ".1.crc"):
        (tmp_path / "commits" / mark).unlink()
    again = run_now(spark, given, tmp_path, sink(data_broker, into))
    first = again.recentProgress[0]
    assert (first["batchId"], first["numInputRows"]) == (1, 50)
    assert sorted(read_numbers(spark, source(data_broker, into))) == list(range(200))
    end = json.loads((tmp_path / "offsets" / "1").read_text().splitlines()[-1])
    assert end["queues"][name]["next"] == 200


def test_an_idle_query_goes_on_when_something_comes(
    spark: Any, data_broker: Server, data_channel: Any, name: str, tmp_path: Path
) -> None:
    into = f"{name}-copy"
    data_channel.queue_declare(name, durable=True)
    data_channel.queue_declare(into, durable=True)
    messages = spark.readStream.format("leveret").options(**source(data_broker, name, lease="live")).load()
    writer = messages.select("body").writeStream.format("leveret").options(**sink(data_broker, into))
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    for first in (0, 5):
        publish(data_channel, name, first, 5)
        query.processAllAvailable()
    query.stop()
    assert read_numbers(spark, source(data_broker, into)) == list(range(10))
    assert read_numbers(spark, source(data_broker, name)) == []


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"subscribbe": "x"}, "unknown option 'subscribbe'; did you mean 'subscribe'?"),
        ({"subscribe": "missing"}, "cannot subscribe to queue 'missing': not found in vhost '/'"),
        ({"password": "wrong"}, "user 'guest' is unknown, or the password is wrong"),
    ],
)
def test_errors_say_what_is_wrong(spark: Any, data_broker: Server, more: dict[str, str], text: str) -> None:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("leveret").options(**{**source(data_broker, "orders"), **more}).load().count()
    assert text in str(caught.value)
