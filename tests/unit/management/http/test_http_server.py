"""The HTTP server by itself, at a real socket: good clients, bad ones, slow ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from leveret.management.http.http_messages import Problem, Request, Response, json_response
from leveret.management.http.http_server import HttpServer, Limits

QUICK = Limits(head_bytes=1000, body_bytes=1000, request_s=0.1, idle_s=0.1, send_s=0.2, connections=4)


class Echo:
    """Answers what it was asked, or what its path says."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.given = 0
        self.sent = 0

    def admit(self, request: Request) -> Response | None:
        if request.headers.get("authorization"):
            request.user = "somebody"
        return Problem(401, "not_authorized", "Login failed").response() if request.path == "/closed" else None

    async def handle(self, request: Request) -> Response:
        match request.path:
            case "/fault":
                raise RuntimeError("a fault of ours")
            case "/problem":
                raise Problem(404, "Object Not Found", "Not Found")
            case "/slow":
                self.begun.set()
                try:
                    await self.gate.wait()
                except asyncio.CancelledError:
                    self.cancelled.set()
                    raise
            case "/stream":
                return Response(body=self.pieces(), on_sent=self.on_sent)
            case "/broken":
                return Response(body=self.broken(), on_sent=self.on_sent)
            case "/large":
                return Response(body=[b"x" * (1 << 20)] * 64, on_sent=self.on_sent)
        return json_response({"method": request.method, "path": request.path, "body": request.body.decode()})

    async def pieces(self) -> AsyncIterator[bytes]:
        for _ in range(64):
            self.given += 1
            yield b"y" * (1 << 20)

    async def broken(self) -> AsyncIterator[bytes]:
        yield b"so far so good"
        raise RuntimeError("a fault of ours")

    def on_sent(self) -> None:
        self.sent += 1


class Door:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.echo = Echo()

    async def __aenter__(self) -> Door:
        loop = asyncio.get_running_loop()
        self.http = HttpServer(loop, self.echo, self.limits)
        self.server = await loop.create_server(self.http.accept, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self.server.close()
        await self.http.close(0.1)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def say(self, data: bytes) -> bytes:
        """Everything that is answered until the connection ends."""
        reader, writer = await self.connect()
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            return await asyncio.wait_for(reader.read(), 60)
        return b""


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)).decode()
    first, *lines = head.strip().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(first.split()[1]), headers, body


async def test_an_amqp_client_is_told_at_once() -> None:
    async with Door(Limits(request_s=600.0)) as door:
        said = await door.say(b"AMQP\0\0\x09\x01")
        assert said.startswith(b"HTTP/1.1 400 ") and b"this port speaks HTTP, not AMQP" in said


async def test_one_connection_many_requests() -> None:
    async with Door(Limits()) as door:
        reader, writer = await door.connect()
        for number in range(3):
            writer.write(b"GET /%d HTTP/1.1\r\nHost: h\r\n\r\n" % number)
            status, headers, body = await answer(reader)
            assert (status, headers["content-type"]) == (200, "application/json")
            assert body == b'{"method":"GET","path":"/%d","body":""}' % number
        writer.close()


