"""Commands on their way to the leader and back, step by step, with a Raft that does what the test says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import pytest

from leveret.links import proposals as proposals_module
from leveret.links.frame_types import BUSY, FORWARD, SETTLED, WHEN
from leveret.links.proposals import BadFrame, Proposals
from leveret.metadata.command_codec import encode_command
from leveret.metadata.model import commands as c
from leveret.metadata.store import Applied
from leveret.raft import Busy, Raft

PATIENCE = 10


class FakeRaft:
    """A log in which all is agreed on when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.term = 1
        self.leader: str | None = None
        self.log: list[tuple[int, bytes]] = []  # Term and data; shared by all who agree.
        self.busy = False
        self.applied: dict[str, int] = {}  # As a leader knows it.

    @property
    def is_leader(self) -> bool:
        return self.leader == self.name

    @property
    def last_index(self) -> int:
        return len(self.log)

    def propose(self, data: bytes) -> None:
        if self.busy:
            raise Busy("not now")
        self.log.append((self.term, data))

    def applied_by(self, ids: Iterable[str]) -> int:
        return min([self.applied.get(self.name, 0), *(self.applied.get(one, 0) for one in ids)])


class Node:
    def __init__(self, table: Table, name: str) -> None:
        self.table = table
        self.name = name
        self.raft = FakeRaft(name)
        self.sent: list[tuple[str, int, bytes]] = []
        self.proposals = Proposals(name.encode() * 8, cast(Raft, self.raft), self.send, PATIENCE)
        self.applied: list[str] = []
        self.index = 0
        self.answers: list[tuple[str, Applied]] = []

    def send(self, member: str, kind: int, payload: bytes) -> bool:
        if frozenset((self.name, member)) in self.table.down:
            return False
        self.sent.append((member, kind, payload))
        return True

    def want(self, name: str, patient: bool = False) -> None:
        command = c.SetGlobalParameter(name, 1)
        self.proposals.propose(command, lambda applied: self.answers.append((name, applied)), patient)

    def apply(self, command: c.Command) -> Applied:
        assert isinstance(command, c.SetGlobalParameter)
        self.applied.append(command.name)
        return Applied(self.index, None, ())

    def answered(self) -> list[str]:
        answers, self.answers = self.answers, []
        return [name if applied.refused is None else f"{name}: {applied.refused.code}" for name, applied in answers]

    def kinds(self) -> list[int]:
        return [kind for _, kind, _ in self.sent]


class Table:
    """Nodes a, b, c with one log."""

    def __init__(self, leader: str | None = "a") -> None:
        self.down: set[frozenset[str]] = set()
        self.nodes = {name: Node(self, name) for name in "abc"}
        self.log: list[tuple[int, bytes]] = []
        for node in self.nodes.values():
            node.raft.log = self.log
        self.elect(leader)

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def elect(self, leader: str | None, term: int = 1, among: str = "abc") -> None:
        for name in among:
            raft = self.nodes[name].raft
            raft.term, raft.leader = term, leader
            self.nodes[name].proposals.on_leader()

    def carry(self, *names: str) -> None:
        """Deliver what was sent by these, or by all, until nothing is under way."""
        senders = [self.nodes[name] for name in names or "abc"]
        while any(node.sent for node in senders):
            for node in senders:
                sent, node.sent = node.sent, []
                for member, kind, payload in sent:
                    self.nodes[member].proposals.on_frame(node.name, kind, payload)

    def lose(self, *names: str) -> None:
        """What these have under way."""
        for name in names:
            self.nodes[name].sent.clear()

    def apply(self, names: str = "abc", through: int | None = None) -> None:
        for name in names:
            node = self.nodes[name]
            while node.index < (len(self.log) if through is None else through):
                term, data = self.log[node.index]
                node.index += 1
                if data:
                    node.proposals.on_entry(node.index, term, data, node.apply)
                else:
                    node.proposals.on_term(term)
            for other in self.nodes.values():
                other.raft.applied[name] = node.index

    def settle(self, connected: str = "abc") -> None:
        for _ in range(3):  # A question, its answer, and what comes of it.
            for node in self.nodes.values():
                node.proposals.settle([one for one in connected if one != node.name])
            self.carry()

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            for node in self.nodes.values():
                node.proposals.tick()


def test_the_leaders_own_command_is_answered_when_all_have_applied_it() -> None:
    table = Table()
    table["a"].want("x")
    assert len(table.log) == 1
    for names in ("a", "b", "c"):
        assert table["a"].answered() == []
        table.apply(names)
        table.settle()
    assert table["a"].answered() == ["x"]
    assert not table["a"].proposals.waiting


