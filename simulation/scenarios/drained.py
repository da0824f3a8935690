"""Nodes are drained, and then revived, stopped, or killed, while everything else happens.

In a run with `--drained` an operator drains nodes, one or several at a time, with or without moving queues that have no
mirrors. A while later the node is revived, restarts, or dies; sometimes it dies before it has handed over its masters,
and sometimes the others die, so that a drained node has to be a master. In the end every node is revived. The checks
are those of every run; and at the end no node is in maintenance.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from leveret.metadata.model.maintenance_mark import out_of_service

if TYPE_CHECKING:
    from simulation.world import World

DRAINED_FAULTS: Final = (("drain", 20), ("empty", 6))
ENDS: Final = ("revive", "revive", "terminate", "restart_app", "kill", "power")


def draw_drain(rng: random.Random, what: str, nodes: int) -> dict[str, Any]:
    """Draws the arguments of a step."""
    arguments: dict[str, Any] = {
        "node": rng.randrange(nodes),
        "move": rng.random() < 0.3,
        "how": rng.choice(ENDS),
        "delay": round(rng.choice((0.005, 0.05, 0.5, 3.0)) * (0.5 + rng.random()), 6),
        "seconds": round(rng.choice((0.01, 0.5, 2.0)) * (0.5 + rng.random()), 3),
    }
    if what == "empty":
        arguments["other"] = rng.randrange(nodes)
    return arguments


class Draining:
    """Drains nodes and revives them."""

    def __init__(self, world: World) -> None:
        self.world = world

    def fault_drain(self, node: int, move: bool, how: str, delay: float, seconds: float) -> None:
        self.world.rebalancing.command(node, "drain", {"move_unmirrored": move})
        if how == "revive":
            self.world.scheduler.after(delay, self._revive, node)
        else:
            self.world.scheduler.after(delay, self._fell, node, how, seconds)

    def fault_empty(self, node: int, other: int, move: bool, how: str, delay: float, seconds: float) -> None:
        """Drains two nodes at the same time."""
        self.fault_drain(node, move, how, delay, seconds)
        if other != node:
            self.fault_drain(other, move, "revive", 2 * delay, seconds)

    def _fell(self, node: int, how: str, seconds: float) -> None:
        if not self.world.is_healed:  # Otherwise it comes too late for this run.
            self.world.fault(how)(node=node, seconds=seconds)

    def _revive(self, node: int) -> None:
        """Revives a node. Its listeners are closed, so it does not count as serving."""
        machine = self.world.machines[node]
        if machine.alive and machine.server is not None and machine.server.prepared and machine.loop is not None:
            machine.loop.create_task(machine.server.control.answer(b'{"command": "revive"}'))

    def end_draining(self) -> None:
        """An operator revives all nodes, and repeats that to the end: a drain that was ordered before may take effect
        only when the node is in contact with a majority again."""
        drained = self.drained()
        for number, machine in enumerate(self.world.machines):
            if machine.node_name in drained:
                self._revive(number)
        self.world.scheduler.after(2.0, self.end_draining)

    def drained(self) -> set[str]:
        """Returns nodes that some node sees as drained."""
        nodes = [one.server.node for one in self.world.machines if one.alive and one.server is not None]
        return {name for node in nodes if node is not None for name in out_of_service(node.metadata)}
