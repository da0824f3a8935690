"""Consumes a queue, acknowledges, and writes down what was delivered."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from faults.clients.amqp import Amqp, Lost, Message
from faults.clients.load import Board, Client, Where
from faults.history.entries import OK, now_ns
from leveret.protocol import methods as m

PREFETCH = 50
ACKED_AT_ONCE = 10


class Consumer(Client):
    """Consumes one queue. `rejects`: the share of messages that it rejects without requeue, and `drops` how often it
    drops its connection with messages unacknowledged."""

    success = "delivered"
    drains = True

    def __init__(
        self, name: str, folder: Path, board: Board, pick: Callable[[], Where], queue: str, drops: float = 0.0,
        rejects: float = 0.0, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(name, folder, board, pick)
        self.queue, self.drops, self.rejects = queue, drops, rejects
        self.rng = random.Random(seed)
        self.unacked: list[int] = []

    def work(self, client: Amqp) -> None:
        client.call(m.BasicQos(prefetch_count=PREFETCH), m.BasicQosOk)
        client.call(m.BasicConsume(queue=self.queue, consumer_tag="faults"), m.BasicConsumeOk)
        self.unacked = []
        while not self.halt.is_set():
            found = client.next(0.2)
            if isinstance(found, Message):
                self.on_message(client, found)
            elif isinstance(found, m.BasicCancel):
                raise Lost("the consumer was cancelled")
            if self.unacked and (len(self.unacked) >= ACKED_AT_ONCE or not client.rest):
                client.send(m.BasicAck(self.unacked[-1], True))
                self.unacked = []

    def on_message(self, client: Amqp, message: Message) -> None:
        at = now_ns()
        queue, producer, number = message.body.decode().split()
        rejected = self.rng.random() < self.rejects
        if not rejected:
            redelivered = message.method.redelivered
            self.history.write(
                "deliver", at, at, OK, queue=queue, consumer=self.session, producer=producer, number=int(number),
                redelivered=redelivered,
            )  # fmt: skip
            self.board.on_delivered((queue, producer, int(number)))
        if self.rng.random() < self.drops:
            raise Lost("dropped by itself")
        if rejected:
            client.send(m.BasicReject(message.method.delivery_tag, False))
        else:
            self.unacked.append(message.method.delivery_tag)