async def test_requests_sent_ahead_are_answered_in_their_order() -> None:
    async with Door(Limits()) as door:
        reader, writer = await door.connect()
        post = b"POST /p HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n"
        writer.write(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" + post + b"GET /b HTTP/1.1\r\nHost: h\r\n\r\n")
        bodies = [(await answer(reader))[2] for _ in range(3)]
        assert [body.decode() for body in bodies] == [
            '{"method":"GET","path":"/a","body":""}',
            '{"method":"POST","path":"/p","body":"abc"}',
            '{"method":"GET","path":"/b","body":""}',
        ]
        writer.close()


async def test_a_client_that_waits_to_be_told_to_go_on() -> None:
    async with Door(Limits()) as door:
        reader, writer = await door.connect()
        writer.write(b"PUT /x HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        writer.write(b"hi")
        assert b'"body":"hi"' in (await answer(reader))[2]
        writer.close()


async def test_head_has_no_body() -> None:
    async with Door(Limits()) as door:
        said = await door.say(b"HEAD /x HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"content-length: 39" in said
        assert said.endswith(b"\r\n\r\n")


async def test_http_1_0_is_answered_and_closed() -> None:
    async with Door(Limits()) as door:
        assert b"HTTP/1.1 200" in await door.say(b"GET /x HTTP/1.0\r\n\r\n")


@pytest.mark.parametrize(
    ("garbage", "status"),
    [
        (b"AMQP\x00\x00\x09\x01\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),  # No host.
        (b"GET /\x00 HTTP/1.1\r\nHost: h\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: h\r\nbad header\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET /?" + b"&".join([b"a=1"] * 200) + b" HTTP/1.1\r\nHost: h\r\nX: " + b"y" * 2000, b"431"),
        (b"GET /" + b"a" * 5000, b"431"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1001\r\n\r\n", b"413"),
        (b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n" + b"z" * 1000 + b"\r\n1\r\nz",
         b"413"),
        (b"\r\n\r\n", b"400"),
    ],
)  # fmt: skip
async def test_what_is_no_request_is_refused(garbage: bytes, status: bytes) -> None:
    async with Door(Limits(head_bytes=1000, body_bytes=1000)) as door:
        said = await door.say(garbage)
        assert said.startswith(b"HTTP/1.1 " + status + b" "), said
        assert b"connection: close" in said.lower()
        assert said.count(b"\r\nserver: ") == 1


@pytest.mark.parametrize(
    "beginning", [b"G", b"GET / HTTP/1.1\r\nHost: h\r\n", b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nab"]
)
async def test_a_request_that_never_ends(beginning: bytes) -> None:
    """However steadily it trickles in."""
    async with Door(QUICK) as door:
        reader, writer = await door.connect()
        writer.write(beginning)
        saying = asyncio.ensure_future(asyncio.wait_for(reader.read(), 60))
        while not saying.done():
            with contextlib.suppress(ConnectionError):
                writer.write(b"a" if beginning.endswith(b"G") else b"")
                await writer.drain()
            await asyncio.wait([saying], timeout=0.02)
        said = saying.result()
        assert said.startswith(b"HTTP/1.1 408 ") or b"400" in said[:20]


async def test_a_connection_that_asks_nothing_is_closed() -> None:
    async with Door(QUICK) as door:
        assert await door.say(b"") == b""
        reader, writer = await door.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await answer(reader))[0] == 200
        assert await asyncio.wait_for(reader.read(), 60) == b""


async def test_too_many_connections() -> None:
    """Users whose requests are under way are not sent away for others."""
    async with Door(Limits(connections=2)) as door:
        others = [await door.connect() for _ in range(2)]
        for _, writer in others:
            door.echo.begun.clear()
            writer.write(b"GET /slow HTTP/1.1\r\nHost: h\r\nAuthorization: x\r\n\r\n")
            await door.echo.begun.wait()
        said = await door.say(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 503 ")
        door.echo.gate.set()
        for reader, writer in others:
            assert (await answer(reader))[0] == 200
            writer.close()


async def test_silent_connections_make_room() -> None:
    async with Door(Limits(connections=5)) as door:
        user, their = await door.connect()
        their.write(b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: x\r\n\r\n")
        assert (await answer(user))[0] == 200
        crowd = [await door.connect() for _ in range(20)]
        for _, writer in crowd:
            writer.write(b"GET /")
        for _ in range(10):
            said = await door.say(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            assert said.startswith(b"HTTP/1.1 200 ")
        for reader, writer in crowd[:16]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()
        their.write(b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: x\r\n\r\n")
        assert (await answer(user))[0] == 200  # A user who asks for nothing goes after all strangers.
        for _, writer in [*crowd, (user, their)]:
            writer.close()


async def test_users_who_ask_for_nothing_make_room() -> None:
    async with Door(Limits(connections=3)) as door:
        users = [await door.connect() for _ in range(3)]
        for at in range(10):
            reader, writer = users[at] if at < 3 else await door.connect()
            users.append((reader, writer))
            for _ in range(2):
                writer.write(b"GET / HTTP/1.1\r\nHost: h\r\nAuthorization: x\r\n\r\n")
                assert (await answer(reader))[0] == 200
        assert len(door.http.connections) == 3
        for _, writer in users:
            writer.close()


async def test_who_may_not_ask_has_no_body_taken_in() -> None:
    async with Door(Limits()) as door:
        said = await door.say(b"PUT /closed HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\nabc")
        assert said.startswith(b"HTTP/1.1 401 ")
        reader, writer = await door.connect()  # Without a body, the connection can go on.
        for path, status in ((b"/closed", 401), (b"/open", 200)):
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n\r\n")
            assert (await answer(reader))[0] == status
        writer.close()


async def test_problems_and_faults_cost_one_request() -> None:
    async with Door(Limits()) as door:
        reader, writer = await door.connect()
        for path, status, body in (
            (b"/problem", 404, b'{"error":"Object Not Found","reason":"Not Found"}'),
            (b"/fault", 500, b'{"error":"internal_error","reason":"see the log of the node"}'),
        ):
            writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: h\r\n\r\n")
            found = await answer(reader)
            assert (found[0], found[2]) == (status, body)
        writer.close()


async def test_a_stream_is_made_as_fast_as_it_is_taken() -> None:
    async with Door(Limits()) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port, limit=1000)
        writer.write(b"GET /stream HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(100):
            await asyncio.sleep(0)
        assert door.echo.given < 32  # What fits into buffers of sockets.
        size = 0
        while data := await reader.read(1 << 20):
            size += data.count(b"y")
        assert (size, door.echo.given, door.echo.sent) == (64 << 20, 64, 1)


async def test_who_takes_nothing_loses_the_connection() -> None:
    async with Door(QUICK) as door:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port, limit=1000)
        writer.write(b"GET /large HTTP/1.1\r\nHost: h\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        while door.http.connections:
            await asyncio.sleep(0)
        assert door.echo.sent == 1
        writer.close()


async def test_a_handler_ends_with_its_client() -> None:
    async with Door(Limits()) as door:
        _, writer = await door.connect()
        writer.write(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
        await door.echo.begun.wait()
        writer.transport.abort()
        await asyncio.wait_for(door.echo.cancelled.wait(), 60)


async def test_a_server_that_closes_gives_the_answers_that_are_due() -> None:
    async with Door(Limits()) as door:
        idle, _ = await door.connect()
        reader, writer = await door.connect()
        writer.write(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n")
        await door.echo.begun.wait()
        closing = asyncio.ensure_future(door.http.close(10))
        assert await asyncio.wait_for(idle.read(), 60) == b""
        door.echo.gate.set()
        assert (await answer(reader))[0] == 200
        await closing
        async with asyncio.timeout(60):
            while door.http.connections:  # The loop tells a connection of its end in a later turn.
                await asyncio.sleep(0)


async def test_a_fault_in_the_middle_of_an_answer_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with Door(Limits()) as door:
        reader, writer = await door.connect()
        writer.write(b"GET /broken HTTP/1.1\r\nhost: x\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"so far so good" in await reader.read() + await reader.read()
        assert reader.at_eof() or reader.exception() is not None
        assert door.echo.sent == 1 and "ended in the middle: internal error" in caplog.text
        writer.close()


async def test_the_bodies_of_all_requests_are_bounded() -> None:
    async with Door(Limits(body_bytes=1000, bodies_bytes=1300, small_bytes=100)) as door:
        slow = [await door.connect() for _ in range(2)]
        door.echo.begun.clear()
        slow[0][1].write(b"POST /slow HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\n" + b"x" * 900)
        await door.echo.begun.wait()
        slow[1][1].write(b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 700\r\n\r\n" + b"x" * 700)
        assert (await answer(slow[1][0]))[0] == 503
        assert door.http.held_bytes == 800
        small = await door.connect()
        small[1].write(b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n" + b"x" * 100)
        assert (await answer(small[0]))[0] == 200
        small[1].close()
        door.echo.gate.set()
        assert (await answer(slow[0][0]))[0] == 200
        assert door.http.held_bytes == 0
        reader, writer = await door.connect()  # There is room again; and what a lost client had sent is let go.
        writer.write(b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\n" + b"x" * 900)
        assert (await answer(reader))[0] == 200
        door.echo.gate.clear()
        door.echo.begun.clear()
        writer.write(b"POST /slow HTTP/1.1\r\nHost: h\r\nContent-Length: 900\r\n\r\n" + b"x" * 900)
        await door.echo.begun.wait()
        for _, one in (*slow, (reader, writer)):
            one.close()
        await asyncio.wait_for(door.echo.cancelled.wait(), 60)
        assert door.http.held_bytes == 0
