"""Between the brokers of two nodes there is a session only while neither is paused, and nothing of before a pause
arrives after it. Real `PartitionPause`s talk over links that are lists."""

from __future__ import annotations

import random
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.links import frame_types
from leveret.metadata.rules.partition_handling import PartitionHandling, Strategy
from leveret.node.cluster.partition_pause import PartitionPause

FOR_BROKER = frame_types.PUBLISH


class Loop:
    def call_later(self, seconds: float, what: Any, *arguments: Any) -> None:
        """Nobody is left to be cut off here."""


class Side:
    """A node, as far as `PartitionPause` knows one."""

    def __init__(self, world: Pair, name: str) -> None:
        self.world_of_two = world
        self.name = name
        self.settings = SimpleNamespace(node_name=name, partition_handling=PartitionHandling(Strategy.IGNORE))
        self.environment = SimpleNamespace(wall_ms=lambda: 1_000)
        self.loop = Loop()
        self.clients: dict[object, None] = {}
        self.metadata = SimpleNamespace(global_parameters={})
        self.member_changes = SimpleNamespace(look_at_all=lambda: None)
        membership = SimpleNamespace(
            members=[SimpleNamespace(name=one) for one in "abcd"], voters=[SimpleNamespace(name=one) for one in "abcd"]
        )
        self.asked: list[Any] = []
        self.hopeful = False
        self.cluster = SimpleNamespace(
            raft=SimpleNamespace(membership=membership),
            propose=lambda command, then, patient=False: self.asked.append(then),
            two_nodes=SimpleNamespace(
                is_hopeful=lambda: self.hopeful,
                say=lambda: None,
                waiting_for=lambda: None,
                closing_text=lambda text: text,
            ),
        )
        self.peers = SimpleNamespace(send=self.send)
        self.session: int | None = None  # Of the brokers: its number here.
        self.sessions = 0
        self.said = 0
        self.taken: list[bytes] = []  # By its broker, in this session.
        self.doors: list[str] = []
        mirrors = SimpleNamespace(on_majority=lambda reachable: None)
        self.broker = SimpleNamespace(
            connections={},
            mirrors=mirrors,
            on_peer_up=self.on_peer_up,
            on_peer_down=self.on_peer_down,
            partition_handling=None,
            now_ms=0,
            opened_ms=0,
        )
        self.pausing = PartitionPause(self)  # type: ignore[arg-type]
        self.pausing.on_paused = lambda: self.doors.append("shut")
        self.pausing.on_resumed = lambda: self.doors.append("open")
        self.pausing.on_up("c")
        self.pausing.begin()

    def schedule(self) -> None:
        return None

    def send(self, peer: str, kind: int, payload: bytes) -> bool:
        if peer != "c":
            self.world_of_two.lines[self.name].append((kind, payload))
        return True

    def on_peer_up(self, peer: str) -> None:
        if peer != "c":
            assert self.session is None
            self.sessions += 1
            self.session, self.said = self.sessions, 0
            self.taken = []

    def on_peer_down(self, peer: str) -> None:
        if peer != "c":
            assert self.session is not None
            self.session = None

    def pause(self, really: bool) -> None:
        """As the strategy says; here it is the strategy that changes, not the network."""
        listed = PartitionHandling(Strategy.PAUSE_IF_ALL_DOWN, ("d",))
        self.pausing.partitions.handling = listed if really else PartitionHandling(Strategy.IGNORE)
        self.pausing.look()

    def catch_up(self) -> None:
        asked, self.asked = self.asked, []
        for then in asked:
            then(None)

    def talk(self) -> None:
        """Its broker says something: the how manieth of which session, as it counts them."""
        if self.session is not None:
            self.world_of_two.lines[self.name].append((FOR_BROKER, bytes([self.session, self.said])))
            self.said += 1


