"""Validation of policies and limits: RabbitMQ's keys, values and error texts.

A policy is checked before it becomes a command. An unknown key is refused: it is nearly always a typing error, and a
policy that silently does less than intended is noticed only when it is needed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from leveret.base.json_values import Json
from leveret.base.safe_regex import FILTER_COST_MAX, error_of
from leveret.metadata.rules.ha_policy import FORBID, LABEL, PINNED, BadWindow, parse_label, parse_window
from leveret.metadata.rules.policies import APPLIES, EXCHANGE, KINDS, is_applicable
from leveret.metadata.rules.queue_rules import is_routing_key, parse_journal
from leveret.protocol.erlang_format import printed_float

STREAM_SEGMENT_BYTES_MAX: Final = 3_000_000_000
APPLY_TO: Final = frozenset[str]().union(*APPLIES.values())
VHOST_LIMITS: Final = ("max-connections", "max-queues")
USER_LIMITS: Final = ("max-connections", "max-channels")
OPERATOR_KEYS: Final = frozenset(
    {
        "expires", "message-ttl", "max-length", "max-length-bytes", "max-in-memory-length", "max-in-memory-bytes",
        "delivery-limit", "journal", FORBID,
    }
)  # fmt: skip
HA_DETAILS: Final = (
    "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown", "ha-promote-on-failure",
)  # fmt: skip
OWN_HA_DETAILS: Final = (
    "ha-replication", "ha-sync-strategy", "ha-sync-blocking", "ha-spread", "ha-replication-window",
)  # fmt: skip

Fits = Callable[[Any], bool]


def term(value: Json) -> str:
    """Return a JSON value as Erlang prints it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'<<"{escaped}">>' if value else "<<>>"
    if isinstance(value, float):
        return printed_float(value)
    if isinstance(value, list):
        return f"[{','.join(map(term, value))}]"
    if isinstance(value, dict):
        return f"#{{{','.join(f'{term(name)} => {term(one)}' for name, one in value.items())}}}"
    return str(value)


def _pairs(values: Mapping[str, Json]) -> str:
    return f"[{','.join(f'{{{term(name)},{term(value)}}}' for name, value in values.items())}]"


