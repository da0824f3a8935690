"""Pauses a node in a partition: its listeners are closed, its clients disconnected, its queues unavailable.

`leveret.metadata.rules.partition_handling` decides; this module acts, and tells the other nodes. Pausing stops what the
node does for others, not what it needs to notice that it may go on: links are dialed, Raft's messages pass, leveretctl
and the management port are answered.

To its clients a paused node looks like one that was stopped: listeners are closed, connections end with 320
CONNECTION_FORCED, as in RabbitMQ, which stops its whole application. Its queues stay in memory as they are, so that
nothing is read from disk again when it resumes.

To the *brokers* of other nodes a paused node is down, though its link may be up: in a partial partition it may be in
contact with one of the others. Otherwise that one's clients would go on using queues of a node without a majority. So
between two brokers there is a session only while neither node is paused, and it must be as clean as a link's: no frame
sent before a pause may arrive after it. Frames of a link arrive in order, hence:

    paused node                          peer
    PAUSED n ───────────────────────▶    its broker loses the peer; it sends no more for the broker
             ◀─────────────────────── PAUSE_SEEN n, behind the last frame of before the pause
    (drops frames for its broker; and if it may serve again, it waits for that answer)
    RESUMED  ───────────────────────▶    its broker has the peer again, unless it is paused itself
    its broker has the peer again

A node that links with others while it is paused says PAUSED first. Until that is read, the other's broker takes it for
a peer, which is what happens with any link that breaks at once.

A pause does not change a node's part in the consensus. It votes and applies, as far as it is in contact. A leader that
is paused (in the majority, and yet without the nodes that `pause_if_all_down` names) hands the leadership over.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final

from leveret.links import frame_types
from leveret.metadata.model.commands import NodeStarted
from leveret.metadata.rules import partition_handling
from leveret.metadata.rules.partition_handling import PartitionHandling, Partitions, Strategy
from leveret.protocol.errors import ReplyCode

if TYPE_CHECKING:
    from leveret.metadata.store import Applied
    from leveret.node.node import Node
    from leveret.raft import Membership

logger = logging.getLogger("leveret.cluster")

CLIENTS_S: Final = 5.0  # Time for clients to answer a close, here and in `maintenance`.
SHUTDOWN: Final = "broker forced connection closure with reason 'shutdown'"  # RabbitMQ's text when it pauses.
_NUMBER: Final = struct.Struct(">Q")
PAUSE_FRAMES: Final = frozenset({frame_types.PAUSED, frame_types.PAUSE_SEEN, frame_types.RESUMED})


class _Talk:
    """The state of pauses between this node and one peer, as long as its link lasts."""

    __slots__ = ("is_open", "paused_there", "said", "seen", "owed")

    def __init__(self) -> None:
        self.is_open = False  # This node's broker takes the peer for up.
        self.paused_there = False  # The peer said that it is paused.
        self.said = 0  # The number of the last pause that this node told the peer of.
        self.seen = 0  # The number of the last pause that the peer has answered.
        self.owed = False  # The peer takes this node for paused: RESUMED is yet to be sent.

    def on_told(self, pause: int) -> None:
        """The peer is told of a pause of this node."""
        self.said, self.owed = pause, True

    def on_resumed(self) -> None:
        """The peer is told that this node serves again."""
        self.owed = False

    def on_seen(self, pause: int) -> None:
        """The peer has answered that it knows of a pause."""
        self.seen = pause

    def set_open(self, is_open: bool) -> None:
        self.is_open = is_open

    def set_paused_there(self, paused: bool) -> None:
        self.paused_there = paused


class PartitionPause:
    """Pauses and resumes one node. Does nothing until `begin`: before, there are no clients."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.partitions = Partitions(node.settings.node_name, node.settings.partition_handling)
        self.on_paused: Callable[[], None] = lambda: None  # Closes the listeners for clients.
        self.on_resumed: Callable[[], None] = lambda: None  # Opens the listeners for clients again.
        self.active = False
        self._talks: dict[str, _Talk] = {}
        self._known: Membership | None = None
        self._numbers = 0
        self._contact = 0  # Counts pauses and resumptions, so that an answer to a question from before is ignored.
        self._asking = False
        self._caught_up = False
        self._hoping = False  # No pause yet: it may soon be proved that the missing node is dead.

    @property
    def paused(self) -> bool:
        return self.partitions.paused

    @property
    def handling(self) -> PartitionHandling:
        return self.partitions.handling

    def begin(self) -> None:
        """Called when the node has caught up, and is about to serve clients."""
        self.active = True
        self.tell_meaning()
        self.on_setting()
        self.look()

    def end(self) -> None:
        """Called when the node stops: it does not pause any more, whatever links are lost."""
        self.active = False

    def is_paused(self, peer: str) -> bool:
        """Returns whether that node (which may be this one) is known to be paused."""
        if peer == self.partitions.me:
            return self.paused
        talk = self._talks.get(peer)
        return talk is not None and talk.paused_there

    def needs_any_of(self, peers: Collection[str]) -> bool:
        """Returns whether this node serves clients now, and must not without these peers."""
        return self.active and not self.paused and self.partitions.needs_any_of(peers)

    # -- The setting ---------------------------------------------------------------------------------------------

    def on_setting(self) -> None:
        """Reads the cluster's parameter, which may have changed; without one, the node's configuration holds."""
        parameters, handling = self.node.metadata.global_parameters, self.node.settings.partition_handling
        if partition_handling.PARAMETER in parameters:
            try:
                handling = partition_handling.from_json(parameters[partition_handling.PARAMETER])
            except (
                partition_handling.BadHandling
            ) as error:  # Set by another version of Leveret: this version refuses the command.
                logger.error("%s: %s; the configured value is used: %s", partition_handling.PARAMETER, error, handling)
        self.node.broker.partition_handling = handling
        if handling == self.partitions.handling:
            return
        self.partitions.handling = handling
        logger.info("partitions are handled by: %s", handling)
        self.tell_meaning()
        self.look()

    def tell_meaning(self) -> None:
        if self.handling.strategy is Strategy.AUTOUPGRADE:
            logger.warning("cluster_partition_handling = autoupgrade is treated as autoheal")

    # -- Links to other nodes ------------------------------------------------------------------------------------

    def on_up(self, peer: str, has_broker: bool = True) -> None:
        self.partitions.on_up(peer)
        if not has_broker:
            self.look()
            return
        talk = self._talks[peer] = _Talk()
        if self.paused:
            self._say_paused(peer, talk)
        else:
            self._open(peer, talk)
        self.look()

    def on_down(self, peer: str, reason: str) -> None:
        """Pauses, if need be, before the broker learns of the loss."""
        silent = reason.startswith(SILENCE)
        self.partitions.on_down(peer, reason, silent, self.node.environment.wall_ms())
        self.look()
        talk = self._talks.pop(peer, None)
        if talk is not None:
            self._close(peer, talk)

    def part_with(self, peer: str) -> None:
        """Ends the broker's session with a peer that turns out to be a witness, which has no broker."""
        talk = self._talks.pop(peer, None)
        if talk is not None:
            self._close(peer, talk)

    def tick(self) -> None:
        """Called every few milliseconds."""
        if self.node.cluster.raft.membership is not self._known or self._hoping:
            self.look()
        if self.paused:
            self.node.broker.open()  # x-expires does not count while nobody could use it.

    def look(self) -> None:
        """Pauses or resumes, if it is time to."""
        self._refresh_members()
        if not self.active:
            return
        seen = self.partitions
        # Meanwhile mirrored queues deliver nothing, and nothing is confirmed: see `two_nodes`.
        self._hoping = not seen.paused and seen.must_pause() is not None and self.node.cluster.two_nodes.is_hopeful()
        if self._hoping:
            return
        if seen.must_pause() is not None and self._caught_up:
            self._caught_up = False
        decision = seen.look(self._caught_up, self.node.environment.wall_ms())
        if decision is True:
            self._pause()
        elif decision is False:
            self._resume()
        elif seen.paused and seen.must_pause() is None:
            self._catch_up()

    def _refresh_members(self) -> None:
        membership = self.node.cluster.raft.membership
        if membership is not self._known:
            self._known = membership
            names = {one.name for one in membership.members}
            voters = {one.name for one in membership.voters}
            self.partitions.set_members(names, voters, self.node.environment.wall_ms())

    def _catch_up(self) -> None:
        """Proposes a command that changes nothing: once it is applied, so is all that was committed during the pause,
        and clients may be let in."""
        if self._asking:
            return
        self._asking, contact = True, self._contact

        def then(applied: Applied) -> None:
            self._asking = False
            self._caught_up = contact == self._contact
            self.look()

        self.node.cluster.propose(NodeStarted(""), then, patient=True)  # No node has that name: it changes nothing.

    # -- Pausing and resuming ------------------------------------------------------------------------------------

    def _pause(self) -> None:
        node = self.node
        logger.warning("Cluster minority/secondary status detected - awaiting recovery: %s", self.partitions.reason)
        node.cluster.two_nodes.say()
        self._numbers += 1
        self._contact += 1
        self._caught_up = False
        self.on_paused()
        text = node.cluster.two_nodes.closing_text(SHUTDOWN)
        for client in list(node.clients):
            if client.connection in node.broker.connections:
                client.connection.close(ReplyCode.CONNECTION_FORCED, text)
            else:
                client.transport.abort()  # It has not logged in yet.
        node.broker.mirrors.on_majority(False)
        for peer, talk in self._talks.items():
            self._close(peer, talk)
            self._say_paused(peer, talk)
        number = self._numbers
        node.loop.call_later(CLIENTS_S, self._abort_clients, number)
        node.schedule()

    def _abort_clients(self, number: int) -> None:
        if self.paused and number == self._numbers:
            for client in list(self.node.clients):
                client.transport.abort()

    def _resume(self) -> None:
        logger.warning("Cluster recovery detected - this node serves clients again")
        self._contact += 1
        self._caught_up = False
        for peer, talk in self._talks.items():
            self._say_resumed(peer, talk)
        self.node.member_changes.look_at_all()
        self.on_resumed()
        self.node.schedule()

    # -- The other nodes -----------------------------------------------------------------------------------------

    def _say_paused(self, peer: str, talk: _Talk) -> None:
        talk.on_told(self._numbers)
        self.node.peers.send(peer, frame_types.PAUSED, _NUMBER.pack(self._numbers))

    def _say_resumed(self, peer: str, talk: _Talk) -> None:
        """Sends RESUMED, once no frame sent before the pause can be on its way here any more."""
        if talk.owed and talk.seen == talk.said and not self.paused:
            talk.on_resumed()
            self.node.peers.send(peer, frame_types.RESUMED, b"")
        self._open(peer, talk)

    def _open(self, peer: str, talk: _Talk) -> None:
        if not (talk.is_open or talk.owed or talk.paused_there or self.paused):
            talk.set_open(True)
            self.node.broker.on_peer_up(peer)

    def _close(self, peer: str, talk: _Talk) -> None:
        if talk.is_open:
            talk.set_open(False)
            self.node.broker.on_peer_down(peer)

    def admits(self, peer: str, kind: int, payload: bytes) -> bool:
        """Handles the frames about pauses, and returns whether another frame is for the broker. Raises struct.error,
        which ends the session, for a malformed frame."""
        talk = self._talks.get(peer)
        if talk is None:
            return False
        if kind not in PAUSE_FRAMES:
            return talk.is_open
        if kind == frame_types.PAUSED:
            talk.set_paused_there(True)
            logger.warning("node %s is paused: it cannot reach the nodes that it needs", peer)
            self._close(peer, talk)
            self.node.peers.send(peer, frame_types.PAUSE_SEEN, payload)
        elif kind == frame_types.PAUSE_SEEN:
            talk.on_seen(*_NUMBER.unpack(payload))
            self._say_resumed(peer, talk)
        else:
            talk.set_paused_there(False)
            logger.info("node %s serves again", peer)
            self._open(peer, talk)
        self.node.member_changes.look_at_all()
        return False


SILENCE: Final = "nothing was heard"  # The beginning of the failure detector's reason.
