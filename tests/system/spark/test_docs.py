"""What docs/spark.md, its notebook and README.md show works as it stands there, but for ports and paths."""

from __future__ import annotations

import base64
import http.client
import importlib
import io
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pika
import pytest

from pyspark_leveret.options import KNOWN
from tests.support.pages.blocks import blocks, matches
from tests.support.servers import ROOT, Server, until
from tests.system.spark.sessions import Patient

pytestmark = pytest.mark.spark

TEXT = (ROOT / "docs" / "spark.md").read_text()
NOTEBOOK = json.loads((ROOT / "docs" / "spark.ipynb").read_text())
STREAM = {"x-queue-type": "stream"}
ORDERS = [json.dumps({"id": number, "customer": number % 3, "price": 7}).encode() for number in range(60)]


def code_under(heading: str) -> str:
    """The Python code between this heading and the next one: the first block."""
    section = re.split(r"^##+ ", TEXT.partition(f"# {heading}")[2], maxsplit=1, flags=re.MULTILINE)[0]
    return str(re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0])


def run(code: str, spark: Any, broker: Server, folder: Path, given: dict[str, Any]) -> dict[str, Any]:
    """With this broker's ports, and paths that are the test's own. Queries that go on are ended when they are idle."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    named = [("read|readStream", broker.management_port), ("write|writeStream", broker.port)]
    for words, port in named:
        code = re.sub(rf'\.({words})\.format\("leveret"\)', rf'\g<0>.option("servers", "127.0.0.1:{port}")', code)
    code = code.replace("15672", str(broker.management_port))
    code = code.replace("/tmp/lake", str(folder)).replace("/data", str(folder))
    queries: list[Patient] = []
    usual = DataStreamWriter.start

    def start(writer: Any, *arguments: Any, **options: Any) -> Patient:
        queries.append(Patient(partial(usual, writer, *arguments, **options)))
        return queries[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DataStreamWriter, "start", start)
        exec(compile(code, "docs", "exec"), given)
        for query in queries:
            query.settle()
    assert spark.streams.active == []
    return given


def count(channel: Any, queue: str) -> int:
    found: int = channel.queue_declare(queue, passive=True).method.message_count
    return found


def fill(channel: Any, queue: str, bodies: list[bytes]) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, headers={"a": "b"}))


@pytest.fixture
def queues(data_broker: Server, data_channel: Any) -> Any:
    """Those that the recipes speak of, as they are before each."""
    for queue in ("orders", "invoices", "dead", "clicks", "clicks-again"):
        data_channel.queue_delete(queue)
        data_channel.queue_declare(queue, durable=True, arguments=STREAM if queue == "clicks" else {})
    fill(data_channel, "orders", ORDERS)
    fill(data_channel, "clicks", [b"%d" % number for number in range(40)])
    return data_channel


def put_queue(broker: Server, command: str) -> None:
    """The request that curl is told to make."""
    found = re.search(r"-X PUT http://127\.0\.0\.1:15672(\S+) -d '(.+)'", command)
    assert found is not None
    connection = http.client.HTTPConnection("127.0.0.1", broker.management_port)
    login = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    connection.request("PUT", found[1], found[2], login)
    assert connection.getresponse().status == 201
    connection.close()


def test_the_quick_start(
    spark: Any, data_broker: Server, data_channel: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_channel.queue_delete("orders")
    put_queue(data_broker, TEXT)
    run(code_under("Quick start"), spark, data_broker, tmp_path, {})
    assert "1000 in the lake" in capsys.readouterr().out
    assert count(data_channel, "orders") == 0


def test_the_readme(
    spark: Any, data_broker: Server, queues: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [code] = re.findall(r"```python\n(spark\.read.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    run(code, spark, data_broker, tmp_path, {"spark": spark})
    assert re.search(r"\|\s*orders\|\s*60\|", capsys.readouterr().out)


def test_the_tutorial(
    spark: Any, data_broker: Server, data_channel: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of docs/tutorials/first-lake.md, with the outputs that it shows."""
    data_channel.queue_delete("clicks")
    given: dict[str, Any] = {}
    for block in blocks(ROOT / "docs" / "tutorials" / "first-lake.md"):
        if block.language == "python":
            code = block.text.replace("BlockingConnection()", "BlockingConnection(AT)")
            given["AT"] = pika.ConnectionParameters("127.0.0.1", data_broker.port)
            run(code, spark, data_broker, tmp_path, given)
            output = capsys.readouterr().out
        elif block.is_output:
            assert matches(block.text, output, digits_vary=False), output


