"""The frames, effects and options of a member of a ring.

Frames travel between members. All have the epoch to which they belong, except `Poll`, `Standing` and `Newer`, which
have the view's version. Effects are the work of the shell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from leveret.metadata.model.view import View
from leveret.storage.format.queue_block import Block, Run
from leveret.storage.format.queue_marks import Mark

History = tuple[tuple[int, int], ...]  # (epoch, number of its first block), ascending.
Ranges = tuple[tuple[int, int], ...]  # Inclusive ranges of message numbers, ascending.
Counts = tuple[tuple[int, int, int], ...]  # Ranges with a number for each.


class ProtocolError(AssertionError):
    """An invariant of the ring is broken. The member must not serve the queue any more: its log cannot be trusted."""


class Entry(NamedTuple):
    """The report of a member in an epoch. The numbers are 0 while its log may differ from the master's."""

    disk: str
    stamp: int  # Rises with each report, over restarts too: reports may take different ways to the master.
    received: int
    durable: int
    complete: bool  # It lacks no messages, and that is on its disk.
    lacks: Ranges = ()  # Messages that it may lack, while it is not complete.


# -- frames --------------------------------------------------------------------------


class Attach(NamedTuple):  # Right to left: asks to be fed, with the state of the log.
    epoch: int
    version: int
    history: History
    end: int


class Detach(NamedTuple):  # Right to left: another member feeds the sender.
    epoch: int


class Deny(NamedTuple):  # Left to right: the sender cannot feed the receiver, which asks another.
    epoch: int


class Blocks(NamedTuple):  # Left to right. Empty: an answer to Attach, or only a confirmed number.
    epoch: int
    version: int
    confirmed: int
    previous_epoch: int
    previous: int
    blocks: tuple[Block, ...]


class Got(NamedTuple):  # Right to left: the blocks on the sender's disk; more may be sent.
    epoch: int
    durable: int


class Numbers(NamedTuple):  # To the master; without a link to it, through the left neighbour.
    epoch: int
    entries: tuple[tuple[str, Entry], ...]


class Reset(NamedTuple):  # Left to right: the missing blocks were dropped. Start again at the cut, and fill.
    epoch: int
    version: int
    cut: int
    history: History
    known: int  # Up to here both logs are equal.
    bound: int  # The highest message number in blocks up to the cut.
    delivered: int = 0  # Messages up to here may have been delivered.


class Fetch(NamedTuple):  # From a member that is being filled, to a complete one in sync.
    epoch: int
    cut: int
    after: int
    bound: int
    have: Ranges  # Messages whose contents need not be sent.
    bytes_max: int  # 0: send only what needs no contents.
    batch: int = 0  # Message numbers in one piece, of several; 0: no limit, and one piece.


class Piece(NamedTuple):
    epoch: int
    cut: int
    after: int
    have: Ranges  # `cut`, `after` and `have` are those of the request, so that answers to others are ignored.
    upto: int  # The piece is about the messages after + 1 to upto.
    live: Ranges  # The live ones of these.
    runs: tuple[Run, ...]  # The contents of those that the asker lacks.
    read_at: int  # The source's confirmed number at the read.
    counts: Counts = ()  # How often live messages were requeued.
    marks: tuple[Mark, ...] = ()  # All marks of the queue, in the first piece.
    more: bool = False  # The next piece of the same answer follows.
    requeued: Ranges = ()  # Live messages that may have been delivered.


class Pulse(NamedTuple):  # From the master: whether it leads and reaches the majority, and the end of its log.
    epoch: int
    working: bool
    end: int
    fill: bool | None = None  # An operator's order to fill mirrors, or not; None: there is none.


class Leave(NamedTuple):  # The sender's disk has failed, or lost blocks: do not wait for it.
    epoch: int


class Standing(NamedTuple):
    version: int
    disk: str
    last_epoch: int
    end: int
    hears: bool  # It hears a working master.
    complete: bool
    majority: bool = True  # It reaches the majority, so it could serve as master.


class Poll(NamedTuple):  # Asks for the receiver's Standing, and has the sender's.
    version: int
    vacant: bool  # The sender is the view's master, but does not lead.
    standing: Standing


class Newer(NamedTuple):  # Of earlier versions: there is a newer view. Ignored.
    version: int


Frame = (
    Attach | Detach | Deny | Blocks | Got | Numbers | Reset | Fetch | Piece | Pulse | Leave | Poll | Standing | Newer
)


# -- what is written -------------------------------------------------------------------


class Append(NamedTuple):
    blocks: tuple[Block, ...]


class Truncate(NamedTuple):  # Blocks above this number are void. None of them was applied.
    number: int


class Restart(NamedTuple):
    """The log starts again after `cut`. Blocks that were not applied are void; so is everything, unless `have` names
    messages: then stored messages stay. `Recovered` must return `read_at` and the rest."""

    cut: int
    history: History
    bound: int
    have: Ranges
    read_at: int
    delivered: int = 0  # Messages up to here may have been delivered.


