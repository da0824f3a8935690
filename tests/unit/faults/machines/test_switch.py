"""Rules of the switch, with pipes in place of devices."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from faults.machines.switch import Switch


def packet(target: int) -> bytes:
    return bytes([0x45]) + bytes(15) + bytes([10, 0, 0, target])


@pytest.fixture
def switch() -> Iterator[tuple[Switch, int]]:
    """A switch that nodes 1 and 2 are at, and where what 2 gets can be read."""
    made = Switch(7)
    out, into = os.pipe()
    made.devices = {1: os.open(os.devnull, os.O_WRONLY), 2: into}
    os.set_blocking(out, False)
    yield made, out
    made.close()
    os.close(out)


def received(out: int) -> int:
    try:
        return len(os.read(out, 1 << 20)) // 20
    except BlockingIOError:
        return 0


def send(switch: Switch, count: int) -> None:
    for _ in range(count):
        switch._pass_on(1, 2, packet(2))


def test_packets_pass(switch: tuple[Switch, int]) -> None:
    made, out = switch
    send(made, 10)
    made._pass_on(1, 9, packet(9))  # Nobody is there.
    assert received(out) == 10 and made.counts["passed"] == 10


def test_one_direction_is_cut_and_healed(switch: tuple[Switch, int]) -> None:
    made, out = switch
    made.obey({"do": "cut", "from": [1], "to": [1, 2]})
    send(made, 10)
    made._pass_on(2, 1, packet(1))
    assert received(out) == 0 and made.counts == {"passed": 1, "lost": 10, "delayed": 0, "doubled": 0}
    made.obey({"do": "heal"})
    send(made, 1)
    assert received(out) == 1


def test_some_packets_are_lost_and_some_doubled(switch: tuple[Switch, int]) -> None:
    made, out = switch
    made.obey({"do": "set", "from": [1], "to": [2], "loss": 0.2, "copies": 0.1})
    send(made, 1_000)
    counts = made.obey({"do": "count"})
    assert received(out) == counts["passed"]
    assert 150 < counts["lost"] < 300 and 60 < counts["doubled"] < 150


def test_delayed_packets_overtake_each_other(switch: tuple[Switch, int]) -> None:
    made, out = switch
    made.obey({"do": "set", "from": [1], "to": [2], "delay_ms": 20.0, "jitter_ms": 10.0})
    send(made, 50)
    assert received(out) == 0 and made.counts["delayed"] == 50
    order = [number for _, number, _, _ in sorted(made.delayed)]
    assert order != sorted(order)
    while made.send_due() is not None:
        pass
    assert received(out) == 50
