"""What a connection has for its client: bytes that are made in a turn, and written by the shell at its end.

It is an object of its own because consumers put their deliveries here, bundle by bundle: this way costs them one call
on an object with slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.base.shared_values import NO_DICT

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker

OUT_BYTES_MAX: Final = 1 << 20  # Deliveries made for one connection in one turn.


class Output:
    """The bytes for one client that are not written yet, and how much was."""

    __slots__ = (
        "broker", "is_writable", "pieces", "sent_bytes", "sent_count", "sent_since_tick", "size", "stalled",
    )  # fmt: skip

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.pieces: list[bytes] = []
        self.size = 0  # About how many bytes of messages there are.
        self.is_writable = True  # The shell's socket buffer takes more.
        self.stalled: dict[AnyQueue, None] = NO_DICT  # Queues that had more for this connection than it could take.
        self.sent_bytes = self.sent_count = 0
        self.sent_since_tick = True

    def room(self, queue: AnyQueue, average_bytes: int) -> int:
        """Return how many deliveries of this size may still be made in this turn."""
        room = (OUT_BYTES_MAX - self.size) // average_bytes if self.is_writable else 0
        if room <= 0:
            if self.is_writable and not self.size:
                return 1  # One message larger than the budget.
            if not self.stalled:
                self.stalled = {}
            self.stalled[queue] = None
        return room

    def send(self, piece: bytes) -> None:
        """A method, or another frame."""
        self.pieces.append(piece)
        self.broker.writers[self] = None

    def put(self, pieces: list[bytes], size: int) -> None:
        """Messages of about this many bytes, with their methods."""
        self.pieces += pieces
        self.size += size
        self.broker.writers[self] = None

    @property
    def is_full(self) -> bool:
        """Tell whether the deliveries of one turn have reached their limit."""
        return self.size > OUT_BYTES_MAX

    @property
    def has_room(self) -> bool:
        """Tell whether one more message, of any size, may be made in this turn."""
        return self.is_writable and not self.is_full

    def take(self) -> list[bytes]:
        """All that is to be written. The shell says with `on_written` how many bytes that were."""
        pieces, self.pieces = self.pieces, []
        self.size = 0
        return pieces

    def on_written(self, count: int) -> None:
        self.sent_count += 1
        self.sent_bytes += count
        self.sent_since_tick = True

    def set_writable(self, is_writable: bool) -> None:
        """Note whether the socket's buffer takes more."""
        self.is_writable = is_writable

    def was_used(self) -> bool:
        """Tell whether something was written since the last call."""
        used, self.sent_since_tick = self.sent_since_tick, False
        return used
