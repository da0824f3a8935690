"""The interface of the broker that a queue uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable

    from leveret.base.range_set import Measured, Wanted
    from leveret.base.timers import Timers
    from leveret.broker.broker import AnyQueue
    from leveret.broker.dead_letter.publisher import DeadLetterPublisher
    from leveret.broker.delivery.batch import Gap, GapRead, Shared, Span
    from leveret.broker.event_journal.node_journal import NodeJournal
    from leveret.broker.queue.features import Features
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.broker.queue.queue import Queue
    from leveret.broker.vhost import Vhost
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.rules.queue_rules import QueueRules
    from leveret.storage.format.queue_block import Run


class Host(Protocol):
    """What a queue may ask of its broker."""

    dirty: dict[Any, None]  # Queues that want a pump or have something for the log.
    content_bytes: int  # Contents in memory, all queues together.
    sharing: Shared | None  # Contents that are being handed to several queues, one after the other.
    unlogged_bytes: int  # Of those, what no block was taken of yet.
    content_bytes_max: int  # Above it, contents that the log has are forgotten.
    spill_bytes_max: int  # Above it, transient ones are put into the log to be forgotten too.
    now_ms: int  # Of a clock that never jumps.
    wall_ms: int  # The time of day, as of this turn.
    timers: Timers[Any]  # Queues that want a pump at a time of day.
    expiring_left: int  # Pieces of messages that may still grow old in this turn.
    overdue: dict[Any, None]  # Queues of which somebody waits for the first message until overdue ones are gone.
    idle: Timers[Any]  # Queues that go when nobody uses them, and when to look, by `now_ms`.
    dead_letters: DeadLetterPublisher
    features: Features
    journal: NodeJournal | None  # Of the node, if some queue has one.
    vhosts: dict[str, Vhost]
    policy_version: int  # How often policies have changed.

    def refresh(self, queue: LocalQueue) -> None:
        """Apply policies again: they have changed since this queue last read them."""

    def rules_of(self, spec: QueueSpec) -> QueueRules:
        """Return the rules that arguments and policies give a queue."""

    def spill(self, queue: LocalQueue, runs: list[Run]) -> None:
        """Put transient messages into the log; they can be loaded from now on."""

    def load(self, queue: Queue, read: GapRead) -> None:
        """Read the beginning of this gap back; `Queue.on_loaded` follows."""

    def read_range(
        self, queue: int, first: int, last: int, bytes_max: int, then: Callable[[list[Run] | None, int], None]
    ) -> None:
        """Read what the log holds of the messages `first`..`last` of the queue with this id, in order: whole blocks
        until they have `bytes_max`, and always one. `then` gets them, and the number to go on with; or None if they
        cannot be read. A queue keeps its numbers for ever, so this is how what is in the log is read in bulk."""

    def when_loaded(self, queue: LocalQueue, then: Callable[[], None]) -> None:
        """Call `then` when what is being read back for the queue is there, or the queue is gone."""

    def free_later(self, rows: list[deque[Span | Gap]]) -> None:
        """Let go of these, which nobody else has: a million at once would take long."""

    def on_opened(self, queue: LocalQueue) -> None:
        """The queue is open, and was not."""

    def go_on_soon(self, queue: LocalQueue) -> None:
        """Have the queue pumped soon: it has more to drop than this turn has room for."""

    def came_meanwhile(self, queue: LocalQueue) -> int:
        """Return how many messages came since the queue asked for another turn. If fewer were dropped in it, the queue
        could grow without end."""

    def successor(self, queue: AnyQueue) -> AnyQueue | None:
        """Return the queue or proxy that replaces this one since it has another master."""

    def on_unused(self, queue: LocalQueue, then: Callable[[], None] | None) -> None:
        """The last consumer of an auto-delete queue is gone. `then`: called when the queue is gone, too; without a
        majority, before that."""

    def counts_of(self, queue: LocalQueue) -> dict[int, int]:
        """By number: how often messages of the queue were given back, as far as its log knows."""

    def measure(self, queue: LocalQueue, wanted: Wanted) -> Measured:
        """Return which of these messages the log holds, and about how many bytes they have."""

    def note(self, text: str) -> None:
        """A line for the log that people read."""

    def stored_within(self, queue: LocalQueue, first: int, last: int) -> list[tuple[int, int]]:
        """Return which of these messages the log holds, as ascending ranges."""
