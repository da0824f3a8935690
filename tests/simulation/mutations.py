"""Deliberate bugs: pieces of source text that are replaced, with the number of nodes in whose simulation they show."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Final, NamedTuple

import pytest

from tests.mutating import replace


class Mutation(NamedTuple):
    name: str
    nodes: int
    module: str
    old: str
    new: str
    first: int = 0  # Seed to begin with.
    mirrored: bool = False
    varied: bool = False
    featured: bool = False
    special: bool = False
    strategies: bool = False
    paired: bool = False


def put(patch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    replace(patch, mutation.name, module_with(mutation), (mutation.old, mutation.new))


def module_with(mutation: Mutation) -> ModuleType:
    """The module that has the text, once; where a package is named, the one of its modules that has."""
    named = importlib.import_module(f"leveret.{mutation.module}")
    names = [one.name for one in pkgutil.iter_modules(getattr(named, "__path__", []))]
    modules = [importlib.import_module(f"{named.__name__}.{name}") for name in names] or [named]
    counts = {module: inspect.getsource(module).count(mutation.old) for module in modules}
    assert sum(counts.values()) == 1, f"{mutation.name}: its text is {sum(counts.values())} times there"
    return max(modules, key=lambda module: counts[module])


ALONE: Final = (
    Mutation(
        "confirms before the sync",
        1,
        "node.storage",
        "self.in_blocks[block.queue, block.number] = (queue, batch, awaiting)",
        "self.in_blocks[block.queue, block.number] = (queue, batch, [])\n"
        "            [pending.on_safe() for pending in awaiting]",
    ),
    Mutation(
        "the log is not synced", 1, "log.jobs", "        disk.sync(path)\n        self.syncing = False", "        pass"
    ),
    Mutation(
        "acknowledgements are not written",
        1,
        "broker.queue",
        "                settled.append((first, last))",
        "                pass",
    ),
    Mutation(
        "swaps what is published", 1, "broker.queue", "batch.contents += contents", "batch.contents += contents[::-1]"
    ),
    Mutation(
        "does not say that it was delivered before",
        1,
        "broker.queue",
        "            batch.mark_redelivered(lo, hi)\n",
        "            pass\n",
    ),
    Mutation(
        "one more than the prefetch count", 1, "amqp.consumer", "prefetch - self.unacked", "prefetch + 1 - self.unacked"
    ),
    Mutation(
        "does not take back what a channel had",
        1,
        "amqp.channel",
        "        self.take_back(self.unacked.take_all())\n\n    # -- Methods",
        "\n    # -- Methods",
    ),
    Mutation(
        "puts what is given back at the end",
        1,
        "broker.queue",
        "while at < len(ready) and ready[at].first < first:",
        "while at < len(ready):",
    ),
    Mutation(
        "basic.get leaves the message there", 1, "broker.queue", "        head.lo += 1\n", "        head.lo += 0\n"
    ),
    Mutation(
        "confirms twice",
        1,
        "broker.confirms",
        "            frames.append((last, last > first, refused))",
        "            frames += [(last, last > first, refused)] * 2",
    ),
    Mutation(
        "confirms one too many",
        1,
        "broker.confirms",
        "            frames.append((last, last > first, refused))",
        "            frames.append((last + 1, True, refused))",
    ),
    Mutation(
        "metadata is not synced",
        1,
        "node.consensus_log",
        "        disk.sync(self.path)\n",
        "        pass\n",
    ),
    Mutation(
        "a new consumer waits until something else happens",
        1,
        "broker.queue",
        "        self.crowded_at = CROWDED_AT\n        self.host.dirty[self] = None",
        "        self.crowded_at = CROWDED_AT",
    ),
    Mutation(
        "does not read on", 1, "node.client", "                self.transport.resume_reading()", "                pass"
    ),
    Mutation(
        "does not go on when what is held may",
        1,
        "amqp.connection",
        "        if not self.held and not self.closed and self.on_released is not None:\n"
        "            self.on_released()",
        "        pass",
    ),
    Mutation(
        "settled messages are found again at the start",
        1,
        "log.recovery",
        "                queue.gone.add(low, high)\n                queue.live.remove(low, high)\n",
        "                queue.gone.add(low, high)\n",
    ),
    Mutation(
        "what was read back is put behind the rest",
        1,
        "broker.paging",
        "            self.ready.insert(at, Span(batch, 0, batch.left))",
        "            self.ready.append(Span(batch, 0, batch.left))",
    ),
    Mutation(
        "an unfinished write is not written again",
        1,
        "log.recovery",
        "            self._write_again(path, last.synced, last.index.length)",
        "            pass",
    ),
    Mutation(
        "a full disk is forgotten",
        1,
        "node.storage",
        "            self.loop.call_later(RETRY_S, self._retry)",
        "            pass",
        first=61,
    ),
    Mutation(
        "a failed sync counts as done",
        1,
        "log.jobs",
        "        self.syncing = True\n        disk.sync(path)\n",
        "        try:\n            disk.sync(path)\n        except OSError:\n            pass\n",
        first=44,
    ),
)

TOGETHER: Final = (
    Mutation(
        "half is a majority",
        3,
        "cluster.raft.membership",
        "count > len(self.voters) // 2",
        "count >= len(self.voters) // 2",
        first=1,
    ),
    Mutation(
        "answers a declare before the others know of it",
        3,
        "cluster.proposals",
        "        through = self.raft.applied_by(connected)\n",
        "        through = self.raft.commit\n",
        first=10,
    ),
    Mutation(
        "a command is forgotten with the leader that it was sent to",
        3,
        "cluster.proposals",
        "                    waiting.term = None\n                    self._dispatch(number, waiting)",
        "                    pass",
        first=129,
    ),
    Mutation(
        "does not take back what a lost node had",
        3,
        "broker",
        "        self._requeue(taken)\n\n\n_FROM_EDGE",
        "\n\n_FROM_EDGE",
        first=28,
    ),
    Mutation(
        "does not mark what a lost node had",
        3,
        "broker",
        "        self._requeue(taken)\n\n\n_FROM_EDGE",
        "        self._requeue(taken, shown=False)\n\n\n_FROM_EDGE",
        first=49,
    ),
    Mutation(
        "publishes arrive twice",
        3,
        "broker",
        "                if enqueue(contents, keys, kinds[0], size, pending):",
        "                enqueue(contents, keys, kinds[0], size, None)\n"
        "                if enqueue(contents, keys, kinds[0], size, pending):",
    ),
    Mutation(
        "confirms what was lost with the link",
        3,
        "broker",
        "            pending.refuse(DOUBTED)\n        self.broker.outboxes.again()",
        "            pending.on_safe()\n        self.broker.outboxes.again()",
        first=8,
    ),
    Mutation(
        "confirms at the edge",
        3,
        "broker",
        "        bundle.parts.append((pending, len(contents)))\n"
        "        if pending is not None:\n            pending.waiting += 1\n",
        "        bundle.parts.append((None, len(contents)))\n",
        first=2,
    ),
    Mutation(
        "questions are forgotten with the link",
        3,
        "broker",
        "        self.then(unreachable(self.spec))",
        "        pass",
        first=2,
    ),
    Mutation(
        "consumers are not told of a lost link",
        3,
        "broker",
        "                self.end(subscription)\n                subscription.on_queue_deleted()",
        "                self.end(subscription)",
        first=13,
    ),
    Mutation(
        "what a consumer was not shown is not given back",
        3,
        "broker",
        "                self.settle(w.RETURNED, first, first + count - 1)\n",
        "                pass\n",
        first=6,
    ),
    Mutation(
        "acknowledgements of others are lost",
        3,
        "broker",
        "                    one.queue.settle_delivered(one.batch, one.lo, one.hi)",
        "                    pass",
        first=4,
    ),
    Mutation(
        "acknowledgements leave after what was published behind them",
        3,
        "broker",
        "        if self.verdicts:\n            verdicts, self.verdicts",
        "        if len(self.verdicts) > 3:\n            verdicts, self.verdicts",
    ),
    Mutation(
        "a queue moves before its messages have",
        3,
        "broker",
        "queue.departure is not self or self.confirms.open or queue.ready or queue.deleted:",
        "queue.departure is not self or queue.deleted:",
        first=47,
    ),
)


def _mirrored(name: str, module: str, old: str, new: str, first: int = 0) -> Mutation:
    return Mutation(name, 3, module, old, new, first, mirrored=True)


MIRRORED: Final = (
    _mirrored(
        "confirms when a block leaves the master",
        "broker.mirrored",
        "            mirror.in_blocks.append((block.number, batch, awaiting))\n",
        "            mirror.in_blocks.append((block.number, batch, []))\n"
        "            [pending.on_safe() for pending in awaiting]\n",
    ),
    _mirrored(
        "a mirror that is behind gets what the queue has kept of a block",
        "broker.mirrored",
        "                block.enqueued = run.cut(0, len(run.contents))\n",
        "                pass\n",
        first=1060,
    ),
    _mirrored(
        "a write counts as synced at once",
        "broker.mirrored",
        "        self.store.write(mirror.spec.id, effect)\n",
        "        self.store.write(mirror.spec.id, effect)\n"
        "        mirror.member.on_synced(effect.id)\n        self.touched[mirror] = None\n",
        first=1004,
    ),
    _mirrored(
        "a new master ignores what is not applied",
        "broker.mirrored",
        "                batches = restore_queue(queue, stored, effect)\n",
        "                batches = restore_queue(queue, stored, effect._replace(tail=()))\n",
        first=1,
    ),
    _mirrored(
        "what is in doubt is taken for safe",
        "broker.outbox",
        "        if pending.refused == DOUBTED and pending.is_wanted():\n            self.doubtful[pending] = None\n",
        "        if pending.refused == DOUBTED:\n            self._drop(pending)\n            pending.answer(0)\n",
        first=4,
    ),
    _mirrored(
        "nobody is told that it takes too long",
        "broker.confirms",
        "        if len(self.past) <= looks:\n",
        "        if True:\n",
        first=2,
    ),
    _mirrored(
        "what is confirmed is not applied",
        "broker.mirrored",
        "        self.store.apply(effect)\n",
        "        pass\n",
    ),
    _mirrored(
        "mirrors are not told what was delivered",
        "broker.mirrored",
        "            awaiting, queue.awaiting = queue.awaiting, []\n            mirror.in_blocks",
        "            block.delivered_through = 0\n"
        "            awaiting, queue.awaiting = queue.awaiting, []\n            mirror.in_blocks",
        first=7,
    ),
    _mirrored(
        "a new master does not mark what was delivered",
        "mirror.store",
        "    through = max(through, stored.delivered_through)\n",
        "    through = 0\n",
        first=17,
    ),
    _mirrored(
        "publishes that wait for a hand-over are forgotten",
        "broker.parking",
        "    unpark(parked, successor)\n",
        "    pass\n",
    ),
    _mirrored(
        "consumers are forgotten with a master",
        "broker.remote",
        "            resubscribe(consumer, queue, then)\n",
        "            pass\n",
        first=7,
    ),
    _mirrored(
        "publishes that wait for a master are forgotten",
        "broker.remote",
        "        unpark(parked or [], queue if self.spool is None else self)\n",
        "        pass\n",
        first=7,
    ),
    _mirrored(
        "consumers of an old master do not go on",
        "broker.moving",
        "            resubscribe(consumer, successor)  # type: ignore[arg-type]\n        elif successor.is_local:",
        "            pass\n        elif successor.is_local:",
        first=7,
    ),
    _mirrored(
        "nobody subscribes at a master that is not one yet",
        "broker.home",
        "            if queue.spec.node != self.broker.node_name:\n",
        "            if True:\n",
        first=111,
    ),
    _mirrored(
        "a consumer does not know that its queue has come to its node",
        "broker.remote",
        "    consumer.queue = queue\n    queue.subscribe(consumer, waiting or then)",
        "    queue.subscribe(consumer, waiting or then)",
        first=8,
    ),
    _mirrored(
        "policies do not wait until a copy is filled",
        "broker.placing",
        "        if len(heirs) >= min(2, len(wanted)) and (not lacking or len(heirs) > 1):\n",
        "        if True:\n",
        first=16,
    ),
    _mirrored(
        "a policy adds nobody",
        "broker.placing",
        "            member.change_ring((*view.ring, *missing))\n",
        "            pass\n",
    ),
)


def _varied(name: str, nodes: int, module: str, old: str, new: str, first: int = 0) -> Mutation:
    return Mutation(name, nodes, module, old, new, first, mirrored=True, varied=True)


VARIED: Final = (
    _varied(
        "every queue is asynchronous",
        3,
        "broker.governing",
        "            asynchronous=rules.asynchronous,\n",
        "            asynchronous=True,\n",
        first=2,
    ),
    _varied(
        "a quorum queue is like any other",
        3,
        "cluster.mirroring",
        "    if is_quorum(arguments) or",
        "    if False or",
        first=2,
    ),
    _varied(
        "mirrors that lack messages are always promoted",
        3,
        "broker.governing",
        "            promote_always=rules.on_failure_always and failed,\n",
        "            promote_always=True,\n",
        first=16,
    ),
    _varied(
        "mirrors that an operator has filled are not",
        3,
        "mirror.ring",
        "                self.filling.start() if frame.fill else self.filling.stop()\n",
        "                pass\n",
        first=4,
    ),
    _varied(
        "mirrors are filled at all hours",
        3,
        "broker.governing",
        "            filling=rules.fills and rules.window.is_open(self.wall_ms),\n",
        "            filling=rules.fills,\n",
        first=85,
    ),
    _varied(
        "mirrors that are to follow what happens are filled",
        3,
        "cluster.mirroring",
        'self.automatic and not self.forbidden and self.strategy != "event"',
        "self.automatic and not self.forbidden",
        first=2,
    ),
    _varied(
        "mirrors that are not filled do not hear what is gone",
        3,
        "mirror.sync",
        "        if not sources:\n            return\n        self._asked",
        "        if not sources or not self.wanted:\n            return\n        self._asked",
        first=102,
    ),
    _varied(
        "mirrors do not hear of lost links",
        3,
        "broker.mirrored",
        "            mirror.member.on_peer_down(peer)\n",
        "            pass\n",
        first=5062,
    ),
)
