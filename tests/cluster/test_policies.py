from __future__ import annotations

import pytest

from leveret.cluster.commands import AddVhost, SetPolicy
from leveret.cluster.policies import PolicyBook, stricter
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
    assert PolicyBook(metadata).effective("queue", "/", "bills") == (None, None, {})


def test_the_highest_priority_holds_alone(metadata: Metadata) -> None:
    put(metadata, "low", "", 1, max_length=10, expires=5)
    put(metadata, "high", "^orders", 2, max_length=20)
    book = PolicyBook(metadata)
    assert book.effective("queue", "/", "orders.eu") == ("high", None, {"max-length": 20})
    assert book.effective("queue", "/", "bills") == ("low", None, {"max-length": 10, "expires": 5})


def test_a_pattern_matches_anywhere_in_the_name(metadata: Metadata) -> None:
    put(metadata, "p", "eu")
    assert PolicyBook(metadata).effective("queue", "/", "orders.eu.1").policy == "p"


def test_what_it_applies_to(metadata: Metadata) -> None:
    put(metadata, "q", "", 1, apply_to="queues", expires=1)
    put(metadata, "x", "", 2, apply_to="exchanges", alternate_exchange="a")
    book = PolicyBook(metadata)
    assert book.effective("queue", "/", "n").policy == "q"
    assert book.effective("exchange", "/", "n").policy == "x"


def test_an_operator_only_limits(metadata: Metadata) -> None:
    put(metadata, "p", "", max_length=10, ha_mode="all")
    put(metadata, "o", "", operator=True, max_length=5, expires=7)
    found = PolicyBook(metadata).effective("queue", "/", "n")
    assert found == ("p", "o", {"max-length": 5, "ha-mode": "all", "expires": 7})


def test_a_policy_that_was_changed(metadata: Metadata) -> None:
    book = PolicyBook(metadata)
    put(metadata, "p", "^a", expires=1)
    assert book.effective("queue", "/", "a").policy == "p"
    put(metadata, "p", "^b", expires=1)
    assert book.effective("queue", "/", "a").policy is None


def test_a_pattern_that_does_not_compile_matches_nothing(metadata: Metadata) -> None:
    put(metadata, "p", "(", expires=1)
    assert PolicyBook(metadata).effective("queue", "/", "(").policy is None


def test_stricter() -> None:
    assert stricter(3, 2) == 2
    assert stricter(2, 3) == 2
    assert stricter("drop-head", "reject-publish") == "reject-publish"


def test_a_switch_is_on_if_either_has_it_on() -> None:
    assert stricter(False, True) is True
    assert stricter(True, False) is True
    assert stricter(False, False) is False
