"""Which global parameters are kept, whoever proposes them."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.metadata.model import commands as c
from leveret.metadata.rules.global_parameters import (
    CLUSTER_ID,
    COUNT_MAX,
    DEPTH_MAX,
    WEIGHT_MAX,
    cluster_id_text,
    is_internal,
    needs_administrator,
    parse_cluster_id,
)
from leveret.metadata.store import Applied, Metadata

ID = cluster_id_text(bytes(range(16)))


def put(store: Metadata, name: str, value: Any) -> Applied:
    return store.apply(c.SetGlobalParameter(name, value))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_the_id_of_a_cluster_is_set_once() -> None:
    store = Metadata()
    assert put(store, CLUSTER_ID, ID).refused is None
    assert put(store, CLUSTER_ID, ID).refused is None  # Two nodes may say the same.
    for value in (cluster_id_text(bytes(16)), "zz", None, 5, ID + "\n"):
        assert put(store, CLUSTER_ID, value).refused is not None
    assert store.apply(c.ClearGlobalParameter(CLUSTER_ID)).refused is not None
    assert store.global_parameters == {CLUSTER_ID: ID}


def test_what_is_no_id_of_a_cluster_is_replaced() -> None:
    """A snapshot that an earlier version made can hold anything there."""
    store = Metadata()
    store.global_parameters[CLUSTER_ID] = "zz"
    assert put(store, CLUSTER_ID, "z").refused is not None
    assert put(store, CLUSTER_ID, ID).refused is None
    assert parse_cluster_id(store.global_parameters[CLUSTER_ID]) == bytes(range(16))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", 1),
        ("n" * 256, 1),
        ("\ud800", 1),
        ("free", "x" * WEIGHT_MAX),
        ("free", ["x"] * WEIGHT_MAX),
        ("free", {"x" * WEIGHT_MAX: 1}),
        ("free", [1 << (8 * WEIGHT_MAX)]),
        ("free", nested(DEPTH_MAX)),
        ("cluster_name", "x" * 256),
        ("cluster_name", ""),
        ("cluster_name", None),
        ("cluster_name", "\ud800"),
        ("cluster_partition_handling", "often"),
        ("ha-forbid-copying", "yes"),
        ("node_labels:one@host", {"zone": 1}),
        ("node_labels:one@host", "zone"),
        ("node_labels:" + "n" * 256, {}),
        ("node_maintenance:one@host", {"state": "gone", "run": "r"}),
        ("node_maintenance:one@host", {"state": "draining"}),
        ("node_renaming:one@host", {"new": "two@host"}),
        ("rebalance_state", {"moved": {}}),
    ],
)
def test_refused(name: str, value: Any) -> None:
    store = Metadata()
    refused = put(store, name, value).refused
    assert refused is not None
    assert refused.code == 406
    assert len(refused.text) < 1_000
    assert not store.global_parameters


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n" * 255, nested(DEPTH_MAX - 1)),
        ("free", "x" * (WEIGHT_MAX - 2)),
        ("cluster_name", "ж" * 255),
        ("cluster_partition_handling", "autoheal"),
        ("ha-forbid-copying", True),
        ("node_labels:" + "n" * 255, {"zone": "a"}),
        ("node_maintenance:one@host", {"state": "draining", "run": "r"}),
        ("node_renaming:one@host", {"new": "two@host", "id": "i"}),
        ("rebalance_state", {"runs": 1, "moves": 2, "last": None, "moved": {str(n): 1 << 40 for n in range(2_000)}}),
    ],
)
def test_taken(name: str, value: Any) -> None:
    store = Metadata()
    assert put(store, name, value).refused is None
    assert store.global_parameters == {name: value}


def test_there_are_not_too_many() -> None:
    store = Metadata()
    for number in range(COUNT_MAX):
        assert put(store, str(number), number).refused is None
    assert put(store, "more", 1).refused is not None
    assert put(store, "0", "changed").refused is None
    assert put(store, CLUSTER_ID, ID).refused is None  # What nodes need has room.


def test_whose_they_are() -> None:
    internal = (CLUSTER_ID, "rebalance_state", "node_labels:a@b", "node_maintenance:a@b", "node_renaming:a@b")
    administrators = ("cluster_name", "cluster_partition_handling", "ha-forbid-copying")
    assert all(map(is_internal, internal))
    assert all(map(needs_administrator, internal + administrators))
    assert not any(map(is_internal, (*administrators, "free", "node_labels")))
    assert not needs_administrator("mqtt_port_to_vhost_mapping")
