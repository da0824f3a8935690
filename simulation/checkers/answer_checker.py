"""Checks that publishers are answered in time, and counts messages that were refused and are enqueued all the same.

    in time     no publish waits for its answer longer than `net_ticktime` and a second, from when its node has read it
                or its commit has sent it, whatever is cut, lost, stalled or moved: except during an alarm, which
                clients are told of
    kept        publishes that were refused and are in their queue all the same: their clients publish them again, and
                they are there twice. That is allowed, since no node can always know; it is counted

Time is that of the client's node: a node that is frozen cannot answer. So each node has a clock that advances by no
more than `STEP_S` from one pass of its loop to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from leveret.broker.delivery.confirms import Pending
    from leveret.node.node import Node
    from leveret.sessions.amqp.channel import Channel
    from simulation.checkers.ledger import Ledger

STEP_S: Final = 0.1
SLACK_S: Final = 1.2  # A second, and the time to check the clock and to write.


def _unanswered(channel: Channel) -> Iterable[Pending]:
    """Returns publishes that wait for a confirm, or for which a commit waits."""
    if channel.session.confirms is not None:
        return channel.session.confirms.open
    return () if channel.transaction is None else channel.transaction.unsafe


class AnswerChecker:
    """Checks the time of every answer to a publish."""

    def __init__(self, fail: Callable[[str], None], clock: Callable[[], float]) -> None:
        self.fail = fail
        self.clock = clock
        self.awake: dict[str, float] = {}  # By node: how long it has been running,
        self.seen: dict[str, float] = {}  # By node: when it was last seen running.
        self.since: dict[str, dict[Pending, float]] = {}  # By node: since when publishes have no answer.
        self.longest_s = 0.0

    def on_started(self, name: str) -> None:
        self.since[name] = {}

    def observe(self, name: str, node: Node) -> None:
        now = self.clock()
        step = min(now - self.seen.get(name, now), STEP_S)
        self.seen[name] = now
        awake = self.awake[name] = self.awake.get(name, 0.0) + step
        before: dict[Pending, float] = self.since.get(name, {})
        waiting: dict[Pending, float] = {}
        is_told = node.broker.alarm is not None
        for connection in node.broker.connections:
            for channel in connection.channels.values():
                if channel.closing:
                    continue
                for pending in _unanswered(channel):
                    if pending.waiting and not pending.sent:
                        waiting[pending] = awake if is_told else before.get(pending, awake)
        self.since[name] = waiting
        if not waiting:
            return
        oldest = min(waiting.values())
        self.longest_s = max(self.longest_s, awake - oldest)
        if awake - oldest > node.broker.outboxes.answer_ms / 1000 + SLACK_S:
            self.fail(f"a publish at {name} has had no answer for {awake - oldest:.3f} s")

    @staticmethod
    def kept(ledger: Ledger) -> tuple[int, int]:
        """Returns how many publishes were refused, and how many of these were in their queues all the same."""
        refused = [one for one in ledger.messages.values() if one.state == "nacked"]
        return len(refused), sum(bool(one.deliveries) for one in refused)

    def summary(self, ledger: Ledger) -> str:
        refused, kept = self.kept(ledger)
        return f"answers within {self.longest_s:.1f} s, {kept} of {refused} refused and kept"
