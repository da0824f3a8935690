from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leveret.broker.routing import router as router_module
from leveret.broker.routing.router import Router, UnknownExchange, UnknownExchangeType, check_binding, check_exchange
from leveret.broker.routing.topic import TopicTrie
from leveret.broker.routing.upkeep import STEPS, Upkeep
from leveret.protocol.tables import Field, Table


def unasked() -> Table:
    raise AssertionError("headers were asked for where none are needed")


def alternate(name: str) -> Table:
    return {"alternate-exchange": Field("S", name)}


def router_with(**exchanges: str) -> Router[str]:
    router: Router[str] = Router()
    for name, type in exchanges.items():
        router.add_exchange(name, type, {})
    return router


class Counted:
    """A header table that counts how often it is asked for."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.asked = 0

    def __call__(self) -> Table:
        self.asked += 1
        return self.table


ONE = {"h": Field("I", 1)}
TWO = {"h": Field("I", 2)}


# Types of exchange


def test_default_exchange() -> None:
    router: Router[str] = Router()
    router.add_queue("name", "q")
    assert router.route("", "name", unasked) == ("q",)
    assert router.route("", "other", unasked) == ()
    assert not router.varies("")
    router.remove_queue("name")
    assert router.route("", "name", unasked) == ()


def test_direct() -> None:
    router = router_with(x="direct")
    router.bind_queue("x", "q1", "k", {})
    router.bind_queue("x", "q1", "l", {})
    router.bind_queue("x", "q2", "k", {})
    assert router.route("x", "k", unasked) == ("q1", "q2")
    assert router.route("x", "l", unasked) == ("q1",)
    assert router.route("x", "K", unasked) == ()
    router.unbind_queue("x", "q1", "k", {})
    assert router.route("x", "k", unasked) == ("q2",)
    router.unbind_queue("x", "q2", "k", {})
    assert router.route("x", "k", unasked) == ()


def test_fanout_keeps_a_queue_until_its_last_key_is_unbound() -> None:
    router = router_with(x="fanout")
    router.bind_queue("x", "q1", "k", {})
    router.bind_queue("x", "q1", "l", {})
    router.bind_queue("x", "q2", "", {})
    assert router.route("x", "whatever", unasked) == ("q1", "q2")
    router.unbind_queue("x", "q1", "k", {})
    assert router.route("x", "k", unasked) == ("q1", "q2")
    router.unbind_queue("x", "q1", "l", {})
    assert router.route("x", "l", unasked) == ("q2",)


def test_topic() -> None:
    router = router_with(x="topic")
    router.bind_queue("x", "q1", "*.b", {})
    router.bind_queue("x", "q2", "a.#", {})
    assert set(router.route("x", "a.b", unasked)) == {"q1", "q2"}
    assert router.route("x", "a", unasked) == ("q2",)


def test_headers() -> None:
    router = router_with(x="headers")
    router.bind_queue("x", "q1", "", ONE)
    router.bind_queue("x", "q2", "", TWO)
    headers = Counted({"h": Field("l", 2)})
    assert router.route("x", "ignored", headers) == ("q2",)
    assert headers.asked == 1


def test_unknown_names() -> None:
    router = router_with(x="direct")
    with pytest.raises(UnknownExchangeType, match=r"^unknown exchange type 'nonsense'$"):
        router.add_exchange("y", "nonsense", {})
    for call in (
        lambda: router.route("y", "k", unasked),
        lambda: router.varies("y"),
        lambda: router.bind_queue("y", "q", "k", {}),
        lambda: router.bind_exchange("x", "y", "k", {}),
        lambda: router.bind_exchange("y", "x", "k", {}),
        lambda: router.remove_exchange("y"),
    ):
        with pytest.raises(UnknownExchange):
            call()
    router.unbind_queue("y", "q", "k", {})
    router.unbind_exchange("y", "x", "k", {})


def test_check_binding_looks_only_at_headers_exchanges() -> None:
    arguments = {"x-match": Field("I", 5)}
    expected = "Invalid x-match field type signedint (value 5); expected longstr"
    assert check_binding("headers", "k", arguments) == expected
    others = ("direct", "fanout", "topic", "x-random")
    assert [check_binding(type, "k", arguments) for type in others] == [None] * len(others)


@pytest.mark.parametrize(
    ("type", "arguments", "problem"),
    [
        ("direct", {"x-single-target": Field("t", True), "x-unknown": Field("I", 5)}, None),
        ("direct", {"x-single-target": Field("I", 1)}, "invalid type 'signedint' for arg 'x-single-target'"),
        ("x-consistent-hash", {"hash-header": Field("I", 1)}, "invalid type 'signedint' for arg 'hash-header'"),
        ("direct", {"hash-header": Field("I", 1)}, None),
        ("x-delayed-message", {}, "Invalid argument, 'x-delayed-type' must be an existing exchange type"),
    ],
)
def test_check_exchange(type: str, arguments: Table, problem: str | None) -> None:
    assert check_exchange(type, arguments) == problem


# One of several


class Drawn:
    """What is drawn, in turn, and from how many."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.counts: list[int] = []

    def __call__(self, count: int) -> int:
        self.counts.append(count)
        return self.numbers.pop(0)


