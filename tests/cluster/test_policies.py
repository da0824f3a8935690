from __future__ import annotations

import pytest

from leveret.amqp.tables import table_from_python
from leveret.cluster.commands import AddVhost, SetPolicy
from leveret.cluster.policies import KINDS, PolicyBook, stricter
from leveret.cluster.specs import Json
from leveret.cluster.store import Metadata


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
    assert PolicyBook(metadata).effective("classic", "/", "bills") == (None, None, {})


def test_the_highest_priority_holds_alone(metadata: Metadata) -> None:
    put(metadata, "low", "", 1, max_length=10, expires=5)
    put(metadata, "high", "^orders", 2, max_length=20)
    book = PolicyBook(metadata)
    assert book.effective("classic", "/", "orders.eu") == ("high", None, {"max-length": 20})
    assert book.effective("classic", "/", "bills") == ("low", None, {"max-length": 10, "expires": 5})


def test_a_pattern_matches_anywhere_in_the_name(metadata: Metadata) -> None:
    put(metadata, "p", "eu")
    assert PolicyBook(metadata).effective("classic", "/", "orders.eu.1").policy == "p"


def test_what_it_applies_to(metadata: Metadata) -> None:
    put(metadata, "q", "", 1, apply_to="queues", expires=1)
    put(metadata, "x", "", 2, apply_to="exchanges", alternate_exchange="a")
    book = PolicyBook(metadata)
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
    book = PolicyBook(metadata)
    assert {kind for kind in KINDS if book.effective(kind, "/", "n").policy == "p"} == kinds
    assert {kind for kind in KINDS if book.effective(kind, "/", "n").operator_policy == "o"} == kinds


def test_the_type_of_a_queue_is_in_its_arguments(metadata: Metadata) -> None:
    put(metadata, "p", "", apply_to="quorum_queues", max_length=1)
    book = PolicyBook(metadata)
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
    book = PolicyBook(metadata)
    found = {kind: book.effective(kind, "/", "n").policy for kind in KINDS if kind != "exchange"}
    assert found == {kind: "high" if kind in kinds else "low" for kind in found}


def test_what_classic_queues_know_here_and_not_in_rabbitmq_is_asked_for_by_their_name(metadata: Metadata) -> None:
    put(metadata, "p", "", apply_to="classic_queues", delivery_limit=1, dead_letter_strategy="at-least-once")
    put(metadata, "not", "", 1, apply_to="classic_queues", delivery_limit=1, max_age="1D")
    assert PolicyBook(metadata).effective("classic", "/", "n").policy == "p"


def test_an_operator_only_limits(metadata: Metadata) -> None:
    put(metadata, "p", "", max_length=10, ha_mode="all")
    put(metadata, "o", "", operator=True, max_length=5, expires=7)
    found = PolicyBook(metadata).effective("classic", "/", "n")
    assert found == ("p", "o", {"max-length": 5, "ha-mode": "all", "expires": 7})


def test_a_policy_that_was_changed(metadata: Metadata) -> None:
    book = PolicyBook(metadata)
    put(metadata, "p", "^a", expires=1)
    assert book.effective("classic", "/", "a").policy == "p"
    put(metadata, "p", "^b", expires=1)
    assert book.effective("classic", "/", "a").policy is None


def test_a_pattern_that_does_not_compile_matches_nothing(metadata: Metadata) -> None:
    put(metadata, "p", "(", expires=1)
    assert PolicyBook(metadata).effective("classic", "/", "(").policy is None


def test_stricter() -> None:
    assert stricter(3, 2) == 2
    assert stricter(2, 3) == 2
    assert stricter("drop-head", "reject-publish") == "reject-publish"


def test_a_switch_is_on_if_either_has_it_on() -> None:
    assert stricter(False, True) is True
    assert stricter(True, False) is True
    assert stricter(False, False) is False
