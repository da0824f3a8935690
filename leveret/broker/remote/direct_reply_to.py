"""Direct reply-to: answers go straight to the channel that asked, without a queue.

A client that consumes from the pseudo-queue `amq.rabbitmq.reply-to` and publishes a question with that name as its
`reply_to` has the name replaced by an address of its own, `amq.rabbitmq.reply-to.<secret>.<node>`. Whoever publishes to
the default exchange with the address as its key, at any node, has the message delivered to that channel there and
then: it is stored nowhere, confirmed at once, and gone if the channel is. To the publisher it is a message that led to
no queue, so one that is mandatory comes back even though it was delivered; RabbitMQ has it so, and its clients know.

The secret is what nobody can guess, the node is where the channel is: no table of addresses has to be agreed on.
Addresses are no routes to be remembered, or those of short-lived clients would push out all others.

**A client that does not read its answers** must not fill the memory, nor hold up the server that answers everybody
else too. What its socket does not take waits in its inbox, up to a bound; further answers are dropped, and the log says
so once until it has read them all. A link that does not keep up makes the publishers wait, as it does for queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Literal

from leveret.broker.remote import peer_frames as w
from leveret.broker.routing.reply_address import ADDRESS, PREFIX
from leveret.links import frame_types
from leveret.links.proposals import BadFrame
from leveret.protocol.frames import METHOD, BadContent, frame, reframe, split

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.session.session import Client
    from leveret.sessions.amqp.channel import Channel

INBOX_BYTES_MAX: Final = 64 << 20
_DELIVER: Final = b"\x00\x3c\x00\x3c"


class BusyLink:
    """A link without room, for which a publisher of replies waits as for a queue."""

    is_local: Literal[False] = False

    def __init__(self, broker: Broker, peer: str) -> None:
        self.broker = broker
        self.peer = peer

    def is_crowded(self) -> bool:
        return self.peer in self.broker.client_ends and not self.broker.node.is_writable(self.peer)


class Inbox:
    """The replies to one channel."""

    def __init__(self, channel: Channel, tag: str, address: str) -> None:
        self.channel = channel
        self.tag = tag
        self.address = address
        self.waiting: deque[tuple[bytes, bytes]] = deque()
        self.waiting_bytes = 0
        self.overflown = False

    def deliver(self, key: bytes, content: bytes) -> None:
        connection = self.channel.connection
        if not self.waiting and connection.output.has_room:
            self._send(key, content)
        elif not self.waiting or self.waiting_bytes + len(content) <= INBOX_BYTES_MAX:
            self.waiting.append((key, content))
            self.waiting_bytes += len(content)
            connection.await_room(self)
        elif not self.overflown:
            self.overflown = True
            text = f"connection {connection.describe()}, channel {self.channel.number}: does not read its replies, "
            self.channel.broker.node.note("channel", "warning", text + "and further ones are dropped")

    def on_room(self) -> None:
        """The socket has room again."""
        connection, waiting = self.channel.connection, self.waiting
        while waiting and connection.output.has_room:
            key, content = waiting.popleft()
            self.waiting_bytes -= len(content)
            self._send(key, content)
        if not waiting:
            connection.forget_inbox(self)
            self.overflown = False

    def _send(self, key: bytes, content: bytes) -> None:
        """Send a reply. It shows the next delivery tag without using it up: there is nothing to acknowledge."""
        channel, connection = self.channel, self.channel.connection
        tag = self.tag.encode("utf-8", "surrogateescape")
        next_tag = (channel.session.delivery_tag + 1).to_bytes(8, "big")
        method = b"".join((_DELIVER, bytes((len(tag),)), tag, next_tag, b"\0", key))
        shown = reframe(content, channel.number, connection.frame_max)
        connection.output.put([frame(METHOD, channel.number, method), shown], len(content))


class DirectReplyTo:
    """All inboxes of a node, and the links to those of other nodes."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.inboxes: dict[str, Inbox] = {}
        self.last_question = 0
        self.questions: dict[int, tuple[str, Callable[[bool], None]]] = {}  # One at most for each connection.

    def open(self, channel: Channel, tag: str) -> Inbox:
        address = f"{self.broker.unique_name(PREFIX)}.{self.broker.node_name}"
        inbox = self.inboxes[address] = Inbox(channel, tag, address)
        return inbox

    def close(self, inbox: Inbox) -> None:
        del self.inboxes[inbox.address]
        inbox.channel.connection.forget_inbox(inbox)

    def answer(self, sender: Client | None, keys: Iterable[str], key: bytes, content: bytes) -> None:
        """Deliver a message to the default exchange to each channel whose address is one of its keys. `key`: its
        exchange and its routing key, as deliveries show them. `sender`: the client that waits where a link is busy;
        without one (a dead-lettered message), the reply is dropped there."""
        for address in dict.fromkeys(keys):
            if not address.startswith(PREFIX):
                continue
            peer = _node_of(address)
            if peer == self.broker.node_name:
                self._deliver(address, key, content)
            elif peer in self.broker.client_ends and (sender is not None or self.broker.node.is_writable(peer)):
                self.broker.node.send(peer, frame_types.REPLY, [*_texts(address), w.U16.pack(len(key)), key, content])
                if sender is not None and not self.broker.node.is_writable(peer):
                    sender.on_crowded(BusyLink(self.broker, peer))

    def _deliver(self, address: str, key: bytes, content: bytes) -> None:
        inbox = self.inboxes.get(address)
        if inbox is not None:
            inbox.deliver(key, content)

    def ask(self, address: str, then: Callable[[bool], None]) -> None:
        """Ask whether a channel waits for replies at an address."""
        peer = _node_of(address)
        if address == ADDRESS or address in self.inboxes:
            then(True)
        elif peer not in self.broker.client_ends:
            then(False)
        else:
            self.last_question += 1
            self.questions[self.last_question] = peer, then
            self.broker.node.send(peer, frame_types.REPLY_ASK, [w.U64.pack(self.last_question), *_texts(address)])

    # -- Other nodes ---------------------------------------------------------------------------------------------

    def on_frame(self, peer: str, kind: int, payload: bytes) -> None:
        """Raises `BadFrame`."""
        if kind == frame_types.REPLY:
            address, at = _unpack_text(payload, 0)
            (size,) = w.unpack_one(w.U16, payload, at)
            key, content = payload[at + 2 : at + 2 + size], payload[at + 2 + size :]
            w.check_key(key, size)
            try:
                split(content)  # Checked now: it may have to wait, and the link could not be blamed later.
            except BadContent as error:
                raise BadFrame(str(error)) from None
            self._deliver(address, key, content)
        elif kind == frame_types.REPLY_ASK:
            (number,) = w.unpack_one(w.U64, payload)
            address, _ = _unpack_text(payload, 8)
            self.broker.node.send(
                peer, frame_types.REPLY_ANSWER, [w.U64.pack(number), w.U8.pack(address in self.inboxes)]
            )
        else:
            number, there = w.unpack_one(w.REPLY_ANSWER, payload)
            asked, then = self.questions.pop(number, ("", None))
            if asked != peer or then is None:
                raise BadFrame(f"an answer to question {number}, which was not asked")
            then(bool(there))

    def on_down(self, peer: str) -> None:
        gone = [number for number, (asked, _) in self.questions.items() if asked == peer]
        for number in gone:
            self.questions.pop(number)[1](False)


def _node_of(address: str) -> str:
    return address[len(PREFIX) :].partition(".")[2]


def _texts(address: str) -> list[bytes]:
    raw = address.encode("utf-8", "surrogateescape")
    return [w.U16.pack(len(raw)), raw]


def _unpack_text(payload: bytes, at: int) -> tuple[str, int]:
    (size,) = w.unpack_one(w.U16, payload, at)
    end = at + 2 + size
    if end > len(payload):
        raise BadFrame("an address that is cut off")
    return payload[at + 2 : end].decode("utf-8", "surrogateescape"), end
