"""A cluster of two nodes: how one goes on when the other is down.

A majority of two is two. With three nodes or more, the nodes that are left after a loss are a majority, and nothing of
this module is used. Of two voters the one that is left becomes the only voter, until the other is back, in these cases:

**Controlled stop.** Before it stops, a node asks the leader to make it a learner (`REST`), and waits until it has that
in its own log. So it knows at its next start that it has no vote, and waits for the other one. If both stop at the same
time, the one that leads then makes the other a learner, and is the one that goes on alone at the next start.

**The leader is left.** It makes the other one a learner as soon as the link is lost, or nothing was heard for the
election timeout, and needs no proof: see "Two voters" in `leveret.raft.core`. The other one, if it still runs, pauses.
It cannot be elected without the leader's vote.

**The follower is left, and can prove that the leader is dead.** On one machine the lock of the other's data folder is
proof: the kernel gives it to this process only when the other one has ended. While this process has the lock, the other
cannot start; meanwhile it reads the other's log, to see that the other has not gone on alone before it died, and takes
over the entries that log has beyond its own. It releases the lock when the new membership is on its own disk. Nodes
tell each other where their lock is when they link (`SIGNS_OF_LIFE`), and a lock counts only if it was seen to be held
while its node was known to run: a lock that can be seen in that way is on the same machine and in the same file system,
whatever containers are between.

**The follower is left, and nobody listens at the leader's cluster port.** That the host refuses connections there
proves that the process has ended, *if* it is the host that answers and not something in between (a firewall that
rejects, a proxy, a published port of a container). Only an operator knows: `cluster.refused_connection_is_proof`. It
does not show what the other one committed before it ended. So it is proof only for two reasons: a leader that was told,
by the same frame, that the other one trusts refusals does not go on without proof of its own; and this node has caught
up since it was started, is a voter by an entry that is committed, and listened all the time, so nothing can have been
committed without it.

**None of these.** The node waits, as `leveret.metadata.rules.partition_handling` says, tells what it waits for
(`waiting_for`), and goes on when the other one is back, or an operator says so (`go_on_alone`). That removes the other
one from the cluster, as `force_boot` does: nobody knows what it has committed meanwhile, and its log must not be mixed
with this one's.

A node that may soon have a proof does not pause for a moment (`HOPE_S`): see `is_hopeful`. Meanwhile it confirms
nothing and delivers nothing.

A node that was made a learner becomes a voter again like any node that joins: when it is back and has caught up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from leveret.links.frame_types import REST, SIGNS_OF_LIFE
from leveret.links.proposals import WAIT, BadFrame
from leveret.metadata.model.witnesses import witness_names
from leveret.node.cluster.consensus import AdminError
from leveret.node.cluster.consensus_log import ConsensusLog, read_identity
from leveret.node.system.data_folder import METADATA, Place
from leveret.raft import Demote, Member, NotLeader, Refused, Remains

if TYPE_CHECKING:
    from leveret.node.cluster.membership import Cluster
    from leveret.node.system.environment import Inherited
    from leveret.storage.segments.disk import Disk

logger = logging.getLogger("leveret.cluster")

HOPE_S: Final = 1.0
# A process that ends closes its connections, so a node that is silent hardly ever turns out to be dead. Clients have
# waited for `net_ticktime` already by then, and must have an answer a second later.
HOPE_IN_SILENCE_S: Final = 0.25
REST_S: Final = 3.0  # How long a node that stops waits to be made a learner.
ASKED_S: Final = 0.5  # How long such a node, if it leads, waits to be asked by the other one, before it hands over.
SIGNS_BYTES_MAX: Final = 8_192


class TwoNodes:
    """Decides whether one of two nodes goes on without the other."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.has_served = False  # This node has caught up since it was started.
        self.lost_at: dict[str, float] = {}  # When the link was lost, by the member's id.
        self.silent: set[str] = set()  # Ids of those whose link was lost because nothing was heard.
        # Both are what a member said in the present session, or in the last one, by its id.
        self.trusts: dict[str, bool] = {}  # Whether it takes a refused connection for a proof.
        self.places: dict[str, Place] = {}  # Where the lock of its data folder was seen to be held.
        self.taken: Inherited | None = None  # The data folder of the dead node, while it is locked here.
        self.is_succeeding = False  # The folder is unlocked once it is on this node's disk that it is the only voter.
        self.resting: set[str] = set()  # Ids of learners that are about to stop, and must not become voters again now.
        self.doubt = ""  # Why this node does not go on although the other one is proved dead.
        self.last_other: Member | None = None
        self.has_said = False  # The log says that this node waits for the other one.

    # -- The other node ------------------------------------------------------------------------------------------

    @property
    def other(self) -> Member | None:
        """The other voter, if there are two and this node is one of them."""
        voters = self.cluster.raft.membership.voters
        if len(voters) != 2 or not self.cluster.is_voter:
            return None
        return voters[1] if voters[0].id == self.cluster.me.id else voters[0]

    @property
    def is_pair(self) -> bool:
        """True if the cluster has two nodes, and no witness."""
        return len(self.cluster.raft.membership.members) == 2 and not witness_names(self.cluster.metadata)

    @property
    def missing(self) -> Member | None:
        """The other voter of two, if there is no link to it."""
        other = self.other
        is_linked = other is not None and other.id not in self.lost_at and other.name in self.cluster.connected
        return None if is_linked else other

    def is_hopeful(self) -> bool:
        """Returns whether the other one was lost a moment ago, and this node may prove that it is dead."""
        missing = self.missing
        if missing is None or missing.id not in self.lost_at or self.doubt:
            return False
        can_know = missing.id in self.places or (self.cluster.settings.trusts_refusals and self.has_served)
        hope_s = HOPE_IN_SILENCE_S if missing.id in self.silent else HOPE_S
        return can_know and self.cluster.environment.loop.time() - self.lost_at[missing.id] < hope_s

    def waiting_for(self) -> dict[str, Any] | None:
        """Returns, for operators, which nodes this one needs to go on, and what to do if they do not return; None if it
        has a majority."""
        cluster, missing = self.cluster, self.missing
        if cluster.consensus.has_majority_without("" if missing is None else missing.name):
            return None
        names = sorted(one.name for one in cluster.raft.membership.voters if not cluster.is_running(one.name))
        told: dict[str, Any] = {"nodes": names, "command": None, "cost": None, "doubt": self.doubt or None}
        if missing is not None:
            told["nodes"] = names = [missing.name]
            told["command"] = f"leveretctl -n {cluster.me.name} go_on_alone"
            told["cost"] = (
                f"{names[0]} is removed from the cluster. If it runs still, or ran on after this node lost it, then "
                "what it confirmed since is not here; and it must be reset before it can join again"
                f"{cluster.doubt_of_members()}"
            )
        return told

    def advice(self) -> str:
        """Returns a text for a client that is refused for lack of a majority, short enough for AMQP's reply-text."""
        return self._how_to_go_on() or WAIT

    def closing_text(self, text: str) -> str:
        """Returns the text with which connections are closed when this node pauses: `text`, and what to do."""
        advice = self._how_to_go_on()
        return text if advice is None else f"{text}. {advice}"

    def _how_to_go_on(self) -> str | None:
        waiting = self.waiting_for()
        if waiting is None or waiting["command"] is None:
            return None
        return f"To go on without {waiting['nodes'][0]}: {waiting['command']}; what that costs: cluster_status"

    def say(self) -> None:
        """Logs once which node this one waits for, and what to do if that one does not return."""
        waiting = self.waiting_for()
        if self.has_said or waiting is None or waiting["command"] is None:
            return
        self.has_said = True
        logger.warning(
            "This node waits for %s. If that node has ended and will not return, go on without it by: %s (%s)",
            ", ".join(waiting["nodes"]), waiting["command"], waiting["cost"],
        )  # fmt: skip

    # -- Links ---------------------------------------------------------------------------------------------------

    def on_up(self, name: str) -> None:
        cluster = self.cluster
        member_id = cluster.connected[name]
        self.lost_at.pop(member_id, None)
        self.silent.discard(member_id)
        self.resting.discard(member_id)
        self.doubt = ""
        self.has_said = False
        for told in (self.trusts, self.places):
            told.pop(member_id, None)
        self._spare()
        place = cluster.environment.place()
        signs = {"place": None if place is None else list(place), "trusts": cluster.settings.trusts_refusals}
        cluster.peers.send(name, SIGNS_OF_LIFE, json.dumps(signs).encode())

    def on_signs(self, name: str, payload: bytes) -> None:
        """Handles SIGNS_OF_LIFE. Raises `BadFrame`."""
        member_id = self.cluster.connected.get(name)
        if member_id is None:
            return
        trusts, place = _read_signs(payload)
        known = self.cluster.raft.membership.ids
        for told in (self.trusts, self.places):
            for gone in [one for one in told if one not in known]:
                del told[gone]
        self.trusts[member_id] = trusts
        if place is not None and self.cluster.environment.is_held(place):
            self.places[member_id] = place
        self._spare()

    def _spare(self) -> None:
        self.cluster.raft.dismissable = frozenset(one for one, trusts in self.trusts.items() if not trusts)

    def on_losing(self, name: str, is_silent: bool = False) -> None:
        """Called when a link is lost, before the consensus and the broker learn of it. `is_silent`: it was not closed,
        but nothing was heard."""
        member_id = self.cluster.connected.get(name)
        if member_id is not None:
            self.resting.discard(member_id)
            self.lost_at[member_id] = self.cluster.environment.loop.time()
            if is_silent:
                self.silent.add(member_id)
            self._dismiss(name, member_id)

    def _dismiss(self, name: str, member_id: str) -> None:
        if self.cluster.raft.dismiss(member_id):
            logger.warning("node %s is lost: this node is the leader, and goes on alone", name)

    def tick(self) -> None:
        cluster = self.cluster
        raft = cluster.raft
        is_under_way = raft.is_succeeding or (raft.is_leader and not raft.log.is_membership_committed)
        if self.is_succeeding and not is_under_way:
            self._give_back()
        self._tell()
        missing = self.missing
        if missing is None:
            return
        self._dismiss(missing.name, missing.id)
        if self.has_served and not self.is_hopeful():
            self.say()
        place = self.places.get(missing.id)
        if place is not None and self.taken is None and self.missing is not None:
            self.taken = cluster.environment.take(place)
            if self.taken is not None:
                self._read(missing, self.taken)

    def _tell(self) -> None:
        """Logs when this node has become the only voter."""
        before, self.last_other = self.last_other, self.other
        voters = self.cluster.raft.membership.voters
        if before is not None and self.last_other is None and [one.id for one in voters] == [self.cluster.me.id]:
            logger.warning("this node is the only voter until %s is back", before.name)

    # -- Proofs --------------------------------------------------------------------------------------------------

    def _read(self, dead: Member, taken: Inherited) -> None:
        found: list[Remains] = []

        def then(error: Exception | None) -> None:
            if self.cluster.stopped:
                self._give_back()
            elif error is not None:
                self._give_up(dead, f"its log cannot be read: {error}")
            elif self.missing == dead:
                self._outlive(dead, found[0], "its process has ended")
            else:
                self._give_back()

        self.cluster.consensus.snapshot_thread.submit(lambda: found.append(read_remains(taken.disk, dead.id)), then)

    def on_nobody_listens(self, name: str) -> None:
        """Called when the host of a node refuses a connection to its cluster port."""
        if not self.cluster.raft.log.is_membership_committed:
            return  # Perhaps this node is a voter in its own log only, and the other one will lead alone.
        missing = self.missing
        trusts = self.cluster.settings.trusts_refusals and self.has_served
        if missing is None or missing.name != name or missing.id not in self.lost_at or not trusts:
            return
        if self.taken is None and missing.id in self.trusts:
            self._outlive(missing, None, "its host refuses connections")

    def _outlive(self, dead: Member, remains: Remains | None, proof: str) -> None:
        raft = self.cluster.raft
        try:
            raft.outlive(dead.id, remains)
        except Refused as error:
            self._give_up(dead, str(error))
            return
        logger.warning("node %s is dead (%s): this node goes on alone", dead.name, proof)
        self.is_succeeding = True
        self.cluster.consensus.drive()

    def _give_up(self, dead: Member, why: str) -> None:
        """Records why this node must not go on although the other one is dead."""
        self.doubt = f"node {dead.name} has ended, but {why}"
        logger.error("%s. This node waits for it", self.doubt)
        self.places.pop(dead.id, None)
        self._give_back()

    def _give_back(self) -> None:
        taken, self.taken, self.is_succeeding = self.taken, None, False
        if taken is not None:
            taken.release()

    # -- Controlled stop -----------------------------------------------------------------------------------------

    async def rest(self) -> None:
        """Asks, before a controlled stop, that the other node become the only voter."""
        cluster = self.cluster
        other = self.other
        if other is None or other.name not in cluster.connected or not self.has_served:
            return
        asking = cluster.environment.loop.create_task(self._rest())
        await cluster.until(lambda: asking.done() or other.name not in cluster.connected, REST_S)
        asking.cancel()
        if self.other is not None:
            logger.warning("node %s may wait for this one, which stops", other.name)

    async def _rest(self) -> None:
        cluster = self.cluster
        try:
            await cluster.at_leader(REST, {"name": cluster.me.name})
            await cluster.until(lambda: self.other is None and cluster.raft.log.is_membership_committed)
        except AdminError as error:
            logger.warning("this node stops, and is still a voter: %s", error)

    async def let_rest(self, name: str) -> None:
        """Makes one of two voters, which is about to stop, a learner; only the leader can. Raises `AdminError`,
        `NotLeader`."""
        cluster = self.cluster
        if not cluster.raft.is_leader:
            raise NotLeader(cluster.raft.leader)
        if name == cluster.me.name:
            await self._rest_as_leader()
            return
        other = self.other
        if other is None or name != other.name:
            return
        self.resting.add(other.id)
        await cluster.change_membership(Demote(other.id))
        logger.info("node %s stops: the other one is the only voter until it is back", name)

    async def _rest_as_leader(self) -> None:
        """Waits until the other node is a learner, or leads. Raises `NotLeader`.

        This node has handed over before it asked. If it leads again, the other one most likely stops, too, and has
        handed over for that: it is about to ask to be made a learner. If this node handed back at once, so would the
        other, and neither would ever answer. If the other one does not ask, it has handed back because this node is of
        a higher priority."""
        cluster = self.cluster
        await cluster.until(lambda: self.other is None or not cluster.raft.is_leader, ASKED_S)
        if self.other is not None:
            await cluster.hand_over()  # The other one leads then, and knows that this one is not to be a voter again.
            raise NotLeader(cluster.raft.leader)

    # -- By an operator's command --------------------------------------------------------------------------------

    async def go_on_alone(self) -> str:
        """Removes the other node from the cluster, for good, and returns its name. Raises `AdminError`."""
        cluster = self.cluster
        if cluster.has_majority:
            raise AdminError("this node is in contact with a majority of the cluster's nodes, and goes on as it is")
        if not cluster.is_voter and cluster.me.id in cluster.raft.membership.ids:
            raise AdminError(cluster.why_waiting())
        missing = self.missing
        if missing is None:
            raise AdminError(
                "this is for one node of two. Where more are gone for good, stop this node's app and use force_boot"
            )
        try:
            cluster.raft.outlive(missing.id, forget=True)
        except Refused as error:
            raise AdminError(str(error)) from None
        logger.warning("as it was told to, this node goes on without node %s, no member any more", missing.name)
        cluster.consensus.drive()
        log, seconds = cluster.raft.log, cluster.settings.operation_timeout_ms / 1000
        if not await cluster.until(lambda: missing.id not in log.agreed.membership.ids, seconds):
            raise AdminError("this node's disk has not answered in time; it goes on when it does")
        return missing.name

    def stop(self) -> None:
        self._give_back()


