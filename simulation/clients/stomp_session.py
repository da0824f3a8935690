"""One STOMP connection of a simulated client, with the checks of a careful client. It shares no code with the broker.

A session reports (`Ledger.fail`) what no client should ever see: a receipt that it does not wait for, a message of no
subscription of its own, numbers of deliveries out of order, more messages than its prefetch count allows, an ERROR
without a reason.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from simulation.checkers.ledger import Delivery, Ledger, Message

if TYPE_CHECKING:
    from simulation.core.loop import NodeLoop
    from simulation.core.network import Endpoint

HEART_BEAT_S: Final = 10
ABORTED: Final = "rolled back"
# What may happen to a correct client when nodes or links fail, or a node is being stopped.
EXCUSED: Final = frozenset(
    {"not_found", "precondition_failed", "connection_forced", "resource_error", "Message refused", "internal_error"}
)


class Received(NamedTuple):
    """A frame of the server."""

    command: str
    headers: dict[str, str]
    body: bytes


class Subscription:
    """A subscription to one queue."""

    def __init__(self, number: int, queue: str, mode: str, prefetch: int) -> None:
        self.number = number
        self.queue = queue
        self.mode = mode
        self.prefetch = prefetch
        self.unacked: dict[int, tuple[str, Delivery]] = {}  # By number: the id by which it is acknowledged.
        self.acked: list[Delivery] = []  # Since the last proof that the broker knows.


class StompSession(asyncio.Protocol):
    """A STOMP 1.2 connection."""

    def __init__(self, name: str, node: str, loop: NodeLoop, ledger: Ledger, rng: random.Random) -> None:
        self.name = name
        self.node = node
        self.loop = loop
        self.ledger = ledger
        self.rng = rng
        self.transport: Endpoint
        self.data = b""
        self.open: asyncio.Future[None] = loop.create_future()
        self.lost = self.leaving = False
        self.receipts = 0
        # By receipt: the messages that it confirms, and what it proves to be settled.
        self.waiting: dict[str, tuple[list[Message], list[Delivery]]] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.last_number = 0
        self.transactions = 0

    def fail(self, text: str) -> None:
        self.ledger.fail(f"{self.name} at {self.node}: {text}")

    def send(self, command: str, body: bytes = b"", /, **headers: str) -> None:
        if self.lost or self.leaving:
            return
        lines = [command, *(f"{name.replace('_', '-')}:{value}" for name, value in headers.items())]
        data = "\n".join([*lines, "", ""]).encode() + body + b"\0"
        cut = self.rng.randrange(len(data)) if self.rng.random() < 0.2 else 0
        for piece in (data[:cut], data[cut:]):
            if piece:
                self.transport.write(piece)

    # -- The socket ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("Endpoint", transport)
        beats = f"0,{HEART_BEAT_S * 1_000}"
        self.send("CONNECT", accept_version="1.2", login="guest", passcode="guest", heart_beat=beats)

    def data_received(self, data: bytes) -> None:
        self.data += data
        while not self.lost:
            self.data = self.data.lstrip(b"\n")
            frame = self._next()
            if frame is None:
                return
            self.ledger.on_heard(self.node, self.transport.written_at, frame.command)
            self._on_frame(frame)

    def _next(self) -> Received | None:
        block, empty, rest = self.data.partition(b"\n\n")
        if not empty:
            return None
        command, *lines = block.decode().split("\n")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(name, value)
        size = int(headers["content-length"]) if "content-length" in headers else rest.find(b"\0")
        if size < 0 or len(rest) <= size:
            return None
        if rest[size]:
            self.fail(f"no NUL behind {size} bytes of a {command}")
        self.data = rest[size + 1 :]
        return Received(command, headers, rest[:size])

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
        if not self.lost:
            self.transport.abort()
            self._end()

    def _end(self) -> None:
        self.lost = True
        if not self.open.done():
            self.open.set_exception(ConnectionError())
            self.open.exception()

    # -- Frames --------------------------------------------------------------------------------------------------

    def _on_frame(self, frame: Received) -> None:
        if frame.command == "CONNECTED":
            self.open.set_result(None)
        elif frame.command == "RECEIPT":
            self._on_receipt(frame.headers["receipt-id"])
        elif frame.command == "MESSAGE":
            self._on_message(frame)
        elif frame.command == "ERROR":
            self._on_error(frame)
        else:
            self.fail(f"{frame.command} was not expected")

    def _on_receipt(self, name: str) -> None:
        found = self.waiting.pop(name, None)
        if found is None:
            self.fail(f"receipt {name}, not waited for")
            return
        messages, settled = found
        now = self.loop.scheduler.now
        for message in messages:
            self.ledger.on_confirmed(message, now)
        for delivery in settled:
            self.ledger.on_settled(delivery, now)
        if name == "bye":
            self.leaving = True

    def _on_error(self, frame: Received) -> None:
        message = frame.headers["message"]
        name = frame.headers.get("receipt-id")
        if name is not None and name in self.waiting:
            for one in self.waiting.pop(name)[0]:
                one.state = "nacked"
        if message == "Server cancelled subscription":
            self.subscriptions.pop(frame.headers["subscription"], None)
        elif message == "connection_forced" or (message in EXCUSED and self.ledger.is_disturbed()):
            self.leaving = self.leaving or name is None  # The server ends the connection.
        else:
            self.fail(f"an ERROR without a reason: {message}: {frame.body.decode()}")

    def _on_message(self, frame: Received) -> None:
        subscription = self.subscriptions.get(frame.headers["subscription"])
        number = int(frame.headers["message-id"].rpartition("@@")[2])
        if number <= self.last_number:
            self.fail(f"delivery {number} after {self.last_number}")
        self.last_number = number
        if subscription is None:
            self.fail(f"a MESSAGE for subscription {frame.headers['subscription']}, which is none")
            return
        delivery = Delivery(
            subscription.queue,
            int(frame.body.split(b" ")[0]),
            f"{self.name} ({subscription.number})",
            self.node,
            frame.headers["redelivered"] == "true",
            self.transport.written_at,
            frame.body,
        )
        subscription.unacked[number] = frame.headers["ack"], delivery
        message = self.ledger.messages.get(delivery.number)
        if message is not None and message.state == ABORTED:
            self.fail(f"{message} was sent in a transaction that was aborted")
        self.ledger.on_delivered(delivery)
        if 0 < subscription.prefetch < len(subscription.unacked):
            self.fail(f"{len(subscription.unacked)} messages in hand; the prefetch count is {subscription.prefetch}")

    # -- What a client does --------------------------------------------------------------------------------------

    def receipt(self, messages: list[Message], settled: list[Delivery]) -> str:
        self.receipts += 1
        name = f"r{self.receipts}"
        self.waiting[name] = messages, settled
        return name

    def publish(self, queue: str, persistent: bool, padding: int, proves: list[Delivery]) -> None:
        message = self._message(queue, persistent, padding, self.name)
        where = self.rng.choice(("/queue/", "/amq/queue/", "/reply-queue/")) + queue
        flags = {"persistent": "true"} if persistent else {}
        self.send("SEND", message.body, destination=where, receipt=self.receipt([message], proves), **flags)

    def _message(self, queue: str, persistent: bool, padding: int, stream: str) -> Message:
        message = self.ledger.on_published(queue, stream, persistent, self.loop.scheduler.now)
        message.body = b"%d %s" % (message.number, b"." * padding)
        return message

    def transact(self, queue: str, count: int, commits: bool) -> None:
        """Publish in a transaction. What is aborted must never be delivered."""
        self.transactions += 1
        name = f"t{self.transactions}"
        self.send("BEGIN", transaction=name)
        messages = [self._message(queue, True, 3, f"{self.name}.{name}") for _ in range(count)]
        for message in messages:
            message.state = message.state if commits else ABORTED
            where = f"/amq/queue/{queue}"
            self.send("SEND", message.body, destination=where, persistent="true", transaction=name)
        if commits:
            self.send("COMMIT", transaction=name, receipt=self.receipt(messages, []))
        else:
            self.send("ABORT", transaction=name)

    def subscribe(self, number: int, queue: str, mode: str, prefetch: int) -> None:
        self.subscriptions[str(number)] = Subscription(number, queue, mode, prefetch)
        more = {"prefetch_count": str(prefetch)} if prefetch else {}
        self.send("SUBSCRIBE", id=str(number), destination=f"/amq/queue/{queue}", ack=mode, **more)

    def settle(self, subscription: Subscription, number: int, nacks: bool) -> None:
        """Acknowledge one message, or with the mode `client` all up to it; or have it requeued."""
        is_cumulative = subscription.mode == "client"
        numbers = [one for one in subscription.unacked if one <= number] if is_cumulative else [number]
        named = subscription.unacked[number][0]
        for one in numbers:
            _, delivery = subscription.unacked.pop(one)
            if not nacks:
                self.ledger.on_acked(delivery)
                subscription.acked.append(delivery)
        self.send("NACK" if nacks else "ACK", id=named)
