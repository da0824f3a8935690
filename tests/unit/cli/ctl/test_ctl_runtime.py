"""Commands about a node that runs: what they print, what they change, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from leveret.cli.ctl.main import COMMANDS
from leveret.cli.ctl.unsupported import REFUSED
from leveret.metadata.rules.passwords import SHA256, verify_password
from leveret.node.system import logs
from leveret.protocol.tables import Field
from tests.support.control_world import FakeServer
from tests.support.rabbitmq import COMMANDS as RABBITMQ_COMMANDS
from tests.unit.cli.ctl import ctl_node
from tests.unit.cli.ctl.ctl_node import Ctl, Ended

ctl, server, wire = ctl_node.ctl, ctl_node.server, ctl_node.wire


def told(ended: Ended) -> Any:
    return json.loads(ended.out)


# -- The log -------------------------------------------------------------------------------------------------------


@pytest.fixture
def levels(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is set, without setting it for all tests of this process."""
    set_: dict[str, str] = {}
    monkeypatch.setattr(logs, "set_level", set_.__setitem__)
    return set_


def test_log_levels(ctl: Ctl, levels: dict[str, str]) -> None:
    assert ctl("set_log_level", "debug") == Ended(0, 'Setting log level to "debug" ...\n', "")
    assert set(levels.values()) == {"debug"} and "mirroring" in levels
    levels.clear()
    assert ctl("set_log_level", "warning", "--category", "mirroring").code == 0
    assert levels == {"mirroring": "warning"}
    ended = ctl("set_log_level", "foo", "-q")
    assert ended.code == 69 and ended.err.startswith("Error:\nlevel foo is not supported. Try one of debug, info")
    assert ctl("set_log_level", "info", "--category", "x").code == 65


def test_a_level_that_no_output_shows(ctl: Ctl, levels: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "is_shown", lambda level: False)
    assert "no output of this node lets through what is debug" in ctl("set_log_level", "debug").err


def test_where_the_log_is(ctl: Ctl, server: FakeServer, tmp_path: Path) -> None:
    assert ctl("log_location", "-q").out == "<stderr>\n"
    ended = ctl("log_tail", "-q")
    assert ended.code == 69 and "writes its log to <stderr>" in ended.err
    path = tmp_path / "node.log"
    path.write_text("one\ntwo\nthree\n")
    server.settings = dataclasses.replace(server.settings, log_file=str(path))
    assert ctl("log_location", "-q").out == f"{path}\n"
    assert ctl("log_location", "--all", "-q").out == f"{path}\n<stderr>\n"
    assert told(ctl("log_location", "--formatter", "json"))["paths"] == [str(path)]
    assert ctl("log_tail", "-N", "2") == Ended(0, "Last 2 log lines on node one@host ...\ntwo\nthree\n", "")
    assert ctl("log_tail", "--number", "x").code == 64
    path.unlink()
    assert "cannot read" in ctl("log_tail").err


