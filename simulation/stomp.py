"""STOMP clients beside the others, through everything that a run does to nodes and links.

    python -m simulation.stomp --seed 7 --nodes 3 [--mirrored] [--trace] [--count 20]

A run like any other, with some clients more, which speak STOMP 1.2: they send to the durable queues with receipts and
in transactions, subscribe, with and without prefetch counts, acknowledge, reject, and are lost in the midst of it.
What they see is recorded in the same ledger as what AMQP clients see: a receipt is a confirm, and nothing that has one
may be lost; an acknowledged message does not come again once a later receipt proves that its queue knows; what comes
again is marked.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Final

from leveret.node.config.settings import Listener
from simulation import own_command
from simulation.clients.stomp_session import StompSession
from simulation.plan import Plan
from simulation.world import World

if TYPE_CHECKING:
    from simulation.checkers.ledger import Message
    from simulation.clients.stomp_session import Subscription

STOMP_PORT: Final = 61613
STOMP_CLIENTS: Final = 3
RETRY_S: Final = 0.5
ACTS: Final = (("send", 8), ("subscribe", 3), ("settle", 10), ("transact", 2), ("prove", 3), ("leave", 1), ("drop", 1))
QUIET_S: Final = 10.0


class StompActor:
    """A client that does something now and then."""

    def __init__(self, world: StompWorld, number: int) -> None:
        self.world = world
        self.name = f"s{number}"
        self.rng = random.Random(f"{world.seed}/stomp/{number}")
        self.session: StompSession | None = None
        self.sessions = self.subscribed = 0

    def act(self) -> None:
        world = self.world
        if world.is_over:
            return
        world.scheduler.after(self.rng.random() * 0.4, self.act)
        session = self.session
        if session is None or session.lost:
            self._connect()
        elif session.open.done() and not session.leaving:
            what = self.rng.choices([name for name, _ in ACTS], [weight for _, weight in ACTS])[0]
            getattr(self, f"_{what}")(session)
            world.counts[what] = world.counts.get(what, 0) + 1

    def _connect(self) -> None:
        world, node = self.world, self.rng.choice(self.world.machines).name
        self.sessions += 1
        session = StompSession(f"{self.name}/{self.sessions}", node, world.client_loop, world.ledger, self.rng)

        async def connect() -> None:
            try:
                await world.client_loop.create_connection(lambda: session, node, STOMP_PORT)
            except OSError:
                session.lost = True

        self.session = session
        world.client_loop.create_task(connect())
        world.note(self.name, f"connects to {node} as {session.name}")

    def _queue(self) -> str:
        return self.rng.choice([name for name in self.world.queues if name.startswith("d")])

    def _send(self, session: StompSession) -> None:
        queue, padding = self._queue(), self.rng.choice((0, 10, 10, 2_000))
        for _ in range(self.rng.choice((1, 3, 20))):
            session.publish(queue, self.rng.random() < 0.9, padding, [])

    def _transact(self, session: StompSession) -> None:
        session.transact(self._queue(), self.rng.choice((1, 5)), self.rng.random() < 0.7)

    def _subscribe(self, session: StompSession) -> None:
        if len(session.subscriptions) < 3:
            self.subscribed += 1
            # Not `auto`: what is under way to a client that is lost would be lost, too.
            mode = self.rng.choice(("client", "client-individual"))
            session.subscribe(self.subscribed, self._queue(), mode, self.rng.choice((0, 1, 5)))

    def _held(self, session: StompSession) -> Subscription | None:
        held = [one for one in session.subscriptions.values() if one.unacked]
        return self.rng.choice(held) if held else None

    def _settle(self, session: StompSession) -> None:
        subscription = self._held(session)
        for _ in range(self.rng.choice((1, 5))):
            if subscription is not None and subscription.unacked:
                number = self.rng.choice(list(subscription.unacked))
                session.settle(subscription, number, self.rng.random() < 0.15)

    def _prove(self, session: StompSession) -> None:
        """The receipt of a message that is sent behind acknowledgements, to their queue, proves that they are known."""
        for subscription in session.subscriptions.values():
            if subscription.acked:
                acked, subscription.acked = subscription.acked, []
                session.publish(subscription.queue, True, 0, acked)

    def _leave(self, session: StompSession) -> None:
        session.waiting["bye"] = [], []
        session.send("DISCONNECT", receipt="bye")

    def _drop(self, session: StompSession) -> None:
        session.drop()


class StompWorld(World):
    """A run with STOMP clients."""

    def __init__(self, plan: Plan, traced: bool = False) -> None:
        super().__init__(plan, traced)
        self.more_settings = {"stomp_listeners": (Listener("", STOMP_PORT),)}
        self.is_over = False
        self.counts: dict[str, int] = {}
        self.actors: list[StompActor] = []

    def _begin(self) -> None:
        super()._begin()
        self.actors = [StompActor(self, number) for number in range(STOMP_CLIENTS)]
        for actor in self.actors:
            self.scheduler.after(actor.rng.random(), actor.act)

    def _heal(self) -> None:
        super()._heal()
        self.is_over = True
        self.run_for(QUIET_S)
        for actor in self.actors:
            if actor.session is not None:
                actor.session.drop()
        self.run_for(QUIET_S)

    def summary(self) -> str:
        acts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        receipts = sum(message.state == "confirmed" and message.stream[0] == "s" for message in self._messages())
        return f"{super().summary()}; STOMP: {receipts} receipts; {acts}"

    def _messages(self) -> list[Message]:
        return list(self.ledger.messages.values())


def run(plan: Plan, traced: bool = False) -> StompWorld:
    """Raises Violation, with the command that replays it."""
    return own_command.play("stomp", StompWorld, plan, traced)


if __name__ == "__main__":
    sys.exit(own_command.main("stomp", StompWorld))
