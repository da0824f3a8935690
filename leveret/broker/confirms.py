"""Publisher confirms of one channel: which numbers may be acknowledged, in as few frames as possible.

Publishes are numbered from 1. A bundle of publishes that share their fate is one `Pending`; it is complete when every
queue it went to has it safe. Complete bundles at the front leave as one `multiple` ack; a bundle that overtook an
older one leaves at once too, number by number, so that one stuck queue holds back no other publisher's confirm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol


class Confirmer(Protocol):
    """Whoever is told when all queues have a publish safe."""

    def on_complete(self, pending: Pending) -> None: ...


class Pending:
    """The publishes `first`..`last` of a channel, waiting for `waiting` queues."""

    __slots__ = ("confirms", "count", "first", "last", "refused", "sent", "waiting")

    def __init__(self, confirms: Confirmer, first: int, last: int) -> None:
        self.confirms = confirms
        self.first = first
        self.last = last
        self.count = last - first + 1  # Messages that it stands for: those of a link have one number together.
        self.waiting = 0
        self.refused = False
        self.sent = False

    def on_safe(self) -> None:
        """One more queue has these messages safe."""
        self.waiting -= 1
        if not self.waiting:
            self.confirms.on_complete(self)


class Confirms:
    """The confirm side of a channel in confirm mode."""

    __slots__ = ("confirmed", "on_ready", "open", "overtook", "published", "who")

    def __init__(self, on_ready: Callable[[], None], who: str = "") -> None:
        self.on_ready = on_ready  # `take` has something.
        self.who = who  # For people.
        self.published = 0
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

    def on_complete(self, pending: Pending) -> None:
        if self.open and self.open[0] is not pending:
            self.overtook.append(pending)
        self.on_ready()

    def take(self) -> list[tuple[int, bool, bool]]:
        """What may be told now: (number, multiple, refused) for each frame, in order."""
        frames: list[tuple[int, bool, bool]] = []
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
