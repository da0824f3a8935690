"""A node of Leveret."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from faults.machines.helper import ROOT
from faults.machines.node import Node, NodeError
from leveret.links.frame_types import CONTROL
from leveret.links.link import Identity
from leveret.node.sockets.peer_socket import PeersOptions, call

COOKIE = "faults"
CLUSTER_PORT = 25672
CALL_S = 15.0
USUAL_BYTES = 4 << 30  # Of memory.
# Heartbeats as frequent as a node with a small net_ticktime needs them, with tolerance for a busy machine.
LIVELY = PeersOptions(silence_ms=400, connect_ms=15_000, greeting_ms=15_000)
_NODE = re.compile(r"<(.+?)\.\d+\.\d+\.\d+>")


class LeveretNode(Node):
    """A node of Leveret. The first one founds the cluster, the others join it."""

    def __init__(self, number: int, host: str, space: str, folder: Path, founder: str, config: str) -> None:
        super().__init__(number, host, space, folder)
        self.founder, self.config = founder, config
        self.base = f"n{number}"

    @property
    def name(self) -> str:
        return f"{self.base}@{self.host}"

    def command(self) -> list[str]:
        file = self.folder / "leveret.conf"
        file.write_text(f"loopback_users = none\n{self.config}\n")
        words = ["--data", str(self.data), "--name", self.name, "--port", str(self.port)]
        words += ["--cluster-port", str(CLUSTER_PORT), "--config", str(file)]
        if "management" not in self.config:
            words += ["--management-port", "none"]
        if self.has_false_clock:
            return [sys.executable, "-m", "faults.machines.false_clock", str(self.clock_file), "server", *words]
        return [sys.executable, "-m", "leveret", "server", *words]

    def environment(self) -> dict[str, str]:
        given = {"LEVERET_COOKIE": COOKIE, "LEVERET_HOST": self.host, "HOME": str(self.folder), "PYTHONPATH": str(ROOT)}
        if self.host != self.founder:
            given["LEVERET_JOIN"] = f"{self.founder}:{CLUSTER_PORT}"
        return given

    def control(self, command: str, /, **arguments: Any) -> Any:
        """Runs a command as leveretctl would. Raises NodeError."""
        asked = json.dumps({"command": command, "arguments": arguments}).encode()
        me = Identity("faults", os.urandom(16))
        where = (self.host, CLUSTER_PORT)
        try:
            raw = asyncio.run(call(where, CONTROL, asked, CALL_S, me, COOKIE.encode(), None, LIVELY))
        except Exception as error:
            raise NodeError(f"{self.name}, {command}: {error!r}") from None
        answer = json.loads(raw)
        if "error" in answer:
            raise NodeError(f"{self.name}, {command}: {answer['error']['text']}")
        return answer["ok"]

    def is_ready(self) -> bool:
        try:
            listeners = self.control("cluster_status")["listeners"].get(self.name, ())
        except NodeError:
            return False
        return any(one["protocol"].startswith("amqp") for one in listeners)

    def sees(self, count: int) -> bool:
        """Returns whether it has links to all nodes, all serve clients, and there is a leader."""
        try:
            status = self.control("cluster_status")
        except NodeError:
            return False
        voters = [one["name"] for one in status["members"] if one["voter"]]
        together = len(voters) == len(status["running_nodes"]) == count
        return status["leader"] is not None and together and not status["paused_nodes"]

    def set_policy(self, prefix: str, definition: dict[str, object], apply_to: str) -> None:
        self.control(
            "set_policy", vhost="/", name=prefix, pattern=f"^{prefix}", definition=definition,
            priority=len(prefix), apply_to=apply_to, operator=False,
        )  # fmt: skip

    def set_parameter(self, component: str, name: str, value: dict[str, object]) -> None:
        self.control("set_parameter", vhost="/", component=component, name=name, value=value)

    def set_memory_limit(self, size: int | None) -> None:
        self.control("set_memory_limit", limit={"bytes": USUAL_BYTES if size is None else size})

    def forget(self, name: str) -> None:
        self.control("forget_cluster_node", name=name)

    def links_run(self) -> bool:
        links = self.control("federation_status")
        return bool(links) and all(link["status"] == "running" for link in links)

    def copies(self) -> dict[str, tuple[str, frozenset[str], frozenset[str]]]:
        """Returns the master, the mirrors and the mirrors in sync of all queues."""
        columns = ["name", "pid", "slave_pids", "synchronised_slave_pids"]
        found = {}
        after = None
        while True:
            answer = self.control("list_queues", vhost="/", columns=columns, after=after)
            for name, pid, mirrors, synchronised in answer["rows"]:
                master = next(iter(_names(pid)), "")
                found[name] = (master, _names(mirrors), _names(synchronised))
            after = answer["next"]
            if after is None:
                return found


def _names(pids: Any) -> frozenset[str]:
    return frozenset(_NODE.findall(pids if isinstance(pids, str) else " ".join(pids or ())))
