"""Runs a case: starts a load, makes faults, mends them, drains the queues, and leaves histories in a folder."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from faults.cases.case import Case
from faults.clients.amqp import Amqp, ChannelError, Lost, declare
from faults.clients.consumer import Consumer
from faults.clients.load import PATIENCE_S, Board, Client, Where, picker
from faults.clients.publisher import Publisher
from faults.clients.registrar import Registrar
from faults.history.entries import Writer, now_ns
from faults.history.verdict import Verdict, judge
from faults.machines.cluster import Cluster
from faults.machines.node import Node, NodeError, until

PROGRESS_S = 60.0
DRAIN_S = 60.0
SETTLE_S = 1.0
SHORT_SETTLE_S = 0.3
SHORT_PAUSE_S = 0.05
Note = Callable[[str], None]
T = TypeVar("T")


def cluster_for(cases: Sequence[Case], folder: Path, broker: str = "leveret") -> Cluster:
    """Returns a cluster on which these cases can run, one after the other."""
    disks, clocks = any(case.disks for case in cases), any(case.clocks for case in cases)
    nodes, spare = max(case.nodes for case in cases), max(case.spare for case in cases)
    config = "\n".join(case.config for case in cases)
    plugins = sorted({plugin for case in cases for plugin in case.plugins})
    return Cluster(folder, broker, nodes, disks, clocks, config, spare, plugins)


class Run:
    """A case that is running. Cases use it to make load and faults."""

    def __init__(
        self, case: Case, cluster: Cluster, folder: Path, seed: int, seconds: float, note: Note = lambda text: None
    ) -> None:
        self.case, self.cluster, self.folder, self.seed, self.seconds = case, cluster, folder, seed, seconds
        self.note = note
        self.rng = random.Random(seed)
        self.board = Board()
        self.clients: list[Client] = []
        self.promises: dict[str, dict[str, Any]] = {"queues": {}, "locks": {}}
        self.noticed: list[str] = []  # Broken promises that no client can see, such as a node that does not start.
        self.pause = threading.Event()
        self.queues: list[str] = []  # Which are mirrored.
        self.drain_s = DRAIN_S
        folder.mkdir(parents=True, exist_ok=True)
        self._faults = Writer(folder, "faults")
        self._finishing: list[Callable[[], None]] = []

    # -- Load ----------------------------------------------------------------------------------------------------

    @property
    def prefix(self) -> str:
        return f"{self.case.name}-{self.seed}"

    def places(self, nodes: Sequence[Node] | None = None) -> list[Where]:
        return [Where(node.host, node.port) for node in nodes or self.cluster.nodes]

    def pick(self, nodes: Sequence[Node] | None = None) -> Callable[[], Where]:
        return picker(random.Random(self.rng.random()), self.places(nodes))

    def declare(self, queue: str, arguments: dict[str, Any] | None = None, at: Node | None = None) -> None:
        """Declares a durable queue at a node. Raises NodeError if it cannot be done in time."""
        places = self.places([at] if at else None)

        def is_declared() -> bool:
            try:
                for place in places[:1] if at else places:
                    with Amqp(place.host, place.port, PATIENCE_S) as client:
                        declare(client, queue, arguments)
                        return True
            except (Lost, ChannelError) as error:
                self.note(f"{queue} is not declared yet: {error}")
            return False

        until(is_declared, f"{queue} is declared", PROGRESS_S)

    def call(self, action: Callable[[Amqp], Any], at: Node | None = None) -> Any:
        """Does something on a connection of its own. Raises Lost, ChannelError."""
        place = self.places([at] if at else None)[0]
        with Amqp(place.host, place.port, PATIENCE_S) as client:
            return action(client)

    def add(self, client: Client) -> None:
        self.clients.append(client)
        client.start()

    def promise(self, queue: str, **kept: bool) -> None:
        self.promises["queues"][queue] = kept or {"kept": True, "marked": True, "settled": True, "ordered": True}

    def add_queues(
        self, count: int = 3, publishers: int = 1, consumers: int = 1, nodes: Sequence[Node] | None = None,
        consumers_at: Sequence[Node] | None = None, **publisher: Any,
    ) -> list[str]:  # fmt: skip
        """Adds mirrored queues with publishers and consumers, which connect to any of these nodes."""
        if not self.seconds:  # A short form shares the machine with other tests.
            publisher["pause_s"] = max(publisher.get("pause_s", 0.0), SHORT_PAUSE_S)
        self.cluster.mirror(self.prefix)
        queues = [f"{self.prefix}-{number}" for number in range(len(self.queues), len(self.queues) + count)]
        for number, queue in enumerate(queues):
            self.declare(queue, at=self.cluster.nodes[number % len(self.cluster.nodes)])
            self.promise(queue)
        self.queues += queues
        self.cluster.await_in_sync(queues)
        for queue in queues:
            short = queue.rpartition("-")[2]
            for one in range(publishers):
                name = f"p{short}{'abcdefgh'[one]}"
                self.add(Publisher(name, self.folder, self.board, self.pick(nodes), queue, **publisher))
            for one in range(consumers):
                where = self.pick(consumers_at or nodes)
                self.add(Consumer(f"c{short}{'abcdefgh'[one]}", self.folder, self.board, where, queue))
        return queues

    def add_registrars(self, count: int = 4, linearizable: bool = True) -> None:
        """Adds clients that declare, delete and look up names, each at one node. If it is not promised that all this
        is linearizable, it is counted all the same."""
        self.promises["registers"] = {"linearizable": linearizable}
        prefix = f"names-{self.prefix}"
        self.cluster.mirror(prefix)
        for number in range(count):
            at = [self.cluster.nodes[number % len(self.cluster.nodes)]]
            seed = self.rng.randrange(1 << 30)
            self.add(Registrar(f"r{number}", self.folder, self.board, self.pick(at), prefix, seed))

    def at_end(self, action: Callable[[], None]) -> None:
        """Has something done when all is mended, before queues are drained."""
        self._finishing.append(action)

    # -- Faults --------------------------------------------------------------------------------------------------

    @contextmanager
    def fault(self, what: str) -> Iterator[None]:
        """Writes down a fault, which lasts as long as the context."""
        self.note(what)
        start = now_ns()
        try:
            yield
        finally:
            self._faults.write("fault", start, now_ns(), "ok", what=what)

    def wait(self, *choices: float, short: float | None = None) -> None:
        """Waits for one of these times, in seconds; in a short form for `short`, if that is given."""
        self.pause.wait(self.rng.choice(choices) if self.seconds or short is None else short)

    def short(self, short: T, usual: T) -> T:
        """Returns what a case uses in its short form, or else."""
        return usual if self.seconds else short

    def victim(self) -> Node:
        return self.rng.choice(self.cluster.nodes)

    def master(self) -> Node:
        """Returns the master of one of the queues; any node if nobody can say."""
        try:
            return self.cluster.master_of(self.rng.choice(self.queues))
        except (NodeError, IndexError):
            return self.victim()

    def restart(self, *nodes: Node) -> None:
        """Starts nodes, and waits until they serve clients."""
        for node in nodes:
            if not node.is_running:
                node.kill()
                node.spawn()
        for node in nodes:
            node.await_ready()

    # -- The whole run -------------------------------------------------------------------------------------------

    def play(self) -> Verdict:
        """Runs the case; returns the verdict on its histories."""
        started = time.time()
        finished = False
        ended = 0
        try:
            self.case.load(self)
            self._await_progress("at the beginning")
            self._strike()
            ended = self._finish()
            finished = True
        except NodeError as error:
            self.noticed.append(f"the cluster did not do what it should: {error}")
            finished = True
        finally:
            for client in self.clients:
                client.halt.set()
            for client in self.clients:
                client.join()
                if client.failure is not None:
                    self.noticed.append(f"client {client.name} failed: {client.failure!r}")
            self._faults.close()
            case = {
                "case": self.case.name, "fault": self.case.fault, "seed": self.seed, "seconds": self.seconds,
                "broker": self.cluster.broker, "nodes": len(self.cluster.nodes), "started": started,
                "promises": self.promises, "noticed": self.noticed, "load_ended_ns": ended, "finished": finished,
            }  # fmt: skip
            (self.folder / "case.json").write_text(json.dumps(case, indent=1) + "\n", encoding="utf-8")
        return judge(self.folder)

    def _strike(self) -> None:
        deadline = time.monotonic() + self.seconds
        while True:
            self.case.strike(self)
            if time.monotonic() >= deadline:
                return
            self.wait(0.2, 1.0, 3.0)

    def _finish(self) -> int:
        """Mends all, and waits until all messages that are due have come; returns when the load ended."""
        self.note("mend")
        for node in self.cluster.mend():
            self.note(f"  {node.name} went on apart from the others, and was restarted")
        for action in self._finishing:
            action()
        self._await_progress("after all faults")
        self.pause.wait(self.short(SHORT_SETTLE_S, SETTLE_S))
        sources = [client for client in self.clients if not client.drains]
        for client in sources:
            client.halt.set()
        for client in sources:
            client.join()
        ended = now_ns()
        self._drain()
        self.pause.wait(SETTLE_S / 2)  # For what is delivered twice.
        return ended

    def _drain(self) -> None:
        """Waits until all that is due has come, or nothing has come for some time."""
        while not self.board.is_drained():
            before = self.board.delivered
            try:
                until(lambda: self.board.is_drained() or self.board.delivered > before, "deliveries", self.drain_s)  # noqa: B023
            except NodeError:
                self.note(f"{len(self.board.due)} confirmed messages have not come")
                self._note_counts()
                return
            self.pause.wait(0.05)

    def _note_counts(self) -> None:
        """Tells whether messages that have not come are in their queues: then it is consumers that do not get them."""
        for queue in self.promises["queues"]:
            try:
                count = self.call(lambda client: declare(client, queue, passive=True))  # noqa: B023
                self.note(f"  {queue} has {count} ready")
            except (Lost, ChannelError) as error:
                self.note(f"  {queue}: {error}")

    def _await_progress(self, when: str) -> None:
        """Waits until publishers and consumers have had successes."""
        counts = {client.success for client in self.clients if client.success}
        before = {name: getattr(self.board, name) for name in counts}

        def is_going_on() -> bool:
            return all(getattr(self.board, name) > count for name, count in before.items())

        until(is_going_on, f"clients have successes {when}", PROGRESS_S)
