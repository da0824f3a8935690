"""A connection whose socket the runner watches."""

from __future__ import annotations

import selectors
import ssl
from abc import ABC, abstractmethod
from typing import Final

from leveret.perf import wire
from leveret.perf.wire import BrokerError, Connection

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE
CLOSED: Final = "the broker closed the connection"
NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Endpoint(ABC):
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.socket = connection.socket
        self.error: str | None = None
        self.unsent = memoryview(b"")
        self.rest = bytes(connection.received)
        self._interest = 0
        self._selector: selectors.BaseSelector | None = None

    def register(self, selector: selectors.BaseSelector) -> None:
        self.socket.setblocking(False)
        self._selector = selector
        self._interest = READ
        selector.register(self.socket, READ, self)
        try:
            self.rest = self.on_data(self.rest)  # What came along with the last answer; perhaps nothing follows.
        except (OSError, BrokerError) as error:
            self.fail(_said(error))
        else:
            self.update_interest()

    def update_interest(self) -> None:
        interest = READ | (WRITE if self.wants_to_write() else 0)
        if interest != self._interest and self._selector is not None and self.error is None:
            self._interest = interest
            self._selector.modify(self.socket, interest, self)

    def on_ready(self, events: int) -> None:
        try:
            if events & READ:
                self.on_readable()
            if events & WRITE:
                self.on_writable()
        except NOT_NOW:
            pass  # Ready a moment ago, not any more: the selector will say when it is.
        except (OSError, BrokerError) as error:
            self.fail(_said(error))
            return
        self.update_interest()

    def fail(self, text: str) -> None:
        self.error = text
        if self._selector is not None:
            self._selector.unregister(self.socket)
        self.socket.close()

    def on_readable(self) -> None:
        """A record of TLS is shorter than what is asked for, so that none is left half read where the selector does not
        look."""
        data = self.socket.recv(wire.RECEIVE_BYTES)
        if not data:
            raise BrokerError(CLOSED)
        self.rest = self.on_data(self.rest + data if self.rest else data)

    def send_unsent(self) -> None:
        """As much as the socket takes now. This happens in the middle of other things, which must go on."""
        if self.unsent:
            try:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
            except NOT_NOW:
                pass  # The selector will say when it takes more.

    @abstractmethod
    def wants_to_write(self) -> bool: ...

    @abstractmethod
    def on_data(self, data: bytes) -> bytes:
        """Take in what is whole, and give back the rest."""

    @abstractmethod
    def on_writable(self) -> None: ...


def _said(error: Exception) -> str:
    """That a connection was closed is seen as its end, a reset or a broken pipe: whichever the kernel tells first."""
    return CLOSED if isinstance(error, ConnectionError) else str(error)
