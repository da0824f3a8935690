"""leveretctl and the mirrors of three real nodes: who has a copy, who is synchronised, who leads, from every node."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from leveret.cli.ctl.queues.mirrors import NOT_ORDERED
from tests.support.servers import until
from tests.system.cli import test_ctl_cluster
from tests.system.cli.test_ctl_cluster import NAMES, Trio

trio, joined = test_ctl_cluster.trio, test_ctl_cluster.joined
COLUMNS = ("name", "state", "master_node", "queue_slave_nodes", "slave_pids", "synchronised_slave_pids", "messages")


def shown(trio: Trio, name: str, queue: str) -> dict[str, object]:
    """One queue as a node lists it; pids as the names of nodes, in order."""
    (row,) = json.loads(trio.ctl(name, "list_queues", queue, *COLUMNS, "--formatter", "json"))
    for column in ("slave_pids", "synchronised_slave_pids", "queue_slave_nodes"):
        row[column] = sorted(str(pid).strip("<>").split(".")[0] for pid in row[column])
    assert row.pop("queue_slave_nodes") == row["slave_pids"]
    return dict(row)


def await_shown(trio: Trio, asked: tuple[str, ...], master: str, mirrors: list[str], in_sync: list[str]) -> None:
    """Until each of these nodes shows the queue like that."""
    wanted = {
        "name": "orders",
        "state": "running",
        "master_node": master,
        "slave_pids": sorted(mirrors),
        "synchronised_slave_pids": sorted(in_sync),
        "messages": 20,
    }

    def fits(name: str) -> bool:
        return shown(trio, name, "orders") == wanted

    for name in asked:
        until(partial(fits, name), f"{name} shows {wanted}")


def log_of(trio: Trio, name: str, line: str) -> Callable[[], bool]:
    return lambda: line in trio.servers[name].log()


def test_mirrors_come_are_synchronised_and_take_over(joined: Trio) -> None:
    one, two, three = NAMES
    joined.declare(one, "orders", 20)
    joined.ctl(two, "set_policy", "ha", "^orders$", '{"ha-mode":"all","ha-sync-mode":"manual"}')
    await_shown(joined, NAMES, one, [two, three], [])
    assert "would lose its only synchronised replica" in joined.ctl(
        one, "check_if_node_is_mirror_sync_critical", code=69
    )
    joined.ctl(three, "sync_queue", "orders")
    joined.ctl(one, "await_online_synchronized_mirror", "--timeout", "60")
    await_shown(joined, NAMES, one, [two, three], [two, three])
    said = [
        "Mirrored queue 'orders' in vhost '/': Adding mirror on node two@localhost: <two@localhost.2.",
        "Mirrored queue 'orders' in vhost '/': Synchronising: 20 messages to synchronise",
        "Mirrored queue 'orders' in vhost '/': Synchronising: complete",
    ]
    for line in said:
        until(log_of(joined, one, line), line)
    joined.ctl(two, "move_queue_master", "orders", three)
    await_shown(joined, NAMES, three, [one, two], [one, two])
    joined.servers[three].kill()
    joined.await_loss(three, one, two)
    until(lambda: shown(joined, one, "orders")["master_node"] != three, "another node leads")
    heir = str(shown(joined, one, "orders")["master_node"])
    other = two if heir == one else one
    await_shown(joined, (one, two), heir, [other], [other])
    line = f"Mirrored queue 'orders' in vhost '/': Promoting mirror <{heir}.2."
    until(log_of(joined, heir, line), line)


def test_a_mirror_by_hand_and_a_promotion_by_force(joined: Trio) -> None:
    one, two, three = NAMES
    joined.declare(one, "plain", 5)
    joined.ctl(three, "add_queue_mirror_link", "plain", two)
    until(
        lambda: shown(joined, three, "plain")["synchronised_slave_pids"] == [two],
        "the mirror is there and has everything",
    )
    joined.ctl(three, "remove_queue_mirror_link", "plain", two)
    until(lambda: shown(joined, three, "plain")["slave_pids"] == [], "the mirror is gone")
    joined.declare(one, "orders", 20)
    definition = json.dumps({"ha-mode": "nodes", "ha-params": [one, two], "ha-sync-mode": "manual"})
    joined.ctl(one, "set_policy", "ha", "^orders$", definition)
    await_shown(joined, NAMES, one, [two], [])
    joined.servers[one].kill()
    joined.await_loss(one, two, three)
    assert shown(joined, three, "orders")["state"] == "down"
    told = joined.ctl(two, "promote_queue", "orders", code=64)
    assert f"What only {one} had would be lost" in told
    assert joined.ctl(two, "promote_queue", "orders", "--yes").splitlines()[1:] == [
        f"Node {two} is now the master, with 0 messages.",
        f"Lost: an unknown number of messages, which only {one} had.{NOT_ORDERED}",
    ]
    for name in (two, three):
        found = shown(joined, name, "orders")
        assert (found["state"], found["master_node"], found["messages"]) == ("running", two, 0)


def test_a_quorum_queue_is_shown_with_its_members(joined: Trio) -> None:
    one, two, three = NAMES
    joined.declare(one, "votes", 1, {"x-queue-type": "quorum"})

    def listed(name: str) -> dict[str, object]:
        columns = ("type", "leader", "members", "online")
        (row,) = json.loads(joined.ctl(name, "list_queues", "votes", *columns, "--formatter", "json"))
        return {**row, "members": sorted(row["members"]), "online": sorted(row["online"])}

    everybody = sorted(NAMES)
    wanted = {"type": "quorum", "leader": one, "members": everybody, "online": everybody}
    assert [listed(name) for name in NAMES] == [wanted] * 3
    joined.servers[three].kill()
    joined.await_loss(three, one, two)
    assert listed(two)["online"] == sorted((one, two))
