"""A thread that performs jobs on the disk, one after the other, and tells the event loop when each is done.

A pool would do as well, but its futures cost more than the write of a small block.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

logger = logging.getLogger("leveret")


class DiskThread:
    """Runs `work()` in its thread, then `then(error)` in the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[tuple[Callable[[], None], Callable[[Exception | None], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None], then: Callable[[Exception | None], None]) -> None:
        self._jobs.put((work, then))

    def stop(self) -> None:
        """Finishes what was submitted, then ends."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            work, then = job
            error: Exception | None = None
            try:
                work()
            except Exception as raised:  # The loop must learn of any error.
                error = raised
            try:
                self._loop.call_soon_threadsafe(then, error)
            except RuntimeError:  # The loop is closed: the node is stopping, nobody waits for this.
                logger.debug("%s: a job ended after the event loop did", threading.current_thread().name)
                return