def test_random_leads_to_one_whatever_the_key() -> None:
    draw = Drawn(2, 0, 0)
    router: Router[str] = Router(draw=draw)
    router.add_exchange("x", "x-random", {})
    assert router.route("x", "k", unasked) == () and router.varies("x")
    router.bind_queue("x", "q1", "k", {})
    assert router.route("x", "l", unasked) == ("q1",)
    router.bind_queue("x", "q1", "l", {})  # Twice is once.
    router.bind_queue("x", "q2", "k", {})
    router.bind_queue("x", "q3", "k", {})
    assert [router.route("x", "k", unasked) for _ in range(2)] == [("q3",), ("q1",)]
    assert router.route_keys("x", ("k", "l", "m"), unasked) == ("q1",)
    assert draw.counts == [3, 3, 3]


@pytest.mark.parametrize("type", ["direct", "fanout", "topic", "headers"])
def test_a_single_target_of_those_that_match(type: str) -> None:
    draw = Drawn(1, 0)
    router: Router[str] = Router(draw=draw)
    router.add_exchange("x", type, {"x-single-target": Field("t", True)})
    for name in ("q1", "q2"):
        router.bind_queue("x", name, "k", {})
    assert [router.route("x", "k", dict) for _ in range(2)] == [("q2",), ("q1",)]
    assert draw.counts == [2, 2] and router.varies("x")


def test_a_single_target_may_be_an_exchange_and_an_alternate_is_none() -> None:
    router: Router[str] = Router(draw=Drawn(1))
    router.add_exchange("x", "direct", {"x-single-target": Field("t", True), **alternate("y")})
    router.add_exchange("y", "fanout", {})
    router.bind_queue("x", "q1", "k", {})
    router.bind_exchange("x", "y", "k", {})
    router.bind_queue("y", "q2", "", {})
    router.bind_queue("y", "q3", "", {})
    assert router.route("x", "k", unasked) == ("q2", "q3")
    assert router.route("x", "other", unasked) == ("q2", "q3")  # By the alternate: all of its own.


def test_not_single_if_it_says_so() -> None:
    router: Router[str] = Router(draw=Drawn())
    router.add_exchange("x", "fanout", {"x-single-target": Field("t", False)})
    router.bind_queue("x", "q1", "", {})
    router.bind_queue("x", "q2", "", {})
    assert router.route("x", "k", unasked) == ("q1", "q2") and not router.varies("x")


