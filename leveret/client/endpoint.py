"""A non-blocking connection whose socket a selector watches."""

from __future__ import annotations

import selectors
import ssl
from abc import ABC, abstractmethod
from typing import Final

from leveret.client.amqp import BrokerError
from leveret.client.connection import RECEIVE_BYTES, Connection

READ: Final = selectors.EVENT_READ
WRITE: Final = selectors.EVENT_WRITE
CLOSED: Final = "the broker closed the connection"
NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Endpoint(ABC):
    """Reads and writes one connection when its selector says so. After a failure the socket is closed, and `error` has
    the reason."""

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
            self.rest = self.on_data(self.rest)  # Bytes that came with the last answer; perhaps none follow.
        except (OSError, BrokerError) as error:
            self.fail(_reason(error))
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
            pass  # The selector reports the socket again when it is ready.
        except (OSError, BrokerError) as error:
            self.fail(_reason(error))
            return
        self.update_interest()

    def fail(self, text: str) -> None:
        self.error = text
        if self._selector is not None:
            self._selector.unregister(self.socket)
        self.socket.close()

    def on_readable(self) -> None:
        """Receives more than a TLS record can hold, so that no decrypted bytes stay where no selector sees them."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise BrokerError(CLOSED)
        self.rest = self.on_data(self.rest + data if self.rest else data)

    def send_unsent(self) -> None:
        """Sends as much as the socket takes now. A full socket is no error."""
        if self.unsent:
            try:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
            except NOT_NOW:
                pass  # The selector reports when the socket takes more.

    @abstractmethod
    def wants_to_write(self) -> bool: ...

    @abstractmethod
    def on_data(self, data: bytes) -> bytes:
        """Handles all complete frames and returns the bytes after them."""

    @abstractmethod
    def on_writable(self) -> None: ...


def _reason(error: Exception) -> str:
    """Returns one text for all ways in which the kernel reports a closed connection: reset, broken pipe, end."""
    return CLOSED if isinstance(error, ConnectionError) else str(error)