def test_following_the_log(
    ctl: Ctl, server: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from leveret.cli.ctl.nodes import runtime

    path = tmp_path / "node.log"
    path.write_text("before\n")
    server.settings = dataclasses.replace(server.settings, log_file=str(path))
    times = iter([0.0, *[0.1] * 20, 9.0, 9.0, 9.0])

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return next(times, 9.0)

        @staticmethod
        def sleep(seconds: float) -> None:
            with path.open("a") as file:
                file.write("after\n")

    monkeypatch.setattr(runtime, "time", Clock)
    ended = ctl("log_tail_stream", "--duration", "5", "-t", "1000000")
    assert ended.code == 0
    assert ended.out.startswith("Streaming logs from node one@host ...\nafter\nafter\n")
    assert "before" not in ended.out


def test_rotating(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ctl("rotate_logs") == Ended(0, "Reopening the log files of node one@host ...\n", "")

    def fail() -> None:
        raise logs.NoLogFile("cannot write it")

    monkeypatch.setattr(logs, "reopen", fail)
    assert ctl("rotate_logs", "-q") == Ended(69, "", "Error:\ncannot write it\n")


# -- Limits and doors ----------------------------------------------------------------------------------------------


def test_limits(ctl: Ctl, server: FakeServer) -> None:
    assert server.node is not None
    alarms = server.node.alarms
    ended = ctl("set_disk_free_limit", "1GB")
    assert ended == Ended(0, "Setting disk free limit on one@host to 1GB bytes ...\n", "")
    assert alarms.disk_limit_bytes == 10**9 and alarms.disk
    assert ctl("set_disk_free_limit", "mem_relative", "1.5").out.endswith("to 1.5 times the total RAM ...\n")
    assert alarms.disk_limit_bytes > 10**9
    assert ctl("set_vm_memory_high_watermark", "0.4").out == "Setting memory threshold on one@host to 0.4 ...\n"
    assert alarms.memory_limit_bytes > 10**8
    assert ctl("set_vm_memory_high_watermark", "absolute", "2GiB").code == 0
    assert alarms.memory_limit_bytes == 2 << 30
    for wrong in (["foo"], ["absolute"], ["absolute", "x"], ["3"], ["-1"], ["0.4", "0.5"], ["nan"]):
        assert ctl("set_vm_memory_high_watermark", *wrong).code == 65, wrong
    for wrong in (["foo"], ["mem_relative"], ["mem_relative", "x"], ["1GB", "2GB"]):
        assert ctl("set_disk_free_limit", *wrong).code == 65, wrong


def test_doors(ctl: Ctl, server: FakeServer) -> None:
    text = (
        "Will suspend client connection listeners on node one@host. The node will no longer accept client connections!"
    )
    assert ctl("suspend_listeners") == Ended(0, f"{text}\n", "")
    assert server.listeners.servers == [] and server.announced == 1
    assert ctl("resume_listeners").code == ctl("resume_listeners").code == 0
    assert server.done == ["open_doors"] and len(server.listeners.servers) == 1


# -- What it is ----------------------------------------------------------------------------------------------------


def test_facts(ctl: Ctl, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from leveret import __version__

    assert ctl("server_version", "-q").out == f"{__version__}\n"
    assert told(ctl("server_version", "--formatter", "json")) == {"result": "ok", "value": __version__}
    assert ctl("tls_versions", "-q").out == "tlsv1.3\ntlsv1.2\n"
    assert "TLS_AES_256_GCM_SHA384" in ctl("cipher_suites", "-q").out.splitlines()
    assert ctl("cipher_suites", "--format", "erlang").code == 64
    assert ctl("erlang_cookie_hash", "-q").out == "0h17Ls/FRMOWwaCU6EVazQ==\n"
    assert ctl("erlang_cookie_sources", "-q").out.endswith("/cookie\n")
    assert ctl("discover_peers").out == "Discovering peers nodes ...\nNo peers discovered\n"
    monkeypatch.setattr("sys.argv", ["leveret", "server", "--port", "5672"])
    assert "--port 5672" in ctl("command_line_arguments").out
    assert ctl("resolve_hostname", "127.0.0.1", "-q").out == "127.0.0.1\n"
    ended = ctl("resolve_hostname", "no such host", "-q")
    assert ended.code == 65 and "nxdomain" in ended.err
    assert ctl("resolve_hostname", "x", "--address-family", "ipv7").code == 65
    monkeypatch.setenv("LEVERET_PORT", "1")
    monkeypatch.setenv("RABBITMQ_ERLANG_COOKIE", "verysecret")
    monkeypatch.setenv("RABBITMQ_DEFAULT_PASS", "verysecret")
    assert ctl("os_env", "-q").out == "LEVERET_PORT=1\nRABBITMQ_DEFAULT_PASS=...\nRABBITMQ_ERLANG_COOKIE=...\n"


def test_the_environment_has_no_secrets(ctl: Ctl, server: FakeServer) -> None:
    server.settings = dataclasses.replace(server.settings, cookie="verysecret", default_pass="verysecret")
    ended = ctl("environment", "--formatter", "json")
    assert "verysecret" not in ended.out
    found = told(ended)["leveret"]
    assert found["cookie"] == found["default_pass"] == "..."
    assert found["tcp_listeners"] == [{"host": "127.0.0.1", "port": 5672}]
    lines = ctl("environment", "-q").out.splitlines()
    assert "heartbeat = 60" in lines and "listeners.tcp.1 = 127.0.0.1:5672" in lines
    assert "cluster_partition_handling = pause_minority" in lines
    assert [" ".join(line.split()) for line in lines if "cluster_name" in line] == [
        "cluster_name = founded # default: leveret@localhost"
    ]


def test_memory(ctl: Ctl, server: FakeServer) -> None:
    client = server.world.client()
    client.declare("q")
    client.publish("q", b"x" * 1000)
    lines = ctl("memory_breakdown", "--unit", "bytes", "-q").out.splitlines()
    assert any(line.startswith("binary: 1") for line in lines)
    assert any(line.startswith("queue_procs: 2") for line in lines)
    assert any(line.startswith("code: 20") for line in lines)
    assert any(line.startswith("allocated_unused: 5") for line in lines)
    assert set(told(ctl("memory_breakdown", "--formatter", "json"))["other"]) == {"bytes", "percentage"}
    assert ctl("memory_breakdown", "--unit", "miles").code == 65


def test_feature_flags(ctl: Ctl) -> None:
    assert ctl("list_feature_flags").out.startswith("Listing feature flags ...\nname\tstate\nclassic_mirrored_queue_v")
    assert told(ctl("list_feature_flags", "name", "stability", "--formatter", "json"))[0]["stability"] == "stable"
    assert ctl("enable_feature_flag", "all") == Ended(0, "Enabling all feature flags ...\n", "")
    assert ctl("enable_feature_flag", "quorum_queue").code == 0
    text = "Error:\nThis feature flag is not supported by node one@host\n"
    assert ctl("enable_feature_flag", "nosuch") == Ended(64, 'Enabling feature flag "nosuch" ...\n', text)


def test_permissions_everywhere(ctl: Ctl, server: FakeServer) -> None:
    ctl("add_vhost", "two")
    assert ctl("set_permissions_globally", "guest", "a", "b", "c").code == 0
    permissions = server.world.metadata.permissions
    assert {vhost for (user, vhost), one in permissions.items() if tuple(one) == ("a", "b", "c")} == {"/", "two"}


def test_hash_password(ctl: Ctl) -> None:
    hashed = ctl("hash_password", "secret").out.strip()
    assert verify_password("secret", hashed, SHA256)
    assert "secret" not in ctl("hash_password", "secret", "more").err


# -- Queues --------------------------------------------------------------------------------------------------------


def test_peek(ctl: Ctl, server: FakeServer) -> None:
    client = server.world.client()
    client.declare("q")
    client.publish("q", b"first")
    client.publish("q", b"second" * 100)
    banner = "Peeking at queue q at position 1 on node one@host ...\n"
    ended = ctl("peek", "q", "1")
    assert ended.out.startswith(f"{banner}keys\tvalues\n")
    assert "payload (max 64 bytes)\tfirst\npayload_bytes\t5\n" in ended.out
    found = told(ctl("peek", "q", "2", "--formatter", "json"))
    assert found["result"] == "ok" and found["message"]["payload_bytes"] == 600
    assert found["message"]["routing_keys"] == ["q"]
    assert ctl("peek", "q", "3", "-q").err == "Error:\nTarget queue does not have a message at that position\n"
    assert ctl("peek", "no", "1", "-q").err == "Error:\nTarget queue was not found in virtual host '/'\n"
    assert ctl("peek", "q", "0").code == ctl("peek", "q", "x").code == 65
    assert told(ctl("list_queues", "--formatter", "json")) == [{"name": "q", "messages": 2}]


def test_quorum_status(ctl: Ctl, server: FakeServer) -> None:
    client = server.world.client()
    client.declare("classic")
    client.declare("qq", durable=True, arguments={"x-queue-type": Field("S", "quorum")})
    ended = ctl("quorum_status", "qq", "-q")
    assert ended.out == "Node Name\tRaft State\tMembership\tTerm\none@host\tleader\tvoter\t1\n"
    assert ctl("quorum_status", "classic", "-q").err == "Error:\nCannot get quorum status of a classic queue\n"
    assert ctl("quorum_status", "nosuch", "-q") == Ended(69, "", "Error:\nnot_found\n")


def test_stream_status(ctl: Ctl, server: FakeServer) -> None:
    client = server.world.client()
    client.declare("classic")
    client.declare("s", durable=True, arguments={"x-queue-type": Field("S", "stream")})
    assert ctl("stream_status", "s", "-q").out == "role\tnode\tsynchronised\tepoch\nwriter\tone@host\ttrue\t1\n"
    assert ctl("stream_status", "classic", "-q").code == ctl("stream_status", "nosuch", "-q").code == 69


def test_queues_that_do_not_answer(ctl: Ctl, server: FakeServer) -> None:
    server.world.client().declare("q")
    banner = "Listing unresponsive queues for vhost / ...\n"
    assert ctl("list_unresponsive_queues") == Ended(0, banner, "")
    assert ctl("list_unresponsive_queues", "colour").code == 64


# -- The rest ------------------------------------------------------------------------------------------------------


def test_waiting_for_a_process(ctl: Ctl, server: FakeServer, tmp_path: Path) -> None:
    running = "Leveret is running on node 'one@host'\n"
    assert ctl("wait", "--pid", str(os.getpid()), "-q").out == running
    path = tmp_path / "pid"
    path.write_text(f"{os.getpid()}\n")
    assert ctl("wait", str(path), "-q").out == running
    ended = ctl("wait", str(tmp_path / "none"), "-t", "0.2")
    assert ended.code == 75 and "to appear" in ended.out
    assert ctl("wait", "-q").code == 64
    server.prepared, server.starting = False, object()
    assert ctl("wait", "--pid", "4194305", "-q").err == "Error:\nprocess 4194305 is not running\n"


def test_a_report_has_it_all(ctl: Ctl, server: FakeServer) -> None:
    server.world.client().declare("in the report")
    ended = ctl("report")
    assert ended.code == 0
    parts = ("Status of node one@host", "Cluster status of", "heartbeat = 60", "channels", "in the report")
    for part in (*parts, "bindings", "Listing permissions", "Listing policies", "End of server status report."):
        assert part in ended.out, part


def test_terms_of_erlang_and_elixir(ctl: Ctl, server: FakeServer) -> None:
    server.world.client().declare('q"x')
    assert ctl("list_queues", "--formatter", "erlang", "-q").out == '[[{name,<<"q\\"x">>},{messages,0}]]\n'
    assert ctl("list_queues", "--formatter", "string", "-q").out == '[name: "q\\"x", messages: 0]\n'
    assert ctl("list_users", "--formatter", "inspect", "-q").out == '[\n[user: "guest", tags: ["administrator"]]\n]\n'
    assert ctl("ping", "--formatter", "erlang", "-q").out == '<<"Ping succeeded">>\n'
    assert ctl("listeners", "--formatter", "erlang", "-q").out.startswith('[{result,<<"ok">>},{node,<<"one@host">>},')


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_offered_is_refused_by_name(ctl: Ctl, name: str) -> None:
    ended = ctl(name, "anything")
    assert ended == Ended(64, "", f"Error: '{name}' is not offered: {REFUSED[name]}\n")
    assert name not in COMMANDS


def test_the_refused_are_documented() -> None:
    text = (Path(__file__).parents[4] / "docs" / "differences.md").read_text()
    assert [name for name in REFUSED if f"`{name}`" not in text] == []


def test_every_command_of_rabbitmq_is_known() -> None:
    """Those of rabbitmqctl, -diagnostics, -queues and -upgrade 3.10: each works, or is refused by name."""
    names = RABBITMQ_COMMANDS.read_text().split()
    assert len(names) > 140
    assert [name for name in names if name not in COMMANDS and name not in REFUSED] == []