def test_a_hash_by_key_can_be_remembered_and_one_by_message_not() -> None:
    router: Router[str] = Router()
    router.add_exchange("key", "x-consistent-hash", {})
    router.add_exchange("header", "x-consistent-hash", {"hash-header": Field("S", "h")})
    router.add_exchange("property", "x-consistent-hash", {"hash-property": Field("S", "message_id")})
    assert [router.varies(name) for name in ("key", "header", "property")] == [False, True, True]
    for name in ("key", "header", "property"):
        for queue in ("q1", "q2", "q3", "q4"):
            router.bind_queue(name, queue, "1", {})
    by_key = {router.route("key", f"{number}", unasked) for number in range(64)}
    by_header = {router.route("header", "k", Counted({"h": Field("I", number)})) for number in range(64)}
    by_property = {router.route("property", "k", unasked, f"{{}}{number}".format) for number in range(64)}
    assert by_key == by_header == by_property == {("q1",), ("q2",), ("q3",), ("q4",)}
    assert len({router.route("header", f"{number}", dict) for number in range(64)}) == 1
    assert len({router.route("property", f"{number}", unasked) for number in range(64)}) == 1
    assert router.route_keys("key", ("1", "2", "3"), unasked) == router.route("key", "1", unasked)


def test_a_delayed_exchange_routes_as_its_other_type() -> None:
    router: Router[str] = Router()
    router.add_exchange("x", "x-delayed-message", {"x-delayed-type": Field("S", "topic")})
    router.add_exchange("y", "topic", {})
    router.bind_queue("x", "q", "a.*", {})
    assert router.route("x", "a.b", dict) == ("q",) and router.route("x", "b", dict) == ()
    assert [router.varies(name) for name in ("x", "y", "")] == [True, False, False]


def test_what_is_to_be_delayed_goes_to_the_hidden_queue_and_no_further() -> None:
    router: Router[str] = Router()
    router.add_exchange("front", "fanout", {})
    router.add_exchange("x", "x-delayed-message", {"x-delayed-type": Field("S", "fanout")})
    router.add_exchange("behind", "fanout", {})
    router.add_queue("amq.delayed.x", "hidden_queue")
    router.bind_exchange("front", "x", "", {})
    router.bind_exchange("x", "behind", "", {})
    for exchange in ("front", "x", "behind"):
        router.bind_queue(exchange, f"q-{exchange}", "", {})
    late = {"x-delay": Field("I", 5)}
    assert set(router.route("front", "k", lambda: late)) == {"q-front", "hidden_queue"}
    assert router.route_keys("x", ("k", "l"), lambda: late) == ("hidden_queue",)
    assert set(router.route("x", "k", dict)) == {"q-x", "q-behind"}
    assert router.varies("front") and not router.varies("behind")
    assert router.route("", "amq.delayed.x", unasked) == ()
    router.remove_queue("amq.delayed.x")


# What makes a binding


@pytest.mark.parametrize("type", ["direct", "fanout", "topic"])
def test_bindings_that_differ_in_arguments_are_two(type: str) -> None:
    router = router_with(x=type)
    for arguments in (ONE, {}, TWO, ONE):
        router.bind_queue("x", "q", "k", arguments)
    assert router.route("x", "k", unasked) == ("q",)
    for arguments in ({}, {}, ONE, ONE):
        router.unbind_queue("x", "q", "k", arguments)
        assert router.route("x", "k", unasked) == ("q",)
    router.unbind_queue("x", "q", "k", TWO)
    assert router.route("x", "k", unasked) == ()


@pytest.mark.parametrize("type", ["direct", "fanout", "topic"])
def test_unbinding_with_other_arguments_does_nothing(type: str) -> None:
    router = router_with(x=type)
    router.bind_queue("x", "q", "k", {})
    version = router.version
    router.unbind_queue("x", "q", "k", ONE)
    assert router.version == version
    assert router.route("x", "k", unasked) == ("q",)
    router.bind_queue("x", "q", "k", ONE)
    router.unbind_queue("x", "q", "k", ONE)
    assert router.route("x", "k", unasked) == ("q",)
    assert not router._exchanges["x"]._forms
    router.unbind_queue("x", "q", "k", {})
    assert router.route("x", "k", unasked) == ()


# Exchanges bound to exchanges


def test_key_and_headers_go_along() -> None:
    router = router_with(a="fanout", b="topic", c="headers")
    router.bind_exchange("a", "b", "", {})
    router.bind_exchange("b", "c", "x.#", {})
    router.bind_queue("b", "q1", "x.*", {})
    router.bind_queue("c", "q2", "", ONE)
    headers = Counted(ONE)
    assert router.route("a", "x.y", headers) == ("q1", "q2")
    assert headers.asked == 1
    assert router.route("a", "z", unasked) == ()


