from __future__ import annotations

import gc
import tracemalloc
from typing import get_args

import pytest
from hypothesis import given

from leveret.metadata.command_codec import decode_command, encode_command
from leveret.metadata.model import commands as c
from leveret.metadata.model import events as e
from leveret.metadata.model.records import Binding, ExchangeSpec, Permission, QueueSpec
from leveret.metadata.store import Applied, Metadata, Refusal
from leveret.protocol.tables import Field
from tests.unit.metadata.strategies import histories

PREDECLARED = {"", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match", "amq.rabbitmq.trace"}


@pytest.fixture
def store() -> Metadata:
    """A vhost with a durable exchange x and a durable queue q."""
    metadata = Metadata()
    metadata.apply(c.AddVhost("/"))
    metadata.apply(c.PutUser("ann", "hash", "sha"))
    metadata.apply(c.DeclareExchange("/", "x", "topic"))
    metadata.apply(c.DeclareQueue("/", "q", node="a"))
    return metadata


def bind(store: Metadata, source: str, destination: str, kind: str = "queue", key: str = "k") -> Applied:
    return store.apply(c.Bind("/", source, "queue" if kind == "queue" else "exchange", destination, key))


def refusal(applied: Applied) -> Refusal:
    assert applied.refused is not None
    assert applied.events == ()
    return applied.refused


# Vhosts


def test_a_vhost_begins_with_the_predeclared_exchanges() -> None:
    store = Metadata()
    applied = store.apply(c.AddVhost("v", "for v", ("blue",)))
    assert applied.events[0] == e.VhostAdded("v")
    declared = [event.spec for event in applied.events if isinstance(event, e.ExchangeDeclared)]
    assert {spec.name for spec in declared} == PREDECLARED
    assert all(spec.durable and not spec.auto_delete for spec in declared)
    assert [spec.name for spec in declared if spec.internal] == ["amq.rabbitmq.trace"]
    types = {spec.name: spec.type for spec in declared}
    assert types["amq.match"] == types["amq.headers"] == "headers"
    assert types[""] == types["amq.direct"] == "direct"
    assert store.vhosts["v"].description == "for v"


def test_adding_a_vhost_again_changes_only_what_it_says_of_it(store: Metadata) -> None:
    assert store.apply(c.AddVhost("/")).events == ()
    assert store.apply(c.AddVhost("/", "new")).events == (e.VhostChanged("/"),)
    assert ("/", "q") in store.queues


def test_deleting_a_vhost_removes_all_in_it(store: Metadata) -> None:
    store.apply(c.AddVhost("kept"))
    before = store.snapshot()
    index = store.index
    store.apply(c.AddVhost("v"))
    for command in (
        c.DeclareQueue("v", "q"),
        c.DeclareExchange("v", "x", "fanout", auto_delete=True),
        c.Bind("v", "x", "queue", "q", ""),
        c.SetPermissions("ann", "v", "", "", ""),
        c.SetTopicPermissions("ann", "v", "x", "", ""),
        c.SetPolicy("v", "p", "", "all", 0, {}),
        c.SetPolicy("v", "p", "", "all", 0, {}, operator=True),
        c.SetParameter("shovel", "v", "s", 1),
        c.SetVhostLimits("v", {"max-queues": 3}),
    ):
        assert store.apply(command).refused is None
    events = store.apply(c.DeleteVhost("v")).events
    assert events[-1] == e.VhostDeleted("v")
    kinds = [type(event) for event in events]
    assert kinds.index(e.BindingsRemoved) < kinds.index(e.QueueDeleted) < kinds.index(e.ExchangeDeleted)
    assert {e.PermissionsChanged("ann", "v"), e.PolicyChanged("v"), e.ParameterChanged("shovel", "v", "s")} <= set(
        event for event in events if isinstance(event, e.PermissionsChanged | e.PolicyChanged | e.ParameterChanged)
    )
    store.index, store.last_queue_id, store.last_assignment = index, 1, 0
    assert store.snapshot() == before


def test_everything_in_an_unknown_vhost_is_refused(store: Metadata) -> None:
    for command in (
        c.DeleteVhost("v"),
        c.DeclareQueue("v", "q"),
        c.DeleteQueue("v", "q"),
        c.DeclareExchange("v", "x", "topic"),
        c.DeleteExchange("v", "x"),
        c.Bind("v", "x", "queue", "q", ""),
        c.Unbind("v", "x", "queue", "q", ""),
        c.SetPermissions("ann", "v", "", "", ""),
        c.SetPolicy("v", "p", "", "all", 0, {}),
        c.SetParameter("shovel", "v", "s", 1),
        c.SetVhostLimits("v", {}),
    ):
        assert refusal(store.apply(command)) == Refusal(404, "vhost v not found")


def test_the_limit_of_queues_counts_only_new_ones(store: Metadata) -> None:
    store.apply(c.SetVhostLimits("/", {"max-queues": 1}))
    assert store.apply(c.DeclareQueue("/", "q")).refused is None
    text = "cannot declare queue 'r': queue limit in vhost '/' (1) is reached"
    assert refusal(store.apply(c.DeclareQueue("/", "r"))) == Refusal(406, text)
    store.apply(c.DeleteQueue("/", "q"))
    assert store.apply(c.DeclareQueue("/", "r")).refused is None
    store.apply(c.SetVhostLimits("/", {"max-queues": -1}))
    assert store.apply(c.DeclareQueue("/", "s")).refused is None


def test_limits_are_merged_replaced_and_cleared(store: Metadata) -> None:
    store.apply(c.SetVhostLimits("/", {"max-queues": 1}))
    store.apply(c.SetVhostLimits("/", {"max-connections": 2}))
    assert store.vhosts["/"].limits == {"max-queues": 1, "max-connections": 2}
    store.apply(c.ClearVhostLimits("/", "max-queues"))
    assert store.vhosts["/"].limits == {"max-connections": 2}
    store.apply(c.SetVhostLimits("/", {"max-queues": 5}, replace=True))
    assert store.vhosts["/"].limits == {"max-queues": 5}
    assert store.apply(c.ClearVhostLimits("/")).events == (e.VhostChanged("/"),)
    assert store.vhosts["/"].limits == {}
    store.apply(c.SetUserLimits("ann", {"max-channels": 4}))
    store.apply(c.PutUser("ann", "other", "sha"))
    assert store.users["ann"].limits == {"max-channels": 4}
    store.apply(c.ClearUserLimits("ann"))
    assert store.users["ann"].limits == {}


# Users


def test_users_and_permissions(store: Metadata) -> None:
    assert store.apply(c.PutUser("bob", "h", "sha", ("monitoring",))).events == (e.UserChanged("bob"),)
    assert store.apply(c.PutUser("bob", "h", "sha", ("monitoring",))).events == ()
    assert store.apply(c.SetPermissions("bob", "/", "a", "b", "c")).events == (e.PermissionsChanged("bob", "/"),)
    assert store.permissions["bob", "/"] == Permission("a", "b", "c")
    assert refusal(store.apply(c.SetPermissions("eve", "/", "", "", ""))) == Refusal(404, "user eve not found")
    store.apply(c.SetTopicPermissions("bob", "/", "x", "w", "r"))
    store.apply(c.SetTopicPermissions("bob", "/", "y", "w", "r"))
    assert store.apply(c.ClearTopicPermissions("bob", "/", "x")).events == (e.PermissionsChanged("bob", "/"),)
    assert list(store.topic_permissions["bob", "/"]) == ["y"]
    assert store.apply(c.DeleteUser("bob")).events == (e.PermissionsChanged("bob", "/"), e.UserDeleted("bob"))
    assert not store.permissions and not store.topic_permissions
    assert refusal(store.apply(c.DeleteUser("bob"))).code == 404


def test_a_password_hash_is_not_shown() -> None:
    store = Metadata()
    command = c.PutUser("ann", "secret", "sha")
    store.apply(command)
    assert "secret" not in repr(command) + str(command) + repr(store.users["ann"])


# Exchanges and queues


def test_declaring_twice_is_no_change(store: Metadata) -> None:
    spec = store.queues["/", "q"]
    applied = store.apply(c.DeclareQueue("/", "q", durable=False))
    assert (applied.refused, applied.events) == (None, ())
    assert store.queues["/", "q"] is spec
    applied = store.apply(c.DeclareExchange("/", "x", "fanout"))
    assert (applied.refused, applied.events) == (None, ())
    assert store.exchanges["/", "x"].type == "topic"


def test_queue_ids_are_never_used_again(store: Metadata) -> None:
    first = store.queues["/", "q"].id
    store.apply(c.DeleteQueue("/", "q"))
    copy = Metadata()
    copy.restore(store.snapshot())
    for metadata in (store, copy):
        metadata.apply(c.DeclareQueue("/", "q"))
        assert metadata.queues["/", "q"].id == first + 1
    assert refusal(store.apply(c.DeleteQueue("/", "q", first))) == Refusal(404, "no queue 'q' in vhost '/'")
    assert store.apply(c.DeleteQueue("/", "q", first + 1)).refused is None


def test_what_cannot_be_deleted(store: Metadata) -> None:
    bind(store, "x", "q")
    for name, if_unused, code, text in (
        ("x", True, 406, "exchange 'x' in vhost '/' in use"),
        ("none", False, 404, "no exchange 'none' in vhost '/'"),
        ("", False, 403, "operation not permitted on the default exchange"),
        ("amq.direct", False, 403, "deletion of system exchange 'amq.direct' in vhost '/' not allowed"),
    ):
        assert refusal(store.apply(c.DeleteExchange("/", name, if_unused))) == Refusal(code, text)
    assert refusal(store.apply(c.DeleteQueue("/", "none"))) == Refusal(404, "no queue 'none' in vhost '/'")


def opened(applied: Applied) -> list[e.Event | Binding]:
    """Return the events of a command, with the bindings instead of groups that were removed."""
    found: list[e.Event | Binding] = []
    for event in applied.events:
        found += event.group if isinstance(event, e.BindingsRemoved) else (event,)
    return found


def test_deleting_takes_the_bindings_along(store: Metadata) -> None:
    store.apply(c.DeclareExchange("/", "y", "fanout"))
    for applied in (bind(store, "x", "q"), bind(store, "y", "x", "exchange"), bind(store, "amq.topic", "q")):
        assert applied.refused is None
    assert opened(store.apply(c.DeleteExchange("/", "x"))) == [
        Binding("/", "x", "queue", "q", "k"),
        Binding("/", "y", "exchange", "x", "k"),
        e.ExchangeDeleted(ExchangeSpec("/", "x", "topic")),
    ]
    assert opened(store.apply(c.DeleteQueue("/", "q"))) == [
        Binding("/", "amq.topic", "queue", "q", "k"),
        e.QueueDeleted(QueueSpec(1, "/", "q", node="a")),
    ]
    assert len(store.bindings) == 0


def test_an_auto_delete_exchange_goes_with_its_last_binding(store: Metadata) -> None:
    store.apply(c.DeclareExchange("/", "auto", "fanout", auto_delete=True))
    bind(store, "x", "auto", "exchange")
    store.apply(c.Unbind("/", "x", "exchange", "auto", "k"))
    assert ("/", "auto") in store.exchanges  # Nothing ever left from it.
    bind(store, "auto", "q", key="1")
    bind(store, "auto", "q", key="2")
    store.apply(c.Unbind("/", "auto", "queue", "q", "1"))
    assert ("/", "auto") in store.exchanges
    events = store.apply(c.DeleteQueue("/", "q")).events
    assert [type(event) for event in events] == [e.BindingsRemoved, e.QueueDeleted, e.ExchangeDeleted]


def test_auto_delete_runs_up_a_chain_and_around_a_circle(store: Metadata) -> None:
    for name in ("a1", "a2", "a3"):
        store.apply(c.DeclareExchange("/", name, "fanout", auto_delete=True))
    bind(store, "a1", "a2", "exchange")
    bind(store, "a2", "a3", "exchange")
    bind(store, "a3", "q")
    events = store.apply(c.Unbind("/", "a3", "queue", "q", "k")).events
    gone = [event.spec.name for event in events if isinstance(event, e.ExchangeDeleted)]
    assert gone == ["a3", "a2", "a1"]
    for name in ("c1", "c2"):
        store.apply(c.DeclareExchange("/", name, "fanout", auto_delete=True))
    bind(store, "c1", "c2", "exchange")
    bind(store, "c2", "c1", "exchange")
    bind(store, "c1", "c1", "exchange")
    events = store.apply(c.DeleteExchange("/", "c1")).events
    assert [event.spec.name for event in events if isinstance(event, e.ExchangeDeleted)] == ["c1", "c2"]
    assert len(store.bindings) == 0


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        (c.DeclareQueue("/", ""), "queue name must not be empty"),
        (c.DeclareQueue("/", "é" * 128), "queue name must be UTF-8 of at most 255 bytes"),
        (c.DeclareQueue("/", "\ud800"), "queue name must be UTF-8 of at most 255 bytes"),
        (c.DeclareExchange("/", "n" * 256, "topic"), "exchange name must be UTF-8 of at most 255 bytes"),
        (c.Bind("/", "x", "queue", "q", "k" * 256), "routing key must be UTF-8 of at most 255 bytes"),
        (c.AddVhost(""), "vhost name must not be empty"),
        (c.PutUser("", "", ""), "user name must not be empty"),
    ],
)
def test_names_that_cannot_travel_are_refused(store: Metadata, command: c.Command, refused: str) -> None:
    assert refusal(store.apply(command)) == Refusal(406, refused)
    assert store.apply(c.DeclareQueue("/", b"\xff".decode("utf-8", "surrogateescape") * 255)).refused is None


