"""Topic names and filters, and the two indexes, against the plain definition of a match."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leveret.protocol.mqtt.topic_index import FilterIndex, TopicIndex
from leveret.protocol.mqtt.topics import (
    BadTopic,
    SharedFilter,
    check_filter,
    check_name,
    matches,
    parse_shared,
    text_of,
)

LEVELS = st.sampled_from(["", "a", "b", "$x", ".", "*"])
NAMES = st.lists(LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)
FILTERS = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]),
    st.lists(st.one_of(LEVELS, st.just("+")), max_size=5),
    st.sampled_from([[], ["#"]]),
).filter(bool)


@pytest.mark.parametrize(
    ("topic_filter", "name", "expected"),
    [
        ("sport/tennis/player1/#", "sport/tennis/player1", True),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
        ("sport/#", "sport", True),
        ("#", "a/b", True),
        ("sport/tennis/+", "sport/tennis/player1/ranking", False),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("+/+", "/finance", True),
        ("/+", "/finance", True),
        ("+", "/finance", False),
        ("#", "$SYS/broker", False),
        ("+/monitor/Clients", "$SYS/monitor/Clients", False),
        ("$SYS/#", "$SYS/broker/load", True),
        ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
        ("ACCOUNTS", "Accounts", False),
        ("/a", "a", False),
        ("a b/+", "a b/c", True),
        ("a", "a/", False),
        ("a/+/#", "a/b", True),
        ("a/+/#", "a", False),
    ],
)
def test_matches(topic_filter: str, name: str, expected: bool) -> None:
    check_filter(topic_filter)
    check_name(name)
    assert matches(topic_filter, name) is expected


@pytest.mark.parametrize("name", ["", "a/+", "#", "a+", "a\0b", "/" * 128, "a" * 65_536, "ä" * 32_768])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(BadTopic):
        check_name(name)


@pytest.mark.parametrize("name", ["/", " ", "a.b", "*", "/" * 127, "a" * 65_535, "$SYS/x", "\ufffeä"])
def test_names(name: str) -> None:
    check_name(name)
    check_filter(name)


@pytest.mark.parametrize("text", ["", "sport/tennis#", "sport/#/ranking", "sport+", "a/+b", "##", "a\0", "/" * 128])
def test_filters_that_are_none(text: str) -> None:
    with pytest.raises(BadTopic):
        check_filter(text)


@pytest.mark.parametrize("data", [b"\xff", b"\xed\xa0\x80", b"a\0", b"\xc0\x80", b"\xe2\x82"])
def test_strings_that_are_none(data: bytes) -> None:
    with pytest.raises(BadTopic):
        text_of(data)


def test_strings() -> None:
    assert text_of("a\ufeffb\U0001f430".encode()) == "a\ufeffb\U0001f430"


def test_shared() -> None:
    assert parse_shared("$share/g/a/+") == SharedFilter("g", "a/+")
    assert parse_shared("$share/g//a") == SharedFilter("g", "/a")
    assert parse_shared("$shared/g") == SharedFilter("", "$shared/g")
    for text in ("$share", "$share/g", "$share//a", "$share/g/", "$share/+/a", "$share/g#/a", "$share/g/a#"):
        with pytest.raises(BadTopic):
            parse_shared(text)


@given(st.lists(NAMES, max_size=12), st.lists(NAMES, max_size=4), FILTERS)
def test_topic_index(names: list[str], gone: list[str], topic_filter: str) -> None:
    index: TopicIndex[int] = TopicIndex()
    model: dict[str, int] = {}
    for number, name in enumerate(names):
        assert index.put(name, number) == model.get(name)
        model[name] = number
    for name in gone:
        assert index.remove(name) == model.pop(name, None)
    assert len(index) == len(model)
    assert dict(index.items()) == model and all(index.get(name) == value for name, value in model.items())
    found = list(index.find(topic_filter))
    assert sorted(found) == sorted((name, at) for name, at in model.items() if matches(topic_filter, name))
    for name in list(model):
        index.remove(name)
    assert not len(index) and index._root.children is None


@given(st.lists(st.tuples(FILTERS, st.integers(0, 2)), max_size=12), st.lists(FILTERS, max_size=4), NAMES)
def test_filter_index(filters: list[tuple[str, int]], gone: list[str], name: str) -> None:
    index: FilterIndex[int, str] = FilterIndex()
    model: dict[tuple[str, int], str] = {}
    for topic_filter, key in filters:
        assert index.put(topic_filter, key, topic_filter) == model.get((topic_filter, key))
        model[topic_filter, key] = topic_filter
    for topic_filter in gone:
        assert index.remove(topic_filter, 0) == model.pop((topic_filter, 0), None)
    assert len(index) == len(model)
    found = sorted((topic_filter, key) for topic_filter, key, _ in index.find(name))
    assert found == sorted(key for key in model if matches(key[0], name))
    for topic_filter, key in list(model):
        index.remove(topic_filter, key)
    assert not len(index) and index._root.children is None
