"""A network of TCP connections in virtual time, as bad as a network can be.

A connection is two `Endpoint`s, each the asyncio transport of one side, and a `Pipe` in each direction. Written bytes
go into the unsent buffer; as many as the window allows are in flight, cut at random places; they arrive after a delay,
in order, and wait in the inbox until the reader wants them. This is TCP's back-pressure: a side that does not read
fills the window, then the writer's buffer, then `pause_writing` is called.

TCP neither loses nor duplicates nor reorders within a connection, and neither does this network. What a network may do
to a distributed program happens between connections: one is cut with bytes in flight and nobody knows how many of them
arrived; the next one overtakes what is still in the old one; the old one's bytes come late, after a heal, when both
ends have long continued. The two ends of a connection may disagree for a while on whether it still exists.

    cut(a, b)        nothing gets from a to b any more: bytes, ends and resets wait, until it is healed
    reset            both ends lose the connection, and what was in flight
    kill(place)      a process died: the kernel closes its connections, after sending what it had taken over
    off(place)       a machine died: silence. When it is back, it answers with resets to connections it does not know

An attempt to connect waits while there is no way there and back, or no machine. It is refused if there is no listener,
and also on a cut way, if what cuts it rejects connections (`is_rejecting`).
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from simulation.core.loop import NodeLoop, Scheduler

FIRST_FREE_PORT: Final = 40_000
HIGH_WATER: Final = 64 * 1024
CONNECT_S_MAX: Final = 127.0  # How long Linux waits for an answer to its SYNs.

CUTS_MAX: Final = 60  # For each connection and direction.

FIN: Final = "fin"
RST: Final = "rst"


class SimSocket:
    """The part of a socket that a protocol uses."""

    family = socket.AF_INET

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def setsockopt(self, level: int, option: int, value: object) -> None:
        """Ignored: delays and buffers belong to the network here."""


class SimServer(asyncio.AbstractServer):
    """A listener."""

    def __init__(
        self, network: Network, loop: NodeLoop, address: tuple[str, int], factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self.network = network
        self.loop = loop
        self.address = address
        self.factory = factory
        self.sockets: tuple[SimSocket, ...] = (SimSocket(address),)

    def close(self) -> None:
        if self.network.listeners.get(self.address) is self:
            del self.network.listeners[self.address]
        self.sockets = ()

    async def wait_closed(self) -> None:
        return None

    async def start_serving(self) -> None:
        return None

    async def serve_forever(self) -> None:
        raise NotImplementedError

    def is_serving(self) -> bool:
        return self.network.listeners.get(self.address) is self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop


class Endpoint(asyncio.Transport):
    """One end of a connection; the transport of a protocol."""

    def __init__(
        self, network: Network, loop: NodeLoop, protocol: Any, here: tuple[str, int], there: tuple[str, int]
    ) -> None:
        self.network = network
        self.loop = loop
        self.protocol = protocol
        self.here = here
        self.there = there
        self.peer: Endpoint  # Set when both exist.
        self.out: Pipe
        self.inbox: deque[tuple[float, bytes]] = deque()  # With the time at which it was written.
        self.inbox_bytes = 0
        self.ended: str | None = None  # FIN or RST has arrived, after what is in the inbox.
        self.reading = True
        self.delivering = False
        self.closing = False  # Closed by the protocol, or the connection is lost.
        self.closed = False  # The socket is closed.
        self.lost_told = False
        self.writing_paused = False
        self.high = HIGH_WATER
        self.low = HIGH_WATER // 4
        self.written_at = 0.0  # When the first of the bytes that are being received was written.

    # -- The transport's interface -------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.there
        if name == "sockname":
            return self.here
        if name == "socket":
            return SimSocket(self.here)
        return default

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.protocol  # type: ignore[no-any-return]

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closing or not self.loop.alive or not len(data):
            return
        if self.ended == RST:  # A side that does not read learns of it by writing.
            self.loop.call_soon(self._on_reset)
        self.out.write(bytes(data))
        self._check_high()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.high = HIGH_WATER if high is None else high
        self.low = self.high // 4 if low is None else low
        self._check_high()

    def get_write_buffer_size(self) -> int:
        return self.out.unsent_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self.low, self.high

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        if not self.reading:
            self.reading = True
            self._deliver_soon()

    def is_reading(self) -> bool:
        return self.reading and not self.closing

    def close(self) -> None:
        if not self.closing and self.loop.alive:
            self.closing = True
            if not self.out.unsent_bytes:
                self._close_socket(None)

    def abort(self) -> None:
        if not self.closed and self.loop.alive:
            self.closing = True
            self.out.forget_unsent()
            self._close_socket(None)

    # -- Events --------------------------------------------------------------------------------------------------

    def on_arrived(self, written_at: float, data: bytes) -> None:
        if self.closed:
            self.network.answer_with_reset(self)
            return
        self.inbox.append((written_at, data))
        self.inbox_bytes += len(data)
        self._deliver_soon()

    def on_ended(self, how: str) -> None:
        if not self.closed and self.ended != RST:
            self.ended = how
            self._deliver_soon()

    def _deliver_soon(self) -> None:
        if self.reading and not self.closing and not self.delivering and (self.inbox or self.ended):
            self.delivering = True
            self.loop.call_soon(self._deliver)
        elif self.ended == RST and self.closing and not self.closed:
            self.loop.call_soon(self._on_reset)

    def _deliver(self) -> None:
        self.delivering = False
        if self.closed:
            return
        if self.ended == RST and (not self.reading or self.closing or self.network.rng.random() < 0.5):
            self._on_reset()
        elif not self.reading or self.closing:
            return
        elif self.inbox:
            data = self._take()
            self.protocol.data_received(data)
            self.peer.out.on_room(len(data))
            self._deliver_soon()
        elif self.ended == RST:
            self._on_reset()
        elif self.ended == FIN:
            if not self.protocol.eof_received():
                self.close()

    def _take(self) -> bytes:
        """Returns everything that has arrived, or sometimes only one packet; each packet by itself, if the protocol
        looks at times."""
        inbox = self.inbox
        if len(inbox) == 1 or self.loop.dates or self.network.rng.random() < 0.25:
            self.written_at, data = inbox.popleft()
        else:
            self.written_at = inbox[0][0]
            data = b"".join([piece for _, piece in inbox])
            inbox.clear()
        self.inbox_bytes -= len(data)
        return data

    def _on_reset(self) -> None:
        self.delivering = False
        if not self.closed:
            self.out.forget_unsent()
            self._close_socket(ConnectionResetError(104, "Connection reset by peer"))

    def on_sent(self) -> None:
        """The unsent buffer has shrunk."""
        if self.writing_paused and self.out.unsent_bytes <= self.low:
            self.writing_paused = False
            self.loop.call_soon(self._resume_writing)
        if self.closing and not self.closed and not self.out.unsent_bytes:
            self._close_socket(None)

    def _resume_writing(self) -> None:
        if not self.closed:
            self.protocol.resume_writing()

    def _check_high(self) -> None:
        if not self.writing_paused and self.out.unsent_bytes > self.high:
            self.writing_paused = True
            self.protocol.pause_writing()

    def _close_socket(self, error: Exception | None) -> None:
        self.closing = self.closed = True
        self.network.forget(self)
        if error is None:
            self.out.end(RST if self.inbox else FIN)
        self.inbox.clear()
        self.inbox_bytes = 0
        self.loop.call_soon(self._tell_lost, error)

    def _tell_lost(self, error: Exception | None) -> None:
        if not self.lost_told:
            self.lost_told = True
            self.protocol.connection_lost(error)

    def vanish(self, silently: bool) -> None:
        """The process is dead. Its kernel tells the other end, unless the machine is dead, too."""
        if self.closed:
            return
        self.closing = self.closed = True
        self.network.forget(self)
        self.out.forget_unsent()
        if silently:
            self.out.dead = True
        else:
            self.out.end(RST if self.inbox or self.network.rng.random() < 0.3 else FIN)
        self.inbox.clear()


class Pipe:
    """One direction of a connection."""

    def __init__(self, network: Network, source: Endpoint, target: Endpoint) -> None:
        rng = network.rng
        self.network = network
        self.source = source
        self.target = target
        self.window = rng.choice((2_000, 16_384, 65_536, 65_536, 1 << 20))
        self.cut_rate = rng.choice((0.0, 0.02, 0.1, 0.5))  # How often a write arrives in pieces.
        self.cuts_left = CUTS_MAX  # How many such pieces are left, to bound the work.
        self.unsent: deque[tuple[float, bytes]] = deque()
        self.unsent_bytes = 0
        self.written = 0  # Bytes, from the beginning.
        self.under_way = 0  # Bytes that were sent, and not read yet.
        self.arrives_at = 0.0
        self.stalled: deque[tuple[float, bytes | str]] = deque()
        self.ended = False
        self.dead = False  # The machine that sent it is off: what was in flight is lost.

    @property
    def way(self) -> tuple[str, str]:
        return self.source.loop.place, self.target.loop.place

    @property
    def read(self) -> int:
        """Returns how many of the bytes that were written the reader has taken."""
        return self.written - self.unsent_bytes - self.under_way

    def write(self, data: bytes) -> None:
        self.unsent.append((self.network.scheduler.now, data))
        self.unsent_bytes += len(data)
        self.written += len(data)
        self._send()

    def forget_unsent(self) -> None:
        self.unsent.clear()
        self.unsent_bytes = 0

    def end(self, how: str) -> None:
        if not self.ended:
            self.ended = True
            self._dispatch(self.network.scheduler.now, how)

    def on_room(self, taken: int) -> None:
        """The reader has taken that many bytes."""
        self.under_way -= taken
        if self.unsent and not self.ended:
            before = self.unsent_bytes
            self._send()
            if self.unsent_bytes < before:
                self.source.on_sent()

    def _send(self) -> None:
        rng = self.network.rng
        while self.unsent and self.under_way < self.window:
            written_at, data = self.unsent.popleft()
            limit = min(len(data), self.window - self.under_way)
            if limit > 1 and self.cuts_left and rng.random() < self.cut_rate:
                self.cuts_left -= 1
                limit = 1 + int(rng.random() * min(limit, 64 if rng.random() < 0.5 else limit))
            if limit < len(data):
                self.unsent.appendleft((written_at, data[limit:]))
                data = data[:limit]
            self.unsent_bytes -= len(data)
            self.under_way += len(data)
            self._dispatch(written_at, data)

    def _dispatch(self, written_at: float, what: bytes | str) -> None:
        network = self.network
        arrives_at = network.scheduler.now + network.delay(*self.way)
        self.arrives_at = max(arrives_at, self.arrives_at)
        network.scheduler.at(self.arrives_at, self._arrive, written_at, what)

    def _arrive(self, written_at: float, what: bytes | str) -> None:
        if self.dead:
            return
        if self.stalled or self.network.is_cut(*self.way):
            self.stalled.append((written_at, what))
            self.network.stalled[self] = None
            return
        self._hand_over(written_at, what)

    def _hand_over(self, written_at: float, what: bytes | str) -> None:
        target = self.target
        if not target.loop.alive and target.loop.place in self.network.off:
            self.network.lost_to[self] = None  # It is sent again and again, until the machine is back.
        elif isinstance(what, bytes):
            target.on_arrived(written_at, what)
        else:
            target.on_ended(what)

    def go_on(self) -> None:
        """The way is open again: what waits arrives after one more delay, and what is in flight after it."""
        self.network.scheduler.after(self.network.delay(*self.way), self._release)

    def _release(self) -> None:
        if self.network.is_cut(*self.way):
            self.network.stalled[self] = None
            return
        waiting, self.stalled = self.stalled, deque()
        for written_at, what in () if self.dead else waiting:
            self._hand_over(written_at, what)


class Network:
    """All hosts, and the connections between them."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.listeners: dict[tuple[str, int], SimServer] = {}
        self.endpoints: dict[Endpoint, None] = {}  # Those with an open socket.
        self.off: set[str] = set()  # Places whose machine is off.
        self.cuts: set[tuple[str, str]] = set()
        self.is_rejecting = False  # A cut way refuses connections in the name of the other end.
        self.stalled: dict[Pipe, None] = {}
        self.lost_to: dict[Pipe, None] = {}
        self.slow: dict[tuple[str, str], float] = {}  # By how much a way is slower than usual.
        self.delay_s = rng.choice((0.000_2, 0.000_2, 0.001, 0.005, 0.02))
        self._ports = FIRST_FREE_PORT
        self._waiting: list[Callable[[], None]] = []  # Attempts to connect that have no way.

    # -- Ways ----------------------------------------------------------------------------------------------------

    def delay(self, a: str, b: str) -> float:
        if a == b:
            return 0.000_02
        usual = self.delay_s * (0.5 + self.rng.random() + (4 * self.rng.random() if self.rng.random() < 0.05 else 0))
        return usual * self.slow.get((a, b), 1.0)

    def is_cut(self, a: str, b: str) -> bool:
        return (a, b) in self.cuts

    def cut(self, a: str, b: str) -> None:
        self.cuts.add((a, b))

    def heal(self) -> None:
        """Opens all ways again, at normal speed."""
        self.cuts.clear()
        self.slow.clear()
        stalled, self.stalled = self.stalled, {}
        for pipe in stalled:
            pipe.go_on()
        self._try_again()

    def mend(self, ways: Iterable[tuple[str, str]]) -> None:
        """Opens these ways again."""
        self.cuts.difference_update(ways)
        for pipe in [pipe for pipe in self.stalled if not self.is_cut(*pipe.way)]:
            del self.stalled[pipe]
            pipe.go_on()
        self._try_again()

    def arrival(self, places: Collection[str]) -> Callable[[], bool]:
        """Returns a function that tells whether these places have read all that they have written to each other until
        now, as far as the connections are still there."""
        pipes = [one.out for one in self.endpoints if all(place in places for place in one.out.way)]
        marks = [(pipe, pipe.written) for pipe in pipes]
        return lambda: all(pipe.read >= mark for pipe, mark in marks if pipe.source in self.endpoints)

    def _try_again(self) -> None:
        waiting, self._waiting = self._waiting, []
        for attempt in waiting:
            self.scheduler.after(self.rng.random(), attempt)

    # -- Connections ---------------------------------------------------------------------------------------------

    def listen(self, loop: NodeLoop, factory: Callable[[], asyncio.BaseProtocol], port: int) -> SimServer:
        if not port:
            port = self._next_port()
        address = (loop.place, port)
        if address in self.listeners:
            raise OSError(98, "Address already in use")
        server = self.listeners[address] = SimServer(self, loop, address, factory)
        return server

    def _next_port(self) -> int:
        self._ports += 1
        return self._ports

    async def connect(
        self, loop: NodeLoop, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[Endpoint, asyncio.BaseProtocol]:
        answer: asyncio.Future[Endpoint] = loop.create_future()
        began = self.scheduler.now

        def attempt() -> None:
            if answer.done() or not loop.alive:
                return
            if self.scheduler.now - began > CONNECT_S_MAX:
                answer.set_exception(TimeoutError(110, "Connection timed out"))
            elif self.is_rejecting and self.is_cut(loop.place, host):
                self._refuse(answer)
            elif self.is_cut(loop.place, host) or self.is_cut(host, loop.place) or host in self.off:
                self._waiting.append(attempt)
            else:
                self._accept(loop, factory, (host, port), answer)

        self.scheduler.after(self.delay(loop.place, host), attempt)
        self.scheduler.after(CONNECT_S_MAX + 1, attempt)
        endpoint = await answer
        return endpoint, endpoint.protocol

    def _accept(
        self,
        loop: NodeLoop,
        factory: Callable[[], asyncio.BaseProtocol],
        address: tuple[str, int],
        answer: asyncio.Future[Endpoint],
    ) -> None:
        server = self.listeners.get(address)
        if server is None or not server.loop.alive:
            self.scheduler.after(self.delay(address[0], loop.place), self._refuse, answer)
            return
        here = (loop.place, self._next_port())
        caller = Endpoint(self, loop, factory(), here, address)
        callee = Endpoint(self, server.loop, server.factory(), address, here)
        caller.peer, callee.peer = callee, caller
        caller.out, callee.out = Pipe(self, caller, callee), Pipe(self, callee, caller)
        self.endpoints[caller] = self.endpoints[callee] = None
        callee.loop.call_soon(callee.protocol.connection_made, callee)
        self.scheduler.after(self.delay(address[0], loop.place), self._connected, caller, answer)

    @staticmethod
    def _refuse(answer: asyncio.Future[Endpoint]) -> None:
        if not answer.done() and answer.get_loop().is_running():
            answer.set_exception(ConnectionRefusedError(111, "Connection refused"))

    @staticmethod
    def _connected(caller: Endpoint, answer: asyncio.Future[Endpoint]) -> None:
        if not caller.loop.alive or caller.closed:
            return
        if answer.done():  # Given up meanwhile.
            caller.closing = caller.closed = caller.lost_told = True
            caller.network.forget(caller)
            caller.out.end(FIN)
            return

        def made() -> None:
            caller.protocol.connection_made(caller)
            if not answer.done():
                answer.set_result(caller)

        caller.loop.call_soon(made)

    def forget(self, endpoint: Endpoint) -> None:
        self.endpoints.pop(endpoint, None)

    def answer_with_reset(self, closed: Endpoint) -> None:
        """Bytes arrived for a closed socket."""
        if not closed.peer.closed:
            self.scheduler.after(self.delay(closed.loop.place, closed.there[0]), self._reset, closed)

    def _reset(self, gone: Endpoint) -> None:
        if gone.out.stalled or self.is_cut(*gone.out.way):
            gone.out.stalled.append((self.scheduler.now, RST))
            self.stalled[gone.out] = None
        else:
            gone.peer.on_ended(RST)

    # -- Faults --------------------------------------------------------------------------------------------------

    def kill(self, loop: NodeLoop) -> None:
        """A process died."""
        self._vanish(loop, silently=False)

    def turn_off(self, loop: NodeLoop) -> None:
        """A machine died."""
        self.off.add(loop.place)
        self._vanish(loop, silently=True)

    def _vanish(self, loop: NodeLoop, silently: bool) -> None:
        for server in [server for server in self.listeners.values() if server.loop is loop]:
            server.close()
        for endpoint in [endpoint for endpoint in self.endpoints if endpoint.loop is loop]:
            endpoint.vanish(silently)

    def turn_on(self, place: str) -> None:
        """The machine is back, without any connections."""
        if place not in self.off:
            return
        self.off.discard(place)
        for pipe in [pipe for pipe in self.lost_to if pipe.target.loop.place == place]:
            del self.lost_to[pipe]
            self.scheduler.after(self.rng.random() * 2, pipe.source.on_ended, RST)
        self._try_again()

    def reset(self, endpoint: Endpoint) -> None:
        """Loses a connection in the middle, with what is in flight."""
        for end in (endpoint, endpoint.peer):
            end.out.dead = True
            self.scheduler.after(self.rng.random() * self.delay_s, end.on_ended, RST)
