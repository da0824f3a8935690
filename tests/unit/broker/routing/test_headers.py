from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.broker.routing.headers import HeadersIndex, check_x_match
from leveret.protocol.tables import Field, Table

VOID = Field("V", None)


def text(value: str) -> Field:
    return Field("S", value)


def matches(arguments: Table, headers: Table) -> bool:
    index: HeadersIndex[str] = HeadersIndex()
    assert index.add("", "q", arguments)
    return index.match(headers) == ("q",)


# Values

# Each row is a class of values that RabbitMQ 3.10.8 takes for equal; values of different rows differ.
EQUAL_VALUES = [
    [Field("t", True)],
    [Field("t", False)],
    [*(Field(kind, 1) for kind in "bBsuIilT"), Field("f", 1.0), Field("d", 1.0)],
    [Field("f", 1.5), Field("d", 1.5)],
    [Field("I", 0), Field("d", 0.0), Field("d", -0.0)],
    [Field("l", 2**53), Field("d", float(2**53))],
    [Field("l", 2**53 + 1)],
    [Field("D", (0, 1))],
    [Field("D", (1, 10))],
    [text("a"), Field("x", b"a")],
    [text("\udcff"), Field("x", b"\xff")],
    [text(""), Field("x", b"")],
    [text("1")],
    [text("true")],
    [Field("A", []), Field("F", {})],
    [Field("A", [Field("I", 1)])],
    [Field("A", [Field("l", 1)])],
    [Field("A", [Field("d", 1.0)])],
    [Field("A", [text("a")])],
    [Field("A", [Field("x", b"a")])],
    [Field("F", {"a": Field("I", 1), "b": Field("I", 2)})],
    [Field("F", {"b": Field("I", 2), "a": Field("I", 1)})],
    [Field("F", {"a": Field("l", 1), "b": Field("I", 2)})],
]
ALL_VALUES = [(row, field) for row, fields in enumerate(EQUAL_VALUES) for field in fields]


@pytest.mark.parametrize(("row", "wanted"), ALL_VALUES, ids=repr)
def test_values_are_equal_as_in_rabbitmq(row: int, wanted: Field) -> None:
    for other, value in ALL_VALUES:
        assert matches({"v": wanted}, {"v": value}) == (row == other), value
    assert not matches({"v": wanted}, {"v": VOID})


def test_a_void_condition_asks_for_presence() -> None:
    for _, value in ALL_VALUES:
        assert matches({"v": VOID}, {"v": value})
    assert matches({"v": VOID}, {"v": VOID})
    assert not matches({"v": VOID}, {"w": text("a")})


# Kinds of matching


@pytest.mark.parametrize(
    ("kind", "none", "one", "both"),
    [
        (None, False, False, True),
        ("all", False, False, True),
        ("any", False, True, True),
        ("all-with-x", False, False, True),
        ("any-with-x", False, True, True),
    ],
)
def test_x_match(kind: str | None, none: bool, one: bool, both: bool) -> None:
    arguments = {"a": text("1"), "b": text("2")}
    if kind is not None:
        arguments["x-match"] = text(kind)
    assert matches(arguments, {"c": text("1")}) is none
    assert matches(arguments, {"a": text("1"), "b": text("other")}) is one
    assert matches(arguments, {"b": text("2"), "c": text("3"), "a": text("1")}) is both


@pytest.mark.parametrize(
    ("kind", "x_ignored", "unmet"),
    [("all", True, True), ("any", True, False), ("all-with-x", False, False), ("any-with-x", False, False)],
)
def test_names_with_x_are_conditions_only_where_asked_for(kind: str, x_ignored: bool, unmet: bool) -> None:
    arguments = {"x-match": text(kind), "x-a": text("1")}
    assert matches(arguments, {"x-a": text("2")}) is unmet
    assert matches(arguments, {"x-a": text("1")}) is (unmet or not x_ignored)


@pytest.mark.parametrize(
    ("kind", "expected"), [("all", True), ("any", False), ("all-with-x", True), ("any-with-x", False)]
)
def test_without_conditions(kind: str, expected: bool) -> None:
    for headers in ({}, {"a": text("1")}, {"x-match": text(kind)}):
        assert matches({"x-match": text(kind)}, headers) is expected


def test_an_invalid_x_match_that_was_never_checked_counts_as_all() -> None:
    arguments = {"x-match": text("nonsense"), "a": text("1"), "b": text("2")}
    assert not matches(arguments, {"a": text("1")})
    assert matches(arguments, {"a": text("1"), "b": text("2")})


def test_no_arguments_match_everything() -> None:
    assert matches({}, {})


# Bindings


