"""Publishes to many queues, in slices.

A message for 1,500 queues is held once, but each queue has a place for it, and each writes a record of it. One read of
a socket brings up to some thousand such messages; of a hundred publishers that would be gigabytes of places in one
turn, and nobody else would be served meanwhile. So a turn has a budget of *copies*, which are messages times queues.
Whoever has used it up waits: a connection keeps the rest of its input and is not read from, a transaction keeps the
rest of its publishes. They go on in the next turns, in the order in which they began to wait, and not while too much
waits for the disk.

To have a queue take a bundle of messages costs a turn as much as some copies, however few messages there are
(`BUNDLE_COPIES`): else seven messages with different keys, each to ten thousand queues, would be one turn.

A message for few queues costs about what it costs to read it, so it is not counted.
"""

from __future__ import annotations

from typing import Final, Protocol

COPIES_MAX: Final = 1 << 16  # In one turn.
BUNDLE_COPIES: Final = 8  # For each queue that takes a bundle, besides its messages.
FEW: Final = 8  # A publish to at most so many queues is not counted.


class Spreader(Protocol):
    """Publishes to many queues."""

    def on_portion(self) -> None:
        """Go on, as far as the budget of this turn allows, and wait again if something is left."""


class Fanout:
    """Shares out a turn's budget of copies among those who publish to many queues."""

    __slots__ = ("left", "waiting")

    def __init__(self) -> None:
        self.left = COPIES_MAX
        self.waiting: dict[Spreader, None] = {}

    def portion(self, queues: int) -> int:
        """Returns how many messages to so many queues fit into this turn; at least one while any budget is left."""
        return max(1, -(-self.left // queues) - BUNDLE_COPIES) if self.left > 0 else 0

    def spend(self, messages: int, queues: int) -> bool:
        """Counts a bundle of messages to so many queues. Returns whether the budget is used up."""
        self.left -= (messages + BUNDLE_COPIES) * queues
        return self.left <= 0

    def begin_turn(self, is_crowded: bool) -> None:
        """Let those go on that wait. `is_crowded`: too much waits for the disk."""
        waiting = self.waiting
        self.left = 0 if is_crowded and waiting else COPIES_MAX
        while waiting and self.left > 0:
            first = next(iter(waiting))
            del waiting[first]
            first.on_portion()
        if waiting:
            self.left = 0  # New publishes wait behind the others.
