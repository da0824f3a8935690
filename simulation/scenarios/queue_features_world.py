"""How a run with features begins and ends.

A part of `World`. At the beginning there are the exchanges and policies that `features` tells of. At the end, when all
is healed, comes what a plan can hardly meet by chance: messages with a time to live are published and grow old, their
queues are struck when half of it is over, and they are looked for when all of it is. Whoever dates them anew when he
starts, or takes over, or reads them back, gives them out when they have to be gone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from leveret.metadata.model.commands import SetPolicy
from simulation.clients.client import Client, Step
from simulation.core.loop import Scheduler
from simulation.core.machine import Machine
from simulation.features.queue_features import EXPIRING, HOUR_MS, LETTERS

if TYPE_CHECKING:
    from leveret.broker.queue.queue import Queue
    from leveret.node.node import Node
    from simulation.checkers.ledger import Ledger
    from simulation.checkers.message_checker import Fates
    from simulation.plan import Plan

AGE_MS: Final = 8_000
START_S: Final = 60.0
UNREST_S: Final = 60.0


class Featured:
    """See above."""

    scheduler: Scheduler
    dice: random.Random
    machines: list[Machine]
    clients: list[Client]
    queues: list[str]
    plan: Plan
    ledger: Ledger
    fail: Callable[[str], None]
    _run: Callable[..., bool]
    _must: Callable[..., None]
    _standing: Callable[[], str]
    _all_idle: Callable[[], bool]
    _all_serve: Callable[[], bool]
    _leading: Callable[[str], tuple[Machine, Node, Queue] | None]
    fault_hand_over: Callable[[str, int, bool], None]

    def _begin_features(self, fates: Fates) -> None:
        fates.features = self.plan.features()
        self.clients[0].give(Step(0, 0.0, "ways", {"queues": self.queues}))
        for name, expires_ms in EXPIRING.items():
            declare = {"queue": name, "durable": True, "arguments": {"x-expires": expires_ms}}
            self.clients[1].give(Step(0, 0.0, "declare", declare))
        self._must(START_S, self._all_idle, lambda: f"exchanges could not be declared: {self._standing()}")
        for name, features in fates.features.items():
            if features.by_policy and features.rules():
                self._order(SetPolicy("/", f"rules of {name}", f"^{name}$", "classic_queues", 1, features.rules()))
        self._run(2.0)

    def _order(self, command: SetPolicy) -> None:
        machine = self.machines[0]
        assert machine.server is not None and machine.server.node is not None and machine.loop is not None
        machine.loop.create_task(machine.server.node.cluster.change(command))

    def _changes_by_itself(self, queue: str) -> bool:
        """Whether it may differ from one moment to the next, though no client does anything."""
        features = self.plan.features().get(queue)
        if features is None:
            return False
        return queue == LETTERS or any(
            message.queue == queue and features.ttl_of(message.extras.expires_ms) not in (None, HOUR_MS)
            for message in self.ledger.messages.values()
        )

    # -- The end -------------------------------------------------------------------------------------------------

    def _let_age(self, fates: Fates) -> None:
        self._check_expiring(fates)
        queues = [queue for queue in self.queues if queue != LETTERS and not fates.queue(queue).lost]
        for client in self.clients:
            client.give(Step(0, 0.0, "drop", {}))
        self._run(1.0)
        began = self.scheduler.now
        for number, queue in enumerate(queues):
            own_ms = None if fates.features_of(queue).ttl_ms == AGE_MS else AGE_MS
            publish = {"queue": queue, "count": 2, "padding": 10, "persistent": True, "wait": True}
            self.clients[number].give(Step(0, 0.0, "publish", publish | {"expires_ms": own_ms}))
        self._must(START_S, self._all_idle, lambda: f"what is to grow old: {self._standing()}")
        self._run(AGE_MS / 2000)
        self._strike(queues)
        self._must(START_S, self._all_serve, lambda: f"while messages grew old: {self._standing()}")
        self._run(max(1.0, began + AGE_MS / 1000 + 0.5 - self.scheduler.now))
        self._look_at(queues)

    def _strike(self, queues: list[str]) -> None:
        """Something happens to those who have the queues."""
        self.ledger.on_disturbed(self.scheduler.now + UNREST_S)
        how = self.dice.choice(("power", "kill", "hand_over", "hand_over") if self.plan.mirrored else ("power", "kill"))
        if how == "hand_over":
            for queue in queues:
                self.fault_hand_over(queue, self.dice.randrange(len(self.machines)), True)
            return
        for machine in self.machines:
            machine.kill(power=how == "power")
            self.scheduler.after(self.dice.random() * 0.2, machine.start)

    def _look_at(self, queues: list[str]) -> None:
        """The ledger sees what comes, and how old it is. Clients look at the queues' own nodes: no link delays them."""
        for number, queue in enumerate(queues):
            found = self._leading(queue)
            client = self.clients[number]
            if found is not None:
                client.give(Step(0, 0.0, "go", {"node": self.machines.index(found[0])}))
            into: list[int] = []
            client.give(Step(0, 0.0, "browse", {"queue": queue, "into": into}))
        self._must(START_S, self._all_idle, lambda: f"old messages could not be looked for: {self._standing()}")

    def _check_expiring(self, fates: Fates) -> None:
        """Nobody has used these: one must be gone, the other one must not."""
        for machine in self.machines:
            assert machine.server is not None and machine.server.node is not None
            known: dict[Any, Any] = dict(machine.server.node.metadata.queues)
            for name, expires_ms in EXPIRING.items():
                if expires_ms < HOUR_MS and ("/", name) in known:
                    self.fail(f"{machine.name} knows {name} still, which nobody has used for long")
                if expires_ms == HOUR_MS and ("/", name) not in known and not fates.has_lost_disks:
                    self.fail(f"{machine.name} does not know {name} any more, whose time has not come")
