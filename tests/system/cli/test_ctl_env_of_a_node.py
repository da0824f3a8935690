"""Limits and alarms that are set while a node has clients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pika
import pytest

from leveret.cli.ctl.main import main
from tests.support.servers import Server, until
from tests.system.conftest import Start


def tool(node: Server) -> Callable[..., tuple[int, str]]:
    address = ["--host", "127.0.0.1", "--port", str(node.cluster_port), "--cookie-file", str(node.data / "cookie")]

    def run(*words: str) -> tuple[int, str]:
        complaint = StringIO()
        with redirect_stdout(StringIO()), redirect_stderr(complaint):
            code = main(["--quiet", *address, *words])
        return code, complaint.getvalue()

    return run


def test_new_connections_have_the_new_limits(start: Start) -> None:
    node = start("")
    run = tool(node)
    old = node.connect()
    assert run("set_env", "channel_max", "3") == (0, "")
    assert old._impl.params.channel_max > 3
    assert len([old.channel() for _ in range(5)]) == 5, "what was agreed on holds"
    new = node.connect()
    for _ in range(3):
        new.channel()
    with pytest.raises(pika.exceptions.NoFreeChannels):
        new.channel()
    assert run("set_env", "connection_max", "2") == (0, "")
    with pytest.raises(pika.exceptions.AMQPError):
        node.connect()
    assert run("clear_env", "connection_max") == (0, "")
    node.connect()


def test_a_drill(start: Start) -> None:
    node = start("")
    run = tool(node)
    connection = node.connect()
    channel = connection.channel()
    channel.queue_declare("q")
    told: list[str] = []
    connection.add_on_connection_blocked_callback(lambda _, frame: told.append(frame.method.reason))
    connection.add_on_connection_unblocked_callback(lambda _, frame: told.append("unblocked"))
    assert run("set_alarm", "memory") == (0, "")
    channel.basic_publish("", "q", b"x")
    until(lambda: connection.process_data_events(0.05) or told, "connection.blocked")
    assert told == ["low on memory"]
    assert node.connect().channel().queue_declare("q", passive=True).method.message_count == 0
    assert run("clear_alarm", "memory") == (0, "")
    until(lambda: connection.process_data_events(0.05) or told[1:], "connection.unblocked")
    assert channel.queue_declare("q", passive=True).method.message_count == 1
    assert "memory alarm is set by hand" in node.log()
    assert "vm_memory_high_watermark set." not in node.log()
