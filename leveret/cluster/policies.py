"""Which policy holds for a queue or an exchange, and what it says.

Of all policies of a vhost whose pattern matches the name and which apply to that kind of thing, the one with the
highest priority holds, alone: its definition is not mixed with another's. The same among operator policies; and where
both say something, the operator's is a limit: of two numbers the smaller one counts, a switch is on if either has it
on, of other values the operator's counts.

Matching a pattern against a hundred thousand names takes a while, so whoever asks for many keeps a `PolicyBook`, which
compiles each pattern once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

from leveret.cluster.specs import Json, Policy

if TYPE_CHECKING:
    from leveret.cluster.store import Metadata

PATTERNS_MAX: Final = 4096
APPLIES: Final = {"queue": ("queues", "all", "classic_queues"), "exchange": ("exchanges", "all")}


class Effective(NamedTuple):
    """What holds: the names of the policy and of the operator policy, and the definition of both together."""

    policy: str | None
    operator_policy: str | None
    definition: dict[str, Json]


NONE: Final = Effective(None, None, {})


class PolicyBook:
    """Answers what holds for a name, from the policies in the metadata as they are."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._patterns: dict[str, re.Pattern[str] | None] = {}

    def effective(self, kind: str, vhost: str, name: str) -> Effective:
        """`kind` is "queue" or "exchange"."""
        policy = self._best(self._metadata.policies.values(), kind, vhost, name)
        operator = self._best(self._metadata.operator_policies.values(), kind, vhost, name)
        if policy is None and operator is None:
            return NONE
        definition = dict(policy.definition) if policy is not None else {}
        for key, value in (operator.definition if operator is not None else {}).items():
            definition[key] = stricter(definition[key], value) if key in definition else value
        return Effective(policy.name if policy else None, operator.name if operator else None, definition)

    def _best(self, policies: Iterable[Policy], kind: str, vhost: str, name: str) -> Policy | None:
        best: Policy | None = None
        for policy in policies:
            if policy.vhost != vhost or policy.apply_to not in APPLIES[kind] or not self._matches(policy.pattern, name):
                continue
            # Of two with one priority RabbitMQ takes either; we take the same one at every node.
            if best is None or (policy.priority, policy.name) > (best.priority, best.name):
                best = policy
        return best

    def _matches(self, pattern: str, name: str) -> bool:
        if pattern not in self._patterns:
            if len(self._patterns) >= PATTERNS_MAX:
                self._patterns.clear()
            try:
                self._patterns[pattern] = re.compile(pattern)
            except re.error:  # Checked where it was set, perhaps by another version of Python.
                self._patterns[pattern] = None
        compiled = self._patterns[pattern]
        return compiled is not None and compiled.search(name) is not None


def stricter(own: Json, operators: Json) -> Json:
    """What counts where a policy and an operator policy both give a value. Of two switches: that either is on."""
    if isinstance(own, bool) and isinstance(operators, bool):
        return own or operators
    if isinstance(own, int) and isinstance(operators, int):
        return min(own, operators)
    return operators
