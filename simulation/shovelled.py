"""Shovels through everything that a run does to nodes and links: nothing is lost or doubled, one node runs each.

    python -m simulation.shovelled --seed 7 --nodes 3 [--mirrored] [--trace] [--count 20]

A run as any other, in which two shovels move messages beside the clients: one over TCP between any two nodes, one over
pipes within the node that runs it. Publishers at all nodes fill their sources; nobody takes from their destinations.

What must hold:

    one worker   a node has a worker only under the epoch that it has applied, and only if the assignment names it
    no loss      in the end, what a publisher was told to be safe is in the destination
    no double    in the end, nothing is in a destination twice
    at work      in quiet times each shovel runs at one node, and its source is empty
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.session.checks import Refused
from leveret.broker.session.session import Session
from leveret.metadata.model.commands import DeclareQueue, SetParameter, SetPolicy
from leveret.metadata.shovel.commands import RestartWork
from leveret.protocol.frames import content
from leveret.protocol.properties import Properties, encode
from simulation import own_command
from simulation.amqp.contents import number_of
from simulation.core.machine import AMQP_PORT
from simulation.plan import Plan
from simulation.world import SETTLE_S, START_S, Violation, World

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.model.refusals import Refusal
    from leveret.node.node import Node
    from leveret.storage.format.queue_block import Run
    from simulation.core.machine import Machine

SHOVELS: Final = ("over tcp", "over pipes")
BURST_MAX: Final = 30
QUIET_S: Final = 300.0  # Longer than a shovel waits between two attempts.
BYTES_MAX: Final = 1 << 30
FRAME_MAX: Final = 131_072


class Publisher:
    """A client inside a node, which dies with it."""

    def __init__(self, machine: Machine, node: Node) -> None:
        self.machine = machine
        self.node = node
        self.life = machine.lives
        self.session = Session(node.broker.enter(self, "guest", "/"), self, "publisher")

    @property
    def is_alive(self) -> bool:
        server = self.machine.server
        is_same = self.machine.lives == self.life and server is not None and server.node is self.node
        return is_same and self.machine.alive and not self.session.is_closed

    def close(self, code: int, text: str) -> None:
        self.session.close()
        self.node.broker.leave(self)

    def fail(self, session: Session, refusal: Refusal) -> None:
        self.session.close()

    def on_crowded(self, queue: Any) -> None:
        """It publishes little."""


class ShovelledWorld(World):
    """A run with shovels."""

    def __init__(self, plan: Plan, traced: bool = False) -> None:
        super().__init__(plan, traced)
        self.shovel_rng = random.Random(f"{self.seed}/shovels")
        self.publishers: dict[str, Publisher] = {}
        self.sent = {name: 0 for name in SHOVELS}
        self.safe: dict[str, set[int]] = {name: set() for name in SHOVELS}
        self.is_over = False
        self.epochs: set[int] = set()
        self.moved = 0

    def _begin(self) -> None:
        super()._begin()
        names = [machine.node_name for machine in self.machines]
        if self.plan.mirrored:
            self.operators.order(SetPolicy("/", "moved", "^(from|to) ", "queues", 9, {"ha-mode": "all"}))
            self.run_for(1.0)
        hosts: list[Json] = [f"amqp://guest:guest@{machine.name}:{AMQP_PORT}" for machine in self.machines]
        for number, name in enumerate(SHOVELS):
            for end, at in (("from", number), ("to", number + 1)):
                self.operators.order(DeclareQueue("/", f"{end} {name}", node=names[at % len(names)]))
                self.run_for(1.0)
            uris: Json = hosts if number == 0 else "amqp://"
            value: Json = {
                "src-uri": uris, "src-queue": f"from {name}", "src-predeclared": True, "dest-uri": uris,
                "dest-queue": f"to {name}", "dest-predeclared": True, "reconnect-delay": 0.3,
                "src-prefetch-count": 20,
            }  # fmt: skip
            self.operators.order(SetParameter("shovel", "/", name, value))
        self.run_for(2.0)
        self.scheduler.after(self.shovel_rng.random(), self._publish)
        self.scheduler.after(3.0, self._restart)

    # -- Publishers ----------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        if self.is_over:
            return
        rng = self.shovel_rng
        self.scheduler.after(rng.choice((0.02, 0.2, 1.0)), self._publish)
        serving = [one for one in self.machines if one.serving and one.loop is not None]
        if not serving:
            return
        machine, name, count = rng.choice(serving), rng.choice(SHOVELS), rng.randrange(1, BURST_MAX)
        assert machine.loop is not None
        machine.loop.call_soon(self._burst, machine, name, count)

    def _restart(self) -> None:
        """Now and then an operator restarts a shovel."""
        if self.is_over:
            return
        self.scheduler.after(self.shovel_rng.choice((0.1, 0.5, 4.0)), self._restart)
        serving = [one for one in self.machines if one.serving and one.server is not None and one.loop is not None]
        if serving:
            machine, name = self.shovel_rng.choice(serving), self.shovel_rng.choice(SHOVELS)
            command = RestartWork("shovel", "/", name)
            node = None if machine.server is None else machine.server.node
            if node is not None and machine.loop is not None:
                machine.loop.call_soon(node.propose, command, lambda applied: None)

    def _burst(self, machine: Machine, name: str, count: int) -> None:
        node = None if machine.server is None else machine.server.node
        if node is None or not machine.serving:
            return
        publisher = self.publishers.get(machine.name)
        if publisher is None or not publisher.is_alive:
            publisher = self.publishers[machine.name] = Publisher(machine, node)
        for _ in range(count):
            self.sent[name] += 1
            self._publish_one(publisher, name, self.sent[name])
        node.schedule()

    def _publish_one(self, publisher: Publisher, name: str, number: int) -> None:
        body = b"%d is moved" % number
        made = content(encode(Properties(delivery_mode=2), len(body)), body, FRAME_MAX)
        self.publish_to(publisher, "", f"from {name}", name, number, made)

    def publish_to(self, publisher: Publisher, exchange: str, key: str, name: str, number: int, made: bytes) -> None:
        """Publish a message, and note when it is told to be safe."""

        def then(is_safe: bool) -> None:
            if is_safe:
                self.safe[name].add(number)

        try:
            if not publisher.session.publish(exchange, key, made, then):
                self.safe[name].discard(number)  # The queue is not there.
        except Refused as refused:
            self.note(publisher.machine.name, f"a publish is refused: {refused}")

    # -- What must hold ------------------------------------------------------------------------------------------

    def observe(self, machine: Machine) -> None:
        super().observe(machine)
        node = None if machine.server is None else machine.server.node
        if node is None:
            return
        for key, worker in node.shovels.workers.items():
            known = node.metadata.assignments.get(key)
            epoch = worker.assignment.epoch
            self.epochs.add(epoch)
            if known is None or known.epoch != epoch or known.node != machine.node_name:
                self.fail(f"{machine.name} runs {key.name} under epoch {epoch}, and has applied {known}")

    def _nodes(self) -> list[Node]:
        return [one.server.node for one in self.machines if one.server is not None and one.server.node is not None]

    def _heal(self) -> None:
        super()._heal()
        self.run_for(5.0)
        self.is_over = True
        self.must(QUIET_S, lambda: not self._unrest(), self._unrest)
        for name in SHOVELS:
            self._check(name)
        if self.failure is not None:
            raise Violation(self.failure)

    def _unrest(self) -> str:
        for name in SHOVELS:
            if self._is_wiped(name):
                continue
            running = [
                worker
                for node in self._nodes()
                for key, worker in node.shovels.workers.items()
                if key.name == name
            ]
            if len(running) != 1 or running[0].life.value != "running":
                states = [(worker.life, worker.reason) for worker in running]
                return f"shovel {name} is run by {len(running)} nodes: {states}"
            found = self.operators.leading(f"from {name}")
            if found is None:
                return f"nobody leads the source of {name}"
            left = found[2].ready_count + found[2].unacked_count
            if left:
                return f"{left} messages are left in the source of {name}: {running[0].status()}"
        return ""

    def _is_wiped(self, name: str) -> bool:
        """Tell whether a queue is gone with the only disk that had it."""
        queues = [f"from {name}", f"to {name}"]
        return self.ledger.has_lost_disks and any(("/", one) not in self._nodes()[0].metadata.queues for one in queues)

    def _check(self, name: str) -> None:
        if self._is_wiped(name):
            return
        found = self.operators.leading(f"to {name}")
        if found is None:
            self.fail(f"nobody leads the destination of {name}")
            return
        _, node, queue = found
        read: list[int] = []
        done: list[bool] = []

        def then(runs: list[Run] | None, following: int) -> None:
            for run in runs or ():
                read.extend(number_of(one) for one in run.contents)
            done.append(True)

        node.storage.read_range(queue.spec.id, 1, queue.next_seq, BYTES_MAX, then)
        node.schedule()
        self.must(START_S + SETTLE_S, lambda: bool(done), lambda: "the destination could not be read")
        self.moved += len(read)
        if self.ledger.has_lost_disks:
            return
        twice = sorted(number for number, count in Counter(read).items() if count > 1)
        if twice:
            self.fail(f"{len(twice)} messages came twice through {name}: {twice[:5]}")
        lost = sorted(self.safe[name] - set(read))
        if lost:
            self.fail(f"{len(lost)} messages were lost on the way through {name}: {lost[:5]}")

    def summary(self) -> str:
        safe = sum(map(len, self.safe.values()))
        return f"{super().summary()}; shovels: {safe} safe, {self.moved} moved, {len(self.epochs)} epochs"


def run(plan: Plan, traced: bool = False) -> ShovelledWorld:
    """Raises Violation, with the command that replays it."""
    return own_command.play("shovelled", ShovelledWorld, plan, traced)


if __name__ == "__main__":
    sys.exit(own_command.main("shovelled", ShovelledWorld))