def test_another_nodes_command_is_answered_when_all_have_applied_it() -> None:
    table = Table()
    table["b"].want("x")
    assert table["b"].kinds() == [FORWARD] and not table.log
    table.carry()
    table.apply("ab")
    table.settle()
    assert table["b"].answered() == []
    table.apply("c")
    table.settle()
    assert table["b"].answered() == ["x"]
    assert not table["a"].proposals.tell


def test_who_is_not_connected_is_not_waited_for() -> None:
    table = Table()
    table["b"].want("x")
    table.carry()
    table.apply("ab")
    table.settle("ab")
    assert table["b"].answered() == ["x"]


def test_without_a_leader_commands_wait_for_one() -> None:
    table = Table(leader=None)
    table["b"].want("x")
    table.tick()
    assert not table["b"].sent
    table.elect("c", 2)
    table.carry()
    table.apply()
    table.settle()
    assert table["b"].answered() == ["x"] and table["a"].applied == ["x"]


def test_a_leader_that_is_gone_before_it_took_the_command() -> None:
    table = Table()
    table["b"].want("x")
    table.lose("b")
    table.elect("c", 2)
    assert not table["b"].sent, "it may stand in the log still, with term 1"
    table.log.append((2, b""))
    table.apply()
    assert table["b"].kinds()[-1] == FORWARD
    table.carry()
    table.apply()
    table.settle()
    assert table["b"].answered() == ["x"] and table["c"].applied == ["x"]


def test_a_leader_that_is_gone_after_it_took_the_command() -> None:
    table = Table()
    table["b"].want("x")
    table.carry()
    table.elect("c", 2)
    table.log.append((2, b""))
    table.apply("abc")
    table.settle()
    assert table["b"].answered() == ["x"], "the new leader was asked"
    assert table["a"].applied == ["x"]


def test_applied_before_the_new_leader_was_known() -> None:
    table = Table()
    table["b"].want("x")
    table.carry()
    table.apply("ab")
    table.elect("c", 2)
    assert table["b"].kinds() == [WHEN]
    table.apply("c")
    table.settle()
    assert table["b"].answered() == ["x"]


def test_a_leader_that_steps_down_asks_its_successor() -> None:
    table = Table()
    table["a"].want("x")
    table.apply("ab")
    table.elect("b", 2)
    table.settle("ab")
    assert table["a"].answered() == ["x"]


def test_a_leader_whose_entry_was_overwritten_proposes_it_anew() -> None:
    table = Table()
    table["a"].want("x")
    table.log.clear()
    table.elect("b", 2)
    table.log.append((2, b""))
    table.apply()
    table.carry()
    table.apply()
    table.settle()
    assert table["a"].answered() == ["x"] and table["b"].applied == ["x"]


def test_a_command_sent_to_a_leader_of_before_is_not_taken() -> None:
    table = Table()
    table["b"].want("x")
    table.elect("a", 2, among="a")
    table.carry()
    assert not table.log


@pytest.mark.parametrize("taken", [False, True])
def test_link_broken_and_back_within_a_term(taken: bool) -> None:
    table = Table()
    table["b"].want("x")
    if taken:
        table.carry()
    else:
        table.lose("b")
    table["b"].proposals.on_link_up("c")
    assert not table["b"].sent, "that is not the leader"
    table["b"].proposals.on_link_up("a")
    table.carry()
    assert len(table.log) == 1, "once"
    table.apply()
    table.settle()
    assert table["b"].answered() == ["x"]


def test_the_link_is_back_before_the_leader_is_known_again() -> None:
    table = Table()
    table["b"].want("x")
    table.lose("b")
    table.elect(None, 1, among="b")
    table["b"].proposals.on_link_up("a")
    table.elect("a", 1, among="b")
    table.carry()
    table.apply()
    table.settle()
    assert table["b"].answered() == ["x"] and len(table.log) == 1


def test_no_link_at_first() -> None:
    table = Table()
    table.down.add(frozenset("ab"))
    table["b"].want("x")
    table.down.clear()
    table.tick()
    table.carry()
    assert len(table.log) == 1


def test_everybody_else_was_done_while_the_link_was_broken() -> None:
    """The word that all have applied it was lost, and nothing else happens that would make the leader say it again."""
    table = Table()
    table["b"].want("x")
    table.carry()
    table.apply("ac")
    table["a"].proposals.settle(["c"])
    table.lose("a")
    table["b"].proposals.on_link_up("a")  # It is sent again, and is no news.
    table.carry()
    table.apply("b")
    table.settle()
    assert table["b"].answered() == ["x"] and len(table.log) == 1


