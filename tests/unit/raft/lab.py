"""Raft nodes on a table, moved by a script that a person can read.

A line is a command; `#` begins a remark. Nodes have names of one letter.

    voters a b c / learners d       who begins with which membership
    log a 1 1 2                     the terms of the entries on a's disk; a starts again from there
    term a 3 [b]                    the term (and vote) on a's disk; likewise
    campaign a                      a stands for election, as if its timeout had run out
    elect a                         the same, everything is delivered, and a leads
    propose a x / transfer a b / change a learn|promote|demote|remove b
    spare a b                       a, if it leads two voters, may go on without b
    outlive a b                     a is certain that b is dead, has b's disk in its hands, and goes on without it
    trust a b                       a is certain that b is dead, has not seen b's disk, and goes on without it
    forget a b                      an operator says that b is dead: a goes on, and b is no member any more
    refused: COMMAND                the command is refused
    tick a 10                       time passes at a, and what it says is delivered to nobody
    quiet a b 10                    time passes at a and b, everything is delivered
    settle [a b]                    everything is delivered (among those), until nobody has anything to say
    cut a / heal                    nobody hears a, and a hears nobody
    hold a / write a                a's disk hangs, and a write in flight stays there; it ends
    crash a                         a loses what is not on its disk, and starts again
    compact a                       a makes a snapshot of all that is applied, and forgets those entries
    outrun a gets ...               the same, but a newer snapshot arrives before its own is on disk
    nosnapshot a                    a could not make a snapshot now
    link a b                        a notices that its connection to b is closed
    a gets TYPE from b FIELD=VALUE ...
    expect a FIELD=VALUE ...        role, term, vote, leader, commit, last, applied, voters, log and kept (the terms of
                                    entries in memory and on disk), data (applied commands), match.b, state.b, applied.b
    expect a sent TYPE FIELD=VALUE ... / expect a sent nothing / expect a early|later TYPE
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from leveret.raft import core, messages
from leveret.raft.membership import (
    AddLearner,
    BadChange,
    Change,
    Demote,
    Member,
    Membership,
    Promote,
    Remove,
    encode_membership,
)
from leveret.raft.messages import Entry, HardState, Kind, Message, Snapshot, SnapshotMeta
from leveret.raft.options import Options

ROUNDS_MAX = 1000


class Failed(AssertionError):
    """The script expected something else."""


class LabNode:
    """A node, its disk, and the Ready it is working on."""

    def __init__(self, name: str, meta: SnapshotMeta, options: Options) -> None:
        self.name = name
        self.options = options
        self.hard_state = HardState()
        self.snapshot = Snapshot(meta, b"")
        self.entries: list[Entry] = []
        self.commit = 0
        self.held = False
        self.start()

    def start(self) -> None:
        self.raft = core.Raft(
            self.name,
            lambda limit: 0,  # Nobody is lucky: timeouts are known.
            self.options,
            hard_state=self.hard_state,
            snapshot=self.snapshot.meta,
            entries=self.entries,
            commit=self.commit,
        )
        self.ready: core.Ready | None = None
        self.applied: list[Entry] = []
        self.early: list[Message] = []  # What was said since the last command to this node.
        self.later: list[Message] = []

    def pump(self) -> list[Message]:
        """Do what Raft wants done; gives what is sent."""
        sent: list[Message] = []
        while True:
            if self.ready is None:
                self.ready = self.raft.ready()
                if self.ready is None:
                    return sent
                self.early += self.ready.early
                sent += self.ready.early
            if self.held and self.ready.must_sync:
                return sent
            sent += self.write()

    def write(self) -> list[Message]:
        ready, self.ready = self.ready, None
        assert ready is not None
        if ready.must_sync:
            self.commit = ready.commit
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.snapshot is not None:
            self.snapshot, self.entries = ready.snapshot, []
        if ready.entries:
            first = ready.entries[0].index
            self.entries = [entry for entry in self.entries if entry.index < first] + ready.entries
        for chunk in ready.chunks:
            data = self.snapshot.data
            chunk.total, chunk.checksum = len(data), zlib.crc32(data)
            chunk.data = data[chunk.offset : chunk.offset + self.options.chunk_bytes]
        sent: list[Message] = [*ready.messages, *ready.chunks]
        self.later += sent
        self.applied += ready.committed
        self.raft.advance(ready)
        return sent


class Lab:
    def __init__(self, **options: int) -> None:
        self.options = Options(**options)
        self.nodes: dict[str, LabNode] = {}
        self.membership = Membership()
        self.cut: set[str] = set()
        self.waiting: list[Message] = []

    def play(self, script: str) -> Lab:
        for number, line in enumerate(script.strip().splitlines(), 1):
            words = line.partition("#")[0].split()
            try:
                if words:
                    self.command(words)
            except Failed as failed:
                raise Failed(f"line {number}, {line.strip()}: {failed}") from None
        return self

    def command(self, words: list[str]) -> None:
        first, rest = words[0], words[1:]
        if first == "refused:":
            try:
                self.command(rest)
            except (core.Refused, BadChange):
                return
            raise Failed("it was not")
        if first in self.nodes and rest[0] == "gets":
            self.on_gets(self.node(first), rest[1], rest[3], rest[4:])
            return
        getattr(self, f"do_{first}")(*rest)

    def node(self, name: str) -> LabNode:
        """A node that is about to do something."""
        node = self.nodes[name]
        node.early, node.later = [], []
        return node

    # Setting up

    def do_voters(self, *names: str) -> None:
        learners = names[names.index("learners") + 1 :] if "learners" in names else ()
        voters = names[: len(names) - len(learners) - bool(learners)]
        groups = [tuple(Member(name, f"node {name}", f"{name}:1") for name in group) for group in (voters, learners)]
        self.membership = Membership(groups[0], groups[1])
        for name in (*voters, *learners):
            self.nodes[name] = LabNode(name, SnapshotMeta(0, 0, self.membership), self.options)

    def do_joins(self, name: str) -> None:
        self.nodes[name] = LabNode(name, SnapshotMeta(), self.options)

    def do_priority(self, name: str, priority: str) -> None:
        voters = tuple(
            member._replace(priority=int(priority)) if member.id == name else member
            for member in self.membership.voters
        )
        self.membership = Membership(voters)
        for node in self.nodes.values():
            node.snapshot = Snapshot(SnapshotMeta(0, 0, self.membership), b"")
            node.start()

    def do_log(self, name: str, *terms: str) -> None:
        node = self.nodes[name]
        node.entries = list(entries_of(1, terms))
        node.hard_state = HardState(max(node.hard_state.term, *(entry.term for entry in node.entries)))
        node.start()

    def do_term(self, name: str, term: str, vote: str | None = None) -> None:
        node = self.nodes[name]
        node.hard_state = HardState(int(term), vote)
        node.start()

    # Doing

    def do_campaign(self, name: str) -> None:
        self.node(name).raft.campaign()
        self.pump(name)

    def do_elect(self, name: str) -> None:
        self.do_campaign(name)
        self.do_settle()
        if not self.nodes[name].raft.is_leader:
            raise Failed(f"{name} does not lead")

    def do_propose(self, name: str, data: str) -> None:
        self.node(name).raft.propose(data.encode())
        self.pump(name)

    def do_transfer(self, name: str, to: str) -> None:
        self.node(name).raft.transfer(to)
        self.pump(name)

    def do_change(self, name: str, what: str, who: str) -> None:
        change: Change
        if what == "learn":
            change = AddLearner(Member(who, f"node {who}", f"{who}:1"))
        else:
            change = Promote(who) if what == "promote" else Demote(who) if what == "demote" else Remove(who)
        self.node(name).raft.change(change)
        self.pump(name)

    def do_spare(self, name: str, other: str) -> None:
        self.node(name).raft.dismissable = frozenset({other})

    def do_outlive(self, name: str, other: str) -> None:
        dead = self.nodes[other]
        remains = core.Remains(dead.hard_state, dead.snapshot.meta, dead.entries)
        self.node(name).raft.outlive(other, remains)
        self.pump(name)

    def do_trust(self, name: str, other: str) -> None:
        self.node(name).raft.outlive(other)
        self.pump(name)

    def do_forget(self, name: str, other: str) -> None:
        self.node(name).raft.outlive(other, forget=True)
        self.pump(name)

    def do_tick(self, name: str, count: str) -> None:
        node = self.node(name)
        for _ in range(int(count)):
            node.raft.tick()
            node.pump()

    def do_quiet(self, *words: str) -> None:
        for _ in range(int(words[-1])):
            for name in words[:-1]:
                self.node(name).raft.tick()
            self.do_settle()

    def do_cut(self, name: str) -> None:
        self.cut.add(name)

    def do_nosnapshot(self, name: str) -> None:
        raft = self.nodes[name].raft
        if raft.snapshot_meta(raft.applied) is not None:
            raise Failed("it would make one")

    def do_heal(self) -> None:
        self.cut.clear()

    def do_hold(self, name: str) -> None:
        self.nodes[name].held = True

    def do_write(self, name: str) -> None:
        node = self.node(name)
        node.held = False
        self.pump(name)

    def do_crash(self, name: str) -> None:
        node = self.nodes[name]
        node.held = False
        node.start()

    def do_compact(self, name: str) -> None:
        node = self.nodes[name]
        meta = node.raft.snapshot_meta(node.raft.applied)
        if meta is None or not node.raft.compact(meta):
            raise Failed("there is a newer snapshot")
        node.snapshot = Snapshot(meta, f"all up to {meta.index}".encode())
        node.entries = [entry for entry in node.entries if entry.index > meta.index]

    def do_outrun(self, name: str, *words: str) -> None:
        """A command comes while the node writes a snapshot of its own, which is too late then."""
        raft = self.nodes[name].raft
        meta = raft.snapshot_meta(raft.applied)
        self.command([name, *words])
        if meta is None or raft.compact(meta):
            raise Failed("it was not")

    def do_link(self, name: str, to: str) -> None:
        self.node(name).raft.on_link_lost(to)

    def pump(self, name: str) -> None:
        self.waiting += self.nodes[name].pump()

    def do_settle(self, *names: str) -> None:
        for _ in range(ROUNDS_MAX):
            for name in self.nodes:
                self.pump(name)
            if not self.waiting:
                return
            sent, self.waiting = self.waiting, []
            for message in sent:
                ends = {message.sender, message.to}
                if message.to in self.nodes and not ends & self.cut and (not names or ends <= set(names)):
                    self.nodes[message.to].raft.step(message)
        raise Failed("they talk for ever")

    def on_gets(self, node: LabNode, kind: str, sender: str, fields: list[str]) -> None:
        values: dict[str, Any] = dict(split(field) for field in fields)
        prev = int(values.get("prev_index", 0))
        if "entries" in values:
            values["entries"] = list(entries_of(prev + 1, str(values["entries"]).split(",")))
        if kind == "SnapshotChunk":
            data = str(values.pop("data")).encode()
            meta = SnapshotMeta(int(values.pop("index")), int(values.pop("meta_term")), self.membership)
            values = {"offset": 0, "total": len(data), "checksum": zlib.crc32(data)} | values
            values |= {"meta": meta, "data": data}
        defaults: dict[str, dict[str, Any]] = {
            "Append": {"prev_index": 0, "prev_term": 0, "commit": 0},
            "Heartbeat": {"commit": 0},
            "VoteRequest": {"pre": False, "last_index": 0, "last_term": 0},
            "VoteResponse": {"pre": False, "granted": True},
            "AppendResponse": {"accepted": True},
        }
        values = defaults.get(kind, {}) | values
        values.setdefault("to", node.name)
        node.raft.step(getattr(messages, kind)(sender=sender, **values))
        self.pump(node.name)

    # Expecting

    def do_expect(self, name: str, *words: str) -> None:
        node = self.nodes[name]
        if words[0] in ("sent", "early", "later"):
            self.expect_sent(node, *words)
        else:
            for word in words:
                key, wanted = word.split("=", 1)
                found_text = self.value(node, key)
                if found_text != wanted:
                    raise Failed(f"{key} is {found_text}")

    def expect_sent(self, node: LabNode, where: str, kind: str, *fields: str) -> None:
        sent = {"early": node.early, "later": node.later, "sent": node.early + node.later}[where]
        if kind == "nothing":
            if sent:
                raise Failed(f"it sent {sent}")
            return
        wanted = dict(split(field) for field in fields)
        for message in sent:
            if type(message).__name__ == kind and all(getattr(message, key) == wanted[key] for key in wanted):
                return
        raise Failed(f"it sent {sent}")

    def value(self, node: LabNode, key: str) -> str:
        raft = node.raft
        if "." in key:
            what, peer = key.split(".")
            status = next(one for one in raft.followers() if one.id == peer)
            return str(getattr(status, what))
        values: dict[str, Any] = {
            "role": raft.role.name.lower(),
            "leader": raft.leader or "none",
            "vote": node.hard_state.vote or "none",
            "last": raft.last_index,
            "voters": ",".join(raft.membership.voter_ids),
            "log": terms_of(raft.log.entries),
            "kept": terms_of(node.entries),
            "data": ",".join(entry.data.decode() for entry in node.applied if entry.kind is Kind.COMMAND) or "none",
        }
        return str(values[key] if key in values else getattr(raft, key))


def entries_of(first: int, terms: Iterable[str]) -> Iterable[Entry]:
    """`3` is an entry of term 3; `3:abc` a membership of those voters."""
    for index, text in enumerate(terms, first):
        term, _, names = text.partition(":")
        if names:
            members = Membership(tuple(Member(name, f"node {name}", f"{name}:1") for name in names))
            yield Entry(index, int(term), Kind.MEMBERSHIP, encode_membership(members))
        else:
            yield Entry(index, int(term), Kind.COMMAND, f"{index}/{term}".encode())


def terms_of(entries: Iterable[Entry]) -> str:
    return ",".join(str(entry.term) for entry in entries) or "none"


def split(field: str) -> tuple[str, Any]:
    key, value = field.split("=", 1)
    if value in ("True", "False"):
        return key, value == "True"
    return key, int(value) if value.isdigit() else value
