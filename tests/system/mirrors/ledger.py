"""Publishers and consumers that keep books, while the nodes they use are killed, frozen and started again.

What the books must show, whatever happened:

- every confirmed message is delivered;
- whatever is delivered a second time is marked as redelivered. Of a queue without mirrors, only what was delivered
  `NOTED_S` before its node was killed: the log has to be told, and a mirror is not asked before;
- what is not so marked comes in the order in which it was published, for each publisher and consumer.

A publisher never repeats itself: a number that was refused, or whose fate is unknown, is left at that, and the next one
is taken. So a number that comes twice was delivered twice. A connection that its client has given up may still have
publishes in it, which a frozen node finds when it goes on; therefore each connection counts as a publisher of its own.

The books also tell what is no fault and should be rare: publishes that were refused on a connection that stayed, how
many of them were kept all the same (a client that publishes again has them twice), how many were left without an answer
because the connection was lost, and for how long an answer was waited for by clients whose own node was at work.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from leveret.protocol import methods as m
from leveret.protocol.frames import HEARTBEAT, METHOD
from tests.support.members import Cluster, Member
from tests.support.raw import RawClient, Unexpected, publish_frames

SILENCE_S = 3.0  # After which a client takes its node for dead.
PREFETCH = 50
NOTED_S = 0.5  # After which the log of a node knows what was delivered.
LOST = (OSError, EOFError)


class Book:
    """What became of the messages of one queue."""

    def __init__(self, queue: str, home: Member | None = None) -> None:
        self.queue = queue
        self.home = home  # The node of a queue without mirrors.
        self.seen_s: dict[tuple[str, int], float] = {}  # When its messages were delivered.
        self.lock = threading.Lock()
        self.confirmed: dict[str, set[int]] = {}
        self.seen: dict[str, Counter[int]] = {}
        self.faults: list[str] = []
        self.deliveries = 0
        self.cancels = 0
        self.refused: dict[str, set[int]] = {}  # Publishes that were answered with a no.
        self.unanswered = 0  # Publishes whose connection was lost before they had an answer.
        self.longest_s = 0.0  # That somebody has waited for an answer of a node that did not stand still.

    def on_confirmed(self, publisher: str, numbers: Iterable[int]) -> None:
        with self.lock:
            self.confirmed.setdefault(publisher, set()).update(numbers)

    def on_refused(self, publisher: str, numbers: Iterable[int]) -> None:
        with self.lock:
            self.refused.setdefault(publisher, set()).update(numbers)

    def on_lost(self, count: int) -> None:
        with self.lock:
            self.unanswered += count

    def on_waited(self, seconds: float) -> None:
        with self.lock:
            self.longest_s = max(self.longest_s, seconds)

    def on_delivered(self, publisher: str, number: int, redelivered: bool, where: str) -> None:
        with self.lock:
            self.deliveries += 1
            seen = self.seen.setdefault(publisher, Counter())
            if not redelivered and seen[number] and not self._is_forgotten(publisher, number):
                self.faults.append(f"{publisher} {number} came again to {where}, not marked as redelivered")
            seen[number] += 1
            if self.home is not None:
                self.seen_s[publisher, number] = time.monotonic()

    def _is_forgotten(self, publisher: str, number: int) -> bool:
        """Returns whether the queue's node was killed just after it had delivered a message."""
        seen_s = self.seen_s.get((publisher, number), 0.0)
        return self.home is not None and any(
            seen_s - SILENCE_S <= killed_s <= seen_s + NOTED_S for killed_s in self.home.killed_s
        )

    def missing(self) -> dict[str, list[int]]:
        """Confirmed, and not delivered so far."""
        with self.lock:
            found = {
                name: sorted(numbers - self.seen.get(name, Counter()).keys())
                for name, numbers in self.confirmed.items()
            }
        return {name: numbers for name, numbers in found.items() if numbers}

    @property
    def repeated_count(self) -> int:
        """Deliveries of what had been delivered before. Each was marked as redelivered, or is a fault."""
        with self.lock:
            return sum(seen.total() - len(seen) for seen in self.seen.values())

    @property
    def refused_count(self) -> int:
        with self.lock:
            return sum(map(len, self.refused.values()))

    @property
    def kept_count(self) -> int:
        """Refused, and delivered."""
        with self.lock:
            return sum(len(numbers & self.seen.get(name, Counter()).keys()) for name, numbers in self.refused.items())

    @property
    def confirmed_count(self) -> int:
        with self.lock:
            return sum(map(len, self.confirmed.values()))


