"""What nodes answer of being in maintenance, on a cluster that is played. How it goes with real ones:
`tests/system/clusters/test_maintenance.py`."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.metadata.model.commands import DeclareExchange, SetGlobalParameter
from leveret.metadata.model.maintenance_mark import MAINTENANCE, out_of_service
from leveret.metadata.model.records import QueueSpec
from leveret.protocol.tables import table_from_python
from tests.support.control_world import FakeServer, ask, cluster, refusal


@pytest.fixture
def trio() -> list[FakeServer]:
    return cluster("one@host", "two@host", "three@host")


async def drain(server: FakeServer, **arguments: Any) -> Any:
    server.may_leave.set()
    return await ask(server, "drain", **arguments)


async def test_every_node_knows_and_says_so(trio: list[FakeServer]) -> None:
    one, two, _ = trio
    assert await drain(two) == {"clients": 0, "handed_over": 0, "moved": 0, "kept": [], "kept_count": 0}
    told = (await ask(one, "cluster_status"))["maintenance_status"]
    assert told == {
        "one@host": "not under maintenance",
        "two@host": "marked for maintenance",
        "three@host": "not under maintenance",
    }
    assert (await ask(two, "service_state"))["state"] == "draining"
    members = {each["name"]: each["state"] for each in (await ask(one, "restart_state"))["members"]}
    assert members == {"one@host": None, "two@host": "draining", "three@host": None}
    assert (await ask(two, "local_balance"))["draining"]
    await ask(two, "revive")
    assert out_of_service(one.world.metadata) == frozenset()
    assert two.done == ["reopened"], "its doors were not suspended besides"


async def test_what_stays_is_told_with_the_reason(trio: list[FakeServer]) -> None:
    _, two, _ = trio
    two.world.client().declare("lone", durable=True)
    answer = await drain(two)
    assert answer["kept"] == [{"vhost": "/", "name": "lone", "why": "it has no mirrors"}]
    assert answer["kept_count"] == 1
    assert (await ask(two, "restart_state"))["unmirrored"] == {"two@host": 1}


async def test_what_is_delayed_goes_with_the_others(trio: list[FakeServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its queue there is but one copy, for a moment."""
    _, two, _ = trio
    arguments = table_from_python({"x-delayed-type": "fanout"})
    for server in trio:
        server.world.apply(DeclareExchange("/", "later", "x-delayed-message", arguments=arguments, node="two@host"))
    moved: list[str] = []

    async def move_alone(control: Any, spec: QueueSpec, node: str) -> None:
        moved.append(f"{spec.name} to {node}")

    monkeypatch.setattr("leveret.node.admin.nodes.maintenance.move_alone", move_alone)
    assert (await drain(two, move_unmirrored=True))["moved"] == 1
    assert moved == ["amq.delayed.later to one@host"]


async def test_nobody_moves_a_master_there(trio: list[FakeServer]) -> None:
    one, two, _ = trio
    one.world.client().declare("q", durable=True)
    await drain(two)
    code, text = (await refusal(one, "move_queue_master", vhost="/", name="q", node="two@host"))[:2]
    assert code == 69 and text.startswith("node two@host is in maintenance; revive it first")
    assert (await refusal(two, "resume_listeners"))[0] == 69


async def test_what_was_said_of_an_earlier_run_means_nothing(trio: list[FakeServer]) -> None:
    one, two, _ = trio
    await drain(two)
    for server in trio:
        server.world.metadata.runs["two@host"] = "another run"
    assert out_of_service(one.world.metadata) == frozenset()
    assert (await ask(one, "cluster_status"))["maintenance_status"]["two@host"] == "not under maintenance"


@pytest.mark.parametrize("value", [True, {}, {"state": "draining"}, {"state": "gone", "run": "run-of-two@host"}, []])
async def test_what_makes_no_sense_means_nothing(trio: list[FakeServer], value: Any) -> None:
    assert trio[0].node is not None
    await trio[0].node.cluster.change(SetGlobalParameter(MAINTENANCE + "two@host", value))
    assert out_of_service(trio[0].world.metadata) == frozenset()


async def test_it_is_no_definition_of_anybodys(trio: list[FakeServer]) -> None:
    await drain(trio[1])
    exported = await ask(trio[0], "export_definitions")
    assert MAINTENANCE not in str(exported)


async def test_who_can_be_restarted(trio: list[FakeServer]) -> None:
    one, two, _ = trio
    assert await ask(one, "restart_node") == {"node": "one@host"}
    two.can_restart = False
    assert "part of another process" in (await refusal(two, "restart_node"))[1]


async def test_a_node_alone_has_nowhere_to_go() -> None:
    (one,) = cluster("one@host")
    assert "the only node of its cluster" in (await refusal(one, "leave_cluster"))[1]
    assert out_of_service(one.world.metadata) == frozenset()
