"""Proposals: commands of any node get into the Raft log exactly once, and clients are answered in time.

Only the leader can append to Raft's log. Another node *forwards* its command to the leader and waits until it sees it
applied in its own copy of the log: a command carries the name of its origin (one run of one node) and a number.

**Once, though leaders and links fail.** A command is sent under a term, and the leader takes it only if it still leads
in that term. So a command sent under term 5 can be in the log only with term 5, and terms never fall along the log: a
node that applies an entry of a later term and has not seen its own command knows that it is not in the log and never
will be, and sends it again. Within a term, the leader remembers what it took from each origin, so that sending again
after a broken link is harmless. No replicated record of past commands is needed.

**When all nodes have it.** A client that got `declare-ok` may go to any other node. So the answer waits until every
node to which the leader is connected has applied the command, as they report to the leader. The leader tells the origin
how far all have applied (`SETTLED`). A new leader does not know which origin waits for what; it is asked (`WHEN`).

**No majority.** After `patience` ticks the caller gets a refusal; whether the command will take effect is then unknown,
as with any broken connection. A command that was applied here is answered as applied even if the other nodes do not
report. Some commands have no client that waits (the queue of a connection that is gone): these wait for ever.

The machine does no I/O; `send` sends a frame to a member's id and returns whether there is a link. Times are ticks.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from leveret.links.frame_types import BUSY, FORWARD, SETTLED, WHEN
from leveret.metadata.command_codec import BadEncoding, decode_command, encode_command
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.store import Applied
from leveret.raft import Busy, NotLeader

if TYPE_CHECKING:
    from leveret.metadata.model.commands import Command
    from leveret.raft import Raft

ORIGIN_BYTES: Final = 8
TAKEN_MAX: Final = 65_536  # Numbers of one origin that a leader remembers within its term.
_HEAD: Final = struct.Struct(">8sQ")  # Before a command in the log: origin, number.
COMMAND_AT: Final = _HEAD.size  # The offset of the command itself in an entry.
_FORWARD: Final = struct.Struct(">Q8sQ")  # Term, origin, number.
_NUMBER: Final = struct.Struct(">Q")

INTERNAL_ERROR: Final = 541

WAIT: Final = "Try again when it has, or see leveretctl cluster_status"
Send = Callable[[str, int, bytes], bool]
Then = Callable[[Applied], None]


class BadFrame(ValueError):
    """A frame of another member is invalid."""


@dataclass(slots=True)
class Waiting:
    """A command of this node that is not answered yet."""

    data: bytes  # As it is in the log.
    then: Then
    ticks_left: int | None  # None: it waits for ever.
    term: int | None = None  # The term under which it was sent.
    applied: Applied | None = None


class Taken:
    """The numbers of commands that a leader has taken from one origin, within a window."""

    __slots__ = ("numbers", "order")

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.order: deque[int] = deque()

    def take(self, number: int) -> bool:
        """Note a number. Return False if it was taken before."""
        if number in self.numbers:
            return False
        self.numbers.add(number)
        self.order.append(number)
        if len(self.order) > TAKEN_MAX:
            self.numbers.discard(self.order.popleft())
        return True


class Proposals:
    """The commands that this node proposes, and as the leader those of the others."""

    def __init__(self, origin: bytes, raft: Raft, send: Send, patience: int) -> None:
        assert len(origin) == ORIGIN_BYTES
        self.origin = origin
        self.raft = raft
        self.send = send
        self.patience = patience
        self.last_number = 0
        self.waiting: dict[int, Waiting] = {}
        # Index and number of applied commands, in the log's order, so that those that can be answered are found without
        # looking at thousands that cannot.
        self.unsettled: deque[tuple[int, int]] = deque()
        self.seen_term = 0  # The term of the last entry applied.
        self.settled = 0  # All nodes have applied up to here, as the leader said.
        # The rest is a leader's, and void in another term.
        self.led_term = 0
        self.taken: dict[bytes, Taken] = {}
        self.tell: dict[str, int] = {}  # By member: the last index that it waits for.
        self.told = 0  # The index that members were last told.
        self.advice: Callable[[], str] = lambda: WAIT  # For whoever is refused.

    # -- This node's commands --------------------------------------------------------------------------------------

    def propose(self, command: Command, then: Then, patient: bool = False) -> None:
        """Get a command into the log; `then` is called once, later. Only a command that may be done twice may be
        `patient`."""
        self.last_number += 1
        number = self.last_number
        data = _HEAD.pack(self.origin, number) + encode_command(command)
        self.waiting[number] = waiting = Waiting(data, then, None if patient else self.patience)
        self._dispatch(number, waiting)

    def _dispatch(self, number: int, waiting: Waiting) -> None:
        raft = self.raft
        if raft.is_leader:
            self._check_term()
            try:
                self._append(self.origin, number, waiting.data)
            except (Busy, NotLeader):
                return  # The next tick tries again.
            waiting.term = raft.term
        elif raft.leader is not None:
            if self.send(raft.leader, FORWARD, _FORWARD.pack(raft.term, self.origin, number) + waiting.data[16:]):
                waiting.term = raft.term

    def _append(self, origin: bytes, number: int, data: bytes) -> None:
        taken = self.taken.setdefault(origin, Taken())
        if number in taken.numbers:
            return
        self.raft.propose(data)
        taken.take(number)

    def tick(self) -> None:
        """Send commands that could not be sent, and refuse those that have waited too long."""
        for number, waiting in list(self.waiting.items()):
            if waiting.term is None and waiting.applied is None:
                self._dispatch(number, waiting)
            if waiting.ticks_left is None:
                continue
            waiting.ticks_left -= 1
            if waiting.ticks_left <= 0:
                del self.waiting[number]
                waiting.then(waiting.applied or no_majority(self.advice()))

    def on_leader(self) -> None:
        """Note another leader, or none, or another term."""
        self._check_term()
        for number, waiting in list(self.waiting.items()):
            # The leader of the same term may be known again after its link was lost; commands on that link may be lost.
            if waiting.applied is None and waiting.term in (None, self.raft.term):
                self._dispatch(number, waiting)
        self._ask()

    def on_link_up(self, member: str) -> None:
        """Send commands again that may have been lost with the last link to the leader."""
        if member != self.raft.leader or self.raft.is_leader:
            return
        for number, waiting in list(self.waiting.items()):
            if waiting.applied is None and waiting.term in (None, self.raft.term):
                self._dispatch(number, waiting)
        self._ask()

    def _ask(self) -> None:
        """Ask the leader to tell when all have applied the commands for which this node waits."""
        index = self.unsettled[-1][0] if self.unsettled else 0
        if index and self.raft.leader is not None and not self.raft.is_leader:
            self.send(self.raft.leader, WHEN, _NUMBER.pack(index))

    def on_entry(self, index: int, term: int, data: bytes, apply: Callable[[Command], Applied]) -> None:
        """Apply an entry of the log, of whatever origin."""
        if len(data) < _HEAD.size:
            raise BadEncoding(f"entry {index} is too short for a command")
        origin, number = _HEAD.unpack_from(data)
        applied = apply(decode_command(data[_HEAD.size :]))
        if origin == self.origin and number in self.waiting:
            waiting = self.waiting[number]
            waiting.applied = applied
            self.unsettled.append((index, number))
            if term < self.raft.term:
                self._ask()  # An earlier leader took it, so this one does not know that a node waits for it.
        self.on_term(term)

    def on_term(self, term: int) -> None:
        """Note that an entry of a term is applied: commands sent under an older one and not in the log are lost."""
        if term > self.seen_term:
            self.seen_term = term
            for number, waiting in list(self.waiting.items()):
                if waiting.applied is None and waiting.term is not None and waiting.term < term:
                    waiting.term = None
                    self._dispatch(number, waiting)

    def on_snapshot(self, term: int) -> None:
        """Note that a snapshot replaced the log: whether it contains this node's commands is unknown."""
        self.seen_term = max(self.seen_term, term)
        for number, waiting in list(self.waiting.items()):
            if waiting.applied is None and waiting.term is not None and waiting.term <= term:
                del self.waiting[number]
                if waiting.ticks_left is None:
                    # It may be done twice. It needs a new number, because the leader has taken the old one.
                    self.last_number += 1
                    data = _HEAD.pack(self.origin, self.last_number) + waiting.data[_HEAD.size :]
                    self.waiting[self.last_number] = Waiting(data, waiting.then, None)
                else:
                    waiting.then(no_majority(self.advice()))

    def _settle(self, through: int) -> None:
        unsettled = self.unsettled
        while unsettled and unsettled[0][0] <= through:
            _, number = unsettled.popleft()
            waiting = self.waiting.pop(number, None)
            if waiting is not None:  # Otherwise it was refused after its time.
                assert waiting.applied is not None
                waiting.then(waiting.applied)

    def forget_all(self) -> None:
        """Drop all commands: the node stops."""
        self.waiting.clear()
        self.unsettled.clear()

    # -- The leader's part -----------------------------------------------------------------------------------------

    def _check_term(self) -> None:
        if self.led_term != self.raft.term or not self.raft.is_leader:
            self.led_term = self.raft.term
            self.taken.clear()
            self.tell.clear()
            self.told = 0

    def on_frame(self, sender: str, kind: int, payload: bytes) -> None:
        """Handle a frame of another member. Raises `BadFrame`."""
        if kind == FORWARD:
            self._on_forward(sender, payload)
            return
        if len(payload) != _NUMBER.size:
            raise BadFrame(f"frame {kind} of {len(payload)} bytes")
        (number,) = _NUMBER.unpack(payload)
        if kind == BUSY:
            waiting = self.waiting.get(number)
            if waiting is not None and sender == self.raft.leader and waiting.term == self.raft.term:
                waiting.term = None  # The next tick tries again.
        elif kind == WHEN:
            self._check_term()
            if self.raft.is_leader:
                self.tell[sender] = max(self.tell.get(sender, 0), number)
                self.told = 0
        elif kind == SETTLED:
            self.settled = max(self.settled, number)

    def _on_forward(self, sender: str, payload: bytes) -> None:
        if len(payload) < _FORWARD.size:
            raise BadFrame(f"a forwarded command of {len(payload)} bytes")
        term, origin, number = _FORWARD.unpack_from(payload)
        try:
            decode_command(payload[_FORWARD.size :])
        except BadEncoding as error:  # In the log, it would stop every node.
            raise BadFrame(f"a forwarded command that is none: {error}") from None
        self._check_term()
        if not self.raft.is_leader or term != self.raft.term:
            return  # The sender will learn of the later term and send it to its leader.
        try:
            self._append(origin, number, payload[8:])
        except (Busy, NotLeader):
            self.send(sender, BUSY, _NUMBER.pack(number))
            return
        self.tell[sender] = self.raft.last_index
        # A command that was sent again may be applied everywhere already: only its sender must still be told.
        self.told = min(self.told, self.raft.last_index - 1)

    def settle(self, connected: Iterable[str]) -> None:
        """Tell the origins how far all connected nodes have applied: a node has applied more, or a link was lost."""
        if not self.waiting and not self.tell:
            return
        if not self.raft.is_leader:
            self._settle(self.settled)
            return
        self._check_term()
        through = self.raft.applied_by(connected)
        self._settle(through)
        if through > self.told:
            self.told = through
            for member, index in list(self.tell.items()):
                self.send(member, SETTLED, _NUMBER.pack(through))
                if index <= through:
                    del self.tell[member]


def no_majority(advice: str) -> Applied:
    text = (
        "the metadata store operation timed out: this node has no contact to a majority of the cluster's nodes. "
        f"{advice}"
    )
    return Applied(0, Refusal(INTERNAL_ERROR, text), ())
