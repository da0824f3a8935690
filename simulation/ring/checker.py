"""Checks a mirrored queue, whatever happens to its members.

The checker shares no code with the machine. It sees what a master confirms, what every disk has synced, what each
member applies and stores, and what publishers were told; it applies confirmed blocks in its own simple way.

- An epoch has one master, and no member is promoted that was not in sync, unless by force.
- A confirmed block stays confirmed: no other one ever has its number.
- When a block is confirmed, every disk in the committed in-sync set holds it, synced, with nothing missing below.
- A promoted member has everything that is confirmed.
- Members apply confirmed blocks only, each once, in order; and what they store is the sum of the blocks.
- Nothing is delivered again after its settle was confirmed.
- In the end all members hold the same, and everything that was confirmed to publishers is there, in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

Key = tuple[int, Any]


class Violation(AssertionError):
    """The replication, or this simulation, is wrong."""


def fingerprint(block: Any) -> Key:
    run = block.enqueued
    inside = (run.first, tuple(run.contents), bytes(run.kinds)) if run is not None else None
    return block.epoch, (inside, tuple(map(tuple, block.settled)), tuple(map(tuple, block.requeued)))


def item(seq: int, content: bytes) -> int:
    return hash((seq, content))


def total(live: Mapping[int, bytes]) -> int:
    found = 0
    for seq, content in live.items():
        found ^= item(seq, content)
    return found


class DiskLog:
    """The block numbers that one disk has synced."""

    def __init__(self) -> None:
        self.end = 0
        self.epochs: dict[int, int] = {}
        self.ancient: tuple[tuple[int, int], ...] = ()
        self.complete = True

    def add(self, change: Any) -> None:
        kind = type(change).__name__
        if kind == "Append":
            for block in change.blocks:
                self.end = block.number
                self.epochs[block.number] = block.epoch
        elif kind == "Truncate":
            for number in range(change.number + 1, self.end + 1):
                self.epochs.pop(number, None)
            self.end = min(self.end, change.number)
        elif kind == "Restart":
            self.end, self.epochs, self.ancient = change.cut, {}, change.history
            self.complete = change.cut == 0
        elif kind == "Complete":
            self.complete = True

    def epoch_at(self, number: int) -> int:
        if number > self.end:
            return -1
        if number in self.epochs:
            return self.epochs[number]
        return max((item for item in self.ancient if item[1] <= number), default=(0, 0))[0]


class Checker:
    def __init__(self) -> None:
        self.log: dict[int, Key] = {}  # Confirmed blocks.
        self.end = 0
        # Everything that was ever confirmed, and in which epoch.
        self.archive: dict[tuple[int, int], tuple[Key, int]] = {}
        self.live: dict[int, bytes] = {}
        self.sums: dict[int, int] = {0: 0}  # Checksums of the live messages after each block.
        self.settled: dict[int, tuple[int, bytes]] = {}  # The epoch in which the settle was confirmed, and the message.
        self.leaders: dict[int, tuple[str, int]] = {}
        self.applied: dict[str, int] = {}
        self.disks: dict[str, DiskLog] = {}
        self.lossy = 0
        self.lost_epoch = 0
        self.adopted = 0  # The start block of a master that was promoted by force although it lacked messages.
        self.adopted_epoch = 0
        self.adopt: dict[int, bytes] = {}  # What was left then.
        self.epochs: Mapping[int, int] = {}  # The epochs of the log of the last master promoted by force.
        self.told: dict[str, set[int]] = {}
        self.confirms = 0

    # -- disks -----------------------------------------------------------------------

    def on_synced(self, name: str, changes: Iterable[Any]) -> None:
        disk = self.disks.setdefault(name, DiskLog())
        for change in changes:
            disk.add(change)

    def on_disk_replaced(self, name: str, changes: Iterable[Any]) -> None:
        self.disks[name] = DiskLog()
        self.on_synced(name, changes)

    # -- views -----------------------------------------------------------------------

    def on_commit(self, old: Any, new: Any) -> None:
        if new.version != old.version + 1 or (new.epoch == old.epoch and new.master != old.master):
            raise Violation(f"{new} cannot follow {old}")
        if new.epoch != old.epoch and new.lossy != new.epoch and new.master not in [name for name, _ in old.in_sync]:
            raise Violation(f"{new.master} is promoted and was not in sync: {old}")
        self.lossy = new.lossy

    def on_started(
        self,
        name: str,
        life: int,
        epoch: int,
        lossy: int,
        number: int,
        epochs: Mapping[int, int],
        adopt: Mapping[int, bytes] | None,
    ) -> None:
        """`epochs`: the epoch of every number of its log before its start block. `adopt`: it was promoted by force
        although it lacked messages; this is left."""
        leader = self.leaders.setdefault(epoch, (name, life))
        if leader != (name, life):
            raise Violation(f"{leader} and {name} lead epoch {epoch}")
        if epoch < self.lossy:
            return  # Another was promoted by force meanwhile, unknown to it.
        if adopt is not None and lossy > 0:
            self.lost_epoch = lossy
            self.log, self.end, self.settled, self.sums = {}, number - 1, {}, {number - 1: 0}
            self.live, self.adopt, self.adopted, self.adopted_epoch = {}, dict(adopt), number, epoch
        elif adopt is not None:
            raise Violation(f"{name} lacks messages and leads epoch {epoch}")
        elif self.end < self.adopted and epochs.get(self.adopted) == self.adopted_epoch and lossy == self.lost_epoch:
            pass  # It returns with its start block, which was not confirmed yet.
        elif lossy > self.lost_epoch or (lossy and self.log.get(self.end, (0,))[0] < lossy):
            self.lost_epoch = lossy  # Once more, if it lost its start block again before that was confirmed.
            self.forgive(name, epochs, number)
        elif self.end >= self.adopted and self.end:
            last = self.log[self.end][0]
            # Otherwise there is already a later master, unknown to it.
            if last < epoch and epochs.get(self.end) != last:
                raise Violation(f"{name} leads epoch {epoch} without the confirmed block {self.end}")

    def forgive(self, name: str, epochs: Mapping[int, int], number: int) -> None:
        """After a forced promotion: what was ever confirmed of the new master's log, and is on its disk, is
        confirmed, and nothing else."""
        self.epochs = epochs
        if epochs.get(self.adopted) != self.adopted_epoch:
            self.adopted = 0
        disk = self.disks.get(name) or DiskLog()
        first = max(self.adopted, 1)
        self.log, self.end = {}, first - 1
        self.live, self.sums, self.settled = {}, {first - 1: 0}, {}
        for at in range(first, number):
            found = self.archive.get((epochs[at], at))
            if found is None or disk.epoch_at(at) != epochs[at]:
                break
            self.confirm(at, *found)

    # -- blocks ----------------------------------------------------------------------

    def on_applied(self, name: str, leads: bool, blocks: Iterable[Any], epoch: int) -> None:
        for block in blocks:
            if block.number != self.applied[name] + 1:
                raise Violation(f"{name} applies {block.number} after {self.applied[name]}")
            self.applied[name] = block.number
            key = fingerprint(block)
            if leads:
                self.archive[block.epoch, block.number] = key, epoch
            if epoch < self.lossy or self.lossy > self.lost_epoch:
                continue  # It does not know yet what was lost, or that is not decided yet.
            if block.number < self.adopted:
                continue
            while leads and self.end + 1 < block.number and self.end + 1 in self.epochs:  # Applied before it was lost.
                self.confirm(self.end + 1, *self.archive[self.epochs[self.end + 1], self.end + 1])
            if leads and block.number == self.end + 1:
                self.confirm(block.number, key, epoch)
            elif self.log.get(block.number) != key:
                raise Violation(
                    f"{name} applies {block.number} as {key}; confirmed is {self.log.get(block.number)} of {self.end}"
                )

    def confirm(self, number: int, key: Key, epoch: int) -> None:
        assert number == self.end + 1
        self.log[number] = key
        self.end = number
        sum_now = self.sums[number - 1]
        inside, settled, _ = key[1]
        if number == self.adopted:
            self.live, sum_now = dict(self.adopt), total(self.adopt)
        if inside is not None:
            first, contents, _ = inside
            for at, content in enumerate(contents):
                if first + at in self.live or first + at in self.settled:
                    raise Violation(f"message {first + at} is enqueued twice")
                self.live[first + at] = content
                sum_now ^= item(first + at, content)
        for low, high in settled:
            for seq in [seq for seq in self.live if low <= seq <= high]:
                content = self.live.pop(seq)
                sum_now ^= item(seq, content)
                self.settled[seq] = (epoch, content)
        self.sums[number] = sum_now

    def on_confirmed(self, name: str, epoch: int, durable: int, view: Any, disks: Mapping[str, str]) -> None:
        """A master confirms to its publishers. `disks`: the ids of existing disks."""
        self.confirms += 1
        if epoch < self.lossy or durable > self.end:
            if epoch >= self.lossy == self.lost_epoch:
                raise Violation(f"{name} tells publishers of {durable}; confirmed is {self.end}")
            return
        expected = self.log[durable][0]
        for member, disk in view.in_sync:
            if disks.get(member) != disk:
                continue
            log = self.disks.get(member) or DiskLog()
            if log.epoch_at(durable) != expected or not log.complete:
                raise Violation(
                    f"{name} confirms {expected}/{durable}, and in-sync {member} has {log.epoch_at(durable)} of "
                    f"{log.end} on disk, complete: {log.complete}; {view}"
                )

    def on_delivery(self, name: str, epoch: int, seq: int, content: bytes) -> None:
        settled = self.settled.get(seq)
        if settled is None or settled[1] != content or self.lost_epoch != self.lossy:
            return
        if settled[0] <= epoch and epoch >= self.lossy:
            raise Violation(f"{name} delivers {seq} again; its settle was confirmed in epoch {settled[0]}")

    # -- states ----------------------------------------------------------------------

    def on_state(self, name: str, number: int, live: Mapping[int, bytes]) -> None:
        """Checks what a complete member stores when it has applied `number`."""
        if number in self.sums and number >= self.adopted and total(live) != self.sums[number]:
            raise Violation(f"{name} stores something else at {number}: {len(live)} messages")

    def at_the_end(
        self, ends: Mapping[str, tuple[int, int, int, bool]], states: Mapping[str, Mapping[int, bytes]], lossy: bool
    ) -> None:
        """`ends`: last epoch, end, confirmed and completeness of each member."""
        if len(set(ends.values())) > 1:
            raise Violation(f"members differ: {ends}")
        _, end, confirmed, complete = next(iter(ends.values()))
        if confirmed != end or not complete or (end != self.end and not lossy):
            raise Violation(f"not all is confirmed: {ends}; {self.end}")
        for name, live in states.items():
            self.on_state(name, end, live)
        if lossy:
            return
        where: dict[bytes, int] = {}
        for number in range(1, self.end + 1):
            inside = self.log[number][1][0]
            for at, content in enumerate(inside[1] if inside is not None else ()):
                where.setdefault(content, inside[0] + at)
        for publisher, numbers in self.told.items():
            places = [where.get(f"{publisher}{number}".encode()) for number in sorted(numbers)]
            if None in places:
                raise Violation(f"{publisher} was told that all of {sorted(numbers)} are safe")
            if places != sorted(places, key=lambda place: place or 0):
                raise Violation(f"the messages of {publisher} are out of order")