# Bindings


def test_bindings_are_the_same_by_all_their_fields(store: Metadata) -> None:
    def apply(key: str, table: dict[str, Field]) -> int:
        return len(store.apply(c.Bind("/", "x", "queue", "q", key, table)).events)

    inner = {"b": Field("S", "1"), "a": Field("A", [Field("I", 1)])}
    assert apply("k", {"a": Field("I", 1), "t": Field("F", inner)}) == 1
    assert apply("k", {"t": Field("F", dict(reversed(inner.items()))), "a": Field("I", 1)}) == 0
    assert apply("k", {"t": Field("F", inner), "a": Field("l", 1)}) == 1
    assert apply("k", {}) == 1
    assert apply("", {}) == 1
    assert len(store.bindings) == 4
    text = "no binding j between exchange 'x' in vhost '/' and queue 'q' in vhost '/'"
    assert refusal(store.apply(c.Unbind("/", "x", "queue", "q", "j"))) == Refusal(404, text)
    assert (
        len(store.apply(c.Unbind("/", "x", "queue", "q", "k", {"a": Field("l", 1), "t": Field("F", inner)})).events)
        == 1
    )
    assert len(store.bindings) == 3


@pytest.mark.parametrize("kind", [c.Bind, c.Unbind])
def test_the_ends_of_a_binding_are_checked_in_order(store: Metadata, kind: type[c.Bind] | type[c.Unbind]) -> None:
    default = Refusal(403, "operation not permitted on the default exchange")
    assert refusal(store.apply(kind("/", "", "queue", "none", ""))) == default
    assert refusal(store.apply(kind("/", "none", "exchange", "", ""))) == default
    assert refusal(store.apply(kind("/", "n", "queue", "m", ""))) == Refusal(404, "no exchange 'n' in vhost '/'")
    assert refusal(store.apply(kind("/", "x", "queue", "m", ""))) == Refusal(404, "no queue 'm' in vhost '/'")
    assert refusal(store.apply(kind("/", "x", "exchange", "m", ""))) == Refusal(404, "no exchange 'm' in vhost '/'")


