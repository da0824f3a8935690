from __future__ import annotations

from leveret.broker.client_ids import wills
from leveret.broker.session.message import content_of
from leveret.metadata.model import commands as c
from leveret.metadata.mqtt.commands import WillsPublished
from leveret.metadata.mqtt.records import RetainedMessage, Will
from leveret.protocol.properties import Properties
from tests.support.brokers import Cluster, Member
from tests.support.machines import World
from tests.unit.broker.client_ids.test_client_ids import NO_MAJORITY, Owner

FRAME_MAX = 131_072


def will(text: str, delay_s: int = 0, retained: bool = False) -> Will:
    content = content_of(Properties(delivery_mode=2), text.encode(), FRAME_MAX)
    kept = RetainedMessage("wills/c", text.encode()) if retained else None
    return Will("amq.topic", "wills.c", content, delay_s, kept)


def declare(world: World, name: str = "q", node: str | None = None) -> None:
    commands = (
        c.DeclareQueue("/", name, node=node or world.broker.node_name),
        c.Bind("/", "amq.topic", "queue", name, "wills.#"),
    )
    for command in commands:
        world.cluster.apply(command) if isinstance(world, Member) else world.apply(command)


def ready(world: World, name: str = "q") -> int:
    queue = world.broker.vhosts["/"].queues[name]
    assert queue.is_local
    return queue.ready_count


def test_the_will_of_a_lost_client_is_published_once() -> None:
    world = World()
    declare(world)
    owner = Owner(world, will=will("gone", retained=True))
    world.turn()
    owner.release(publish_will=True)
    world.turn()
    for _ in range(5):
        world.broker.lead()
        world.turn()
    assert ready(world) == 1 and not world.metadata.wills
    assert [one.payload for one in world.broker.retained.find("/", "wills/#")] == [b"gone"]


def test_a_will_without_a_queue_or_an_exchange_is_done_with() -> None:
    world = World()
    for exchange in ("amq.topic", "gone"):
        one = will("x")
        owner = Owner(world, will=Will(exchange, "wills.c", one.content))
        world.turn()
        owner.release(publish_will=True)
        world.turn()
        world.broker.lead()
        world.broker.lead()
        assert not world.metadata.wills


def test_a_will_after_its_delay() -> None:
    world = World()
    declare(world)
    owner = Owner(world, will=will("gone", delay_s=10))
    world.turn()
    owner.release(publish_will=True)
    world.turn()
    for passed_ms, count in ((9_999, 0), (10_000, 1)):
        world.broker.wall_ms = passed_ms
        for _ in range(3):
            world.broker.lead()
            world.turn()
        assert ready(world) == count


def test_a_taken_over_client_leaves_a_will_and_a_client_that_said_goodbye_does_not() -> None:
    for says_goodbye in (False, True):
        cluster = Cluster("x", "y")
        declare(cluster["x"], node="x")
        first = Owner(cluster["x"], will=will("gone"))
        cluster.run()
        if says_goodbye:
            first.release(publish_will=False)
        # The claim is applied before the release.
        cluster["x"].holds_metadata = True
        second = Owner(cluster["y"])
        cluster.run()
        cluster["x"].release_metadata()
        cluster.run()
        assert second.log == ["claimed"]
        for _ in range(3):
            cluster["y"].broker.lead()
            cluster.run()
        assert ready(cluster["x"]) == (0 if says_goodbye else 1)
        assert not cluster["y"].metadata.leaving and not cluster["y"].metadata.wills


