"""An AMQP connection with one channel as a machine: bytes from the broker in, bytes for the broker out. No I/O.

It is for programs that live beside an event loop. `receive` takes what has arrived and tells a `Listener` what it
means; what is to be sent gathers in `output`, which the shell writes. Time comes in with `on_tick`.

    header ─▶ handshake ─▶ open ─▶ calls, deliveries, confirms ─▶ closed            (see `Life`)

**Speed.** Deliveries are handed over in lists, all that one piece of input held, and each content stays the bytes that
came: header frame and body frames on channel 1, which another connection can send on channel 1 as they are. Deliveries
that resemble an earlier one in all but tag, body and the number of their origin are taken by comparing (`Likeness`).
A Leveret that was asked to delivers bundles, many messages in a frame (`leveret.protocol.bundles`), which are passed on
as they are: only their count is looked at.

**What a hostile broker may cost.** A frame is at most as long as was agreed on, and refused by its head. A content has
at most `content_bytes_max`, refused by its header. The input that waits to be complete is less than three frames, or
one content. No number that the broker sends is used to reserve memory. A broker that is silent is given up after two
heartbeat intervals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from leveret.client.amqp import (
    ACK_FRAME,
    BASIC_ACK,
    BASIC_CANCEL,
    BASIC_DELIVER,
    BASIC_NACK,
    BASIC_PUBLISH,
    BASIC_RETURN,
    BODY,
    BUNDLE,
    CHANNEL,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN,
    CONFIRM,
    CONNECTION_BLOCKED,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_UNBLOCKED,
    END,
    EXCHANGE_UNBIND,
    EXCHANGE_UNBIND_OK,
    HEAD,
    HEADER,
    HEARTBEAT,
    METHOD,
    METHOD_ID,
    OVERHEAD,
    REQUEUE,
    BrokerError,
    Name,
    closing_text,
    method,
    short,
)
from leveret.client.handshake import PROTOCOL_HEADER, Handshake

if TYPE_CHECKING:
    from leveret.client.address import Address
    from leveret.client.amqp import Table

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"
CONTENT_BYTES_MAX: Final = 128 << 20
CALLS_MAX: Final = 64  # Calls that wait for their answers.
_DELIVER: Final = METHOD_ID.pack(*BASIC_DELIVER)
_ORIGIN: Final = b"x-leveret-origin"
_NUMBER_AT: Final = len(_ORIGIN) + 5 + 67  # In the field of an origin, behind its name, type, size and source.
_NUMBER_BYTES: Final = 16
_COUNT_AT: Final = 66 + 8  # In a bundle, behind the source and the number.
_SIZES_AT: Final = _COUNT_AT + 4


class Delivery(NamedTuple):
    """A message. `route`: exchange and routing key as two short strings; `content`: header frame and body frames."""

    tag: int
    redelivered: bool
    route: bytes
    content: bytes


class BundleDelivery(NamedTuple):
    """Many messages, with tags in a row. `bundle` is for a Leveret that takes bundles."""

    first_tag: int
    messages: int
    redelivered: bool
    route: bytes
    bundle: bytes


class Likeness(NamedTuple):
    """What deliveries of one consumer have in common: pieces of the frames, each with its offset in the delivery.

    Between the pieces are the tag, the size of the body, the number of the origin (if there is one), and the size of
    the body frame. A delivery is alike if it has all pieces, and if the two sizes are the same.
    """

    head: bytes  # The method up to the delivery tag.
    tag_at: int
    middle: bytes  # The rest of the method, and the header frame up to the low half of the body's size.
    middle_at: int
    size_at: int
    properties: bytes  # The header frame up to the number of the origin,
    properties_at: int
    rest: bytes  # its rest, and the head of the body frame up to its size.
    rest_at: int
    length_at: int
    content_at: int
    redelivered: bool
    route: bytes


class Life(Enum):
    """The state of a connection. It goes on as `_LATER` allows, and never back."""

    NEW = "nothing was sent"
    HANDSHAKE = "logs in"
    OPEN = "channel 1 is open"
    CLOSED = "the connection is over, and so is everything asked"


_LATER: Final = {
    Life.NEW: (Life.HANDSHAKE, Life.OPEN, Life.CLOSED),  # A pipe within a process needs no handshake.
    Life.HANDSHAKE: (Life.OPEN, Life.CLOSED),
    Life.OPEN: (Life.CLOSED,),
    Life.CLOSED: (),
}


class Closed(BrokerError):
    """The broker has closed the channel or the connection. `code`: AMQP's; 0 if it just went."""

    def __init__(self, text: str, code: int = 0, of_channel: bool = False) -> None:
        super().__init__(text)
        self.code = code
        self.of_channel = of_channel


