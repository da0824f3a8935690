"""`format("leveret")` in a real Spark session with a real broker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pika
import pytest
from pyspark.errors import PySparkException

from leveret.data.client import DataClient
from pyspark_leveret.bodies import json_schema, with_json
from pyspark_leveret.connect import LeveretError
from pyspark_leveret.several_streams import SETTINGS, prepare_streams
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
    told = [json.loads(progress["sources"][0]["latestOffset"]) for progress in query.recentProgress]
    assert [(one["lag"], one["queues"][name]["lag"]) for one in told] == [(200, 200), (0, 0), (0, 0)]
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


def test_a_named_batch_that_is_run_again_publishes_nothing_twice(
    spark: Any, data_broker: Server, data_channel: Any, name: str, tmp_path: Path
) -> None:
    """A batch job that is started again, and the function of foreachBatch, which fails once behind its write."""
    data_channel.queue_declare(name, durable=True)
    data_channel.queue_declare(f"{name}-in", durable=True, arguments=STREAM)
    rows = spark.range(100).selectExpr("cast(id as string) body").coalesce(2)
    for batch in (0, 0, 1, 0):
        named = sink(data_broker, name, producer="nightly", producerBatch=str(batch))
        rows.write.format("leveret").options(**named).mode("append").save()
    assert sorted(read_numbers(spark, source(data_broker, name))) == sorted([*range(100), *range(100)])
    publish(data_channel, f"{name}-in", 1000, 50)
    failing = [True]

    def forward(messages: Any, batch: int) -> None:
        named = sink(data_broker, name, producer="forward", producerBatch=str(batch))
        messages.select("body").write.format("leveret").options(**named).mode("append").save()
        if failing:
            failing.pop()
            raise RuntimeError("killed here")

    messages = spark.readStream.format("leveret").options(
        **source(data_broker, f"{name}-in", startingOffsets="earliest")
    )
    for _ in range(2):
        query = messages.load().writeStream.foreachBatch(forward).option("checkpointLocation", str(tmp_path))
        try:
            query.trigger(availableNow=True).start().awaitTermination()
        except PySparkException as error:
            assert "killed here" in str(error)
    assert sorted(read_numbers(spark, source(data_broker, name)))[200:] == list(range(1000, 1050))


def test_filters_are_the_sources_task(spark: Any, data_broker: Server, data_channel: Any, name: str) -> None:
    """With Spark's setting, filters are in the plan, and what they exclude is not read; else all is as before."""
    data_channel.queue_declare(name, durable=True, arguments=STREAM)
    data_channel.exchange_declare(f"{name}-x", "fanout")
    data_channel.queue_bind(name, f"{name}-x")
    for number in range(100):
        data_channel.basic_publish(f"{name}-x", "even" if number % 2 == 0 else "odd", str(number).encode())
    where = (
        f"offset >= 10 and offset < 90 and routing_key = 'odd' and queue = '{name}' and exchange like '%-x' "
        "and enqueued > timestamp'2025-01-01' and cast(body as string) < '5'"
    )

    def found() -> tuple[Any, str]:
        messages = spark.read.format("leveret").options(**source(data_broker, name)).load().where(where)
        plan = messages._jdf.queryExecution().explainString(
            spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
        )
        return sorted(int(row.body) for row in messages.select("body").collect()), plan

    plain, without = found()
    assert plain == [number for number in range(11, 90, 2) if str(number) < "5"]
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        pushed, plan = found()
        assert spark.read.format("leveret").options(**source(data_broker, name)).load().count() == 100
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    assert pushed == plain
    [told] = re.findall(r"PushedFilters: \[(.*)\]", plan)
    for text in ("offset,10", "offset,90", "routing_key,odd", f"queue,{name}", "exchange,-x", "enqueued,"):
        assert text in told
    assert "body" not in told and "PushedFilters" not in without


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


def test_queries_that_are_started_at_once_find_all_settings_there(
    spark: Any, data_broker: Server, data_channel: Any, name: str, tmp_path: Path
) -> None:
    """A streaming query puts settings into a map that all share. If one is missing there, two queries may put it at
    once, and break the map."""
    data_channel.queue_declare(name, durable=True, arguments=STREAM)
    manager = spark._jsparkSession.sessionState().dataSourceManager()
    shared = manager.lookupDataSource("leveret").dataSourceCls().envVars()
    for setting in SETTINGS:
        shared.remove(setting)
    prepare_streams(spark)
    before = set(shared)
    assert before >= set(SETTINGS)
    run_now(spark, source(data_broker, name, startingOffsets="earliest"), tmp_path / "checkpoint", tmp_path / "lake")
    assert set(shared) == before, "a new version of Spark puts other settings there"


def test_bodies_of_json_are_columns(spark: Any, data_broker: Server, data_channel: Any, name: str) -> None:
    """With an inferred schema in which all fit, and with a given one for a stream."""
    data_channel.queue_declare(name, durable=True, arguments=STREAM)
    for body in ('{"id": 1, "tags": ["a"]}', "no JSON", '{"id": 2.5, "to": {"city": "Rome"}}', "[1]"):
        data_channel.basic_publish("", name, body.encode())
    messages = spark.read.format("leveret").options(**source(data_broker, name)).load()
    schema = json_schema(messages)
    assert schema == "STRUCT<id: DOUBLE, tags: ARRAY<STRING>, to: STRUCT<city: STRING>>"
    rows = with_json(messages).orderBy("offset").select("json.id", "json.tags", "json.to.city").collect()
    assert [tuple(row) for row in rows] == [(1.0, ["a"], None), (None,) * 3, (2.5, None, "Rome"), (None,) * 3]
    stream = spark.readStream.format("leveret").options(**source(data_broker, name)).load()
    assert with_json(stream, "id long", "order").schema["order"].dataType.simpleString() == "struct<id:bigint>"
    with pytest.raises(LeveretError, match="a stream has no messages yet"):
        with_json(stream)
