"""This node's part in the consensus: Raft and its log on disk, driven by the event loop; who is a member; who is there.

`Raft` decides, `ConsensusLog` keeps, `Proposals` carries commands to the leader and their answers back; this module
moves what they say between disk, links and the metadata. The order of things is that in the head of `raft.core`: one
`Ready` is out at a time, its write runs in a thread, and what arrives meanwhile makes up the next.

What a crash leaves: a command is applied here after it is on this disk, and it counts as agreed on after it is on the
disks of a majority. A node that starts again knows of its own log how far it was agreed on when something was last
written, applies so much, and learns the rest from the leader before it serves anybody (`catch_up`).

Beyond Raft's own, a leader has these duties, looked after in each tick: a learner that has caught up becomes a voter;
a voter of higher priority gets the leadership; and when a node has been gone for `LOST_S`, its exclusive and transient
queues are given up, which a node that only lost a link for a moment should not have to pay.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.cluster import commands as c
from leveret.cluster.difference import events_between
from leveret.cluster.frames import FORWARD, JOIN, LEAVE, RAFT, RENAME
from leveret.cluster.proposals import ORIGIN_BYTES, Proposals
from leveret.cluster.raft import (
    AddLearner,
    BadChange,
    Busy,
    Change,
    Entry,
    Kind,
    Member,
    Membership,
    Message,
    NotLeader,
    Options,
    Promote,
    Raft,
    Ready,
    Refused,
    Remove,
    Snapshot,
    SnapshotChunk,
    Update,
    decode_message,
    encode_message,
)
from leveret.cluster.store import Applied, Metadata
from leveret.node.peers import NOT_A_MEMBER, Address

if TYPE_CHECKING:
    from leveret.cluster.commands import Command
    from leveret.cluster.events import Event
    from leveret.node.consensus_log import ConsensusLog, Recovered, WriteBatch, WriteSnapshot
    from leveret.node.peers import Peers
    from leveret.node.settings import Settings
    from leveret.node.surroundings import Surroundings

logger = logging.getLogger("leveret.cluster")

TICK_MS: Final = 20
ELECTION_TICKS: Final = 100  # Two to four seconds of silence; a closed link does not wait for it.
HEARTBEAT_TICKS: Final = 20
LOST_S: Final = 1.0
TRANSFER_S: Final = 10.0
REFUSALS_MAX: Final = 5  # Seconds in which a node that starts is turned away by the majority.
RETRY_S: Final = 1.0
KEEP_ENTRIES: Final = 10_000  # Behind a snapshot, for those who are a little late.
CALL_S: Final = 5.0
CLUSTER_ID: Final = "internal_cluster_id"  # The global parameter that RabbitMQ has it in.


class AdminError(Exception):
    """What an operator asked for cannot be done; the text says why, and what to do."""


class TryAgain(AdminError):
    """It may do a moment later."""


class MemberStatus(NamedTuple):
    name: str
    uuid: str
    address: str
    voter: bool
    running: bool
    leader: bool
    priority: int


class Shell:
    """What the cluster's part tells its node."""

    def on_applied(self, applied: Applied) -> None:
        raise NotImplementedError

    def on_replaced(self, events: tuple[Event, ...]) -> None:
        raise NotImplementedError

    def on_cluster_tick(self) -> None:
        raise NotImplementedError

    def on_fatal(self, text: str) -> None:
        raise NotImplementedError


