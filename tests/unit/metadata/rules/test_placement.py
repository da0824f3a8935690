from __future__ import annotations

from leveret.base.json_values import Json
from leveret.metadata.model.commands import (
    AddVhost,
    DeclareQueue,
    DeleteQueue,
    RenameNode,
    SetGlobalParameter,
    SetParameter,
)
from leveret.metadata.model.events import ParameterChanged
from leveret.metadata.rules.placement import (
    LABELS,
    LINKS,
    MOVES,
    extra_members,
    labels_of,
    locate,
    moving_to,
    own_labels,
    wanted_ring,
    with_extra,
)
from leveret.metadata.store import Metadata

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


def test_exactly_chooses_a_node_in_maintenance_last_and_takes_nothing_from_it() -> None:
    definition: dict[str, Json] = {"ha-mode": "exactly", "ha-params": 2}
    assert wanted_ring(definition, "a", ("a",), NODES, NODES, {"b": 1, "d": 2}, away=("c",)) == ("a", "b")
    assert wanted_ring(definition, "a", ("a", "c"), NODES, NODES, {}, away=("c",)) == ("a", "c")
    assert wanted_ring(definition, "a", ("a",), NODES, ("a", "c"), {}, away=("c",)) == ("a", "c")


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


def test_what_is_said_of_a_queue_goes_with_it() -> None:
    """Also if whoever said it is gone by then, or says it too late."""
    metadata = Metadata()
    metadata.apply(AddVhost("/"))
    metadata.apply(DeclareQueue("/", "q", node="a"))
    number = metadata.queues["/", "q"].id
    move = SetParameter(MOVES, "/", "q", {"queue": number, "to": "b"})
    metadata.apply(move)
    assert metadata.parameters
    assert ParameterChanged(MOVES, "/", "q") in metadata.apply(DeleteQueue("/", "q", number)).events
    assert not metadata.parameters
    for _ in range(2):
        refused = metadata.apply(move).refused
        assert refused is not None and refused.code == 404 and not metadata.parameters
        metadata.apply(DeclareQueue("/", "q", node="a"))  # Another one.


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


# -- Labels and moves ----------------------------------------------------------------------------------------------

ZONES = {"a": {"zone": "x"}, "b": {"zone": "x"}, "c": {"zone": "y"}, "d": {"zone": "z"}}


def spread(mode: str, params: Json, kept: str = "a", running: str = "abcd") -> str:
    definition: dict[str, Json] = {"ha-mode": mode, "ha-params": params, "ha-spread": "zone"}
    found = wanted_ring(definition, "a", tuple(kept), NODES, tuple(running), {"b": 0, "c": 5, "d": 3}, ZONES)
    assert found is not None
    return "".join(found)


def test_copies_are_in_different_zones_first_of_all() -> None:
    assert spread("exactly", 2) == "ad"  # And not at b, which has the fewest.
    assert spread("exactly", 3) == "adc"
    assert spread("exactly", 4) == "adcb"


def test_who_has_a_copy_keeps_it_if_another_zone_gains_nothing() -> None:
    assert spread("exactly", 2, kept="ac") == "ac"
    assert spread("exactly", 2, kept="ab") == "ad"
    assert spread("exactly", 2, kept="ab", running="ab") == "ab"
    assert spread("exactly", 3, kept="abc", running="abc") == "acb"


def test_members_of_a_quorum_queue_are_spread_and_stay() -> None:
    assert spread("quorum", 3) == "adc"
    assert spread("quorum", 3, kept="ab") == "abd"


def test_labels_do_not_matter_unless_a_policy_names_one() -> None:
    assert wanted_ring({"ha-mode": "exactly", "ha-params": 2}, "a", ("a",), NODES, NODES, {"c": 9, "d": 9}, ZONES) == (
        "a",
        "b",
    )


def test_every_node_has_labels_by_its_name() -> None:
    metadata = Metadata()
    assert labels_of(metadata, "one@far") == {"node": "one@far", "host": "far"}
    metadata.apply(SetGlobalParameter(LABELS + "one@far", {"zone": "x", "host": "rack7"}))
    assert labels_of(metadata, "one@far") == {"node": "one@far", "host": "rack7", "zone": "x"}
    assert own_labels(metadata, "one@far") == {"zone": "x", "host": "rack7"}


def test_a_move_is_of_a_queue_and_not_of_its_name() -> None:
    metadata = Metadata()
    metadata.apply(AddVhost("/"))
    metadata.apply(DeclareQueue("/", "q", node="a"))
    spec = metadata.queues["/", "q"]
    assert moving_to(metadata, spec) is None
    metadata.apply(SetParameter(MOVES, "/", "q", {"queue": spec.id, "to": "b"}))
    assert moving_to(metadata, spec) == "b"
    metadata.apply(DeleteQueue("/", "q"))
    metadata.apply(DeclareQueue("/", "q", node="a"))
    assert moving_to(metadata, metadata.queues["/", "q"]) is None


# Two machines with two processes each, and a node that is a machine by itself.
PROCESSES = {"a": "m1", "b": "m1", "c": "m2", "d": "m2"}


def ring_of_machines(
    mode: str, params: Json = None, kept: str = "a", running: str = "abcde", master: str = "a"
) -> str | None:
    definition: dict[str, Json] = {"ha-mode": mode, "ha-params": params}
    labels = {name: {"machine": machine} for name, machine in PROCESSES.items()}
    loads = {"a": 5, "b": 3, "c": 4, "d": 2, "e": 9}
    found = wanted_ring(definition, master, tuple(kept), "abcde", tuple(running), loads, labels)
    return None if found is None else "".join(found)


def test_no_two_copies_are_on_one_machine() -> None:
    assert ring_of_machines("all") == "ade"
    assert ring_of_machines("exactly", 2) == "ad"
    assert ring_of_machines("exactly", 5) == "ade"
    assert ring_of_machines("quorum", 3) == "ade"


def test_copies_stay_where_they_are_among_the_processes_of_a_machine() -> None:
    assert ring_of_machines("all", kept="ac") == "ace"
    assert ring_of_machines("all", kept="ac", running="abde") == "ace"  # It comes back with what it has.
    assert ring_of_machines("exactly", 2, kept="ac") == "ac"
    assert ring_of_machines("exactly", 2, kept="ac", running="abde") == "ad"


def test_a_second_copy_on_a_machine_is_given_up() -> None:
    """A cluster may have had them there before its nodes were known to share a machine; the master's stays."""
    assert ring_of_machines("all", kept="bac", master="a") == "ace"
    assert ring_of_machines("exactly", 3, kept="abc", master="b") == "bce"
    assert ring_of_machines("nodes", ["a", "b"], kept="ab") == "ab"  # Who names both, gets both.


def test_one_machine_has_one_copy() -> None:
    labels = {name: {"machine": "m"} for name in NODES}
    for mode, params in (("all", None), ("exactly", 3), ("quorum", 3)):
        definition: dict[str, Json] = {"ha-mode": mode, "ha-params": params}
        assert wanted_ring(definition, "b", ("b",), NODES, NODES, {}, labels) == ("b",)
