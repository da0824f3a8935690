"""Several nodes without a world: brokers joined by links in memory, under one order of metadata commands.

`Cluster` has a `Member` (a `World` of its own) for each name. A turn of one is a turn of all: commands are applied,
frames are delivered, every broker has its turns, until nothing is left to do, unless a test says otherwise:

    cluster.hold("a", "b")      what a says to b waits
    cluster.behind = {"b"}      b applies no commands
    cluster.close("a", "b")     the session ends: what is under way is lost, both ends are told
    cluster.join("a", "b")      a new one begins
    cluster.deaf.add(("a", "b"))   the link from a to b takes no more

Queues are made at the node where their client is, unless `cluster.home` names another one. A change of the metadata is
answered when every member with a link to its origin has applied it, as the consensus has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.remote.client_end import ClientEnd
from leveret.broker.remote.outbox import SWEEP_MS
from leveret.links.proposals import BadFrame
from leveret.metadata.model import commands as c
from leveret.metadata.store import Applied
from tests.support.machines import World

ROUNDS_MAX: Final = 10_000
FRAME_BYTES_MAX: Final = 17 << 20

Then = Callable[[Applied], None]


class Member(World):
    """One node of a `Cluster`."""

    def __init__(self, cluster: Cluster, name: str, **options: Any) -> None:
        super().__init__(name=name, **options)
        self.cluster = cluster
        self.name = name
        self.applied = 0  # Number of applied commands.
        self.crowded = False

    def propose(self, command: c.Command, then: Then, patient: bool = False) -> None:
        if self.holds_metadata:
            self.proposals.append((command, then))
        else:
            self.cluster.propose(self, command, then)

    def release_metadata(self) -> None:
        self.holds_metadata = False
        proposals, self.proposals = self.proposals, []
        for command, then in proposals:
            self.cluster.propose(self, command, then)

    def is_crowded(self) -> bool:
        return self.crowded

    def send(self, peer: str, kind: int, parts: list[bytes]) -> None:
        self.cluster.send(self.name, peer, kind, parts)

    def is_writable(self, peer: str) -> bool:
        return (self.name, peer) not in self.cluster.deaf

    def cut(self, peer: str, reason: str) -> None:
        self.cluster.cuts.append((self.name, peer, reason))

    def unique_name(self, prefix: str) -> str:
        return self.cluster.unique_name(prefix)

    def turn(self) -> None:
        self.cluster.run()

    def own_turn(self) -> None:
        super().turn()

    def client_end(self, peer: str) -> ClientEnd:
        return self.broker.client_ends[peer]


class Proposal:
    """A command in the order, and what to call when it is applied."""

    def __init__(self, origin: Member, command: c.Command, then: Then) -> None:
        self.origin = origin
        self.command = command
        self.then = then
        self.applied: Applied | None = None
        self.answered = False


class Cluster:
    member_class: type[Member] = Member

    def __init__(self, *names: str, home: str | None = None, **options: Any) -> None:
        self.home = home
        self.order: list[Proposal] = []
        self.members = {name: self.member_class(self, name, **options) for name in names}
        self.links: dict[tuple[str, str], deque[tuple[int, bytes]]] = {}  # Frames in flight, by open session.
        self.held: set[tuple[str, str]] = set()
        self.behind: set[str] = set()
        self.deaf: set[tuple[str, str]] = set()
        self.cuts: list[tuple[str, str, str]] = []  # Sessions to close: by which node, with which, and why.
        self.bad: list[str] = []  # The reasons why sessions were closed.
        self.frames: list[tuple[str, str, int, bytes]] = []  # All frames that were delivered.
        self.names = 0
        self.running = False
        for first in names:
            for second in names:
                if first < second:
                    self.join(first, second)

    def __getitem__(self, name: str) -> Member:
        return self.members[name]

    # Metadata.

    def propose(self, origin: Member, command: c.Command, then: Then) -> None:
        if isinstance(command, c.DeclareQueue) and self.home is not None:
            command = replace(command, node=self.home)
        self.order.append(Proposal(origin, command, then))

    def apply(self, command: c.Command) -> None:
        """Applies a command without waiting for it."""
        self.propose(next(iter(self.members.values())), command, lambda applied: None)
        self.run()

    def _apply(self) -> bool:
        busy = False
        for member in self.members.values():
            while member.applied < len(self.order) and member.name not in self.behind:
                proposal = self.order[member.applied]
                member.applied += 1
                applied = member.metadata.apply(proposal.command)
                if member is proposal.origin:
                    proposal.applied = applied
                member.broker.on_applied(applied.events)
                busy = True
        for at, proposal in enumerate(self.order):
            if proposal.applied is None or proposal.answered:
                continue
            counted = [one for one in self.members.values() if (proposal.origin.name, one.name) in self.links]
            if all(one.applied > at for one in counted):
                proposal.answered = True
                proposal.then(proposal.applied)
                busy = True
        return busy

    def unique_name(self, prefix: str) -> str:
        self.names += 1
        return f"{prefix}{self.names:022}"

    # Links.

    def send(self, sender: str, receiver: str, kind: int, parts: list[bytes]) -> None:
        payload = b"".join(parts)
        assert len(payload) <= FRAME_BYTES_MAX, f"a frame of {len(payload)} bytes"
        link = self.links.get((sender, receiver))
        if link is not None:
            link.append((kind, payload))

    def join(self, first: str, second: str) -> None:
        for sender, receiver in ((first, second), (second, first)):
            self.links[sender, receiver] = deque()
            self.members[sender].broker.on_peer_up(receiver)

    def close(self, first: str, second: str) -> None:
        for sender, receiver in ((first, second), (second, first)):
            self.links.pop((sender, receiver), None)
        for sender, receiver in ((first, second), (second, first)):
            self.members[sender].broker.on_peer_down(receiver)

    def hold(self, sender: str, receiver: str) -> None:
        self.held.add((sender, receiver))

    def release(self, sender: str, receiver: str, frames_max: int | None = None) -> None:
        """Delivers the held frames, or the first `count` of them."""
        if frames_max is None:
            self.held.discard((sender, receiver))
        else:
            for _ in range(frames_max):
                self._deliver(sender, receiver)
        self.run()

    def drain(self, sender: str, receiver: str) -> None:
        self.deaf.discard((sender, receiver))
        self.members[sender].broker.on_peer_drained(receiver)
        self.run()

    def _deliver(self, sender: str, receiver: str) -> None:
        kind, payload = self.links[sender, receiver].popleft()
        self.frames.append((sender, receiver, kind, payload))
        try:
            self.members[receiver].broker.on_peer_frame(sender, kind, payload)
        except BadFrame as error:
            self.cuts.append((receiver, sender, str(error)))

    def _carry(self) -> bool:
        busy = False
        for sender, receiver in list(self.links):
            while (sender, receiver) not in self.held and self.links.get((sender, receiver)):
                self._deliver(sender, receiver)
                busy = True
        cuts, self.cuts = self.cuts, []
        for first, second, reason in cuts:
            self.bad.append(reason)
            if (first, second) in self.links:
                self.close(first, second)
                self.join(first, second)
                busy = True
        return busy

    def run(self) -> None:
        """Runs turns until no member has anything to do."""
        if self.running:
            return
        self.running = True
        try:
            for _ in range(ROUNDS_MAX):
                for member in self.members.values():
                    member.own_turn()
                busy = self._apply()
                if not self._carry() and not busy:
                    return
        finally:
            self.running = False
        raise AssertionError("they talk for ever")

    def tick(self) -> None:
        for member in self.members.values():
            member.broker.tick_links()
        self.run()

    def wait_in_vain(self, ms: int = 10_000) -> None:
        """Lets time pass; by default until no publish in doubt waits any longer."""
        for _ in range(ms // SWEEP_MS):
            for member in self.members.values():
                member.broker.now_ms += SWEEP_MS
                member.broker.outboxes.tick()
            self.run()

    # At the end.

    def finish(self) -> None:
        """Closes all clients and deletes all queues, and checks that nothing is left of them anywhere."""
        for member in self.members.values():
            for client in list(member.clients.values()):
                if not client.connection.closed:
                    client.connection.on_socket_lost()
        self.run()
        self.check_settled()
        for spec in list(next(iter(self.members.values())).metadata.queues.values()):
            self.apply(c.DeleteQueue(spec.vhost, spec.name, spec.id))
        self.check_clean()

    def check_settled(self) -> None:
        """Checks that nothing is unacknowledged and that there are no consumers, since there are no clients."""
        for member in self.members.values():
            for vhost in member.broker.vhosts.values():
                for queue in vhost.queues.values():
                    if isinstance(queue, LocalQueue):
                        assert not queue.consumers and queue.unacked_count == 0, queue
                        assert not queue.awaiting, queue
                    else:
                        assert not queue.subscriptions, queue

    def check_clean(self) -> None:
        for member in self.members.values():
            broker = member.broker
            assert not broker.connections and not broker.queues_by_id
            assert broker.content_bytes == broker.unlogged_bytes == 0
            for touched in (
                broker.dirty, broker.unlogged, broker.delivering, broker.confirming, broker.linked,
                broker.waiting_links, broker.waiting_for_load, broker.overdue, broker.going_on,
            ):  # fmt: skip
                assert not touched
            for client_end in broker.client_ends.values():
                assert not client_end.bundles and not client_end.bundled_bytes
                assert not client_end.pendings and not client_end.asks
                assert not client_end.verdicts and not client_end.subscriptions and not client_end.taken
            for home in broker.owner_ends.values():
                assert home.unacked.count == 0 and not list(home.unacked) and not home.consumers
                assert not home.deliveries and not home.early and not home.confirms.open
                assert not [queue for queue in home.stalled if not queue.deleted]
        assert not any(self.links.values())
