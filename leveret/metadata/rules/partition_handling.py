"""What a node does when it cannot reach others: `cluster_partition_handling`.

Changing metadata and promoting a mirror take a majority, whatever the strategy: a cluster never becomes two. The
strategy says what a node does for its *clients* while it cannot reach others:

pause_minority     With half of the voters or fewer in contact, itself included, a node pauses: it cannot know what the
                   others have agreed on meanwhile. The default here. One of two nodes that is certain that it may
                   becomes the only voter (`node/cluster/two_nodes.py`), and is a majority.
stop_processing    The same under another name.
pause_if_all_down  A node pauses while none of the listed nodes is in contact. A listed node never pauses. Names on the
                   list that are no members are ignored; with no member on it, no node pauses.
ignore             A node keeps serving. Messages for a queue that cannot be reached are kept on this node's disk and
sent
                   when the link is back.
autoheal           As `ignore`, but kept messages are sent only if there is room for them, and those that have expired
are
                   dropped.
autoupgrade        `autoheal`, and the log says so.

"In contact" means a session with the peer (see `links.failure_detector`): frames pass in both directions. A link on
which only one direction works does not count, for either end. A node does not ask what others can reach: in a partial
partition (a reaches c, b reaches c, a and b do not reach each other) each node goes by its own sessions, and all three
have a majority. Hence no live member is stopped because of what one other node believes.

A node pauses at the moment when a session ends, before its mirrors react to that. It resumes only when it has also
caught up with the metadata that was agreed on without it; otherwise clients would see old metadata.

These never pause: a node that is not a voter yet (it is joining, and does not serve), one that was removed (it is about
to stop), and one that is alone in its cluster. A member that was a voter (the other of two went on without it) needs a
majority of the voters in contact.

This module decides, and records which nodes are missing since when. `node/cluster/partition_pause.py` closes and opens
the listeners.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal, NamedTuple

from leveret.base.json_values import Json

PARAMETER: Final = "cluster_partition_handling"  # The global parameter that overrides the configuration.
NODES_MAX: Final = 64
NODE_NAME_BYTES_MAX: Final = 255

Recover = Literal["ignore", "autoheal"]
RECOVER: Final[tuple[Recover, ...]] = ("ignore", "autoheal")


class BadHandling(ValueError):
    """A value of `cluster_partition_handling` is invalid; the text says why."""


class Strategy(Enum):
    """The values of `cluster_partition_handling`."""

    PAUSE_MINORITY = "pause_minority"
    STOP_PROCESSING = "stop_processing"
    PAUSE_IF_ALL_DOWN = "pause_if_all_down"
    IGNORE = "ignore"
    AUTOHEAL = "autoheal"
    AUTOUPGRADE = "autoupgrade"


_MINORITY: Final = frozenset({Strategy.PAUSE_MINORITY, Strategy.STOP_PROCESSING})
_HEALING: Final = frozenset({Strategy.AUTOHEAL, Strategy.AUTOUPGRADE})


@dataclass(frozen=True)
class PartitionHandling:
    """A strategy with its options."""

    strategy: Strategy = Strategy.PAUSE_MINORITY
    nodes: tuple[str, ...] = ()  # For pause_if_all_down.
    recover: Recover = "ignore"  # For pause_if_all_down: what a node in a partition does that is not paused.

    @property
    def pauses_minority(self) -> bool:
        return self.strategy in _MINORITY

    @property
    def spools(self) -> bool:
        """Whether a node keeps publishes for queues that it cannot reach."""
        return self.strategy not in _MINORITY

    @property
    def heals(self) -> bool:
        """Whether kept messages are sent only if there is room, and without those that have expired."""
        if self.strategy is Strategy.PAUSE_IF_ALL_DOWN:
            return self.recover == "autoheal"
        return self.strategy in _HEALING

    def as_json(self) -> dict[str, Json]:
        if self.strategy is not Strategy.PAUSE_IF_ALL_DOWN:
            return {"strategy": self.strategy.value}
        return {"strategy": self.strategy.value, "nodes": list(self.nodes), "recover": self.recover}

    def __str__(self) -> str:
        name: str = self.strategy.value
        if self.strategy is not Strategy.PAUSE_IF_ALL_DOWN:
            return name
        return f"{name} (nodes: {', '.join(self.nodes)}; recover: {self.recover})"


DEFAULT: Final = PartitionHandling()


# -- Reading -----------------------------------------------------------------------------------------------------------


def parse(strategy: str, nodes: Sequence[str] = (), recover: str | None = None) -> PartitionHandling:
    """Return a strategy with its options. Raises `BadHandling`."""
    try:
        chosen = Strategy(strategy)
    except ValueError:
        raise BadHandling(f"one of {', '.join(one.value for one in Strategy)}, not {strategy!r}") from None
    if chosen is not Strategy.PAUSE_IF_ALL_DOWN:
        for given, what in ((nodes, "nodes"), (recover, "recover")):
            if given:
                raise BadHandling(f"{what} belongs to pause_if_all_down, and {strategy} is chosen")
        return PartitionHandling(chosen)
    names = tuple(dict.fromkeys(nodes))
    if not names:
        raise BadHandling("pause_if_all_down needs nodes: those of which at least one must be in contact")
    if len(names) > NODES_MAX:
        raise BadHandling(f"pause_if_all_down takes at most {NODES_MAX} nodes, not {len(names)}")
    for name in names:
        if not name or len(name.encode("utf-8", "replace")) > NODE_NAME_BYTES_MAX:
            raise BadHandling(f"a node's name has 1 to {NODE_NAME_BYTES_MAX} bytes, unlike {name[:40]!r}")
    for value in RECOVER:
        if recover in (None, value):
            return PartitionHandling(chosen, names, value)
    raise BadHandling(f"recover is one of {', '.join(RECOVER)}, not {recover!r}")


def from_json(value: Json) -> PartitionHandling:
    """Read the value of the global parameter: a strategy's name, or an object. Raises `BadHandling`."""
    if isinstance(value, str):
        return parse(value)
    if not isinstance(value, Mapping):
        raise BadHandling("a strategy's name, or an object with strategy, nodes and recover")
    unknown = sorted(set(value) - {"strategy", "nodes", "recover"})
    if unknown:
        raise BadHandling(f"strategy, nodes and recover are known here, {unknown[0]!r} is not")
    strategy, nodes, recover = value.get("strategy"), value.get("nodes", []), value.get("recover")
    if not isinstance(strategy, str):
        raise BadHandling("strategy is a name")
    if not isinstance(nodes, list):
        raise BadHandling("nodes is a list of names")
    names = [one for one in nodes if isinstance(one, str)]
    if len(names) != len(nodes):
        raise BadHandling("nodes is a list of names")
    if recover is not None and not isinstance(recover, str):
        raise BadHandling(f"recover is one of {', '.join(RECOVER)}")
    return parse(strategy, names, recover)


