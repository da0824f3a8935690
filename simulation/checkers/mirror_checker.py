"""Checks mirrored queues from outside: by the metadata, the masters, and the applied blocks.

    no gap          a policy that replaces a mirror keeps the old one until the new one is in sync
    one master      a queue has one master in an epoch
    no force        no promotion is forced unless a policy or an operator has asked for it
    everywhere      what is confirmed is on the disk of every living member in sync, unless its queue is deleted
    equal           a block that two members have applied is the same at both, whoever made it
    kept            as in `ledger`, as long as one of the disks survives that the queue's view calls in sync
    served          within a bounded time after everything is healed, each queue has a master that serves, and its
                    mirrors are those that its policy wants, and in sync
    one by one      messages of one channel enter a queue in the order in which they were published, each once with any
                    master: whether they came directly or from a spool
    alike           in the end each member, made master in turn, has the same messages in the same order
    not copied      what a policy forbids to copy is not copied: see `sync_checker`

There are two taps: `MirrorStore.apply` of each node, whose blocks are hashed here, and the views in the nodes'
metadata.

**Late deliveries.** A queue that changes its master has no "own node" that the ledger could know by itself.
`MirroredLedger` asks what the node that wrote a delivery knew at that moment. If another epoch had begun that it did
not know of, the delivery is one of a former master, which nobody can call back; and if the link to the master that it
knew was lost a moment ago, the master may have delivered the message to another client. All other deliveries are
checked against what all clients were told, across any number of masters.

**What may be lost.** Two things that a user can ask for lose messages: asynchronous replication, in which a confirm
means only that the master has the message, and a forced promotion, by a policy or by an operator. What is lost depends
on logs, not on time. Each message is in one block, of one epoch. A master begins with the log it has: blocks of older
epochs that it lacks are lost, whichever node still has them and confirms them until it learns of the new master. So
`Losses` records the blocks of messages, and the log that each master began with. Of what was confirmed while the queue
was asynchronous, only those messages may be missing that a later master's log does not hold; after a forced promotion,
those in blocks of older epochs. Everything else must be there.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.queue.local_queue import LocalQueue
from leveret.metadata.rules.ha_policy import QUORUM_MEMBERS, is_quorum, is_stream
from leveret.replication.log_tail import epoch_of
from leveret.replication.ring_frames import Append
from simulation.amqp.contents import number_of
from simulation.checkers.ledger import Delivery, Ledger, Message, in_order
from simulation.checkers.sync_checker import SyncChecker, policy_of

if TYPE_CHECKING:
    from leveret.metadata.model.records import QueueSpec
    from leveret.metadata.model.view import View
    from leveret.metadata.rules.ha_policy import Rules
    from leveret.node.node import Node
    from leveret.replication.master import Master
    from leveret.storage.format.queue_block import Block

GRACE_S: Final = 0.02  # From when a node knows of another master until everything from the last one is written.
LINK_S: Final = 20.0  # Time after a link was lost until the last bytes it brought are written.


class Timeline:
    """A value that changes over time."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.values: list[tuple[int, str]] = []

    def put(self, at: float, value: tuple[int, str]) -> None:
        if not self.values or self.values[-1] != value:
            self.times.append(at)
            self.values.append(value)

    def at(self, time: float) -> tuple[int, str]:
        found = bisect_right(self.times, time)
        return self.values[found - 1] if found else (0, "")

    def changes(self, since: float, until: float) -> bool:
        return bisect_right(self.times, since) < bisect_right(self.times, until)


class Beginning(NamedTuple):
    """The log that a master began its epoch with."""

    epoch: int
    start: int  # The number of the first block of its own.
    history: tuple[tuple[int, int], ...]
    lossy: int  # The epoch of the last forced promotion before it; 0: there was none.

    def lacks(self, epoch: int, number: int) -> bool:
        """Returns whether a block of an older epoch is not in the log."""
        return epoch < self.epoch and (number >= self.start or epoch_of(self.history, number)[0] != epoch)


