"""What commands about mirrors print and end with, compared with RabbitMQ 3.10.8's tools where those have them."""

from __future__ import annotations

import pytest

from leveret.cli.ctl.base.session import Session
from leveret.cli.ctl.queues.mirrors import NOT_ORDERED
from leveret.metadata.model import commands as c
from leveret.node.admin.queues import mirrors
from tests.support.control_world import FakeServer, Nodes
from tests.support.ring_world import Rings
from tests.unit.cli.ctl import ctl_node
from tests.unit.cli.ctl.ctl_node import Ctl, Ended, Wire

wire, ctl = ctl_node.wire, ctl_node.ctl
ONE, TWO = "one@host", "two@host"


@pytest.fixture
def rings() -> Rings:
    nodes = Nodes()
    return Rings([nodes.add(ONE), nodes.add(TWO)])


@pytest.fixture
def server(rings: Rings) -> FakeServer:
    return rings.servers[ONE]


def unsynced(rings: Rings) -> int:
    number = rings.declare("q", ONE)
    rings.publish(ONE, "q", 5)
    rings.add_member(number, TWO)
    rings.publish(ONE, "q", 2)
    return number


# -- list_queues of one queue --------------------------------------------------------------------------------------


def test_a_queue_by_its_name(ctl: Ctl, rings: Rings) -> None:
    rings.declare("name")
    number = rings.declare("orders", ONE, TWO)
    there = f"[<two@host.2.{number}.0>]"
    banner = "Timeout: 60.0 seconds ...\nListing queues for vhost / ...\n"
    assert ctl("list_queues", "orders", "slave_pids", "synchronised_slave_pids") == Ended(
        0, f"{banner}slave_pids\tsynchronised_slave_pids\n{there}\t{there}\n", ""
    )
    assert ctl("list_queues", "orders").out == f"{banner}name\tmessages\norders\t0\n"
    assert ctl("list_queues", "-s", "orders", "name,state").out == "orders\trunning\n"
    assert ctl("list_queues", "-s", "name").out == "name\norders\n"  # A column first of all.
    assert ctl("list_queues", "-s", "name", "state", "orders").out == "orders\trunning\n"  # In any place.
    assert ctl("list_queues", "-s", "name", "slave_pids").out == f"name\t\norders\t{there}\n"


@pytest.mark.parametrize(
    ("words", "unknown"),
    [(["nope"], "nope"), (["nope", "name"], "nope"), (["orders", "foo"], "foo,orders"), (["name", "nope"], "nope"),
     (["name,foo"], "foo"), (["z", "y"], "y,z")],
)  # fmt: skip
def test_what_is_no_column_and_no_queue(ctl: Ctl, rings: Rings, words: list[str], unknown: str) -> None:
    rings.declare("orders")
    ended = ctl("list_queues", *words)
    assert (ended.code, ended.out) == (64, "")
    none = "" if "," in unknown else ", and there is no such queue in vhost '/'"
    text = f"Info key(s) {unknown} are not supported{none}"
    assert ended.err.startswith(f"Error (argument validation): {text}\nArguments given:\n\tlist_queues ")


# -- Synchronising -------------------------------------------------------------------------------------------------


def test_sync_queue(ctl: Ctl, rings: Rings) -> None:
    rings.declare("plain")
    unsynced(rings)
    begun = "Synchronising queue '{}' in vhost '/' ...\n"
    stopped = "Stopping synchronising queue '{}' in vhost '/' ...\n"
    assert ctl("sync_queue", "nope") == Ended(69, begun.format("nope"), "Error:\nnot_found\n")
    assert ctl("sync_queue", "plain") == Ended(69, begun.format("plain"), "Error:\nnot_mirrored\n")
    assert ctl("cancel_sync_queue", "plain") == Ended(0, stopped.format("plain") + "not_syncing\n", "")
    assert ctl("cancel_sync_queue", "nope") == Ended(69, stopped.format("nope"), "Error:\nnot_found\n")
    assert ctl("sync_queue", "q", "--no-wait") == Ended(0, begun.format("q"), "")
    assert ctl("cancel_sync_queue", "q") == Ended(0, stopped.format("q"), "")
    assert ctl("sync_queue", "q", "-p", "x", "--no-wait").out == "Synchronising queue 'q' in vhost 'x' ...\n"
    assert ctl("sync_queue").code == ctl("sync_queue", "a", "b").code == 64


