"""STOMP clients joined to the machine by bytes: what a client sends, and the frames that it gets, as text.

In texts `^@` is the NUL at the end of a frame, and SESSION stands for the session's id. The line feed behind each frame
is left out.
"""

from __future__ import annotations

from typing import Final

from leveret.protocol.stomp.decoder import Incomplete, decode, skip, span_at
from leveret.protocol.stomp.frames import Frame, FrameLimits
from leveret.sessions.peer import Peer
from leveret.sessions.stomp.connection import Connection
from leveret.sessions.stomp.limits import StompLimits
from tests.support.machines import World

LOOPBACK: Final = Peer("127.0.0.1", 40_000, "127.0.0.1", 61613, True)
LARGE: Final = FrameLimits(1 << 30, 1 << 30, 1 << 30, 1 << 20)


class StompClient:
    """One client of a world."""

    def __init__(self, world: World, limits: StompLimits | None = None, peer: Peer = LOOPBACK) -> None:
        self.world = world
        self.connection = Connection(world.broker, peer, limits or StompLimits())
        world.clients[self.connection.output] = self
        self.data = b""
        self.paused = False

    def flush(self) -> None:
        output = self.connection.output
        if self.paused:
            output.set_writable(False)
            return
        pieces = output.take()
        if pieces:
            output.on_written(sum(map(len, pieces)))
        self.data += b"".join(pieces)
        if self.connection.on_room():
            self.world.broker.writers[self.connection.output] = None

    def send(self, text: str | bytes) -> None:
        data = text if isinstance(text, bytes) else text.replace("^@", "\0").replace("SESSION", self.session).encode()
        self.connection.receive(data)
        self.world.turn()

    @property
    def session(self) -> str:
        return self.connection.session_id or "SESSION"

    def heard_bytes(self) -> bytes:
        self.world.turn()
        data, self.data = self.data, b""
        return data

    def heard(self) -> str:
        text = self.heard_bytes().decode("utf-8", "surrogateescape")
        return text.replace("\0\n", "^@").replace("\0", "^@").replace(self.session, "SESSION")

    def ask(self, text: str | bytes) -> str:
        """Send this in one piece; give what comes back."""
        self.send(text)
        return self.heard()

    def frames(self) -> list[Frame]:
        """What came since the last time."""
        data, at, frames = self.heard_bytes(), 0, []
        while (at := skip(data, at)) < len(data):
            span = span_at(data, at, LARGE)
            assert not isinstance(span, Incomplete)
            frames.append(decode(data, span, LARGE, self.connection.escapes))
            at = span.last + 1
        return frames

    def connect(self, version: str = "1.2", more: str = "") -> str:
        return self.ask(f"CONNECT\naccept-version:{version}\nlogin:guest\npasscode:guest\n{more}\n^@")

    def lose(self) -> None:
        """The socket is gone."""
        self.connection.on_socket_lost()
        self.world.turn()


def connected(world: World, version: str = "1.2", more: str = "", limits: StompLimits | None = None) -> StompClient:
    client = StompClient(world, limits)
    answer = client.connect(version, more)
    assert answer.startswith("CONNECTED\n"), answer
    return client


def error(message: str, body: str, more: str = "") -> str:
    """An ERROR frame as RabbitMQ writes it."""
    return (
        f"ERROR\nmessage:{message}\ncontent-type:text/plain\nversion:1.0,1.1,1.2\n{more}"
        f"content-length:{len(body.encode())}\n\n{body}^@"
    )
