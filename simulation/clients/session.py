"""One AMQP connection of a simulated client, on a simulated socket, with the checks of a careful client.

A session reports (`Ledger.fail`) what no client should ever see: an unexpected confirm, a delivery tag out of order,
more deliveries than the prefetch count allows, an answer without a request, an internal error.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

from simulation.amqp import protocol as p
from simulation.amqp.contents import NO_EXTRAS, Extras
from simulation.checkers.ledger import Delivery, Ledger, Message
from simulation.features.queue_features import EXCHANGES, NOWHERE

if TYPE_CHECKING:
    from simulation.core.loop import NodeLoop
    from simulation.core.network import Endpoint

HEARTBEAT_S: Final = 10
# What may happen to a channel or connection of a correct client that may be late: a queue is deleted, exclusive,
# declared with other arguments, or unreachable; the node is being stopped.
CHANNEL_CODES: Final = frozenset({404, 405, 406, 506})
CONNECTION_CODES: Final = frozenset({320})
TIMED_OUT: Final = "metadata store operation timed out"  # Without a majority, and only then.


class Lost(Exception):
    """The connection is lost."""


class Closed(Exception):
    """The broker closed the channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code


class Channel:
    """A channel that publishes, or has one consumer, or both."""

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number
        self.stream = f"{session.name}.{number}"
        self.waiting: deque[tuple[tuple[str, ...], asyncio.Future[p.Received]]] = deque()
        self.closed = False
        self.leaving = False  # The last method was sent.
        self.published = 0
        self.unconfirmed: dict[int, Message] = {}
        self.all_confirmed: asyncio.Future[None] | None = None
        # Consuming.
        self.queue = ""
        self.consumer_tag: str | None = None
        self.prefetch = 0
        self.no_ack = False
        self.last_tag = 0
        self.unacked: dict[int, Delivery] = {}  # By tag.
        self.acked: list[Delivery] = []  # Acknowledged since the last proof that they are synced.
        self.returned: list[Delivery] = []  # Requeued since then.
        # By the number of the publish that proves them.
        self.markers: dict[int, tuple[list[Delivery], list[Delivery]]] = {}
        self.drained: list[int] | None = None
        self.busy_at = 0.0  # When something was last delivered or settled.
        self.asked_at = 0.0  # When the client last sent a request that is answered.

    def send(self, name: str, *arguments: Any) -> None:
        if not self.closed and not self.leaving:
            self.session.write(p.method(self.number, name, *arguments))

    async def ask(self, answers: str | tuple[str, ...], name: str, *arguments: Any) -> p.Received:
        """Sends a method and waits for its answer. Raises Lost or Closed."""
        if self.closed or self.leaving or self.session.lost:
            raise Lost
        future: asyncio.Future[p.Received] = self.session.loop.create_future()
        self.waiting.append(((answers,) if isinstance(answers, str) else answers, future))
        self.asked_at = self.session.loop.scheduler.now
        self.send(name, *arguments)
        self.leaving = self.leaving or name == "channel.close"
        return await future

    # -- Publishing ----------------------------------------------------------------------------------------------

    def publish(
        self, queue: str, persistent: bool, padding: int, ledger: Ledger, extras: Extras = NO_EXTRAS
    ) -> Message:
        session = self.session
        message = ledger.on_published(queue, self.stream, persistent, session.loop.scheduler.now)
        body = message.body = b"%d %s" % (message.number, b"." * padding)
        self.published += 1
        self.unconfirmed[self.published] = message
        message.extras = extras
        copies = (extras.via, queue) if extras.via in ("CC", "BCC") else None
        exchange, key = extras.via if extras.via in EXCHANGES else "", queue if copies is None else NOWHERE
        publish = p.method(self.number, "basic.publish", 0, exchange, key, True, False)
        session.write(publish + p.content(self.number, body, persistent, extras=extras, copies=copies))
        return message

    async def confirmed(self) -> None:
        """Returns when nothing is unconfirmed any more."""
        if self.closed:
            raise Lost
        if self.unconfirmed:
            self.all_confirmed = self.session.loop.create_future()
            await self.all_confirmed

    def on_confirm(self, tag: int, multiple: bool, state: str) -> None:
        tags = [one for one in self.unconfirmed if one <= tag] if multiple else [tag]
        if not tags or any(one not in self.unconfirmed for one in tags):
            if not (multiple and 0 < tag <= self.published):
                self.session.fail(f"{self.stream} got a confirm for {tag} (multiple: {multiple}), not waited for")
            return
        for one in tags:
            message = self.unconfirmed.pop(one)
            if message.state == "sent" and state == "confirmed":
                self.session.ledger.on_confirmed(message, self.session.loop.scheduler.now)
            elif message.state == "sent":
                message.state = state
            settled, returned = self.markers.pop(one, ((), ()))
            if message.state == "confirmed" and message.number not in self.session.ledger.spooled:
                for delivery in settled:
                    self.session.ledger.on_settled(delivery, self.session.loop.scheduler.now)
                for delivery in returned:
                    self.session.ledger.on_returned(delivery, self.session.loop.scheduler.now)
            elif message.state == "confirmed":
                for delivery in settled:
                    self.session.ledger.on_kept(delivery, self.session.loop.scheduler.now)
        if not self.unconfirmed and self.all_confirmed is not None and not self.all_confirmed.done():
            self.all_confirmed.set_result(None)

    # -- Consuming -----------------------------------------------------------------------------------------------

    def on_delivery(self, received: p.Received, queue: str, consumer: str, no_ack: bool) -> int:
        """Records a delivery, and returns the number of its message."""
        session = self.session
        tag, redelivered = received.arguments[1:3] if consumer else received.arguments[:2]
        if tag != self.last_tag + 1:
            session.fail(f"{self.stream} got delivery tag {tag} after {self.last_tag}")
        self.last_tag = tag
        self.busy_at = session.loop.scheduler.now
        number = int(received.body.split(b" ")[0])
        written_at = session.transport.written_at
        properties = received.properties or {}
        delivery = Delivery(queue, number, consumer, session.node, redelivered, written_at, received.body, properties)
        delivery.asked_at = None if consumer else self.asked_at
        if not no_ack:
            self.unacked[tag] = delivery
        else:
            session.ledger.on_acked(delivery)
        session.ledger.on_delivered(delivery)
        if consumer and not no_ack and 0 < self.prefetch < len(self.unacked):
            count = session.ledger.in_hand(self.unacked.values(), queue, session.node)
            if count > self.prefetch:
                session.fail(f"{consumer} has {count} messages in hand; its prefetch count is {self.prefetch}")
        return number

    def settle(self, tag: int, how: str) -> None:
        """Acknowledges one, or all up to it, or requeues or rejects it."""
        if self.closed or self.leaving or tag not in self.unacked:
            return
        self.busy_at = self.session.loop.scheduler.now
        if how == "multiple":
            tags = [one for one in self.unacked if one <= tag]
            self.send("basic.ack", tag, True)
        else:
            tags = [tag]
            if how == "ack":
                self.send("basic.ack", tag, False)
            elif how == "reject":
                self.send("basic.reject", tag, False)
            else:
                self.send("basic.nack", tag, False, True)
        for one in tags:
            delivery = self.unacked.pop(one)
            if how != "requeue":
                self.session.ledger.on_acked(delivery, how)
                self.acked.append(delivery)
            else:
                self.returned.append(delivery)

    def is_hungry(self) -> bool:
        """Returns whether it consumes and its prefetch has room."""
        if self.closed or self.leaving or self.consumer_tag is None or self.session.lost:
            return False
        return self.no_ack or not self.prefetch or len(self.unacked) < self.prefetch

    def prove(self, queue: str, ledger: Ledger) -> None:
        """Publishes a message after all acknowledgements so far; its confirm proves that they are synced."""
        settled = self.acked, self.returned
        self.acked, self.returned = [], []
        self.publish(queue, True, 0, ledger)
        self.markers[self.published] = settled

    def end(self, error: Exception) -> None:
        if not self.closed:
            self.session.ledger.on_channel_ended(self.queue, self.consumer_tag is not None or bool(self.waiting))
        self.closed = True
        self.unacked.clear()
        waiting, self.waiting = self.waiting, deque()
        futures: list[asyncio.Future[Any]] = [future for _, future in waiting]
        if self.all_confirmed is not None:
            futures.append(self.all_confirmed)
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # Marks the exception as retrieved: the waiting coroutine gets it, if there is one.


