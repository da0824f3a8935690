"""Checks limits that apply to the whole cluster: of connections, channels and queues.

queues          there are never more than the limit of a vhost, whichever clients declare them at the same time, and
                what was declared is there: all of it goes through one list of commands
connections     no node accepts more than the limit by itself. Nodes learn of each other's with a delay, and may accept
                too many together meanwhile; that is not checked. But in the end, without faults, and where each has
                heard what the others have, exactly as many connections are accepted as the limit says, whichever node
                died with how many
channels        likewise
"""

from __future__ import annotations

from collections.abc import Callable

from simulation.features.broker_features import CONNECTIONS_MAX, QUEUES_MAX


class LimitsChecker:
    """Checks the limits of the vhost `tight`, by what clients see of it."""

    def __init__(self, fail: Callable[[str], None], is_disturbed: Callable[[], bool]) -> None:
        self.fail = fail
        self.is_disturbed = is_disturbed
        self.queues: set[str] = set()  # Queues that exist for certain, and that nobody has tried to delete.
        self.refused = self.accepted = 0

    def on_taken(self, node: str, there: int) -> None:
        """A node has accepted a connection. `there`: how many of its connections are still open."""
        self.accepted += 1
        if there > CONNECTIONS_MAX and not self.is_disturbed():
            self.fail(f"{node} has {there} connections in a vhost that may have {CONNECTIONS_MAX}")

    def on_refused(self) -> None:
        self.refused += 1

    def on_declared(self, queue: str, may_be_lost: bool) -> None:
        self.queues.add(queue)
        if len(self.queues) > QUEUES_MAX and not may_be_lost:
            self.fail(f"in a vhost that may have {QUEUES_MAX} queues there are {sorted(self.queues)}")

    def on_deleting(self, queue: str) -> None:
        self.queues.discard(queue)

    def on_known(self, node: str, queues: set[str], may_be_lost: bool) -> None:
        """Checks what a node knows in the end. `may_be_lost`: queues may be lost with a disk."""
        if len(queues) > QUEUES_MAX or (not self.queues <= queues and not may_be_lost):
            self.fail(f"{node} knows of {sorted(queues)}; {sorted(self.queues)} were declared, {QUEUES_MAX} at most")

    def on_room(self, what: str, taken: int, limit: int) -> None:
        """Checks how many connections were accepted in the end."""
        if taken != limit:
            self.fail(f"{taken} {what} were let in when all was quiet; the limit is {limit}")

    def summary(self) -> str:
        return f"{self.refused} of {self.refused + self.accepted} turned away"