def test_listings_show_the_implicit_bindings(store: Metadata) -> None:
    bind(store, "x", "q")
    implicit, explicit = Binding("/", "", "queue", "q", "q"), Binding("/", "x", "queue", "q", "k")
    assert list(store.bindings_to("/", "queue", "q")) == [implicit, explicit]
    assert list(store.bindings_from("/", "")) == list(store.bindings_between("/", "", "queue", "q")) == [implicit]
    assert list(store.bindings_from("/", "x")) == list(store.bindings_between("/", "x", "queue", "q")) == [explicit]
    for end in ("queue", "exchange"):
        assert list(store.bindings_to("/", end, "none")) == list(store.bindings_between("/", "x", end, "none")) == []
    assert list(store.bindings_between("/", "", "queue", "none")) == list(store.bindings_to("/", "exchange", "x")) == []


# Policies, parameters, nodes


def test_policies_and_parameters(store: Metadata) -> None:
    policy = c.SetPolicy("/", "p", "^q", "queues", 1, {"max-length": 1})
    assert store.apply(policy).events == (e.PolicyChanged("/"),)
    assert store.apply(policy).events == ()
    assert store.apply(c.SetPolicy("/", "p", "^q", "queues", 1, {"max-length": True})).events == (e.PolicyChanged("/"),)
    assert refusal(store.apply(c.ClearPolicy("/", "p", operator=True))).code == 404
    assert store.apply(c.ClearPolicy("/", "p")).events == (e.PolicyChanged("/"),)
    assert store.apply(c.SetParameter("other", "/", "s", {"a": [1]})).events == (
        e.ParameterChanged("other", "/", "s"),
    )
    assert store.apply(c.SetParameter("other", "/", "s", {"a": [1]})).events == ()
    assert store.apply(c.SetParameter("other", "/", "s", {"a": [1.0]})).events != ()
    assert store.apply(c.ClearParameter("other", "/", "s")).events != ()
    assert refusal(store.apply(c.ClearParameter("other", "/", "s"))).code == 404
    assert store.apply(c.SetGlobalParameter("g", None)).events == (e.GlobalParameterChanged("g"),)
    assert store.apply(c.ClearGlobalParameter("g")).events != ()
    assert refusal(store.apply(c.ClearGlobalParameter("g"))).code == 404


