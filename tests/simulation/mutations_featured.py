"""Deliberate bugs of what queues do with their messages by themselves: see `mutations`."""

from __future__ import annotations

from typing import Final

from .mutations import Mutation


def _featured(
    name: str, nodes: int, module: str, old: str, new: str, first: int = 0, mirrored: bool = False
) -> Mutation:
    return Mutation(name, nodes, module, old, new, first, mirrored=mirrored, featured=True)


FEATURED: Final = (
    _featured(
        "a message is settled before its letter is safe",
        3,
        "broker.letters",
        "            self._post(queues, contents, key, batch.kinds[lo + first : lo + last], letter)\n",
        "            letter.void = True\n            queue.settle(batch, lo + first, lo + last)\n"
        "            self._post(queues, contents, key, batch.kinds[lo + first : lo + last], letter)\n",
        first=8,
    ),
    _featured(
        "a letter that is refused is lost",
        1,
        "broker.letters",
        "        if pending.refused and queue.rules.keeps_dead:\n",
        "        if False:\n",
        first=2,
    ),
    _featured(
        "letters to a queue that refuses some are all refused",
        1,
        "broker.letters",
        "            if one[1:3] != other[1:3] or any(target.rules.rejects for target in one[2])\n",
        "            if one[1:3] != other[1:3]\n",
        first=5,
    ),
    _featured(
        "what is read back has come just now",
        1,
        "log.format",
        "    return times\n",
        "    return []\n",
    ),
    _featured(
        "a start gives no queue its time",
        1,
        "broker.broker",
        "        if is_used:\n            queue.used_ms = self.now_ms\n"
        "        due_ms = max(queue.used_ms, self.opened_ms)",
        "        due_ms = queue.used_ms",
    ),
    _featured(
        "what is overdue behind others is handed out with them",
        1,
        "broker.upkeep",
        "    while at < end and not _is_overdue(batch, at, now_ms):\n",
        "    while at < end:\n",
        first=18,
    ),
    _featured(
        "messages expire a moment after they came",
        1,
        "broker.upkeep",
        "    return (None if ttl_ms is None else came_ms + ttl_ms), end\n",
        "    return (None if ttl_ms is None else came_ms + ttl_ms // 2), end\n",
    ),
    _featured(
        "the newest are dropped",
        1,
        "broker.upkeep",
        '        dropped = min(count, head.count)\n        queue.drop_first(head, dropped, "maxlen")\n',
        "        if not hasattr(ready, 'pop'):\n            return\n"
        "        last = ready.pop()\n        dropped = last.count\n        queue.ready_count -= dropped\n"
        '        queue.bury(last.batch, last.lo, last.hi, "maxlen")\n',
        first=3,
    ),
    _featured(
        "what is turned away is confirmed",
        1,
        "broker.upkeep",
        "    if pending is not None:\n        pending.refused = True\n    return True\n",
        "    return True\n",
        first=2,
    ),
    _featured(
        "a queue with a single active consumer has two",
        1,
        "broker.turns",
        "        if self.active is not None:\n            return self._give_all",
        "        if False:\n            return self._give_all",
        first=2,
    ),
    _featured(
        "confirms are numbered by their messages' ways",
        1,
        "amqp.intake",
        "self.submit()  # Confirms are numbered in the order in which messages came, whatever their ways.\n",
        "pass\n",
        first=200,
    ),
    _featured(
        "a bundle from another node is refused as a whole",
        3,
        "broker.edge",
        " or self.bundled_bytes > FLUSH_BYTES or queue.rules.rejects:\n",
        " or self.bundled_bytes > FLUSH_BYTES:\n",
        first=600034,
        mirrored=True,
    ),
    _featured(
        "letters are on their way while their queue moves",
        3,
        "broker.moving",
        "        self.broker.letters.take_back(queue)\n",
        "        pass\n",
        first=800176,
    ),
    _featured(
        "a new master does not know that messages grow old",
        3,
        "mirror.store",
        "    if batch.expires:\n        queue.timed = queue.tended = True\n",
        "",
        first=1,
        mirrored=True,
    ),
    _featured(
        "at a new master, messages have come just now",
        3,
        "mirror.store",
        "bytearray(run.kinds), run.times))\n    batch.logged",
        "bytearray(run.kinds), []))\n    batch.logged",
        first=1,
        mirrored=True,
    ),
)
