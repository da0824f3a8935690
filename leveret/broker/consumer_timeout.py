"""Consumers that keep messages too long.

How long a delivery may wait for its acknowledgement is said by the consumer (`x-consumer-timeout`), else by its queue
(argument or policy `consumer-timeout`), else by the node. What follows is said by the queue: its channel is closed, as
RabbitMQ does, and all that the channel had goes to others; or with `consumer-timeout-action: requeue` just what is late
goes back, and the channel goes on. Such a client may still acknowledge, later: that is forgiven, but the message is no
longer its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.protocol.errors import ChannelFault, ReplyCode

if TYPE_CHECKING:
    from leveret.broker.delivery.unacked import Delivered
    from leveret.sessions.amqp.channel import Channel

FORGIVEN_MAX: Final = 65_536  # Tags that a channel may still acknowledge; a client that has more of them is closed.


def timeout_of(delivered: Delivered, default_ms: int | None) -> int | None:
    consumer = delivered.consumer
    own_ms = None if consumer is None else consumer.timeout_ms
    return own_ms or delivered.queue.rules.consumer_timeout_ms or default_ms


def check_age(channel: Channel, now_ms: int, default_ms: int | None) -> None:
    """End the channel, or take back what is late."""
    if channel.closing or not channel.unacked.count:
        return
    policies = channel.broker.policies
    if not policies.has_timeouts and not policies.outdated:  # Then the oldest delivery tells all.
        oldest_ms = channel.unacked.oldest_ms()
        if default_ms is None or oldest_ms is None or now_ms - oldest_ms <= default_ms:
            return
    late: list[Delivered] = []
    for delivered in channel.unacked:
        timeout_ms = timeout_of(delivered, default_ms)
        if timeout_ms is None or now_ms - delivered.at_ms <= timeout_ms:
            continue
        if not delivered.queue.rules.requeues_late or len(channel.forgiven) + delivered.count > FORGIVEN_MAX:
            _close(channel, timeout_ms)
            return
        late.append(delivered)
    for delivered in late:
        channel.forgiven.update(range(delivered.first_tag, delivered.last_tag + 1))
        channel.take_back(channel.unacked.take_range(delivered.first_tag, delivered.last_tag))


def _close(channel: Channel, timeout_ms: int) -> None:
    text = (
        f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: {timeout_ms} ms. "
        "This timeout value can be configured, see consumers doc guide to learn more"
    )
    channel.connection.close_channel(channel, ChannelFault(ReplyCode.PRECONDITION_FAILED, text))
