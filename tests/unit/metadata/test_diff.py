"""From one metadata to another by events: who follows them ends up where a fresh start would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.broker.broker import Broker
from leveret.metadata.diff import events_between
from leveret.metadata.model import commands as c
from leveret.metadata.model import events as e
from leveret.metadata.mqtt.events import SessionChanged
from leveret.metadata.store import Metadata
from leveret.protocol.tables import Field
from tests.support.machines import World
from tests.unit.metadata.strategies import commands, histories

KEYS = ("", "k", "#", "q1", "q2", "q3", "other")


def folded(*parts: list[c.Command], first_id: int = 0) -> Metadata:
    metadata = Metadata()
    metadata.last_queue_id = first_id
    for part in parts:
        for command in part:
            metadata.apply(command)
    return metadata


def broker_of(metadata: Metadata) -> Broker:
    return Broker(metadata, World(), "a", "cluster", "3.11", 1 << 40, 1 << 40)


def picture(broker: Broker) -> dict[str, Any]:
    """What clients of the broker would notice."""
    shown: dict[str, Any] = {}
    for name, vhost in broker.vhosts.items():
        shown[name] = {one: (queue.spec, queue.is_local) for one, queue in vhost.queues.items()}
        for exchange in [key[1] for key in broker.metadata.exchanges if key[0] == name]:
            for key in KEYS:
                found = vhost.router.route(exchange, key, dict)
                shown[f"{name} {exchange} {key}"] = sorted(queue.spec.name for queue in found)
        shown[f"{name} retained"] = sorted(broker.retained.find(name, "#"), key=lambda one: one.topic)
    shown["times"] = broker.client_ids.times._due
    shown["ids"] = {number: queue.spec.name for number, queue in broker.queues_by_id.items()}
    return shown


def follow(old: Metadata, new: Metadata) -> tuple[e.Event, ...]:
    """A broker of the old metadata is told of the new; it must end up like one that never knew the old."""
    follower = broker_of(old)
    before = old.frozen()
    old.restore(new.snapshot())
    events = events_between(before, old)
    follower.on_applied(events)
    assert picture(follower) == picture(broker_of(new))
    return events


@settings(max_examples=150, deadline=None)
@given(histories, st.lists(commands, max_size=20), st.one_of(st.none(), histories))
def test_a_broker_that_follows_is_like_a_fresh_one(
    before: list[c.Command], after: list[c.Command], fork: list[c.Command] | None
) -> None:
    """`fork`: the two have nothing in common but names, as if all had been deleted and made anew."""
    follow(folded(before), folded(before, after) if fork is None else folded(fork, after, first_id=1000))


@settings(max_examples=150, deadline=None)
@given(histories, st.lists(commands, max_size=20))
def test_nothing_is_said_without_a_change_and_every_change_is_told(
    before: list[c.Command], after: list[c.Command]
) -> None:
    old = folded(before)
    assert events_between(old, folded(before)) == ()
    new = folded(before)
    told: set[e.Event] = set()
    for command in after:
        told |= {event for event in new.apply(command).events if _hashable(event)}
    found = events_between(old, new)
    for event in found:
        if isinstance(event, e.UserChanged | e.PermissionsChanged | e.ParameterChanged | e.GlobalParameterChanged):
            assert event in told, "nobody has changed that"
    kinds = (e.ParameterChanged, e.GlobalParameterChanged)
    for event in told:
        if isinstance(event, kinds) and _value(old, event) != _value(new, event):
            assert event in found


def _hashable(event: e.Event) -> bool:
    return not hasattr(event, "spec") and not isinstance(event, SessionChanged)


def _value(metadata: Metadata, event: e.ParameterChanged | e.GlobalParameterChanged) -> str:
    """With its type: 1 is not true, and null is not nothing."""
    kept: dict[Any, Any] = metadata.global_parameters
    key: Any = event.name
    if isinstance(event, e.ParameterChanged):
        kept, key = metadata.parameters, (event.component, event.vhost, event.name)
    return repr(kept[key]) if key in kept else "nothing"


BASE: list[c.Command] = [c.AddVhost("/"), c.DeclareExchange("/", "x", "fanout"), c.DeclareQueue("/", "q", node="a")]
BOUND: list[c.Command] = [*BASE, c.Bind("/", "x", "queue", "q", "k", {})]


@pytest.mark.parametrize(
    ("before", "after", "kinds"),
    [
        (
            BOUND,
            [*BOUND, c.DeleteQueue("/", "q"), *BOUND[2:]],
            [e.BindingsRemoved, e.QueueDeleted, e.QueueDeclared, e.BindingsAdded],
        ),
        (
            BOUND,
            [*BASE, c.DeleteExchange("/", "x"), c.DeclareExchange("/", "x", "topic"), BOUND[-1]],
            [e.BindingsRemoved, e.ExchangeDeleted, e.ExchangeDeclared, e.BindingsAdded],
        ),
        (BASE, [*BASE, c.SetGlobalParameter("n", None)], [e.GlobalParameterChanged]),
        (
            [*BASE, c.SetGlobalParameter("n", 1)],
            [*BASE, c.SetGlobalParameter("n", True)],
            [e.GlobalParameterChanged],
        ),
        (
            [*BASE, c.SetParameter("shovel", "/", "n", 0)],
            [*BASE, c.SetParameter("shovel", "/", "n", False)],
            [e.ParameterChanged],
        ),
        (
            [*BASE, c.SetPolicy("/", "p", ".*", "all", 0, {"a": 1})],
            [*BASE, c.SetPolicy("/", "p", ".*", "all", 0, {"a": True})],
            [e.PolicyChanged],
        ),
        (BASE, [*BASE, c.DeleteVhost("/")], [e.QueueDeleted, *[e.ExchangeDeleted] * 8, e.VhostDeleted]),
        (
            [*BASE, c.DeclareExchange("/", "y", "fanout", arguments={"a": Field("I", 1)})],
            [*BASE, c.DeclareExchange("/", "y", "fanout", arguments={"a": Field("l", 1)})],
            [e.ExchangeDeleted, e.ExchangeDeclared],
        ),
    ],
)
def test_events(before: list[c.Command], after: list[c.Command], kinds: list[type]) -> None:
    assert [type(event) for event in follow(folded(before), folded(after))] == kinds
