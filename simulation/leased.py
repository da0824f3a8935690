"""Leases through everything that a run does to nodes and links.

    python -m simulation.leased --seed 7 --nodes 3 [--mirrored] [--trace] [--count 20]

A run like any other, with one more queue, `e0`, to which clients publish and which others browse. Readers use leases of
it at its master, as the management port would: they open, take, acknowledge, release, send invalid requests, and get no
answer when the node dies meanwhile. The queue's master is killed now and then, and the queue is moved, or handed over.

What must be true, by what readers were told and by nothing else:

- a place always means the same message, whichever node is asked for its contents;
- what was told stays: no place that was given and not acknowledged is missing from a later answer;
- a leased message is not delivered (a master that is cut off, and does not know it yet, may deliver for some seconds);
- in the end, when all leases are released, everything that was confirmed and not acknowledged is in the queue;
- nothing that was acknowledged in a lease comes back;
- a lease that nobody uses is released by itself.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.queue.lease import LeaseView
from leveret.broker.queue.leases import Leases, ack_lease, lease_views, open_lease, release_lease, take_lease
from leveret.metadata.model.commands import SetPolicy
from simulation import own_command
from simulation.clients.client import Step
from simulation.plan import Plan
from simulation.world import START_S, Violation, World

if TYPE_CHECKING:
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.metadata.model.refusals import Refusal
    from leveret.node.node import Node
    from leveret.storage.format.queue_block import Run
    from simulation.checkers.ledger import Delivery
    from simulation.core.machine import Machine

LEASED: Final = "e0"
SHORT: Final = "short"  # A lease that its reader abandons.
SHORT_MS: Final = 4_000
LONG_AGO_S: Final = 30.0
END_S: Final = 40.0
BYTES_MAX: Final = 1 << 30
OPS: Final = (("open", 2), ("take", 8), ("ack", 6), ("release", 1), ("wrong", 1))
EVENTS: Final = (("publish", 5), ("look", 3), ("fell", 1), ("elsewhere", 2))


class Reader:
    """A reader with a lease, and the answers it got."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.view: LeaseView | None = None
        self.places: dict[int, int] = {}  # Message numbers by place.
        self.told_at: dict[int, float] = {}  # By message number: since when it is known to be leased.
        self.acking = 0  # Places below may be settled.
        self.settled: set[int] = set()  # Messages that are settled.
        self.freed = 0  # Places below are settled, or back in the queue.
        self.releasing = 0  # Releases that were requested and not answered yet.

    def read_through(self, view: LeaseView) -> int:
        """Returns the place below which everything was read: a reader acknowledges only what it has seen."""
        place = view.acked
        while place in self.places:
            place += 1
        return min(place, view.next)

    def is_out(self, place: int) -> bool:
        return self.view is not None and place >= max(self.acking, self.view.acked, self.freed) and not self.releasing


