"""What is added to a queue, and how the queue tells it what happens.

A queue by itself takes messages, hands them out and settles them. Whatever else is kept about its messages is an
*extension*: leases, delivery counts, the event journal. A queue knows none of them by name. It tells them what happens
to messages, in whole ranges, and each overrides the methods of `Extension` that it wants to hear.

    Queue.extensions is None      nothing was added: the hot path pays one test
    Extensions.on_enqueued, …     for each event, who wants to hear of it: nobody is called in vain

Which extensions a queue has follows from its rules and from its durable state: see `leveret.broker.queue.features`.

A *gate* is another part, which decides: up to where messages may be handed out. A mirrored queue has one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from leveret.broker.delivery.batch import Batch, Gap
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.delivery.consumer import Consumer
    from leveret.storage.format.queue_block import Block


class Extension:
    """Is told what happens to the messages of a queue. By itself it wants to hear nothing."""

    __slots__ = ()

    def on_enqueued(self, count: int, kind: int, pending: Pending | None) -> None:
        """Messages of one kind were taken, the last ones."""

    def on_refused(self, count: int, pending: Pending | None) -> None:
        """Messages were not taken, because the queue is full."""

    def on_delivered(self, taker: Consumer | str | None, first: int, last: int) -> None:
        """Messages were handed out: to a consumer, to somebody with a name, or to a get."""

    def on_failed(self, batch: Batch, lo: int, hi: int) -> None:
        """A consumer that was shown messages gives them back. They are not marked as redelivered yet."""

    def on_recalled(self, batch: Batch, lo: int, hi: int) -> None:
        """Messages come back though no consumer has failed, and are about to be marked as redelivered."""

    def on_returned(self, first: int, last: int) -> None:
        """Messages that were out wait again."""

    def on_unserved(self, reason: str, first: int, last: int, kind: str) -> None:
        """Messages leave, and nobody has acknowledged them."""

    def on_settled(self, first: int, last: int) -> None:
        """Messages are gone."""

    def on_settlement(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Messages are gone that were in memory only, or that the block says so of which is about to be taken."""

    def on_block(self, block: Block) -> None:
        """A block was taken. What it says of messages may be added to."""

    def on_safe(self, batch: Batch) -> None:
        """The block with this batch is where it has to be, and its publishers are being told."""

    def on_turn(self) -> None:
        """The queue is about to hand out messages, or looks whether something is to be done."""

    def before_hand_out(self) -> None:
        """Messages that must not be handed out can be taken out now."""

    def on_loaded(self) -> None:
        """Contents were read back."""

    def on_logged(self) -> None:
        """The log has contents that only memory had."""

    def on_page_out(self) -> None:
        """Memory is short."""

    def on_gone(self, reason: str) -> None:
        """The queue is no longer this node's business."""


EVENTS: Final = tuple(name for name in vars(Extension) if not name.startswith("_"))
E = TypeVar("E", bound=Extension)


class Extensions:
    """All extensions of one queue, and for each event the methods of those that want to hear of it."""

    __slots__ = ("all", *EVENTS)

    on_enqueued: tuple[Callable[[int, int, Pending | None], None], ...]
    on_refused: tuple[Callable[[int, Pending | None], None], ...]
    on_delivered: tuple[Callable[[Consumer | str | None, int, int], None], ...]
    on_failed: tuple[Callable[[Batch, int, int], None], ...]
    on_recalled: tuple[Callable[[Batch, int, int], None], ...]
    on_returned: tuple[Callable[[int, int], None], ...]
    on_unserved: tuple[Callable[[str, int, int, str], None], ...]
    on_settled: tuple[Callable[[int, int], None], ...]
    on_settlement: tuple[Callable[[Sequence[tuple[int, int]]], None], ...]
    on_block: tuple[Callable[[Block], None], ...]
    on_safe: tuple[Callable[[Batch], None], ...]
    on_turn: tuple[Callable[[], None], ...]
    before_hand_out: tuple[Callable[[], None], ...]
    on_loaded: tuple[Callable[[], None], ...]
    on_logged: tuple[Callable[[], None], ...]
    on_page_out: tuple[Callable[[], None], ...]
    on_gone: tuple[Callable[[str], None], ...]

    def __init__(self, extensions: Iterable[Extension]) -> None:
        self.all: dict[type[Extension], Extension] = {type(one): one for one in extensions}
        for name in EVENTS:
            setattr(self, name, self._hearing(name))

    def _hearing(self, name: str) -> tuple[Any, ...]:
        default = getattr(Extension, name)
        return tuple(getattr(one, name) for one in self.all.values() if getattr(type(one), name) is not default)

    def find(self, kind: type[E]) -> E | None:
        found = self.all.get(kind)
        assert found is None or isinstance(found, kind)
        return found


class Gate(Protocol):
    """Decides up to where messages of a queue may be handed out."""

    def check(self) -> None:
        """The queue has handed out what it could."""

    def open_unwritten(self, first: int) -> bool:
        """Tell whether this message, the first, and those behind it may be delivered before they are written."""

    def want(self, number: int) -> Gap:
        """A get is to be answered with this message; what to wait for until it may be."""

    def put_into(self, block: Block) -> None:
        """The queue's next block, with all that was enqueued until now."""

    def on_confirmed(self, number: int) -> bool:
        """Blocks up to this one are where they must be. True: more may be handed out now, or gets that wait should
        ask again."""

    def claimed_undelivered(self) -> list[tuple[int, int]]:
        """Return the ranges of messages that could have been delivered, and never were."""

    def end(self) -> None:
        """Everything may be handed out from now on."""
