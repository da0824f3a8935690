"""The parameters of a shovel: its keys, RabbitMQ's checks with their texts, and what they say once checked.

`faults_of` returns all faults of a value, in RabbitMQ's words and order: what contradicts itself, then unknown keys,
then the keys, the last one first. A value without faults is read by `read_shovel`. Keys of RabbitMQ 4 are known too.

Stricter than RabbitMQ, which accepts these and then crashes or loops: an empty list of URIs, an unknown protocol, a
name of more than 255 bytes, a negative delay or prefetch, arguments that are no object. `amqp10` is not spoken here,
and refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from leveret.base.json_values import Json
from leveret.metadata.shovel.uris import AmqpUri, BadUri, parse_uri, safe_uri
from leveret.protocol.erlang_format import printed_float

PREFETCH: Final = 1_000
PREFETCH_MAX: Final = 65_535  # AMQP has sixteen bits for it.
DELAY_S: Final = 5.0
DELAY_S_MAX: Final = 86_400.0
COUNT_MAX: Final = (1 << 63) - 1
DURATION_S_MAX: Final = (1 << 31) - 1
URIS_MAX: Final = 64
NAME_BYTES_MAX: Final = 255
DURATION_S_MIN: Final = 15
NEVER: Final = "never"
QUEUE_LENGTH: Final = "queue-length"

AckMode = Literal["no-ack", "on-publish", "on-confirm"]
ACK_MODES: Final[tuple[AckMode, ...]] = ("no-ack", "on-publish", "on-confirm")
PROTOCOLS: Final = ("amqp091", "amqp10")

QUEUE_ARGUMENTS: Final = frozenset({
    "x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-dead-letter-strategy",
    "x-max-length", "x-max-length-bytes", "x-max-in-memory-length", "x-max-in-memory-bytes", "x-max-priority",
    "x-overflow", "x-queue-mode", "x-queue-version", "x-single-active-consumer", "x-queue-type",
    "x-quorum-initial-group-size", "x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size",
    "x-delivery-limit", "x-queue-master-locator", "x-queue-leader-locator",
})  # fmt: skip
CONSUMER_ARGUMENTS: Final = frozenset(
    {"x-priority", "x-credit", "x-cancel-on-ha-failover", "x-stream-offset", "x-consumer-timeout"}
)
NUMBERS: Final = frozenset({"delivery_mode", "priority", "timestamp"})  # Of the properties.
PROPERTIES: Final = (
    "content_type", "content_encoding", "delivery_mode", "priority", "correlation_id", "reply_to", "expiration",
    "message_id", "timestamp", "type", "user_id", "app_id", "cluster_id",
)  # fmt: skip
_PROPERTY_MAX: Final = {"delivery_mode": 2, "priority": 255, "timestamp": (1 << 63) - 1}

Check = Callable[[str, Json], list[str]]
MayEnter = Callable[[str], bool]  # Whether the user who sets the parameter may enter a vhost.


@dataclass(frozen=True, slots=True)
class Shovel:
    """A shovel as its parameters describe it.

    Either `src_queue` or `src_exchange` is set. Without a destination, messages keep their exchange and key.
    `delete_after` is a number of messages, `never` or `queue-length`.
    """

    src_uris: tuple[AmqpUri, ...]
    dest_uris: tuple[AmqpUri, ...]
    src_queue: str | None = None
    src_exchange: str | None = None
    src_exchange_key: str = ""
    src_queue_args: Mapping[str, Json] = field(default_factory=dict)
    src_consumer_args: Mapping[str, Json] = field(default_factory=dict)
    src_consumer_name: str = ""
    src_predeclared: bool = False
    prefetch: int = PREFETCH
    delete_after: int | str = NEVER
    delete_after_s: int | None = None
    dest_queue: str | None = None
    dest_queue_args: Mapping[str, Json] = field(default_factory=dict)
    dest_exchange: str | None = None
    dest_exchange_key: str | None = None
    dest_predeclared: bool = False
    publish_properties: Mapping[str, Json] = field(default_factory=dict)
    add_forward_headers: bool = False
    add_timestamp_header: bool = False
    ack_mode: AckMode = "on-confirm"
    reconnect_delay_s: float = DELAY_S


# -- Erlang terms --------------------------------------------------------------------------------------------------


def term(value: Json) -> str:
    """Return a value as Erlang prints it, on one line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, float):
        return printed_float(value)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'<<"{escaped}">>' if value else "<<>>"
    if isinstance(value, list):
        return f"[{','.join(map(term, value))}]"
    if isinstance(value, dict):
        return "#{" + ",".join(f"{term(name)} => {term(one)}" for name, one in sorted(value.items())) + "}"
    return str(value)


