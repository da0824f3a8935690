"""Claims client ids for connections of this node, releases them, and changes the sessions that belong to them.

    claim ──▶ one command for all claims of a turn ──▶ every node applies it ──▶ the former owner is told, at any node
                                                                            └──▶ `then` of the new one, after that

**Why the metadata.** A client id has one owner at a time if all nodes agree on the order of claims, and a majority is
what agrees. The alternative, a node that keeps the ids of a part of the clients, would have to be found, lost and
replaced; and a registry that nodes merge after a partition has two owners until then. Nodes without a majority claim
nothing: their clients are refused, and those that are connected stay, but can change nothing of their sessions. A claim
costs a row of some hundred bytes in a command that it shares with all clients that connect at the same moment.

**Epochs** fence: see `metadata.client_sessions`. A connection that was taken over learns it when its node applies the
claim of the other. The answer of a claim waits until all nodes that the leader is connected to have applied it
(`links.proposals`): so by then every connection that lost the id has been told, except at a node without a link, which
is told when it has one again.

**One flush at a time.** While commands of this node are under way, what comes next gathers: releases, changes, claims.
Many clients make large commands, not many.

**A claim without an answer.** If the cluster does not agree in time, the client is refused; yet the claim may be in the
log and be applied later. It is released then.

**Older nodes.** The commands are those of the third version of the protocol between nodes, and an older node cannot
read them: it would stop. So clients are refused while there is a link to one. A node that is down is not asked: upgrade
all nodes before MQTT is configured.

**The leader's part** (`lead`): sessions whose time is over, wills whose delay is over, and sessions lost with their
node are named to the cluster, which ends them or makes their wills due (`SweepSessions`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from leveret.base.timers import Timers
from leveret.broker.client_ids.wills import Wills
from leveret.metadata.model.refusals import Refusal, no_vhost
from leveret.metadata.mqtt.commands import (
    ChangeSessions,
    ClaimClientIds,
    ClaimRow,
    DueRow,
    Ids,
    NumberedIds,
    ReleaseClientIds,
    ReleaseRow,
    SessionRow,
    SweepSessions,
)
from leveret.metadata.mqtt.events import SessionChanged

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.metadata.model.commands import Command
    from leveret.metadata.mqtt.records import ClientSession, Ranges, Subscription, Will
    from leveret.metadata.store import Applied

ROWS_MAX: Final = 2_000  # In one command.
BYTES_MAX: Final = 1 << 20  # In one command, unless one row alone has more.
ROW_OVERHEAD: Final = 200
WILL_BYTES_MAX: Final = 4 << 20
CHANGE_BYTES_MAX: Final = 1 << 20  # Of one change. Text may take twelve times as much in a command.
PACKET_ID_MAX: Final = 65_535
SUBSCRIPTIONS_MAX: Final = 16_384  # Of one session.
ABANDONED_MAX: Final = 100_000
SESSIONS_MAX: Final = 1_000_000  # Of one vhost, unless the node says otherwise.
SWEPT_MAX: Final = 1_000  # Sessions in one command.
RETRY_MS: Final = 1_000

TAKEN_OVER: Final = Refusal(410, "another connection has taken over the client id")
T = TypeVar("T")
Key = tuple[str, str]  # A vhost and a client id.


class Owner(Protocol):
    """A connection that owns a client id."""

    def on_taken_over(self) -> None:
        """Another connection owns the client id now. There is nothing to release."""

    def on_claim_lost(self) -> None:
        """The claim is void: this node was taken for lost, or the session was deleted. There is nothing to release."""


@dataclass(slots=True)
class Claim:
    """A client id as a connection wants it. Without `clean_start`, the session that is there goes on. `expiry_s`: how
    long the session outlives the connection; `NEVER_S` is for ever. `queues` end with the session."""

    vhost: str
    client_id: str
    user: str
    clean_start: bool
    expiry_s: int
    queues: tuple[str, ...] = ()
    will: Will | None = None


class Claimed(NamedTuple):
    """The answer to a claim. `is_present`: the session was there before."""

    session: ClientSession
    is_present: bool


@dataclass(slots=True)
class SessionChange:
    """A change of a session. `received` is added before `completed` is removed, and `releasing` before `released`."""

    subscribe: dict[str, Subscription] = field(default_factory=dict)
    unsubscribe: tuple[str, ...] = ()
    received: NumberedIds = ()
    completed: Ids = ()
    releasing: Ids = ()
    released: Ids = ()
    taken_of: str = ""
    taken: Ranges = ()


class _State(Enum):
    CLAIMING = auto()  # Not agreed on, as far as this node knows.
    AGREED = auto()  # Applied here; the connection was not told yet.
    HELD = auto()
    LOST = auto()  # Taken over before the connection was told.


_NEXT: Final = {
    _State.CLAIMING: (_State.AGREED, _State.LOST),
    _State.AGREED: (_State.HELD, _State.LOST),
    _State.HELD: (_State.LOST,),
    _State.LOST: (),
}


class _Holding:
    """A client id that a connection of this node claims or owns."""

    __slots__ = ("epoch", "has_will", "owner", "state")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.state = _State.CLAIMING
        self.epoch = 0  # Of the claim, when it is agreed on.
        self.has_will = False

    def become(self, state: _State) -> None:
        assert state in _NEXT[self.state]
        self.state = state


class _Claiming:
    """One claim, until it is answered. It is apart from what it claims since ten thousand connections hold that."""

    __slots__ = ("claimed", "holding", "row", "then")

    def __init__(self, row: ClaimRow, owner: Owner, then: Callable[[Claimed | Refusal], None]) -> None:
        self.row = row
        self.then = then
        self.holding = _Holding(owner)
        self.claimed: Claimed | None = None

    def on_agreed(self, claimed: Claimed) -> None:
        self.claimed, holding = claimed, self.holding
        holding.become(_State.AGREED)
        holding.epoch, holding.has_will = claimed.session.epoch, claimed.session.will is not None


class _Changing(NamedTuple):
    row: SessionRow
    then: Callable[[Refusal | None], None]


class ClientIds:
    """The client ids that connections of this node own, and all sessions of the cluster as this node sees them."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.sessions_max = SESSIONS_MAX
        self.wills = Wills(broker)
        self.token = broker.random_numbers.draw(1 << 52)  # So that no claim is taken for one of an earlier run.
        self.claims: deque[_Claiming] = deque()  # Gathered, as are the next two.
        self.releases: deque[ReleaseRow] = deque()
        self.changes: deque[_Changing] = deque()
        self.claiming: dict[int, _Claiming] = {}  # By token: proposed, and not answered.
        self.abandoned: dict[int, None] = {}  # Tokens of claims that were refused for want of an answer.
        self.held: dict[Key, _Holding] = {}
        self.under_way = 0  # Commands of the last flush that are not answered.
        self.older: dict[str, None] = {}  # Nodes that do not know the commands.
        self.times: Timers[Key] = Timers()  # When the leader has to do something about a session.
        self.is_sweeping = False
        for session in broker.metadata.sessions:
            self._set_time((session.vhost, session.client_id), session)

    # -- For sessions --------------------------------------------------------------------------------------------

    def claim(self, claim: Claim, owner: Owner, then: Callable[[Claimed | Refusal], None]) -> None:
        """Own a client id. The former owner has been told when `then` is called."""
        if claim.vhost not in self.broker.metadata.vhosts:
            then(no_vhost(claim.vhost))
            return
        for node in self.older:
            then(Refusal(541, f"node {node} has a version that does not know MQTT: upgrade it"))
            return
        self.token += 1
        row = ClaimRow(
            claim.vhost, claim.client_id, self.token, claim.user, claim.clean_start, claim.expiry_s, claim.queues,
            claim.will,
        )  # fmt: skip
        claiming = _Claiming(row, owner, then)
        if _claim_bytes(claiming) > WILL_BYTES_MAX:
            then(Refusal(406, f"a will has at most {WILL_BYTES_MAX} bytes"))
        else:
            self.claims.append(claiming)

    def release(self, vhost: str, client_id: str, epoch: int, publish_will: bool, expiry_s: int | None = None) -> None:
        """The connection with this claim is closed. `expiry_s` replaces that of the session."""
        holding = self.held.get((vhost, client_id))
        if holding is not None and holding.epoch == epoch:
            del self.held[vhost, client_id]
        self.releases.append(ReleaseRow(vhost, client_id, epoch, self.broker.wall_ms, publish_will, expiry_s))

    def change(
        self, vhost: str, client_id: str, epoch: int, change: SessionChange, then: Callable[[Refusal | None], None]
    ) -> None:
        """Change the session of the connection with this claim. Changes are carried out in the order of the calls."""
        for first, count, *_ in (*change.received, *change.completed, *change.releasing, *change.released):
            assert 0 < first <= first + count - 1 <= PACKET_ID_MAX
        session = self.find(vhost, client_id)
        if session is None or session.epoch != epoch:
            then(TAKEN_OVER)
        elif change.subscribe and len(session.subscriptions) + len(change.subscribe) > SUBSCRIPTIONS_MAX:
            then(Refusal(406, f"a session has at most {SUBSCRIPTIONS_MAX} subscriptions"))
        else:
            row = SessionRow(
                vhost, client_id, epoch, change.subscribe, change.unsubscribe, change.received, change.completed,
                change.releasing, change.released, change.taken_of, change.taken,
            )  # fmt: skip
            changing = _Changing(row, then)
            if _change_bytes(changing) > CHANGE_BYTES_MAX:
                then(Refusal(406, f"a change of a session has at most {CHANGE_BYTES_MAX} bytes"))
            else:
                self.changes.append(changing)

    def find(self, vhost: str, client_id: str) -> ClientSession | None:
        """Return the session of a client id, as far as it is known at this node."""
        return self.broker.metadata.sessions.get(vhost, client_id)

    def owner(self, vhost: str, client_id: str) -> Owner | None:
        """Return the connection of this node that has a client id."""
        holding = self.held.get((vhost, client_id))
        return None if holding is None else holding.owner

    def sessions(self, vhost: str | None = None) -> Iterator[ClientSession]:
        """Yield the sessions of a vhost, or all. Nothing may change meanwhile."""
        table = self.broker.metadata.sessions
        return iter(table) if vhost is None else iter(table.by_vhost.get(vhost, {}).values())

    def on_peer_up(self, node: str, knows_mqtt: bool) -> None:
        """There is a link to a node."""
        if not knows_mqtt:
            self.older[node] = None

    def on_peer_down(self, node: str) -> None:
        self.older.pop(node, None)

    # -- Agreement -----------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Called in turns in which something has gathered: propose it, unless commands are under way."""
        if self.under_way:
            return
        releases = _portion(self.releases, lambda row: len(row.client_id))
        changes = _portion(self.changes, _change_bytes)
        claims = _portion(self.claims, _claim_bytes)
        self.under_way = bool(releases) + bool(changes) + bool(claims)
        if releases:
            self.broker.propose(ReleaseClientIds(tuple(releases)), self._on_answer, patient=True)
        if changes:
            self._propose(ChangeSessions(tuple(one.row for one in changes)), lambda done: _tell(changes, done))
        if claims:
            broker, rows = self.broker, tuple(one.row for one in claims)
            self.claiming = {one.row.token: one for one in claims}
            command = ClaimClientIds(broker.node_name, broker.run, rows, broker.wall_ms, self.sessions_max)
            self._propose(command, lambda done: self._on_claimed(claims, done))

    def _propose(self, command: Command, then: Callable[[Applied], None]) -> None:
        def on_answer(applied: Applied) -> None:
            self._on_answer(applied)
            then(applied)

        self.broker.propose(command, on_answer)

    def _on_answer(self, applied: Applied) -> None:
        self.under_way -= 1

    def _on_claimed(self, claims: list[_Claiming], applied: Applied) -> None:
        self.claiming.clear()
        for claiming in claims:
            row, holding, claimed, then = claiming.row, claiming.holding, claiming.claimed, claiming.then
            if holding.state is _State.AGREED and applied.refused is None:
                holding.become(_State.HELD)
                assert claimed is not None
                then(claimed)
            elif holding.state is _State.LOST:
                then(TAKEN_OVER)
            elif holding.state is _State.AGREED:  # It came with a snapshot, and nobody knows how.
                self.release(row.vhost, row.client_id, holding.epoch, publish_will=False)
                then(applied.refused or TAKEN_OVER)
            elif applied.refused is not None:
                self._abandon(row.token)
                then(applied.refused)
            else:
                is_gone = row.vhost not in self.broker.metadata.vhosts
                full = Refusal(406, f"vhost '{row.vhost}' has reached its limit of sessions")
                then(no_vhost(row.vhost) if is_gone else full)

    def _abandon(self, token: int) -> None:
        self.abandoned[token] = None
        if len(self.abandoned) > ABANDONED_MAX:
            del self.abandoned[next(iter(self.abandoned))]

    def on_changed(self, event: SessionChanged) -> None:
        """The cluster has agreed on a change of a session."""
        old, new = event.old, event.new
        session = new or old
        assert session is not None
        key = session.vhost, session.client_id
        if new is None:
            self.times.clear(key)
        else:
            self._set_time(key, new)
        is_claim = new is not None and (old is None or old.epoch != new.epoch)
        if is_claim or new is None or not new.node:
            self._on_lost(key, is_claim)
        if is_claim and new is not None and new.node == self.broker.node_name:
            self._on_own(key, Claimed(new, event.is_present))

    def _on_lost(self, key: Key, is_claim: bool) -> None:
        """The connection that owns a client id, if it is one of this node, does so no longer."""
        holding = self.held.pop(key, None)
        if holding is None:
            return
        was = holding.state
        holding.become(_State.LOST)
        if is_claim and holding.has_will:
            # It is closed without a goodbye. Had there been one, it would not be held any more.
            self.release(*key, holding.epoch, publish_will=True)
        if was is _State.HELD:
            holding.owner.on_taken_over() if is_claim else holding.owner.on_claim_lost()

    def _on_own(self, key: Key, claimed: Claimed) -> None:
        token = claimed.session.token
        claiming = self.claiming.get(token)
        if claiming is not None:
            claiming.on_agreed(claimed)
            self.held[key] = claiming.holding
        elif token in self.abandoned:
            del self.abandoned[token]
            self.release(*key, claimed.session.epoch, publish_will=False)

    # -- The leader's part ---------------------------------------------------------------------------------------

    def _set_time(self, key: Key, session: ClientSession) -> None:
        due_ms = session.due_ms
        if due_ms is None:
            self.times.clear(key)
        else:
            self.times.move(key, due_ms)

    def lead(self) -> None:
        """Called in each tick at the leader: see the top of this module."""
        self.wills.lead()
        if self.is_sweeping:
            return
        due = self.times.due(self.broker.wall_ms)
        if not due:
            return
        for key in due[SWEPT_MAX:]:
            self.times.set(key, 0)
        found = [(key, self.find(*key)) for key in due[:SWEPT_MAX]]
        rows = tuple(DueRow(*key, session.epoch) for key, session in found if session is not None)

        def on_agreed(applied: Applied) -> None:
            self.is_sweeping = False
            if applied.refused is not None:
                for row in rows:
                    if self.find(row.vhost, row.client_id) is not None:
                        self.times.set((row.vhost, row.client_id), self.broker.wall_ms + RETRY_MS)

        self.is_sweeping = True
        self.broker.propose(SweepSessions(self.broker.wall_ms, rows), on_agreed)


