"""Runs attacks against a node of their own, and says what must hold after each of them."""

from __future__ import annotations

import base64
import http.client
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tests.support.servers import ROOT, Server, read_line
from tests.system.attacks.attacks import ATTACKS, Target

WAIT_S_MAX: Final = 0.5  # Of the node's processor time.
LOG_BYTES_MAX: Final = 2 << 20  # For each attack.
MEMORY_BYTES_MAX: Final = 300 << 20  # The same, of all.
CONFIG: Final = """
management.tcp.port = 0
management.tcp.ip = 127.0.0.1
stomp.listeners.tcp.1 = 127.0.0.1:0
prometheus.tcp.port = 0
prometheus.tcp.ip = 127.0.0.1
"""
USERS: Final = {"good": "management", "user": "", "manager": "management", "maker": "policymaker"}


class Stage:
    """A node that is attacked."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(folder, CONFIG)

    def __enter__(self) -> Stage:
        self.server.start()
        for name, tags in USERS.items():
            self._put(f"/api/users/{name}", {"password": name, "tags": tags})
            self._put(f"/api/permissions/%2F/{name}", dict.fromkeys(("configure", "write", "read"), ".*"))
        self._put("/api/queues/%2F/user", {"durable": True})
        self.memory_bytes = self.server.resident_bytes()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.end()

    def _put(self, path: str, body: dict[str, Any]) -> None:
        status, _ = self._ask(self.server.management_port, "PUT", path, json.dumps(body).encode())
        assert status in (201, 204), (path, status)

    def _ask(self, port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        login = "Basic " + base64.b64encode(b"guest:guest").decode()
        connection.request(method, path, body, {"authorization": login, "content-type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def busiest_s(self) -> float:
        """The longest turn of the node's event loop so far, in processor time."""
        status, text = self._ask(self.server.prometheus_port, "GET", "/metrics")
        assert status == 200
        name = "rabbitmq_event_loop_busiest_turn_seconds "
        return next(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))

    def attack(self, name: str, times: int) -> dict[str, float]:
        """What the well-behaved client had to wait, and more. Raises AssertionError."""
        server = self.server
        logged = len(server.log())
        target = Target(server.port, server.management_port, server.stomp_port)
        ports = map(str, (server.pid, server.port, server.management_port))
        bystander = subprocess.Popen(
            [sys.executable, "-m", "tests.system.attacks.bystander", *ports],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert read_line(bystander, 120).startswith("ready")
            ATTACKS[name](target, times)
            told, _ = bystander.communicate("", timeout=120)
        finally:
            bystander.kill()
            bystander.communicate()
        found: dict[str, float] = json.loads(told.splitlines()[-1])
        log = server.log()[logged:]
        found |= {"turn": self.busiest_s(), "log": len(log), "memory": server.resident_bytes() - self.memory_bytes}
        for wait in ("publish", "get", "ask", "turn"):
            assert found[wait] < WAIT_S_MAX, (name, found)
        assert found["log"] < LOG_BYTES_MAX, (name, found)
        assert found["memory"] < MEMORY_BYTES_MAX, (name, found)
        assert "Traceback" not in log, log[-4000:]
        assert "\x1b" not in log and all(f"<0.{server.pid}.0>" in line for line in log.splitlines())
        return found
