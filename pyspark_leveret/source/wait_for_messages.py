"""Waits until one of several queues gets a message.

The broker answers a request about one queue when there is a message or the time is over. So each queue has a thread
with its own client, up to a limit; queues beyond it are looked at when the time is over. A request that is still open
when another one is answered goes on, and is not sent twice.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final

from leveret.data.client import DataClient, DataError
from pyspark_leveret.connect import new_client
from pyspark_leveret.options import Access

THREADS_MAX: Final = 16


class MessageWaiter:
    """Keeps the threads and clients of a streaming query."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._threads = ThreadPoolExecutor(THREADS_MAX, "leveret-watch")
        self._local = threading.local()
        self._asked: dict[str, Future[bool]] = {}

    def wait(self, nexts: Mapping[str, int], seconds: float) -> None:
        """Returns when one of the queues has the message with that number, or after `seconds`."""
        if not nexts:
            nobody: Future[bool] = Future()
            wait([nobody], seconds)
            return
        self._asked = {name: one for name, one in self._asked.items() if not one.done()}
        for name, number in nexts.items():
            if len(self._asked) < THREADS_MAX and name not in self._asked:
                self._asked[name] = self._threads.submit(self._wait_for, name, number, seconds)
        wait(list(self._asked.values()), seconds, FIRST_COMPLETED)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _wait_for(self, queue: str, number: int, seconds: float) -> bool:
        client: DataClient | None = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = new_client(self.access, seconds)
        try:
            return client.wait(queue, number, seconds) > number
        except DataError:
            return False  # The next look at the queue meets the same error and reports it.
