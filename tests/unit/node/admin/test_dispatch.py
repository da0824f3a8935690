from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from leveret.metadata.model.commands import Bind
from leveret.node.admin import dispatch as control_module
from leveret.node.admin.common.command import FLAG, NUMBER, OBJECT, TEXT, TEXTS, Kind
from leveret.node.admin.dispatch import COMMANDS
from tests.support.control_world import FakeServer, ask, cluster, refusal


@pytest.fixture
def one() -> FakeServer:
    return cluster("one@host")[0]


async def raw(server: FakeServer, payload: bytes) -> Any:
    return json.loads(await server.control.answer(payload))


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "not valid JSON"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[]", "a control call is an object"),
        (b"{}", "a control call is an object"),
        (b'{"command": 1}', "a control call is an object"),
        (b'{"command": "ping", "arguments": []}', '"arguments" must be an object'),
        (b'{"command": "eval", "arguments": {}}', "this node does not know the command 'eval'"),
        (b'{"command": "ping", "arguments": {"x": 1}}', "unknown argument x"),
        (b'{"command": "delete_user", "arguments": {}}', "argument name is missing"),
        (b'{"command": "delete_user", "arguments": {"name": 1}}', "argument name must be a string"),
        (b'{"command": "delete_user", "arguments": {"name": null}}', "argument name must be a string"),
        (b'{"command": "ping", "ticket": 1}', '"ticket" must be a string'),
        (b'{"command": "ping", "ticket": ""}', '"ticket" must be a string'),
    ],
)
async def test_what_makes_no_sense_is_answered(one: FakeServer, payload: bytes, text: str) -> None:
    error = (await raw(one, payload))["error"]
    assert error["code"] == 64
    assert text in error["text"]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (TEXT, "", 1),
        (NUMBER, 0, True),
        (NUMBER, -1, 1.5),
        (FLAG, False, 0),
        (TEXTS, ["a"], ["a", 1]),
        (TEXTS, [], "a"),
        (OBJECT, {}, []),
    ],
)
def test_kinds(kind: Kind, good: object, bad: object) -> None:
    assert kind.fits(good)
    assert not kind.fits(bad)


async def test_every_command_refuses_arguments_that_it_does_not_have(one: FakeServer) -> None:
    for name in COMMANDS:
        assert await refusal(one, name, nonsense=1) == (64, "unknown argument nonsense")


async def test_a_fault_costs_the_command_only_and_is_logged(
    one: FakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(one.world.metadata, "users", None)
    code, text = await refusal(one, "list_users")
    assert code == 70
    assert text.startswith("internal error in list_users: AttributeError(")
    assert "Traceback" in caplog.text
    assert "Traceback" not in text


async def test_an_answer_too_large_for_a_frame(one: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "ANSWER_BYTES_MAX", 20)
    code, text = await refusal(one, "ping")
    assert code == 70
    assert "too much for one frame" in text


async def test_names_that_are_no_utf_8_come_through(one: FakeServer) -> None:
    one.world.client().declare("q")
    one.world.apply(Bind("/", "amq.direct", "queue", "q", "k\udcff"))
    page = await ask(one, "list_bindings", vhost="/", columns=["routing_key"])
    assert page["rows"] == [["q"], ["k\udcff"]]


async def test_while_the_app_is_stopped(one: FakeServer) -> None:
    await ask(one, "stop_app")
    answer = await raw(one, b'{"command": "list_users"}')
    assert answer["error"] == {
        "code": 64,
        "text": "this command requires the 'leveret' app to be running on the target node. "
        "Start it with 'leveretctl start_app'.",
        "form": "usage",
    }
    assert (await ask(one, "ping"))["node"] == "one@host"
    assert await ask(one, "app_state") == {"running": False, "starting": False, "paused": None}
    await ask(one, "start_app")
    assert await ask(one, "app_state") == {"running": True, "starting": False, "paused": None}


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("reset", {"force": True}), ("force_boot", {}), ("join_cluster", {"host": "127.0.0.1", "port": 1})],
)
async def test_while_the_app_runs(one: FakeServer, command: str, arguments: dict[str, Any]) -> None:
    code, text = await refusal(one, command, **arguments)
    assert code == 64
    assert "requires the 'leveret' app to be stopped on the target node" in text
    assert one.done == []


async def test_while_the_app_waits_for_its_cluster(one: FakeServer) -> None:
    one.prepared = False
    code, text = await refusal(one, "list_queues", vhost="/", columns=["name"])
    assert code == 69
    assert "is starting" in text and "force_boot" in text
    assert (await ask(one, "cluster_status"))["disk_nodes"] == ["one@host"]
    waiting = {"running": False, "starting": True, "paused": None, "waiting": "waiting for a majority"}
    assert await ask(one, "app_state") == waiting
    assert (await refusal(one, "reset", force=False))[0] == 64


async def test_the_outcome_of_a_command_can_be_asked_for_later(one: FakeServer) -> None:
    asked = {"command": "delete_user", "arguments": {"name": "nobody"}, "ticket": "t1"}
    told = await raw(one, json.dumps(asked).encode())
    assert told["error"]["code"] == 67
    assert await ask(one, "outcome", ticket="t1") == {"answer": told, "progress": ""}
    assert (await refusal(one, "outcome", ticket="t2"))[0] == 69
    one.control.outcomes["t3"] = None
    assert await ask(one, "outcome", ticket="t3") == {"answer": None, "progress": ""}


async def test_outcomes_are_not_kept_for_ever(one: FakeServer) -> None:
    for number in range(control_module.OUTCOMES_MAX + 1):
        await raw(one, json.dumps({"command": "ping", "ticket": f"t{number}"}).encode())
    assert len(one.control.outcomes) == control_module.OUTCOMES_MAX
    assert (await refusal(one, "outcome", ticket="t0"))[0] == 69
    assert "ok" in (await ask(one, "outcome", ticket="t1"))["answer"]


async def test_what_takes_long_is_begun_and_asked_for(one: FakeServer) -> None:
    await ask(one, "begin", ticket="t", command="drain", arguments={})
    await asyncio.sleep(0)
    progress = "0 of 2 queues handed over to mirrors"
    assert await ask(one, "outcome", ticket="t") == {"answer": None, "progress": progress}
    one.may_leave.set()
    while (outcome := await ask(one, "outcome", ticket="t"))["answer"] is None:
        await asyncio.sleep(0)
    assert outcome["answer"]["ok"]["handed_over"] == 0
    assert (await refusal(one, "begin", ticket="", command="ping", arguments={}))[0] == 64
