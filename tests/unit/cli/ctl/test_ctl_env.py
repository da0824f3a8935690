"""Settings and alarms that are changed while a node runs."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest

from tests.support.control_world import FakeServer
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
        ("channelmax", "1", f"channelmax is not a setting. While a node runs, these can be changed: {LISTED}"),
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
