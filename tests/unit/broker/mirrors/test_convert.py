"""Messages that were spilled before their queue was mirrored: real rings, played logs."""

from __future__ import annotations

import pytest

from leveret.broker import broker
from leveret.broker.dead_letter import publisher
from leveret.broker.delivery.batch import Span
from leveret.broker.mirrors import convert
from leveret.broker.mirrors.manager import Mirror
from leveret.broker.queue import ordered_queue
from leveret.broker.queue.hold import go_on
from leveret.broker.queue.queue import Queue
from leveret.metadata.model import commands as c
from leveret.metadata.rules.queue_rules import QueueRules
from leveret.protocol.tables import table_from_python
from leveret.storage.format.queue_block import PERSISTENT
from tests.support.control_world import cluster
from tests.support.machines import World, publish
from tests.support.ring_world import Rings

ONE, TWO, THREE = "one@host", "two@host", "three@host"
NAMES = (ONE, THREE, TWO)


@pytest.fixture
def rings(monkeypatch: pytest.MonkeyPatch) -> Rings:
    """A queue `q` at one node, without mirrors: messages 1 to 8, of which 3 and 4 are persistent and 8 is in memory.
    Then somebody wants mirrors."""
    monkeypatch.setattr(ordered_queue, "KEEP_BYTES", 1)
    rings = Rings(cluster(*NAMES))
    rings._propose(c.DeclareQueue("/", "q", durable=True, node=ONE))
    world = rings.servers[ONE].world
    world.broker.content_bytes_max = world.broker.spill_bytes_max = 1
    world.broker.wall_ms = 1_000
    for count, kind in ((2, 0), (2, PERSISTENT), (3, 0)):
        world.queue("q").enqueue([b"x"] * count, [b""] * count, kind, count, None)
        world.turn()
    world.broker.content_bytes_max = world.broker.spill_bytes_max = 1 << 40
    world.queue("q").enqueue([b"x"], [b""], 0, 1, None)
    world.turn()
    assert list(rings.stores[ONE].stored(number(rings)).spilled) == [(1, 2), (5, 7)]
    rings._propose(c.SetPolicy("/", "p", "^q$", "queues", 0, {"ha-mode": "all", "ha-sync-mode": "automatic"}))
    rings.run()
    rings.place()
    return rings


def number(rings: Rings) -> int:
    return rings.servers[TWO].world.metadata.queues["/", "q"].id


def copy(rings: Rings, name: str = ONE) -> Mirror:
    return rings.copy(name, number(rings))


def in_sync(rings: Rings) -> set[str]:
    view = rings.servers[TWO].world.metadata.queues["/", "q"].view
    assert view is not None
    return {name for name, _ in view.in_sync}


def read_one(rings: Rings, done: bool = True) -> None:
    rings.reads.popleft()[1](done)
    rings.run()


def test_what_came_one_by_one_is_stored_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "PIECE_MESSAGES", 3)
    world = World()
    world.apply(c.DeclareQueue("/", "q", durable=True, node=world.broker.node_name))
    queue, bodies = world.queue("q"), [b"%d" % number for number in range(9)]
    for number, body in enumerate(bodies):
        world.broker.wall_ms = 1_000 + number
        queue.enqueue([body], [b""], PERSISTENT if number == 4 else 0, 1, None)
        world.turn()
        queue.open = None  # Each has a batch of its own, as if some consumer were there.
    runs = convert.take_over(world.broker, queue)
    assert [(run.first, run.contents) for run in runs] == [
        (1, bodies[:3]), (4, bodies[3:4]), (6, bodies[5:8]), (9, bodies[8:]),
    ]  # fmt: skip
    assert [len(entry.batch.contents) for entry in queue.ready if isinstance(entry, Span)] == [1] * 9, "it has its own"


