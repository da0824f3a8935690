"""What a configuration says about mirrored queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from leveret.base.json_values import Json
from leveret.metadata.rules.ha_policy import Defaults
from tests.unit.node.config.configuration import Configuration

P = "mirroring.default_policy"


@pytest.fixture
def conf(tmp_path: Path) -> Configuration:
    return Configuration(tmp_path)


def test_nothing(conf: Configuration) -> None:
    assert conf.settings("").mirroring == Defaults()


@pytest.mark.parametrize(
    ("text", "definition", "queues"),
    [
        (f"{P}.ha-mode = all", {"ha-mode": "all"}, None),
        (f"{P}.ha-mode = exactly\n{P}.ha-params = 2", {"ha-mode": "exactly", "ha-params": 2}, None),
        (f"{P}.ha-mode = nodes\n{P}.ha-params = a@b, c@d", {"ha-mode": "nodes", "ha-params": ["a@b", "c@d"]}, None),
        (
            f"{P}.ha-mode = all\n{P}.ha-replication = async\n{P}.ha-replication-window = '{{\"messages\": 10}}'",
            {"ha-mode": "all", "ha-replication": "async", "ha-replication-window": {"messages": 10}},
            None,
        ),
        ("num_mirrors = 2", {"ha-mode": "exactly", "ha-params": 3, "ha-sync-mode": "automatic"}, None),
        ("num_mirrors = 0", {}, None),
        (
            "cluster_nodes.disc_copies = rabbit@host",
            {"ha-mode": "nodes", "ha-params": ["rabbit@host"], "ha-sync-mode": "automatic"},
            None,
        ),
        (
            "cluster_nodes.disc_copies = queue1,queue2",
            {"ha-mode": "all", "ha-sync-mode": "automatic"},
            {"queue1", "queue2"},
        ),
        ("cluster_nodes.disc_copies = ''", {}, set()),
        ("cluster_nodes.disc_copies =", {}, set()),
        ("disc_copies =", {}, set()),
        ("disc_copies = queue1,queue2", {"ha-mode": "all", "ha-sync-mode": "automatic"}, {"queue1", "queue2"}),
        (f"cluster_nodes.disc_copies = a\n{P}.ha-mode = all", {"ha-mode": "all"}, {"a"}),
        (
            "cluster_nodes.disc_copies = a\nnum_mirrors = 1",
            {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"},
            {"a"},
        ),
    ],
)
def test_a_default_policy(
    conf: Configuration, text: str, definition: dict[str, Json], queues: set[str] | None
) -> None:
    found = conf.settings(text).mirroring
    assert found.definition == definition
    assert found.queues == queues


def test_from_the_environment(conf: Configuration) -> None:
    environ = {"LEVERET_MIRRORING_DEFAULT_POLICY_HA_MODE": "all", "LEVERET_NUM_MIRRORS": "0"}
    assert conf.settings("", {"LEVERET_MIRRORING_DEFAULT_POLICY_HA_MODE": "all"}).mirroring.definition == {
        "ha-mode": "all"
    }
    assert conf.problems("", environ) == [
        f"{P}.ha-mode, num_mirrors and nodes in cluster_nodes.disc_copies each say who mirrors: give one"
    ]


def test_the_rest(conf: Configuration) -> None:
    text = """
        queue_master_locator = min-masters
        queue_leader_locator = balanced
        mirroring_sync_batch_size = 100
        mirroring_sync_max_throughput = 10MB
        mirroring.forbid_copying = true
    """
    expected = Defaults(
        locator="min-masters",
        leader_locator="balanced",
        forbid_copying=True,
        fill_bytes_per_tick=209_716,
        fill_messages=100,
    )
    assert conf.settings(text).mirroring == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{P}.ha-mode = some", f'{P}: <<"some">> is not a valid ha-mode value'),
        (f"{P}.ha-mode = exactly", f'{P}: ha-mode="exactly" takes an integer, none given'),
        (
            f"{P}.ha-sync-mode = automatic",
            f"{P}: ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown",
        ),
        (f"{P}.message-ttl = 5", f"{P}: only keys that begin with ha-, not message-ttl"),
        (
            "cluster_nodes.disc_copies = q,a@b",
            "broker.conf, line 1: cluster_nodes.disc_copies = q,a@b: not allowed; allowed: names of queues, or names of"
            " nodes (such as leveret@localhost), with commas between",
        ),
        (
            f"num_mirrors = 1\n{P}.ha-mode = all",
            f"{P}.ha-mode, num_mirrors and nodes in cluster_nodes.disc_copies each say who mirrors: give one",
        ),
        (
            "queue_master_locator = x",
            "broker.conf, line 1: queue_master_locator = x: not allowed; allowed: one of min-masters, client-local,"
            " random",
        ),
    ],
)
def test_problems(conf: Configuration, text: str, problem: str) -> None:
    assert conf.problems(text) == [problem]