class ReadOnlyDisk:
    """A disk that is only read: writes, renames and deletions do nothing."""

    def __init__(self, disk: Disk) -> None:
        self.names, self.size, self.read = disk.names, disk.size, disk.read
        self.free_bytes = disk.free_bytes

    def write(self, path: str, offset: int, buffers: Sequence[bytes]) -> None: ...
    def sync(self, path: str) -> None: ...
    def truncate(self, path: str, size: int) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def delete(self, path: str) -> None: ...
    def make_folder(self, path: str) -> None: ...
    def sync_folder(self, path: str) -> None: ...


def read_remains(disk: Disk, member_id: str) -> Remains:
    """Reads the consensus log of a dead node. Raises `AdminError`, and what damaged files raise."""
    if read_identity(disk, METADATA) != member_id:
        raise AdminError("its folder is another node's by now")
    recovered = ConsensusLog(ReadOnlyDisk(disk), METADATA).recover()
    return Remains(recovered.hard_state, recovered.meta, recovered.entries)


def _read_signs(payload: bytes) -> tuple[bool, Place | None]:
    """Returns whether a node trusts refused connections, and where its lock is. Raises `BadFrame`."""
    if len(payload) > SIGNS_BYTES_MAX:
        raise BadFrame(f"signs of life in {len(payload)} bytes")
    try:
        told = json.loads(payload)
        trusts, place = told["trusts"], told["place"]
        if place is not None:
            machine, folder, device, inode = place
            place = Place(str(machine), str(folder), int(device), int(inode))
    except (ValueError, TypeError, KeyError) as error:
        raise BadFrame(f"signs of life that cannot be read: {error!r}") from error
    return trusts is not False, place
