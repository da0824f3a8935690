"""Which links there should be, and what the leader proposes when policies, upstreams, exchanges or queues change."""

from __future__ import annotations

import pytest

from leveret.base.json_values import Json
from leveret.metadata.federation import plan as plans
from leveret.metadata.federation.links import link_id, link_key, link_parts
from leveret.metadata.federation.plan import Plan
from leveret.metadata.model import commands as c
from leveret.metadata.shovel.commands import AssignRow, AssignWork, SetLinks
from leveret.metadata.shovel.records import LINK, WorkKey
from leveret.metadata.store import Metadata
from leveret.protocol.tables import Field

Parts = tuple[str, str, str, str]


class World:
    """The metadata, and a leader that plans."""

    def __init__(self) -> None:
        self.metadata = Metadata()
        self.plan = Plan(self.metadata, lambda: "here")
        self.apply(c.AddVhost("/"))
        self.upstream("u")

    def apply(self, *commands: c.Command) -> None:
        for command in commands:
            applied = self.metadata.apply(command)
            assert applied.refused is None, applied.refused
            self.plan.on_events(applied.events)

    def upstream(self, name: str, **keys: Json) -> None:
        value: Json = {"uri": "amqp://far", **{key.replace("_", "-"): one for key, one in keys.items()}}
        self.apply(c.SetParameter("federation-upstream", "/", name, value))

    def policy(self, pattern: str, apply_to: str = "exchanges", name: str = "p", **definition: Json) -> None:
        keys = {key.replace("_", "-"): one for key, one in definition.items()}
        self.apply(c.SetPolicy("/", name, pattern, apply_to, 0, keys))

    def exchange(self, name: str, internal: bool = False) -> None:
        self.apply(c.DeclareExchange("/", name, "topic", internal=internal))

    def settle(self) -> int:
        """Let the leader propose until nothing is to be changed; return how many rows that took."""
        rows = 0
        while True:
            while not self.plan.step():
                pass
            changes = self.plan.changes()
            if not changes:
                return rows
            rows += len(changes)
            self.apply(SetLinks(changes))

    def links(self) -> list[Parts]:
        self.settle()
        return sorted(link_parts(key) for key in self.metadata.links)

    def epoch(self, *parts: str) -> int:
        return self.metadata.links[link_key("/", *parts)].epoch


@pytest.fixture
def world() -> World:
    return World()


def test_a_policy_an_upstream_and_an_exchange_make_a_link(world: World) -> None:
    assert world.links() == []
    world.exchange("fed.x")
    world.exchange("other")
    assert world.links() == []
    world.policy("^fed", federation_upstream="u")
    assert world.links() == [("exchange", "fed.x", "u", "fed.x")]
    world.exchange("fed.y")
    assert len(world.links()) == 2
    world.apply(c.DeleteExchange("/", "fed.x"))
    assert world.links() == [("exchange", "fed.y", "u", "fed.y")]
    world.apply(c.ClearPolicy("/", "p"))
    assert world.links() == []
    assert world.settle() == 0


def test_queues_and_what_is_never_federated(world: World) -> None:
    purpose = {"x-internal-purpose": Field("S", "federation")}
    stream = {"x-queue-type": Field("S", "stream")}
    world.apply(
        c.DeclareQueue("/", "fed.q", True),
        c.DeclareQueue("/", "fed.inner", True, arguments=purpose),
        c.DeclareQueue("/", "fed.stream", True, arguments=stream),
        c.DeclareQueue("/", "fed.mine", False, exclusive=True),
    )
    world.exchange("fed.inner", internal=True)
    world.policy(".*", "all", federation_upstream="u")
    found = world.links()
    assert ("queue", "fed.q", "u", "fed.q") in found and ("exchange", "amq.topic", "u", "amq.topic") in found
    assert [one for one in found if one[0] == "queue"] == [("queue", "fed.q", "u", "fed.q")]
    assert not any(one[1] in ("", "fed.inner", "amq.rabbitmq.trace") for one in found)