# -- Checks of one value -------------------------------------------------------------------------------------------


def check_number(key: str, value: Json) -> list[str]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return [f"{key} should be a number, actually was {term(value)}"]
    return []


def check_range(least: float, most: float) -> Check:
    def check(key: str, value: Json) -> list[str]:
        faults = check_number(key, value)
        if not faults and isinstance(value, (int, float)) and not least <= value <= most:
            return [f"{key} should be a number between {least:g} and {most:g}, actually was {term(value)}"]
        return faults

    return check


def check_boolean(key: str, value: Json) -> list[str]:
    return [] if isinstance(value, bool) else [f"{key} should be boolean, actually was {term(value)}"]


def check_binary(key: str, value: Json) -> list[str]:
    return [] if isinstance(value, str) else [f"{key} should be binary, actually was {term(value)}"]


def check_name(key: str, value: Json) -> list[str]:
    if not isinstance(value, str):
        return check_binary(key, value)
    size = len(value.encode("utf-8", "surrogatepass"))
    return [] if size <= NAME_BYTES_MAX else [f"{key} should be less than 255 bytes, actually was {size}"]


def check_one_of(values: tuple[str, ...]) -> Check:
    def check(key: str, value: Json) -> list[str]:
        if not isinstance(value, str):
            return check_binary(key, value)
        shown = ",".join(map(term, values))
        return [] if value in values else [f"{key} should be one of [{shown}], actually was {term(value)}"]

    return check


def _delete_after(key: str, value: Json) -> list[str]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return check_range(0, COUNT_MAX)(key, value)
    if value in (NEVER, QUEUE_LENGTH):
        return []
    wanted = 'a number greater than or equal to 0, "never" or "queue-length"'
    return [f"{key} should be {wanted}, actually was {term(value)}"]


def _duration(key: str, value: Json) -> list[str]:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return check_range(1, DURATION_S_MAX)(key, value)
    return [f"{key} should be a number greater than 0, actually was {term(value)}"]


def _arguments(known: frozenset[str]) -> Check:
    def check(key: str, value: Json) -> list[str]:
        if not isinstance(value, dict):
            return [f"{key} should be a map, actually was {term(value)}"]
        return unknown_terms(key, {name: one for name, one in value.items() if name not in known})

    return check


def _properties(key: str, value: Json) -> list[str]:
    if not isinstance(value, dict):
        return [f"{key} should be a map, actually was {term(value)}"]
    faults = unknown_terms(key, {name: one for name, one in value.items() if name not in PROPERTIES})
    for name in reversed(PROPERTIES):
        if name in value:
            check = check_range(0, _PROPERTY_MAX[name]) if name in NUMBERS else check_name
            faults += check(name, value[name])
    return faults


def unknown_terms(where: str, rest: Mapping[str, Json]) -> list[str]:
    if not rest:
        return []
    shown = ",".join(f"{{{term(name)},{term(rest[name])}}}" for name in sorted(rest))
    return [f"Unrecognised terms [{shown}] in {where}"]


