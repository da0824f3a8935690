"""A thread that performs jobs on the disk, one after the other, and tells the event loop when each is done.

A pool would do as well, but its futures cost more than the write of a small block.

To tell the loop of the end of a job takes two system calls and a wake-up, during which the loop may have begun
something else. So the loop may wait for a job that is short: for a lock, with the interpreter released. If the job
takes longer than the loop was to wait, the loop goes on and is told later. A disk that hangs never stops the loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger("leveret")


class _Job:
    """A job, and whether the loop waits for it."""

    __slots__ = ("work", "then", "awaited", "done", "error")

    def __init__(self, work: Callable[[], None], then: Callable[[Exception | None], None], awaited: bool) -> None:
        self.work = work
        self.then = then
        self.awaited = awaited
        self.done = False
        self.error: Exception | None = None


class DiskThread:
    """Runs `work()` in its thread, then `then(error)` in the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._state = threading.Lock()  # For `awaited` and `done` of a job.
        self._ended = threading.Lock()  # Released by a job that ends while the loop waits for it.
        self._ended.acquire()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self,
        work: Callable[[], None],
        then: Callable[[Exception | None], None],
        wait_s: float = 0.0,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        job = _Job(work, then, wait_s > 0)
        self._jobs.put(job)
        if meanwhile is not None:
            time.sleep(0)  # The thread begins now. It would wait for the interpreter until `meanwhile` is done.
            meanwhile()
        if wait_s > 0 and self._is_over(job, wait_s):
            then(job.error)

    def _is_over(self, job: _Job, wait_s: float) -> bool:
        """Waits for a job. Returns whether it is done; otherwise the loop is told of its end later."""
        if self._ended.acquire(True, wait_s):
            return True
        with self._state:
            if not job.done:
                job.awaited = False
                return False
        self._ended.acquire()
        return True

    def stop(self) -> None:
        """Finishes what was submitted, then ends."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job.work()
            except Exception as raised:  # The loop must learn of any error.
                job.error = raised
            with self._state:
                job.done = True
                awaited = job.awaited
            if awaited:
                self._ended.release()
                continue
            try:
                self._loop.call_soon_threadsafe(job.then, job.error)
            except RuntimeError:  # The loop is closed: the node is stopping, nobody waits for this.
                logger.debug("%s: a job ended after the event loop did", threading.current_thread().name)
                return
