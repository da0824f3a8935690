"""An AMQP 0-9-1 connection as a machine: bytes from the client in, bytes for the client out, queues touched between.

    AMQP header ─▶ start ─▶ start-ok ─▶ tune ─▶ tune-ok ─▶ open ─▶ running ─▶ closing ─▶ closed     (see `Life`)

The machine does no I/O. `receive` takes whatever arrived and puts answers into `output`, which the shell writes once a
turn. Time comes in with `on_tick`.

The hot path, from bytes to publishes, is in `intake`.

Where an operation must wait (metadata to be committed, a message to be read from disk) the connection is *held*: it
stops reading frames, keeps the rest, and goes on when `release` is called. So a client sees its frames processed in
order, and no handler ever has to cope with a half-done predecessor.

Only methods that change metadata (`SIDE_BY_SIDE`) go on side by side if they come on different channels, as they do in
RabbitMQ, so that they are agreed on together. While one is under way, the next one of its own channel is put off
(`backlog`), and the first frame of any other kind, or with a fault that ends the connection, holds the connection until
all of them are done.

During an alarm (memory or disk are short) a connection goes on until its next publish. That one makes it *blocked*,
which is one more reason to be held: the publish and all behind it waits for the end of the alarm.

What a stranger may cost: until login a frame is at most `initial_frame_max` bytes; later at most the negotiated size,
refused by its head, before it is gathered. `rest` is less than one frame, and what is put off has a bound of its own. A
content under assembly is limited by the size its header states, and that by `max_message_size`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from leveret.base.shared_values import NO_DICT, NO_LIST, shared
from leveret.broker.connection_limits import CHANNELS_OF_USER
from leveret.protocol import methods as m
from leveret.protocol.bundles import BUNDLE
from leveret.protocol.errors import ChannelFault, ConnectionFault, ReplyCode
from leveret.protocol.frames import (
    BODY,
    END,
    HEAD,
    HEADER,
    HEARTBEAT,
    HEARTBEAT_FRAME,
    METHOD,
    PROTOCOL_HEADER,
    PROTOCOL_HEADERS,
)
from leveret.sessions.amqp.change_backlog import ChangeBacklog
from leveret.sessions.amqp.channel import Channel
from leveret.sessions.amqp.client_properties import ClientProperties
from leveret.sessions.amqp.handshake import Handshake
from leveret.sessions.amqp.origin_channel import OriginChannel
from leveret.sessions.amqp.producer_channel import Producer, ProducerChannel
from leveret.sessions.amqp.publish_fast_path import PublishFastPath, frame_error, octets
from leveret.sessions.output import Output

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.login import Login
    from leveret.broker.remote.direct_reply_to import BusyLink, Inbox
    from leveret.broker.session.session import Session
    from leveret.broker.vhost import Vhost
    from leveret.metadata.model.refusals import Refusal
    from leveret.sessions.amqp.limits import Limits
    from leveret.sessions.peer import Peer

LEAVE_TICKS_MAX: Final = 3  # Without a majority, exclusive queues are deleted when there is one again.
# Methods that change metadata. Those of different channels may be under way at the same time.
SIDE_BY_SIDE: Final = (
    m.ExchangeDeclare,
    m.ExchangeDelete,
    m.ExchangeBind,
    m.ExchangeUnbind,
    m.QueueDeclare,
    m.QueueDelete,
    m.QueueBind,
    m.QueueUnbind,
)
# The first four bytes of their payloads: class and method.
SIDE_BY_SIDE_IDS: Final = frozenset(
    one.class_id.to_bytes(2, "big") + one.method_id.to_bytes(2, "big") for one in SIDE_BY_SIDE
)


class Life(Enum):
    """The state of a connection. It goes on as `_LATER` allows, and never back."""

    GREETING = "the client has to say which protocol it speaks"
    HANDSHAKE = "the client logs in, and names its vhost"
    RUNNING = "channels may be opened"
    LEAVING = "the client has sent close, and waits for the answer"
    CLOSING = "close was sent, and only its answer is of interest"
    CLOSED = "nothing further is read or made; the shell ends the socket once all output is written"


_LATER: Final = {
    # A client inside the node has no handshake: see `management.api`.
    Life.GREETING: (Life.HANDSHAKE, Life.RUNNING, Life.CLOSING, Life.CLOSED),
    Life.HANDSHAKE: (Life.RUNNING, Life.LEAVING, Life.CLOSING, Life.CLOSED),
    Life.RUNNING: (Life.LEAVING, Life.CLOSING, Life.CLOSED),
    Life.LEAVING: (Life.CLOSING, Life.CLOSED),
    Life.CLOSING: (Life.CLOSED,),
    Life.CLOSED: (),
}


class Connection(PublishFastPath):
    """One client.

    The reader of frames is a base class and not a part, for speed: it asks for seven attributes of the connection for
    each publish, and to reach them over one more object takes 23 ns more, of 3,000.
    """

    __slots__ = (
        "backlog", "blocked", "broker", "busy", "capabilities", "channel_max", "channels", "close_reason", "closed",
        "closing", "connected_ms", "crowded_queue", "deleting", "full", "generation", "greeted", "handshake",
        "has_origins", "heartbeat_s", "held", "inboxes", "is_behind", "leaving", "leaving_ticks", "life", "limits",
        "login", "mechanism", "number", "on_entered", "on_released", "output", "peer", "producer",
        "properties_of_client", "received_bytes", "received_count", "received_ms", "received_since_tick", "released",
        "rest", "sent_ms", "spreads", "ticked_ms", "unsubscribing", "user", "vhost", "waiting", "waits",
        "was_asked_to_close",
    )  # fmt: skip

    def __init__(self, broker: Broker, peer: Peer, limits: Limits) -> None:
        super().__init__()
        self.broker = broker
        self.number = broker.number_connection()
        self.peer = peer
        self.limits = limits
        self.handshake: Handshake | None = None  # Until the vhost is open.
        self.life = Life.GREETING
        # What `life` is or has been, since the reader of frames asks for each frame. Only `_become` sets these.
        self.greeted = self.leaving = self.closing = self.closed = False
        self.was_asked_to_close = False  # By the client, who closes the socket when it has the answer.
        self.close_reason = ""
        self.unsubscribing = 0  # Channels whose consumers at other nodes have yet to end before that.
        self.deleting = 0  # Exclusive queues that have yet to be deleted before that.
        self.leaving_ticks = 0  # How long the answer has waited, which is not for ever.
        self.frame_max = limits.initial_frame_max
        self.channel_max = 0
        self.heartbeat_s = 0
        self.user = ""
        self.vhost: Vhost | None = None
        self.properties_of_client: ClientProperties | None = None
        self.capabilities: Mapping[str, object] = NO_DICT
        self.producer: Producer | None = None  # Its messages have numbers.
        self.has_origins = False  # Its messages may tell where they came from.
        self.channels: dict[int, Channel] = {}
        self.login: Login | None = None  # Once the vhost is open.

        self.output: Output = Output(broker)
        self.inboxes: dict[Inbox, None] = NO_DICT  # With answers that the socket did not take.

        self.rest = b""
        self.held = False
        self.waits = 0  # Held because so many answers have not come that something asked is waiting for.
        self.spreads = False  # Held because the turn's budget for publishes to many queues is used up.
        self.waiting = 0  # Number of channels with a change of metadata under way.
        self.backlog = ChangeBacklog()  # Further changes that these channels asked for.
        self.is_behind = False  # Held because the next frame must see all of these changes done.
        self.busy = False  # Frames are being processed.
        self.released: list[Channel] = NO_LIST  # Channels whose change of metadata is done, which have yet to go on.
        self.full = False  # Held because a turn's worth of messages it asked for is made.
        self.on_released: Callable[[], None] | None = None
        self.on_entered: Callable[[], None] | None = None
        self.blocked = False  # Held because it has published during an alarm.
        self.crowded_queue: AnyQueue | BusyLink | None = None  # A queue this connection fills faster than it empties.

        self.generation = -1

        self.connected_ms = broker.wall_ms
        self.received_bytes = self.received_count = 0
        self.mechanism = ""  # With which it logged in.
        self.received_ms = self.sent_ms = self.ticked_ms = broker.now_ms  # Of the last tick.
        self.received_since_tick = True

    @property
    def protocol(self) -> str:
        return "AMQP 0-9-1"

    @property
    def variables(self) -> dict[str, str]:
        return {}

    def sessions(self) -> list[tuple[int, Session]]:
        return [(number, channel.session) for number, channel in self.channels.items()]

    def _become(self, life: Life) -> None:
        assert life in _LATER[self.life], (self.life, life)
        self.life = life
        self.greeted = self.greeted or life in (Life.HANDSHAKE, Life.RUNNING)
        self.leaving = self.leaving or life is Life.LEAVING
        self.closing = self.closing or life is Life.CLOSING
        self.closed = life is Life.CLOSED

    def attend(self, on_released: Callable[[], None], on_entered: Callable[[], None]) -> None:
        """The shell is to be told when it may read on, and when the handshake is over."""
        self.on_released, self.on_entered = on_released, on_entered

    def leave_alone(self) -> None:
        """The shell has lost its socket, and is told nothing more: if the two knew each other for good, both would stay
        in memory until the garbage collector finds them."""
        self.on_released = self.on_entered = None

    # -- Input ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Bytes from the client."""
        self.received_since_tick = True
        self.received_bytes += len(data)
        self.received_count += 1
        if self.rest:
            data = self.rest + data
            self.rest = b""
        if self.closed:
            return
        if self.held:
            self.rest = data
            return
        self.busy = True
        try:
            self._process(data)
        finally:
            self.busy = False
        if self.released or self.held:  # Or what holds it is over by now.
            self._go_on()

    def hold(self) -> None:
        """Nothing further is processed before `release`, since it may depend on what is under way."""
        self.waits += 1
        self.held = True

    def release(self) -> None:
        """End one wait of the connection. Input that waited may begin another one."""
        self.waits -= 1
        if not self.busy:
            self._go_on()

    def hold_for(self, channel: Channel, method: m.Method) -> None:
        """A method takes a while: nothing that may depend on it is processed before `release_from`."""
        if isinstance(method, SIDE_BY_SIDE):
            self.waiting += channel.begin_wait()
        else:
            self.hold()

    def release_from(self, channel: Channel, method: m.Method) -> None:
        """The method is done. It may have asked for more."""
        if not isinstance(method, SIDE_BY_SIDE):
            self.release()
            return
        if not self.released:
            self.released = []
        self.released.append(channel)
        if not self.busy:
            self._go_on()

    def _go_on(self) -> None:
        """Process what came meanwhile, if nothing holds the connection any longer."""
        self.busy = True
        try:
            while not self.closed:
                if self.released:
                    self._on_changed(self.released.pop(0))
                    continue
                self.is_behind = self.is_behind and self.waiting > 0
                self.held = self._is_held()
                if self.held or not self.rest:
                    break
                data, self.rest = self.rest, b""
                self._process(data)
                if not self.released and (not self.held or self._is_held()):
                    break  # Otherwise what held it was over before the end of its processing.
        finally:
            self.busy = False
        if not self.held and not self.closed and self.on_released is not None:
            self.on_released()

    def _is_held(self) -> bool:
        waits = self.waits > 0 or self.is_behind or self.backlog.is_full
        return waits or self.full or self.spreads or self.leaving or self.blocked

    def _on_changed(self, channel: Channel) -> None:
        """A change of metadata that a channel wanted is done: on with the next."""
        if not channel.end_wait() or self.closing:
            return
        self.waiting -= 1
        while not channel.waits and not self.closing and (payload := self.backlog.take(channel.number)) is not None:
            try:
                self._on_frame(METHOD, channel.number, payload)
            except ConnectionFault as fault:
                self.close_with(fault)
        self.broker.writers[self.output] = None

    def _process(self, data: bytes) -> None:
        if not self.greeted and not self.closing:
            if len(data) < len(PROTOCOL_HEADER) and any(header.startswith(data) for header in PROTOCOL_HEADERS):
                self.rest = data
                return
            if not self._greet(data):
                return
            data = data[len(PROTOCOL_HEADER) :]
        self._check_routes()
        while not self.closed:
            try:
                at = 0
                if not self.waiting:
                    is_free = self.broker.alarm is None or self.closing
                    at = self._frames(data, 0, len(data)) if is_free else self._frames_before_publish(data)
                    self.submit()
                if self.waiting and not self.held and not self.released:
                    at = self._frames_side_by_side(data, at)
                if not self.closed:
                    self.rest = data[at:]
                break
            except ConnectionFault as fault:
                # What follows is overheard, frame by frame, until the client answers the close.
                data = data[self.resume_at :]
                self.close_with(fault)
        self.broker.writers[self.output] = None

    def _check_routes(self) -> None:
        """Forget the last publish's route if a queue, a binding or a permission has changed since."""
        vhost = self.vhost
        if vhost is not None and self.generation != vhost.generation:
            self.forget_publish()
            self.generation = vhost.generation

    def _greet(self, data: bytes) -> bool:
        if not data.startswith(PROTOCOL_HEADERS):
            self.output.send(PROTOCOL_HEADER)  # "This is what I speak."
            self._shut(f"{{bad_header,{octets(data[:8]).removeprefix('all octets = ')}}}")
            self.broker.writers[self.output] = None
            return False
        self._become(Life.HANDSHAKE)
        self.broker.notes.accepted(self)
        self.handshake = Handshake(self)
        self.output.send(m.encode(0, self.handshake.start()))
        return True

    def rest_from_spreading(self) -> None:
        """Publishes to many queues wait for another turn, with all that the client sent behind them."""
        self.spreads = self.held = True
        self.broker.fanout.waiting[self] = None

    def on_portion(self) -> None:
        self.spreads = False
        if not self.busy:
            self._go_on()

    def _frames_side_by_side(self, data: bytes, at: int) -> int:
        """While some channels change metadata: let others do so, too, up to the first frame of another kind."""
        size, backlog = len(data), self.backlog
        while size - at >= 7:
            kind, number, length = HEAD.unpack_from(data, at)
            end: int = at + length + 8
            if end > size and length <= self.frame_max:
                break
            is_of_kind = kind == METHOD and data[at + 7 : at + 11] in SIDE_BY_SIDE_IDS
            if not is_of_kind or end > size or data[end - 1] != END:
                self.is_behind = self.held = True
                break
            payload, self.resume_at = data[at + 7 : end - 1], end
            channel = self.channels.get(number)
            if channel is not None and channel.waits:
                backlog.put(number, payload)
                self.held = self.held or backlog.is_full
            else:
                try:
                    self._on_frame(kind, number, payload)
                except ConnectionFault:
                    # The end of the connection, before which all that was sent earlier is to be done.
                    self.is_behind = self.held = True
                    break
            at = end
            if self.held or self.closed or self.released or not self.waiting:
                break  # What is done already lets its channel go on first, in the order of the frames.
        return at

    # -- Alarms --------------------------------------------------------------------------------------------------

    def _frames_before_publish(self, data: bytes) -> int:
        """During an alarm: process what comes before the next publish. The publish and all behind it waits."""
        size = len(data)
        stop = self.find_publish(data)
        at = self._frames(data, 0, stop)
        if at < stop or stop == size or self.held or self.closed or self.waiting:
            return at
        if self.vhost is None:
            return self._frames(data, stop, size)  # It may not publish yet, and is told so.
        assert self.broker.alarm is not None
        self.blocked = self.held = self.has_published = True
        self._tell_blocked(m.ConnectionBlocked(self.broker.alarm))
        return stop

    def unblock(self) -> None:
        """The alarm is over, or the connection is about to be: go on with what came meanwhile."""
        if self.blocked and not self.closed:
            self.blocked = False
            self._tell_blocked(m.ConnectionUnblocked())
            if not self.busy:
                self._go_on()

    def _tell_blocked(self, method: m.ConnectionBlocked | m.ConnectionUnblocked) -> None:
        if self.capabilities.get("connection.blocked") and not self.closing:
            self.send(0, method)

    # -- Frames off the hot path ---------------------------------------------------------------------------------

    def _on_frame(self, kind: int, number: int, payload: bytes) -> None:
        if self.closing:
            self._while_closing(kind, number, payload)
        elif not self._is_known(kind) or (kind == HEARTBEAT and payload):
            raise frame_error(kind, payload, "unknown_frame")
        elif kind == METHOD and number == 0:
            self._on_connection_method(self._decode(payload))
        elif kind == HEARTBEAT and number == 0:
            pass  # That it came is what counts.
        elif kind == HEARTBEAT or number == 0 or self.vhost is None:
            raise ConnectionFault(ReplyCode.UNEXPECTED_FRAME, f"type {kind}, {octets(payload)}")
        else:
            self._on_channel_frame(kind, number, payload)
            self._check_routes()

    def _is_known(self, kind: int) -> bool:
        return kind in (METHOD, HEADER, BODY, HEARTBEAT) or (kind == BUNDLE and self.has_origins)

    def _on_channel_frame(self, kind: int, number: int, payload: bytes) -> None:
        channel = self.channels.get(number)
        if channel is None:
            self._without_channel(kind, number, payload)
            return
        if kind == METHOD:
            method = self._decode(payload)
            if channel.closing:
                self._while_channel_closing(channel, method)
                return
            self._guard(channel, channel.on_method, method)
        elif kind == BUNDLE:
            assert isinstance(channel, OriginChannel)
            self.has_published = True
            if not channel.closing:
                self._guard(channel, channel.on_bundle, payload)
        elif not channel.closing:
            self._guard(channel, channel.on_header if kind == HEADER else channel.on_body, payload)

    def _without_channel(self, kind: int, number: int, payload: bytes) -> None:
        if kind != METHOD:
            raise ConnectionFault(ReplyCode.UNEXPECTED_FRAME, "expected method frame, got non method frame instead")
        method = self._decode(payload)
        if isinstance(method, m.ChannelOpen):
            if len(self.channels) >= self.channel_max:
                raise ConnectionFault(
                    ReplyCode.NOT_ALLOWED,
                    f"number of channels opened ({len(self.channels)}) has reached the negotiated channel_max "
                    f"({self.channel_max})",
                )
            limit = self.broker.connection_limits.limit_reached(CHANNELS_OF_USER + self.user)
            if limit is not None:
                raise ConnectionFault(
                    ReplyCode.NOT_ALLOWED,
                    f"number of channels opened for user '{self.user}' has reached the maximum allowed user limit of "
                    f"({limit})",
                )
            self.channels[number] = self.new_channel(number)
            self.broker.connection_limits.on_channels(self.user, 1)
            self.send(number, m.ChannelOpenOk())
        elif isinstance(method, m.ChannelCloseOk):
            pass  # A late answer to a close that crossed with the client's.
        else:
            raise ConnectionFault(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'", *ids_of(method))

    def new_channel(self, number: int) -> Channel:
        if self.producer is not None:
            return ProducerChannel(self, number, self.producer)
        return OriginChannel(self, number) if self.has_origins else Channel(self, number)

    def _while_channel_closing(self, channel: Channel, method: m.Method) -> None:
        """Everything but the end of the channel is overheard, as the protocol wants it.

        Not its reopening, for whose answer a client would wait.
        """
        if isinstance(method, m.ChannelOpen):
            channel.on_open(method)
        if isinstance(method, m.ChannelClose):
            self.send(channel.number, m.ChannelCloseOk())
        if isinstance(method, m.ChannelClose | m.ChannelCloseOk):
            self._drop_channel(channel)

    def _drop_channel(self, channel: Channel) -> None:
        del self.channels[channel.number]
        self.broker.connection_limits.on_channels(self.user, -1)

    def _decode(self, payload: bytes) -> m.Method:
        try:
            return m.decode_payload(payload)
        except m.UnknownMethod as error:
            raise ConnectionFault(ReplyCode.COMMAND_INVALID, error.text, error.class_id, error.method_id) from None
        except m.BadMethod as error:
            raise ConnectionFault(ReplyCode.FRAME_ERROR, error.text, error.class_id, error.method_id) from None

    def _on_connection_method(self, method: m.Method) -> None:
        if isinstance(method, m.ConnectionClose):
            self.submit()
            self.close_reason = f"closed by the client: {method.reply_code} {method.reply_text}"
            self._become(Life.LEAVING)
            self.held = True
            self._unsubscribe_all()
        elif self.handshake is not None:
            self.handshake.on_method(method)
        elif isinstance(method, m.ConnectionUpdateSecret):
            # For credentials that expire, which passwords do not: RabbitMQ takes any secret then.
            self.broker.notes.secret_updated(self, method.reason)
            self.send(0, m.ConnectionUpdateSecretOk())
        else:
            text = "unexpected method in connection state running"
            raise ConnectionFault(ReplyCode.CHANNEL_ERROR, text, *ids_of(method))

    def _unsubscribe_all(self) -> None:
        """The client closes: its consumers get what was published before, then all that it holds is given back."""
        channels = [channel for channel in self.channels.values() if not channel.closing]
        self.unsubscribing = len(channels) + 1
        for channel in channels:
            channel.session.cancel_all(self._on_unsubscribed)
        self._on_unsubscribed(True)

    def _on_unsubscribed(self, _: bool) -> None:
        self.unsubscribing -= 1
        if not self.unsubscribing and not self.closed:
            self.release_all()
            if not self.deleting:
                self._leave()

    def on_exclusive_deleted(self) -> None:
        """One of the queues is gone that only this connection could use."""
        self.deleting -= 1
        if self.leaving and not self.deleting and not self.unsubscribing:
            self._leave()

    def _leave(self) -> None:
        """Answer the client's close: whoever comes after it will find its exclusive queues gone."""
        if not self.closed:
            self.was_asked_to_close = True
            self.send(0, m.ConnectionCloseOk())
            self._shut(self.close_reason)

    def _while_closing(self, kind: int, number: int, payload: bytes) -> None:
        if kind == METHOD and number == 0:
            method = self._decode(payload)
            if isinstance(method, m.ConnectionClose):
                self.was_asked_to_close = True
                self.send(0, m.ConnectionCloseOk())
            if isinstance(method, m.ConnectionClose | m.ConnectionCloseOk):
                self._shut(self.close_reason)

    # -- Errors --------------------------------------------------------------------------------------------------

    def _guard(self, channel: Channel, action: Callable[..., object], *arguments: object) -> bool:
        """Run a channel's handler; its soft errors close just that channel. False if there was one."""
        try:
            action(*arguments)
        except ChannelFault as fault:
            self.close_channel(channel, fault)
            return False
        return True

    def on_channel_closed(self, channel: Channel) -> None:
        """The client closed a channel."""
        self.forget_publish()
        channel.end()
        self._drop_channel(channel)

    def close_channel(self, channel: Channel, fault: ChannelFault) -> None:
        self.forget_publish()  # Of any channel: an auto-delete queue may go with this one's consumers.
        channel.end()
        self.broker.notes.channel_error(self, channel.number, fault)
        self.send(channel.number, readable(fault.close()))

    def fail(self, session: Session, refusal: Refusal) -> None:
        """The broker ends one channel."""
        channel = self.channels.get(session.number)
        if channel is not None and channel.session is session:
            self.close_channel(channel, ChannelFault(refusal.code, refusal.text))

    def close_with(self, fault: ConnectionFault) -> None:
        self.close_reason = fault.reply_text
        self.broker.notes.connection_error(self, fault)
        self.release_all()
        if self.closing or self.closed or not self.may_be_told():
            self._shut(self.close_reason)
            return
        self._become(Life.CLOSING)
        self.waiting, self.is_behind = 0, False  # What is under way is of no interest to what still comes.
        self.backlog.clear()
        self.handshake = None
        self.send(0, readable(fault.close()))

    def may_be_told(self) -> bool:
        """A client that failed to log in is told why only if it said that it understands."""
        return self.handshake is None or self.handshake.may_be_told()

    # -- Output and the end --------------------------------------------------------------------------------------

    def send(self, number: int, method: m.Method) -> None:
        self.output.send(m.encode(number, method))

    def on_crowded(self, queue: AnyQueue | BusyLink) -> None:
        """This connection fills a queue faster than it empties, or a link."""
        self.crowded_queue = queue

    def take_crowded_queue(self) -> AnyQueue | BusyLink | None:
        """Return the queue or link that the connection fills too fast, once."""
        crowded_queue, self.crowded_queue = self.crowded_queue, None
        return crowded_queue

    def blame(self, reason: str) -> None:
        """The shell is about to end the socket, for a reason that the log is to tell."""
        self.close_reason = reason

    def await_room(self, inbox: Inbox) -> None:
        """Answers wait that the socket does not take."""
        if not self.inboxes:
            self.inboxes = {}
        self.inboxes[inbox] = None

    def forget_inbox(self, inbox: Inbox) -> None:
        if inbox in self.inboxes:
            del self.inboxes[inbox]

    def send_content(self, number: int, method: m.Method, content: bytes) -> None:
        """A message that was asked for, or comes back. Who asks for more than a turn's worth is held meanwhile."""
        self.output.put([m.encode(number, method), content], len(content))
        if self.output.is_full:
            self.full = self.held = True

    def on_room(self) -> bool:
        """All that was made is written and the socket takes more. True: there is more to do, have another turn."""
        stalled = self.output.stalled
        if not stalled and not self.full and not self.inboxes:
            return False
        for inbox in list(self.inboxes):
            inbox.on_room()
        if stalled:
            self.broker.touch_stalled(stalled)
        if self.full:
            self.full = False
            if not self.busy:
                self._go_on()
        return True

    def on_authenticated(self, user: str, mechanism: str) -> None:
        self.user, self.mechanism = shared(user), shared(mechanism)

    def set_producer(self, producer: Producer | None) -> None:
        """A producer's messages have numbers in a row, so they go to the queues in one bundle at a time."""
        self.producer = producer
        self.mixes = producer is None

    def set_origins(self, has_origins: bool) -> None:
        """Messages with origins go to the queues in one bundle at a time, too, so that numbers are in a row."""
        self.has_origins = has_origins and self.producer is None
        self.mixes = self.mixes and not has_origins

    def on_tuned(self, frame_max: int, channel_max: int, heartbeat_s: int) -> None:
        """Client and broker have agreed on these."""
        self.frame_max, self.channel_max, self.heartbeat_s = frame_max, channel_max, heartbeat_s

    def on_opened(self, vhost: Vhost) -> None:
        """The handshake is over."""
        self._become(Life.RUNNING)
        self.handshake = None
        self.vhost = vhost
        self.login = self.broker.enter(self, self.user, vhost.name, self.number)
        self.broker.on_connection_opened(self, self.login)
        self.broker.notes.opened(self, vhost.name)
        if self.on_entered is not None:
            self.on_entered()
            self.on_entered = None  # Nobody enters twice.

    def close(self, code: int, text: str) -> None:
        """The broker ends the connection (shutdown, an operator, a vhost deleted)."""
        if not self.closing and not self.closed:
            self.close_with(ConnectionFault(code, text))
            self.unblock()  # So that its answer is read.

    def on_socket_lost(self) -> None:
        """The peer is gone without a word, or the shell gave up on it."""
        self.release_all()
        self._shut(self.close_reason or "client unexpectedly closed TCP connection")

    def release_all(self) -> None:
        """Give back all that the connection held: deliveries, consumers, exclusive queues."""
        self.forget_publish()
        for channel in list(self.channels.values()):
            if not channel.closing:
                channel.release_all()
        self.broker.connection_limits.on_channels(self.user, -len(self.channels))
        self.channels.clear()
        queues = [] if self.login is None else self.login.take_exclusive_queues()
        self.deleting += len(queues)
        for queue in queues:
            self.broker.give_up(queue, lambda applied: self.on_exclusive_deleted())

    def _shut(self, reason: str) -> None:
        if not self.closed:
            self._become(Life.CLOSED)
            self.close_reason = reason
            self.rest = b""
            self.backlog.clear()
            self.broker.on_connection_closed(self)
            self.broker.notes.closed(self)

    def on_tick(self, now_ms: int, listening: bool = True) -> bool:
        """Time for heartbeats. False: the client has been silent for two of its intervals while it was listened to."""
        if self.handshake is not None and self.handshake.fault is not None:
            self.handshake.on_tick(now_ms)
            return True
        if self.leaving:
            self.leaving_ticks += 1
            if self.leaving_ticks > LEAVE_TICKS_MAX:
                self.release_all()
                self._leave()
            return True
        if self.received_since_tick or self.held or not listening:
            self.received_ms, self.received_since_tick = now_ms, False
        else:
            # If the node itself was held up, what the client sent meanwhile has yet to be read: to take that time for
            # silence would cut all clients at once, the living too. So one tick counts for one interval at most.
            self.received_ms += max(now_ms - self.ticked_ms - self.heartbeat_s * 1_000, 0)
        if self.output.was_used():
            # Perhaps right after the last tick. To count from this one could let two intervals pass in silence.
            self.sent_ms = self.ticked_ms
        self.ticked_ms = now_ms
        if not self.heartbeat_s or self.handshake is not None:  # Clients are surprised by one before open-ok.
            return True
        # Ticks are a second apart: to leave one out is too much for who wants a beat each second.
        if now_ms - self.sent_ms >= self.heartbeat_s * 500 or self.heartbeat_s == 1:
            self.output.send(HEARTBEAT_FRAME)
            self.sent_ms = now_ms
        return now_ms - self.received_ms < self.heartbeat_s * 2_000

    def describe(self) -> str:
        name = self.client_properties.get("connection_name")
        return f"{self.peer}" + (f" ({name})" if name else "")

    @property
    def client_properties(self) -> Mapping[str, object]:
        return NO_DICT if self.properties_of_client is None else self.properties_of_client.as_dict()

    def set_client_properties(self, table: m.Table) -> None:
        self.properties_of_client = ClientProperties(table)
        self.capabilities = self.properties_of_client.capabilities


Close = TypeVar("Close", m.ChannelClose, m.ConnectionClose)


def readable(close: Close) -> Close:
    """Without the bytes that came in a routing key and are no UTF-8: clients that read texts strictly fail on them."""
    close.reply_text = close.reply_text.encode("utf-8", "replace").decode()
    return close


def ids_of(method: m.Method) -> tuple[int, int]:
    return method.class_id, method.method_id
