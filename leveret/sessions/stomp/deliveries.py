"""Messages to a client: MESSAGE frames made of contents, in bundles, and the ACK and NACK frames that come back.

A MESSAGE is a head (command and headers) and the body as it is stored. For messages of one routing key with the same
properties and size, heads differ in the number of the delivery only: they are made from a template (a `Plan`), which is
found by the bytes before the body. Clients that ask for receipts give every message another header `receipt`, which
comes through to consumers: so the plan leaves that header open, too.

A message is known to the client as `TAG@@SESSION@@NUMBER`: the consumer's tag, the session's id and the number of the
delivery. In the mode `client` an ACK is for that message and all before it of the same subscription, as STOMP has it.
(RabbitMQ acknowledges those of other subscriptions, too, though their client has not.)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.queue.delivery_limit import DeliveryLimit
from leveret.broker.session.checks import refuse
from leveret.broker.session.message import names_in
from leveret.broker.session.stream_checks import refuse_return
from leveret.protocol.errors import ReplyCode
from leveret.protocol.stomp.encoder import END, head_of, length_line
from leveret.protocol.stomp.escaping import escaped
from leveret.protocol.stomp.frames import V12
from leveret.sessions.stomp.destinations import shown
from leveret.sessions.stomp.errors import StompError
from leveret.sessions.stomp.messages import HeaderLines, body_at, body_of, headers_of
from leveret.sessions.stomp.queues import flag_in
from leveret.storage.format.queue_block import REDELIVERED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.batch import Batch
    from leveret.broker.delivery.offsets import Start
    from leveret.broker.delivery.unacked import Delivered
    from leveret.broker.session.session import Session
    from leveret.broker.session.wanted import ConsumerWanted
    from leveret.protocol.stomp.frames import Frame
    from leveret.sessions.stomp.connection import Connection

SEPARATOR: Final = "@@"
PLANS_MAX: Final = 64  # Of one subscription.
PLAN_BYTES_MAX: Final = 2_048  # Messages with longer headers have none.
RECEIPT: Final = b"\x07receiptS"  # The header in a table of AMQP: its name, and that a text follows.
_PLAIN: Final = re.compile(rb"[^\\:\r\n\0]*\Z")  # Text that is written in a header as it is, whatever the version.


class AckMode(NamedTuple):
    """How a client settles what it gets."""

    no_ack: bool
    is_cumulative: bool


ACK_MODES: Final = {
    "auto": AckMode(True, False),
    "client": AckMode(False, True),
    "client-individual": AckMode(False, False),
}


class Plan(NamedTuple):
    """How messages of one key, with the same properties and size, are sent."""

    first: bytes  # The template of their heads.
    again: bytes  # The same for those that are sent again.


class Deliveries:
    """The delivering side of a connection: what is out with the client."""

    __slots__ = ("acked", "connection", "consumers", "lines", "run_of_acks", "session")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.session: Session | None = None
        self.lines = HeaderLines(True)
        self.consumers: dict[bytes, StompConsumer] = {}  # By tag, as it is written in a message-id.
        self.acked: list[int] = []  # Numbers of deliveries to be settled, each alone.
        self.run_of_acks: re.Pattern[bytes] | None = None

    def begin(self, session: Session) -> None:
        """The client has its session."""
        self.session = session
        self.lines = HeaderLines(self.connection.escapes)

    @property
    def id_header(self) -> str:
        return "id" if self.connection.version == V12 else "message-id"

    # -- Acknowledgements ----------------------------------------------------------------------------------------

    def on_acks(self, data: bytes, at: int) -> int:
        """Take ACK frames in a row that have nothing but the id. Gives where they end: at `at` if there is none."""
        pattern = self.run_of_acks
        if pattern is None:
            session = re.escape(self.connection.session_id.encode())
            pattern = self.run_of_acks = re.compile(
                rb"ACK\n%s:([^\n]*?)@@%s@@([0-9]{1,18})\n(?:subscription:[^\n\\\0]*\n)?\n\0\n*"
                % (self.id_header.encode(), session)
            )
        match, consumers, acked = pattern.match, self.consumers, self.acked
        cumulative: tuple[StompConsumer, int] | None = None
        while (found := match(data, at)) is not None:
            consumer = consumers.get(found[1])
            if consumer is None:
                break
            number = int(found[2])
            if not consumer.is_cumulative:
                acked.append(number)
            else:
                if cumulative is not None and (cumulative[0] is not consumer or number <= cumulative[1]):
                    self._acknowledge_through(*cumulative)
                cumulative = consumer, number
            at = found.end()
        if cumulative is not None:
            self._acknowledge_through(*cumulative)
        return at

    def _acknowledge_through(self, consumer: StompConsumer, number: int) -> None:
        session = self.session
        assert session is not None
        session.acknowledge(self._taken(consumer, number))

    def settle(self) -> None:
        """Settle what was acknowledged message by message, in as few ranges as possible. Raises `Refused`."""
        session = self.session
        assert session is not None
        numbers, self.acked = sorted(self.acked), []
        first = last = numbers[0]
        taken: list[Delivered] = []
        for number in numbers[1:]:
            if number > last + 1:
                taken += session.unacked.take_range(first, last)
                first = number
            last = number
        taken += session.unacked.take_range(first, last)
        count = sum(one.count for one in taken)
        session.acknowledge(taken)
        if count != len(numbers):
            out = {number for one in taken for number in range(one.first_tag, one.last_tag + 1)}
            self._refuse_unknown([number for number in numbers if number not in out] or numbers[-1:])

    def _refuse_unknown(self, numbers: Sequence[int]) -> None:
        session = self.session
        assert session is not None
        for number in numbers:
            if number in session.late_tags:  # It was out for too long, and has gone back: see `lateness`.
                session.late_tags.discard(number)
            else:
                refuse(ReplyCode.PRECONDITION_FAILED, f"unknown delivery tag {number}")

    def check(self, frame: Frame) -> tuple[str, int]:
        """Return the consumer's tag and the number that an ACK or NACK names. Raises `StompError`."""
        name = self.id_header
        value = frame.headers.get(name)
        if value is None:
            raise StompError("Missing header", f'"{frame.command}" must include the "{name}" header\n')
        tag, *rest = value.rsplit(SEPARATOR, 2)
        if len(rest) != 2 or rest[0] != self.connection.session_id or not _is_number(rest[1]):
            raise StompError("Invalid header", f'"{frame.command}" must include a valid "{name}" header\n')
        return tag, int(rest[1])

    def on_frame(self, frame: Frame) -> None:
        """An ACK or a NACK. Raises `StompError` or `Refused`."""
        session = self.session
        assert session is not None
        if self.acked:
            self.settle()
        tag, number = self.check(frame)
        consumer = self.consumers.get(escaped(tag, self.connection.escapes).encode("utf-8", "surrogateescape"))
        if consumer is None:
            value = frame.headers[self.id_header]
            raise StompError("Subscription not found", f'Message with id "{value}" has no subscription')
        if frame.command == "ACK":
            session.acknowledge(self._taken(consumer, number))
            return
        requeues = flag_in(frame.headers, "requeue")
        if requeues is None:
            requeues = self.connection.limits.default_nack_requeue
        taken = self._taken(consumer, number)
        refuse_return(taken, "basic.nack and basic.reject")
        if requeues:
            session.take_back(taken)
        else:
            session.reject(taken)

    def _taken(self, consumer: StompConsumer, number: int) -> list[Delivered]:
        """What an ACK or NACK of this number is for. Raises `Refused`."""
        session = self.session
        assert session is not None
        if not consumer.is_cumulative:
            return session.take(number, False)
        unacked = session.unacked
        ranges = []
        for one in unacked:
            if one.first_tag > number:
                break
            if one.consumer is not None and one.consumer.tag == consumer.tag:
                ranges.append((one.first_tag, min(one.last_tag, number)))
        if not ranges or ranges[-1][1] != number:
            self._refuse_unknown([number])
        return [one for first, last in ranges for one in unacked.take_range(first, last)]

    # -- Consumers -----------------------------------------------------------------------------------------------

    def add(self, consumer: StompConsumer) -> None:
        self.consumers[consumer.raw_tag] = consumer

    def remove(self, consumer: StompConsumer) -> None:
        """The subscription is over. What is out with the client may still be settled."""
        if not consumer.unacked and self.consumers.get(consumer.raw_tag) is consumer:
            del self.consumers[consumer.raw_tag]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 18


