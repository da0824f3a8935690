"""What spools need of the node: whether disks are short."""

from __future__ import annotations

from leveret.node.alarms import Alarms


def test_whose_disk_is_short() -> None:
    free = [100]
    alarms = Alarms(1 << 40, 50, lambda: 0, lambda: free[0])
    alarms.check()
    assert not alarms.is_short_of_disk("b")
    alarms.others = {"b": frozenset({"memory"}), "c": frozenset({"disk"})}
    assert not alarms.is_short_of_disk("b") and alarms.is_short_of_disk("c")
    free[0] = 10
    alarms.check()
    assert alarms.is_short_of_disk("b")
