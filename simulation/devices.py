"""Retained messages, client ids, sessions and wills through everything that a run does to nodes and links.

    python -m simulation.devices --seed 7 --nodes 3 [--mirrored] [--trace] [--count 20]

A run as any other, in which there are devices beside the clients: each has a client id, connects to any node, keeps
retained messages, changes its session, says goodbye or is lost, or connects elsewhere before it was lost. A device
speaks to the broker of its node as the machine of its protocol would (`Broker.client_ids`, `Broker.retained`), and what
it was told dies with the node. Wills go to a queue, `wills`, that no client knows.

What must hold, by what devices were told:

    one owner    a device that believes to own its client id does so by all that its node has applied: nobody else has
                 claimed the id since. No two claims have the same epoch.
    fenced       a session is changed by a device only if, when it asked, nobody had been told of a later claim; and
                 what was refused because of such a claim is not in the session
    last         in the end all nodes find the same message of a topic, and no other was begun after it was safe, or
                 behind it by the same device, and is safe, too
    once         no will is in its queue twice. In quiet times, a will without a delay is there if its device was lost
                 or taken over, and is not there if it said goodbye
    ended        in the end no session is connected, and those whose time is over are gone
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.client_ids.client_ids import TAKEN_OVER, Claim, Claimed, SessionChange
from leveret.metadata.model.commands import Bind, DeclareQueue, SetPolicy
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.mqtt.records import NEVER_S, RetainedMessage, Subscription, Will
from leveret.protocol.frames import content
from leveret.protocol.properties import Properties, encode
from simulation import own_command
from simulation.amqp.contents import number_of
from simulation.plan import Plan
from simulation.world import SETTLE_S, START_S, Violation, World

if TYPE_CHECKING:
    from leveret.node.node import Node
    from leveret.storage.format.queue_block import Run
    from simulation.core.machine import Machine

WILLS: Final = "wills"
DEVICES: Final = 4
TOPICS: Final = ("t/0", "t/1", "t/2")
EXPIRIES_S: Final = (0, 5, NEVER_S)
DELAYS_S: Final = (0, 0, 2)
OPS: Final = (("keep", 6), ("subscribe", 3), ("goodbye", 2), ("lose", 2), ("elsewhere", 3))
QUIET_S: Final = 90.0  # Longer than a will is tried, and sessions last.
BYTES_MAX: Final = 1 << 30
FRAME_MAX: Final = 131_072


class Kept(NamedTuple):
    """A retained message that a device was told to be safe, or of which it knows nothing."""

    number: int
    begun: float
    safe: float | None
    last: int  # The number of the last message that the device sent to the topic in one go.


class Connection:
    """A device's connection, which dies with the life of its machine."""

    def __init__(
        self, world: DevicesWorld, client_id: str, machine: Machine, node: Node, will: int | None, delay_s: int
    ) -> None:
        self.world = world
        self.client_id = client_id
        self.machine = machine
        self.node = node
        self.life = machine.lives
        self.will = will
        self.delay_s = delay_s
        self.claimed: Claimed | None = None
        self.is_over = False

    @property
    def is_alive(self) -> bool:
        server = self.machine.server
        is_same = self.machine.lives == self.life and server is not None and server.node is self.node
        return is_same and self.machine.alive and not self.is_over

    @property
    def epoch(self) -> int:
        return 0 if self.claimed is None else self.claimed.session.epoch

    def on_answer(self, answer: Claimed | Refusal) -> None:
        if isinstance(answer, Refusal):
            self.is_over = True
            return
        self.claimed = answer
        self.world.on_claimed(self)

    def on_taken_over(self) -> None:
        self.world.counts["taken over"] += 1
        self._end("taken over")
        self.world.expect_will(self)

    def on_claim_lost(self) -> None:
        self._end("lost")

    def _end(self, how: str) -> None:
        self.world.note(self.machine.name, f"{self.client_id} epoch {self.epoch} is {how}")
        if self.is_over or self.claimed is None:
            self.world.fail(f"{self.client_id} is told twice, or before it has claimed, that it is {how}")
        self.is_over = True