class Client(threading.Thread):
    """Goes on, at one node or another, until it is told to halt."""

    def __init__(self, book: Book, name: str, pick: Callable[[], Member], halt: threading.Event) -> None:
        super().__init__(name=name)
        self.book, self.pick, self.halt = book, pick, halt
        self.connections = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.halt.is_set():
                node = self.pick()
                try:
                    with RawClient(node.port, timeout_s=SILENCE_S, host=node.host) as client:
                        self.connections += 1
                        name = f"{self.name}.{self.connections}"
                        client.open(**self.login(name))
                        self.work(client, name, node)
                except LOST:
                    self.halt.wait(0.05)
                except Unexpected as error:
                    if not isinstance(error.method, m.ConnectionClose):
                        raise
                    self.halt.wait(0.05)  # A node that pauses or stops takes leave of its clients.
        except BaseException as error:
            self.failure = error

    def login(self, name: str) -> dict[str, Any]:
        """What it says of itself."""
        return {}

    def work(self, client: RawClient, name: str, node: Member) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Publishes a window, waits until each of it is confirmed or refused, and so on."""

    window = 20
    persistent = True
    pause_s = 0.0  # Between two windows.

    def work(self, client: RawClient, name: str, node: Member) -> None:
        client.method(m.ConfirmSelect())
        client.expect(m.ConfirmSelectOk)
        client.socket.settimeout(15.0)  # It may take as long as a master is waited for.
        number = 0
        while not self.halt.is_set():
            window = range(number + 1, number + 1 + self.window)
            bodies = [f"{name} {one}".encode() for one in window]
            client.send(b"".join(publish_frames("", self.book.queue, body, self.persistent) for body in bodies))
            pending = dict.fromkeys(window)
            try:
                self._hear(client, name, node, pending)
            finally:
                self.book.on_lost(len(pending))
            number = window[-1]
            if self.pause_s:
                self.halt.wait(self.pause_s)

    def _hear(self, client: RawClient, name: str, node: Member, pending: dict[int, None]) -> None:
        """Take answers until nothing is left that waits for one."""
        began, stood_still_s = time.monotonic(), node.stood_still_s
        while pending:
            answer = client.receive()
            if isinstance(answer, m.ConnectionClose):
                raise EOFError
            assert isinstance(answer, m.BasicAck | m.BasicNack), answer
            tag = answer.delivery_tag
            told = [one for one in pending if one <= tag] if answer.multiple else [tag]
            for one in told:
                pending.pop(one, None)
            self.book.on_waited(time.monotonic() - began - (node.stood_still_s - stood_still_s))
            if isinstance(answer, m.BasicAck):
                self.book.on_confirmed(name, told)
            else:
                self.book.on_refused(name, told)


class NamedPublisher(Publisher):
    """A producer: it numbers its messages, under another name on each connection, so that it never sends one again."""

    def login(self, name: str) -> dict[str, Any]:
        return {"leveret_producer": name, "leveret_sequence": 0}


class Reader(Client):
    """Consumes, and acknowledges a few at a time."""

    def work(self, client: RawClient, name: str, node: Member) -> None:
        client.method(m.BasicQos(prefetch_count=PREFETCH))
        client.expect(m.BasicQosOk)
        client.method(m.BasicConsume(queue=self.book.queue, consumer_tag="reader"))
        client.socket.settimeout(0.2)
        last: dict[str, int] = {}
        unacked = 0
        idle = 0.0
        while not self.halt.is_set():
            try:
                method, body = self._next(client)
            except TimeoutError:
                idle += 0.2
                if idle > SILENCE_S:
                    idle = 0.0
                    self._look_alive(client)
                continue
            idle = 0.0
            if isinstance(method, m.ConnectionClose | m.ChannelClose | m.BasicCancel):
                self.book.cancels += isinstance(method, m.BasicCancel)
                raise EOFError
            if not isinstance(method, m.BasicDeliver):
                continue
            publisher, _, digits = body.decode().partition(" ")
            number = int(digits)
            self.book.on_delivered(publisher, number, method.redelivered, name)
            if not method.redelivered:
                if number <= last.get(publisher, 0):
                    self.book.faults.append(f"{publisher} {number} after {last[publisher]} at {name}, not marked")
                last[publisher] = number
            unacked += 1
            if unacked >= 10 or not client.rest:
                client.method(m.BasicAck(method.delivery_tag, True))
                unacked = 0

    def _look_alive(self, client: RawClient) -> None:
        """A frozen node does not answer: then there may be messages that another consumer could have."""
        client.socket.settimeout(SILENCE_S)
        client.method(m.BasicQos(prefetch_count=PREFETCH))
        client.socket.recv(1, 2)  # MSG_PEEK
        client.socket.settimeout(0.2)

    def _next(self, client: RawClient) -> tuple[Any, bytes]:
        """The next method, with its body if it has one."""
        while len(client.rest) < 7:
            client.rest += self._received(client)
        client.socket.settimeout(SILENCE_S)
        try:
            kind, _, payload = client.frame()
            if kind == HEARTBEAT:
                return None, b""
            assert kind == METHOD
            method = m.decode_payload(payload)
            if not isinstance(method, m.BasicDeliver):
                return method, b""
            size = int.from_bytes(client.frame()[2][4:12], "big")
            body = b""
            while len(body) < size:
                body += client.frame()[2]
            return method, body
        except TimeoutError:
            raise EOFError from None
        finally:
            client.socket.settimeout(0.2)

    def _received(self, client: RawClient) -> bytes:
        data = client.socket.recv(1 << 16)
        if not data:
            raise EOFError
        return data


class Ledger:
    """Clients for some queues at all nodes of a cluster."""

    def __init__(self, nodes: Cluster, rng: random.Random) -> None:
        self.nodes = nodes
        self.rng = rng
        self.books: list[Book] = []
        self.publishers: list[Publisher] = []
        self.readers: list[Reader] = []
        self.stop_publishing, self.stop_reading = threading.Event(), threading.Event()

    def add(
        self, queue: str, publishers: int = 2, readers: int = 1, at: list[Member] | None = None, window: int = 20,
        persistent: bool = True, pause_s: float = 0.0, kind: type[Publisher] = Publisher, home: Member | None = None,
    ) -> Book:  # fmt: skip
        """`at`: the nodes that clients of this queue connect to; by default any. `home`: of a queue without mirrors."""
        book = Book(queue, home)
        self.books.append(book)
        number = len(self.books)
        choice = at or self.nodes.nodes

        def pick(rng: random.Random) -> Callable[[], Member]:
            return lambda: rng.choice(choice)

        for one in range(publishers):
            publisher = kind(book, f"p{number}{'abcdef'[one]}", pick(self._rng()), self.stop_publishing)
            publisher.window, publisher.persistent, publisher.pause_s = window, persistent, pause_s
            self.publishers.append(publisher)
        for one in range(readers):
            self.readers.append(Reader(book, f"r{number}{'abcdef'[one]}", pick(self._rng()), self.stop_reading))
        return book

    def _rng(self) -> random.Random:
        return random.Random(self.rng.random())

    @property
    def clients(self) -> list[Client]:
        return [*self.publishers, *self.readers]

    def start(self) -> Ledger:
        for client in self.clients:
            client.start()
        return self

    def __enter__(self) -> Ledger:
        return self.start()

    def __exit__(self, *of: object) -> None:
        self.stop_publishing.set()
        self.stop_reading.set()
        for client in self.clients:
            client.join()

    def check_so_far(self) -> None:
        for client in self.clients:
            if client.failure is not None:
                raise client.failure
        faults = [fault for book in self.books for fault in book.faults]
        assert not faults, faults[:10]

    def await_progress(self, count: int = 200, seconds: float = 60.0, books: list[Book] | None = None) -> None:
        """Until in each queue so many more messages were confirmed, and so many delivered."""
        goals = [(book, book.confirmed_count + count, book.deliveries + count) for book in books or self.books]
        pause = threading.Event()
        waited = 0.0
        while behind := [one for one in goals if one[0].confirmed_count < one[1] or one[0].deliveries < one[2]]:
            self.check_so_far()
            told = [(one[0].queue, one[1] - one[0].confirmed_count, one[2] - one[0].deliveries) for one in behind]
            assert waited < seconds, f"after {seconds:g} s still to be confirmed and delivered: {told}"
            pause.wait(0.02)
            waited += 0.02

    @property
    def confirmed_count(self) -> int:
        return sum(book.confirmed_count for book in self.books)

    def summary(self) -> str:
        books = self.books
        refused, kept = sum(book.refused_count for book in books), sum(book.kept_count for book in books)
        confirmed, longest_s = self.confirmed_count, max(book.longest_s for book in books)
        unanswered, repeated = sum(book.unanswered for book in books), sum(book.repeated_count for book in books)
        unmarked = sum("not marked" in fault for book in books for fault in book.faults)
        answers = f"{confirmed} confirmed, {refused} refused and {kept} of these kept"
        deliveries = f"delivered again: {repeated - unmarked} marked, {unmarked} not marked"
        lost = f"{unanswered} without an answer because their connection was lost"
        return f"{answers}, {lost}, {deliveries}; {longest_s:.1f} s the longest wait for an answer"

    def finish(self, seconds: float = 60.0) -> int:
        """Stop publishing, wait for what is due, and look into the books. How many messages were confirmed."""
        self.stop_publishing.set()
        for publisher in self.publishers:
            publisher.join()
        pause = threading.Event()
        waited = 0.0
        while missing := {book.queue: gone for book in self.books if (gone := book.missing())}:
            self.check_so_far()
            shown = {queue: {name: gone[:5] for name, gone in of.items()} for queue, of in missing.items()}
            assert waited < seconds, f"confirmed and not delivered: {shown}"
            pause.wait(0.05)
            waited += 0.05
        self.check_so_far()
        return self.confirmed_count
