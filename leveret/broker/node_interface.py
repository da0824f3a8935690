"""The interface that the broker needs of its surroundings: the node implements it, as do tests and the simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from leveret.base.range_set import Measured, Wanted
    from leveret.broker.delivery.batch import GapRead
    from leveret.broker.mirrors.copy_store import Loading
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.broker.queue.queue import Queue
    from leveret.metadata.model import commands as c
    from leveret.metadata.store import Applied
    from leveret.storage.format.queue_block import Run


class NodeInterface(Protocol):
    """The disk, the links, the log and the consensus, as the broker uses them."""

    def propose(self, command: c.Command, then: Callable[[Applied], None], patient: bool = False) -> None:
        """Get a command agreed on and applied, then call `then`. What is patient is tried until it succeeds."""

    def propose_for(self, client: str, command: c.Command, then: Callable[[Applied], None]) -> None:
        """Do the same for a client, named by its login: one that proposes very many commands is paced."""

    def adopt(self, queue: LocalQueue) -> None:
        """Restore a queue that is at this node now from the log."""

    def load(self, queue: Queue, read: GapRead) -> None:
        """Read the beginning of a gap from the log and call `queue.on_loaded`, then `broker.on_loaded`."""

    def read_range(
        self, queue: int, first: int, last: int, bytes_max: int, then: Callable[[list[Run] | None, int], None]
    ) -> None:
        """Read messages of a queue by their numbers: see `Host`."""

    def read_kind(self, queue: LocalQueue, number: int, then: Callable[[int], None]) -> None:
        """Read the kind of a message in the log, without keeping it; no answer if it is there no longer."""

    def spill(self, queue: LocalQueue, runs: list[Run]) -> None:
        """Put transient messages into the log, to be loaded again."""

    def forget(self, queue: LocalQueue) -> None:
        """The queue is deleted; the log may drop its messages."""

    def forget_log(self, number: int) -> None:
        """The log may drop all messages of the queue with this id."""

    def counts_of(self, number: int) -> dict[int, int]:
        """Returns, from the log, how often messages of the queue with this id were requeued."""

    def settled_of(self, number: int) -> list[tuple[int, int]]:
        """Returns, from the log, which messages of the queue with this id are settled."""

    def measure(self, number: int, wanted: Wanted) -> Measured:
        """Returns which messages the log has of a queue: see `Host`."""

    def read(self, job: Loading, then: Callable[[bool], None]) -> None:
        """Read messages for mirrors; `then` gets whether that was possible."""

    def is_crowded(self) -> bool:
        """Returns whether so much waits for the disk that publishers should wait."""

    def send(self, peer: str, kind: int, parts: list[bytes]) -> None:
        """Send a frame to another node; lost if the link is, which `on_peer_down` then tells."""

    def is_writable(self, peer: str) -> bool:
        """Returns whether the link to another node has room. If not, `on_peer_drained` is called when it does."""

    def cut(self, peer: str, reason: str) -> None:
        """End the session with another node, soon."""

    def unique_name(self, prefix: str) -> str:
        """Returns a name with this prefix that was never used before."""

    def seed(self) -> int:
        """Returns a seed for random numbers, another one each time."""

    def note(self, category: str, level: str, text: str) -> None:
        """Write an entry to the node's log file. Names from clients in it must have passed `visible`."""
