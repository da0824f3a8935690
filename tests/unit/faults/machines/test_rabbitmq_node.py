"""What a node of RabbitMQ is started with."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults.machines.rabbitmq_node import RabbitmqNode


@pytest.fixture
def node(tmp_path: Path) -> RabbitmqNode:
    return RabbitmqNode(1, "10.0.0.1", "space", tmp_path, "10.0.0.1", "")


def test_its_files_are_named_as_they_are(node: RabbitmqNode) -> None:
    """RabbitMQ starts without a configuration that is not there, and a node is missed after a minute then."""
    named = node.environment()
    assert "{net_ticktime, 4}" in Path(named["RABBITMQ_ADVANCED_CONFIG_FILE"]).read_text()
    assert Path(named["RABBITMQ_ENABLED_PLUGINS_FILE"]).is_file()


def test_only_a_node_with_a_false_clock_has_one(node: RabbitmqNode) -> None:
    assert "LD_PRELOAD" not in node.environment()
    node.has_false_clock = True
    assert node.environment()["FAKETIME_TIMESTAMP_FILE"] == str(node.clock_file)
