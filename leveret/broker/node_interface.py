"""What the broker needs of the world: the node it runs in gives it, a test or the simulation another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.base.range_set import Measured, Wanted
    from leveret.broker.delivery.batch import Gap
    from leveret.broker.mirrors.copy_store import Loading
    from leveret.broker.queue.queue import Queue
    from leveret.metadata.model import commands as c
    from leveret.metadata.store import Applied
    from leveret.storage.format.queue_block import Run


class Shell(Protocol):
    """What the broker needs of the world."""

    def propose(self, command: c.Command, then: Callable[[Applied], None], patient: bool = False) -> None:
        """Get a command agreed on and applied, then call `then`. What is patient is tried until it succeeds."""

    def adopt(self, queue: Queue) -> None:
        """A queue has come to be here: give it what the log holds of it."""

    def load(self, queue: Queue, gap: Gap) -> None:
        """Read the beginning of a gap from the log and call `queue.on_loaded`, then `broker.on_loaded`."""

    def read_range(
        self, queue: int, first: int, last: int, bytes_max: int, then: Callable[[list[Run] | None, int], None]
    ) -> None:
        """Read messages of a queue by their numbers: see `Host`."""

    def read_kind(self, queue: Queue, number: int, then: Callable[[int], None]) -> None:
        """Find out of what kind a message in the log is, without keeping it; no answer if it is there no longer."""

    def spill(self, queue: Queue, runs: list[Run]) -> None:
        """Put transient messages into the log, to be loaded again."""

    def forget(self, queue: Queue) -> None:
        """The queue is deleted; the log may drop its messages."""

    def forget_log(self, number: int) -> None:
        """The log may drop all messages of the queue with this id."""

    def counts_of(self, number: int) -> dict[int, int]:
        """How often messages of the queue with this id were given back, by the log."""

    def settled_of(self, number: int) -> list[tuple[int, int]]:
        """Which messages of the queue with this id are settled, by the log."""

    def measure(self, number: int, wanted: Wanted) -> Measured:
        """Which messages the log has of a queue: see `Host`."""

    def read(self, job: Loading, then: Callable[[bool], None]) -> None:
        """Read messages for mirrors; `then` whether that was possible."""

    def is_crowded(self) -> bool:
        """Whether too much waits for the disk, so that publishers should."""

    def send(self, peer: str, kind: int, parts: list[bytes]) -> None:
        """Send a frame to another node; lost if the link is, which `on_peer_down` then tells."""

    def is_writable(self, peer: str) -> bool:
        """Whether the link to another node takes more. If not, `on_peer_drained` comes when it does."""

    def cut(self, peer: str, reason: str) -> None:
        """End the session with another node, soon."""

    def unique_name(self, prefix: str) -> str:
        """The prefix, and something nobody has used before."""

    def seed(self) -> int:
        """A number to make choices by; another one each time."""

    def note(self, category: str, level: str, text: str) -> None:
        """An entry for the log that people read. Its lines are ours: names in it have passed `visible`."""
