"""What concerns all copies on a node at once is told to each of them in its turn.

A node is lost, or found again; the majority is; a policy changes: every mirrored queue has to hear of it, and there may
be a hundred thousand. If all of them were told in one pass of the event loop, the node would answer nobody meanwhile,
other nodes would take it for lost as well, and so one loss would become several.

So such *tidings* are kept in their order, and two kinds of events bring them to a copy:

- Somebody is about to do something with it: a frame for it has come, a view, a tick. Then it first hears all that it
  has not heard yet (`catch_up`). So whoever looks at a copy in order to act sees one that heard everything at once, in
  the order in which it happened; nothing can tell the difference, but for when a copy begins to act by itself.
- Nobody does. Then its turn comes in the *round*, some copies in each turn of the node (`go_on`). Those that were used
  a short while ago, and those that a client waits for (`hasten`), come first, however many others there are. The rest
  does not even begin while so many of them have work under way that these would have to wait for it: see `Mirrors`.

That a copy hears of something a moment later is nothing new to it: a lost link is noticed late, too, and by each node
at another moment. What must not happen is that something of before a loss is done after the link is back, since frames
of an old session mean nothing in a new one. So a copy that hears of a loss drops what it was about to send there.

A round that has begun is finished before the next one begins, so each copy has its turn however much happens. What all
have heard is forgotten; should there be `TIDINGS_MAX` before a round is over, then what is left of it is done at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from leveret.metadata.rules.policies import SPENT_MAX

if TYPE_CHECKING:
    from leveret.broker.mirrors.manager import Mirror

TOLD_AT_ONCE: Final = 16  # Copies in a turn.
TIDINGS_MAX: Final = 1_000
USED_TICKS: Final = 500  # So long a queue counts as used.

Tell: TypeAlias = "Callable[[Mirror], None]"


class Broadcast:
    """Of all copies on one node, which are in `mirrors` by their numbers."""

    def __init__(self, mirrors: dict[int, Mirror]) -> None:
        self.mirrors = mirrors
        self.told = 0  # So many tidings there were. A copy has the number of those that it has heard.
        self._tidings: deque[Tell] = deque()  # The last of them: those that not all have heard.
        self._left: list[Mirror] = []  # Of the present round, the next one last.
        self._through = 0  # The present round is over when all have heard as many.
        self.spent: Callable[[], int] = lambda: 0  # By searches for names, as `PolicyBook.spent`.
        self._first: dict[int, None] = {}  # Those whose turn comes before the round's, by their numbers.
        self._used: dict[int, int] = {}  # In which tick each was used, the last one last.
        self._tick = 0
        self._hastened_at = -USED_TICKS  # The tick in which the last of them was told.

    def __bool__(self) -> bool:
        """Whether somebody has not heard everything."""
        return bool(self._tidings)

    @property
    def is_urgent(self) -> bool:
        """Whether somebody is among them that is used."""
        return bool(self._first)

    @property
    def may_follow(self) -> bool:
        """Whether the round may go on: those that are used had a moment to ask each other how they stand."""
        return not self._first and self._tick > self._hastened_at + 1

    def is_used(self, mirror: Mirror) -> bool:
        return self._used.get(mirror.spec.id, -USED_TICKS) >= self._tick - USED_TICKS

    def on_tick(self) -> None:
        self._tick += 1

    def on_used(self, mirror: Mirror) -> None:
        """A client has published to the queue, or taken something from it."""
        number = mirror.spec.id
        if self._used.get(number) != self._tick:
            self._used.pop(number, None)
            self._used[number] = self._tick

    def hasten(self, mirror: Mirror) -> None:
        """A client waits for what this copy does next."""
        self.on_used(mirror)
        if mirror.heard < self.told:
            self._first[mirror.spec.id] = None

    def forget(self, mirror: Mirror) -> None:
        self._used.pop(mirror.spec.id, None)
        self._first.pop(mirror.spec.id, None)

    def tell(self, tell: Tell) -> None:
        """Have every copy hear of something. One that comes to be later finds the world as it is then."""
        if not self.mirrors:
            return
        if len(self._tidings) >= TIDINGS_MAX:
            while self._tidings:
                self.go_on()
        self._tidings.append(tell)
        self.told += 1
        for number in reversed(self._used):
            if self._used[number] < self._tick - USED_TICKS:
                break
            self._first[number] = None

    def catch_up(self, mirror: Mirror) -> None:
        """Before anything is done with a copy."""
        missed = self.told - mirror.heard
        if missed:
            mirror.hear(self.told)
            self._first.pop(mirror.spec.id, None)
            for tell in list(self._tidings)[-missed:]:
                tell(mirror)

    def go_on(self) -> None:
        """Tell the next few."""
        enough = self.spent() + SPENT_MAX
        if self._first:
            self._hastened_at = self._tick
            for number in list(islice(self._first, TOLD_AT_ONCE)):
                self._first.pop(number, None)
                if number in self.mirrors:
                    self.catch_up(self.mirrors[number])
                if self.spent() > enough:
                    break
            return
        if not self._left:
            self._left = list(self.mirrors.values())
            self._left.reverse()
            self._through = self.told
        for _ in range(min(TOLD_AT_ONCE, len(self._left))):
            mirror = self._left.pop()
            if self.mirrors.get(mirror.spec.id) is mirror:  # Else it was given up meanwhile.
                self.catch_up(mirror)
                if self.spent() > enough:
                    break
        if not self._left:
            while len(self._tidings) > self.told - self._through:
                self._tidings.popleft()
