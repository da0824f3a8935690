"""Deliberate bugs: pieces of functions that are replaced, which scenes or seeds must notice.

`rule` is the rule of the protocol that is broken (1 to 12), or 0.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest

from tests.support.mutating import Change, failing, replace

from .scenarios import SCENARIOS


class Mutation(NamedTuple):
    rule: int
    name: str
    changes: tuple[Change, ...]


def put(patch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    replace(patch, mutation.name, *mutation.changes)


def failing_scenario() -> str | None:
    return failing((scenario.__name__, scenario) for scenario in SCENARIOS)


def _bug(rule: int, name: str, *changes: tuple[str, str, str]) -> Mutation:
    return Mutation(rule, name, tuple(Change(*change) for change in changes))


MUTATIONS: Final = [
    _bug(
        1,
        "additions of unknown outcome do not count",
        (
            "Master._recount",
            "needed = set(self.view.in_sync) | self.maybe | set(self.joining)",
            "needed = set(self.view.in_sync)",
        ),
    ),
    _bug(
        1,
        "who has no link does not count",
        (
            "Master._have",
            "entry = table.get(name)",
            "entry = table.get(name)\nif name not in self.member.links:\n    continue",
        ),
    ),
    _bug(
        1,
        "the own copy counts at once",
        (
            "Master.count_reports",
            "durable = min(durable, member.own_durable)",
            "durable = min(durable, member.tail.end)",
        ),
    ),
    _bug(1, "received is enough", ("Master._have", "durable = entry.durable", "durable = entry.received")),
    _bug(
        1,
        "whose removal is proposed does not count",
        (
            "Master.on_tick",
            "self._propose(in_sync=tuple(key for key in self.view.in_sync if key not in bad))",
            "self._propose(in_sync=tuple(key for key in self.view.in_sync if key not in bad))\n"
            "self._needed = [key for key in self._needed if key not in bad]",
        ),
    ),
    _bug(
        3,
        "older blocks are confirmed without the start block",
        ("Master.count_reports", "durable >= self.start_number", "True"),
    ),
    _bug(
        3,
        "a new master drops what is not confirmed",
        (
            "Master.start",
            "tail = member.tail.upto(member.confirmed + 1, member.tail.end)",
            "member.truncate(member.confirmed)\n"
            "self.start_number = member.confirmed + 1\n"
            "tail = member.tail.upto(member.confirmed + 1, member.tail.end)",
        ),
    ),
    _bug(
        7,
        "a joiner need not be complete",
        (
            "Master._add_members",
            "not entry.complete or entry.durable < self.start_number or entry.received < self.marks[0]",
            "entry.durable < self.start_number or entry.received < self.marks[0]",
        ),
        (
            "Master._add_members",
            "self._entry(key).complete and self._entry(key).durable >= floor",
            "self._entry(key).durable >= floor",
        ),
    ),
    _bug(
        7,
        "a joiner need not have the start block",
        (
            "Master._add_members",
            "not entry.complete or entry.durable < self.start_number or entry.received < self.marks[0]",
            "not entry.complete or entry.received < self.marks[0]",
        ),
        ("Master._add_members", "floor = max(member.confirmed, self.start_number)", "floor = 0"),
    ),
    _bug(
        7,
        "a joiner is not waited for",
        (
            "Master._recount",
            "needed = set(self.view.in_sync) | self.maybe | set(self.joining)",
            "needed = set(self.view.in_sync) | self.maybe",
        ),
        ("Master._add_members", "entry.received < self.marks[0]", "entry.received < member.tail.end"),
    ),
    _bug(
        7,
        "a joiner is waited for without end",
        ("Master.on_tick", "self.joining[key] > member.options.patience and key not in self.maybe", "False"),
    ),
    _bug(8, "nobody is removed", ("Master.on_tick", "bad = self._find_stuck()", "bad: list[Disk] = []")),
    _bug(8, "who makes progress is removed too", ("Master._find_stuck", "age = 0", "age += 1")),
    _bug(
        0, "an unknown outcome stays unknown", ("Master.on_tick", "self.maybe and member.proposal_age is None", "False")
    ),
    _bug(
        0,
        "at rest nobody comes in",
        (
            "Master.wants_tick",
            "return waits or self.marks[0] < end or self._lags() or self._is_unsettled()",
            "return waits or self.marks[0] < end or self._lags()",
        ),
    ),
    _bug(0, "disks are not told apart", ("Master._have", "entry is None or entry.disk != disk", "entry is None")),
    _bug(
        0,
        "takes a copy that has left for the one that came",
        ("Master.on_entry", "is_of(name, entry.disk, self.member.joined)", "True"),
    ),
    _bug(
        0,
        "forgets nothing of one who left",
        ("Master.on_view", "name in ring and is_of(name, entry.disk, joined)", "name in ring"),
    ),
    _bug(
        0, "old words replace newer ones", ("Master.on_entry", "old is not None and entry.stamp <= old.stamp", "False")
    ),
    _bug(
        0,
        "hands over to one who left",
        ("Master.on_view", "self.handing is not None and view.disk_of(self.handing[0]) is None", "False"),
        ("Master._hand", "self._is_drained()", "True"),
    ),
    _bug(
        0,
        "a hand-over does not wait",
        (
            "Master._is_drained",
            "return durable >= end and (member.confirmed == end or self.own_late > 0)",
            "return member.confirmed == end or self.own_late > 0",
        ),
    ),
    _bug(0, "a hasty hand-over does not wait", ("Master._is_drained", "return received >= end", "return True")),
    _bug(0, "a slow own disk stays", ("Master._watch_own_disk", "self.own_late > member.options.own_slow", "False")),
    _bug(0, "nobody is told that it lags", ("Master._tell_lagging", "self.pulse(name)", "pass")),
    _bug(
        0,
        "a forced start is silent",
        ("Master._open", "lost = [] if member.complete else member.lost(member.group)", "lost = []"),
    ),
    _bug(2, "an unmatched log reports its numbers", ("Member.entry", "not self.matched", "False")),
    _bug(
        3,
        "the start block does not matter",
        (
            "Member.matched",
            "return self.view is not None and self.tail.last_epoch == self.view.epoch",
            "return self.view is not None",
        ),
    ),
    _bug(5, "a restarted master resumes its epoch", ("Member._on_epoch", "old is not None or self.born", "True")),
    _bug(
        5,
        "a wiped disk leads",
        (
            "Member._on_epoch",
            "leads and (old is not None or self.born) and self.in_sync and self.may_lead",
            "leads and (old is not None or self.born) and self.may_lead",
        ),
    ),
    _bug(
        10,
        "blocks are forgotten before they are confirmed",
        ("Member._forget", "floor = min(self.confirmed, self.durable)", "floor = self.tail.end"),
    ),
    _bug(
        11,
        "complete is claimed before it is on disk",
        ("Member.entry", "solid = self.synced_to >= self.floor", "solid = True"),
    ),
    _bug(
        12,
        "the sync of a truncated write counts",
        ("Member.truncate", "unsynced and unsynced[-1][1] > number", "False"),
    ),
    _bug(12, "what is truncated stays durable", ("Member.truncate", "self.durable = min(self.durable, number)", "")),
    _bug(
        0,
        "older epochs are listened to",
        (
            "Member.on_frame",
            "if frame.epoch == view.epoch: ...\nelif frame.epoch > view.epoch and isinstance(frame, Attach): ...",
            "if frame.epoch <= view.epoch: ...\nelif frame.epoch > view.epoch and isinstance(frame, Attach): ...",
        ),
    ),
    _bug(
        0,
        "newer epochs are listened to",
        (
            "Member.on_frame",
            "if frame.epoch == view.epoch: ...\nelif frame.epoch > view.epoch and isinstance(frame, Attach): ...",
            "if frame.epoch >= view.epoch: ...\nelif frame.epoch > view.epoch and isinstance(frame, Attach): ...",
        ),
    ),
    _bug(
        0,
        "an incomplete log leads",
        (
            "Member.may_lead",
            "return self.complete or (self.view is not None and self.view.void > self.tail.last_epoch)",
            "return True or (self.view is not None and self.view.void > self.tail.last_epoch)",
        ),
    ),
    _bug(
        0,
        "a void log is kept",
        ("Member._on_epoch", "not self.complete or view.void > self.tail.last_epoch", "not self.complete"),
    ),
    _bug(0, "older views are taken", ("Member.on_view", "view.version <= old.version", "False")),
    _bug(0, "a failed disk goes on", ("Member.on_disk_failed", "self.failed = True", "pass")),
    _bug(
        4,
        "a shorter neighbour truncates",
        (
            "Feeding.on_blocks",
            "if not member.matched:\n    return",
            "if frame.previous + len(frame.blocks) < tail.end:\n"
            "    member.truncate(max(member.confirmed, frame.previous + len(frame.blocks)))\n"
            "if not member.matched:\n"
            "    return",
        ),
    ),
    _bug(
        4,
        "who is not matched feeds others",
        ("Feeding.on_attach", "if not member.matched:\n    self.wait(src, frame)\n    return", ""),
    ),
    _bug(
        4,
        "nothing is ever truncated",
        ("Feeding._unknown", "member.truncate(block.number - 1)\nreturn blocks[at:]", "return ()"),
    ),
    _bug(
        10,
        "mirrors apply what is not confirmed",
        ("Feeding.on_blocks", "member.confirm_to(min(frame.confirmed, tail.end))", "member.confirm_to(tail.end)"),
    ),
    _bug(
        11,
        "a reset is obeyed under an older view",
        ("Feeding.on_reset", "frame.version > member.view.version", "False"),
    ),
    _bug(
        11,
        "a reset names the view of its sender only",
        (
            "Feeding.on_attach",
            "member.send(src, Reset(view.epoch, member.version, cut, history, known, messages, member.delivered))",
            "member.send(src, Reset(view.epoch, view.version, cut, history, known, messages, member.delivered))",
        ),
    ),
    _bug(
        11,
        "a hollow log resets others",
        ("Feeding.on_attach", "not member.complete or member.confirmed < member.read_at", "False"),
    ),
    _bug(
        0,
        "the block before does not matter",
        ("Feeding.on_blocks", "tail.epoch_at(frame.previous) != frame.previous_epoch", "False"),
    ),
    _bug(
        0,
        "empty frames show no gap",
        (
            "Feeding.on_blocks",
            "tail.epoch_at(frame.previous) != frame.previous_epoch",
            "frame.blocks and tail.epoch_at(frame.previous) != frame.previous_epoch",
        ),
    ),
    _bug(
        0,
        "nobody is passed over",
        ("Feeding.seek", "self._attach(left[self._tried % len(left)])", "self._attach(left[0])"),
    ),
    _bug(
        0,
        "credit does not matter",
        ("Feeding._push", "room = options.window_bytes - flying", "room = options.window_bytes"),
    ),
    _bug(
        0,
        "feeds hear nothing of the disk",
        (
            "Feeding.tell",
            "sum_now - self._got_sum >= member.options.window_bytes // 4",
            "False and sum_now - self._got_sum >= member.options.window_bytes // 4",
        ),
    ),
    _bug(
        0,
        "what was lost by force is passed on as confirmed",
        (
            "Feeding._push",
            "lasting = not view.lossy or tail.epoch_at(member.confirmed) >= view.lossy",
            "lasting = True or tail.epoch_at(member.confirmed) >= view.lossy",
        ),
    ),
    _bug(
        0,
        "what is confirmed is not told at rest",
        ("Feeding.on_tick", "child.told < self.member.confirmed", "False"),
    ),
    _bug(0, "an early attach is lost", ("Feeding.flush", "self.serve_waiting()", "pass")),
    _bug(0, "a new group has no start block", ("Member.submit", "self.master.open()", "pass")),
    _bug(0, "a new group takes reports before its start block", ("Master.on_entry", "self.open()", "pass")),
    _bug(0, "a new group gets others before its start block", ("Master.on_view", "self.open()", "pass")),
    _bug(0, "a new group writes a block at once", ("Master.start", "works and self._may_rest()", "False")),
    _bug(
        0,
        "a mirror without blocks does not look for another feeder",
        ("Feeding.on_peer_down", "self.member.is_newborn and peer in self.left", "False"),
    ),
    _bug(
        0,
        "a restarted mirror without blocks says nothing",
        ("Member.is_newborn", "self.born", "True"),
    ),
    _bug(
        0,
        "a master that lost its disk says nothing",
        ("MasterWatch.on_tick", "self._say_vacant()", "pass"),
    ),
    _bug(0, "numbers are not relayed", ("Feeding.on_numbers", "self.relay = {**self.relay, name: entry}", "pass")),
    _bug(0, "one who is too slow is not turned away", ("Feeding._push", "child.next <= tail.base", "False")),
    _bug(0, "proposes without a majority", ("MasterWatch._decide", "not member.majority", "False")),
    _bug(
        9,
        "a broken link deposes the master",
        ("MasterWatch._decide", "if any(standing.hears for standing in standings.values()):\n    return", ""),
    ),
    _bug(
        9,
        "who is not in sync stands",
        (
            "MasterWatch.check",
            "member.master is not None or not member.in_sync or self.hears",
            "member.master is not None or self.hears",
        ),
        (
            "MasterWatch._decide",
            "standings is None or view is None or member.proposal_age is not None or not member.in_sync",
            "standings is None or view is None or member.proposal_age is not None",
        ),
        (
            "MasterWatch._decide",
            "best = (member.tail.last_epoch, member.tail.end, ages[member.me, member.disk], member.me)",
            "best = (member.tail.last_epoch, member.tail.end, ages.get((member.me, member.disk), -99), member.me)",
        ),
    ),
    _bug(
        9,
        "a promotion keeps the epoch",
        (
            "MasterWatch._decide",
            "member.propose(View(view.version + 1, view.epoch + 1, best[3], ring, keep, view.lossy, view.void))",
            "member.propose(View(view.version + 1, view.epoch, best[3], ring, keep, view.lossy, view.void))",
        ),
    ),
    _bug(
        9,
        "the least complete is promoted",
        (
            "MasterWatch._decide",
            "best = max(best, (standing.last_epoch, standing.end, ages[name, standing.disk], name))",
            "best = min(best, (standing.last_epoch, standing.end, ages[name, standing.disk], name))",
        ),
    ),
    _bug(
        9,
        "wiped disks are promoted",
        (
            "MasterWatch._decide",
            "(name, standing.disk) in ages and name not in self.left and standing.majority",
            "(name, standing.disk) in ages or name not in self.left and standing.majority",
        ),
        (
            "MasterWatch._decide",
            "best = max(best, (standing.last_epoch, standing.end, ages[name, standing.disk], name))",
            "best = max(best, (standing.last_epoch, standing.end, 0, name))",
        ),
    ),
    _bug(9, "nobody asks", ("MasterWatch.check", "for name, _ in self._in_sync():\n    self._ask(name)", "")),
    _bug(0, "orphans do not care who is better", ("MasterWatch._force_best", "best[3] == member.me", "True")),
    _bug(
        0,
        "orphans do not wait",
        (
            "MasterWatch._check_orphaned",
            "self.age > member.options.orphaned and (self.standings is None or self.poll_age > member.options.retry)",
            "self.standings is None or self.poll_age > member.options.retry",
        ),
    ),
    _bug(
        0,
        "orphans do not care who is in sync",
        ("MasterWatch._force_best", "standing.hears or (name, standing.disk) in in_sync", "standing.hears"),
    ),
    _bug(
        0,
        "what others hear is hearing",
        (
            "MasterWatch.on_standing",
            "src == member.view.master and frame.hears and member.master is None",
            "frame.hears and member.master is None",
        ),
    ),
    _bug(0, "without a majority it still leads", ("MasterWatch.hears", "return member.majority", "return True")),
    _bug(
        11,
        "complete before cut and tail have met",
        (
            "Filling.check",
            "not member.complete and self.is_filled and member.confirmed >= member.read_at",
            "not member.complete and self.is_filled",
        ),
    ),
    _bug(11, "what is fuzzy is given to others", ("Source.on_fetch", "max(frame.cut, member.read_at)", "frame.cut")),
    _bug(
        11, "pieces are given below their cut", ("Source.on_fetch", "max(frame.cut, member.read_at)", "member.read_at")
    ),
    _bug(11, "what was never fetched counts as had", ("Filling.kept", "if member.complete: ...", "if True: ...")),
    _bug(
        11,
        "what the ring does not have is kept",
        ("Filling.kept", "known < member.confirmed or (member.complete and known < member.read_at)", "False"),
        ("Filling.kept", "not member.complete and known < self.cut", "False"),
    ),
    _bug(
        11,
        "any piece is taken",
        ("Filling.on_piece", "(frame.cut, frame.after, frame.have) != (self.cut, self.after, self.have)", "False"),
    ),
    _bug(
        11,
        "a piece is taken for one who has more",
        (
            "Filling.on_piece",
            "(frame.cut, frame.after, frame.have) != (self.cut, self.after, self.have)",
            "(frame.cut, frame.after) != (self.cut, self.after)",
        ),
    ),
    _bug(
        11,
        "an incomplete source gives pieces",
        ("Source.on_fetch", "member.complete and member.matched", "member.matched"),
    ),
    _bug(11, "settles that pass a filling member are forgotten", ("Stored.put", "seq not in self.gone", "True")),
    _bug(
        6,
        "the first view of a process is an old one",
        (
            "World.barrier",
            "self.learn(name, life, self.views[-1])",
            "self.learn(name, life, self.rng.choice(self.views[-3:]))",
        ),
    ),
    _bug(0, "a damaged disk keeps its id", ("World.damage", "node.disk_number += 1", "")),
]
