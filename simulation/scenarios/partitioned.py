"""Partitions of all shapes, and all ways to handle them.

In a run with `--strategies`, the nodes begin with a partition handling that is drawn from the seed, an operator changes
it now and then, and the network is cut into groups, between single pairs, and in one direction only.

`checkers.pause_checker` checks that a node pauses when it must. That there is at most one master in an epoch, that all
serve again when everything is healed, and that nothing confirmed is lost, is checked in every run: see
`checkers.mirror_checker`, `world`, `checkers.ledger`.

In a run without strategies, nodes serve whatever they see, and spool nothing (`STEADFAST`, which no user can choose).
That tests rings and links most: a paused minority would test neither.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from leveret.metadata.model.commands import ClearGlobalParameter, Command, SetGlobalParameter
from leveret.metadata.rules.partition_handling import PartitionHandling
from simulation.checkers.pause_checker import PARAMETER

if TYPE_CHECKING:
    from simulation.world import World

STRATEGIES: Final = (
    "pause_minority", "pause_minority", "pause_minority", "stop_processing", "pause_if_all_down", "pause_if_all_down",
    "ignore", "ignore", "autoheal", "autoheal", "autoupgrade",
)  # fmt: skip
STRATEGY_FAULTS: Final = (("sever", 16), ("handling", 5), ("isolate", 5), ("part", 3), ("cut_one_way", 3))
SECONDS: Final = (2.0, 6.0, 10.0, 20.0)


@dataclass(frozen=True)
class Steadfast(PartitionHandling):
    """Always serves, and refuses what is unreachable."""

    @property
    def pauses_minority(self) -> bool:
        return False

    @property
    def spools(self) -> bool:
        return False


STEADFAST: Final = Steadfast()


# -- Drawing -------------------------------------------------------------------------------------------------------


def draw_handling(rng: random.Random, nodes: int) -> dict[str, Any]:
    strategy = rng.choice(STRATEGIES)
    if strategy != "pause_if_all_down":
        return {"strategy": strategy}
    names = [f"leveret@n{one + 1}" for one in sorted(rng.sample(range(nodes), rng.randrange(1, nodes + 1)))]
    return {"strategy": strategy, "nodes": names, "recover": rng.choice(("ignore", "autoheal"))}


def draw_sever(rng: random.Random, nodes: int) -> dict[str, Any]:
    """Draws ways to cut, as pairs of node numbers: between two groups, or single ones."""
    pairs = [(a, b) for a in range(nodes) for b in range(a)]
    shape = rng.choice(("groups", "groups", "one way", "pairs", "hub"))
    if shape in ("groups", "one way"):
        group = rng.sample(range(nodes), rng.randrange(1, nodes))
        ways = [(a, b) if a in group else (b, a) for a, b in pairs if (a in group) != (b in group)]
    elif shape == "hub":
        hub = rng.randrange(nodes)
        ways = [(a, b) for a, b in pairs if hub not in (a, b)]
    else:
        ways = [pair for pair in pairs if rng.random() < 0.5] or pairs[:1]
    if shape != "one way":
        ways += [(b, a) for a, b in ways]
    seconds = round(rng.choice(SECONDS) * (0.5 + rng.random()), 3)
    return {"ways": sorted(ways), "seconds": seconds}


# -- Doing ---------------------------------------------------------------------------------------------------------


class Partitions:
    """Cuts the network, and changes how nodes handle that."""

    def __init__(self, world: World) -> None:
        self.world = world

    def fault_sever(self, ways: list[tuple[int, int]], seconds: float) -> None:
        self.world.cut([(self.world.everybody[a].name, self.world.everybody[b].name) for a, b in ways], seconds)

    def fault_handling(self, value: dict[str, Any] | None) -> None:
        """An operator changes the partition handling of all nodes."""
        asked = [machine for machine in self.world.machines if machine.serving]
        if not asked:
            return
        machine = self.world.rng.choice(asked)
        assert machine.server is not None and machine.server.node is not None and machine.loop is not None
        command: Command = ClearGlobalParameter(PARAMETER)
        if value is not None:
            command = SetGlobalParameter(PARAMETER, value)
        task = machine.loop.create_task(machine.server.node.cluster.change(command))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
