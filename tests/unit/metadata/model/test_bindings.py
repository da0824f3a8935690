from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from leveret.metadata.model.bindings import Bindings
from leveret.metadata.model.records import NO_ARGUMENTS, Binding, DestinationKind
from leveret.protocol.tables import Field

ONE = {"n": Field("I", 1)}
ends = st.sampled_from(["x", "y"])
kinds = st.sampled_from(["queue", "exchange"])
bindings = st.builds(
    Binding,
    st.sampled_from(["/", "v"]),
    ends,
    kinds,
    ends,
    st.sampled_from("abc"),
    st.sampled_from([NO_ARGUMENTS, ONE]),
)


@given(st.lists(st.tuples(st.sampled_from(["change", "remove group", "copy"]), bindings), max_size=40))
def test_an_index_has_what_was_added_and_copies_do_not_change(history: list[tuple[str, Binding]]) -> None:
    index = Bindings()
    there: set[Binding] = set()
    copies: list[tuple[Bindings, set[Binding]]] = []
    for what, one in history:
        if what == "copy":
            copies.append((index.copy(), set(there)))
        elif what == "remove group":
            group = index.between(one.vhost, one.source, one.destination_kind, one.destination)
            gone = set() if group is None else set(group)
            assert gone == {each for each in there if _same_ends(each, one)}
            there -= gone
            if group is not None:
                assert index.remove_group(group) == (not _of_source(there, one))
        elif one in there:
            there.remove(one)
            assert index.remove(one) == (not _of_source(there, one))
        else:
            index.add(one)
            there.add(one)
        _check(index, there)
    for copy, then in copies:
        _check(copy, then)


def _same_ends(one: Binding, other: Binding) -> bool:
    mine = (one.vhost, one.source, one.destination_kind, one.destination)
    return mine == (other.vhost, other.source, other.destination_kind, other.destination)


def _of_source(there: set[Binding], like: Binding) -> set[Binding]:
    return {one for one in there if (one.vhost, one.source) == (like.vhost, like.source)}


def _check(index: Bindings, there: set[Binding]) -> None:
    listed = list(index)
    assert set(listed) == there and len(listed) == len(index) == len(there)
    assert all(one in index for one in there)
    for vhost in ("/", "v"):
        here = [one for one in listed if one.vhost == vhost]
        assert list(index.in_vhost(vhost)) == here
        assert [one for start in range(0, len(here) + 2, 2) for one in index.page(vhost, start, 2)] == here
        for name in ("x", "y"):
            mine = [one for one in here if one.source == name]
            assert list(index.from_source(vhost, name)) == mine and index.count_from(vhost, name) == len(mine)
            assert index.is_source(vhost, name) == bool(mine)
            wanted: tuple[DestinationKind, ...] = ("queue", "exchange")
            for kind in wanted:
                found = [one for one in here if (one.destination_kind, one.destination) == (kind, name)]
                assert list(index.to_destination(vhost, kind, name)) == sorted(found, key=Binding.order)


def test_a_group_is_listed_as_it_was_when_it_was_asked_for() -> None:
    index = Bindings()
    index.add_keys("/", "x", "queue", "q", ["a", "b"])
    index.add_keys("/", "x", "queue", "q", ["b", "c"])
    assert len(index) == 3
    listed = index.from_source("/", "x")
    assert next(listed).key == "a"
    index.remove(Binding("/", "x", "queue", "q", "b"))
    assert [one.key for one in listed] == ["b", "c"]
