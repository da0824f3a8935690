"""Tells all copies on a node of events that concern every one of them, a few copies in each turn.

A node is lost, or found again; the majority is; a policy changes: every mirrored queue has to be told of it, and there
may be a hundred thousand. If all of them were told in one pass of the event loop, the node would answer nobody
meanwhile, other nodes would take it for lost as well, and so one loss would become several.

So such events are kept in their order, and a copy is told of them in one of two ways:

- Something is about to be done with the copy: a frame for it has come, a view, a tick. Then it is first told of all
  events that it has not heard of (`catch_up`). So a copy that is about to act has been told of everything, in the order
  in which it happened; the only difference is the moment at which a copy begins to act by itself.
- Nothing is done with it. Then its turn comes in the *round*, some copies in each turn of the node (`go_on`). Copies
  that were used a short while ago, and those that a client waits for (`tell_first`), come first, however many others
  there are. The round does not even begin while so many copies have work under way that the ones in use would have to
  wait for it: see `MirrorManager`.

That a copy is told of something a moment late is no new case for it: a lost link is noticed late, too, and by each node
at another moment. But nothing from before a loss may be done after the link is back, since frames of an old session
mean nothing in a new one. So a copy that is told of a loss drops what it was about to send there.

A round that has begun is finished before the next one begins, so each copy has its turn however much happens. An event
is forgotten when all copies were told of it; if there are `EVENTS_MAX` before a round is over, the rest of the round is
done at once.
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
EVENTS_MAX: Final = 1_000
USED_TICKS: Final = 500  # How long a queue counts as used after a client has used it.

Tell: TypeAlias = "Callable[[Mirror], None]"


class Broadcast:
    """The events that the copies on one node, which are in `mirrors` by their numbers, have to be told of."""

    def __init__(self, mirrors: dict[int, Mirror]) -> None:
        self.mirrors = mirrors
        self.told = 0  # The number of events so far; `Mirror.heard` is how many of them that copy was told of.
        self.events: deque[Tell] = deque()  # The last events: not all copies were told of them.
        self._left: list[Mirror] = []  # Copies still to be told in the present round, the next one last.
        self._through = 0  # The present round tells all copies of events up to this number.
        self.spent: Callable[[], int] = lambda: 0  # Cost of matching policies so far: `Policies.spent`.
        self._first: dict[int, None] = {}  # Copies that are told before the round's, by their numbers.
        self._used: dict[int, int] = {}  # The tick in which each copy was last used, the most recent last.
        self._tick = 0
        self._hastened_at = -USED_TICKS  # The tick in which a copy out of `_first` was last told.

    def __bool__(self) -> bool:
        """Returns whether some copy has not been told of everything."""
        return bool(self.events)

    @property
    def is_urgent(self) -> bool:
        """Returns whether a copy in use has not been told of everything."""
        return bool(self._first)

    @property
    def may_follow(self) -> bool:
        """Returns whether the round may go on: copies in use had a tick's time to exchange frames first."""
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

    def tell_first(self, mirror: Mirror) -> None:
        """A client waits for what this copy does next."""
        self.on_used(mirror)
        if mirror.heard < self.told:
            self._first[mirror.spec.id] = None

    def forget(self, mirror: Mirror) -> None:
        self._used.pop(mirror.spec.id, None)
        self._first.pop(mirror.spec.id, None)

    def tell(self, tell: Tell) -> None:
        """Have every copy told of an event. A copy made later does not need it."""
        if not self.mirrors:
            return
        if len(self.events) >= EVENTS_MAX:
            while self.events:
                self.go_on()
        self.events.append(tell)
        self.told += 1
        for number in reversed(self._used):
            if self._used[number] < self._tick - USED_TICKS:
                break
            self._first[number] = None

    def catch_up(self, mirror: Mirror) -> None:
        """Tell a copy of all events that it has not heard of. Called before anything is done with it."""
        missed = self.told - mirror.heard
        if missed:
            mirror.hear(self.told)
            self._first.pop(mirror.spec.id, None)
            for tell in list(self.events)[-missed:]:
                tell(mirror)

    def go_on(self) -> None:
        """Tell the next few copies."""
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
            if self.mirrors.get(mirror.spec.id) is mirror:  # Else this node has dropped the copy meanwhile.
                self.catch_up(mirror)
                if self.spent() > enough:
                    break
        if not self._left:
            while len(self.events) > self.told - self._through:
                self.events.popleft()
