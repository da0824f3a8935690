"""What goes into a member of a ring and what comes out of it, as values.

Frames travel between members. All carry the epoch they belong to, except `Poll`, `Standing` and `Newer`, which are
about finding the next one and carry the view's version. Effects are what the shell has to do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from leveret.metadata.model.view import View
from leveret.storage.format.queue_block import Block, Run
from leveret.storage.format.queue_marks import Mark

History = tuple[tuple[int, int], ...]  # (epoch, number of its first block), ascending.
Ranges = tuple[tuple[int, int], ...]  # Inclusive ranges of message numbers, ascending.
Counts = tuple[tuple[int, int, int], ...]  # The same, with a number for each.


class ProtocolError(AssertionError):
    """An invariant of the ring is broken. Whoever meets this serves the queue no more: its log cannot be trusted."""


class Entry(NamedTuple):
    """What one member says of itself within one epoch. The numbers are 0 while its log may differ from the master's."""

    disk: str
    stamp: int  # Rises with all a member says, over its restarts too. Numbers may take different ways home.
    received: int
    durable: int
    complete: bool  # Nothing is missing below its blocks, and its disk knows that.
    lacks: Ranges = ()  # Messages that it has not dealt with, while it is not complete.


# -- frames --------------------------------------------------------------------------


class Attach(NamedTuple):  # Right to left: feed me; so far I have this.
    epoch: int
    version: int
    history: History
    end: int


class Detach(NamedTuple):  # Right to left: somebody else feeds me.
    epoch: int


class Deny(NamedTuple):  # Left to right: I cannot feed you. Ask another.
    epoch: int


class Blocks(NamedTuple):  # Left to right. Empty: an answer to Attach, or news of what is confirmed.
    epoch: int
    version: int
    confirmed: int
    previous_epoch: int
    previous: int
    blocks: tuple[Block, ...]


class Got(NamedTuple):  # Right to left: my disk has this much; send more.
    epoch: int
    durable: int


class Numbers(NamedTuple):  # To the master; if there is no link to it, through the left neighbour.
    epoch: int
    entries: tuple[tuple[str, Entry], ...]


class Reset(NamedTuple):  # Left to right: what you lack is no longer there as blocks. Begin at the cut, and fill.
    epoch: int
    version: int
    cut: int
    history: History
    known: int  # Up to here your log equals mine.
    bound: int  # No message of a block up to the cut has a higher number.
    delivered: int = 0  # Up to this one they may have been delivered.


class Fetch(NamedTuple):  # From a member that fills up, to a complete one in sync.
    epoch: int
    cut: int
    after: int
    bound: int
    have: Ranges  # Contents that need not be sent.
    bytes_max: int  # 0: only what needs no contents.
    batch: int = 0  # Message numbers in one piece; the answer is several pieces then. 0: no limit, and one piece.


class Piece(NamedTuple):
    epoch: int
    cut: int
    after: int
    have: Ranges  # These three are the question's: nobody takes the answer to another one.
    upto: int  # The piece says all about the messages after + 1 to upto:
    live: Ranges  # these live,
    runs: tuple[Run, ...]  # and these are the contents of those that the asker lacks.
    read_at: int  # The source's confirmed number when it looked.
    counts: Counts = ()  # How often those that live were given back.
    marks: tuple[Mark, ...] = ()  # All that the queue has, in the answer to who has dealt with nothing yet.
    more: bool = False  # The next piece of the same answer follows.


class Pulse(NamedTuple):  # From the master: I lead and reach the majority (or no longer), and my log ends here.
    epoch: int
    working: bool
    end: int
    fill: bool | None = None  # An operator wants those who lack messages to fetch them, or not; or has said nothing.


class Leave(NamedTuple):  # My disk has failed. Do not wait for me.
    epoch: int


class Standing(NamedTuple):
    version: int
    disk: str
    last_epoch: int
    end: int
    hears: bool  # A working master.
    complete: bool
    majority: bool = True  # Reaches it: could serve, if it led.


class Poll(NamedTuple):  # How do you stand? I stand thus.
    version: int
    vacant: bool  # I am the view's master, but lead no longer.
    standing: Standing


class Newer(NamedTuple):  # Your epoch or version is over: look up the view.
    version: int


Frame = (
    Attach | Detach | Deny | Blocks | Got | Numbers | Reset | Fetch | Piece | Pulse | Leave | Poll | Standing | Newer
)


# -- what is written -------------------------------------------------------------------


class Append(NamedTuple):
    blocks: tuple[Block, ...]


class Truncate(NamedTuple):  # Blocks above this number never were. None of them has been applied.
    number: int


class Restart(NamedTuple):
    """The log begins anew after `cut`. Blocks that were not applied are void; so is everything, unless `have` names
    messages: then what is stored stays. `read_at` and the rest are what `Recovered` has to give back."""

    cut: int
    history: History
    bound: int
    have: Ranges
    read_at: int
    delivered: int = 0  # Messages up to here may have been delivered.


