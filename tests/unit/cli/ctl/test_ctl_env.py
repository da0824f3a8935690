"""Settings and alarms that are changed while a node runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, Final

import pika
import pytest

from leveret.cli.ctl.main import main
from tests.conftest import Start
from tests.support.control_world import FakeServer
from tests.support.servers import Server, until
from tests.unit.cli.ctl import ctl_node
from tests.unit.cli.ctl.ctl_node import Ctl, Ended

ctl, server, wire = ctl_node.ctl, ctl_node.server, ctl_node.wire

LISTED: Final = "channel_max, connection_max, consumer_timeout, handshake_timeout, heartbeat, loopback_users"


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("channel_max", "100", "channel_max", 100),
        ("channel_max", "0", "channel_max", 0),
        ("connection_max", "infinity", "connection_max", None),
        ("consumer_timeout", "5m", "consumer_timeout_ms", 300_000),
        ("handshake_timeout", "500", "handshake_timeout_ms", 500),
        ("heartbeat", "65535", "heartbeat_s", 65_535),
        ("loopback_users", "none", "loopback_users", []),
        ("loopback_users", "guest, admin", "loopback_users", ["admin", "guest"]),
    ],
)
def test_a_setting(ctl: Ctl, server: FakeServer, name: str, value: str, field: str, expected: Any) -> None:
    before = json.loads(ctl("environment", "--formatter", "json").out)["leveret"][field]
    assert before != expected or name == "connection_max"
    assert ctl("set_env", name, value) == Ended(0, f'Setting "{name}" to "{value}" on node one@host ...\n', "")
    assert json.loads(ctl("environment", "--formatter", "json").out)["leveret"][field] == expected
    assert ctl("clear_env", name, "-q") == Ended(0, "", "")
    assert json.loads(ctl("environment", "--formatter", "json").out)["leveret"][field] == before


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("channel_max", "65536", "channel_max must be a whole number from 0 to 65535"),
        ("channel_max", "-1", "channel_max must be a whole number from 0 to 65535"),
        ("heartbeat", "", "heartbeat must be a number of seconds from 0 to 65535"),
        ("loopback_users", "guest,,x", "loopback_users must be names of users with commas between them"),
        ("loopback_users", "x," * 1_000 + "x", "loopback_users must be names of users with commas between them"),
        ("loopback_users", "x" * 100_001, "loopback_users: the value is too long"),
        ("frame_max", "8192", "frame_max can be changed only in the configuration file, before a start"),
        ("listeners.tcp.1", "5672", "listeners.tcp.1 can be changed only in the configuration file"),
        ("channelmax", "1", f"channelmax is no setting. While a node runs, these can be changed: {LISTED}"),
        ("vm_memory_high_watermark.relative", "1", "see: leveretctl help set_vm_memory_high_watermark"),
        ("disk_free_limit.absolute", "1", "see: leveretctl help set_disk_free_limit"),
        ("log.console.level", "debug", "see: leveretctl help set_log_level"),
    ],
)
def test_what_is_refused(ctl: Ctl, server: FakeServer, name: str, value: str, text: str) -> None:
    before = server.settings
    ended = ctl("set_env", name, value, "-q")
    assert ended.code == 65 and text in ended.err
    assert server.settings is before


def test_alarms(ctl: Ctl, server: FakeServer) -> None:
    assert server.node is not None
    assert ctl("set_alarm", "memory").code == ctl("set_alarm", "disk", "-q").code == 0
    assert server.node.alarms.own() == {"memory", "disk"}
    assert ctl("check_local_alarms", "-q").code != 0
    server.node.alarms.memory_limit_bytes = 10  # It is short in fact.
    assert "the memory alarm stays set" in ctl("clear_alarm", "memory", "-q").err
    assert ctl("clear_alarm", "disk", "-q") == Ended(0, "", "")
    assert server.node.alarms.own() == {"memory"}
    assert ctl("set_alarm", "cpu", "-q") == Ended(65, "", "Error:\nan alarm is one of memory or disk\n")


def test_eval_says_what_to_do_instead(ctl: Ctl) -> None:
    assert "leveretctl help set_env, set_alarm" in ctl("eval", "application:set_env(rabbit, channel_max, 1).").err


# -- Of real nodes -------------------------------------------------------------------------------------------------


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
