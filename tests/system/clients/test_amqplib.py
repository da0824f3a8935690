"""The server as Node's amqplib sees it, which has an encoder and a decoder of its own making."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.servers import ROOT, Server

SCRIPT = Path(__file__).parent / "node" / "session.js"
NODE = shutil.which("node")

pytestmark = [
    pytest.mark.skipif(NODE is None, reason="no node on this machine"),
    pytest.mark.skipif(
        not (ROOT / "node_modules" / "amqplib").is_dir(), reason="no amqplib: `make node-clients` installs it"
    ),
]


CASES = [
    "roundtrip",
    "confirms",
    "exchanges",
    "headers",
    "alternate",
    "letters",
    "refused",
    "prefetch",
    "replies",
    "cancelled",
    "closing",
    "errors",
    "heartbeat",
]


@pytest.mark.parametrize("case", CASES)
def test_amqplib(broker: Server, case: str) -> None:
    assert NODE is not None
    run = subprocess.run(
        [NODE, str(SCRIPT), str(broker.port), case], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
