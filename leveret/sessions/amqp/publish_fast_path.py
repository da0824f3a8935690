"""From bytes to publishes: the hot path of a connection.

Four things keep it short:

- *A repeated publish is recognised by its bytes.* The method frame, the header frame and the head of the body frame of
  the last publish are kept as one prefix (`repeat`). While the input goes on with that prefix, a message costs a prefix
  comparison and one slice: no frame is parsed, nothing is looked up. Publishers that send one kind of message take
  this way; others take `_on_publish`, which finds a route by the raw bytes of its arguments.
- *A similar publish is recognised by its shape.* Where only values differ (an id, a timestamp, the size of the body),
  one regular expression checks the header (`HeaderShapes`), and the route is looked up by its raw bytes (`_similar`).
- *Publishes travel in bundles.* Contents of one channel and kind, bound for the same queues, gather in `contents`
  (and their keys in `keys`) until something else comes along, and go to the queues together (`submit`). A publisher
  that goes round many queues has one bundle for each (`bundles`): order counts within a queue, not between queues. What
  goes to several queues at once would overlap, so it has no other bundle beside it. Every frame that is no publish
  submits first. What goes to very many queues is taken in as far as the turn's budget allows: see `fanout`.
- *Contents stay bytes.* What is sliced from the input is what is stored and delivered, frame heads included.

A publish is taken up when all of it is there, if its body is one frame; until then it stays in the input, which is
then at most three frames long. Bodies of several frames are put together by the channel.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Final

from leveret.broker.fanout import FEW
from leveret.protocol.bundles import BUNDLE
from leveret.protocol.codec import printed
from leveret.protocol.errors import ConnectionFault, ReplyCode
from leveret.protocol.frames import BODY, END, HEAD, HEADER, HEADER_AT, METHOD
from leveret.protocol.header_shapes import HeaderShapes, Shape
from leveret.protocol.properties import DELICATE, BadProperties, survey

if TYPE_CHECKING:
    from leveret.base.counters import ExchangeCounters
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.vhost import Route, Vhost
    from leveret.sessions.amqp.channel import Channel
    from leveret.sessions.amqp.limits import Limits

PUBLISH: Final = b"\x00\x3c\x00\x28"
PUBLISH_IDS: Final = (60, 40)
PUBLISH_HEAD: Final = Struct(">3sI4s")  # Type and channel, length, class and method.
SMALLEST: Final = 30  # Fewer bytes are no method, header and body frame.
ACK: Final = b"\x00\x3c\x00\x50"
BASIC: Final = b"\x00\x3c\x00\x00"  # Class and weight of a content header.
NOTHING: Final = b"\xff\xff"  # No frame of a sane client begins like this.
INCOMPLETE: Final = -1


class PublishFastPath:
    """The part of a connection that reads frames. What is not a publish or an ack goes to `_on_frame`."""

    __slots__ = (
        "arguments", "bundles", "contents", "frame_max", "has_published", "is_wide", "keys", "kind", "mixes",
        "properties", "publisher", "queues", "repeat", "repeat_size", "repeat_skip", "resume_at", "route", "shapes",
    )  # fmt: skip

    broker: Broker
    limits: Limits
    closed: bool
    closing: bool
    held: bool
    waiting: int
    user: str
    vhost: Vhost | None
    has_origins: bool
    channels: dict[int, Channel]

    def __init__(self) -> None:
        self.frame_max = 0
        self.has_published = False
        # The publishes gathered: all of one channel and kind, and bound for the same queues.
        self.contents: list[bytes] = []
        self.keys: list[bytes] = []
        self.queues: tuple[AnyQueue, ...] = ()
        # All bundles, this one included, if there are several: each is bound for one queue.
        self.bundles: dict[tuple[AnyQueue, ...], tuple[list[bytes], list[bytes]]] = {}
        self.mixes = True  # There may be several.
        self.is_wide = False  # They are bound for many queues.
        self.publisher: Channel | None = None
        self.kind = 0
        # What the last publish looked like.
        self.route: Route | None = None
        self.arguments = NOTHING
        self.properties = b""  # No header is without flags.
        self.repeat = NOTHING
        self.repeat_skip = 0
        self.repeat_size = 0
        self.shapes: HeaderShapes | None = None  # Those of this publisher's headers, once two of them differed.
        self.resume_at = 0  # After a fault: where the frame after the one at fault begins.

    def _on_frame(self, kind: int, number: int, payload: bytes) -> None:
        raise NotImplementedError

    def rest_from_spreading(self) -> None:
        raise NotImplementedError

    def _guard(self, channel: Channel, action: Callable[..., object], *arguments: object) -> bool:
        raise NotImplementedError

    def _frames(self, data: bytes, at: int, size: int) -> int:
        """Process the whole frames in `at`..`size`; return where the first incomplete one begins, or the first one that
        has to wait."""
        end: int = size
        try:
            while True:
                if data.startswith(self.repeat, at):
                    at = self._repeated(data, at, size)
                    if self.held:
                        return at
                if self.shapes is not None and data.startswith(PUBLISH, at + 7):
                    at = self._similar(self.shapes.known, data, at, size)
                if size - at < 7:
                    return at
                kind, number, length = HEAD.unpack_from(data, at)
                end = at + length + 8
                if length > self.frame_max:  # Eight bytes more than agreed on, because some clients forget the head.
                    end = size
                    raise frame_error(kind, b"", f"{{frame_too_large,{length},{self.frame_max - 8}}}")
                if end > size:
                    return at
                if data[end - 1] != END:
                    payload, marker, end = data[at + 7 : end - 1], data[end - 1], size
                    raise frame_error(kind, payload, f"{{invalid_frame_end_marker,{marker}}}")
                if kind == METHOD and not self.closing:
                    if data.startswith(PUBLISH, at + 7):
                        channel = self.channels.get(number)
                        if channel is not None and channel.is_idle():
                            after = self._on_publish(channel, data, at, end, size)
                            if after == INCOMPLETE:
                                return at
                            at = after
                            if self.held:
                                return at
                            continue
                    elif length == 13 and data.startswith(ACK, at + 7):
                        channel = self.channels.get(number)
                        if channel is not None and channel.is_idle():
                            self.submit()
                            tag = int.from_bytes(data[at + 11 : at + 19], "big")
                            self._guard(channel, channel.on_ack, tag, data[at + 19] & 1)
                            at = end
                            continue
                self.submit()
                self._on_frame(kind, number, data[at + 7 : end - 1])
                at = end
                if self.held or self.closed or self.waiting:
                    return at
        except ConnectionFault:
            self.submit()
            self.resume_at = end
            raise

    def find_publish(self, data: bytes) -> int:
        """Return where the first publish begins, or the rest of one whose content comes in several frames.

        Returns the size of `data` if there is none.
        """
        at, size = 0, len(data)
        while size - at > 7:
            kind, number, length = HEAD.unpack_from(data, at)
            end = at + length + 8
            if end > size:
                break
            if kind == METHOD:
                if data.startswith(PUBLISH, at + 7):
                    return at
            elif kind in (HEADER, BODY):
                channel = self.channels.get(number)
                if channel is not None and channel.route is not None:
                    return at
            elif kind == BUNDLE and self.has_origins:
                return at
            at = end
        return size

    def _repeated(self, data: bytes, at: int, size: int) -> int:
        """Take all following messages that look just like the one before."""
        repeat, skip, length, contents = self.repeat, self.repeat_skip, self.repeat_size, self.contents
        if repeat is NOTHING:
            return at  # A stranger may well send just these bytes.
        before, append = len(contents), contents.append
        if self.is_wide:
            size = min(size, at + length * (self.broker.fanout.portion(len(self.queues)) - before))
        while data.startswith(repeat, at):
            end = at + length
            if end > size or data[end - 1] != END:
                break
            append(data[at + skip : end])
            at = end
        route, count = self.route, len(contents) - before
        assert route is not None
        self.keys += [route.key] * count
        route.counters.published_in += count
        route.counters.published_out += count * len(route.queues)
        return at

    def _similar(self, known: dict[bytes, Shape], data: bytes, at: int, size: int) -> int:
        """Take all following messages whose routes and shapes are known."""
        channel, kind, user, start = self.publisher, self.kind, self.user, at
        if not known or channel is None or not channel.is_idle() or channel.transaction is not None:
            return at
        routes = self.vhost.routes  # type: ignore[union-attr]
        own = HEAD.pack(METHOD, channel.number, 0)[:3]
        body_max = min(self.frame_max - 8, self.limits.message_bytes_max)
        while size - at > SMALLEST:
            head, length, method = PUBLISH_HEAD.unpack_from(data, at)
            end = at + length + 8
            if method != PUBLISH or head != own or end >= size or data[end - 1] != END:
                break
            arguments = data[at + 13 : end - 1]
            route = routes.get(arguments)
            if route is None or not route.is_plain or user not in route.writers or len(route.queues) > FEW:
                break
            shape = known.get(data[end + 5 : end + 7])
            if shape is None or shape[1] != kind:
                break
            header = shape[0].match(data, end)
            if header is None:
                break
            body_size = int.from_bytes(header[1], "big")
            stop = header.end() + body_size + 1
            if not 0 < body_size <= body_max or stop > size or data[stop - 1] != END:
                break
            if route.queues is not self.queues:
                self._switch(route.queues)
            count = 1
            self.contents.append(data[end:stop])
            self.keys.append(route.key)
            if data.startswith(arguments, stop + 13):
                before = len(self.contents)
                stop = self._same_route(data[at:end], shape, data, stop, size, body_max)
                more = len(self.contents) - before
                self.keys += [route.key] * more
                count += more
            counters = route.counters
            counters.published_in += count
            counters.published_out += count * len(route.queues)
            at = stop
        if at > start:
            self.arguments = self.repeat = NOTHING  # Those of an earlier message.
        return at

    def _same_route(self, method: bytes, shape: Shape, data: bytes, at: int, size: int, body_max: int) -> int:
        """Take all following messages with the same method frame and shape. Return where the next one begins."""
        match, append, skip = shape[0].match, self.contents.append, len(method)
        while data.startswith(method, at):
            end = at + skip
            header = match(data, end)
            if header is None:
                break
            body_size = int.from_bytes(header[1], "big")
            stop = header.end() + body_size + 1
            if not 0 < body_size <= body_max or stop > size or data[stop - 1] != END:
                break
            append(data[end:stop])
            at = stop
        return at

    def _on_publish(self, channel: Channel, data: bytes, at: int, end: int, size: int) -> int:
        """A publish method at `at`..`end`. Gives where its content ends, if that is one body frame or none."""
        arguments = data[at + 13 : end - 1]
        if arguments != self.arguments or channel is not self.publisher:
            if not self._take_route(channel, arguments):
                return end
        route = self.route
        if size - end < 7:
            return INCOMPLETE
        kind, number, length = HEAD.unpack_from(data, end)
        body_at: int = end + length + 8
        if kind != HEADER or number != channel.number or length < 14 or length > self.frame_max - 8:
            return self._begin_content(channel, end)  # Something is wrong with it, and will be found out.
        if size - end < 22:
            return INCOMPLETE
        if not data.startswith(BASIC, end + 7):
            return self._begin_content(channel, end)
        body_size = int.from_bytes(data[end + 11 : end + 19], "big")
        stop = body_at
        if body_size:
            if body_at + 7 > size:
                return INCOMPLETE
            kind, number, length = HEAD.unpack_from(data, body_at)
            if kind != BODY or number != channel.number or length != body_size or length > self.frame_max - 8:
                return self._begin_content(channel, end)  # Several frames, most likely.
            stop = body_at + length + 8
        if stop > size:
            return INCOMPLETE
        if (
            data[stop - 1] != END
            or data[body_at - 1] != END
            or body_size > self.limits.message_bytes_max
        ):
            return self._begin_content(channel, end)
        known = data[end + 19 : body_at - 1] == self.properties
        if not known and not self._take_properties(channel, route, data, end + 7, body_at - 1, stop):  # type: ignore[arg-type]
            return stop
        if self.queues is not route.queues:  # type: ignore[union-attr]
            self._switch(route.queues)  # type: ignore[union-attr]
        if self.is_wide and len(self.contents) >= self.broker.fanout.portion(len(self.queues)):
            self.rest_from_spreading()
            return INCOMPLETE  # To be taken in with the rest.
        if route.is_plain and channel.transaction is None:  # type: ignore[union-attr]
            self.contents.append(data[end:stop])
            self.keys.append(route.key)  # type: ignore[union-attr]
            counters: ExchangeCounters = route.counters  # type: ignore[union-attr]
            counters.published_in += 1
            counters.published_out += len(route.queues)  # type: ignore[union-attr]
            if known and body_size:  # Seen twice, so it may come a third time.
                self.repeat = data[at : body_at + 7]
                self.repeat_skip = end - at
                self.repeat_size = stop - at
            elif body_size:
                self.shapes = self.shapes or HeaderShapes()
                self.shapes.learn(data[end:body_at], self.kind)
        else:
            self.submit()  # Confirms are numbered in the order in which messages came, whatever their ways.
            channel.publish_one(route, data[end:stop], self.kind)  # type: ignore[arg-type]
        return stop

    def _begin_content(self, channel: Channel, end: int) -> int:
        """Let the channel put the content together, frame by frame."""
        self.submit()
        self.repeat = NOTHING
        channel.begin_content(self.route)
        return end

    def _take_route(self, channel: Channel, arguments: bytes) -> bool:
        """Another way than that of the message before."""
        route = self.vhost.routes.get(arguments)  # type: ignore[union-attr]
        if channel is not self.publisher:
            self.submit()
        if route is None or self.user not in route.writers:
            self.submit()
            self.has_published = True
            self.arguments = self.repeat = NOTHING
            if not self._guard(channel, self._find_route, channel, arguments):
                return False
        else:
            self.has_published = True
            self.route = route
        self.repeat, self.arguments, self.publisher = NOTHING, arguments, channel
        return True

    def _find_route(self, channel: Channel, arguments: bytes) -> None:
        self.route = channel.find_route(arguments)

    def _take_properties(
        self, channel: Channel, route: Route, data: bytes, start: int, end: int, stop: int
    ) -> bool:
        """Other properties than those of the message before, in the header payload at `start`..`end`; its content ends
        at `stop`. False: nothing is left to be done about this message."""
        try:
            kind = survey(data, start, end)
        except BadProperties:
            self.submit()
            raise properties_fault(data[start:end]) from None
        if kind & DELICATE:
            self.submit()
            if not self._guard(channel, channel.check_properties, data, start):
                return False
            kind -= DELICATE
            if channel.copies is not None:
                self._guard(channel, channel.publish_copies, route, data[start - HEADER_AT : stop], kind)
                return False
        if kind != self.kind:
            self.submit()
            self.repeat = NOTHING  # It stands for messages of the other kind.
            self.kind = kind
        self.properties = data[start + 12 : end]
        return True

    def on_content(self, channel: Channel, route: Route, header: bytes, content: bytes) -> None:
        """A content that came in several frames, put together."""
        if channel.generation != self.vhost.generation:  # type: ignore[union-attr]
            route = channel.find_route(route.arguments())  # Its queues may be gone since the first frame.
        if self._take_properties(channel, route, content, HEADER_AT, HEADER_AT + len(header), len(content)):
            channel.publish_one(route, content, self.kind)

    def _switch(self, queues: tuple[AnyQueue, ...]) -> None:
        """Go on with the bundle for other queues."""
        if not self.mixes or len(queues) > 1 or len(self.queues) > 1:
            self.submit()
        elif self.bundles or self.contents:
            if not self.bundles:
                self.bundles[self.queues] = (self.contents, self.keys)
            bundle = self.bundles.get(queues)
            if bundle is None:
                bundle = self.bundles[queues] = ([], [])
            self.contents, self.keys = bundle
        self.queues = queues
        self.is_wide = len(queues) > FEW

    def submit(self) -> None:
        """Hand the gathered publishes to their queues."""
        if self.bundles:
            bundles = [(queues, contents, keys) for queues, (contents, keys) in self.bundles.items() if contents]
            self.bundles = {}
        elif self.contents:
            bundles = [(self.queues, self.contents, self.keys)]
        else:
            return
        self.contents, self.keys = [], []
        assert self.publisher is not None
        self.publisher.publish(bundles, self.kind)

    def forget_publish(self) -> None:
        """The route or the channel of the last publish may no longer be what it was."""
        self.arguments = self.repeat = NOTHING
        self.publisher = self.route = None


def properties_fault(payload: bytes) -> ConnectionFault:
    """Return the error of a content header, with positions within the header, not within the input."""
    try:
        survey(payload, 0, len(payload))
    except BadProperties as error:
        return ConnectionFault(ReplyCode.FRAME_ERROR, str(error), *PUBLISH_IDS)
    raise AssertionError("the header is in order")


def frame_error(kind: int, payload: bytes, problem: str) -> ConnectionFault:
    return ConnectionFault(ReplyCode.FRAME_ERROR, f"type {kind}, {octets(payload)}: {problem}")


def octets(payload: bytes) -> str:
    """The beginning of a payload as RabbitMQ shows it, in Erlang's notation."""
    start = payload[:16]
    if start and start.isascii() and (text := start.decode()).isprintable():
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        shown = f'<<"{quoted}">>'
    else:
        shown = printed(start)
    return f"{'all' if len(payload) <= 16 else 'first 16'} octets = {shown}"