class StompConsumer:
    """The consumer of one subscription. `id`: of the subscription; None for one that is known by its destination."""

    __slots__ = (
        "again", "arguments", "begins_at", "cancels_on_failover", "connection", "exclusive", "first", "has_receipt",
        "head", "id", "is_cumulative", "key", "names_twice", "no_ack", "output", "plans", "prefetch", "priority",
        "queue", "raw_tag", "receipt_at", "receipt_end", "seen", "session", "shown", "shown_key", "size", "skip", "tag",
        "tail", "timeout_ms", "unacked",
    )  # fmt: skip

    is_exact = False

    def __init__(
        self,
        connection: Connection,
        queue: AnyQueue,
        wanted: ConsumerWanted,
        start: Start | None,
        is_cumulative: bool,
        subscription: str | None,
    ) -> None:
        session = connection.session
        assert session is not None
        self.connection = connection
        self.output = connection.output
        self.session = session
        self.queue = queue
        self.id = subscription
        self.tag = wanted.tag
        self.raw_tag = escaped(wanted.tag, connection.escapes).encode("utf-8", "surrogateescape")
        self.no_ack = wanted.no_ack
        self.is_cumulative = is_cumulative
        self.exclusive = wanted.exclusive
        self.arguments = wanted.arguments
        self.prefetch = 0 if wanted.no_ack else wanted.prefetch
        self.begins_at = start
        self.cancels_on_failover, self.priority, self.timeout_ms = session.consumer_options(wanted.arguments)
        self.unacked = 0
        self.names_twice = not wanted.no_ack and connection.version == V12  # There is a header ack, too.
        self.plans: dict[tuple[bytes, bytes, bytes, int], Plan] = {}
        self.seen: tuple[bytes, bytes, bytes, int] | None = None  # The last message that had none.
        self.shown_key = self.shown = b""  # The first lines of messages of one key.
        # What messages look like that the last plan fits.
        self.key = self.head = self.tail = self.first = self.again = b""
        self.size = self.skip = self.receipt_at = self.receipt_end = 0
        self.has_receipt = False

    # -- What its queue asks -------------------------------------------------------------------------------------

    def room(self, average_bytes: int) -> int:
        room = self.output.room(self.queue, average_bytes)
        return min(room, self.prefetch - self.unacked) if self.prefetch else room

    def limit(self) -> int:
        return self.prefetch

    def shares_prefetch(self) -> bool:
        return False

    def on_queue_deleted(self) -> None:
        self.session.forget_consumer(self.tag)
        self.connection.subscriptions.on_cancelled(self)

    def deliver(self, batch: Batch, lo: int, hi: int) -> None:
        first = self.session.on_delivered(self, batch, lo, hi)
        contents, keys = batch.contents[lo:hi], batch.keys[lo:hi]
        pieces = None if batch.redelivered else self._alike(first, contents, keys)
        if pieces is None:
            queue = self.queue
            if batch.redelivered and queue.is_local and (returns := queue.extension(DeliveryLimit)) is not None:
                contents = returns.labelled(batch, lo, hi)  # Else its own node has done so.
            pieces = self._one_by_one(first, contents, keys, batch.kinds[lo:hi])
        self.output.put(pieces, batch.average_bytes() * (hi - lo))

    # -- Frames --------------------------------------------------------------------------------------------------

    def _alike(self, number: int, contents: list[bytes], keys: list[bytes]) -> list[bytes] | None:
        """The frames of messages that all look like the last one; None if they do not."""
        count, size, head, tail, end = len(contents), self.size, self.head, self.tail, self.receipt_end
        if not size or keys.count(self.key) != count:
            return None
        fits = [one for one in contents if len(one) == size and one.startswith(head) and one.startswith(tail, end)]
        if len(fits) != count:
            return None
        skip, first, numbers = self.skip, self.first, range(number, number + count)
        pieces = [END] * (3 * count)
        if self.has_receipt:
            start = self.receipt_at
            receipts = [one[start:end] for one in contents]
            if not all(map(_PLAIN.match, receipts)):
                return None
            if self.names_twice:
                pieces[0::3] = [first % values for values in zip(numbers, numbers, receipts, strict=True)]
            else:
                pieces[0::3] = [first % values for values in zip(numbers, receipts, strict=True)]
        elif self.names_twice:
            pieces[0::3] = [first % (one, one) for one in numbers]
        else:
            pieces[0::3] = [first % one for one in numbers]
        pieces[1::3] = [one[skip:-1] for one in contents]
        return pieces

    def _one_by_one(self, number: int, contents: list[bytes], keys: list[bytes], kinds: bytearray) -> list[bytes]:
        pieces: list[bytes] = []
        for content, key, kind in zip(contents, keys, kinds, strict=True):
            pieces += self._one(number, content, key, kind & REDELIVERED != 0)
            number += 1
        return pieces

    def _one(self, number: int, content: bytes, key: bytes, again: bool) -> tuple[bytes, ...]:
        if not (
            key == self.key
            and len(content) == self.size
            and content.startswith(self.head)
            and content.startswith(self.tail, self.receipt_end)
        ) and not self._use_plan(key, content):
            return (self._frame(str(number), content, key, again),)
        numbers: tuple[int | bytes, ...] = (number, number) if self.names_twice else (number,)
        if self.has_receipt:
            receipt = content[self.receipt_at : self.receipt_end]
            if not _PLAIN.match(receipt):
                return (self._frame(str(number), content, key, again),)
            numbers += (receipt,)
        return (self.again if again else self.first) % numbers, content[self.skip : -1], END

    def _frame(self, number: str, content: bytes, key: bytes, again: bool) -> bytes:
        named = b"%b@@%b@@%b\n" % (self.raw_tag, self.connection.session_id.encode(), number.encode())
        if key != self.shown_key:
            self.shown_key, self.shown = key, head_of("MESSAGE", self._addressed(key), self.connection.escapes)
        skip = body_at(content)
        body = content[skip:-1] if skip else body_of(content)
        return b"".join(
            (
                self.shown,
                b"message-id:" + named,
                b"redelivered:true\n" if again else b"redelivered:false\n",
                b"ack:" + named if self.names_twice else b"",
                self.connection.deliveries.lines.of(content),
                length_line(len(body)),
                b"\n",
                body,
                END,
            )
        )

    def _addressed(self, key: bytes) -> list[tuple[str, str]]:
        """The first headers of a MESSAGE."""
        lines = [] if self.id is None else [("subscription", self.id)]
        return [*lines, ("destination", shown(*names_in(key)))]

    # -- Plans ---------------------------------------------------------------------------------------------------

    def _use_plan(self, key: bytes, content: bytes) -> bool:
        """Be ready for messages like this one. False if there is no plan for such."""
        skip = body_at(content)
        if not 0 < skip <= PLAN_BYTES_MAX:  # 0: no body, or one in several pieces.
            return False
        start, end = _receipt_in(content, skip)
        head, tail, size = content[:start], content[end:skip], len(content)
        plan = self.plans.get((key, head, tail, size))
        if plan is None:
            if self.seen != (key, head, tail, size):
                self.seen = (key, head, tail, size)
                return False  # A plan takes longer to make than a frame, and is worth it if another such message comes.
            lines = headers_of(content)
            if end > start and not _is_receipt(content, start, end, lines):
                return False
            plan = Plan(*(self._template(key, lines, size - skip - 1, end > start, one) for one in (False, True)))
            if len(self.plans) >= PLANS_MAX:
                self.plans.clear()
            self.plans[key, head, tail, size] = plan
        self.key, self.head, self.tail, self.size, self.skip = key, head, tail, size, skip
        self.receipt_at, self.receipt_end, self.has_receipt = start, end, end > start
        self.first, self.again = plan
        return True

    def _template(self, key: bytes, lines: list[tuple[str, str]], size: int, is_open: bool, again: bool) -> bytes:
        """The head of a MESSAGE, with places for the number of the delivery, and for the receipt if it `is_open`."""
        escapes = self.connection.escapes

        def text_of(command: str, part: list[tuple[str, str]]) -> bytes:
            return head_of(command, part, escapes).replace(b"%", b"%%")

        place = [name for name, _ in lines].index("receipt") if is_open else len(lines)
        named = self.raw_tag.replace(b"%", b"%%") + f"{SEPARATOR}{self.connection.session_id}{SEPARATOR}%d\n".encode()
        return b"".join(
            (
                text_of("MESSAGE", self._addressed(key)),
                b"message-id:" + named,
                b"redelivered:true\n" if again else b"redelivered:false\n",
                b"ack:" + named if self.names_twice else b"",
                text_of("", lines[:place])[1:],
                b"receipt:%b\n" if is_open else b"",
                text_of("", lines[place + 1 :])[1:],
                length_line(size),
                b"\n",
            )
        )


def _is_receipt(content: bytes, start: int, end: int, lines: list[tuple[str, str]]) -> bool:
    """What is there is the header indeed, and not a text that looks like it within another one."""
    filler = b"0" * (end - start)
    if content[start:end] == filler:
        filler = b"1" * (end - start)
    changed = headers_of(content[:start] + filler + content[end:])
    return changed != lines and changed == [
        (name, filler.decode() if name == "receipt" else value) for name, value in lines
    ]


def _receipt_in(content: bytes, skip: int) -> tuple[int, int]:
    """Where the receipt is in a content, as far as its bytes tell; twice the beginning of the body if there is none."""
    at = content.find(RECEIPT, 0, skip)
    if at < 0:
        return skip, skip
    start = at + len(RECEIPT) + 4
    end = start + int.from_bytes(content[at + len(RECEIPT) : start], "big")
    return (start, end) if start < end < skip else (skip, skip)
