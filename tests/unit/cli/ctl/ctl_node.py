"""leveretctl against a node that is played: the whole way but the socket. Fixtures for `test_ctl*`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from leveret.cli.ctl.base import session
from leveret.cli.ctl.main import main
from leveret.links import link
from leveret.node.sockets.peer_socket import CallFailed
from leveret.node.system import local_registry
from leveret.node.system.local_registry import Entry
from tests.support.control_world import FakeServer, cluster


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Ctl = Callable[..., Ended]


class Wire:
    """In place of `wire.call`: what was asked, and an error to be raised instead of an answer."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.asked: list[dict[str, Any]] = []
        self.failures: list[CallFailed] = []  # One for each call, until there is none left.
        self.cookies: list[bytes] = []
        self.addresses: list[tuple[str, int]] = []

    async def call(
        self,
        address: tuple[str, int],
        kind: int,
        payload: bytes,
        timeout_s: float,
        me: link.Identity,
        cookie: bytes,
        tls: object = None,
    ) -> bytes:
        self.asked.append(json.loads(payload))
        self.cookies.append(cookie)
        self.addresses.append(address)
        if self.failures:
            failure = self.failures.pop(0)
            if failure.reason == "closed":  # After the question was understood.
                await self.server.control.answer(payload)
            raise failure
        return await self.server.control.answer(payload)


@pytest.fixture
def server() -> FakeServer:
    return cluster("one@host")[0]


@pytest.fixture
def wire(server: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Wire:
    """A node that leveretctl finds by itself."""
    wire = Wire(server)
    monkeypatch.setattr(session, "call", wire.call)
    cookie = tmp_path / "cookie"
    cookie.write_text("the secret\n")
    cookie.chmod(0o600)
    local_registry.announce(Entry("one@host", os.getpid(), "127.0.0.1", 25672, str(tmp_path)))
    return wire


@pytest.fixture
def ctl(wire: Wire, capsys: pytest.CaptureFixture[str]) -> Ctl:
    def run(*arguments: str) -> Ended:
        code = main(arguments)
        return Ended(code, *capsys.readouterr())

    return run
