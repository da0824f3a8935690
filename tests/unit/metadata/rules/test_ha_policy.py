from __future__ import annotations

from typing import Any

import pytest

from leveret.base.json_values import Json
from leveret.metadata.rules.ha_policy import (
    EVERYWHERE,
    QUORUM,
    STREAM_MEMBERS,
    BadWindow,
    Defaults,
    Rules,
    Window,
    parse_window,
    rules,
)
from leveret.protocol.tables import Table, table_from_python

HOUR_MS = 3_600_000


def found(
    definition: dict[str, Json] | None = None,
    arguments: dict[str, Any] | None = None,
    defaults: Defaults | None = None,
    forbidden: bool = False,
    name: str = "q",
) -> Rules:
    table: Table = table_from_python(arguments or {})
    return rules(definition or {}, name, table, defaults or Defaults(), forbidden)


def test_without_a_policy_nothing_is_mirrored() -> None:
    assert found() == Rules({})
    assert not found().fills


def test_rabbitmqs_keys() -> None:
    two: dict[str, Json] = {"ha-mode": "exactly", "ha-params": 2}
    assert found({**two, "message-ttl": 5}) == Rules(two)
    both = found({"ha-mode": "all", "ha-sync-mode": "automatic", "ha-sync-batch-size": 7})
    assert both.fills and both.batch == 7


def test_promotion_is_safe_unless_a_policy_says_otherwise() -> None:
    plain = found({"ha-mode": "all"})
    assert (plain.on_shutdown_always, plain.on_failure_always) == (False, False)
    shutdown = found({"ha-mode": "all", "ha-promote-on-shutdown": "always"})
    assert (shutdown.on_shutdown_always, shutdown.on_failure_always) == (True, False)
    failure = found({"ha-mode": "all", "ha-promote-on-failure": "always"})
    assert (failure.on_shutdown_always, failure.on_failure_always) == (False, True)
    never = found({"ha-mode": "all", "ha-promote-on-shutdown": "always", "ha-promote-on-failure": "when-synced"})
    assert (never.on_shutdown_always, never.on_failure_always) == (False, False)


def test_quorum_listens_to_no_policy() -> None:
    policy: dict[str, Json] = {"ha-mode": "all", "ha-replication": "async", "ha-promote-on-failure": "always"}
    quorum = found({**policy, "ha-forbid-copying": True}, {"x-queue-type": "quorum"})
    assert quorum == Rules({"ha-mode": "quorum", "ha-params": 3}, automatic=True)
    five = found({}, {"x-queue-type": "quorum", "x-quorum-initial-group-size": 5})
    assert five.placement["ha-params"] == 5


@pytest.mark.parametrize(
    ("arguments", "definition", "defaults", "locator"),
    [
        ({}, {}, Defaults(), "client-local"),
        ({}, {}, Defaults(locator="random"), "random"),
        ({}, {"queue-master-locator": "min-masters"}, Defaults(locator="random"), "min-masters"),
        ({"x-queue-master-locator": "random"}, {"queue-master-locator": "min-masters"}, Defaults(), "random"),
        ({"x-queue-type": "quorum"}, {"queue-master-locator": "random"}, Defaults(), "client-local"),
        ({"x-queue-type": "quorum"}, {"queue-leader-locator": "balanced"}, Defaults(), "min-masters"),
        ({"x-queue-type": "quorum", "x-queue-leader-locator": "random"}, {}, Defaults(), "random"),
        ({"x-queue-type": "quorum"}, {}, Defaults(leader_locator="least-leaders"), "min-masters"),
        (
            {"x-queue-type": "stream", "x-queue-leader-locator": "random"}, {"queue-leader-locator": "balanced"},
            Defaults(), "min-masters",
        ),
    ],
)
def test_locators(
    arguments: dict[str, Any], definition: dict[str, Json], defaults: Defaults, locator: str
) -> None:
    assert found(definition, arguments, defaults).locator == locator


@pytest.mark.parametrize(
    ("arguments", "definition", "members"),
    [
        ({}, {}, STREAM_MEMBERS),
        ({"x-initial-cluster-size": 2}, {}, 2),
        ({}, {"initial-cluster-size": 3}, 3),
        ({"x-initial-cluster-size": 2}, {"initial-cluster-size": 3}, 3),
        ({"x-initial-cluster-size": 2}, {"initial-cluster-size": 1}, 1),
    ],
)
def test_at_how_many_nodes_a_stream_is(
    arguments: dict[str, Any], definition: dict[str, Json], members: int
) -> None:
    rules = found(definition, {"x-queue-type": "stream", **arguments})
    assert rules.placement == {"ha-mode": QUORUM, "ha-params": members}


