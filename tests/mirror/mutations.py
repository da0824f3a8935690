"""Deliberate bugs: pieces of source text that are replaced, which scenes or seeds must notice.

`rule` is the rule of the protocol that is broken (1 to 12), or 0.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final, NamedTuple

import pytest

from leveret.mirror import master, neighbours, promotion, ring, sync
from simulation import ring as world
from simulation import ring_parts
from tests.mutating import failing, replace

from .scenarios import SCENARIOS


class Mutation(NamedTuple):
    rule: int
    name: str
    module: ModuleType
    pieces: tuple[tuple[str, str], ...]


def put(patch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    replace(patch, mutation.name, mutation.module, *mutation.pieces)


def failing_scenario() -> str | None:
    return failing((scenario.__name__, scenario) for scenario in SCENARIOS)


def _in(module: ModuleType, *mutations: tuple[Any, ...]) -> list[Mutation]:
    """Each is (rule, name, old text, new text, and perhaps more of both)."""
    made = []
    for rule, name, *texts in mutations:
        made.append(Mutation(rule, name, module, tuple(zip(texts[::2], texts[1::2], strict=True))))
    return made


NEEDED: Final = "set(self.view.in_sync) | self.maybe | set(self.joining)"

MUTATIONS: Final = [
    *_in(
        master,
        (1, "additions of unknown outcome do not count", NEEDED, "set(self.view.in_sync)"),
        (
            1,
            "who has no link does not count",
            "            if entry is None or entry.disk != disk:\n                return 0, 0\n",
            "            if name not in self.member.links:\n                continue\n"
            "            if entry is None or entry.disk != disk:\n                return 0, 0\n",
        ),
        (1, "the own copy counts at once", "min(durable, member.own_durable)", "min(durable, member.tail.end)"),
        (
            1,
            "received is enough",
            "                durable = entry.durable\n",
            "                durable = entry.received\n",
        ),
        (
            1,
            "whose removal is proposed does not count",
            "            self._propose(in_sync=tuple(key for key in self.view.in_sync if key not in bad))\n",
            "            self._propose(in_sync=tuple(key for key in self.view.in_sync if key not in bad))\n"
            "            self._needed = [key for key in self._needed if key not in bad]\n",
        ),
        (3, "older blocks are confirmed without the start block", "if durable >= self.start_number:", "if True:"),
        (
            3,
            "a new master drops what is not confirmed",
            "        tail = member.tail.upto(member.confirmed + 1, member.tail.end)\n",
            "        member.truncate(member.confirmed)\n        self.start_number = member.confirmed + 1\n"
            "        tail = member.tail.upto(member.confirmed + 1, member.tail.end)\n",
        ),
        (
            7,
            "a joiner need not be complete",
            "if not entry.complete or entry.durable",
            "if entry.durable",
            "if self._entry(key).complete and self._entry(key).durable >= floor",
            "if self._entry(key).durable >= floor",
        ),
        (
            7,
            "a joiner need not have the start block",
            " or entry.durable < self.start_number or",
            " or",
            "floor = max(member.confirmed, self.start_number)",
            "floor = 0",
        ),
        (
            7,
            "a joiner is not waited for",
            NEEDED,
            "set(self.view.in_sync) | self.maybe",
            "entry.received < self.marks[0]:\n                continue",
            "entry.received < member.tail.end:\n                continue",
        ),
        (
            7,
            "a joiner is waited for without end",
            "if self.joining[key] > member.options.patience and key not in self.maybe:",
            "if False:",
        ),
        (8, "nobody is removed", "        bad = self._find_stuck()\n", "        bad: list[Disk] = []\n"),
        (8, "who makes progress is removed too", "                age = 0\n", "                age += 1\n"),
        (0, "an unknown outcome stays unknown", "if self.maybe and member.proposal_age is None:", "if False:"),
        (0, "at rest nobody comes in", " or self._lags() or self._is_unsettled()", " or self._lags()"),
        (0, "disks are not told apart", "entry is None or entry.disk != disk", "entry is None"),
        (
            0,
            "takes a copy that has left for the one that came",
            "or is_of(name, entry.disk, self.member.joined):",
            "or True:",
        ),
        (
            0,
            "forgets nothing of one who left",
            "if name in ring and is_of(name, entry.disk, joined)",
            "if name in ring",
        ),
        (0, "old words replace newer ones", "(old is not None and entry.stamp <= old.stamp)", "False"),
        (
            0,
            "hands over to one who left",
            "if self.handing is not None and view.disk_of(self.handing[0]) is None:",
            "if False:",
            "if self._is_drained():",
            "if True:",
        ),
        (0, "a hand-over does not wait", "return durable >= end and (", "return ("),
        (0, "a hasty hand-over does not wait", "return received >= end", "return True"),
        (0, "a slow own disk stays", "if self.own_late > member.options.own_slow", "if False"),
        (0, "nobody is told that it lags", "                    self.pulse(name)\n", "                    pass\n"),
        (0, "a forced start is silent", "[] if member.complete else member.lost()", "[]"),
    ),
    *_in(
        ring,
        (
            2,
            "an unmatched log reports its numbers",
            "        if not self.matched:\n            return Entry",
            "        if False:\n            return Entry",
        ),
        (
            3,
            "the start block does not matter",
            "self.view is not None and self.tail.last_epoch == self.view.epoch",
            "self.view is not None",
        ),
        (5, "a restarted master resumes its epoch", "(old is not None or self.born)", "True"),
        (5, "a wiped disk leads", "and self.in_sync and self.may_lead", "and self.may_lead"),
        (
            10,
            "blocks are forgotten before they are confirmed",
            "floor = min(self.confirmed, self.durable)",
            "floor = self.tail.end",
        ),
        (
            11,
            "complete is claimed before it is on disk",
            "        solid = self.synced_to >= self.floor\n        complete",
            "        solid = True\n        complete",
        ),
        (
            12,
            "the sync of a truncated write counts",
            "        while unsynced and unsynced[-1][1] > number:",
            "        while False:",
        ),
        (12, "what is truncated stays durable", "        self.durable = min(self.durable, number)\n", ""),
        (0, "older epochs are listened to", "elif frame.epoch == view.epoch:", "elif frame.epoch <= view.epoch:"),
        (0, "newer epochs are listened to", "elif frame.epoch == view.epoch:", "elif frame.epoch >= view.epoch:"),
        (0, "an incomplete log leads", "return self.complete or (self.view", "return True or (self.view"),
        (0, "a void log is kept", "(not self.complete or view.void > self.tail.last_epoch)", "not self.complete"),
        (0, "older views are taken", "view.version <= old.version", "False"),
        (0, "a failed disk goes on", "        self.failed = True\n", "        pass\n"),
    ),
    *_in(
        neighbours,
        (
            4,
            "a shorter neighbour truncates",
            "        if not member.matched:\n            return\n        self._quiet = 0\n",
            "        if frame.previous + len(frame.blocks) < tail.end:\n"
            "            member.truncate(max(member.confirmed, frame.previous + len(frame.blocks)))\n"
            "        if not member.matched:\n            return\n        self._quiet = 0\n",
        ),
        (
            4,
            "who is not matched feeds others",
            "        if not member.matched:\n            self.waiting[src] = frame\n            return\n",
            "",
        ),
        (
            4,
            "nothing is ever truncated",
            "            member.truncate(block.number - 1)\n            return blocks[at:]\n",
            "            return ()\n",
        ),
        (
            10,
            "mirrors apply what is not confirmed",
            "member.confirm_to(min(frame.confirmed, tail.end))",
            "member.confirm_to(tail.end)",
        ),
        (11, "a reset is obeyed under an older view", "if frame.version > member.view.version:", "if False:"),
        (
            11,
            "a reset names the view of its sender only",
            "Reset(view.epoch, member.version, cut",
            "Reset(view.epoch, view.version, cut",
        ),
        (11, "a hollow log resets others", "if not member.complete or member.confirmed < member.read_at:", "if False:"),
        (
            0,
            "the block before does not matter",
            "if tail.epoch_at(frame.previous) != frame.previous_epoch:",
            "if False:",
        ),
        (
            0,
            "empty frames show no gap",
            "if tail.epoch_at(frame.previous) != frame.previous_epoch:",
            "if frame.blocks and tail.epoch_at(frame.previous) != frame.previous_epoch:",
        ),
        (0, "nobody is passed over", "[self._tried % len(left)]", "[0]"),
        (0, "credit does not matter", "room = options.window_bytes - flying", "room = options.window_bytes"),
        (
            0,
            "feeds hear nothing of the disk",
            "if sum_now - self._got_sum >=",
            "if False and sum_now - self._got_sum >=",
        ),
        (0, "what was lost by force is passed on as confirmed", "lasting = not view.lossy or", "lasting = True or"),
        (
            0,
            "what is confirmed is not told at rest",
            "            if child.told < self.member.confirmed:\n",
            "            if False:\n",
        ),
        (0, "an early attach is lost", "            self.serve_waiting()\n", "            pass\n"),
        (0, "numbers are not relayed", "                self.relay[name] = entry\n", "                pass\n"),
        (0, "one who is too slow is not turned away", "if child.next <= tail.base:", "if False:"),
    ),
    *_in(
        promotion,
        (
            0,
            "proposes without a majority",
            "        if not member.majority:\n            # Nothing can",
            "        if False:\n            # Nothing can",
        ),
        (
            9,
            "a broken link deposes the master",
            "        if any(standing.hears for standing in standings.values()):\n            return\n        ages",
            "        ages",
        ),
        (
            9,
            "who is not in sync stands",
            "if member.master is not None or not member.in_sync or self.hears:",
            "if member.master is not None or self.hears:",
            "member.proposal_age is not None or not member.in_sync:",
            "member.proposal_age is not None:",
            "ages[member.me, member.disk]",
            "ages.get((member.me, member.disk), -99)",
        ),
        (
            9,
            "a promotion keeps the epoch",
            "View(view.version + 1, view.epoch + 1, best[3]",
            "View(view.version + 1, view.epoch, best[3]",
        ),
        (
            9,
            "the least complete is promoted",
            "best = max(best, (standing.last_epoch",
            "best = min(best, (standing.last_epoch",
        ),
        (
            9,
            "wiped disks are promoted",
            "if (name, standing.disk) in ages and",
            "if (name, standing.disk) in ages or",
            "ages[name, standing.disk], name)",
            "0, name)",
        ),
        (9, "nobody asks", "        for name, _ in self._in_sync():\n            self._ask(name)\n", ""),
        (0, "orphans do not care who is better", "        if best[3] == member.me:\n", "        if True:\n"),
        (0, "orphans do not wait", "elif self.age > member.options.orphaned and (", "elif ("),
        (
            0,
            "orphans do not care who is in sync",
            "standing.hears or (name, standing.disk) in in_sync",
            "standing.hears",
        ),
        (0, "what others hear is hearing", "if src == member.view.master and frame.hears", "if frame.hears"),
        (0, "without a majority it still leads", "            return member.majority\n", "            return True\n"),
    ),
    *_in(
        sync,
        (
            11,
            "complete before cut and tail have met",
            "self.is_filled and member.confirmed >= member.read_at",
            "self.is_filled",
        ),
        (
            11,
            "what is fuzzy is given to others",
            "member.confirmed < max(frame.cut, member.read_at)",
            "member.confirmed < frame.cut",
        ),
        (
            11,
            "pieces are given below their cut",
            "member.confirmed < max(frame.cut, member.read_at)",
            "member.confirmed < member.read_at",
        ),
        (
            11,
            "what was never fetched counts as had",
            "        if member.complete:\n            return merged([(1, member.messages)])\n",
            "        if True:\n            return merged([(1, member.messages)])\n",
        ),
        (
            11,
            "what the ring does not have is kept",
            "        if known < member.confirmed or (member.complete and known < member.read_at):\n",
            "        if False:\n",
            "        if not member.complete and known < self.cut:\n",
            "        if False:\n",
        ),
        (11, "any piece is taken", "if (frame.cut, frame.after, frame.have) !=", "if False and (1, 2, 3) !="),
        (
            11,
            "a piece is taken for one who has more",
            "(frame.cut, frame.after, frame.have) != (self.cut, self.after, self.have)",
            "(frame.cut, frame.after) != (self.cut, self.after)",
        ),
        (
            11,
            "an incomplete source gives pieces",
            "if not (member.complete and member.matched) or",
            "if not member.matched or",
        ),
    ),
    *_in(
        ring_parts,
        (
            11,
            "settles that pass a filling member are forgotten",
            "            if seq not in self.gone:\n",
            "            if True:\n",
        ),
    ),
    *_in(
        world,
        (6, "the first view of a process is an old one", "self.views[-1])", "self.rng.choice(self.views[-3:]))"),
        (0, "a damaged disk keeps its id", "node.disk_number += 1\n        self.checker", "self.checker"),
    ),
]
