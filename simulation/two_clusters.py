"""Two clusters with a line between them, and shovels from one to the other, while everything fails.

    python -m simulation --two-clusters --seed 7 --nodes 2 [--steps 40] [--trace] [--count 20]

`near` has the nodes n1, n2, … and `far` f1, f2, …: two clusters, each with its own metadata. Nothing but clients and
shovels use the line between them. Publishers fill the sources, and nobody takes from the last queues:

    push     near "push" ─▶ far "pushed"      run by near: it consumes within the process and publishes over the line
    pull     far "pull" ─▶ near "pulled"      run by near: it consumes over the line
    there    near "trip" ─▶ far "trip"        run by near; then
    back     far "trip" ─▶ near "tripped"     run by far: what it brings has made the way there and back

Faults: the line is cut in one direction or both, is slow, or loses its connections; nodes of both clusters are killed,
stopped for a while, lose their power, are cut off, or their clocks leap; operators move a shovel to another node,
restart it, pause it, or change its parameter.

What must hold:

    one worker   a node has a worker only under the epoch that it has applied, and only if the assignment names it; no
                 two nodes ever have a worker under the same epoch
    no loss      in the end, what a publisher was told to be safe is in the last queue
    no double    in the end, nothing is in a last queue twice
    no loop      a message has passed each shovel once, in the order of the chain, by its header `x-shovelled`
    at work      in quiet times each shovel is run by one node, and the sources are empty
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.session.checks import Refused
from leveret.metadata.model.commands import DeclareQueue, SetParameter, SetPolicy
from leveret.metadata.shovel.commands import AssignRow, AssignWork, PauseWork, RestartWork
from leveret.metadata.shovel.records import SHOVEL, WorkKey
from leveret.protocol.frames import HEADER_AT, content
from leveret.protocol.properties import Properties, decode_content, encode
from leveret.shovel.rewriting import SHOVELLED
from simulation import own_command
from simulation.amqp.contents import number_of
from simulation.checkers.metadata_checker import MetadataChecker
from simulation.core.machine import AMQP_PORT, CLUSTER_PORT, Machine
from simulation.plan import Plan
from simulation.shovelled import BURST_MAX, BYTES_MAX, FRAME_MAX, QUIET_S, Publisher
from simulation.world import START_S, Violation, World

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.metadata.model.commands import Command
    from leveret.node.node import Node
    from leveret.storage.format.queue_block import Run

LOOK_S: Final = 0.05  # To read a queue while everything goes on.
STEP_S: Final = 0.6  # Average time between two faults.
NEAR, FAR = "near", "far"


class Way(NamedTuple):
    """A shovel: who runs it, and between which queues."""

    name: str
    run_by: str
    source: tuple[str, str]  # Cluster and queue.
    target: tuple[str, str]


class Route(NamedTuple):
    """A source that publishers fill, the last queue, and the shovels in between, the last one first."""

    source: tuple[str, str]
    last: tuple[str, str]
    by: tuple[str, ...]


WAYS: Final = (
    Way("push", NEAR, (NEAR, "push"), (FAR, "pushed")),
    Way("pull", NEAR, (FAR, "pull"), (NEAR, "pulled")),
    Way("there", NEAR, (NEAR, "trip"), (FAR, "trip")),
    Way("back", FAR, (FAR, "trip"), (NEAR, "tripped")),
)
ROUTES: Final = (
    Route((NEAR, "push"), (FAR, "pushed"), ("push",)),
    Route((FAR, "pull"), (NEAR, "pulled"), ("pull",)),
    Route((NEAR, "trip"), (NEAR, "tripped"), ("back", "there")),
)
FAULTS: Final = {
    "cut_line": 5, "cut_line_one_way": 3, "slow_line": 2, "reset_line": 5, "kill": 4, "power": 2, "pause": 4,
    "isolate": 2, "skew": 2, "move_worker": 4, "restart_shovel": 3, "pause_shovel": 2, "change_shovel": 1,
}  # fmt: skip


class TwoClusters(World):
    """A run of two clusters. `machines` are those of the near one, `everybody` is both."""

    def __init__(self, plan: Plan, traced: bool = False) -> None:
        super().__init__(plan, traced)
        seeds = ((), *[(("f1", CLUSTER_PORT),)] * (plan.nodes - 1))
        self.far = [Machine(self, f"f{number}", join) for number, join in enumerate(seeds, 1)]
        self.everybody = [*self.machines, *self.far]
        self.sides = {NEAR: self.machines, FAR: self.far}
        self.agreed = {NEAR: self.consensus, FAR: MetadataChecker(self.fail)}
        self.line_rng = random.Random(f"{self.seed}/line")
        self.is_mirrored = self.line_rng.random() < 0.4
        self.publishers: dict[str, Publisher] = {}
        self.sent = {route: 0 for route in ROUTES}
        self.safe: dict[Route, set[int]] = {route: set() for route in ROUTES}
        self.runners: dict[tuple[str, int], str] = {}  # By cluster and epoch: the node that had a worker.
        self.is_over = False
        self.moved = 0

    def side_of(self, machine: Machine) -> str:
        return FAR if machine.name.startswith("f") else NEAR

    # -- The run -------------------------------------------------------------------------------------------------

    def _play(self) -> None:
        for machine in self.everybody:
            self.scheduler.after(self.line_rng.random() * 2, machine.start)
        self.must(START_S, self.all_serve, lambda: f"no clusters came to be within {START_S} s: {self.standing()}")
        self._set_up()
        self.scheduler.after(0.0, self._publish)
        rng = self.line_rng
        for _ in range(self.plan.steps):
            self.run_for(rng.expovariate(1 / STEP_S))
            (name,) = rng.choices(list(FAULTS), list(FAULTS.values()))
            self.note("world", name)
            self._fault(name, rng.choice((0.2, 1.0, 4.0, 12.0)))
            self._check_routes(LOOK_S)
        self._heal()

    def _set_up(self) -> None:
        for side, machines in self.sides.items():
            if self.is_mirrored:
                self._order(side, SetPolicy("/", "moved", "^(pu|tr)", "queues", 9, {"ha-mode": "all"}))
            queues = {queue for way in WAYS for at, queue in (way.source, way.target) if at == side}
            for number, queue in enumerate(sorted(queues)):
                home = machines[number % len(machines)].node_name
                self._order(side, DeclareQueue("/", queue, node=home))
            self.run_for(1.0)
        for way in WAYS:
            self._order(way.run_by, self._parameter(way, 5))
        self.run_for(1.0)

    def _parameter(self, way: Way, prefetch: int) -> SetParameter:
        uris: dict[str, Json] = {
            side: [f"amqp://guest:guest@{machine.name}:{AMQP_PORT}" for machine in machines]
            for side, machines in self.sides.items()
        }
        uris[way.run_by] = "amqp://"
        value: Json = {
            "src-uri": uris[way.source[0]], "src-queue": way.source[1], "src-predeclared": True,
            "dest-uri": uris[way.target[0]], "dest-queue": way.target[1], "dest-predeclared": True,
            "dest-add-forward-headers": True, "reconnect-delay": 0.3, "src-prefetch-count": prefetch,
        }  # fmt: skip
        return SetParameter(SHOVEL, "/", way.name, value)

    def _order(self, side: str, command: Command, at: Machine | None = None) -> None:
        """Have a node of a cluster propose a command."""
        serving = [one for one in self.sides[side] if one.serving and not one.is_frozen]
        machine = at or (self.line_rng.choice(serving) if serving else None)
        node = None if machine is None or machine.server is None else machine.server.node
        if machine is not None and machine.loop is not None and node is not None:
            machine.loop.call_soon(node.propose, command, lambda applied: None)

    # -- Publishers ----------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        if self.is_over:
            return
        rng = self.line_rng
        self.scheduler.after(rng.choice((0.02, 0.2, 1.0)), self._publish)
        route = rng.choice(ROUTES)
        serving = [one for one in self.sides[route.source[0]] if one.serving and one.loop is not None]
        if serving:
            machine = rng.choice(serving)
            assert machine.loop is not None
            machine.loop.call_soon(self._burst, machine, route, rng.randrange(1, BURST_MAX))

    def _burst(self, machine: Machine, route: Route, count: int) -> None:
        node = None if machine.server is None else machine.server.node
        if node is None or not machine.serving:
            return
        publisher = self.publishers.get(machine.name)
        if publisher is None or not publisher.is_alive:
            publisher = self.publishers[machine.name] = Publisher(machine, node)
        for _ in range(count):
            self.sent[route] += 1
            self._publish_one(publisher, route, self.sent[route])
        node.schedule()

    def _publish_one(self, publisher: Publisher, route: Route, number: int) -> None:
        body = b"%d is moved" % number
        made = content(encode(Properties(delivery_mode=2), len(body)), body, FRAME_MAX)

        def then(is_safe: bool) -> None:
            if is_safe:
                self.safe[route].add(number)

        try:
            publisher.session.publish("", route.source[1], made, then)
        except Refused as refused:
            self.note(publisher.machine.name, f"a publish is refused: {refused}")

    # -- Faults --------------------------------------------------------------------------------------------------

    def _fault(self, name: str, seconds: float) -> None:
        rng = self.line_rng
        node = rng.randrange(len(self.everybody))
        way = rng.choice(WAYS)
        if name in ("kill", "power", "isolate"):
            self.fault(name)(node, seconds)
        elif name == "pause":
            loop = self.everybody[node].loop
            if loop is not None:
                loop.pause(seconds)
        elif name == "skew":
            self.everybody[node].skew_ms += rng.choice((-3_600_000, -5_000, 5_000, 3_600_000))
        elif name == "cut_line":
            self.cut([*self._line(), *[(b, a) for a, b in self._line()]], seconds)
        elif name == "cut_line_one_way":
            self.cut(self._line() if rng.random() < 0.5 else [(b, a) for a, b in self._line()], seconds)
        elif name == "slow_line":
            for one in self._line():
                self.network.slow[one] = 200.0
                self.scheduler.after(seconds, self.network.slow.pop, one, None)
        elif name == "reset_line":
            ends = set(self._line()) | {(b, a) for a, b in self._line()}
            for endpoint in list(self.network.endpoints):
                if (endpoint.here[0], endpoint.there[0]) in ends and rng.random() < 0.7:
                    self.network.reset(endpoint)
        elif name == "restart_shovel":
            self._order(way.run_by, RestartWork(SHOVEL, "/", way.name))
        elif name == "change_shovel":
            self._order(way.run_by, self._parameter(way, rng.choice((1, 7, 50))))
        elif name == "pause_shovel":
            self._order(way.run_by, PauseWork(SHOVEL, "/", way.name, True))
            self.scheduler.after(seconds, self._order, way.run_by, PauseWork(SHOVEL, "/", way.name, False))
        else:
            self._move(way)

    def _line(self) -> list[tuple[str, str]]:
        """Return the ways from the near cluster to the far one."""
        return [(one.name, other.name) for one in self.machines for other in self.far]

    def _move(self, way: Way) -> None:
        """An operator gives a shovel to some node, whoever runs it."""
        serving = [one for one in self.sides[way.run_by] if one.serving]
        for machine in serving[:1]:
            node = None if machine.server is None else machine.server.node
            known = None if node is None else node.metadata.assignments.get(WorkKey(SHOVEL, "/", way.name))
            if known is not None:
                to = self.line_rng.choice(self.sides[way.run_by]).node_name
                row = AssignRow(SHOVEL, "/", way.name, known.epoch, to)
                self._order(way.run_by, AssignWork((row,)), machine)

    # -- What must hold ------------------------------------------------------------------------------------------

    def observe(self, machine: Machine) -> None:
        node = None if machine.server is None else machine.server.node
        if node is None:
            return
        side = self.side_of(machine)
        self.agreed[side].observe(machine.name, node.cluster)
        for key, worker in node.shovels.workers.items():
            known, epoch = node.metadata.assignments.get(key), worker.assignment.epoch
            if known is None or known.epoch != epoch or known.node != machine.node_name:
                self.fail(f"{machine.name} runs {key.name} under epoch {epoch}, and has applied {known}")
            other = self.runners.setdefault((side, epoch), machine.name)
            if other != machine.name:
                self.fail(f"{machine.name} and {other} run {key.name} under epoch {epoch}")

    def on_started(self, machine: Machine) -> None:
        self.agreed[self.side_of(machine)].on_started(machine.name)

    def on_died(self, machine: Machine, clean: bool) -> None:
        machine.at_death.clear()

    def _nodes(self, side: str) -> list[Node]:
        return [one.server.node for one in self.sides[side] if one.server is not None and one.server.node is not None]

    def _heal(self) -> None:
        super()._heal()
        for side, checker in self.agreed.items():
            clusters = [node.cluster for node in self._nodes(side)]
            self.must(10.0, lambda c=checker, n=clusters: c.is_kept(n), lambda c=checker, n=clusters: c.standing(n))  # type: ignore[misc]
        while self._resume():
            self.run_for(1.0)
        self.run_for(2.0)
        self.is_over = True
        self.must(QUIET_S, lambda: not self._unrest(), self._unrest)
        self._check_routes(START_S)
        for route in ROUTES:
            self._check(route)
        if self.failure is not None:
            raise Violation(self.failure)

    def _resume(self) -> bool:
        """Resume what is paused. True: something was."""
        found = False
        for way in WAYS:
            known = self._nodes(way.run_by)[0].metadata.assignments[WorkKey(SHOVEL, "/", way.name)]
            if known.paused:
                self._order(way.run_by, PauseWork(SHOVEL, "/", way.name, False))
                found = True
        return found

    def _unrest(self) -> str:
        for way in WAYS:
            running = [
                worker
                for node in self._nodes(way.run_by)
                for key, worker in node.shovels.workers.items()
                if key.name == way.name
            ]
            if len(running) != 1 or running[0].life.value != "running":
                states = [(worker.life, worker.reason) for worker in running]
                return f"shovel {way.name} is run by {len(running)} nodes: {states}"
            found = self._leading(way.source)
            if found is None:
                return f"nobody leads the source of {way.name}"
            left = found[1].ready_count + found[1].unacked_count
            if left:
                return f"{left} messages are left in the source of {way.name}: {running[0].status()}"
        return ""

    def _leading(self, place: tuple[str, str]) -> tuple[Node, LocalQueue] | None:
        for machine in self.sides[place[0]]:
            node = machine.server.node if machine.serving and machine.server is not None else None
            vhost = None if node is None else node.broker.vhosts.get("/")
            found = None if vhost is None else vhost.queues.get(place[1])
            if node is not None and isinstance(found, LocalQueue):
                return node, found
        return None

    def _read(self, place: tuple[str, str], seconds: float) -> list[bytes]:
        """Return the contents of a queue, or none if it cannot be read in that time."""
        found = self._leading(place)
        if found is None:
            return []
        node, queue = found
        read: list[bytes] = []
        done: list[bool] = []

        def then(runs: list[Run] | None, following: int) -> None:
            for run in runs or ():
                read.extend(run.contents)
            done.append(True)

        node.storage.read_range(queue.spec.id, 1, queue.next_seq, BYTES_MAX, then)
        node.schedule()
        self.run_for(seconds, lambda: bool(done))
        return read

    def _check_routes(self, seconds: float) -> None:
        """Compare the shovels that messages have passed with those that lead to their queue. Done all the time, since
        what circles never comes to rest."""
        for route in ROUTES:
            for left, place in enumerate([*map(_target_of, route.by), route.source]):
                expected = list(route.by[left:])
                for one in self._read(place, seconds):
                    names = _passed(one)
                    if names != expected:
                        self.fail(f"message {number_of(one)} of {route.source} came to {place} through {names}")
                        raise Violation(self.failure)

    def _check(self, route: Route) -> None:
        read = [number_of(one) for one in self._read(route.last, START_S)]
        self.moved += len(read)
        twice = sorted(number for number, count in Counter(read).items() if count > 1)
        if twice:
            self.fail(f"{len(twice)} messages came twice to {route.last}: {twice[:5]}")
        lost = sorted(self.safe[route] - set(read))
        if lost:
            self.fail(f"{len(lost)} messages were lost on the way to {route.last}: {lost[:5]}")

    def summary(self) -> str:
        lives = sum(machine.lives for machine in self.everybody)
        safe = sum(map(len, self.safe.values()))
        return (
            f"{self.scheduler.now:.0f} s, {self.scheduler.events} events, {lives} lives, {safe} safe, "
            f"{self.moved} moved, {len(self.runners)} workers"
        )


def _target_of(name: str) -> tuple[str, str]:
    return next(way.target for way in WAYS if way.name == name)


def _passed(one: bytes) -> list[str]:
    """Return the shovels that a message has passed, the last one first."""
    headers: dict[str, Any] = decode_content(one, HEADER_AT).headers or {}
    if SHOVELLED not in headers:
        return []
    return [table.value["shovel-name"].value for table in headers[SHOVELLED].value]


def run(plan: Plan, traced: bool = False) -> TwoClusters:
    """Raises Violation, with the command that replays it."""
    return own_command.play("two_clusters", TwoClusters, plan, traced)


def main() -> int:
    return own_command.main("two_clusters", TwoClusters)


if __name__ == "__main__":
    sys.exit(main())
