"""What clients do in a run with `--special`, in addition to other runs: see `features.broker_features`."""

from __future__ import annotations

import asyncio
import struct
from typing import TYPE_CHECKING, Any, Final

from simulation.amqp.contents import Extras, entry
from simulation.checkers.broker_features_checker import ROLLED_BACK, Trade
from simulation.checkers.stream_checker import NAME
from simulation.clients.calls import Call, CallSession, TightSession
from simulation.clients.client import AMQP_PORT, CONNECT_S, CONSUMERS_MAX, Client
from simulation.clients.session import Channel, Closed, Lost, Session
from simulation.core.machine import WALL_MS
from simulation.features.broker_features import DELAYED_QUEUE, DELAYER

if TYPE_CHECKING:
    from simulation.checkers.broker_features_checker import BrokerFeaturesChecker
    from simulation.checkers.stream_checker import Reader

SCAN_PREFETCH: Final = 50
TELL_S: Final = 0.2  # A node tells the others at once, and what it has told is soon there unless the link is busy.


class BrokerFeaturesClient(Client):
    """A client that also uses streams, delays, transactions, direct replies and the vhost `tight`."""

    ledger: BrokerFeaturesChecker

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.places: dict[str, int] = {}  # How far this client has read each stream, to continue there.
        self.calls = 0
        self.crowd: list[TightSession] = []
        self.own: list[str] = []  # Queues in `tight`.
        self.named = 0

    # -- Streams -------------------------------------------------------------------------------------------------

    async def do_read(self, queue: str, start: str, value: int, prefetch: int, style: str) -> None:
        if start == "resume":
            start, value = "offset", self.places.get(queue, 0)
        if len(self.consumers) >= CONSUMERS_MAX:
            await self.do_close_channel(0)
        channel, reader = await self._open_reader(queue, start, value, prefetch)
        channel.session.styles[channel.number] = style
        await self._begin_reading(channel, reader, start, value)

    async def do_scan(self, queue: str, into: list[int]) -> None:
        """Reads a whole stream. For the end of a run."""
        channel, reader = await self._open_reader(queue, "first", 0, SCAN_PREFETCH)
        channel.drained = into
        channel.session.styles[channel.number] = "ack"
        await self._begin_reading(channel, reader, "first", 0)

    async def _open_reader(self, queue: str, start: str, value: int, prefetch: int) -> tuple[Channel, Reader]:
        session = await self._session()
        channel = await session.open_channel(confirms=True)
        channel.queue, channel.prefetch = queue, prefetch
        await channel.ask("basic.qos-ok", "basic.qos", 0, prefetch, False)
        now = self.loop.scheduler.now
        if start == "time":
            reader = self.ledger.streams.on_asked(channel.stream, queue, "time", float(int(now) - value))
        elif start == "interval":
            # It begins so long before the moment at which the stream's node gets the request: now, or later.
            reader = self.ledger.streams.on_asked(channel.stream, queue, "time", now - value)
        else:
            reader = self.ledger.streams.on_asked(channel.stream, queue, start, value)
        return channel, reader

    async def _begin_reading(self, channel: Channel, reader: Reader, start: str, value: int) -> None:
        if start == "time":
            table = bytes([len(NAME)]) + NAME.encode() + b"T" + struct.pack(">Q", WALL_MS // 1000 + int(reader.value))
        else:
            table = entry(NAME, {"offset": value, "interval": f"{value}s"}.get(start, start))
        consume = (0, channel.queue, "", False, False, False, False, table)
        self.consumers.append(channel)
        await channel.ask("basic.consume-ok", "basic.consume", *consume)
        reader.begun_at = self.loop.scheduler.now
        if start == "interval":
            reader.latest = reader.begun_at - value

    def note_places(self) -> None:
        """Records how far readers have come, for those who will continue there."""
        for channel in self.consumers:
            reader = self.ledger.streams.readers.get(channel.stream)
            if reader is not None and reader.last is not None:
                self.places[reader.stream] = reader.last + 1

    async def _connect(self, node: str) -> None:
        self.note_places()
        await super()._connect(node)

    async def do_close_channel(self, which: int) -> None:
        self.note_places()
        await super().do_close_channel(which)

    # -- Delays, deliveries that count ---------------------------------------------------------------------------

    async def do_delayer(self) -> None:
        """Declares the exchange that delays messages."""
        channel = await self._publisher()
        kind = entry("x-delayed-type", "direct")
        declare = (0, DELAYER, "x-delayed-message", False, True, False, False, False, kind)
        await channel.ask("exchange.declare-ok", "exchange.declare", *declare)
        bind = (0, DELAYED_QUEUE, DELAYER, DELAYED_QUEUE, False, b"")
        await channel.ask("queue.bind-ok", "queue.bind", *bind)

    async def do_drip(self, queue: str, count: int, padding: int, seconds: float) -> None:
        """Publishes messages one by one."""
        for _ in range(count):
            channel = await self._publisher()
            channel.publish(queue, True, padding, self.ledger)
            await channel.confirmed()
            await asyncio.sleep(seconds)

    async def do_delay(self, count: int, padding: int, persistent: bool, delay_ms: int, wait: bool) -> None:
        channel = await self._publisher()
        extras = Extras(via=DELAYER, delay_ms=delay_ms)
        for _ in range(count):
            channel.publish(DELAYED_QUEUE, persistent, padding, self.ledger, extras)
        if wait:
            await channel.confirmed()

    async def do_give_back(self, queue: str, count: int, times: int) -> None:
        """Takes messages and requeues them, and proves that the broker has received that."""
        session = await self._session()
        channel = await session.open_channel(confirms=True)
        channel.queue = queue
        for _ in range(times):
            for _ in range(count):
                await channel.ask(("basic.get-ok", "basic.get-empty"), "basic.get", 0, queue, False)
            for tag in list(channel.unacked):
                channel.settle(tag, "requeue")
            channel.prove(queue, self.ledger)
            await channel.confirmed()
        await session.close_channel(channel)

    # -- Transactions --------------------------------------------------------------------------------------------

    async def do_trade(self, queue: str, count: int, back: bool) -> None:
        """Takes messages from a queue, and publishes others to another one, in a transaction."""
        session = await self._session()
        channel = await session.open_channel(confirms=False)
        channel.queue = queue
        await channel.ask("tx.select-ok", "tx.select")
        for _ in range(count):
            await channel.ask(("basic.get-ok", "basic.get-empty"), "basic.get", 0, queue, False)
        trades = []
        for tag, delivery in list(channel.unacked.items()):
            taken = self.ledger.message_of(queue, delivery.number)
            assert taken is not None
            trades.append(Trade(taken, channel.publish(DELAYED_QUEUE, True, 0, self.ledger)))
            channel.send("basic.ack", tag, False)
        self.ledger.trades += trades
        if back:
            for trade in trades:
                trade.state = trade.put.state = ROLLED_BACK
            channel.unconfirmed.clear()
            await channel.ask("tx.rollback-ok", "tx.rollback")
            await channel.ask("tx.commit-ok", "tx.commit")  # An empty transaction.
        else:
            self.ledger.on_committing(trades)
            await channel.ask("tx.commit-ok", "tx.commit")
            self.ledger.on_committed(trades)
            if trades:
                channel.on_confirm(channel.published, True, "confirmed")
        await session.close_channel(channel)

    # -- Direct replies ------------------------------------------------------------------------------------------

    async def do_call(self, node: int, other: int, questions: int) -> None:
        self.calls += 1
        name = f"r-{self.name}-{self.calls}"
        asker = CallSession(f"{name}/asks", self.nodes[node], self.loop, self.ledger, self.rng)
        server = CallSession(f"{name}/answers", self.nodes[other], self.loop, self.ledger, self.rng)
        try:
            if await self._reach(asker) and await self._reach(server):
                self.ledger.answers += await Call(name, asker, server, self.ledger.fail).run(questions)
        finally:
            for session in (asker, server):
                if hasattr(session, "transport"):
                    session.drop()

    async def _reach(self, session: Session) -> bool:
        try:
            async with asyncio.timeout(CONNECT_S):
                await self.loop.create_connection(lambda: session, session.node, AMQP_PORT)
                await session.open
        except (TimeoutError, OSError, Lost):
            if hasattr(session, "transport"):
                session.drop()
            return False
        return True

    # -- Limits --------------------------------------------------------------------------------------------------

    async def _enter(self, node: int, vhost: str | None = None) -> TightSession | None:
        """Opens a connection to `tight`, if it is accepted."""
        self.sessions += 1
        name, more = f"{self.name}/{self.sessions}", () if vhost is None else (vhost,)
        session = TightSession(name, self.nodes[node % len(self.nodes)], self.loop, self.ledger, self.rng, *more)
        if await self._reach(session):
            return session
        if session.refused:
            self.ledger.limits.on_refused()
        return None

    async def do_crowd(self, node: int, count: int, seconds: float) -> None:
        for _ in range(count):
            session = await self._enter(node)
            if session is not None:
                self.crowd = [one for one in self.crowd if not one.lost]
                self.crowd.append(session)
                there = sum(one.node == session.node for one in self.crowd)
                self.ledger.limits.on_taken(session.node, there)
                self.loop.call_later(seconds, session.drop)

    async def do_settle_in(self, node: int, count: int, leave: bool) -> None:
        """Declares queues in `tight`, which allows a few, or deletes some. No name is used twice: a command whose
        answer was lost may still be carried out."""
        session = await self._enter(node)
        if session is None:
            return
        self.loop.call_later(CONNECT_S, session.drop)
        for _ in range(count):
            channel = await session.open_channel(confirms=False)
            self.named += 1
            queue, limits = f"t-{self.name}-{self.named}", self.ledger.limits
            try:
                if leave and self.own:
                    queue = self.own.pop()
                    limits.on_deleting(queue)
                    await channel.ask("queue.delete-ok", "queue.delete", 0, queue, False, False, False)
                else:
                    declare = (0, queue, False, True, False, False, False, b"")
                    await channel.ask("queue.declare-ok", "queue.declare", *declare)
                    limits.on_declared(queue, self.ledger.has_lost_disks)
                    self.own.append(queue)
            except Closed as closed:
                self.note(self.name, f"{queue} was refused: {closed}")
                limits.refused += "queue limit" in str(closed)

    async def do_fill_room(self, node: int, connections: int, channels: int, into: list[int]) -> None:
        """Counts how many connections one node accepts while the others refuse, and how many channels. For the end
        of a run."""
        taken: list[TightSession] = []
        await self._until_told()
        for where in (*[node] * (connections + 1), *range(len(self.nodes))):
            session = await self._enter(where)
            if session is not None:
                taken.append(session)
            await self._until_told()
        into.append(len(taken) if all(one.node == self.nodes[node] for one in taken) else -1)
        elsewhere = await self._enter(node + 1, "/")
        if elsewhere is not None:
            taken.append(elsewhere)
        into.append(await self._fill(taken, channels))
        for session in taken:
            session.drop()

    async def _fill(self, sessions: list[TightSession], channels: int) -> int:
        """Opens channels until one too many closes its connection."""
        for number in range(channels + 2):
            session = sessions[-1 - number % len(sessions)]
            try:
                await session.open_channel(confirms=False)
            except Lost:
                return number
            await self._until_told()
        return -1

    async def _until_told(self) -> None:
        """Waits until nodes have heard from each other how many connections and channels they have."""
        await asyncio.sleep(TELL_S)
        has_arrived = self.loop.network.arrival(self.nodes)
        while not has_arrived():  # It may take seconds: dead letters that a full queue refuses are sent ever again.
            await asyncio.sleep(TELL_S)
