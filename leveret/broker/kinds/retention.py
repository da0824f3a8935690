"""What of a stream is given up, by size and by age.

A stream is kept in *stretches* of about `x-stream-max-segment-size-bytes`. The last one is being written; all others
are closed, and the oldest of them goes as a whole when the stream is larger than `x-max-length-bytes` allows, or when
the newest message in it is older than `x-max-age`. So what is given up is one range at the front, seldom, and nothing
is done about single messages. The last stretch stays whatever the limits say: a stream that was written to once is
never found empty.

If there is a limit to the age, a stretch is also closed after an eighth of that time, so that a stream in which little
is published does not keep messages for as long as it takes to fill a stretch.

Stretches are not part of the log: it knows single blocks and what they weigh, and after a start the stretches are made
of those anew. Of such a stretch it is not known how old it is before somebody has looked (`Stretch.newest_ms` is 0).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.metadata.rules.queue_rules import QueueRules

STRETCH_BYTES: Final = 500_000_000  # As in RabbitMQ, where nothing else is said.
STRETCHES_MAX: Final = 4_096  # More are made fewer by joining neighbours.
AGE_PARTS: Final = 8


class Stretch:
    """The messages `first`..`last`."""

    __slots__ = ("begun_ms", "bytes", "first", "last", "newest_ms")

    def __init__(self, first: int, last: int, size: int, begun_ms: int, newest_ms: int) -> None:
        self.first = first
        self.last = last
        self.bytes = size
        self.begun_ms = begun_ms
        self.newest_ms = newest_ms  # When the last of them came; 0: that is in the log.


class Retention:
    """The stretches of one stream, and its limits of age and size."""

    __slots__ = ("bytes", "max_age_ms", "max_bytes", "stretch_bytes", "stretches")

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []
        self.bytes = 0
        self.max_bytes: int | None = None
        self.max_age_ms: int | None = None
        self.stretch_bytes = STRETCH_BYTES

    def set_rules(self, rules: QueueRules) -> None:
        self.max_bytes, self.max_age_ms = rules.max_bytes, rules.max_age_ms
        self.stretch_bytes = STRETCH_BYTES if rules.max_segment_bytes is None else rules.max_segment_bytes

    def restore(self, pieces: Iterable[tuple[int, int, int]]) -> None:
        """Restore the stretches from the log, given as first number, last number and bytes."""
        self.stretches = [Stretch(first, last, size, 0, 0) for first, last, size in pieces]
        self.bytes = sum(one.bytes for one in self.stretches)
        self._join()

    def add(self, first: int, last: int, size: int, now_ms: int) -> None:
        """These messages have come."""
        self.bytes += size
        current = self.stretches[-1] if self.stretches else None
        if current is None or self._is_closed(current, now_ms):
            self.stretches.append(Stretch(first, last, size, now_ms, now_ms))
            self._join()
        else:
            current.last = last
            current.bytes += size
            current.newest_ms = now_ms

    def _is_closed(self, current: Stretch, now_ms: int) -> bool:
        if current.bytes >= self.stretch_bytes:
            return True
        return self.max_age_ms is not None and now_ms - current.begun_ms > self.max_age_ms // AGE_PARTS

    def _join(self) -> None:
        while len(self.stretches) > STRETCHES_MAX:
            joined = []
            for at in range(0, len(self.stretches) - 1, 2):
                one, other = self.stretches[at : at + 2]
                size = one.bytes + other.bytes
                joined.append(Stretch(one.first, other.last, size, one.begun_ms, other.newest_ms))
            if len(self.stretches) % 2:
                joined.append(self.stretches[-1])
            self.stretches = joined

    def take(self, through: int, now_ms: int) -> int:
        """Give up what the limits do not allow, of the messages up to `through`. Gives the last that goes, or 0."""
        last = 0
        while len(self.stretches) > 1 and self.stretches[0].last <= through and self._must_go(now_ms):
            gone = self.stretches.pop(0)
            self.bytes -= gone.bytes
            last = gone.last
        return last

    def has_to_look(self) -> bool:
        """Returns whether `take` could find something, now or later."""
        if len(self.stretches) < 2:
            return False
        return self.max_age_ms is not None or (self.max_bytes is not None and self.bytes > self.max_bytes)

    def _must_go(self, now_ms: int) -> bool:
        if self.max_bytes is not None and self.bytes > self.max_bytes:
            return True
        due_ms = self.due_ms()
        return due_ms is not None and due_ms <= now_ms

    def due_ms(self) -> int | None:
        """Returns when the oldest stretch exceeds the maximum age, if that is known."""
        if self.max_age_ms is None or len(self.stretches) < 2 or not self.stretches[0].newest_ms:
            return None
        return self.stretches[0].newest_ms + self.max_age_ms

    def undated(self) -> Stretch | None:
        """The oldest stretch, if its age matters and has to be looked up."""
        if self.max_age_ms is None or len(self.stretches) < 2 or self.stretches[0].newest_ms:
            return None
        return self.stretches[0]