def test_headers_are_asked_for_once_by_several_exchanges() -> None:
    router = router_with(a="headers", b="headers")
    router.bind_exchange("a", "b", "", {})
    router.bind_queue("a", "q1", "", ONE)
    router.bind_queue("b", "q2", "", ONE)
    headers = Counted(ONE)
    assert router.route("a", "", headers) == ("q1", "q2")
    assert headers.asked == 1


def test_cycles_end_and_a_target_comes_once() -> None:
    router = router_with(a="fanout", b="fanout")
    for source, destination in (("a", "b"), ("b", "a"), ("a", "a")):
        router.bind_exchange(source, destination, "", {})
    router.bind_queue("a", "q", "", {})
    router.bind_queue("b", "q", "", {})
    assert router.route("a", "", unasked) == ("q",)
    assert router.route("b", "", unasked) == ("q",)


def test_an_exchange_is_no_target_though_a_target_has_its_name() -> None:
    router = router_with(a="direct", b="fanout")
    router.bind_queue("a", "b", "k", {})
    router.bind_exchange("a", "b", "k", {})
    router.bind_queue("b", "q", "", {})
    assert router.route("a", "k", unasked) == ("b", "q")
    router.unbind_queue("a", "b", "k", {})
    assert router.route("a", "k", unasked) == ("q",)


def test_exchange_bindings_are_one_each_and_can_be_unbound() -> None:
    router = router_with(a="direct", b="fanout")
    router.bind_queue("b", "q", "", {})
    for arguments in ({}, {}, ONE):
        router.bind_exchange("a", "b", "k", arguments)
    router.bind_exchange("a", "b", "l", {})
    router.unbind_exchange("a", "b", "k", {})
    assert router.route("a", "k", unasked) == ("q",)
    router.unbind_exchange("a", "b", "k", ONE)
    assert router.route("a", "k", unasked) == ()
    assert router.route("a", "l", unasked) == ("q",)
    router.unbind_exchange("a", "b", "l", {})
    version = router.version
    router.unbind_exchange("a", "b", "l", {})
    assert router.version == version
    assert router.route("a", "l", unasked) == ()


def test_a_removed_exchange_takes_its_bindings_along() -> None:
    router = router_with(a="direct", b="fanout", c="fanout")
    router.bind_exchange("a", "b", "k", {})
    router.bind_exchange("a", "b", "k", ONE)
    router.bind_exchange("b", "c", "", {})
    router.bind_exchange("b", "b", "", {})
    router.bind_queue("b", "q", "", {})
    router.bind_queue("c", "r", "", {})
    assert router.route("a", "k", unasked) == ("q", "r")
    router.remove_exchange("b")
    assert router.route("a", "k", unasked) == ()
    router.unbind_exchange("a", "b", "k", {})
    router.unbind_queue("b", "q", "", {})
    router.add_exchange("b", "fanout", {})
    assert router.route("a", "k", unasked) == ()
    assert router.route("b", "", unasked) == ()
    router.bind_exchange("a", "b", "k", {})
    router.bind_queue("b", "q", "", {})
    assert router.route("a", "k", unasked) == ("q",)
    router.remove_exchange("c")
    assert router.route("a", "k", unasked) == ("q",)


def test_nothing_of_a_removed_exchange_is_left_at_its_neighbours() -> None:
    router = router_with(a="direct", b="fanout", c="fanout")
    router.bind_exchange("a", "b", "k", {})
    router.bind_exchange("b", "c", "", {})
    router.remove_exchange("b")
    router.add_exchange("b", "headers", {})
    assert not router.varies("a")
    router.remove_exchange("b")
    router.remove_exchange("c")
    router.remove_exchange("a")
    assert not router._exchanges


# Alternate exchanges


