"""A publisher: sends batches of one message with a time stamp, and measures how long confirms take.

The body begins with a mark and the time of the send in nanoseconds, if there is room, and is filled up with zeros. All
messages of a batch have the time at which the batch was made. A batch is no larger than the confirm window and the rate
allow, so at low rates it is one message, and the time is exact.

With a ledger each message also has a name after its time (see `ledger`), and the messages of a batch are made one by
one.
"""

from __future__ import annotations

import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from leveret.client import amqp
from leveret.client.amqp import BrokerError
from leveret.client.connection import Connection
from leveret.client.endpoint import Endpoint
from leveret.perf.histogram import Histogram
from leveret.perf.ledger import NAME, Ledger, channel_name

MARK: Final = b"lvpf"
STAMP: Final = struct.Struct(">Q")
STAMP_AT: Final = len(MARK)
STAMPED_BYTES_MIN: Final = STAMP_AT + STAMP.size
NAMED_BYTES_MIN: Final = STAMPED_BYTES_MIN + NAME.size
BATCH_BYTES: Final = 64 << 10
BATCH_MAX: Final = 500


# Called with the number of a batch, the first and last confirmed message, and the time.
Noting = Callable[[int, int, int, int], None]


class Target(NamedTuple):
    exchange: str
    key: str


class Message:
    """The frames of one message, cut where the time stamp is put in."""

    def __init__(self, target: Target, size: int, persistent: bool, mandatory: bool, frame_max: int) -> None:
        body = (MARK + bytes(max(size, STAMPED_BYTES_MIN)))[:size]
        frames = amqp.publish(target.exchange, target.key, persistent, mandatory, body, frame_max)
        self.bytes = len(frames)
        self.is_stamped = size >= STAMPED_BYTES_MIN
        at = frames.rindex(MARK + bytes(STAMP.size)) + STAMP_AT if self.is_stamped else 0
        self._before, self._after = frames[:at], frames[at + STAMP.size :] if self.is_stamped else frames
        self._behind = self._after[NAME.size :]

    def batch(self, count: int, now_ns: int) -> bytes:
        if not self.is_stamped:
            return self._after * count
        return (self._before + STAMP.pack(now_ns) + self._after) * count

    def named(self, count: int, now_ns: int, publisher: int, first: int) -> bytes:
        """Returns messages with names. Only for messages that have room for one."""
        before, behind, pack = self._before + STAMP.pack(now_ns), self._behind, NAME.pack
        return b"".join([before + pack(publisher, first + index) + behind for index in range(count)])


