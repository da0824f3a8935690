"""Rebalancing among nodes that are played; real ones are in `tests/system/clusters/test_rebalancing.py`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from leveret.base.json_values import Json
from leveret.metadata.model.commands import SetPolicy
from leveret.metadata.rebalancing import Schedule
from leveret.metadata.rules.placement import REBALANCE
from leveret.node.admin.nodes.rebalancer import Wanted
from tests.support.control_world import FakeServer, ask, cluster, refusal
from tests.support.ring_world import Rings

ONE, TWO, THREE = "one@host", "two@host", "three@host"  # The first leads the cluster.


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> Rings:
    rings = Rings(cluster(ONE, THREE, TWO))
    pause = asyncio.sleep

    async def wait(seconds: float) -> None:
        """What goes on meanwhile."""
        for server in rings.servers.values():
            if server.node is not None and server.world.broker.member_changes is not None:
                server.world.broker.member_changes.watch()
                server.world.broker.member_changes.tick()
        rings.tick(3)
        await pause(0)

    monkeypatch.setattr(asyncio, "sleep", wait)
    return rings


def configured(rings: Rings, **schedule: Any) -> FakeServer:
    for server in rings.servers.values():
        server.settings = replace(server.settings, rebalance=Schedule(**schedule))
    return rings.servers[ONE]


def homes(rings: Rings) -> dict[str, str]:
    return {spec.name: spec.node for spec in rings.servers[ONE].world.metadata.queues.values()}


async def test_whoever_is_asked_the_leader_does_it(rings: Rings) -> None:
    for number in range(3):
        rings.declare(f"q{number}", ONE, TWO, THREE)
    answer = await ask(rings.servers[THREE], "rebalance")
    assert answer["done"] == 2 and answer["failed"] == []
    assert sorted(homes(rings).values()) == [ONE, THREE, TWO]
    assert (rings.servers[ONE].control.rebalancer.done, rings.servers[THREE].control.rebalancer.done) == (2, 0)
    status = await ask(rings.servers[TWO], "rebalance_status")
    assert (status["runs"], status["done"], status["cluster"]["moves_of_the_last_hour"]) == (1, 2, 2)


async def test_errors_of_the_leader_are_told(rings: Rings) -> None:
    assert await refusal(rings.servers[TWO], "rebalance", queues="(") == (
        64,
        "'(' is not a regular expression: missing ), unterminated subpattern at position 0",
    )
    assert (await refusal(rings.servers[TWO], "rebalance", strategy="best"))[0] == 64
    assert (await refusal(rings.servers[TWO], "local_rebalance"))[1].startswith("this node does not lead")


async def test_queues_with_and_without_mirrors_are_moved(rings: Rings) -> None:
    rings.declare("plain")
    rings.publish(ONE, "plain", 5)
    rings.declare("mirrored", ONE, THREE)
    rings.declare("third", ONE, TWO)
    answer = await ask(rings.servers[ONE], "rebalance")
    assert (answer["done"], answer["failed"]) == (2, [])
    assert homes(rings) == {"plain": ONE, "mirrored": THREE, "third": TWO}
    await ask(rings.servers[ONE], "rebalance", target=TWO, queues="plain")
    assert homes(rings)["plain"] == TWO
    spec = rings.servers[ONE].world.metadata.queues["/", "plain"]
    assert rings.copy(TWO, spec.id).queue.ready_count == 5  # type: ignore[union-attr]


async def test_what_a_policy_says_is_heeded(rings: Rings) -> None:
    one = rings.servers[ONE]
    assert one.node is not None
    pinned: dict[str, Json] = {"queue-master-pinned": True, "ha-mode": "all"}
    await one.node.cluster.change(SetPolicy("/", "pinned", "^p", "queues", 0, pinned))
    await one.node.cluster.change(
        SetPolicy("/", "named", "^n", "queues", 0, {"ha-mode": "nodes", "ha-params": [ONE, TWO]})
    )
    for number in range(4):
        rings.declare(f"p{number}", ONE, TWO, THREE)
    rings.declare("n0", ONE, TWO)
    assert (await ask(one, "rebalance", dry_run=True))["moves"] == [
        {"vhost": "/", "queue": "n0", "from": ONE, "to": TWO, "why": f"{ONE} has 5 masters, {TWO} 0"}
    ]


async def test_two_do_not_run_at_once(rings: Rings) -> None:
    one = rings.servers[ONE]
    one.control.rebalancer.busy = True
    assert (await refusal(one, "rebalance"))[1].startswith("queues are being rebalanced already")
    assert (await ask(one, "rebalance", dry_run=True))["moves"] == []


async def test_by_itself_it_keeps_to_its_limits(rings: Rings) -> None:
    one = configured(rings, trigger="timer", per_hour=1)
    for number in range(6):
        rings.declare(f"q{number}", ONE, TWO, THREE)
    runs = one.control.rebalancer
    assert len((await runs.run(Wanted(by_itself=True)))["moves"]) == 1
    assert (await runs.run(Wanted(by_itself=True)))["moves"] == []
    assert len((await runs.run(Wanted(dry_run=True)))["moves"]) == 3  # Whoever asks knows what they want.


async def test_what_was_moved_lately_is_left_alone_also_by_the_next_leader(rings: Rings) -> None:
    configured(rings, trigger="timer")
    rings.declare("q0", ONE, TWO)
    rings.declare("q1", ONE, TWO)
    rings.declare("q2", TWO, ONE)
    rings.declare("q3", TWO, ONE)
    await ask(rings.servers[ONE], "rebalance", target=TWO, queues="q0")
    for server in rings.servers.values():
        assert server.node is not None
        server.node.cluster.leader = TWO
    plan = await rings.servers[TWO].control.rebalancer.plan(Wanted(by_itself=True))
    assert [move.queue for move in plan.moves] != ["q0"]
    assert "q0" not in [move.queue for move in plan.moves]


async def test_a_leader_that_is_none_any_more_stops(rings: Rings) -> None:
    for number in range(6):
        rings.declare(f"q{number}", ONE, TWO, THREE)
    one = configured(rings, at_once=1)
    runs = one.control.rebalancer
    moved = runs._move

    async def lost(move: Any) -> str | None:
        assert one.node is not None
        problem = await moved(move)
        one.node.cluster.leader = TWO
        return problem

    runs._move = lost  # type: ignore[method-assign]
    assert (await refusal(one, "rebalance"))[1].startswith("this node does not lead the cluster any more")
    assert list(homes(rings).values()).count(ONE) == 5 and not runs.busy


async def test_what_somebody_else_wrote_there_is_no_memory(rings: Rings) -> None:
    one = rings.servers[ONE]
    assert one.node is not None
    one.node.metadata.global_parameters[REBALANCE] = {"moved": 7}  # By an earlier version: this one refuses it.
    assert (await ask(one, "rebalance_status"))["cluster"]["moves"] == 0
    assert (await ask(one, "rebalance"))["done"] == 0


async def test_a_node_that_does_not_answer_gets_nothing(rings: Rings) -> None:
    for number in range(4):
        rings.declare(f"q{number}", ONE, TWO, THREE)
    rings.servers[ONE].all.cut_off.add(TWO)
    plan = await ask(rings.servers[ONE], "rebalance", dry_run=True)
    assert {move["to"] for move in plan["moves"]} == {THREE}


@pytest.mark.parametrize("name", ["plan.json", "none.json"])
async def test_a_plan_from_a_file_that_is_configured(rings: Rings, name: str, tmp_path: Any) -> None:
    rings.declare("q", ONE, TWO)
    (tmp_path / "plan.json").write_text('{"version": 1, "moves": [{"vhost": "/", "queue": "q", "to": "two@host"}]}')
    one = configured(rings, strategy="plan", plan=str(tmp_path / name))
    if name == "plan.json":
        assert (await ask(one, "rebalance"))["done"] == 1
    else:
        assert (await refusal(one, "rebalance"))[1].startswith("cannot read the plan in ")


async def test_a_plan_that_nobody_could_read_is_told_and_the_next_run_is_tried(rings: Rings, tmp_path: Any) -> None:
    rings.declare("q", ONE, TWO)
    plan = tmp_path / "plan.json"
    one = configured(rings, strategy="plan", plan=str(plan))
    plan.write_text("[" * 100_000)
    await one.control.rebalancer.run_by_itself()
    assert (await refusal(one, "rebalance"))[1].startswith(f"cannot read the plan in {plan}: ")
    plan.write_text('{"version": 1, "moves": [{"vhost": "/", "queue": "q", "to": "two@host"}]}')
    await one.control.rebalancer.run_by_itself()
    assert homes(rings) == {"q": TWO}


async def test_a_fault_of_ours_does_not_end_it(
    rings: Rings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rings.declare("q", ONE, TWO)
    rebalancer = configured(rings).control.rebalancer
    with monkeypatch.context() as patched:
        patched.setattr(rebalancer, "run", lambda wanted: 1 / 0)
        await rebalancer.run_by_itself()
    assert "rebalancing failed, and is tried again when it is due" in caplog.text and "ZeroDivisionError" in caplog.text
    await rebalancer.run_by_itself()
    assert rebalancer.runs == 1


async def test_the_strategy_plan_needs_one(rings: Rings) -> None:
    text = "there is no plan: name a file with --plan, or with cluster_rebalance.plan in the configuration"
    assert (await refusal(rings.servers[ONE], "rebalance", strategy="plan"))[1] == text
