"""Nodes that keep publishes for queues that they cannot reach, and what strikes while they send them on.

In a run with `--spooled`, nodes serve on in a partition, and links break more often than in others. A spool is empty a
few milliseconds after its link is back, so hardly any fault that comes at a time of its own would hit one at work. An
*ambush* waits until some spool has sent what it does not know to be safe. Then the link breaks, or the node that sends,
or the one that takes, is gone; or all clients publish to that queue, which must not overtake.

That nothing is lost, nothing is there twice and all is in order is what the ledger demands of every run. Here it is
demanded that all spools are empty when all is healed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

from simulation.clients import Step

if TYPE_CHECKING:
    from leveret.broker.spool import Spool
    from leveret.broker.spools import Spools
    from simulation.clients import Client
    from simulation.loop import Scheduler
    from simulation.machine import Machine
    from simulation.network import Network

SPOOLED_FAULTS: Final = (
    ("ambush", 14),
    ("part", 8),
    ("isolate", 8),
    ("cut_one_way", 4),
    ("reset_links", 6),
    ("slow_link", 2),
    ("kill", 4),
    ("power", 5),
    ("strike", 5),
    ("terminate", 2),
    ("pause", 3),
    ("slow_disk", 2),
    ("fill", 1),
    ("restart_app", 1),
    ("move", 3),
    ("power_all", 1),
    ("reset", 1),
    ("skew", 1),
)
WAYS: Final = (
    "publish", "publish", "publish", "reset", "reset", "cut", "kill sender", "power sender", "kill home", "power home",
    "pause home",
)  # fmt: skip


def draw_keeping(dice: random.Random) -> dict[str, Any]:
    return {"strategy": dice.choice(("ignore", "ignore", "autoheal"))}


def draw_ambush(dice: random.Random) -> dict[str, Any]:
    return {
        "how": dice.choice(WAYS),
        "delay": round(dice.choice((0.0005, 0.001, 0.003, 0.01)) * (0.2 + dice.random()), 6),
        "seconds": round(dice.choice((0.01, 0.5, 2.0, 8.0)) * (0.5 + dice.random()), 3),
    }


class Spooled:
    """A part of `World`."""

    scheduler: Scheduler
    machines: list[Machine]
    network: Network
    clients: list[Client]

    def note(self, who: str, text: str) -> None:
        raise NotImplementedError

    def _cut(self, ways: list[tuple[str, str]], seconds: float) -> None:
        raise NotImplementedError

    def _start_later(self, machine: Machine, seconds: float) -> None:
        raise NotImplementedError

    def begin_spools(self) -> None:
        self.spooled: dict[tuple[str, int, int], int] = {}  # Messages sent on, by node, life and queue.
        self.ambushes: list[dict[str, Any]] = []

    def fault_ambush(self, how: str, delay: float, seconds: float) -> None:
        self.ambushes.append({"how": how, "delay": delay, "seconds": seconds})

    def observe_spools(self, machine: Machine, spools: Spools) -> None:
        for spool in spools.by_target.values():
            self.spooled[machine.name, machine.lives, spool.target] = spool.sent
            if self.ambushes and spool.flights:
                self._ambush(machine, spools, spool, **self.ambushes.pop(0))

    def _ambush(self, machine: Machine, spools: Spools, spool: Spool, how: str, delay: float, seconds: float) -> None:
        node = spools.figures_of(spool).home
        home = next((one for one in self.machines if one.node_name == node), None)
        if home is not None and home is not machine:
            self.note("world", f"an ambush for {spool} of {machine.name} and {home.name}: {how}")
            self.scheduler.after(delay, self._spring, spool.spec.name, machine, home, how, seconds)

    def _spring(self, queue: str, machine: Machine, home: Machine, how: str, seconds: float) -> None:
        what, _, whom = how.partition(" ")
        struck = home if whom == "home" else machine
        if what == "publish":
            for client in self.clients:
                publish = {"queue": queue, "count": 5, "padding": 10, "persistent": True, "wait": False}
                client.give(Step(0, 0.0, "publish", publish))
        elif what == "reset":
            for endpoint in list(self.network.endpoints):
                if (endpoint.here[0], endpoint.there[0]) == (machine.name, home.name):
                    self.network.reset(endpoint)
        elif what == "cut":
            self._cut([(machine.name, home.name), (home.name, machine.name)], seconds)
        elif what == "pause":
            if struck.loop is not None:
                struck.loop.pause(seconds)
        else:
            struck.kill(power=what == "power")
            self._start_later(struck, seconds)

    def spools_left(self) -> list[str]:
        nodes = [one.server.node for one in self.machines if one.server is not None and one.server.node is not None]
        return [str(one) for node in nodes for one in node.broker.spools.figures() if one.messages]
