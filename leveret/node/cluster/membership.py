"""This node as a member of its cluster: the list of members, and joining, leaving and renaming of nodes.

Beyond Raft's own, a leader has these duties, done in each tick: it makes a learner that has caught up a voter; it hands
the leadership to a voter of higher priority; it goes on with the renaming of nodes (`leveret.metadata.model.renaming`);
and when a node has been down for `LOST_S`, it deletes that node's exclusive and transient queues, and declares the
connections of its MQTT clients lost. The delay is there so that a node that only lost a link for a moment keeps them.

**Partial partitions.** A leader that cannot reach a node is no proof that nobody can. Nodes tell each other whom they
are in contact with (`broker.mirrors.ha_rules`), and the leader heeds it three times. A node that another one sees keeps
its exclusive and transient queues, since its clients use them, and is not forgotten, since it lives. And if a voter
sees more of the voters than the leader does, for `BETTER_S`, it gets the leadership: a node without a way to the leader
would learn nothing of what is agreed on, however many others it sees. So does any other voter, if the leader is paused.

Joining, leaving and renaming are done by the leader. Another node that is asked names the leader.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.links.frame_types import JOIN, LEAVE, RENAME, REST, SIGNS_OF_LIFE
from leveret.metadata.model import commands as c
from leveret.metadata.model.maintenance_mark import MAINTENANCE, out_of_service
from leveret.metadata.model.queue_location import has_queues
from leveret.metadata.model.renaming import RENAMING, Renaming, renamings
from leveret.metadata.model.witnesses import WITNESS, witness_names
from leveret.metadata.rules.global_parameters import CLUSTER_ID, parse_cluster_id
from leveret.metadata.rules.partition_handling import ContactCounts
from leveret.metadata.rules.placement import LABELS
from leveret.metadata.store import Applied
from leveret.node.cluster.bulk_delete import forget_node
from leveret.node.cluster.consensus import AdminError, Consensus, TryAgain, split_address
from leveret.node.cluster.two_nodes import TwoNodes
from leveret.node.sockets.peer_links import NOT_A_MEMBER
from leveret.node.system.data_folder import UNKNOWN_ID
from leveret.node.system.json_answers import read_object
from leveret.raft import AddLearner, BadChange, Change, Member, NotLeader, Promote, Refused, Remove, Replace, Update

if TYPE_CHECKING:
    from leveret.metadata.store import Metadata
    from leveret.node.cluster.consensus import ConsensusNode
    from leveret.node.cluster.consensus_log import ConsensusLog, Recovered
    from leveret.node.config.settings import Settings
    from leveret.node.sockets.peer_links import PeerLinks
    from leveret.node.system.environment import Environment

logger = logging.getLogger("leveret.cluster")

LOST_S: Final = 1.0
BETTER_S: Final = 1.0
TRANSFER_S: Final = 10.0
HAND_OVER_S: Final = 1.0
RETRY_S: Final = 0.5
REFUSALS_MAX: Final = 5  # Seconds in which a node that starts is turned away by the majority.
CALL_S: Final = 5.0
QUEUE_S: Final = 0.003  # What each queue adds to that when a node leaves: see `bulk_delete`.


class MemberStatus(NamedTuple):
    name: str
    uuid: str
    address: str
    voter: bool
    running: bool
    leader: bool
    priority: int


class Cluster:
    """One member of a cluster. Its part in the consensus is `consensus`."""

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
    ) -> None:
        self.settings = settings
        self.environment = environment
        self.peers = peers
        self.metadata = metadata
        self.node = node
        self.consensus = Consensus(settings, environment, peers, me, log, recovered, metadata, node, self)
        self.raft = self.consensus.raft
        self.connected = self.consensus.connected
        self.transfer_at = 0.0  # When another node may be asked to lead.
        self.renaming: set[str] = set()  # Old names of nodes for whose renaming a command is on its way.
        self.bettered_at: float | None = None  # Since when another voter should lead instead: see `_successor`.
        self.contacts = ContactCounts()
        self.two_nodes = TwoNodes(self)
        self.consensus.proposals.advice = self.two_nodes.advice

    def start(self) -> None:
        self.consensus.start()

    def on_up(self, name: str, uuid: bytes) -> None:
        self.consensus.on_up(name, uuid)
        self.two_nodes.on_up(name)

    def on_down(self, name: str) -> None:
        self.consensus.on_down(name)

    def on_frame(self, peer: str, kind: int, payload: bytes) -> None:
        if kind == SIGNS_OF_LIFE:
            self.two_nodes.on_signs(peer, payload)
        else:
            self.consensus.on_frame(peer, kind, payload)

    def stop(self) -> None:
        self.consensus.stop()
        self.two_nodes.stop()

    def before_tick(self) -> None:
        self.two_nodes.tick()

    async def hand_over(self) -> None:
        """Hands the leadership over before a controlled stop, so that no node has to wait for the broken link."""
        if not self.raft.is_leader:
            return
        voters = {member.id for member in self.raft.membership.voters}
        matches = {one.id: one.match for one in self.raft.followers()}
        away = out_of_service(self.metadata) | witness_names(self.metadata)
        heirs = {one: name not in away for name, one in self.connected.items() if one in voters}
        if not heirs:
            return
        self.raft.transfer(max(heirs, key=lambda one: (heirs[one], matches.get(one, 0))))
        self.consensus.drive()
        # Waits until the new leader is known: only then can commands that this node proposes be committed. If all the
        # others have stopped, too, nobody will lead.
        await self.until(
            lambda: self.raft.leader not in (None, self.me.id) or voters.isdisjoint(self.connected.values()),
            HAND_OVER_S,
        )

    # -- What the consensus knows and does -------------------------------------------------------------------------

    @property
    def me(self) -> Member:
        """This member, as the newest membership has it."""
        return self.consensus.me

    @property
    def run(self) -> str:
        """The name of this run of the node."""
        return self.consensus.run

    @property
    def stopped(self) -> bool:
        return self.consensus.stopped

    @property
    def leader(self) -> str | None:
        """The name of the node that leads, if it is known."""
        return self.consensus.leader

    @property
    def leadership(self) -> tuple[str | None, int]:
        """The id of the leader, if it is known, and the term."""
        return self.consensus.leadership

    @property
    def commit_latency_s(self) -> float:
        return self.consensus.commit_latency_s

    @property
    def applied_index(self) -> int:
        return self.consensus.applied_index

    @property
    def has_majority(self) -> bool:
        return self.consensus.has_majority

    @property
    def has_clients(self) -> bool:
        return self.node.has_clients()

    def propose(self, command: c.Command, then: Callable[[Applied], None], patient: bool = False) -> None:
        self.consensus.propose(command, then, patient)

    async def change(self, command: c.Command) -> Applied:
        """Proposes a command and waits until it is applied. A refusal is in the result."""
        return await self.consensus.change(command)

    async def change_membership(self, change: Change) -> None:
        """Changes the membership, as the leader, and waits until it is committed. Raises `AdminError`, `NotLeader`."""
        await self.consensus.change_membership(change)

    async def until(self, condition: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits until a condition holds. Returns False if it does not after so many seconds, or the node stops."""
        return await self.consensus.until(condition, seconds)

    # -- Members ---------------------------------------------------------------------------------------------------

    @property
    def is_voter(self) -> bool:
        return self.me.id in self.raft.membership.voter_ids

    @property
    def cluster_id(self) -> bytes:
        """The id of the cluster; all zeros until it is known."""
        return parse_cluster_id(self.metadata.global_parameters.get(CLUSTER_ID)) or bytes(16)

    def members(self) -> list[MemberStatus]:
        """Returns the nodes, without the witnesses."""
        apart = witness_names(self.metadata)
        return [one for one in self.everybody() if one.name not in apart]

    def attending(self) -> list[MemberStatus]:
        """Returns the witnesses."""
        apart = witness_names(self.metadata)
        return [one for one in self.everybody() if one.name in apart]

    def everybody(self) -> list[MemberStatus]:
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

    async def catch_up(self, alone: bool) -> None:
        """Waits until all is applied that was committed before now, and the exclusive and transient queues of this
        node's last run are gone."""
        waited: asyncio.Future[None] = self.environment.loop.create_future()

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
                    f"was away. To have it join again, move its data folder {self.settings.data_dir} away, and start "
                    "it with --join and the address of one of them"
                )
            if self.raft.has_forgotten:
                raise AdminError(
                    f"the data folder {self.settings.data_dir} is of an earlier time: this node has told the others "
                    "that it has stored metadata which is not there any more. It must not vote with less than it has "
                    f"promised. Run at another node: leveretctl forget_cluster_node {self.settings.node_name}. Then "
                    "move the folder away, and start this node with --join and the address of one of them"
                )
            seconds += 1
            if seconds % 10 == 0:
                logger.warning("%s", self.why_waiting())

    def why_waiting(self) -> str:
        """Returns a text for operators: which nodes a starting node waits for, and what to do if they never return."""
        membership = self.raft.membership
        voters = sorted(one.name for one in membership.voters if not self.is_running(one.name))
        if voters and not self.is_voter and self.me.id in membership.ids:
            # This node was stopped while the other went on alone, and does not have what was committed since.
            return (
                f"this node is not a voter: when it stopped, {', '.join(voters)} went on without it, and has what was "
                "agreed on since. Start that node. If it will never return, stop this node's app and see: leveretctl "
                f"help force_boot; what only that node has is lost then{self.doubt_of_members()}"
            )
        missing = sorted(one.name for one in self.everybody() if not one.running)
        return (
            f"waiting for a majority of the cluster: {', '.join(missing) or 'the leader'} cannot be reached. If they "
            f"will never return, stop this node's app and see: leveretctl help force_boot{self.doubt_of_members()}"
        )

    def doubt_of_members(self) -> str:
        """Returns a sentence for operators who are about to let this node go on without others: it may have missed that
        nodes joined. A node that was removed, and does not know that, looks the same from here."""
        strangers = self.peers.turned_away()
        if not strangers:
            return ""
        return (
            f". But these nodes take this one for a member, and are not known here: {', '.join(strangers)}. If they "
            "joined while it was away, they have what was agreed on since, and it must not go on without them"
        )

    @property
    def is_expelled(self) -> bool:
        return self._is_refused()

    def _is_refused(self) -> bool:
        """Returns whether this node was removed from the cluster: it has no link, and a majority of the voters, or all
        other voters, refuse it as no member."""
        refusing = [name for name, text in self.peers.refused_by().items() if NOT_A_MEMBER in text]
        membership = self.raft.membership
        others = [one for one in membership.voters if one.id != self.me.id]
        return not self.connected and (membership.is_majority(len(refusing)) or 0 < len(others) <= len(refusing))

    def lead(self) -> None:
        """Does the duties of a leader."""
        membership = self.raft.membership
        for learner in membership.learners:
            if learner.name in self.connected and learner.id not in self.two_nodes.resting:
                self._try(Promote(learner.id))
                break
        now = self.environment.loop.time()
        successor = self._successor(now)
        if successor is not None and now >= self.transfer_at:
            # During a transfer nothing can be proposed, so a node that cannot take over must not be asked all the time.
            self.transfer_at = now + TRANSFER_S
            self.raft.transfer(successor)
        for name, since in list(self.consensus.lost_at.items()):
            if now - since >= LOST_S and not self.node.witnesses(name):
                self.consensus.give_up(name)
                self._give_up_transient(name)
        for renaming in renamings(self.metadata):
            self._go_on_renaming(renaming)

    def _successor(self, now: float) -> str | None:
        """Returns the id of the voter that should lead instead of this one: it reaches more voters, or has a higher
        priority, or this node is paused or in maintenance."""
        voters = {member.name: member.id for member in self.raft.membership.voters}
        contacts, is_paused = self.node.contacts(), self.node.is_paused
        away = out_of_service(self.metadata)
        away |= witness_names(self.metadata)
        able = [name for name in self.connected if name in voters and not is_paused(name) and name not in away]
        counts = self.contacts.count(voters, able, contacts)
        own = sum(name in self.connected or name == self.me.name for name in voters)
        best = max(counts, key=lambda name: (counts[name], name), default=None)
        if best is not None and (counts[best] > own or is_paused(self.me.name) or self.me.name in away):
            self.bettered_at = now if self.bettered_at is None else self.bettered_at
            return voters[best] if now - self.bettered_at >= BETTER_S else None
        self.bettered_at = None
        preferred = self.raft.preferred
        name = next((one for one in able if voters[one] == preferred), None)
        return preferred if name is not None and counts.get(name, own) >= own else None

    def _try(self, change: Change) -> None:
        try:
            self.raft.change(change)
        except (Refused, BadChange) as error:
            logger.debug("not now: %s", error)

    def _give_up_transient(self, name: str) -> None:
        metadata = self.metadata
        loses_queues = any(
            spec.node == name and (spec.exclusive or not spec.durable) for spec in metadata.queues.values()
        )
        loses_clients = any(one.node == name for one in (*metadata.sessions, *metadata.leaving.values()))
        if loses_queues or loses_clients:
            logger.info("node %s is down: its exclusive and transient queues are deleted", name)
            self.consensus.proposals.propose(c.NodeStarted(name), lambda applied: None)

    # -- Membership ------------------------------------------------------------------------------------------------

    async def admit(self, member: Member, replaces: str | None = None, witness: bool = False) -> None:
        """Adds a member, or updates its address; only the leader can. `replaces`: the id that the same node had before
        its metadata was damaged, and in whose place it joins (see `repair`). Raises `AdminError`, `NotLeader`."""
        self._lead_or_raise()
        if any(member.id == one.id or member.name in one[:2] for one in renamings(self.metadata)):
            raise TryAgain(f"a node is being renamed: {member.name}")
        membership = self.raft.membership
        known = membership.get(member.id)
        if known is not None:
            if known.name != member.name:
                raise AdminError(f"this node is a member as {known.name}; see: leveretctl help rename_cluster_node")
            if known != member:
                await self.change_membership(Update(member))
            return
        namesake = next((one for one in membership.members if one.name == member.name), None)
        if replaces is not None:
            await self.change_membership(Replace(self._former(member.name, namesake, replaces), member))
            logger.info("node %s at %s replaces its former incarnation", member.name, member.address)
            return
        if namesake is not None:
            if namesake.id in membership.voter_ids:
                raise AdminError(
                    f"another incarnation of {member.name} is a member. If its data is gone for good, first run at "
                    f"another node: leveretctl forget_cluster_node {member.name}"
                )
            await self.change_membership(Remove(namesake.id))
        await self._note_kind(member.name, witness)
        await self.change_membership(AddLearner(member))
        logger.info("node %s at %s joins the cluster", member.name, member.address)

    async def _note_kind(self, name: str, witness: bool) -> None:
        """Records whether a node is a witness, before it becomes a member."""
        is_noted = name in witness_names(self.metadata)
        if witness == is_noted:
            return
        if witness and has_queues(self.metadata, name):
            raise AdminError(f"{name} has queues in this cluster: a witness needs another name")
        command = c.SetGlobalParameter(WITNESS + name, True) if witness else c.ClearGlobalParameter(WITNESS + name)
        applied = await self.change(command)
        if applied.refused is not None:
            raise TryAgain(applied.refused.text)

    def _former(self, name: str, namesake: Member | None, replaces: str) -> str:
        """Returns the id of the member that a node wants to replace, if that member exists and is down. Raises
        `AdminError`."""
        if namesake is None or replaces not in (UNKNOWN_ID, namesake.id):
            raise AdminError(
                f"this cluster has no member {name} whose place this node could take: it was removed, or replaced, or "
                "this is another cluster. Move its folders log and metadata away, and let it join as a new node"
            )
        if name in self.connected or self.node.witnesses(name):
            raise TryAgain(f"node {name} is still taken to be running")
        return namesake.id

    async def _expel(self, name: str, by_itself: bool) -> None:
        """Removes a node from the cluster, with its queues; only the leader can. If the leader dies between the two
        steps, the node is no member any more and its queues are still there: forgetting it again deletes them."""
        self._lead_or_raise()
        member = self._member(name)
        if member is None and not has_queues(self.metadata, name):
            raise AdminError(f"node {name} is not a member of this cluster")
        if name in self.connected and not by_itself:
            raise AdminError(f"node {name} is running: stop it first, or run there: leveretctl stop_app, then reset")
        if (witnesses := self.node.witnesses(name)) and not by_itself:
            raise AdminError(
                f"node {name} is running: {self.me.name}, which leads, cannot reach it, but {', '.join(witnesses)} can"
            )
        if member is not None:
            await self.change_membership(Remove(member.id))
        applied = await forget_node(self, self.metadata, name)
        if applied.refused is not None:
            raise AdminError(applied.refused.text)
        await self._drop_labels(name)
        logger.info("node %s was removed from the cluster", name)

    async def _drop_labels(self, name: str) -> None:
        """Deletes the global parameters of a node that was removed."""
        for parameter in self._labels(name):
            await self.change(c.ClearGlobalParameter(parameter))

    def _labels(self, name: str) -> list[str]:
        return [one + name for one in (LABELS, MAINTENANCE, WITNESS) if one + name in self.metadata.global_parameters]

    def _lead_or_raise(self, name: str | None = None) -> Member:
        if not self.raft.is_leader:
            raise NotLeader(self.raft.leader)
        if name is None:
            return self.me
        member = self._member(name)
        if member is None:
            raise AdminError(f"node {name} is not a member of this cluster")
        return member

    def _member(self, name: str) -> Member | None:
        return next((one for one in self.raft.membership.members if one.name == name), None)

    async def forget(self, name: str) -> None:
        """Removes another node, for good, with the queues that only it has."""
        if name == self.me.name:
            raise AdminError(f"node {name} cannot forget itself: ask another node, or see: leveretctl help reset")
        await self.at_leader(LEAVE, {"name": name, "by_itself": False})

    async def leave(self) -> None:
        """Asks the leader to remove this node, after handing the leadership over."""
        if len(self.raft.membership.members) > 1:
            await self.hand_over()
            await self.at_leader(LEAVE, {"name": self.me.name, "by_itself": True})

    async def rename(self, old: str, new: str) -> None:
        """Renames a node that is stopped, and will be started under the new name."""
        member = self._member(old)
        try:
            await self.at_leader(RENAME, {"old": old, "new": new})
        except AdminError:
            # The renaming may be done although the leader's answer was lost.
            if member is None or not self._is_renamed(member.id, new):
                raise

    def _is_renamed(self, member_id: str, new: str) -> bool:
        member = self.raft.membership.get(member_id)
        is_done = not any(one.id == member_id for one in renamings(self.metadata))
        return is_done and member is not None and member.name == new

    async def _rename(self, old: str, new: str) -> None:
        """Records that a node is to be renamed, as the leader, and waits until its duties (`lead`) have done it."""
        self._lead_or_raise()
        renaming = next((one for one in renamings(self.metadata) if one[:2] == (old, new)), None)
        if renaming is None:
            renaming = Renaming(old, new, self._lead_or_raise(old).id)
            if old == self.me.name or self._is_seen(old):
                raise AdminError(f"node {old} is running: stop it, rename it, then start it with --name {new}")
            if old in witness_names(self.metadata):
                raise AdminError(f"{old} is a witness: forget it, and let one of the new name join")
            if self.is_member(new) or any(new in one[:2] or old in one[:2] for one in renamings(self.metadata)):
                raise AdminError(f"there is a node {new} already, or one of them is being renamed")
            applied = await self.change(c.SetGlobalParameter(RENAMING + old, renaming.to_json()))
            if applied.refused is not None:
                raise AdminError(applied.refused.text)
        id_, seconds = renaming.id, self.settings.operation_timeout_ms / 1000
        if not await self.until(lambda: not any(one.id == id_ for one in renamings(self.metadata)), seconds):
            raise TryAgain("no majority of the cluster's nodes agreed within the operation timeout; it is tried again")
        if not self._is_renamed(id_, new):
            raise AdminError(f"node {old} was started, or is no member any more, or there is a node {new} by now")

    def _is_seen(self, name: str) -> bool:
        return name in self.connected or bool(self.node.witnesses(name))

    def _go_on_renaming(self, renaming: Renaming) -> None:
        """Takes the next step of a renaming. A step is proposed only after the one it depends on is committed: an entry
        that a leader has only written can be lost with that leader, while a later command might still be applied."""
        old, new, id_ = renaming
        latest, agreed = self.raft.membership.get(id_), self.raft.log.agreed.membership.get(id_)
        if old in self.renaming or latest != agreed:
            return
        if agreed is not None and agreed.name == new:
            # The labels of the old name are deleted: the node sets them again under its new name.
            ends = [*self._labels(old), RENAMING + old]
            self._propose_in_turn(old, [c.RenameNode(old, new), *map(c.ClearGlobalParameter, ends)])
        elif agreed is None or self._is_seen(old) or self.is_member(new):
            self._propose_in_turn(old, [c.ClearGlobalParameter(RENAMING + old)])
        else:
            self._try(Update(agreed._replace(name=new)))

    def _propose_in_turn(self, old: str, commands: list[c.Command]) -> None:
        """Proposes commands one after the other, each when the one before is applied. If one is refused, the rest are
        dropped, and the next tick begins again."""
        self.renaming.add(old)

        def then(applied: Applied) -> None:
            self.renaming.discard(old)
            if applied.refused is None and commands[1:]:
                self._propose_in_turn(old, commands[1:])

        self.consensus.proposals.propose(commands[0], then)

    async def at_leader(self, kind: int, request: dict[str, Any]) -> None:
        """Handles a request here, if this node leads, or sends it to the leader. Raises `AdminError`."""
        more_s = QUEUE_S * len(self.metadata.queues) if kind == LEAVE else 0.0
        deadline = self.environment.loop.time() + self.settings.operation_timeout_ms / 1000 + more_s
        while True:
            if self.raft.is_leader:
                answer = await self.answer(kind, request)
            else:
                answer = await self._ask_leader(kind, request, 2 * CALL_S + more_s)
            if "error" in answer:
                raise AdminError(str(answer["error"]))
            if answer.get("ok"):
                return
            if self.stopped:  # A stopped consensus will not learn of a leader again.
                raise AdminError("this node is stopping")
            left = deadline - self.environment.loop.time()
            if not await self.consensus.until_changed(lambda: self.leadership, min(left, RETRY_S)) and left <= 0:
                raise AdminError("the cluster has no leader: is a majority of its nodes running?")

    async def _ask_leader(self, kind: int, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        leader = self.raft.membership.get(self.raft.leader) if self.raft.leader is not None else None
        if leader is None:
            return {}
        from leveret.node.sockets.peer_socket import CallFailed

        try:
            data = await self.peers.call(split_address(leader.address), kind, json.dumps(request).encode(), seconds)
        except CallFailed as error:
            logger.info("the leader, %s, cannot be asked: %s", leader.name, error)
            return {}
        try:
            return read_object(data)
        except ValueError as error:
            logger.warning("the answer of the leader, %s, cannot be read: %s", leader.name, error)
            return {}

    async def answer(self, kind: int, request: dict[str, Any]) -> dict[str, Any]:
        """Handles a request to the leader, and returns {"ok": …}, {"error": text}, or {"leader": address | None}."""
        try:
            if kind == JOIN:
                name, address = str(request["name"]), str(request["address"])
                member = Member(str(request["uuid"]), name, address, int(request["priority"]))
                replaces = None if "replaces" not in request else str(request["replaces"])
                await self.admit(member, replaces, request.get("witness") is True)
                members = [{"name": one.name, "uuid": one.uuid, "address": one.address} for one in self.everybody()]
                return {"ok": {"cluster": self.cluster_id.hex(), "members": members}}
            if kind == LEAVE:
                await self._expel(str(request["name"]), bool(request["by_itself"]))
            elif kind == REST:
                await self.two_nodes.let_rest(str(request["name"]))
            elif kind == RENAME:
                await self._rename(str(request["old"]), str(request["new"]))
            return {"ok": True}
        except NotLeader:
            leader = self.raft.membership.get(self.raft.leader) if self.raft.leader is not None else None
            return {"leader": None if leader is None else leader.address}
        except TryAgain as error:  # A node that wants to join asks again until it is let in.
            return {} if kind == JOIN else {"error": str(error)}
        except AdminError as error:
            return {"error": str(error)}
        except (KeyError, TypeError, ValueError) as error:
            return {"error": f"a request that makes no sense: {error!r}"}
