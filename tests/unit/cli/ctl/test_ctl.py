"""Finding the node, reading the line, helping, and what is said when there is no answer."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from leveret import __version__
from leveret.cli.ctl.base import session
from leveret.cli.ctl.base.parse import parse
from leveret.cli.ctl.main import ALL, COMMANDS
from leveret.links import link
from leveret.node.sockets.peer_socket import CallFailed
from leveret.node.system import local_registry
from tests.support.control_world import FakeServer
from tests.unit.cli.ctl import ctl_node
from tests.unit.cli.ctl.ctl_node import Ctl, Ended, Wire

ctl, server, wire = ctl_node.ctl, ctl_node.server, ctl_node.wire

ROOT = Path(__file__).parents[4]


# -- Finding the node ----------------------------------------------------------------------------------------------


def test_without_options_the_only_node_is_found_with_its_cookie(ctl: Ctl, wire: Wire) -> None:
    ended = ctl("ping")
    assert ended == Ended(
        0,
        "Will ping one@host. This only checks if the OS process is running and its cluster port answers. "
        "Timeout: 60000 ms.\nPing succeeded\n",
        "",
    )
    assert wire.cookies == [b"the secret"]
    assert wire.addresses == [("127.0.0.1", 25672)]


@pytest.mark.parametrize("options", [["-n", "one@host"], ["--node=one"], ["-n", "one@127.0.0.1:25672"]])
def test_by_name(ctl: Ctl, options: list[str]) -> None:
    assert ctl(*options, "-q", "ping") == Ended(0, "Ping succeeded\n", "")
    assert ctl("ping", *options, "-q").code == 0


def test_the_name_may_come_from_the_environment(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVERET_NODE_NAME", "two@host")
    ended = ctl("ping")
    assert ended.code == 69
    assert "no node two@host of this user" in ended.err


def test_a_name_that_nobody_has_tells_who_there_is(ctl: Ctl, wire: Wire) -> None:
    ended = ctl("-n", "two@host", "ping")
    assert (ended.code, ended.out) == (69, "")
    assert ended.err.startswith(
        "Error: no node two@host of this user runs on this machine; there is one@host (cluster port 25672)"
    )
    assert "leveretctl --host HOST --port CLUSTERPORT --cookie-file FILE" in ended.err
    assert wire.asked == []


def test_by_address(ctl: Ctl, wire: Wire, tmp_path: Path) -> None:
    file = tmp_path / "other cookie"
    file.write_text("another")
    file.chmod(0o600)
    ended = ctl("--host", "10.0.0.7", "--port", "1234", "--cookie-file", str(file), "check_running", "-q")
    assert ended == Ended(0, "Leveret on node one@host is fully booted and running\n", "")
    assert set(wire.addresses) == {("10.0.0.7", 1234)}
    assert set(wire.cookies) == {b"another"}


def test_by_the_address_of_a_node_of_this_machine(ctl: Ctl) -> None:
    """Its cookie is found, and it says its name."""
    assert ctl("--port", "25672", "ping").out.startswith("Will ping one@host.")


def test_files_for_tls_that_are_missing(ctl: Ctl, wire: Wire) -> None:
    files = ["--tls-cert-file", "a.pem", "--tls-key-file", "b.pem", "--tls-ca-cert-file", "c.pem"]
    ended = ctl("ping", *files)
    assert ended.code == 78
    assert ended.err.startswith("Error: cannot use a.pem, b.pem and c.pem for TLS: No such file")
    assert wire.asked == []


def test_another_node_than_was_expected(ctl: Ctl, tmp_path: Path) -> None:
    ended = ctl("-n", "two@host", "--port", "1234", "--cookie-file", str(tmp_path / "cookie"), "ping")
    assert (ended.code, ended.err) == (69, "Error: the node at 127.0.0.1:1234 is one@host, not two@host\n")


def test_a_cookie_from_the_environment(ctl: Ctl, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEVERET_COOKIE", " from there ")
    assert ctl("ping").code == 0
    assert wire.cookies == [b"from there"]


def test_a_cookie_that_is_open_to_others(ctl: Ctl, wire: Wire, tmp_path: Path) -> None:
    (tmp_path / "cookie").chmod(0o644)
    ended = ctl("ping")
    assert ended.code == 78
    assert "close it with: chmod 600" in ended.err
    assert wire.asked == []


def test_nothing_runs_and_nothing_is_known(ctl: Ctl, wire: Wire) -> None:
    local_registry.withdraw("one@host")
    ended = ctl("ping")
    assert ended.code == 69
    assert "Start a node:            leveret server" in ended.err
    assert wire.asked == []


def test_a_cookie_of_the_default_node_is_enough(ctl: Ctl, wire: Wire, tmp_path: Path) -> None:
    local_registry.withdraw("one@host")
    file = tmp_path / ".leveret" / "leveret@localhost" / "cookie"
    file.parent.mkdir(parents=True)
    file.write_text("default")
    file.chmod(0o600)
    assert ctl("ping").code == 0
    assert wire.addresses[-1] == ("127.0.0.1", 25672)
    assert wire.cookies[-1] == b"default"


# -- No answer -----------------------------------------------------------------------------------------------------


def test_nobody_listens(ctl: Ctl, wire: Wire) -> None:
    wire.failures = [CallFailed("unreachable", "Connection refused")]
    ended = ctl("list_queues")
    assert (ended.code, ended.out) == (69, "")
    assert ended.err.startswith("Error: unable to perform an operation on node 'one@host'. Please see diagnostics")
    assert "attempted to contact: 127.0.0.1:25672" in ended.err
    assert "Connection refused" in ended.err
    assert "start the node, or use --port if its port is not 25672" in ended.err
    assert "nodes of this user on this machine: one@host (cluster port 25672)" in ended.err


def test_the_wrong_cookie(ctl: Ctl, wire: Wire, tmp_path: Path) -> None:
    wire.failures = [CallFailed("refused", "authentication failed: the two nodes have different cookies")]
    ended = ctl("list_queues")
    assert ended.code == 69
    assert "was changed after the node was started" in ended.err  # It is the node's own.
    assert f"cookie from {tmp_path / 'cookie'}" in ended.err
    assert "the secret" not in ended.err


def test_time_is_over(ctl: Ctl, wire: Wire) -> None:
    wire.failures = [CallFailed(link.TIMEOUT, "no answer within 5 s")]
    ended = ctl("-t", "5", "list_queues")
    assert ended == Ended(75, "", "Error: operation list_queues on node one@host timed out. Timeout value used: 5000\n")
    assert ctl("-t", "0", "list_queues").code == 75


def test_a_command_that_ends_its_own_connection(ctl: Ctl, wire: Wire) -> None:
    """The links of the old life are closed in a reset; the outcome is asked for on another."""
    assert ctl("stop_app").code == 0
    wire.failures = [CallFailed("closed", "the connection was closed")]
    assert ctl("reset") == Ended(0, "Resetting node one@host ...\n", "")
    assert [asked["command"] for asked in wire.asked] == ["stop_app", "reset", "outcome"]
    assert wire.asked[2]["arguments"]["ticket"] == wire.asked[1]["ticket"]
    assert wire.server.done == ["stop_app", ("reset", False)]


def test_a_node_that_was_started_anew_knows_of_no_outcome(ctl: Ctl, wire: Wire) -> None:
    wire.failures = [CallFailed("closed", "the connection was closed")]
    wire.server.control.outcomes = _Forgetful()
    ended = ctl("stop_app")
    assert ended.code == 69
    assert "does not know that command" in ended.err


def test_long_work_shows_how_far_it_is(ctl: Ctl, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.Session, "pause", lambda *_: wire.server.may_leave.set())
    assert ctl("drain").out == (
        "Will put node one@host into maintenance mode. The node will no longer serve any client traffic!\n"
        "0 of 2 queues handed over to mirrors (0 %)\n"
        "Node one@host is in maintenance: 0 connections closed, 0 queues handed over to mirrors, 0 moved, 0 stay\n"
    )


class _Forgetful(dict[str, bytes | None]):
    def __contains__(self, key: object) -> bool:
        return False


# -- The line ------------------------------------------------------------------------------------------------------


def usage(name: str) -> str:
    return f"leveretctl [--node <node>] [--quiet] {name}"


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["list_queues", "foo", "name", "bar"], 64, "Error (argument validation): Info key(s) bar,foo are not"),
        (["add_user"], 64, "Error (argument validation): not enough arguments.\nArguments given:\n\tadd_user\n"),
        (["list_users", "x"], 64, "Error (argument validation): too many arguments.\n"),
        (["list_queues", "--bo"], 64, "Error (argument validation): Invalid options for this command:\n--bo : \n"),
        (["list_queues", "-p"], 64, "Error (argument validation): Invalid options for this command:\n-p : \n"),
        (["-t", "x", "list_queues"], 64, "Error (argument validation): Invalid options for this command:\n-t : x\n"),
        (["--port", "0", "ping"], 64, "Error (argument validation): Invalid options for this command:\n--port : 0\n"),
        (
            ["set_policy", "--priority", "x", "a", "b", "{}"],
            64,
            "Error (argument validation): Invalid options for this command:\n--priority : x\n",
        ),
        (["list_queues", "--formatter", "yaml"], 64, "Error (argument validation): unknown formatter 'yaml'"),
        (["join_cluster", "nowhere"], 64, "Error (argument validation): 'nowhere' is not a node"),
        (["join_cluster", "a@b:x"], 64, "Error (argument validation): 'a@b:x' has no valid port"),
        (["join_cluster", "--ram", "a@b"], 64, "Error (argument validation): every node stores"),
        (["forget_cluster_node", "--offline", "a@b"], 64, "Error (argument validation): --offline is not offered"),
        (["rename_cluster_node", "a", "b", "c"], 64, "Error (argument validation): not enough arguments."),
        (["await_online_nodes", "x"], 65, "Error (argument validation): Bad argument: Argument must be a positive"),
        (["await_online_nodes", "0"], 65, "Error (argument validation): Bad argument: Argument must be a positive"),
        (["add_user", "", "x"], 65, "Error (argument validation): Bad argument: user cannot be an empty string"),
        (["--tls-cert-file", "x", "ping"], 64, "Error (argument validation): TLS needs all of"),
    ],
)
def test_wrong_use(ctl: Ctl, wire: Wire, arguments: list[str], code: int, text: str) -> None:
    ended = ctl(*arguments)
    assert (ended.code, ended.out) == (code, "")
    assert ended.err.startswith(text)
    assert f"\nUsage\n\n{usage('')}" in ended.err
    assert wire.asked == []


def test_unknown_commands(ctl: Ctl) -> None:
    assert ctl("list_queue") == Ended(64, "", "\nCommand 'list_queue' not found.\nDid you mean 'list_queues'?\n\n")
    assert ctl("eval", "1").code == 64
    assert ctl("help", "nonsense").code == 64


def test_a_password_is_not_repeated_in_an_error(ctl: Ctl) -> None:
    ended = ctl("add_user", "ann", "secret", "more")
    assert ended.code == 64
    assert "\tadd_user ann ...\n" in ended.err
    assert "secret" not in ended.err


def test_after_two_dashes_nothing_is_an_option(ctl: Ctl, server: FakeServer) -> None:
    assert ctl("-q", "set_user_tags", "guest", "--", "-p").code == 0
    assert server.world.metadata.users["guest"].tags == ("-p",)


def test_the_app_is_stopped(ctl: Ctl) -> None:
    assert ctl("stop_app") == Ended(0, "Stopping leveret application on node one@host ...\n", "")
    assert ctl("list_vhosts") == Ended(
        64,
        "",
        "Error: this command requires the 'leveret' app to be running on the target node. "
        "Start it with 'leveretctl start_app'.\n"
        "Arguments given:\n\tlist_vhosts\n\nUsage\n\n"
        f"{usage('list_vhosts [--no-table-headers] [<column> ...] [--timeout <timeout>]')}\n",
    )
    assert ctl("start_app") == Ended(0, "Starting node one@host ...\n", "")


# -- Help ----------------------------------------------------------------------------------------------------------


def test_help_teaches(ctl: Ctl, wire: Wire) -> None:
    ended = ctl("help")
    assert ended == ctl("--help")
    assert (ended.code, ended.err) == (0, "")
    for command in ALL:
        assert f"   {command.name} " in ended.out
    for word in ("Examples", "Exit codes", "cluster port", "--cookie-file"):
        assert word in ended.out
    assert wire.asked == []


def test_without_a_command_the_help_is_an_error(ctl: Ctl) -> None:
    ended = ctl()
    assert (ended.code, ended.out) == (64, "")
    assert "Available commands:" in ended.err


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_an_example(ctl: Ctl, name: str) -> None:
    ended = ctl("help", name)
    assert ended == ctl(name, "--help") or name == "help"
    assert ended.code == 0
    assert usage(name) in ended.out
    assert f"leveretctl{' -n' if 'leveretctl -n' in COMMANDS[name].example else ''}" in COMMANDS[name].example
    assert name in COMMANDS[name].example
    assert all(column in ended.out for column in COMMANDS[name].columns)


def test_the_example_of_each_command_is_one(ctl: Ctl) -> None:
    """Each is understood: the command exists, and takes what it is given."""
    for command in ALL:
        for part in command.example.replace("leveret server &", "").split("&&"):
            words = shlex.split(re.split(r" [<>|] ", part)[0])
            if words[0] == "mv":
                continue
            assert words[0] == "leveretctl"
            name, _ = parse(words[1:], COMMANDS)
            assert name in COMMANDS


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from leveret.cli.ctl import main\n"
        "heavy = {'asyncio', 'ssl', 'hashlib', 'dataclasses', 'leveret.node.sockets.peer_socket'}; "
        "print(*sorted(heavy & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == ""


def test_version(ctl: Ctl, wire: Wire) -> None:
    assert ctl("version") == Ended(0, f"{__version__}\n", "")
    assert wire.asked == []
