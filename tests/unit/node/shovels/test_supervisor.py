"""The leader's choice of nodes for shovels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.base.json_values import Json
from leveret.metadata.model import commands as c
from leveret.metadata.shovel.commands import PauseWork
from leveret.metadata.shovel.records import SHOVEL
from leveret.metadata.store import Metadata
from leveret.node.shovels import supervisor
from leveret.node.shovels.supervisor import BALANCE_S, MOVED_AT_ONCE, Shovels

VALUE: dict[str, Json] = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}


class Leader:
    """A node that leads, with others that are there or not, and a clock."""

    def __init__(self) -> None:
        self.metadata = Metadata()
        self.metadata.apply(c.AddVhost("/"))
        self.now_s = 100.0
        self.there = ["a", "b"]
        self.loop = SimpleNamespace(time=lambda: self.now_s)
        self.cluster = SimpleNamespace(members=self.members)
        self.pausing = SimpleNamespace(is_paused=lambda name: False)
        self.proposed = 0
        self.looked = 0
        self.shovels = Shovels(cast(Any, self))

    def members(self) -> list[SimpleNamespace]:
        self.looked += 1
        return [SimpleNamespace(name=name, running=True) for name in self.there]

    def propose(self, command: Any, then: Callable[[Any], None], patient: bool = False) -> None:
        self.proposed += 1
        then(self.metadata.apply(command))

    def add(self, name: str, **more: Json) -> None:
        self.metadata.apply(c.SetParameter(SHOVEL, "/", name, {**VALUE, **more}))

    def lead(self, times: int = 1) -> None:
        for _ in range(times):
            self.shovels.lead()

    @property
    def loads(self) -> dict[str, int]:
        return dict(Counter(one.node for one in self.metadata.assignments.values()))


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Leader:
    monkeypatch.setattr(supervisor, "out_of_service", lambda metadata: set())
    return Leader()


def test_nodes_get_equally_many(leader: Leader) -> None:
    for number in range(6):
        leader.add(f"s{number}")
    leader.lead(3)
    assert leader.loads == {"a": 3, "b": 3} and leader.proposed == 1


def test_a_lost_node_is_replaced_at_once(leader: Leader) -> None:
    for number in range(4):
        leader.add(f"s{number}")
    leader.lead(3)
    leader.there = ["b"]
    leader.lead()
    assert leader.loads == {"b": 4}


def test_a_node_that_joins_gets_its_part_after_a_while(leader: Leader) -> None:
    for number in range(9):
        leader.add(f"s{number}")
    leader.lead(3)
    leader.there = ["a", "b", "c"]
    leader.lead(3)
    assert "c" not in leader.loads
    leader.now_s += BALANCE_S
    leader.lead(3)
    assert leader.loads == {"a": 3, "b": 3, "c": 3}
    proposed = leader.proposed
    leader.lead(10)
    assert leader.proposed == proposed


def test_nodes_that_come_and_go_move_nothing_about(leader: Leader) -> None:
    for number in range(8):
        leader.add(f"s{number}")
    leader.lead()
    for there in (["a", "b", "c"], ["a", "b"]) * 5:
        leader.there = there
        leader.lead()
        leader.now_s += BALANCE_S * 0.9
        leader.lead()
    assert leader.proposed == 1


def test_many_move_in_portions(leader: Leader) -> None:
    leader.there = ["a"]
    for number in range(6 * MOVED_AT_ONCE):
        leader.add(f"s{number}")
    leader.lead(3)
    leader.there = ["a", "b"]
    leader.lead()
    leader.now_s += BALANCE_S
    leader.lead()
    assert leader.loads == {"a": 5 * MOVED_AT_ONCE, "b": MOVED_AT_ONCE}
    leader.lead(5)
    assert leader.loads == {"a": 3 * MOVED_AT_ONCE, "b": 3 * MOVED_AT_ONCE}


def test_what_is_paused_or_ends_by_itself_stays(leader: Leader) -> None:
    leader.there = ["a"]
    leader.add("number", **{"src-delete-after": 10})
    leader.add("length", **{"delete-after": "queue-length"})
    leader.add("duration", **{"src-delete-after-duration": 60})
    leader.add("paused")
    leader.add("endless", **{"src-delete-after": "never"})
    leader.lead()
    leader.metadata.apply(PauseWork(SHOVEL, "/", "paused", True))
    leader.there = ["a", "b"]
    leader.lead()
    leader.now_s += BALANCE_S
    leader.lead(5)
    found = {key.name: one.node for key, one in leader.metadata.assignments.items()}
    assert found == {"number": "a", "length": "a", "duration": "a", "paused": "", "endless": "b"}
    assert leader.proposed == 2


def test_a_resumed_one_is_noticed_after_all_was_settled(leader: Leader) -> None:
    leader.add("s")
    leader.metadata.apply(PauseWork(SHOVEL, "/", "s", True))
    leader.lead(2)
    assert leader.loads == {"": 1}
    leader.metadata.apply(PauseWork(SHOVEL, "/", "s", False))
    leader.lead()
    assert leader.loads == {"a": 1}
