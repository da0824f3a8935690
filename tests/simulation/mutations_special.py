"""Deliberate bugs of streams, delays, transactions, replies and limits: see `mutations`."""

from __future__ import annotations

from typing import Final

from .mutations import Mutation


def _special(
    name: str, nodes: int, module: str, old: str, new: str, first: int = 0, mirrored: bool = False
) -> Mutation:
    return Mutation(name, nodes, module, old, new, first, mirrored=mirrored, featured=True, special=True)


SPECIAL: Final = (
    # How often messages come back.
    _special(
        "the log is not told how often messages came back",
        1,
        "broker.returns",
        "        untold, self.untold = self.untold, {}\n        return stretches(untold)\n",
        "        self.untold = {}\n        return []\n",
        first=10,
    ),
    _special(
        "a new master counts anew",
        3,
        "mirror.store",
        "        queue.returns.restore(_counts(",
        "        queue.returns.restore({}, None) if True else queue.returns.restore(_counts(",
        mirrored=True,
        first=4,
    ),
    _special(
        "one more than the delivery limit",
        1,
        "broker.returns",
        "            if limit is not None and count > limit:\n",
        "            if limit is not None and count > limit + 1:\n",
        first=2,
    ),
    _special(
        "what comes back once leaves",
        1,
        "broker.returns",
        "            if limit is not None and count > limit:\n",
        "            if limit is not None and count >= limit:\n",
        first=4,
    ),
    # Streams
    _special(
        "what is not committed is read",
        3,
        "broker.mirrored",
        "            mirror.in_blocks.append((block.number, batch, awaiting))\n",
        "            if batch is not None:\n                queue.on_logged(batch)\n"
        "            mirror.in_blocks.append((block.number, None, awaiting))\n",
        first=8,
        mirrored=True,
    ),
    _special(
        "a reader misses one message when another node leads",
        3,
        "broker.edge",
        "                consumer.begins_at = Start(OFFSET, offset_of(span.batch.contents[hi - 1]) + 1)\n",
        "                consumer.begins_at = Start(OFFSET, offset_of(span.batch.contents[hi - 1]) + 2)\n",
        first=1,
        mirrored=True,
    ),
    _special(
        "a reader begins anew when another node leads",
        3,
        "broker.edge",
        "                consumer.begins_at = Start(OFFSET, offset_of(span.batch.contents[hi - 1]) + 1)\n",
        "                pass\n",
        first=1,
        mirrored=True,
    ),
    _special(
        "the next message is one that was restored",
        1,
        "broker.stream",
        "            following = max(self.committed, self.restored) + 1\n",
        "            following = self.committed + 1\n",
        first=597,
    ),
    _special(
        "offsets count from the first message that is kept",
        1,
        "broker.stream",
        "        made = with_offsets(batch.contents, batch.first - 1)\n",
        "        made = with_offsets(batch.contents, batch.first - self.first)\n",
    ),
    _special(
        "a stream gives up more than it has to",
        1,
        "broker.retention",
        "        return due_ms is not None and due_ms <= now_ms\n",
        "        return due_ms is None or due_ms - 3_000 <= now_ms\n",
        first=1,
    ),
    _special(
        "a stream gives up nothing",
        1,
        "broker.retention",
        "        last = 0\n        while len(self.stretches) > 1",
        "        last = 0\n        while False and len(self.stretches) > 1",
    ),
    # Delays
    _special(
        "a delay is half as long",
        1,
        "broker.delays",
        "            due_ms = came_ms + delay_ms(headers(run.contents[at], HEADER_AT) or {})\n",
        "            due_ms = came_ms + delay_ms(headers(run.contents[at], HEADER_AT) or {}) // 2\n",
        first=1,
    ),
    _special(
        "a delay is twice as long",
        1,
        "broker.delays",
        "            due_ms = came_ms + delay_ms(headers(run.contents[at], HEADER_AT) or {})\n",
        "            due_ms = came_ms + delay_ms(headers(run.contents[at], HEADER_AT) or {}) * 2\n",
    ),
    _special(
        "what goes out after its delay is settled at once",
        3,
        "broker.delays",
        "                flight = Flight(self, [one.number for one in part], queue)\n",
        "                flight = Flight(self, [], queue)\n"
        "                self._on_landed([one.number for one in part])\n",
        first=5,
    ),
    _special(
        "a target that cannot be reached is passed over",
        3,
        "broker.delays",
        "        if pending.refused and not pending.target.rules.rejects:\n",
        "        if False:\n",
        first=5,
    ),
    _special(
        "what was delayed before a start is forgotten",
        1,
        "broker.delays",
        "                self.unread.append((entry.first, entry.last))\n",
        "                pass\n",
    ),
    # Transactions
    _special(
        "a rollback forgets only acknowledgements",
        1,
        "amqp.transactions",
        "        self.publishes.clear()\n        self._let_go(self.size)\n\n    def _let_go",
        "\n    def _let_go",
    ),
    _special(
        "a rollback acknowledges",
        1,
        "amqp.transactions",
        "        self.settlings = []\n        self.channel.unacked.put_back()\n",
        "        self.channel.unacked.forget_aside()\n        for action, taken in self.settlings:\n"
        "            action(taken)\n        self.settlings = []\n",
    ),
    _special(
        "a commit is answered before its messages are safe",
        1,
        "amqp.transactions",
        "        if not self.publishes and not self.unsafe:\n            self._end()\n",
        "        if not self.publishes and self.done is not None:\n            self._end()\n",
        first=186,
    ),
    # Replies
    _special(
        "answers go to whoever asked last",
        1,
        "broker.replies",
        "        inbox = self.inboxes.get(address)\n",
        "        inbox = next(reversed(self.inboxes.values()), None)\n",
    ),
    _special(
        "answers do not get to other nodes",
        3,
        "broker.replies",
        "            elif peer in self.broker.edges and (",
        "            elif False and (",
    ),
    # Limits
    _special(
        "the clients of a node that died are still counted",
        3,
        "broker.census",
        "        self.others.pop(peer, None)\n",
        "        pass\n",
    ),
    _special(
        "channels of lost connections are still counted",
        1,
        "amqp.connection",
        "        self.broker.census.on_channels(self.user, -len(self.channels))\n",
        "",
    ),
    _special(
        "one queue more than the limit",
        3,
        "cluster.store",
        "        if 0 <= limit <= self.queue_counts[vhost.name]:\n",
        "        if 0 <= limit < self.queue_counts[vhost.name]:\n",
        first=11,
    ),
)
