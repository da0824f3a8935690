"""Shovels through everything that a run does to nodes and links: nothing is lost or doubled, one node runs each.

    python -m simulation --shovels --seed 7 --nodes 3 [--mirrored] [--ailing] [--drained] [--trace] [--count 20]

A run as any other, in which two shovels move messages beside the clients: one over TCP between any two nodes, one over
pipes within the node that runs it. Publishers at all nodes fill their sources; nobody takes from their destinations.

What must hold, beside one worker (see `linked`):

    no loss      in the end, what a publisher was told to be safe is in the destination
    no double    in the end, nothing is in a destination twice
    at work      in quiet times each shovel runs at one node, and its source is empty
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from leveret.metadata.model.commands import DeclareQueue, SetParameter, SetPolicy
from leveret.metadata.shovel.commands import RestartWork
from leveret.metadata.shovel.records import SHOVEL, WorkKey
from simulation.amqp.contents import number_of
from simulation.links.linked import NEAR, LinkedWorld, Place, Source
from simulation.world import SETTLE_S, START_S

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.model.commands import Command
    from simulation.core.machine import Machine

NAMES: Final = ("over tcp", "over pipes")


class ShovelledWorld(LinkedWorld):
    """A run with shovels."""

    def sources(self) -> Collection[Source]:
        return [Source(NEAR, f"from {name}", True) for name in NAMES]

    def _begin(self) -> None:
        super()._begin()
        self.set_up()
        self.run_for(2.0)
        self.begin_publishing()
        self.scheduler.after(3.0, self._meddle)

    def set_up(self) -> None:
        names = [machine.node_name for machine in self.machines]
        if self.plan.mirrored:
            self.order(NEAR, SetPolicy("/", "moved", "^(from|to) ", "queues", 9, {"ha-mode": "all"}))
            self.run_for(1.0)
        for number, name in enumerate(NAMES):
            for end, at in (("from", number), ("to", number + 1)):
                self.order(NEAR, DeclareQueue("/", f"{end} {name}", node=names[at % len(names)]))
                self.run_for(1.0)
            uris: Json = self.uris_of(NEAR) if number == 0 else "amqp://"
            value: Json = {
                "src-uri": uris, "src-queue": f"from {name}", "src-predeclared": True, "dest-uri": uris,
                "dest-queue": f"to {name}", "dest-predeclared": True, "reconnect-delay": 0.3,
                "src-prefetch-count": 20,
            }  # fmt: skip
            self.order(NEAR, SetParameter(SHOVEL, "/", name, value))

    def _meddle(self) -> None:
        """Now and then an operator does something."""
        if not self.is_over:
            self.scheduler.after(self.links_rng.choice((0.1, 0.5, 4.0)), self._meddle)
            self.order(NEAR, self.meddling(self.links_rng.choice(NAMES)))

    def meddling(self, name: str) -> Command:
        return RestartWork(*self.key_of(name))

    def key_of(self, name: str) -> WorkKey:
        return WorkKey(SHOVEL, "/", name)

    # -- What must hold ------------------------------------------------------------------------------------------

    def observe(self, machine: Machine) -> None:
        super().observe(machine)
        node = None if machine.server is None else machine.server.node
        if node is not None:
            self.observe_workers(machine, node, NEAR)

    def _heal(self) -> None:
        super()._heal()
        self.run_for(5.0)
        self.await_rest()
        for name, source in zip(NAMES, self.sources(), strict=True):
            place = Place(NEAR, f"to {name}")
            if self.is_wiped(name):
                continue
            read = self.read(place, START_S + SETTLE_S)
            if read is None:
                self.fail(f"{place} could not be read")
            elif self.ledger.has_lost_disks:
                self.moved += len(read)
            else:
                self.compare(place, list(map(number_of, read)), [source])
        self.raise_failure()

    def unrest(self) -> str:
        for name in NAMES:
            if not self.is_wiped(name):
                wrong = self.idle(NEAR, self.key_of(name)) or self.left_in(self.taken_from(name))
                if wrong:
                    return wrong
        return ""

    def taken_from(self, name: str) -> Place:
        """Return the queue that messages are taken from."""
        return Place(NEAR, f"from {name}")

    def is_wiped(self, name: str) -> bool:
        """Tell whether a queue is gone with the only disk that had it."""
        return self.ledger.has_lost_disks and any(("/", one) not in self._queues() for one in self.needed(name))

    def needed(self, name: str) -> list[str]:
        return [f"from {name}", f"to {name}"]

    def _queues(self) -> Collection[tuple[str, str]]:
        return self.nodes_of(NEAR)[0].metadata.queues.keys()

    def summary(self) -> str:
        return f"{super().summary()}; links: {self.summary_of_links()}"