class DevicesWorld(World):
    """A run with devices."""

    def __init__(self, plan: Plan, traced: bool = False) -> None:
        super().__init__(plan, traced)
        self.device_rng = random.Random(f"{self.seed}/devices")
        self.connections: dict[str, list[Connection]] = {f"device {number}": [] for number in range(DEVICES)}
        self.epochs: dict[int, str] = {}  # Of claims that were answered: whose.
        self.highest: dict[str, int] = {}  # By client id: the last epoch that was answered.
        self.kept: dict[str, list[Kept]] = {topic: [] for topic in TOPICS}
        self.will = self.subscriptions = 0  # The last numbers that were given.
        self.forgone: set[int] = set()  # Wills of devices that said goodbye in time.
        self.owed: set[int] = set()  # Wills that must be published.
        self.is_calm = self.is_over = False
        self.counts = {"claims": 0, "taken over": 0, "kept": 0, "changes": 0, "wills": 0}

    def _begin(self) -> None:
        super()._begin()
        home = self.machines[0].node_name
        if self.plan.mirrored:
            self.operators.order(SetPolicy("/", "wills", f"^{WILLS}$", "queues", 9, {"ha-mode": "all"}))
            self.run_for(1.0)
        self.operators.order(DeclareQueue("/", WILLS, node=home))
        self.run_for(1.0)
        self.operators.order(Bind("/", "amq.topic", "queue", WILLS, "wills.#"))
        self.run_for(2.0)
        for client_id in self.connections:
            self.scheduler.after(self.device_rng.random(), self._act, client_id)

    # -- What devices do -----------------------------------------------------------------------------------------

    def _act(self, client_id: str) -> None:
        if self.is_over:
            return
        rng = self.device_rng
        self.scheduler.after(rng.choice((0.02, 0.3, 1.5)), self._act, client_id)
        open_ = [one for one in self.connections[client_id] if one.is_alive]
        self.connections[client_id] = open_
        if not open_:
            self._connect(client_id)
            return
        connection = open_[-1]
        if connection.claimed is None:
            return
        what = rng.choices([name for name, _ in OPS], [weight for _, weight in OPS])[0]
        if what == "elsewhere":
            self._connect(client_id)
        else:
            self._in_loop(connection, what)

    def _connect(self, client_id: str, will: bool | None = None) -> None:
        """Claim the client id at some node that serves."""
        rng = self.device_rng
        serving = [one for one in self.machines if one.serving]
        if not serving:
            return
        machine = rng.choice(serving)
        node = None if machine.server is None else machine.server.node
        if node is None or machine.loop is None:
            return
        number = None
        if rng.random() < 0.6 if will is None else will:
            self.will += 1
            number = self.will
        expiry_s, delay_s, clean = rng.choice(EXPIRIES_S), rng.choice(DELAYS_S), rng.random() < 0.3
        connection = Connection(self, client_id, machine, node, number, delay_s)
        self.connections[client_id].append(connection)
        will_ = None if number is None else will_of(number, delay_s)
        claim = Claim("/", client_id, "guest", clean, expiry_s, (), will_)

        def begin() -> None:
            node.broker.client_ids.claim(claim, connection, connection.on_answer)
            node.schedule()

        machine.loop.call_soon(begin)

    def _in_loop(self, connection: Connection, what: str) -> None:
        def begin() -> None:
            if connection.is_alive and connection.claimed is not None:
                getattr(self, f"_{what}")(connection)
                connection.node.schedule()

        if connection.machine.loop is not None:
            connection.machine.loop.call_soon(begin)

    def _keep(self, connection: Connection) -> None:
        topic, begun = self.device_rng.choice(TOPICS), self.scheduler.now
        first = sum(map(len, self.kept.values())) + 1
        last = first + self.device_rng.randrange(3)
        for number in range(first, last + 1):
            self._keep_one(connection, topic, Kept(number, begun, None, last))

    def _keep_one(self, connection: Connection, topic: str, one: Kept) -> None:
        at = len(self.kept[topic])
        self.kept[topic].append(one)

        def then(refused: Refusal | None) -> None:
            if refused is None:
                self.counts["kept"] += 1
                self.kept[topic][at] = one._replace(safe=self.scheduler.now)

        message = RetainedMessage(topic, str(one.number).encode())
        connection.node.broker.retained.keep("/", topic, message, then)

    def _subscribe(self, connection: Connection) -> None:
        epoch, told = connection.epoch, self.highest.get(connection.client_id, 0)
        self.subscriptions += 1
        topic = f"s/{self.subscriptions}"

        def then(refused: Refusal | None) -> None:
            session = connection.node.broker.client_ids.find("/", connection.client_id)
            if refused == TAKEN_OVER and session is not None and topic in session.subscriptions:
                self.fail(f"{connection.client_id} was refused {topic} with epoch {epoch}, and has it: {session}")
            if refused is None:
                self.counts["changes"] += 1
                if told > epoch:
                    self.fail(f"{connection.client_id} changed its session with epoch {epoch} after {told} was told")

        change = SessionChange(subscribe={topic: Subscription(1)}, unsubscribe=(f"s/{self.subscriptions - 10}",))
        connection.node.broker.client_ids.change("/", connection.client_id, epoch, change, then)

    def _goodbye(self, connection: Connection) -> None:
        self._release(connection, False)
        if connection.will is not None and self.is_calm:
            self.forgone.add(connection.will)

    def _lose(self, connection: Connection) -> None:
        self._release(connection, True)
        self.expect_will(connection)

    def expect_will(self, connection: Connection) -> None:
        if connection.will is not None and not connection.delay_s and self.is_calm:
            self.owed.add(connection.will)

    def _release(self, connection: Connection, publish_will: bool) -> None:
        connection.is_over = True
        connection.node.broker.client_ids.release("/", connection.client_id, connection.epoch, publish_will)
        self.note(connection.machine.name, f"{connection.client_id} releases {connection.epoch}, will {publish_will}")

    # -- What must hold ------------------------------------------------------------------------------------------

    def on_claimed(self, connection: Connection) -> None:
        epoch, client_id = connection.epoch, connection.client_id
        self.counts["claims"] += 1
        self.note(connection.machine.name, f"{client_id} has epoch {epoch}")
        if epoch in self.epochs:
            self.fail(f"{client_id} and {self.epochs[epoch]} both have epoch {epoch}")
        self.epochs[epoch] = client_id
        self.highest[client_id] = max(epoch, self.highest.get(client_id, 0))

    def observe(self, machine: Machine) -> None:
        super().observe(machine)
        for client_id, connections in self.connections.items():
            for one in connections:
                if one.machine is not machine or one.claimed is None or not one.is_alive:
                    continue
                session = one.node.metadata.sessions.get("/", client_id)
                if session is None or (session.epoch, session.node) != (one.epoch, machine.node_name):
                    self.fail(f"{client_id} believes in epoch {one.epoch}, and {machine.name} has applied {session}")

    # -- The end -------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        super()._heal()
        self.run_for(QUIET_S)
        self.is_calm = True
        self.run_for(20.0)
        self.is_over = True
        self.run_for(5.0)
        self._lose_all()
        self.must(START_S, self.all_serve, lambda: f"after the power has failed: {self.standing()}")
        self.must(SETTLE_S, self._is_at_rest, self._unrest)
        self._check_retained()
        self._check_wills()
        if self.failure is not None:
            raise Violation(self.failure)

    def _lose_all(self) -> None:
        """The devices of one node are lost with it, all others by themselves."""
        open_ = [one for connections in self.connections.values() for one in connections if one.is_alive]
        for one in open_:
            if one.claimed is None:
                self.fail(f"{one.client_id} has no answer to its claim, though nothing was done to anybody")
        lost = self.device_rng.choice(open_).machine if open_ else self.machines[0]
        for one in open_:
            if one.machine is lost:
                self.expect_will(one)
            else:
                self._in_loop(one, "lose")
        self.run_for(1.0)
        self.ledger.on_disturbed(self.scheduler.now + SETTLE_S)
        self.fault_power(self.machines.index(lost), 0.5)
        self.run_for(1.0)

    def _nodes(self) -> list[Node]:
        return [one.server.node for one in self.machines if one.server is not None and one.server.node is not None]

    def _is_at_rest(self) -> bool:
        return not self._unrest()

    def _unrest(self) -> str:
        for node in self._nodes():
            left = [one for one in node.metadata.sessions if one.node or one.expiry_s != NEVER_S]
            if left:
                return f"sessions are left: {left[0]}"
            if node.metadata.wills or node.metadata.leaving:
                return f"wills are left: {list(node.metadata.wills.values())}, {list(node.metadata.leaving)}"
            if node.broker.client_ids.held:
                return f"client ids are held at {node.settings.node_name}"
        return ""

    def _check_retained(self) -> None:
        for topic, all_ in self.kept.items():
            found = {
                node.settings.node_name: [int(one.payload) for one in node.broker.retained.find("/", topic)]
                for node in self._nodes()
            }
            self.note("world", f"retained of {topic}: {found}")
            values = list(found.values())
            if any(value != values[0] for value in values):
                self.fail(f"the nodes have different retained messages of {topic}: {found}")
            by_number = {one.number: one for one in all_}
            last = by_number[values[0][0]] if values[0] else None
            for one in all_:
                if one.safe is None or one is last:
                    continue
                is_earlier = last is not None and last.safe is not None and last.safe < one.begun
                if last is None or is_earlier or last.number < one.number == last.last:
                    self.fail(f"the retained message of {topic} is {last}, and {one} came later and is safe")

    def _check_wills(self) -> None:
        found = self.operators.leading(WILLS)
        if found is None:
            if not self.ledger.has_lost_disks:  # Else the queue may be gone with the only disk that had it.
                self.fail("nobody leads the queue of the wills")
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
        self.must(START_S, lambda: bool(done), lambda: "the wills could not be read")
        counts = Counter(read)
        self.counts["wills"] = len(read)
        self.note("world", f"wills: {sorted(read)}")
        is_lost = self.ledger.has_lost_disks
        twice = sorted(number for number, count in counts.items() if count > 1)
        if twice:
            self.fail(f"wills {twice[:5]} were published more than once")
        missing = sorted(self.owed - counts.keys())
        if missing and not is_lost:
            self.fail(f"wills {missing[:5]} were not published")
        wrong = sorted(self.forgone & counts.keys())
        if wrong:
            self.fail(f"wills {wrong[:5]} were published though their devices had said goodbye")

    def summary(self) -> str:
        devices = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        return f"{super().summary()}; devices: {devices}"


def will_of(number: int, delay_s: int) -> Will:
    body = b"%d is lost" % number
    made = content(encode(Properties(delivery_mode=2), len(body)), body, FRAME_MAX)
    return Will("amq.topic", f"wills.{number}", made, delay_s)


def run(plan: Plan, traced: bool = False) -> DevicesWorld:
    """Raises Violation, with the command that replays it."""
    return own_command.play("devices", DevicesWorld, plan, traced)


if __name__ == "__main__":
    sys.exit(own_command.main("devices", DevicesWorld))
