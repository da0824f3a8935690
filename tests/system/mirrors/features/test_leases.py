"""A lease of a mirrored queue whose master is killed: real processes, by the management port."""

from __future__ import annotations

from leveret.data.client import DataClient
from leveret.data.client import LeaseView as Told
from tests.support.members import Cluster, Member, StartCluster
from tests.system.mirrors.rings import await_in_sync, await_master, count, declare, drain, fill_fast, master_of, mirror


def client_of(nodes: Cluster) -> DataClient:
    return DataClient([f"127.0.0.1:{node.management_port}" for node in nodes if node.is_running])


def bodies(client: DataClient, queue: str, view: Told) -> dict[int, bytes]:
    """By place: what is there."""
    found: dict[int, bytes] = {}
    for place, first, last in view.runs:
        for sheet in client.read(queue, first, last):
            for message in sheet:
                found[place + message.number - first] = bytes(message.content[-8:-1])
    return found


def padded(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_a_lease_outlives_its_master(start_cluster: StartCluster) -> None:
    nodes, name = start_cluster("management.tcp.port = 0"), "orders"
    master: Member = nodes.leader()
    mirror(master, name)
    declare(master, name)
    fill_fast(master, name, range(1_000_000, 1_002_000))
    await_in_sync(master, name, nodes)
    with client_of(nodes) as client:
        client.lease_open(name, "job")
        before = client.lease_take(name, "job", 1_500)
        assert (before.acked, before.next) == (0, 1_500)
        seen = bodies(client, name, before)
        assert [seen[place] for place in range(1_500)] == padded(range(1_000_000, 1_001_500))
        client.lease_ack(name, "job", 200)
    old = master_of(nodes, name)
    old.kill()
    others = nodes.others(old)
    await_master(others[0], name, others)
    with client_of(nodes) as client:
        after = client.lease_open(name, "job")
        assert (after.acked, after.next) == (200, 1_500)
        assert bodies(client, name, after) == {place: body for place, body in seen.items() if place >= 200}
        assert count(others[0], name) == 500
        again = client.lease_take(name, "job", 100)
        assert sorted(bodies(client, name, again)) == list(range(200, 1_600))
        assert client.lease_ack(name, "job", 1_000).acked == 1_000
    (row,) = others[1].control("list_leases", vhost="/", columns=["name", "queue", "acked", "next", "out"])["rows"]
    assert row == ["job", name, 1_000, 1_600, 600]
    assert others[1].control("release_lease", vhost="/", queue=name, name="job") == {"messages": 600}
    rest = drain(others[0], name)
    assert [int(body) for body, _ in rest] == list(range(1_001_000, 1_002_000))
    assert [flag for _, flag in rest] == [True] * 600 + [False] * 400
