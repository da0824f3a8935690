"""An HTTP/1.1 server on asyncio's protocols; h11 knows the protocol, this knows sockets and limits.

One request of a connection is dealt with at a time. What a client sends ahead waits in h11, and beyond some kilobytes
it is not read: TCP holds such a client back. Whatever a client can make grow or last has a limit (`Limits`):

- *the head* of a request, in bytes (431); its *body* (413). Who asks is checked by the head alone (`Service.admit`), so
  that nobody has a body taken in who may not even ask; it also says how large the body may be, for most requests say
  little.
- *the bodies* of all requests that are under way, in bytes (503). Small ones do not suffer by it: what counts is what a
  body has beyond `small_bytes`.
- *the time* from a request's first byte, or from the connection, to its last byte, however steadily bytes trickle in
  (408); the time between two requests; the time in which nothing of an answer is taken.
- *connections*, of all clients. A newcomer takes the place of one that never said who it is, or else of one that asks
  for nothing, the oldest of the address that has most of them (`Unauthenticated`); 503 if all places are taken by
  requests of users.

An answer is written as far as the client takes it: `pause_writing` stops it, and what is iterated over is not asked for
more meanwhile. A handler is cancelled when its client goes. One that closes its own half of the connection counts as
gone: that is how the end of a client's process looks, and nobody is to go on for its sake.

Who is refused before all that it sends was read gets the answer and the end of our half, and is read from, in vain, for
a moment more: if the socket were closed with something unread in it, the client would be told of a reset instead.

A fault of ours in a handler costs that request: it is logged, and answered with 500.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Protocol, cast
from urllib.parse import parse_qsl

import h11

from leveret.base.hosts import is_loopback
from leveret.management.http.http_messages import NO_SNIFFING, Buffer, Problem, Request, Response
from leveret.node.sockets.unauthenticated import Unauthenticated
from leveret.node.system.writing import write_all

logger = logging.getLogger("leveret.management")

UNSENT_BYTES_HIGH: Final = 1 << 20
PIECE_BYTES: Final = 1 << 20  # Written before it is looked whether the client takes it.
AMQP_PREFIX: Final = b"AMQP"  # Of what an AMQP client sends first.
AHEAD_BYTES_MAX: Final = 64 << 10
LINGER_S: Final = 1.0
LENGTH_DIGITS_MAX: Final = 20
QUERY_FIELDS_MAX: Final = 1_000
SERVER: Final = b"leveret"
REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Limits:
    head_bytes: int = 16 << 10
    body_bytes: int = 10 << 20
    bodies_bytes: int = 64 << 20  # Bodies of all requests that are under way, together.
    small_bytes: int = 64 << 10  # Of each body, so many bytes are not counted in that.
    request_s: float = 30.0
    idle_s: float = 60.0
    send_s: float = 60.0
    connections: int = 1_024


class Service(Protocol):
    """Answers requests; the server knows nothing else of what it serves."""

    def admit(self, request: Request) -> Response | None:
        """By its head: an answer that needs no body to be read, or None. Must not wait. Sets `body_bytes_max`."""

    async def handle(self, request: Request) -> Response:
        """The answer. Raises Problem."""


class HttpServer:
    """All connections of one door."""

    def __init__(self, loop: asyncio.AbstractEventLoop, service: Service, limits: Limits) -> None:
        self.loop = loop
        self.service = service
        self.limits = limits
        self.connections: dict[HttpConnection, None] = {}
        self.held_bytes = 0  # Of bodies.
        # Connections without a request of a user so far.
        self.unauthenticated: Unauthenticated[HttpConnection] = Unauthenticated()
        # Connections of users that ask for nothing now.
        self.resting: Unauthenticated[HttpConnection] = Unauthenticated()

    def make_room(self) -> bool:
        """For one connection; False if there is none."""
        connection = self.unauthenticated.evict() or self.resting.evict()
        if connection is None:
            return False
        del self.connections[connection]  # Not only when its socket is closed: the next one may be here before.
        connection.abort()
        count = self.unauthenticated.to_tell(self.loop.time()) + self.resting.to_tell(self.loop.time())
        if count:
            logger.warning("%d connections without a request were closed to make room for others", count)
        return True

    def accept(self) -> HttpConnection:
        return HttpConnection(self)

    async def close(self, seconds: float) -> None:
        """Close all connections: those that wait for an answer within that time, the others at once."""
        tasks = []
        for connection in list(self.connections):
            connection.finish()
            if connection.task is not None:
                tasks.append(connection.task)
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        for connection in list(self.connections):
            connection.abort()


class HttpConnection(asyncio.Protocol):
    """One client's connection."""

    __slots__ = (
        "ahead", "body", "body_bytes_max", "drained", "h11", "head", "held_bytes", "is_last", "is_reading", "received",
        "refusal", "server", "task", "timer", "transport",
    )  # fmt: skip

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=server.limits.head_bytes)
        self.head: Request | None = None  # Of the request that is being received.
        self.body: list[bytes] = []
        self.body_bytes_max = 0  # That this request may have.
        self.received = 0  # Bytes of the body.
        self.held_bytes = 0  # Of them, what counts for all bodies, until the request is answered.
        self.ahead = 0  # Bytes that came while a request was being answered.
        self.task: asyncio.Task[None] | None = None  # Answers the request that was received.
        self.timer: asyncio.TimerHandle | None = None
        self.drained: asyncio.Future[None] | None = None  # While the client does not take what is sent.
        self.is_last = False  # The connection ends with the answer that is under way.
        self.is_reading = True
        self.refusal: Response | None = None  # The answer to a request that was not admitted.

    # -- The transport's calls -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=UNSENT_BYTES_HIGH)
        server = self.server
        is_full = len(server.connections) >= server.limits.connections and not server.make_room()
        server.connections[self] = None
        server.unauthenticated.add(self, self._peer()[0])
        self._arm(server.limits.request_s, self._on_late)
        if is_full:
            most = server.limits.connections
            logger.warning("refused a connection from %s: there are %d already", self._peer()[0], most)
            self.is_last = True
            self._answer_now(Problem(503, "service_unavailable", "too many connections").response())

    def data_received(self, data: bytes) -> None:
        if self.is_last:
            return  # It has been refused, or asks more than it said.
        if self.task is not None:
            self.ahead += len(data)
        if self.h11.their_state is h11.IDLE and not self.h11.trailing_data[0]:
            self._arm(self.server.limits.request_s, self._on_late)
            if data.startswith(AMQP_PREFIX):
                # There would be no end of a line to wait for, and the client waits for an answer.
                self.is_last = True
                self._answer_now(Problem(400, "bad_request", "this port speaks HTTP, not AMQP").response())
                return
        self.h11.receive_data(data)
        self._advance()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.server.connections.pop(self, None)
        self._let_go()
        self.server.unauthenticated.discard(self)
        self.server.resting.discard(self)
        self._disarm()
        if self.drained is not None and not self.drained.done():
            self.drained.set_exception(ConnectionResetError("the client has gone"))
        if self.task is not None:
            self.task.cancel()

    def pause_writing(self) -> None:
        if self.drained is None:
            self.drained = self.server.loop.create_future()

    def resume_writing(self) -> None:
        drained, self.drained = self.drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    # -- Requests ------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Take in what has come, up to the end of one request."""
        try:
            while self.task is None and not self.transport.is_closing():
                event = self.h11.next_event()
                if event is h11.NEED_DATA:
                    if self.h11.they_are_waiting_for_100_continue:
                        self._send(h11.InformationalResponse(status_code=100, headers=[]))
                    break
                if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                    self.transport.close()
                    break
                self._on_event(event)
        except h11.RemoteProtocolError as error:
            self.is_last = True
            problem = Problem(error.error_status_hint, "bad_request", str(error))
            self._answer_now(problem.response())
        self._read(self.task is None or self.ahead < AHEAD_BYTES_MAX)

    def _on_event(self, event: object) -> None:
        if isinstance(event, h11.Request):
            self._on_head(event)
        elif isinstance(event, h11.Data):
            self._on_data(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            request = self.head
            assert request is not None
            request.body = b"".join(self.body)
            self.head, self.body, self.received = None, [], 0
            self.server.resting.discard(self)
            self._disarm()
            self.task = self.server.loop.create_task(self._answer(request, self.refusal))
            self.refusal = None

    def _on_data(self, data: bytes) -> None:
        server = self.server
        self.received += len(data)
        counted = min(len(data), max(0, self.received - server.limits.small_bytes))
        self.held_bytes += counted
        server.held_bytes += counted
        if self.received > self.body_bytes_max:
            self._refuse_body()
        elif counted and server.held_bytes > server.limits.bodies_bytes:
            self.is_last = True
            logger.warning(
                "refused a request from %s: the bodies of all requests have %d bytes already",
                self._peer()[0],
                server.held_bytes,
            )
            self._answer_now(Problem(503, "service_unavailable", "too many large requests at once").response())
        else:
            self.body.append(data)

    def _let_go(self) -> None:
        """The body of the request is no longer needed."""
        self.server.held_bytes -= self.held_bytes
        self.held_bytes = 0

    def _on_head(self, event: h11.Request) -> None:
        target = event.target.decode("ascii", "replace")
        path, _, query = target.partition("?")
        host, is_loopback = self._peer()
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        try:
            fields = parse_qsl(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
        except ValueError as error:
            raise h11.RemoteProtocolError(f"the query is bad: {error}") from None
        is_tls = self.transport.get_extra_info("ssl_object") is not None
        request = Request(event.method.decode("ascii"), path, fields, headers, host, is_loopback, is_tls)
        self.refusal = self.server.service.admit(request)
        if request.user:
            self.server.unauthenticated.discard(self)
        length = headers.get("content-length", "0")
        if self.refusal is not None and (length != "0" or "transfer-encoding" in headers):
            self.is_last = True  # Rather than to read what nobody wants.
            self._answer_now(self.refusal)
            return
        most = self.server.limits.body_bytes
        self.body_bytes_max = most if request.body_bytes_max is None else min(most, request.body_bytes_max)
        if length.isdecimal() and (len(length) > LENGTH_DIGITS_MAX or int(length) > self.body_bytes_max):
            self._refuse_body()
            return
        self.head = request

    def _refuse_body(self) -> None:
        self.is_last = True
        reason = f"the body has more than {self.body_bytes_max} bytes"
        self._answer_now(Problem(413, "request_entity_too_large", reason).response())

    def _peer(self) -> tuple[str, bool]:
        host = (self.transport.get_extra_info("peername") or ("",))[0]
        return host, is_loopback(host)

    # -- Answers -------------------------------------------------------------------------------------------------

    def _answer_now(self, response: Response) -> None:
        """Without asking anybody."""
        self.head, self.body, self.received = None, [], 0
        self._let_go()
        self.task = self.server.loop.create_task(self._respond(response, is_head=False))

    async def _answer(self, request: Request, refusal: Response | None) -> None:
        try:
            response = refusal or await self.server.service.handle(request)
        except Problem as problem:
            response = problem.response()
        except Exception:  # Costs this request only, and is seen.
            logger.exception("%s %s: internal error", request.method, request.path)
            response = Problem(500, "internal_error", "see the log of the node").response()
        await self._respond(response, is_head=request.method == "HEAD")

    async def _respond(self, response: Response, is_head: bool) -> None:
        try:
            if response.late_s:
                await asyncio.sleep(response.late_s)
            async with asyncio.timeout(None) as patience:
                await self._write(response, is_head, patience)
        except (ConnectionError, TimeoutError, h11.LocalProtocolError) as error:
            logger.debug("an answer could not be sent to %s: %s", self._peer()[0], error)
            self.transport.abort()
        except Exception:  # Too late for another answer: that this one is not whole is all the client can be told.
            logger.exception("an answer to %s ended in the middle: internal error", self._peer()[0])
            self.transport.abort()
        finally:
            self.task = None
            self._let_go()
            if response.on_sent is not None:
                response.on_sent()
        self._go_on()

    async def _write(self, response: Response, is_head: bool, patience: asyncio.Timeout) -> None:
        body = response.body
        headers = [
            (b"server", SERVER),
            (b"cache-control", response.caching.encode("ascii")),
            (b"content-type", response.type.encode("latin-1")),
            *((name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers),
        ]
        if NO_SNIFFING not in response.headers:
            headers.append((b"x-content-type-options", b"nosniff"))
        if isinstance(body, bytes):
            body = [body]
        if isinstance(body, list) and response.status != 204:
            headers.append((b"content-length", b"%d" % sum(map(len, body))))
        if self.is_last or response.close:
            headers.append((b"connection", b"close"))
        self._send(h11.Response(status_code=response.status, headers=headers, reason=REASONS.get(response.status, b"")))
        if isinstance(body, list):
            await self._send_pieces([] if is_head else body, patience)
        elif not is_head:
            async for piece in body:
                await self._send_pieces([piece], patience)
        self._send(h11.EndOfMessage())

    async def _send_pieces(self, pieces: Sequence[Buffer], patience: asyncio.Timeout) -> None:
        gathered: list[Buffer] = []
        size = 0
        for piece in pieces:
            for at in range(0, len(piece), PIECE_BYTES):
                part = piece if len(piece) <= PIECE_BYTES else memoryview(piece)[at : at + PIECE_BYTES]
                gathered += self.h11.send_with_data_passthrough(h11.Data(data=part)) or ()  # type: ignore[arg-type]
                size += len(part)
                if size >= PIECE_BYTES:
                    write_all(self.transport, gathered)
                    gathered, size = [], 0
                    await self._drain(patience)
        if gathered:
            write_all(self.transport, gathered)
            await self._drain(patience)

    async def _drain(self, patience: asyncio.Timeout) -> None:
        if self.transport.is_closing():
            raise ConnectionResetError("the client has gone")
        if self.drained is not None:
            patience.reschedule(self.server.loop.time() + self.server.limits.send_s)
            await self.drained
            patience.reschedule(None)

    def _send(self, event: h11.Event) -> None:
        data = self.h11.send(event)
        if data:
            self.transport.write(data)

    def _go_on(self) -> None:
        """After an answer."""
        if self.transport.is_closing():
            return
        if self.is_last or self.h11.our_state is not h11.DONE or self.h11.their_state is not h11.DONE:
            self._part()
            return
        self.h11.start_next_cycle()
        self.ahead = 0
        if self not in self.server.unauthenticated:
            self.server.resting.add(self, self._peer()[0])
        waits = self.h11.trailing_data[0]
        self._arm(self.server.limits.request_s if waits else self.server.limits.idle_s, self._on_late)
        self._advance()

    # -- Time, and the end ---------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The server closes: no other request is taken."""
        self.is_last = True
        if self.task is None:
            self.transport.close()

    def _part(self) -> None:
        """Nothing more will be said."""
        self.is_last = True
        self._disarm()
        if self.h11.their_state is h11.DONE or not self.transport.can_write_eof():
            self.transport.close()
        else:
            self.transport.write_eof()
            self._read(True)
            self._arm(LINGER_S, self.transport.close)

    def abort(self) -> None:
        self.transport.abort()

    def _read(self, wanted: bool) -> None:
        if wanted != self.is_reading and not self.transport.is_closing():
            self.is_reading = wanted
            if wanted:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def _arm(self, seconds: float, then: Callable[[], None]) -> None:
        self._disarm()
        self.timer = self.server.loop.call_later(seconds, then)

    def _disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _on_late(self) -> None:
        if self.task is not None:
            return
        self.is_last = True
        if self.h11.their_state is h11.IDLE and not self.h11.trailing_data[0]:
            self.transport.close()  # Nothing was asked.
        else:
            self._answer_now(Problem(408, "request_timeout", "the request was not complete in time").response())
