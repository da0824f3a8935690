"""Checks streams, by what their readers see.

    offsets     an offset means one message, and a message has one offset: for every reader, through every node, with
                any master, before and after any crash
    no gap      a reader gets one offset after the other, across any number of masters, and skips only what retention
                has removed
    begin       a reader begins where it wanted to: at the first message that is kept, at an offset, at a time, at the
                next
    kept        what was confirmed is there, unless the stream has lost its disks
    order       messages of one channel have their offsets in the order in which they were published
    retention   nothing is removed without a reason, and something is if there is one
    served      a reader that acknowledges comes to the end

A stream delivers only what is safe. So unlike other queues it has no excuse for a late delivery: an offset from a node
that has long been cut off means the same as everywhere else. Links do not matter here.

**Clocks** count only for readers that begin at a time. Blocks are found by binary search, which assumes ascending
times; where clocks have jumped, the only check is that readers begin somewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from simulation.features.broker_features import Stream

if TYPE_CHECKING:
    from simulation.checkers.broker_features_checker import BrokerFeaturesChecker
    from simulation.checkers.ledger import Delivery, Message

NAME: Final = "x-stream-offset"
ROUNDING_S: Final = 0.002  # Nodes count whole milliseconds.
OVERHEAD_BYTES: Final = 60  # The least size of a message in a stream besides its body.


@dataclass
class Reader:
    """A consumer of a stream."""

    name: str
    stream: str
    start: str
    value: float  # An offset, or a time of the world: the earliest at which it may begin.
    asked_at: float
    begun_at: float | None = None  # When the broker confirmed the consumer.
    latest: float | None = None  # The latest time at which it may begin, if that is not `value`.
    first: int | None = None
    last: int | None = None


@dataclass
class Book:
    """The offsets of a stream that are known."""

    name: str
    kind: Stream
    at: dict[int, int] = field(default_factory=dict)  # Message numbers by offset,
    offsets: dict[int, int] = field(default_factory=dict)  # Offsets by message number.
    gone: set[int] = field(default_factory=set)  # Offsets that a reader should have got and did not.

    @property
    def end(self) -> int:
        return max(self.at, default=-1) + 1


class StreamChecker:
    """Checks all streams of a run."""

    def __init__(self, checker: BrokerFeaturesChecker, fail: Callable[[str], None]) -> None:
        self.checker = checker
        self.fail = fail
        self.books: dict[str, Book] = {}
        self.readers: dict[str, Reader] = {}  # By the channel's name.
        self.read_count = 0

    def __contains__(self, queue: str) -> bool:
        return queue in self.books

    def add(self, name: str, kind: Stream) -> None:
        self.books[name] = Book(name, kind)

    # -- What clients tell ---------------------------------------------------------------------------------------

    def on_asked(self, channel: str, stream: str, start: str, value: float) -> Reader:
        reader = self.readers[channel] = Reader(channel, stream, start, value, self.checker.clock())
        return reader

    def on_delivered(self, delivery: Delivery) -> None:
        book, message = self.books[delivery.queue], self.checker.messages.get(delivery.number)
        reader = self.readers[delivery.consumer.partition(" ")[0]]
        if self.checker.queue(delivery.queue).lost:
            return
        if message is None or message.queue != delivery.queue or delivery.body != message.body:
            self.fail(f"{reader.name} got of {book.name} what nobody has published there: {delivery}")
            return
        headers = dict(delivery.properties.get("headers", {}))
        offset = headers.pop(NAME, None)
        expected: dict[str, Any] = {"delivery_mode": 2 if message.persistent else 1, "headers": {}}
        if not isinstance(offset, int) or delivery.properties | {"headers": headers} != expected:
            self.fail(f"{message} came to {reader.name} with {delivery.properties}")
            return
        self.read_count += 1
        self.checker.note(reader.name, f"reads {message} at {offset} through {delivery.node}")
        if delivery.redelivered or message.state in ("returned", "rolled back"):
            self.fail(f"{message} ({message.state}) was read at {offset}, redelivered: {delivery.redelivered}")
        self._check_meaning(book, message, offset)
        self._check_place(book, reader, offset, delivery.node)
        message.deliveries.append(delivery)

    def _check_meaning(self, book: Book, message: Message, offset: int) -> None:
        number = book.at.setdefault(offset, message.number)
        if number != message.number:
            self.fail(f"at offset {offset} of {book.name} there was message {number}, and now there is {message}")
        before = book.offsets.setdefault(message.number, offset)
        if before != offset:
            self.fail(f"{message} is at {offset}, and was at {before}")

    def _check_place(self, book: Book, reader: Reader, offset: int, node: str) -> None:
        if reader.last is None:
            reader.first = offset
            self._check_begin(book, reader, offset, node)
        elif offset <= reader.last:
            self.fail(f"{reader.name} got offset {offset} of {book.name} after {reader.last}")
        else:
            self._pass_over(book, reader, reader.last + 1, offset)
        reader.last = offset

    def _check_begin(self, book: Book, reader: Reader, offset: int, node: str) -> None:
        if reader.start == "first":
            self._pass_over(book, reader, 0, offset)
        elif reader.start == "offset":
            if offset < reader.value:
                self.fail(f"{reader.name} wanted {book.name} from {reader.value} on, and got {offset}")
            self._pass_over(book, reader, int(reader.value), offset)
        elif reader.start in ("next", "time"):
            message = self.checker.messages[book.at[offset]]
            since = reader.asked_at if reader.start == "next" else reader.value - ROUNDING_S
            old = message.confirmed_at is not None and self.checker.came_by(message) < since
            # A former master that does not know yet takes the end of what it has for the end of the stream.
            if reader.start == "next":
                excused = self.checker.is_behind(book.name, node, since)
            else:
                excused = bool(self.checker.skew_ms) or self.checker.was_behind(book.name, node, reader.asked_at)
            if old and not excused:
                self.fail(f"{reader.name} wanted {book.name} from {reader.start} {since:.3f} on, and got {message}, "
                          f"which was confirmed at {message.confirmed_at:.3f}")  # fmt: skip

    def _pass_over(self, book: Book, reader: Reader, low: int, high: int) -> None:
        for offset in range(low, high):
            if not self.may_be_given_up(book, offset):
                self.fail(f"{reader.name} got offset {high} of {book.name}, and not {offset}, which must be there")
                return
            book.gone.add(offset)

    # -- Retention -----------------------------------------------------------------------------------------------

    def may_be_given_up(self, book: Book, offset: int) -> bool:
        kind, checker = book.kind, self.checker
        if kind.keeps_all:
            return False
        number = book.at.get(offset)
        if number is None:
            return True  # No reader has seen it, so only its place is known.
        if kind.max_age_s is not None:
            age_s = checker.clock() - checker.messages[number].published_at
            return age_s + checker.skew_ms / 1000 + ROUNDING_S >= kind.max_age_s
        assert kind.max_bytes is not None
        sizes = [self._bytes(one) for one in checker.messages.values() if one.queue == book.name]
        behind = [one for one in book.at if one > offset]
        return bool(behind) and sum(sizes) > kind.max_bytes

    def _bytes(self, message: Message) -> int:
        """Returns the largest size it can have in a stream."""
        return len(message.body) + 3 * OVERHEAD_BYTES

    # -- The end -------------------------------------------------------------------------------------------------

    def owed(self, name: str) -> set[int]:
        """Returns what a reader from the first offset must get."""
        checker, book = self.checker, self.books[name]
        if checker.queue(name).lost or not book.kind.keeps_all:
            return set()
        return {
            message.number
            for message in checker.messages.values()
            if message.queue == name and message.state == "confirmed" and not checker.may_be_lost(message)
        }

    def on_scanned(self, name: str, numbers: list[int]) -> None:
        """Gets everything that is in a stream now."""
        book = self.books[name]
        if self.checker.queue(name).lost:
            return
        missing = sorted(self.owed(name) - set(numbers))
        if missing:
            self.fail(f"confirmed and not in {name}: {missing}")
        last: dict[str, tuple[int, int]] = {}
        for offset, number in sorted(book.at.items()):
            lane = self.checker.messages[number].stream
            before = last.get(lane, (-1, 0))
            if number < before[1]:
                self.fail(f"{name} has message {number} at {offset} and {before[1]} at {before[0]}, of one channel")
            last[lane] = (offset, number)
        for reader in self.readers.values():
            if reader.stream == name and reader.first is not None and reader.begun_at is not None:
                self._check_missed(book, reader, reader.first)

    def _check_missed(self, book: Book, reader: Reader, first: int) -> None:
        """Checks that nothing is missing before the first offset that a reader got."""
        if reader.start not in ("next", "last", "time") or (reader.start == "time" and self.checker.skew_ms):
            return
        assert reader.begun_at is not None
        since = reader.begun_at
        if reader.start == "time":
            since = reader.value if reader.latest is None else reader.latest
        for offset, number in book.at.items():
            message = self.checker.messages[number]
            if offset < first and message.published_at >= since + ROUNDING_S and offset not in book.gone:
                if not book.kind.keeps_all and self.may_be_given_up(book, offset):
                    continue
                since_when = f"from {reader.start} {since:.3f} on, and began with {first}"
                self.fail(f"{reader.name} wanted {book.name} {since_when}, though {message} at {offset} was published "
                          f"at {message.published_at:.3f}")  # fmt: skip

    def check_served(self, name: str, reader_name: str) -> None:
        """Checks a reader that acknowledged all the time, when nothing was delivered for a while."""
        reader, book = self.readers[reader_name], self.books[name]
        if self.checker.queue(name).lost or reader.begun_at is None:
            return
        beginning = reader.value if reader.start == "offset" else 0
        if book.end > beginning and reader.last != book.end - 1:
            self.fail(f"{reader_name} reads {name} (from {reader.start} {reader.value} on) and has come to "
                      f"{reader.last}; the last there is is {book.end - 1}")  # fmt: skip

    def check_trimmed(self, name: str, numbers: list[int], old: float) -> None:
        """Checks what is left after messages were published one by one for a while. `old`: when the first of those
        was published."""
        kind = self.books[name].kind
        if self.checker.queue(name).lost or kind.keeps_all:
            return
        messages = [self.checker.messages[number] for number in numbers]
        if kind.max_age_s is not None:
            aged = [str(one) for one in messages if one.published_at < old]
            if aged:
                self.fail(f"{name} keeps what came before {old:.3f}, though its limit is {kind.max_age_s} s: {aged}")
        if kind.max_bytes is not None:
            size = sum(len(one.body) for one in messages)
            room = (
                kind.max_bytes + 2 * (kind.segment_bytes or 0) + 2 * max((len(one.body) for one in messages), default=0)
            )
            if size > room:
                self.fail(
                    f"{name} keeps {size} bytes; its limit is {kind.max_bytes}, in stretches of {kind.segment_bytes}"
                )

    def summary(self) -> str:
        given_up = sum(len(book.gone) for book in self.books.values())
        return f"{self.read_count} read by {len(self.readers)}, {given_up} given up"
