from __future__ import annotations

from leveret.cluster.commands import AddVhost, DeclareQueue, DeleteQueue, RenameNode, SetParameter
from leveret.cluster.events import ParameterChanged
from leveret.cluster.placement import LINKS, extra_members, locate, wanted_ring, with_extra
from leveret.cluster.specs import Json
from leveret.cluster.store import Metadata

NODES = ("a", "b", "c", "d")


def ring(mode: str, params: Json = None, kept: str = "a", running: str = "abcd", master: str = "a") -> str | None:
    definition: dict[str, Json] = {"ha-mode": mode, "ha-params": params}
    loads = {"a": 5, "b": 3, "c": 1, "d": 2}
    found = wanted_ring(definition, master, tuple(kept), NODES, tuple(running), loads)
    return None if found is None else "".join(found)


def test_no_policy() -> None:
    assert wanted_ring({}, "a", ("a",), NODES, NODES, {}) is None


def test_all() -> None:
    assert ring("all") == "abcd"
    assert ring("all", kept="acb", running="ab") == "acbd"


def test_exactly() -> None:
    assert ring("exactly", 1) == "a"
    assert ring("exactly", 2) == "ac"
    assert ring("exactly", 3) == "acd"
    assert ring("exactly", 9) == "acdb"


def test_exactly_keeps_those_that_have_a_copy() -> None:
    assert ring("exactly", 2, kept="ab") == "ab"
    assert ring("exactly", 2, kept="abd") == "ab"


def test_exactly_replaces_one_that_is_down_if_it_can() -> None:
    assert ring("exactly", 2, kept="ab", running="acd") == "ac"
    assert ring("exactly", 2, kept="ab", running="a") == "ab"


def test_nodes() -> None:
    assert ring("nodes", ["a", "c"]) == "ac"
    assert ring("nodes", ["c", "b"], kept="ab") == "bc"
    assert ring("nodes", ["nobody"], kept="ab") == "ab"


def test_where_a_new_master_goes() -> None:
    masters = {"a": 2, "b": 1, "c": 1}
    assert locate("client-local", "a", NODES, masters, 7) == "a"
    assert locate("min-masters", "a", NODES, masters, 7) == "d"
    assert locate("min-masters", "c", ("a", "b", "c"), masters, 7) == "c"
    assert locate("random", "a", NODES, masters, 6) == "c"


def test_a_quorum_queue_keeps_its_members_and_grows_to_its_size() -> None:
    assert ring("quorum", 3) == "acd"
    assert ring("quorum", 3, kept="abc", running="abd") == "abc"
    assert ring("quorum", 5, kept="abc", running="ad") == "abcd"
    assert ring("quorum", 1) == "a"


# -- Mirrors by hand -----------------------------------------------------------------------------------------------


def test_links_belong_to_the_queue_and_not_to_its_name() -> None:
    metadata = Metadata()
    metadata.apply(AddVhost("/"))
    metadata.apply(DeclareQueue("/", "q", node="a"))
    number = metadata.queues["/", "q"].id
    assert extra_members(metadata, "/", "q") == extra_members(metadata, "/", "other") == []
    metadata.apply(SetParameter(LINKS, "/", "q", {"queue": number, "nodes": ["b", "c"]}))
    assert extra_members(metadata, "/", "q") == ["b", "c"]
    metadata.apply(DeleteQueue("/", "q", number))
    assert extra_members(metadata, "/", "q") == []
    metadata.apply(DeclareQueue("/", "q", node="a"))
    assert extra_members(metadata, "/", "q") == []


def test_what_policy_and_operator_want() -> None:
    assert with_extra(None, [], "a", NODES) is None
    assert with_extra(None, ["c", "gone"], "a", NODES) == ("a", "c")
    assert with_extra(None, ["a"], "a", NODES) is None
    assert with_extra(("a", "b"), ["b", "d"], "a", NODES) == ("a", "b", "d")
    assert with_extra(("b",), ["c"], "a", NODES) == ("b", "c")  # The policy wants the master away.


def test_a_node_with_another_name_keeps_the_mirrors_that_were_added_by_hand() -> None:
    metadata = Metadata()
    metadata.apply(AddVhost("/"))
    for name in ("q", "r"):
        metadata.apply(DeclareQueue("/", name))
    metadata.apply(SetParameter(LINKS, "/", "q", {"queue": metadata.queues["/", "q"].id, "nodes": ["b", "c"]}))
    metadata.apply(SetParameter(LINKS, "/", "r", {"queue": metadata.queues["/", "r"].id, "nodes": ["c"]}))
    metadata.apply(SetParameter("other", "/", "s", {"nodes": ["b"]}))
    applied = metadata.apply(RenameNode("b", "new"))
    assert applied.events == (ParameterChanged(LINKS, "/", "q"),)
    assert extra_members(metadata, "/", "q") == ["new", "c"] and extra_members(metadata, "/", "r") == ["c"]
    assert metadata.parameters["other", "/", "s"] == {"nodes": ["b"]}
