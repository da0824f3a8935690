"""A cluster of any size in virtual time, for its counts and its times: how `scaling` sees fifty nodes on one machine.

The nodes are the real ones (`leveret.node.server.Server`, on the simulation's loops, network and disks), without
checkers, faults or rng: every frame takes `delay_s`, every sync `sync_s`. There are two ways to let time go by:

- *Counted*: code takes no time. A run is the same whoever runs it and how busy the machine is: frames, bytes, commands
  and promotions are counted like this.
- *Charged*: a pass of a node's event loop takes as long, in virtual time, as its code took of a processor here (the
  thread's processor time, so a busy machine matters little), and `socket_s` for each time that it sends or receives,
  which in here cost nothing. What it sends, and what it has written to disk, leaves so much later; its next pass waits
  until this one would have been over. So each node has one processor of this machine's speed to itself, however many
  nodes there are. Such times differ a little from run to run.

Nobody connects to these nodes. Commands are proposed at a node as a channel would propose them, from its own placement,
so a client's declare takes two more network delays and the parsing of one frame.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from leveret.broker.queue.local_queue import LocalQueue
from leveret.metadata.model.commands import Command, DeclareQueue, SetPolicy
from leveret.node.config.settings import LogForm, Settings
from leveret.node.node import Node
from leveret.node.sockets.peer_links import PeerLinks
from leveret.node.system.logs import LogFormatter
from simulation.core.loop import NodeLoop, Scheduler
from simulation.core.machine import CLUSTER_PORT, Machine
from simulation.core.network import Endpoint, Network
from simulation.plan import Plan

if TYPE_CHECKING:
    from leveret.metadata.store import Applied
    from simulation.world import World

START_S: Final = 120.0
WINDOW_BYTES: Final = 1 << 20
SEGMENT_BYTES: Final = 1 << 24
LOOK_S: Final = 0.000_5  # How often is checked whether queues are served.
SYNC_PARTS: Final = 1.5  # A job at the simulation's worker takes one delay before it is done, and half a delay after.
CLIENTS: Final = "clients"  # A place whose work is not charged.
PREFIX: Final = "mirrored-"  # Prefix of the names of queues that are mirrored.
MIRRORED: Final = {"ha-mode": "exactly", "ha-params": 3, "ha-sync-mode": "automatic"}


class Costs(NamedTuple):
    """The modelled costs: one way through the network, a write with its sync, and a system call for a socket."""

    delay_s: float = 0.000_1
    sync_s: float = 0.000_5
    socket_s: float = 0.000_01


class Meter:
    """What all nodes have done, by place: writes to links, their bytes, frames by kind, processor time."""

    def __init__(self, costs: Costs, charged: bool) -> None:
        self.costs = costs
        self.charged = charged
        self.writes: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.link_bytes: Counter[str] = Counter()  # Those to other nodes.
        self.frames: Counter[tuple[str, int]] = Counter()
        self.busy_s: defaultdict[str, float] = defaultdict(float)
        self.longest_s = 0.0  # The longest pass of any node.
        self.extra_s = 0.0  # Modelled costs of the present pass, minus what is not the node's work.
        self.began: float | None = None  # When the present pass began.

    def elapsed(self) -> float:
        """Returns how long the present pass has taken so far."""
        if not self.charged or self.began is None:
            return 0.0
        return max(time.thread_time() - self.began + self.extra_s, 0.0)

    def reset(self) -> None:
        for counted in (self.writes, self.bytes, self.link_bytes, self.frames, self.busy_s):
            counted.clear()
        self.longest_s = 0.0

    def of_kind(self, kind: int) -> int:
        return sum(count for (_, one), count in self.frames.items() if one == kind)


@contextlib.contextmanager
def metered(meter: Meter) -> Iterator[None]:
    """Counts everything that the simulation's nodes do, and charges it if `charged`."""
    write, deliver, send, step = Endpoint.write, Endpoint._deliver, PeerLinks.send, NodeLoop._pass

    def counted_write(end: Endpoint, data: bytes | bytearray | memoryview) -> None:
        end.out.window, end.out.cuts_left = WINDOW_BYTES, 0
        meter.writes[end.loop.place] += 1
        meter.bytes[end.loop.place] += len(data)
        if CLUSTER_PORT in (end.here[1], end.there[1]):
            meter.link_bytes[end.loop.place] += len(data)
        meter.extra_s += meter.costs.socket_s
        write(end, data)

    def counted_deliver(end: Endpoint) -> None:
        meter.extra_s += meter.costs.socket_s
        deliver(end)

    def counted_send(peers: PeerLinks, peer: str, kind: int, payload: Any) -> bool:
        meter.frames[peers.me.name, kind] += 1
        return send(peers, peer, kind, payload)

    def counted_pass(loop: NodeLoop) -> None:
        meter.began, meter.extra_s = time.thread_time(), 0.0
        step(loop)
        spent = max(time.thread_time() - meter.began + meter.extra_s, 0.0)
        meter.busy_s[loop.place] += spent
        if loop.place != CLIENTS:
            meter.longest_s = max(meter.longest_s, spent)
        meter.began = None
        if meter.charged and loop.place != CLIENTS:
            loop.pause(spent)

    patched: tuple[tuple[type, str, Any, Any], ...] = (
        (Endpoint, "write", write, counted_write),
        (Endpoint, "_deliver", deliver, counted_deliver),
        (PeerLinks, "send", send, counted_send),
        (NodeLoop, "_pass", step, counted_pass),
    )
    for owner, name, _, new in patched:
        setattr(owner, name, new)
    collecting = gc.isenabled()
    gc.disable()  # Fifty nodes share one heap here; each would pay for the garbage of all.
    try:
        with logged_to_nowhere():
            yield
    finally:
        if collecting:
            gc.enable()
        for owner, name, old, _ in patched:
            setattr(owner, name, old)


