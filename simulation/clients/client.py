"""Clients that carry out their steps over connections that may break at any time.

A client is a list of steps, filled by the plan, and a coroutine that does them one after the other: each waits for its
answer. When the connection breaks, the current step is given up and the next one begins with a connection to some node
that accepts it. So what a client does follows from its steps alone, however the brokers behave, and steps can be left
out to find the few that matter.

Queues by their first letter:

    d   durable, declared at the beginning and never deleted or purged: confirmed messages must stay
    v   declared, purged and deleted by any client at any time
    x   exclusive to the connection that declared it
    e   like d: for dead letters, in a run with features
    w   like d: expires when nobody uses it for some time
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from simulation.amqp.contents import Extras, entry
from simulation.checkers.ledger import Ledger
from simulation.clients.session import Channel, Closed, Lost, Session
from simulation.core.loop import NodeLoop
from simulation.features.queue_features import DEAD_LETTER_EXCHANGE, DEAD_LETTER_QUEUE

AMQP_PORT: Final = 5672
CONNECT_S: Final = 5.0
RETRY_S: Final = 0.5
CONSUMERS_MAX: Final = 3
IDLE_S: Final = 5.0
ROLLED_BACK: Final = "rolled back"


class Step(NamedTuple):
    """A step of a plan: something that a client does, or that is done to the world, at a time."""

    number: int
    at: float
    what: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        words = " ".join(f"{key}={value}" for key, value in self.arguments.items())
        return f"#{self.number} {self.what} {words}"


class Client:
    """A client with at most one connection at a time."""

    def __init__(
        self,
        name: str,
        nodes: list[str],
        loop: NodeLoop,
        ledger: Ledger,
        rng: random.Random,
        note: Callable[[str, str], None],
    ) -> None:
        self.name = name
        self.nodes = nodes
        self.loop = loop
        self.ledger = ledger
        self.rng = rng
        self.note = note
        self.todo: deque[Step] = deque()
        self.doing: Step | None = None
        self.session: Session | None = None
        self.publisher: Channel | None = None
        self.consumers: list[Channel] = []
        self.sessions = self.tours = 0
        self.next_node = rng.randrange(len(nodes))
        # Exclusive queues of this client, with the connection that declared them.
        self.exclusive: list[tuple[str, Session]] = []
        self._wake: asyncio.Future[None] | None = None
        self.task = loop.create_task(self._run())

    def give(self, step: Step) -> None:
        self.todo.append(step)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    @property
    def idle(self) -> bool:
        return not self.todo and self.doing is None

    async def _run(self) -> None:
        while True:
            if not self.todo:
                self._wake = self.loop.create_future()
                await self._wake
                continue
            self.doing = self.todo.popleft()
            try:
                await getattr(self, f"do_{self.doing.what}")(**self.doing.arguments)
            except Lost:
                self.note(self.name, f"{self.doing} came to nothing: the connection was lost")
            except Closed as closed:
                self.note(self.name, f"{self.doing} was refused: {closed}")
            self.doing = None

    # -- A connection --------------------------------------------------------------------------------------------

    async def _session(self) -> Session:
        """Returns the connection, or a new one to the first node that accepts it."""
        while self.session is None or self.session.lost:
            node = self.nodes[self.next_node % len(self.nodes)]
            try:
                await self._connect(node)
            except (Lost, OSError, TimeoutError):
                self.next_node += 1
                await asyncio.sleep(RETRY_S)
        return self.session

    async def _connect(self, node: str) -> None:
        self.session, self.publisher, self.consumers = None, None, []
        self.sessions += 1
        session = Session(f"{self.name}/{self.sessions}", node, self.loop, self.ledger, self.rng)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.loop.create_connection(lambda: session, node, AMQP_PORT)
                await session.open
        except TimeoutError:
            if hasattr(session, "transport"):
                session.drop()
            raise
        self.session = session
        self.note(self.name, f"is connected to {node} as {session.name}")

    async def _publisher(self) -> Channel:
        session = await self._session()
        if self.publisher is None or self.publisher.closed:
            self.publisher = await session.open_channel(confirms=True)
        return self.publisher

    async def _consumer(self, which: int) -> Channel | None:
        await self._session()
        self.consumers = [one for one in self.consumers if not one.closed]
        return self.consumers[which % len(self.consumers)] if self.consumers else None

    # -- Steps ---------------------------------------------------------------------------------------------------

    async def do_go(self, node: int) -> None:
        """Connects to another node from now on."""
        self.next_node = node
        if self.session is not None and not self.session.lost:
            self.session.leaving = True
            await self.session.control.ask("connection.close-ok", "connection.close", 200, "bye", 0, 0)
        await self._session()

    async def do_drop(self) -> None:
        if self.session is not None and not self.session.lost:
            self.session.drop()

    async def do_deafen(self, seconds: float) -> None:
        """Stops reading for a while."""
        session = await self._session()
        session.transport.pause_reading()
        self.loop.call_later(seconds, session.transport.resume_reading)

    async def do_declare(self, queue: str, durable: bool, arguments: dict[str, Any] | None = None) -> None:
        channel = await self._publisher()
        exclusive = queue.startswith("x")
        if exclusive:
            queue = f"{queue}-{channel.session.name}"
        table = b"".join(entry(name, value) for name, value in (arguments or {}).items())
        declare = (0, queue, False, durable, exclusive, False, False, table)
        await channel.ask("queue.declare-ok", "queue.declare", *declare)
        if exclusive:
            self.exclusive.append((queue, channel.session))
        self.note(self.name, f"has declared {queue}")

    async def do_look(self, queue: str) -> None:
        """Checks whether a queue exists. One that was declared and never deleted must."""
        channel = await self._publisher()
        node = channel.session.node
        try:
            await channel.ask("queue.declare-ok", "queue.declare", 0, queue, True, False, False, False, False, b"")
        except Closed as closed:
            if closed.code == 404 and not self.ledger.may_be_missing(queue, "inaccessible" in str(closed)):
                self.ledger.fail(f"{queue} was declared, and {node} does not know it: {closed}")
            raise

    async def do_tour(self, node: int) -> None:
        """Declares a queue at one node, and asks another for it as soon as that is answered."""
        session = await self._session()
        other = Session(f"{self.name}/tour", self.nodes[node], self.loop, self.ledger, self.rng)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.loop.create_connection(lambda: other, other.node, AMQP_PORT)
                await other.open
                there = await other.open_channel(confirms=False)
        except (TimeoutError, OSError, Lost):
            if hasattr(other, "transport"):
                other.drop()
            return
        self.tours += 1
        queue = f"u-{self.name}-{self.tours}"
        try:
            here = await session.open_channel(confirms=False)
            await here.ask("queue.declare-ok", "queue.declare", 0, queue, False, False, False, False, False, b"")
            await there.ask("queue.declare-ok", "queue.declare", 0, queue, True, False, False, False, False, b"")
        except Closed as closed:
            if not self.ledger.is_disturbed():
                self.ledger.fail(f"{queue} was declared at {session.node}, and {other.node} says {closed}")
            raise
        finally:
            other.drop()
        await here.ask("queue.delete-ok", "queue.delete", 0, queue, False, False, False)
        await session.close_channel(here)

    async def do_peek(self, other: Client) -> None:
        """Tries to use another client's exclusive queue."""
        if not other.exclusive:
            return
        queue, owner = other.exclusive[-1]
        channel = await self._publisher()
        try:
            await channel.ask("queue.declare-ok", "queue.declare", 0, queue, True, False, False, False, False, b"")
        except Closed as closed:
            if closed.code not in (404, 405):
                self.ledger.fail(f"looking at {queue} of another connection gave {closed}")
            raise
        self.ledger.fail(f"{channel.session.name} can see {queue}, which is exclusive to {owner.name}")

    async def do_delete(self, queue: str) -> None:
        channel = await self._publisher()
        self.ledger.queue(queue).lost = True
        await channel.ask("queue.delete-ok", "queue.delete", 0, queue, False, False, False)
        self.note(self.name, f"has deleted {queue}")

    async def do_purge(self, queue: str) -> None:
        channel = await self._publisher()
        self.ledger.queue(queue).lost = True
        await channel.ask("queue.purge-ok", "queue.purge", 0, queue, False)

    async def do_bind(self, queue: str, exchange: str, key: str, unbind: bool) -> None:
        channel = await self._publisher()
        if unbind:
            await channel.ask("queue.unbind-ok", "queue.unbind", 0, queue, exchange, key, b"")
        else:
            await channel.ask("queue.bind-ok", "queue.bind", 0, queue, exchange, key, False, b"")

    async def do_exchange(self, exchange: str, delete: bool) -> None:
        channel = await self._publisher()
        if delete:
            await channel.ask("exchange.delete-ok", "exchange.delete", 0, exchange, False, False)
        else:
            declare = (0, exchange, "topic", False, True, False, False, False, b"")
            await channel.ask("exchange.declare-ok", "exchange.declare", *declare)

    async def do_ways(self, queues: list[str]) -> None:
        """Declares the exchanges that lead to queues and dead-letter queues: see `features.queue_features`."""
        channel = await self._publisher()

        async def declare(exchange: str, kind: str, arguments: bytes = b"") -> None:
            method = (0, exchange, kind, False, True, False, False, False, arguments)
            await channel.ask("exchange.declare-ok", "exchange.declare", *method)

        async def bind(what: str, to: str, exchange: str, key: str) -> None:
            await channel.ask(f"{what}.bind-ok", f"{what}.bind", 0, to, exchange, key, False, b"")

        await declare(DEAD_LETTER_EXCHANGE, "direct")
        await bind("queue", DEAD_LETTER_QUEUE, DEAD_LETTER_EXCHANGE, DEAD_LETTER_QUEUE)
        await declare("tree", "direct")
        await declare("alt", "direct", entry("alternate-exchange", "tree"))
        for queue in queues:
            await declare(f"hash-{queue}", "x-consistent-hash")
            await bind("exchange", f"hash-{queue}", "tree", queue)
            await bind("queue", queue, f"hash-{queue}", "1")

    async def do_publish(
        self,
        queue: str,
        count: int,
        padding: int,
        persistent: bool,
        wait: bool,
        expires_ms: int | None = None,
        priority: int | None = None,
        via: str = "",
    ) -> None:
        channel = await self._publisher()
        for _ in range(count):
            channel.publish(queue, persistent, padding, self.ledger, Extras(expires_ms, priority, via))
        if wait:
            await channel.confirmed()

    async def do_transact(self, queue: str, count: int, padding: int, persistent: bool, back: bool) -> None:
        """Publishes in a transaction. What is rolled back must never be delivered."""
        session = await self._session()
        channel = await session.open_channel(confirms=False)
        await channel.ask("tx.select-ok", "tx.select")
        for _ in range(count):
            message = channel.publish(queue, persistent, padding, self.ledger)
            if back:
                message.state = ROLLED_BACK
        if back:
            channel.unconfirmed.clear()
            await channel.ask("tx.rollback-ok", "tx.rollback")
        else:
            await channel.ask("tx.commit-ok", "tx.commit")
            channel.on_confirm(channel.published, True, "confirmed")
        await session.close_channel(channel)

    async def do_consume(
        self, queue: str, prefetch: int, no_ack: bool, style: str, priority: int | None = None
    ) -> None:
        session = await self._session()
        if len(self.consumers) >= CONSUMERS_MAX:
            await self.do_close_channel(0)
            session = await self._session()
        channel = await session.open_channel(confirms=True)
        channel.queue, channel.prefetch, channel.no_ack = queue, prefetch, no_ack
        session.styles[channel.number] = style
        if prefetch:
            await channel.ask("basic.qos-ok", "basic.qos", 0, prefetch, False)
        table = b"" if priority is None else entry("x-priority", priority)
        await channel.ask("basic.consume-ok", "basic.consume", 0, queue, "", False, no_ack, False, False, table)
        self.consumers.append(channel)

    async def do_prove(self, which: int) -> None:
        """Acknowledges all unacknowledged messages, and proves that the broker has received that."""
        channel = await self._consumer(which)
        if channel is None or channel.no_ack:
            return
        if channel.unacked:
            channel.settle(max(channel.unacked), "multiple")
        channel.prove(channel.queue, self.ledger)
        await channel.confirmed()

    async def do_cancel(self, which: int) -> None:
        channel = await self._consumer(which)
        if channel is not None and channel.consumer_tag is not None:
            await channel.ask("basic.cancel-ok", "basic.cancel", channel.consumer_tag, False)
            channel.consumer_tag = None

    async def do_close_channel(self, which: int) -> None:
        channel = await self._consumer(which)
        if channel is not None:
            await channel.session.close_channel(channel)

    async def do_get(self, queue: str, count: int, no_ack: bool, how: str) -> None:
        session = await self._session()
        channel = await session.open_channel(confirms=True)
        channel.queue, channel.no_ack = queue, no_ack
        for _ in range(count):
            await channel.ask(("basic.get-ok", "basic.get-empty"), "basic.get", 0, queue, no_ack)
        for tag in list(channel.unacked):
            channel.settle(tag, how)
        if how == "ack":
            channel.prove(queue, self.ledger)
            await channel.confirmed()
        await session.close_channel(channel)

    async def do_feel(self) -> None:
        """Checks that a consumer with room gets what is ready. For times when nothing has happened for a while."""
        hungry = [one for one in self.consumers if one.is_hungry() and not self.ledger.takes_turns(one.queue)]
        if not hungry:
            return
        channel = await self._publisher()
        for consumer in hungry:
            channel.publish(consumer.queue, True, 0, self.ledger)
        await channel.confirmed()
        await asyncio.sleep(IDLE_S + 1)
        for consumer in hungry:
            channel = await self._publisher()
            passive = (0, consumer.queue, True, False, False, False, False, b"")
            try:
                answer = await channel.ask("queue.declare-ok", "queue.declare", *passive)
            except Closed:
                continue
            idle = self.loop.scheduler.now - consumer.busy_at > IDLE_S
            if answer.arguments[1] and idle and consumer.is_hungry():
                self.ledger.fail(
                    f"{answer.arguments[1]} messages wait in {consumer.queue}, and {consumer.stream} gets none, "
                    f"with {len(consumer.unacked)} in hand and a prefetch count of {consumer.prefetch}"
                )

    async def do_browse(self, queue: str, into: list[int]) -> None:
        """Gets everything in a queue and requeues it. For the end of a run."""
        session = await self._session()
        channel = await session.open_channel(confirms=False)
        channel.queue = queue
        while True:
            answer = await channel.ask(("basic.get-ok", "basic.get-empty"), "basic.get", 0, queue, False)
            if answer.name == "basic.get-empty":
                break
            into.append(channel.unacked[channel.last_tag].number)
        await session.close_channel(channel)

    async def do_drain(self, queue: str, into: list[int]) -> None:
        """Gets and acknowledges everything in a queue. For the end of a run."""
        session = await self._session()
        channel = await session.open_channel(confirms=True)
        channel.queue, channel.drained = queue, into
        session.styles[channel.number] = "ack"
        await channel.ask("basic.consume-ok", "basic.consume", 0, queue, "", False, False, False, False, b"")
        self.consumers.append(channel)
