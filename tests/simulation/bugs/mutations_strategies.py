"""Deliberate bugs in what nodes do in a partition: see `mutations`."""

from __future__ import annotations

from typing import Final

from tests.simulation.bugs.mutations import Mutation

STRATEGIES: Final = (
    Mutation(
        "half of the nodes is a majority",
        2,
        "why_pause",
        "is_majority = 2 * count > len(voters)",
        "is_majority = 2 * count >= len(voters)",
        first=3,
        strategies=True,
    ),
    Mutation(
        "a paused node keeps its clients",
        3,
        "PartitionPause._pause",
        "client.connection.close(ReplyCode.CONNECTION_FORCED, text)",
        "pass",
        first=5,
        strategies=True,
    ),
    Mutation(
        "a paused node keeps its port",
        3,
        "Listeners._on_paused",
        "self._shut_for_clients()",
        "",
        first=5,
        strategies=True,
    ),
    Mutation(
        "a paused node does not resume",
        3,
        "PartitionPause._catch_up",
        "self._caught_up = contact == self._contact",
        "",
        first=4,
        strategies=True,
    ),
    Mutation(
        "who is listed does not matter",
        3,
        "why_pause",
        "preferred and seen.isdisjoint(preferred)",
        "preferred and len(seen) == 1 and seen.isdisjoint(preferred)",
        first=4,
        strategies=True,
    ),
    Mutation(
        "another strategy holds after the next start only",
        3,
        "PartitionPause.on_setting",
        "self.partitions.handling = handling",
        "return\nself.partitions.handling = handling",
        first=19,
        strategies=True,
    ),
)