def test_two_leaders_publish_a_will_once() -> None:
    """The first leader publishes, and is lost before it has reported; or it goes on and does not know of the other."""
    cluster = Cluster("x", "y", "z")
    declare(cluster["z"], node="z")
    owners = [Owner(cluster["x"], f"c{number}", will=will(f"gone {number}")) for number in range(10)]
    cluster.run()
    for owner in owners:
        owner.release(publish_will=True)
    cluster.run()
    cluster["x"].holds_metadata = True  # Its report does not get through.
    for _ in range(3):
        cluster["x"].broker.lead()
        cluster.run()
    assert ready(cluster["z"]) == 10 and len(cluster["y"].metadata.wills) == 10
    for _ in range(3):
        cluster["y"].broker.lead()
        cluster["x"].broker.lead()
        cluster.run()
    assert ready(cluster["z"]) == 10 and not cluster["y"].metadata.wills
    cluster["x"].release_metadata()
    cluster.run()
    assert not cluster["x"].metadata.wills


def test_a_late_publish_of_a_former_leader_is_passed_over() -> None:
    cluster = Cluster("x", "y", "z")
    declare(cluster["z"], node="z")
    owner = Owner(cluster["x"], will=will("gone"))
    cluster.run()
    owner.release(publish_will=True)
    cluster.run()
    cluster.hold("x", "z")
    cluster["x"].broker.lead()
    cluster.run()
    for _ in range(3):
        cluster["y"].broker.lead()
        cluster.run()
    assert ready(cluster["z"]) == 1
    cluster.release("x", "z")
    assert ready(cluster["z"]) == 1


def test_wills_beyond_a_round_follow() -> None:
    world = World()
    declare(world)
    owners = [Owner(world, f"c{number}", will=will("gone")) for number in range(wills.ROUND + 10)]
    world.turn()
    for owner in owners:
        owner.release(publish_will=True)
    world.turn()
    for _ in range(10):
        world.broker.lead()
        world.turn()
    assert ready(world) == wills.ROUND + 10 and not world.metadata.wills


def test_a_will_for_a_queue_out_of_reach_is_given_up_and_the_others_are_published() -> None:
    cluster = Cluster("x", "y")
    declare(cluster["x"], "far", node="y")
    declare(cluster["x"], "near", node="x")
    owner = Owner(cluster["x"], will=will("gone"))
    cluster.run()
    cluster.close("x", "y")
    cluster.behind = {"y"}
    owner.release(publish_will=True)
    cluster.run()
    for _ in range(8):
        cluster["x"].broker.lead()
        cluster.run()
        assert ready(cluster["x"], "near") == 1
        cluster.wait_in_vain()
    assert ready(cluster["x"], "near") == 1 and not cluster["x"].metadata.wills


def test_a_will_for_a_queue_that_is_back_soon_is_published_in_order() -> None:
    cluster = Cluster("x", "y")
    declare(cluster["x"], "far", node="y")
    owners = [Owner(cluster["x"], f"c{number}", will=will(f"gone {number}")) for number in range(3)]
    cluster.run()
    cluster.close("x", "y")
    cluster.behind = {"y"}
    for owner in owners:
        owner.release(publish_will=True)
    for _ in range(4):
        cluster.run()
        cluster["x"].broker.lead()
        cluster.wait_in_vain(5_000)
    assert len(cluster["x"].metadata.wills) == 3
    cluster.behind = set()
    cluster.join("x", "y")
    for _ in range(4):
        cluster.run()
        cluster["x"].broker.lead()
        cluster.wait_in_vain(1_000)
    assert ready(cluster["y"], "far") == 3 and not cluster["y"].metadata.wills


def test_a_report_that_fails_is_made_again() -> None:
    world = World()
    declare(world)
    owner = Owner(world, will=will("gone"))
    world.turn()
    owner.release(publish_will=True)
    world.turn()
    world.broker.lead()
    world.turn()
    world.holds_metadata = True
    world.broker.lead()
    ((command, then),) = world.proposals
    assert isinstance(command, WillsPublished)
    world.proposals.clear()
    then(NO_MAJORITY)
    world.holds_metadata = False
    for _ in range(4):
        world.broker.lead()
        world.turn()
    assert not world.metadata.wills and ready(world) == 1
