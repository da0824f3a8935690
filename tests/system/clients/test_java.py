"""The server as Java's client sees it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.servers import Server

SOURCE = Path(__file__).parent / "java" / "Session.java"
JARS = Path("/usr/share/java")
NEEDED = ("amqp-client.jar", "slf4j-api.jar")
JAVAC = shutil.which("javac")

pytestmark = pytest.mark.skipif(
    JAVAC is None or not all((JARS / name).is_file() for name in NEEDED),
    reason="no Java client here (Debian: librabbitmq-client-java libslf4j-java, and a JDK)",
)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """How the program is started."""
    assert JAVAC is not None
    folder = tmp_path_factory.mktemp("java")
    jars = ":".join(str(JARS / name) for name in NEEDED)
    subprocess.run([JAVAC, "-cp", jars, "-d", str(folder), str(SOURCE)], check=True, timeout=300)
    return ["java", "-cp", f"{folder}:{jars}", "Session"]


@pytest.mark.parametrize("case", ["closing", "deleting", "declaring"])
def test_java(broker: Server, session: list[str], case: str) -> None:
    run = subprocess.run([*session, str(broker.port), case], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