def _tell(changes: list[_Changing], applied: Applied) -> None:
    changed = {
        (one.new.vhost, one.new.client_id, one.new.epoch)
        for one in applied.events
        if isinstance(one, SessionChanged) and one.new is not None
    }
    for row, then in changes:
        is_stale = (row.vhost, row.client_id, row.epoch) not in changed
        then(applied.refused or (TAKEN_OVER if is_stale else None))


def _change_bytes(changing: _Changing) -> int:
    row = changing.row
    ranges = len(row.received) + len(row.completed) + len(row.releasing) + len(row.released) + len(row.taken)
    return len(row.client_id) + 24 * ranges + sum(map(len, row.subscribe)) + sum(map(len, row.unsubscribe))


def _claim_bytes(claiming: _Claiming) -> int:
    will = claiming.row.will
    retained = 0 if will is None or will.retained is None else will.retained.size
    return len(claiming.row.client_id) + (0 if will is None else len(will.content) + retained)


def _portion(gathered: deque[T], size_of: Callable[[T], int]) -> list[T]:
    """Take as many rows from the front as a command may have."""
    taken: list[T] = []
    size = 0
    while gathered and len(taken) < ROWS_MAX:
        size += ROW_OVERHEAD + size_of(gathered[0])
        if taken and size > BYTES_MAX:
            break
        taken.append(gathered.popleft())
    return taken
