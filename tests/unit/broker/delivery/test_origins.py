"""What is moved from queue to queue is taken once, in any order, and nothing is taken for a copy that is none."""

from __future__ import annotations

import pytest

from leveret.broker.delivery import origins
from leveret.broker.delivery.batch import Batch, Span
from leveret.broker.delivery.origins import RUN, RUNS, begin_run
from leveret.protocol import methods as m
from leveret.protocol.frames import HEADER_AT, split
from leveret.protocol.origins import MARK, NAME, source_of, take_origin
from leveret.protocol.properties import decode_content
from leveret.protocol.tables import Field, table_from_python
from leveret.storage.format.queue_block import REDELIVERED
from tests.support.machines import Client, World, publish
from tests.unit.broker.queue.test_dedup import acks, rest, told

SOURCE = source_of(b"a" * 32, 7, 9)
OTHER = source_of(b"a" * 32, 7, 10)


@pytest.fixture
def world() -> World:
    world = World()
    world.broker.wall_ms = 1_000_000
    world.client().declare("q", durable=True)
    return world


def mover(world: World) -> Client:
    client = world.client(leveret_origins=True)
    assert client.call(m.ConfirmSelect()) == m.ConfirmSelectOk()
    return client


def send(client: Client, *numbers: int, source: bytes = SOURCE, mode: int = 2, queue: str = "q") -> None:
    """Publish messages whose bodies are their numbers at the source, in one piece."""
    client.feed(
        b"".join(
            publish(
                1, "", queue, b"%d" % number, delivery_mode=mode,
                headers={NAME: Field("S", f"{source.decode()}/{number:016x}"), "mine": Field("l", 1)},
            )
            for number in numbers
        )
    )  # fmt: skip
    client.world.turn()


def first_batch(world: World) -> Batch:
    """The first messages that wait in the queue."""
    span = world.queue("q").ready[0]
    assert isinstance(span, Span)
    return span.batch


def test_each_number_is_taken_once_in_any_order(world: World) -> None:
    first, second = mover(world), mover(world)
    send(first, 5, 6, 7)
    send(second, 1, 2, 6, 7, 8)
    send(first, 3, 8, 4, 1)
    assert told(first) == acks(7) and told(second) == acks(5)
    assert rest(world) == [5, 6, 7, 1, 2, 8, 3, 4]


def test_sources_do_not_know_each_other(world: World) -> None:
    client = mover(world)
    send(client, 1, 2)
    send(client, 1, 2, source=OTHER)
    assert told(client) == acks(4) and rest(world) == [1, 2, 1, 2]


def test_the_origin_is_taken_out_and_other_headers_stay(world: World) -> None:
    send(mover(world), 1)
    (content,) = first_batch(world).contents
    assert decode_content(content, HEADER_AT).headers == {"mine": Field("l", 1)}


def test_a_copy_is_confirmed_when_the_first_is_safe(world: World) -> None:
    first, second = mover(world), mover(world)
    world.holds_disk = True
    send(first, 1, 2)
    send(second, 1, 2)
    assert told(first) == told(second) == []
    world.sync()
    world.turn()
    world.sync()
    world.turn()
    assert told(first) == acks(2) and told(second) == acks(2)
    assert rest(world) == [1, 2]


def test_what_a_full_queue_refuses_may_come_again(world: World) -> None:
    arguments = table_from_python({"x-max-length": 1, "x-overflow": "reject-publish"})
    world.client().declare("full", durable=True, arguments=arguments)
    client = mover(world)
    send(client, 1, 2, queue="full")
    assert told(client) == [(1, True), (2, False)]
    world.client().call(m.BasicGet(queue="full", no_ack=True))
    send(client, 1, 2, queue="full")
    assert told(client) == [(3, True), (4, True)]
    assert rest(world, "full") == [2]


@pytest.mark.parametrize("mode", [1, 2])
def test_what_may_have_been_brought_before_is_marked_by_who_takes_it(world: World, mode: int) -> None:
    client = mover(world)
    send(client, 1, 2, mode=mode)
    send(client, *(number | MARK for number in (1, 2, 3, 4)), 5, mode=mode)
    assert told(client) == acks(7)
    assert marks(world) == {1: False, 2: False, 3 | MARK: True, 4 | MARK: True, 5: False}


def test_a_mark_does_not_hide_a_number_that_is_none(world: World) -> None:
    client = mover(world)
    none = (MARK, MARK | 1 << 62 | 1)
    send(client, *none)
    assert told(client) == acks(2) and marks(world) == dict.fromkeys(none, False)


def marks(world: World) -> dict[int, bool]:
    """By body: whether the messages that wait are marked as redelivered."""
    found: dict[int, bool] = {}
    for span in world.queue("q").ready:
        assert isinstance(span, Span)
        for at in range(span.lo, span.hi):
            found[int(split(span.batch.contents[at])[1])] = span.batch.kinds[at] & REDELIVERED != 0
    return found


def test_messages_without_an_origin_and_without_a_log(world: World) -> None:
    client = mover(world)
    client.feed(publish(1, "", "q", b"5") + publish(1, "", "q", b"5"))
    world.turn()
    send(client, 1, 1, mode=1)
    assert told(client) == acks(4) and rest(world) == [5, 5, 1]


