"""Delayed exchanges at work, on a clock that is held by hand."""

from __future__ import annotations

import random
from typing import Any

import pytest

from leveret.base.json_values import Json
from leveret.broker.firehose import Firehose
from leveret.broker.kinds import delayed_queue
from leveret.broker.kinds.delayed_queue import AHEAD_MS, DelayedQueue
from leveret.broker.queue.local_queue import LocalQueue
from leveret.broker.remote.remote_queue import RemoteQueue
from leveret.metadata.model import commands as c
from leveret.metadata.model.hidden_queues import hidden_queue_name, is_hidden_queue
from leveret.metadata.store import Metadata
from leveret.protocol import methods as m
from leveret.protocol.tables import Field, Table, table_from_python, to_python
from tests.support.machines import Client, MemoryLog, World

START_MS = 1_700_000_000_000
LATE_MS = 10 * AHEAD_MS


class DelayWorld(World):
    """Begins with what another left behind, if there was one."""

    def __init__(self, old: World | None = None, **options: Any) -> None:
        self.log = MemoryLog() if old is None else old.log
        super().__init__(**options)
        self.broker.wall_ms = START_MS
        if old is not None:
            self.broker.wall_ms = old.broker.wall_ms
            self.log = old.log
            self.metadata.restore(old.metadata.snapshot())
            self.broker.on_applied(_events(self.metadata))

    def adopt(self, queue: LocalQueue) -> None:
        held = sorted(self.log.queues.get(queue.spec.id, ()))
        if held:
            queue.restore(1, 2, held[-1] + 1, held[0], held[-1], len(held), 0)

    def at(self, after_ms: int) -> None:
        """So much later than the start. However little comes with a turn, in the end all has come that is due."""
        self.broker.wall_ms = START_MS + after_ms
        while self.broker.on_time():
            self.turn()

    def hidden(self, exchange: str = "x") -> DelayedQueue:
        hidden = self.queue(hidden_queue_name(exchange))
        assert isinstance(hidden, DelayedQueue)
        return hidden


def _events(metadata: Metadata) -> Any:
    from leveret.metadata.diff import events_between

    return events_between(World().metadata, metadata)


@pytest.fixture
def world() -> DelayWorld:
    return DelayWorld()


@pytest.fixture
def client(world: DelayWorld) -> Client:
    return set_up(world)


def set_up(world: DelayWorld, type: str = "topic") -> Client:
    client = world.client()
    declare(client, "x", type)
    client.declare("q", durable=True)
    bind(client, "q", "#")
    return client


def declare(client: Client, name: str, type: str = "topic", **options: Any) -> None:
    arguments: Table = {"x-delayed-type": Field("S", type)}
    method = m.ExchangeDeclare(exchange=name, type="x-delayed-message", durable=True, arguments=arguments, **options)
    assert client.call(method) == m.ExchangeDeclareOk()


def bind(client: Client, queue: str, key: str, exchange: str = "x") -> None:
    assert client.call(m.QueueBind(queue=queue, exchange=exchange, routing_key=key)) == m.QueueBindOk()


def send(client: Client, body: bytes, delay: int | None, key: str = "k", mode: int = 2, **headers: Any) -> None:
    table = table_from_python(headers) | ({} if delay is None else {"x-delay": Field("I", delay)})
    client.publish(key, body, "x", delivery_mode=mode, headers=table)


def waiting(client: Client, queue: str = "q") -> list[bytes]:
    """Takes them."""
    found: list[bytes] = []
    while True:
        client.send(m.BasicGet(queue=queue, no_ack=True))
        (reply,) = client.take()
        if reply.method == m.BasicGetEmpty():
            return found
        found.append(reply.body)


