"""Checks what no run of a correct Raft shows.

The checker looks only at what leaves a node: its messages, its writes, what it applies, what it answers. It shares no
code with the machine it checks.

    one leader a term, one vote a term
    log matching: one index and term is one entry, with the same entries before it
    nothing is acknowledged to a leader before it is written
    a leader has everything that was ever committed
    all nodes apply the same entries in the same order, without gaps, and come to the same state
    a commit index never falls while its node runs
    what was acknowledged to a client is there in the end
"""

from __future__ import annotations

from collections.abc import Iterable

from leveret.raft.core import Ready, Role
from leveret.raft.messages import AppendResponse, Entry, Kind, Message, Snapshot, SnapshotMeta, VoteResponse


class Violation(AssertionError):
    """Raised when something happened that must never happen."""


class Checker:
    """Checks messages, writes, applied entries and answers of all nodes."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}  # By term.
        self.committed_before: dict[int, int] = {}  # By term: the last index committed when its leader was elected.
        self.votes: dict[tuple[str, int], str] = {}  # By voter and term.
        self.written: dict[tuple[int, int], tuple[int | None, Kind, bytes]] = {}  # By index and term.
        self.logs: dict[str, dict[int, int]] = {}  # Terms by index, of what each node has written.
        self.committed: dict[int, tuple[int, Kind, bytes]] = {}
        self.states: dict[int, int] = {}  # The state machine's checksum after an index.
        self.commits: dict[str, int] = {}
        self.acknowledged: dict[bytes, int] = {}

    def on_started(self, node: str, meta: SnapshotMeta, entries: Iterable[Entry]) -> None:
        self.logs[node] = {meta.index: meta.term, **{entry.index: entry.term for entry in entries}}
        self.commits[node] = 0

    def on_written(self, node: str, snapshot: Snapshot | None, entries: list[Entry]) -> None:
        """Checks that one index and term is one entry with one predecessor: so logs that agree there agree on
        everything before."""
        log = self.logs[node]
        if snapshot is not None:
            log.clear()
            log[snapshot.meta.index] = snapshot.meta.term
        if not entries:
            return
        for index in range(entries[0].index, max(log, default=0) + 1):
            log.pop(index, None)
        for entry in entries:
            previous = log.get(entry.index - 1)
            content = (previous, entry.kind, entry.data)
            known = self.written.setdefault((entry.index, entry.term), content)
            if known[1:] != content[1:] or (previous is not None and known[0] not in (None, previous)):
                raise Violation(f"{node} has another entry at {entry.index}/{entry.term}: {content}, not {known}")
            log[entry.index] = entry.term

    def on_sent(self, message: Message) -> None:
        if isinstance(message, VoteResponse) and message.granted and not message.pre:
            first = self.votes.setdefault((message.sender, message.term), message.to)
            if first != message.to:
                raise Violation(f"{message.sender} voted for {first} and {message.to} in term {message.term}")
        elif isinstance(message, AppendResponse) and message.accepted:
            log = self.logs[message.sender]
            if message.index > max(log, default=0):
                raise Violation(f"{message.sender} accepted {message.index} before it was written")

    def on_shown(self, node: str, ready: Ready) -> None:
        if ready.commit < self.commits[node]:
            raise Violation(f"{node} took its commit index back from {self.commits[node]} to {ready.commit}")
        self.commits[node] = ready.commit
        if ready.role is Role.LEADER:
            first = self.leaders.setdefault(ready.term, node)
            if first != node:
                raise Violation(f"{first} and {node} both lead in term {ready.term}")
            self.committed_before.setdefault(ready.term, max(self.committed, default=0))

    def on_elected(self, node: str, term: int) -> None:
        """Checks that a leader has everything committed before its election. Its own disk may be slow: a leader of a
        later term may have committed more by the time this one's term is on disk."""
        log = self.logs[node]
        for index in range(min(log, default=0) + 1, self.committed_before[term] + 1):
            if index in self.committed and log.get(index) != self.committed[index][0]:
                raise Violation(f"{node} leads term {term} without the committed entry {index}")

    def on_applied(self, node: str, entry: Entry, expected: int, state: int) -> None:
        if entry.index != expected:
            raise Violation(f"{node} applies {entry.index} where {expected} is next")
        content = (entry.term, entry.kind, entry.data)
        if self.committed.setdefault(entry.index, content) != content:
            raise Violation(f"{node} applies {content} at {entry.index}, others {self.committed[entry.index]}")
        self.on_state(node, entry.index, state)

    def on_state(self, node: str, index: int, state: int) -> None:
        if self.states.setdefault(index, state) != state:
            raise Violation(f"{node} has another state after {index} than others had")

    def on_acknowledged(self, data: bytes, index: int) -> None:
        self.acknowledged[data] = index

    def at_the_end(self, commit: int) -> None:
        for data, index in self.acknowledged.items():
            if index > commit or self.committed[index][2] != data:
                raise Violation(f"{data!r} was acknowledged at {index} and is lost")
