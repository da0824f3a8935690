"""Checks what one of two nodes delivers by itself while it is cut off: see `scenarios.detached`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.checkers.ledger import Delivery, Ledger, Message

GRACE_S: Final = 0.03  # Nodes are observed once in each pass of their loops.


class DetachedChecker:
    """Checks deliveries and acknowledgements of nodes that serve from a copy by themselves."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self.fail = fail
        # By node and queue: periods in which it delivered from its copy.
        self.spans: dict[tuple[str, str], list[list[float]]] = {}
        self.kept: dict[int, tuple[str, float]] = {}  # By message: at which node it was acknowledged, and when.
        self.heard: set[int] = set()  # Those of `kept` that the master knows.
        self.delivered = 0
        self.spooled = 0  # Messages that were delivered out of a spool, and
        self.settled = 0  # acknowledged there for good.

    def on_serving(self, node: str, queue: str, serves: bool, now: float) -> None:
        spans = self.spans.setdefault((node, queue), [])
        is_open = bool(spans) and spans[-1][1] == float("inf")
        if serves and not is_open:
            spans.append([now - GRACE_S, float("inf")])
        elif is_open and not serves:
            spans[-1][1] = now

    def served(self, node: str, queue: str, at: float) -> list[float] | None:
        return next((span for span in self.spans.get((node, queue), ()) if span[0] <= at < span[1]), None)

    def is_of_copy(self, delivery: Delivery) -> bool:
        return self.served(delivery.node, delivery.queue, delivery.written_at) is not None

    def is_from(self, node: str, delivery: Delivery) -> bool:
        """Whether this very node has delivered a message by itself. Both of two may do so."""
        return delivery.node == node and self.is_of_copy(delivery)

    def on_delivered(self, message: Message, delivery: Delivery, is_only_here: bool) -> None:
        if self.is_of_copy(delivery) and is_only_here:
            self.spooled += 1
        elif self.is_of_copy(delivery):
            self.delivered += 1
            if not delivery.redelivered:
                self.fail(f"{message} came from the copy of {delivery.node} without a mark")
        if message.number in self.heard and message.settled_at is not None:
            keeper, _ = self.kept[message.number]
            if not self.is_from(keeper, delivery) and delivery.written_at <= message.settled_at:
                message.settled_at = None  # It was unacknowledged at another client.
                self.heard.discard(message.number)

    def on_kept(self, message: Message, delivery: Delivery, at: float, is_only_here: bool) -> None:
        """The node has its client's acknowledgements of a delivery on disk."""
        span = self.served(delivery.node, delivery.queue, delivery.written_at)
        if is_only_here and span is not None and span[0] <= at < span[1]:
            self.settled += message.settled_at is None
            self.kept[message.number] = (delivery.node, at)
            message.settled_at = at
            return
        is_old = message.confirmed_at is not None and span is not None and message.confirmed_at < span[0]
        if is_old and span is not None and span[0] <= at < span[1]:
            self.kept[message.number] = (delivery.node, at)

    def on_proved(self, message: Message, delivery: Delivery, at: float) -> bool:
        """A confirm of the queue's master came after the acknowledgement of a delivery. Returns whether the
        acknowledgement is in force. One of a copy's delivery is not if the other node has delivered the message, too:
        it stays with the client there, and comes again when that one goes."""
        if not self.is_of_copy(delivery):
            return True
        if any(one.node != delivery.node for one in message.deliveries):
            return False
        self.kept[message.number] = (delivery.node, at)
        self.heard.add(message.number)  # A delivery by the other node may yet arrive.
        return True

    def on_told(self, node: str, queue: str, ledger: Ledger, now: float) -> None:
        """The node has no record of the queue any more."""
        for number, (holder, at) in self.kept.items():
            message = ledger.messages[number]
            if holder != node or message.queue != queue or number in self.heard or at >= now:
                continue
            if message.settled_at is None and all(self.is_from(node, one) for one in message.deliveries):
                message.settled_at = now
                self.heard.add(number)
