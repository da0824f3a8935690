"""Journals of three real nodes: what they add up to while masters are killed, and what one node knows after kill -9."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.consumer import fill, get_all
from tests.support.members import PERSISTENT, Cluster, Member, Refused, refusal
from tests.support.servers import until
from tests.system.mirrors.audit import accounted, came, events, numbers, read, settled, unaccounted
from tests.system.mirrors.ledger import Ledger
from tests.system.mirrors.rings import await_in_sync, await_master, count, declare, mirror, unmirror


def watch(node: Member, name: str, mode: str = "full") -> None:
    definition = {"journal": mode}
    node.control(
        "set_policy", vhost="/", name=name, pattern=f"^{name}", definition=definition, priority=len(name),
        apply_to="queues", operator=False,
    )  # fmt: skip


def has_journal(asked: Member, *owners: Member) -> bool:
    found = {row[0] for row in asked.control("list_queues", vhost="/", columns=["name"], after=None)["rows"]}
    return all(f"leveret.journal.{owner.name}" in found for owner in owners)


@pytest.fixture(autouse=True)
def tidy(nodes: Cluster, name: str) -> Iterator[None]:
    """Other tests with the same nodes have not asked for journals."""
    yield
    if any(one["name"] == name for one in nodes[0].control("list_policies", vhost="/", operator=False)):
        unmirror(nodes[0], name)
    for node in nodes:
        if has_journal(nodes[0], node):
            journal = f"leveret.journal.{node.name}"
            nodes[0].control("delete_queue", vhost="/", name=journal, if_empty=False, if_unused=False)


def gather(asked: Member, nodes: Cluster, queue: str) -> list[list[Any]]:
    return [event for node in nodes for event in events(read(asked, node), queue)]


def test_nothing_is_unaccounted_for_after_the_master_was_killed(nodes: Cluster, name: str) -> None:
    master, *others = nodes
    mirror(master, name, journal="full")
    declare(master, name)
    until(lambda: has_journal(master, *nodes), "all nodes keep journals")
    ledger = Ledger(nodes, random.Random(1))
    book = ledger.add(name, publishers=2, readers=2, at=others)
    with ledger:
        ledger.await_progress()
        master.kill()
        ledger.await_progress()
        await_master(others[0], name, others)
        nodes.start()
        await_in_sync(others[0], name, nodes)
        ledger.finish()
    until(lambda: count(master, name) == 0, "all was acknowledged")
    until(lambda: not unaccounted(gather(others[0], nodes, name)), "every confirmed message is accounted for")

    def is_all_told() -> bool:
        told = gather(others[0], nodes, name)
        return book.confirmed_count <= len(came(told) & accounted(told))

    until(is_all_told, "what the killed node had no time to write of is known by its mirrors, and by the next master")
    told = gather(others[1], nodes, name)
    confirmed = numbers(told, "confirmed")
    assert confirmed <= came(told)
    assert len(confirmed) > book.confirmed_count // 2
    assert numbers(told, "acked") <= numbers(told, "delivered") | numbers(told, "replicated")
    (promoted,) = [event for event in told if event[0] == "promoted"]
    assert promoted[6] == master.name and not promoted[7]["forced"]
    # And it would be seen: without what was told of one message's end, that one is missing.
    victim = min(confirmed)
    blind = [event for event in told if not event[3] <= victim <= event[4] or event[0] in ("confirmed", "published")]
    assert victim in unaccounted(blind)


def test_what_is_left_after_kill_9(nodes: Cluster, name: str) -> None:
    """Of one node, without mirrors: what is settled on disk is told, and what is told to have come is there."""
    node = nodes[0]
    watch(node, name)
    channel = node.channel(confirms=True)
    channel.queue_declare(name, durable=True)
    until(lambda: has_journal(node, node), "the node keeps a journal")
    fill(channel, name, range(50), properties=PERSISTENT)
    for _ in range(20):
        method, _, _ = channel.basic_get(name)
        channel.basic_ack(method.delivery_tag)
    fill(channel, name, range(50, 60), properties=PERSISTENT)  # When this is confirmed, the acks are on disk.
    node.kill()
    nodes.start()
    until(lambda: has_journal(node, node), "the node has heard of its journal again")
    until(lambda: numbers(events(read(node, node), name), "recovered"), "the node tells what it knows")
    told = events(read(node, node), name)
    assert came(told) == set(range(1, 61)) >= numbers(told, "published")
    assert accounted(told) == settled(told) == set(range(1, 21)) >= numbers(told, "acked")
    assert set(range(1, 60)) >= numbers(told, "confirmed")  # The last was told to its client only.
    again = [event for event in told if event[0] == "recovered" and event[7]["what"] == "published"]
    assert {(event[6], event[7]["said"][0] - event[3]) for event in again} == {
        (event[6], event[7]["said"][0] - event[3]) for event in told if event[0] == "published"
    }
    assert len(get_all(node.channel(), name)) == 40
    until(lambda: not unaccounted(events(read(node, node), name)), "every confirmed message is accounted for")
    started = [event for event in events(read(node, node), name) if event[0] == "started"]
    assert [event[4] for event in started] == [0, 60] and [event[7]["epoch"] for event in started] == [1, 2]


def test_who_may_do_what_with_a_journal(nodes: Cluster, name: str) -> None:
    node, other, _ = nodes
    watch(node, name)
    declare(node, name)
    journal = f"leveret.journal.{node.name}"
    until(lambda: has_journal(other, node), "the node keeps a journal")
    assert refusal(other.channel().queue_delete, journal)[0] == 403
    assert refusal(other.channel().queue_bind, journal, "amq.fanout")[0] == 403
    node.add_user("auditor", "secret")
    node.control("set_permissions", vhost="/", user="auditor", configure="", write="", read="^leveret\\.journal\\.")
    node.add_user("stranger", "secret")
    node.control("set_permissions", vhost="/", user="stranger", configure="", write="", read="^q")
    for user, may in (("auditor", True), ("stranger", False)):
        channel = other.connect(user, "secret").channel()
        channel.basic_qos(prefetch_count=1)
        if may:
            assert channel.basic_consume(journal, lambda *_: None)
        else:
            assert refusal(channel.basic_consume, journal, lambda *_: None)[0] == 403


def test_a_mode_that_is_none(nodes: Cluster, name: str) -> None:
    with pytest.raises(Refused, match='<<"often">> is not a valid journal mode'):
        watch(nodes[0], name, "often")
