"""Streams, as clients of one node without a world see them."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.delivery.offsets import offset_of, with_offsets
from leveret.broker.kinds.stream import StreamQueue
from leveret.metadata.model import commands as c
from leveret.protocol import methods as m
from leveret.protocol.tables import Field, Table, from_python, table_from_python, to_python
from tests.support.machines import Client, Reply, World
from tests.support.machines import publish as packed

STREAM = {"x-queue-type": "stream"}
HOUR_MS = 3_600_000


def stream(world: World) -> StreamQueue:
    return world.stream("s")


@pytest.fixture
def world() -> World:
    world = World()
    world.broker.wall_ms = 1_700_000_000_000
    return world


def declared(world: World, **arguments: Any) -> Client:
    client = world.client()
    given = {key.replace("_", "-"): value for key, value in arguments.items()}
    client.call(m.QueueDeclare(queue="s", durable=True, arguments=table_from_python(STREAM | given)))
    return client


def publish(client: Client, *bodies: str, **properties: Any) -> None:
    """In one turn, so that they are one batch."""
    for body in bodies:
        client.feed(packed(1, "", "s", body.encode(), client.frame_max, **properties))
    client.world.turn()


def reader(world: World, offset: object = "first", prefetch: int = 1000) -> Client:
    client = world.client()
    client.call(m.BasicQos(prefetch_count=prefetch))
    arguments: Table = {"x-stream-offset": offset if isinstance(offset, Field) else from_python(offset)}
    client.send(m.BasicConsume(queue="s", consumer_tag="r", arguments=arguments))
    return client


def read(client: Client) -> list[tuple[int, str]]:
    """Offsets and bodies of what came."""
    found = []
    for reply in client.take():
        if isinstance(reply.method, m.BasicDeliver):
            assert not reply.method.redelivered
            found.append((offset(reply), reply.body.decode()))
    return found


def offset(reply: Reply) -> int:
    assert reply.properties is not None and reply.properties.headers is not None
    value: int = to_python(reply.properties.headers)["x-stream-offset"]
    return value


def numbered(*bodies: str, first: int = 0) -> list[tuple[int, str]]:
    return list(enumerate(bodies, first))


# -- Reading -----------------------------------------------------------------------------------------------------------


def test_every_reader_gets_all(world: World) -> None:
    client = declared(world)
    early = reader(world)
    publish(client, "a", "b", "c")
    late = reader(world)
    assert read(early) == read(late) == numbered("a", "b", "c")
    publish(client, "d")
    assert read(early) == read(late) == [(3, "d")]
    assert client.call(m.QueueDeclare(queue="s", passive=True)) == m.QueueDeclareOk("s", 4, 2)


@pytest.mark.parametrize(
    ("given", "first"),
    [("first", 0), ("last", 4), ("next", 6), (0, 0), (4, 4), (6, 6), (-1, 0), (Field("b", 3), 3), (Field("l", 9), 9)],
)
def test_where_a_reader_begins(world: World, given: object, first: int) -> None:
    client = declared(world)
    publish(client, "a", "b")
    publish(client, "c", "d")
    publish(client, "e", "f")  # The last batch.
    there = reader(world, given)
    publish(client, *"ghijkl")
    assert read(there) == numbered(*"abcdefghijkl")[first:]


def test_a_reader_begins_with_what_comes_next_by_default(world: World) -> None:
    client = declared(world)
    publish(client, "a")
    other = world.client()
    other.call(m.BasicQos(prefetch_count=5))
    other.call(m.BasicConsume(queue="s", consumer_tag="r"))
    publish(client, "b")
    assert read(other) == [(1, "b")]


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(("age_s", "first"), [(7200, 0), (3600, 0), (3599, 2), (1800, 2), (1799, 4), (0, 4), (-5, 6)])
def test_to_begin_at_a_time(world: World, age_s: int, first: int, in_memory: bool) -> None:
    client = declared(world)
    if in_memory:
        reader(world, prefetch=1)  # For its sake, all is kept.
    for pair in ("ab", "cd", "ef"):
        publish(client, *pair)
        world.broker.wall_ms += HOUR_MS // 2
    world.broker.wall_ms -= HOUR_MS // 2
    assert bool(stream(world).tail) == in_memory
    there = reader(world, Field("T", world.broker.wall_ms // 1000 - age_s))
    publish(client, "g")
    assert read(there) == numbered(*"abcdefg")[first:]


@pytest.mark.parametrize(("text", "first"), [("2h", 0), ("1h", 0), ("59m", 2), ("30m", 2), ("1s", 4)])
def test_to_begin_some_time_ago(world: World, text: str, first: int) -> None:
    client = declared(world)
    for pair in ("ab", "cd", "ef"):
        publish(client, *pair)
        world.broker.wall_ms += HOUR_MS // 2
    world.broker.wall_ms -= HOUR_MS // 2
    assert read(reader(world, text)) == numbered(*"abcdef")[first:]


def test_credit_comes_by_acknowledgements(world: World) -> None:
    client = declared(world)
    publish(client, *"abcdef")
    there = reader(world, prefetch=2)
    assert read(there) == [(0, "a"), (1, "b")]
    there.send(m.BasicAck(1, False))
    assert read(there) == [(2, "c")]
    there.send(m.BasicAck(3, True))
    assert read(there) == [(3, "d"), (4, "e")]
    there.lose()
    world.turn()
    assert read(reader(world)) == numbered(*"abcdef")  # Nothing was taken out.


def test_what_is_not_on_disk_is_not_shown(world: World) -> None:
    """After a crash, another message would have its offset."""
    client = declared(world)
    there = reader(world)
    world.holds_disk = True
    publish(client, "a")
    assert read(there) == []
    world.sync()
    world.turn()
    assert read(there) == [(0, "a")]


def test_transient_messages_are_kept_too(world: World) -> None:
    client = declared(world)
    client.call(m.ConfirmSelect())
    world.holds_disk = True
    publish(client, "a", delivery_mode=1)
    assert client.take() == []
    world.holds_disk = False
    world.turn()
    assert [type(reply.method) for reply in client.take()] == [m.BasicAck]


def test_a_reader_that_goes_leaves_no_trace(world: World) -> None:
    client = declared(world)
    there = reader(world)
    there.take()
    there.call(m.BasicCancel(consumer_tag="r"))
    publish(client, "a")
    assert read(there) == [] and not stream(world).reader_of


def test_readers_are_told_that_the_stream_is_deleted(world: World) -> None:
    client = declared(world)
    publish(client, "a")
    there = reader(world)
    there.take()
    assert client.call(m.QueueDelete(queue="s")) == m.QueueDeleteOk(1)
    assert there.methods() == [m.BasicCancel("r", True)]
    assert world.broker.content_bytes == 0


# -- From the log ------------------------------------------------------------------------------------------------------


def forget(world: World) -> None:
    """As after a start: what is committed is in the log alone."""
    stream(world)._drop_pieces(0)
    stream(world)._drop_tail(len(stream(world).tail))


def test_what_is_older_is_read_back(world: World) -> None:
    client = declared(world)
    publish(client, *map(str, range(50)))
    forget(world)
    publish(client, *map(str, range(50, 60)))
    world.load_messages_max = 7
    for first in (0, 13, 45, 55):
        there = reader(world, first)
        assert read(there) == numbered(*map(str, range(first, 60)), first=first)
    assert not stream(world).pieces  # Nobody is that far behind any more.


def test_readers_at_one_place_share_a_read(world: World) -> None:
    client = declared(world)
    publish(client, *map(str, range(50)))
    forget(world)
    world.holds_loads = True
    there = [reader(world, first) for first in (3, 5, 9)]
    assert [(first, last) for _, first, last, _ in world.ranges] == [(4, 50)]
    world.finish_loads()
    world.turn()
    assert not world.ranges
    for each, first in zip(there, (3, 5, 9), strict=True):
        assert read(each) == numbered(*map(str, range(first, 50)), first=first)


def test_readers_far_apart_take_turns(world: World) -> None:
    client = declared(world)
    publish(client, *map(str, range(100)))
    forget(world)
    world.holds_loads, world.load_messages_max = True, 10
    reader(world, 0), reader(world, 50)
    wanted = []
    while world.ranges:
        wanted += [first for _, first, _, _ in world.ranges]
        world.finish_loads()
        world.turn()
    assert wanted[:5] == [1, 11, 51, 21, 61] and len(wanted) == len(set(wanted))


def test_a_reader_without_room_has_nothing_read(world: World) -> None:
    client = declared(world)
    publish(client, *"abcdef")
    there = reader(world, prefetch=2)
    assert read(there) == [(0, "a"), (1, "b")]
    forget(world)
    world.holds_loads = True
    publish(client, "g")
    assert not world.ranges
    there.send(m.BasicAck(2, True))
    assert len(world.ranges) == 1


def test_what_cannot_be_read_stops_those_who_want_it(world: World) -> None:
    client = declared(world)
    publish(client, *"abc")
    forget(world)
    world.holds_loads = True
    there = reader(world)
    ((_, first, _, then),) = world.ranges
    world.ranges.clear()
    then(None, first)
    publish(client, "d")
    assert read(there) == [] and not world.ranges
    world.holds_loads = False
    assert read(reader(world, 3)) == [(3, "d")] and read(there) == []


def test_memory_is_bounded(world: World) -> None:
    world = World(content_bytes_max=300_000)
    client = declared(world)
    there = reader(world)
    for _ in range(100):
        publish(client, "x" * 10_000)
        assert len(read(there)) == 1
        there.send(m.BasicAck(0, True))
    assert len(read(reader(world))) == 100
    assert world.broker.content_bytes == stream(world).memory_bytes == 0  # Everybody has everything.
    slow = reader(world, "next", prefetch=1)
    for _ in range(100):
        publish(client, "x" * 10_000)
        assert world.broker.content_bytes == stream(world).memory_bytes <= 400_000
    slow.take()
    for _ in range(99):
        slow.send(m.BasicAck(0, True))
        assert len(read(slow)) == 1
        assert world.broker.content_bytes <= 2_000_000
    assert world.broker.content_bytes == stream(world).memory_bytes == 0


def test_what_nobody_reads_is_let_go_of_at_once(world: World) -> None:
    client = declared(world)
    there = reader(world, prefetch=1)
    publish(client, "a", "b")
    assert read(there) == [(0, "a")] and stream(world).tail
    world.holds_disk = True
    publish(client, "c")
    there.send(m.BasicCancel("r", True))
    assert not world.broker.dirty
    world.sync()
    assert stream(world).committed == 3
    assert not stream(world).tail and not world.broker.dirty and not world.broker.content_bytes
    world.holds_disk = False
    assert read(reader(world)) == numbered("a", "b", "c")


# -- The header --------------------------------------------------------------------------------------------------------


def test_the_rest_of_a_message_stays_as_it_is(world: World) -> None:
    client = declared(world)
    given: list[dict[str, Any]] = [
        {},
        {"content_type": "a/b", "content_encoding": "gzip", "priority": 3, "message_id": "i"},
        {"headers": table_from_python({"a": 1, "z": "2"}), "expiration": "1"},
        {"content_type": "a/b", "headers": {}, "delivery_mode": 2},
        {"headers": table_from_python({"a": 1, "x-stream-offset": "own", "z": 2}), "app_id": "p"},
    ]
    for properties in given:
        publish(client, "same", **properties)
        publish(client, "same", **properties)
        publish(client, "", **properties)
    replies = [reply for reply in reader(world).take() if reply.properties is not None]
    assert [offset(reply) for reply in replies] == list(range(15))
    for at, reply in enumerate(replies):
        wanted = dict(given[at // 3])
        assert reply.properties is not None
        wanted["headers"] = {**wanted.get("headers", {}), "x-stream-offset": Field("l", at)}
        assert {name: getattr(reply.properties, name) for name in wanted} == wanted
        assert reply.body == (b"" if at % 3 == 2 else b"same")


def test_a_large_message_and_a_small_frame(world: World) -> None:
    client = declared(world)
    publish(client, "x" * 300_000)
    assert read(reader(world)) == [(0, "x" * 300_000)]
    (content,) = with_offsets([world.log.queues[stream(world).spec.id][1][0]], 3)
    assert offset_of(content) == 3 and offset_of(*with_offsets([content], 7)) == 7


# -- Retention ---------------------------------------------------------------------------------------------------------


def first_offset(world: World) -> int:
    return read(reader(world))[0][0]


def test_too_many_bytes(world: World) -> None:
    client = declared(world, x_max_length_bytes=10_000, x_stream_max_segment_size_bytes=2_000)
    for _ in range(50):
        publish(client, "x" * 500)
    queue = stream(world)
    assert 10_000 - 2_600 <= queue.retention.bytes <= 10_000
    assert first_offset(world) == queue.first - 1 > 20
    assert set(world.log.queues[queue.spec.id]) == set(range(queue.first, 51))  # The log has its space back.
    assert read(reader(world, 3))[0][0] == queue.first - 1
    assert client.call(m.QueueDeclare(queue="s", passive=True)) == m.QueueDeclareOk("s", 51 - queue.first, 2)


def test_limits_that_come_with_a_policy(world: World) -> None:
    client = declared(world)
    publish(client, *"abcdef")
    definition: dict[str, Any] = {"max-length-bytes": 50, "stream-max-segment-size-bytes": 20}
    world.apply(c.SetPolicy("/", "p", "s", "queues", 0, definition))
    world.apply(c.SetPolicy("/", "not for streams", "s", "queues", 1, {"message-ttl": 0, "max-length-bytes": 1 << 30}))
    publish(client, "g")
    assert read(reader(world)) == [(6, "g")]


def test_the_last_stretch_stays(world: World) -> None:
    client = declared(world, x_max_length_bytes=0)
    publish(client, "a", "b")
    assert read(reader(world)) == numbered("a", "b")


def test_too_old(world: World) -> None:
    client = declared(world, x_max_age="1h")
    publish(client, "a", "b")
    world.broker.wall_ms += HOUR_MS // 2
    publish(client, "c")
    assert first_offset(world) == 0
    world.broker.wall_ms += HOUR_MS // 2
    assert world.broker.on_time()
    world.turn()
    assert first_offset(world) == 2
    world.broker.wall_ms += 2 * HOUR_MS
    world.broker.on_time()
    world.turn()
    assert first_offset(world) == 2  # It is the last.


def test_how_old_is_what_was_there_before_a_start(world: World) -> None:
    client = declared(world, x_max_age="1h")
    publish(client, "a", "b")
    world.broker.wall_ms += HOUR_MS // 2
    publish(client, "c")
    queue = stream(world)
    queue.retention.restore([(1, 2, 100), (3, 3, 50)])
    world.broker.wall_ms += HOUR_MS
    world.broker.dirty[queue] = None
    world.turn()
    assert queue.first == 3


def test_a_reader_behind_the_front_goes_on_with_what_there_is(world: World) -> None:
    client = declared(world, x_max_length_bytes=3_000, x_stream_max_segment_size_bytes=1_000)
    there = reader(world, prefetch=1)
    for at in range(20):
        publish(client, str(at % 10) * 500)
    assert read(there) == [(0, "0" * 500)]
    there.send(m.BasicAck(0, True))
    assert read(there)[0][0] == stream(world).first - 1 > 1


# -- What is refused ---------------------------------------------------------------------------------------------------

WHERE = "queue 's' in vhost '/'"


@pytest.mark.parametrize(
    ("method", "code", "text"),
    [
        (m.BasicGet(queue="s"), 540, f"NOT_IMPLEMENTED - basic.get not supported by stream queues {WHERE}"),
        (m.QueuePurge(queue="s"), 540, f"NOT_IMPLEMENTED - queue.purge not supported by stream queues {WHERE}"),
        (
            m.BasicConsume(queue="s", no_ack=True),
            540,
            f"NOT_IMPLEMENTED - automatic acknowledgement not supported by stream queues {WHERE}",
        ),
        (
            m.BasicConsume(queue="s", arguments={"x-priority": Field("I", 1)}),
            406,
            f"PRECONDITION_FAILED - invalid arg 'x-priority' for {WHERE} of queue type rabbit_stream_queue",
        ),
        (
            m.BasicConsume(queue="s", arguments={"x-stream-offset": Field("S", "0s")}),
            406,
            f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for {WHERE}: "
            '{invalid_stream_offset_arg,{longstr,<<"0s">>}}',
        ),
        (
            m.BasicConsume(queue="s", arguments={"x-stream-offset": Field("t", True)}),
            406,
            f"PRECONDITION_FAILED - invalid arg 'x-stream-offset' for {WHERE}: "
            "{invalid_stream_offset_arg,{bool,true}}",
        ),
    ],
)
def test_refused(world: World, method: m.Method, code: int, text: str) -> None:
    client = declared(world)
    client.call(m.BasicQos(prefetch_count=1))
    client.send(method)
    (reply,) = client.take()
    assert isinstance(reply.method, m.ChannelClose if code == 406 else m.ConnectionClose)
    assert (reply.method.reply_code, reply.method.reply_text) == (code, text)


def test_without_a_prefetch(world: World) -> None:
    client = declared(world)
    client.call(m.BasicQos(prefetch_count=1, global_=True))
    client.send(m.BasicConsume(queue="s", no_ack=True))
    (closed,) = client.methods()
    assert isinstance(closed, m.ChannelClose)
    assert closed.reply_text == f"PRECONDITION_FAILED - consumer prefetch count is not set for '{WHERE}'"


def test_with_a_prefetch_for_all_consumers(world: World) -> None:
    client = declared(world)
    client.call(m.BasicQos(prefetch_count=1))
    client.call(m.BasicQos(prefetch_count=1, global_=True))
    client.send(m.BasicConsume(queue="s"))
    (closed,) = client.methods()
    assert isinstance(closed, m.ConnectionClose)
    assert closed.reply_text == f"NOT_IMPLEMENTED - {WHERE} does not support global qos"


@pytest.mark.parametrize(
    "method", [m.BasicNack(1, False, True), m.BasicNack(1, False, False), m.BasicReject(1, True), m.BasicRecover(True)]
)
def test_nothing_is_given_back(world: World, method: m.Method) -> None:
    client = declared(world)
    publish(client, "a")
    there = reader(world)
    assert read(there) == [(0, "a")]
    there.send(method)
    (closed,) = there.methods()
    what = "basic.recover" if isinstance(method, m.BasicRecover) else "basic.nack and basic.reject"
    assert isinstance(closed, m.ConnectionClose)
    assert closed.reply_text == f"NOT_IMPLEMENTED - {what} not supported by stream queues {WHERE}"


def test_other_queues_know_no_offsets(world: World) -> None:
    client = world.client()
    client.call(m.QueueDeclare(queue="q"))
    client.send(m.BasicConsume(queue="q", arguments={"x-stream-offset": Field("S", "first")}))
    (closed,) = client.methods()
    assert isinstance(closed, m.ChannelClose)
    text = "invalid arg 'x-stream-offset' for queue 'q' in vhost '/' of queue type rabbit_classic_queue"
    assert closed.reply_text == f"PRECONDITION_FAILED - {text}"
