"""Brokers that listen for STOMP: each has a `stomp_port`, besides what `ruler.brokers` says."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from benchmarks.ruler.brokers import Leveret, RabbitMQ, free_ports
from benchmarks.ruler.calls import HOST
from benchmarks.stomp.load import Client


class StompLeveret(Leveret):
    """A node of Leveret with a listener for STOMP."""

    def __init__(self, folder: Path, beside: Self | None = None) -> None:
        super().__init__(folder, beside)
        (self.stomp_port,) = free_ports(1)
        (folder / "leveret.conf").write_text(f"stomp.listeners.tcp.1 = {HOST}:{self.stomp_port}\n")

    def command(self) -> list[str]:
        return [*super().command(), "--config", str(self.folder / "leveret.conf")]

    def ask_version(self, timeout_s: float) -> str:
        version = super().ask_version(timeout_s)
        Client(self.stomp_port, timeout_s).close()  # It listens for AMQP first.
        return version


class StompRabbitMQ(RabbitMQ):
    """A node of RabbitMQ with its STOMP plugin."""

    def __init__(self, folder: Path, beside: Self | None = None) -> None:
        super().__init__(folder, beside)
        (self.stomp_port,) = free_ports(1)
        (folder / "enabled_plugins").write_text("[rabbitmq_stomp].\n")
        listener = f"stomp.listeners.tcp.1 = {HOST}:{self.stomp_port}\n"
        (folder / "rabbitmq.conf").write_text(f"loopback_users.guest = true\n{listener}")

    def ask_version(self, timeout_s: float) -> str:
        version = super().ask_version(timeout_s)
        Client(self.stomp_port, timeout_s).close()
        return version


StompBroker = StompLeveret | StompRabbitMQ


def installed() -> list[type[StompBroker]]:
    """Returns Leveret, and RabbitMQ if it is installed."""
    return [StompLeveret, StompRabbitMQ] if StompRabbitMQ.program() else [StompLeveret]