@contextlib.contextmanager
def logged_to_nowhere() -> Iterator[None]:
    """Lets nodes write their logs to nowhere."""
    logger = logging.getLogger("leveret")
    handlers, level, propagates = logger.handlers, logger.level, logger.propagate
    with open(os.devnull, "w") as nowhere:
        handler = logging.StreamHandler(nowhere)
        handler.setFormatter(LogFormatter(LogForm(), os.getpid()))
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            logger.handlers, logger.propagate = handlers, propagates
            logger.setLevel(level)


class EvenNetwork(Network):
    """A network in which every way takes the same time, after what the sender's pass has taken so far."""

    def __init__(self, scheduler: Scheduler, meter: Meter) -> None:
        super().__init__(scheduler, random.Random(1))
        self.meter = meter

    def delay(self, a: str, b: str) -> float:
        return (self.meter.costs.delay_s if a != b else 0.0) + self.meter.elapsed()


class EvenMachine(Machine):
    """A machine whose disk always takes the same time, with the default settings of a node."""

    def settings(self) -> Settings:
        return replace(super().settings(), segment_bytes=SEGMENT_BYTES, content_cache_bytes=1 << 26)

    def disk_delay(self, rng: random.Random) -> float:
        meter = cast(Plant, self.world).meter
        return meter.costs.sync_s / SYNC_PARTS + meter.elapsed()


