"""What is sent again is taken once: by queues of all kinds, at home and elsewhere, whatever breaks meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

import pytest

from leveret.broker.delivery.publish_numbers import ENTRY, PREFIX
from leveret.broker.queue import dedup
from leveret.broker.queue.dedup import UNUSED_MS
from leveret.broker.remote.migrate import move
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python
from leveret.storage.format.queue_marks import VALUE_BYTES_MAX
from tests.support.brokers import Cluster
from tests.support.machines import Client, World, publish
from tests.support.mirrored_brokers import NAMES, Rings

answered: WeakKeyDictionary[Client, set[int]] = WeakKeyDictionary()


def producer(world: World, sequence: int = 0, name: str = "p") -> Client:
    client = world.client(leveret_producer=name, leveret_sequence=sequence)
    assert client.call(m.ConfirmSelect()) == m.ConfirmSelectOk()
    return client


def feed(client: Client, numbers: range, queue: str = "q", exchange: str = "", **given: Any) -> None:
    """Publish messages whose bodies are their numbers, in one piece."""
    given = {"delivery_mode": 2, **given}
    client.feed(b"".join(publish(1, exchange, queue, b"%d" % number, **given) for number in numbers))


def send(client: Client, first: int, last: int, queue: str = "q", **given: Any) -> None:
    feed(client, range(first, last + 1), queue, **given)
    client.world.turn()


def told(client: Client) -> list[tuple[int, bool]]:
    """Publishes that were answered since the last time, and whether they were taken."""
    found: list[tuple[int, bool]] = []
    known = answered.setdefault(client, set())
    for method in client.methods():
        assert isinstance(method, m.BasicAck | m.BasicNack)
        last = method.delivery_tag
        new = [one for one in range(1 if method.multiple else last, last + 1) if one not in known]
        assert last in new, "it was answered before"
        known.update(new)
        found += [(number, isinstance(method, m.BasicAck)) for number in new]
    return found


def acks(count: int) -> list[tuple[int, bool]]:
    return [(number, True) for number in range(1, count + 1)]


def nacks(count: int) -> list[tuple[int, bool]]:
    return [(number, False) for number in range(1, count + 1)]


def rest(world: World, queue: str = "q") -> list[int]:
    """What is in a queue. It stays there."""
    client = world.client()
    found: list[int] = []
    while True:
        client.send(m.BasicGet(queue=queue))
        bodies = client.bodies()
        if not bodies:
            client.lose()
            return found
        found += map(int, bodies)


@pytest.fixture
def world() -> World:
    world = World()
    world.broker.wall_ms = 1_000_000
    world.client().declare("q", durable=True)
    return world


# -- One queue ----------------------------------------------------------------------------------------------------


def test_what_is_sent_again_is_passed_over(world: World) -> None:
    first = producer(world)
    send(first, 1, 10)
    assert told(first) == acks(10)
    first.lose()
    again = producer(world, sequence=4)
    send(again, 5, 14)
    assert told(again) == acks(10)
    assert rest(world) == list(range(1, 15))


def test_an_older_number_than_all(world: World) -> None:
    send(producer(world, sequence=100), 101, 110)
    again = producer(world)
    send(again, 1, 110)
    assert told(again) == acks(110)
    assert rest(world) == list(range(101, 111))


def test_producers_do_not_know_each_other(world: World) -> None:
    send(producer(world), 1, 3)
    send(producer(world, name="other"), 1, 3)
    ordinary = world.client()
    send(ordinary, 1, 3)
    assert rest(world) == [1, 2, 3] * 3


def test_a_copy_is_confirmed_when_the_first_one_is_safe(world: World) -> None:
    first = producer(world)
    world.holds_disk = True
    send(first, 1, 3)  # In a block that is on its way.
    again, third = producer(world), producer(world)
    send(again, 1, 3)
    feed(third, range(1, 4))
    third.connection.submit()
    world.turn()
    assert told(first) == told(again) == told(third) == []
    world.holds_disk = False
    world.turn()
    assert told(first) == told(again) == told(third) == acks(3)
    assert rest(world) == [1, 2, 3]


def test_a_copy_that_comes_before_the_block_waits_for_it(world: World) -> None:
    world.holds_disk = True
    first, again = producer(world), producer(world)
    feed(first, range(1, 4))
    feed(again, range(1, 4))
    world.turn()
    (block,) = world.blocks
    assert block.enqueued is not None and len(block.enqueued) == 3 and block.marks is not None
    assert told(first) == told(again) == []
    world.holds_disk = False
    world.turn()
    assert told(first) == told(again) == acks(3)


def test_messages_and_the_mark_that_tells_of_them_are_one_block(world: World) -> None:
    client = producer(world)
    world.holds_disk = True
    sent = 0
    for count in (1, 5, 2):
        send(client, sent + 1, sent + count)
        sent += count
        block = world.blocks[-1]
        assert block.enqueued is not None and len(block.enqueued) == count
        assert block.marks == {PREFIX + b"p": ENTRY.pack(sent, 1_000_000)}


def test_two_connections_at_a_time_fit_into_one_order(world: World) -> None:
    old, new = producer(world), producer(world)
    send(old, 1, 3)
    send(new, 1, 2)
    send(old, 4, 6)
    send(new, 3, 8)
    send(old, 7, 9)
    assert told(old) == acks(9) and told(new) == acks(8)
    assert rest(world) == list(range(1, 10))


def test_a_queue_without_a_log(world: World) -> None:
    world.client().declare("brief")
    first, again = producer(world), producer(world)
    world.holds_disk = True
    send(first, 1, 3, "brief")
    send(again, 1, 4, "brief")
    assert told(first) == acks(3) and told(again) == acks(4)
    assert not world.blocks and rest(world, "brief") == [1, 2, 3, 4]


def test_messages_without_a_log(world: World) -> None:
    first, again = producer(world), producer(world)
    send(first, 1, 3, delivery_mode=1)
    send(again, 1, 4, delivery_mode=1)
    assert told(first) == acks(3) and told(again) == acks(4)
    assert rest(world) == [1, 2, 3, 4]


# -- What is refused ----------------------------------------------------------------------------------------------


def full_queue(world: World, **more: Any) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish", **more}
    world.client().declare("full", durable=True, arguments=table_from_python(arguments))


def test_what_a_full_queue_refuses_does_not_count_as_taken(world: World) -> None:
    full_queue(world)
    client, reader = producer(world), world.client()
    send(client, 1, 4, "full")
    assert told(client) == [(1, True), (2, True), (3, False), (4, False)]
    reader.call(m.BasicGet(queue="full", no_ack=True))
    send(client, 5, 5, "full")  # There is room; but 3 and 4 would be passed over when they come.
    assert told(client) == [(5, False)]
    again = producer(world, sequence=2)
    send(again, 3, 5, "full")
    assert told(again) == [(1, True), (2, False), (3, False)]
    reader.call(m.BasicGet(queue="full", no_ack=True))
    last = producer(world, sequence=2)
    send(last, 3, 4, "full")
    assert told(last) == acks(2)
    assert rest(world, "full") == [3, 4]


def test_a_publish_to_several_queues_of_which_one_is_full(world: World) -> None:
    full_queue(world)
    binder = world.client()
    for queue in ("q", "full"):
        assert isinstance(binder.call(m.QueueBind(queue=queue, exchange="amq.fanout")), m.QueueBindOk)
    client = producer(world)
    send(client, 1, 3, "", exchange="amq.fanout")
    assert told(client) == [(1, True), (2, True), (3, False)]
    binder.call(m.BasicGet(queue="full", no_ack=True))
    again = producer(world, sequence=2)
    send(again, 3, 3, "", exchange="amq.fanout")
    assert told(again) == acks(1)
    assert rest(world) == [1, 2, 3] and rest(world, "full") == [2, 3]


def test_a_publish_to_several_queues_is_confirmed_when_all_have_it(world: World) -> None:
    binder = world.client()
    binder.declare("r", durable=True)
    for queue in ("q", "r"):
        binder.call(m.QueueBind(queue=queue, exchange="amq.fanout"))
    send(producer(world), 1, 2)  # One of the two has these.
    again = producer(world)
    world.holds_disk = True
    send(again, 1, 3, "", exchange="amq.fanout")
    assert told(again) == []
    world.holds_disk = False
    world.turn()
    assert told(again) == acks(3)
    assert rest(world) == rest(world, "r") == [1, 2, 3]


# -- Other queues -------------------------------------------------------------------------------------------------


def test_a_stream(world: World) -> None:
    reader = world.client()
    reader.declare("s", durable=True, arguments=table_from_python({"x-queue-type": "stream"}))
    send(producer(world), 1, 4, "s")
    again = producer(world, sequence=2)
    send(again, 3, 6, "s")
    assert told(again) == acks(4)
    reader.call(m.BasicQos(prefetch_count=100))
    reader.consume("s", arguments=table_from_python({"x-stream-offset": "first"}))
    assert [int(body) for body in reader.bodies()] == [1, 2, 3, 4, 5, 6]


def test_a_queue_with_priorities(world: World) -> None:
    world.client().declare("urgent", durable=True, arguments=table_from_python({"x-max-priority": 5}))
    send(producer(world), 1, 4, "urgent", priority=3)
    again = producer(world, sequence=1)
    send(again, 2, 6, "urgent", priority=3)
    assert told(again) == acks(5) and rest(world, "urgent") == [1, 2, 3, 4, 5, 6]


def test_a_delayed_exchange(world: World) -> None:
    """What is delayed is taken once by the queue that keeps it, and goes out once."""
    binder = world.client()
    arguments = table_from_python({"x-delayed-type": "fanout"})
    declare = m.ExchangeDeclare(exchange="later", type="x-delayed-message", durable=True, arguments=arguments)
    assert binder.call(declare) == m.ExchangeDeclareOk()
    binder.call(m.QueueBind(queue="q", exchange="later"))
    headers = table_from_python({"x-delay": 5_000})
    for sequence in (0, 0, 1):
        client = producer(world, sequence)
        send(client, sequence + 1, 3, "", exchange="later", headers=headers)
        assert told(client) == acks(3 - sequence)
    assert rest(world) == []
    world.broker.wall_ms += 6_000
    world.broker.on_time()
    world.turn()
    assert rest(world) == [1, 2, 3]


def test_letters_are_no_copies(world: World) -> None:
    """What dies in a queue goes to another one as it is, and is not numbered there."""
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q", "x-max-length": 1}
    world.client().declare("short", durable=True, arguments=table_from_python(arguments))
    client = producer(world)
    send(client, 1, 2)
    send(client, 3, 5, "short")
    assert told(client) == acks(5)
    assert rest(world) == [1, 2, 3, 4] and rest(world, "short") == [5]


# -- Bounds -------------------------------------------------------------------------------------------------------


def names(world: World) -> list[bytes]:
    return [key.removeprefix(PREFIX) for key in world.queue("q").durable_state.table]


def test_the_one_that_was_not_used_for_longest_goes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "PRODUCERS_MAX", 3)
    clients = {name: producer(world, name=name) for name in "abcd"}
    for name in "abc":
        world.broker.wall_ms += 1_000
        send(clients[name], 1, 1)
    world.broker.wall_ms += 1_000
    send(clients["a"], 2, 2)
    send(clients["d"], 1, 1)
    assert sorted(names(world)) == [b"a", b"c", b"d"]
    send(clients["b"], 2, 2)  # Nobody knows any more what it has sent, so it has to say it again.
    assert told(clients["b"]) == [(1, True), (2, False)]
    send(producer(world, sequence=1, name="b"), 2, 2)
    assert rest(world) == [1, 1, 1, 2, 1, 2]


def test_names_that_are_not_used_go(world: World) -> None:
    for name in ("a", "b"):
        send(producer(world, name=name), 1, 1)
    world.broker.wall_ms += UNUSED_MS
    send(producer(world, name="b"), 1, 1)
    world.broker.wall_ms += 1
    world.holds_disk = True
    send(producer(world, name="c"), 1, 1)
    assert names(world) == [b"b", b"c"]
    assert world.blocks[-1].marks is not None and world.blocks[-1].marks[PREFIX + b"a"] == b""


def test_a_queue_that_has_no_room_for_a_name_refuses(world: World) -> None:
    """Whatever else it has to remember."""
    queue = world.queue("q")
    for number in range(16):
        queue.durable_state.set(b"%02d" % number, bytes(VALUE_BYTES_MAX - 2))
    client = producer(world)
    send(client, 1, 2)
    assert told(client) == nacks(2) and queue.ready_count == 0


# -- At another node ----------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Clients at a, a queue at b."""
    cluster = Cluster("a", "b", home="b")
    cluster["a"].client().declare("q", durable=True)
    yield cluster
    cluster.finish()


