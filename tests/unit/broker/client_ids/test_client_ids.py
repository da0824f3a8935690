from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.client_ids import client_ids
from leveret.broker.client_ids.client_ids import TAKEN_OVER, Claim, Claimed, SessionChange
from leveret.metadata.model import commands as c
from leveret.metadata.model.refusals import Refusal
from leveret.metadata.mqtt.commands import ClaimClientIds
from leveret.metadata.mqtt.records import Subscription, Will
from leveret.metadata.store import Applied
from tests.support.brokers import Cluster
from tests.support.machines import World

NO_MAJORITY = Applied(0, Refusal(541, "no majority"), ())
WILL = Will("amq.topic", "wills", b"")


class Owner:
    """A connection."""

    def __init__(self, world: World, client_id: str = "c", **options: Any) -> None:
        self.world = world
        self.client_id = client_id
        self.log: list[str] = []
        self.claimed: Claimed | None = None
        self.refused: Refusal | None = None
        given = {"user": "guest", "clean_start": False, "expiry_s": 60, **options}
        world.broker.client_ids.claim(Claim("/", client_id, **given), self, self.on_answer)

    def on_answer(self, answer: Claimed | Refusal) -> None:
        assert self.claimed is None and self.refused is None
        self.log.append("refused" if isinstance(answer, Refusal) else "claimed")
        if isinstance(answer, Refusal):
            self.refused = answer
        else:
            self.claimed = answer

    def on_taken_over(self) -> None:
        self.log.append("taken over")

    def on_claim_lost(self) -> None:
        self.log.append("lost")

    @property
    def epoch(self) -> int:
        assert self.claimed is not None
        return self.claimed.session.epoch

    def release(self, publish_will: bool = False, expiry_s: int | None = None) -> None:
        self.world.broker.client_ids.release("/", self.client_id, self.epoch, publish_will, expiry_s)

    def change(self, **change: Any) -> list[Refusal | None]:
        told: list[Refusal | None] = []
        self.world.broker.client_ids.change("/", self.client_id, self.epoch, SessionChange(**change), told.append)
        return told


def test_a_client_id_is_claimed_and_released() -> None:
    world = World()
    owner = Owner(world)
    world.turn()
    assert owner.log == ["claimed"] and owner.claimed is not None and not owner.claimed.is_present
    found = world.broker.client_ids.find("/", "c")
    assert found == owner.claimed.session and list(world.broker.client_ids.sessions("/")) == [found]
    owner.release(expiry_s=0)
    world.turn()
    assert world.broker.client_ids.find("/", "c") is None and owner.log == ["claimed"]
    assert not world.broker.client_ids.held


def test_all_claims_of_a_turn_are_one_command() -> None:
    world = World()
    world.holds_metadata = True
    owners = [Owner(world, f"c{number}") for number in range(100)]
    world.turn()
    ((command, _),) = world.proposals
    assert isinstance(command, ClaimClientIds) and len(command.rows) == 100
    late = Owner(world, "late")
    world.turn()
    assert len(world.proposals) == 1
    world.release_metadata()
    assert all(owner.log == ["claimed"] for owner in owners) and late.log == []
    world.turn()
    assert late.log == ["claimed"]


def test_large_commands_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_ids, "ROWS_MAX", 10)
    world = World()
    owners = [Owner(world, f"c{number}") for number in range(25)]
    for count in (10, 20, 25):
        world.turn()
        assert sum(owner.log == ["claimed"] for owner in owners) == count


def test_the_former_owner_is_told_before_the_new_one_wherever_it_is() -> None:
    cluster = Cluster("x", "y", "z")
    order: list[str] = []
    owners: list[Owner] = []
    for name in ("x", "x", "y", "z", "y"):
        owner = Owner(cluster[name])
        number = len(owners)
        owner.log = type("Log", (list,), {"append": lambda self, what, n=number: order.append(f"{n} {what}")})()
        owners.append(owner)
        cluster.run()
    assert order == [
        "0 claimed", "0 taken over", "1 claimed", "1 taken over", "2 claimed", "2 taken over", "3 claimed",
        "3 taken over", "4 claimed",
    ]  # fmt: skip
    assert [len(cluster[name].broker.client_ids.held) for name in "xyz"] == [0, 1, 0]


def test_of_two_claims_in_one_turn_the_later_one_counts() -> None:
    world = World()
    first, second = Owner(world), Owner(world)
    world.turn()
    assert first.refused == TAKEN_OVER and first.log == ["refused"]
    assert second.log == ["claimed"]


def test_a_node_that_was_away_learns_that_its_client_was_taken_over() -> None:
    cluster = Cluster("x", "y", "z")
    first = Owner(cluster["x"])
    cluster.run()
    cluster.behind = {"x"}
    cluster.close("x", "y")
    cluster.close("x", "z")
    second = Owner(cluster["y"])
    cluster.run()
    assert second.log == ["claimed"] and first.log == ["claimed"]  # Nobody can tell the first one yet.
    told = first.change(subscribe={"t": Subscription(1)})
    cluster.behind = set()
    cluster.join("x", "y")
    cluster.join("x", "z")
    cluster.run()
    assert first.log == ["claimed", "taken over"] and second.log == ["claimed"]
    assert told == [TAKEN_OVER]
    session = cluster["z"].broker.client_ids.find("/", "c")
    assert session is not None and session.epoch == second.epoch and not session.subscriptions


def test_a_node_that_was_taken_for_lost_has_no_claims() -> None:
    cluster = Cluster("x", "y")
    owner = Owner(cluster["x"])
    cluster.run()
    cluster.apply(c.NodeStarted("x"))
    assert owner.log == ["claimed", "lost"]
    session = cluster["y"].broker.client_ids.find("/", "c")
    assert session is not None and session.node == ""
    again = Owner(cluster["x"])
    cluster.run()
    assert again.claimed is not None and again.claimed.is_present


