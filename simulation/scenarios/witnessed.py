"""Two nodes and a witness, of which any one is lost: the other two continue, by their majority alone.

In a run with `--witnessed` there are two nodes and, at a third place, the real `Witness`. Faults of machines and links
hit the witness, too. No node can see another's folder or trusts a refusal (`paired.NO_PROOFS`), so no node can prove
that another one is dead. In half of these runs nodes without a majority pause, as by default.

Three faults exist only in these runs. One of the three is *lost* for longer than it takes to notice, and there are no
other faults for the two that are left meanwhile. Of two that continued without the third, the leader is lost at the
moment when the third is back (*relieve*): what they had agreed on is then at the witness only, whose power has failed
since. And a master that was cut off while its clients published is killed at the moment when it learns of another
master (*depose*): what it has confirmed then must be in the ring of the other, not only on its own disk.

The checker looks at each two of the three. When both are running and in contact, and nothing has happened for
`GRACE_S`, it demands:

    on           a node of the two sees a majority and, unless it is configured otherwise, serves its clients
    led          a node is the Raft leader: the witness is the leader only for a moment
    masters      the node is the master of each mirrored queue of which its copy is in sync, if the other node is lost
    apart        the witness is never the home or a mirror of a queue

That the witness keeps what it has agreed to, and votes once in a term, is demanded as of any member: see
`checkers.metadata_checker`.
"""

from __future__ import annotations

import asyncio
import random
from itertools import combinations
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.queue.local_queue import LocalQueue
from leveret.node.cluster.witness import Witness
from leveret.node.node import Node
from simulation.clients.session import Closed, Lost, Session
from simulation.core.machine import AMQP_PORT, COOKIE, Machine, Process, SimSurroundings

if TYPE_CHECKING:
    from simulation.world import World

WITNESSED_FAULTS: Final = (
    ("lose", 14),
    ("relieve", 8),
    ("depose", 8),
    ("kill", 4),
    ("power", 6),
    ("kill_leader", 8),
    ("terminate", 2),
    ("isolate", 4),
    ("part", 4),
    ("cut_one_way", 3),
    ("pause", 4),
    ("strike", 4),
)
# Faults that the witness may have like any node.
OF_ANY: Final = frozenset(
    {"lose", "kill", "power", "terminate", "strike", "pause", "slow_disk", "fail_sync", "stall", "sever"}
    | {"part", "cut_one_way", "isolate", "slow_link", "reset_links", "power_some", "stop_some"}
)
WITNESS: Final = "w"
GRACE_S: Final = 15.0  # For silence to be noticed, a leader to be elected, and masters to be promoted.
LOOK_S: Final = 0.5


def draw_loss(rng: random.Random, places: int) -> dict[str, Any]:
    how = rng.choice(("kill", "power", "power", "isolate", "pause"))
    return {"node": rng.randrange(places), "how": how, "seconds": round(GRACE_S + 5.0 + 15.0 * rng.random(), 3)}


def draw_relief(rng: random.Random) -> dict[str, Any]:
    return {
        "cut": round(5.0 + 4.0 * rng.random(), 3),
        "early": round(rng.choice((0.05, 0.3, 1.0)) * rng.random(), 3),
        "power": rng.random() < 0.5,
        "seconds": round(rng.choice((1.0, 6.0, GRACE_S + 5.0)) * (0.5 + rng.random()), 3),
    }


def draw_deposal(rng: random.Random, queue: str) -> dict[str, Any]:
    after = round(rng.choice((0.0, 0.005, 0.05)) * (0.5 + rng.random()), 4)
    return {"queue": queue, "cut": round(5.5 + 3.0 * rng.random(), 3), "after": after, "power": rng.random() < 0.7}