def test_at_another_node(cluster: Cluster) -> None:
    first = producer(cluster["a"])
    cluster["b"].holds_disk = True
    send(first, 1, 5)
    again = producer(cluster["a"], sequence=2)
    send(again, 3, 8)
    here = producer(cluster["b"], sequence=7)
    send(here, 8, 9)
    assert told(first) == told(again) == told(here) == []
    cluster["b"].holds_disk = False
    cluster.run()
    assert (told(first), told(again), told(here)) == (acks(5), acks(6), acks(2))
    assert rest(cluster["a"]) == list(range(1, 10))


def test_what_a_lost_link_took_along_is_sent_again(cluster: Cluster) -> None:
    client = producer(cluster["a"])
    send(client, 1, 2)
    cluster.hold("a", "b")
    send(client, 3, 4)
    feed(client, range(5, 6))  # Not yet sent.
    cluster.close("a", "b")
    cluster.held.clear()
    cluster.join("a", "b")
    cluster.run()
    send(client, 6, 7)
    assert told(client) == acks(7)
    again = producer(cluster["a"], sequence=2)
    send(again, 3, 7)
    assert told(again) == acks(5)
    assert rest(cluster["a"]) == list(range(1, 8))


def test_what_waited_too_long_for_a_link_leaves_a_hole(cluster: Cluster) -> None:
    """It was refused, and may come by another connection; so nothing that was published after it is taken."""
    client = producer(cluster["a"])
    send(client, 1, 2)
    cluster.hold("a", "b")
    send(client, 3, 4)
    cluster.close("a", "b")
    cluster.held.clear()
    cluster.wait_in_vain()
    assert told(client) == [*acks(2), (3, False), (4, False)]
    cluster.join("a", "b")
    cluster.run()
    send(client, 5, 6)
    assert told(client) == [(5, False), (6, False)], "at once, since it is known why"
    again = producer(cluster["a"], sequence=2)
    send(again, 3, 7)
    assert told(again) == acks(5)
    assert rest(cluster["a"]) == list(range(1, 8))
    outboxes = cluster["a"].broker.outboxes
    assert not outboxes.busy and not outboxes.by_producer and not outboxes.open_bytes, "and nothing is kept"


