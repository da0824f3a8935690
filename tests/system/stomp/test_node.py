"""The server as Node's clients of STOMP see it: stompjs over WebSocket, stompit over TCP."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.servers import PATIENCE_S, ROOT, Server

SCRIPT = Path(__file__).parent / "node" / "session.js"
NODE = shutil.which("node")
HAS_CLIENTS = all((ROOT / "node_modules" / name).is_dir() for name in ("stompit", "ws", "@stomp/stompjs"))


@pytest.mark.skipif(NODE is None, reason="no node on this machine")
@pytest.mark.skipif(not HAS_CLIENTS, reason="no stompit, stompjs or ws: `make node-clients` installs them")
@pytest.mark.parametrize("ws_frame", ["text", "binary"])
def test_node(tmp_path: Path, ws_frame: str) -> None:
    assert NODE is not None
    listeners = "stomp.listeners.tcp.1 = 127.0.0.1:0\nweb_stomp.tcp.listener = 127.0.0.1:0\n"
    server = Server(tmp_path, f"{listeners}web_stomp.ws_frame = {ws_frame}\n").start()
    command = [NODE, str(SCRIPT), str(server.stomp_port), str(server.web_stomp_port)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert run.returncode == 0, run.stderr
    server.end()
