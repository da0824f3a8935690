"""Changes of metadata on several channels at once: each channel keeps its order, and none waits for another."""

from __future__ import annotations

import random

import pytest

from leveret.protocol import methods as m
from leveret.protocol.frames import METHOD, frame
from leveret.sessions.amqp.change_backlog import BYTES_MAX, ChangeBacklog
from tests.support.machines import Client, Reply, World, publish


def test_methods_are_put_off_by_channel() -> None:
    backlog = ChangeBacklog()
    assert not backlog and backlog.take(1) is None
    for number, payload in ((1, b"a"), (2, b"x"), (1, b"bc")):
        backlog.put(number, payload)
    assert [backlog.take(1), backlog.take(1), backlog.take(1)] == [b"a", b"bc", None]
    assert backlog and not backlog.is_full
    backlog.put(1, bytes(BYTES_MAX))
    assert backlog.is_full
    backlog.take(1)
    assert not backlog.is_full
    backlog.clear()
    assert not backlog


def test_what_comes_while_metadata_changes_is_done_in_order_afterwards() -> None:
    world = World()
    client = world.client()
    released: list[int] = []
    client.connection.on_released = lambda: released.append(1)
    world.holds_metadata = True
    client.feed(m.encode(1, m.QueueDeclare(queue="q")) + publish(1, "", "q", b"abc", mandatory=True))
    client.feed(m.encode(1, m.QueueDeclare(queue="q", passive=True)))
    world.turn()
    assert client.take() == [] and client.connection.held
    world.release_metadata()
    world.turn()
    assert client.methods() == [m.QueueDeclareOk("q", 0, 0), m.QueueDeclareOk("q", 1, 0)]
    assert not client.connection.held and released


def test_channels_change_metadata_at_the_same_time() -> None:
    """What they want is there together, to be agreed on together."""
    world = World()
    client = world.client(channels=(1, 2, 3))
    client.declare("there")
    world.holds_metadata = True
    for number in (1, 2):
        client.send(m.QueueDeclare(queue=f"q{number}"), channel=number)
        client.send(m.QueueBind(queue=f"q{number}", exchange="amq.fanout"), channel=number)
    assert client.take() == [] and len(world.proposals) == 2
    assert client.call(m.QueueDeclare(queue="there"), channel=3) == m.QueueDeclareOk("there", 0, 0)
    assert not client.connection.held
    world.release_metadata()
    world.turn()
    declared = [(number, m.QueueDeclareOk(f"q{number}", 0, 0)) for number in (1, 2)]
    replies = [(reply.channel, reply.method) for reply in client.take()]
    assert sorted(replies[:3:2]) == declared and [replies[1][1], replies[3][1]] == [m.QueueBindOk()] * 2


@pytest.mark.parametrize("other", [m.BasicGet(queue="q", no_ack=True), m.QueuePurge(queue="q"), m.BasicQos()])
def test_whatever_else_comes_on_any_channel_sees_all_of_it_done(other: m.Method) -> None:
    world = World()
    client = world.client(channels=(1, 2))
    world.holds_metadata = True
    client.feed(m.encode(1, m.QueueDeclare(queue="q")) + m.encode(2, other))
    client.feed(m.encode(2, m.QueueDeclare(queue="r")))
    world.turn()
    assert client.take() == [] and client.connection.held and len(world.proposals) == 1
    world.release_metadata()
    world.turn()
    first, answer, last = client.take()
    assert (first.channel, first.method) == (1, m.QueueDeclareOk("q", 0, 0)) and answer.channel == 2
    assert last.method == m.QueueDeclareOk("r", 0, 0) and not client.connection.held


def test_a_repeated_publish_waits_too() -> None:
    """It is known by its bytes alone, and must not overtake the operation."""
    world = World()
    client = world.client()
    client.declare("q")
    for _ in range(3):
        client.publish("q", b"abc")
    world.holds_metadata = True
    client.feed(m.encode(1, m.QueueDelete(queue="q")) + publish(1, "", "q", b"abc"))
    client.feed(publish(1, "", "q", b"abc"))
    world.turn()
    assert world.queue("q").ready_count == 3
    world.release_metadata()
    world.turn()
    assert client.methods() == [m.QueueDeleteOk(3)]


def test_the_close_of_the_connection_comes_after_all_that_was_sent_before() -> None:
    world = World()
    client = world.client(channels=(1, 2))
    world.holds_metadata = True
    client.feed(m.encode(1, m.QueueDeclare(queue="q")) + m.encode(2, m.QueueDeclare(queue="r")))
    client.feed(m.encode(1, m.QueueBind(queue="q", exchange="amq.fanout")))
    client.feed(m.encode(0, m.ConnectionClose(200, "", 0, 0)) + m.encode(1, m.QueueDeclare(queue="never")))
    world.turn()
    assert client.take() == [] and client.connection.held
    world.release_metadata()
    world.turn()
    methods = client.methods()
    assert m.QueueBindOk() in methods[1:3] and methods[3:] == [m.ConnectionCloseOk()]
    assert client.connection.closed
    assert sorted(name for _, name in world.metadata.queues) == ["q", "r"]