def test_what_a_full_queue_refuses_is_not_sent_again(cluster: Cluster) -> None:
    """Neither is what came behind it."""
    limits = table_from_python({"x-max-length": 2, "x-overflow": "reject-publish"})
    cluster["b"].client().declare("full", durable=True, arguments=limits)
    client = producer(cluster["a"])
    send(client, 1, 4, "full")
    assert told(client) == [*acks(2), (3, False), (4, False)]
    cluster["b"].queue("full").purge()
    send(client, 5, 5, "full")
    assert told(client) == [(5, False)]
    again = producer(cluster["a"], sequence=2)
    send(again, 3, 4, "full")
    assert told(again) == acks(2) and rest(cluster["a"], "full") == [3, 4]


def test_what_was_taken_before_the_link_was_lost(cluster: Cluster) -> None:
    client = producer(cluster["a"])
    cluster["b"].holds_disk = True
    send(client, 1, 4)
    cluster.close("a", "b")
    cluster["b"].holds_disk = False
    cluster.run()
    cluster.join("a", "b")
    cluster.run()
    assert told(client) == acks(4)
    send(client, 5, 6)
    assert told(client) == [(5, True), (6, True)]
    again = producer(cluster["a"])
    send(again, 1, 6)
    assert told(again) == acks(6) and rest(cluster["a"]) == list(range(1, 7))


