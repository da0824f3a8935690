"""Parts of the broker that do more than take messages and deliver them."""

from __future__ import annotations

import random
from collections.abc import Callable

from faults.cases.case import Case
from faults.cases.run import Run
from faults.clients.consumer import Consumer
from faults.clients.lease import Getter, LeaseReader
from faults.clients.load import Where, picker
from faults.clients.mqtt import MqttPublisher, MqttSubscriber
from faults.clients.publisher import Publisher
from faults.machines.cluster import TICK_S
from faults.machines.node import until

TTL_MS = 500
MQTT_PORT = 1883
MANAGEMENT_PORT = 15672


def _dead_letters(run: Run) -> None:
    """Messages are rejected into a second queue, expire there, and end in a third, which is consumed: a chain."""
    run.cluster.mirror(run.prefix)
    first, second, last = (f"{run.prefix}-{name}" for name in ("first", "second", "last"))
    to_second = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second}
    to_last = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": last, "x-message-ttl": TTL_MS}
    for queue, arguments in ((first, to_second), (second, to_last), (last, {})):
        run.declare(queue, arguments)
    run.queues += [first, second, last]
    run.cluster.await_in_sync(run.queues)
    # A dead letter may come twice when its master is lost, and has a mark then or not: at least once is promised.
    run.promise(first, kept=True)
    for number in range(2):
        run.add(Publisher(f"p{number}", run.folder, run.board, run.pick(), first))
        seed = run.rng.randrange(1 << 30)
        run.add(
            Consumer(f"c{number}", run.folder, run.board, run.pick(), first, drops=0.002, rejects=0.5, seed=seed)
        )
    run.add(Consumer("last", run.folder, run.board, run.pick(), last))


def strike(run: Run) -> None:
    node = run.master()
    what = run.rng.choice(("kill", "cut"))
    with run.fault(f"{what} {node.name}, a master"):
        if what == "kill":
            node.kill()
            run.wait(0.0, 3.0)
            run.restart(node)
        else:
            run.cluster.part([node])
            run.wait(TICK_S + 2.0)
            run.cluster.heal()


def _mqtt(run: Run) -> None:
    """QoS 2 is exactly once, also when publisher and subscriber go to another node with their sessions."""
    run.cluster.mirror("mqtt-")
    topic = f"{run.prefix}-topic"
    run.promise(topic, kept=True, marked=True)

    def pick() -> Callable[[], Where]:
        return picker(random.Random(run.rng.random()), [Where(node.host, MQTT_PORT) for node in run.cluster.nodes])

    subscriber = MqttSubscriber("s", run.folder, run.board, pick(), topic)
    run.add(subscriber)
    until(lambda: subscriber.is_subscribed, "the subscription is there", 30.0)
    run.add(MqttPublisher("p", run.folder, run.board, pick(), topic))


def _leases(run: Run) -> None:
    """Two readers take the lease of a queue over from each other, read and acknowledge; a third client gets messages
    of the same queue as any consumer would."""
    run.cluster.mirror(run.prefix)
    queue = f"{run.prefix}-leased"
    run.declare(queue)
    run.queues.append(queue)
    run.cluster.await_in_sync(run.queues)
    run.promise(queue, kept=True, marked=True, settled=True)
    servers = [f"{node.host}:{MANAGEMENT_PORT}" for node in run.cluster.nodes]
    run.add(Publisher("p", run.folder, run.board, run.pick(), queue))
    for name in ("a", "b"):
        run.add(LeaseReader(name, run.folder, run.board, servers, queue, "job", run.rng.randrange(1 << 30)))
    run.add(Getter("g", run.folder, run.board, run.pick(), queue))


def _strike_or_freeze(run: Run) -> None:
    if run.rng.random() < 0.7:
        strike(run)
        return
    node = run.master()
    with run.fault(f"SIGSTOP {node.name}, a master, for longer than net_ticktime"):
        node.freeze()
        run.wait(TICK_S + 2.0)
        node.thaw()


CASES = (
    Case("dead-letters", "rejects, TTL and a chain of dead letters; masters die", _dead_letters, strike, 18),
    Case(
        "leases", "readers that take a lease over from each other; masters die, freeze, are cut off", _leases,
        _strike_or_freeze, 20, config=f"management.tcp.port = {MANAGEMENT_PORT}", only_leveret=True,
    ),
    Case(
        "mqtt", "MQTT with QoS 2, sessions taken over at other nodes", _mqtt, strike, 20,
        config=f"mqtt.listeners.tcp.1 = 0.0.0.0:{MQTT_PORT}", only_leveret=True,
    ),
)  # fmt: skip
