"""The socket of one connection to another node, which moves bytes between a transport and a `Link`; and calls.

A call is one request to an address, from a caller that need not be a member (a node that wants to join, leveretctl),
over a connection of its own with the same greeting as a member's.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from leveret.client.tls import default_context
from leveret.links import link
from leveret.links.failure_detector import OUT
from leveret.links.link import Buffer, Failed, Frames, Identity, Link, LinkOptions, Ready
from leveret.node.sockets.tls_failures import tell_failures
from leveret.node.system.writing import write_all

if TYPE_CHECKING:
    from leveret.node.config.settings import TlsOptions

CLOSED: Final = "the connection was closed"
TICKS_IN_SILENCE: Final = 16
TICK_MS_MAX: Final = 250
BEATS_IN_SILENCE: Final = 8

_TLS_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}


class PeersOptions(NamedTuple):
    frame_bytes_max: int = link.FRAME_BYTES_MAX
    silence_ms: int = 4_000  # net_ticktime
    stable_ms: int = 500
    calm_ms: int = 30_000
    connect_ms: int = 5_000
    greeting_ms: int = 5_000
    retry_ms_min: int = 100
    retry_ms_max: int = 5_000
    unproven_max: int = 64
    calls_max: int = 64
    unsent_bytes_high: int = 8 << 20
    unsent_bytes_max: int = 128 << 20
    compresses: bool = False

    def of_link(self) -> LinkOptions:
        return LinkOptions(self.frame_bytes_max, self.greeting_ms, self.beat_ms())

    def doubt_ms(self) -> int:
        """The time of silence after which a node that hears too few others gives them up: long before they give it up,
        which may be a heartbeat and a tick earlier than `silence_ms` after it heard them for the last time."""
        return self.silence_ms * 5 // 8

    def beat_ms(self) -> int:
        """The interval of heartbeats."""
        return max(self.silence_ms // BEATS_IN_SILENCE, 1)

    def tick_ms(self) -> int:
        """The interval of ticks, which measure silence, and end the damping of a peer that came back."""
        return max(min(self.silence_ms // TICKS_IN_SILENCE, TICK_MS_MAX), 1)


class PeerTls(NamedTuple):
    """The TLS contexts of links: both ends show a certificate, and both verify it."""

    server: ssl.SSLContext
    client: ssl.SSLContext


class CallFailed(Exception):
    """No answer; `reason` is one of `link`'s, or "unreachable", "closed"."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def peer_tls(options: TlsOptions) -> PeerTls:
    """Makes the contexts for both roles from one certificate: every node is server and client."""
    if options.cacertfile is None:
        raise ValueError("links with TLS need the certificate of an authority that all nodes trust")
    contexts = []
    for purpose in (ssl.Purpose.CLIENT_AUTH, ssl.Purpose.SERVER_AUTH):
        context = default_context(options.cacertfile, purpose)
        context.load_cert_chain(options.certfile, options.keyfile, options.password)
        context.verify_mode = ssl.CERT_REQUIRED
        versions = [_TLS_VERSIONS[name] for name in options.versions]
        context.minimum_version, context.maximum_version = min(versions), max(versions)
        contexts.append(context)
    tell_failures(contexts[0], "other nodes")
    return PeerTls(*contexts)


class Owner(Protocol):
    def now_ms(self) -> int: ...
    def on_connected(self, wire: PeerSocket) -> None: ...
    def on_event(self, wire: PeerSocket, event: link.Event) -> None: ...
    def on_ended(self, wire: PeerSocket) -> None: ...
    def on_closed(self, wire: PeerSocket) -> None: ...
    def on_writable(self, wire: PeerSocket) -> None: ...


