"""Very many messages are dead-lettered in one moment: each turn publishes some of them, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from leveret.broker.dead_letter import publisher, retry
from leveret.broker.delivery.batch import Span
from leveret.broker.queue.queue import Queue
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python
from leveret.storage.format.queue_block import Run
from tests.support.machines import Client, World, publish
from tests.support.mirrored_brokers import Rings

AT_ONCE = 3
COUNT = 20
BODIES = [b"%d" % number for number in range(COUNT)]
HEADERS = [{"n": number} for number in range(COUNT)]  # No two have equal headers.


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(publisher, "WORK_NEW", 1)
    for module in ("leveret.broker.dead_letter.publisher", "leveret.broker.broker"):
        monkeypatch.setattr(f"{module}.WORK_MAX", AT_ONCE)
    world = World()
    world.broker.wall_ms = 5_000_000
    world.broker.dead_letters.begin_turn(is_crowded=False)
    return world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


@pytest.fixture(params=[False, True], ids=["other headers", "equal headers"])
def tables(request: pytest.FixtureRequest) -> list[dict[str, int]]:
    return [{"n": 0}] * COUNT if request.param else HEADERS


def declare(client: Client, name: str, **arguments: Any) -> None:
    table = table_from_python({f"x-{key.replace('_', '-')}": value for key, value in arguments.items()})
    client.declare(name, durable=True, arguments=table)


def declare_both(client: Client, **arguments: Any) -> None:
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead", **arguments)


def fill(client: Client, tables: list[dict[str, int]] = HEADERS, **properties: Any) -> None:
    for body, table in zip(BODIES, tables, strict=True):
        client.publish("q", body, delivery_mode=2, headers=table_from_python(table), **properties)


def fetch(client: Client, name: str) -> list[bytes]:
    client.consume(name, tag=name, no_ack=True)
    found = client.bodies()
    client.send(m.BasicCancel(consumer_tag=name))
    client.take()
    return found


def dead(world: World) -> int:
    return world.queue("dead").ready_count


def limit(world: World, **definition: Any) -> None:
    world.metadata.apply(c.SetPolicy("/", "p", "^q$", "queues", 0, definition))
    world.broker.refresh_rules()


def count_turns(world: World) -> int:
    """Have turns until nothing waits, each of which publishes some."""
    turns = 0
    while world.broker.is_spreading or world.broker.dirty or world.broker.is_behind:
        before = dead(world)
        world.broker.pump()
        turns += 1
        assert dead(world) - before <= AT_ONCE
    return turns


def test_each_turn_publishes_some_that_exceed_a_limit(
    world: World, client: Client, tables: list[dict[str, int]]
) -> None:
    declare_both(client)
    fill(client, tables)
    limit(world, **{"max-length": 0})
    assert COUNT // AT_ONCE <= count_turns(world) <= COUNT // AT_ONCE + 2
    assert world.queue("q").ready_count == 0
    world.turn()
    assert fetch(client, "dead") == BODIES and not world.broker.dead_letters.retry.rows


def test_nobody_gets_what_has_grown_old(world: World, client: Client) -> None:
    declare_both(client, message_ttl=100)
    fill(client)
    world.broker.wall_ms += 200
    world.broker.on_time()
    world.broker.pump()
    assert 0 < dead(world) < COUNT and world.queue("q").ready_count == 0
    world.crowded = True  # No turn publishes more, until there is room.
    assert fetch(client, "q") == []
    world.crowded = False
    world.turn()
    assert fetch(client, "dead") == BODIES


def test_what_was_rejected_is_settled_when_it_is_safe(world: World, client: Client) -> None:
    declare_both(client)
    fill(client)
    client.consume("q", tag="q")
    client.take()
    world.holds_disk = world.crowded = True
    client.send(m.BasicNack(delivery_tag=0, multiple=True, requeue=False))
    queue = world.queue("q")
    assert (queue.unacked_count, queue.ready_count, dead(world)) == (0, 0, AT_ONCE)
    assert world.broker.dead_letters.retry.count(queue) == COUNT - AT_ONCE
    world.crowded = False
    world.turn()
    assert len(world.log.queues[queue.spec.id]) == COUNT
    world.holds_disk = False
    world.sync()
    world.turn()
    assert not world.log.queues[queue.spec.id] and queue.memory_bytes == 0
    assert fetch(client, "dead") == BODIES


def test_letters_of_equal_headers_are_what_they_would_be_one_by_one(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="amq.direct")
    for key in ("a", "b"):
        client.call(m.QueueBind(queue="q", exchange="amq.topic", routing_key=key))
        client.call(m.QueueBind(queue="dead", exchange="amq.direct", routing_key=key))
    kinds = [("a", b"", {}), ("a", b"12", {}), ("a", b"." * 300_000, {}), ("b", b"12", {}), ("b", b"3", {"x": 1})]
    kinds += [("b", b"4", {"x": 1}), ("b", b"5", {"x": 2}), ("a", b"6", {"x": 2})]

    def letters(is_alike: bool) -> list[Any]:
        if not is_alike:
            monkeypatch.setattr(publisher.Alike, "make", lambda alike, old, key: None)
        for key, body, table in kinds * 2:
            properties: dict[str, Any] = {"headers": table_from_python(table)} if table else {}
            client.publish(key, body, exchange="amq.topic", message_id="m", **properties)
        limit(world, **{"max-length": 0})
        world.turn()
        limit(world)
        client.consume("dead", tag="dead", no_ack=True)
        found = [
            (one.method.routing_key, one.properties, one.body)
            for one in client.take()
            if isinstance(one.method, m.BasicDeliver)
        ]
        client.send(m.BasicCancel(consumer_tag="dead"))
        client.take()
        return found

    alike = letters(is_alike=True)
    assert [body for _, _, body in alike] == [body for _, body, _ in kinds * 2]
    assert alike == letters(is_alike=False)


def test_a_queue_that_is_deleted_meanwhile(world: World, client: Client) -> None:
    declare_both(client)
    fill(client)
    client.consume("q", tag="q")
    client.take()
    world.crowded = True
    client.send(m.BasicNack(delivery_tag=0, multiple=True, requeue=False))
    client.send(m.QueueDelete(queue="q"))
    client.take()
    assert dead(world) == AT_ONCE
    world.crowded = False
    world.turn()
    assert fetch(client, "dead") == BODIES
    assert not world.broker.dead_letters.retry.rows and not world.broker.dead_letters.open
    assert world.broker.content_bytes == 0


def test_a_vhost_that_is_deleted_meanwhile(world: World, client: Client) -> None:
    declare_both(client)
    fill(client)
    world.crowded = True
    limit(world, **{"max-length": 0})
    world.turn()
    assert world.broker.is_spreading
    world.crowded = False
    world.apply(c.DeleteVhost("/"))
    world.turn()
    assert not world.broker.is_spreading and not world.broker.dead_letters.retry.rows


def test_a_queue_that_goes_elsewhere_takes_them_along(world: World, client: Client) -> None:
    declare_both(client)
    fill(client)
    world.holds_disk = world.crowded = True
    limit(world, **{"max-length": 0})
    world.turn()
    limit(world)
    queue = world.queue("q")
    world.broker.dead_letters.take_back(queue)
    assert queue.ready_count == COUNT and not world.broker.is_spreading
    world.holds_disk = world.crowded = False
    world.sync()
    world.turn()
    assert fetch(client, "q") == BODIES


CLOSING: dict[str, tuple[Callable[[Queue], Any], Callable[[Queue], Any]]] = {
    "frozen": (Queue.freeze, Queue.thaw),
    "held": (Queue.hold, Queue.resume),
    "sealed": (Queue.seal, Queue.resume),
}


@pytest.mark.parametrize("how", CLOSING)
@pytest.mark.parametrize("is_read", [False, True], ids=["in memory", "in the log"])
def test_a_queue_publishes_none_while_it_is_not_open(world: World, client: Client, how: str, is_read: bool) -> None:
    close, reopen = CLOSING[how]
    waiting(world, client, is_read)
    queue = world.queue("q")
    close(queue)
    for _ in range(3):
        world.turn()
        world.broker.dead_letters.try_again()
    assert dead(world) == AT_ONCE and not world.ranges
    assert not world.broker.is_spreading  # Turns could do nothing.
    reopen(queue)
    assert world.broker.is_spreading  # Otherwise there might be no turn for a while.
    world.turn()
    assert fetch(client, "dead") == BODIES and not world.broker.dead_letters.retry.rows


def test_a_queue_that_closes_while_some_are_read_or_published(world: World, client: Client) -> None:
    waiting(world, client)
    world.load_messages_max = 2
    world.holds_disk = True
    world.turn()
    assert dead(world) == AT_ONCE + 2
    queue = world.queue("q")
    queue.freeze()
    world.holds_disk = False
    world.sync()
    world.turn()
    assert dead(world) == AT_ONCE + 2 and not world.broker.is_spreading
    queue.thaw()
    world.holds_loads = True
    world.turn()
    queue.freeze()
    world.holds_loads = False
    world.finish_loads()
    world.turn()
    assert dead(world) == AT_ONCE + 2 and not world.broker.is_spreading
    queue.thaw()
    world.turn()
    assert fetch(client, "dead") == BODIES and not world.broker.dead_letters.retry.rows


def test_a_queue_that_is_deleted_while_it_is_not_open(world: World, client: Client) -> None:
    waiting(world, client, is_read=False)
    world.queue("q").freeze()
    world.turn()
    world.apply(c.DeleteQueue("/", "q", world.queue("q").spec.id))
    world.turn()
    assert fetch(client, "dead") == BODIES
    assert not world.broker.dead_letters.retry.rows and not world.broker.dead_letters.retry.closed


def test_they_need_no_memory_while_they_wait(world: World, client: Client) -> None:
    declare_both(client)
    fill(client)
    client.publish("dead", b"first", delivery_mode=2)
    world.crowded = True
    limit(world, **{"max-length": 0})
    world.turn()
    world.broker.content_bytes_max = 0
    world.broker.page_out_unacked()
    assert world.queue("q").memory_bytes == 0
    world.broker.content_bytes_max = 1 << 40
    world.crowded = False
    world.turn()
    assert fetch(client, "dead") == [b"first", *BODIES]
    assert not world.broker.dead_letters.retry.rows and not world.log.queues[world.queue("q").spec.id]


@pytest.mark.parametrize("levels", [{}, {"max_priority": 3}], ids=["plain", "priorities"])
@pytest.mark.parametrize("is_sent", [False, True], ids=["waiting", "published"])
def test_to_take_back_very_many_goes_through_the_others_once(
    world: World, client: Client, levels: dict[str, Any], is_sent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_both(client, **levels)
    bodies = [b"%03d" % number for number in range(400)]
    for body in bodies:
        client.feed(publish(1, "", "q", body, client.frame_max, delivery_mode=2))
    client.consume("q", tag="q")
    client.take()
    queue, letters = world.queue("q"), world.broker.dead_letters
    world.queue("dead").hold()
    for tag in range(1, 301, 2):  # The others come back, and are between these.
        letters.left = publisher.WORK_MAX if is_sent and tag <= 150 else 0
        client.feed(m.encode(1, m.BasicReject(delivery_tag=tag, requeue=False)))
    assert len(letters.open) == (75 if is_sent else 0) and letters.retry.count(queue) + len(letters.open) == 150
    client.feed(m.encode(1, m.BasicCancel(consumer_tag="q")))
    client.feed(m.encode(1, m.BasicNack(delivery_tag=0, multiple=True, requeue=True)))
    assert isinstance(Span.first, property) and Span.first.fget is not None
    looks, first = [0], Span.first.fget

    def counted(span: Span) -> int:
        looks[0] += 1
        return int(first(span))

    monkeypatch.setattr(Span, "first", property(counted))
    letters.take_back(queue)
    assert looks[0] <= 20 * len(bodies)
    assert queue.ready_count == len(bodies) and not letters.retry.rows
    world.queue("dead").resume()
    world.turn()
    client.take()
    assert fetch(client, "q") == bodies


@pytest.mark.parametrize("is_deleted", [False, True], ids=["led elsewhere", "and deleted"])
def test_a_queue_that_is_led_elsewhere_publishes_none(monkeypatch: pytest.MonkeyPatch, is_deleted: bool) -> None:
    """The next master has the messages, too, whatever becomes of the queue then, be it in the same turn."""
    monkeypatch.setattr(publisher, "WORK_NEW", 1)
    for module in ("leveret.broker.dead_letter.publisher", "leveret.broker.broker"):
        monkeypatch.setattr(f"{module}.WORK_MAX", AT_ONCE)
    rings = Rings(table_from_python({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}))
    rings.apply(c.DeclareQueue("/", "dead", durable=False, node="a"))
    a = rings["a"]
    client = a.client()
    for body, table in zip(BODIES, HEADERS, strict=True):
        client.publish("q", body, delivery_mode=2, headers=table_from_python(table))
    client.consume("q", tag="q")
    a.crowded = True
    client.send(m.BasicNack(delivery_tag=0, multiple=True, requeue=False))
    assert dead(a) == AT_ONCE
    rings.begin()
    if is_deleted:
        rings.propose(a, c.DeleteQueue("/", "q", rings.number), lambda applied: None)
    a.crowded = False
    rings.end()
    assert dead(a) == AT_ONCE and not a.broker.dead_letters.retry.rows


def waiting(world: World, client: Client, is_read: bool = True) -> None:
    """Has messages of a queue wait to be published; if they have to be read for that, with contents in the log only."""
    declare_both(client)
    fill(client)
    world.crowded = True
    limit(world, **{"max-length": 0})
    world.turn()
    if is_read:
        world.broker.content_bytes_max = 0
        world.broker.page_out_unacked()
        world.broker.content_bytes_max = 1 << 40
    world.crowded = False


def test_what_was_read_stays_until_it_is_published(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is short all the time, and more queues wait than a turn has room for."""
    monkeypatch.setattr(retry, "READERS_MAX", 2)
    declare(client, "dead")
    names = [f"q{number}" for number in range(6)]
    for name in names:
        declare(client, name, dead_letter_exchange="", dead_letter_routing_key="dead")
        for body, table in zip(BODIES, HEADERS, strict=True):
            client.publish(name, body, delivery_mode=2, headers=table_from_python(table))
    world.crowded = True
    world.metadata.apply(c.SetPolicy("/", "p", "^q", "queues", 0, {"max-length": 0}))
    world.broker.refresh_rules()
    world.turn()
    world.broker.content_bytes_max = 0
    letters = world.broker.dead_letters.retry
    waits = sum(letters.count(world.queue(name)) for name in names)
    pump, read, found = world.broker.pump, world.log.read, [0]

    def short_pump() -> None:
        world.broker.page_out_unacked()
        pump()
        assert len(letters.readers) <= 2

    def counted(*arguments: int) -> tuple[list[Run], int]:
        runs, following = read(*arguments)
        found[0] += sum(map(len, runs))
        return runs, following

    monkeypatch.setattr(world.broker, "pump", short_pump)
    monkeypatch.setattr(world.log, "read", counted)
    world.crowded, world.load_messages_max = False, 2 * AT_ONCE
    world.turn()
    assert dead(world) == len(names) * COUNT and not letters.rows
    assert found[0] == waits > AT_ONCE * len(names)
    assert not letters.readers and not letters.unread