def test_the_alternate_gets_what_matches_nothing() -> None:
    router: Router[str] = Router()
    router.add_exchange("x", "direct", alternate("rest"))
    router.bind_queue("x", "q", "k", {})
    assert router.route("x", "z", unasked) == ()
    router.add_exchange("rest", "fanout", {})
    router.bind_queue("rest", "r", "", {})
    assert router.route("x", "k", unasked) == ("q",)
    assert router.route("x", "z", unasked) == ("r",)
    router.remove_exchange("rest")
    assert router.route("x", "z", unasked) == ()


def test_a_match_that_leads_nowhere_is_a_match() -> None:
    router: Router[str] = Router()
    router.add_exchange("x", "direct", alternate("rest"))
    router.add_exchange("rest", "fanout", {})
    router.add_exchange("empty", "direct", {})
    router.bind_queue("rest", "r", "", {})
    router.bind_exchange("x", "empty", "k", {})
    assert router.route("x", "k", unasked) == ()
    assert router.route("x", "z", unasked) == ("r",)


def test_alternates_follow_one_another_and_end_in_a_cycle() -> None:
    router: Router[str] = Router()
    for name, following in (("a", "b"), ("b", "c"), ("c", "a"), ("self", "self")):
        router.add_exchange(name, "direct", alternate(following))
    router.bind_queue("c", "q", "k", {})
    assert router.route("a", "k", unasked) == ("q",)
    assert router.route("a", "z", unasked) == ()
    assert router.route("self", "z", unasked) == ()


def test_an_alternate_counts_on_the_way_too() -> None:
    router = router_with(start="fanout", rest="fanout")
    router.add_exchange("middle", "direct", alternate("rest"))
    router.bind_exchange("start", "middle", "", {})
    router.bind_queue("start", "q", "", {})
    router.bind_queue("rest", "r", "", {})
    assert router.route("start", "k", unasked) == ("q", "r")


def test_the_default_exchange_as_alternate_leads_nowhere() -> None:
    router: Router[str] = Router()
    router.add_queue("name", "q")
    router.add_exchange("x", "direct", alternate(""))
    assert router.route("x", "name", unasked) == ()


def test_headers_are_asked_for_once_where_the_alternate_needs_them_too() -> None:
    router: Router[str] = Router()
    router.add_exchange("x", "headers", alternate("y"))
    router.add_exchange("y", "headers", {})
    router.bind_queue("x", "q", "", ONE)
    router.bind_queue("y", "r", "", TWO)
    headers = Counted(TWO)
    assert router.route("x", "", headers) == ("r",)
    assert headers.asked == 1


def test_an_alternate_can_be_set_and_taken_away() -> None:
    router = router_with(x="direct", rest="fanout")
    router.bind_queue("rest", "r", "", {})
    version = router.version
    router.set_alternate("x", "rest")
    assert router.version > version
    assert router.route("x", "k", unasked) == ("r",)
    router.set_alternate("x", None)
    assert router.route("x", "k", unasked) == ()


# Several keys


def test_several_keys_are_one_question() -> None:
    router: Router[str] = Router()
    router.add_exchange("x", "direct", alternate("rest"))
    router.add_exchange("rest", "fanout", {})
    router.bind_queue("rest", "r", "", {})
    router.bind_queue("x", "q", "k", {})
    router.bind_queue("x", "q", "l", {})
    router.bind_queue("x", "p", "l", {})
    assert router.route_keys("x", ["none", "k"], unasked) == ("q",)
    assert router.route_keys("x", ["k", "l"], unasked) == ("q", "p")
    assert router.route_keys("x", ["none", "nothing"], unasked) == ("r",)
    assert router.route_keys("rest", ["a", "b"], unasked) == ("r",)


def test_several_keys_at_the_default_exchange() -> None:
    router: Router[str] = Router()
    router.add_queue("a", "qa")
    router.add_queue("b", "qb")
    assert router.route_keys("", ["b", "none", "a", "b"], unasked) == ("qb", "qa")


# What callers may remember


