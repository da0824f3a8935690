"""Queues as data, over HTTP, from a real broker."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pika
import pytest

import leveret.testing
from leveret.data import client as data_client
from leveret.data.client import DataClient, DataError, Refused, Unreachable
from leveret.data.sheet import REDELIVERED
from leveret.management.bulk_data import DataHandlers
from leveret.node.stats.range_reads import RangeReads
from leveret.node.system import time_slices
from tests.support.servers import until

PERSISTENT = pika.BasicProperties(delivery_mode=2)
TRANSIENT = pika.BasicProperties(delivery_mode=1)


@pytest.fixture(scope="module")
def node() -> Iterator[leveret.testing.Broker]:
    with leveret.testing.broker(config="management_port = 0\nmanagement.http.max_body_size = 1000") as node:
        yield node


@pytest.fixture
def channel(node: leveret.testing.Broker) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.URLParameters(node.url))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


@pytest.fixture
def client(node: leveret.testing.Broker) -> Iterator[DataClient]:
    with DataClient(f"127.0.0.1:{node.ports['management']}", patience_s=0.2) as client:
        yield client


def publish(channel: Any, queue: str, bodies: list[bytes], properties: pika.BasicProperties = PERSISTENT) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, properties)


def bodies(
    client: DataClient, queue: str, first: int = 0, last: int | None = None, bytes_max: int = 1 << 20
) -> dict[int, bytes]:
    return {one.number: one.body for sheet in client.read(queue, first, last, bytes_max) for one in sheet}


def ask(
    node: leveret.testing.Broker, method: str, path: str, body: bytes | None = None, user: str = "guest:guest"
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["management"], timeout=60)
    headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()}
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, json.loads(data) if response.getheader(
        "content-type"
    ) == "application/json" and data else data


# -- Reading


def test_what_a_queue_holds(channel: Any, client: DataClient) -> None:
    channel.queue_declare("held", durable=True)
    publish(channel, "held", [b"%d" % number for number in range(1, 11)])
    [info] = client.queues(["held"])
    assert (info.name, info.type, info.durable, info.first, info.next, info.messages) == (
        "held",
        "classic",
        True,
        1,
        11,
        10,
    )
    assert [(member.node, member.in_sync) for member in info.members] == [("leveret@localhost", True)]
    assert bodies(client, "held") == {number: b"%d" % number for number in range(1, 11)}
    assert bodies(client, "held", 3, 5, bytes_max=1) == {3: b"3", 4: b"4", 5: b"5"}
    for _ in range(3):
        channel.basic_get("held", auto_ack=True)
    channel.basic_get("held")  # Is out, and lives.
    # Nobody is told when the log has it that those are settled.
    until(lambda: sorted(bodies(client, "held")) == [4, 5, 6, 7, 8, 9, 10], "the first three are gone")
    assert client.queues(["held"])[0].first == 4
    sheet = client.read_sheet("held", 4)
    message = next(iter(sheet))
    assert (message.exchange, message.routing_key, message.kind, sheet.next) == (b"", b"held", 1, 11)


def test_what_came_back_is_marked(channel: Any, client: DataClient) -> None:
    channel.queue_declare("back", durable=True)
    publish(channel, "back", [b"a", b"b"])
    method, _, _ = channel.basic_get("back")
    channel.basic_nack(method.delivery_tag, requeue=True)
    publish(channel, "back", [b"c"])  # Confirmed with the block that says so of the first.
    kinds = {one.number: bool(one.kind & REDELIVERED) for one in client.read_sheet("back", 1)}
    assert kinds == {1: True, 2: False, 3: False}


def test_messages_that_only_memory_has(channel: Any, client: DataClient) -> None:
    channel.queue_declare("fleeting", durable=True)
    for number in range(1, 7):
        publish(channel, "fleeting", [b"%d" % number], TRANSIENT if number % 3 else PERSISTENT)
    assert bodies(client, "fleeting") == {number: b"%d" % number for number in range(1, 7)}
    assert bodies(client, "fleeting", 2, 4) == {2: b"2", 3: b"3", 4: b"4"}
    kinds = [one.kind for one in client.read_sheet("fleeting", 1)]
    assert kinds == [0, 0, 1, 0, 0, 1]
    channel.queue_declare("gone-tomorrow")
    publish(channel, "gone-tomorrow", [b"x", b"y"])
    assert bodies(client, "gone-tomorrow") == {1: b"x", 2: b"y"}


def test_queues_with_priorities(channel: Any, client: DataClient) -> None:
    channel.queue_declare("ranked", durable=True, arguments={"x-max-priority": 5})
    for number in range(1, 9):
        properties = pika.BasicProperties(delivery_mode=1 + number % 2, priority=number % 4)
        publish(channel, "ranked", [b"%d" % number], properties)
    assert bodies(client, "ranked") == {number: b"%d" % number for number in range(1, 9)}
    assert client.queues(["ranked"])[0].first == 1


def test_numbers_alone(channel: Any, client: DataClient) -> None:
    channel.queue_declare("counted", durable=True)
    publish(channel, "counted", [b"x"] * 9)
    publish(channel, "counted", [b"x"], TRANSIENT)  # Memory has it, and nothing else.
    for number in range(1, 10):
        method, _, _ = channel.basic_get("counted")
        if number in (1, 4, 5):
            channel.basic_ack(method.delivery_tag)
    expected = [[(2, 3), (6, 9)]]
    until(lambda: list(client.numbers("counted", 0, 100)) == expected, "three are gone, by the log")
    assert list(client.numbers("counted", 3, 6)) == [[(3, 3), (6, 6)]]
    channel.queue_declare("counted-river", durable=True, arguments={"x-queue-type": "stream"})
    assert list(client.numbers("counted-river", 0, 9)) == []
    publish(channel, "counted-river", [b"0", b"1", b"2"])
    assert list(client.numbers("counted-river", 0, 9)) == [[(0, 2)]]


def test_streams_are_read_by_offset(channel: Any, client: DataClient) -> None:
    channel.queue_declare("river", durable=True, arguments={"x-queue-type": "stream"})
    publish(channel, "river", [b"0", b"1", b"2"])
    [info] = client.queues(["river"])
    assert (info.type, info.first, info.next, info.messages) == ("stream", 0, 3, 3)
    assert bodies(client, "river", 0, 2) == {0: b"0", 1: b"1", 2: b"2"}
    assert bodies(client, "river", 1, 1) == {1: b"1"}
    assert client.wait("river", 2, 0) == 3
    assert client.number_at("river", 0) == 0


def test_times(channel: Any, client: DataClient) -> None:
    channel.queue_declare("clock", durable=True)
    for number in range(30):
        publish(channel, "clock", [b"%d" % number])
    came = {one.number: one.ms for one in client.read_sheet("clock", 1)}
    assert sorted(came.values()) == list(came.values())
    for ms in {came[1] - 1, *came.values(), came[30] + 1}:
        wanted = min((number for number, at in came.items() if at >= ms), default=31)
        assert client.number_at("clock", ms) == wanted
    channel.queue_declare("empty-clock", durable=True)
    assert client.number_at("empty-clock", 0) == 1


def test_waiting(channel: Any, client: DataClient, node: leveret.testing.Broker) -> None:
    channel.queue_declare("late", durable=True)
    assert client.wait("late", 1, 0.01) == 1
    connection = http.client.HTTPConnection("127.0.0.1", node.ports["management"], timeout=60)
    headers = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    connection.request("GET", "/api/data/%2F/late/wait?beyond=2&seconds=60", headers=headers)
    publish(channel, "late", [b"a", b"b"])
    assert json.loads(connection.getresponse().read()) == {"next": 3}
    connection.close()


def test_a_read_beyond_the_end(channel: Any, client: DataClient) -> None:
    channel.queue_declare("short", durable=True)
    publish(channel, "short", [b"a"])
    assert bodies(client, "short", 2) == {}
    reading = client.read("short", 1, 5)
    assert [one.body for one in next(reading)] == [b"a"]
    with pytest.raises(DataError, match="ends at 1, and 5 was asked for"):
        next(reading)


def test_patterns(channel: Any, client: DataClient) -> None:
    for name in ("p.a", "p.b", "q.p.a"):
        channel.queue_declare(name)
    assert [info.name for info in client.queues(pattern=r"p\..")] == ["p.a", "p.b"]
    assert client.queues(pattern="nothing") == []
    with pytest.raises(Refused, match="the pattern is bad"):
        client.queues(pattern="(")
    with pytest.raises(Refused, match="either names or a pattern"):
        client.queues(["p.a"], "p")


def test_large_contents(channel: Any, client: DataClient) -> None:
    channel.queue_declare("large", durable=True)
    large = [bytes((number,)) * 3_000_000 for number in range(6)]
    publish(channel, "large", large)
    sheets = list(client.read("large", 1, None, 1 << 30))
    assert [sheet.count for sheet in sheets] == [2, 2, 2]  # No answer has more than eight megabytes.
    assert [one.body for sheet in sheets for one in sheet] == large


# -- Who may, and what is wrong


def test_permissions(channel: Any, node: leveret.testing.Broker) -> None:
    channel.queue_declare("open.a", durable=True)
    channel.queue_declare("secret", durable=True)
    admin = node.admin
    admin.add_user("ann", "pw", vhost=None)
    url = f"127.0.0.1:{node.ports['management']}"
    ann = DataClient(url, user="ann", password="pw", patience_s=0.2)
    with pytest.raises(Refused, match="access to vhost '/' refused for user 'ann'") as caught:
        ann.queues(["open.a"])
    assert (caught.value.status, caught.value.error) == (401, "not_authorised")
    admin.set_permissions("ann", configure="^$", write="^$", read="^open")
    assert [info.name for info in ann.queues(pattern=".*")] == ["open.a"]
    with pytest.raises(Refused, match="access to queue 'secret' in vhost '/' refused for user 'ann'"):
        ann.read_sheet("secret", 1)
    with pytest.raises(Refused, match="refused"):
        ann.lease_open("secret", "l")
    with pytest.raises(Refused, match="Login failed"):
        DataClient(url, user="ann", password="no").queues(["open.a"])
    ann.close()


def test_an_exclusive_queue_is_its_connections_alone(
    channel: Any, client: DataClient, node: leveret.testing.Broker
) -> None:
    channel.queue_declare("exclusive.mine", exclusive=True)
    channel.basic_publish("", "exclusive.mine", b"secret")
    locked = "405 cannot obtain exclusive access to locked queue 'exclusive.mine' in vhost '/'"
    for read in (
        lambda: client.queues(["exclusive.mine"]),
        lambda: client.read_sheet("exclusive.mine", 1),
        lambda: client.wait("exclusive.mine", 0, 0),
        lambda: client.lease_open("exclusive.mine", "l"),
    ):
        with pytest.raises(Refused, match=locked) as caught:
            read()
        assert caught.value.status == 400
    assert client.queues(pattern="exclusive.*") == []


@pytest.mark.parametrize(
    ("method", "path", "status", "reason"),
    [
        ("GET", "/api/nonsense", 404, "Not Found"),
        ("GET", "/api/data/%2F/no-such-queue/range?first=1", 404, "Not Found: queue 'no-such-queue'"),
        ("GET", "/api/data/no-such-vhost/queues", 404, "Not Found"),
        ("GET", "/api/data/%2F/queues?name=no-such-queue", 404, "Not Found: queue 'no-such-queue'"),
        ("GET", "/api/data/%2F/there/range", 400, "first must be a whole number"),
        ("GET", "/api/data/%2F/there/range?first=-1", 400, "first must be a whole number"),
        ("GET", "/api/data/%2F/there/range?first=1&bytes=0", 400, "bytes must be a whole number"),
        ("GET", "/api/data/%2F/there/range?first=99999999999999999999999999", 400, "first must be a whole number"),
        ("GET", "/api/data/%2F/there/at?ms=x", 400, "ms must be a whole number"),
        ("GET", "/api/data/%2F/there/wait?beyond=1&seconds=x", 400, "seconds must be a number"),
        ("GET", "/api/data/%2F/there/wait?beyond=1&seconds=nan", 400, "seconds must not be negative"),
        ("GET", "/api/data/%2F/queues?pattern=" + "a" * 2000, 400, "at most 1000 characters"),
        ("POST", "/api/data/%2F/there/range", 405, "Method Not Allowed"),
        ("PUT", "/api/leases/%2F/there/l", 400, "no JSON"),
        ("POST", "/api/leases/%2F/there/l/take", 400, "no JSON"),
        ("GET", "/api/data/%FF/queues", 404, "Not Found"),
    ],
)
def test_requests_that_make_no_sense(
    node: leveret.testing.Broker, channel: Any, method: str, path: str, status: int, reason: str
) -> None:
    channel.queue_declare("there", durable=True)
    body = b"{nonsense" if method in ("PUT", "POST") else None
    found = ask(node, method, path, body)
    assert found[0] == status
    assert reason in found[1]["reason"]


@pytest.mark.parametrize(
    ("action", "given", "reason"),
    [
        ("take", {}, "count must be a whole number"),
        ("take", {"count": True}, "count must be a whole number"),
        ("take", {"count": 1, "bytes": 0}, "bytes must be a whole number"),
        ("ack", {"through": -1}, "through must be a whole number"),
        ("ack", [], "must be a JSON object"),
    ],
)
def test_bad_words_about_leases(
    node: leveret.testing.Broker, channel: Any, action: str, given: Any, reason: str
) -> None:
    channel.queue_declare("there", durable=True)
    found = ask(node, "POST", f"/api/leases/%2F/there/l/{action}", json.dumps(given).encode())
    assert found[0] == 400
    assert reason in found[1]["reason"]


def test_a_body_that_is_too_large(node: leveret.testing.Broker) -> None:
    assert ask(node, "PUT", "/api/leases/%2F/there/l", bytes(1001))[0] == 413


def test_another_port_answers(node: leveret.testing.Broker) -> None:
    with pytest.raises(Unreachable, match=r"that is a port for AMQP") as caught:
        DataClient(f"127.0.0.1:{node.port}", patience_s=0.1).queues(["q"])
    assert str(caught.value).isprintable()


def test_nobody_listens_and_one_is_told_soon() -> None:
    began = time.monotonic()
    with pytest.raises(Unreachable, match="refused"):
        DataClient("127.0.0.1:1", patience_s=60.0, first_patience_s=0.1).queues(["q"])
    assert time.monotonic() - began < 30


def test_a_machine_that_is_off_does_not_hold_up_the_others(
    node: leveret.testing.Broker, channel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full backlog answers no more than a machine that is off."""
    monkeypatch.setattr(data_client, "CONNECT_S", 0.1)
    channel.queue_declare("there", durable=True)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as off, socket.socket() as first, socket.socket() as second:
        for one in (first, second):
            one.setblocking(False)
            one.connect_ex(off.getsockname())
        servers = [f"127.0.0.1:{off.getsockname()[1]}", f"127.0.0.1:{node.ports['management']}"]
        with DataClient(servers, timeout_s=600.0, patience_s=60.0) as client:
            assert [info.name for info in client.queues(["there"])] == ["there"]