def test_a_fault_in_what_was_put_off_closes_the_connection() -> None:
    world = World()
    client = world.client(channels=(1, 2))
    world.holds_metadata = True
    bad = m.ExchangeDeclare(exchange="x", type="no such type")
    client.send(m.QueueDeclare(queue="q"), bad, m.QueueDeclare(queue="never"))
    client.send(m.QueueDeclare(queue="r"), m.QueueDeclare(queue="never"), channel=2)
    world.apply(*world.proposals.pop(0))
    world.turn()
    names = [type(method).__name__ for method in client.methods()]
    assert names == ["QueueDeclareOk", "ConnectionClose"]
    client.send(m.ConnectionCloseOk(), channel=0)  # Though the other channel's declaration is still under way.
    assert client.connection.closed
    world.release_metadata()
    world.turn()
    assert sorted(name for _, name in world.metadata.queues) == ["q", "r"]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (m.encode(3, m.QueueDeclare(queue="never")), 504),  # That channel is not open.
        (m.encode(2, m.ExchangeDeclare(exchange="never", type="no such type")), 503),
        (frame(METHOD, 2, m.encode(2, m.QueueDeclare(queue="never"))[7:-3]), 501),
    ],
    ids=["no such channel", "no such type", "cut off"],
)
def test_a_fault_that_ends_the_connection_comes_after_all_that_was_sent_before(bad: bytes, code: int) -> None:
    world = World()
    client = world.client(channels=(1, 2))
    world.holds_metadata = True
    client.send(m.QueueDeclare(queue="q"), m.QueueBind(queue="q", exchange="amq.fanout"))
    client.feed(bad + m.encode(1, m.QueueDeclare(queue="never")))
    world.turn()
    assert client.take() == [] and client.connection.held
    world.release_metadata()
    world.turn()
    declared, bound, close = client.methods()
    assert (declared, bound) == (m.QueueDeclareOk("q", 0, 0), m.QueueBindOk())
    assert isinstance(close, m.ConnectionClose) and close.reply_code == code
    assert [name for _, name in world.metadata.queues] == ["q"]


def test_a_fault_of_a_channel_costs_that_channel_only() -> None:
    world = World()
    client = world.client(channels=(1, 2))
    world.holds_metadata = True
    missing = m.QueueBind(queue="missing", exchange="amq.direct")
    client.send(m.QueueDeclare(queue="q"), missing, m.QueueDeclare(queue="never"))
    client.send(m.QueueDeclare(queue="r"), m.QueueDeclare(queue="s"), channel=2)
    world.release_metadata()
    world.turn()
    said = sorted((reply.channel, type(reply.method).__name__) for reply in client.take())
    assert said == [(1, "ChannelClose"), (1, "QueueDeclareOk"), (2, "QueueDeclareOk"), (2, "QueueDeclareOk")]
    client.send(m.ChannelCloseOk())
    assert client.call(m.ChannelOpen()) == m.ChannelOpenOk()
    assert "never" not in {name for _, name in world.metadata.queues}


def test_where_changes_are_in_force_at_once_all_frames_are_processed_in_order() -> None:
    """Nothing is under way then, so nothing is put off."""
    world = World()
    client = world.client(channels=(1, 2))
    client.feed(
        m.encode(1, m.QueueDeclare(queue="q"))
        + m.encode(1, m.ExchangeDeclare(exchange="e", nowait=True))
        + m.encode(2, m.QueueBind(queue="q", exchange="e"))
        + m.encode(1, m.ExchangeDelete(exchange="e"))
    )
    world.turn()
    replies = [(reply.channel, reply.method) for reply in client.take()]
    assert replies == [(1, m.QueueDeclareOk("q", 0, 0)), (2, m.QueueBindOk()), (1, m.ExchangeDeleteOk())]


def test_a_channel_that_is_closed_and_opened_again_behind_what_waits() -> None:
    world = World()
    client = world.client()
    world.holds_metadata = True
    waiting = [m.QueueDeclare(queue="q"), m.ChannelClose(200, "", 0, 0), m.ChannelOpen(), m.QueueDeclare(queue="r")]
    client.send(*waiting)
    world.release_metadata()
    world.turn()
    assert client.methods() == [
        m.QueueDeclareOk("q", 0, 0),
        m.ChannelCloseOk(),
        m.ChannelOpenOk(),
        m.QueueDeclareOk("r", 0, 0),
    ]


