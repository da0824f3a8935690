"""Brokers with mirrored queues: `tests.support.brokers` with real rings, on disks that answer at once.

The master of queue `q` is a; b and c are its mirrors. To test what happens during a hand-over, no node applies
commands: `begin` does everything that the master does before it, `end` applies the new view.
"""

from __future__ import annotations

from typing import Any, cast

from leveret.broker.mirrors.copy_store import MirrorStore
from leveret.broker.mirrors.manager import Mirror
from leveret.broker.queue.local_queue import LocalQueue
from leveret.metadata.model import commands as c
from leveret.metadata.model.view import View
from leveret.protocol.tables import Table
from tests.support.brokers import Cluster, Member, Then
from tests.support.ring_world import Store

NAMES = ("a", "b", "c")
HIDDEN = 1 << 60  # Queue numbers from here on are known to their node only.


class RingMember(Member):
    """A member whose mirrored queues give their blocks to rings."""

    def __init__(self, cluster: Cluster, name: str, **options: Any) -> None:
        super().__init__(cluster, name, **options)
        self.store = Store(self)
        self.broker.mirrors.open(cast(MirrorStore, self.store), name, 1)

    def own_turn(self) -> None:
        broker, mirrors = self.broker, self.broker.mirrors
        busy = True
        while busy:
            broker.pump()
            unlogged, broker.unlogged = broker.unlogged, {}
            for queue in unlogged:
                if queue.mirror is not None:
                    mirrors.submit(queue.mirror, 1_000)
                else:
                    self._commit(queue)
            if mirrors.has_work:
                mirrors.flush()
            written, self.store.unsynced = self.store.unsynced, {}
            for number, write in written.items():
                mirrors.on_synced(number, write)
            broker.flush_links()
            broker.tell_confirms()
            writers, broker.writers = broker.writers, {}
            for output in writers:
                self.clients[output].flush()
            if self.loads or self.ranges:
                self.finish_loads()
            busy = bool(mirrors.has_work or broker.dirty or broker.going_on or broker.unlogged or broker.linked)
            busy = busy or bool(broker.writers)

    def _commit(self, queue: LocalQueue) -> None:
        """Commits the block of a spool or of a record of acknowledgements: there are no other queues without
        mirrors. Its disk answers at once."""
        assert queue.spec.view is None and queue.spec.id >= HIDDEN
        batch, block = queue.open, queue.take_block(1_000)
        awaiting, queue.awaiting = queue.awaiting, []
        if block is not None:
            self.log.append(block)
            if batch is not None:
                queue.on_logged(batch)
        for pending in awaiting:
            pending.on_safe()


class Rings(Cluster):
    member_class = RingMember

    def __init__(self, arguments: Table | None = None) -> None:
        self.lost: set[str] = set()
        super().__init__(*NAMES)
        view = View(1, 1, "a", NAMES, tuple((name, f"{name}.0") for name in NAMES))
        self.apply(c.DeclareQueue("/", "q", durable=True, arguments=arguments or {}, node="a", view=view))

    def propose(self, origin: Member, command: c.Command, then: Then) -> None:
        if origin.name not in self.lost:
            super().propose(origin, command, then)

    def lose(self, name: str) -> None:
        """Cuts a node off from the others and from their commands."""
        self.lost.add(name)
        self.behind.add(name)
        for other in NAMES:
            if other != name:
                self.close(name, other)
        self.run()

    def pass_time(self, ticks: int = 5) -> None:
        for _ in range(ticks):
            for name in NAMES:
                if name not in self.lost:
                    self[name].broker.mirrors.tick()
            self.run()

    def mend(self) -> None:
        self.behind -= self.lost
        for name in self.lost:
            for other in NAMES:
                if other != name:
                    self.join(name, other)
        self.lost.clear()
        self.run()

    @property
    def number(self) -> int:
        return self["a"].metadata.queues["/", "q"].id

    @property
    def master(self) -> str:
        return self["b"].metadata.queues["/", "q"].node

    def mirror(self, name: str) -> Mirror:
        return self[name].broker.mirrors.mirrors[self.number]

    def begin(self, to: str = "b") -> None:
        """Starts a hand-over: the master stops taking publishes, and the command for the new master is proposed."""
        self.behind = set(NAMES)
        master = self.master
        assert self[master].broker.mirrors.hand_over(self.mirror(master), to)
        self.run()
        (proposal,) = self.order[self[master].applied :]
        assert isinstance(proposal.command, c.ChangeView) and proposal.command.view.master == to

    def end(self, *first: str) -> None:
        """Applies the command; at these nodes before the others."""
        self.behind = set(NAMES) - set(first) if first else set()
        self.run()
        self.behind = set()
        self.run()

    def hand_over(self, to: str = "b") -> None:
        self.begin(to)
        self.end()
