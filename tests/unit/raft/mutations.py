"""Deliberate bugs: pieces of functions that are replaced, and the tests that must notice."""

from __future__ import annotations

from functools import partial
from typing import Any, Final, Literal, NamedTuple

import pytest

from tests.support.mutating import Change, failing, replace

from .lab import Lab
from .scenarios import SCENARIOS

NoticedBy = Literal["scenarios", "log tests"]


class Mutation(NamedTuple):
    name: str
    change: Change
    noticed_by: NoticedBy


def put(patch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    replace(patch, mutation.name, mutation.change)


def failing_scenario() -> str | None:
    return failing((name, partial(_play, *scenario)) for name, scenario in SCENARIOS.items())


def _play(options: dict[str, Any], script: str) -> None:
    Lab(**options).play(script)


def _noticed_by(by: NoticedBy, *bugs: tuple[str, str, str, str]) -> list[Mutation]:
    return [Mutation(name, Change(*change), by) for name, *change in bugs]


MUTATIONS: Final = [
    *_noticed_by(
        "scenarios",
        ("votes for an older log", "Raft._on_vote_request", "granted = free and current", "granted = free"),
        (
            "votes for all who ask",
            "Raft._on_vote_request",
            "free = self.vote == message.sender or (self.vote is None and self.leader is None)",
            "free = True or (self.vote is None and self.leader is None)",
        ),
        (
            "forgets its vote",
            "Raft.ready",
            "state, shown = HardState(self.term, self.vote), (self.role, self.leader, self.term)",
            "state, shown = HardState(self.term, None), (self.role, self.leader, self.term)",
        ),
        ("forgets its term", "Raft.ready", "state if state != self._written else None", "None"),
        ("speaks in an unwritten term", "Raft.ready", "if state != self._written: ...", "if False: ..."),
        (
            "answers before the disk has it",
            "Raft.ready",
            "if state != self._written: ...",
            "if state != self._written: ...\noutbox.early, outbox.later = outbox.early + outbox.later, []",
        ),
        (
            "goes on without the other of two before anything is agreed on",
            "Raft.dismiss",
            "leadership.has_committed and self._is_other_of_two(peer)",
            "self._is_other_of_two(peer)",
        ),
        (
            "goes on without the others of three",
            "Raft._is_other_of_two",
            "set(self.membership.voter_ids) == two != {peer} and all(two.issuperset(one.voter_ids) for one in open_)",
            "set(self.membership.voter_ids) >= two or all(two.issuperset(one.voter_ids) for one in open_)",
        ),
        (
            "forgets a voter whose removal is not agreed on",
            "Raft._is_other_of_two",
            "two.issuperset(one.voter_ids)",
            "True",
        ),
        (
            "outlives one that has gone on alone",
            "Raft.outlive",
            "self.id not in left.membership.voter_ids or not {self.id, peer}.issuperset(left.membership.voter_ids)",
            "False and not {self.id, peer}.issuperset(left.membership.voter_ids)",
        ),
        (
            "drops what only the dead one had",
            "Raft.outlive",
            "(left.last_term, left.last_index) > (self.log.last_term, self.last_index)",
            "False",
        ),
        (
            "takes over a log that does not go on from its own",
            "Raft._take_over",
            "prev_term is None or prev < self.commit",
            "prev_term is None",
        ),
        (
            "no lease",
            "Raft.step",
            "isinstance(message, VoteRequest) and self._is_led() and not message.forced",
            "False",
        ),
        (
            "an old leader is not told",
            "Raft._on_older_term",
            "self._outbox.later.append(AppendResponse(self.id, message.sender, self.term, False, 0))",
            "pass",
        ),
        (
            "counts pre-votes of an older election",
            "Raft._on_vote_response",
            "message.pre and message.granted and message.term != self.term + 1",
            "message.pre and False",
        ),
        (
            "counts pre-votes as votes",
            "Raft._on_vote_response",
            "self.role is not (Role.PRE_CANDIDATE if message.pre else Role.CANDIDATE)",
            "self.role not in (Role.PRE_CANDIDATE, Role.CANDIDATE)",
        ),
        (
            "counts strangers' votes",
            "Raft._on_vote_response",
            "message.sender not in self.membership.voter_ids",
            "False",
        ),
        ("truncates without a conflict", "Raft._on_append", "log.term_at(entry.index) != entry.term", "True"),
        (
            "accepts more than it was sent",
            "Raft._on_append",
            "self._accept(message.sender, match)",
            "self._accept(message.sender, log.last_index)",
        ),
        (
            "commits more than it was sent",
            "Raft._on_append",
            "log.commit_to(min(message.commit, match))",
            "log.commit_to(min(message.commit, log.last_index))",
        ),
        ("the bug of 2015", "Raft.change", "not leadership.has_committed", "False"),
        ("two changes at a time", "Raft.change", "not self.log.is_membership_committed", "False"),
        ("promotes who has nothing", "Raft.change", "not leadership.is_near(change.id)", "False"),
        (
            "a removed leader stays",
            "Raft._on_committed",
            "leadership is None or self.id in self.membership.voter_ids or not self.log.is_membership_committed",
            "True or not self.log.is_membership_committed",
        ),
        (
            "nobody can lead when a leader crashed while it removed itself",
            "Raft._may_lead",
            "return self.id in self.log.memberships[-2].membership.voter_ids",
            "return False",
        ),
        (
            "learners stand for election",
            "Raft.campaign",
            "not self._may_lead() or self._install is not None",
            "self._install is not None",
        ),
        ("no pre-vote", "Raft.campaign", "if forced: ...", "if True: ..."),
        (
            "a pre-vote changes the term",
            "Raft._on_newer_term",
            "isinstance(message, VoteRequest) or message.granted",
            "False",
        ),
        ("takes messages for others", "Raft.step", "message.to != self.id", "False"),
        ("takes late snapshots", "Raft._on_chunk", "meta.index <= log.commit", "False"),
        ("a successor does not say who sent it", "Raft.campaign", "self._forced = forced", "self._forced = False"),
        ("nobody defers", "Raft._priority_delay", "own is None or self._campaign_failed", "True"),
        ("the lower defer for ever", "Raft._priority_delay", "own is None or self._campaign_failed", "own is None"),
        (
            "defers to the dead leader",
            "Raft._priority_delay",
            "others = [member.priority for member in self.membership.voters if member.id != self.leader]",
            "others = [member.priority for member in self.membership.voters]",
        ),
        (
            "waits out the silence of a closed link",
            "Raft.on_link_lost",
            "peer == self.leader and self.role is Role.FOLLOWER",
            "False and self.role is Role.FOLLOWER",
        ),
        ("its leader never knows what is applied", "Raft.advance", "self.applied > applied", "False"),
        (
            "answers of an older term count",
            "Raft.step",
            "message.term < self.term",
            "message.term < self.term and not isinstance(message, AppendResponse)",
        ),
        (
            "snapshots are not checked",
            "Raft._assemble",
            "return data if zlib.crc32(data) == chunk.checksum else None",
            "return data",
        ),
        ("compaction is asked for too late", "Raft.compact", "meta.index <= self.snapshot.index", "False"),
        (
            "figure 8",
            "Leadership.count",
            "index <= log.commit or log.term_at(index) != self.term",
            "index <= log.commit",
        ),
        (
            "counts its own copy before the disk",
            "Leadership.count",
            "index = self.majority_match(log.stable)",
            "index = self.majority_match(log.last_index)",
        ),
        (
            "tells to commit what may differ",
            "Leadership._send_heartbeat",
            "commit = follower.told_commit = min(follower.match, self.log.commit)",
            "commit = follower.told_commit = self.log.commit",
        ),
        (
            "does not notice lost appends",
            "Leadership._on_heartbeat_response",
            "self.replicate(message.sender, follower, probe_gap=True)",
            "pass",
        ),
        (
            "does not notice lost snapshots",
            "Leadership.tick",
            "follower.silent_ticks >= self.options.snapshot_ticks",
            "False",
        ),
        ("a full window stays full", "Leadership._on_heartbeat_response", "if full: ...", "if False: ..."),
        (
            "half is a majority",
            "Leadership.majority_match",
            "return indexes[len(indexes) // 2]",
            "return indexes[(len(indexes) - 1) // 2]",
        ),
        ("does not step down alone", "Leadership.tick", "not self._check_majority()", "False"),
        ("hands over to who lags", "Leadership.transfer", "follower.match == self.log.last_index", "True"),
        (
            "a failed handover lasts for ever",
            "Leadership.tick",
            "self.transfer_elapsed >= self.options.election_ticks",
            "False",
        ),
        (
            "no limit to what is in flight",
            "Leadership.replicate",
            "len(follower.inflight) >= options.inflight_max or follower.inflight_bytes >= options.inflight_bytes_max",
            "follower.inflight_bytes >= options.inflight_bytes_max",
        ),
        (
            "news of commits wait for a heartbeat",
            "Leadership.flush",
            "follower.told_commit < min(follower.match, self.log.commit)",
            "False",
        ),
        (
            "leaves without a word",
            "Leadership.leave",
            "self._send_timeout_now(max(voters, key=lambda voter: (self.followers[voter].match, "
            "self._priority(voter))))",
            "max(voters, key=lambda voter: (self.followers[voter].match, self._priority(voter)))",
        ),
        ("a truncated membership stays in force", "EntryLog.truncate", "self.memberships[-1].index >= first", "False"),
        (
            "what was replaced counts as written",
            "EntryLog.truncate",
            "self.stable = min(self.stable, first - 1)",
            "pass",
        ),
        (
            "what was replaced meanwhile counts as written",
            "EntryLog.on_stable",
            "self.term_at(entry.index) == entry.term",
            "True",
        ),
        (
            "a snapshot keeps a tail of another history",
            "EntryLog.restore",
            "self.entries = []\n"
            "self.offset, self.offset_term = meta.index, meta.term\n"
            "self.stable = self.commit = self.last_index = meta.index",
            "self.entries = self.entries[meta.index - self.offset :]\n"
            "self.offset, self.offset_term = meta.index, meta.term\n"
            "self.stable = self.commit = meta.index",
        ),
        (
            "a membership waits to be committed",
            "EntryLog.membership",
            "return self.memberships[-1].membership",
            "return self.membership_at(self.commit)",
        ),
    ),
    *_noticed_by(
        "log tests",
        ("no sync", "WriteBatch.perform", "disk.sync(self.path)", ""),
        ("no sync of the folder for a new file", "WriteBatch.perform", "self.offset == 0", "False"),
        ("snapshots are not synced", "_write_snapshot", 'disk.sync(f"{folder}/{name}")', ""),
        ("the name of a snapshot is not synced", "_write_snapshot", "disk.sync_folder(folder)", ""),
        (
            "a reset is not read",
            "ConsensusLog._replay",
            "entries, resets_to = [], batch.reset[0]",
            "resets_to = batch.reset[0]",
        ),
        ("a missing reset is not noticed", "ConsensusLog._joined", "self._reset_due = (meta.index, meta.term)", "pass"),
        (
            "the vote is not read",
            "_unpack_body",
            "return Batch(HardState(term, vote or None), commit, reset, entries)",
            "return Batch(HardState(term, None), commit, reset, entries)",
        ),
        (
            "what was replaced is read",
            "ConsensusLog._replay",
            "entries[max(0, position) :] = batch.entries",
            "entries[position : position + len(batch.entries)] = batch.entries",
        ),
        (
            "the last batch is deleted",
            "ConsensusLog.cleanup",
            "segment.index_max > newest or not after.bytes",
            "segment.index_max > newest",
        ),
        (
            "more is deleted than the snapshot has",
            "ConsensusLog.cleanup",
            "segment.index_max > newest",
            "segment.index_max > newest + 5",
        ),
        (
            "the last batch is not made durable again",
            "ConsensusLog._read_segments",
            "self._disk.write(path, last, [stored[last : segment.bytes]])",
            "pass",
        ),
        ("goes on after a failed sync", "ConsensusLog._retry_or_stop", "not undone", "False"),
        (
            "a snapshot is deleted while it is sent",
            "ConsensusLog.cleanup",
            "index < newest and index not in in_use",
            "index < newest",
        ),
    ),
]
