"""Gives mirrored queues the mirrors that their policies ask for.

The master of a queue does it: only a working master may change which members count as in sync. A new queue begins with
its members. For others the master takes one step at a time, each a committed view, so that at no moment a copy is given
up that was needed:

1. Nodes that are wanted and missing are added. They are filled while the queue is used.
2. If the master itself is not wanted, it hands over to the oldest wanted member that is in sync, and not in
   maintenance.
3. When every wanted member that runs is in sync, or at least one besides the master, those that are not wanted go; but
   not while theirs is the only copy besides the master's.

A queue that is *on its way* to another node (a parameter says so: `placement.moving_to`) gets an additional copy there,
is handed over when that is in sync, and then has the copies again that its policy wants; without a policy, only the new
master's. No process has to follow the move to its end: the queue's master takes the next step, also if it became master
because another died, and the parameter is cleared when the queue has arrived, or when its destination is lost. So a
queue without mirrors moves with its order and its numbers, and nothing that is acknowledged meanwhile is delivered
again: see `broker.remote.handover`.

When the master is alone in the ring of a queue that no policy wants mirrored, because the queue has arrived at its
destination or because its policy is gone, the view ends: it is an ordinary queue again, which needs no majority to be
used, and whose transient messages need no disk. That is one more committed step. If a policy wants mirrors a moment
later, the queue gets a new view, with a higher version. An exclusive queue is never mirrored: it is deleted with its
connection anyway. Where copying is forbidden, no member is added; none is removed for that either.

The rules of a queue, from its policy, its arguments and the configuration, are in `leveret.metadata.rules.ha_policy`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.mirrors.manager import disk_id
from leveret.broker.queue.local_queue import LocalQueue
from leveret.metadata.model import commands as c
from leveret.metadata.model import events as e
from leveret.metadata.model.hidden_queues import is_journal
from leveret.metadata.model.maintenance_mark import MAINTENANCE, state_of
from leveret.metadata.model.view import View
from leveret.metadata.rules.ha_policy import ALWAYS, FORBID, Defaults, Rules, rules
from leveret.metadata.rules.placement import (
    LABELS,
    LINKS,
    MOVES,
    extra_members,
    locate,
    moving_to,
    wanted_ring,
    with_extra,
)
from leveret.metadata.rules.policies import SPENT_MAX

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.broker.broker import Broker
    from leveret.broker.mirrors.manager import Mirror
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.store import Applied
    from leveret.protocol.tables import Table

# Limits for one turn when all queues are checked: steps for queues of this node, and checks of any queue.
STEPS_AT_ONCE: Final = 16
LOOKS_AT_ONCE: Final = 1_024


class Place(NamedTuple):
    """A node of the cluster, as far as placement goes."""

    name: str
    folder: str  # The id of its data folder.
    run: str  # The id of its present run.
    running: bool
    labels: Mapping[str, str] = MappingProxyType({})
    away: bool = False  # Out of service: see `leveret.metadata.model.maintenance_mark`.


class MemberChanges:
    """Changes which nodes have copies of the queues that this node leads, and chooses nodes for new queues."""

    def __init__(self, broker: Broker, places: Callable[[], list[Place]], defaults: Defaults | None = None) -> None:
        self.broker = broker
        self.places = places
        self.defaults = defaults or Defaults()
        self.book = broker.policies.book
        self.due: dict[int, None] = {}  # Queues to check with the next tick.
        self.looking: list[int] = []  # Queues being checked, which were due with the last tick; the next one last.
        self.unfinished: dict[int, None] = {}  # Queues to check again: at their next view, or after a second.
        self.asked: dict[int, None] = {}  # Queues of which a first view, its end, or the end of a move is proposed.
        self.drawn = 0
        self._last: tuple[Mapping[str, Json], Defaults, bool, Rules] | None = None  # What the last definition means.
        self._seen: frozenset[tuple[str, bool]] = frozenset()  # The cluster's nodes, and whether each runs.

    def rules(self, vhost: str, name: str, arguments: Table) -> Rules:
        forbidden = self.broker.metadata.global_parameters.get(FORBID) is True
        definition = self.book.of_queue(vhost, name, arguments).definition
        if arguments or "ha-mode" not in definition:
            return rules(definition, name, arguments, self.defaults, forbidden)
        last = self._last
        if last is None or last[0] is not definition or last[1] is not self.defaults or last[2] != forbidden:
            found = rules(definition, name, arguments, self.defaults, forbidden)
            last = self._last = (definition, self.defaults, forbidden, found)
        return last[3]  # Of very many queues that are looked at in a row, most have the same policy.

    def rules_of(self, spec: QueueSpec) -> Rules:
        found = self.rules(spec.vhost, spec.name, spec.arguments)
        metadata = self.broker.metadata
        if moving_to(metadata, spec) is not None:
            # Otherwise the move might never end; and an operator has asked for this copy.
            return replace(found, automatic=True, forbidden=False, strategy="incremental", window=ALWAYS)
        if "ha-mode" not in found.placement and extra_members(metadata, spec.vhost, spec.name):
            return replace(found, automatic=True)  # An operator who adds a mirror wants it synchronised.
        return found

    def is_plain(self, spec: QueueSpec) -> bool:
        """Returns whether a queue has no mirrors and no policy wants any. It may still be a ring of one member."""
        is_alone = spec.view is None or spec.view.ring == (spec.node,)
        return is_alone and "ha-mode" not in self.rules(spec.vhost, spec.name, spec.arguments).placement

    def look_at_all(self) -> None:
        """Check all queues: a policy, or which nodes run, has changed."""
        self.due.update(dict.fromkeys(self.broker.queues_by_id))

    def on_declared(self, spec: QueueSpec) -> None:
        """A queue without mirrors was declared here. The node that chose its members may not have known of a policy
        that was agreed on just before."""
        if not spec.exclusive and not self.is_plain(spec):
            self.due[spec.id] = None

    def on_parameter(self, event: e.ParameterChanged | e.GlobalParameterChanged) -> None:
        """A parameter has changed; only a few of them concern copies."""
        ha_rules = self.broker.mirrors.ha_rules
        if isinstance(event, e.GlobalParameterChanged):
            if event.name == FORBID or event.name.startswith((LABELS, MAINTENANCE)):
                self.look_at_all()
                ha_rules.refresh_all()
        elif event.component in (LINKS, MOVES):
            spec = self.broker.metadata.queues.get((event.vhost, event.name))
            if spec is not None:
                self.due[spec.id] = None
                mirror = self.broker.mirrors.mirrors.get(spec.id)
                if mirror is not None:
                    ha_rules.refresh(mirror)

    # -- New queues ----------------------------------------------------------------------------------------------

    def home(self, vhost: str, name: str, arguments: Table, masters: dict[str, int] | None = None) -> str:
        """Returns the node for a new queue. Who makes many at a time passes how many masters each node has."""
        wanted = self.rules(vhost, name, arguments)
        here = self.broker.node_name
        is_away = state_of(self.broker.metadata, here) is not None
        if wanted.locator == "client-local" and wanted.label is None and not is_away:
            return here
        if masters is None:
            masters = self.broker.loads.masters
        there = [place for place in self.places() if place.running]
        there = [place for place in there if not place.away] or there
        if wanted.label is not None:
            key, value = wanted.label
            there = [place for place in there if place.labels.get(key) == value] or there
        running = [place.name for place in there]
        if wanted.placement.get("ha-mode") == "nodes":
            named = wanted.placement.get("ha-params")
            running = [one for one in running if isinstance(named, list) and one in named] or running
        self.drawn += 1
        draw = zlib.crc32(f"{vhost} {name} {self.drawn}".encode("utf-8", "surrogateescape"))
        locator = wanted.locator
        if locator == "client-local" and here not in running:
            locator = "min-masters"  # The client's node lacks the label, or is out of service.
        return locate(locator, here, running, masters, draw)

    def first_view(self, vhost: str, name: str, durable: bool, arguments: Table, master: str) -> View | None:
        """Returns the first view of a new queue; None: no mirrors. All members begin empty, and so in sync."""
        places = {place.name: place for place in self.places()}
        running = [place.name for place in places.values() if place.running]
        wanted = self.rules(vhost, name, arguments)
        away, loads = _away(places), self.broker.loads.copies
        ring = wanted_ring(wanted.placement, master, (master,), places, running, loads, labels(places), away)
        if ring is None or master not in places or wanted.forbidden:
            return None
        members = (master, *(one for one in ring if one != master))
        if wanted.placement["ha-mode"] == "nodes" and master not in ring and any(one in running for one in ring):
            members = tuple(sorted(ring, key=lambda one: (one not in running, one in away)))
        in_sync = tuple((one, _disk(places[one], durable)) for one in members if places[one].running)
        return View(1, 1, members[0], members, in_sync)

    # -- Queues that are there -----------------------------------------------------------------------------------

    def watch(self) -> None:
        """Called now and then: the nodes that run may have changed, and a proposed view may not have been accepted."""
        self.due.update(self.unfinished)
        self.unfinished.clear()
        seen = frozenset((place.name, place.running) for place in self.places())
        if seen != self._seen:
            self._seen = seen
            self.look_at_all()

    def tick(self) -> None:
        """Take the next step for queues that are due; if these are very many, `go_on` does the rest."""
        if not self.looking:
            self.looking = list(self.due)
            self.looking.reverse()
            self.due.clear()
        if self.looking and not self.broker.mirrors.broadcast:
            self.go_on()

    @property
    def has_work(self) -> bool:
        """Returns whether there is something for `go_on` in this turn. Placement can wait until all copies were told
        which node is lost: to check one means to tell it, and those in use have to be told first. While clients
        publish, only ticks go on with it."""
        mirrors = self.broker.mirrors
        return bool(self.looking) and not mirrors.broadcast and not mirrors.is_serving

    def go_on(self) -> None:
        """Check the next queues, as many as fit into a turn."""
        places = {place.name: place for place in self.places()}
        steps, enough = 0, self.book.spent + SPENT_MAX
        for _ in range(min(LOOKS_AT_ONCE, len(self.looking))):
            number = self.looking.pop()
            queue = self.broker.queues_by_id.get(number)
            if not isinstance(queue, LocalQueue):
                continue
            if not self._step(queue, places):
                self.unfinished[number] = None
            steps += 1
            if steps == STEPS_AT_ONCE or self.book.spent > enough:
                break

    def _step(self, queue: LocalQueue, places: dict[str, Place]) -> bool:
        """Take one step for a queue. True: nothing is left to do that could be done."""
        spec = queue.spec
        running = [place.name for place in places.values() if place.running]
        ring = (spec.node,) if spec.view is None else spec.view.ring
        if spec.exclusive or is_journal(spec.name):
            return True
        says = self.rules_of(spec)
        away, loads = _away(places), self.broker.loads.copies
        wanted = wanted_ring(says.placement, spec.node, ring, places, running, loads, labels(places), away)
        if says.forbidden and wanted is not None:
            wanted = tuple(name for name in wanted if name in ring) or ring
        wanted = with_extra(wanted, extra_members(self.broker.metadata, spec.vhost, spec.name), spec.node, places)
        goal = self._goal(spec, running)
        if goal is not None and goal not in (wanted or (spec.node,)):
            wanted = (*(wanted or (spec.node,)), goal)
        if queue.departure is not None:
            return False  # It is moving; its next node checks it again.
        if queue.mirror is None:
            if wanted is None or wanted == (spec.node,):
                return True
            here = places.get(spec.node)
            if here is not None:  # Else this node is about to leave the cluster, or to learn that it has left.
                self._begin(queue, here)
            return False
        is_done = self._adjust(queue.mirror, wanted or (spec.node,), running, away, goal)
        if is_done and wanted is None:
            view = queue.mirror.member.view
            assert view is not None and view.ring == (spec.node,)
            self._propose(spec, c.EndView(spec.vhost, spec.name, spec.id, view.version))
            return False
        return is_done

    def _goal(self, spec: QueueSpec, running: list[str]) -> str | None:
        """Returns the node to which the queue is on its way. Ends the move if it is there, or cannot get there."""
        goal = moving_to(self.broker.metadata, spec)
        if goal is None or (goal != spec.node and goal in running):
            return goal
        self._propose(spec, c.ClearParameter(MOVES, spec.vhost, spec.name))
        return None

    def _propose(self, spec: QueueSpec, command: c.Command) -> None:
        """Propose a command, one at a time for each queue: the next step follows when this is agreed on. Otherwise a
        queue that is checked again before that would be asked for again, and of very many each second."""
        if spec.id in self.asked:
            return

        def then(applied: Applied) -> None:
            del self.asked[spec.id]

        self.asked[spec.id] = None
        self.broker.propose(command, then)

    def _begin(self, queue: LocalQueue, here: Place) -> None:
        """Give the queue its first view, with the master as the only member, and with a new epoch."""
        spec = queue.spec
        version = spec.last_version + 1
        disk = disk_id(here.folder, here.run, spec.durable, joined=version)
        view = View(version, queue.epoch + 1, here.name, (here.name,), ((here.name, disk),))
        self._propose(spec, c.ChangeView(spec.vhost, spec.name, spec.id, view))

    def _adjust(
        self, mirror: Mirror, wanted: tuple[str, ...], running: list[str], away: list[str], goal: str | None
    ) -> bool:
        self.broker.mirrors.broadcast.catch_up(mirror)
        member = mirror.member
        view = member.view
        if view is None or not member.serving:
            return False
        missing = [name for name in wanted if name not in view.ring]
        surplus = [name for name in view.ring if name not in wanted]
        if missing:
            member.change_ring((*view.ring, *missing))
            self.broker.mirrors.touch(mirror)
            return False
        in_sync = [name for name, _ in view.in_sync]
        if goal is not None:
            if goal in in_sync:
                self.broker.mirrors.hand_over(mirror, goal)
            return False
        if not surplus:
            return True
        lacking = [name for name in wanted if name in running and name not in in_sync]
        candidates = [name for name in in_sync if name in wanted and name in running]
        if member.me in surplus:
            heirs = [name for name in candidates if name not in away]  # Others would give the queue away again.
            if heirs:
                self.broker.mirrors.hand_over(mirror, heirs[0])
            return False
        # While a wanted member is down, a copy that is not wanted may be the only one besides the master's.
        if len(candidates) >= min(2, len(wanted)) and (not lacking or len(candidates) > 1):
            member.change_ring(tuple(name for name in view.ring if name in wanted))
            self.broker.mirrors.touch(mirror)
        return False


def labels(places: Mapping[str, Place]) -> dict[str, Mapping[str, str]]:
    return {name: place.labels for name, place in places.items()}


def _away(places: Mapping[str, Place]) -> list[str]:
    return [name for name, place in places.items() if place.away]


def _disk(place: Place, durable: bool) -> str:
    return disk_id(place.folder, place.run, durable)
