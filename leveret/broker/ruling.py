"""What holds for queues, by policies that change while they are used.

A policy holds at once, for whoever sets it is told when it does: a message that is published, rejected or asked for
afterwards has to meet the new rules. But to tell a hundred thousand queues takes a second, in which a node would answer
nobody. So a change has a number (`ruled`), and each queue that of the change it was last told of:

- A queue that is used looks at these two first, and if they differ, it is told now (`Queue.heed`, `rules`). Routes
  remember which queues may refuse something, so they are forgotten with the change, and the next publish asks again.
- All others are told some in each turn (`refresh_some`), because some of them act by themselves: messages grow old, a
  queue that nobody uses goes. For these a policy holds a moment later.

If policies change again before all were told, those that are left are told of both, and then the round begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from leveret.broker.journal import Journal, Options, keep, review
from leveret.cluster.policies import SPENT_MAX, PolicyBook
from leveret.cluster.queue_rules import QueueRules, queue_rules

if TYPE_CHECKING:
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.queue import Queue
    from leveret.broker.vhost import Vhost
    from leveret.cluster.specs import QueueSpec
    from leveret.cluster.store import Metadata

RULED_AT_ONCE: Final = 128  # Queues in a turn.


class Ruling:
    """That part of a broker."""

    journal: Journal | None
    journaling: Options
    queues_by_id: dict[int, AnyQueue]
    vhosts: dict[str, Vhost]

    def begin_ruling(self, metadata: Metadata) -> None:
        self.book = PolicyBook(metadata)
        self.ruled = 0  # How often policies have changed,
        self.outdated: list[AnyQueue] = []  # who has not been told, the next one last,
        self._through = 0  # and how often they had when that was noted.
        self.has_timeouts = False  # Some queue or consumer has had a timeout of its own for deliveries.

    def rules_of(self, spec: QueueSpec) -> QueueRules:
        definition = self.book.of_queue(spec.vhost, spec.name, spec.arguments).definition
        rules = queue_rules(spec.arguments, self.journaling.definition(spec.name, definition))
        if rules.journal:
            self.journal = keep(cast("Broker", self))
        if rules.consumer_timeout_ms is not None:
            self.has_timeouts = True
        return rules

    def refresh_rules(self) -> None:
        """Policies have changed."""
        self.ruled += 1
        for vhost in self.vhosts.values():
            vhost.forget_routes()
        if not self.outdated:
            self._tell_all()

    def _tell_all(self) -> None:
        self._through = self.ruled
        self.outdated = list(self.queues_by_id.values())
        self.outdated.reverse()

    def refresh_some(self) -> None:
        """As far as a turn goes; there is more while some are `outdated`."""
        enough = self.book.spent + SPENT_MAX
        for _ in range(min(RULED_AT_ONCE, len(self.outdated))):
            self.outdated.pop().heed()
            if self.book.spent > enough:
                break
        if not self.outdated:
            if self._through != self.ruled:
                self._tell_all()
            else:
                review(cast("Broker", self))

    def refresh(self, queue: Queue) -> None:
        """A queue is used that has not been told."""
        # One that is about to become a queue of this node is told when it is; one that was needs no rules any more.
        if self.queues_by_id.get(queue.spec.id) is queue:
            queue.ruled = self.ruled
            queue.set_rules(self.rules_of(queue.spec))