class Fill(NamedTuple):
    """Of the messages after + 1 to upto, only `live` are left; settle all others, and store `runs`. A few of `live` may
    be neither stored nor in `runs`, if the piece is older than an earlier one: their settles will arrive."""

    after: int
    upto: int
    live: Ranges
    runs: tuple[Run, ...]
    read_at: int
    counts: Counts = ()
    marks: tuple[Mark, ...] = ()
    requeued: Ranges = ()


class Complete(NamedTuple):  # The copy is complete once blocks up to here are applied.
    read_at: int


Change = Append | Truncate | Restart | Fill | Complete


# -- effects ---------------------------------------------------------------------------


class Send(NamedTuple):
    to: str
    frame: Frame


class Write(NamedTuple):
    """A write, in the order of ids. `confirmed` is written along with it, and never alone."""

    id: int
    change: Change
    confirmed: int


class Apply(NamedTuple):  # These blocks are confirmed: they take effect on the stored state, in this order.
    blocks: tuple[Block, ...]


class Confirmed(NamedTuple):  # Master: persistent messages up to `durable`, transient ones up to `received`.
    epoch: int
    durable: int
    received: int


class ProposeView(NamedTuple):  # Compare-and-set through consensus. The outcome is known, if at all, by a view.
    view: View


class Started(NamedTuple):
    """This member leads from now on; its next block is number + 1. `tail`: the unapplied blocks without the start
    block; the stored state and these are the queue."""

    epoch: int
    number: int
    tail: tuple[Block, ...]
    forced: bool


class Stopped(NamedTuple):  # This member no longer leads.
    epoch: int
    handed: bool = False  # By a hand-over: the new master has all its blocks.


class Request(NamedTuple):
    """A request for a piece."""

    to: str
    cut: int
    after: int
    bound: int
    have: Ranges
    bytes_max: int
    read_at: int
    batch: int = 0


class Read(NamedTuple):
    """Note at once which messages of after + 1 to bound are live, then read contents of those not in `have`, about
    `bytes_max` bytes; answer with `on_read`."""

    request: Request


class HandOverDue(NamedTuple):  # This node's disk holds up all confirms: call `hand_over` to this member.
    to: str


class Resumed(NamedTuple):  # A hand-over was given up; this member serves again.
    epoch: int


class Left(NamedTuple):  # No longer a member of the ring: the copy may be deleted.
    version: int


Effect = (
    Send | Write | Apply | Confirmed | ProposeView | Started | Stopped | Read | HandOverDue | Resumed | Left
)


# -- the start of a member -----------------------------------------------------------------


Lost = Callable[[int], list[tuple[int, int]]]  # Returns the numbers of messages of a group that are not stored.
# Returns the marks that a start block sets: for a group, the epoch before, and the blocks that are not applied.
StartMarks = Callable[[int, int, tuple[Block, ...]], dict[bytes, bytes]]


class Recovered(NamedTuple):
    """The state of a log after a start. Blocks up to `base` are applied, `blocks` follow them without gaps."""

    base: int = 0  # At most the confirmed number; at least the highest one noted in a surviving write.
    history: History = ()
    messages: int = 0  # The highest message number in applied blocks.
    blocks: tuple[Block, ...] = ()
    complete: bool = True
    read_at: int = 0
    cut: int = 0  # If it is not complete: the cut of its filling.
    bound: int = 0
    after: int = 0
    have: Ranges = ()
    marked: bool = False  # If it is not complete: it has the queue's marks.
    delivered: int = 0  # Messages up to here may have been delivered, by the applied blocks.


NEWBORN_PATIENCE: Final = 4  # A group that is just being created repeats itself so many times more slowly.


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a member. Times are in ticks, of which a shell has about twenty a second."""

    star: bool = False  # The master feeds all members: for small blocks on fast networks.
    asynchronous: bool = False  # Messages are confirmed after the master's own sync alone.
    incremental: bool = True  # A mirror that returns fetches only what it lacks; otherwise all.
    promote_always: bool = False  # If no in-sync member is left, promote the best of the others by force.
    filling: bool = True  # A member that lacks messages fetches them by itself.
    fill_bytes_per_tick: int = 0  # 0: no limit.
    fill_messages: int = 0  # Message numbers in one piece; 0: no limit.
    retry: int = 3  # Until an unanswered request is repeated.
    unlinked: int = 1  # Until an in-sync member without a link that holds up confirms is removed.
    slow: int = 40  # The same with a link, but without progress.
    own_slow: int = 20  # Until a master hands over whose own disk alone holds up confirms.
    orphaned: int = 40  # Until `promote_always` takes effect, without any in-sync member.
    patience: int = 10  # How long confirms wait for a member that has nearly caught up.
    # These limits are per queue; the shell limits what all queues take together.
    window_bytes: int = 4 << 20  # Sent to a neighbour and not yet on its disk.
    unconfirmed_bytes_max: int = 8 << 20  # With more, publishers wait.
    retain_bytes: int = 2 << 20  # Confirmed blocks kept for neighbours that lack them.
    frame_bytes: int = 1 << 20  # The blocks in one frame.
    frame_blocks: int = 1024
    piece_bytes: int = 1 << 20


PLAIN: Final = Options()
