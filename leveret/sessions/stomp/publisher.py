"""SEND frames of a client: from bytes to queues, and RECEIPT back.

Two things keep the hot path short, as with AMQP (`sessions.amqp.publish_fast_path`):

- *Frames are known by their form.* What differs between the frames of a client is mostly what is only passed on: see
  `send_forms`. A frame of a known form is matched by one regular expression, and its content is joined from pieces.
- *Publishes travel in bundles.* Contents of one kind, bound for the same queues, gather until something else comes
  along, and go to the queues together (`submit`). One confirm stands for all of them.
Frames in a transaction, with a queue for answers in reply-to, with CC or BCC, or to destinations whose route depends on
the message take the longer way, as frames.

**Receipts.** The RECEIPT of a SEND is sent when every queue has the message safe, so all publishes with a receipt are
confirmed. What a queue refuses is answered with an ERROR that names the receipt. A *barrier* is an answer that waits
for all publishes before it: the receipt of COMMIT and of DISCONNECT.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.broker.fanout import FEW
from leveret.broker.session.session import arguments_of
from leveret.protocol import frames
from leveret.protocol.stomp.decoder import Incomplete, decode, skip, span_at
from leveret.protocol.stomp.escaping import escaped
from leveret.sessions.stomp.destinations import Destination, Kind, parse
from leveret.sessions.stomp.errors import StompError
from leveret.sessions.stomp.messages import content_for
from leveret.sessions.stomp.send_forms import FORM_BYTES_MAX, SendForms

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue
    from leveret.broker.session.session import Session
    from leveret.protocol.stomp.frames import Frame
    from leveret.sessions.stomp.connection import Connection
    from leveret.sessions.stomp.send_forms import Form

BUNDLE_MAX: Final = 4_096


class Barrier(NamedTuple):
    """An answer that waits for all publishes up to number `last`."""

    last: int
    since: int  # It is told of refusals above this number.
    then: Callable[[bool], None]


class Publisher:
    """The publishing side of a connection."""

    __slots__ = (
        "answers", "barriers", "connection", "contents", "expected", "forms", "generation", "keys", "kind", "queues",
        "refused_number",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.generation = -1
        self.forms = SendForms()
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
            self.forms.forget_routes()
            self.generation = vhost.generation

    # -- From bytes to contents ----------------------------------------------------------------------------------

    def on_send(self, data: bytes, at: int) -> int | Incomplete:
        """A SEND frame begins at `at`. Gives where what was taken in ends: frames behind it that look the same are
        taken in with it. Raises `Malformed`, `StompError` or `Refused`."""
        form = self.forms.find(data, at)
        if form is not None:
            end = self._take_alike(form, data, at)
            if end > at or self.connection.held:
                return end
        limits = self.connection.frame_limits
        span = span_at(data, at, limits)
        if isinstance(span, Incomplete):
            return span
        frame = decode(data, span, limits, self.connection.escapes, self.connection.trims)
        self.connection.spend(span.block - span.start)
        self.submit()
        session = self.connection.session
        assert session is not None
        before = session.traffic.published
        self.connection.on_frame(frame)
        if session.traffic.published > before and not self.connection.held and not self.connection.closed:
            self._learn(frame, data[span.start : span.block])
        return span.last + 1

    def _take_alike(self, form: Form, data: bytes, at: int) -> int:
        """Take in all frames from `at` on that have this form. Gives where they end."""
        route, kind, has_receipt = form.route, form.kind, form.receipt_at > 0
        assert route is not None
        queues, size = route.queues, len(data)
        if queues is not self.queues or kind != self.kind or has_receipt != bool(self.expected):
            self.submit()
            self.queues, self.kind = queues, kind
        contents, expected = self.contents, self.expected
        most = BUNDLE_MAX
        if len(queues) > FEW:
            most = self.connection.broker.fanout.portion(len(queues))
            if most <= len(contents):
                self.submit()
                self.connection.rest_from_spreading()
                return at
        match, content_of, before = form.pattern.match, form.content, len(contents)
        receipt_at, length_at = form.receipt_at, form.length_at
        frame_max = self.connection.frame_limits.frame_bytes_max
        body_max = (self.connection.limits.frame_max or frame_max + frames.OVERHEAD) - frames.OVERHEAD
        while len(contents) < most:
            found = match(data, at)
            if found is None or found.end() - at > FORM_BYTES_MAX:
                break
            values: tuple[bytes, ...] = found.groups()
            body = found.end()
            if length_at:
                last = body + int(values[length_at - 1])
                if last >= size or data[last]:
                    break
            else:
                last = data.find(b"\0", body, at + frame_max + 1)
            if not 0 < last - body <= body_max or last - at > frame_max:
                break  # It is not whole, too large, or has another number of frames as a content.
            contents.append(content_of(values, data[body:last]))
            if has_receipt:
                expected.append(values[receipt_at - 1])
            at = last + 1
            if at < size and data[at] == 10:
                at = skip(data, at)
        count = len(contents) - before
        self.keys += [route.key] * count
        route.counters.published_in += count
        route.counters.published_out += count * len(queues)
        if len(contents) >= most:
            self.submit()
        return at

    def _learn(self, frame: Frame, block: bytes) -> None:
        """The frame was sent as others may be that look like it."""
        session = self.connection.session
        assert session is not None
        # The permission was checked when this very frame was sent.
        route = session.find_route(arguments_of(*self._route(parse(frame.headers["destination"]))))
        if route.is_plain and self.generation == session.login.vhost.generation:
            kind, _ = session.examine(content_for(frame.headers, frame.body, 0))
            self.forms.learn(block, frame, route, kind)

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
        connection, session = self.connection, self.connection.session
        assert session is not None and session.confirms is not None
        connection.on_publish()
        connection.broker.totals.sizes["stomp"].add(contents)
        pending = None
        if expected:
            pending = session.confirms.begin(len(contents))
            self.answers.update(zip(range(pending.first, pending.last + 1), expected, strict=True))
        if session.publish_bundle(queues, contents, keys, kind, pending):
            connection.rest_from_spreading()

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
        self.forms.forget()
        self.answers.clear()
        self.barriers.clear()
