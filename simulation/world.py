"""A whole cluster and its clients in one process, in virtual time, with all faults.

`World(plan).play()` runs one plan: the nodes start and form a cluster, the durable queues are declared, then the plan's
steps happen at their times. Afterwards everything is healed and every node is started; within a bounded time each must
serve clients, and every client must have been answered or have lost its connection. Then the queues are emptied and
compared with the ledger, twice: the second time after a power failure everywhere.

What must never happen is in `checkers`, above all in `ledger` (what clients see), `answer_checker` (when they are
answered) and `metadata_checker` (what the nodes agree on), and in `clients.session` (the protocol). Faults, and what is
special to a kind of run, are in `scenarios`, each an object that knows the world.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from leveret.broker.queue.local_queue import LocalQueue
from leveret.node.cluster.consensus import AdminError
from leveret.node.cluster.membership import Cluster
from simulation.checkers.answer_checker import AnswerChecker
from simulation.checkers.broker_features_checker import BrokerFeaturesChecker, MirroredBrokerFeaturesChecker
from simulation.checkers.ledger import Ledger
from simulation.checkers.message_checker import MessageChecker, MirroredMessageChecker
from simulation.checkers.metadata_checker import MetadataChecker
from simulation.checkers.mirror_checker import MirrorChecker, MirroredLedger
from simulation.checkers.pause_checker import PauseChecker
from simulation.clients.broker_features_client import BrokerFeaturesClient
from simulation.clients.client import Client, Step
from simulation.core.loop import NodeLoop, Scheduler
from simulation.core.machine import AMQP_PORT, CLUSTER_PORT, Machine
from simulation.core.network import Network
from simulation.core.small_limits import small_limits
from simulation.plan import CLIENTS, DURABLE, Plan
from simulation.scenarios.broker_features_world import BROKER_FEATURES_QUEUES, BrokerFeatures
from simulation.scenarios.detached import Detaching
from simulation.scenarios.drained import Draining
from simulation.scenarios.operators import Operators
from simulation.scenarios.paired import HOPE_S
from simulation.scenarios.partitioned import Partitions
from simulation.scenarios.queue_features_world import QueueFeatures
from simulation.scenarios.rebalanced import Rebalancing
from simulation.scenarios.resource_faults import ResourceFaults
from simulation.scenarios.spooled import Spooling
from simulation.scenarios.witnessed import WITNESS, Witnessing, WitnessMachine

START_S: Final = 60.0
SETTLE_S: Final = 150.0  # For nodes to serve and clients to be answered, after everything is healed.
DRAIN_S: Final = 60.0
UNREST_S: Final = 60.0  # Time after a fault in which connections may still be lost because of it.
TRACE_MAX: Final = 200_000


class Violation(AssertionError):
    """Raised when something happened that must never happen."""


class World:
    """A cluster, its clients and its checkers during one run."""

    speaks_mqtt = False

    def __init__(self, plan: Plan, traced: bool = False) -> None:
        self.plan = plan
        self.seed = f"{plan.seed}/{plan.noise}" if plan.noise else str(plan.seed)
        self.scheduler = Scheduler()
        self.rng = random.Random(f"{self.seed}/world")
        self.network = Network(self.scheduler, random.Random(f"{self.seed}/network"))
        self.network.is_rejecting = plan.proofs().is_rejecting
        self.more_settings: dict[str, Any] = {}  # Of all nodes.
        self.traced = traced
        self.trace: deque[str] = deque(maxlen=TRACE_MAX)
        self.failure: str | None = None
        self.mirrors: MirrorChecker | None = None
        self.queues = plan.queues()
        if plan.mirrored:
            kind = MirroredMessageChecker if plan.featured else MirroredLedger
            kind = MirroredBrokerFeaturesChecker if plan.special else kind
            ledger = kind(self.fail, self.note, lambda: self.scheduler.now)
            self.ledger: Ledger = ledger
            self.mirrors = MirrorChecker(self.fail, ledger, lambda: self.scheduler.now, self._serves)
        else:
            alone = BrokerFeaturesChecker if plan.special else MessageChecker if plan.featured else Ledger
            self.ledger = alone(self.fail, self.note, lambda: self.scheduler.now)
        self.consensus = MetadataChecker(self.fail)
        self.answers = AnswerChecker(self.fail, lambda: self.scheduler.now)
        self.pauses: PauseChecker | None = None
        if plan.pauses:
            self.pauses = PauseChecker(self.fail, lambda: self.scheduler.now, self._is_open, plan.handling())
            self.pauses.on_pause = self._on_pause
            proofs = plan.proofs()
            if proofs.is_visible or proofs.trusts_refusals:
                self.pauses.grace_s += HOPE_S
            self.ledger.on_heard = self.pauses.on_heard
        self.machines = [
            Machine(self, f"n{number}", () if number == 1 else (("n1", CLUSTER_PORT),))
            for number in range(1, plan.nodes + 1)
        ]
        self.everybody = list(self.machines)
        if plan.witnessed:
            self.everybody.append(WitnessMachine(self, WITNESS, (("n1", CLUSTER_PORT), ("n2", CLUSTER_PORT))))
        self.client_loop = NodeLoop(
            self.scheduler, self.network, "clients", random.Random(f"{self.seed}/clients"), self.on_fault("clients")
        )
        self.client_loop.dates = True
        self.clients: list[Client] = []
        self.wiping: Machine | None = None
        self.is_healed = False  # There are no more faults.
        self.moved = 0  # Messages that shovels or federation links have moved.
        self.queue_features = QueueFeatures(self)
        self.broker_features = BrokerFeatures(self)
        self.operators = Operators(self)
        self.rebalancing = Rebalancing(self)
        self.draining = Draining(self)
        self.partitions = Partitions(self)
        self.spooling = Spooling(self)
        self.detaching = Detaching(self)
        self.resources = ResourceFaults(self)
        self.witnessing = Witnessing(self)

    # -- Trace and observers -------------------------------------------------------------------------------------

    def note(self, who: str, text: str) -> None:
        if not self.traced:
            return
        self.trace.append(f"{self.scheduler.now:12.6f}  {who:10} {text}")

    def place_now(self) -> str:
        """Returns the machine whose code is running."""
        loop = asyncio._get_running_loop()
        return loop.place if isinstance(loop, NodeLoop) else "world"

    def fail(self, text: str) -> None:
        """Records a violation; the first one ends the run."""
        if self.failure is None:
            self.failure = text
            self.note("checker", text)
            self.scheduler.stop = True

    def on_fault(self, place: str) -> Callable[[str], None]:
        return lambda text: self.fail(f"an exception at {place} that nobody handled: {text}")

    def on_started(self, machine: Machine) -> None:
        self.consensus.on_started(machine.name)
        self.witnessing.on_happened()
        if machine.server is None:
            return
        self.answers.on_started(machine.name)
        if self.pauses is not None:
            self.pauses.on_started(machine.name)
        self._tap_links(machine)

    def on_died(self, machine: Machine, clean: bool) -> None:
        for over in machine.at_death:
            over()
        machine.at_death.clear()
        self.witnessing.on_happened()
        if machine.server is None:
            return
        if self.pauses is not None:
            self.pauses.on_died(machine.name)
        if self.mirrors is not None:
            self.mirrors.on_died(machine.name)
        if not clean:
            self.ledger.on_crashed(machine.name, self.scheduler.now)
        for other in self.machines:
            if other is not machine:
                self.ledger.on_link_down(machine.name, other.name, self.scheduler.now)

    def observe(self, machine: Machine) -> None:
        """Called once in each pass of a node's loop."""
        if isinstance(machine, WitnessMachine):
            if machine.witness is not None and machine.witness.cluster is not None:
                self.consensus.observe(machine.name, machine.witness.cluster)
            return
        if machine.server is not None and machine.server.node is not None:
            self.consensus.observe(machine.name, machine.server.node.cluster)
            self.witnessing.check_apart(machine, machine.server.node)
            self.answers.observe(machine.name, machine.server.node)
            self.spooling.observe_spools(machine, machine.server.node.broker.spools)
            self.detaching.observe_detached(machine, machine.server.node.broker.detachment)
            if self.mirrors is not None:
                self.mirrors.observe(machine.name, machine.server.node)
        if self.pauses is not None:
            self.pauses.observe(machine)

    def _is_open(self, name: str) -> bool:
        return (name, AMQP_PORT) in self.network.listeners

    def _on_pause(self, name: str) -> None:
        """To the other nodes, a paused node is down."""
        for other in self.machines:
            if other.name != name:
                self.ledger.on_link_down(name, other.name, self.scheduler.now)

    def _tap_links(self, machine: Machine) -> None:
        """Learns of lost links when the node does."""
        server = machine.server
        assert server is not None
        on_down, on_up = server.on_down, server.on_up

        def down(peer: str, reason: str) -> None:
            self.note(machine.name, f"has lost {peer}: {reason}")
            self.ledger.on_link_down(machine.name, peer.partition("@")[2], self.scheduler.now)
            on_down(peer, reason)
            if self.pauses is not None:
                self.pauses.on_link(machine, peer, False)

        def up(peer: str, info: Any) -> None:
            self.note(machine.name, f"has a link with {peer}")
            on_up(peer, info)
            if self.pauses is not None:
                self.pauses.on_link(machine, peer, True)

        server.on_down, server.on_up = down, up  # type: ignore[method-assign]

    # -- The run -------------------------------------------------------------------------------------------------

    def play(self) -> None:
        try:
            with small_limits(random.Random(f"{self.plan.seed}/limits")):
                self._play()
        finally:
            self.close()

    def _play(self) -> None:
        self._begin()
        start = self.scheduler.now
        for step in self.plan.taken():
            self.scheduler.at(start + step.at, self.take, step)
            last = step.at
        self.run_for(last + 1.0 if self.plan.taken() else 0.0)
        self.run_for(max(0.0, max(self.witnessing.calm_until, self.detaching.sundered_until) - self.scheduler.now))
        self._heal()
        if isinstance(self.ledger, BrokerFeaturesChecker):
            self.broker_features.end_special(self.ledger)
        if isinstance(self.ledger, MessageChecker):
            self.queue_features.let_age(self.ledger)
        if self.mirrors is not None and self.rng.random() < 0.5:
            self._compare_members()
        self._empty()
        if self.rng.random() < 0.6:
            self._empty_again()
        if isinstance(self.ledger, BrokerFeaturesChecker):
            self.broker_features.scan_streams(self.ledger)

    def close(self) -> None:
        for machine in self.everybody:
            if machine.loop is not None:
                machine.loop.kill()
        self.client_loop.kill()

    def run_for(self, seconds: float, done: Callable[[], bool] | None = None) -> bool:
        reached = self.scheduler.run(self.scheduler.now + seconds, done)
        if self.failure is not None:
            raise Violation(self.failure)
        return reached

    def must(self, seconds: float, done: Callable[[], bool], text: Callable[[], str]) -> None:
        if not self.run_for(seconds, done):
            self.fail(text())
            raise Violation(self.failure)

    def _begin(self) -> None:
        for machine in self.everybody:
            self.scheduler.after(self.rng.random() * 2, machine.start)
        self.must(START_S, self.all_serve, lambda: f"no cluster came to be within {START_S} s: {self.standing()}")
        places = [machine.name for machine in self.machines]
        self.client_loop.place = "clients"
        self.clients = [
            (BrokerFeaturesClient if self.plan.special else Client)(
                f"c{number}",
                places,
                self.client_loop,
                self.ledger,
                random.Random(f"{self.seed}/client/{number}"),
                self.note,
            )
            for number in range(CLIENTS)
        ]
        if self.mirrors is None:
            self._declare(self.queues)
        else:
            before, policy = self.plan.opening()
            before += len(self.queues) - DURABLE
            self._declare(self.queues[:before])
            self.operators.fault_policy(**policy)
            self.run_for(2.0)
            self._declare(self.queues[before:])
        if isinstance(self.ledger, MessageChecker):
            self.queue_features.begin_features(self.ledger)
        if isinstance(self.ledger, BrokerFeaturesChecker):
            self.broker_features.begin_special(self.ledger)

    def _declare(self, names: list[str]) -> None:
        quorum, features = self.plan.quorum(), self.plan.features()
        for number, name in enumerate(names):
            arguments = features[name].arguments() if name in features else {}
            arguments |= {"x-queue-type": "quorum"} if name in quorum else {}
            declare = {"queue": name, "durable": True, "arguments": arguments}
            self.clients[number % CLIENTS].give(Step(0, 0.0, "declare", declare))
        self.must(START_S, self.all_idle, lambda: f"queues could not be declared: {self.standing()}")
        for name in names:
            facts = self.ledger.queue(name)
            facts.declared, facts.owner = True, self._owner(name) if self.mirrors is None else None
            self.note("world", f"{facts.name} is on {self._owner(name)}")

    def _owner(self, queue: str) -> str | None:
        for machine in self.machines:
            if machine.server is not None and machine.server.node is not None:
                spec = machine.server.node.metadata.queues.get(("/", queue))
                if spec is not None:
                    return spec.node.partition("@")[2]
        return None

    def all_serve(self) -> bool:
        return all(machine.serving for machine in self.everybody)

    def is_dispensable(self, machine: Machine) -> bool:
        """Returns whether the other nodes can agree to a membership without that one's present incarnation: the voters
        among them are a majority, by the newest membership that they have, or one of them leads, and can go on alone.
        Three nodes that serve need not have three votes: one of two voters that was away is a learner until it has
        caught up."""
        nodes = [one.server.node for one in self.machines if one is not machine and one.server is not None]
        rafts = [node.cluster.raft for node in nodes if node is not None]
        if not rafts or machine.server is None:
            return False
        lost = machine.server.uuid
        newest = max((raft.log.memberships[-1] for raft in rafts), key=lambda placed: placed.index).membership
        if newest.is_majority(sum(one != lost for one in newest.voter_ids)):
            return True
        led = [raft for raft in rafts if raft.leadership is not None and raft.membership == newest]
        return any(raft.leadership.successor is None and lost in raft.dismissable for raft in led if raft.leadership)

    def _serves(self, node_name: str) -> bool:
        return any(machine.node_name == node_name and machine.serving for machine in self.machines)

    def all_idle(self) -> bool:
        return all(client.idle for client in self.clients)

    def standing(self) -> str:
        nodes = [
            f"{one.name} {'serves' if one.serving else 'does not serve' if one.alive else 'is dead'}"
            for one in self.everybody
        ]
        waiting = [f"{one.name} waits for {one.doing}" for one in self.clients if one.doing is not None]
        return ", ".join(nodes + waiting)

    # -- Steps ---------------------------------------------------------------------------------------------------

    def take(self, step: Step) -> None:
        arguments = dict(step.arguments)
        fault = self.find_fault(step.what)
        if fault is not None:
            if self.witnessing.is_calm() or self.detaching.is_spared(step):
                return
            self.note("world", str(step))
            self.witnessing.on_happened()
            self.ledger.on_disturbed(self.scheduler.now + arguments.get("seconds", 0.0) + UNREST_S)
            fault(**arguments)
            return
        client = self.clients[arguments.pop("client")]
        if step.what == "peek":
            arguments["other"] = self.clients[arguments["other"]]
            if arguments["other"] is client:
                return
        self.note(client.name, str(step))
        client.give(step._replace(arguments=arguments))

    def find_fault(self, name: str) -> Callable[..., None] | None:
        """Returns what carries out a fault: a method `fault_…` of the world or of one of its parts."""
        parts = (
            self.operators,
            self.rebalancing,
            self.draining,
            self.partitions,
            self.spooling,
            self.detaching,
            self.resources,
            self.witnessing,
        )
        found = (getattr(part, f"fault_{name}", None) for part in (self, *parts))
        return next((one for one in found if one is not None), None)

    def fault(self, name: str) -> Callable[..., None]:
        found = self.find_fault(name)
        assert found is not None, name
        return found

    def start_later(self, machine: Machine, seconds: float) -> None:
        self.scheduler.after(seconds, self._start, machine)

    def _start(self, machine: Machine) -> None:
        if machine is not self.wiping:
            machine.start()

    def fault_kill(self, node: int, seconds: float) -> None:
        self.everybody[node].kill(power=False)
        self.start_later(self.everybody[node], seconds)

    def fault_power(self, node: int, seconds: float) -> None:
        self.everybody[node].kill(power=True)
        self.start_later(self.everybody[node], seconds)

    def fault_power_all(self, seconds: float) -> None:
        for machine in self.everybody:
            machine.kill(power=True)
            self.start_later(machine, seconds * (0.5 + self.rng.random()))

    def fault_kill_leader(self, seconds: float) -> None:
        for machine in self.everybody:
            if self.consensus.leads(machine.name):
                machine.kill(power=self.rng.random() < 0.5)
                self.start_later(machine, seconds)

    def fault_abandon(self, cut: float, seconds: float) -> None:
        """The leader continues alone, and dies before the other node can see it again: see `scenarios.paired`."""
        leader = next((machine for machine in self.everybody if self.consensus.leads(machine.name)), None)
        if leader is None:
            return
        others = [other for other in self.everybody if other is not leader]
        if not self.plan.proofs().trusts_refusals:
            self.cut([way for one in others for way in ((one.name, leader.name), (leader.name, one.name))], cut)
            self.scheduler.after(cut - 0.5, self._abandon, leader, 3.5 + seconds)
            return
        for other in others:  # It does not continue, unless the other node has died.
            other.kill(power=False)
            self.start_later(other, cut)
            if self.rng.random() < 0.5:
                self.scheduler.after(cut, self._abandon_met, leader, other, 3.5 + seconds)
            else:
                self.scheduler.after(cut - 0.5, self._abandon, leader, 3.5 + seconds)

    def _abandon(self, machine: Machine, seconds: float) -> None:
        if not self.is_healed:
            machine.kill(power=False)
            self.start_later(machine, seconds)

    def _abandon_met(self, leader: Machine, other: Machine, seconds: float) -> None:
        """Acts as soon as the other node is linked again, before it can receive what it has missed."""
        node = None if other.server is None else other.server.node
        if self.is_healed or not (leader.alive and other.alive):
            return
        if node is not None and node.cluster.two_nodes.trusts:
            self._abandon(leader, seconds)
        else:
            self.scheduler.after(0.001, self._abandon_met, leader, other, seconds)

    def fault_terminate(self, node: int, seconds: float) -> None:
        self.everybody[node].terminate()
        self.start_later(self.everybody[node], seconds + 15.0)

    def fault_strike(self, node: int, changes: int, power: bool) -> None:
        """Kills a node in the middle of one of the next writes to disk."""
        machine = self.everybody[node]
        machine.power_next = power
        machine.disk.crash_after = changes

    def fault_pause(self, node: int, seconds: float) -> None:
        loop = self.everybody[node].loop
        self.ledger.on_slow(self.everybody[node].name, self.scheduler.now + seconds)
        if loop is not None:
            loop.pause(seconds)

    def fault_slow_disk(self, node: int, seconds: float) -> None:
        self.everybody[node].slow_until = self.scheduler.now + seconds
        self.ledger.on_slow(self.everybody[node].name, self.scheduler.now + seconds)

    def fault_fill(self, node: int, seconds: float, left: int) -> None:
        """Leaves hardly any space on a disk, for a while."""
        machine = self.machines[node]
        self.ledger.on_slow(machine.name, self.scheduler.now + seconds)
        disk = machine.disk
        usual = disk.capacity_bytes
        disk.capacity_bytes = usual - disk.free_bytes() + left

        def give_back() -> None:
            disk.capacity_bytes = max(usual, disk.capacity_bytes)

        self.scheduler.after(seconds, give_back)

    def fault_fail_sync(self, node: int, seconds: float) -> None:
        self.everybody[node].disk.fail_sync_after = 0

    def fault_restart_app(self, node: int, seconds: float) -> None:
        machine = self.machines[node]
        if not machine.serving or machine.server is None or machine.loop is None:
            return
        server = machine.server

        async def restart() -> None:
            await server.stop_app()
            await asyncio.sleep(seconds)
            try:
                await server.start_app()
            except OSError as error:  # The operator sees it, and starts the process again.
                self.note("operator", f"cannot start the app of {machine.name}: {error}")
                if not machine.is_excused():
                    raise
                machine.kill(power=False)
                self.start_later(machine, 1.0)

        machine.loop.create_task(restart())

    def fault_move(self, queue: str, node: int) -> None:
        """An operator moves a queue to another node."""
        to = self.machines[node]
        for machine in self.machines:
            there = machine.server.node if machine.serving and machine.server is not None else None
            found = None if there is None else there.broker.vhosts["/"].queues.get(queue)
            if there is None or machine.loop is None or machine is to or not isinstance(found, LocalQueue):
                continue
            over = self.ledger.on_moving(queue)
            task = machine.loop.create_task(there.move(found, to.node_name))
            machine.at_death.append(over)

            def done(task: asyncio.Task[None], over: Callable[[], None] = over) -> None:
                over()
                failure = None if task.cancelled() else task.exception()
                self.note("operator", f"moved {queue} to {to.name}: {failure or 'done'}")
                if failure is not None and not isinstance(failure, AdminError):
                    raise failure

            task.add_done_callback(done)

    def fault_wipe(self, node: int, seconds: float) -> None:
        """A disk is lost. An operator lets the others forget the node, and a new one join in its place."""
        machine = self.machines[node]
        others = [one for one in self.machines if one is not machine]
        if self.wiping is not None or len(others) < 2 or not self.all_serve() or not self.is_dispensable(machine):
            return  # Losing a majority of the disks loses data.
        if machine.server is not None and machine.server.node is not None and machine.server.node.broker.spools.active:
            return  # A spool is on one disk only.
        self.wiping = machine
        self.ledger.on_wiped(machine.name)
        self.ledger.has_lost_disks = True
        if self.mirrors is not None and machine.server is not None and machine.server.node is not None:
            self.mirrors.on_wiped(machine.name, machine.server.node)
        machine.wipe(tuple((one.name, CLUSTER_PORT) for one in others))
        self.scheduler.after(seconds, self._forget, machine, others)

    def _forget(self, machine: Machine, others: list[Machine]) -> None:
        """Asks one node after the other until one has done it."""
        # One that is paused does it, too: all of them may be paused because the wiped one is gone.
        running = (one for one in others if one.alive and one.server is not None and one.server.node is not None)
        asked = next(running, None)
        if asked is None or asked.server is None or asked.server.node is None or asked.loop is None:
            self.scheduler.after(1.0, self._forget, machine, others)
            return
        cluster = asked.server.node.cluster
        known = any(one.name == machine.node_name for one in cluster.members())
        self.note("operator", f"has {asked.name} forget {machine.node_name}")
        task = asked.loop.create_task(cluster.forget(machine.node_name))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

        def look() -> None:
            error = task.exception() if task.done() and not task.cancelled() else None
            gone = task.done() and not task.cancelled() and (error is None or "is not a member" in str(error))
            if gone or not known:
                self.wiping = None
                if self.mirrors is not None:
                    self.mirrors.on_rejoined(machine.name)
                machine.start()
            else:
                self.note("operator", f"tries again: {error}")
                self._forget(machine, others[1:] + others[:1])

        self.scheduler.after(12.0, look)

    def fault_power_some(self, some: list[int], power: bool, seconds: float) -> None:
        for node in some:
            self.everybody[node].kill(power)
            self.start_later(self.everybody[node], seconds * (0.5 + self.rng.random()))

    def fault_skew(self, node: int, ms: int) -> None:
        self.machines[node].skew_ms += ms
        if isinstance(self.ledger, MessageChecker):
            self.ledger.on_skew(self.machines[node].skew_ms)

    def fault_reset(self, rate: float) -> None:
        """Resets connections of clients."""
        for endpoint in list(self.network.endpoints):
            if endpoint.loop is self.client_loop and self.rng.random() < rate:
                self.network.reset(endpoint)

    def fault_reset_links(self, node: int, other: int, seconds: float) -> None:
        a, b = self.everybody[node].name, self.everybody[other].name
        for endpoint in list(self.network.endpoints):
            if (endpoint.here[0], endpoint.there[0]) == (a, b) and self.rng.random() < 0.7:
                self.network.reset(endpoint)

    def fault_cut_client(self, client: int, node: int, seconds: float, back: bool) -> None:
        """All clients are in one place, so they are cut off together."""
        name = self.machines[node].name
        self.cut([("clients", name), *([(name, "clients")] if back else [])], seconds)

    def fault_part(self, node: int, other: int, seconds: float) -> None:
        a, b = self.everybody[node].name, self.everybody[other].name
        self.cut([(a, b), (b, a)], seconds)

    def fault_cut_one_way(self, node: int, other: int, seconds: float) -> None:
        self.cut([(self.everybody[node].name, self.everybody[other].name)], seconds)

    def fault_isolate(self, node: int, seconds: float) -> None:
        """Cuts a node off from all other nodes, not from clients."""
        name = self.everybody[node].name
        others = [machine.name for machine in self.everybody if machine.name != name]
        self.cut([way for one in others for way in ((name, one), (one, name))], seconds)

    def fault_slow_link(self, node: int, other: int, seconds: float) -> None:
        way = (self.everybody[node].name, self.everybody[other].name)
        self.network.slow[way] = 200.0
        self.scheduler.after(seconds, self.network.slow.pop, way, None)

    def cut(self, ways: list[tuple[str, str]], seconds: float) -> None:
        for a, b in ways:
            self.network.cut(a, b)
        self.scheduler.after(seconds, self._mend, ways)

    def _mend(self, ways: list[tuple[str, str]]) -> None:
        self.network.mend([way for way in ways if not self.detaching.is_sundered(way)])

    # -- The end -------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.note("world", "all is healed")
        self.is_healed = True
        self.network.heal()
        for machine in self.everybody:
            machine.disk.crash_after = machine.disk.fail_sync_after = None
            machine.disk.capacity_bytes = 1 << 40
            machine.slow_until = machine.stalled_until = 0.0
            machine.relieve()
            if machine is not self.wiping:
                machine.wanted = True
                self.scheduler.after(15.0 if machine.alive and not machine.serving else 0.0, machine.start)
        if self.plan.drained:
            self.draining.end_draining()
        self.must(
            SETTLE_S,
            lambda: self.all_serve() and self.all_idle() and not self.draining.drained(),
            lambda: f"{SETTLE_S} s after all was healed: {self.standing()}",
        )
        self.run_for(8.0)
        self.must(
            SETTLE_S,
            lambda: not self.spooling.spools_left(),
            lambda: f"spools are not empty: {self.spooling.spools_left()}",
        )
        if self.mirrors is not None:
            self._shuffle()
        for client in self.clients:
            client.give(Step(0, 0.0, "feel", {}))
        self.must(SETTLE_S, self.all_idle, lambda: f"at the end: {self.standing()}")
        all_members = self._clusters()
        # An ambush may have waited for the last spool, and paused a node.
        self.must(
            SETTLE_S,
            lambda: self.consensus.is_kept(all_members),
            lambda: self.consensus.standing(all_members),
        )
        if self.mirrors is not None:
            self._heal_mirrors(self.mirrors)

    def _clusters(self) -> list[Cluster]:
        nodes = [one.server.node for one in self.machines if one.server and one.server.node]
        witnesses = [one.witness for one in self.everybody if isinstance(one, WitnessMachine)]
        attending = [one.cluster for one in witnesses if one is not None and one.cluster is not None]
        return [*(node.cluster for node in nodes), *attending]

    def _shuffle(self) -> None:
        """Makes other nodes the masters, while clients publish and consume: all of them must continue, and no publish
        is refused."""
        before = set(self.ledger.messages)
        for queue in self.queues:
            found = self.operators.leading(queue)
            if found is None or found[2].mirror is None or found[2].mirror.member.view is None:
                continue
            heirs = [name for name, _ in found[2].mirror.member.view.in_sync if name != found[0].node_name]
            if heirs:
                self.operators.hand_over(found[0], found[1], found[2].mirror, self.rng.choice(heirs))
            for client in self.clients:
                publish = {"queue": queue, "count": 3, "padding": 10, "persistent": True, "wait": True}
                client.give(Step(0, 0.0, "publish", publish))
            self.run_for(self.rng.random())
        self.must(SETTLE_S, self.all_idle, lambda: f"after queues were handed over: {self.standing()}")
        names = {client.name for client in self.clients}
        for number in self.ledger.messages.keys() - before:
            message = self.ledger.messages[number]
            is_refused = message.state == "nacked" and message.stream.partition("/")[0] in names
            if is_refused and not self.ledger.may_refuse(message.queue):
                self.fail(f"{message} was refused while queues were handed over")

    def _heal_mirrors(self, mirrors: MirrorChecker) -> None:
        """Waits until all queues have masters that serve, and all mirrors are in sync."""
        queues = [*self.queues, *(BROKER_FEATURES_QUEUES if self.plan.special else ())]

        def order() -> None:
            """An operator synchronises mirrors that are not synchronised automatically, and repeats that."""
            for queue in queues:
                found = self.operators.leading(queue)
                if found is None:
                    continue
                rules = found[1].member_changes.rules_of(found[2].spec)
                if not rules.fills or not rules.window.is_open(found[1].broker.wall_ms):
                    self.operators.fault_order_sync(queue, 0, True)
            if self._unserved(mirrors, queues):
                self.scheduler.after(5.0, order)

        order()
        self.must(
            SETTLE_S,
            lambda: not self._unserved(mirrors, queues),
            lambda: f"after all was healed: {', '.join(self._unserved(mirrors, queues))}",
        )

    def _unserved(self, mirrors: MirrorChecker, queues: list[str], empty: bool = False) -> list[str]:
        nodes = {one.name: one.server.node for one in self.machines if one.server and one.server.node}
        return mirrors.unserved(queues, nodes, empty)

    def _compare_members(self) -> None:
        """Makes each member the master once, and checks what is in the queue then."""
        if self.plan.rebalanced:
            self.rebalancing.end_rebalancing()
            self.must(SETTLE_S, self.rebalancing.is_settled, lambda: "queues are still on their way somewhere")
        for client in self.clients:
            client.give(Step(0, 0.0, "drop", {}))
        self.run_for(5.0)
        for queue in self.queues:
            seen: dict[str, list[int]] = {}
            found = self.operators.leading(queue)
            if self.queue_features.changes_by_itself(queue) or self.ledger.queue(queue).lost:
                continue
            if found is None or found[2].mirror is None:
                continue
            view = found[2].mirror.member.view
            assert view is not None
            for name in (*(one for one, _ in view.in_sync if one != found[0].node_name), found[0].node_name):
                seen[name] = self._browse(queue, name)
            self.note("world", f"in {queue}, by member: {seen}")
            if any(numbers != seen[found[0].node_name] for numbers in seen.values()):
                self.fail(f"the members of {queue} differ: {seen}")
                raise Violation(self.failure)

    def _browse(self, queue: str, name: str) -> list[int]:
        """Returns what is in a queue when this node is its master."""

        def is_led() -> bool:
            found = self.operators.leading(queue)
            if found is None or found[2].mirror is None or not found[2].mirror.member.serving:
                return False
            return found[0].node_name == name and not found[2].frozen

        def ask() -> None:
            """Repeats the request until it succeeds."""
            found = self.operators.leading(queue)
            if wanted and not is_led() and found is not None and found[2].mirror is not None:
                self.operators.hand_over(found[0], found[1], found[2].mirror, name)
                self.scheduler.after(5.0, ask)

        wanted = [name]
        ask()
        self.must(DRAIN_S, is_led, lambda: f"{queue} could not be handed over to {name}")
        wanted.clear()
        into: list[int] = []
        self.clients[0].give(Step(0, 0.0, "browse", {"queue": queue, "into": into}))
        self.must(DRAIN_S, self.all_idle, lambda: f"{queue} could not be looked at: {self.standing()}")
        return into

    def _empty(self) -> None:
        """Takes everything out of the durable queues and compares it with what must be in them."""
        for client in self.clients:
            client.give(Step(0, 0.0, "drop", {}))
        self.run_for(5.0)
        self.must(
            SETTLE_S,
            lambda: not self.detaching.records_left(),
            lambda: f"nobody was told of {self.detaching.records_left()}",
        )
        drained: dict[str, list[int]] = {queue: [] for queue in self.queues}
        for number, (queue, into) in enumerate(drained.items()):
            self.clients[number % CLIENTS].give(Step(0, 0.0, "drain", {"queue": queue, "into": into}))
        owed = {queue: self.ledger.owed(queue) for queue in drained}

        def is_all_there() -> bool:
            there = all(owed[queue] <= set(drained[queue]) for queue in drained)
            return self.all_idle() and there and not self.ledger.unaccounted(drained)

        self.run_for(DRAIN_S, is_all_there)
        self.run_for(3.0)
        for queue, numbers in drained.items():
            self.note("world", f"in {queue}: {numbers}")
            self.ledger.on_drained(queue, numbers)
        self.ledger.on_all_drained(drained)
        if self.failure is not None:
            raise Violation(self.failure)

    def _empty_again(self) -> None:
        """Acknowledges everything that was taken, proves it, and fails the power: nothing may come back."""
        for client in self.clients:
            client.give(Step(0, 0.0, "prove", {"which": 0}))
        self.must(SETTLE_S, self.all_idle, lambda: f"the last acknowledgements: {self.standing()}")
        if self.mirrors is not None:
            mirrors = self.mirrors
            self.must(
                SETTLE_S,
                lambda: not self._unserved(mirrors, self.queues, empty=True),
                lambda: f"although all is empty: {', '.join(self._unserved(mirrors, self.queues, empty=True))}",
            )
        self.ledger.on_disturbed(self.scheduler.now + UNREST_S)
        for machine in self.everybody:
            machine.kill(power=True)
            self.start_later(machine, self.rng.random())
        self.must(SETTLE_S, self.all_serve, lambda: f"after the last start: {self.standing()}")
        self._empty()

    def summary(self) -> str:
        lives = sum(machine.lives for machine in self.everybody)
        return (
            f"{self.scheduler.now:.0f} s, {self.scheduler.events} events, {lives} lives, "
            f"{self.consensus.summary()}, {'' if self.pauses is None else self.pauses.summary() + ', '}"
            f"{'' if self.mirrors is None else self.mirrors.summary() + ', '}"
            f"{self.ledger.summary()}, {self.answers.summary(self.ledger)}"
            f"{f', {sum(self.spooling.spooled.values())} sent on' if self.spooling.spooled else ''}"
            f"{f', {self.ledger.apart.delivered} apart' if self.ledger.apart.delivered else ''}"
            f"{f', {self.ledger.apart.spooled} out of spools' if self.ledger.apart.spooled else ''}"
            f"{f', {self.resources.recovered} recovered' if self.resources.recovered else ''}"
            f"{f', two of three seen {self.witnessing.losses} times' if self.plan.witnessed else ''}"
        )


@contextmanager
def quiet(really: bool = True) -> Iterator[None]:
    """Disables logging: most runs are not looked at, and those that fail are run again."""
    before = logging.root.manager.disable
    if really:
        logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def play_through(world: World) -> None:
    """Plays a world to its end, without its logs. Raises Violation, with the command that replays it."""
    try:
        with quiet():
            world.play()
    except Violation as violation:
        raise Violation(f"{violation}\nreplay: {world.plan.command()} --trace") from None


def run(plan: Plan) -> World:
    """Plays a plan. Raises Violation, with the command that replays it."""
    world = World(plan)
    play_through(world)
    return world
