"""Nodes that spool publishes for unreachable queues, and faults while they send them on.

In a run with `--spooled`, nodes serve clients in a partition, and links break more often than in other runs. A spool is
empty a few milliseconds after its link is back, so hardly any fault at a random time would hit one at work. An *ambush*
waits until some spool has sent messages that are not confirmed yet. Then the link breaks, or the sender or the receiver
dies; or all clients publish to that queue, and must not overtake.

Likewise a disk gets *tight* when some spool has messages for it: there is room for a part of them, or for all. Where
the strategy requires it, nothing is sent to a node that has had room for less than waits for it, for as long as it may
take until the others know (`checkers.room_checker`).

The ledger demands in every run that nothing is lost or duplicated and that everything is in order. Here all spools must
also be empty when everything is healed.

Spools are tapped: they tell what is added to them, sent on and answered. Who looks at a spool when a pass is over does
not see all of that: a node that is short of memory has the messages on disk only, and those that clients of the node
have settled meanwhile leave no trace. So are outboxes: what one of them has sent, another node may have. And so is the
way by which all of that comes into a queue: it may have waited at the queue's node before.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.remote.outbox import Outbox
from leveret.broker.remote.store_and_forward import PendingForward, Spool
from simulation.amqp.contents import number_of
from simulation.checkers.room_checker import RoomChecker
from simulation.clients.client import Step
from simulation.core.machine import DISK_RESERVE

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.batch import Span
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.publish_numbers import Origin
    from leveret.broker.queue.features import Features
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.broker.remote.outbox import Outboxes, Parts, Sent
    from leveret.broker.remote.spool_registry import SpoolRegistry
    from simulation.checkers.ledger import Ledger
    from simulation.core.machine import Machine
    from simulation.world import World

SPOOLED_FAULTS: Final = (
    ("ambush", 14),
    ("tighten", 5),
    ("part", 8),
    ("isolate", 8),
    ("cut_one_way", 4),
    ("reset_links", 6),
    ("slow_link", 2),
    ("kill", 4),
    ("power", 5),
    ("strike", 5),
    ("terminate", 2),
    ("pause", 3),
    ("slow_disk", 2),
    ("fill", 1),
    ("restart_app", 1),
    ("move", 3),
    ("power_all", 1),
    ("reset", 1),
    ("skew", 1),
)
WAYS: Final = (
    "publish", "publish", "publish", "reset", "reset", "cut", "kill sender", "power sender", "kill home", "power home",
    "pause home",
)  # fmt: skip
SENDERS: Final = (b"spool ", b"node ", b"epoch ")  # How queues know spools, outboxes and their former masters.


def draw_keeping(rng: random.Random) -> dict[str, Any]:
    return {"strategy": rng.choice(("ignore", "ignore", "autoheal"))}


def draw_ambush(rng: random.Random) -> dict[str, Any]:
    return {
        "how": rng.choice(WAYS),
        "delay": round(rng.choice((0.0005, 0.001, 0.003, 0.01)) * (0.2 + rng.random()), 6),
        "seconds": round(rng.choice((0.01, 0.5, 2.0, 8.0)) * (0.5 + rng.random()), 3),
    }


def draw_tightening(rng: random.Random) -> dict[str, Any]:
    return {
        "share": rng.choice((0.0, 0.3, 0.9, 3.0)),
        "seconds": round(rng.choice((5.0, 20.0, 40.0)) * (0.5 + rng.random()), 3),
    }


class Tap:
    """Tells the ledger what one spool keeps and sends on, and the check of room to which nodes."""

    def __init__(self, world: World, launched: Counter[str]) -> None:
        self.world = world
        self.launched = launched
        self.in_flight: dict[int, list[int]] = {}  # Numbers of messages, by the first number in the spool of a batch.

    def on_kept(self, contents: list[bytes]) -> None:
        for content in contents:
            self.world.ledger.on_spooled(number_of(content))

    def on_sent(self, first: int, contents: list[bytes]) -> None:
        self.in_flight[first] = [number_of(content) for content in contents]
        self.see()

    def on_answered(self, first: int) -> None:
        del self.in_flight[first]

    def see(self) -> None:
        """Tell the ledger that messages are still in flight."""
        for numbers in self.in_flight.values():
            for number in numbers:
                self.world.ledger.on_sent_on(number, self.world.scheduler.now)


def tapped_spool(taps: dict[int, Tap]) -> type[Spool]:
    """Returns a class of spools that tell what becomes of messages, each to the tap of its identity. A spool becomes
    one, because its own attributes are fixed. Each world has a class of its own, and so lets go of its spools."""

    class TappedSpool(Spool):
        __slots__ = ()

        def enqueue(
            self, contents: list[bytes], keys: list[bytes], kind: int, size: int, pending: Pending | None
        ) -> bool:
            first = self.next_seq
            slow = super().enqueue(contents, keys, kind, size, pending)
            taps[id(self)].on_kept(contents[: self.next_seq - first])
            return slow

        def _send(self, head: Span, target: AnyQueue, overdue: int) -> None:
            batch, first = head.batch, head.first
            hi = self._cut(head, overdue, self._note_of(first))
            taps[id(self)].on_sent(first, batch.contents[head.lo : hi])
            if self.spools.heals:
                taps[id(self)].launched[target.spec.node] += hi - head.lo
            super()._send(head, target, overdue)

        def on_complete(self, pending: Pending) -> None:
            assert isinstance(pending, PendingForward)
            taps[id(self)].on_answered(pending.first)
            super().on_complete(pending)

    return TappedSpool


def tapped_outbox(ledger: Ledger) -> type[Outbox]:
    """Returns a class of outboxes that tell the ledger what they send to other nodes, of all that may be spooled."""

    class TappedOutbox(Outbox):
        __slots__ = ()

        def send(
            self, contents: list[bytes], keys: list[bytes], kind: int, size: int, parts: Parts
        ) -> tuple[Sent, int, int]:
            queue = self.queue
            if queue is not None and queue.spec.durable and not queue.spec.exclusive:
                for content in contents:
                    ledger.on_shared(queue.spec.name, number_of(content))
            return super().send(contents, keys, kind, size, parts)

    return TappedOutbox


class Spooling:
    """Causes faults while spools are sent on, and tells the ledger what is in them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.spooled: dict[tuple[str, int, int], int] = {}  # Messages sent on, by node, life and queue.
        self.tapped: dict[str, SpoolRegistry] = {}  # By node.
        self.taps: dict[int, Tap] = {}
        self.launched: dict[str, Counter[str]] = {}  # By sender and receiver: messages that needed room.
        self.tapped_spool = tapped_spool(self.taps)
        self.tapped_outbox = tapped_outbox(world.ledger)
        self.ambushes: list[dict[str, Any]] = []
        self.tightenings: list[tuple[float, float]] = []
        self.tight: dict[str, Machine] = {}
        self.rooms = RoomChecker(self.world.fail, lambda: self.world.scheduler.now)

    def fault_ambush(self, how: str, delay: float, seconds: float) -> None:
        self.ambushes.append({"how": how, "delay": delay, "seconds": seconds})

    def observe_spools(self, machine: Machine, spools: SpoolRegistry) -> None:
        if self.tapped.get(machine.name) is not spools:
            self.tapped[machine.name] = spools
            self.world.ledger.on_spools_read(machine.name)
            self.launched[machine.name] = Counter()
            self._tap_all(spools, self.launched[machine.name])
            self._tap_outboxes(spools.broker.outboxes)
            self._tap_entrance(spools.broker.features)
        for spool in spools.by_target.values():
            self.taps[id(spool)].see()
            self.spooled[machine.name, machine.lives, spool.target] = spool.sent
            if self.ambushes and spool.batches_under_way:
                self._ambush(machine, spools, spool, **self.ambushes.pop(0))
            if self.tightenings and spool.count:
                self._tighten(machine, spools, spool)
        for receiver in self.tight.values():
            if spools.heals and receiver is not machine:
                self._check_room(machine, spools, receiver)

    def _tap_all(self, spools: SpoolRegistry, launched: Counter[str]) -> None:
        """Taps the spools that a node has and those that it will make."""
        make = spools._make

        def tapped_make(queue: AnyQueue) -> Spool:
            spool = make(queue)
            self._tap(spool, launched)
            return spool

        spools._make = tapped_make  # type: ignore[method-assign]
        for spool in spools.by_target.values():
            self._tap(spool, launched)

    def _tap(self, spool: Spool, launched: Counter[str]) -> None:
        """Has the ledger told what is spooled, before any client is confirmed."""
        self.taps[id(spool)] = Tap(self.world, launched)
        spool.__class__ = self.tapped_spool

    def _tap_outboxes(self, outboxes: Outboxes) -> None:
        """Taps the outboxes that a node will make. It has none before clients can publish."""
        make = outboxes.of

        def tapped_of(target: int) -> Outbox:
            outbox = make(target)
            outbox.__class__ = self.tapped_outbox
            return outbox

        outboxes.of = tapped_of  # type: ignore[method-assign]

    def _tap_entrance(self, features: Features) -> None:
        """Has the ledger told what a node's queues take from spools and outboxes, of all that may be spooled. What they
        have already, and pass over, is not told."""
        enqueue_once, ledger = features.enqueue_once, self.world.ledger

        def tapped_once(
            queue: LocalQueue, origin: Origin, contents: list[bytes], keys: list[bytes], kind: int, size: int,
            pending: Pending,
        ) -> bool:  # fmt: skip
            following = queue.next_seq
            slow = enqueue_once(queue, origin, contents, keys, kind, size, pending)
            taken, spec = queue.next_seq - following, queue.spec
            if taken and queue.open is not None and spec.durable and not spec.exclusive:
                if origin.producer.startswith(SENDERS):
                    for content in queue.open.contents[-taken:]:
                        ledger.on_entered(spec.name, number_of(content))
            return slow

        features.enqueue_once = tapped_once  # type: ignore[method-assign]

    def fault_tighten(self, share: float, seconds: float) -> None:
        self.tightenings.append((share, seconds))

    def _home(self, spools: SpoolRegistry, spool: Spool) -> Machine | None:
        queue = spools.broker.queues_by_id.get(spool.target)
        return next(
            (one for one in self.world.machines if queue is not None and one.node_name == queue.spec.node), None
        )

    def _tighten(self, machine: Machine, spools: SpoolRegistry, spool: Spool) -> None:
        home = self._home(spools, spool)
        if home is None or home is machine or home.name in self.tight:
            return
        share, seconds = self.tightenings.pop(0)
        room = int(share * spool.content_bytes)
        self.world.note("world", f"the disk of {home.name} has room for {room} bytes, for {seconds} s")
        disk = home.disk
        disk.capacity_bytes += DISK_RESERVE + room - disk.free_bytes()
        self.tight[home.name] = home
        self.world.scheduler.after(seconds, self._loosen, home)

    def _loosen(self, machine: Machine) -> None:
        machine.disk.capacity_bytes = 1 << 40
        del self.tight[machine.name]

    def _check_room(self, machine: Machine, spools: SpoolRegistry, receiver: Machine) -> None:
        bound = [one for one in spools.by_target.values() if self._home(spools, one) is receiver]
        due = sum(one.content_bytes - one.under_way_bytes for one in bound)
        launched = self.launched[machine.name][receiver.node_name]  # Spools also know what they sent to other homes.
        room = receiver.disk.free_bytes() - DISK_RESERVE
        knows = receiver.loop is None or not receiver.loop.is_paused
        self.rooms.observe(f"{machine.name}.{machine.lives}", receiver.name, due, launched, room, knows)

    def _ambush(
        self, machine: Machine, spools: SpoolRegistry, spool: Spool, how: str, delay: float, seconds: float
    ) -> None:
        home = self._home(spools, spool)
        if home is not None and home is not machine:
            self.world.note("world", f"an ambush for {spool} of {machine.name} and {home.name}: {how}")
            self.world.scheduler.after(delay, self._spring, spool.spec.name, machine, home, how, seconds)

    def _spring(self, queue: str, machine: Machine, home: Machine, how: str, seconds: float) -> None:
        what, _, whom = how.partition(" ")
        struck = home if whom == "home" else machine
        if what == "publish":
            for client in self.world.clients:
                publish = {"queue": queue, "count": 5, "padding": 10, "persistent": True, "wait": False}
                client.give(Step(0, 0.0, "publish", publish))
        elif what == "reset":
            for endpoint in list(self.world.network.endpoints):
                if (endpoint.here[0], endpoint.there[0]) == (machine.name, home.name):
                    self.world.network.reset(endpoint)
        elif what == "cut":
            self.world.cut([(machine.name, home.name), (home.name, machine.name)], seconds)
        elif what == "pause":
            if struck.loop is not None:
                struck.loop.pause(seconds)
        else:
            struck.kill(power=what == "power")
            self.world.start_later(struck, seconds)

    def spools_left(self) -> list[str]:
        nodes = [
            one.server.node for one in self.world.machines if one.server is not None and one.server.node is not None
        ]
        told = [one for node in nodes for one in node.broker.spools.figures() if one.messages]
        return [str(one) for one in told if not self.world.ledger.queue(one.queue).lost]
