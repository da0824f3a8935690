"""Messages grow old, there are too many of them, they are turned away: a client's view, with a clock held by hand."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.queue import ordered_queue
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python
from tests.support.machines import Client, World, publish

START_MS = 1_000_000_000


@pytest.fixture
def world() -> World:
    world = World()
    world.broker.wall_ms = START_MS
    return world


@pytest.fixture
def client(world: World) -> Client:
    client = world.client()
    client.call(m.ConfirmSelect())
    return client


def declare(client: Client, name: str, **arguments: Any) -> None:
    table = table_from_python({f"x-{key.replace('_', '-')}": value for key, value in arguments.items()})
    answer = client.call(m.QueueDeclare(queue=name, durable=True, arguments=table))
    assert isinstance(answer, m.QueueDeclareOk), answer


def pass_time(world: World, ms: int) -> None:
    world.broker.wall_ms += ms
    world.broker.now_ms += ms
    world.broker.on_time()
    world.turn()


def waiting(world: World, name: str) -> int:
    return world.queue(name).ready_count


def got(client: Client, name: str) -> list[bytes]:
    found: list[bytes] = []
    while True:
        client.send(m.BasicGet(queue=name, no_ack=True))
        (reply,) = [one for one in client.take() if isinstance(one.method, m.BasicGetOk | m.BasicGetEmpty)]
        if reply.properties is None:
            return found
        found.append(reply.body)


def test_a_queue_drops_what_is_older_than_its_time_to_live(world: World, client: Client) -> None:
    declare(client, "q", message_ttl=100)
    client.publish("q", b"first")
    pass_time(world, 60)
    client.publish("q", b"second", delivery_mode=2)
    pass_time(world, 39)
    assert waiting(world, "q") == 2
    pass_time(world, 1)
    assert waiting(world, "q") == 1
    assert got(client, "q") == [b"second"]


def test_what_comes_while_nothing_is_handed_out_grows_old(world: World, client: Client) -> None:
    """A master without a majority takes publishes, and cannot tell how long it will be so."""
    declare(client, "q", message_ttl=100)
    world.queue("q").freeze()
    client.publish("q", b"first")
    pass_time(world, 60)
    client.publish("q", b"second")
    pass_time(world, 41)
    assert waiting(world, "q") == 2
    world.queue("q").thaw()
    assert got(client, "q") == [b"second"]


def test_what_is_dropped_is_settled_in_the_log(world: World, client: Client) -> None:
    declare(client, "q", message_ttl=100)
    client.publish("q", b"first", delivery_mode=2)
    number = world.queue("q").spec.id
    assert world.log.read(number, 1, 10, 10)[0]
    pass_time(world, 100)
    assert world.log.read(number, 1, 10, 10)[0] == []


def test_a_message_may_bring_its_own_time(world: World, client: Client) -> None:
    declare(client, "q")
    client.publish("q", b"short", expiration="10")
    client.publish("q", b"long", expiration="1000")
    client.publish("q", b"for ever")
    pass_time(world, 10)
    assert waiting(world, "q") == 2
    pass_time(world, 990)
    assert got(client, "q") == [b"for ever"]


def test_the_shorter_time_counts(world: World, client: Client) -> None:
    declare(client, "q", message_ttl=100)
    client.publish("q", b"own", expiration="5000")
    client.publish("q", b"shorter", expiration="50")
    pass_time(world, 50)
    assert waiting(world, "q") == 2, "only the front is looked at"
    pass_time(world, 50)
    assert waiting(world, "q") == 0


def test_the_first_is_another_one_when_there_were_too_many(world: World, client: Client) -> None:
    declare(client, "q", max_length=2)
    client.publish("q", b"for ever")
    client.publish("q", b"for ever")
    client.feed(publish(1, "", "q", b"short", expiration="100") * 2)
    world.turn()
    assert waiting(world, "q") == 2
    pass_time(world, 100)
    assert waiting(world, "q") == 0


def test_what_comes_in_one_turn_came_then_however_much_it_is(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leveret.broker.queue.queue.BATCH_MESSAGES_MAX", 2)
    declare(client, "q")
    for _ in range(5):
        client.feed(publish(1, "", "q", b"short", expiration="1000"))
    world.turn()
    pass_time(world, 900)
    client.send(m.BasicGet(queue="q", no_ack=True), m.BasicGet(queue="q", no_ack=True))
    pass_time(world, 100)
    assert waiting(world, "q") == 0


def test_with_no_time_at_all_a_message_goes_to_who_waits_or_to_nobody(world: World, client: Client) -> None:
    declare(client, "q", message_ttl=0)
    client.publish("q", b"to nobody")
    assert waiting(world, "q") == 0
    client.take()
    client.consume("q", no_ack=True)
    client.publish("q", b"to c")
    assert client.bodies() == [b"to c"]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("abc", "no_integer"),
        ("", "no_integer"),
        (" 1", "no_integer"),
        ("-1", "{value_negative,-1}"),
        ("1.5", '{leftover_string,".5"}'),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_an_impossible_expiration_is_refused(world: World, client: Client, value: str, problem: str) -> None:
    declare(client, "q")
    client.publish("q", b"x", expiration=value)
    (reply,) = client.take()
    assert reply.method == m.ChannelClose(
        406, f"PRECONDITION_FAILED - invalid expiration '{value}': {problem}", 60, 40
    )


def test_a_policy_sets_a_time_to_live_for_what_waits(world: World, client: Client) -> None:
    declare(client, "q")
    client.publish("q", b"x")
    set_policy(world, {"message-ttl": 10})
    world.turn()
    assert waiting(world, "q") == 1, "nobody knows since when it waits, so it begins now"
    pass_time(world, 10)
    assert waiting(world, "q") == 0


def set_policy(world: World, definition: dict[str, Any]) -> None:
    world.apply(c.SetPolicy("/", "p", "", "queues", 0, definition))


def test_the_oldest_go_when_there_are_too_many(world: World, client: Client) -> None:
    declare(client, "q", max_length=2)
    for number in range(5):
        client.publish("q", b"%d" % number)
    assert got(client, "q") == [b"3", b"4"]


def test_what_is_out_with_a_consumer_does_not_count(world: World, client: Client) -> None:
    declare(client, "q", max_length=1)
    client.publish("q", b"out")
    client.send(m.BasicGet(queue="q"))
    client.publish("q", b"waits")
    client.take()
    assert waiting(world, "q") == 1
    client.send(m.BasicNack(delivery_tag=1, requeue=True))
    assert got(client, "q") == [b"waits"], "what comes back goes to the front, and is dropped from there"


def test_bytes_are_those_of_bodies(world: World, client: Client) -> None:
    declare(client, "q", max_length_bytes=10)
    for body in (b"1234", b"5678", b"90"):
        client.publish("q", body)
    assert waiting(world, "q") == 3
    client.publish("q", b"x")
    assert got(client, "q") == [b"5678", b"90", b"x"]
    assert world.queue("q").ready_bytes == 0


def test_a_full_queue_refuses(world: World, client: Client) -> None:
    declare(client, "q", max_length=2, overflow="reject-publish")
    client.take()
    for _ in range(3):
        client.publish("q", b"x")
    assert client.methods() == [m.BasicAck(1), m.BasicAck(2), m.BasicNack(3, False, False)]
    assert waiting(world, "q") == 2
    got(client, "q")
    client.publish("q", b"x")
    assert m.BasicAck(4) in client.methods()


def test_one_that_fits_is_taken_though_one_before_it_did_not(world: World, client: Client) -> None:
    declare(client, "q", max_length_bytes=4, overflow="reject-publish")
    for body in (b"123", b"45", b"6"):
        client.publish("q", body)
    assert client.methods() == [m.BasicAck(1), m.BasicNack(2, False, False), m.BasicAck(3)]


def test_confirms_are_numbered_as_messages_came_whatever_their_ways(world: World, client: Client) -> None:
    """Those that come at once are bundled, by queue, unless their queue may refuse one."""
    declare(client, "plain")
    declare(client, "full", max_length=0, overflow="reject-publish")
    client.take()
    client.feed(b"".join(publish(1, "", key, b"x") for key in ("plain", "full", "plain", "full")))
    world.turn()
    acked = [(one.delivery_tag, isinstance(one, m.BasicAck)) for one in client.methods() if one is not None]  # type: ignore[attr-defined]
    assert acked == [(1, True), (2, False), (3, True), (4, False)]


def test_what_is_overdue_behind_others_is_not_handed_out(world: World, client: Client) -> None:
    declare(client, "q")
    for body, expiration in ((b"1", None), (b"2", "10"), (b"3", "900"), (b"4", "10"), (b"5", None)):
        client.feed(publish(1, "", "q", body, expiration=expiration))
    world.turn()
    pass_time(world, 50)
    assert waiting(world, "q") == 5, "the first of them stays, and all behind it wait"
    client.take()
    client.send(m.BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    world.turn()
    assert [one.body for one in client.take() if isinstance(one.method, m.BasicDeliver)] == [b"1", b"3", b"5"]
    assert waiting(world, "q") == 0


def test_an_older_one_of_a_lower_priority_is_not_handed_out(world: World, client: Client) -> None:
    declare(client, "q", max_priority=2, message_ttl=100)
    client.publish("q", b"old")
    pass_time(world, 60)
    client.publish("q", b"new", priority=2)
    pass_time(world, 60)
    client.take()
    client.send(m.BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    world.turn()
    assert [one.body for one in client.take() if isinstance(one.method, m.BasicDeliver)] == [b"new"]


def test_consumers_make_room_in_the_same_turn(world: World, client: Client) -> None:
    declare(client, "q", max_length=1, overflow="reject-publish")
    client.call(m.BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    for _ in range(5):
        client.feed(publish(1, "", "q", b"x"))
    world.turn()
    assert not any(isinstance(one, m.BasicNack) for one in client.methods())


def test_a_node_that_starts_gives_queues_their_time(world: World, client: Client) -> None:
    """Its clock stands anywhere, and nobody can use a queue before clients may come."""
    world.broker.arrivals.is_open = False
    declare(client, "q", expires=100)
    pass_time(world, 1_000_000)
    assert ("/", "q") in world.metadata.queues
    world.broker.arrivals.is_open, world.broker.opened_ms = True, world.broker.now_ms
    pass_time(world, 99)
    assert ("/", "q") in world.metadata.queues
    pass_time(world, 2)
    assert ("/", "q") not in world.metadata.queues


def test_an_unused_queue_goes(world: World, client: Client) -> None:
    declare(client, "q", expires=100)
    pass_time(world, 99)
    client.call(m.QueueDeclare(queue="q", passive=True))  # That counts as use.
    pass_time(world, 99)
    assert ("/", "q") in world.metadata.queues
    client.call(m.BasicConsume(queue="q", consumer_tag="c"))
    pass_time(world, 500)
    assert ("/", "q") in world.metadata.queues
    client.call(m.BasicCancel(consumer_tag="c"))
    pass_time(world, 99)
    assert ("/", "q") in world.metadata.queues
    pass_time(world, 2)
    assert ("/", "q") not in world.metadata.queues


def test_a_backlog_on_disk_shrinks_without_being_read(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(client, "q")
    for number in range(100):
        client.publish("q", b"%03d" % number, delivery_mode=2)
    queue = world.queue("q")
    world.broker.content_bytes_max = world.broker.spill_bytes_max = 0
    monkeypatch.setattr(ordered_queue, "KEEP_BYTES", 0)
    queue.page_out()
    world.holds_loads = True
    set_policy(world, {"max-length": 10})
    world.turn()
    assert waiting(world, "q") == 10 and not world.loads
    world.holds_loads = False
    world.finish_loads()
    assert got(client, "q") == [b"%03d" % number for number in range(90, 100)]


def test_after_a_start_the_first_message_is_looked_at(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(client, "q")
    client.publish("q", b"old", delivery_mode=2, expiration="50")
    client.publish("q", b"stays", delivery_mode=2)
    world.broker.content_bytes_max = world.broker.spill_bytes_max = 0
    monkeypatch.setattr(ordered_queue, "KEEP_BYTES", 0)
    queue = world.queue("q")
    queue.page_out()
    queue.timed = queue.has_upkeep = False  # As one that was just made of what the log holds.
    world.broker.timers.clear(queue)
    world.broker.content_bytes_max = world.broker.spill_bytes_max = 1 << 40
    world.broker.on_restored(queue)
    pass_time(world, 60)
    pass_time(world, 0)
    assert waiting(world, "q") == 1
    assert got(client, "q") == [b"stays"]
