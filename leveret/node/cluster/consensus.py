"""Runs Raft in a node: its log is on disk, its messages travel on the links, its commands change the metadata.

`Raft` decides, `ConsensusLog` stores, `Proposals` carries commands to the leader and their answers back; this module
connects them with the disk, the links and the metadata. The order of steps is described in `leveret.raft.core`: one
`Ready` is handled at a time, its write runs in a thread, and what arrives meanwhile makes up the next. No command waits
for a tick, except where there is no leader or the leader cannot take more.

After a crash: a command is applied here after it is on this disk, and it is committed after it is on the disks of a
majority. A node that starts again knows from its own log how far it was committed when something was last written,
applies so much, and learns the rest from the leader before it serves anybody.

**Applying in portions.** When a node with thousands of masters is lost, thousands of commands are committed at once.
Raft gives them out in portions of `APPLIED_AT_ONCE`. After so many commands the event loop first handles whatever else
has arrived, heartbeats of other nodes among it; frames of the consensus wait until then, too, so that no pass of the
loop applies twice as many.

**Links with members that this node does not know.** Only members may link. A node that was away may not know all of
them, for example one that joined meanwhile and leads by now; and only the leader could tell it. If the node turned that
one away, it would wait for ever. So members tell each other (`MEMBERS`) the newest committed membership, and a node
that is behind accepts links from those members too, until its own log has come as far. In elections and majorities only
its own log counts.

Only members that a node knows can tell it so. If all of them are gone, it waits for one of them, or for an operator
(`docs/clusters.md`, "All that a node knows are gone"). To believe any node that has the cookie and a newer membership
would be wrong. A node that has gone on by `force_boot` or `go_on_alone` is still in the membership of those it left
behind. Their log is another one, and may be longer; even the term at an index can be the same in both, with another
entry. That node would leave its own log for theirs. Nor could a node that was away be told from one whose folder is of
an earlier time, which must not vote. `PeerLinks.turned_away` names the strangers, so that operators look at them first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from leveret.links.frame_types import FORWARD, MEMBERS, RAFT, SIGNS_OF_LIFE
from leveret.links.proposals import ORIGIN_BYTES, Proposals
from leveret.metadata.diff import events_between
from leveret.metadata.store import Applied, Metadata
from leveret.node.config.settings import TICK_MS
from leveret.node.sockets.peer_links import Address
from leveret.node.system.ticker import LONG_MS, Ticker
from leveret.raft import (
    BadChange,
    Busy,
    Change,
    Entry,
    Kind,
    Member,
    Membership,
    Message,
    Options,
    Raft,
    Ready,
    Snapshot,
    SnapshotChunk,
    decode_message,
    encode_message,
)
from leveret.raft.log import Placed
from leveret.raft.membership import decode_membership, encode_membership

if TYPE_CHECKING:
    from leveret.metadata.model.commands import Command
    from leveret.metadata.model.events import Event
    from leveret.node.cluster.consensus_log import ConsensusLog, Recovered, WriteBatch, WriteSnapshot
    from leveret.node.config.settings import Settings
    from leveret.node.sockets.peer_links import PeerLinks
    from leveret.node.system.environment import Environment

logger = logging.getLogger("leveret.cluster")

ELECTION_TICKS: Final = 100  # Two to four seconds of silence; a closed link does not wait for it.
HEARTBEAT_TICKS: Final = 20
APPLIED_AT_ONCE: Final = 32  # Commands; that of a queue's view may take 0.2 ms.
RETRY_S: Final = 1.0
KEEP_ENTRIES: Final = 10_000  # Behind a snapshot, for those who are a little late.


class AdminError(Exception):
    """An operator's request cannot be done; the text says why, and what to do."""


class TryAgain(AdminError):
    """An operator's request cannot be done now, but the same request may succeed a moment later."""