def fault_of(value: Json) -> str | None:
    """Return why a value of the global parameter is invalid; None if it is not."""
    try:
        from_json(value)
    except BadHandling as error:
        return str(error)
    return None


# -- Deciding ----------------------------------------------------------------------------------------------------------


def why_pause(
    handling: PartitionHandling,
    me: str,
    members: Collection[str],
    voters: Collection[str],
    in_sight: Collection[str],
    demoted: bool = False,
) -> str | None:
    """Return why a node with these others in contact must pause; None: it serves. `demoted`: it was a voter and is a
    learner now."""
    if (me not in voters and not demoted) or len(members) == 1:
        return None
    seen = {name for name in members if name in in_sight or name == me}
    if handling.pauses_minority:
        count = sum(name in seen for name in voters)
        is_majority = 2 * count > len(voters)
        return None if is_majority else f"{count} of {len(voters)} nodes are in contact, which is no majority"
    if handling.strategy is Strategy.PAUSE_IF_ALL_DOWN:
        preferred = [name for name in handling.nodes if name in members]
        if preferred and seen.isdisjoint(preferred):
            return f"of the nodes {', '.join(preferred)} none is in contact"
    return None


class Loss(NamedTuple):
    """The loss of a peer's session."""

    since_ms: int  # Wall clock, for display.
    reason: str
    silent: bool  # It was noticed by silence, so it is the network: a process that ends closes its links.