def test_the_default_is_for_those_without_a_policy() -> None:
    defaults = Defaults({"ha-mode": "all", "ha-sync-mode": "automatic"})
    assert found(defaults=defaults) == Rules({"ha-mode": "all"}, automatic=True)
    assert found({"message-ttl": 5}, defaults=defaults).placement == {"ha-mode": "all"}
    own = found({"ha-mode": "exactly", "ha-params": 2}, defaults=defaults)
    assert own == Rules({"ha-mode": "exactly", "ha-params": 2})


def test_a_default_for_some_queues() -> None:
    defaults = Defaults(EVERYWHERE, frozenset({"orders"}))
    assert found(defaults=defaults, name="orders").placement == {"ha-mode": "all"}
    assert found(defaults=defaults, name="bills").placement == {}


def test_the_argument() -> None:
    for name in ("ha-mirror-queues", "ha-mirror- queues"):
        assert found({}, {name: True}) == Rules({"ha-mode": "all"}, automatic=True)
        assert found({}, {name: False}, Defaults(EVERYWHERE)).placement == {}
    two = Defaults({"ha-mode": "exactly", "ha-params": 2}, frozenset())
    assert found({}, {"ha-mirror-queues": True}, two).placement == {"ha-mode": "exactly", "ha-params": 2}
    assert found({"ha-mode": "all"}, {"ha-mirror-queues": False}).placement == {"ha-mode": "all"}


def test_arguments_that_mean_what_they_mean_in_a_policy() -> None:
    assert found({}, {"ha-mode": "all", "ha-sync-mode": "automatic"}) == Rules({"ha-mode": "all"}, automatic=True)
    two: dict[str, Json] = {"ha-mode": "exactly", "ha-params": 2}
    assert found({}, two, Defaults(EVERYWHERE)) == Rules(two)
    assert found({"ha-mode": "all"}, two).placement == {"ha-mode": "all"}
    assert found({"max-length": 5}, two).placement == two
    nodes = {"ha-mode": "nodes", "ha-params": ["a@b", "c@d"]}
    assert found({}, nodes).placement == nodes


def test_whoever_forbids_copying() -> None:
    automatic: dict[str, Json] = {"ha-mode": "all", "ha-sync-mode": "automatic"}
    assert found(automatic).fills
    assert not found({**automatic, "ha-forbid-copying": True}).fills
    assert not found(automatic, defaults=Defaults(forbid_copying=True)).fills
    assert not found(automatic, forbidden=True).fills


def test_strategies() -> None:
    assert found({"ha-mode": "all"}).strategy == "incremental"
    assert found({"ha-mode": "all", "ha-sync-strategy": "full"}).sync_refused is None
    event = found({"ha-mode": "all", "ha-sync-strategy": "event"})
    assert not event.fills and event.sync_refused is not None


def test_a_window_of_lag() -> None:
    window = parse_window({"messages": 10, "bytes": 1000, "seconds": 0.5})
    assert window == Window(10, 1000, 0.5) and window.has_limit
    assert not window.is_exceeded(10, 1000, 0.5)
    assert window.is_exceeded(11, 0, 0) and window.is_exceeded(0, 1001, 0) and window.is_exceeded(0, 0, 0.6)
    assert not parse_window({"hours": "1-2"}).has_limit


@pytest.mark.parametrize(
    ("hours", "open_at", "closed_at"),
    [
        ("22:00-06:00", [22, 23, 0, 5.9], [6, 12, 21.9]),
        ("9-17", [9, 16.9], [8.9, 17]),
        ("1-2, 3:30-4", [1, 3.5], [2, 3.4, 4]),
        ("0-24", [0, 23.9], []),
    ],
)
def test_hours(hours: str, open_at: list[float], closed_at: list[float]) -> None:
    window = parse_window({"hours": hours})
    day_ms = 20_000 * 24 * HOUR_MS
    assert [at for at in open_at + closed_at if window.is_open(day_ms + int(at * HOUR_MS))] == open_at
    assert Window().is_open(day_ms)


@pytest.mark.parametrize(
    "value",
    [
        {}, [], "9-17", None, {"messages": 0}, {"messages": True}, {"messages": 1.5}, {"seconds": "1"}, {"minutes": 3},
        {"hours": ""}, {"hours": "9"}, {"hours": "9-9"}, {"hours": "9-25"}, {"hours": "24-3"}, {"hours": "9:60-10"},
        {"hours": 9},
    ],
)  # fmt: skip
def test_bad_windows(value: Json) -> None:
    with pytest.raises(BadWindow):
        parse_window(value)
