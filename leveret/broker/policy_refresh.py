"""Applies changed policies to queues while these are used.

A policy holds at once, for whoever sets it is told when it does: a message that is published, rejected or asked for
afterwards has to meet the new rules. But to tell a hundred thousand queues takes a second, in which a node would answer
nobody. So a change has a number (`Broker.policy_version`), and each queue that of the change it was last told of:

- A queue that is used looks at these two first, and if they differ, it is told now (`Queue.refresh_rules`, `rules`).
  Routes remember which queues may refuse something, so they are forgotten with the change, and the next publish asks
  again.
- All others are told some in each turn (`refresh_some`), because some of them act by themselves: messages grow old, a
  queue that nobody uses goes. For these a policy holds a moment later.

If policies change again before all were told, those that are left are told of both, and then the round begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from leveret.broker.event_journal.node_journal import review
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.rules.policies import SPENT_MAX, Policies
from leveret.metadata.rules.queue_rules import PLAIN, QueueRules, queue_rules

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.broker.broker import AnyQueue, Broker
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.metadata.model.records import QueueSpec

RULED_AT_ONCE: Final = 128  # Queues in a turn.


class PolicyRefresh:
    """Tells the queues of a broker which policies hold for them."""

    __slots__ = ("_last", "_through", "book", "broker", "has_timeouts", "outdated")

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.book = Policies(broker.metadata)
        self.outdated: list[AnyQueue] = []  # Queues that may not know the last change; the next one is last.
        self._last: tuple[Mapping[str, Json], QueueRules] = ({}, PLAIN)  # What the last definition means by itself.
        self._through = 0  # `Broker.policy_version` when that list was made.
        self.has_timeouts = False  # Some queue or consumer has had a timeout of its own for deliveries.

    def rules_of(self, spec: QueueSpec) -> QueueRules:
        """Returns the rules for the messages of a queue, from its arguments and policies. No policy makes delayed
        messages grow old, or too many."""
        if is_hidden_queue(spec.name):
            return PLAIN
        broker = self.broker
        definition = self.book.of_queue(spec.vhost, spec.name, spec.arguments).definition
        definition = broker.journaling.definition(spec.name, definition)
        if spec.arguments:
            rules = queue_rules(spec.arguments, definition)
        elif self._last[0] is definition:
            rules = self._last[1]  # Of very many queues that are declared in a row, most have the same policy.
        else:
            rules = queue_rules(spec.arguments, definition)
            self._last = (definition, rules)
        if rules.journal:
            broker.keep_journal()
        if rules.consumer_timeout_ms is not None:
            self.has_timeouts = True
        return rules

    def on_consumer_timeout(self) -> None:
        """A consumer came that has a timeout of its own for deliveries."""
        self.has_timeouts = True

    def on_changed(self) -> None:
        """Policies have changed: a round begins in which all queues are told, after the one that is under way."""
        if not self.outdated:
            self._tell_all()

    def _tell_all(self) -> None:
        self._through = self.broker.policy_version
        self.outdated = list(self.broker.queues_by_id.values())
        self.outdated.reverse()

    def refresh_some(self) -> None:
        """Tells as many queues as a turn allows; there is more to do while some are `outdated`."""
        enough = self.book.spent + SPENT_MAX
        for _ in range(min(RULED_AT_ONCE, len(self.outdated))):
            self.outdated.pop().refresh_rules()
            if self.book.spent > enough:
                break
        if not self.outdated:
            if self._through != self.broker.policy_version:
                self._tell_all()
            else:
                review(self.broker)

    def refresh(self, queue: LocalQueue) -> None:
        """Tells one queue, which is used and has not been told."""
        # One that is about to become a queue of this node is told when it is; one that was needs no rules any more.
        if self.broker.queues_by_id.get(queue.spec.id) is queue:
            queue.refresh(self.broker.policy_version, self.rules_of(queue.spec))
