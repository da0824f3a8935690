"""Clusters whose queues are mirrored: `nodes` is shared, and whole again before each test."""

from __future__ import annotations

from tests.system.clusters.conftest import fragile, nodes, pytest_runtest_makereport, start_cluster, steady

__all__ = ["fragile", "nodes", "pytest_runtest_makereport", "start_cluster", "steady"]
