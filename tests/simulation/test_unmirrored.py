"""A queue without mirrors is moved, and is an ordinary one again: in that very moment something else happens.

The command that ends its view is applied at the node that leads it, the log has yet to write so, publishers wait for
blocks of the ring that are not on disk, and mirrors may be wanted again.
"""

from __future__ import annotations

import pytest

from leveret.broker.mirrors.copy_store import MirrorStore
from leveret.broker.mirrors.manager import MirrorManager
from leveret.broker.queue.local_queue import LocalQueue
from leveret.metadata.model.records import QueueSpec
from simulation.checkers.ledger import NOTED_S
from simulation.clients.client import Step
from simulation.plan import Plan
from simulation.world import Violation, World, quiet

QUEUE = "d0"
PUBLISH = {"queue": QUEUE, "count": 2, "padding": 10, "persistent": True, "wait": False}
EVERYWHERE = {"ha-mode": "all", "ha-sync-mode": "automatic"}


@pytest.mark.parametrize(
    ("what", "delay"),
    [
        ("power", 0.0),
        ("move and power", 0.02),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                ("power", 0.0005),
                ("power", 0.003),
                ("kill", 0.0),
                ("policy", 0.0),
                ("policy and power", 0.002),
                ("move", 0.0),
            ]
        ),
    ],
)
def test_a_moment_after_the_last_view(what: str, delay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(Plan(int(delay * 10_000) + len(what), 3, 0, mirrored=True))
    ended: list[QueueSpec] = []
    unwritten, late = [], []
    is_used = False

    def on_ended(mirrors: MirrorManager, spec: QueueSpec) -> None:
        mirror = mirrors.mirrors.get(spec.id)
        is_here = spec.name == QUEUE and mirror is not None and mirror.queue is not None and is_used
        if mirror is not None and is_here:
            unwritten.append(len(mirror.in_blocks))
        original(mirrors, spec)
        if is_here and not ended:
            ended.append(spec)
            world.scheduler.after(delay, lambda: _strike(world, what, spec.node))

    def release(store: MirrorStore, queue: int, tail: object = None) -> None:
        late.append(tail is None)
        original_release(store, queue, tail)  # type: ignore[arg-type]

    original, original_release = MirrorManager.on_ended, MirrorStore.release
    monkeypatch.setattr(MirrorManager, "on_ended", on_ended)
    monkeypatch.setattr(MirrorStore, "release", release)
    try:
        with quiet():
            world._begin()
            world.operators.fault_policy("", None)
            world.run_for(10.0)
            found = world.operators.leading(QUEUE)
            assert found is not None and found[2].mirror is None
            is_used = True
            home = world.machines.index(found[0])
            _publish_without_a_pause(world, home)
            world.ledger.on_disturbed(world.scheduler.now + 100.0)
            world.scheduler.after(1.0, lambda: world.rebalancing.fault_appoint(QUEUE, (home + 1) % 3))
            world.run_for(12.0)
            assert ended and unwritten, "the moment has come"
            if (what, delay) == ("power", 0.0):
                assert any(late), "the next start finds a ring in the log"
            if what.startswith("policy"):
                world.operators.fault_policy("", None)
            world._heal()
            world._empty()
        assert sum(one.state == "confirmed" for one in world.ledger.messages.values()) > 100
        led = world.operators.leading(QUEUE)
        assert led is not None and led[2].mirror is None and led[2].spec.view is None
    finally:
        world.close()


def _strike(world: World, what: str, home: str) -> None:
    (number,) = [at for at, machine in enumerate(world.machines) if machine.node_name == home]
    if what.startswith("policy"):
        world.operators.fault_policy("", EVERYWHERE)
    if what.startswith("move"):
        world.rebalancing.fault_appoint(QUEUE, (number + 1) % 3)
    if what.endswith(("power", "kill")):
        strike = world.fault_kill if what.endswith("kill") else world.fault_power
        world.scheduler.after(0.0 if " " not in what else 0.05, lambda: strike(number, 1.0))


def _publish_without_a_pause(world: World, home: int) -> None:
    """Two clients at the home, two elsewhere."""
    start = world.scheduler.now
    for number, client in enumerate(world.clients):
        client.give(Step(0, 0.0, "go", {"node": (home + number // 2) % 3}))
        for at in range(200):
            world.scheduler.at(start + at / 50, client.give, Step(0, 0.0, "publish", PUBLISH))


@pytest.mark.parametrize("power", [False, True], ids=["killed", "without power"])
@pytest.mark.parametrize("at", [0, 1], ids=["consumed there", "consumed elsewhere"])
def test_what_was_delivered_before_a_crash_is_marked_after_it(at: int, power: bool) -> None:
    assert _redelivered_after_a_crash(at, power) == 5


def test_a_log_that_is_told_of_deliveries_later_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalQueue, "has_shown_stored", lambda queue: False)
    with pytest.raises(Violation, match="without a word about it"):
        _redelivered_after_a_crash(0, False)


def _redelivered_after_a_crash(at: int, power: bool) -> int:
    """A consumer finds a backlog and acknowledges nothing, so the log has nothing else to note. The queue's node dies.
    How many messages come marked. The checker notices those that come again and are not."""
    world = World(Plan(1, 3, 0))
    try:
        with quiet():
            world._begin()
            home = [machine.name for machine in world.machines].index(world.ledger.queue(QUEUE).owner or "")
            publisher, consumer = world.clients[:2]
            publisher.give(Step(0, 0.0, "go", {"node": home}))
            consumer.give(Step(0, 0.0, "go", {"node": (home + at) % 3}))
            world.run_for(1.6)  # Not when the node ticks, and would note deliveries in any case.
            publisher.give(Step(0, 0.0, "publish", PUBLISH | {"count": 8, "wait": True}))
            world.run_for(1.0)
            consume = {"queue": QUEUE, "prefetch": 5, "no_ack": False, "style": "hold"}
            consumer.give(Step(0, 0.0, "consume", consume))
            messages = world.ledger.messages.values()
            assert world.run_for(5.0, lambda: sum(bool(one.deliveries) for one in messages) == 5)
            world.run_for(NOTED_S + 0.01)
            world.ledger.on_disturbed(world.scheduler.now + 100.0)
            (world.fault_power if power else world.fault_kill)(home, 1.0)
            world.run_for(5.0)
            world._heal()
            world._empty()
        return world.ledger.redelivered
    finally:
        world.close()