def test_it_comes_when_it_is_due(world: DelayWorld, client: Client) -> None:
    assert client.call(m.ConfirmSelect()) == m.ConfirmSelectOk()
    send(client, b"late", 5_000, "a.b", colour="red")
    assert client.methods() == [m.BasicAck(delivery_tag=1)]  # It is kept, not on its way.
    world.at(4_999)
    assert waiting(client) == []
    world.at(5_000)
    client.send(m.BasicGet(queue="q", no_ack=True))
    (reply,) = client.take()
    assert isinstance(reply.method, m.BasicGetOk) and reply.properties is not None and reply.body == b"late"
    assert (reply.method.exchange, reply.method.routing_key, reply.method.redelivered) == ("x", "a.b", False)
    assert reply.properties.headers == {"colour": Field("S", "red"), "x-delay": Field("I", -5_000)}
    assert reply.properties.delivery_mode == 2
    assert world.hidden().ready_count == 0 and not world.log.queues[world.hidden().spec.id]


@pytest.mark.parametrize("delay", [None, 0, -5])
def test_without_a_delay_it_is_an_exchange_like_others(world: DelayWorld, client: Client, delay: int | None) -> None:
    send(client, b"now", delay)
    client.send(m.BasicGet(queue="q", no_ack=True))
    (reply,) = client.take()
    assert reply.body == b"now" and reply.properties is not None
    assert to_python(reply.properties.headers or {}) == ({} if delay is None else {"x-delay": delay})
    client.feed(b"")
    client.send(m.QueueUnbind(queue="q", exchange="x", routing_key="#"))
    client.take()
    client.publish("k", b"lost", "x", mandatory=True)
    returned, *_ = client.take()
    assert isinstance(returned.method, m.BasicReturn)


def test_what_is_due_first_comes_first(world: DelayWorld, client: Client) -> None:
    for body, delay in ((b"c", 300), (b"a", 100), (b"d", LATE_MS), (b"b", 200), (b"e", LATE_MS)):
        send(client, body, delay)
    world.at(200)
    assert waiting(client) == [b"a", b"b"]
    world.at(LATE_MS)
    assert waiting(client) == [b"c", b"d", b"e"]


def test_it_is_routed_by_the_bindings_of_then(world: DelayWorld, client: Client) -> None:
    client.declare("later")
    send(client, b"m", 100)
    client.call(m.QueueUnbind(queue="q", exchange="x", routing_key="#"))
    bind(client, "later", "k")
    world.at(100)
    assert (waiting(client), waiting(client, "later")) == ([], [b"m"])
    client.call(m.QueueUnbind(queue="later", exchange="x", routing_key="k"))
    client.publish("k", b"nowhere", "x", mandatory=True, headers={"x-delay": Field("I", 5)})
    world.at(200)
    assert client.take() == [] and world.hidden().ready_count == 0


def test_transient_messages_are_kept_on_disk_and_go_on_as_transient(world: DelayWorld, client: Client) -> None:
    send(client, b"m", 100, mode=1)
    assert len(world.log.queues[world.hidden().spec.id]) == 1
    world.at(100)
    assert waiting(client) == [b"m"]
    assert not world.log.queues.get(world.queue("q").spec.id)


def test_keys_of_copies_count(world: DelayWorld) -> None:
    client = set_up(world, "direct")
    for name in ("own", "copy", "blind"):
        client.declare(name)
        bind(client, name, name)
    send(client, b"m", 100, "own", CC=["copy"], BCC=["blind"])
    world.at(100)
    assert [waiting(client, name) for name in ("own", "copy")] == [[b"m"], [b"m"]]
    client.send(m.BasicGet(queue="blind", no_ack=True))
    (reply,) = client.take()
    assert reply.properties is not None and reply.properties.headers is not None
    assert set(reply.properties.headers) == {"CC", "x-delay"}


def test_an_exchange_that_leads_to_a_delayed_one(world: DelayWorld, client: Client) -> None:
    client.call(m.ExchangeDeclare(exchange="front", type="fanout"))
    client.call(m.ExchangeBind(destination="x", source="front"))
    client.declare("at-once")
    bind(client, "at-once", "", "front")
    client.publish("k", b"m", "front", headers={"x-delay": Field("I", 100)})
    assert (waiting(client, "at-once"), waiting(client)) == ([b"m"], [])
    world.at(100)
    client.send(m.BasicGet(queue="q", no_ack=True))
    (reply,) = client.take()
    assert isinstance(reply.method, m.BasicGetOk) and reply.method.exchange == "front"


