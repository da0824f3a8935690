"""Deliberate bugs in what nodes do in a partition: see `mutations`."""

from __future__ import annotations

from typing import Final

from .mutations import Mutation

STRATEGIES: Final = (
    Mutation(
        "half of the nodes is a majority",
        2,
        "cluster.partitions",
        "is_majority = 2 * count > len(voters)",
        "is_majority = 2 * count >= len(voters)",
        first=3,
        strategies=True,
    ),
    Mutation(
        "a paused node keeps its clients",
        3,
        "node.pausing",
        "                client.connection.close(FORCED, SHUTDOWN)\n",
        "                pass\n",
        first=5,
        strategies=True,
    ),
    Mutation(
        "a paused node keeps its port",
        3,
        "node.doors",
        "    def _on_paused(self) -> None:\n        self._shut_amqp()\n",
        "    def _on_paused(self) -> None:\n",
        first=5,
        strategies=True,
    ),
    Mutation(
        "a paused node does not resume",
        3,
        "node.pausing",
        "            self._asking = False\n            self._caught_up = contact == self._contact\n",
        "            self._asking = False\n",
        first=4,
        strategies=True,
    ),
    Mutation(
        "who is listed does not matter",
        3,
        "cluster.partitions",
        "if preferred and seen.isdisjoint(preferred):",
        "if preferred and len(seen) == 1 and seen.isdisjoint(preferred):",
        first=4,
        strategies=True,
    ),
    Mutation(
        "another strategy holds after the next start only",
        3,
        "node.pausing",
        "        self.partitions.handling = handling\n",
        "        return\n        self.partitions.handling = handling\n",
        first=19,
        strategies=True,
    ),
)