def test_a_sync_is_followed_to_its_end(ctl: Ctl, rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    unsynced(rings)

    def pause(session: Session, patience_s: float) -> None:
        rings.tick()

    monkeypatch.setattr(Session, "pause", pause)
    ended = ctl("sync_queue", "q")
    assert (ended.code, ended.err) == (0, "")
    banner, *told = ended.out.splitlines()
    assert banner == "Synchronising queue 'q' in vhost '/' ..."
    assert all(line.startswith("two@host: ") for line in told)
    assert ctl("mirror_status", "q", "--columns", "state", "-s").out == "running\nsynchronised\n"


def test_a_sync_that_is_stopped(ctl: Ctl, rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    unsynced(rings)

    def pause(session: Session, patience_s: float) -> None:
        session.ask("cancel_sync_queue", {"vhost": "/", "name": "q"})

    monkeypatch.setattr(Session, "pause", pause)
    ended = ctl("sync_queue", "q")
    assert ended.code == 69
    assert ended.err == "Error:\nsynchronising was stopped; not synchronised: two@host\n"


def test_critical_nodes(ctl: Ctl, rings: Rings) -> None:
    banner = "Checking if node one@host is critical for data safety of any classic mirrored queues ...\n"
    awaiting = "Will wait for a synchronised mirror be online for all classic mirrored queues for {} seconds...\n"
    none = "Node one@host reported no classic mirrored queues without online synchronised mirrors\n"
    assert ctl("check_if_node_is_mirror_sync_critical") == Ended(0, banner + none, "")
    assert ctl("await_online_synchronized_mirror") == Ended(0, awaiting.format(120), "")
    unsynced(rings)
    assert ctl("check_if_node_is_mirror_sync_critical") == Ended(
        69,
        banner,
        "queue 'q' in vhost '/' would lose its only synchronised replica (master) if node one@host is stopped\n",
    )
    time_is_up = "time is up, no synchronised mirror came online for at least some classic mirrored queues"
    assert ctl("await_online_synchronized_mirror", "--timeout", "0.1") == Ended(
        69, awaiting.format(0), f"Error:\n{time_is_up}\n"
    )


def test_a_single_node_is_not_critical(ctl: Ctl, rings: Rings, wire: Wire) -> None:
    wire.server = Nodes().add(ONE)
    only = "seems to be the only one in a single node cluster, the"
    assert ctl("check_if_node_is_mirror_sync_critical", "-q").out == f"Node one@host {only} check does not apply\n"
    ended = ctl("await_online_synchronized_mirror")
    assert (ended.code, ended.out.splitlines()[-1]) == (0, f"Target node {only} command does not apply")
    assert ctl("await_online_synchronized_mirror", "-q") == Ended(0, "", "")


# -- Copies --------------------------------------------------------------------------------------------------------


def test_mirror_status(ctl: Ctl, rings: Rings) -> None:
    unsynced(rings)
    rings.declare("r", TWO, ONE)
    assert ctl("mirror_status") == Ended(
        0,
        "Copies of all mirrored queues ...\n"
        "queue\tnode\trole\tstate\tlag_messages\tlag_bytes\tlag_seconds\n"
        "q\tone@host\tmaster\trunning\t\t\t\n"
        "q\ttwo@host\tmirror\tunsynchronised\t5\t\t\n"
        "r\ttwo@host\tmaster\trunning\t\t\t\n"
        "r\tone@host\tmirror\tsynchronised\t0\t0\t0.0\n",
        "",
    )
    ended = ctl("mirror_status", "q", "--columns", "node,sync_done,sync_total", "-s")
    assert ended.out == "one@host\t\t\ntwo@host\t0\t5\n"
    assert ctl("mirror_status", "nope").err == "Error:\nnot_found\n"
    assert ctl("mirror_status", "--columns", "x").code == 64


def test_status_counts_mirrors(ctl: Ctl, rings: Rings) -> None:
    unsynced(rings)
    shown = ctl("status").out
    assert (
        "\nMirrored queues\n\nMasters: 1, of these without a synchronised mirror: 1, syncing: 0\n"
        "Queues whose master is unreachable: 0\n"
        "Mirrors: 0, of these not synchronised: 0\n"
    ) in shown


def test_links(ctl: Ctl, rings: Rings) -> None:
    rings.declare("q")
    where = "of queue 'q' in vhost '/' on node two@host ...\n"
    assert ctl("add_queue_mirror_link", "q", TWO) == Ended(0, f"Adding a mirror {where}", "")
    assert ctl("remove_queue_mirror_link", "q", TWO) == Ended(0, f"Removing the mirror {where}", "")
    assert ctl("remove_queue_mirror_link", "q", TWO) == Ended(
        69,
        f"Removing the mirror {where}",
        "Error:\nqueue 'q' in vhost '/' has no mirror link to node two@host\n",
    )


def test_moving_a_master(ctl: Ctl, rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    rings.declare("q", ONE, TWO)

    async def moved(*arguments: object) -> bool:
        rings.tick()
        return True

    monkeypatch.setattr(mirrors, "_until_led_by", moved)
    banner = "Moving the master of queue 'q' in vhost '/' to node {} ...\n"
    assert ctl("move_queue_master", "q", TWO) == Ended(0, banner.format(TWO), "")
    assert rings.servers[ONE].world.metadata.queues["/", "q"].node == TWO
    assert ctl("move_queue_master", "q", "x@host") == Ended(
        69, banner.format("x@host"), "Error:\nThe node selected is not in the cluster: x@host\n"
    )


def test_promotion_by_force_asks_back(ctl: Ctl, rings: Rings, monkeypatch: pytest.MonkeyPatch) -> None:
    number = unsynced(rings)
    banner = "Promoting the copy of queue 'q' in vhost '/' on node {} by force ...\n"
    ended = ctl("promote_queue", "q", TWO)
    assert (ended.code, ended.out) == (64, banner.format(TWO))
    assert ended.err == (
        "Error:\nThe copy on node two@host has 2 messages." + NOT_ORDERED + "\n"
        "5 messages of other copies would be lost.\n"
        "Running synchronised copies: one@host. Promoting one of these would lose nothing.\n"
        "To do it anyway, add --yes.\n"
    )
    assert rings.copy(TWO, number).member.master is None
    assert ctl("promote_queue", "q").err == "Error:\nnode one@host leads queue 'q' in vhost '/' already\n"

    async def promoted(*arguments: object) -> bool:
        rings.tick()
        return True

    monkeypatch.setattr(mirrors, "_until_led_by", promoted)
    assert ctl("promote_queue", "q", TWO, "--yes") == Ended(
        0,
        banner.format(TWO) + "Node two@host is now the master, with 2 messages.\n"
        f"Lost: 5 messages.{NOT_ORDERED}\n",
        "",
    )
    assert rings.copy(TWO, number).member.master is not None


def test_an_exclusive_queue_has_no_mirrors(ctl: Ctl, server: FakeServer) -> None:
    server.world.apply(c.DeclareQueue("/", "mine", exclusive=True, owner=f"{ONE}.1", node=ONE))
    assert "is exclusive" in ctl("add_queue_mirror_link", "mine", TWO).err
