"""Control commands that find and delete single messages of a queue, and that look into a stream.

Whoever looks for a text goes through the messages that are ready, a bounded part with each call; a *cursor* says where
the next call goes on. It is a row of the ready list (a queue with priorities has several) and the number of the last
message that was looked at, so messages that are consumed meanwhile do not make it skip others.

A message that is to be deleted is named by its number and a hash of its contents: after the queue has moved, the number
may be another message's. Messages are deleted in the same turn in which they were compared. Like a purge, this sends no
dead letters, and the messages that are out with consumers stay theirs.
"""

from __future__ import annotations

import asyncio
from dataclasses import fields
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from leveret.base.exit_codes import UNAVAILABLE
from leveret.broker.delivery.batch import Gap
from leveret.broker.delivery.priority_ready import rows_of
from leveret.broker.kinds.stream import StreamQueue
from leveret.broker.queue.queue import Queue
from leveret.node.admin.common.command import ANYTHING, NUMBER, NUMBERS, RUNNING, TEXT, Commands, Refused
from leveret.node.admin.queues.peek import (
    NO_STREAM,
    PEEK_BYTES_MAX,
    PEEK_MAX,
    exchange_and_key,
    fingerprint,
    shown_message,
)
from leveret.node.admin.queues.queues import at_home, queue_here, queue_spec
from leveret.node.stats.range_reads import Elsewhere, Unreadable
from leveret.node.system.time_slices import TimeSlices
from leveret.protocol.frames import split
from leveret.protocol.properties import Properties, decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leveret.broker.delivery.batch import Batch, Span
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.node.admin.dispatch import Control
    from leveret.storage.format.queue_block import Run

    Message = tuple[Batch | Run, int]

COMMANDS = Commands()

TEXT_CHARACTERS_MAX: Final = 1_000
SCANNED_MAX: Final = 10_000  # Messages that one call looks at.
SCANNED_BYTES_MAX: Final = 16 << 20
CHUNK: Final = 100  # Messages in memory that are looked at without a pause.
READ_BYTES: Final = 1 << 20
CHOSEN_MAX: Final = 500
NUMBER_MAX: Final = (1 << 63) - 1
MOVING: Final = "the queue is moving or being deleted; try again"
BOUNDS: Final = "text, cursor, count or bytes_max is out of bounds"


def _ready_queue(control: Control, vhost: str, name: str) -> Queue:
    """Returns a queue that has its master here and is not about to leave. Raises Refused."""
    queue = queue_here(control, queue_spec(control, vhost, name, UNAVAILABLE, "not_found"))
    if not isinstance(queue, Queue):
        raise Refused(UNAVAILABLE, NO_STREAM)
    if queue.is_deferring or queue.frozen or queue.deleted:
        raise Refused(UNAVAILABLE, MOVING)
    return queue


class ReadyMessages:
    """Goes through the ready messages of a queue, from a cursor on, up to the number `through`."""

    def __init__(self, queue: Queue, cursor: list[int] | None, through: int = NUMBER_MAX) -> None:
        if cursor is not None and (len(cursor) != 2 or min(cursor) < 0):
            raise Refused(UNAVAILABLE, BOUNDS)
        self.queue = queue
        self.row, self.after = cursor or (0, 0)
        self.through = through

    def _entry(self) -> Span | Gap | None:
        for number, row in enumerate(rows_of(self.queue.ready)):
            if number == self.row:
                found = next((entry for entry in row if entry.last > self.after), None)
                if found is not None:
                    return found
                self.row, self.after = number + 1, 0
        return None

    async def chunk(self) -> list[Message] | None:
        """Returns the next messages; None at the end. They are ready as long as the caller does not wait."""
        while (entry := self._entry()) is not None and entry.first <= self.through:
            if not isinstance(entry, Gap):
                batch = entry.batch
                low = max(entry.lo, self.after + 1 - batch.first)
                high, size = low + 1, len(batch.contents[low])
                while high < min(entry.hi, low + CHUNK) and size < READ_BYTES:
                    size += len(batch.contents[high])
                    high += 1
                self.after = batch.first + high - 1
                return [(batch, at) for at in range(low, high)]
            first, last, ranges = max(entry.first, self.after + 1), min(entry.last, self.through), entry.ranges
            runs, following = await read_range(self.queue, first, last)
            if self.queue.is_deferring or self.queue.deleted:
                raise Refused(UNAVAILABLE, MOVING)
            if self._entry() is not entry:
                continue  # It changed while the log was read; what is there now is looked at instead.
            self.after = min(following - 1, last)
            found: list[Message] = [(run, at) for run in runs for at in range(len(run.contents))]
            if ranges is not None:
                found = [(run, at) for run, at in found if run.first + at in ranges]
            if found:
                return found
        return None


