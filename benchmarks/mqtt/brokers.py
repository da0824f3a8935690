"""Brokers that listen for MQTT: each has a `mqtt_port`, besides what `ruler.brokers` says.

Mosquitto and RabbitMQ are started by hand, with folders and ports of their own, so that those that the system may run
are left alone.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self

from benchmarks.mqtt.packets import Client
from benchmarks.ruler.brokers import (
    Leveret,
    RabbitMQ,
    Server,
    free_ports,
    kept,
    new_folder,
    running,
)
from benchmarks.ruler.calls import HOST
from benchmarks.ruler.rabbitmq_programs import first_program, plain_environment

MOSQUITTO_PROGRAMS: Final = ("mosquitto", "/usr/sbin/mosquitto")


class MqttLeveret(Leveret):
    """A node of Leveret with a listener for MQTT."""

    def __init__(self, folder: Path, beside: Self | None = None) -> None:
        super().__init__(folder, beside)
        (self.mqtt_port,) = free_ports(1)
        (folder / "leveret.conf").write_text(f"mqtt.listeners.tcp.1 = {HOST}:{self.mqtt_port}\n")

    def command(self) -> list[str]:
        return [*super().command(), "--config", str(self.folder / "leveret.conf")]

    def ask_version(self, timeout_s: float) -> str:
        version = super().ask_version(timeout_s)
        Client(self.mqtt_port, "benchmark-start", timeout_s=timeout_s).socket.close()  # It listens for AMQP first.
        return version


class MqttRabbitMQ(RabbitMQ):
    """A node of RabbitMQ with its MQTT plugin."""

    def __init__(self, folder: Path, beside: Self | None = None) -> None:
        super().__init__(folder, beside)
        (self.mqtt_port,) = free_ports(1)
        (folder / "enabled_plugins").write_text("[rabbitmq_mqtt].\n")
        listener = f"mqtt.listeners.tcp.1 = {HOST}:{self.mqtt_port}\n"
        (folder / "rabbitmq.conf").write_text(f"loopback_users.guest = true\n{listener}")

    def ask_version(self, timeout_s: float) -> str:
        version = super().ask_version(timeout_s)
        Client(self.mqtt_port, "benchmark-start", timeout_s=timeout_s).socket.close()
        return version


class Mosquitto(Server):
    """Mosquitto with its default settings, except that persistence is on."""

    name = "mosquitto"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self.mqtt_port,) = free_ports(1)
        user = pwd.getpwuid(os.getuid()).pw_name  # As root it would become another user, who may not write here.
        lines = (
            f"listener {self.mqtt_port} {HOST}",
            "allow_anonymous true",
            "persistence true",
            f"persistence_location {folder}/",
            f"user {user}",
        )
        (folder / "mosquitto.conf").write_text("\n".join(lines) + "\n")

    @staticmethod
    def program() -> str | None:
        return first_program(MOSQUITTO_PROGRAMS)

    def command(self) -> list[str]:
        program = self.program()
        assert program is not None
        return [program, "-c", str(self.folder / "mosquitto.conf")]

    def environment(self) -> dict[str, str]:
        return plain_environment()

    def ask_version(self, timeout_s: float) -> str:
        Client(self.mqtt_port, "benchmark-start", timeout_s=timeout_s).socket.close()
        said = subprocess.run([self.command()[0], "-h"], capture_output=True, check=False).stdout.decode()
        found = re.search(r"version (\S+)", said)
        return found[1] if found else "unknown"


MqttBroker = MqttLeveret | MqttRabbitMQ | Mosquitto


def installed() -> list[type[MqttBroker]]:
    """Returns Leveret, and the other brokers that are installed."""
    found: list[type[MqttBroker]] = [MqttLeveret]
    if Mosquitto.program():
        found.append(Mosquitto)
    if MqttRabbitMQ.program():
        found.append(MqttRabbitMQ)
    return found


@contextlib.contextmanager
def started(kind: type[MqttBroker], data: Path | None) -> Iterator[MqttBroker]:
    """Yields a started broker, which is gone afterwards."""
    if issubclass(kind, Mosquitto):
        with kept(kind(new_folder(kind, data))) as mosquitto:
            mosquitto.start()
            yield mosquitto
    else:
        with running(kind, data) as broker:
            yield broker
