"""Disks that fail under mirrored queues: one that stalls, one whose syncs fail, one that is full. The others go on."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pika
import pytest

from tests.support.members import PERSISTENT, Cluster, Member, StartCluster
from tests.support.servers import until
from tests.system.mirrors.rings import await_in_sync, await_master, copies, declare, drain, mirror

CONFIG = "cluster.operation_timeout = 5000\nmemory_monitor_interval = 100ms"


class Publisher(threading.Thread):
    """Publishes one message after the other at a node, and notes which are confirmed."""

    def __init__(self, node: Member, queue: str, size: int = 100) -> None:
        super().__init__()
        self.queue, self.size = queue, size
        self.halt = threading.Event()
        self.sent = 0
        self.confirmed: list[int] = []
        self.channel = node.channel(confirms=True, blocked_connection_timeout=None)
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self.halt.is_set():
                number, self.sent = self.sent, self.sent + 1
                body = (b"%d" % number).ljust(self.size)
                with suppress(pika.exceptions.NackError):
                    self.channel.basic_publish("", self.queue, body, PERSISTENT)
                    self.confirmed.append(number)
        except BaseException as error:  # Shown by `end`, in the test's own thread.
            self.failure = error

    def await_more(self, count: int, seconds: float = 60.0) -> None:
        wanted = len(self.confirmed) + count
        until(lambda: len(self.confirmed) >= wanted or self.failure, f"{count} more are confirmed", seconds)
        assert self.failure is None, self.failure

    def end(self) -> None:
        self.halt.set()
        self.join()
        assert self.failure is None, self.failure


def check_kept(node: Member, publisher: Publisher) -> None:
    """All that was confirmed is there, in order; nothing is there twice."""
    bodies = [int(body) for body, _ in drain(node, publisher.queue)]
    assert set(publisher.confirmed) <= set(bodies)
    assert bodies == sorted(set(bodies))


def run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a small file system of one's own, or skip the test with the reason why that is not possible."""
    mounted: list[Path] = []

    def on(kind: str, megabytes: int) -> Path:
        folder, image = tmp_path / f"disk{len(mounted)}", tmp_path / f"image{len(mounted)}"
        folder.mkdir()
        try:
            if kind == "tmpfs":
                run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
            else:
                with open(image, "wb") as file:
                    file.truncate(megabytes << 20)
                run("mkfs.ext4", "-q", str(image))
                run("mount", "-o", "loop", str(image), str(folder))
        except OSError as error:
            pytest.skip(f"no file system can be mounted here: {error}")
        mounted.append(folder)
        return folder

    yield on
    for folder in mounted:
        subprocess.run(["fsfreeze", "-u", str(folder)], capture_output=True, check=False)  # If a test left it so.
        run("umount", "-l", str(folder))


def begin(nodes: Cluster, queue: str, master: Member) -> None:
    """A mirrored queue, in sync everywhere, that a certain node leads."""
    nodes.start()
    mirror(nodes[0], queue)
    declare(master, queue)
    await_in_sync(nodes[0], queue, nodes)
    assert copies(nodes[0], queue).master == master.name


@pytest.mark.long
@pytest.mark.parametrize("leads", [False, pytest.param(True, marks=pytest.mark.long)], ids=["master", "leader"])
def test_a_disk_that_stalls(start_cluster: StartCluster, mount: Callable[..., Path], name: str, leads: bool) -> None:
    """The node that leads the queue, and the cluster perhaps, can write nothing and does not know why. Others lead, and
    confirm. When its disk answers again it is a mirror like any other; it never stopped."""
    disk = mount("ext4", 64)
    nodes = start_cluster(CONFIG, begin=False)
    sick, sound = nodes[0 if leads else 2], nodes[1]
    sick.data = disk / "data"
    begin(nodes, name, sick)
    publisher = Publisher(sound, name)
    publisher.await_more(100)
    run("fsfreeze", "-f", str(disk))
    try:
        await_master(sound, name, nodes.others(sick), 30.0)
        publisher.await_more(300)
        assert sick.name not in copies(sound, name).synchronised
        assert sick.is_running
    finally:
        run("fsfreeze", "-u", str(disk))
    await_in_sync(sound, name, nodes)
    publisher.end()
    mirror(sound, name, "nodes", [sick.name])  # What has it got?
    await_in_sync(sound, name, [sick])
    check_kept(sick, publisher)


@pytest.mark.parametrize("role", ["master", pytest.param("mirror", marks=pytest.mark.long)])
def test_a_sync_that_fails(start_cluster: StartCluster, name: str, role: str) -> None:
    """The node confirms nothing any more and ends. It counts as in sync nowhere, until it has been started again."""
    nodes = start_cluster(CONFIG, begin=False)
    sick, sound = nodes[0], nodes[1]
    sick.launcher = (sys.executable, "-m", "tests.support.faulty", str(sick.folder))
    begin(nodes, name, sick if role == "master" else nodes[2])
    publisher = Publisher(sound, name)
    publisher.await_more(100)
    (sick.folder / "fail-sync").touch()
    assert sick.wait() == 70
    assert "Nothing is confirmed any more; the node stops" in sick.log()
    await_master(sound, name, nodes.others(sick), 30.0)
    publisher.await_more(300)
    assert sick.name not in copies(sound, name).synchronised
    (sick.folder / "fail-sync").unlink()
    sick.start()
    await_in_sync(sound, name, nodes)
    publisher.end()
    mirror(sound, name, "nodes", [sick.name])
    await_in_sync(sound, name, [sick])
    check_kept(sick, publisher)


@pytest.mark.long
def test_a_disk_that_is_full(start_cluster: StartCluster, mount: Callable[..., Path], name: str) -> None:
    """Of one node: publishers of all wait, and are told; consumers make room. With space, all go on by themselves."""
    disk = mount("tmpfs", 48)
    nodes = start_cluster(f"{CONFIG}\nsegment_bytes = 1MiB\ndisk_free_limit.absolute = 20MB", begin=False)
    sick, sound = nodes[2], nodes[1]
    sick.data = disk / "data"
    begin(nodes, name, sound)
    publisher = Publisher(sound, name, 100_000)
    until(lambda: f"disk resource limit alarm set on node {sick.name}" in sound.log(), "it is known at another")
    declare(sound, f"{name}-more")  # Metadata still fits.
    channel = sound.channel()
    taken = set()
    for method, _, body in channel.consume(name, inactivity_timeout=1.0):
        if method is None:
            break
        taken.add(int(body))
        channel.basic_ack(method.delivery_tag)
    until(lambda: f"disk resource limit alarm cleared on node {sick.name}" in sound.log(), "there is space again")
    channel.cancel()
    publisher.await_more(5)
    publisher.end()
    await_in_sync(sound, name, nodes)
    rest = {int(body) for body, _ in drain(sound, name)}
    assert set(publisher.confirmed) <= taken | rest
    assert len(taken) > 100 and sick.is_running
