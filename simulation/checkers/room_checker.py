"""Checks that nodes with spooled messages wait until the disk of the receiver has room for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# Time until free disk space is measured, reported over a slow link, and compared with spools.
ROOM_S: Final = 8.0


class RoomChecker:
    """Checks that no node sends spooled messages to another whose disk has no room for them."""

    def __init__(self, fail: Callable[[str], None], clock: Callable[[], float]) -> None:
        self.fail = fail
        self.clock = clock
        self.since: dict[tuple[str, str], float] = {}  # By sender and receiver: since when there is no room.
        self.seen: dict[tuple[str, str], float] = {}  # When the pair was last observed.
        self.launched: dict[tuple[str, str], int] = {}
        self.checked = 0  # How often a node had reason to wait.

    def observe(self, sender: str, receiver: str, due: int, launched: int, room: int, knows: bool) -> None:
        """Observes what waits at one node for another, what it has ever sent, and the room there. `knows`: the
        receiver is running, so that it can report."""
        way = (sender, receiver)
        before = self.launched.get(way, 0)
        self.launched[way] = launched
        if self.clock() - self.seen.get(way, self.clock()) > ROOM_S:
            self.since.pop(way, None)  # The sender was stopped for a while, in which there may have been room.
        self.seen[way] = self.clock()
        since = self.since.get(way, float("inf"))
        if self.clock() - since > ROOM_S:
            self.checked += 1
            if launched > before:
                self.fail(f"{sender} sends on to {receiver}, whose disk has room for too little since {since:.6f}")
        if due <= room or not knows:
            self.since.pop(way, None)
        else:
            self.since.setdefault(way, self.clock())
