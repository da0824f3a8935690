"""Dead letters: what they say, where they go, and that none is lost on the way."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.dead_letter.publisher import is_cycle, note_death
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.tables import Field, table_from_python, to_python
from tests.support.machines import Client, Reply, World

START_MS = 5_000_000


@pytest.fixture
def world() -> World:
    world = World()
    world.broker.wall_ms = START_MS
    return world


@pytest.fixture
def client(world: World) -> Client:
    return world.client()


def declare(client: Client, name: str, **arguments: Any) -> None:
    table = table_from_python({f"x-{key.replace('_', '-')}": value for key, value in arguments.items()})
    client.declare(name, durable=True, arguments=table)


def get(client: Client, name: str) -> Reply:
    client.send(m.BasicGet(queue=name, no_ack=True))
    (reply,) = client.take()
    return reply


def headers(reply: Reply) -> dict[str, Any]:
    assert reply.properties is not None and reply.properties.headers is not None
    found = to_python(reply.properties.headers)
    assert isinstance(found, dict)
    return found


def reject(client: Client, name: str) -> None:
    client.send(m.BasicGet(queue=name))
    (reply,) = client.take()
    assert isinstance(reply.method, m.BasicGetOk)
    client.send(m.BasicReject(delivery_tag=reply.method.delivery_tag, requeue=False))


def test_a_rejected_message_says_why(world: World, client: Client) -> None:
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    client.publish("q", b"body", content_type="a/b", delivery_mode=2, headers=table_from_python({"mine": 1}))
    reject(client, "q")
    reply = get(client, "dead")
    assert reply.body == b"body" and reply.properties is not None
    assert (reply.properties.content_type, reply.properties.delivery_mode) == ("a/b", 2)
    found = headers(reply)
    (death,) = found.pop("x-death")
    assert death.pop("time") is not None
    assert death == {"count": 1, "reason": "rejected", "queue": "q", "exchange": "", "routing-keys": ["q"]}
    assert found == {
        "mine": 1,
        "x-first-death-reason": "rejected",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "",
    }


def test_an_expiration_is_taken_off_and_kept_in_the_note(world: World, client: Client) -> None:
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    client.publish("q", b"x", expiration="10")
    world.broker.wall_ms += 11
    world.broker.on_time()
    world.turn()
    reply = get(client, "dead")
    assert reply.properties is not None and reply.properties.expiration is None
    assert headers(reply)["x-death"][0]["original-expiration"] == "10"
    assert headers(reply)["x-death"][0]["reason"] == "expired"


def test_without_a_key_of_its_own_a_letter_keeps_its_keys(world: World, client: Client) -> None:
    world.apply(c.DeclareExchange("/", "dlx", "direct", True, False, False, {}))
    declare(client, "by.key")
    declare(client, "by.copy")
    client.call(m.QueueBind(queue="by.key", exchange="dlx", routing_key="q"))
    client.call(m.QueueBind(queue="by.copy", exchange="dlx", routing_key="copy"))
    declare(client, "q", dead_letter_exchange="dlx")
    client.publish("q", b"x", headers={"CC": Field("A", [Field("S", "copy")])})
    reject(client, "q")
    for name in ("by.key", "by.copy"):
        reply = get(client, name)
        assert isinstance(reply.method, m.BasicGetOk) and reply.method.exchange == "dlx"
        assert headers(reply)["x-death"][0]["routing-keys"] == ["q", "copy"]


def test_too_many_and_a_second_death(world: World, client: Client) -> None:
    declare(client, "q", max_length=1, dead_letter_exchange="", dead_letter_routing_key="q2")
    declare(client, "q2", dead_letter_exchange="", dead_letter_routing_key="q")
    client.publish("q", b"first")
    client.publish("q", b"second")
    reject(client, "q2")  # "first" again, which pushes "second" out.
    assert get(client, "q").body == b"first"
    reply = get(client, "q2")
    assert reply.body == b"second"
    assert [death["queue"] for death in headers(reply)["x-death"]] == ["q"]


def test_a_circle_that_nobody_rejects_in_ends(world: World, client: Client) -> None:
    declare(client, "a", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="b")
    declare(client, "b", message_ttl=10, dead_letter_exchange="", dead_letter_routing_key="a")
    client.publish("a", b"x")
    for _ in range(5):
        world.broker.wall_ms += 10
        world.broker.on_time()
        world.turn()
    assert [world.queue(name).ready_count for name in "ab"] == [0, 0]


def test_a_message_stays_until_its_letter_is_safe(world: World, client: Client) -> None:
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    client.publish("q", b"x", delivery_mode=2)
    source = world.queue("q").spec.id
    world.holds_disk = True
    reject(client, "q")
    assert not world.queue("q").settled and world.log.read(source, 1, 9, 9)[0], "the letter is on no disk yet"
    world.holds_disk = False
    world.turn()
    world.turn()
    assert world.log.read(source, 1, 9, 9)[0] == []
    assert get(client, "dead").body == b"x"


def test_where_there_is_no_such_exchange_the_message_is_gone(world: World, client: Client) -> None:
    declare(client, "q", dead_letter_exchange="nowhere")
    client.publish("q", b"x", delivery_mode=2)
    reject(client, "q")
    assert world.log.read(world.queue("q").spec.id, 1, 9, 9)[0] == []


def test_a_letter_that_its_target_refuses_is_given_up(world: World, client: Client) -> None:
    declare(client, "dead", max_length=0, overflow="reject-publish")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    client.publish("q", b"x", delivery_mode=2)
    reject(client, "q")
    assert world.broker.dead_letters.dropped == 1
    assert world.log.read(world.queue("q").spec.id, 1, 9, 9)[0] == []


def test_one_that_is_to_be_kept_is_tried_again(world: World, client: Client) -> None:
    declare(client, "dead", max_length=1, overflow="reject-publish")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    world.apply(c.SetPolicy("/", "p", "^q$", "classic_queues", 0, {"dead-letter-strategy": "at-least-once"}))
    client.publish("dead", b"in the way")
    client.publish("q", b"x", delivery_mode=2)
    reject(client, "q")
    assert get(client, "dead").body == b"in the way"
    assert isinstance(get(client, "dead").method, m.BasicGetEmpty)
    world.broker.dead_letters.try_again()
    world.turn()
    assert get(client, "dead").body == b"x"


@pytest.mark.parametrize("missing", ["queue", "exchange"])
def test_one_that_is_to_be_kept_waits_until_it_leads_somewhere(world: World, client: Client, missing: str) -> None:
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="later", dead_letter_routing_key="k")
    world.apply(c.SetPolicy("/", "p", "^q$", "classic_queues", 0, {"dead-letter-strategy": "at-least-once"}))
    if missing == "queue":
        client.call(m.ExchangeDeclare(exchange="later", type="direct"))
    for body in (b"1", b"2", b"3"):
        client.publish("q", body, delivery_mode=2)
        reject(client, "q")
    for _ in range(2):
        world.broker.dead_letters.try_again()
        world.turn()
    assert sum(len(run.contents) for run in world.log.read(world.queue("q").spec.id, 1, 9, 9)[0]) == 3
    told = [text for category, level, text in world.notes if (category, level) == ("queue", "warning")]
    assert len(told) == 1 and "Cannot forward any dead-letter messages from source queue 'q' in vhost '/'" in told[0]
    assert ("does not exist" in told[0]) == (missing == "exchange")
    client.call(m.ExchangeDeclare(exchange="later", type="direct"))
    client.call(m.QueueBind(queue="dead", exchange="later", routing_key="k"))
    world.broker.dead_letters.try_again()
    world.turn()
    assert [get(client, "dead").body for _ in range(3)] == [b"1", b"2", b"3"]
    assert world.log.read(world.queue("q").spec.id, 1, 9, 9)[0] == []
    assert world.broker.dead_letters.dropped == 0


def test_one_that_goes_round_in_a_circle_is_kept_too(world: World, client: Client) -> None:
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="q")
    keeps: dict[str, Any] = {"dead-letter-strategy": "at-least-once", "max-length": 0}
    world.apply(c.SetPolicy("/", "p", "^q$", "classic_queues", 0, keeps))
    client.publish("q", b"x", delivery_mode=2)
    world.turn()
    assert len(world.log.read(world.queue("q").spec.id, 1, 9, 9)[0]) == 1


def test_some_letters_fit_though_not_all_do(world: World, client: Client) -> None:
    declare(client, "dead", max_length=2, overflow="reject-publish")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    world.apply(c.SetPolicy("/", "p", "^q$", "classic_queues", 0, {"dead-letter-strategy": "at-least-once"}))
    for body in (b"1", b"2", b"3"):
        client.publish("q", body, delivery_mode=2)
    keeps: dict[str, Any] = {"dead-letter-strategy": "at-least-once", "max-length": 0}
    world.apply(c.SetPolicy("/", "p", "^q$", "classic_queues", 0, keeps))
    world.turn()
    assert [get(client, "dead").body for _ in range(2)] == [b"1", b"2"]
    world.broker.dead_letters.try_again()
    world.turn()
    assert get(client, "dead").body == b"3"


def test_what_a_full_queue_refuses_may_go_to_its_dead_letters(world: World, client: Client) -> None:
    declare(client, "dead")
    letters = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}
    declare(client, "q", max_length=0, overflow="reject-publish-dlx", **letters)
    client.call(m.ConfirmSelect())
    client.publish("q", b"x")
    assert client.methods() == [m.BasicNack(1, False, False)]
    assert headers(get(client, "dead"))["x-death"][0]["reason"] == "maxlen"


def death(queue: str, reason: str) -> Field:
    return Field("F", {"queue": Field("S", queue), "reason": Field("S", reason)})


@pytest.mark.parametrize(
    ("deaths", "expected"),
    [
        ([], False),
        ([death("q", "expired")], True),
        ([death("other", "expired"), death("q", "maxlen")], True),
        ([death("q", "rejected")], False),
        ([death("other", "rejected"), death("q", "expired")], False),
        ([death("q", "expired"), death("other", "rejected")], True),
        ([Field("S", "no table"), death("q", "expired")], True),
    ],
)
def test_is_cycle(deaths: list[Field], expected: bool) -> None:
    assert is_cycle("q", deaths) is expected


def test_deaths_of_one_kind_are_counted_and_come_first() -> None:
    table = {"x-death": Field("A", [death("other", "expired"), death("q", "rejected")])}
    again = {"queue": Field("S", "q"), "reason": Field("S", "rejected"), "exchange": Field("S", "")}
    note_death(table, again)
    first, second = table["x-death"].value
    assert (first.value["queue"].value, first.value["count"]) == ("q", Field("l", 2))
    assert second.value == {"count": Field("l", 1), **death("other", "expired").value}


def test_entries_of_other_queues_are_merged() -> None:
    """Their latest stays first: whether a message goes round in circles is told from their order."""
    old = [death(f"q{number % 5}", "expired") for number in range(23)]
    table = {"x-death": Field("A", old)}
    note_death(table, {"queue": Field("S", "q"), "reason": Field("S", "rejected"), "exchange": Field("S", "")})
    found = [(one.value["queue"].value, one.value["count"].value) for one in table["x-death"].value]
    assert found == [("q", 1), ("q0", 5), ("q1", 5), ("q2", 5), ("q3", 4), ("q4", 4)]


@pytest.mark.parametrize("kind", ["l", "T"])
def test_a_count_that_cannot_grow_stays(world: World, client: Client, kind: str) -> None:
    """Publishers make up what they like, and the broker goes on."""
    declare(client, "dead")
    declare(client, "q", dead_letter_exchange="", dead_letter_routing_key="dead")
    known = {**death("q", "rejected").value, "count": Field(kind, (1 << 63) - 1)}
    client.publish("q", b"x", headers={"x-death": Field("A", [Field("F", known)])})
    reject(client, "q")
    assert headers(get(client, "dead"))["x-death"][0]["count"] == (1 << 63) - 1


def test_a_key_that_no_message_can_have(world: World, client: Client) -> None:
    declare(client, "dead")
    table = table_from_python({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "k" * 256})
    answer = client.call(m.QueueDeclare(queue="q", arguments=table))
    assert isinstance(answer, m.ChannelClose) and answer.reply_code == 406
    assert answer.reply_text.endswith("in vhost '/': longer than 255 bytes")


def test_a_policy_with_a_key_that_no_message_can_have(world: World, client: Client) -> None:
    declare(client, "q")
    definition: dict[str, Any] = {"dead-letter-exchange": "amq.fanout", "dead-letter-routing-key": "ü" * 200}
    world.apply(c.SetPolicy("/", "p", "^q$", "queues", 0, definition))
    declare(client, "dead")
    client.call(m.QueueBind(queue="dead", exchange="amq.fanout"))
    client.publish("q", b"x")
    reject(client, "q")
    reply = get(client, "dead")
    assert isinstance(reply.method, m.BasicGetOk) and reply.method.routing_key == "q", "as if there were no key"
