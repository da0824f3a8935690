"""Consumers that keep messages too long.

How long a delivery may wait for its acknowledgement is said by the consumer (`x-consumer-timeout`), else by its queue
(argument or policy `consumer-timeout`), else by the node. What follows is said by the queue: its channel is closed, as
RabbitMQ does, and all that the channel had goes to others; or with `consumer-timeout-action: requeue` just what is late
goes back, and the channel goes on. Such a client may still acknowledge, later: that is forgiven, but the message is no
longer its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.metadata.model.refusals import Refusal
from leveret.protocol.errors import ReplyCode

if TYPE_CHECKING:
    from leveret.broker.delivery.unacked import Delivered
    from leveret.broker.session.session import Session

LATE_TAGS_MAX: Final = 65_536  # Tags that a channel may still acknowledge; a client that has more of them is closed.


def timeout_of(delivered: Delivered, default_ms: int | None) -> int | None:
    consumer = delivered.consumer
    own_ms = None if consumer is None else consumer.timeout_ms
    return own_ms or delivered.queue.rules.consumer_timeout_ms or default_ms


def check_age(session: Session, now_ms: int, default_ms: int | None) -> None:
    """End the session, or take back what is late."""
    if session.is_closed or not session.unacked.count:
        return
    policies = session.broker.policies
    if not policies.has_timeouts and not policies.outdated:  # Then the oldest delivery tells all.
        oldest_ms = session.unacked.oldest_ms()
        if default_ms is None or oldest_ms is None or now_ms - oldest_ms <= default_ms:
            return
    late: list[Delivered] = []
    for delivered in session.unacked:
        timeout_ms = timeout_of(delivered, default_ms)
        if timeout_ms is None or now_ms - delivered.at_ms <= timeout_ms:
            continue
        if not delivered.queue.rules.requeues_late or len(session.late_tags) + delivered.count > LATE_TAGS_MAX:
            _close(session, timeout_ms)
            return
        late.append(delivered)
    for delivered in late:
        session.take_back_late(delivered)


def _close(session: Session, timeout_ms: int) -> None:
    text = (
        f"delivery acknowledgement on channel {session.number} timed out. Timeout value used: {timeout_ms} ms. "
        "This timeout value can be configured, see consumers doc guide to learn more"
    )
    session.client.fail(session, Refusal(ReplyCode.PRECONDITION_FAILED, text))