@pytest.mark.parametrize("state", ["waiting", "published", "refused"])
def test_messages_whose_dead_letters_are_not_safe_are_stored(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    """With others of their batch they count as stored, and what counts as stored may be forgotten."""
    monkeypatch.setattr(publisher, "WORK_NEW", 1)
    for module in (publisher, broker):
        monkeypatch.setattr(module, "WORK_MAX", 1)
    world = World()
    client = world.client()
    full = {"x-max-length": 0, "x-overflow": "reject-publish"} if state == "refused" else {}
    client.declare("dead", durable=True, arguments=table_from_python(full))
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead", "x-max-length": 4}
    client.declare("q", durable=True, arguments=table_from_python(letters))
    world.apply(c.SetPolicy("/", "p", "^q$", "classic_queues", 0, {"dead-letter-strategy": "at-least-once"}))
    queue, bodies = world.queue("q"), [b"%d" % number for number in range(7)]
    world.broker.dead_letters.begin_turn(is_crowded=False)
    if state == "published":
        world.queue("dead").hold()
    world.crowded = state == "waiting"
    client.feed(b"".join(publish(1, "", "q", body) for body in bodies))
    world.turn()
    held = sorted(n for _, lo, hi in world.broker.dead_letters.held(queue) for n in range(lo + 1, hi + 1))
    assert held == ([2, 3] if state == "waiting" else [1, 2, 3]) and queue.ready_count == 4
    for run in convert.take_over(world.broker, queue):
        world.log.put(queue.spec.id, run)
    assert sorted(world.log.queues[queue.spec.id]) == [*held, 4, 5, 6, 7]
    world.broker.content_bytes_max = 0
    world.broker.page_out_unacked()
    world.broker.content_bytes_max = 1 << 40
    world.crowded = False
    world.queue("dead").set_rules(QueueRules())
    if state == "published":
        go_on(world.queue("dead"), world.queue("dead"))
    for _ in bodies:
        world.broker.dead_letters.try_again()
        world.turn()
    client.consume("dead", no_ack=True)
    assert sorted(client.bodies()) == bodies[:3]


@pytest.mark.parametrize("logged", [0, 1])
def test_what_came_in_the_turn_in_which_a_queue_was_mirrored_is_in_its_first_block(logged: int) -> None:
    """Its numbers must not count as used before that is confirmed: a mirror that is filled up to there would take the
    messages for settled."""
    rings = Rings(cluster(*NAMES))
    rings._propose(c.DeclareQueue("/", "q", durable=True, node=ONE))
    world = rings.servers[ONE].world
    for _ in range(logged):
        world.queue("q").enqueue([b"before"], [b""], PERSISTENT, 6, None)
        world.turn()
    rings.run()
    world.queue("q").enqueue([b"now"], [b""], PERSISTENT, 3, None)
    rings.stuck.add(ONE)
    rings._propose(c.SetPolicy("/", "p", "^q$", "queues", 0, {"ha-mode": "all", "ha-sync-mode": "automatic"}))
    rings.run()
    rings.place()
    member = copy(rings).member
    assert member.messages == logged and member.confirmed < member.tail.end
    rings.stuck.clear()
    for _ in range(3):
        rings.run()
        rings.tick()
    assert member.messages == logged + 1 and member.confirmed == member.tail.end


def test_no_mirror_is_in_sync_before_all_are_stored(rings: Rings) -> None:
    stored = rings.stores[ONE].stored(number(rings))
    for spilled in ([(1, 2), (5, 7)], [(6, 7)]):
        rings.tick()
        assert in_sync(rings) == {ONE} and list(stored.spilled) == spilled and len(rings.reads) == 1
        assert not rings.stores[TWO].stored(number(rings)).live
        read_one(rings)
    assert not rings.reads and copy(rings) not in rings.servers[ONE].world.broker.mirrors.storing_spilled
    rings.tick()
    assert in_sync(rings) == set(NAMES)
    rings.kill(ONE)
    rings.tick()
    found = [one.world.broker.vhosts["/"].queues["q"] for one in rings._running()]
    (queue,) = [one for one in found if isinstance(one, Queue)]
    assert queue.ready_count == 8


def test_the_next_piece_is_read_when_the_last_one_is_on_disk(rings: Rings) -> None:
    rings.stuck.add(ONE)
    read_one(rings)
    rings.tick()
    assert not rings.reads
    rings.stuck.clear()
    rings.run()
    assert len(rings.reads) == 1


def test_all_must_be_on_disk(rings: Rings) -> None:
    read_one(rings)
    rings.stuck.add(ONE)
    read_one(rings)
    assert not rings.stores[ONE].stored(number(rings)).spilled
    rings.tick()
    assert not rings.stores[TWO].stored(number(rings)).live and in_sync(rings) == {ONE}
    rings.stuck.clear()
    rings.tick(40)  # The others ask less and less often.
    assert in_sync(rings) == set(NAMES)


def test_what_cannot_be_read_is_tried_again(rings: Rings) -> None:
    read_one(rings, done=False)
    rings.tick(convert.AGAIN_TICKS - 1)
    assert not rings.reads and in_sync(rings) == {ONE}
    rings.tick(1)
    read_one(rings)
    read_one(rings)
    rings.tick(200)  # The others ask less and less often.
    assert in_sync(rings) == set(NAMES)


def test_the_queue_is_deleted_meanwhile(rings: Rings) -> None:
    rings._propose(c.DeleteQueue("/", "q"))
    rings.run()
    read_one(rings)
    assert not rings.reads and not rings.servers[ONE].world.broker.mirrors.storing_spilled


def test_another_leads_meanwhile_by_force(rings: Rings) -> None:
    """What only this node had is lost, and does not turn up again."""
    stored = rings.stores[ONE].stored(number(rings))
    mirrors = rings.servers[TWO].world.broker.mirrors
    for other in (TWO, THREE):
        rings.servers[other].world.broker.mirrors.on_peer_down(ONE)
        rings.servers[ONE].world.broker.mirrors.on_peer_down(other)
    rings.run()
    assert mirrors.force(copy(rings, TWO))
    rings.run()
    assert copy(rings).member.master is None and not rings.servers[ONE].world.broker.mirrors.storing_spilled
    assert not stored.spilled or rings.stores[ONE].stored(number(rings)) is not stored
    read_one(rings)
    assert not rings.reads
