"""A commit of very many queues."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.node import storage
from leveret.node.storage import Storage
from leveret.protocol import methods as m
from leveret.storage.format.queue_block import Block
from tests.support.machines import World, publish


class Files:
    """A log that takes blocks and writes none."""

    mirrors = None

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def append(self, block: Block) -> None:
        self.blocks.append(block)

    def take(self) -> None:
        return None


def test_a_commit_takes_a_part_of_very_many_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they changed; what changes meanwhile comes last."""
    monkeypatch.setattr(storage, "BLOCKS_MAX", 3)
    shell = SimpleNamespace(loop=SimpleNamespace(time=float), disk=None, worker=str, wall_ms=lambda: 5)
    files, world = Files(), World()
    disk = Storage(cast(Any, shell), cast(Any, files), lambda: None, lambda full: None, lambda text: None)
    client = world.client()
    for number in range(7):
        client.declare(f"q{number}", durable=True)
        client.call(m.QueueBind(queue=f"q{number}", exchange="amq.fanout"))
    names = {world.queue(f"q{number}").spec.id: number for number in range(7)}
    client.feed(publish(1, "amq.fanout", "", b"x", delivery_mode=2))
    world.broker.pump()
    order = [queue.spec.id for queue in world.broker.unlogged]
    disk.commit(world.broker)
    assert [block.queue for block in files.blocks] == order[:3]
    first = world.queue(f"q{names[order[0]]}")
    client.feed(publish(1, "amq.fanout", "", b"x", delivery_mode=2))
    world.broker.pump()
    disk.commit(world.broker)
    disk.commit(world.broker)
    assert [block.queue for block in files.blocks[:7]] == order
    while world.broker.unlogged:
        disk.commit(world.broker)
    assert sum(len(block.enqueued.contents) for block in files.blocks if block.enqueued is not None) == 14
    assert world.broker.unlogged_bytes == 0 and first.open is None