def test_sets_patterns_and_names_that_differ(world: World) -> None:
    world.exchange("x")
    world.upstream("v", exchange="other")
    world.policy("^x$", federation_upstream_set="all")
    assert world.links() == [("exchange", "x", "u", "x"), ("exchange", "x", "v", "other")]
    elements: list[Json] = [{"upstream": "v", "exchange": "third"}]
    elements += [{"upstream": name} for name in ("none", "u", "u")]
    world.policy("^x$", federation_upstream_set="s")
    assert world.links() == []
    world.apply(c.SetParameter("federation-upstream-set", "/", "s", elements))
    assert world.links() == [("exchange", "x", "u", "x"), ("exchange", "x", "v", "third")]
    world.policy("^x$", federation_upstream_pattern="^v")
    assert world.links() == [("exchange", "x", "v", "other")]
    world.apply(c.ClearParameter("federation-upstream", "/", "v"))
    assert world.links() == []


def test_what_a_worker_must_notice_is_a_new_epoch_at_the_same_node(world: World) -> None:
    world.exchange("x")
    world.exchange("y")
    world.policy("^[xy]$", federation_upstream="u")
    world.links()
    (first, second) = world.metadata.links
    world.apply(AssignWork((AssignRow(*first, world.metadata.links[first].epoch, "a"),)))
    before = dict(world.metadata.links)
    world.settle()
    assert world.metadata.links == before
    world.upstream("u", max_hops=2)
    world.settle()
    assert all(world.metadata.links[key].epoch > before[key].epoch for key in (first, second))
    assert world.metadata.links[first].node == "a"
    epoch = world.epoch("exchange", "y", "u", "y")
    world.apply(c.DeleteExchange("/", "y"), c.DeclareExchange("/", "y", "fanout"))
    world.settle()
    assert world.epoch("exchange", "y", "u", "y") > epoch
    user = c.SetParameter("federation-upstream", "/", "u", {"uri": "amqp://far", "max-hops": 2}, "ann")
    epoch = world.epoch("exchange", "y", "u", "y")
    world.apply(user)
    world.settle()
    assert world.epoch("exchange", "y", "u", "y") > epoch


def test_bindings_and_other_policies_change_nothing(world: World) -> None:
    world.exchange("x")
    world.policy("^x$", federation_upstream="u")
    world.links()
    world.policy("^q", "queues", "other", max_length=5)
    world.apply(c.Bind("/", "x", "exchange", "amq.topic", "k"))
    assert world.settle() == 0


def test_a_new_leader_finds_what_the_former_one_did(world: World) -> None:
    world.exchange("x")
    world.policy("^x$", federation_upstream="u")
    world.links()
    fresh = Plan(world.metadata, lambda: "here")
    assert fresh.step() and fresh.changes() == ()
    world.plan.forget()
    world.exchange("x2")
    world.policy("^x", federation_upstream="u")
    assert len(world.links()) == 2
    renamed = Plan(world.metadata, lambda: "elsewhere")
    assert renamed.step() and len(renamed.changes()) == 2


def test_a_deleted_vhost_takes_its_links_along(world: World) -> None:
    world.exchange("x")
    world.policy("^x$", federation_upstream="u")
    world.apply(c.SetParameter("federation-upstream", "/", "v", {"uri": "amqp://"}, "ann"))
    world.links()
    world.apply(c.DeleteVhost("/"))
    assert not world.metadata.links and not world.metadata.parameter_users
    assert world.links() == []


def test_many_are_looked_at_in_steps_and_links_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "STEP_MAX", 10)
    monkeypatch.setattr(plans, "LINKS_MAX", 25)
    for number in range(40):
        world.exchange(f"x{number:02}")
    world.policy("^x", federation_upstream="u")
    assert not world.plan.step()
    assert len(world.links()) == 25 and world.plan.has_excess
    assert world.settle() == 0
    world.apply(c.DeleteExchange("/", "x00"))
    assert len(world.links()) == 25


def test_snapshots_and_ids(world: World) -> None:
    world.exchange("x")
    world.policy("^x$", federation_upstream="u")
    world.apply(c.SetParameter("federation-upstream", "/", "v", {"uri": "amqp://"}, "ann"))
    world.links()
    copy = Metadata()
    copy.restore(world.metadata.snapshot())
    assert copy.links == world.metadata.links and copy.parameter_users == world.metadata.parameter_users
    assert copy.snapshot() == world.metadata.snapshot()
    (key,) = copy.links
    assert key == link_key("/", "exchange", "x", "u", "x") and len(link_id(key)) == 8
    assert link_id(key) != link_id(WorkKey(LINK, "other", key.name))