def test_without_confirms_origins_do_nothing(world: World) -> None:
    client = world.client(leveret_origins=True)
    send(client, 1, 1)
    assert rest(world) == [1, 1]


def test_a_client_that_did_not_say_so_keeps_the_header(world: World) -> None:
    send(world.client(), 1)
    (content,) = first_batch(world).contents
    assert NAME in (decode_content(content, HEADER_AT).headers or {})


def test_the_set_is_bounded_and_forgets_the_lowest(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins, "RANGES_MAX", 3)
    client = mover(world)
    send(client, 1, 3, 5, 7)
    send(client, 3, 5, 7, 1)
    assert rest(world) == [1, 3, 5, 7, 1]


# -- At the source -------------------------------------------------------------------------------------------------


def consume(world: World) -> list[tuple[bytes, int]]:
    """The origins of all messages of the queue, which stay there."""
    client = subscribe(world)
    found = origins_told(client)
    client.lose()
    world.turn()
    return found


def subscribe(world: World, queue: str = "q") -> Client:
    """A client that wants origins."""
    client = world.client()
    client.send(m.BasicConsume(queue=queue, consumer_tag="c", arguments=table_from_python({NAME: True})))
    world.turn()
    return client


def origins_told(client: Client) -> list[tuple[bytes, int]]:
    """The origins of the messages that a client was given."""
    found = []
    for reply in client.take():
        if isinstance(reply.method, m.BasicDeliver):
            assert reply.properties is not None and reply.properties.headers is not None
            text = reply.properties.headers[NAME].value.encode()
            found.append((text[:66], int(text[67:], 16)))
    return found


def test_messages_tell_their_numbers_and_keep_them(world: World) -> None:
    client = world.client()
    for body in (b"1", b"2", b"3"):
        client.publish("q", body, delivery_mode=2)
    first = consume(world)
    assert [number for _, number in first] == [1, 2, 3]
    assert len({source for source, _ in first}) == 1
    assert consume(world) == first


def test_numbers_that_are_given_again_after_a_crash_have_another_origin(world: World) -> None:
    client = world.client()
    client.publish("q", b"1", delivery_mode=2)
    ((source, _),) = consume(world)
    queue = world.queue("q")
    begin_run(queue, lambda bound: 77)  # As if restored with one message.
    client.publish("q", b"2", delivery_mode=2)
    (one, two) = consume(world)
    assert one == (source, 1) and two[1] == 2
    assert two[0] != source and two[0].endswith(b"%016x" % 77)


def test_a_queue_of_which_no_origins_were_asked_keeps_no_runs(world: World) -> None:
    queue = world.queue("q")
    begin_run(queue, lambda bound: 1)
    assert RUNS not in queue.durable_state.table


def test_no_origin_is_told_before_the_first_run_is_safe(world: World) -> None:
    client = world.client()
    client.publish("q", b"1", delivery_mode=2)
    world.holds_disk = True
    mover = subscribe(world)
    assert origins_told(mover) == []
    (block,) = [block for block in world.blocks if block.marks]
    assert block.marks is not None and RUNS in block.marks
    world.sync()
    world.turn()
    ((source, number),) = origins_told(mover)
    ((_, tag),) = RUN.iter_unpack(block.marks[RUNS])
    assert number == 1 and source.endswith(b"%016x" % tag)


def test_others_are_served_while_the_first_run_is_not_safe(world: World) -> None:
    client, other = world.client(), world.client()
    client.publish("q", b"1", delivery_mode=2)
    client.publish("q", b"2", delivery_mode=2)
    world.holds_disk = True
    mover = subscribe(world)
    other.send(m.BasicConsume(queue="q", consumer_tag="other"))
    world.turn()
    assert [reply.body for reply in other.take() if isinstance(reply.method, m.BasicDeliver)] == [b"1", b"2"]
    assert origins_told(mover) == []


def test_a_run_that_is_known_is_not_waited_for(world: World) -> None:
    world.client().publish("q", b"1", delivery_mode=2)
    first = consume(world)
    world.holds_disk = True
    assert consume(world) == first


def test_a_queue_without_a_log_waits_for_nothing(world: World) -> None:
    client = world.client()
    client.declare("short-lived", exclusive=False)
    client.publish("short-lived", b"1")
    world.holds_disk = True
    assert [number for _, number in origins_told(subscribe(world, "short-lived"))] == [1]


def test_runs_are_bounded(world: World) -> None:
    queue = world.queue("q")
    queue.durable_state.set(RUNS, RUN.pack(0, 5))
    for tag in range(100):
        queue.next_seq += 1
        begin_run(queue, lambda bound, tag=tag: tag)  # type: ignore[misc]
    runs = list(RUN.iter_unpack(queue.durable_state.table[RUNS]))
    assert len(runs) == origins.RUNS_MAX and runs[0][0] == 0 and runs[-1][1] == 99


def test_the_way_from_queue_to_queue(world: World) -> None:
    world.client().declare("far", durable=True)
    client = world.client()
    for body in (b"1", b"2"):
        client.publish("q", body, delivery_mode=2)
    batch, features = first_batch(world), world.broker.features
    features.begin_origins(world.queue("q"))
    contents = features.with_origins(world.queue("q"), batch, 0, len(batch.contents), batch.contents)
    assert [take_origin(one)[2] for one in contents] == batch.contents
    assert [take_origin(one).number for one in contents] == [1]