def test_the_word_that_all_have_applied_it_is_lost() -> None:
    table = Table()
    table["b"].want("x")
    table.carry()
    table.apply()
    table["a"].proposals.settle(["b", "c"])
    assert table["a"].kinds() == [SETTLED]
    table.lose("a")
    table["b"].proposals.on_link_up("a")
    table.carry()
    table.settle()
    assert table["b"].answered() == ["x"]


def test_a_busy_leader() -> None:
    table = Table()
    table["a"].raft.busy = True
    table["a"].want("own")
    table["b"].want("x")
    table.carry()
    assert not table.log and table["b"].proposals.waiting[1].term is None
    table.tick()
    table.carry()
    table["a"].raft.busy = False
    table.tick()
    table.carry()
    table.tick()
    assert len(table.log) == 2
    table.apply()
    table.settle()
    assert table["a"].answered() == ["own"] and table["b"].answered() == ["x"]


def test_busy_of_somebody_else_or_of_another_term_means_nothing() -> None:
    table = Table()
    table["b"].want("x")
    number = (1).to_bytes(8, "big")
    table["b"].proposals.on_frame("c", BUSY, number)
    table["b"].proposals.on_frame("a", BUSY, (9).to_bytes(8, "big"))
    assert table["b"].proposals.waiting[1].term == 1
    table.elect("a", 2, among="b")
    table["b"].proposals.on_frame("a", BUSY, number)
    assert table["b"].proposals.waiting[1].term == 1


def test_nobody_answers() -> None:
    table = Table()
    table["b"].want("x")
    table["b"].want("cleanup", patient=True)
    table.lose("b")
    table.tick(PATIENCE - 1)
    assert table["b"].answered() == []
    table.tick()
    assert table["b"].answered() == ["x: 541"]
    table.tick(1000)
    table["b"].proposals.on_link_up("a")
    table.carry()
    table.apply()
    table.settle()
    assert table["b"].answered() == ["cleanup"] and table["a"].applied == ["cleanup"]


def test_applied_here_and_the_others_say_nothing() -> None:
    table = Table()
    table["b"].want("x")
    table.carry()
    table.apply("b")
    table.tick(PATIENCE)
    assert table["b"].answered() == ["x"]


def test_a_snapshot_instead_of_the_entries() -> None:
    table = Table()
    for name in ("in it", "after it"):
        table["b"].want(name)
    table["b"].want("cleanup", patient=True)
    table.carry()
    table["b"].proposals.on_snapshot(1)
    assert table["b"].answered() == ["in it: 541", "after it: 541"]
    table.tick()
    table.carry()
    table["b"].index = 1
    table.apply()
    table.settle()
    assert "cleanup" in table["b"].answered()
    assert table["a"].applied.count("cleanup") == 2, "what may be done twice"


def test_a_snapshot_of_before_the_command() -> None:
    table = Table()
    table.elect("a", 3)
    table["b"].want("x")
    table["b"].proposals.on_snapshot(2)
    table.carry()
    table.apply()
    table.settle()
    assert table["b"].answered() == ["x"] and len(table.log) == 1


def test_ten_thousand_commands_each_once_though_all_are_sent_twice() -> None:
    table = Table()
    for at in range(10_000):
        table["b"].want(str(at))
    table.carry()
    table["b"].proposals.on_link_up("a")
    table.carry()
    assert len(table.log) == 10_000
    table.apply()
    table.settle()
    assert table["b"].answered() == [str(at) for at in range(10_000)]


def test_what_a_leader_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals_module, "TAKEN_MAX", 100)
    table = Table()
    proposals = table["a"].proposals
    command = encode_command(c.SetGlobalParameter("x", 1))
    for number in range(110):
        head = (1).to_bytes(8, "big") + b"b" * 8 + number.to_bytes(8, "big")
        proposals.on_frame("b", FORWARD, head + command)
    assert len(proposals.taken[b"b" * 8].numbers) == 100


def test_a_refused_command_is_answered_like_any_other() -> None:
    table = Table()
    answers: list[Any] = []
    table["b"].proposals.propose(c.SetGlobalParameter("x", 1), answers.append)
    table.carry()
    table.apply()
    table.settle()
    table["b"].proposals.forget_all()
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (FORWARD, b"short"),
        (FORWARD, (1).to_bytes(8, "big") + bytes(16)),
        (FORWARD, (1).to_bytes(8, "big") + bytes(16) + b"no command"),
        (WHEN, b"short"),
        (SETTLED, bytes(9)),
        (BUSY, b""),
    ],
)
def test_bad_frames_are_refused_and_leave_nothing_in_the_log(kind: int, payload: bytes) -> None:
    table = Table()
    with pytest.raises(BadFrame):
        table["a"].proposals.on_frame("b", kind, payload)
    assert not table.log