def test_the_lake(spark: Any, data_broker: Server, queues: Any, tmp_path: Path) -> None:
    for expected in (60, 120):
        run(code_under("1. A lake"), spark, data_broker, tmp_path, {"spark": spark})
        lake = spark.read.parquet(str(tmp_path / "lake" / "orders"))
        assert (lake.count(), lake.where("day is not null").count()) == (expected, expected)
        fill(queues, "orders", ORDERS)


def test_filters(spark: Any, data_broker: Server, queues: Any, tmp_path: Path) -> None:
    try:
        given = run(code_under("Filters"), spark, data_broker, tmp_path, {"spark": spark})
        assert given["late"].count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_counts(spark: Any, data_broker: Server, queues: Any, tmp_path: Path) -> None:
    run(code_under("2. Counts"), spark, data_broker, tmp_path, {"spark": spark})
    [row] = spark.sql("select sum(count) total, min(routing_key) key from by_minute").collect()
    assert (row.total, row.key) == (40, "clicks")


def test_a_table_beside(spark: Any, data_broker: Server, queues: Any, tmp_path: Path) -> None:
    spark.createDataFrame([(0, "Ann"), (1, "Bob"), (2, "Cem")], "customer long, name string").write.parquet(
        str(tmp_path / "customers")
    )
    run(code_under("3. Messages"), spark, data_broker, tmp_path, {"spark": spark})
    assert (count(queues, "orders"), count(queues, "invoices")) == (0, 60)
    _, properties, body = queues.basic_get("invoices", auto_ack=True)
    assert properties.content_type == "application/json"
    assert json.loads(body) == {"customer": 0, "id": 0, "price": 7, "name": "Ann"}