async def read_range(queue: LocalQueue, first: int, last: int) -> tuple[list[Run], int]:
    """Returns messages that the log has, and the number to go on with."""
    answer: asyncio.Future[tuple[list[Run] | None, int]] = asyncio.get_running_loop().create_future()

    def then(runs: list[Run] | None, following: int) -> None:
        if not answer.done():
            answer.set_result((runs, following))

    queue.host.read_range(queue.spec.id, first, last, READ_BYTES, then)
    runs, following = await answer
    if runs is None:
        raise Refused(UNAVAILABLE, "the messages cannot be read; the log of the node says why")
    return runs, following


# -- Finding -------------------------------------------------------------------------------------------------------


@COMMANDS.add(
    RUNNING, vhost=TEXT, name=TEXT, text=TEXT, cursor=NUMBERS.or_none(), count=NUMBER, bytes_max=NUMBER
)  # fmt: skip
async def search_messages(
    control: Control, vhost: str, name: str, text: str, cursor: list[int] | None, count: int, bytes_max: int
) -> Any:
    """Returns ready messages whose properties, body, exchange or routing key contain a text: see `_has`."""
    spec = queue_spec(control, vhost, name, UNAVAILABLE, "not_found")
    asked = {"vhost": vhost, "name": name, "text": text, "cursor": cursor, "count": count, "bytes_max": bytes_max}
    return await at_home(control, spec, "local_search_messages", asked)


@COMMANDS.add(
    RUNNING, vhost=TEXT, name=TEXT, text=TEXT, cursor=NUMBERS.or_none(), count=NUMBER, bytes_max=NUMBER
)  # fmt: skip
async def local_search_messages(
    control: Control, vhost: str, name: str, text: str, cursor: list[int] | None, count: int, bytes_max: int
) -> Any:
    if not (_is_text(text) and 1 <= count <= PEEK_MAX and 0 <= bytes_max <= PEEK_BYTES_MAX):
        raise Refused(UNAVAILABLE, BOUNDS)
    ready = ReadyMessages(_ready_queue(control, vhost, name), cursor)
    slices = TimeSlices()
    found: list[dict[str, Any]] = []
    scanned = size = 0
    is_over = False
    while len(found) < count and scanned < SCANNED_MAX and size < SCANNED_BYTES_MAX:
        chunk = await ready.chunk()
        if chunk is None:
            is_over = True
            break
        for run, at in chunk:
            scanned += 1
            size += len(run.contents[at])
            if _has(run, at, text):
                found.append(shown_message(run, at, scanned, bytes_max))
                if len(found) == count:
                    ready.after = run.first + at
                    break
        if slices.is_over():
            await slices.rest()
    return {"messages": found, "scanned": scanned, "cursor": None if is_over else [ready.row, ready.after]}


def _is_text(text: str) -> bool:
    # JSON can have half a character, which no message can.
    return 1 <= len(text) <= TEXT_CHARACTERS_MAX and not any("\ud800" <= one <= "\udfff" for one in text)


def _has(run: Batch | Run, at: int, wanted: str) -> bool:
    """Returns whether the body, a text of the properties, the exchange or the routing key contains a text.

    Bytes between them (frames, lengths, types of headers) never count: whoever deletes what matches sees only texts.
    """
    header, body = split(run.contents[at])
    sought = wanted.encode()
    if sought in body or any(sought in name for name in exchange_and_key(run.keys[at])):
        return True
    # Texts stand in the header as they are, so that most messages need no decoding.
    if sought not in header and not wanted.lstrip("-").isdecimal():
        return False
    properties = decode(header)
    own = (getattr(properties, one.name) for one in fields(Properties) if one.name != "headers")
    texts = chain((text for text in own if isinstance(text, str)), _texts("F", properties.headers or {}))
    return any(wanted in text for text in texts)


def _texts(kind: str, value: Any) -> Iterator[str]:
    """Yields the names, texts and whole numbers of a header's value, which may be a table or an array."""
    if kind == "F":
        yield from value
        value = value.values()
    if kind in "FA":
        for field in value:
            yield from _texts(*field)
    elif isinstance(value, bytes):
        yield value.decode("utf-8", "surrogateescape")
    elif isinstance(value, str | int) and not isinstance(value, bool):
        yield str(value)


# -- Deleting ------------------------------------------------------------------------------------------------------


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, messages=ANYTHING)
async def delete_messages(control: Control, vhost: str, name: str, messages: Any) -> Any:
    """Deletes chosen ready messages: a list of numbers and fingerprints."""
    spec = queue_spec(control, vhost, name, UNAVAILABLE, "not_found")
    asked = {"vhost": vhost, "name": name, "messages": messages}
    return await at_home(control, spec, "local_delete_messages", asked)


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, messages=ANYTHING)
async def local_delete_messages(control: Control, vhost: str, name: str, messages: Any) -> Any:
    wanted = _chosen(messages)
    queue = _ready_queue(control, vhost, name)
    deleted, slices = 0, TimeSlices()
    for number in sorted(wanted):
        for row in range(sum(1 for _ in rows_of(queue.ready))):
            found = await ReadyMessages(queue, [row, number - 1], number).chunk()
            if found and found[0][0].first + found[0][1] == number:
                if fingerprint(*found[0]) == wanted[number]:
                    deleted += queue.drop_numbers([(number, number)])
                break
        if slices.is_over():
            await slices.rest()
    control.node.schedule()
    return {"deleted": deleted}


