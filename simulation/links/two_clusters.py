"""Two clusters with a line between them, through faults of both and of the line.

`near` has the nodes n1, n2, … and `far` f1, f2, …: two clusters, each with its own metadata. Nothing but clients,
shovels and federation links uses the line between them. What moves messages is up to the subclass: `shovels_between` or
`federation_between`.

Faults: the line is cut in one direction or both, is slow, or loses its connections; nodes of both clusters are killed,
stopped for a while, lose their power, are cut off, or their clocks leap; operators move a worker to another node,
restart it, or change its parameter.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from leveret.metadata.shovel.commands import AssignRow, AssignWork, RestartWork
from leveret.metadata.shovel.records import SHOVEL
from simulation.checkers.metadata_checker import MetadataChecker
from simulation.core.machine import CLUSTER_PORT, Machine
from simulation.links.linked import FAR, NEAR, LinkedWorld
from simulation.plan import Plan
from simulation.world import SETTLE_S, START_S, Violation

if TYPE_CHECKING:
    from leveret.metadata.shovel.records import Assignment, WorkKey

LOOK_S: Final = 0.05  # To read a queue while everything goes on.


class TwoClusters(LinkedWorld):
    """A run of two clusters. `machines` are those of the near one, `everybody` is both."""

    def __init__(self, plan: Plan, traced: bool = False) -> None:
        super().__init__(plan, traced)
        seeds = ((), *[(("f1", CLUSTER_PORT),)] * (plan.nodes - 1))
        far = [Machine(self, f"f{number}", join) for number, join in enumerate(seeds, 1)]
        self.sides[FAR] = far
        self.everybody = [*self.machines, *far]
        self.agreed = {NEAR: self.consensus, FAR: MetadataChecker(self.fail)}
        self.is_mirrored = random.Random(f"{self.seed}/mirrored").random() < 0.4

    def side_of(self, machine: Machine) -> str:
        return NEAR if machine in self.machines else FAR

    # -- What a subclass says ------------------------------------------------------------------------------------

    def works(self) -> list[tuple[str, WorkKey]]:
        """Return what moves messages, each with the cluster that runs it."""
        raise NotImplementedError

    def set_up(self) -> None:
        """Declare everything, and have it run."""
        raise NotImplementedError

    def look(self, seconds: float) -> None:
        """Check what is true at all times; `seconds` to read a queue."""
        raise NotImplementedError

    def finish(self) -> None:
        """All is healed: check what is true in the end."""
        raise NotImplementedError

    # -- The run -------------------------------------------------------------------------------------------------

    def _play(self) -> None:
        for machine in self.everybody:
            self.scheduler.after(self.rng.random() * 2, machine.start)
        self.must(START_S, self.all_serve, lambda: f"no clusters came to be within {START_S} s: {self.standing()}")
        self.set_up()
        self.begin_publishing()
        start = self.scheduler.now
        for step in self.plan.taken():
            self.run_for(max(start + step.at - self.scheduler.now, 0.0))
            self.note("world", str(step))
            self.line_fault(step.what, step.arguments["seconds"], random.Random(step.arguments["draw"]))
            self.look(LOOK_S)
        self._heal()

    def _heal(self) -> None:
        super()._heal()
        for side, checker in self.agreed.items():
            clusters = [node.cluster for node in self.nodes_of(side)]
            self.must(10.0, lambda c=checker, n=clusters: c.is_kept(n), lambda c=checker, n=clusters: c.standing(n))  # type: ignore[misc]
        # A node that was frozen may still be, and what the end asks of it would not be done.
        self.must(SETTLE_S, lambda: not self._frozen(), lambda: f"{self._frozen()} are frozen")
        self.finish()
        self.raise_failure()

    def _frozen(self) -> list[str]:
        return [one.name for one in self.everybody if one.is_frozen]

    def summary(self) -> str:
        lives = sum(machine.lives for machine in self.everybody)
        return f"{self.scheduler.now:.0f} s, {self.scheduler.events} events, {lives} lives, {self.summary_of_links()}"

    # -- Faults --------------------------------------------------------------------------------------------------

    def line_fault(self, name: str, seconds: float, rng: random.Random) -> None:
        node = rng.randrange(len(self.everybody))
        line = self._line()
        if name in ("kill", "power", "isolate"):
            self.fault(name)(node, seconds)
        elif name == "pause":
            loop = self.everybody[node].loop
            if loop is not None:
                loop.pause(seconds)
        elif name == "skew":
            self.everybody[node].skew_ms += rng.choice((-3_600_000, -5_000, 5_000, 3_600_000))
        elif name == "cut_line":
            self.cut([*line, *[(b, a) for a, b in line]], seconds)
        elif name == "cut_line_one_way":
            self.cut(line if rng.random() < 0.5 else [(b, a) for a, b in line], seconds)
        elif name == "slow_line":
            for one in line:
                self.network.slow[one] = 200.0
                self.scheduler.after(seconds, self.network.slow.pop, one, None)
        elif name == "reset_line":
            ends = {*line, *[(b, a) for a, b in line]}
            for endpoint in list(self.network.endpoints):
                if (endpoint.here[0], endpoint.there[0]) in ends and rng.random() < 0.7:
                    self.network.reset(endpoint)
        else:
            self.work_fault(name, seconds, rng)

    def work_fault(self, name: str, seconds: float, rng: random.Random) -> None:
        """Do something to a shovel or a link."""
        side, key = rng.choice(self.works())
        if name == "restart_worker":
            self.order(side, RestartWork(*key), rng)
        elif name == "move_worker":
            self._move(side, key, rng)
        else:
            raise AssertionError(name)

    def _line(self) -> list[tuple[str, str]]:
        """Return the ways from the near cluster to the far one."""
        return [(one.name, other.name) for one in self.sides[NEAR] for other in self.sides[FAR]]

    def _move(self, side: str, key: WorkKey, rng: random.Random) -> None:
        """An operator gives a shovel or a link to some node, whoever runs it."""
        machine = next((one for one in self.sides[side] if one.serving), None)
        known = None if machine is None else self.assignment(side, key)
        if machine is not None and known is not None:
            to = rng.choice(self.sides[side]).node_name
            self.order_at(machine, AssignWork((AssignRow(*key, known.epoch, to),)), lambda applied: None)

    def assignment(self, side: str, key: WorkKey) -> Assignment | None:
        """Return who should run a shovel or a link, as the first node that serves knows it."""
        for machine in self.sides[side]:
            node = None if machine.server is None or not machine.serving else machine.server.node
            if node is not None:
                return (node.metadata.assignments if key.component == SHOVEL else node.metadata.links).get(key)
        return None

    # -- What must hold ------------------------------------------------------------------------------------------

    def observe(self, machine: Machine) -> None:
        node = None if machine.server is None else machine.server.node
        if node is not None:
            side = self.side_of(machine)
            self.agreed[side].observe(machine.name, node.cluster)
            self.observe_workers(machine, node, side)

    def on_started(self, machine: Machine) -> None:
        self.agreed[self.side_of(machine)].on_started(machine.name)

    def on_died(self, machine: Machine, clean: bool) -> None:
        machine.at_death.clear()

    def unrest(self) -> str:
        return next((wrong for side, key in self.works() if (wrong := self.idle(side, key))), "")

    def fail_now(self, text: str) -> None:
        self.fail(text)
        raise Violation(self.failure)
