from __future__ import annotations

import pytest

from leveret.base.json_values import Json
from leveret.base.safe_regex import VHOST_COST_MAX, cost_of
from leveret.metadata.model.commands import AddVhost, ClearPolicy, DeleteVhost, SetPolicy
from leveret.metadata.rules.policies import KINDS, Policies, stricter
from leveret.metadata.store import Metadata
from leveret.protocol.tables import table_from_python


@pytest.fixture
def metadata() -> Metadata:
    metadata = Metadata()
    for vhost in ("/", "other"):
        metadata.apply(AddVhost(vhost))
    return metadata


def put(metadata: Metadata, name: str, pattern: str, priority: int = 0, **rest: Json) -> None:
    vhost, apply_to = str(rest.pop("vhost", "/")), str(rest.pop("apply_to", "all"))
    operator = bool(rest.pop("operator", False))
    definition = {key.replace("_", "-"): value for key, value in rest.items()}
    command = SetPolicy(vhost, name, pattern, apply_to, priority, definition, operator)
    assert metadata.apply(command).refused is None


def test_nothing_matches(metadata: Metadata) -> None:
    put(metadata, "p", "^orders", ha_mode="all")
    put(metadata, "elsewhere", "", vhost="other", ha_mode="all")
    assert Policies(metadata).effective("classic", "/", "bills") == (None, None, {})


def test_the_highest_priority_holds_alone(metadata: Metadata) -> None:
    put(metadata, "low", "", 1, max_length=10, expires=5)
    put(metadata, "high", "^orders", 2, max_length=20)
    book = Policies(metadata)
    assert book.effective("classic", "/", "orders.eu") == ("high", None, {"max-length": 20})
    assert book.effective("classic", "/", "bills") == ("low", None, {"max-length": 10, "expires": 5})


def test_a_pattern_matches_anywhere_in_the_name(metadata: Metadata) -> None:
    put(metadata, "p", "eu")
    assert Policies(metadata).effective("classic", "/", "orders.eu.1").policy == "p"


def test_what_it_applies_to(metadata: Metadata) -> None:
    put(metadata, "q", "", 1, apply_to="queues", expires=1)
    put(metadata, "x", "", 2, apply_to="exchanges", alternate_exchange="a")
    book = Policies(metadata)
    assert book.effective("classic", "/", "n").policy == "q"
    assert book.effective("exchange", "/", "n").policy == "x"


@pytest.mark.parametrize(
    ("apply_to", "kinds"),
    [
        ("all", {"classic", "quorum", "stream", "exchange"}),
        ("queues", {"classic", "quorum", "stream"}),
        ("classic_queues", {"classic"}),
        ("quorum_queues", {"quorum"}),
        ("streams", {"stream"}),
        ("exchanges", {"exchange"}),
    ],
)
def test_types_of_queues(metadata: Metadata, apply_to: str, kinds: set[str]) -> None:
    put(metadata, "p", "", apply_to=apply_to, max_length_bytes=1)
    put(metadata, "o", "", apply_to=apply_to, operator=True, max_length_bytes=1)
    book = Policies(metadata)
    assert {kind for kind in KINDS if book.effective(kind, "/", "n").policy == "p"} == kinds
    assert {kind for kind in KINDS if book.effective(kind, "/", "n").operator_policy == "o"} == kinds


def test_the_type_of_a_queue_is_in_its_arguments(metadata: Metadata) -> None:
    put(metadata, "p", "", apply_to="quorum_queues", max_length=1)
    book = Policies(metadata)
    assert book.of_queue("/", "n", {}).policy is None
    assert book.of_queue("/", "n", table_from_python({"x-queue-type": "classic"})).policy is None
    assert book.of_queue("/", "n", table_from_python({"x-queue-type": "quorum"})).policy == "p"


@pytest.mark.parametrize(
    ("definition", "kinds"),
    [
        ({"ha_mode": "all", "max_length": 1}, {"classic"}),
        ({"queue_mode": "lazy"}, {"classic"}),
        ({"delivery_limit": 1, "max_length": 1}, {"quorum"}),
        ({"dead_letter_strategy": "at-least-once"}, {"quorum"}),
        ({"queue_leader_locator": "random"}, {"quorum", "stream"}),
        ({"max_age": "1D"}, {"stream"}),
        ({"initial_cluster_size": 1}, {"stream"}),
        ({"message_ttl": 1}, {"classic", "quorum"}),
        ({"queue_version": 2, "max_length_bytes": 1, "consumer_timeout": 1}, {"classic", "quorum", "stream"}),
        ({"max_age": "1D", "message_ttl": 1}, set()),
    ],
)
def test_a_policy_with_a_key_that_a_type_does_not_know_makes_way(
    metadata: Metadata, definition: dict[str, Json], kinds: set[str]
) -> None:
    put(metadata, "high", "", 1, **definition)
    put(metadata, "low", "", 0, max_length_bytes=1)
    book = Policies(metadata)
    found = {kind: book.effective(kind, "/", "n").policy for kind in KINDS if kind != "exchange"}
    assert found == {kind: "high" if kind in kinds else "low" for kind in found}


