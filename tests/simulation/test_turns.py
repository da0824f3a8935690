"""A node with many masters is lost: whoever is left does so much in a pass of its loop, and no more nodes are lost.

Work is counted, not timed; where time matters, it is the virtual one, in which each command takes as long as is said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.scaling.world import Plant, metered, node_of
from leveret.broker.mirrors import broadcast, manager
from leveret.broker.mirrors.manager import Mirror, MirrorManager
from leveret.metadata.model.commands import ChangeView, Command
from leveret.metadata.store import Applied
from leveret.node import storage
from leveret.node.cluster import consensus
from leveret.node.cluster.consensus import Consensus
from leveret.node.config.settings import TICK_MS
from simulation.core.loop import NodeLoop

QUEUES = 40
APPLIED = 4
EFFECTS = 16
TOLD = 4
LOOK_S = 0.0005  # Of virtual time, between two looks at what has happened.


@contextmanager
def bereft(charged: bool = False, rest_s: float = 1.015) -> Iterator[Plant]:
    """Three nodes, one of which leads all queues and is about to die; it does not lead the cluster. By default ticks of
    the nodes lie at other moments than what happens next."""
    plant = Plant(3, charged=charged)
    with metered(plant.meter):
        try:
            plant.start()
            assert plant.leader() is not plant.machines[1]
            plant.mirror({"ha-mode": "all"})
            plant.declare(QUEUES, [plant.machines[1]], 20)
            plant.run(rest_s)
            yield plant
        finally:
            plant.close()


def survivors(plant: Plant) -> list[Any]:
    return [node_of(plant.machines[0]), node_of(plant.machines[2])]


class Passes:
    """The most that any pass of any loop has done, by what it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most: Counter[str] = Counter()
        self.now: Counter[str] = Counter()
        passes, apply, perform = NodeLoop._pass, Consensus._apply_command, MirrorManager._perform

        def counted_pass(loop: NodeLoop) -> None:
            self.now.clear()
            passes(loop)
            self.most |= self.now

        def counted_apply(of: Consensus, command: Command) -> Applied:
            self.now["commands"] += 1
            return apply(of, command)

        def counted_perform(of: MirrorManager, mirror: Mirror) -> int:
            done = perform(of, mirror)
            self.now["effects"] += done
            return done

        monkeypatch.setattr(NodeLoop, "_pass", counted_pass)
        monkeypatch.setattr(Consensus, "_apply_command", counted_apply)
        monkeypatch.setattr(MirrorManager, "_perform", counted_perform)


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consensus, "APPLIED_AT_ONCE", APPLIED)
    monkeypatch.setattr(manager, "EFFECTS_AT_ONCE", EFFECTS)
    monkeypatch.setattr(broadcast, "TOLD_AT_ONCE", TOLD)


