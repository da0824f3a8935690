"""The server as Go's client sees it, which reports a socket that is closed before it has read the answer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.servers import Server

SOURCE = Path(__file__).parent / "go" / "closing.go"
# Where Debian keeps Go's packages; they are found without modules, which would have to be fetched.
PACKAGES = Path("/usr/share/gocode")
GO = shutil.which("go")
CONNECTIONS = 50

pytestmark = pytest.mark.skipif(
    GO is None or not (PACKAGES / "src/github.com/rabbitmq/amqp091-go").is_dir(),
    reason="no Go client here (Debian: golang-go golang-github-rabbitmq-amqp091-go-dev)",
)


@pytest.fixture(scope="module")
def closing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert GO is not None
    folder = tmp_path_factory.mktemp("go")
    environment = os.environ | {"GO111MODULE": "off", "GOPATH": str(PACKAGES), "GOCACHE": str(folder / "cache")}
    program = folder / "closing"
    subprocess.run([GO, "build", "-o", str(program), str(SOURCE)], env=environment, check=True, timeout=300)
    return program


def test_connections_that_are_closed_while_they_publish(broker: Server, closing: Path) -> None:
    run = subprocess.run(
        [str(closing), str(broker.port), str(CONNECTIONS)], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.stdout == f"0 of {CONNECTIONS} failed\n"
