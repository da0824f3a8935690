"""How a command that any node wants gets into the log exactly once, and when its client may be told.

Only the leader can append to Raft's log. Another node *forwards* its command to the leader and waits until it sees it
applied in its own copy of the log: a command carries the name of its origin (one run of one node) and a number.

**Once, though leaders and links fail.** A command is sent under a term, and the leader takes it only if it still leads
in that term. So a command sent under term 5 can stand in the log only with term 5, and terms never go down along the
log: who applies an entry of a later term without having met its own command knows that it is not there and never will
be, and sends it anew. Within a term, the leader remembers what it took from each origin, so that sending again after a
broken link is harmless. No replicated memory of past commands is needed, and none has to be kept small.

**When all know.** A client that was told "declared" may go to any other node. So the answer waits until every node that
the leader is connected with has applied the command, which the leader knows from what they report. It tells the origin
how far all have come (`SETTLED`). A new leader does not know who waits for what; it is asked (`WHEN`).

**No majority.** After `patience` ticks the caller gets a refusal; whether the command will take effect is then unknown,
as with any broken conversation. A command that was applied here is answered as applied even if the others' word does
not come. Some commands have nobody who waits (the queue of a connection that is gone): these are patient for ever.

The machine does no I/O; `send` gives a frame for a member's id and says whether there is a link. Times are ticks.
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
_HEAD: Final = struct.Struct(">8sQ")  # Of a command in the log: origin, number.
COMMAND_AT: Final = _HEAD.size  # Where in an entry the command itself begins.
_FORWARD: Final = struct.Struct(">Q8sQ")  # Term, then the same.
_NUMBER: Final = struct.Struct(">Q")

INTERNAL_ERROR: Final = 541

Send = Callable[[str, int, bytes], bool]
Then = Callable[[Applied], None]


class BadFrame(ValueError):
    """A frame of another member that makes no sense."""


@dataclass(slots=True)
class Waiting:
    """A command of this node on its way."""

    data: bytes  # As it stands in the log.
    then: Then
    ticks_left: int | None  # None: for ever.
    term: int | None = None  # Under which it was sent.
    applied: Applied | None = None


class Taken:
    """What a leader has from one origin: numbers within a window, and the indexes it waits for to tell."""

    __slots__ = ("numbers", "order")

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self.order: deque[int] = deque()

    def take(self, number: int) -> bool:
        """False if it was taken before."""
        if number in self.numbers:
            return False
        self.numbers.add(number)
        self.order.append(number)
        if len(self.order) > TAKEN_MAX:
            self.numbers.discard(self.order.popleft())
        return True


class Proposals:
    """The commands that this node wants, and those that it leads for others."""

    def __init__(self, origin: bytes, raft: Raft, send: Send, patience: int) -> None:
        assert len(origin) == ORIGIN_BYTES
        self.origin = origin
        self.raft = raft
        self.send = send
        self.patience = patience
        self.last_number = 0
        self.waiting: dict[int, Waiting] = {}
        # Index and number of those that were applied, in the log's order: who looks for answers that may go out must
        # not look through thousands that wait.
        self.unsettled: deque[tuple[int, int]] = deque()
        self.seen_term = 0  # Of the last entry applied.
        self.settled = 0  # As far as a leader has said that all have applied.
        # A leader's knowledge, void when its term is.
        self.led_term = 0
        self.taken: dict[bytes, Taken] = {}
        self.tell: dict[str, int] = {}  # Member: the last index it waits for.
        self.told = 0  # How far all had come when the members were last told.

    # -- This node's commands --------------------------------------------------------------------------------------

    def propose(self, command: Command, then: Then, patient: bool = False) -> None:
        """Get a command into the log; `then` is called once, later. Only what may be done twice may be `patient`."""
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
        """Send what could not be sent, and give up on what has waited too long."""
        for number, waiting in list(self.waiting.items()):
            if waiting.term is None and waiting.applied is None:
                self._dispatch(number, waiting)
            if waiting.ticks_left is None:
                continue
            waiting.ticks_left -= 1
            if waiting.ticks_left <= 0:
                del self.waiting[number]
                waiting.then(waiting.applied or no_majority())

    def on_leader(self) -> None:
        """Another leader is known, or none, or another term has begun."""
        self._check_term()
        for number, waiting in list(self.waiting.items()):
            # The leader of the same term may be known again after its link was lost, and what was under way with it.
            if waiting.applied is None and waiting.term in (None, self.raft.term):
                self._dispatch(number, waiting)
        self._ask()

    def on_link_up(self, member: str) -> None:
        """What was under way to the leader when the link broke may be lost."""
        if member != self.raft.leader or self.raft.is_leader:
            return
        for number, waiting in list(self.waiting.items()):
            if waiting.applied is None and waiting.term in (None, self.raft.term):
                self._dispatch(number, waiting)
        self._ask()

    def _ask(self) -> None:
        """Have the leader tell when all have applied what this node waits for."""
        index = self.unsettled[-1][0] if self.unsettled else 0
        if index and self.raft.leader is not None and not self.raft.is_leader:
            self.send(self.raft.leader, WHEN, _NUMBER.pack(index))

    def on_entry(self, index: int, term: int, data: bytes, apply: Callable[[Command], Applied]) -> None:
        """An entry of the log is to be applied, whosever it is."""
        if len(data) < _HEAD.size:
            raise BadEncoding(f"entry {index} is too short for a command")
        origin, number = _HEAD.unpack_from(data)
        applied = apply(decode_command(data[_HEAD.size :]))
        if origin == self.origin and number in self.waiting:
            waiting = self.waiting[number]
            waiting.applied = applied
            self.unsettled.append((index, number))
            if term < self.raft.term:
                self._ask()  # The leader of today did not take it, and does not know that somebody waits for it.
        self.on_term(term)

    def on_term(self, term: int) -> None:
        """An entry of that term is being applied: what was sent under an older one and is not in the log is lost."""
        if term > self.seen_term:
            self.seen_term = term
            for number, waiting in list(self.waiting.items()):
                if waiting.applied is None and waiting.term is not None and waiting.term < term:
                    waiting.term = None
                    self._dispatch(number, waiting)

    def on_snapshot(self, term: int) -> None:
        """The log was replaced by a snapshot: whether a command of this node is in it cannot be seen."""
        self.seen_term = max(self.seen_term, term)
        for number, waiting in list(self.waiting.items()):
            if waiting.applied is None and waiting.term is not None and waiting.term <= term:
                del self.waiting[number]
                if waiting.ticks_left is None:
                    # These may be done twice: under a new number, for the old one is what the leader has taken before.
                    self.last_number += 1
                    data = _HEAD.pack(self.origin, self.last_number) + waiting.data[_HEAD.size :]
                    self.waiting[self.last_number] = Waiting(data, waiting.then, None)
                else:
                    waiting.then(no_majority())

    def _settle(self, through: int) -> None:
        unsettled = self.unsettled
        while unsettled and unsettled[0][0] <= through:
            _, number = unsettled.popleft()
            waiting = self.waiting.pop(number, None)
            if waiting is not None:  # Else it was answered when its time was over.
                assert waiting.applied is not None
                waiting.then(waiting.applied)

    def forget_all(self) -> None:
        """The node stops: nobody waits any longer."""
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
        """A frame from another member. Raises `BadFrame`."""
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
        except BadEncoding as error:  # Once in the log, it would stop every node that comes to it.
            raise BadFrame(f"a forwarded command that is none: {error}") from None
        self._check_term()
        if not self.raft.is_leader or term != self.raft.term:
            return  # The sender will learn of a later term, and send it to that one's leader.
        try:
            self._append(origin, number, payload[8:])
        except (Busy, NotLeader):
            self.send(sender, BUSY, _NUMBER.pack(number))
            return
        self.tell[sender] = self.raft.last_index
        # What was sent again may be applied by all who were connected meanwhile: then it is news to the sender only.
        self.told = min(self.told, self.raft.last_index - 1)

    def settle(self, connected: Iterable[str]) -> None:
        """Something was applied somewhere, or a link was lost: whose answers may go out now?"""
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


def no_majority() -> Applied:
    text = (
        "the metadata store operation timed out: this node has no contact to a majority of the cluster's nodes. "
        "Try again when it has, or see leveretctl cluster_status"
    )
    return Applied(0, Refusal(INTERNAL_ERROR, text), ())
