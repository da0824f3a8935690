"""What a link brings again after a master was lost is marked as redelivered, if a consumer may have seen it there.

The master of the queue that messages come to is cut off from its cluster, and not from the link. So it delivers what
comes, and no other node ever has it. Then it dies, and the link brings all of it again, to the next master. A queue
without mirrors is on a slow disk instead, so that what comes is delivered and not written when its node dies.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pytest

from leveret.broker.session.wanted import ConsumerWanted
from leveret.federation.bindings import queue_name
from leveret.metadata.federation.links import link_key
from leveret.metadata.model.commands import (
    Bind,
    DeclareExchange,
    DeclareQueue,
    SetGlobalParameter,
    SetParameter,
    SetPolicy,
)
from leveret.metadata.shovel.commands import AssignRow, AssignWork, RestartWork
from leveret.metadata.shovel.records import SHOVEL, WorkKey
from leveret.node.shovels.worker import ShovelWorker
from simulation.amqp.contents import number_of
from simulation.links.linked import FAR, NEAR, QUIET_S, Insider, Place, Source
from simulation.links.two_clusters import TwoClusters
from simulation.plan import Plan
from simulation.world import START_S, quiet

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.broker.session.message import Delivery
    from leveret.node.node import Node
    from leveret.node.shovels.link_worker import LinkWorker
    from simulation.core.machine import Machine

ROOM = 1_000
UPSTREAM = "federation-upstream"
MOVED, TAKEN = Place(FAR, "moved"), Place(NEAR, "moved")
EXCHANGE = "news"
LINK_QUEUE = Place(FAR, queue_name(EXCHANGE, "/", EXCHANGE, "/", NEAR))


class Consumer(Insider):
    """A consumer inside a node, which acknowledges what it gets."""

    def __init__(self, scene: Scene, machine: Machine, node: Node) -> None:
        super().__init__(machine, node)
        self.scene = scene
        self.session.consume(ConsumerWanted(TAKEN.name, prefetch=100), self, lambda answer: None)
        node.schedule()

    def room(self, average_bytes: int) -> int:
        return ROOM

    def receive(self, deliveries: list[Delivery]) -> None:
        for one in deliveries:
            self.scene.seen.setdefault(number_of(one.content), []).append(one.redelivered)
        assert self.machine.loop is not None
        self.machine.loop.call_soon(self._acknowledge, deliveries[-1].number)

    def _acknowledge(self, number: int) -> None:
        if self.is_alive:
            self.session.acknowledge(self.session.take(number, multiple=True))
            self.node.schedule()

    def on_cancelled(self, tag: str) -> None:
        """The node of the queue is lost."""


class Scene(TwoClusters):
    """One link from the far cluster to a queue of the near one, whose master is n1."""

    def __init__(self, seed: int, kind: str, mirrored: bool) -> None:
        self.kind = kind
        super().__init__(Plan(seed, 3, 0, links="shovels", two_clusters=True))
        self.is_mirrored = mirrored
        self.seen: dict[int, list[bool]] = {}  # By message: the marks of its deliveries.

    def sources(self) -> Collection[Source]:
        return [Source(FAR, EXCHANGE, False) if self.kind == "exchange" else Source(FAR, MOVED.name, True)]

    def works(self) -> list[tuple[str, WorkKey]]:
        if self.kind == "shovel":
            return [(FAR, WorkKey(SHOVEL, "/", "s"))]
        name = EXCHANGE if self.kind == "exchange" else MOVED.name
        return [(NEAR, link_key("/", self.kind, name, "u", name))]

    def set_up(self) -> None:
        for side in (NEAR, FAR):
            self.order(side, SetGlobalParameter("cluster_name", side))
            if self.is_mirrored:
                self.order(side, SetPolicy("/", "mirrored", "", "queues", 1, {"ha-mode": "all"}))
            self.order(side, DeclareExchange("/", EXCHANGE, "topic"))
        self.run_for(1.0)
        for place in (MOVED, TAKEN):
            self.order(place.side, DeclareQueue("/", place.name, node=self.sides[place.side][0].node_name))
        self.run_for(1.0)
        if self.kind == "shovel":
            value: Json = {
                "src-uri": "amqp://", "src-queue": MOVED.name, "src-predeclared": True,
                "dest-uri": self.uris_of(NEAR), "dest-queue": TAKEN.name, "dest-predeclared": True,
                "reconnect-delay": 0.3, "src-prefetch-count": 20,
            }  # fmt: skip
            self.order(FAR, SetParameter(SHOVEL, "/", "s", value))
        else:
            value = {"uri": self.uris_of(FAR, "/%2f"), "reconnect-delay": 0.3, "prefetch-count": 20}
            self.order(NEAR, SetParameter(UPSTREAM, "/", "u", value))
            self.order(NEAR, Bind("/", EXCHANGE, "queue", TAKEN.name, "#"))
            definition: dict[str, Json] = {UPSTREAM: "u"}
            pattern = EXCHANGE
            if self.kind == "queue":
                pattern = TAKEN.name
                if self.is_mirrored:
                    definition["ha-mode"] = "all"
            self.order(NEAR, SetPolicy("/", "federated", f"^{pattern}$", f"{self.kind}s", 9, definition))
        self.run_for(2.0)

    def worker(self) -> LinkWorker | None:
        (side, key), *_ = self.works()
        for node in self.nodes_of(side):
            worker: LinkWorker | None = node.shovels.workers.get(key) or node.federation.workers.get(key)
            if worker is not None and worker.life.value == "running":
                return worker
        return None

    def leads_by_first(self) -> bool:
        """Tell whether what the link brings goes to n1."""
        worker = self.worker()
        if isinstance(worker, ShovelWorker):
            return "n1" in worker.uris[1]
        return worker is not None and worker.node is self.nodes_of(NEAR)[0]

    def lead_by_first(self) -> None:
        """Begin anew, or at another node, until what the link brings goes to n1."""
        (side, key), *_ = self.works()
        for _ in range(50):
            if self.run_for(2.0, self.leads_by_first):
                return
            known = self.assignment(side, key)
            assert known is not None
            to = AssignWork((AssignRow(*key, known.epoch, self.machines[0].node_name),))
            self.order(side, RestartWork(*key) if self.kind == "shovel" else to)
            self.run_for(0.5)
        raise AssertionError("the link does not lead to n1")

    def consume_at(self, machine: Machine) -> None:
        assert machine.loop is not None and machine.server is not None and machine.server.node is not None
        machine.loop.call_soon(Consumer, self, machine, machine.server.node)

    def publish(self, count: int) -> None:
        machine = self.sides[FAR][0]
        (source,) = self.sources()
        assert machine.loop is not None
        machine.loop.call_soon(self.burst, machine, source, count)

    def play_scene(self) -> None:
        for machine in self.everybody:
            self.scheduler.after(self.rng.random() * 2, machine.start)
        self.must(START_S, self.all_serve, self.standing)
        self.set_up()
        first, *others = self.machines
        for machine in (first, *others):
            self.consume_at(machine)
        self.run_for(1.0)
        self.lead_by_first()
        found = self.leading(TAKEN)
        assert found is not None and found[0] is first
        self.publish(10)
        self.must(QUIET_S, lambda: len(self.seen) == 10, lambda: f"{len(self.seen)} of 10 have come")
        if self.is_mirrored:
            self.cut([way for one in others for way in ((first.name, one.name), (one.name, first.name))], 5.0)
        else:
            self.fault_slow_disk(0, 5.0)
        self.publish(20)
        self.must(5.0, lambda: len(self.seen) > 10, lambda: "n1 delivers nothing")
        self.fault_kill(0, 10.0)
        self.must(START_S, lambda: not first.serving, self.standing)
        self.must(START_S, self.all_serve, self.standing)
        for machine in self.machines if not self.is_mirrored else [first]:  # The others have theirs still.
            self.consume_at(machine)
        self.must(QUIET_S, lambda: not self.left(), self.left)

    def left(self) -> str:
        """Return what is still to be done."""
        if len(self.seen) < len(self.sent):
            return f"{len(self.seen)} of {len(self.sent)} messages have come"
        taken_from = LINK_QUEUE if self.kind == "exchange" else MOVED
        return self.unrest() or self.left_in(taken_from) or self.left_in(TAKEN)


@pytest.mark.parametrize("mirrored", [True, False])
@pytest.mark.parametrize("kind", ["shovel", "queue", "exchange"])
def test_what_a_lost_master_may_have_delivered_is_marked(kind: str, mirrored: bool) -> None:
    scene = Scene(3, kind, mirrored)
    try:
        with quiet():
            scene.play_scene()
        again = {number: marks for number, marks in scene.seen.items() if len(marks) > 1}
        assert again, "nothing came twice"
        assert all(all(marks[1:]) for marks in again.values()), again
    finally:
        scene.close()
