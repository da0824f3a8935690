"""How partitions are handled: what can be chosen, and who serves then."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from leveret.metadata.model.commands import SetGlobalParameter
from leveret.metadata.rules.partition_handling import (
    DEFAULT,
    PARAMETER,
    BadHandling,
    ContactCounts,
    PartitionHandling,
    Partitions,
    Strategy,
    from_json,
    parse,
    why_pause,
)
from leveret.metadata.store import Metadata

THREE = ("a", "b", "c")
IGNORE = PartitionHandling(Strategy.IGNORE)
IF_ALL_DOWN = PartitionHandling(Strategy.PAUSE_IF_ALL_DOWN, ("a", "b"))


# -- Choosing ------------------------------------------------------------------------------------------------------


def test_the_default() -> None:
    assert PartitionHandling() == DEFAULT == parse("pause_minority")
    assert not DEFAULT.spools and not DEFAULT.heals


@pytest.mark.parametrize(
    ("strategy", "pauses_minority", "spools", "heals"),
    [
        ("pause_minority", True, False, False),
        ("stop_processing", True, False, False),
        ("ignore", False, True, False),
        ("autoheal", False, True, True),
        ("autoupgrade", False, True, True),
    ],
)
def test_what_strategies_mean(strategy: str, pauses_minority: bool, spools: bool, heals: bool) -> None:
    handling = parse(strategy)
    assert (handling.pauses_minority, handling.spools, handling.heals) == (pauses_minority, spools, heals)
    assert from_json(strategy) == from_json(handling.as_json()) == handling
    assert str(handling) == strategy


@pytest.mark.parametrize(("recover", "heals"), [(None, False), ("ignore", False), ("autoheal", True)])
def test_pause_if_all_down(recover: str | None, heals: bool) -> None:
    handling = parse("pause_if_all_down", ["x@h", "y@h", "x@h"], recover)
    assert handling.nodes == ("x@h", "y@h") and handling.spools and handling.heals is heals
    assert from_json(handling.as_json()) == handling
    assert str(handling) == f"pause_if_all_down (nodes: x@h, y@h; recover: {recover or 'ignore'})"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("pause", "one of pause_minority, stop_processing, pause_if_all_down, ignore, autoheal, autoupgrade"),
        ("pause_if_all_down", "pause_if_all_down needs nodes"),
        ({"strategy": "pause_if_all_down", "nodes": []}, "pause_if_all_down needs nodes"),
        ({"strategy": "pause_if_all_down", "nodes": ["a"], "recover": "never"}, "recover is one of ignore, autoheal"),
        ({"strategy": "pause_if_all_down", "nodes": ["a"], "recover": 1}, "recover is one of ignore, autoheal"),
        ({"strategy": "pause_if_all_down", "nodes": [""]}, "a node's name has 1 to 255 bytes"),
        ({"strategy": "pause_if_all_down", "nodes": "a"}, "nodes is a list of names"),
        ({"strategy": "pause_if_all_down", "nodes": [1]}, "nodes is a list of names"),
        ({"strategy": "pause_if_all_down", "nodes": [f"n{n}" for n in range(65)]}, "at most 64 nodes, not 65"),
        ({"strategy": "ignore", "nodes": ["a"]}, "nodes belongs to pause_if_all_down, and ignore is chosen"),
        ({"strategy": "autoheal", "recover": "ignore"}, "recover belongs to pause_if_all_down"),
        ({"strategy": "ignore", "when": "now"}, "'when' is not"),
        ({"nodes": ["a"]}, "strategy is a name"),
        (7, "a strategy's name, or an object"),
    ],
)
def test_what_cannot_be_chosen(value: Any, text: str) -> None:
    with pytest.raises(BadHandling) as caught:
        from_json(value)
    assert text in str(caught.value)
    refused = Metadata().apply(SetGlobalParameter(PARAMETER, value)).refused
    assert refused is not None and refused.code == 406 and text in refused.text


def test_other_parameters_are_no_business_of_ours() -> None:
    metadata = Metadata()
    assert metadata.apply(SetGlobalParameter("motto", 7)).refused is None
    assert metadata.apply(SetGlobalParameter(PARAMETER, "ignore")).refused is None


# -- Deciding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_a_minority_pauses(size: int) -> None:
    names = tuple("abcde"[:size])
    for count in range(size):
        for others in combinations(names[1:], count):
            for strategy in ("pause_minority", "stop_processing"):
                reason = why_pause(parse(strategy), "a", names, names, others)
                assert (reason is None) is (2 * (count + 1) > size)
                if reason is not None:
                    assert reason == f"{count + 1} of {size} nodes are in contact, which is no majority"


def test_at_most_one_side_serves() -> None:
    """Whatever the two sides of a partition are."""
    names = tuple("abcde")
    for count in range(1, 5):
        for side in combinations(names, count):
            rest = [name for name in names if name not in side]
            serving = [
                group
                for group in (side, rest)
                if all(not why_pause(DEFAULT, one, names, names, group) for one in group)
            ]
            assert len(serving) == 1


def test_who_does_not_count_as_a_minority() -> None:
    assert why_pause(DEFAULT, "a", ("a",), ("a",), ()) is None  # Alone.
    assert why_pause(DEFAULT, "c", THREE, ("a", "b"), ()) is None  # Joining.
    assert why_pause(DEFAULT, "x", ("a", "b"), ("a", "b"), ()) is None  # Removed.
    assert why_pause(DEFAULT, "a", ("a", "b"), ("a",), ()) is None  # The other one is still joining.
    assert why_pause(DEFAULT, "a", THREE, THREE, ("x", "y")) is not None  # Strangers do not count.


def test_a_partial_partition_stops_nobody() -> None:
    sights = {"a": ("c",), "b": ("c",), "c": ("a", "b")}
    assert [why_pause(DEFAULT, name, THREE, THREE, sights[name]) for name in THREE] == [None, None, None]


@pytest.mark.parametrize("strategy", ["ignore", "autoheal", "autoupgrade"])
def test_who_never_pauses(strategy: str) -> None:
    assert why_pause(parse(strategy), "a", THREE, THREE, ()) is None


def test_none_of_the_listed_nodes() -> None:
    assert why_pause(IF_ALL_DOWN, "a", THREE, THREE, ()) is None  # It sees itself.
    assert why_pause(IF_ALL_DOWN, "c", THREE, THREE, ("b",)) is None
    assert why_pause(IF_ALL_DOWN, "c", THREE, THREE, ()) == "of the nodes a, b none is in contact"
    assert why_pause(parse("pause_if_all_down", ["x"]), "c", THREE, THREE, ()) is None  # No such member.
    assert why_pause(parse("pause_if_all_down", ["x", "a"]), "c", THREE, THREE, ("b",)) is not None


# -- One node ------------------------------------------------------------------------------------------------------


def new(handling: PartitionHandling = DEFAULT) -> Partitions:
    node = Partitions("a", handling)
    node.set_members(THREE, THREE, 100)
    return node


def test_it_pauses_and_resumes_once_it_has_caught_up() -> None:
    node = new()
    node.on_up("b")
    node.on_up("c")
    assert node.look(True, 200) is None and not node.lost
    node.on_down("b", "nothing was heard for 4000 ms", True, 300)
    assert node.look(True, 300) is None and not node.paused
    node.on_down("c", "the connection was closed", False, 400)
    assert node.look(True, 400) is True and node.paused and node.paused_ms == 400
    assert node.look(True, 450) is None  # It is already.
    node.on_up("b")
    assert node.look(False, 500) is None and node.paused
    assert node.look(True, 600) is False and not node.paused and node.pauses == 1 and node.reason == ""
    assert node.look(True, 700) is None


def test_which_peers_it_needs_to_serve() -> None:
    node = new()
    node.on_up("b")
    assert not node.needs_any_of(["c"]) and node.needs_any_of(["b"])
    node.on_up("c")
    assert not node.needs_any_of(["b"]) and not node.needs_any_of(["c"]) and node.needs_any_of(["b", "c"])
    node.on_down("b", "the connection was closed", False, 300)
    node.on_down("c", "the connection was closed", False, 400)
    assert not node.needs_any_of(["b", "c"])  # They are gone already.
    node.on_up("b")
    node.set_members(["a", "b"], ["a", "b"], 500)
    assert not node.needs_any_of(["b"])  # Of two, either may go on alone.


def test_who_is_missing_since_when() -> None:
    node = new()
    assert {name: loss.reason for name, loss in node.lost.items()} == {"b": "not met yet", "c": "not met yet"}
    node.on_up("b")
    node.on_down("b", "nothing was heard for 4000 ms", True, 300)
    node.set_members(THREE, THREE, 400)
    assert node.lost["b"] == (300, "nothing was heard for 4000 ms", True) and node.lost["c"].since_ms == 100
    node.set_members(("a", "b"), ("a", "b"), 500)
    assert list(node.lost) == ["b"]
    node.on_up("b")
    assert not node.lost


def test_another_strategy_holds_at_once() -> None:
    node = new()
    assert node.look(True, 1) is True
    node.handling = IGNORE
    assert node.look(True, 2) is False
    node.handling = IF_ALL_DOWN
    assert node.look(True, 3) is None  # It is listed itself.


def test_a_smaller_cluster_may_be_a_majority() -> None:
    node = new()
    node.on_up("b")
    assert node.look(True, 1) is None
    node.on_down("b", "closed", False, 2)
    node.set_members(("a",), ("a",), 2)  # Both others have left.
    assert node.look(True, 2) is None


def test_who_counted_once_needs_those_that_count_now() -> None:
    """Of two nodes the other one has gone on without this one, and was lost again when this one had heard of it."""
    node = Partitions("a")
    node.set_members(("a", "b"), ("b",), 0)
    assert node.must_pause() is None  # It joins.
    node.set_members(("a", "b"), ("a", "b"), 1)
    node.on_up("b")
    node.set_members(("a", "b"), ("b",), 2)
    assert node.must_pause() is None
    node.on_down("b", "closed", False, 3)
    assert node.must_pause() == "0 of 1 nodes are in contact, which is no majority"
    node.set_members(("b",), ("b",), 4)  # It was removed.
    assert node.must_pause() is None


# -- Who sees how many ---------------------------------------------------------------------------------------------


class Word(frozenset[str]):
    """What a node says, and how often somebody has gone through it."""

    read = 0

    def __or__(self, other: object) -> Any:
        Word.read += 1
        return frozenset(self) | other  # type: ignore[operator]


def test_voters_that_are_seen_are_counted() -> None:
    says = {"a": frozenset("b"), "b": frozenset("abx"), "x": frozenset("abc")}
    counts = ContactCounts().count(THREE, ("a", "b", "c"), says)
    assert counts == {"a": 2, "b": 2}, "c has said nothing, x was not asked for"


def test_only_another_word_is_counted_anew() -> None:
    """A leader asks in each tick, and what fifty nodes say of fifty others rarely changes."""
    sights, says = ContactCounts(), {name: Word("abc") for name in THREE}
    Word.read = 0
    for _ in range(100):
        assert sights.count(THREE, THREE, says) == {"a": 3, "b": 3, "c": 3}
    assert Word.read == 3
    says["b"] = Word("b")
    assert sights.count(THREE, THREE, says) == {"a": 3, "b": 1, "c": 3} and Word.read == 4
    assert sights.count("ab", "ab", says) == {"a": 2, "b": 1}
