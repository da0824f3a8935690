"""Which policy holds for a queue or an exchange, and what it says.

Of all policies of a vhost whose pattern matches the name and which apply to that kind of thing, the one with the
highest priority holds, alone: its definition is not mixed with another's. The same among operator policies; and where
both say something, the operator's is a limit: of two numbers the smaller one counts, a switch is on if either has it
on, of other values the operator's counts.

A policy with a key that a type of queue does not know does not apply to queues of that type, and makes way for the next
one. So RabbitMQ has it, and people build on it: beside a policy that mirrors all queues and another that limits
deliveries, quorum queues get their limit and classic ones their mirrors, whichever comes first. Two keys that classic
queues do not know there mean something to ours (`CLASSIC_TOO`). Taken at their word for every policy, they would cost
an imported definition its mirrors, and queues the messages that come back often; so they count for classic queues
where a policy names these (`classic_queues`, a word of RabbitMQ 3.12).

Matching a pattern against a hundred thousand names takes a while, so whoever asks for many keeps a `PolicyBook`. It has
the policies of each vhost in the order in which they count, with their patterns compiled, until one changes: the first
that matches is the answer. What a slow pattern finds is remembered for all books together (`patterns.finds`). How long
its searches may have taken is added up in `PolicyBook.spent`, so that who asks for many names in one turn can stop in
time without looking at a clock.
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

SPENT_MAX: Final = 5_000  # Microseconds that searches of one turn may take, where there is more to come.
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
    """What holds: the names of the policy and of the operator policy, and the definition of both together."""

    policy: str | None
    operator_policy: str | None
    definition: dict[str, Json]


NONE: Final = Effective(None, None, {})


class PolicyBook:
    """Answers what holds for a name, from the policies in the metadata as they are."""

    def __init__(self, metadata: Metadata) -> None:
        self.spent = 0  # Microseconds, at most, of all searches so far.
        self._metadata = metadata
        self._seen = -1  # Which change of policies the lists are of.
        self._policies: dict[str, list[_Ready]] = {}  # By vhost, the first that counts first.
        self._operators: dict[str, list[_Ready]] = {}

    def of_queue(self, vhost: str, name: str, arguments: Table) -> Effective:
        return self.effective(queue_kind(arguments), vhost, name)

    def effective(self, kind: str, vhost: str, name: str) -> Effective:
        """`kind`: one of `KINDS`."""
        if self._seen != self._metadata.policies_changed:
            self._seen = self._metadata.policies_changed
            self._policies = _in_order(self._metadata.policies.values())
            self._operators = _in_order(self._metadata.operator_policies.values())
        policy = self._best(self._policies.get(vhost, ()), kind, name)
        operator = self._best(self._operators.get(vhost, ()), kind, name)
        if policy is None and operator is None:
            return NONE
        definition = dict(policy.definition) if policy is not None else {}
        for key, value in (operator.definition if operator is not None else {}).items():
            definition[key] = stricter(definition[key], value) if key in definition else value
        return Effective(policy.name if policy else None, operator.name if operator else None, definition)

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


def _in_order(policies: Iterable[Policy]) -> dict[str, list[_Ready]]:
    found: dict[str, list[_Ready]] = {}
    # Of two with one priority RabbitMQ takes either; we take the same one at every node.
    for policy in sorted(policies, key=lambda one: (one.priority, one.name), reverse=True):
        try:
            found.setdefault(policy.vhost, []).append(_Ready(policy, compiled(policy.pattern)))
        except BadPattern:  # Checked where it was set, perhaps by another version.
            continue
    return found


def queue_kind(arguments: Table) -> str:
    kind = arguments.get("x-queue-type")
    return CLASSIC if kind is None else str(kind.value)


def is_applicable(kind: str, apply_to: str, definition: Mapping[str, Json]) -> bool:
    """Whether a policy can hold for things of a kind, whatever their names."""
    if apply_to not in APPLIES[kind]:
        return False
    foreign = FOREIGN[kind]
    if apply_to == "classic_queues":
        foreign = foreign - CLASSIC_TOO
    return foreign.isdisjoint(definition)


def stricter(own: Json, operators: Json) -> Json:
    """What counts where a policy and an operator policy both give a value. Of two switches: that either is on."""
    if isinstance(own, bool) and isinstance(operators, bool):
        return own or operators
    if isinstance(own, int) and isinstance(operators, int):
        return min(own, operators)
    return operators