def test_dead_letters(
    spark: Any, data_broker: Server, queues: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    routed = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    queues.queue_delete("jobs")
    queues.queue_declare("jobs", durable=True, arguments=routed)
    fill(queues, "jobs", [b"1", b"2", b"3"])
    for _ in range(3):
        method, _, _ = queues.basic_get("jobs")
        queues.basic_reject(method.delivery_tag, requeue=False)
    until(lambda: count(queues, "dead") == 3, "they are dead-lettered")
    run(code_under("4. Why"), spark, data_broker, tmp_path, {"spark": spark})
    assert re.search(r"\|\s*jobs\|\s*rejected\|\s*3\|", capsys.readouterr().out)
    assert (count(queues, "dead"), count(queues, "jobs")) == (0, 3)


def test_an_hour_once_more(spark: Any, data_broker: Server, queues: Any, tmp_path: Path) -> None:
    run(code_under("5. An hour"), spark, data_broker, tmp_path, {"spark": spark})
    assert count(queues, "clicks-again") == 40
    _, properties, _ = queues.basic_get("clicks-again", auto_ack=True)
    assert (properties.headers, properties.delivery_mode) == ({"a": "b"}, 2)


def test_a_batch_that_is_run_again_and_bodies_as_columns(
    spark: Any, data_broker: Server, queues: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = run(code_under("JSON, Avro, Protobuf"), spark, data_broker, tmp_path, {"spark": spark})
    assert given["schema"] in code_under("JSON, Avro, Protobuf")
    assert given["prices"].columns == ["customer", "sum(json.price AS price)"]
    assert re.search(r"\|\s*1\|\s*0\|\s*7\|", capsys.readouterr().out)
    given = run(code_under("Batches that are run again"), spark, data_broker, tmp_path, {"spark": spark})
    assert (count(queues, "orders"), count(queues, "invoices")) == (0, 60)
    given["publish"](spark.createDataFrame([("again",)] * 60, "body string").coalesce(1), 0)
    assert count(queues, "invoices") == 60
    run(code_under("Progress"), spark, data_broker, tmp_path, {"query": given["query"]})
    assert "behind: 0" in capsys.readouterr().out


@pytest.mark.parametrize("heading, package", [("Into Delta", "deltalake"), ("Into Iceberg", "pyiceberg")])
def test_tables_that_take_a_batch_once(
    spark: Any, data_broker: Server, queues: Any, tmp_path: Path, heading: str, package: str
) -> None:
    given = run(code_under(heading), spark, data_broker, tmp_path, {"spark": spark})
    assert count(queues, "orders") == 0
    write = given["to_delta" if package == "deltalake" else "to_iceberg"]
    rows = spark.read.format("leveret").option("servers", f"127.0.0.1:{data_broker.management_port}")
    more = rows.option("subscribe", "clicks").load()
    for batch, expected in ((0, 60), (5, 100), (5, 100), (4, 100)):
        write(more, batch)
        if package == "deltalake":
            table = given["DeltaTable"](str(tmp_path / "delta" / "orders")).to_pyarrow_table()
        else:
            table = given["catalog"].load_table("shop.orders").scan().to_arrow()
        assert table.num_rows == expected
    assert {row["queue"] for row in table.select(["queue"]).to_pylist()} == {"orders", "clicks"}
    assert table.to_pylist()[0]["headers"] == [("a", "b")]


ORDER = {"type": "record", "name": "Order", "fields": [{"name": name, "type": "long"} for name in ("id", "price")]}
SHOP = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
fields = file.message_type.add(name="Order").field
for number, name in enumerate(("id", "price"), 1):
    fields.add(name=name, number=number, type="TYPE_INT64", label="LABEL_OPTIONAL")
pool = descriptor_pool.DescriptorPool()
pool.Add(file)
Order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
"""


def test_avro(
    spark: Any, data_broker: Server, queues: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(ORDER))
    queues.queue_purge("orders")
    for price in (7, 8):
        body = io.BytesIO()
        fastavro.schemaless_writer(body, fastavro.parse_schema(ORDER), {"id": 3, "price": price})
        fill(queues, "orders", [body.getvalue()])
    run(code_under("Avro"), spark, data_broker, tmp_path, {"spark": spark})
    assert re.search(r"\|\s*3\|\s*15\|", capsys.readouterr().out)


def test_protobuf(
    spark: Any, data_broker: Server, queues: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    pytest.importorskip("google.protobuf", exc_type=ImportError)
    (tmp_path / "shop_pb2.py").write_text(SHOP)
    monkeypatch.syspath_prepend(tmp_path)
    spark.sparkContext.addPyFile(str(tmp_path / "shop_pb2.py"))
    queues.queue_purge("orders")
    fill(queues, "orders", [importlib.import_module("shop_pb2").Order(id=3, price=7).SerializeToString()])
    run(code_under("Protobuf"), spark, data_broker, tmp_path, {"spark": spark})
    assert re.search(r"\|\s*3\|\s*7\|", capsys.readouterr().out)


def test_the_notebook(
    spark: Any, data_broker: Server, data_channel: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (NOTEBOOK["nbformat"], {cell["cell_type"] for cell in NOTEBOOK["cells"]}) == (4, {"markdown", "code"})
    data_channel.queue_delete("readings")
    given: dict[str, Any] = {}
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            run("".join(cell["source"]), spark, data_broker, tmp_path, given)
    assert given["spark"].read.parquet(str(tmp_path / "readings")).count() == 2000
    assert re.search(r"\|\s*6\|\s*285\|", capsys.readouterr().out)
    assert count(data_channel, "readings") == 0


def test_all_options_are_in_the_table() -> None:
    table = TEXT.partition("## Options")[2].partition("## Columns")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == set(KNOWN)
