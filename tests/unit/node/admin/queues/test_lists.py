from __future__ import annotations

import asyncio
from typing import Any

import pytest

from leveret.metadata.model.commands import Bind, DeclareQueue, DeleteQueue, SetPolicy
from leveret.node.admin.common import listing_columns
from leveret.node.admin.queues import lists, queues
from leveret.node.admin.queues.lists import shown_table
from leveret.protocol import methods as m
from leveret.protocol.tables import Field, table_from_python
from tests.support.control_world import FakeServer, ask, cluster, refusal, rows


@pytest.fixture
def one() -> FakeServer:
    return cluster("one@host")[0]


@pytest.fixture
def pair() -> list[FakeServer]:
    return cluster("one@host", "two@host")


async def declare(server: FakeServer, name: str, home: str, **options: Any) -> None:
    assert server.node is not None
    await server.node.cluster.change(DeclareQueue("/", name, node=home, **options))


# -- Values --------------------------------------------------------------------------------------------------------


def test_tables_are_shown_with_their_types() -> None:
    table = {
        "s": Field("S", "text"),
        "x": Field("x", b"\xff"),
        "n": Field("I", 1),
        "t": Field("F", {"k": Field("t", True)}),
        "a": Field("A", [Field("l", 2), Field("S", "b")]),
        "d": Field("D", (2, 314)),
        "v": Field("V", None),
    }
    assert shown_table(table) == [
        ["s", "longstr", "text"],
        ["x", "binary", "\udcff"],
        ["n", "signedint", 1],
        ["t", "table", [["k", "bool", True]]],
        ["a", "array", [["long", 2], ["longstr", "b"]]],
        ["d", "decimal", [2, 314]],
        ["v", "void", None],
    ]


@pytest.mark.parametrize(
    ("getters", "columns"),
    [
        (queues.QUEUE, listing_columns.QUEUES),
        (lists.EXCHANGE, listing_columns.EXCHANGES),
        (lists.BINDING, listing_columns.BINDINGS),
        (lists.VHOST, listing_columns.VHOSTS),
        (lists.CONNECTION, listing_columns.CONNECTIONS),
        (lists.CHANNEL, listing_columns.CHANNELS),
        (lists.CONSUMER, listing_columns.CONSUMERS),
    ],
)
def test_every_column_has_a_value(getters: dict[str, object], columns: tuple[str, ...]) -> None:
    assert set(getters) == set(columns)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("list_queues", {"vhost": "/"}),
        ("list_exchanges", {"vhost": "/"}),
        ("list_bindings", {"vhost": "/"}),
        ("list_vhosts", {}),
        ("list_connections", {}),
        ("list_channels", {}),
        ("list_consumers", {"vhost": "/"}),
    ],
)
async def test_unknown_columns(one: FakeServer, command: str, arguments: dict[str, Any]) -> None:
    assert await refusal(one, command, columns=["foo", "name", "bar"], **arguments) in (
        (64, "Info key(s) bar,foo are not supported"),
        (64, "Info key(s) bar,foo,name are not supported"),
    )


# -- What every node knows -----------------------------------------------------------------------------------------


async def test_exchanges_bindings_and_vhosts(one: FakeServer) -> None:
    one.world.client().declare("q")
    arguments = table_from_python({"x-match": "all"})
    one.world.apply(Bind("/", "amq.headers", "queue", "q", "k", arguments))
    assert await rows(one, "list_exchanges", vhost="/", columns=["name", "type", "internal"]) == [
        ["", "direct", False],
        ["amq.direct", "direct", False],
        ["amq.fanout", "fanout", False],
        ["amq.headers", "headers", False],
        ["amq.match", "headers", False],
        ["amq.rabbitmq.trace", "topic", True],
        ["amq.topic", "topic", False],
    ]
    assert await rows(one, "list_bindings", vhost="/", columns=list(listing_columns.BINDINGS)) == [
        ["", "exchange", "q", "queue", "q", []],
        ["amq.headers", "exchange", "q", "queue", "k", [["x-match", "longstr", "all"]]],
    ]
    assert await rows(one, "list_vhosts", columns=["name", "cluster_state", "tags"]) == [
        ["/", {"one@host": "running"}, []]
    ]
    assert await rows(one, "list_exchanges", vhost="nowhere", columns=["name"]) == []