def test_a_home_that_is_out_of_reach(cluster: Cluster) -> None:
    client = producer(cluster["a"])
    cluster.close("a", "b")
    send(client, 1, 2)
    cluster.join("a", "b")
    send(client, 3, 4)
    assert told(client) == nacks(4)
    again = producer(cluster["a"])
    send(again, 1, 4)
    assert told(again) == acks(4) and rest(cluster["a"]) == [1, 2, 3, 4]


# -- On the move --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", NAMES)
def test_a_queue_that_moves_takes_its_producers_along(at: str) -> None:
    cluster = Cluster(*NAMES)
    for name in NAMES:
        cluster[name].broker.run = f"run of {name}"
        cluster.apply(c.NodeStarted(name, run=f"run of {name}"))
    cluster["a"].client().declare("q", durable=True)
    ended: list[str | None] = []
    first = producer(cluster[at])
    send(first, 1, 4)
    cluster.hold("b", "a")
    move(cluster["a"].queue("q"), "b", ended.append)
    cluster.run()
    send(first, 5, 6)
    cluster.release("b", "a", 1)
    send(first, 7, 8)
    again = producer(cluster[at], sequence=2)
    send(again, 3, 9)
    cluster.release("b", "a")
    assert ended == [None]
    send(first, 9, 11)
    send(again, 10, 12)
    assert told(first) == acks(11) and told(again) == acks(10)
    assert rest(cluster["c"]) == list(range(1, 13))
    cluster.finish()