def test_what_classic_queues_know_here_and_not_in_rabbitmq_is_asked_for_by_their_name(metadata: Metadata) -> None:
    put(metadata, "p", "", apply_to="classic_queues", delivery_limit=1, dead_letter_strategy="at-least-once")
    put(metadata, "not", "", 1, apply_to="classic_queues", delivery_limit=1, max_age="1D")
    assert Policies(metadata).effective("classic", "/", "n").policy == "p"


def test_an_operator_only_limits(metadata: Metadata) -> None:
    put(metadata, "p", "", max_length=10, ha_mode="all")
    put(metadata, "o", "", operator=True, max_length=5, expires=7)
    found = Policies(metadata).effective("classic", "/", "n")
    assert found == ("p", "o", {"max-length": 5, "ha-mode": "all", "expires": 7})


def test_a_policy_that_was_changed(metadata: Metadata) -> None:
    book = Policies(metadata)
    put(metadata, "p", "^a", expires=1)
    assert book.effective("classic", "/", "a").policy == "p"
    put(metadata, "p", "^b", expires=1)
    assert book.effective("classic", "/", "a").policy is None


def test_a_pattern_that_does_not_compile_matches_nothing(metadata: Metadata) -> None:
    put(metadata, "p", "(", expires=1)
    assert Policies(metadata).effective("classic", "/", "(").policy is None


def test_stricter() -> None:
    assert stricter(3, 2) == 2
    assert stricter(2, 3) == 2
    assert stricter("drop-head", "reject-publish") == "reject-publish"


def test_a_switch_is_on_if_either_has_it_on() -> None:
    assert stricter(False, True) is True
    assert stricter(True, False) is True
    assert stricter(False, False) is False


# -- What searches cost --------------------------------------------------------------------------------------------


def test_only_the_policies_down_to_the_first_that_matches_are_searched_for(metadata: Metadata) -> None:
    put(metadata, "low", "(a+)+$", 1)
    put(metadata, "high", "^b", 2)
    book = Policies(metadata)
    assert book.effective("classic", "/", "b").policy == "high"
    assert book.spent == cost_of("^b")
    assert book.effective("classic", "/", "a").policy == "low"
    assert book.spent == 2 * cost_of("^b") + cost_of("(a+)+$")


def test_a_book_notices_every_change(metadata: Metadata) -> None:
    book = Policies(metadata)
    assert book.effective("classic", "/", "q").policy is None
    put(metadata, "p", "q")
    assert book.effective("classic", "/", "q").policy == "p"
    put(metadata, "p", "r")
    assert book.effective("classic", "/", "q").policy is None
    put(metadata, "p", "q")
    snapshot = metadata.snapshot()
    metadata.apply(ClearPolicy("/", "p"))
    assert book.effective("classic", "/", "q").policy is None
    metadata.restore(snapshot)
    assert book.effective("classic", "/", "q").policy == "p"
    metadata.apply(DeleteVhost("/"))
    assert book.effective("classic", "/", "q").policy is None


def test_all_patterns_of_a_vhost_have_a_budget(metadata: Metadata) -> None:
    def set_policy(name: str, cost: int, vhost: str = "/", operator: bool = False) -> bool:
        command = SetPolicy(vhost, name, "x", "all", 0, {"expires": 1}, operator, cost)
        refused = metadata.apply(command).refused
        assert refused is None or (refused.code == 406 and "patterns of all policies" in refused.text)
        return refused is None

    assert set_policy("a", VHOST_COST_MAX - 10)
    assert not set_policy("b", 11)
    assert not set_policy("b", 11, operator=True)  # They are searched for as well.
    assert set_policy("b", 10, operator=True)
    assert set_policy("a", 20)  # A cheaper pattern takes the place of another,
    assert set_policy("b", VHOST_COST_MAX, "other")  # other vhosts have budgets of their own,
    assert set_policy("c", VHOST_COST_MAX - 30)
    assert not set_policy("d", 1)
    assert set_policy("d", 0)  # and what an earlier version set is taken as it was.
    metadata.apply(ClearPolicy("/", "c"))
    assert set_policy("d", 1)
    copy = Metadata()
    copy.restore(metadata.snapshot())
    assert copy.pattern_costs == metadata.pattern_costs == {"/": 31, "other": VHOST_COST_MAX}
    metadata.apply(DeleteVhost("other"))
    assert metadata.pattern_costs == {"/": 31}


@pytest.mark.parametrize(
    ("name", "pattern", "definition"),
    [
        ("", "x", {"expires": 1}),
        ("n" * 256, "x", {"expires": 1}),
        ("n", "x" * 10_001, {"expires": 1}),
        ("n", "x", {"dead-letter-exchange": "x" * (64 << 10)}),
    ],
)
def test_too_large(metadata: Metadata, name: str, pattern: str, definition: dict[str, Json]) -> None:
    refused = metadata.apply(SetPolicy("/", name, pattern, "all", 0, definition)).refused
    assert refused is not None and refused.code == 406