@pytest.mark.parametrize("alone", [False, True])
def test_what_a_started_node_has_lost(store: Metadata, alone: bool) -> None:
    for name, durable, exclusive, node in (
        ("durable", True, False, "a"),
        ("transient", False, False, "a"),
        ("exclusive", True, True, "a"),
        ("elsewhere", False, True, "b"),
    ):
        store.apply(c.DeclareQueue("/", name, durable, exclusive, node=node))
    store.apply(c.DeclareExchange("/", "fleeting", "fanout", durable=False))
    store.apply(c.DeclareExchange("/", "auto", "fanout", auto_delete=True))
    bind(store, "auto", "transient")
    bind(store, "fleeting", "durable")
    bind(store, "x", "exclusive")
    store.apply(c.NodeStarted("a", alone))
    assert {name for _, name in store.queues} == {"q", "durable", "elsewhere"}
    expected = {"x", "auto"} if alone else {"x", "fleeting"}
    assert {name for _, name in store.exchanges} - PREDECLARED == expected
    assert len(store.bindings) == (0 if alone else 1)


# The fold as a whole


def test_every_command_is_folded() -> None:
    from leveret.metadata.store import _FOLDS

    assert set(_FOLDS) == set(get_args(c.Command))


@given(histories)
def test_equal_commands_make_equal_stores(history: list[c.Command]) -> None:
    one, other = Metadata(), Metadata()
    for index, command in enumerate(history, 1):
        before = one.snapshot()
        applied = one.apply(command)
        assert other.apply(decode_command(encode_command(command))) == applied
        assert applied.index == index
        if applied.refused is not None or not applied.events:
            one.index -= 1
            assert one.snapshot() == before
            one.index += 1
        restored = Metadata()
        restored.restore(one.snapshot())
        assert restored.snapshot() == one.snapshot()
        other = restored  # So that a node which started from a snapshot goes on like the others.