# -- Mirrored -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", NAMES)
def test_a_new_master_knows_what_was_taken(at: str) -> None:
    rings = Rings()
    client = producer(rings[at])
    send(client, 1, 5)
    rings.hand_over("b")
    again = producer(rings[at], sequence=3)
    send(again, 4, 7)
    send(client, 6, 8)
    assert told(client) == acks(8) and told(again) == acks(4)
    assert rest(rings["c"]) == list(range(1, 9))
    rings.finish()


@pytest.mark.parametrize("at", NAMES)
def test_what_waits_during_a_hand_over_is_taken_once(at: str) -> None:
    rings = Rings()
    first, again = producer(rings[at]), producer(rings[at])
    send(first, 1, 3)
    rings.begin("b")
    send(first, 4, 6)
    send(again, 1, 7)
    rings.end()
    send(first, 7, 8)
    assert told(first) == acks(8) and told(again) == acks(7)
    assert rest(rings["c"]) == list(range(1, 9))
    rings.finish()


def test_the_master_is_lost_with_what_no_mirror_has() -> None:
    """What was in its ring is sent again, before what came after that."""
    rings = Rings()
    client = producer(rings["c"])
    send(client, 1, 3)
    for to in ("b", "c"):
        rings.hold("a", to)  # Neither blocks nor confirms leave the master.
    send(client, 4, 6)
    rings.held.clear()
    rings.lose("a")
    send(client, 7, 8)
    rings.pass_time()
    assert rings.master in ("b", "c")
    send(client, 9, 9)
    assert told(client) == acks(9)
    again = producer(rings["b"], sequence=3)
    send(again, 4, 9)
    assert told(again) == acks(6)
    assert rest(rings["c"]) == list(range(1, 10))
    rings.mend()
    rings.pass_time()
    rings.finish()


@pytest.mark.parametrize("reached", [True, False])
def test_a_producer_at_a_former_master(reached: bool) -> None:
    """What it published there is passed over or taken by the next one."""
    rings = Rings()
    client = producer(rings["a"])
    send(client, 1, 2)
    for other in "bc":  # Blocks get there or not; that they did is not heard.
        rings.hold(other, "a")
        if not reached:
            rings.hold("a", other)
    send(client, 3, 5)
    rings.held.clear()
    rings.lose("a")
    rings.pass_time(20)
    assert rings.master in "bc" and told(client) == acks(2)
    rings.mend()
    for _ in range(10):
        rings.pass_time(5)
        rings.wait_in_vain(500)
    assert told(client) == [(3, True), (4, True), (5, True)]
    assert rest(rings["c"]) == [1, 2, 3, 4, 5]
    rings.finish()


