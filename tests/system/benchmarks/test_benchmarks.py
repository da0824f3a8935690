"""The benchmarks themselves: what they count, and short runs against a real server."""

from __future__ import annotations

import dataclasses
import json
import socket
from itertools import accumulate
from pathlib import Path

import pytest

from benchmarks import cli
from benchmarks.report import docs_page, results
from benchmarks.report.results import Results
from benchmarks.ruler.brokers import Leveret, prepared, running
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.load import Consumer, CountingConsumer, drive
from benchmarks.ruler.workloads import WORKLOADS, Workload, encode, run
from benchmarks.single import compare, steady_rate, trace_latency
from benchmarks.single.growth import bind_many, pairs
from leveret.client import amqp
from leveret.client.amqp import BrokerError
from leveret.perf.publisher import Tally

BY_NAME = {workload.name: workload for workload in WORKLOADS}


class Answering(Connection):
    """A connection to nobody: what arrives on it is written to `far`."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.socket, self.far = socket.socketpair()

    def close(self) -> None:
        self.socket.close()
        self.far.close()


def delivery(tag: int, body: bytes = b"x" * 10) -> bytes:
    arguments = amqp.short("c00000") + tag.to_bytes(8, "big") + b"\0" + amqp.short("") + amqp.short("q")
    header = amqp.frame(amqp.HEADER, b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + b"\0\0")
    return amqp.method(amqp.BASIC_DELIVER, arguments) + header + amqp.frame(amqp.BODY, body)


def consumer(connection: Connection, ack_every: int = 0) -> Consumer:
    return Consumer(connection, [], ack_every)


def test_a_workload_delivers_all_it_sends() -> None:
    with running(Leveret) as broker:
        safe = run(broker.port, BY_NAME["safe"], 0.3, settle_s=0)
        topic = run(broker.port, dataclasses.replace(BY_NAME["topic"], bindings=20), 0.1, settle_s=0)
        fanout = run(broker.port, BY_NAME["fanout"], 0.1, settle_s=0)
        mixed = run(broker.port, BY_NAME["mixed"], 0.1, settle_s=0)
        backlog = compare.backlog(broker, 1_000, settle_s=0)
        bound_per_s = bind_many(broker.port, _bound_queue(broker.port), "amq.topic", "topic", range(150))
        assert broker.resident_bytes() > 1 << 20
    assert safe.is_good and safe.errors == []
    assert safe.sent > 0 and safe.delivered == safe.expected == safe.sent
    assert safe.per_s > 0 and safe.seconds >= 0.3
    assert topic.is_good and topic.delivered == topic.sent
    assert fanout.is_good and fanout.delivered == fanout.sent * 20
    assert mixed.is_good and mixed.delivered == mixed.sent > 0
    assert backlog.good and backlog.messages == 1_000
    assert bound_per_s > 0


def _bound_queue(port: int) -> str:
    with Connection(port) as admin:
        admin.declare_queue("bound")
    return "bound"


def test_a_broker_that_cannot_start_is_reported_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    command = Leveret.command
    monkeypatch.setattr(Leveret, "command", lambda broker: [*command(broker), "--no-such-option"])
    with prepared(Leveret) as broker, pytest.raises(BrokerError, match="no-such-option"):
        broker.start()
    assert not broker.folder.exists()


def test_confirms_are_counted_once() -> None:
    confirms = Tally()
    counts = []
    for tag, multiple in [
        (2, False),
        (2, False),
        (1, False),
        (5, False),
        (4, True),
        (4, True),
        (3, False),
        (8, False),
        (9, True),
    ]:
        confirms.on_told(tag, multiple, nack=False)
        counts.append(confirms.count)
    assert counts == [1, 1, 2, 3, 5, 5, 5, 6, 9]


def test_deliveries_are_counted_by_their_bytes() -> None:
    connection = Answering()
    counted = consumer(connection)
    stream = b"".join(delivery(tag) for tag in range(1, 8))
    for at in range(0, len(stream), 17):
        connection.far.sendall(stream[at : at + 17])
        counted.on_readable()
        assert counted.delivered == min(at + 17, len(stream)) // len(delivery(1))
    assert (counted.delivered, counted.stray_bytes) == (7, 0)
    connection.close()


def test_deliveries_that_differ_in_length_are_counted_by_their_bodies() -> None:
    connection = Answering()
    counted = CountingConsumer(connection, [], 0)
    deliveries = [delivery(tag, b"x" * tag) for tag in range(1, 8)]
    stream, ends = b"".join(deliveries), list(accumulate(map(len, deliveries)))
    for at in range(0, len(stream), 17):
        connection.far.sendall(stream[at : at + 17])
        counted.on_readable()
        assert counted.delivered == sum(end <= at + 17 for end in ends)
    assert (counted.delivered, counted.stray_bytes) == (7, 0)
    connection.far.sendall(amqp.method(amqp.CHANNEL_CLOSE, b"\1\x94" + amqp.short("NOT_FOUND") + b"\0\0\0\0"))
    with pytest.raises(BrokerError, match="NOT_FOUND"):
        counted.on_readable()
    connection.close()


def test_deliveries_that_came_with_the_answer_count() -> None:
    connection = Answering()
    connection.received += delivery(1) + delivery(2)
    counted = consumer(connection)
    assert (counted.delivered, counted.stray_bytes) == (2, 0)
    connection.close()


def test_what_is_no_delivery_is_noticed() -> None:
    connection = Answering()
    closing = amqp.method(amqp.CHANNEL_CLOSE, b"\1\x94" + amqp.short("NOT_FOUND") + b"\0\0\0\0")
    counted = consumer(connection)
    connection.far.sendall(delivery(1) + closing)
    counted.on_readable()
    assert counted.delivered == 1 and counted.stray_bytes == len(closing)
    connection.close()


@pytest.mark.parametrize("before", [b"", delivery(1)], ids=["at first", "after a delivery"])
def test_a_run_in_which_a_channel_closed_is_no_good(before: bytes) -> None:
    connection = Answering()
    counted = consumer(connection)
    connection.far.sendall(before + amqp.method(amqp.CHANNEL_CLOSE, b"\1\x94" + amqp.short("NOT_FOUND") + b"\0\0\0\0"))
    result = drive([], [counted], seconds=0, waiting=1)
    assert not result.is_good
    assert any("NOT_FOUND" in error or "no whole deliveries" in error for error in result.errors)
    connection.close()


def test_a_run_in_which_the_broker_went_away_is_no_good() -> None:
    connection = Answering()
    counted = consumer(connection)
    connection.far.close()
    result = drive([], [counted], seconds=0, waiting=1)
    assert not result.is_good and "closed" in result.errors[0]
    connection.close()


def test_acks_cover_all_so_far() -> None:
    connection = Answering()
    counted = consumer(connection, ack_every=2)
    connection.far.sendall(b"".join(delivery(tag) for tag in (1, 2, 3)))
    counted.on_readable()
    assert connection.far.recv(100) == amqp.ack_through(3)
    connection.close()


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_blobs_hold_whole_batches_of_one_length(workload: Workload) -> None:
    blobs = encode("e", [f"k{number:05}" for number in range(workload.keys)], workload)
    lengths = {len(blob) for blob in blobs}
    assert len(lengths) > 100 if workload.body_bytes_max else lengths == {len(blobs[0])}
    assert len(blobs) * workload.batch >= workload.keys
    assert blobs[0].count(amqp.METHOD_ID.pack(*amqp.BASIC_PUBLISH)) == workload.batch


@pytest.mark.parametrize("count", [1, 50, 1_000])
def test_busy_pairs_can_make_progress(count: int) -> None:
    workload = pairs(count)
    assert workload.batch <= workload.window and workload.ack_every <= workload.prefetch


def found() -> Results:
    return Results(
        environment={"Processors": "2"},
        rates={"safe": {"leveret": 3_000, "rabbitmq": 1_000}},
        start={"leveret": {"seconds": 0.5, "idle_bytes": 30 << 20}, "rabbitmq": {"seconds": 5, "idle_bytes": 90 << 20}},
        growth={
            "queues": [{"queues": 1, "per_s": 10}, {"queues": 1_000, "per_s": 5}],
            "waiting": [{"waiting": 0, "stop_s": 1}],
        },
    )


def test_tables_show_ratios_and_problems() -> None:
    both = found()
    text = results.markdown(both)
    assert "| 3,000 | 1,000 | 3.00 |" in text
    assert "| start to first connection, s | 0.50 | 5.00 | 0.10 |" in text
    assert "| 1,000 | 5 |" in text
    assert "wrong" not in text
    both.problems.append("9 were lost")
    assert "- 9 were lost" in results.markdown(both)


def test_without_rabbitmq_there_is_no_column_for_it() -> None:
    text = results.markdown(Results(rates={"safe": {"leveret": 3_000}}))
    assert "RabbitMQ" not in text and "ratio" not in text and "| 3,000 |" in text


def test_earlier_results_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found().write(tmp_path / "one.json")
    Results(rates={"fast": {"leveret": 7, "rabbitmq": 2}}).write(tmp_path / "two.json")
    output = tmp_path / "output"
    arguments = ["--from", str(tmp_path / "one.json"), str(tmp_path / "two.json"), "--output", str(output)]
    assert cli.main(arguments) == 0
    assert set(json.loads((output / "results.json").read_text())["rates"]) == {"safe", "fast"}
    assert "| 7 | 2 | 3.50 |" in capsys.readouterr().out


def test_the_page_keeps_what_is_around_its_results() -> None:
    page = f"before\n{docs_page.MARK}\nold\n{docs_page.END_MARK}\nafter\n"
    assert docs_page.insert(page, "new\n") == f"before\n{docs_page.MARK}\n\nnew\n\n{docs_page.END_MARK}\nafter\n"
    assert docs_page.insert(docs_page.insert(page, "new\n"), "new\n") == docs_page.insert(page, "new\n")
    with pytest.raises(ValueError, match="results"):
        docs_page.insert("no marks", "new")


def test_latency_at_a_steady_rate() -> None:
    with running(Leveret) as broker:
        found = steady_rate.steady(broker, 200, 0.3, queues=2)
    assert found.deliver_p50 > 0 and 0 < found.confirm_p50 <= found.confirm_p99
    both = Results(steady={"leveret": [found.numbers(), found.numbers()], "rabbitmq": [found.numbers()]})
    text = results.markdown(both)
    assert "| 200 a second: publish to confirm, median, ms |" in text and "| 1.00 |" in text
    assert both.brokers() == ["leveret", "rabbitmq"]


def test_confirms_of_a_steady_rate_are_noted_once() -> None:
    load = steady_rate.SteadyLoad.__new__(steady_rate.SteadyLoad)
    load.confirmed, load.through, load.base, load.open_confirms = [0.0] * 5, 0, 10, 5
    for tag, multiple, now in [(12, 0, 1.0), (13, 1, 2.0), (13, 1, 3.0), (15, 1, 4.0)]:
        load._on_confirm(tag, multiple, now)
    assert load.confirmed == [2.0, 1.0, 2.0, 4.0, 4.0]
    assert (load.through, load.open_confirms) == (5, 0)


def test_the_stages_of_a_confirm() -> None:
    """Notes of another message's commit before and after do not count."""
    names = [name for name, _ in trace_latency.STAGES]
    one = trace_latency.Traced(1_000)
    one.confirmed, one.delivered = 1_000 * len(names), 5_000
    events = [("turn", 500)] + [(name, 1_000 * (at + 1)) for at, name in enumerate(names[1:-1], 1)] + [("turn", 99_000)]
    found = trace_latency.stages_of(one, events)
    assert found is not None and list(found) == names[1:] and set(found.values()) == {1.0}
    assert trace_latency.stages_of(one, events[:-3]) is None
    text = trace_latency.table([one, one], events)
    assert "| sync of the disk | 1 | 1 |" in text and "2 of 2 messages" in text


def test_a_traced_node() -> None:
    assert "publish to confirm" in trace_latency.trace(count=20, pause_s=0.001)