class ConsensusNode:
    """The interface of a node that the consensus calls."""

    def on_applied(self, applied: Applied) -> None:
        raise NotImplementedError

    def on_replaced(self, events: tuple[Event, ...]) -> None:
        raise NotImplementedError

    def on_cluster_tick(self) -> None:
        raise NotImplementedError

    def is_calm(self) -> bool:
        """Returns whether nothing goes on that needs a tick soon."""
        raise NotImplementedError

    def on_fatal(self, text: str) -> None:
        raise NotImplementedError

    def contacts(self) -> dict[str, frozenset[str]]:
        """Returns, for each node that is in contact with this one, the names of the nodes it is in contact with."""
        raise NotImplementedError

    def witnesses(self, name: str) -> list[str]:
        """Returns the nodes in contact with this one that are in contact with the node of that name, too."""
        raise NotImplementedError

    def is_paused(self, name: str) -> bool:
        """Returns whether that node (which may be this one) is known to be paused."""
        raise NotImplementedError

    def has_clients(self) -> bool:
        """Returns whether a node of the cluster may have clients."""
        raise NotImplementedError


class Duties(Protocol):
    """The work of a member of the cluster beside the consensus: see `leveret.node.cluster.membership`."""

    def before_tick(self) -> None:
        """Called in each tick, before Raft's tick."""

    def lead(self) -> None:
        """Called in each tick while this member leads."""


