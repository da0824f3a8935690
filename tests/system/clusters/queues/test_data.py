"""Queues of a cluster, read in bulk from whichever node has a copy."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leveret.data.client import DataClient, QueueInfo, Refused, Unreachable
from leveret.data.sheet import decode
from tests.support.certificates import issue
from tests.support.members import PERSISTENT, Cluster, Member
from tests.support.servers import until

CONFIG = "management.tcp.port = 0\nmanagement.tcp.ip = 127.0.0.1"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    return issue(tmp_path_factory.mktemp("certificates")) if shutil.which("openssl") else None


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory, certificates: Path | None) -> Iterator[Cluster]:
    """Three nodes; the third is met with TLS alone, where there are certificates."""
    tls = ""
    if certificates is not None:
        tls = f"""
management.tcp.port = none
management.ssl.port = 0
management.ssl.ip = 127.0.0.1
management.ssl.certfile = {certificates}/server.pem
management.ssl.keyfile = {certificates}/server.key
"""
    cluster = Cluster(tmp_path_factory.mktemp("trio"), CONFIG, configs={2: tls})
    try:
        cluster.start()
        cluster[0].control(
            "set_policy", vhost="/", name="all", pattern="^all", priority=0, apply_to="queues", operator=False,
            definition={"ha-mode": "all", "ha-sync-mode": "automatic"},
        )  # fmt: skip
        yield cluster
    finally:
        cluster.end()


def names(cluster: Cluster) -> list[str]:
    return [node.name for node in cluster]


@pytest.fixture
def tls(certificates: Path | None) -> ssl.SSLContext | None:
    return None if certificates is None else ssl.create_default_context(cafile=f"{certificates}/ca.pem")


def client_of(tls: ssl.SSLContext | None, *nodes: Member) -> DataClient:
    servers = [
        f"http{'s' if tls and node.name.startswith('n3') else ''}://127.0.0.1:{node.management_port}" for node in nodes
    ]
    return DataClient(servers, tls=tls, patience_s=20)


def fill(node: Member, queue: str, count: int, arguments: dict[str, Any] | None = None) -> None:
    channel = node.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare(queue, durable=True, arguments=arguments)
    for number in range(1, count + 1):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT)


def read(client: DataClient, queue: str, last: int, bytes_max: int = 1 << 20) -> dict[int, bytes]:
    return {one.number: one.body for sheet in client.read(queue, 1, last, bytes_max) for one in sheet}


def wanted(count: int) -> dict[int, bytes]:
    return {number: b"%d" % number for number in range(1, count + 1)}


def ask(node: Member, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """One node, by itself, without being sent on."""
    connection = http.client.HTTPConnection("127.0.0.1", node.management_port, timeout=60)
    headers = {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    found = response.status, response.read()
    connection.close()
    return found


def test_every_mirror_gives_all_that_is_confirmed(trio: Cluster, tls: ssl.SSLContext | None) -> None:
    fill(trio[0], "all-read", 50)
    for node in trio:
        with client_of(tls, node) as client:
            assert read(client, "all-read", 50, bytes_max=300) == wanted(50)
            [info] = client.queues(["all-read"])
            assert (info.first, info.next, info.messages, info.master) == (1, 51, 50, "n1@localhost")
            assert [member.node for member in info.members if member.in_sync] == names(trio)
            # Whoever asks with TLS is not sent to a port without.
            asked_by_tls = node is trio[2]
            named = [member.node for member in info.members if member.url]
            assert named == (names(trio)[2:] if asked_by_tls else names(trio))
    # And each of those that speak plainly by itself, up to where it has heard: soon that is all.
    path = "/api/data/%2F/all-read/range?first=1&last=50"
    for node in trio.nodes[:2]:
        until(lambda node=node: decode(ask(node, "GET", path)[1]).count == 50, "a mirror knows all")  # type: ignore[misc]


def test_who_has_no_copy_names_those_who_have(trio: Cluster, tls: ssl.SSLContext | None) -> None:
    fill(trio[1], "alone", 5)
    url = f"http://127.0.0.1:{trio[1].management_port}"
    for path in ("range?first=1", "numbers?first=1", "at?ms=0", "wait?beyond=1&seconds=0"):
        status, body = ask(trio[0], "GET", f"/api/data/%2F/alone/{path}")
        assert (status, json.loads(body)["urls"]) == (421, [url])
    status, body = ask(trio[0], "PUT", "/api/leases/%2F/alone/job", b"{}")
    assert (status, json.loads(body)["urls"]) == (421, [url])
    with client_of(tls, trio[0]) as client:  # It follows.
        assert read(client, "alone", 5) == wanted(5)
        assert client.number_at("alone", 0) == 1
        assert client.wait("alone", 5, 0) == 6
        client.lease_open("alone", "job")
        assert client.lease_take("alone", "job", 2).runs == ((0, 1, 2),)
        assert [lease.name for lease in client.leases()] == ["job"]


def test_streams_at_mirrors(trio: Cluster, tls: ssl.SSLContext | None) -> None:
    fill(trio[0], "all-stream", 20, {"x-queue-type": "stream"})
    for node in trio:
        with client_of(tls, node) as client:
            assert {one.number: one.body for sheet in client.read("all-stream", 0, 19) for one in sheet} == {
                number - 1: body for number, body in wanted(20).items()
            }


def test_the_master_dies_in_the_middle_of_a_read(trio: Cluster, tls: ssl.SSLContext | None) -> None:
    """Reader and lease go on at another node, with the same numbers and places, and nothing is missing. When it comes
    back it is found again, though its port is another one, since the system chose it."""
    fill(trio[0], "all-killed", 60)
    fill(trio[0], "only-there", 3)
    with client_of(tls, *trio) as client, client_of(tls, trio[1]) as other:
        assert read(other, "only-there", 3) == wanted(3)
        client.lease_open("all-killed", "job")
        before = client.lease_take("all-killed", "job", 40)
        assert before.next == 40
        found: dict[int, bytes] = {}
        for at, sheet in enumerate(client.read("all-killed", 1, 60, bytes_max=400)):
            if at == 3:
                trio[0].kill()
            found |= {one.number: one.body for one in sheet}
        assert found == wanted(60)
        after = client.lease_ack("all-killed", "job", 10)
        assert (after.acked, after.next, after.runs) == (10, 40, ((10, 11, 40),))
        assert sorted(read(client, "all-killed", 60)) == list(range(11, 61))
        assert client.wait("all-killed", 60, 0) == 61
        trio.mend()
        assert read(other, "only-there", 3) == wanted(3)


def check_that_one_is_down(cluster: Cluster, lost: Member, left: Member, tls: ssl.SSLContext | None) -> None:
    """The queue of a node that is down is listed as such, beside those that are not, whichever node is asked first."""
    fill(lost, "apart-down", 3)
    fill(left, "apart-up", 5)
    lost.kill()
    with client_of(tls, lost, left) as client:
        listed: list[QueueInfo] = []

        def is_known() -> bool:
            listed[:] = client.queues(pattern="apart-.*")
            return listed[0].is_down

        until(is_known, "the other node knows that this one is down")
        down, up = listed
        assert (down.name, down.master, down.messages, down.next) == ("apart-down", lost.name, 0, 0)
        assert (up.name, up.is_down, up.messages, up.next) == ("apart-up", False, 5, 6)
        assert [member.url for member in down.members] == [None]
        assert isinstance(client.leases(), list)
        client.patience_s = 0.2
        with pytest.raises(Unreachable, match=f"says: node {lost.name} is not running") as caught:
            client.queues(["apart-down"])
        assert caught.value.was_answered
    cluster.mend()


def test_a_node_that_is_down_is_an_unknown_part_of_the_answer(trio: Cluster, tls: ssl.SSLContext | None) -> None:
    check_that_one_is_down(trio, trio[1], trio[0], tls)


def test_one_of_two_nodes_answers_for_itself(tmp_path: Path) -> None:
    pair = Cluster(tmp_path, CONFIG, size=2)
    try:
        pair.start()
        check_that_one_is_down(pair, pair[0], pair[1], None)
    finally:
        pair.end()


def test_tls(trio: Cluster, certificates: Path | None, tls: ssl.SSLContext | None) -> None:
    if certificates is None:
        pytest.skip("no openssl on this machine")
    fill(trio[0], "all-tls", 5)
    with client_of(tls, trio[2]) as client:
        assert read(client, "all-tls", 5) == wanted(5)
        with pytest.raises(Refused):
            client.read_sheet("no-such-queue", 1)
    stranger = DataClient(f"https://127.0.0.1:{trio[2].management_port}", patience_s=0.1)
    with pytest.raises(Unreachable, match="certificate verify failed"):
        stranger.queues(["all-tls"])
