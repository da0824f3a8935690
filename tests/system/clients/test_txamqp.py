"""The server as txAMQP, for Twisted, sees it. Whatever it is told to speak, it announces AMQP 0-9."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import Server

SPECIFICATION = Path("/usr/share/amqp/specs/0-9-1/amqp0-9-1.stripped.xml")
SESSION = Path(__file__).parent / "twisted_session.py"

pytestmark = pytest.mark.skipif(not SPECIFICATION.is_file(), reason="no AMQP specification (Debian: amqp-specs)")


def test_a_session(broker: Server, name: str) -> None:
    """In a process of its own, for Twisted's reactor runs only once."""
    command = [sys.executable, str(SESSION), str(SPECIFICATION), str(broker.port), name]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, "got 'hello'\n"), run.stderr
