"""The shovels of this node, and at the leader the choice of who runs which.

A worker runs here exactly while the metadata assign it to this node under its epoch, and this node may act (see
`standing`): it has caught up, sees a majority, and is not paused by a partition. `tick` compares what should run with
what does, so that no event can be missed; events only make it happen at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

from leveret.metadata.model.maintenance_mark import out_of_service
from leveret.metadata.shovel.commands import AssignRow, AssignWork, ReportWork
from leveret.metadata.shovel.parameters import NEVER
from leveret.metadata.shovel.records import SHOVEL, Assignment, WorkKey
from leveret.node.shovels.standing import Standing
from leveret.node.shovels.worker import ShovelWorker

if TYPE_CHECKING:
    from leveret.metadata.store import Applied
    from leveret.node.node import Node


ENDED_MAX: Final = 100
STARTED_AT_ONCE: Final = 20  # Workers that are started in one tick: each opens connections.
HALT_S: Final = 5.0  # After which a worker begins anew that was halted for a change that did not come.
BALANCE_S: Final = 5.0  # Before workers move to a node that has joined: a rolling restart must not move them about.
MOVED_AT_ONCE: Final = 20
REST_S: Final = 2.0


class Shovels:
    """Starts and stops the workers of this node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.workers: dict[WorkKey, ShovelWorker] = {}
        self.ended: deque[tuple[str, str, int]] = deque(maxlen=ENDED_MAX)  # Vhost, name, and how many were moved.
        self.standing = Standing(node)  # That of federation links, too.
        self.is_assigning = False
        self.is_stopped = False
        self.closing: list[asyncio.Future[None]] = []  # Of workers that were stopped with the node.
        self.able: list[str] = []  # The nodes that could run something when the leader last looked,
        self.able_since_s = 0.0  # and since when these could.
        self.settled = (-1, -1)  # The last epoch, and how many assignments there were, when nothing was left to do.

    # -- Workers -------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Called every few milliseconds."""
        assignments = self.node.metadata.assignments
        if not assignments and not self.workers:
            return
        self.standing.look()
        may_act = self.standing.may_act() and not self.is_stopped
        name = self.node.settings.node_name
        for key, worker in list(self.workers.items()):
            wanted, epoch = assignments.get(key), worker.assignment.epoch
            is_over = wanted is None or wanted.node != name or wanted.epoch != epoch
            if is_over or not may_act or worker.was_halted_for(HALT_S):
                del self.workers[key]
                worker.stop()
            else:
                worker.on_tick()
        if may_act:
            missing = [one for one in assignments.values() if one.node == name and one.key not in self.workers]
            for assignment in missing[:STARTED_AT_ONCE]:
                value = self.node.metadata.parameters.get(assignment.key)
                self.workers[assignment.key] = ShovelWorker(self.node, assignment, value, self._report)

    def stop(self) -> None:
        """The node stops. The cluster is told how many messages were moved, if it can still be."""
        self.is_stopped = True
        for worker in self.workers.values():
            worker.stop()
            if worker.is_closed is not None:
                self.closing.append(worker.is_closed)
            if worker.forwarded > worker.reported:
                self._report(worker, False)
        self.tick()

    async def rest(self) -> None:
        """Wait for what the cluster was asked to agree on, so that it is acknowledged, if that does not take long."""
        if self.closing:
            await asyncio.wait(self.closing, timeout=REST_S)

    async def halt(self, key: WorkKey) -> None:
        """Stop a worker, and have the cluster know how many messages it has moved: it is about to be paused or to be
        run anew, and the next worker goes on with that number."""
        worker = self.workers.get(key)
        if worker is not None and not worker.is_stopped:
            worker.stop()
            await self.node.cluster.change(ReportWork(*key, worker.assignment.epoch, worker.forwarded))

    def _report(self, worker: ShovelWorker, done: bool) -> None:
        assignment = worker.assignment
        command = ReportWork(*assignment.key, assignment.epoch, worker.forwarded, done)
        if done:
            self.ended.append((assignment.vhost, assignment.name, worker.forwarded))

        def on_agreed(applied: Applied) -> None:
            """Another worker has taken over, or it was deleted: `tick` stops this one when that is applied here."""

        self.node.propose(command, on_agreed, patient=done)

    # -- The leader's part ---------------------------------------------------------------------------------------

    def lead(self) -> None:
        """Called in each tick at the leader: give what nobody runs to a node, and nodes about equally many."""
        assignments = self.node.metadata.assignments
        if self.is_assigning or not assignments:
            return
        able, present = self.able_nodes(), (self.node.metadata.last_assignment, len(assignments))
        if able != self.able:
            self.able, self.able_since_s, self.settled = able, self.node.loop.time(), (-1, -1)
        elif present == self.settled:
            return
        if not able:
            return
        loads = Counter({name: 0 for name in able})
        loads.update(one.node for one in assignments.values() if one.node in loads)
        rows = []
        for one in assignments.values():
            if not one.paused and one.node not in loads:
                node = min(able, key=lambda name: (loads[name], name))
                loads[node] += 1
                rows.append(AssignRow(*one.key, one.epoch, node))
        if not rows and max(loads.values()) - min(loads.values()) > 1:
            if self.node.loop.time() - self.able_since_s < BALANCE_S:
                return
            rows = self._moves(loads)
        if not rows:
            self.settled = present
            return

        def on_agreed(applied: Applied) -> None:
            self.is_assigning = False

        self.is_assigning = True
        self.node.propose(AssignWork(tuple(rows)), on_agreed)

    def _moves(self, loads: Counter[str]) -> list[AssignRow]:
        """Return what moves from the nodes that run most to those that run least. `loads` is changed."""
        rows = []
        for one in self.node.metadata.assignments.values():
            least = min(loads, key=lambda name: (loads[name], name))
            if loads[one.node] - loads[least] > 1 and not one.paused and self._is_endless(one):
                loads[one.node] -= 1
                loads[least] += 1
                rows.append(AssignRow(*one.key, one.epoch, least))
                if len(rows) == MOVED_AT_ONCE:
                    break
        return rows

    def _is_endless(self, assignment: Assignment) -> bool:
        """Tell whether something runs for ever. What ends after a number of messages counts best where it is."""
        value = self.node.metadata.parameters.get(assignment.key)
        keys = ("src-delete-after", "delete-after", "src-delete-after-duration")
        return not isinstance(value, dict) or all(value.get(key, NEVER) == NEVER for key in keys)

    def able_nodes(self) -> list[str]:
        """Return the nodes that can run a shovel or a federation link now."""
        node = self.node
        away, is_paused = out_of_service(node.metadata), node.pausing.is_paused
        return [
            one.name
            for one in node.cluster.members()
            if one.running and one.name not in away and not is_paused(one.name)
        ]

    # -- Listings ------------------------------------------------------------------------------------------------

    def statuses(self) -> list[dict[str, Any]]:
        """Return what this node knows of the shovels that it runs."""
        return [
            {"vhost": key.vhost, "name": key.name, "epoch": worker.assignment.epoch, **worker.status()}
            for key, worker in self.workers.items()
            if key.component == SHOVEL
        ]

    def assigned(self) -> list[Assignment]:
        return [one for one in self.node.metadata.assignments.values() if one.component == SHOVEL]
