"""The mirroring of a queue, from its policy, its arguments and the configuration.

The first of these that says anything counts:

1. `x-queue-type: quorum`. Such a queue has `x-quorum-initial-group-size` members, or three, that replicate
   synchronously and synchronise by themselves, and only a mirror in sync is ever promoted. `ha-` keys have no effect on
   it. The same holds for `stream`, which has as many members as `initial-cluster-size` in its policy or
   `x-initial-cluster-size` says, else all nodes. A larger number later adds members; a smaller one removes none.
2. A policy with `ha-mode`.
3. The arguments `ha-mode`, `ha-params` and `ha-sync-mode` of a classic queue, which mean what they mean in a policy.
   RabbitMQ stores them and ignores them: a client that sends them believes that the queue is mirrored.
4. The argument `ha-mirror-queues`: true mirrors the queue as the configuration's default says, or if there is none, on
   all nodes; false exempts it from the default.
5. The configuration's default, for all queues or for those that it names.

RabbitMQ's keys mean what they mean there, with one exception. `ha-promote-on-failure` is `when-synced` unless a policy
says otherwise: when the master's node dies and no mirror is in sync, the queue is down until that node returns, or
until an operator decides to lose the messages that only that node has. RabbitMQ's `always` loses them without asking.

Keys that RabbitMQ does not have:

- `ha-replication`: `sync`, or `async`: messages are confirmed when the master has them. Those that the mirrors lack
  when it dies are lost, confirmed or not.
- `ha-sync-strategy`: how a mirror that returns or is new gets the older messages. `incremental` fetches what it lacks;
  `full` drops what it has and fetches all; `event` fetches nothing: a mirror gets new messages only, and is in sync
  when all older ones have been consumed.
- `ha-sync-blocking`: with true, the queue is blocked while mirrors synchronise, as in RabbitMQ: nothing is delivered,
  and publishes wait. That takes less time. Without it the queue is used meanwhile.
- `ha-replication-window`: an object. With `messages`, `bytes` or `seconds`, publishers wait when an asynchronous mirror
  is behind by more. `hours` ("22:00-06:00", several with commas, in UTC) are those in which mirrors may synchronise;
  new messages are replicated at all hours.
- `ha-forbid-copying`: no mirror is added and none synchronises unless an operator asks for it. Existing mirrors stay.
  In a policy it applies to its queues, in an operator policy to a vhost, as the global parameter of that name (or
  `mirroring.forbid_copying` in the configuration) to the cluster.
- `ha-spread`: the name of a node label; the copies should be on nodes with different values of it (`placement`). For
  queues without it in their policy, and for quorum queues, `mirroring.spread` in the configuration counts.
- `queue-master-label`: "zone=a" puts a new queue's master on a running node with that label, if there is one, and keeps
  it on such nodes when masters are rebalanced.
- `queue-master-pinned`: rebalancing leaves such queues where they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from leveret.base.json_values import Json
    from leveret.protocol.tables import Field, Table

QUORUM: Final = "quorum"  # The `ha-mode` of queues whose type determines the members.
QUORUM_MEMBERS: Final = 3
STREAM_MEMBERS: Final = 1 << 16  # All nodes.
FORBID: Final = "ha-forbid-copying"
LABEL: Final = "queue-master-label"
PINNED: Final = "queue-master-pinned"
MIRROR_ARGUMENTS: Final = ("ha-mirror-queues", "ha-mirror- queues")  # The second is a spelling that clients use.
HA_ARGUMENTS: Final = ("ha-mode", "ha-params", "ha-sync-mode")
EVERYWHERE: Final[Mapping[str, Json]] = {"ha-mode": "all", "ha-sync-mode": "automatic"}
LOCATORS: Final = ("min-masters", "client-local", "random")
LEADER_LOCATORS: Final = {
    "client-local": "client-local",
    "balanced": "min-masters",
    "least-leaders": "min-masters",
    "random": "random",
}
DAY_MINUTES: Final = 24 * 60
LIMITS: Final = ("messages", "bytes", "seconds")


class BadWindow(ValueError):
    """An `ha-replication-window` is invalid; the text says why."""


class Window(NamedTuple):
    """How far an asynchronous mirror may be behind, and when mirrors may be filled. None: no limit."""

    messages: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    hours: tuple[tuple[int, int], ...] = ()  # Begin and end (excluded) in minutes of the day; none: always.

    @property
    def has_limit(self) -> bool:
        return self[:3] != (None, None, None)

    def is_exceeded(self, messages: int, size: int, seconds: float) -> bool:
        return any(
            limit is not None and value > limit
            for value, limit in zip((messages, size, seconds), self[:3], strict=True)
        )

    def is_open(self, wall_ms: int) -> bool:
        if not self.hours:
            return True
        minute = wall_ms // 60_000 % DAY_MINUTES
        return any(
            begin <= minute < end if begin < end else minute >= begin or minute < end for begin, end in self.hours
        )


ALWAYS: Final = Window()


def parse_window(value: Json) -> Window:
    """Return the window in a policy's value. Raises `BadWindow`."""
    if not isinstance(value, dict) or not value:
        raise BadWindow(f'takes an object with any of {", ".join(LIMITS)}, hours')
    unknown = [name for name in value if name not in (*LIMITS, "hours")]
    if unknown:
        raise BadWindow(f"knows {', '.join(LIMITS)} and hours, but not {', '.join(unknown)}")
    limits: dict[str, int | float] = {}
    for name in LIMITS:
        limit = value.get(name)
        if name not in value:
            continue
        if isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
            raise BadWindow(f"takes a number above 0 for {name}")
        if name != "seconds" and not isinstance(limit, int):
            raise BadWindow(f"takes a whole number for {name}")
        limits[name] = limit
    hours = value.get("hours", "")
    if not isinstance(hours, str) or ("hours" in value and not hours):
        raise BadWindow('takes hours such as "22:00-06:00", several with commas')
    spans = tuple(_span(text.strip()) for text in hours.split(",")) if hours else ()
    return Window(hours=spans, **limits)  # type: ignore[arg-type]


