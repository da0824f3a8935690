"""Deliberate bugs of what queues do with their messages by themselves: see `mutations`."""

from __future__ import annotations

from typing import Final

from tests.simulation.bugs.mutations import Mutation


def _featured(
    name: str, nodes: int, function: str, old: str, new: str, first: int = 0, mirrored: bool = False
) -> Mutation:
    return Mutation(name, nodes, function, old, new, first, mirrored=mirrored, featured=True)


FEATURED: Final = (
    _featured(
        "a message is settled before its letter is safe",
        3,
        "DeadLetterPublisher._send",
        "self._post(stretch.queues, stretch.contents, stretch.key, batch.kinds[first:last], letter)",
        "letter.void = True\n"
        "queue.settle(batch, first, last)\n"
        "self._post(stretch.queues, stretch.contents, stretch.key, batch.kinds[first:last], letter)",
        first=8,
    ),
    _featured(
        "a letter that is refused is lost",
        1,
        "DeadLetterPublisher.on_complete",
        "pending.refused and queue.rules.keeps_dead",
        "False",
        first=2,
    ),
    _featured(
        "letters to a queue that refuses some are all refused",
        1,
        "DeadLetterPublisher._stretches",
        "is_single = any(target.rules.rejects for target in queues)",
        "is_single = False",
        first=5,
    ),
    _featured(
        "what is read back has come just now",
        1,
        "decode_times",
        "return times",
        "return []",
    ),
    _featured(
        "a start gives no queue its time",
        1,
        "Broker._on_idle",
        "if is_used:\n    queue.touch()\ndue_ms = max(queue.used_ms, self.opened_ms) + expires_ms",
        "due_ms = queue.used_ms + expires_ms",
    ),
    _featured(
        "what is overdue behind others is handed out with them",
        1,
        "is_fresh",
        "at < end and not _is_overdue(batch, at, now_ms)",
        "at < end",
        first=18,
    ),
    _featured(
        "messages expire a moment after they came",
        1,
        "_due",
        "return (None if ttl_ms is None else came_ms + ttl_ms), end",
        "return (None if ttl_ms is None else came_ms + ttl_ms // 2), end",
    ),
    _featured(
        "the newest are dropped",
        1,
        "_drop",
        'dropped = min(count, head.count)\nqueue.drop_first(head, dropped, "maxlen")',
        "if not hasattr(ready, 'pop'):\n"
        "    return\n"
        "last = ready.pop()\n"
        "dropped = last.count\n"
        "queue.ready_count -= dropped\n"
        'queue.dead_letter_or_drop(last.batch, last.lo, last.hi, "maxlen")',
        first=3,
    ),
    _featured(
        "what is turned away is confirmed",
        1,
        "turn_away",
        "if pending is not None:\n    pending.mark_refused()",
        "",
        first=2,
    ),
    _featured(
        "a queue with a single active consumer has two",
        1,
        "ConsumerOrder.share",
        "self.active is not None",
        "False",
        first=2,
    ),
    _featured(
        "a bundle from another node is refused as a whole",
        3,
        "ClientEnd.publish",
        "bundle is None or bundle.kind != kind or self.bundled_bytes > FLUSH_BYTES or queue.rules.rejects",
        "bundle is None or bundle.kind != kind or self.bundled_bytes > FLUSH_BYTES",
        first=600034,
        mirrored=True,
    ),
    _featured(
        "letters are on their way while their queue moves",
        3,
        "Departure._on_adopted",
        "self.broker.dead_letters.take_back(queue)",
        "pass",
        first=800176,
    ),
    _featured(
        "a new master does not know that messages grow old",
        3,
        "OrderedQueue.restore_batch",
        "if batch.expires:\n    self.watch_ages()",
        "",
        first=1,
        mirrored=True,
    ),
    _featured(
        "at a new master, messages have come just now",
        3,
        "add_batch",
        "batch = Batch.loaded(Run(run.first, run.contents, run.keys, bytearray(run.kinds), run.times))",
        "batch = Batch.loaded(Run(run.first, run.contents, run.keys, bytearray(run.kinds), []))",
        first=1,
        mirrored=True,
    ),
)
