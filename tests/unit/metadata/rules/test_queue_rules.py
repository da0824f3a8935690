"""What a queue's arguments and its policy say together."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.metadata.rules.queue_rules import PLAIN, VERSION_2_MESSAGES, QueueRules, parse_age, queue_rules
from leveret.protocol.tables import table_from_python


def rules(policy: dict[str, Any] | None = None, **arguments: Any) -> QueueRules:
    table = table_from_python({f"x-{key.replace('_', '-')}": value for key, value in arguments.items()})
    return queue_rules(table, policy or {})


def test_nothing_said_is_one_and_the_same_object() -> None:
    assert rules() is PLAIN
    assert rules({"ha-mode": "all"}, queue_type="classic") is PLAIN


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("message-ttl", "ttl_ms"),
        ("expires", "expires_ms"),
        ("max-length", "max_length"),
        ("max-length-bytes", "max_bytes"),
        ("delivery-limit", "delivery_limit"),
        ("consumer-timeout", "consumer_timeout_ms"),
        ("max-in-memory-length", "memory_messages"),
        ("max-in-memory-bytes", "memory_bytes"),
    ],
)
def test_of_two_numbers_the_smaller_counts(key: str, field: str) -> None:
    name = key.replace("-", "_")
    for argument, policy, expected in ((5, None, 5), (None, 7, 7), (5, 7, 5), (7, 5, 5), (0, 5, 0)):
        said = {} if argument is None else {name: argument}
        definition = {} if policy is None else {key: policy}
        assert getattr(rules(definition, **said), field) == expected


def test_of_other_values_the_argument_counts() -> None:
    policy = {"dead-letter-exchange": "theirs", "overflow": "reject-publish", "queue-mode": "lazy"}
    found = rules(policy, dead_letter_exchange="mine", overflow="drop-head", queue_mode="default")
    assert (found.dead_letter_exchange, found.overflow, found.lazy) == ("mine", "drop-head", False)
    found = rules(policy)
    assert (found.dead_letter_exchange, found.overflow, found.lazy) == ("theirs", "reject-publish", True)


def test_of_a_stream_the_policy_counts() -> None:
    policy = {"max-length-bytes": 9, "max-age": "2h", "stream-max-segment-size-bytes": 8}
    own = {"max_length_bytes": 5, "max_age": "1h", "stream_max_segment_size_bytes": 4}
    found = rules(policy, queue_type="stream", **own)
    assert (found.max_bytes, found.max_age_ms, found.max_segment_bytes) == (9, 7_200_000, 8)
    found = rules({}, queue_type="stream", **own)
    assert (found.max_bytes, found.max_age_ms, found.max_segment_bytes) == (5, 3_600_000, 4)


def test_of_a_full_or_unused_quorum_queue_the_policy_counts() -> None:
    policy = {"overflow": "reject-publish", "expires": 9, "message-ttl": 9}
    found = rules(policy, queue_type="quorum", overflow="drop-head", expires=5, message_ttl=5)
    assert (found.overflow, found.expires_ms, found.ttl_ms) == ("reject-publish", 9, 5)
    found = rules({}, queue_type="quorum", overflow="reject-publish", expires=5)
    assert (found.overflow, found.expires_ms) == ("reject-publish", 5)


@pytest.mark.parametrize(
    ("policy", "arguments", "messages"),
    [
        ({}, {"queue_version": 2}, VERSION_2_MESSAGES),
        ({"queue-version": 2}, {}, VERSION_2_MESSAGES),
        ({"queue-version": 2}, {"queue_version": 1}, None),
        ({"queue-version": 1}, {"queue_version": 2}, VERSION_2_MESSAGES),
        ({"queue-version": 2, "max-in-memory-length": 10}, {}, 10),
        ({"queue-version": 2, "max-in-memory-length": 10_000}, {}, VERSION_2_MESSAGES),
        ({"queue-version": 2}, {"queue_type": "quorum"}, None),
    ],
)
def test_the_second_version_of_a_queue_keeps_little_in_memory(
    policy: dict[str, Any], arguments: dict[str, Any], messages: int | None
) -> None:
    assert rules(policy, **arguments).memory_messages == messages


def test_a_key_for_dead_letters_means_nothing_without_an_exchange() -> None:
    assert rules({"dead-letter-routing-key": "k"}) is PLAIN
    assert rules({"dead-letter-exchange": "", "dead-letter-routing-key": "k"}).dead_letter_key == "k"


def test_a_queue_refuses_only_if_there_is_a_limit() -> None:
    assert not rules(overflow="reject-publish").rejects
    assert rules(overflow="reject-publish", max_length=3).rejects
    assert rules(overflow="reject-publish-dlx", max_length_bytes=3).rejects
    assert not rules(overflow="drop-head", max_length=3).rejects


def test_what_belongs_on_disk() -> None:
    assert not PLAIN.wants_disk(10**9, 10**9)
    assert rules(queue_mode="lazy").wants_disk(0, 0)
    few = rules(max_in_memory_length=10)
    assert (few.wants_disk(10, 10**9), few.wants_disk(11, 0)) == (False, True)
    small = rules(max_in_memory_bytes=10)
    assert (small.wants_disk(10**9, 10), small.wants_disk(0, 11)) == (False, True)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("7D", 7 * 86_400_000),
        ("1h", 3_600_000),
        ("90s", 90_000),
        ("0m", 0),
        *((text, None) for text in ("", "D", "-1D", "1x", "1.5h", "\u0661h")),
    ],
)
def test_ages(text: str, ms: int | None) -> None:
    assert parse_age(text) == ms
