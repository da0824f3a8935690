"""The parts of a world of one mirrored queue: disks and their contents, the queue at its master, links, nodes."""

from __future__ import annotations

from collections import deque

from leveret.replication.member import Member
from leveret.replication.ring_frames import Append, Complete, Fill, Recovered, Restart, Started, Truncate, Write
from leveret.storage.format.queue_block import Block, Run
from simulation.ring.checker import Violation


class Stored:
    """The contents of a node's storage: the messages that the applied blocks leave."""

    def __init__(self) -> None:
        self.live: dict[int, bytes] = {}
        self.gone: set[int] = set()
        self.last = 0

    def apply(self, block: Block) -> None:
        run = block.enqueued
        if run is not None:
            self.put(run)
        for low, high in block.settled:
            for seq in range(low, high + 1):
                self.live.pop(seq, None)
                self.gone.add(seq)

    def put(self, run: Run) -> None:
        for seq, content in enumerate(run.contents, run.first):
            if seq not in self.gone:
                self.live[seq] = content
        self.last = max(self.last, run.last)

    def restart(self, change: Restart) -> None:
        if not change.have:
            self.live, self.gone, self.last = {}, set(), 0
        for seq in [seq for seq in self.live if not any(low <= seq <= high for low, high in change.have)]:
            raise Violation(f"message {seq} is stored and not among {change.have}")
        self.last = max(self.last, change.bound)

    def fill(self, change: Fill) -> None:
        wanted = {seq for low, high in change.live for seq in range(low, high + 1)}
        for seq in [seq for seq in self.live if change.after < seq <= change.upto and seq not in wanted]:
            del self.live[seq]
            self.gone.add(seq)
        for run in change.runs:
            self.put(run)

    def lost(self, group: int = 0) -> list[tuple[int, int]]:
        return [(seq, seq) for seq in range(1, self.last + 1) if seq not in self.live]


def replay(writes: list[Write]) -> tuple[Recovered, Stored]:
    """Returns what a node finds on its disk."""
    stored, found = Stored(), Recovered()
    base = 0
    pending: deque[Block] = deque()
    history: list[tuple[int, int]] = []
    for write in writes:
        while pending and pending[0].number <= write.confirmed:
            base = pending[0].number
            stored.apply(pending.popleft())
        change = write.change
        if isinstance(change, Append):
            for block in change.blocks:
                pending.append(block)
                if not history or history[-1][0] != block.epoch:
                    history.append((block.epoch, block.number))
        elif isinstance(change, Truncate):
            while pending and pending[-1].number > change.number:
                pending.pop()
            while history and history[-1][1] > change.number:
                history.pop()
        elif isinstance(change, Restart):
            stored.restart(change)
            pending.clear()
            base, history = change.cut, list(change.history)
            found = Recovered(complete=change.cut == 0, cut=change.cut, bound=change.bound, have=change.have)
            found = found._replace(read_at=change.read_at)
        elif isinstance(change, Fill):
            stored.fill(change)
            found = found._replace(after=change.upto, read_at=change.read_at, marked=not found.complete)
        elif isinstance(change, Complete):
            found = found._replace(complete=True, read_at=change.read_at, marked=False)
    found = found._replace(base=base, history=tuple(history), blocks=tuple(pending), messages=stored.last)
    return found, stored


class Front:
    """The queue at its master, as clients see it."""

    def __init__(self, stored: Stored, started: Started) -> None:
        self.epoch, self.number = started.epoch, started.number
        whole = Stored()
        whole.live, whole.gone, whole.last = dict(stored.live), set(stored.gone), stored.last
        for block in started.tail:
            whole.apply(block)
        self.ready = whole.live
        self.last = whole.last
        self.unacked: dict[int, float] = {}


class Link:
    def __init__(self, a: str, b: str) -> None:
        self.ends = (a, b)
        self.dead = False
        self.doomed = False
        self.mute: set[str] = set()  # Nodes whose frames are lost from now on.
        self.last: dict[str, float] = {}


class Node:
    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = False
        self.life = 0
        self.generation = 0  # Number of its member: events for an earlier one are void.
        self.version = 0  # Version of the newest view that its process has seen.
        self.disk_number = 0
        self.writes: list[Write] = []
        self.base_id = 0  # Writes before this life.
        self.synced = 0
        self.syncing = False
        self.speed = 1.0
        self.full = False
        self.member: Member | None = None
        self.stored = Stored()
        self.front: Front | None = None
        self.sides: dict[str, Link | None] = {}

    @property
    def disk(self) -> str:
        return f"{self.name}.{self.disk_number}"


class Publisher:
    def __init__(self) -> None:
        self.number = 0
        self.open: dict[int, int] = {}  # Message number → block.
        self.target: tuple[str, int, int] | None = None
        self.since = 0.0
        self.told: set[int] = set()
