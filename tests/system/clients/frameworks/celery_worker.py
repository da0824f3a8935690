"""`celery worker` as a process for tests, and tasks that run for as long as a test wants."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.servers import ROOT, read_line
from tests.system.clients.frameworks.celery_app import KIND, SECONDS, URL, make


class Worker:
    """`celery worker` in a process group of its own; `start` returns when it takes tasks."""

    def __init__(self, folder: Path, url: str, kind: str, *arguments: str) -> None:
        self.name = f"{kind}@tests"
        self.log = folder / f"{kind}.log"
        self.environment = {**os.environ, URL: url, KIND: kind}
        module = "tests.system.clients.frameworks.celery_app"
        self.command = [sys.executable, "-m", "celery", "-A", module, "worker", "-n", self.name, *arguments]
        self.process: subprocess.Popen[str] | None = None
        self.app = make(url, kind)
        self.control = self.app.control
        self.inspect = self.control.inspect([self.name], timeout=SECONDS)

    def start(self) -> Worker:
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                cwd=ROOT,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        while (line := read_line(self.process, SECONDS)) != "ready":
            assert line or self.process.poll() is None, self.log.read_text()
        return self

    def kill(self) -> None:
        """kill -9, with all its children."""
        process, self.process = self.process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def end(self) -> None:
        self.kill()
        self.app.close()

    def send(self, task: str, *arguments: Any, **options: Any) -> Any:
        return self.app.send_task(task, arguments, **options)

    def run(self, task: str, *arguments: Any, **options: Any) -> Any:
        return self.send(task, *arguments, **options).get(timeout=SECONDS)

    def told(self, command: str, **arguments: Any) -> str:
        """What the worker answers to a command: the text of its "ok"."""
        answers = self.control.broadcast(
            command, arguments=arguments, destination=[self.name], reply=True, timeout=SECONDS, limit=1
        )
        answer = answers[0][self.name]
        assert "ok" in answer, answer
        return str(answer["ok"])


class Held:
    """A task that runs until `release`."""

    def __init__(self, worker: Worker, name: str, **options: Any) -> None:
        self.worker = worker
        self.begun = f"{name}.begun"
        self.until = f"{name}.until"
        self.result = worker.send("hold", self.begun, self.until, **options)

    def wait(self) -> dict[str, Any]:
        """Until it has begun (again); what it says of itself."""
        with self.worker.app.connection_for_read() as connection, connection.SimpleQueue(self.begun) as queue:
            message = queue.get(timeout=SECONDS)
            message.ack()
            said: dict[str, Any] = message.payload
            return said

    def release(self) -> None:
        with self.worker.app.connection_for_write() as connection, connection.SimpleQueue(self.until) as queue:
            queue.put("go on")