def _at_least(least: int, most: int | None = None) -> Fits:
    def fits(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least and not (most and value > most)

    return fits


def _one_of(*values: object) -> Fits:
    return lambda value: not isinstance(value, bool) and value in values


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_key(value: Any) -> bool:
    return isinstance(value, str) and is_routing_key(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_age(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9]+[YMDhms]", value) is not None


def _is_journal(value: Any) -> bool:
    return isinstance(value, str) and parse_journal(value) is not None


# By key: the check of a value, and the error text.
_RULES: Final[dict[str, tuple[Fits, str]]] = {
    "alternate-exchange": (_is_text, "is not a valid alternate exchange name"),
    "dead-letter-exchange": (_is_text, "is not a valid dead letter exchange name"),
    "dead-letter-routing-key": (_is_key, "is not a valid dead letter routing key"),
    "dead-letter-strategy": (_one_of("at-most-once", "at-least-once"), "is not a valid dead letter strategy"),
    "message-ttl": (_at_least(0), "is not a valid message TTL"),
    "expires": (_at_least(1), "is not a valid queue expiry"),
    "max-length": (_at_least(0), "is not a valid maximum length"),
    "max-length-bytes": (_at_least(0), "is not a valid maximum length in bytes"),
    "max-in-memory-length": (_at_least(0), "is not a valid maximum memory in bytes"),
    "max-in-memory-bytes": (_at_least(0), "is not a valid maximum memory in bytes"),
    "queue-mode": (_one_of("default", "lazy"), "is not a valid queue-mode value"),
    "queue-version": (_one_of(1, 2), "is not a valid queue-version value"),
    "overflow": (_one_of("drop-head", "reject-publish", "reject-publish-dlx"), "is not a valid overflow value"),
    "delivery-limit": (_at_least(0), "is not a valid delivery limit"),
    "max-age": (_is_age, "is not a valid max age"),
    "queue-leader-locator": (
        _one_of("client-local", "balanced", "random", "least-leaders"),
        "is not a valid queue leader locator value",
    ),
    "initial-cluster-size": (_at_least(0), "is not a valid cluster size"),
    "stream-max-segment-size-bytes": (_at_least(0, STREAM_SEGMENT_BYTES_MAX), "is not a valid segment size"),
    "queue-master-locator": (
        _one_of("min-masters", "client-local", "random"),
        "invalid queue-master-locator value",
    ),
    # RabbitMQ has this key since 3.12, and not the next one.
    "consumer-timeout": (_at_least(1), "is not a valid consumer timeout"),
    "consumer-timeout-action": (_one_of("close", "requeue"), "is not a valid consumer timeout action"),
    "journal": (_is_journal, "is not a valid journal mode"),
    LABEL: (lambda value: parse_label(value) is not None, 'is not a label and its value, such as "zone=a"'),
    PINNED: (_is_flag, "is not true or false, which queue-master-pinned takes"),
    FORBID: (_is_flag, "is not true or false, which ha-forbid-copying takes"),
    "federation-upstream": (_is_text, "is not a valid federation upstream name"),
    "federation-upstream-set": (_is_text, "is not a valid federation upstream set name"),
    "federation-upstream-pattern": (_is_text, "is not a valid federation upstream pattern name"),
}
_FEDERATION: Final = ("federation-upstream", "federation-upstream-set", "federation-upstream-pattern")
_HA_KEYS: Final = frozenset({"ha-mode", *HA_DETAILS, *OWN_HA_DETAILS})
_OF_EXCHANGES: Final = ("alternate-exchange",)


def policy_error(pattern: str, apply_to: str, definition: Mapping[str, Json], operator: bool = False) -> str | None:
    """Return what is wrong with a policy, a line for each of its parts; None if it can be set."""
    problems = [_definition_error(dict(sorted(definition.items())), operator)]
    if apply_to not in APPLY_TO:
        problems.append(f"apply-to '{apply_to}' unrecognised; should be 'queues', 'exchanges' or 'all'")
    bad_pattern = error_of(pattern)
    if bad_pattern is not None:
        problems.append(f"pattern should be regular expression but is invalid: {bad_pattern}")
    return "\n".join(filter(None, problems)) or None


def _definition_error(definition: Mapping[str, Json], operator: bool) -> str | None:
    """Return what is wrong with the first invalid key, in the order of names; None if all are valid."""
    if not definition:
        return "no policy provided"
    known = OPERATOR_KEYS if operator else _RULES.keys() | _HA_KEYS
    for name, value in definition.items():
        if name in known and name in _RULES and not _RULES[name][0](value):
            return f"{term(value)} {_RULES[name][1]}"
    if not operator and not _HA_KEYS.isdisjoint(definition):
        bad_ha = _ha_error(definition)
        if bad_ha is not None:
            return bad_ha
    bad_upstream = None if operator else _federation_error(definition)
    if bad_upstream is not None:
        return bad_upstream
    unknown = {name: value for name, value in definition.items() if name not in known}
    return f"{_pairs(unknown)} are not recognised policy settings" if unknown else None


def _federation_error(definition: Mapping[str, Json]) -> str | None:
    if sum(name in definition for name in _FEDERATION) > 1:
        return f"cannot specify {', '.join(_FEDERATION[:-1])} or {_FEDERATION[-1]} together"
    pattern = definition.get(_FEDERATION[-1])
    bad_pattern = error_of(pattern, FILTER_COST_MAX) if isinstance(pattern, str) else None
    if bad_pattern is not None:
        return f"could not compile pattern {pattern} to a regular expression. Error: {bad_pattern}"
    return None


def unknown_keys(definition: Mapping[str, Json], operator: bool) -> list[str]:
    """Return a readable line for each unknown key, with a suggestion. RabbitMQ's own text has Erlang terms."""
    known = OPERATOR_KEYS if operator else _RULES.keys() | _HA_KEYS
    lines = []
    for name in definition:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            lines.append(f"There is no key '{name}' for a policy" + (f"; did you mean '{near[0]}'?" if near else "."))
    return lines


def policy_notes(apply_to: str, definition: Mapping[str, Json]) -> list[str]:
    """Return a note for each key of a policy that will have no effect."""
    notes: list[str] = []
    for name in definition:
        if apply_to == "exchanges" and name not in (*_OF_EXCHANGES, *_FEDERATION):
            notes.append(f"{name} has no effect: it is for queues, and the policy applies to exchanges")
        elif apply_to not in APPLIES[EXCHANGE] and name in _OF_EXCHANGES:
            notes.append(f"{name} has no effect: it is for exchanges, and the policy applies to {apply_to}")
    of_queues = {name: value for name, value in definition.items() if name not in _OF_EXCHANGES}
    kinds = [kind for kind in KINDS if kind != EXCHANGE and apply_to in APPLIES[kind]]
    if kinds and of_queues and not any(is_applicable(kind, apply_to, definition) for kind in kinds):
        notes.append(f"{', '.join(of_queues)} have no effect: queues of no type that it applies to know all its keys")
    return notes


def _ha_error(definition: Mapping[str, Json]) -> str | None:
    batch = definition.get("ha-sync-batch-size", 1)
    if "ha-mode" not in definition:
        if any(name in definition for name in HA_DETAILS):
            return "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"
        if any(name in definition for name in OWN_HA_DETAILS):
            return f"ha-mode must be specified to specify {', '.join(OWN_HA_DETAILS[:-1])} or {OWN_HA_DETAILS[-1]}"
    else:
        bad_mode = _ha_mode_error(definition["ha-mode"], definition.get("ha-params"), "ha-params" in definition)
        if bad_mode is not None:
            return bad_mode
    if not _at_least(1)(batch):
        return f"ha-sync-batch-size takes an integer greater than 0, {term(batch)} given"
    for name, words in (
        ("ha-sync-mode", ("manual", "automatic")),
        ("ha-promote-on-shutdown", ("always", "when-synced")),
        ("ha-promote-on-failure", ("always", "when-synced")),
    ):
        if name in definition and definition[name] not in words:
            return f'{name} must be "{words[0]}" or "{words[1]}", got {term(definition[name])}'
    return _own_ha_error(definition)


def _own_ha_error(definition: Mapping[str, Json]) -> str | None:
    """Return what is wrong with the keys that RabbitMQ does not have; None if nothing is."""
    for name, words in (("ha-replication", ("sync", "async")), ("ha-sync-strategy", ("full", "incremental", "event"))):
        if name in definition and definition[name] not in words:
            listed = ", ".join(f'"{word}"' for word in words[:-1])
            return f'{name} must be {listed} or "{words[-1]}", got {term(definition[name])}'
    if not _is_flag(definition.get("ha-sync-blocking", False)):
        return f"ha-sync-blocking must be true or false, got {term(definition['ha-sync-blocking'])}"
    spread = definition.get("ha-spread", "-")
    if not isinstance(spread, str) or not spread:
        return f"ha-spread takes the name of a label of nodes, {term(spread)} given"
    if definition.get("ha-sync-strategy") == "event" and definition.get("ha-sync-mode") == "automatic":
        return 'ha-sync-strategy="event" copies nothing, so ha-sync-mode cannot be "automatic"'
    if "ha-replication-window" not in definition:
        return None
    try:
        window = parse_window(definition["ha-replication-window"])
    except BadWindow as error:
        return f"ha-replication-window {error}, {term(definition['ha-replication-window'])} given"
    if window.has_limit and definition.get("ha-replication") != "async":
        return 'ha-replication="async" must be specified to specify how far a mirror may be behind'
    return None


def _ha_mode_error(mode: Json, params: Json, given: bool) -> str | None:
    shown = term(params) if given else "none"
    if mode == "all":
        return 'ha-mode="all" does not take parameters' if given else None
    if mode == "exactly":
        return None if _at_least(1)(params) else f'ha-mode="exactly" takes an integer, {shown} given'
    if mode != "nodes":
        return f"{term(mode)} is not a valid ha-mode value"
    if not isinstance(params, list):
        return f'ha-mode="nodes" takes a list, {shown} given'
    if not params:
        return 'ha-mode="nodes" list must be non-empty'
    strange: list[Json] = [name for name in params if not isinstance(name, str)]
    return f'ha-mode="nodes" takes a list of strings, {term(strange)} was not a string' if strange else None


def limits_error(limits: Mapping[str, Json], known: tuple[str, ...], what: str) -> str | None:
    """Return what is wrong with the limits of a vhost or a user; None if they can be set. `what`: limits, user-limits.
    """
    for name in known:
        value = limits.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int):
            return f"{name} should be a number, actually was {term(value)}"
    unknown = {name: value for name, value in limits.items() if name not in known}
    return f"Unrecognised terms {_pairs(unknown)} in {what}" if unknown else None
