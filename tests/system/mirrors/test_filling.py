"""Copies that lack something get it while the queue is used, and fetch no more than they lack."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from tests.support.consumer import numbers
from tests.support.members import Cluster, Member, StartCluster
from tests.support.servers import until
from tests.system.mirrors.ledger import Ledger
from tests.system.mirrors.rings import (
    await_in_sync,
    await_master,
    count,
    declare,
    drain,
    fill_fast,
    is_in_sync,
    lead_by,
    master_of,
    mirror,
)

BACKLOG = 30_000
PADDING = 500
SPILLED = 4_000


def test_a_backlog_becomes_mirrored_while_it_is_used(nodes: Cluster, name: str) -> None:
    """A policy is set on a queue with a backlog. Publishers and consumers go on; then its node dies."""
    master, one, other = nodes
    declare(master, name)
    fill_fast(master, name, range(BACKLOG), padding=PADDING)
    declare(master, f"{name}-used")
    ledger = Ledger(nodes, random.Random(1))
    book = ledger.add(f"{name}-used", at=[one, other])
    with ledger:
        ledger.await_progress()
        mirror(other, name)
        for queue in (name, f"{name}-used"):
            await_in_sync(other, queue, nodes)
        ledger.await_progress()
        master.kill()
        ledger.await_progress()
        ledger.finish()
    assert book.cancels == 0
    assert [body for body, _ in drain(one, name)] == numbers(*range(BACKLOG))


@pytest.mark.parametrize("durable", [True, False], ids=["durable", "not-durable"])
def test_what_only_memory_held_is_mirrored_too(nodes: Cluster, name: str, durable: bool) -> None:
    """Transient messages, waiting and with a consumer, among persistent ones, from before the policy was set."""
    master, one, other = nodes
    declare(master, name, durable)
    for start in range(0, 3_000, 500):
        fill_fast(master, name, range(start, start + 500), persistent=bool(start % 1_000))
    reader = one.channel()
    tags = [reader.basic_get(name)[0].delivery_tag for _ in range(20)]
    reader.basic_ack(tags[9], multiple=True)
    assert count(one, name) == 2_980
    mirror(other, name)
    await_in_sync(one, name, nodes)
    fill_fast(one, name, range(3_000, 3_100), persistent=False)
    reader.basic_ack(tags[14], multiple=True)
    reader.queue_declare(name, passive=True)
    fill_fast(one, name, range(3_100, 3_200))
    master.kill()
    await_master(one, name, (one, other))
    taken = drain(other, name)
    assert [body for body, _ in taken] == numbers(*range(15, 3_200))
    assert all(redelivered for _, redelivered in taken[:5])
    assert sum(redelivered for _, redelivered in taken) < 50


def test_what_was_spilled_is_mirrored_too(start_cluster: StartCluster, name: str) -> None:
    """Transient messages that a node short of memory has put away, just to have them out of it."""
    nodes = start_cluster("content_cache_bytes = 0\nvm_memory_high_watermark_paging_ratio = 0.0001")
    master, one, other = nodes
    queues = (f"{name}-durable", f"{name}-not")
    for queue in queues:
        declare(master, queue, durable=queue == queues[0])
        for start in range(0, SPILLED, 1_000):
            fill_fast(master, queue, range(start, start + 1_000), persistent=bool(start % 2_000), padding=PADDING)
        reader = one.channel()
        tags = [reader.basic_get(queue)[0].delivery_tag for _ in range(20)]
        reader.basic_ack(tags[9], multiple=True)
        assert count(one, queue) == SPILLED - 20
    mirror(other, name)
    for queue in queues:
        fill_fast(one, queue, range(SPILLED, SPILLED + 100), persistent=False, padding=PADDING)
        await_in_sync(one, queue, nodes)
    master.kill()
    for queue in queues:
        await_master(one, queue, (one, other))
        taken = drain(other, queue)
        assert [body for body, _ in taken] == numbers(*range(10, SPILLED + 100))
        assert all(redelivered for _, redelivered in taken[:10])


def written_bytes(node: Member) -> int:
    """What a node has written since it began, to files and to others."""
    found = re.search(r"wchar: (\d+)", Path(f"/proc/{node.pid}/io").read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_returning_mirror_fetches_only_what_it_lacks(start_cluster: StartCluster, name: str, how: str) -> None:
    nodes = start_cluster()  # With nothing else in its logs: a node also writes when it copies what lives of a segment.
    master, _, mirror_ = nodes
    mirror(master, name)
    declare(master, name)
    fill_fast(master, name, range(BACKLOG), padding=PADDING)
    await_in_sync(master, name, nodes)
    mirror_.kill() if how == "kill" else mirror_.stop()
    fill_fast(master, name, range(BACKLOG, BACKLOG + 1_000), padding=PADDING)
    mirror_.start()
    await_in_sync(master, name, nodes)
    # A thirtieth of that is missing. But the node writes on its own account too: a start checkpoints the log and clears
    # what lies behind its end.
    assert written_bytes(mirror_) < BACKLOG * PADDING // 2
    lead_by(nodes, name, mirror_)
    assert [body for body, _ in drain(mirror_, name)] == numbers(*range(BACKLOG + 1_000))


def test_the_master_dies_while_another_fills(nodes: Cluster, name: str) -> None:
    """The copy that fills goes on with the next master."""
    master, one, filling = nodes
    mirror(master, name)
    declare(master, name)
    filling.kill()
    fill_fast(master, name, range(BACKLOG), padding=PADDING)
    filling.spawn()
    filling.wait_until_ready()
    master_of(nodes, name, one).kill()
    await_master(one, name, nodes.others(master))
    fill_fast(one, name, range(BACKLOG, BACKLOG + 100), padding=PADDING)
    nodes.start()
    await_in_sync(one, name, nodes)
    master_of(nodes, name, one).kill()
    alive = next(node for node in nodes if node.is_running)
    assert [body for body, _ in drain(alive, name)] == numbers(*range(BACKLOG + 100))


def test_the_one_that_fills_dies(nodes: Cluster, name: str) -> None:
    """Several times, each time a little later."""
    master, _, filling = nodes
    mirror(master, name)
    declare(master, name)
    filling.kill()
    fill_fast(master, name, range(BACKLOG), padding=PADDING)
    for _ in range(3):
        filling.start()
        filling.kill()
    filling.start()
    nodes.wait_until_whole()
    await_in_sync(master, name, nodes)
    master_of(nodes, name).kill()
    assert [body for body, _ in drain(filling, name)] == numbers(*range(BACKLOG))


def test_what_was_consumed_meanwhile_is_gone_everywhere(nodes: Cluster, name: str) -> None:
    master, one, away = nodes
    mirror(master, name)
    declare(master, name)
    fill_fast(master, name, range(1_000))
    await_in_sync(master, name, nodes)
    away.kill()
    channel = one.channel()
    for _ in range(500):
        channel.basic_ack(channel.basic_get(name)[0].delivery_tag)
    fill_fast(one, name, range(1_000, 1_100))
    nodes.start()
    await_in_sync(one, name, nodes)
    lead_by(nodes, name, away)
    assert [body for body, _ in drain(away, name)] == numbers(*range(500, 1_100))


def test_a_wiped_node_gets_everything_again(nodes: Cluster, name: str) -> None:
    """It has to be forgotten first: it must not vote as the one it was. Then it is a new node, and gets copies."""
    wiped = nodes.others(nodes.leader(), nodes[0])[0]
    master = nodes[0]
    mirror(master, name)
    declare(master, name)
    fill_fast(master, name, range(5_000))
    wiped.kill()
    shutil.rmtree(wiped.data)
    until(lambda: len(master.status()["running_nodes"]) == 2, "its loss was noticed")
    master.control("forget_cluster_node", name=wiped.name)
    until(lambda: is_in_sync(master, name, nodes.others(wiped)), "it is no part of the ring")
    wiped.start()
    nodes.wait_until_whole()
    await_in_sync(master, name, nodes)
    master.kill()
    assert [body for body, _ in drain(wiped, name)] == numbers(*range(5_000))
