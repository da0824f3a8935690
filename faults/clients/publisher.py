"""Publishes windows of persistent messages, and writes down which were confirmed, refused, or not answered.

A message that comes back because there is no queue for it counts as refused, although it is confirmed then: RabbitMQ
does that while the only node of a queue is down. A publisher waits while consumers are far behind, so that the end of
a run is not a long drain.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from faults.clients.amqp import Amqp, Lost, Returned, publish_frames
from faults.clients.load import Board, Client, Where
from faults.history.entries import OK, REFUSED, UNKNOWN, now_ns
from leveret.protocol import methods as m

ANSWER_S = 20.0  # For a confirm, with failovers in between; a blocked publisher waits as long as it is blocked.
BLOCKED_S = 120.0
BEHIND_S = 0.05


class Publisher(Client):
    """Publishes to one queue. Each connection is a producer of its own, so no message is published twice."""

    success = "confirmed"

    def __init__(
        self, name: str, folder: Path, board: Board, pick: Callable[[], Where], queue: str, window: int = 20,
        pause_s: float = 0.02, size: int = 0, exchange: str = "",
    ) -> None:  # fmt: skip
        super().__init__(name, folder, board, pick)
        self.queue, self.window, self.pause_s, self.size = queue, window, pause_s, size
        self.exchange = exchange
        self.properties = b"\x10\x00\x02"
        self.is_blocked = False
        self.returned: set[int] = set()

    def work(self, client: Amqp) -> None:
        client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
        self.is_blocked = False
        self.returned = set()
        number = 0
        while not self.halt.is_set():
            if self.board.is_behind():
                self.halt.wait(BEHIND_S)
                client.next(0.0)  # For heartbeats.
                continue
            window = range(number + 1, number + 1 + self.window)
            number = window[-1]
            self._publish(client, window)
            if self.pause_s:
                self.halt.wait(self.pause_s)

    def _publish(self, client: Amqp, window: range) -> None:
        start = now_ns()
        pending = dict.fromkeys(window)
        producer = self.session
        try:
            bodies = [f"{self.queue} {producer} {number}".ljust(self.size).encode() for number in window]
            client.send_bytes(
                b"".join(publish_frames(self.exchange, self.queue, body, self.properties) for body in bodies)
            )
            while pending:
                answer = self._answer(client)
                tag = answer.delivery_tag
                told = [one for one in pending if one <= tag] if answer.multiple else [tag]
                is_ack = isinstance(answer, m.BasicAck)
                taken = [one for one in told if is_ack and one not in self.returned]
                self._note(taken, producer, start, OK)
                self._note([one for one in told if not is_ack or one in self.returned], producer, start, REFUSED)
                for one in told:
                    pending.pop(one, None)
        finally:
            self._note(list(pending), producer, start, UNKNOWN)

    def _answer(self, client: Amqp) -> m.BasicAck | m.BasicNack:
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            found = client.next(0.5)
            if isinstance(found, m.BasicAck | m.BasicNack):
                return found
            if isinstance(found, Returned):
                self.returned.add(int(found.body.split()[2]))
            elif isinstance(found, m.ConnectionBlocked):
                self.is_blocked, deadline = True, time.monotonic() + BLOCKED_S
            elif isinstance(found, m.ConnectionUnblocked):
                self.is_blocked, deadline = False, time.monotonic() + ANSWER_S
        raise Lost("no confirm in time")

    def _note(self, numbers: list[int], producer: str, start: int, outcome: str) -> None:
        end = None if outcome == UNKNOWN else now_ns()
        for number in numbers:
            self.history.write(
                "publish", start, end, outcome, queue=self.queue, producer=producer, number=number
            )
        if outcome == OK:
            self.board.on_confirmed([(self.queue, producer, number) for number in numbers])
