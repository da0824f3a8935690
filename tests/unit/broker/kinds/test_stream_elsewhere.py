"""Streams that are read at other nodes than the one that leads them, and go on when another one does."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from leveret.broker.delivery.offsets import NEXT, OFFSET, TIME, Start
from leveret.broker.kinds.stream import StreamQueue, restore_stream
from leveret.broker.remote import peer_frames as w
from leveret.links import frame_types
from leveret.links.proposals import BadFrame
from leveret.metadata.model import commands as c
from leveret.metadata.model.records import QueueSpec
from leveret.metadata.model.view import View
from leveret.protocol import methods as m
from leveret.protocol.tables import from_python, table_from_python
from leveret.replication.ring_frames import Started
from leveret.storage.format.queue_block import PERSISTENT, Block, Run
from tests.support.brokers import Cluster, Member
from tests.support.machines import Client, World
from tests.support.mirrored_brokers import NAMES, Rings
from tests.support.ring_world import Kept
from tests.unit.broker.kinds.test_stream import STREAM, numbered, publish, read

if TYPE_CHECKING:
    from leveret.broker.delivery.consumer import Consumer


def reader(node: World, offset: object = "first", prefetch: int = 1000) -> Client:
    client = node.client()
    client.call(m.BasicQos(prefetch_count=prefetch))
    arguments = {"x-stream-offset": from_python(offset)}
    client.send(m.BasicConsume(queue="s", consumer_tag="r", arguments=arguments))
    return client


def begins_at(client: Client) -> Start | None:
    return client.connection.channels[1].consumers["r"].begins_at


class Streams(Rings):
    """The stream `s` is led by a, and b and c mirror it."""

    def __init__(self) -> None:
        super().__init__()
        view = View(1, 1, "a", NAMES, tuple((name, f"{name}.0") for name in NAMES))
        arguments = table_from_python(STREAM)
        self.apply(c.DeclareQueue("/", "s", durable=True, arguments=arguments, node="a", view=view))

    @property
    def number(self) -> int:
        return self["a"].metadata.queues["/", "s"].id

    @property
    def master(self) -> str:
        return self["b"].metadata.queues["/", "s"].node


def test_read_at_another_node() -> None:
    cluster = Cluster("a", "b", home="b")
    client = cluster["a"].client()
    client.call(m.QueueDeclare(queue="s", durable=True, arguments=table_from_python(STREAM)))
    publish(client, *"abc")
    first, late, near = reader(cluster["a"], prefetch=2), reader(cluster["a"], "next"), reader(cluster["b"], 1)
    assert read(near) == numbered(*"abc")[1:]
    assert read(first) == numbered("a", "b") and read(late) == []
    assert begins_at(first) == Start(OFFSET, 2) and begins_at(late) == Start(NEXT, 4)
    first.send(m.BasicAck(1, False))
    assert read(first) == [(2, "c")] and begins_at(first) == Start(OFFSET, 3)
    publish(client, "d")
    assert read(first) == [] and read(late) == read(near) == [(3, "d")]
    first.send(m.BasicAck(3, True))
    assert read(first) == [(3, "d")]
    first.lose()
    cluster.run()
    assert len(cluster["b"].stream("s").consumers) == 2
    assert cluster["b"].broker.owner_ends["a"].unacked.count == 1  # What the other one has in hand.


def test_what_a_shared_prefetch_holds_up_is_not_given_back() -> None:
    """Others have it anyway, and this one would miss it."""
    cluster = Cluster("a", "b", home="b")
    client = cluster["a"].client()
    client.call(m.QueueDeclare(queue="s", durable=True, arguments=table_from_python(STREAM)))
    there = reader(cluster["a"], prefetch=3)
    there.send(m.BasicConsume(queue="s", consumer_tag="other", arguments={"x-stream-offset": from_python("first")}))
    there.take()
    there.call(m.BasicQos(prefetch_count=1, global_=True))
    publish(client, *"abc")
    for _ in range(3):
        cluster.tick()
    found = read(there)
    for tag in range(1, 6):
        there.send(m.BasicAck(tag, False))
        found += read(there)
    assert sorted(found) == sorted(2 * numbered(*"abc"))


def test_where_a_subscription_cannot_begin() -> None:
    cluster = Cluster("a", "b", home="b")
    cluster["a"].client().call(m.QueueDeclare(queue="s", durable=True, arguments=table_from_python(STREAM)))
    ask = w.ASK_HEAD.pack(cluster["b"].metadata.index, 1, w.SUBSCRIBE, 1)
    with pytest.raises(BadFrame):
        cluster["b"].broker.on_peer_frame("a", frame_types.ASK, ask + w.SUBSCRIBE_HEAD.pack(1, 0, 0, 0, 0, 6, 0) + b"t")


@pytest.mark.parametrize("how", ["handed over", "lost"])
def test_readers_go_on_where_they_were(how: str) -> None:
    streams = Streams()
    client = streams["c"].client()
    publish(client, *"abcdef")
    quick, slow = reader(streams["b"]), reader(streams["c"], prefetch=2)
    waiting = reader(streams["c"], "next")
    assert (read(quick), read(slow), read(waiting)) == (numbered(*"abcdef"), numbered("a", "b"), [])
    if how == "lost":
        streams.lose("a")
        streams.pass_time()
    else:
        streams.hand_over("b")
    assert streams.master != "a"
    publish(client, "g", "h")
    assert read(quick) == read(waiting) == numbered("g", "h", first=6)
    assert read(slow) == []
    slow.send(m.BasicAck(2, True))
    assert read(slow) == numbered("c", "d", first=2)
    assert read(reader(streams["b"], 5)) == numbered("f", "g", "h", first=5)


def test_a_reader_at_the_former_master() -> None:
    streams = Streams()
    client = streams["a"].client()
    publish(client, *"abc")
    there = reader(streams["a"], prefetch=2)
    assert read(there) == numbered("a", "b")
    streams.hand_over("b")
    there.send(m.BasicAck(1, False))
    publish(client, "d")
    assert read(there) == [(2, "c")]
    there.send(m.BasicAck(3, True))
    assert read(there) == [(3, "d")]


def test_blocks_that_are_not_confirmed_are_not_read() -> None:
    world = World()
    queue = StreamQueue(QueueSpec(7, "/", "s", arguments=table_from_python(STREAM)), world.broker)
    stored = Kept()
    stored.add(4, 3)  # 1 to 3 were given up.
    run = Run(7, [b"x" * 30] * 2, [b"\0\0"] * 2, bytearray((PERSISTENT,)) * 2)
    tail = (Block(7, 2, 5, 1_000, run, [], [], 0), Block(7, 2, 6, 1_000, None, [(1, 5)], [], 0))
    batches = restore_stream(queue, stored, Started(3, 7, tail, False))
    assert (queue.first, queue.committed, queue.next_seq, queue.ready_count) == (6, 6, 9, 3)
    ((number, batch),) = batches
    assert number == 5
    queue.on_logged(batch)
    assert queue.committed == 8 and queue.last_batch == 7


class Waiting:
    """A consumer that is given nothing."""

    exclusive = False

    def __init__(self, start: Start) -> None:
        self.begins_at = start


def test_what_was_restored_is_not_the_next() -> None:
    """It is not known to be committed, but may have been confirmed long ago."""
    world = World()
    queue = StreamQueue(QueueSpec(7, "/", "s", arguments=table_from_python(STREAM)), world.broker)
    stored = Kept()
    stored.add(1, 6)
    run = Run(7, [b"x" * 30] * 2, [b"\0\0"] * 2, bytearray((PERSISTENT,)) * 2, [(0, 1_000)])
    ((_, batch),) = restore_stream(queue, stored, Started(3, 7, (Block(7, 2, 5, 1_000, run, [], [], 0),), False))

    def place(start: Start) -> tuple[int, Start | None]:
        consumer = cast("Consumer", Waiting(start))
        queue.add_consumer(consumer)
        return queue.reader_of.pop(consumer).position, consumer.begins_at

    assert place(Start(NEXT)) == (9, Start(NEXT, 9))
    assert place(Start(NEXT, 8)) == (8, Start(NEXT, 8))  # As the last master told it.
    assert place(Start(NEXT, 12)) == (9, Start(NEXT, 9))  # That one had more, and has taken it with it.
    later = cast("Consumer", Waiting(Start(TIME, 2_000)))
    queue.add_consumer(later)
    assert queue.reader_of[later].seeking
    queue.on_logged(batch)
    assert not queue.reader_of[later].seeking and queue.reader_of[later].position == 9


def queue_at(member: Member) -> StreamQueue:
    return member.stream("s")


def test_the_next_master_gives_up_what_the_last_one_would_have() -> None:
    streams = Streams()
    client = streams["a"].client()
    publish(client, *"abc")
    queue_at(streams["a"]).retention.restore([(1, 2, 10), (3, 3, 5)])
    queue_at(streams["a"]).retention.max_bytes = 5
    publish(client, "d")
    assert queue_at(streams["a"]).first == 3
    streams.hand_over("b")
    assert queue_at(streams["b"]).first == 3
    assert read(reader(streams["c"], 0)) == numbered("c", "d", first=2)
