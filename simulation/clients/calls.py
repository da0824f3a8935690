"""Connections for direct replies, and for a vhost with a low limit of connections.

A call has two connections of its own, at any two nodes. One sends requests on two channels, which share only the
socket; the other replies to the address in each request. Replies are not stored, so any may be lost when something
fails. But none may come twice, or to a channel that did not ask, and without faults all of them come.
"""

from __future__ import annotations

import asyncio
import random
import struct
from typing import TYPE_CHECKING, Any, Final

from simulation.amqp import protocol as p
from simulation.clients.session import Channel, Session
from simulation.features.broker_features import TIGHT

if TYPE_CHECKING:
    from simulation.checkers.ledger import Ledger
    from simulation.core.loop import NodeLoop

REPLY_TO: Final = "amq.rabbitmq.reply-to"
NOT_ALLOWED: Final = 530
PATIENCE_S: Final = 10.0


class CallSession(Session):
    """A connection whose deliveries are direct replies, which the ledger does not know."""

    def __init__(self, name: str, node: str, loop: NodeLoop, ledger: Ledger, rng: random.Random) -> None:
        super().__init__(name, node, loop, ledger, rng)
        self.got: dict[int, list[p.Received]] = {}  # By channel.
        self.news: asyncio.Future[None] | None = None

    def _on_method(self, received: p.Received) -> None:
        if received.name in ("basic.deliver", "basic.return"):
            self.got.setdefault(received.channel, []).append(received)
            self._tell()
        else:
            super()._on_method(received)

    def _end(self) -> None:
        super()._end()
        self._tell()

    def _tell(self) -> None:
        if self.news is not None and not self.news.done():
            self.news.set_result(None)

    async def come(self, channel: Channel, count: int) -> list[p.Received]:
        """Waits until that many replies have arrived, or for as long as makes sense."""
        until = self.loop.scheduler.now + PATIENCE_S
        while len(self.got.get(channel.number, ())) < count and not self.lost and not channel.closed:
            self.news = self.loop.create_future()
            try:
                async with asyncio.timeout(until - self.loop.scheduler.now):
                    await self.news
            except TimeoutError:
                break
        return self.got.get(channel.number, [])

    def say(self, channel: Channel, key: str, body: bytes, reply_to: str = "", mandatory: bool = False) -> None:
        """Publishes to the default exchange."""
        publish = p.method(channel.number, "basic.publish", 0, "", key, mandatory, False)
        header = p.frame(p.HEADER, channel.number, _header(len(body), reply_to))
        self.write(publish + header + p.frame(p.BODY, channel.number, body))


def _header(size: int, reply_to: str) -> bytes:
    flags, text = 1 << 9 if reply_to else 0, reply_to.encode()
    return struct.pack(">HHQH", 60, 0, size, flags) + (bytes([len(text)]) + text if reply_to else b"")


class Call:
    """Requests and their direct replies."""

    def __init__(self, name: str, asker: CallSession, server: CallSession, fail: Any) -> None:
        self.name = name
        self.asker = asker
        self.server = server
        self.fail = fail
        self.addresses: dict[int, str] = {}  # By channel: its address, as the server sees it.

    async def run(self, count: int) -> int:
        """Returns how many replies arrived."""
        serving = await self.server.open_channel(confirms=False)
        await serving.ask(
            "queue.declare-ok", "queue.declare", 0, self.name, False, False, True, False, False, b""
        )  # It is exclusive.
        await _consume(serving, self.name)
        asking = [await self.asker.open_channel(confirms=False) for _ in range(2)]
        for channel in asking:
            await _consume(channel, REPLY_TO)
        for number in range(count):
            channel = asking[number % 2]
            self.asker.say(channel, self.name, b"0 %d %d" % (channel.number, number), REPLY_TO)
        questions = await self.server.come(serving, count)
        for question in questions:
            self._answer(serving, question)
        came = 0
        for at, channel in enumerate(asking):
            wanted = list(range(at, count, 2))
            answers = await self.asker.come(channel, len(wanted))
            came += len(answers)
            self._check(channel, wanted, answers)
        await self._hang_up(serving, asking[0])
        return came

    def _answer(self, serving: Channel, question: p.Received) -> None:
        _, asked_on, _ = question.body.split(b" ")
        address = (question.properties or {}).get("reply_to", "")
        if not address.startswith(f"{REPLY_TO}."):
            self.fail(f"{self.name}: a question came with {question.properties}")
        if self.addresses.setdefault(int(asked_on), address) != address:
            self.fail(f"{self.name}: channel {asked_on!r} has the addresses {self.addresses} and {address}")
        if len(set(self.addresses.values())) != len(self.addresses):
            self.fail(f"{self.name}: two channels have one address: {self.addresses}")
        self.server.say(serving, address, question.body)

    def _check(self, channel: Channel, wanted: list[int], answers: list[p.Received]) -> None:
        bodies = [answer.body for answer in answers]
        expected = [b"0 %d %d" % (channel.number, number) for number in wanted]
        if bodies != [body for body in expected if body in bodies]:
            self.fail(f"{self.name}: channel {channel.number} got {bodies}; it has asked {expected}")
        if len(bodies) < len(expected) and not self.asker.ledger.is_disturbed():
            self.fail(f"{self.name}: channel {channel.number} got only {bodies}; it has asked {expected}")

    async def _hang_up(self, serving: Channel, channel: Channel) -> None:
        """Checks that nobody gets a reply to a closed channel: it is returned to its sender."""
        address = self.addresses.get(channel.number)
        if address is None:
            return
        before = {number: len(got) for number, got in self.asker.got.items()}
        await self.asker.close_channel(channel)
        self.server.say(serving, address, b"0 too late", mandatory=True)
        await serving.ask("basic.qos-ok", "basic.qos", 0, 0, False)  # The return comes before this answer.
        if before != {number: len(got) for number, got in self.asker.got.items()}:
            self.fail(f"{self.name}: an answer came to somebody else than the one who had gone")
        if not any(one.name == "basic.return" for one in self.server.got[serving.number]):
            self.fail(f"{self.name}: an answer that led nowhere did not come back")


async def _consume(channel: Channel, queue: str) -> None:
    await channel.ask("basic.consume-ok", "basic.consume", 0, queue, "", False, True, False, False, b"")


class TightSession(Session):
    """A connection to the vhost `tight`, or to any other, that may be refused."""

    def __init__(
        self, name: str, node: str, loop: NodeLoop, ledger: Ledger, rng: random.Random, vhost: str = TIGHT
    ) -> None:
        super().__init__(name, node, loop, ledger, rng)
        self.vhost = vhost
        self.refused = False

    def _on_connection(self, received: p.Received) -> None:
        name, arguments = received.name, received.arguments
        if name == "connection.tune":
            self.write(p.method(0, "connection.tune-ok", arguments[0], p.FRAME_MAX, 10))
            self.write(p.method(0, "connection.open", self.vhost, "", False))
        elif name == "connection.close" and arguments[0] == NOT_ALLOWED and "limit" in arguments[1]:
            self.refused = True
            self.write(p.method(0, "connection.close-ok"))
            self.transport.close()
            self._end()
        else:
            super()._on_connection(received)
