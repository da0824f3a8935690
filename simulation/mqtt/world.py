"""A run as any other, in which there are clients of MQTT beside those of AMQP. What must hold is told in `checker`."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from leveret.metadata.model.commands import SetPolicy
from simulation import own_command
from simulation.mqtt import packets as k
from simulation.mqtt.checker import MqttChecker
from simulation.mqtt.client import Connection, MqttClient
from simulation.world import SETTLE_S, START_S, Violation, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulation.plan import Plan

FILTERS: Final = (("m/#", 2), ("w/#", 2), ("$share/g/h/#", 2))
SUBSCRIBERS: Final = 2
PUBLISHERS: Final = 2
QUIET_S: Final = 20.0  # Longer than it takes to notice that a connection is lost.
CALM_S: Final = 10.0
AFTER_S: Final = 3.0


class Looker(MqttClient):
    """Subscribes to retained messages, once, and remembers what it is given."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.found: dict[str, bytes] = {}

    def _on_publish(self, connection: Connection, packet: k.Packet) -> None:
        self.found[packet.topic] = packet.payload
        if packet.qos:
            connection.write(k.ack(k.PUBACK, packet.packet_id))


class MqttWorld(World):
    """A run with clients of MQTT."""

    speaks_mqtt = True

    def __init__(self, plan: Plan, traced: bool = False) -> None:
        super().__init__(plan, traced)
        self.checker = MqttChecker(self.fail, lambda: self.scheduler.now)
        places = [machine.name for machine in self.machines]
        self.subscribers = [
            self._client(MqttClient, f"s{number}", FILTERS, places) for number in range(SUBSCRIBERS)
        ]
        self.publishers = [self._client(MqttClient, f"p{number}", (), places) for number in range(PUBLISHERS)]
        self.devices = self.subscribers + self.publishers

    def _client(
        self, kind: type[MqttClient], name: str, filters: tuple[tuple[str, int], ...], places: list[str]
    ) -> MqttClient:
        dice = random.Random(f"{self.seed}/mqtt/{name}")
        return kind(name, filters, places, self.client_loop, self.checker, dice, self.note)

    def _begin(self) -> None:
        super()._begin()
        if self.plan.mirrored:
            self.operators.order(SetPolicy("/", "mqtt", "^mqtt-subscription-", "queues", 9, {"ha-mode": "all"}))
            self.run_for(2.0)
        for client in self.subscribers:
            self.checker.expect(client.name)
            self._in_loop(client.connect)
        self.must(START_S, self._are_subscribed, lambda: "a subscriber was not answered")
        for client in self.devices:
            self._in_loop(client.act)

    def _in_loop(self, what: Callable[[], None]) -> None:
        self.client_loop.call_soon(what)

    def _are_subscribed(self) -> bool:
        return all(map(self._is_answered, self.subscribers))

    # -- The end -------------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        super()._heal()
        self.run_for(QUIET_S)
        self.checker.is_lost = self.ledger.has_lost_disks and not self.plan.mirrored
        self.checker.is_calm = True
        self.run_for(CALM_S)
        for client in self.devices:
            client.is_over = True
        self.must(SETTLE_S, self._are_done, self._undone)
        for client in self.publishers:
            self._in_loop(client.lose)
        self.run_for(1.0)
        self.must(SETTLE_S, lambda: not self.checker.missing(), self.checker.missing)
        self._strike_once_more()
        self.must(SETTLE_S, self._are_done, self._undone)
        self._check_retained()
        self.checker.check_forgone()
        if self.failure is not None:
            raise Violation(self.failure)

    def _are_done(self) -> bool:
        return not self._undone()

    def _undone(self) -> str:
        for client in self.devices:
            if not client.is_open:
                return f"{client.name} is not connected"
            if client.outgoing or client.incoming or client.connection is None or client.connection.acks:
                return f"{client.name} has not completed {client.outgoing} and {client.incoming}"
        return ""

    def _strike_once_more(self) -> None:
        """What was completed must stay so when the power fails, and when clients come back to other nodes."""
        self.checker.is_calm = False
        self.ledger.on_disturbed(self.scheduler.now + SETTLE_S)
        self.fault_power_all(0.5)
        self.run_for(1.0)
        self.must(START_S, self.all_serve, lambda: f"after the power has failed: {self.standing()}")
        for machine in self.machines:
            self.must(SETTLE_S, self._are_done, self._undone)
            self.run_for(AFTER_S)
            for client in self.devices:
                self._in_loop(partial(client.connect, machine.name))
            self.run_for(1.0)

    def _check_retained(self) -> None:
        found: dict[str, dict[str, bytes]] = {}
        for machine in self.machines:
            looker = self._client(Looker, f"looker {machine.name}", (("r/#", 1),), [machine.name])
            assert isinstance(looker, Looker)
            self._in_loop(looker.connect)
            self.must(SETTLE_S, partial(self._is_answered, looker), lambda: "a looker was not answered")
            self.run_for(3.0)
            found[machine.name] = looker.found
        self.note("world", f"retained: {found}")
        self.checker.check_retained(found)

    @staticmethod
    def _is_answered(client: MqttClient) -> bool:
        return client.is_open and client.is_subscribed

    def summary(self) -> str:
        counts = {what: sum(one.counts[what] for one in self.devices) for what in self.devices[0].counts}
        safe = sum(one.safe is not None for one in self.checker.messages.values())
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        return f"{super().summary()}; mqtt: {told}, {safe} safe, {self.checker.wills} wills"


def run(plan: Plan, traced: bool = False) -> MqttWorld:
    """Raises Violation, with the command that replays it."""
    return own_command.play("mqtt", MqttWorld, plan, traced)
