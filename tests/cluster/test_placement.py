from __future__ import annotations

from leveret.cluster.placement import locate, wanted_ring
from leveret.cluster.specs import Json

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