class Losses:
    """The messages of a queue that may be missing because an operator asked for it."""

    def __init__(self) -> None:
        self.spans: list[list[float]] = []  # Periods in which some node took the queue for asynchronous.
        self.saying: set[str] = set()  # The nodes that do so now.
        self.blocks: dict[int, tuple[int, int]] = {}  # Epoch and number of the block of each message.
        self.beginnings: dict[int, Beginning] = {}  # By epoch.

    def on_rules(self, node: str, asynchronous: bool, now: float) -> None:
        before = bool(self.saying)
        (self.saying.add if asynchronous else self.saying.discard)(node)
        if self.saying and not before:
            self.spans.append([now, float("inf")])
        elif before and not self.saying:
            self.spans[-1][1] = now

    def is_loose(self, since: float, until: float) -> bool:
        """Returns whether a confirm in this time may have been the master's alone."""
        return any(start <= until and since <= end for start, end in self.spans)

    def may_miss(self, message: Message) -> bool:
        return self.may_lack(message.number, message.published_at, message.confirmed_at)

    def may_lack(self, number: int, since: float, until: float | None, first: int = 0) -> bool:
        """`since`, `until`: when it was on its way; None: nobody was told that it is there. `first`: it has come in no
        earlier epoch than this."""
        epoch, block = self.blocks.get(number, (first, 0))
        if any(one.lossy > epoch for one in self.beginnings.values()):
            return True
        if number not in self.blocks or until is None or not self.is_loose(since, until):
            return False
        return any(one.lacks(epoch, block) for one in self.beginnings.values())

    def may_forget(self, since: tuple[float, int], until: tuple[float, int]) -> bool:
        """Returns whether something recorded in the first of two epochs may be unknown in the second."""
        later = [one for one in self.beginnings.values() if since[1] < one.epoch <= until[1]]
        return any(one.lossy > since[1] for one in later) or (until[1] > since[1] and self.is_loose(since[0], until[0]))


