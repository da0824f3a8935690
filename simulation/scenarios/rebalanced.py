"""Queues are moved and rebalanced while everything else happens, and nodes die in the middle of it.

In a run with `--rebalanced` some clusters rebalance by themselves, every few seconds, with a strategy that is drawn
from the seed; and operators rebalance, or move single queues. Sometimes the master of a queue, the Raft leader, or the
target of a move dies a moment later. The checks are those of every run: nothing confirmed is lost, order is kept, a
queue has one master, and in the end every queue has the copies that its policy wants and no others, so that no move is
left half done.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any, Final

from leveret.metadata.rebalancing import ON_DEMAND, STRATEGIES, TIMER, Schedule
from leveret.metadata.rules.placement import MOVES
from leveret.node.admin.common.command import Refused

if TYPE_CHECKING:
    from simulation.world import World

REBALANCED_FAULTS: Final = (("rebalance", 6), ("appoint", 12), ("unsettle", 12))


def draw_schedule(seed: int) -> Schedule:
    rng = random.Random(f"{seed}/rebalanced")
    return Schedule(
        trigger=rng.choice((TIMER, TIMER, ON_DEMAND)),
        interval_ms=rng.choice((500, 3_000)),
        strategy=rng.choice(STRATEGIES),
        threshold=rng.choice((0.01, 0.1)),
        at_once=rng.choice((1, 4)),
        rest_ms=rng.choice((0, 5_000)),
    )


def draw_rebalance(rng: random.Random, what: str, queue: str, nodes: int) -> dict[str, Any]:
    """Draws the arguments of a step."""
    if what == "rebalance":
        return {"strategy": rng.choice(STRATEGIES), "node": rng.randrange(nodes)}
    if what == "appoint":
        return {"queue": queue, "node": rng.randrange(nodes)}
    return {
        "queue": queue,
        "node": rng.randrange(nodes),
        "whom": rng.choice(("master", "master", "target", "leader")),
        "how": rng.choice(("kill", "power", "power", "isolate", "pause", "terminate")),
        "delay": round(rng.choice((0.002, 0.02, 0.1, 0.5)) * rng.random(), 6),
        "seconds": round(rng.choice((0.01, 0.5, 2.0, 8.0)) * (0.5 + rng.random()), 3),
    }


class Rebalancing:
    """Moves queues and rebalances them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.obeyed = 0  # Commands that were carried out.

    def fault_rebalance(self, strategy: str, node: int) -> None:
        self.command(node, "rebalance", {"strategy": strategy})

    def fault_appoint(self, queue: str, node: int) -> None:
        to = self.world.machines[node].node_name
        asked = self.world.rng.randrange(len(self.world.machines))
        self.command(asked, "move_queue_master", {"vhost": "/", "name": queue, "node": to})

    def command(self, node: int, command: str, arguments: dict[str, Any]) -> None:
        machine = self.world.machines[node]
        if not machine.serving or machine.server is None or machine.loop is None:
            return
        task: asyncio.Task[Any] = machine.loop.create_task(machine.server.control.run(command, arguments))

        def done(task: asyncio.Task[Any]) -> None:
            failure = None if task.cancelled() else task.exception()
            self.obeyed += failure is None and not task.cancelled()
            self.world.note("operator", f"{command} {arguments} at {machine.name}: {failure or 'done'}")
            if failure is not None and not isinstance(failure, Refused):
                raise failure

        task.add_done_callback(done)

    def fault_unsettle(self, queue: str, node: int, whom: str, how: str, delay: float, seconds: float) -> None:
        """Moves a queue, and kills a node that takes part in the move."""
        self.fault_appoint(queue, node)
        victim = node if whom == "target" else self._who(queue, whom)
        if victim is not None:
            fall = self.world.fault(how)
            self.world.scheduler.after(delay, lambda: fall(node=victim, seconds=seconds))

    def end_rebalancing(self) -> None:
        """Ends it: from now on the world hands queues over, to compare their copies."""
        for machine in self.world.machines:
            if machine.serving and machine.server is not None and machine.loop is not None:
                machine.loop.create_task(machine.server.control.rebalancer.stop())

    def is_settled(self) -> bool:
        """Returns whether no queue is being moved."""
        nodes = [one.server.node for one in self.world.machines if one.serving and one.server is not None]
        return not any(key[0] == MOVES for node in nodes if node is not None for key in node.metadata.parameters)

    def _who(self, queue: str, whom: str) -> int | None:
        for number, machine in enumerate(self.world.machines):
            node = machine.server.node if machine.serving and machine.server is not None else None
            if node is None:
                continue
            spec = node.metadata.queues.get(("/", queue))
            leads = node.cluster.raft.is_leader if whom == "leader" else spec and spec.node == machine.node_name
            if leads:
                return number
        return None
