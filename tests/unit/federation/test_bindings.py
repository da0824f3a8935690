"""The bindings that a link makes upstream: once each, with hops that count down, and never in a circle."""

from __future__ import annotations

import pytest

from leveret.federation.bindings import Change, Site, UpstreamBindings, queue_name
from leveret.metadata.model.records import Binding
from leveret.protocol.tables import Field, Table

SITE = Site("here", "v", "x", "there", "w")


def bound(key: str, destination: str = "q", arguments: Table | None = None) -> Binding:
    return Binding("v", "x", "queue", destination, key, arguments or {})


def changes(table: UpstreamBindings) -> list[tuple[str, bool]]:
    found: list[Change] = []
    while (change := table.take_change()) is not None:
        found.append(change)
    return [(one.key, one.is_made) for one in found]


def from_cluster(name: str, hops: int, vhost: str = "v") -> Table:
    entry = {"cluster-name": Field("S", name), "vhost": Field("S", vhost), "hops": Field("s", hops)}
    return {"x-bound-from": Field("A", [Field("F", entry)])}


def test_each_key_and_arguments_once() -> None:
    table = UpstreamBindings(SITE, 1, "A")
    table.add([bound("k"), bound("k", "r"), bound("l"), bound("k", "q", {"a": Field("I", 1)})])
    assert changes(table) == [("k", True), ("l", True), ("k", True)]
    table.remove(bound("k"))
    table.remove(bound("l"))
    assert changes(table) == [("l", False)]
    table.remove(bound("k", "r"))
    assert changes(table) == [("k", False)]
    assert changes(table) == []


def test_what_comes_and_goes_before_it_is_passed_on() -> None:
    table = UpstreamBindings(SITE, 1, "A")
    table.add([bound("k")])
    table.remove(bound("k"))
    assert changes(table) == []
    table.add([bound("k")])
    assert changes(table) == [("k", True)]
    table.remove(bound("k"))
    table.add([bound("k")])
    assert changes(table) == []
    table.remove(bound("none"))
    assert changes(table) == []


def test_the_argument_names_where_a_binding_comes_from() -> None:
    table = UpstreamBindings(SITE, 3, "B")
    arguments = table.arguments_there({"x-match": Field("S", "all")})
    assert arguments is not None and arguments["x-match"] == Field("S", "all")
    (entry,) = arguments["x-bound-from"].value
    assert entry.value == {
        "cluster-name": Field("S", "here"), "vhost": Field("S", "v"), "exchange": Field("S", "v:x B"),
        "hops": Field("s", 3),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("max_hops", "before", "hops"),
    [
        (5, from_cluster("c", 3), 2),
        (1, from_cluster("c", 3), 1),
        (5, from_cluster("c", 1), None),
        (5, from_cluster("there", 3, "w"), None),  # It would go back to where it was made.
        (5, from_cluster("there", 3, "else"), 2),
        (5, {"x-bound-from": Field("S", "forged")}, 5),
        (5, {"x-bound-from": Field("A", [])}, 5),
        (5, {"x-bound-from": Field("A", [Field("I", 3)])}, None),
        (5, {"x-bound-from": Field("A", [Field("F", {"hops": Field("S", "3")})])}, None),
    ],
)
def test_hops(max_hops: int, before: Table, hops: int | None) -> None:
    arguments = UpstreamBindings(SITE, max_hops, "A").arguments_there(before)
    assert (None if arguments is None else arguments["x-bound-from"].value[0].value["hops"].value) == hops


def test_names() -> None:
    assert queue_name("x", "/", "x", "/", "c") == "federation: x -> c"
    assert queue_name("y", "/", "x", "/", "c") == "federation: y -> c:x"
    assert queue_name("x", "/", "x", "v", "c") == "federation: x -> c:v:x"