def test_version_rises_only_where_a_route_may_have_changed() -> None:
    router: Router[str] = Router()
    version = router.version

    def rises() -> bool:
        nonlocal version
        before, version = version, router.version
        return version > before

    router.add_exchange("x", "direct", {})
    assert rises()
    router.add_exchange("y", "fanout", {})
    assert rises()
    router.bind_queue("x", "q", "k", {})
    assert rises()
    router.bind_queue("x", "q", "k", {})
    router.bind_queue("x", "q", "k", ONE)
    assert not rises()
    router.unbind_queue("x", "q", "k", {})
    assert not rises()
    router.unbind_queue("x", "q", "k", ONE)
    assert rises()
    router.bind_exchange("x", "y", "k", {})
    assert rises()
    router.bind_exchange("x", "y", "k", {})
    assert not rises()
    router.unbind_exchange("x", "y", "k", {})
    assert rises()
    router.add_queue("q", "q")
    assert rises()
    router.remove_queue("q")
    assert rises()
    router.remove_queue("q")
    assert not rises()
    router.remove_exchange("x")
    assert rises()


def test_varies_looks_along_bindings_and_alternates() -> None:
    router = router_with(a="direct", b="fanout", h="headers")
    router.add_exchange("c", "topic", alternate("h"))
    assert [router.varies(name) for name in "abch"] == [False, False, True, True]
    router.bind_exchange("a", "b", "k", {})
    router.bind_exchange("b", "a", "", {})
    assert not router.varies("a")
    router.bind_exchange("b", "c", "k", {})
    assert router.varies("a")
    router.remove_exchange("h")
    assert not router.varies("a")
    router.add_exchange("h", "headers", {})
    assert router.varies("a")
    router.unbind_exchange("b", "c", "k", {})
    assert not router.varies("a")
    router.set_alternate("b", "h")
    assert router.varies("a")


# Random graphs against the rules written down plainly

NAMES = "abcd"
bindings = st.tuples(
    st.sampled_from(NAMES),
    st.sampled_from([*NAMES, "q1", "q2", "q3"]),
    st.sampled_from("kl"),
    st.sampled_from([{}, ONE]),
)


@given(
    st.lists(st.sampled_from(["direct", "fanout", "topic", "headers"]), min_size=4, max_size=4),
    st.lists(st.sampled_from([None, *NAMES, "missing"]), min_size=4, max_size=4),
    st.lists(st.tuples(st.booleans(), bindings), max_size=25),
)
def test_agrees_with_the_rules_written_down_plainly(
    types: list[str], alternates: list[str | None], changes: list[tuple[bool, tuple[str, str, str, Table]]]
) -> None:
    router: Router[str] = Router()
    for name, type, following in zip(NAMES, types, alternates, strict=True):
        router.add_exchange(name, type, {} if following is None else alternate(following))
    model: list[tuple[str, str, str, Table]] = []
    for add, binding in changes:
        source, destination, key, arguments = binding
        to_queue = destination.startswith("q")
        if add:
            (router.bind_queue if to_queue else router.bind_exchange)(source, destination, key, arguments)
            model.append(binding)
        else:
            (router.unbind_queue if to_queue else router.unbind_exchange)(source, destination, key, arguments)
            model = [other for other in model if other != binding]

    def reached(start: str, key: str, headers: Table) -> set[str]:
        seen: set[str] = set()
        ahead, queues = [start], set()
        while ahead:
            name = ahead.pop()
            if name in seen or name == "missing":
                continue
            seen.add(name)
            type = types[NAMES.index(name)]
            found = [
                destination
                for source, destination, bound, arguments in model
                if source == name
                and (type == "fanout" or (arguments.items() <= headers.items() if type == "headers" else bound == key))
            ]
            following = alternates[NAMES.index(name)]
            if not found and following is not None:
                found = [following]
            queues |= {destination for destination in found if destination.startswith("q")}
            ahead += [destination for destination in found if not destination.startswith("q")]
        return queues

    for start in NAMES:
        for key in "klm":
            answers = {}
            for headers in ({}, ONE):
                counted = Counted(headers)
                found = router.route(start, key, counted)
                assert counted.asked <= 1
                assert len(found) == len(set(found))
                assert set(found) == reached(start, key, headers)
                assert router.route_keys(start, [key], counted) == found
                answers[len(headers)] = found
            assert router.varies(start) or answers[0] == answers[1]


