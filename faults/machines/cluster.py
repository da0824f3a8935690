"""A cluster of one of the two brokers, with its network and its disks."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from benchmarks.ruler.rabbitmq_programs import server_program
from faults.machines.helper import Helper
from faults.machines.leveret_node import LeveretNode
from faults.machines.node import Node, NodeError, until
from faults.machines.rabbitmq_node import FAKETIME, RabbitmqNode

TICK_S = 4
SYNC_MS = 4  # As a good disk takes; with syncs that take no time hardly anything is ever unsynced.
WHOLE_S = 90.0
SYNC_S = 90.0
LEVERET_CONFIG = f"net_ticktime = {TICK_S}\nsegment_bytes = 1MiB\nmemory_monitor_interval = 500ms"
RABBITMQ_CONFIG = "cluster_partition_handling = pause_minority\nqueue_master_locator = client-local"
_COUNT = itertools.count()


@cache
def why_not(broker: str = "leveret", disks: bool = False, clocks: bool = False) -> str | None:
    """Returns why a cluster cannot run here, or None."""
    if broker == "rabbitmq" and server_program() is None:
        return "RabbitMQ is not installed (apt-get install rabbitmq-server)"
    if not Path("/dev/net/tun").exists() or shutil.which("ip") is None:
        return "/dev/net/tun or the program `ip` (package iproute2) is missing"
    if disks and not Path("/dev/fuse").exists():
        return "/dev/fuse is missing"
    if clocks and broker == "rabbitmq" and not FAKETIME.exists():
        return "libfaketime is missing (apt-get install faketime)"
    name = f"lvtry-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no right to make network namespaces: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


class Cluster:
    """Some nodes. The first `size` ones start together; others of the network may join later."""

    def __init__(
        self, folder: Path, broker: str = "leveret", size: int = 3, disks: bool = False, clocks: bool = False,
        config: str = "", spare: int = 0, plugins: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.folder, self.broker, self.size, self.plugins = folder, broker, size, plugins
        own = (os.getpid() * 8 + next(_COUNT)) % 25_000
        self.subnet = f"10.{100 + own // 250}.{own % 250}"
        self._open = ExitStack()
        self.switch = Helper("faults.machines.switch", f"lvf{own}", self.subnet, str(size + spare))
        self._open.callback(self.switch.close)
        self.nodes: list[Node] = []
        self.spares: list[Node] = []
        try:
            for number in range(1, size + spare + 1):
                node = self._make(number, f"lvf{own}-{number}", config)
                node.has_false_clock = clocks
                (self.nodes if number <= size else self.spares).append(node)
                self._open.callback(node.close)
                if disks:
                    node.data.mkdir(exist_ok=True)
                    node.disk = Helper("faults.machines.forgetful", str(node.data))
                    node.disk("slow", ms=SYNC_MS)
        except BaseException:
            self.close()
            raise

    def _make(self, number: int, space: str, config: str) -> Node:
        host, folder = f"{self.subnet}.{number}", self.folder / f"n{number}"
        founder = f"{self.subnet}.1"
        if self.broker == "rabbitmq":
            return RabbitmqNode(number, host, space, folder, founder, RABBITMQ_CONFIG, self.plugins)
        return LeveretNode(number, host, space, folder, founder, f"{LEVERET_CONFIG}\n{config}")

    def close(self) -> None:
        self._open.close()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *of: object) -> None:
        self.close()

    # -- Life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts all nodes that are not running, and waits until the cluster is whole."""
        begun = [node for node in self.nodes if not node.is_running]
        for node in begun:
            node.kill()
            node.spawn()
            if self.broker == "rabbitmq" and not (node.folder / "joined").exists():
                node.await_ready()  # The others ask it to let them join.
                (node.folder / "joined").touch()
        for node in begun:
            node.await_ready()
        self.await_whole()
        for node in begun:
            if node.disk is not None:
                node.disk("sync")  # What was written when a node was set up has long been on its disk.

    def await_whole(self, seconds: float = WHOLE_S) -> None:
        for node in self.nodes:
            until(lambda node=node: node.sees(len(self.nodes)), f"{node.name} sees all nodes", seconds)  # type: ignore[misc]

    def mend(self) -> list[Node]:
        """Ends all faults that a case may have left. Returns nodes that had to be restarted: a node of RabbitMQ that
        did not notice that it was cut off goes on apart from the others, until somebody restarts it."""
        self.heal()
        for node in self.nodes:
            if node.is_frozen:
                node.thaw()
            if node.disk is not None:
                node.disk("mend")
                node.disk("go on")
            if node.has_false_clock:
                node.set_clock(0)
        for node in [node for node in self.nodes if node.process is not None and not node.is_running]:
            node.kill()
        try:
            self.start()
        except NodeError:
            apart = self._apart()
            if not apart:
                raise
            for node in apart:
                node.stop()
            self.start()
            return apart
        return []

    def _apart(self) -> list[Node]:
        """Returns the nodes of RabbitMQ that run and do not see the same nodes as the largest part of them."""
        seen = {node: node.running() for node in self.nodes if isinstance(node, RabbitmqNode)}
        largest = max(seen.values(), key=len, default=frozenset())
        return [node for node, names in seen.items() if names != largest]

    # -- Network -------------------------------------------------------------------------------------------------

    def cut(self, sources: Iterable[Node], targets: Iterable[Node]) -> None:
        """From now on nothing that the first ones send reaches the others."""
        self.switch("cut", **_ends(sources, targets))

    def part(self, side: Iterable[Node]) -> None:
        """Cuts all links between these nodes and the others. Clients reach both sides."""
        one = list(side)
        other = [node for node in self.nodes if node not in one]
        self.cut(one, other)
        self.cut(other, one)

    def degrade(self, nodes: Iterable[Node], **how: float) -> None:
        """Makes all links between these nodes lose and delay packets: see `switch`."""
        some = list(nodes)
        self.switch("set", **_ends(some, some), **how)

    def heal(self) -> None:
        self.switch("heal")

    # -- Queues --------------------------------------------------------------------------------------------------

    def asked(self) -> Node:
        """Returns a node that can be asked."""
        for node in self.nodes:
            if node.is_running and not node.is_frozen and node.is_ready():
                return node
        raise NodeError("no node answers")

    def mirror(self, prefix: str, **more: object) -> None:
        """Has all nodes keep copies of queues whose names begin so."""
        self.set_policy(prefix, {"ha-mode": "all", "ha-sync-mode": "automatic", **more})

    def set_policy(self, prefix: str, definition: dict[str, object], apply_to: str = "queues") -> None:
        """Sets a policy for all whose names begin so."""
        self.asked().set_policy(prefix, definition, apply_to)

    def set_parameter(self, component: str, name: str, value: dict[str, object]) -> None:
        self.asked().set_parameter(component, name, value)

    def copies(self) -> dict[str, tuple[str, frozenset[str], frozenset[str]]]:
        return self.asked().copies()

    def master_of(self, queue: str) -> Node:
        """Raises NodeError if no node leads the queue just now."""
        name = self.copies().get(queue, ("", frozenset(), frozenset()))[0]
        found = [node for node in self.nodes if node.name == name]
        if not found:
            raise NodeError(f"{queue} has no master")
        return found[0]

    def await_in_sync(self, queues: Iterable[str], seconds: float = SYNC_S) -> None:
        """Waits until each node has a copy in sync of each of these queues."""
        wanted = list(queues)

        def are_in_sync() -> bool:
            copies = self.copies()
            return all(len(copies.get(queue, ("", (), ()))[2]) >= len(self.nodes) - 1 for queue in wanted)

        until(are_in_sync, f"{len(wanted)} queues are in sync everywhere", seconds)


def _ends(sources: Iterable[Node], targets: Iterable[Node]) -> dict[str, list[int]]:
    return {"from": [node.number for node in sources], "to": [node.number for node in targets]}