class Partitions:
    """The peers that a node cannot reach, and whether the node is paused."""

    def __init__(self, me: str, handling: PartitionHandling = DEFAULT) -> None:
        self.me = me
        self.handling = handling
        self.members: frozenset[str] = frozenset({me})
        self.demoted = False  # It was a voter and is a learner now.
        self.voters: frozenset[str] = frozenset()
        self._has_counted = False  # It has been a voter.
        self.in_sight: set[str] = set()
        self.lost: dict[str, Loss] = {}
        self.paused_ms: int | None = None  # Since when it is paused, wall clock.
        self.pauses = 0
        self.reason = ""  # Why it is paused.

    @property
    def paused(self) -> bool:
        return self.paused_ms is not None

    def set_members(self, members: Collection[str], voters: Collection[str], wall_ms: int) -> None:
        """Set the members of the cluster. One that was never in contact is missing from now on."""
        self.members, self.voters = frozenset(members) | {self.me}, frozenset(voters)
        self.demoted = self.me in members and self.me not in voters and (self.demoted or self._has_counted)
        self._has_counted = self.me in members and (self._has_counted or self.me in voters)
        for name in [name for name in self.lost if name not in self.members]:
            del self.lost[name]
        for name in sorted(self.members - self.in_sight - self.lost.keys() - {self.me}):
            self.lost[name] = Loss(wall_ms, "not met yet", False)

    def on_up(self, peer: str) -> None:
        self.in_sight.add(peer)
        self.lost.pop(peer, None)

    def on_down(self, peer: str, reason: str, silent: bool, wall_ms: int) -> None:
        self.in_sight.discard(peer)
        if peer in self.members:
            self.lost[peer] = Loss(wall_ms, reason, silent)

    def must_pause(self) -> str | None:
        return why_pause(self.handling, self.me, self.members, self.voters, self.in_sight, self.demoted)

    def needs_any_of(self, peers: Collection[str]) -> bool:
        """Return whether this node serves, and must pause without these peers. Of two voters either may go on without
        the other, and neither knows which: see `leveret.node.cluster.two_nodes`."""
        if len(self.voters) < 3 or self.must_pause() is not None:
            return False
        left = self.in_sight.difference(peers)
        return why_pause(self.handling, self.me, self.members, self.voters, left, self.demoted) is not None

    def look(self, caught_up: bool, wall_ms: int) -> bool | None:
        """Decide whether to pause. True: pause now; False: resume now; None: no change."""
        reason = self.must_pause()
        if reason is not None:
            self.reason = reason
            if self.paused_ms is None:
                self.paused_ms = wall_ms
                self.pauses += 1
                return True
        elif self.paused_ms is not None and caught_up:
            self.paused_ms, self.reason = None, ""
            return False
        return None


class ContactCounts:
    """Counts the voters that each node says it is in contact with. A leader needs that in every tick, and with fifty
    nodes that is fifty times fifty look-ups: so only nodes whose report has changed are counted again."""

    def __init__(self) -> None:
        self._voters: frozenset[str] = frozenset()
        self._counts: dict[str, tuple[frozenset[str], int]] = {}

    def count(self, voters: Iterable[str], names: Iterable[str], says: Mapping[str, frozenset[str]]) -> dict[str, int]:
        """Return the counts for those of `names` that have reported. Every node is in contact with itself."""
        known = frozenset(voters)
        if known != self._voters:
            self._voters = known
            self._counts.clear()
        counts: dict[str, int] = {}
        for name in names:
            others = says.get(name)
            if others is not None:
                counted = self._counts.get(name)
                if counted is None or counted[0] is not others:
                    counted = self._counts[name] = others, len(known & (others | {name}))
                counts[name] = counted[1]
        return counts
