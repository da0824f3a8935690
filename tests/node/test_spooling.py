"""What spools need of the node: how much room disks have."""

from __future__ import annotations

from leveret.node.alarms import Alarms


def test_how_much_room_a_disk_has() -> None:
    free = [100]
    alarms = Alarms(1 << 40, 50, lambda: 0, lambda: free[0])
    alarms.check()
    assert alarms.room_bytes() == 50
    alarms.disk_full = True  # Whatever the system says is free.
    assert alarms.room_bytes() == 0
    alarms.disk_full = False
    free[0] = 10
    alarms.check()
    assert alarms.room_bytes() == 0
