from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.routing.topic import Node, TopicTrie

# What RabbitMQ 3.10.8 answered for these patterns and keys.
PATTERNS = ["", "#", "*", "*.*", "#.#", "#.*", "*.#", "a..b", "a.*.b", "a.#.b", "a.", "a.*", ".", "..", "#.a.#", "*..*",
            "#a", "*.#.*", "#.", "*."]  # fmt: skip
ANSWERS = {
    "": "  # #.#",
    "a": "# * #.# #.* *.# #.a.#",
    ".": "# *.* #.# #.* *.# . *.#.* #. *.",
    "..": "# #.# #.* *.# .. *..* *.#.* #.",
    "a.": "# *.* #.# #.* *.# a. a.* #.a.# *.#.* #. *.",
    "a..b": "# #.# #.* *.# a..b a.*.b a.#.b #.a.# *..* *.#.*",
    "a.b": "# *.* #.# #.* *.# a.#.b a.* #.a.# *.#.*",
    "a.x.b": "# #.# #.* *.# a.*.b a.#.b #.a.# *.#.*",
    ".a": "# *.* #.# #.* *.# #.a.# *.#.*",
    "*": "# * #.# #.* *.#",
    "#": "# * #.# #.* *.#",
    "a.#": "# *.* #.# #.* *.# a.* #.a.# *.#.*",
    "#a": "# * #.# #.* *.# #a",
    "*.a": "# *.* #.# #.* *.# #.a.# *.#.*",
    "a.b.c": "# #.# #.* *.# #.a.# *.#.*",
}


def naive_match(pattern: str, key: str) -> bool:
    """Independent of the trie: each word becomes the word and a comma, and the pattern a regular expression."""
    text = "".join(word + "," for word in key.split(".")) if key else ""
    parts = {"*": "[^,]*,", "#": "(?:[^,]*,)*"}
    words = pattern.split(".") if pattern else []
    return re.fullmatch("".join(parts.get(word, re.escape(word) + ",") for word in words), text) is not None


def nodes(node: Node[Any]) -> list[Node[Any]]:
    literal = node.children
    below = [] if literal is None else list(literal.values()) if isinstance(literal, dict) else [literal]
    below += [child for child in (node.star, node.hash) if child is not None]
    return [node, *(found for child in below for found in nodes(child))]


def check_shape(trie: TopicTrie[Any]) -> None:
    """No node that leads nowhere, no fork with one way, no dictionary with less than two children."""
    for node in nodes(trie.root):
        literal = node.children
        if isinstance(literal, dict):
            assert len(literal) > 1
            assert all(word == child.label.split(".")[0] for word, child in literal.items())
        if node is trie.root or node.entry is not None or node.star is not None or node.hash is not None:
            continue
        assert literal is not None
        assert isinstance(literal, dict) or node.label in ("*", "#")


@pytest.mark.parametrize("key", ANSWERS)
def test_as_rabbitmq(key: str) -> None:
    trie: TopicTrie[str] = TopicTrie()
    for pattern in PATTERNS:
        assert trie.add(pattern, f"to {pattern}")
    expected = {f"to {pattern}" for pattern in ANSWERS[key].split()} | ({"to "} if key == "" else set())
    assert set(trie.match(key)) == expected
    assert expected == {f"to {pattern}" for pattern in PATTERNS if naive_match(pattern, key)}


def test_a_binding_twice_is_one() -> None:
    trie: TopicTrie[str] = TopicTrie()
    assert trie.add("a.*", "q")
    assert not trie.add("a.*", "q")
    assert trie.remove("a.*", "q")
    assert trie.match("a.b") == ()
    assert not trie.remove("a.*", "q")


def test_several_destinations_of_one_pattern() -> None:
    trie: TopicTrie[str] = TopicTrie()
    for count, destination in enumerate(("q1", "q2", "q3"), 1):
        assert trie.add("a.#", destination)
        assert len(trie.match("a")) == count
    assert not trie.add("a.#", "q2")
    assert trie.match("a") == ("q1", "q2", "q3")
    assert trie.remove("a.#", "q2")
    assert trie.match("a.b") == ("q1", "q3")
    assert trie.remove("a.#", "q1")
    assert not trie.remove("a.#", "q1")
    assert trie.match("a.b.c") == ("q3",)


def test_a_destination_matched_by_several_patterns_comes_once() -> None:
    trie: TopicTrie[str] = TopicTrie()
    for pattern in ("a.b", "a.*", "#", "*.b", "#.b.#"):
        trie.add(pattern, "q")
    assert trie.match("a.b") == ("q",)


