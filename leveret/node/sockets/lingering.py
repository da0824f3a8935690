"""Keeps the sockets of clients whose connection is over, until the client closes them.

A socket that is closed while bytes of the client are still on their way, or wait unread in the kernel, answers them
with a reset. The reset can overtake the last answer (`connection.close-ok`, `connection.close`, the protocol header),
and a client that is still writing sees an error instead of the end it asked for. So the last answer is followed by a
time in which whatever comes is read and thrown away.

There are two kinds of end:

- *The client asked for it.* It closes the socket once it has read `close-ok`, and until then it must not see an end:
  some clients take an end that comes right after `close-ok` for a lost connection. RabbitMQ waits for as long as a
  heartbeat lasts, and for 30 seconds at most; so does this module.
- *The broker ended it*, and has nothing more to say. The client is shown the end at once, by closing one direction of
  the socket. TLS has no such half close: there the client sees the end when it closes itself, or after `ENDED_S`.

Such a socket is no connection any more: no list shows it, no limit counts it, nothing waits for it. Therefore it has
bounds of its own, in time, in bytes, and in number: where there are too many, those that wait longest are closed. They
still have a descriptor each, so they also make room when descriptors run short.
"""

from __future__ import annotations

import asyncio
from typing import Final

ASKED_S_MAX: Final = 30.0
ENDED_S: Final = 3.0
DISCARDED_BYTES_MAX: Final = 128 << 20  # What is read and thrown away from one client.
LINGERING_MAX: Final = 1_000


def asked_s(heartbeat_s: int) -> float:
    """Returns how long a client that closed its connection may take to close its socket."""
    return float(heartbeat_s) if 0 < heartbeat_s < ASKED_S_MAX else ASKED_S_MAX


class Lingering(asyncio.Protocol):
    """The socket of one connection that is over."""

    __slots__ = ("left_bytes", "lingerers", "timer", "transport")

    def __init__(self, lingerers: Lingerers, transport: asyncio.Transport, seconds: float) -> None:
        self.lingerers = lingerers
        self.transport = transport
        self.left_bytes = DISCARDED_BYTES_MAX
        self.timer = lingerers.loop.call_later(seconds, self._on_time_over)

    def data_received(self, data: bytes) -> None:
        self.left_bytes -= len(data)
        if self.left_bytes < 0:
            self.transport.abort()

    def eof_received(self) -> bool:
        return False  # The transport closes itself.

    def _on_time_over(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # The client does not read: a close would wait for it to do so.
        else:
            self.transport.close()  # With TLS, this sends close_notify.

    def connection_lost(self, error: Exception | None) -> None:
        self.timer.cancel()
        self.lingerers.sockets.pop(self, None)


class Lingerers:
    """All such sockets of a node, in the order in which their connections ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.sockets: dict[Lingering, None] = {}

    def add(self, transport: asyncio.Transport, seconds: float | None) -> None:
        """Takes over a socket whose reading is not paused. It is closed by the client, or after so many seconds; None
        if the broker ended the connection."""
        self.keep(LINGERING_MAX - 1)
        lingering = Lingering(self, transport, ENDED_S if seconds is None else seconds)
        self.sockets[lingering] = None
        transport.set_protocol(lingering)
        if seconds is None and transport.can_write_eof():
            transport.write_eof()

    def keep(self, count: int) -> None:
        """Closes the oldest of them, so that there are no more than this."""
        while len(self.sockets) > max(count, 0):
            oldest = next(iter(self.sockets))
            del self.sockets[oldest]
            oldest.transport.abort()

    def close(self) -> None:
        """Closes all of them when the node stops: what is written still goes out, and no client is waited for."""
        for lingering in self.sockets:
            lingering.transport.close()
