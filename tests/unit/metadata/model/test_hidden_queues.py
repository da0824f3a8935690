"""Delayed exchanges in the metadata: each comes and goes with its hidden queue."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.metadata.command_codec import decode_command, encode_command
from leveret.metadata.model import commands as c
from leveret.metadata.model import events as e
from leveret.metadata.model.hidden_queues import exchange_of, hidden_queue_name, is_hidden_queue
from leveret.metadata.model.view import View
from leveret.metadata.store import Metadata


@pytest.fixture
def store() -> Metadata:
    metadata = Metadata()
    metadata.apply(c.AddVhost("/"))
    return metadata


def delayed(name: str = "x", **options: Any) -> c.DeclareExchange:
    return c.DeclareExchange("/", name, "x-delayed-message", node="a", **options)


def test_a_delayed_exchange_comes_and_goes_with_its_hidden_queue(store: Metadata) -> None:
    declared, kept = store.apply(delayed(auto_delete=True)).events
    assert isinstance(declared, e.ExchangeDeclared) and isinstance(kept, e.QueueDeclared)
    hidden = kept.spec
    assert (hidden.name, hidden.durable, hidden.node, exchange_of(hidden)) == ("amq.delayed.x", True, "a", "x")
    assert store.apply(delayed()).events == ()
    copy = Metadata()
    copy.restore(store.snapshot())
    assert copy.queues == store.queues and copy.queue_counts == store.queue_counts == {"/": 0}
    assert list(store.bindings_from("/", "")) == []
    for command in (
        c.DeleteQueue("/", hidden.name),
        c.Bind("/", "amq.fanout", "queue", hidden.name, ""),
        c.DeclareQueue("/", "amq.delayed.y", node="a"),
    ):
        assert store.apply(command).refused is not None
    store.apply(c.DeclareQueue("/", "q", node="a"))
    store.apply(c.Bind("/", "x", "queue", "q", ""))
    gone = store.apply(c.Unbind("/", "x", "queue", "q", "")).events
    assert [type(one) for one in gone] == [e.BindingRemoved, e.ExchangeDeleted, e.QueueDeleted]
    assert list(store.queues) == [("/", "q")] and store.queue_counts == {"/": 1}


def test_a_hidden_queue_that_is_lost_with_its_node_is_replaced(store: Metadata) -> None:
    for node in ("c", "b", "a"):
        store.apply(c.NodeStarted(node, run=f"run-{node}"))
    store.apply(delayed())
    old = store.queues["/", "amq.delayed.x"]
    events = store.apply(c.ForgetNode("a")).events
    new = store.queues["/", "amq.delayed.x"]
    assert events == (e.QueueDeleted(old), e.QueueDeclared(new)) and new.node == "b" and new.id > old.id


def test_a_vhost_takes_hidden_queues_along(store: Metadata) -> None:
    store.apply(delayed())
    assert store.apply(c.DeleteVhost("/")).refused is None and store.queues == {}


def test_names() -> None:
    names = ["x", "n" * 243, "n" * 244, "n" * 255, "\u00e9" * 127, "bad\udcff"]
    made = [hidden_queue_name(name) for name in names]
    assert all(is_hidden_queue(name) and len(name.encode("utf-8", "surrogateescape")) <= 255 for name in made)
    assert len(set(made)) == len(names)
    assert not is_hidden_queue("amq.delayed") and not is_hidden_queue("x")


def test_where_it_is(store: Metadata) -> None:
    view = View(1, 1, "b", ("b", "a"), (("b", "b.0"), ("a", "a.0")))
    command = delayed(view=view)
    assert decode_command(encode_command(command)) == command
    store.apply(command)
    hidden = store.queues["/", "amq.delayed.x"]
    assert hidden.view == view and hidden.node == "b" and hidden.joined == {"a": 1, "b": 1}
    bad = view._replace(version=7)
    assert store.apply(delayed("y", view=bad)).refused is not None and ("/", "y") not in store.exchanges
