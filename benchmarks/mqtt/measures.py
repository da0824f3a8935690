"""Measures MQTT, all brokers in turn in the same run.

- `mqtt-rates`: one publisher and one subscriber with QoS 0, 1 and 2, one publisher and 100 subscribers; with sessions
  that end with their connection, and with those that last, whose messages are on disk.
- `mqtt-mirrored`: sessions that last, their queues mirrored on three nodes (`ha-mode: all`). Mosquitto has no clusters.
- `mqtt-idle`: the memory of 10,000 connections, without subscriptions and with one each.
- `mqtt-retained`: 100,000 retained messages, found by one wildcard.

A broker that does not do what a row asks for (QoS 2 of RabbitMQ is QoS 1, and its wildcards find no retained messages)
has no figure there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.mqtt import packets
from benchmarks.mqtt.brokers import Mosquitto, MqttBroker, MqttLeveret, MqttRabbitMQ, started
from benchmarks.mqtt.load import IDENTIFIERS, Measured, Publisher, Subscriber, drive
from benchmarks.mqtt.packets import RETAIN, Client, NotSupported
from benchmarks.ruler.brokers import Policy, cluster

PARTS: Final = ("mqtt-rates", "mqtt-mirrored", "mqtt-idle", "mqtt-retained")
BODY: Final = b"x" * 100
TOPIC: Final = "benchmark/one"
RUN_TOPIC: Final = "benchmark/run{:04}"  # Of each run its own: a broker may still deliver messages of the one before.
WINDOW: Final = 500
NODES: Final = 3
IDLE, QUICK_IDLE = 10_000, 200
AT_ONCE: Final = 100  # Connections that are opened together: fewer than the sockets that a listener lets wait.
RETAINED, QUICK_RETAINED = 100_000, 2_000
RETAINED_TOPIC: Final = "benchmark/retained"
SETTLE_S, QUICK_SETTLE_S = 1.0, 0.1
MIRRORED: Final = Policy("ha", "^mqtt-subscription-", {"ha-mode": "all"})
SESSION_QUEUE: Final = "mqtt-subscription-benchmark-s000qos1"  # Of the first subscriber, with QoS 1 and 2.

Rates = dict[str, dict[str, float]]  # row → broker → number


class Row(NamedTuple):
    """Clients of one publisher, and how they are connected."""

    name: str
    about: str
    qos: int
    subscribers: int = 1
    batch: int = 50  # messages in one send
    is_durable: bool = False


ROWS: Final = (
    Row("QoS 0", "to one subscriber", 0),
    Row("QoS 1", "to one subscriber, acknowledged both ways", 1),
    Row("QoS 2", "to one subscriber, acknowledged both ways", 2),
    Row("fan", "QoS 0, to 100 subscribers (deliveries)", 0, subscribers=100, batch=2),
    Row("durable QoS 1", "sessions that last", 1, is_durable=True),
    Row("durable QoS 2", "sessions that last", 2, is_durable=True),
)
MIRRORED_ROWS: Final = (
    Row("mirrored QoS 1", "sessions that last, on three nodes", 1, is_durable=True),
    Row("mirrored QoS 2", "sessions that last, on three nodes", 2, is_durable=True),
)


class Measures:
    """Measures brokers of `kinds`. The results are in its fields, with keys that JSON can have."""

    def __init__(
        self,
        kinds: Sequence[type[MqttBroker]],
        rounds: int,
        seconds: float,
        quick: bool,
        data: Path | None,
        tell: Callable[[str], None],
    ) -> None:
        self.kinds, self.rounds, self.seconds, self.quick = kinds, rounds, seconds, quick
        self.data, self.tell = data, tell
        self.settle_s = QUICK_SETTLE_S if quick else SETTLE_S
        self.rates: Rates = {}  # Messages a second.
        self.missing: Rates = {}  # Part of the messages that did not come.
        self.figures: Rates = {}  # Idle connections and retained messages.
        self.rounds_run: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.versions: dict[str, str] = {}

    def run(self, part: str) -> None:
        measures: dict[str, Callable[[], None]] = {
            "mqtt-rates": self._rates,
            "mqtt-mirrored": self._mirrored,
            "mqtt-idle": self._idle,
            "mqtt-retained": self._retained,
        }
        measures[part]()

    def _rates(self) -> None:
        with contextlib.ExitStack() as running:
            brokers = [running.enter_context(self._started(kind)) for kind in self.kinds]
            for row in ROWS:
                self._row(row, brokers)

    def _mirrored(self) -> None:
        with contextlib.ExitStack() as running:
            founders: list[MqttBroker] = []
            for kind in self.kinds:
                if issubclass(kind, Mosquitto):
                    continue
                self.tell(f"starting {kind.name} with MQTT, nodes: {NODES}")
                nodes: Sequence[MqttLeveret | MqttRabbitMQ] = running.enter_context(cluster(kind, NODES, self.data))
                nodes[0].set_policy(MIRRORED)
                founders.append(nodes[0])
            for row in MIRRORED_ROWS:
                self._row(row, founders)

    @contextlib.contextmanager
    def _started(self, kind: type[MqttBroker]) -> Iterator[MqttBroker]:
        self.tell(f"starting {kind.name} with MQTT")
        with started(kind, self.data) as broker:
            self.versions[broker.name] = broker.version
            yield broker

    # -- Rates ---------------------------------------------------------------------------------------------------

    def _row(self, row: Row, brokers: Sequence[MqttBroker]) -> None:
        results: dict[str, list[Measured]] = {}
        for number in range(1, self.rounds + 1):
            for broker in brokers:
                where = f"MQTT, {row.name}, round {number}, {broker.name}"
                try:
                    result = self._run(row, broker)
                except NotSupported as error:
                    self.tell(f"{where}: not supported: {error}")
                    continue
                results.setdefault(broker.name, []).append(result)
                self.tell(f"{where}: {result.per_s:,}/s, {result.missing:.1%} missing, client {result.client_cpu:.0%}")
                self._judge(where, broker, result)
                values = {"per_s": result.per_s} | dataclasses.asdict(result)
                self.rounds_run.append({"workload": row.name, "round": number, "broker": broker.name} | values)
        self.rates[row.name] = {name: statistics.median(one.per_s for one in found) for name, found in results.items()}
        self.missing[row.name] = {
            name: statistics.median(one.missing for one in found) for name, found in results.items()
        }

    def _judge(self, where: str, broker: MqttBroker, result: Measured) -> None:
        """Other brokers may drop messages; Leveret must not, while its subscribers read."""
        if result.errors or (isinstance(broker, MqttLeveret) and result.delivered != result.expected):
            self._problem(f"{where}: {result}")

    def _problem(self, text: str) -> None:
        self.problems.append(text)
        self.tell(f"PROBLEM {text}")

    def _run(self, row: Row, broker: MqttBroker) -> Measured:
        topic = RUN_TOPIC.format(len(self.rounds_run))
        with contextlib.ExitStack() as opened:
            port, is_clean = broker.mqtt_port, not row.is_durable
            if row.is_durable:
                opened.callback(forget, port, ["benchmark-p", "benchmark-s000"])
            clients = [
                opened.enter_context(Client(port, f"benchmark-s{number:03}", is_clean))
                for number in range(row.subscribers)
            ]
            for client in clients:
                client.subscribe(topic, row.qos)
            if row in MIRRORED_ROWS and not isinstance(broker, Mosquitto):
                broker.await_copies(SESSION_QUEUE, NODES)
            messages = [packets.publish(topic, BODY, row.qos, number) for number in identifiers(row)]
            publisher = Publisher(
                opened.enter_context(Client(port, "benchmark-p", is_clean)), messages, row.qos, row.batch, WINDOW
            )
            subscribers = [Subscriber(client, messages[0], row.qos, len(BODY)) for client in clients]
            time.sleep(self.settle_s)  # Work left from the preparation is not part of the measurement.
            return drive([publisher], subscribers, self.seconds)

    # -- What is held --------------------------------------------------------------------------------------------

    def _idle(self) -> None:
        count = QUICK_IDLE if self.quick else IDLE
        for kind in self.kinds:
            for name, topic_filter in (("idle", None), ("subscribed", TOPIC)):
                with self._started(kind) as broker:  # A new one: memory that others left would be used again.
                    self._figure(f"{name}_bytes", broker, self._weigh(broker, count, topic_filter))

    def _weigh(self, broker: MqttBroker, count: int, topic_filter: str | None) -> float:
        """Returns the memory that each of `count` connections takes."""
        with contextlib.ExitStack() as opened:
            for number in range(count // 100):  # What the first clients bring about once is no memory of the others.
                with Client(broker.mqtt_port, f"benchmark-first-{number}") as first:
                    first.subscribe(TOPIC, 0)
            time.sleep(self.settle_s)
            before, began = broker.resident_bytes(), time.perf_counter()
            for at in range(0, count, AT_ONCE):
                some = [
                    opened.enter_context(Client(broker.mqtt_port, f"benchmark-idle-{number:05}", is_waiting=True))
                    for number in range(at, min(at + AT_ONCE, count))
                ]
                for client in some:
                    client.expect_accepted()
                if topic_filter is not None:
                    for number, client in enumerate(some, at):
                        client.socket.sendall(packets.subscribe(f"{topic_filter}/{number:05}", 0))
                    for client in some:
                        client.expect_granted(0)
            took = time.perf_counter() - began
            time.sleep(self.settle_s)
            each = (broker.resident_bytes() - before) / count
        self.tell(f"MQTT, {count:,} connections, {broker.name}: {each:,.0f} bytes each, {count / took:,.0f} a second")
        return each

    def _retained(self) -> None:
        count = QUICK_RETAINED if self.quick else RETAINED
        for kind in self.kinds:
            with self._started(kind) as broker:
                topics = [f"{RETAINED_TOPIC}/{number % 100:02}/{number:06}" for number in range(count)]
                filled = self._keep(broker, topics)
                self._figure("retained_per_s", broker, filled.per_s)
                found_s = [self._find(broker, topics) for _ in range(self.rounds)]
                if all(seconds is not None for seconds in found_s):
                    self._figure("found_s", broker, statistics.median(seconds for seconds in found_s if seconds))

    def _keep(self, broker: MqttBroker, topics: Sequence[str]) -> Measured:
        """Publishes a retained message to each topic."""
        with Client(broker.mqtt_port, "benchmark-p") as client:
            numbers = (1 + at % IDENTIFIERS for at in range(len(topics)))
            messages = [
                packets.publish(topic, BODY, 1, number, RETAIN) for topic, number in zip(topics, numbers, strict=True)
            ]
            publisher = Publisher(client, messages, 1, 50, WINDOW)
            publisher.sent_max = len(topics)
            result = drive([publisher], [], seconds=600)
        result.delivered = publisher.acked
        if result.errors:
            self._problem(f"MQTT, retained, {broker.name}: {result}")
        return result

    def _find(self, broker: MqttBroker, topics: Sequence[str]) -> float | None:
        """Returns the seconds from SUBSCRIBE to the last message, if all come."""
        size = len(packets.publish(topics[0], BODY, 0))  # All topics are equally long.
        with Client(broker.mqtt_port, "benchmark-s000") as client:
            began = time.perf_counter()
            client.subscribe(f"{RETAINED_TOPIC}/#", 0)
            missing = size * len(topics) - len(client.received)
            client.socket.settimeout(5)
            buffer = bytearray(1 << 18)
            with contextlib.suppress(TimeoutError):
                while missing > 0 and (count := client.socket.recv_into(buffer)):
                    missing -= count
            took = time.perf_counter() - began
        where = f"MQTT, {len(topics):,} retained, {broker.name}"
        if missing:
            self.tell(f"{where}: {missing // size:,} were not found by the wildcard")
            if isinstance(broker, MqttLeveret):
                self._problem(f"{where}: not all were found")
            return None
        self.tell(f"{where}: found in {took:.2f} s")
        return took

    def _figure(self, name: str, broker: MqttBroker, value: float) -> None:
        self.figures.setdefault(name, {})[broker.name] = value


def identifiers(row: Row) -> Sequence[int]:
    """Returns the packet identifiers that messages have in turn; of QoS 0 they have none."""
    return range(1, IDENTIFIERS + 1) if row.qos else range(row.batch)


def forget(port: int, client_ids: Sequence[str]) -> None:
    """Ends sessions that last, with what waits in them."""
    for client_id in client_ids:
        with Client(port, client_id) as client:
            client.disconnect()
