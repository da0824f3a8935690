"""Transactions: what waits, when the client is told, what is left if something is lost in between."""

from __future__ import annotations

from random import Random

import pytest

from leveret.protocol import methods as m
from leveret.sessions.amqp import transactions
from tests.support.brokers import Cluster
from tests.support.machines import Client, Conversation, World, converse, publish, written_conversations


@pytest.mark.parametrize("conversation", written_conversations("transactions"))
def test_transactions(conversation: Conversation) -> None:
    assert converse(conversation) == conversation.lines


def transacting(world: World) -> Client:
    client = world.client()
    client.declare("q", durable=True)
    assert isinstance(client.call(m.TxSelect()), m.TxSelectOk)
    return client


def test_commit_ok_comes_when_all_is_on_disk() -> None:
    world = World()
    client = transacting(world)
    client.declare("r", durable=True)
    client.publish("q", delivery_mode=2)
    client.publish("r", delivery_mode=2)
    world.holds_disk = True
    client.send(m.TxCommit())
    assert client.take() == []
    assert world.queue("q").ready_count == world.queue("r").ready_count == 1
    client.send(m.QueueDeclare(queue="q", passive=True))
    assert client.take() == []  # What comes after the commit waits for it.
    world.holds_disk = False
    world.turn()
    assert client.methods() == [m.TxCommitOk(), m.QueueDeclareOk("q", 1, 0)]


