"""SEND frames of a client: from bytes to queues, and RECEIPT back.

Three things keep the hot path short, as with AMQP (`sessions.amqp.publish_fast_path`):

- *Frames are known by their bytes.* Frames to one destination with the same headers are the same bytes up to the body,
  but for the value of `receipt`. What such bytes lead to (a `Form`) is remembered; a frame that looks like the one
  before costs two comparisons and some slices.
- *Publishes travel in bundles.* Contents of one kind, bound for the same queues, gather until something else comes
  along, and go to the queues together (`submit`). One confirm stands for all of them.
- *The head of a content is made once* for each size of receipt. A content is that head, with the receipt and the size
  of the body filled in, the body and a byte.

Frames in a transaction, with a queue for answers in reply-to, with CC or BCC, or to destinations whose route depends on
the message take the longer way, as frames.

**Receipts.** The RECEIPT of a SEND is sent when every queue has the message safe, so all publishes with a receipt are
confirmed. What a queue refuses is answered with an ERROR that names the receipt. A *barrier* is an answer that waits
for all publishes before it: the receipt of COMMIT and of DISCONNECT.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.delivery.batch import MESSAGE_OVERHEAD, begin_sharing
from leveret.broker.delivery.confirms import REFUSED
from leveret.broker.fanout import FEW
from leveret.broker.session.session import arguments_of
from leveret.protocol import frames
from leveret.protocol.stomp.decoder import Incomplete, Span, decode, length_in, skip, span_at
from leveret.protocol.stomp.escaping import escaped
from leveret.sessions.stomp.destinations import Destination, Kind, parse
from leveret.sessions.stomp.errors import StompError
from leveret.sessions.stomp.messages import content_for
from leveret.storage.format.queue_block import SHARED

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.session.session import Session
    from leveret.broker.vhost import Route
    from leveret.protocol.stomp.frames import Frame
    from leveret.sessions.stomp.connection import Connection

FORMS_MAX: Final = 128
FORM_BYTES_MAX: Final = 2_048  # Frames with longer headers take the longer way.
HEADS_MAX: Final = 8  # Of one form.
SIZE_AT: Final = frames.HEADER_AT + 4  # Where a content has the size of its body.
BUNDLE_MAX: Final = 4_096
RECEIPT_HEADER: Final = b"\nreceipt:"
RECEIPT_BYTES_MAX: Final = 1_024  # A longer one takes the longer way.
_PLAIN: Final = re.compile(rb"[^\\:\r\n\0 ][^\\:\r\n\0]*")  # A receipt that is written as it is, whatever the version.
_SPECIAL: Final = ("transaction", "message-id", "CC", "BCC")


class Head(NamedTuple):
    """What is before the body in contents of one form, but for the receipt and the size of the body."""

    start: bytes  # Up to the size.
    middle: bytes  # From there up to the receipt.
    end: bytes  # From there up to the size of the body's frame.


class Form(NamedTuple):
    """Frames that look the same but for their receipts and bodies."""

    start: bytes  # From the command up to the receipt; if there is none, to the body.
    end: bytes  # From behind the receipt to the body.
    has_receipt: bool
    length: int | None  # The content-length, if the frames say one.
    headers: dict[str, str]
    route: Route
    kind: int
    heads: dict[int, Head]  # By the size of the receipt.


class Barrier(NamedTuple):
    """An answer that waits for all publishes up to number `last`."""

    last: int
    since: int  # It is told of refusals above this number.
    then: Callable[[bool], None]


class Publisher:
    """The publishing side of a connection."""

    __slots__ = (
        "answers", "barriers", "connection", "contents", "expected", "form", "forms", "generation", "keys", "kind",
        "queues", "refused_number",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.generation = -1
        self.form: Form | None = None  # Of the last frame.
        self.forms: dict[tuple[bytes, bytes], Form] = {}
        # The publishes gathered: all of one kind, bound for the same queues, and with a receipt each or none at all.
        self.contents: list[bytes] = []
        self.keys: list[bytes] = []
        self.expected: list[bytes] = []  # Their receipts, as they are written.
        self.queues: tuple[AnyQueue, ...] = ()
        self.kind = 0
        self.answers: dict[int, bytes] = {}  # The receipt by the number of a publish among the session's.
        self.barriers: deque[Barrier] = deque()
        self.refused_number = 0  # The last one that was refused.

    def begin(self, session: Session) -> None:
        """The client has its session."""
        session.confirm(self._on_ready)

    def check_routes(self) -> None:
        """Forget the routes if a queue, a binding or a permission has changed."""
        vhost = self.connection.vhost
        if vhost is not None and self.generation != vhost.generation:
            self.forms.clear()
            self.form = None
            self.generation = vhost.generation

    # -- From bytes to contents ----------------------------------------------------------------------------------

    def on_send(self, data: bytes, at: int) -> int | Incomplete:
        """A SEND frame begins at `at`. Gives where what was taken in ends: frames behind it that look the same are
        taken in with it. Raises `Malformed`, `StompError` or `Refused`."""
        form = self.form
        if form is not None:
            end = self._take_alike(form, data, at)
            if end > at or self.connection.held:
                return end
        limits = self.connection.frame_limits
        span = span_at(data, at, limits)
        if isinstance(span, Incomplete):
            return span
        start, end_ = self._cut(data, span)
        form = self.forms.get((start, end_))
        if form is not None:
            self.form = form
            taken = self._take_alike(form, data, at)
            if taken > at or self.connection.held:
                return taken
        frame = decode(data, span, limits, self.connection.escapes, self.connection.trims)
        self.submit()
        session = self.connection.session
        assert session is not None
        before = session.traffic.published
        self.connection.on_frame(frame)
        if session.traffic.published > before and not self.connection.held and not self.connection.closed:
            self._remember(frame, start, end_, length_in(data, span.start, span.block))
        return span.last + 1

    @staticmethod
    def _cut(data: bytes, span: Span) -> tuple[bytes, bytes]:
        """What is before and behind the value of the receipt; everything is before if there is none."""
        named = data.find(RECEIPT_HEADER, span.start, span.block)
        if named < 0:
            return data[span.start : span.body], b""
        named += len(RECEIPT_HEADER)
        line_end = data.find(b"\n", named, span.block)
        return data[span.start : named], data[line_end if line_end >= 0 else span.block : span.body]

    def _take_alike(self, form: Form, data: bytes, at: int) -> int:
        """Take in all frames from `at` on that have this form. Gives where they end."""
        start, end, has_receipt, length, _, route, kind, heads = form
        queues, size, contents = route.queues, len(data), self.contents
        if not data.startswith(start, at):
            return at
        if queues is not self.queues or kind != self.kind or has_receipt != bool(self.expected):
            self.submit()
            contents = self.contents
            self.queues, self.kind = queues, kind
        most = BUNDLE_MAX
        if len(queues) > FEW:
            most = self.connection.broker.fanout.portion(len(queues))
            if most <= len(contents):
                self.submit()
                self.connection.rest_from_spreading()
                return at
        skipped, behind = len(start), len(end)
        frame_max, expected, before = self.connection.frame_limits.frame_bytes_max, self.expected, len(contents)
        receipt, join, tail = b"", b"".join, frames.END_BYTE
        body_max = (self.connection.limits.frame_max or frame_max + frames.OVERHEAD) - frames.OVERHEAD
        while len(contents) < most:
            body = at + skipped
            if has_receipt:
                found = _PLAIN.match(data, body, body + RECEIPT_BYTES_MAX)
                if found is None or not data.startswith(end, found.end()):
                    break
                receipt = found[0]
                body = found.end() + behind
            if length is None:
                last = data.find(b"\0", body, at + frame_max + 1)
                if last < 0:
                    break
            else:
                last = body + length
                if last >= size or data[last]:
                    break
            count = last - body
            if not 0 < count <= body_max:
                break  # Its content is another number of frames.
            head = heads.get(len(receipt))
            if head is None:
                head = self._new_head(form, len(receipt))
            first, middle, third = head
            wide, narrow = count.to_bytes(8, "big"), count.to_bytes(4, "big")
            contents.append(join((first, wide, middle, receipt, third, narrow, data[body:last], tail)))
            if has_receipt:
                expected.append(receipt)
            at = last + 1
            if at < size and data[at] == 10:
                at = skip(data, at)
            if not data.startswith(start, at):
                break
        count = len(contents) - before
        self.keys += [route.key] * count
        route.counters.published_in += count
        route.counters.published_out += count * len(queues)
        if len(contents) >= most:
            self.submit()
        return at

    @staticmethod
    def _new_head(form: Form, receipt_size: int) -> Head:
        headers = form.headers
        one, other = (
            content_for(headers | {"receipt": filler * receipt_size} if form.has_receipt else headers, b"x", 0)[:-6]
            for filler in ("0", "1")
        )
        differ = (at for at, (left, right) in enumerate(zip(one, other, strict=True)) if left != right)
        place = next(differ, SIZE_AT + 8)
        if len(form.heads) >= HEADS_MAX:
            form.heads.clear()
        head = form.heads[receipt_size] = Head(one[:SIZE_AT], one[SIZE_AT + 8 : place], one[place + receipt_size :])
        return head

    def _remember(self, frame: Frame, start: bytes, end: bytes, length: int | None) -> None:
        """The frame was sent as others may be that look like it."""
        headers = frame.headers
        if len(start) + len(end) > FORM_BYTES_MAX:
            return
        if any(name in headers for name in _SPECIAL) or headers.get("reply-to", "").startswith("/temp-queue/"):
            return
        receipt = headers.get("receipt")
        if end and (not receipt or not _PLAIN.fullmatch(receipt.encode("utf-8", "surrogateescape"))):
            return
        if receipt is not None and not end:
            return  # Its name is escaped.
        session = self.connection.session
        assert session is not None
        # The permission was checked when this very frame was sent.
        route = session.find_route(arguments_of(*self._route(parse(headers["destination"]))))
        if not route.is_plain:
            return
        kind, _ = session.examine(content_for(headers, frame.body, 0))
        if len(self.forms) >= FORMS_MAX:
            self.forms.clear()
        if self.generation == session.login.vhost.generation:
            self.form = self.forms[start, end] = Form(start, end, bool(end), length, dict(headers), route, kind, {})

    def _route(self, destination: Destination) -> tuple[str, str]:
        return destination.route(self.connection.limits.default_topic_exchange)

    # -- One frame -----------------------------------------------------------------------------------------------

    @staticmethod
    def check(frame: Frame) -> Destination:
        """Return where a SEND goes, if it may be one. Raises `StompError`."""
        if "message-id" in frame.headers:
            raise StompError("Invalid header", "'message-id' is not allowed on 'SEND'.\n")
        text = frame.headers.get("destination")
        if text is None:
            raise StompError("Missing destination", "\"SEND\" must include a 'destination' header\n")
        destination = parse(text)
        if destination.kind is Kind.TEMP_QUEUE:
            raise StompError("Invalid destination", f"'{text}' is not a valid destination for 'SEND'\n")
        return destination

    def on_frame(self, frame: Frame, is_confirmed: bool = False) -> None:
        """Send a message. Its queue is declared before, and one for answers, if need be: meanwhile the connection is
        held. `is_confirmed`: also without a receipt. Raises `StompError` or `Refused`."""
        destination, subscriptions = self.check(frame), self.connection.subscriptions

        def on_declared() -> None:
            reply_to = frame.headers.get("reply-to")
            if reply_to is None or parse(reply_to).kind is not Kind.TEMP_QUEUE:
                self._publish(frame, frame.headers, destination, is_confirmed)
            else:
                subscriptions.reply_queue(parse(reply_to).name, on_reply_queue)

        def on_reply_queue(name: str) -> None:
            self._publish(frame, frame.headers | {"reply-to": name}, destination, is_confirmed)

        if destination.kind is Kind.QUEUE:
            subscriptions.declare_target(destination, frame, on_declared)
        else:
            on_declared()

    def _publish(self, frame: Frame, headers: Mapping[str, str], destination: Destination, is_confirmed: bool) -> None:
        connection, session = self.connection, self.connection.session
        assert session is not None
        route = session.find_route(arguments_of(*self._route(destination)))
        content = content_for(headers, frame.body, connection.limits.frame_max)
        kind, further = session.examine(content)
        if further:
            content = session.checked_copies(route, content, further)
        queues = session.queues_of(route, content, further)
        receipt = frame.headers.get("receipt")
        expected: list[bytes] = []
        if receipt is not None:
            expected.append(escaped(receipt, connection.escapes).encode("utf-8", "surrogateescape"))
        elif is_confirmed:
            expected.append(b"")
        self.submit()
        if not queues:
            connection.broker.totals.unroutable += 1
            session.traffic.dropped += 1
        self._send(queues, [content], [route.key], kind, expected)

    # -- Bundles -------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        """Hand the gathered publishes to their queues."""
        if self.contents:
            contents, keys, expected = self.contents, self.keys, self.expected
            self.contents, self.keys, self.expected = [], [], []
            self._send(self.queues, contents, keys, self.kind, expected)

    def _send(
        self,
        queues: tuple[AnyQueue, ...],
        contents: list[bytes],
        keys: list[bytes],
        kind: int,
        expected: Sequence[bytes],
    ) -> None:
        """Messages of one kind, and their receipts, if they are to be confirmed."""
        connection = self.connection
        broker, session, count = connection.broker, connection.session, len(contents)
        assert session is not None and session.confirms is not None
        connection.has_published = True
        broker.totals.published += count
        session.traffic.published += count
        pending: Pending | None = None
        if expected:
            pending = session.confirms.begin(count)
            self.answers.update(zip(range(pending.first, pending.last + 1), expected, strict=True))
        if broker.refusing:
            if pending is not None:
                pending.refused = REFUSED
                session.confirms.on_complete(pending)
            return
        journal = broker.journal if pending is None else None
        if journal is not None:
            journal.source = session.who
        size = sum(map(len, contents)) + MESSAGE_OVERHEAD * count
        if len(queues) > 1:
            kind |= SHARED
        shared = begin_sharing(broker, contents, size, len(queues)) if queues else None
        try:
            for queue in queues:
                if queue.enqueue(contents, keys, kind, size, pending):
                    connection.on_crowded(queue)
        finally:
            if shared is not None:
                shared.contents = broker.sharing = None
        if len(queues) > FEW:
            broker.fanout.left -= count * len(queues)
            if broker.fanout.left <= 0:
                connection.rest_from_spreading()
        if journal is not None:
            journal.source = ""
        if pending is not None and not pending.waiting:
            session.confirms.on_complete(pending)

    # -- Receipts ------------------------------------------------------------------------------------------------

    def _on_ready(self) -> None:
        self.connection.broker.confirming[self] = None

    def send_confirms(self) -> None:
        """Send the receipts of publishes whose fate is known since the last time."""
        connection, session, answers = self.connection, self.connection.session, self.answers
        if session is None or session.confirms is None or connection.closed:
            return
        out: list[bytes] = []
        for number, multiple, refused in session.confirms.take():
            numbers = list(takewhile(number.__ge__, answers)) if multiple else [number]
            receipts = [answers.pop(one, b"") for one in numbers]
            if refused:
                self.refused_number = max(self.refused_number, number)
                if out:
                    connection.output.send(b"".join(out))
                    out = []
                for receipt in receipts:
                    self._refuse(receipt)
            else:
                out += [b"RECEIPT\nreceipt-id:%b\n\n\0\n" % receipt for receipt in receipts if receipt]
        if out:
            connection.output.send(b"".join(out))
        self._pass_barriers()

    def _refuse(self, receipt: bytes) -> None:
        """A queue has refused a message. RabbitMQ cuts the connection off without a word."""
        text = "A queue has refused the message, or it is not known whether it is safe.\n"
        line = b"receipt-id:%b\n" % receipt if receipt else b""
        self.connection.tell(StompError("Message refused", text), line)

    @property
    def published_number(self) -> int:
        """The number of the last publish that is to be confirmed."""
        session = self.connection.session
        return 0 if session is None or session.confirms is None else session.confirms.published

    def on_all_safe(self, since: int, then: Callable[[bool], None]) -> None:
        """Call `then` when the fate of all publishes so far is known: True if none of them was refused that have a
        number above `since`."""
        self.barriers.append(Barrier(self.published_number, since, then))
        self._pass_barriers()

    def _pass_barriers(self) -> None:
        session = self.connection.session
        while self.barriers and not self.connection.closed:
            waits = None if session is None or session.confirms is None else session.confirms.open
            if waits and waits[0].first <= self.barriers[0].last:
                return
            barrier = self.barriers.popleft()
            barrier.then(self.refused_number <= barrier.since)

    def forget(self) -> None:
        """The connection is over."""
        self.contents, self.keys, self.expected = [], [], []
        self.forms.clear()
        self.form = None
        self.answers.clear()
        self.barriers.clear()