class Pair:
    def __init__(self) -> None:
        self.lines: dict[str, deque[tuple[int, bytes]]] = {"a": deque(), "b": deque()}
        self.sides = {name: Side(self, name) for name in ("a", "b")}
        self.heard = 0
        self.all_heard: set[tuple[str, bytes]] = set()
        for side in self.sides.values():
            side.pausing.on_up(self.other(side).name)

    def other(self, side: Side) -> Side:
        return self.sides["b" if side.name == "a" else "a"]

    def deliver(self, sender: str) -> bool:
        line = self.lines[sender]
        if not line:
            return False
        kind, payload = line.popleft()
        receiver = self.other(self.sides[sender])
        if receiver.pausing.admits(sender, kind, payload):
            assert kind == FOR_BROKER and receiver.session is not None
            receiver.taken.append(payload)
            sessions = {one[0] for one in receiver.taken}
            assert len(sessions) == 1, "frames of two sessions in one"
            assert [one[1] for one in receiver.taken] == list(range(len(receiver.taken))), "a session without its begin"
            assert (sender, payload) not in self.all_heard, "twice"
            self.all_heard.add((sender, payload))
            self.heard += 1
        return True

    def settle(self) -> None:
        while any([self.deliver("a"), self.deliver("b")]):
            pass


def test_a_pause_ends_the_session_at_both_ends() -> None:
    pair = Pair()
    a, b = pair.sides.values()
    assert a.session == b.session == 1
    a.pause(True)
    assert a.session is None and a.doors == ["shut"] and a.pausing.is_paused("a")
    b.talk()  # It does not know yet.
    pair.settle()
    assert b.session is None and pair.heard == 0 and b.pausing.is_paused("a")
    a.pause(False)
    assert a.pausing.paused  # It has not caught up.
    a.catch_up()
    pair.settle()
    assert a.doors == ["shut", "open"] and a.session == b.session == 2 and not b.pausing.is_paused("a")
    a.talk()
    b.talk()
    pair.settle()
    assert pair.heard == 2


def test_who_resumes_waits_for_the_answer() -> None:
    """Otherwise what was sent before the pause was known would be taken for what is sent after it."""
    pair = Pair()
    a, b = pair.sides.values()
    a.pause(True)
    b.talk()
    a.pause(False)
    a.catch_up()
    assert not a.pausing.paused and a.session is None
    pair.settle()
    assert a.session == b.session == 2 and pair.heard == 0


def test_who_links_while_it_is_paused_says_so() -> None:
    pair = Pair()
    a, b = pair.sides.values()
    a.pausing.on_down("b", "closed")
    b.pausing.on_down("a", "closed")
    a.pause(True)
    pair.lines["a"].clear()
    a.pausing.on_up("b")
    b.pausing.on_up("a")
    assert a.session is None and b.session is not None
    pair.settle()
    assert b.session is None


def test_both_are_paused() -> None:
    pair = Pair()
    a, b = pair.sides.values()
    for side in (a, b):
        side.pause(True)
    pair.settle()
    a.pause(False)
    a.catch_up()
    pair.settle()
    assert a.session is None and not a.pausing.paused and a.pausing.is_paused("b")
    b.pause(False)
    b.catch_up()
    pair.settle()
    assert a.session == b.session == 2


def test_contact_that_is_lost_again_counts_for_nothing() -> None:
    """What was agreed on since is not known, though the answer to what was asked before has come."""
    a = Pair().sides["a"]
    a.pause(True)
    a.pause(False)
    assert len(a.asked) == 1
    a.catch_up()
    assert not a.pausing.paused
    a.pause(True)
    assert a.pausing.paused
    a.pause(False)
    assert a.pausing.paused and len(a.asked) == 1


@pytest.mark.parametrize("seed", range(40))
def test_at_random(seed: int) -> None:
    """Whatever happens when: no frame of an earlier session is taken, and in the end both are in one."""
    rng = random.Random(seed)
    pair = Pair()
    for _ in range(300):
        side = rng.choice(list(pair.sides.values()))
        step = rng.choice(("talk", "talk", "talk", "deliver", "deliver", "deliver", "pause", "resume", "catch_up"))
        if step == "talk":
            side.talk()
        elif step == "deliver":
            pair.deliver(side.name)
        elif step == "catch_up":
            side.catch_up()
        else:
            side.pause(step == "pause")
    for side in pair.sides.values():
        side.pause(False)
        side.catch_up()
    pair.settle()
    for side in pair.sides.values():
        side.catch_up()
    pair.settle()
    heard = pair.heard
    for side in pair.sides.values():
        assert side.session is not None
        side.talk()
    pair.settle()
    assert pair.heard == heard + 2
