"""Deliberate bugs of streams, delays, transactions, replies and limits: see `mutations`."""

from __future__ import annotations

from typing import Final

from tests.simulation.bugs.mutations import Mutation


def _special(
    name: str, nodes: int, function: str, old: str, new: str, first: int = 0, mirrored: bool = False
) -> Mutation:
    return Mutation(name, nodes, function, old, new, first, mirrored=mirrored, featured=True, special=True)


SPECIAL: Final = (
    # How often messages come back.
    _special(
        "the log is not told how often messages came back",
        1,
        "DeliveryLimit.on_block",
        "unlogged, self.unlogged = self.unlogged, {}\nblock.counts = stretches(unlogged)",
        "self.unlogged = {}",
        first=10,
    ),
    _special(
        "a new master counts anew",
        3,
        "restore_queue",
        "returns.restore(_counts(stored.counts, tail, settled, queue.next_seq), queue.rules.delivery_limit)",
        "returns.restore({}, None)",
        mirrored=True,
        first=1036,
    ),
    _special(
        "one more than the delivery limit",
        1,
        "DeliveryLimit.on_failed",
        "limit is not None and count > limit",
        "limit is not None and count > limit + 1",
        first=2,
    ),
    _special(
        "what comes back once leaves",
        1,
        "DeliveryLimit.on_failed",
        "limit is not None and count > limit",
        "limit is not None and count >= limit",
        first=4,
    ),
    # Streams
    _special(
        "what is not committed is read",
        3,
        "MirrorManager.submit",
        "mirror.add_block(block.number, batch, queue.take_awaiting(), queue.take_due_confirms())",
        "if batch is not None:\n    queue.on_logged(batch)\n"
        "mirror.add_block(block.number, None, queue.take_awaiting(), queue.take_due_confirms())",
        first=8,
        mirrored=True,
    ),
    _special(
        "a reader misses one message when another node leads",
        3,
        "ClientEnd.hand_over",
        "consumer.begins_at = Start(OFFSET, offset_of(span.batch.contents[hi - 1]) + 1)",
        "consumer.begins_at = Start(OFFSET, offset_of(span.batch.contents[hi - 1]) + 2)",
        first=1,
        mirrored=True,
    ),
    _special(
        "a reader begins anew when another node leads",
        3,
        "ClientEnd.hand_over",
        "consumer.begins_at = Start(OFFSET, offset_of(span.batch.contents[hi - 1]) + 1)",
        "pass",
        first=1,
        mirrored=True,
    ),
    _special(
        "offsets count from the first message that is kept",
        1,
        "StreamQueue._dress",
        "made = with_offsets(batch.contents, batch.first - 1)",
        "made = with_offsets(batch.contents, batch.first - self.first)",
    ),
    _special(
        "a stream gives up more than it has to",
        1,
        "Retention._must_go",
        "return due_ms is not None and due_ms <= now_ms",
        "return due_ms is None or due_ms - 3_000 <= now_ms",
        first=1,
    ),
    _special(
        "a stream gives up nothing",
        1,
        "Retention.take",
        "len(self.stretches) > 1 and self.stretches[0].last <= through and self._must_go(now_ms)",
        "False",
    ),
    # Delays
    _special(
        "a delay is half as long",
        1,
        "DelayedQueue._note",
        "due_ms = came_ms + delay_ms(headers(run.contents[at], HEADER_AT) or {})",
        "due_ms = came_ms + delay_ms(headers(run.contents[at], HEADER_AT) or {}) // 2",
        first=1,
    ),
    _special(
        "a delay is twice as long",
        1,
        "DelayedQueue._note",
        "due_ms = came_ms + delay_ms(headers(run.contents[at], HEADER_AT) or {})",
        "due_ms = came_ms + delay_ms(headers(run.contents[at], HEADER_AT) or {}) * 2",
    ),
    _special(
        "what goes out after its delay is settled at once",
        3,
        "DelayedQueue._send",
        "pending = PendingRelease(self, [one.number for one in part], queue)",
        "pending = PendingRelease(self, [], queue)\nself._on_released([one.number for one in part])",
        first=5,
    ),
    _special(
        "a target that cannot be reached is passed over",
        3,
        "DelayedQueue.on_complete",
        "pending.refused and not pending.target.rules.rejects",
        "False",
        first=5,
    ),
    _special(
        "what was delayed before a start is forgotten",
        1,
        "DelayedQueue._take_in",
        "self.unread.append((entry.first, entry.last))",
        "pass",
    ),
    # Transactions
    _special(
        "a rollback forgets only acknowledgements",
        1,
        "Transaction.rollback",
        "self.publishes.clear()\nself._let_go(self.size)",
        "",
    ),
    _special(
        "a rollback acknowledges",
        1,
        "Transaction.rollback",
        "self.settlings = []\nself.channel.session.unacked.put_back()",
        "self.channel.session.unacked.forget_aside()\n"
        "for action, taken in self.settlings:\n"
        "    action(taken)\n"
        "self.settlings = []",
    ),
    _special(
        "a commit is answered before its messages are safe",
        1,
        "Transaction._go_on",
        "not self.publishes and not self.unsafe",
        "not self.publishes and self.done is not None",
        first=265,
    ),
    # Replies
    _special(
        "answers go to whoever asked last",
        1,
        "DirectReplyTo._deliver",
        "inbox = self.inboxes.get(address)",
        "inbox = next(reversed(self.inboxes.values()), None)",
    ),
    _special(
        "answers do not get to other nodes",
        3,
        "DirectReplyTo.answer",
        "peer in self.broker.client_ends",
        "False",
    ),
    # Limits
    _special(
        "the clients of a node that died are still counted",
        3,
        "ConnectionLimits.on_peer_down",
        "self.others.pop(peer, None)",
        "pass",
    ),
    _special(
        "channels of lost connections are still counted",
        1,
        "Connection.release_all",
        "self.broker.connection_limits.on_channels(self.user, -len(self.channels))",
        "",
    ),
    _special(
        "one queue more than the limit",
        3,
        "Metadata._declare_queue",
        "0 <= limit <= self.queue_counts[vhost.name]",
        "0 <= limit < self.queue_counts[vhost.name]",
        first=11,
    ),
)