def _span(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,2})(?::(\d\d))?-(\d{1,2})(?::(\d\d))?", text, re.ASCII)
    if match is not None:
        begin = int(match[1]) * 60 + int(match[2] or 0)
        end = int(match[3]) * 60 + int(match[4] or 0)
        minutes = (int(match[2] or 0), int(match[4] or 0))
        if begin != end and max(minutes) < 60 and begin < DAY_MINUTES and end <= DAY_MINUTES:
            return begin, end
    raise BadWindow(f'takes hours such as "22:00-06:00", several with commas, and not "{text}"')


@dataclass(frozen=True)
class Defaults:
    """The defaults of the configuration. They should be the same on all nodes: the master's determine the members of
    the ring, a mirror's determine how it synchronises."""

    definition: Mapping[str, Json] = field(default_factory=dict)  # Like a policy's; empty: queues are not mirrored.
    queues: frozenset[str] | None = None  # The names of the queues that it is for; None: all.
    locator: str = "client-local"
    leader_locator: str = "client-local"  # For quorum queues.
    spread: str = ""  # The `ha-spread` of queues without one in their policy.
    forbid_copying: bool = False
    fill_bytes_per_tick: int = 0  # 0: no limit.
    fill_messages: int = 0  # In one piece, unless a policy says otherwise; 0: limited by bytes only.


def unknown_nodes(defaults: Defaults, members: Iterable[str]) -> list[str]:
    """Return the nodes that the configuration names for mirrors and that are not in the cluster."""
    named = defaults.definition.get("ha-params") if defaults.definition.get("ha-mode") == "nodes" else None
    return sorted({str(name) for name in named} - set(members)) if isinstance(named, list) else []


@dataclass(frozen=True)
class Rules:
    """The mirroring of one queue."""

    placement: Mapping[str, Json]  # For `placement.wanted_ring`; without ha-mode the queue is not mirrored.
    automatic: bool = False
    forbidden: bool = False
    asynchronous: bool = False
    strategy: str = "incremental"
    blocking: bool = False  # The queue is blocked while mirrors synchronise.
    window: Window = ALWAYS
    batch: int = 0  # Messages in a piece of a synchronisation.
    on_shutdown_always: bool = False
    on_failure_always: bool = False
    locator: str = "client-local"
    label: tuple[str, str] | None = None  # A label and its value, of the nodes on which the master should be.
    pinned: bool = False  # Rebalancing does not move it.

    @property
    def fills(self) -> bool:
        """Whether a mirror that lacks messages synchronises by itself, in the hours of its window."""
        return self.automatic and not self.forbidden and self.strategy != "event"

    @property
    def sync_refused(self) -> str | None:
        """The reason for which even an operator cannot synchronise the mirrors; None: there is none."""
        return "its policy's ha-sync-strategy is event, which copies nothing" if self.strategy == "event" else None


