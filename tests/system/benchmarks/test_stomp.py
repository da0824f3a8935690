"""Benchmarks of STOMP: that they run, count what they say, and show what they found."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from benchmarks import cli
from benchmarks.report import results
from benchmarks.report.results import Results
from benchmarks.stomp.load import Client, Publisher, Subscriber, drive, frame
from benchmarks.stomp.measures import BATCH, BLOBS, ROWS, blobs


class Answering(Client):
    """A client of nobody: what arrives at it is written to `far`."""

    def __init__(self) -> None:
        self.received = b""
        self.socket, self.far = socket.socketpair()

    def close(self) -> None:
        self.socket.close()
        self.far.close()


def message(number: int) -> bytes:
    return frame("MESSAGE", b"x", subscription="1", ack=f"T_1@@s@@{number}")


def test_rows_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--only", "stomp", "--leveret-only", "--quick", "--seconds", "0.05", "--output", str(tmp_path)]
    assert cli.main(arguments) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["problems"] == []
    assert list(found["stomp"]) == [row.name for row in ROWS]
    assert all(one["delivered"] == one["sent"] > 0 for one in found["rounds"])
    assert "| **receipts**" in capsys.readouterr().out


@pytest.mark.parametrize("step", [1, 7, 1_000])
@pytest.mark.parametrize(("mode", "acks"), [("auto", []), ("client", [3]), ("client-individual", [1, 2, 3])])
def test_a_subscriber_acknowledges_however_bytes_are_cut(step: int, mode: str, acks: list[int]) -> None:
    client = Answering()
    subscriber = Subscriber(client, mode)
    stream = b"".join(message(number) for number in (1, 2, 3))
    for at in range(0, len(stream), step):
        client.far.sendall(stream[at : at + step])
        subscriber.on_readable()
    assert subscriber.delivered == 3
    if mode == "client-individual" or step == 1_000:
        client.socket.shutdown(socket.SHUT_WR)
        assert client.far.recv(1_000) == b"".join(b"ACK\nid:T_1@@s@@%d\n\n\0" % number for number in acks)
    client.close()


def test_a_publisher_stops_at_its_window() -> None:
    client = Answering()
    publisher = Publisher(client, [b"one", b"two"], 1, 2, True)
    while publisher.wants_to_write():
        publisher.on_writable()
    assert publisher.sent == 2 and client.far.recv(100) == b"onetwo"
    client.far.sendall(frame("RECEIPT", receipt_id="r0"))
    publisher.on_readable()
    assert publisher.confirmed == 1 and publisher.wants_to_write()
    client.close()


def test_an_error_of_the_broker_is_one_of_the_run() -> None:
    client, other = Answering(), Answering()
    client.far.sendall(frame("RECEIPT", receipt_id="r0") + frame("ERROR", b"why", message="no"))
    result = drive(Publisher(client, [b"x"], 1, 1, True), Subscriber(other, "auto"), 0.0)
    assert "message:no" in result.errors[0]
    client.close()
    other.close()


def test_varied_messages_differ() -> None:
    row = next(row for row in ROWS if row.is_varied)
    made = blobs(row, "/queue/q")
    assert len(made) == BLOBS and len({len(blob) for blob in made}) > 1
    assert made[0].count(b"SEND\n") == BATCH


def test_the_table() -> None:
    text = results.markdown(Results(stomp={"receipts": {"leveret": 300.0, "rabbitmq": 100.0}}))
    assert "| 300 | 100 | 3.00" in text