def test_a_second_delayed_exchange_lets_it_pass(world: DelayWorld, client: Client) -> None:
    declare(client, "y", "fanout")
    client.call(m.ExchangeBind(destination="y", source="x", routing_key="#"))
    client.declare("end")
    bind(client, "end", "", "y")
    send(client, b"m", 100)
    world.at(100)
    assert waiting(client, "end") == [b"m"]


def test_with_the_exchange_goes_what_it_kept(world: DelayWorld, client: Client) -> None:
    send(client, b"m", 100)
    number = world.hidden().spec.id
    assert client.call(m.ExchangeDelete(exchange="x")) == m.ExchangeDeleteOk()
    assert number not in world.log.queues and not any(is_hidden_queue(name) for _, name in world.metadata.queues)
    declare(client, "x")
    bind(client, "q", "#")
    world.at(LATE_MS)
    assert waiting(client) == []


def test_a_long_name(world: DelayWorld) -> None:
    client = world.client()
    declare(client, "n" * 255)
    declare(client, "n" * 254)
    assert len({name for _, name in world.metadata.queues if is_hidden_queue(name) and len(name) <= 255}) == 2


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (m.QueueDeclare(queue="amq.delayed.x", passive=True), 404),
        (m.QueueDeclare(queue="amq.delayed.x", durable=True), 403),
        (m.QueuePurge(queue="amq.delayed.x"), 404),
        (m.QueueBind(queue="amq.delayed.x", exchange="amq.fanout"), 404),
        (m.BasicConsume(queue="amq.delayed.x"), 404),
        (m.BasicGet(queue="amq.delayed.x"), 404),
    ],
)
def test_clients_do_not_see_hidden_queues(world: DelayWorld, client: Client, method: m.Method, code: int) -> None:
    answer = client.call(method)
    assert isinstance(answer, m.ChannelClose) and answer.reply_code == code


def test_clients_can_neither_delete_nor_reach_hidden_queues(world: DelayWorld, client: Client) -> None:
    assert client.call(m.QueueDelete(queue="amq.delayed.x")) == m.QueueDeleteOk(0)
    send(client, b"m", 100)
    client.publish("amq.delayed.x", b"past", mandatory=True)
    returned, *_ = client.take()
    assert isinstance(returned.method, m.BasicReturn) and world.hidden().ready_count == 1


def test_policies_do_not_apply(world: DelayWorld, client: Client) -> None:
    limits: dict[str, Json] = {"message-ttl": 50, "max-length": 1, "expires": 10}
    world.apply(c.SetPolicy("/", "all", ".*delayed.*", "queues", 0, limits))
    send(client, b"a", 100)
    send(client, b"b", 100)
    world.broker.now_ms += 1_000
    world.at(100)
    assert waiting(client) == [b"a", b"b"]


# What if the node dies?


def test_it_is_kept_until_its_targets_have_it_safe(world: DelayWorld, client: Client) -> None:
    send(client, b"m", 100)
    world.holds_disk = True
    world.at(100)
    number = world.hidden().spec.id
    assert len(world.log.queues[number]) == 1  # The target's block is not on disk: after a crash it must go again.
    world.holds_disk = False
    world.sync()
    world.turn()
    assert not world.log.queues[number]


def test_what_is_not_on_disk_waits(world: DelayWorld, client: Client) -> None:
    world.holds_disk = True
    send(client, b"m", 1)
    world.at(100)
    assert waiting(client) == []
    world.holds_disk = False
    world.sync()
    world.at(101)
    assert waiting(client) == [b"m"] and not world.hidden().early


def test_what_was_late_on_disk_keeps_its_place(world: DelayWorld, client: Client) -> None:
    """The first is due while it is not on disk, the second between then and the time at which both are."""
    world.holds_disk = True
    send(client, b"first", 100)
    world.broker.wall_ms = START_MS + 5
    send(client, b"second", 100)
    world.at(100)
    assert world.hidden().early
    world.broker.wall_ms = START_MS + 200
    world.holds_disk = False
    world.sync()
    world.at(200)
    assert waiting(client) == [b"first", b"second"] and not world.hidden().early


