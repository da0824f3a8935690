"""STOMP clients at several nodes: queues of other nodes, answers that come late, and clients that are gone by then."""

from __future__ import annotations

import pytest

from tests.support.brokers import Cluster
from tests.unit.sessions.stomp.clients import StompClient, connected


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("a", "b", "c")


def receipt(name: str) -> str:
    return f"RECEIPT\nreceipt-id:{name}\n\n^@"


@pytest.mark.parametrize("destination", ["/queue/q", "/topic/t", "/exchange/amq.direct/k"])
def test_from_one_node_to_another(cluster: Cluster, destination: str) -> None:
    consumer, producer = connected(cluster["b"]), connected(cluster["a"])
    if destination == "/queue/q":
        assert connected(cluster["c"]).ask("SEND\ndestination:/queue/q\nreceipt:0\n\nx^@") == receipt("0")
    asked = f"SUBSCRIBE\nid:1\ndestination:{destination}\nack:client\nreceipt:s\n\n^@"
    assert receipt("s") in consumer.ask(asked)
    sent = "".join(f"SEND\ndestination:{destination}\npersistent:true\nreceipt:{n}\n\nbody {n}^@" for n in range(20))
    assert producer.ask(sent) == "".join(receipt(str(n)) for n in range(20))
    got = [one.body for one in consumer.frames() if one.body.startswith(b"body")]
    assert got == [b"body %d" % n for n in range(20)]
    assert consumer.ask("ACK\nid:T_1@@SESSION@@20\nreceipt:a\n\n^@") == receipt("a")
    assert consumer.ask("UNSUBSCRIBE\nid:1\nreceipt:u\n\n^@") == receipt("u")


def test_a_queue_that_is_deleted_elsewhere(cluster: Cluster) -> None:
    consumer, other = connected(cluster["b"]), connected(cluster["a"])
    other.ask("SEND\ndestination:/queue/q\n\nx^@")
    consumer.ask("SUBSCRIBE\nid:1\ndestination:/queue/q\n\n^@")
    assert other.connection.session is not None
    other.connection.session.topology.delete_queue("q", lambda answer: None)
    other.heard()
    assert consumer.heard().startswith("ERROR\nmessage:Server cancelled subscription\n")
    assert consumer.ask("SEND\ndestination:/queue/q\nreceipt:1\n\nx^@") == receipt("1")


def queues(cluster: Cluster) -> set[str]:
    return set(cluster["a"].broker.vhosts["/"].queues)


@pytest.mark.parametrize("destination", ["/topic/t", "/exchange/amq.fanout"])
def test_a_client_that_goes_before_its_subscription_is_made(cluster: Cluster, destination: str) -> None:
    """Nothing of it stays."""
    client = connected(cluster["a"])
    client.connection.receive(f"SUBSCRIBE\nid:1\ndestination:{destination}\n\n\0".encode())
    client.lose()
    for name in "abc":
        cluster[name].turn()
    assert not queues(cluster)


def test_frames_behind_one_that_waits_keep_their_order(cluster: Cluster) -> None:
    client = connected(cluster["c"])
    names = [f"q{n}" for n in range(5)]
    data = "".join(f"SEND\ndestination:/queue/{name}\nreceipt:{name}\n\nx^@" for name in names * 2)
    data += "BEGIN\ntransaction:t\n\n^@SEND\ntransaction:t\ndestination:/queue/new\nreceipt:tx\n\nx^@"
    data += "COMMIT\ntransaction:t\nreceipt:c\n\n^@DISCONNECT\nreceipt:bye\n\n^@"
    assert client.ask(data) == "".join(map(receipt, [*names, *names, "tx", "c", "bye"]))
    assert queues(cluster) == {*names, "new"}
    assert isinstance(client, StompClient) and client.connection.closed