class Fill(NamedTuple):
    """Of the messages after + 1 to upto, only `live` are left; settle all others, and store `runs`. A few of `live` may
    be neither stored nor among `runs`, if the piece is older than one before it: their settles are on their way."""

    after: int
    upto: int
    live: Ranges
    runs: tuple[Run, ...]
    read_at: int
    counts: Counts = ()
    marks: tuple[Mark, ...] = ()


class Complete(NamedTuple):  # Nothing is missing any more once blocks up to here are applied.
    read_at: int


Change = Append | Truncate | Restart | Fill | Complete


# -- effects ---------------------------------------------------------------------------


class Send(NamedTuple):
    to: str
    frame: Frame


class Write(NamedTuple):
    """To be written in the order of ids. `confirmed` is to be noted along with it, and is never worth a write."""

    id: int
    change: Change
    confirmed: int


class Apply(NamedTuple):  # These are confirmed: they take effect on what is stored, in this order.
    blocks: tuple[Block, ...]


class Confirmed(NamedTuple):  # Master: persistent messages up to `durable`, transient ones up to `received`.
    epoch: int
    durable: int
    received: int


class ProposeView(NamedTuple):  # Compare-and-set through consensus. The outcome comes, if at all, as a view.
    view: View


class Started(NamedTuple):
    """This member leads from now on; its next block is number + 1. `tail`: blocks above what is applied, without the
    start block: whatever is stored plus these is the queue."""

    epoch: int
    number: int
    tail: tuple[Block, ...]
    forced: bool


class Stopped(NamedTuple):  # It leads no longer.
    epoch: int
    handed: bool = False  # It wanted that, and whoever leads now has all its blocks.


class Request(NamedTuple):
    to: str
    cut: int
    after: int
    bound: int
    have: Ranges
    bytes_max: int
    read_at: int
    batch: int = 0


class Read(NamedTuple):
    """Look at once which messages after + 1 to bound live, then read contents of those not in `have`, about
    `bytes_max` bytes; answer with `on_read`."""

    request: Request


class HandOverDue(NamedTuple):  # Our own disk holds everybody up: `hand_over` to this member.
    to: str


class Resumed(NamedTuple):  # A hand-over was given up; this member serves again.
    epoch: int


class Left(NamedTuple):  # No longer a member of the ring: what is stored may go.
    version: int


Effect = (
    Send | Write | Apply | Confirmed | ProposeView | Started | Stopped | Read | HandOverDue | Resumed | Left
)


# -- what a member is given at its start ---------------------------------------------------


Lost = Callable[[], list[tuple[int, int]]]  # Message numbers that are not stored, up to the highest that is.


class Recovered(NamedTuple):
    """What a log holds after a start. Blocks up to `base` are applied, `blocks` follow them without gaps."""

    base: int = 0  # At most what was confirmed; at least the highest number noted with a surviving write.
    history: History = ()
    messages: int = 0  # No message of an applied block has a higher number.
    blocks: tuple[Block, ...] = ()
    complete: bool = True
    read_at: int = 0
    cut: int = 0  # Where it is not complete: what it was filling, and how far.
    bound: int = 0
    after: int = 0
    have: Ranges = ()
    marked: bool = False  # And whether it has been given the queue's marks.
    delivered: int = 0  # As far as applied blocks say.


@dataclass(frozen=True)
class Options:
    """Times are in ticks. A shell that ticks every 50 ms gives seconds to what the defaults call slow."""

    star: bool = False  # Everybody is fed by the master: for small blocks on fast networks.
    asynchronous: bool = False  # Publishers are confirmed after the master's own sync alone.
    incremental: bool = True  # One that returns fetches only what it lacks; else it fetches all.
    promote_always: bool = False  # When no in-sync member is left, the best of the others is promoted, by force.
    filling: bool = True  # A member that lacks messages fetches their contents by itself.
    fill_bytes_per_tick: int = 0  # 0: no limit.
    fill_messages: int = 0  # Message numbers in one piece; 0: no limit.
    retry: int = 3  # An unanswered question is repeated.
    unlinked: int = 1  # An in-sync member without a link that holds up confirms is removed.
    slow: int = 40  # One with a link, but without progress.
    own_slow: int = 20  # Our own disk is the only one that holds up confirms: hand over.
    orphaned: int = 40  # No in-sync member is reached: `promote_always` comes into force.
    patience: int = 10  # Confirms wait so long for one who has nearly caught up.
    # These are for one queue; that a thousand of them do not take too much together is for the shell to see to.
    window_bytes: int = 4 << 20  # Sent to a neighbour and not on its disk.
    unconfirmed_bytes_max: int = 8 << 20  # More, and publishers wait.
    retain_bytes: int = 2 << 20  # Confirmed blocks kept for neighbours that lack them.
    frame_bytes: int = 1 << 20  # Of blocks in one frame.
    frame_blocks: int = 1024
    piece_bytes: int = 1 << 20
