"""Benchmarks of MQTT: that they run, count what they say, and show what they found."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from benchmarks import cli
from benchmarks.mqtt import measures, packets
from benchmarks.mqtt.load import Publisher, Subscriber, drive, runs
from benchmarks.mqtt.measures import PARTS
from benchmarks.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, Client
from benchmarks.report import results
from benchmarks.report.results import Results


class Answering(Client):
    """A client of nobody: what arrives at it is written to `far`."""

    def __init__(self) -> None:
        self.received = b""
        self.socket, self.far = socket.socketpair()

    def close(self) -> None:
        self.socket.close()
        self.far.close()


def test_parts_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "QUICK_IDLE", 20)
    monkeypatch.setattr(measures, "QUICK_RETAINED", 100)
    parts = [part for part in PARTS if part != "mqtt-mirrored"]  # Three nodes would only be more of the same.
    arguments = ["--only", *parts, "--leveret-only", "--quick", "--seconds", "0.05", "--output", str(tmp_path)]
    assert cli.main(arguments) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["problems"] == []
    assert list(found["mqtt"]) == [row.name for row in measures.ROWS]
    assert all(one["delivered"] == one["expected"] > 0 for one in found["rounds"])
    assert set(found["mqtt_figures"]) == {"idle_bytes", "subscribed_bytes", "retained_per_s", "found_s"}
    assert "| **durable QoS 2**" in capsys.readouterr().out


def test_mqtt_stands_for_its_parts() -> None:
    assert set(PARTS) <= set(cli.parse(["--only", "mqtt"]).only)
    assert set(PARTS) <= set(cli.parse([]).only)


def test_packets_are_those_of_mqtt() -> None:
    assert packets.publish("a", b"x", 1, 258) == b"\x32\x06\0\1a\1\2x"
    assert packets.publish("a", b"x" * 200, 0)[:3] == b"\x30\xcb\x01"
    assert packets.connect("c", True) == b"\x10\x1b\0\4MQTT\4\xc2\0\0\0\1c\0\5guest\0\5guest"
    assert packets.subscribe("a/#", 2) == b"\x82\x08\0\1\0\3a/#\2"
    assert packets.acks(PUBREC, b"\0\1", b"\7\2") == b"\x50\2\0\7\x50\2\1\2"


def test_runs_of_one_byte() -> None:
    assert runs(b"aabbab", ord("a")) == [(0, 2), (4, 5)]
    assert runs(b"", 1) == runs(b"bb", 1) == []


@pytest.mark.parametrize("step", [1, 3, 7, 1_000])
def test_a_subscriber_acknowledges_each_message_however_bytes_are_cut(step: int) -> None:
    client = Answering()
    numbers = [1, 2, 300, 65_535]
    messages = [packets.publish("t", b"xxxx", 2, number) for number in numbers]
    subscriber = Subscriber(client, messages[0], 2, 4)
    releases = [packets.acks(PUBREL, *_bytes(number)) for number in numbers]
    stream = b"".join([*messages[:3], releases[0], messages[3], *releases[1:]])
    for at in range(0, len(stream), step):
        client.far.sendall(stream[at : at + step])
        subscriber.on_readable()
    assert subscriber.delivered == 4 and subscriber.rest == b""
    received = [packets.acks(PUBREC, *_bytes(number)) for number in numbers]
    completed = [packets.acks(PUBCOMP, *_bytes(number)) for number in numbers]
    assert client.far.recv(1_000) == b"".join([*received[:3], completed[0], received[3], *completed[1:]])
    client.close()


def _bytes(number: int) -> tuple[bytes, bytes]:
    return bytes((number >> 8,)), bytes((number & 255,))


def test_a_publisher_stops_at_its_window_and_releases_what_was_received() -> None:
    client = Answering()
    messages = [packets.publish("t", b"x", 2, number) for number in range(1, 9)]
    publisher = Publisher(client, messages, 2, batch=2, window=4)
    for _ in range(3):
        publisher.on_writable()
    assert publisher.sent == 4 and client.far.recv(1_000) == b"".join(messages[:4])
    client.far.sendall(packets.acks(PUBREC, b"\0\0", b"\1\2"))
    publisher.on_readable()
    assert client.far.recv(100) == packets.acks(PUBREL, b"\0\0", b"\1\2") and not publisher.may_begin()
    client.far.sendall(packets.acks(PUBCOMP, b"\0\0", b"\1\2"))
    publisher.on_readable()
    assert publisher.acked == 2 and publisher.may_begin()
    client.close()


def test_what_a_publisher_should_not_get_is_an_error() -> None:
    client = Answering()
    publisher = Publisher(client, [packets.publish("t", b"x", 1, 1)], 1, batch=1, window=1)
    client.far.sendall(packets.acks(PUBACK, b"\0", b"\1") + packets.acks(PUBREC, b"\0", b"\1"))
    result = drive([publisher], [], seconds=5)
    assert "a publisher got" in result.errors[0]
    client.close()


def test_tables_show_what_is_missing_and_what_a_broker_does_not_have() -> None:
    found = Results(
        mqtt={"QoS 2": {"leveret": 300.0, "mosquitto": 100.0}},
        mqtt_missing={"QoS 2": {"leveret": 0.0, "mosquitto": 0.25}},
        mqtt_figures={"idle_bytes": {"leveret": 6_000.0, "mosquitto": 1_000.0, "rabbitmq": 60_000.0}},
    )
    text = results.markdown(found)
    assert "| 300 | 100 (25% missing) | – | 3.00 |  |" in text
    assert "bytes | 6,000 | 1,000 | 60,000 | 6.00 | 0.10 |" in text
