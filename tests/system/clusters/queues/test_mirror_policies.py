"""What policies, arguments and configuration say about mirrors, seen by clients of real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.support.consumer import fill, get_all, numbers, waiting
from tests.support.members import PERSISTENT, Cluster, Member, StartCluster, refusal
from tests.support.servers import until


def row(node: Member, name: str) -> tuple[str, set[str], set[str]]:
    """Master, mirrors, and those that are in sync."""
    columns = ["master_node", "slave_pids", "synchronised_slave_pids"]
    answer = node.control(
        "list_queues", vhost="/", columns=columns, only=name, online=None, offline=None, local=None, after=None
    )
    ((master, mirrors, synced),) = answer["rows"]
    return master[:2], {pid[1:3] for pid in mirrors or ()}, {pid[1:3] for pid in synced or ()}


def until_row(node: Member, name: str, master: str, mirrors: str, synced: str) -> None:
    wanted = (master, set(mirrors.split()), set(synced.split()))
    until(lambda: row(node, name) == wanted, f"{name} to be {wanted}, not {row(node, name)}")


def set_policy(node: Member, name: str, operator: bool = False, **definition: Any) -> None:
    keys = {key.replace("_", "-"): value for key, value in definition.items()}
    node.control(
        "set_policy", vhost="/", name=name, pattern=f"^{name}$", apply_to="queues", priority=0, definition=keys,
        operator=operator,
    )  # fmt: skip


@pytest.fixture
def filled(nodes: Cluster, name: str) -> Iterator[tuple[Cluster, str]]:
    """A queue at the first node, with ten messages and no mirrors."""
    channel = nodes[0].channel(confirms=True)
    channel.queue_declare(name, durable=True)
    fill(channel, name, range(10), properties=PERSISTENT)
    yield nodes, name
    nodes.mend()


def is_served(node: Member, name: str) -> bool:
    try:
        node.channel().queue_declare(name, passive=True)
    except pika.exceptions.ChannelClosedByBroker as error:
        assert error.reply_code == 404
        return False
    return True


def declare_down(node: Member, name: str) -> int:
    return refusal(node.channel().queue_declare, name, durable=True)[0]


# -- Filling -----------------------------------------------------------------------------------------------------------


def test_a_mirror_fills_when_told_or_when_the_queue_is_drained(cluster: Cluster, name: str) -> None:
    channel = cluster[0].channel(confirms=True)
    channel.queue_declare(name, durable=True)
    fill(channel, name, range(10), properties=PERSISTENT)
    set_policy(cluster[0], name, ha_mode="nodes", ha_params=["n1@localhost", "n2@localhost"])
    until_row(cluster[0], name, "n1", "n2", "")
    set_policy(cluster[0], name, ha_mode="all")
    until_row(cluster[0], name, "n1", "n2 n3", "")
    cluster[0].control("sync_queue", vhost="/", name=name)
    until_row(cluster[0], name, "n1", "n2 n3", "n2 n3")
    set_policy(cluster[0], name, ha_mode="nodes", ha_params=["n1@localhost"])
    until_row(cluster[0], name, "n1", "", "")
    set_policy(cluster[0], name, ha_mode="exactly", ha_params=2)
    until(lambda: len(row(cluster[0], name)[1]) == 1, "a mirror")
    assert get_all(channel, name) == numbers(*range(10))
    until(lambda: len(row(cluster[0], name)[2]) == 1, "it to be in sync without having fetched anything")


def test_automatic_also_on_a_queue_that_is_there(cluster: Cluster, name: str) -> None:
    channel = cluster[1].channel(confirms=True)
    channel.queue_declare(name, durable=True)
    fill(channel, name, range(10), properties=PERSISTENT)
    set_policy(cluster[0], name, ha_mode="all", ha_forbid_copying=True)
    set_policy(cluster[0], name, ha_mode="all")
    until_row(cluster[0], name, "n2", "n1 n3", "")
    set_policy(cluster[0], name, ha_mode="all", ha_sync_mode="automatic", ha_sync_batch_size=3)
    until_row(cluster[0], name, "n2", "n1 n3", "n1 n3")
    assert get_all(cluster[2].channel(), name) == numbers(*range(10))


def test_nodes_without_the_master_hand_over(cluster: Cluster, name: str) -> None:
    channel = cluster[0].channel(confirms=True)
    channel.queue_declare(name, durable=True)
    fill(channel, name, range(100), properties=PERSISTENT)
    set_policy(cluster[0], name, ha_mode="nodes", ha_params=["n3@localhost"], ha_sync_mode="automatic")
    until_row(cluster[0], name, "n3", "", "")
    assert get_all(channel, name) == numbers(*range(100))


# -- Stops and deaths ------------------------------------------------------------------------------------------------


def test_a_stopping_master_hands_over_without_a_lost_confirm(nodes: Cluster, name: str) -> None:
    set_policy(nodes[0], name, ha_mode="all")
    nodes[0].channel().queue_declare(name, durable=True)
    until_row(nodes[1], name, "n1", "n2 n3", "n2 n3")
    channel = nodes[1].channel(confirms=True)
    fill(channel, name, range(100), properties=PERSISTENT)
    assert nodes[0].stop() == 0
    fill(channel, name, range(100, 200), properties=PERSISTENT)  # Raises if one is refused.
    assert row(nodes[1], name)[0] in ("n2", "n3")
    assert get_all(channel, name) == numbers(*range(200))
    nodes.mend()


def test_when_synced_a_stopped_master_is_waited_for(filled: tuple[Cluster, str]) -> None:
    nodes, name = filled
    set_policy(nodes[0], name, ha_mode="all", ha_promote_on_failure="always")
    until_row(nodes[1], name, "n1", "n2 n3", "")
    assert nodes[0].stop() == 0
    assert declare_down(nodes[1], name) == 404
    nodes[0].start()
    until(lambda: is_served(nodes[1], name), "its master is back")
    assert row(nodes[1], name)[0] == "n1" and waiting(nodes[1].channel(), name) == 10


def test_on_shutdown_always_promotes_what_is_there(filled: tuple[Cluster, str]) -> None:
    nodes, name = filled
    set_policy(nodes[0], name, ha_mode="all", ha_promote_on_shutdown="always")
    until_row(nodes[1], name, "n1", "n2 n3", "")
    assert nodes[0].stop() == 0
    assert waiting(nodes[1].channel(), name) == 0


def test_on_failure_when_synced_overrides_that(filled: tuple[Cluster, str]) -> None:
    nodes, name = filled
    policy: dict[str, Any] = {"ha_promote_on_shutdown": "always", "ha_promote_on_failure": "when-synced"}
    set_policy(nodes[0], name, ha_mode="all", **policy)
    until_row(nodes[1], name, "n1", "n2 n3", "")
    assert nodes[0].stop() == 0
    assert declare_down(nodes[1], name) == 404


def test_on_failure(filled: tuple[Cluster, str]) -> None:
    nodes, name = filled
    set_policy(nodes[0], name, ha_mode="all", ha_promote_on_failure="always")
    until_row(nodes[1], name, "n1", "n2 n3", "")
    nodes[0].kill()
    until(lambda: row(nodes[1], name)[0] in ("n2", "n3"), "a master")
    assert waiting(nodes[1].channel(), name) == 0


def test_x_cancel_on_ha_failover(nodes: Cluster, name: str) -> None:
    set_policy(nodes[0], name, ha_mode="all")
    nodes[0].channel().queue_declare(name, durable=True)
    until_row(nodes[1], name, "n1", "n2 n3", "n2 n3")
    channel = nodes[1].channel()
    cancelled: list[str] = []
    channel.add_on_cancel_callback(lambda frame: cancelled.append(frame.method.consumer_tag))
    tag = channel.basic_consume(name, lambda *_: None, arguments={"x-cancel-on-ha-failover": True})
    channel.basic_consume(name, lambda *_: None)
    nodes[0].kill()
    until(lambda: channel.connection.process_data_events(0.05) or cancelled, "a cancel")
    assert cancelled == [tag]
    until(lambda: channel.queue_declare(name, passive=True).method.consumer_count == 1, "the other to go on")
    nodes.mend()


# -- Where a queue is ------------------------------------------------------------------------------------------------


def test_locators(cluster: Cluster, name: str) -> None:
    channel = cluster[0].channel()
    for number in range(4):
        channel.queue_declare(f"{name}-{number}")
    channel.queue_declare(name, arguments={"x-queue-master-locator": "min-masters"})
    assert row(cluster[0], name)[0] != "n1"
    channel.queue_delete(name)
    policy: dict[str, Any] = {"ha_mode": "nodes", "ha_params": ["n1@localhost", "n3@localhost"]}
    set_policy(cluster[0], name, **policy, queue_master_locator="min-masters")
    channel.queue_declare(name)
    assert row(cluster[0], name)[0] == "n3"
    assert refusal(channel.queue_declare, f"{name}-5", arguments={"x-queue-master-locator": "no"})[0] == 406


def test_quorum(nodes: Cluster, name: str) -> None:
    arguments = {"x-queue-type": "quorum"}
    nodes[0].channel().queue_declare(name, durable=True, arguments=arguments)
    until_row(nodes[0], name, "n1", "n2 n3", "n2 n3")
    channel = nodes[1].channel(confirms=True)
    fill(channel, name, range(50), properties=PERSISTENT)
    nodes[0].kill()
    fill(channel, name, range(50, 60), properties=PERSISTENT)
    assert get_all(channel, name) == numbers(*range(60))
    nodes[0].start()
    until(lambda: len(row(nodes[1], name)[2]) == 2, "it to be a mirror again")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"durable": False}, "invalid property 'non-durable' for queue 'NAME' in vhost '/'"),
        ({"durable": True, "exclusive": True}, "invalid property 'exclusive-owner' for queue 'NAME' in vhost '/'"),
        ({"durable": True, "auto_delete": True}, "invalid property 'auto-delete' for queue 'NAME' in vhost '/'"),
    ],
)
def test_what_a_quorum_queue_is_not(cluster: Cluster, name: str, options: dict[str, Any], text: str) -> None:
    arguments = {"x-queue-type": "quorum"}
    found = refusal(cluster[0].channel().queue_declare, name, arguments=arguments, **options)
    assert found == (406, "PRECONDITION_FAILED - " + text.replace("NAME", name))


# -- Configuration -----------------------------------------------------------------------------------------------------


def test_num_mirrors_and_the_argument(start_cluster: StartCluster, name: str) -> None:
    cluster = start_cluster("num_mirrors = 1\nqueue_master_locator = min-masters", size=2)
    channel = cluster[0].channel()
    channel.queue_declare(name)
    assert len(row(cluster[0], name)[1]) == 1
    channel.queue_declare(f"{name}-2")
    assert {row(cluster[0], name)[0], row(cluster[0], f"{name}-2")[0]} == {"n1", "n2"}
    channel.queue_declare(f"{name}-3", arguments={"ha-mirror-queues": False})
    assert row(cluster[0], f"{name}-3")[1] == set()
