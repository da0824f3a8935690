"""A node of RabbitMQ, where it is installed."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ruler.rabbitmq_programs import ControlError, control, plain_environment, server_program
from faults.machines.node import Node, NodeError

DIST_PORT = 25672
CONTROL_S = 60.0
RABBITMQ_START_S = 300.0  # Its virtual machine takes minutes on a machine that is busy with other things.
COOKIE = "FAULTS"
GREETING_S = 3.0
RESERVED = 100  # Descriptors that it leaves for other things than files and clients.
USUAL_SHARE = "0.4"  # Of memory.
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")  # For programs with threads.
LINK_STATES = (
    "[proplists:get_value(status, Link) || Node <- [node() | nodes()],"
    " Link <- rpc:call(Node, rabbit_federation_status, status, [])]."
)
_RUNNING = re.compile(r"'([^']+@[^']+)'")
_NODE = re.compile(r"<'?([^<>']+?)'?\.\d+\.\d+\.\d+>")


class RabbitmqNode(Node):
    """A node, by default without plugins. Each namespace has an epmd of its own."""

    spare_descriptors = RESERVED + Node.spare_descriptors

    def __init__(
        self, number: int, host: str, space: str, folder: Path, founder: str, config: str,
        plugins: Sequence[str] = (),
    ) -> None:  # fmt: skip
        super().__init__(number, host, space, folder)
        self.founder = founder
        self.epmd: subprocess.Popen[bytes] | None = None
        self.config = config
        advanced = f'[{{kernel, [{{net_ticktime, 4}}]}}, {{mnesia, [{{core_dir, "{folder}"}}]}}].\n'
        (folder / "advanced.config").write_text(advanced)
        (folder / "enabled_plugins").write_text(f"[{','.join(plugins)}].\n")
        cookie = folder / ".erlang.cookie"
        cookie.write_text(COOKIE)
        cookie.chmod(0o400)

    @property
    def name(self) -> str:
        return f"rabbit@{self.host}"

    def command(self) -> list[str]:
        lines = ["loopback_users = none", self.config]
        if self.host != self.founder:
            lines += [
                "cluster_formation.peer_discovery_backend = classic_config",
                f"cluster_formation.classic_config.nodes.1 = rabbit@{self.founder}",
                f"cluster_formation.classic_config.nodes.2 = {self.name}",
            ]
        (self.folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        found = server_program()
        assert found is not None
        return [found]

    def environment(self) -> dict[str, str]:
        false_clock = {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(self.clock_file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        return self._settings() | (false_clock if self.has_false_clock else {})

    def _settings(self) -> dict[str, str]:
        """Returns what rabbitmqctl needs as well, whose clock is right."""
        folder = self.folder
        return {
            "HOME": str(folder),
            "RUNNING_UNDER_SYSTEMD": "true",  # So that the process is the virtual machine, and no shell before it.
            "RABBITMQ_USE_LONGNAME": "true",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_NODE_IP_ADDRESS": self.host,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(DIST_PORT),
            "RABBITMQ_MNESIA_BASE": str(self.data),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),  # Without its ending it is not read.
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }

    def spawn(self) -> None:
        if self.epmd is None:
            command = ["ip", "netns", "exec", self.space, "epmd"]
            self.epmd = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        super().spawn()

    def await_ready(self, seconds: float = RABBITMQ_START_S) -> None:
        super().await_ready(seconds)

    def control(self, *words: str) -> str:
        """Raises NodeError."""
        environment, options = plain_environment() | self._settings(), ("--longnames", "--node", self.name)
        try:
            return control(words, environment, CONTROL_S, options, launcher=("ip", "netns", "exec", self.space))
        except ControlError as error:
            raise NodeError(str(error)) from None

    def is_ready(self) -> bool:
        """Returns whether it greets clients: rabbitmqctl would take seconds to ask. A paused node does not listen."""
        try:
            with socket.create_connection((self.host, self.port), GREETING_S) as client:
                client.sendall(b"AMQP\x00\x00\x09\x01")
                return bool(client.recv(1))
        except OSError:
            return False

    def sees(self, count: int) -> bool:
        try:
            return len(self.running()) == count
        except NodeError:
            return False

    def running(self) -> frozenset[str]:
        """Returns the names of the nodes that it takes for running members."""
        return frozenset(_RUNNING.findall(self.control("eval", "rabbit_nodes:all_running().")))

    def set_policy(self, prefix: str, definition: dict[str, object], apply_to: str) -> None:
        words = ("set_policy", prefix, f"^{prefix}", json.dumps(definition), "--apply-to", apply_to)
        self.control(*words, "--priority", str(len(prefix)))

    def set_parameter(self, component: str, name: str, value: dict[str, object]) -> None:
        self.control("set_parameter", component, name, json.dumps(value))

    def set_memory_limit(self, size: int | None) -> None:
        self.control("set_vm_memory_high_watermark", *((USUAL_SHARE,) if size is None else ("absolute", str(size))))

    def limit_descriptors(self, count: int) -> int:
        """Tells it of the limit too, which it learns only when it starts."""
        self.control("eval", f"file_handle_cache:set_limit({max(2, count - RESERVED)}).")
        return super().limit_descriptors(count)

    def forget(self, name: str) -> None:
        self.control("forget_cluster_node", name)

    def links_run(self) -> bool:
        said = self.control("eval", LINK_STATES)
        return {state.strip() for state in said.strip().strip("[]").split(",")} == {"running"}

    def copies(self) -> dict[str, tuple[str, frozenset[str], frozenset[str]]]:
        """Returns the master, the mirrors and the mirrors in sync of all queues."""
        said = self.control("list_queues", "--quiet", "--no-table-headers", *_COLUMNS)
        found = {}
        for line in said.splitlines():
            name, pid, mirrors, synchronised = (line.split("\t") + [""] * 4)[:4]
            if pid:
                found[name] = (next(iter(_names(pid)), ""), _names(mirrors), _names(synchronised))
        return found

    def close(self) -> None:
        super().close()
        if self.epmd is not None:
            self.epmd.kill()
            self.epmd.wait()
            self.epmd = None


_COLUMNS = ("name", "pid", "slave_pids", "synchronised_slave_pids")


def _names(pids: str) -> frozenset[str]:
    return frozenset(_NODE.findall(pids))