def test_an_edge_is_split_within_and_put_together_again() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add("a.b.c.d", "long")
    assert len(nodes(trie.root)) == 2
    trie.add("a.b", "short")
    trie.add("a.b.x", "turn")
    assert [trie.match(key) for key in ("a.b.c.d", "a.b", "a.b.x", "a", "a.b.c")] == [
        ("long",), ("short",), ("turn",), (), (),
    ]  # fmt: skip
    trie.remove("a.b.x", "turn")
    trie.remove("a.b", "short")
    assert len(nodes(trie.root)) == 2
    assert trie.match("a.b.c.d") == ("long",)


def test_an_only_child_is_split_where_its_rest_begins_with_another_word() -> None:
    # The fork must take the child's place, not stand beside it: the child would then be found under two words.
    trie: TopicTrie[str] = TopicTrie()
    trie.add("a..a.*", "q")
    trie.add("a.#.b", "other")
    assert trie.match(".a.x") == ()
    assert trie.match("a..a.x") == ("q",)
    check_shape(trie)


def test_removing_an_unknown_pattern_changes_nothing() -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add("a.b.c", "q")
    for pattern in ("a", "a.b", "a.b.c.d", "a.b.x", "x", "#", "*", "", "a.*.c"):
        assert not trie.remove(pattern, "q")
    assert not trie.remove("a.b.c", "other")
    assert trie.match("a.b.c") == ("q",)


word = st.sampled_from(["a", "b", "", "*", "#", "#"])
patterns = st.lists(word, max_size=6).map(".".join)
keys = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=7).map(".".join)
changes = st.lists(st.tuples(st.booleans(), patterns, st.sampled_from("pqr")), max_size=40)


@given(changes, st.lists(keys, min_size=1, max_size=8))
def test_agrees_with_the_naive_matcher(changes: list[tuple[bool, str, str]], keys: list[str]) -> None:
    trie: TopicTrie[str] = TopicTrie()
    model: set[tuple[str, str]] = set()
    for add, pattern, destination in changes:
        binding = (pattern, destination)
        if add:
            assert trie.add(*binding) == (binding not in model)
            model.add(binding)
        else:
            assert trie.remove(*binding) == (binding in model)
            model.discard(binding)
        check_shape(trie)
    for key in keys:
        found = trie.match(key)
        assert len(found) == len(set(found))
        assert set(found) == {destination for pattern, destination in model if naive_match(pattern, key)}
    for pattern, destination in model:
        assert trie.remove(pattern, destination)
    assert len(nodes(trie.root)) == 1


def lines_run(trie: TopicTrie[str], key: str) -> tuple[int, tuple[str, ...]]:
    """How many lines of code the walk executes: a count of steps that no busy machine can change."""
    count = 0
    walk = TopicTrie._walk.__code__

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return local

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code is walk else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        found = trie.match(key)
    finally:
        sys.settrace(before)
    return count, found


@pytest.mark.parametrize(
    ("pattern", "key"),
    [
        ("#." * 127 + "a", "." * 255),
        ("#.a." * 63 + "b", ".".join("a" * 128)),
        ("#.*." * 63 + "b", "." * 255),
        ("#." * 127 + "#", "." * 255),
        ("#.*.a." * 42 + "b", ".".join("a" * 128)),
    ],
)
def test_hostile_patterns_take_steps_in_proportion_to_nodes_and_words(pattern: str, key: str) -> None:
    trie: TopicTrie[str] = TopicTrie()
    trie.add(pattern, "q")
    count, found = lines_run(trie, key)
    assert found == (("q",) if pattern.endswith("#") else ())
    assert 100 < count <= 20 * len(nodes(trie.root)) * (key.count(".") + 2)


def test_a_thousand_patterns_cost_what_one_does() -> None:
    one: TopicTrie[str] = TopicTrie()
    one.add("*.17.#", "q17")
    thousand: TopicTrie[str] = TopicTrie()
    for number in range(1000):
        thousand.add(f"*.{number}.#", f"q{number}")
    few, found = lines_run(one, "k5.17.x.y")
    assert found == ("q17",)
    assert lines_run(thousand, "k5.17.x.y") == (few, found)


def test_long_patterns_make_few_nodes() -> None:
    trie: TopicTrie[int] = TopicTrie()
    for number in range(1000):
        trie.add(f"{number // 2}.a.b.c.d.e.f.{number}", number)
    assert len(nodes(trie.root)) <= 1 + 2 * 1000