async def test_pages_by_position(one: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "PAGE", 3)
    page = await ask(one, "list_exchanges", vhost="/", columns=["name"])
    assert (len(page["rows"]), page["next"]) == (3, 3)
    assert len(await rows(one, "list_exchanges", vhost="/", columns=["name"])) == 7


# -- Queues --------------------------------------------------------------------------------------------------------


async def test_queues_with_what_only_their_node_knows(pair: list[FakeServer]) -> None:
    one, two = pair
    client = two.world.client()
    await declare(one, "here", "one@host")
    await declare(one, "there", "two@host")
    for _ in range(3):
        client.publish("there", b"x")
    client.send(m.BasicQos(prefetch_count=2))
    client.take()
    client.consume("there", "tag", exclusive=True)
    columns = ["name", "messages_ready", "messages_unacknowledged", "messages", "consumers", "state", "node"]
    assert await rows(one, "list_queues", vhost="/", columns=columns) == [
        ["here", 0, 0, 0, 0, "running", "one@host"],
        ["there", 1, 2, 3, 1, "running", "two@host"],
    ]
    columns = ["name", "exclusive_consumer_tag", "exclusive_consumer_pid"]
    assert (await rows(one, "list_queues", vhost="/", columns=columns))[1] == ["there", "tag", "<two@host.1.1.1>"]


async def test_queues_by_where_they_are(pair: list[FakeServer]) -> None:
    one, two = pair
    await declare(one, "here", "one@host")
    await declare(one, "there", "two@host")
    asked: dict[str, Any] = {"vhost": "/", "columns": ["name", "messages", "state"]}
    here, there, down = ["here", 0, "running"], ["there", 0, "running"], ["there", "", "down"]
    assert await rows(one, "list_queues", local=True, **asked) == [here]
    assert await rows(one, "list_queues", online=True, **asked) == [here, there]
    assert await rows(one, "list_queues", offline=True, **asked) == []
    await ask(two, "stop_app")
    assert await rows(one, "list_queues", **asked) == [here, down]
    assert await rows(one, "list_queues", online=True, **asked) == [here]
    assert await rows(one, "list_queues", offline=True, **asked) == [down]
    assert await rows(one, "list_queues", online=True, offline=True, **asked) == [here, down]


async def test_a_node_that_does_not_answer_is_named(pair: list[FakeServer]) -> None:
    one = pair[0]
    await declare(one, "there", "two@host")
    one.all.cut_off.add("two@host")
    page = await ask(one, "list_queues", vhost="/", columns=["name", "state"], after={"after": 0})
    assert page == {"rows": [["there", "down"]], "next": None, "missing": ["two@host"]}