@pytest.mark.parametrize("at_a_time", [1, 3, 1000])
def test_a_restart_changes_nothing(world: DelayWorld, client: Client, at_a_time: int) -> None:
    for number in range(10):
        send(client, b"%d" % number, LATE_MS - number * 1_000)
    world.at(5)
    send(client, b"soon", 95)
    again = DelayWorld(world)
    again.load_messages_max = at_a_time
    again.turn()
    client = again.client()
    assert again.hidden().ready_count == 11
    again.at(99)
    assert waiting(client) == []
    again.at(100)
    assert waiting(client) == [b"soon"]
    again.at(LATE_MS)
    assert waiting(client) == [b"%d" % number for number in reversed(range(10))]
    send(client, b"new", 50)
    again.at(LATE_MS + 50)
    assert waiting(client) == [b"new"]


def test_what_was_due_while_the_node_was_down(world: DelayWorld, client: Client) -> None:
    send(client, b"b", 200)
    send(client, b"a", 100)
    world.broker.wall_ms += 500
    again = DelayWorld(world)
    again.turn()
    again.at(500)
    assert waiting(again.client()) == [b"a", b"b"]


# Memory


def test_contents_are_forgotten_and_read_back() -> None:
    world = DelayWorld(content_bytes_max=0)
    world.load_messages_max = 2
    client = set_up(world)
    for number in range(20):
        send(client, b"%02d" % number, 100 + number * 7 % 20)
    hidden = world.hidden()
    assert hidden.memory_bytes == 0 and not hidden.warm
    world.at(150)
    assert waiting(client) == sorted((b"%02d" % number for number in range(20)), key=lambda body: int(body) * 7 % 20)
    assert hidden.memory_bytes == 0 and hidden.ready_count == 0 and not hidden.read


def test_what_is_not_due_soon_is_not_kept_in_memory(world: DelayWorld, client: Client) -> None:
    hidden = world.hidden()
    send(client, b"far", LATE_MS)
    assert hidden.memory_bytes == 0
    send(client, b"near", AHEAD_MS)
    assert hidden.memory_bytes > 0
    world.at(AHEAD_MS)
    assert hidden.memory_bytes == 0
    world.at(LATE_MS)
    assert waiting(client) == [b"near", b"far"]
    assert world.broker.content_bytes == 0


def test_rounds_go_on_until_all_is_out(world: DelayWorld, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delayed_queue, "ROUND_MESSAGES", 3)
    monkeypatch.setattr(delayed_queue, "AHEAD_BYTES", 1)
    for number in range(10):
        send(client, b"%d" % number, LATE_MS)
    world.at(LATE_MS)
    assert waiting(client) == [b"%d" % number for number in range(10)]


def test_what_cannot_be_read_keeps_nobody_else_back(world: DelayWorld, client: Client) -> None:
    send(client, b"a", LATE_MS)
    send(client, b"b", LATE_MS)
    world.holds_loads = True
    world.at(LATE_MS)
    ((_, first, _, then),) = world.ranges
    world.ranges.clear()
    then(None, first + 1)
    world.holds_loads = False
    world.at(LATE_MS)
    assert waiting(client) == [b"b"]
    assert world.hidden().ready_count == 1  # It is not given up.


