"""Transactions of a client: SEND, ACK and NACK frames that wait for their COMMIT.

As with RabbitMQ, they are kept here until then, and carried out one after the other: what goes wrong with one of them
is told with an ERROR, and the others are carried out all the same. A frame that is no good is refused when it comes.

The receipt of COMMIT is sent when everything that the transaction sent is safe, whether or not its frames asked for
receipts themselves. (With RabbitMQ it is sent at once.) A message that a queue refuses is told instead of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from leveret.sessions.stomp.errors import StompError, printed
from leveret.sessions.stomp.limits import ACTION_BYTES_MAX, ACTIONS_MAX, TRANSACTIONS_MAX

if TYPE_CHECKING:
    from leveret.protocol.stomp.frames import Frame
    from leveret.sessions.stomp.connection import Connection

FRAME_OVERHEAD = 512  # Bytes that a kept frame takes beside its texts.


class Transactions:
    """The transactions that a client has begun."""

    __slots__ = ("begun", "connection", "count", "size")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.begun: dict[str, list[Frame]] = {}
        self.count = 0  # Frames in all of them.
        self.size = 0  # About their bytes.

    def on_frame(self, frame: Frame) -> None:
        """BEGIN, COMMIT or ABORT. Raises `StompError`."""
        name = frame.headers.get("transaction")
        if name is None:
            raise StompError("Missing transaction", f"\"{frame.command}\" must include a 'transaction' header\n")
        if frame.command == "BEGIN":
            self._begin(name)
        else:
            actions = self._take(name)
            if frame.command == "COMMIT":
                self.connection.carry_out(actions, frame)
                return
        self.connection.send_receipt(frame)

    def _begin(self, name: str) -> None:
        """As with RabbitMQ, a transaction of that name begins anew."""
        if name in self.begun:
            self._take(name)
        if len(self.begun) >= TRANSACTIONS_MAX:
            text = f"Too many concurrent transactions (limit {TRANSACTIONS_MAX})"
            raise StompError("Transaction limit exceeded", text)
        self.begun[name] = []

    def _take(self, name: str) -> list[Frame]:
        actions = self.begun.pop(name, None)
        if actions is None:
            raise StompError("Bad transaction", f"Invalid transaction identifier: {printed(name)}\n")
        self.count -= len(actions)
        self.size -= sum(map(_size, actions))
        return actions

    def keep(self, frame: Frame) -> None:
        """A frame that belongs to a transaction. Raises `StompError`."""
        name = frame.headers["transaction"]
        if name not in self.begun:
            raise StompError("Bad transaction", f"Invalid transaction identifier: {printed(name)}\n")
        size = _size(frame)
        if self.count >= ACTIONS_MAX:
            raise StompError("Transaction too large", f"Too many actions in transaction (limit {ACTIONS_MAX})")
        if self.size + size > ACTION_BYTES_MAX:
            raise StompError("Transaction too large", f"Too many bytes in transactions (limit {ACTION_BYTES_MAX})")
        self.begun[name].append(frame)
        self.count += 1
        self.size += size

    def forget(self) -> None:
        """The connection is over: what was not committed is not done."""
        self.begun.clear()


def _size(frame: Frame) -> int:
    return FRAME_OVERHEAD + len(frame.body) + 4 * sum(len(name) + len(value) for name, value in frame.headers.items())
