"""One link: that of a shovel, which leaves out messages that must not go on.

Deliveries and publishes are both counted from 1, but a message that is left out has a number at the source only. So the
two counts differ by how many were left out before: `shifts` says from which publish on they differ by how much. A
confirm of all up to 40 is the acknowledgement of all up to 40 and the shift of 40. What is left out is acknowledged at
once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING

from leveret.protocol.frames import BadContent, reframe
from leveret.protocol.origins import marked
from leveret.shovel.link import CHANNEL, Link, LinkFault, Settlement, Target

if TYPE_CHECKING:
    from leveret.client.machine import Delivery
    from leveret.metadata.shovel.parameters import AckMode

Write = Callable[[bytes, bool, bytes], bytes | None]  # Content, whether it was redelivered, and its route.


class FederationLink(Link):
    """The messages under way from an upstream. `write` returns a message as it goes on, or None."""

    def __init__(self, mode: AckMode, target: Target, write: Write, frame_max: int) -> None:
        super().__init__(mode, target, None, None, frame_max, marks=mode == "on-confirm")  # This node knows them.
        self.write = write
        self.dropped = 0
        self.shifts: list[tuple[int, int]] = [(1, 0)]

    def on_deliveries(self, deliveries: list[Delivery]) -> list[bytes]:
        """Return the bytes that publish these messages. Raises LinkFault."""
        if deliveries[0].tag != self.delivered + 1 or deliveries[-1].tag != self.delivered + len(deliveries):
            raise LinkFault("the upstream's delivery tags are out of order")
        self.delivered += len(deliveries)
        pieces: list[bytes] = []
        prefixes = self._prefixes({one.route for one in deliveries})
        for tag, redelivered, route, content in deliveries:
            made = self._written(content, redelivered, route)
            if made is None:
                self.dropped += 1
                if self.mode == "on-confirm":
                    self.settlements.append(Settlement(tag, False, False))
                continue
            self.published += 1
            if tag - self.published != self.shifts[-1][1]:
                self.shifts.append((self.published, tag - self.published))
            pieces += (prefixes[route], made)
        self.bytes += sum(map(len, pieces))
        if self.mode == "on-publish":
            self.settlements.append(Settlement(self.delivered, True, False))
        return pieces

    def _written(self, content: bytes, redelivered: bool, route: bytes) -> bytes | None:
        try:
            made = self.write(content, redelivered, route)
            if made is not None and redelivered and self.marks:
                made = marked(made)
            return reframe(made, CHANNEL, self.frame_max) if made is not None and self.frame_max else made
        except (BadContent, ValueError) as error:
            raise LinkFault(f"the upstream has sent a message that cannot be read: {error}") from None

    def on_confirm(self, number: int, multiple: bool, refused: bool) -> None:
        """The downstream has a message, or all up to that number, or refuses them. Raises LinkFault."""
        count = len(self.settlements)
        super().on_confirm(number, multiple, refused)
        if len(self.settlements) > count:
            at = bisect_right(self.shifts, (number, self.delivered)) - 1
            self.settlements[-1] = Settlement(number + self.shifts[max(at, 0)][1], multiple, refused)
        while len(self.shifts) > 1 and self.shifts[1][0] <= self.confirmed_through + 1:
            del self.shifts[0]
