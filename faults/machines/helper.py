"""Programs beside the nodes that make faults (the switch, the disks): each obeys commands in lines of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class HelperError(RuntimeError):
    """A helper did not do what it was told."""


class Helper:
    """A program that runs beside the nodes. It ends when it is closed, or with this process."""

    def __init__(self, module: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl+C is meant for the runner, which ends the nodes first.
        )
        self._answer()

    def __call__(self, action: str, **more: Any) -> dict[str, Any]:
        """Has it do something; returns what it answers."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": action, **more}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        if not line:
            raise HelperError(self.process.stderr.read()[-2_000:])
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
