"""What people use RabbitMQ's HTTP API with, and the calls that they make."""

from __future__ import annotations

import base64
import contextlib
import glob
import http.client
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pika
import pytest

import leveret.testing
from tests.support.members import free_port
from tests.support.servers import PATIENCE_S, until
from tests.system.management.scene import Scene
from tests.system.management.watching import CONFIG, Watched

# It comes with RabbitMQ, and is no part of this.
CONSUMED = {"name": "celery", "consumers": 1}
SCRIPTS = glob.glob("/usr/lib/rabbitmq/lib/*/plugins/rabbitmq_management-*/priv/www/cli/rabbitmqadmin")


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with leveret.testing.broker(config=CONFIG) as broker, Scene(broker.port) as scene:
        scene.play(3)
        yield Watched(broker)


def rabbitmqadmin(watched: Watched, *arguments: str) -> Any:
    command = [sys.executable, SCRIPTS[0], "-P", str(watched.broker.ports["management"]), "-f", "raw_json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not SCRIPTS, reason="RabbitMQ's management plugin is not installed")
@pytest.mark.parametrize(
    "arguments, name",
    [
        (("list", "queues"), "scene.busy"),
        (("list", "queues", "name", "messages", "message_stats.publish_details.rate"), "scene.busy"),
        (("list", "exchanges"), "scene.topic"),
        (("list", "bindings"), None),
        (("list", "channels"), None),
        (("list", "connections"), None),
        (("list", "consumers"), None),
        (("list", "nodes"), "leveret@localhost"),
        (("show", "overview"), None),
    ],
)
def test_rabbitmqadmin(watched: Watched, arguments: tuple[str, ...], name: str | None) -> None:
    answer = rabbitmqadmin(watched, *arguments)
    assert answer
    if name is not None:
        assert name in [row["name"] for row in answer]


@pytest.mark.skipif(not SCRIPTS, reason="RabbitMQ's management plugin is not installed")
def test_rabbitmqadmin_draws_tables(watched: Watched) -> None:
    command = [sys.executable, SCRIPTS[0], "-P", str(watched.broker.ports["management"]), "list", "queues"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "scene.exclusive" in done.stdout


SESSION = """
declare vhost name=av -> vhost declared
declare user name=ann password=secret tags=monitoring -> user declared
declare permission vhost=av user=ann configure=.* write=.* read=.* -> permission declared
-V av declare exchange name=x type=topic -> exchange declared
-V av declare queue name=q durable=true arguments={"x-max-length":10} -> queue declared
-V av declare queue name=qq queue_type=quorum durable=true -> queue declared
-V av declare queue name=q durable=false -> ! inequivalent arg 'durable' for queue 'q' in vhost 'av'
-V av declare binding source=x destination=q routing_key=a.# -> binding declared
-V av declare policy name=p pattern=^q$ definition={"message-ttl":60000} apply-to=queues -> policy declared
-V av declare policy name=p pattern=[ definition={"message-ttl":60000} -> ! pattern should be regular expression
-V av declare operator_policy name=op pattern=^q$ definition={"max-length":5} -> operator_policy declared
declare vhost_limit vhost=av name=max-queues value=50 -> vhost_limit declared
-V av publish exchange=x routing_key=a.b payload=hello -> Message published
-V av publish exchange=x routing_key=zzz payload=lost -> Message published but NOT routed
-V av publish routing_key=q payload=ZGlyZWN0 payload_encoding=base64 -> Message published
-V av -f tsv get queue=q count=5 -> direct
-V av -f tsv get queue=q ackmode=ack_requeue_false -> hello
-V av get queue=absent -> ! Not found
-V av -f tsv list queues name durable -> q\tTrue
-V av -f tsv list bindings source routing_key -> x\ta.#
-f tsv list users name tags -> ann\tmonitoring
-f tsv list vhost_limits -> max-queues
-f tsv list operator_policies name definition -> max-length
-V absent list queues name -> ! Not found
-V av purge queue name=q -> queue purged
-V av delete binding source=x destination_type=queue destination=q properties_key=a.%23 -> binding deleted
-V av delete queue name=q -> queue deleted
-V av delete queue name=q -> ! Not found
-V av delete policy name=p -> policy deleted
-V av delete operator_policy name=op -> operator_policy deleted
delete vhost_limit vhost=av name=max-queues -> vhost_limit deleted
export FILE -> Exported definitions
import FILE -> Uploaded definitions
delete permission vhost=av user=ann -> permission deleted
delete user name=ann -> user deleted
delete vhost name=av -> vhost deleted
close connection name=absent -> ! Not found
-u guest -p wrong list queues -> ! Access refused: /api/queues
"""


@pytest.mark.skipif(not SCRIPTS, reason="RabbitMQ's management plugin is not installed")
def test_rabbitmqadmin_does_all_it_can(watched: Watched, tmp_path: Path) -> None:
    """What it says about each is what it says with RabbitMQ. It runs in here: to start Python takes far longer."""
    script = compile(Path(SCRIPTS[0]).read_text(), "rabbitmqadmin", "exec")
    with pytest.MonkeyPatch.context() as patch:
        # It would have SIGPIPE end its process from now on: this one, at some later test that writes to a lost peer.
        patch.setattr(signal, "signal", lambda number, handler: None)
        for line in SESSION.strip().splitlines():
            words, _, expected = line.replace("FILE", str(tmp_path / "definitions")).partition(" -> ")
            port = str(watched.broker.ports["management"])
            patch.setattr(sys, "argv", ["rabbitmqadmin", "-P", port, *words.split(" ")])
            code, said = 0, io.StringIO()
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                try:
                    exec(script, {"__name__": "__main__"})
                except SystemExit as ended:
                    code = int(ended.code or 0)
            is_refused = expected.startswith("! ")
            assert (code != 0) == is_refused, (line, said.getvalue())
            assert expected.removeprefix("! ").replace("\\t", "\t") in said.getvalue(), (line, said.getvalue())


APP = """
from celery import Celery

app = Celery("shop", broker=BROKER, backend="rpc://", broker_connection_retry_on_startup=True)


@app.task
def add(a, b):
    return a + b
"""


@pytest.fixture
def flower(watched: Watched, tmp_path: Path) -> Iterator[str]:
    """Flower as people start it, beside a worker; the address it is served at."""
    (tmp_path / "shop.py").write_text(APP.replace("BROKER", repr(watched.broker.url)))
    port = free_port()
    api = f"http://guest:guest@127.0.0.1:{watched.broker.ports['management']}/api/"
    celery = [sys.executable, "-m", "celery", "--app", "shop"]
    commands = (
        [*celery, "worker", "--pool", "solo", "--without-gossip", "--without-mingle"],
        [*celery, "flower", "--address=127.0.0.1", f"--port={port}", f"--broker-api={api}"],
    )
    environ = os.environ | {"FLOWER_UNAUTHENTICATED_API": "true"}
    with contextlib.ExitStack() as stack:
        for number, command in enumerate(commands):
            log = stack.enter_context(open(tmp_path / f"{number}.log", "wb"))
            process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=log, stderr=log)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
        yield f"http://127.0.0.1:{port}"


def fetched(url: str) -> str:
    """What is there, as soon as somebody answers."""
    found: list[str] = []

    def is_there() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
                found.append(answer.read().decode())
        except (ConnectionError, urllib.error.URLError):
            return False
        return True

    until(is_there, f"somebody answers at {url}")
    return found[0]


@pytest.mark.skipif(importlib.util.find_spec("flower") is None, reason="flower is not installed")
def test_flower(watched: Watched, flower: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(watched.broker.url))
    channel = connection.channel()
    channel.queue_declare("celery", durable=True)
    workers = threading.Event()
    while not [row for row in watched.get("/api/queues/%2F?columns=name,consumers") if row == CONSUMED]:
        workers.wait(0.1)
    fetched(f"{flower}/api/workers?refresh=true")  # It asks the worker what it consumes from.
    [queue] = json.loads(fetched(f"{flower}/api/queues/length"))["active_queues"]
    assert (queue["name"], queue["messages"], queue["consumers"]) == ("celery", 0, 1)
    shown = re.sub(r"<[^>]*>", " ", fetched(f"{flower}/broker")).split()
    at = shown.index("celery", shown.index("Queue"))
    assert shown[at : at + 5] == ["celery", "0", "0", "0", "1"]
    connection.close()


@pytest.mark.skipif(importlib.util.find_spec("pyrabbit") is None, reason="pyrabbit is not installed")
def test_kombu(watched: Watched) -> None:
    """Its management calls are those of pyrabbit."""
    with kombu.Connection(watched.broker.url) as connection:
        port = watched.broker.ports["management"]
        manager = connection.get_manager(hostname="127.0.0.1", port=port, userid="guest", password="guest")
        assert manager.get_overview()["rabbitmq_version"].startswith("3.")
        assert [row["name"] for row in manager.get_nodes()] == ["leveret@localhost"]
        manager.create_vhost("kv")
        assert "kv" in manager.get_vhost_names()
        manager.create_user("ku", "secret", "monitoring")
        manager.set_vhost_permissions("kv", "guest", ".*", ".*", ".*")
        assert manager.get_permission("kv", "guest")["write"] == ".*"
        manager.create_exchange("kv", "ke", "direct")
        manager.create_queue("kv", "kq", durable=True)
        manager.create_binding("kv", "ke", "kq", "rk")
        assert [row["routing_key"] for row in manager.get_queue_bindings("kv", "kq")] == ["kq", "rk"]
        assert manager.publish("kv", "ke", "rk", "hello") is True
        assert manager.publish("kv", "ke", "nowhere", "hello") is False
        assert manager.get_queue_depth("kv", "kq") == 1
        manager.purge_queue("kv", "kq")
        assert manager.get_queue("kv", "kq")["messages"] == 0
        from pyrabbit.http import HTTPError

        with pytest.raises(HTTPError, match="404"):
            manager.get_connection("absent")
        manager.delete_binding("kv", "ke", "kq", "rk")
        manager.delete_queue("kv", "kq")
        manager.delete_exchange("kv", "ke")
        assert manager.get_queues("kv") == []
        manager.delete_user("ku")
        manager.delete_vhost("kv")
        assert "kv" not in manager.get_vhost_names()


def test_keda(watched: Watched) -> None:
    one = watched.get("/api/queues/%2F/scene.plain")
    assert one["messages"] == 3
    assert one["message_stats"]["publish_details"]["rate"] >= 0
    query = "page=1&use_regex=true&pagination=false&name=^scene.*&page_size=100"
    many = watched.get(f"/api/queues/%2F?{query}")
    assert sum(row["messages"] for row in many["items"] if row["name"] == "scene.plain") == 3


@pytest.mark.parametrize("path", ["overview", "nodes", "queues", "exchanges", "connections", "aliveness-test/%2F"])
def test_exporter_asks_for_terms_and_no_order(watched: Watched, path: str) -> None:
    """kbudde's rabbitmq_exporter would rather have Erlang's terms than JSON, and takes what it is told it gets."""
    connection = http.client.HTTPConnection("127.0.0.1", watched.broker.ports["management"], timeout=60)
    login = "Basic " + base64.b64encode(b"guest:guest").decode()
    headers = {"Authorization": login, "Accept": "application/bert, application/json;q=0.1"}
    connection.request("GET", f"/api/{path}?sort=", headers=headers)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("content-type")) == (200, "application/json")
    assert json.loads(answer.read())
    connection.close()


def test_exporter(watched: Watched) -> None:
    """What kbudde's rabbitmq_exporter reads."""
    overview = watched.get("/api/overview")
    assert overview["object_totals"].keys() == {"channels", "connections", "consumers", "exchanges", "queues"}
    assert overview["queue_totals"]["messages"] >= 0
    [node] = watched.get("/api/nodes")
    for name in (
        "mem_used", "mem_limit", "mem_alarm", "disk_free", "disk_free_alarm", "disk_free_limit", "fd_used", "fd_total",
        "sockets_used", "sockets_total", "partitions", "running", "uptime",
    ):  # fmt: skip
        assert name in node
    [memory] = [watched.get(f"/api/nodes/{node['name']}/memory")["memory"]]
    assert memory["total"].keys() == {"erlang", "rss", "allocated"}
    queue = next(row for row in watched.get("/api/queues") if row["name"] == "scene.busy")
    for name in ("vhost", "durable", "policy", "messages_ready", "memory", "consumer_utilisation", "state"):
        assert name in queue
