"""Two nodes that are cut off from each other for so long that the waiting one serves its clients from its copies.

In a run with `--paired --spooled`, nodes continue in a partition (`leveret.broker.mirrors.detached`), and are cut off
from each other for half a minute, twice, while clients at both publish, consume, get and leave. The ledger demands the
same as always: nothing confirmed is lost, and a second delivery is marked, whichever node makes it. And for a node that
serves by itself (`checkers.detached_checker`):

    marked      everything that it delivers from a copy is marked as redelivered
    settled     a message that was published to it after it was cut off, and acknowledged to it (likewise proved), is
                never delivered again by any node
    heard       an acknowledgement to it, proved by the confirm of a later publish, is in force once the node has no
                record of it any more; unless the other node had delivered the message before that
    told        when everything is healed and clients have gone, no node has such a record
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from simulation.clients.client import Step

if TYPE_CHECKING:
    from leveret.broker.mirrors.detachment import Detachment
    from simulation.core.machine import Machine
    from simulation.world import World

SUNDERED: Final = (40, 85)  # The number of steps that cut the nodes.
SPARED: Final = 5  # One of this many other faults is kept.
BEFORE_S: Final = 8.0  # Time for both to start, synchronise their copies and get messages, before they lose each other.
QUIET_S: Final = 15.0  # Time after which a node that is cut off serves by itself.
DRAWN: Final = ("consume", "consume", "publish", "publish", "get", "get", "prove", "prove", "cancel", "close_channel")


class Detaching:
    """Cuts two nodes from each other for long, and follows what each serves by itself."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.records: dict[tuple[str, str], None] = {}  # Existing records of acknowledgements, by node and queue.
        self.sundered: frozenset[tuple[str, str]] = frozenset()  # The ways that are cut for long.
        self.sundered_until = 0.0  # Until when they are cut: no shorter cut ends that.

    def fault_sunder(self, seconds: float, steps: list[tuple[float, str, dict[str, Any]]]) -> None:
        if self.world.scheduler.now < self.sundered_until:
            return
        for machine in self.world.machines:
            machine.start()
        self.world.operators.fault_policy(pattern="^d", definition={"ha-mode": "all", "ha-sync-mode": "automatic"})
        a, b = (machine.name for machine in self.world.machines[:2])
        self.sundered, self.sundered_until = frozenset({(a, b), (b, a)}), self.world.scheduler.now + seconds
        self.world.scheduler.after(BEFORE_S, self.world.cut, [(a, b), (b, a)], seconds - BEFORE_S)
        for delay, what, arguments in steps:
            self.world.scheduler.after(delay, self.world.take, Step(0, 0.0, what, arguments))

    def is_sundered(self, way: tuple[str, str]) -> bool:
        return way in self.sundered and self.world.scheduler.now < self.sundered_until

    def is_spared(self, step: Step) -> bool:
        """Returns whether a fault is left out: most are, while the nodes are cut off, since a node that dies then
        serves nobody until it is over."""
        return self.world.scheduler.now < self.sundered_until and step.number % SPARED != 0

    def observe_detached(self, machine: Machine, detachment: Detachment) -> None:
        now = self.world.scheduler.now
        if not detachment.queues and not self.records:
            return
        found = {one.spec.name: one for one in detachment.queues.values()}
        for name, one in found.items():
            self.records[machine.name, name] = None
            self.world.ledger.apart.on_serving(machine.name, name, one.is_serving, now)
        is_open = machine.serving
        for node, name in [key for key in self.records if key[0] == machine.name and key[1] not in found]:
            self.world.ledger.apart.on_serving(node, name, False, now)
            if is_open:  # Otherwise it has not read its log yet.
                del self.records[node, name]
                self.world.ledger.apart.on_told(node, name, self.world.ledger, now)

    def records_left(self) -> list[str]:
        nodes = [
            one.server.node for one in self.world.machines if one.server is not None and one.server.node is not None
        ]
        return [str(one) for node in nodes for one in node.broker.detachment.queues.values()]