def uri_check(user: str, may_enter: MayEnter | None, vhost: str = "/") -> Check:
    """Return the check of a URI, or of a list of them. `may_enter` is asked for the vhosts of URIs without a host;
    `vhost` is that of URIs without a path."""

    def check_one(key: str, value: Json) -> list[str]:
        if not isinstance(value, str):
            return [f"{key} should be list, actually was {term(value)}"]
        try:
            uri = parse_uri(value, vhost)
        except BadUri as error:
            return [f'"{safe_uri(value)}" not a valid URI: {error}']
        if uri.is_direct and uri.user is None and may_enter is not None and not may_enter(uri.vhost):
            return [f'user "{user}" may not connect to vhost "{uri.vhost}"']
        return []

    def check(key: str, value: Json) -> list[str]:
        if not isinstance(value, list):
            return check_one(key, value)
        if not 0 < len(value) <= URIS_MAX:
            return [f"{key} should be a list of 1 to {URIS_MAX} URIs, actually was a list of {len(value)}"]
        return next((faults for faults in (check_one(key, one) for one in value) if faults), [])

    return check


# -- All keys ------------------------------------------------------------------------------------------------------

_COMMON: Final[tuple[tuple[str, Check], ...]] = (
    ("reconnect-delay", check_range(0, DELAY_S_MAX)),
    ("ack-mode", check_one_of(ACK_MODES)),
    ("src-protocol", check_one_of(PROTOCOLS)),
    ("dest-protocol", check_one_of(PROTOCOLS)),
)
_SOURCE: Final[tuple[tuple[str, Check], ...]] = (
    ("src-exchange", check_name),
    ("src-exchange-key", check_name),
    ("src-queue", check_name),
    ("src-queue-args", _arguments(QUEUE_ARGUMENTS)),
    ("src-consumer-args", _arguments(CONSUMER_ARGUMENTS)),
    ("src-consumer-name", check_name),
    ("src-predeclared", check_boolean),
    ("prefetch-count", check_range(1, PREFETCH_MAX)),
    ("src-prefetch-count", check_range(1, PREFETCH_MAX)),
    ("delete-after", _delete_after),
    ("src-delete-after", _delete_after),
    ("src-delete-after-duration", _duration),
)
_DESTINATION: Final[tuple[tuple[str, Check], ...]] = (
    ("dest-exchange", check_name),
    ("dest-exchange-key", check_name),
    ("dest-queue", check_name),
    ("dest-queue-args", _arguments(QUEUE_ARGUMENTS)),
    ("dest-predeclared", check_boolean),
    ("add-forward-headers", check_boolean),
    ("add-timestamp-header", check_boolean),
    ("dest-add-forward-headers", check_boolean),
    ("dest-add-timestamp-header", check_boolean),
    ("publish-properties", _properties),
    ("dest-publish-properties", _properties),
)


def faults_of(name: str, value: Json, user: str = "", may_enter: MayEnter | None = None) -> list[str]:
    """Return what is wrong with the value of a shovel. `user` sets it, and `may_enter` tells which vhosts it may enter;
    None: an operator, who may enter all."""
    if not isinstance(value, dict):
        return [f"{name} should be a map, actually was {term(value)}"]
    faults = _contradictions(value)
    uris = uri_check(user, may_enter)
    known: list[tuple[str, Check]] = [*_COMMON, ("src-uri", uris), *_SOURCE, ("dest-uri", uris), *_DESTINATION]
    keys = {key for key, _ in known}
    faults += unknown_terms(name, {key: one for key, one in value.items() if key not in keys})
    for key, check in reversed(known):
        if key in value:
            faults += check(key, value[key])
        elif key in ("src-uri", "dest-uri"):
            faults.append(f'Key "{key}" not found in {name}')
    return faults


