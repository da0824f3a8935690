"""Who gets in at the cluster port: nobody without the cookie, nobody under a name that is taken."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from leveret.node.config.settings import TlsOptions
from leveret.node.sockets.peer_socket import CallFailed
from tests.support.consumer import fill, get_all, numbers, waiting
from tests.support.members import PERSISTENT, Cluster, Member, StartCluster
from tests.support.servers import until

IMPATIENT = "cluster_formation.discovery_retry_limit = 3\ncluster_formation.discovery_retry_interval = 100"


@pytest.fixture
def stranger(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """Make a node that is none of the cluster's yet."""
    made: list[Member] = []

    def make(name: str, config: str = IMPATIENT, **options: Any) -> Member:
        made.append(Member(tmp_path / f"stranger{len(made)}", name, config, **options))
        return made[-1]

    yield make
    for node in made:
        node.end()


@pytest.mark.parametrize("cookie", ["foxes", None], ids=["wrong", "none"])
def test_without_the_cookie(cluster: Cluster, stranger: Any, cookie: str | None) -> None:
    node = stranger("fox@localhost", cookie=cookie, join=(cluster[0].cluster_port,))
    node.spawn()
    assert node.wait() == 69
    assert "cookie" in node.log()
    assert "foxes" not in node.log()
    assert len(cluster[0].status()["members"]) == 3
    assert "hares" not in cluster[0].log()


def test_nobody_is_asked_anything_without_the_cookie(cluster: Cluster) -> None:
    cheat = Member(cluster[0].folder.parent / "cheat", "cheat@localhost", "", cookie="foxes")
    cheat.cluster_port = cluster[0].cluster_port
    with pytest.raises(CallFailed):
        cheat.control("list_users")


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "amqp": b"AMQP\x00\x00\x09\x01",
    "zeros": bytes(4096),
    "random": bytes(os.urandom(65_536)),
    "long-frame": struct.pack(">IB", 0xFFFF_FFFF, 1) + bytes(100),
    "nothing": b"",
}


def test_garbage_at_the_cluster_port(cluster: Cluster, name: str) -> None:
    """It is cut off; the cluster does not even blink."""
    before = cluster[1].resident_bytes()
    for _ in range(5):
        for says in GARBAGE.values():
            with socket.create_connection(("127.0.0.1", cluster[1].cluster_port), timeout=60) as link:
                try:
                    link.sendall(says)
                    link.shutdown(socket.SHUT_WR)
                    while link.recv(65_536):
                        pass
                except (ConnectionResetError, BrokenPipeError, OSError):
                    pass
    assert cluster[1].resident_bytes() < before + (50 << 20)
    channel = cluster[0].channel()
    channel.queue_declare(name)
    assert waiting(cluster[1].channel(), name) == 0
    assert all(len(node.status()["running_nodes"]) == 3 for node in cluster)


def test_many_silent_connections(cluster: Cluster, name: str) -> None:
    """Links of members and control calls still get through."""
    silent = [socket.create_connection(("127.0.0.1", cluster[2].cluster_port)) for _ in range(200)]
    try:
        assert len(cluster[2].status()["running_nodes"]) == 3
        cluster[2].channel().queue_declare(name)
        assert waiting(cluster[0].channel(), name) == 0
    finally:
        for one in silent:
            one.close()


def test_a_second_node_of_the_same_name(cluster: Cluster, stranger: Any) -> None:
    node = stranger(cluster[1].name, join=(cluster[0].cluster_port,))
    node.spawn()
    assert node.wait() == 69
    assert f"another incarnation of {cluster[1].name} is a member" in node.log()
    assert all(len(one.status()["running_nodes"]) == 3 for one in cluster)


def test_a_wiped_node(nodes: Cluster, name: str) -> None:
    """It must not vote as the one it was. The text says what to do, and that helps."""
    wiped = nodes.others(nodes.leader(), nodes[0])[0]
    helper = nodes.others(wiped)[0]
    wiped.channel().queue_declare(name, durable=True)
    wiped.kill()
    shutil.rmtree(wiped.data)
    wiped.spawn()
    assert wiped.wait() == 69
    assert f"leveretctl forget_cluster_node {wiped.name}" in wiped.log()
    helper.control("forget_cluster_node", name=wiped.name)
    wiped.start()
    nodes.wait_until_whole()
    channel = wiped.channel(confirms=True)
    channel.queue_declare(name)  # With the old node went its queue.
    fill(channel, name, range(3))
    assert get_all(helper.channel(), name) == numbers(0, 1, 2)


def test_a_member_of_another_cluster(cluster: Cluster, stranger: Any) -> None:
    """With data of its own it stays what it is, whatever --join says."""
    hermit = stranger("hermit@localhost", "").start()
    hermit.channel().queue_declare("cave", durable=True)
    hermit.stop()
    hermit.join = (cluster[0].cluster_port,)
    hermit.start()
    assert waiting(hermit.channel(), "cave") == 0
    assert hermit.status()["running_nodes"] == ["hermit@localhost"]
    assert len(cluster[0].status()["members"]) == 3


# -- TLS between nodes -------------------------------------------------------------------------------------------


def openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, and a node that each vouches for."""
    folder = tmp_path_factory.mktemp("certificates")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    for authority, name in ("ca", "node"), ("other", "fox"):
        openssl("req", "-x509", *key, "-days", "2", "-subj", f"/CN={authority}",
                "-keyout", f"{folder}/{authority}.key", "-out", f"{folder}/{authority}.pem")  # fmt: skip
        openssl("req", "-x509", *key, "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
                "-addext", "basicConstraints=critical,CA:FALSE", "-CA", f"{folder}/{authority}.pem", "-CAkey",
                f"{folder}/{authority}.key", "-keyout", f"{folder}/{name}.key", "-out",
                f"{folder}/{name}.pem")  # fmt: skip
    return folder


def tls_config(folder: Path, authority: str, name: str) -> str:
    return (
        f"cluster.ssl_options.cacertfile = {folder}/{authority}.pem\n"
        f"cluster.ssl_options.certfile = {folder}/{name}.pem\n"
        f"cluster.ssl_options.keyfile = {folder}/{name}.key\n"
    )


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_tls(start_cluster: StartCluster, certificates: Path, stranger: Any) -> None:
    nodes = start_cluster(tls_config(certificates, "ca", "node"), begin=False)
    for node in nodes:
        node.tls = TlsOptions(
            certfile=f"{certificates}/node.pem", keyfile=f"{certificates}/node.key", cacertfile=f"{certificates}/ca.pem"
        )
    nodes.start()
    nodes[0].channel().queue_declare("q", durable=True)
    channel = nodes[1].channel(confirms=True)
    body = os.urandom(3 << 20)
    for _ in range(3):
        channel.basic_publish("", "q", body, PERSISTENT)
    assert get_all(nodes[2].channel(), "q") == [body] * 3

    # The cookie alone does not do, nor does another authority's certificate.
    join = (nodes[0].cluster_port,)
    plain = stranger("plain@localhost", join=join)
    fox = stranger("fox@localhost", f"{IMPATIENT}\n{tls_config(certificates, 'other', 'fox')}", join=join)
    for node in (plain, fox):
        node.spawn()
    for node in (plain, fox):
        assert node.wait() == 69
    assert len(nodes[0].status()["members"]) == 3
    nodes[2].kill()
    until(lambda: len(nodes[0].status()["running_nodes"]) == 2, "the loss was noticed")
    nodes.start()