def _chosen(messages: Any) -> dict[int, str]:
    """Returns fingerprints by number. Raises Refused."""
    if not isinstance(messages, list) or not 1 <= len(messages) <= CHOSEN_MAX:
        raise Refused(UNAVAILABLE, f"messages must be a list of 1 to {CHOSEN_MAX}")
    wanted: dict[int, str] = {}
    for one in messages:
        match one:
            case {"number": int(number), "id": str(id)} if number > 0 and not isinstance(number, bool):
                wanted[number] = id
            case _:
                raise Refused(UNAVAILABLE, "each message has a number and an id")
    return wanted


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, text=TEXT, cursor=NUMBERS.or_none())
async def delete_matching(control: Control, vhost: str, name: str, text: str, cursor: list[int] | None) -> Any:
    """Deletes ready messages that contain a text, of a bounded part of the queue."""
    spec = queue_spec(control, vhost, name, UNAVAILABLE, "not_found")
    asked = {"vhost": vhost, "name": name, "text": text, "cursor": cursor}
    return await at_home(control, spec, "local_delete_matching", asked)


@COMMANDS.add(RUNNING, vhost=TEXT, name=TEXT, text=TEXT, cursor=NUMBERS.or_none())
async def local_delete_matching(control: Control, vhost: str, name: str, text: str, cursor: list[int] | None) -> Any:
    if not _is_text(text):
        raise Refused(UNAVAILABLE, BOUNDS)
    queue = _ready_queue(control, vhost, name)
    ready, slices = ReadyMessages(queue, cursor), TimeSlices()
    scanned = size = deleted = 0
    is_over = False
    while scanned < SCANNED_MAX and size < SCANNED_BYTES_MAX:
        chunk = await ready.chunk()
        if chunk is None:
            is_over = True
            break
        scanned += len(chunk)
        size += sum(len(run.contents[at]) for run, at in chunk)
        numbers = sorted(run.first + at for run, at in chunk if _has(run, at, text))
        deleted += queue.drop_numbers([(number, number) for number in numbers]) if numbers else 0
        if slices.is_over():
            control.node.schedule()
            await slices.rest()
            if queue.is_deferring or queue.frozen or queue.deleted:
                break
    control.node.schedule()
    return {"deleted": deleted, "scanned": scanned, "cursor": None if is_over else [ready.row, ready.after]}


# -- Streams -------------------------------------------------------------------------------------------------------


@COMMANDS.add(
    RUNNING, vhost=TEXT, name=TEXT, offset=NUMBER.or_none(), time=NUMBER.or_none(), count=NUMBER, bytes_max=NUMBER
)  # fmt: skip
async def peek_stream(
    control: Control, vhost: str, name: str, offset: int | None, time: int | None, count: int, bytes_max: int
) -> Any:
    """Returns messages of a stream from an offset on, or from a time in milliseconds; from the first, without both."""
    spec = queue_spec(control, vhost, name, UNAVAILABLE, "not_found")
    asked = {"vhost": vhost, "name": name, "offset": offset, "time": time, "count": count, "bytes_max": bytes_max}
    return await at_home(control, spec, "local_peek_stream", asked)


@COMMANDS.add(
    RUNNING, vhost=TEXT, name=TEXT, offset=NUMBER.or_none(), time=NUMBER.or_none(), count=NUMBER, bytes_max=NUMBER
)  # fmt: skip
async def local_peek_stream(
    control: Control, vhost: str, name: str, offset: int | None, time: int | None, count: int, bytes_max: int
) -> Any:
    if not (1 <= count <= PEEK_MAX and 0 <= bytes_max <= PEEK_BYTES_MAX and (offset or 0) >= 0 and (time or 0) >= 0):
        raise Refused(UNAVAILABLE, "offset, time, count or bytes_max is out of bounds")
    queue = queue_here(control, queue_spec(control, vhost, name, UNAVAILABLE, "not_found"))
    if not isinstance(queue, StreamQueue):
        raise Refused(UNAVAILABLE, "only a stream has offsets")
    number = (offset or 0) + 1
    if time is not None:
        try:
            number = await control.server.node.reads.number_at(queue.spec, time)
        except (Elsewhere, Unreadable) as error:
            raise Refused(UNAVAILABLE, str(error)) from None
    number = max(number, queue.first)
    found: list[dict[str, Any]] = []
    while len(found) < count and number <= queue.committed:
        runs, following = await read_range(queue, number, queue.committed)
        for run in runs:
            for at in range(min(len(run.contents), count - len(found))):
                shown = shown_message(run, at, run.first + at, bytes_max)
                found.append({**shown, "offset": run.first + at - 1, "time": _time_of(run, at)})
        number = max(following, number + 1)
    return {"first": queue.first - 1, "next": queue.committed, "messages": found}


def _time_of(run: Run, at: int) -> int | None:
    """Returns when a message came, in milliseconds."""
    return next((ms for index, ms in reversed(run.times) if index <= at), None)
