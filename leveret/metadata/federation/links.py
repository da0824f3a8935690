"""The links of an exchange or a queue: its policy names upstreams, and each of them is one link.

A link is known by the vhost and by what is on either side: whether it is an exchange or a queue, its name, the
upstream, and the name there. All of it is in the name of its assignment (`link_key`), as a list in JSON. Listings show
an id of eight digits, as RabbitMQ does; two links with the same id are unlikely, and restarted together.

Never federated are the default exchange, internal exchanges, queues with the argument `x-internal-purpose`, streams,
and exclusive queues: a queue of one connection is of no use to another broker.

The *digest* of a link tells whether a worker has to begin anew: it covers everything that the link is made from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from leveret.base.json_values import Json
from leveret.base.safe_regex import BadPattern, compiled, finds
from leveret.metadata.federation.parameters import (
    ALL,
    UPSTREAM,
    UPSTREAM_PATTERN,
    UPSTREAM_SET,
    Upstream,
    read_upstream,
)
from leveret.metadata.model.hidden_queues import is_hidden_queue
from leveret.metadata.rules.policies import EXCHANGE, STREAM, Policies, queue_kind
from leveret.metadata.shovel.records import LINK, LINKS_MAX, WorkKey
from leveret.protocol.tables import canonical

if TYPE_CHECKING:
    from leveret.metadata.model.records import ExchangeSpec, QueueSpec
    from leveret.metadata.store import Metadata

Kind = Literal["exchange", "queue"]
POLICY_KEYS: Final = (UPSTREAM, UPSTREAM_SET, UPSTREAM_PATTERN)
PURPOSE: Final = "x-internal-purpose"


@dataclass(frozen=True, slots=True)
class Link:
    """Messages of an upstream come to an exchange or a queue of this cluster."""

    vhost: str
    kind: Kind
    name: str
    upstream: Upstream
    there: str  # The name of the exchange or queue upstream.
    policy: str
    spec: ExchangeSpec | QueueSpec
    digest: str

    @property
    def key(self) -> WorkKey:
        return link_key(self.vhost, self.kind, self.name, self.upstream.name, self.there)


def link_key(vhost: str, kind: str, name: str, upstream: str, there: str) -> WorkKey:
    return WorkKey(LINK, vhost, json.dumps([kind, name, upstream, there], separators=(",", ":")))


def link_parts(key: WorkKey) -> tuple[str, str, str, str]:
    """Return what a link is of: exchange or queue, its name, the upstream, and the name there. Raises ValueError."""
    parts = _parts(key.name)
    if parts is None:
        raise ValueError(f"not the name of a link: {key.name}")
    return parts


def is_link_name(name: str) -> bool:
    """Return whether a name of an assignment can be read by `link_parts`."""
    return _parts(name) is not None


@lru_cache(maxsize=2 * LINKS_MAX)
def _parts(name: str) -> tuple[str, str, str, str] | None:
    try:
        kind, here, upstream, there = json.loads(name)
    except (ValueError, TypeError):
        return None
    return (kind, here, upstream, there) if {type(one) for one in (kind, here, upstream, there)} == {str} else None


def link_id(key: WorkKey) -> str:
    """Return the eight hexadecimal digits that stand for a link."""
    return hashlib.blake2b(json.dumps(key).encode(), digest_size=4).hexdigest()


class Upstreams:
    """The upstreams and sets of all vhosts, as they were when this was made."""

    def __init__(self, metadata: Metadata) -> None:
        self.values: dict[str, dict[str, Mapping[str, Json]]] = {}
        self.users: dict[tuple[str, str], str] = {}
        self.sets: dict[tuple[str, str], list[Json]] = {}
        for (component, vhost, name), value in metadata.parameters.items():
            if component == UPSTREAM and isinstance(value, dict):
                self.values.setdefault(vhost, {})[name] = value
                self.users[vhost, name] = metadata.parameter_users.get((component, vhost, name), "")
            elif component == UPSTREAM_SET and isinstance(value, list):
                self.sets[vhost, name] = value

    def named(self, vhost: str, definition: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
        """Yield the upstreams that the definition of a policy names, each with its keys. Those that do not exist are
        left out."""
        values = self.values.get(vhost, {})
        one, of_set, pattern = (definition.get(key) for key in POLICY_KEYS)
        if isinstance(one, str):
            if one in values:
                yield one, values[one]
        elif of_set == ALL:
            yield from values.items()
        elif isinstance(of_set, str):
            for element in self.sets.get((vhost, of_set), ()):
                name = element.get("upstream") if isinstance(element, dict) else None
                if isinstance(element, dict) and isinstance(name, str) and name in values:
                    yield name, {**values[name], **{key: one for key, one in element.items() if key != "upstream"}}
        elif isinstance(pattern, str):
            yield from self._matching(values, pattern)

    def _matching(
        self, values: Mapping[str, Mapping[str, Json]], pattern: str
    ) -> Iterator[tuple[str, Mapping[str, Json]]]:
        try:
            ready = compiled(pattern)
        except BadPattern:  # It was checked when it was set, perhaps by another version.
            return
        for name, value in values.items():
            if finds(ready, name):
                yield name, value


def federates(definition: Mapping[str, Json]) -> bool:
    return any(key in definition for key in POLICY_KEYS)


def links_of(
    metadata: Metadata, policies: Policies, upstreams: Upstreams, kind: Kind, vhost: str, name: str, cluster: str
) -> dict[WorkKey, Link]:
    """Return the links of an exchange or a queue. `cluster` is the name of this one."""
    spec = _spec(metadata, kind, vhost, name)
    if spec is None:
        return {}
    of = EXCHANGE if kind == "exchange" else queue_kind(spec.arguments)
    effective = policies.effective(of, vhost, name)
    if effective.policy is None or not federates(effective.definition):
        return {}
    found: dict[WorkKey, Link] = {}
    for upstream_name, value in upstreams.named(vhost, effective.definition):
        try:
            upstream = read_upstream(upstream_name, value, vhost, upstreams.users[vhost, upstream_name])
        except ValueError:  # It was checked when it was set, perhaps by another version.
            continue
        there = (upstream.exchange if kind == "exchange" else upstream.queue) or name
        made_from = [_facts(spec), dict(value), upstream.user, effective.policy, cluster]
        link = Link(vhost, kind, name, upstream, there, effective.policy, spec, _digest(made_from))
        found.setdefault(link.key, link)  # A set may name an upstream twice.
    return found


def _spec(metadata: Metadata, kind: Kind, vhost: str, name: str) -> ExchangeSpec | QueueSpec | None:
    """Return an exchange or a queue if it can be federated."""
    if kind == "exchange":
        exchange = metadata.exchanges.get((vhost, name))
        return None if exchange is None or not name or exchange.internal else exchange
    queue = metadata.queues.get((vhost, name))
    if queue is None or queue.exclusive or PURPOSE in queue.arguments or is_hidden_queue(name):
        return None
    return None if queue_kind(queue.arguments) == STREAM else queue


def _facts(spec: ExchangeSpec | QueueSpec) -> list[str]:
    """Return what a link takes from its exchange or queue, as texts."""
    kind = getattr(spec, "type", "")
    return [kind, str(spec.durable), str(spec.auto_delete), ascii(canonical(spec.arguments))]


def _digest(value: Sequence[object]) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()
