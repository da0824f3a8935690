"""Reads the settings of rebalancing, and the labels of a node.

`cluster_rebalance` is one of four words. `timer`: at intervals, automatically. `run`: automatically when a node begins
to lead the cluster, as it does at a start; then on demand. `on-demand`, which is the default: only by a command.
`appoint`: only by a command that names queues or nodes. The other keys are defaults for what a command does not say.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from leveret.metadata.rebalancing import PLAN, TIMER, Schedule

if TYPE_CHECKING:
    from leveret.node.config.load import _Reading

KEY: Final = "cluster_rebalance"
LABEL: Final = "node.label"


def read_rebalance(reading: _Reading) -> dict[str, Any]:
    """Returns fields of `Settings`."""
    usual = Schedule()
    schedule = Schedule(
        trigger=reading.value(KEY, usual.trigger),
        interval_ms=reading.value(f"{KEY}.interval", usual.interval_ms),
        strategy=reading.value(f"{KEY}.strategy", usual.strategy),
        plan=reading.value(f"{KEY}.plan", usual.plan),
        threshold=reading.value(f"{KEY}.threshold", usual.threshold),
        at_once=reading.value(f"{KEY}.moves_at_once", usual.at_once),
        per_hour=reading.value(f"{KEY}.moves_per_hour", usual.per_hour),
        rest_ms=reading.value(f"{KEY}.rest", usual.rest_ms),
    )
    if schedule.strategy == PLAN and not schedule.plan:
        reading.problems.append(f"{KEY}.strategy = {PLAN} needs {KEY}.plan, the file that has it")
    if schedule.plan and schedule.strategy != PLAN:
        reading.warnings.append(f"{KEY}.plan: has no effect: the strategy is {schedule.strategy}")
    if f"{KEY}.interval" in reading.chosen and schedule.trigger != TIMER:
        reading.warnings.append(f"{KEY}.interval: has no effect: {KEY} is {schedule.trigger}")
    labels = {name: value for name, value, _ in reading.below(LABEL)}
    return {"rebalance": schedule, "node_labels": MappingProxyType(labels)}
