"""The event journal: what it says of a queue's messages, in as few ranges as can be, and where it is kept."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from leveret.base.json_values import Json
from leveret.broker.delivery.confirms import Confirms, Numbers
from leveret.broker.delivery.publish_numbers import Origin
from leveret.broker.event_journal.node_journal import MESSAGE_BYTES, WAITING_BYTES_MAX, WRITE_MS, NodeJournal, Options
from leveret.broker.event_journal.queue_journal import (
    ENTRIES_MAX,
    GATHER_MS,
    MARK,
    SAMPLE,
    QueueJournal,
    Run,
    recovered,
    sampled,
)
from leveret.broker.queue.leases import ack_lease, open_lease, release_lease, take_lease
from leveret.metadata.model import commands as c
from leveret.node.storage import Storage
from leveret.protocol import methods as m
from leveret.protocol.frames import HEADER_AT
from leveret.protocol.properties import body_size
from leveret.protocol.tables import table_from_python
from leveret.storage.format.queue_block import Block
from tests.support.machines import Client, World, publish
from tests.support.mirrored_brokers import NAMES, Rings

WHO = "127.0.0.1:40000 -> 127.0.0.1:5672 (1)"
STREAM = "leveret.journal.node"


class Watched(World):
    """Queues named q… are journaled; blocks are reported safe as `Storage` does it."""

    def __init__(self, mode: str = "full", more: dict[str, Json] | None = None) -> None:
        super().__init__()
        self.policy(mode, more)

    def policy(self, mode: str, more: dict[str, Json] | None = None) -> None:
        self.apply(c.SetPolicy("/", "p", "^q", "all", 0, {"journal": mode, **(more or {})}))
        self.broker.pump()

    def sync(self) -> None:
        for queue, block in self._logged:
            if block.enqueued is not None:
                queue.tell_safe(block.enqueued)  # type: ignore[arg-type]
        super().sync()

    @property
    def journal(self) -> NodeJournal:
        assert self.broker.journal is not None
        return self.broker.journal

    def events(self) -> list[list[Any]]:
        """All of queues since the last time, without those of the beginning."""
        journal = self.journal
        if journal.find() is None:
            journal.gather()
            journal.touched = {}
        else:
            journal.write()
        told = [json.loads(event) for event in journal.told]
        told += [event for body in journal.bodies for event in json.loads(body)["events"]]
        journal.told, journal.bodies, journal.told_bytes = [], [], 0
        return [event for event in told if event[0] != "started" and event[2]]

    def spans(self) -> list[tuple[Any, ...]]:
        """Their kinds and ranges."""
        return [(event[0], event[3], event[4]) for event in self.events()]


@pytest.fixture
def world() -> Watched:
    return Watched()


@pytest.fixture
def client(world: Watched) -> Client:
    client = world.client()
    client.declare("q", durable=True)
    assert client.call(m.ConfirmSelect()) == m.ConfirmSelectOk()
    return client


def fill(client: Client, count: int, name: str = "q", **properties: Any) -> None:
    for _ in range(count):
        client.publish(name, delivery_mode=2, **properties)
    client.take()


def get(client: Client, name: str = "q") -> int:
    client.send(m.BasicGet(queue=name))
    (reply,) = client.take()
    assert isinstance(reply.method, m.BasicGetOk)
    return reply.method.delivery_tag


# -- What is told --------------------------------------------------------------------------------------------------


def test_the_life_of_messages(world: Watched, client: Client) -> None:
    fill(client, 3)
    number = world.queue("q").spec.id
    about = {"id": number, "epoch": 1}
    published = ["published", "/", "q", 1, 3, 3, WHO, {**about, "said": [1, 3]}]
    assert world.events() == [published, ["confirmed", *published[1:]]]
    client.send(m.BasicConsume(queue="q", consumer_tag="me"))
    assert world.events() == [["delivered", "/", "q", 1, 3, 3, f"{WHO} me", about]]
    client.send(m.BasicAck(delivery_tag=2, multiple=True))
    assert world.events() == [["acked", "/", "q", 1, 2, 2, "", about]]
    client.send(m.BasicNack(delivery_tag=3, requeue=False))
    assert world.events() == [["rejected", "/", "q", 3, 3, 1, "", {**about, "reason": "rejected"}]]


def test_what_comes_together_is_told_together(world: Watched, client: Client) -> None:
    world.holds_disk = True
    world.events()
    client.feed(b"".join(_publish("q") for _ in range(100)))
    world.turn()
    client.feed(b"".join(_publish("q") for _ in range(50)))
    world.turn()
    assert world.spans() == [("published", 1, 150)]
    world.sync()
    client.feed(b"".join(_publish("q") for _ in range(50)))
    world.turn()
    assert world.spans() == [("published", 151, 200), ("confirmed", 1, 150)]  # It goes on where it was told to be.
    world.sync()
    (confirmed,) = world.events()
    assert confirmed[:1] + confirmed[3:5] == ["confirmed", 151, 200] and confirmed[7]["said"] == [151, 200]


def _publish(name: str) -> bytes:
    return publish(1, "", name, b"x", 131_072, delivery_mode=2)


def test_transient_messages_are_told_and_said_to_be(world: Watched, client: Client) -> None:
    client.publish("q")
    client.take()
    (published, confirmed) = world.events()
    assert published[7]["transient"] is True and confirmed[0] == "confirmed"
    client.send(m.BasicAck(delivery_tag=get(client)))
    assert world.spans() == [("delivered", 1, 1), ("acked", 1, 1)]


def test_who_does_not_ask_for_confirms_is_named_too(world: Watched) -> None:
    client = world.client()
    client.declare("q", durable=True)
    fill(client, 1)
    (published,) = world.events()
    assert published[6] == WHO and "said" not in published[7]


def test_requeued(world: Watched, client: Client) -> None:
    fill(client, 2)
    world.events()
    client.send(m.BasicReject(delivery_tag=get(client), requeue=True))
    assert world.spans() == [("delivered", 1, 1), ("requeued", 1, 1)]


def test_several_consumers_share_one_range(world: Watched, client: Client) -> None:
    other = world.client()
    for one in (client, other):
        one.send(m.BasicQos(prefetch_count=10), m.BasicConsume(queue="q", consumer_tag="me"))
    world.events()
    client.feed(b"".join(_publish("q") for _ in range(20)))
    world.turn()
    (delivered,) = [event for event in world.events() if event[0] == "delivered"]
    assert delivered[3:7] == [1, 20, 20, ""]
    assert sum(delivered[7]["to"].values()) == 20


def test_leases(world: Watched, client: Client) -> None:
    fill(client, 6)
    world.events()
    queue, answers = world.queue("q"), list[object]()
    open_lease(queue, "job", None, answers.append)
    take_lease(queue, "job", 2, 1 << 20, answers.append)
    take_lease(queue, "job", 2, 1 << 20, answers.append)
    world.turn()
    (delivered,) = world.events()
    assert delivered[:1] + delivered[3:7] == ["delivered", 1, 4, 4, "lease job"]
    ack_lease(queue, "job", 3, answers.append)
    release_lease(queue, "job", answers.append)
    world.turn()
    assert world.spans() == [("requeued", 4, 4), ("acked", 1, 3)]


def test_purged(world: Watched, client: Client) -> None:
    fill(client, 3)
    world.events()
    client.send(m.QueuePurge(queue="q"))
    (event,) = world.events()
    assert event[0] == "dropped" and event[3:5] == [1, 3] and event[7]["reason"] == "purged"


@pytest.mark.parametrize(
    ("definition", "kind", "reason"),
    [({"message-ttl": 10}, "expired", "expired"), ({"max-length": 1}, "dropped", "maxlen")],
)
def test_those_that_leave_by_themselves_are_not_taken_for_acked(
    definition: dict[str, Json], kind: str, reason: str
) -> None:
    world = Watched(more=definition)
    client = world.client()
    client.declare("q", durable=True)
    fill(client, 3)
    world.broker.wall_ms += 11
    world.broker.on_time()
    world.turn()
    events = [event for event in world.events() if event[0] != "published"]
    last = 3 if kind == "expired" else 2
    assert {(event[0], event[7]["reason"]) for event in events} == {(kind, reason)}
    assert [at for event in events for at in range(event[3], event[4] + 1)] == list(range(1, last + 1))


def test_dead_letters(world: Watched, client: Client) -> None:
    client.declare("q-dead", durable=True)
    letters = table_from_python({"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q-dead"})
    client.declare("q-mortal", durable=True, arguments=letters)
    fill(client, 1, "q-mortal")
    world.events()
    client.send(m.BasicReject(delivery_tag=get(client, "q-mortal"), requeue=False))
    events = world.events()
    published = next(event for event in events if event[0] == "published")
    left = next(event for event in events if event[0] == "dead-lettered")
    assert published[2] == "q-dead" and published[6] == "dead letters"
    assert left[2] == "q-mortal" and left[7]["reason"] == "rejected"
    assert not any(event[0] in ("acked", "rejected") for event in events)


def test_what_is_turned_away(world: Watched, client: Client) -> None:
    world.policy("full", {"max-length": 1, "overflow": "reject-publish"})
    fill(client, 2)
    refused = [event for event in world.events() if event[0] == "refused"]
    assert [event[3:7] for event in refused] == [[0, 0, 1, WHO]]


def test_streams(world: Watched, client: Client) -> None:
    client.declare("qs", durable=True, arguments=table_from_python({"x-queue-type": "stream"}))
    fill(client, 2, "qs")
    world.events()
    arguments = table_from_python({"x-stream-offset": "first"})
    client.send(m.BasicQos(prefetch_count=10), m.BasicConsume(queue="qs", consumer_tag="r", arguments=arguments))
    client.send(m.BasicAck(delivery_tag=2, multiple=True))
    assert world.spans() == [("delivered", 1, 2)]  # An acknowledgement takes nothing out of it.


# -- Whose beginning and end are told ------------------------------------------------------------------------------


def test_a_queue_that_is_watched_from_now_on(client: Client, world: Watched) -> None:
    world.policy("off")
    fill(client, 4)
    assert world.events() == [] and world.queue("q").extension(QueueJournal) is None
    world.policy("full")
    fill(client, 1)
    world.journal.gather()
    began = [json.loads(event) for event in world.journal.told if json.loads(event)[:3] == ["started", "/", "q"]]
    assert [event[3:6] for event in began] == [[1, 4, 4]]
    world.policy("off")
    (ended,) = [event for event in world.events() if event[0] == "stopped"]
    assert ended[7]["reason"] == "off" and ended[5] == 5
    fill(client, 1)
    assert world.events() == []


@pytest.mark.usefixtures("client")
def test_a_node_says_when_it_begins_and_when_nobody_asks_any_more(world: Watched) -> None:
    journal = world.journal
    world.policy("off")
    journal.tell("partition", "b", state="lost")
    assert [json.loads(event)[0] for event in journal.told] == ["started", "stopped"]
    journal.tick()
    assert (STREAM not in world.broker.vhosts["/"].queues) and not journal.told
    world.policy("full")
    assert world.broker.journal is journal and [json.loads(event)[0] for event in journal.told] == ["started"]


def test_a_deleted_queue_says_what_went_with_it(world: Watched, client: Client) -> None:
    fill(client, 3)
    world.events()
    client.send(m.QueueDelete(queue="q"))
    (ended,) = world.events()
    assert (ended[0], ended[5], ended[7]["reason"]) == ("stopped", 3, "deleted")


def test_where_nobody_asks_there_is_nothing() -> None:
    world = World()
    client = world.client()
    client.declare("q", durable=True)
    fill(client, 1)
    assert world.broker.journal is None and world.queue("q").extension(QueueJournal) is None


def test_the_configuration_asks_for_all_queues_but_those_whose_policy_says_no() -> None:
    world = World()
    world.broker.journaling = Options("full", 1 << 20)
    world.apply(c.SetPolicy("/", "p", "^quiet", "all", 0, {"journal": "off"}))
    client = world.client()
    client.declare("loud", durable=True)
    client.declare("quiet", durable=True)
    assert world.queue("loud").extension(QueueJournal) is not None
    assert world.queue("quiet").extension(QueueJournal) is None


# -- Samples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 10_000, 333_333, 500_000, 999_999])
def test_samples_are_as_large_as_they_should_be_and_do_not_depend_on_ranges(parts: int) -> None:
    last = SAMPLE * 2_000_000 - 1 if parts == 1 else SAMPLE * 10_000 - 1
    whole = sampled(parts, 7, 0, last)
    count = sum(high - low + 1 for low, high in whole)
    assert abs(count - (last + 1) * parts / 1_000_000) <= SAMPLE
    one_by_one = [at for at in range(5_000, 7_000) if sampled(parts, 7, at, at)]
    assert one_by_one == [at for low, high in sampled(parts, 7, 5_000, 6_999) for at in range(low, high + 1)]


def test_a_sample_is_told_of_and_the_rest_is_not() -> None:
    world = Watched("0.5")
    client = world.client()
    client.declare("q", durable=True)
    client.feed(b"".join(_publish("q") for _ in range(SAMPLE * 10)))
    world.turn()
    told = [event for event in world.events() if event[0] == "published"]
    assert sum(event[5] for event in told) in range(SAMPLE * 4, SAMPLE * 6 + 1) and len(told) >= 4


# -- Where it is kept ----------------------------------------------------------------------------------------------


def test_the_stream_is_declared_and_filled(world: Watched, client: Client) -> None:
    fill(client, 2)
    world.journal.write()
    world.journal.tick()
    stream = world.stream(STREAM)
    assert stream.extension(QueueJournal) is None and stream.spec.view is None
    assert stream.retention.max_bytes == 256 << 20
    world.broker.wall_ms = 77
    assert world.journal.write() is stream and stream.open is not None
    (content,) = stream.open.contents
    size = body_size(content, HEADER_AT)
    assert size < len(content)
    message = json.loads(content[-1 - size : -1])
    assert (message["node"], message["ms"]) == ("node", 77)
    assert [event[0] for event in message["events"]] == ["started", "started", "published", "confirmed"]
    before = stream.next_seq
    world.broker.unlogged[stream] = None
    world.turn()
    assert world.journal.write() is stream and stream.next_seq == before  # It does not tell of itself.


def test_what_has_to_wait_for_the_stream_says_when_it_was(world: Watched, client: Client) -> None:
    for ms in (1_000, 1_500):
        world.broker.wall_ms = ms
        fill(client, 1)
        assert world.journal.write() is None
    world.broker.wall_ms = 2_000
    world.journal.tick()
    world.journal.write()
    stream = world.stream(STREAM)
    assert stream.open is not None
    text = b"".join(stream.open.contents).decode("utf-8", "replace")
    assert text.count('"ms":1000') == text.count('"ms":1500') == 2  # Published, and confirmed.


def test_what_waits_gets_a_commit_within_a_second(world: Watched, client: Client) -> None:
    world.journal.tick()
    world.turn()
    client.publish("q")
    assert world.stream(STREAM) not in world.broker.unlogged
    world.journal.tick()
    assert world.stream(STREAM) in world.broker.unlogged


@pytest.mark.usefixtures("client")
def test_without_a_stream_a_limit_holds_and_the_rest_is_counted(world: Watched) -> None:
    text = "x" * 1000
    for _ in range((WAITING_BYTES_MAX + 4 * MESSAGE_BYTES) // len(text)):
        world.journal.tell("partition", text)
    held = sum(map(len, world.journal.bodies))
    assert WAITING_BYTES_MAX <= held < WAITING_BYTES_MAX + 2 * MESSAGE_BYTES and world.journal.left_out > 0
    world.journal.tick()
    world.journal.write()
    stream = world.stream(STREAM)
    assert stream.open is not None and b'["left-out",' in stream.open.contents[-1]


@pytest.mark.usefixtures("client")
def test_a_name_that_is_taken_is_noted_once(world: Watched) -> None:
    world.apply(c.DeclareQueue("/", STREAM, durable=True, node="node"))
    for _ in range(3):
        world.journal.tick()
    assert [text for _, level, text in world.notes if level == "warning"] == [
        f"The journal that a policy asks for cannot be kept: queue '{STREAM}' is something else"
    ]


# -- How often -----------------------------------------------------------------------------------------------------


class Files:
    """A log that takes blocks and writes none."""

    mirrors = None

    def __init__(self) -> None:
        self.blocks: list[Block] = []

    def append(self, block: Block) -> None:
        self.blocks.append(block)

    def take(self) -> None:
        return None


def storage(files: Files) -> Storage:
    shell = SimpleNamespace(loop=SimpleNamespace(time=float), disk=None, worker=str, wall_ms=lambda: 5)
    return Storage(cast(Any, shell), cast(Any, files), *[lambda *_: None] * 5)


def test_the_journal_comes_first_in_a_commit(world: Watched, client: Client) -> None:
    """A commit that is cut short may undo what the journal tells, and never has changes that it does not tell of."""
    world.journal.tick()
    world.turn()
    stream, queue, files = world.stream(STREAM), world.queue("q"), Files()
    disk = storage(files)
    client.feed(_publish("q"))
    world.broker.pump()
    world.broker.unlogged[stream] = None  # It has changed by itself, too.
    disk.commit(world.broker, lambda: None)
    assert [block.queue for block in files.blocks] == [stream.spec.id, queue.spec.id]
    assert files.blocks[0].enqueued is not None and b'["published",' in files.blocks[0].enqueued.contents[0]
    disk.commit(world.broker, lambda: None)
    assert len(files.blocks) == 2


def test_a_busy_node_writes_it_now_and_then(world: Watched, client: Client) -> None:
    world.journal.tick()
    world.turn()
    stream, files, broker = world.stream(STREAM).spec.id, Files(), world.broker
    disk, told = storage(files), []
    for _ in range(3 * WRITE_MS):
        broker.wall_ms += 1
        for _ in range(3):
            client.feed(_publish("q"))
            broker.pump()
            disk.commit(broker, lambda: None)
    told = [block.enqueued for block in files.blocks if block.queue == stream]
    assert len(told) == 3 and len(files.blocks) == 3 * 3 * WRITE_MS + 3
    # One at once, and then one for all that happened in as many milliseconds as have no time of their own.
    several = -(-WRITE_MS // (GATHER_MS + 1))
    assert [run and run.contents[0].count(b'["published",') for run in told] == [1, several, several]
    broker.wall_ms -= 1_000  # Somebody has set the clock.
    client.feed(_publish("q"))
    broker.pump()
    disk.commit(broker, lambda: None)
    assert files.blocks[-2].queue == stream


def test_an_event_that_waited_says_when_it_was(world: Watched, client: Client) -> None:
    world.broker.wall_ms = 1_000
    fill(client, 1)
    world.broker.wall_ms += GATHER_MS
    fill(client, 1)
    world.broker.wall_ms += 1
    fill(client, 1)
    events = [event for event in world.events() if event[0] == "published"]
    assert [(event[3], event[4], event[7].get("ms")) for event in events] == [(1, 2, 1_000), (3, 3, None)]
    client.send(m.BasicConsume(queue="q", consumer_tag="me"))
    world.broker.wall_ms += 700
    (delivered,) = world.events()
    assert delivered[7]["ms"] == 1_000 + GATHER_MS + 1


# -- What a crash leaves -------------------------------------------------------------------------------------------


def mark_of(world: Watched) -> bytes:
    return world.queue("q").durable_state.table.get(MARK, b"")


def whom(mark: bytes, through: int) -> list[tuple[int, int, str, str]]:
    return [(run.first, run.last, run.who, run.details(run.first, run.last)) for run in recovered(mark, through)]


def test_a_publisher_alone_needs_one_mark(world: Watched, client: Client) -> None:
    fill(client, 1)
    mark = mark_of(world)
    for _ in range(3):
        fill(client, 5)
        world.events()
    assert mark_of(world) == mark and not world.queue("q").durable_state.changes
    assert whom(mark, 16) == [(1, 16, WHO, ',"said":[1,16]')]
    assert whom(mark, 0) == []  # Cut off, and the mark's block not.


def test_publishers_in_turn_are_told_apart(world: Watched, client: Client) -> None:
    other, silent = world.client(), world.client()
    assert other.call(m.ConfirmSelect()) == m.ConfirmSelectOk()
    fill(client, 2)
    fill(silent, 3)
    fill(silent, 1)
    fill(other, 4)
    client.publish("q")  # It does not outlive the node.
    fill(client, 2)
    (me, they) = (next(iter(one.connection.channels.values())).who for one in (client, other))
    expected = [(1, 2, me, ',"said":[1,2]'), (7, 10, they, ',"said":[1,4]'), (12, 13, me, ',"said":[4,5]')]
    assert whom(mark_of(world), 13) == expected
    world.journal.tick()
    world.events()  # Written; what goes on is all that is needed from now on.
    fill(other, 1)
    assert whom(mark_of(world), 14) == [expected[-1], (14, 14, they, ',"said":[5,5]')]


def test_too_many_in_turn_have_the_journal_written(world: Watched, client: Client) -> None:
    other = world.client()
    assert other.call(m.ConfirmSelect()) == m.ConfirmSelectOk()
    world.journal.tick()
    world.journal.write()
    assert not world.journal.is_ready
    for _ in range(ENTRIES_MAX // 2):
        assert not world.journal.is_ready
        fill(client, 1)
        fill(other, 1)
    fill(client, 1)
    assert world.journal.is_ready and len(recovered(mark_of(world), 1_000)) == ENTRIES_MAX


def test_what_the_log_knows_is_told_again() -> None:
    """Of a queue from before the start, with what its log and its mark say."""
    world = Watched()
    client = world.client()
    client.declare("q", durable=True)
    assert client.call(m.ConfirmSelect()) == m.ConfirmSelectOk()
    fill(client, 4)
    mark = mark_of(world)

    again = Watched("off")
    client = again.client()
    client.declare("q", durable=True)
    queue = again.queue("q")
    queue.restore(1, 2, 5, 3, 4, 2, 2)
    queue.restore_state({MARK: mark})
    again.settled[queue.spec.id] = [(1, 2), (9, 9)]
    again.policy("full")
    fill(client, 1)
    about = {"id": queue.spec.id, "epoch": 2}
    assert again.events() == [
        ["recovered", "/", "q", 1, 4, 4, WHO, {**about, "said": [1, 4], "what": "published"}],
        ["recovered", "/", "q", 1, 2, 2, "", {**about, "what": "settled"}],
        ["published", "/", "q", 5, 5, 1, WHO, about],
    ]
    assert recovered(mark_of(again), 5) == []  # What comes now comes from nobody who waits.


def test_a_queue_that_nobody_touches_is_told_of_after_a_start(world: Watched, client: Client) -> None:
    world.settled[world.queue("q").spec.id] = [(1, 2)]
    world.queue("q").next_seq = 3
    assert client.take() == []
    assert [(event[0], event[4], event[7]["what"]) for event in world.events()] == [("recovered", 2, "settled")]


def test_a_journal_that_ends_leaves_no_mark(world: Watched, client: Client) -> None:
    fill(client, 1)
    world.policy("off")
    world.turn()
    assert mark_of(world) == b""


# -- What clients may do with it -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        m.QueueDeclare(queue=STREAM, durable=True),
        m.QueueDelete(queue=STREAM),
        m.QueueBind(queue=STREAM, exchange="amq.fanout"),
    ],
)
def test_clients_can_only_read_it(world: Watched, client: Client, method: m.Method) -> None:
    world.journal.tick()
    client.send(method)
    (reply,) = client.take()
    assert isinstance(reply.method, m.ChannelClose) and reply.method.reply_code == 403
    assert reply.method.reply_text == (
        f"ACCESS_REFUSED - queue '{STREAM}' in vhost '/' is a journal of the broker, which can only be read"
    )


def test_nobody_publishes_to_it(world: Watched, client: Client) -> None:
    world.journal.tick()
    count = world.stream(STREAM).next_seq
    client.publish(STREAM)
    client.take()
    assert world.stream(STREAM).next_seq == count
    assert client.call(m.QueueDeclare(queue=STREAM, passive=True)).name == "queue.declare_ok"


# -- Other nodes ---------------------------------------------------------------------------------------------------


def told(rings: Rings, name: str) -> list[list[Any]]:
    journal = rings[name].broker.journal
    assert journal is not None
    journal.gather()
    journal.touched = {}
    events = [json.loads(event) for event in journal.told]
    journal.told = []
    return events


@pytest.fixture
def rings() -> Rings:
    rings = Rings()
    rings.apply(c.SetPolicy("/", "p", "^q", "all", 0, {"journal": "full"}))
    for name in NAMES:
        told(rings, name)
    return rings


def test_copies_tell_what_they_got_and_what_was_settled(rings: Rings) -> None:
    client = rings["a"].client()
    client.publish("q", delivery_mode=2)
    rings.run()
    number = rings.number
    for name in "bc":
        events = [event for event in told(rings, name) if event[0] == "replicated"]
        assert [(event[3:7], event[7]["id"], event[7]["what"]) for event in events] == [
            ([1, 1, 1, "a"], number, "published")
        ]
    client.send(m.BasicGet(queue="q", no_ack=True))
    rings.run()
    for name in "bc":
        assert [event[7]["what"] for event in told(rings, name) if event[0] == "replicated"] == ["settled"]


def test_publishes_from_elsewhere_can_be_joined(rings: Rings) -> None:
    client = rings["b"].client()
    assert client.call(m.ConfirmSelect()) == m.ConfirmSelectOk()
    client.publish("q", delivery_mode=2)
    rings.run()
    (routed,) = [event for event in told(rings, "b") if event[0] == "routed"]
    (published,) = [event for event in told(rings, "a") if event[0] == "published"]
    assert routed[6] == WHO and routed[7]["to"] == "a" and routed[7]["said"] == [1, 1] and routed[7]["place"] == 0
    assert published[3:7] == [1, 1, 1, "b"] and published[7]["said"] == [routed[7]["token"]] * 2
    assert [event[7]["numbers"] for event in (published, routed)] == [[1, 1], [1, 1]]
    assert published[7]["producer"] == routed[7]["producer"]


def test_numbers_go_on_over_links_and_say_what_is_safe(rings: Rings) -> None:
    """Tokens begin with 1 for each link, and numbers of a producer do not."""
    client = rings["b"].client()
    assert client.call(m.ConfirmSelect()) == m.ConfirmSelectOk()
    client.publish("q", delivery_mode=2)
    rings.run()
    rings.close("a", "b")
    rings.join("a", "b")
    rings.run()
    client.publish("q", delivery_mode=2)
    client.publish("q", delivery_mode=2)
    rings.run()
    at_b, at_a = told(rings, "b"), told(rings, "a")
    sent = [(event[7]["token"], event[7]["numbers"]) for event in at_b if event[0] == "routed"]
    assert [token for token, _ in sent][:2] == [1, 1] and [low for _, (low, _) in sent] == [1, 2, 3][: len(sent)]
    given = [(event[3:5], event[7]["numbers"]) for event in at_a if event[0] == "published"]
    assert all(range_ == numbers for range_, numbers in given) and given[-1][0][1] == 3
    safe = [event[7]["numbers"] for event in at_b if event[0] == "safe"]
    assert safe == [[1, 3]]
    assert len({event[7]["producer"] for event in (*at_a, *at_b) if "producer" in event[7]}) == 1


def test_a_mark_keeps_the_numbers_of_another_node() -> None:
    run = Run(7, 9, 0, "b", False)
    run.published_first = run.published_last = 4
    run.numbers = Numbers(b"node 1", 17, 19)
    alone = Run(10, 10, 0, "b", False)
    alone.published_first, alone.is_counted = 5, True
    alone.numbers = Numbers(b"node 1", 20, 20)
    mark = run.entry() + alone.entry()
    about = ',"producer":"node 1","numbers":'
    assert whom(mark, 12) == [
        (7, 9, "b", f'{about}[17,19],"said":[4,4]'),
        (10, 12, "b", f'{about}[20,22],"said":[5,7]'),  # It grew, one message in a bundle.
    ]


def test_what_is_there_in_part_says_which_part() -> None:
    """Of numbers 5 to 9 that a node sends again, the queue has 5 and 6."""
    world = Watched()
    world.client().declare("q", durable=True)
    queue, confirms = world.queue("q"), Confirms(lambda: None, "b", is_of_link=True)

    def send(first: int, count: int) -> None:
        pending = confirms.begin_bundle(Numbers(b"node 1", first, first + count - 1))
        header = _publish("q")
        queue.enqueue_from(Origin(b"node 1", first, 0), [header] * count, [b"\0\1q"] * count, 1, 10 * count, pending)

    send(1, 6)
    send(5, 5)
    told = [event for event in world.events() if event[0] == "published"]
    assert [(event[3:5], event[7]["numbers"]) for event in told] == [([1, 6], [1, 6]), ([7, 9], [7, 9])]


def test_a_promotion_says_who_leads_now_and_up_to_where_numbers_hold(rings: Rings) -> None:
    client = rings["a"].client()
    client.publish("q", delivery_mode=2)
    rings.run()
    rings.hand_over("b")
    events = told(rings, "b")
    (promoted,) = [event for event in events if event[0] == "promoted"]
    assert promoted[3:7] == [1, 1, 1, "a"] and promoted[7]["epoch"] == 2 and promoted[7]["forced"] is False
    assert [event[6] for event in events if event[0] == "view"] == ["b"]
    (ended,) = [event for event in told(rings, "a") if event[0] == "stopped"]
    assert ended[7]["reason"] == "elsewhere"


def test_lost_links_are_told(rings: Rings) -> None:
    rings.lose("c")
    assert [event[6:] for event in told(rings, "a") if event[0] == "partition"] == [["c", {"state": "lost"}]]
