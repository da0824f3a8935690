from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.metadata.command_codec import BadEncoding
from leveret.metadata.model import commands as c
from leveret.metadata.snapshot import write_snapshot
from leveret.metadata.store import Metadata
from leveret.protocol.tables import Field
from tests.unit.metadata.strategies import histories


def filled() -> Metadata:
    store = Metadata()
    for command in (
        c.AddVhost("/", "d", ("t",)),
        c.PutUser("ann", "h", "s", ("administrator",)),
        c.SetUserLimits("ann", {"max-channels": 2}),
        c.SetPermissions("ann", "/", "a", "b", "c"),
        c.SetTopicPermissions("ann", "/", "x", "w", "r"),
        c.DeclareExchange("/", "x", "topic", arguments={"alternate-exchange": Field("S", "y")}),
        c.DeclareQueue("/", "q", True, True, False, {"x-expires": Field("l", 5)}, "a/1", "a"),
        c.Bind("/", "x", "queue", "q", "k"),
        c.Bind("/", "x", "exchange", "amq.topic", "k", {"a": Field("x", b"\xff")}),
        c.SetPolicy("/", "p", "^q", "queues", 3, {"max-length": 5}),
        c.SetPolicy("/", "p", "^q", "queues", 3, {"max-length": 6}, operator=True),
        c.SetParameter("shovel", "/", "s", {"uri": ["a"]}),
        c.SetGlobalParameter("cluster_name", "c"),
    ):
        assert store.apply(command).refused is None
    return store


def same(one: Metadata, other: Metadata) -> bool:
    besides = ("bindings", "policies_changed")  # The second counts what happened to an object, whatever its state.
    plain = {name: value for name, value in vars(one).items() if name not in besides}
    return (
        plain == {name: value for name, value in vars(other).items() if name not in besides}
        and {binding: binding.arguments for binding in one.bindings}
        == {binding: binding.arguments for binding in other.bindings}
        and len(one.bindings) == len(other.bindings)
    )


def test_all_comes_back() -> None:
    store, copy = filled(), Metadata()
    copy.apply(c.AddVhost("gone"))
    copy.restore(store.snapshot())
    assert same(store, copy)
    assert copy.snapshot() == store.snapshot()


@given(histories)
def test_any_state_comes_back(history: list[c.Command]) -> None:
    store, copy = Metadata(), Metadata()
    for command in history:
        store.apply(command)
    copy.restore(store.snapshot())
    assert same(store, copy)


def test_many_bindings_take_several_lines() -> None:
    store, copy = filled(), Metadata()
    for number in range(2500):
        store.apply(c.Bind("/", "x", "queue", "q", str(number)))
    lines = [line for line in write_snapshot(store) if line.startswith(b'["bindings","/","x"')]
    assert len(lines) == 4  # Three of the queue, and one of the other destination.
    copy.restore(store.snapshot())
    assert same(store, copy)
    # Names are shared with the exchange's and the queue's record, or a million bindings would hold a million copies.
    assert {id(binding.source) for binding in copy.bindings} == {id(copy.exchanges["/", "x"].name)}
    assert {id(b.destination) for b in copy.bindings if b.destination == "q"} == {id(copy.queues["/", "q"].name)}


TEXTS = st.text('"[],q\\é', min_size=1, max_size=5) | st.sampled_from(["],[", '"],["queue","q","', "q"])


@given(st.lists(st.tuples(TEXTS, st.lists(TEXTS, max_size=5)), max_size=4), st.booleans())
def test_bindings_come_back_with_any_texts(groups: list[tuple[str, list[str]]], with_argument: bool) -> None:
    store, copy = filled(), Metadata()
    for queue, keys in groups:
        store.apply(c.DeclareQueue("/", queue))
        for key in keys:
            store.apply(c.Bind("/", "amq.direct", "queue", queue, key))
    if with_argument:
        store.apply(c.Bind("/", "amq.direct", "queue", "q", "k", {"a": Field("I", 1)}))
    copy.restore(store.snapshot())
    assert list(copy.bindings) == list(store.bindings)


def test_a_destination_with_many_bindings_has_lines_of_its_own() -> None:
    store, copy = filled(), Metadata()
    for name, count in (("few", 2), ("few too", 3), ("many", 60), ("last", 1)):
        store.apply(c.DeclareQueue("/", name))
        for number in range(count):
            store.apply(c.Bind("/", "amq.direct", "queue", name, str(number)))
    lines = [line for line in write_snapshot(store) if line.startswith(b'["bindings","/","amq.direct"')]
    assert [line.count(b'["queue"') for line in lines] == [5, 60, 1]
    copy.restore(store.snapshot())
    assert same(store, copy)


def test_bad_snapshots_are_refused_and_change_nothing() -> None:
    store = filled()
    good = store.snapshot()
    lines = good.splitlines(keepends=True)
    for bad, what in (
        (b"", "not JSON"),
        (b"[1]\n", "not a snapshot"),
        (good.replace(b'"leveret metadata",1', b'"leveret metadata",2', 1), "version 2"),
        (b"".join(lines[:-1]), "no end"),
        (b"".join(lines[:5] + lines[6:]), "counts"),
        (good + lines[2], "counts"),
        (good.replace(b'["user"', b'["abuser"', 1), "line 3 of the snapshot"),
        (good.replace(b'["bindings","/","x"', b'["bindings","/","z"', 1), "snapshot"),
        (good.replace(b'["queue",1', b'["queue",9', 1), "snapshot"),
    ):
        with pytest.raises(BadEncoding, match=what):
            store.restore(bad)
    assert store.snapshot() == good


@given(st.data())
def test_damaged_snapshots_raise_nothing_else(data: st.DataObject) -> None:
    good = bytearray(filled().snapshot())
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] = data.draw(st.integers(0, 255))
    try:
        Metadata().restore(bytes(good))
    except BadEncoding:
        pass


@given(histories, histories)
def test_a_frozen_copy_stays_as_it_was(before: list[c.Command], after: list[c.Command]) -> None:
    metadata = Metadata()
    for command in before:
        metadata.apply(command)
    frozen, snapshot = metadata.frozen(), metadata.snapshot()
    for command in after:
        metadata.apply(command)
    assert frozen.snapshot() == snapshot