class Listener(Protocol):
    """Told what the broker does."""

    def on_open(self) -> None:
        """Channel 1 is open."""

    def on_deliveries(self, deliveries: list[Delivery]) -> None: ...

    def on_bundle(self, delivery: BundleDelivery) -> None:
        """Only if bundles were asked for."""

    def on_confirm(self, number: int, multiple: bool, refused: bool) -> None:
        """The broker has a message safe, or refuses it; with `multiple`, all up to that number."""

    def on_returned(self, text: str) -> None:
        """A mandatory message reached no queue."""

    def on_cancelled(self) -> None:
        """The broker has ended the consumer: its queue is gone."""

    def on_blocked(self, reason: str | None) -> None:
        """The broker takes no publishes for a reason; None: it does again."""

    def on_closed(self, error: Closed) -> None:
        """The connection is over. Calls without an answer have been told before."""


class ClientMachine:
    """One connection, with channel 1 open."""

    def __init__(
        self,
        listener: Listener,
        address: Address,
        properties: Table,
        mechanisms: tuple[str, ...] = (),
        heartbeat_s: int = 0,
        content_bytes_max: int = CONTENT_BYTES_MAX,
        channel_max: int = 0,
    ) -> None:
        self.listener = listener
        self.handshake = Handshake(address, properties, mechanisms, heartbeat_s, channel_max)
        self.content_bytes_max = content_bytes_max
        self.takes_bundles = False
        self.life = Life.NEW
        self.output: list[bytes] = []
        self.server_properties = b""
        self.frame_max = self.handshake.frame_max
        self.heartbeat_s = 0
        self.rest = b""
        self.calls: deque[tuple[Name, Callable[[bytes | Closed], None]]] = deque()  # The oldest is answered first.
        # A content that comes frame by frame.
        self.awaits_header = False
        self.parts: list[bytes] = []
        self.part_bytes_left = 0
        self.delivering: tuple[int, bool, bytes] | None = None  # None: it is returned, and of no interest.
        self.like: Likeness | None = None  # Of the last delivery that was looked at closely.
        self.unlike = 0  # How many had to be looked at closely since the last one that did not.
        self.heard = False  # Something came since the last tick,
        self.spoke = False  # or was sent.
        self.silent_ms = self.quiet_ms = 0

    def _become(self, life: Life) -> None:
        assert life in _LATER[self.life], (self.life, life)
        self.life = life

    @property
    def is_open(self) -> bool:
        return self.life is Life.OPEN

    @property
    def is_over(self) -> bool:
        return self.life is Life.CLOSED

    @property
    def is_authenticated(self) -> bool:
        return self.life is not Life.HANDSHAKE or self.handshake.is_authenticated

    # -- Sending -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._become(Life.HANDSHAKE)
        self.output.append(PROTOCOL_HEADER)

    def begin_open(self, frame_max: int, server_properties: bytes) -> None:
        """Begins where a handshake ends: the broker's end of a pipe is logged in already."""
        self._become(Life.OPEN)
        self.frame_max = frame_max or self.frame_max
        self.server_properties = server_properties
        self.listener.on_open()

    def take_output(self) -> list[bytes]:
        """Returns what is to be written, once."""
        output, self.output = self.output, []
        self.spoke = self.spoke or bool(output)
        return output

    def call(self, name: Name, arguments: bytes, then: Callable[[bytes | Closed], None]) -> None:
        """Sends a method. `then` gets the arguments of the answer, or why none will come."""
        if self.life is not Life.OPEN or len(self.calls) >= CALLS_MAX:
            then(Closed("the connection is not open"))
            return
        answer = EXCHANGE_UNBIND_OK if name == EXCHANGE_UNBIND else (name[0], name[1] + 1)
        self.calls.append((answer, then))
        self.output.append(method(name, arguments))

    def await_bundles(self) -> None:
        """The consumer to come asks for bundles. From others, they are a fault."""
        self.takes_bundles = True

    def reopen_channel(self, then: Callable[[bytes | Closed], None]) -> None:
        """Opens channel 1 again, after the broker has closed it."""
        self.call(CHANNEL_OPEN, b"\0", then)

    def send(self, pieces: list[bytes]) -> None:
        """Sends publishes: what `publish_prefix` gives, and a content, again and again."""
        self.output += pieces

    def ack(self, tag: int, multiple: bool) -> None:
        self.output.append(ACK_FRAME.pack(METHOD, CHANNEL, 13, *BASIC_ACK, tag, multiple, END))

    def requeue(self, tag: int, multiple: bool) -> None:
        self.output.append(ACK_FRAME.pack(METHOD, CHANNEL, 13, *BASIC_NACK, tag, REQUEUE | multiple, END))

    def close(self) -> None:
        """Says goodbye, and is closed. The answer is not waited for: the broker requeues what is unacknowledged."""
        if self.life is Life.OPEN:
            self.output.append(method(CONNECTION_CLOSE, b"\x00\xc8" + short("Goodbye") + b"\0\0\0\0", 0))
        self._shut(Closed("the connection was closed"), tell=False)

    # -- Receiving -----------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes from the broker. Faults of the broker close the connection, and are told."""
        self.heard = True
        if self.life is Life.CLOSED:
            return
        if self.rest:
            data = self.rest + data
            self.rest = b""
        try:
            if self.life is Life.HANDSHAKE:
                self._check_greeting(data)
            at = self._frames(data)
        except Closed as error:
            self._shut(error)
        except BrokerError as error:
            self._shut(Closed(str(error)))
        else:
            self.rest = b"" if self.is_over else data[at:]

    def on_lost(self, text: str) -> None:
        """The socket is gone."""
        self._shut(Closed(text))

    def _check_greeting(self, data: bytes) -> None:
        if data.startswith(b"AMQP"):
            raise BrokerError("speaks another protocol than AMQP 0-9-1")
        if data.startswith(b"HTTP/"):
            raise BrokerError("speaks HTTP: it is no port for AMQP")

    def _frames(self, data: bytes) -> int:
        """Handles all complete frames, and returns the position of the first incomplete one."""
        at, size = 0, len(data)
        deliveries: list[Delivery] = []
        while size - at >= HEAD.size and not self.is_over:
            if self.like is not None and not self.awaits_header and not self.parts:
                at = self._take_alike(self.like, data, at, size, deliveries)
                if size - at < HEAD.size:
                    break
            kind, channel, length = HEAD.unpack_from(data, at)
            end: int = at + length + OVERHEAD
            if length > self.frame_max - OVERHEAD or channel > CHANNEL:
                raise BrokerError(f"sent a frame of {length} bytes on channel {channel}, which was not agreed on")
            if end > size:
                break
            if data[end - 1] != END:
                raise BrokerError("sent a frame without a frame end")
            if kind == METHOD and channel == CHANNEL and data.startswith(_DELIVER, at + HEAD.size):
                stop = self._take_delivery(data, at, end, size, deliveries)
                if stop < 0:
                    break
                at = stop
                continue
            if deliveries and kind in (METHOD, BUNDLE):
                self.listener.on_deliveries(deliveries)
                deliveries = []
            done = self._on_frame(kind, channel, data, at, end)
            if done is not None:
                deliveries.append(done)
            at = end
        if deliveries and not self.is_over:
            self.listener.on_deliveries(deliveries)
        return at

    def _take_delivery(self, data: bytes, at: int, end: int, size: int, deliveries: list[Delivery]) -> int:
        """Takes a delivery whose method is at `at`..`end`. Returns where its content ends; -1 if it is incomplete."""
        tag_at = at + 12 + data[at + 11]
        if self.awaits_header or self.parts:
            raise BrokerError("sent a method where a content should be")
        head = (int.from_bytes(data[tag_at : tag_at + 8], "big"), data[tag_at + 8 : tag_at + 9] == b"\1")
        route = data[tag_at + 9 : end - 1]
        if tag_at + 9 > end or not _is_route(route):
            raise BrokerError("sent a malformed basic.deliver")
        if size - end < HEAD.size:
            return -1
        kind, channel, length = HEAD.unpack_from(data, end)
        body_at: int = end + length + OVERHEAD
        self.delivering = (*head, route)
        if kind != HEADER or channel != CHANNEL:  # A heartbeat may be between them.
            self.awaits_header = True
            return end
        if not 14 <= length <= self.frame_max - OVERHEAD:
            raise BrokerError("sent a malformed header")
        if body_at > size:
            return -1
        body_bytes = int.from_bytes(data[end + 11 : end + 19], "big")
        if data[body_at - 1] != END:
            raise BrokerError("sent a frame without a frame end")
        if body_bytes > self.content_bytes_max:
            raise BrokerError(f"sent a message of {body_bytes} bytes; at most {self.content_bytes_max} are taken")
        if not body_bytes:
            deliveries.append(Delivery(*head, route, data[end:body_at]))
            return body_at
        if body_at + HEAD.size > size:
            return -1
        kind, channel, length = HEAD.unpack_from(data, body_at)
        if kind == BODY and channel == CHANNEL and length == body_bytes:
            stop: int = body_at + length + OVERHEAD
            if length > self.frame_max - OVERHEAD:
                raise BrokerError(f"sent a frame of {length} bytes, which was not agreed on")
            if stop > size:
                return -1
            if data[stop - 1] != END:
                raise BrokerError("sent a frame without a frame end")
            deliveries.append(Delivery(*head, route, data[end:stop]))
            self.unlike += 1
            if not self.unlike & (self.unlike - 1):  # Less and less often, if they differ all the time.
                self.like = _likeness(data, at, tag_at, end, body_at, route)
            return stop
        self.parts, self.part_bytes_left = [data[end:body_at]], body_bytes
        return body_at

    def _take_alike(self, like: Likeness, data: bytes, at: int, size: int, deliveries: list[Delivery]) -> int:
        """Takes all deliveries that are like the last one, and returns where they end."""
        head, tag_at, middle, middle_at, size_at = like.head, like.tag_at, like.middle, like.middle_at, like.size_at
        properties, properties_at, rest, rest_at = like.properties, like.properties_at, like.rest, like.rest_at
        length_at, content_at, redelivered, route = like.length_at, like.content_at, like.redelivered, like.route
        length_max = min(self.frame_max - OVERHEAD, self.content_bytes_max)
        starts, append, number, made, start = data.startswith, deliveries.append, int.from_bytes, tuple.__new__, at
        while (
            starts(head, at)
            and starts(middle, at + middle_at)
            and starts(properties, at + properties_at)
            and starts(rest, at + rest_at)
        ):
            field = data[at + length_at : at + length_at + 4]
            length = number(field, "big")
            stop = at + length_at + 5 + length
            if stop > size or not 0 < length <= length_max or not starts(field, at + size_at) or data[stop - 1] != END:
                break
            tag = number(data[at + tag_at : at + middle_at], "big")
            append(made(Delivery, (tag, redelivered, route, data[at + content_at : stop])))
            at = stop
        if at > start:
            self.unlike = 0
        return at

    def _on_frame(self, kind: int, channel: int, data: bytes, at: int, end: int) -> Delivery | None:
        """Handles a frame that is no whole delivery; returns the delivery that it completes."""
        if kind == METHOD:
            is_amid = channel == CHANNEL and (self.awaits_header or self.parts)
            if is_amid or end - at < OVERHEAD + METHOD_ID.size:
                raise BrokerError("sent a method where a content should be")
            self._on_method(METHOD_ID.unpack_from(data, at + HEAD.size), data[at + 11 : end - 1])
        elif kind == HEADER:
            return self._on_header(data[at:end])
        elif kind == BODY:
            return self._on_body(data[at:end])
        elif kind == BUNDLE and self.takes_bundles:
            self._on_bundle(data[at + HEAD.size : end - 1])
        elif kind != HEARTBEAT:
            raise BrokerError(f"sent a frame of the unknown type {kind}")
        return None

    def _on_header(self, frame: bytes) -> Delivery | None:
        """The content of a message that is returned is read, and of no interest."""
        if not self.awaits_header or len(frame) < OVERHEAD + 14:
            raise BrokerError("sent a header where none should be")
        self.awaits_header = False
        self.part_bytes_left = int.from_bytes(frame[11:19], "big")
        if self.part_bytes_left > self.content_bytes_max:
            raise BrokerError(
                f"sent a message of {self.part_bytes_left} bytes; at most {self.content_bytes_max} are taken"
            )
        if self.part_bytes_left:
            self.parts = [frame]
            return None
        return None if self.delivering is None else Delivery(*self.delivering, frame)

    def _on_body(self, frame: bytes) -> Delivery | None:
        self.part_bytes_left -= len(frame) - OVERHEAD
        if not self.parts or self.part_bytes_left < 0 or len(frame) == OVERHEAD:
            raise BrokerError("sent a body where none should be")
        if self.delivering is not None:
            self.parts.append(frame)
        if self.part_bytes_left:
            return None
        parts, self.parts = self.parts, []
        return None if self.delivering is None else Delivery(*self.delivering, b"".join(parts))

    def _on_bundle(self, payload: bytes) -> None:
        """Whoever takes the messages checks them."""
        key_at = 10 + payload[9] if len(payload) > 9 else len(payload)
        start = key_at + 1 + payload[key_at] if key_at < len(payload) else len(payload)
        count = int.from_bytes(payload[start + _COUNT_AT : start + _SIZES_AT], "big")
        if self.awaits_header or self.parts or not 0 < count <= (len(payload) - start - _SIZES_AT) // 4:
            raise BrokerError("sent a malformed bundle")
        tag = int.from_bytes(payload[:8], "big")
        self.listener.on_bundle(BundleDelivery(tag, count, payload[8] == 1, payload[9:start], payload[start:]))

    def _on_method(self, name: Name, arguments: bytes) -> None:
        if self.life is Life.HANDSHAKE:
            self.output.append(self.handshake.on_method(name, arguments))
            if self.handshake.is_open:
                self._become(Life.OPEN)
                self.server_properties = self.handshake.server_properties
                self.frame_max, self.heartbeat_s = self.handshake.frame_max, self.handshake.heartbeat_s
                self.listener.on_open()
        elif name in (BASIC_ACK, BASIC_NACK):
            if len(arguments) != CONFIRM.size:
                raise BrokerError("sent a malformed confirm")
            number, flags = CONFIRM.unpack(arguments)
            self.listener.on_confirm(number, bool(flags & 1), name == BASIC_NACK)
        elif name == BASIC_RETURN:
            code = int.from_bytes(arguments[:2], "big")
            self.awaits_header, self.delivering = True, None
            self.listener.on_returned(f"{code} {_text(arguments, 2)}")
        elif name == BASIC_CANCEL:
            self.listener.on_cancelled()
        elif name == CONNECTION_BLOCKED:
            self.listener.on_blocked(_text(arguments, 0))
        elif name == CONNECTION_UNBLOCKED:
            self.listener.on_blocked(None)
        elif name == CHANNEL_CLOSE:
            self._on_channel_closed(arguments)
        elif name == CONNECTION_CLOSE:
            self.output.append(method(CONNECTION_CLOSE_OK, b"", 0))
            raise Closed(closing_text(name, arguments), int.from_bytes(arguments[:2], "big"))
        elif self.calls and self.calls[0][0] == name:
            self.calls.popleft()[1](arguments)
        else:
            raise BrokerError(closing_text(name, arguments))

    def _on_channel_closed(self, arguments: bytes) -> None:
        """A call that is refused closes the channel, which can be opened again. If nothing was asked, it is the end."""
        error = Closed(closing_text(CHANNEL_CLOSE, arguments), int.from_bytes(arguments[:2], "big"), of_channel=True)
        self.output.append(method(CHANNEL_CLOSE_OK))
        if not self.calls:
            raise error
        calls, self.calls = self.calls, deque()
        for _, then in calls:
            then(error)

    # -- Time and the end ----------------------------------------------------------------------------------------

    def on_tick(self, elapsed_ms: int, is_listening: bool = True) -> None:
        """So much time has passed since the last call. An interval counts once, however late the call comes. A broker
        is not taken for silent while nobody listens."""
        heartbeat_ms = self.heartbeat_s * 1000
        if not heartbeat_ms or self.life is not Life.OPEN:
            return
        elapsed_ms = min(elapsed_ms, heartbeat_ms // 2)
        self.silent_ms = 0 if self.heard or not is_listening else self.silent_ms + elapsed_ms
        self.quiet_ms = 0 if self.spoke else self.quiet_ms + elapsed_ms
        self.heard = self.spoke = False
        if self.silent_ms >= 2 * heartbeat_ms:
            self._shut(Closed(f"missed heartbeats from the broker, timeout: {self.heartbeat_s}s"))
        elif self.quiet_ms >= heartbeat_ms // 2:
            self.quiet_ms = 0
            self.output.append(HEARTBEAT_FRAME)

    def _shut(self, error: Closed, tell: bool = True) -> None:
        if self.life is Life.CLOSED:
            return
        self._become(Life.CLOSED)
        self.rest = b""
        self.parts = []
        calls, self.calls = self.calls, deque()
        for _, then in calls:
            then(error)
        if tell:
            self.listener.on_closed(error)


def publish_prefix(route: bytes, mandatory: bool) -> bytes:
    """Returns the method frame of publishes with this exchange and routing key, two short strings."""
    return method(BASIC_PUBLISH, b"\0\0" + route + bytes((mandatory,)))


def _likeness(data: bytes, at: int, tag_at: int, end: int, body_at: int, route: bytes) -> Likeness:
    """Returns what others may have in common with a delivery at `at`, whose content is at `end` and `body_at`."""
    size_at = end + 15  # Of the low half: a body frame is not longer.
    found = data.find(_ORIGIN, size_at, body_at)
    number_at = body_at if found < 0 else found + _NUMBER_AT
    if number_at + _NUMBER_BYTES >= body_at:
        number_at = rest_at = body_at
    else:
        rest_at = number_at + _NUMBER_BYTES
    return Likeness(
        data[at:tag_at], tag_at - at,
        data[tag_at + 8 : size_at], tag_at + 8 - at,
        size_at - at,
        data[size_at + 4 : number_at], size_at + 4 - at,
        data[rest_at : body_at + 3], rest_at - at,
        body_at + 3 - at, end - at, data[tag_at + 8] == 1, route,
    )  # fmt: skip


def _is_route(route: bytes) -> bool:
    """Returns whether these are two short strings, and nothing else."""
    middle = 1 + route[0] if route else 0
    return 0 < middle < len(route) and middle + 1 + route[middle] == len(route)


def _text(arguments: bytes, at: int) -> str:
    size = arguments[at] if at < len(arguments) else 0
    return arguments[at + 1 : at + 1 + size].decode("utf-8", "replace")
