"""A broker in this process whose HTTP API is asked, and whose samples are taken when a test says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import leveret.testing
from tests.system.management.recorder import ask

CONFIG = "management_port = 0\nprometheus.tcp.port = 0\nprometheus.tcp.ip = 127.0.0.1"
AHEAD = 1_000_000  # Intervals that no clock comes to while a test runs, so that only the test takes samples.


class Watched:
    """A broker, and what is needed to look at it."""

    def __init__(self, broker: leveret.testing.Broker) -> None:
        self.broker = broker
        self.tick = 0

    def get(self, path: str, user: str = "guest:guest") -> Any:
        status, _, body = ask(self.broker.ports["management"], path, user)
        assert status == 200, (status, body)
        return json.loads(body)

    def status(self, path: str, user: str = "guest:guest") -> tuple[int, Any]:
        status, _, body = ask(self.broker.ports["management"], path, user)
        return status, json.loads(body) if body else None

    def raw(self, path: str) -> tuple[int, bytes]:
        status, _, body = ask(self.broker.ports["management"], path)
        return status, body

    def metrics(self, path: str = "/metrics") -> str:
        status, headers, body = ask(self.broker.ports["prometheus"], path)
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4")
        return body.decode()

    def inside(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """Run this in the broker's loop, with its node."""
        host: Any = self.broker._running()
        return asyncio.run_coroutine_threadsafe(work(host._server.node), host._loop).result(60)

    def sample(self) -> None:
        """The next interval is over."""

        async def take(node: Any) -> None:
            self.tick = (self.tick or node.samples.tick + AHEAD) + 1
            await node.samples.take(self.tick)

        self.inside(take)
