"""Nodes in networks of their own, between which links can be cut for real: Linux' network namespaces.

    host ─┬─ bridge ─┬─ veth ─ n1 (10.x.y.1)
  clients ┘          ├─ veth ─ n2 (10.x.y.2)
  (10.x.y.254)       └─ veth ─ n3 (10.x.y.3)

What a node sends to another is cut by telling its namespace a hardware address for the other that nobody has: packets
leave, and arrive nowhere. That is what a network does that parts: no error, no closed connection, silence. It works for
each direction by itself and for each pair, and needs no firewall. Clients, at the host's end of the bridge, reach all
nodes all the time, on either side of a partition.

Making namespaces needs the right to (root, or CAP_NET_ADMIN and CAP_SYS_ADMIN) and the program `ip`. Where they are
missing, `why_not` says so, and tests that need them are skipped with that reason. What can be shown on loopback
addresses, where a node is cut off by freezing all others, is in `tests/system/clusters/test_partitions.py`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.members import Cluster, Member

NOBODY = "02:00:00:00:00:ff"
MOST = 16  # Networks of one process. Each has its own names, since the kernel removes those of the last one later.
_COUNT = itertools.count()
AMQP, CLUSTER = 5672, 25672  # Each node has its own address, so all have the same ports.


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@cache
def why_not() -> str | None:
    """Returns why there can be no namespaces here, or None."""
    if shutil.which("ip") is None:
        return "the program `ip` (package iproute2) is missing"
    name = f"leveret-try-{os.getpid()}"
    try:
        ip("netns", "add", name)
        try:
            ip("link", "add", f"lvt{os.getpid() % 100_000}", "type", "veth", "peer", "name", "eth0", "netns", name)
        finally:
            ip("netns", "del", name)
    except OSError as error:
        return f"no right to make network namespaces: {error}"
    return None


class Network:
    """Namespaces, numbered from 1, each of which reaches all others until links are cut."""

    def __init__(self, size: int) -> None:
        own = (os.getpid() * MOST + next(_COUNT)) % 50_000
        self.size = size
        self.bridge = f"lvb{own}"
        self.subnet = f"10.{200 + own // 250 % 50}.{own % 250}"
        self.cuts: set[tuple[int, int]] = set()
        self._made: list[tuple[str, ...]] = []  # How to remove what was made.
        try:
            self._make("link", "add", self.bridge, "type", "bridge", undo=("link", "del", self.bridge))
            ip("addr", "add", f"{self.subnet}.254/24", "dev", self.bridge)
            ip("link", "set", self.bridge, "up")
            for number in range(1, size + 1):
                self._add(number)
        except OSError:
            self.close()
            raise

    def _make(self, *words: str, undo: tuple[str, ...]) -> None:
        ip(*words)
        self._made.append(undo)

    def _add(self, number: int) -> None:
        space, outside = self.namespace(number), f"{self.bridge}n{number}"
        self._make("netns", "add", space, undo=("netns", "del", space))
        ip("link", "add", outside, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", outside, "master", self.bridge, "up")
        ip("-n", space, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")
        ip("-n", space, "link", "set", "lo", "up")

    def namespace(self, number: int) -> str:
        return f"{self.bridge}-{number}"

    def address(self, number: int) -> str:
        return f"{self.subnet}.{number}"

    # -- Cutting -------------------------------------------------------------------------------------------------

    def cut_one_way(self, source: int, target: int) -> None:
        """From now on nothing that `source` sends reaches `target`."""
        ip(
            "-n", self.namespace(source), "neigh", "replace", self.address(target), "lladdr", NOBODY,
            "dev", "eth0", "nud", "permanent",
        )  # fmt: skip
        self.cuts.add((source, target))

    def cut(self, one: int, other: int) -> None:
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def part(self, side: Iterable[int]) -> None:
        """Cuts all links between these nodes and the others."""
        side = set(side)
        for one in side:
            for other in set(range(1, self.size + 1)) - side:
                self.cut(one, other)

    def heal(self) -> None:
        while self.cuts:
            source, target = self.cuts.pop()
            ip("-n", self.namespace(source), "neigh", "del", self.address(target), "dev", "eth0")

    def close(self) -> None:
        """Removes the namespaces. Nodes must have ended before."""
        failures = []
        while self._made:
            try:
                ip(*self._made.pop())
            except OSError as error:
                failures.append(error)
        if failures:
            raise ExceptionGroup("the network is not all gone", failures)

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *of: object) -> None:
        self.close()


class Islander(Member):
    """A node in a namespace."""

    def __init__(self, network: Network, number: int, folder: Path, config: str) -> None:
        name = f"n{number}@{network.address(number)}"
        super().__init__(folder, name, f"loopback_users = none\n{config}")
        self.number = number
        self.host = network.address(number)
        self.launcher = ("ip", "netns", "exec", network.namespace(number))
        self.port, self.cluster_port = AMQP, CLUSTER
        self.founder = network.address(1)

    def spawn(self, port: int = 0) -> Any:
        self.environment["LEVERET_HOST"] = self.host
        if self.number > 1:
            self.environment["LEVERET_JOIN"] = f"{self.founder}:{CLUSTER}"
        return super().spawn(port)


class Archipelago(Cluster):
    """A cluster whose nodes are in namespaces."""

    def __init__(self, network: Network, folder: Path, config: str = "") -> None:
        super().__init__(folder, config, size=0)
        self.network = network
        numbers = range(1, network.size + 1)
        self.nodes.extend(Islander(network, number, folder / f"n{number}", config) for number in numbers)
