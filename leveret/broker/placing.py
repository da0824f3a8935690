"""Mirrored queues get the members that policies want for them.

Whoever leads a queue sees to it: only a working master may change who counts as in sync. A new queue is born with its
members. For others the master takes one step at a time, each a committed view, so that at no moment a copy is given up
that was needed:

1. Nodes that are wanted and missing are added. They fill while the queue is used.
2. If the master itself is not wanted, it hands over to the oldest wanted member that is in sync.
3. When every wanted member that runs is in sync, or at least one besides the master, those that are not wanted go; but
   not while theirs is the only copy besides the master's.

A queue without a policy that was mirrored before keeps its master alone. An exclusive queue is never mirrored: it goes
with its connection anyway. Where copying is forbidden, nobody is added; that takes nobody away either.

What holds for a queue, by its policy, its arguments and the configuration, is in `leveret.cluster.mirroring`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.mirrored import disk_id
from leveret.broker.queue import Queue
from leveret.cluster import commands as c
from leveret.cluster.keepers import is_journal
from leveret.cluster.mirroring import FORBID, Defaults, Rules, rules
from leveret.cluster.placement import extra_members, locate, wanted_ring, with_extra
from leveret.cluster.policies import PolicyBook
from leveret.mirror.view import View

if TYPE_CHECKING:
    from leveret.amqp.tables import Table
    from leveret.broker.broker import Broker
    from leveret.broker.mirrored import Mirror
    from leveret.cluster.specs import QueueSpec

LOOKED_AT_MAX: Final = 10_000  # Queues in one tick, when a policy has changed.


class Place(NamedTuple):
    """A node of the cluster, as far as placement goes."""

    name: str
    folder: str  # Names its data folder,
    run: str  # and this its present run.
    running: bool


class Placing:
    """What is to be done about the copies of this node's queues."""

    def __init__(self, broker: Broker, places: Callable[[], list[Place]], defaults: Defaults | None = None) -> None:
        self.broker = broker
        self.places = places
        self.defaults = defaults or Defaults()
        self.book = PolicyBook(broker.metadata)
        self.due: dict[int, None] = {}  # Queues to look at.
        self.unfinished: dict[int, None] = {}  # To look at again: at their next view, or when a second is over.
        self.loads: dict[str, int] = {}  # Copies at each node, as of the last tick.
        self.drawn = 0
        self._seen: frozenset[tuple[str, bool]] = frozenset()  # Which nodes there are, and which of them run.

    def rules(self, vhost: str, name: str, arguments: Table) -> Rules:
        forbidden = self.broker.metadata.global_parameters.get(FORBID) is True
        definition = self.book.of_queue(vhost, name, arguments).definition
        return rules(definition, name, arguments, self.defaults, forbidden)

    def rules_of(self, spec: QueueSpec) -> Rules:
        found = self.rules(spec.vhost, spec.name, spec.arguments)
        if "ha-mode" not in found.placement and extra_members(self.broker.metadata, spec.vhost, spec.name):
            return replace(found, automatic=True)  # Whoever adds a mirror by hand wants it filled.
        return found

    def look_at_all(self) -> None:
        """A policy, or who is there, has changed."""
        self.due.update(dict.fromkeys(self.broker.queues_by_id))

    # -- New queues ----------------------------------------------------------------------------------------------

    def home(self, vhost: str, name: str, arguments: Table, masters: dict[str, int] | None = None) -> str:
        """At which node a new queue should be. Who makes many at a time gives along how many queues each node has."""
        wanted = self.rules(vhost, name, arguments)
        if wanted.locator == "client-local":
            return self.broker.node_name
        if masters is None:
            masters = self.count_masters()
        running = [place.name for place in self.places() if place.running]
        if wanted.placement.get("ha-mode") == "nodes":
            named = wanted.placement.get("ha-params")
            running = [one for one in running if isinstance(named, list) and one in named] or running
        self.drawn += 1
        draw = zlib.crc32(f"{vhost} {name} {self.drawn}".encode("utf-8", "surrogateescape"))
        return locate(wanted.locator, self.broker.node_name, running, masters, draw)

    def count_masters(self) -> dict[str, int]:
        masters: dict[str, int] = {}
        for spec in self.broker.metadata.queues.values():
            masters[spec.node] = masters.get(spec.node, 0) + 1
        return masters

    def first_view(self, vhost: str, name: str, durable: bool, arguments: Table, master: str) -> View | None:
        """With whom a new queue begins; None: without mirrors. All members begin with nothing, and so in sync."""
        places = {place.name: place for place in self.places()}
        running = [place.name for place in places.values() if place.running]
        wanted = self.rules(vhost, name, arguments)
        ring = wanted_ring(wanted.placement, master, (master,), places, running, self.loads)
        if ring is None or master not in places or wanted.forbidden:
            return None
        members = (master, *(one for one in ring if one != master))
        if wanted.placement["ha-mode"] == "nodes" and master not in ring and any(one in running for one in ring):
            members = tuple(one for one in ring if one in running) + tuple(one for one in ring if one not in running)
        in_sync = tuple((one, _disk(places[one], durable)) for one in members if places[one].running)
        return View(1, 1, members[0], members, in_sync)

    # -- Queues that are there -----------------------------------------------------------------------------------

    def watch(self) -> None:
        """Now and then: which nodes there are may have changed, and what was proposed may have come to nothing."""
        self.due.update(self.unfinished)
        self.unfinished.clear()
        seen = frozenset((place.name, place.running) for place in self.places())
        if seen != self._seen:
            self._seen = seen
            self.look_at_all()

    def tick(self) -> None:
        """Take the next step wherever one is due."""
        if not self.due:
            return
        places = {place.name: place for place in self.places()}
        self._count()
        looked_at = list(self.due)[:LOOKED_AT_MAX]
        for number in looked_at:
            del self.due[number]
            queue = self.broker.queues_by_id.get(number)
            if isinstance(queue, Queue) and not self._step(queue, places):
                self.unfinished[number] = None

    def _count(self) -> None:
        self.loads = {}
        for spec in self.broker.metadata.queues.values():
            for name in (spec.node,) if spec.view is None else spec.view.ring:
                self.loads[name] = self.loads.get(name, 0) + 1

    def _step(self, queue: Queue, places: dict[str, Place]) -> bool:
        """True: the queue is as it should be, as far as can be."""
        spec = queue.spec
        running = [place.name for place in places.values() if place.running]
        ring = (spec.node,) if spec.view is None else spec.view.ring
        if spec.exclusive or is_journal(spec.name):
            return True
        says = self.rules_of(spec)
        wanted = wanted_ring(says.placement, spec.node, ring, places, running, self.loads)
        if says.forbidden and wanted is not None:
            wanted = tuple(name for name in wanted if name in ring) or ring
        wanted = with_extra(wanted, extra_members(self.broker.metadata, spec.vhost, spec.name), spec.node, places)
        if queue.departure is not None:
            return False  # It is moving; where it goes, it is looked at again.
        if queue.mirror is None:
            if wanted is None or wanted == (spec.node,):
                return True
            here = places.get(spec.node)
            if here is not None:  # Else this node is about to leave the cluster, or to learn that it has left.
                self._begin(queue, here)
            return False
        return self._adjust(queue.mirror, wanted or (spec.node,), running)

    def _begin(self, queue: Queue, here: Place) -> None:
        """The queue is mirrored from now on, at first by itself alone, and in another epoch than before."""
        spec = queue.spec
        view = View(1, queue.epoch + 1, here.name, (here.name,), ((here.name, _disk(here, spec.durable)),))
        self.broker.propose(c.ChangeView(spec.vhost, spec.name, spec.id, view), lambda applied: None)

    def _adjust(self, mirror: Mirror, wanted: tuple[str, ...], running: list[str]) -> bool:
        member = mirror.member
        view = member.view
        if view is None or not member.serving:
            return False
        missing = [name for name in wanted if name not in view.ring]
        surplus = [name for name in view.ring if name not in wanted]
        if missing:
            member.change_ring((*view.ring, *missing))
            self.broker.mirrors.touched[mirror] = None
            return False
        if not surplus:
            return True
        in_sync = [name for name, _ in view.in_sync]
        lacking = [name for name in wanted if name in running and name not in in_sync]
        heirs = [name for name in in_sync if name in wanted and name in running]
        if member.me in surplus:
            if heirs:
                self.broker.mirrors.hand_over(mirror, heirs[0])
            return False
        # While a wanted member is down, a copy that is not wanted may be the only one besides the master's.
        if len(heirs) >= min(2, len(wanted)) and (not lacking or len(heirs) > 1):
            member.change_ring(tuple(name for name in view.ring if name in wanted))
            self.broker.mirrors.touched[mirror] = None
        return False


def _disk(place: Place, durable: bool) -> str:
    return disk_id(place.folder, place.run, durable)
