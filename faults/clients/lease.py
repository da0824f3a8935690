"""Readers that share a lease, of which one owns it at a time, and a client that gets messages of the same queue.

A reader takes the lease over, takes messages, reads them by their numbers, acknowledges what it has read, and goes on
until another reader has taken the lease over. Now and then it releases the lease, and its messages are in the queue
again. Each call has one entry in the history, from the first attempt to the answer: an answer that is lost is asked
for again, which changes nothing more except that a `take` may take more.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from faults.clients.amqp import Amqp, Lost, Message
from faults.clients.load import AGAIN_S, Board, Client, Where
from faults.history.entries import OK, REFUSED, UNKNOWN, now_ns
from leveret.data.client import DataClient, DataError, LeaseView, Refused
from leveret.protocol import methods as m

TIMEOUT_S = 3.0
AT_ONCE = 40
RELEASES = 0.01  # The share of turns that end with a release,
RESTARTS = 0.02  # or as if the reader had crashed: it takes the lease over again.
TURN_S = 0.05
GOT_AT_ONCE = 5
NOT_FOUND, LOCKED = 404, 423


class LeaseReader(Client):
    """One of several readers of the lease `lease` of a queue. Its name is that of the owner."""

    success = "read"
    drains = True

    def __init__(
        self, name: str, folder: Path, board: Board, servers: Sequence[str], queue: str, lease: str, seed: int
    ) -> None:
        super().__init__(name, folder, board, lambda: Where("", 0))
        self.servers, self.queue, self.lease = list(servers), queue, lease
        self.rng = random.Random(seed)

    def run(self) -> None:
        try:
            self.rng.shuffle(self.servers)
            with DataClient(self.servers, timeout_s=TIMEOUT_S, patience_s=TIMEOUT_S) as client:
                while not self.halt.is_set():
                    try:
                        self._own(client)
                    except Refused as refused:
                        # It has another owner, or it was released and nobody has opened it again.
                        if refused.status not in (LOCKED, NOT_FOUND):
                            raise
                        self.halt.wait(self.rng.uniform(0.2, 3.0))
                    except DataError:
                        self.halt.wait(AGAIN_S)
        except BaseException as error:  # The runner tells of it.
            self.failure = error
        finally:
            self.history.close()

    def _own(self, client: DataClient) -> None:
        """Reads until somebody else is the owner. Raises DataError."""
        view = self._call("open", lambda: client.lease_open(self.queue, self.lease, None, self.name, takeover=True))
        known = view.acked  # Places below were read.
        while not self.halt.is_set():
            known = self._read(client, view, max(known, view.acked))
            luck = self.rng.random()
            if luck < RELEASES:
                self._release(client)
            if luck < RELEASES + RESTARTS:
                return
            through = known
            self._call("ack", lambda: client.lease_ack(self.queue, self.lease, through, self.name), through=through)  # noqa: B023
            view = self._call("take", lambda: client.lease_take(self.queue, self.lease, AT_ONCE, owner=self.name))
            if not view.runs:
                self.halt.wait(TURN_S)

    def _read(self, client: DataClient, view: LeaseView, known: int) -> int:
        """Reads the messages of a view that are not known; returns the place below which all is read."""
        for place, first, last in view.runs:
            if place + last - first < known:
                continue
            begin = first + max(0, known - place)
            start = now_ns()
            found = [message for sheet in client.read(self.queue, begin, last) for message in sheet]
            for message in found:
                queue, producer, number = message.body.decode().split()
                at = place + message.number - first
                self.history.write(
                    "read", start, now_ns(), OK, queue=queue, lease=self.lease, owner=self.name, place=at,
                    producer=producer, number=int(number),
                )  # fmt: skip
                self.board.on_delivered((queue, producer, int(number)))
                self.board.read += 1
            seen = {message.number for message in found}
            missing = next((number for number in range(begin, last + 1) if number not in seen), last + 1)
            known = place + missing - first
            if missing <= last:
                break  # It must not acknowledge what it has not seen. Another owner may have acknowledged it.
        return known

    def _call(self, call: str, ask: Callable[[], LeaseView], **more: int) -> LeaseView:
        """Raises DataError."""
        start = now_ns()
        try:
            view = ask()
        except Refused:
            self._note(call, start, REFUSED, **more)
            raise
        except DataError:
            self._note(call, start, UNKNOWN, **more)
            raise
        self._note(call, start, OK, acked=view.acked, next=view.next, **more)
        return view

    def _note(self, call: str, start: int, outcome: str, **more: int) -> None:
        end = None if outcome == UNKNOWN else now_ns()
        self.history.write("lease", start, end, outcome, lease=self.lease, owner=self.name, call=call, **more)

    def _release(self, client: DataClient) -> None:
        """Releases the lease, and asks until it has an answer: nobody could judge by a release that may come later."""
        start = now_ns()
        outcome = UNKNOWN
        try:
            while outcome == UNKNOWN and not self.halt.is_set():
                try:
                    client.lease_release(self.queue, self.lease)
                    outcome = OK
                except Refused as refused:
                    if refused.status != NOT_FOUND:
                        raise
                    outcome = OK  # By an attempt before.
                except DataError:
                    self.halt.wait(AGAIN_S)
        finally:
            self._note("release", start, outcome)


class Getter(Client):
    """Gets a few messages at a time, and acknowledges them."""

    success = "delivered"
    drains = True

    def __init__(self, name: str, folder: Path, board: Board, pick: Callable[[], Where], queue: str) -> None:
        super().__init__(name, folder, board, pick)
        self.queue = queue

    def work(self, client: Amqp) -> None:
        while not self.halt.is_set():
            for _ in range(GOT_AT_ONCE):
                start = now_ns()
                client.send(m.BasicGet(queue=self.queue))
                found = self._answer(client)
                if found is None:
                    break
                self._on_message(client, found, start)
            self.halt.wait(TURN_S)

    def _answer(self, client: Amqp) -> Message | None:
        deadline = time.monotonic() + client.timeout_s
        while time.monotonic() < deadline:
            found = client.next(deadline - time.monotonic())
            if isinstance(found, Message):
                return found
            if isinstance(found, m.BasicGetEmpty):
                return None
        raise Lost("no answer in time")

    def _on_message(self, client: Amqp, message: Message, start: int) -> None:
        queue, producer, number = message.body.decode().split()
        self.history.write(
            "deliver", start, now_ns(), OK, queue=queue, consumer=self.session, producer=producer, number=int(number),
            redelivered=message.method.redelivered,
        )  # fmt: skip
        self.board.on_delivered((queue, producer, int(number)))
        client.send(m.BasicAck(message.method.delivery_tag, False))
