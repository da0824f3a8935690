"""What operators do to mirrored queues, and faults of their masters.

A part of the world: each `fault_…` is a step of a plan. An operator's command goes to a node in a pass of its own, as
if somebody had sent it there, and its result is seen only by what the nodes do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leveret.broker.queue.local_queue import LocalQueue
from leveret.metadata.model.commands import ClearPolicy, Command, SetPolicy
from simulation.clients.client import Step
from simulation.core.machine import Machine

if TYPE_CHECKING:
    from leveret.broker.mirrors.manager import Mirror
    from leveret.node.node import Node
    from simulation.world import World


class Operators:
    """Does what operators do to mirrored queues, and kills their masters."""

    def __init__(self, world: World) -> None:
        self.world = world

    def order(self, command: Command) -> None:
        """Lets the first node carry out a command."""
        machine = self.world.machines[0]
        assert machine.server is not None and machine.server.node is not None and machine.loop is not None
        machine.loop.create_task(machine.server.node.cluster.change(command))

    def fault_policy(self, pattern: str, definition: dict[str, Any] | None) -> None:
        """An operator changes the policy of all queues at some node that serves."""
        asked = [machine for machine in self.world.machines if machine.serving]
        if not asked:
            return
        machine = self.world.rng.choice(asked)
        assert machine.server is not None and machine.server.node is not None and machine.loop is not None
        command: Command = ClearPolicy("/", "ha")
        if definition is not None:
            command = SetPolicy("/", "ha", pattern, "queues", 0, definition)
        task = machine.loop.create_task(machine.server.node.cluster.change(command))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    def leading(self, queue: str) -> tuple[Machine, Node, LocalQueue] | None:
        """Returns where a queue is served, if it is."""
        for machine in self.world.machines:
            node = machine.server.node if machine.serving and machine.server is not None else None
            found = None if node is None or "/" not in node.broker.vhosts else node.broker.vhosts["/"].queues.get(queue)
            if node is not None and isinstance(found, LocalQueue):
                return machine, node, found
        return None

    def fault_hand_over(self, queue: str, node: int, wanted: bool) -> None:
        """An operator moves the master of a queue."""
        found = self.leading(queue)
        if found is not None and found[2].mirror is not None:
            self.hand_over(found[0], found[1], found[2].mirror, self.world.machines[node].node_name)

    def hand_over(self, machine: Machine, node: Node, mirror: Mirror, to: str) -> None:
        """Hands over as if the node did it by itself, in a pass of its own."""
        assert machine.loop is not None

        def begin() -> None:
            if mirror.queue is not None and to != machine.node_name:
                node.broker.mirrors.hand_over(mirror, to, hasty=True)
                node.schedule()

        machine.loop.call_soon(begin)

    def fault_order_sync(self, queue: str, node: int, wanted: bool) -> None:
        """An operator synchronises the mirrors of a queue, or cancels that, at its master."""
        found = self.leading(queue)
        if found is not None and found[0].loop is not None:
            found[0].loop.call_soon(self._order_sync, found[1], queue, wanted)

    def _order_sync(self, node: Node, queue: str, wanted: bool) -> None:
        for mirror in list(node.broker.mirrors):
            if mirror.spec.name != queue or mirror.queue is None:
                continue
            if not wanted or node.member_changes.rules_of(mirror.spec).sync_refused is None:
                node.broker.mirrors.order_sync(mirror, wanted)
        node.schedule()

    def fault_force(self, queue: str, node: int, insists: bool) -> None:
        """An operator promotes a copy whatever is lost: because there is no master, or (insisting) anyway. A copy in
        sync is never forced while there is a master: `move_queue_master` would do."""
        machine = self.world.machines[node]
        there = machine.server.node if machine.serving and machine.server is not None else None
        if there is None or machine.loop is None or (not insists and self.leading(queue) is not None):
            return

        def force() -> None:
            assert self.world.mirrors is not None
            self.world.mirrors.on_force(queue)
            for mirror in list(there.broker.mirrors):
                if mirror.spec.name == queue and (not mirror.member.in_sync or self.leading(queue) is None):
                    there.broker.mirrors.force(mirror)
            there.schedule()

        machine.loop.call_soon(force)

    def fault_interrupt(
        self, by: str, first: dict[str, Any], queue: str, delay: float, how: str, seconds: float
    ) -> None:
        """Begins something, and kills the master of a queue in the middle of it."""
        found = self.leading(queue)
        self.world.fault(by)(**first)
        if found is not None:
            fall = self.world.fault(how)
            node = self.world.machines.index(found[0])
            self.world.scheduler.after(delay, lambda: fall(node=node, seconds=seconds))

    def fault_burst(self, queue: str, count: int, padding: int) -> None:
        """Makes all clients publish at once."""
        for client in self.world.clients:
            publish = {"queue": queue, "count": count, "padding": padding, "persistent": True, "wait": False}
            client.give(Step(0, 0.0, "publish", publish))

    def fault_stop_some(self, some: list[int], seconds: float) -> None:
        """Stops several nodes in an orderly way at once."""
        for node in some:
            self.world.fault_terminate(node, seconds * (0.5 + self.world.rng.random()))

    def fault_fell_master(self, queue: str, how: str, seconds: float) -> None:
        """Kills the master of a queue."""
        found = self.leading(queue)
        if found is not None:
            self.world.fault(how)(node=self.world.machines.index(found[0]), seconds=seconds)
