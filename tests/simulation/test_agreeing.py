"""Many commands at once: each is proposed in answer to another, and none waits for the clock.

Times are virtual: a sync and a way through the network take as long as is said, and code takes none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from benchmarks.scaling.world import Plant, declaration, metered, node_of
from leveret.metadata.store import Applied
from leveret.node.cluster.consensus import Consensus
from leveret.node.config.settings import TICK_MS
from simulation.core.machine import Machine

CHAINS = 10
LENGTH = 30


def chain(machine: Machine, name: str, done: Callable[[], None], left: int = LENGTH) -> None:
    """Declare so many queues, each in the answer to the one before, as a channel with a backlog does."""

    def then(applied: Applied) -> None:
        assert applied.refused is None
        if left > 1:
            chain(machine, name, done, left - 1)
        else:
            done()

    node = node_of(machine)
    node.broker.propose(declaration(node, f"{name}.{left}"), then)


@pytest.mark.parametrize(("nodes", "at"), [(1, 0), (3, 0), (3, 1), (3, 2)])
def test_a_command_proposed_in_an_answer_does_not_wait_for_a_tick(
    nodes: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant = Plant(nodes)
    with metered(plant.meter):
        try:
            plant.start()
            machine, ended, writes = plant.machines[at], list[float](), Counter[str]()
            write = Consensus._write

            def counted(of: Consensus) -> None:
                writes[of.me.name] += 1
                write(of)

            monkeypatch.setattr(Consensus, "_write", counted)
            began = plant.scheduler.now
            assert machine.loop is not None
            for number in range(CHAINS):
                machine.loop.call_soon(chain, machine, f"q{number}", lambda: ended.append(plant.scheduler.now))
            plant.run(60.0, lambda: len(ended) == CHAINS)
        finally:
            plant.close()
    # Ten commands gather in a commit; without that there would be ten times as many writes.
    assert max(writes.values()) < 3 * LENGTH
    # Two syncs and six ways through the network for each of a chain, instead of a tick and more.
    assert max(ended) - began < LENGTH * TICK_MS / 1000 / 4
