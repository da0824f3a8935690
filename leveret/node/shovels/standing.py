"""Whether this node may run shovels and federation links now.

It may while it serves clients, sees a majority of the cluster, and is not paused by a partition. When it sees a
majority again after it did not (it was cut off, or stopped for a while), its metadata are those of before: what they
assign to it may have been given to another node since. So it first proposes a command that changes nothing. Once that
is applied, so is everything that was agreed on meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.metadata.model.commands import NodeStarted

if TYPE_CHECKING:
    from leveret.metadata.store import Applied
    from leveret.node.node import Node

NOTHING = NodeStarted("")  # No node has that name.


class Standing:
    """Tells whether the workers of this node may run."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.is_current = False  # All that was agreed on before the node saw a majority is applied.
        self.is_asking = False
        self.losses = 0  # How often the node has lost its majority.

    def may_act(self) -> bool:
        return self.is_current and self._has_say()

    def _has_say(self) -> bool:
        node = self.node
        is_serving = node.broker.arrivals.is_open and not node.pausing.paused and node.fatal is None
        return is_serving and node.cluster.has_majority

    def look(self) -> None:
        """Called every few milliseconds while there is something to run."""
        if not self._has_say():
            if self.is_current or self.is_asking:
                self.is_current = False
                self.losses += 1
        elif not self.is_current and not self.is_asking:
            self._catch_up()

    def _catch_up(self) -> None:
        losses, self.is_asking = self.losses, True

        def then(applied: Applied) -> None:
            self.is_asking = False
            self.is_current = applied.refused is None and losses == self.losses

        self.node.propose(NOTHING, then, patient=True)
