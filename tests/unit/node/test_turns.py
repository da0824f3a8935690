"""When a node has its turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.node.node import Node
from leveret.protocol import methods as m
from tests.support.machines import World, publish


class Loop:
    """Keeps what is to be called in the next pass."""

    def __init__(self) -> None:
        self.ready: list[Callable[[], None]] = []

    def call_soon(self, then: Callable[..., None], *arguments: Any) -> None:
        self.ready.append(partial(then, *arguments))

    def run(self) -> None:
        ready, self.ready = self.ready, []
        for then in ready:
            then()


class BusyNode(Node):
    """A node that has more work after each turn."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.fatal = None
        self.scheduled = False
        ticker: Any = SimpleNamespace(is_long=False)
        self.ticker = ticker
        self.turns = 0

    def set_clock(self) -> None:
        pass

    def _turn(self) -> None:
        self.turns += 1
        self.schedule()


def test_a_pass_has_one_turn_however_many_came_before_their_time() -> None:
    loop = Loop()
    node = BusyNode(loop)
    node.schedule()
    for _ in range(5):
        node.turn()  # A commit is done, a read is.
        loop.run()
    before = node.turns
    loop.run()
    assert node.turns == before + 1


def test_what_comes_during_a_turn_has_another_one() -> None:
    loop = Loop()
    node = BusyNode(loop)
    node.turn()
    assert node.turns == 1 and node.scheduled
    loop.run()
    assert node.turns == 2


class CommittingNode(Node):
    """A node whose deliveries may wait for the commit that is under way."""

    def __init__(self, world: World) -> None:
        self.broker = world.broker
        self.scheduled = self.delivers = False
        self.unblocking = deque()
        stubs: Any = SimpleNamespace(
            looking=False, waiting=False, paused=False, has_work=False,
            gathering=SimpleNamespace(is_answered=False),
            log=SimpleNamespace(appended_bytes=0),
            should_wait=lambda broker: False,
            should_deliver=lambda broker: self.delivers,
            commit=lambda broker, serve: False,
            is_crowded=lambda broker: False,
            flush=lambda: None,
        )  # fmt: skip
        self.member_changes = self.storage = self.peers = self.pausing = self.reads = stubs
        self.look_at_bytes = self.looked_at_content_bytes = 0
        self.by_output, self.paced, self.away, self.behind = {}, {}, {}, {}

    def schedule(self) -> None:
        self.scheduled = True

    def look(self) -> None:
        pass


def is_late(world: World) -> None:
    world.broker.is_late = True


def has_more_to_drop(world: World) -> None:
    world.broker.go_on_soon(world.queue("q"))


def closes_clients(world: World) -> None:
    world.broker.closing.append((world.client().connection, "gone"))


def publishes_dead_letters(world: World) -> None:
    world.broker.dead_letters.retry.waiting[world.queue("q")] = 1


def has_changed_queues(world: World) -> None:
    world.broker.dirty[world.queue("q")] = None


@pytest.mark.parametrize(
    "prepare", [is_late, has_more_to_drop, closes_clients, publishes_dead_letters, has_changed_queues]
)
def test_turns_that_deliver_nothing_cause_no_others(
    prepare: Callable[[World], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would follow one another as long as the commit takes. When it is done, there is a turn."""
    world = World()
    world.client().declare("q")
    node = CommittingNode(world)
    prepare(world)
    node._turn()
    assert not node.scheduled
    monkeypatch.setattr(world.broker, "pump", lambda: None)  # As if there were too much for one turn.
    node.delivers = True
    node._turn()
    assert node.scheduled


class GatheringNode(Node):
    """A node whose next commit waits for the answers to confirms."""

    def __init__(self, world: World) -> None:
        self.broker = world.broker
        self.waited = 0
        self.written: list[bytes] = []
        self.unblocking = deque()
        stubs: Any = SimpleNamespace(
            looking=False,
            gathering=SimpleNamespace(is_answered=True),
            should_wait=lambda broker: True,
            wait=self.on_wait,
            flush=lambda: self.written.append(b"to peers"),
        )
        self.member_changes = self.storage = self.peers = stubs
        self.by_output = {}

    def on_wait(self, broker: object) -> None:
        self.waited += 1


def test_confirms_are_sent_before_a_commit_waits_for_their_answers() -> None:
    """Those of a mirrored queue come from other nodes, not from a commit of this one."""
    world = World()
    client = world.client()
    client.declare("q")
    client.call(m.ConfirmSelect())
    node, output = GatheringNode(world), client.connection.output
    socket: Any = SimpleNamespace(flush=lambda: node.written.append(b"".join(output.take())))
    node.by_output[output] = socket
    client.feed(publish(1, "", "q", b"x"))
    output.take()
    assert world.broker.confirming
    node._turn()
    assert node.waited == 1 and node.written == [b"to peers", m.encode(1, m.BasicAck(1, False))]
