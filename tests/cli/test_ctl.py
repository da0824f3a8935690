"""leveretctl against a node that is played: the whole way but the socket.

Output and exit codes are those of rabbitmqctl 3.10.8, with our names.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from leveret import __version__
from leveret.amqp import methods as m
from leveret.amqp.tables import Field
from leveret.cli.ctl import session
from leveret.cli.ctl.main import ALL, COMMANDS, main
from leveret.cluster import link
from leveret.node import registry
from leveret.node.registry import Entry
from leveret.node.wire import CallFailed
from tests.node.control_world import FakeServer, cluster

ROOT = Path(__file__).parent.parent.parent


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Ctl = Callable[..., Ended]


class Wire:
    """In place of `wire.call`: what was asked, and an error to be raised instead of an answer."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.asked: list[dict[str, Any]] = []
        self.failures: list[CallFailed] = []  # One for each call, until there is none left.
        self.cookies: list[bytes] = []
        self.addresses: list[tuple[str, int]] = []

    async def call(
        self,
        address: tuple[str, int],
        kind: int,
        payload: bytes,
        timeout_s: float,
        me: link.Identity,
        cookie: bytes,
        tls: object = None,
    ) -> bytes:
        self.asked.append(json.loads(payload))
        self.cookies.append(cookie)
        self.addresses.append(address)
        if self.failures:
            failure = self.failures.pop(0)
            if failure.reason == "closed":  # After the question was understood.
                await self.server.control.answer(payload)
            raise failure
        return await self.server.control.answer(payload)


@pytest.fixture
def server() -> FakeServer:
    return cluster("one@host")[0]


