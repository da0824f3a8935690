"""What the client of shovels does when a broker is silent, blocked, or gone while another one is there."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.support.servers import until
from tests.system.shovel.conftest import Site
from tests.system.shovel.test_once import bodies, publish, taken

PIECE = 1 << 16


class Line:
    """A port that passes everything on to another one, until it falls silent: nothing is closed, nothing arrives."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.passes = threading.Event()
        self.passes.set()
        self.sockets: list[socket.socket] = []
        self.threads = [threading.Thread(target=self._accept, daemon=True)]
        self.threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self.listener.accept()
                there = socket.create_connection(("127.0.0.1", self.to))
                self.sockets += (here, there)
                for one, other in ((here, there), (there, here)):
                    thread = threading.Thread(target=self._pass_on, args=(one, other, self.passes), daemon=True)
                    self.threads.append(thread)
                    thread.start()

    def _pass_on(self, one: socket.socket, other: socket.socket, passes: threading.Event) -> None:
        with suppress(OSError):
            while data := one.recv(PIECE):
                if not passes.is_set():
                    return  # What it has read is lost, and both ends stay open.
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def fall_silent(self) -> None:
        """Connections that are there pass on nothing any more; those that are made later do."""
        self.passes.clear()
        self.passes = threading.Event()
        self.passes.set()

    def close(self) -> None:
        for one in (self.listener, *self.sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self.threads:
            thread.join(10)


@pytest.fixture
def line(far: Site) -> Iterator[Line]:
    line = Line(far.broker.port)
    yield line
    line.close()


def test_a_broker_that_falls_silent_is_given_up_and_tried_again(here: Site, far: Site, line: Line) -> None:
    """Heartbeats are missed. What was under way is published again, and taken once."""
    publish(here.url, 3_000)
    far.queue("b")
    uri = f"amqp://guest:guest@127.0.0.1:{line.port}?heartbeat=1"
    here.shovel(
        "s", src_uri="amqp://", src_queue="a", dest_uri=uri, dest_queue="b", reconnect_delay=0.1, src_prefetch_count=50
    )
    until(lambda: far.count("b") > 100, "some messages")
    line.fall_silent()
    until(lambda: "missed heartbeats" in here.statuses()["s"]["reason"] or far.count("b") == 3_000, "it to notice")
    assert taken(far, "b", 3_000) == Counter(bodies(3_000))
    assert here.statuses()["s"]["state"] == "running"


def test_heartbeats_keep_an_idle_shovel(here: Site, far: Site, line: Line) -> None:
    here.queue("a")
    far.queue("b")
    uri = f"amqp://guest:guest@127.0.0.1:{line.port}?heartbeat=1"
    here.shovel("s", src_uri=uri, src_queue="a", dest_uri=uri, dest_queue="b")
    until(lambda: here.statuses()["s"]["state"] == "running", "it to run")
    since = here.statuses()["s"]["timestamp"]
    assert not threading.Event().wait(3.5)  # Longer than both ends wait for a heartbeat.
    assert (here.statuses()["s"]["state"], here.statuses()["s"]["timestamp"]) == ("running", since)


def test_one_of_several_hosts_is_there(here: Site, far: Site) -> None:
    """Whichever is chosen first, the first attempt comes to the one that works."""
    bodies = here.fill(here.queue("a"), 20)
    gone = ["amqp://127.0.0.1:1", "amqp://127.0.0.1:2", "amqp://no.such.host.invalid"]
    here.shovel(
        "s", src_uri=[*gone, "amqp://"], src_queue="a", dest_uri=[*gone, far.url], dest_queue="b", reconnect_delay=0
    )
    until(lambda: far.count("b") == 20, "all to be moved")
    assert far.take("b") == bodies
    here.shovel("none", src_uri=[*gone, "amqp://127.0.0.1:3"], src_queue="a", dest_uri="amqp://", reconnect_delay=0)
    until(lambda: here.statuses()["none"]["state"] == "terminated", "it to fail")
    reason = here.statuses()["none"]["reason"]
    assert reason.count("source amqp://") == 3 and reason.endswith("; and 1 others")


def test_a_destination_with_an_alarm(here: Site, far: Site) -> None:
    here.queue("a")
    far.queue("b")
    here.shovel("s", src_uri="amqp://", src_queue="a", dest_uri=far.url, dest_queue="b")
    until(lambda: here.statuses()["s"]["state"] == "running", "it to run")
    with far.broker.faults.raise_alarm("memory"):
        here.fill("a", 30)
        until(lambda: here.statuses()["s"]["state"] == "blocked", "it to be blocked")
        assert here.statuses()["s"]["reason"] == "the destination is blocked: low on memory"
    until(lambda: far.count("b") == 30, "all to be moved")
    assert here.statuses()["s"]["state"] == "running"