def _contradictions(value: Mapping[str, Json]) -> list[str]:
    faults = []
    for end in ("src-protocol", "dest-protocol"):
        if value.get(end) == "amqp10":
            faults.append(f"{end} amqp10 is not supported, use amqp091")
    sources = ("src-exchange" in value) + ("src-queue" in value)
    if sources != 1:
        verb, word = ("Cannot", "and") if sources else ("Must", "or")
        faults.append(f"{verb} specify 'src-exchange' {word} 'src-queue'")
    until = value.get("src-delete-after", value.get("delete-after"))
    if isinstance(until, int) and not isinstance(until, bool) and value.get("ack-mode") == "no-ack":
        faults.append("Cannot specify 'no-ack' and numerical 'delete-after'")
    if "dest-exchange" in value and "dest-queue" in value:
        faults.append("Cannot specify 'dest-exchange' and 'dest-queue'")
    if until == QUEUE_LENGTH and "src-exchange" in value:
        faults.append("Cannot specify 'src-exchange' and 'queue-length': its queue is empty at the start")
    return faults


# -- Reading -------------------------------------------------------------------------------------------------------


def read_shovel(value: Json) -> Shovel:
    """Return the shovel that a value without faults describes. Raises ValueError for another one."""
    faults = faults_of("shovel", value)
    if faults or not isinstance(value, dict):
        raise ValueError("; ".join(faults))
    read = _Reader(value)
    prefetch = read.number("src-prefetch-count", read.number("prefetch-count", PREFETCH))
    until = value.get("src-delete-after", value.get("delete-after", NEVER))
    assert isinstance(until, (int, str))
    duration = value.get("src-delete-after-duration")
    return Shovel(
        src_uris=read.uris("src-uri"),
        dest_uris=read.uris("dest-uri"),
        src_queue=read.text("src-queue", None),
        src_exchange=read.text("src-exchange", None),
        src_exchange_key=read.text("src-exchange-key", "") or "",
        src_queue_args=read.map("src-queue-args"),
        src_consumer_args=read.map("src-consumer-args"),
        src_consumer_name=read.text("src-consumer-name", "") or "",
        src_predeclared=value.get("src-predeclared") is True,
        prefetch=int(prefetch),
        delete_after=until,
        delete_after_s=max(duration, DURATION_S_MIN) if isinstance(duration, int) else None,
        dest_queue=read.text("dest-queue", None),
        dest_queue_args=read.map("dest-queue-args"),
        dest_exchange=read.text("dest-exchange", None),
        dest_exchange_key=read.text("dest-exchange-key", None),
        dest_predeclared=value.get("dest-predeclared") is True,
        publish_properties=read.map("publish-properties", "dest-publish-properties"),
        add_forward_headers=read.flag("add-forward-headers"),
        add_timestamp_header=read.flag("add-timestamp-header"),
        ack_mode=next(one for one in ACK_MODES if one == value.get("ack-mode", "on-confirm")),
        reconnect_delay_s=float(read.number("reconnect-delay", DELAY_S)),
    )


class _Reader:
    def __init__(self, value: Mapping[str, Json]) -> None:
        self.value = value

    def uris(self, key: str) -> tuple[AmqpUri, ...]:
        found = self.value[key]
        return tuple(parse_uri(str(one)) for one in (found if isinstance(found, list) else [found]))

    def text(self, key: str, default: str | None) -> str | None:
        found = self.value.get(key, default)
        return found if isinstance(found, str) else default

    def number(self, key: str, default: float) -> float:
        found = self.value.get(key, default)
        return found if isinstance(found, (int, float)) else default

    def map(self, *keys: str) -> Mapping[str, Json]:
        found = next((self.value[key] for key in reversed(keys) if key in self.value), {})
        return found if isinstance(found, dict) else {}

    def flag(self, key: str) -> bool:
        return self.value.get(f"dest-{key}", self.value.get(key)) is True


def redacted(value: Json) -> Json:
    """Return the value of a shovel as it is shown: URIs without passwords, user names or passwords of keys."""
    if not isinstance(value, dict):
        return value
    return {key: _redacted_uris(one) if key in ("src-uri", "dest-uri", "uri") else one for key, one in value.items()}


def _redacted_uris(value: Json) -> Json:
    if isinstance(value, list):
        return [_redacted_uris(one) for one in value]
    return safe_uri(value) if isinstance(value, str) else value