def test_nobody_answers() -> None:
    with pytest.raises(Unreachable, match="nobody answered GET /api/data/%2F/queues"):
        DataClient("127.0.0.1:1", patience_s=0.1).queues(["q"])
    for servers in ([], ["ftp://x"], "http://"):
        with pytest.raises(ValueError, match="server"):
            DataClient(servers)


# -- Leases


def test_a_lease_from_its_beginning_to_its_end(channel: Any, client: DataClient, node: leveret.testing.Broker) -> None:
    channel.queue_declare("tasks", durable=True)
    publish(channel, "tasks", [b"%d" % number for number in range(1, 7)])
    view = client.lease_open("tasks", "job/1", 60_000)
    assert (view.queue, view.name, view.acked, view.next, view.runs, view.timeout_ms) == (
        "tasks",
        "job/1",
        0,
        0,
        (),
        60_000,
    )
    view = client.lease_take("tasks", "job/1", 4)
    assert (view.next, view.runs) == (4, ((0, 1, 4),))
    assert channel.basic_get("tasks", auto_ack=True)[2] == b"5"
    assert bodies(client, "tasks", 1, 4) == {number: b"%d" % number for number in range(1, 5)}
    view = client.lease_ack("tasks", "job/1", 3)
    assert (view.acked, view.runs) == (3, ((3, 4, 4),))
    assert client.lease_ack("tasks", "job/1", 3).acked == 3
    assert client.lease_open("tasks", "job/1").timeout_ms == 60_000
    assert [one.name for one in client.leases("tasks")] == ["job/1"]
    assert [one.name for one in client.leases()] == ["job/1"]
    assert [one.name for one in client.queues(["tasks"])[0].leases] == ["job/1"]
    client.lease_release("tasks", "job/1")
    assert client.leases("tasks") == []
    method, _, body = channel.basic_get("tasks", auto_ack=True)
    assert (body, method.redelivered) == (b"4", True)
    with pytest.raises(Refused, match="no lease 'job/1'"):
        client.lease_release("tasks", "job/1")


