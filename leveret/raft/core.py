"""Raft: how the nodes of a cluster agree on one sequence of commands, as long as a majority of them can talk.

This is a machine: messages and ticks go in, `Ready` comes out, and the same input gives the same output. Its shell owns
the disk, the network, the clock and the state machine. It does, again and again:

    ready = raft.ready()            what to do about all input so far; None if nothing
    send ready.early                these may leave before anything is on disk
    write hard_state, snapshot, entries, and sync        (if ready.must_sync)
    restore the state machine from ready.snapshot, if there is one
    send ready.messages, fill in and send ready.chunks   these must not leave before that sync
    apply ready.committed
    raft.advance(ready)

One Ready is processed at a time. Input that arrives meanwhile goes into the next one, so that under load one sync
serves many messages. The order above is what makes Raft safe:

- A *vote* must be on disk before the candidate gets it. Otherwise a node that crashes and restarts votes twice in one
  term, and there are two leaders.
- An *accepted append* must be on disk before the leader is told, and the leader counts its own copy only once that is
  on disk: a majority that has an entry must still have it after all nodes have crashed.
- A leader's appends promise nothing about its own disk, and travel while it writes. But its *term* must be on disk. A
  leader that is the only voter wins an election without asking anyone; if it sent entries to learners, crashed and
  forgot its term, it would win the same term again and send others under the same index and term. So nothing at all
  leaves early while term or vote are unwritten.

**Elections.** A follower that has heard nothing for a while first asks whether it *would* be elected (pre-vote), and
changes its term only if a majority says yes. So a node that was cut off does not come back with a high term and depose
a working leader. Voters say no while they hear from a leader (its *lease*), unless the leader itself asked for the
election to hand over. A leader that hears from no majority steps down (check-quorum), so that its clients are told
soon. Nodes of a lower priority wait longer the first time, so that a node of a higher one goes first; the second time
they do not, because the node of higher priority may be down.

**Membership** changes by one member at a time and is in force once *appended*. Two majorities of memberships that
differ by one member overlap, which is why there may be no second change before the first is committed, and none before
the leader has committed an entry of its own term: a change of an older leader could still surface, and the two would
differ by two. A leader that removes itself stays until that is committed, without counting itself. If it crashes in
between, its log may be the longest, so it may be elected again although its own membership does not name it; otherwise
no node could be elected.

**Two voters.** A majority of two is two, so a follower that lost its leader can do nothing. A leader that lost its
follower can: no other node can have been elected, and a membership of the leader alone is in force when *the leader*
has appended it. The follower, whose membership still names both, needs the leader's vote and does not get it, because
its log is older. So a leader of two continues by making the other a learner (`dismiss`), without proof that it is down,
if the shell allows that (`dismissable`). A follower can continue (`outlive`) only if it is certain that the other has
stopped, and that the other has not continued without this node before. Either it can read the other's log, and nobody
can write to it: then it does what the two would have done by messages, takes over the entries that only the other's log
has, and stands for election with the vote that the other would give. Or its shell is certain by other means.

**Messages of an older term.** One from a leader is answered, so that the leader learns of the newer term: a node whose
term is ahead would otherwise ignore its leader for ever. All others are dropped: an old acceptance of an index says
nothing about the entry that is at this index now.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from leveret.raft.leader import Leadership
from leveret.raft.log import EntryLog
from leveret.raft.membership import Change, Demote, Membership, Promote, Remove, encode_membership
from leveret.raft.messages import (
    ENTRY_BYTES_MAX,
    NO_SNAPSHOT,
    NO_STATE,
    Append,
    AppendResponse,
    Applied,
    Entry,
    FromLeader,
    HardState,
    Heartbeat,
    HeartbeatResponse,
    Kind,
    Message,
    Outbox,
    Snapshot,
    SnapshotChunk,
    SnapshotMeta,
    SnapshotResponse,
    TimeoutNow,
    VoteRequest,
    VoteResponse,
)
from leveret.raft.options import Options

Draw = Callable[[int], int]

# So many elections in a row have a short timeout after the link to the leader broke: votes can be split.
SHORT_TIMEOUTS_MAX = 8


class Role(IntEnum):
    """The role of a node in its term."""

    FOLLOWER = 0
    PRE_CANDIDATE = 1
    CANDIDATE = 2
    LEADER = 3


class Refused(Exception):
    """A request was refused and has had no effect."""


class NotLeader(Refused):
    """This node does not lead. `leader` does, if it is known."""

    def __init__(self, leader: str | None) -> None:
        super().__init__(f"the leader is {leader}" if leader else "no leader is known")
        self.leader = leader


class Busy(Refused):
    """The request cannot be taken on at the moment; the text says why."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """The position of a proposal in the log. It is committed when an entry of this index *and term* is applied; it is
    lost when one of this index and another term is."""

    index: int
    term: int


class Remains(NamedTuple):
    """The state that a stopped voter has on its disk."""

    hard_state: HardState
    snapshot: SnapshotMeta
    entries: Sequence[Entry]


class FollowerStatus(NamedTuple):
    """A leader's view of one follower, for status pages."""

    id: str
    match: int
    applied: int
    active: bool
    state: str


