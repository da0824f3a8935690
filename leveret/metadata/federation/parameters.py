"""The parameters of federation: upstreams and upstream sets, with RabbitMQ's keys, checks and texts.

A set is a list of upstreams, each with keys that override those of the upstream. Faults are in RabbitMQ's order:
unknown keys, then the keys, the last one first. Keys of RabbitMQ 4 (`queue-type`) are known too.

Stricter than RabbitMQ, which accepts these and then crashes or loops: an empty list of URIs, a set that is no list,
names of more than 255 bytes, numbers that AMQP has no room for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leveret.base.json_values import Json
from leveret.metadata.shovel.parameters import (
    ACK_MODES,
    DELAY_S,
    DELAY_S_MAX,
    PREFETCH,
    PREFETCH_MAX,
    AckMode,
    Check,
    MayEnter,
    check_binary,
    check_boolean,
    check_name,
    check_one_of,
    check_range,
    term,
    unknown_terms,
    uri_check,
)
from leveret.metadata.shovel.uris import AmqpUri, parse_uri

UPSTREAM: Final = "federation-upstream"  # The components of their parameters, and keys of policies.
UPSTREAM_SET: Final = "federation-upstream-set"
UPSTREAM_PATTERN: Final = "federation-upstream-pattern"  # A key of policies only.
COMPONENTS: Final = (UPSTREAM, UPSTREAM_SET)
ALL: Final = "all"  # The set of all upstreams, which is always there.

MAX_HOPS: Final = 1
MAX_HOPS_MAX: Final = (1 << 15) - 1  # RabbitMQ writes it as a short integer.
DURATION_MS_MAX: Final = (1 << 32) - 1  # What brokers take as x-expires and x-message-ttl.
SET_MAX: Final = 1_000  # Upstreams of a set.

_SHARED: Final[tuple[tuple[str, Check], ...]] = (
    ("exchange", check_name),
    ("queue", check_name),
    ("consumer-tag", check_name),
    ("prefetch-count", check_range(0, PREFETCH_MAX)),
    ("reconnect-delay", check_range(0, DELAY_S_MAX)),
    ("max-hops", check_range(1, MAX_HOPS_MAX)),
    ("expires", check_range(1, DURATION_MS_MAX)),
    ("message-ttl", check_range(0, DURATION_MS_MAX)),
    ("trust-user-id", check_boolean),
    ("ack-mode", check_one_of(ACK_MODES)),
    ("resource-cleanup-mode", check_one_of(("default", "never"))),
    ("ha-policy", check_binary),
    ("bind-nowait", check_boolean),
    ("channel-use-mode", check_one_of(("multiple", "single"))),
    ("queue-type", check_one_of(("classic", "quorum"))),
)


@dataclass(frozen=True, slots=True)
class Upstream:
    """A broker to take messages from, as its parameters describe it, with those of a set in front.

    `exchange` and `queue` are the names there; empty: as here. `user` has set the parameter, and is who connects if a
    URI has no host; empty: an operator.
    """

    name: str
    uris: tuple[AmqpUri, ...]
    user: str = ""
    exchange: str = ""
    queue: str = ""
    consumer_tag: str = ""
    prefetch: int = PREFETCH
    reconnect_delay_s: float = DELAY_S
    max_hops: int = MAX_HOPS
    expires_ms: int | None = None
    message_ttl_ms: int | None = None
    trusts_user_id: bool = False
    ack_mode: AckMode = "on-confirm"
    ha_policy: str | None = None
    queue_type: str | None = None
    binds_without_wait: bool = False
    keeps_resources: bool = False


def faults_of(
    component: str, name: str, value: Json, vhost: str, user: str = "", may_enter: MayEnter | None = None
) -> list[str]:
    """Return what is wrong with the value of an upstream or a set. `user` sets it, and `may_enter` tells which vhosts
    it may enter; None: an operator, who may enter all."""
    if component == UPSTREAM:
        return _faults(name, value, (("uri", uri_check(user, may_enter, vhost)), *_SHARED))
    if not isinstance(value, list):
        return [f"{name} should be list, actually was {term(value)}"]
    if len(value) > SET_MAX:
        return [f"{name} should be a list of at most {SET_MAX} upstreams, actually was a list of {len(value)}"]
    return [fault for one in value for fault in _faults(name, one, (("upstream", check_binary), *_SHARED))]


def _faults(name: str, value: Json, known: tuple[tuple[str, Check], ...]) -> list[str]:
    """Return the faults of an object whose first key must be there."""
    if not isinstance(value, dict):
        return [f"{name} should be a map, actually was {term(value)}"]
    keys = {key for key, _ in known}
    faults = unknown_terms(name, {key: one for key, one in value.items() if key not in keys})
    for key, check in reversed(known):
        if key in value:
            faults += check(key, value[key])
        elif key == known[0][0]:
            faults.append(f'Key "{key}" not found in {name}')
    return faults


def read_upstream(name: str, value: Mapping[str, Json], vhost: str, user: str) -> Upstream:
    """Return the upstream that a value without faults describes. `vhost` is meant by URIs without one. Raises
    ValueError for another value."""
    faults = _faults(name, dict(value), (("uri", uri_check("", None, vhost)), *_SHARED))
    if faults:
        raise ValueError("; ".join(faults))
    uris = value["uri"]

    def text(key: str) -> str | None:
        found = value.get(key)
        return found if isinstance(found, str) else None

    def number(key: str) -> float | None:
        found = value.get(key)
        return found if isinstance(found, (int, float)) else None

    def whole(key: str) -> int | None:
        found = number(key)
        return None if found is None else int(found)

    prefetch, delay_s = whole("prefetch-count"), number("reconnect-delay")
    return Upstream(
        name=name,
        uris=tuple(parse_uri(str(one), vhost) for one in (uris if isinstance(uris, list) else [uris])),
        user=user,
        exchange=text("exchange") or "",
        queue=text("queue") or "",
        consumer_tag=text("consumer-tag") or f"federation-link-{name}",
        prefetch=PREFETCH if prefetch is None else prefetch,
        reconnect_delay_s=DELAY_S if delay_s is None else float(delay_s),
        max_hops=whole("max-hops") or MAX_HOPS,
        expires_ms=whole("expires"),
        message_ttl_ms=whole("message-ttl"),
        trusts_user_id=value.get("trust-user-id") is True,
        ack_mode=next(one for one in ACK_MODES if one == value.get("ack-mode", "on-confirm")),
        ha_policy=text("ha-policy"),
        queue_type=text("queue-type"),
        binds_without_wait=value.get("bind-nowait") is True,
        keeps_resources=value.get("resource-cleanup-mode") == "never",
    )
