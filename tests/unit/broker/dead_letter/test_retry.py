"""The dead that wait: letters that are refused and tried again, and contents that are read back for them."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.dead_letter.retry import TRIES
from leveret.broker.routing.reply_address import ADDRESS
from leveret.metadata.model import commands as c
from leveret.metadata.rules.queue_rules import QueueRules
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python, to_python
from tests.support.machines import Client, World

KEEPS = {"dead-letter-strategy": "at-least-once"}
BODY = b"." * 4_000


@pytest.fixture
def world() -> World:
    world = World()
    world.broker.wall_ms = 5_000_000
    return world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


@pytest.fixture(params=[0, 3], ids=["plain", "priorities"])
def levels(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"max_priority": request.param} if request.param else {}


def declare(client: Client, name: str, **arguments: Any) -> None:
    table = table_from_python({f"x-{key.replace('_', '-')}": value for key, value in arguments.items()})
    client.declare(name, durable=True, arguments=table)


def policy(world: World, **more: Any) -> None:
    world.apply(c.SetPolicy("/", "p", "^q$", "classic_queues", 0, {**KEEPS, **more}))


def lift(world: World) -> None:
    """Whatever is published to the dead fits from now on."""
    world.queue("dead").set_rules(QueueRules())


def count(client: Client, name: str) -> int:
    answer = client.call(m.QueueDeclare(queue=name, passive=True))
    assert isinstance(answer, m.QueueDeclareOk)
    return answer.message_count


def fetch(client: Client, name: str) -> list[bytes]:
    client.consume(name, tag=name, no_ack=True)
    found = client.bodies()
    client.send(m.BasicCancel(consumer_tag=name))
    client.take()
    return found


def short_of_memory(world: World) -> None:
    world.broker.content_bytes_max = 0
    world.broker.page_out_unacked()


def hold_all(world: World, client: Client, bodies: list[bytes], **properties: Any) -> None:
    """Have a consumer take them, and memory forget them."""
    for body in bodies:
        client.publish("q", body, **{"delivery_mode": 2, **properties})
    client.consume("q", tag="q")
    client.take()
    short_of_memory(world)
    assert all(one.batch.paged for one in client.connection.channels[1].session.unacked)
    assert not world.queue("q").memory_bytes


def in_log(world: World, name: str) -> int:
    return sum(len(run.contents) for run in world.log.read(world.queue(name).spec.id, 1, 1 << 40, 1 << 40)[0])


def test_contents_of_what_a_consumer_holds_are_read_for_letters(
    world: World, client: Client, levels: dict[str, Any]
) -> None:
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead", **levels)
    bodies = [b"%d" % number for number in range(10)]
    hold_all(world, client, bodies)
    client.send(m.BasicNack(delivery_tag=7, multiple=True, requeue=False))
    world.turn()
    assert in_log(world, "q") == 3 and not world.broker.dead_letters.retry.rows
    assert fetch(client, "dead") == bodies[:7]
    client.send(m.BasicNack(delivery_tag=10, multiple=True, requeue=False))
    world.turn()
    assert (world.queue("q").memory_bytes, world.queue("q").unacked_count, in_log(world, "q")) == (0, 0, 0)
    assert fetch(client, "dead") == bodies[7:]


def test_they_are_settled_when_their_letters_are_safe(world: World, client: Client) -> None:
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    hold_all(world, client, [b"x"])
    world.holds_loads = world.holds_disk = True
    client.send(m.BasicReject(delivery_tag=1, requeue=False))
    world.turn()
    assert in_log(world, "q") == 1
    world.finish_loads()
    world.turn()
    assert in_log(world, "q") == 1
    world.sync()
    world.turn()
    assert in_log(world, "q") == 0


def test_what_is_rejected_one_by_one_is_read_in_bites(world: World, client: Client) -> None:
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    bodies = [b"%d" % number for number in range(200)]
    hold_all(world, client, bodies)
    world.holds_loads = True
    for tag in range(1, 201):
        client.send(m.BasicReject(delivery_tag=tag, requeue=False))
    (row,) = world.broker.dead_letters.retry.rows.values()
    assert len(world.ranges) == 1 and len(row.new.pieces) == 1
    world.holds_loads = False
    while world.ranges:
        world.finish_loads()
        world.turn()
    assert fetch(client, "dead") == bodies


def test_what_cannot_be_read_is_tried_again(world: World, client: Client) -> None:
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    hold_all(world, client, [b"x"])
    world.holds_loads = True
    client.send(m.BasicReject(delivery_tag=1, requeue=False))
    ((_, first, _, then),) = world.ranges
    world.ranges.clear()
    then(None, first)
    assert not world.ranges
    world.holds_loads = False
    world.broker.dead_letters.try_again()
    world.finish_loads()
    world.turn()
    assert fetch(client, "dead") == [b"x"]


def test_a_queue_that_is_deleted_while_its_dead_are_read(world: World, client: Client) -> None:
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    hold_all(world, client, [b"x"])
    world.holds_loads = True
    client.send(m.BasicReject(delivery_tag=1, requeue=False))
    client.send(m.QueueDelete(queue="q"))
    client.take()
    world.finish_loads()
    world.broker.dead_letters.try_again()
    world.turn()
    assert count(client, "dead") == 0 and not world.broker.dead_letters.retry.rows
    assert world.broker.content_bytes == 0


def test_an_exchange_that_is_gone_when_its_letters_could_be_made(world: World, client: Client) -> None:
    client.call(m.ExchangeDeclare(exchange="x", type="fanout"))
    declare(client, "q", dead_letter_exchange="x")
    hold_all(world, client, [b"1", b"2", b"3"])
    world.holds_loads = True
    client.send(m.BasicReject(delivery_tag=1, requeue=False), m.BasicReject(delivery_tag=3, requeue=False))
    client.call(m.ExchangeDelete(exchange="x"))
    world.holds_loads = False
    world.finish_loads()
    world.turn()
    assert in_log(world, "q") == 1 and not world.broker.dead_letters.retry.rows


def test_those_that_are_to_be_kept_wait_for_an_exchange_in_the_log(world: World, client: Client) -> None:
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="x")
    policy(world)
    hold_all(world, client, [b"1", b"2", b"3"])
    client.send(m.BasicReject(delivery_tag=1, requeue=False), m.BasicReject(delivery_tag=3, requeue=False))
    for _ in range(3):
        world.broker.dead_letters.try_again()
        world.turn()
    assert (in_log(world, "q"), world.broker.dead_letters.retry.count(world.queue("q"))) == (3, 2)
    client.call(m.ExchangeDeclare(exchange="x", type="fanout"))
    client.call(m.QueueBind(queue="dead", exchange="x"))
    world.broker.dead_letters.try_again()
    world.turn()
    assert in_log(world, "q") == 1 and not world.broker.dead_letters.retry.rows
    assert fetch(client, "dead") == [b"1", b"3"]


def test_a_queue_that_goes_elsewhere_takes_its_dead_along(
    world: World, client: Client, levels: dict[str, Any]
) -> None:
    declare(client, "dead", max_length=0, overflow="reject-publish")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead", **levels)
    policy(world)
    hold_all(world, client, [b"1", b"2", b"3"])
    client.send(m.BasicReject(delivery_tag=1, requeue=False))  # It is read, and refused.
    world.turn()
    world.holds_loads = True
    client.send(m.BasicReject(delivery_tag=2, requeue=False))  # It is about to be read.
    client.send(m.BasicCancel(consumer_tag="q"))
    client.take()
    reads = list(world.ranges)
    world.broker.dead_letters.take_back(world.queue("q"))
    assert world.queue("q").ready_count == 2 and not world.broker.dead_letters.retry.rows
    for _, first, last, then in reads:  # Nobody wants them any more.
        then(*world.log.read(world.queue("q").spec.id, first, last, 10))
    world.holds_loads = False
    world.finish_loads()
    world.turn()
    assert fetch(client, "q") == [b"1", b"2"]


def test_a_second_costs_so_many_tries_however_many_wait(world: World, client: Client) -> None:
    declare(client, "dead", max_length=0, overflow="reject-publish")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    policy(world)
    bodies = [b"%d" % number for number in range(10 * TRIES)]
    for body in bodies:
        client.publish("q", body, delivery_mode=2)
    policy(world, **{"max-length": 0})
    world.turn()
    letters = world.broker.dead_letters
    for _ in range(3):
        before = letters.sent
        letters.try_again()
        world.turn()
        assert letters.sent - before == TRIES
    lift(world)
    letters.try_again()
    world.turn()
    assert not letters.retry.rows and sorted(fetch(client, "dead"), key=int) == bodies
    assert in_log(world, "q") == 0


def test_new_ones_are_read_also_when_no_refused_one_may_be_tried(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(client, "dead", max_length=0, overflow="reject-publish")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    policy(world)
    hold_all(world, client, [b"%d" % number for number in range(TRIES + 1)])
    read_range = world.read_range

    def checked(queue: int, first: int, last: int, bytes_max: int, then: Any) -> None:
        assert first <= last, "a read of nothing would be followed by the same read"
        read_range(queue, first, last, bytes_max, then)

    monkeypatch.setattr(world, "read_range", checked)
    client.send(m.BasicNack(delivery_tag=TRIES, multiple=True, requeue=False))
    retry, queue = world.broker.dead_letters.retry, world.queue("q")
    assert retry.rows[queue].tries == 0 and retry.rows[queue].refused.count == TRIES
    client.send(m.BasicNack(delivery_tag=TRIES + 1, requeue=False))
    assert retry.rows[queue].refused.count == TRIES + 1
    lift(world)
    for _ in range(3):
        world.broker.dead_letters.try_again()
        world.turn()
    assert count(client, "dead") == TRIES + 1 and not retry.rows


def test_those_whose_targets_have_room_are_not_held_up_for_ever(world: World, client: Client) -> None:
    declare(client, "dead", max_length=0, overflow="reject-publish")
    declare(client, "other")
    client.call(m.ExchangeDeclare(exchange="x", type="direct"))
    declare(client, "q", dead_letter_exchange="x")
    for name in ("dead", "other"):
        client.call(m.QueueBind(queue=name, exchange="x", routing_key=name))
        client.call(m.QueueBind(queue="q", exchange="amq.direct", routing_key=name))
    policy(world)
    world.apply(c.SetPolicy("/", "full", "^other$", "queues", 0, {"max-length": 0, "overflow": "reject-publish"}))
    for number in range(3 * TRIES):
        client.publish("dead", b"%d" % number, exchange="amq.direct", delivery_mode=2)
    client.publish("other", b"last", exchange="amq.direct", delivery_mode=2)
    policy(world, **{"max-length": 0})
    world.turn()
    world.apply(c.ClearPolicy("/", "full"))
    for _ in range(4):
        world.broker.dead_letters.try_again()
        world.turn()
    assert fetch(client, "other") == [b"last"]


@pytest.mark.parametrize("mode", [1, 2], ids=["transient", "persistent"])
def test_the_contents_of_refused_letters_need_no_memory(
    world: World, client: Client, levels: dict[str, Any], mode: int
) -> None:
    declare(client, "dead", max_length=0, overflow="reject-publish")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead", **levels)
    policy(world)
    bodies = [b"%d" % number + BODY for number in range(100)]
    for body in bodies:
        client.publish("q", body, delivery_mode=mode)
    policy(world, **{"max-length": 0})
    world.turn()
    assert world.broker.content_bytes > len(bodies) * len(BODY)
    world.broker.spill_bytes_max = 0
    while world.broker.content_bytes:
        before = world.broker.content_bytes
        short_of_memory(world)
        assert world.broker.content_bytes < before
    assert world.queue("q").memory_bytes == 0
    world.broker.dead_letters.try_again()
    world.finish_loads()
    world.turn()
    assert world.broker.content_bytes == 0  # Refused once more, and forgotten at once.
    lift(world)
    world.broker.content_bytes_max = world.broker.spill_bytes_max = 1 << 40
    for _ in range(3):
        world.broker.dead_letters.try_again()
        world.finish_loads()
        world.turn()
    assert sorted(fetch(client, "dead")) == sorted(bodies)
    assert in_log(world, "q") == 0 and not world.broker.dead_letters.retry.rows


def test_an_answer_is_given_once_however_often_its_letter_is_refused(world: World, client: Client) -> None:
    declare(client, "dead", max_length=0, overflow="reject-publish")
    client.call(m.ExchangeDeclare(exchange="x", type="fanout"))
    declare(client, "q", dead_letter_exchange="")
    client.call(m.QueueBind(queue="q", exchange="x"))
    policy(world)
    asker = world.client()
    asker.declare("questions", exclusive=True)
    asker.consume(ADDRESS, no_ack=True)
    asker.publish("questions", reply_to=ADDRESS)
    asker.send(m.BasicGet(queue="questions", no_ack=True))
    (asked,) = asker.take()
    assert asked.properties is not None
    copies = table_from_python({"CC": [asked.properties.reply_to]})
    client.publish("dead", b"late", exchange="x", headers=copies, delivery_mode=2)
    client.send(m.BasicGet(queue="q"))
    client.take()
    client.send(m.BasicReject(delivery_tag=1, requeue=False))
    (reply,) = asker.take()
    assert isinstance(reply.method, m.BasicDeliver) and reply.body == b"late"
    assert (reply.method.exchange, reply.method.routing_key, reply.method.redelivered) == ("", "dead", False)
    assert reply.properties is not None and reply.properties.headers is not None
    found: Any = to_python(reply.properties.headers)
    assert found["x-death"][0]["queue"] == "q"
    for _ in range(2):
        world.broker.dead_letters.try_again()
        world.turn()
    assert asker.take() == []
    lift(world)
    world.broker.dead_letters.try_again()
    world.turn()
    assert asker.take() == [] and fetch(client, "dead") == [b"late"]