def test_a_pass_does_so_much(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    with bereft() as plant:
        passes = Passes(monkeypatch)
        plant.kill(plant.machines[1])
        plant.run(20.0, lambda: not plant.pending)
        assert len(plant.served_at) == QUEUES
    assert APPLIED <= passes.most["commands"] < 2 * APPLIED
    # A turn, and each command: it does what was said before its view, and what follows from it.
    assert EFFECTS <= passes.most["effects"] <= EFFECTS + 2 * APPLIED * 10


def test_who_is_left_keeps_in_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands together take one of the two ten seconds and more; after four of silence it would count as lost."""
    small(monkeypatch)
    with bereft(charged=True) as plant:
        apply = Consensus._apply_command

        def slow(of: Consensus, command: Command) -> Applied:
            plant.meter.extra_s += 10 / QUEUES if of.me.name == plant.machines[2].node_name else 0.0
            return apply(of, command)

        monkeypatch.setattr(Consensus, "_apply_command", slow)
        plant.kill(plant.machines[1])
        plant.run(60.0, lambda: not plant.pending)
        plant.run(6.0)
        assert [node.pausing.partitions.pauses for node in survivors(plant)] == [0, 0]
        assert [len(node.broker.client_ends) for node in survivors(plant)] == [1, 1]


def led_by_others(plant: Plant, names: set[str]) -> bool:
    """Whether the survivors know another master of all these queues."""
    victim = plant.machines[1].node_name
    return all(
        spec.node != victim for node in survivors(plant) for spec in node.metadata.queues.values() if spec.name in names
    )


def use(plant: Plant, names: set[str]) -> None:
    """As if a client had published to these queues a moment ago."""
    for node in survivors(plant):
        for mirror in node.broker.mirrors:
            if mirror.spec.name in names:
                node.broker.mirrors.broadcast.on_used(mirror)


def test_queues_that_are_used_have_another_master_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many others there are: no command for any of these comes before."""
    small(monkeypatch)
    applied: list[str] = []
    apply = Consensus._apply_command

    def noted(of: Consensus, command: Command) -> Applied:
        if isinstance(command, ChangeView) and of.me.name != plant.machines[1].node_name:
            applied.append(command.name)
        return apply(of, command)

    with bereft() as plant:
        names = sorted(spec.name for spec in node_of(plant.machines[0]).metadata.queues.values())
        used = set(names[-5:])
        use(plant, used)
        monkeypatch.setattr(Consensus, "_apply_command", noted)
        plant.kill(plant.machines[1])
        plant.run(20.0, lambda: led_by_others(plant, used), LOOK_S)
        assert set(applied) == used
        plant.run(20.0, lambda: not plant.pending)
        assert set(applied) == set(names)


def test_while_clients_publish_the_rest_is_told_a_few_in_each_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    with bereft() as plant:
        told: list[int] = []
        for node in survivors(plant):
            journal, mirrors = node.broker.mirrors.journal, node.broker.mirrors
            monkeypatch.setattr(journal, "on_peer_down", lambda mirror, peer: told.append(mirror.spec.id))
            tick = mirrors.tick

            def publishing(node: Any = node, tick: Any = tick) -> None:
                node.broker.totals.published += 1
                tick()

            monkeypatch.setattr(mirrors, "tick", publishing)
            node.ticker.wake()  # As a publish does.
        plant.run(0.1)
        plant.kill(plant.machines[1])
        ticks = QUEUES // TOLD
        plant.run(ticks * TICK_MS / 1000 / 2)
        assert 0 < len(set(told)) < QUEUES
        plant.run(20.0, lambda: not plant.pending)


def order_of_masters(wanted: str = "") -> list[str]:
    """Returns the queues in the order in which they have another master, while a client waits for one of them."""
    order: dict[str, None] = {}
    with bereft(rest_s=1.115) as plant:
        plant.kill(plant.machines[1])
        plant.run(1.0, lambda: all(node.broker.mirrors.broadcast for node in survivors(plant)), LOOK_S)
        node = survivors(plant)[0]
        if wanted:
            node.broker.vhosts["/"].queues[wanted].suspend()  # As it is when a publish comes.
        victim = plant.machines[1].node_name

        def all_have_one() -> bool:
            order.update({spec.name: None for spec in node.metadata.queues.values() if spec.node != victim})
            return len(order) == QUEUES

        plant.run(20.0, all_have_one, LOOK_S / 5)
    return list(order)


def test_a_queue_that_a_client_waits_for_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nobody has used it before."""
    small(monkeypatch)
    monkeypatch.setattr(manager, "PROPOSED_AT_ONCE", 1)
    monkeypatch.setattr(storage, "AWAITED_BYTES_MAX", 0)  # Each commit takes time, in which others could come first.
    last = order_of_masters()[-1]
    assert order_of_masters(last).index(last) < QUEUES * 2 / 3  # Some others have been asked for already.


def test_a_turn_that_was_not_scheduled_schedules_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    plant = Plant(1, charged=False)
    with metered(plant.meter):
        try:
            plant.start()
            node = node_of(plant.machines[0])
            passes = Passes(monkeypatch)
            turn = type(node)._turn

            def counted_turn(of: Any) -> None:
                passes.now["turns"] += 1
                turn(of)

            monkeypatch.setattr(type(node), "_turn", counted_turn)
            monkeypatch.setattr(type(node.broker), "is_behind", True)  # There is always a next turn.
            for _ in range(5):
                node.turn()  # Such as at the end of a commit.
            passes.now.clear()
            plant.run(0.001)
            monkeypatch.undo()
            assert passes.most["turns"] == 1
        finally:
            plant.close()