def test_a_binding_is_destination_key_and_arguments() -> None:
    index: HeadersIndex[str] = HeadersIndex()
    conditions = {"a": text("1"), "b": text("2")}
    assert index.add("k", "q", conditions)
    assert not index.add("k", "q", {"b": text("2"), "a": text("1")})
    assert index.add("other", "q", conditions)
    assert index.add("k", "q", {"a": Field("x", b"1"), "b": text("2")})
    assert index.match(conditions) == ("q",)
    assert index.remove("k", "q", conditions)
    assert not index.remove("k", "q", conditions)
    assert index.remove("other", "q", conditions)
    assert index.match(conditions) == ("q",)
    assert index.remove("k", "q", {"a": Field("x", b"1"), "b": text("2")})
    assert index.match(conditions) == ()


def test_bindings_that_share_a_condition_are_not_all_tried() -> None:
    index: HeadersIndex[int] = HeadersIndex()
    for customer in range(1000):
        index.add("", customer, {"format": text("pdf"), "customer": Field("I", customer)})
    assert index.match({"format": text("pdf"), "customer": Field("I", 77)}) == (77,)
    assert max(len(file) for file in index._files.values()) <= 2


names = st.sampled_from(["a", "b", "x-a", "c"])
values = st.sampled_from([text("p"), Field("I", 1), Field("d", 1.0), Field("t", True), VOID])
tables = st.dictionaries(names, values, max_size=4)
kinds = st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"])


def naive_match(arguments: Table, kind: str | None, headers: Table) -> bool:
    def equal(one: Field, other: Field) -> bool:
        return (one.kind == "t") == (other.kind == "t") and bool(one.value == other.value)

    outcomes = [
        name in headers and (wanted == VOID or equal(wanted, headers[name]))
        for name, wanted in arguments.items()
        if not name.startswith("x-") or (kind or "").endswith("-with-x")
    ]
    return any(outcomes) if kind is not None and kind.startswith("any") else all(outcomes)


@given(st.lists(st.tuples(tables, kinds, st.booleans()), max_size=12), st.lists(tables, min_size=1, max_size=6))
def test_agrees_with_the_naive_matcher(bindings: list[tuple[Table, str | None, bool]], messages: list[Table]) -> None:
    index: HeadersIndex[int] = HeadersIndex()
    full = [arguments | ({} if kind is None else {"x-match": text(kind)}) for arguments, kind, _ in bindings]
    for number, arguments in enumerate(full):
        assert index.add("", number, arguments)
    for number, (_, _, removed) in enumerate(bindings):
        if removed:
            assert index.remove("", number, full[number])
    for headers in messages:
        found = index.match(headers)
        assert len(found) == len(set(found))
        assert set(found) == {
            number
            for number, (arguments, kind, removed) in enumerate(bindings)
            if not removed and naive_match(arguments, kind, headers)
        }
    for number, (_, _, removed) in enumerate(bindings):
        if not removed:
            assert index.remove("", number, full[number])
    assert not index._files and not index._always and not index._bindings


# Refusals


@pytest.mark.parametrize(
    ("value", "printed"),
    [
        ("foo", '<<"foo">>'),
        ('al"l\\\n', '<<"al\\"l\\\\\\n">>'),
        ("é", '<<"é">>'),
        ("\x01", "<<1>>"),
        ("", "<<>>"),
        ("x" * 100, f'<<"{"x" * 100}">>'),
    ],
)
def test_an_unknown_x_match_is_refused(value: str, printed: str) -> None:
    expected = f"Invalid x-match field value {printed}; expected all, any, all-with-x, or any-with-x"
    assert check_x_match({"x-match": text(value)}) == expected


@pytest.mark.parametrize(
    ("field", "printed"),
    [
        (Field("I", -5), "signedint (value -5)"),
        (Field("t", True), "bool (value true)"),
        (VOID, "void (value undefined)"),
        (Field("x", b"all"), 'binary (value <<"all">>)'),
        (Field("A", [Field("I", 1), text("a")]), 'array (value [{signedint,1},{longstr,<<"a">>}])'),
        (Field("F", {"k": text("v")}), 'table (value [{<<"k">>,longstr,<<"v">>}])'),
        (Field("A", []), "array (value [])"),
        (Field("T", 1577836800), "timestamp (value 1577836800)"),
        (Field("D", (1, 15)), "decimal (value {1,15})"),
    ],
)
def test_an_x_match_of_another_type_is_refused(field: Field, printed: str) -> None:
    assert check_x_match({"x-match": field}) == f"Invalid x-match field type {printed}; expected longstr"


def test_valid_arguments_are_not_refused() -> None:
    assert check_x_match({}) is None
    for kind in ("all", "any", "all-with-x", "any-with-x"):
        assert check_x_match({"x-match": text(kind), "a": VOID}) is None