def test_what_is_put_off_is_bounded() -> None:
    world = World()
    client = world.client(channels=(1, 2))
    released: list[int] = []
    client.connection.on_released = lambda: released.append(1)
    world.holds_metadata = True
    client.send(m.QueueDeclare(queue="q"))
    sent = 0
    while not client.connection.held:
        client.feed(m.encode(1, m.QueueBind(queue="q", exchange="amq.direct", routing_key="k" * 200)))
        sent += 1
        assert sent * 200 < 2 * BYTES_MAX
    client.send(m.QueueDeclare(queue="r"), channel=2)  # Comes behind it: the connection is not read.
    assert client.take() == [] and len(world.proposals) == 1 and not released
    world.release_metadata()
    world.turn()
    methods = client.methods()
    assert methods.count(m.QueueBindOk()) == sent and m.QueueDeclareOk("r", 0, 0) in methods
    assert released and not client.connection.held and not client.connection.backlog


def test_an_alarm_stops_publishes_and_nothing_before() -> None:
    world = World()
    client = world.client(channels=(1, 2))
    world.holds_metadata = True
    world.broker.alarm = "low on memory"
    client.feed(m.encode(1, m.QueueDeclare(queue="q")) + m.encode(2, m.QueueDeclare(queue="r")))
    client.feed(m.encode(1, m.QueueDeclare(queue="s")) + publish(1, "", "q", b"one"))
    client.feed(m.encode(1, m.QueueDeclare(queue="q", passive=True)))
    world.turn()
    assert len(world.proposals) == 2
    world.release_metadata()
    world.turn()
    methods = client.methods()
    assert len(methods) == 4 and methods[-1] == m.ConnectionBlocked("low on memory")
    assert client.connection.blocked and client.connection.held and world.queue("q").ready_count == 0
    world.broker.alarm = None
    client.connection.unblock()
    world.turn()
    assert client.methods() == [m.ConnectionUnblocked(), m.QueueDeclareOk("q", 1, 0)]
    assert not client.connection.held


def test_a_backlog_of_one_channel_is_worked_off_one_operation_at_a_time() -> None:
    world = World()
    client = world.client()
    world.holds_metadata = True
    client.send(*(m.QueueDeclare(queue=f"q{number}") for number in range(50)))
    for number in range(50):
        ((command, then),) = world.proposals
        world.proposals.clear()
        world.apply(command, then)
        world.turn()
        assert client.methods() == [m.QueueDeclareOk(f"q{number}", 0, 0)]
    assert not world.proposals and not client.connection.backlog


# -- Any order of frames and answers --------------------------------------------------------------------------------


def bind(name: str) -> m.Method:
    return m.QueueBind(queue=name, exchange="amq.direct", routing_key=name)


def script(draw: random.Random, number: int) -> list[bytes]:
    """Frames of one channel, which uses names of its own."""
    frames: list[bytes] = []
    for step in range(draw.randrange(4, 12)):
        name = f"{number}.{draw.randrange(2)}"
        body = bytes([65 + step]) * draw.choice([0, 1, 300])
        frames += draw.choice(
            [
                [m.encode(number, m.QueueDeclare(queue=name))],
                [m.encode(number, m.QueueDeclare(queue=name)), m.encode(number, bind(name))],
                [m.encode(number, m.QueueDelete(queue=name))],
                [publish(number, "", name, body, draw.choice([131_072, 108]))],
                [publish(number, "", name, body)] * 3,
                [m.encode(number, m.QueueDeclare(queue=name)), m.encode(number, m.BasicGet(queue=name, no_ack=True))],
            ]
        )
    return frames


def answers(replies: list[Reply]) -> dict[int, list[str]]:
    by_channel: dict[int, list[str]] = {}
    for reply in replies:
        by_channel.setdefault(reply.channel, []).append(str(reply))
    return by_channel


def pieces(data: bytes, draw: random.Random) -> list[bytes]:
    cuts = sorted(draw.randrange(len(data)) for _ in range(draw.randrange(12)))
    return [data[at:end] for at, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@pytest.mark.parametrize("seed", range(150))
def test_every_channel_sees_its_own_order(seed: int) -> None:
    """However frames are mixed and cut, and whenever operations end: as if each channel were alone."""
    draw = random.Random(seed)
    numbers = range(1, draw.randrange(2, 6))
    scripts = {number: script(draw, number) for number in numbers}
    expected: dict[int, list[str]] = {}
    for frames in scripts.values():
        world = World()
        alone = world.client(channels=tuple(numbers))
        for one in frames:
            alone.feed(one)
            world.turn()
        expected |= answers(alone.take())

    world = World()
    client: Client = world.client(channels=tuple(numbers))
    left = {number: list(frames) for number, frames in scripts.items()}
    mixed: list[bytes] = []
    while any(left.values()):
        mixed.append(left[draw.choice([number for number in numbers if left[number]])].pop(0))
    world.holds_metadata = True
    for piece in pieces(b"".join(mixed), draw):
        client.feed(piece)
        while world.proposals and draw.random() < 0.5:
            world.apply(*world.proposals.pop(0))
        world.turn()
    for _ in range(1_000):
        if not world.proposals:
            break
        world.apply(*world.proposals.pop(0))
        world.turn()
    assert answers(client.take()) == expected
    assert not client.connection.backlog and not client.connection.waiting and client.connection.rest == b""