def test_a_lease_that_has_an_owner(channel: Any, client: DataClient, node: leveret.testing.Broker) -> None:
    channel.queue_declare("owned", durable=True)
    channel.basic_publish("", "owned", b"1")
    assert client.lease_open("owned", "job", owner="one").owner == client.leases("owned")[0].owner == "one"
    acts: list[Callable[[], object]] = [
        lambda: client.lease_open("owned", "job", owner="two"),
        lambda: client.lease_take("owned", "job", 1),
        lambda: client.lease_ack("owned", "job", 0, owner="two"),
    ]
    for act in acts:
        with pytest.raises(Refused, match="belongs to another reader, one") as refused:
            act()
        assert refused.value.status == 423
    assert client.lease_take("owned", "job", 1, owner="one").next == 1
    assert client.lease_open("owned", "job", owner="two", takeover=True).owner == "two"
    assert client.lease_ack("owned", "job", 1, owner="two").acked == 1
    for given in ({"owner": 1}, {"takeover": "yes", "owner": "x"}, {"takeover": True}):
        assert ask(node, "PUT", "/api/leases/%2F/owned/job", json.dumps(given).encode())[0] == 400
    client.lease_release("owned", "job")


def test_what_is_leased_and_only_in_memory_can_be_read(channel: Any, client: DataClient) -> None:
    channel.queue_declare("fleeting-tasks", durable=True)
    publish(channel, "fleeting-tasks", [b"a", b"b", b"c"], TRANSIENT)
    client.lease_open("fleeting-tasks", "job")
    assert client.lease_take("fleeting-tasks", "job", 2).runs == ((0, 1, 2),)
    assert bodies(client, "fleeting-tasks") == {1: b"a", 2: b"b", 3: b"c"}