class PeerSocket(asyncio.Protocol):
    """One connection: bytes between a transport and a `Link`."""

    __slots__ = (
        "owner",
        "link",
        "side",
        "peer",  # the member's name, where there is one
        "address",
        "transport",
        "writable",
        "dirty",  # the owner will flush it
        "waiting",  # frames that have come, and are handled in a later pass of the loop
        "asked",  # it is a call, and the question has come
        "closed",  # by us or by the other end: nothing that still comes from it counts
        "failure",  # why, for people
        "refusal",  # what the peer said, if it was the peer who ended it
        "nobody_listens",  # the host answered that nobody is there
    )

    def __init__(self, owner: Owner, link: Link, side: int, peer: str | None = None) -> None:
        self.owner = owner
        self.link = link
        self.side = side
        self.peer = peer
        self.address: tuple[str, int] = ("", 0)
        self.transport: asyncio.Transport | None = None
        self.writable = True
        self.dirty = False
        self.waiting: list[tuple[int, bytes]] = []
        self.asked = False
        self.closed = False
        self.failure = ""
        self.refusal = ""
        self.nobody_listens = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.address = (transport.get_extra_info("peername") or ("", 0))[:2]
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        if self.closed:  # It was given up while the connection was being made.
            self.transport.abort()
            return
        self.owner.on_connected(self)
        self.flush()

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        for event in self.link.receive(data, self.owner.now_ms()):
            if self.closed:
                return
            self.owner.on_event(self, event)
        if self.link.out:
            self.flush()

    def eof_received(self) -> bool:
        """Tells the owner now that the other end is gone: `connection_lost` comes after everything else that has come
        in the same pass of the loop, such as publishes, which would still be sent there."""
        if not self.closed:
            self.link.close()
            self.closed = True
            self.failure = self.failure or CLOSED
            self.owner.on_ended(self)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.link.close()
        if not self.failure:
            self.failure = CLOSED if error is None else f"the connection was lost: {error}"
        self.owner.on_closed(self)
        self.closed = True

    def hold(self, frames: list[tuple[int, bytes]]) -> None:
        """Keeps frames for later, and reads nothing more until they are taken."""
        assert self.transport is not None and not self.waiting
        self.waiting = frames
        self.transport.pause_reading()

    def take_waiting(self) -> list[tuple[int, bytes]]:
        """Returns the frames that were kept, and reads on."""
        frames, self.waiting = self.waiting, []
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()
        return frames

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.owner.on_writable(self)

    def flush(self) -> None:
        self.dirty = False
        if self.transport is None or self.closed or not self.link.out:
            return
        buffers = self.link.take(self.owner.now_ms())
        if len(buffers) == 1:
            self.transport.write(buffers[0])
        else:
            write_all(self.transport, buffers)

    def unsent_bytes(self) -> int:
        return self.link.out_bytes + (0 if self.transport is None else self.transport.get_write_buffer_size())

    def refuse(self, text: str) -> None:
        self.failure = self.failure or text
        self.link.refuse(text)
        self.end()

    def end(self) -> None:
        """Closes after the rest has been sent; the owner's ticks end it if that takes too long."""
        self.flush()
        self.link.close()
        self.closed = True
        if self.transport is not None:
            self.transport.close()

    def finish(self) -> None:
        """Sends the rest, and has the other end close when it has read all of it.

        A socket that is closed with something unread, a heartbeat say, resets the connection: what the kernel has not
        delivered by then is lost.
        """
        if self.transport is None or not self.transport.can_write_eof():  # TLS cannot close one direction.
            self.end()
            return
        self.flush()
        self.link.close()
        self.closed = True
        if not self.transport.is_closing():
            self.transport.write_eof()
            self.transport.resume_reading()

    def abort(self) -> None:
        self.link.close()
        self.closed = True
        if self.transport is not None:
            self.transport.abort()


async def connect(
    loop: asyncio.AbstractEventLoop, wire: PeerSocket, host: str, port: int, tls: PeerTls | None, options: PeersOptions
) -> str | None:
    """Connects. Returns why that was not possible; None if it was."""
    try:
        async with asyncio.timeout(options.connect_ms / 1000):
            await loop.create_connection(lambda: wire, host, port, ssl=None if tls is None else tls.client)
    except TimeoutError:
        return f"no connection within {options.connect_ms} ms"
    except ConnectionRefusedError as error:
        wire.nobody_listens = True
        return error.strerror or str(error)
    except Exception as error:  # Wrong names, addresses or certificates: the next try may succeed.
        return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return None


# -- Calls -------------------------------------------------------------------------------------------------------


class _Caller:
    """The owner of the one wire of a call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, kind: int, payload: bytes | Sequence[Buffer]) -> None:
        self.loop = loop
        self.kind = kind
        self.payload = payload
        self.answer: asyncio.Future[bytes] = loop.create_future()

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def on_connected(self, wire: PeerSocket) -> None:
        pass

    def on_writable(self, wire: PeerSocket) -> None:
        pass

    def on_event(self, wire: PeerSocket, event: link.Event) -> None:
        if type(event) is Ready:
            try:
                wire.link.send(self.kind, self.payload)
            except ValueError as error:
                self._fail(link.OVERSIZE, str(error))
        elif type(event) is Frames and not self.answer.done():
            self.answer.set_result(event.frames[0][1])
        elif type(event) is Failed:
            self._fail(event.reason, event.text)

    def on_ended(self, wire: PeerSocket) -> None:
        pass

    def on_closed(self, wire: PeerSocket) -> None:
        self._fail("closed", wire.failure)

    def _fail(self, reason: str, text: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(CallFailed(reason, text))

    async def keep_alive(self, wire: PeerSocket, period_s: float) -> None:
        while True:
            for event in wire.link.tick(self.now_ms()):
                self.on_event(wire, event)
            wire.flush()
            await asyncio.sleep(period_s)


async def call(
    address: tuple[str, int],
    kind: int,
    payload: bytes | Sequence[Buffer],
    timeout_s: float,
    me: Identity,
    cookie: bytes,
    tls: PeerTls | None = None,
    options: PeersOptions = PeersOptions(),  # noqa: B008 (immutable)
) -> bytes:
    """Sends one request to an address, and returns the answer. Raises CallFailed; `reason` is `link.SELF` at the node's
    own address."""
    loop = asyncio.get_running_loop()
    caller = _Caller(loop, kind, payload)
    nonce = secrets.token_bytes(link.NONCE_BYTES)
    now_ms = int(loop.time() * 1000)
    link_ = Link(link.DIALER, me, cookie, nonce, now_ms, options.of_link(), link.CALL)
    wire = PeerSocket(caller, link_, OUT)
    beats: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(timeout_s):
            text = await connect(loop, wire, *address, tls, options)
            if text is not None:
                raise CallFailed("unreachable", text)
            beats = loop.create_task(caller.keep_alive(wire, options.tick_ms() / 1000))
            return await caller.answer
    except TimeoutError:
        raise CallFailed(link.TIMEOUT, f"no answer within {timeout_s} s") from None
    finally:
        if beats is not None:
            beats.cancel()
        if not caller.answer.cancel() and not caller.answer.cancelled():
            caller.answer.exception()  # Otherwise the loop logs an exception that was never retrieved.
        wire.abort()
