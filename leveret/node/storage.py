"""Writes messages to the log by group commits, and reads them back.

One commit is under way at a time; what changes meanwhile gathers and makes up the next one. So the size of a commit
follows from the load, and an idle node's commit begins at once.

A thread does the commit, so that a disk that hangs never stops the loop: publishes that wait for it are refused in
time, and everything else goes on. During a large commit the loop goes on at once. During a small one that costs more
than it gains: a loop that goes on takes each message that arrives in a turn of its own, which at 5,000 messages a
second needs all of a core, so that everything waits for the loop. So the loop waits for a small commit
(`AWAITED_BYTES_MAX`), once the output of its clients is written, for `AWAITED_S_MAX` at most, and handles what arrived
meanwhile in one turn.

After a commit that took longer than `AWAITED_S_MAX` the loop does not wait for the next one, after another such commit
for the next two, then four, and so on: a slow disk stops the loop for one commit of `UNAWAITED_MAX`.

Acknowledgements alone are no reason for a commit: nobody waits until they are on disk. They wait for the next commit
that somebody waits for, `PATIENCE_S` at most. Otherwise a publish would often have to wait for the sync of an
acknowledgement that came just before it, and a message would cost two syncs.

A publisher with a small window answers each confirm with as many publishes. A commit may wait for them, so that the
window travels whole (see `leveret.node.gathering`). All of it is delivered at once then, and that is done while the
thread commits.

When a commit is done, its confirms are sent before anything else is done about it, if they go to a few clients only.

A busy node (`BUSY_MIN`) has several turns during a commit. If each of them brings a few messages for many queues, most
of the time goes into socket writes, and into consumers that are woken for a handful of messages. Such deliveries wait
for the end of the commit, `LATER_S_MAX` at most, or until there are enough of them (`ENOUGH`).

A queue's messages must not be confirmed before its declaration is safe. They cannot be: a queue exists here only once
its declaration is committed, thus on the disks of a majority, and on this one (see `leveret.node.cluster.consensus`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from leveret.broker.mirrors.copy_store import Loading, MirrorStore
from leveret.node.gathering import Gathering
from leveret.storage.format.errors import LogDamaged

if TYPE_CHECKING:
    from leveret.broker.broker import Broker
    from leveret.broker.delivery.batch import Batch, GapRead
    from leveret.broker.delivery.confirms import Pending
    from leveret.broker.queue.local_queue import LocalQueue
    from leveret.broker.queue.queue import Queue
    from leveret.node.system.environment import Environment
    from leveret.storage.format.queue_block import Block, Run
    from leveret.storage.log import Log
    from leveret.storage.segments.disk_jobs import Write

logger = logging.getLogger("leveret")

LOAD_BYTES: Final = 1 << 20
PENDING_BYTES_MAX: Final = 16 << 20  # Bytes waiting for the disk above which publishers wait too.
BLOCKS_MAX: Final = 512  # The most queues whose changes one commit takes.
AWAITED_S_MAX: Final = 0.001  # How long the loop waits for a commit at most.
AWAITED_BYTES_MAX: Final = 32 << 10  # The loop waits only for commits of this size.
UNAWAITED_MAX: Final = 256  # Commits that the loop does not wait for after waits in vain.
SERVED_FIRST_MAX: Final = 8  # Clients whose output is written before a commit is begun, or what follows one.
PATIENCE_S: Final = 0.005  # How long acknowledgements wait for a commit that somebody waits for.
BUSY_MIN: Final = 100  # Messages published from one commit to the next, from which on deliveries may wait.
ENOUGH: Final = 64  # Messages for each queue, on average, that are delivered at once.
LATER_S_MAX: Final = 0.002  # How long deliveries wait for a commit at most.
# The event loop's timers have milliseconds, and may come so much too early. To set one again for what is left would
# make the loop turn without a pause until the time has come.
EARLY_S: Final = 0.0005
RETRY_S: Final = 1.0
DRAIN_S: Final = 10.0


class Storage:
    """The log, driven from the event loop."""

    def __init__(
        self,
        environment: Environment,
        log: Log,
        on_turn: Callable[[], None],
        on_safe: Callable[[], None],
        on_blocks: Callable[[], None],
        on_full: Callable[[bool], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        self.environment = environment
        self.loop = environment.loop
        self.disk = environment.disk
        self.log = log
        self.mirrors = MirrorStore(log.mirrors)
        self.on_turn = on_turn  # Called when something became durable or readable, so that there is a turn.
        self.on_safe = on_safe  # Called when confirms may be sent, before that turn.
        self.on_blocks = on_blocks  # Called when blocks of mirrored queues are ready to be sent.
        self.on_full = on_full  # The disk has no space (True), or has again.
        self.on_fatal = on_fatal
        self.writer = environment.worker("leveret-writer")
        self.reader = environment.worker("leveret-reader")
        self.background = environment.worker("leveret-keeper")
        self.committing = False
        self.awaiting = False  # `commit` waits for the disk.
        self.unawaited = 0  # The loop does not wait for so many commits.
        self.unawaited_next = 1  # And for so many after the next wait in vain.
        self.full = False  # The last write found no space.
        self.retrying = False
        self.began = 0.0  # When the last commit was begun.
        self.commits = 0
        self.commits_s = 0.0  # The time that all commits have taken.
        self.gathering = Gathering()
        self.looking = False  # `_look` is scheduled.
        self.is_busy = False  # Many messages were published from the commit before to this one.
        self.begun_with = 0  # How many had been published when the last commit began,
        self.pumped_with = 0  # and when messages were delivered last.
        self._later: asyncio.TimerHandle | None = None  # Ends the wait of deliveries.
        self.patient = True  # Acknowledgements, deliveries and commits may wait.
        self.patient_until = 0.0  # The time until which those do that wait now; 0: none do.
        self._patience: asyncio.TimerHandle | None = None
        self.failed = False
        self.busy_at = self.loop.time()  # When the last commit began.
        self.maintaining = False
        self.releasing = False
        self.idle: asyncio.Future[None] | None = None
        self.in_blocks: dict[tuple[int, int], tuple[LocalQueue, Batch | None, list[Pending]]] = {}

    # -- Writing -------------------------------------------------------------------------------------------------

    def is_crowded(self, broker: Broker) -> bool:
        """Returns whether too much waits for the disk, in the log's buffers or in queues."""
        return self.log.pending_bytes + broker.unlogged_bytes > PENDING_BYTES_MAX

    def should_wait(self, broker: Broker) -> bool:
        """Returns whether more publishes are about to arrive that the next commit should contain."""
        if self.committing or not self.patient or not self.gathering.expects_more(broker.totals.published):
            return False
        if not (broker.hurries or (self.gathering.is_answered and broker.dirty)):
            return False
        return self.environment.precise_s() < self.gathering.until_s

    def wait(self, broker: Broker) -> None:
        """Has a turn run when `should_wait` does not hold any more. The event loop's timers are too coarse for that."""
        self.gathering.on_wait()
        if not self.looking:
            self.looking = True
            self.loop.call_soon(self._look, broker)

    def _look(self, broker: Broker) -> None:
        self.looking = False
        if not self.gathering.has_waited:
            return  # The commit has begun in a turn meanwhile.
        if self.gathering.is_small:  # Clients with large windows would keep the processor for long.
            self.environment.yield_processor()  # A publisher or a mirror may be waiting for it.
        if self.should_wait(broker):
            self.wait(broker)
        elif not self.committing:
            self.on_turn()

    def should_deliver(self, broker: Broker) -> bool:
        """Returns whether messages are to be delivered in this turn. Otherwise they wait for the end of the commit that
        is under way: then there is another turn."""
        published = broker.totals.published
        if self.is_busy and self.committing and self.patient and broker.dirty and not broker.fanout.waiting:
            if published - self.pumped_with < ENOUGH * len(broker.dirty):
                left_s = self.began + LATER_S_MAX - self.environment.precise_s()
                if left_s > EARLY_S:
                    if self._later is None:
                        self._later = self.loop.call_later(left_s, self._on_later)
                    return False
        self.pumped_with = published
        return True

    def _on_later(self) -> None:
        self._later = None
        self.on_turn()

    def commit(self, broker: Broker, serve: Callable[[], None]) -> bool:
        """Begins a commit, unless one is under way. Returns whether it is done already. `serve` writes the output that
        clients have, if there are few such clients: before the commit, or during one that has the whole window of its
        publishers."""
        is_whole = self.gathering.has_waited and self.gathering.is_answered
        if not is_whole:
            serve()
        if self.committing or self.failed or (self.full and not self.retrying):
            return False
        if broker.hurries or (broker.journal is not None and broker.journal.is_due):
            self.gathering.on_commit(broker.totals.published)
            self._take_blocks(broker)
        elif broker.unlogged:
            if self.log.gathered or not self._may_wait():
                self._take_blocks(broker)
        job = self.log.take()
        if job is None:
            return False
        self.committing = True
        published = broker.totals.published
        self.is_busy, self.begun_with = published - self.begun_with >= BUSY_MIN, published
        self.busy_at = self.loop.time()
        self.began = self.environment.precise_s()
        self._perform(job, broker, serve if is_whole else None)
        return not self.committing

    def _perform(self, job: Write, broker: Broker, serve: Callable[[], None] | None) -> None:
        """Has the thread do the commit, serves clients meanwhile, and waits for the commit if it is small."""

        def work() -> None:
            job.perform(self.disk)

        def then(error: Exception | None) -> None:
            self._on_committed(broker, job, error)

        if not self._should_await(broker, is_serving=serve is not None):
            self.writer.submit(work, then)
            if broker.writers:
                # Hand the interpreter over, so that the write begins now: this thread would keep it for the rest of the
                # turn, and that may be as long as a sync takes.
                self.environment.yield_to_writer()
            return
        self.awaiting = True
        self.writer.submit(work, then, AWAITED_S_MAX, serve)
        self.awaiting = False
        if self.committing:
            self.unawaited = self.unawaited_next
            self.unawaited_next = min(2 * self.unawaited_next, UNAWAITED_MAX)
        else:
            self.unawaited_next = 1

    def _should_await(self, broker: Broker, is_serving: bool) -> bool:
        """Returns whether the loop should wait for a commit that begins: if it is small, others were short, and no
        client has output that would have to wait."""
        if self.unawaited:
            self.unawaited -= 1
            return False
        if broker.writers and not (is_serving and len(broker.writers) <= SERVED_FIRST_MAX):
            return False
        return not (self.full or self.log.pending_bytes > AWAITED_BYTES_MAX)

    def _may_wait(self) -> bool:
        """Returns whether acknowledgements may wait for another commit. Then a turn begins when they may no longer."""
        now = self.loop.time()
        if not self.patient_until:
            self.patient_until = now + PATIENCE_S
        if not self.patient or now >= self.patient_until - EARLY_S:
            return False
        if self._patience is None:
            self._patience = self.loop.call_at(self.patient_until, self._on_patience)
        return True

    def _on_patience(self) -> None:
        self._patience = None
        if not self.patient_until:
            return
        if self.loop.time() < self.patient_until - EARLY_S:  # Others wait by now.
            self._patience = self.loop.call_at(self.patient_until, self._on_patience)
        else:
            self.on_turn()

    def hurry(self) -> None:
        """From now on nothing waits for company, and each change is written at once: the node stops."""
        self.patient = False

    def _take_blocks(self, broker: Broker) -> None:
        self.patient_until = 0.0
        now_ms = self.environment.wall_ms()
        unlogged = broker.take_unlogged()
        journal, is_told = broker.journal, False
        if journal is not None:
            stream = journal.find()
            # What it tells of is known when all blocks are taken.
            is_told = (stream is not None and unlogged.pop(stream, stream) is None) or journal.is_ready
        if len(unlogged) > BLOCKS_MAX:  # The others are next: the loop has more to do than to commit.
            taken = list(unlogged)[:BLOCKS_MAX]
            broker.put_back_unlogged(dict.fromkeys(list(unlogged)[BLOCKS_MAX:]))
            unlogged = dict.fromkeys(taken)
        blocks = [self._take_block(broker, queue, now_ms) for queue in unlogged]
        if journal is not None and is_told and (stream := journal.write()) is not None:
            blocks.insert(0, self._take_block(broker, stream, now_ms))
        for block in blocks:
            if block is not None:
                self.log.append(block)
        if broker.mirrors.mirrors:
            broker.mirrors.flush()  # Their blocks are part of the same write.
            self.on_blocks()  # Before the loop waits for that write: other nodes sync them at the same time.

    def _take_block(self, broker: Broker, queue: LocalQueue, now_ms: int) -> Block | None:
        if queue.mirror is not None:
            broker.mirrors.submit(queue.mirror, now_ms)
            return None
        if queue.spec.view is not None:
            return None  # It is led here no longer, and what it changed since means nothing.
        batch = queue.open
        block = queue.take_block(now_ms)
        if block is not None:
            self.in_blocks[block.queue, block.number] = (queue, batch, queue.take_awaiting())
        return block

    def _on_committed(self, broker: Broker, job: Write, error: Exception | None) -> None:
        self.committing = self.retrying = False
        self.commits += 1
        self.commits_s += self.environment.precise_s() - self.began
        if error is None:
            self._on_logged(job, broker)
        else:
            self._on_failed(job, error)
        if not error and self.full:
            self._on_space()
        if not self.awaiting:  # Otherwise a turn goes on.
            self.on_turn()
        if self.idle is not None and not self.committing and not self.idle.done():
            self.idle.set_result(None)

    async def drained(self, broker: Broker) -> None:
        """Waits until all gathered changes are written, for `DRAIN_S` at most."""
        deadline = self.loop.time() + DRAIN_S
        while (self.committing or broker.unlogged) and not (self.full or self.failed):
            self.idle = self.loop.create_future()
            done, _ = await asyncio.wait([self.idle], timeout=max(0, deadline - self.loop.time()))
            if not done:
                logger.error("stopping although not all is written: the disk did not answer for %d s", DRAIN_S)
                return

    def _on_logged(self, job: Write, broker: Broker) -> None:
        confirmed = 0
        logged: list[tuple[LocalQueue, Batch]] = []
        for block in job.blocks:
            entry = self.in_blocks.pop((block.queue, block.number), None)
            if entry is None:
                continue  # Its queue was deleted.
            queue, batch, awaiting = entry
            if batch is not None and not queue.deleted:
                queue.tell_safe(batch)
                logged.append((queue, batch))
            for pending in awaiting:
                confirmed += pending.count
                pending.on_safe()
        if confirmed:
            self.on_confirmed(broker, confirmed)
            self.on_safe()
        for queue, batch in logged:
            queue.on_logged(batch)  # It may let go of the batch.
        self.log.on_done(job)
        if broker.mirrors.mirrors:
            for number, write in self.mirrors.synced(job).items():
                broker.mirrors.on_synced(number, write)
        self.maintain()

    def on_confirmed(self, broker: Broker, count: int) -> None:
        """Called when so many messages are being confirmed: as many publishes may be about to arrive."""
        now_s = self.environment.precise_s()
        self.gathering.on_confirmed(broker.totals.published, count, now_s, now_s - self.began)
        if self.awaiting:  # Sockets are read before the loop's next calls, thus before the next turn, too.
            self.loop.call_soon(self._on_read, broker)
        else:
            self._on_read(broker)

    def _on_read(self, broker: Broker) -> None:
        self.gathering.on_read(broker.totals.published)

    def _on_failed(self, job: Write, error: Exception) -> None:
        if not isinstance(error, OSError):
            self._fail(f"writing failed: {error!r}")
        elif self.log.on_failed(job, error) == "stopped":
            self._fail(f"the disk failed: {error}. Nothing is confirmed any more; the node stops")
        else:
            self.loop.call_later(RETRY_S, self._retry)
            if not self.full:
                self.full = True
                logger.error("no space left on the disk: publishers wait until there is some (%s)", error)
                self.on_full(True)

    def _retry(self) -> None:
        """Tries to write again. With the first commit that succeeds, or if there is nothing to write, `full` ends."""
        self.retrying = True
        self.on_turn()
        if not self.committing:
            self.retrying = False
            if not self.failed:
                self._on_space()

    def _on_space(self) -> None:
        logger.info("there is space on the disk again")
        self.full = False
        self.on_full(False)

    def _fail(self, text: str) -> None:
        self.failed = True
        self.on_fatal(text)

    def forget(self, queue: LocalQueue) -> None:
        """Called when a queue is deleted: its messages need not become safe any more."""
        for key in [key for key in self.in_blocks if key[0] == queue.spec.id]:
            for pending in self.in_blocks.pop(key)[2]:
                pending.on_safe()
        self.forget_log(queue.spec.id)

    def forget_log(self, number: int) -> None:
        if number in self.log.queues:
            self.log.forget(number)

    # -- Upkeep --------------------------------------------------------------------------------------------------

    def maintain(self, idle: bool = False) -> None:
        """Seals, checkpoints and reclaims segments, as the log finds necessary, in a thread of its own."""
        if self.maintaining or self.failed:
            return
        job = self.log.maintenance(idle)
        if job is None:
            return
        self.maintaining = True

        def on_done(error: Exception | None) -> None:
            self.maintaining = False
            if error is None:
                self.log.on_done(job)
                self.maintain()
            elif isinstance(error, OSError | LogDamaged) and self.log.on_failed(job, error) == "retry":
                logger.warning("maintenance of the message log failed, and is tried again: %s", error)
            else:
                self._fail(f"maintenance of the message log failed: {error!r}")
            self.on_turn()

        self.background.submit(lambda: job.perform(self.disk), on_done)

    def release_spares(self) -> None:
        """Deletes files that are kept only to be written over, when space is short, or nothing is being written."""
        if self.log.spares:
            self.log.upkeep.release_spares()
            self.maintain()

    def release_memory(self, then: Callable[[], None]) -> None:
        """Returns freed memory to the system, in a thread: for gigabytes it takes a second."""
        if self.releasing:
            return
        self.releasing = True

        def on_done(error: Exception | None) -> None:
            self.releasing = False
            if error is not None:
                logger.error("freed memory could not be returned to the system: %r", error)
            then()

        self.background.submit(self.environment.release_memory, on_done)

    # -- Reading back --------------------------------------------------------------------------------------------

    def load(self, queue: Queue, read: GapRead, then: Callable[[], None]) -> None:
        def on_read(runs: list[Run] | None, following: int) -> None:
            if runs is None:
                # The queue stops at messages that cannot be read; all others go on. Skipping would lose messages.
                logger.error("%s delivers nothing more: its messages cannot be read from the log", queue)
                return
            queue.on_loaded(read, runs, following)
            then()

        self.read_range(queue.spec.id, read.first, read.last, LOAD_BYTES, on_read)

    def read_range(
        self, queue: int, first: int, last: int, bytes_max: int, then: Callable[[list[Run] | None, int], None]
    ) -> None:
        """Reads messages by their numbers: see `Host`."""
        load = self.log.load(queue, first, last, bytes_max)

        def answer(runs: list[Run] | None, following: int) -> None:
            then(runs, following)
            self.on_turn()

        if load is None:
            self.loop.call_soon(answer, [], last + 1)
            return

        def on_done(error: Exception | None) -> None:
            if error is None:
                self.log.on_done(load)
                answer(load.runs, load.next)
            else:
                self.log.on_failed(load, error)
                logger.error("messages %d to %d of queue %d cannot be read: %s", first, last, queue, error)
                answer(None, first)

        self.reader.submit(lambda: load.perform(self.disk), on_done)

    def read_kind(self, queue: LocalQueue, number: int, then: Callable[[int], None]) -> None:
        """Reads the kind of a message."""
        load = self.log.load(queue.spec.id, number, number, 1)
        if load is None:
            return

        def on_done(error: Exception | None) -> None:
            if error is None:
                self.log.on_done(load)
                if load.runs:
                    then(load.runs[0].kinds[0])
                    self.on_turn()
            else:
                self.log.on_failed(load, error)
                logger.error("the first message of %s cannot be read: %s", queue, error)

        self.reader.submit(lambda: load.perform(self.disk), on_done)

    def read(self, wanted: Loading, then: Callable[[bool], None]) -> None:
        """Reads messages for mirrors."""
        job: Any = wanted

        def on_done(error: Exception | None) -> None:
            if error is None:
                self.log.on_done(job)
            else:
                self.log.on_failed(job, error)
                logger.error("messages for mirrors cannot be read: %s", error)
            then(error is None)
            self.on_turn()

        self.reader.submit(lambda: job.perform(self.disk), on_done)

    def stop(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        for worker in (self.writer, self.reader, self.background):
            worker.stop()