class Plant:
    """A cluster of any size: what a `Machine` needs of its world, and no more."""

    speaks_mqtt = False

    def __init__(self, nodes: int, costs: Costs = Costs(), charged: bool = False) -> None:  # noqa: B008 (immutable)
        self.plan = Plan(1, nodes, 0)
        self.more_settings: dict[str, Any] = {}
        self.seed = "1"
        self.meter = Meter(costs, charged)
        self.scheduler = Scheduler()
        self.network = EvenNetwork(self.scheduler, self.meter)
        self.failure: str | None = None
        self.pending: dict[str, None] = {}  # Queues without a master.
        self.served_at: list[float] = []  # When they got one.
        self._looked_at: dict[str, float] = {}
        self.machines = [
            EvenMachine(cast("World", self), f"n{number}", () if number == 1 else (("n1", CLUSTER_PORT),))
            for number in range(1, nodes + 1)
        ]

    # -- For machines ------------------------------------------------------------------------------------------------

    def note(self, who: str, text: str) -> None:
        return None

    def fail(self, text: str) -> None:
        self.failure = self.failure or text
        self.scheduler.stop = True

    def on_fault(self, place: str) -> Callable[[str], None]:
        return lambda text: self.fail(f"at {place}: {text}")

    def on_started(self, machine: Machine) -> None:
        return None

    def on_died(self, machine: Machine, clean: bool) -> None:
        return None

    def observe(self, machine: Machine) -> None:
        """Called once in each pass of a node's loop: records which queues without a master are now served."""
        now = self.scheduler.now + self.meter.elapsed()
        if not self.pending or now < self._looked_at.get(machine.name, 0.0) + LOOK_S:
            return
        began = time.thread_time()
        self._looked_at[machine.name] = now
        queues = node_of(machine).broker.vhosts["/"].queues
        for name in [name for name in self.pending if isinstance(queues.get(name), LocalQueue)]:
            del self.pending[name]
            self.served_at.append(now)
        self.meter.extra_s -= time.thread_time() - began

    # -- For measurements --------------------------------------------------------------------------------------------

    def run(self, seconds: float, done: Callable[[], bool] | None = None, step_s: float | None = None) -> None:
        """Lets time pass until a condition is true, if there is one: checked every `step_s`, or as the scheduler
        does."""
        until = self.scheduler.now + seconds
        reached = False
        while step_s is not None and done is not None and not reached and self.scheduler.now < until:
            self.scheduler.run(self.scheduler.now + step_s)
            reached = done() or self.failure is not None
        reached = reached or self.scheduler.run(until, done)
        if self.failure is not None or (done is not None and not reached):
            raise RuntimeError(self.failure or f"it did not come to be within {seconds} s")

    def start(self) -> None:
        """Starts all nodes, one after the other, so that a joining node finds the one it asks."""
        for machine in self.machines:
            machine.start()
            self.run(START_S, lambda machine=machine: machine.serving)  # type: ignore[misc]
        self.run(START_S, self.is_whole)

    def is_whole(self) -> bool:
        names = len(self.machines) - 1
        return all(len(node_of(machine).broker.client_ends) == names for machine in self.machines)

    def close(self) -> None:
        for machine in self.machines:
            if machine.loop is not None:
                machine.loop.kill()

    def leader(self) -> Machine:
        return next(one for one in self.machines if one.alive and node_of(one).cluster.raft.is_leader)

    def connections(self) -> int:
        """Returns the connections between nodes; each has two ends."""
        return len(self.network.endpoints) // 2

    def propose(self, machine: Machine, command: Callable[[], Command], then: Callable[[Applied], None]) -> None:
        """Proposes a command at a node, in a pass of its own."""
        assert machine.loop is not None
        machine.loop.call_soon(lambda: node_of(machine).broker.propose(command(), then))

    def agree(self, machine: Machine, command: Command) -> float:
        """Returns the seconds until the proposing node learns that it is done."""
        began, ended = self.scheduler.now, list[float]()
        self.propose(machine, lambda: command, lambda applied: ended.append(self._now(applied)))
        self.run(60.0, lambda: bool(ended))
        return ended[0] - began

    def _now(self, applied: Applied) -> float:
        assert applied.refused is None, applied.refused
        return self.scheduler.now + self.meter.elapsed()

    def mirror(self, definition: dict[str, Any] | None = None) -> None:
        self.agree(self.machines[0], SetPolicy("/", "ha", f"^{PREFIX}", "queues", 0, definition or dict(MIRRORED)))
        self.run(1.0)

    def declare(self, count: int, at: list[EvenMachine], at_once: int, prefix: str = PREFIX) -> list[float]:
        """Declares queues, spread over these nodes, so many at a time at each; returns when each was answered."""
        began, ended = self.scheduler.now, list[float]()

        def chain(machine: Machine, numbers: Iterator[int]) -> None:
            number = next(numbers, None)
            if number is None:
                return

            def then(applied: Applied) -> None:
                ended.append(self._now(applied) - began)
                chain(machine, numbers)

            self.propose(machine, lambda: declaration(node_of(machine), f"{prefix}{number:06}"), then)

        for place, machine in enumerate(at):
            numbers = iter(range(place, count, len(at)))
            for _ in range(at_once):
                chain(machine, numbers)
        self.run(3_600.0, lambda: len(ended) == count)
        return sorted(ended)

    def kill(self, machine: Machine) -> None:
        """Kills a node, and records when the queues whose master it was are served elsewhere."""
        specs = node_of(machine).metadata.queues.values()
        self.pending = {spec.name: None for spec in specs if spec.node == machine.node_name}
        self.served_at.clear()
        machine.kill(power=False)


def node_of(machine: Machine) -> Node:
    assert machine.server is not None and machine.server.node is not None
    return machine.server.node


def declaration(node: Node, name: str) -> DeclareQueue:
    """Returns the command that a channel of that node makes (`leveret.sessions.amqp.declare`)."""
    member_changes = node.broker.member_changes
    assert member_changes is not None
    home = member_changes.home("/", name, {})
    view = member_changes.first_view("/", name, True, {}, home)
    return DeclareQueue("/", name, node=home, view=view)
