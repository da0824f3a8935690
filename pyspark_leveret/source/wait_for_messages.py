"""Waits for whichever of several queues gets a message first.

The broker answers a question about one queue, when there is something or the time is over. So there is a thread for
each, with a client of its own, up to a limit: with more queues, the others are looked at when the time is over. A
question that is still open when another was answered is left to end, and is not asked twice.
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
    def __init__(self, access: Access) -> None:
        self.access = access
        self._threads = ThreadPoolExecutor(THREADS_MAX, "leveret-watch")
        self._local = threading.local()
        self._asked: dict[str, Future[bool]] = {}

    def wait(self, nexts: Mapping[str, int], seconds: float) -> None:
        """Until one of the queues has the message with that number, or so long."""
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
            return False  # Whoever looks next meets the same trouble, and reports it.
