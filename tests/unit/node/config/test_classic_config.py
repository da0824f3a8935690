"""A configuration of Erlang terms is not read, and its user is told what to write instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.metadata.rules.ha_policy import Defaults, unknown_nodes
from leveret.node.config.classic_config import BadTerms, is_classic, parse, translated
from leveret.node.config.load import ConfigError, load
from leveret.node.system.data_folder import make_folder

CLASSIC = r"""%% A comment
[
 {rabbit, [
   {tcp_listeners, [5672, {"127.0.0.1", 5673}]},
   {cluster_nodes, {['rabbit@one', 'rabbit@two'], disc}},
   {cluster_partition_handling, {pause_if_all_down, ['rabbit@one'], autoheal}},
   {default_user, <<"ann">>}, {default_pass, <<"geheim">>}, {loopback_users, []},
   {vm_memory_high_watermark, 0.5}, {disk_free_limit, "1GB"},
   {nonsense, 3}
 ]},
 {rabbitmq_management, [{listener, [{port, 15672}]}, {load_definitions, "/etc/d.json"}]},
 {kernel, [{net_ticktime, 120}]}
].
"""
LINES = """listeners.tcp.1 = 5672
listeners.tcp.2 = 127.0.0.1:5673
cluster_formation.classic_config.nodes.1 = rabbit@one
cluster_formation.classic_config.nodes.2 = rabbit@two
cluster_partition_handling = pause_if_all_down
cluster_partition_handling.pause_if_all_down.recover = autoheal
cluster_partition_handling.pause_if_all_down.nodes.1 = rabbit@one
default_user = ann
default_pass = ********
loopback_users = none
vm_memory_high_watermark.relative = 0.5
disk_free_limit.absolute = 1GB
management.tcp.port = 15672
load_definitions = /etc/d.json
net_ticktime = 120""".splitlines()


def test_terms_as_lines() -> None:
    assert translated(CLASSIC) == (LINES, ["rabbit.nonsense"])


def test_what_is_classic() -> None:
    assert is_classic(CLASSIC) and is_classic("[].") and is_classic(" %a\n% b\n [")
    assert not is_classic("listeners.tcp.1 = 5672\n") and not is_classic("") and not is_classic("% nothing else")


@pytest.mark.parametrize("text", ["[", "[{a, b]", "[a b].", "[<<1].", "[" * 99, "[{rabbit, [#{}]}]."])
def test_what_is_damaged(text: str) -> None:
    with pytest.raises(BadTerms):
        parse(text)


def test_the_user_is_told(tmp_path: Path) -> None:
    file = tmp_path / "rabbitmq.config"
    file.write_text(CLASSIC)
    with pytest.raises(ConfigError) as refused:
        load([], {"HOME": "/home/ann"}, str(file))
    (problem,) = refused.value.problems
    assert "holds Erlang terms" in problem and "    listeners.tcp.1 = 5672\n" in problem
    assert "Without a line there: rabbit.nonsense" in problem
    assert "geheim" not in problem
    file.write_text("[{rabbit, [")
    with pytest.raises(ConfigError, match="it is damaged"):
        load([], {"HOME": "/home/ann"}, str(file))


def test_definitions_by_the_name_that_the_management_plugin_has(tmp_path: Path) -> None:
    definitions, file = tmp_path / "d.json", tmp_path / "rabbitmq.conf"
    definitions.write_text("{}")
    file.write_text(f"management.load_definitions = {definitions}\n")
    assert load([], {"HOME": "/home/ann"}, str(file)).settings.load_definitions == str(definitions)


def test_a_node_that_is_named_and_no_member() -> None:
    named = Defaults(definition={"ha-mode": "nodes", "ha-params": ["a@b", "c@d"]})
    assert unknown_nodes(named, ["a@b", "x@y"]) == ["c@d"]
    assert unknown_nodes(Defaults(definition={"ha-mode": "all"}), []) == []


def test_a_data_folder_that_cannot_be_made(tmp_path: Path) -> None:
    assert make_folder(str(tmp_path / "data" / "here")) is None
    (tmp_path / "file").write_text("")
    assert str(make_folder(str(tmp_path / "file" / "here"))).startswith("cannot make the data folder")