@pytest.fixture
def wire(server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Wire:
    """A node that leveretctl finds by itself."""
    wire = Wire(server)
    monkeypatch.setattr(session, "call", wire.call)
    cookie = tmp_path / "cookie"
    cookie.write_text("the secret\n")
    cookie.chmod(0o600)
    registry.announce(Entry("one@host", os.getpid(), "127.0.0.1", 25672, str(tmp_path)))
    return wire


@pytest.fixture
def ctl(wire: Wire, capsys: pytest.CaptureFixture[str]) -> Ctl:
    def run(*arguments: str) -> Ended:
        code = main(arguments)
        return Ended(code, *capsys.readouterr())

    return run


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
    registry.withdraw("one@host")
    ended = ctl("ping")
    assert ended.code == 69
    assert "Start a node:            leveret server" in ended.err
    assert wire.asked == []


def test_a_cookie_of_the_default_node_is_enough(ctl: Ctl, wire: Wire, tmp_path: Path) -> None:
    registry.withdraw("one@host")
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
    assert "start the node, or name another port than 25672 with --port" in ended.err
    assert "nodes of this user on this machine: one@host (cluster port 25672)" in ended.err


def test_the_wrong_cookie(ctl: Ctl, wire: Wire, tmp_path: Path) -> None:
    wire.failures = [CallFailed("refused", "authentication failed: the two nodes have different cookies")]
    ended = ctl("list_queues")
    assert ended.code == 69
    assert "name the cookie file of that node with --cookie-file" in ended.err
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
    assert "knows nothing of that command" in ended.err


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
        (["list_users", "-p", "v"], 64, "Error (argument validation): Invalid options for this command:\n-p : v\n"),
        (["-t", "x", "list_queues"], 64, "Error (argument validation): Invalid options for this command:\n-t : x\n"),
        (["--port", "0", "ping"], 64, "Error (argument validation): Invalid options for this command:\n--port : 0\n"),
        (
            ["set_policy", "--priority", "x", "a", "b", "{}"],
            64,
            "Error (argument validation): Invalid options for this command:\n--priority : x\n",
        ),
        (["list_queues", "--formatter", "erlang"], 64, "Error (argument validation): unknown formatter 'erlang'"),
        (["join_cluster", "nowhere"], 64, "Error (argument validation): 'nowhere' names no node"),
        (["join_cluster", "a@b:x"], 64, "Error (argument validation): 'a@b:x' has no port"),
        (["join_cluster", "--ram", "a@b"], 64, "Error (argument validation): every node keeps"),
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
    for word in ("Examples", "Exit codes", "management port", "--cookie-file"):
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
    import shlex

    from leveret.cli.ctl.parse import parse

    for command in ALL:
        for part in command.example.replace("leveret server &", "").split("&&"):
            words = shlex.split(part.split("<")[0] if " < " in part else part)
            assert words[0] == "leveretctl"
            name, _ = parse(words[1:], COMMANDS)
            assert name in COMMANDS


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from leveret.cli.ctl import main\n"
        "print(*sorted({'asyncio', 'ssl', 'hashlib', 'dataclasses', 'leveret.node.wire'} & set(sys.modules)))"
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


# -- Output --------------------------------------------------------------------------------------------------------


def fill(server: FakeServer) -> None:
    client = server.world.client()
    client.declare("plain", durable=True)
    client.declare("tab\there")
    server.world.apply(_bind("plain", {"x-match": Field("S", 'al"l'), "n": Field("I", 1), "b": Field("t", True)}))
    client.publish("plain")


def _bind(queue: str, arguments: dict[str, Field]) -> Any:
    from leveret.cluster.commands import Bind

    return Bind("/", "amq.headers", "queue", queue, "k", arguments)


def test_tables(ctl: Ctl, server: FakeServer) -> None:
    fill(server)
    banner = "Timeout: 60.0 seconds ...\nListing queues for vhost / ...\n"
    table = "plain\t1\ntab\there\t0\n"
    assert ctl("list_queues") == Ended(0, f"{banner}name\tmessages\n{table}", "")
    assert ctl("list_queues", "-q").out == f"name\tmessages\n{table}"
    assert ctl("list_queues", "-s").out == table
    assert ctl("list_queues", "--no-table-headers").out == banner + table
    assert ctl("list_queues", "name,durable", "-s").out == "plain\ttrue\ntab\there\tfalse\n"
    assert ctl("list_queues", "-p", "nowhere", "-t", "5").out == (
        "Timeout: 5.0 seconds ...\nListing queues for vhost nowhere ...\n"
    )


def test_json(ctl: Ctl, server: FakeServer) -> None:
    fill(server)
    ended = ctl("list_queues", "--formatter", "json")
    assert ended.out == '[\n{"name":"plain","messages":1}\n,{"name":"tab\\there","messages":0}\n]\n'
    ended = ctl("list_bindings", "arguments", "--formatter=json_stream")
    assert ended.out == (
        '{"arguments":[]}\n{"arguments":[]}\n'
        '{"arguments":[["x-match","longstr","al\\"l"],["n","signedint",1],["b","bool",true]]}\n'
    )
    assert json.loads(ctl("cluster_status", "--formatter", "json").out)["running_nodes"] == ["one@host"]
    assert ctl("ping", "--formatter", "json").out == '{"message":"Ping succeeded"}\n'
    assert ctl("set_user_tags", "guest", "--formatter", "json").out == '{"node":"one@host","result":"ok"}\n'
    assert ctl("list_users", "--formatter", "json").out == '[\n{"user":"guest","tags":[]}\n]\n'


def test_csv_and_pretty_tables(ctl: Ctl, server: FakeServer) -> None:
    fill(server)
    assert ctl("list_bindings", "routing_key", "arguments", "--formatter", "csv").out == (
        '"routing_key","arguments"\n"plain","[]"\n"tab\there","[]"\n'
        '"k","[{""x-match"",""al\\""l""},{""n"",1},{""b"",true}]"\n'
    )
    assert ctl("list_users", "--formatter", "pretty_table").out == (
        "Listing users ...\n"
        "┌───────┬─────────────────┐\n"
        "│ user  │ tags            │\n"
        "├───────┼─────────────────┤\n"
        "│ guest │ [administrator] │\n"
        "└───────┴─────────────────┘\n"
    )


def test_arguments_in_a_table(ctl: Ctl, server: FakeServer) -> None:
    fill(server)
    assert ctl("list_bindings").out == (
        "Listing bindings for vhost /...\n"
        "source_name\tsource_kind\tdestination_name\tdestination_kind\trouting_key\targuments\n"
        "\texchange\tplain\tqueue\tplain\t[]\n"
        "\texchange\ttab\there\tqueue\ttab\there\t[]\n"
        'amq.headers\texchange\tplain\tqueue\tk\t[{"x-match","al\\"l"},{"n",1},{"b",true}]\n'
    )


def test_a_name_cannot_forge_a_row(ctl: Ctl, server: FakeServer) -> None:
    server.world.client().declare("a")
    from leveret.cluster.commands import Bind

    server.world.apply(Bind("/", "amq.direct", "queue", "a", "x\nforged\x1b[2J"))
    assert ctl("list_bindings", "routing_key", "-s").out == "a\nx\\012forged\\033[2J\n"


def test_a_list_in_pages(ctl: Ctl, server: FakeServer, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.node.control_listings.PAGE", 2)
    client = server.world.client()
    for number in range(5):
        client.declare(f"q{number}")
    assert ctl("list_queues", "-s", "name").out == "q0\nq1\nq2\nq3\nq4\n"
    assert len(wire.asked) == 3


def test_a_node_that_does_not_answer_is_told_of(ctl: Ctl, server: FakeServer) -> None:
    server.all.add("two@host")
    server.all.cut_off.add("two@host")
    ended = ctl("list_connections")
    assert ended.code == 0
    assert ended.err == "Warning: node two@host did not answer; what only it knows is not shown\n"


def test_status_for_people(ctl: Ctl, server: FakeServer) -> None:
    server.world.client().declare("q")
    shown = ctl("status").out
    assert shown.startswith("Status of node one@host ...\nRuntime\n\nOS PID: ")
    assert "\n\nTotals\n\nConnection count: 1\nQueue count: 1\nVirtual host count: 1\n\nListeners\n" in shown
    shown = ctl("cluster_status").out
    assert shown.startswith(
        "Cluster status of node one@host ...\nBasics\n\nCluster name: founded\nLeader: one@host\nMajority: in contact\n"
        "\nDisk Nodes\n\none@host\n\nRunning Nodes\n\none@host\n\nVersions\n\none@host: Leveret "
    )
    assert "Alarms\n\n(none)\n" in shown
    assert server.node is not None
    server.node.alarms.memory = True
    server.node.cluster.has_majority = False
    shown = ctl("cluster_status").out
    assert "Alarms\n\nMemory alarm on node one@host\n" in shown
    assert "Majority: NOT in contact" in shown


# -- Commands ------------------------------------------------------------------------------------------------------


def test_users(ctl: Ctl, server: FakeServer, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = ctl("add_user", "ann", "secret")
    assert ended == Ended(
        0,
        'Adding user "ann" ...\nDone. Don\'t forget to grant the user permissions to some virtual hosts! '
        "See 'leveretctl help set_permissions' to learn more.\n",
        "",
    )
    assert "secret" not in json.dumps(wire.asked)  # Only its hash travels.
    assert ctl("add_user", "ann", "x") == Ended(70, 'Adding user "ann" ...\n', 'Error:\nUser "ann" already exists\n')
    assert ctl("authenticate_user", "ann", "secret").out.endswith("Success\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("new\n"))
    assert ctl("change_password", "ann") == Ended(0, 'Changing password for user "ann" ...\n', "")
    assert ctl("authenticate_user", "ann", "new").code == 0
    assert ctl("authenticate_user", "ann", "secret").code == 65
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert ctl("add_user", "bob").code == 65
    assert ctl("set_user_tags", "ann", "a", "b").out == 'Setting tags for user "ann" to [a, b] ...\n'
    assert ctl("list_users").out == "Listing users ...\nuser\ttags\nguest\t[administrator]\nann\t[a, b]\n"
    assert ctl("clear_password", "ann").code == 0
    assert ctl("delete_user", "ann").out == 'Deleting user "ann" ...\n'
    assert ctl("delete_user", "ann") == Ended(67, 'Deleting user "ann" ...\n', 'Error:\nUser "ann" does not exist\n')


def test_vhosts_and_permissions(ctl: Ctl, server: FakeServer) -> None:
    assert ctl("add_vhost", "v", "--description", "My vhost", "--tags", "a, b").code == 0
    assert ctl("list_vhosts", "-s", "name", "description", "tags").out == (
        "/\tDefault virtual host\t[]\nv\tMy vhost\t[a, b]\n"
    )
    assert ctl("set_vhost_tags", "v", "c").out == 'Setting tags for virtual host "v" to [c] ...\n'
    assert ctl("set_permissions", "-p", "v", "guest", "^a", ".*", "").out == (
        'Setting permissions for user "guest" in vhost "v" ...\n'
    )
    assert ctl("list_permissions", "-p", "v").out == (
        'Listing permissions for vhost "v" ...\nuser\tconfigure\twrite\tread\nguest\t^a\t.*\t\n'
    )
    assert ctl("list_user_permissions", "guest", "-s").out == "/\t.*\t.*\t.*\nv\t^a\t.*\t\n"
    assert ctl("set_topic_permissions", "-p", "v", "guest", "amq.topic", "^a", "^b").code == 0
    assert ctl("list_topic_permissions", "-p", "v", "-s").out == "guest\tamq.topic\t^a\t^b\n"
    assert ctl("list_user_topic_permissions", "guest", "-q").out == "v\tamq.topic\t^a\t^b\n"
    assert ctl("clear_topic_permissions", "-p", "v", "guest", "amq.topic").out == (
        'Clearing topic permissions on "amq.topic" for user "guest" in vhost "v" ...\n'
    )
    assert ctl("clear_permissions", "-p", "v", "guest").code == 0
    assert ctl("list_permissions", "-p", "w") == Ended(
        65, 'Listing permissions for vhost "w" ...\n', "Virtual host 'w' does not exist\n"
    )
    assert ctl("delete_vhost", "v").out == 'Deleting vhost "v" ...\n'


def test_policies(ctl: Ctl) -> None:
    ttl = '{"message-ttl":1000}'
    assert ctl("set_policy", "p", "^q", ttl, "--priority", "-5", "--apply-to", "queues").out == (
        f'Setting policy "p" for pattern "^q" to "{ttl}" with priority "-5" for vhost "/" ...\n'
    )
    assert ctl("set_operator_policy", "o", "^q", ttl).out.startswith('Setting operator policy override "o" for pattern')
    head = "vhost\tname\tpattern\tapply-to\tdefinition\tpriority\n"
    assert ctl("list_policies").out == f'Listing policies for vhost "/" ...\n{head}/\tp\t^q\tqueues\t{ttl}\t-5\n'
    assert ctl("list_operator_policies", "-q").out == f"{head}/\to\t^q\tall\t{ttl}\t0\n"
    ended = ctl("set_policy", "bad", "^q", '{"nonsense":1}')
    assert (ended.code, ended.err) == (
        69,
        'Error:\nValidation failed\n\n[{<<"nonsense">>,1}] are not recognised policy settings\n\n',
    )
    ended = ctl("set_policy", "bad", "^q", "{notjson")
    assert (ended.code, ended.err.startswith("Error:\nJSON decoding error. Reason: ")) == (69, True)
    assert ended.out.startswith('Setting policy "bad"')
    assert ctl("set_policy", "bad", "^q", '{"message-ttl": NaN}').code == 69
    assert ctl("clear_policy", "p").out == 'Clearing policy "p" on vhost "/" ...\n'
    assert ctl("clear_policy", "p").err == "Error:\nParameter does not exist\n"
    assert ctl("clear_operator_policy", "o").out == 'Clearing operator policy "o" on vhost "/" ...\n'


def test_parameters_and_limits(ctl: Ctl) -> None:
    assert ctl("set_global_parameter", "g", "[1]").code == 0
    assert ctl("list_global_parameters").out == "Listing global runtime parameters ...\nname\tvalue\ng\t[1]\n"
    assert ctl("clear_global_parameter", "g").code == 0
    assert ctl("set_parameter", "shovel", "s", "{}").code == 69
    assert ctl("clear_parameter", "shovel", "s").code == 69
    assert ctl("list_parameters").out == 'Listing runtime parameters for vhost "/" ...\n'
    assert ctl("set_vhost_limits", '{"max-queues":5}').code == 0
    assert ctl("list_vhost_limits").out == 'Listing limits for vhost "/" ...\n{"max-queues":5}\n'
    assert ctl("list_vhost_limits", "--global", "-s").out == '/\t{"max-queues":5}\n'
    assert ctl("clear_vhost_limits").code == 0
    assert ctl("list_vhost_limits", "-q").out == "{}\n"
    assert ctl("set_vhost_limits", "[]").code == 69
    assert ctl("set_user_limits", "guest", '{"max-channels":5}').code == 0
    assert ctl("list_user_limits", "--user", "guest", "-q").out == '{"max-channels":5}\n'
    assert ctl("list_user_limits", "--global", "-q").out == 'user\tlimits\nguest\t{"max-channels":5}\n'
    shown = ctl("clear_user_limits", "guest", "max-channels").out
    assert shown == 'Clearing "max-channels" limit for user "guest" ...\n'
    assert ctl("clear_user_limits", "guest", "all").out == 'Clearing all limits for user "guest" ...\n'


def test_queues_and_connections(ctl: Ctl, server: FakeServer) -> None:
    client = server.world.client()
    client.declare("q")
    client.publish("q")
    client.consume("q", "tag")
    assert ctl("list_exchanges", "-q").out.startswith("name\ttype\n\tdirect\namq.direct\tdirect\n")
    assert ctl("list_connections").out == (
        "Listing connections ...\nuser\tpeer_host\tpeer_port\tstate\nguest\t127.0.0.1\t40000\trunning\n"
    )
    assert ctl("list_channels").out == (
        "Listing channels ...\npid\tuser\tconsumer_count\tmessages_unacknowledged\n<one@host.1.1.1>\tguest\t1\t1\n"
    )
    assert ctl("list_consumers").out == (
        "Listing consumers in vhost / ...\n"
        "queue_name\tchannel_pid\tconsumer_tag\tack_required\tprefetch_count\tactive\targuments\n"
        "q\t<one@host.1.1.1>\ttag\ttrue\t0\ttrue\t[]\n"
    )
    assert ctl("delete_queue", "q", "--if-unused") == Ended(
        64, "Deleting queue 'q' on vhost '/' if queue is unused ...\n", "Error:\nQueue is in use\n"
    )
    assert ctl("close_connection", "<one@host.1.1.0>", "why not").out == (
        "Closing connection <one@host.1.1.0>, reason: why not...\n"
    )
    assert isinstance(client.take()[-1].method, m.ConnectionClose)
    server.world.client()
    assert ctl("close_all_connections", "-p", "/", "bye").out == (
        "Closing all connections in vhost /, reason: bye...\nClosed 2 connections\n"
    )
    assert ctl("close_all_user_connections", "ann", "bye").out == "Closing connections of user ann, reason: bye...\n"
    assert ctl("close_all_connections", "--global", "bye").code == 0
    assert ctl("purge_queue", "q").out == "Purging queue 'q' in vhost '/' ...\n"
    assert ctl("delete_queue", "q").out == (
        "Deleting queue 'q' on vhost '/' ...\nQueue was successfully deleted with 0 ready messages\n"
    )


def test_health_checks(ctl: Ctl, server: FakeServer) -> None:
    assert ctl("check_local_alarms", "-q").out == "Node one@host reported no local alarms\n"
    assert server.node is not None
    server.node.alarms.disk = True
    ended = ctl("check_local_alarms")
    assert (ended.code, ended.err) == (
        69,
        "Error:\nLocal alarms reported on node one@host:\n\n Free disk space alarm on node one@host\n",
    )
    assert ctl("check_running").code == 0
    ctl("stop_app")
    ended = ctl("check_running")
    assert (ended.code, ended.out) == (69, "Checking if Leveret is running on node one@host ...\n")
    assert ctl("await_startup") == Ended(69, "", "Error:\nleveret_is_not_running\n")


def test_cluster_commands(ctl: Ctl, server: FakeServer, wire: Wire) -> None:
    two = server.all.add("two@host")
    assert ctl("await_online_nodes", "2").out == (
        "Will wait for at least 2 nodes to join the cluster of one@host. Timeout: 300 seconds.\n"
    )
    ended = ctl("await_online_nodes", "3", "-t", "0.1")
    assert ended.code == 70
    assert ended.err == ("Error:\nError: timed out while waiting. Not enough nodes joined one@host's cluster.\n")
    assert ctl("forget_cluster_node", "two@host").code == 69
    two.node = None
    assert ctl("forget_cluster_node", "two@host").out == "Removing node two@host from the cluster\n"
    assert ctl("rename_cluster_node", "two@host", "b@host", "one@host", "a@host").out == (
        "Renaming cluster node two@host to b@host ...\nRenaming cluster node one@host to a@host ...\n"
    )
    assert ctl("set_cluster_name", "shop").out == "Setting cluster name to shop ...\n"
    assert ctl("join_cluster", "two@host").code == 64
    ctl("stop_app")
    server.done.clear()
    assert ctl("force_boot") == Ended(0, "", "")
    assert ctl("force_reset").out == "Forcefully resetting node one@host ...\n"
    assert ctl("join_cluster", "one@host") == Ended(
        70,
        "Clustering node one@host with one@host\n",
        "Error:\nError: cannot cluster node with itself: one@host\n",
    )
    assert server.done == ["force_boot", ("reset", True)]


@pytest.mark.parametrize(
    ("node", "address"),
    [
        ("a@10.0.0.1", {"host": "10.0.0.1", "port": 25672, "name": "a@10.0.0.1"}),
        ("a@10.0.0.1:1", {"host": "10.0.0.1", "port": 1, "name": "a@10.0.0.1"}),
        ("10.0.0.1:1", {"host": "10.0.0.1", "port": 1, "name": None}),
        ("[::1]:1", {"host": "::1", "port": 1, "name": None}),
        ("one@host", {"host": "127.0.0.1", "port": 25672, "name": "one@host"}),
    ],
)
def test_whom_to_join(ctl: Ctl, wire: Wire, node: str, address: dict[str, Any]) -> None:
    ctl("stop_app")
    ctl("join_cluster", node)
    assert wire.asked[-1]["arguments"] == address


def test_stop(ctl: Ctl, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits until the process is gone."""
    alive = iter([True, True, False])
    monkeypatch.setattr(registry, "is_running", lambda entry: "stop" not in server.done or next(alive))
    assert ctl("stop") == Ended(0, "Stopping and halting node one@host ...\n", "")
    assert server.done == ["stop"]
    assert next(alive, None) is None
