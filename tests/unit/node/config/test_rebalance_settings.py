from __future__ import annotations

from pathlib import Path

import pytest

from leveret.metadata.rebalancing import Schedule
from tests.unit.node.config.configuration import Configuration


@pytest.fixture
def conf(tmp_path: Path) -> Configuration:
    return Configuration(tmp_path)


def test_nothing_is_moved_unless_somebody_asks(conf: Configuration) -> None:
    found = conf.settings("").rebalance
    assert found == Schedule()
    assert (found.trigger, found.interval_ms, found.strategy) == ("on-demand", 60_000, "least-masters")


@pytest.mark.parametrize("trigger", ["timer", "appoint", "on-demand", "run"])
def test_triggers(conf: Configuration, trigger: str) -> None:
    assert conf.settings(f"cluster_rebalance = {trigger}").rebalance == Schedule(trigger=trigger)
    (problem,) = conf.problems("cluster_rebalance = sometimes")
    assert problem.endswith("not allowed; allowed: one of timer, appoint, on-demand, run")


def test_all_of_it(conf: Configuration) -> None:
    text = """
        cluster_rebalance = timer
        cluster_rebalance.interval = 5m
        cluster_rebalance.strategy = weighted
        cluster_rebalance.threshold = 0.25
        cluster_rebalance.moves_at_once = 2
        cluster_rebalance.moves_per_hour = infinity
        cluster_rebalance.rest = 0
        node.capacity = 2.5
        node.label.zone = a
        node.label.rack = r 7
    """
    settings = conf.settings(text)
    assert settings.rebalance == Schedule("timer", 300_000, "weighted", "", 0.25, 2, None, 0)
    assert (settings.node_capacity, dict(settings.node_labels)) == (2.5, {"zone": "a", "rack": "r 7"})


def test_a_plan_is_a_file(conf: Configuration, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("{}")
    plan = f"cluster_rebalance.plan = {file}"
    assert conf.settings(f"{plan}\ncluster_rebalance.strategy = plan").rebalance.plan == str(file)
    assert conf.problems("cluster_rebalance.strategy = plan") == [
        "cluster_rebalance.strategy = plan needs cluster_rebalance.plan, the file that has it"
    ]
    assert conf.warnings(plan) == ["cluster_rebalance.plan: has no effect: the strategy is least-masters"]
    assert conf.warnings("cluster_rebalance.interval = 1m") == [
        "cluster_rebalance.interval: has no effect: cluster_rebalance is on-demand"
    ]
