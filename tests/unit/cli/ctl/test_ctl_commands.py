"""What commands print and end with: rabbitmqctl 3.10.8's words, with our names."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from leveret.metadata.model.commands import Bind
from leveret.node.system import local_registry
from leveret.protocol import methods as m
from leveret.protocol.tables import Field
from tests.support.control_world import FakeServer
from tests.unit.cli.ctl import ctl_node
from tests.unit.cli.ctl.ctl_node import Ctl, Ended, Wire

ctl, server, wire = ctl_node.ctl, ctl_node.server, ctl_node.wire


# -- Output --------------------------------------------------------------------------------------------------------


def fill(server: FakeServer) -> None:
    client = server.world.client()
    client.declare("plain", durable=True)
    client.declare("tab\there")
    arguments = {"x-match": Field("S", 'al"l'), "n": Field("I", 1), "b": Field("t", True)}
    server.world.apply(Bind("/", "amq.headers", "queue", "plain", "k", arguments))
    client.publish("plain")


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
    server.world.apply(Bind("/", "amq.direct", "queue", "a", "x\nforged\x1b[2J"))
    assert ctl("list_bindings", "routing_key", "-s").out == "a\nx\\012forged\\033[2J\n"


def test_a_list_in_pages(ctl: Ctl, server: FakeServer, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leveret.node.admin.queues.lists.PAGE", 2)
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
    assert ended.err == "Warning: node two@host did not answer; its part is missing\n"


def test_status_for_people(ctl: Ctl, server: FakeServer) -> None:
    server.world.client().declare("q")
    shown = ctl("status").out
    assert shown.startswith("Status of node one@host ...\nRuntime\n\nOS PID: ")
    assert (
        "\n\nTotals\n\nConnection count: 1\nQueue count: 1\nVirtual host count: 1\n"
        "\nMirrored queues\n\n(none)\n\nListeners\n"
    ) in shown
    shown = ctl("cluster_status").out
    assert shown.startswith(
        "Cluster status of node one@host ...\nBasics\n\nCluster name: founded\nLeader: one@host\nMajority: in contact\n"
        "Partition handling: pause_minority\n"
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
        'Error:\nValidation failed\n\n[{<<"nonsense">>,1}] are not recognised policy settings\n'
        "There is no key 'nonsense' for a policy.\n\n",
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
    assert ctl("list_vhost_limits", "-q").out == ""
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


def test_tracing(ctl: Ctl) -> None:
    assert ctl("trace_on").out == 'Starting tracing for vhost "/" ...\nTrace enabled for vhost /\n'
    assert ctl("-q", "list_vhosts", "name", "tracing").out.splitlines()[-1] == "/\ttrue"
    assert ctl("trace_off", "-p", "/").out == 'Stopping tracing for vhost "/" ...\nTrace disabled for vhost /\n'
    assert ctl("-q", "list_vhosts", "name", "tracing").out.splitlines()[-1] == "/\tfalse"
    ended = ctl("trace_on", "-p", "none")
    assert ended.code == 65 and "Virtual host 'none' does not exist" in ended.err


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
    monkeypatch.setattr(local_registry, "is_running", lambda entry: "stop" not in server.done or next(alive))
    assert ctl("stop") == Ended(0, "Stopping and halting node one@host ...\n", "")
    assert server.done == ["stop"]
    assert next(alive, None) is None
