"""What all runs with shovels or federation links have in common.

Publishers inside the nodes fill the *sources*, and note which messages they were told to be safe. Each message has a
number that no other has. Whatever runs at a node is compared with the metadata in each pass of its loop:

    one worker   a node has a worker only under the epoch that it has applied, and only if the assignment names it; no
                 two nodes of a cluster ever have a worker under the same epoch
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.session.checks import Refused
from leveret.broker.session.session import Session
from leveret.protocol.frames import content
from leveret.protocol.properties import Properties, encode
from simulation.core.machine import AMQP_PORT, Machine
from simulation.plan import Plan
from simulation.world import START_S, Violation, World

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.model.commands import Command
    from leveret.metadata.model.refusals import Refusal
    from leveret.metadata.shovel.records import WorkKey
    from leveret.metadata.store import Applied
    from leveret.node.node import Node
    from leveret.node.shovels.link_worker import LinkWorker
    from leveret.storage.format.queue_block import Run

NEAR, FAR = "near", "far"
BURST_MAX: Final = 30
KEYS: Final = 3  # Routing keys of what is published to an exchange.
QUIET_S: Final = 300.0  # Longer than a link waits between two attempts.
BYTES_MAX: Final = 1 << 30
FRAME_MAX: Final = 131_072


class Place(NamedTuple):
    """A queue or an exchange of a cluster."""

    side: str
    name: str
    vhost: str = "/"

    def __str__(self) -> str:
        return f"{self.name} of {self.side}{'' if self.vhost == '/' else self.vhost}"


class Source(NamedTuple):
    """A queue or an exchange that is published to. They are in the vhost `/`."""

    side: str
    name: str
    is_queue: bool


class Insider:
    """A client inside a node, which dies with it."""

    def __init__(self, machine: Machine, node: Node) -> None:
        self.machine = machine
        self.node = node
        self.life = machine.lives
        self.session = Session(node.broker.enter(self, "guest", "/"), self, "insider")
        self.unanswered: set[int] = set()  # Numbers of messages that are neither safe nor refused yet.

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


class LinkedWorld(World):
    """A run with shovels or federation links."""

    def __init__(self, plan: Plan, traced: bool = False) -> None:
        super().__init__(plan, traced)
        self.sides: dict[str, list[Machine]] = {NEAR: self.machines}
        self.links_rng = random.Random(f"{self.seed}/links")
        self.publishers: dict[str, Insider] = {}
        self.sent: list[Source] = []  # The source of message 1, 2, …
        self.safe: dict[Source, set[int]] = {source: set() for source in self.sources()}
        self.runners: dict[tuple[str, int], str] = {}  # By cluster and epoch: the node that had a worker.
        self.is_over = False  # Nothing is published any more.

    def sources(self) -> Collection[Source]:
        raise NotImplementedError

    # -- Clusters ------------------------------------------------------------------------------------------------

    def nodes_of(self, side: str) -> list[Node]:
        return [one.server.node for one in self.sides[side] if one.server is not None and one.server.node is not None]

    def uris_of(self, side: str, more: str = "") -> list[Json]:
        return [f"amqp://guest:guest@{machine.name}:{AMQP_PORT}{more}" for machine in self.sides[side]]

    def order(self, side: str, command: Command, rng: random.Random | None = None) -> None:
        """Have some node of a cluster propose a command, if there is one that can."""
        serving = [one for one in self.sides[side] if one.serving and not one.is_frozen]
        if serving:
            self.order_at((rng or self.links_rng).choice(serving), command, lambda applied: None)

    def order_at(self, machine: Machine, command: Command, then: Callable[[Applied], None]) -> None:
        node = None if machine.server is None else machine.server.node
        if machine.loop is not None and node is not None:
            machine.loop.call_soon(node.propose, command, then)

    def demand(self, side: str, command: Command) -> None:
        """Have a cluster agree on a command, in quiet times: nothing can keep it from that."""
        agreed: list[Applied] = []
        self.order_at(self.links_rng.choice(self.sides[side]), command, agreed.append)
        self.must(START_S, lambda: bool(agreed), lambda: f"{side} does not answer {command}")
        if agreed[0].refused is not None:
            self.fail(f"{side} refuses {command}: {agreed[0].refused}")
            self.raise_failure()

    def leading(self, place: Place) -> tuple[Machine, Node, LocalQueue] | None:
        """Return where a queue is served, if it is."""
        for machine in self.sides[place.side]:
            node = machine.server.node if machine.serving and machine.server is not None else None
            vhost = None if node is None else node.broker.vhosts.get(place.vhost)
            found = None if vhost is None else vhost.queues.get(place.name)
            if node is not None and isinstance(found, LocalQueue):
                return machine, node, found
        return None

    def read(self, place: Place, seconds: float) -> list[bytes] | None:
        """Return the contents of a queue that nobody takes from; None if it cannot be read in that time."""
        found = self.leading(place)
        if found is None:
            return None
        _, node, queue = found
        read: list[bytes] = []
        done: list[bool] = []

        def then(runs: list[Run] | None, following: int) -> None:
            for run in runs or ():
                read.extend(run.contents)
            done.append(True)

        node.storage.read_range(queue.spec.id, 1, queue.next_seq, BYTES_MAX, then)
        node.schedule()
        self.run_for(seconds, lambda: bool(done))
        return read if done else None

    # -- Publishers ----------------------------------------------------------------------------------------------

    def begin_publishing(self) -> None:
        self.scheduler.after(self.links_rng.random(), self._publish)

    def _publish(self) -> None:
        if self.is_over:
            return
        rng = self.links_rng
        self.scheduler.after(rng.choice((0.02, 0.2, 1.0)), self._publish)
        source = rng.choice(list(self.safe))
        serving = [one for one in self.sides[source.side] if one.serving and one.loop is not None]
        if serving:
            machine = rng.choice(serving)
            assert machine.loop is not None
            machine.loop.call_soon(self.burst, machine, source, rng.randrange(1, BURST_MAX))

    def burst(self, machine: Machine, source: Source, count: int) -> None:
        """Publish some messages at a node."""
        node = None if machine.server is None else machine.server.node
        if node is None or not machine.serving:
            return
        publisher = self.publishers.get(machine.name)
        if publisher is None or not publisher.is_alive:
            publisher = self.publishers[machine.name] = Insider(machine, node)
        for _ in range(count):
            self.sent.append(source)
            self._publish_one(publisher, source, len(self.sent))
        node.schedule()

    def _publish_one(self, publisher: Insider, source: Source, number: int) -> None:
        body = b"%d is moved" % number
        made = content(encode(Properties(delivery_mode=2), len(body)), body, FRAME_MAX)
        exchange, key = ("", source.name) if source.is_queue else (source.name, f"key {number % KEYS}")

        def then(is_safe: bool) -> None:
            publisher.unanswered.discard(number)
            if is_safe:
                self.safe[source].add(number)

        publisher.unanswered.add(number)
        try:
            if not publisher.session.publish(exchange, key, made, then):
                publisher.unanswered.discard(number)
                self.safe[source].discard(number)  # It went nowhere.
        except Refused as refused:
            publisher.unanswered.discard(number)
            self.note(publisher.machine.name, f"a publish is refused: {refused}")

    # -- What must hold ------------------------------------------------------------------------------------------

    def observe_workers(self, machine: Machine, node: Node, side: str) -> None:
        metadata, federation = node.metadata, node.federation
        assigned, workers = metadata.assignments, node.shovels.workers
        shovels = [(key, one.assignment.epoch, assigned.get(key)) for key, one in workers.items()]
        links = [(key, one.assignment.epoch, metadata.links.get(key)) for key, one in federation.workers.items()]
        # What concerns links, and was applied in this very moment, is compared before the next turn.
        for key, epoch, known in [*shovels, *([] if federation.has_changed else links)]:
            if known is None or known.epoch != epoch or known.node != machine.node_name:
                self.fail(f"{machine.name} runs {key.name} under epoch {epoch}, and has applied {known}")
        for key, epoch, _ in [*shovels, *links]:
            other = self.runners.setdefault((side, epoch), machine.name)
            if other != machine.name:
                self.fail(f"{machine.name} and {other} run {key.name} under epoch {epoch}")

    def idle(self, side: str, key: WorkKey) -> str:
        """Return what is wrong with the worker of a shovel or a link, in quiet times."""
        running: list[LinkWorker] = []
        for node in self.nodes_of(side):
            running += [one for at, one in node.shovels.workers.items() if at == key]
            running += [one for at, one in node.federation.workers.items() if at == key]
        if len(running) != 1 or running[0].life.value != "running":
            states = [(worker.life, worker.reason) for worker in running]
            return f"{key.name} is run by {len(running)} nodes: {states}"
        return ""

    def left_in(self, place: Place) -> str:
        """Return how many messages are in a queue that should be empty; nothing if it is."""
        found = self.leading(place)
        if found is None:
            return f"nobody leads {place}"
        left = found[2].ready_count + found[2].unacked_count
        return f"{left} messages are left in {place}" if left else ""

    def await_rest(self) -> None:
        """Nothing more is published. Wait until all is answered, all links run, and what they take from is empty."""
        self.is_over = True
        self.run_for(0.01)  # For what is about to be published.
        self.must(QUIET_S, lambda: not self._on_the_way() and not self.unrest(), self.unrest)

    def _on_the_way(self) -> bool:
        """Return whether publishes have not come to the queues that links take from."""
        return any(one.is_alive and one.unanswered for one in self.publishers.values())

    def unrest(self) -> str:
        raise NotImplementedError

    def compare(self, place: Place, came: Sequence[int], sources: Iterable[Source]) -> None:
        """Compare what has come to a queue with what is known to be safe at its sources."""
        self.moved += len(came)
        twice = sorted(number for number, count in Counter(came).items() if count > 1)
        if twice:
            self.fail(f"{len(twice)} messages came twice to {place}: {twice[:5]}")
        there = set(came)
        for source in sources:
            lost = sorted(self.safe[source] - there)
            if lost:
                self.fail(f"{len(lost)} messages of {source.name} were lost on the way to {place}: {lost[:5]}")

    def raise_failure(self) -> None:
        if self.failure is not None:
            raise Violation(self.failure)

    def summary_of_links(self) -> str:
        safe = sum(map(len, self.safe.values()))
        return f"{safe} safe, {self.moved} moved, {len(self.runners)} workers"