class Cluster:
    """One member's consensus."""

    def __init__(
        self,
        settings: Settings,
        world: Surroundings,
        peers: Peers,
        me: Member,
        log: ConsensusLog,
        recovered: Recovered,
        metadata: Metadata,
        shell: Shell,
    ) -> None:
        self.settings = settings
        self.world = world
        self.peers = peers
        self.me = me
        self.log = log
        self.metadata = metadata
        self.shell = shell
        self.applied_index = recovered.meta.index
        self.raft = Raft(
            me.id,
            world.dice.randrange,
            Options(election_ticks=ELECTION_TICKS, heartbeat_ticks=HEARTBEAT_TICKS),
            hard_state=recovered.hard_state,
            snapshot=recovered.meta,
            entries=recovered.entries,
            commit=recovered.commit,
        )
        patience = max(1, settings.operation_timeout_ms // TICK_MS)
        self.proposals = Proposals(world.random_bytes(ORIGIN_BYTES), self.raft, self._send_to, patience)
        self.writer = world.worker("leveret-consensus")
        self.keeper = world.worker("leveret-snapshots")
        self.ready: Ready | None = None  # Whose write is under way,
        self.written = False  # or done.
        self.driving = False
        self.stopped = False
        self.snapshotting = False
        self.connected: dict[str, str] = {}  # Name and id of each member whose link is up.
        self.lost_at: dict[str, float] = {}
        self.membership: Membership | None = None  # That the links know of.
        self.leadership: tuple[str | None, int] = (None, 0)
        self.transfer_at = 0.0  # When a node of higher priority may be asked to lead.
        self.changes: list[tuple[int, int, asyncio.Future[None]]] = []  # Index and term of membership changes.
        self._ticker: asyncio.TimerHandle | None = None
        self._replay(recovered)
        self._update_members()

    def _replay(self, recovered: Recovered) -> None:
        """What is known to be agreed on, before anything is built on it."""
        if recovered.snapshot is not None:
            self.metadata.restore(recovered.snapshot.data)
        for entry in recovered.entries:
            if self.applied_index < entry.index <= recovered.commit:
                self.applied_index = entry.index
                if entry.kind is Kind.COMMAND:
                    self.proposals.on_entry(entry.index, entry.term, entry.data, self.metadata.apply)

    def start(self) -> None:
        """Begin to tick, and stand for election if there is nobody else."""
        if len(self.raft.membership.voters) == 1:
            self.raft.campaign()
        self._tick()

    def stop(self) -> None:
        self.stopped = True
        if self._ticker is not None:
            self._ticker.cancel()
        self.proposals.forget_all()
        self.writer.stop()
        self.keeper.stop()

    async def hand_over(self) -> None:
        """Before a controlled stop: let another lead, so that nobody has to notice by a broken link."""
        if not self.raft.is_leader:
            return
        voters = {member.id for member in self.raft.membership.voters}
        matches = {one.id: one.match for one in self.raft.followers()}
        heirs = [one for one in self.connected.values() if one in voters]
        if not heirs:
            return
        self.raft.transfer(max(heirs, key=lambda one: matches.get(one, 0)))
        self.drive()
        deadline = self.world.loop.time() + 1.0
        while self.raft.is_leader and not self.stopped and self.world.loop.time() < deadline:
            await asyncio.sleep(TICK_MS / 2000)

    @property
    def run(self) -> str:
        """The name of this run of the node."""
        return self.proposals.origin.hex()

    # -- Who is there ----------------------------------------------------------------------------------------------

    @property
    def leader(self) -> str | None:
        """The name of the node that leads, if it is known."""
        member = self.raft.membership.get(self.raft.leader) if self.raft.leader is not None else None
        return None if member is None else member.name

    @property
    def has_majority(self) -> bool:
        reachable = {self.me.id, *self.connected.values()}
        membership = self.raft.membership
        return membership.is_majority(sum(one in reachable for one in membership.voter_ids))

    @property
    def is_voter(self) -> bool:
        return self.me.id in self.raft.membership.voter_ids

    @property
    def cluster_id(self) -> bytes:
        """All zeros until it is known."""
        text = self.metadata.global_parameters.get(CLUSTER_ID)
        return bytes.fromhex(text.rpartition("-")[2]) if isinstance(text, str) else bytes(16)

    def members(self) -> list[MemberStatus]:
        membership = self.raft.membership
        return sorted(
            MemberStatus(
                one.name,
                one.id,
                one.address,
                one.id in membership.voter_ids,
                one.id == self.me.id or one.name in self.connected,
                one.id == self.raft.leader,
                one.priority,
            )
            for one in membership.members
        )

    def is_running(self, name: str) -> bool:
        return name in self.connected or name == self.me.name

    def is_member(self, name: str) -> bool:
        return any(one.name == name for one in self.raft.membership.members)

    def _update_members(self) -> None:
        membership = self.raft.membership
        if membership is self.membership or not membership.members:
            return
        self.membership = membership
        own = membership.get(self.me.id)
        if own is not None:
            self.me = own
        self.peers.set_members({one.name: address_of(one) for one in membership.members})

    def on_up(self, name: str, uuid: bytes) -> None:
        self.connected[name] = uuid.hex()
        self.lost_at.pop(name, None)
        if self.has_majority:
            self.raft.on_majority_linked()
        self.proposals.on_link_up(uuid.hex())
        self.drive()

    def on_down(self, name: str) -> None:
        member_id = self.connected.pop(name, None)
        if member_id is not None:
            self.lost_at[name] = self.world.loop.time()
            self.raft.on_link_lost(member_id)
            self.drive()

    # -- Commands --------------------------------------------------------------------------------------------------

    def propose(self, command: Command, then: Callable[[Applied], None], patient: bool = False) -> None:
        self.proposals.propose(command, then, patient)
        self.drive()

    async def change(self, command: Command) -> Applied:
        """Agree on a command; a refusal is in what is returned."""
        done: asyncio.Future[Applied] = self.world.loop.create_future()

        def then(applied: Applied) -> None:
            if not done.done():
                done.set_result(applied)

        self.propose(command, then)
        return await done

    async def catch_up(self, alone: bool) -> None:
        """Return when all is applied that was agreed on before now, and the queues of this node's last run are gone."""
        waited: asyncio.Future[None] = self.world.loop.create_future()

        def then(applied: Applied) -> None:
            if not waited.done():
                waited.set_result(None)

        self.propose(c.NodeStarted(self.settings.node_name, alone, self.run), then, patient=True)
        seconds = refusals = 0
        while True:
            done, _ = await asyncio.wait([waited], timeout=1.0)
            if done or self.stopped:
                return
            refusals = refusals + 1 if self._is_refused() else 0
            if refusals >= REFUSALS_MAX:
                raise AdminError(
                    "the other nodes no longer count this one as a member of their cluster: it was removed while it "
                    "was away. To have it join again, run: leveretctl reset, then join_cluster"
                )
            seconds += 1
            if seconds % 10 == 0:
                missing = sorted(one.name for one in self.members() if not one.running)
                logger.warning(
                    "waiting for a majority of the cluster: %s cannot be reached. If they will never return, stop "
                    "this node's app and see: leveretctl help force_boot",
                    ", ".join(missing) or "the leader",
                )

    def _is_refused(self) -> bool:
        """Whether all that can be reached, and a majority at that, say that this node is no member."""
        refusing = [name for name, text in self.peers.refused_by().items() if NOT_A_MEMBER in text]
        return not self.connected and self.raft.membership.is_majority(len(refusing))

    # -- Driving Raft ----------------------------------------------------------------------------------------------

    def on_frame(self, peer: str, kind: int, payload: bytes) -> None:
        """A frame of the consensus from another member."""
        if kind == RAFT:
            self.raft.step(decode_message(payload))
        else:
            self.proposals.on_frame(self.connected.get(peer, ""), kind, payload)
        self.drive()

    def _tick(self) -> None:
        self._ticker = self.world.loop.call_later(TICK_MS / 1000, self._tick)
        self.raft.tick()
        self.proposals.tick()
        if self.raft.is_leader:
            self._lead()
        self.drive()
        self.shell.on_cluster_tick()

    def _lead(self) -> None:
        """A leader's duties."""
        membership = self.raft.membership
        for learner in membership.learners:
            if learner.name in self.connected:
                self._try(Promote(learner.id))
                break
        now = self.world.loop.time()
        preferred = self.raft.preferred
        if preferred is not None and preferred in self.connected.values() and now >= self.transfer_at:
            # While it is tried nothing can be proposed, so one that cannot take over must not be asked all the time.
            self.transfer_at = now + TRANSFER_S
            self.raft.transfer(preferred)
        for name, since in list(self.lost_at.items()):
            if now - since >= LOST_S:
                del self.lost_at[name]
                self._give_up_transient(name)

    def _try(self, change: Change) -> None:
        try:
            self.raft.change(change)
        except (Refused, BadChange) as error:
            logger.debug("not now: %s", error)

    def _give_up_transient(self, name: str) -> None:
        queues = self.metadata.queues.values()
        if any(spec.node == name and (spec.exclusive or not spec.durable) for spec in queues):
            logger.info("node %s is gone: its exclusive and transient queues go too", name)
            self.proposals.propose(c.NodeStarted(name), lambda applied: None)

    def drive(self) -> None:
        """Do what has come of all input."""
        if self.driving:
            return  # From within: the loop below sees it.
        self.driving = True
        try:
            self._drive()
        except Exception as error:  # Something that was agreed on is half applied.
            logger.exception("driving the consensus failed")
            self._fail(f"driving the consensus failed: {error!r}")
        finally:
            self.driving = False
        self.peers.flush()

    def _drive(self) -> None:
        while not self.stopped:
            self._notice_leader()
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
        self._update_members()
        self.proposals.settle(self._counted())

    def _counted(self) -> list[str]:
        """Members whose copy of the metadata must be up to date before anyone is answered."""
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
        if self.raft.is_leader:  # Whoever was lost before may have been nobody's business.
            now = self.world.loop.time()
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
        self.writer.submit(lambda: job.perform(self.world.disk), lambda error: self._on_written(job, error))
        self.world.yield_to_writer()

    def _on_written(self, job: WriteBatch, error: Exception | None) -> None:
        if self.stopped:
            return
        if error is None:
            self.log.on_done(job)
            self.written = True
            self.drive()
        elif isinstance(error, OSError) and self.log.on_failed(job, error) == "retry":
            logger.error("no space left on the disk for the cluster's metadata: trying again (%s)", error)
            self.world.loop.call_later(RETRY_S, self._retry)
        else:
            self._fail(f"writing the cluster's metadata failed: {error}. The node stops")

    def _retry(self) -> None:
        if not self.stopped:
            self._write()

    def _fail(self, text: str) -> None:
        self.stopped = True
        self.shell.on_fatal(text)

    def _finish(self, ready: Ready) -> None:
        """All of it is on disk: say it, apply it."""
        if ready.snapshot is not None:
            self._restore(ready.snapshot)
        for message in ready.messages:
            self._send(message)
        for chunk in ready.chunks:
            self._send_chunk(chunk)
        for entry in ready.committed:
            if entry.index > self.applied_index:
                self._apply(entry)
        self.raft.advance(ready)
        self._settle_changes()
        if self.log.snapshot_due(self.applied_index) and not self.snapshotting:
            self._snapshot()

    def _apply(self, entry: Entry) -> None:
        self.applied_index = entry.index
        if entry.kind is Kind.COMMAND:
            self.proposals.on_entry(entry.index, entry.term, entry.data, self._apply_command)
        else:
            self.proposals.on_term(entry.term)

    def _apply_command(self, command: Command) -> Applied:
        applied = self.metadata.apply(command)
        self.shell.on_applied(applied)
        return applied

    def _restore(self, snapshot: Snapshot) -> None:
        """The leader sent its state, because this node was away for too long, or is new."""
        logger.info("metadata taken over from the leader, as of entry %d", snapshot.meta.index)
        before = self.metadata.frozen()
        self.metadata.restore(snapshot.data)
        self.applied_index = snapshot.meta.index
        self.proposals.on_snapshot(snapshot.meta.term)
        self.shell.on_replaced(events_between(before, self.metadata))

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

        self.keeper.submit(lambda: job.perform(self.world.disk), then)

    # -- Snapshots -------------------------------------------------------------------------------------------------

    def _snapshot(self) -> None:
        """Made in another thread: of a million bindings it takes a second."""
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
            self.keeper.submit(lambda: job.perform(self.world.disk), lambda error: self._on_snapshot(job, error))

        self.keeper.submit(lambda: made.append(frozen.snapshot()), on_made)

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

            self.keeper.submit(lambda: job.perform(self.world.disk), then)

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
        """As the leader. Raises `AdminError`, `NotLeader`."""
        deadline = self.world.loop.time() + self.settings.operation_timeout_ms / 1000
        while True:
            try:
                proposed = self.raft.change(change)
                break
            except BadChange as error:
                raise AdminError(str(error)) from None
            except Busy as error:
                if self.world.loop.time() > deadline or self.stopped:
                    raise TryAgain(f"not now: {error}") from None
                await asyncio.sleep(TICK_MS / 1000)
        done: asyncio.Future[None] = self.world.loop.create_future()
        self.changes.append((proposed.index, proposed.term, done))
        self.drive()
        finished, _ = await asyncio.wait([done], timeout=max(0.0, deadline - self.world.loop.time()))
        if not finished:
            done.cancel()
            raise TryAgain("no majority of the cluster's nodes agreed within the operation timeout")
        done.result()

    async def admit(self, member: Member) -> None:
        """As the leader: take a member in, or note that it has moved. Raises `AdminError`, `NotLeader`."""
        self._lead_or_raise()
        membership = self.raft.membership
        known = membership.get(member.id)
        if known is not None:
            if known.name != member.name:
                raise AdminError(f"this node is a member as {known.name}; see: leveretctl help rename_cluster_node")
            if known != member:
                await self.change_membership(Update(member))
            return
        namesake = next((one for one in membership.members if one.name == member.name), None)
        if namesake is not None:
            if namesake.id in membership.voter_ids:
                raise AdminError(
                    f"another incarnation of {member.name} is a member. If its data is gone for good, first run at "
                    f"another node: leveretctl forget_cluster_node {member.name}"
                )
            await self.change_membership(Remove(namesake.id))
        await self.change_membership(AddLearner(member))
        logger.info("node %s at %s joins the cluster", member.name, member.address)

    async def _expel(self, name: str, by_itself: bool) -> None:
        """As the leader."""
        member = self._lead_or_raise(name)
        if name in self.connected and not by_itself:
            raise AdminError(f"node {name} is running: stop it first, or run there: leveretctl stop_app, then reset")
        await self.change_membership(Remove(member.id))
        applied = await self.change(c.ForgetNode(name))
        if applied.refused is not None:
            raise AdminError(applied.refused.text)
        logger.info("node %s was removed from the cluster", name)

    def _lead_or_raise(self, name: str | None = None) -> Member:
        if not self.raft.is_leader:
            raise NotLeader(self.raft.leader)
        if name is None:
            return self.me
        member = next((one for one in self.raft.membership.members if one.name == name), None)
        if member is None:
            raise AdminError(f"node {name} is not a member of this cluster")
        return member

    async def forget(self, name: str) -> None:
        """Remove another node, for good, with the queues that only it has."""
        if name == self.me.name:
            raise AdminError(f"node {name} cannot forget itself: ask another node, or see: leveretctl help reset")
        await self._at_leader(LEAVE, {"name": name, "by_itself": False})

    async def leave(self) -> None:
        """Have the others remove this node."""
        if len(self.raft.membership.members) > 1:
            await self.hand_over()
            await self._at_leader(LEAVE, {"name": self.me.name, "by_itself": True})

    async def rename(self, old: str, new: str) -> None:
        """A node that is stopped will come back under another name."""
        await self._at_leader(RENAME, {"old": old, "new": new})

    async def _rename(self, old: str, new: str) -> None:
        member = self._lead_or_raise(old)
        if old in self.connected or old == self.me.name:
            raise AdminError(f"node {old} is running: stop it, rename it, then start it with --name {new}")
        if self.is_member(new):
            raise AdminError(f"there is a node {new} already")
        await self.change_membership(Update(member._replace(name=new)))
        applied = await self.change(c.RenameNode(old, new))
        if applied.refused is not None:
            raise AdminError(applied.refused.text)

    async def _at_leader(self, kind: int, request: dict[str, Any]) -> None:
        """Do something here, if this node leads, or have the leader do it."""
        deadline = self.world.loop.time() + self.settings.operation_timeout_ms / 1000
        while True:
            if self.raft.is_leader:
                answer = await self.answer(kind, request)
            else:
                answer = await self._ask_leader(kind, request)
            if "error" in answer:
                raise AdminError(str(answer["error"]))
            if answer.get("ok"):
                return
            if self.world.loop.time() > deadline:
                raise AdminError("the cluster has no leader: is a majority of its nodes running?")
            await asyncio.sleep(TICK_MS / 1000)

    async def _ask_leader(self, kind: int, request: dict[str, Any]) -> dict[str, Any]:
        leader = self.raft.membership.get(self.raft.leader) if self.raft.leader is not None else None
        if leader is None:
            return {}
        from leveret.node.wire import CallFailed

        try:
            data = await self.peers.call(split_address(leader.address), kind, json.dumps(request).encode(), 2 * CALL_S)
        except CallFailed as error:
            logger.info("asking %s, which leads, failed: %s", leader.name, error)
            return {}
        answer = json.loads(data)
        return answer if isinstance(answer, dict) else {}

    async def answer(self, kind: int, request: dict[str, Any]) -> dict[str, Any]:
        """Another node's request to the leader: {"ok": …}, {"error": text}, or {"leader": address | None}."""
        try:
            if kind == JOIN:
                name, address = str(request["name"]), str(request["address"])
                await self.admit(Member(str(request["uuid"]), name, address, int(request["priority"])))
                members = [{"name": one.name, "uuid": one.uuid, "address": one.address} for one in self.members()]
                return {"ok": {"cluster": self.cluster_id.hex(), "members": members}}
            if kind == LEAVE:
                await self._expel(str(request["name"]), bool(request["by_itself"]))
            elif kind == RENAME:
                await self._rename(str(request["old"]), str(request["new"]))
            return {"ok": True}
        except NotLeader:
            leader = self.raft.membership.get(self.raft.leader) if self.raft.leader is not None else None
            return {"leader": None if leader is None else leader.address}
        except TryAgain as error:  # Whoever wants to join asks until it is let in.
            return {} if kind == JOIN else {"error": str(error)}
        except AdminError as error:
            return {"error": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"a request that makes no sense: {error!r}"}


CONSENSUS_FRAMES: Final = frozenset({RAFT, *range(FORWARD, FORWARD + 4)})


def address_of(member: Member) -> Address:
    host, port = split_address(member.address)
    return Address(host, port, bytes.fromhex(member.id))


def split_address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