class Session(asyncio.Protocol):
    """An AMQP connection."""

    def __init__(self, name: str, node: str, loop: NodeLoop, ledger: Ledger, rng: random.Random) -> None:
        self.name = name
        self.node = node
        self.loop = loop
        self.ledger = ledger
        self.rng = rng
        self.transport: Endpoint
        self.reader = p.Reader()
        self.channels: dict[int, Channel] = {}
        self.control = self.channels[0] = Channel(self, 0)
        self.opened_count = 0
        self.open: asyncio.Future[None] = loop.create_future()
        self.lost = False
        self.heard_at = loop.scheduler.now
        self.beats: asyncio.TimerHandle | None = None
        self.styles: dict[int, str] = {}  # How the consumer of a channel settles.
        self.leaving = False  # The connection is being closed.
        self.properties = b""  # Further client properties, as entries of a table.

    def fail(self, text: str) -> None:
        self.ledger.fail(f"{self.name} at {self.node}: {text}")

    def write(self, data: bytes) -> None:
        if not self.lost:
            self.transport.write(data)

    # -- The socket ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("Endpoint", transport)
        self.write(p.PROTOCOL_HEADER)
        self.beats = self.loop.call_later(HEARTBEAT_S / 2, self._beat)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self.loop.scheduler.now
        try:
            for received in self.reader.receive(data):
                if received is not None and not self.lost:
                    self.ledger.on_heard(self.node, self.transport.written_at, received.name)
                    self._on_method(received)
        except p.Malformed as error:
            self.fail(str(error))

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        """Clients write little; what they cannot send waits."""

    def resume_writing(self) -> None:
        """See `pause_writing`."""

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost and not self.leaving:
            self.ledger.on_session_lost(self.name, self.node, str(error or "closed by the broker"))
        self._end()

    def drop(self) -> None:
        self.transport.abort()
        self._end()

    def _end(self) -> None:
        if self.lost:
            return
        self.lost = True
        if self.beats is not None:
            self.beats.cancel()
        if not self.open.done():
            self.open.set_exception(Lost())
            self.open.exception()
        for channel in self.channels.values():
            channel.end(Lost())

    def _beat(self) -> None:
        now = self.loop.scheduler.now
        if now - self.heard_at > 2.5 * HEARTBEAT_S and self.transport.reading:
            self.ledger.on_session_lost(self.name, self.node, "nothing is heard of it")
            self.drop()
            return
        self.write(p.HEARTBEAT_FRAME)
        self.beats = self.loop.call_later(HEARTBEAT_S / 2, self._beat)

    # -- Methods -------------------------------------------------------------------------------------------------

    def _on_method(self, received: p.Received) -> None:
        name = received.name
        if name.startswith("connection."):
            self._on_connection(received)
            return
        channel = self.channels.get(received.channel)
        if channel is None:
            self.fail(f"{name} on channel {received.channel}, which is not open")
            return
        if name == "basic.deliver":
            self._on_deliver(channel, received)
        elif name in ("basic.ack", "basic.nack"):
            state = "confirmed" if name == "basic.ack" else "nacked"
            channel.on_confirm(received.arguments[0], received.arguments[1], state)
        elif name == "basic.return":
            message = self.ledger.messages[int(received.body.split(b" ")[0])]
            message.state = "returned"
        elif name == "basic.cancel":
            if received.arguments[0] == channel.consumer_tag:
                channel.consumer_tag = None
        elif name == "channel.close":
            self._on_channel_closed(channel, received)
        else:
            self._on_answer(channel, received)

    def _on_connection(self, received: p.Received) -> None:
        name, arguments = received.name, received.arguments
        if name == "connection.start":
            capabilities = p.true_entry("consumer_cancel_notify") + p.true_entry("connection.blocked")
            properties = p.table_entry("capabilities", capabilities) + self.properties
            self.write(p.method(0, "connection.start-ok", properties, "PLAIN", b"\x00guest\x00guest", "en_US"))
        elif name == "connection.tune":
            self.write(p.method(0, "connection.tune-ok", arguments[0], p.FRAME_MAX, HEARTBEAT_S))
            self.write(p.method(0, "connection.open", "/", "", False))
        elif name == "connection.open-ok":
            self.open.set_result(None)
        elif name == "connection.close":
            timed_out = arguments[0] == 541 and TIMED_OUT in arguments[1] and self.ledger.is_disturbed()
            if arguments[0] not in CONNECTION_CODES and not timed_out:
                self.fail(f"the broker closed the connection: {arguments[0]} {arguments[1]}")
            self.write(p.method(0, "connection.close-ok"))
            self.transport.close()
            self._end()
        elif name == "connection.close-ok":
            self._on_answer(self.control, received)
            self.transport.close()
        elif name not in ("connection.blocked", "connection.unblocked"):
            self.fail(f"{name} was not expected")

    def _on_channel_closed(self, channel: Channel, received: p.Received) -> None:
        code, text = received.arguments[:2]
        if code not in CHANNEL_CODES:
            self.fail(f"the broker closed channel {channel.number}: {code} {text}")
        self.write(p.method(channel.number, "channel.close-ok"))
        channel.end(Closed(code, text))
        del self.channels[channel.number]

    def _on_answer(self, channel: Channel, received: p.Received) -> None:
        if not channel.waiting or received.name not in channel.waiting[0][0]:
            expected = channel.waiting[0][0] if channel.waiting else "nothing"
            self.fail(f"{received.name} on channel {channel.number}, where {expected} was expected")
            return
        if received.name == "basic.get-ok":
            channel.on_delivery(received, channel.queue, "", channel.no_ack)
        elif received.name == "basic.consume-ok":
            # Deliveries may follow in the same bytes, before the waiting coroutine continues.
            channel.consumer_tag = received.arguments[0]
        _, future = channel.waiting.popleft()
        if not future.done():
            future.set_result(received)

    def _on_deliver(self, channel: Channel, received: p.Received) -> None:
        if received.arguments[0] != channel.consumer_tag:
            # Cancelled meanwhile: deliveries in flight still arrive until the answer does, and count.
            if not channel.waiting or "basic.cancel-ok" not in channel.waiting[0][0]:
                self.fail(f"a delivery on channel {channel.number} for a consumer that is none")
                return
        consumer = f"{channel.stream} ({received.arguments[0]})"
        number = channel.on_delivery(received, channel.queue, consumer, channel.no_ack)
        if channel.drained is not None:
            channel.drained.append(number)
        if not channel.no_ack:
            self._settle_sometime(channel, channel.last_tag)

    def _settle_sometime(self, channel: Channel, tag: int) -> None:
        style, rng = self.styles.get(channel.number, "hold"), self.rng
        if style == "hold":
            return
        how = "ack"
        if style == "multiple":
            if tag % 3:
                return
            how = "multiple"
        elif style == "mixed":
            how = rng.choice(("ack", "ack", "ack", "requeue", "reject", "multiple"))
        if style == "late" or (style == "mixed" and rng.random() < 0.3):
            self.loop.call_later(rng.random() * 2, channel.settle, tag, how)
        else:
            channel.settle(tag, how)

    # -- Requests ------------------------------------------------------------------------------------------------

    async def open_channel(self, confirms: bool) -> Channel:
        self.opened_count += 1
        channel = self.channels[self.opened_count] = Channel(self, self.opened_count)
        channel.busy_at = self.loop.scheduler.now
        await channel.ask("channel.open-ok", "channel.open", "")
        if confirms:
            await channel.ask("confirm.select-ok", "confirm.select", False)
        return channel

    async def close_channel(self, channel: Channel) -> None:
        await channel.ask("channel.close-ok", "channel.close", 200, "", 0, 0)
        channel.end(Lost())
        self.channels.pop(channel.number, None)
