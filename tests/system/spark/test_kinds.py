"""`format("leveret")` with other brokers than the usual one: over TLS, with journals, and a real RabbitMQ."""

from __future__ import annotations

import base64
import http.client
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from benchmarks.ruler.brokers import RabbitMQ
from pyspark_leveret.jobs import journal
from tests.support.certificates import issue
from tests.support.members import Cluster
from tests.support.servers import until
from tests.system.conftest import Start

pytestmark = pytest.mark.spark

PERSISTENT = pika.BasicProperties(delivery_mode=2, content_type="text/plain")


def publish(channel: Any, queue: str, count: int) -> None:
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True)
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)


def to_parquet(spark: Any, given: dict[str, str], folder: Path) -> list[int]:
    """Numbers of what a query has written that reads all there is."""
    messages = spark.readStream.format("leveret").options(**given).load()
    writer = messages.writeStream.format("parquet").option("path", str(folder / "lake"))
    writer.option("checkpointLocation", str(folder / "state")).trigger(availableNow=True).start().awaitTermination()
    return sorted(int(row.body) for row in spark.read.parquet(str(folder / "lake")).select("body").collect())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_tls(spark: Any, start: Start, tmp_path: Path) -> None:
    """Both ports are there with TLS alone, and trust is what the option says."""
    issue(tmp_path)
    node = start(f"""
listeners.tcp = none
listeners.ssl.1 = 127.0.0.1:0
ssl_options.certfile = {tmp_path}/server.pem
ssl_options.keyfile = {tmp_path}/server.key
management.ssl.port = 0
management.ssl.ip = 127.0.0.1
management.ssl.certfile = {tmp_path}/server.pem
management.ssl.keyfile = {tmp_path}/server.key
""")
    trusted = {"cafile": f"{tmp_path}/ca.pem"}
    source = {"servers": f"127.0.0.1:{node.management_port}", "subscribe": "q", **trusted}
    sink = {"servers": f"127.0.0.1:{node.tls_port}", "routingKey": "q", **trusted}
    put_queue(node.management_port, "q", f"{tmp_path}/ca.pem")
    rows = spark.range(500).selectExpr("cast(id as string) body")
    rows.write.format("leveret").options(**sink).mode("append").save()
    assert to_parquet(spark, {**source, "lease": "lake"}, tmp_path) == list(range(500))


def put_queue(port: int, name: str, cafile: str) -> None:
    tls = ssl.create_default_context(cafile=cafile)
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=tls)
    headers = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    connection.request("PUT", f"/api/queues/%2F/{name}", '{"durable": true}', headers)
    assert connection.getresponse().status == 201
    connection.close()


def test_journals(spark: Any, trio: Cluster, name: str, tmp_path: Path) -> None:
    node = trio[0]
    node.control(
        "set_policy", vhost="/", name=name, pattern=f"^{name}", definition={"journal": "full"}, priority=1,
        apply_to="queues", operator=False,
    )  # fmt: skip
    publish(node.channel(), name, 20)
    given = {"servers": f"127.0.0.1:{node.management_port}"}

    def confirmed(events: Any) -> int:
        wanted = events.where(f"kind = 'confirmed' and queue = '{name}'").selectExpr("sum(count) total").collect()
        return int(wanted[0].total or 0)

    until(lambda: confirmed(journal.read(spark, given)) == 20, "the journal tells of all", 60.0)
    events = journal.read(spark, given, streaming=True)
    writer = events.writeStream.format("parquet").option("path", str(tmp_path / "events"))
    query = writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert confirmed(spark.read.parquet(str(tmp_path / "events"))) == 20
    node.control("clear_policy", vhost="/", name=name, operator=False)


@pytest.fixture
def rabbitmq(tmp_path: Path) -> Iterator[RabbitMQ]:
    if RabbitMQ.program() is None:
        pytest.skip("no rabbitmq-server on this machine (apt-get install rabbitmq-server)")
    node = RabbitMQ(tmp_path / "rabbitmq")
    try:
        node.start()
        yield node
    finally:
        node.kill()


def test_a_plain_rabbitmq(spark: Any, rabbitmq: RabbitMQ, name: str, tmp_path: Path) -> None:
    """Published by Spark, read by Spark, and acknowledged when it is written."""
    parameters = pika.ConnectionParameters("127.0.0.1", rabbitmq.port, heartbeat=0)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    rows = spark.range(700).selectExpr("cast(id as string) body", "map('n', id) headers")
    sink = {"servers": f"127.0.0.1:{rabbitmq.port}", "routingKey": name}
    rows.repartition(2).write.format("leveret").options(**sink).mode("append").save()
    assert channel.queue_declare(name, passive=True).method.message_count == 700
    source = {"servers": f"amqp://127.0.0.1:{rabbitmq.port}", "subscribe": name, "maxOffsetsPerTrigger": "300"}
    assert to_parquet(spark, source, tmp_path) == list(range(700))
    found = spark.read.parquet(str(tmp_path / "lake")).where("headers['n'] = cast(body as string)")
    assert found.count() == 700
    assert channel.queue_declare(name, passive=True).method.message_count == 0
    connection.close()
