"""The state of a leader: how far each follower is, what a majority has, and a hand-over under way.

A `Leadership` exists from the moment its node wins an election until it steps down, within one term. What only a leader
may use is dropped with it, so nothing can be carried over into another term by mistake.

**Lost messages.** There is no timer for resending. When a follower answers a heartbeat and lacks entries, the leader
sends an append at the index where it believes the follower to be. That is accepted (nothing was lost) or rejected (then
the leader probes for the last index in common).

**Snapshots.** The machine never holds a snapshot's bytes. It says which chunk should go to which follower, and the
shell fills it in. While a snapshot is being sent its file must not be deleted (`snapshots_in_use`).
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.raft.log import EntryLog
from leveret.raft.messages import (
    Append,
    AppendResponse,
    Applied,
    Entry,
    Heartbeat,
    HeartbeatResponse,
    Outbox,
    SnapshotChunk,
    SnapshotMeta,
    SnapshotResponse,
    TimeoutNow,
    ToLeader,
)
from leveret.raft.options import Options
from leveret.raft.progress import Progress, State


class Leadership:
    """What a node knows and does while it leads, within one term."""

    def __init__(
        self, own_id: str, term: int, log: EntryLog, snapshot: SnapshotMeta, options: Options, outbox: Outbox
    ) -> None:
        self.id = own_id
        self.term = term
        self.log = log
        self.snapshot = snapshot  # The newest that is durable here.
        self.options = options
        self.outbox = outbox
        self.followers: dict[str, Progress] = {}
        self.elapsed = 0  # Ticks since the majority was checked.
        self.heartbeat_elapsed = 0
        self.uncommitted_bytes = sum(len(entry.data) for entry in log.between(log.commit, log.last_index))
        self.successor: str | None = None
        self.transfer_elapsed = 0
        self.on_membership()

    def on_membership(self) -> None:
        """Track each member of the membership in force, and no other node."""
        ids = self.log.membership.ids
        for peer in ids:
            if peer != self.id and peer not in self.followers:
                self.followers[peer] = Progress(self.log.last_index)
        for peer in [peer for peer in self.followers if peer not in ids]:
            del self.followers[peer]
        if self.successor is not None and self.successor not in self.log.membership.voter_ids:
            self.successor = None

    # Counting

    @property
    def has_committed(self) -> bool:
        """Whether an entry of this term is committed: only then is it known what earlier terms committed."""
        return self.log.term_at(self.log.commit) == self.term

    def majority_match(self, own: int) -> int:
        """Return the highest index that a majority of the voters has on disk. `own`: the last one this node has."""
        indexes = [own if voter == self.id else self.followers[voter].match for voter in self.log.membership.voter_ids]
        indexes.sort(reverse=True)
        return indexes[len(indexes) // 2]

    def count(self) -> bool:
        """Commit what a majority has on disk. Return whether that committed anything.

        Only an entry of this leader's own term counts by the number of its copies: one of an older term may be on a
        majority and still be overwritten by a leader that never had it. It is committed by what follows it.
        """
        log = self.log
        index = self.majority_match(log.stable)
        if index <= log.commit or log.term_at(index) != self.term:
            return False
        self.uncommitted_bytes -= sum(len(entry.data) for entry in log.between(log.commit, index))
        log.commit_to(index)
        return True

    # Time

    def tick(self) -> bool:
        """Advance the clock. False: no majority has answered, and the leader must step down."""
        if self.successor is not None:
            self.transfer_elapsed += 1
            if self.transfer_elapsed >= self.options.election_ticks:
                self.successor = None
        self.elapsed += 1
        if self.elapsed >= self.options.election_ticks:
            self.elapsed = 0
            if not self._check_majority():
                return False
        for peer, follower in self.followers.items():
            if follower.state is State.SNAPSHOT:
                follower.silent_ticks += 1
                if follower.silent_ticks >= self.options.snapshot_ticks:
                    follower.probe(follower.match + 1)
                    self.replicate(peer, follower)
        self.heartbeat_elapsed += 1
        if self.heartbeat_elapsed >= self.options.heartbeat_ticks:
            self.heartbeat_elapsed = 0
            self.heartbeat()
        return True

    def _check_majority(self) -> bool:
        membership = self.log.membership
        alive = sum(voter == self.id or self.followers[voter].active for voter in membership.voter_ids)
        for follower in self.followers.values():
            follower.active = False
        return membership.is_majority(alive)

    def heartbeat(self) -> None:
        for peer, follower in self.followers.items():
            self._send_heartbeat(peer, follower)

    def _send_heartbeat(self, peer: str, follower: Progress) -> None:
        # Only as far as the follower's log is known to agree: later entries in it may be another leader's.
        commit = follower.told_commit = min(follower.match, self.log.commit)
        self.outbox.early.append(Heartbeat(self.id, peer, self.term, commit))

    # Sending

    def flush(self) -> None:
        """Send what followers lack, once a turn."""
        for peer, follower in self.followers.items():
            if follower.next <= self.log.last_index or follower.state is State.PROBE:
                self.replicate(peer, follower)
            # Tell of a commit that no append carries, so that followers apply it before the next heartbeat.
            if follower.told_commit < min(follower.match, self.log.commit) and follower.state is State.REPLICATE:
                self._send_heartbeat(peer, follower)

    def replicate(self, peer: str, follower: Progress, probe_gap: bool = False) -> None:
        """Send the entries that a follower lacks, within its window. `probe_gap`: send at least an empty append."""
        options, log = self.options, self.log
        while True:
            if follower.state is State.SNAPSHOT or (follower.state is State.PROBE and follower.probed):
                return
            if len(follower.inflight) >= options.inflight_max or follower.inflight_bytes >= options.inflight_bytes_max:
                return
            prev = follower.next - 1
            prev_term = log.term_at(prev)
            if prev_term is None:
                if follower.active:  # No snapshot is read from disk for a node that is down.
                    follower.send_snapshot(self.snapshot)
                    self._send_chunk(peer, follower)
                return
            entries, size = log.limited(prev, options.append_entries_max, options.append_bytes_max)
            if not entries and not probe_gap and follower.state is State.REPLICATE:
                return
            probe_gap = False
            self.outbox.early.append(Append(self.id, peer, self.term, prev, prev_term, log.commit, entries))
            if follower.state is State.PROBE:
                follower.probed = True
                return
            if entries:
                follower.told_commit = max(follower.told_commit, min(log.commit, entries[-1].index))
                follower.sent(entries[-1].index, size)

    def _send_chunk(self, peer: str, follower: Progress) -> None:
        assert follower.snapshot is not None
        follower.silent_ticks = 0
        chunk = SnapshotChunk(self.id, peer, self.term, follower.snapshot, follower.chunk_offset)
        self.outbox.chunks.append(chunk)

    @property
    def snapshots_in_use(self) -> set[int]:
        return {follower.snapshot.index for follower in self.followers.values() if follower.snapshot is not None}

    # Answers

    def on_answer(self, message: ToLeader) -> bool:
        """Handle a follower's answer. Return whether it committed anything."""
        follower = self.followers.get(message.sender)
        if follower is None:
            return False
        follower.active = True
        match message:
            case AppendResponse():
                follower.applied = max(follower.applied, message.applied)
                return self._on_append_response(message, follower)
            case HeartbeatResponse():
                follower.applied = max(follower.applied, message.applied)
                self._on_heartbeat_response(message, follower)
            case Applied():
                follower.applied = max(follower.applied, message.applied)
            case SnapshotResponse():
                self._on_snapshot_response(message, follower)
        return False

    def _on_append_response(self, message: AppendResponse, follower: Progress) -> bool:
        if not message.accepted:
            self._on_rejected(message, follower)
            return False
        assert message.index <= self.log.last_index  # In a term no follower has more than the leader.
        news = follower.matched(message.index)
        caught_up = follower.state is State.SNAPSHOT and follower.match >= self.log.offset
        if follower.state is State.PROBE or caught_up:
            follower.replicate()
        committed = news and self.count()
        if follower.next <= self.log.last_index:
            self.replicate(message.sender, follower)
        if self.successor == message.sender and follower.match == self.log.last_index:
            self._send_timeout_now(message.sender)
        return committed

    def _on_rejected(self, message: AppendResponse, follower: Progress) -> None:
        if follower.state is State.SNAPSHOT or message.index <= follower.match:
            return
        if follower.state is State.PROBE and message.index != follower.next - 1:
            return  # An answer to an older probe.
        agreed = message.hint
        if agreed >= self.log.offset:
            agreed = self.log.agreement(agreed, message.hint_term)[0]
        follower.probe(max(min(agreed + 1, message.index), follower.match + 1))
        self.replicate(message.sender, follower)

    def _on_heartbeat_response(self, message: HeartbeatResponse, follower: Progress) -> None:
        follower.probed = False
        full = (
            len(follower.inflight) >= self.options.inflight_max
            or follower.inflight_bytes >= self.options.inflight_bytes_max
        )
        if full:
            follower.free_one()
        if follower.match < self.log.last_index:
            self.replicate(message.sender, follower, probe_gap=True)

    def _on_snapshot_response(self, message: SnapshotResponse, follower: Progress) -> None:
        if follower.snapshot is None or follower.snapshot.index != message.index:
            return
        if message.received > follower.chunk_offset or message.received == 0 < follower.chunk_offset:
            follower.chunk_offset = message.received  # 0: the follower lost its chunks and starts again.
            self._send_chunk(message.sender, follower)

    # Handing over

    def transfer(self, successor: str) -> None:
        self.successor, self.transfer_elapsed = successor, 0
        follower = self.followers[successor]
        if follower.match == self.log.last_index:
            self._send_timeout_now(successor)

    def _send_timeout_now(self, successor: str) -> None:
        self.outbox.early.append(TimeoutNow(self.id, successor, self.term))

    def leave(self) -> None:
        """Tell the others that this node's removal is committed, and let the best of them stand for election."""
        for peer, follower in self.followers.items():
            self.replicate(peer, follower, probe_gap=True)
            self._send_heartbeat(peer, follower)
        voters = [voter for voter in self.log.membership.voter_ids if voter != self.id]
        self._send_timeout_now(max(voters, key=lambda voter: (self.followers[voter].match, self._priority(voter))))

    def _priority(self, member_id: str) -> int:
        member = self.log.membership.get(member_id)
        return member.priority if member is not None else 0

    def preferred(self) -> str | None:
        """Return a voter that should lead instead: active, of higher priority than this node, nearly caught up."""
        near = self.log.last_index - self.options.promote_lag_max
        better = [
            (self._priority(voter), self.followers[voter].match, voter)
            for voter in self.log.membership.voter_ids
            if voter != self.id and self.followers[voter].active and self.followers[voter].match >= near
        ]
        best = max(better, default=None)
        return best[2] if best is not None and best[0] > self._priority(self.id) else None

    def is_near(self, member_id: str) -> bool:
        """Return whether a learner lacks so little that as a voter it would not hold the others up."""
        follower = self.followers[member_id]
        near = follower.match + self.options.promote_lag_max >= self.log.last_index
        return near and follower.active and follower.state is State.REPLICATE

    def applied_by(self, ids: Iterable[str], own: int) -> int:
        """Return the index that this node and all members among `ids` have applied."""
        return min([own, *(self.followers[peer].applied for peer in ids if peer in self.followers)])

    def on_proposed(self, entry: Entry) -> None:
        self.uncommitted_bytes += len(entry.data)
