"""A broker under test: its life, its data, and that it leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import aio_pika
import pika
import pytest

import leveret.testing
from leveret.node.config.load import ConfigError
from leveret.testing import Broker, NotRunning
from tests.support.servers import ROOT, until

Where = Literal["inside", "beside"]
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture(params=["inside", "beside"])
def where(request: pytest.FixtureRequest) -> Where:
    return "inside" if request.param == "inside" else "beside"


@pytest.fixture
def subject() -> Iterator[Broker]:
    with leveret.testing.broker() as running:
        yield running


def connect(broker: Broker) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.URLParameters(broker.url))


def publish(broker: Broker, queue: str, count: int = 1) -> None:
    """Confirmed, into a durable queue."""
    connection = connect(broker)
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
    connection.close()


def descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            pass  # Of the listing itself.
    return sorted(found)


def test_life(where: Where) -> None:
    """Stop and kill keep ports, data and what was confirmed; the end keeps nothing."""
    with leveret.testing.broker(where=where) as broker:
        url, folder = broker.url, broker.folder
        assert url == f"amqp://guest:guest@127.0.0.1:{broker.port}/%2F"
        publish(broker, "kept", 2)
        connection = connect(broker)
        broker.stop()
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="shutdown"):
            connection.process_data_events(60)
        assert not broker.is_running
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            connect(broker)
        with pytest.raises(NotRunning, match="is not running"):
            broker.admin.queues()
        broker.start()
        publish(broker, "kept", 3)
        connection = connect(broker)
        broker.kill()
        with pytest.raises(pika.exceptions.StreamLostError):  # Nobody said why.
            connection.process_data_events(60)
        broker.start()
        assert broker.url == url
        assert broker.admin.queue("kept").messages == 5
    assert not folder.exists()
    broker.close()  # A second time is no error.


def test_nothing_is_left() -> None:
    with leveret.testing.broker():
        pass  # What is loaded once, stays: modules, the resolver.
    before, threads = descriptors(), set(threading.enumerate())
    for _ in range(3):
        with leveret.testing.broker() as broker:
            publish(broker, "q")
            broker.kill()
            broker.start()
    assert set(threading.enumerate()) <= threads  # One of another test may have ended meanwhile.
    assert not Counter(descriptors()) - Counter(before)  # Likewise.


def test_several_at_once(subject: Broker) -> None:
    with leveret.testing.broker() as other, leveret.testing.broker(where="beside") as third:
        assert len({subject.port, other.port, third.port}) == 3
        for one, count in ((subject, 1), (other, 2), (third, 3)):
            publish(one, "q", count)
        assert [one.admin.queue("q").messages for one in (subject, other, third)] == [1, 2, 3]


def test_a_folder_to_keep(where: Where, tmp_path: Path) -> None:
    with leveret.testing.broker(data=tmp_path / "data") as broker:
        publish(broker, "q")
        twin = leveret.testing.broker(where=where, data=tmp_path / "data")
        threads = set(threading.enumerate())
        with pytest.raises(NotRunning, match=r"did not start(.|\n)*another process works in"), twin:
            pass
        assert set(threading.enumerate()) <= threads  # One of another test may have ended meanwhile.
    with leveret.testing.broker(data=tmp_path / "data", sync=True) as broker:
        assert broker.admin.queue("q").messages == 1


def test_configuration(where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set in the shell has no say."""
    monkeypatch.setenv("LEVERET_DEFAULT_USER", "bob")
    monkeypatch.setenv("RABBITMQ_NODE_PORT", "1")
    config = "default_user = ann\ndefault_pass = a/b\ndefault_vhost = shop"
    with leveret.testing.broker(where=where, config=config) as broker:
        assert broker.url.startswith("amqp://ann:a%2Fb@127.0.0.1:") and broker.url.endswith("/shop")
        connect(broker).close()
        broker.admin.add_vhost("else where")
        pika.BlockingConnection(pika.URLParameters(broker.url_of("else where"))).close()


def test_bad_configuration() -> None:
    with pytest.raises(ConfigError, match="heartbeet"):
        leveret.testing.broker(config="heartbeet = 1")
    with pytest.raises(ValueError, match="'inside' or 'beside'"):
        leveret.testing.broker(where="outside")  # type: ignore[arg-type]


def test_a_start_that_takes_too_long(monkeypatch: pytest.MonkeyPatch, subject: Broker) -> None:
    """It asks a member again and again that does not let it in."""
    monkeypatch.setattr("leveret.testing.runners.START_S", 0.2)
    lost = Broker(name="lost@localhost")
    lost.join(subject)  # Which has another cookie.
    threads = set(threading.enumerate())
    with pytest.raises(NotRunning, match=r"not ready within 0\.2 s"):
        lost.start()
    assert set(threading.enumerate()) <= threads  # One of another test may have ended meanwhile.
    assert not lost.is_running
    lost.close()


def test_leveretctl(subject: Broker) -> None:
    publish(subject, "q", 4)
    command = [sys.executable, "-m", "leveret.cli.ctl", *subject.leveretctl, "-q", "list_queues"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[1] == "q\t4"


def test_a_broker_beside_ends_with_its_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Even with a test run that was killed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = (
        "import os, leveret.testing\n"
        "broker = leveret.testing.broker(where='beside')\n"
        "broker.start()\n"
        "print(broker._runner._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    pid = int(done.stdout)

    def is_gone() -> bool:
        try:
            with open(f"/proc/{pid}/stat") as stat:
                return stat.read().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return True

    until(is_gone, "the broker has ended")


def test_a_broker_that_nobody_stops() -> None:
    """The interpreter ends in order all the same."""
    code = "import leveret.testing as t\nb = t.broker()\nb.start()\nprint(b.folder)"
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert not Path(done.stdout.strip()).exists()


async def test_async(subject: Broker) -> None:
    """The admin can be asked from a coroutine, and a broker can be had with `async with`."""
    async with leveret.testing.broker(where="beside") as beside:
        for one in (subject, beside):
            async with await aio_pika.connect(one.url) as connection:
                channel = await connection.channel()
                queue = await channel.declare_queue("q")
                await channel.default_exchange.publish(aio_pika.Message(b"x"), "q")
                assert one.admin.queue("q").messages == 1
                assert (await queue.get()).body == b"x"


def test_cluster() -> None:
    with leveret.testing.cluster(3) as cluster:
        first, second, third = cluster.brokers
        assert len(set(cluster.urls)) == 3
        cluster.admin.set_policy("ha", "", {"ha-mode": "all", "ha-sync-mode": "automatic"}, apply_to="queues")
        publish(first, "q", 10)
        assert second.admin.queue("q").messages == 10
        columns = {"vhost": "/", "columns": ["synchronised_mirror_pids"]}
        until(lambda: len(third.admin.call("list_queues", **columns)["rows"][0][0]) == 2, "both mirrors are in sync")
        first.kill()
        until(lambda: cluster.admin.queue("q").node != first.name, "another one leads the queue")
        assert cluster.admin.queue("q").messages == 10
        first.start()
        assert first.admin.queue("q").messages == 10


def test_repr() -> None:
    broker = leveret.testing.broker()
    assert repr(broker) == "<leveret broker leveret@localhost, stopped>"
    with pytest.raises(NotRunning, match="before it is started"):
        _ = broker.url
    broker.close()
