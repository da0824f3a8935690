"""The server as rabbitmq-c's tools see it: what shell scripts use."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from tests.support.consumer import get_all, waiting
from tests.support.servers import Server, until

SECONDS = 60

pytestmark = pytest.mark.skipif(
    shutil.which("amqp-publish") is None, reason="no rabbitmq-c tools on this machine (Debian: amqp-tools)"
)


class Tools:
    """Runs them; `run` returns what they write."""

    def __init__(self, url: str) -> None:
        self.url = url

    def start(self, tool: str, *arguments: str, data: str = "") -> subprocess.CompletedProcess[str]:
        command = [f"amqp-{tool}", f"--url={self.url}", *arguments]
        return subprocess.run(command, input=data, capture_output=True, text=True, timeout=SECONDS, check=False)

    def run(self, tool: str, *arguments: str, data: str = "") -> str:
        done = self.start(tool, *arguments, data=data)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def tools(broker: Server) -> Tools:
    return Tools(broker.url.rstrip("/"))


def test_declare_publish_get_delete(tools: Tools, channel: Any, name: str) -> None:
    assert tools.run("declare-queue", "-q", name, "-d") == f"{name}\n"
    tools.run(
        "publish", "-r", name, "-b", "one", "-p", "-C", "text/plain", "-E", "none", "-t", "back", "-H", "colour: red"
    )
    tools.run("publish", "-r", name, data="two, from\nstandard input")
    _, properties, body = channel.basic_get(name, auto_ack=True)
    assert (body, properties.delivery_mode, properties.headers) == (b"one", 2, {"colour": "red"})
    assert (properties.content_type, properties.content_encoding, properties.reply_to) == ("text/plain", "none", "back")
    assert tools.run("get", "-q", name) == "two, from\nstandard input"
    assert tools.start("get", "-q", name).returncode == 2  # Empty.
    tools.run("publish", "-r", name, "-l", data="a\nb\nc\n")
    assert tools.run("delete-queue", "-q", name) == "3\n"


def test_consume(tools: Tools, channel: Any, name: str) -> None:
    """A command for each message, which is acknowledged if it succeeds."""
    channel.queue_declare(name)
    for body in ("one", "two", "three"):
        channel.basic_publish("", name, body)
    assert tools.run("consume", "-q", name, "-c", "2", "-p", "1", "cat") == "onetwo"
    # The tool goes without a word, and is missed a little later.
    until(lambda: waiting(channel, name) == 1, "the third is back")
    tools.start("consume", "-q", name, "-c", "1", "false")
    until(lambda: waiting(channel, name) == 1, "what was not acknowledged is back")
    assert get_all(channel, name) == [b"three"]


def test_consume_from_an_exchange(tools: Tools, channel: Any, name: str) -> None:
    """A queue of its own, which the server names, bound to an exchange."""
    channel.exchange_declare(name, "topic", arguments={"alternate-exchange": f"{name}-early"})
    channel.exchange_declare(f"{name}-early", "fanout")
    channel.queue_declare(f"{name}-early")
    channel.queue_bind(f"{name}-early", f"{name}-early")
    command = ["amqp-consume", f"--url={tools.url}", "-e", name, "-r", "a.#", "-x", "-A", "-c", "1", "cat"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consuming:
        channel.confirm_delivery()
        channel.basic_publish(name, "a.b", b"hello")
        while get_all(channel, f"{name}-early"):  # It had not bound its queue yet.
            channel.basic_publish(name, "a.b", b"hello")
        assert consuming.communicate(timeout=SECONDS)[0] == "hello"
        assert consuming.returncode == 0


def test_errors(tools: Tools, name: str) -> None:
    for tool in ("get", "consume"):
        done = tools.start(tool, "-q", name, *(["cat"] if tool == "consume" else []))
        assert done.returncode == 1
        assert f"NOT_FOUND - no queue '{name}' in vhost '/'" in done.stderr
    refused = Tools(tools.url.replace("guest:guest", "guest:wrong")).start("publish", "-r", name, "-b", "x")
    assert refused.returncode == 1 and "ACCESS_REFUSED" in refused.stderr