class MirroredLedger(Ledger):
    """A ledger for mirrored queues."""

    def __init__(
        self, fail: Callable[[str], None], note: Callable[[str, str], None], clock: Callable[[], float]
    ) -> None:
        super().__init__(fail, note, clock)
        self.agreed: dict[str, Timeline] = {}  # By queue: epoch and master, as soon as any node knows of them.
        self.known: dict[tuple[str, str], Timeline] = {}  # By node and queue: epoch and master as that node knows them.
        self.alone: dict[str, Timeline] = {}  # By queue: whether it had mirrors, and has none any more.
        self.losses: dict[str, Losses] = {}  # By queue.
        self.check_confirmed: Callable[[Message], None] = lambda message: None

    def on_confirmed(self, message: Message, at: float) -> None:
        super().on_confirmed(message, at)
        self.check_confirmed(message)

    def losses_of(self, queue: str) -> Losses:
        return self.losses.setdefault(queue, Losses())

    def may_be_lost(self, message: Message) -> bool:
        return self.losses_of(message.queue).may_miss(message)

    def may_come_back(self, message: Message, at: float) -> bool:
        assert message.settled_at is not None
        # An acknowledgement comes some time after the delivery: the promise may be as old as that.
        since = min(one.written_at for one in message.deliveries)
        return self._may_forget(message.queue, since, at)

    def _may_forget(self, queue: str, since: float, until: float, epoch: int | None = None) -> bool:
        """`epoch` is that of the master that made the promise, which may have been a former one without knowing."""
        agreed = self.agreed.get(queue)
        if agreed is None:
            return False
        began = agreed.at(since)[0] if epoch is None else min(epoch, agreed.at(since)[0])
        return self.losses_of(queue).may_forget((since, began), (until, agreed.at(until)[0]))

    def on_wiped(self, node: str) -> None:
        """What a lost disk means for a queue follows from its view."""

    def on_lost(self, queue: str) -> None:
        facts = self.queue(queue)
        if not facts.lost:
            self.note("checker", f"{queue} has lost its last disk")
        facts.lost, facts.declared = True, False

    def at(self, queue: str, node: str, time: float) -> tuple[int, str]:
        """Returns the epoch and master that a node knew."""
        found = self.known.get((node, queue))
        return (0, "") if found is None else found.at(time)

    def in_hand(self, deliveries: Iterable[Delivery], queue: str, node: str) -> int:
        """Deliveries of the previous master do not count for the new one."""
        here = self.known.get((node, queue))
        since = here.times[-1] if here is not None and here.times else 0.0
        if any(since - LINK_S <= at for at in self._downs(queue, node, self.clock())):
            return 0
        return sum(one.written_at > since + GRACE_S for one in deliveries)

    def was_heard(self, message: Message, delivery: Delivery, at: float) -> bool:
        """The confirm that proves it came from the ring (see `clients.session`: not from a spool). But the
        acknowledgement counts only if the master that got it made this very delivery: the next one may have
        delivered the message to another client, and so may the same one, if it requeued unacknowledged messages
        because the link of the delivery was lost. And a get that its master handed on to the next comes back through
        the former, which may end before it has passed on the acknowledgement."""
        since = delivery.written_at if delivery.asked_at is None else delivery.asked_at
        here, agreed = self.known.get((delivery.node, message.queue)), self.agreed.get(message.queue)
        if here is None or agreed is None:
            return False
        if here.changes(since - GRACE_S, at) or agreed.changes(since - GRACE_S, at):
            return False
        if any(since - GRACE_S <= down <= at for down in self._downs(message.queue, delivery.node, at)):
            return False
        return not self._is_late(message.queue, delivery.node, since, at)

    def _is_late(self, queue: str, node: str, since: float, until: float) -> bool:
        if any(since <= end and start <= until for start, end in self.queue(queue).moves):
            return True
        agreed = self.agreed.get(queue)
        knew = self.at(queue, node, until - GRACE_S)
        if agreed is None or agreed.at(until)[0] > knew[0]:
            return True
        return any(until - LINK_S <= at <= until for at in self._downs(queue, node, until))

    def is_behind(self, queue: str, node: str, at: float) -> bool:
        return self.was_behind(queue, node, at)

    def was_behind(self, queue: str, node: str, at: float) -> bool:
        agreed = self.agreed.get(queue)
        return agreed is not None and agreed.at(at)[0] > self.at(queue, node, at)[0]

    def _downs(self, queue: str, node: str, until: float) -> list[float]:
        """Returns when the link to the master that the node knows was lost."""
        master = self.at(queue, node, until)[1]
        return self.downs.get((min(master, node), max(master, node)), []) if master != node else []

    def _check_flag(self, message: Message, delivery: Delivery) -> None:
        for other in message.deliveries:
            first, second = in_order(other, delivery)
            if not second.redelivered and not self._may_be_forgotten(message, first, second):
                self.fail(
                    f"{message} was delivered at {first.written_at:.6f} and once more at {second.written_at:.6f}, to "
                    f"{second.consumer or 'basic.get'}, without a word about it"
                )

    def _may_be_forgotten(self, message: Message, first: Delivery, second: Delivery) -> bool:
        """Returns whether the first of two deliveries may be unknown. Not while a queue has mirrors, unless its
        replication mode allows it: mirrors learn of a delivery before it is made. Without mirrors (epoch 0) it is as
        with every queue."""
        agreed, queue = self.agreed.get(message.queue), message.queue
        epoch = self.at(queue, first.node, first.written_at)[0]
        if self._may_forget(queue, first.written_at, second.written_at, epoch):
            return True
        # All nodes that knew the first delivery may be lost, and the delivery with them.
        if first.written_at < message.sent_at < second.written_at:
            return self._crashed(queue, first.written_at, second.written_at)
        without = self.alone.get(queue, Timeline()).at(first.written_at)[0]
        if without or agreed is None or not agreed.at(message.published_at)[0] or not agreed.at(first.written_at)[0]:
            return self._crashed(queue, message.published_at, second.written_at)
        return False


