from __future__ import annotations

from dataclasses import replace

from leveret.metadata.model.queue_counts import QueueCounts
from leveret.metadata.model.records import QueueSpec
from leveret.metadata.model.view import View


def test_they_follow_every_queue() -> None:
    loads = QueueCounts()
    plain = QueueSpec(1, "/", "plain", node="a")
    ring = View(1, 1, "b", ("b", "c"), (("b", "b.0"), ("c", "c.0")))
    mirrored = QueueSpec(2, "/", "mirrored", node="b", view=ring)
    loads.put(plain)
    loads.put(mirrored)
    assert (loads.masters, loads.copies) == ({"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1})
    loads.put(replace(plain, node="b"))
    loads.put(replace(mirrored, node="c", view=ring._replace(master="c", ring=("c", "a"))))
    assert (loads.masters, loads.copies) == ({"b": 1, "c": 1}, {"b": 1, "c": 1, "a": 1})
    loads.drop(1)
    loads.drop(2)
    loads.drop(2)
    assert (loads.masters, loads.copies) == ({}, {})