def rules(definition: Mapping[str, Json], name: str, arguments: Table, defaults: Defaults, forbidden: bool) -> Rules:
    """Return the mirroring of a queue. `definition`: of its policies. `forbidden`: copying is, in the whole cluster."""
    forbidden = forbidden or defaults.forbid_copying or definition.get(FORBID) is True
    spread: dict[str, Json] = {"ha-spread": defaults.spread} if defaults.spread else {}
    if is_quorum(arguments) or is_stream(arguments):
        wanted = _string(definition, "queue-leader-locator") or _text(arguments, "x-queue-leader-locator")
        return Rules(
            {"ha-mode": QUORUM, "ha-params": _members(definition, arguments), **spread},
            automatic=True,
            batch=defaults.fill_messages,
            locator=LEADER_LOCATORS[wanted or defaults.leader_locator],
            label=parse_label(definition.get(LABEL)),
            pinned=definition.get(PINNED) is True,
        )
    settings = _ha_settings(definition, name, arguments, defaults)
    window = settings.get("ha-replication-window")
    batch = settings.get("ha-sync-batch-size")
    failure = settings.get("ha-promote-on-failure")
    return Rules(
        spread | {key: settings[key] for key in ("ha-mode", "ha-params", "ha-spread") if key in settings},
        automatic=settings.get("ha-sync-mode") == "automatic",
        forbidden=forbidden,
        asynchronous=settings.get("ha-replication") == "async",
        strategy=_string(settings, "ha-sync-strategy") or "incremental",
        blocking=settings.get("ha-sync-blocking") is True,
        window=ALWAYS if window is None else parse_window(window),
        batch=batch if isinstance(batch, int) else defaults.fill_messages,
        # As in RabbitMQ: a policy against promotion on failure is against promotion on shutdown all the more.
        on_shutdown_always=settings.get("ha-promote-on-shutdown") == "always" and failure != "when-synced",
        on_failure_always=failure == "always",
        locator=_text(arguments, "x-queue-master-locator")
        or _string(definition, "queue-master-locator")
        or defaults.locator,
        label=parse_label(definition.get(LABEL)),
        pinned=definition.get(PINNED) is True,
    )


def _ha_settings(
    definition: Mapping[str, Json], name: str, arguments: Table, defaults: Defaults
) -> Mapping[str, Json]:
    if "ha-mode" in definition:
        return definition
    if "ha-mode" in arguments:
        return {key: _json(arguments[key]) for key in HA_ARGUMENTS if key in arguments}
    argument = next((arguments[key].value for key in MIRROR_ARGUMENTS if key in arguments), None)
    if argument is True:
        return defaults.definition or EVERYWHERE
    if argument is None and (defaults.queues is None or name in defaults.queues):
        return defaults.definition
    return {}


def _members(definition: Mapping[str, Json], arguments: Table) -> Json:
    """Return the number of members of a quorum queue or a stream. As in RabbitMQ, the policy comes before the argument.
    """
    if not is_stream(arguments):
        size = arguments.get("x-quorum-initial-group-size")
        return QUORUM_MEMBERS if size is None else size.value
    size = arguments.get("x-initial-cluster-size")
    return definition.get("initial-cluster-size", STREAM_MEMBERS if size is None else size.value)


def _json(field: Field) -> Json:
    return [str(one.value) for one in field.value] if field.kind == "A" else field.value


def parse_label(value: Json) -> tuple[str, str] | None:
    """Return a label and its value from "zone=a"; None for any other text."""
    name, sign, wanted = value.partition("=") if isinstance(value, str) else ("", "", "")
    return (name.strip(), wanted.strip()) if name.strip() and sign and wanted.strip() else None


def is_quorum(arguments: Table) -> bool:
    return _text(arguments, "x-queue-type") == "quorum"


def is_stream(arguments: Table) -> bool:
    return _text(arguments, "x-queue-type") == "stream"


def _text(arguments: Table, key: str) -> str | None:
    found = arguments.get(key)
    return found.value if found is not None and isinstance(found.value, str) else None


def _string(definition: Mapping[str, Json], key: str) -> str | None:
    value = definition.get(key)
    return value if isinstance(value, str) else None
