"""Deliberate bugs: pieces of functions that are replaced, with the number of nodes in whose simulation they show."""

from __future__ import annotations

from typing import Final, NamedTuple

import pytest

from tests.support.mutating import Change, check, replace


class Mutation(NamedTuple):
    name: str
    nodes: int
    function: str
    old: str
    new: str
    first: int = 0  # Seed to begin with.
    mirrored: bool = False
    varied: bool = False
    featured: bool = False
    special: bool = False
    strategies: bool = False
    paired: bool = False
    witnessed: bool = False
    spooled: bool = False

    @property
    def change(self) -> Change:
        return Change(self.function, self.old, self.new)


def put(patch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    replace(patch, mutation.name, mutation.change)


def check_code(mutation: Mutation) -> None:
    check(mutation.name, mutation.change)


ALONE: Final = (
    Mutation(
        "confirms before the sync",
        1,
        "Storage._take_block",
        "self.in_blocks[block.queue, block.number] = (queue, batch, queue.take_awaiting())",
        "self.in_blocks[block.queue, block.number] = (queue, batch, [])\n"
        "[pending.on_safe() for pending in queue.take_awaiting()]",
    ),
    Mutation("the log is not synced", 1, "Write._sync", "disk.sync(path)\nself.syncing = False", "pass"),
    Mutation(
        "acknowledgements are not written",
        1,
        "Queue.settle",
        "settled.append((first, last))",
        "pass",
    ),
    Mutation(
        "swaps what is published", 1, "Queue.enqueue", "batch.contents += contents", "batch.contents += contents[::-1]"
    ),
    Mutation(
        "does not say that it was delivered before",
        1,
        "Queue._give_back",
        "batch.mark_redelivered(lo, hi)",
        "pass",
    ),
    Mutation(
        "one more than the prefetch count",
        1,
        "ChannelConsumer.room",
        "room = min(room, self.prefetch - self.unacked)",
        "room = min(room, self.prefetch + 1 - self.unacked)",
    ),
    Mutation(
        "does not take back what a channel had",
        1,
        "Session.close",
        "self.take_back(self.unacked.take_all())",
        "",
    ),
    Mutation(
        "puts what is given back at the end",
        1,
        "insert_many",
        "row.extendleft(reversed(sorted(before + entries, key=_first)))",
        "row.extendleft(reversed(before))\nrow.extend(entries)",
    ),
    Mutation("basic.get leaves the message there", 1, "OrderedQueue.get", "head.lo += 1", "head.lo += 0"),
    Mutation(
        "confirms twice",
        1,
        "Confirms.take",
        "frames.append((last, last > first, refused))",
        "frames += [(last, last > first, refused)] * 2",
    ),
    Mutation(
        "confirms one too many",
        1,
        "Confirms.take",
        "frames.append((last, last > first, refused))",
        "frames.append((last + 1, True, refused))",
    ),
    Mutation(
        "metadata is not synced",
        1,
        "WriteBatch.perform",
        "disk.sync(self.path)",
        "pass",
    ),
    Mutation(
        "a new consumer waits until something else happens",
        1,
        "OrderedQueue.add_consumer",
        "self.host.dirty[self] = None",
        "",
    ),
    Mutation("does not read on", 1, "AmqpSocket.resume", "self.transport.resume_reading()", "pass"),
    Mutation(
        "does not go on when what is held may",
        1,
        "amqp.connection:Connection._go_on",
        "if not self.held and not self.closed and self.on_released is not None:\n    self.on_released()",
        "pass",
    ),
    Mutation(
        "settled messages are found again at the start",
        1,
        "Recovery._fold_queue",
        "queue.live.remove(low, high)",
        "",
    ),
    Mutation(
        "what was read back is put behind the rest",
        1,
        "OrderedQueue.on_loaded",
        "self.ready.insert(at, Span(batch, 0, batch.left))",
        "self.ready.append(Span(batch, 0, batch.left))",
    ),
    Mutation(
        "an unfinished write is not written again",
        1,
        "Recovery.tidy",
        "self._write_again(path, last.synced, min(last.index.length, last.size))",
        "pass",
    ),
    Mutation(
        "a full disk is forgotten",
        1,
        "Storage._on_failed",
        "self.loop.call_later(RETRY_S, self._retry)",
        "pass",
        first=61,
    ),
    Mutation(
        "a failed sync counts as done",
        1,
        "Write._sync",
        "self.syncing = True\ndisk.sync(path)",
        "try:\n    disk.sync(path)\nexcept OSError:\n    pass",
        first=44,
    ),
)

TOGETHER: Final = (
    Mutation(
        "half is a majority",
        3,
        "Membership.is_majority",
        "return count > len(self.voters) // 2",
        "return count >= len(self.voters) // 2",
        first=1,
    ),
    Mutation(
        "answers a declare before the others know of it",
        3,
        "Proposals.settle",
        "through = self.raft.applied_by(connected)",
        "through = self.raft.commit",
        first=10,
    ),
    Mutation(
        "a command is forgotten with the leader that it was sent to",
        3,
        "Proposals.on_term",
        "waiting.term = None\nself._dispatch(number, waiting)",
        "pass",
        first=129,
    ),
    Mutation(
        "does not take back what a lost node had",
        3,
        "OwnerEnd.on_down",
        "self._requeue(taken)",
        "",
        first=28,
    ),
    Mutation(
        "does not mark what a lost node had",
        3,
        "OwnerEnd.on_down",
        "self._requeue(taken)",
        "self._requeue(taken, shown=False)",
        first=49,
    ),
    Mutation(
        "publishes arrive twice",
        3,
        "OwnerEnd._on_produce",
        "self.broker.totals.published += len(contents)",
        "self.broker.totals.published += len(contents)\nqueue.enqueue(contents, keys, kinds[0], size, None)",
    ),
    Mutation(
        "confirms what was lost with the link",
        3,
        "ClientEnd.on_down",
        "pending.refuse(DOUBTED)",
        "pending.on_safe()",
        first=8,
    ),
    Mutation(
        "confirms at the edge",
        3,
        "ClientEnd.publish",
        "bundle.parts.append((pending, len(contents)))\nif pending is not None:\n    pending.waiting += 1",
        "bundle.parts.append((None, len(contents)))",
        first=2,
    ),
    Mutation(
        "questions are forgotten with the link",
        3,
        "Ask.fail",
        "self.then(unreachable(self.spec))",
        "pass",
        first=2,
    ),
    Mutation(
        "consumers are not told of a lost link",
        3,
        "ClientEnd.on_down",
        "subscription.on_queue_deleted()",
        "",
        first=13,
    ),
    Mutation(
        "what a consumer was not shown is not given back",
        3,
        "ClientEnd._deliver",
        "self.settle(w.RETURNED, first, first + count - 1)",
        "pass",
        first=6,
    ),
    Mutation(
        "acknowledgements of others are lost",
        3,
        "OwnerEnd._settle",
        "one.queue.settle_delivered(one.batch, one.lo, one.hi)",
        "pass",
        first=4,
    ),
    Mutation(
        "acknowledgements leave after what was published behind them",
        3,
        "ClientEnd.flush",
        "if self.verdicts: ...",
        "if len(self.verdicts) > 3: ...",
    ),
    Mutation(
        "a queue moves before its messages have",
        3,
        "Departure._check",
        "self.sealed or queue.departure is not self or self.confirms.open or queue.ready or queue.deleted",
        "self.sealed or queue.departure is not self or queue.deleted",
        first=47,
    ),
)


def _mirrored(name: str, function: str, old: str, new: str, first: int = 0) -> Mutation:
    return Mutation(name, 3, function, old, new, first, mirrored=True)


MIRRORED: Final = (
    _mirrored(
        "confirms when a block leaves the master",
        "MirrorManager.submit",
        "mirror.add_block(block.number, batch, queue.take_awaiting(), queue.take_due_confirms())",
        "mirror.add_block(block.number, batch, [], queue.take_due_confirms())\n"
        "[pending.on_safe() for pending in queue.take_awaiting()]",
    ),
    _mirrored(
        "a mirror that is behind gets what the queue has kept of a block",
        "MirrorManager.submit",
        "block.enqueued = run.cut(0, len(run.contents))",
        "pass",
        first=227,
    ),
    _mirrored(
        "a write counts as synced at once",
        "MirrorManager._write",
        "self.store.write(mirror.spec.id, effect)",
        "self.store.write(mirror.spec.id, effect)\nmirror.member.on_synced(effect.id)\nself.touched[mirror] = None",
        first=1004,
    ),
    _mirrored(
        "a new master ignores what is not applied",
        "MirrorManager._started",
        "batches = restore_queue(queue, stored, effect)",
        "batches = restore_queue(queue, stored, effect._replace(tail=()))",
        first=1,
    ),
    _mirrored(
        "what is in doubt is taken for safe",
        "Outbox.on_complete",
        "if pending.refused == DOUBTED and pending.is_wanted() and not self._is_hopeless(pending):\n"
        "    self.doubtful[pending] = None\nelse: ...",
        "if pending.refused == DOUBTED:\n    self._drop(pending)\n    pending.answer(0)\nelse: ...",
        first=4,
    ),
    _mirrored(
        "nobody is told that it takes too long",
        "Confirms.overdue",
        "len(self.past) <= looks",
        "True",
        first=2,
    ),
    _mirrored(
        "what is confirmed is not applied",
        "MirrorManager._apply",
        "self.store.apply(effect)",
        "pass",
    ),
    _mirrored(
        "mirrors are not told what was delivered",
        "MirrorManager.submit",
        "mirror.add_block(block.number, batch, queue.take_awaiting(), queue.take_due_confirms())",
        "block.delivered_through = 0\n"
        "mirror.add_block(block.number, batch, queue.take_awaiting(), queue.take_due_confirms())",
        first=7,
    ),
    _mirrored(
        "a new master does not mark what was delivered",
        "restore_queue",
        "through = max(through, stored.delivered_through)",
        "through = 0",
        first=17,
    ),
    _mirrored(
        "publishes that wait for a hand-over are forgotten",
        "go_on",
        "unpark(parked, successor)",
        "pass",
    ),
    _mirrored(
        "consumers are forgotten with a master",
        "RemoteQueue.resume",
        "resubscribe(consumer, queue, then)",
        "pass",
        first=7,
    ),
    _mirrored(
        "consumers of an old master do not go on",
        "demote",
        "if not isinstance(consumer, RemoteConsumer):\n"
        "    consumer.queue = successor\n"
        "    resubscribe(consumer, successor)\n"
        "elif successor.is_local: ...\n"
        "else: ...",
        "if not isinstance(consumer, RemoteConsumer):\n"
        "    consumer.queue = successor\n"
        "elif successor.is_local: ...\n"
        "else: ...",
        first=7,
    ),
    _mirrored(
        "nobody subscribes at a master that is not one yet",
        "OwnerEnd._on_subscribe",
        "queue.spec.node != self.broker.node_name",
        "True",
        first=111,
    ),
    _mirrored(
        "a consumer does not know that its queue has come to its node",
        "resubscribe",
        "consumer.queue = queue",
        "",
        first=8,
    ),
    _mirrored(
        "policies do not wait until a copy is filled",
        "MemberChanges._adjust",
        "len(candidates) >= min(2, len(wanted)) and (not lacking or len(candidates) > 1)",
        "True",
        first=16,
    ),
    _mirrored(
        "a policy adds nobody",
        "MemberChanges._adjust",
        "member.change_ring((*view.ring, *missing))",
        "pass",
    ),
)


def _varied(name: str, nodes: int, function: str, old: str, new: str, first: int = 0) -> Mutation:
    return Mutation(name, nodes, function, old, new, first, mirrored=True, varied=True)


VARIED: Final = (
    _varied(
        "every queue is asynchronous",
        3,
        "HaRules._options",
        "failed = view is not None and self.without_master.get(mirror) == view.epoch"
        " and not self._is_seen(view.master)",
        "failed = view is not None and self.without_master.get(mirror) == view.epoch"
        " and not self._is_seen(view.master)\n"
        "rules = replace(rules, asynchronous=True)",
        first=2,
    ),
    _varied(
        "a quorum queue is like any other",
        3,
        "rules",
        "is_quorum(arguments)",
        "False",
        first=2,
    ),
    _varied(
        "mirrors that lack messages are always promoted",
        3,
        "HaRules._options",
        "rules.on_failure_always and failed",
        "True",
        first=16,
    ),
    _varied(
        "mirrors that an operator has filled are not",
        3,
        "Member.on_pulse",
        "self.filling.start() if frame.fill else self.filling.stop()",
        "pass",
        first=4,
    ),
    _varied(
        "mirrors are filled at all hours",
        3,
        "HaRules._options",
        "rules.fills and rules.window.is_open(self.wall_ms)",
        "rules.fills",
        first=85,
    ),
    _varied(
        "mirrors that are to follow what happens are filled",
        3,
        "Rules.fills",
        'return self.automatic and not self.forbidden and self.strategy != "event"',
        "return self.automatic and not self.forbidden",
        first=2,
    ),
    _varied(
        "mirrors that are not filled do not hear what is gone",
        3,
        "Filling._ask",
        "not sources",
        "not sources or not self.wanted",
        first=102,
    ),
)
