"""The checker of mirrors says no where it has to, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.metadata.model.records import QueueSpec
from leveret.metadata.model.view import View
from leveret.metadata.rules.ha_policy import Rules
from leveret.replication.ring_frames import Append
from leveret.storage.format.queue_block import Block, Run
from simulation.checkers.ledger import Message
from simulation.checkers.mirror_checker import MirrorChecker, MirroredLedger

ID = 11
IN_SYNC = (("leveret@n2", "disk2"), ("leveret@n3", "disk3"))
SPEC = QueueSpec(ID, "/", "q", node="leveret@n3", view=View(2, 2, "leveret@n3", ("leveret@n2", "leveret@n3"), IN_SYNC))
AGAIN = replace(SPEC, id=ID + 1, view=View(1, 1, "leveret@n3", ("leveret@n3",), IN_SYNC[1:]))


def a_node(index: int, *specs: QueueSpec) -> Any:
    """A node as the checker sees it: what it has applied, and the queues that it knows of."""
    store = SimpleNamespace(apply=lambda effect: None, write=lambda number, effect: None)
    return SimpleNamespace(
        broker=SimpleNamespace(mirrors=SimpleNamespace(store=store, mirrors={})),
        cluster=SimpleNamespace(applied_index=index),
        metadata=SimpleNamespace(queues={(one.vhost, one.name): one for one in specs}, policies={}),
        member_changes=SimpleNamespace(rules_of=lambda spec: Rules({})),
    )


class Ring:
    """A queue whose master n3 has written a message that its mirror n2, in sync, does not have."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.ledger = MirroredLedger(self.failures.append, lambda who, text: None, lambda: 1.0)
        self.checker = MirrorChecker(self.failures.append, self.ledger, lambda: 1.0, lambda name: True)
        mirror, master = a_node(7, SPEC), a_node(8, SPEC)
        self.checker.observe("n2", mirror)
        self.checker.observe("n3", master)
        member = SimpleNamespace(disk="disk2", own_durable=4, tail=SimpleNamespace(epoch_at=lambda number: 0))
        mirror.broker.mirrors.mirrors[ID] = SimpleNamespace(member=member)
        self.message: Message = self.ledger.on_published("q", "channel", True, 0.5)
        content = b"\x02\0\x01" + bytes(4) + bytes(8) + b"1 "
        block = Block(ID, 2, 5, 0, Run(1, [content], [b""], bytearray(1)), [], [], 0)
        master.broker.mirrors.store.write(ID, SimpleNamespace(change=Append((block,))))


@pytest.mark.parametrize(
    ("index", "specs", "is_excused"),
    [
        pytest.param(9, (SPEC,), False, id="the queue is there"),
        pytest.param(9, (), True, id="it was deleted, and its mirror has not heard of it"),
        pytest.param(9, (AGAIN,), True, id="it was deleted, and declared again"),
        pytest.param(3, (), False, id="a node was reset, and knows of no queue"),
    ],
)
def test_what_is_confirmed_is_on_each_disk_unless_its_queue_is_deleted(
    index: int, specs: tuple[QueueSpec, ...], is_excused: bool
) -> None:
    ring = Ring()
    ring.checker.observe("n3", a_node(index, *specs))
    ring.ledger.on_confirmed(ring.message, 1.0)
    lacking = "message 1 of q is confirmed, and leveret@n2, which is in sync, does not have it on disk"
    assert ring.failures == ([] if is_excused else [lacking])