def test_a_large_commit_is_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the disk takes them; in their order, whatever queues they go to."""
    monkeypatch.setattr(transactions, "PART_BYTES", 1000)
    monkeypatch.setattr(transactions, "UNSAFE_BYTES_MAX", 3000)
    world = World()
    client = transacting(world)
    client.declare("t")
    for number in range(100):
        client.publish("t" if number % 10 == 0 else "q", b"%d" % number + bytes(100), delivery_mode=2)
    world.holds_disk = True
    client.send(m.TxCommit())
    rounds = 0
    while not client.replies:
        rounds += 1
        waiting = world.queue("q").ready_count
        world.holds_disk = False
        world.sync()
        world.holds_disk = True
        world.turn()
        assert world.queue("q").ready_count - waiting <= 30
    assert rounds > 3 and client.methods() == [m.TxCommitOk()]
    assert (world.queue("q").ready_count, world.queue("t").ready_count) == (90, 10)
    world.holds_disk = False
    client.consume("q", no_ack=True)
    numbers = [int(body.rstrip(bytes(1))) for body in client.bodies()]
    assert numbers == [number for number in range(100) if number % 10]
    assert world.broker.uncommitted_bytes == 0


def test_the_rest_of_a_large_commit_goes_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "PART_BYTES", 1000)
    monkeypatch.setattr(transactions, "UNSAFE_BYTES_MAX", 3000)
    world = World()
    client = transacting(world)
    for _ in range(100):
        client.publish("q", bytes(100), delivery_mode=2)
    world.holds_disk = True
    client.send(m.TxCommit())
    client.lose()
    world.holds_disk = False
    world.turn()
    assert 0 < world.queue("q").ready_count < 100
    assert world.broker.uncommitted_bytes == 0


def test_acks_count_when_the_publishes_are_safe() -> None:
    """A message that was worked on is not gone before what was made of it is there."""
    world = World()
    client = transacting(world)
    client.declare("r", durable=True)
    client.publish("q", b"a", delivery_mode=2)
    client.call(m.TxCommit())
    client.call(m.BasicGet(queue="q"))
    client.send(m.BasicAck(1, False))
    client.publish("r", b"A", delivery_mode=2)
    world.holds_disk = True
    client.send(m.TxCommit())
    assert world.queue("q").unacked_count == 1
    client.lose()
    world.holds_disk = False
    world.turn()
    assert (world.queue("q").ready_count, world.queue("q").unacked_count, world.queue("r").ready_count) == (1, 0, 1)


def test_a_publish_like_the_one_before_the_select_waits_too() -> None:
    world = World()
    client = world.client()
    client.declare("q")
    one = publish(1, "", "q", b"x")
    client.feed(one * 3)
    client.feed(m.encode(1, m.TxSelect()) + one * 3)
    world.turn()
    assert world.queue("q").ready_count == 3
    client.send(m.TxCommit())
    assert world.queue("q").ready_count == 6


def test_transactions_together_have_a_bound() -> None:
    world = World(content_bytes_max=1000, spill_bytes_max=10_000)
    first, second = transacting(world), transacting(world)
    first.publish("q", bytes(6000))
    second.publish("q", bytes(3000))
    assert first.take() == second.take() == []
    second.publish("q", bytes(3000))
    (close,) = second.methods()
    text = "PRECONDITION_FAILED - transactions hold more than 10000 bytes of memory"
    assert close == m.ChannelClose(406, text, 60, 40)
    first.call(m.TxCommit())
    assert world.broker.uncommitted_bytes == 0
    assert world.queue("q").ready_count == 1


def test_the_end_of_a_client_frees_memory() -> None:
    world = World()
    client = transacting(world)
    client.publish("q", bytes(6000))
    assert world.broker.uncommitted_bytes > 6000
    client.lose()
    assert world.broker.uncommitted_bytes == 0


def test_refused_publishes_fail_the_commit() -> None:
    """A fault that tests can ask for."""
    world = World()
    client = transacting(world)
    client.publish("q")
    world.broker.refusing = True
    client.send(m.TxCommit())
    assert client.methods() == [m.ChannelClose(406, "PRECONDITION_FAILED - partial tx completion", 90, 20)]
    assert world.queue("q").ready_count == 0


def test_a_commit_during_which_the_home_is_lost(cluster: Cluster) -> None:
    """Nobody knows what became of the publish: the commit fails, and what was acknowledged comes again."""
    client = transacting(cluster["a"])
    client.publish("q", b"a", delivery_mode=2)
    client.call(m.TxCommit())
    cluster.home = "a"
    client.declare("local", durable=True)
    client.publish("local", b"b", delivery_mode=2)
    client.call(m.TxCommit())
    client.call(m.BasicGet(queue="local"))
    client.send(m.BasicAck(1, False))
    client.publish("q", b"B", delivery_mode=2)
    cluster.hold("a", "b")
    client.send(m.TxCommit())
    assert client.take() == []
    cluster.close("a", "b")
    cluster.run()
    assert client.methods() == []
    cluster.wait_in_vain()
    (close,) = client.methods()
    assert close == m.ChannelClose(406, "PRECONDITION_FAILED - partial tx completion", 90, 20)
    assert cluster["a"].queue("local").ready_count == 1


def test_what_is_acked_and_not_committed_goes_back_with_its_queue(cluster: Cluster) -> None:
    """The home takes it back when the link breaks; to acknowledge it later is no error and means nothing."""
    client = transacting(cluster["a"])
    client.publish("q", b"a", delivery_mode=2)
    client.call(m.TxCommit())
    client.call(m.BasicGet(queue="q"))
    client.send(m.BasicAck(1, False))
    cluster.close("a", "b")
    cluster.join("a", "b")
    cluster.run()
    client.call(m.TxCommit())
    assert cluster["b"].queue("q").ready_count == 1


ACTIONS = ("publish", "publish", "get", "get", "settle", "settle", "commit", "rollback", "recover")


class Model:
    """What a queue and one channel in a transaction should be like."""

    def __init__(self) -> None:
        self.ready: list[int] = []
        self.out: dict[int, int] = {}  # Messages by tag.
        self.held: list[tuple[str, int, int]] = []  # What to do at the commit, the tag, the message.
        self.published: list[int] = []

    def settle(self, what: str, tag: int, multiple: bool) -> None:
        for each in sorted(self.out):
            if each == tag or (multiple and each < tag):
                self.held.append((what, each, self.out.pop(each)))

    def requeue(self, messages: list[int]) -> None:
        self.ready = sorted(self.ready + messages)

    def commit(self) -> None:
        self.ready += self.published
        self.requeue([message for what, _, message in self.held if what == "requeue"])
        self.published, self.held = [], []

    def rollback(self) -> None:
        self.out |= {tag: message for _, tag, message in self.held}
        self.published, self.held = [], []


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("at", ["home", "elsewhere"])
def test_at_random(seed: int, at: str) -> None:
    """Publishes, acks, commits and rollbacks in any order, as a list and a dictionary would have it."""
    world = World() if at == "home" else Cluster("a", "b", home="b")["a"]
    random, model = Random(seed), Model()
    client = transacting(world)
    number = tag = 0
    for _ in range(150):
        action = random.choice(ACTIONS)
        if action == "publish":
            number += 1
            client.publish("q", str(number).encode(), delivery_mode=random.choice((1, 2)))
            model.published.append(number)
        elif action == "get":
            client.send(m.BasicGet(queue="q"))
            assert client.bodies() == [str(one).encode() for one in model.ready[:1]]
            if model.ready:
                tag += 1
                model.out[tag] = model.ready.pop(0)
        elif action == "settle" and model.out:
            chosen, multiple = random.choice(list(model.out)), random.random() < 0.3
            what = random.choice(("ack", "discard", "requeue"))
            nack = m.BasicNack(chosen, multiple, what == "requeue")
            client.send(m.BasicAck(chosen, multiple) if what == "ack" else nack)
            model.settle(what, chosen, multiple)
        elif action == "commit":
            assert client.call(m.TxCommit()) == m.TxCommitOk()
            model.commit()
        elif action == "rollback":
            assert client.call(m.TxRollback()) == m.TxRollbackOk()
            model.rollback()
        elif action == "recover":
            client.call(m.BasicRecover(True))
            model.requeue(list(model.out.values()))
            model.out.clear()
        assert client.take() == []
    client.send(m.ChannelClose(200, ""))
    model.rollback()
    model.requeue(list(model.out.values()))
    other = world.client()
    other.consume("q", no_ack=True)
    assert other.bodies() == [str(one).encode() for one in model.ready]
    assert world.broker.uncommitted_bytes == 0
