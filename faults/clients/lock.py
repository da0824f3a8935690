"""Uses a queue with one message as a lock: who has the message has the lock.

    message         any of several consumers gets it, and gives it back with a nack
    single-active   the queue has a single active consumer
    exclusive       the consumer itself is exclusive, so that only one client can consume at all
    fenced          as `message`; then the client appends to a stream, and the offset of its entry is its token. The
                    resource that the lock guards takes no token that is lower than one it has taken

A holder stops believing when it gives the message back, is cancelled, loses its connection, or has heard nothing from
its node for `SILENCE_S`. That has to be less than the time after which the cluster gives up a silent node: a client
that believes for longer believes alone. With heartbeats of a second the node itself is heard twice a second.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults.clients.amqp import Amqp, ChannelError, Lost, Message, declare, publish_frames
from faults.clients.load import PATIENCE_S, Board, Client, Where
from faults.history.entries import OK, REFUSED, now_ns
from leveret.protocol import methods as m
from leveret.protocol.tables import table_from_python

SILENCE_S = 2.0
HEARTBEAT_S = 1
ACCESS_REFUSED = 403
KINDS: dict[str, dict[str, Any]] = {
    "message": {},
    "single-active": {"x-single-active-consumer": True},
    "exclusive": {},
    "fenced": {},
}


class Resource:
    """What a lock guards: it compares tokens, all at one place."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.highest = -1

    def use(self, token: int) -> bool:
        """Returns whether the token is taken."""
        with self.lock:
            if token < self.highest:
                return False
            self.highest = token
            return True


class Holder(Client):
    """Waits for the lock, holds it for a moment, and gives it back."""

    heartbeat_s = HEARTBEAT_S
    success = "held"

    def __init__(
        self, name: str, folder: Path, board: Board, pick: Callable[[], Where], lock: str, kind: str, seed: int,
        resource: Resource,
    ) -> None:  # fmt: skip
        super().__init__(name, folder, board, pick)
        self.resource = resource
        self.lock, self.kind = lock, kind
        self.rng = random.Random(seed)

    def on_channel_error(self, error: ChannelError) -> None:
        if error.code == ACCESS_REFUSED:  # Another consumer is the exclusive one.
            self.halt.wait(0.2)

    def work(self, client: Amqp) -> None:
        client.call(m.BasicQos(prefetch_count=1), m.BasicQosOk)
        # When a master is lost the next one gives the message to anybody, and tells only those who ask for it.
        told = table_from_python({"x-cancel-on-ha-failover": True})
        asked = m.BasicConsume(
            queue=self.lock, consumer_tag="lock", exclusive=self.kind == "exclusive", arguments=told
        )
        client.call(asked, m.BasicConsumeOk)
        until = time.monotonic() + self.rng.uniform(2.0, 6.0)  # Then others have a chance, also if it is exclusive.
        while not self.halt.is_set() and time.monotonic() < until:
            found = client.next(0.2)
            if isinstance(found, m.BasicCancel):
                return
            if time.monotonic() - client.heard_s > SILENCE_S:
                return
            if isinstance(found, Message):
                self._hold(client, found)

    def _hold(self, client: Amqp, message: Message) -> None:
        token = self._new_token() if self.kind == "fenced" else 0
        start = now_ns()
        try:
            if self.kind == "fenced":
                outcome = OK if self.resource.use(token) else REFUSED
                self.history.write("use", start, now_ns(), outcome, lock=self.lock, holder=self.name, token=token)
            until = time.monotonic() + self.rng.choice((0.01, 0.1, 0.5))
            while time.monotonic() < until and not self.halt.is_set():
                if isinstance(client.next(0.05), m.BasicCancel):
                    raise Lost("cancelled")
                if time.monotonic() - client.heard_s > SILENCE_S:
                    raise Lost("nothing heard")
        finally:
            # Before the nack leaves: from then on somebody else may have it.
            self.history.write("hold", start, now_ns(), OK, lock=self.lock, holder=self.session, token=token)
        self.board.held += 1
        client.send(m.BasicNack(message.method.delivery_tag, False, True))


    def _new_token(self) -> int:
        """Returns the offset of an entry that was appended to the stream just now. Raises Lost, ChannelError."""
        where = self.pick()
        own = f"{self.session} {now_ns()}".encode()
        stream = stream_of(self.lock)
        with Amqp(where.host, where.port, PATIENCE_S) as client:
            client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
            client.send_bytes(publish_frames("", stream, own))
            client.expect(m.BasicAck)
            client.call(m.BasicQos(prefetch_count=100), m.BasicQosOk)
            arguments = table_from_python({"x-stream-offset": "last"})
            client.call(m.BasicConsume(queue=stream, consumer_tag="t", arguments=arguments), m.BasicConsumeOk)
            deadline = time.monotonic() + PATIENCE_S
            while time.monotonic() < deadline:
                found = client.next(0.5)
                if isinstance(found, Message):
                    client.send(m.BasicAck(found.method.delivery_tag, False))
                    if found.body == own:
                        return found.stream_offset
        raise Lost("the entry has not come")


def stream_of(lock: str) -> str:
    return f"{lock}-tokens"


def make_lock(client: Amqp, lock: str, kind: str) -> None:
    """Declares the queue and puts the message in, confirmed. Raises Lost, ChannelError."""
    declare(client, lock, KINDS[kind])
    if kind == "fenced":
        declare(client, stream_of(lock), {"x-queue-type": "stream"})
    client.call(m.ConfirmSelect(), m.ConfirmSelectOk)
    client.send_bytes(publish_frames("", lock, b"lock"))
    client.expect(m.BasicAck)