@pytest.mark.parametrize("seed", range(20))
def test_at_random(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is read when, forgotten or restarted: all come, once, and not before they are due."""
    rng = random.Random(seed)
    for name, most in (("ROUND_MESSAGES", 5), ("FILL_MESSAGES", 7), ("AHEAD_MESSAGES", 20), ("UNDER_WAY_MAX", 8)):
        monkeypatch.setattr(delayed_queue, name, rng.randint(1, most))
    monkeypatch.setattr(delayed_queue, "AHEAD_BYTES", rng.choice((1, 500, 1 << 20)))
    monkeypatch.setattr(delayed_queue, "ROUND_BYTES", rng.choice((1, 100, 1 << 20)))
    options: dict[str, Any] = {"content_bytes_max": rng.choice((0, 500, 1 << 40))}
    world = DelayWorld(**options)
    client = set_up(world)
    due: dict[bytes, int] = {}
    came: dict[bytes, int] = {}
    at_ms = 0
    for step in range(60):
        world.holds_loads, world.load_messages_max = rng.random() < 0.3, rng.randint(1, 10)
        for number in range(rng.choice((0, 0, 1, 10))):
            delay = rng.choice((1, 50, 2_000, AHEAD_MS, 3 * AHEAD_MS)) + rng.randint(0, 5)
            due[b"%d-%d" % (step, number)] = at_ms + delay
            send(client, b"%d-%d" % (step, number), delay)
        if rng.random() < 0.1:
            world.holds_loads = False
            world.turn()
            world = DelayWorld(world, **options)
            world.turn()
            client = world.client()
        at_ms += rng.choice((0, 1, 30, 1_000, 20_000))
        world.at(at_ms)
        came.update((body, at_ms) for body in waiting(client) if body not in came or pytest.fail(f"{body!r} twice"))
    world.holds_loads = False
    for _ in range(8):
        at_ms += AHEAD_MS // 2
        world.at(at_ms)
        came.update((body, at_ms) for body in waiting(client) if body not in came or pytest.fail(f"{body!r} twice"))
    assert came.keys() == due.keys()
    assert all(came[body] >= due[body] for body in due)
    hidden = world.hidden()
    assert (hidden.ready_count, hidden.memory_bytes, world.broker.content_bytes, len(hidden.schedule)) == (0, 0, 0, 0)
    assert not (hidden.soon or hidden.cold or hidden.read or hidden.under_way or hidden.warm or hidden.early)


# Targets


def test_a_full_queue_refuses_for_itself_only(world: DelayWorld, client: Client) -> None:
    client.declare("full", arguments=table_from_python({"x-max-length": 1, "x-overflow": "reject-publish"}))
    bind(client, "full", "#")
    send(client, b"a", 100)
    send(client, b"b", 100)
    world.at(100)
    assert (waiting(client), waiting(client, "full")) == ([b"a", b"b"], [b"a"])
    assert world.hidden().ready_count == 0


def test_a_target_out_of_reach_gets_it_later_and_others_once(world: DelayWorld, client: Client) -> None:
    world.apply(c.DeclareQueue("/", "away", durable=True, node="elsewhere"))
    bind(client, "away", "#")
    away = world.broker.vhosts["/"].queues["away"]
    assert isinstance(away, RemoteQueue)
    send(client, b"m", 100)
    world.at(100)
    world.at(5_000)
    assert waiting(client) == [b"m"] and world.hidden().ready_count == 1
    world.apply(c.DeleteQueue("/", "away"))
    world.at(10_000)
    assert waiting(client) == [] and world.hidden().ready_count == 0


def test_dead_letters_can_be_delayed(world: DelayWorld, client: Client) -> None:
    arguments = table_from_python({"x-dead-letter-exchange": "x", "x-dead-letter-routing-key": "again"})
    client.declare("work", durable=True, arguments=arguments)
    client.publish("work", b"m", headers={"x-delay": Field("I", 100)})
    client.send(m.BasicGet(queue="work"))
    client.take()
    client.send(m.BasicReject(delivery_tag=1, requeue=False))
    assert waiting(client) == []
    world.at(100)
    assert waiting(client) == [b"m"]


def test_the_firehose_does_not_tell_of_hidden_queues(world: DelayWorld, client: Client) -> None:
    client.declare("seen")
    bind(client, "seen", "publish.x", "amq.rabbitmq.trace")
    vhost = world.broker.vhosts["/"]
    vhost.firehose = Firehose(world.broker, vhost)
    vhost.forget_routes()
    send(client, b"m", 100)
    client.send(m.BasicGet(queue="seen", no_ack=True))
    (reply,) = client.take()
    assert reply.properties is not None and reply.properties.headers is not None
    assert reply.properties.headers["routed_queues"] == Field("A", [])
