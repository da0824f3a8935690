"""The texts are what RabbitMQ 3.10.8 answered to the same policies, save for those that crash its validation."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.metadata.rules.policy_validation import (
    USER_LIMITS,
    VHOST_LIMITS,
    limits_error,
    policy_error,
    policy_notes,
    term,
)


def error(definition: dict[str, Any], operator: bool = False) -> str | None:
    return policy_error("^q", "all", definition, operator)


@pytest.mark.parametrize(
    "definition",
    [
        {"message-ttl": 0, "expires": 1, "max-length": 0, "max-length-bytes": 99_999_999_999},
        {"alternate-exchange": "", "dead-letter-exchange": "x", "dead-letter-routing-key": "k"},
        {"dead-letter-strategy": "at-least-once", "overflow": "reject-publish-dlx", "queue-mode": "lazy"},
        {"queue-version": 2, "delivery-limit": 0, "max-age": "5D", "queue-leader-locator": "balanced"},
        {"initial-cluster-size": 0, "stream-max-segment-size-bytes": 1, "queue-master-locator": "min-masters"},
        {"ha-mode": "all"},
        {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic", "ha-sync-batch-size": 1},
        {"ha-mode": "nodes", "ha-params": ["a@b"], "ha-promote-on-shutdown": "always"},
        {"ha-mode": "all", "ha-promote-on-failure": "when-synced"},
        {"ha-mode": "all", "ha-replication": "async", "ha-replication-window": {"bytes": 5, "hours": "1-2"}},
        {"ha-mode": "all", "ha-sync-strategy": "event", "ha-replication-window": {"hours": "22:00-06:00"}},
        {"ha-forbid-copying": True},
        {"consumer-timeout": 1, "consumer-timeout-action": "requeue"},
    ],
)
def test_good(definition: dict[str, Any]) -> None:
    assert error(definition) is None


@pytest.mark.parametrize("apply_to", ["all", "queues", "exchanges", "classic_queues", "quorum_queues", "streams"])
def test_what_a_policy_may_apply_to(apply_to: str) -> None:
    for operator in (False, True):
        assert policy_error("^q", apply_to, {"max-length": 1}, operator) is None


@pytest.mark.parametrize(
    ("definition", "text"),
    [
        ({}, "no policy provided"),
        ({"nonsense": 1}, '[{<<"nonsense">>,1}] are not recognised policy settings'),
        (
            {"message-ttl": 1, "nonsense": 1, "other": 2},
            '[{<<"nonsense">>,1},{<<"other">>,2}] are not recognised policy settings',
        ),
        ({"federation-upstream": 1}, "1 is not a valid federation upstream name"),
        ({"federation-upstream-set": 1}, "1 is not a valid federation upstream set name"),
        ({"federation-upstream-pattern": 1}, "1 is not a valid federation upstream pattern name"),
        (
            {"federation-upstream": "x", "federation-upstream-set": "all"},
            "cannot specify federation-upstream, federation-upstream-set or federation-upstream-pattern together",
        ),
        (
            {"federation-upstream-pattern": "("},
            "could not compile pattern ( to a regular expression. Error: missing ), unterminated subpattern at "
            "position 0",
        ),
        ({"message-ttl": "x"}, '<<"x">> is not a valid message TTL'),
        ({"message-ttl": -1}, "-1 is not a valid message TTL"),
        ({"message-ttl": -1, "expires": 0, "nonsense": 2}, "0 is not a valid queue expiry"),
        ({"ha-params": 2, "max-length": -1}, "-1 is not a valid maximum length"),
        ({"consumer-timeout": 0}, "0 is not a valid consumer timeout"),
        ({"consumer-timeout-action": "x"}, '<<"x">> is not a valid consumer timeout action'),
        ({"message-ttl": True}, "true is not a valid message TTL"),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"max-length": -1}, "-1 is not a valid maximum length"),
        ({"max-length-bytes": -1}, "-1 is not a valid maximum length in bytes"),
        ({"max-in-memory-bytes": -1}, "-1 is not a valid maximum memory in bytes"),
        ({"delivery-limit": -1}, "-1 is not a valid delivery limit"),
        ({"alternate-exchange": 1}, "1 is not a valid alternate exchange name"),
        ({"dead-letter-exchange": 1}, "1 is not a valid dead letter exchange name"),
        ({"dead-letter-routing-key": 1}, "1 is not a valid dead letter routing key"),
        ({"dead-letter-strategy": "x"}, '<<"x">> is not a valid dead letter strategy'),
        ({"queue-mode": 5}, "5 is not a valid queue-mode value"),
        ({"queue-version": 5}, "5 is not a valid queue-version value"),
        ({"queue-version": True}, "true is not a valid queue-version value"),
        ({"overflow": "x"}, '<<"x">> is not a valid overflow value'),
        ({"max-age": "x"}, '<<"x">> is not a valid max age'),
        ({"queue-leader-locator": "x"}, '<<"x">> is not a valid queue leader locator value'),
        ({"stream-max-segment-size-bytes": 99_999_999_999}, "99999999999 is not a valid segment size"),
        ({"queue-master-locator": "x"}, '<<"x">> invalid queue-master-locator value'),
        ({"ha-mode": "x"}, '<<"x">> is not a valid ha-mode value'),
        ({"ha-mode": "all", "ha-params": 2}, 'ha-mode="all" does not take parameters'),
        ({"ha-mode": "exactly"}, 'ha-mode="exactly" takes an integer, none given'),
        ({"ha-mode": "exactly", "ha-params": "2"}, 'ha-mode="exactly" takes an integer, <<"2">> given'),
        ({"ha-mode": "exactly", "ha-params": 0}, 'ha-mode="exactly" takes an integer, 0 given'),
        ({"ha-mode": "nodes"}, 'ha-mode="nodes" takes a list, none given'),
        ({"ha-mode": "nodes", "ha-params": []}, 'ha-mode="nodes" list must be non-empty'),
        (
            {"ha-mode": "nodes", "ha-params": [1]},
            'ha-mode="nodes" takes a list of strings, [1] was not a string',
        ),
        (
            {"ha-sync-mode": "automatic"},
            "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown",
        ),
        (
            {"ha-mode": "all", "ha-sync-mode": "x"},
            'ha-sync-mode must be "manual" or "automatic", got <<"x">>',
        ),
        (
            {"ha-mode": "all", "ha-sync-batch-size": 0},
            "ha-sync-batch-size takes an integer greater than 0, 0 given",
        ),
        (
            {"ha-mode": "all", "ha-promote-on-shutdown": "x"},
            'ha-promote-on-shutdown must be "always" or "when-synced", got <<"x">>',
        ),
        (
            {"ha-sync-batch-size": 3},
            "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown",
        ),
        (
            {"ha-replication": "async"},
            "ha-mode must be specified to specify ha-replication, ha-sync-strategy, ha-sync-blocking, "
            "ha-spread or ha-replication-window",
        ),
        ({"ha-mode": "all", "ha-replication": 1}, 'ha-replication must be "sync" or "async", got 1'),
        ({"ha-mode": "all", "ha-sync-blocking": "yes"}, 'ha-sync-blocking must be true or false, got <<"yes">>'),
        (
            {"ha-mode": "all", "ha-sync-strategy": "x"},
            'ha-sync-strategy must be "full", "incremental" or "event", got <<"x">>',
        ),
        (
            {"ha-mode": "all", "ha-sync-strategy": "event", "ha-sync-mode": "automatic"},
            'ha-sync-strategy="event" copies nothing, so ha-sync-mode cannot be "automatic"',
        ),
        (
            {"ha-mode": "all", "ha-replication": "async", "ha-replication-window": {"messages": 0}},
            'ha-replication-window takes a number above 0 for messages, #{<<"messages">> => 0} given',
        ),
        (
            {"ha-mode": "all", "ha-replication-window": {"messages": 1}},
            'ha-replication="async" must be specified to specify how far a mirror may be behind',
        ),
        ({"ha-forbid-copying": "yes"}, '<<"yes">> is not true or false, which ha-forbid-copying takes'),
        (
            {"ha-mode": "all", "ha-promote-on-failure": "x"},
            'ha-promote-on-failure must be "always" or "when-synced", got <<"x">>',
        ),
    ],
)
def test_bad(definition: dict[str, Any], text: str) -> None:
    assert error(definition) == text


def test_operator_policies_take_fewer_keys() -> None:
    assert error({"message-ttl": 1, "expires": 1}, operator=True) is None
    assert error({"ha-forbid-copying": True}, operator=True) is None
    assert error({"ha-mode": "all"}, operator=True) == '[{<<"ha-mode">>,<<"all">>}] are not recognised policy settings'
    assert error({"message-ttl": -1}, operator=True) == "-1 is not a valid message TTL"


def test_what_a_policy_is_for() -> None:
    bad = policy_error("(", "all", {"message-ttl": 1})
    assert bad is not None and bad.startswith("pattern should be regular expression but is invalid: ")
    assert policy_error("a", "exchanges", {"message-ttl": 1}) is None
    assert policy_error("a", "x", {"message-ttl": 1}) is not None


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"max-queues": "x"}, 'max-queues should be a number, actually was <<"x">>'),
        ({"max-queues": True}, "max-queues should be a number, actually was true"),
        ({"bogus": 1}, 'Unrecognised terms [{<<"bogus">>,1}] in limits'),
        ({"max-channels": 1}, 'Unrecognised terms [{<<"max-channels">>,1}] in limits'),
    ],
)
def test_bad_limits(limits: dict[str, Any], text: str) -> None:
    assert limits_error(limits, VHOST_LIMITS, "limits") == text


def test_good_limits() -> None:
    assert limits_error({}, VHOST_LIMITS, "limits") is None
    assert limits_error({"max-queues": -1, "max-connections": 0}, VHOST_LIMITS, "limits") is None
    assert limits_error({"max-channels": 1}, USER_LIMITS, "user-limits") is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "<<>>"),
        ('a"b\\', '<<"a\\"b\\\\">>'),
        (1.5, "1.5"),
        (None, "null"),
        ([1, "a"], '[1,<<"a">>]'),
        ({"a": 1}, '#{<<"a">> => 1}'),
    ],
)
def test_terms(value: Any, text: str) -> None:
    assert term(value) == text


def test_all_parts_of_a_policy_are_told() -> None:
    lines = (policy_error("(", "cats", {"expires": 0}) or "").split("\n")
    assert lines[:2] == [
        "0 is not a valid queue expiry",
        "apply-to 'cats' unrecognised; should be 'queues', 'exchanges' or 'all'",
    ]
    assert lines[2].startswith("pattern should be regular expression but is invalid: ")


def test_what_will_not_act_is_told() -> None:
    whole: dict[str, Any] = {"queue-version": 2, "message-ttl": 1, "alternate-exchange": "x", "ha-mode": "all"}
    assert policy_notes("all", whole) == []
    no_type = "have no effect: queues of no type that it applies to know all its keys"
    assert policy_notes("queues", {"max-age": "1D", "message-ttl": 1}) == [f"max-age, message-ttl {no_type}"]
    assert policy_notes("all", {"max-age": "1D", "message-ttl": 1}) == [f"max-age, message-ttl {no_type}"]
    assert policy_notes("streams", {"message-ttl": 1}) == [f"message-ttl {no_type}"]
    assert policy_notes("quorum_queues", {"ha-mode": "all"}) == [f"ha-mode {no_type}"]
    assert policy_notes("queues", {"delivery-limit": 1}) == []
    assert policy_notes("classic_queues", {"delivery-limit": 1, "max-length": 1}) == []
    assert policy_notes("streams", {"alternate-exchange": "x"}) == [
        "alternate-exchange has no effect: it is for exchanges, and the policy applies to streams"
    ]
    assert policy_notes("queues", {"alternate-exchange": "x"}) == [
        "alternate-exchange has no effect: it is for exchanges, and the policy applies to queues"
    ]
    assert policy_notes("exchanges", {"message-ttl": 1, "alternate-exchange": "x"}) == [
        "message-ttl has no effect: it is for queues, and the policy applies to exchanges"
    ]
