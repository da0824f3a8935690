"""A node of three whose files are damaged: it says so and does not start, one command helps, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.consumer import fill, get_all, numbers, waiting
from tests.support.members import PERSISTENT, Cluster, Member
from tests.support.servers import ROOT
from tests.system.mirrors.rings import await_in_sync, await_master, copies, declare, fill_fast, master_of, mirror

COUNT = 300
FAR = 700_000  # Numbers that are nowhere else in a file.


def recover(node: Member, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "leveret", "recover", str(node.data), *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def refused(node: Member) -> str:
    """What a start says that does not succeed."""
    before = len(node.log())
    node.spawn()
    assert node.wait() == 65
    assert "Traceback" not in node.log()
    return node.log()[before:]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def files(node: Member) -> dict[str, bytes]:
    return {str(path.relative_to(node.data)): path.read_bytes() for path in node.data.rglob("*") if path.is_file()}


def newest(node: Member) -> str:
    """Where the last command has put what it replaced."""
    return f"damaged/{max(int(path.name) for path in (node.data / 'damaged').iterdir())}"


@pytest.fixture
def victim(nodes: Cluster, name: str) -> Member:
    """A node with a copy of a mirrored queue, and a queue of its own; both hold messages."""
    mirror(nodes[0], name)
    declare(nodes[0], name)
    await_in_sync(nodes[0], name, nodes)
    victim = nodes.others(master_of(nodes, name), nodes.leader())[0]
    declare(victim, f"own-{name}")
    fill_fast(nodes[0], name, range(COUNT))
    fill(victim.channel(confirms=True), f"own-{name}", range(COUNT), properties=PERSISTENT)
    return victim


def is_as_before(nodes: Cluster, victim: Member, name: str) -> None:
    nodes.wait_until_whole()
    await_in_sync(nodes[0], name, nodes)
    assert get_all(victim.channel(), f"own-{name}") == numbers(*range(COUNT))
    victim.channel(confirms=True).basic_publish("", f"own-{name}", b"more", PERSISTENT)
    mirror(victim, name, "nodes", [victim.name])  # Let the copy that was filled again show what it has.
    await_in_sync(victim, name, [victim])
    assert get_all(victim.channel(), name) == numbers(*range(COUNT))


@pytest.mark.parametrize("what", ["log", pytest.param("identity", marks=pytest.mark.long)])
def test_metadata(nodes: Cluster, victim: Member, name: str, what: str) -> None:
    """It becomes another voter under its name. Its own queue keeps its messages, its copy is filled again."""
    victim.kill()
    folder = victim.data / "metadata"
    path = folder / "identity" if what == "identity" else min(folder.glob("log-*"))
    flip(path, 10 if what == "identity" else path.stat().st_size // 2)
    text = refused(victim)
    assert f"metadata/{path.name}" in text and f"leveret recover {victim.data}" in text
    before = files(victim)
    done = recover(victim)
    assert done.returncode == 0, done.stderr
    assert f"metadata/{path.name}" in done.stdout
    after, aside = files(victim), newest(victim)
    for old, data in before.items():
        assert after[f"{aside}/{old}" if old.startswith("metadata/") else old] == data, "nothing is deleted"
    nodes.others(victim)[0].channel().queue_declare(f"later-{name}", durable=True)
    victim.start()
    assert "replaces its former incarnation" in "".join(one.log() for one in nodes.others(victim))
    is_as_before(nodes, victim, name)
    assert len(victim.status()["members"]) == 3
    assert waiting(victim.channel(), f"later-{name}") == 0
    assert not {"join", "replace"} & {path.name for path in victim.data.iterdir()}


def test_a_log_without_its_end(nodes: Cluster, victim: Member, name: str) -> None:
    """It looks as if the power had failed during a write, so the node starts. Its copy is in sync by what the cluster
    has agreed on, and lacks what it had acknowledged: it leaves its ring and is made anew."""
    victim.kill()
    segment, at = find(victim, name, COUNT - 5)
    with open(segment, "r+b") as file:
        file.truncate(at)
    victim.start()
    nodes.wait_until_whole()
    await_in_sync(nodes[0], name, nodes)
    assert "internal error" not in victim.log()
    mirror(victim, name, "nodes", [victim.name])
    await_in_sync(victim, name, [victim])
    assert get_all(victim.channel(), name) == numbers(*range(COUNT))


def test_messages_of_a_mirrored_queue(nodes: Cluster, victim: Member, name: str) -> None:
    """Others have them: nothing is lost, and the copy is filled again."""
    victim.kill()
    segment, at = find(victim, name, COUNT - 5)
    flip(segment, at)
    before = files(victim)
    text = refused(victim)
    assert f"{segment.name} at " in text and f"queue '{name}' in vhost '/'" in text
    assert f"leveret recover {victim.data}" in text
    assert {path: data for path, data in files(victim).items() if path in before} == before, "it is left as it was"
    done = recover(victim)
    assert done.returncode == 0, done.stderr
    assert f"that their masters will synchronise again: queue '{name}' in vhost '/'\n" in done.stdout
    assert "lost" not in done.stdout
    path = str(segment.relative_to(victim.data))
    assert files(victim)[f"{newest(victim)}/{path}"] == before[path], "nothing is deleted"
    victim.start()
    is_as_before(nodes, victim, name)


def test_a_damaged_copy_does_not_lead(nodes: Cluster, name: str) -> None:
    """All nodes lose their power, and one that was in sync finds damage. Until the other one is back it leads the queue
    that it has all of, and not the one that it lacks something of."""
    master, victim, third = nodes
    hurt, whole = f"{name}-hurt", f"{name}-whole"
    mirror(master, name, "nodes", [master.name, victim.name])
    for queue in (whole, hurt):
        declare(master, queue)
        await_in_sync(master, queue, [master, victim])
    fill_fast(master, hurt, range(FAR, FAR + COUNT))
    fill_fast(master, whole, range(COUNT))  # The last that is written could be cut off as never finished.
    for node in (third, victim):
        node.freeze()  # So that nobody can agree on what the first death changes.
    for node in (master, third, victim):
        node.kill()
    flip(*find(victim, hurt, FAR + 5))
    assert f"queue '{hurt}' in vhost '/'" in refused(victim)
    assert recover(victim).returncode == 0
    for node in (third, victim):
        node.spawn()
    for node in (third, victim):
        node.wait_until_ready()
    await_master(third, whole, [victim])
    assert copies(third, hurt).master == master.name
    master.start()
    await_in_sync(third, hurt, [master, victim])
    assert get_all(third.channel(), hurt) == numbers(*range(FAR, FAR + COUNT))
    assert get_all(third.channel(), whole) == numbers(*range(COUNT))


def find(node: Member, queue: str, number: int) -> tuple[Path, int]:
    """Where a message is: behind its queue's name, which is the routing key of all in a block."""
    for segment in node.segments():
        data = segment.read_bytes()
        key = data.find(b"\0%c%s" % (len(queue), queue.encode()))
        at = data.find(b"%d" % number, key)
        if key >= 0 <= at:
            return segment, at
    raise AssertionError("it is in no segment")


def test_messages_of_its_own(nodes: Cluster, victim: Member, name: str) -> None:
    """What nobody else has and cannot be read is lost, and named; all else is there."""
    done = recover(victim)
    assert done.returncode == 69 and "stop it first" in done.stderr
    victim.kill()
    segment, at = find(victim, f"own-{name}", COUNT - 5)
    flip(segment, at)
    text = refused(victim)
    assert f"{segment.name} at " in text and f"queue 'own-{name}' in vhost '/'" in text
    assert f"leveret recover {victim.data}" in text
    spoiled = segment.read_bytes()
    done = recover(victim)
    assert done.returncode == 0, done.stderr
    assert f"queue 'own-{name}' in vhost '/': messages {COUNT - 4}\n" in done.stdout
    assert (victim.data / newest(victim) / segment.relative_to(victim.data)).read_bytes() == spoiled
    assert recover(victim).stdout == "nothing is damaged\n"
    victim.start()
    nodes.wait_until_whole()
    await_in_sync(nodes[0], name, nodes)
    left = [number for number in range(COUNT) if number != COUNT - 5]
    assert get_all(victim.channel(), f"own-{name}") == numbers(*left)
    assert waiting(victim.channel(), name) == COUNT
