"""The rings of mirrored queues as the page sees them: nothing that was true only when the question came."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.management.api.extensions import mirror_rings as api
from leveret.management.api.extensions.mirror_rings import RingHandlers
from leveret.management.http.http_messages import Request, Response
from leveret.node.system.time_slices import TimeSlices
from tests.support.control_world import ask, cluster
from tests.support.ring_world import Rings

NAMES = ("one@host", "two@host", "three@host")


@pytest.fixture
def rings() -> Rings:
    return Rings(cluster(*NAMES))


def handlers(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> RingHandlers:
    """Of node one, for a user who may see everything."""
    made = RingHandlers.__new__(RingHandlers)
    server = rings.servers["one@host"]
    made.node = cast(Any, server.node)
    rights = SimpleNamespace(check=lambda *_: None, check_vhost=lambda *_: None, may_see=lambda *_: True)
    made.rights = cast(Any, rights)

    async def told(command: str, /, **arguments: Any) -> Any:
        return await ask(server, command, **arguments)

    monkeypatch.setattr(made, "ask", told)
    return made


def request(**parameters: str) -> Request:
    known = SimpleNamespace(parameters=parameters, asked=lambda name: None, number=lambda name, usual, *_: usual)
    return cast(Request, known)


def said(response: Response) -> Any:
    assert isinstance(response.body, bytes)
    return json.loads(response.body)


async def test_the_ring_of_a_queue_whose_master_is_lost_while_nodes_are_asked(
    rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings.declare("q", "two@host", "one@host", "three@host")
    made = handlers(rings, monkeypatch)
    assert said(await made.ring(request(vhost="/", queue="q")))["health"] == "sound"
    answer = made.ask

    async def lost(*arguments: Any, **named: Any) -> Any:
        told = await answer(*arguments, **named)
        rings.servers["two@host"].node = None  # Nobody has been promoted yet.
        return told

    monkeypatch.setattr(made, "ask", lost)
    ring = said(await made.ring(request(vhost="/", queue="q")))
    assert (ring["master"], ring["health"]) == ("two@host", "down")
    assert [one["node"] for one in ring["members"] if not one["running"]] == ["two@host"]


async def test_rings_are_counted_again_if_a_node_is_lost_meanwhile(
    rings: Rings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        rings.declare(f"q{number}", "two@host", "one@host", "three@host")
    made = handlers(rings, monkeypatch)
    told = said(await made.rings(request()))
    assert (told["total"], told["sound"], told["down"]) == (5, 5, 0)

    class Slow(TimeSlices):
        async def each(self, items: Any) -> Any:
            for at, item in enumerate(items):
                if at == 3:
                    rings.servers["two@host"].node = None
                yield item

    monkeypatch.setattr(api, "TimeSlices", Slow)
    told = said(await made.rings(request()))
    assert (told["total"], told["sound"], told["down"]) == (5, 0, 5)
    assert {one["health"] for one in told["rings"]} == {"down"}


async def test_a_queue_that_is_no_longer_mirrored_is_no_ring(rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its policy a queue loses its mirrors, and stays a ring of one member."""
    rings.declare("alone", "two@host")
    rings.declare("mirrored", "two@host", "one@host")
    made = handlers(rings, monkeypatch)
    told = said(await made.rings(request()))
    assert (told["total"], [one["name"] for one in told["rings"]]) == (1, ["mirrored"])
    assert said(await made.ring(request(vhost="/", queue="alone")))["mirrored"] is False
    assert said(await made.ring(request(vhost="/", queue="mirrored")))["mirrored"] is True