def test_an_operator_can_end_a_session() -> None:
    cluster = Cluster("x", "y")
    owner = Owner(cluster["x"])
    cluster.run()
    cluster["y"].broker.client_ids.release("/", "c", owner.epoch, publish_will=True, expiry_s=0)
    cluster.run()
    assert owner.log == ["claimed", "lost"] and cluster["x"].broker.client_ids.find("/", "c") is None


def test_a_claim_that_is_agreed_on_after_its_client_was_refused_is_released() -> None:
    world = World()
    world.holds_metadata = True
    owner = Owner(world, will=WILL)
    world.turn()
    ((command, then),) = world.proposals
    world.proposals.clear()
    world.holds_metadata = False
    then(NO_MAJORITY)
    assert owner.refused is not None and owner.refused.code == 541
    world.apply(command)
    assert world.broker.client_ids.find("/", "c") is not None
    world.turn()
    session = world.broker.client_ids.find("/", "c")
    assert session is not None and session.node == "" and not world.metadata.wills
    assert owner.log == ["refused"] and not world.broker.client_ids.held


def test_a_release_of_a_former_owner_does_nothing() -> None:
    world = World()
    first = Owner(world)
    world.turn()
    second = Owner(world)
    world.turn()
    first.release()
    world.turn()
    session = world.broker.client_ids.find("/", "c")
    assert session is not None and session.epoch == second.epoch and session.node
    assert second.log == ["claimed"]


def test_sessions_are_changed_in_order_and_only_by_their_owner() -> None:
    world = World()
    owner = Owner(world)
    world.turn()
    answers = [
        owner.change(subscribe={"a": Subscription(1), "b": Subscription(0)}),
        owner.change(unsubscribe=("a",), received=((7, 1, 1),)),
        owner.change(completed=((7, 1),)),
        owner.change(received=((7, 1, 2),), releasing=((3, 2),)),
    ]
    world.turn()
    assert answers == [[None]] * 4
    session = world.broker.client_ids.find("/", "c")
    assert session is not None and session.subscriptions == {"b": Subscription(0)}
    assert session.received == {7: 2} and session.releasing == {3, 4} and session.last_number == 2
    Owner(world)
    world.turn()
    assert owner.change(unsubscribe=("b",)) == [TAKEN_OVER]


def test_a_session_has_only_so_many_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_ids, "SUBSCRIPTIONS_MAX", 1)
    world = World()
    owner = Owner(world)
    world.turn()
    (refused,) = owner.change(subscribe={"a": Subscription(1), "b": Subscription(0)})
    assert refused is not None and refused.code == 406


def test_what_would_not_fit_into_a_command_is_refused() -> None:
    world = World()
    large = Owner(world, "large", will=Will("amq.topic", "wills", bytes(client_ids.WILL_BYTES_MAX)))
    assert large.refused is not None and large.refused.code == 406
    owner = Owner(world)
    world.turn()
    (refused,) = owner.change(unsubscribe=("t" * 65_535,) * 20)
    assert refused is not None and refused.code == 406
    with pytest.raises(AssertionError):
        owner.change(received=((65_535, 2, 1),))


def test_claims_are_refused_where_there_is_no_vhost_or_no_room() -> None:
    world = World()
    told: list[Any] = []
    owner = Owner(world, "first")
    world.broker.client_ids.claim(Claim("none", "c", "guest", True, 0), owner, told.append)
    assert told[0].code == 404
    world.broker.client_ids.sessions_max = 1
    other = Owner(world, "other")
    world.turn()
    assert owner.log == ["claimed"] and other.refused is not None and other.refused.code == 406


def test_the_leader_ends_sessions_in_time() -> None:
    world = World()
    world.broker.wall_ms = 1_000_000
    world.apply(c.DeclareQueue("/", "q", node=world.broker.node_name))
    owner = Owner(world, queues=("q",))
    world.turn()
    owner.release()
    world.turn()
    for passed_ms, is_there in ((59_999, True), (60_000, False)):
        world.broker.wall_ms = 1_000_000 + passed_ms
        world.broker.lead()
        assert (world.broker.client_ids.find("/", "c") is not None) is is_there
        assert (("/", "q") in world.metadata.queues) is is_there


def test_a_sweep_that_fails_is_tried_again() -> None:
    world = World()
    owner = Owner(world)
    world.turn()
    owner.release()
    world.turn()
    world.broker.wall_ms += 60_000
    world.holds_metadata = True
    world.broker.lead()
    world.broker.lead()
    ((_, then),) = world.proposals
    world.proposals.clear()
    then(NO_MAJORITY)
    world.holds_metadata = False
    world.broker.wall_ms += 1_000
    world.broker.lead()
    assert world.broker.client_ids.find("/", "c") is None


def test_a_deleted_vhost_takes_the_claims_along() -> None:
    world = World()
    owner = Owner(world)
    world.turn()
    world.apply(c.DeleteVhost("/"))
    assert owner.log == ["claimed", "lost"]


def test_clients_are_refused_while_there_is_a_link_to_a_node_without_mqtt() -> None:
    world = World()
    ids = world.broker.client_ids
    ids.on_peer_up("new@b", True)
    ids.on_peer_up("old@a", False)
    refused = Owner(world)
    world.turn()
    assert refused.refused == Refusal(541, "node old@a has a version that does not know MQTT: upgrade it")
    ids.on_peer_down("old@a")
    assert ids.find("/", "c") is None
    owner = Owner(world)
    world.turn()
    assert owner.log == ["claimed"]