async def test_pages_of_queues(pair: list[FakeServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "PAGE", 2)
    one, two = pair
    for number in range(5):
        await declare(one, f"a{number}", "one@host")
        await declare(one, f"b{number}", "two@host")
    names = [f"{letter}{number}" for number in range(5) for letter in "ab"]
    found = await rows(one, "list_queues", vhost="/", columns=["name"])
    assert [name for (name,) in found] == names
    await ask(two, "stop_app")
    found = await rows(one, "list_queues", vhost="/", columns=["name"])
    assert [name for (name,) in found] == names


async def test_pages_go_on_though_queues_and_nodes_go(pair: list[FakeServer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "PAGE", 2)
    one = pair[0]
    for number in range(4):
        await declare(one, f"a{number}", "one@host")
    await declare(one, "b", "two@host")
    first = await ask(one, "list_queues", vhost="/", columns=["name"])
    assert first["rows"] == [["a0"], ["a1"]]
    assert one.node is not None
    await one.node.cluster.change(DeleteQueue("/", "a0"))
    second = await ask(one, "list_queues", vhost="/", columns=["name"], after=first["next"])
    assert second["rows"] == [["a2"], ["a3"]]
    await one.node.cluster.change(DeleteQueue("/", "b"))
    del one.all.servers["two@host"]
    third = await ask(one, "list_queues", vhost="/", columns=["name"], after=second["next"])
    assert third == {"rows": [], "next": None, "missing": []}


@pytest.mark.parametrize("after", [{}, {"node": 1, "after": 0}, {"node": "one@host", "after": "x"}])
async def test_bad_cursors(one: FakeServer, after: dict[str, Any]) -> None:
    bad = (64, "argument after is not a cursor")
    assert await refusal(one, "list_connections", columns=["name"], after=after) == bad
    if after.get("after") != 0:
        assert await refusal(one, "list_queues", vhost="/", columns=["name"], after=after) == bad


async def test_the_policy_of_a_queue(one: FakeServer) -> None:
    client = one.world.client()
    client.declare("orders")
    for name, pattern, apply_to, priority in (
        ("low", "^ord", "all", 0),
        ("high", "ers$", "queues", 5),
        ("exchanges", "", "exchanges", 9),
        ("other", "^x", "all", 9),
    ):
        one.world.apply(SetPolicy("/", name, pattern, apply_to, priority, {"message-ttl": 1}))
    assert await rows(one, "list_queues", vhost="/", columns=["name", "policy"]) == [["orders", "high"]]
    assert (await rows(one, "list_exchanges", vhost="/", columns=["policy"]))[1] == ["exchanges"]


async def test_an_exclusive_queue_has_an_owner(one: FakeServer) -> None:
    one.world.client().declare("mine", exclusive=True)
    columns = ["exclusive", "owner_pid", "pid"]
    assert await rows(one, "list_queues", vhost="/", columns=columns) == [
        [True, "<one@host.1.1.0>", "<one@host.2.1.0>"]
    ]


async def test_delete_and_purge_at_the_home_of_the_queue(pair: list[FakeServer]) -> None:
    one, two = pair
    client = two.world.client()
    await declare(one, "there", "two@host")
    client.publish("there")
    only_if = {"if_empty": True, "if_unused": False}
    assert await refusal(one, "delete_queue", vhost="/", name="there", **only_if) == (64, "Queue is not empty")
    assert await ask(one, "purge_queue", vhost="/", name="there") == {"messages": 1}
    assert two.node is not None and two.node.turns == 1
    client.publish("there")
    client.consume("there")
    only_if = {"if_empty": False, "if_unused": True}
    assert await refusal(one, "delete_queue", vhost="/", name="there", **only_if) == (64, "Queue is in use")
    client.send(m.BasicCancel(consumer_tag="c"))
    client.send(m.BasicNack(delivery_tag=1, requeue=True))
    assert await ask(one, "delete_queue", vhost="/", name="there", **only_if) == {"messages": 1}
    assert two.world.metadata.queues == {}
    assert await refusal(one, "delete_queue", vhost="/", name="there", **only_if) == (64, "Queue not found")
    assert await refusal(one, "purge_queue", vhost="/", name="there") == (69, "not_found")


async def test_a_stream_is_not_purged(one: FakeServer) -> None:
    await declare(one, "s", one.name, durable=True, arguments={"x-queue-type": Field("S", "stream")})
    assert (await refusal(one, "purge_queue", vhost="/", name="s"))[0] == 69


async def test_a_queue_whose_node_is_down(pair: list[FakeServer]) -> None:
    one, two = pair
    await declare(one, "there", "two@host")
    await ask(two, "stop_app")
    code, text = await refusal(one, "purge_queue", vhost="/", name="there")
    assert code == 69
    assert text.startswith("home node 'two@host' of durable queue 'there' in vhost '/' is down or inaccessible")
    only_if = {"if_empty": True, "if_unused": False}
    assert (await refusal(one, "delete_queue", vhost="/", name="there", **only_if))[0] == 69
    only_if = {"if_empty": False, "if_unused": False}
    given_up = await ask(one, "delete_queue", vhost="/", name="there", **only_if)
    assert given_up == {"messages": 0, "counted": False} and one.world.metadata.queues == {}


# -- Connections, channels, consumers ------------------------------------------------------------------------------


async def test_connections_of_all_nodes(pair: list[FakeServer]) -> None:
    one, two = pair
    one.world.client(heartbeat=30)
    two.world.client(channels=(1, 2))
    columns = ["pid", "name", "user", "vhost", "channels", "state", "timeout", "node"]
    peer = "127.0.0.1:40000 -> 127.0.0.1:5672"
    assert await rows(one, "list_connections", columns=columns) == [
        ["<one@host.1.1.0>", peer, "guest", "/", 1, "running", 30, "one@host"],
        ["<two@host.1.1.0>", peer, "guest", "/", 2, "running", 0, "two@host"],
    ]
    (properties,), _ = await rows(one, "list_connections", columns=["client_properties"])
    assert ["basic.nack", "bool", True] not in properties
    assert properties[-1][:2] == ["capabilities", "table"]


async def test_channels_and_consumers(pair: list[FakeServer]) -> None:
    one, two = pair
    client = two.world.client(channels=(1, 7))
    client.declare("q")
    client.publish("q")
    client.send(m.BasicQos(prefetch_count=3), m.ConfirmSelect(), channel=7)
    client.take()
    client.consume("q", "tag", channel=7, arguments={"why": Field("S", "test")})
    columns = ["pid", "connection", "number", "confirm", "consumer_count", "messages_unacknowledged", "prefetch_count"]
    assert await rows(one, "list_channels", columns=columns) == [
        ["<two@host.1.1.1>", "<two@host.1.1.0>", 1, False, 0, 0, 0],
        ["<two@host.1.1.7>", "<two@host.1.1.0>", 7, True, 1, 1, 3],
    ]
    assert await rows(one, "list_consumers", vhost="/", columns=list(listing_columns.CONSUMERS_SHOWN)) == [
        ["q", "<two@host.1.1.7>", "tag", True, 3, True, [["why", "longstr", "test"]]]
    ]
    assert await rows(one, "list_consumers", vhost="other", columns=["queue_name"]) == []


async def test_a_channel_in_a_transaction(pair: list[FakeServer]) -> None:
    one, two = pair
    client = two.world.client()
    client.declare("q")
    client.publish("q")
    client.send(m.TxSelect(), m.BasicGet(queue="q"), m.BasicAck(1))
    client.publish("q")
    client.publish("none")
    columns = ["transactional", "messages_uncommitted", "acks_uncommitted", "messages_unacknowledged"]
    assert await rows(one, "list_channels", columns=columns) == [[True, 2, 1, 0]]
    client.send(m.TxRollback())
    assert await rows(one, "list_channels", columns=columns) == [[True, 0, 0, 1]]


async def test_closing_one_connection(pair: list[FakeServer]) -> None:
    one, two = pair
    kept, closed = two.world.client(), two.world.client()
    await ask(one, "close_connection", pid="<two@host.1.2.0>", reason="too busy")
    (reply,) = closed.take()
    assert isinstance(reply.method, m.ConnectionClose)
    assert (reply.method.reply_code, reply.method.reply_text) == (320, "CONNECTION_FORCED - too busy")
    assert kept.take() == []
    await ask(one, "close_connection", pid="<two@host.1.99.0>", reason="gone already")


@pytest.mark.parametrize("pid", ["bogus", "<two@host.2.1.0>", "<two@host.1.x.0>"])
async def test_closing_what_is_no_connection(one: FakeServer, pid: str) -> None:
    code, text = await refusal(one, "close_connection", pid=pid, reason="x")
    assert code == 69
    assert "leveretctl list_connections pid" in text


async def test_closing_many(pair: list[FakeServer]) -> None:
    one, two = pair
    one.world.client()
    client = two.world.client()
    assert await ask(one, "close_connections", vhost="other", reason="x") == {"closed": 0, "missing": []}
    assert await ask(one, "close_connections", user="ann", reason="x") == {"closed": 0, "missing": []}
    assert await ask(one, "close_connections", vhost="/", user="guest", reason="x") == {"closed": 2, "missing": []}
    assert len(client.take()) == 1
    one.all.cut_off.add("two@host")
    assert (await ask(one, "close_connections", reason="x"))["missing"] == ["two@host"]


async def test_a_turn_closes_a_few_connections(one: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "CLOSED_AT_ONCE", 3)
    clients = [one.world.client() for _ in range(10)]
    closing = asyncio.create_task(ask(one, "local_close_connections", number=None, reason="x"))
    before, last = 0, clients[-1]
    while not closing.done():
        await asyncio.sleep(0)
        closed = sum(client.connection.closing for client in clients)
        assert closed - before <= 3
        before = closed
        if closed and last.connection in one.world.broker.connections:
            last.lose()  # It goes by itself.
    assert before == 9 and closing.result() == {"closed": 10}