# What other brokers take


def received_from(*hops: tuple[str, str]) -> Table:
    tables = [Field("F", {"cluster-name": Field("S", name), "vhost": Field("S", vhost)}) for name, vhost in hops]
    return {"x-received-from": Field("A", tables)}


def test_an_upstream_exchange_leads_where_the_message_may_go() -> None:
    router = router_with(x="topic")
    arguments = {
        "x-max-hops": Field("l", 2), "x-downstream-name": Field("S", "far"), "x-downstream-vhost": Field("S", "/"),
    }  # fmt: skip
    router.add_exchange("up", "x-federation-upstream", arguments)
    router.bind_queue("up", "q", "", {})
    router.bind_exchange("x", "up", "red.#", {})
    assert router.varies("x")

    def routed(headers: Table) -> tuple[str, ...]:
        assert router.route("up", "any", lambda: headers) == router.route("x", "red.1", lambda: headers)
        return router.route("x", "red.1", lambda: headers)

    assert routed({}) == routed(received_from(("other", "/"))) == routed(received_from(("far", "else"))) == ("q",)
    assert routed(received_from(("far", "/"))) == routed(received_from(("a", "/"), ("b", "/"))) == ()
    forged = {"x-received-from": Field("S", "far")}
    assert routed(forged) == routed({"x-received-from": Field("A", [Field("I", 1)])}) == ("q",)
    assert check_exchange("x-federation-upstream", {}) == "Argument x-max-hops missing"
    wrong = {"x-max-hops": Field("S", "2")}
    assert check_exchange("x-federation-upstream", wrong) == "Argument x-max-hops must be of type long"
    delayed = {"x-delayed-type": Field("S", "x-federation-upstream")}
    assert check_exchange("x-delayed-message", delayed) is not None


# Many bindings at once

Row = tuple[str, str, str]  # Exchange, queue and key.

TYPES = {"d": "direct", "t": "topic", "f": "fanout", "h": "headers", "w": "x-consistent-hash"}
KEYS = ("1", "2", "a.b", "a.*", "#", "*.b")
steps = st.lists(
    st.tuples(
        st.sampled_from(["bind", "bind often", "unbind", "delete queue", "replace queue", "delete exchange", "upkeep"]),
        st.sampled_from(sorted(TYPES)),
        st.sampled_from(["q1", "q2"]),
        st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True),
    ),
    max_size=25,
)


