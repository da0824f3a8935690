"""The federation links of this node; at the leader, which links there should be, and who runs which.

A worker runs here exactly while the metadata assign its link to this node under its epoch, and this node may act (see
`node.shovels.standing`): it has caught up, sees a majority, and is not paused by a partition. `tick` compares what
should run with what does, when something has changed and now and then anyway, so that no event can be missed.

The link of a queue is run by the node where the queue is, since it depends on the queue's consumers. The others go to
the node that runs the fewest.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from leveret.metadata.federation.links import Kind, Link, Upstreams, is_link_name, link_parts, links_of
from leveret.metadata.federation.plan import ROWS_MAX, Plan
from leveret.metadata.model import events as e
from leveret.metadata.rules.policies import Policies
from leveret.metadata.shovel.commands import AssignRow, AssignWork, SetLinks
from leveret.metadata.shovel.events import AssignmentChanged
from leveret.metadata.shovel.records import LINK, LINKS_MAX, Assignment, WorkKey
from leveret.node.federation.exchange_worker import ExchangeWorker
from leveret.node.federation.queue_worker import QueueWorker

if TYPE_CHECKING:
    import asyncio

    from leveret.metadata.store import Applied
    from leveret.node.federation.worker import FederationWorker
    from leveret.node.node import Node

logger = logging.getLogger("leveret.federation")

STARTED_AT_ONCE: Final = 20  # Workers that are started in one tick: each opens connections.
LOOKED_AT_ONCE: Final = 200  # Queues whose need is looked at in one tick.
COMPARED_TICKS: Final = 25  # How often everything is compared although nothing has changed.
SECOND_TICKS: Final = 50


class Federation:
    """Starts and stops the workers of this node's links."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.workers: dict[WorkKey, FederationWorker] = {}
        self.by_exchange: dict[tuple[str, str], list[ExchangeWorker]] = {}
        self.of_queues: list[QueueWorker] = []
        self.looked = 0  # Of these, which one is next.
        self.endings: set[asyncio.Task[None]] = set()
        self.plan = Plan(node.metadata, lambda: node.broker.cluster_name)
        self.policies = Policies(node.metadata)
        self.upstreams: Upstreams | None = None  # For workers that start.
        self.ticks = 0
        self.has_changed = True  # What should run here,
        self.is_adrift = True  # or where links should run.
        self.is_proposing = False
        self.is_stopped = False
        self.has_told_excess = False

    # -- Calls by the node ---------------------------------------------------------------------------------------

    def on_events(self, events: tuple[e.Event, ...]) -> None:
        """The metadata have changed."""
        self.plan.on_events(events)
        for event in events:
            match event:
                case AssignmentChanged(component=component) if component == LINK:
                    self.has_changed = self.is_adrift = True
                case e.ParameterChanged() | e.PolicyChanged():
                    self.upstreams = None
                case e.QueueMoved() | e.ViewChanged():
                    self.is_adrift = True
                case e.BindingAdded(binding=binding) if self.by_exchange:
                    for worker in self.by_exchange.get((binding.vhost, binding.source), ()):
                        worker.on_bound(binding)
                case e.BindingRemoved(binding=binding) if self.by_exchange:
                    for worker in self.by_exchange.get((binding.vhost, binding.source), ()):
                        worker.on_unbound(binding)
                case e.BindingsAdded(group=group) if self.by_exchange:
                    for worker in self.by_exchange.get((group.vhost, group.source), ()):
                        for one in group:
                            worker.on_bound(one)
                case e.BindingsRemoved(group=group) if self.by_exchange:
                    for worker in self.by_exchange.get((group.vhost, group.source), ()):
                        for one in group:
                            worker.on_unbound(one)
                case _:
                    pass
        if self.has_changed and self.workers:
            self._compare()  # Before a deleted vhost takes the connections of its links along.

    def tick(self) -> None:
        """Called every few milliseconds."""
        if not self.node.metadata.links and not self.workers:
            return
        self.ticks += 1
        self.node.shovels.standing.look()
        if self.has_changed or self.ticks % COMPARED_TICKS == 0:
            self._compare()
        if self.ticks % SECOND_TICKS == 0:
            for worker in list(self.workers.values()):
                worker.on_second()
        count = len(self.of_queues)
        for _ in range(min(count, LOOKED_AT_ONCE)):
            self.looked = (self.looked + 1) % count
            self.of_queues[self.looked].look()

    def stop(self) -> None:
        """The node stops."""
        self.is_stopped = True
        self._compare()
        for task in self.endings:
            task.cancel()

    # -- Workers -------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        links, name = self.node.metadata.links, self.node.settings.node_name
        may_act = self.node.shovels.standing.may_act() and not self.is_stopped
        self.has_changed = False
        for key, worker in list(self.workers.items()):
            wanted = links.get(key)
            if wanted is None or wanted.node != name or wanted.epoch != worker.assignment.epoch or not may_act:
                self._stop(key, worker, is_gone=wanted is None and may_act)
        if not may_act:
            return
        missing = [one for one in links.values() if one.node == name and one.key not in self.workers]
        for assignment in missing[:STARTED_AT_ONCE]:
            try:
                self._start(assignment)
            except Exception:  # A bug must cost this link only, and be logged.
                logger.exception("a federation link in vhost '%s' cannot be started", assignment.vhost)
        self.has_changed = len(missing) > STARTED_AT_ONCE

    def _start(self, assignment: Assignment) -> None:
        link = self._link_of(assignment.key)
        if link is None:
            return  # Its policy, upstream or exchange is gone; the leader is about to say so.
        worker: FederationWorker
        if link.kind == "exchange":
            worker = of_exchange = ExchangeWorker(self.node, assignment, link)
            self.by_exchange.setdefault((link.vhost, link.name), []).append(of_exchange)
        else:
            worker = of_queue = QueueWorker(self.node, assignment, link)
            self.of_queues.append(of_queue)
        self.workers[assignment.key] = worker

    def _stop(self, key: WorkKey, worker: FederationWorker, is_gone: bool) -> None:
        del self.workers[key]
        if isinstance(worker, QueueWorker):
            self.of_queues.remove(worker)
            self.looked = 0
        elif isinstance(worker, ExchangeWorker):
            place = (worker.of.vhost, worker.of.name)
            self.by_exchange[place].remove(worker)
            if not self.by_exchange[place]:
                del self.by_exchange[place]
        ending = worker.stop(is_gone)
        if ending is not None:
            self.endings.add(ending)
            ending.add_done_callback(self.endings.discard)

    def _link_of(self, key: WorkKey) -> Link | None:
        """Return what a link is made from, as this node knows it."""
        if not is_link_name(key.name):
            return None
        kind, name, _, _ = link_parts(key)
        metadata = self.node.metadata
        if self.upstreams is None:
            self.upstreams = Upstreams(metadata)
        of: Kind = "exchange" if kind == "exchange" else "queue"
        cluster = self.node.broker.cluster_name
        return links_of(metadata, self.policies, self.upstreams, of, key.vhost, name, cluster).get(key)

    # -- The leader's part ---------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Called in each tick at the leader: find out which links there should be, and who runs them."""
        if self.is_proposing or not self.plan.step():
            return
        rows = self.plan.changes()
        if rows:
            self._propose(SetLinks(rows))
            return
        self._tell_excess()
        if self.is_adrift or self.ticks % COMPARED_TICKS == 0:
            self._assign()

    def rest(self) -> None:
        """Called in each tick at other nodes."""
        self.plan.forget()

    def _propose(self, command: SetLinks | AssignWork) -> None:
        def on_agreed(applied: Applied) -> None:
            self.is_proposing = False

        self.is_proposing = True
        self.node.propose(command, on_agreed)

    def _assign(self) -> None:
        """Give what nobody runs to a node."""
        links = self.node.metadata.links
        self.is_adrift = False
        if not links:
            return
        able = dict.fromkeys(self.node.shovels.able_nodes())
        loads = Counter(one.node for one in links.values() if one.node in able)
        rows: list[AssignRow] = []
        for one in links.values():
            home = self._home_of(one.key)
            if one.paused or (one.node in able and home in (None, one.node)):
                continue
            node = min(able, key=lambda name: (loads[name], name), default="") if home is None else home
            if node not in able or node == one.node:
                continue
            loads[node] += 1
            rows.append(AssignRow(*one.key, one.epoch, node))
        if rows:
            self.is_adrift = len(rows) > ROWS_MAX
            self._propose(AssignWork(tuple(rows[:ROWS_MAX])))

    def _home_of(self, key: WorkKey) -> str | None:
        """Return the node of the queue of a link; None for the link of an exchange."""
        if not is_link_name(key.name):
            return None
        kind, name, _, _ = link_parts(key)
        queue = self.node.metadata.queues.get((key.vhost, name)) if kind == "queue" else None
        return None if queue is None else queue.node

    def _tell_excess(self) -> None:
        if self.plan.has_excess != self.has_told_excess:
            self.has_told_excess = self.plan.has_excess
            if self.plan.has_excess:
                logger.warning("policies ask for more than %d federation links; the others are not made", LINKS_MAX)

    # -- Listings ------------------------------------------------------------------------------------------------

    def statuses(self) -> list[dict[str, Any]]:
        """Return what this node knows of the links that it runs."""
        return [
            {"vhost": key.vhost, "name": key.name, "epoch": worker.assignment.epoch, **worker.status()}
            for key, worker in self.workers.items()
        ]