class Consensus:
    """One member's part in the consensus."""

    def __init__(
        self,
        settings: Settings,
        environment: Environment,
        peers: PeerLinks,
        me: Member,
        log: ConsensusLog,
        recovered: Recovered,
        metadata: Metadata,
        node: ConsensusNode,
        duties: Duties,
    ) -> None:
        self.settings = settings
        self.environment = environment
        self.peers = peers
        self.me = me
        self.log = log
        self.metadata = metadata
        self.node = node
        self.duties = duties
        self.applied_index = recovered.meta.index
        self.raft = Raft(
            me.id,
            environment.random_source.randrange,
            Options(election_ticks=ELECTION_TICKS, heartbeat_ticks=HEARTBEAT_TICKS, committed_max=APPLIED_AT_ONCE),
            hard_state=recovered.hard_state,
            snapshot=recovered.meta,
            entries=recovered.entries,
            commit=recovered.commit,
        )
        patience = max(1, settings.operation_timeout_ms // TICK_MS)
        self.proposals = Proposals(environment.random_bytes(ORIGIN_BYTES), self.raft, self._send_to, patience)
        self.writer = environment.worker("leveret-consensus")
        self.snapshot_thread = environment.worker("leveret-snapshots")
        self.ready: Ready | None = None  # The Ready that is being written.
        self.written = False  # The write of `ready` is done.
        self.driving = False
        self.resting = False  # `APPLIED_AT_ONCE` commands were applied: other work of the event loop goes first.
        self.applied_since = 0  # Commands applied since the last such rest.
        self.stopped = False
        self.snapshotting = False
        self.connected: dict[str, str] = {}  # Name and id of each member whose link is up.
        self.lost_at: dict[str, float] = {}  # Names of members whose link was lost, and when.
        self.commit_latency_s = 0.0  # How long the last command of this node took to be agreed on, for the metrics.
        self.linked: tuple[Membership, Placed | None] | None = None  # The membership and `told` that `peers` was given.
        self.told: Placed | None = None  # A membership heard from others that this node's own log has not reached yet.
        self.telling: Placed | None = None  # The newest membership that this node has sent to the others.
        self.leadership: tuple[str | None, int] = (None, 0)
        self.watchers: list[asyncio.Future[None]] = []  # Set after each `drive`: see `until`.
        self.changes: list[tuple[int, int, asyncio.Future[None]]] = []  # Index and term of membership changes.
        self.ticker = Ticker(environment.loop, self._on_ticks, self._is_calm)
        self._replay(recovered)
        self._update_members()

    def _replay(self, recovered: Recovered) -> None:
        """Applies the entries that are known to be committed, before anybody reads the metadata."""
        if recovered.snapshot is not None:
            self.metadata.restore(recovered.snapshot.data)
        for entry in recovered.entries:
            if self.applied_index < entry.index <= recovered.commit:
                self.applied_index = entry.index
                if entry.kind is Kind.COMMAND:
                    self.proposals.on_entry(entry.index, entry.term, entry.data, self.metadata.apply)

    def start(self) -> None:
        """Begins to tick, and stands for election if this node is the only voter."""
        if len(self.raft.membership.voters) == 1:
            self.raft.campaign()
        self.ticker.start()

    def stop(self) -> None:
        self.stopped = True
        self.ticker.stop()
        self.proposals.forget_all()
        self.writer.stop()
        self.snapshot_thread.stop()

    @property
    def run(self) -> str:
        """The name of this run of the node."""
        return self.proposals.origin.hex()

    @property
    def leader(self) -> str | None:
        """The name of the node that leads, if it is known."""
        member = self.raft.membership.get(self.raft.leader) if self.raft.leader is not None else None
        return None if member is None else member.name

    @property
    def has_majority(self) -> bool:
        return self.has_majority_without("")

    def has_majority_without(self, peer: str) -> bool:
        reachable = {self.me.id, *(one for name, one in self.connected.items() if name != peer)}
        membership = self.raft.membership
        return membership.is_majority(sum(one in reachable for one in membership.voter_ids))

    def _update_members(self) -> None:
        membership, agreed = self.raft.membership, self.raft.log.agreed
        if agreed is not self.telling:
            self.telling = agreed
            for name in self.connected:
                self._tell_members(name, agreed)
        if self.told is not None and self.told.index <= self.raft.commit:
            self.told = None
        if self.linked is not None and membership is self.linked[0] and self.told is self.linked[1]:
            return
        if not membership.members:
            return
        self.linked = (membership, self.told)
        self.ticker.wake()  # Another number of nodes may be a majority.
        own = membership.get(self.me.id)
        if own is not None:
            self.me = own
        others = () if self.told is None else self.told.membership.members
        self.peers.set_members({one.name: address_of(one) for one in (*membership.members, *others)})

    def _tell_members(self, name: str, agreed: Placed) -> None:
        self.peers.send(name, MEMBERS, agreed.index.to_bytes(8, "big") + encode_membership(agreed.membership))

    def _on_members(self, payload: bytes) -> None:
        told = Placed(int.from_bytes(payload[:8], "big"), decode_membership(payload[8:]))
        if told.index > max(self.raft.commit, self.told.index if self.told is not None else 0):
            self.told = told

    def on_up(self, name: str, uuid: bytes) -> None:
        self.ticker.wake()
        self.connected[name] = uuid.hex()
        self._tell_members(name, self.raft.log.agreed)
        self.lost_at.pop(name, None)
        if self.has_majority:
            self.raft.on_majority_linked()
        self.proposals.on_link_up(uuid.hex())
        self.drive()

    def on_down(self, name: str) -> None:
        self.ticker.wake()
        member_id = self.connected.pop(name, None)
        if member_id is not None:
            self.lost_at[name] = self.environment.loop.time()
            self.raft.on_link_lost(member_id)
            self.drive()

    def give_up(self, name: str) -> None:
        """Forgets when a member was lost, because its exclusive and transient queues are being deleted now."""
        del self.lost_at[name]

    # -- Commands --------------------------------------------------------------------------------------------------

    def propose(self, command: Command, then: Callable[[Applied], None], patient: bool = False) -> None:
        self.ticker.wake()
        begun_s = self.environment.loop.time()

        def measured(applied: Applied) -> None:
            self.commit_latency_s = self.environment.loop.time() - begun_s
            then(applied)

        self.proposals.propose(command, measured, patient)
        self.drive()

    async def change(self, command: Command) -> Applied:
        """Proposes a command and waits until it is applied. A refusal is in the result."""
        done: asyncio.Future[Applied] = self.environment.loop.create_future()

        def then(applied: Applied) -> None:
            if not done.done():
                done.set_result(applied)

        self.propose(command, then)
        return await done

    # -- Driving Raft ----------------------------------------------------------------------------------------------

    def on_frame(self, peer: str, kind: int, payload: bytes) -> None:
        """Handles a frame of the consensus from another member."""
        if kind == RAFT:
            self.raft.step(decode_message(payload))
        elif kind == MEMBERS:
            self._on_members(payload)
        else:
            self.proposals.on_frame(self.connected.get(peer, ""), kind, payload)
        self.drive()

    def _on_ticks(self, passed: int) -> None:
        self.duties.before_tick()
        for _ in range(passed):
            self.raft.tick()
        self.proposals.tick()
        if self.raft.is_leader:
            self.duties.lead()
        self.drive(is_tick=True)
        self.node.on_cluster_tick()

    def _is_calm(self) -> bool:
        """Returns whether all members are linked and agree, and nothing is to be agreed on."""
        raft = self.raft
        if raft.leader is None or self.ready is not None or self.resting or self.proposals.waiting or self.watchers:
            return False
        if self.changes or self.told is not None or len(self.connected) + 1 < len(raft.membership.members):
            return False
        return self.node.is_calm()

    def drive(self, is_tick: bool = False) -> None:
        """Does everything that has become due by the input so far."""
        if self.driving:
            return  # Called from within `_drive`, whose loop sees the new input.
        self.driving = True
        try:
            self._drive()
        except Exception as error:  # A committed entry may be half applied, so the node has to stop.
            logger.exception("internal error in the driver of Raft; the node stops")
            self._fail(f"internal error in the driver of Raft: {error!r}")
        finally:
            self.driving = False
        if is_tick and self.ticker.is_long:
            self.peers.tick_along(LONG_MS)
        self.peers.flush()

    def _drive(self) -> None:
        # A caller that is answered may propose more at once: that goes into the next write, without a tick's delay.
        asked = -1
        while asked != self.proposals.last_number:
            asked = self.proposals.last_number
            self._advance()
            self._update_members()
            self.proposals.settle(self._counted())
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    def _advance(self) -> None:
        """Handles Raft's Readys until a write is under way or there is nothing to do."""
        while not self.stopped:
            self._notice_leader()
            if self.resting:
                break
            if self.ready is not None:
                if not self.written:
                    break
                ready, self.ready, self.written = self.ready, None, False
                self._finish(ready)
                continue
            next_ready = self.raft.ready()
            if next_ready is None:
                break
            self._begin(next_ready)

    def _rested(self) -> None:
        self.resting = False
        self.drive()

    async def until(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits until a condition holds. Returns False if it does not after so many seconds, or the node stops."""
        deadline = None if seconds is None else self.environment.loop.time() + seconds
        while not condition():
            left = None if deadline is None else deadline - self.environment.loop.time()
            if self.stopped or (left is not None and left <= 0):
                return False
            watcher: asyncio.Future[None] = self.environment.loop.create_future()
            self.watchers.append(watcher)
            await asyncio.wait([watcher], timeout=left)
        return True

    async def until_changed(self, value: Callable[[], object], seconds: float) -> bool:
        """Waits until a value differs from what it is now. Returns False as `until` does."""
        before = value()
        return await self.until(lambda: value() != before, seconds)

    def _counted(self) -> list[str]:
        """Returns the ids of the members that must have applied a command before its caller is answered."""
        voters = self.raft.membership.voter_ids
        return [one for one in self.connected.values() if one in voters]

    def _notice_leader(self) -> None:
        leadership = (self.raft.leader, self.raft.term)
        if leadership == self.leadership:
            return
        before, self.leadership = self.leadership[0], leadership
        if self.raft.leader is not None and self.raft.leader != before:
            names = {member_id: name for name, member_id in self.connected.items()}
            name = self.leader or names.get(self.raft.leader, self.raft.leader)
            logger.info("%s leads the cluster (term %d)", name, self.raft.term)
        if self.raft.is_leader:  # Members lost before this node led: nobody may have looked after their queues.
            now = self.environment.loop.time()
            for member in self.raft.membership.members:
                if member.name not in self.connected and member.id != self.me.id:
                    self.lost_at.setdefault(member.name, now)
        self.proposals.on_leader()

    def _begin(self, ready: Ready) -> None:
        for message in ready.early:
            self._send(message)
        if not ready.must_sync:
            self._finish(ready)
            return
        self.log.save(ready.hard_state, ready.entries, ready.commit, ready.snapshot)
        self.ready = ready
        self._write()

    def _write(self) -> None:
        job = self.log.take()
        assert job is not None
        self.writer.submit(lambda: job.perform(self.environment.disk), lambda error: self._on_written(job, error))
        self.environment.yield_to_writer()

    def _on_written(self, job: WriteBatch, error: Exception | None) -> None:
        if self.stopped:
            return
        if error is None:
            self.log.on_done(job)
            self.written = True
            self.drive()
        elif isinstance(error, OSError) and self.log.on_failed(job, error) == "retry":
            logger.error("no space left on the disk for the cluster's metadata: trying again (%s)", error)
            self.environment.loop.call_later(RETRY_S, self._retry)
        else:
            self._fail(f"writing the cluster's metadata failed: {error}. The node stops")

    def _retry(self) -> None:
        if not self.stopped:
            self._write()

    def _fail(self, text: str) -> None:
        self.stopped = True
        self.node.on_fatal(text)

    def _finish(self, ready: Ready) -> None:
        """Sends the messages of a Ready that is on disk, and applies its committed entries."""
        if ready.snapshot is not None:
            self._restore(ready.snapshot)
        for message in ready.messages:
            self._send(message)
        for chunk in ready.chunks:
            self._send_chunk(chunk)
        due = [entry for entry in ready.committed if entry.index > self.applied_index]
        for entry in due:
            self._apply(entry)
        self.raft.advance(ready)
        self.applied_since += len(due)
        if self.applied_since >= APPLIED_AT_ONCE:
            self.applied_since = 0
            self.resting = True
            self.environment.loop.call_soon(self._rested)
        self._settle_changes()
        # At a start all entries known to be committed are applied at once, and Raft gives them out again in portions.
        caught_up = self.raft.applied >= self.applied_index
        if caught_up and self.log.snapshot_due(self.applied_index) and not self.snapshotting:
            self._snapshot()

    def _apply(self, entry: Entry) -> None:
        self.applied_index = entry.index
        if entry.kind is Kind.COMMAND:
            self.proposals.on_entry(entry.index, entry.term, entry.data, self._apply_command)
        else:
            self.proposals.on_term(entry.term)

    def _apply_command(self, command: Command) -> Applied:
        applied = self.metadata.apply(command)
        self.node.on_applied(applied)
        return applied

    def _restore(self, snapshot: Snapshot) -> None:
        """Replaces the metadata by the leader's, which sent it because this node was away for too long, or is new."""
        logger.info("received the metadata from the leader, as of entry %d", snapshot.meta.index)
        before = self.metadata.frozen()
        self.metadata.restore(snapshot.data)
        self.applied_index = snapshot.meta.index
        self.proposals.on_snapshot(snapshot.meta.term)
        self.node.on_replaced(events_between(before, self.metadata))

    # -- Sending ---------------------------------------------------------------------------------------------------

    def _send(self, message: Message) -> None:
        self._send_to(message.to, RAFT, encode_message(message))

    def _send_to(self, member_id: str, kind: int, payload: bytes) -> bool:
        for name, connected in self.connected.items():
            if connected == member_id:
                return self.peers.send(name, kind, payload)
        return False

    def _send_chunk(self, chunk: SnapshotChunk) -> None:
        job = self.log.fill(chunk, self.raft.options.chunk_bytes)
        if job is None:
            return

        def then(error: Exception | None) -> None:
            if self.stopped:
                return
            if error is not None:
                logger.error("reading a snapshot of the metadata failed, will be tried again: %s", error)
                return
            self._send(job.chunk)
            self.peers.flush()

        self.snapshot_thread.submit(lambda: job.perform(self.environment.disk), then)

    # -- Snapshots -------------------------------------------------------------------------------------------------

    def _snapshot(self) -> None:
        """Makes a snapshot in another thread: with a million bindings it takes a second."""
        meta = self.raft.snapshot_meta(self.applied_index)
        if meta is None:
            return
        frozen = self.metadata.frozen()
        self.snapshotting = True
        made: list[bytes] = []

        def on_made(error: Exception | None) -> None:
            if self.stopped:
                return
            if error is not None:
                self._fail(f"making a snapshot of the metadata failed: {error!r}")
                return
            job = self.log.put_snapshot(Snapshot(meta, made[0]))
            if job is None:
                self.snapshotting = False
                return
            self.snapshot_thread.submit(
                lambda: job.perform(self.environment.disk), lambda error: self._on_snapshot(job, error)
            )

        self.snapshot_thread.submit(lambda: made.append(frozen.snapshot()), on_made)

    def _on_snapshot(self, job: WriteSnapshot, error: Exception | None) -> None:
        self.snapshotting = False
        if self.stopped:
            return
        if error is None:
            self.log.on_snapshot_done(job)
            self.raft.compact(job.snapshot.meta, KEEP_ENTRIES)
            self._clean_up()
        elif not isinstance(error, OSError) or self.log.on_snapshot_failed(job, error) == "stopped":
            self._fail(f"writing a snapshot of the metadata failed: {error}. The node stops")
        else:
            logger.error("no space left on the disk for a snapshot of the metadata: trying again later (%s)", error)

    def _clean_up(self) -> None:
        job = self.log.cleanup(self.raft.snapshots_in_use)
        if job is not None:

            def then(error: Exception | None) -> None:
                self.log.on_cleaned(job, error if isinstance(error, OSError) else None)

            self.snapshot_thread.submit(lambda: job.perform(self.environment.disk), then)

    # -- Membership ------------------------------------------------------------------------------------------------

    def _settle_changes(self) -> None:
        waiting, self.changes = self.changes, []
        for index, term, done in waiting:
            if done.done():
                continue
            if self.raft.commit < index and self.raft.is_leader and self.raft.term == term:
                self.changes.append((index, term, done))
            elif self.raft.term == term and self.raft.commit >= index:
                done.set_result(None)
            else:
                done.set_exception(TryAgain("the cluster's leader changed meanwhile; try again"))

    async def change_membership(self, change: Change) -> None:
        """Changes the membership, as the leader, and waits until it is committed. Raises `AdminError`, `NotLeader`."""
        deadline = self.environment.loop.time() + self.settings.operation_timeout_ms / 1000
        while True:
            try:
                proposed = self.raft.change(change)
                break
            except BadChange as error:
                raise AdminError(str(error)) from None
            except Busy as error:
                left = deadline - self.environment.loop.time()
                if not await self.until_changed(lambda: (self.raft.commit, self.raft.term), left):
                    raise TryAgain(f"not now: {error}") from None
        done: asyncio.Future[None] = self.environment.loop.create_future()
        self.changes.append((proposed.index, proposed.term, done))
        self.drive()
        finished, _ = await asyncio.wait([done], timeout=max(0.0, deadline - self.environment.loop.time()))
        if not finished:
            done.cancel()
            raise TryAgain("no majority of the cluster's nodes agreed within the operation timeout")
        done.result()


CONSENSUS_FRAMES: Final = frozenset({RAFT, MEMBERS, SIGNS_OF_LIFE, *range(FORWARD, FORWARD + 4)})


def address_of(member: Member) -> Address:
    host, port = split_address(member.address)
    return Address(host, port, bytes.fromhex(member.id))


def split_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