class Publisher(Endpoint):
    """`window`: unconfirmed messages at most; None: no confirms. `rate`: messages a second; None: no limit."""

    def __init__(
        self,
        connection: Connection,
        targets: Sequence[Target],
        *,
        size: int,
        persistent: bool = False,
        mandatory: bool = False,
        window: int | None = None,
        rate: float | None = None,
        messages_max: int | None = None,
        ledger: Ledger | None = None,
        name: int = 0,
    ) -> None:
        """`name`: identifies the publisher in the ledger."""
        if window is not None:
            connection.select_confirms()
        super().__init__(connection)
        self.messages = [Message(one, size, persistent, mandatory, connection.frame_max) for one in targets]
        self.batch_max = max(1, min(BATCH_MAX, BATCH_BYTES // self.messages[0].bytes))
        self.window, self.rate, self.messages_max = window, rate, messages_max
        self.sent = self.returned = self.batches = 0
        self.stopped = self.blocked = False
        self.began_s = 0.0
        self.name = name if ledger is not None else 0
        self.confirms = Confirms() if ledger is None else Confirms(self._noting(ledger, targets))

    def _noting(self, ledger: Ledger, targets: Sequence[Target]) -> Noting:
        """Makes the function that writes confirms to the ledger. Batches go to the targets in turn, and with a ledger
        all targets are queues of the default exchange."""
        channel = channel_name(self.socket)
        queues = [target.key for target in targets]

        def note(batch: int, first: int, last: int, now_ns: int) -> None:
            ledger.note(queues[batch % len(queues)], self.name, channel, first, last, now_ns // 1_000_000)

        return note

    # -- Sending ---------------------------------------------------------------------------------------------------

    def room(self, now_s: float) -> int:
        """Returns the number of messages that may be sent now."""
        if self.stopped or self.blocked:
            return 0
        room = self.batch_max
        if self.messages_max is not None:
            room = min(room, self.messages_max - self.sent)
        if self.window is not None:
            room = min(room, self.window - (self.sent - self.confirms.count))
        if self.rate is not None:
            room = min(room, int((now_s - self.began_s) * self.rate) + 1 - self.sent)
        return max(room, 0)

    def next_due_s(self) -> float | None:
        """Returns when the rate allows the next message; None if something else holds the publisher up."""
        if self.rate is None or self.stopped or self.blocked or self.unsent:
            return None
        return self.began_s + self.sent / self.rate

    def wants_to_write(self) -> bool:
        return bool(self.unsent) or self.room(time.perf_counter()) > 0

    def on_writable(self) -> None:
        if not self.unsent:
            count = self.room(time.perf_counter())
            if count:
                now_ns = time.time_ns()
                message = self.messages[self.batches % len(self.messages)]
                if self.name:
                    self.unsent = memoryview(message.named(count, now_ns, self.name, self.sent + 1))
                else:
                    self.unsent = memoryview(message.batch(count, now_ns))
                self.sent += count
                self.batches += 1
                if self.window is not None:
                    self.confirms.begin(count, now_ns)
        self.send_unsent()

    @property
    def is_done(self) -> bool:
        return self.stopped or (self.messages_max is not None and self.sent >= self.messages_max)

    @property
    def is_settled(self) -> bool:
        return not self.unsent and (self.window is None or self.confirms.count >= self.sent)

    # -- What comes back -------------------------------------------------------------------------------------------

    def on_data(self, data: bytes) -> bytes:
        at, size = 0, len(data)
        now_ns = time.time_ns()
        while size - at >= amqp.OVERHEAD:
            kind, _, length = amqp.HEAD.unpack_from(data, at)
            end = at + amqp.HEAD.size + length
            if end >= size:
                break
            if kind == amqp.METHOD:  # Others are contents of returned messages.
                self._on_method(data[at + amqp.HEAD.size : end], now_ns)
            at = end + 1
        return data[at:]

    def _on_method(self, payload: bytes, now_ns: int) -> None:
        name = amqp.METHOD_ID.unpack_from(payload)
        if name in (amqp.BASIC_ACK, amqp.BASIC_NACK):
            tag, flags = amqp.CONFIRM.unpack_from(payload, amqp.METHOD_ID.size)
            self.confirms.on_told(tag, bool(flags & 1), name == amqp.BASIC_NACK, now_ns)
        elif name == amqp.BASIC_RETURN:
            self.returned += 1
        elif name == amqp.CONNECTION_BLOCKED:
            self.blocked = True
        elif name == amqp.CONNECTION_UNBLOCKED:
            self.blocked = False
        else:
            raise BrokerError(amqp.closing_text(name, payload[amqp.METHOD_ID.size :]))


class Tally:
    """Counts confirmed publishes, each once, however a broker mixes single and multiple acks."""

    def __init__(self) -> None:
        self.count = self.nacked = 0
        self._through = 0  # All up to this number are confirmed.
        self._beyond: set[int] = set()  # Confirmed numbers above `_through` + 1.

    def on_told(self, tag: int, multiple: bool, nack: bool, now_ns: int = 0) -> None:
        before = self.count
        if tag > self._through and (multiple or tag not in self._beyond):
            if multiple:
                self._note(self._through + 1, tag, now_ns, [one for one in self._beyond if one <= tag])
                self._beyond = {one for one in self._beyond if one > tag}
                self._through = tag
            else:
                self._note(tag, tag, now_ns, [])
                self._beyond.add(tag)
            while self._through + 1 in self._beyond:
                self._through += 1
                self._beyond.remove(self._through)
            self.count = self._through + len(self._beyond)
        if nack:
            self.nacked += self.count - before

    def _note(self, first: int, last: int, now_ns: int, known: list[int]) -> None:
        """Called when `first`..`last` are confirmed; those in `known` were confirmed before."""


class Confirms(Tally):
    """Counts confirmed publishes, and measures the time that each took."""

    def __init__(self, noting: Noting | None = None) -> None:
        super().__init__()
        self.latency = Histogram()
        self._noting = noting
        self._nacked = False
        self._published = 0
        self._forgotten = 0  # Batches dropped from the lists below.
        # For each unconfirmed batch: its first number, and when it was sent.
        self._firsts: list[int] = []
        self._times: list[int] = []

    def begin(self, count: int, now_ns: int) -> None:
        self._firsts.append(self._published + 1)
        self._times.append(now_ns)
        self._published += count

    def on_told(self, tag: int, multiple: bool, nack: bool, now_ns: int = 0) -> None:
        self._nacked = nack
        super().on_told(tag, multiple, nack, now_ns)
        self._forget()

    def _note(self, first: int, last: int, now_ns: int, known: list[int]) -> None:
        if last > self._published:
            raise BrokerError(f"the broker confirmed message {last}, and only {self._published} were sent")
        at = bisect_right(self._firsts, first) - 1
        while first <= last:
            end = min(last, self._firsts[at + 1] - 1 if at + 1 < len(self._firsts) else self._published)
            new = end - first + 1 - sum(first <= one <= end for one in known)
            if new:
                self.latency.add(now_ns - self._times[at], new)
                if self._noting is not None and not self._nacked:
                    for low, high in runs(first, end, known):
                        self._noting(self._forgotten + at, low, high, now_ns)
            first, at = end + 1, at + 1

    def _forget(self) -> None:
        """Drops confirmed batches; several at a time, since cutting a list at its front is slow."""
        done = bisect_right(self._firsts, self._through + 1) - 1
        if done > 64 or (done and done == len(self._firsts) - 1):
            del self._firsts[:done], self._times[:done]
            self._forgotten += done


def runs(first: int, last: int, without: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the ranges that are left of `first`..`last` without some numbers."""
    found = []
    for one in sorted(without):
        if first <= one <= last:
            if first < one:
                found.append((first, one - 1))
            first = one + 1
    return [*found, (first, last)] if first <= last else found
