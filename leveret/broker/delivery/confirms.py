"""Publisher confirms of one channel: which numbers may be acknowledged, in as few frames as possible.

Publishes are numbered from 1. A bundle of publishes that share their fate is one `Pending`; it is complete when every
queue it went to has it safe. Complete bundles at the front leave as one `multiple` ack; a bundle that overtook an
older one leaves at once too, number by number, so that one stuck queue holds back no other publisher's confirm.

**Refused, or in doubt.** A queue that is full refuses a publish for good. A link or a master that is lost leaves it in
doubt: the messages may have arrived or not. Whoever can send them again under the same numbers does (see `outbox`); to
a client, both are a nack.

**In time.** Whatever becomes of a publish, its client does not wait for ever: what has no answer after so many looks at
the clock (`overdue`) is refused. It may turn out to be kept; nobody listens to that any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

NEVER: Final = 1 << 62  # A message number, or a set of bits, that no message reaches.
REFUSED: Final = 1
DOUBTED: Final = 2


class Confirmer(Protocol):
    """Is told when all queues have a publish safe."""

    def on_complete(self, pending: Pending) -> None: ...


class Numbers(NamedTuple):
    """The numbers `low` to `high` of a producer: see `broker.queue.dedup`."""

    producer: bytes
    low: int
    high: int


class Pending:
    """The publishes `first`..`last` of a channel, waiting for `waiting` queues."""

    __slots__ = ("confirms", "count", "first", "last", "refused", "sent", "waiting")

    def __init__(self, confirms: Confirmer, first: int, last: int) -> None:
        self.confirms = confirms
        self.first = first
        self.last = last
        self.count = last - first + 1  # Messages that it stands for: those of a link have one number together.
        self.waiting = 0
        self.refused: int = 0  # `REFUSED` or `DOUBTED`.
        self.sent = False

    def on_safe(self) -> None:
        """One more queue has these messages safe."""
        self.waiting -= 1
        if not self.waiting:
            self.confirms.on_complete(self)

    def refuse(self, why: int) -> None:
        """One more queue does not have them safe. What one has refused, no other can bring in doubt."""
        if self.refused != REFUSED:
            self.refused = why
        self.on_safe()

    def mark_refused(self, why: int = REFUSED) -> None:
        """Note that a queue does not take them, before any queue counts itself into `waiting`, or in its place."""
        self.refused = why

    def give_up(self) -> None:
        """Tell nobody: the client was answered before."""
        self.confirms = NOBODY

    @property
    def client_publish(self) -> Pending:
        """Return the publish of the client, for messages that are sent in its place."""
        return self

    @property
    def is_kept(self) -> bool:
        """Tell whether an outbox keeps the messages, with their numbers: see `broker.remote.outbox`."""
        return False

    @property
    def numbered(self) -> Numbers | None:
        """Return the producer's numbers of the messages, if a node sends them under such numbers."""
        return None

    @property
    def senders(self) -> list[tuple[Pending | None, int]]:
        """Return the publishes of clients that it stands for, in their order, and how many messages each has."""
        return [(self, self.count)]

    def take_part(self, low: int, high: int) -> None:
        """Only messages among these numbers of the producer are new to the queue."""

    def is_wanted(self) -> bool:
        """Tell whether a client still waits for the confirm."""
        return self.confirms is not NOBODY


class Bundle(Pending):
    """Messages that came over a link: one number of the link, and for each message one of its producer."""

    __slots__ = ("high", "low", "producer")

    def __init__(self, confirms: Confirmer, token: int, numbers: Numbers) -> None:
        super().__init__(confirms, token, token)
        self.producer, self.low, self.high = numbers
        self.count = self.high - self.low + 1

    @property
    def numbered(self) -> Numbers:
        return Numbers(self.producer, self.low, self.high)

    @property
    def senders(self) -> list[tuple[Pending | None, int]]:
        return []  # The node of the clients knows them.

    def take_part(self, low: int, high: int) -> None:
        self.low, self.high = low, high


class _Nobody:
    """Listens in place of who was answered before."""

    def on_complete(self, pending: Pending) -> None:
        """Do nothing: no client waits any more."""


NOBODY: Final = _Nobody()


class Confirms:
    """The confirm side of a channel in confirm mode."""

    __slots__ = ("confirmed", "is_of_link", "on_ready", "open", "overtook", "past", "published", "who")

    def __init__(self, on_ready: Callable[[], None], who: str = "", is_of_link: bool = False) -> None:
        self.on_ready = on_ready  # `take` has something.
        self.who = who  # For people.
        self.is_of_link = is_of_link  # Another node waits for them, and knows what to do about those in doubt.
        self.published = 0
        self.past: deque[int] = deque()  # How many there were at the last looks.
        self.confirmed = 0
        self.open: deque[Pending] = deque()
        self.overtook: list[Pending] = []

    def begin(self, count: int) -> Pending:
        """Number the next `count` publishes. Queues count themselves into `waiting`; if none does, it is complete."""
        first = self.published + 1
        self.published += count
        pending = Pending(self, first, self.published)
        self.open.append(pending)
        return pending

    def begin_bundle(self, numbers: Numbers) -> Pending:
        """Number a bundle that came over a link."""
        self.published += 1
        pending = Bundle(self, self.published, numbers)
        self.open.append(pending)
        return pending

    def on_complete(self, pending: Pending) -> None:
        if self.open and self.open[0] is not pending:
            self.overtook.append(pending)
        self.on_ready()

    def overdue(self, looks: int) -> int:
        """Called at even intervals. Refuses what has been waiting for so many of them, and says how many that is."""
        if not self.open:
            self.past.clear()
            return 0
        self.past.append(self.published)
        if len(self.past) <= looks:
            return 0
        last, late = 0, 0
        while len(self.past) > looks:
            last = self.past.popleft()
        for at, pending in enumerate(self.open):
            if pending.last > last:
                break
            if pending.waiting and not pending.sent:
                late += pending.count
                answer = self.open[at] = Pending(self, pending.first, pending.last)
                answer.mark_refused()
                pending.give_up()
        if late:
            self.on_ready()
        return late

    def take(self) -> list[tuple[int, bool, int]]:
        """Take the confirms to send now, in order: (number, multiple, refused) for each frame."""
        frames: list[tuple[int, bool, int]] = []
        opened = self.open
        while opened and not opened[0].waiting:
            head = opened.popleft()
            if head.sent:
                continue
            refused, first, last = head.refused, head.first, head.last
            while opened and not opened[0].waiting and not opened[0].sent and opened[0].refused == refused:
                last = opened.popleft().last
            frames.append((last, last > first, refused))
            if not refused:
                self.confirmed += last - first + 1
        if self.overtook:
            if opened:
                for late in self.overtook:
                    if not late.sent and late.first > opened[0].last:
                        late.sent = True
                        if not late.refused:
                            self.confirmed += late.last - late.first + 1
                        frames.extend((number, False, late.refused) for number in range(late.first, late.last + 1))
            self.overtook.clear()
        return frames