class WitnessMachine(Machine):
    """The machine of the witness."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.witness: Witness | None = None

    @property
    def serving(self) -> bool:
        return self.alive and self.witness is not None and self.witness.counts

    def make(self, surroundings: SimSurroundings) -> Process:
        self.witness = Witness(self.settings(), surroundings, COOKIE)
        return self.witness


class Witnessing:
    """Loses one of two nodes and a witness, and checks that the others continue."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calm_until = 0.0  # While one of three is lost, there are no other faults.
        self.quiet_since = 0.0  # The time of the last event.
        self.standing_before: list[Any] = []
        self.publishers = 0
        self.losses = 0  # Losses after which two were seen to continue.
        if len(self.world.everybody) > len(self.world.machines):
            self.world.scheduler.after(LOOK_S, self._look_at_pairs)

    def fault_lose(self, node: int, how: str, seconds: float) -> None:
        """Loses one of the three, for long."""
        if not all(one.serving for one in self.world.everybody):
            return
        self.calm_until = self.world.scheduler.now + seconds
        self.world.fault(how)(node=node, seconds=seconds)

    def fault_relieve(self, cut: float, early: float, power: bool, seconds: float) -> None:
        """Another node replaces the leader: see above."""
        leader = next((one for one in self.world.machines if self.world.consensus.leads(one.name)), None)
        if leader is None or not all(one.serving for one in self.world.everybody):
            return
        at = self.world.scheduler.now + cut
        self.calm_until = at + seconds
        self.world.fault_isolate(
            node=next(at for at, one in enumerate(self.world.machines) if one is not leader), seconds=cut
        )
        # Changes that an operator asks for, and the two agree on.
        policy = {"ha-mode": "all", "ha-sync-mode": "automatic", "ha-sync-batch-size": 1 + int(cut * 100)}
        self.world.scheduler.at(at - early - 0.8, self.world.operators.fault_policy, "^d", policy)
        self.world.scheduler.at(at - early - 0.1, self.world.fault_power, len(self.world.machines), 0.2)
        self.world.scheduler.at(at - early, self._relieve, leader, power, seconds)

    def _relieve(self, leader: Machine, power: bool, seconds: float) -> None:
        if not self.world.is_healed:
            leader.kill(power)
            self.world.scheduler.after(seconds, leader.start)

    def fault_depose(self, queue: str, cut: float, after: float, power: bool) -> None:
        found = self.world.operators.leading(queue)
        if found is None or found[2].mirror is None or not all(one.serving for one in self.world.everybody):
            return
        machine, now = found[0], self.world.scheduler.now
        self.calm_until = now + cut + 3.0
        self.world.fault_isolate(node=self.world.machines.index(machine), seconds=cut)
        self.world.client_loop.create_task(self._publish_at(machine.name, queue, now + cut - 1.5))
        self.world.scheduler.at(now + cut - 0.1, self._fell_deposed, machine, machine.lives, queue, after, power)

    async def _publish_at(self, place: str, queue: str, at: float) -> None:
        """Publishes on a connection of its own: other clients may wait for an agreement while the node is cut off."""
        loop = self.world.client_loop
        self.publishers += 1
        session = Session(f"publisher/{self.publishers}", place, loop, self.world.ledger, self.world.rng)
        try:
            await loop.create_connection(lambda: session, place, AMQP_PORT)
            await session.open
            channel = await session.open_channel(confirms=True)
            await asyncio.sleep(at - self.world.scheduler.now)
            while not session.lost and self.is_calm():
                channel.publish(queue, True, 10, self.world.ledger)
                await asyncio.sleep(0.02)
            if not session.lost:
                session.drop()
        except (Lost, Closed, OSError):
            pass  # The node has stopped serving.

    def _fell_deposed(self, machine: Machine, life: int, queue: str, after: float, power: bool) -> None:
        if not self.is_calm() or self.world.is_healed or machine.lives != life or not machine.alive:
            return
        node = None if machine.server is None else machine.server.node
        led = None if node is None else node.broker.vhosts["/"].queues.get(queue)
        if isinstance(led, LocalQueue) and led.mirror is not None:
            self.world.scheduler.after(0.001, self._fell_deposed, machine, life, queue, after, power)
        else:
            self.world.scheduler.after(after, machine.kill, power)
            self.world.scheduler.after(after + 2.0, machine.start)

    def is_calm(self) -> bool:
        return self.world.scheduler.now < self.calm_until

    def _look_at_pairs(self) -> None:
        """Checks each two of the three. Lasting events are seen from here; short ones are reported by `on_happened`."""
        if self.world.is_healed:
            return
        pairs = list(combinations(self.world.everybody, 2))
        standing: list[Any] = [self._is_well(one) for one in self.world.everybody]
        standing += [self._are_in_contact(a.name, b.name) for a, b in pairs]
        if standing != self.standing_before:
            self.standing_before = standing
            self.on_happened()
        if self.world.scheduler.now - self.quiet_since > GRACE_S:
            for a, b in pairs:
                if self._is_well(a) and self._is_well(b) and self._are_in_contact(a.name, b.name):
                    self._demand(a, b)
        self.world.scheduler.after(LOOK_S, self._look_at_pairs)

    def on_happened(self) -> None:
        self.quiet_since = self.world.scheduler.now

    def _is_well(self, machine: Machine) -> bool:
        now, disk = self.world.scheduler.now, machine.disk
        is_started = machine.server is None or machine.server.node is not None
        is_disk_well = disk.crash_after is None and disk.fail_sync_after is None and disk.free_bytes() > 1 << 20
        is_quick = now >= machine.slow_until and now >= machine.stalled_until
        return machine.alive and is_started and not machine.is_frozen and is_disk_well and is_quick

    def _are_in_contact(self, a: str, b: str) -> bool:
        slow = self.world.network.slow
        ways = ((a, b), (b, a))
        return not any(self.world.network.is_cut(*way) or way in slow for way in ways)

    def _demand(self, a: Machine, b: Machine) -> None:
        lost = next(one for one in self.world.everybody if one not in (a, b))
        is_seen = any(self._are_in_contact(lost.name, one.name) for one in (a, b))
        is_lost = not lost.alive or lost.is_frozen or not is_seen
        self.losses += is_lost
        who = f"{a.name} and {b.name} are well and in contact, all is quiet for {GRACE_S} s"
        if is_lost and self.world.consensus.leads(WITNESS) and WITNESS in (a.name, b.name):
            self.world.fail(f"{who}, and the witness leads still")
        for machine in (a, b):
            node = None if machine.server is None else machine.server.node
            if node is None:
                continue
            is_led_by_other = not is_lost and self.world.consensus.leads(lost.name)
            if is_led_by_other and not self._are_in_contact(machine.name, lost.name):
                continue  # The others have a majority, and the way to the leader is cut for this one alone.
            if not node.cluster.has_majority or node.cluster.raft.leader is None:
                self.world.fail(f"{who}, and {machine.name} has no majority or no leader")
            elif not self._may_stand_aside(machine) and not machine.serving:
                self.world.fail(f"{who}, and {machine.name} does not serve")
            elif is_lost and lost.server is not None:
                self._demand_masters(who, machine, node)

    def _may_stand_aside(self, machine: Machine) -> bool:
        """Returns whether a node may refuse to serve: by its partition handling, by an operator, or for lack of
        resources."""
        is_told = self.world.pauses is not None and self.world.pauses.is_due(machine.name)
        return is_told or self.world.plan.drained or self.world.plan.ailing

    def _demand_masters(self, who: str, machine: Machine, node: Node) -> None:
        if self._may_stand_aside(machine) or not machine.serving:
            return
        for queue in self.world.queues:
            spec = node.metadata.queues.get(("/", queue))
            view = None if spec is None else spec.view
            if view is None or machine.node_name not in {name for name, _ in view.in_sync}:
                continue
            led = node.broker.vhosts["/"].queues.get(queue)
            if not isinstance(led, LocalQueue) or led.mirror is None or not led.mirror.member.serving:
                self.world.fail(f"{who}, {queue} is in sync at {machine.name}, and is not led there: {view}")

    def check_apart(self, machine: Machine, node: Node) -> None:
        """Called once in each pass of a node."""
        if len(self.world.everybody) == len(self.world.machines):
            return
        apart = self.world.everybody[-1].node_name
        for spec in node.metadata.queues.values():
            if spec.node == apart or (spec.view is not None and apart in spec.view.ring):
                self.world.fail(f"{machine.name} has {spec.name} on the witness: {spec.node}, {spec.view}")