@given(histories)
def test_events_tell_the_whole_story(history: list[c.Command]) -> None:
    """A listener that knows only the events has the same picture, and never meets an unknown name."""
    store = Metadata()
    vhosts: set[str] = set()
    exchanges: dict[tuple[str, str], ExchangeSpec] = {}
    queues: dict[tuple[str, str], QueueSpec] = {}
    bindings: set[Binding] = set()
    for command in history:
        for event in store.apply(command).events:
            match event:
                case e.VhostAdded(name):
                    vhosts.add(name)
                case e.VhostDeleted(name):
                    assert not [key for key in (*exchanges, *queues) if key[0] == name]
                    vhosts.remove(name)
                case e.ExchangeDeclared(spec):
                    assert spec.vhost in vhosts
                    exchanges[spec.vhost, spec.name] = spec
                case e.ExchangeDeleted(spec):
                    assert exchanges.pop((spec.vhost, spec.name)) == spec
                case e.QueueDeclared(queue):
                    assert queue.vhost in vhosts
                    queues[queue.vhost, queue.name] = queue
                case e.QueueDeleted(queue):
                    assert queues.pop((queue.vhost, queue.name)) == queue
                case e.BindingAdded(binding):
                    assert binding not in bindings
                    bindings.add(binding)
                case e.BindingRemoved(binding):
                    bindings.remove(binding)
                case e.BindingsRemoved(group):
                    bindings.difference_update(group)
        for binding in bindings:
            assert (binding.vhost, binding.source) in exchanges
            ends: object = queues if binding.destination_kind == "queue" else exchanges
            assert isinstance(ends, dict) and (binding.vhost, binding.destination) in ends
    assert vhosts == set(store.vhosts)
    assert exchanges == store.exchanges
    assert queues == store.queues
    assert bindings == set(store.bindings)
    assert len(bindings) == len(store.bindings)
    for vhost in vhosts:
        assert store.queue_counts[vhost] == sum(key[0] == vhost for key in queues)
    for where, name in queues:
        ends_here = {b for b in bindings if (b.vhost, b.destination_kind, b.destination) == (where, "queue", name)}
        assert set(store.bindings.to_destination(where, "queue", name)) == ends_here


@pytest.mark.parametrize("queues", [1, 1000])
def test_a_binding_costs_at_most_200_bytes(queues: int) -> None:
    store = Metadata()
    store.apply(c.AddVhost("/"))
    for number in range(queues):
        store.apply(c.DeclareQueue("/", f"q{number}"))
    names = [f"q{number % queues}" for number in range(25_000)]
    gc.collect()
    tracemalloc.start()
    try:
        for number, name in enumerate(names):
            store.apply(c.Bind("/", "amq.topic", "queue", name, f"sensor.{number:08}.value"))
        gc.collect()
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used / len(names) <= 200
