"""RabbitMQ's programs against a node that `rabbitmq-server` runs: what images, test tools and operators call.

Each call here is one that somebody makes: Testcontainers (environment, log line, `rabbitmqadmin` inside the container),
pytest-rabbitmq (its own fixtures), the cluster operator (its four hooks), the official image's users.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from leveret.cli.names import names
from tests.unit.cli.conftest import bare_environment

__all__ = ["bare_environment"]

START_S = 60


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Container:
    """A node with the environment that Testcontainers gives to RabbitMQ's image, and the programs beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.http, self.mqtt = free_port(), free_port(), free_port()
        self.plugins = folder / "enabled_plugins"
        self.plugins.write_text("[rabbitmq_prometheus].\n")
        conf = folder / "conf.d"
        conf.mkdir()
        (conf / "10-defaults.conf").write_text(
            f"loopback_users.guest = false\nlog.console = true\nmanagement.tcp.port = {self.http}\n"
            f"prometheus.tcp.port = none\nmqtt.listeners.tcp.default = {self.mqtt}\n"
        )
        names(str(folder / "bin"), force=False)
        self.environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "LEVERET_"))},
            "HOME": str(folder),
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_DEFAULT_USER": "ann",
            "RABBITMQ_DEFAULT_PASS": "secret",
            "RABBITMQ_DEFAULT_VHOST": "shop",
            "RABBITMQ_CONFIG_FILES": str(conf),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.plugins),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_NODENAME": "rabbit@container",
        }
        self.output = folder / "output"
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [folder / "bin" / "rabbitmq-server"], env=self.environ, stdout=output, stderr=subprocess.STDOUT
            )

    def call(self, program: str, *words: str, code: int = 0, plugins: str = "") -> str:
        done = subprocess.run(
            [self.folder / "bin" / program, *words],
            env=self.environ | ({"RABBITMQ_ENABLED_PLUGINS_FILE": plugins} if plugins else {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def admin(self, *words: str, code: int = 0) -> str:
        login = ("--port", str(self.http), "--username", "ann", "--password", "secret")
        return self.call("rabbitmqadmin", *login, *words, code=code)


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    made = Container(tmp_path_factory.mktemp("container"))
    try:
        made.call("rabbitmqctl", "await_startup", "--timeout", str(START_S))
        yield made
    finally:
        made.process.terminate()
        assert made.process.wait(START_S) == 0


def test_testcontainers_waits_for_this(container: Container) -> None:
    """In Python by connecting with pika, elsewhere for a line of the log."""
    assert "Server startup complete" in container.output.read_text()
    credentials = pika.PlainCredentials("ann", "secret")
    parameters = pika.ConnectionParameters("127.0.0.1", container.port, "shop", credentials)
    with pika.BlockingConnection(parameters) as connection:
        assert connection.is_open


def test_testcontainers_calls_these_inside(container: Container) -> None:
    """What Java's `withExchange`, `withQueue`, `withBinding`, `withUser`, `withPolicy` and others come to."""
    admin, ctl = container.admin, container.call
    admin("declare", "vhost", "name=more")
    admin("--vhost=shop", "declare", "exchange", "name=plain", "type=topic", "auto_delete=false", "internal=false",
          "durable=true", "arguments={}")  # fmt: skip
    admin("-V", "shop", "declare", "exchange", "name=orders", "type=topic", 'arguments={"alternate-exchange": "other"}')
    admin("--vhost=shop", "declare", "queue", "name=all", "auto_delete=false", "durable=true",
          'arguments={"x-max-length":1000}')  # fmt: skip
    admin("--vhost=shop", "declare", "binding", "source=orders", "destination=all", "routing_key=#",
          "destination_type=queue", "arguments={}")  # fmt: skip
    admin("declare", "user", "name=bob", "password=pw", "tags=administrator")
    admin("declare", "permission", "vhost=shop", "user=bob", "configure=.*", "write=.*", "read=.*")
    admin("--vhost=shop", "declare", "policy", "name=p", "pattern=^all$", "priority=3", "apply-to=queues",
          'definition={"max-length": 10}')  # fmt: skip
    admin("--vhost=shop", "declare", "operator_policy", "name=o", "pattern=.*", "apply-to=queues",
          'definition={"max-length": 100}')  # fmt: skip
    ctl("rabbitmqctl", "set_cluster_name", "burrow")
    ctl("rabbitmqctl", "add_vhost", "yet-another")
    ctl("rabbitmqctl", "add_user", "eve", "pw")
    ctl("rabbitmqctl", "set_user_tags", "eve", "monitoring")
    ctl("rabbitmqctl", "set_permissions", "-p", "shop", "eve", "", "", ".*")
    rows = json.loads(admin("list", "bindings", "source", "destination", "vhost", "-f", "raw_json"))
    assert {"source": "orders", "destination": "all", "vhost": "shop"} in rows
    assert "bob" in admin("list", "users", "-f", "tsv").split()


def test_rabbitmqadmin_publishes_gets_and_refuses(container: Container, tmp_path: Path) -> None:
    shop = ("-V", "shop")
    container.admin(*shop, "declare", "queue", "name=letters", "durable=true", "queue_type=classic")
    assert container.admin(*shop, "publish", "routing_key=letters", "payload=hello") == "Message published\n"
    assert "NOT routed" in container.admin(*shop, "publish", "routing_key=nowhere", "payload=hello")
    assert "hello" in container.admin(*shop, "get", "queue=letters", "ackmode=ack_requeue_true")
    target = tmp_path / "payload"
    container.admin(*shop, "get", "queue=letters", f"payload_file={target}", "ackmode=ack_requeue_false")
    assert target.read_bytes() == b"hello"
    container.admin(*shop, "purge", "queue", "name=letters")
    exported = tmp_path / "definitions.json"
    container.admin("export", str(exported))
    assert "letters" in {one["name"] for one in json.loads(exported.read_text())["queues"]}
    container.admin(*shop, "delete", "queue", "name=letters")
    container.admin("import", str(exported))
    assert "letters" in container.admin(*shop, "list", "queues", "name", "--sort", "name", "--format=bash").split()
    assert "Not found" in container.admin("delete", "queue", "name=nothing", code=1)
    assert 'mandatory argument "type"' in container.admin("declare", "exchange", "name=x", code=1)
    assert 'argument "sort" not recognised' in container.admin("declare", "vhost", "name=x", "sort=y", code=1)
    assert "Access refused" in container.admin("-p", "wrong", "list", "queues", code=1)
    assert "Could not connect" in container.call("rabbitmqadmin", "-P", "1", "list", "queues", code=1)


def test_rabbitmqadmin_takes_the_login_from_its_file(container: Container) -> None:
    """Which the cluster operator writes."""
    file = container.folder / ".rabbitmqadmin.conf"
    file.write_text(f"[default]\nusername = ann\npassword = secret\nport = {container.http}\n")
    assert "shop" in container.call("rabbitmqadmin", "list", "vhosts")
    file.unlink()


def test_plugins_are_enabled_while_the_node_runs(container: Container) -> None:
    def ports() -> set[str]:
        return set(container.call("rabbitmq-diagnostics", "-q", "listeners", "--formatter", "json").split('"'))

    assert "stomp" not in ports()
    told = container.call("rabbitmq-plugins", "enable", "rabbitmq_stomp")
    assert "The following plugins have been enabled:\n  rabbitmq_stomp\n" in told
    assert container.plugins.read_text() == "[rabbitmq_prometheus,rabbitmq_stomp].\n"
    assert "stomp" in ports()
    assert container.call("rabbitmq-plugins", "is_enabled", "rabbitmq_stomp") == "rabbitmq_stomp is enabled\n"
    listed = json.loads(container.call("rabbitmq-plugins", "list", "-q", "--formatter", "json"))["plugins"]
    assert {one["name"] for one in listed if one["enabled"] == "enabled"} == {"rabbitmq_prometheus", "rabbitmq_stomp"}
    container.call("rabbitmq-plugins", "set", "rabbitmq_prometheus")
    assert "stomp" not in ports()
    container.call("rabbitmq-plugins", "is_enabled", "rabbitmq_stomp", code=69)
    assert "not available here" in container.call("rabbitmq-plugins", "enable", "rabbitmq_tea", code=65)
    others = container.folder / "others"
    told = container.call("rabbitmq-plugins", "enable", "--offline", "rabbitmq_mqtt", plugins=str(others))
    assert "at broker restart" in told
    assert others.read_text() == "[rabbitmq_mqtt].\n"


def test_a_plugin_whose_port_is_taken_is_refused_and_clients_stay_served(container: Container) -> None:
    with socket.create_server(("127.0.0.1", 61_613)):
        told = container.call("rabbitmq-plugins", "enable", "rabbitmq_stomp", code=69)
        assert "cannot listen at 61613" in told
        # Maintenance closes the listeners of clients, and revive opens them again, without the one that was refused.
        container.call("rabbitmq-upgrade", "drain")
        container.call("rabbitmq-upgrade", "revive")
        container.call("rabbitmq-diagnostics", "-q", "check_port_listener", str(container.port))
    container.call("rabbitmq-plugins", "set", "rabbitmq_prometheus")


def test_the_cluster_operators_hooks(container: Container) -> None:
    """Its readiness probe is a connection; these are what it runs before a pod stops, and after all have started."""
    with socket.create_connection(("127.0.0.1", container.port)):
        pass
    for wait in ("await_online_quorum_plus_one", "await_online_synchronized_mirror"):
        container.call("rabbitmq-upgrade", wait, "-t", "5")
    answer = container.call("rabbitmqctl", "eval", "rabbit_nodes:reached_target_cluster_size().")
    assert answer.splitlines()[-1] == "true"
    container.call("rabbitmqctl", "enable_feature_flag", "all")
    container.call("rabbitmq-queues", "rebalance", "all")
    container.call("rabbitmq-plugins", "set", "rabbitmq_prometheus")
    assert "only answers" in container.call("rabbitmqctl", "eval", "halt().", code=64)
    container.call("rabbitmq-upgrade", "drain", "-t", "30")
    container.call("rabbitmq-upgrade", "revive")


def test_what_people_check_health_with(container: Container) -> None:
    for check in ("ping", "check_running", "check_local_alarms", "check_port_connectivity", "status"):
        container.call("rabbitmq-diagnostics", "-q", check)


def test_pytest_rabbitmq(container: Container, tmp_path: Path) -> None:
    """Its fixtures start the server, connect with pika, and clear what a test has declared by asking rabbitmqctl."""
    (tmp_path / "test_theirs.py").write_text(
        "def test_one(rabbitmq):\n"
        "    channel = rabbitmq.channel()\n"
        "    channel.queue_declare('q')\n"
        "    channel.exchange_declare('x')\n\n"
        "def test_two(rabbitmq, rabbitmq_proc):\n"
        "    assert rabbitmq_proc.list_queues() == []\n"
        "    assert 'x' not in rabbitmq_proc.list_exchanges()\n"
    )
    # The port for HTTP is this one plus 10,000: neither is one that other tests or clients' sockets may have.
    port = 9_000 + os.getpid() % 1_000
    tools = container.folder / "bin"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path,
         f"--rabbitmq-server={tools}/rabbitmq-server", f"--rabbitmq-ctl={tools}/rabbitmqctl",
         f"--rabbitmq-plugindir={tmp_path}", f"--rabbitmq-port={port}"],
        env={key: value for key, value in container.environ.items() if not key.startswith("RABBITMQ_")},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout
