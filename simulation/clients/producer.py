"""Clients that number their messages and publish them again until they are confirmed.

Unconfirmed messages are published again on another connection, to any node, often from further back than necessary, and
sometimes while the broker still reads from the previous connection.

The ledger gives all messages of a producer one stream, whatever connection sent them. So besides lost and duplicate
messages, it detects a queue that has them in another order than that of their numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final

from simulation.amqp import protocol as p
from simulation.amqp.contents import entry
from simulation.clients.session import Channel, Closed, Lost, Session

if TYPE_CHECKING:
    from simulation.checkers.ledger import Message
    from simulation.clients.client import Client

AMQP_PORT: Final = 5672
CONNECT_S: Final = 5.0
RETRY_S: Final = 0.5
ABANDONED_MAX: Final = 3
BACK_MAX: Final = 8  # This many confirmed messages are published again.


class ProducerChannel(Channel):
    """The channel on which a producer publishes."""

    def __init__(self, session: Session, number: int, producer: Producer, base: int) -> None:
        super().__init__(session, number)
        self.producer = producer
        self.base = base
        self.refused = False  # After a nack, publishing on this connection makes no sense.

    def send_message(self, message: Message) -> None:
        self.published += 1
        self.unconfirmed[self.published] = message
        if message.state == "nacked":
            message.state = "sent"
        if message.state != "confirmed":
            message.sent_at = self.session.loop.scheduler.now
        publish = p.method(self.number, "basic.publish", 0, "", message.queue, True, False)
        self.session.write(publish + p.content(self.number, message.body, message.persistent))

    def on_confirm(self, tag: int, multiple: bool, state: str) -> None:
        tags = [one for one in self.unconfirmed if one <= tag] if multiple else [tag]
        for one in tags:
            message = self.unconfirmed.get(one)
            if message is not None and message.state == "nacked":
                message.state = "sent"  # Another connection sent it; this one has newer knowledge.
        super().on_confirm(tag, multiple, state)
        if state == "confirmed":
            self.producer.on_confirmed(self.base + one for one in tags)
        else:
            self.refused = True

    def end(self, error: Exception) -> None:
        if isinstance(error, Closed):
            self.session.fail(f"a producer's channel was closed: {error}")
        super().end(error)


class Producer:
    """Publishes a client's numbered messages, and publishes again what was not confirmed."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.name = f"producer-{client.name}"
        self.sent: list[Message] = []
        self.confirmed: set[int] = set()
        self.safe = 0  # All up to this number are confirmed.
        self.at = 0  # Messages up to this number were sent on this connection.
        self.channel: ProducerChannel | None = None
        self.abandoned: list[Session] = []  # Connections that were given up and not closed.
        self.reached = 0  # Messages up to this number were sent on some connection.
        self.resent = self.sessions = 0

    def on_confirmed(self, numbers: Iterable[int]) -> None:
        self.confirmed.update(numbers)
        while self.safe + 1 in self.confirmed:
            self.safe += 1

    async def publish(self, queue: str, count: int, padding: int, persistent: bool, wait: bool) -> None:
        ledger, now = self.client.ledger, self.client.loop.scheduler.now
        for _ in range(count):
            message = ledger.on_published(queue, self.name, persistent, now)
            message.body = b"%d %s" % (message.number, b"." * padding)
            self.sent.append(message)
        await self.go_on(wait)
        if self.client.rng.random() < 0.2:  # It gives up this connection, whatever is in flight on it.
            self.leave()
            await self.go_on(wait)

    async def go_on(self, wait: bool) -> None:
        """Sends what was not sent on this connection, or on a new one everything unconfirmed."""
        channel = self.channel
        # A producer that does not read its confirms does not know yet that it must reconnect.
        is_over = channel is not None and channel.refused and self.client.rng.random() < 0.3
        if channel is None or channel.closed or is_over:
            self.leave()
            channel = await self._connect()
        for message in self.sent[self.at :]:
            channel.send_message(message)
        self.at = self.reached = len(self.sent)
        if wait:
            await channel.confirmed()

    async def finish(self) -> None:
        """Publishes until everything is confirmed."""
        while self.safe < len(self.sent):
            try:
                await self.go_on(wait=True)
            except Lost:
                await asyncio.sleep(RETRY_S)
            if self.channel is not None and self.channel.refused:
                await asyncio.sleep(RETRY_S)

    def leave(self) -> None:
        channel, self.channel = self.channel, None
        if channel is not None and not channel.session.lost:
            self.abandoned.append(channel.session)
        count = 0 if self.client.rng.random() < 0.5 else ABANDONED_MAX
        while len(self.abandoned) > count:
            session = self.abandoned.pop(0)
            if not session.lost:
                session.drop()

    async def _connect(self) -> ProducerChannel:
        client = self.client
        while True:
            base = max(0, self.safe - client.rng.randrange(BACK_MAX + 1))
            self.sessions += 1
            node = client.rng.choice(client.nodes)
            name = f"{client.name}/producer/{self.sessions}"
            session = Session(name, node, client.loop, client.ledger, client.rng)
            session.properties = entry("leveret_producer", self.name) + entry("leveret_sequence", base)
            try:
                async with asyncio.timeout(CONNECT_S):
                    await client.loop.create_connection(partial(_same, session), node, AMQP_PORT)
                    await session.open
                    channel = session.channels[1] = ProducerChannel(session, 1, self, base)
                    await channel.ask("channel.open-ok", "channel.open", "")
                    await channel.ask("confirm.select-ok", "confirm.select", False)
            except (Lost, OSError, TimeoutError):
                if hasattr(session, "transport") and not session.lost:
                    session.drop()
                await asyncio.sleep(RETRY_S)
                continue
            self.resent += self.reached - base
            self.channel, self.at = channel, base
            client.note(client.name, f"is producer {self.name} at {node}, from {base} on")
            return channel


def _same(session: Session) -> Session:
    """A loop needs a factory of protocols."""
    return session
