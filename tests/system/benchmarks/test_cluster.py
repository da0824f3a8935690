"""Benchmarks of clusters: that they run, clean up behind them, and show what they found."""

from __future__ import annotations

import json
import selectors
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import cli
from benchmarks.clusters import bulk
from benchmarks.clusters.cluster import PARTS, PIPELINED, SPREAD, WAYS, declares, pipelined, sizes
from benchmarks.report import results
from benchmarks.report.results import Results
from benchmarks.ruler.brokers import Leveret, cluster, running
from benchmarks.ruler.calls import Connection
from benchmarks.ruler.workloads import PREFIX, Places, run_at
from leveret.client.amqp import BrokerError


def test_all_parts_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--only", "cluster", "--leveret-only", "--quick", "--seconds", "0.05", "--output", str(tmp_path)]
    assert cli.main(arguments) == 0
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["problems"] == []
    assert {way: set(rates) for way, rates in found["away"].items()} == {way.name: {"safe", "many"} for way in WAYS}
    assert set(found["spread"]) == {"1", "2", "3"}
    rows = {"1", "20", PIPELINED}
    assert {size: set(rates) for size, rates in found["declares"].items()} == {"1": rows, "3": rows}
    assert all(one["delivered"] == one["expected"] > 0 for one in found["rounds"])
    assert "| 3 nodes |" in capsys.readouterr().out


def test_queues_that_were_declared_are_gone_afterwards() -> None:
    with running(Leveret) as broker:
        assert declares([broker.port], clients=3, seconds=0) > 0
        for client in range(3):
            with Connection(broker.port) as admin, pytest.raises(BrokerError, match="NOT_FOUND"):
                admin.count_messages(f"{PREFIX}.{client:02}.0000000")
        assert pipelined(broker.port, 30) > 0
        for number in (0, 29):
            with Connection(broker.port) as admin, pytest.raises(BrokerError, match="NOT_FOUND"):
                admin.count_messages(f"{PREFIX}.{number:07}")


def test_a_cluster_that_cannot_form_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, nodes = Leveret.command, []

    def broken(node: Leveret) -> list[str]:
        nodes.append(node)
        return [*command(node), *(["--no-such-option"] if node.beside else [])]

    monkeypatch.setattr(Leveret, "command", broken)
    with pytest.raises(BrokerError, match="no-such-option"), cluster(Leveret, 3, tmp_path):
        pass
    assert len(nodes) == 2 and nodes[1].beside is nodes[0]
    assert all(node.process is None for node in nodes)
    assert list(tmp_path.iterdir()) == []


def test_each_queue_has_its_clients_at_its_home() -> None:
    """One node for each queue, so that a client anywhere else would find no queue: these nodes are no cluster."""
    with running(Leveret) as first, running(Leveret) as second:
        ports = [first.port, second.port]
        assert run_at(Places(ports, ports, ports), SPREAD, 0.05, settle_s=0).is_good


def test_sizes_are_those_that_the_parts_need() -> None:
    assert sizes([]) == []
    assert sizes(["away"]) == [3]
    assert sizes(PARTS) == [1, 2, 3]


def test_cluster_stands_for_its_parts() -> None:
    assert set(PARTS) <= set(cli.parse(["--only", "cluster"]).only)
    assert set(PARTS) <= set(cli.parse([]).only)


def test_tables_show_nodes_clients_and_ratios() -> None:
    both = {"leveret": 600.0, "rabbitmq": 200.0}
    found = Results(
        away={"both away": {"safe": both, "large": both}}, spread={"1": both, "2": both}, declares={"3": {"20": both}}
    )
    text = results.markdown(found)
    for row in ("both away: **safe**", "both away: **large**", "1 node", "2 nodes", "3 nodes, 20 clients"):
        assert f"| {row} | 600 | 200 | 3.00 |" in text
    assert "home" not in text.replace("clients at home", "")
    assert "three nodes:" not in text


def test_a_bulk_of_queues_beside_other_traffic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bulk.main(["--quick", "--only", "import", "three clients", "--data", str(tmp_path)]) == 0
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[0], row[1]) for row in rows] == [("| import", "60"), ("| three clients", "180")]
    assert all(float(row[3].replace(",", "")) > 0 for row in rows)


class Broken:
    """A connection of which something comes that nobody has thought of."""

    error = None

    def register(self, selector: selectors.BaseSelector) -> None:
        raise KeyError(7)


def test_other_traffic_that_has_ended_is_not_waited_for() -> None:
    others = bulk.Traffic([], [cast(Any, Broken())])
    others.start()
    others.join()
    with pytest.raises(RuntimeError, match="the other traffic has failed: KeyError"):
        bulk.measure([], others, 1, lambda: None, 0.0)
