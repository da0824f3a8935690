"""Logs what happens to mirrored queues, in the lines that people know from RabbitMQ's log, and counts it.

A node that dies takes ten thousand mirrors along, and a line for each, written while their queues wait for a new
master, would make them wait longer. So there is a budget of lines; of those that do not fit, the number is logged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from leveret.base.visible_text import visible
from leveret.broker.mirrors.status import Counts, copy_pid, is_syncing, lacking, lags

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.mirrors.manager import Mirror
    from leveret.metadata.model.view import View

LINES_MAX: Final = 200  # Lines at once.
LINES_PER_TICK: Final = 2  # Lines per tick when those are used up.
PATIENCE_TICKS: Final = 50  # How long mirrors have to report what they lack.
TOLD_AT_ONCE: Final = 100


class LogLines:
    """The log lines and counters about the mirrored queues of one node."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.counts = Counts()
        self._lines = LINES_MAX
        self._left_out = 0
        self._told = 0  # `_left_out` at the last tick.
        self.begun: dict[Mirror, int] = {}  # Syncs not logged yet: ticks left to wait for what mirrors lack.

    # -- Events --------------------------------------------------------------------------------------------------

    def on_view(self, mirror: Mirror, old: View | None, born: bool) -> None:
        """This node follows another view of the queue. `born`: the queue, or its mirroring, begins with it."""
        member, view = mirror.member, mirror.member.view
        if view is None or (old is not None and view.version == old.version):
            return
        if old is not None:
            self.counts.view_changes += 1
        told = self.broker.journal
        if told is not None:
            told.on_view(mirror, view)
        if member.master is None:
            return
        if not born and (old is None or old.epoch != view.epoch):
            self._promoted(mirror, view)
            if told is not None:
                told.on_promoted(mirror, view, "" if old is None else old.master)
        before = old.ring if old is not None else (member.me,)
        for name in view.ring:
            if name not in before:
                self.broker.mirrors.allow_sync(mirror)  # A new mirror is filled as the policy says.
                self.note(mirror, f"Adding mirror on node {name}: {copy_pid(name, mirror.spec.id)}")
        for name in before:
            if name not in view.ring:
                self.note(mirror, f"Dropping queue mirror on node {name}")
        self.on_sync(mirror)

    def _promoted(self, mirror: Mirror, view: View) -> None:
        self.counts.promotions += 1
        self.note(mirror, f"Promoting mirror {copy_pid(view.master, mirror.spec.id)} to leader")
        if view.lossy == view.epoch:
            self.counts.forced_promotions += 1
            self.note(mirror, "Promoted by force: messages that this copy lacked are lost", "warning")

    def on_peer_up(self, mirror: Mirror, peer: str) -> None:
        view = mirror.member.view
        if mirror.member.master is not None and view is not None and peer in view.ring:
            self.broker.mirrors.allow_sync(mirror)
            self.on_sync(mirror)

    def on_peer_down(self, mirror: Mirror, peer: str) -> None:
        view = mirror.member.view
        if view is None or peer not in view.ring:
            return
        leads, number = mirror.member.master is not None, mirror.spec.id
        mine, gone = copy_pid(mirror.member.me, number), copy_pid(peer, number)
        which = "Primary" if leads else "Secondary"
        self.note(mirror, f"{which} replica of queue {mine} detected replica {gone} to be down")
        if leads:
            self.on_sync(mirror)

    def on_order(self, mirror: Mirror, wanted: bool) -> bool:
        """An operator wants the mirrors to be synchronised, or not to be. False: there is nothing to do."""
        if lacking(mirror):
            return True
        if wanted:
            self.note(mirror, "Synchronising: all mirrors already synced")
        return False

    def on_sync(self, mirror: Mirror) -> None:
        """At the master: which mirrors lack messages, or whether they fetch them, may have changed."""
        queue, view = mirror.queue, mirror.member.view
        if view is None or queue is None or is_syncing(mirror) == mirror.syncing:
            return
        mirror.set_syncing(not mirror.syncing)
        self.broker.mirrors.block(mirror)
        missing = [name for name in view.ring if view.disk_of(name) is None]
        if self.broker.journal is not None:
            self.broker.journal.on_sync(mirror, view, missing)
        if mirror.syncing:
            self.begun[mirror] = PATIENCE_TICKS
            self.tell_begun(mirror)
            return
        if self.begun.pop(mirror, None) is not None:
            self._note_begun(mirror, self._lacked(mirror))
        if missing:
            self.note(mirror, f"Synchronising: stopped, mirrors [{', '.join(missing)}] are not synchronised")
        else:
            self.note(mirror, "Synchronising: complete")

    def tell_begun(self, mirror: Mirror) -> None:
        """Log that a sync has begun, once the mirrors have said what they lack: that may be little of a long queue."""
        lacked = self._lacked(mirror)
        if lacked is not None or self.begun[mirror] < 0:
            del self.begun[mirror]
            self._note_begun(mirror, lacked)

    def _lacked(self, mirror: Mirror) -> int | None:
        """Returns how many messages the mirror lacks that lacks most; None: not all have said it."""
        wanted = set(lacking(mirror))
        found = [lag.messages for lag in lags(mirror, self.broker.mirrors.store, 0) if lag.node in wanted]
        known = [count for count in found if count is not None]
        return max(known) if known and len(known) == len(found) else None

    def _note_begun(self, mirror: Mirror, lacked: int | None) -> None:
        queue = mirror.queue
        if queue is None:
            return  # Another node leads it by now.
        if lacked is None:
            lacked = queue.ready_count + queue.unacked_count
        if lacked:  # A mirror that was away briefly gets the last blocks, maybe before it reports.
            self.note(mirror, f"Synchronising: {lacked} messages to synchronise")
        self.note(mirror, f"Synchronising: mirrors [{', '.join(lacking(mirror))}] to sync")

    # -- Lines ---------------------------------------------------------------------------------------------------

    def note(self, mirror: Mirror, text: str, level: str = "info") -> None:
        if self._lines > 0:
            self._lines -= 1
            queue = visible(f"'{mirror.spec.name}' in vhost '{mirror.spec.vhost}'")
            self.broker.node.note("mirroring", level, f"Mirrored queue {queue}: {text}")
        else:
            self._left_out += 1

    def tick(self) -> None:
        for mirror in list(self.begun)[:TOLD_AT_ONCE]:
            self.begun[mirror] -= 1
            self.tell_begun(mirror)
        if self._lines >= LINES_MAX:
            return
        self._lines += LINES_PER_TICK
        if self._left_out and self._left_out == self._told:  # No line was left out since the last tick.
            self.broker.node.note("mirroring", "info", f"Mirrored queues: {self._left_out} more lines like these")
            self._left_out = 0
        self._told = self._left_out
