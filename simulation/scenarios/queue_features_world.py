"""How a run with features begins and ends.

A part of the world. At the beginning there are the exchanges and policies of `features.queue_features`. At the end,
when everything is healed, comes what a plan can hardly meet by chance: messages with a TTL are published, their queues'
nodes fail when half of the TTL is over, and the messages are looked for when all of it is. A node that dates them again
when it starts, takes over, or reads them back, delivers them although they have expired.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from leveret.metadata.model.commands import SetPolicy
from simulation.clients.client import Step
from simulation.features.queue_features import DEAD_LETTER_QUEUE, EXPIRING, HOUR_MS, PLAIN

if TYPE_CHECKING:
    from simulation.checkers.message_checker import MessageChecker
    from simulation.world import World

AGE_MS: Final = 8_000
START_S: Final = 60.0
UNREST_S: Final = 60.0


class QueueFeatures:
    """Begins and ends a run with features of queues."""

    def __init__(self, world: World) -> None:
        self.world = world

    def begin_features(self, checker: MessageChecker) -> None:
        checker.features = self.world.plan.features()
        self.world.clients[0].give(Step(0, 0.0, "ways", {"queues": self.world.queues}))
        for name, expires_ms in EXPIRING.items():
            declare = {"queue": name, "durable": True, "arguments": {"x-expires": expires_ms}}
            self.world.clients[1].give(Step(0, 0.0, "declare", declare))
        self.world.must(
            START_S, self.world.all_idle, lambda: f"exchanges could not be declared: {self.world.standing()}"
        )
        for name, features in checker.features.items():
            if features.by_policy and features.rules():
                self.world.operators.order(
                    SetPolicy("/", f"rules of {name}", f"^{name}$", "classic_queues", 1, features.rules())
                )
        self.world.run_for(2.0)

    def changes_by_itself(self, queue: str) -> bool:
        """Returns whether the queue may change although no client does anything."""
        features = self.world.plan.features().get(queue, PLAIN)
        return queue == DEAD_LETTER_QUEUE or any(
            message.queue == queue and features.ttl_of(message.extras.expires_ms) not in (None, HOUR_MS)
            for message in self.world.ledger.messages.values()
        )

    # -- The end -------------------------------------------------------------------------------------------------

    def let_age(self, checker: MessageChecker) -> None:
        self._check_expiring(checker)
        queues = [queue for queue in self.world.queues if queue != DEAD_LETTER_QUEUE and not checker.queue(queue).lost]
        for client in self.world.clients:
            client.give(Step(0, 0.0, "drop", {}))
        self.world.run_for(1.0)
        began = self.world.scheduler.now
        for number, queue in enumerate(queues):
            own_ms = None if checker.features_of(queue).ttl_ms == AGE_MS else AGE_MS
            publish = {"queue": queue, "count": 2, "padding": 10, "persistent": True, "wait": True}
            self.world.clients[number].give(Step(0, 0.0, "publish", publish | {"expires_ms": own_ms}))
        self.world.must(START_S, self.world.all_idle, lambda: f"what is to grow old: {self.world.standing()}")
        self.world.run_for(AGE_MS / 2000)
        self._strike(queues)
        self.world.must(START_S, self.world.all_serve, lambda: f"while messages grew old: {self.world.standing()}")
        self.world.run_for(max(1.0, began + AGE_MS / 1000 + 0.5 - self.world.scheduler.now))
        self._look_at(queues)

    def _strike(self, queues: list[str]) -> None:
        """Causes a fault at the nodes of the queues."""
        self.world.ledger.on_disturbed(self.world.scheduler.now + UNREST_S)
        how = self.world.rng.choice(
            ("power", "kill", "hand_over", "hand_over") if self.world.plan.mirrored else ("power", "kill")
        )
        if how == "hand_over":
            for queue in queues:
                self.world.operators.fault_hand_over(queue, self.world.rng.randrange(len(self.world.machines)), True)
            return
        for machine in self.world.machines:
            machine.kill(power=how == "power")
            self.world.scheduler.after(self.world.rng.random() * 0.2, machine.start)

    def _look_at(self, queues: list[str]) -> None:
        """Lets the ledger see what is delivered, and how old it is. Clients are at the queues' own nodes, so that no
        link delays them."""
        for number, queue in enumerate(queues):
            found = self.world.operators.leading(queue)
            client = self.world.clients[number]
            if found is not None:
                client.give(Step(0, 0.0, "go", {"node": self.world.machines.index(found[0])}))
            into: list[int] = []
            client.give(Step(0, 0.0, "browse", {"queue": queue, "into": into}))
        self.world.must(
            START_S, self.world.all_idle, lambda: f"old messages could not be looked for: {self.world.standing()}"
        )

    def _check_expiring(self, checker: MessageChecker) -> None:
        """Checks queues that nobody has used: one must have expired, the other one must not."""
        for machine in self.world.machines:
            assert machine.server is not None and machine.server.node is not None
            known: dict[Any, Any] = dict(machine.server.node.metadata.queues)
            for name, expires_ms in EXPIRING.items():
                if expires_ms < HOUR_MS and ("/", name) in known:
                    self.world.fail(f"{machine.name} knows {name} still, which nobody has used for long")
                if expires_ms == HOUR_MS and ("/", name) not in known and not checker.has_lost_disks:
                    self.world.fail(f"{machine.name} does not know {name} any more, whose time has not come")
