"""Clocks that are wrong, and descriptors and memory that run out."""

from __future__ import annotations

import socket

from faults.cases.case import Case
from faults.cases.run import Run

HOUR = 3600
MORE_CLIENTS = 100  # Than there are descriptors for.
LOW_BYTES = 1 << 20


def _load(run: Run) -> None:
    run.add_queues()


def _jump(run: Run) -> None:
    node = run.victim()
    hours = run.rng.choice((-1, 1))
    with run.fault(f"the clock of {node.name} is wrong by {hours} h"):
        node.set_clock(hours * HOUR)
        run.wait(1.0, 5.0)
        node.set_clock(0)


def _strobe(run: Run) -> None:
    node = run.victim()
    with run.fault(f"the clock of {node.name} jumps to and fro by up to an hour, ten times a second"):
        for _ in range(run.short(20, 50)):
            node.set_clock(run.rng.randrange(-HOUR, HOUR))
            run.wait(0.1)
        node.set_clock(0)


def _descriptors(run: Run) -> None:
    """Clients come until there are no more descriptors. Those that were there go on."""
    node = run.master()
    with run.fault(f"{node.name} has no descriptors left"):
        before = node.limit_descriptors(node.open_descriptors() + node.spare_descriptors)
        crowd: list[socket.socket] = []
        try:
            for _ in range(node.spare_descriptors + MORE_CLIENTS):
                client = socket.socket()
                client.settimeout(1.0)
                crowd.append(client)
                if client.connect_ex((node.host, node.port)) == 0:
                    client.sendall(b"AMQP\x00\x00\x09\x01")
            run.wait(2.0, 6.0, short=2.0)
            if not node.is_running:
                run.noticed.append(f"{node.name} ended when it had no descriptors left")
        finally:
            for client in crowd:
                client.close()
            if node.is_running:
                node.limit_descriptors(before)
        run.restart(node)


def _memory(run: Run) -> None:
    """The memory alarm of a node comes and goes; publishers wait meanwhile."""
    node = run.master()
    with run.fault(f"{node.name} is over its memory watermark"):
        node.set_memory_limit(LOW_BYTES)
        run.wait(3.0, 8.0, short=3.0)
        node.set_memory_limit(None)


CASES = (
    Case("clock-jumps", "clocks are wrong by an hour, forward or back", _load, _jump, 14, clocks=True),
    Case("clock-strobes", "a clock jumps to and fro ten times a second", _load, _strobe, 14, clocks=True),
    Case("descriptors", "a master has no file descriptors left", _load, _descriptors),
    Case("memory", "the memory alarm of a master comes and goes", _load, _memory),
)