def test_a_copy_waits_for_the_ring() -> None:
    rings = Rings()
    first, again = producer(rings["a"]), producer(rings["a"])
    rings.hold("b", "a")
    rings.hold("c", "a")
    send(first, 1, 3)
    send(again, 1, 3)
    assert told(first) == told(again) == []
    rings.release("b", "a")
    rings.release("c", "a")
    assert told(first) == told(again) == acks(3)
    rings.finish()


# -- At random ----------------------------------------------------------------------------------------------------


class Sender:
    """A client that never gives up: what was refused or lost with a connection it sends again."""

    def __init__(self, world: World, random: Random, name: str) -> None:
        self.world = world
        self.random = random
        self.name = name
        self.sent: list[str] = []  # By number: to which queue.
        self.safe = 0  # All up to here are confirmed.
        self.client: Client | None = None
        self.base = self.at = 0
        self.confirmed: set[int] = set()

    def publish(self, queues: list[str]) -> None:
        self.sent.append(self.random.choice(queues))
        self.go_on()

    def go_on(self) -> None:
        if self.client is None:
            self.base = self.at = self.random.randint(max(0, self.safe - 5), self.safe)
            self.client = producer(self.world, self.base, self.name)
        for number in range(self.at + 1, len(self.sent) + 1):
            feed(self.client, range(number, number + 1), self.sent[number - 1])
        self.at = len(self.sent)

    def hear(self) -> None:
        if self.client is None:
            return
        refused = False
        for tag, is_taken in told(self.client):
            if is_taken:
                self.confirmed.add(self.base + tag)
            refused = refused or not is_taken
        while self.safe + 1 in self.confirmed:
            self.safe += 1
        if refused:
            self.leave()

    def leave(self) -> None:
        """Perhaps without closing the connection that it had, which the broker may still hear from."""
        if self.client is not None and self.random.random() < 0.5:
            self.client.lose()
        self.client = None


@pytest.mark.parametrize("seed", range(12))
def test_at_random(seed: int) -> None:
    """Links that break, hand-overs, connections that are given up: each queue has each message once, in order."""
    random, rings = Random(seed), Rings()
    view = rings["a"].metadata.queues["/", "q"].view
    rings.apply(c.DeclareQueue("/", "r", durable=True, node="a", view=view))
    senders = [Sender(rings[name], random, f"p{number}") for number, name in enumerate(("a", "b", "c", "c"))]
    for _ in range(120):
        sender = random.choice(senders)
        action = random.random()
        if action < 0.6:
            sender.publish(["q", "r"])
        elif action < 0.7:
            sender.leave()
        elif action < 0.8:
            rings.hold(*random.sample(NAMES, 2))
        elif action < 0.9 and rings.held:
            rings.release(*random.choice(sorted(rings.held)))
        elif action < 0.95:
            pair = tuple(sorted(random.sample(NAMES, 2)))
            rings.close(*pair)
            rings.join(*pair)
        else:
            master = rings.master
            to = random.choice([name for name in NAMES if name != master])
            rings[master].broker.mirrors.hand_over(rings.mirror(master), to)
        if random.random() < 0.7:
            rings.run()
        for one in senders:
            one.hear()
    rings.held.clear()
    for _ in range(20):
        rings.pass_time()
        for one in senders:
            one.hear()
            one.go_on()
        rings.run()
    for one in senders:
        one.hear()
        assert one.safe == len(one.sent), f"{one.name} is not done"
    for queue in ("q", "r"):
        expected = sorted(number for one in senders for number, to in enumerate(one.sent, 1) if to == queue)
        assert sorted(rest(rings["a"], queue)) == expected
