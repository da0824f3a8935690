"""Arguments that say how a queue is mirrored. The texts are those of a running RabbitMQ 3.10."""

from __future__ import annotations

from typing import Any

import pytest

from leveret.broker.session.arguments import check_consume_arguments, check_queue_arguments
from leveret.broker.session.checks import Refused
from leveret.broker.session.wanted import QueueWanted
from leveret.metadata.model.records import QueueSpec
from leveret.protocol.tables import table_from_python

Q = {"x-queue-type": "quorum"}


def refusal(arguments: dict[str, Any], **properties: Any) -> str | None:
    given: dict[str, Any] = {"name": "q", "durable": True, **properties}
    wanted = QueueWanted(arguments=table_from_python(arguments), **given)
    try:
        check_queue_arguments("/", "q", wanted)
    except Refused as refused:
        assert refused.refusal.code == 406
        return refused.refusal.text
    return None


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-queue-type": "classic"},
        {"x-queue-master-locator": "min-masters"},
        {"ha-mirror-queues": True},
        {"ha-mirror- queues": False},
        {"ha-mode": "all", "ha-sync-mode": "automatic"},
        {"ha-mode": "exactly", "ha-params": 2},
        {"ha-mode": "nodes", "ha-params": ["a@b"]},
        {"x-unknown": 5},
        Q,
        {**Q, "x-quorum-initial-group-size": 7},
        {**Q, "x-queue-leader-locator": "least-leaders"},
    ],
)
def test_what_is_taken(arguments: dict[str, Any]) -> None:
    assert refusal(arguments) is None


@pytest.mark.parametrize(
    ("arguments", "properties", "text"),
    [
        (Q, {"durable": False}, "invalid property 'non-durable' for queue 'q' in vhost '/'"),
        (Q, {"exclusive": True}, "invalid property 'exclusive-owner' for queue 'q' in vhost '/'"),
        (Q, {"auto_delete": True, "durable": False}, "invalid property 'auto-delete' for queue 'q' in vhost '/'"),
        (Q, {"name": ""}, "Cannot declare a server-named queue for type rabbit_quorum_queue"),
        (
            {**Q, "x-quorum-initial-group-size": 0},
            {},
            "invalid arg 'x-quorum-initial-group-size' for queue 'q' in vhost '/': {value_zero,0}",
        ),
        (
            {**Q, "x-quorum-initial-group-size": "a"},
            {},
            "invalid arg 'x-quorum-initial-group-size' for queue 'q' in vhost '/': \"expected integer, got longstr\"",
        ),
        (
            {"x-quorum-initial-group-size": 3},
            {},
            "invalid arg 'x-quorum-initial-group-size' for queue 'q' in vhost '/' of queue type rabbit_classic_queue",
        ),
        (
            {**Q, "x-queue-master-locator": "random"},
            {},
            "invalid arg 'x-queue-master-locator' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue",
        ),
        (
            {**Q, "x-max-priority": 3},
            {},
            "invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue",
        ),
        (
            {**Q, "x-queue-leader-locator": "foo"},
            {},
            "invalid arg 'x-queue-leader-locator' for queue 'q' in vhost '/': invalid_queue_locator_arg",
        ),
        (
            {"x-queue-type": "zebra"},
            {},
            "invalid arg 'x-queue-type' for queue 'q' in vhost '/': \"unsupported queue type 'zebra'\"",
        ),
        (
            {"x-queue-type": 3},
            {},
            "invalid arg 'x-queue-type' for queue 'q' in vhost '/': {unacceptable_type,long}",
        ),
        (
            {"x-queue-type": "stream", "x-max-age": "0s"},
            {},
            "invalid arg 'x-max-age' for queue 'q' in vhost '/': invalid_max_age",
        ),
        (
            {"x-queue-master-locator": "foo"},
            {},
            "invalid arg 'x-queue-master-locator' for queue 'q' in vhost '/': unknown locator 'foo'",
        ),
        (
            {"ha-mirror-queues": "yes"},
            {},
            "invalid arg 'ha-mirror-queues' for queue 'q' in vhost '/': {unacceptable_type,longstr}",
        ),
        (
            {"ha-mode": "some"},
            {},
            "invalid arg 'ha-mode' for queue 'q' in vhost '/': \"'some' is not a valid ha-mode value\"",
        ),
        (
            {"ha-mode": "all", "ha-sync-mode": True},
            {},
            "invalid arg 'ha-sync-mode' for queue 'q' in vhost '/': {unacceptable_type,bool}",
        ),
        (
            {"ha-mode": "exactly"},
            {},
            "invalid arg 'ha-params' for queue 'q' in vhost '/': ha-mode=\"exactly\" takes an integer",
        ),
        (
            {"ha-mode": "nodes", "ha-params": "a@b"},
            {},
            "invalid arg 'ha-params' for queue 'q' in vhost '/': ha-mode=\"nodes\" takes a list of strings",
        ),
        (
            {"ha-mode": "all", "ha-params": 2},
            {},
            "invalid arg 'ha-params' for queue 'q' in vhost '/': ha-mode=\"all\" does not take parameters",
        ),
        (
            {"ha-sync-mode": "automatic"},
            {},
            "invalid arg 'ha-sync-mode' for queue 'q' in vhost '/': ha-mode must be specified, too",
        ),
        (
            {**Q, "ha-mode": "all"},
            {},
            "invalid arg 'ha-mode' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue",
        ),
    ],
)
def test_what_is_refused(arguments: dict[str, Any], properties: dict[str, Any], text: str) -> None:
    assert refusal(arguments, **properties) == text


@pytest.mark.parametrize(
    ("queue", "value", "text"),
    [
        ({}, True, None),
        ({}, "x", "invalid arg 'x-cancel-on-ha-failover' for queue 'q' in vhost '/': {unacceptable_type,longstr}"),
        (Q, True, "invalid arg 'x-cancel-on-ha-failover' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue"),
    ],
)
def test_x_cancel_on_ha_failover(queue: dict[str, Any], value: Any, text: str | None) -> None:
    spec = QueueSpec(1, "/", "q", arguments=table_from_python(queue))
    try:
        check_consume_arguments(spec, table_from_python({"x-cancel-on-ha-failover": value}))
    except Refused as refused:
        assert refused.refusal == (406, text)
    else:
        assert text is None