class MirrorChecker:
    """Checks the mirrors of all queues."""

    def __init__(
        self,
        fail: Callable[[str], None],
        ledger: MirroredLedger,
        clock: Callable[[], float],
        serves: Callable[[str], bool],
    ) -> None:
        self.fail = fail
        self.serves = serves
        self.ledger = ledger
        self.clock = clock
        self.views: dict[int, View] = {}  # By queue id: the newest view.
        self.ended: dict[int, list[int]] = {}  # By queue id: the last epochs of rings that have ended, ascending.
        # By queue id: versions of the newest view, counting the end of a ring as one.
        self.versions: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.masters: dict[tuple[int, int], str] = {}  # By queue id and epoch.
        # Id, ring (see `_ring`) and number: epoch, and the node that applied it first.
        self.blocks: dict[tuple[int, int, int], tuple[int, str]] = {}
        self.digests: dict[tuple[int, int, int], tuple[str, str]] = {}  # Id, epoch and number, likewise.
        self.wiped: set[str] = set()  # Ids of data folders that were lost.
        self.gone: set[str] = set()  # Nodes whose disk is lost, until they have joined again.
        self.may_be_forced: set[str] = set()  # Queues that may lose messages by a forced promotion.
        self.copies = SyncChecker(fail, clock)
        self.living: dict[str, Node] = {}
        self.led: set[tuple[str, int, int]] = set()  # Node, id and epoch: masters that were looked at.
        self.appended: dict[tuple[int, int], int] = {}  # Id and epoch: the last block of its master.
        self.last_of: dict[tuple[int, int, str], int] = {}  # Id, epoch and lane: the last message in those blocks.
        ledger.check_confirmed = self._check_confirmed
        self.tapped: dict[str, object] = {}
        self.applied: dict[str, int] = {}
        self.holders: dict[tuple[str, int], int] = {}  # Queue and message: the id of the queue whose block has it.
        self.existed: dict[int, int] = {}  # By queue id: the last command after which a node had the queue.
        self.deleted: set[int] = set()  # Ids of queues that some node has deleted, as all have agreed.

    # -- What nodes show -----------------------------------------------------------------------------------------

    def observe(self, name: str, node: Node) -> None:
        mirrors = node.broker.mirrors
        self.living[f"leveret@{name}"] = node
        if mirrors.store is not None and self.tapped.get(name) is not mirrors.store:
            self._tap(name, mirrors.store)
        if self.applied.get(name) != node.cluster.applied_index:
            self.applied[name] = node.cluster.applied_index
            for spec in node.metadata.queues.values():
                self._on_spec(name, spec)
                self._on_rules(name, spec.name, node.member_changes.rules_of(spec))
            self._look_for_deleted({spec.id for spec in node.metadata.queues.values()}, node.cluster.applied_index)
        self.copies.observe(name, node)
        for number, mirror in mirrors.mirrors.items():
            master = mirror.member.master
            if master is not None and (name, number, master.epoch) not in self.led:
                self.led.add((name, number, master.epoch))
                self._on_master(name, mirror.spec, master)

    def _on_spec(self, name: str, spec: QueueSpec) -> None:
        view, queue, now = spec.view, spec.name, self.clock()
        master = spec.node.partition("@")[2]
        value = (0 if view is None else view.epoch, master)
        self.ledger.known.setdefault((name, queue), Timeline()).put(now, value)
        agreed = self.ledger.agreed.setdefault(queue, Timeline())
        if self.names.setdefault(spec.id, queue) == queue and (not agreed.values or agreed.values[-1][0] <= value[0]):
            agreed.put(now, value)
        elif spec.id == max(number for number, one in self.names.items() if one == queue):
            if spec.id not in self.views and view is not None:
                agreed.put(now, value)  # Declared again.
        version = spec.last_version if view is None else view.version
        if version > self.versions.get(spec.id, 0):
            self.versions[spec.id] = version
            self.ledger.alone.setdefault(queue, Timeline()).put(now, (int(view is None), ""))
        if view is None:
            ended = self.ended.setdefault(spec.id, [])
            if spec.last_epoch > (ended[-1] if ended else 0):
                ended.append(spec.last_epoch)
            if master in self.gone:
                self.ledger.on_lost(queue)
            return
        before = self.views.get(spec.id)
        if before is None or before.version < view.version:
            self.views[spec.id] = view
            if view.lossy > (before.lossy if before is not None else 0) and queue not in self.may_be_forced:
                self.fail(f"{view.master} leads {queue} by force, and nobody asked for that: {view} after {before}")
            self._look_for_disks(spec.id)
            if before is not None:
                self._check_leaving(queue, before, view)

    def _look_for_deleted(self, existing: set[int], index: int) -> None:
        """Gets the ids of all queues that a node has after a command. No id is given twice."""
        for number in existing:
            self.existed[number] = max(index, self.existed.get(number, 0))
        # A node that was reset has applied less than the others, and has deleted nothing.
        self.deleted |= {number for number, last in self.existed.items() if number not in existing and index > last}

    def _on_rules(self, name: str, queue: str, rules: Rules) -> None:
        """Records the rules that a node applies to a queue."""
        if rules.asynchronous or queue in self.ledger.losses:
            self.ledger.losses_of(queue).on_rules(name, rules.asynchronous, self.clock())
        if rules.on_failure_always or rules.on_shutdown_always:
            self.may_be_forced.add(queue)

    def on_force(self, queue: str) -> None:
        """An operator is about to promote a copy by force."""
        self.may_be_forced.add(queue)

    def _check_leaving(self, queue: str, old: View, new: View) -> None:
        """Checks that a policy removes no copy that is needed until another is synchronised."""
        gone = [name for name, _ in old.in_sync if name not in new.ring and self.serves(name)]
        alone = len(new.in_sync) == 1 < len(new.ring) and all(map(self.serves, new.ring))
        if new.version == old.version + 1 and new.epoch == old.epoch and gone and alone:
            self.fail(f"{queue} gave up the copy of {gone}, with {new.in_sync} left of {new.ring}")

    def _on_master(self, name: str, spec: QueueSpec, master: Master) -> None:
        epoch = master.epoch
        first = self.masters.setdefault((spec.id, epoch), name)
        if first != name:
            self.fail(f"{first} and {name} both lead {spec.name} in epoch {epoch}")
        beginnings = self.ledger.losses_of(spec.name).beginnings
        if epoch not in beginnings:
            history = tuple(master.member.tail.history_to(master.start_number - 1))
            beginnings[epoch] = Beginning(epoch, master.start_number, history, master.view.lossy)

    def on_died(self, name: str) -> None:
        self.living.pop(f"leveret@{name}", None)

    def _check_confirmed(self, message: Message) -> None:
        """Checks that a confirmed message is on the disk of every living member in sync."""
        losses = self.ledger.losses_of(message.queue)
        epoch, number = losses.blocks.get(message.number, (0, 0))
        holder = self.holders.get((message.queue, message.number), 0)
        if not epoch or holder not in self.views or losses.is_loose(message.published_at, self.clock()):
            return
        if holder in self.deleted:
            return  # Its messages are confirmed, also before each member knows that it is deleted.
        if message.number in self.ledger.spooled:
            return  # It is spooled on disk, and will be sent on.
        if self.ledger.queue(message.queue).lost or any(one.lossy > epoch for one in losses.beginnings.values()):
            return
        for name, disk in self.views[holder].in_sync:
            node = self.living.get(name)
            mirror = None if node is None else node.broker.mirrors.mirrors.get(holder)
            if mirror is None or mirror.member.disk != disk:
                continue
            member = mirror.member
            ring = self._ring(holder, epoch)
            # For the present ring, everything before it belongs to one epoch.
            if ring < len(self.ended.get(holder, ())):
                known = self.blocks.get((holder, ring, number), (0, ""))[0] == epoch
            else:
                known = member.tail.epoch_at(number) == epoch
            if not known or (message.persistent and member.own_durable < number):
                self.fail(f"{message} is confirmed, and {name}, which is in sync, does not have it on disk")

    # -- Disks ---------------------------------------------------------------------------------------------------

    def on_wiped(self, name: str, node: Node) -> None:
        self.wiped.add(node.cluster.me.id)
        self.gone.add(name)
        for number in self.views:
            self._look_for_disks(number)
        for spec in node.metadata.queues.values():
            if spec.view is None and spec.node == node.settings.node_name:
                self.ledger.on_lost(spec.name)

    def on_forsaken(self, former: str) -> None:
        """A node gets another id, so that its copies do not count as the old ones."""
        self.wiped.add(former)
        for number in self.views:
            self._look_for_disks(number)

    def on_rejoined(self, name: str) -> None:
        self.gone.discard(name)

    def _look_for_disks(self, number: int) -> None:
        if all(disk.partition(".")[0] in self.wiped for _, disk in self.views[number].in_sync):
            self.ledger.on_lost(self.names[number])

    # -- Blocks --------------------------------------------------------------------------------------------------

    def _tap(self, name: str, store: Any) -> None:
        self.tapped[name] = store
        apply, write = store.apply, store.write

        def tapped_apply(effect: Any) -> None:
            for block in effect.blocks:
                self._on_applied(name, block)
            apply(effect)

        def tapped_write(number: int, effect: Any) -> None:
            if isinstance(effect.change, Append):
                for block in effect.change.blocks:
                    self._on_appended(block)
            write(number, effect)

        store.apply, store.write = tapped_apply, tapped_write

    def _on_appended(self, block: Block) -> None:
        run = block.enqueued
        if run is None or block.queue not in self.names:
            return
        queue, numbers = self.names[block.queue], list(map(number_of, run.contents))
        if block.number > self.appended.get((block.queue, block.epoch), 0):
            self.appended[block.queue, block.epoch] = block.number
            for number in numbers:
                self._check_entry(block, queue, number)
        blocks = self.ledger.losses_of(queue).blocks
        for number in numbers:  # Producers publish again what was lost with a master: see `clients.producer`.
            blocks[number] = max(blocks.get(number, (0, 0)), (block.epoch, block.number))
            self.ledger.on_shared(queue, number)
            self.holders[queue, number] = max(self.holders.get((queue, number), 0), block.queue)

    def _check_entry(self, block: Block, queue: str, number: int) -> None:
        """Checks that a master enqueues a message once, and after all earlier ones of its channel."""
        message = self.ledger.message_of(queue, number)
        lane = None if message is None or message.queue != queue else self.ledger.lane(message)
        if lane is None:
            return
        last = self.last_of.get((block.queue, block.epoch, lane), 0)
        if number == last and not self.ledger.may_be_twice(queue, number):
            self.fail(f"{message} has entered it twice, in epoch {block.epoch}")
        if number < last:
            self.fail(f"{message} has entered it behind message {last}, which was published later")
        self.last_of[block.queue, block.epoch, lane] = max(last, number)

    def _on_applied(self, name: str, block: Block) -> None:
        queue = self.names.get(block.queue, "?")
        if self.ledger.queue(queue).lost:
            return
        digest = digest_of(block)
        known, by = self.digests.setdefault((block.queue, block.epoch, block.number), (digest, name))
        if known != digest:
            self.fail(f"block {block.number} of epoch {block.epoch} of {queue} is another one at {name} than at {by}")
        ring = self._ring(block.queue, block.epoch)
        epoch, by = self.blocks.setdefault((block.queue, ring, block.number), (block.epoch, name))
        forced = any(one.lossy for one in self.ledger.losses_of(queue).beginnings.values())
        if epoch != block.epoch and not forced:
            self.fail(f"block {block.number} of {queue}: {name} applies one of epoch {block.epoch}, "
                      f"and {by} has applied another one of epoch {epoch}")  # fmt: skip

    def _ring(self, number: int, epoch: int) -> int:
        """Returns the queue's ring that an epoch belongs to. Between two rings the log has no epochs, and may be
        copied to another node, so the next ring numbers its blocks from the start."""
        return bisect_left(self.ended.get(number, ()), epoch)

    # -- The end -------------------------------------------------------------------------------------------------

    def unserved(self, queues: Iterable[str], nodes: dict[str, Node], empty: bool = False) -> list[str]:
        """Returns queues that are not as they should be, and why. Mirrors of a queue that is not synchronised
        automatically may lack messages, and keep other mirrors in place, unless the queue is empty."""
        found = []
        for queue in queues:
            if not self.ledger.queue(queue).lost:
                problem = self._problem(queue, nodes, empty)
                if problem is not None:
                    found.append(f"{queue} {problem}")
        return found

    def _problem(self, queue: str, nodes: dict[str, Node], empty: bool) -> str | None:
        leading = {name: node for name, node in nodes.items() if self._leads(queue, node)}
        if len(leading) != 1:
            return f"is led by {sorted(leading) or 'nobody'}"
        ((name, node),) = leading.items()
        led = node.broker.vhosts["/"].queues[queue]
        assert isinstance(led, LocalQueue)
        wanted = self._wanted(queue, node, {one.settings.node_name for one in nodes.values()})
        if led.mirror is None:
            alone = wanted is None or wanted == (1, {node.settings.node_name})
            return None if alone else f"is at {name} and not mirrored; it should have {wanted}"
        view = led.mirror.member.view
        assert view is not None
        if wanted is None and not self._is_named(queue, node):
            return f"is still a ring, though nobody wants it mirrored: {view}"
        policy = policy_of(node, led.spec)
        if policy is not None and policy.get("ha-sync-strategy") == "event" and not empty:
            return None if led.mirror.member.serving else f"is not served by {name}"
        if len(view.ring) != wanted[0] or not wanted[1] <= set(view.ring) if wanted else len(view.ring) != 1:
            return f"should have {wanted or 'no'} mirrors, and its ring is {view.ring}"
        if not led.mirror.member.serving:
            return f"is not served by {name}"
        lacking = sorted(set(view.ring) - {one for one, _ in view.in_sync})
        return f"has members that are not in sync: {lacking}, view {view}" if lacking else None

    def _wanted(self, queue: str, node: Node, members: set[str]) -> tuple[int, set[str]] | None:
        """Returns how many members the policy gives a queue, and which of them by name; None: the queue is not
        mirrored."""
        if is_quorum(node.metadata.queues["/", queue].arguments):
            return min(QUORUM_MEMBERS, len(members)), set()
        if is_stream(node.metadata.queues["/", queue].arguments):
            return len(members), members
        policy = node.metadata.policies.get(("/", "ha"))
        if policy is None or not re.search(policy.pattern, queue):
            return None
        mode, params = policy.definition["ha-mode"], policy.definition.get("ha-params")
        if mode == "all":
            return len(members), members
        if isinstance(params, int):
            return (min(params, len(members)), set()) if params > 1 else None
        assert isinstance(params, list)
        return len(params), {str(name) for name in params}

    def _is_named(self, queue: str, node: Node) -> bool:
        """Returns whether a policy says something about its copies, even if only that there is one."""
        policy = node.metadata.policies.get(("/", "ha"))
        return policy is not None and re.search(policy.pattern, queue) is not None

    def _leads(self, queue: str, node: Node) -> bool:
        return isinstance(node.broker.vhosts["/"].queues.get(queue), LocalQueue)

    def summary(self) -> str:
        return f"{len(self.masters)} reigns, {len(self.blocks)} mirrored blocks"


def digest_of(block: Block) -> str:
    """Returns a digest of everything that a block changes when it is applied."""
    run = block.enqueued
    held = () if run is None else (run.first, [bytes(one) for one in run.contents], [bytes(one) for one in run.keys])
    ranges = [[tuple(pair) for pair in pairs] for pairs in (block.settled, block.requeued)]
    text = repr((block.epoch, ranges, block.delivered_through, held))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