class LeasedWorld(World):
    """A run with leases."""

    def __init__(self, plan: Plan, traced: bool = False) -> None:
        super().__init__(plan, traced)
        self.readers = {name: Reader(name) for name in ("a", "b", SHORT)}
        self.lease_rng = random.Random(f"{self.seed}/leases")
        self.calm = False  # There are no more faults.
        self.over = False  # There are no more readers.
        self.counts = {"answers": 0, "refused": 0, "contents": 0}
        on_delivered = self.ledger.on_delivered

        def watched(delivery: Delivery) -> None:
            self._check_delivered(delivery)
            on_delivered(delivery)

        self.ledger.on_delivered = watched  # type: ignore[method-assign]

    # -- Steps ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        super()._begin()
        if self.plan.mirrored:
            self.operators.order(SetPolicy("/", "leased", f"^{LEASED}$", "queues", 9, {"ha-mode": "all"}))
            self.run_for(2.0)
        self._declare([LEASED])
        for name in self.readers:
            self.scheduler.after(self.lease_rng.random(), self._read_on, name)
        self.scheduler.after(1.0, self._disturb)

    def _disturb(self) -> None:
        if self.calm:
            return
        rng = self.lease_rng
        self.scheduler.after(rng.random() * 1.5, self._disturb)
        what = _pick(rng, EVENTS)
        client = rng.choice(self.clients)
        if what == "publish":
            count, padding = rng.choice((1, 5, 20)), rng.choice((0, 10, 1_000))
            publish = {"queue": LEASED, "count": count, "padding": padding, "persistent": rng.random() < 0.9}
            client.give(Step(0, 0.0, "publish", publish | {"wait": rng.random() < 0.5}))
        elif what == "look":
            look = {"queue": LEASED, "count": rng.choice((1, 3)), "no_ack": False, "how": "requeue"}
            client.give(Step(0, 0.0, "get", look))
        elif what == "fell":
            self.ledger.on_disturbed(self.scheduler.now + 20.0)
            self.operators.fault_fell_master(LEASED, rng.choice(("kill", "power", "terminate")), rng.random() * 3)
        elif self.plan.nodes > 1:
            node = rng.randrange(self.plan.nodes)
            if self.plan.mirrored:
                self.operators.fault_hand_over(LEASED, node, True)
            else:
                self.fault_move(LEASED, node)

    def _read_on(self, name: str) -> None:
        if self.over:
            return
        self.scheduler.after(self.lease_rng.choice((0.01, 0.3, 1.0)), self._read_on, name)
        reader = self.readers[name]
        if name == SHORT:
            if self.lease_rng.random() < 0.05:
                self._ask(reader, "open")
                self._ask(reader, "take")
            return
        self._ask(reader, _pick(self.lease_rng, OPS))

    def _ask(self, reader: Reader, what: str) -> None:
        """Asks the queue's master, in a pass of its own."""
        found = self.operators.leading(LEASED)
        if found is None:
            return
        machine, node, queue = found
        act, sure = self._question(reader, what)
        assert machine.loop is not None

        def then(view: LeaseView | Refusal) -> None:
            self._on_answer(reader, what, view, machine, node)
            if isinstance(view, LeaseView) and view.acked == sure and not reader.releasing:
                reader.settled |= {number for place, number in reader.places.items() if reader.freed <= place < sure}

        def begin() -> None:
            act(queue, then)
            node.schedule()

        machine.loop.call_soon(begin)

    def _question(self, reader: Reader, what: str) -> tuple[Callable[[LocalQueue, Callable[[Any], None]], None], int]:
        """Returns how to ask, and up to which place everything is certainly settled by the answer."""
        rng, name, view = self.lease_rng, reader.name, reader.view
        if what == "open":
            timeout_ms = SHORT_MS if name == SHORT else 3_600_000
            return (lambda queue, then: open_lease(queue, name, timeout_ms, then)), -1
        if what == "take":
            count, bytes_max = rng.choice((1, 7, 100)), rng.choice((1, 2_000, 1 << 20))
            return (lambda queue, then: take_lease(queue, name, count, bytes_max, then)), -1
        if what == "ack":
            through = 0 if view is None else rng.randint(view.acked, reader.read_through(view))
            reader.acking = max(reader.acking, through)
            return (lambda queue, then: ack_lease(queue, name, through, then)), through
        if what == "release":
            reader.releasing += 1
            return (lambda queue, then: release_lease(queue, name, then)), -1
        return (lambda queue, then: ack_lease(queue, name, 1 << 40, then)), -1

    # -- Checks --------------------------------------------------------------------------------------------------

    def _on_answer(self, reader: Reader, what: str, view: LeaseView | Refusal, machine: Machine, node: Node) -> None:
        self.note(machine.name, f"lease {reader.name}, {what}: {view}")
        self.counts["answers"] += 1
        if what == "release":
            reader.releasing -= 1
        if not isinstance(view, LeaseView):
            self.counts["refused"] += 1
            if what == "wrong" or view.code in (404, 406):
                return
            self.fail(f"lease {reader.name}, {what}: refused with {view}")
            return
        if what == "wrong":
            self.fail(f"lease {reader.name}: acknowledged what was never given")
        self._check_view(reader, view)
        reader.view = view
        if what == "release":
            reader.freed = view.next
        # A crash right after an answer: what was answered must not be forgotten.
        elif not self.calm and self.lease_rng.random() < 0.03:
            self.ledger.on_disturbed(self.scheduler.now + 20.0)
            self.scheduler.after(0.0, self.fault_power, self.machines.index(machine), 0.5)
            return
        for place, first, last in view.runs:
            self._look_up(reader, place, first, last, node)
            if self.plan.mirrored:
                other = self.lease_rng.choice(self.machines)
                there = other.server.node if other.serving and other.server is not None else None
                if there is not None and other.loop is not None:
                    other.loop.call_soon(self._look_up, reader, place, first, last, there)

    def _check_view(self, reader: Reader, view: LeaseView) -> None:
        before = reader.view
        if before is not None and (view.acked < before.acked or view.next < before.next):
            self.fail(f"lease {reader.name} went back from {before} to {view}")
        there = {place + at for place, first, last in view.runs for at in range(last - first + 1)}
        gone = sorted(place for place in reader.places if view.acked <= place < view.next and place not in there)
        lost = [place for place in gone if self.ledger.messages[reader.places[place]].persistent or self.plan.mirrored]
        if lost and not self._is_lost():
            self.fail(f"lease {reader.name} has lost places {lost[:5]}")

    def _is_lost(self) -> bool:
        return self.ledger.queue(LEASED).lost or self.ledger.has_lost_disks

    def _look_up(self, reader: Reader, place: int, first: int, last: int, node: Node) -> None:
        """Reads by number, at some node that has a copy of the queue."""
        spec = node.metadata.queues.get(("/", LEASED))
        if spec is None:
            return

        def then(runs: list[Run] | None, following: int) -> None:
            for run in runs or ():
                for at, content in enumerate(run.contents):
                    self._on_content(reader, place + run.first + at - first, content)

        node.storage.read_range(spec.id, first, last, BYTES_MAX, then)

    def _on_content(self, reader: Reader, place: int, content: bytes) -> None:
        self.counts["contents"] += 1
        header_bytes = int.from_bytes(content[3:7], "big")
        number = int(content[7 + header_bytes + 1 + 7 :].split(b" ", 1)[0])  # The beginning of the first body frame.
        known = reader.places.setdefault(place, number)
        if known != number:
            self.fail(f"place {place} of lease {reader.name} was message {known} and is {number}")
        reader.told_at.setdefault(number, self.scheduler.now)

    def _check_delivered(self, delivery: Delivery) -> None:
        if delivery.queue != LEASED or self._is_lost():
            return
        for reader in self.readers.values():
            since = reader.told_at.get(delivery.number)
            if reader.name == SHORT or since is None or self.scheduler.now - since < LONG_AGO_S:
                continue
            place = next(place for place, number in reader.places.items() if number == delivery.number)
            if reader.is_out(place):
                self.fail(f"message {delivery.number} was delivered, and is at place {place} of lease {reader.name}")

    # -- The end -------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.calm = True
        super()._heal()
        self.over = True
        if self._is_lost():
            return
        self._strike_once_more()
        self.run_for(SHORT_MS / 1000 + 2.0)
        self._check_short()
        waiting = self._browse_leased()
        for reader in self.readers.values():
            both = [place for place, number in reader.places.items() if number in waiting and reader.is_out(place)]
            if both and reader.name != SHORT:
                self.fail(f"places {both[:5]} of lease {reader.name} wait in the queue, too")
        for reader in self.readers.values():
            self.must(END_S, partial(self._released, reader), lambda: "a lease could not be released")
        self._check_end(self._browse_leased())

    def _strike_once_more(self) -> None:
        """Fails the power when every lease holds messages."""
        publish = {"queue": LEASED, "count": 20, "padding": 10, "persistent": True, "wait": True}
        self.clients[0].give(Step(0, 0.0, "publish", publish))
        self.must(START_S, self.all_idle, lambda: f"nothing could be published: {self.standing()}")
        for what in ("open", "take"):
            for reader in self.readers.values():
                self._ask(reader, what)
                self.run_for(1.0)
        self.ledger.on_disturbed(self.scheduler.now + END_S)
        self.fault_power_all(0.5)
        self.must(START_S, self.all_serve, lambda: f"after the power has failed: {self.standing()}")
        self.must(START_S, self._is_served, lambda: f"nobody serves {LEASED}")

    def _is_served(self) -> bool:
        found = self.operators.leading(LEASED)
        return found is not None and not found[2].frozen

    def _browse_leased(self) -> set[int]:
        for client in self.clients:
            client.give(Step(0, 0.0, "drop", {}))
        self.run_for(3.0)
        found: list[int] = []
        self.clients[0].give(Step(0, 0.0, "browse", {"queue": LEASED, "into": found}))
        self.must(START_S, self.all_idle, lambda: f"{LEASED} could not be looked at: {self.standing()}")
        return set(found)

    def _released(self, reader: Reader) -> bool:
        """Releases, and repeats that until there is an answer."""
        found = self.operators.leading(LEASED)
        if found is None or found[2].frozen:
            return False
        leases = found[2].extension(Leases)
        if leases is None or reader.name not in leases.all:
            return not found[2].has_changes()
        if not self.lease_rng.randrange(50):
            self._ask(reader, "release")
        return False

    def _check_short(self) -> None:
        found = self.operators.leading(LEASED)
        if found is None or any(machine.skew_ms for machine in self.machines):
            return
        if any(view.name == SHORT for view in lease_views(found[2])):
            self.fail("a lease that nobody uses is there still")

    def _check_end(self, found: set[int]) -> None:
        acked = {
            number for reader in self.readers.values() for place, number in reader.places.items()
            if place < reader.acking
        }  # fmt: skip
        surely = {number for reader in self.readers.values() for number in reader.settled}
        if self._is_lost():
            return
        for message in self.ledger.messages.values():
            if message.queue != LEASED or message.state != "confirmed":
                continue
            kept = message.persistent or self.plan.mirrored
            if kept and message.number not in found and message.number not in acked:
                self.fail(f"{message} was confirmed, acknowledged by nobody, and is lost")
            if message.number in found and message.number in surely:
                self.fail(f"{message} was acknowledged in a lease, and is back")
        if self.failure is not None:
            raise Violation(self.failure)

    def summary(self) -> str:
        answers = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        return f"{super().summary()}; leases: {answers}"


def _pick(rng: random.Random, weighted: tuple[tuple[str, int], ...]) -> str:
    return rng.choices([name for name, _ in weighted], [weight for _, weight in weighted])[0]


def run(plan: Plan, traced: bool = False) -> LeasedWorld:
    """Raises Violation, with the command that replays it."""
    return own_command.play("leased", LeasedWorld, plan, traced)


if __name__ == "__main__":
    sys.exit(own_command.main("leased", LeasedWorld))