@pytest.mark.parametrize("end", ["deleted", "frozen", "moving", "unreadable"])
def test_others_read_when_one_need_not(
    world: World, client: Client, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "READERS_MAX", 1)
    declare_both(client)
    declare(client, "other", dead_letter_exchange="", dead_letter_routing_key="dead")
    for name in ("q", "other"):
        client.publish(name, name.encode(), delivery_mode=2)
        client.consume(name, tag=name)
        client.take()
    world.broker.content_bytes_max = 0
    world.broker.page_out_unacked()
    world.holds_loads = True
    client.send(m.BasicNack(delivery_tag=0, multiple=True, requeue=False))
    ((number, first, _, then),) = world.ranges
    queue = world.queue("q")
    assert number == queue.spec.id
    if end == "deleted":
        world.apply(c.DeleteQueue("/", "q", queue.spec.id))
    elif end == "moving":
        world.broker.dead_letters.take_back(queue)
    elif end == "unreadable":
        world.ranges.clear()
        then(None, first)
    else:
        queue.freeze()
        world.finish_loads()
    world.turn()
    assert world.ranges[-1][0] == world.queue("other").spec.id
    world.holds_loads = False
    world.turn()
    client.take()
    assert fetch(client, "dead") == [b"other"]


def test_later_ones_follow_those_that_are_read(world: World, client: Client) -> None:
    waiting(world, client)
    world.holds_loads = True
    world.turn()
    assert world.ranges and not world.broker.is_spreading
    for body in (b"later", b"last"):
        client.publish("q", body, delivery_mode=2)
    assert not world.broker.is_spreading  # No turn could do anything.
    world.holds_loads = False
    world.finish_loads()
    world.turn()
    assert fetch(client, "dead") == [*BODIES, b"later", b"last"]
    assert not world.broker.dead_letters.retry.rows


