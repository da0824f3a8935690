from __future__ import annotations

import random
from collections import Counter

import pytest

from leveret.broker.routing import consistent_hash
from leveret.broker.routing.consistent_hash import HashIndex, check_hash_arguments, check_weight, header_value
from leveret.protocol.tables import Field, Table

VALUES = [b"%d" % number for number in range(8000)]


def index(**weights: str) -> HashIndex[str]:
    made: HashIndex[str] = HashIndex(str)
    for name, weight in weights.items():
        assert made.add(weight, name)
    return made


def chosen(made: HashIndex[str]) -> dict[bytes, str]:
    found = {}
    for value in VALUES:
        (found[value],) = made.choose(value)
    return found


def test_values_are_shared_out_by_weight() -> None:
    counts = Counter(chosen(index(a="1", b="2", c="5")).values())
    assert 850 < counts["a"] < 1150 and 1850 < counts["b"] < 2150 and 4800 < counts["c"] < 5200


def test_nothing_moves_but_what_has_to() -> None:
    made = index(a="1", b="1", c="1")
    before = chosen(made)
    made.add("1", "d")
    after = chosen(made)
    moved = [value for value in VALUES if before[value] != after[value]]
    assert 1700 < len(moved) < 2300 and {after[value] for value in moved} == {"d"}
    assert made.remove("1", "d")
    assert chosen(made) == before
    made.remove("1", "a")
    assert all(after == before[value] for value, after in chosen(made).items() if before[value] != "a")


def test_the_order_of_bindings_makes_no_difference() -> None:
    """Nodes bind in different orders when queues change their homes, and must agree all the same."""
    bindings = [("a", "1"), ("a", "3"), ("b", "2"), ("c", "10"), ("d", "1")]
    expected = None
    for seed in range(4):
        random.Random(seed).shuffle(bindings)
        made: HashIndex[str] = HashIndex(str)
        for name, weight in bindings:
            made.add(weight, name)
        expected = expected or chosen(made)
        assert chosen(made) == expected


def test_bound_twice_weighs_both() -> None:
    made = index(a="1", b="1")
    assert not made.add("1", "a") and made.add("2", "a")
    assert 5700 < Counter(chosen(made).values())["a"] < 6300
    assert made.remove("1", "a") and not made.remove("1", "a") and not made.remove("1", "none")
    assert 5050 < Counter(chosen(made).values())["a"] < 5600
    assert made.remove("2", "a")
    assert set(chosen(made).values()) == {"b"}


def test_none_and_one() -> None:
    made = index()
    assert made.choose(b"x") == ()
    made.add("3", "a")
    assert made.choose(b"x") == ("a",)


def test_weights_without_measure() -> None:
    made = index(a="9" * 200, b="1")
    assert set(chosen(made).values()) == {"a"}


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consistent_hash, "REMEMBERED_MAX", 10)
    made = index(a="1", b="1")
    chosen(made)
    assert 0 < len(made._remembered) <= 10


@pytest.mark.parametrize("key", ["1", "+3", "03", "1000000"])
def test_weights(key: str) -> None:
    assert check_weight(key) is None


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("0", "The binding key must be greater than 0"),
        ("-1", "The binding key must be greater than 0"),
        ("", "The binding key must be an integer: <<>>"),
        ("x", 'The binding key must be an integer: <<"x">>'),
        ("1.5", 'The binding key must be an integer: <<"1.5">>'),
        (" 2", 'The binding key must be an integer: <<" 2">>'),
        ("1_0", 'The binding key must be an integer: <<"1_0">>'),
        ("2\n", 'The binding key must be an integer: <<"2\\n">>'),
    ],
)
def test_weights_that_are_none(key: str, problem: str) -> None:
    assert check_weight(key) == problem


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, None),
        ({"hash-header": Field("S", "")}, None),
        ({"hash-property": Field("S", "correlation_id")}, None),
        ({"hash-property": Field("S", "message_id")}, None),
        ({"hash-property": Field("S", "timestamp")}, None),
        ({"hash-property": Field("S", "reply_to")}, "Unsupported property: reply_to"),
        ({"hash-property": Field("V", None)}, "invalid type 'void' for arg 'hash-property'"),
        (
            {"hash-property": Field("S", "x"), "hash-header": Field("I", 1)},
            "hash-header and hash-property are mutually exclusive",
        ),
    ],
)
def test_arguments(arguments: Table, problem: str | None) -> None:
    assert check_hash_arguments(arguments) == problem


def test_equal_headers_go_one_way() -> None:
    assert header_value(Field("I", 5)) == header_value(Field("l", 5)) == header_value(Field("b", 5))
    assert header_value(Field("S", "a\udcff")) == header_value(Field("x", b"a\xff")) == b"a\xff"
    assert header_value(None) == b""
    assert header_value(Field("t", True)) != header_value(Field("I", 1))
    assert header_value(Field("F", {"a": Field("I", 1)})) != header_value(Field("F", {"a": Field("I", 2)}))
