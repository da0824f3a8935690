"""Deliberate bugs: pieces of source text that are replaced, and the tests that must notice."""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple

import pytest

from leveret.cluster.raft import core, leader, log
from leveret.node import consensus_log
from tests.mutating import failing, replace

from .lab import Lab
from .scenarios import SCENARIOS


class Mutation(NamedTuple):
    name: str
    module: ModuleType
    old: str
    new: str
    noticed_by: Literal["scenarios", "log tests"]


def put(patch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    replace(patch, mutation.name, mutation.module, (mutation.old, mutation.new))


def failing_scenario() -> str | None:
    return failing((name, partial(_play, *scenario)) for name, scenario in SCENARIOS.items())


def _play(options: dict[str, Any], script: str) -> None:
    Lab(**options).play(script)


def _in(module: ModuleType, by: Literal["scenarios", "log tests"], *pieces: tuple[str, str, str]) -> list[Mutation]:
    return [Mutation(name, module, old, new, by) for name, old, new in pieces]


MUTATIONS: Final = [
    *_in(
        core,
        "scenarios",
        ("votes for an older log", "granted = free and current", "granted = free"),
        ("votes for all who ask", "free = self.vote == message.sender or (", "free = True or ("),
        ("forgets its vote", "HardState(self.term, self.vote), (", "HardState(self.term, None), ("),
        ("forgets its term", "            state if state != self._written else None,\n", "            None,\n"),
        ("speaks in an unwritten term", "if state != self._written:  # Nothing", "if False:  # Nothing"),
        (
            "answers before the disk has it",
            "        ready = Ready(\n            outbox.early,\n",
            "        outbox.early, outbox.later = outbox.early + outbox.later, []\n"
            "        ready = Ready(\n            outbox.early,\n",
        ),
        (
            "goes on without the other of two before anything is agreed on",
            "if not (leadership.has_committed and self._is_other_of_two(peer)):",
            "if not self._is_other_of_two(peer):",
        ),
        ("goes on without the others of three", "== two != {peer} and all(", ">= two or all("),
        (
            "forgets a voter whose removal is not agreed on",
            "two.issuperset(one.voter_ids) for one in open_)",
            "True for one in open_)",
        ),
        (
            "outlives one that has gone on alone",
            "if self.id not in left.membership.voter_ids or not {",
            "if False and not {",
        ),
        (
            "drops what only the dead one had",
            "if (left.last_term, left.last_index) > (self.log.last_term, self.last_index):",
            "if False:",
        ),
        (
            "takes over a log that does not go on from its own",
            "if prev_term is None or prev < self.commit:",
            "if prev_term is None:",
        ),
        ("no lease", "isinstance(message, VoteRequest) and self._is_led() and not message.forced", "False"),
        (
            "an old leader is not told",
            "self._outbox.later.append(AppendResponse(self.id, message.sender, self.term, False, 0))",
            "pass",
        ),
        ("counts pre-votes of an older election", "message.granted and message.term != self.term + 1", "False"),
        (
            "counts pre-votes as votes",
            "self.role is not (Role.PRE_CANDIDATE if message.pre else Role.CANDIDATE)",
            "self.role not in (Role.PRE_CANDIDATE, Role.CANDIDATE)",
        ),
        ("counts strangers' votes", "if message.sender not in self.membership.voter_ids:", "if False:"),
        ("truncates without a conflict", "if log.term_at(entry.index) != entry.term:", "if True:"),
        (
            "accepts more than it was sent",
            "        self._accept(message.sender, match)",
            "        self._accept(message.sender, log.last_index)",
        ),
        ("commits more than it was sent", "min(message.commit, match)", "min(message.commit, log.last_index)"),
        ("the bug of 2015", "if not leadership.has_committed:", "if False:"),
        (
            "two changes at a time",
            'if not self.log.is_membership_committed:\n            raise Busy("another',
            'if False:\n            raise Busy("another',
        ),
        ("promotes who has nothing", "not leadership.is_near(change.id)", "False"),
        ("a removed leader stays", "if leadership is None or self.id in self.membership.voter_ids", "if True"),
        (
            "nobody can lead when a leader crashed while it removed itself",
            "return self.id in self.log.memberships[-2].membership.voter_ids",
            "return False",
        ),
        ("learners stand for election", "if not self._may_lead() or self._install", "if self._install"),
        ("no pre-vote", "        if forced:\n", "        if True:\n"),
        (
            "a pre-vote changes the term",
            "            if isinstance(message, VoteRequest) or message.granted:\n",
            "            if False:\n",
        ),
        ("takes messages for others", "if message.to != self.id:", "if False:"),
        ("takes late snapshots", "if meta.index <= log.commit:", "if False:"),
        ("a successor does not say who sent it", "self._forced = forced", "self._forced = False"),
        ("nobody defers", "if own is None or self._fruitless:", "if True:"),
        ("the lower defer for ever", "if own is None or self._fruitless:", "if own is None:"),
        ("defers to the dead leader", "if member.id != self.leader]", "]"),
        ("waits out the silence of a closed link", "elif peer == self.leader and", "elif False and"),
        ("its leader never knows what is applied", "elif self.applied > applied and", "elif False and"),
        (
            "answers of an older term count",
            "elif message.term < self.term:",
            "elif message.term < self.term and not isinstance(message, AppendResponse):",
        ),
        ("snapshots are not checked", "return data if zlib.crc32(data) == chunk.checksum else None", "return data"),
        ("compaction is asked for too late", "if meta.index <= self.snapshot.index:", "if False:"),
    ),
    *_in(
        leader,
        "scenarios",
        ("figure 8", "if index <= log.commit or log.term_at(index) != self.term:", "if index <= log.commit:"),
        (
            "counts its own copy before the disk",
            'majority_of(log.stable, "match")',
            'majority_of(log.last_index, "match")',
        ),
        (
            "reads without a majority",
            "if self.log.membership.voter_ids == (self.id,):\n            self.reads",
            "if True:\n            self.reads",
        ),
        ("reads before it has committed", "        if self.has_committed:\n", "        if True:\n"),
        ("reads by an older word", "        self.round += 1\n", ""),
        (
            "tells to commit what may differ",
            "follower.told_commit = min(follower.match, self.log.commit)",
            "follower.told_commit = self.log.commit",
        ),
        ("does not notice lost appends", "self.replicate(message.sender, follower, probe_gap=True)", "pass"),
        ("does not notice lost snapshots", "if follower.silent_ticks >= self.options.snapshot_ticks:", "if False:"),
        ("a full window stays full", "        if full:\n", "        if False:\n"),
        ("half is a majority", "numbers[len(numbers) // 2]", "numbers[(len(numbers) - 1) // 2]"),
        ("does not step down alone", "if not self._check_majority():", "if False:"),
        (
            "hands over to who lags",
            "if follower.match == self.log.last_index:\n            self._send_timeout_now(successor)",
            "if True:\n            self._send_timeout_now(successor)",
        ),
        ("a failed handover lasts for ever", "if self.transfer_elapsed >= self.options.election_ticks:", "if False:"),
        ("no limit to what is in flight", "if len(follower.inflight) >= options.inflight_max or", "if"),
        (
            "news of commits wait for a heartbeat",
            "if follower.told_commit < min(follower.match, self.log.commit) and",
            "if False and",
        ),
        ("leaves without a word", "        self._send_timeout_now(max(voters,", "        (max(voters,"),
        (
            "reads are left hanging",
            "return self.reads + [ReadState(token, None) for token in tokens]",
            "return self.reads",
        ),
    ),
    *_in(
        log,
        "scenarios",
        ("a truncated membership stays in force", "while self.memberships[-1].index >= first:", "while False:"),
        ("what was replaced counts as written", "self.stable = min(self.stable, first - 1)", "pass"),
        ("what was replaced meanwhile counts as written", "if self.term_at(entry.index) == entry.term:", "if True:"),
        (
            "a snapshot keeps a tail of another history",
            "        self.entries = []\n        self.offset, self.offset_term = meta.index, meta.term\n"
            "        self.stable = self.commit = self.last_index = meta.index\n",
            "        self.entries = self.entries[meta.index - self.offset :]\n"
            "        self.offset, self.offset_term = meta.index, meta.term\n"
            "        self.stable = self.commit = meta.index\n",
        ),
        (
            "a membership waits to be committed",
            "return self.memberships[-1].membership\n",
            "return self.membership_at(self.commit)\n",
        ),
    ),
    *_in(
        consensus_log,
        "log tests",
        ("no sync", "        disk.sync(self.path)\n", ""),
        (
            "no sync of the folder for a new file",
            "if self.offset == 0:\n            disk.sync_folder",
            "if False:\n            disk.sync_folder",
        ),
        ("snapshots are not synced", '    disk.sync(f"{folder}/{name}")\n', ""),
        (
            "the name of a snapshot is not synced",
            '{_snapshot_name(meta.index)}")\n    disk.sync_folder(folder)\n',
            '{_snapshot_name(meta.index)}")\n',
        ),
        ("a reset is not read", "entries, resets_to = [], batch.reset[0]", "resets_to = batch.reset[0]"),
        ("a missing reset is not noticed", "self._reset_due = (meta.index, meta.term)\n", "pass\n"),
        ("the vote is not read", "HardState(term, vote or None)", "HardState(term, None)"),
        (
            "what was replaced is read",
            "entries[max(0, position) :] = batch.entries",
            "entries[position : position + len(batch.entries)] = batch.entries",
        ),
        ("the last batch is deleted", " or not after.bytes:", ":"),
        ("more is deleted than the snapshot has", "segment.index_max > newest or", "segment.index_max > newest + 5 or"),
        (
            "the last batch is not made durable again",
            "self._disk.write(path, last, [stored[last : segment.bytes]])",
            "pass",
        ),
        ("goes on after a failed sync", "if not undone:", "if False:"),
        ("a snapshot is deleted while it is sent", " and index not in in_use", ""),
    ),
]
