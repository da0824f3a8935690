"""What `leveretctl rebalance` prints and ends with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.control_world import FakeServer, Nodes
from tests.support.ring_world import Rings
from tests.unit.cli.ctl import ctl_node
from tests.unit.cli.ctl.ctl_node import Ctl, Ended

wire, ctl = ctl_node.wire, ctl_node.ctl
ONE, TWO = "one@host", "two@host"


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> Rings:
    nodes = Nodes()
    rings = Rings([nodes.add(ONE), nodes.add(TWO)])
    for number in range(4):
        rings.declare(f"q{number}", ONE, TWO)
    pause = asyncio.sleep

    async def wait(seconds: float) -> None:
        """What goes on meanwhile."""
        rings.tick(3)
        await pause(0)

    monkeypatch.setattr(asyncio, "sleep", wait)
    return rings


@pytest.fixture
def server(rings: Rings) -> FakeServer:
    return rings.servers[ONE]


def test_a_dry_run(ctl: Ctl, rings: Rings) -> None:
    table = "node      before  after  masters\none@host       4      2\ntwo@host       0      2\n"
    moves = "".join(f"q{number} in /: {ONE} → {TWO} ({ONE} has 4 masters, {TWO} 0)\n" for number in (2, 3))
    assert ctl("rebalance", "--dry-run") == Ended(
        0, f"What a rebalance would do ...\n{table}{moves}2 queues would move; strategy: least-masters\n", ""
    )
    assert {spec.node for spec in rings.servers[ONE].world.metadata.queues.values()} == {ONE}


def test_a_run_as_rabbitmq_queues_asks_for_it(ctl: Ctl, rings: Rings) -> None:
    ended = ctl("rebalance", "all", "--vhost-pattern", ".*", "--queue-pattern", "^q[12]")
    assert ended.code == 0
    assert ended.out.endswith("2 of 2 queues moved; strategy: least-masters\n")
    homes = {spec.name: spec.node for spec in rings.servers[TWO].world.metadata.queues.values()}
    assert homes == {"q0": ONE, "q1": TWO, "q2": TWO, "q3": ONE}
    assert ctl("rebalance", "classic", "-q").out.endswith("0 of 0 queues moved; strategy: least-masters\n")
    status = ctl("rebalance_status", "-q").out
    assert "trigger: on-demand\nstrategy: least-masters\nnode that rebalances: one@host\nruns: 2\nmoves: 2, " in status


def test_a_plan_is_carried_out(ctl: Ctl, rings: Rings, tmp_path: Path) -> None:
    made = ctl("rebalance", "--dry-run", "--formatter", "json", "-q", "--max-moves", "1").out
    file = tmp_path / "plan.json"
    file.write_text(made)
    (move,) = json.loads(made)["moves"]
    assert ctl("rebalance", "--plan", str(file)).out.endswith("1 of 1 queues moved; strategy: plan (least-masters)\n")
    assert rings.servers[ONE].world.metadata.queues["/", move["queue"]].node == TWO
    again = ctl("rebalance", "--plan", str(file))
    assert again.out.endswith("0 of 0 queues moved; strategy: plan (least-masters)\n")


def test_nodes_and_queues_are_appointed(ctl: Ctl, rings: Rings) -> None:
    assert ctl("rebalance", "--from", ONE, "--to", TWO, "--queues", "^q[13]$").code == 0
    homes = {spec.name: spec.node for spec in rings.servers[TWO].world.metadata.queues.values()}
    assert homes == {"q0": ONE, "q1": TWO, "q2": ONE, "q3": TWO}
    ended = ctl("rebalance", "--to", "x@host", "--queues", "q")
    assert (ended.code, ended.err) == (69, "Error:\nThe node selected is not in the cluster: x@host\n")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["lazy"], "unknown type of queue 'lazy'; use one of: all, classic, quorum, stream"),
        (["--strategy", "best"], "unknown strategy 'best'; use one of: least-masters, least-messages, "),
        (["--max-moves", "0"], "--max-moves must be a number above 0"),
        (["--from", ONE], "--from needs --to"),
    ],
)
def test_what_it_does_not_take(ctl: Ctl, words: list[str], problem: str) -> None:
    ended = ctl("rebalance", *words)
    assert ended.code == 64
    assert problem in ended.err