def test_later_ones_follow_those_that_are_read_when_others_are_answered(world: World, client: Client) -> None:
    waiting(world, client)
    world.load_messages_max = 2
    world.holds_disk = True
    world.turn()
    assert dead(world) == AT_ONCE + 2 and not world.ranges
    client.publish("q", b"later", delivery_mode=2)
    assert dead(world) == AT_ONCE + 2
    world.holds_disk = False
    world.sync()
    world.turn()
    assert fetch(client, "dead") == [*BODIES, b"later"]


def test_what_waits_does_not_grow_while_more_is_published_than_a_turn_has_room_for(
    world: World, client: Client
) -> None:
    declare_both(client)
    fill(client)
    world.crowded = True
    limit(world, **{"max-length": 5})
    world.turn()
    letters, queue = world.broker.dead_letters, world.queue("q")
    before = letters.retry.count(queue)
    assert before > 2 * AT_ONCE
    for _ in range(5):
        for number in range(2 * AT_ONCE):
            client.feed(publish(1, "", "q", b"new %d" % number, client.frame_max))
        world.turn()
        assert letters.retry.count(queue) <= before and queue.ready_count == 5
    world.crowded = False
    world.turn()
    assert fetch(client, "dead")[:COUNT] == BODIES


def test_queues_take_turns(world: World, client: Client) -> None:
    declare_both(client)
    declare(client, "q2", dead_letter_exchange="", dead_letter_routing_key="dead")
    for number in range(COUNT):
        client.publish("q", b"1", headers=table_from_python({"n": number}))
        client.publish("q2", b"2", headers=table_from_python({"n": number}))
    world.metadata.apply(c.SetPolicy("/", "p", "^q", "queues", 0, {"max-length": 0}))
    world.broker.refresh_rules()
    count_turns(world)
    world.turn()
    found = b"".join(fetch(client, "dead"))
    assert found.count(b"1" * (2 * AT_ONCE)) <= 1 and sorted(found) == sorted(b"12" * COUNT)