class Both:
    """A router that does much at once and later, beside one that binds and unbinds one by one."""

    def __init__(self) -> None:
        self.upkeep = Upkeep()
        self.lazy: Router[str] = Router(lambda queue: queue.rstrip("'"), upkeep=self.upkeep)
        self.eager: Router[str] = Router(lambda queue: queue.rstrip("'"))
        self.bound: set[Row] = set()
        self.objects = {"q1": "q1", "q2": "q2"}
        for router in (self.lazy, self.eager):
            router.add_exchange("alt", "fanout", {})
            router.bind_queue("alt", "q3", "", {})
            for name, type in TYPES.items():
                router.add_exchange(name, type, alternate("alt"))
            for name in self.objects:
                router.add_queue(name, name)

    def do(self, what: str, exchange: str, name: str, keys: list[str]) -> None:
        queue = self.objects[name]
        if what == "upkeep":
            if self.upkeep.jobs and self.upkeep.jobs[0](1) < 1:
                self.upkeep.jobs.popleft()
        elif what == "replace queue":
            self._replace(name, queue)
        elif what == "delete exchange":
            for router in (self.lazy, self.eager):
                router.remove_exchange(exchange)
                router.add_exchange(exchange, TYPES[exchange], alternate("alt"))
            self.bound = {row for row in self.bound if row[0] != exchange}
        elif what == "delete queue":
            self._delete(name, queue)
        else:
            self._bind(what, exchange, name, keys)

    def _bind(self, what: str, exchange: str, name: str, keys: list[str]) -> None:
        if exchange == "w":
            keys = [key for key in keys if key.isdecimal()]
        queue = self.objects[name]
        for key in keys:
            if what == "unbind":
                self.eager.unbind_queue(exchange, queue, key, {})
                self.lazy.unbind_queue(exchange, queue, key, {})
                self.bound.discard((exchange, name, key))
            else:
                self.eager.bind_queue(exchange, queue, key, {})
        new = [key for key in keys if (exchange, name, key) not in self.bound]
        if what == "bind":
            for key in new:
                self.lazy.bind_queue(exchange, queue, key, {})
        elif what == "bind often":
            self.lazy.bind_queue_often(exchange, queue, new, [])
        if what != "unbind":
            self.bound |= {(exchange, name, key) for key in new}

    def _replace(self, name: str, old: str) -> None:
        self.objects[name] = new = old + "'"
        self.lazy.replace_queue(name, old, new)
        for exchange, _, key in (mine := [row for row in self.bound if row[1] == name]):
            self.eager.unbind_queue(exchange, old, key, {})
        self.eager.remove_queue(name)
        self.eager.add_queue(name, new)
        for exchange, _, key in mine:
            self.eager.bind_queue(exchange, new, key, {})

    def _delete(self, name: str, old: str) -> None:
        for exchange in TYPES:
            keys = [key for where, queue, key in self.bound if (where, queue) == (exchange, name)]
            self.lazy.unbind_gone(exchange, old, keys, [])
            for key in keys:
                self.eager.unbind_queue(exchange, old, key, {})
        self.bound = {row for row in self.bound if row[1] != name}
        self.objects[name] = new = old + "'"
        for router in (self.lazy, self.eager):
            router.remove_queue(name)
            router.add_queue(name, new)

    def compare(self) -> None:
        for exchange in TYPES:
            for key in ("1", "2", "a.b", "x"):
                found, wanted = (router.route(exchange, key, dict) for router in (self.lazy, self.eager))
                assert sorted(found) == sorted(wanted), (exchange, key)


@settings(deadline=None, max_examples=300)
@given(steps, st.booleans())
def test_what_is_left_for_later_leads_nowhere_else(history: list[tuple[str, str, str, list[str]]], looks: bool) -> None:
    both = Both()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(router_module, "FEW", 0)
        for step in history:
            both.do(*step)
            if looks:
                both.compare()
        both.compare()
        while both.upkeep.jobs:
            both.upkeep.go_on()
        both.compare()
    assert not any(exchange.later or exchange.stale for exchange in both.lazy._exchanges.values())


@pytest.mark.parametrize("type", ["direct", "topic", "fanout", "headers"])
def test_many_bindings_are_indexed_and_removed_some_in_a_turn(type: str) -> None:
    upkeep, keys = Upkeep(), [f"*.{number}" for number in range(2 * STEPS + 1)]
    router: Router[str] = Router(upkeep=upkeep)
    router.add_exchange("x", type, {})
    router.add_queue("q", "q")
    router.bind_queue_often("x", "q", keys, [])
    turns = 0
    while upkeep.jobs:
        upkeep.go_on()
        turns += 1
    assert turns == (1 if type == "direct" else 3)  # For a direct exchange, many keys are indexed by one call.
    router.unbind_gone("x", "q", keys, [])
    router.remove_queue("q")
    assert router.route("x", keys[0], dict) == router.route("x", keys[-1], dict) == ()
    upkeep.go_on()
    upkeep.go_on()
    assert upkeep.jobs and router._exchanges["x"].stale == 1
    upkeep.go_on()
    assert not upkeep.jobs and router._exchanges["x"].stale == 0


def test_the_trie_of_a_deleted_exchange_is_freed_some_in_a_turn() -> None:
    upkeep = Upkeep()
    router: Router[str] = Router(upkeep=upkeep)
    router.add_exchange("x", "topic", {})
    for number in range(2 * STEPS):
        router.bind_queue("x", "q", f"*.{number}.#", {})
    root = router._exchanges["x"].keyed
    assert isinstance(root, TopicTrie)
    router.remove_exchange("x")
    upkeep.go_on()
    assert upkeep.jobs
    while upkeep.jobs:
        upkeep.go_on()
    assert root._freed == []
