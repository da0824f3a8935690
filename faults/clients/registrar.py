"""Declares, deletes and looks up names of queues, so that their history shows whether metadata is linearizable.

A value is an argument of the queue that a second declaration has to repeat. Clients go on to the next name every few
seconds, all at the same time, so that a history of a name stays short enough to be checked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from faults.clients.amqp import Amqp, ChannelError, Lost, declare
from faults.clients.load import Board, Client, Where
from faults.history.entries import OK, REFUSED, UNKNOWN, now_ns
from leveret.protocol import methods as m

KEY_S = 4.0
VALUES = 3
PAUSE_S = 0.03
NOT_FOUND, PRECONDITION_FAILED = 404, 406


class Registrar(Client):
    """One of several clients that use the same names."""

    success = "registered"

    def __init__(
        self, name: str, folder: Path, board: Board, pick: Callable[[], Where], prefix: str, seed: int
    ) -> None:
        super().__init__(name, folder, board, pick)
        self.prefix, self.rng = prefix, random.Random(seed)
        self.began = time.monotonic()

    def work(self, client: Amqp) -> None:
        while not self.halt.is_set():
            key = f"{self.prefix}-{int((time.monotonic() - self.began) / KEY_S)}"
            call = self.rng.choice(("declare", "declare", "delete", "read", "read"))
            value = self.rng.randrange(VALUES)
            more = {"value": value} if call == "declare" else {}
            start = now_ns()
            try:
                outcome = self._perform(client, key, call, value)
            except (Lost, ChannelError):
                self.history.write("register", start, None, UNKNOWN, key=key, call=call, **more)
                raise
            self.history.write("register", start, now_ns(), outcome, key=key, call=call, **more)
            self.board.registered += 1
            self.halt.wait(PAUSE_S)

    def _perform(self, client: Amqp, key: str, call: str, value: int) -> str:
        """Raises ChannelError if it is not known what was done."""
        try:
            if call == "declare":
                declare(client, key, {"x-max-length": 100 + value})
                return OK
            if call == "delete":
                client.call(m.QueueDelete(queue=key), m.QueueDeleteOk)
                return OK
            declare(client, key, passive=True)
            return "present"
        except ChannelError as error:
            if call == "declare" and error.code == PRECONDITION_FAILED:
                client.open_channel()
                return REFUSED
            # A queue whose node is down is not found either, but exists.
            if call == "read" and error.code == NOT_FOUND and "no queue" in str(error):
                client.open_channel()
                return "absent"
            raise
