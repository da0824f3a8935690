"""What is added to a queue: who is told of which event, and that a plain queue has nothing."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

from leveret.broker.delivery.extension import EVENTS, Extension
from leveret.broker.queue import ordered_queue, queue, state
from leveret.storage.format.queue_block import PERSISTENT, Block
from tests.unit.broker.queue.test_queue import Host, Taker, a_queue, put

FEATURES = {
    "dedup", "delivery_claims", "delivery_limit", "features", "lease", "leases", "node_journal", "queue_journal",
}  # fmt: skip


class Listener(Extension):
    """Hears everything."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def take(self) -> list[str]:
        found, self.heard = self.heard, []
        return found


def _hear(event: str) -> Callable[..., None]:
    return lambda self, *given: self.heard.append(event)


for event in EVENTS:
    setattr(Listener, event, _hear(event))


class Counter(Extension):
    """Hears of one event."""

    def __init__(self) -> None:
        self.count = 0

    def on_enqueued(self, count: int, kind: int, pending: Any) -> None:
        self.count += count


def test_events_come_in_the_order_in_which_things_happen() -> None:
    host = Host()
    queue, listener = a_queue(host), Listener()
    queue.extend(listener)
    put(queue, b"1", b"2")
    assert set(listener.take()) == {"on_enqueued"}
    taker = Taker(room=1)
    queue.add_consumer(taker)
    queue.pump()
    assert listener.take() == ["on_turn", "on_delivered"]
    block = queue.take_block(1)
    assert isinstance(block, Block) and listener.take() == ["on_settlement", "on_block"]
    batch, at = taker.got[0]
    queue.requeue(batch, at, at + 1)
    assert listener.take() == ["on_failed", "on_returned"]
    assert queue.purge() == 2
    assert set(listener.take()) == {"on_unserved", "on_settled"}
    queue.on_deleted()
    assert listener.take()[0] == "on_gone" and queue.extensions is None


def test_only_those_are_called_that_want_to_hear() -> None:
    queue, counter = a_queue(Host()), Counter()
    assert queue.extensions is None and queue.extension(Counter) is None
    queue.extend(counter)
    assert queue.extension(Counter) is counter and queue.extensions is not None
    wanted = [name for name in EVENTS if getattr(queue.extensions, name)]
    assert wanted == ["on_enqueued"]
    queue.enqueue([b"x"], [b""], PERSISTENT, 1, None)
    assert counter.count == 1
    queue.remove_extension(counter)
    assert queue.extensions is None


def test_a_plain_queue_knows_no_feature_by_name() -> None:
    for module in (queue, ordered_queue, state):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.ImportFrom):
                names = {*(node.module or "").split("."), *(one.name for one in node.names)}
                assert not names & FEATURES, (module.__name__, names & FEATURES)
