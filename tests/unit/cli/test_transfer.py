"""Messages from one broker to another: all of them, unchanged, and none lost when something breaks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.cli import transfer
from leveret.cli.main import main
from leveret.testing import Broker


@pytest.fixture(scope="module")
def brokers() -> Iterator[tuple[Broker, Broker]]:
    with leveret.testing.broker() as source, leveret.testing.broker() as target:
        yield source, target


def channel_of(broker: Broker) -> Any:
    return pika.BlockingConnection(pika.URLParameters(broker.url)).channel()


def fill(broker: Broker, queue: str, bodies: list[bytes], **properties: Any) -> None:
    channel = channel_of(broker)
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))
    channel.connection.close()


def waiting(broker: Broker, queue: str) -> int:
    channel = channel_of(broker)
    count = channel.queue_declare(queue, passive=True).method.message_count
    channel.connection.close()
    return int(count)


def run(source: Broker, target: Broker, *options: str) -> int:
    return main(["transfer", "--from", source.url, "--to", target.url, *options])


def test_all_messages_as_they_were(
    brokers: tuple[Broker, Broker], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = brokers
    monkeypatch.setattr(transfer, "BATCH", 7)
    monkeypatch.setattr(transfer, "PROGRESS", 10)
    monkeypatch.setattr(transfer.move, "__defaults__", (7,))
    bodies = [b"%d" % number for number in range(20)] + [b"", b"x" * 300_000]
    fill(source, "kept", bodies, headers={"n": 1, "CC": ["other"]}, content_type="text/plain", message_id="m")
    for broker in brokers:
        fill(broker, "other", [])
    fill(target, "kept", [])
    assert run(source, target, "--queue", "kept") == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["kept: 14 of 22", "kept: 22 messages moved"]
    assert waiting(source, "kept") == waiting(target, "other") == 0
    channel = channel_of(target)
    for body in bodies:
        method, properties, got = channel.basic_get("kept", auto_ack=True)
        assert got == body
        assert (method.routing_key, properties.content_type, properties.message_id) == ("kept", "text/plain", "m")
        assert properties.headers == {"n": 1, "CC": ["other"]} and properties.delivery_mode == 2
    assert channel.basic_get("kept")[0] is None
    channel.connection.close()
    assert not [one for one in target.admin.exchanges() if one.name.startswith("leveret.transfer.")]


def test_all_queues_of_a_file(
    brokers: tuple[Broker, Broker], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = brokers
    for queue in ("a", "b"):
        fill(source, queue, [b"1", b"2"])
        fill(target, queue, [])
    path = tmp_path / "definitions.json"
    stream = {"name": "s", "vhost": "/", "arguments": {"x-queue-type": "stream"}}
    there = [{"name": "a", "vhost": "/"}, {"name": "b", "vhost": "/"}, {"name": "c", "vhost": "elsewhere"}, stream]
    path.write_text(json.dumps({"queues": there}))
    assert run(source, target, "--definitions", str(path)) == 0
    assert (waiting(target, "a"), waiting(target, "b")) == (2, 2)
    ended = capsys.readouterr()
    assert ended.out == "a: 2 messages moved\nb: 2 messages moved\n"
    assert "s: is a stream" in ended.err


def test_nothing_is_lost_when_the_target_refuses(
    brokers: tuple[Broker, Broker], capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = brokers
    fill(source, "refused", [b"1", b"2", b"3"])
    fill(target, "refused", [])
    with target.faults.refuse_publishes():
        assert run(source, target, "--queue", "refused") == 69
    told = capsys.readouterr().err
    assert "refused a message" in told and told.startswith(f"leveret transfer: the target, 127.0.0.1:{target.port}: ")
    assert waiting(source, "refused") == 3
    assert run(source, target, "--queue", "refused") == 0
    assert (waiting(source, "refused"), waiting(target, "refused")) == (0, 3)


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--queue", "nowhere"], 69, ": queue nowhere: "),
        (["--queue", "nowhere"], 69, "the source, 127.0.0.1"),
        ([], 64, "name queues with --queue"),
        (["--definitions", "/no/such/file"], 65, "/no/such/file: "),
    ],
)
def test_wrong_use(
    brokers: tuple[Broker, Broker], options: list[str], code: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*brokers, *options) == code
    assert text in capsys.readouterr().err


def test_wrong_addresses(brokers: tuple[Broker, Broker], capsys: pytest.CaptureFixture[str]) -> None:
    source, _ = brokers
    assert run(source, source, "--queue", "q") == 64
    assert main(["transfer", "--from", "http://x", "--to", source.url, "--queue", "q"]) == 64
    assert main(["transfer", "--from", source.url, "--to", "amqp://127.0.0.1:1", "--queue", "q"]) == 69
    wrong = source.url_of("/", "guest", "wrong")
    assert main(["transfer", "--from", wrong, "--to", "amqp://127.0.0.1:1", "--queue", "q"]) == 69
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert "the target, 127.0.0.1:1: Connection refused" in lines[2]
    assert f"the source, 127.0.0.1:{source.port}: " in lines[3]


def test_addresses_that_no_list_of_processes_shows(
    brokers: tuple[Broker, Broker],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, target = brokers
    for broker in brokers:
        fill(broker, "hidden", [])
    file = tmp_path / "source.uri"
    file.write_text(source.url + "\n")
    monkeypatch.setenv("TARGET_URI", target.url)
    assert main(["transfer", "--from", f"@{file}", "--to", "env:TARGET_URI", "--queue", "hidden"]) == 0
    capsys.readouterr()
    file.write_text("http://ann:secret@host")
    monkeypatch.setenv("TARGET_URI", "ann:secret")
    for wrong in (f"@{file}", "env:TARGET_URI", "env:NOT_SET", "@/no/such/file"):
        assert main(["transfer", "--from", wrong, "--to", target.url, "--queue", "hidden"]) == 64
    told = capsys.readouterr().err
    assert told.count("\n") == 4 and "secret" not in told
