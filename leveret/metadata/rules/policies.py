"""The policy that applies to a queue or an exchange.

Of all policies of a vhost whose pattern matches the name and which apply to that kind of object, only the one with the
highest priority applies: definitions are not merged. The same holds among operator policies. Where both have a key, the
operator policy is a limit: the smaller of two numbers counts, a switch is on if either has it on, and of other values
the operator's counts.

A policy with a key that a type of queue does not support does not apply to queues of that type; the next one does. That
is RabbitMQ's behaviour, and users rely on it: with one policy that mirrors all queues and another that limits
deliveries, quorum queues get the limit and classic ones the mirrors, whatever the priorities. Two keys that classic
queues do not support in RabbitMQ work for ours (`CLASSIC_TOO`). If they did so in every policy, queues of imported
definitions would lose their mirrors, or messages that are requeued often; so they work for classic queues only in a
policy for `classic_queues`, a value that RabbitMQ has since 3.12.

Matching a pattern against a hundred thousand names takes a while, so callers with many names keep a `Policies`. It
has the policies of each vhost in order of priority, with their patterns compiled, until one changes: the first that
matches is the answer. Results of slow patterns are cached for all books together (`base.safe_regex.finds`).
`Policies.spent` adds up how long the searches may have taken, so that a caller with many names can stop in time
without reading a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.base.json_values import Json
from leveret.base.safe_regex import BadPattern, Pattern, compiled, finds
from leveret.metadata.model.records import Policy

if TYPE_CHECKING:
    from leveret.metadata.store import Metadata
    from leveret.protocol.tables import Table

SPENT_MAX: Final = 5_000  # Microseconds that searches may take in one turn; the rest is done in the next.
CLASSIC, QUORUM, STREAM, EXCHANGE = KINDS = ("classic", "quorum", "stream", "exchange")
APPLIES: Final = {
    CLASSIC: frozenset({"all", "queues", "classic_queues"}),
    QUORUM: frozenset({"all", "queues", "quorum_queues"}),
    STREAM: frozenset({"all", "queues", "streams"}),
    EXCHANGE: frozenset({"all", "exchanges"}),
}
CLASSIC_TOO: Final = frozenset({"delivery-limit", "dead-letter-strategy"})
_OF_STREAMS: Final = frozenset({"max-age", "stream-max-segment-size-bytes", "initial-cluster-size"})
_OF_CLASSIC: Final = frozenset(
    {
        "queue-mode", "queue-master-locator", "ha-mode", "ha-params", "ha-sync-mode", "ha-promote-on-shutdown",
        "ha-promote-on-failure",
    }
)  # fmt: skip
_NOT_OF_STREAMS: Final = frozenset(
    {
        "expires", "message-ttl", "dead-letter-exchange", "dead-letter-routing-key", "max-length",
        "max-in-memory-length", "max-in-memory-bytes", "overflow",
    }
)  # fmt: skip
FOREIGN: Final = {
    CLASSIC: _OF_STREAMS | CLASSIC_TOO | {"queue-leader-locator"},
    QUORUM: _OF_STREAMS | _OF_CLASSIC,
    STREAM: _OF_CLASSIC | CLASSIC_TOO | _NOT_OF_STREAMS,
    EXCHANGE: frozenset[str](),
}


class Effective(NamedTuple):
    """The names of the policy and of the operator policy that apply, and their combined definition, which nobody may
    change: it is the same object for all names to which the same policies apply."""

    policy: str | None
    operator_policy: str | None
    definition: Mapping[str, Json]


NONE: Final = Effective(None, None, {})


class Policies:
    """Finds the policy that applies to a name, among the present policies of the metadata."""

    def __init__(self, metadata: Metadata) -> None:
        self.spent = 0  # The longest time that all searches so far may have taken, in microseconds.
        self._metadata = metadata
        self._seen = -1  # `Metadata.policies_changed` when the lists below were made.
        self._policies: dict[str, list[_Ready]] = {}  # By vhost, in order of priority.
        self._operators: dict[str, list[_Ready]] = {}
        self._combined: dict[tuple[int, int], Effective] = {}  # By the ids of the two policies, which live as long.
        self._last: tuple[str, str, str, Effective] = ("", "", "", NONE)  # Who asks for a name often asks again.

    def of_queue(self, vhost: str, name: str, arguments: Table) -> Effective:
        return self.effective(queue_kind(arguments), vhost, name)

    def effective(self, kind: str, vhost: str, name: str) -> Effective:
        """Return the policies that apply to a name. `kind`: one of `KINDS`."""
        if self._seen != self._metadata.policies_changed:
            self._seen = self._metadata.policies_changed
            self._policies = _in_order(self._metadata.policies.values())
            self._operators = _in_order(self._metadata.operator_policies.values())
            self._combined, self._last = {}, ("", "", "", NONE)
        elif self._last[0] == name and self._last[1] == vhost and self._last[2] == kind:
            return self._last[3]
        found = self._find(kind, vhost, name)
        self._last = (name, vhost, kind, found)
        return found

    def _find(self, kind: str, vhost: str, name: str) -> Effective:
        policy = self._best(self._policies.get(vhost, ()), kind, name)
        operator = self._best(self._operators.get(vhost, ()), kind, name)
        if policy is None and operator is None:
            return NONE
        found = self._combined.get((id(policy), id(operator)))
        if found is None:
            found = self._combined[id(policy), id(operator)] = _combined(policy, operator)
        return found

    def _best(self, policies: Iterable[_Ready], kind: str, name: str) -> Policy | None:
        for policy, pattern in policies:
            if is_applicable(kind, policy.apply_to, policy.definition):
                self.spent += pattern.cost
                if finds(pattern, name):
                    return policy
        return None


class _Ready(NamedTuple):
    policy: Policy
    pattern: Pattern


def _combined(policy: Policy | None, operator: Policy | None) -> Effective:
    definition = dict(policy.definition) if policy is not None else {}
    for key, value in (operator.definition if operator is not None else {}).items():
        definition[key] = stricter(definition[key], value) if key in definition else value
    return Effective(policy.name if policy else None, operator.name if operator else None, definition)


def _in_order(policies: Iterable[Policy]) -> dict[str, list[_Ready]]:
    found: dict[str, list[_Ready]] = {}
    # Of two with the same priority RabbitMQ takes either; here all nodes take the same one.
    for policy in sorted(policies, key=lambda one: (one.priority, one.name), reverse=True):
        try:
            found.setdefault(policy.vhost, []).append(_Ready(policy, compiled(policy.pattern)))
        except BadPattern:  # It was checked when it was set, perhaps by another version.
            continue
    return found


def queue_kind(arguments: Table) -> str:
    kind = arguments.get("x-queue-type")
    return CLASSIC if kind is None else str(kind.value)


def is_applicable(kind: str, apply_to: str, definition: Mapping[str, Json]) -> bool:
    """Return whether a policy can apply to objects of a kind, whatever their names."""
    if apply_to not in APPLIES[kind]:
        return False
    foreign = FOREIGN[kind]
    if apply_to == "classic_queues":
        foreign = foreign - CLASSIC_TOO
    return foreign.isdisjoint(definition)


def stricter(own: Json, operators: Json) -> Json:
    """Return the value that counts if a policy and an operator policy both have one. A switch is on if either is."""
    if isinstance(own, bool) and isinstance(operators, bool):
        return own or operators
    if isinstance(own, int) and isinstance(operators, int):
        return min(own, operators)
    return operators