def test_streams_have_no_leases(channel: Any, client: DataClient) -> None:
    channel.queue_declare("rapids", durable=True, arguments={"x-queue-type": "stream"})
    with pytest.raises(Refused, match="not supported by stream queues") as caught:
        client.lease_open("rapids", "l")
    assert caught.value.status == 400


def test_a_list_of_queues_lets_others_have_their_turn(
    node: leveret.testing.Broker, channel: Any, client: DataClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_slices, "SLICE_S", 0.0)
    for number in range(4 * time_slices.STEPS):
        channel.queue_declare(f"sliced{number}")
    rests = 0
    made: dict[str, list[int]] = {"extent": [], "_row": []}
    rest = time_slices.TimeSlices.rest

    async def counted(slices: time_slices.TimeSlices) -> None:
        nonlocal rests
        rests += 1
        await rest(slices)

    def watch(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def watched(*arguments: Any) -> Any:
            made[name].append(rests)
            return original(*arguments)

        monkeypatch.setattr(owner, name, watched)

    monkeypatch.setattr(time_slices.TimeSlices, "rest", counted)
    watch(RangeReads, "extent")
    watch(DataHandlers, "_row")
    assert len(client.queues(pattern="sliced.*")) == 4 * time_slices.STEPS
    for name, when in made.items():
        assert max(Counter(when).values()) <= time_slices.STEPS, name
