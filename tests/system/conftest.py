"""Fixtures with a running server. Tests that change nothing but their own queues share one; others start their own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import Server

Start = Callable[..., Server]
LOG_CHARACTERS_SHOWN = 8_000


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a server of one's own: `start()`, `start("heartbeat = 1", {"LEVERET_FSYNC": "never"})`."""
    servers: list[Server] = []

    def start_one(
        config: str = "", environment: Mapping[str, str] | None = None, folder: Path | None = None, begin: bool = True
    ) -> Server:
        server = Server(folder or tmp_path / f"server{len(servers) + 1}", config, environment)
        servers.append(server)
        return server.start() if begin else server

    start_one.servers = servers  # type: ignore[attr-defined]
    yield start_one
    for server in servers:
        server.end()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that tests share. They use names from `name`, and clean up nothing."""
    server = Server(tmp_path_factory.mktemp("broker")).start()
    yield server
    server.end()


@pytest.fixture
def connection(broker: Server) -> Iterator[Any]:
    connection = broker.connect()
    yield connection
    if connection.is_open:
        connection.close()
    broker.connections.remove(connection)


@pytest.fixture
def channel(connection: Any) -> Any:
    return connection.channel()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the servers of a failed test logged."""
    report = yield
    if report.failed:
        funcargs = getattr(item, "funcargs", {})
        servers = list(getattr(funcargs.get("start"), "servers", ()))
        servers += [funcargs["broker"]] if "broker" in funcargs else []
        for server in servers:
            report.sections.append((f"log of {server.folder}", server.log()[-LOG_CHARACTERS_SHOWN:]))
    return report
