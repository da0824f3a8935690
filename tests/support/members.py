"""Clusters of real nodes for tests: processes on ports of this machine that can be killed, frozen and restarted.

Ports are below the range from which the system chooses ports of outgoing connections, since a restarted node has to
find its port free. Another test that runs at the same time, in another worker or another run, must not take it either:
all tests of this user record the ports they use in one file, by locks that end with the process.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

import pika
import pytest

from leveret.links.frame_types import CONTROL
from leveret.links.link import Identity
from leveret.metadata.rules.passwords import hash_password
from leveret.node.config.settings import TlsOptions
from leveret.node.sockets.peer_socket import PeersOptions, call, peer_tls
from tests.support.servers import PATIENCE_S, START_S, Server, until

COOKIE = "hares in a field"
PORTS = range(21_000, 32_000)
CALL_S = PATIENCE_S
# Heartbeats as frequent as a node with a small net_ticktime needs them, with tolerance for a busy machine.
LIVELY = PeersOptions(silence_ms=400, connect_ms=60_000, greeting_ms=60_000)

PERSISTENT = pika.BasicProperties(delivery_mode=2)

_reserved: set[int] = set()  # All ports that were tried, reserved or not.

ALL_QUEUES = {"only": None, "online": None, "offline": None, "local": None, "after": None}


class Refused(Exception):
    """The error of a control call."""


def free_port() -> int:
    """Returns a port that nothing listens at, and that no test gets again while this process runs."""
    while len(_reserved) < len(PORTS):
        port = random.choice(PORTS)
        if _reserve(port):
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    continue
                return port
    raise AssertionError("all ports have been used")


def _reserve(port: int) -> bool:
    """Locks the byte of that number in the common file; returns False if the port is reserved already."""
    if port in _reserved:
        return False
    _reserved.add(port)
    try:
        fcntl.lockf(_ports_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):  # POSIX lets a system choose between the two.
        return False
    return True


@cache
def _ports_file() -> IO[bytes]:
    """Opens the file once and never closes it: closing any of its descriptors would release all locks of the
    process."""
    return open(os.path.join(tempfile.gettempdir(), f"leveret-test-ports-{os.getuid()}"), "wb")


class Member(Server):
    """A node that has the same name and ports at each start."""

    def __init__(
        self, folder: Path, name: str, config: str, cookie: str | None = COOKIE, join: tuple[int, ...] = ()
    ) -> None:
        environment = {"LEVERET_COOKIE": cookie} if cookie is not None else {}
        super().__init__(folder, config, environment)
        self.name = name
        self.cookie = cookie
        self.port = free_port()
        self.cluster_port = free_port()
        self.join = join
        self.frozen = False
        # How long it has been frozen in all, and since when it is frozen now.
        self.thawed_s = self.frozen_since_s = 0.0
        self.killed_s: list[float] = []  # When it was killed.
        self.fresh = False  # Started, and not known to be ready.
        self.tls: TlsOptions | None = None

    def spawn(self, port: int = 0) -> Any:
        joined = [word for other in self.join for word in ("--join", f"127.0.0.1:{other}")]
        self.arguments = ("--name", self.name, "--cluster-port", str(self.cluster_port), *joined)
        self.fresh = True
        return super().spawn(port or self.port)

    def wait_until_ready(self, seconds: float = START_S) -> Server:
        self.fresh = False
        return super().wait_until_ready(seconds)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        self.killed_s.append(time.monotonic())
        super().kill()
        self.frozen = False

    def freeze(self) -> None:
        self.frozen_since_s = time.monotonic()
        os.kill(self.pid, signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.thawed_s += time.monotonic() - self.frozen_since_s
        self.frozen = False

    @property
    def stood_still_s(self) -> float:
        """Returns how long it has been frozen in all."""
        return self.thawed_s + (time.monotonic() - self.frozen_since_s if self.frozen else 0.0)

    def disconnect(self) -> None:
        """Closes all connections of `connect`."""
        for connection in list(self.connections):
            self.cut(connection)

    def cut(self, connection: Any) -> None:
        """Closes a connection without a handshake."""
        self.connections.remove(connection)
        transport = connection._impl._transport
        if connection.is_open and transport is not None:
            transport._sock.shutdown(socket.SHUT_RDWR)

    def control(self, command: str, options: PeersOptions = LIVELY, /, **arguments: Any) -> Any:
        """Runs a command as leveretctl would. Raises Refused."""
        asked = json.dumps({"command": command, "arguments": arguments}).encode()
        me = Identity("tests", os.urandom(16))
        assert self.cookie is not None
        tls = None if self.tls is None else peer_tls(self.tls)
        where = (self.host, self.cluster_port)
        answer = json.loads(asyncio.run(call(where, CONTROL, asked, CALL_S, me, self.cookie.encode(), tls, options)))
        if "error" in answer:
            raise Refused(answer["error"]["text"])
        return answer["ok"]

    def add_user(self, name: str, password: str) -> None:
        hashed = hash_password(password, os.urandom(4))
        self.control("add_user", name=name, password_hash=hashed, hashing="rabbit_password_hashing_sha256")

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.control("cluster_status")
        return status


class Cluster:
    """Nodes that were started one after the other; the first one founded the cluster."""

    def __init__(self, folder: Path, config: str = "", size: int = 3, configs: dict[int, str] | None = None) -> None:
        self.nodes: list[Member] = []
        for number in range(size):
            more = (configs or {}).get(number, "")
            join = (self.nodes[0].cluster_port,) if self.nodes else ()
            name = f"n{number + 1}@localhost"
            self.nodes.append(Member(folder / f"n{number + 1}", name, f"{config}\n{more}", join=join))

    def __getitem__(self, at: int) -> Member:
        return self.nodes[at]

    def __iter__(self) -> Iterator[Member]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def start(self) -> Cluster:
        """Starts all nodes that are not running, at once; returns when all serve clients and are linked."""
        begun = [node for node in self.nodes if not node.is_running]
        for node in begun:
            if node.process is not None:
                node.kill()
            node.spawn()
        for node in begun:
            node.wait_until_ready()
        self.wait_until_whole()
        return self

    def wait_until_whole(self) -> None:
        """Waits until each node has links to all others and serves clients."""
        for node in self.nodes:
            until(lambda node=node: self._is_whole(node), f"{node.name} sees all nodes")  # type: ignore[misc]

    def _is_whole(self, node: Member) -> bool:
        status = node.status()
        voters = [one["name"] for one in status["members"] if one["voter"]]
        if status["leader"] is None or not len(voters) == len(status["running_nodes"]) == len(self.nodes):
            return False
        listeners = status["listeners"].get(node.name, ())
        return not status["paused_nodes"] and any(one["protocol"].startswith("amqp") for one in listeners)

    def mend(self) -> None:
        """Repairs whatever state a test left."""
        for node in self.nodes:
            if node.frozen:
                node.thaw()
            if node.fresh and node.is_running:
                node.wait_until_ready()
        self.start()

    def clear(self) -> None:
        """Delete the queues and policies that earlier tests left: an unsynchronised mirror stops a rolling restart, and
        messages that stay make nodes write more than what a test looks at."""
        node = self.nodes[0]
        for operator in (False, True):
            for policy in node.control("list_policies", vhost="/", operator=operator):
                node.control("clear_policy", vhost="/", name=policy["name"], operator=operator)
        until(self._has_no_queues, "the queues of earlier tests are deleted")

    def _has_no_queues(self) -> bool:
        node = self.nodes[0]
        for (name,) in node.control("list_queues", vhost="/", columns=["name"], **ALL_QUEUES)["rows"]:
            try:
                node.control("delete_queue", vhost="/", name=name, if_empty=False, if_unused=False)
            except Refused:  # Its master is just changing.
                return False
        return True

    def begin_anew(self) -> None:
        for node in self.nodes:
            node.kill()
            shutil.rmtree(node.data, ignore_errors=True)
        self.start()

    def disconnect(self) -> None:
        """Closes the connections of a test."""
        for node in self.nodes:
            node.disconnect()

    def end(self) -> None:
        for node in self.nodes:
            node.end()

    def leader(self) -> Member:
        """Waits for a Raft leader that another running node agrees on, and returns it."""
        found: list[Member] = []

        def is_agreed() -> bool:
            running = [node for node in self.nodes if node.is_running and not node.frozen]
            names = {node.status()["leader"] for node in running}
            found[:] = [node for node in running if {node.name} == names]
            return bool(found)

        until(is_agreed, "a leader")
        return found[0]

    def others(self, *but: Member) -> list[Member]:
        return [node for node in self.nodes if node not in but]


StartCluster = Callable[..., Cluster]


def refusal(action: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[int, str]:
    """Returns the code and text with which the server closed the channel."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        action(*arguments, **options)
    return caught.value.reply_code, caught.value.reply_text
