"""stomp.py as tests use it: what it is sent comes as a queue of events."""

from __future__ import annotations

import queue
from typing import Any

import stomp
from stomp.utils import Frame

from tests.support.servers import PATIENCE_S

KINDS = {"1.0": stomp.Connection10, "1.1": stomp.Connection11, "1.2": stomp.Connection12}


class StompPy(stomp.ConnectionListener):  # type: ignore[misc]
    """One connected client."""

    def __init__(self, port: int, version: str = "1.2", heartbeats: tuple[int, int] = (0, 0), **options: Any) -> None:
        more = {} if version == "1.0" else {"heartbeats": heartbeats, "vhost": "/"}
        self.client = KINDS[version]([("127.0.0.1", port)], reconnect_attempts_max=1, **more)
        self.messages: queue.Queue[Frame] = queue.Queue()
        self.receipts: queue.Queue[str] = queue.Queue()
        self.events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.client.set_listener("", self)
        self.client.connect("guest", "guest", wait=True, **options)

    def on_message(self, frame: Frame) -> None:
        self.messages.put(frame)

    def on_receipt(self, frame: Frame) -> None:
        self.receipts.put(frame.headers["receipt-id"])

    def on_error(self, frame: Frame) -> None:
        self.events.put(("error", frame))

    def on_disconnected(self) -> None:
        self.events.put(("disconnected", None))

    def message(self) -> Frame:
        return self.messages.get(timeout=PATIENCE_S)

    def receipt(self) -> str:
        return self.receipts.get(timeout=PATIENCE_S)

    def event(self) -> tuple[str, Any]:
        return self.events.get(timeout=PATIENCE_S)

    def end(self) -> None:
        if self.client.is_connected():
            self.client.disconnect()