@dataclass(slots=True)
class Ready:
    """The work for the shell, in this order."""

    early: list[Message]
    hard_state: HardState | None  # None: unchanged.
    snapshot: Snapshot | None  # To write and to restore from; the log starts again after it.
    entries: list[Entry]  # To append. Stored entries from the first one's index on are void.
    commit: int  # Written along with the rest; alone it is no reason to write.
    messages: list[Message]
    chunks: list[SnapshotChunk]
    committed: list[Entry]
    role: Role
    leader: str | None
    term: int

    @property
    def must_sync(self) -> bool:
        return self.hard_state is not None or self.snapshot is not None or bool(self.entries)


class _Assembly:
    """The chunks received so far of a snapshot."""

    __slots__ = ("key", "parts", "received")

    def __init__(self, key: tuple[int, int, int, int]) -> None:
        self.key = key
        self.parts: list[bytes] = []
        self.received = 0


class Raft:
    """One node of a Raft cluster. `draw(n)` returns a random number from 0 to n - 1."""

    def __init__(
        self,
        own_id: str,
        draw: Draw,
        options: Options | None = None,
        *,
        hard_state: HardState = NO_STATE,
        snapshot: SnapshotMeta = NO_SNAPSHOT,
        entries: Sequence[Entry] = (),
        commit: int = 0,
    ) -> None:
        self.id = own_id
        self.draw = draw
        self.options = options or Options()
        self.term, self.vote = hard_state
        self.snapshot = snapshot  # The newest that is durable here, or will be after the current Ready.
        self.log = EntryLog(snapshot, entries, commit)
        self.delivered = snapshot.index  # Entries up to here were given out to be applied.
        self.applied = snapshot.index
        self.role = Role.FOLLOWER
        self.leader: str | None = None
        self.leadership: Leadership | None = None
        self._succession: Change | None = None  # The change that makes this candidate the only voter: see `outlive`.
        self.dismissable: frozenset[str] = frozenset()  # Voters that a leader of two may continue without.
        self._votes: dict[str, bool] = {}
        self._forced = False
        self._elapsed = self._timeout = 0
        self._spread = self.options.election_ticks
        self._campaign_failed = False  # The last campaign led to no leader.
        self.has_forgotten = False  # Entries that were durable here are not in the log: the disk is of an earlier time.
        self._short_timeouts = 0  # So many more elections have a short timeout.
        self._outbox = Outbox()
        self._assembly: _Assembly | None = None
        self._install: Snapshot | None = None
        self._written = hard_state
        self._shown: tuple[Role, str | None, int] = (self.role, self.leader, self.term)
        self._in_flight: Ready | None = None
        self._restart_timeout()

    # Requests of the shell

    @property
    def is_leader(self) -> bool:
        return self.leadership is not None

    @property
    def membership(self) -> Membership:
        """The membership in force, committed or not."""
        return self.log.membership

    @property
    def commit(self) -> int:
        return self.log.commit

    @property
    def last_index(self) -> int:
        return self.log.last_index

    def propose(self, data: bytes) -> Proposed:
        """Append a command. Raises `NotLeader` or `Busy`."""
        return self._append_own(Kind.COMMAND, data)

    def change(self, change: Change) -> Proposed:
        """Append another membership. Raises `NotLeader`, `Busy` or `BadChange`."""
        leadership = self._require_leadership()
        if not self.log.is_membership_committed:
            raise Busy("another change of the membership is under way")
        if not leadership.has_committed:
            raise Busy("the leader is new and has committed nothing yet")
        self.membership.changed(change)  # Raises `BadChange` before any `Busy`.
        if isinstance(change, Promote) and not leadership.is_near(change.id):
            raise Busy(f"{change.id} is still catching up")
        return self._append_change(change)

    def transfer(self, to: str) -> None:
        """Hand leadership over. Proposals are refused until that has happened, or has failed."""
        leadership = self._require_leadership()
        if to == self.id or to not in self.membership.voter_ids:
            raise ValueError(f"{to} is not another voter")
        leadership.transfer(to)

    def snapshot_meta(self, index: int) -> SnapshotMeta | None:
        """Return the metadata of a snapshot of the state machine after it applied `index`. Call it at that moment:
        later the log has moved on. None while a newer snapshot from the leader waits to be installed."""
        assert index <= self.applied
        term = self.log.term_at(index)
        return None if term is None else SnapshotMeta(index, term, self.log.membership_at(index))

    def compact(self, meta: SnapshotMeta, keep: int = 0) -> bool:
        """Drop the entries before a durable snapshot, except the last `keep`: a follower that is only a little behind
        then needs no snapshot. False if a newer one came from the leader meanwhile."""
        if meta.index <= self.snapshot.index:
            return False
        self.snapshot = meta
        if self.leadership is not None:
            self.leadership.snapshot = meta
        through = min(meta.index - keep, self.log.stable, self.delivered)
        if through > self.log.offset:
            self.log.compact(through)
        return True

    @property
    def snapshots_in_use(self) -> set[int]:
        """Indexes of snapshots that are being sent and must not be deleted."""
        return self.leadership.snapshots_in_use if self.leadership is not None else set()

    @property
    def preferred(self) -> str | None:
        """The voter of higher priority to which a leader could hand over."""
        return self.leadership.preferred() if self.leadership is not None else None

    def applied_by(self, ids: Iterable[str]) -> int:
        """Return the index that this node and all of `ids` have applied, as far as this leader knows."""
        return self._require_leadership().applied_by(ids, self.applied)

    def followers(self) -> list[FollowerStatus]:
        if self.leadership is None:
            return []
        items = self.leadership.followers.items()
        return [FollowerStatus(id_, f.match, f.applied, f.active, f.state.name.lower()) for id_, f in items]

    def _require_leadership(self) -> Leadership:
        if self.leadership is None:
            raise NotLeader(self.leader)
        return self.leadership

    def _append_own(self, kind: Kind, data: bytes, is_bounded: bool = True) -> Proposed:
        leadership = self._require_leadership()
        if len(data) > ENTRY_BYTES_MAX:
            raise ValueError(f"a command of {len(data)} bytes; at most {ENTRY_BYTES_MAX} are allowed")
        if leadership.successor is not None:
            raise Busy("leadership is being handed over")
        waiting, size = self.last_index - self.commit, leadership.uncommitted_bytes
        if is_bounded and (waiting >= self.options.uncommitted_max or size >= self.options.uncommitted_bytes_max):
            raise Busy(f"{waiting} entries with {size} bytes wait to be committed")
        entry = Entry(self.last_index + 1, self.term, kind, data)
        self.log.extend([entry])
        leadership.on_proposed(entry)
        return Proposed(entry.index, entry.term)

    # Time

    def tick(self) -> None:
        if self.leadership is not None:
            if not self.leadership.tick() and not any(map(self.dismiss, self.dismissable)):
                self._follow(self.term, None)
            return
        if self._succession is not None:
            return  # It waits for its own disk only.
        self._elapsed += 1
        if self._elapsed >= self._timeout and self._elapsed >= self._timeout + self._priority_delay():
            self._campaign_failed = True
            self.campaign()

    def on_link_lost(self, peer: str) -> None:
        """Note that the link to a node broke. If that was the leader, stand for election soon. If the leader is alive
        after all, nothing happens: voters that still hear from it refuse."""
        if self.leadership is not None and peer in self.leadership.followers:
            follower = self.leadership.followers[peer]
            follower.active = False
            follower.applied = 0  # It may have been restarted, and have applied less.
        elif peer == self.leader and self.role is Role.FOLLOWER:
            self._short_timeouts = SHORT_TIMEOUTS_MAX
            self._restart_timeout()

    def on_majority_linked(self) -> None:
        """Note that there are links to a majority after a start: if no node leads, stand for election soon."""
        if self.leader is None and self.role is Role.FOLLOWER and not self._short_timeouts:
            self._short_timeouts = SHORT_TIMEOUTS_MAX
            self._restart_timeout()

    def _restart_timeout(self) -> None:
        """Draw the time until this node stands for election: a short one if it knows that the leader is gone."""
        ticks = self.options.election_ticks
        if self._short_timeouts:
            self._short_timeouts -= 1
            self._spread = max(2, ticks // 16)
            self._elapsed = ticks
            self._timeout = ticks + self.draw(self._spread)
        else:
            self._spread = ticks
            self._elapsed = 0
            self._timeout = ticks + self.draw(ticks)

    def _priority_delay(self) -> int:
        """Return for how many more ticks to wait, so that voters of a higher priority can go first."""
        own = self.membership.get(self.id)
        if own is None or self._campaign_failed:
            return 0
        others = [member.priority for member in self.membership.voters if member.id != self.leader]
        return self._spread * len({priority for priority in others if priority > own.priority})

    # Two voters

    def dismiss(self, peer: str) -> bool:
        """As the leader of two voters, continue without the other until it is back. Return whether that was possible.
        """
        leadership = self.leadership
        if leadership is None or peer not in self.dismissable:
            return False
        if not (leadership.has_committed and self._is_other_of_two(peer)):
            return False
        leadership.successor = None  # A hand-over to the lost node is cancelled.
        self._append_change(Demote(peer))
        return True

    def outlive(self, peer: str, remains: Remains | None = None, *, forget: bool = False) -> None:
        """Continue without the other of two voters, as the leader, as soon as this node's own vote is on its disk.
        `is_succeeding` is true until then, unless another leader appears. Raises `Refused`.

        UNSAFE, unless it is certain that `peer` does not run, that it does not start before this node has written the
        result to disk, and that it has committed nothing without this node. The last is checked in its log, if that
        can be read (`remains`). Else it must be agreed on that this node is a voter: a leader of one that was about to
        make it one, and died before it had written that, leads alone when it is back. `forget`: remove the other,
        instead of making it a learner that catches up later.
        """
        if not self._is_other_of_two(peer):
            raise Refused(f"{self.id} and {peer} are not the only two voters")
        if self._install is not None or self._assembly is not None:
            raise Refused("a snapshot is on its way from the leader")
        if remains is None and not forget and not self.log.is_membership_committed:
            raise Refused(f"it is not agreed on that {self.id} is a voter")
        term = self.term
        if remains is not None:
            left = EntryLog(remains.snapshot, remains.entries, 0)
            if self.id not in left.membership.voter_ids or not {self.id, peer}.issuperset(left.membership.voter_ids):
                raise Refused(f"{peer} has gone on without {self.id}")
            term = max(term, remains.hard_state.term)
            if (left.last_term, left.last_index) > (self.log.last_term, self.last_index):
                term += 1  # The term in which the other, whose log is longer, would be elected.
                self._take_over(peer, left, term)
        self._follow(max(term, self.term), None)
        self._forced = True
        self._stand()
        if peer in self.membership.voter_ids:  # Otherwise the entries taken over from its log say so.
            self._succession = Remove(peer) if forget else Demote(peer)

    @property
    def is_succeeding(self) -> bool:
        return self._succession is not None

    def _succeed(self, change: Change) -> None:
        """Lead: this node's vote is on disk, and the other, were it asked, would vote for it."""
        self._succession = None
        self._on_elected()
        # Elsewhere a change must wait until an entry of this term is committed. Here no change of an older leader can
        # surface: the only other log that could contain one has none, and no other node has a vote.
        self._append_change(change)

    def _is_other_of_two(self, peer: str) -> bool:
        """Return whether this node and `peer` are the two voters, and no log can contain a third."""
        two = {self.id, peer}
        open_ = [one.membership for one in self.log.memberships if one.index >= self.log.agreed.index]
        return set(self.membership.voter_ids) == two != {peer} and all(two.issuperset(one.voter_ids) for one in open_)

    def _take_over(self, peer: str, left: EntryLog, term: int) -> None:
        """Append the entries that only the other's log has, as if the other were the leader and had sent them."""
        prev = min(self.last_index, left.last_index)
        while prev >= max(self.log.offset, left.offset) and self.log.term_at(prev) != left.term_at(prev):
            prev -= 1
        prev_term = left.term_at(prev) if prev >= self.log.offset else None
        if prev_term is None or prev < self.commit:
            raise Refused(f"the log of {peer} does not go on from what is agreed on here")
        self.step(Append(peer, self.id, term, prev, prev_term, self.commit, left.between(prev, left.last_index)))
        assert (self.log.last_term, self.last_index) == (left.last_term, left.last_index)

    def _append_change(self, change: Change) -> Proposed:
        assert self.leadership is not None
        data = encode_membership(self.membership.changed(change))
        proposed = self._append_own(Kind.MEMBERSHIP, data, is_bounded=isinstance(change, Promote))
        self.leadership.on_membership()
        return proposed

    # Elections

    def campaign(self, *, forced: bool = False) -> None:
        """Stand for election. `forced`: the leader hands over, so no pre-vote is needed."""
        self._restart_timeout()
        self._succession = None
        if not self._may_lead() or self._install is not None:
            return
        self._forced = forced
        if forced:
            self._stand()
            return
        self.role, self.leader = Role.PRE_CANDIDATE, None
        self._request_votes(self.term + 1)

    def _may_lead(self) -> bool:
        if self.id in self.membership.voter_ids:
            return True
        if self.log.is_membership_committed or len(self.log.memberships) < 2:
            return False
        return self.id in self.log.memberships[-2].membership.voter_ids

    def _stand(self) -> None:
        self._enter_term(self.term + 1)
        self.vote = self.id
        self.role, self.leader = Role.CANDIDATE, None
        self._request_votes(self.term)

    def _request_votes(self, term: int) -> None:
        voters = self.membership.voter_ids
        self._votes = {self.id: True} if self.id in voters else {}
        if self._votes and self.membership.is_majority(1):
            self._on_elected()
            return
        last, last_term, pre = self.last_index, self.log.last_term, self.role is Role.PRE_CANDIDATE
        for peer in voters:
            if peer != self.id:
                self._outbox.later.append(VoteRequest(self.id, peer, term, pre, last, last_term, self._forced))

    def _on_vote_request(self, message: VoteRequest) -> None:
        if message.pre:
            free = message.term > self.term
        else:
            free = self.vote == message.sender or (self.vote is None and self.leader is None)
        current = (message.last_term, message.last_index) >= (self.log.last_term, self.last_index)
        granted = free and current
        if not current and self.leader is None and not self._short_timeouts:
            # The sender misses the leader too, and cannot be elected: its log is older. This node may have asked all
            # others before they missed the leader, and would otherwise wait a whole timeout before it asks again.
            self._short_timeouts = 1
            self._restart_timeout()
        if granted and not message.pre:
            self.vote = message.sender
            self._elapsed = 0
        term = message.term if granted else self.term  # A refusal tells the candidate of a newer term.
        self._outbox.later.append(VoteResponse(self.id, message.sender, term, message.pre, granted))

    def _on_vote_response(self, message: VoteResponse) -> None:
        if self.role is not (Role.PRE_CANDIDATE if message.pre else Role.CANDIDATE):
            return
        if message.sender not in self.membership.voter_ids:
            return
        if message.pre and message.granted and message.term != self.term + 1:
            return  # Granted for an election that is over.
        self._votes.setdefault(message.sender, message.granted)
        granted = sum(self._votes.values())
        if self.membership.is_majority(granted):
            self._on_elected()
        elif self.membership.is_majority(len(self._votes) - granted):
            self._follow(self.term, None)

    def _on_elected(self) -> None:
        if self.role is Role.PRE_CANDIDATE:
            self._stand()
            return
        self.role, self.leader, self._campaign_failed = Role.LEADER, self.id, False
        self._assembly = None
        self.leadership = Leadership(self.id, self.term, self.log, self.snapshot, self.options, self._outbox)
        self.log.extend([Entry(self.last_index + 1, self.term, Kind.NOOP, b"")])

    def _enter_term(self, term: int) -> None:
        assert term > self.term
        self.term, self.vote = term, None
        # Messages of an older term must not be sent: some acknowledge entries that will not be written after all.
        self._outbox.early.clear()
        self._outbox.later.clear()
        self._outbox.chunks.clear()

    def _follow(self, term: int, leader: str | None) -> None:
        if self.leadership is not None:
            self.leadership = None
            self._outbox.chunks.clear()
        if term != self.term:
            self._enter_term(term)
        self.role, self.leader = Role.FOLLOWER, leader
        self._votes = {}
        self._succession = None
        self._restart_timeout()

    # Messages

    def step(self, message: Message) -> None:
        """Handle a message of another node."""
        if message.to != self.id:
            return  # Meant for an earlier incarnation of this node.
        if message.term > self.term:
            if isinstance(message, VoteRequest) and self._is_led() and not message.forced:
                return
            self._on_newer_term(message)
        elif message.term < self.term:
            self._on_older_term(message)
            return
        match message:
            case VoteRequest():
                self._on_vote_request(message)
            case VoteResponse():
                self._on_vote_response(message)
            case Append() | Heartbeat() | SnapshotChunk():
                self._on_leader(message)
            case TimeoutNow():
                if message.sender == self.leader and self.role is Role.FOLLOWER:
                    self.campaign(forced=True)
            case _:
                if self.leadership is not None and self.leadership.on_answer(message):
                    self._on_committed()

    def _is_led(self) -> bool:
        """Return whether this node leads, or heard from a leader within the election timeout."""
        return self.leader is not None and (self.is_leader or self._elapsed < self.options.election_ticks)

    def _on_newer_term(self, message: Message) -> None:
        if isinstance(message, VoteRequest | VoteResponse) and message.pre:
            if isinstance(message, VoteRequest) or message.granted:
                return  # Nobody has entered this term yet.
        from_leader = isinstance(message, Append | Heartbeat | SnapshotChunk)
        self._follow(message.term, message.sender if from_leader else None)

    def _on_older_term(self, message: Message) -> None:
        match message:
            case Append() | Heartbeat() | SnapshotChunk():
                self._outbox.later.append(AppendResponse(self.id, message.sender, self.term, False, 0))
            case VoteRequest():
                self._outbox.later.append(VoteResponse(self.id, message.sender, self.term, message.pre, False))
            case _:
                pass  # Answers to requests of an older term.

    def _on_leader(self, message: FromLeader) -> None:
        assert not self.is_leader, "two leaders in one term"
        if self.role is not Role.FOLLOWER or self.leader != message.sender:
            self._follow(self.term, message.sender)
        if self._short_timeouts or self._spread != self.options.election_ticks:
            self._short_timeouts = 0
            self._restart_timeout()
        self._elapsed = 0
        self._campaign_failed = False
        match message:
            case Append():
                self._on_append(message)
            case Heartbeat():
                if message.commit > self.last_index:  # A leader tells of no more than this node has said to have.
                    self.has_forgotten = True
                self.log.commit_to(min(message.commit, self.last_index))
                response = HeartbeatResponse(self.id, message.sender, self.term, self.applied)
                self._outbox.early.append(response)
            case SnapshotChunk():
                self._on_chunk(message)

    def _on_append(self, message: Append) -> None:
        log = self.log
        if message.prev_index < log.commit:
            self._accept(message.sender, log.commit)  # Committed entries are the same in all logs.
            return
        if log.term_at(message.prev_index) != message.prev_term:
            hint, hint_term = log.agreement(message.prev_index - 1, message.prev_term)
            prev, applied = message.prev_index, self.applied
            response = AppendResponse(self.id, message.sender, self.term, False, prev, hint, hint_term, applied)
            self._outbox.later.append(response)
            return
        for position, entry in enumerate(message.entries):
            if log.term_at(entry.index) != entry.term:
                # Only a conflict is a reason to drop entries: a late, shorter append says nothing about the rest.
                if entry.index <= log.last_index:
                    log.truncate(entry.index)
                log.extend(message.entries[position:])
                break
        match = message.prev_index + len(message.entries)
        log.commit_to(min(message.commit, match))
        self._accept(message.sender, match)

    def _accept(self, leader: str, index: int) -> None:
        self._outbox.later.append(AppendResponse(self.id, leader, self.term, True, index, applied=self.applied))

    def _on_chunk(self, message: SnapshotChunk) -> None:
        meta, log = message.meta, self.log
        if meta.index <= log.commit:
            self._accept(message.sender, log.commit)
            return
        if log.term_at(meta.index) == meta.term:
            log.commit_to(meta.index)  # The log has all entries of the snapshot: applying them is less work.
            self._accept(message.sender, meta.index)
            return
        data = self._assemble(message)
        if data is None:
            received = self._assembly.received if self._assembly is not None else 0
            self._outbox.later.append(SnapshotResponse(self.id, message.sender, self.term, meta.index, received))
            return
        log.restore(meta)
        self.snapshot = meta
        self.delivered = meta.index
        self._install = Snapshot(meta, data)
        self._accept(message.sender, meta.index)

    def _assemble(self, chunk: SnapshotChunk) -> bytes | None:
        """Add a chunk to those received. Return the whole data if it was the last one."""
        key = (chunk.meta.index, chunk.meta.term, chunk.total, chunk.checksum)
        if not 0 < chunk.total <= self.options.snapshot_bytes_max:
            self._assembly = None
            return None
        if self._assembly is None or self._assembly.key != key:
            self._assembly = _Assembly(key)
        assembly = self._assembly
        if chunk.offset != assembly.received or chunk.offset + len(chunk.data) > chunk.total:
            return None
        assembly.parts.append(chunk.data)
        assembly.received += len(chunk.data)
        if assembly.received < chunk.total:
            return None
        self._assembly = None
        data = b"".join(assembly.parts)
        return data if zlib.crc32(data) == chunk.checksum else None

    def _on_committed(self) -> None:
        """Step down if the leader's commit index now covers its own removal."""
        leadership = self.leadership
        if leadership is None or self.id in self.membership.voter_ids or not self.log.is_membership_committed:
            return
        leadership.leave()  # This node is no longer a member, and a majority has the entry that says so.
        self._follow(self.term, None)

    # Output

    def ready(self) -> Ready | None:
        """Return the work that follows from all input; None if there is none. Call `advance` before the next call."""
        assert self._in_flight is None
        if self.leadership is not None:
            self.leadership.flush()
        log, outbox = self.log, self._outbox
        state, shown = HardState(self.term, self.vote), (self.role, self.leader, self.term)
        entries = log.between(log.stable, log.last_index)
        committed: list[Entry] = []
        if log.commit > self.delivered:
            count_max = min(self.options.committed_max, log.commit - self.delivered)
            committed, _ = log.limited(self.delivered, count_max, self.options.committed_bytes_max)
        nothing = (
            not (entries or committed or outbox.early or outbox.later or outbox.chunks)
            and self._install is None
            and state == self._written
            and shown == self._shown
        )
        if nothing:
            return None
        if state != self._written:  # Nothing may be sent in a term that is not on disk.
            outbox.later[:0] = outbox.early
            outbox.early = []
        ready = Ready(
            outbox.early,
            state if state != self._written else None,
            self._install,
            entries,
            log.commit,
            outbox.later,
            outbox.chunks,
            committed,
            self.role,
            self.leader,
            self.term,
        )
        outbox.early, outbox.later, outbox.chunks = [], [], []
        self._install = None
        self._written, self._shown = state, shown
        if committed:
            self.delivered = committed[-1].index
        self._in_flight = ready
        return ready

    def advance(self, ready: Ready) -> None:
        """Note that all of a Ready is done: on disk, sent, applied."""
        assert ready is self._in_flight
        self._in_flight = None
        self.log.on_stable(ready.entries)
        applied = self.applied
        if ready.snapshot is not None:
            self.applied = max(self.applied, ready.snapshot.meta.index)
        if ready.committed:
            self.applied = max(self.applied, ready.committed[-1].index)
        if self._succession is not None and self._written == HardState(self.term, self.vote):
            self._succeed(self._succession)
        elif self.leadership is not None:
            if self.leadership.count():
                self._on_committed()
        elif self.applied > applied and self.leader is not None:
            self._outbox.early.append(Applied(self.id, self.leader, self.term, self.applied))
