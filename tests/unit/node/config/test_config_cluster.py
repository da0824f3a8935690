"""What a person writes about the cluster: listener, cookie, TLS, and whom to join."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.metadata.rules.partition_handling import PartitionHandling, Strategy
from leveret.node.config.settings import Discovery, ListedNode, Listener, TlsOptions
from tests.unit.node.config.configuration import Configuration


@pytest.fixture
def conf(tmp_path: Path) -> Configuration:
    return Configuration(tmp_path)


@pytest.fixture
def pem(tmp_path: Path) -> str:
    path = tmp_path / "any.pem"
    path.write_text("-")
    return str(path)


@pytest.mark.parametrize(
    ("text", "options", "listener"),
    [
        ("", {}, "127.0.0.1:25672"),
        ("", {"port": "5673"}, "127.0.0.1:25673"),
        ("", {"port": "0"}, "127.0.0.1:0"),
        ("", {"port": "0", "cluster.port": "7"}, "127.0.0.1:7"),
        ("", {"host": "::1"}, "[::1]:25672"),
        ("", {"host": "0.0.0.0", "cluster.port": "0"}, "0.0.0.0:0"),
        ("listeners.tcp.default = 5673", {}, "25673"),
        ("cluster.port = 1", {"cluster.port": "2"}, "127.0.0.1:2"),
        ("cluster.listener = 127.0.0.2:1", {"host": "127.0.0.1"}, "127.0.0.2:1"),
        ("cluster.listener = 127.0.0.2:1", {"cluster.port": "2"}, "127.0.0.1:2"),
    ],
)
def test_the_port_for_other_nodes(conf: Configuration, text: str, options: dict[str, str], listener: str) -> None:
    loaded = conf.load(text, None, **options)
    assert str(loaded.settings.cluster_listener) == listener
    assert loaded.warnings == ()


def test_a_client_port_too_high_to_count_on_from_it(conf: Configuration) -> None:
    loaded = conf.load("", port="45536")
    assert loaded.settings.cluster_listener == Listener("127.0.0.1", 0)
    assert "--cluster-port" in "".join(loaded.warnings)
    assert conf.settings("", port="45535").cluster_listener.port == 65535
    assert conf.warnings("", None, port="45536", **{"cluster.port": "1"}) == []


def test_cluster_listener_and_port_of_the_same_source_are_a_contradiction(conf: Configuration) -> None:
    assert len(conf.problems("cluster.listener = 1\ncluster.port = 2")) == 1


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("", "127.0.0.1"),
        ("host = 10.0.0.1", "10.0.0.1"),
        ("host = 0.0.0.0\nnode_name = rabbit@one", "one"),
        ("host = ::\nnode_name = rabbit@one", "one"),
        ("listeners.tcp.default = 5672\nnode_name = rabbit@one", "one"),
        ("host = 0.0.0.0\ncluster.advertised_host = 10.0.0.2", "10.0.0.2"),
    ],
)
def test_how_others_reach_the_node(conf: Configuration, text: str, host: str) -> None:
    loaded = conf.load(text)
    assert loaded.settings.cluster_host == host
    assert loaded.warnings == ()


def test_a_node_that_nobody_could_reach_is_warned_about(conf: Configuration) -> None:
    text = "host = 0.0.0.0\njoin = 10.0.0.1\n"
    (warning,) = conf.warnings(text)
    assert "cluster.advertised_host" in warning
    assert conf.warnings(text + "cluster.advertised_host = 10.0.0.2") == []
    assert conf.warnings(text + "node_name = rabbit@two") == []


@pytest.mark.parametrize(
    ("text", "join"),
    [
        ("a:1", [("a", 1)]),
        ("a", [("a", 25672)]),
        ("a:1, b:2,a:1", [("a", 1), ("b", 2)]),
        ("[::1]:1", [("::1", 1)]),
        ("[::1]", [("::1", 25672)]),
        ("rabbit@a", [("a", 25672)]),
    ],
)
def test_whom_to_join(conf: Configuration, text: str, join: list[tuple[str, int]]) -> None:
    assert list(conf.settings(f"join = {text}").join) == join
    assert list(conf.settings("join = z:9", {"LEVERET_JOIN": text}).join) == join


def test_a_list_of_nodes(conf: Configuration) -> None:
    nodes = "cluster_formation.classic_config.nodes."
    text = f"{nodes}10 = rabbit@c\n{nodes}2 = rabbit@b:1\n{nodes}1 = rabbit@a\n{nodes}11 = rabbit@a"
    listed = (ListedNode("rabbit@a", "a", 25672), ListedNode("rabbit@b", "b", 1), ListedNode("rabbit@c", "c", 25672))
    for backend in "", "classic_config", "rabbit_peer_discovery_classic_config":
        chosen = backend and f"\ncluster_formation.peer_discovery_backend = {backend}"
        loaded = conf.load(text + chosen)
        assert loaded.settings.discovery == Discovery(backend="classic_config", nodes=listed, founders=3)
        assert loaded.warnings == ()
    discovery = conf.settings(text + "\ncluster_formation.target_cluster_size_hint = 1").discovery
    assert discovery is not None
    assert discovery.founders == 1
    (problem,) = conf.problems(text + "\ncluster_formation.target_cluster_size_hint = 4")
    assert problem.endswith("but 3 nodes are listed")


def test_two_listed_nodes_cannot_be_one(conf: Configuration) -> None:
    nodes = "cluster_formation.classic_config.nodes."
    (problem,) = conf.problems(f"{nodes}1 = rabbit@a:1\n{nodes}2 = rabbit@a:2")
    assert "name rabbit@a" in problem
    (problem,) = conf.problems(f"{nodes}1 = one@a:1\n{nodes}2 = two@a:1")
    assert "address a:1" in problem


def test_the_backend_without_nodes_is_no_discovery(conf: Configuration) -> None:
    loaded = conf.load("cluster_formation.peer_discovery_backend = classic_config\ncluster_formation.node_type = disc")
    assert loaded.settings.discovery is None
    assert loaded.warnings == ()


def test_dns(conf: Configuration) -> None:
    text = "cluster_formation.peer_discovery_backend = {}\ncluster_formation.dns.hostname = nodes.example\n"
    size = "cluster_formation.target_cluster_size_hint = 3"
    for backend in "dns", "rabbit_peer_discovery_dns":
        discovery = conf.settings(text.format(backend) + size).discovery
        assert discovery == Discovery(backend="dns", hostname="nodes.example", founders=3)
    (problem,) = conf.problems(text.format("dns"))
    assert "target_cluster_size_hint" in problem
    (problem,) = conf.problems(f"cluster_formation.peer_discovery_backend = dns\n{size}")
    assert "dns.hostname" in problem


def test_join_is_stronger_than_discovery_and_says_so(conf: Configuration) -> None:
    (warning,) = conf.warnings("cluster_formation.classic_config.nodes.1 = rabbit@a", None, join="a:1")
    assert warning == "cluster_formation: has no effect: --join (join = a:1) says whom to join"


def test_how_often_to_look_again(conf: Configuration) -> None:
    text = "join = a\ncluster_formation.discovery_retry_limit = 3\ncluster_formation.discovery_retry_interval = 2s"
    loaded = conf.load(text)
    assert (loaded.settings.discovery_retry_limit, loaded.settings.discovery_retry_interval_ms) == (3, 2000)
    assert loaded.warnings == ()


@pytest.mark.parametrize(("text", "milliseconds"), [("60", 60_000), ("5s", 5_000), ("500ms", 500)])
def test_net_ticktime_is_in_seconds(conf: Configuration, text: str, milliseconds: int) -> None:
    assert conf.settings(f"net_ticktime = {text}").silence_ms == milliseconds


def test_cookie(conf: Configuration, tmp_path: Path) -> None:
    file = tmp_path / "cookie"
    file.write_text("oatmeal")
    by_file = {"cookie_file": str(file)}
    assert conf.settings("", {"RABBITMQ_ERLANG_COOKIE": "raisin"}).cookie == "raisin"
    assert conf.settings("", {"RABBITMQ_ERLANG_COOKIE": "raisin", "LEVERET_COOKIE": "rye"}).cookie == "rye"
    strongest = conf.settings("", {"LEVERET_COOKIE": "rye"}, **by_file)
    assert (strongest.cookie_file, strongest.cookie) == (str(file), None)
    weakest = conf.settings(f"cookie_file = {file}", {"LEVERET_COOKIE": "rye"})
    assert (weakest.cookie_file, weakest.cookie) == (None, "rye")
    assert "rye" not in repr(weakest)
    assert len(conf.problems("", {"LEVERET_COOKIE": "rye", "LEVERET_COOKIE_FILE": str(file)})) == 1
    (problem,) = conf.problems("cookie = " + "x" * 300)
    assert "xxx" not in problem
    assert len(conf.problems("", None, cookie_file=str(tmp_path / "missing"))) == 1


def test_rabbitmqs_port_for_nodes(conf: Configuration) -> None:
    assert conf.settings("", {"RABBITMQ_DIST_PORT": "1"}).cluster_listener == Listener("127.0.0.1", 1)
    assert conf.settings("", {"RABBITMQ_DIST_PORT": "1", "LEVERET_CLUSTER_PORT": "2"}).cluster_listener.port == 2


def test_tls_between_nodes_is_mutual(conf: Configuration, pem: str) -> None:
    files = "".join(f"cluster.ssl_options.{name} = {pem}\n" for name in ("certfile", "keyfile", "cacertfile"))
    more = "cluster.ssl_options.password = secret\ncluster.ssl_options.versions.1 = tlsv1.3"
    settings = conf.settings(files + more)
    assert settings.cluster_tls == TlsOptions(
        certfile=pem,
        keyfile=pem,
        cacertfile=pem,
        password="secret",
        verify_peer=True,
        fail_if_no_peer_cert=True,
        versions=("tlsv1.3",),
    )
    assert settings.tls is None
    (problem,) = conf.problems(f"cluster.ssl_options.certfile = {pem}")
    assert problem.endswith("cluster.ssl_options.keyfile and cluster.ssl_options.cacertfile")


# -- Partitions ----------------------------------------------------------------------------------------------------

ALL_DOWN = """
cluster_partition_handling = pause_if_all_down
cluster_partition_handling.pause_if_all_down.recover = autoheal
cluster_partition_handling.pause_if_all_down.nodes.1 = rabbit@a
cluster_partition_handling.pause_if_all_down.nodes.2 = rabbit@b
"""


def test_partition_handling(conf: Configuration) -> None:
    assert conf.settings("").partition_handling == PartitionHandling(Strategy.PAUSE_MINORITY)
    for strategy in Strategy:
        if strategy is not Strategy.PAUSE_IF_ALL_DOWN:
            text = f"cluster_partition_handling = {strategy.value}"
            assert conf.settings(text).partition_handling == PartitionHandling(strategy)
    handling = conf.settings(ALL_DOWN).partition_handling
    assert handling == PartitionHandling(Strategy.PAUSE_IF_ALL_DOWN, ("rabbit@a", "rabbit@b"), "autoheal")


def test_partition_handling_that_makes_no_sense(conf: Configuration) -> None:
    (problem,) = conf.problems("cluster_partition_handling = pause")
    assert "one of pause_minority, stop_processing, pause_if_all_down, ignore, autoheal, autoupgrade" in problem
    (problem,) = conf.problems("cluster_partition_handling = pause_if_all_down")
    assert problem.startswith("cluster_partition_handling: pause_if_all_down needs nodes")
    (problem,) = conf.problems(ALL_DOWN.replace("recover = autoheal", "recover = later"))
    assert "one of ignore, autoheal" in problem
    (warning,) = conf.warnings(ALL_DOWN.replace("= pause_if_all_down", "= ignore"))
    assert warning == "cluster_partition_handling.pause_if_all_down: has no effect: the strategy is ignore"
